//! Work requests: send queues, answers to peers, completions, events and counters.

use std::sync::Arc;
use std::time::Instant;

use zerocopy::{FromBytes, IntoBytes};

use crate::admin::{QpKind, QpState, RNR_FOR_EVER, StatisticsKind};
use crate::config::{Capabilities, FaultEffect, FaultPlace, Gid, QpEvents};
use crate::device::Device;
use crate::host::{GuestMemory, Interrupts};
use crate::io::{
    COMPLETION_FLAGS, CompletionCommon, CompletionFlags, Data, Event, FastRegister, KEY_MASK, NO_AH,
    OperationKind, Permissions, QueueKind, ReceiveCompletion, ReceiveControl, ReceiveDescriptor,
    RemoteMemory, RequestHead, SendBuffer, SendCompletion, SendRequest, Status, Work,
};
use crate::objects::{Mapping, Range, RangeError, gather, scatter};
use crate::packet::{Body, Operation, Packet, Request};
use crate::registers::ARM;

/// Room for a header that begins the buffers of every received datagram. Its content is not modelled.
const DATAGRAM_HEADER: usize = 40;

/// A request that the peer has not answered.
#[derive(Debug)]
pub(crate) struct Outstanding {
    /// Number of the queue pair.
    pub(crate) qp: u16,
    head: RequestHead,
    destination: Gid,
    request: Arc<Request>,
    /// Where the data of an RDMA read goes.
    local: Vec<Range>,
    retries: u8,
    /// The peer was not ready, and the request goes out again.
    again: bool,
    /// When it goes out again, or is given up.
    pub(crate) at: Instant,
}

/// What the device has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Statistics {
    sent_bytes: u64,
    sent_packets: u64,
    received_bytes: u64,
    received_packets: u64,
    receive_drops: u64,
    qkey_violations: u64,
    send_bytes: u64,
    sends: u64,
    receive_bytes: u64,
    receives: u64,
    read_bytes: u64,
    reads: u64,
    read_errors: u64,
    read_response_bytes: u64,
    write_bytes: u64,
    writes: u64,
    write_errors: u64,
    write_receive_bytes: u64,
    retransmitted_bytes: u64,
    retransmitted_packets: u64,
    timeouts: u64,
    unresponsive: u64,
}

impl Statistics {
    /// As an answer carries them.
    pub(crate) fn values(&self, kind: StatisticsKind) -> Vec<u64> {
        match kind {
            StatisticsKind::Basic => vec![
                self.sent_bytes,
                self.sent_packets,
                self.received_bytes,
                self.received_packets,
                self.receive_drops,
                self.qkey_violations,
            ],
            StatisticsKind::Messages => vec![self.send_bytes, self.sends, self.receive_bytes, self.receives],
            StatisticsKind::RdmaRead => {
                vec![self.reads, self.read_bytes, self.read_errors, self.read_response_bytes]
            }
            StatisticsKind::RdmaWrite => {
                vec![self.writes, self.write_bytes, self.write_errors, self.write_receive_bytes]
            }
            StatisticsKind::Network => vec![
                self.retransmitted_bytes,
                self.retransmitted_packets,
                self.timeouts,
                self.unresponsive,
                0,
            ],
        }
    }

    fn sent(&mut self, request: &Request) {
        let bytes = request.operation.length();
        self.sent_packets += 1;
        self.sent_bytes += bytes;
        match request.operation.kind() {
            OperationKind::Send => {
                self.sends += 1;
                self.send_bytes += bytes;
            }
            OperationKind::Read => self.reads += 1,
            OperationKind::Write => {
                self.writes += 1;
                self.write_bytes += bytes;
            }
        }
    }
}

impl Operation {
    /// Bytes that go with the request.
    fn length(&self) -> u64 {
        match self {
            Self::Send { data, .. } | Self::Write { data, .. } => data.len() as u64,
            Self::Read { .. } => 0,
        }
    }
}

/// A receive request.
struct Receive {
    id: u16,
    buffers: Vec<Range>,
    /// Descriptors that it takes.
    descriptors: u16,
}

