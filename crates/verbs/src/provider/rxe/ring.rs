//! A ring in memory shared with the kernel: a header with two indices, then slots.
//!
//! The header's geometry is read once, when the ring is mapped, and checked against the mapping. From then on only the other
//! side's index is read from shared memory, and it is masked before use, so whatever happens to the page, no access leaves the
//! mapping.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_ioctl::uapi::rxe::{MmapInfo, QueueBuf};
use uverbs_ioctl::{Errno, MmapRaw, Transport};

/// Memory with a ring in it. In tests it is a model, which knows every order that processors may see accesses in.
pub(super) trait Memory {
    type Index: Index;

    /// Number of slots less one.
    fn mask(&self) -> u32;

    fn producer(&self) -> &Self::Index;

    fn consumer(&self) -> &Self::Index;

    /// Where a slot is. The index is masked.
    fn slot(&self, index: u32) -> *mut u8;
}

/// An index in it.
pub(super) trait Index {
    fn load(&self, order: Ordering) -> u32;

    fn store(&self, value: u32, order: Ordering);
}

impl Index for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        Self::load(self, order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        Self::store(self, value, order);
    }
}

/// The mapping and its geometry.
pub(super) struct Shared {
    map: MmapRaw,
    mask: u32,
    shift: u32,
}

impl Shared {
    /// Maps a ring whose slots have room for `slot_size` bytes.
    fn map(transport: &dyn Transport, info: &MmapInfo, slot_size: usize) -> Result<Self, Errno> {
        Self::check(transport.map(info.offset, info.size as usize)?, slot_size)
    }

    /// `EPROTO` if the header does not describe a ring that fits the mapping.
    fn check(map: MmapRaw, slot_size: usize) -> Result<Self, Errno> {
        if map.len() < size_of::<QueueBuf>() || !map.as_ptr().addr().is_multiple_of(align_of::<QueueBuf>()) {
            return Err(Errno::EPROTO);
        }
        let mut this = Self { map, mask: 0, shift: 0 };
        let shift = this.word(offset_of!(QueueBuf, log2_elem_size)).load(Ordering::Relaxed);
        let mask = this.word(offset_of!(QueueBuf, index_mask)).load(Ordering::Relaxed);
        let slots = u64::from(mask) + 1;
        let fits = slots.is_power_of_two()
            && shift < 32
            && 1_u64 << shift >= slot_size as u64
            && (slots << shift) + size_of::<QueueBuf>() as u64 <= this.map.len() as u64;
        if !fits {
            return Err(Errno::EPROTO);
        }
        (this.mask, this.shift) = (mask, shift);
        Ok(this)
    }

    /// A word of the header; `offset` is that of a field of it.
    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= size_of::<QueueBuf>());
        // SAFETY: the mapping is at least as long as the header and as aligned (checked in `check`), fields of it are aligned
        // words, the mapping lives as long as `self`, and Rust code touches these words only as atomics.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }
}

impl Memory for Shared {
    type Index = AtomicU32;

    #[inline]
    fn mask(&self) -> u32 {
        self.mask
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        self.word(offset_of!(QueueBuf, producer_index))
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.word(offset_of!(QueueBuf, consumer_index))
    }

    #[inline]
    fn slot(&self, index: u32) -> *mut u8 {
        let offset = size_of::<QueueBuf>() + ((index & self.mask) as usize) * (1 << self.shift);
        // SAFETY: the index is masked, and all slots lie in the mapping (checked in `check`).
        unsafe { self.map.as_mut_ptr().add(offset) }
    }
}

/// A ring that this process fills: it owns the producer index.
pub(super) struct Producer<M = Shared> {
    shared: M,
    /// Where the next element goes.
    next: u32,
    /// The kernel's index as last read; just behind `next` while the ring is closed.
    consumed: u32,
    /// Not zero while the ring is closed. (A `bool` would cost those that ask whether there is a ring at all.)
    closed: u32,
}

impl Producer {
    pub(super) fn map(transport: &dyn Transport, info: &MmapInfo, slot_size: usize) -> Result<Self, Errno> {
        Ok(Self::new(Shared::map(transport, info, slot_size)?))
    }
}

impl<M: Memory> Producer<M> {
    fn new(shared: M) -> Self {
        let next = shared.producer().load(Ordering::Relaxed) & shared.mask();
        let consumed = shared.consumer().load(Ordering::Acquire) & shared.mask();
        Self { shared, next, consumed, closed: 0 }
    }

