//! Debian packages through the host's own apt, with a configuration and state apart from the host's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::cache::Cache;
use crate::host;

/// Where Debian keeps the keys of its archive, by release of the host.
const KEYRINGS: [&str; 2] =
    ["/usr/share/keyrings/debian-archive-keyring.pgp", "/usr/share/keyrings/debian-archive-keyring.gpg"];

const INDEX_LIFE: Duration = Duration::from_secs(86_400);

/// A set of suites that are looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Release {
    Bookworm,
    Trixie,
    Sid,
}

impl Release {
    fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }

    fn suites(self) -> &'static [&'static str] {
        match self {
            Self::Bookworm => &["bookworm", "bookworm-updates"],
            Self::Trixie => &["trixie", "trixie-updates", "trixie-backports"],
            Self::Sid => &["sid"],
        }
    }

    /// Whether sources are wanted too, and not only packages.
    fn with_sources(self) -> bool {
        self == Self::Sid
    }

    fn security_suite(self) -> Option<&'static str> {
        match self {
            Self::Bookworm => Some("bookworm-security"),
            Self::Trixie => Some("trixie-security"),
            Self::Sid => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
}

/// Addresses of the Debian archive and of its security updates.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mirror {
    main: String,
    security: String,
}

impl Mirror {
    fn of_host() -> Result<Self> {
        if let Ok(address) = std::env::var("UVERBS_MIRROR") {
            return Ok(Self::with_usual_security(&address));
        }
        let known = || -> Result<Option<Self>> {
            let format = "$(CREATED_BY)|$(ORIGIN)|$(LABEL)|$(REPO_URI)";
            let targets = host::output(Command::new("apt-get").args(["indextargets", "--format", format]))?;
            Ok(Self::from_targets(&targets))
        };
        host::need(&[("apt-get", "apt")])?;
        if let Some(mirror) = known()? {
            return Ok(mirror);
        }
        // A fresh container has sources, but no index yet, and apt tells the origin only from an index.
        if host::is_root() {
            host::apt_get(&["update"])?;
            if let Some(mirror) = known()? {
                return Ok(mirror);
            }
        }
        bail!(
            "apt knows no mirror of the Debian archive: run `apt-get update` as root on a Debian host, or set \
             UVERBS_MIRROR to the address of one"
        )
    }

    fn from_targets(targets: &str) -> Option<Self> {
        let (mut main, mut security) = (None, None);
        for line in targets.lines() {
            let fields: Vec<&str> = line.split('|').collect();
            if let ["Packages", "Debian", label, address] = fields[..] {
                let address = address.trim_end_matches('/').to_owned();
                match label {
                    "Debian" => main = main.or(Some(address)),
                    "Debian-Security" => security = security.or(Some(address)),
                    _ => {}
                }
            }
        }
        let usual = Self::with_usual_security(&main?);
        Some(Self { security: security.unwrap_or(usual.security), ..usual })
    }

    /// Mirrors carry the security archive beside the main one, under this name.
    fn with_usual_security(main: &str) -> Self {
        let main = main.trim_end_matches('/').to_owned();
        Self { security: format!("{main}-security"), main }
    }

    fn sources(&self, release: Release, keyring: &str) -> String {
        let line = |address: &str, suite: &str| {
            let line = format!("deb [arch=amd64 signed-by={keyring}] {address} {suite} main\n");
            let source = release.with_sources().then(|| line.replacen("deb", "deb-src", 1));
            line + &source.unwrap_or_default()
        };
        let main = release.suites().iter().map(|suite| line(&self.main, suite));
        main.chain(release.security_suite().map(|suite| line(&self.security, suite))).collect()
    }
}

/// The packages of one release, as the mirror has them.
pub(crate) struct Archive<'a> {
    cache: &'a Cache,
    release: Release,
    config: PathBuf,
    stamp: PathBuf,
    /// The index was fetched by this very run, so there is nothing newer to be had.
    fresh: bool,
}

/// Does `work` with the packages of a release. If it fails and the index was an older one, it is tried once more with a
/// new index: mirrors drop old versions.
pub(crate) fn with_archive<T>(
    cache: &Cache,
    release: Release,
    work: impl Fn(&Archive) -> Result<T>,
) -> Result<T> {
    let mut archive = Archive::open(cache, release)?;
    match work(&archive) {
        Err(_) if !archive.fresh => {
            archive.refresh()?;
            work(&archive)
        }
        done => done,
    }
}

impl<'a> Archive<'a> {
    fn open(cache: &'a Cache, release: Release) -> Result<Self> {
        let keyring = KEYRINGS.into_iter().find(|path| Path::new(path).exists());
        let keyring = keyring.with_context(|| {
            format!(
                "no keys to check the Debian archive with ({}): `apt-get install debian-archive-keyring`",
                KEYRINGS[1]
            )
        })?;
        let sources = Mirror::of_host()?.sources(release, keyring);
        let folder = cache.root().join("apt").join(release.name());
        for part in ["state/lists/partial", "archives/partial", "none"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).with_context(|| format!("cannot create {}", part.display()))?;
        }
        let (config, stamp) = (folder.join("apt.conf"), folder.join("updated"));
        fs::write(&config, configuration(&folder)?)?;
        fs::write(folder.join("status"), "")?;

