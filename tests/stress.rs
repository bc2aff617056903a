//! Everything at once: 64 connected queue pairs of four threads, all operations and sizes, shared receive queues and CQs, polled and by
//! events. Every byte is compared. Then all of it goes, in any order, while work is under way.
//!
//! `UVERBS_TEST_STRESS=SECONDS` says for how long, `UVERBS_TEST_STRESS=SECONDS:SEED` where to begin.

use std::any::Any;
use std::collections::HashMap;
use std::fs;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use uverbs::{
    AccessFlags, CompletionChannel, CompletionOpcode, CompletionQueue, Context, MemoryRegion, QueuePair,
    QueuePairInit, ReceiveRequest, RemoteMemory, ScatterGather, SendRequest, SharedReceiveQueue, Success,
    WorkCompletion,
};

use crate::common::{Holdings, Setup};
use crate::soft::SoftDevice;

crate::cases! {
    Alone nothing_is_lost_and_all_is_given_back;
}

const THREADS: usize = 4;
const LINKS: usize = 16;
const QPS: usize = THREADS * LINKS;
/// Requests of a QP under way.
const WINDOW: u64 = 8;
/// A QP executes more than this, however slow the machine is.
const LEAST: u64 = 3 * WINDOW;
/// Bytes of the longest message.
const MOST: usize = 1 << 16;
/// Receives of an SRQ, and of a QP without.
const SHARED: usize = 24;
const OWN: usize = 8;
/// How long one set of objects lasts.
const ROUND: Duration = Duration::from_millis(1500);
/// How long a thread waits for what has to come. A busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the test takes, and the number of its first round.
pub(crate) fn duration() -> (Duration, u64) {
    let text = std::env::var("UVERBS_TEST_STRESS").unwrap_or_else(|_| "8".to_owned());
    let (seconds, seed) = text.split_once(':').unwrap_or((&text, "0"));
    let number = |text: &str| text.parse().expect("UVERBS_TEST_STRESS=SECONDS or SECONDS:SEED");
    (Duration::from_secs(number(seconds)), number(seed))
}

/// A number that looks random, always the same for the same one (the finalizer of SplitMix64).
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    SendWithImmediate,
    Write,
    WriteWithImmediate,
    Read,
    FetchAdd,
    CompareSwap,
}

/// A request. Both ends know it from the QP that it is posted to and its number there.
#[derive(Clone, Copy, Debug)]
struct Request {
    kind: Kind,
    length: usize,
    /// Where in the pool its bytes are.
    place: usize,
    immediate: u32,
    signaled: bool,
    inline: bool,
    /// Bytes of the first of two pieces.
    cut: usize,
}

impl Request {
    fn new(seed: u64, direction: usize, number: u64, atomics: bool) -> Self {
        let random = mix(mix(seed << 8 | direction as u64) ^ number);
        // At the latest the last of a window tells the peer of what came before, and the sender that it is done.
        let last = number % WINDOW == WINDOW - 1;
        let kind = match (random % 16, last) {
            (0..=5, true) | (0..=2, false) => Kind::Send,
            (6..=10, true) | (3..=5, false) => Kind::SendWithImmediate,
            (11.., true) | (6..=7, false) => Kind::WriteWithImmediate,
            (8..=10, false) => Kind::Write,
            (14, false) if atomics => Kind::FetchAdd,
            (15, false) if atomics => Kind::CompareSwap,
            _ => Kind::Read,
        };
        let most = [64, 64, 64, 1024, 1024, 8192, 8192, MOST][(random >> 4) as usize % 8];
        let length = 1 + (random >> 8) as usize % most;
        let carries = !matches!(kind, Kind::Read | Kind::FetchAdd | Kind::CompareSwap);
        Self {
            kind,
            length,
            place: (random >> 24) as usize % MOST,
            immediate: (random >> 13) as u32,
            signaled: last || random >> 62 == 0,
            inline: carries && length <= 64 && random >> 61 & 1 == 0,
            cut: (random >> 40) as usize % (length + 1),
        }
    }

