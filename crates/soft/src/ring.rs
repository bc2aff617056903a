//! Rings shared with the user, with the driver's layout: `struct rxe_queue_buf`, then elements.
//!
//! The memory is a file without a name that both sides map. The geometry, and the index that is this side's to move, are kept here, so
//! that nothing the user writes there leads out of the mapping.

use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::rxe::{QueueBuf, Sge};
use zerocopy::{FromBytes, IntoBytes};

use crate::memory::Segment;

const CACHE_LINE: usize = 64;

/// Which side of a ring the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It takes what the user posts.
    Consumer,
    /// It fills in completions.
    Producer,
}

/// The device's side of a ring.
#[derive(Debug)]
pub(crate) struct Ring {
    map: MmapRaw,
    side: Side,
    mask: u32,
    shift: u32,
    /// This side's index.
    own: u32,
}

/// A ring's memory, for the user to map.
#[derive(Debug)]
pub(crate) struct RingFile {
    file: OwnedFd,
    pub(crate) size: u32,
}

impl RingFile {
    /// Maps `length` bytes of it.
    pub(crate) fn map(&self, length: usize) -> Result<MmapRaw> {
        map(&self.file, length)
    }
}

fn map(file: impl AsFd, length: usize) -> Result<MmapRaw> {
    use std::os::fd::AsRawFd;
    MmapOptions::new()
        .len(length)
        .map_raw(file.as_fd().as_raw_fd())
        .map_err(|error| error.raw_os_error().map_or(Errno::ENOMEM, Errno::from_raw))
}

impl Ring {
    /// A ring with room for `capacity` elements at least, of `element` bytes each at least.
    pub(crate) fn new(capacity: u32, element: usize, side: Side) -> Result<(Self, RingFile)> {
        let slots = capacity.checked_add(1).and_then(u32::checked_next_power_of_two).ok_or(Errno::EINVAL)?;
        let shift = element.max(CACHE_LINE).next_power_of_two().trailing_zeros();
        let bytes = size_of::<QueueBuf>() as u64 + (u64::from(slots) << shift);
        let size = bytes
            .checked_next_multiple_of(rustix::param::page_size() as u64)
            .and_then(|size| u32::try_from(size).ok())
            .ok_or(Errno::ENOMEM)?;
        let errno = |error: rustix::io::Errno| Errno::from_raw(error.raw_os_error());
        let file = memfd_create("infiniband-soft", MemfdFlags::CLOEXEC).map_err(errno)?;
        ftruncate(&file, u64::from(size)).map_err(errno)?;
        let map = map(&file, size as usize)?;
        let ring = Self { map, side, mask: slots - 1, shift, own: 0 };
        ring.word(offset_of!(QueueBuf, log2_elem_size)).store(shift, Ordering::Relaxed);
        ring.word(offset_of!(QueueBuf, index_mask)).store(slots - 1, Ordering::Relaxed);
        Ok((ring, RingFile { file, size }))
    }

