//! What many tests need: the device, connected pairs of queue pairs, waiting with a deadline.

use std::fmt::Debug;
use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use uverbs::{
    AccessFlags, AddressVector, CompletionChannel, CompletionQueue, Context, Device, Error, GidEntry,
    MemoryRegion, ModifyQueuePair, Mtu, PostError, QueuePair, QueuePairCapabilities, QueuePairInit,
    QueuePairType, ReceiveRequest, RemoteMemory, SendRequest, WorkCompletion,
};
use uverbs_ioctl::uapi::user_verbs::DeviceCapFlags;

const DEVICE: &str = "UVERBS_TEST_DEVICE";

/// How long anything may take that is to happen.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// How long to watch that something does not happen.
pub(crate) const MOMENT: Duration = Duration::from_millis(100);

pub(crate) const PORT: u8 = 1;

/// Whether the device is one inside the process.
pub(crate) fn device_is_soft() -> bool {
    uverbs::soft::device(&device_name()).is_ok()
}

pub(crate) fn device_name() -> String {
    let first = || Device::list().unwrap_or_default().first().map(|device| device.name().to_owned());
    std::env::var(DEVICE).ok().or_else(first).unwrap_or_else(|| "soft0".to_owned())
}

pub(crate) fn device() -> Device {
    Device::find(&device_name()).unwrap()
}

pub(crate) fn open() -> Context {
    device().open().unwrap()
}

/// What the device can do.
pub(crate) fn capabilities(context: &Context) -> DeviceCapFlags {
    DeviceCapFlags::from_bits_retain(context.query_device().unwrap().device_cap_flags)
}

/// A GID that both ends of a pair use.
pub(crate) fn own_gid(context: &Context) -> GidEntry {
    context.routable_gid(PORT, None).unwrap()
}

/// Waits until something has become true.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Takes exactly `count` completions.
pub(crate) fn poll_for(cq: &mut CompletionQueue, count: usize) -> Vec<WorkCompletion> {
    let deadline = Instant::now() + DEADLINE;
    let mut completions = vec![WorkCompletion::default(); count];
    let mut found = 0;
    while found < count {
        match cq.poll(&mut completions[found..]).len() {
            0 => {
                let seen = &completions[..found];
                assert!(
                    Instant::now() < deadline,
                    "{found} of {count} completions in {DEADLINE:?}: {seen:?}"
                );
                std::thread::yield_now();
            }
            more => found += more,
        }
    }
    completions
}

/// Watches for a moment that no completion comes.
pub(crate) fn poll_for_none(cq: &mut CompletionQueue) {
    let deadline = Instant::now() + MOMENT;
    while Instant::now() < deadline {
        let mut completions = [WorkCompletion::default(); 4];
        assert!(cq.poll(&mut completions).is_empty(), "unexpected: {completions:?}");
        std::thread::yield_now();
    }
}

/// The `wr_id`s of completions that have to be successes.
pub(crate) fn succeeded(completions: &[WorkCompletion]) -> Vec<u64> {
    completions.iter().map(|completion| completion.success().map(|_| completion.wr_id()).unwrap()).collect()
}

/// An error with that number whose text names all of these.
#[track_caller]
pub(crate) fn refused<T: Debug, E: Into<Error>>(result: Result<T, E>, errno: Errno, texts: &[&str]) {
    match result {
        Ok(value) => panic!("{value:?} where {errno:?} was expected"),
        Err(error) => {
            let error: Error = error.into();
            let text = error.to_string();
            assert_eq!(Errno::from_raw(error.errno()), errno, "{text}");
            assert!(!text.contains('\n'), "more than one line: {text}");
            for wanted in texts {
                assert!(text.contains(wanted), "{text:?} does not name {wanted:?}");
            }
        }
    }
}