    fn opcode(&self) -> CompletionOpcode {
        match self.kind {
            Kind::Send | Kind::SendWithImmediate => CompletionOpcode::Send,
            Kind::Write | Kind::WriteWithImmediate => CompletionOpcode::RdmaWrite,
            Kind::Read => CompletionOpcode::RdmaRead,
            Kind::FetchAdd => CompletionOpcode::FetchAdd,
            Kind::CompareSwap => CompletionOpcode::CompareSwap,
        }
    }

    /// Its bytes: a stretch of the pool.
    fn bytes<'a>(&self, pool: &'a [u8]) -> &'a [u8] {
        &pool[self.place..self.place + self.length]
    }
}

/// Where things are in a thread's memory.
mod place {
    use super::{LINKS, MOST, OWN, SHARED, WINDOW};

    /// The pool, which peers read: random bytes, the same everywhere.
    pub(super) const POOL: usize = 2 * MOST;
    const SLOTS: usize = POOL + 4096;
    const OF_LINK: usize = WINDOW as usize * MOST;
    const RECEIVES: usize = SLOTS + 2 * LINKS * OF_LINK;
    pub(super) const END: usize = RECEIVES + (SHARED + LINKS * OWN) * MOST;

    /// A word for the peer of a link, and behind those one that all peers add to.
    pub(super) fn word(link: usize) -> usize {
        POOL + 8 * link
    }

    /// Where a request's bytes are, or what it reads goes.
    pub(super) fn slot(link: usize, number: u64) -> usize {
        SLOTS + link * OF_LINK + (number % WINDOW) as usize * MOST
    }

    /// Where the peer writes.
    pub(super) fn landing(link: usize, number: u64) -> usize {
        slot(LINKS + link, number)
    }

    pub(super) fn receive(buffer: usize) -> usize {
        RECEIVES + buffer * MOST
    }
}

/// What the threads of a round share.
struct Common {
    seed: u64,
    pool: Vec<u8>,
    atomics: bool,
    /// No more requests.
    stop: AtomicBool,
    /// A thread has failed.
    failed: AtomicBool,
    /// Threads whose requests are all done.
    drained: AtomicUsize,
    /// By QP: its peer has seen all requests up to this one.
    seen: [AtomicU64; QPS],
}

impl Common {
    fn request(&self, direction: usize, number: u64) -> Request {
        Request::new(self.seed, direction, number, self.atomics)
    }
}

/// One QP and how far it is.
struct Link {
    qp: QueuePair,
    /// Number of the QP among all.
    direction: usize,
    /// Whether its receives are of the SRQ.
    shares: bool,
    /// The peer's memory.
    peer: RemoteMemory,
    posted: u64,
    completed: u64,
    /// The next request of the peer that has not been seen.
    next: u64,
    swaps_posted: u64,
    swaps_done: u64,
    added: u64,
    sum_of_results: u64,
    last_result: Option<u64>,
}

/// One thread.
struct Worker {
    links: Vec<Link>,
    /// By QP number.
    by_number: HashMap<u32, usize>,
    /// The first is polled, the others raise events.
    cqs: Vec<CompletionQueue>,
    channel: CompletionChannel,
    srq: SharedReceiveQueue,
    memory: MemoryRegion,
    random: u64,
    scratch: Vec<u8>,
}

/// Marks completions of requests; those of receives have the number of a buffer.
const REQUEST: u64 = 1 << 63;

/// The QP that another is connected to: one of another thread.
fn peer_of(direction: usize) -> usize {
    QPS - 1 - direction
}

fn buffer_link(buffer: usize) -> Option<usize> {
    Some(buffer.checked_sub(SHARED)? / OWN)
}

