//! Completion queues: sizes, vectors, arming, waiting.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use uverbs::{
    AsyncEventElement, AsyncEventType, ErrorKind, ReceiveRequest, SendFlags, SendRequest, WorkCompletion,
};

use crate::common::{
    DEADLINE, Holdings, MOMENT, Pair, Setup, open, out_of_address_space, pair, poll_for, poll_for_none,
    refused, succeeded, wait_until,
};

crate::cases! {
    Shared vb_17_sizes_granted_and_refused;
    Shared completion_vectors_are_checked;
    Shared destroy_is_refused_while_a_queue_pair_uses_it;
    Shared arming_and_waiting_need_a_channel;
    Shared a_cq_may_go_before_its_queue_pair;
    Shared polling_takes_what_fits_in_order;
    Shared vb_06_completions_are_taken_one_after_the_other;
    Shared vb_06_two_threads_take_from_one_queue;
    Shared looking_for_long_overruns_nothing;
    Shared solicited_arming_ignores_other_messages;
    Shared wait_returns_nothing_at_its_deadline;
    Shared wait_returns_what_comes_later;
    Shared wait_is_refused_on_a_shared_channel;
    Shared vb_05_overrun_is_told_and_breaks_the_queue_pair;
    Shared vb_05_resizing_keeps_what_is_there;
    Shared vb_05_resizing_against_a_sender;
    Shared an_armed_cq_stays_armed_when_resized;
    KernelAlone resizing_without_address_space_loses_nothing;
    Alone resizing_maps_one_ring_at_a_time;
}

fn events() -> Pair {
    Setup { events: true, ..Setup::default() }.pair()
}

fn vb_17_sizes_granted_and_refused() {
    let context = open();
    let most = context.query_device().unwrap().max_cqe;
    for asked in [1, 2, 3, 10, 15, 16, 1000, most - 1, most] {
        let cq = context.create_completion_queue(asked, None, 0).unwrap();
        assert!(cq.entries() >= asked, "{asked} asked, {} granted", cq.entries());
        // soft-RoCE rounds up to one less than a power of two.
        assert_eq!(cq.entries(), (asked + 1).next_power_of_two() - 1);
        cq.destroy().unwrap();
    }
    let error = context.create_completion_queue(0, None, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    refused(Err::<(), _>(error), Errno::EINVAL, &["create_cq", "zero"]);
    for asked in [most + 1, u32::MAX / 2, u32::MAX] {
        let texts = [&*asked.to_string(), &*most.to_string(), "allows"];
        refused(context.create_completion_queue(asked, None, 0), Errno::EINVAL, &texts);
    }
}

fn completion_vectors_are_checked() {
    let context = open();
    let channel = context.create_completion_channel().unwrap();
    let vectors = context.completion_vectors();
    for vector in 0..vectors {
        context.create_completion_queue(1, Some(&channel), vector).unwrap().destroy().unwrap();
    }
    let texts = [&*format!("vector {vectors}"), &*format!("has {vectors}")];
    refused(context.create_completion_queue(1, Some(&channel), vectors), Errno::EINVAL, &texts);
    refused(context.create_completion_queue(1, None, u32::MAX), Errno::EINVAL, &["vector"]);
}

fn destroy_is_refused_while_a_queue_pair_uses_it() {
    let Pair { a, b: _b } = pair();
    let error = a.cq.destroy().unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::Busy);
    refused(Err::<(), _>(error.error().clone()), Errno::EBUSY, &["destroy_cq", "in use 2 times"]);
    let cq = error.into_inner();
    a.qp.destroy().unwrap();
    cq.destroy().unwrap();
}

fn arming_and_waiting_need_a_channel() {
    let mut cq = open().create_completion_queue(1, None, 0).unwrap();
    refused(cq.arm(false), Errno::EINVAL, &["no completion channel"]);
    let mut completions = [WorkCompletion::default(); 1];
    refused(cq.wait(&mut completions, Some(MOMENT)), Errno::EINVAL, &["no completion channel"]);
}

