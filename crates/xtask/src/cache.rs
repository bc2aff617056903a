//! The cache folder: what was fetched and prepared once, keyed by version.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use tempfile::TempDir;

const PARTIAL: &str = ".partial-";

pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    pub(crate) fn open() -> Result<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = set("UVERBS_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("uverbs")))
            .or_else(|| set("HOME").map(|folder| folder.join(".cache/uverbs")))
            .context("no cache folder: set UVERBS_CACHE to a folder that can hold 1 GB")?;
        fs::create_dir_all(&root)
            .with_context(|| format!("cannot create the cache folder {}", root.display()))?;
        // apt changes its working folder, so a relative path would not do.
        let root = root.canonicalize().context("cache folder")?;
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// One run at a time fetches; the others wait and then find it done.
    pub(crate) fn lock(&self) -> Result<File> {
        let path = self.root.join("lock");
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(file)
    }

    /// The entry of that key, filled now if it is not there. It is filled aside and then renamed: an interrupted run
    /// leaves nothing that looks complete.
    pub(crate) fn entry(&self, key: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let path = self.root.join(key);
        if path.is_dir() {
            return Ok(path);
        }
        let aside = self.scratch()?;
        let full = aside.path().join("entry");
        fs::create_dir(&full)?;
        fill(&full)?;
        match fs::rename(&full, &path) {
            // Another run was faster.
            Err(_) if path.is_dir() => {}
            other => other.with_context(|| format!("cannot create {}", path.display()))?,
        }
        Ok(path)
    }

    /// The newest entry whose key has that prefix and suffix.
    pub(crate) fn newest(&self, prefix: &str, suffix: &str) -> Option<PathBuf> {
        let entries = fs::read_dir(&self.root).ok()?.filter_map(Result::ok);
        let fits = |name: &str| name.starts_with(prefix) && name.ends_with(suffix);
        let names =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| fits(name));
        let newest = names.max_by(|a, b| crate::version::compare(a, b))?;
        Some(self.root.join(newest))
    }

    /// A folder that goes away by itself, on the file system of the cache.
    pub(crate) fn scratch(&self) -> Result<TempDir> {
        self.sweep();
        let folder = tempfile::Builder::new().prefix(PARTIAL).tempdir_in(&self.root);
        folder.with_context(|| format!("cannot write to {}", self.root.display()))
    }

    /// Removes what interrupted runs left behind. What is unpacked into a folder may set its time of modification back to
    /// that in the package, but not its time of change.
    fn sweep(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let old = |data: fs::Metadata| {
            let changed = Duration::from_secs(u64::try_from(data.ctime()).unwrap_or_default());
            now.saturating_sub(changed) > Duration::from_secs(86_400)
        };
        for entry in fs::read_dir(&self.root).into_iter().flatten().filter_map(Result::ok) {
            if entry.metadata().is_ok_and(old) && entry.file_name().to_string_lossy().starts_with(PARTIAL) {
                // Best effort: it takes room and does no other harm.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// A short text that changes whenever the recipe does, for keys. Whoever prepares an entry gives its own source, so that no
/// entry of an older make is used.
pub(crate) fn fingerprint(recipe: &str) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    recipe.hash(&mut hasher);
    format!("{:08x}", hasher.finish() & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_all_or_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache { root: folder.path().to_path_buf() };
        let failed = cache.entry("kernel-6.1.9-1-x", |path| {
            fs::write(path.join("half"), "")?;
            anyhow::bail!("interrupted")
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

        let path = cache.entry("kernel-6.1.9-1-x", |path| Ok(fs::write(path.join("whole"), "")?)).unwrap();
        assert!(path.join("whole").exists());
        cache.entry("kernel-6.1.9-1-x", |_| panic!("filled twice")).unwrap();
        cache.entry("kernel-6.1.10-1-x", |_| Ok(())).unwrap();
        assert_eq!(cache.newest("kernel-6.1.", "-x").unwrap(), folder.path().join("kernel-6.1.10-1-x"));
        assert_eq!(cache.newest("kernel-6.12.", "-x"), None);
    }

    #[test]
    fn scratch_is_not_swept_while_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache { root: folder.path().to_path_buf() };
        let first = cache.scratch().unwrap();
        File::open(first.path()).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let second = cache.scratch().unwrap();
        assert!(first.path().is_dir() && second.path().is_dir());
    }
}
