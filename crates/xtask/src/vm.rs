//! One command, or a shell, on a stock kernel in a virtual machine.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::termios::{self, SetArg, Termios};

use crate::cache::Cache;
use crate::efa::{Efa, Model};
use crate::initramfs::Initramfs;
use crate::kernel::{self, Line};
use crate::{host, modules, reference};

/// Exit status of `cargo xtask vm` when it is the virtual machine that failed and not the command.
pub(crate) const STATUS_VM_FAILED: u8 = 125;

/// Ends an interactive session whatever the guest does, as in telnet: Ctrl-].
const ESCAPE: u8 = 0x1d;

const LAST_LINES: usize = 40;

/// How often to start a machine that dies before it is ready.
const ATTEMPTS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// Soft-RoCE: rxe0, on one end of a veth pair with the address 192.168.77.1.
    Rxe,
    /// The same, with a soft-RoCE that has completion counters; kernel 7.3 only.
    RxeCounters,
    /// Soft iWARP: siw0, on one end of the same veth pair; kernel 7.3 only.
    Siw,
    /// EFA: efa_0, a device in software (`efa-model`) behind the stock driver; kernel 7.3 only.
    Efa,
    /// No RDMA device; the modules are there.
    None,
}

impl Device {
    /// Its name in the guest.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::Rxe | Self::RxeCounters => Some("rxe0"),
            Self::Siw => Some("siw0"),
            Self::Efa => Some("efa_0"),
            Self::None => None,
        }
    }

    /// Name of the driver's module, if it is not that of the kernel's package.
    fn own_module(self) -> Option<&'static str> {
        match self {
            Self::RxeCounters => Some("rdma_rxe"),
            Self::Siw => Some("siw"),
            Self::Efa => Some("efa"),
            Self::Rxe | Self::None => None,
        }
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Vm {
    /// Line of kernels
    #[arg(long, value_enum, default_value = "7.3")]
    pub(crate) kernel: Line,
    /// RDMA device to set up
    #[arg(long, value_enum, default_value = "rxe")]
    pub(crate) device: Device,
    /// Pass an option to efa-model, as in --model-option=--no-remote-ah
    #[arg(long = "model-option", value_name = "OPTION")]
    pub(crate) model_options: Vec<OsString>,
    /// Run the guest's clock by counting instructions, on one processor
    #[arg(long)]
    pub(crate) icount: bool,
    /// Memory of the guest, as QEMU writes it
    #[arg(long, default_value = "2G")]
    pub(crate) memory: String,
    /// Stop a command that takes longer; 0 for no limit. A shell has no limit
    #[arg(long, default_value = "600", value_name = "SECONDS")]
    pub(crate) timeout: u64,
    /// Show the kernel's messages and how long the guest took to start
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Add the distribution's rdma-core and its examples to the guest
    #[arg(long)]
    pub(crate) reference: bool,
    /// Copy a file of the host into the guest
    #[arg(long = "file", value_name = "HOST:GUEST", value_parser = parse_copy)]
    pub(crate) files: Vec<Copy>,
    /// Command to run as root; if there is none a shell, or what standard input has for a shell
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
    /// Variables of the command's environment
    #[arg(skip)]
    pub(crate) environment: Vec<(&'static str, String)>,
    /// File for the command's standard output, if it is not to go to ours
    #[arg(skip)]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) host: PathBuf,
    pub(crate) guest: String,
}

fn parse_copy(text: &str) -> Result<Copy, String> {
    match text.rsplit_once(':') {
        Some((host, guest)) if !host.is_empty() && guest.starts_with('/') && !guest.ends_with('/') => {
            Ok(Copy { host: host.into(), guest: guest.to_owned() })
        }
        _ => Err("expected HOST:GUEST, where GUEST is the absolute path of a file".to_owned()),
    }
}

impl Vm {
    /// A command on soft-RoCE, with the defaults of the command line.
    pub(crate) fn command<S: Into<OsString>>(kernel: Line, command: impl IntoIterator<Item = S>) -> Self {
        Self {
            kernel,
            device: Device::Rxe,
            model_options: Vec::new(),
            icount: false,
            memory: "2G".to_owned(),
            timeout: 600,
            verbose: false,
            reference: false,
            files: Vec::new(),
            command: command.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            output: None,
        }
    }

    /// Runs the guest and gives the exit status of the command. An error means that the virtual machine failed.
    pub(crate) fn run(&self) -> Result<u8> {
        ensure!(
            cfg!(target_arch = "x86_64"),
            "the virtual machines are x86-64 with Debian's amd64 packages: run this on an x86-64 host"
        );
        let efa = self.device == Device::Efa;
        ensure!(
            efa || self.model_options.is_empty(),
            "--model-option is for --device efa: give both or none"
        );
        ensure!(
            !(efa && self.icount),
            "--icount does not work with --device efa, which is outside of the guest's clock: leave one of them out"
        );
        let uverbs = host::cargo_executable(&["build", "--release", "-p", "uverbs-cli", "--bin", "uverbs"])?;
        let cache = Cache::open()?;
        let kernel = kernel::get(&cache, self.kernel)?;
        let mut files = vec![Copy { host: uverbs, guest: "/usr/bin/uverbs".to_owned() }];
        if let Some(module) = self.device.own_module() {
            let host = modules::get(&cache, self.kernel, &kernel)?.join(format!("{module}.ko"));
            files.push(Copy { host, guest: kernel.module_path(module) });
        }
        let efa = if efa {
            Some(Efa::get(&cache, &self.model_options)?)
        } else {
            host::need(&[host::QEMU])?;
            None
        };
        files.extend_from_slice(&self.files);
        let mut parts = vec![kernel.base];
        if self.reference {
            parts.push(reference::get(&cache)?);
        }
        let root = self.initial_root(&parts, &files)?;
        self.boot(&kernel.image, &root, efa.as_ref())
    }

    fn interactive(&self) -> bool {
        self.command.is_empty() && io::stdin().is_terminal()
    }

    /// The initial root, in memory: nothing to clean up however this program ends.
    fn initial_root(&self, parts: &[PathBuf], files: &[Copy]) -> Result<File> {
        let mut file = File::from(memfd_create("initramfs", MFdFlags::MFD_CLOEXEC)?);
        for part in parts {
            let mut part = File::open(part).with_context(|| format!("cannot read {}", part.display()))?;
            io::copy(&mut part, &mut file)?;
        }
        let mut out = Initramfs::new(file);
        out.file("init", 0o755, include_bytes!("init.sh"))?;
        out.folders_to("etc/vm/x")?;
        out.file(
            "etc/passwd",
            0o644,
            b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
        )?;
        out.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
        out.file("etc/hosts", 0o644, b"127.0.0.1 localhost uverbs\n::1 localhost\n")?;
        out.file("etc/vm/settings", 0o644, self.settings().as_bytes())?;
        out.file("etc/vm/command", 0o644, &self.script()?)?;
        for Copy { host, guest } in files {
            let content = fs::read(host).with_context(|| format!("cannot read {}", host.display()))?;
            let mode = fs::metadata(host)?.permissions().mode() & 0o777;
            let guest = kernel::without_links(guest);
            out.folders_to(&guest)?;
            out.file(&guest, mode, &content)?;
        }
        out.finish()
    }

    fn settings(&self) -> String {
        let device = match self.device {
            Device::Rxe | Device::RxeCounters => "rxe",
            Device::Siw => "siw",
            Device::Efa => "efa",
            Device::None => "none",
        };
        let terminal = if self.interactive() { "yes" } else { "no" };
        let size = terminal_size().map(|(rows, columns)| format!("rows {rows} cols {columns}"));
        format!("device={device}\nterminal={terminal}\nsize='{}'\n", size.unwrap_or_default())
    }

    /// What the guest's shell runs. A command takes the shell's place, so that signals show in the exit status.
    fn script(&self) -> Result<Vec<u8>> {
        let mut script = Vec::new();
        for (name, value) in &self.environment {
            script.extend(format!("export {name}=").bytes());
            script.extend(quoted(value.as_ref()));
            script.push(b'\n');
        }
        script.extend(b"cd /root\n");
        if self.interactive() {
            script.extend(b"exec sh -l\n");
        } else if self.command.is_empty() {
            io::stdin().read_to_end(&mut script).context("cannot read the commands on standard input")?;
        } else {
            script.extend(b"exec");
            for word in &self.command {
                script.push(b' ');
                script.extend(quoted(word));
            }
            script.push(b'\n');
        }
        Ok(script)
    }

    fn boot(&self, image: &Path, root: &File, efa: Option<&Efa>) -> Result<u8> {
        // Before there are threads: they inherit it, and only the one that waits for them gets these signals.
        let deadly = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        deadly.thread_block()?;
        let terminal = if self.interactive() { Some(termios::tcgetattr(io::stdin())?) } else { None };
        let saved = terminal.clone();
        thread::spawn(move || {
            let signal = deadly.wait().unwrap_or(Signal::SIGTERM);
            restore(saved.as_ref());
            // QEMU and the model go with us, by their parent-death signal.
            std::process::exit(128 + signal as i32);
        });
        let limit = (!self.interactive() && self.timeout > 0).then(|| Duration::from_secs(self.timeout));
        let mut attempt = 1;
        loop {
            let started = Instant::now();
            let mut machine = Machine::start(self, image, root, efa)?;
            let end = machine.wait(limit, &mut |machine| {
                if self.verbose {
                    host::progress(format_args!(
                        "guest ready after {:.1} s",
                        started.elapsed().as_secs_f64()
                    ));
                }
                if let Some(terminal) = &terminal {
                    machine.type_in(terminal)?;
                }
                if let Some(model) = &mut machine.model {
                    model.connected();
                }
                Ok(())
            });
            machine.stop();
            restore(terminal.as_ref());
            let log = machine.log.lock().unwrap_or_else(PoisonError::into_inner);
            match end? {
                // No command has run yet, so to try again changes nothing for it.
                End::Died if !machine.ready && attempt < ATTEMPTS => {
                    host::progress(format_args!(
                        "the virtual machine with kernel {} died while it started, trying again{}",
                        self.kernel.name(),
                        last_lines(&log)
                    ));
                    attempt += 1;
                }
                End::Exit(status) => {
                    let complaints: Vec<&String> = log.iter().filter(|line| is_complaint(line)).collect();
                    if !complaints.is_empty() && !self.verbose {
                        host::progress("the guest's kernel complained (all of it with --verbose):");
                        complaints.iter().for_each(|line| eprintln!("  {line}"));
                    }
                    return Ok(status);
                }
                End::Error(text) => bail!("kernel {}: {text}{}", self.kernel.name(), last_lines(&log)),
                End::Escape => bail!("virtual machine stopped from the terminal"),
                End::Died => bail!(
                    "the virtual machine with kernel {} ended before the command did{}",
                    self.kernel.name(),
                    last_lines(&log)
                ),
                End::ModelFailed => bail!("efa-model failed{}", last_lines(&log)),
                End::QemuFailed => bail!("qemu-system-x86_64 failed{}", last_lines(&log)),
                End::TimedOut => bail!(
                    "the virtual machine with kernel {} timed out after {} s (--timeout){}",
                    self.kernel.name(),
                    self.timeout,
                    last_lines(&log)
                ),
            }
        }
    }
}

/// The end of the log, for an error message.
fn last_lines(log: &VecDeque<String>) -> String {
    if log.is_empty() {
        return ": its kernel said nothing".to_owned();
    }
    log.iter().skip(log.len().saturating_sub(LAST_LINES)).map(|line| format!("\n  {line}")).collect()
}

fn is_complaint(line: &str) -> bool {
    ["WARNING:", "BUG:", "Oops:", "general protection fault", "Call Trace:"]
        .iter()
        .any(|sign| line.contains(sign))
}

/// One word for a POSIX shell.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut text = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => text.extend(b"'\\''"),
            other => text.push(*other),
        }
    }
    text.push(b'\'');
    text
}

