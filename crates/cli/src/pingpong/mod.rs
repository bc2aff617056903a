//! `uverbs pingpong`: the examples of libibverbs, with their flags and their protocol.

mod end;
mod exchange;
mod traffic;

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand};
use serde::Serialize;
use uverbs::{GidEntry, IpFamily, Mtu, PortAttributes, QueuePairType};

use crate::connect::{Endpoint, Route, announce, open, own_gid, parse_mtu};
use crate::output;
use crate::peer::Peer;
use end::{End, Role};
use exchange::{exchange_as_client, exchange_as_server};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Over a reliable connection: the other end can be `ibv_rc_pingpong`.
    Rc(Connected),
    /// Over an unreliable connection: the other end can be `ibv_uc_pingpong`. A message that is lost is not sent again.
    Uc(Connected),
    /// By unreliable datagrams: the other end can be `ibv_ud_pingpong`. A message that is lost is not sent again.
    Ud(Options),
    /// Over reliable connections that share a receive queue: the other end can be `ibv_srq_pingpong`.
    Srq(Shared),
}

/// The flags are those of libibverbs' examples.
#[derive(Args)]
pub(crate) struct Options {
    /// Host to connect to. Without it, wait for a connection.
    #[arg(conflicts_with = "loopback")]
    host: Option<String>,
    /// Run both ends in this process.
    #[arg(long)]
    loopback: bool,
    /// TCP port to connect to or listen on.
    #[arg(short, long, default_value_t = 18515, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Device; if it is not given the first one, or with --loopback the first one that works, or else soft0, which is inside this process.
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    device: Option<String>,
    /// Port of the device.
    #[arg(short = 'i', long = "ib-port", value_name = "PORT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Bytes in a message. If it is not given: 4096, and 1024 for datagrams, which are at most the active MTU of the port.
    #[arg(short, long)]
    size: Option<u32>,
    /// Receives to post at a time.
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    rx_depth: u32,
    /// Number of exchanges, of all QPs together.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    iters: u64,
    /// Service level.
    #[arg(short = 'l', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..16))]
    sl: u8,
    /// Sleep until completions arrive instead of polling.
    #[arg(short, long)]
    events: bool,
    /// Index of the own GID. If it is not given: one for RoCE v2, of the address family of the TCP connection, rather not link-local,
    /// with the lowest index.
    #[arg(short, long)]
    gid_idx: Option<u8>,
    /// Check the contents of every message received.
    #[arg(short, long)]
    chk: bool,
    /// Give up when nothing has happened for this many seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

#[derive(Args)]
pub(crate) struct Connected {
    #[command(flatten)]
    options: Options,
    /// Path MTU in bytes, the same at both ends: 256, 512, 1024, 2048 or 4096. It is at most the active MTU of the port; 1024 or
    /// that if it is not given.
    #[arg(short, long, value_parser = parse_mtu)]
    mtu: Option<Mtu>,
}

#[derive(Args)]
pub(crate) struct Shared {
    #[command(flatten)]
    connected: Connected,
    /// Number of QPs, the same at both ends.
    #[arg(short = 'q', long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..MOST_QPS as i64))]
    num_qp: u32,
}

/// The examples tell each other so many addresses if there is an SRQ, and use at least one less.
const MOST_QPS: usize = 256;

impl Options {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// One run.
struct Plan<'a> {
    options: &'a Options,
    kind: QueuePairType,
    /// QPs that share a receive queue; one has its own if there is no number.
    shared: Option<u32>,
    /// Path MTU; for datagrams the largest message.
    mtu: Mtu,
    /// Bytes in a message.
    size: usize,
}

impl<'a> Plan<'a> {
    fn new(command: &'a Command, port: &PortAttributes) -> Result<Self> {
        let (options, kind, asked, shared) = command.parts();
        let number = options.ib_port;
        let is_datagram = kind == QueuePairType::UnreliableDatagram;
        let mtu = match (asked, port.active_mtu) {
            (Some(asked), Some(active)) if asked > active => {
                bail!("EINVAL: a path MTU of {asked} is more than the active MTU of port {number}, {active}")
            }
            (Some(asked), _) => asked,
            (None, active) if is_datagram => active.unwrap_or(Mtu::Bytes4096),
            (None, active) => active.map_or(Mtu::Bytes1024, |active| active.min(Mtu::Bytes1024)),
        };
        let size = options.size.unwrap_or(if is_datagram { 1024 } else { 4096 });
        let (most, what) = if is_datagram {
            (mtu.bytes(), "the active MTU")
        } else {
            (port.max_message_size, "the largest message")
        };
        ensure!(size <= most, "EINVAL: --size {size} is more than {what} of port {number}, {most}");
        if let Some(num_qp) = shared {
            let depth = options.rx_depth;
            ensure!(
                num_qp <= depth,
                "EINVAL: --rx-depth {depth} is less than a receive for each QP, --num-qp {num_qp}"
            );
        }
        Ok(Self { options, kind, shared, mtu, size: size as usize })
    }

    fn num_qp(&self) -> u32 {
        self.shared.unwrap_or(1)
    }

    /// What a receive has room for before the message: datagrams arrive behind a global routing header.
    fn header(&self) -> usize {
        if self.kind == QueuePairType::UnreliableDatagram { 40 } else { 0 }
    }

    /// The addresses of an end as they are told: those of an SRQ are always as many.
    fn told(&self, own: &[Endpoint]) -> Vec<Endpoint> {
        let mut told = own.to_vec();
        if self.shared.is_some() {
            told.resize(MOST_QPS, Endpoint::default());
        }
        told
    }

