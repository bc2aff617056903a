//! Messages: sizes, contents, inline data, lists, full queues, signaling, and long runs.

use nix::errno::Errno;
use uverbs::{
    CompletionOpcode, PostReason, QueuePairCapabilities, ReceiveRequest, SendRequest, WorkCompletion,
};

use crate::common::{
    DEADLINE, End, Pair, Setup, pair, pattern, poll_for, poll_for_none, refused, succeeded, wait_until,
};

crate::cases! {
    Shared messages_of_every_size;
    Shared sp_1_immediate_data_arrives_in_host_order;
    Shared vb_08_pieces_are_gathered_and_scattered;
    Shared vb_08_inline_pieces;
    Shared vb_08_what_does_not_fit_inline_posts_nothing;
    Shared vb_10_exactly_what_was_granted_fits;
    Shared vb_10_receive_queues_fill_up_exactly;
    Shared a_batch_that_is_dropped_posts_nothing;
    Shared vb_16_unsignaled_sends_make_no_completions;
    Shared vb_16_signal_all;
    Shared ping_pong_by_polling;
    Shared ping_pong_by_events;
    Shared ping_pong_between_threads;
    Shared streams_between_threads;
}

fn messages_of_every_size() {
    const MOST: usize = 1 << 20;
    let mut pair = Setup { memory: MOST, ..Setup::default() }.pair();
    let Pair { a, b } = &mut pair;
    for (wr_id, size) in [0, 1, 64, 1023, 1024, 1025, 4096, 65536, MOST].into_iter().enumerate() {
        let (wr_id, sent) = (wr_id as u64, pattern(size, size));
        a.memory.write(0, &sent);
        b.memory.write(0, &vec![0xa5; MOST]);
        b.receive(100 + wr_id, 0..size);
        a.send(wr_id, 0..size);
        let [done] = poll_for(&mut a.cq, 1)[..] else { unreachable!() };
        assert_eq!((done.wr_id(), done.qp_num()), (wr_id, a.qp.qp_num()));
        assert_eq!(done.success().unwrap().opcode(), CompletionOpcode::Send);
        let [received] = poll_for(&mut b.cq, 1)[..] else { unreachable!() };
        assert_eq!((received.wr_id(), received.qp_num()), (100 + wr_id, b.qp.qp_num()));
        let success = received.success().unwrap();
        assert_eq!(success.opcode(), CompletionOpcode::Receive);
        assert_eq!((success.byte_len() as usize, success.immediate()), (size, None));
        assert!(b.bytes(0..size) == sent, "{size} bytes did not arrive as they were sent");
        assert!(b.bytes(size..MOST).iter().all(|byte| *byte == 0xa5), "more than {size} bytes were written");
    }
    // No SGE at all is an empty message too.
    pair.works();
}

fn sp_1_immediate_data_arrives_in_host_order() {
    let Pair { mut a, mut b } = pair();
    b.receive_nothing(0..2);
    let list = [
        SendRequest::send(0, &[]).immediate(0x0102_0304),
        SendRequest::send(1, &[]),
        SendRequest::send_inline(2, &[b"x"]).immediate(0),
    ];
    b.receive(2, 0..8);
    a.qp.post_send_list(&list[..2]).unwrap();
    let received = poll_for(&mut b.cq, 2);
    let immediate = |completion: &WorkCompletion| completion.success().unwrap().immediate();
    assert_eq!(received.iter().map(immediate).collect::<Vec<_>>(), [Some(0x0102_0304), None]);
    a.qp.post_send_list(&list[2..]).unwrap();
    let received = poll_for(&mut b.cq, 1);
    assert_eq!((immediate(&received[0]), received[0].success().unwrap().byte_len()), (Some(0), 1));
}

