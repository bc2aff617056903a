//! The attributes of a command: checked as the kernel's core does, then read and written with types.

use std::os::fd::{IntoRawFd, OwnedFd, RawFd};

use uverbs_ioctl::{Errno, Packet, Result};
use uverbs_uapi::ioctl::{Attr, AttrFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::table::{Handles, Kind};

/// What a method says of an attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) id: u16,
    pub(crate) form: Form,
    pub(crate) mandatory: bool,
}

/// Forms of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A handle of an object of that kind.
    Handle(Kind),
    /// Room for a new handle or file.
    New,
    /// An open file.
    File,
    /// A value of so many bytes; of at least so many, if it may be longer.
    In(usize),
    AtLeast(usize),
    /// Room for a value of so many bytes at least.
    Out(usize),
    /// A number that is not larger.
    Constant(u64),
    /// Flags, of these.
    Flags(u64),
}

/// Short ways to write a [`Spec`].
pub(crate) const fn must(id: u16, form: Form) -> Spec {
    Spec { id, form, mandatory: true }
}

pub(crate) const fn may(id: u16, form: Form) -> Spec {
    Spec { id, form, mandatory: false }
}

/// The attributes of a command that a method has accepted.
#[derive(Debug)]
pub(crate) struct Attributes<'a> {
    attributes: &'a mut [Attr],
}

impl<'a> Attributes<'a> {
    /// Checks a command against what its method takes, in the order in which the kernel does.
    pub(crate) fn check(packet: &'a mut Packet, specs: &[Spec], handles: &Handles) -> Result<Self> {
        let attributes = packet.attributes_mut();
        let mut seen = 0_u64;
        for attribute in attributes.iter() {
            let Some(place) = specs.iter().position(|spec| spec.id == attribute.attr_id) else {
                if attribute.flags & AttrFlags::MANDATORY.bits() != 0 {
                    return Err(Errno::EPROTONOSUPPORT);
                }
                continue;
            };
            if seen & (1 << place) != 0 {
                return Err(Errno::EINVAL);
            }
            seen |= 1 << place;
            check_one(attribute, specs[place].form, handles)?;
        }
        let missing = |(place, spec): (usize, &Spec)| spec.mandatory && seen & (1 << place) == 0;
        if specs.iter().enumerate().any(missing) {
            return Err(Errno::EINVAL);
        }
        Ok(Self { attributes })
    }

    fn find(&self, id: u16) -> Option<&Attr> {
        self.attributes.iter().find(|attribute| attribute.attr_id == id)
    }

    pub(crate) fn has(&self, id: u16) -> bool {
        self.find(id).is_some()
    }

    /// Bytes of an attribute, zero if it is not there.
    pub(crate) fn length(&self, id: u16) -> usize {
        self.find(id).map_or(0, |attribute| attribute.len.into())
    }

    /// The number of an object. `ENOENT` if the attribute is not there.
    pub(crate) fn handle(&self, id: u16) -> Result<u32> {
        Ok(self.find(id).ok_or(Errno::ENOENT)?.data as u32)
    }

    /// A file's number, if there is one.
    pub(crate) fn file(&self, id: u16) -> Option<RawFd> {
        self.find(id).map(|attribute| attribute.data as RawFd)
    }

    /// A constant or a word of flags; zero if it is not there.
    pub(crate) fn number(&self, id: u16) -> u64 {
        self.find(id).map_or(0, number)
    }

    /// An input's bytes.
    pub(crate) fn bytes(&self, id: u16) -> Vec<u8> {
        self.find(id).map_or_else(Vec::new, |attribute| {
            let length = usize::from(attribute.len);
            if length <= 8 {
                return attribute.data.to_ne_bytes()[..length].to_vec();
            }
            let start = std::ptr::with_exposed_provenance::<u8>(attribute.data as usize);
            // SAFETY: the method defines the attribute as an input (only such are read here), so whoever built the command gave a
            // borrow of that length, which lives until the command is done.
            unsafe { std::slice::from_raw_parts(start, length) }.to_vec()
        })
    }

    /// An input of that type. `ENOENT` if it is not there.
    pub(crate) fn input<T: FromBytes>(&self, id: u16) -> Result<T> {
        if !self.has(id) {
            return Err(Errno::ENOENT);
        }
        T::read_from_prefix(&self.bytes(id)).map(|(value, _)| value).map_err(|_| Errno::EINVAL)
    }

    /// Writes an output, as much as there is room for. `ENOENT` if it is not there.
    pub(crate) fn output<T: IntoBytes + Immutable + ?Sized>(&mut self, id: u16, value: &T) -> Result<()> {
        let bytes = value.as_bytes();
        let attribute =
            self.attributes.iter_mut().find(|attribute| attribute.attr_id == id).ok_or(Errno::ENOENT)?;
        let (room, copied) = (usize::from(attribute.len), bytes.len().min(attribute.len.into()));
        let start = std::ptr::with_exposed_provenance_mut::<u8>(attribute.data as usize);
        // SAFETY: the method defines the attribute as an output (only such are written here), so whoever built the command gave an
        // exclusive borrow of that length, which lives until the command is done.
        unsafe {
            start.copy_from_nonoverlapping(bytes.as_ptr(), copied);
            start.add(copied).write_bytes(0, room - copied);
        }
        attribute.flags |= AttrFlags::VALID_OUTPUT.bits();
        Ok(())
    }

    /// The same, for one that the caller need not want.
    pub(crate) fn output_if_wanted<T: IntoBytes + Immutable>(&mut self, id: u16, value: &T) -> Result<()> {
        if self.has(id) { self.output(id, value) } else { Ok(()) }
    }

    /// Tells the handle of a new object.
    pub(crate) fn created(&mut self, id: u16, handle: u32) {
        if let Some(attribute) = self.attributes.iter_mut().find(|attribute| attribute.attr_id == id) {
            attribute.data = handle.into();
        }
    }

    /// Hands a new file over.
    pub(crate) fn created_file(&mut self, id: u16, file: OwnedFd) {
        self.created(id, file.into_raw_fd().cast_unsigned());
    }
}

fn number(attribute: &Attr) -> u64 {
    if attribute.len == 4 {
        let [a, b, c, d, ..] = attribute.data.to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d]).into()
    } else {
        attribute.data
    }
}

fn check_one(attribute: &Attr, form: Form, handles: &Handles) -> Result<()> {
    let length = usize::from(attribute.len);
    let good = match form {
        Form::Handle(kind) => {
            if length != 0 || attribute.data > u32::MAX.into() {
                return Err(Errno::EINVAL);
            }
            return handles.get(kind, attribute.data as u32).map(|_| ());
        }
        Form::New => length == 0,
        Form::File => length == 0 && RawFd::try_from(attribute.data.cast_signed()).is_ok(),
        Form::In(size) => length == size,
        Form::AtLeast(least) | Form::Out(least) => length >= least,
        Form::Constant(most) => length == 8 && attribute.data <= most,
        Form::Flags(known) => matches!(length, 4 | 8) && number(attribute) & !known == 0,
    };
    if good && attribute.reserved == 0 { Ok(()) } else { Err(Errno::EINVAL) }
}