fn a_cq_may_go_before_its_queue_pair() {
    let Pair { mut a, mut b } = pair();
    drop(a.cq);
    a.qp.post_send_list(&[SendRequest::send(1, &[]).signaled()]).unwrap();
    b.receive_nothing(1..2);
    assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [1]);
    a.qp.destroy().unwrap();
}

fn polling_takes_what_fits_in_order() {
    let Pair { mut a, mut b } = pair();
    b.receive_nothing(0..10);
    for wr_id in 0..10 {
        a.send_nothing(wr_id).unwrap();
    }
    // No room, nothing taken.
    assert!(b.cq.poll(&mut []).is_empty());
    let mut seen = Vec::new();
    for room in [1, 3, 2, 4] {
        seen.extend(succeeded(&poll_for(&mut b.cq, room)));
    }
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
    poll_for_none(&mut b.cq);
    poll_for_none(&mut a.cq);
}

fn vb_06_completions_are_taken_one_after_the_other() {
    let Pair { mut a, mut b } = pair();
    let mut expected = 0;
    // Round the ring some times.
    let rounds = 10 * u64::from(b.cq.entries());
    while expected < rounds {
        let batch = 1 + expected % 7;
        b.receive_nothing(expected..expected + batch);
        (expected..expected + batch).for_each(|wr_id| a.send_nothing(wr_id).unwrap());
        let end = expected + batch;
        wait_until("the batch", || {
            let mut completions = b.cq.completions();
            while let Some(completion) = completions.next() {
                assert_eq!(completion.success().map(|_| completion.wr_id()), Ok(expected));
                expected += 1;
                if expected % 5 == 0 {
                    // What has not been seen stays.
                    return expected == end;
                }
            }
            // Nothing is there; if nothing comes any more, looking again does not change that.
            assert!(expected < end || completions.next().is_none());
            expected == end
        });
        assert!(b.cq.completions().next().is_none());
        assert!(b.cq.poll(&mut [WorkCompletion::default()]).is_empty());
    }
    // Both ways of polling take from one queue.
    b.receive_nothing(0..4);
    (0..4).for_each(|wr_id| a.send_nothing(wr_id).unwrap());
    assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [0]);
    wait_until("the second", || b.cq.completions().next().is_some_and(|found| found.wr_id() == 1));
    assert_eq!(succeeded(&poll_for(&mut b.cq, 2)), [2, 3]);
    poll_for_none(&mut a.cq);
}

fn vb_06_two_threads_take_from_one_queue() {
    const COUNT: usize = 2000;
    let Pair { mut a, b } = pair();
    let (mut receiver, queue) = (b.qp, Mutex::new(b.cq));
    let seen: Vec<AtomicU32> = (0..COUNT).map(|_| AtomicU32::new(0)).collect();
    let total = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                wait_until("all of them", || {
                    let mut queue = queue.lock().unwrap();
                    let mut completions = queue.completions();
                    for _ in 0..3 {
                        let Some(completion) = completions.next() else { break };
                        completion.success().unwrap();
                        seen[completion.wr_id() as usize].fetch_add(1, Ordering::Relaxed);
                        total.fetch_add(1, Ordering::Relaxed);
                    }
                    total.load(Ordering::Relaxed) == COUNT as u32
                });
            });
        }
        let (mut posted, mut sent) = (0, 0);
        wait_until("all sent", || {
            let done = total.load(Ordering::Relaxed) as usize;
            // Neither the receives nor the completions overrun.
            while posted < COUNT && posted < done + 8 {
                receiver.post_receive(&[ReceiveRequest::new(posted as u64, &[])]).unwrap();
                posted += 1;
            }
            while sent < posted && a.send_nothing(sent as u64).is_ok() {
                sent += 1;
            }
            sent == COUNT
        });
    });
    assert!(seen.iter().all(|times| times.load(Ordering::Relaxed) == 1));
}

fn looking_for_long_overruns_nothing() {
    let small = Setup { entries: 15, ..Setup::default() };
    let Pair { mut a, b } = small.pair();
    let (mut receiver, mut queue) = (b.qp, b.cq);
    let rounds = 5 * u64::from(queue.entries());
    let mut completions = queue.completions();
    for wr_id in 0..rounds {
        receiver.post_receive(&[ReceiveRequest::new(wr_id, &[])]).unwrap();
        a.send_nothing(wr_id).unwrap();
        let mut seen = None;
        wait_until("the message", || {
            seen = completions.next().map(|completion| completion.success().map(|_| completion.wr_id()));
            seen.is_some()
        });
        assert_eq!(seen, Some(Ok(wr_id)));
    }
}

