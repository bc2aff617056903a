//! The tasks that put the others together: tests, checks, a first look.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::apt::{self, Release};
use crate::cache::Cache;
use crate::kernel::Line;
use crate::reference_tests::ReferenceTests;
use crate::vm::{Copy, Device, Vm};
use crate::{abi, bench, host, interop, porting};

/// Compares the types and constants of `uverbs-uapi` with the newest kernel headers that Debian has.
pub(crate) fn abi() -> Result<()> {
    host::need(&[host::CC])?;
    let cache = Cache::open()?;
    let (headers, version) = unpacked(&cache, Release::Trixie, "headers-", &["linux-libc-dev"])?;
    // Newer packages keep all of it in a folder of their own, with links for the compiler of the architecture.
    let folders = ["usr/lib/linux/uapi/x86", "usr/include/x86_64-linux-gnu", "usr/include"];
    let folders =
        folders.map(|path| headers.join(path)).into_iter().filter(|path| path.is_dir()).collect::<Vec<_>>();
    let scratch = cache.scratch()?;
    let report = abi::compare(&folders, scratch.path())?;
    println!("abi: {report} agree with linux-libc-dev {version}");
    Ok(())
}

/// Checks that the guide for porting has a row for every function of the newest libibverbs that Debian has.
pub(crate) fn porting() -> Result<()> {
    host::need(&[porting::READELF])?;
    let cache = Cache::open()?;
    let (library, version) = unpacked(&cache, Release::Sid, "libibverbs-", &porting::PACKAGES)?;
    let functions = porting::check(&library, &host::workspace().join("docs/porting.md"))?;
    println!("porting: docs/porting.md has all {functions} functions of libibverbs {version}");
    Ok(())
}

