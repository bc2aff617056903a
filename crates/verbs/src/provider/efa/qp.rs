//! Queue pairs: the send queue is memory of the device, the receive queue memory of the host that the device reads.

use std::sync::Arc;

use uverbs_ioctl::uapi::efa::CreateQpResp;
use uverbs_ioctl::uapi::ioctl_verbs::QpCap;
use uverbs_ioctl::{Errno, Transport};
use zerocopy::IntoBytes;

use super::mmio::{self, Register, Window};
use super::requests::{Queues, Table};
use super::wire::{
    Buffer, KEY_MASK, RDMA_BUFFERS, ReceiveBuffer, SEND_LONG, SendHead, control, control2, operation, receive,
};
use crate::post::{
    Operation, Payload, PostReason, ReceiveRequest, RemoteMemory, ScatterGather, SendFlags, SendRequest,
};
use crate::provider::WorkRings;

/// Words of a send request of the longer kind.
const LONG: usize = SEND_LONG / size_of::<u64>();

/// What a QP is made like.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) cap: QpCap,
    /// Bytes of a send request.
    pub(super) request_size: usize,
    /// Buffers that the receive queue holds: a power of two.
    pub(super) receive_buffers: u32,
    /// Requests between two doorbells.
    pub(super) max_batch: usize,
    pub(super) signal_all: bool,
    /// What it can do besides sends.
    pub(super) reads: bool,
    pub(super) writes: bool,
    /// Whether it receives datagrams behind room for a header.
    pub(super) has_header: bool,
}

/// A QP's queues.
pub(super) struct Work {
    layout: Layout,
    qp_num: u16,
    table: Arc<Table>,
    queues: Arc<Queues>,

    send_ring: Window,
    send_doorbell: Register,
    /// Requests written that the device has not been shown: they go to its memory all together.
    staged: Vec<[u64; LONG]>,
    /// Requests shown to the device since the last reset.
    sent: u32,
    /// Identifiers taken for requests, those staged included.
    send_ids: u32,

    receive_ring: Window,
    receive_doorbell: Register,
    accepts_receives: bool,
    /// Buffers posted since the last reset.
    buffers: u32,
    receive_ids: u32,
}

impl Work {
    pub(super) fn map(
        transport: &dyn Transport,
        response: &CreateQpResp,
        layout: Layout,
        qp_num: u32,
        table: Arc<Table>,
    ) -> Result<Self, Errno> {
        let qp_num = u16::try_from(qp_num).map_err(|_| Errno::EPROTO)?;
        let depth = layout.cap.max_send_wr as usize;
        let receive_bytes = layout.receive_buffers as usize * size_of::<ReceiveBuffer>();
        if (receive_bytes as u64) > response.rq_mmap_size {
            return Err(Errno::EPROTO);
        }
        let send_ring = Window::map(
            transport,
            response.llq_desc_mmap_key,
            response.llq_desc_offset as usize,
            depth * layout.request_size,
        )?;
        let send_doorbell = Register::map(transport, response.sq_db_mmap_key, response.sq_db_offset)?;
        let receive_ring = Window::map(transport, response.rq_mmap_key, 0, receive_bytes)?;
        let receive_doorbell = Register::map(transport, response.rq_db_mmap_key, response.rq_db_offset)?;
        Ok(Self {
            layout,
            qp_num,
            queues: insert(&table, qp_num, &layout),
            table,
            send_ring,
            send_doorbell,
            staged: Vec::with_capacity(depth),
            accepts_receives: true,
            sent: 0,
            send_ids: 0,
            receive_ring,
            receive_doorbell,
            buffers: 0,
            receive_ids: 0,
        })
    }

    /// Whether requests in the round of the ring that this one is in are marked.
    fn phase(&self, number: u32) -> u8 {
        u8::from(number & self.layout.cap.max_send_wr != 0)
    }