impl Worker {
    fn new(context: &Context, number: usize, common: &Common) -> Self {
        let domain = context.alloc_protection_domain().unwrap();
        let channel = context.create_completion_channel().unwrap();
        let cqs: Vec<_> = [None, Some(&channel), Some(&channel)]
            .map(|channel| context.create_completion_queue(1000, channel, 0).unwrap())
            .into();
        let srq = domain.create_shared_receive_queue(SHARED as u32, 2).unwrap();
        let setup = Setup::default();
        let qps = (0..LINKS).map(|link| {
            let init = QueuePairInit {
                recv_cq: &cqs[link / 3 % 3],
                shared_receive_queue: (link % 2 == 0).then_some(&srq),
                ..setup.init(&cqs[link % 3])
            };
            domain.create_queue_pair(&init).unwrap()
        });
        let links: Vec<_> = qps
            .enumerate()
            .map(|(link, qp)| Link {
                qp,
                direction: number * LINKS + link,
                shares: link % 2 == 0,
                peer: RemoteMemory { address: 0, rkey: 0 },
                posted: 0,
                completed: 0,
                next: 0,
                swaps_posted: 0,
                swaps_done: 0,
                added: 0,
                sum_of_results: 0,
                last_result: None,
            })
            .collect();
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let mut memory = domain.allocate(place::END, access).unwrap();
        memory.write(0, &common.pool);
        let by_number = links.iter().enumerate().map(|(link, state)| (state.qp.qp_num(), link)).collect();
        let random = mix(common.seed ^ (number as u64) << 32);
        let scratch = vec![0; MOST];
        let mut this = Self { links, by_number, cqs, channel, srq, memory, random, scratch };
        for cq in &mut this.cqs[1..] {
            cq.arm(false).unwrap();
        }
        this
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = mix(self.random);
        self.random % below
    }

    fn post_receives(&mut self) {
        for buffer in 0..SHARED + LINKS * OWN {
            if buffer_link(buffer).is_none_or(|link| !self.links[link].shares) {
                self.post_receive(buffer);
            }
        }
    }

    fn post_receive(&mut self, buffer: usize) {
        let start = place::receive(buffer);
        let sges = [self.memory.sge(start..start + 100), self.memory.sge(start + 100..start + MOST)];
        let receive = [ReceiveRequest::new(buffer as u64, &sges)];
        match buffer_link(buffer) {
            None => self.srq.post_receive(&receive).unwrap(),
            Some(link) => self.links[link].qp.post_receive(&receive).unwrap(),
        }
    }

    /// Until told to stop, and then until all is done.
    fn run(&mut self, common: &Common) {
        let mut completions = [WorkCompletion::default(); 5];
        let mut last = Instant::now();
        let mut drained = false;
        while !common.failed.load(Ordering::Relaxed) {
            let mut progress = false;
            let stop = common.stop.load(Ordering::Relaxed);
            for link in 0..LINKS {
                // The last request has to be one that both ends hear of.
                let posted = self.links[link].posted;
                let rest = (WINDOW - posted % WINDOW) % WINDOW;
                let most = if stop && posted > LEAST { rest } else { 1 + self.random(WINDOW) };
                progress |= self.post(link, most, common);
            }
            // Before the last look at the queues: what the others have sent until then is there.
            let all_drained = common.drained.load(Ordering::Acquire) == THREADS;
            let polled = self.cqs[0].poll(&mut completions).to_vec();
            progress |= !polled.is_empty();
            self.take(&polled, common);
            while let Ok(event) = self.channel.try_get_event() {
                progress = true;
                let queue = self.cqs.iter().position(|cq| cq.id() == event.queue_id()).unwrap();
                drop(event);
                self.cqs[queue].arm(false).unwrap();
                self.empty(queue, common);
            }
            let done = |link: &Link| {
                link.posted > LEAST && link.completed == link.posted && link.posted.is_multiple_of(WINDOW)
            };
            if stop && !drained && self.links.iter().all(done) {
                drained = true;
                common.drained.fetch_add(1, Ordering::AcqRel);
                progress = true;
            }
            if all_drained && !progress {
                (1..3).for_each(|queue| self.empty(queue, common));
                return;
            }
            if progress {
                last = Instant::now();
                if !stop && self.random(200) == 0 {
                    self.resize();
                }
            } else {
                assert!(last.elapsed() < PATIENCE, "nothing within {PATIENCE:?}: {}", self.state(common));
                rest(&self.channel);
            }
        }
    }

