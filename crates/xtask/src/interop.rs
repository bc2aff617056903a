//! Traffic between `uverbs` and the distribution's rdma-core, every pair of ends: ping-pong of each kind by polling and by events,
//! and two programs that write into and read from each other's memory. Then completion counters of both on the same EFA model: the
//! same traffic, the same counts. And in each guest what both say of the device.

mod info;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Deserialize;

use crate::cache::Cache;
use crate::kernel::Line;
use crate::vm::{Copy, Device, Vm};
use crate::{host, peer};

/// Kinds of ping-pong, with message sizes and how many of each, so that the table takes less than a minute under emulation.
/// Datagrams are at most the MTU.
const KINDS: [(&str, &[(u32, u32)]); 4] = [
    ("rc", &[(1, 50), (4096, 50), (65_536, 10), (1_048_576, 3)]),
    ("uc", &[(1, 50), (65_536, 10)]),
    ("ud", &[(1, 50), (1024, 50)]),
    ("srq", &[(1, 50), (65_536, 10)]),
];
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

    fn ping_pong(self, kind: &str, size: u32, count: u32, events: bool, port: u16) -> Command {
        let mut command = match self {
            Self::Reference => Command::new(format!("ibv_{kind}_pingpong")),
            Self::Ours => {
                let mut command = Command::new("uverbs");
                command.args(["pingpong", kind]);
                command
            }
        };
        command.args(["-d", "rxe0", "-g", "1", "-c", "-p", &port.to_string()]);
        command.args(["-s", &size.to_string(), "-n", &count.to_string()]);
        command.args(events.then_some("-e"));
        command
    }

    fn remote_memory(self, port: u16) -> Command {
        let mut command = Command::new(match self {
            Self::Ours => REMOTE_MEMORY,
            Self::Reference => REMOTE_MEMORY_C,
        });
        command.args(["rxe0", "1", &port.to_string()]);
        command
    }
}

/// Where the guest has the programs that use each other's memory.
const REMOTE_MEMORY: &str = "/usr/bin/remote_memory";
const REMOTE_MEMORY_C: &str = "/usr/bin/remote_memory_c";

/// Servers and clients to try.
const PAIRS: [(End, End); 3] =
    [(End::Reference, End::Ours), (End::Ours, End::Reference), (End::Ours, End::Ours)];

/// How many operations of each kind are counted.
const COUNTED: u64 = 10_000;
/// Where the guest has our program for rdma-core's counters.
const COUNTERS: &str = "/usr/share/rdma-core/counters.py";

/// What the guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    Traffic,
    Counters,
}

/// Boots the guests and runs the tables in them. Whether every row was fine.
pub(crate) fn run(kernel: Line) -> Result<bool> {
    let mut vm = guest(kernel, "traffic")?;
    let own = host::cargo_executable(&["build", "--release", "-p", "uverbs", "--example", "remote_memory"])?;
    let source = host::workspace().join("tests/interop/remote_memory.c");
    let theirs = peer::get(&Cache::open()?, &source)?;
    for (host, guest) in [(own, REMOTE_MEMORY), (theirs, REMOTE_MEMORY_C)] {
        vm.files.push(Copy { host, guest: guest.to_owned() });
    }
    let traffic = vm.run()?;
    if kernel != Line::V7_3 {
        println!("counters: none before kernel 7.3");
        return Ok(traffic == 0);
    }
    let mut vm = guest(kernel, "counters")?;
    vm.device = Device::Efa;
    let host = host::workspace().join("tests/interop/counters.py");
    vm.files.push(Copy { host, guest: COUNTERS.to_owned() });
    let counters = vm.run()?;
    Ok(traffic == 0 && counters == 0)
}

fn guest(kernel: Line, part: &str) -> Result<Vm> {
    let own = std::env::current_exe().context("cannot find the program of xtask")?;
    let mut vm = Vm::command(kernel, ["/usr/bin/xtask", "guest-interop", part]);
    vm.reference = true;
    vm.files.push(Copy { host: own, guest: "/usr/bin/xtask".to_owned() });
    Ok(vm)
}

