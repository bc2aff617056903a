//! The reference: the distribution's own RDMA programs, unpacked over the guest's root.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::apt::{self, Package, Release};
use crate::cache::{self, Cache};
use crate::host;
use crate::initramfs::Initramfs;

/// What the reference is made of. Providers are only recommended by the library, not required.
const PACKAGES: [&str; 2] = ["ibverbs-utils", "ibverbs-providers"];

/// What no program there reads.
const LEFT_OUT: [&str; 7] = [
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/lintian",
    "usr/lib/systemd",
    "usr/lib/udev",
    "usr/lib/x86_64-linux-gnu/gconv",
];

/// The reference as a part of the guest's initial root, fetched if it is not in the cache.
pub(crate) fn get(cache: &Cache) -> Result<PathBuf> {
    let _lock = cache.lock()?;
    let suffix = format!("-{}", cache::fingerprint(include_str!("reference.rs")));
    let fetched = apt::with_archive(cache, Release::Sid, |archive| {
        let packages = archive.closure(&PACKAGES)?;
        let main = packages.iter().find(|package| package.name == PACKAGES[0]);
        let main = main.with_context(|| format!("the mirror has no {}", PACKAGES[0]))?;
        let all: String =
            packages.iter().map(|Package { name, version }| format!("{name}={version}\n")).collect();
        let key = format!("reference-{}-{}{suffix}", main.version, cache::fingerprint(&all));
        cache.entry(&key, |entry| {
            let folder = cache.scratch()?;
            archive.unpack(&packages, folder.path())?;
            let mut out = Initramfs::new(BufWriter::new(File::create(entry.join("reference.cpio"))?));
            // The guest's own links for these stand: Debian has everything below usr.
            let own = |path: &str| ["bin", "sbin", "lib", "lib64"].contains(&path);
            out.tree(folder.path(), &|path| !own(path) && !LEFT_OUT.contains(&path))?;
            out.finish()?.into_inner().context("cannot write the reference")?.sync_all()?;
            Ok(())
        })
    });
    let entry = match fetched {
        Ok(entry) => entry,
        Err(error) => match cache.newest("reference-", &suffix) {
            Some(entry) => {
                host::progress(format_args!("using the reference of an earlier run: {error:#}"));
                entry
            }
            None => return Err(error.context("no reference programs")),
        },
    };
    Ok(entry.join("reference.cpio"))
}