    /// Other sizes, none too small for what may be there.
    fn resize(&mut self) {
        let queue = self.random(3) as usize;
        let entries = 400 + self.random(2000) as u32;
        self.cqs[queue].resize(entries).unwrap();
        let receives = SHARED as u64 + self.random(300);
        self.srq.resize(receives as u32).unwrap();
    }

    /// Where it is stuck.
    fn state(&self, common: &Common) -> String {
        let stuck = |link: &&Link| link.completed < link.posted;
        let state = |link: &Link| {
            let Link { direction, posted, completed, .. } = link;
            let seen = common.seen[*direction].load(Ordering::Relaxed);
            let request = common.request(*direction, *completed);
            let state = link.qp.query().unwrap().state;
            format!(
                "QP {direction} in {state} has {completed} of {posted} requests, {seen} seen, next is {request:?}"
            )
        };
        self.links.iter().filter(stuck).map(state).collect::<Vec<_>>().join("\n")
    }

    /// Takes everything in a CQ.
    fn empty(&mut self, queue: usize, common: &Common) {
        let mut completions = [WorkCompletion::default(); 7];
        loop {
            let polled = self.cqs[queue].poll(&mut completions).to_vec();
            if polled.is_empty() {
                return;
            }
            self.take(&polled, common);
        }
    }

    /// Posts as many requests as there is room for, at most so many.
    fn post(&mut self, at: usize, most: u64, common: &Common) -> bool {
        let link = &mut self.links[at];
        let seen = common.seen[link.direction].load(Ordering::Acquire);
        let end = (link.completed.min(seen) + WINDOW).min(link.posted + most);
        if link.posted >= end {
            return false;
        }
        let numbers = link.posted..end;
        link.posted = end;
        let direction = link.direction;
        let requests: Vec<_> = numbers.map(|number| (number, common.request(direction, number))).collect();
        for (number, request) in &requests {
            let carries = matches!(
                request.kind,
                Kind::Send | Kind::SendWithImmediate | Kind::Write | Kind::WriteWithImmediate
            );
            if carries && !request.inline {
                self.memory.write(place::slot(at, *number), request.bytes(&common.pool));
            }
        }
        let pieces: Vec<[ScatterGather; 2]> = requests
            .iter()
            .map(|(number, request)| {
                let slot = place::slot(at, *number);
                let (cut, length) = match request.kind {
                    Kind::FetchAdd | Kind::CompareSwap => (3, 8),
                    _ => (request.cut, request.length),
                };
                [self.memory.sge(slot..slot + cut), self.memory.sge(slot + cut..slot + length)]
            })
            .collect();
        let parts: Vec<[&[u8]; 2]> = requests
            .iter()
            .map(|(_, request)| request.bytes(&common.pool).split_at(request.cut).into())
            .collect();
        let link = &mut self.links[at];
        let peer = peer_of(direction) % LINKS;
        let mut list = Vec::new();
        for ((number, request), (sges, parts)) in requests.iter().zip(pieces.iter().zip(&parts)) {
            let wr_id = REQUEST | number;
            let remote =
                |offset: usize| RemoteMemory { address: link.peer.address + offset as u64, ..link.peer };
            let landing = remote(place::landing(peer, *number));
            let posted = match (request.kind, request.inline) {
                (Kind::Send, true) => SendRequest::send_inline(wr_id, parts),
                (Kind::Send, false) => SendRequest::send(wr_id, sges),
                (Kind::SendWithImmediate, true) => {
                    SendRequest::send_inline(wr_id, parts).immediate(request.immediate)
                }
                (Kind::SendWithImmediate, false) => {
                    SendRequest::send(wr_id, sges).immediate(request.immediate)
                }
                (Kind::Write, true) => SendRequest::rdma_write_inline(wr_id, parts, landing),
                (Kind::Write, false) => SendRequest::rdma_write(wr_id, sges, landing),
                (Kind::WriteWithImmediate, true) => {
                    SendRequest::rdma_write_inline(wr_id, parts, landing).immediate(request.immediate)
                }
                (Kind::WriteWithImmediate, false) => {
                    SendRequest::rdma_write(wr_id, sges, landing).immediate(request.immediate)
                }
                (Kind::Read, _) => SendRequest::rdma_read(wr_id, sges, remote(request.place)),
                (Kind::FetchAdd, _) => {
                    link.added += 1;
                    SendRequest::fetch_add(wr_id, sges, remote(place::word(LINKS)), 1)
                }
                (Kind::CompareSwap, _) => {
                    let old = link.swaps_posted;
                    link.swaps_posted += 1;
                    SendRequest::compare_swap(wr_id, sges, remote(place::word(peer)), old, old + 1)
                }
            };
            list.push(if request.signaled { posted.signaled() } else { posted });
        }
        if end.is_multiple_of(2) {
            link.qp.post_send_list(&list).unwrap();
        } else {
            let batch = link.qp.post_send();
            list.iter().fold(batch, |batch, request| batch.push(request)).submit().unwrap();
        }
        true
    }