    fn check_flags(&self, flags: SendFlags) -> Result<(), PostReason> {
        if !self.layout.signal_all && !flags.contains(SendFlags::SIGNALED) {
            return Err(PostReason::Unsignaled);
        }
        match flags - SendFlags::SIGNALED {
            none if none.is_empty() => Ok(()),
            flags => Err(PostReason::NoSuchFlags(flags)),
        }
    }

    fn write_receive(&self, number: u32, identifier: u16, sge: ScatterGather, place: u32) {
        let buffer = ReceiveBuffer {
            address: sge.address.into(),
            identifier: identifier.into(),
            // No message is longer.
            length: u16::try_from(sge.length).unwrap_or(u16::MAX).into(),
            key_control: (sge.lkey & KEY_MASK | place).into(),
        };
        let words: [u64; 2] = zerocopy::transmute!(buffer);
        let index = (number & (self.layout.receive_buffers - 1)) as usize;
        self.receive_ring.write(index * words.len(), &words);
    }
}

fn insert(table: &Table, qp_num: u16, layout: &Layout) -> Arc<Queues> {
    table.insert(qp_num, layout.cap.max_send_wr, layout.cap.max_recv_wr, layout.has_header)
}

impl WorkRings for Work {
    fn push_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostReason> {
        let layout = &self.layout;
        let (operation, immediate, remote) = match request.operation {
            Operation::Send => (operation::SEND, None, None),
            Operation::SendWithImmediate(immediate) => (operation::SEND, Some(immediate), None),
            Operation::RdmaWrite(to) if layout.writes => (operation::RDMA_WRITE, None, Some(to)),
            Operation::RdmaWriteWithImmediate(to, immediate) if layout.writes => {
                (operation::RDMA_WRITE, Some(immediate), Some(to))
            }
            Operation::RdmaRead(from) if layout.reads => (operation::RDMA_READ, None, Some(from)),
            _ => return Err(PostReason::NoSuchOperation),
        };
        self.check_flags(request.flags)?;
        let destination = request.destination.ok_or(PostReason::NoDestination)?;
        let dest_qp_num =
            u16::try_from(destination.qp_num).map_err(|_| PostReason::NoSuchQueuePair(destination.qp_num))?;

        // The head, then where an RDMA operation goes, then buffers or inline bytes.
        let mut bytes = [0; SEND_LONG];
        let (head_room, mut room) = bytes.split_at_mut(size_of::<SendHead>());
        if remote.is_some() {
            room = &mut room[size_of::<Buffer>()..];
        }
        let mut control = control::HEAD | operation;
        let (length, total) = match request.payload {
            Payload::Sges(sges) => {
                let granted = layout.cap.max_send_sge as usize;
                let most = if remote.is_some() { granted.min(RDMA_BUFFERS) } else { granted };
                if sges.len() > most {
                    return Err(PostReason::TooManySges { given: sges.len(), most });
                }
                for (sge, room) in sges.iter().zip(room.chunks_exact_mut(size_of::<Buffer>())) {
                    let (length, key) = (sge.length.into(), (sge.lkey & KEY_MASK).into());
                    room.copy_from_slice(Buffer { length, key, address: sge.address.into() }.as_bytes());
                }
                (sges.len(), sges.iter().map(|sge| u64::from(sge.length)).sum())
            }
            Payload::Inline(_) if operation == operation::RDMA_READ => return Err(PostReason::InlineRead),
            Payload::Inline(_) if remote.is_some() && layout.request_size < SEND_LONG => {
                return Err(PostReason::NoSuchOperation);
            }
            Payload::Inline(parts) => {
                control |= control::INLINE;
                let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
                let most = layout.cap.max_inline_data as usize;
                if length > most as u64 {
                    return Err(PostReason::InlineTooLong { length, most });
                }
                let mut room = room;
                for part in parts {
                    let (taken, rest) = room.split_at_mut(part.len());
                    taken.copy_from_slice(part);
                    room = rest;
                }
                (length as usize, length)
            }
        };
        let total = u32::try_from(total).map_err(|_| PostReason::MessageTooLong { length: total })?;

        let number = self.sent.wrapping_add(self.staged.len() as u32);
        let identifier = self.queues.sends.take(self.send_ids, request.wr_id).ok_or(PostReason::QueueFull)?;
        self.send_ids = self.send_ids.wrapping_add(1);
        if immediate.is_some() {
            control |= control::HAS_IMMEDIATE;
        }
        let head = SendHead {
            identifier: identifier.into(),
            control,
            control2: control2::FIRST | control2::LAST | control2::WANT_COMPLETION | self.phase(number),
            dest_qp_num: dest_qp_num.into(),
            length: (length as u16).into(),
            immediate: immediate.unwrap_or_default().into(),
            address_handle: (destination.address.number() as u16).into(),
            qkey: destination.qkey.into(),
            ..SendHead::default()
        };
        head_room.copy_from_slice(head.as_bytes());
        if let Some(RemoteMemory { address, rkey }) = remote {
            let buffer = Buffer { length: total.into(), key: rkey.into(), address: address.into() };
            let start = size_of::<SendHead>();
            bytes[start..start + size_of::<Buffer>()].copy_from_slice(buffer.as_bytes());
        }
        self.staged.push(zerocopy::transmute!(bytes));
        Ok(())
    }

