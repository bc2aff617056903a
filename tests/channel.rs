//! Completion channels and their events.

use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::pthread::pthread_kill;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use uverbs::{CompletionChannel, ErrorKind, QueuePairInit, WorkCompletion};

use crate::common::{DEADLINE, MOMENT, Pair, Setup, open, poll_for, refused, succeeded, wait_until};

crate::cases! {
    Shared destroy_is_refused_while_a_cq_reports_to_it;
    Shared a_cq_with_an_event_not_dropped_is_busy;
    Shared an_event_outlives_its_cq_and_channel;
    Shared vb_01_arming_a_cq_that_is_not_empty_raises_no_event;
    Shared vb_01_two_completions_after_arming_raise_one_event;
    Shared vb_01_wait_sees_what_came_before_arming;
    Shared vb_01_completions_that_race_with_arming;
    Shared vb_01_partial_batches_by_events_get_everything;
    Shared vb_02_events_of_several_cqs_on_one_channel;
    Shared vb_04_a_nonblocking_channel_would_block;
    Shared vb_04_two_threads_and_one_event;
    Shared waits_end_in_time_while_cqs_go;
    Alone vb_04_signals_lose_nothing;
}

fn events() -> Pair {
    Setup { events: true, ..Setup::default() }.pair()
}

fn event_now(channel: &CompletionChannel) -> bool {
    channel.wait(Some(MOMENT)).unwrap().is_some()
}

fn destroy_is_refused_while_a_cq_reports_to_it() {
    let Pair { mut a, mut b } = events();
    let channel = b.channel.take().unwrap();
    let error = channel.destroy().unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::Busy);
    let texts = ["destroy_comp_channel", "1 completion queues report to it"];
    refused(Err::<(), _>(error.error().clone()), Errno::EBUSY, &texts);
    // It works as before.
    let channel = error.into_inner();
    b.receive_nothing(0..1);
    b.cq.arm(false).unwrap();
    a.send_nothing(0).unwrap();
    assert_eq!(channel.wait(Some(DEADLINE)).unwrap().unwrap().queue_id(), b.cq.id());
    b.qp.destroy().unwrap();
    b.cq.destroy().unwrap();
    let copy = channel.clone();
    refused(channel.destroy(), Errno::EBUSY, &["copies"]);
    copy.destroy().unwrap();
}

fn a_cq_with_an_event_not_dropped_is_busy() {
    let Pair { mut a, mut b } = events();
    b.receive_nothing(0..2);
    let mut held = Vec::new();
    for wr_id in 0..2 {
        b.cq.arm(false).unwrap();
        a.send_nothing(wr_id).unwrap();
        held.push(b.channel().wait(Some(DEADLINE)).unwrap().unwrap());
    }
    b.qp.destroy().unwrap();
    let error = b.cq.destroy().unwrap_err();
    refused(Err::<(), _>(error.error().clone()), Errno::EBUSY, &["2 of its events are not acknowledged"]);
    held.pop();
    let error = error.into_inner().destroy().unwrap_err();
    refused(Err::<(), _>(error.error().clone()), Errno::EBUSY, &["1 of its events"]);
    held.pop();
    let mut cq = error.into_inner();
    assert_eq!(succeeded(&poll_for(&mut cq, 2)), [0, 1]);
    cq.destroy().unwrap();
}

fn an_event_outlives_its_cq_and_channel() {
    let Pair { mut a, mut b } = events();
    b.receive_nothing(0..1);
    b.cq.arm(false).unwrap();
    a.send_nothing(0).unwrap();
    let event = b.channel().wait(Some(DEADLINE)).unwrap().unwrap();
    let id = b.cq.id();
    drop(b);
    assert_eq!(event.queue_id(), id);
}

fn vb_01_arming_a_cq_that_is_not_empty_raises_no_event() {
    let Pair { mut a, mut b } = events();
    b.receive_nothing(0..1);
    assert!(b.cq.poll(&mut [WorkCompletion::default(); 1]).is_empty());
    a.send(5, 0..0);
    // When the sender has its completion the receiver has had the message.
    succeeded(&poll_for(&mut a.cq, 1));
    b.cq.arm(false).unwrap();
    assert!(!event_now(b.channel()));
    assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [0]);
}

fn vb_01_two_completions_after_arming_raise_one_event() {
    let Pair { mut a, mut b } = events();
    b.receive_nothing(0..2);
    b.cq.arm(false).unwrap();
    a.send(0, 0..0);
    a.send(1, 0..0);
    succeeded(&poll_for(&mut a.cq, 2));
    b.take_event();
    assert!(!event_now(b.channel()));
    assert_eq!(succeeded(&poll_for(&mut b.cq, 2)), [0, 1]);
}