    fn take(&mut self, completions: &[WorkCompletion], common: &Common) {
        for completion in completions {
            let link = self.by_number[&completion.qp_num()];
            let success = completion.success().unwrap_or_else(|error| {
                let Link { direction, completed, .. } = self.links[link];
                let next = common.request(direction, completed);
                panic!("QP {direction}: {error}; next was request {completed}, {next:?}");
            });
            match completion.wr_id() {
                number if number & REQUEST != 0 => self.done(link, number & !REQUEST, success, common),
                buffer => self.received(link, buffer as usize, success, common),
            }
        }
    }

    /// A request of this thread is done, and with it those before it.
    fn done(&mut self, at: usize, number: u64, success: Success<'_>, common: &Common) {
        let link = &self.links[at];
        let (direction, first, posted) = (link.direction, link.completed, link.posted);
        let what =
            |number| format!("QP {direction}, request {number}: {:?}", common.request(direction, number));
        assert!((first..posted).contains(&number), "{} is not in {first}..{posted}", what(number));
        assert_eq!(success.opcode(), common.request(direction, number).opcode(), "{}", what(number));
        for earlier in first..=number {
            let request = common.request(direction, earlier);
            assert_eq!(request.signaled, earlier == number, "{}, and {number} is done", what(earlier));
            let slot = place::slot(at, earlier);
            match request.kind {
                Kind::Read => self.compare(slot, &request, common, || what(earlier)),
                Kind::FetchAdd => {
                    let result = self.word(slot);
                    let link = &mut self.links[at];
                    assert!(link.last_result < Some(result), "{}: {result} is not more", what(earlier));
                    link.last_result = Some(result);
                    link.sum_of_results += result;
                }
                Kind::CompareSwap => {
                    let result = self.word(slot);
                    let link = &mut self.links[at];
                    assert_eq!(result, link.swaps_done, "{}", what(earlier));
                    link.swaps_done += 1;
                }
                _ => {}
            }
        }
        self.links[at].completed = number + 1;
    }