        let mut archive = Self { cache, release, config, stamp, fresh: false };
        let unchanged = fs::read_to_string(folder.join("sources.list")).is_ok_and(|old| old == sources);
        fs::write(folder.join("sources.list"), sources)?;
        let age = fs::metadata(&archive.stamp).and_then(|data| data.modified()).ok();
        let age = age.and_then(|time| SystemTime::now().duration_since(time).ok());
        match age {
            Some(age) if unchanged && age < INDEX_LIFE => {}
            // An index of these sources is there: better an old one than none.
            Some(_) if unchanged => {
                if let Err(error) = archive.refresh() {
                    host::progress(format_args!("using the package index of an earlier day: {error:#}"));
                }
            }
            _ => archive.refresh()?,
        }
        Ok(archive)
    }

    fn refresh(&mut self) -> Result<()> {
        host::progress(format_args!("fetching the package index of {}", self.release.name()));
        let done = host::output(self.apt("apt-get").args(["-q", "update", "--error-on=any"]));
        if let Err(error) = done {
            let text = format!("{error:#}");
            ensure!(
                !text.contains("NO_PUBKEY"),
                "the host's keys do not cover {}: install a newer debian-archive-keyring package, then try again",
                self.release.name()
            );
            // The first complaint is the cause, the others repeat it for each suite.
            let reason = text.lines().find_map(|line| line.strip_prefix("E: ")).unwrap_or(&text);
            bail!("cannot fetch the package index of {}: {reason}", self.release.name());
        }
        fs::write(&self.stamp, "")?;
        self.fresh = true;
        Ok(())
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.config).env("LC_ALL", "C");
        command
    }

    /// Names of packages that begin so.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let names = host::output(self.apt("apt-cache").args(["pkgnames", prefix]))?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// The newest version of each of the packages that can be had.
    pub(crate) fn newest(&self, names: &[String]) -> Result<Vec<Package>> {
        let table = host::output(self.apt("apt-cache").arg("madison").args(names))?;
        Ok(newest_of_table(&table))
    }

    /// The packages, as `apt-get install` takes them, and everything that they depend on.
    pub(crate) fn closure(&self, names: &[&str]) -> Result<Vec<Package>> {
        let plan = host::output(self.apt("apt-get").args(["-q", "-s", "install"]).args(names))?;
        let packages = packages_of_plan(&plan);
        ensure!(!packages.is_empty(), "apt plans to install nothing for {}", names.join(" "));
        Ok(packages)
    }

    /// Fetches the packages and unpacks them into a folder. Their scripts are not run.
    pub(crate) fn unpack(&self, packages: &[Package], into: &Path) -> Result<()> {
        let folder = self.cache.scratch()?;
        let wanted = packages.iter().map(|package| format!("{}={}", package.name, package.version));
        let what = match packages {
            [package] => format!("{} {}", package.name, package.version),
            _ => format!("{} packages of {}", packages.len(), self.release.name()),
        };
        host::progress(format_args!("fetching {what}"));
        let mut download = self.apt("apt-get");
        host::output(download.args(["-q", "download"]).args(wanted).current_dir(folder.path()))?;
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(folder.path())? {
            files.push(entry?.path());
        }
        ensure!(files.len() == packages.len(), "apt fetched {} of {} packages", files.len(), packages.len());
        files.sort();
        for file in files {
            host::output(Command::new("dpkg-deb").arg("-x").arg(&file).arg(into))?;
        }
        Ok(())
    }

    /// Fetches the source that a package was made of, as its authors published it, into a folder. Gives the archive.
    pub(crate) fn upstream_source(&self, package: &Package, into: &Path) -> Result<PathBuf> {
        let Package { name, version } = package;
        host::progress(format_args!("fetching the source of {name} {version}"));
        let mut download = self.apt("apt-get");
        download.args(["-q", "source", "--download-only", "--tar-only", &format!("{name}={version}")]);
        host::output(download.current_dir(into))?;
        let entries = fs::read_dir(into)?.collect::<std::io::Result<Vec<_>>>()?;
        let original = |path: &PathBuf| path.to_string_lossy().contains(".orig.tar.");
        let found = entries.into_iter().map(|entry| entry.path()).find(original);
        found.with_context(|| format!("apt fetched no source of {name} {version}"))
    }
}

