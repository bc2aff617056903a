//! The sending side: takes requests from send queues and executes them, one after the other.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_verbs::{AccessFlags, qp_type};
use uverbs_uapi::rxe::{SendWqe, SendWr, SendWrAtomic, SendWrFlush, SendWrMw, SendWrRdma, SendWrUd};
use uverbs_uapi::user_verbs::{Wc, wc_opcode, wr_opcode};
use uverbs_uapi::values::{MULTICAST_QPN, SendFlags, WcFlags, qp_state, wc_status};

use crate::device::Place;
use crate::memory::{self, Segment};
use crate::multicast::is_v4;
use crate::qp::{Qp, Wait};
use crate::responder::{Answer, Message, Operation, PSN, Refusal};
use crate::ring::Ring;
use crate::wire::State;

const HEADER: usize = size_of::<SendWqe>();
/// A number of retries without end. The driver takes it so for both kinds.
const FOR_EVER: u8 = 7;

/// A datagram that waits to be overtaken, with a payload of its own.
#[derive(Debug)]
pub(crate) struct Held {
    place: Place,
    ud: SendWrUd,
    message: Message<'static>,
    payload: Vec<u8>,
}

impl Held {
    fn new(place: Place, ud: &SendWrUd, message: &Message<'_>) -> Self {
        let mut payload = vec![0; message.length as usize];
        memory::read(message.payload, &mut payload);
        Self { place, ud: *ud, message: Message { payload: &[], ..*message }, payload }
    }
}

/// How a request ended.
enum End {
    Done,
    Failed(u32),
    /// The peer has no receive, and asks to be left alone for a time of that code.
    NotReady(u8),
    Unanswered,
    /// It cannot start, and nothing will change that.
    Stuck,
}

impl State {
    /// There may be new requests in a send queue.
    pub(crate) fn ring_send(&mut self, number: u32) -> Result<()> {
        let qp = self.qps.get(number).ok_or(Errno::ENOENT)?;
        if qp.state < qp_state::RTS {
            return Err(Errno::EINVAL);
        }
        if qp.state == qp_state::ERR {
            // Receives that came late are seen to as well.
            self.flush_receives(number);
        }
        self.run(number);
        Ok(())
    }

    /// Executes the requests that there are, until one has to wait.
    pub(crate) fn run(&mut self, number: u32) {
        for _ in 0..self.posted(number) {
            let Some(qp) = self.qps.get_mut(number) else { return };
            match qp.state {
                qp_state::RTS => {}
                qp_state::SQD if qp.wait.is_some() => {}
                qp_state::ERR => return self.flush_sends(number),
                _ => return,
            }
            if let Some(Wait { until, unanswered }) = qp.wait {
                let left = if unanswered { &mut qp.retries } else { &mut qp.rnr_retries };
                if until.is_none_or(|until| until > Instant::now()) {
                    return;
                }
                match *left {
                    0 if unanswered => return self.fail(number, wc_status::RETRY_EXC_ERR),
                    FOR_EVER => {}
                    _ if unanswered => *left -= 1,
                    _ => {}
                }
            }
            let Some(wqe) = qp.sends.front::<SendWqe>() else { return };
            let first = qp.wait.is_none() && !qp.delayed;
            if first && let Some(time) = self.devices[qp.device].faults.delays() {
                qp.delayed = true;
                return self.wait(number, Some(time), false);
            }
            let end = self.execute(number, &wqe);
            // Who has broken itself by what it has sent to itself has had its requests flushed, this one among them.
            if self.qps.get(number).is_none_or(|qp| qp.state == qp_state::ERR) {
                return;
            }
            match end {
                End::Done => {
                    self.finish(number, &wqe, wc_status::SUCCESS);
                }
                End::Failed(status) => return self.fail(number, status),
                End::Stuck => return,
                End::Unanswered => return self.wait_for_answer(number),
                End::NotReady(timer) => {
                    let Some(qp) = self.qps.get_mut(number) else { return };
                    match &mut qp.rnr_retries {
                        0 => return self.fail(number, wc_status::RNR_RETRY_EXC_ERR),
                        &mut FOR_EVER => {}
                        left => *left -= 1,
                    }
                    return self.wait(number, Some(rnr_time(timer)), false);
                }
            }
        }
    }