    /// How many elements it holds.
    pub(super) fn capacity(&self) -> u32 {
        self.shared.mask()
    }

    /// The next free slot. One slot of the ring always stays empty.
    #[inline]
    pub(super) fn reserve(&mut self) -> Option<*mut u8> {
        let after = (self.next + 1) & self.shared.mask();
        if after == self.consumed {
            if self.closed != 0 {
                return None;
            }
            self.consumed = self.shared.consumer().load(Ordering::Acquire) & self.shared.mask();
            if after == self.consumed {
                return None;
            }
        }
        Some(self.shared.slot(self.next))
    }

    /// The next free slot, and where the one behind it is; none if the kernel's index has to be looked at first.
    #[inline]
    pub(super) fn reserve_at_once(&self) -> Option<(*mut u8, u32)> {
        let after = (self.next + 1) & self.shared.mask();
        (after != self.consumed).then(|| (self.shared.slot(self.next), after))
    }

    /// Counts the slot that was reserved at once as written.
    #[inline]
    pub(super) fn advance_to(&mut self, after: u32) {
        self.next = after;
    }

    /// Counts the slot that was reserved as written.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.next = (self.next + 1) & self.shared.mask();
    }

    /// Where the next element goes, for [`rewind`](Self::rewind).
    #[inline]
    pub(super) fn position(&self) -> u32 {
        self.next
    }

    /// Shows the kernel what was written.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.shared.producer().store(self.next, Ordering::Release);
    }

    /// Has no room from now on. This costs those that reserve slots nothing while there is room.
    pub(super) fn close(&mut self) {
        self.consumed = (self.next + 1) & self.shared.mask();
        self.closed = 1;
    }

    /// Has room again.
    pub(super) fn open(&mut self) {
        self.closed = 0;
    }

    /// Forgets what was written, but not shown, since the ring was at that position.
    pub(super) fn rewind(&mut self, position: u32) {
        self.next = position;
    }
}

/// A ring that this process empties: it owns the consumer index.
pub(super) struct Consumer<M = Shared> {
    shared: M,
    next: u32,
}

impl Consumer {
    pub(super) fn map(transport: &dyn Transport, info: &MmapInfo, slot_size: usize) -> Result<Self, Errno> {
        Ok(Self::new(Shared::map(transport, info, slot_size)?))
    }

    /// Bytes from one element to the next.
    pub(super) fn stride(&self) -> usize {
        1 << self.shared.shift
    }
}

impl<M: Memory> Consumer<M> {
    fn new(shared: M) -> Self {
        let next = shared.consumer().load(Ordering::Relaxed) & shared.mask();
        Self { shared, next }
    }

    /// Is empty from now on: the kernel has turned to another ring, and no longer moves its index in this one.
    pub(super) fn close(&mut self) {
        self.next = self.shared.producer().load(Ordering::Relaxed) & self.shared.mask();
    }

    /// How many elements wait.
    #[inline]
    pub(super) fn available(&self) -> u32 {
        let ahead = self.shared.producer().load(Ordering::Acquire).wrapping_sub(self.next);
        // An empty ring, the answer to most that ask, needs no mask.
        if ahead == 0 { 0 } else { ahead & self.shared.mask() }
    }

    /// The element `ahead` of the oldest one.
    #[inline]
    pub(super) fn peek(&self, ahead: u32) -> *const u8 {
        self.shared.slot(self.next.wrapping_add(ahead))
    }

    /// The elements behind the `ahead` oldest, which are there, up to the end of the memory: where the first is, and how many there are.
    #[inline]
    pub(super) fn look(&self, ahead: u32) -> (*const u8, u32) {
        let mask = self.shared.mask();
        let end = self.shared.producer().load(Ordering::Acquire) & mask;
        let index = self.next.wrapping_add(ahead) & mask;
        let end = if end < index { mask.wrapping_add(1) } else { end };
        (self.shared.slot(index), end.wrapping_sub(index))
    }

    /// Gives the oldest `count` slots back to the kernel.
    #[inline]
    pub(super) fn release(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count) & self.shared.mask();
        self.shared.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapOptions;

    const HEADER: usize = size_of::<QueueBuf>();

