//! `uverbs pingpong`: the examples of libibverbs, with their flags and their protocol.

mod exchange;
mod rc;

use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use uverbs::{Context, Gid, GidEntry, IpFamily, Mtu};

use crate::output;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Over a reliable connection: the other end can be `ibv_rc_pingpong`.
    Rc(Options),
}

/// The flags are those of `ibv_rc_pingpong`.
#[derive(Args)]
pub(crate) struct Options {
    /// Host to connect to. Without it, wait for a connection.
    #[arg(conflicts_with = "loopback")]
    host: Option<String>,
    /// Run both ends in this process.
    #[arg(long)]
    loopback: bool,
    /// TCP port to connect to or listen on.
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Device; the first one if it is not given.
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    device: Option<String>,
    /// Port of the device.
    #[arg(short = 'i', long = "ib-port", value_name = "PORT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Bytes in a message.
    #[arg(short, long, default_value_t = 4096)]
    size: u32,
    /// Path MTU in bytes, the same at both ends: 256, 512, 1024, 2048 or 4096. It is at most the active MTU of the port; 1024 or
    /// that if it is not given.
    #[arg(short, long, value_parser = parse_mtu)]
    mtu: Option<Mtu>,
    /// Receives to post at a time.
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    rx_depth: u32,
    /// Number of exchanges.
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
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

fn parse_mtu(text: &str) -> Result<Mtu, String> {
    text.parse().ok().and_then(Mtu::from_bytes).ok_or_else(|| "not 256, 512, 1024, 2048 or 4096".to_owned())
}

impl Options {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// The path MTU to use on a port.
    fn path_mtu(&self, active: Option<Mtu>) -> Result<Mtu> {
        match (self.mtu, active) {
            (Some(asked), Some(active)) if asked > active => {
                bail!(
                    "EINVAL: a path MTU of {asked} is more than the active MTU of port {}, {active}",
                    self.ib_port
                )
            }
            (Some(asked), _) => Ok(asked),
            (None, active) => Ok(active.map_or(Mtu::Bytes1024, |active| active.min(Mtu::Bytes1024))),
        }
    }

    /// The own GID: as asked for, or one that can reach a peer of that family.
    fn gid(&self, context: &Context, family: IpFamily) -> Result<GidEntry> {
        if let Some(index) = self.gid_idx {
            return Ok(context.query_gid(self.ib_port, u32::from(index))?);
        }
        let of_family = context.routable_gid(self.ib_port, Some(family));
        let gid = of_family.or_else(|_| context.routable_gid(self.ib_port, None))?;
        Ok(gid)
    }
}

/// One end of a connection, as the ends tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Endpoint {
    lid: u16,
    qp_num: u32,
    psn: u32,
    gid: Gid,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { lid, qp_num, psn, gid } = self;
        write!(f, "LID {lid:#06x}, QPN {qp_num:#08x}, PSN {psn:#08x}, GID {gid}")
    }
}

/// What a run has measured.
#[derive(Serialize)]
struct Report {
    ifname: String,
    size: u32,
    iters: u64,
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
    let Command::Rc(options) = command;
    rc::run(options, json)
}
