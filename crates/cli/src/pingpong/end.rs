//! One end of a ping-pong: its queues, its memory, and what it sends and checks.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use uverbs::{
    AccessFlags, AddressHandle, CompletionChannel, CompletionError, CompletionQueue, CompletionStatus,
    Context, Destination, MemoryRegion, ModifyQueuePair, ProtectionDomain, QueuePair, QueuePairCapabilities,
    QueuePairInit, QueuePairType, ReceiveRequest, SendRequest, SharedReceiveQueue, WorkCompletion,
};

use super::Plan;
use crate::connect::{Endpoint, QKEY, Route};

/// The `wr_id` of sends. That of a receive is the number of its room.
const SEND: u64 = u64::MAX;
/// What they fill their messages with.
const FILLING: u8 = 0x7b;
/// And if they share a receive queue.
const SHARED_FILLING: u8 = 0;
/// What no message consists of.
const WIPED: u8 = 0xa5;
const PAGE: usize = 4096;

/// Which end sends first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

/// One end.
pub(super) struct End<'a> {
    plan: &'a Plan<'a>,
    role: Role,
    cq: CompletionQueue,
    armed: bool,
    connections: Vec<Connection>,
    srq: Option<SharedReceiveQueue>,
    /// A message to send, then room for what is received.
    region: MemoryRegion,
    inline: bool,
    /// Rooms of which no receive is posted.
    free: Vec<u64>,
    sent: u64,
    received: u64,
    checked: u64,
    message: Vec<u8>,
}

/// A QP and the one that it talks to.
struct Connection {
    qp: QueuePair,
    /// Where datagrams go.
    peer: Option<(AddressHandle, u32)>,
    /// Whether the last message is still being sent.
    sending: bool,
    /// Whether the peer's next message has not come.
    receiving: bool,
}