fn vb_08_pieces_are_gathered_and_scattered() {
    let Pair { mut a, mut b } = pair();
    let sent = pattern(8, 4096);
    a.memory.write(0, &sent);
    // 10, 0, 20 and 30 bytes, not in order; received in 7, 1, 0 and 52.
    let from = [a.memory.sge(100..110), a.memory.sge(50..50), a.memory.sge(0..20), a.memory.sge(1000..1030)];
    let into = [b.memory.sge(8..15), b.memory.sge(0..1), b.memory.sge(100..100), b.memory.sge(200..300)];
    b.qp.post_receive(&[ReceiveRequest::new(1, &into)]).unwrap();
    a.qp.post_send_list(&[SendRequest::send(2, &from).signaled()]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [2]);
    assert_eq!(poll_for(&mut b.cq, 1)[0].success().unwrap().byte_len(), 60);
    let message = [&sent[100..110], &sent[0..20], &sent[1000..1030]].concat();
    let received = [b.bytes(8..15), b.bytes(0..1), b.bytes(200..252)].concat();
    assert_eq!(received, message);
    assert!(b.bytes(252..300).iter().all(|byte| *byte == 0));

    let five = [a.memory.sge(0..1); 5];
    refused(
        a.qp.post_send_list(&[SendRequest::send(0, &[]), SendRequest::send(0, &five)]),
        Errno::EINVAL,
        &["request 1", "5 SGEs", "room for 4"],
    );
    let long = [uverbs::ScatterGather { address: 0, length: u32::MAX, lkey: 0 }; 2];
    let error = a.qp.post_send_list(&[SendRequest::send(0, &long)]).unwrap_err();
    assert_eq!(error.reason, PostReason::MessageTooLong { length: 2 * u64::from(u32::MAX) });
    let error = b.qp.post_receive(&[ReceiveRequest::new(0, &five)]).unwrap_err();
    assert_eq!((error.index, error.reason), (0, PostReason::TooManySges { given: 5, most: 4 }));
}

fn vb_08_inline_pieces() {
    let mut setup = Setup::default();
    setup.capabilities.max_inline_data = 220;
    let Pair { mut a, mut b } = setup.pair();
    let most = a.qp.capabilities().max_inline_data as usize;
    assert!(most >= 220);
    let data = pattern(1, most);
    let all: Vec<&[u8]> = data.chunks(1).collect();
    let lists: [&[&[u8]]; 8] = [
        &[&data[..10], &data[10..30], &data[30..60]],
        &[&data[..3], &data[3..3], &data[3..7], &data[7..12]],
        &[],
        &[&[]],
        &[&data[..1]],
        &[&data],
        &[&data[..most - 1], &data[most - 1..]],
        &all,
    ];
    for (wr_id, parts) in lists.into_iter().enumerate() {
        let wr_id = wr_id as u64;
        let message = parts.concat();
        for batch in [false, true] {
            b.memory.write(0, &[0xa5; 1024]);
            b.receive(wr_id, 0..1024);
            let request = SendRequest::send_inline(wr_id, parts).signaled();
            if batch {
                a.qp.post_send().push(&request).submit().unwrap();
            } else {
                a.qp.post_send_list(&[request]).unwrap();
            }
            assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [wr_id]);
            let received = poll_for(&mut b.cq, 1);
            assert_eq!(received[0].success().unwrap().byte_len() as usize, message.len());
            assert_eq!(b.bytes(0..message.len()), message);
            assert!(b.bytes(message.len()..1024).iter().all(|byte| *byte == 0xa5));
        }
    }
    // The bytes are copied when they are posted.
    let mut bytes = *b"before";
    a.qp.post_send_list(&[SendRequest::send_inline(0, &[&bytes])]).unwrap();
    bytes.copy_from_slice(b"after!");
    b.receive(0, 0..6);
    poll_for(&mut b.cq, 1);
    assert_eq!((b.bytes(0..6), &bytes), (b"before".to_vec(), b"after!"));
}