enum End {
    Exit(u8),
    Error(String),
    Escape,
    /// The guest has ended: powered off, restarted, or its kernel gave up.
    Died,
    ModelFailed,
    QemuFailed,
    TimedOut,
}

enum Event {
    /// From the guest's first process.
    Line(String),
    /// The kernel has given up. It may not manage to end the machine.
    Panic,
    Escape,
}

/// A running QEMU and the threads that carry its output.
struct Machine {
    qemu: Child,
    terminal: UnixStream,
    events: mpsc::Receiver<Event>,
    events_in: mpsc::Sender<Event>,
    /// The command has been started.
    ready: bool,
    /// The device, if it is one in software.
    model: Option<Model>,
    /// What the kernel, QEMU and the model said.
    log: Arc<Mutex<VecDeque<String>>>,
    copiers: Vec<JoinHandle<()>>,
}

impl Machine {
    fn start(vm: &Vm, image: &Path, root: &File, efa: Option<&Efa>) -> Result<Self> {
        let (mut command, mut model) = (Command::new(host::QEMU.0), None);
        if let Some(efa) = efa {
            let started = efa.start()?;
            command = efa.qemu(&started, &vm.memory);
            model = Some(started);
        }
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-cpu", "max"]);
        command.arg("-m").arg(&vm.memory);
        let mut words = "console=ttyS0 panic=-1 mitigations=off cryptomgr.notests".to_owned();
        words.push_str(if vm.verbose { " loglevel=7" } else { " quiet loglevel=5" });
        if vm.icount {
            command.args(["-accel", "tcg,thread=single", "-smp", "1", "-icount", "shift=0,sleep=off"]);
            words.push_str(" nokaslr norandmaps");
        } else {
            command.args(["-accel", "tcg,thread=multi,tb-size=512", "-smp", "2"]);
            // The second one is brought up when all is set: under TCG, one boot in thirty dies of a breakpoint
            // (`Oops: int3`) when a processor changes code that the other runs.
            words.push_str(" maxcpus=1");
        }
        command.arg("-kernel").arg(image).arg("-append").arg(words);
        command.arg("-initrd").arg(format!("/proc/self/fd/{}", root.as_raw_fd()));

        let mut inherited: Vec<RawFd> = vec![root.as_raw_fd()];
        let mut theirs: Vec<OwnedFd> = Vec::new();
        let mut channel = |name: &str, command: &mut Command| -> Result<UnixStream> {
            let (our_end, their_end) = UnixStream::pair()?;
            let fd = their_end.as_raw_fd();
            command.arg("-chardev").arg(format!("socket,id={name},fd={fd}"));
            inherited.push(fd);
            theirs.push(their_end.into());
            Ok(our_end)
        };
        let kernel = channel("kernel", &mut command)?;
        command.args(["-serial", "chardev:kernel", "-device", "virtio-serial-pci"]);
        let terminal = channel("terminal", &mut command)?;
        command.args(["-device", "virtconsole,chardev=terminal,nr=0"]);
        let mut ports = Vec::new();
        for (number, name) in [(1, "out"), (2, "err"), (3, "status")] {
            ports.push(channel(name, &mut command)?);
            command.args(["-device", &format!("virtserialport,chardev={name},name={name},nr={number}")]);
        }
        host::end_with_us(&mut command, inherited);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut qemu = command.spawn().context("cannot start qemu-system-x86_64")?;
        drop(theirs);

        let log = Arc::new(Mutex::new(VecDeque::new()));
        let (events_in, events) = mpsc::channel();
        let errors = qemu.stderr.take().context("QEMU's standard error")?;
        let [out, err, status] = <[UnixStream; 3]>::try_from(ports).ok().context("ports")?;
        let sender = events_in.clone();
        thread::spawn(move || {
            for line in BufReader::new(status).lines().map_while(Result::ok) {
                if sender.send(Event::Line(line)).is_err() {
                    break;
                }
            }
        });
        let (verbose, shared, sender) = (vm.verbose, log.clone(), events_in.clone());
        let keep = move |line: String| {
            if verbose {
                eprintln!("{line}");
            }
            if line.contains("Kernel panic - not syncing") {
                // It is heard unless the machine has ended already.
                let _ = sender.send(Event::Panic);
            }
            let mut log = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if log.len() >= 2_000 {
                log.pop_front();
            }
            log.push_back(line);
        };
        let mut copiers = vec![
            keep_lines(kernel, keep.clone()),
            keep_lines(errors, keep.clone()),
            match &vm.output {
                Some(path) => copy(out, File::create(path)?),
                None => copy(out, io::stdout()),
            },
            copy(err, io::stderr()),
        ];
        copiers.extend(model.as_mut().and_then(Model::errors).map(|errors| keep_lines(errors, keep)));
        if vm.interactive() {
            copiers.push(copy(terminal.try_clone()?, io::stdout()));
        }
        Ok(Self { qemu, terminal, events, events_in, ready: false, model, log, copiers })
    }

