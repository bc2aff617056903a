//! One end: its queues, its memory, and how it posts and polls.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use uverbs::{
    AccessFlags, AddressHandle, CompletionChannel, CompletionError, CompletionQueue, CompletionStatus,
    Context, Destination, ErrorKind, MemoryRegion, ModifyQueuePair, Operation, Payload, ProtectionDomain,
    QueuePair, QueuePairCapabilities, QueuePairInit, ReceiveRequest, RemoteMemory, ScatterGather, SendFlags,
    SendRequest,
};

use super::options::{Connection, Verb};
use super::plan::Plan;
use super::stats::Timeline;
use super::watch::Watch;
use crate::connect::{Endpoint, QKEY, Route};

/// A `wr_id` has the number of the QP below, and above it how many operations it completes, or this for a receive.
const RECEIVE: u64 = 1 << 63;
const COUNT: u32 = 32;
/// Receives that are posted again together, at most.
const REPOSTED: usize = 32;
/// Datagrams arrive behind a global routing header.
const HEADER: usize = 40;
const CACHE_LINE: usize = 64;
/// A sleep is no longer, for the peer may have gone.
const NAP: Duration = Duration::from_millis(100);

pub(super) struct End<'a> {
    pub(super) plan: &'a Plan,
    channel: Option<CompletionChannel>,
    armed: bool,
    cq: CompletionQueue,
    lanes: Vec<Lane>,
    /// A message to send, then the room where messages arrive.
    region: MemoryRegion,
    /// Where that begins, without the header.
    arrival: usize,
    /// What is sent inline.
    message: Vec<u8>,
    /// Messages of so many bytes are.
    inline: u32,
    remote: RemoteMemory,
    room: [ScatterGather; 1],
    /// Operations that have been posted and that have completed, and messages that have been received, in this run.
    pub(super) posted: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// A QP and its share of the work.
struct Lane {
    qp: QueuePair,
    /// Where datagrams go.
    to: Option<(AddressHandle, u32)>,
    /// Operations posted in this run.
    posted: u64,
    /// Those of them that have not completed.
    under_way: u32,
    /// The last of these, which make no completion.
    silent: u32,
    /// Receives that have been used up and not posted again.
    used: u32,
}

impl<'a> End<'a> {
    pub(super) fn new(plan: &'a Plan, context: &Context, domain: &ProtectionDomain) -> Result<Self> {
        let test = &plan.test;
        let channel = plan.events.then(|| context.create_completion_channel()).transpose()?;
        let cq = context.create_completion_queue(plan.completions, channel.as_ref(), 0);
        let cq = cq.context(if plan.events { "a CQ with --events" } else { "a CQ" })?;
        let mut inline = plan.inline;
        let first = match Lane::new(plan, domain, &cq, inline) {
            Err(error) if error.kind() == ErrorKind::InvalidInput && !plan.inline_asked && inline > 0 => {
                inline = 0;
                Lane::new(plan, domain, &cq, inline)?
            }
            Err(error) if plan.inline_asked => Err(error).context(format!("--inline_size {inline}"))?,
            lane => lane?,
        };
        let others = (1..test.num_qp).map(|_| Lane::new(plan, domain, &cq, inline));
        let lanes = [Ok(first)].into_iter().chain(others).collect::<uverbs::Result<_>>()?;
        let size = test.largest() as usize;
        let arrival = (size + HEADER).next_multiple_of(CACHE_LINE);
        let region = domain.allocate(arrival + size, AccessFlags::LOCAL_WRITE | test.access());
        let region = region.with_context(|| format!("memory for {} over {}", test.verb, test.connection))?;
        let header = if test.connection == Connection::Ud { HEADER } else { 0 };
        let room = [region.sge(arrival - header..arrival + size)];
        Ok(Self {
            plan,
            channel,
            armed: false,
            cq,
            lanes,
            arrival,
            message: vec![0; size.min(inline as usize)],
            inline,
            remote: RemoteMemory { address: 0, rkey: 0 },
            room,
            region,
            posted: 0,
            sent: 0,
            received: 0,
        })
    }

