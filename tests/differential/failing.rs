//! Requests that fail.

use uverbs_ioctl::uapi::ioctl_verbs::AccessFlags;
use uverbs_ioctl::uapi::rxe::{SendWrFlush, SendWrMw, Sge};
use uverbs_ioctl::uapi::user_verbs::{PlacementType, wr_opcode as op};
use uverbs_ioctl::uapi::values::mw_type;
use zerocopy::IntoBytes;

use super::bench::{BASE, Bench, HALF, Request};
use super::queues::{INLINE, atomic, bind, rdma, request};

/// Posts receives at both ends and a request that fails, and then two more. (Sent at once, they might have arrived before the first has
/// failed.)
fn fails(bench: &mut Bench<'_>, wrong: &Request<'_>) {
    for index in 0..2 {
        bench.receive(index, 100, &[bench.sge(4096, 64)]);
        bench.receive(index, 101, &[]);
    }
    bench.run(0, 1, wrong);
    let sges = [bench.sge(0, 8)];
    bench.post(0, 2, &Request { flags: 0, ..request(op::SEND, &[], &sges) });
    bench.post(0, 3, &request(op::SEND, &[], &sges));
    bench.ring(0);
    bench.settle();
}

/// What does it, by its name.
type Failing = (&'static str, fn(&mut Bench<'_>));

