//! Ways to make a command wrong.

use std::mem::offset_of;

use uverbs_ioctl::command::MAX_ATTRIBUTES;
use uverbs_ioctl::uapi::ioctl::{Attr, AttrFlags};
use uverbs_ioctl::uapi::ioctl_cmds::{DRIVER_NS, attr, method, object};
use uverbs_ioctl::uapi::ioctl_verbs::AccessFlags;
use uverbs_ioctl::uapi::user_verbs::{
    AttachMcast, CMD_FLAG_EXTENDED, CreateAh, ModifyQp, RegMr, ReregMr, write_cmd,
};
use uverbs_ioctl::uapi::values::QpAttrMask;

use super::call::{Arg, Call, Kind, Value};
use super::written::GID;
use super::{Accepted, Both};

/// Handle of nothing.
pub(super) const NOTHING: u32 = 7777;

/// A way to make a command wrong, with its name.
pub(super) struct Wrong {
    name: String,
    change: Box<dyn Fn(&mut Call)>,
}

impl Wrong {
    fn new(name: impl Into<String>, change: impl Fn(&mut Call) + 'static) -> Self {
        Self { name: name.into(), change: Box::new(change) }
    }

    /// The same command, but wrong.
    pub(super) fn applied(&self, call: &Call) -> Call {
        call.but(&self.name, &self.change)
    }
}

impl Both {
    /// Issues a command with each of its wrongs, and then as it is. It is made anew each time, because some of the wrongs do no harm.
    pub(super) fn sweep(&mut self, mut make: impl FnMut(&mut Self) -> Call) {
        let wrongs = wrongs(&make(self), &self.one_of_each_kind());
        for wrong in wrongs {
            let call = wrong.applied(&make(self));
            // The answer is of no interest, but to compare.
            let _ = self.issue(&call);
        }
        let call = make(self);
        let _ = self.issue(&call);
    }

    pub(super) fn one_of_each_kind(&self) -> Vec<u32> {
        let first = |kind| self.objects.iter().find(|(other, _)| *other == kind).map(|(_, handle)| *handle);
        Kind::ALL.into_iter().filter_map(first).collect()
    }
}

/// All wrongs of a command. Some are other handles.
pub(super) fn wrongs(call: &Call, handles: &[u32]) -> Vec<Wrong> {
    let mut wrongs = vec![
        Wrong::new("of another driver", |call| call.header.driver_id += 1),
        Wrong::new("reserved word", |call| call.header.reserved1 = 1),
        Wrong::new("second reserved word", |call| call.header.reserved2 = 1),
        Wrong::new("of an unknown object", |call| call.header.object_id = 60),
        Wrong::new("unknown method", |call| call.header.method_id = 60),
        Wrong::new("method of the driver", |call| call.header.method_id |= DRIVER_NS),
    ];
    if call.args.len() < MAX_ATTRIBUTES {
        for attr_id in [60, DRIVER_NS | 60] {
            for flags in [0, AttrFlags::MANDATORY.bits()] {
                let attr = Attr { attr_id, len: 8, flags, ..Default::default() };
                wrongs.push(Wrong::new(
                    format!("unknown attribute {attr_id:#x}, flags {flags}"),
                    move |call| {
                        call.args.push(Arg::new(attr, Value::Plain));
                    },
                ));
            }
        }
    }
    for place in 0..call.args.len() {
        wrongs.extend(wrongs_of(call, place, handles));
    }
    wrongs
}