/// A received message.
struct Received<'a> {
    source: Gid,
    source_qp: u16,
    kind: OperationKind,
    immediate: Option<u32>,
    length: u32,
    receive: Option<&'a Receive>,
}

fn ranges(buffers: &[SendBuffer]) -> Vec<Range> {
    let range = |buffer: &SendBuffer| Range {
        key: buffer.lkey.get() & KEY_MASK,
        address: buffer.address.get(),
        length: buffer.length.get().into(),
    };
    buffers.iter().map(range).collect()
}

fn total(ranges: &[Range]) -> u64 {
    ranges.iter().map(|range| range.length).sum()
}

fn remote(memory: &RemoteMemory) -> Range {
    Range {
        key: memory.rkey.get() & KEY_MASK,
        address: memory.address.get(),
        length: memory.length.get().into(),
    }
}

/// Status for our own memory that cannot be reached.
fn local_status(error: RangeError) -> Status {
    match error {
        RangeError::Denied => Status::LocalInvalidLkey,
        RangeError::NoMemory(error) => {
            log::warn!("memory region: {error}");
            Status::LocalQpInternalError
        }
    }
}

/// Status for the peer when its request names memory that cannot be reached.
fn remote_status(error: RangeError) -> Status {
    if let RangeError::NoMemory(error) = error {
        log::warn!("memory region: {error}");
    }
    Status::RemoteBadAddress
}

impl<M: GuestMemory, I: Interrupts> Device<M, I> {
    // Doorbells.

    pub(crate) fn ring_send_queue(&mut self, slot: u32, produced: u32) {
        let batch = u32::from(self.config.limits.max_tx_batch) * 64;
        let Some(qp) = self.objects.qps.get_mut(slot) else { return };
        let new = (produced as u16).wrapping_sub(qp.send.produced);
        if u32::from((produced as u16).wrapping_sub(qp.send.consumed)) > qp.send.depth {
            return log::warn!("QP {}: more send requests than the queue holds", qp.number);
        }
        if batch != 0 && u32::from(new) * qp.send.entry_size > batch {
            log::warn!("QP {}: {new} send requests at once, more than a batch", qp.number);
        }
        qp.send.produced = produced as u16;
        self.run_send_queue(slot);
    }

    pub(crate) fn ring_receive_queue(&mut self, slot: u32, produced: u32) {
        let Some(qp) = self.objects.qps.get_mut(slot) else { return };
        if u32::from((produced as u16).wrapping_sub(qp.receive.consumed)) > qp.receive.depth {
            return log::warn!("QP {}: more receive requests than the queue holds", qp.number);
        }
        qp.receive.produced = produced as u16;
        if qp.state == QpState::Error {
            self.flush_receives(slot);
        }
    }

    pub(crate) fn ring_completion_queue(&mut self, index: u32, value: u32) {
        let Some(cq) = self.objects.cqs.get_mut(index) else { return };
        cq.taken = value as u16;
        if value & ARM != 0 {
            cq.armed = true;
            if cq.waiting() != 0 {
                self.send_event(index);
            }
        }
    }

    pub(crate) fn arm_event_queue(&mut self, number: u16, arm: bool) {
        let Some(eq) = self.objects.eqs.get_mut(number) else { return };
        eq.armed = arm;
        if arm && eq.pending {
            (eq.armed, eq.pending) = (false, false);
            self.interrupts.raise(eq.vector);
        }
    }