/// The part that runs in the guest.
pub(crate) fn run_in_guest(part: Part) -> Result<()> {
    match part {
        Part::Traffic => traffic(),
        Part::Counters => counters(),
    }
}

fn traffic() -> Result<()> {
    let started = Instant::now();
    println!(
        "{:<6} {:>8} {:>6}  {:<7} {:<10} {:<10} result",
        "kind", "size", "count", "mode", "server", "client"
    );
    let mut rows = rows();
    let mut failed = 0;
    for row in &mut rows {
        print!("{}", row.text);
        match row.run() {
            Ok(time) => println!(" ok, {:.2} s", time.as_secs_f64()),
            Err(error) => {
                println!(" FAILED\n{error:#}");
                failed += 1;
            }
        }
    }
    let passed = rows.len() - failed;
    println!("interop: {passed} passed, {failed} failed in {:.0} s", started.elapsed().as_secs_f64());
    let same = properties(Device::Rxe);
    ensure!(failed == 0, "{failed} of {} pairs failed", rows.len());
    same
}

/// Compares what both say of a device.
fn properties(device: Device) -> Result<()> {
    let device = device.name().context("a guest without a device")?;
    let same = info::compare(device).context("properties differ")?;
    println!("info: {same} properties of {device} are the same");
    Ok(())
}

/// Every row of the table, each with a TCP port of its own.
fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |kind: &str, rest: &str, program: &dyn Fn(End, u16) -> Command| {
        for (server, client) in PAIRS {
            let port = FIRST_PORT + rows.len() as u16;
            let (server_name, client_name) = (server.name(), client.name());
            rows.push(Row {
                text: format!("{kind:<6} {rest}  {server_name:<10} {client_name:<10}"),
                server: program(server, port),
                client: program(client, port),
                port,
            });
        }
    };
    for (kind, sizes) in KINDS {
        for &(size, count) in sizes {
            for events in [false, true] {
                let mode = if events { "events" } else { "poll" };
                let program = |end: End, port| end.ping_pong(kind, size, count, events, port);
                add(kind, &format!("{size:>8} {count:>6}  {mode:<6}"), &program);
            }
        }
    }
    add("memory", &format!("{:>8} {:>6}  {:<6}", "to 1 MiB", 5, "poll"), &End::remote_memory);
    rows
}

/// What a counter said, as `uverbs counters run --json` tells it.
#[derive(Debug, Deserialize)]
struct Count {
    end: String,
    operation: String,
    observed: u64,
    observed_errors: u64,
    ok: bool,
}

#[derive(Debug, Deserialize)]
struct Counts {
    counters: Vec<Count>,
}

/// Runs the same traffic, success and errors, through both and compares every count.
fn counters() -> Result<()> {
    properties(Device::Efa)?;
    let device = Device::Efa.name().context("EFA has no device")?;
    let mut ours = Command::new("uverbs");
    ours.args(["counters", "run", "-d", device, "-n", &COUNTED.to_string(), "--errors", "--json"]);
    let mut reference = Command::new("python3");
    reference.args([COUNTERS, device, &COUNTED.to_string()]);
    let (ours, reference) =
        (counts(&mut ours).context("uverbs")?, counts(&mut reference).context("rdma-core")?);
    let rows = compare(&ours.counters, &reference.counters)?;
    let failed = rows.iter().filter(|(_, ok)| !ok).count();
    for (row, _) in &rows {
        println!("{row}");
    }
    println!("counters: {} passed, {failed} failed", rows.len() - failed);
    ensure!(failed == 0, "{failed} of {} counters differ", rows.len());
    Ok(())
}

/// What a program prints, also if it says that a counter is wrong.
fn counts(command: &mut Command) -> Result<Counts> {
    let run = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&run.stdout);
    serde_json::from_str(&text).with_context(|| format!("it printed no counters ({}): {text}", run.status))
}

