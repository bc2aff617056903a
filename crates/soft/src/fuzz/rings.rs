//! Rings with anything in them: requests that are nearly right, bytes, indices that jump, while another thread writes there too. Memory
//! that is not registered, or not to be written, stays as it is, and others can go on to work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use uverbs_ioctl::{Doorbell, Transport, calls};
use uverbs_uapi::ioctl_verbs::{AccessFlags, QpAttachCompCntrOps, comp_cntr_entry, qp_type};
use uverbs_uapi::rxe::{
    CreateAhResp, MmapInfo, ModifySrqCmd, ResizeCqResp, SendWr, SendWrAtomic, SendWrFlush, SendWrMw,
    SendWrRdma, SendWrUd, Sge,
};
use uverbs_uapi::user_verbs::{
    AhAttr, AllocMw, AllocPd, AttachMcast, CreateAh, GlobalRoute, ModifySrq, ReqNotifyCq, ResizeCq, wr_opcode,
};
use uverbs_uapi::values::{QpAttrMask, SendFlags, SrqAttrMask, qp_state, wc_status};

use super::user::{
    Queue, UserRing, anything, connect, create_cq, create_qp, create_srq, gid, open, part, receive, register,
    send, step,
};
use crate::context::Opened;
use crate::device::Device;
use crate::faults::Faults;
use crate::wire::Wire;

const OPERATIONS: u64 = 4000;
/// Bytes of a stretch of memory. Every other one is not registered.
const STRETCH: usize = 2048;
const STRETCHES: usize = 9;
const UNTOUCHED: u8 = 0x5a;
/// Stretches that are registered, with what may be done to them; the last ones may not be written.
const WRITABLE: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND);
const REGIONS: [(usize, AccessFlags); 4] =
    [(1, WRITABLE), (3, AccessFlags::LOCAL_WRITE), (5, AccessFlags::REMOTE_READ), (7, AccessFlags::empty())];

/// A QP with its type and the number of its peer.
struct End {
    queue: Queue,
    kind: u32,
    peer: u32,
}

/// Stops the other thread, also when this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct User<'a> {
    context: &'a Opened,
    gid: [u8; 16],
    random: Rng,
    memory: u64,
    pds: [u32; 2],
    regions: Vec<(u32, u32)>,
    windows: Vec<u32>,
    addresses: Vec<u32>,
    cqs: Vec<Queue>,
    srq: Queue,
    ends: Vec<End>,
    /// What comes next is to be right.
    good: bool,
}

pub(super) fn round(seed: u64) -> u64 {
    let wire = Wire::new();
    let device = Device::new(&wire, "hostile");
    // On the heap, where it ends exactly where an address sanitizer begins to watch.
    let mut memory = vec![UNTOUCHED; STRETCH * STRETCHES];
    let start = memory.as_mut_ptr().expose_provenance() as u64;
    let context = open(&device).unwrap();
    let mut user = User::new(&context, &device, Rng::with_seed(seed), start);
    let rings: Vec<_> = user.rings().cloned().collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut random = Rng::with_seed(!seed);
            let mut made = 0;
            while !stop.load(Ordering::Relaxed) {
                random.choice(&rings).unwrap().scribble(&mut random);
                made += 1;
                // There are few processors, and the other thread is the one that has most to do.
                if made % 16 == 0 {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        let stop = Stop(&stop);
        for _ in 0..OPERATIONS {
            user.operate(&device);
        }
        drop(stop);
        others.join().unwrap();
    });
    drop(user);
    device.set_faults(Faults::new(0));
    a_message_arrives(&device);
    drop(context);
    super::nothing_is_left(&wire);
    let writable = [1, 3];
    for (number, stretch) in
        memory.chunks(STRETCH).enumerate().filter(|(number, _)| !writable.contains(number))
    {
        assert!(stretch.iter().all(|byte| *byte == UNTOUCHED), "stretch {number} has been written");
    }
    OPERATIONS
}

