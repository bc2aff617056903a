//! Commands: methods and attributes as their tables have them, or changed a little; any handles, files and numbers; several threads on the
//! same contexts, which come and go.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use uverbs_ioctl::{Command, Doorbell, Result, Transport, calls};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::ioctl_verbs::{QpCap, qp_type};
use uverbs_uapi::rxe::{MmapInfo, ModifySrqCmd};
use uverbs_uapi::user_verbs::{
    AhAttr, AllocMw, AllocPd, AttachMcast, CMD_FLAG_EXTENDED, CreateAh, CreateCompChannel, DeallocMw,
    DeallocPd, DeregMr, DestroyAh, DetachMcast, ExQueryDevice, GlobalRoute, ModifySrq, PostSend, QueryDevice,
    QueryPort, QueryQp, QuerySrq, RegMr, ReqNotifyCq, ReregMr, ResizeCq, SendWr, write_cmd,
};
use uverbs_uapi::values::{QpAttrMask, qp_state};
use zerocopy::{FromBytes, IntoBytes};

use super::user::{UserRing, anything, connect, gid, open, step};
use crate::attributes::Form;
use crate::context::Opened;
use crate::device::{Device, Limits};
use crate::faults::Faults;
use crate::methods;
use crate::table::Kind;
use crate::wire::Wire;

const THREADS: usize = 3;
const OPERATIONS: u64 = 3000;
const CONTEXTS: usize = 3;
/// Bytes that regions are in.
const MEMORY: usize = 1 << 16;
/// Files and mappings of a context that are kept.
const KEPT: usize = 8;

/// What the threads of a round share.
struct Common {
    devices: Vec<Device>,
    contexts: Vec<Mutex<Arc<Shared>>>,
    /// The address of memory that outlives the contexts, and that only devices touch.
    memory: u64,
    made: AtomicU64,
}

/// An open device, and what its commands gave.
struct Shared {
    opened: Opened,
    files: Mutex<Vec<Arc<OwnedFd>>>,
    rings: Mutex<Vec<UserRing>>,
    /// Handles by kind, gone or not.
    handles: [Mutex<Vec<u32>>; Kind::ALL.len()],
    qps: Mutex<Vec<ConnectedQp>>,
}

/// A QP that can be connected: its handle, type and number.
type ConnectedQp = (u32, u32, u32);

/// Adds to what is kept.
fn keep<T>(kept: &Mutex<Vec<T>>, new: impl IntoIterator<Item = T>, random: &mut Rng) {
    let mut kept = kept.lock().unwrap();
    for new in new {
        if kept.len() == KEPT {
            kept.remove(random.usize(..KEPT));
        }
        kept.push(new);
    }
}

impl Shared {
    fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            opened: open(device)?,
            files: Mutex::default(),
            rings: Mutex::default(),
            handles: Default::default(),
            qps: Mutex::default(),
        })
    }
}

pub(super) fn round(seed: u64) -> u64 {
    let wire = Wire::new();
    let limits = Limits { work_requests: 64, completions: 255, shared_receives: 64, ..Limits::default() };
    let devices: Vec<_> = ["a", "b"].map(|name| Device::with_limits(&wire, name, limits.clone())).into();
    let contexts =
        (0..CONTEXTS).map(|number| Mutex::new(Arc::new(Shared::new(&devices[number % 2]).unwrap())));
    let mut buffer = vec![0_u8; MEMORY];
    let memory = buffer.as_mut_ptr().expose_provenance() as u64;
    let common = Common { contexts: contexts.collect(), devices, memory, made: AtomicU64::new(0) };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|number| {
                let common = &common;
                scope.spawn(move || Thread::new(common, Rng::with_seed(seed << 8 | number)).run())
            })
            .collect();
        threads.into_iter().for_each(|thread| {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        });
    });
    let Common { contexts, made, .. } = common;
    drop(contexts);
    super::nothing_is_left(&wire);
    drop(buffer);
    made.into_inner()
}

/// An attribute to be.
enum Value {
    /// Without bytes: a handle, a new one, a file.
    Word(u32),
    File(Arc<OwnedFd>),
    Number(u64),
    In(Vec<u8>),
    Out(Vec<u8>),
}

