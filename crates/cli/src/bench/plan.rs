//! What a test does: agreed between the ends, and checked against what the device can before anything is sent.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use uverbs::{AccessFlags, Context, Mtu};

use super::options::{Command, Connection, Kind, Verb};

/// Peaks are not looked for among more operations.
const MOST_FOR_PEAK: u64 = 20_000;
/// Larger messages all make a completion, unless told otherwise.
const MODERATED: u32 = 8192;
const ATOMIC: u32 = 8;

/// What a device can.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) name: String,
    pub(super) is_efa: bool,
    pub(super) port: u8,
    pub(super) mtu: Mtu,
    pub(super) max_message: u32,
    pub(super) max_qp: u32,
    pub(super) max_qp_wr: u32,
    pub(super) max_cqe: u32,
    pub(super) has_atomics: bool,
    /// RDMA reads and atomics under way to a peer, and from one.
    pub(super) reads: [u8; 2],
}

impl Limits {
    pub(super) fn new(context: &Context, port: u8) -> Result<Self> {
        let (device, attributes) = (context.query_device()?, context.query_port(port)?);
        let reads = |most: u32| u8::try_from(most).unwrap_or(u8::MAX);
        Ok(Self {
            name: context.device().name().to_owned(),
            is_efa: context.provider() == "efa",
            port,
            mtu: attributes.active_mtu.unwrap_or(Mtu::Bytes1024),
            max_message: attributes.max_message_size,
            max_qp: device.max_qp,
            max_qp_wr: device.max_qp_wr,
            max_cqe: device.max_cqe,
            has_atomics: device.atomic_cap != 0,
            reads: [reads(device.max_qp_init_rd_atom), reads(device.max_qp_rd_atom)],
        })
    }

    /// The largest message, and what says so. EFA's device tells how much it can read and write by RDMA when it refuses it.
    fn largest(&self, verb: Verb, connection: Connection, mtu: Mtu) -> (u32, String) {
        match (verb, connection) {
            (Verb::Send, Connection::Ud) if !self.is_efa => {
                (mtu.bytes(), format!("a datagram, {}", mtu.bytes()))
            }
            (Verb::Write | Verb::Read, Connection::Srd) => (u32::MAX, "any message".to_owned()),
            _ => (self.max_message, format!("the largest message of {}, {}", self.name, self.max_message)),
        }
    }
}

/// What both ends have to do alike: the client decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Test {
    pub(super) kind: Kind,
    pub(super) verb: Verb,
    pub(super) connection: Connection,
    /// Bytes of messages, one run after the other.
    pub(super) sizes: Vec<u32>,
    /// On each QP.
    pub(super) iters: u64,
    /// Seconds instead.
    pub(super) duration: Option<u64>,
    /// The path MTU in bytes, if it was asked for.
    pub(super) mtu: Option<u32>,
    pub(super) num_qp: u32,
    pub(super) bidirectional: bool,
}

impl Test {
    /// What the options of a client say.
    pub(super) fn new(command: &Command, limits: &Limits) -> Result<Self> {
        let (kind, options, queues) = (command.kind(), command.options(), command.queues());
        let verb = options.verb;
        let preferred = if limits.is_efa { Connection::Srd } else { Connection::Rc };
        let connection = options.connection.unwrap_or(preferred);
        let mtu = options.mtu.unwrap_or(limits.mtu);
        check_connection(verb, connection, limits)?;
        let (largest, _) = limits.largest(verb, connection, mtu);
        let sizes = match (verb, options.all, options.size) {
            (Verb::Atomic, true, _) => bail!("EINVAL: --all: an atomic operation has {ATOMIC} bytes"),
            (Verb::Atomic, ..) => vec![options.size.unwrap_or(ATOMIC)],
            (_, true, _) => (1..=23).map(|power| 1 << power).filter(|size| *size <= largest).collect(),
            (_, false, Some(size)) => vec![size],
            (_, false, None) => vec![if kind == Kind::Lat { 2 } else { largest.min(65536) }],
        };
        let writes = kind == Kind::Bw && verb == Verb::Write;
        Ok(Self {
            kind,
            verb,
            connection,
            sizes,
            iters: options.iters.unwrap_or(if writes { 5000 } else { 1000 }),
            duration: options.duration,
            mtu: options.mtu.map(Mtu::bytes),
            num_qp: queues.and_then(|queues| queues.qp).unwrap_or(1),
            bidirectional: queues.is_some_and(|queues| queues.bidirectional),
        })
    }

