//! Traffic that is right, on a wire that loses, repeats, overtakes and delays. A model knows what has to arrive, in what order and with
//! what in it: of every request that asks for it one completion, of every message what the service promises.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use fastrand::Rng;
use uverbs_ioctl::{Doorbell, Transport, calls};
use uverbs_uapi::ioctl_verbs::{AccessFlags, qp_type};
use uverbs_uapi::rxe::{CreateAhResp, SendWr, SendWrAtomic, SendWrRdma, SendWrUd, Sge};
use uverbs_uapi::user_verbs::{AhAttr, AllocPd, CreateAh, GlobalRoute, Wc, wr_opcode};
use uverbs_uapi::values::{SendFlags, WcFlags, wc_opcode, wc_status};

use super::user::{
    Queue, connect, create_cq, create_qp, create_srq, gid, open, part, receive, register, send,
};
use crate::context::Opened;
use crate::device::Device;
use crate::faults::Faults;
use crate::wire::Wire;

const THREADS: u64 = 2;
const STEPS: usize = 400;
/// Requests under way, and receives posted.
const REQUESTS: u64 = 15;
const RECEIVES: u64 = 60;
/// Bytes of a message.
const MOST: usize = 2000;
const MOST_OF_DATAGRAM: usize = 1024;
/// Bytes before the data of a datagram.
const ROUTE: usize = 40;
/// How long nothing may happen while something is under way.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where things are in the memory of an end.
mod place {
    /// Bytes for a message, and what goes before a datagram.
    const SLOT: usize = 2048;
    /// What the peer reads, and two words for its atomic operations.
    pub(super) const POOL: usize = 4096;
    pub(super) const ADDED: usize = POOL;
    pub(super) const SWAPPED: usize = POOL + 8;
    const REQUESTS: usize = POOL + 64;
    const LANDINGS: usize = REQUESTS + 16 * SLOT;
    const RECEIVES: usize = LANDINGS + 16 * SLOT;
    pub(super) const END: usize = RECEIVES + 64 * SLOT;

    /// What a request sends, or where its answer goes.
    pub(super) const fn request(number: u64) -> usize {
        REQUESTS + (number % 16) as usize * SLOT
    }

    /// Where the peer writes.
    pub(super) const fn landing(number: u64) -> usize {
        LANDINGS + (number % 16) as usize * SLOT
    }

    pub(super) const fn receive(number: u64) -> usize {
        RECEIVES + (number % 64) as usize * SLOT
    }
}

/// What may happen to messages.
#[derive(Clone, Copy, Debug)]
struct Wrongs {
    lose: u16,
    duplicate: u16,
    reorder: u16,
}

/// A request, as the model has it.
#[derive(Clone, Debug)]
struct Request {
    number: u64,
    opcode: u32,
    length: usize,
    signaled: bool,
    /// Where it reads in the pool.
    from: usize,
    /// What an atomic operation finds.
    before: u64,
    /// How often its message has come.
    arrivals: u32,
}

impl Request {
    fn takes_receive(&self) -> bool {
        matches!(self.opcode, wr_opcode::SEND | wr_opcode::SEND_WITH_IMM | wr_opcode::RDMA_WRITE_WITH_IMM)
    }

    fn writes(&self) -> bool {
        matches!(self.opcode, wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM)
    }

    /// Its bytes: the number, and then others that follow from it.
    fn bytes(&self) -> Vec<u8> {
        let mut random = Rng::with_seed(self.number);
        let rest = std::iter::repeat_with(|| random.u8(..));
        self.number.to_ne_bytes().into_iter().chain(rest).take(self.length).collect()
    }
}

/// One of two that are connected.
struct End<'a> {
    context: &'a Opened,
    kind: u32,
    wrongs: Wrongs,
    qp: Queue,
    cq: Queue,
    srq: Option<Queue>,
    /// The number of an address handle of the peer's device.
    address: u32,
    /// Address of the memory.
    start: u64,
    _memory: Vec<u64>,
    key: u32,
    posted: u64,
    /// Requests without a completion.
    under_way: VecDeque<Request>,
    received: u64,
    receives_posted: u64,
    /// Messages of the peer, by number.
    coming: BTreeMap<u64, Request>,
    /// The peer's words, once all that has been posted is done.
    words: [u64; 2],
    /// One more than the number of the latest message.
    latest: u64,
    made: u64,
}