fn solicited_arming_ignores_other_messages() {
    let Pair { mut a, mut b } = events();
    b.receive_nothing(0..4);
    b.cq.arm(true).unwrap();
    a.send_nothing(0).unwrap();
    succeeded(&poll_for(&mut b.cq, 1));
    assert!(b.channel().wait(Some(MOMENT)).unwrap().is_none());
    a.qp.post_send_list(&[SendRequest::send(1, &[]).flags(SendFlags::SOLICITED)]).unwrap();
    b.take_event();
    assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [1]);
    // Armed for any message, an ordinary one counts.
    b.cq.arm(false).unwrap();
    a.send_nothing(2).unwrap();
    b.take_event();
    assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [2]);
    // Asking for any after asking for solicited ones counts as any.
    b.cq.arm(true).unwrap();
    b.cq.arm(false).unwrap();
    a.send_nothing(3).unwrap();
    b.take_event();
    assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [3]);
}

fn wait_returns_nothing_at_its_deadline() {
    let Pair { mut a, b: _b } = events();
    let mut completions = [WorkCompletion::default(); 1];
    for timeout in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(150)] {
        let start = Instant::now();
        assert!(a.cq.wait(&mut completions, Some(timeout)).unwrap().is_empty());
        let took = start.elapsed();
        assert!(took >= timeout && took < timeout + DEADLINE, "{timeout:?} took {took:?}");
    }
    let start = Instant::now();
    assert!(a.channel().wait(Some(MOMENT)).unwrap().is_none());
    assert!(start.elapsed() >= MOMENT);
    // Without room there is nothing to wait for.
    assert!(a.cq.wait(&mut [], None).unwrap().is_empty());
}

fn wait_returns_what_comes_later() {
    let Pair { mut a, mut b } = events();
    b.receive_nothing(0..1);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut completions = [WorkCompletion::default(); 4];
            succeeded(b.cq.wait(&mut completions, Some(DEADLINE)).unwrap())
        });
        // Most likely it sleeps by then; it has to be right in either case.
        std::thread::sleep(Duration::from_millis(20));
        a.send_nothing(7).unwrap();
        assert_eq!(waiter.join().unwrap(), [0]);
    });
    // A timeout beyond what clocks can tell is for ever.
    b.receive_nothing(1..2);
    a.send_nothing(8).unwrap();
    let mut completions = [WorkCompletion::default(); 4];
    assert_eq!(succeeded(b.cq.wait(&mut completions, Some(Duration::MAX)).unwrap()), [1]);
}

fn wait_is_refused_on_a_shared_channel() {
    let context = open();
    let channel = context.create_completion_channel().unwrap();
    let mut one = context.create_completion_queue(1, Some(&channel), 0).unwrap();
    let other = context.create_completion_queue(1, Some(&channel), 0).unwrap();
    let mut completions = [WorkCompletion::default(); 1];
    refused(one.wait(&mut completions, Some(MOMENT)), Errno::EINVAL, &["2 CQs share the channel"]);
    other.destroy().unwrap();
    assert!(one.wait(&mut completions, Some(Duration::ZERO)).unwrap().is_empty());
}

/// More completions than fit: the surplus is lost, a CQ error event says so, and the queue pair is in error.
fn vb_05_overrun_is_told_and_breaks_the_queue_pair() {
    let context = open();
    let small = Setup { entries: 1, ..Setup::default() };
    let (mut a, mut b) = (Setup::default().end(&context), small.end(&context));
    let setup = Setup { retry_count: 1, timeout: 12, ..small };
    setup.connect(&context, &mut a.qp, &mut b.qp);
    b.receive_nothing(0..8);
    for wr_id in 0..6 {
        a.send_nothing(wr_id).unwrap();
    }
    let event = context.async_events().wait(Some(DEADLINE)).unwrap().unwrap();
    assert_eq!(event.kind(), AsyncEventType::CompletionQueueError);
    assert_eq!(event.element(), AsyncEventElement::CompletionQueue(b.cq.id()));
    assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [0]);
    wait_until("queue pair in error", || b.qp.query().unwrap().state == uverbs::QueuePairState::Error);
}