    /// Whether a server that was given these options can do it.
    pub(super) fn agree(&self, command: &Command) -> Result<()> {
        let (options, queues) = (command.options(), command.queues());
        let (own, theirs) = ((command.kind(), options.verb), (self.kind, self.verb));
        ensure!(own == theirs, "the client runs {} {}, the server {} {}", theirs.0, theirs.1, own.0, own.1);
        let differs = |option: &str, own: Option<String>, theirs: String| match own {
            Some(own) if own != theirs => {
                bail!(
                    "the client has {option} {theirs}, the server {own}: give the server the same, or nothing"
                )
            }
            _ => Ok(()),
        };
        let text =
            |number: Option<u64>| number.map_or_else(|| "none".to_owned(), |number| number.to_string());
        let given = |number: Option<u64>| number.map(|number| number.to_string());
        let (first, many) = (self.sizes.first().map(|size| u64::from(*size)), self.sizes.len() > 1);
        let size = if many { "all".to_owned() } else { text(first) };
        differs("--connection", options.connection.map(|own| own.to_string()), self.connection.to_string())?;
        differs("--size", given(options.size.map(u64::from)), size.clone())?;
        differs("--size", options.all.then(|| "all".to_owned()), size)?;
        differs(
            "--iters",
            given(options.iters),
            self.duration.map_or(text(Some(self.iters)), |_| text(None)),
        )?;
        differs("--duration", given(options.duration), text(self.duration))?;
        differs("--mtu", options.mtu.map(|mtu| mtu.bytes().to_string()), text(self.mtu.map(u64::from)))?;
        let num_qp = queues.and_then(|queues| queues.qp).map(u64::from);
        differs("--qp", given(num_qp), self.num_qp.to_string())?;
        let both = queues.is_some_and(|queues| queues.bidirectional);
        ensure!(!both || self.bidirectional, "the server has --bidirectional, the client has not");
        Ok(())
    }

    /// Whether an end posts operations that are measured.
    pub(super) fn is_active(&self, role: Role) -> bool {
        role == Role::Client || self.bidirectional
    }

    /// Whether requests carry data to the peer.
    pub(super) fn carries_data(&self) -> bool {
        matches!(self.verb, Verb::Send | Verb::Write)
    }

    /// Whether messages take receives.
    pub(super) fn takes_receives(&self) -> bool {
        self.verb == Verb::Send || self.has_immediate()
    }

    /// Whether a write carries immediate data: the bytes of one over SRD arrive in any order, so memory does not tell that it is there.
    pub(super) fn has_immediate(&self) -> bool {
        self.kind == Kind::Lat && self.verb == Verb::Write && self.connection == Connection::Srd
    }

    /// Whether messages are answered.
    pub(super) fn has_answers(&self) -> bool {
        self.kind == Kind::Lat && self.carries_data()
    }

    /// Whether an end looks for messages in its memory.
    pub(super) fn polls_memory(&self) -> bool {
        self.has_answers() && !self.takes_receives()
    }

    /// What a peer may do to the memory.
    pub(super) fn access(&self) -> AccessFlags {
        match self.verb {
            Verb::Send => AccessFlags::empty(),
            Verb::Write => AccessFlags::REMOTE_WRITE,
            Verb::Read => AccessFlags::REMOTE_READ,
            Verb::Atomic => AccessFlags::REMOTE_ATOMIC,
        }
    }

    /// Of an end, in a run.
    pub(super) fn operations(&self) -> u64 {
        self.iters.saturating_mul(self.num_qp.into())
    }