    /// Does what a new state asks for.
    pub(crate) fn state_changed(&mut self, slot: u32) {
        let Some(qp) = self.objects.qps.get_mut(slot) else { return };
        match qp.state {
            QpState::Reset => {
                for queue in [&mut qp.send, &mut qp.receive] {
                    (queue.produced, queue.consumed) = (0, 0);
                }
                let number = qp.number;
                self.outstanding.retain(|_, outstanding| outstanding.qp != number);
            }
            QpState::Error => {
                let number = qp.number;
                let under_way: Vec<u64> = self
                    .outstanding
                    .iter()
                    .filter(|(_, outstanding)| outstanding.qp == number)
                    .map(|(request, _)| *request)
                    .collect();
                for request in under_way {
                    if let Some(outstanding) = self.outstanding.remove(&request) {
                        self.complete_send(slot, outstanding.head, Status::Flushed);
                    }
                }
                self.flush_sends(slot);
                self.flush_receives(slot);
            }
            QpState::ReadyToSend => self.run_send_queue(slot),
            _ => {}
        }
    }

    // Send queue.

    /// The next request of a send queue, which counts as taken.
    fn next_send(&mut self, slot: u32) -> Option<Vec<u8>> {
        let qp = self.objects.qps.get_mut(slot)?;
        if qp.send.waiting() == 0 {
            return None;
        }
        let mut request = vec![0; qp.send.entry_size as usize];
        let address = qp.send.entry(0);
        qp.send.consumed = qp.send.consumed.wrapping_add(1);
        if let Err(error) = self.llq.read(address, &mut request) {
            log::warn!("send queue: {error}");
        }
        Some(request)
    }

    fn run_send_queue(&mut self, slot: u32) {
        match self.objects.qps.get(slot).map(|qp| qp.state) {
            Some(QpState::ReadyToSend) => {
                while let Some(bytes) = self.next_send(slot) {
                    self.send(slot, &bytes);
                }
            }
            Some(QpState::Error) => self.flush_sends(slot),
            _ => {}
        }
    }

    fn flush_sends(&mut self, slot: u32) {
        while let Some(bytes) = self.next_send(slot) {
            self.complete_send(slot, RequestHead::parse(&bytes), Status::Flushed);
        }
    }

    fn send(&mut self, slot: u32, bytes: &[u8]) {
        let head = RequestHead::parse(bytes);
        let limits = &self.config.limits;
        let parsed = SendRequest::parse(bytes, limits.inline_size_ex.into(), limits.max_send_sge.into());
        match parsed.and_then(|parsed| self.start(slot, head, parsed)) {
            Ok(true) => {}
            Ok(false) => self.complete_send(slot, head, Status::Ok),
            Err(status) => self.complete_send(slot, head, status),
        }
    }

    /// Begins a request. The result tells whether it waits for an answer.
    fn start(&mut self, slot: u32, head: RequestHead, parsed: SendRequest) -> Result<bool, Status> {
        let qp = self.objects.qps.get(slot).ok_or(Status::LocalQpInternalError)?;
        let (pd, kind, number, retries) = (qp.pd, qp.kind, qp.number, qp.rnr_retry);
        let capabilities = self.config.capabilities;
        let limits = self.config.limits.clone();
        let mut local = Vec::new();
        let operation = match parsed.work {
            Work::FastRegister(register) => return self.fast_register(pd, &register).map(|()| false),
            Work::FastInvalidate { lkey } => return self.fast_invalidate(pd, lkey).map(|()| false),
            Work::Send { data, immediate } => {
                let data = self.data(pd, &data, limits.mtu)?;
                Operation::Send { data, immediate }
            }
            Work::Read { remote: memory, local: buffers } => {
                if kind != QpKind::Srd || !capabilities.contains(Capabilities::RDMA_READ) {
                    return Err(Status::LocalUnsupportedOp);
                }
                let remote = remote(&memory);
                local = ranges(&buffers);
                if remote.length > limits.max_rdma_size.into() || total(&local) < remote.length {
                    return Err(Status::LocalBadLength);
                }
                self.objects.mrs.translate(pd, &local, Permissions::LOCAL_WRITE).map_err(local_status)?;
                Operation::Read { remote }
            }
            Work::Write { remote: memory, data, immediate } => {
                if kind != QpKind::Srd || !capabilities.contains(Capabilities::RDMA_WRITE) {
                    return Err(Status::LocalUnsupportedOp);
                }
                let remote = remote(&memory);
                let data = self.data(pd, &data, limits.max_rdma_size)?;
                if remote.length != data.len() as u64 {
                    return Err(Status::LocalBadLength);
                }
                Operation::Write { remote, data, immediate }
            }
        };
        let ah = self.objects.ahs.get(parsed.ah).filter(|ah| ah.pd == pd);
        let destination = ah.ok_or(Status::LocalInvalidAh)?.destination;
        let request = Arc::new(Request {
            kind,
            source_qp: number,
            destination_qp: parsed.destination_qp,
            qkey: parsed.qkey,
            operation,
        });
        self.statistics.sent(&request);
        let request_number = self.next_request;
        self.next_request += 1;
        self.transmit(destination, Body::Request { number: request_number, request: request.clone() });
        if kind == QpKind::Ud {
            return Ok(false);
        }
        let at = self.now + self.config.response_timeout;
        let outstanding =
            Outstanding { qp: number, head, destination, request, local, retries, again: false, at };
        self.outstanding.insert(request_number, outstanding);
        Ok(true)
    }

