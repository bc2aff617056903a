//! EFA: datagrams, RDMA and completion counters between two queue pairs of one device.

use std::collections::HashSet;
use std::thread;

use nix::errno::Errno;
use uverbs::{
    AccessFlags, AddressHandle, AddressVector, CompletionChannel, CompletionOpcode, CompletionQueue,
    CompletionStatus, Context, CounterOperations, CounterType, Destination, MemoryRegion, MemoryWindowType,
    ModifyQueuePair, PostReason, QueuePair, QueuePairCapabilities, QueuePairInit, QueuePairState,
    ReceiveRequest, RemoteMemory, SendFlags, SendRequest,
};

use crate::Kind;
use crate::common::{DEADLINE, PORT, open, own_gid, poll_for, poll_for_none, refused, succeeded, wait_until};

crate::cases! {
    Efa messages_arrive_whole;
    Efa memory_is_read_and_written;
    Efa datagrams_begin_with_room_for_a_header;
    Efa every_request_completes_once_across_threads;
    Efa a_full_queue_and_a_dropped_batch_post_nothing;
    Efa a_reset_forgets_what_was_there;
    Efa a_destroyed_queue_pair_leaves_nothing_to_the_next;
    Efa completions_raise_events;
    Efa failures_have_their_status;
    Efa what_cannot_be_is_refused;
    Efa counters_count_without_the_kernel;
    Efa destroying_says_what_is_in_use;
    Efa an_unsolicited_write_uses_up_no_receive;
    Efa a_receiver_that_is_not_ready_is_tried_as_often_as_said;
    FewEfa short_completions_tell_all_there_is;
    FewEfa what_the_device_cannot_do_is_refused;
}

/// How the model is configured.
pub(crate) fn kind() -> Kind {
    match std::env::var("UVERBS_TEST_EFA").as_deref() {
        Err(_) => Kind::Efa,
        Ok("few") => Kind::FewEfa,
        Ok("mute") => Kind::MuteEfa,
        Ok(other) => panic!("UVERBS_TEST_EFA={other}"),
    }
}

const QKEY: u32 = 0x1234;
const MEMORY: usize = 256 << 10;

/// One end.
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) region: MemoryRegion,
    channel: Option<CompletionChannel>,
}

/// Two ends in one domain, and the address of both.
pub(crate) struct Pair {
    pub(crate) a: End,
    pub(crate) b: End,
    pub(crate) address: AddressHandle,
    pub(crate) context: Context,
}

pub(crate) fn capabilities() -> QueuePairCapabilities {
    QueuePairCapabilities {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 64,
    }
}

pub(crate) fn start(qp: &mut QueuePair) {
    qp.modify(&ModifyQueuePair::datagram_init(PORT, QKEY)).unwrap();
    qp.modify(&ModifyQueuePair::datagram_ready_to_receive()).unwrap();
    qp.modify(&ModifyQueuePair::datagram_ready_to_send(0)).unwrap();
}

fn pair(init: for<'a> fn(&'a CompletionQueue) -> QueuePairInit<'a>, events: bool) -> Pair {
    let context = open();
    let domain = context.alloc_protection_domain().unwrap();
    let gid = own_gid(&context);
    let address =
        domain.create_address_handle(&AddressVector::global(PORT, gid.gid, gid.index as u8)).unwrap();
    let writes = if kind() == Kind::Efa { AccessFlags::REMOTE_WRITE } else { AccessFlags::empty() };
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | writes;
    let end = || {
        let channel = events.then(|| context.create_completion_channel().unwrap());
        let cq = context.create_completion_queue(64, channel.as_ref(), 0).unwrap();
        let init = QueuePairInit { capabilities: capabilities(), ..init(&cq) };
        let mut qp = domain.create_queue_pair(&init).unwrap();
        start(&mut qp);
        let region = domain.allocate(MEMORY, access).unwrap();
        End { qp, cq, region, channel }
    };
    let (a, b) = (end(), end());
    Pair { a, b, address, context }
}

pub(crate) fn srd() -> Pair {
    pair(|cq| QueuePairInit::scalable_reliable_datagram(cq), false)
}