/// Nothing of the host's configuration counts but the way to the network.
fn configuration(folder: &Path) -> Result<String> {
    let root = folder.to_str().filter(|path| !path.contains('"'));
    let root = root.with_context(|| format!("apt cannot work in {}: set UVERBS_CACHE", folder.display()))?;
    let mut text = format!(
        "Dir::State \"{root}/state\";\n\
         Dir::State::status \"{root}/status\";\n\
         Dir::Cache \"{root}\";\n\
         Dir::Cache::srcpkgcache \"\";\n\
         Dir::Etc::sourcelist \"{root}/sources.list\";\n\
         Dir::Etc::sourceparts \"{root}/none\";\n\
         Dir::Etc::main \"{root}/none/apt.conf\";\n\
         Dir::Etc::parts \"{root}/none\";\n\
         Dir::Etc::preferences \"{root}/none/preferences\";\n\
         Dir::Etc::preferencesparts \"{root}/none\";\n\
         APT::Architecture \"amd64\";\n\
         APT::Architectures \"amd64\";\n\
         APT::Install-Recommends \"false\";\n\
         APT::Sandbox::User \"\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::GzipIndexes \"true\";\n\
         Acquire::Check-Valid-Until \"false\";\n"
    );
    let network = ["Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::ForceIPv"];
    for line in host::output(Command::new("apt-config").args(["dump", "--no-empty"]))?.lines() {
        if network.iter().any(|name| line.starts_with(name)) {
            text.push_str(line);
            text.push('\n');
        }
    }
    Ok(text)
}

fn newest_of_table(table: &str) -> Vec<Package> {
    let mut newest: Vec<Package> = Vec::new();
    for line in table.lines() {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [name, version, source] = fields[..] else { continue };
        if !source.ends_with(" Packages") {
            continue;
        }
        match newest.iter_mut().find(|package| package.name == name) {
            Some(package) if crate::version::compare(version, &package.version).is_gt() => {
                version.clone_into(&mut package.version);
            }
            Some(_) => {}
            None => newest.push(Package { name: name.to_owned(), version: version.to_owned() }),
        }
    }
    newest
}

fn packages_of_plan(plan: &str) -> Vec<Package> {
    let package = |line: &str| {
        let (name, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
        let version = rest.split_whitespace().next()?;
        Some(Package { name: name.to_owned(), version: version.to_owned() })
    };
    plan.lines().filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        Package { name: name.to_owned(), version: version.to_owned() }
    }

    #[test]
    fn mirror_is_the_debian_one() {
        let targets = "Sources|Debian|Debian|http://mirror.test/source/\n\
                       Packages|Someone|Else|http://else.test/\n\
                       Packages|Debian|Debian Backports|http://backports.test/debian/\n\
                       Packages|Debian|Debian|http://mirror.test/debian/\n\
                       Packages|Debian|Debian-Security|http://mirror.test/sec/\n\
                       Packages|Debian|Debian|http://second.test/debian/\n";
        let mirror = Mirror::from_targets(targets).unwrap();
        assert_eq!(
            mirror,
            Mirror { main: "http://mirror.test/debian".into(), security: "http://mirror.test/sec".into() }
        );
        assert_eq!(Mirror::from_targets("Packages|Ubuntu|Ubuntu|http://mirror.test/ubuntu/"), None);
    }

    #[test]
    fn security_is_beside_the_archive() {
        let mirror = Mirror::with_usual_security("http://mirror.test/debian/");
        let sources = mirror.sources(Release::Bookworm, "/keys");
        let lines: Vec<&str> = sources.lines().collect();
        assert_eq!(lines[0], "deb [arch=amd64 signed-by=/keys] http://mirror.test/debian bookworm main");
        assert_eq!(
            lines[2],
            "deb [arch=amd64 signed-by=/keys] http://mirror.test/debian-security bookworm-security main"
        );
        let sources = mirror.sources(Release::Sid, "/keys");
        let lines: Vec<&str> = sources.lines().collect();
        let sid = "[arch=amd64 signed-by=/keys] http://mirror.test/debian sid main";
        assert_eq!(lines, [format!("deb {sid}"), format!("deb-src {sid}")]);
    }

    #[test]
    fn newest_version_of_each() {
        let table = "linux-libc-dev | 6.12.117-1 | http://mirror.test trixie/main amd64 Packages\n\
                     linux-libc-dev | 7.3.4-1~bpo13+1 | http://mirror.test trixie-backports/main amd64 Packages\n\
                     linux-libc-dev | 9.9 | http://mirror.test trixie/main Sources\n\
                     busybox | 1:1.37.0-6+b9 | http://mirror.test trixie/main amd64 Packages\n";
        let wanted = [package("linux-libc-dev", "7.3.4-1~bpo13+1"), package("busybox", "1:1.37.0-6+b9")];
        assert_eq!(newest_of_table(table), wanted);
    }

    #[test]
    fn plan_lists_packages() {
        let plan = "Reading package lists...\n\
                    Inst gcc-16-base (16.2.0-4 Debian:unstable [amd64])\n\
                    Inst libc6 (2.43-7 Debian:unstable [amd64]) []\n\
                    Conf libc6 (2.43-7 Debian:unstable [amd64])\n";
        assert_eq!(packages_of_plan(plan), [package("gcc-16-base", "16.2.0-4"), package("libc6", "2.43-7")]);
    }
}