    fn shared(slots: u32, shift: u32, length: usize) -> Result<Shared, Errno> {
        let map = MmapRaw::from(MmapOptions::new().len(length).map_anon().unwrap());
        // SAFETY: the mapping is that long and nobody else has it.
        let words = unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().cast::<u32>(), length / 4) };
        (words[0], words[1]) = (shift, slots.wrapping_sub(1));
        Shared::check(map, 64)
    }

    #[test]
    fn a_header_that_does_not_fit_is_refused() {
        assert!(shared(8, 6, HEADER + 512).is_ok());
        assert!(shared(8, 7, HEADER + 1024).is_ok());
        assert!(shared(8, 6, HEADER + 511).is_err(), "slots beyond the mapping");
        assert!(shared(7, 6, HEADER + 4096).is_err(), "not a power of two");
        assert!(shared(8, 5, HEADER + 4096).is_err(), "slot smaller than its element");
        assert!(shared(8, 32, HEADER + 4096).is_err(), "shift out of range");
        assert!(shared(0, 6, HEADER + 4096).is_err(), "2^32 slots");
        assert!(shared(8, 6, 100).is_err(), "no room for the header");
    }

    #[test]
    fn a_producer_fills_all_slots_but_one_and_wraps() {
        let mut ring = Producer::new(shared(4, 6, HEADER + 256).unwrap());
        for round in 0..10_u32 {
            for _ in 0..3 {
                assert!(ring.reserve().is_some(), "round {round}");
                ring.advance();
            }
            assert!(ring.reserve().is_none());
            ring.publish();
            let end = ring.shared.producer().load(Ordering::Relaxed);
            assert_eq!(end, (round + 1) * 3 % 4);
            ring.shared.consumer().store(end, Ordering::Relaxed);
        }
    }

    #[test]
    fn slots_are_reserved_at_once_while_the_other_index_need_not_be_read() {
        let mut ring = Producer::new(shared(4, 6, HEADER + 256).unwrap());
        for _ in 0..3 {
            let expected = ring.shared.slot(ring.position());
            let (slot, after) = ring.reserve_at_once().unwrap();
            assert_eq!((slot, after), (expected, (ring.position() + 1) & 3));
            ring.advance_to(after);
        }
        assert!(ring.reserve_at_once().is_none());
        ring.publish();
        ring.shared.consumer().store(2, Ordering::Relaxed);
        assert!(ring.reserve_at_once().is_none(), "it has not looked");
        assert!(ring.reserve().is_some());
        assert!(ring.reserve_at_once().is_some());
        ring.close();
        assert!(ring.reserve_at_once().is_none());
    }

    #[test]
    fn what_is_rewound_was_never_shown() {
        let mut ring = Producer::new(shared(4, 6, HEADER + 256).unwrap());
        let first = ring.reserve().unwrap();
        let position = ring.position();
        ring.advance();
        ring.advance();
        ring.rewind(position);
        assert_eq!(ring.shared.producer().load(Ordering::Relaxed), 0);
        assert_eq!(ring.reserve(), Some(first));
    }

    #[test]
    fn a_closed_producer_has_no_room() {
        let mut ring = Producer::new(shared(4, 6, HEADER + 256).unwrap());
        ring.reserve().unwrap();
        ring.advance();
        ring.publish();
        ring.close();
        assert!(ring.reserve().is_none());
        assert!(ring.reserve().is_none());
        ring.open();
        for _ in 0..2 {
            assert!(ring.reserve().is_some());
            ring.advance();
        }
        assert!(ring.reserve().is_none());
    }

    #[test]
    fn a_consumer_takes_each_element_once_in_order() {
        let mut ring = Consumer::new(shared(4, 6, HEADER + 256).unwrap());
        assert_eq!(ring.available(), 0);
        let mut expected = 0_u8;
        for produced in 0..40_u8 {
            let index = u32::from(produced) & 3;
            // SAFETY: slots lie in the mapping.
            unsafe { ring.shared.slot(index).write(produced) };
            ring.shared.producer().store((index + 1) & 3, Ordering::Release);
            if produced % 3 == 2 {
                let count = ring.available();
                assert_eq!(count, 3);
                assert_eq!(ring.look(count).1, 0);
                for ahead in 0..count {
                    // Those behind the last slot are in the first ones.
                    let to_the_end = 4 - ((ring.next + ahead) & 3);
                    assert_eq!(ring.look(ahead), (ring.peek(ahead), to_the_end.min(count - ahead)));
                    // SAFETY: as above.
                    assert_eq!(unsafe { ring.peek(ahead).read() }, expected);
                    expected += 1;
                }
                ring.release(count);
                assert_eq!(ring.available(), 0);
            }
        }
    }

    #[test]
    fn a_closed_consumer_is_empty() {
        let mut ring = Consumer::new(shared(4, 6, HEADER + 256).unwrap());
        ring.shared.producer().store(2, Ordering::Release);
        assert_eq!(ring.available(), 2);
        ring.close();
        assert_eq!(ring.available(), 0);
    }

    #[test]
    fn vb_38_no_index_leads_out_of_the_mapping() {
        let shared = shared(4, 6, HEADER + 256).unwrap();
        shared.producer().store(u32::MAX, Ordering::Relaxed);
        shared.consumer().store(0x8000_0001, Ordering::Relaxed);
        let mut ring = Consumer::new(shared);
        assert!(ring.available() < 4);
        // The geometry in the page no longer matters.
        ring.shared.word(offset_of!(QueueBuf, index_mask)).store(u32::MAX, Ordering::Relaxed);
        let (start, end) =
            (ring.shared.map.as_ptr(), ring.shared.map.as_ptr().wrapping_add(ring.shared.map.len()));
        for ahead in 0..16 {
            let slot = ring.peek(ahead);
            assert!(slot >= start && slot.wrapping_add(64) <= end);
            let (slot, count) = ring.look(ahead);
            assert!(slot >= start && slot.wrapping_add(64 * count as usize) <= end);
        }
        ring.release(3);
    }
}

