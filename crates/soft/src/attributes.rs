//! The attributes of a command: checked as the kernel's core does, then read and written with types.

use std::os::fd::{IntoRawFd, OwnedFd, RawFd};

use uverbs_ioctl::{Errno, Packet, Result};
use uverbs_uapi::ioctl::{Attr, AttrFlags};
use uverbs_uapi::ioctl_cmds::attr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::events::Use;
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
    /// An open file of events.
    File(Use),
    /// A value of so many bytes; of at least so many, if it may be longer.
    In(usize),
    AtLeast(usize),
    /// A struct of so many bytes, with zeros behind it if it is longer.
    Struct(usize),
    /// Room for a value of so many bytes; for at least so many, if there may be more.
    Out(usize),
    Room(usize),
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
    pub(crate) fn check(
        packet: &'a mut Packet,
        specs: &[Spec],
        handles: &Handles,
        is_file: impl Fn(Use, RawFd) -> bool,
    ) -> Result<Self> {
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
            check_one(attribute, specs[place].form, handles, &is_file)?;
        }
        let missing = |(place, spec): (usize, &Spec)| spec.mandatory && seen & (1 << place) == 0;
        if specs.iter().enumerate().any(missing) {
            return Err(Errno::EINVAL);
        }
        // The kernel looks at values when it has all attributes.
        let out_of_range = |spec: &Spec| {
            let of_spec = attributes.iter().find(|attribute| attribute.attr_id == spec.id);
            of_spec.is_some_and(|attribute| match spec.form {
                Form::Constant(most) => attribute.data > most,
                Form::Flags(known) => number(attribute) & !known != 0,
                _ => false,
            })
        };
        if specs.iter().any(out_of_range) {
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
        self.find(id).map_or_else(Vec::new, bytes)
    }

    /// An input of that type. `ENOENT` if it is not there.
    pub(crate) fn input<T: FromBytes>(&self, id: u16) -> Result<T> {
        if !self.has(id) {
            return Err(Errno::ENOENT);
        }
        T::read_from_prefix(&self.bytes(id)).map(|(value, _)| value).map_err(|_| Errno::EINVAL)
    }

    /// Writes an output, as much as there is room for; what room is left stays as it is. `ENOENT` if it is not there.
    pub(crate) fn output<T: IntoBytes + Immutable + ?Sized>(&mut self, id: u16, value: &T) -> Result<()> {
        let bytes = value.as_bytes();
        let attribute =
            self.attributes.iter_mut().find(|attribute| attribute.attr_id == id).ok_or(Errno::ENOENT)?;
        let copied = bytes.len().min(attribute.len.into());
        let start = std::ptr::with_exposed_provenance_mut::<u8>(attribute.data as usize);
        // SAFETY: the method defines the attribute as an output (only such are written here), so whoever built the command gave an
        // exclusive borrow of that length, which lives until the command is done.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), copied) };
        attribute.flags |= AttrFlags::VALID_OUTPUT.bits();
        Ok(())
    }

    /// What an output holds before it is written, for one that is written in part. `EINVAL` if it is shorter.
    pub(crate) fn before<T: FromBytes>(&self, id: u16) -> Result<T> {
        let attribute = self.find(id).ok_or(Errno::ENOENT)?;
        if usize::from(attribute.len) < size_of::<T>() {
            return Err(Errno::EINVAL);
        }
        let start = std::ptr::with_exposed_provenance::<T>(attribute.data as usize);
        // SAFETY: an output is a borrow of that many bytes, as in `output`, and any bytes make a `T`.
        Ok(unsafe { start.read_unaligned() })
    }

    /// Writes an output that may be longer here or there: zeros take up what room is left.
    pub(crate) fn output_padded<T: IntoBytes + Immutable>(&mut self, id: u16, value: &T) -> Result<()> {
        let mut bytes = value.as_bytes().to_vec();
        bytes.resize(bytes.len().max(self.length(id)), 0);
        self.output(id, bytes.as_slice())
    }

    /// Writes an output that the caller need not want.
    pub(crate) fn output_if_wanted<T: IntoBytes + Immutable>(&mut self, id: u16, value: &T) -> Result<()> {
        if self.has(id) { self.output(id, value) } else { Ok(()) }
    }

    /// The kernel says of the driver's output that it has been written, whatever the driver has done.
    pub(crate) fn driver_has_answered(&mut self) {
        if let Some(attribute) =
            self.attributes.iter_mut().find(|attribute| attribute.attr_id == attr::uhw::OUT)
        {
            attribute.flags |= AttrFlags::VALID_OUTPUT.bits();
        }
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

/// The bytes of an input.
fn bytes(attribute: &Attr) -> Vec<u8> {
    let length = usize::from(attribute.len);
    if length <= 8 {
        return attribute.data.to_ne_bytes()[..length].to_vec();
    }
    let start = std::ptr::with_exposed_provenance::<u8>(attribute.data as usize);
    // SAFETY: the method defines the attribute as an input (only such are read here), so whoever built the command gave a borrow of
    // that length, which lives until the command is done.
    unsafe { std::slice::from_raw_parts(start, length) }.to_vec()
}

fn number(attribute: &Attr) -> u64 {
    if attribute.len == 4 {
        let [a, b, c, d, ..] = attribute.data.to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d]).into()
    } else {
        attribute.data
    }
}

fn check_one(
    attribute: &Attr,
    form: Form,
    handles: &Handles,
    is_file: impl Fn(Use, RawFd) -> bool,
) -> Result<()> {
    let length = usize::from(attribute.len);
    if attribute.elem_id != 0 || attribute.reserved != 0 {
        return Err(Errno::EINVAL);
    }
    let good = match form {
        Form::Handle(kind) => {
            if length != 0 || attribute.data > i64::MAX.cast_unsigned() {
                return Err(Errno::EINVAL);
            }
            let handle = u32::try_from(attribute.data).map_err(|_| Errno::ENOENT)?;
            return handles.get(kind, handle).map(|_| ());
        }
        Form::New => length == 0,
        Form::File(of) => match RawFd::try_from(attribute.data.cast_signed()) {
            Ok(fd) if length == 0 && !is_file(of, fd) => return Err(Errno::EBADF),
            fd => length == 0 && fd.is_ok(),
        },
        Form::Struct(size) if bytes(attribute).iter().skip(size).any(|byte| *byte != 0) => {
            return Err(Errno::EOPNOTSUPP);
        }
        Form::In(size) | Form::Out(size) => length == size,
        Form::AtLeast(least) | Form::Struct(least) | Form::Room(least) => length >= least,
        Form::Constant(_) => length == 8,
        Form::Flags(_) => matches!(length, 4 | 8),
    };
    if good { Ok(()) } else { Err(Errno::EINVAL) }
}