fn vb_01_wait_sees_what_came_before_arming() {
    let Pair { mut a, mut b } = events();
    let mut completions = [WorkCompletion::default(); 4];
    for wr_id in 0..100 {
        b.receive_nothing(wr_id..wr_id + 1);
        assert!(b.cq.poll(&mut completions).is_empty());
        // Sometimes armed before, sometimes with an event left over from that.
        if wr_id % 3 == 0 {
            b.cq.arm(false).unwrap();
        }
        a.send(wr_id, 0..0);
        succeeded(&poll_for(&mut a.cq, 1));
        let start = Instant::now();
        assert_eq!(succeeded(b.cq.wait(&mut completions, Some(DEADLINE)).unwrap()), [wr_id]);
        assert!(start.elapsed() < DEADLINE / 2, "{:?}", start.elapsed());
    }
}

/// Messages timed to arrive just when `wait` has found the CQ empty and is about to arm it.
fn vb_01_completions_that_race_with_arming() {
    const MEASURED: usize = 100;
    const ROUNDS: u64 = 2000;
    let Pair { mut a, mut b } = events();
    let (start_sender, starts) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| starts.into_iter().for_each(|wr_id| a.send_nothing(wr_id).unwrap()));
        let mut latencies = Vec::new();
        for wr_id in 0..ROUNDS {
            b.receive_nothing(wr_id..wr_id + 1);
            let start = Instant::now();
            start_sender.send(wr_id).unwrap();
            if latencies.len() < MEASURED {
                poll_for(&mut b.cq, 1);
                latencies.push(start.elapsed());
                latencies.sort_unstable();
                continue;
            }
            // From half to one and a half of the usual time, in steps shorter than it takes to arm.
            let delay = latencies[MEASURED / 2].mul_f64(0.5 + (wr_id % 400) as f64 / 400.0);
            while start.elapsed() < delay {
                std::hint::spin_loop();
            }
            let mut completions = [WorkCompletion::default(); 2];
            assert_eq!(succeeded(b.cq.wait(&mut completions, Some(DEADLINE)).unwrap()), [wr_id]);
            // Without the wake-up it would come at the deadline.
            assert!(start.elapsed() < DEADLINE / 2, "{:?}", start.elapsed());
        }
        drop(start_sender);
    });
}

/// Four queue pairs report to one CQ that is waited on for one completion at a time.
fn vb_01_partial_batches_by_events_get_everything() {
    const PAIRS: usize = 4;
    const MESSAGES: usize = 1000;
    let context = open();
    let setup = Setup { events: true, ..Setup::default() };
    let mut sink = setup.end(&context);
    let domain = context.alloc_protection_domain().unwrap();
    let mut receivers = Vec::new();
    let mut senders = Vec::new();
    for _ in 0..PAIRS {
        let init = QueuePairInit { recv_cq: &sink.cq, ..setup.init(&sink.cq) };
        let mut receiver = domain.create_queue_pair(&init).unwrap();
        let mut sender = Setup::default().end(&context);
        setup.connect(&context, &mut sender.qp, &mut receiver);
        receivers.push(receiver);
        senders.push(sender);
    }
    std::thread::scope(|scope| {
        for sender in &mut senders {
            scope.spawn(|| {
                for wr_id in 0..MESSAGES as u64 {
                    sender.send(wr_id, 0..0);
                    assert_eq!(succeeded(&poll_for(&mut sender.cq, 1)), [wr_id]);
                }
            });
        }
        let mut next = [0_u64; PAIRS];
        for receiver in &mut receivers {
            for wr_id in 0..4 {
                receiver.post_receive(&[uverbs::ReceiveRequest::new(wr_id, &[])]).unwrap();
            }
        }
        for _ in 0..PAIRS * MESSAGES {
            let mut completions = [WorkCompletion::default(); 1];
            let completion = sink.cq.wait(&mut completions, Some(DEADLINE)).unwrap();
            let [completion] = completion else { panic!("nothing within {DEADLINE:?}: {next:?}") };
            let of = |qp: &uverbs::QueuePair| qp.qp_num() == completion.qp_num();
            let place = receivers.iter().position(of).unwrap();
            assert_eq!(succeeded(&[*completion]), [next[place]]);
            next[place] += 1;
            receivers[place].post_receive(&[uverbs::ReceiveRequest::new(next[place] + 3, &[])]).unwrap();
        }
        assert_eq!(next, [MESSAGES as u64; PAIRS]);
    });
}

