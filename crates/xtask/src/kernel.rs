//! Stock Debian kernels: which package, what of it, prepared for the test bed.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::apt::{self, Archive, Package, Release};
use crate::cache::{self, Cache};
use crate::host;
use crate::initramfs::Initramfs;

/// A line of kernels of which Debian has packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Line {
    #[value(name = "6.1")]
    V6_1,
    #[value(name = "6.12")]
    V6_12,
    #[value(name = "7.3")]
    V7_3,
}

impl Line {
    pub(crate) const ALL: [Self; 3] = [Self::V6_1, Self::V6_12, Self::V7_3];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7_3 => "7.3",
        }
    }

    pub(crate) fn debian(self) -> Release {
        match self {
            Self::V6_1 => Release::Bookworm,
            Self::V6_12 | Self::V7_3 => Release::Trixie,
        }
    }
}

/// Modules that the guest inserts, each with what it depends on. A kernel that has one built in is fine. The last is for
/// efa, which the packages do not have.
const MODULES: [&str; 8] =
    ["virtio_pci", "virtio_console", "veth", "dummy", "ib_uverbs", "rdma_ucm", "rdma_rxe", "crc16"];

/// Up to 6.12 soft-RoCE asks the crypto layer for its checksum by name, which no dependency tells. Later kernels have no
/// such modules.
const CHECKSUM_MODULES: [&str; 2] = ["crc32_generic", "crc32c_generic"];

/// Folders of the guest's root. Programs are all in one place, as in Debian, so that packages can be unpacked over it.
const FOLDERS: [&str; 15] = [
    "dev",
    "etc",
    "lib/modules",
    "proc",
    "root",
    "run",
    "sys",
    "tmp",
    "usr",
    "usr/bin",
    "usr/lib",
    "usr/lib64",
    "usr/sbin",
    "var",
    "var/tmp",
];
const LINKS: [(&str, &str); 4] =
    [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")];

/// The place of a path of the guest in its archives: a folder in the name of a link would replace the link.
pub(crate) fn without_links(path: &str) -> String {
    let path = path.trim_start_matches('/');
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let link = LINKS.into_iter().find(|(link, _)| *link == first && !rest.is_empty());
    link.map_or_else(|| path.to_owned(), |(_, target)| format!("{target}/{rest}"))
}

/// A kernel that is ready to boot.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) image: PathBuf,
    /// The part of the initial root that is the same in every run: busybox and modules.
    pub(crate) base: PathBuf,
    /// Release as `uname -r` tells it.
    pub(crate) release: String,
    /// Version of the package.
    pub(crate) version: String,
}

impl Kernel {
    fn read(entry: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = entry.join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        Ok(Self {
            image: entry.join("vmlinux"),
            base: entry.join("base.cpio"),
            release: read("release")?,
            version: read("version")?,
        })
    }

    /// Where the guest has a module.
    pub(crate) fn module_path(&self, name: &str) -> String {
        format!("/usr/lib/modules/{}/{name}.ko", self.release)
    }
}

/// The newest kernel of a line, fetched if it is not in the cache.
pub(crate) fn get(cache: &Cache, line: Line) -> Result<Kernel> {
    let _lock = cache.lock()?;
    let prefix = format!("kernel-{}-", line.name());
    let suffix = format!("-{}", cache::fingerprint(include_str!("kernel.rs")));
    let fetched = apt::with_archive(cache, line.debian(), |archive| {
        let packages = newest(archive, line)?;
        cache.entry(&format!("{prefix}{}{suffix}", packages[0].version), |entry| {
            prepare(cache, archive, &packages, entry)
        })
    });
    let entry = match fetched {
        Ok(entry) => entry,
        Err(error) => match cache.newest(&prefix, &suffix) {
            Some(entry) => {
                host::progress(format_args!("using the kernel of an earlier run: {error:#}"));
                entry
            }
            None => return Err(error.context(format!("no kernel {}", line.name()))),
        },
    };
    Kernel::read(&entry)
}

/// The packages of the newest kernel of a line. Newer ones come in three parts; the last lists what is built in.
fn newest(archive: &Archive, line: Line) -> Result<Vec<Package>> {
    let names = archive.names("linux-")?;
    let images: Vec<String> = names.iter().filter(|name| image_of_line(name, line.name())).cloned().collect();
    ensure!(!images.is_empty(), "the mirror has no kernel {} (amd64, neither cloud nor rt)", line.name());
    let candidates = archive.newest(&images)?;
    let image = candidates.into_iter().max_by(|a, b| crate::version::compare(&a.version, &b.version));
    let image = image.with_context(|| format!("apt tells no version of {}", images.join(", ")))?;
    let part = |kind: &str| image.name.replacen("linux-image-", kind, 1);
    let parts = ["linux-binary-", "linux-modules-", "linux-base-"].map(part);
    if parts.iter().all(|part| names.contains(part)) {
        let version = &image.version;
        return Ok(parts.map(|name| Package { name, version: version.clone() }).to_vec());
    }
    Ok(vec![image])
}