impl<'a> User<'a> {
    fn new(context: &'a Opened, device: &Device, random: Rng, memory: u64) -> Self {
        let pds = [(); 2].map(|()| calls::invoke(context, &AllocPd::default()).unwrap().pd_handle);
        let cqs = vec![create_cq(context, 7), create_cq(context, 60)];
        let srq = create_srq(context, pds[0], 15, 2);
        let kinds =
            [qp_type::RC, qp_type::RC, qp_type::RC, qp_type::UC, qp_type::UC, qp_type::UD, qp_type::UD];
        let ends: Vec<_> = kinds
            .into_iter()
            .enumerate()
            .map(|(number, kind)| {
                let srq = (number % 3 == 1).then_some(srq.handle);
                let of = (pds[0], cqs[number % 2].handle, srq);
                End { queue: create_qp(context, of, kind, 15), kind, peer: 0 }
            })
            .collect();
        let gid = gid(device);
        let mut user = Self {
            context,
            gid,
            random,
            memory,
            pds,
            regions: Vec::new(),
            windows: Vec::new(),
            addresses: Vec::new(),
            cqs,
            srq,
            ends,
            good: false,
        };
        // The first is its own peer.
        for (own, peer) in [(0, 0), (1, 2), (2, 1), (3, 4), (4, 3), (5, 6), (6, 5)] {
            user.ends[own].peer = user.ends[peer].queue.number;
            user.repair(own);
        }
        user.regions = (0..REGIONS.len()).map(|which| user.register(which)).collect();
        for mw_type in [1, 2, 2] {
            let request = AllocMw { pd_handle: pds[0], mw_type, ..Default::default() };
            user.windows.push(calls::invoke(context, &request).unwrap().rkey);
        }
        let mut group = gid;
        group[12] = 239;
        for (dgid, pd_handle) in [(gid, pds[0]), (group, pds[0]), (gid, pds[1])] {
            let attr = AhAttr {
                grh: GlobalRoute { dgid, sgid_index: 1, ..Default::default() },
                is_global: 1,
                port_num: 1,
                ..Default::default()
            };
            let mut driver = CreateAhResp::default();
            let request = CreateAh { pd_handle, attr, ..Default::default() };
            calls::invoke_for_driver(context, &request, &mut driver).unwrap();
            user.addresses.push(driver.ah_num);
        }
        for end in &user.ends[5..] {
            let request = AttachMcast { gid: group, qp_handle: end.queue.handle, ..Default::default() };
            calls::invoke(context, &request).unwrap();
        }
        user
    }

    fn rings(&self) -> impl Iterator<Item = &UserRing> {
        let queues = self.cqs.iter().chain([&self.srq]).chain(self.ends.iter().map(|end| &end.queue));
        queues.flat_map(|queue| queue.ring.iter().chain(&queue.receives))
    }

    fn register(&mut self, which: usize) -> (u32, u32) {
        let (stretch, access) = REGIONS[which];
        let pd = self.pds[usize::from(self.random.u8(..10) == 0)];
        let start = self.memory + (stretch * STRETCH) as u64;
        // SAFETY: the memory outlives the context, and the test looks at it only after that.
        let region = unsafe { register(self.context, pd, start, STRETCH, access.bits()) };
        (region.mr_handle, region.lkey)
    }

    /// Brings a QP back to work.
    fn repair(&mut self, which: usize) {
        let End { queue, kind, peer } = &mut self.ends[which];
        // One that drains can go nowhere else, and a new one not there.
        let _ = calls::invoke(
            self.context,
            &step(queue.handle, self.gid, *peer, qp_state::ERR, QpAttrMask::empty()),
        );
        // What its peer sends may break it on the way.
        let _ = connect(self.context, queue.handle, *kind, self.gid, *peer);
        for ring in [&mut queue.ring, &mut queue.receives].into_iter().flatten() {
            ring.agree();
        }
    }

