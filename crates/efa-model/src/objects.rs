//! What a driver makes in a device.

use std::collections::BTreeMap;

use crate::admin::{QpKind, QpState};
use crate::config::{Gid, QP_EVENTS};
use crate::host::{GuestMemory, NoMemory};
use crate::io::Permissions;

/// Objects by number. A number is not given again before all others have been.
#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: BTreeMap<u32, T>,
    limit: u32,
    next: u32,
}

impl<T> Table<T> {
    pub(crate) fn new(limit: u32) -> Self {
        Self { entries: BTreeMap::new(), limit, next: 0 }
    }

    /// Stores an object under a free number, if there is one.
    pub(crate) fn insert(&mut self, object: T) -> Option<u32> {
        let number = self.free()?;
        self.next = (number + 1) % self.limit;
        self.entries.insert(number, object);
        Some(number)
    }

    /// The number that the next object gets.
    pub(crate) fn free(&self) -> Option<u32> {
        (self.next..self.limit).chain(0..self.next).find(|number| !self.entries.contains_key(number))
    }

    pub(crate) fn get(&self, number: impl Into<u32>) -> Option<&T> {
        self.entries.get(&number.into())
    }

    pub(crate) fn get_mut(&mut self, number: impl Into<u32>) -> Option<&mut T> {
        self.entries.get_mut(&number.into())
    }

    pub(crate) fn remove(&mut self, number: impl Into<u32>) -> Option<T> {
        self.entries.remove(&number.into())
    }

    pub(crate) fn contains(&self, number: impl Into<u32>) -> bool {
        self.entries.contains_key(&number.into())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().map(|(number, object)| (*number, object))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.values()
    }
}

/// Address handle.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    pub(crate) pd: u16,
    pub(crate) destination: Gid,
}

/// Memory region.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    pub(crate) pd: u16,
    /// Lower bits of the key, which fast registration changes.
    pub(crate) variant: u8,
    /// `None` while a region for fast registration has no memory.
    pub(crate) mapping: Option<Mapping>,
    /// Pages at most, of a region for fast registration.
    pub(crate) fast: Option<u32>,
}

/// Memory of a region.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) iova: u64,
    pub(crate) length: u64,
    pub(crate) page_shift: u32,
    /// Addresses of the pages; `None` if virtual addresses are physical.
    pub(crate) pages: Option<Vec<u64>>,
    pub(crate) permissions: Permissions,
}

impl Mapping {
    /// Pages that so much memory takes.
    pub(crate) fn page_count(iova: u64, length: u64, page_shift: u32) -> u64 {
        let in_page = iova & ((1 << page_shift) - 1);
        (in_page.saturating_add(length)).div_ceil(1 << page_shift)
    }

    /// Physical pieces of a range, if all of it is in the region.
    fn translate(&self, address: u64, length: u64) -> Option<Vec<(u64, u64)>> {
        let offset = address.checked_sub(self.iova)?;
        if offset.checked_add(length)? > self.length {
            return None;
        }
        let Some(pages) = &self.pages else { return Some(vec![(address, length)]) };
        let page_size = 1u64 << self.page_shift;
        let mut place = (self.iova & (page_size - 1)) + offset;
        let mut left = length;
        let mut pieces = Vec::new();
        while left > 0 {
            let in_page = place & (page_size - 1);
            let piece = left.min(page_size - in_page);
            let page = pages.get(usize::try_from(place >> self.page_shift).ok()?)?;
            pieces.push((page + in_page, piece));
            place += piece;
            left -= piece;
        }
        Some(pieces)
    }
}

/// Key of a memory region: its number in the upper 16 of 24 bits.
pub(crate) fn key(number: u32, variant: u8) -> u32 {
    number << 8 | u32::from(variant)
}

/// Memory named by a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// Why memory cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeError {
    /// The key does not allow it.
    Denied,
    /// It does, but there is no memory.
    NoMemory(NoMemory),
}

