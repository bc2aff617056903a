//! How many instructions a program spends outside of the kernel: it is stopped after every single one between two breakpoints of its own.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// What breakpoints mean, in a register: as the programs have it.
const START: u64 = 1;
const STOP: u64 = 2;
const ROUND_OVER: u64 = 3;
const OPERATION_OVER: u64 = 4;

/// What the kernel says of a breakpoint in the code, `SI_KERNEL`; steps have other codes.
const BREAKPOINT: i32 = 0x80;

/// For each operation of a program the instructions of its least round, less those of the first operation, which does nothing, for every stretch.
/// And what it prints.
pub(crate) fn count(mut command: Command) -> Result<(Vec<u64>, String)> {
    // SAFETY: between fork and exec it makes one system call.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    let mut child = command.spawn()?;
    let pid = Pid::from_raw(child.id().try_into()?);
    let steps = follow(pid);
    if steps.is_err() {
        // It fails only if the program has ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }
    let mut output = String::new();
    child.stdout.take().context("no output")?.read_to_string(&mut output)?;
    Ok((steps?, output))
}

fn follow(pid: Pid) -> Result<Vec<u64>> {
    // It stops at its first instruction.
    ensure!(matches!(waitpid(pid, None)?, WaitStatus::Stopped(_, Signal::SIGTRAP)), "it does not start");
    ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)?;
    let (mut steps, mut stretches, mut least, mut nothing) = (0, 0, u64::MAX, None);
    let mut operations = Vec::new();
    let mut signal = None;
    loop {
        ptrace::cont(pid, signal.take())?;
        match waitpid(pid, None)? {
            WaitStatus::Exited(_, 0) => return Ok(operations),
            WaitStatus::Stopped(_, Signal::SIGTRAP) => match ptrace::getregs(pid)?.rax {
                START => {
                    steps += stretch(pid)?;
                    stretches += 1;
                }
                ROUND_OVER => {
                    least = least.min(steps - stretches * nothing.unwrap_or(0));
                    (steps, stretches) = (0, 0);
                }
                OPERATION_OVER => {
                    operations.push(least);
                    nothing.get_or_insert(least);
                    least = u64::MAX;
                }
                other => bail!("a breakpoint out of place, {other}"),
            },
            WaitStatus::Stopped(_, other) => signal = Some(other),
            other => bail!("it ends: {other:?}"),
        }
    }
}

/// The instructions up to the breakpoint at the end. One that repeats itself, as those that copy do, counts once, as with the clock.
fn stretch(pid: Pid) -> Result<u64> {
    let (mut steps, mut last) = (0, None);
    loop {
        ptrace::step(pid, None)?;
        match waitpid(pid, None)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            other => bail!("it does not go on: {other:?}"),
        }
        let registers = ptrace::getregs(pid)?;
        if ptrace::getsiginfo(pid)?.si_code == BREAKPOINT {
            ensure!(registers.rax == STOP, "a breakpoint out of place");
            return Ok(steps);
        }
        steps += u64::from(last.replace(registers.rip) != Some(registers.rip));
    }
}
