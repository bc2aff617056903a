//! Objects by number.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use uverbs_ioctl::{Errno, Result};

/// Objects of one kind on a wire. A number comes back into use as late as can be, as in the driver.
#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: BTreeMap<u32, T>,
    numbers: RangeInclusive<u32>,
    next: u32,
}

impl<T> Table<T> {
    pub(crate) fn new(numbers: RangeInclusive<u32>) -> Self {
        Self { entries: BTreeMap::new(), next: *numbers.start(), numbers }
    }

    /// The number that [`insert`](Self::insert) is going to use.
    fn free(&self) -> Option<u32> {
        let after = (self.next..=*self.numbers.end()).chain(*self.numbers.start()..self.next);
        after.into_iter().find(|number| !self.entries.contains_key(number))
    }

    /// Adds what is made of its number. `ENOMEM` if there is none left.
    pub(crate) fn insert(&mut self, make: impl FnOnce(u32) -> T) -> Result<u32> {
        let number = self.free().ok_or(Errno::ENOMEM)?;
        self.next = number.checked_add(1).unwrap_or(*self.numbers.start());
        self.entries.insert(number, make(number));
        Ok(number)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(&number)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(&number)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        self.entries.remove(&number)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&u32, &T)> {
        self.entries.iter()
    }

    /// The number of the first one that is wanted.
    pub(crate) fn find(&self, mut wanted: impl FnMut(&T) -> bool) -> Option<u32> {
        self.entries.iter().find_map(|(number, entry)| wanted(entry).then_some(*number))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.values_mut()
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&u32, &mut T) -> bool) {
        self.entries.retain(keep);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// What a handle stands for, with the object's number in the table of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) kind: Kind,
    pub(crate) number: u32,
}

/// Kinds of objects that have handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pd,
    Mr,
    Mw,
    Cq,
    Srq,
    Qp,
    Ah,
    Counter,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] =
        [Self::Pd, Self::Mr, Self::Mw, Self::Cq, Self::Srq, Self::Qp, Self::Ah, Self::Counter];

    /// As the kernel's netlink has it, where it counts the kind.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pd => "pd",
            Self::Mr => "mr",
            Self::Mw => "mw",
            Self::Cq => "cq",
            Self::Srq => "srq",
            Self::Qp => "qp",
            Self::Ah => "ah",
            Self::Counter => "comp_cntr",
        }
    }
}

/// The handles of one context. The lowest free one comes next, whatever the kind of the object.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    objects: Vec<Option<Object>>,
    free: BTreeSet<u32>,
    /// Handles in use, those created last at the end.
    order: Vec<u32>,
}

impl Handles {
    pub(crate) fn insert(&mut self, kind: Kind, number: u32) -> u32 {
        let object = Some(Object { kind, number });
        let handle = match self.free.pop_first() {
            Some(handle) => {
                self.objects[handle as usize] = object;
                handle
            }
            None => {
                self.objects.push(object);
                self.objects.len() as u32 - 1
            }
        };
        self.order.push(handle);
        handle
    }

    /// The object's number. `ENOENT` if there is none, `EINVAL` if it is of another kind.
    pub(crate) fn get(&self, kind: Kind, handle: u32) -> Result<u32> {
        match self.objects.get(handle as usize).copied().flatten() {
            None => Err(Errno::ENOENT),
            Some(object) if object.kind == kind => Ok(object.number),
            Some(_) => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.iter().flatten()
    }

    pub(crate) fn object(&self, handle: u32) -> Option<Object> {
        self.objects.get(handle as usize).copied().flatten()
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<Object> {
        let object = self.objects.get_mut(handle as usize)?.take()?;
        self.free.insert(handle);
        self.order.retain(|other| *other != handle);
        Some(object)
    }

    /// Handles, those created last first.
    pub(crate) fn latest_first(&self) -> Vec<u32> {
        self.order.iter().rev().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_as_late_as_can_be() {
        let mut table = Table::new(5..=7);
        let numbers: Vec<_> = (0..3).map(|_| table.insert(|number| number).unwrap()).collect();
        assert_eq!(numbers, [5, 6, 7]);
        assert_eq!(table.insert(|number| number), Err(Errno::ENOMEM));
        table.remove(6);
        table.remove(7);
        assert_eq!(table.insert(|number| number), Ok(6));
        table.remove(5);
        assert_eq!(table.insert(|number| number), Ok(7));
        assert_eq!(table.insert(|number| number), Ok(5));
    }

    #[test]
    fn handles_are_the_lowest_and_know_their_kind() {
        let mut handles = Handles::default();
        assert_eq!([0, 1, 2].map(|number| handles.insert(Kind::Pd, number)), [0, 1, 2]);
        assert_eq!(handles.remove(1), Some(Object { kind: Kind::Pd, number: 1 }));
        assert_eq!(handles.get(Kind::Pd, 1), Err(Errno::ENOENT));
        assert_eq!(handles.insert(Kind::Cq, 9), 1);
        assert_eq!((handles.get(Kind::Cq, 1), handles.get(Kind::Pd, 1)), (Ok(9), Err(Errno::EINVAL)));
        assert_eq!(handles.get(Kind::Pd, u32::MAX), Err(Errno::ENOENT));
        assert_eq!(handles.latest_first(), [1, 2, 0]);
    }
}
