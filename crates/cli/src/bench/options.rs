//! Options, with perftest's letters.

use std::fmt;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use uverbs::{Mtu, QueuePairType};

use super::agreed::MOST_SECONDS;
use crate::connect::parse_mtu;

/// What a server takes from its client.
const AGREEMENT: &str = "The client decides about -c, -s, -a, -n, -D, -m, -q and -b. A server needs none of them; if it is given one, it has \
                         to be the same. All others are of one end. Both print the same results.";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Latency in µs, one operation at a time: as ib_send_lat and its kin.
    ///
    /// Of a send or write it is half of the time that a message and its answer take, of a read or atomic the time until it has
    /// completed.
    #[command(after_help = AGREEMENT)]
    Lat(Latency),
    /// Bandwidth and message rate, with many operations under way: as ib_send_bw and its kin.
    #[command(after_help = AGREEMENT)]
    Bw(Bandwidth),
}

#[derive(Args)]
pub(crate) struct Latency {
    #[command(flatten)]
    options: Options,
    /// Print how many latencies there are up to each of some, which grow by a quarter; empty ones are left out.
    #[arg(long)]
    histogram: bool,
}

#[derive(Args)]
pub(crate) struct Bandwidth {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    queues: Queues,
}

/// What only tests of bandwidth have.
#[derive(Args, Default)]
pub(crate) struct Queues {
    /// Operations under way on each QP, at most [default: 128].
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) tx_depth: Option<u32>,
    /// Number of QPs, which share one CQ; the same at both ends [default: 1].
    #[arg(short = 'q', long, value_name = "QPS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) qp: Option<u32>,
    /// Operations posted with one doorbell [default: 1].
    #[arg(short = 'l', long = "post_list", value_name = "OPERATIONS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) post_list: Option<u32>,
    /// Have every so many operations make a completion, at most --tx-depth [default: 100, or the post list, or --tx-depth if that is
    /// less; 1 for messages of one size of more than 8192 bytes, and on EFA, which completes every one].
    #[arg(short = 'Q', long, value_name = "OPERATIONS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) cq_mod: Option<u32>,
    /// Do not look for the peak. It is not looked for beyond 20000 operations on each QP or a million in all either, nor with --duration.
    #[arg(short = 'N', long, alias = "noPeak")]
    pub(super) no_peak: bool,
    /// Both ends send at once, and the sum counts; the same at both ends.
    #[arg(short, long)]
    pub(super) bidirectional: bool,
    /// Bandwidth in Gb/sec, 10^9 bits, instead of MiB/sec, 2^20 bytes.
    #[arg(long = "report_gbits", alias = "report-gbits")]
    pub(super) report_gbits: bool,
}