/// The newest packages unpacked in a folder of the cache, or those of an earlier run if they cannot be had. The first one's
/// version.
fn unpacked(cache: &Cache, release: Release, prefix: &str, names: &[&str]) -> Result<(PathBuf, String)> {
    let _lock = cache.lock()?;
    let entry = apt::with_archive(cache, release, |archive| {
        let packages = archive.newest(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        ensure!(packages.len() == names.len(), "the mirror has not all of {}", names.join(", "));
        let key = format!("{prefix}{}", packages[0].version);
        cache.entry(&key, |entry| archive.unpack(&packages, entry))
    });
    let entry = entry.or_else(|error| match cache.newest(prefix, "") {
        Some(entry) => {
            host::progress(format_args!("using {} of an earlier run: {error:#}", names.join(", ")));
            Ok(entry)
        }
        None => Err(error.context(format!("cannot get {}", names.join(", ")))),
    })?;
    let version = entry.file_name().unwrap_or_default().to_string_lossy().replacen(prefix, "", 1);
    Ok((entry, version))
}

/// Runs a few commands of `uverbs` on soft-RoCE.
pub(crate) fn demo() -> Result<u8> {
    println!(
        "A stock Debian kernel 7.3 in a virtual machine, with a soft-RoCE device on a virtual Ethernet link."
    );
    println!(
        "The program is static: no libibverbs, no C library for RDMA. First run: a minute for packages."
    );
    let script = "show() { echo; echo \"$ $*\"; \"$@\"; }\n\
                  show uverbs devices && show uverbs pingpong rc -d rxe0 --loopback -n 1000 -c";
    let status = Vm::command(Line::V7_3, ["sh", "-c", script]).run()?;
    if status == 0 {
        println!("\nNext: `cargo xtask vm` gives a shell in the same machine.");
    }
    Ok(status)
}

/// Format, clippy and documentation of the whole workspace, without a warning.
pub(crate) fn lint() -> Result<()> {
    host::run(&mut host::cargo(&["fmt", "--all", "--check"]))?;
    host::run(&mut host::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    // With the whole workspace, the library has the features that its tests have.
    host::run(&mut host::cargo(&["clippy", "-p", "uverbs", "--", "-D", "warnings"]))?;
    soft_is_asked_for()?;
    let mut doc = host::cargo(&["doc", "--workspace", "--no-deps"]);
    host::run(doc.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Nothing of the device inside the process is compiled for a program that does not ask for the feature.
fn soft_is_asked_for() -> Result<()> {
    let has_soft = |features: &[&str]| {
        let mut tree =
            host::cargo(&["tree", "--package", "uverbs", "--edges", "normal,build", "--prefix", "none"]);
        Ok::<_, anyhow::Error>(host::output(tree.args(features))?.contains("uverbs-soft "))
    };
    ensure!(!has_soft(&[])?, "uverbs depends on uverbs-soft without the feature");
    ensure!(!has_soft(&["--features", "tokio"])?, "uverbs depends on uverbs-soft without the feature");
    ensure!(has_soft(&["--features", "soft"])?, "uverbs does not depend on uverbs-soft with the feature");
    Ok(())
}

/// Tests of the device inside the process, and all integration tests that run on it, with the compiler's address sanitizer.
pub(crate) fn sanitize() -> Result<()> {
    // They count mappings, and the sanitizer makes some of its own.
    const COUNT_MAPPINGS: [&str; 4] = [
        "memory::nothing_stays_pinned_or_mapped",
        "inside::every_call_may_fail",
        "inside::every_call_may_be_the_last",
        "rings::vb_39_mappings_are_as_long_as_their_rings",
    ];
    let test = |arguments: &[&str]| {
        let mut command = host::cargo(&["test", "--target-dir", "target/sanitize"]);
        // The toolchain has the sanitizer, and says that its option may change. Our own flags, which make programs static, do not go with it.
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
        host::run(command.env("UVERBS_TEST_DEVICE", "soft0").args(arguments))
    };
    test(&["--package", "uverbs-soft", "--lib", "--", "--nocapture"])?;
    let skipped = COUNT_MAPPINGS.iter().flat_map(|name| ["--skip", name]);
    let integration = ["--package", "uverbs-tests", "--test", "integration", "--"];
    test(&integration.into_iter().chain(skipped).collect::<Vec<_>>())
}

struct Step {
    name: String,
    time: Duration,
    error: Option<anyhow::Error>,
}

/// All tests: on the host, the ABI, in every kernel, against the reference, for speed. A failed step does not stop the others.
/// Gives the exit status, so that the count of the steps is the last line.
pub(crate) fn test(kernels: &[Line]) -> u8 {
    let mut steps: Vec<Step> = Vec::new();
    let mut step = |name: &str, work: &dyn Fn() -> Result<()>| {
        println!("\n=== {name}");
        let started = Instant::now();
        let error = work().err();
        let time = started.elapsed();
        if let Some(error) = &error {
            println!("{error:#}");
        }
        println!("=== {name}: {} ({:.1} s)", verdict(error.as_ref()), time.as_secs_f64());
        steps.push(Step { name: name.to_owned(), time, error });
    };
    step("tests on the host", &|| host::run(&mut host::cargo(&["test", "--workspace"])));
    step("ABI against the kernel's headers", &abi);
    step("guide for porting against libibverbs", &porting);
    for kernel in kernels {
        step(&format!("integration tests on kernel {}", kernel.name()), &|| integration(*kernel));
    }
    step("completion counters on a soft-RoCE that has them", &counters);
    step("EFA: the model under the kernel's driver, uverbs and rdma-core", &efa);
    step("siw, which has no provider", &siw);
    step("rdma-core's own tests on EFA", &|| {
        let tests = ReferenceTests::on(Line::V7_3, Device::Efa);
        ensure!(patiently(&tests.vm()?)? == 0, "some tests failed, or too few ran");
        Ok(())
    });
    step("interoperability with rdma-core", &|| {
        ensure!(interop::run(Line::V7_3)?, "some rows failed");
        Ok(())
    });

    step("instructions within their bounds", &|| bench::check(Line::V7_3));

    println!();
    for step in &steps {
        println!("{:<8} {:>6.1} s  {}", verdict(step.error.as_ref()), step.time.as_secs_f64(), step.name);
    }
    let failed = steps.iter().filter(|step| step.error.is_some()).count();
    println!("{} passed, {failed} failed", steps.len() - failed);
    u8::from(failed > 0)
}

fn verdict(error: Option<&anyhow::Error>) -> &'static str {
    if error.is_some() { "FAILED" } else { "ok" }
}

fn integration(kernel: Line) -> Result<()> {
    // What makes tests longer, and how many there are of it in a second.
    const LONGER: [(&str, u64); 2] = [("UVERBS_TEST_STRESS", 1), ("UVERBS_TEST_DIFFERENTIAL", 50)];
    let build = ["test", "-p", "uverbs-tests", "--test", "integration", "--no-run"];
    let mut vm = with_program(kernel, host::cargo_executable(&build)?, "integration");
    vm.environment.push(("UVERBS_TEST_DEVICE", "rxe0".to_owned()));
    for (name, a_second) in LONGER {
        if let Ok(value) = std::env::var(name) {
            let number = value.split(':').next().unwrap_or_default();
            let number: u64 = number.parse().with_context(|| format!("{name}={value}: not a number"))?;
            vm.timeout += number / a_second;
            vm.environment.push((name, value));
        }
    }
    let status = patiently(&vm)?;
    ensure!(status == 0, "the tests ended with status {status}");
    Ok(())
}

/// The tests of completion counters, traffic of every operation, and the examples.
fn counters() -> Result<()> {
    let build = ["test", "-p", "uverbs-tests", "--test", "integration", "--no-run"];
    let mut vm = with_program(Line::V7_3, host::cargo_executable(&build)?, "integration");
    let script = "integration counters && integration differential::written && \
                  uverbs counters run -d rxe0 --errors && remote_writes && credits && epoll";
    for example in ["remote_writes", "credits", "epoll"] {
        let host = host::cargo_executable(&["build", "-p", "uverbs", "--example", example])?;
        vm.files.push(Copy { host, guest: format!("/usr/bin/{example}") });
    }
    vm.command = ["sh", "-c", script].map(Into::into).to_vec();
    vm.device = Device::RxeCounters;
    vm.environment.push(("UVERBS_TEST_DEVICE", "rxe0".to_owned()));
    vm.environment.push(("UVERBS_TEST_COUNTERS", "1".to_owned()));
    let status = patiently(&vm)?;
    ensure!(status == 0, "the tests ended with status {status}");
    Ok(())
}

/// The tests of EFA, and counters of every operation, on the model; rdma-core's provider opens it too. Then those of a model that
/// has and can do little, and at last does not answer any more.
fn efa() -> Result<()> {
    const LITTLE: [&str; 5] = [
        "--without=rdma-write,rnr-retry",
        "--without-event=read-comp-err",
        "--limit=max-event-counters=7",
        "--limit=event-counter-max-value=100",
        "--fault=query-qp:lost:20",
    ];
    let build = ["test", "-p", "uverbs-tests", "--test", "integration", "--no-run"];
    let mut vm = with_program(Line::V7_3, host::cargo_executable(&build)?, "integration");
    vm.device = Device::Efa;
    vm.environment.push(("UVERBS_TEST_DEVICE", "efa_0".to_owned()));
    let mut run = |script: &str, reference, options: &[&str]| {
        vm.command = ["sh", "-c", script].map(Into::into).to_vec();
        vm.reference = reference;
        vm.model_options = options.iter().map(Into::into).collect();
        let status = patiently(&vm)?;
        ensure!(status == 0, "the tests ended with status {status}");
        Ok(())
    };
    let all = "integration && uverbs counters run -d efa_0 --errors && ibv_devinfo -d efa_0";
    run(all, true, &[])?;
    run("UVERBS_TEST_EFA=few integration && UVERBS_TEST_EFA=mute integration", false, &LITTLE)
}

/// The tests of a device that the kernel has and uverbs does not.
fn siw() -> Result<()> {
    let build = ["test", "-p", "uverbs-tests", "--test", "integration", "--no-run"];
    let mut vm = with_program(Line::V7_3, host::cargo_executable(&build)?, "integration");
    vm.device = Device::Siw;
    vm.environment.push(("UVERBS_TEST_DEVICE", "siw0".to_owned()));
    let status = patiently(&vm)?;
    ensure!(status == 0, "the tests ended with status {status}");
    Ok(())
}

/// Runs a virtual machine, once more if it dies: emulated kernels do, rarely, when one processor changes code that another runs.
/// One that dies of what runs in it dies again.
pub(crate) fn patiently(vm: &Vm) -> Result<u8> {
    vm.run().or_else(|error| {
        host::progress(format_args!("{error:#}"));
        host::progress("the virtual machine failed: starting it once more");
        vm.run()
    })
}

/// A virtual machine that runs a program of the host.
fn with_program(kernel: Line, host: PathBuf, name: &str) -> Vm {
    let guest = format!("/usr/bin/{name}");
    let mut vm = Vm::command(kernel, [guest.as_str()]);
    vm.files.push(Copy { host, guest });
    vm
}