pub(crate) fn to(address: &AddressHandle, qp_num: u32) -> Destination<'_> {
    Destination { address, qp_num, qkey: QKEY }
}

fn fill(region: &mut MemoryRegion, seed: u8) -> Vec<u8> {
    let bytes: Vec<u8> = (0..MEMORY).map(|index| (index as u8).wrapping_mul(31) ^ seed).collect();
    region.write(0, &bytes);
    bytes
}

fn contents(region: &MemoryRegion, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.read(0, &mut bytes);
    bytes
}

fn messages_arrive_whole() {
    let Pair { mut a, mut b, address, .. } = srd();
    let sent = fill(&mut a.region, 1);
    let b_num = b.qp.qp_num();
    for (wr_id, length) in [(1, 0), (2, 1), (3, 64), (4, 4096), (5, 8000)] {
        b.qp.post_receive(&[ReceiveRequest::new(100 + wr_id, &[b.region.sge(0..8192)])]).unwrap();
        let (one, two) = (length / 3, length);
        let sges = [a.region.sge(0..one), a.region.sge(one..two)];
        let request = SendRequest::send(wr_id, &sges).immediate(0x0102_0304).to(to(&address, b_num));
        a.qp.post_send_list(&[request]).unwrap();
        let done = poll_for(&mut a.cq, 1);
        let success = done[0].success().unwrap();
        assert_eq!((done[0].wr_id(), success.opcode()), (wr_id, CompletionOpcode::Send));
        assert_eq!(done[0].qp_num(), a.qp.qp_num());
        let arrived = poll_for(&mut b.cq, 1);
        let success = arrived[0].success().unwrap();
        assert_eq!((arrived[0].wr_id(), success.opcode()), (100 + wr_id, CompletionOpcode::Receive));
        assert_eq!((success.byte_len(), success.immediate()), (length as u32, Some(0x0102_0304)));
        assert_eq!((success.source_qp(), success.has_global_route()), (a.qp.qp_num(), false));
        assert_eq!(contents(&b.region, length), sent[..length]);
    }
    // Looked at one after the other.
    for wr_id in 0..3 {
        b.qp.post_receive(&[ReceiveRequest::new(wr_id, &[b.region.sge(0..64)])]).unwrap();
        let sges = [a.region.sge(0..64)];
        a.qp.post_send_list(&[SendRequest::send(wr_id, &sges).to(to(&address, b_num))]).unwrap();
    }
    for cq in [&mut a.cq, &mut b.cq] {
        let mut seen = 0;
        wait_until("three completions", || {
            let mut completions = cq.completions();
            while let Some(completion) = completions.next() {
                completion.success().unwrap();
                seen |= 1 << completion.wr_id();
            }
            seen == 0b111
        });
    }
    // Inline, from two places, into two places.
    let (first, second) = (b.region.sge(0..10), b.region.sge(10..100));
    b.qp.post_receive(&[ReceiveRequest::new(7, &[first, second])]).unwrap();
    let parts: [&[u8]; 2] = [&[1; 40], &[2; 24]];
    a.qp.post_send_list(&[SendRequest::send_inline(8, &parts).to(to(&address, b_num))]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [8]);
    let arrived = poll_for(&mut b.cq, 1);
    assert_eq!((arrived[0].wr_id(), arrived[0].success().unwrap().immediate()), (7, None));
    assert_eq!(contents(&b.region, 64), [&[1; 40][..], &[2; 24]].concat());
}

