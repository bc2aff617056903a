//! Work that fails: error completions, flushing, refused posts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use uverbs::{
    AccessFlags, CompletionStatus, ModifyQueuePair, PostReason, QueuePairState, ReceiveRequest, SendRequest,
    WorkCompletion,
};

use crate::common::{
    End, PORT, Pair, Setup, open, pair, poll_for, poll_for_none, ready_to_receive, refused, succeeded,
    wait_until,
};

crate::cases! {
    Shared vb_12_refused_posts;
    Shared posts_in_the_wrong_state;
    Shared vb_14_work_posted_in_error_is_flushed;
    Shared vb_14_receives_of_a_queue_pair_that_failed_by_itself;
    Shared vb_14_receives_before_the_failure_is_seen;
    Shared vb_14_receives_that_race_with_a_failure;
    Shared vb_14_old_failures_do_not_break_a_queue_pair;
    Shared vb_14_receives_that_race_into_error;
    Shared vb_15_a_wrong_local_key;
    Shared vb_15_a_receive_that_is_too_small;
    Shared vb_15_no_receive_posted;
    Shared vb_15_a_peer_that_does_not_answer;
    Shared vb_15_flushed_receives_carry_their_ids;
    Shared a_reset_forgets_what_was_posted;
}

const FLUSHED: CompletionStatus = CompletionStatus::WR_FLUSH_ERR;

/// A message that is longer than its receive is the peer's invalid request to its sender, and a wrong length to its receiver.
/// soft-RoCE takes the receive for malformed instead.
const TOO_SMALL_SENT: [CompletionStatus; 2] =
    [CompletionStatus::REM_INV_REQ_ERR, CompletionStatus::REM_OP_ERR];
const TOO_SMALL_RECEIVED: [CompletionStatus; 2] =
    [CompletionStatus::LOC_LEN_ERR, CompletionStatus::LOC_QP_OP_ERR];

fn fail(end: &mut End) {
    end.qp.modify(&ModifyQueuePair::to(QueuePairState::Error)).unwrap();
}

/// Takes completions that all failed: how, and which.
fn failures(end: &mut End, count: usize) -> Vec<(u64, CompletionStatus)> {
    let qp_num = end.qp.qp_num();
    let completions = poll_for(&mut end.cq, count);
    let failure = |completion: &WorkCompletion| {
        let error = completion.success().unwrap_err();
        assert_eq!(error.qp_num, qp_num);
        assert_eq!((error.wr_id, error.status), (completion.wr_id(), completion.status()));
        assert!(error.to_string().contains(&format!("(status {})", error.status.number())));
        (error.wr_id, error.status)
    };
    completions.iter().map(failure).collect()
}

fn in_state(end: &End, state: QueuePairState) -> bool {
    end.qp.query().unwrap().state == state
}

fn vb_12_refused_posts() {
    let Pair { mut a, b: _b } = pair();
    let sge = a.memory.sge(0..1);
    let five = [sge; 5];
    let long = vec![0; a.qp.capabilities().max_inline_data as usize + 1];
    let long: [&[u8]; 1] = [&long];
    for request in [SendRequest::send(1, &five), SendRequest::send_inline(1, &long)] {
        let error = a.qp.post_send_list(&[request]).unwrap_err();
        assert_eq!((error.index, error.errno()), (0, Errno::EINVAL as i32));
    }
    let error =
        a.qp.post_receive(&[ReceiveRequest::new(0, &[sge]), ReceiveRequest::new(1, &five)]).unwrap_err();
    assert_eq!((error.index, error.errno()), (1, Errno::EINVAL as i32));
    // The error of the library and that of the standard library keep number and text.
    let text = error.to_string();
    assert_eq!(text, "post: EINVAL (Invalid argument): request 1: 5 SGEs, there is room for 4");
    let error = uverbs::Error::from(error);
    assert_eq!(error.to_string(), text);
    let error = std::io::Error::from(error);
    assert_eq!((error.kind(), error.to_string()), (std::io::ErrorKind::InvalidInput, text));
    poll_for_none(&mut a.cq);
}