    fn wait_for_answer(&mut self, number: u32) {
        let timeout = self.qps.get(number).map_or(0, |qp| qp.attr.timeout);
        let time = (timeout > 0).then(|| Duration::from_nanos(4096 << timeout));
        self.wait(number, time, true);
    }

    fn wait(&mut self, number: u32, time: Option<Duration>, unanswered: bool) {
        let until = time.map(|time| Instant::now() + time);
        self.stop_waiting(number);
        if let Some(qp) = self.qps.get_mut(number) {
            qp.wait = Some(Wait { until, unanswered });
        }
        self.timers.extend(until.map(|until| (until, number)));
    }

    /// The request at the head waits no longer.
    pub(crate) fn stop_waiting(&mut self, number: u32) {
        let wait = self.qps.get_mut(number).and_then(|qp| qp.wait.take());
        if let Some(until) = wait.and_then(|wait| wait.until) {
            self.timers.remove(&(until, number));
        }
    }

    /// The request at the head has come to its end. Says whether there was room to tell, if that was wanted.
    fn finish(&mut self, number: u32, wqe: &SendWqe, status: u32) -> bool {
        self.count_request(number, wqe.wr.opcode, status);
        self.stop_waiting(number);
        let Some(qp) = self.qps.get_mut(number) else { return true };
        let flags = SendFlags::from_bits_retain(wqe.wr.send_flags);
        let tells = qp.signal_all || flags.contains(SendFlags::SIGNALED) || status != wc_status::SUCCESS;
        qp.sends.take(1);
        qp.refresh_retries();
        let send_cq = qp.send_cq;
        let told = !tells || self.complete(send_cq, completion(number, wqe, status), false);
        self.drained(number);
        told
    }

    /// The request at the head has failed, and its QP with it.
    fn fail(&mut self, number: u32, status: u32) {
        if let Some(wqe) = self.qps.get(number).and_then(|qp| qp.sends.front::<SendWqe>()) {
            self.finish(number, &wqe, status);
        }
        self.break_qp(number);
    }

    /// Completes all requests of a QP in error.
    pub(crate) fn flush_sends(&mut self, number: u32) {
        for _ in 0..self.posted(number) {
            let Some(wqe) = self.qps.get(number).and_then(|qp| qp.sends.front::<SendWqe>()) else { return };
            if !self.finish(number, &wqe, wc_status::WR_FLUSH_ERR) {
                // Where there is no room for one there is none for the others.
                let ring = self.qps.get_mut(number).map(|qp| &mut qp.sends);
                ring.into_iter().for_each(Ring::drain);
            }
        }
    }

    /// Requests in a send queue. Who executes or flushes them does not go on with those that the user posts meanwhile: there may be no end
    /// to them, and a doorbell comes for them.
    fn posted(&self, number: u32) -> u32 {
        self.qps.get(number).map_or(0, |qp| qp.sends.count())
    }