fn memory_is_read_and_written() {
    let Pair { mut a, mut b, address, .. } = srd();
    let b_num = b.qp.qp_num();
    let remote = RemoteMemory { address: b.region.address(), rkey: b.region.rkey() };
    let whole = [a.region.sge(0..MEMORY)];

    let there = fill(&mut b.region, 2);
    a.qp.post_send_list(&[SendRequest::rdma_read(1, &whole, remote).to(to(&address, b_num))]).unwrap();
    let done = poll_for(&mut a.cq, 1);
    assert_eq!(done[0].success().unwrap().opcode(), CompletionOpcode::RdmaRead);
    assert_eq!(contents(&a.region, MEMORY), there);

    let here = fill(&mut a.region, 3);
    a.qp.post_send_list(&[SendRequest::rdma_write(2, &whole, remote).to(to(&address, b_num))]).unwrap();
    let done = poll_for(&mut a.cq, 1);
    assert_eq!(done[0].success().unwrap().opcode(), CompletionOpcode::RdmaWrite);
    assert_eq!(contents(&b.region, MEMORY), here);

    b.qp.post_receive(&[ReceiveRequest::new(9, &[])]).unwrap();
    let request = SendRequest::rdma_write(3, &whole, remote).immediate(5).to(to(&address, b_num));
    a.qp.post_send_list(&[request]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [3]);
    let arrived = poll_for(&mut b.cq, 1);
    let success = arrived[0].success().unwrap();
    assert_eq!((arrived[0].wr_id(), success.opcode()), (9, CompletionOpcode::ReceiveRdmaWithImmediate));
    assert_eq!((success.byte_len(), success.immediate()), (MEMORY as u32, Some(5)));

    let parts: [&[u8]; 1] = [b"written inline"];
    a.qp.post_send_list(&[SendRequest::rdma_write_inline(4, &parts, remote).to(to(&address, b_num))])
        .unwrap();
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [4]);
    assert_eq!(contents(&b.region, 14), b"written inline");
}

fn datagrams_begin_with_room_for_a_header() {
    let Pair { mut a, mut b, address, .. } = pair(|cq| QueuePairInit::unreliable_datagram(cq), false);
    let sent = fill(&mut a.region, 4);
    b.qp.post_receive(&[ReceiveRequest::new(1, &[b.region.sge(0..2048)])]).unwrap();
    let sges = [a.region.sge(0..1000)];
    let request = SendRequest::send(2, &sges).to(to(&address, b.qp.qp_num()));
    refused(a.qp.post_send_list(&[request]), Errno::EINVAL, &["not signaled"]);
    a.qp.post_send_list(&[request.signaled()]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [2]);
    let arrived = poll_for(&mut b.cq, 1);
    let success = arrived[0].success().unwrap();
    assert!(success.has_global_route());
    assert_eq!(success.byte_len(), 1040);
    assert_eq!(contents(&b.region, 1040)[40..], sent[..1000]);
    let remote = RemoteMemory { address: 0, rkey: 0 };
    let write = SendRequest::rdma_write(3, &sges, remote).signaled().to(to(&address, b.qp.qp_num()));
    assert_eq!(a.qp.post_send_list(&[write]).unwrap_err().reason, PostReason::NoSuchOperation);
}

