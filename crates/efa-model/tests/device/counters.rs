//! Event counters.

use uverbs_efa_model::admin::abi::{AttachCounter, CounterHandle, CreateCounter, ModifyCounter};
use uverbs_efa_model::admin::{Opcode, QpKind, QpState, Status};
use uverbs_efa_model::config::QpEvents;
use uverbs_efa_model::io;

use crate::rig::{Pair, Qp, Work, config};

fn attach(handle: u32, qp: &Qp, events: QpEvents) -> AttachCounter {
    AttachCounter {
        handle: handle.into(),
        qp_handle: qp.handle.into(),
        events: events.bits().into(),
        ..AttachCounter::default()
    }
}

fn modify(handle: u32, operation: u8, value: u64) -> ModifyCounter {
    ModifyCounter { handle: handle.into(), operation, value: value.into(), ..ModifyCounter::default() }
}

/// A pair whose queue pairs have a counter for each of these events. The counters' addresses are by queue pair, then by
/// event.
fn counted(events: &[QpEvents]) -> (Pair, [Vec<u64>; 2]) {
    let mut config = config(0);
    config.limits.max_event_counters = 64;
    let mut pair = Pair::in_reset(config, QpKind::Srd);
    let addresses = pair.qp.map(|qp| {
        events
            .iter()
            .map(|event| {
                let (handle, address) = pair.node.counter(pair.uar);
                let status = pair.node.status(Opcode::AttachCounter, attach(handle, &qp, *event));
                assert_eq!(status, Status::Success);
                address
            })
            .collect()
    });
    pair.qp.iter().for_each(|qp| pair.node.ready(qp));
    (pair, addresses)
}

#[test]
fn every_event_is_counted() {
    let events: Vec<QpEvents> = QpEvents::all().iter().collect();
    let (mut pair, addresses) = counted(&events);
    let values = |pair: &Pair| {
        addresses.each_ref().map(|addresses| {
            let values = addresses.iter().map(|address| pair.node.load::<u64>(*address));
            values.collect::<Vec<u64>>()
        })
    };
    assert_eq!(values(&pair), [vec![0; 10], vec![0; 10]]);
    let range = (pair.mr.key, pair.mr.address, 4);
    let wrong = (pair.mr.key + 1, pair.mr.address, 4);
    let read = Work::Read { remote: range, local: range };
    let write = Work::Write { remote: range, local: range };
    let bad_read = Work::Read { remote: wrong, local: range };
    let bad_write = Work::Write { remote: wrong, local: range };

    // Two of everything that works, three of everything that fails.
    for _ in 0..2 {
        pair.post_receive(0, 0, 4);
        pair.post(&pair.request(0, Work::Inline(b"send")));
        pair.post(&pair.request(0, read.clone()));
        // Counted whether there is a completion or not.
        let mut unsignalled = pair.request(0, write.clone());
        unsignalled.signalled = false;
        pair.post(&unsignalled);
    }
    for _ in 0..3 {
        pair.post_receive(0, 0, 4);
        pair.post(&pair.request(0, Work::Inline(b"too long")));
        pair.post(&pair.request(0, bad_read.clone()));
        pair.post(&pair.request(0, bad_write.clone()));
    }
    let ours = vec![2, 3, 0, 0, 2, 3, 2, 3, 0, 0];
    let theirs = vec![0, 0, 2, 3, 0, 0, 0, 0, 2, 2];
    assert_eq!(values(&pair), [ours, theirs]);

    // A write with immediate data is a receive too.
    pair.post_receive(0, 0, 4);
    let mut request = pair.request(0, write);
    request.immediate = Some(1);
    pair.post(&request);
    let after = values(&pair);
    assert_eq!((after[0][6], after[1][2], after[1][9]), (3, 3, 3));
}

#[test]
fn one_counter_serves_several_queue_pairs() {
    let mut pair = Pair::in_reset(config(0), QpKind::Srd);
    let (handle, address) = pair.node.counter(pair.uar);
    let events = QpEvents::SEND_COMP | QpEvents::RECV_COMP;
    for qp in pair.qp {
        assert_eq!(pair.node.status(Opcode::AttachCounter, attach(handle, &qp, events)), Status::Success);
        pair.node.ready(&qp);
    }
    pair.post_receive(0, 0, 4);
    pair.post(&pair.request(0, Work::Inline(b"send")));
    assert_eq!(pair.node.load::<u64>(address), 2);
}

