//! Commands as packets, right and wrong ones.

use std::fmt;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use uverbs_ioctl::command::MAX_ATTRIBUTES;
use uverbs_ioctl::uapi::ioctl::{Attr, AttrFlags, IoctlHdr};
use uverbs_ioctl::uapi::ioctl_cmds::{attr, method, object};
use uverbs_ioctl::uapi::ioctl_verbs::driver_id;
use uverbs_ioctl::{Packet, Transport};
use zerocopy::{Immutable, IntoBytes};

use super::Accepted;

/// Something of each side: of the kernel, and of the device inside the process.
pub(super) type Pair<T> = [T; 2];

/// What outputs hold before the command.
const BEFORE: u8 = 0xa5;

/// Kinds of objects that have handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
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
    pub(super) const ALL: [Self; 8] =
        [Self::Pd, Self::Mr, Self::Mw, Self::Cq, Self::Srq, Self::Qp, Self::Ah, Self::Counter];
}

/// What is behind an attribute.
#[derive(Clone)]
pub(super) enum Value {
    /// The attribute says it all: a handle, room for one, or a constant.
    Plain,
    In(Vec<u8>),
    Out,
    /// Open files, of each side.
    File(Pair<RawFd>),
}

#[derive(Clone)]
pub(super) struct Arg {
    pub(super) attr: Attr,
    pub(super) value: Value,
    /// Bytes of an output that are not compared.
    hidden: Vec<Range<usize>>,
}

/// Where a command tells what it has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// A handle, in an attribute or at the beginning of the answer.
    Handle(Kind, u16),
    Answer(Kind),
    /// The same for files.
    File(u16),
    AnswerFile,
}

/// Where a command says what it destroys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destroyed {
    /// In an attribute, or at the beginning of the request.
    Handle(u16),
    Request,
}

#[derive(Clone)]
pub(super) struct Call {
    name: String,
    pub(super) header: IoctlHdr,
    pub(super) args: Vec<Arg>,
    pub(super) makes: Option<Made>,
    destroys: Option<Destroyed>,
}

/// What a device has done, as far as it is to be the same on both.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) result: Result<(), Errno>,
    /// If it succeeded, of each attribute, its flags, its data if that is no address, and what an output holds.
    pub(super) attributes: Vec<(u16, u64, Vec<u8>)>,
}

/// What a command has made.
pub(super) enum Thing {
    Nothing,
    Handle(u32),
    File(OwnedFd),
}

/// What [`Packet`] is: the kernel's header, and attributes behind it.
#[repr(C)]
struct Raw {
    header: IoctlHdr,
    attributes: [Attr; MAX_ATTRIBUTES],
}

impl Call {
    pub(super) fn new(name: &str, object_id: u16, method_id: u16) -> Self {
        let header = IoctlHdr { object_id, method_id, driver_id: driver_id::RXE, ..Default::default() };
        Self { name: name.to_owned(), header, args: Vec::new(), makes: None, destroys: None }
    }

    /// A command of `write(2)`, with an answer of so many bytes.
    pub(super) fn legacy(
        name: &str,
        number: u32,
        request: &(impl IntoBytes + Immutable),
        answer: usize,
    ) -> Self {
        use attr::invoke_write as id;
        let call = Self::new(name, object::DEVICE, method::device::INVOKE_WRITE)
            .constant(id::WRITE_CMD, number.into())
            .input(id::CORE_IN, request);
        if answer > 0 { call.output(id::CORE_OUT, answer) } else { call }
    }

    fn push(mut self, attr_id: u16, len: u16, data: u64, value: Value) -> Self {
        let flags = AttrFlags::MANDATORY.bits();
        self.args.push(Arg::new(Attr { attr_id, len, flags, data, ..Default::default() }, value));
        self
    }

    pub(super) fn handle(self, id: u16, handle: u32) -> Self {
        self.push(id, 0, handle.into(), Value::Plain)
    }

    pub(super) fn create(mut self, id: u16, kind: Kind) -> Self {
        self.makes = Some(Made::Handle(kind, id));
        self.push(id, 0, 0, Value::Plain)
    }