    /// Passes what is typed on to the guest's terminal, every key as it is.
    fn type_in(&mut self, saved: &Termios) -> Result<()> {
        let (mut terminal, events) = (self.terminal.try_clone()?, self.events_in.clone());
        let mut raw = saved.clone();
        termios::cfmakeraw(&mut raw);
        termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, &raw)?;
        eprint!("Shell in the guest: `exit` leaves it, Ctrl-] stops the virtual machine.\r\n");
        thread::spawn(move || {
            let mut buffer = [0; 256];
            loop {
                let length = io::stdin().read(&mut buffer).unwrap_or(0);
                let (mut bytes, mut ends) = (&buffer[..length], length == 0);
                if let Some(place) = bytes.iter().position(|byte| *byte == ESCAPE) {
                    (bytes, ends) = (&bytes[..place], true);
                }
                let lost = terminal.write_all(bytes).is_err();
                if ends {
                    // It is heard unless the machine has ended already.
                    let _ = events.send(Event::Escape);
                }
                if lost || ends {
                    break;
                }
            }
        });
        Ok(())
    }

    fn wait(
        &mut self,
        limit: Option<Duration>,
        ready: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<End> {
        /// How often to see whether QEMU is still there: its ports say nothing when it goes.
        const LOOK: Duration = Duration::from_millis(200);
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut gone = false;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match self.events.recv_timeout(left.map_or(LOOK, |left| left.min(LOOK))) {
                Ok(Event::Escape) => return Ok(End::Escape),
                Ok(Event::Panic) => {
                    // The lines that follow are worth having.
                    thread::sleep(LOOK);
                    return Ok(End::Died);
                }
                Ok(Event::Line(line)) => match line.split_once(' ') {
                    Some(("exit", status)) => {
                        let status = status.parse();
                        return Ok(End::Exit(status.context("the guest told no exit status")?));
                    }
                    Some((_, text)) => return Ok(End::Error(text.to_owned())),
                    None => {
                        self.ready = true;
                        ready(self)?;
                    }
                },
                // Nothing has come since it went.
                Err(_) if gone => return Ok(End::Died),
                Err(_) if self.model.as_mut().map(Model::has_ended).transpose()? == Some(true) => {
                    return Ok(End::ModelFailed);
                }
                Err(_) if left.is_some_and(|left| left.is_zero()) => return Ok(End::TimedOut),
                Err(_) => match self.qemu.try_wait()? {
                    Some(status) if !status.success() => return Ok(End::QemuFailed),
                    status => gone = status.is_some(),
                },
            }
        }
    }

    /// Ends QEMU and waits until all that the guest has written is out. The guest's writes have all reached us when it
    /// tells the exit status, so there is nothing to wait for in QEMU.
    fn stop(&mut self) {
        // Both fail only when it has ended by itself.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        self.model = None;
        for copier in self.copiers.drain(..) {
            // A thread that panicked has said so.
            let _ = copier.join();
        }
    }
}