impl Table<MemoryRegion> {
    /// Physical pieces of ranges, if keys and permissions allow it.
    pub(crate) fn translate(
        &self,
        pd: u16,
        ranges: &[Range],
        permissions: Permissions,
    ) -> Result<Vec<(u64, u64)>, RangeError> {
        let mut pieces = Vec::new();
        for range in ranges {
            let found = self
                .get(range.key >> 8)
                .filter(|region| region.pd == pd && u32::from(region.variant) == range.key & 0xff)
                .and_then(|region| region.mapping.as_ref())
                .filter(|mapping| mapping.permissions.contains(permissions))
                .and_then(|mapping| mapping.translate(range.address, range.length));
            let Some(found) = found else {
                log::debug!("key {:#x} does not allow {permissions:?} of {range:?}", range.key);
                return Err(RangeError::Denied);
            };
            pieces.extend(found);
        }
        Ok(pieces)
    }
}

/// Reads pieces into one buffer.
pub(crate) fn gather(memory: &impl GuestMemory, pieces: &[(u64, u64)]) -> Result<Vec<u8>, RangeError> {
    let mut data = Vec::new();
    for (address, length) in pieces {
        let begin = data.len();
        data.resize(begin + *length as usize, 0);
        memory.read(*address, &mut data[begin..]).map_err(RangeError::NoMemory)?;
    }
    Ok(data)
}

/// Writes data to the first pieces that have room for it.
pub(crate) fn scatter(
    memory: &mut impl GuestMemory,
    pieces: &[(u64, u64)],
    mut data: &[u8],
) -> Result<(), RangeError> {
    for (address, length) in pieces {
        let (now, rest) = data.split_at(data.len().min(*length as usize));
        memory.write(*address, now).map_err(RangeError::NoMemory)?;
        data = rest;
    }
    Ok(())
}

/// Event queue.
#[derive(Debug)]
pub(crate) struct EventQueue {
    pub(crate) base: u64,
    pub(crate) depth: u32,
    pub(crate) vector: u8,
    pub(crate) count: u32,
    pub(crate) armed: bool,
    /// There is an event that no interrupt has told of.
    pub(crate) pending: bool,
}

/// Completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) uar: u16,
    pub(crate) base: u64,
    /// Of each part.
    pub(crate) depth: u32,
    pub(crate) entry_size: u32,
    pub(crate) source_address: bool,
    pub(crate) wide_ids: bool,
    pub(crate) eq: Option<u16>,
    /// Completions written to each part.
    pub(crate) written: Vec<u32>,
    /// Completions taken, as the last doorbell told.
    pub(crate) taken: u16,
    pub(crate) armed: bool,
}

impl CompletionQueue {
    /// Completions that have not been taken.
    pub(crate) fn waiting(&self) -> u16 {
        (self.written.iter().fold(0, |sum: u32, count| sum.wrapping_add(*count)) as u16)
            .wrapping_sub(self.taken)
    }
}

/// Ring of work requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkQueue {
    /// In device memory for a send queue, in guest memory for a receive queue.
    pub(crate) base: u64,
    /// Power of two, or zero.
    pub(crate) depth: u32,
    pub(crate) entry_size: u32,
    pub(crate) produced: u16,
    pub(crate) consumed: u16,
    pub(crate) cq: u32,
    pub(crate) sub_cq: u16,
}

impl WorkQueue {
    pub(crate) fn waiting(&self) -> u16 {
        self.produced.wrapping_sub(self.consumed)
    }

    /// Address of the entry that is so many after the first that waits.
    pub(crate) fn entry(&self, ahead: u16) -> u64 {
        let place = u32::from(self.consumed.wrapping_add(ahead)) & (self.depth - 1);
        self.base.wrapping_add(u64::from(place) * u64::from(self.entry_size))
    }
}

/// Queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) number: u16,
    pub(crate) kind: QpKind,
    pub(crate) state: QpState,
    pub(crate) pd: u16,
    pub(crate) uar: u16,
    pub(crate) qkey: u32,
    pub(crate) sq_psn: u32,
    pub(crate) rnr_retry: u8,
    pub(crate) unsolicited_write_recv: bool,
    pub(crate) send: WorkQueue,
    pub(crate) receive: WorkQueue,
    /// Counter of each event.
    pub(crate) counters: [Option<u32>; QP_EVENTS],
}