    fn operate(&mut self, device: &Device) {
        let which = self.random.usize(..self.ends.len());
        let cq = self.random.usize(..self.cqs.len());
        match self.random.u8(..) {
            0..130 => {
                self.good = self.random.u8(..4) > 0;
                if self.random.bool() {
                    self.repair(which);
                }
                let request = self.request(which);
                let request = self.spoil(request);
                let queue = &mut self.ends[which].queue;
                queue.ring.as_mut().unwrap().push(&request);
                self.ring(which);
            }
            130..180 => {
                self.good = self.random.u8(..8) > 0;
                let wqe = self.receive();
                let wqe = self.spoil(wqe);
                let queue = &mut self.ends[which].queue;
                queue.receives.as_mut().or(self.srq.receives.as_mut()).unwrap().push(&wqe);
            }
            180..190 => {
                // There may be more than a ring holds if the index is wrong.
                for _ in 0..100 {
                    if self.cqs[cq].ring.as_mut().unwrap().poll().is_none() {
                        break;
                    }
                }
            }
            190..200 => {
                let index = anything(&mut self.random);
                let (ring, is_producer) = (self.random.usize(..self.rings().count()), self.random.bool());
                let ring = self.rings().nth(ring).unwrap();
                let word = if is_producer { ring.producer() } else { ring.consumer() };
                word.store(index, Ordering::Relaxed);
                self.ring(which);
            }
            200..225 => self.repair(which),
            225..232 => {
                let states = [qp_state::SQD, qp_state::ERR, qp_state::RTS];
                let to = *self.random.choice(&states).unwrap();
                let End { queue, peer, .. } = &self.ends[which];
                // Not every step can be taken.
                let _ = calls::invoke(
                    self.context,
                    &step(queue.handle, self.gid, *peer, to, QpAttrMask::empty()),
                );
            }
            232..237 => {
                let region = self.random.usize(..REGIONS.len());
                // A window may be bound to it.
                if calls::destroy_mr(self.context, self.regions[region].0).is_ok() {
                    self.regions[region] = self.register(region);
                }
            }
            237..241 => self.resize_cq(cq),
            241..244 => self.resize_srq(),
            244..250 => {
                let solicited_only = self.random.u32(..2);
                calls::invoke(self.context, &ReqNotifyCq { cq_handle: self.cqs[cq].handle, solicited_only })
                    .unwrap();
            }
            _ => {
                let mut often = || self.random.u16(..200);
                let faults = Faults::new(3).lose(often()).lose_answers(often()).duplicate(often());
                let faults = faults.reorder(often()).delay(often(), Duration::from_micros(20));
                device.set_faults(faults);
            }
        }
    }

    fn ring(&mut self, which: usize) {
        // Not in every state.
        let _ = self.context.doorbell(Doorbell::Send { qp: self.ends[which].queue.handle });
    }

    /// A stretch of memory and a key: right, or wrong in one way.
    fn place(&mut self) -> (u64, u32, u32) {
        let random = &mut self.random;
        let which = if self.good || random.bool() { 0 } else { random.usize(..REGIONS.len()) };
        let start = self.memory + (REGIONS[which].0 * STRETCH) as u64;
        // Often near the end.
        let words = STRETCH as u32 / 8;
        let left = 8 * if random.bool() { random.u32(1..=8) } else { random.u32(1..=words) };
        let address = start + STRETCH as u64 - u64::from(left);
        let length = if random.bool() { 8 } else { random.u32(8..=left) };
        let key = self.regions[which].1;
        match random.u8(..20) {
            _ if self.good => (address, length, key),
            0 => (address, anything(random), key),
            1 => (address, left + random.u32(1..=8), key),
            2 => (start - random.u64(1..=8), length, key),
            3 => (start.wrapping_add(anything(random).into()), length, key),
            4 => (address + 1, length - 1, key),
            5 => (address, length, anything(random)),
            6 => (address, length, key ^ 1),
            7..10 => (address, length, *random.choice(&self.windows).unwrap()),
            _ => (address, length, key),
        }
    }

    fn sges(&mut self) -> Vec<Sge> {
        let count = self.random.usize(..4);
        let sge = |(addr, length, lkey)| Sge { addr, length, lkey };
        (0..count).map(|_| sge(self.place())).collect()
    }