    pub(super) fn create_file(mut self, id: u16) -> Self {
        self.makes = Some(Made::File(id));
        self.push(id, 0, 0, Value::Plain)
    }

    pub(super) fn file(self, id: u16, files: Pair<RawFd>) -> Self {
        self.push(id, 0, 0, Value::File(files))
    }

    pub(super) fn constant(self, id: u16, value: u64) -> Self {
        self.push(id, 8, value, Value::Plain)
    }

    pub(super) fn input(self, id: u16, value: &(impl IntoBytes + Immutable + ?Sized)) -> Self {
        self.push(id, 0, 0, Value::In(value.as_bytes().to_vec()))
    }

    pub(super) fn output(self, id: u16, length: usize) -> Self {
        self.push(id, length as u16, 0, Value::Out)
    }

    pub(super) fn answers(mut self, kind: Kind) -> Self {
        self.makes = Some(Made::Answer(kind));
        self
    }

    pub(super) fn answers_file(mut self) -> Self {
        self.makes = Some(Made::AnswerFile);
        self.hide(0..4, Accepted::Files)
    }

    pub(super) fn destroys(mut self, place: Destroyed) -> Self {
        self.destroys = Some(place);
        self
    }

    /// Does not compare some bytes of the last attribute, an output.
    pub(super) fn hide(mut self, range: Range<usize>, _: Accepted) -> Self {
        if let Some(arg) = self.args.last_mut() {
            arg.hidden.push(range);
        }
        self
    }

    /// The kind of the object that it makes.
    pub(super) fn kind(&self) -> Option<Kind> {
        match self.makes {
            Some(Made::Handle(kind, _) | Made::Answer(kind)) => Some(kind),
            _ => None,
        }
    }

