//! Unreliable connections.

use nix::errno::Errno;
use uverbs::{
    AccessFlags, CompletionOpcode, ModifyQueuePair, PostReason, QueuePairState, QueuePairType, SendRequest,
};

use crate::common::{
    PORT, Pair, Setup, open, own_address, pattern, poll_for, poll_for_none, ready_to_receive, refused,
    succeeded,
};

crate::cases! {
    Shared messages_of_every_size;
    Shared writes_with_and_without_immediate_data;
    Shared vb_08_sp_1_lists_batches_and_inline;
    Shared nobody_hears_of_what_is_lost;
    Shared operations_that_it_lacks_are_refused;
    Shared masks_are_its_own;
    Shared work_is_flushed_in_the_error_state;
}

fn setup() -> Setup {
    Setup {
        kind: QueuePairType::UnreliableConnection,
        access: AccessFlags::REMOTE_WRITE,
        memory: 1 << 18,
        ..Setup::default()
    }
}

fn messages_of_every_size() {
    let Pair { mut a, mut b } = setup().pair();
    for (wr_id, size) in [0, 1, 1023, 1024, 1025, 4096, 20000].into_iter().enumerate() {
        let (wr_id, sent) = (wr_id as u64, pattern(size, size));
        a.memory.write(0, &sent);
        b.memory.write(0, &vec![0xa5; size + 64]);
        b.receive(100 + wr_id, 0..size + 64);
        a.send(wr_id, 0..size);
        let done = poll_for(&mut a.cq, 1)[0];
        assert_eq!((done.wr_id(), done.success().unwrap().opcode()), (wr_id, CompletionOpcode::Send));
        let received = poll_for(&mut b.cq, 1)[0];
        assert_eq!((received.wr_id(), received.qp_num()), (100 + wr_id, b.qp.qp_num()));
        let success = received.success().unwrap();
        assert_eq!(success.opcode(), CompletionOpcode::Receive);
        assert_eq!((success.byte_len() as usize, success.immediate()), (size, None));
        assert!(b.bytes(0..size) == sent, "{size} bytes did not arrive as they were sent");
        assert!(b.bytes(size..size + 64).iter().all(|byte| *byte == 0xa5));
    }
}

fn writes_with_and_without_immediate_data() {
    let Pair { mut a, mut b } = setup().pair();
    let sent = pattern(3, 5000);
    a.memory.write(0, &sent);
    let sges = [a.memory.sge(0..5000)];
    // The second tells the peer that the first is there: messages stay in order.
    b.receive_nothing(7..8);
    a.qp.post_send()
        .push(&SendRequest::rdma_write(1, &sges, b.remote(100)).signaled())
        .push(&SendRequest::rdma_write(2, &sges[..1], b.remote(10_000)).immediate(0x0a0b_0c0d).signaled())
        .submit()
        .unwrap();
    let done = poll_for(&mut a.cq, 2);
    assert_eq!(succeeded(&done), [1, 2]);
    assert_eq!(done[1].success().unwrap().opcode(), CompletionOpcode::RdmaWrite);
    let told = poll_for(&mut b.cq, 1)[0];
    let success = told.success().unwrap();
    assert_eq!((told.wr_id(), success.opcode()), (7, CompletionOpcode::ReceiveRdmaWithImmediate));
    assert_eq!(success.immediate(), Some(0x0a0b_0c0d));
    assert!(b.bytes(100..5100) == sent && b.bytes(10_000..15_000) == sent);
    assert!(b.bytes(5100..10_000).iter().all(|byte| *byte == 0));
}

/// One request with its immediate data, posted in either way, from memory and inline.
fn vb_08_sp_1_lists_batches_and_inline() {
    let Pair { mut a, mut b } = setup().pair();
    a.memory.write(0, b"0123456789");
    let sges = [a.memory.sge(2..5), a.memory.sge(0..0), a.memory.sge(7..10)];
    let parts: [&[u8]; 3] = [b"23", b"", b"4789"];
    let to = b.remote(512);
    let requests = [
        SendRequest::send(0, &sges).immediate(10),
        SendRequest::send_inline(1, &parts).immediate(11),
        SendRequest::rdma_write(2, &sges, to).immediate(12),
        SendRequest::rdma_write_inline(3, &parts, to).immediate(13),
    ];
    for batch in [false, true] {
        for request in requests {
            b.memory.write(0, &[0; 1024]);
            b.receive(request.wr_id, 0..64);
            if batch {
                a.qp.post_send().push(&request.signaled()).submit().unwrap();
            } else {
                a.qp.post_send_list(&[request.signaled()]).unwrap();
            }
            assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [request.wr_id]);
            let received = poll_for(&mut b.cq, 1)[0];
            let success = received.success().unwrap();
            assert_eq!(success.immediate(), Some(10 + received.wr_id() as u32));
            let place = if request.wr_id < 2 { 0..6 } else { 512..518 };
            assert_eq!(b.bytes(place), b"234789", "request {}", request.wr_id);
        }
    }
    let long = [0; 65];
    let parts: [&[u8]; 1] = [&long];
    let error =
        a.qp.post_send_list(&[requests[0], SendRequest::rdma_write_inline(0, &parts, to)]).unwrap_err();
    assert_eq!((error.index, error.reason), (1, PostReason::InlineTooLong { length: 65, most: 64 }));
}