fn vb_08_what_does_not_fit_inline_posts_nothing() {
    let Pair { mut a, mut b } = pair();
    let most = a.qp.capabilities().max_inline_data as usize;
    let data = pattern(2, most);
    let reason = PostReason::InlineTooLong { length: most as u64 + 1, most };
    // Each part fits, all together do not.
    let parts: [&[u8]; 2] = [&data, &data[..1]];
    b.receive_nothing(1..3);
    let error = a.qp.post_send_list(&[SendRequest::send_inline(1, &parts).signaled()]).unwrap_err();
    assert_eq!((error.index, error.reason, error.errno()), (0, reason, Errno::EINVAL as i32));
    let error =
        a.qp.post_send()
            .push(&SendRequest::send(1, &[]).signaled())
            .push(&SendRequest::send_inline(2, &parts).signaled())
            .push(&SendRequest::send(3, &[]).signaled())
            .submit()
            .unwrap_err();
    assert_eq!((error.index, error.reason), (1, reason));
    // The next send is the only message that arrives.
    a.qp.post_send_list(&[SendRequest::send(4, &[]).immediate(44).signaled()]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [4]);
    assert_eq!(poll_for(&mut b.cq, 1)[0].success().unwrap().immediate(), Some(44));
    poll_for_none(&mut a.cq);
    poll_for_none(&mut b.cq);
    let result = a.qp.post_send().push(&SendRequest::send_inline(2, &parts)).submit();
    refused(
        result,
        Errno::EINVAL,
        &["request 0", &*format!("{} bytes inline", most + 1), &*format!("room for {most}")],
    );
}

/// A pair whose sends stay in the queue until the peer posts receives.
fn pair_of_depth(depth: u32) -> Pair {
    let one = QueuePairCapabilities::default();
    let capabilities = QueuePairCapabilities { max_send_wr: depth, max_recv_wr: depth, ..one };
    Setup { capabilities, ..Setup::default() }.pair()
}

fn vb_10_exactly_what_was_granted_fits() {
    for depth in [1, 2, 3, 7, 8, 15] {
        let Pair { mut a, mut b } = pair_of_depth(depth);
        let granted = a.qp.capabilities().max_send_wr as usize;
        assert!(granted >= depth as usize);
        // Each round starts one slot before the last one did, so that every slot has its turn at the end of the ring.
        for round in 0..granted + 2 {
            let ids = 0..granted as u64;
            let requests: Vec<_> = (0..=granted as u64)
                .map(|wr_id| SendRequest::send(wr_id, &[]).immediate(wr_id as u32).signaled())
                .collect();
            let (last, rest) = requests.split_last().unwrap();
            match round % 3 {
                0 => rest.iter().for_each(|request| a.qp.post_send_list(&[*request]).unwrap()),
                1 => {
                    let error = a.qp.post_send_list(&requests).unwrap_err();
                    assert_eq!((error.index, error.reason), (granted, PostReason::QueueFull));
                }
                _ => {
                    // All or nothing.
                    let batch = requests.iter().fold(a.qp.post_send(), |batch, request| batch.push(request));
                    let error = batch.submit().unwrap_err();
                    assert_eq!((error.index, error.reason), (granted, PostReason::QueueFull));
                    rest.iter()
                        .fold(a.qp.post_send(), |batch, request| batch.push(request))
                        .submit()
                        .unwrap();
                }
            }
            refused(a.qp.post_send_list(&[*last]), Errno::ENOMEM, &["request 0", "full"]);
            let refused = a.qp.post_send().push(last).submit().unwrap_err();
            assert_eq!((refused.index, refused.errno()), (0, Errno::ENOMEM as i32));

            b.receive_nothing(ids.clone());
            assert_eq!(succeeded(&poll_for(&mut a.cq, granted)), ids.clone().collect::<Vec<_>>());
            let received = poll_for(&mut b.cq, granted);
            let numbers = received.iter().map(|done| u64::from(done.success().unwrap().immediate().unwrap()));
            assert_eq!(numbers.collect::<Vec<_>>(), ids.collect::<Vec<_>>(), "depth {depth}, round {round}");
        }
    }
}