pub(super) fn round(seed: u64) -> u64 {
    let wire = Wire::new();
    let devices = ["a", "b"].map(|name| Device::new(&wire, name));
    let contexts = devices.each_ref().map(|device| open(device).unwrap());
    let mut random = Rng::with_seed(seed);
    let mut often = |most: u16| random.u16(..=most);
    let mut wrongs = Wrongs { lose: often(100), duplicate: often(200), reorder: often(300) };
    let (answers, not_ready, delay) = (often(80), often(80), often(30));
    let well = random.u8(..4) == 0;
    if well {
        wrongs = Wrongs { lose: 0, duplicate: 0, reorder: 0 };
    } else {
        if random.bool() {
            wrongs.lose = 0;
        }
        for device in &devices {
            let faults =
                Faults::new(random.u64(..)).lose(wrongs.lose).lose_answers(answers).not_ready(not_ready);
            let faults = faults.duplicate(wrongs.duplicate).reorder(wrongs.reorder);
            device.set_faults(faults.delay(delay, Duration::from_micros(random.u64(..50))));
        }
    }
    let made = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let random = Rng::with_seed(seed << 8 | number);
                let (contexts, devices) = (&contexts, &devices);
                scope.spawn(move || Pair::new(contexts, devices, wrongs, random).run())
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .sum()
    });
    drop(contexts);
    super::nothing_is_left(&wire);
    made
}

struct Pair<'a> {
    ends: [End<'a>; 2],
    random: Rng,
}

impl<'a> Pair<'a> {
    fn new(contexts: &'a [Opened; 2], devices: &[Device; 2], wrongs: Wrongs, mut random: Rng) -> Self {
        let kind = *random.choice(&[qp_type::RC, qp_type::RC, qp_type::UC, qp_type::UD]).unwrap();
        let gids = devices.each_ref().map(gid);
        let mut end = |own: usize| End::new(&contexts[own], gids[1 - own], kind, wrongs, random.bool());
        let mut ends = [end(0), end(1)];
        for own in 0..2 {
            let (end, peer) = (&ends[own], ends[1 - own].qp.number);
            connect(end.context, end.qp.handle, kind, gids[1 - own], peer).unwrap();
            ends[own].post_receives(RECEIVES);
        }
        Self { ends, random }
    }

    fn run(mut self) -> u64 {
        for _ in 0..STEPS {
            let own = self.random.usize(..2);
            (0..self.random.u8(1..5)).for_each(|_| self.post(own, false));
            self.ends[own].ring();
            self.poll();
            for own in 0..2 {
                // Peers of a reliable connection wait for each other.
                let few = self.ends[own].kind == qp_type::RC && self.random.bool();
                self.ends[own].post_receives(if few { self.random.u64(..3) } else { RECEIVES });
            }
        }
        for own in 0..2 {
            self.until("room", |pair| (pair.ends[own].under_way.len() as u64) < REQUESTS);
            self.post(own, true);
            self.ends[own].ring();
        }
        self.until("the end", |pair| pair.ends.iter().all(|end| end.under_way.is_empty()));
        self.check();
        self.ends.iter().map(|end| end.made).sum()
    }

    fn until(&mut self, what: &str, there: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !there(self) {
            let stuck = self.ends.each_ref().map(|end| &end.under_way);
            assert!(Instant::now() < deadline, "{what} does not come: {stuck:?}");
            self.ends.iter_mut().for_each(|end| end.post_receives(RECEIVES));
            self.poll();
        }
    }

    /// What has been done before a completion is seen with it, so the other end is looked at later.
    fn poll(&mut self) {
        let [a, b] = &mut self.ends;
        a.poll(b);
        b.poll(a);
        a.poll(b);
    }

