//! Elements of the rings: completions out, send requests in.

mod operations;

use uverbs_ioctl::calls::{self, QpCreated, QpRequest};
use uverbs_ioctl::uapi::ioctl_verbs::qp_type;
use uverbs_ioctl::uapi::rxe::{
    CreateQpResp, DmaInfo, MmapInfo, ResizeCqResp, SendWqe, SendWr, SendWrRdma, SendWrUd, Sge,
};
use uverbs_ioctl::uapi::user_verbs::{ResizeCq, Wc, wr_opcode};
use uverbs_ioctl::uapi::values::{SendFlags as Flags, wc_status};
use uverbs_ioctl::{Doorbell, Errno, Transport};

pub(super) use operations::operations;

use super::receives::Receives;
use super::ring::{Consumer, Producer};
use crate::completion::WorkCompletion;
use crate::mw::BoundWindows;
use crate::post::{
    Operation, Payload, PostReason, ReceiveRequest, RemoteMemory, ScatterGather, SendFlags, SendRequest,
};
use crate::provider::{CompletionRing, FAILED, WorkRings};

/// A CQ's ring.
pub(super) struct Completions(Consumer);

impl Completions {
    pub(super) fn map(transport: &dyn Transport, info: &MmapInfo) -> Result<Self, Errno> {
        Ok(Self(Consumer::map(transport, info, size_of::<Wc>())?))
    }
}

impl CompletionRing for Completions {
    fn poll(&mut self, completions: &mut [WorkCompletion]) -> usize {
        const { assert!(wc_status::SUCCESS == 0) };
        let available = self.0.available();
        if available == 0 {
            return 0;
        }
        let count = available.min(u32::try_from(completions.len()).unwrap_or(u32::MAX));
        let mut statuses = 0;
        for (ahead, completion) in (0..count).zip(&mut *completions) {
            // SAFETY: slots have room for a completion (checked when mapped) at an aligned address, and the kernel has written
            // this one and leaves it alone until it is released.
            *completion = WorkCompletion(unsafe { self.0.peek(ahead).cast::<Wc>().read() });
            statuses |= completion.0.status;
        }
        self.0.release(count);
        count as usize | if statuses == wc_status::SUCCESS { 0 } else { FAILED }
    }

    #[inline]
    fn peek(&mut self, ahead: u32) -> (*const WorkCompletion, u32) {
        let (first, count) = self.0.look(ahead);
        (first.cast(), count)
    }

    fn stride(&self) -> usize {
        self.0.stride()
    }

    #[inline]
    fn take(&mut self, count: u32) {
        self.0.release(count);
    }

    fn arm(&mut self, transport: &dyn Transport, cq: u32, solicited_only: bool, _: u32) -> Result<(), Errno> {
        transport.doorbell(Doorbell::Arm { cq, solicited_only })
    }

    fn resize(&mut self, transport: &dyn Transport, cq: u32, entries: u32) -> Result<u32, Errno> {
        let request = ResizeCq { cq_handle: cq, cqe: entries, ..Default::default() };
        let mut response = ResizeCqResp::default();
        let granted = calls::invoke_for_driver(transport, &request, &mut response)?.cqe;
        // The kernel has another ring now, with the completions that were left in this one.
        match Self::map(transport, &response.mi) {
            Ok(new) => *self = new,
            Err(errno) => {
                self.0.close();
                return Err(errno);
            }
        }
        Ok(granted)
    }
}

/// A QP's rings.
pub(super) struct Work {
    send: Producer,
    /// Sends beyond this position are written but not shown.
    shown: u32,
    /// Nothing if an SRQ takes its place.
    receive: Option<Receives>,
    max_send_sge: usize,
    max_inline: usize,
    datagrams: bool,
    /// Not for datagrams, and sends have room for an SGE.
    plain: bool,
    /// Bit n: the QP has operation n of [`wr_opcode`], besides plain sends.
    operations: u32,
    windows: BoundWindows,
}

impl Work {
    pub(super) fn map(
        transport: &dyn Transport,
        request: &QpRequest,
        response: &CreateQpResp,
        created: &QpCreated,
        operations: u32,
    ) -> Result<Self, Errno> {
        let QpCreated { qp_num, cap, .. } = created;
        let payload = (cap.max_send_sge as usize * size_of::<Sge>()).max(cap.max_inline_data as usize);
        let receive = match request.srq {
            None => Some(Receives::map(transport, &response.rq_mi, cap.max_recv_sge)?),
            Some(_) => None,
        };
        let send = Producer::map(transport, &response.sq_mi, size_of::<SendWqe>() + payload)?;
        Ok(Self {
            shown: send.position(),
            send,
            receive,
            max_send_sge: cap.max_send_sge as usize,
            max_inline: cap.max_inline_data as usize,
            datagrams: request.qp_type == qp_type::UD,
            plain: request.qp_type != qp_type::UD && cap.max_send_sge > 0,
            operations,
            windows: BoundWindows::new(*qp_num),
        })
    }

