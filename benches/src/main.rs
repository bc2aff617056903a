//! Runs programs that measure the same operations, `operations` of this crate and its counterpart in C, and tells what each took: in
//! instructions, if the clock counts those, as in the virtual machine in which `cargo xtask bench` runs it.
//!
//! `compare DEVICE TIMED STEPPED PROGRAM...`, where TIMED and STEPPED are names of operations with commas between. Those that are timed
//! are user and kernel together. Those that are stepped are done once more, instruction by instruction, which counts the user's part. The
//! outcome is JSON.
//!
//! It runs with real-time priority, as do the programs: the kernel's own threads, which execute what is posted, wait until a program sleeps.

mod stepping;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// How often each program is run; the least counts. Before that each is run once in vain: the first in a machine finds a kernel that gives
/// memory more readily than later on.
const TURNS: usize = 6;

#[derive(Serialize)]
struct Report {
    kernel: String,
    programs: Vec<Outcome>,
}

#[derive(Default, Serialize)]
struct Outcome {
    /// Instructions, user and kernel together; KiB of memory.
    total: BTreeMap<String, f64>,
    /// The user's instructions.
    user: BTreeMap<String, f64>,
}

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [device, timed, stepped, programs @ ..] = &arguments[..] else {
        bail!("usage: compare DEVICE TIMED STEPPED PROGRAM...");
    };
    run_before_the_kernel()?;
    let (timed, stepped) = (names(timed), names(stepped));
    let mut outcomes: Vec<_> = programs.iter().map(|_| Outcome::default()).collect();
    // To and fro, so that what one leaves behind in the kernel does not meet the same one always.
    let mut order: Vec<_> = (0..programs.len()).collect();
    for turn in 0..=TURNS {
        for &index in &order {
            let program = &programs[index];
            let mut in_vain = BTreeMap::new();
            let totals = if turn == 0 { &mut in_vain } else { &mut outcomes[index].total };
            time(program, device, &timed, totals).with_context(|| program.clone())?;
        }
        order.reverse();
    }
    for (program, outcome) in programs.iter().zip(&mut outcomes) {
        step(program, device, &stepped, &mut outcome.user).with_context(|| program.clone())?;
    }
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
    println!("{}", serde_json::to_string(&Report { kernel, programs: outcomes })?);
    Ok(())
}

fn names(list: &str) -> Vec<&str> {
    list.split(',').filter(|name| !name.is_empty()).collect()
}

fn run_before_the_kernel() -> Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter is a valid struct, and the call changes nothing but this thread's priority.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    ensure!(result == 0, "sched_setscheduler: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Adds what it takes, in all, to do what is named; the least of it and what is there already.
fn time(program: &str, device: &str, names: &[&str], totals: &mut BTreeMap<String, f64>) -> Result<()> {
    let mut found = Vec::new();
    let mut repeated = Vec::new();
    for name in names {
        let total = match *name {
            "list-cold" => number(&run(program, device, "list", &[])?)?,
            "start-open" => since_start(program, device, "open")?,
            "start-completion" => since_start(program, device, "completion")?,
            "memory" | "memory-qps" => {
                let sizes = run(program, device, "memory", &[])?;
                let (all, queue_pairs) = sizes.trim().split_once(' ').context("no sizes")?;
                number(if *name == "memory" { all } else { queue_pairs })?
            }
            other => {
                repeated.push(other);
                continue;
            }
        };
        found.push(((*name).to_owned(), total));
    }
    for line in run(program, device, "time", &repeated)?.lines() {
        let (name, time, count) = words(line)?;
        found.push((name, time / count));
    }
    for (name, total) in found {
        let least = totals.entry(name).or_insert(f64::INFINITY);
        *least = least.min(total);
    }
    Ok(())
}

/// Adds what the user's part of what is named takes.
fn step(program: &str, device: &str, names: &[&str], parts: &mut BTreeMap<String, f64>) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let (steps, output) = stepping::count(command(program, device, "step", names))?;
    let names = output.lines().map(words).collect::<Result<Vec<_>>>()?;
    ensure!(names.len() == steps.len(), "{} operations, {} were stepped", names.len(), steps.len());
    parts.extend(names.into_iter().zip(steps).map(|((name, _, count), steps)| (name, steps as f64 / count)));
    Ok(())
}

fn command(program: &str, device: &str, mode: &str, names: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args([device, mode]).args(names).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// The output of a program that has to succeed.
fn run(program: &str, device: &str, mode: &str, names: &[&str]) -> Result<String> {
    let run = command(program, device, mode, names).stderr(Stdio::inherit()).output()?;
    ensure!(run.status.success(), "{mode}: {}", run.status);
    Ok(String::from_utf8(run.stdout)?)
}

/// Nanoseconds from before the program is started to the time that it prints.
fn since_start(program: &str, device: &str, mode: &str) -> Result<f64> {
    let before = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    let end = number(&run(program, device, mode, &[])?)?;
    Ok(end - before.as_nanos() as f64)
}

fn number(text: &str) -> Result<f64> {
    text.trim().parse().with_context(|| format!("no number: {text:?}"))
}

/// Name, nanoseconds and count of a line.
fn words(line: &str) -> Result<(String, f64, f64)> {
    match line.split(' ').collect::<Vec<_>>()[..] {
        [name, time, count] => Ok((name.to_owned(), number(time)?, number(count)?)),
        _ => bail!("no result: {line:?}"),
    }
}
