//! Which request a completion is of.
//!
//! A request carries an identifier of 16 bits that comes back in its completion, in any order. Its low bits are an index into a table
//! of `wr_id`s; the others are a generation, so that a completion that a QP has left behind is not taken for one of the next QP with
//! its number.
//!
//! The thread that posts takes identifiers, the one that polls gives them back. Both have their end alone, through the `&mut` of
//! [`WorkRings`](crate::provider::WorkRings) and [`CompletionRing`](crate::provider::CompletionRing): a ring of free indices with one
//! producer and one consumer needs no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

/// The requests of one queue that are posted and have not completed.
pub(super) struct Requests {
    wr_ids: Box<[AtomicU64]>,
    /// Free indices lie between the count of those taken, which who posts keeps, and `returned`.
    free: Box<[AtomicU16]>,
    returned: AtomicU32,
    mask: u16,
    generation: u16,
}

impl Requests {
    /// For a queue of at most 65 536 requests.
    fn new(capacity: u32, generation: u16) -> Self {
        let slots = capacity.next_power_of_two();
        Self {
            wr_ids: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            free: (0..slots).map(|index| AtomicU16::new(index as u16)).collect(),
            returned: AtomicU32::new(capacity),
            mask: (slots - 1) as u16,
            generation: (u32::from(generation) << slots.trailing_zeros()) as u16,
        }
    }

    fn slot(&self, count: u32) -> &AtomicU16 {
        &self.free[(count & u32::from(self.mask)) as usize]
    }

    /// An identifier for a request, for who posts; `taken` were taken before. Nothing if all are in use.
    ///
    /// What is taken can be taken again as long as no request with it has been shown to the device.
    #[inline]
    pub(super) fn take(&self, taken: u32, wr_id: u64) -> Option<u16> {
        // Acquire: the index was written before it was counted.
        if self.returned.load(Ordering::Acquire) == taken {
            return None;
        }
        let index = self.slot(taken).load(Ordering::Relaxed);
        // The barrier before the doorbell makes it visible to whoever sees the completion.
        self.wr_ids[usize::from(index)].store(wr_id, Ordering::Relaxed);
        Some(index | self.generation)
    }

    /// The `wr_id` of the request that has completed, for who polls; nothing if it is not one of these.
    #[inline]
    pub(super) fn complete(&self, identifier: u16) -> Option<u64> {
        if identifier & !self.mask != self.generation {
            return None;
        }
        let index = identifier & self.mask;
        let wr_id = self.wr_ids.get(usize::from(index))?.load(Ordering::Relaxed);
        let returned = self.returned.load(Ordering::Relaxed);
        self.slot(returned).store(index, Ordering::Relaxed);
        self.returned.store(returned.wrapping_add(1), Ordering::Release);
        Some(wr_id)
    }
}

/// What who posts and who polls share of a QP.
pub(super) struct Queues {
    pub(super) sends: Requests,
    pub(super) receives: Requests,
    /// Whether it receives datagrams behind room for a header.
    pub(super) has_header: bool,
}

/// The QPs of a context by number, for completions to find theirs.
///
/// Polling locks it for reading once for all completions that there are; only creating, resetting and destroying a QP locks others out.
#[derive(Default)]
pub(super) struct Table(RwLock<Vec<Entry>>);

#[derive(Default)]
pub(super) struct Entry {
    generation: u16,
    queues: Option<Arc<Queues>>,
}

impl Table {
    /// Makes room for the requests of a QP. Completions of an earlier one with that number, or of before a reset, are forgotten.
    pub(super) fn insert(&self, qp_num: u16, sends: u32, receives: u32, has_header: bool) -> Arc<Queues> {
        let mut entries = self.0.write();
        let index = usize::from(qp_num);
        if entries.len() <= index {
            entries.resize_with(index + 1, Entry::default);
        }
        let entry = &mut entries[index];
        entry.generation = entry.generation.wrapping_add(1);
        let queues = Arc::new(Queues {
            sends: Requests::new(sends, entry.generation),
            receives: Requests::new(receives, entry.generation),
            has_header,
        });
        entry.queues = Some(queues.clone());
        queues
    }

    /// Forgets a QP, unless its number has been given to another one since.
    pub(super) fn remove(&self, qp_num: u16, queues: &Arc<Queues>) {
        if let Some(entry) = self.0.write().get_mut(usize::from(qp_num))
            && entry.queues.as_ref().is_some_and(|current| Arc::ptr_eq(current, queues))
        {
            entry.queues = None;
        }
    }

    /// Keeps QPs in their places while completions are looked up.
    #[inline]
    pub(super) fn lock(&self) -> Lookup<'_> {
        Lookup(self.0.read())
    }
}

pub(super) struct Lookup<'a>(RwLockReadGuard<'a, Vec<Entry>>);

impl Lookup<'_> {
    /// The QP that has this number now.
    #[inline]
    pub(super) fn get(&self, qp_num: u16) -> Option<&Queues> {
        self.0.get(usize::from(qp_num))?.queues.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_come_back_in_any_order_and_are_unique() {
        let requests = Requests::new(3, 5);
        let first: Vec<_> =
            (0..3).map(|count| requests.take(count, 10 + u64::from(count)).unwrap()).collect();
        assert_eq!(requests.take(3, 13), None);
        assert_eq!(requests.complete(first[2]), Some(12));
        let again = requests.take(3, 13).unwrap();
        assert_eq!(again, first[2]);
        assert_eq!(requests.take(4, 14), None);
        for (identifier, wr_id) in [(first[1], 11), (again, 13), (first[0], 10)] {
            assert_eq!(requests.complete(identifier), Some(wr_id));
        }
        let mut last: Vec<_> = (4..7).map(|count| requests.take(count, 0).unwrap()).collect();
        last.sort_unstable();
        last.dedup();
        assert_eq!(last.len(), 3);
    }

    #[test]
    fn what_is_taken_and_not_shown_can_be_taken_again() {
        let requests = Requests::new(4, 0);
        let shown = requests.take(0, 1).unwrap();
        let dropped = requests.take(1, 2).unwrap();
        assert_eq!(requests.complete(shown), Some(1));
        assert_eq!(requests.take(1, 3), Some(dropped));
        assert_eq!(requests.complete(dropped), Some(3));
    }

    #[test]
    fn completions_of_another_generation_are_nobodys() {
        let table = Table::default();
        let old = table.insert(7, 16, 16, false);
        let left_behind = old.sends.take(0, 1).unwrap();
        let new = table.insert(7, 16, 16, false);
        assert_eq!(table.lock().get(7).unwrap().sends.complete(left_behind), None);
        // The old QP goes late, and takes nothing with it.
        table.remove(7, &old);
        assert!(table.lock().get(7).is_some());
        table.remove(7, &new);
        assert!(table.lock().get(7).is_none());
        assert!(table.lock().get(8).is_none());
    }

    #[test]
    fn identifiers_of_a_queue_as_long_as_can_be_have_no_generation() {
        let requests = Requests::new(1 << 16, 3);
        let last = (0..1 << 16).map(|count| requests.take(count, count.into()).unwrap()).last().unwrap();
        assert_eq!(requests.complete(last), Some(0xffff));
    }
}
