//! C programs of ours for the guest, compiled against the reference's library: peers of programs in Rust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::apt::{self, Release};
use crate::cache::{self, Cache};
use crate::host;

/// What they are compiled with: the library's headers, the library, the kernel's headers.
const PACKAGES: [&str; 3] = ["libibverbs-dev", "libibverbs1", "linux-libc-dev"];
/// Newer packages of the kernel's headers keep all of them in the first folder, with links to it.
const HEADERS: [&str; 3] = ["usr/lib/linux/uapi/x86", "usr/include/x86_64-linux-gnu", "usr/include"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The program made of a source, compiled if it is not in the cache.
pub(crate) fn get(cache: &Cache, source: &Path) -> Result<PathBuf> {
    host::need(&[host::CC])?;
    let _lock = cache.lock()?;
    let text = fs::read_to_string(source).with_context(|| format!("cannot read {}", source.display()))?;
    let suffix = format!("-{}", cache::fingerprint(&(text + include_str!("peer.rs"))));
    let made = apt::with_archive(cache, Release::Sid, |archive| {
        let packages = archive.newest(&PACKAGES.map(str::to_owned))?;
        let library = packages.iter().find(|package| package.name == PACKAGES[0]);
        let library = library.with_context(|| format!("the mirror has no {}", PACKAGES[0]))?;
        cache.entry(&format!("peer-{}{suffix}", library.version), |entry| {
            let folder = cache.scratch()?;
            archive.unpack(&packages, folder.path())?;
            let mut cc = Command::new("cc");
            cc.args(["-std=gnu11", "-O3", "-Wall", "-Wextra", "-Werror"]).arg(source);
            cc.arg("-o").arg(entry.join("program"));
            for headers in HEADERS {
                cc.arg("-isystem").arg(folder.path().join(headers));
            }
            // What the library itself needs is in the guest.
            cc.arg("-L")
                .arg(folder.path().join(LIBRARIES))
                .args(["-libverbs", "-Wl,--allow-shlib-undefined"]);
            host::output(&mut cc).map(drop)
        })
    });
    let entry = made.or_else(|error| match cache.newest("peer-", &suffix) {
        Some(entry) => {
            host::progress(format_args!("using {} of an earlier run: {error:#}", source.display()));
            Ok(entry)
        }
        None => Err(error.context(format!("cannot make {}", source.display()))),
    })?;
    Ok(entry.join("program"))
}

/// Version of the library that a program is compiled against.
pub(crate) fn version(program: &Path) -> Result<String> {
    let entry = program.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let version = entry.strip_prefix("peer-").and_then(|rest| rest.rsplit_once('-'));
    version.map(|(version, _)| version.to_owned()).with_context(|| format!("{entry} has no version"))
}