    /// A message of a peer has come, and with it all that it wrote before.
    fn received(&mut self, at: usize, buffer: usize, success: Success<'_>, common: &Common) {
        let link = &self.links[at];
        let (direction, shares) = (peer_of(link.direction), link.shares);
        assert_eq!(buffer_link(buffer), (!shares).then_some(at), "a receive of another queue");
        let what = |number| {
            format!("from QP {direction}, request {number}: {:?}", common.request(direction, number))
        };
        loop {
            let number = self.links[at].next;
            self.links[at].next += 1;
            let request = common.request(direction, number);
            let (opcode, immediate, place) = match request.kind {
                Kind::Read | Kind::FetchAdd | Kind::CompareSwap => continue,
                Kind::Write => {
                    self.compare(place::landing(at, number), &request, common, || what(number));
                    continue;
                }
                Kind::Send => (CompletionOpcode::Receive, None, place::receive(buffer)),
                Kind::SendWithImmediate => {
                    (CompletionOpcode::Receive, Some(request.immediate), place::receive(buffer))
                }
                Kind::WriteWithImmediate => (
                    CompletionOpcode::ReceiveRdmaWithImmediate,
                    Some(request.immediate),
                    place::landing(at, number),
                ),
            };
            let told = (success.opcode(), success.immediate(), success.byte_len() as usize);
            assert_eq!(told, (opcode, immediate, request.length), "{}", what(number));
            self.compare(place, &request, common, || what(number));
            break;
        }
        common.seen[direction].store(self.links[at].next, Ordering::Release);
        self.post_receive(buffer);
    }

    /// The bytes at a place have to be those of a request.
    fn compare(&mut self, place: usize, request: &Request, common: &Common, what: impl Fn() -> String) {
        let (found, expected) = (&mut self.scratch[..request.length], request.bytes(&common.pool));
        self.memory.read(place, found);
        if found != expected {
            let wrong = |(found, expected)| found != expected;
            let first = found.iter().zip(expected).position(wrong);
            let count = found.iter().zip(expected).filter(|pair| wrong(*pair)).count();
            panic!("{}: {count} bytes are wrong, the first at {first:?}", what());
        }
    }

    fn word(&self, place: usize) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(place, &mut bytes);
        u64::from_ne_bytes(bytes)
    }
}

/// Sleeps until there is an event, or a moment.
fn rest(channel: &CompletionChannel) {
    let mut files = [rustix::event::PollFd::new(channel, rustix::event::PollFlags::IN)];
    let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 500_000 };
    rustix::event::poll(&mut files, Some(&moment)).unwrap();
}

/// Tells the other threads when one fails.
struct Failing<'a>(&'a AtomicBool);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// One set of objects: work, and then the end of all.
fn round(soft: &SoftDevice, seed: u64) {
    let context = soft.device().open().unwrap();
    let words = (0..place::POOL as u64 / 8).flat_map(|number| mix(seed ^ number << 20).to_ne_bytes());
    let common = Common {
        seed,
        pool: words.collect(),
        atomics: context.query_device().unwrap().atomic_cap > 0,
        stop: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        drained: AtomicUsize::new(0),
        seen: [const { AtomicU64::new(0) }; QPS],
    };
    let mut workers: Vec<_> = (0..THREADS).map(|number| Worker::new(&context, number, &common)).collect();
    connect(&context, &mut workers);

    thread::scope(|scope| {
        let work = |worker: &mut Worker| {
            let _failing = Failing(&common.failed);
            worker.run(&common);
        };
        let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(move || work(worker))).collect();
        let end = Instant::now() + ROUND;
        while Instant::now() < end && !common.failed.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
        common.stop.store(true, Ordering::Relaxed);
        join(threads);
    });

    let mut posted = [0; QPS];
    for (number, worker) in workers.iter().enumerate() {
        let (mut added, mut results) = (0, 0);
        for link in &worker.links {
            posted[link.direction] = link.posted;
            added += link.added;
            results += link.sum_of_results;
        }
        // All of them add to the same word, and each addition has seen another number.
        assert_eq!(workers[THREADS - 1 - number].word(place::word(LINKS)), added);
        assert_eq!(results, added * added.saturating_sub(1) / 2);
    }
    for link in workers.iter().flat_map(|worker| &worker.links) {
        let direction = peer_of(link.direction);
        assert_eq!(link.next, posted[direction], "what has come of what QP {direction} has sent");
    }
    tear_down(context, workers, &common);
}

fn remote(memory: &MemoryRegion) -> RemoteMemory {
    RemoteMemory { address: memory.address(), rkey: memory.rkey() }
}

