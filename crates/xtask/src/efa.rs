//! EFA in a virtual machine: `efa-model`, which is the device, and a QEMU that can take it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::apt::{self, Archive, Release};
use crate::cache::{self, Cache};
use crate::host;

/// The first QEMU that has devices from outside.
const QEMU_NEEDED: (u32, u32) = (10, 1);

/// Name of the socket between model and QEMU. Both run in its folder, so that no path is too long for a socket.
const SOCKET: &str = "efa";

/// What it takes to run a guest with an EFA device.
pub(crate) struct Efa<'a> {
    cache: &'a Cache,
    /// The program `efa-model`.
    program: PathBuf,
    options: &'a [OsString],
    /// Root folder of a QEMU from packages; none if the host's own will do.
    qemu: Option<PathBuf>,
}

impl<'a> Efa<'a> {
    /// Builds the model, and fetches QEMU if neither the host nor the cache has it.
    pub(crate) fn get(cache: &'a Cache, options: &'a [OsString]) -> Result<Self> {
        let build = ["build", "--release", "-p", "uverbs-efa-model", "--bin", "efa-model"];
        let program = host::cargo_executable(&build)?;
        let qemu = if hosts_will_do() { None } else { Some(qemu(cache)?) };
        Ok(Self { cache, program, options, qemu })
    }

    /// Starts the model and waits until QEMU can come.
    pub(crate) fn start(&self) -> Result<Model> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let folder = self.cache.scratch()?;
        let socket = folder.path().join(SOCKET);
        let mut command = Command::new(&self.program);
        command.args(["--socket", SOCKET]).args(self.options).current_dir(folder.path());
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        host::end_with_us(&mut command, Vec::new());
        let process = command.spawn().context("cannot start efa-model")?;
        let mut model = Model { process, folder: Some(folder) };
        let deadline = Instant::now() + PATIENCE;
        while !socket.exists() {
            if let Some(status) = model.process.try_wait()? {
                let said = model.errors().map(std::io::read_to_string).transpose()?.unwrap_or_default();
                bail!("efa-model failed ({status}):\n{}", said.trim_end());
            }
            if Instant::now() > deadline {
                bail!("efa-model made no socket in {} s", PATIENCE.as_secs());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(model)
    }

    /// QEMU with a model's device; the rest of the arguments is the caller's.
    pub(crate) fn qemu(&self, model: &Model, memory: &str) -> Command {
        let mut command = self.qemu.as_deref().map_or_else(|| Command::new(host::QEMU.0), from_packages);
        if let Some(folder) = &model.folder {
            command.current_dir(folder.path());
        }
        // The device reads and writes the guest's memory.
        let size = with_unit(memory);
        command.args(["-object", &format!("memory-backend-memfd,id=memory,size={size},share=on")]);
        command.args(["-machine", "pc,memory-backend=memory"]);
        let device = serde_json::json!({
            "driver": "vfio-user-pci",
            "socket": { "type": "unix", "path": SOCKET },
        });
        command.arg("-device").arg(device.to_string());
        command
    }
}

/// A running model. It ends with this, or with us.
pub(crate) struct Model {
    process: Child,
    folder: Option<TempDir>,
}

impl Model {
    /// What it complains of, once.
    pub(crate) fn errors(&mut self) -> Option<ChildStderr> {
        self.process.stderr.take()
    }

    /// QEMU is there, so nobody needs the socket any more: nothing is left over however we end.
    pub(crate) fn connected(&mut self) {
        self.folder = None;
    }

    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.process.try_wait()?.is_some())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // Both fail only when it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn hosts_will_do() -> bool {
    let text = host::output(Command::new(host::QEMU.0).arg("--version"));
    text.is_ok_and(|text| version(&text).is_some_and(|version| version >= QEMU_NEEDED))
}

/// Major and minor number in what `--version` says.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("QEMU emulator version ")?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// QEMU reads `-m 512` as mebibytes, the size of a memory object as bytes.
fn with_unit(memory: &str) -> String {
    let plain = memory.bytes().all(|byte| byte.is_ascii_digit());
    format!("{memory}{}", if plain { "M" } else { "" })
}

/// QEMU in a folder of its own, with all that it depends on.
fn qemu(cache: &Cache) -> Result<PathBuf> {
    let _lock = cache.lock()?;
    let suffix = format!("-{}", cache::fingerprint(include_str!("efa.rs")));
    let fetched = apt::with_archive(cache, Release::Trixie, |archive: &Archive| {
        let packages = archive.closure(&["--target-release=trixie-backports", host::QEMU.1])?;
        let main = packages.iter().find(|package| package.name == host::QEMU.1);
        let main = main.with_context(|| format!("the mirror has no {}", host::QEMU.1))?;
        let key = format!("qemu-{}{suffix}", main.version.replace(':', "_"));
        cache.entry(&key, |entry| archive.unpack(&packages, entry))
    });
    fetched.or_else(|error| match cache.newest("qemu-", &suffix) {
        Some(entry) => {
            host::progress(format_args!("using the QEMU of an earlier run: {error:#}"));
            Ok(entry)
        }
        None => Err(error.context("no QEMU for EFA")),
    })
}

/// Nothing there is made for the host's libraries, so it runs with its own loader and the libraries beside it.
fn from_packages(root: &Path) -> Command {
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let mut path = libraries.clone().into_os_string();
    path.push(":");
    path.push(libraries.join("pulseaudio"));
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(path).arg(root.join("usr/bin").join(host::QEMU.0));
    for firmware in ["qemu", "seabios"] {
        command.arg("-L").arg(root.join("usr/share").join(firmware));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_qemu() {
        assert_eq!(version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright"), Some((7, 2)));
        assert_eq!(version("QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1)\n"), Some((11, 1)));
        assert_eq!(version("QEMU emulator version 10.1"), Some((10, 1)));
        assert_eq!(version("something else 1.2"), None);
    }

    #[test]
    fn memory_has_a_unit() {
        assert_eq!(with_unit("512"), "512M");
        assert_eq!(with_unit("2G"), "2G");
    }
}