    pub(super) fn qp_nums(&self) -> impl Iterator<Item = u32> + '_ {
        self.lanes.iter().map(|lane| lane.qp.qp_num())
    }

    /// Where the peer can write, read or add.
    pub(super) fn target(&self) -> RemoteMemory {
        RemoteMemory { address: self.region.address() + self.arrival as u64, rkey: self.region.rkey() }
    }

    /// Connects each QP to its counterpart, with all receives posted.
    pub(super) fn connect(
        &mut self,
        own: &[Endpoint],
        peers: &[Endpoint],
        remote: RemoteMemory,
        route: &Route,
    ) -> Result<()> {
        ensure!(own.len() == peers.len(), "the peer has {} QPs, this end {}", peers.len(), own.len());
        self.remote = remote;
        let domain = self.region.protection_domain().clone();
        for ((index, lane), (own, peer)) in (0..).zip(&mut self.lanes).zip(own.iter().zip(peers)) {
            for _ in 0..self.plan.rx_depth {
                let request = ReceiveRequest::new(RECEIVE | index, &self.room);
                lane.qp.post_receive(&[request]).context("posting a receive")?;
            }
            let connected = route.connect(&mut lane.qp, &domain, own, peer);
            lane.to = connected.with_context(|| format!("connecting to {peer}"))?;
        }
        Ok(())
    }

    /// Messages of so many bytes are sent inline.
    pub(super) fn inline(&self) -> u32 {
        self.inline
    }

    pub(super) fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// Counts anew. Nothing of this end is under way, and the peer sends nothing until it is told to. What has come too late counts
    /// nowhere.
    pub(super) fn begin(&mut self) -> Result<()> {
        while self.poll()? {}
        (self.posted, self.sent, self.received) = (0, 0, 0);
        self.lanes.iter_mut().for_each(|lane| lane.posted = 0);
        Ok(())
    }

    /// The number of the last operation of a QP, if it is to stop: one that completes, and with it those before.
    pub(super) fn last(&self, index: usize) -> u64 {
        let lane = &self.lanes[index];
        lane.posted + u64::from(lane.silent > 0)
    }

    /// Writes the number of a message into its last byte, if the peer looks for it there.
    #[inline]
    pub(super) fn mark(&mut self, size: u32, number: u64) {
        if self.plan.test.polls_memory() {
            let (last, number) = (size as usize - 1, number as u8);
            match size <= self.inline {
                true => self.message[last] = number,
                false => self.region.write(last, &[number]),
            }
        }
    }

    /// Whether the message with that number has arrived.
    #[inline]
    pub(super) fn has_arrived(&self, size: u32, number: u64) -> bool {
        if !self.plan.test.polls_memory() {
            return self.received >= number;
        }
        let last = self.arrival + size as usize - 1;
        // SAFETY: it is inside of the region, which has room for the largest size behind `arrival` and is mapped as long as it is
        // there. Of this process nobody writes it, and the device does it as one byte.
        let byte = unsafe { AtomicU8::from_ptr(self.region.as_ptr().add(last)) };
        byte.load(Ordering::Acquire) == number as u8
    }

    /// Posts operations on a QP, up to the one with the number `last`, as far as there is room, in lists with one doorbell each.
    #[inline]
    pub(super) fn post(
        &mut self,
        index: usize,
        size: u32,
        last: u64,
        mut timeline: Option<&mut Timeline>,
    ) -> Result<()> {
        let (plan, lane) = (self.plan, &mut self.lanes[index]);
        if lane.next_list(plan, last).is_none() {
            return Ok(());
        }
        let sges = [self.region.sge(0..size as usize)];
        let is_inline = size <= self.inline;
        let parts = [if is_inline { &self.message[..size as usize] } else { &[] }];
        let request = SendRequest {
            wr_id: 0,
            operation: plan.operation(self.remote),
            flags: SendFlags::empty(),
            payload: if is_inline { Payload::Inline(&parts) } else { Payload::Sges(&sges) },
            destination: lane.to.as_ref().map(|(address, qp_num)| Destination {
                address,
                qp_num: *qp_num,
                qkey: QKEY,
            }),
        };
        while let Some(count) = lane.next_list(plan, last) {
            if let Some(timeline) = &mut timeline {
                timeline.posted.push((self.posted, Instant::now()));
            }
            let mut batch = lane.qp.post_send();
            for number in 1..=count {
                lane.silent += 1;
                let ends =
                    lane.posted + u64::from(count) == last || lane.silent + plan.post_list > plan.tx_depth;
                // Without room for another list, nothing would ever complete those that are silent.
                if lane.silent == plan.cq_mod || number == count && ends {
                    let wr_id = u64::from(lane.silent) << COUNT | index as u64;
                    batch = batch.push(&SendRequest { wr_id, ..request.signaled() });
                    lane.silent = 0;
                } else {
                    batch = batch.push(&request);
                }
            }
            batch.submit().with_context(|| format!("posting a {} of {size} bytes", plan.test.verb))?;
            lane.posted += u64::from(count);
            lane.under_way += count;
            self.posted += u64::from(count);
        }
        Ok(())
    }

    /// Takes completions: whether there were any. Receives are posted again, some at a time.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<bool> {
        let mut completions = self.cq.completions();
        let mut any = false;
        while let Some(completion) = completions.next() {
            completion.success().map_err(|error| explain(self.plan, error))?;
            any = true;
            let wr_id = completion.wr_id();
            let lane = &mut self.lanes[wr_id as u32 as usize];
            if wr_id & RECEIVE == 0 {
                let count = (wr_id >> COUNT) as u32;
                lane.under_way -= count;
                self.sent += u64::from(count);
                continue;
            }
            self.received += 1;
            lane.used += 1;
            if lane.used == self.plan.reposted() {
                let requests = [ReceiveRequest::new(wr_id, &self.room); REPOSTED];
                lane.qp.post_receive(&requests[..lane.used as usize]).context("posting receives")?;
                lane.used = 0;
            }
        }
        Ok(any)
    }

    /// Nothing has completed: spins, or sleeps until something has. What completes before the CQ is armed raises no event, so it is
    /// looked at once more before anybody sleeps.
    #[inline]
    pub(super) fn rest(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        match &self.channel {
            None => watch.idle(self.sent.max(self.received)),
            Some(_) if !self.armed => {
                self.armed = true;
                Ok(self.cq.arm(false)?)
            }
            Some(channel) => {
                self.armed = channel.wait(Some(NAP))?.is_none();
                watch.look(self.sent.max(self.received))
            }
        }
    }

    /// Everything goes by the kernel's own word, so that a fault in the order of things shows.
    pub(super) fn destroy(self) -> Result<()> {
        for Lane { qp, to, .. } in self.lanes {
            qp.destroy().map_err(uverbs::Error::from)?;
            if let Some((address, _)) = to {
                address.destroy().map_err(uverbs::Error::from)?;
            }
        }
        self.cq.destroy().map_err(uverbs::Error::from)?;
        self.region.destroy().map_err(uverbs::Error::from)?;
        if let Some(channel) = self.channel {
            channel.destroy().map_err(uverbs::Error::from)?;
        }
        Ok(())
    }
}

