//! Integration tests: they run on a device inside the process, as anybody (`cargo test`), and on real devices, as root, usually inside a
//! virtual machine (`cargo xtask test`).
//!
//! `UVERBS_TEST_DEVICE` names the device. Without it the first one there is serves, and if there is none `soft0`, the device inside the
//! process, where tests are ignored that are of the kernel: of netlink, sysfs, devices that come and go, and privileges.
//! On an EFA device, only tests of EFA run: those for the model as it is, or as `UVERBS_TEST_EFA` says that it was configured
//! (`few`, `mute`). On a siw device, those of [`siw`] run and no others.
//! `UVERBS_TEST_COUNTERS` says that it has completion counters; without it their tests run only if it has.
//! `UVERBS_TEST_STRESS` says how long the test in [`stress`] lasts, in seconds; `UVERBS_TEST_DIFFERENTIAL` how many commands the one in
//! [`differential`] generates.
//! Tests share the device and run in parallel. One that must have a process to itself, because it counts file descriptors or
//! changes its credentials or namespaces, runs in a child: this program once more, told which test by `UVERBS_TEST_CASE`.

mod atomics;
mod bench;
mod channel;
mod child;
mod cli;
mod common;
mod context;
mod counters;
mod cq;
mod datagram;
mod device;
mod differential;
mod dma_buf;
mod efa;
mod efa_counters;
mod errors;
mod events;
mod flush;
mod fork;
mod inside;
mod lifetime;
mod memory;
mod mtu;
mod multicast;
mod paging;
mod qp;
mod reregister;
mod rings;
mod runtime;
mod siw;
mod soft;
mod srq;
mod stress;
mod traffic;
mod unreliable;
mod windows;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// A test, or a part that a child process plays in one.
#[derive(Clone, Copy)]
struct Case {
    module: &'static str,
    name: &'static str,
    kind: Kind,
    run: fn(),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A test that runs in this process.
    Shared,
    /// A test that runs in a child process of its own.
    Alone,
    /// A test that runs in this process, on a device with completion counters.
    Counting,
    /// The same three, which need the kernel.
    Kernel,
    KernelAlone,
    KernelCounting,
    /// A test that runs in a child process of its own, on soft-RoCE of the kernel that devices inside the process are like.
    Compared,
    /// A test that runs in a child process of its own, on kernels after 6.12: up to then a soft-RoCE device does not go before its last context is
    /// closed.
    Unplugging,
    /// A test that runs in this process, on EFA. Those without EFA in their name do not run there.
    Efa,
    /// The same, on a device that has and can do little.
    FewEfa,
    /// The same, on a device that stops answering for good.
    MuteEfa,
    /// A test that runs in this process, on siw. The others do not run there.
    Siw,
    /// A test that runs in a child process of its own, on siw.
    SiwAlone,
    /// What a child process does for a test.
    Part,
}

/// Lists the cases of a module: each with its kind.
macro_rules! cases {
    ($($kind:ident $name:ident;)*) => {
        pub(crate) const CASES: &[crate::Case] = &[$(crate::Case {
            module: module_path!(),
            name: stringify!($name),
            kind: crate::Kind::$kind,
            run: $name,
        }),*];
    };
}
use cases;

const MODULES: &[&[Case]] = &[
    device::CASES,
    context::CASES,
    memory::CASES,
    reregister::CASES,
    paging::CASES,
    cq::CASES,
    channel::CASES,
    qp::CASES,
    srq::CASES,
    traffic::CASES,
    datagram::CASES,
    multicast::CASES,
    unreliable::CASES,
    atomics::CASES,
    flush::CASES,
    windows::CASES,
    errors::CASES,
    events::CASES,
    runtime::CASES,
    lifetime::CASES,
    inside::CASES,
    differential::CASES,
    stress::CASES,
    fork::CASES,
    mtu::CASES,
    rings::CASES,
    cli::CASES,
    bench::CASES,
    counters::CASES,
    efa::CASES,
    efa_counters::CASES,
    dma_buf::CASES,
    siw::CASES,
];

impl Kind {
    /// The tests that it belongs to, if they are of one driver alone.
    fn own(self) -> Option<Self> {
        match self {
            Self::Efa | Self::FewEfa | Self::MuteEfa => Some(self),
            Self::Siw | Self::SiwAlone => Some(Self::Siw),
            _ => None,
        }
    }
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        MODULES.iter().copied().flatten().copied()
    }

    /// `device::list_finds_the_device`.
    fn path(&self) -> String {
        let module = self.module.split_once("::").map_or("", |(_, module)| module);
        format!("{module}::{}", self.name)
    }

    /// Whether a device inside the process is nothing for it.
    fn is_of_the_kernel(&self) -> bool {
        // Discovery is by the kernel, and the program is another process.
        [device::CASES, cli::CASES, bench::CASES].iter().any(|cases| cases[0].module == self.module)
            || matches!(self.kind, Kind::Kernel | Kind::KernelAlone | Kind::KernelCounting)
    }

    fn trial(self, there: &There) -> Trial {
        let ignored = there.own != self.kind.own()
            || self.is_of_the_kernel() && there.soft
            || matches!(self.kind, Kind::Counting | Kind::KernelCounting) && !there.counters
            || self.kind == Kind::Compared && (there.soft || lifetime::kernel_version() < (7, 3))
            || self.kind == Kind::Unplugging && !there.soft && lifetime::kernel_version() <= (6, 12);
        let path = self.path();
        let run = move || {
            match self.kind {
                Kind::Alone | Kind::KernelAlone | Kind::Compared | Kind::Unplugging | Kind::SiwAlone => {
                    child::run(&self.path());
                }
                _ => (self.run)(),
            }
            Ok(())
        };
        Trial::test(path, run).with_ignored_flag(ignored)
    }
}

/// What there is to test with.
struct There {
    soft: bool,
    counters: bool,
    /// The tests of its driver alone: they run, and no others.
    own: Option<Kind>,
}

fn main() -> ExitCode {
    let soft = common::device_is_soft();
    if soft {
        // SAFETY: there is no other thread yet.
        unsafe { std::env::set_var("UVERBS_SOFT", "1") };
    }
    if let Some(path) = child::wanted() {
        let case = Case::all().find(|case| case.path() == path).expect("a case of that name");
        (case.run)();
        return ExitCode::SUCCESS;
    }
    let own = match common::device().driver() {
        Some("efa") => Some(efa::kind()),
        Some("siw") => Some(Kind::Siw),
        _ => None,
    };
    let counters = own != Some(Kind::Siw) && counters::are_expected();
    let there = There { soft, counters, own };
    let tests = Case::all().filter(|case| case.kind != Kind::Part).map(|case| case.trial(&there)).collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}
