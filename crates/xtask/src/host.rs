//! What the host has to offer: the workspace, programs, cargo.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

/// A program and the Debian package that brings it.
pub(crate) type Tool = (&'static str, &'static str);

pub(crate) const QEMU: Tool = ("qemu-system-x86_64", "qemu-system-x86");
pub(crate) const XZ: Tool = ("xz", "xz-utils");
pub(crate) const ZSTD: Tool = ("zstd", "zstd");
pub(crate) const CC: Tool = ("cc", "gcc");

/// The root folder of the workspace.
pub(crate) fn workspace() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let own = own.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    own.ancestors().nth(2).map(Path::to_path_buf).unwrap_or(own)
}

/// A line about what goes on, apart from the output of the command that runs.
pub(crate) fn progress(text: impl std::fmt::Display) {
    eprintln!("xtask: {text}");
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|d| d.join(program).is_file())
}

/// Makes sure that the programs are there. Root gets the missing ones installed, others are told the command.
pub(crate) fn need(tools: &[Tool]) -> Result<()> {
    let missing: Vec<Tool> = tools.iter().copied().filter(|(program, _)| !installed(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    let programs: Vec<&str> = missing.iter().map(|(program, _)| *program).collect();
    let (packages_text, programs_text) = (packages.join(" "), programs.join(", "));
    ensure!(
        is_root() && installed("apt-get"),
        "{programs_text} not found: install with `apt-get update && apt-get install -y --no-install-recommends \
         {packages_text}`"
    );
    progress(format_args!("{programs_text} not found: installing {packages_text}"));
    apt_get(&["update"])?;
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(packages);
    apt_get(&arguments)
}

/// The host's own apt-get, for the host's own packages. Its output is shown when it fails.
pub(crate) fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    output(command.arg("-q").args(arguments).env("DEBIAN_FRONTEND", "noninteractive")).map(drop)
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Runs a command to its end and gives its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let run = command.stdin(Stdio::null()).output();
    let run = run.with_context(|| format!("cannot run `{}`", shown(command)))?;
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    if !run.status.success() {
        let errors = String::from_utf8_lossy(&run.stderr);
        bail!("`{}` failed ({}):\n{}{}", shown(command), run.status, text, errors.trim_end());
    }
    Ok(text)
}

/// Runs a command whose output goes straight to the user.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run `{}`", shown(command)))?;
    ensure!(status.success(), "`{}` failed ({status})", shown(command));
    Ok(())
}

/// Lets a program end when we end, however we end, and inherit these file descriptors.
pub(crate) fn end_with_us(command: &mut Command, inherited: Vec<RawFd>) {
    let parent = nix::unistd::getpid();
    // SAFETY: between fork and exec it only makes system calls, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            set_pdeathsig(Signal::SIGKILL)?;
            if nix::unistd::getppid() != parent {
                return Err(io::Error::from_raw_os_error(nix::errno::Errno::ESRCH as i32));
            }
            for fd in &inherited {
                fcntl(BorrowedFd::borrow_raw(*fd), FcntlArg::F_SETFD(FdFlag::empty()))?;
            }
            Ok(())
        });
    }
}

/// The cargo that runs us, in the workspace.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace()).args(arguments);
    command
}

/// Builds one program and gives its path.
pub(crate) fn cargo_executable(arguments: &[&str]) -> Result<PathBuf> {
    let mut command = cargo(arguments);
    command.arg("--message-format=json-render-diagnostics").stdin(Stdio::null()).stderr(Stdio::inherit());
    let run = command.output().with_context(|| format!("cannot run `{}`", shown(&command)))?;
    ensure!(run.status.success(), "`{}` failed ({})", shown(&command), run.status);
    let executable = |line: &[u8]| -> Option<PathBuf> {
        let message: serde_json::Value = serde_json::from_slice(line).ok()?;
        message.get("executable")?.as_str().map(PathBuf::from)
    };
    let found = run.stdout.split(|byte| *byte == b'\n').filter_map(executable).next_back();
    found.with_context(|| format!("`{}` built no program", shown(&command)))
}
