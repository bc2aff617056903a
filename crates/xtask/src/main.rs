//! Development tasks of uverbs: `cargo xtask --help`.

mod abi;
mod apt;
mod bench;
mod cache;
mod efa;
#[cfg(test)]
mod faults;
mod host;
mod initramfs;
mod interop;
mod kernel;
mod modules;
mod peer;
mod porting;
mod reference;
mod reference_tests;
mod tasks;
mod version;
mod vm;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand, ValueEnum};

use crate::kernel::Line;

/// Development tasks of uverbs
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run a command, or a shell, on a stock Debian kernel in a virtual machine
    Vm(vm::Vm),
    /// Run all tests: host, ABI, integration tests in virtual machines, interoperability
    Test {
        /// Line of kernels for the integration tests, may be repeated; all if not given
        #[arg(long, value_enum)]
        kernel: Vec<Line>,
    },
    /// Run traffic between uverbs and the distribution's rdma-core, and compare their completion counters, in virtual machines
    Interop {
        /// Line of kernels
        #[arg(long, value_enum, default_value = "7.3")]
        kernel: Line,
    },
    /// Run rdma-core's own tests on a device in a virtual machine
    ReferenceTests(reference_tests::ReferenceTests),
    /// Measure verbs, ours and rdma-core's, in a virtual machine
    Bench {
        /// What to do with them
        #[arg(value_enum, default_value = "check")]
        part: BenchPart,
        /// Line of kernels
        #[arg(long, value_enum, default_value = "7.3")]
        kernel: Line,
        /// How many machines `compare` boots, to see how far their ratios are apart, and how many turns `soft` takes
        #[arg(long, default_value = "3")]
        runs: usize,
        /// How many pairs of each test `time` measures
        #[arg(long, default_value = "9")]
        pairs: usize,
    },
    /// Compare the ABI of uverbs-uapi with the kernel's own headers
    Abi,
    /// Check that the guide for porting has a row for every function of libibverbs
    Porting,
    /// Show what uverbs does, on a soft device in a virtual machine
    Demo,
    /// Check format, clippy's advice and documentation
    Lint,
    /// Run the tests of the device inside the process with an address sanitizer
    Sanitize,
    /// The part of `interop` that runs in the guest
    #[command(hide = true)]
    GuestInterop {
        #[arg(value_enum)]
        part: interop::Part,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum BenchPart {
    /// Instructions of operations that have a bound, in benches/bounds.toml; it fails if one is passed
    Check,
    /// Instructions of all operations, several times, into docs/benchmarks
    Compare,
    /// Time, in pairs of perftest and `uverbs bench`, into docs/benchmarks
    Time,
    /// Ping-pongs on the device inside the process, beside soft-RoCE; it fails if that is not ten times as slow
    Soft,
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn run(task: Task) -> Result<u8> {
    match task {
        Task::Vm(vm) => {
            return Ok(vm.run().unwrap_or_else(|error| {
                eprintln!("xtask: {error:#}");
                vm::STATUS_VM_FAILED
            }));
        }
        Task::Demo => return tasks::demo(),
        Task::Test { kernel } if kernel.is_empty() => return Ok(tasks::test(&Line::ALL)),
        Task::Test { kernel } => return Ok(tasks::test(&kernel)),
        Task::Interop { kernel } => ensure!(interop::run(kernel)?, "interoperability failed"),
        Task::ReferenceTests(tests) => ensure!(tests.vm()?.run()? == 0, "rdma-core's tests failed"),
        Task::Bench { part: BenchPart::Check, kernel, .. } => bench::check(kernel)?,
        Task::Bench { part: BenchPart::Compare, kernel, runs, .. } => bench::compare(kernel, runs)?,
        Task::Bench { part: BenchPart::Time, kernel, pairs, .. } => bench::compare_time(kernel, pairs)?,
        Task::Bench { part: BenchPart::Soft, kernel, runs, .. } => bench::soft(kernel, runs)?,
        Task::Abi => tasks::abi()?,
        Task::Porting => tasks::porting()?,
        Task::Lint => tasks::lint()?,
        Task::Sanitize => tasks::sanitize()?,
        Task::GuestInterop { part } => interop::run_in_guest(part)?,
    }
    Ok(0)
}