    fn execute(&mut self, number: u32, wqe: &SendWqe) -> End {
        let Some(qp) = self.qps.get(number) else { return End::Stuck };
        let (of_qp, opcode) = ((number, qp.pd), wqe.wr.opcode);
        // As the driver of Linux 7.3: where there are bytes it wants an SGE to be at, also if they are inline.
        let most = qp.cap.max_send_sge;
        let has_too_many = wqe.dma.num_sge > most || wqe.dma.resid > 0 && wqe.dma.cur_sge >= most;
        if !has(qp.kind, opcode) || has_too_many {
            return End::Failed(wc_status::LOC_QP_OP_ERR);
        }
        match opcode {
            wr_opcode::BIND_MW => {
                let binding: SendWrMw = part(&wqe.wr);
                return done_or(self.bind_window(of_qp, &binding), wc_status::MW_BIND_ERR);
            }
            wr_opcode::LOCAL_INV => {
                return done_or(self.invalidate(wqe.wr.ex), wc_status::LOC_QP_OP_ERR);
            }
            wr_opcode::RDMA_READ | wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD
                if qp.attr.max_rd_atomic == 0 =>
            {
                return End::Stuck;
            }
            _ if self.hca(qp.device).down => return End::Failed(wc_status::LOC_QP_OP_ERR),
            _ => {}
        }
        let into = matches!(
            operation(&wqe.wr),
            Some(Operation::Read | Operation::FetchAdd(_) | Operation::CompareSwap(..))
        );
        let access = if into { AccessFlags::LOCAL_WRITE } else { AccessFlags::empty() };
        let local = self.local_segments(qp, wqe, access);
        let (Some(operation), local) = (operation(&wqe.wr), local) else {
            return End::Failed(wc_status::LOC_QP_OP_ERR);
        };
        // Where an answer goes is looked at only when it is there.
        let payload = match (&local, into) {
            (Some(payload), false) => payload.as_slice(),
            (None, false) => return End::Failed(wc_status::LOC_QP_OP_ERR),
            _ => &[],
        };
        let remote: SendWrRdma = part(&wqe.wr);
        let rkey = match operation {
            Operation::FetchAdd(_) | Operation::CompareSwap(..) => part::<SendWrAtomic>(&wqe.wr).rkey,
            Operation::Flush { .. } => part::<SendWrFlush>(&wqe.wr).rkey,
            _ => remote.rkey,
        };
        let flags = SendFlags::from_bits_retain(wqe.wr.send_flags);
        let message = Message {
            from: number,
            from_device: qp.device,
            operation,
            payload,
            length: wqe.dma.length,
            address: remote.remote_addr,
            rkey,
            immediate: matches!(opcode, wr_opcode::SEND_WITH_IMM | wr_opcode::RDMA_WRITE_WITH_IMM)
                .then_some(wqe.wr.ex),
            invalidate: (opcode == wr_opcode::SEND_WITH_INV).then_some(wqe.wr.ex),
            solicited: flags.contains(SendFlags::SOLICITED),
            mtu: qp.mtu(),
            psn: qp.send_psn,
            route: None,
        };
        match qp.kind {
            qp_type::RC => self.send_reliably(number, &message, local.as_deref()),
            qp_type::UC => self.send_unreliably(number, &message),
            _ => {
                let ud: SendWrUd = part(&wqe.wr);
                self.send_datagram(number, &message, &ud)
            }
        }
    }

    /// The memory that a request names, or its inline data. Nothing if a key or a range is wrong.
    fn local_segments(&self, qp: &Qp, wqe: &SendWqe, access: AccessFlags) -> Option<Vec<Segment>> {
        let length = wqe.dma.length as usize;
        let inline = SendFlags::from_bits_retain(wqe.wr.send_flags).contains(SendFlags::INLINE);
        match wqe.wr.opcode {
            wr_opcode::FLUSH => return Some(Vec::new()),
            wr_opcode::ATOMIC_WRITE => return Some(vec![qp.sends.inline(HEADER, 8)?]),
            _ => {}
        }
        if inline && access.is_empty() {
            return qp.sends.inline(HEADER, length).map(|segment| vec![segment]);
        }
        let mut segments = Vec::with_capacity(wqe.dma.num_sge as usize);
        let atomic = matches!(wqe.wr.opcode, wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD);
        // What an atomic answers is a word, however long it says to be.
        let mut left = if atomic { wqe.dma.length.min(8) } else { wqe.dma.length };
        for index in 0..wqe.dma.num_sge as usize {
            let sge = qp.sends.sge(HEADER, index)?;
            let length = sge.length.min(left);
            if length > 0 {
                let region = self.region(qp.pd, sge.lkey, access)?;
                segments.push(region.segment(sge.addr, length.into())?);
            }
            left -= length;
        }
        (left == 0).then_some(segments)
    }

