//! A driver and a program in miniature.

use std::time::{Duration, Instant};

use uverbs_efa_model::admin::abi::{
    AnswerHeader, CommandFlags, CommandHeader, CommandHeaderV2, CreateAh, CreateCounter, CreateCounterAnswer,
    CreateCq, CreateCqAnswer, CreateQp, CreateQpAnswer, EventGroups, EventNotification, FeatureCommand,
    ModifyQp, ModifyQpMask, Number, QpHandle, QueryQpAnswer, RegisterMr, RegisterMrAnswer, RegisterRead,
};
use uverbs_efa_model::admin::{Feature, Opcode, QpKind, QpState, Status as AdminStatus, checksum};
use uverbs_efa_model::config::{Config, Gid};
use uverbs_efa_model::io::{
    OperationKind, Permissions, ReceiveCompletion, ReceiveControl, ReceiveDescriptor, RemoteMemory,
    SendBuffer, SendCompletion, SendControl1, SendControl2, SendMeta, Status,
};
use uverbs_efa_model::registers::Register;
use uverbs_efa_model::{Device, GuestMemory, Interrupts, NoMemory};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) const PAGE: u64 = 4096;
const MEMORY: usize = 4 << 20;
const QUEUE_DEPTH: u16 = 4;
const ANSWER_SIZE: u64 = 64;
pub(crate) const QKEY: u32 = 0x1234;

#[derive(Debug)]
pub(crate) struct FakeMemory(Vec<u8>);

impl FakeMemory {
    fn place(&self, address: u64, length: usize) -> Result<std::ops::Range<usize>, NoMemory> {
        let end = address.checked_add(length as u64).filter(|end| *end <= self.0.len() as u64);
        end.map(|end| address as usize..end as usize).ok_or(NoMemory { address, length })
    }
}

impl GuestMemory for FakeMemory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), NoMemory> {
        bytes.copy_from_slice(&self.0[self.place(address, bytes.len())?]);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), NoMemory> {
        let place = self.place(address, bytes.len())?;
        self.0[place].copy_from_slice(bytes);
        Ok(())
    }

    fn publish(&mut self, address: u64, bytes: &[u8], _last: usize) -> Result<(), NoMemory> {
        self.write(address, bytes)
    }

    fn store(&mut self, address: u64, value: u64) -> Result<(), NoMemory> {
        self.write(address, &value.to_le_bytes())
    }
}

/// Counts interrupts by vector.
#[derive(Debug, Default)]
pub(crate) struct FakeInterrupts(pub(crate) [u32; 16]);

impl Interrupts for FakeInterrupts {
    fn raise(&mut self, vector: u8) {
        self.0[usize::from(vector)] += 1;
    }
}

pub(crate) type TestDevice = Device<FakeMemory, FakeInterrupts>;

pub(crate) fn device(config: Config) -> TestDevice {
    let llq = FakeMemory(vec![0; config.llq_size() as usize]);
    Device::new(Instant::now(), config, FakeMemory(vec![0; MEMORY]), llq, FakeInterrupts::default())
}