/// How to make a pair of connected queue pairs.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    /// RC or UC.
    pub(crate) kind: QueuePairType,
    /// What each end may do to the other's memory.
    pub(crate) access: AccessFlags,
    pub(crate) capabilities: QueuePairCapabilities,
    pub(crate) signal_all: bool,
    /// Completions that each end's CQ has room for.
    pub(crate) entries: u32,
    /// Whether each end's CQ has a completion channel of its own.
    pub(crate) events: bool,
    /// Bytes of memory at each end.
    pub(crate) memory: usize,
    pub(crate) rnr_retry: u8,
    pub(crate) retry_count: u8,
    /// Long enough for a busy virtual machine.
    pub(crate) timeout: u8,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            kind: QueuePairType::ReliableConnection,
            access: AccessFlags::empty(),
            capabilities: QueuePairCapabilities {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            signal_all: false,
            entries: 64,
            events: false,
            memory: 4096,
            rnr_retry: 7,
            retry_count: 7,
            timeout: 17,
        }
    }
}

/// A queue pair with a CQ and memory of its own.
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) channel: Option<CompletionChannel>,
    pub(crate) memory: MemoryRegion,
}

/// Two queue pairs connected to each other.
pub(crate) struct Pair {
    pub(crate) a: End,
    pub(crate) b: End,
}

impl Setup {
    /// A pair on the device of the tests.
    pub(crate) fn pair(&self) -> Pair {
        self.pair_in(&open())
    }

    pub(crate) fn pair_in(&self, context: &Context) -> Pair {
        let (mut a, mut b) = (self.end(context), self.end(context));
        self.connect(context, &mut a.qp, &mut b.qp);
        Pair { a, b }
    }

    /// One end, not connected.
    pub(crate) fn end(&self, context: &Context) -> End {
        let domain = context.alloc_protection_domain().unwrap();
        let channel = self.events.then(|| context.create_completion_channel().unwrap());
        let cq = context.create_completion_queue(self.entries, channel.as_ref(), 0).unwrap();
        let qp = domain.create_queue_pair(&self.init(&cq)).unwrap();
        let memory = domain.allocate(self.memory, AccessFlags::LOCAL_WRITE | self.access).unwrap();
        End { qp, cq, channel, memory }
    }

    pub(crate) fn init<'a>(&self, cq: &'a CompletionQueue) -> QueuePairInit<'a> {
        QueuePairInit {
            kind: self.kind,
            capabilities: self.capabilities,
            signal_all: self.signal_all,
            ..QueuePairInit::reliable_connection(cq)
        }
    }

    /// Connects two queue pairs of the same device, new or reset.
    pub(crate) fn connect(&self, context: &Context, a: &mut QueuePair, b: &mut QueuePair) {
        self.connect_to(context, a, b.qp_num());
        self.connect_to(context, b, a.qp_num());
    }

    fn connect_to(&self, context: &Context, qp: &mut QueuePair, peer: u32) {
        qp.modify(&ModifyQueuePair::init(PORT, self.access)).unwrap();
        if self.kind == QueuePairType::UnreliableConnection {
            let to = own_address(context);
            qp.modify(&ModifyQueuePair::unreliable_ready_to_receive(to, peer, 0, Mtu::Bytes1024)).unwrap();
            qp.modify(&ModifyQueuePair::unreliable_ready_to_send(0)).unwrap();
        } else {
            qp.modify(&ready_to_receive(context, peer)).unwrap();
            qp.modify(&self.ready_to_send()).unwrap();
        }
    }

    pub(crate) fn ready_to_send(&self) -> ModifyQueuePair {
        ModifyQueuePair {
            rnr_retry: Some(self.rnr_retry),
            retry_count: Some(self.retry_count),
            timeout: Some(self.timeout),
            ..ModifyQueuePair::ready_to_send(0)
        }
    }
}

/// Where a queue pair of the same device is.
pub(crate) fn own_address(context: &Context) -> AddressVector {
    let gid = own_gid(context);
    AddressVector::global(PORT, gid.gid, u8::try_from(gid.index).unwrap())
}

/// To RTR, connected to a queue pair of the same device.
pub(crate) fn ready_to_receive(context: &Context, peer: u32) -> ModifyQueuePair {
    ModifyQueuePair::ready_to_receive(own_address(context), peer, 0, Mtu::Bytes1024)
}

/// A pair as most tests want it.
pub(crate) fn pair() -> Pair {
    Setup::default().pair()
}

impl End {
    /// Posts a signaled send of a stretch of the memory.
    pub(crate) fn send(&mut self, wr_id: u64, range: Range<usize>) {
        let sges = [self.memory.sge(range)];
        self.qp.post_send_list(&[SendRequest::send(wr_id, &sges).signaled()]).unwrap();
    }