    fn send_reliably(&mut self, number: u32, message: &Message<'_>, local: Option<&[Segment]>) -> End {
        let Some(qp) = self.qps.get(number) else { return End::Stuck };
        let (psn, target) = (qp.send_psn, qp.attr.dest_qp_num);
        let Some(peer) = self.listening(qp, target) else { return End::Unanswered };
        let ahead = psn.wrapping_sub(peer.receive_psn) & PSN;
        let packets = message.packets();
        let answers = peer.attr.dest_qp_num == number;
        let timer = peer.attr.min_rnr_timer;
        let fate = self.devices[message.from_device].faults.fate();
        if fate.lost {
            return End::Unanswered;
        }
        if fate.not_ready && message.takes_receive() {
            return End::NotReady(timer);
        }
        let answer = match ahead {
            0 => self.receive(target, message),
            // Numbers that the peer has seen: it takes the message for one that it has had.
            0x80_0000.. => self.receive_again(target, psn, message),
            _ => return End::Unanswered,
        };
        if ahead == 0
            && let Ok(Answer::Word(word)) = answer
            && let Some(peer) = self.qps.get_mut(target)
        {
            peer.answered = Some((psn, word));
        }
        if !answers || fate.answer_lost {
            return End::Unanswered;
        }
        let end = match answer {
            Ok(answer) => take_answer(&answer, local),
            Err(Refusal::NotReady(timer)) => return End::NotReady(timer),
            Err(Refusal::Lost) => return End::Unanswered,
            Err(Refusal::Wrong(status)) => End::Failed(status),
        };
        if let Some(qp) = self.qps.get_mut(number) {
            qp.send_psn = (psn + packets) & PSN;
        }
        end
    }

    fn send_unreliably(&mut self, number: u32, message: &Message<'_>) -> End {
        let Some(qp) = self.qps.get(number) else { return End::Stuck };
        let (psn, target, packets) = (qp.send_psn, qp.attr.dest_qp_num, message.packets());
        let there = self.listening(qp, target).is_some();
        let fate = self.devices[message.from_device].faults.fate();
        if there && !fate.lost {
            for _ in 0..1 + u8::from(fate.twice) {
                // Nobody hears of what is lost, and the first one may break the peer.
                if self.qps.get(target).is_some_and(Qp::takes_messages) {
                    let _ = self.receive(target, message);
                }
            }
        }
        if let Some(qp) = self.qps.get_mut(number) {
            qp.send_psn = (psn + packets) & PSN;
        }
        End::Done
    }

    fn send_datagram(&mut self, number: u32, message: &Message<'_>, ud: &SendWrUd) -> End {
        let Some(qp) = self.qps.get(number) else { return End::Stuck };
        let Some(ah) = self.ahs.get(ud.ah_num).filter(|ah| ah.pd == qp.pd) else {
            return End::Failed(wc_status::LOC_QP_OP_ERR);
        };
        let (place, attr, psn) = (ah.place, ah.attr, qp.send_psn);
        // The port takes no more at once than this; what is longer is never sent.
        let most = 1024;
        if message.length <= most {
            let own = self.hca(message.from_device).gid(attr.grh.sgid_index).unwrap_or_default();
            let route = route_header(&attr.grh, own, message.length);
            let message = Message { route: Some(route), mtu: most, ..*message };
            let fate = self.devices[message.from_device].faults.fate();
            let held = self.qps.get_mut(number).and_then(|qp| qp.held.take());
            if fate.overtaken && held.is_none() {
                let held = Held::new(place, ud, &message);
                if let Some(qp) = self.qps.get_mut(number) {
                    qp.held = Some(held);
                }
            } else if !fate.lost {
                for _ in 0..1 + u8::from(fate.twice) {
                    self.deliver_datagram(place, ud, &message);
                }
            }
            if let Some(held) = held {
                let address = held.payload.as_ptr().expose_provenance() as u64;
                // SAFETY: a payload is only read, and it lives until it has been delivered.
                let payload = [unsafe { Segment::new(address, held.payload.len()) }];
                let message = Message { payload: &payload, ..held.message };
                self.deliver_datagram(held.place, &held.ud, &message);
            }
        }
        if let Some(qp) = self.qps.get_mut(number) {
            qp.send_psn = (psn + 1) & PSN;
        }
        End::Done
    }