fn posts_in_the_wrong_state() {
    use QueuePairState::{Init, ReadyToReceive, Reset};
    let context = open();
    let setup = Setup::default();
    let (mut a, mut b) = (setup.end(&context), setup.end(&context));
    let no_send = |end: &mut End, state| {
        let request = SendRequest::send(1, &[]);
        let error = end.qp.post_send_list(&[request]).unwrap_err();
        assert_eq!((error.index, error.reason), (0, PostReason::WrongState(state)));
        let error = end.qp.post_send().push(&request).push(&request).submit().unwrap_err();
        assert_eq!((error.index, error.reason), (0, PostReason::WrongState(state)));
    };
    no_send(&mut a, Reset);
    let receive = [ReceiveRequest::new(1, &[])];
    refused(a.qp.post_receive(&receive), Errno::EINVAL, &["request 0", "state RESET"]);
    a.qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
    no_send(&mut a, Init);
    // Receives are welcome before anything can arrive.
    a.qp.post_receive(&receive).unwrap();
    a.qp.modify(&ready_to_receive(&context, b.qp.qp_num())).unwrap();
    no_send(&mut a, ReadyToReceive);
    a.qp.modify(&setup.ready_to_send()).unwrap();
    b.qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
    b.qp.modify(&ready_to_receive(&context, a.qp.qp_num())).unwrap();
    b.qp.modify(&setup.ready_to_send()).unwrap();
    b.send(2, 0..0);
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [1]);
    assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [2]);
    poll_for_none(&mut a.cq);
}

fn vb_14_work_posted_in_error_is_flushed() {
    let Pair { mut a, b: _b } = pair();
    a.receive_nothing(1..3);
    fail(&mut a);
    assert_eq!(failures(&mut a, 2), [(1, FLUSHED), (2, FLUSHED)]);
    for round in 0..10 {
        let start = Instant::now();
        a.receive_nothing(10 + round..11 + round);
        assert_eq!(failures(&mut a, 1), [(10 + round, FLUSHED)]);
        a.send_nothing(30).unwrap();
        a.qp.post_send_list(&[SendRequest::send(31, &[]).signaled()]).unwrap();
        assert_eq!(failures(&mut a, 2), [(30, FLUSHED), (31, FLUSHED)]);
        let request = SendRequest::send(32, &[]);
        a.qp.post_send().push(&request).push(&request).submit().unwrap();
        assert_eq!(failures(&mut a, 2), [(32, FLUSHED); 2]);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
    poll_for_none(&mut a.cq);
}

/// Makes the queue pair fail by a message to a peer without a receive.
fn fail_by_itself(a: &mut End) {
    a.send(99, 0..0);
    assert_eq!(failures(a, 1), [(99, CompletionStatus::RNR_RETRY_EXC_ERR)]);
    assert!(in_state(a, QueuePairState::Error));
}

fn vb_14_receives_of_a_queue_pair_that_failed_by_itself() {
    let Pair { mut a, b: _b } = Setup { rnr_retry: 1, ..Setup::default() }.pair();
    a.receive_nothing(1..3);
    fail_by_itself(&mut a);
    assert_eq!(failures(&mut a, 2), [(1, FLUSHED), (2, FLUSHED)]);
    for round in 0..10 {
        let start = Instant::now();
        a.receive_nothing(10 * round..10 * round + 2);
        assert_eq!(failures(&mut a, 2), [(10 * round, FLUSHED), (10 * round + 1, FLUSHED)]);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
    // So it is where completions are looked at one by one.
    let Pair { a: mut other, b: _other } = Setup { rnr_retry: 1, ..Setup::default() }.pair();
    other.send(99, 0..0);
    wait_until("failed completion", || other.cq.completions().next().is_some());
    other.receive_nothing(3..4);
    assert_eq!(failures(&mut other, 1), [(3, FLUSHED)]);
    // Told once more, it is the same.
    fail(&mut a);
    a.receive_nothing(5..6);
    assert_eq!(failures(&mut a, 1), [(5, FLUSHED)]);
}

/// Posted when the queue pair has failed, but nobody has seen it yet.
fn vb_14_receives_before_the_failure_is_seen() {
    for posted_before in [0, 2] {
        let Pair { mut a, b: _b } = Setup { rnr_retry: 1, ..Setup::default() }.pair();
        a.receive_nothing(0..posted_before);
        a.send(99, 0..0);
        wait_until("the error state", || in_state(&a, QueuePairState::Error));
        a.receive_nothing(10..14);
        let mut seen = failures(&mut a, posted_before as usize + 5);
        seen.sort_by_key(|(wr_id, _)| *wr_id);
        let flushed = (0..posted_before).chain(10..14).map(|wr_id| (wr_id, FLUSHED));
        let expected = flushed.chain([(99, CompletionStatus::RNR_RETRY_EXC_ERR)]);
        assert!(seen.iter().copied().eq(expected), "{seen:?}");
    }
}

/// One thread posts receives and another polls, while the queue pair fails: every receive completes.
fn vb_14_receives_that_race_with_a_failure() {
    for round in 0..30 {
        let Pair { a, b: _b } = Setup { rnr_retry: 1, entries: 256, ..Setup::default() }.pair();
        let End { mut qp, mut cq, memory, .. } = a;
        let sges = [memory.sge(0..0)];
        qp.post_send_list(&[SendRequest::send(u64::MAX, &sges).signaled()]).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let poster = scope.spawn(|| {
                let mut posted = 0_u64;
                // Until the failure has been seen, and a few more.
                while !done.load(Ordering::Relaxed) || !posted.is_multiple_of(7) {
                    match qp.post_receive(&[ReceiveRequest::new(posted, &[])]) {
                        Ok(()) => posted += 1,
                        Err(error) => assert_eq!(error.reason, PostReason::QueueFull),
                    }
                }
                posted
            });
            let mut next = 0;
            let mut take = |cq: &mut uverbs::CompletionQueue| {
                let mut room = [WorkCompletion::default(); 8];
                for completion in cq.poll(&mut room) {
                    if completion.wr_id() == u64::MAX {
                        done.store(true, Ordering::Relaxed);
                    } else {
                        assert_eq!((completion.wr_id(), completion.status()), (next, FLUSHED), "{round}");
                        next += 1;
                    }
                }
                next
            };
            wait_until("the poster's end", || {
                take(&mut cq);
                poster.is_finished()
            });
            let posted = poster.join().unwrap();
            wait_until("flushed receives", || take(&mut cq) == posted);
        });
    }
}