pub(super) const FAILING: &[Failing] = &[
    ("a local key of nothing", |bench| {
        let sges = [Sge { lkey: 0x1234_5678, ..bench.sge(0, 8) }];
        fails(bench, &request(op::SEND, &[], &sges));
    }),
    ("a local key of nothing, for a write", |bench| {
        let (part, sges) = (rdma(BASE, bench.writable), [Sge { lkey: 7, ..bench.sge(0, 8) }]);
        fails(bench, &request(op::RDMA_WRITE, part.as_bytes(), &sges));
    }),
    ("the second local key is wrong", |bench| {
        let sges = [bench.sge(0, 8), Sge { lkey: bench.writable ^ 1, ..bench.sge(0, 8) }];
        fails(bench, &request(op::SEND, &[], &sges));
    }),
    ("beyond the end of the local region", |bench| {
        let sges = [bench.sge(HALF - 4, 8)];
        fails(bench, &request(op::SEND, &[], &sges));
    }),
    ("before the local region", |bench| {
        let sges = [Sge { addr: BASE - 1, ..bench.sge(0, 8) }];
        fails(bench, &request(op::SEND, &[], &sges));
    }),
    ("around the end of all addresses", |bench| {
        let sges = [Sge { addr: u64::MAX - 3, ..bench.sge(0, 8) }];
        fails(bench, &request(op::SEND, &[], &sges));
    }),
    ("more SGEs than there may be", |bench| {
        let sges = [bench.sge(0, 1); 4];
        fails(bench, &Request { num_sge: Some(5), ..request(op::SEND, &[], &sges) });
    }),
    ("more bytes than the SGEs have", |bench| {
        let sges = [bench.sge(0, 8)];
        fails(bench, &Request { length: Some(9), ..request(op::SEND, &[], &sges) });
    }),
    ("an operation that there is not", |bench| fails(bench, &request(77, &[], &[]))),
    ("an operation that the driver lacks", |bench| fails(bench, &request(op::TSO, &[], &[]))),
    ("masked atomics", |bench| fails(bench, &request(op::MASKED_ATOMIC_FETCH_AND_ADD, &[], &[]))),
    ("a remote key of nothing", |bench| {
        let (part, sges) = (rdma(BASE, 0x1234_5678), [bench.sge(0, 8)]);
        fails(bench, &request(op::RDMA_WRITE, part.as_bytes(), &sges));
    }),
    ("a remote key of nothing, for a read", |bench| {
        let (part, sges) = (rdma(BASE, 0x1234_5678), [bench.sge(0, 8)]);
        fails(bench, &request(op::RDMA_READ, part.as_bytes(), &sges));
    }),
    ("a remote key of no window", |bench| {
        let (part, sges) = (rdma(BASE, 0x0f00_0077), [bench.sge(0, 8)]);
        fails(bench, &request(op::RDMA_WRITE, part.as_bytes(), &sges));
    }),
    ("beyond the end of the remote region", |bench| {
        let (part, sges) = (rdma(BASE + HALF - 4, bench.writable), [bench.sge(0, 8)]);
        fails(bench, &request(op::RDMA_WRITE, part.as_bytes(), &sges));
    }),
    ("beyond the end of the remote region, in the second packet", |bench| {
        bench.forget_numbers();
        let (part, sges) = (rdma(BASE + HALF - 1500, bench.writable), [bench.sge(0, 2000)]);
        fails(bench, &request(op::RDMA_WRITE, part.as_bytes(), &sges));
    }),
    ("beyond the end of the remote region, for a read", |bench| {
        let (part, sges) = (rdma(BASE + 2 * HALF - 4, bench.readable), [bench.sge(0, 8)]);
        fails(bench, &request(op::RDMA_READ, part.as_bytes(), &sges));
    }),
    ("a write to what may be read", |bench| {
        let (part, sges) = (rdma(BASE + HALF, bench.readable), [bench.sge(0, 8)]);
        fails(bench, &request(op::RDMA_WRITE, part.as_bytes(), &sges));
    }),
    ("a write with immediate data to what may be read", |bench| {
        let (part, sges) = (rdma(BASE + HALF, bench.readable), [bench.sge(0, 8)]);
        fails(bench, &request(op::RDMA_WRITE_WITH_IMM, part.as_bytes(), &sges));
    }),
    ("an atomic on what may be read", |bench| {
        let (part, sges) = (atomic(BASE + HALF, bench.readable, 1, 1), [bench.sge(0, 8)]);
        fails(bench, &request(op::ATOMIC_FETCH_AND_ADD, part.as_bytes(), &sges));
    }),
    ("an atomic on no whole word", |bench| {
        let (part, sges) = (atomic(BASE + 4, bench.writable, 1, 1), [bench.sge(0, 8)]);
        fails(bench, &request(op::ATOMIC_FETCH_AND_ADD, part.as_bytes(), &sges));
    }),
    ("an atomic beyond the end", |bench| {
        let (part, sges) = (atomic(BASE + HALF, bench.writable, 1, 1), [bench.sge(0, 8)]);
        fails(bench, &request(op::ATOMIC_CMP_AND_SWP, part.as_bytes(), &sges));
    }),
    ("an atomic write on no whole word", |bench| {
        let (part, value) = (rdma(BASE + 4, bench.writable), 5_u64);
        let wrong = request(op::ATOMIC_WRITE, part.as_bytes(), &[]);
        fails(bench, &Request { flags: INLINE, inline: value.as_bytes(), ..wrong });
    }),
    ("an atomic write to what may be read", |bench| {
        let (part, value) = (rdma(BASE + HALF, bench.readable), 5_u64);
        let wrong = request(op::ATOMIC_WRITE, part.as_bytes(), &[]);
        fails(bench, &Request { flags: INLINE, inline: value.as_bytes(), ..wrong });
    }),
    ("a read into what may be read", |bench| {
        let part = rdma(BASE, bench.writable);
        let sges = [Sge { addr: BASE + HALF, length: 8, lkey: bench.readable }];
        fails(bench, &request(op::RDMA_READ, part.as_bytes(), &sges));
    }),
    ("a read to a local key of nothing", |bench| {
        let (part, sges) = (rdma(BASE, bench.writable), [Sge { lkey: 7, ..bench.sge(0, 8) }]);
        fails(bench, &request(op::RDMA_READ, part.as_bytes(), &sges));
    }),
    ("an atomic with room for half a word", |bench| {
        let (part, sges) = (atomic(BASE, bench.writable, 1, 1), [bench.sge(64, 4)]);
        fails(bench, &request(op::ATOMIC_FETCH_AND_ADD, part.as_bytes(), &sges));
    }),
    ("a flush of a key of nothing", |bench| {
        let placement = PlacementType::GLOBAL.bits() as u8;
        let part =
            SendWrFlush { remote_addr: BASE, length: 8, rkey: 7, r#type: placement, ..Default::default() };
        fails(bench, &Request { length: Some(8), ..request(op::FLUSH, part.as_bytes(), &[]) });
    }),
    ("too long for the receive", |bench| {
        let sges = [bench.sge(0, 65)];
        fails(bench, &request(op::SEND, &[], &sges));
    }),
    ("too long for the receive, in the second packet", |bench| {
        bench.forget_numbers();
        let sges = [bench.sge(0, 2000)];
        fails(bench, &request(op::SEND, &[], &sges));
    }),
    ("a receive into what may be read", |bench| {
        bench.receive(1, 99, &[Sge { addr: BASE + HALF, length: 64, lkey: bench.readable }]);
        let sges = [bench.sge(0, 8)];
        fails(bench, &request(op::SEND, &[], &sges));
    }),
    ("a receive with a key of nothing", |bench| {
        bench.receive(1, 99, &[Sge { lkey: 7, ..bench.sge(0, 64) }]);
        let sges = [bench.sge(0, 8)];
        fails(bench, &request(op::SEND, &[], &sges));
    }),
    ("a receive beyond the end", |bench| {
        bench.receive(1, 99, &[bench.sge(HALF - 4, 64)]);
        let sges = [bench.sge(0, 8)];
        fails(bench, &request(op::SEND, &[], &sges));
    }),
    ("more inline bytes than there may be", |bench| {
        let wrong = request(op::SEND, &[], &[]);
        fails(bench, &Request { flags: INLINE, inline: &[5; 64], length: Some(65), ..wrong });
    }),
    ("a window that there is not", |bench| {
        let part = bind(bench, 0x0f12_3400, 0x0f12_3401, AccessFlags::REMOTE_READ);
        fails(bench, &request(op::BIND_MW, part.as_bytes(), &[]));
    }),
    ("a window beyond the end of its region", |bench| {
        let window = bench.window(mw_type::TYPE_2);
        let part = SendWrMw { length: HALF, ..bind(bench, window, window + 1, AccessFlags::REMOTE_READ) };
        fails(bench, &request(op::BIND_MW, part.as_bytes(), &[]));
    }),
    ("a window on a region that allows none", |bench| {
        let window = bench.window(mw_type::TYPE_2);
        let part = bind(bench, window, window + 1, AccessFlags::REMOTE_READ);
        let part = SendWrMw { addr: BASE + HALF, mr_lkey: bench.readable, ..part };
        fails(bench, &request(op::BIND_MW, part.as_bytes(), &[]));
    }),
    ("a window of no bytes", |bench| {
        let window = bench.window(mw_type::TYPE_2);
        let part = SendWrMw { length: 0, ..bind(bench, window, window + 1, AccessFlags::REMOTE_READ) };
        fails(bench, &request(op::BIND_MW, part.as_bytes(), &[]));
    }),
];