impl QueuePair {
    /// Name for admin commands: not the number, so that who mixes them up finds out.
    pub(crate) fn handle(&self) -> u32 {
        HANDLE_MARK | u32::from(self.number)
    }

    pub(crate) fn can_receive(&self) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend | QpState::SendQueueDrained)
    }
}

const HANDLE_MARK: u32 = 0x00ef_0000;

/// The number of the queue pair with a handle.
pub(crate) fn number_of_handle(handle: u32) -> Option<u16> {
    (handle & 0xffff_0000 == HANDLE_MARK).then_some(handle as u16)
}

/// Event counter.
#[derive(Debug)]
pub(crate) struct EventCounter {
    pub(crate) uar: u16,
    pub(crate) address: u64,
    pub(crate) value: u64,
}

/// All objects of a device.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) pds: Table<()>,
    pub(crate) uars: Table<()>,
    pub(crate) ahs: Table<AddressHandle>,
    pub(crate) mrs: Table<MemoryRegion>,
    pub(crate) eqs: Table<EventQueue>,
    pub(crate) cqs: Table<CompletionQueue>,
    /// By slot: the lower bits of the number.
    pub(crate) qps: Table<QueuePair>,
    pub(crate) counters: Table<EventCounter>,
}

impl Objects {
    pub(crate) fn new(config: &crate::config::Config) -> Self {
        let limits = &config.limits;
        Self {
            pds: Table::new(limits.max_pd),
            uars: Table::new(limits.max_uar),
            ahs: Table::new(limits.max_ah),
            mrs: Table::new(limits.max_mr),
            eqs: Table::new(limits.max_eq),
            cqs: Table::new(limits.max_cq),
            qps: Table::new(limits.max_qp),
            counters: Table::new(limits.max_event_counters),
        }
    }

    /// Slot of the queue pair with a number.
    pub(crate) fn slot(&self, slots: u32, number: u16) -> Option<u32> {
        let slot = u32::from(number) & (slots - 1);
        self.qps.get(slot).is_some_and(|qp| qp.number == number).then_some(slot)
    }

    /// The address handle that queue pairs of a protection domain have for an address.
    pub(crate) fn ah_for(&self, pd: u16, gid: Gid) -> Option<u16> {
        let found = self.ahs.iter().find(|(_, ah)| ah.pd == pd && ah.destination == gid);
        found.map(|(number, _)| number as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_late() {
        let mut table = Table::new(3);
        assert_eq!((table.insert('a'), table.insert('b')), (Some(0), Some(1)));
        assert_eq!(table.remove(0u32), Some('a'));
        assert_eq!((table.insert('c'), table.insert('d'), table.insert('e')), (Some(2), Some(0), None));
        assert_eq!(Table::<()>::new(0).insert(()), None);
    }

    #[test]
    fn regions_translate_across_pages() {
        let mapping = Mapping {
            iova: 0x7000_0800,
            length: 0x1000,
            page_shift: 12,
            pages: Some(vec![0x5000, 0x9000]),
            permissions: Permissions::LOCAL_WRITE,
        };
        assert_eq!(Mapping::page_count(0x7000_0800, 0x1000, 12), 2);
        assert_eq!(mapping.translate(0x7000_0ff0, 0x20), Some(vec![(0x5ff0, 0x10), (0x9000, 0x10)]));
        assert_eq!(mapping.translate(0x7000_0800, 0x1000), Some(vec![(0x5800, 0x800), (0x9000, 0x800)]));
        assert_eq!(mapping.translate(0x7000_0800, 0x1001), None);
        assert_eq!(mapping.translate(0x7000_07ff, 1), None);
        assert_eq!(mapping.translate(0x7000_0900, u64::MAX), None);
        assert_eq!(mapping.translate(0x7000_1800, 0), Some(vec![]));
    }
}