    /// The addresses of the peer's QPs, of those that it told.
    fn used(&self, told: &[Endpoint]) -> Result<Vec<Endpoint>> {
        if self.shared.is_none() {
            return Ok(told.to_vec());
        }
        let used: Vec<_> = told.iter().take_while(|endpoint| endpoint.qp_num != 0).copied().collect();
        let (own, theirs) = (self.num_qp(), used.len());
        ensure!(
            theirs == own as usize,
            "the peer has {theirs} QPs, this end {own}: run both with the same --num-qp"
        );
        Ok(used)
    }
}

impl Command {
    /// Options, type of QP, path MTU, number of QPs that share a receive queue.
    fn parts(&self) -> (&Options, QueuePairType, Option<Mtu>, Option<u32>) {
        let reliable = QueuePairType::ReliableConnection;
        match self {
            Self::Rc(Connected { options, mtu }) => (options, reliable, *mtu, None),
            Self::Uc(Connected { options, mtu }) => {
                (options, QueuePairType::UnreliableConnection, *mtu, None)
            }
            Self::Ud(options) => (options, QueuePairType::UnreliableDatagram, None, None),
            Self::Srq(Shared { connected: Connected { options, mtu }, num_qp }) => {
                (options, reliable, *mtu, Some(*num_qp))
            }
        }
    }
}

/// What a run has measured.
#[derive(Serialize)]
struct Report {
    ifname: String,
    size: usize,
    iters: u64,
    num_qp: u32,
    events: bool,
    mtu: u32,
    gid_index: u32,
    /// In both directions.
    bytes: u64,
    seconds: f64,
    mbit_per_second: f64,
    usec_per_iter: f64,
    /// Messages whose contents were checked.
    checked: u64,
}

impl Report {
    fn print(&self, json: bool) -> Result<()> {
        output::print(json, self, |out, report| {
            writeln!(
                out,
                "{} bytes in {:.2} seconds = {:.2} Mbit/sec",
                report.bytes, report.seconds, report.mbit_per_second
            )?;
            writeln!(
                out,
                "{} iters in {:.2} seconds = {:.2} usec/iter",
                report.iters, report.seconds, report.usec_per_iter
            )
        })
    }
}

pub(crate) fn run(command: &Command, json: bool) -> Result<()> {
    let (options, ..) = command.parts();
    let context = open(options.device.as_deref(), options.loopback, json)?;
    let attributes = context.query_port(options.ib_port)?;
    let plan = Plan::new(command, &attributes)?;
    // The index is looked at before anybody connects; without one, the peer's address decides.
    if let Some(index) = options.gid_idx {
        context.query_gid(options.ib_port, u32::from(index))?;
    }
    let domain = context.alloc_protection_domain()?;
    let channel = options.events.then(|| context.create_completion_channel()).transpose()?;
    let new_end = |role| End::new(&plan, role, &context, &domain, channel.as_ref());
    let endpoints = |end: &End<'_>, gid: &GidEntry| -> Vec<Endpoint> {
        end.qp_nums().map(|qp_num| Endpoint::new(attributes.lid, gid.gid, qp_num)).collect()
    };
    let route = |gid: &GidEntry| Route {
        port: options.ib_port,
        gid: *gid,
        service_level: options.sl,
        mtu: plan.mtu,
        reads: [1, 1],
    };

    let (mut ends, gid) = if options.loopback {
        let mut ends = vec![new_end(Role::Server)?, new_end(Role::Client)?];
        let gid = own_gid(&context, options.ib_port, options.gid_idx, IpFamily::V4)?;
        let [server, client] = [endpoints(&ends[0], &gid), endpoints(&ends[1], &gid)];
        announce(json, &client, &server)?;
        ends[0].connect(&server, &client, &route(&gid))?;
        ends[1].connect(&client, &server, &route(&gid))?;
        (ends, gid)
    } else {
        let role = if options.host.is_some() { Role::Client } else { Role::Server };
        let mut end = new_end(role)?;
        let peer = match &options.host {
            Some(host) => Peer::connect(host, options.port, options.timeout())?,
            None => Peer::accept(Peer::listen(options.port)?, options.timeout())?,
        };
        let gid = own_gid(&context, options.ib_port, options.gid_idx, peer.family())?;
        let own = endpoints(&end, &gid);
        let told = plan.told(&own);
        let mut connect = |others: &[Endpoint]| end.connect(&own, &plan.used(others)?, &route(&gid));
        let others = match role {
            Role::Client => {
                let others = exchange_as_client(peer, &told)?;
                connect(&others)?;
                others
            }
            Role::Server => exchange_as_server(peer, &told, connect)?,
        };
        announce(json, &own, &plan.used(&others)?)?;
        (vec![end], gid)
    };

    let seconds = traffic::exchange_messages(&plan, &mut ends, channel.as_ref())?.as_secs_f64();
    let bytes = plan.size as u64 * options.iters * 2;
    let report = Report {
        ifname: context.device().name().to_owned(),
        size: plan.size,
        iters: options.iters,
        num_qp: plan.num_qp(),
        events: options.events,
        mtu: plan.mtu.bytes(),
        gid_index: gid.index,
        bytes,
        seconds,
        mbit_per_second: bytes as f64 * 8.0 / seconds / 1e6,
        usec_per_iter: seconds * 1e6 / options.iters as f64,
        checked: ends.iter().map(End::checked).sum(),
    };
    // Everything goes by the kernel's own word, so that a fault in the order of things shows.
    ends.into_iter().try_for_each(End::destroy)?;
    channel.map_or(Ok(()), |channel| channel.destroy().map_err(uverbs::Error::from))?;
    domain.destroy().map_err(uverbs::Error::from)?;
    context.close().map_err(uverbs::Error::from)?;
    report.print(json)
}