    /// The handle of the object that it destroys, which a wrong may have changed.
    pub(super) fn destroyed(&self) -> Option<u32> {
        match self.destroys? {
            Destroyed::Handle(id) => {
                self.args.iter().find(|arg| arg.attr.attr_id == id).map(|arg| arg.attr.data as u32)
            }
            Destroyed::Request => self.request().first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)),
        }
    }

    pub(super) fn is(&self, object: u16, method: u16) -> bool {
        (self.header.object_id, self.header.method_id) == (object, method)
    }

    /// The number of the command of `write(2)`, if it is one.
    pub(super) fn write_command(&self) -> Option<u64> {
        let number = self.args.iter().find(|arg| arg.attr.attr_id == attr::invoke_write::WRITE_CMD)?;
        self.is(object::DEVICE, method::device::INVOKE_WRITE).then(|| number.word())
    }

    /// What a command of `write(2)` asks.
    pub(super) fn request(&self) -> &[u8] {
        let request = self.args.iter().find(|arg| arg.attr.attr_id == attr::invoke_write::CORE_IN);
        match request.map(|arg| &arg.value) {
            Some(Value::In(bytes)) => bytes,
            _ => &[],
        }
    }

    /// The same, changed in a way that has a name.
    pub(super) fn but(&self, how: impl fmt::Display, change: impl FnOnce(&mut Self)) -> Self {
        let mut call = self.clone();
        call.name = format!("{}, {how}", self.name);
        change(&mut call);
        call
    }

    pub(super) fn issue(&self, side: usize, transport: &dyn Transport) -> (Said, Thing) {
        let mut room: Vec<Vec<u8>> = self.args.iter().map(|arg| vec![BEFORE; arg.attr.len.into()]).collect();
        let mut raw = Raw { header: self.header, attributes: [Attr::default(); MAX_ATTRIBUTES] };
        raw.header.num_attrs = self.args.len() as u16;
        raw.header.length = (size_of::<IoctlHdr>() + self.args.len() * size_of::<Attr>()) as u16;
        for ((attr, arg), room) in raw.attributes.iter_mut().zip(&self.args).zip(&mut room) {
            *attr = arg.attr;
            match &arg.value {
                Value::Plain => {}
                Value::File(files) => attr.data = i64::from(files[side]).cast_unsigned(),
                Value::Out => attr.data = room.as_mut_ptr().expose_provenance() as u64,
                Value::In(bytes) => {
                    attr.len = bytes.len() as u16;
                    let mut inline = [0; 8];
                    attr.data = match inline.get_mut(..bytes.len()) {
                        Some(there) => {
                            there.copy_from_slice(bytes);
                            u64::from_ne_bytes(inline)
                        }
                        None => bytes.as_ptr().expose_provenance() as u64,
                    };
                }
            }
        }
        // SAFETY: a packet is laid out like this. Its inputs and outputs are buffers of this call, as long as they say; outputs are so in the
        // method's definition, whatever else is wrong.
        let mut packet = unsafe { std::mem::transmute::<Raw, Packet>(raw) };
        let result = transport.issue(&mut packet);
        let thing = if result.is_ok() { self.thing(&packet, &room) } else { Thing::Nothing };
        let seen = |((arg, attr), room): ((&Arg, &Attr), &Vec<u8>)| match arg.value {
            Value::Plain if self.makes == Some(Made::File(attr.attr_id)) => (attr.flags, 0, Vec::new()),
            Value::Plain => (attr.flags, attr.data, Vec::new()),
            Value::Out => (attr.flags, 0, arg.shown(room)),
            _ => (attr.flags, 0, Vec::new()),
        };
        let nothing = result.is_err() && Accepted::Failed.passes();
        let written = if nothing { &[] } else { packet.attributes() };
        let attributes = self.args.iter().zip(written).zip(&room).map(seen).collect();
        (Said { result, attributes }, thing)
    }

    fn thing(&self, packet: &Packet, room: &[Vec<u8>]) -> Thing {
        let attribute = |id| packet.attributes().iter().find(|attr| attr.attr_id == id);
        let answer = || {
            let place = self.args.iter().position(|arg| arg.attr.attr_id == attr::invoke_write::CORE_OUT)?;
            room[place].first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
        };
        // SAFETY: the command has succeeded, and made this file for us.
        let file = |number: u32| Thing::File(unsafe { OwnedFd::from_raw_fd(number.cast_signed()) });
        let number = |attr: &Attr| attr.data as u32;
        let made = match self.makes {
            None => None,
            Some(Made::Handle(_, id)) => attribute(id).map(number).map(Thing::Handle),
            Some(Made::Answer(_)) => answer().map(Thing::Handle),
            Some(Made::File(id)) => attribute(id).map(number).map(file),
            Some(Made::AnswerFile) => answer().map(file),
        };
        made.unwrap_or(Thing::Nothing)
    }
}

impl Arg {
    pub(super) fn new(attr: Attr, value: Value) -> Self {
        Self { attr, value, hidden: Vec::new() }
    }

    /// Changes an input.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        if let Value::In(bytes) = &mut self.value {
            change(bytes);
        }
    }

    /// Its value, as far as that is a number.
    pub(super) fn word(&self) -> u64 {
        match &self.value {
            Value::In(bytes) => {
                let mut word = [0; 8];
                word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                u64::from_ne_bytes(word)
            }
            _ => self.attr.data,
        }
    }

    /// What of an output is compared.
    fn shown(&self, room: &[u8]) -> Vec<u8> {
        let mut shown = room.to_vec();
        for range in &self.hidden {
            let end = range.end.min(shown.len());
            shown.get_mut(range.start..end).unwrap_or_default().fill(0);
        }
        shown
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.name)?;
        for Arg { attr, value, .. } in &self.args {
            match value {
                Value::Plain => write!(f, " {:#x}={:#x}", attr.attr_id, attr.data)?,
                Value::File(_) => write!(f, " {:#x}=file", attr.attr_id)?,
                Value::Out => write!(f, " {:#x}=[{} bytes]", attr.attr_id, attr.len)?,
                Value::In(bytes) => write!(f, " {:#x}={bytes:x?}", attr.attr_id)?,
            }
        }
        Ok(())
    }
}