/// A small device: tests need no more.
pub(crate) fn config(index: u8) -> Config {
    let mut config = Config::new(index);
    config.limits.max_qp = 4;
    config.limits.max_cq = 8;
    config.limits.max_eq = 2;
    config.limits.max_pd = 4;
    config.limits.max_uar = 4;
    config.limits.max_ah = 4;
    config.limits.max_mr = 8;
    config.limits.max_event_counters = 8;
    config
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Cq {
    pub(crate) index: u16,
    pub(crate) base: u64,
    depth: u32,
    entry: u32,
    taken: u32,
    doorbell: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Mr {
    pub(crate) key: u32,
    /// Virtual address.
    pub(crate) address: u64,
    /// Pages, in order; they are not in a row.
    pages: [u64; 4],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Qp {
    pub(crate) handle: u32,
    pub(crate) number: u16,
    sq: u64,
    sq_doorbell: u64,
    sq_depth: u16,
    sq_entry: u64,
    sq_produced: u16,
    rq: u64,
    rq_doorbell: u64,
    rq_depth: u16,
    rq_produced: u16,
}

impl Qp {
    /// Offset and value that make the device look at the send queue.
    pub(crate) fn send_doorbell(&self) -> (u64, u32) {
        (self.sq_doorbell, self.sq_produced.into())
    }
}

/// A completion of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) id: u64,
    pub(crate) status: Status,
    pub(crate) qp: u16,
    pub(crate) flags: u8,
    pub(crate) receive: Option<ReceiveCompletion>,
}

/// A device with its driver.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) device: TestDevice,
    pub(crate) now: Instant,
    free: u64,
    read_sequence: u16,
    command_size: usize,
    commands: u64,
    answers: u64,
    produced: u16,
    events: u64,
    events_taken: u32,
}

impl Node {
    pub(crate) fn new(config: Config) -> Self {
        Self::of(device(config))
    }

    /// Probes a device.
    pub(crate) fn of(device: TestDevice) -> Self {
        let command_size = if device.config().api_version >= 3 { 128 } else { 64 };
        let mut node = Self {
            now: Instant::now(),
            device,
            free: PAGE,
            read_sequence: 0,
            command_size,
            commands: 0,
            answers: 0,
            produced: 0,
            events: 0,
            events_taken: 0,
        };
        node.probe();
        node
    }

    pub(crate) fn probe(&mut self) {
        self.reset();
        self.produced = 0;
        self.events_taken = 0;
        for page in [&mut self.commands, &mut self.answers, &mut self.events] {
            *page = self.free;
            self.free += PAGE;
        }
        let depth = u32::from(QUEUE_DEPTH);
        self.write(Register::AdminQueueBaseLow, self.commands as u32);
        self.write(Register::AdminQueueBaseHigh, 0);
        self.write(Register::AdminQueueCapabilities, depth | (self.command_size as u32) << 16);
        self.write(Register::AdminCompletionBaseLow, self.answers as u32);
        self.write(Register::AdminCompletionBaseHigh, 0);
        self.write(Register::AdminCompletionCapabilities, depth | (ANSWER_SIZE as u32) << 16);
        self.write(Register::EventNotificationBaseLow, self.events as u32);
        self.write(Register::EventNotificationBaseHigh, 0);
        self.write(Register::EventNotificationCapabilities, depth | (ANSWER_SIZE as u32) << 16);
        self.write(Register::EventNotificationDoorbell, 0);
    }

    /// Resets the device as the driver does.
    pub(crate) fn reset(&mut self) {
        const IN_PROGRESS: u32 = 8;
        self.write(Register::DeviceControl, 1);
        self.write(Register::RegisterReadResponseHigh, 0);
        self.write(Register::RegisterReadResponseLow, 0x10);
        assert_eq!(self.read(Register::DeviceStatus.offset() as u16) & IN_PROGRESS, IN_PROGRESS);
        self.write(Register::DeviceControl, 0);
        assert_eq!(self.read(Register::DeviceStatus.offset() as u16) & IN_PROGRESS, 0);
    }

    pub(crate) fn write(&mut self, register: Register, value: u32) {
        self.device.write_register(self.now, register.offset(), value);
    }

    /// Reads a register by way of memory.
    pub(crate) fn read(&mut self, offset: u16) -> u32 {
        self.read_sequence += 1;
        self.write(Register::RegisterReadRequest, u32::from(self.read_sequence) | u32::from(offset) << 16);
        let answer: RegisterRead = self.load(0x10);
        assert_eq!(answer.request_id.get(), self.read_sequence, "the device has not answered");
        if answer.offset.get() == offset { answer.value.get() } else { u32::MAX }
    }

    /// Memory that nobody else has.
    pub(crate) fn allocate(&mut self, length: u64) -> u64 {
        let address = self.free;
        self.free += length.next_multiple_of(PAGE);
        address
    }

    pub(crate) fn load<T: FromBytes>(&self, address: u64) -> T {
        let mut bytes = vec![0; size_of::<T>()];
        self.device.memory().read(address, &mut bytes).unwrap();
        T::read_from_bytes(&bytes).unwrap()
    }

    pub(crate) fn store(&mut self, address: u64, bytes: &[u8]) {
        self.device.memory_mut().write(address, bytes).unwrap();
    }

    // Commands.

    /// Writes a command, with phase and checksum, and nothing more.
    pub(crate) fn write_command(&mut self, opcode: u8, flags: CommandFlags, payload: &[u8], good: bool) {
        let mut entry = vec![0; self.command_size];
        let round = self.produced / QUEUE_DEPTH;
        let phase = if round.is_multiple_of(2) { CommandFlags::PHASE } else { CommandFlags::empty() };
        let id = self.produced & 0xfff;
        let header = CommandHeader { id: id.into(), opcode, flags: (flags | phase).bits() };
        entry[..4].copy_from_slice(header.as_bytes());
        let payload_at = if self.command_size == 128 { 4 + size_of::<CommandHeaderV2>() } else { 4 };
        entry[payload_at..payload_at + payload.len()].copy_from_slice(payload);
        if self.command_size == 128 {
            let sum = checksum(&entry) ^ u16::from(!good);
            entry[4..6].copy_from_slice(&sum.to_le_bytes());
        }
        let address = self.commands + u64::from(self.produced % QUEUE_DEPTH) * self.command_size as u64;
        self.store(address, &entry);
        self.produced = self.produced.wrapping_add(1);
    }

    pub(crate) fn ring_admin(&mut self) {
        self.write(Register::AdminQueueDoorbell, self.produced.into());
    }

    /// The answer to the latest command, if it has come.
    pub(crate) fn answer(&mut self) -> Option<(AdminStatus, Vec<u8>)> {
        let latest = self.produced.wrapping_sub(1);
        let address = self.answers + u64::from(latest % QUEUE_DEPTH) * ANSWER_SIZE;
        let mut entry: [u8; 64] = self.load(address);
        let (mut header, body) = AnswerHeader::read_from_prefix(&entry).unwrap();
        let body = body.to_vec();
        if header.flags & 1 != u8::from((latest / QUEUE_DEPTH).is_multiple_of(2))
            || header.id.get() != latest & 0xfff
        {
            return None;
        }
        if self.device.config().api_version >= 2 {
            let sum = header.checksum.get();
            header.checksum = 0.into();
            entry[..8].copy_from_slice(header.as_bytes());
            assert_eq!(sum, checksum(&entry));
        }
        Some((AdminStatus::from_number(header.status).unwrap(), body))
    }

    pub(crate) fn command(
        &mut self,
        opcode: Opcode,
        flags: CommandFlags,
        payload: &[u8],
    ) -> (AdminStatus, Vec<u8>) {
        self.write_command(opcode as u8, flags, payload, true);
        self.ring_admin();
        self.answer().expect("the command has no answer")
    }

    /// Sends a command that must succeed.
    pub(crate) fn ok<A: FromBytes>(&mut self, opcode: Opcode, command: impl IntoBytes + Immutable) -> A {
        let (status, body) = self.command(opcode, CommandFlags::empty(), command.as_bytes());
        assert_eq!(status, AdminStatus::Success, "{opcode}");
        A::read_from_prefix(&body).unwrap().0
    }

    /// Sends a command and gives its status.
    pub(crate) fn status(&mut self, opcode: Opcode, command: impl IntoBytes + Immutable) -> AdminStatus {
        self.command(opcode, CommandFlags::empty(), command.as_bytes()).0
    }

    pub(crate) fn want_events(&mut self, groups: u32) -> AdminStatus {
        let mut command = [0; size_of::<FeatureCommand>() + size_of::<EventGroups>()];
        let feature = FeatureCommand { feature: Feature::EventGroups as u8, ..FeatureCommand::default() };
        let value = EventGroups { supported: 0.into(), enabled: groups.into() };
        command[..size_of::<FeatureCommand>()].copy_from_slice(feature.as_bytes());
        command[size_of::<FeatureCommand>()..].copy_from_slice(value.as_bytes());
        self.status(Opcode::SetFeature, command)
    }

    pub(crate) fn number(&mut self, opcode: Opcode, number: u16) -> AdminStatus {
        self.status(opcode, Number { number: number.into(), ..Number::default() })
    }

    pub(crate) fn pd(&mut self) -> u16 {
        self.ok::<Number>(Opcode::AllocatePd, ()).number.get()
    }

    pub(crate) fn uar(&mut self) -> u16 {
        self.ok::<Number>(Opcode::AllocateUar, ()).number.get()
    }

    pub(crate) fn ah(&mut self, pd: u16, destination: Gid) -> u16 {
        let command = CreateAh { destination: destination.0, pd: pd.into(), ..CreateAh::default() };
        self.ok::<Number>(Opcode::CreateAh, command).number.get()
    }

    /// A region of 4 pages that are in reverse order and begin in the middle of a page.
    pub(crate) fn mr(&mut self, pd: u16, permissions: Permissions) -> Mr {
        let first = self.allocate(8 * PAGE);
        let pages = [6, 4, 2, 0].map(|page| first + page * PAGE);
        let (address, length) = (0x7f00_0000_0800, 3 * PAGE);
        let command = RegisterMr {
            pd: pd.into(),
            pages: pages.map(Into::into),
            length: length.into(),
            flags: 12,
            permissions: permissions.bits(),
            iova: address.into(),
            ..RegisterMr::default()
        };
        let answer: RegisterMrAnswer = self.ok(Opcode::RegisterMr, command);
        Mr { key: answer.lkey.get(), address, pages }
    }

    pub(crate) fn put(&mut self, mr: &Mr, offset: u64, data: &[u8]) {
        for (place, byte) in (offset..).zip(data) {
            self.store(physical(mr, place), &[*byte]);
        }
    }

    pub(crate) fn get(&self, mr: &Mr, offset: u64, length: usize) -> Vec<u8> {
        (offset..).take(length).map(|place| self.load::<u8>(physical(mr, place))).collect()
    }

    pub(crate) fn create_cq(uar: u16) -> CreateCq {
        CreateCq {
            capabilities_2: 8,
            sub_cq_depth: 4.into(),
            sub_cqs: 1.into(),
            uar: uar.into(),
            ..CreateCq::default()
        }
    }

    pub(crate) fn cq(&mut self, mut command: CreateCq) -> Cq {
        let base = self.allocate(PAGE);
        command.base = base.into();
        let answer: CreateCqAnswer = self.ok(Opcode::CreateCq, command);
        Cq {
            index: answer.cq.get(),
            base,
            depth: answer.sub_cq_depth.get().into(),
            entry: u32::from(command.capabilities_2 & 0x1f) * 4,
            taken: 0,
            doorbell: answer.doorbell.get().into(),
        }
    }

    pub(crate) fn create_qp(kind: QpKind, pd: u16, uar: u16, cq: &Cq) -> CreateQp {
        CreateQp {
            pd: pd.into(),
            kind: kind as u8,
            send_cq: u32::from(cq.index).into(),
            receive_cq: u32::from(cq.index).into(),
            sq_ring_size: (16 * 128).into(),
            sq_depth: 16.into(),
            rq_ring_size: (4 * 16).into(),
            rq_depth: 4.into(),
            uar: uar.into(),
            ..CreateQp::default()
        }
    }

    pub(crate) fn qp(&mut self, mut command: CreateQp) -> Qp {
        let rq = self.allocate(PAGE);
        command.rq_base = rq.into();
        let answer: CreateQpAnswer = self.ok(Opcode::CreateQp, command);
        Qp {
            handle: answer.handle.get(),
            number: answer.number.get(),
            sq: answer.llq_offset.get().into(),
            sq_doorbell: answer.sq_doorbell.get().into(),
            sq_depth: command.sq_depth.get() as u16,
            sq_entry: (command.sq_ring_size.get() / command.sq_depth.get()).into(),
            sq_produced: 0,
            rq,
            rq_doorbell: answer.rq_doorbell.get().into(),
            rq_depth: (command.rq_ring_size.get() / 16) as u16,
            rq_produced: 0,
        }
    }

    pub(crate) fn modify(&mut self, qp: &Qp, state: QpState) -> AdminStatus {
        let command = ModifyQp {
            mask: ModifyQpMask::STATE.bits().into(),
            handle: qp.handle.into(),
            state: (state as u32).into(),
            ..ModifyQp::default()
        };
        self.status(Opcode::ModifyQp, command)
    }

    pub(crate) fn query(&mut self, qp: &Qp) -> QueryQpAnswer {
        self.ok(Opcode::QueryQp, QpHandle { handle: qp.handle.into() })
    }

    pub(crate) fn ready(&mut self, qp: &Qp) {
        let qkey = ModifyQp {
            mask: ModifyQpMask::QKEY.bits().into(),
            handle: qp.handle.into(),
            qkey: QKEY.into(),
            ..ModifyQp::default()
        };
        assert_eq!(self.status(Opcode::ModifyQp, qkey), AdminStatus::Success);
        for state in [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend] {
            assert_eq!(self.modify(qp, state), AdminStatus::Success);
        }
    }

    pub(crate) fn set_rnr_retry(&mut self, qp: &Qp, rnr_retry: u8) -> AdminStatus {
        let command = ModifyQp {
            mask: ModifyQpMask::RNR_RETRY.bits().into(),
            handle: qp.handle.into(),
            rnr_retry,
            ..ModifyQp::default()
        };
        self.status(Opcode::ModifyQp, command)
    }

    pub(crate) fn counter(&mut self, uar: u16) -> (u32, u64) {
        let address = self.allocate(8);
        self.store(address, &[0xff; 8]);
        let command = CreateCounter { uar: uar.into(), address: address.into(), ..CreateCounter::default() };
        (self.ok::<CreateCounterAnswer>(Opcode::CreateCounter, command).handle.get(), address)
    }

    // Work requests.

    pub(crate) fn write_send(&mut self, qp: &mut Qp, request: &Send<'_>) {
        let mut bytes = request.bytes();
        bytes.resize(qp.sq_entry as usize, 0);
        let place = u64::from(qp.sq_produced % qp.sq_depth);
        self.device.llq_mut().write(qp.sq + place * qp.sq_entry, &bytes).unwrap();
        qp.sq_produced = qp.sq_produced.wrapping_add(1);
    }

    pub(crate) fn ring_send(&mut self, qp: &Qp) {
        let (offset, value) = qp.send_doorbell();
        self.device.write_register(self.now, offset, value);
    }

    pub(crate) fn send(&mut self, qp: &mut Qp, request: &Send<'_>) {
        self.write_send(qp, request);
        self.ring_send(qp);
    }

    pub(crate) fn receive(&mut self, qp: &mut Qp, id: u16, buffers: &[(u32, u64, u16)]) {
        for (index, (key, address, length)) in buffers.iter().enumerate() {
            let mut control = ReceiveControl::empty();
            control.set(ReceiveControl::FIRST, index == 0);
            control.set(ReceiveControl::LAST, index + 1 == buffers.len());
            let descriptor = ReceiveDescriptor {
                address: (*address).into(),
                request_id: if index == 0 { id } else { 0 }.into(),
                length: (*length).into(),
                key_control: (key | control.bits()).into(),
            };
            let place = u64::from(qp.rq_produced % qp.rq_depth);
            self.store(qp.rq + place * 16, descriptor.as_bytes());
            qp.rq_produced = qp.rq_produced.wrapping_add(1);
        }
        self.device.write_register(self.now, qp.rq_doorbell, qp.rq_produced.into());
    }

    /// The next completion, with the consumer's doorbell.
    pub(crate) fn poll(&mut self, cq: &mut Cq) -> Option<Completion> {
        let address = cq.base + u64::from(cq.taken % cq.depth) * u64::from(cq.entry);
        let mut bytes = [0; 32];
        self.device.memory().read(address, &mut bytes[..cq.entry as usize]).unwrap();
        let receive = ReceiveCompletion::read_from_bytes(&bytes).unwrap();
        let common = receive.common;
        if common.flags & 1 != u8::from((cq.taken / cq.depth).is_multiple_of(2)) {
            return None;
        }
        cq.taken += 1;
        self.ring_cq(cq, false);
        let status = Status::from_number(common.status).unwrap();
        let is_send = common.flags >> 1 & 3 == 1;
        let send = SendCompletion::read_from_prefix(&bytes).unwrap().0;
        let wide = if is_send { send.request_id_ex } else { Default::default() };
        let parts = [common.request_id, wide[0], wide[1], wide[2]];
        Some(Completion {
            id: parts.iter().rev().fold(0, |id, part| id << 16 | u64::from(part.get())),
            status,
            qp: common.qp.get(),
            flags: common.flags,
            receive: (!is_send).then_some(receive),
        })
    }

    /// Identifiers and statuses of all completions.
    pub(crate) fn drain(&mut self, cq: &mut Cq) -> Vec<(u64, Status)> {
        std::iter::from_fn(|| self.poll(cq)).map(|completion| (completion.id, completion.status)).collect()
    }

    pub(crate) fn ring_cq(&mut self, cq: &Cq, arm: bool) {
        let value = cq.taken & 0xffff | u32::from(arm) << 31;
        self.device.write_register(self.now, cq.doorbell, value);
    }

    /// Groups of new events.
    pub(crate) fn notifications(&mut self) -> Vec<u16> {
        let mut groups = Vec::new();
        loop {
            let place = u64::from(self.events_taken % u32::from(QUEUE_DEPTH));
            let event: EventNotification = self.load(self.events + place * ANSWER_SIZE);
            let phase = (self.events_taken / u32::from(QUEUE_DEPTH)).is_multiple_of(2);
            if event.flags & 1 != u8::from(phase) {
                break;
            }
            groups.push(event.group.get());
            self.events_taken += 1;
        }
        self.write(Register::EventNotificationDoorbell, self.events_taken);
        groups
    }

    /// Lets time pass.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.device.handle_timeout(self.now);
    }
}