    fn post(&mut self, own: usize, last: bool) {
        self.poll();
        let random = &mut self.random;
        let [a, b] = &mut self.ends;
        let (end, peer) = if own == 0 { (a, b) } else { (b, a) };
        if end.under_way.len() as u64 == REQUESTS {
            return;
        }
        let opcodes: &[u32] = match end.kind {
            _ if last => &[wr_opcode::SEND],
            qp_type::UD => &[wr_opcode::SEND, wr_opcode::SEND_WITH_IMM],
            qp_type::UC => &[
                wr_opcode::SEND,
                wr_opcode::SEND_WITH_IMM,
                wr_opcode::RDMA_WRITE,
                wr_opcode::RDMA_WRITE_WITH_IMM,
            ],
            _ => &[
                wr_opcode::SEND,
                wr_opcode::SEND_WITH_IMM,
                wr_opcode::RDMA_WRITE,
                wr_opcode::RDMA_WRITE_WITH_IMM,
                wr_opcode::RDMA_READ,
                wr_opcode::ATOMIC_FETCH_AND_ADD,
                wr_opcode::ATOMIC_CMP_AND_SWP,
            ],
        };
        let most = if end.kind == qp_type::UD { MOST_OF_DATAGRAM } else { MOST };
        let number = end.posted;
        let mut request = Request {
            number,
            opcode: *random.choice(opcodes).unwrap(),
            length: if random.bool() { random.usize(8..=64) } else { random.usize(8..=most) },
            // Not all that is under way may be silent.
            signaled: last || number % 8 == 7 || random.bool(),
            from: random.usize(..place::POOL - MOST),
            before: 0,
            arrivals: 0,
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, request.signaled);
        let remote = |place: usize| peer.address_of(place);
        let rdma = |place| part(&SendWrRdma { remote_addr: remote(place), rkey: peer.key, reserved: 0 });
        let atomic = |place, compare_add, swap| {
            part(&SendWrAtomic { remote_addr: remote(place), compare_add, swap, rkey: peer.key, reserved: 0 })
        };
        let mut bytes = Vec::new();
        let wr = match request.opcode {
            wr_opcode::RDMA_READ => rdma(request.from),
            wr_opcode::ATOMIC_FETCH_AND_ADD => {
                let add = random.u64(..);
                (request.before, request.length) = (end.words[0], 8);
                end.words[0] = end.words[0].wrapping_add(add);
                atomic(place::ADDED, add, 0)
            }
            wr_opcode::ATOMIC_CMP_AND_SWP => {
                let (compare, swap) = (end.words[1].wrapping_add(random.u64(..2)), random.u64(..));
                (request.before, request.length) = (end.words[1], 8);
                if compare == end.words[1] {
                    end.words[1] = swap;
                }
                atomic(place::SWAPPED, compare, swap)
            }
            _ => {
                flags.set(SendFlags::INLINE, request.length <= 64 && random.bool());
                bytes = request.bytes();
                end.write(place::request(number), &bytes);
                if request.writes() {
                    peer.write(place::landing(number), &vec![0; request.length]);
                }
                match end.kind {
                    qp_type::UD => {
                        let (remote_qpn, ah_num) = (peer.qp.number, end.address);
                        part(&SendWrUd { remote_qpn, ah_num, ..Default::default() })
                    }
                    _ => rdma(place::landing(number)),
                }
            }
        };
        let wr = SendWr {
            wr_id: number,
            opcode: request.opcode,
            send_flags: flags.bits(),
            ex: number as u32,
            wr,
            ..Default::default()
        };
        let sges = end.pieces(place::request(number), request.length, random);
        end.qp.ring.as_mut().unwrap().push(&send(wr, &sges, &bytes));
        end.made += 1;
        end.posted += 1;
        if request.takes_receive() {
            peer.coming.insert(number, request.clone());
        }
        end.under_way.push_back(request);
    }