/// Whether it is a signed kernel image of the plain flavour.
fn image_of_line(name: &str, line: &str) -> bool {
    let release = name.strip_prefix("linux-image-").and_then(|rest| rest.strip_suffix("-amd64"));
    let patch = release.and_then(|release| release.strip_prefix(line)?.strip_prefix('.'));
    patch.is_some_and(|patch| {
        let flavour = patch.trim_matches(|c: char| c.is_ascii_digit() || ".-".contains(c));
        flavour.is_empty() || (patch.contains("+deb") && !patch.contains('-'))
    })
}

fn prepare(cache: &Cache, archive: &Archive, packages: &[Package], entry: &Path) -> Result<()> {
    host::need(&[host::XZ, host::ZSTD])?;
    let busybox = archive_busybox(cache)?;
    let folder = cache.scratch()?;
    archive.unpack(packages, folder.path())?;

    let modules = ["usr/lib/modules", "lib/modules"].map(|path| folder.path().join(path));
    let modules =
        modules.into_iter().find(|path| path.is_dir()).context("the kernel package has no modules")?;
    let modules = only_entry(&modules)?;
    let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let images = [modules.join("vmlinuz"), folder.path().join(format!("boot/vmlinuz-{release}"))];
    let image = images.iter().find(|path| path.is_file()).context("the kernel package has no image")?;
    let image = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    fs::write(entry.join("vmlinux"), unpacked_image(&image, entry)?)?;
    fs::write(entry.join("release"), &release)?;
    fs::write(entry.join("version"), &packages[0].version)?;

    let mut out = Initramfs::new(BufWriter::new(File::create(entry.join("base.cpio"))?));
    for (path, target) in LINKS {
        out.folder(target)?;
        out.link(path, target)?;
    }
    for path in FOLDERS {
        out.folder(path)?;
    }
    out.file("usr/bin/busybox", 0o755, &fs::read(&busybox)?)?;
    for applet in
        host::output(Command::new(&busybox).arg("--list"))?.lines().filter(|name| *name != "busybox")
    {
        out.link(&format!("usr/bin/{applet}"), "busybox")?;
    }
    let place = format!("usr/lib/modules/{release}");
    out.folders_to(&format!("{place}/x"))?;
    let mut order = String::new();
    for module in Modules::read(&modules)?.in_order()? {
        let path = format!("{place}/{}.ko", module.name);
        out.file(&path, 0o644, &module.content)?;
        order.push_str(&format!("/{path}\n"));
    }
    out.file("etc/modules", 0o644, order.as_bytes())?;
    out.finish()?.into_inner().context("cannot write the initial root")?.sync_all()?;
    Ok(())
}

