//! The ping-pong over a reliable connection.

use std::hash::{BuildHasher, RandomState};
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use uverbs::{
    AccessFlags, AddressVector, CompletionChannel, CompletionQueue, CompletionStatus, Context, GidEntry,
    IpFamily, MemoryRegion, ModifyQueuePair, Mtu, ProtectionDomain, QueuePair, QueuePairCapabilities,
    QueuePairInit, ReceiveRequest, SendRequest, WorkCompletion,
};

use super::exchange::Peer;
use super::{Endpoint, Options, Report};
use crate::find_device;

const RECEIVE: u64 = 1;
const SEND: u64 = 2;
/// What libibverbs' examples fill their messages with.
const FILLING: u8 = 0x7b;
const PAGE: usize = 4096;

/// Which end sends first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

/// One end.
struct End<'a> {
    options: &'a Options,
    role: Role,
    cq: CompletionQueue,
    armed: bool,
    qp: QueuePair,
    /// What is sent, then room for what is received. A server sends what it received.
    region: MemoryRegion,
    size: usize,
    inline: bool,
    receives: u32,
    /// Completions still to come before the next message can be sent.
    waiting_for: u64,
    sent: u64,
    received: u64,
    checked: u64,
    message: Vec<u8>,
}

pub(super) fn run(options: &Options, json: bool) -> Result<()> {
    let context = find_device(options.device.as_deref())?.open()?;
    let attributes = context.query_port(options.ib_port)?;
    let mtu = options.path_mtu(attributes.active_mtu)?;
    // The index is looked at before anybody connects; without one, the peer's address decides.
    if let Some(index) = options.gid_idx {
        context.query_gid(options.ib_port, u32::from(index))?;
    }
    let domain = context.alloc_protection_domain()?;
    let channel = options.events.then(|| context.create_completion_channel()).transpose()?;
    let new_end = |role| End::new(options, role, &context, &domain, channel.as_ref());
    let endpoint = |end: &End<'_>, gid: &GidEntry| Endpoint {
        lid: attributes.lid,
        qp_num: end.qp.qp_num(),
        psn: RandomState::new().hash_one(0) as u32 & 0xff_ffff,
        gid: gid.gid,
    };

    let (mut ends, gid) = if options.loopback {
        let mut ends = vec![new_end(Role::Server)?, new_end(Role::Client)?];
        let gid = options.gid(&context, IpFamily::V4)?;
        let addresses = [endpoint(&ends[0], &gid), endpoint(&ends[1], &gid)];
        announce(json, &addresses[1], &addresses[0])?;
        ends[0].connect(&addresses[0], &addresses[1], &gid, mtu)?;
        ends[1].connect(&addresses[1], &addresses[0], &gid, mtu)?;
        (ends, gid)
    } else {
        let role = if options.host.is_some() { Role::Client } else { Role::Server };
        let mut end = new_end(role)?;
        let peer = match &options.host {
            Some(host) => Peer::connect(host, options.port, options.timeout())?,
            None => Peer::accept(options.port, options.timeout())?,
        };
        let gid = options.gid(&context, peer.family())?;
        let own = endpoint(&end, &gid);
        let other = match role {
            Role::Client => {
                let other = peer.exchange_as_client(&own)?;
                end.connect(&own, &other, &gid, mtu)?;
                other
            }
            Role::Server => peer.exchange_as_server(&own, |other| end.connect(&own, other, &gid, mtu))?,
        };
        announce(json, &own, &other)?;
        (vec![end], gid)
    };

    let seconds = exchange_messages(options, &mut ends, channel.as_ref())?.as_secs_f64();
    let bytes = u64::from(options.size) * options.iters * 2;
    let report = Report {
        ifname: context.device().name().to_owned(),
        size: options.size,
        iters: options.iters,
        events: options.events,
        mtu: mtu.bytes(),
        gid_index: gid.index,
        bytes,
        seconds,
        mbit_per_second: bytes as f64 * 8.0 / seconds / 1e6,
        usec_per_iter: seconds * 1e6 / options.iters as f64,
        checked: ends.iter().map(|end| end.checked).sum(),
    };
    // Everything goes by the kernel's own word, so that a fault in the order of things shows.
    ends.into_iter().try_for_each(End::destroy)?;
    channel.map_or(Ok(()), |channel| channel.destroy().map_err(uverbs::Error::from))?;
    domain.destroy().map_err(uverbs::Error::from)?;
    context.close().map_err(uverbs::Error::from)?;
    report.print(json)
}

fn announce(json: bool, own: &Endpoint, other: &Endpoint) -> Result<()> {
    if !json {
        let mut out = std::io::stdout().lock();
        writeln!(out, "  local address:  {own}\n  remote address: {other}")?;
        out.flush()?;
    }
    Ok(())
}

