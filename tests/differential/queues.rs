//! Work in rings that somebody has written down.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

use uverbs::soft;
use uverbs_ioctl::Transport;
use uverbs_ioctl::uapi::ioctl_verbs::{AccessFlags, qp_type};
use uverbs_ioctl::uapi::rxe::{SendWrAtomic, SendWrFlush, SendWrMw, SendWrRdma, SendWrUd, Sge};
use uverbs_ioctl::uapi::user_verbs::{PlacementType, selectivity_level, wr_opcode as op};
use uverbs_ioctl::uapi::values::{MULTICAST_QPN, SendFlags, mw_type, qp_state};
use zerocopy::IntoBytes;

use super::bench::{BASE, Bench, HALF, RECEIVES, Request, SENDS, Setup, Side};
use super::written::{GID, GROUP};
use super::{failing, open_kernel, tell};

pub(super) const SIGNALED: u32 = SendFlags::SIGNALED.bits();
pub(super) const INLINE: u32 = SIGNALED | SendFlags::INLINE.bits();

/// Work on QPs of a setup, by its name, and how many completions it has at least.
type Work = (&'static str, Setup, fn(&mut Bench<'_>), usize);

pub(super) fn work_is_done_alike() {
    let compare = |(name, setup, work, least)| compare(name, &setup, least, work);
    let differences: Vec<_> = works().into_iter().filter_map(compare).collect();
    tell(&differences);
}

