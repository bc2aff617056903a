//! Kernel modules that Debian does not build, or not like this: built against the headers of the stock kernel, with the
//! compiler that it was built with, in a root of Debian packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::apt::{self, Archive, Package};
use crate::cache::{self, Cache};
use crate::host::{self, Tool};
use crate::kernel::{Kernel, Line};

const TAR: Tool = ("tar", "tar");
const UNSHARE: Tool = ("unshare", "util-linux");

/// What builds need besides compiler and headers. Nothing runs the packages' scripts, so `awk` is linked below.
const BUILD_TOOLS: [&str; 12] = [
    "gcc-14",
    "make",
    "kmod",
    "patch",
    "bash",
    "dash",
    "coreutils",
    "diffutils",
    "findutils",
    "grep",
    "mawk",
    "sed",
];
const LINKS: [(&str, &str); 6] = [
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("usr/bin/awk", "mawk"),
    ("usr/bin/gcc", "gcc-14"),
];

/// soft-RoCE with completion counters.
const RXE_COUNTERS: &str = include_str!("../../../tests/kernel/rxe-comp-cntr.patch");

/// What is built: folder in `drivers/infiniband` of the kernel's source, name of the module, and what configures it.
const DRIVERS: [(&str, &str, &str); 3] = [
    ("sw/rxe", "rdma_rxe", "CONFIG_RDMA_RXE"),
    ("sw/siw", "siw", "CONFIG_RDMA_SIW"),
    ("hw/efa", "efa", "CONFIG_INFINIBAND_EFA"),
];

/// The folder of modules for a kernel: `rdma_rxe.ko`, patched, and `siw.ko` and `efa.ko`, which Debian does not build. Built
/// if they are not in the cache.
pub(crate) fn get(cache: &Cache, line: Line, kernel: &Kernel) -> Result<PathBuf> {
    ensure!(line == Line::V7_3, "this device needs kernel 7.3, not {}", line.name());
    let _lock = cache.lock()?;
    let recipe = cache::fingerprint(&[include_str!("modules.rs"), RXE_COUNTERS].concat());
    let key = format!("modules-{}-{recipe}", kernel.version);
    cache.entry(&key, |entry| {
        ensure!(host::is_root(), "a kernel module is built in a root of its own: run this as root");
        host::need(&[host::XZ, TAR, UNSHARE])?;
        // Headers and source of exactly this version: a module of any other is refused.
        apt::with_archive(cache, line.debian(), |archive| build(cache, archive, line, kernel, entry))
    })
}

fn build(cache: &Cache, archive: &Archive, line: Line, kernel: &Kernel, entry: &Path) -> Result<()> {
    let folder = cache.scratch()?;
    let root = folder.path();
    let headers = format!("linux-headers-{}", kernel.release);
    let wanted: Vec<&str> = BUILD_TOOLS.into_iter().chain([headers.as_str()]).collect();
    let mut packages = archive.closure(&wanted)?;
    packages.push(Package { name: format!("linux-source-{}", line.name()), version: kernel.version.clone() });
    for (link, target) in LINKS.into_iter().filter(|(link, _)| !link.contains('/')) {
        fs::create_dir_all(root.join(target))?;
        std::os::unix::fs::symlink(target, root.join(link))?;
    }
    archive.unpack(&packages, root)?;
    for (link, target) in LINKS.into_iter().filter(|(link, _)| link.contains('/')) {
        // A package may bring it after all.
        if !root.join(link).exists() {
            std::os::unix::fs::symlink(target, root.join(link))?;
        }
    }

    let build = root.join("build");
    fs::create_dir(&build)?;
    let source = format!("linux-source-{}", line.name());
    host::output(
        Command::new("tar")
            .arg("-xJf")
            .arg(root.join("usr/src").join(format!("{source}.tar.xz")))
            .arg("-C")
            .arg(&build)
            .arg("--strip-components=4")
            .args(DRIVERS.map(|(folder, _, _)| format!("{source}/drivers/infiniband/{folder}"))),
    )?;
    fs::write(build.join("rxe.patch"), RXE_COUNTERS)?;
    host::progress("building rdma_rxe with completion counters, siw, and efa");
    for folder in ["proc", "dev", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    let make = |(folder, module, option): (&str, &str, &str)| {
        let (_, place) = folder.split_once('/').unwrap_or_default();
        let release = &kernel.release;
        format!(
            "make -C /usr/lib/modules/{release}/build M=/build/{place} {option}=m modules; \
             strip --strip-debug {place}/{module}.ko; mv {place}/{module}.ko .; "
        )
    };
    // In name spaces of its own nothing stays mounted.
    let script = format!(
        "mount --rbind /dev {root}/dev && mount --rbind /proc {root}/proc && exec chroot {root} /usr/bin/env -i \
         PATH=/usr/bin:/usr/sbin /bin/sh -ec '\
         cd /build; patch -d rxe -p1 --no-backup-if-mismatch <rxe.patch; {makes}'",
        root = quote(root)?,
        makes = DRIVERS.map(make).concat(),
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "sh", "-c", &script]);
    host::output(&mut unshare).context("cannot build kernel modules")?;
    for (_, module, _) in DRIVERS {
        let name = format!("{module}.ko");
        fs::copy(build.join(&name), entry.join(&name))
            .with_context(|| format!("the build made no {name}"))?;
    }
    Ok(())
}

/// A path as a word for the shell.
fn quote(path: &Path) -> Result<String> {
    let text = path.to_str().filter(|text| !text.contains('\''));
    Ok(format!(
        "'{}'",
        text.with_context(|| format!("cannot build in {}: set UVERBS_CACHE", path.display()))?
    ))
}