fn every_request_completes_once_across_threads() {
    const COUNT: u64 = 2000;
    let Pair { a, b, address, context: _context } = srd();
    let (mut sender, mut sent, region) = (a.qp, a.cq, a.region);
    let (mut receiver, mut arrived, landing) = (b.qp, b.cq, b.region);
    let b_num = receiver.qp_num();
    // Each queue is posted to by one thread and polled by another.
    thread::scope(|scope| {
        scope.spawn(move || {
            let sges = [landing.sge(0..64)];
            let mut next = 0;
            wait_until("all receives posted", || {
                while next < COUNT {
                    match receiver.post_receive(&[ReceiveRequest::new(next, &sges)]) {
                        Ok(()) => next += 1,
                        Err(error) if error.reason == PostReason::QueueFull => return false,
                        Err(error) => panic!("{error}"),
                    }
                }
                true
            });
            // They stay there until all messages have been taken.
            thread::sleep(DEADLINE / 10);
            (receiver, landing)
        });
        scope.spawn(move || {
            let mut next = 0;
            wait_until("all sends posted", || {
                while next < COUNT {
                    let sges = [region.sge(0..64)];
                    let requests: Vec<_> = (next..COUNT.min(next + 5))
                        .map(|wr_id| SendRequest::send(wr_id, &sges).to(to(&address, b_num)))
                        .collect();
                    match sender.post_send_list(&requests) {
                        Ok(()) => next += requests.len() as u64,
                        Err(error) if error.reason == PostReason::QueueFull => {
                            next += error.index as u64;
                            return false;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                true
            });
            thread::sleep(DEADLINE / 10);
            (sender, region)
        });
        for cq in [&mut sent, &mut arrived] {
            scope.spawn(move || {
                let mut seen = HashSet::new();
                for wr_id in succeeded(&poll_for(cq, COUNT as usize)) {
                    assert!(wr_id < COUNT && seen.insert(wr_id), "{wr_id} twice");
                }
            });
        }
    });
}

fn a_full_queue_and_a_dropped_batch_post_nothing() {
    let mut pair = srd();
    let depth = pair.a.qp.capabilities().max_send_wr as usize;
    let sges = [pair.a.region.sge(0..8)];
    let (address, b_num) = (&pair.address, pair.b.qp.qp_num());
    let request = |wr_id| SendRequest::send(wr_id, &sges).to(to(address, b_num));
    // Nobody has posted a receive: all of them wait.
    let too_many: Vec<_> = (0..=depth as u64).map(request).collect();
    let error = {
        let batch = too_many.iter().fold(pair.a.qp.post_send(), |batch, request| batch.push(request));
        batch.submit().unwrap_err()
    };
    assert_eq!((error.index, error.reason), (depth, PostReason::QueueFull));
    drop(pair.a.qp.post_send().push(&request(77)));
    poll_for_none(&mut pair.a.cq);
    let error = pair.a.qp.post_send_list(&too_many).unwrap_err();
    assert_eq!((error.index, error.reason), (depth, PostReason::QueueFull));
    for wr_id in 0..depth as u64 {
        pair.b.qp.post_receive(&[ReceiveRequest::new(wr_id, &[pair.b.region.sge(0..8)])]).unwrap();
        let arrived = poll_for(&mut pair.b.cq, 1);
        assert_eq!(succeeded(&arrived), [wr_id]);
    }
    let mut done = succeeded(&poll_for(&mut pair.a.cq, depth));
    done.sort_unstable();
    assert!(done.into_iter().eq(0..depth as u64));
}

fn a_reset_forgets_what_was_there() {
    let Pair { mut a, mut b, address, .. } = srd();
    let sges = [a.region.sge(0..8)];
    let b_num = b.qp.qp_num();
    for round in 0..3_u64 {
        b.qp.post_receive(&[ReceiveRequest::new(round, &[b.region.sge(0..8)])]).unwrap();
        a.qp.post_send_list(&[SendRequest::send(10 + round, &sges).to(to(&address, b_num))]).unwrap();
        assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [round]);
        // The send has completed, but nobody has polled for it.
        thread::sleep(crate::common::MOMENT);
        b.qp.post_receive(&[ReceiveRequest::new(99, &[b.region.sge(0..8)])]).unwrap();
        for qp in [&mut a.qp, &mut b.qp] {
            qp.modify(&ModifyQueuePair::to(QueuePairState::Reset)).unwrap();
            start(qp);
        }
        poll_for_none(&mut a.cq);
        poll_for_none(&mut b.cq);
    }
}

fn a_destroyed_queue_pair_leaves_nothing_to_the_next() {
    let Pair { mut a, mut b, address, context: _context } = srd();
    let domain = address.protection_domain().clone();
    let mut numbers = HashSet::new();
    // Long enough for numbers to come back.
    for round in 0..600_u64 {
        numbers.insert(a.qp.qp_num());
        b.qp.post_receive(&[ReceiveRequest::new(round, &[b.region.sge(0..8)])]).unwrap();
        let sges = [a.region.sge(0..8)];
        let request = SendRequest::send(round, &sges).to(to(&address, b.qp.qp_num()));
        a.qp.post_send_list(&[request]).unwrap();
        assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [round]);
        // Its completion stays in the CQ, for the next QP to find.
        let init = QueuePairInit {
            capabilities: capabilities(),
            ..QueuePairInit::scalable_reliable_datagram(&a.cq)
        };
        a.qp.destroy().unwrap();
        a.qp = domain.create_queue_pair(&init).unwrap();
        start(&mut a.qp);
        if round % 32 == 31 {
            poll_for_none(&mut a.cq);
        }
    }
    assert!(numbers.len() < 600, "no number came back");
}

fn completions_raise_events() {
    let mut pair = pair(|cq| QueuePairInit::scalable_reliable_datagram(cq), true);
    let sges = [pair.a.region.sge(0..8)];
    refused(pair.b.cq.arm(true), Errno::EOPNOTSUPP, &["solicited"]);
    for wr_id in 0..20 {
        pair.b.qp.post_receive(&[ReceiveRequest::new(wr_id, &[pair.b.region.sge(0..8)])]).unwrap();
        let request = SendRequest::send(wr_id, &sges).to(to(&pair.address, pair.b.qp.qp_num()));
        pair.a.qp.post_send_list(&[request]).unwrap();
        for end in [&mut pair.a, &mut pair.b] {
            let mut completions = [Default::default(); 2];
            let found = end.cq.wait(&mut completions, Some(DEADLINE)).unwrap();
            assert_eq!(succeeded(found), [wr_id]);
        }
    }
    // An event for a CQ that is armed before anything completes.
    let End { qp, cq, region, channel } = &mut pair.b;
    let channel = channel.as_ref().unwrap();
    while let Some(event) = channel.wait(Some(crate::common::MOMENT)).unwrap() {
        drop(event);
    }
    cq.arm(false).unwrap();
    assert!(channel.wait(Some(crate::common::MOMENT)).unwrap().is_none());
    qp.post_receive(&[ReceiveRequest::new(1, &[region.sge(0..8)])]).unwrap();
    let request = SendRequest::send(1, &sges).to(to(&pair.address, qp.qp_num()));
    pair.a.qp.post_send_list(&[request]).unwrap();
    let event = channel.wait(Some(DEADLINE)).unwrap().unwrap();
    assert_eq!(event.queue_id(), cq.id());
    assert_eq!(succeeded(&poll_for(cq, 1)), [1]);
}

fn failures_have_their_status() {
    let Pair { mut a, mut b, address, .. } = srd();
    let b_num = b.qp.qp_num();
    let good = a.region.sge(0..64);
    let remote = RemoteMemory { address: b.region.address(), rkey: b.region.rkey() };
    b.qp.post_receive(&[ReceiveRequest::new(1, &[b.region.sge(0..8)])]).unwrap();
    let sges = [good];
    let bad_key = [uverbs::ScatterGather { lkey: !good.lkey, ..good }];
    let bad_remote = RemoteMemory { rkey: !remote.rkey, ..remote };
    let nobody = b_num ^ 0x5a5a;
    for (request, status) in [
        (SendRequest::send(1, &bad_key).to(to(&address, b_num)), CompletionStatus::LOC_PROT_ERR),
        (
            SendRequest::rdma_write(2, &sges, bad_remote).to(to(&address, b_num)),
            CompletionStatus::REM_ACCESS_ERR,
        ),
        (SendRequest::send(3, &sges).to(to(&address, nobody)), CompletionStatus::REM_INV_RD_REQ_ERR),
        (SendRequest::send(4, &sges).to(to(&address, b_num)), CompletionStatus::REM_INV_REQ_ERR),
    ] {
        a.qp.post_send_list(&[request]).unwrap();
        let done = poll_for(&mut a.cq, 1);
        let error = done[0].success().unwrap_err();
        assert_eq!((error.wr_id, error.status), (request.wr_id, status));
        assert_ne!(error.vendor_error, 0);
    }
    // The short receive was used up, with an error of its own.
    assert!(!poll_for(&mut b.cq, 1)[0].is_success());
    // Nothing of it has changed the state.
    assert_eq!(a.qp.query().unwrap().state, QueuePairState::ReadyToSend);
    b.qp.post_receive(&[ReceiveRequest::new(2, &[b.region.sge(0..64)])]).unwrap();
    b.qp.modify(&ModifyQueuePair::to(QueuePairState::Error)).unwrap();
    assert_eq!(poll_for(&mut b.cq, 1)[0].status(), CompletionStatus::WR_FLUSH_ERR);
}

fn what_cannot_be_is_refused() {
    let mut pair = srd();
    let domain = pair.address.protection_domain().clone();
    let create = |init: QueuePairInit<'_>| domain.create_queue_pair(&init);
    let cq = pair.context.create_completion_queue(4, None, 0).unwrap();
    refused(create(QueuePairInit::reliable_connection(&cq)), Errno::EOPNOTSUPP, &["type RC"]);
    for change in [
        |asked: &mut QueuePairCapabilities| asked.max_send_sge = 3,
        |asked: &mut QueuePairCapabilities| asked.max_inline_data = 10_000,
        |asked: &mut QueuePairCapabilities| asked.max_send_wr = 1 << 20,
        |asked: &mut QueuePairCapabilities| asked.max_recv_wr = u32::MAX,
    ] {
        let mut init = QueuePairInit::scalable_reliable_datagram(&cq);
        change(&mut init.capabilities);
        refused(create(init), Errno::EINVAL, &["create_qp"]);
    }
    for kind in [MemoryWindowType::Type1, MemoryWindowType::Type2] {
        refused(domain.alloc_memory_window(kind), Errno::EOPNOTSUPP, &["alloc_mw", "no memory windows"]);
    }
    refused(domain.create_shared_receive_queue(4, 1), Errno::EOPNOTSUPP, &["create_srq"]);
    refused(pair.a.cq.resize(128), Errno::EOPNOTSUPP, &["resize_cq"]);
    let vector = AddressVector { port: PORT, ..Default::default() };
    refused(domain.create_address_handle(&vector), Errno::EINVAL, &["global route"]);

    let sge = pair.a.region.sge(0..8);
    let inline = [0; 65];
    let (parts, three): ([&[u8]; 1], _) = ([&inline], [sge; 3]);
    let remote = RemoteMemory { address: 0, rkey: 0 };
    let there = to(&pair.address, pair.b.qp.qp_num());
    for (request, reason) in [
        (SendRequest::send(1, &three[..1]), PostReason::NoDestination),
        (SendRequest::send(1, &three).to(there), PostReason::TooManySges { given: 3, most: 2 }),
        (
            SendRequest::rdma_read(1, &three[..2], remote).to(there),
            PostReason::TooManySges { given: 2, most: 1 },
        ),
        (SendRequest::send_inline(1, &parts).to(there), PostReason::InlineTooLong { length: 65, most: 64 }),
        (
            SendRequest::send(1, &three[..1]).flags(SendFlags::FENCE).to(there),
            PostReason::NoSuchFlags(SendFlags::FENCE),
        ),
    ] {
        assert_eq!(pair.a.qp.post_send_list(&[request]).unwrap_err().reason, reason);
    }
    for request in [
        SendRequest::compare_swap(1, &three[..1], remote, 0, 1),
        SendRequest::fetch_add(1, &three[..1], remote, 1),
        SendRequest::local_invalidate(1, 0),
        SendRequest::send(1, &three[..1]).invalidate(0),
    ] {
        let refused = pair.a.qp.post_send_list(&[request.to(there)]).unwrap_err();
        assert_eq!(refused.reason, PostReason::NoSuchOperation, "{request:?}");
    }
    let init = ModifyQueuePair::init(PORT, AccessFlags::empty());
    refused(pair.a.qp.modify(&init), Errno::EOPNOTSUPP, &["RTS to INIT is no transition"]);
}

fn counters_count_without_the_kernel() {
    let mut pair = srd();
    let domain = pair.address.protection_domain().clone();
    let sent = pair.context.create_completion_counter(CounterType::WorkRequests).unwrap();
    let init = QueuePairInit::scalable_reliable_datagram(&pair.a.cq);
    let mut qp = domain.create_queue_pair(&init).unwrap();
    qp.attach_completion_counter(&sent, CounterOperations::SEND).unwrap();
    refused(qp.attach_completion_counter(&sent, CounterOperations::SEND), Errno::EBUSY, &["SEND"]);
    start(&mut qp);
    let sges = [pair.a.region.sge(0..8)];
    for wr_id in 0..10 {
        pair.b.qp.post_receive(&[ReceiveRequest::new(wr_id, &[pair.b.region.sge(0..8)])]).unwrap();
        let request = SendRequest::send(wr_id, &sges).to(to(&pair.address, pair.b.qp.qp_num()));
        qp.post_send_list(&[request]).unwrap();
        assert_eq!(succeeded(&poll_for(&mut pair.a.cq, 1)), [wr_id]);
        assert_eq!(sent.read().unwrap(), wr_id + 1);
    }
    let bad = [uverbs::ScatterGather { lkey: !sges[0].lkey, ..sges[0] }];
    let request = SendRequest::send(1, &bad).to(to(&pair.address, pair.b.qp.qp_num()));
    qp.post_send_list(&[request]).unwrap();
    assert!(!poll_for(&mut pair.a.cq, 1)[0].is_success());
    assert_eq!((sent.read().unwrap(), sent.read_err().unwrap()), (10, 1));
    sent.set(1000).unwrap();
    sent.inc(5).unwrap();
    sent.set_err(7).unwrap();
    sent.inc_err(1).unwrap();
    assert_eq!((sent.read().unwrap(), sent.read_err().unwrap()), (1005, 8));
    let error = sent.destroy().unwrap_err();
    refused::<(), _>(Err(error.error().clone()), Errno::EBUSY, &[]);
    qp.destroy().unwrap();
    error.into_inner().destroy().unwrap();
}

fn destroying_says_what_is_in_use() {
    let Pair { a, b, address, context } = srd();
    let domain = address.protection_domain().clone();
    let error = domain.destroy().unwrap_err();
    refused::<(), _>(Err(error.error().clone()), Errno::EBUSY, &[]);
    drop(error);
    let error = a.cq.destroy().unwrap_err();
    refused::<(), _>(Err(error.error().clone()), Errno::EBUSY, &[]);
    a.qp.destroy().unwrap();
    error.into_inner().destroy().unwrap();
    a.region.destroy().unwrap();
    drop(b);
    address.destroy().unwrap();
    context.close().unwrap();
}

fn an_unsolicited_write_uses_up_no_receive() {
    let mut pair = pair(
        |cq| QueuePairInit { unsolicited_writes: true, ..QueuePairInit::scalable_reliable_datagram(cq) },
        false,
    );
    let remote = RemoteMemory { address: pair.b.region.address(), rkey: pair.b.region.rkey() };
    let sges = [pair.a.region.sge(0..1000)];
    let there = to(&pair.address, pair.b.qp.qp_num());
    // A receive that is there is left for a send.
    pair.b.qp.post_receive(&[ReceiveRequest::new(77, &[pair.b.region.sge(0..8)])]).unwrap();
    for immediate in 0..40 {
        let request = SendRequest::rdma_write(1, &sges, remote).immediate(immediate).to(there);
        pair.a.qp.post_send_list(&[request]).unwrap();
        assert_eq!(succeeded(&poll_for(&mut pair.a.cq, 1)), [1]);
        let arrived = poll_for(&mut pair.b.cq, 1);
        let success = arrived[0].success().unwrap();
        assert!(success.is_unsolicited());
        assert_eq!((arrived[0].wr_id(), success.opcode()), (0, CompletionOpcode::ReceiveRdmaWithImmediate));
        assert_eq!((success.immediate(), success.byte_len()), (Some(immediate), 1000));
    }
    pair.a.qp.post_send_list(&[SendRequest::send(2, &sges[..0]).to(there)]).unwrap();
    let arrived = poll_for(&mut pair.b.cq, 1);
    let success = arrived[0].success().unwrap();
    assert_eq!((arrived[0].wr_id(), success.is_unsolicited()), (77, false));

    let domain = pair.address.protection_domain();
    let init = QueuePairInit { unsolicited_writes: true, ..QueuePairInit::unreliable_datagram(&pair.a.cq) };
    refused(domain.create_queue_pair(&init), Errno::EOPNOTSUPP, &["type UD", "unsolicited"]);
}

fn a_receiver_that_is_not_ready_is_tried_as_often_as_said() {
    let Pair { mut a, mut b, address, .. } = srd();
    let there = to(&address, b.qp.qp_num());
    let sges = [a.region.sge(0..8)];
    let restart = |qp: &mut QueuePair, rnr_retry| {
        qp.modify(&ModifyQueuePair::to(QueuePairState::Reset)).unwrap();
        qp.modify(&ModifyQueuePair::datagram_init(PORT, QKEY)).unwrap();
        qp.modify(&ModifyQueuePair::datagram_ready_to_receive()).unwrap();
        let ready = ModifyQueuePair { rnr_retry, ..ModifyQueuePair::datagram_ready_to_send(0) };
        qp.modify(&ready)
    };
    restart(&mut a.qp, Some(2)).unwrap();
    assert_eq!(a.qp.query().unwrap().rnr_retry, 2);
    a.qp.post_send_list(&[SendRequest::send(1, &sges).to(there)]).unwrap();
    let done = poll_for(&mut a.cq, 1);
    assert_eq!((done[0].wr_id(), done[0].status()), (1, CompletionStatus::RNR_RETRY_EXC_ERR));
    // For ever.
    restart(&mut a.qp, Some(7)).unwrap();
    a.qp.post_send_list(&[SendRequest::send(2, &sges).to(there)]).unwrap();
    poll_for_none(&mut a.cq);
    b.qp.post_receive(&[ReceiveRequest::new(3, &[b.region.sge(0..8)])]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [2]);
    refused(restart(&mut a.qp, Some(8)), Errno::EINVAL, &["RNR_RETRY"]);
}

fn short_completions_tell_all_there_is() {
    let Pair { mut a, mut b, address, .. } = srd();
    let sent = fill(&mut a.region, 5);
    assert!(a.cq.completions().next().is_none());
    let there = to(&address, b.qp.qp_num());
    // More than the queue holds, so that it goes round.
    for wr_id in 0..200_u64 {
        let length = (wr_id as usize * 397) % 8000;
        b.qp.post_receive(&[ReceiveRequest::new(wr_id, &[b.region.sge(0..8192)])]).unwrap();
        let sges = [a.region.sge(0..length)];
        let request = SendRequest::send(1000 + wr_id, &sges).immediate(wr_id as u32).to(there);
        a.qp.post_send_list(&[request]).unwrap();
        assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [1000 + wr_id]);
        let arrived = poll_for(&mut b.cq, 1);
        let success = arrived[0].success().unwrap();
        assert_eq!((arrived[0].wr_id(), success.source_qp()), (wr_id, a.qp.qp_num()));
        assert_eq!((success.byte_len(), success.immediate()), (length as u32, Some(wr_id as u32)));
        assert_eq!(contents(&b.region, length), sent[..length]);
    }
    let remote = RemoteMemory { address: b.region.address(), rkey: b.region.rkey() };
    let sges = [a.region.sge(0..MEMORY)];
    a.qp.post_send_list(&[SendRequest::rdma_read(1, &sges, remote).to(there)]).unwrap();
    let done = poll_for(&mut a.cq, 1);
    assert_eq!(done[0].success().unwrap().opcode(), CompletionOpcode::RdmaRead);
}

