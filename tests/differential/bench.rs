//! Two QPs of one device that are connected to each other, with their rings, and what work has come to.

use std::cell::RefCell;
use std::fmt::{self, Write};
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use uverbs_ioctl::uapi::ioctl_verbs::{AccessFlags, QpCap, QpCreateFlags, qp_type};
use uverbs_ioctl::uapi::rxe::{
    CreateAhResp, CreateCqResp, CreateQpResp, CreateSrqResp, DmaInfo, MmapInfo, QueueBuf, RecvWqe, SendWqe,
    Sge,
};
use uverbs_ioctl::uapi::user_verbs::{
    AllocMw, AllocPd, AsyncEventDesc, AttachMcast, CreateAh, ModifyQp, ModifySrq, QueryQp, QueryQpResp,
    RegMr, Wc,
};
use uverbs_ioctl::uapi::values::{SendFlags, WcFlags, event_type, qp_state, wc_status};
use uverbs_ioctl::{Doorbell, MmapRaw, Transport, calls, events};
use zerocopy::{FromBytes, IntoBytes};

use super::Accepted;
use super::commands::ah_attr;
use super::queue_pairs::to_state;
use super::written::{GID, GROUP};
use crate::common::DEADLINE;

/// Where the memory is for work, whatever its address in the process.
pub(super) const BASE: u64 = 0x1_0000;
/// Bytes of it. The first half may be written, the second half only be read.
pub(super) const SIZE: usize = 32768;
pub(super) const HALF: u64 = SIZE as u64 / 2;

/// How the QPs are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) kind: u32,
    /// What each lets the other do.
    pub(super) access: AccessFlags,
    /// Receives come from an SRQ with that limit.
    pub(super) srq: Option<u32>,
    /// Entries of the CQs.
    pub(super) cqe: u32,
    pub(super) signal_all: bool,
    pub(super) rnr_retry: u8,
    pub(super) reads: u8,
    pub(super) answered_reads: u8,
    pub(super) mtu: u8,
    /// The first is connected to nobody.
    pub(super) alone: bool,
}

impl Default for Setup {
    fn default() -> Self {
        let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        Self {
            kind: qp_type::RC,
            access: access | AccessFlags::FLUSH_GLOBAL,
            srq: None,
            cqe: 31,
            signal_all: false,
            rnr_retry: 1,
            reads: 4,
            answered_reads: 4,
            mtu: 3,
            alone: false,
        }
    }
}

/// A ring as it is mapped.
struct Queue(MmapRaw);

impl Queue {
    fn new(transport: &dyn Transport, place: &MmapInfo) -> Self {
        Self(transport.map(place.offset, place.size as usize).unwrap())
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= size_of::<QueueBuf>());
        // SAFETY: a ring begins with such a header, whose words both sides access as atomics alone.
        unsafe { AtomicU32::from_ptr(self.0.as_mut_ptr().add(offset).cast()) }
    }

    fn read(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    fn producer(&self) -> u32 {
        self.read(offset_of!(QueueBuf, producer_index))
    }

    fn consumer(&self) -> u32 {
        self.read(offset_of!(QueueBuf, consumer_index))
    }

    fn is_empty(&self) -> bool {
        self.producer() == self.consumer()
    }

    /// A slot's place, and its size.
    fn slot(&self, index: u32) -> (*mut u8, usize) {
        let size = 1 << self.read(offset_of!(QueueBuf, log2_elem_size));
        let offset =
            size_of::<QueueBuf>() + (index & self.read(offset_of!(QueueBuf, index_mask))) as usize * size;
        assert!(offset + size <= self.0.len());
        // SAFETY: it is in the mapping (checked).
        (unsafe { self.0.as_mut_ptr().add(offset) }, size)
    }

    /// What has been written so far, if nobody reads.
    fn filled(&self) -> impl Iterator<Item = Vec<u8>> {
        (0..self.producer()).map(|place| self.bytes(place))
    }

    fn bytes(&self, index: u32) -> Vec<u8> {
        let (start, size) = self.slot(index);
        // SAFETY: the device has written the slot, and no longer does.
        unsafe { std::slice::from_raw_parts(start, size) }.to_vec()
    }

    fn post(&self, parts: &[&[u8]]) {
        let index = self.producer();
        let (start, size) = self.slot(index);
        let bytes = parts.concat();
        assert!(bytes.len() <= size, "{} bytes for a slot of {size}", bytes.len());
        // SAFETY: the slot is ours until the index says otherwise.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let next = (index + 1) & self.read(offset_of!(QueueBuf, index_mask));
        self.word(offset_of!(QueueBuf, producer_index)).store(next, Ordering::Release);
    }

    fn header(&self) -> [u32; 4] {
        [offset_of!(QueueBuf, log2_elem_size), offset_of!(QueueBuf, index_mask)]
            .map(|offset| self.read(offset))
            .into_iter()
            .chain([self.producer(), self.consumer()])
            .collect::<Vec<_>>()
            .try_into()
            .unwrap()
    }
}

