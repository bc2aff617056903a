//! What both ends of a test do alike.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use uverbs::{AccessFlags, Mtu};

use super::limits::Limits;
use super::options::{Command, Connection, Kind, Verb};

/// A test is shorter than this.
pub(super) const MOST_SECONDS: u64 = 1_000_000;
/// Bytes of an atomic operation.
pub(super) const ATOMIC: u32 = 8;

/// Which end waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
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
        limits.check(verb, connection)?;
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
        let is_sound = !self.sizes.is_empty()
            && !self.sizes.contains(&0)
            && self.num_qp > 0
            && self.mtu.is_none_or(|mtu| Mtu::from_bytes(mtu).is_some())
            && self.duration.is_none_or(|seconds| seconds < MOST_SECONDS);
        ensure!(is_sound, "EINVAL: the client asks for what cannot be: {self:?}");
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
            Verb::Write if self.has_immediate() => "RDMA_Write_imm",
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