impl Lane {
    fn new(
        plan: &Plan,
        domain: &ProtectionDomain,
        cq: &CompletionQueue,
        inline: u32,
    ) -> uverbs::Result<Self> {
        let capabilities = QueuePairCapabilities {
            max_send_wr: plan.tx_depth,
            max_recv_wr: plan.rx_depth.max(1),
            max_inline_data: inline,
            ..QueuePairCapabilities::default()
        };
        let kind = plan.test.connection.queue_pairs();
        let init = QueuePairInit { kind, capabilities, ..QueuePairInit::reliable_connection(cq) };
        let mut qp = domain.create_queue_pair(&init)?;
        qp.modify(&match plan.test.connection {
            Connection::Rc | Connection::Uc => ModifyQueuePair::init(plan.port, plan.test.access()),
            Connection::Ud | Connection::Srd => ModifyQueuePair::datagram_init(plan.port, QKEY),
        })?;
        Ok(Self { qp, to: None, posted: 0, under_way: 0, silent: 0, used: 0 })
    }

    /// How many operations the next list has, if there is room for it and the one with the number `last` has not been posted.
    #[inline]
    fn next_list(&self, plan: &Plan, last: u64) -> Option<u32> {
        let count = u64::from(plan.post_list).min(last - self.posted) as u32;
        (count > 0 && self.under_way + count <= plan.tx_depth).then_some(count)
    }
}

impl Plan {
    /// How many receives are posted again together. Half of them stay posted meanwhile.
    fn reposted(&self) -> u32 {
        (self.rx_depth / 2).clamp(1, REPOSTED as u32)
    }

    fn operation(&self, to: RemoteMemory) -> Operation<'static> {
        match self.test.verb {
            Verb::Send => Operation::Send,
            Verb::Write if self.test.has_immediate() => Operation::RdmaWriteWithImmediate(to, 0),
            Verb::Write => Operation::RdmaWrite(to),
            Verb::Read => Operation::RdmaRead(to),
            Verb::Atomic => Operation::FetchAdd { at: to, add: 1 },
        }
    }
}

#[cold]
fn explain(plan: &Plan, error: CompletionError) -> anyhow::Error {
    let wr_id = error.wr_id & !RECEIVE & u64::from(u32::MAX);
    let what = if error.wr_id & RECEIVE == 0 { "an operation" } else { "a receive" };
    let detail = match error.status {
        CompletionStatus::RETRY_EXC_ERR => ": the peer does not answer",
        _ => "",
    };
    // Of the number of a request nobody knows anything.
    let error = CompletionError { wr_id, ..error };
    anyhow!(error).context(format!("{what} of {} over {}{detail}", plan.test.verb, plan.test.connection))
}