impl<'a> End<'a> {
    pub(super) fn new(
        plan: &'a Plan<'a>,
        role: Role,
        context: &Context,
        domain: &ProtectionDomain,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self> {
        let (size, depth) = (plan.size, plan.options.rx_depth);
        let entries = depth.saturating_add(plan.num_qp());
        let cq = context.create_completion_queue(entries, channel, 0)?;
        let srq = plan.shared.map(|_| domain.create_shared_receive_queue(depth, 1)).transpose()?;
        let init = QueuePairInit {
            kind: plan.kind,
            capabilities: QueuePairCapabilities { max_recv_wr: depth, ..QueuePairCapabilities::default() },
            shared_receive_queue: srq.as_ref(),
            ..QueuePairInit::reliable_connection(&cq)
        };
        let port = plan.options.ib_port;
        let change = match plan.kind {
            QueuePairType::UnreliableDatagram => ModifyQueuePair::datagram_init(port, QKEY),
            _ => ModifyQueuePair::init(port, AccessFlags::empty()),
        };
        let connections: Vec<_> = (0..plan.num_qp())
            .map(|_| {
                let mut qp = domain.create_queue_pair(&init)?;
                qp.modify(&change)?;
                Ok(Connection { qp, peer: None, sending: false, receiving: true })
            })
            .collect::<Result<_>>()?;
        let length = size + plan.places() * (plan.header() + size);
        let mut region = domain.allocate(length.max(1), AccessFlags::LOCAL_WRITE)?;
        let message = vec![plan.filling(); size];
        region.write(0, &message);
        let is_inline = |end: &Connection| size <= end.qp.capabilities().max_inline_data as usize;
        let mut end = Self {
            plan,
            role,
            cq,
            armed: false,
            inline: connections.iter().all(is_inline),
            connections,
            srq,
            region,
            free: (0..u64::from(depth)).collect(),
            sent: 0,
            received: 0,
            checked: 0,
            message,
        };
        end.post_receives()?;
        Ok(end)
    }

    pub(super) fn qp_nums(&self) -> impl Iterator<Item = u32> + '_ {
        self.connections.iter().map(|connection| connection.qp.qp_num())
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    pub(super) fn checked(&self) -> u64 {
        self.checked
    }

    /// Connects each QP to its counterpart.
    pub(super) fn connect(&mut self, own: &[Endpoint], peers: &[Endpoint], route: &Route) -> Result<()> {
        let domain = self.region.protection_domain().clone();
        let ends = own.iter().zip(peers);
        for (connection, (own, peer)) in self.connections.iter_mut().zip(ends) {
            let connected = route.connect(&mut connection.qp, &domain, own, peer);
            connection.peer = connected.with_context(|| format!("connecting to {peer}"))?;
        }
        Ok(())
    }

    /// Where the message of a room begins.
    fn payload(&self, room: u64) -> usize {
        let stride = self.plan.header() + self.plan.size;
        let place = room as usize % self.plan.places();
        self.plan.size + place * stride + self.plan.header()
    }

    fn post_receives(&mut self) -> Result<()> {
        while let Some(room) = self.free.pop() {
            let start = self.payload(room);
            let sges = [self.region.sge(start - self.plan.header()..start + self.plan.size)];
            let request = [ReceiveRequest::new(room, &sges)];
            match &mut self.srq {
                Some(srq) => srq.post_receive(&request),
                None => self.connections[0].qp.post_receive(&request),
            }
            .context("posting a receive")?;
        }
        Ok(())
    }

    /// A client sends its first messages.
    pub(super) fn begin(&mut self) -> Result<()> {
        match self.role {
            Role::Client => (0..self.connections.len()).try_for_each(|index| self.send(index)),
            Role::Server => Ok(()),
        }
    }

    /// Sends the next message: a client's own, a server's as received.
    fn send(&mut self, index: usize) -> Result<()> {
        let start = match (self.role, self.plan.options.chk) {
            (Role::Server, false) => self.payload(0),
            (Role::Server, true) | (Role::Client, false) => 0,
            (Role::Client, true) => {
                fill(&mut self.message, self.plan.number(self.sent));
                self.region.write(0, &self.message);
                0
            }
        };
        let connection = &mut self.connections[index];
        if self.inline {
            self.region.read(start, &mut self.message);
            connection.send(SendRequest::send_inline(SEND, &[&self.message]))
        } else {
            connection.send(SendRequest::send(SEND, &[self.region.sge(start..start + self.plan.size)]))
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.sent >= self.plan.options.iters && self.received >= self.plan.options.iters
    }

    /// Handles what has completed, and says whether anything had.
    pub(super) fn progress(&mut self) -> Result<bool> {
        let mut completions = [WorkCompletion::default(); 16];
        let completions = self.cq.poll(&mut completions);
        for completion in completions {
            let success = completion.success().map_err(|error| self.explain(error))?;
            let index = self.qp_nums().position(|number| number == completion.qp_num());
            let index = index.with_context(|| format!("completion of a QP {:#08x}", completion.qp_num()))?;
            if completion.wr_id() == SEND {
                self.sent += 1;
                self.connections[index].sending = false;
            } else {
                self.take(completion.wr_id(), success.byte_len() as usize)?;
                self.connections[index].receiving = false;
            }
            let Connection { sending, receiving, .. } = self.connections[index];
            if !sending && !receiving && self.sent < self.plan.options.iters {
                self.send(index)?;
            }
        }
        Ok(!completions.is_empty())
    }

    /// Takes a message out of its room, which is free then.
    fn take(&mut self, room: u64, length: usize) -> Result<()> {
        let (size, header) = (self.plan.size, self.plan.header());
        ensure!(
            length == header + size,
            "the peer sends {} bytes, not {size}: run both ends with the same --size",
            length.saturating_sub(header)
        );
        self.check(room)?;
        self.received += 1;
        self.free.push(room);
        let posted = self.plan.options.rx_depth as usize - self.free.len();
        if posted <= self.connections.len() {
            self.post_receives()?;
        }
        Ok(())
    }

    /// Checks a message: what a client sent comes back; a server knows what clients send, and will send what came.
    fn check(&mut self, room: u64) -> Result<()> {
        if !self.plan.options.chk {
            return Ok(());
        }
        let place = self.payload(room);
        let mut seen = vec![0; self.plan.size];
        self.region.read(place, &mut seen);
        fill(&mut self.message, self.plan.number(self.received));
        let is_known = self.role == Role::Server && is_reference_message(&seen, self.plan.filling());
        if seen != self.message && !is_known {
            let at = seen.iter().zip(&self.message).position(|(seen, sent)| seen != sent).unwrap_or_default();
            bail!(
                "message {} is damaged: byte {at} is {:#04x}, not {:#04x}",
                self.received,
                seen[at],
                self.message[at]
            );
        }
        // What arrives next must have arrived, not been there before.
        self.region.write(place, &vec![WIPED; self.plan.size]);
        if self.role == Role::Server {
            // While another QP may be sending from there: then all messages are the same.
            self.region.write(0, &seen);
        }
        self.checked += 1;
        Ok(())
    }

    #[cold]
    fn explain(&self, error: CompletionError) -> anyhow::Error {
        let detail = match error.status {
            // soft-RoCE calls a receive that is too small an operation error, and tells the sender so.
            CompletionStatus::LOC_LEN_ERR | CompletionStatus::LOC_QP_OP_ERR if error.wr_id != SEND => {
                let size = self.plan.size;
                format!("the peer sends more than {size} bytes: run both ends with the same --size")
            }
            CompletionStatus::REM_INV_REQ_ERR | CompletionStatus::REM_OP_ERR => {
                "the peer refuses the message: run both ends with the same --size and --mtu".to_owned()
            }
            CompletionStatus::RETRY_EXC_ERR => {
                "the peer does not answer: it has gone, or is another kind of ping-pong".to_owned()
            }
            _ => format!("after {} exchanges", self.received),
        };
        anyhow!(error).context(detail)
    }

    /// Arms the CQ, unless it is armed: whether that was to be done.
    pub(super) fn arm(&mut self) -> Result<bool> {
        if self.armed {
            return Ok(false);
        }
        self.cq.arm(false)?;
        self.armed = true;
        Ok(true)
    }

    /// An event of a CQ has come.
    pub(super) fn fired(&mut self, queue_id: u64) {
        self.armed &= self.cq.id() != queue_id;
    }

    pub(super) fn destroy(self) -> Result<()> {
        for Connection { qp, peer, .. } in self.connections {
            qp.destroy().map_err(uverbs::Error::from)?;
            if let Some((address, _)) = peer {
                address.destroy().map_err(uverbs::Error::from)?;
            }
        }
        if let Some(srq) = self.srq {
            srq.destroy().map_err(uverbs::Error::from)?;
        }
        self.cq.destroy().map_err(uverbs::Error::from)?;
        self.region.destroy().map_err(uverbs::Error::from)?;
        Ok(())
    }
}

impl Connection {
    fn send(&mut self, request: SendRequest<'_>) -> Result<()> {
        let mut request = request.signaled();
        if let Some((address, qp_num)) = &self.peer {
            request = request.to(Destination { address, qp_num: *qp_num, qkey: QKEY });
        }
        self.qp.post_send_list(&[request]).context("posting a send")?;
        (self.sending, self.receiving) = (true, true);
        Ok(())
    }
}

impl Plan<'_> {
    /// Places in memory for messages to arrive in. One will do if there is one QP, which has one message under way, or if nobody
    /// looks at them.
    fn places(&self) -> usize {
        if self.num_qp() > 1 && self.options.chk { self.options.rx_depth as usize } else { 1 }
    }

    /// What the examples of libibverbs send.
    fn filling(&self) -> u8 {
        if self.shared.is_some() { SHARED_FILLING } else { FILLING }
    }

    /// Which message is sent for the one with that number. With many QPs it is always the same: a server of libibverbs has one
    /// place for what all of them receive and send.
    fn number(&self, count: u64) -> u64 {
        if self.num_qp() > 1 { 0 } else { count }
    }
}

/// The message with that number. The first byte of each page is zero, as the server of libibverbs checks.
fn fill(message: &mut [u8], number: u64) {
    for (at, byte) in message.iter_mut().enumerate() {
        *byte =
            if at % PAGE == 0 { 0 } else { (at as u64 ^ (at as u64 >> 8) ^ number.wrapping_mul(0x9d)) as u8 };
    }
}

/// Whether it is what a client of libibverbs sends: always the same, and with zeros if it is to be checked.
fn is_reference_message(message: &[u8], filling: u8) -> bool {
    message.iter().enumerate().all(|(at, byte)| *byte == filling || at % PAGE == 0 && *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_differ_and_suit_the_reference() {
        let (mut first, mut second) = (vec![0xff; 10_000], vec![0xff; 10_000]);
        fill(&mut first, 1);
        fill(&mut second, 2);
        assert_ne!(first, second);
        assert!([0, 4096, 8192].iter().all(|&at| first[at] == 0));
        assert!(!is_reference_message(&first, FILLING));
        assert!(!is_reference_message(&first, SHARED_FILLING));
    }

    #[test]
    fn messages_of_the_reference_are_known() {
        let mut message = vec![FILLING; 5000];
        assert!(is_reference_message(&message, FILLING));
        (message[0], message[4096]) = (0, 0);
        assert!(is_reference_message(&message, FILLING));
        assert!(!is_reference_message(&message, SHARED_FILLING));
        message[1] = 0;
        assert!(!is_reference_message(&message, FILLING));
        assert!(is_reference_message(&[0; 5000], SHARED_FILLING));
    }
}
