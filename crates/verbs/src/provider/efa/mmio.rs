//! Mapped memory of the device: doorbells, send queues that are written with write combining, and the order of accesses.
//!
//! The device reads and writes little-endian, and the order in which its own accesses and ours are seen is not what Rust's atomics
//! speak of. So everything it sees goes through volatile accesses and the barriers here.

use uverbs_ioctl::{Errno, MmapRaw, Transport};

/// A memory barrier: no access moves across it, as far as the instructions named order them. Without an instruction it keeps the
/// compiler from moving accesses, which is all that the architecture needs there.
macro_rules! barrier {
    ($x86_64:literal, $aarch64:literal) => {{
        #[cfg(target_arch = "x86_64")]
        // SAFETY: it touches neither memory of its own nor registers.
        unsafe {
            core::arch::asm!($x86_64, options(nostack, preserves_flags))
        };
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            core::arch::asm!($aarch64, options(nostack, preserves_flags))
        };
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }};
}

/// Memory written before is seen by the device when it sees a doorbell rung after.
#[inline]
pub(super) fn before_doorbell() {
    barrier!("", "dmb oshst");
}

/// Nothing written before gets into the write-combining buffers behind what is written after.
#[inline]
pub(super) fn before_write_combining() {
    barrier!("sfence", "dmb oshst");
}

/// What is in the write-combining buffers leaves for the device before a doorbell rung after.
#[inline]
pub(super) fn flush_write_combining() {
    barrier!("sfence", "dsb st");
}

/// What the device wrote before it wrote what has just been read can be read.
#[inline]
pub(super) fn after_read() {
    barrier!("", "dmb oshld");
}

/// A register of 32 bits in a page of the device.
pub(super) struct Register {
    page: MmapRaw,
    offset: usize,
}

impl Register {
    pub(super) fn map(transport: &dyn Transport, key: u64, offset: u32) -> Result<Self, Errno> {
        let (offset, size) = (offset as usize, rustix::param::page_size());
        if offset + size_of::<u32>() > size || !offset.is_multiple_of(size_of::<u32>()) {
            return Err(Errno::EPROTO);
        }
        Ok(Self { page: transport.map(key, size)?, offset })
    }

    #[inline]
    pub(super) fn write(&self, value: u32) {
        // SAFETY: the word is in the page and aligned (checked when mapped); writing a register of the device touches no memory that
        // Rust knows.
        unsafe { self.page.as_mut_ptr().add(self.offset).cast::<u32>().write_volatile(value.to_le()) };
    }
}

/// Memory that is shared with the device, in words of 64 bits.
pub(super) struct Window {
    map: MmapRaw,
    offset: usize,
    words: usize,
}

impl Window {
    /// Maps `length` bytes behind the first `offset`.
    pub(super) fn map(
        transport: &dyn Transport,
        key: u64,
        offset: usize,
        length: usize,
    ) -> Result<Self, Errno> {
        if !offset.is_multiple_of(size_of::<u64>()) {
            return Err(Errno::EPROTO);
        }
        let size = (offset + length).next_multiple_of(rustix::param::page_size());
        Ok(Self { map: transport.map(key, size)?, offset, words: length / size_of::<u64>() })
    }

    /// Writes words from word `first` on, each with one store, in order.
    #[inline]
    pub(super) fn write(&self, first: usize, values: &[u64]) {
        assert!(first + values.len() <= self.words, "outside of the queue");
        for (index, value) in values.iter().enumerate() {
            // SAFETY: the word is in the mapping (checked above) and aligned (the mapping is, and the offset: checked when mapped). No
            // reference into the mapping is ever made.
            unsafe { self.word(first + index).write_volatile(*value) };
        }
    }

    /// Reads a word.
    #[inline]
    pub(super) fn read(&self, index: usize) -> u64 {
        assert!(index < self.words, "outside of the queue");
        // SAFETY: as in `write`; any bit pattern is a number.
        unsafe { self.word(index).read_volatile() }
    }

    /// Address of a word.
    #[inline]
    fn word(&self, index: usize) -> *mut u64 {
        self.map.as_mut_ptr().wrapping_add(self.offset).cast::<u64>().wrapping_add(index)
    }
}
