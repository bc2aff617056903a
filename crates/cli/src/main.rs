//! `uverbs`: lists and inspects RDMA devices, makes soft ones, exchanges messages over them, and measures them.

mod bench;
mod connect;
mod counters;
mod devices;
mod events;
mod info;
mod link;
mod output;
mod peer;
mod pingpong;
mod progress;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// RDMA devices from the command line, without libibverbs.
///
/// Exit status: 0 success, 1 failure, 2 wrong usage.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// Print results as JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// List RDMA devices and their node GUIDs, as ibv_devices does.
    Devices,
    /// Show properties of devices and ports, as ibv_devinfo does.
    Info(info::Arguments),
    /// Print asynchronous events of a device as they arrive, as ibv_asyncwatch does.
    Events(events::Arguments),
    /// Make, remove and list soft devices, as rdma link does.
    #[command(subcommand)]
    Link(link::Command),
    /// Show and test completion counters.
    #[command(subcommand)]
    Counters(counters::Command),
    /// Exchange messages with another end, as ibv_rc_pingpong and its kin do.
    #[command(subcommand)]
    Pingpong(pingpong::Command),
    /// Measure latency and bandwidth, as perftest does.
    #[command(subcommand)]
    Bench(bench::Command),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match &arguments.command {
        Command::Devices => devices::run(arguments.json),
        Command::Info(info) => info::run(info, arguments.json),
        Command::Events(events) => events::run(events, arguments.json),
        Command::Link(command) => link::run(command, arguments.json),
        Command::Counters(command) => counters::run(command, arguments.json),
        Command::Pingpong(command) => pingpong::run(command, arguments.json),
        Command::Bench(command) => bench::run(command, arguments.json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads the output has had enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uverbs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether standard output has been closed: no other error is a broken pipe.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The device with that name, `soft0` and the like included, or the first one that can be used.
fn find_device(name: Option<&str>) -> Result<uverbs::Device> {
    match name {
        Some(name) => match uverbs::soft::device(name) {
            Ok(soft) => Ok(soft),
            Err(_) => Ok(uverbs::Device::find(name)?),
        },
        None => match uverbs::Device::list()?.into_iter().next() {
            Some(device) => Ok(device),
            // One that cannot be used says why when it is opened.
            None => uverbs::Device::all()?.into_iter().next().ok_or_else(|| {
                anyhow::anyhow!(
                    "ENODEV: no RDMA device: make one with `uverbs link add rxe0 type rxe netdev INTERFACE` as root, or \
                     pass /dev/infiniband into this container"
                )
            }),
        },
    }
}