    fn deliver_datagram(&mut self, place: Place, ud: &SendWrUd, message: &Message<'_>) {
        for target in self.datagram_targets(place, ud) {
            // Nobody hears of what is lost.
            let _ = self.receive(target, message);
        }
    }

    /// QPs that take a datagram.
    fn datagram_targets(&self, place: Place, ud: &SendWrUd) -> Vec<u32> {
        let takes = |qp: &Qp, device: usize| {
            qp.device == device
                && qp.kind == qp_type::UD
                && qp.takes_messages()
                && qp.attr.qkey == ud.remote_qkey
        };
        match place {
            Place::Device(device) if ud.remote_qpn != MULTICAST_QPN => {
                let there = self.hca(device).is_reached()
                    && self.qps.get(ud.remote_qpn).is_some_and(|qp| takes(qp, device));
                there.then_some(ud.remote_qpn).into_iter().collect()
            }
            Place::Group(gid) if ud.remote_qpn == MULTICAST_QPN => {
                let member = |(number, qp): (&u32, &Qp)| {
                    let there = qp.is_in(&gid) && self.hca(qp.device).is_reached();
                    (there && takes(qp, qp.device)).then_some(*number)
                };
                self.qps.iter().filter_map(member).collect()
            }
            Place::Device(_) | Place::Group(_) => Vec::new(),
        }
    }

    /// The QP that a connected one sends to, if it takes its messages.
    fn listening(&self, qp: &Qp, target: u32) -> Option<&Qp> {
        self.qps.get(target).filter(|peer| {
            qp.peer == Some(Place::Device(peer.device))
                && peer.peer == Some(Place::Device(qp.device))
                && peer.kind == qp.kind
                && peer.takes_messages()
                && self.hca(peer.device).is_reached()
        })
    }
}

/// What the peer has answered goes where the request says.
fn take_answer(answer: &Answer, local: Option<&[Segment]>) -> End {
    let Some(local) = local else {
        return if matches!(answer, Answer::Done) { End::Done } else { End::Failed(wc_status::LOC_PROT_ERR) };
    };
    match answer {
        Answer::Done => {}
        Answer::Bytes(segment) => memory::copy(&[*segment], local),
        Answer::Word(word) => {
            if local.iter().map(Segment::length).sum::<usize>() < size_of_val(word) {
                return End::Failed(wc_status::LOC_PROT_ERR);
            }
            memory::write(&word.to_ne_bytes(), local);
        }
    }
    End::Done
}

fn done_or(done: bool, status: u32) -> End {
    if done { End::Done } else { End::Failed(status) }
}

/// The part of a request that depends on its operation.
fn part<T: zerocopy::FromBytes>(wr: &SendWr) -> T {
    let bytes = zerocopy::IntoBytes::as_bytes(&wr.wr);
    T::read_from_prefix(bytes).map(|(part, _)| part).unwrap_or_else(|_| T::new_zeroed())
}