/// What an attribute has to be for its command to get far.
fn usual(object: u16, method: u16, id: u16) -> Option<&'static [u64]> {
    Some(match (object, method, id) {
        (object::CQ, method::cq::CREATE, attr::create_cq::CQE) => &[1, 4, 16, 255],
        (object::CQ, method::cq::CREATE, attr::create_cq::COMP_VECTOR) => &[0],
        (object::QP, method::qp::CREATE, attr::create_qp::TYPE) => &[2, 3, 4],
        (object::SRQ, method::srq::CREATE, attr::create_srq::TYPE) => &[0],
        (object::SRQ, method::srq::CREATE, attr::create_srq::MAX_WR) => &[1, 5, 64],
        (object::SRQ, method::srq::CREATE, attr::create_srq::MAX_SGE) => &[0, 1, 27],
        (object::DEVICE, method::device::QUERY_PORT, attr::query_port::PORT_NUM)
        | (object::DEVICE, method::device::QUERY_GID_ENTRY, attr::query_gid_entry::PORT) => &[1],
        (object::DEVICE, method::device::QUERY_GID_TABLE, attr::query_gid_table::ENTRY_SIZE) => &[32],
        _ => return None,
    })
}

fn first_word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word))
}

struct Thread<'a> {
    common: &'a Common,
    random: Rng,
}

impl<'a> Thread<'a> {
    fn new(common: &'a Common, random: Rng) -> Self {
        Self { common, random }
    }