fn what_the_device_cannot_do_is_refused() {
    let mut pair = srd();
    let sges = [pair.a.region.sge(0..8)];
    let remote = RemoteMemory { address: pair.b.region.address(), rkey: pair.b.region.rkey() };
    let write = SendRequest::rdma_write(1, &sges, remote).to(to(&pair.address, pair.b.qp.qp_num()));
    for write in [write, write.immediate(1)] {
        assert_eq!(pair.a.qp.post_send_list(&[write]).unwrap_err().reason, PostReason::NoSuchOperation);
    }
    let domain = pair.address.protection_domain();
    let init = QueuePairInit::scalable_reliable_datagram(&pair.a.cq);
    let unsolicited = QueuePairInit { unsolicited_writes: true, ..init };
    refused(domain.create_queue_pair(&unsolicited), Errno::EOPNOTSUPP, &["unsolicited"]);
    let mut qp = domain.create_queue_pair(&init).unwrap();
    qp.modify(&ModifyQueuePair::datagram_init(PORT, QKEY)).unwrap();
    qp.modify(&ModifyQueuePair::datagram_ready_to_receive()).unwrap();
    let ready = ModifyQueuePair { rnr_retry: Some(3), ..ModifyQueuePair::datagram_ready_to_send(0) };
    refused(qp.modify(&ready), Errno::EINVAL, &["no RNR_RETRY"]);
}
