//! Atomic operations and fences.

use nix::errno::Errno;
use uverbs::{
    AccessFlags, CompletionOpcode, CompletionStatus, PostReason, RemoteMemory, SendFlags, SendRequest,
};
use uverbs_ioctl::uapi::user_verbs::DeviceCapFlags;

use crate::common::{
    End, Pair, Setup, capabilities, open, pattern, poll_for, poll_for_none, refused, succeeded,
};

crate::cases! {
    Shared compare_swap_and_fetch_add;
    Shared results_are_scattered_and_no_longer_than_they_are;
    Shared what_would_fail_late_is_refused;
    Shared vb_15_access_is_needed_at_the_peer;
    Shared fetch_and_add_from_two_peers;
    Shared sp_2_fences_wait_for_reads_and_atomics;
    Shared atomic_writes;
}

fn setup() -> Setup {
    let access = AccessFlags::REMOTE_ATOMIC | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    Setup { access, ..Setup::default() }
}

fn word(end: &End, offset: usize) -> u64 {
    u64::from_ne_bytes(end.bytes(offset..offset + 8).try_into().unwrap())
}

/// Posts one request, as a list or as a batch, and takes its completion, which has to be of this operation and of 8 bytes.
fn execute(end: &mut End, request: SendRequest<'_>, batch: bool, opcode: CompletionOpcode) {
    let request = request.signaled();
    if batch {
        end.qp.post_send().push(&request).submit().unwrap();
    } else {
        end.qp.post_send_list(&[request]).unwrap();
    }
    let done = poll_for(&mut end.cq, 1)[0];
    let success = done.success().unwrap();
    assert_eq!((done.wr_id(), success.opcode()), (request.wr_id, opcode));
    if opcode != CompletionOpcode::AtomicWrite {
        assert_eq!(success.byte_len(), 8);
    }
}

fn compare_swap_and_fetch_add() {
    let Pair { mut a, mut b } = setup().pair();
    let at = b.remote(1024);
    let result = [a.memory.sge(8..16)];
    for batch in [false, true] {
        b.memory.write(1016, &[0x5a; 24]);
        b.memory.write(1024, &40_u64.to_ne_bytes());
        for (request, was, is) in [
            (SendRequest::fetch_add(1, &result, at, 2), 40, 42),
            (SendRequest::fetch_add(2, &result, at, 0), 42, 42),
            (SendRequest::fetch_add(3, &result, at, u64::MAX), 42, 41),
            (SendRequest::fetch_add(4, &result, at, 1 << 63), 41, (1 << 63) + 41),
            (SendRequest::fetch_add(5, &result, at, (1 << 63) - 30), (1 << 63) + 41, 11),
        ] {
            execute(&mut a, request, batch, CompletionOpcode::FetchAdd);
            assert_eq!((word(&a, 8), word(&b, 1024)), (was, is), "fetch and add {}", request.wr_id);
        }
        let new = 0x0102_0304_0506_0708;
        for (request, was, is) in [
            (SendRequest::compare_swap(6, &result, at, 12, new), 11, 11),
            (SendRequest::compare_swap(7, &result, at, 11, new), 11, new),
            (SendRequest::compare_swap(8, &result, at, 11, 5), new, new),
            (SendRequest::compare_swap(9, &result, at, new, u64::MAX), new, u64::MAX),
        ] {
            execute(&mut a, request, batch, CompletionOpcode::CompareSwap);
            assert_eq!((word(&a, 8), word(&b, 1024)), (was, is), "compare and swap {}", request.wr_id);
        }
        // Nothing beside them was touched.
        assert_eq!((b.bytes(1016..1024), b.bytes(1032..1040)), (vec![0x5a; 8], vec![0x5a; 8]));
        assert_eq!((word(&a, 0), word(&a, 16)), (0, 0));
    }
    poll_for_none(&mut b.cq);
}

fn results_are_scattered_and_no_longer_than_they_are() {
    let Pair { mut a, mut b } = setup().pair();
    let value = pattern(3, 8);
    b.memory.write(0, &value);
    a.memory.write(0, &[0xa5; 256]);
    let result = [a.memory.sge(0..3), a.memory.sge(100..100), a.memory.sge(50..150)];
    let request = SendRequest::fetch_add(1, &result, b.remote(0), 0);
    execute(&mut a, request, false, CompletionOpcode::FetchAdd);
    assert_eq!([a.bytes(0..3), a.bytes(50..55)].concat(), value);
    assert!([a.bytes(3..50), a.bytes(55..256)].concat().iter().all(|byte| *byte == 0xa5));
}