    /// How many send requests and how many receives fit.
    pub(super) fn capacities(&self) -> (u32, u32) {
        (self.send.capacity(), self.receive.as_ref().map_or(0, Receives::capacity))
    }

    #[inline(never)]
    fn push_any(&mut self, request: &SendRequest<'_>) -> Result<(), PostReason> {
        let (opcode, ex, remote) = match request.operation {
            Operation::Send => (wr_opcode::SEND, 0, None),
            Operation::SendWithImmediate(immediate) => (wr_opcode::SEND_WITH_IMM, immediate.to_be(), None),
            Operation::SendWithInvalidate(rkey) => (self.having(wr_opcode::SEND_WITH_INV)?, rkey, None),
            Operation::RdmaWrite(to) => (self.having(wr_opcode::RDMA_WRITE)?, 0, Some(to)),
            Operation::RdmaWriteWithImmediate(to, immediate) => {
                (self.having(wr_opcode::RDMA_WRITE_WITH_IMM)?, immediate.to_be(), Some(to))
            }
            Operation::RdmaRead(from) => (self.having(wr_opcode::RDMA_READ)?, 0, Some(from)),
            Operation::CompareSwap { at, compare, swap } => {
                return self.push_atomic(request, wr_opcode::ATOMIC_CMP_AND_SWP, at, compare, swap);
            }
            Operation::FetchAdd { at, add } => {
                return self.push_atomic(request, wr_opcode::ATOMIC_FETCH_AND_ADD, at, add, 0);
            }
            Operation::AtomicWrite { to, value } => return self.push_atomic_write(request, to, value),
            Operation::Flush { memory, extent, placement } => {
                return self.push_flush(request, memory, extent, placement);
            }
            Operation::LocalInvalidate(rkey) => return self.push_local_invalidate(request, rkey),
            Operation::BindMemoryWindow(binding) => return self.push_bind(request, &binding),
        };
        let datagram = match (&request.destination, self.datagrams) {
            (None, false) => None,
            (Some(_), false) => return Err(PostReason::Connected),
            (None, true) => return Err(PostReason::NoDestination),
            (Some(destination), true) => Some(destination),
        };
        let mut flags = request.flags.bits();
        let (length, num_sge) = match request.payload {
            Payload::Sges(sges) => (total_length(sges, self.max_send_sge)?, sges.len() as u32),
            Payload::Inline(_) if opcode == wr_opcode::RDMA_READ => return Err(PostReason::InlineRead),
            Payload::Inline(parts) => {
                // The kernel takes the bytes for addresses unless this flag is set.
                flags |= Flags::INLINE.bits();
                (inline_length(parts, self.max_inline)?, 0)
            }
        };
        let slot = self.send.reserve().ok_or(PostReason::QueueFull)?;
        let mut wr = SendWr { wr_id: request.wr_id, opcode, send_flags: flags, ex, ..Default::default() };
        let mut iova = 0;
        if let Some(RemoteMemory { address, rkey }) = remote {
            let rdma = SendWrRdma { remote_addr: address, rkey, reserved: 0 };
            [wr.wr[0], wr.wr[1]] = zerocopy::transmute!(rdma);
            iova = address;
        }
        if let Some(destination) = datagram {
            let ud = SendWrUd {
                remote_qpn: destination.qp_num,
                remote_qkey: destination.qkey,
                ah_num: destination.address.number(),
                ..Default::default()
            };
            wr.wr = zerocopy::transmute!(ud);
        }
        let wqe = SendWqe {
            wr,
            iova,
            dma: DmaInfo { length, resid: length, num_sge, ..Default::default() },
            ..Default::default()
        };
        // SAFETY: slots have room for an element with as many SGEs and inline bytes as were granted (checked when mapped), which
        // is not exceeded (checked above); the slot is aligned, free, and the kernel does not look at it before it is published.
        unsafe {
            slot.cast::<SendWqe>().write(wqe);
            let room = slot.add(size_of::<SendWqe>());
            match request.payload {
                Payload::Sges(sges) => write_sges(room, sges),
                Payload::Inline(parts) => {
                    let mut room = room;
                    for part in parts {
                        room.copy_from_nonoverlapping(part.as_ptr(), part.len());
                        room = room.add(part.len());
                    }
                }
            }
        }
        self.send.advance();
        Ok(())
    }
}

impl WorkRings for Work {
    // Into the loop of a list, too, where a call for each request would cost as much as a tenth of the rest.
    #[inline(always)]
    fn push_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostReason> {
        let short = |(sge, opcode, to)| self.push_plain_send(request.wr_id, request.flags, sge, opcode, to);
        if request.plain().is_some_and(short) { Ok(()) } else { self.push_any(request) }
    }