    fn commit_sends(&mut self, _: &dyn Transport, _: u32) -> Result<(), Errno> {
        let words = self.layout.request_size / size_of::<u64>();
        for batch in self.staged.chunks(self.layout.max_batch) {
            mmio::before_write_combining();
            for request in batch {
                let index = (self.sent & (self.layout.cap.max_send_wr - 1)) as usize;
                self.send_ring.write(index * words, &request[..words]);
                self.sent = self.sent.wrapping_add(1);
            }
            mmio::flush_write_combining();
            self.send_doorbell.write(self.sent & 0xffff);
        }
        self.staged.clear();
        Ok(())
    }

    fn abort_sends(&mut self) {
        self.send_ids = self.send_ids.wrapping_sub(self.staged.len() as u32);
        self.staged.clear();
    }

    fn accept_receives(&mut self, accept: bool) {
        self.accepts_receives = accept;
    }

    fn post_receives(&mut self, requests: &[ReceiveRequest<'_>]) -> usize {
        if !self.accepts_receives {
            return 0;
        }
        let mut posted = 0;
        for request in requests {
            if request.sges.len() > self.layout.cap.max_recv_sge as usize {
                break;
            }
            let Some(identifier) = self.queues.receives.take(self.receive_ids, request.wr_id) else { break };
            self.receive_ids = self.receive_ids.wrapping_add(1);
            // A receive for nothing has a buffer too, an empty one.
            let nothing = [ScatterGather { address: 0, length: 0, lkey: 0 }];
            let sges = if request.sges.is_empty() { &nothing } else { request.sges };
            for (index, sge) in sges.iter().enumerate() {
                let first = if index == 0 { receive::FIRST } else { 0 };
                let last = if index + 1 == sges.len() { receive::LAST } else { 0 };
                self.write_receive(self.buffers, identifier, *sge, first | last);
                self.buffers = self.buffers.wrapping_add(1);
            }
            posted += 1;
        }
        if posted > 0 {
            mmio::before_doorbell();
            self.receive_doorbell.write(self.buffers & 0xffff);
        }
        posted
    }

    fn receive_refusal(&self, request: &ReceiveRequest<'_>) -> PostReason {
        let (given, most) = (request.sges.len(), self.layout.cap.max_recv_sge as usize);
        if given > most { PostReason::TooManySges { given, most } } else { PostReason::QueueFull }
    }

    fn reset(&mut self) {
        self.queues = insert(&self.table, self.qp_num, &self.layout);
        self.staged.clear();
        (self.sent, self.send_ids, self.buffers, self.receive_ids) = (0, 0, 0, 0);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.table.remove(self.qp_num, &self.queues);
    }
}