fn what_would_fail_late_is_refused() {
    let Pair { mut a, mut b } = setup().pair();
    let (result, short) = ([a.memory.sge(0..8)], [a.memory.sge(0..3), a.memory.sge(8..12)]);
    let five = [a.memory.sge(0..8); 5];
    let at = b.remote(64);
    let odd = RemoteMemory { address: at.address + 4, ..at };
    let inline: [&[u8]; 1] = [&[0; 8]];
    let misaligned = PostReason::Misaligned { address: odd.address };
    let add = SendRequest::fetch_add(1, &result, at, 1);
    for (request, reason) in [
        (SendRequest::fetch_add(1, &result, odd, 1), misaligned),
        (SendRequest::compare_swap(1, &result, odd, 1, 1), misaligned),
        (SendRequest::fetch_add(1, &short, at, 1), PostReason::ResultTooShort { length: 7 }),
        (SendRequest::compare_swap(1, &[], at, 1, 1), PostReason::ResultTooShort { length: 0 }),
        (SendRequest::fetch_add(1, &five, at, 1), PostReason::TooManySges { given: 5, most: 4 }),
        (SendRequest { payload: uverbs::Payload::Inline(&inline), ..add }, PostReason::InlineRead),
        (
            SendRequest { payload: uverbs::Payload::Sges(&result), ..SendRequest::local_invalidate(1, 7) },
            PostReason::NoPayload,
        ),
    ] {
        let list = [SendRequest::send(0, &[]), request, SendRequest::send(2, &[])];
        let batch = list.iter().fold(a.qp.post_send(), |batch, request| batch.push(request));
        let error = batch.submit().unwrap_err();
        assert_eq!((error.index, error.reason, error.errno()), (1, reason, Errno::EINVAL as i32));
        // In a list, the one before it is posted.
        b.receive_nothing(5..6);
        let error = a.qp.post_send_list(&list).unwrap_err();
        assert_eq!((error.index, error.reason, error.errno()), (1, reason, Errno::EINVAL as i32));
        assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [5]);
    }
    let address = format!("{:#x}", odd.address);
    let request = SendRequest::fetch_add(1, &result, odd, 1);
    refused(a.qp.post_send_list(&[request]), Errno::EINVAL, &[&*address, "no multiple of 8"]);
    refused(
        a.qp.post_send_list(&[SendRequest::fetch_add(1, &short, at, 1)]),
        Errno::EINVAL,
        &["7 bytes of room"],
    );
    assert_eq!(word(&b, 64), 0);
    execute(&mut a, add, false, CompletionOpcode::FetchAdd);
    assert_eq!(word(&b, 64), 1);
}

fn vb_15_access_is_needed_at_the_peer() {
    // The region does not allow it; the QP does not.
    let region_denies =
        (AccessFlags::REMOTE_ATOMIC, AccessFlags::REMOTE_WRITE, CompletionStatus::REM_ACCESS_ERR);
    let qp_denies =
        (AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC, CompletionStatus::REM_INV_REQ_ERR);
    for (of_qp, of_region, status) in [region_denies, qp_denies] {
        let Pair { mut a, b } = Setup { access: of_qp, ..setup() }.pair();
        let domain = b.memory.protection_domain();
        let region = domain.allocate(4096, AccessFlags::LOCAL_WRITE | of_region).unwrap();
        let at = RemoteMemory { address: region.address(), rkey: region.rkey() };
        let result = [a.memory.sge(0..8)];
        // Without a flag: failures complete all the same, and what comes after is flushed.
        a.qp.post_send_list(&[
            SendRequest::fetch_add(77, &result, at, 1),
            SendRequest::compare_swap(78, &result, at, 0, 1),
        ])
        .unwrap();
        let failed: Vec<_> = poll_for(&mut a.cq, 2)
            .iter()
            .map(|completion| completion.success().unwrap_err())
            .map(|error| (error.wr_id, error.qp_num, error.status))
            .collect();
        let number = a.qp.qp_num();
        assert_eq!(failed, [(77, number, status), (78, number, CompletionStatus::WR_FLUSH_ERR)]);
        let mut bytes = [0xff; 8];
        region.read(0, &mut bytes);
        assert_eq!(bytes, [0; 8]);
    }
}