fn vb_10_receive_queues_fill_up_exactly() {
    for depth in [1, 3, 8] {
        let Pair { mut a, mut b } = pair_of_depth(depth);
        let granted = b.qp.capabilities().max_recv_wr as usize;
        for round in 0..granted + 2 {
            let requests: Vec<_> =
                (0..=granted as u64).map(|wr_id| ReceiveRequest::new(wr_id, &[])).collect();
            if round % 2 == 0 {
                let error = b.qp.post_receive(&requests).unwrap_err();
                assert_eq!((error.index, error.reason), (granted, PostReason::QueueFull));
            } else {
                b.receive_nothing(0..granted as u64);
            }
            refused(b.qp.post_receive(&requests[..1]), Errno::ENOMEM, &["request 0", "full"]);
            for wr_id in 0..granted as u64 {
                a.send(wr_id, 0..0);
                succeeded(&poll_for(&mut a.cq, 1));
            }
            let ids: Vec<_> = (0..granted as u64).collect();
            assert_eq!(succeeded(&poll_for(&mut b.cq, granted)), ids, "depth {depth}, round {round}");
        }
    }
}

fn a_batch_that_is_dropped_posts_nothing() {
    let Pair { mut a, mut b } = pair();
    b.receive_nothing(1..4);
    let request = SendRequest::send(1, &[]).signaled();
    drop(a.qp.post_send().push(&request).push(&request));
    a.qp.post_send().submit().unwrap();
    drop(a.qp.post_send());
    a.qp.post_send_list(&[]).unwrap();
    b.qp.post_receive(&[]).unwrap();
    poll_for_none(&mut b.cq);
    a.qp.post_send().push(&SendRequest::send(7, &[]).immediate(7).signaled()).submit().unwrap();
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [7]);
    assert_eq!(poll_for(&mut b.cq, 1)[0].success().unwrap().immediate(), Some(7));
    poll_for_none(&mut a.cq);
    poll_for_none(&mut b.cq);
}

fn vb_16_unsignaled_sends_make_no_completions() {
    let one = QueuePairCapabilities::default();
    let capabilities = QueuePairCapabilities { max_send_wr: 4, max_recv_wr: 63, ..one };
    let Pair { mut a, mut b } = Setup { capabilities, ..Setup::default() }.pair();
    b.receive_nothing(0..63);
    let mut accepted = 0;
    for wr_id in 0..40 {
        match a.send_nothing(wr_id) {
            Ok(()) => accepted += 1,
            Err(error) => assert_eq!((error.index, error.reason), (0, PostReason::QueueFull)),
        }
    }
    assert!(accepted >= a.qp.capabilities().max_send_wr, "{accepted}");
    succeeded(&poll_for(&mut b.cq, accepted as usize));
    poll_for_none(&mut a.cq);
    let signaled = [SendRequest::send(77, &[]).signaled()];
    wait_until("room in the queue", || a.qp.post_send_list(&signaled).is_ok());
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [77]);
    // A failure makes a completion, signaled or not.
    let mut wrong = a.memory.sge(0..8);
    wrong.lkey ^= 0xff00;
    a.qp.post_send_list(&[SendRequest::send(78, &[wrong])]).unwrap();
    let failed = poll_for(&mut a.cq, 1)[0].success().unwrap_err();
    assert_eq!(failed.wr_id, 78);
    poll_for_none(&mut a.cq);
}

fn vb_16_signal_all() {
    let Pair { mut a, mut b } = Setup { signal_all: true, ..Setup::default() }.pair();
    b.receive_nothing(0..10);
    for wr_id in 0..10 {
        a.send_nothing(wr_id).unwrap();
    }
    assert_eq!(succeeded(&poll_for(&mut a.cq, 10)), (0..10).collect::<Vec<_>>());
    poll_for_none(&mut a.cq);
}

const ROUNDS: u64 = 10_000;

/// One end of a ping-pong: each message carries its number.
struct Player {
    end: End,
    by_events: bool,
}

