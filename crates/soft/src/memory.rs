//! Memory of the user: the only place where a device of this crate touches it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::mm::{Advice, madvise};
use uverbs_ioctl::{Errno, Result};

/// A stretch of memory that the device may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    address: u64,
    length: usize,
}

impl Segment {
    /// # Safety
    /// The memory may be read and written, without a Rust reference to it, until the operation that the segment is made for is over.
    pub(crate) unsafe fn new(address: u64, length: usize) -> Self {
        Self { address, length }
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    fn start(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    /// The 8 bytes of it for an atomic operation. Nothing if it is shorter or not aligned.
    fn word(&self) -> Option<&AtomicU64> {
        let fits = self.length >= 8 && self.address.is_multiple_of(8);
        // SAFETY: the contract of `new`; it is long enough and aligned.
        fits.then(|| unsafe { AtomicU64::from_ptr(self.start().cast()) })
    }

    /// Adds to the word there and gives what was there before.
    pub(crate) fn fetch_add(&self, add: u64) -> Option<u64> {
        Some(self.word()?.fetch_add(add, Ordering::SeqCst))
    }

    /// Replaces the word there if it is as expected, and gives what was there before.
    pub(crate) fn compare_swap(&self, expected: u64, new: u64) -> Option<u64> {
        let word = self.word()?;
        Some(match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(before) | Err(before) => before,
        })
    }

    /// Writes the word there at once.
    pub(crate) fn store(&self, value: u64) -> Option<()> {
        self.word()?.store(value, Ordering::Release);
        Some(())
    }
}

/// Copies from one list of segments to another, as much as there is and fits. The last byte of each piece is written last and at once: who sees
/// it change, in a thread that waits for that, sees what comes before it.
pub(crate) fn copy(from: &[Segment], to: &[Segment]) {
    let (mut sources, mut targets) = (from.iter().copied(), to.iter().copied());
    let (mut source, mut target) = (sources.next(), targets.next());
    while let (Some(from), Some(into)) = (&mut source, &mut target) {
        let length = from.length.min(into.length);
        if let Some(rest) = length.checked_sub(1) {
            // SAFETY: both may be used for so many bytes (the contract of `Segment::new`). They may overlap: the last one is read first.
            unsafe {
                let last = from.start().add(rest).read();
                into.start().copy_from(from.start(), rest);
                AtomicU8::from_ptr(into.start().add(rest)).store(last, Ordering::Release);
            }
        }
        for part in [&mut *from, &mut *into] {
            part.address += length as u64;
            part.length -= length;
        }
        if from.length == 0 {
            source = sources.next();
        }
        if into.length == 0 {
            target = targets.next();
        }
    }
}

/// Copies bytes of this crate to segments.
pub(crate) fn write(bytes: &[u8], to: &[Segment]) {
    // SAFETY: a source is only read, and the bytes live until the copy is done.
    let from = unsafe { Segment::new(bytes.as_ptr().expose_provenance() as u64, bytes.len()) };
    copy(&[from], to);
}

/// Copies from segments to bytes of this crate.
pub(crate) fn read(from: &[Segment], bytes: &mut [u8]) {
    let address = bytes.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the bytes are borrowed until the copy is done.
    let to = unsafe { Segment::new(address, bytes.len()) };
    copy(from, &[to]);
}

/// Faults memory in, as pinning it would. `EFAULT` where nothing is mapped, or nothing that may be written, if it is to be.
///
/// A kernel before 5.14 does not tell, and takes any range.
pub(crate) fn populate(address: u64, length: u64, writable: bool) -> Result<()> {
    let page = rustix::param::page_size() as u64;
    let start = address & !(page - 1);
    let end = address.checked_add(length).and_then(|end| end.checked_next_multiple_of(page));
    let end = end.ok_or(Errno::EINVAL)?;
    let advice = if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    let advise = |length: u64| {
        let pointer = std::ptr::with_exposed_provenance_mut(start as usize);
        // SAFETY: this advice changes no content; it makes pages present.
        unsafe { madvise(pointer, length as usize, advice) }
    };
    // For no bytes, the kernel says whether it knows the advice.
    if advise(0).is_ok() && advise(end - start).is_err() { Err(Errno::EFAULT) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(bytes: &mut [u8]) -> Segment {
        // SAFETY: the tests use the bytes only after the operation.
        unsafe { Segment::new(bytes.as_mut_ptr().expose_provenance() as u64, bytes.len()) }
    }

    #[test]
    fn pieces_are_gathered_and_scattered() {
        let (mut a, mut b, mut c, mut d) = (*b"abcde", *b"fgh", [0; 2], [0; 5]);
        let from = [segment(&mut a), segment(&mut []), segment(&mut b)];
        let to = [segment(&mut []), segment(&mut c), segment(&mut d)];
        copy(&from, &to);
        assert_eq!((&c, &d), (b"ab", b"cdefg"));
        write(b"xyz", &to);
        assert_eq!((&c, &d), (b"xy", b"zdefg"));
        let mut e = [0; 6];
        read(&to, &mut e);
        assert_eq!(&e, b"xyzdef");
    }

    #[test]
    fn pieces_that_overlap_are_moved() {
        let mut bytes = *b"abcdefgh";
        let start = bytes.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: as above.
        let at = |offset: u64, length| unsafe { Segment::new(start + offset, length) };
        copy(&[at(0, 5)], &[at(2, 5)]);
        assert_eq!(&bytes, b"ababcdeh");
        copy(&[at(3, 5)], &[at(1, 5)]);
        assert_eq!(&bytes, b"abcdeheh");
    }

    #[test]
    fn words_are_changed_at_once() {
        let mut words = [5_u64, 7];
        let start = words.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: as above.
        let at = |offset: u64, length| unsafe { Segment::new(start + offset, length) };
        let (first, odd, short) = (at(0, 8), at(1, 8), at(8, 7));
        assert_eq!(first.fetch_add(u64::MAX), Some(5));
        assert_eq!((first.compare_swap(9, 1), first.compare_swap(4, 1)), (Some(4), Some(4)));
        assert_eq!((odd.fetch_add(1), short.store(1)), (None, None));
        first.store(77).unwrap();
        assert_eq!(words, [77, 7]);
    }

    #[test]
    fn memory_is_looked_at() {
        let mapping = memmap2::MmapMut::map_anon(8192).unwrap();
        let address = mapping.as_ptr().expose_provenance() as u64;
        assert_eq!(populate(address + 5, 8000, true), Ok(()));
        let mapping = mapping.make_read_only().unwrap();
        assert_eq!(
            (populate(address, 8192, true), populate(address, 8192, false)),
            (Err(Errno::EFAULT), Ok(()))
        );
        drop(mapping);
        assert_eq!(populate(0, 4096, false), Err(Errno::EFAULT));
        assert_eq!(populate(u64::MAX, 2, false), Err(Errno::EINVAL));
    }
}