    fn run(mut self) {
        for _ in 0..OPERATIONS {
            let slot = self.random.usize(..CONTEXTS);
            let context = self.common.contexts[slot].lock().unwrap().clone();
            match self.random.u32(..1000) {
                0 => {
                    // A fault may keep it from being opened.
                    if let Ok(new) = Shared::new(self.device()) {
                        *self.common.contexts[slot].lock().unwrap() = Arc::new(new);
                    }
                }
                1..8 => self.device().set_faults(self.faults()),
                8..10 => self.device().set_link(self.random.u8(..4) > 0),
                10..20 => {
                    drop((self.device().resources(), self.device().calls()));
                    continue;
                }
                20..60 => {
                    let qp = self.handle(&context, Kind::Qp);
                    let _ = context.opened.doorbell(Doorbell::Send { qp });
                }
                60..90 => {
                    let (cq, solicited_only) = (self.handle(&context, Kind::Cq), self.random.bool());
                    let _ = context.opened.doorbell(Doorbell::Arm { cq, solicited_only });
                }
                90..100 => {
                    let (offset, length) = (self.random.u64(..1 << 20), self.random.usize(..1 << 16));
                    let _ = context.opened.map(offset & !0xfff, length);
                }
                100..130 if !self.scribble(&context) => continue,
                100..130 => {}
                130..150 if !self.connect(&context) => continue,
                130..150 => {}
                150..500 => self.legacy(&context),
                _ => self.method(&context),
            }
            self.common.made.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn device(&mut self) -> &'a Device {
        &self.common.devices[self.random.usize(..self.common.devices.len())]
    }

    fn faults(&mut self) -> Faults {
        let time = Duration::from_micros(self.random.u64(..100));
        let mut often = || self.random.u16(..300);
        let faults = Faults::new(7).lose(often()).lose_answers(often()).not_ready(often());
        let faults = faults.duplicate(often()).reorder(often()).delay(often(), time);
        match self.random.u8(..4) {
            0 => faults.fail_call(self.random.u64(..50), 12),
            _ => faults,
        }
    }

    /// A handle of that kind mostly.
    fn handle(&mut self, context: &Shared, kind: Kind) -> u32 {
        let handles = context.handles[kind as usize].lock().unwrap();
        match self.random.u8(..50) {
            0 => anything(&mut self.random),
            1..30 if !handles.is_empty() => handles[handles.len() - 1],
            30..48 if !handles.is_empty() => handles[self.random.usize(..handles.len())],
            _ => self.random.u32(..24),
        }
    }

    /// Says whether there are QPs.
    fn connect(&mut self, context: &Shared) -> bool {
        let qps = context.qps.lock().unwrap().clone();
        let (Some((qp, kind, _)), Some((_, _, peer))) = (self.random.choice(&qps), self.random.choice(&qps))
        else {
            return false;
        };
        let gid = gid(self.device());
        // The QP may be gone by now.
        let _ = connect(&context.opened, *qp, *kind, gid, *peer);
        true
    }

    /// A small number mostly.
    fn small(&mut self) -> u32 {
        match self.random.u8(..10) {
            0..5 => 0,
            5..9 => self.random.u32(1..8),
            _ => anything(&mut self.random),
        }
    }

    /// Says whether there is a ring.
    fn scribble(&mut self, context: &Shared) -> bool {
        let rings = context.rings.lock().unwrap();
        let ring = self.random.choice(&*rings);
        ring.into_iter().for_each(|ring| (0..8).for_each(|_| ring.scribble(&mut self.random)));
        ring.is_some()
    }

    fn file(&mut self, context: &Shared) -> Value {
        let files = context.files.lock().unwrap();
        match files.is_empty() || self.random.u8(..10) == 0 {
            true => Value::Word(self.random.u32(..64).wrapping_sub(2)),
            false => Value::File(files[self.random.usize(..files.len())].clone()),
        }
    }

    /// A value as the table has it.
    fn good(&mut self, context: &Shared, (object, method): (u16, u16), id: u16, form: Form) -> Value {
        if let Some(numbers) = usual(object, method, id) {
            let number = *self.random.choice(numbers).unwrap();
            return match form {
                Form::In(length) => Value::In(number.to_ne_bytes()[..length].to_vec()),
                _ => Value::Number(number),
            };
        }
        let words = |this: &mut Self, length: usize| {
            let words: Vec<_> = (0..length.div_ceil(4)).map(|_| this.small()).collect();
            Value::In(words.as_bytes()[..length].to_vec())
        };
        match form {
            Form::Handle(kind) => Value::Word(self.handle(context, kind)),
            Form::New => Value::Word(0),
            Form::File(_) => self.file(context),
            Form::Struct(length) if length == size_of::<QpCap>() => {
                let cap = [16, 16, 3, 3, 64].map(|most| self.random.u32(..most + 1));
                Value::In(cap.as_bytes().to_vec())
            }
            Form::In(length) | Form::Struct(length) => words(self, length),
            Form::AtLeast(_) if id == attr::uhw::IN => Value::In(self.driver_input()),
            Form::AtLeast(least) => words(self, least + 16),
            Form::Room(_) if id == attr::uhw::OUT => Value::Out(vec![0xaa; 64]),
            Form::Room(0) => Value::Out(vec![0xaa; 192]),
            Form::Out(least) | Form::Room(least) => Value::Out(vec![0xaa; least]),
            Form::Constant(_) => Value::Number(self.small().into()),
            Form::Flags(_) => Value::Number(if self.random.u8(..4) == 0 { self.small().into() } else { 0 }),
        }
    }

    /// What a driver is given. The one that takes a pointer, that of an SRQ, finds one that it may write through.
    fn driver_input(&mut self) -> Vec<u8> {
        let mut bytes = ModifySrqCmd { mmap_info_addr: self.common.memory }.as_bytes().to_vec();
        bytes.extend((0..self.random.usize(..9)).map(|_| 0));
        bytes
    }

    /// A value with a length or a content that the table does not have. Inputs stay inputs, and outputs outputs.
    fn bad(&mut self, id: u16, form: Form) -> Value {
        let length = self.random.usize(..80);
        match form {
            Form::AtLeast(_) if id == attr::uhw::IN => {
                let mut bytes = self.driver_input();
                bytes.truncate(length);
                Value::In(bytes)
            }
            Form::In(_) | Form::Struct(_) | Form::AtLeast(_) => {
                Value::In((0..length).map(|_| self.random.u8(..)).collect())
            }
            Form::Out(_) | Form::Room(_) => Value::Out(vec![0xaa; length]),
            Form::Constant(_) | Form::Flags(_) => match self.random.bool() {
                true => Value::Number(self.random.u64(..)),
                false => Value::In((0..length.min(8)).map(|_| self.random.u8(..)).collect()),
            },
            Form::Handle(_) | Form::New | Form::File(_) => match self.random.bool() {
                true => Value::Word(anything(&mut self.random)),
                false => Value::Number(self.random.u64(..)),
            },
        }
    }

    /// Attributes of a method: some wrong, missing, twice, unknown or in another order.
    fn attributes(&mut self, context: &Shared, method: &methods::Method) -> Vec<(u16, Value)> {
        let mut attributes = Vec::new();
        for spec in method.attributes {
            let of_qp = (method.object, method.method) == (object::QP, method::qp::CREATE);
            let left_out = match (spec.id, spec.form) {
                _ if spec.mandatory => 3,
                (attr::uhw::IN | attr::create_qp::SOURCE_QPN, _) if of_qp => 240,
                (attr::create_qp::SRQ_HANDLE, _) if of_qp => 128,
                (_, Form::File(_)) => 128,
                _ => 16,
            };
            if self.random.u8(..) < left_out {
                continue;
            }
            let value = match self.random.u8(..) < 6 {
                true => self.bad(spec.id, spec.form),
                false => self.good(context, (method.object, method.method), spec.id, spec.form),
            };
            attributes.push((spec.id, value));
            if self.random.u8(..) < 2 {
                attributes.push((spec.id, self.bad(spec.id, spec.form)));
            }
        }
        if self.random.u8(..) < 3 {
            attributes.push((self.random.u16(200..), Value::Number(0)));
        }
        if self.random.u8(..) < 30 {
            self.random.shuffle(&mut attributes);
        }
        attributes
    }

    fn method(&mut self, context: &Shared) {
        let methods: Vec<_> = methods::all()
            .filter(|entry| entry.method != method::device::INVOKE_WRITE || entry.object != object::DEVICE)
            .collect();
        let mut entry = methods[self.random.usize(..methods.len())];
        // It needs more that is right than any other.
        if self.random.u8(..5) == 0 {
            entry = methods::find(object::QP, method::qp::CREATE).unwrap();
        }
        let mut attributes = self.attributes(context, entry);
        if self.random.u16(..1000) == 0 {
            let mut command = Command::new(self.random.u16(..20), self.random.u16(..20) | 0x100);
            // SAFETY: there is no such method, and no attribute.
            let _ = unsafe { command.issue(&context.opened) };
        }
        self.issue(context, (entry.object, entry.method), &mut attributes);
    }

    /// A command of `write(2)`.
    fn legacy(&mut self, context: &Shared) {
        let (number, request) = self.request(context);
        let entry = methods::find(object::DEVICE, method::device::INVOKE_WRITE).unwrap();
        let mut attributes = self.attributes(context, entry);
        for (id, value) in &mut attributes {
            let intact = self.random.u8(..) >= 6;
            match *id {
                attr::invoke_write::CORE_IN if number == write_cmd::REG_MR || intact => {
                    *value = Value::In(request.clone());
                }
                attr::invoke_write::CORE_OUT if intact => *value = Value::Out(vec![0; 400]),
                attr::invoke_write::WRITE_CMD => *value = Value::Number(number.into()),
                _ => {}
            }
        }
        self.issue(context, (entry.object, entry.method), &mut attributes);
    }

    fn issue(&mut self, context: &Shared, (object, method): (u16, u16), attributes: &mut [(u16, Value)]) {
        let mut command = Command::new(object, method);
        let mut number = None;
        for (id, value) in attributes.iter_mut().take(uverbs_ioctl::command::MAX_ATTRIBUTES) {
            match value {
                Value::Word(word) => command.handle(*id, *word),
                Value::File(file) => command.fd(*id, (**file).as_fd()),
                Value::Number(value) => {
                    if *id == attr::invoke_write::WRITE_CMD {
                        number = Some(*value as u32);
                    }
                    command.constant(*id, *value)
                }
                Value::In(bytes) => command.input(*id, &bytes[..]),
                Value::Out(bytes) => command.output(*id, &mut bytes[..]),
            };
            if self.random.u8(..) < 8 {
                command.optional();
            }
        }
        // SAFETY: inputs and outputs are where the table of methods has them, with as many bytes as they say. The memory of regions lives
        // until the contexts are closed, and what a driver writes through is memory too.
        if unsafe { command.issue(&context.opened) }.is_err() {
            return;
        }
        let random = &mut self.random;
        match (object, method) {
            (object::ASYNC_EVENT, method::async_event::ALLOC) => {
                // SAFETY: the command has succeeded, and nobody else takes the file.
                let file = unsafe { command.new_fd(attr::async_event_alloc::FD_HANDLE) };
                keep(&context.files, file.map(Arc::new), random);
            }
            (object::CQ, method::cq::CREATE) => {
                keep(
                    &context.handles[Kind::Cq as usize],
                    [command.new_handle(attr::create_cq::HANDLE)],
                    random,
                );
            }
            (object::SRQ, method::srq::CREATE) => {
                keep(
                    &context.handles[Kind::Srq as usize],
                    [command.new_handle(attr::create_srq::HANDLE)],
                    random,
                );
            }
            (object::COMP_CNTR, method::comp_cntr::CREATE) => {
                let handle = command.new_handle(attr::create_comp_cntr::HANDLE);
                keep(&context.handles[Kind::Counter as usize], [handle], random);
            }
            (object::QP, method::qp::CREATE) => {
                let handle = command.new_handle(attr::create_qp::HANDLE);
                keep(&context.handles[Kind::Qp as usize], [handle], random);
                let find = |id| attributes.iter().find(|(other, _)| *other == id).map(|(_, value)| value);
                if let (Some(Value::Number(kind)), Some(Value::Out(number))) =
                    (find(attr::create_qp::TYPE), find(attr::create_qp::RESP_QP_NUM))
                {
                    keep(&context.qps, [(handle, *kind as u32, first_word(number))], random);
                }
            }
            (object::DEVICE, method::device::INVOKE_WRITE) => {
                let is_answer = |(id, _): &&(u16, Value)| *id == attr::invoke_write::CORE_OUT;
                if let (Some(number), Some((_, Value::Out(bytes)))) =
                    (number, attributes.iter().find(is_answer))
                {
                    self.keep_answer(context, number, bytes);
                }
            }
            _ => {}
        }
        for (id, value) in attributes {
            if let (&mut attr::uhw::OUT, Value::Out(bytes)) = (id, value)
                && bytes.len() >= 64
            {
                self.map(context, bytes);
            }
        }
    }

    fn keep_answer(&mut self, context: &Shared, number: u32, bytes: &[u8]) {
        let kind = match number {
            write_cmd::ALLOC_PD => Kind::Pd,
            write_cmd::REG_MR => Kind::Mr,
            write_cmd::ALLOC_MW => Kind::Mw,
            write_cmd::CREATE_AH => Kind::Ah,
            write_cmd::CREATE_COMP_CHANNEL => {
                // SAFETY: the command has succeeded, and nobody else takes the file.
                let file = unsafe { OwnedFd::from_raw_fd(first_word(bytes).cast_signed()) };
                return keep(&context.files, [Arc::new(file)], &mut self.random);
            }
            _ => return,
        };
        keep(&context.handles[kind as usize], [first_word(bytes)], &mut self.random);
    }

    /// Maps the rings that a driver may have told of.
    fn map(&mut self, context: &Shared, bytes: &[u8]) {
        for bytes in [&bytes[..16], &bytes[16..32]] {
            let info = MmapInfo::read_from_bytes(bytes).unwrap_or_default();
            keep(&context.rings, UserRing::map(&context.opened, &info), &mut self.random);
        }
    }

    /// A command and its request.
    fn request(&mut self, context: &Shared) -> (u32, Vec<u8>) {
        fn bytes<C: calls::LegacyCommand>(request: &C) -> (u32, Vec<u8>) {
            (C::NUMBER, request.as_bytes().to_vec())
        }
        let mut handle = |kind| self.handle(context, kind);
        let [pd_handle, mr_handle, cq_handle, srq_handle, qp_handle] =
            [Kind::Pd, Kind::Mr, Kind::Cq, Kind::Srq, Kind::Qp].map(&mut handle);
        let (mw_handle, ah_handle, small) = (handle(Kind::Mw), handle(Kind::Ah), self.small());
        let access_flags = if self.random.bool() { 0xf | 1 << 4 } else { self.small() };
        match self.random.u8(..24) {
            0 => bytes(&QueryDevice::default()),
            1 => (
                write_cmd::EX_QUERY_DEVICE | CMD_FLAG_EXTENDED,
                ExQueryDevice { comp_mask: small, reserved: 0 }.as_bytes().to_vec(),
            ),
            2 => {
                let request = QueryPort { port_num: self.random.u8(..3), ..Default::default() };
                (write_cmd::QUERY_PORT, request.as_bytes().to_vec())
            }
            3 => bytes(&AllocPd::default()),
            4 => (write_cmd::DEALLOC_PD, DeallocPd { pd_handle }.as_bytes().to_vec()),
            5 | 6 => (write_cmd::REG_MR, self.region(pd_handle, access_flags).as_bytes().to_vec()),
            7 => bytes(&ReregMr {
                mr_handle,
                flags: self.random.u32(..8),
                pd_handle,
                access_flags,
                ..Default::default()
            }),
            8 => (write_cmd::DEREG_MR, DeregMr { mr_handle }.as_bytes().to_vec()),
            9 => bytes(&AllocMw { pd_handle, mw_type: self.random.u8(..4), ..Default::default() }),
            10 => (write_cmd::DEALLOC_MW, DeallocMw { mw_handle }.as_bytes().to_vec()),
            11 => bytes(&CreateAh { pd_handle, attr: self.address(), ..Default::default() }),
            12 => (write_cmd::DESTROY_AH, DestroyAh { ah_handle }.as_bytes().to_vec()),
            13 => bytes(&CreateCompChannel::default()),
            14 => bytes(&ResizeCq { cq_handle, cqe: small, ..Default::default() }),
            15 => bytes(&ReqNotifyCq { cq_handle, solicited_only: small }),
            16 => bytes(&QueryQp { qp_handle, ..Default::default() }),
            17..20 => bytes(&self.modification(qp_handle)),
            20 => {
                let wqe_size = size_of::<SendWr>() as u32;
                bytes(&PostSend { qp_handle, wqe_size, ..Default::default() })
            }
            21 => {
                let (gid, mlid) = (self.group(), self.random.u16(..2));
                match self.random.bool() {
                    true => bytes(&AttachMcast { gid, qp_handle, mlid, reserved: 0 }),
                    false => bytes(&DetachMcast { gid, qp_handle, mlid, reserved: 0 }),
                }
            }
            22 => bytes(&QuerySrq { srq_handle, ..Default::default() }),
            _ => {
                let request = ModifySrq {
                    srq_handle,
                    attr_mask: self.random.u32(..5),
                    max_wr: small,
                    srq_limit: self.small(),
                };
                (write_cmd::MODIFY_SRQ, request.as_bytes().to_vec())
            }
        }
    }

    /// Memory of ours, or such as nobody has.
    fn region(&mut self, pd_handle: u32, access_flags: u32) -> RegMr {
        let at = self.random.usize(..MEMORY);
        let mut start = self.common.memory + at as u64;
        let mut length = self.random.usize(..=MEMORY - at) as u64;
        if self.random.u8(..8) == 0 {
            (start, length) =
                (*self.random.choice(&[0, 4096, u64::MAX, 1 << 63]).unwrap(), self.random.u64(..8192));
        }
        let hca_va = match self.random.u8(..4) {
            0 => self.random.u64(..) & !0xfff | start & 0xfff,
            1 => self.random.u64(..),
            _ => start,
        };
        RegMr { start, length, hca_va, pd_handle, access_flags, ..Default::default() }
    }

    fn group(&mut self) -> [u8; 16] {
        match self.random.u8(..3) {
            0 => std::array::from_fn(|_| self.random.u8(..)),
            1 => [0xff; 16],
            _ => {
                let mut gid = gid(self.device());
                gid[12] = 239;
                gid
            }
        }
    }

    fn address(&mut self) -> AhAttr {
        let dgid = if self.random.bool() { gid(self.device()) } else { self.group() };
        let sgid_index = self.random.u8(..3);
        AhAttr {
            grh: GlobalRoute { dgid, sgid_index, ..Default::default() },
            is_global: u8::from(self.random.u8(..8) > 0),
            port_num: u8::from(self.random.u8(..8) > 0),
            ..Default::default()
        }
    }

    /// A step of a QP, often the right one.
    fn modification(&mut self, handle: u32) -> uverbs_uapi::user_verbs::ModifyQp {
        use QpAttrMask as Mask;
        let states =
            [qp_state::RESET, qp_state::INIT, qp_state::RTR, qp_state::RTS, qp_state::SQD, qp_state::ERR];
        let to = *self.random.choice(&states).unwrap();
        let connected = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
        let reliable = Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
        let retries = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
        let kind = *self.random.choice(&[qp_type::RC, qp_type::UC, qp_type::UD]).unwrap();
        let port = Mask::PKEY_INDEX | Mask::PORT;
        let mask = match (to, kind) {
            _ if self.random.u8(..10) == 0 => Mask::from_bits_retain(anything(&mut self.random)),
            (qp_state::INIT, qp_type::UD) => port | Mask::QKEY,
            (qp_state::INIT, _) => port | Mask::ACCESS_FLAGS,
            (qp_state::RTR, qp_type::RC) => connected | reliable,
            (qp_state::RTR, qp_type::UC) => connected,
            (qp_state::RTS, qp_type::RC) => Mask::SQ_PSN | retries,
            (qp_state::RTS, _) => Mask::SQ_PSN,
            _ => Mask::empty(),
        };
        let (gid, peer) = (gid(self.device()), self.random.u32(17..32));
        let mut request = step(handle, gid, peer, to, mask);
        if self.random.u8(..8) == 0 {
            let bytes = request.as_mut_bytes();
            let place = self.random.usize(..bytes.len());
            bytes[place] = self.random.u8(..);
            request.qp_handle = handle;
        }
        request
    }
}
