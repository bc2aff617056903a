//! The receiving side: what a message does at the QP that it is for.

use uverbs_uapi::ioctl_verbs::{AccessFlags, QpAttachCompCntrOps as Ops, qp_type};
use uverbs_uapi::rxe::RecvWqe;
use uverbs_uapi::user_verbs::{PlacementType, Wc, selectivity_level};
use uverbs_uapi::values::{WcFlags, event_type, wc_opcode, wc_status};

use crate::memory::{self, Segment};
use crate::mw::is_window;
use crate::ring::Ring;
use crate::wire::State;

/// The bits that sequence numbers have.
pub(crate) const PSN: u32 = 0xff_ffff;

/// A message on the wire. There are no packets here: it arrives as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) from: u32,
    pub(crate) from_device: usize,
    pub(crate) operation: Operation,
    pub(crate) payload: &'a [Segment],
    /// Bytes sent, read or flushed.
    pub(crate) length: u32,
    /// What is read or written of the peer's memory.
    pub(crate) address: u64,
    pub(crate) rkey: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) invalidate: Option<u32>,
    pub(crate) solicited: bool,
    /// Bytes of payload in a packet, had it any.
    pub(crate) mtu: u32,
    /// Number of its first packet.
    pub(crate) psn: u32,
    /// What goes before the data of a datagram.
    pub(crate) route: Option<[u8; 40]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    Write,
    Read,
    AtomicWrite,
    FetchAdd(u64),
    CompareSwap(u64, u64),
    Flush { placement: u8, level: u8 },
}

/// What the sender is told.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    /// What is read.
    Bytes(Segment),
    /// What was there before an atomic operation.
    Word(u64),
}

/// Why a message came to nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No receive is posted. The sender is to wait for a time of that code.
    NotReady(u8),
    /// The sender is not told.
    Lost,
    /// The sender is told that its request is wrong, by this status.
    Wrong(u32),
}

/// What is wrong with a message: statuses of the request, and of the receive that it took, if it did.
struct Fault {
    told: u32,
    receive: u32,
    access: bool,
}

const ACCESS: Fault =
    Fault { told: wc_status::REM_ACCESS_ERR, receive: wc_status::REM_ACCESS_ERR, access: true };
const INVALID: Fault =
    Fault { told: wc_status::REM_INV_REQ_ERR, receive: wc_status::REM_INV_REQ_ERR, access: false };
/// The receive is too short, or its memory cannot be written.
const MALFORMED: Fault =
    Fault { told: wc_status::REM_OP_ERR, receive: wc_status::LOC_QP_OP_ERR, access: false };

/// A datagram does not fit.
const TOO_LONG: Fault =
    Fault { told: wc_status::SUCCESS, receive: wc_status::REM_INV_REQ_ERR, access: false };

impl Message<'_> {
    /// How many sequence numbers it takes.
    pub(crate) fn packets(&self) -> u32 {
        match self.operation {
            Operation::Send | Operation::Write | Operation::Read => self.length.div_ceil(self.mtu).max(1),
            _ => 1,
        }
    }

    /// Whether it takes a receive.
    pub(crate) fn takes_receive(&self) -> bool {
        self.operation == Operation::Send || self.immediate.is_some()
    }
}

impl State {
    /// Does what a message says.
    pub(crate) fn receive(&mut self, target: u32, message: &Message<'_>) -> Result<Answer, Refusal> {
        let Some(qp) = self.qps.get(target) else { return Err(Refusal::Lost) };
        let reliable = qp.kind == qp_type::RC;
        if let Err(fault) = allowed(qp, message) {
            return if reliable { self.refuse(target, None, &fault) } else { Err(Refusal::Lost) };
        }
        let timer = qp.attr.min_rnr_timer;
        // Of several packets it is the first that has the key, and the last that takes the receive.
        if message.operation == Operation::Write
            && message.packets() > 1
            && let Err(fault) = self.remote(target, message, AccessFlags::REMOTE_WRITE)
        {
            return if reliable { self.refuse(target, None, &fault) } else { Err(Refusal::Lost) };
        }
        let receive = if message.takes_receive() {
            match self.next_receive(target) {
                Some(receive) => Some(receive),
                None if reliable => return Err(Refusal::NotReady(timer)),
                None => return Err(Refusal::Lost),
            }
        } else {
            None
        };
        match self.perform(target, receive.as_ref(), message) {
            Ok(answer) => {
                // What comes to nothing leaves the number expected: the next message has it, or the same one again.
                if let Some(qp) = self.qps.get_mut(target) {
                    qp.receive_psn = (message.psn + message.packets()) & PSN;
                }
                self.count_remote(target, message);
                match receive {
                    Some(receive) => self.complete_receive(target, &receive, message).map(|()| answer),
                    None => Ok(answer),
                }
            }
            Err(fault) if reliable => {
                // A receive that fails tells of it, and no event.
                let access = fault.access && receive.is_none();
                self.refuse(target, receive.as_ref(), &Fault { access, ..fault })
            }
            // What an unreliable peer may not do is dropped in silence, but for a receive that cannot be used.
            Err(fault) if fault.receive == MALFORMED.receive => self.refuse(target, receive.as_ref(), &fault),
            Err(fault) => {
                if let Some(receive) = receive.filter(|receive| receive.shared) {
                    self.end_receive(target, &receive, fault.receive);
                }
                Err(Refusal::Lost)
            }
        }
    }

