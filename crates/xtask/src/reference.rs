//! The reference: the distribution's own RDMA programs, unpacked over the guest's root, and the tests of the source that they are
//! made of.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::apt::{self, Archive, Package, Release};
use crate::cache::{self, Cache};
use crate::host::{self, Tool};
use crate::initramfs::Initramfs;

const TAR: Tool = ("tar", "tar");

/// What the reference is made of. Providers are only recommended by the library, not required. The tests ask `ip` and `rdma`.
const PACKAGES: [&str; 5] = ["ibverbs-utils", "ibverbs-providers", "python3-pyverbs", "iproute2", "perftest"];

/// The source package, and a package made of it that the others depend on.
const SOURCE: &str = "rdma-core";

/// Where the guest has the folder `tests` of the source.
pub(crate) const SOURCE_FOLDER: &str = "/usr/share/rdma-core";

/// What no program there reads.
const LEFT_OUT: [&str; 10] = [
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/zoneinfo",
    "usr/lib/systemd",
    "usr/lib/udev",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/x86_64-linux-gnu/systemd",
];

/// The reference as a part of the guest's initial root, fetched if it is not in the cache.
pub(crate) fn get(cache: &Cache) -> Result<PathBuf> {
    let _lock = cache.lock()?;
    let suffix = format!("-{}", cache::fingerprint(include_str!("reference.rs")));
    let fetched = apt::with_archive(cache, Release::Sid, |archive| {
        let packages = archive.closure(&PACKAGES)?;
        let main = packages.iter().find(|package| package.name == SOURCE);
        let main = main.with_context(|| format!("the mirror has no {SOURCE}"))?;
        let all: String =
            packages.iter().map(|Package { name, version }| format!("{name}={version}\n")).collect();
        let key = format!("reference-{}-{}{suffix}", main.version, cache::fingerprint(&all));
        cache.entry(&key, |entry| {
            let folder = cache.scratch()?;
            archive.unpack(&packages, folder.path())?;
            unpack_tests(cache, archive, main, folder.path())?;
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

/// Puts the tests of the source package below a root folder.
fn unpack_tests(cache: &Cache, archive: &Archive, main: &Package, root: &Path) -> Result<()> {
    host::need(&[TAR])?;
    let folder = cache.scratch()?;
    let source = archive.upstream_source(main, folder.path())?;
    let place = root.join(SOURCE_FOLDER.trim_start_matches('/'));
    fs::create_dir_all(&place)?;
    // The archive has one folder at the top, and others of this name further down.
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(source).arg("-C").arg(place);
    tar.args(["--strip-components=1", "--wildcards", "--no-wildcards-match-slash", "*/tests"]);
    host::output(&mut tar).map(drop)
}