fn copy(mut from: impl Read + Send + 'static, mut to: impl Write + Send + 'static) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 16_384];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if to.write_all(&buffer[..length]).and_then(|()| to.flush()).is_err() {
                break;
            }
        }
    })
}

fn keep_lines(from: impl Read + Send + 'static, keep: impl Fn(String) + Send + 'static) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while let Ok(1..) = from.read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            if !text.is_empty() {
                keep(text.to_owned());
            }
            line.clear();
        }
    })
}

fn restore(terminal: Option<&Termios>) {
    if let Some(saved) = terminal {
        // Nothing to be done about a terminal that is gone.
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, saved);
    }
}

/// Rows and columns, if there is a terminal.
fn terminal_size() -> Option<(String, String)> {
    let mut stty = Command::new("stty");
    let size = io::stdin().is_terminal().then(|| stty.arg("size").stderr(Stdio::null()).output())?.ok()?;
    let size = String::from_utf8(size.stdout).ok()?;
    let (rows, columns) = size.trim().split_once(' ')?;
    Some((rows.to_owned(), columns.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        let vm = Vm::command(Line::V7_3, ["printf", "%s", "it's $HOME; `a` \\ \"b\"\n"]);
        let script = vm.script().unwrap();
        assert_eq!(script, b"cd /root\nexec 'printf' '%s' 'it'\\''s $HOME; `a` \\ \"b\"\n'\n");
        let run =
            Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script[b"cd /root\n".len()..])).output();
        assert_eq!(run.unwrap().stdout, b"it's $HOME; `a` \\ \"b\"\n");
    }

    #[test]
    fn copies_name_both_ends() {
        let copy = parse_copy("a:b/c:/usr/bin/c").unwrap();
        assert_eq!(copy, Copy { host: "a:b/c".into(), guest: "/usr/bin/c".into() });
        for bad in ["a", "a:", ":/b", "a:b", "a:/b/"] {
            assert!(parse_copy(bad).is_err(), "{bad}");
        }
    }
}