    /// A message with numbers that have been seen: what it did is not done again.
    pub(crate) fn receive_again(
        &mut self,
        target: u32,
        psn: u32,
        message: &Message<'_>,
    ) -> Result<Answer, Refusal> {
        match message.operation {
            Operation::Send | Operation::Write | Operation::AtomicWrite | Operation::Flush { .. } => {
                Ok(Answer::Done)
            }
            Operation::Read => {
                self.remote(target, message, AccessFlags::REMOTE_READ).map_err(|_| Refusal::Lost)
            }
            Operation::FetchAdd(_) | Operation::CompareSwap(..) => {
                let answered = self.qps.get(target).and_then(|qp| qp.answered);
                let word = answered.and_then(|(number, word)| (number == psn).then_some(word));
                word.map(Answer::Word).ok_or(Refusal::Lost)
            }
        }
    }

    /// The oldest receive. One of an SRQ is taken with that.
    fn next_receive(&mut self, target: u32) -> Option<Receive> {
        let qp = self.qps.get_mut(target)?;
        let Some(number) = qp.srq else {
            let ring = qp.receives.as_ref()?;
            return Receive::read(ring, qp.cap.max_recv_sge, false);
        };
        let srq = self.srqs.get_mut(number)?;
        let receive = Receive::read(&srq.ring, srq.max_sge, true)?;
        srq.ring.take(1);
        self.watch_limit(number);
        Some(receive)
    }

    fn perform(
        &mut self,
        target: u32,
        receive: Option<&Receive>,
        message: &Message<'_>,
    ) -> Result<Answer, Fault> {
        match message.operation {
            Operation::Send => {
                let receive = receive.ok_or(MALFORMED)?;
                let before = message.route.as_ref().map_or(0, |route| route.len());
                let needed = before + message.length as usize;
                if message.route.is_some() && receive.length() < needed as u64 {
                    return Err(TOO_LONG);
                }
                let room = self.receive_segments(target, receive, needed)?;
                scatter(message, &room);
                if let Some(rkey) = message.invalidate
                    && !self.invalidate(rkey)
                {
                    return Err(Fault { told: wc_status::SUCCESS, ..INVALID });
                }
                Ok(Answer::Done)
            }
            Operation::Write => {
                if let Answer::Bytes(to) = self.remote(target, message, AccessFlags::REMOTE_WRITE)? {
                    memory::copy(message.payload, &[to]);
                }
                Ok(Answer::Done)
            }
            Operation::Read => self.remote(target, message, AccessFlags::REMOTE_READ),
            Operation::AtomicWrite => {
                let to = self.remote_range(target, message, AccessFlags::REMOTE_WRITE, true).ok_or(ACCESS)?;
                if message.length != 8 {
                    return Err(INVALID);
                }
                let mut value = [0; 8];
                memory::read(message.payload, &mut value);
                to.store(u64::from_ne_bytes(value)).ok_or(INVALID).map(|()| Answer::Done)
            }
            Operation::FetchAdd(add) => {
                let at = self.remote_word(target, message, AccessFlags::REMOTE_ATOMIC)?;
                at.fetch_add(add).map(Answer::Word).ok_or(INVALID)
            }
            Operation::CompareSwap(compare, swap) => {
                let at = self.remote_word(target, message, AccessFlags::REMOTE_ATOMIC)?;
                at.compare_swap(compare, swap).map(Answer::Word).ok_or(INVALID)
            }
            Operation::Flush { placement, level } => {
                let access = flush_access(placement);
                let whole = u32::from(level) == selectivity_level::MR;
                let message = if whole { Message { length: 0, ..*message } } else { *message };
                self.remote_range(target, &message, access, !whole).ok_or(ACCESS)?;
                Ok(Answer::Done)
            }
        }
    }