fn vb_02_events_of_several_cqs_on_one_channel() {
    let context = open();
    let channel = context.create_completion_channel().unwrap();
    let domain = context.alloc_protection_domain().unwrap();
    let setup = Setup::default();
    let mut groups = Vec::new();
    for _ in 0..3 {
        let mut cq = context.create_completion_queue(4, Some(&channel), 0).unwrap();
        let mut qp = domain.create_queue_pair(&setup.init(&cq)).unwrap();
        let mut sender = setup.end(&context);
        setup.connect(&context, &mut sender.qp, &mut qp);
        qp.post_receive(&[uverbs::ReceiveRequest::new(9, &[])]).unwrap();
        cq.arm(false).unwrap();
        groups.push((cq, qp, sender));
    }
    for (_, _, sender) in &mut groups {
        sender.send_nothing(0).unwrap();
    }
    let mut events: Vec<_> =
        (0..3).map(|_| channel.wait(Some(DEADLINE)).unwrap().expect("an event of each")).collect();
    let mut ids: Vec<_> = events.iter().map(uverbs::CompletionEvent::queue_id).collect();
    ids.sort_unstable();
    let mut expected: Vec<_> = groups.iter().map(|(cq, ..)| cq.id()).collect();
    expected.sort_unstable();
    assert_eq!(ids, expected);
    assert!(ids[0] != ids[1] && ids[1] != ids[2]);

    // Each event is acknowledged on its own CQ: dropping one lets exactly that CQ go.
    let start = Instant::now();
    while let Some((cq, qp, _sender)) = groups.pop() {
        qp.destroy().unwrap();
        let (id, cq) = (cq.id(), cq.destroy().unwrap_err().into_inner());
        events.retain(|event| event.queue_id() != id);
        cq.destroy().unwrap();
    }
    assert!(start.elapsed() < DEADLINE, "{:?}", start.elapsed());
    channel.destroy().unwrap();
}

fn vb_04_a_nonblocking_channel_would_block() {
    let context = open();
    let Pair { mut a, mut b } = Setup { events: true, ..Setup::default() }.pair_in(&context);
    let error = b.channel().try_get_event().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    refused(Err::<(), _>(error), Errno::EAGAIN, &["get_cq_event"]);
    b.receive_nothing(0..1);
    b.cq.arm(false).unwrap();
    a.send_nothing(0).unwrap();
    wait_until("event", || b.channel().try_get_event().is_ok());
    refused(b.channel().try_get_event(), Errno::EAGAIN, &[]);
    assert!(!event_now(b.channel()));
}

fn vb_04_two_threads_and_one_event() {
    let Pair { mut a, mut b } = events();
    let channel = b.channel.take().unwrap();
    b.receive_nothing(0..20);
    for wr_id in 0..20 {
        b.cq.arm(false).unwrap();
        std::thread::scope(|scope| {
            let wait = || channel.wait(Some(Duration::from_millis(50))).unwrap().is_some();
            let threads = [scope.spawn(wait), scope.spawn(wait)];
            a.send_nothing(wr_id).unwrap();
            let got = threads.map(|thread| usize::from(thread.join().unwrap()));
            // On a machine so busy that both gave up before it came, it is still there.
            let late = usize::from(got == [0, 0] && channel.wait(Some(DEADLINE)).unwrap().is_some());
            assert_eq!(got[0] + got[1] + late, 1);
        });
        assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [wr_id]);
        refused(channel.try_get_event(), Errno::EAGAIN, &[]);
    }
}

/// An event that is there when the wait for it is over may be gone when it is read, with its CQ.
fn waits_end_in_time_while_cqs_go() {
    let context = open();
    let setup = Setup { events: true, ..Setup::default() };
    let Pair { mut a, mut b } = setup.pair_in(&context);
    let channel = b.channel.clone().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let start = Instant::now();
                drop(channel.wait(Some(Duration::from_millis(2))).unwrap());
                assert!(start.elapsed() < DEADLINE);
            }
        });
        for round in 0..200 {
            b.receive_nothing(round..round + 1);
            b.cq.arm(false).unwrap();
            a.send_nothing(round).unwrap();
            let mut other = context.create_completion_queue(1, Some(&channel), 0).unwrap();
            other.arm(false).unwrap();
            drop(other);
            assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [round]);
        }
        done.store(true, Ordering::Relaxed);
        waiter.join().unwrap();
    });
}

extern "C" fn ignore(_: nix::libc::c_int) {}

fn vb_04_signals_lose_nothing() {
    // Without SA_RESTART, so that calls return.
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    let Pair { mut a, mut b } = events();
    let channel = b.channel.take().unwrap();

    let done = AtomicBool::new(false);
    let pester = |thread: nix::libc::pthread_t, until: &dyn Fn() -> bool| {
        while !until() {
            pthread_kill(thread, Signal::SIGUSR1).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // It goes on, to its deadline or its event.
    let other = channel.clone();
    let start = Instant::now();
    let waiter = std::thread::spawn(move || other.wait(Some(MOMENT)).map(|event| event.is_some()));
    pester(waiter.as_pthread_t(), &|| waiter.is_finished());
    assert!(!waiter.join().unwrap().unwrap());
    assert!(start.elapsed() >= MOMENT);

    b.receive_nothing(0..1);
    b.cq.arm(false).unwrap();
    let other = channel.clone();
    let waiter = std::thread::spawn(move || other.wait(Some(DEADLINE)).map(|event| event.is_some()));
    let thread = waiter.as_pthread_t();
    std::thread::scope(|scope| {
        scope.spawn(|| pester(thread, &|| done.load(Ordering::Relaxed)));
        std::thread::sleep(Duration::from_millis(20));
        a.send_nothing(0).unwrap();
        wait_until("the waiter's end", || waiter.is_finished());
        done.store(true, Ordering::Relaxed);
    });
    assert!(waiter.join().unwrap().unwrap());
    assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [0]);
}