/// All wrongs of one attribute.
fn wrongs_of(call: &Call, place: usize, handles: &[u32]) -> Vec<Wrong> {
    let arg = &call.args[place];
    let id = arg.attr.attr_id;
    let mut wrongs = vec![Wrong::new(format!("without {id:#x}"), move |call| drop(call.args.remove(place)))];
    if call.args.len() < MAX_ATTRIBUTES {
        wrongs
            .push(Wrong::new(format!("{id:#x} twice"), move |call| call.args.push(call.args[place].clone())));
    }
    let mut add = |how: String, change: Box<dyn Fn(&mut Arg)>| {
        wrongs.push(Wrong::new(format!("{id:#x} {how}"), move |call| change(&mut call.args[place])));
    };
    add("not mandatory".into(), Box::new(|arg| arg.attr.flags = 0));
    for bit in [1, 7] {
        add(format!("with flag {bit}"), Box::new(move |arg| arg.attr.flags |= 1 << bit));
    }
    add("with a reserved byte".into(), Box::new(|arg| arg.attr.reserved = 1));
    add("with an element".into(), Box::new(|arg| arg.attr.elem_id = 1));
    match &arg.value {
        Value::Plain => {
            for length in [0, 1, 4, 8] {
                add(format!("of {length} bytes"), Box::new(move |arg| arg.attr.len = length));
            }
            // Another command would have another answer.
            let command = call.write_command().is_some();
            let near = handles.iter().map(|handle| u64::from(*handle)).chain([arg.attr.data ^ 1]);
            let far = [NOTHING.into(), u32::MAX.into(), 1 << 32, 1 << 40, u64::MAX, arg.attr.data | 1 << 31];
            for data in near.filter(|_| !command).chain(far) {
                add(format!("is {data:#x}"), Box::new(move |arg| arg.attr.data = data));
            }
        }
        Value::File(_) => {
            for file in [-1, 0, 9999] {
                add(format!("is file {file}"), Box::new(move |arg| arg.value = Value::File([file; 2])));
            }
        }
        Value::Out => {
            let length = arg.attr.len;
            for other in [0, length / 2, length.saturating_sub(1), length + 1, length + 8] {
                add(format!("has {other} bytes of room"), Box::new(move |arg| arg.attr.len = other));
            }
        }
        Value::In(bytes) => {
            let length = bytes.len();
            for other in [0, length / 2, length - 1, length + 1, length + 8] {
                add(format!("has {other} bytes"), Box::new(move |arg| arg.change(|it| it.resize(other, 0))));
            }
            add(
                "is longer, and not by zeros".into(),
                Box::new(|arg| arg.change(|it| it.extend(*b"longer by 12"))),
            );
            // Addresses that the driver would write to stay as they are.
            for place in (0..length).filter(|_| id != attr::uhw::IN) {
                for turned in [1, 0x80, 0xff] {
                    add(
                        format!("byte {place} turned by {turned:#x}"),
                        Box::new(move |arg| {
                            arg.change(|it| it[place] ^= turned);
                        }),
                    );
                }
            }
        }
    }
    wrongs
}

/// Why a command is not compared at all.
pub(super) fn excluded(call: &Call) -> Option<Accepted> {
    if let Some(number) = call.write_command() {
        return match () {
            () if UNISSUED.contains(&number) => Some(Accepted::Unissued),
            () if leads_far(call, number) => Some(Accepted::Network),
            () if pages_on_demand(call, number) => Some(Accepted::Paging),
            () if attaches_twice(call, number) => Some(Accepted::Leaked),
            () => None,
        };
    }
    // A virtual machine has more than one processor, and as many completion vectors.
    let vector = call.args.iter().find(|arg| arg.attr.attr_id == attr::create_cq::COMP_VECTOR);
    let other =
        call.is(object::CQ, method::cq::CREATE) && vector.is_some_and(|arg| (1..64).contains(&arg.word()));
    other.then_some(Accepted::Vectors)
}

/// Whether it asks for memory that is not pinned.
fn pages_on_demand(call: &Call, number: u64) -> bool {
    let place = match number as u32 {
        write_cmd::REG_MR => offset_of!(RegMr, access_flags),
        write_cmd::REREG_MR => offset_of!(ReregMr, access_flags),
        _ => return false,
    };
    let access = call.request().get(place..).and_then(<[u8]>::first_chunk);
    access.is_some_and(|access| u32::from_ne_bytes(*access) & AccessFlags::ON_DEMAND.bits() != 0)
}

/// Whether it goes to an address of others. That of a group is known without asking.
fn leads_far(call: &Call, number: u64) -> bool {
    let request = call.request();
    let place = match number as u32 {
        write_cmd::MODIFY_QP => {
            let mask = request.get(offset_of!(ModifyQp, attr_mask)..).and_then(<[u8]>::first_chunk);
            if mask.is_none_or(|mask| u32::from_ne_bytes(*mask) & QpAttrMask::AV.bits() == 0) {
                return false;
            }
            offset_of!(ModifyQp, dest)
        }
        write_cmd::CREATE_AH => offset_of!(CreateAh, attr),
        _ => return false,
    };
    let gid = request.get(place..place + 16).unwrap_or_default();
    gid.starts_with(&GID[..12]) && gid[12] & 0xf0 != 0xe0 && *gid != GID
}

/// Whether it attaches a QP by a LID, perhaps to a group that it is in without.
fn attaches_twice(call: &Call, number: u64) -> bool {
    let lid = call.request().get(offset_of!(AttachMcast, mlid)..offset_of!(AttachMcast, reserved));
    number == u64::from(write_cmd::ATTACH_MCAST) && lid != Some(&[0, 0])
}

/// Commands that newer methods have taken the place of.
const UNISSUED: &[u64] = &{
    use write_cmd::*;
    const EX: u64 = CMD_FLAG_EXTENDED as u64;
    [
        GET_CONTEXT as u64,
        CREATE_CQ as u64,
        DESTROY_CQ as u64,
        CREATE_QP as u64,
        DESTROY_QP as u64,
        CREATE_SRQ as u64,
        DESTROY_SRQ as u64,
        OPEN_QP as u64,
        CREATE_XSRQ as u64,
        EX_CREATE_CQ as u64 | EX,
        EX_CREATE_QP as u64 | EX,
        EX_MODIFY_QP as u64 | EX,
    ]
};