    /// All is done: has it all arrived?
    fn check(&mut self) {
        self.poll();
        for own in 0..2 {
            let (end, peer) = (&self.ends[own], &self.ends[1 - own]);
            assert_eq!([place::ADDED, place::SWAPPED].map(|place| peer.word(place)), end.words);
            let missing: Vec<_> = end.coming.values().filter(|request| request.arrivals == 0).collect();
            // The last datagram may wait for one that would overtake it.
            let may_wait = end.kind == qp_type::UD && end.wrongs.reorder > 0;
            let lost = missing.iter().filter(|request| !may_wait || request.number + 1 < peer.posted).count();
            assert!(lost == 0 || end.kind != qp_type::RC && end.wrongs.lose > 0, "lost: {missing:?}");
        }
    }
}

impl<'a> End<'a> {
    fn new(context: &'a Opened, peer: [u8; 16], kind: u32, wrongs: Wrongs, shares: bool) -> Self {
        let pd = calls::invoke(context, &AllocPd::default()).unwrap().pd_handle;
        let cq = create_cq(context, 127);
        let srq = shares.then(|| create_srq(context, pd, RECEIVES as u32, 3));
        let qp =
            create_qp(context, (pd, cq.handle, srq.as_ref().map(|srq| srq.handle)), kind, REQUESTS as u32);
        let mut memory: Vec<_> =
            (0..place::END as u64 / 8).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        // SAFETY: it is read and written by pointers alone, and freed with nothing under way that names it.
        let key = unsafe { register(context, pd, start, place::END, access.bits()) }.lkey;
        let attr = AhAttr {
            grh: GlobalRoute { dgid: peer, sgid_index: 1, ..Default::default() },
            is_global: 1,
            port_num: 1,
            ..Default::default()
        };
        let mut driver = CreateAhResp::default();
        let request = CreateAh { pd_handle: pd, attr, ..Default::default() };
        calls::invoke_for_driver(context, &request, &mut driver).unwrap();
        let end = Self {
            context,
            kind,
            wrongs,
            qp,
            cq,
            srq,
            address: driver.ah_num,
            start,
            _memory: memory,
            key,
            posted: 0,
            under_way: VecDeque::new(),
            received: 0,
            receives_posted: 0,
            coming: BTreeMap::new(),
            words: [0; 2],
            latest: 0,
            made: 0,
        };
        end.write(place::ADDED, &[0; 16]);
        end
    }

    fn address_of(&self, place: usize) -> u64 {
        assert!(place < place::END);
        self.start + place as u64
    }