    pub(super) fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or_default()
    }

    /// As perftest calls it.
    pub(super) fn title(&self, post_list: u32) -> String {
        let verb = match self.verb {
            Verb::Send => "Send",
            Verb::Write => "RDMA_Write",
            Verb::Read => "RDMA_Read",
            Verb::Atomic => "Atomic FETCH_AND_ADD",
        };
        let kind = if self.kind == Kind::Lat { "Latency" } else { "BW" };
        let both = if self.bidirectional { "Bidirectional " } else { "" };
        let list = if post_list > 1 { "Post List " } else { "" };
        format!("{verb} {both}{list}{kind} Test")
    }
}

fn check_connection(verb: Verb, connection: Connection, limits: &Limits) -> Result<()> {
    let is_there = (connection == Connection::Srd) == limits.is_efa || connection == Connection::Ud;
    ensure!(
        is_there,
        "EOPNOTSUPP: --connection {connection}: {} has {}",
        limits.name,
        if limits.is_efa { "SRD and UD" } else { "RC, UC and UD" }
    );
    let carriers = Connection::of(verb);
    let names: Vec<_> = carriers.iter().map(Connection::to_string).collect();
    ensure!(
        carriers.contains(&connection),
        "EINVAL: --connection {connection}: {verb} goes over {}",
        names.join(", ")
    );
    ensure!(verb != Verb::Atomic || limits.has_atomics, "EOPNOTSUPP: {} has no atomics", limits.name);
    Ok(())
}

/// Which end waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

/// What an end does for a test.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) test: Test,
    pub(super) role: Role,
    pub(super) port: u8,
    /// The most that the path MTU can be.
    pub(super) mtu: Mtu,
    pub(super) tx_depth: u32,
    /// Zero if there are no receives.
    pub(super) rx_depth: u32,
    pub(super) post_list: u32,
    pub(super) cq_mod: u32,
    /// Messages of so many bytes go inline.
    pub(super) inline: u32,
    /// Whether it was asked for: then the device has to do it.
    pub(super) inline_asked: bool,
    pub(super) events: bool,
    pub(super) peak: bool,
    /// Room in the CQ.
    pub(super) completions: u32,
}

impl Plan {
    pub(super) fn new(test: Test, command: &Command, limits: &Limits, role: Role) -> Result<Self> {
        let options = command.options();
        let (verb, name, most) = (test.verb, &limits.name, limits.max_qp_wr);
        check_connection(verb, test.connection, limits)?;
        let (asked, mtu) = (test.mtu, limits.mtu);
        let mtu = match asked.and_then(Mtu::from_bytes) {
            Some(asked) if asked > mtu => {
                bail!(
                    "EINVAL: --mtu {asked} is more than the active MTU of port {} of {name}, {mtu}",
                    limits.port
                )
            }
            Some(asked) => asked,
            None => mtu,
        };
        let (largest, what) = limits.largest(verb, test.connection, mtu);
        let size = test.largest();
        ensure!(size <= largest, "EINVAL: --size {size} is more than {what}");
        ensure!(
            verb != Verb::Atomic || size == ATOMIC,
            "EINVAL: --size {size}: an atomic operation has {ATOMIC} bytes"
        );
        let is_polling = test.polls_memory();
        ensure!(!(options.events && is_polling), "EINVAL: --events: a write raises none where it arrives");
        ensure!(
            test.num_qp <= limits.max_qp,
            "EINVAL: --qp {} is more than {name} allows, {}",
            test.num_qp,
            limits.max_qp
        );

        let queues = command.queues();
        let tx_depth = queues.map_or(1, |queues| queues.tx_depth.unwrap_or(128.min(most)));
        ensure!(tx_depth <= most, "EINVAL: --tx-depth {tx_depth} is more than {name} allows, {most}");
        let post_list = queues.and_then(|queues| queues.post_list).unwrap_or(1);
        ensure!(post_list <= tx_depth, "EINVAL: --post_list {post_list} is more than --tx-depth {tx_depth}");
        let cq_mod = match queues.and_then(|queues| queues.cq_mod) {
            Some(asked) if asked > tx_depth => {
                bail!(
                    "EINVAL: --cq-mod {asked} is more than --tx-depth {tx_depth}: no operation would complete"
                )
            }
            Some(asked) if asked > 1 && limits.is_efa => {
                bail!("EINVAL: --cq-mod {asked}: {name} completes every operation")
            }
            Some(asked) => asked,
            None if limits.is_efa || test.sizes.len() == 1 && size > MODERATED => 1,
            None if post_list > 1 => post_list,
            None => 100.min(tx_depth),
        };

        let carries = test.carries_data();
        let inline = match options.inline_size {
            Some(asked) if asked > 0 && !carries => {
                bail!("EINVAL: --inline_size {asked}: {verb} carries no data")
            }
            Some(asked) => asked,
            None if !carries || test.kind == Kind::Bw => 0,
            None if limits.is_efa => 32,
            None if verb == Verb::Write => 220,
            None if test.connection == Connection::Ud => 188,
            None => 236,
        };
        let mut plan = Self {
            role,
            port: limits.port,
            mtu,
            tx_depth,
            rx_depth: 0,
            post_list,
            cq_mod,
            inline,
            inline_asked: options.inline_size.is_some(),
            events: options.events,
            peak: queues.is_some_and(|queues| !queues.no_peak)
                && test.duration.is_none()
                && test.operations() <= MOST_FOR_PEAK,
            completions: 0,
            test,
        };
        plan.share_completions(options.rx_depth, limits)?;
        Ok(plan)
    }