    /// What a message reads or writes.
    fn remote(&self, target: u32, message: &Message<'_>, access: AccessFlags) -> Result<Answer, Fault> {
        if message.length == 0 {
            // Neither key nor address matters.
            return Ok(Answer::Done);
        }
        self.remote_range(target, message, access, true).map(Answer::Bytes).ok_or(ACCESS)
    }

    fn remote_word(&self, target: u32, message: &Message<'_>, access: AccessFlags) -> Result<Segment, Fault> {
        let message = Message { length: 8, ..*message };
        self.remote_range(target, &message, access, true).ok_or(ACCESS)
    }

    /// Memory by its remote key: a stretch of it, or its beginning if the address does not matter.
    fn remote_range(
        &self,
        target: u32,
        message: &Message<'_>,
        access: AccessFlags,
        addressed: bool,
    ) -> Option<Segment> {
        let qp = self.qps.get(target)?;
        let range = (message.address, u64::from(message.length));
        if is_window(message.rkey) {
            return self.window_segment((target, qp.pd), message.rkey, access, range);
        }
        let region = self.region(qp.pd, message.rkey, access)?;
        region.segment(if addressed { message.address } else { region.iova }, range.1)
    }

    /// The memory of a receive, which has to have room for so many bytes.
    fn receive_segments(&self, target: u32, receive: &Receive, needed: usize) -> Result<Vec<Segment>, Fault> {
        let qp = self.qps.get(target).ok_or(MALFORMED)?;
        let mut segments = Vec::with_capacity(receive.sges.len());
        let mut left = needed;
        for sge in &receive.sges {
            let length = left.min(sge.length as usize);
            if length > 0 {
                let region = self.region(qp.pd, sge.lkey, AccessFlags::LOCAL_WRITE).ok_or(MALFORMED)?;
                segments.push(region.segment(sge.addr, length as u64).ok_or(MALFORMED)?);
            }
            left -= length;
        }
        if left == 0 && receive.well_formed { Ok(segments) } else { Err(MALFORMED) }
    }

    fn count_remote(&mut self, target: u32, message: &Message<'_>) {
        match message.operation {
            Operation::Write => self.count(target, Ops::REMOTE_RDMA_WRITE, wc_status::SUCCESS),
            Operation::Read => self.count(target, Ops::REMOTE_RDMA_READ, wc_status::SUCCESS),
            _ => {}
        }
    }

    /// Tells of a message that has arrived.
    fn complete_receive(
        &mut self,
        target: u32,
        receive: &Receive,
        message: &Message<'_>,
    ) -> Result<(), Refusal> {
        let Some(qp) = self.qps.get(target) else { return Err(Refusal::Lost) };
        let mut flags = WcFlags::GRH;
        let mut ex = 0;
        if let Some(immediate) = message.immediate {
            (ex, flags) = (immediate, flags | WcFlags::WITH_IMM);
        }
        if let Some(rkey) = message.invalidate {
            (ex, flags) = (rkey, flags | WcFlags::WITH_INVALIDATE);
        }
        let wrote = message.operation == Operation::Write;
        let completion = Wc {
            wr_id: receive.wr_id,
            opcode: if wrote { wc_opcode::RECV_RDMA_WITH_IMM } else { wc_opcode::RECV },
            byte_len: message.length + message.route.map_or(0, |route| route.len() as u32),
            ex,
            qp_num: target,
            src_qp: if message.route.is_some() { message.from } else { 0 },
            wc_flags: flags.bits(),
            port_num: qp.attr.port_num,
            ..Default::default()
        };
        self.count(target, Ops::RECV, wc_status::SUCCESS);
        let recv_cq = qp_recv_cq(self, target);
        self.take_receive(target, receive.shared);
        if self.complete(recv_cq, completion, message.solicited) {
            return Ok(());
        }
        // It was received, but nobody will hear of it.
        self.break_qp(target);
        Err(Refusal::Lost)
    }

    fn take_receive(&mut self, target: u32, shared: bool) {
        let ring = self.qps.get_mut(target).and_then(|qp| qp.receives.as_mut());
        if let Some(ring) = ring.filter(|_| !shared) {
            ring.take(1);
        }
    }

    /// A receive ends without a message. Says whether there was room to tell.
    fn end_receive(&mut self, target: u32, receive: &Receive, status: u32) -> bool {
        self.count(target, Ops::RECV, status);
        let recv_cq = qp_recv_cq(self, target);
        self.take_receive(target, receive.shared);
        let completion = Wc { wr_id: receive.wr_id, status, qp_num: target, ..Default::default() };
        self.complete(recv_cq, completion, false)
    }