    fn write(&self, place: usize, bytes: &[u8]) {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.address_of(place) as usize);
        assert!(place + bytes.len() <= place::END);
        // SAFETY: it is inside of the memory (checked), and nothing that is under way names it.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn read(&self, place: usize, length: usize) -> Vec<u8> {
        let from = std::ptr::with_exposed_provenance::<u8>(self.address_of(place) as usize);
        assert!(place + length <= place::END);
        let mut bytes = vec![0; length];
        // SAFETY: as above.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
        bytes
    }

    fn word(&self, place: usize) -> u64 {
        self.read(place, 8).try_into().map(u64::from_ne_bytes).unwrap()
    }

    /// A stretch of memory, in up to three pieces.
    fn pieces(&self, place: usize, length: usize, random: &mut Rng) -> Vec<Sge> {
        let cuts = [random.usize(..=length), random.usize(..=length)];
        let (first, second) = (cuts[0].min(cuts[1]), cuts[0].max(cuts[1]));
        let sge = |from: usize, to: usize| Sge {
            addr: self.address_of(place + from),
            length: (to - from) as u32,
            lkey: self.key,
        };
        match random.u8(..3) {
            0 => vec![sge(0, length)],
            1 => vec![sge(0, first), sge(first, length)],
            _ => vec![sge(0, first), sge(first, second), sge(second, length)],
        }
    }

    fn ring(&self) {
        self.context.doorbell(Doorbell::Send { qp: self.qp.handle }).unwrap();
    }

    fn post_receives(&mut self, most: u64) {
        let count = most.min(RECEIVES - (self.receives_posted - self.received));
        for _ in 0..count {
            let mut random = Rng::with_seed(self.receives_posted);
            let sges = self.pieces(place::receive(self.receives_posted), MOST + ROUTE, &mut random);
            let ring = self.srq.as_mut().unwrap_or(&mut self.qp).receives.as_mut().unwrap();
            ring.push(&receive(self.receives_posted, &sges));
            self.receives_posted += 1;
            self.made += 1;
        }
    }

    fn poll(&mut self, peer: &mut End<'_>) {
        while let Some(completion) = self.cq.ring.as_mut().unwrap().poll() {
            assert_eq!(completion.status, wc_status::SUCCESS, "{completion:?}, {:?}", self.under_way);
            assert_eq!(completion.qp_num, self.qp.number);
            if completion.opcode >= wc_opcode::RECV {
                self.take_message(&completion);
            } else {
                self.take_completion(&completion, peer);
            }
        }
    }

    /// A request is done, and those before it that did not ask to be told.
    fn take_completion(&mut self, completion: &Wc, peer: &End<'_>) {
        loop {
            let request =
                self.under_way.pop_front().unwrap_or_else(|| panic!("nothing is under way: {completion:?}"));
            let is_it = request.number == completion.wr_id;
            assert_eq!(request.signaled, is_it, "{request:?}, and then {completion:?}");
            let found = self.read(place::request(request.number), request.length);
            match request.opcode {
                wr_opcode::RDMA_READ => {
                    assert!(
                        found == peer.read(request.from, request.length),
                        "{request:?} read something else"
                    );
                }
                wr_opcode::ATOMIC_FETCH_AND_ADD | wr_opcode::ATOMIC_CMP_AND_SWP => {
                    assert_eq!(self.word(place::request(request.number)), request.before, "{request:?}");
                }
                wr_opcode::RDMA_WRITE => {
                    let landed = peer.read(place::landing(request.number), request.length);
                    let lost = self.kind != qp_type::RC
                        && self.wrongs.lose > 0
                        && landed.iter().all(|byte| *byte == 0);
                    assert!(landed == request.bytes() || lost, "{request:?} wrote something else");
                }
                _ => {}
            }
            if is_it {
                return;
            }
        }
    }

    /// A message has come.
    fn take_message(&mut self, completion: &Wc) {
        // Receives are taken in the order in which they were posted.
        assert_eq!(completion.wr_id, self.received, "{completion:?}");
        let receive = place::receive(self.received);
        self.received += 1;
        let route = if self.kind == qp_type::UD { ROUTE } else { 0 };
        let with_immediate = completion.wc_flags & WcFlags::WITH_IMM.bits() != 0;
        let wrote = completion.opcode == wc_opcode::RECV_RDMA_WITH_IMM;
        let number = if with_immediate { completion.ex.into() } else { self.word(receive + route) };
        let request = self.coming.get_mut(&number).unwrap_or_else(|| panic!("nobody sent {completion:?}"));
        request.arrivals += 1;
        let (most, may_be_late) = match self.kind {
            qp_type::RC => (1, 0),
            kind => (
                1 + u32::from(self.wrongs.duplicate > 0),
                u64::from(kind == qp_type::UD && self.wrongs.reorder > 0),
            ),
        };
        assert!(request.arrivals <= most, "too often: {request:?}");
        assert!(number + 1 + may_be_late >= self.latest, "{request:?} after {}", self.latest);
        self.latest = self.latest.max(number + 1);
        let request = request.clone();
        assert_eq!(completion.byte_len as usize, request.length + route, "{request:?}");
        assert_eq!(
            (with_immediate, wrote),
            (request.opcode != wr_opcode::SEND, request.writes()),
            "{request:?}"
        );
        let place = if wrote { place::landing(number) } else { receive + route };
        assert!(self.read(place, request.length) == request.bytes(), "{request:?} brought something else");
        if self.kind == qp_type::RC {
            // All of them come, in order.
            let earlier = self.coming.range(..number).next_back();
            assert!(
                earlier.is_none_or(|(_, earlier)| earlier.arrivals == 1),
                "{request:?} before {earlier:?}"
            );
        }
    }
}