fn nobody_hears_of_what_is_lost() {
    let Pair { mut a, mut b } = setup().pair();
    // No receive is posted: the message is dropped, and the sender does not know.
    a.send(1, 0..2000);
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [1]);
    // A wrong key.
    let sges = [a.memory.sge(0..2000)];
    let mut wrong = b.remote(0);
    wrong.rkey ^= 0x5500;
    a.qp.post_send_list(&[SendRequest::rdma_write(2, &sges, wrong).signaled()]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [2]);
    poll_for_none(&mut b.cq);
    // Both ends go on.
    assert_eq!(a.qp.query().unwrap().state, QueuePairState::ReadyToSend);
    assert_eq!(b.qp.query().unwrap().state, QueuePairState::ReadyToSend);
    b.receive(3, 0..64);
    a.send(3, 0..64);
    assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [3]);
}

fn operations_that_it_lacks_are_refused() {
    let Pair { mut a, b } = setup().pair();
    let sges = [a.memory.sge(0..8)];
    let read = SendRequest::rdma_read(1, &sges, b.remote(0));
    refused(a.qp.post_send_list(&[read]), Errno::EINVAL, &["request 0", "lack the operation"]);
    let error = a.qp.post_send().push(&SendRequest::send(0, &[])).push(&read).submit().unwrap_err();
    assert_eq!((error.index, error.reason), (1, PostReason::NoSuchOperation));
    poll_for_none(&mut a.cq);
}

fn masks_are_its_own() {
    let context = open();
    let mut a = setup().end(&context);
    assert_eq!(
        (a.qp.kind(), a.qp.kind().to_string()),
        (QueuePairType::UnreliableConnection, "UC".to_owned())
    );
    a.qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::REMOTE_WRITE)).unwrap();
    refused(
        a.qp.modify(&ready_to_receive(&context, a.qp.qp_num())),
        Errno::EINVAL,
        &["UC INIT to RTR does not take MIN_RNR_TIMER, MAX_DEST_RD_ATOMIC"],
    );
    let to = own_address(&context);
    let ready =
        ModifyQueuePair::unreliable_ready_to_receive(to, a.qp.qp_num(), 0x12_3456, uverbs::Mtu::Bytes512);
    refused(
        a.qp.modify(&ModifyQueuePair { dest_qp_num: None, ..ready }),
        Errno::EINVAL,
        &["UC INIT to RTR misses DEST_QPN"],
    );
    a.qp.modify(&ready).unwrap();
    refused(
        a.qp.modify(&setup().ready_to_send()),
        Errno::EINVAL,
        &["UC RTR to RTS does not take TIMEOUT, RETRY_CNT, RNR_RETRY, MAX_QP_RD_ATOMIC"],
    );
    a.qp.modify(&ModifyQueuePair::unreliable_ready_to_send(0x12_3456)).unwrap();
    let attributes = a.qp.query().unwrap();
    assert_eq!((attributes.state, attributes.dest_qp_num), (QueuePairState::ReadyToSend, a.qp.qp_num()));
    assert_eq!((attributes.path_mtu, attributes.rq_psn), (Some(uverbs::Mtu::Bytes512), 0x12_3456));
    assert_eq!(attributes.access_flags, AccessFlags::REMOTE_WRITE);
    // Connected to itself, with sequence numbers that fit.
    a.receive(1, 0..4096);
    a.send(2, 0..4096);
    let mut done = succeeded(&poll_for(&mut a.cq, 2));
    done.sort_unstable();
    assert_eq!(done, [1, 2]);
}

fn work_is_flushed_in_the_error_state() {
    let Pair { mut a, .. } = setup().pair();
    a.receive_nothing(1..3);
    a.qp.modify(&ModifyQueuePair::to(QueuePairState::Error)).unwrap();
    a.receive_nothing(3..4);
    a.send_nothing(4).unwrap();
    let mut flushed: Vec<_> = poll_for(&mut a.cq, 4)
        .iter()
        .map(|completion| {
            let error = completion.success().unwrap_err();
            assert_eq!(error.status, uverbs::CompletionStatus::WR_FLUSH_ERR);
            error.wr_id
        })
        .collect();
    flushed.sort_unstable();
    assert_eq!(flushed, [1, 2, 3, 4]);
}