/// The ELF image inside of a bzImage, which QEMU can start too: emulated, unpacking it costs more than a second a boot.
/// Places are those of the x86 boot protocol, 2.08 and later.
fn unpacked_image(image: &[u8], scratch: &Path) -> Result<Vec<u8>> {
    let word = |place: usize| -> Option<usize> {
        let bytes = image.get(place..place + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let payload = || -> Option<&[u8]> {
        let start = (usize::from(*image.get(0x1f1)?) + 1) * 512 + word(0x248)?;
        // The payload ends with its unpacked size.
        image.get(start..(start + word(0x24c)?).checked_sub(4)?)
    };
    let payload = payload().context("the kernel image is not a bzImage")?;
    let program = match payload {
        [0xfd, b'7', b'z', ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        _ => bail!("the kernel image is neither xz nor zstd inside"),
    };
    let packed = scratch.join("packed");
    fs::write(&packed, payload)?;
    let unpacked = unpack(program, &packed)?;
    fs::remove_file(packed)?;
    ensure!(unpacked.starts_with(b"\x7fELF"), "the kernel image holds no ELF file");
    Ok(unpacked)
}

fn unpack(program: &str, path: &Path) -> Result<Vec<u8>> {
    let run = Command::new(program).arg("-dc").stdin(File::open(path)?).output();
    let run = run.with_context(|| format!("cannot run {program}"))?;
    ensure!(run.status.success(), "{program} cannot unpack {}", path.display());
    Ok(run.stdout)
}

fn archive_busybox(cache: &Cache) -> Result<PathBuf> {
    let entry = apt::with_archive(cache, Release::Trixie, |archive| {
        let packages = archive.newest(&["busybox-static".to_owned()])?;
        let version = packages.first().context("the mirror has no busybox-static")?.version.replace(':', "_");
        cache.entry(&format!("busybox-{version}"), |entry| archive.unpack(&packages, entry))
    })?;
    Ok(entry.join("usr/bin/busybox"))
}

fn only_entry(folder: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(folder)?;
    let entry = entries.next().with_context(|| format!("{} is empty", folder.display()))??;
    Ok(entry.path())
}

struct Module {
    name: String,
    content: Vec<u8>,
}

/// The modules of an unpacked kernel package.
struct Modules {
    files: HashMap<String, PathBuf>,
    built_in: HashSet<String>,
}

impl Modules {
    fn read(folder: &Path) -> Result<Self> {
        let built_in = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        let built_in = built_in.lines().filter_map(|line| module_name(Path::new(line))).collect();
        let mut files = HashMap::new();
        let mut folders = vec![folder.join("kernel")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Some(name) = module_name(&path) {
                    files.insert(name, path);
                }
            }
        }
        Ok(Self { files, built_in })
    }

    /// What the guest needs, dependencies first.
    fn in_order(&self) -> Result<Vec<Module>> {
        let (mut done, mut seen) = (Vec::new(), HashSet::new());
        for name in CHECKSUM_MODULES.into_iter().filter(|name| self.files.contains_key(*name)) {
            self.add(name, &mut done, &mut seen)?;
        }
        for name in MODULES {
            self.add(name, &mut done, &mut seen)?;
        }
        Ok(done)
    }

    fn add(&self, name: &str, done: &mut Vec<Module>, seen: &mut HashSet<String>) -> Result<()> {
        if self.built_in.contains(name) || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let path =
            self.files.get(name).with_context(|| format!("the kernel package has no module {name}"))?;
        let content = if path.extension().is_some_and(|end| end == "xz") {
            unpack("xz", path)?
        } else {
            fs::read(path)?
        };
        for needed in depends(&content) {
            self.add(&needed, done, seen)?;
        }
        done.push(Module { name: name.to_owned(), content });
        Ok(())
    }
}

/// `kernel/net/foo-bar.ko.xz` is the module `foo_bar`.
fn module_name(path: &Path) -> Option<String> {
    let (name, end) = path.file_name()?.to_str()?.split_once(".ko")?;
    ["", ".xz"].contains(&end).then(|| name.replace('-', "_"))
}

/// The modules that this one says it depends on, in its `.modinfo` section of zero-terminated strings.
fn depends(module: &[u8]) -> Vec<String> {
    let list = module.split(|byte| *byte == 0).find_map(|text| text.strip_prefix(b"depends="));
    let list = String::from_utf8_lossy(list.unwrap_or_default()).replace('-', "_");
    list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_signed_images_only() {
        let fits = |name| image_of_line(name, "6.1");
        assert!(fits("linux-image-6.1.0-57-amd64"));
        assert!(image_of_line("linux-image-6.12.118+deb13-amd64", "6.12"));
        assert!(image_of_line("linux-image-6.12.115+deb13.1-amd64", "6.12"));
        assert!(image_of_line("linux-image-7.3.4+deb13-amd64", "7.3"));
        for other in [
            "linux-image-6.1.0-57-amd64-unsigned",
            "linux-image-6.1.0-57-amd64-dbg",
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-6.1.0-57-rt-amd64",
            "linux-image-6.12.118+deb13-amd64",
            "linux-image-6.12.118+deb13-cloud-amd64",
            "linux-headers-6.1.0-57-amd64",
            "linux-image-amd64",
        ] {
            assert!(!fits(other), "{other}");
        }
        assert!(!image_of_line("linux-image-6.12.118+deb13-cloud-amd64", "6.12"));
        assert!(!image_of_line("linux-image-6.12.118+deb13-rt-amd64", "6.12"));
    }

    #[test]
    fn links_are_not_in_the_way() {
        assert_eq!(without_links("/bin/tool"), "usr/bin/tool");
        assert_eq!(without_links("/lib64/x/y"), "usr/lib64/x/y");
        assert_eq!(without_links("/binary/tool"), "binary/tool");
        assert_eq!(without_links("/init"), "init");
    }

    #[test]
    fn modules_tell_what_they_need() {
        let module = b"\x7fELF\0\0license=GPL\0depends=ib_core,ip6-udp-tunnel\0name=rdma_rxe\0";
        assert_eq!(depends(module), ["ib_core", "ip6_udp_tunnel"]);
        assert!(depends(b"\0depends=\0").is_empty());
        assert_eq!(module_name(Path::new("a/foo-bar.ko.xz")).as_deref(), Some("foo_bar"));
        assert_eq!(module_name(Path::new("a/foo.ko")).as_deref(), Some("foo"));
        assert_eq!(module_name(Path::new("a/modules.order")), None);
    }
}