impl Player {
    fn serve(&mut self, number: u64) {
        self.end.memory.write(0, &number.to_ne_bytes());
        let sges = [self.end.memory.sge(0..8)];
        let request = SendRequest::send(number, &sges);
        // Every eighth, so that the queue cannot fill up with what has not been reported.
        let request = if number.is_multiple_of(8) { request.signaled() } else { request };
        self.end.qp.post_send_list(&[request]).unwrap();
    }

    fn expect_receive(&mut self, number: u64) {
        let place = 64 + (number % 4) as usize * 8;
        self.end.receive(number, place..place + 8);
    }

    /// Waits for the message with this number.
    fn take(&mut self, number: u64) {
        loop {
            let mut completions = [WorkCompletion::default(); 1];
            let completion = if self.by_events {
                let found = self.end.cq.wait(&mut completions, Some(DEADLINE)).unwrap();
                *found.first().unwrap_or_else(|| panic!("message {number} is missing"))
            } else {
                poll_for(&mut self.end.cq, 1)[0]
            };
            let success = completion.success().unwrap();
            if success.opcode() == CompletionOpcode::Receive {
                assert_eq!((completion.wr_id(), success.byte_len()), (number, 8));
                break;
            }
        }
        let place = 64 + (number % 4) as usize * 8;
        let bytes = self.end.bytes(place..place + 8);
        assert_eq!(u64::from_ne_bytes(bytes.try_into().unwrap()), number);
    }
}

fn players(by_events: bool) -> [Player; 2] {
    let Pair { a, b } = Setup { events: by_events, ..Setup::default() }.pair();
    [Player { end: a, by_events }, Player { end: b, by_events }]
}

fn ping_pong_in_one_thread(by_events: bool) {
    let [mut a, mut b] = players(by_events);
    for number in 0..ROUNDS {
        b.expect_receive(number);
        a.expect_receive(number);
        a.serve(number);
        b.take(number);
        b.serve(number);
        a.take(number);
    }
}

fn ping_pong_by_polling() {
    ping_pong_in_one_thread(false);
}

fn ping_pong_by_events() {
    ping_pong_in_one_thread(true);
}

fn ping_pong_between_threads() {
    let [mut a, mut b] = players(true);
    b.expect_receive(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..ROUNDS / 4 {
                b.take(number);
                b.expect_receive(number + 1);
                b.serve(number);
            }
        });
        for number in 0..ROUNDS / 4 {
            a.expect_receive(number);
            a.serve(number);
            a.take(number);
        }
    });
}

/// Both ends send as fast as they can, each in a thread, with up to eight messages under way each way.
fn streams_between_threads() {
    const MESSAGES: u64 = 5000;
    const WINDOW: u64 = 8;
    const SIZE: usize = 256;
    let Pair { a, b } = pair();
    let run = |mut end: End, seed: usize| {
        let slot = |number: u64| {
            let place = (number % WINDOW) as usize * SIZE;
            (place..place + SIZE, place + 2048..place + 2048 + SIZE)
        };
        for number in 0..WINDOW {
            end.receive(number, slot(number).1);
        }
        let (mut sent, mut completed, mut received) = (0, 0, 0);
        while completed < MESSAGES || received < MESSAGES {
            while sent < MESSAGES && sent - completed < WINDOW {
                let (from, _) = slot(sent);
                end.memory.write(from.start, &pattern(seed + sent as usize, SIZE));
                end.send(sent, from);
                sent += 1;
            }
            let completion = poll_for(&mut end.cq, 1)[0];
            if completion.success().unwrap().opcode() == CompletionOpcode::Send {
                assert_eq!(completion.wr_id(), completed);
                completed += 1;
            } else {
                assert_eq!(completion.wr_id(), received);
                let (_, into) = slot(received);
                assert_eq!(end.bytes(into.clone()), pattern(1 - seed + received as usize, SIZE));
                end.receive(received + WINDOW, into);
                received += 1;
            }
        }
        // Alive until the other end is done.
        end
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(b, 1));
        let a = run(a, 0);
        drop((a, other.join().unwrap()));
    });
}