    /// The data of a request.
    fn data(&self, pd: u16, data: &Data, max: u32) -> Result<Vec<u8>, Status> {
        match data {
            Data::Inline(bytes) => Ok(bytes.clone()),
            Data::Buffers(buffers) => {
                let ranges = ranges(buffers);
                if total(&ranges) > max.into() {
                    return Err(Status::LocalBadLength);
                }
                let pieces = self.objects.mrs.translate(pd, &ranges, Permissions::empty());
                pieces.and_then(|pieces| gather(&self.memory, &pieces)).map_err(local_status)
            }
        }
    }

    fn fast_register(&mut self, pd: u16, register: &FastRegister) -> Result<(), Status> {
        const INLINE_PAGE: u8 = 0;
        const DIRECT_LIST: u8 = 1;
        let lkey = register.lkey.get() & KEY_MASK;
        let permissions = Permissions::from_bits(register.permissions).ok_or(Status::LocalQpInternalError)?;
        let page_shift = u32::from(register.flags & 0x1f);
        let (iova, length) = (register.iova.get(), register.length.get());
        let region = self.objects.mrs.get(lkey >> 8).filter(|region| region.pd == pd);
        let max_pages = region.and_then(|region| region.fast).ok_or(Status::LocalInvalidLkey)?;
        let count = Mapping::page_count(iova, length, page_shift);
        if page_shift < 12 || length == 0 || iova.checked_add(length).is_none() || count > max_pages.into() {
            return Err(Status::LocalBadLength);
        }
        let pages: Vec<u64> = match register.flags >> 5 & 3 {
            INLINE_PAGE if count == 1 => vec![register.pages.get()],
            DIRECT_LIST => {
                let mut bytes = vec![0; count as usize * size_of::<u64>()];
                self.memory.read(register.pages.get(), &mut bytes).map_err(|error| {
                    log::warn!("list of pages: {error}");
                    Status::LocalQpInternalError
                })?;
                let (addresses, _) = bytes.as_chunks::<8>();
                addresses.iter().map(|address| u64::from_le_bytes(*address)).collect()
            }
            _ => return Err(Status::LocalQpInternalError),
        };
        if pages.iter().any(|page| page & ((1 << page_shift) - 1) != 0) {
            return Err(Status::LocalQpInternalError);
        }
        let region = self.objects.mrs.get_mut(lkey >> 8).ok_or(Status::LocalInvalidLkey)?;
        region.variant = lkey as u8;
        region.mapping = Some(Mapping { iova, length, page_shift, pages: Some(pages), permissions });
        Ok(())
    }

    fn fast_invalidate(&mut self, pd: u16, lkey: u32) -> Result<(), Status> {
        let region = self.objects.mrs.get_mut(lkey >> 8);
        let region = region
            .filter(|region| {
                region.pd == pd && region.fast.is_some() && u32::from(region.variant) == lkey & 0xff
            })
            .ok_or(Status::LocalInvalidLkey)?;
        region.mapping = None;
        Ok(())
    }