fn physical(mr: &Mr, offset: u64) -> u64 {
    let place = mr.address % PAGE + offset;
    mr.pages[(place / PAGE) as usize] + place % PAGE
}

/// Carries packets between devices until there are none.
pub(crate) fn exchange(nodes: &mut [Node]) {
    loop {
        let packets: Vec<_> = nodes
            .iter_mut()
            .flat_map(|node| std::iter::from_fn(|| node.device.poll_transmit()).collect::<Vec<_>>())
            .collect();
        if packets.is_empty() {
            break;
        }
        for packet in packets {
            let target = nodes.iter_mut().find(|node| node.device.config().gid() == packet.destination());
            if let Some(node) = target {
                node.device.receive(node.now, packet);
            }
        }
    }
}

/// A send request.
#[derive(Clone, Debug)]
pub(crate) struct Send<'a> {
    pub(crate) id: u64,
    pub(crate) ah: u16,
    pub(crate) destination_qp: u16,
    pub(crate) qkey: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) signalled: bool,
    pub(crate) work: Work<'a>,
}

#[derive(Clone, Debug)]
pub(crate) enum Work<'a> {
    Inline(&'a [u8]),
    /// Key, address, length.
    Send(&'a [(u32, u64, u32)]),
    Read {
        remote: (u32, u64, u32),
        local: (u32, u64, u32),
    },
    Write {
        remote: (u32, u64, u32),
        local: (u32, u64, u32),
    },
    WriteInline {
        remote: (u32, u64, u32),
        data: &'a [u8],
    },
    /// Operation and body as they are.
    Raw(u8, &'a [u8]),
}

impl<'a> Send<'a> {
    pub(crate) fn new(id: u64, ah: u16, destination_qp: u16, work: Work<'a>) -> Self {
        Self { id, ah, destination_qp, qkey: QKEY, immediate: None, signalled: true, work }
    }

    fn bytes(&self) -> Vec<u8> {
        let local = |(key, address, length): (u32, u64, u32)| {
            let buffer = SendBuffer { length: length.into(), lkey: key.into(), address: address.into() };
            buffer.as_bytes().to_vec()
        };
        let remote = |(key, address, length): (u32, u64, u32)| {
            let memory = RemoteMemory { length: length.into(), rkey: key.into(), address: address.into() };
            memory.as_bytes().to_vec()
        };
        let (operation, inline, length, body) = match &self.work {
            Work::Inline(data) => (OperationKind::Send as u8, true, data.len(), data.to_vec()),
            Work::Send(buffers) => {
                let body = buffers.iter().copied().flat_map(local).collect();
                (OperationKind::Send as u8, false, buffers.len(), body)
            }
            Work::Read { remote: from, local: to } => {
                (OperationKind::Read as u8, false, 1, [remote(*from), local(*to)].concat())
            }
            Work::Write { remote: to, local: from } => {
                (OperationKind::Write as u8, false, 1, [remote(*to), local(*from)].concat())
            }
            Work::WriteInline { remote: to, data } => {
                (OperationKind::Write as u8, true, data.len(), [remote(*to), data.to_vec()].concat())
            }
            Work::Raw(operation, body) => (*operation, false, 0, body.to_vec()),
        };
        let mut control_1 = SendControl1::META;
        control_1.set(SendControl1::INLINE, inline);
        control_1.set(SendControl1::HAS_IMMEDIATE, self.immediate.is_some());
        let mut control_2 = SendControl2::FIRST | SendControl2::LAST;
        control_2.set(SendControl2::COMPLETION_REQUEST, self.signalled);
        let part = |shift: u32| (self.id >> shift) as u16;
        let meta = SendMeta {
            request_id: part(0).into(),
            control_1: control_1.bits() | operation,
            control_2: control_2.bits(),
            destination_qp: self.destination_qp.into(),
            length: (length as u16).into(),
            immediate: self.immediate.unwrap_or(0).into(),
            ah: self.ah.into(),
            qkey: self.qkey.into(),
            request_id_ex: [part(16).into(), part(32).into(), part(48).into()],
            ..SendMeta::default()
        };
        [meta.as_bytes().to_vec(), body].concat()
    }
}

/// Two queue pairs of one device that can reach each other, with all that they need.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) node: Node,
    pub(crate) uar: u16,
    pub(crate) pd: u16,
    pub(crate) ah: u16,
    pub(crate) mr: Mr,
    pub(crate) cq: [Cq; 2],
    pub(crate) qp: [Qp; 2],
}

impl Pair {
    pub(crate) fn new(config: Config, kind: QpKind) -> Self {
        let mut pair = Self::in_reset(config, kind);
        for qp in pair.qp {
            pair.node.ready(&qp);
        }
        pair
    }

    pub(crate) fn in_reset(config: Config, kind: QpKind) -> Self {
        let mut node = Node::new(config);
        let (uar, pd) = (node.uar(), node.pd());
        let gid = node.device.config().gid();
        let ah = node.ah(pd, gid);
        let mr = node.mr(pd, Permissions::all());
        let cq = [node.cq(Node::create_cq(uar)), node.cq(Node::create_cq(uar))];
        let qp = cq.map(|cq| node.qp(Node::create_qp(kind, pd, uar, &cq)));
        Self { node, uar, pd, ah, mr, cq, qp }
    }

    /// A request from the first queue pair to the second.
    pub(crate) fn request<'a>(&self, id: u64, work: Work<'a>) -> Send<'a> {
        Send::new(id, self.ah, self.qp[1].number, work)
    }

    pub(crate) fn post(&mut self, request: &Send<'_>) {
        self.node.send(&mut self.qp[0], request);
    }

    /// Posts a receive request to the second queue pair.
    pub(crate) fn post_receive(&mut self, id: u16, offset: u64, length: u16) {
        let buffer = (self.mr.key, self.mr.address + offset, length);
        self.node.receive(&mut self.qp[1], id, &[buffer]);
    }

    pub(crate) fn poll(&mut self, side: usize) -> Option<Completion> {
        self.node.poll(&mut self.cq[side])
    }

    /// Status of the next completion of the sender.
    pub(crate) fn sent(&mut self) -> Option<Status> {
        self.poll(0).map(|completion| completion.status)
    }
}