    /// One CQ takes the completions of all QPs: there has to be room for all that may be there at once, or some are lost.
    fn share_completions(&mut self, rx_depth: Option<u32>, limits: &Limits) -> Result<()> {
        let (num_qp, name, most) = (self.test.num_qp, &limits.name, limits.max_cqe);
        let sends = match self.posts() {
            // One for each moderated round, one that is early because the queue is full, and the last.
            true => self.tx_depth.min(self.tx_depth / self.cq_mod + 3),
            false => 0,
        };
        if !self.receives() {
            ensure!(
                rx_depth.is_none() || self.test.takes_receives(),
                "EINVAL: --rx-depth: {} takes no receives",
                self.test.verb
            );
        } else {
            let room = (most.saturating_sub(64) / num_qp).saturating_sub(sends);
            self.rx_depth = rx_depth.unwrap_or(512.min(room).min(limits.max_qp_wr).max(1));
        }
        ensure!(
            self.rx_depth <= limits.max_qp_wr,
            "EINVAL: --rx-depth {} is more than {name} allows, {}",
            self.rx_depth,
            limits.max_qp_wr
        );
        let (total, depths) =
            (u64::from(num_qp) * (u64::from(sends) + u64::from(self.rx_depth)), self.depths());
        // Those that are being looked at are in it still while receives are posted again: 64, or a quarter of it.
        let total = total + total.div_ceil(3).clamp(1, 64);
        match u32::try_from(total) {
            Ok(total) if total <= most => self.completions = total,
            _ => bail!(
                "EINVAL: --qp {num_qp} with {depths} need room for {total} completions, a CQ of {name} has {most}"
            ),
        }
        Ok(())
    }

    fn depths(&self) -> String {
        let Self { tx_depth, cq_mod, rx_depth, .. } = self;
        match (self.posts(), *rx_depth) {
            (true, 0) => format!("--tx-depth {tx_depth} and --cq-mod {cq_mod}"),
            (false, _) => format!("--rx-depth {rx_depth}"),
            (true, _) => format!("--tx-depth {tx_depth}, --cq-mod {cq_mod} and --rx-depth {rx_depth}"),
        }
    }

    /// Whether this end posts sends of any kind.
    pub(super) fn posts(&self) -> bool {
        self.test.is_active(self.role) || self.test.has_answers()
    }

    /// Whether it posts receives.
    pub(super) fn receives(&self) -> bool {
        self.test.takes_receives()
            && (self.role == Role::Server || self.test.bidirectional || self.test.has_answers())
    }
}