    /// Completes all receives of a QP in error. Those of an SRQ are others' too.
    pub(crate) fn flush_receives(&mut self, target: u32) {
        let ring = |state: &Self| state.qps.get(target)?.receives.as_ref().map(|ring| ring.count());
        // Not those that the user goes on to post: there may be no end to them.
        for _ in 0..ring(self).unwrap_or(0) {
            let ring = self.qps.get(target).and_then(|qp| qp.receives.as_ref());
            let Some(receive) = ring.and_then(|ring| Receive::read(ring, 0, false)) else { return };
            if !self.end_receive(target, &receive, wc_status::WR_FLUSH_ERR) {
                // Where there is no room for one there is none for the others.
                let ring = self.qps.get_mut(target).and_then(|qp| qp.receives.as_mut());
                ring.into_iter().for_each(Ring::drain);
            }
        }
    }

    /// A message has been wrong, and breaks the QP that it came to.
    fn refuse(&mut self, target: u32, receive: Option<&Receive>, fault: &Fault) -> Result<Answer, Refusal> {
        if let Some(receive) = receive {
            self.end_receive(target, receive, fault.receive);
        }
        self.break_qp(target);
        if fault.access {
            self.tell_of_qp(target, event_type::QP_ACCESS_ERR);
        }
        if fault.told == wc_status::SUCCESS { Ok(Answer::Done) } else { Err(Refusal::Wrong(fault.told)) }
    }
}

fn qp_recv_cq(state: &State, number: u32) -> u32 {
    state.qps.get(number).map_or(0, |qp| qp.recv_cq)
}

fn scatter(message: &Message<'_>, room: &[Segment]) {
    match &message.route {
        None => memory::copy(message.payload, room),
        Some(route) => {
            // SAFETY: a source is only read, and the header lives until the copy is done.
            let header = unsafe { Segment::new(route.as_ptr().expose_provenance() as u64, route.len()) };
            memory::copy(&[&[header], message.payload].concat(), room);
        }
    }
}

/// What a flush needs at the QP and at the region.
fn flush_access(placement: u8) -> AccessFlags {
    let placement = PlacementType::from_bits_retain(placement.into());
    let mut access = AccessFlags::empty();
    access.set(AccessFlags::FLUSH_GLOBAL, placement.contains(PlacementType::GLOBAL));
    access.set(AccessFlags::FLUSH_PERSISTENT, placement.contains(PlacementType::PERSISTENT));
    access
}

/// Whether a QP lets its peer do that at all.
fn allowed(qp: &crate::qp::Qp, message: &Message<'_>) -> Result<(), Fault> {
    let needed = match message.operation {
        Operation::Send => AccessFlags::empty(),
        Operation::Write | Operation::AtomicWrite => AccessFlags::REMOTE_WRITE,
        Operation::Read => AccessFlags::REMOTE_READ,
        Operation::FetchAdd(_) | Operation::CompareSwap(..) => AccessFlags::REMOTE_ATOMIC,
        Operation::Flush { placement, .. } => flush_access(placement),
    };
    let answered = matches!(
        message.operation,
        Operation::Read | Operation::FetchAdd(_) | Operation::CompareSwap(..) | Operation::AtomicWrite
    );
    // Packets but the last have the length that the sender takes for the path's, and the receiver has to agree.
    let cut = matches!(message.operation, Operation::Send | Operation::Write);
    let agrees = !cut || message.length <= message.mtu.min(qp.mtu()) || message.mtu == qp.mtu();
    let datagram = message.route.is_some();
    if qp.access().contains(needed) && (agrees || datagram) && !(answered && qp.attr.max_dest_rd_atomic == 0)
    {
        Ok(())
    } else {
        Err(INVALID)
    }
}

/// A receive as it was posted.
#[derive(Debug)]
struct Receive {
    wr_id: u64,
    sges: Vec<uverbs_uapi::rxe::Sge>,
    /// It has no more SGEs than it may have.
    well_formed: bool,
    /// It is an SRQ's.
    shared: bool,
}

impl Receive {
    fn length(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }

    fn read(ring: &crate::ring::Ring, max_sge: u32, shared: bool) -> Option<Self> {
        let wqe = ring.front::<RecvWqe>()?;
        let count = wqe.dma.num_sge.min(max_sge) as usize;
        let sges = (0..count).map_while(|index| ring.sge(size_of::<RecvWqe>(), index)).collect();
        Some(Self { wr_id: wqe.wr_id, sges, well_formed: wqe.dma.num_sge <= max_sge, shared })
    }
}