fn fetch_and_add_from_two_peers() {
    const EACH: u64 = 500;
    let context = open();
    let pairs = [(); 2].map(|()| setup().pair_in(&context));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC;
    let counter = pairs[0].b.memory.protection_domain().allocate(4096, access).unwrap();
    // Both pairs add to the same word: one in that region, one in a region of the same memory in the other's domain.
    let other = pairs[1].b.memory.protection_domain();
    // SAFETY: `counter` outlives it, and nothing refers to the memory.
    let again = unsafe { other.register_raw(counter.as_ptr(), 4096, access) }.unwrap();
    let keys = [counter.rkey(), again.rkey()];
    let address = counter.address();
    let mut seen: Vec<u64> = std::thread::scope(|scope| {
        let adders = pairs.into_iter().zip(keys).map(|(pair, rkey)| {
            scope.spawn(move || {
                let Pair { mut a, b: _peer } = pair;
                let result = [a.memory.sge(0..8)];
                let at = RemoteMemory { address, rkey };
                let mut seen = Vec::new();
                for wr_id in 0..EACH {
                    let request = SendRequest::fetch_add(wr_id, &result, at, 1);
                    execute(&mut a, request, false, CompletionOpcode::FetchAdd);
                    seen.push(word(&a, 0));
                }
                assert!(seen.is_sorted(), "{seen:?}");
                seen
            })
        });
        adders.collect::<Vec<_>>().into_iter().flat_map(|adder| adder.join().unwrap()).collect()
    });
    seen.sort_unstable();
    assert_eq!(seen, (0..2 * EACH).collect::<Vec<_>>());
}

fn sp_2_fences_wait_for_reads_and_atomics() {
    let Pair { mut a, mut b } = setup().pair();
    let result = [a.memory.sge(0..8)];
    for round in 0..200_u64 {
        b.memory.write(1024, &(round + 1_000_000).to_ne_bytes());
        let (counter, source) = (b.remote(512), b.remote(1024));
        b.receive(0, 0..8);
        b.receive(1, 8..16);
        a.qp.post_send()
            .push(&SendRequest::fetch_add(0, &result, counter, 1))
            .push(&SendRequest::send(1, &result).flags(SendFlags::FENCE))
            .push(&SendRequest::rdma_read(2, &result, source).flags(SendFlags::FENCE))
            .push(&SendRequest::send(3, &result).flags(SendFlags::FENCE).signaled())
            .submit()
            .unwrap();
        assert_eq!(succeeded(&poll_for(&mut b.cq, 2)), [0, 1]);
        assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [3]);
        assert_eq!((word(&b, 0), word(&b, 8)), (round, round + 1_000_000));
    }
}

fn atomic_writes() {
    let context = open();
    let Pair { mut a, mut b } = setup().pair_in(&context);
    let value = pattern(9, 8).try_into().unwrap();
    let to = b.remote(128);
    let request = SendRequest::atomic_write(1, value, to);
    if !capabilities(&context).contains(DeviceCapFlags::ATOMIC_WRITE) {
        let error = a.qp.post_send_list(&[request]).unwrap_err();
        assert_eq!((error.reason, error.errno()), (PostReason::NoSuchOperation, Errno::EINVAL as i32));
        poll_for_none(&mut a.cq);
        return;
    }
    for batch in [false, true] {
        b.memory.write(120, &[0; 24]);
        execute(&mut a, request, batch, CompletionOpcode::AtomicWrite);
        assert_eq!(b.bytes(120..144), [[0; 8], value, [0; 8]].concat());
    }
    // It comes after what was written before, and every slot of the queue serves for it.
    for round in 0..40_u64 {
        let big = pattern(round as usize, 3000);
        a.memory.write(1000, &big);
        let sges = [a.memory.sge(1000..4000)];
        b.receive_nothing(0..1);
        a.qp.post_send()
            .push(&SendRequest::rdma_write(2, &sges, b.remote(1000)))
            .push(&SendRequest::atomic_write(3, round.to_ne_bytes(), to).flags(SendFlags::FENCE))
            .push(&SendRequest::rdma_write(4, &[], to).immediate(9).signaled())
            .submit()
            .unwrap();
        assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [4]);
        assert_eq!(poll_for(&mut b.cq, 1)[0].success().unwrap().immediate(), Some(9));
        assert_eq!(word(&b, 128), round);
        assert!(b.bytes(1000..4000) == big);
    }
    let odd = RemoteMemory { address: to.address + 1, ..to };
    let error = a.qp.post_send_list(&[SendRequest::atomic_write(1, value, odd)]).unwrap_err();
    assert_eq!(error.reason, PostReason::Misaligned { address: odd.address });
    let result = [a.memory.sge(0..8)];
    let error =
        a.qp.post_send_list(&[SendRequest { payload: uverbs::Payload::Sges(&result), ..request }])
            .unwrap_err();
    assert_eq!(error.reason, PostReason::NoPayload);
    // Beyond the region.
    let beyond = RemoteMemory { address: to.address + 4096, ..to };
    a.qp.post_send_list(&[SendRequest::atomic_write(5, value, beyond)]).unwrap();
    let error = poll_for(&mut a.cq, 1)[0].success().unwrap_err();
    assert_eq!((error.wr_id, error.status), (5, CompletionStatus::REM_ACCESS_ERR));
}