#[test]
fn counters_wrap_after_their_largest_value() {
    let mut config = config(0);
    config.limits.event_counter_max_value = 9;
    let mut pair = Pair::in_reset(config, QpKind::Srd);
    let (handle, address) = pair.node.counter(pair.uar);
    let command = attach(handle, &pair.qp[0], QpEvents::SEND_COMP_ERR);
    assert_eq!(pair.node.status(Opcode::AttachCounter, command), Status::Success);
    pair.node.ready(&pair.qp[0]);
    assert_eq!(pair.node.status(Opcode::ModifyCounter, modify(handle, 0, 8)), Status::Success);
    let mut wrong = pair.request(0, Work::Inline(&[]));
    wrong.ah = 99;
    let values: Vec<u64> = (0..3)
        .map(|_| {
            pair.post(&wrong);
            pair.node.load(address)
        })
        .collect();
    assert_eq!(values, [9, 0, 1]);
    for (operation, value, status, after) in [
        (1, 10, Status::Success, 1),
        (1, 12, Status::Success, 3),
        (1, u64::MAX, Status::Success, 8),
        (0, 9, Status::Success, 9),
        (0, 10, Status::IllegalParameter, 9),
        (2, 1, Status::IllegalParameter, 9),
    ] {
        assert_eq!(pair.node.status(Opcode::ModifyCounter, modify(handle, operation, value)), status);
        assert_eq!(pair.node.load::<u64>(address), after);
    }
}

#[test]
fn wrong_counters_are_refused() {
    let mut config = config(0);
    config.counter_events.remove(QpEvents::READ_COMP);
    config.limits.max_event_counters = 2;
    let mut pair = Pair::in_reset(config, QpKind::Srd);
    let qp = pair.qp[0];
    for address in [0x1004, 0x7fff_ffff_fff8] {
        let command =
            CreateCounter { uar: pair.uar.into(), address: u64::into(address), ..CreateCounter::default() };
        assert_eq!(pair.node.status(Opcode::CreateCounter, command), Status::IllegalParameter);
    }
    let command = CreateCounter { uar: 9.into(), address: 0x1000.into(), ..CreateCounter::default() };
    assert_eq!(pair.node.status(Opcode::CreateCounter, command), Status::IllegalParameter);
    let (one, _) = pair.node.counter(pair.uar);
    let (two, _) = pair.node.counter(pair.uar);
    let command = CreateCounter { uar: pair.uar.into(), address: 0x1000.into(), ..CreateCounter::default() };
    assert_eq!(pair.node.status(Opcode::CreateCounter, command), Status::ResourceAllocationFailure);

    let good = attach(one, &qp, QpEvents::SEND_COMP);
    for (command, status) in [
        (AttachCounter { handle: 9.into(), ..good }, Status::IllegalParameter),
        (AttachCounter { qp_handle: 9.into(), ..good }, Status::IllegalParameter),
        (AttachCounter { kind: 1, ..good }, Status::IllegalParameter),
        (AttachCounter { events: (1 << 10).into(), ..good }, Status::MalformedRequest),
        (attach(one, &qp, QpEvents::READ_COMP), Status::UnsupportedOpcode),
        (attach(one, &qp, QpEvents::empty()), Status::Success),
        (good, Status::Success),
        (good, Status::ResourceBusy),
        (attach(two, &qp, QpEvents::SEND_COMP | QpEvents::RECV_COMP), Status::ResourceBusy),
        (attach(two, &qp, QpEvents::RECV_COMP), Status::Success),
    ] {
        assert_eq!(pair.node.status(Opcode::AttachCounter, command), status, "{command:?}");
    }
    let destroy = |handle: u32| CounterHandle { handle: handle.into() };
    assert_eq!(pair.node.status(Opcode::DestroyCounter, destroy(one)), Status::ResourceBusy);
    let theirs = attach(one, &qp, QpEvents::RECV_COMP);
    assert_eq!(pair.node.status(Opcode::DetachCounter, theirs), Status::IllegalParameter);
    assert_eq!(pair.node.status(Opcode::DetachCounter, good), Status::Success);
    assert_eq!(pair.node.status(Opcode::DestroyCounter, destroy(one)), Status::Success);
    assert_eq!(pair.node.status(Opcode::DestroyCounter, destroy(one)), Status::IllegalParameter);
    assert_eq!(pair.node.status(Opcode::ModifyCounter, modify(one, 0, 0)), Status::IllegalParameter);

    // Too late once the queue pair is ready; destroying it detaches.
    pair.node.ready(&qp);
    let late = attach(two, &qp, QpEvents::SEND_COMP);
    assert_eq!(pair.node.status(Opcode::AttachCounter, late), Status::IllegalParameter);
    let handle = uverbs_efa_model::admin::abi::QpHandle { handle: qp.handle.into() };
    assert_eq!(pair.node.status(Opcode::DestroyQp, handle), Status::Success);
    assert_eq!(pair.node.status(Opcode::DestroyCounter, destroy(two)), Status::Success);
}

#[test]
fn flushed_requests_count_as_failed() {
    let (mut pair, addresses) = counted(&[QpEvents::SEND_COMP_ERR, QpEvents::RECV_COMP_ERR]);
    pair.post_receive(0, 0, 4);
    assert_eq!(pair.node.modify(&pair.qp[1], QpState::Error), Status::Success);
    assert_eq!(pair.poll(1).unwrap().status, io::Status::Flushed);
    assert_eq!(pair.node.load::<u64>(addresses[1][1]), 1);
}