/// A row for each counter, and whether both said the same and what was expected.
fn compare(ours: &[Count], reference: &[Count]) -> Result<Vec<(String, bool)>> {
    let same = |a: &Count, b: &Count| (&a.end, &a.operation) == (&b.end, &b.operation);
    let both = ours.len() == reference.len() && ours.iter().zip(reference).all(|(a, b)| same(a, b));
    ensure!(both && !ours.is_empty(), "not the same counters: {ours:?}\nand: {reference:?}");
    let row = |(ours, reference): (&Count, &Count)| {
        let values = |count: &Count| format!("{}+{}", count.observed, count.observed_errors);
        let (a, b) = (values(ours), values(reference));
        let ok = a == b && ours.ok && reference.ok;
        let verdict = if ok { "ok" } else { "FAILED" };
        let Count { end, operation, .. } = ours;
        (format!("counters  {end:<7} {operation:<17}  uverbs={a:<9} rdma-core={b:<9} {verdict}"), ok)
    };
    Ok(ours.iter().zip(reference).map(row).collect())
}

/// Two programs to run against each other.
struct Row {
    text: String,
    server: Command,
    client: Command,
    port: u16,
}

impl Row {
    fn run(&mut self) -> Result<Duration> {
        let (server_output, client_output) = ("/tmp/server", "/tmp/client");
        let started = Instant::now();
        let deadline = started + DEADLINE;
        let mut outcome = || -> Result<()> {
            let mut server = Running::start(&mut self.server, server_output)?;
            while !listening(self.port)? {
                if let Some(status) = server.0.try_wait()? {
                    bail!("the server ended before it listened on TCP port {} ({status})", self.port);
                }
                ensure!(Instant::now() < deadline, "the server does not listen on TCP port {}", self.port);
                thread::sleep(POLL);
            }
            let mut client = Running::start(self.client.arg("127.0.0.1"), client_output)?;
            let client = client.end(deadline);
            // A server whose client failed has nobody to talk to: not worth the wait.
            let patience =
                if matches!(&client, Ok(status) if status.success()) { deadline } else { Instant::now() };
            let server = server.end(patience);
            let (client, server) = (client.context("client")?, server.context("server")?);
            ensure!(client.success(), "the client failed ({client})");
            ensure!(server.success(), "the server failed ({server})");
            // What libibverbs' servers say of a damaged message, and end as if it were none.
            let said = fs::read_to_string(server_output).context("server")?;
            ensure!(!said.contains("invalid data"), "a message came damaged");
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
    fn start(command: &mut Command, output: &str) -> Result<Self> {
        let file = File::create(output).with_context(|| format!("cannot write {output}"))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let program = command.get_program().to_string_lossy().into_owned();
        Ok(Self(command.spawn().with_context(|| format!("cannot run {program}"))?))
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
    fn counts_that_differ() {
        let count = |observed: u64, observed_errors: u64, ok: bool| Count {
            end: "active".to_owned(),
            operation: "SEND".to_owned(),
            observed,
            observed_errors,
            ok,
        };
        let row = |ours: Count, reference: Count| compare(&[ours], &[reference]).unwrap().remove(0);
        let (text, ok) = row(count(20, 5, true), count(20, 5, true));
        assert!(ok && text.contains("uverbs=20+5") && text.ends_with(" ok"), "{text}");
        for (reference, shown) in
            [(count(19, 5, false), "rdma-core=19+5"), (count(20, 4, true), "rdma-core=20+4")]
        {
            let (text, ok) = row(count(20, 5, true), reference);
            assert!(!ok && text.contains("uverbs=20+5") && text.contains(shown), "{text}");
        }
        // Both the same and both wrong.
        assert!(!row(count(19, 0, false), count(19, 0, false)).1);
        assert!(compare(&[count(1, 0, true)], &[]).is_err());
        assert!(compare(&[], &[]).is_err());
        let other = Count { operation: "RECV".to_owned(), ..count(1, 0, true) };
        assert!(compare(&[count(1, 0, true)], &[other]).is_err());
    }

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
