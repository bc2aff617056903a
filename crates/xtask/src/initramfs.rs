//! Archives of the kind that the kernel unpacks into its first root: cpio, format newc. Several of them in a row count as
//! one, and a later file replaces an earlier one.

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use cpio::newc::{Builder, trailer};

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

pub(crate) struct Initramfs<W: Write> {
    out: W,
    inode: u32,
}

impl<W: Write> Initramfs<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, inode: 0 }
    }

    fn entry(&mut self, path: &str, mode: u32, data: &[u8]) -> Result<()> {
        self.inode += 1;
        let path = path.trim_start_matches('/');
        let size = u32::try_from(data.len()).ok().with_context(|| format!("{path} is too large for cpio"))?;
        let mut writer = Builder::new(path).ino(self.inode).mode(mode).nlink(1).write(&mut self.out, size);
        writer.write_all(data)?;
        writer.finish()?;
        Ok(())
    }

    pub(crate) fn folder(&mut self, path: &str) -> Result<()> {
        self.entry(path, FOLDER | 0o755, &[])
    }

    /// The folders that lead to a path: the kernel does not make them.
    pub(crate) fn folders_to(&mut self, path: &str) -> Result<()> {
        let mut ancestors: Vec<&Path> = Path::new(path.trim_start_matches('/')).ancestors().skip(1).collect();
        ancestors.reverse();
        for folder in ancestors {
            match folder.to_str() {
                Some("") | None => {}
                Some(folder) => self.folder(folder)?,
            }
        }
        Ok(())
    }

    pub(crate) fn file(&mut self, path: &str, mode: u32, data: &[u8]) -> Result<()> {
        self.entry(path, FILE | mode, data)
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.entry(path, LINK | 0o777, target.as_bytes())
    }

    /// Everything below a folder, owned by root, but for what `keep` refuses.
    pub(crate) fn tree(&mut self, root: &Path, keep: &dyn Fn(&str) -> bool) -> Result<()> {
        self.subtree(root, "", keep)
    }

    fn subtree(&mut self, folder: &Path, below: &str, keep: &dyn Fn(&str) -> bool) -> Result<()> {
        let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let mut entries: Vec<_> = entries.collect::<io::Result<_>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
            let inside = if below.is_empty() { name.to_owned() } else { format!("{below}/{name}") };
            if !keep(&inside) {
                continue;
            }
            let data = entry.metadata()?;
            let mode = data.permissions().mode() & 0o7777;
            if data.is_dir() {
                self.entry(&inside, FOLDER | mode, &[])?;
                self.subtree(&path, &inside, keep)?;
            } else if data.is_symlink() {
                self.entry(&inside, LINK | 0o777, fs::read_link(&path)?.as_os_str().as_bytes())?;
            } else if data.is_file() {
                let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                self.entry(&inside, FILE | mode, &content)?;
            }
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<W> {
        Ok(trailer(self.out)?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    type Entry = (String, u32, Vec<u8>);

    fn read_back(archive: &[u8]) -> Vec<Entry> {
        let (mut rest, mut entries) = (archive, Vec::new());
        loop {
            let mut reader = cpio::newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                return entries;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut data = Vec::new();
            reader.read_to_end(&mut data).unwrap();
            entries.push((name, mode, data));
            rest = reader.finish().unwrap();
        }
    }

    #[test]
    fn round_trip() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join("sub/data"), [7; 5]).unwrap();
        fs::write(folder.path().join("skipped"), "").unwrap();
        std::os::unix::fs::symlink("sub/data", folder.path().join("link")).unwrap();
        fs::set_permissions(folder.path().join("sub/data"), fs::Permissions::from_mode(0o640)).unwrap();
        fs::set_permissions(folder.path().join("sub"), fs::Permissions::from_mode(0o750)).unwrap();

        let mut archive = Initramfs::new(Vec::new());
        archive.folders_to("/usr/bin/true").unwrap();
        archive.file("/usr/bin/true", 0o755, b"odd").unwrap();
        archive.link("bin", "usr/bin").unwrap();
        archive.tree(folder.path(), &|path| path != "skipped").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);

        let entry = |name: &str, mode, data: &[u8]| (name.to_owned(), mode, data.to_vec());
        let wanted = [
            entry("usr", 0o040_755, b""),
            entry("usr/bin", 0o040_755, b""),
            entry("usr/bin/true", 0o100_755, b"odd"),
            entry("bin", 0o120_777, b"usr/bin"),
            entry("link", 0o120_777, b"sub/data"),
            entry("sub", 0o040_750, b""),
            entry("sub/data", 0o100_640, &[7; 5]),
        ];
        assert_eq!(read_back(&bytes), wanted);
    }
}