/// Completions of a life before a reset are not taken for failures of the life after it.
fn vb_14_old_failures_do_not_break_a_queue_pair() {
    let context = open();
    let setup = Setup { rnr_retry: 1, ..Setup::default() };
    let Pair { mut a, mut b } = setup.pair_in(&context);
    a.receive_nothing(1..3);
    a.send(99, 0..0);
    wait_until("the error state", || in_state(&a, QueuePairState::Error));
    std::thread::sleep(Duration::from_millis(20));
    for end in [&mut a, &mut b] {
        end.qp.modify(&ModifyQueuePair::to(QueuePairState::Reset)).unwrap();
    }
    setup.connect(&context, &mut a.qp, &mut b.qp);
    let old = failures(&mut a, 3);
    assert!(old.iter().any(|(wr_id, _)| *wr_id == 99), "{old:?}");
    assert!(in_state(&a, QueuePairState::ReadyToSend));
    let mut pair = Pair { a, b };
    pair.works();
    pair.works();
    assert!(in_state(&pair.a, QueuePairState::ReadyToSend));
}

/// Work under way in both directions while the queue pair is moved to the error state: each request completes once.
fn vb_14_receives_that_race_into_error() {
    for round in 0..20 {
        let Pair { mut a, mut b } = Setup { retry_count: 1, timeout: 12, ..Setup::default() }.pair();
        b.receive_nothing(0..16);
        for wr_id in 0..16 {
            a.send(wr_id, 0..0);
            if wr_id == round % 16 {
                fail(&mut b);
            }
        }
        // Whatever arrived before, and the rest flushed, in order.
        let received = poll_for(&mut b.cq, 16);
        let ids: Vec<_> = received.iter().map(WorkCompletion::wr_id).collect();
        assert_eq!(ids, (0..16).collect::<Vec<_>>());
        let good = received.iter().take_while(|completion| completion.is_success()).count();
        assert!(received[good..].iter().all(|completion| completion.status() == FLUSHED), "{received:?}");
        let sent = poll_for(&mut a.cq, 16);
        assert_eq!(sent.iter().map(WorkCompletion::wr_id).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
    }
}

fn vb_15_a_wrong_local_key() {
    let Pair { mut a, mut b } = pair();
    b.receive(1, 0..64);
    let right = [a.memory.sge(0..8)];
    let mut wrong = right;
    wrong[0].lkey ^= 0xff00;
    a.qp.post_send_list(&[SendRequest::send(1, &wrong).signaled(), SendRequest::send(2, &right)]).unwrap();
    let failed = failures(&mut a, 2);
    // soft-RoCE may go to the error state first, and then flush the very request that led there (Linux 7.3).
    let local = [CompletionStatus::LOC_PROT_ERR, CompletionStatus::LOC_QP_OP_ERR, FLUSHED];
    assert!(failed[0].0 == 1 && local.contains(&failed[0].1), "{failed:?}");
    assert_eq!(failed[1], (2, FLUSHED));
    assert!(in_state(&a, QueuePairState::Error));
    poll_for_none(&mut b.cq);
    // Beyond the region the key is as good as wrong.
    let Pair { mut a, b: _b } = pair();
    let mut beyond = a.memory.sge(4000..4096);
    beyond.length += 1;
    a.qp.post_send_list(&[SendRequest::send(1, &[beyond]).signaled()]).unwrap();
    let failed = failures(&mut a, 1);
    assert!(failed[0].0 == 1 && local.contains(&failed[0].1), "{failed:?}");
}

fn vb_15_a_receive_that_is_too_small() {
    let Pair { mut a, mut b } = pair();
    b.memory.write(0, &[0xa5; 100]);
    b.receive(7, 0..10);
    b.receive(8, 0..100);
    a.send(1, 0..64);
    let (sent, received) = (failures(&mut a, 1), failures(&mut b, 2));
    assert!(sent[0].0 == 1 && TOO_SMALL_SENT.contains(&sent[0].1), "{sent:?}");
    assert!(received[0].0 == 7 && TOO_SMALL_RECEIVED.contains(&received[0].1), "{received:?}");
    assert_eq!(received[1], (8, FLUSHED));
    assert!(b.bytes(10..100).iter().all(|byte| *byte == 0xa5), "written beyond the receive");
    for end in [&a, &b] {
        wait_until("the error state", || in_state(end, QueuePairState::Error));
    }
}

fn vb_15_no_receive_posted() {
    let Pair { mut a, mut b } = Setup { rnr_retry: 1, ..Setup::default() }.pair();
    a.send(1, 0..8);
    a.send(2, 0..8);
    let rnr = CompletionStatus::RNR_RETRY_EXC_ERR;
    assert_eq!(failures(&mut a, 2), [(1, rnr), (2, FLUSHED)]);
    poll_for_none(&mut b.cq);
    assert!(in_state(&b, QueuePairState::ReadyToSend));
}

fn vb_15_a_peer_that_does_not_answer() {
    let Pair { mut a, b } = Setup { retry_count: 1, timeout: 10, ..Setup::default() }.pair();
    b.qp.destroy().unwrap();
    a.receive_nothing(9..10);
    a.send(1, 0..8);
    let mut failed = failures(&mut a, 2);
    failed.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(failed, [(1, CompletionStatus::RETRY_EXC_ERR), (9, FLUSHED)]);
}

fn vb_15_flushed_receives_carry_their_ids() {
    let Pair { mut a, mut b } = pair();
    b.receive_nothing(100..103);
    a.receive_nothing(200..202);
    // Too long for the receive: both ends fail.
    a.send(1, 0..8);
    a.send(2, 0..8);
    let mut sent = failures(&mut a, 4);
    sent.sort_by_key(|(wr_id, _)| *wr_id);
    assert!(TOO_SMALL_SENT.contains(&sent[0].1), "{sent:?}");
    assert_eq!(sent, [(1, sent[0].1), (2, FLUSHED), (200, FLUSHED), (201, FLUSHED)]);
    let received = failures(&mut b, 3);
    assert!(TOO_SMALL_RECEIVED.contains(&received[0].1), "{received:?}");
    assert_eq!(received, [(100, received[0].1), (101, FLUSHED), (102, FLUSHED)]);
}

fn a_reset_forgets_what_was_posted() {
    let context = open();
    let setup = Setup { rnr_retry: 7, ..Setup::default() };
    let Pair { mut a, mut b } = setup.pair_in(&context);
    a.receive_nothing(1..3);
    // Stays in the queue: the peer has no receive.
    a.send(3, 0..0);
    a.qp.modify(&ModifyQueuePair::to(QueuePairState::Reset)).unwrap();
    b.qp.modify(&ModifyQueuePair::to(QueuePairState::Reset)).unwrap();
    setup.connect(&context, &mut a.qp, &mut b.qp);
    Pair { a, b }.works();
}
