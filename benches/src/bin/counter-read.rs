//! How many instructions it takes to read a completion counter whose value is in memory, as on EFA: a child process does it, and this
//! one looks at every single step.
//!
//! The exit status is 1 if it takes more than `BOUND` instructions, or a system call.

#[cfg(target_arch = "x86_64")]
fn main() -> anyhow::Result<std::process::ExitCode> {
    stepping::run()
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("counter-read knows the registers of x86-64 only");
    std::process::exit(2);
}

#[cfg(target_arch = "x86_64")]
mod stepping {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, ExitCode, Stdio};

    use anyhow::{Context as _, Result, bail, ensure};
    use nix::sys::ptrace;
    use nix::sys::signal::Signal;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::Pid;
    use uverbs::{CompletionCounter, CounterType, Device};

    /// The goal for one reading, the call and the return included.
    const BOUND: usize = 10;
    /// From where the child waits it is not far to the reading.
    const STEPS_BEFORE: usize = 100_000;
    const CHILD: &str = "--child";

    pub(super) fn run() -> Result<ExitCode> {
        let mut arguments = std::env::args().skip(1);
        let name = arguments.next().unwrap_or_else(|| "efa_0".to_owned());
        if arguments.next().as_deref() == Some(CHILD) {
            return read_under_observation(&name);
        }
        let program = std::env::current_exe()?;
        let child = Command::new(program)
            .args([&name, CHILD])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let instructions = observe(&mut Observed(child))?;
        println!("| read a completion counter of {name} | {instructions} | {BOUND} |");
        Ok(if instructions <= BOUND { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    #[inline(never)]
    fn read(counter: &CompletionCounter) -> uverbs::Result<u64> {
        counter.read()
    }

    fn read_under_observation(name: &str) -> Result<ExitCode> {
        let context = Device::find(name)?.open()?;
        let counter = context.create_completion_counter(CounterType::WorkRequests)?;
        counter.set(42)?;
        println!("{}", read as fn(&CompletionCounter) -> uverbs::Result<u64> as usize);
        std::io::stdout().flush()?;
        // The parent writes a line when it is looking.
        std::io::stdin().read_line(&mut String::new())?;
        let value = read(&counter)?;
        ensure!(value == 42, "the counter says {value}");
        Ok(ExitCode::SUCCESS)
    }

    /// Killed and waited for when dropped.
    struct Observed(Child);

    impl Drop for Observed {
        fn drop(&mut self) {
            // Both fail only if it has ended and been waited for.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn observe(child: &mut Observed) -> Result<usize> {
        let pid = Pid::from_raw(child.0.id().try_into()?);
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().context("no output")?).read_line(&mut line)?;
        let entry: u64 = line.trim().parse().context("the child failed")?;
        ptrace::attach(pid)?;
        let stopped = |status| match status {
            WaitStatus::Stopped(_, signal) => Ok(signal),
            other => bail!("the child does not go on: {other:?}"),
        };
        stopped(waitpid(pid, None)?)?;
        child.0.stdin.take().context("no input")?.write_all(b"\n")?;
        let step = || {
            ptrace::step(pid, None)?;
            match stopped(waitpid(pid, None)?)? {
                Signal::SIGTRAP => Ok(ptrace::getregs(pid)?),
                other => bail!("the child got {other}"),
            }
        };
        let word =
            |address: u64| -> Result<u64> { Ok(ptrace::read(pid, address as *mut _)?.cast_unsigned()) };
        let mut registers = step()?;
        for _ in 0..STEPS_BEFORE {
            if registers.rip == entry {
                break;
            }
            registers = step()?;
        }
        ensure!(registers.rip == entry, "the child does not read");
        let (back, mut instructions) = (word(registers.rsp)?, 0);
        while registers.rip != back {
            const SYSCALL: u64 = 0x050f;
            ensure!(word(registers.rip)? & 0xffff != SYSCALL, "reading takes a system call");
            registers = step()?;
            instructions += 1;
        }
        // The call, before the first step here.
        instructions += 1;
        ptrace::detach(pid, None)?;
        let status = child.0.wait()?;
        ensure!(status.success(), "the child ended with {status}");
        Ok(instructions)
    }
}
