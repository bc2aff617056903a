//! The program `efa-model`: EFA devices for QEMU, over vfio-user.
#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use uverbs_efa_model::Wire;
use uverbs_efa_model::config::{Capabilities, Config, Fault, Limits, QpEvents};
use uverbs_efa_model::server;

/// Serves EFA devices over vfio-user, to QEMU 10.1 and later. The devices of one process are on one wire. RUST_LOG=info
/// or =debug tells what happens.
#[derive(Debug, Parser)]
#[command(name = "efa-model", version)]
struct Options {
    /// Serve a device on this socket; one a device
    #[arg(long = "socket", value_name = "PATH", required = true)]
    sockets: Vec<PathBuf>,

    /// Capability that the devices lack
    #[arg(long, value_name = "CAPABILITY", value_delimiter = ',', value_parser = parse_capability)]
    without: Vec<Capabilities>,

    /// Event that counters cannot count
    #[arg(long, value_name = "EVENT", value_delimiter = ',', value_parser = parse_event)]
    without_event: Vec<QpEvents>,

    /// Set a limit of the devices
    #[arg(long = "limit", value_name = "NAME=NUMBER", long_help = limit_help())]
    limits: Vec<String>,

    /// Let operations fail: PLACE:EFFECT or PLACE:EFFECT:EVERY
    #[arg(long = "fault", value_name = "FAULT", long_help = FAULT_HELP)]
    faults: Vec<Fault>,

    /// PCI number of the devices
    #[arg(long, value_name = "0xefa0..0xefa4", default_value = "0xefa3", value_parser = parse_hex)]
    device_id: u16,

    /// Version of the admin interface: 0.1, 0.2 or 0.3
    #[arg(long, value_name = "VERSION", default_value = "0.3", value_parser = parse_version)]
    api_version: u16,

    /// Milliseconds between keep-alive events; 0 for none
    #[arg(long, value_name = "MILLISECONDS", default_value = "1000")]
    keep_alive: u64,

    /// Milliseconds to wait for an answer of the peer
    #[arg(long, value_name = "MILLISECONDS", default_value = "500")]
    response_timeout: u64,

    /// Milliseconds to wait for a receiver that was not ready
    #[arg(long, value_name = "MILLISECONDS", default_value = "5")]
    rnr_delay: u64,

    /// Answer RDMA requests even if there is no address handle for the sender
    #[arg(long)]
    no_remote_ah: bool,
}

const FAULT_HELP: &str = "\
Let operations fail: PLACE:EFFECT or PLACE:EFFECT:EVERY

PLACE is a kind of request that reaches a device (send, read, write, any) or an admin command (create-qp, reg-mr, ...).
EFFECT is `lost`, or the status that the request or the command ends with (rnr, bad-address, abort, ...;
resource-allocation-failure, illegal-parameter, ...). EVERY makes it one out of so many. A wrong name lists the right
ones.";

fn limit_help() -> String {
    format!("Set a limit of the devices:\n  {}", Limits::names().join("\n  "))
}

/// The flag with a name as it is written on command lines.
fn parse_flag<F: bitflags::Flags>(what: &str, name: &str) -> Result<F, String> {
    let spelled = |flag: &bitflags::Flag<F>| flag.name().to_lowercase().replace('_', "-");
    match F::FLAGS.iter().find(|flag| spelled(flag) == name) {
        Some(flag) => Ok(F::from_bits_retain(flag.value().bits())),
        None => {
            let names: Vec<String> = F::FLAGS.iter().map(spelled).collect();
            Err(format!("there is no {what} {name}; there are: {}", names.join(", ")))
        }
    }
}

fn parse_capability(name: &str) -> Result<Capabilities, String> {
    parse_flag("capability", name)
}

fn parse_event(name: &str) -> Result<QpEvents, String> {
    parse_flag("event", name)
}

fn parse_hex(text: &str) -> Result<u16, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u16::from_str_radix(digits, 16).map_err(|_| format!("{text} is no hexadecimal number of 16 bits"))
}

fn parse_version(text: &str) -> Result<u16, String> {
    match text {
        "0.1" => Ok(0x0001),
        "0.2" => Ok(0x0002),
        "0.3" => Ok(0x0003),
        _ => Err(format!("there is no version {text} of the admin interface; there are: 0.1, 0.2, 0.3")),
    }
}

impl Options {
    fn config(&self, index: usize) -> Result<Config> {
        let mut config = Config::new(u8::try_from(index).context("too many devices: at most 256")?);
        self.without.iter().for_each(|capability| config.capabilities.remove(*capability));
        if !config.capabilities.contains(Capabilities::RDMA_WRITE) {
            config.capabilities.remove(Capabilities::UNSOLICITED_WRITE_RECV);
        }
        self.without_event.iter().for_each(|event| config.counter_events.remove(*event));
        for limit in &self.limits {
            let (name, value) = limit
                .split_once('=')
                .with_context(|| format!("limit {limit}: write NAME=NUMBER, such as max-qp=16"))?;
            let value = value.parse().with_context(|| format!("limit {name}: {value} is no number"))?;
            config.limits.set(name, value)?;
        }
        config.device_id = self.device_id;
        config.api_version = self.api_version;
        config.keep_alive = (self.keep_alive > 0).then(|| Duration::from_millis(self.keep_alive));
        config.response_timeout = Duration::from_millis(self.response_timeout);
        config.rnr_delay = Duration::from_millis(self.rnr_delay);
        config.need_remote_ah = !self.no_remote_ah;
        config.faults = self.faults.clone();
        config.check()?;
        Ok(config)
    }
}

fn main() -> ExitCode {
    let Err(error) = run(Options::parse());
    eprintln!("efa-model: {error:#}");
    ExitCode::FAILURE
}

fn run(options: Options) -> Result<Infallible> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    for (index, socket) in options.sockets.iter().enumerate() {
        ensure!(
            !options.sockets[..index].contains(socket),
            "{} is given twice: every device has its own socket",
            socket.display()
        );
    }
    let (mut devices, mut llqs) = (Vec::new(), Vec::new());
    for index in 0..options.sockets.len() {
        let (device, llq) = server::device(options.config(index)?)?;
        devices.push(device);
        llqs.push(llq);
    }
    let wire = Arc::new(Wire::new(devices));
    for (index, (socket, llq)) in options.sockets.into_iter().zip(llqs).enumerate() {
        let wire = wire.clone();
        thread::Builder::new().name(format!("device {index}")).spawn(move || {
            if let Err(error) = server::serve(&socket, &wire, index, &llq) {
                eprintln!("efa-model: {error:#}");
                std::process::exit(1);
            }
        })?;
    }
    wire.run_clock()
}