pub(super) struct Qp {
    pub(super) handle: u32,
    pub(super) number: u32,
    sends: Queue,
    receives: Option<Queue>,
    /// Requests whose completions are told whatever becomes of them.
    signaled: u32,
    /// That of requests, and that of receives: in one, their completions would come in any order.
    cqs: [Cq; 2],
}

struct Cq {
    handle: u32,
    completions: Queue,
    events: OwnedFd,
}

impl Cq {
    fn any_is(&self, matches: impl Fn(u32) -> bool) -> bool {
        let status = |bytes: Vec<u8>| Wc::read_from_prefix(&bytes).unwrap().0.status;
        self.completions.filled().any(|bytes| matches(status(bytes)))
    }

    /// Whether so many completions are there, or as many as there is room for.
    fn has(&self, count: u32) -> bool {
        let room = self.completions.read(offset_of!(QueueBuf, index_mask));
        self.completions.producer() >= count.min(room)
    }
}

/// Which CQ of a QP.
pub(super) const SENDS: usize = 0;
pub(super) const RECEIVES: usize = 1;

/// Which of the devices it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Kernel,
    Inside,
}

pub(super) struct Bench<'a> {
    /// What it is for.
    name: &'a str,
    transport: &'a dyn Transport,
    side: Side,
    setup: Setup,
    pd: u32,
    pub(super) qps: Vec<Qp>,
    srq: Option<(u32, Queue)>,
    memory: memmap2::MmapMut,
    /// Keys of the memory that may be written, and of what may only be read.
    pub(super) writable: u32,
    pub(super) readable: u32,
    mrs: Vec<u32>,
    pub(super) ah: u32,
    mws: Vec<u32>,
    events: OwnedFd,
    /// Whether a message of more than one packet has failed.
    in_packets: bool,
    /// Asynchronous events that have been read.
    told: RefCell<Vec<AsyncEventDesc>>,
    /// What has been seen so far, but for completions.
    seen: String,
}