/// Both sides of a ring under every order of accesses that the memory model allows.
#[cfg(test)]
mod model {
    use std::ptr;

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    use super::*;

    const SLOTS: usize = 4;
    const ELEMENTS: u32 = 5;

    impl Index for AtomicU32 {
        fn load(&self, order: Ordering) -> u32 {
            Self::load(self, order)
        }

        fn store(&self, value: u32, order: Ordering) {
            Self::store(self, value, order);
        }
    }

    /// A slot is its number, and its content is looked at only through the cell, which finds races.
    #[derive(Default)]
    struct Model {
        producer: AtomicU32,
        consumer: AtomicU32,
        slots: [UnsafeCell<u32>; SLOTS],
    }

    impl Memory for Arc<Model> {
        type Index = AtomicU32;

        fn mask(&self) -> u32 {
            SLOTS as u32 - 1
        }

        fn producer(&self) -> &AtomicU32 {
            &self.producer
        }

        fn consumer(&self) -> &AtomicU32 {
            &self.consumer
        }

        fn slot(&self, index: u32) -> *mut u8 {
            ptr::without_provenance_mut((index & Memory::mask(self)) as usize)
        }
    }

    /// Fills the ring, and maps it anew before one element, as after resizing, while the other side is at work.
    fn fill(model: &Arc<Model>, anew: Option<u32>) {
        let mut ring = Producer::new(model.clone());
        for element in 0..ELEMENTS {
            if anew == Some(element) {
                ring = Producer::new(model.clone());
            }
            let slot = loop {
                match ring.reserve() {
                    Some(slot) => break slot,
                    None => thread::yield_now(),
                }
            };
            // SAFETY: the ring says that this slot is ours; if that is wrong, the cell tells.
            model.slots[slot.addr()].with_mut(|cell| unsafe { *cell = element });
            ring.advance();
            ring.publish();
        }
    }

    fn empty(model: &Arc<Model>) {
        let mut ring = Consumer::new(model.clone());
        let mut expected = 0;
        while expected < ELEMENTS {
            let count = ring.available();
            if count == 0 {
                thread::yield_now();
                continue;
            }
            for ahead in 0..count {
                // SAFETY: as above.
                let element = model.slots[ring.peek(ahead).addr()].with(|cell| unsafe { *cell });
                assert_eq!(element, expected);
                expected += 1;
            }
            ring.release(count);
        }
    }

    fn check(anew: Option<u32>) {
        let mut builder = loom::model::Builder::new();
        // How often a thread is interrupted. It is enough for every barrier here to be missed if it is not there.
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let model = Arc::new(Model::default());
            let other = model.clone();
            let filling = thread::spawn(move || fill(&other, anew));
            empty(&model);
            filling.join().unwrap();
        });
    }

    #[test]
    fn vb_38_elements_are_whole_when_they_are_seen() {
        check(None);
    }

    #[test]
    fn vb_38_elements_are_whole_in_a_ring_that_is_mapped_anew() {
        check(Some(3));
    }
}
