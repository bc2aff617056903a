//! Ping-pong between `uverbs` and the distribution's rdma-core: every pair of ends, by polling and by events.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::kernel::Line;
use crate::vm::{Copy, Vm};

/// Message sizes and how many of each, so that the table takes about a minute under emulation.
const SIZES: [(u32, u32); 5] = [(1, 200), (64, 200), (4096, 200), (65_536, 50), (1_048_576, 10)];
const FIRST_PORT: u16 = 18_515;
const DEADLINE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Ours,
    Reference,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "uverbs",
            Self::Reference => "rdma-core",
        }
    }

    fn command(self) -> Command {
        match self {
            Self::Reference => Command::new("ibv_rc_pingpong"),
            Self::Ours => {
                let mut command = Command::new("uverbs");
                command.args(["pingpong", "rc"]);
                command
            }
        }
    }
}

/// Servers and clients to try.
const PAIRS: [(End, End); 3] =
    [(End::Reference, End::Ours), (End::Ours, End::Reference), (End::Ours, End::Ours)];

/// Boots the guest and runs the table in it. Whether every pair was fine.
pub(crate) fn run(kernel: Line) -> Result<bool> {
    let own = std::env::current_exe().context("cannot find the program of xtask")?;
    let mut vm = Vm::command(kernel, ["/usr/bin/xtask", "guest-interop"]);
    vm.reference = true;
    vm.files.push(Copy { host: own, guest: "/usr/bin/xtask".to_owned() });
    Ok(vm.run()? == 0)
}

/// The part that runs in the guest.
pub(crate) fn run_in_guest() -> Result<()> {
    let started = Instant::now();
    println!("{:>8} {:>6}  {:<7} {:<10} {:<10} result", "size", "count", "mode", "server", "client");
    let (mut port, mut total, mut failed) = (FIRST_PORT, 0, 0);
    for (size, count) in SIZES {
        for events in [false, true] {
            for (server, client) in PAIRS {
                let mode = if events { "events" } else { "poll" };
                let (server_name, client_name) = (server.name(), client.name());
                let row = format!("{size:>8} {count:>6}  {mode:<7} {server_name:<10} {client_name:<10}");
                let pair = Pair { server, client, size, count, events, port };
                match pair.run() {
                    Ok(time) => println!("{row} ok, {:.2} s", time.as_secs_f64()),
                    Err(error) => {
                        println!("{row} FAILED\n{error:#}");
                        failed += 1;
                    }
                }
                port += 1;
                total += 1;
            }
        }
    }
    let passed = total - failed;
    println!("interop: {passed} passed, {failed} failed in {:.0} s", started.elapsed().as_secs_f64());
    ensure!(failed == 0, "{failed} of {total} pairs failed");
    Ok(())
}

struct Pair {
    server: End,
    client: End,
    size: u32,
    count: u32,
    events: bool,
    port: u16,
}

impl Pair {
    fn run(&self) -> Result<Duration> {
        let (server_output, client_output) = ("/tmp/server", "/tmp/client");
        let started = Instant::now();
        let deadline = started + DEADLINE;
        let outcome = || -> Result<()> {
            let mut server = Running::start(self.server, self, None, server_output)?;
            while !listening(self.port)? {
                if let Some(status) = server.0.try_wait()? {
                    bail!("the server ended before it listened on TCP port {} ({status})", self.port);
                }
                ensure!(Instant::now() < deadline, "the server does not listen on TCP port {}", self.port);
                thread::sleep(POLL);
            }
            let mut client = Running::start(self.client, self, Some("127.0.0.1"), client_output)?;
            let client = client.end(deadline);
            // A server whose client failed has nobody to talk to: not worth the wait.
            let patience =
                if matches!(&client, Ok(status) if status.success()) { deadline } else { Instant::now() };
            let server = server.end(patience);
            let (client, server) = (client.context("client")?, server.context("server")?);
            ensure!(client.success(), "the client failed ({client})");
            ensure!(server.success(), "the server failed ({server})");
            Ok(())
        };
        outcome().with_context(|| {
            let show = |name: &str, path: &str| {
                let text = fs::read_to_string(path).unwrap_or_default();
                format!("--- {name}\n{}\n", text.trim_end())
            };
            format!("{}{}---", show("server", server_output), show("client", client_output))
        })?;
        Ok(started.elapsed())
    }
}

/// One end, killed if it is still there when this goes.
struct Running(Child);

impl Running {
    fn start(end: End, pair: &Pair, host: Option<&str>, output: &str) -> Result<Self> {
        let file = File::create(output).with_context(|| format!("cannot write {output}"))?;
        let mut command = end.command();
        command.args(["-d", "rxe0", "-g", "1", "-c", "-p", &pair.port.to_string()]);
        command.args(["-s", &pair.size.to_string(), "-n", &pair.count.to_string()]);
        if pair.events {
            command.arg("-e");
        }
        command.args(host).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(Self(command.spawn().with_context(|| format!("cannot run {}", end.name()))?))
    }

    fn end(&mut self, deadline: Instant) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "still running after {} s", DEADLINE.as_secs());
            thread::sleep(POLL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether somebody listens on a TCP port, over either protocol.
fn listening(port: u16) -> Result<bool> {
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = match fs::read_to_string(Path::new(table)) {
            Ok(text) => text,
            // A kernel without IPv6 has no second table.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).context(table),
        };
        if listens(&text, port) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn listens(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().take(4).collect();
        matches!(fields[..], [_, local, _, LISTEN] if local.ends_with(&end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_ports() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                     0: 00000000:4853 00000000:0000 0A 00000000:00000000\n   \
                     1: 0100007F:4854 0100007F:9C40 01 00000000:00000000\n";
        assert!(listens(table, 0x4853));
        assert!(!listens(table, 0x4854));
        assert!(!listens(table, 0x9c40));
    }
}