/// A request, before keys and numbers are known.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) opcode: u32,
    pub(super) flags: u32,
    /// Immediate data or a key.
    pub(super) ex: u32,
    /// What goes with the operation.
    pub(super) part: &'a [u8],
    pub(super) sges: &'a [Sge],
    pub(super) inline: &'a [u8],
    /// Said instead of what is so: bytes of payload, and SGEs.
    pub(super) length: Option<u32>,
    pub(super) num_sge: Option<u32>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(side: Side, transport: &'a dyn Transport, setup: &Setup, name: &'a str) -> Self {
        calls::get_context(transport, &(), &mut ()).unwrap();
        let events = calls::alloc_async_event(transport).unwrap();
        events::set_nonblocking(&events).unwrap();
        let pd = calls::invoke(transport, &AllocPd::default()).unwrap().pd_handle;
        let mut memory = memmap2::MmapMut::map_anon(SIZE).unwrap();
        memory.iter_mut().enumerate().for_each(|(place, byte)| *byte = (place * 7 + place / 256) as u8);
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        let all = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_ATOMIC
            | AccessFlags::MW_BIND
            | AccessFlags::FLUSH_GLOBAL;
        let mut mrs = Vec::new();
        let [writable, readable] = [(0, all), (HALF, AccessFlags::REMOTE_READ)].map(|(offset, access)| {
            let request = RegMr {
                start: start + offset,
                length: HALF,
                hca_va: BASE + offset,
                pd_handle: pd,
                access_flags: access.bits(),
                ..Default::default()
            };
            // SAFETY: the memory is there until the region has been destroyed, and is looked at only when nothing is under way.
            let made = unsafe { calls::reg_mr(transport, &request) }.unwrap();
            mrs.push(made.mr_handle);
            made.lkey
        });
        let srq = setup.srq.map(|limit| create_srq(transport, pd, limit));
        let qps =
            (0..2).map(|_| create_qp(transport, pd, srq.as_ref().map(|(srq, _)| *srq), setup)).collect();
        let mut answer = CreateAhResp::default();
        let request = CreateAh { pd_handle: pd, attr: ah_attr(GID, 1), ..Default::default() };
        calls::invoke_for_driver(transport, &request, &mut answer).unwrap();
        let (ah, mws, told, seen) = (answer.ah_num, Vec::new(), RefCell::default(), String::new());
        let bench = Self {
            name,
            transport,
            side,
            setup: *setup,
            pd,
            qps,
            srq,
            memory,
            writable,
            readable,
            mrs,
            ah,
            mws,
            events,
            in_packets: false,
            told,
            seen,
        };
        for index in 0..2 {
            bench.connect(index);
        }
        bench
    }

    fn connect(&self, index: usize) {
        let setup = &self.setup;
        let qp = self.qps[index].handle;
        let nobody = index == 0 && setup.alone;
        for state in [qp_state::INIT, qp_state::RTR, qp_state::RTS] {
            let request = ModifyQp {
                dest_qp_num: if nobody { 0xff_fff0 } else { self.qps[1 - index].number },
                qp_access_flags: setup.access.bits(),
                rnr_retry: setup.rnr_retry,
                max_rd_atomic: setup.reads,
                max_dest_rd_atomic: setup.answered_reads,
                path_mtu: setup.mtu,
                timeout: if setup.alone { 8 } else { 17 },
                retry_cnt: 1,
                // Ten milliseconds.
                min_rnr_timer: 20,
                rq_psn: 0xff_fffe,
                sq_psn: 0xff_fffe,
                ..to_state(qp, setup.kind, state)
            };
            calls::invoke(self.transport, &request).unwrap();
        }
    }

    pub(super) fn modify(&mut self, index: usize, state: u32) {
        let request = to_state(self.qps[index].handle, self.setup.kind, state);
        let result = calls::invoke(self.transport, &request);
        self.note(format_args!("to {state}: {result:?}"));
    }

    pub(super) fn join_group(&self, index: usize) {
        let request = AttachMcast { gid: GROUP, qp_handle: self.qps[index].handle, ..Default::default() };
        calls::invoke(self.transport, &request).unwrap();
    }

    /// An address handle of the group.
    pub(super) fn group_ah(&self) -> u32 {
        let mut answer = CreateAhResp::default();
        let request = CreateAh { pd_handle: self.pd, attr: ah_attr(GROUP, 1), ..Default::default() };
        calls::invoke_for_driver(self.transport, &request, &mut answer).unwrap();
        answer.ah_num
    }

    /// A window that is not bound: its key.
    pub(super) fn window(&mut self, mw_type: u32) -> u32 {
        let request = AllocMw { pd_handle: self.pd, mw_type: mw_type as u8, ..Default::default() };
        let made = calls::invoke(self.transport, &request).unwrap();
        self.mws.push(made.mw_handle);
        made.rkey
    }

    /// SGE of the memory that may be written.
    pub(super) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: self.writable }
    }

    /// Posts a request, without telling the device.
    pub(super) fn post(&mut self, index: usize, wr_id: u64, request: &Request<'_>) {
        let sum = request.sges.iter().fold(0, |sum, sge| sge.length.wrapping_add(sum));
        let length = request.length.unwrap_or(sum + request.inline.len() as u32);
        let num_sge = request.num_sge.unwrap_or(request.sges.len() as u32);
        let mut wqe = SendWqe {
            dma: DmaInfo { length, resid: length, num_sge, ..Default::default() },
            ..Default::default()
        };
        (wqe.wr.wr_id, wqe.wr.opcode) = (wr_id, request.opcode);
        (wqe.wr.send_flags, wqe.wr.ex) = (request.flags, request.ex);
        wqe.wr.wr.as_mut_bytes()[..request.part.len()].copy_from_slice(request.part);
        // Reads, writes and atomics have the address here as well.
        wqe.iova = u64::read_from_prefix(request.part).map_or(0, |(address, _)| address);
        self.qps[index].sends.post(&[wqe.as_bytes(), request.inline, request.sges.as_bytes()]);
        let signaled = self.setup.signal_all || request.flags & SendFlags::SIGNALED.bits() != 0;
        self.qps[index].signaled += u32::from(signaled);
    }

    /// Tells the device of requests.
    pub(super) fn ring(&mut self, index: usize) {
        let result = self.transport.doorbell(Doorbell::Send { qp: self.qps[index].handle });
        self.note(format_args!("doorbell {index}: {result:?}"));
    }

    /// Posts one request, and waits until nothing is under way any more.
    pub(super) fn run(&mut self, index: usize, wr_id: u64, request: &Request<'_>) {
        self.post(index, wr_id, request);
        self.ring(index);
        self.settle();
    }

    pub(super) fn receive(&self, index: usize, wr_id: u64, sges: &[Sge]) {
        let length = sges.iter().map(|sge| sge.length).sum();
        let dma = DmaInfo { length, resid: length, num_sge: sges.len() as u32, ..Default::default() };
        let wqe = RecvWqe { wr_id, dma, ..Default::default() };
        let queue = self.qps[index].receives.as_ref().or(self.srq.as_ref().map(|(_, queue)| queue)).unwrap();
        queue.post(&[wqe.as_bytes(), sges.as_bytes()]);
    }

    pub(super) fn arm(&self, index: usize, of: usize, solicited_only: bool) {
        let cq = self.qps[index].cqs[of].handle;
        self.transport.doorbell(Doorbell::Arm { cq, solicited_only }).unwrap();
    }

    /// Waits until a QP that is to drain has drained.
    pub(super) fn drained(&self, index: usize) {
        self.wait(|| self.query(index).sq_draining == 0);
    }

    /// A word of the memory.
    pub(super) fn word(&self, offset: usize) -> u64 {
        u64::read_from_prefix(&self.memory[offset..]).map_or(0, |(word, _)| word)
    }

    /// Clears some bytes of the memory that are not to be compared.
    pub(super) fn forget(&mut self, range: Range<usize>, why: Accepted) {
        if why.passes() {
            self.memory[range].fill(0);
        }
    }

    pub(super) fn forget_memory(&mut self) {
        self.forget(0..SIZE, Accepted::Packets);
    }

    /// Does not compare numbers of packets: a message of more than one has failed.
    pub(super) fn forget_numbers(&mut self) {
        self.in_packets = true;
    }

    pub(super) fn forget_header(&mut self, offset: usize) {
        for own in [0..20, 24..26, 30..32] {
            self.forget(offset + own.start..offset + own.end, Accepted::Header);
        }
    }

    fn query(&self, index: usize) -> QueryQpResp {
        let request =
            QueryQp { qp_handle: self.qps[index].handle, attr_mask: u32::MAX, ..Default::default() };
        calls::invoke(self.transport, &request).unwrap()
    }

    pub(super) fn is_broken(&self, index: usize) -> bool {
        u32::from(self.query(index).qp_state) == qp_state::ERR
    }

    /// Waits until that many receives of a QP have been completed.
    pub(super) fn wait_for(&self, index: usize, count: u32) {
        self.wait(|| self.qps[index].cqs[RECEIVES].completions.producer() >= count);
    }

    /// Waits until all requests have ended, and receives too of what is broken, and nothing comes any more.
    pub(super) fn settle(&self) {
        let written = || -> Vec<u32> { self.cqs().map(|cq| cq.completions.producer()).collect() };
        self.wait(|| {
            let before = written();
            self.has_ended(0) && self.has_ended(1) && {
                std::thread::sleep(Duration::from_millis(2));
                before == written()
            }
        });
    }

    /// Whether the requests of a QP have ended, and all has come of it that comes if it breaks. The driver takes a request from the ring
    /// before it completes it, and breaks a QP after it has completed what failed, and told the peer of what it refuses.
    fn has_ended(&self, index: usize) -> bool {
        let [qp, peer] = [&self.qps[index], &self.qps[1 - index]];
        let failed = qp.cqs.iter().any(|cq| cq.any_is(|status| status != wc_status::SUCCESS));
        let refused = [wc_status::REM_INV_REQ_ERR, wc_status::REM_ACCESS_ERR, wc_status::REM_OP_ERR];
        let breaks = failed || peer.cqs[SENDS].any_is(|status| refused.contains(&status));
        let flushed = || match &qp.receives {
            Some(receives) => receives.is_empty(),
            None => self.last_wqes() >= (0..2).filter(|index| self.is_broken(*index)).count(),
        };
        let broken = self.is_broken(index);
        qp.sends.is_empty() && qp.cqs[SENDS].has(qp.signaled) && if broken { flushed() } else { !breaks }
    }

    /// How often it has been told that a QP takes no more from the SRQ.
    fn last_wqes(&self) -> usize {
        self.read_events();
        let last = |event: &&AsyncEventDesc| event.event_type == event_type::QP_LAST_WQE_REACHED;
        self.told.borrow().iter().filter(last).count()
    }

    fn read_events(&self) {
        self.told.borrow_mut().extend(std::iter::from_fn(|| events::read_async_event(&self.events).ok()));
    }

    fn cqs(&self) -> impl Iterator<Item = &Cq> {
        self.qps.iter().flat_map(|qp| &qp.cqs)
    }

    fn wait(&self, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !condition() {
            assert!(Instant::now() < deadline, "{}: not within {DEADLINE:?}: {}", self.name, self.rings());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    pub(super) fn note(&mut self, what: fmt::Arguments<'_>) {
        let _ = writeln!(self.seen, "{what}");
    }

    fn rings(&self) -> String {
        let mut text = String::new();
        for (index, qp) in self.qps.iter().enumerate() {
            let receives = qp.receives.as_ref().map(Queue::header);
            let _ = writeln!(
                text,
                "rings {index} (slot, mask, producer, consumer): {:?} {receives:?}",
                qp.sends.header()
            );
        }
        for (index, cq) in self.cqs().enumerate() {
            let _ = writeln!(text, "ring of completions {index}: {:?}", cq.completions.header());
        }
        if let Some((_, queue)) = &self.srq {
            let _ = writeln!(text, "shared ring: {:?}", queue.header());
        }
        text
    }

    /// QPs by their place, not by their number.
    fn renamed(&self, number: u32) -> u32 {
        let place = self.qps.iter().position(|qp| qp.number == number);
        place.map_or(number, |place| 0xaaaa_0000 + place as u32)
    }

    /// All that there is to compare.
    pub(super) fn outcome(mut self) -> String {
        let mut text = self.rings();
        for (index, cq) in self.cqs().enumerate() {
            let mut failed = false;
            for (place, bytes) in cq.completions.filled().enumerate() {
                let (completion, rest) = Wc::read_from_prefix(&bytes).unwrap();
                let mut completion = completion;
                completion.qp_num = self.renamed(completion.qp_num);
                completion.src_qp = self.renamed(completion.src_qp);
                if WcFlags::from_bits_retain(completion.wc_flags).contains(WcFlags::WITH_INVALIDATE) {
                    // A key: whether it is right shows where it is used.
                    completion.ex = 0;
                }
                let first = completion.status != wc_status::SUCCESS && !std::mem::replace(&mut failed, true);
                if first && self.side == Side::Inside && index % 2 == SENDS && Accepted::Unsent.passes() {
                    let unsent = [wc_status::LOC_QP_OP_ERR, wc_status::MW_BIND_ERR];
                    if unsent.contains(&completion.status) {
                        completion.status = wc_status::WR_FLUSH_ERR;
                    }
                }
                let _ = writeln!(text, "completion {place} of {index}: {completion:?} {:x?}", trimmed(rest));
            }
            while let Ok(event) = events::read_completion_event(&cq.events) {
                let _ = writeln!(text, "event of completions {index}: {event:#x}");
            }
        }
        for index in 0..2 {
            let QueryQpResp { qp_state, sq_draining, mut rq_psn, mut sq_psn, .. } = self.query(index);
            if self.in_packets && Accepted::Packets.passes() {
                (rq_psn, sq_psn) = (0, 0);
            }
            let in_vain = [wc_status::RETRY_EXC_ERR, wc_status::RNR_RETRY_EXC_ERR];
            if self.qps[index].cqs[SENDS].any_is(|status| in_vain.contains(&status))
                && Accepted::Retried.passes()
            {
                sq_psn = 0;
            }
            let _ = writeln!(text, "state of {index}: {qp_state} {sq_draining} {rq_psn:#x} {sq_psn:#x}");
        }
        self.read_events();
        for event in self.told.borrow().iter() {
            let _ = writeln!(text, "event: {event:?}");
        }
        for (place, bytes) in self.memory.chunks(32).enumerate() {
            let _ = writeln!(text, "memory at {:#x}: {bytes:x?}", place * 32);
        }
        self.note(format_args!("{text}"));
        self.tear_down();
        self.seen.clone()
    }

    /// Windows go first: a QP with one that is bound takes the kernel 50 seconds to destroy.
    fn tear_down(&mut self) {
        for mw in std::mem::take(&mut self.mws) {
            calls::destroy_mw(self.transport, mw).unwrap();
        }
        let mut reported = Vec::new();
        for qp in std::mem::take(&mut self.qps) {
            let events = calls::destroy_qp(self.transport, qp.handle).map(|answer| answer.events_reported);
            let of_cqs = qp.cqs.map(|cq| calls::destroy_cq(self.transport, cq.handle));
            reported.push(format!("{events:?} {of_cqs:?}"));
        }
        if let Some((srq, _)) = self.srq.take() {
            reported.push(format!("{:?}", calls::destroy_srq(self.transport, srq)));
        }
        for mr in std::mem::take(&mut self.mrs) {
            calls::destroy_mr(self.transport, mr).unwrap();
        }
        self.note(format_args!("events reported: {reported:?}"));
    }
}

/// Memory that the device may reach is not given back before the device has let go of it.
impl Drop for Bench<'_> {
    fn drop(&mut self) {
        if !self.mrs.is_empty() {
            let memory = std::mem::replace(&mut self.memory, memmap2::MmapMut::map_anon(1).unwrap());
            std::mem::forget(memory);
        }
    }
}