#[derive(Args)]
pub(crate) struct Options {
    /// Operation to measure.
    #[arg(value_enum)]
    pub(super) verb: Verb,
    /// Host to connect to. Without it, wait for a connection.
    #[arg(conflicts_with = "loopback")]
    pub(super) host: Option<String>,
    /// Run both ends in this process, each in a thread.
    #[arg(long)]
    pub(super) loopback: bool,
    /// TCP port to connect to or listen on.
    #[arg(short, long, default_value_t = 18515, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,
    /// Device; if it is not given the first one, or with --loopback the first one that works, or else soft0, which is inside this process.
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    pub(super) device: Option<String>,
    /// Port of the device.
    #[arg(short = 'i', long = "ib-port", value_name = "PORT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    pub(super) ib_port: u8,
    /// Index of the own GID. If it is not given: one for RoCE v2, of the address family of the TCP connection, rather not link-local,
    /// with the lowest index.
    #[arg(short = 'x', long, value_name = "INDEX")]
    pub(super) gid_index: Option<u8>,
    /// How the QPs are connected: sends RC, UC, UD, SRD; writes RC, UC, SRD; reads RC, SRD; atomics RC [default: RC, on EFA SRD].
    #[arg(short, long, ignore_case = true)]
    pub(super) connection: Option<Connection>,
    /// Bytes in a message [default: 2 for latency, 65536 for bandwidth or as many as fit; atomics have 8].
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) size: Option<u32>,
    /// All sizes that are powers of two, from 2 bytes to 2^23, or to the largest message.
    #[arg(short, long, conflicts_with = "size")]
    pub(super) all: bool,
    /// Number of operations, on each QP [default: 1000, of writes for bandwidth 5000].
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) iters: Option<u64>,
    /// Run for so many seconds, each size.
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with = "iters", value_parser = clap::value_parser!(u64).range(1..MOST_SECONDS))]
    pub(super) duration: Option<u64>,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096 [default: the smaller active MTU of the two ports].
    #[arg(short, long, value_parser = parse_mtu)]
    pub(super) mtu: Option<Mtu>,
    /// Send messages of up to so many bytes inline [default: for latency 236, 220 for writes, 188 by UD, 32 on EFA, if the device can;
    /// for bandwidth 0].
    #[arg(short = 'I', long = "inline_size", value_name = "BYTES")]
    pub(super) inline_size: Option<u32>,
    /// Sleep until completions arrive instead of polling.
    #[arg(short, long)]
    pub(super) events: bool,
    /// Receives posted on each QP [default: 512, or as many as there is room for].
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rx_depth: Option<u32>,
    /// Service level.
    #[arg(short = 'S', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..16))]
    pub(super) sl: u8,
    /// Give up when nothing has happened for this many seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(super) timeout: u64,
}

impl Options {
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

impl Command {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Lat(_) => Kind::Lat,
            Self::Bw(_) => Kind::Bw,
        }
    }

    pub(super) fn options(&self) -> &Options {
        match self {
            Self::Lat(Latency { options, .. }) | Self::Bw(Bandwidth { options, .. }) => options,
        }
    }

    /// What only tests of bandwidth have.
    pub(super) fn queues(&self) -> Option<&Queues> {
        match self {
            Self::Lat(_) => None,
            Self::Bw(Bandwidth { queues, .. }) => Some(queues),
        }
    }

    pub(super) fn wants_histogram(&self) -> bool {
        matches!(self, Self::Lat(Latency { histogram: true, .. }))
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Lat,
    Bw,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lat => "lat",
            Self::Bw => "bw",
        })
    }
}

/// An operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verb {
    /// Messages that take receives.
    Send,
    /// RDMA writes. For latency the peer sees them arrive in its memory; over SRD, which keeps no order, by immediate data.
    Write,
    /// RDMA reads.
    Read,
    /// Atomic fetch and add of 8 bytes.
    Atomic,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
        })
    }
}

/// How QPs are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "UPPER")]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Connection {
    /// Reliable connection.
    Rc,
    /// Unreliable connection: a message that is lost is not sent again.
    Uc,
    /// Unreliable datagrams.
    Ud,
    /// EFA's scalable reliable datagrams.
    Srd,
}

impl Connection {
    pub(super) fn queue_pairs(self) -> QueuePairType {
        match self {
            Self::Rc => QueuePairType::ReliableConnection,
            Self::Uc => QueuePairType::UnreliableConnection,
            Self::Ud => QueuePairType::UnreliableDatagram,
            Self::Srd => QueuePairType::ScalableReliableDatagram,
        }
    }

    /// Whether every message arrives, or the sender hears of it.
    pub(super) fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Srd)
    }

    /// Which of them carry an operation.
    pub(super) fn of(verb: Verb) -> &'static [Self] {
        match verb {
            Verb::Send => &[Self::Rc, Self::Uc, Self::Ud, Self::Srd],
            Verb::Write => &[Self::Rc, Self::Uc, Self::Srd],
            Verb::Read => &[Self::Rc, Self::Srd],
            Verb::Atomic => &[Self::Rc],
        }
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.queue_pairs(), f)
    }
}