    /// Posts a send of nothing, without a completion.
    pub(crate) fn send_nothing(&mut self, wr_id: u64) -> Result<(), PostError> {
        self.qp.post_send_list(&[SendRequest::send(wr_id, &[])])
    }

    /// Posts a receive into a stretch of the memory.
    pub(crate) fn receive(&mut self, wr_id: u64, range: Range<usize>) {
        let sges = [self.memory.sge(range)];
        self.qp.post_receive(&[ReceiveRequest::new(wr_id, &sges)]).unwrap();
    }

    /// Posts receives of nothing.
    pub(crate) fn receive_nothing(&mut self, wr_ids: Range<u64>) {
        for wr_id in wr_ids {
            self.qp.post_receive(&[ReceiveRequest::new(wr_id, &[])]).unwrap();
        }
    }

    pub(crate) fn channel(&self) -> &CompletionChannel {
        self.channel.as_ref().expect("a setup with events")
    }

    /// Takes the event of this end's CQ that has to come, and acknowledges it.
    pub(crate) fn take_event(&self) {
        let event = self.channel().wait(Some(DEADLINE)).unwrap();
        assert_eq!(event.expect("an event").queue_id(), self.cq.id());
    }

    /// The memory from `offset` on, as the peer has to name it.
    pub(crate) fn remote(&self, offset: u64) -> RemoteMemory {
        RemoteMemory { address: self.memory.address() + offset, rkey: self.memory.rkey() }
    }

    /// Copies a stretch of the memory out.
    pub(crate) fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.memory.read(range.start, &mut bytes);
        bytes
    }
}

impl Pair {
    /// One message goes through, in each direction.
    pub(crate) fn works(&mut self) {
        let (mut from, mut into) = (&mut self.a, &mut self.b);
        for wr_id in 1..3 {
            into.receive_nothing(wr_id..wr_id + 1);
            from.qp.post_send_list(&[SendRequest::send(wr_id, &[]).signaled()]).unwrap();
            assert_eq!(succeeded(&poll_for(&mut into.cq, 1)), [wr_id]);
            assert_eq!(succeeded(&poll_for(&mut from.cq, 1)), [wr_id]);
            std::mem::swap(&mut from, &mut into);
        }
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 31 + place / 251 + seed * 7) as u8).collect()
}

/// The text of a file without the end of its line.
pub(crate) fn read_trimmed(path: impl AsRef<std::path::Path>) -> String {
    fs::read_to_string(path.as_ref()).unwrap().trim().to_owned()
}

/// A file of the device in sysfs.
pub(crate) fn sysfs(path: &str) -> String {
    read_trimmed(format!("/sys/class/infiniband/{}/{path}", device_name()))
}

/// Runs something with next to no address space left to map what it makes into. Not beside other threads.
pub(crate) fn out_of_address_space<T>(run: impl FnOnce() -> T) -> T {
    let mapped = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = mapped.split(' ').next().unwrap().parse().unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, pages * 4096 + (256 << 10), hard).unwrap();
    let result = run();
    setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
    result
}

/// What a process holds that verbs could leak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    files: Vec<String>,
    mappings: usize,
    device_mappings: Vec<String>,
    pinned: String,
}

impl Holdings {
    pub(crate) fn of_this_process() -> Self {
        let mut files: Vec<_> = fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
            .map(|target| target.display().to_string())
            .filter(|target| !target.starts_with("/proc/"))
            .collect();
        files.sort();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let of_device = |line: &&str| line.contains("infiniband");
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let pinned = status.lines().find(|line| line.starts_with("VmPin")).unwrap().to_owned();
        Self {
            files,
            mappings: maps.lines().count(),
            device_mappings: maps.lines().filter(of_device).map(str::to_owned).collect(),
            pinned,
        }
    }

    /// What the kernel says of locked memory.
    pub(crate) fn pinned(&self) -> &str {
        &self.pinned
    }

    /// Where threads and heaps make the number of other mappings differ.
    pub(crate) fn but_for_mappings(self) -> Self {
        Self { mappings: 0, ..self }
    }

    pub(crate) fn device_mapping_count(&self) -> usize {
        self.device_mappings.len()
    }
}