    /// How many elements it holds.
    pub(crate) fn capacity(&self) -> u32 {
        self.mask
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= size_of::<QueueBuf>());
        // SAFETY: the mapping is page-aligned, longer than the header and lives as long as `self`; the fields of the header are aligned
        // words, which both sides access as atomics alone.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(offset_of!(QueueBuf, producer_index))
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(offset_of!(QueueBuf, consumer_index))
    }

    /// How many elements are in it.
    pub(crate) fn count(&self) -> u32 {
        let elements = match self.side {
            Side::Consumer => self.producer().load(Ordering::Acquire).wrapping_sub(self.own),
            Side::Producer => self.own.wrapping_sub(self.consumer().load(Ordering::Acquire)),
        };
        elements & self.mask
    }

    fn slot(&self, index: u32) -> *mut u8 {
        let offset = size_of::<QueueBuf>() + (((index & self.mask) as usize) << self.shift);
        // SAFETY: the index is masked, and the mapping was made to hold all slots.
        unsafe { self.map.as_mut_ptr().add(offset) }
    }

    /// A value at `offset` in the element `ahead` of the oldest one.
    fn read_at<T: FromBytes>(&self, ahead: u32, offset: usize) -> T {
        assert!(offset + size_of::<T>() <= 1 << self.shift, "inside of the slot");
        let oldest = match self.side {
            Side::Consumer => self.own,
            Side::Producer => self.consumer().load(Ordering::Relaxed),
        };
        // SAFETY: it is in the slot (checked). Any bytes make a `T`, also those of a user who writes there while they are read.
        unsafe { self.slot(oldest.wrapping_add(ahead)).add(offset).cast::<T>().read_unaligned() }
    }

    /// The oldest element, if there is one.
    pub(crate) fn front<T: FromBytes>(&self) -> Option<T> {
        (self.count() > 0).then(|| self.read_at(0, 0))
    }

    /// An SGE behind the `header` bytes of the oldest element. `None` if there is no room for that many in a slot.
    pub(crate) fn sge(&self, header: usize, index: usize) -> Option<Sge> {
        let offset = header + index * size_of::<Sge>();
        (offset + size_of::<Sge>() <= 1 << self.shift).then(|| self.read_at(0, offset))
    }

    /// Bytes behind the `header` bytes of the oldest element, for as long as it is not [taken](Self::take). `None` if the slot is shorter.
    pub(crate) fn inline(&self, header: usize, length: usize) -> Option<Segment> {
        (header + length <= 1 << self.shift).then(|| {
            let address = self.slot(self.own).expose_provenance() + header;
            // SAFETY: it is in the slot, and the mapping lives as long as the ring, which the caller holds through the operation.
            unsafe { Segment::new(address as u64, length) }
        })
    }

    /// Gives the oldest `count` elements back to the user.
    pub(crate) fn take(&mut self, count: u32) {
        self.own = self.own.wrapping_add(count) & self.mask;
        self.consumer().store(self.own, Ordering::Release);
    }

    /// Forgets all that is posted.
    pub(crate) fn drain(&mut self) {
        let count = self.count();
        self.take(count);
    }

    /// Adds an element. Says whether there was room.
    pub(crate) fn push<T: IntoBytes>(&mut self, element: T) -> bool {
        if self.count() == self.mask {
            return false;
        }
        assert!(size_of::<T>() <= 1 << self.shift);
        // SAFETY: slots are aligned and have room for it (checked); the user does not read this one before it is shown.
        unsafe { self.slot(self.own).cast::<T>().write_unaligned(element) };
        self.own = (self.own + 1) & self.mask;
        self.producer().store(self.own, Ordering::Release);
        true
    }

    /// A ring of another capacity with the same elements, whose memory the user has to map. `EINVAL` if they do not fit.
    pub(crate) fn resized(&self, capacity: u32) -> Result<(Self, RingFile)> {
        let count = self.count();
        let (mut ring, file) = Self::new(capacity, 1 << self.shift, self.side)?;
        if count > ring.capacity() {
            return Err(Errno::EINVAL);
        }
        let oldest = match self.side {
            Side::Consumer => self.own,
            Side::Producer => self.consumer().load(Ordering::Relaxed),
        };
        for ahead in 0..count {
            // SAFETY: slots of both rings have the same size and lie in their mappings; the new one is nobody else's yet.
            unsafe {
                let from = self.slot(oldest.wrapping_add(ahead));
                ring.slot(ahead).copy_from_nonoverlapping(from, 1 << self.shift);
            }
        }
        ring.producer().store(count, Ordering::Release);
        if self.side == Side::Producer {
            ring.own = count;
        }
        Ok((ring, file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_fill_a_ring_and_survive_resizing() {
        let (mut ring, _) = Ring::new(4, 48, Side::Producer).unwrap();
        assert_eq!(ring.capacity(), 7);
        assert!((0..7_u64).all(|number| ring.push(number)));
        assert!(!ring.push(7_u64));
        // The user takes three.
        ring.consumer().store(3, Ordering::Release);
        assert!(ring.push(7_u64));
        assert_eq!(ring.resized(3).unwrap_err(), Errno::EINVAL);
        let (other, _) = ring.resized(20).unwrap();
        assert_eq!((other.count(), other.capacity()), (5, 31));
        assert!((0..5).all(|ahead| other.read_at::<u64>(ahead, 0) == 3 + u64::from(ahead)));
    }

    #[test]
    fn no_index_of_the_user_leads_out() {
        let (mut ring, file) = Ring::new(3, 64, Side::Consumer).unwrap();
        let user = file.map(file.size as usize).unwrap();
        assert_eq!(ring.front::<u64>(), None);
        // SAFETY: the word is in the mapping, and nobody holds a reference to it.
        unsafe { AtomicU32::from_ptr(user.as_mut_ptr().add(128).cast()) }.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(ring.count(), 3);
        assert_eq!(ring.front::<u64>(), Some(0));
        assert!(ring.sge(40, 0).is_some_and(|sge| sge.length == 0));
        assert!(ring.sge(40, 1).is_none() && ring.inline(40, 25).is_none());
        ring.drain();
        assert_eq!(ring.count(), 0);
    }
}