    fn request(&mut self, which: usize) -> Vec<u8> {
        let opcodes = [
            wr_opcode::SEND,
            wr_opcode::SEND_WITH_IMM,
            wr_opcode::SEND_WITH_INV,
            wr_opcode::RDMA_WRITE,
            wr_opcode::RDMA_WRITE_WITH_IMM,
            wr_opcode::RDMA_READ,
            wr_opcode::ATOMIC_CMP_AND_SWP,
            wr_opcode::ATOMIC_FETCH_AND_ADD,
            wr_opcode::ATOMIC_WRITE,
            wr_opcode::FLUSH,
            wr_opcode::LOCAL_INV,
            wr_opcode::BIND_MW,
        ];
        let opcode = match self.random.u8(..40) {
            0 => anything(&mut self.random),
            _ => *self.random.choice(&opcodes).unwrap(),
        };
        let (remote_addr, length, rkey) = self.place();
        let wr = match opcode {
            _ if self.ends[which].kind == qp_type::UD => part(&SendWrUd {
                remote_qpn: *self.random.choice(&[self.ends[which].peer, 0xff_ffff, 1]).unwrap(),
                ah_num: *self.random.choice(&self.addresses).unwrap(),
                ..Default::default()
            }),
            wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD => {
                let (compare_add, swap) = (self.random.u64(..2), self.random.u64(..2));
                part(&SendWrAtomic { remote_addr, compare_add, swap, rkey, reserved: 0 })
            }
            wr_opcode::FLUSH => {
                let (r#type, level) = (self.random.u8(..4), self.random.u8(..3));
                part(&SendWrFlush { remote_addr, length, rkey, r#type, level, ..Default::default() })
            }
            wr_opcode::BIND_MW => {
                let mw_rkey = *self.random.choice(&self.windows).unwrap();
                let access = *self.random.choice(&[0, 2, 0x2f, u32::MAX]).unwrap();
                let length = u64::from(length);
                part(&SendWrMw { addr: remote_addr, length, mr_lkey: rkey, mw_rkey, rkey: mw_rkey, access })
            }
            _ => part(&SendWrRdma { remote_addr, rkey, reserved: 0 }),
        };
        let ex = if self.random.bool() {
            *self.random.choice(&self.windows).unwrap()
        } else {
            self.random.u32(..)
        };
        let send_flags = self.random.u32(..16);
        let wr = SendWr { wr_id: self.random.u64(..), opcode, send_flags, ex, wr, ..Default::default() };
        let inline: Vec<_> = (0..self.random.usize(..80)).map(|_| self.random.u8(..)).collect();
        let sges = self.sges();
        send(wr, &sges, &inline)
    }

    fn receive(&mut self) -> Vec<u8> {
        let sges = self.sges();
        receive(self.random.u64(..), &sges)
    }

    /// Changes something, sometimes, or everything.
    fn spoil(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        match self.random.u8(..20) {
            _ if self.good => {}
            0 => bytes.iter_mut().for_each(|byte| *byte = self.random.u8(..)),
            1..4 => {
                let place = self.random.usize(..bytes.len() / 4) * 4;
                bytes[place..place + 4].copy_from_slice(&anything(&mut self.random).to_ne_bytes());
            }
            _ => {}
        }
        bytes
    }

    fn resize_cq(&mut self, which: usize) {
        let request = ResizeCq {
            cq_handle: self.cqs[which].handle,
            cqe: self.random.u32(1..100),
            ..Default::default()
        };
        let mut driver = ResizeCqResp::default();
        if calls::invoke_for_driver(self.context, &request, &mut driver).is_ok() {
            self.cqs[which].ring = Some(UserRing::map(self.context, &driver.mi).unwrap());
        }
    }

    fn resize_srq(&mut self) {
        let request = ModifySrq {
            srq_handle: self.srq.handle,
            attr_mask: SrqAttrMask::MAX_WR.bits(),
            max_wr: self.random.u32(1..40),
            srq_limit: 0,
        };
        let mut info = MmapInfo::default();
        let driver = ModifySrqCmd { mmap_info_addr: (&raw mut info).expose_provenance() as u64 };
        // SAFETY: so much may be written there.
        if unsafe { calls::modify_srq(self.context, &request, &driver) }.is_ok() {
            self.srq.receives = Some(UserRing::map(self.context, &info).unwrap());
        }
    }
}

/// What has gone on beside does not keep others from their work.
fn a_message_arrives(device: &Device) {
    let context = open(device).unwrap();
    let pd = calls::invoke(&context, &AllocPd::default()).unwrap().pd_handle;
    let mut cq = create_cq(&context, 7);
    let mut qp = create_qp(&context, (pd, cq.handle, None), qp_type::RC, 3);
    connect(&context, qp.handle, qp_type::RC, gid(device), qp.number).unwrap();
    let mut memory = [7_u64, 0];
    let start = (&raw mut memory).expose_provenance() as u64;
    // SAFETY: it is looked at once the context has been closed.
    let region = unsafe { register(&context, pd, start, 16, AccessFlags::LOCAL_WRITE.bits()) };
    let sge = |addr| Sge { addr, length: 8, lkey: region.lkey };
    qp.receives.as_mut().unwrap().push(&receive(1, &[sge(start + 8)]));
    let send_flags = SendFlags::SIGNALED.bits();
    let wr = SendWr { wr_id: 2, opcode: wr_opcode::SEND, send_flags, ..Default::default() };
    qp.ring.as_mut().unwrap().push(&send(wr, &[sge(start)], &[]));
    context.doorbell(Doorbell::Send { qp: qp.handle }).unwrap();
    let deadline = Instant::now() + super::PATIENCE;
    let mut found = Vec::new();
    while found.len() < 2 {
        assert!(Instant::now() < deadline, "only {found:?}");
        found.extend(cq.ring.as_mut().unwrap().poll().map(|wc| (wc.wr_id, wc.status)));
    }
    assert_eq!(found, [(1, wc_status::SUCCESS), (2, wc_status::SUCCESS)]);
    drop(context);
    assert_eq!(memory, [7, 7]);
}

/// A doorbell executes what is there, in a QP that works and in one that does not, and not what another thread goes on and on to post.
pub(super) fn endless(_: u64) -> u64 {
    const ENOUGH: u64 = 100_000;
    let device = Device::new(&Wire::new(), "hostile");
    let context = open(&device).unwrap();
    let pd = calls::invoke(&context, &AllocPd::default()).unwrap().pd_handle;
    let cq = create_cq(&context, 7);
    let qp = create_qp(&context, (pd, cq.handle, None), qp_type::UC, 1000);
    let counter = calls::create_comp_cntr(&context).unwrap();
    calls::attach_comp_cntr(&context, qp.handle, counter, QpAttachCompCntrOps::RDMA_WRITE.bits()).unwrap();
    let gid = gid(&device);
    connect(&context, qp.handle, qp_type::UC, gid, qp.number).unwrap();
    let (ring, stop) = (qp.ring.unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // As many as there is room for. Nothing but zeros is a write of nothing.
                let last = ring.consumer().load(Ordering::Relaxed).wrapping_sub(1);
                ring.producer().store(last, Ordering::Release);
            }
        });
        let executed = |entry| calls::read_comp_cntr(&context, counter, entry).unwrap();
        for (state, entry) in [(qp_state::RTS, comp_cntr_entry::COMP), (qp_state::ERR, comp_cntr_entry::ERR)]
        {
            if state == qp_state::ERR {
                let request = step(qp.handle, gid, qp.number, state, QpAttrMask::empty());
                calls::invoke(&context, &request).unwrap();
            }
            while executed(entry) < ENOUGH {
                let before = executed(entry);
                context.doorbell(Doorbell::Send { qp: qp.handle }).unwrap();
                let executed = executed(entry) - before;
                assert!(executed <= 1023, "{executed} of a ring for 1023");
            }
        }
    });
    2 * ENOUGH
}