    #[inline(always)]
    fn push_plain_send(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        sge: &ScatterGather,
        opcode: u32,
        to: Option<&RemoteMemory>,
    ) -> bool {
        if self.plain
            && let Some((slot, after)) = self.send.reserve_at_once()
        {
            let wqe = slot.cast::<SendWqe>();
            // SAFETY: it is a free slot, aligned, with room for an element with an SGE (`plain`), and the kernel does not look at it before
            // it is published.
            unsafe {
                write_sge(slot.add(size_of::<SendWqe>()), 0, *sge);
                write_send(wqe, wr_id, opcode, flags, sge.length);
                if let Some(to) = to {
                    write_remote(wqe, *to);
                }
            }
            self.send.advance_to(after);
            return true;
        }
        false
    }

    fn commit_sends(&mut self, transport: &dyn Transport, qp: u32) -> Result<(), Errno> {
        self.send.publish();
        self.shown = self.send.position();
        self.windows.commit();
        transport.doorbell(Doorbell::Send { qp })
    }

    fn abort_sends(&mut self) {
        self.send.rewind(self.shown);
        self.windows.rewind();
    }

    fn reset(&mut self) {
        self.windows.reset();
    }

    fn post_receives(&mut self, requests: &[ReceiveRequest<'_>]) -> usize {
        match &mut self.receive {
            Some(receive) => receive.post(requests),
            None => 0,
        }
    }

    fn windows(&mut self) -> Option<&mut BoundWindows> {
        Some(&mut self.windows)
    }

    fn accept_receives(&mut self, accept: bool) {
        if let Some(receive) = &mut self.receive {
            receive.accept(accept);
        }
    }

    fn receive_refusal(&self, request: &ReceiveRequest<'_>) -> PostReason {
        self.receive.as_ref().map_or(PostReason::SharedReceiveQueue, |receive| receive.refusal(request))
    }
}

/// All of an element with one SGE but what belongs to operations other than a send, which the driver looks at for those only.
///
/// # Safety
/// It is a free slot of the send ring: aligned, with room for an element, and the kernel does not look at it before it is published.
#[inline(always)]
unsafe fn write_send(wqe: *mut SendWqe, wr_id: u64, opcode: u32, flags: SendFlags, length: u32) {
    // SAFETY: the caller's.
    unsafe {
        (&raw mut (*wqe).wr.wr_id).write(wr_id);
        (&raw mut (*wqe).wr.reserved).write(0);
        (&raw mut (*wqe).wr.opcode).write(opcode);
        (&raw mut (*wqe).wr.send_flags).write(flags.bits());
        (&raw mut (*wqe).wr.ex).write(0);
        (&raw mut (*wqe).status).write(0);
        (&raw mut (*wqe).state).write(0);
        (&raw mut (*wqe).iova).write(0);
        (&raw mut (*wqe).mask).write(0);
        (&raw mut (*wqe).first_psn).write(0);
        (&raw mut (*wqe).last_psn).write(0);
        (&raw mut (*wqe).ack_length).write(0);
        (&raw mut (*wqe).ssn).write(0);
        (&raw mut (*wqe).has_rd_atomic).write(0);
        (&raw mut (*wqe).dma).write(DmaInfo { length, resid: length, num_sge: 1, ..Default::default() });
    }
}

/// # Safety
/// As [`write_send`], which has been done.
#[inline(always)]
unsafe fn write_remote(wqe: *mut SendWqe, to: RemoteMemory) {
    let rdma = SendWrRdma { remote_addr: to.address, rkey: to.rkey, reserved: 0 };
    // SAFETY: the caller's.
    unsafe {
        (&raw mut (*wqe).wr.wr).cast::<SendWrRdma>().write(rdma);
        (&raw mut (*wqe).iova).write(to.address);
    }
}

/// # Safety
/// There is room at `room`, aligned, for as many as `index` and one more.
#[inline(always)]
pub(super) unsafe fn write_sge(room: *mut u8, index: usize, sge: ScatterGather) {
    const { assert!(size_of::<Sge>() == size_of::<ScatterGather>()) };
    // SAFETY: the caller's. The kernel's struct has the same fields in the same order.
    unsafe { room.cast::<ScatterGather>().add(index).write(sge) };
}

/// # Safety
/// There is room for that many at `room`, aligned.
pub(super) unsafe fn write_sges(room: *mut u8, sges: &[ScatterGather]) {
    for (index, sge) in sges.iter().enumerate() {
        // SAFETY: the caller's.
        unsafe { write_sge(room, index, *sge) };
    }
}

/// The bytes that SGEs cover. The kernel's field has 32 bits; no message is that long, but a sum of lengths can be.
pub(super) fn total_length(sges: &[ScatterGather], most: usize) -> Result<u32, PostReason> {
    if sges.len() > most {
        return Err(PostReason::TooManySges { given: sges.len(), most });
    }
    let total = sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
    u32::try_from(total).map_err(|_| PostReason::MessageTooLong { length: total })
}

#[inline]
fn inline_length(parts: &[&[u8]], most: usize) -> Result<u32, PostReason> {
    let total = parts.iter().map(|part| part.len() as u64).sum::<u64>();
    if total <= most as u64 {
        Ok(total as u32)
    } else {
        Err(PostReason::InlineTooLong { length: total, most })
    }
}