/// Has both devices do the same, and says what is different then, or that there are too few completions.
pub(super) fn compare(
    name: &str,
    setup: &Setup,
    least: usize,
    work: impl Fn(&mut Bench<'_>),
) -> Option<String> {
    let outcome = |side, transport: &dyn Transport| {
        let mut bench = Bench::new(side, transport, setup, name);
        work(&mut bench);
        bench.outcome()
    };
    let inside = outcome(Side::Inside, &soft::Device::new(&soft::Wire::new(), "inside").open().unwrap());
    let kernel = outcome(Side::Kernel, &*open_kernel());
    let completions = kernel.lines().filter(|line| line.starts_with("completion ")).count();
    different_lines(name, &kernel, &inside)
        .or_else(|| (completions < least).then(|| format!("{name}: only {completions} completions")))
}

/// The lines that one has and the other has not, or not as often. Where that is none, the first place where they are different.
fn different_lines(name: &str, kernel: &str, inside: &str) -> Option<String> {
    let missing = |of: &str, but: &str, who: &str| {
        let mut others: Vec<_> = but.lines().collect();
        let mut told = String::new();
        for line in of.lines() {
            match others.iter().position(|other| *other == line) {
                Some(place) => drop(others.swap_remove(place)),
                None => told.push_str(&format!("\n    {who}: {line}")),
            }
        }
        told
    };
    (kernel != inside).then(|| {
        let mut told = missing(kernel, inside, "kernel") + &missing(inside, kernel, "inside");
        let mut places = kernel.lines().zip(inside.lines());
        if told.is_empty()
            && let Some((kernel, inside)) = places.find(|(kernel, inside)| kernel != inside)
        {
            told = format!("\n    in another order: kernel: {kernel}\n    inside: {inside}");
        }
        format!("{name}:{told}")
    })
}

fn works() -> Vec<Work> {
    let rc = Setup::default();
    let uc = Setup { kind: qp_type::UC, ..rc };
    let ud = Setup { kind: qp_type::UD, ..rc };
    let mut works: Vec<Work> = vec![
        ("sends", rc, sends, 30),
        ("sends of short packets", Setup { mtu: 1, ..rc }, sends, 30),
        ("every request is signaled", Setup { signal_all: true, ..rc }, sends, 30),
        ("inline", rc, inline, 15),
        ("one-sided", rc, one_sided, 25),
        ("one-sided into short packets", Setup { mtu: 1, ..rc }, one_sided, 25),
        ("atomics", rc, atomics, 4),
        ("flushes", rc, flushes, 5),
        ("shared receives", Setup { srq: Some(3), ..rc }, shared_receives, 10),
        ("windows", rc, windows, 5),
        ("windows in use", Setup { access: rc.access | AccessFlags::MW_BIND, ..rc }, windows_in_use, 6),
        ("a batch", rc, batch, 10),
        ("events", rc, events, 10),
        ("no room for completions", Setup { cqe: 1, ..rc }, overrun, 2),
        ("work in other states", rc, other_states, 4),
        ("nobody", Setup { alone: true, ..rc }, nobody, 3),
        ("no receive", rc, no_receive, 2),
        ("unreliable sends", uc, unreliable, 30),
        ("datagrams", ud, datagrams, 10),
        ("datagrams to a group", ud, group, 3),
    ];
    works.extend(failing::FAILING.iter().map(|(name, work)| (*name, rc, *work, 5)));
    let no_access = Setup { access: AccessFlags::empty(), ..rc };
    let no_answers = Setup { answered_reads: 0, ..rc };
    works.extend([
        ("a write that the QP does not allow", no_access, write as fn(&mut Bench<'_>), 1),
        ("a read that the QP does not allow", no_access, read, 1),
        ("an atomic that the QP does not allow", no_access, fetch_add, 1),
        ("a flush that the QP does not allow", no_access, flush, 1),
        ("a read where none is answered", no_answers, read, 1),
        ("an atomic where none is answered", no_answers, fetch_add, 1),
        ("a write where no read is answered", no_answers, write, 1),
    ]);
    works
}

pub(super) fn request<'a>(opcode: u32, part: &'a [u8], sges: &'a [Sge]) -> Request<'a> {
    Request { opcode, flags: SIGNALED, ex: 0, part, sges, inline: &[], length: None, num_sge: None }
}

pub(super) fn rdma(remote_addr: u64, rkey: u32) -> SendWrRdma {
    SendWrRdma { remote_addr, rkey, reserved: 0 }
}

pub(super) fn atomic(remote_addr: u64, rkey: u32, compare_add: u64, swap: u64) -> SendWrAtomic {
    SendWrAtomic { remote_addr, compare_add, swap, rkey, reserved: 0 }
}

fn sends(bench: &mut Bench<'_>) {
    for (number, length) in [0_u32, 1, 3, 255, 256, 257, 1024, 1025, 3000].into_iter().enumerate() {
        bench.receive(1, 100 + number as u64, &[bench.sge(4096, 100), bench.sge(4200, 3500)]);
        let sges = [bench.sge(0, length / 2), bench.sge(1500, length - length / 2)];
        bench.run(0, number as u64, &request(op::SEND, &[], &sges));
    }
    // Without a completion, with immediate data, solicited, with no SGE and with one of nothing.
    let sges = [bench.sge(7, 9)];
    for (wr_id, opcode, flags, sges) in [
        (20, op::SEND, 0, &sges[..]),
        (21, op::SEND_WITH_IMM, SIGNALED, &sges),
        (22, op::SEND_WITH_IMM, 0, &[]),
        (23, op::SEND, SIGNALED | SendFlags::SOLICITED.bits() | SendFlags::FENCE.bits(), &[]),
        (24, op::SEND, SIGNALED, &[Sge { lkey: 5, ..Sge::default() }]),
    ] {
        bench.receive(1, 100 + wr_id, &[bench.sge(8000, 64)]);
        bench.run(0, wr_id, &Request { flags, ex: 0x1234_5678, ..request(opcode, &[], sges) });
    }
    // A receive of exactly that much, and one of nothing.
    bench.receive(1, 130, &[bench.sge(5000, 9)]);
    bench.run(0, 30, &request(op::SEND, &[], &sges));
    bench.receive(1, 131, &[]);
    bench.run(0, 31, &request(op::SEND, &[], &[]));
}

fn inline(bench: &mut Bench<'_>) {
    for length in [0, 1, 8, 63, 64] {
        let inline: Vec<u8> = (0..length).collect();
        bench.receive(1, 100, &[bench.sge(0, 100)]);
        bench.run(
            0,
            length.into(),
            &Request { flags: INLINE, inline: &inline, ..request(op::SEND, &[], &[]) },
        );
        let part = rdma(BASE + 4096 + u64::from(length), bench.writable);
        let write = request(op::RDMA_WRITE, part.as_bytes(), &[]);
        bench.run(0, 50, &Request { flags: INLINE, inline: &inline, ..write });
    }
}

fn one_sided(bench: &mut Bench<'_>) {
    let (read_only, key) = (bench.readable, bench.writable);
    for length in [0_u32, 1, 300, 1024, 1025, 3000] {
        let sges = [bench.sge(1, length / 3), bench.sge(3000, length - length / 3)];
        let part = rdma(BASE + 4099, key);
        bench.run(0, 1, &request(op::RDMA_WRITE, part.as_bytes(), &sges));
        bench.receive(1, 100, &[]);
        let with = request(op::RDMA_WRITE_WITH_IMM, part.as_bytes(), &sges);
        bench.run(0, 2, &Request { ex: 0xabcd, ..with });
        let part = rdma(BASE + HALF + 17, read_only);
        bench.run(0, 3, &request(op::RDMA_READ, part.as_bytes(), &sges));
    }
    // Of nothing, with a key of nothing.
    let part = rdma(77, 99);
    bench.run(0, 4, &request(op::RDMA_WRITE, part.as_bytes(), &[]));
    bench.run(0, 5, &request(op::RDMA_READ, part.as_bytes(), &[]));
    let part = rdma(BASE + 4000, key);
    let value = 0x0102_0304_0506_0708_u64;
    let write = request(op::ATOMIC_WRITE, part.as_bytes(), &[]);
    bench.run(0, 6, &Request { flags: INLINE, inline: value.as_bytes(), ..write });
}

fn atomics(bench: &mut Bench<'_>) {
    let sges = [bench.sge(64, 8)];
    let before = bench.word(1024);
    for (number, (opcode, compare_add, swap)) in [
        (op::ATOMIC_FETCH_AND_ADD, 5, 0),
        (op::ATOMIC_FETCH_AND_ADD, u64::MAX, 0),
        (op::ATOMIC_CMP_AND_SWP, before, 1),
        (op::ATOMIC_CMP_AND_SWP, before.wrapping_add(4), 77),
    ]
    .into_iter()
    .enumerate()
    {
        let part = atomic(BASE + 1024, bench.writable, compare_add, swap);
        bench.run(0, number as u64, &request(opcode, part.as_bytes(), &sges));
    }
}

fn flushes(bench: &mut Bench<'_>) {
    for level in [selectivity_level::RANGE, selectivity_level::MR] {
        for (length, address) in [(64, BASE), (0, BASE), (64, 3)] {
            if level == selectivity_level::RANGE && address == 3 {
                continue;
            }
            let part = SendWrFlush {
                remote_addr: address,
                length,
                rkey: bench.writable,
                r#type: PlacementType::GLOBAL.bits() as u8,
                level: level as u8,
                ..Default::default()
            };
            bench.run(0, 1, &Request { length: Some(length), ..request(op::FLUSH, part.as_bytes(), &[]) });
        }
    }
}

fn shared_receives(bench: &mut Bench<'_>) {
    for number in 0..6 {
        bench.receive(1, 100 + number, &[bench.sge(4096 + number * 8, 8)]);
    }
    let sges = [bench.sge(0, 8)];
    for number in 0..4 {
        let from = number as usize % 2;
        bench.run(from, number, &request(op::SEND, &[], &sges));
    }
    // Too long for the receive.
    let sges = [bench.sge(0, 9)];
    bench.run(0, 9, &request(op::SEND, &[], &sges));
}

/// Binds a window to memory that may be written.
pub(super) fn bind(bench: &Bench<'_>, mw_rkey: u32, rkey: u32, access: AccessFlags) -> SendWrMw {
    let mr_lkey = bench.writable;
    SendWrMw { addr: BASE + 64, length: 256, mr_lkey, mw_rkey, rkey, access: access.bits() }
}

fn windows(bench: &mut Bench<'_>) {
    let all = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let (first, second) = (bench.window(mw_type::TYPE_1), bench.window(mw_type::TYPE_2));
    for (wr_id, part) in [
        (1, bind(bench, first, first + 1, all)),
        (2, SendWrMw { length: 0, ..bind(bench, first & !0xff | (first + 1) & 0xff, first + 2, all) }),
        (3, bind(bench, second, second + 3, AccessFlags::REMOTE_READ)),
    ] {
        bench.run(0, wr_id, &request(op::BIND_MW, part.as_bytes(), &[]));
    }
    let key = second & !0xff | (second + 3) & 0xff;
    bench.run(0, 4, &Request { ex: key, ..request(op::LOCAL_INV, &[], &[]) });
    // Bound already, to a region that is not there: the QP breaks.
    let part = SendWrMw { mr_lkey: 0x77_7700, ..bind(bench, key, key + 1, all) };
    bench.run(0, 5, &request(op::BIND_MW, part.as_bytes(), &[]));
}

fn windows_in_use(bench: &mut Bench<'_>) {
    let all = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let window = bench.window(mw_type::TYPE_2);
    let part = bind(bench, window, window + 1, all);
    bench.run(0, 1, &request(op::BIND_MW, part.as_bytes(), &[]));
    let key = window & !0xff | (window + 1) & 0xff;
    let (sges, part) = ([bench.sge(1000, 32)], rdma(BASE + 64, key));
    for opcode in [op::RDMA_WRITE, op::RDMA_READ] {
        bench.run(1, 2, &request(opcode, part.as_bytes(), &sges));
    }
    bench.receive(0, 100, &[bench.sge(2000, 32)]);
    bench.run(1, 3, &Request { ex: key, ..request(op::SEND_WITH_INV, &[], &sges) });
    // It is bound no longer.
    bench.run(1, 4, &request(op::RDMA_WRITE, part.as_bytes(), &sges));
}

fn batch(bench: &mut Bench<'_>) {
    for number in 0..10 {
        bench.receive(1, 100 + number, &[bench.sge(4096 + 16 * number, 16)]);
        let sges = [bench.sge(number * 16, 16)];
        let flags = if number % 3 == 0 { SIGNALED } else { 0 };
        bench.post(0, number, &Request { flags, ..request(op::SEND, &[], &sges) });
    }
    bench.ring(0);
    bench.settle();
}

fn events(bench: &mut Bench<'_>) {
    let solicited = SIGNALED | SendFlags::SOLICITED.bits();
    for number in 0..6 {
        bench.receive(1, 100 + number, &[]);
    }
    bench.arm(1, RECEIVES, true);
    bench.run(0, 1, &request(op::SEND, &[], &[]));
    bench.run(0, 2, &Request { flags: solicited, ..request(op::SEND, &[], &[]) });
    bench.run(0, 3, &Request { flags: solicited, ..request(op::SEND, &[], &[]) });
    bench.arm(1, RECEIVES, false);
    bench.arm(1, RECEIVES, true);
    bench.arm(0, SENDS, true);
    bench.run(0, 4, &request(op::SEND, &[], &[]));
    bench.arm(0, SENDS, false);
    bench.run(0, 5, &request(op::SEND, &[], &[]));
    bench.arm(1, RECEIVES, true);
    let wrong = [Sge { lkey: 3, ..bench.sge(0, 1) }];
    bench.run(0, 6, &request(op::SEND, &[], &wrong));
}

fn overrun(bench: &mut Bench<'_>) {
    for number in 0..4 {
        bench.receive(1, 100 + number, &[]);
    }
    for number in 0..2 {
        bench.run(0, number, &Request { flags: 0, ..request(op::SEND, &[], &[]) });
    }
}

fn other_states(bench: &mut Bench<'_>) {
    bench.receive(1, 100, &[]);
    bench.modify(0, qp_state::SQD);
    bench.drained(0);
    bench.post(0, 1, &request(op::SEND, &[], &[]));
    bench.ring(0);
    bench.modify(0, qp_state::ERR);
    bench.settle();
    // What comes then is flushed too.
    bench.receive(0, 101, &[]);
    bench.run(0, 2, &request(op::SEND, &[], &[]));
    bench.run(0, 3, &Request { flags: 0, ..request(77, &[], &[]) });
    bench.modify(0, qp_state::RESET);
    bench.ring(0);
}

fn nobody(bench: &mut Bench<'_>) {
    bench.receive(0, 100, &[]);
    bench.run(0, 1, &request(op::SEND, &[], &[]));
    bench.run(0, 2, &Request { flags: 0, ..request(op::SEND, &[], &[]) });
}

fn no_receive(bench: &mut Bench<'_>) {
    bench.run(0, 1, &request(op::SEND, &[], &[]));
    bench.run(0, 2, &request(op::SEND, &[], &[]));
}

fn unreliable(bench: &mut Bench<'_>) {
    let key = bench.writable;
    let mut count = 0;
    for length in [0, 1, 1024, 1025, 3000] {
        let sges = [bench.sge(0, length)];
        bench.receive(1, 100, &[bench.sge(4096, 3000)]);
        bench.run(0, 1, &request(op::SEND, &[], &sges));
        count += 1;
        bench.wait_for(1, count);
        let part = rdma(BASE + 4096, key);
        bench.run(0, 2, &request(op::RDMA_WRITE, part.as_bytes(), &sges));
        bench.receive(1, 101, &[]);
        bench.run(0, 3, &Request { ex: 9, ..request(op::RDMA_WRITE_WITH_IMM, part.as_bytes(), &sges) });
        count += 1;
        bench.wait_for(1, count);
    }
    // Nobody hears of these, and the next one arrives.
    let (part, sges) = (rdma(BASE + HALF, bench.readable), [bench.sge(0, 10)]);
    bench.run(0, 4, &request(op::RDMA_WRITE, part.as_bytes(), &sges));
    bench.run(0, 5, &request(op::SEND, &[], &sges));
    bench.receive(1, 102, &[bench.sge(5000, 10)]);
    bench.run(0, 6, &request(op::SEND, &[], &sges));
    bench.wait_for(1, count + 1);
    bench.run(0, 7, &request(op::RDMA_READ, part.as_bytes(), &sges));
}

fn datagrams(bench: &mut Bench<'_>) {
    let to = |bench: &Bench<'_>, remote_qkey| SendWrUd {
        remote_qpn: bench.qps[1].number,
        remote_qkey,
        ah_num: bench.ah,
        ..Default::default()
    };
    let (right, wrong) = (to(bench, 0x1111_1111), to(bench, 0x1111_1112));
    let mut count = 0;
    for (opcode, length) in [(op::SEND, 0), (op::SEND, 1), (op::SEND_WITH_IMM, 100), (op::SEND, 1024)] {
        bench.receive(1, 100, &[bench.sge(4096, 40), bench.sge(5000, 1024)]);
        let sges = [bench.sge(0, length)];
        bench.run(0, 1, &Request { ex: 3, ..request(opcode, right.as_bytes(), &sges) });
        count += 1;
        bench.wait_for(1, count);
        bench.forget_header(4096);
    }
    // Not taken, not sent, and not received.
    bench.run(0, 2, &request(op::SEND, wrong.as_bytes(), &[]));
    let sges = [bench.sge(0, 1025)];
    bench.run(0, 3, &request(op::SEND, right.as_bytes(), &sges));
    bench.run(0, 4, &request(op::SEND, right.as_bytes(), &[]));
    // No room for the header.
    bench.receive(1, 101, &[bench.sge(4096, 39)]);
    bench.run(0, 5, &request(op::SEND, right.as_bytes(), &[]));
    // An operation that datagrams do not have.
    bench.run(0, 6, &request(op::RDMA_WRITE, right.as_bytes(), &[]));
}

fn group(bench: &mut Bench<'_>) {
    // The network leads datagrams of the group here.
    let network = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let [address, interface] = [GROUP, GID].map(|gid| Ipv6Addr::from(gid).to_ipv4_mapped().unwrap());
    network.join_multicast_v4(&address, &interface).unwrap();
    bench.join_group(0);
    bench.join_group(1);
    let ah_num = bench.group_ah();
    let part = SendWrUd { remote_qpn: MULTICAST_QPN, remote_qkey: 0x1111_1111, ah_num, ..Default::default() };
    bench.receive(0, 100, &[bench.sge(4096, 100)]);
    bench.receive(1, 101, &[bench.sge(5000, 100)]);
    let sges = [bench.sge(0, 10)];
    bench.run(0, 1, &request(op::SEND, part.as_bytes(), &sges));
    bench.wait_for(0, 1);
    bench.wait_for(1, 1);
    bench.forget_header(4096);
    bench.forget_header(5000);
}

fn write(bench: &mut Bench<'_>) {
    let (part, sges) = (rdma(BASE + 4096, bench.writable), [bench.sge(0, 8)]);
    bench.run(0, 1, &request(op::RDMA_WRITE, part.as_bytes(), &sges));
}

fn read(bench: &mut Bench<'_>) {
    let (part, sges) = (rdma(BASE + 4096, bench.writable), [bench.sge(0, 8)]);
    bench.run(0, 1, &request(op::RDMA_READ, part.as_bytes(), &sges));
}

fn fetch_add(bench: &mut Bench<'_>) {
    let (part, sges) = (atomic(BASE + 4096, bench.writable, 1, 0), [bench.sge(0, 8)]);
    bench.run(0, 1, &request(op::ATOMIC_FETCH_AND_ADD, part.as_bytes(), &sges));
}

fn flush(bench: &mut Bench<'_>) {
    let placement = PlacementType::GLOBAL.bits() as u8;
    let part = SendWrFlush {
        remote_addr: BASE,
        length: 8,
        rkey: bench.writable,
        r#type: placement,
        ..Default::default()
    };
    bench.run(0, 1, &Request { length: Some(8), ..request(op::FLUSH, part.as_bytes(), &[]) });
}