    fn transmit(&mut self, destination: Gid, body: Body) {
        let source = self.config.gid();
        let packet = Packet { source, destination, body };
        let queue = if destination == source { &mut self.loopback } else { &mut self.transmit };
        queue.push_back(packet);
    }

    pub(crate) fn handle_late_requests(&mut self) {
        let late: Vec<u64> = self
            .outstanding
            .iter()
            .filter(|(_, outstanding)| outstanding.at <= self.now)
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            let Some(outstanding) = self.outstanding.get_mut(&number) else { continue };
            if outstanding.again {
                outstanding.again = false;
                outstanding.at = self.now + self.config.response_timeout;
                self.statistics.retransmitted_packets += 1;
                self.statistics.retransmitted_bytes += outstanding.request.operation.length();
                let (destination, request) = (outstanding.destination, outstanding.request.clone());
                self.transmit(destination, Body::Request { number, request });
            } else {
                self.statistics.timeouts += 1;
                let status = if self.responsive.contains(&outstanding.destination) {
                    self.statistics.unresponsive += 1;
                    Status::LocalUnresponsiveRemote
                } else {
                    Status::LocalUnreachableRemote
                };
                self.finish(number, status);
            }
        }
    }

    /// Completes an outstanding request.
    fn finish(&mut self, number: u64, status: Status) {
        let Some(outstanding) = self.outstanding.remove(&number) else { return };
        if let Some(slot) = self.objects.slot(self.config.qp_slots(), outstanding.qp) {
            self.complete_send(slot, outstanding.head, status);
        }
    }

    // Packets.

    pub(crate) fn handle_packet(&mut self, packet: Packet) {
        match packet.body {
            Body::Request { number, request } => {
                let at = |place| match place {
                    FaultPlace::AnyRequest => true,
                    FaultPlace::Request(kind) => kind == request.operation.kind(),
                    FaultPlace::Command(_) => false,
                };
                let (status, data) = match self.fault(at) {
                    Some(FaultEffect::Lost) => {
                        log::info!("{} request lost by a fault", request.operation.kind());
                        return;
                    }
                    Some(FaultEffect::Request(status)) => (status, Vec::new()),
                    _ => match self.respond(packet.source, &request) {
                        Ok(data) => (Status::Ok, data),
                        Err(status) => (status, Vec::new()),
                    },
                };
                if status != Status::Ok {
                    log::debug!(
                        "{} request for QP {}: {status}",
                        request.operation.kind(),
                        request.destination_qp
                    );
                }
                if request.kind == QpKind::Srd {
                    self.transmit(packet.source, Body::Response { number, status, data });
                }
            }
            Body::Response { number, status, data } => {
                self.responsive.insert(packet.source);
                self.handle_response(number, status, &data);
            }
        }
    }

    fn handle_response(&mut self, number: u64, mut status: Status, data: &[u8]) {
        let Some(outstanding) = self.outstanding.get_mut(&number) else { return };
        if status == Status::RemoteRnr && outstanding.retries > 0 {
            if outstanding.retries != RNR_FOR_EVER {
                outstanding.retries -= 1;
            }
            outstanding.again = true;
            outstanding.at = self.now + self.config.rnr_delay;
            return;
        }
        let qp = outstanding.qp;
        let kind = outstanding.request.operation.kind();
        if status == Status::Ok && kind == OperationKind::Read {
            let local = outstanding.local.clone();
            let slot = self.objects.slot(self.config.qp_slots(), qp);
            if let Some(qp) = slot.and_then(|slot| self.objects.qps.get(slot)) {
                // The region may be gone by now.
                let pieces = self.objects.mrs.translate(qp.pd, &local, Permissions::LOCAL_WRITE);
                match pieces.and_then(|pieces| scatter(&mut self.memory, &pieces, data)) {
                    Ok(()) => self.statistics.read_bytes += data.len() as u64,
                    Err(error) => status = local_status(error),
                }
            }
        }
        self.finish(number, status);
    }

    /// Does what a peer asks for.
    fn respond(&mut self, source: Gid, request: &Request) -> Result<Vec<u8>, Status> {
        let slot = self.objects.slot(self.config.qp_slots(), request.destination_qp);
        let qp = slot.and_then(|slot| self.objects.qps.get(slot));
        let Some((slot, qp)) = slot.zip(qp).filter(|(_, qp)| qp.can_receive() && qp.kind == request.kind)
        else {
            self.statistics.receive_drops += 1;
            return Err(Status::RemoteBadDestQpn);
        };
        if qp.qkey != request.qkey {
            self.statistics.qkey_violations += 1;
            return Err(Status::RemoteBadDestQpn);
        }
        let (pd, unsolicited) = (qp.pd, qp.unsolicited_write_recv);
        let is_rdma = request.operation.kind() != OperationKind::Send;
        if is_rdma && self.config.need_remote_ah && self.objects.ah_for(pd, source).is_none() {
            return Err(Status::RemoteUnknownPeer);
        }
        self.statistics.received_packets += 1;
        self.statistics.received_bytes += request.operation.length();
        match &request.operation {
            Operation::Send { data, immediate } => {
                self.respond_to_send(source, request, slot, pd, data, *immediate)?;
                Ok(Vec::new())
            }
            Operation::Read { remote } => {
                if !self.config.capabilities.contains(Capabilities::RDMA_READ) {
                    return Err(Status::RemoteFeatureMismatch);
                }
                let pieces = self.objects.mrs.translate(pd, &[*remote], Permissions::REMOTE_READ);
                let data = pieces.and_then(|pieces| gather(&self.memory, &pieces)).map_err(remote_status)?;
                self.statistics.read_response_bytes += data.len() as u64;
                self.count(slot, QpEvents::REMOTE_READ_COMP);
                Ok(data)
            }
            Operation::Write { remote, data, immediate } => {
                if !self.config.capabilities.contains(Capabilities::RDMA_WRITE) {
                    return Err(Status::RemoteFeatureMismatch);
                }
                let pieces = self
                    .objects
                    .mrs
                    .translate(pd, &[*remote], Permissions::REMOTE_WRITE)
                    .map_err(remote_status)?;
                let receive = match immediate {
                    Some(_) if !unsolicited => Some(self.peek_receive(slot).ok_or(Status::RemoteRnr)?),
                    _ => None,
                };
                scatter(&mut self.memory, &pieces, data).map_err(remote_status)?;
                self.statistics.write_receive_bytes += data.len() as u64;
                self.count(slot, QpEvents::REMOTE_WRITE_COMP);
                if immediate.is_some() {
                    let received = Received {
                        source,
                        source_qp: request.source_qp,
                        kind: OperationKind::Write,
                        immediate: *immediate,
                        length: data.len() as u32,
                        receive: receive.as_ref(),
                    };
                    self.complete_receive(slot, Status::Ok, &received);
                }
                Ok(Vec::new())
            }
        }
    }

    fn respond_to_send(
        &mut self,
        source: Gid,
        request: &Request,
        slot: u32,
        pd: u16,
        data: &[u8],
        immediate: Option<u32>,
    ) -> Result<(), Status> {
        let Some(receive) = self.peek_receive(slot) else {
            if request.kind == QpKind::Ud {
                self.statistics.receive_drops += 1;
            }
            return Err(Status::RemoteRnr);
        };
        let header = if request.kind == QpKind::Ud { DATAGRAM_HEADER } else { 0 };
        let length = header + data.len();
        let mut received = Received {
            source,
            source_qp: request.source_qp,
            kind: OperationKind::Send,
            immediate,
            length: length as u32,
            receive: Some(&receive),
        };
        let mut fail = |device: &mut Self, ours: Status, theirs: Status| {
            (received.length, received.immediate) = (0, None);
            device.complete_receive(slot, ours, &received);
            Err(theirs)
        };
        if total(&receive.buffers) < length as u64 {
            return fail(self, Status::LocalBadLength, Status::RemoteBadLength);
        }
        let mut message = vec![0; header];
        message.extend(data);
        let pieces = self.objects.mrs.translate(pd, &receive.buffers, Permissions::LOCAL_WRITE);
        if let Err(error) = pieces.and_then(|pieces| scatter(&mut self.memory, &pieces, &message)) {
            return fail(self, local_status(error), Status::RemoteAbort);
        }
        self.statistics.receives += 1;
        self.statistics.receive_bytes += data.len() as u64;
        self.complete_receive(slot, Status::Ok, &received);
        Ok(())
    }

    // Receive queue.

    /// The next receive request, if there is one.
    fn peek_receive(&self, slot: u32) -> Option<Receive> {
        let queue = self.objects.qps.get(slot)?.receive;
        let mut receive = Receive { id: 0, buffers: Vec::new(), descriptors: 0 };
        while receive.descriptors < queue.waiting() {
            let mut bytes = [0; size_of::<ReceiveDescriptor>()];
            if let Err(error) = self.memory.read(queue.entry(receive.descriptors), &mut bytes) {
                log::warn!("receive queue: {error}");
                return None;
            }
            let descriptor = ReceiveDescriptor::read_from_bytes(&bytes).ok()?;
            let key = descriptor.key_control.get();
            if receive.descriptors == 0 {
                receive.id = descriptor.request_id.get();
            }
            receive.descriptors += 1;
            receive.buffers.push(Range {
                key: key & KEY_MASK,
                address: descriptor.address.get(),
                length: descriptor.length.get().into(),
            });
            if ReceiveControl::from_bits_truncate(key).contains(ReceiveControl::LAST) {
                return Some(receive);
            }
        }
        None
    }

    fn flush_receives(&mut self, slot: u32) {
        while let Some(receive) = self.peek_receive(slot) {
            let received = Received {
                source: self.config.gid(),
                source_qp: 0,
                kind: OperationKind::Send,
                immediate: None,
                length: 0,
                receive: Some(&receive),
            };
            self.complete_receive(slot, Status::Flushed, &received);
        }
    }

    // Completions, events, counters.

    fn complete_send(&mut self, slot: u32, head: RequestHead, status: Status) {
        let ok = status == Status::Ok;
        match head.kind {
            Some(OperationKind::Send) => {
                self.count(slot, if ok { QpEvents::SEND_COMP } else { QpEvents::SEND_COMP_ERR });
            }
            Some(OperationKind::Read) => {
                self.statistics.read_errors += u64::from(!ok);
                self.count(slot, if ok { QpEvents::READ_COMP } else { QpEvents::READ_COMP_ERR });
            }
            Some(OperationKind::Write) => {
                self.statistics.write_errors += u64::from(!ok);
                self.count(slot, if ok { QpEvents::WRITE_COMP } else { QpEvents::WRITE_COMP_ERR });
            }
            None => {}
        }
        let Some(qp) = self.objects.qps.get(slot) else { return };
        if !head.signalled && ok {
            return;
        }
        let kind = head.kind.map_or(0, |kind| kind as u8);
        let wide_ids = self.objects.cqs.get(qp.send.cq).is_some_and(|cq| cq.wide_ids);
        let part = |shift: u32| if wide_ids { (head.id >> shift) as u16 } else { 0 };
        let completion = SendCompletion {
            common: CompletionCommon {
                request_id: (head.id as u16).into(),
                status: status as u8,
                flags: (QueueKind::Send as u8) << 1 | kind << 4,
                qp: qp.number.into(),
            },
            request_id_ex: [part(16).into(), part(32).into(), part(48).into()],
            ..SendCompletion::default()
        };
        let (cq, sub_cq) = (qp.send.cq, qp.send.sub_cq);
        self.write_completion(cq, sub_cq, completion.as_bytes());
    }

    fn complete_receive(&mut self, slot: u32, status: Status, received: &Received<'_>) {
        let ok = status == Status::Ok;
        self.count(slot, if ok { QpEvents::RECV_COMP } else { QpEvents::RECV_COMP_ERR });
        let Some(qp) = self.objects.qps.get_mut(slot) else { return };
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::HAS_IMMEDIATE, received.immediate.is_some());
        flags.set(CompletionFlags::UNSOLICITED, received.receive.is_none());
        let taken = received.receive.map_or(0, |receive| receive.descriptors);
        qp.receive.consumed = qp.receive.consumed.wrapping_add(taken);
        let (number, pd, cq, sub_cq) = (qp.number, qp.pd, qp.receive.cq, qp.receive.sub_cq);

        let ah = self.objects.ah_for(pd, received.source);
        let mut extension = [0; 16];
        if received.kind == OperationKind::Write {
            extension[..2].copy_from_slice(&((received.length >> 16) as u16).to_le_bytes());
        } else if ah.is_none() && self.objects.cqs.get(cq).is_some_and(|cq| cq.source_address) {
            extension = received.source.0;
        }
        let completion = ReceiveCompletion {
            common: CompletionCommon {
                request_id: received.receive.map_or(0, |receive| receive.id).into(),
                status: status as u8,
                flags: flags.bits() | (QueueKind::Receive as u8) << 1 | (received.kind as u8) << 4,
                qp: number.into(),
            },
            length: (received.length as u16).into(),
            ah: ah.unwrap_or(NO_AH).into(),
            source_qp: received.source_qp.into(),
            immediate: received.immediate.unwrap_or(0).into(),
            extension,
        };
        self.write_completion(cq, sub_cq, completion.as_bytes());
    }

    fn write_completion(&mut self, index: u32, sub_cq: u16, completion: &[u8]) {
        let Some(cq) = self.objects.cqs.get_mut(index) else { return };
        let part = usize::from(sub_cq);
        let count = cq.written[part];
        cq.written[part] = count.wrapping_add(1);
        let mut entry = vec![0; cq.entry_size as usize];
        let length = completion.len().min(entry.len());
        entry[..length].copy_from_slice(&completion[..length]);
        if (count / cq.depth).is_multiple_of(2) {
            entry[COMPLETION_FLAGS] |= CompletionFlags::PHASE.bits();
        }
        let place = u64::from(sub_cq) * u64::from(cq.depth) + u64::from(count & (cq.depth - 1));
        let address = cq.base.wrapping_add(place * u64::from(cq.entry_size));
        if let Err(error) = self.memory.publish(address, &entry, COMPLETION_FLAGS) {
            log::warn!("completion queue {index}: {error}");
        }
        if cq.armed {
            self.send_event(index);
        }
    }

    fn send_event(&mut self, index: u32) {
        let Some(cq) = self.objects.cqs.get_mut(index) else { return };
        cq.armed = false;
        let Some(eq) = cq.eq.and_then(|eq| self.objects.eqs.get_mut(eq)) else { return };
        let event = Event {
            common: u32::from((eq.count / eq.depth).is_multiple_of(2)).into(),
            cq: (index as u16).into(),
            ..Event::default()
        };
        let place = u64::from(eq.count & (eq.depth - 1));
        let address = eq.base.wrapping_add(place * size_of::<Event>() as u64);
        eq.count = eq.count.wrapping_add(1);
        if let Err(error) = self.memory.publish(address, event.as_bytes(), 0) {
            log::warn!("event queue: {error}");
        }
        if eq.armed {
            eq.armed = false;
            self.interrupts.raise(eq.vector);
        } else {
            eq.pending = true;
        }
    }

    fn count(&mut self, slot: u32, event: QpEvents) {
        let bit = event.bits().trailing_zeros() as usize;
        let Some(handle) = self.objects.qps.get(slot).and_then(|qp| qp.counters[bit]) else { return };
        let Some(counter) = self.objects.counters.get_mut(handle) else { return };
        let max = self.config.limits.event_counter_max_value;
        counter.value = if counter.value >= max { 0 } else { counter.value + 1 };
        if let Err(error) = self.memory.store(counter.address, counter.value) {
            log::warn!("counter {handle}: {error}");
        }
    }
}