fn connect(context: &Context, workers: &mut [Worker]) {
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let setup = Setup { access, ..Setup::default() };
    for direction in 0..QPS / 2 {
        let peer = peer_of(direction);
        let (before, after) = workers.split_at_mut(peer / LINKS);
        let (one, other) = (&mut before[direction / LINKS], &mut after[0]);
        let (at_one, at_other) = (&mut one.links[direction % LINKS], &mut other.links[peer % LINKS]);
        setup.connect(context, &mut at_one.qp, &mut at_other.qp);
        at_one.peer = remote(&other.memory);
        at_other.peer = remote(&one.memory);
    }
    for worker in workers {
        worker.post_receives();
    }
}

/// Drops everything in an order of the seed's, in all threads at once, with requests under way, completions not polled and events not
/// read or not acknowledged.
fn tear_down(context: Context, mut workers: Vec<Worker>, common: &Common) {
    for worker in &mut workers {
        worker.srq.set_limit(SHARED as u32 - 1).unwrap();
        for link in 0..LINKS {
            worker.post(link, WINDOW, common);
        }
    }
    let mut objects: Vec<Box<dyn Any + Send>> = Vec::new();
    let events = context.async_events();
    let event = events.wait(Some(PATIENCE)).unwrap().expect("the event of an SRQ's limit");
    objects.push(Box::new(event));
    objects.push(Box::new(events));
    objects.push(Box::new(context));
    for worker in workers {
        if let Some(event) = worker.channel.wait(Some(Duration::from_millis(20))).unwrap() {
            objects.push(Box::new(event));
        }
        let Worker { links, cqs, channel, srq, memory, .. } = worker;
        objects.push(Box::new(memory.protection_domain().clone()));
        objects.extend(links.into_iter().map(|link| Box::new(link.qp) as Box<dyn Any + Send>));
        objects.extend(cqs.into_iter().map(|cq| Box::new(cq) as Box<dyn Any + Send>));
        objects.push(Box::new(channel));
        objects.push(Box::new(srq));
        objects.push(Box::new(memory));
    }
    let mut shares: [Vec<_>; THREADS] = [const { Vec::new() }; THREADS];
    let mut random = mix(common.seed);
    while !objects.is_empty() {
        random = mix(random);
        let object = objects.swap_remove(random as usize % objects.len());
        shares[objects.len() % THREADS].push(object);
    }
    thread::scope(|scope| {
        let drop_all = |share: Vec<Box<dyn Any + Send>>| share.into_iter().for_each(drop);
        join(shares.map(|share| scope.spawn(move || drop_all(share))).into());
    });
}

/// Waits until threads are gone with their stacks, which a scope by itself does not.
fn join(threads: Vec<ScopedJoinHandle<'_, ()>>) {
    let failed = threads.into_iter().filter_map(|thread| thread.join().err()).last();
    if let Some(failed) = failed {
        resume_unwind(failed);
    }
}

/// Bytes that the process has mapped.
fn address_space() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

/// Names the seed where a round fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the seed is {}: UVERBS_TEST_STRESS=10:{} begins with it", self.0, self.0);
        }
    }
}

fn nothing_is_lost_and_all_is_given_back() {
    let soft = SoftDevice::new();
    let (time, first) = duration();
    let end = Instant::now() + time;
    let mut before = None;
    for seed in first.. {
        let named = Seed(seed);
        round(&soft, seed);
        let now = (Holdings::of_this_process().but_for_mappings(), soft.resources());
        let size = address_space();
        // The first round warms up what allocates once. Mappings of threads and heaps come and go, but one of the regions is larger.
        match &before {
            Some((before, earlier)) if seed > first + 1 => {
                assert_eq!(now, *before);
                assert!(size < earlier + place::END / 2, "{size} bytes are mapped, {earlier} were before");
            }
            _ => before = Some((now, size)),
        }
        drop(named);
        if Instant::now() >= end && seed > first + 1 {
            break;
        }
    }
}