fn create_srq(transport: &dyn Transport, pd: u32, limit: u32) -> (u32, Queue) {
    let request = calls::SrqRequest { pd, user_handle: 0x50, max_wr: 7, max_sge: 2 };
    let mut answer = CreateSrqResp::default();
    let made = calls::create_srq(transport, &request, &(), &mut answer).unwrap();
    let change = ModifySrq { srq_handle: made.handle, attr_mask: 2, max_wr: 0, srq_limit: limit };
    // SAFETY: the capacity stays, so that the driver has nothing to write to the address, which is none.
    unsafe { calls::modify_srq(transport, &change, &0_u64) }.unwrap();
    (made.handle, Queue::new(transport, &answer.mi))
}

fn create_qp(transport: &dyn Transport, pd: u32, srq: Option<u32>, setup: &Setup) -> Qp {
    let cqs = [0x30, 0x31].map(|user_handle| {
        let events = calls::create_comp_channel(transport).unwrap();
        events::set_nonblocking(&events).unwrap();
        let channel = Some(events.as_fd());
        let request = calls::CqRequest { cqe: setup.cqe, user_handle, comp_vector: 0, channel };
        let mut answer = CreateCqResp::default();
        let (handle, _) = calls::create_cq(transport, &request, &(), &mut answer).unwrap();
        Cq { handle, completions: Queue::new(transport, &answer.mi), events }
    });
    let cap =
        QpCap { max_send_wr: 15, max_recv_wr: 15, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
    let flags = if setup.signal_all { QpCreateFlags::SQ_SIG_ALL.bits() } else { 0 };
    let request = calls::QpRequest {
        pd,
        send_cq: cqs[SENDS].handle,
        recv_cq: cqs[RECEIVES].handle,
        srq,
        qp_type: setup.kind,
        flags,
        user_handle: 0x40,
        cap,
    };
    let mut answer = CreateQpResp::default();
    let made = calls::create_qp(transport, &request, &(), &mut answer).unwrap();
    Qp {
        handle: made.handle,
        number: made.qp_num,
        sends: Queue::new(transport, &answer.sq_mi),
        receives: srq.is_none().then(|| Queue::new(transport, &answer.rq_mi)),
        signaled: 0,
        cqs,
    }
}

/// Bytes but for zeros at the end.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &bytes[..end]
}