/// What the peer is to do.
fn operation(wr: &SendWr) -> Option<Operation> {
    Some(match wr.opcode {
        wr_opcode::SEND | wr_opcode::SEND_WITH_IMM | wr_opcode::SEND_WITH_INV => Operation::Send,
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => Operation::Write,
        wr_opcode::RDMA_READ => Operation::Read,
        wr_opcode::ATOMIC_WRITE => Operation::AtomicWrite,
        wr_opcode::ATOMIC_FETCH_AND_ADD => Operation::FetchAdd(part::<SendWrAtomic>(wr).compare_add),
        wr_opcode::ATOMIC_CMP_AND_SWP => {
            let atomic: SendWrAtomic = part(wr);
            Operation::CompareSwap(atomic.compare_add, atomic.swap)
        }
        wr_opcode::FLUSH => {
            let flush: SendWrFlush = part(wr);
            Operation::Flush { placement: flush.r#type, level: flush.level }
        }
        _ => return None,
    })
}

/// Whether QPs of a type have an operation.
fn has(kind: u32, opcode: u32) -> bool {
    match opcode {
        wr_opcode::SEND | wr_opcode::SEND_WITH_IMM => true,
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::BIND_MW => kind != qp_type::UD,
        wr_opcode::SEND_WITH_INV
        | wr_opcode::RDMA_READ
        | wr_opcode::ATOMIC_CMP_AND_SWP
        | wr_opcode::ATOMIC_FETCH_AND_ADD
        | wr_opcode::LOCAL_INV
        | wr_opcode::FLUSH
        | wr_opcode::ATOMIC_WRITE => kind == qp_type::RC,
        _ => false,
    }
}

fn completion(qp_num: u32, wqe: &SendWqe, status: u32) -> Wc {
    let failed = Wc { wr_id: wqe.wr.wr_id, status, qp_num, ..Default::default() };
    if status != wc_status::SUCCESS {
        return failed;
    }
    let with_immediate = matches!(wqe.wr.opcode, wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::SEND_WITH_IMM);
    let opcode = match wqe.wr.opcode {
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => wc_opcode::RDMA_WRITE,
        wr_opcode::RDMA_READ => wc_opcode::RDMA_READ,
        wr_opcode::ATOMIC_CMP_AND_SWP => wc_opcode::COMP_SWAP,
        wr_opcode::ATOMIC_FETCH_AND_ADD => wc_opcode::FETCH_ADD,
        wr_opcode::LOCAL_INV => wc_opcode::LOCAL_INV,
        wr_opcode::BIND_MW => wc_opcode::BIND_MW,
        wr_opcode::FLUSH => wc_opcode::FLUSH,
        wr_opcode::ATOMIC_WRITE => wc_opcode::ATOMIC_WRITE,
        _ => wc_opcode::SEND,
    };
    let flags = if with_immediate { WcFlags::WITH_IMM } else { WcFlags::empty() };
    Wc { opcode, wc_flags: flags.bits(), byte_len: wqe.dma.length, ..failed }
}

/// The header that a datagram leaves before its data: of IPv6, or 20 bytes of nothing and one of IPv4.
fn route_header(route: &uverbs_uapi::user_verbs::GlobalRoute, from: [u8; 16], length: u32) -> [u8; 40] {
    /// Headers of UDP, of the transport and of datagrams, and the checksum behind the data.
    const AROUND: u32 = 8 + 12 + 8 + 4;
    const UDP: u8 = 17;
    let padded = length.next_multiple_of(4) + AROUND;
    let mut header = [0; 40];
    if is_v4(&from) {
        header[20] = 0x45;
        header[21] = route.traffic_class;
        header[22..24].copy_from_slice(&((padded + 20) as u16).to_be_bytes());
        header[26] = 0x40;
        header[28] = route.hop_limit;
        header[29] = UDP;
        header[32..36].copy_from_slice(&from[12..]);
        header[36..].copy_from_slice(&route.dgid[12..]);
        let sum: u32 =
            header[20..].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        header[30..32].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    } else {
        let first = 6 << 28 | u32::from(route.traffic_class) << 20 | route.flow_label & 0xf_ffff;
        header[..4].copy_from_slice(&first.to_be_bytes());
        header[4..6].copy_from_slice(&(padded as u16).to_be_bytes());
        (header[6], header[7]) = (UDP, route.hop_limit);
        header[8..24].copy_from_slice(&from);
        header[24..].copy_from_slice(&route.dgid);
    }
    header
}

/// How long a peer without a receive asks to wait.
fn rnr_time(code: u8) -> Duration {
    const MICROSECONDS: [u64; 32] = [
        655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120,
        7680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680,
        491_520,
    ];
    Duration::from_micros(MICROSECONDS[usize::from(code & 31)])
}