fn vb_05_resizing_keeps_what_is_there() {
    let context = open();
    let most = context.query_device().unwrap().max_cqe;
    let Pair { mut a, mut b } = Setup { entries: 7, ..Setup::default() }.pair_in(&context);
    b.receive_nothing(0..5);
    for wr_id in 0..5 {
        a.qp.post_send_list(&[SendRequest::send(wr_id, &[]).signaled()]).unwrap();
    }
    // A receive is completed before it is acknowledged to the sender.
    assert_eq!(succeeded(&poll_for(&mut a.cq, 5)), [0, 1, 2, 3, 4]);
    refused(b.cq.resize(2), Errno::EINVAL, &["resize_cq", "more than 2 completions"]);
    refused(b.cq.resize(0), Errno::EINVAL, &["zero"]);
    refused(b.cq.resize(most + 1), Errno::EINVAL, &[&format!("allows {most}")]);
    assert_eq!(b.cq.entries(), 7);
    for (asked, granted) in [(100, 127), (5, 7), (most, most), (8, 15)] {
        b.cq.resize(asked).unwrap();
        assert_eq!(b.cq.entries(), granted);
    }
    assert_eq!(succeeded(&poll_for(&mut b.cq, 2)), [0, 1]);
    // From another place of the ring.
    b.cq.resize(3).unwrap();
    assert_eq!(succeeded(&poll_for(&mut b.cq, 3)), [2, 3, 4]);
    poll_for_none(&mut b.cq);
    Pair { a, b }.works();
}

fn vb_05_resizing_against_a_sender() {
    const MESSAGES: u64 = 3000;
    let Pair { mut a, mut b } = pair();
    b.receive_nothing(0..8);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for wr_id in 0..MESSAGES {
                wait_until("room in the queue", || a.send_nothing(wr_id).is_ok());
            }
        });
        for wr_id in 0..MESSAGES {
            if wr_id % 3 == 0 {
                // At most eight receives are posted, so they fit in each.
                b.cq.resize([100, 9, 1000, 30][wr_id as usize / 3 % 4]).unwrap();
            }
            assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [wr_id]);
            b.receive_nothing(wr_id + 8..wr_id + 9);
        }
    });
    poll_for_none(&mut b.cq);
}

fn an_armed_cq_stays_armed_when_resized() {
    let Pair { mut a, mut b } = events();
    b.receive_nothing(0..1);
    b.cq.arm(false).unwrap();
    b.cq.resize(500).unwrap();
    a.send_nothing(1).unwrap();
    b.take_event();
    assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [0]);
}

fn resizing_without_address_space_loses_nothing() {
    let Pair { mut a, mut b } = Setup { entries: 15, ..Setup::default() }.pair();
    b.receive_nothing(0..8);
    for wr_id in 0..4 {
        a.send_nothing(wr_id).unwrap();
    }
    assert_eq!(succeeded(&poll_for(&mut b.cq, 2)), [0, 1]);
    let error = out_of_address_space(|| b.cq.resize(30_000)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfResources, "{error}");
    // Where they are, they cannot be seen, but they are not seen twice either.
    for wr_id in 4..6 {
        a.send_nothing(wr_id).unwrap();
    }
    poll_for_none(&mut b.cq);
    b.cq.resize(20).unwrap();
    assert_eq!(succeeded(&poll_for(&mut b.cq, 4)), [2, 3, 4, 5]);
}

fn resizing_maps_one_ring_at_a_time() {
    let Pair { a: _a, mut b } = Setup { entries: 100, ..Setup::default() }.pair();
    let before = Holdings::of_this_process().device_mapping_count();
    for round in 0..100 {
        b.cq.resize(1000).unwrap();
        b.cq.resize(40_000).unwrap_err();
        b.cq.resize(100).unwrap();
        assert_eq!(Holdings::of_this_process().device_mapping_count(), before, "round {round}");
    }
}