impl<'a> End<'a> {
    fn new(
        options: &'a Options,
        role: Role,
        context: &Context,
        domain: &ProtectionDomain,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self> {
        let size = options.size as usize;
        let mut region = domain.allocate((2 * size).max(1), AccessFlags::LOCAL_WRITE)?;
        region.write(0, &vec![FILLING; size]);
        let entries = options.rx_depth.saturating_add(1);
        let cq = context.create_completion_queue(entries, channel, 0)?;
        let capabilities =
            QueuePairCapabilities { max_recv_wr: options.rx_depth, ..QueuePairCapabilities::default() };
        let mut qp = domain
            .create_queue_pair(&QueuePairInit { capabilities, ..QueuePairInit::reliable_connection(&cq) })?;
        qp.modify(&ModifyQueuePair::init(options.ib_port, AccessFlags::empty()))?;
        let inline = size <= qp.capabilities().max_inline_data as usize;
        let mut end = Self {
            options,
            role,
            cq,
            armed: false,
            qp,
            region,
            size,
            inline,
            receives: 0,
            waiting_for: RECEIVE,
            sent: 0,
            received: 0,
            checked: 0,
            message: vec![0; size],
        };
        end.post_receives()?;
        Ok(end)
    }

    fn connect(&mut self, own: &Endpoint, peer: &Endpoint, gid: &GidEntry, mtu: Mtu) -> Result<()> {
        let sgid_index = u8::try_from(gid.index).with_context(|| {
            format!("GID index {} is more than the kernel's interface takes, 255", gid.index)
        })?;
        let mut address = AddressVector::global(self.options.ib_port, peer.gid, sgid_index);
        address.dlid = peer.lid;
        address.service_level = self.options.sl;
        if peer.gid == uverbs::Gid::default() {
            ensure!(peer.lid != 0, "the peer has no GID: on RoCE it needs one too (-g)");
            address.global_route = None;
        }
        self.qp
            .modify(&ModifyQueuePair::ready_to_receive(address, peer.qp_num, peer.psn, mtu))
            .with_context(|| format!("connecting to {peer}"))?;
        Ok(self.qp.modify(&ModifyQueuePair::ready_to_send(own.psn))?)
    }

    fn post_receives(&mut self) -> Result<()> {
        let sges = [self.region.sge(self.size..2 * self.size)];
        while self.receives < self.options.rx_depth {
            self.qp.post_receive(&[ReceiveRequest::new(RECEIVE, &sges)]).context("posting a receive")?;
            self.receives += 1;
        }
        Ok(())
    }

    /// Sends the next message: a client's own, a server's as received.
    fn send(&mut self) -> Result<()> {
        let start = match self.role {
            Role::Client => 0,
            Role::Server => self.size,
        };
        if self.options.chk && self.role == Role::Client {
            fill(&mut self.message, self.sent);
            self.region.write(0, &self.message);
            // What arrives must have arrived, not been there before.
            self.region.write(self.size, &vec![!FILLING; self.size]);
        }
        let range = start..start + self.size;
        if self.inline {
            self.region.read(start, &mut self.message);
            let parts = [&self.message[..]];
            let request = SendRequest::send_inline(SEND, &parts).signaled();
            self.qp.post_send_list(&[request]).context("posting a send")?;
        } else {
            let sges = [self.region.sge(range)];
            self.qp.post_send_list(&[SendRequest::send(SEND, &sges).signaled()]).context("posting a send")?;
        }
        self.waiting_for = RECEIVE | SEND;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.sent >= self.options.iters && self.received >= self.options.iters
    }

    /// Handles what has completed, and says whether anything had.
    fn progress(&mut self) -> Result<bool> {
        let mut completions = [WorkCompletion::default(); 2];
        let completions = self.cq.poll(&mut completions);
        for completion in completions {
            let success = completion.success().map_err(|error| {
                anyhow!(error).context(match error.status {
                    // soft-RoCE calls a receive that is too small an operation error, and tells the sender so.
                    CompletionStatus::LOC_LEN_ERR | CompletionStatus::LOC_QP_OP_ERR
                        if error.wr_id == RECEIVE =>
                    {
                        format!(
                            "the peer sends more than {} bytes: run both ends with the same --size",
                            self.size
                        )
                    }
                    CompletionStatus::REM_INV_REQ_ERR | CompletionStatus::REM_OP_ERR => {
                        "the peer refuses the message: run both ends with the same --size and --mtu"
                            .to_owned()
                    }
                    CompletionStatus::RETRY_EXC_ERR => "the peer does not answer, or has gone".to_owned(),
                    _ => format!("after {} exchanges", self.received),
                })
            })?;
            match completion.wr_id() {
                SEND => self.sent += 1,
                _ => {
                    let length = success.byte_len() as usize;
                    ensure!(
                        length == self.size,
                        "the peer sends {length} bytes, not {}: run both ends with the same --size",
                        self.size
                    );
                    self.check()?;
                    self.received += 1;
                    self.receives -= 1;
                    if self.receives <= 1 {
                        self.post_receives()?;
                    }
                }
            }
            self.waiting_for &= !completion.wr_id();
            if self.waiting_for == 0 && self.sent < self.options.iters {
                self.send()?;
            }
        }
        Ok(!completions.is_empty())
    }

    /// Checks the message received: what a client sent comes back; a server knows what clients send.
    fn check(&mut self) -> Result<()> {
        if !self.options.chk {
            return Ok(());
        }
        let mut seen = vec![0; self.size];
        self.region.read(self.size, &mut seen);
        fill(&mut self.message, self.received);
        if seen != self.message && !(self.role == Role::Server && is_reference_message(&seen)) {
            let at = seen.iter().zip(&self.message).position(|(seen, sent)| seen != sent).unwrap_or_default();
            bail!(
                "message {} is damaged: byte {at} is {:#04x}, not {:#04x}",
                self.received,
                seen[at],
                self.message[at]
            );
        }
        self.checked += 1;
        Ok(())
    }

    fn destroy(self) -> Result<()> {
        self.qp.destroy().map_err(uverbs::Error::from)?;
        self.cq.destroy().map_err(uverbs::Error::from)?;
        self.region.destroy().map_err(uverbs::Error::from)?;
        Ok(())
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
fn is_reference_message(message: &[u8]) -> bool {
    message.iter().enumerate().all(|(at, byte)| *byte == FILLING || at % PAGE == 0 && *byte == 0)
}

/// Runs until all ends are done: how long it took.
fn exchange_messages(
    options: &Options,
    ends: &mut [End<'_>],
    channel: Option<&CompletionChannel>,
) -> Result<Duration> {
    let start = Instant::now();
    let mut watch = Watch::new(options);
    for end in &mut *ends {
        if end.role == Role::Client {
            end.send()?;
        }
    }
    while !ends.iter().all(End::is_done) {
        let mut moved = false;
        for end in &mut *ends {
            moved |= end.progress()?;
        }
        if moved {
            watch.moved();
        } else if let Some(channel) = channel {
            wait_for_event(ends, channel, &mut watch)?;
        } else {
            watch.idle(ends)?;
        }
    }
    Ok(start.elapsed())
}

/// Sleeps until a CQ has completions. An end that was not armed is, and is looked at once more before anybody sleeps.
fn wait_for_event(ends: &mut [End<'_>], channel: &CompletionChannel, watch: &mut Watch<'_>) -> Result<()> {
    let mut ready = false;
    for end in ends.iter_mut().filter(|end| !end.armed) {
        end.cq.arm(false)?;
        end.armed = true;
        ready = true;
    }
    if !ready {
        match channel.wait(Some(watch.options.timeout()))? {
            Some(event) => {
                for end in ends.iter_mut().filter(|end| end.cq.id() == event.queue_id()) {
                    end.armed = false;
                }
            }
            None => return Err(watch.stalled(ends)),
        }
    }
    watch.report(ends);
    Ok(())
}

/// Looks at the clock now and then: for a peer that has gone, and for a user who waits.
struct Watch<'a> {
    options: &'a Options,
    /// Polls since the last completion.
    idle: u64,
    last_move: Instant,
    next_report: Option<Instant>,
    reported: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if self.reported {
            eprintln!();
        }
    }
}

impl<'a> Watch<'a> {
    fn new(options: &'a Options) -> Self {
        let now = Instant::now();
        let next_report = stderr().is_terminal().then(|| now + Duration::from_secs(2));
        Self { options, idle: 0, last_move: now, next_report, reported: false }
    }

    fn moved(&mut self) {
        self.idle = 0;
    }

    fn idle(&mut self, ends: &[End<'_>]) -> Result<()> {
        std::hint::spin_loop();
        self.idle += 1;
        if self.idle == 1 || self.idle.is_multiple_of(1024) {
            let now = Instant::now();
            if self.idle == 1 {
                self.last_move = now;
            } else if now.duration_since(self.last_move) > self.options.timeout() {
                return Err(self.stalled(ends));
            }
            self.report(ends);
        }
        Ok(())
    }

    #[cold]
    fn stalled(&self, ends: &[End<'_>]) -> anyhow::Error {
        let received = ends.iter().map(|end| end.received).min().unwrap_or_default();
        anyhow!(
            "nothing has happened for {} seconds, after {received} of {} exchanges: has the peer gone, or been \
             started with fewer --iters?",
            self.options.timeout,
            self.options.iters
        )
    }

    fn report(&mut self, ends: &[End<'_>]) {
        if let Some(due) = self.next_report
            && Instant::now() >= due
        {
            let done = ends.iter().map(|end| end.received).min().unwrap_or_default();
            eprint!("\r{done} of {} exchanges", self.options.iters);
            self.reported = true;
            self.next_report = Some(due + Duration::from_secs(1));
        }
    }
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
        assert!(!is_reference_message(&first));
    }

    #[test]
    fn messages_of_the_reference_are_known() {
        let mut message = vec![FILLING; 5000];
        assert!(is_reference_message(&message));
        (message[0], message[4096]) = (0, 0);
        assert!(is_reference_message(&message));
        message[1] = 0;
        assert!(!is_reference_message(&message));
    }
}
