//! Asynchronous events: of ports, of the device, and of objects.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use uverbs::{
    AccessFlags, AddressVector, AsyncEvent, AsyncEventElement, AsyncEventType, AsyncEvents, CompletionStatus,
    Context, ErrorKind, GidEntry, ModifyQueuePair, Mtu, PortState, QueuePairInit, QueuePairState,
    QueuePairType, ReceiveRequest, RemoteMemory, SendRequest,
};

use crate::common::{
    DEADLINE, End, MOMENT, PORT, Pair, Setup, open, own_gid, poll_for, poll_for_none, refused, succeeded,
    wait_until,
};
use crate::lifetime::kernel_version;
use crate::soft::SoftDevice;

crate::cases! {
    Shared vb_04_the_file_is_nonblocking;
    Shared vb_04_two_threads_and_one_event;
    Shared vb_05_an_overrun_names_its_cq;
    Shared events_of_a_cq_that_is_gone_are_skipped;
    Shared objects_may_be_dropped_before_their_events;
    Shared the_limit_of_an_srq_is_reached_once;
    Shared the_last_wqe_of_a_queue_pair_with_an_srq;
    Shared an_access_violation_names_its_queue_pair;
    Shared a_drained_send_queue_says_so;
    Shared gids_change;
    Shared ports_go_down_and_up;
    Shared nothing_goes_out_of_a_port_that_is_down;
    Unplugging the_last_event_of_a_device;
}

/// The next event of that kind. Others are of ports: the tests share the device.
#[track_caller]
fn event_of(events: &AsyncEvents, kind: AsyncEventType) -> AsyncEvent {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let event = events.wait(Some(left)).unwrap().unwrap_or_else(|| panic!("no {kind:?}"));
        if event.kind() == kind {
            return event;
        }
        assert!(matches!(event.element(), AsyncEventElement::Port(1)), "{event:?}");
    }
}

/// No event of an object comes.
fn no_event_of_objects(events: &AsyncEvents) {
    let deadline = Instant::now() + MOMENT;
    while let Some(event) = events.wait(Some(deadline.saturating_duration_since(Instant::now()))).unwrap() {
        assert!(matches!(event.element(), AsyncEventElement::Port(1)), "{event:?}");
    }
}

/// A pair whose second end's CQ is about to overrun.
fn overrun(context: &Context) -> Pair {
    let small = Setup { entries: 1, ..Setup::default() };
    let (mut a, mut b) = (Setup::default().end(context), small.end(context));
    Setup { retry_count: 1, timeout: 12, ..small }.connect(context, &mut a.qp, &mut b.qp);
    b.receive_nothing(0..3);
    for wr_id in 0..3 {
        a.send_nothing(wr_id).unwrap();
    }
    Pair { a, b }
}

fn vb_04_the_file_is_nonblocking() {
    let context = open();
    let events = context.async_events();
    let error = events.try_get_event().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    refused(Err::<(), _>(error), Errno::EAGAIN, &["get_async_event"]);
    for timeout in [Duration::ZERO, Duration::from_millis(50)] {
        let start = Instant::now();
        assert!(events.wait(Some(timeout)).unwrap().is_none());
        let took = start.elapsed();
        assert!(took >= timeout && took < timeout + DEADLINE / 5, "{timeout:?} took {took:?}");
    }
    // It keeps the context open, as a copy of it does.
    let context = context.close().unwrap_err().into_inner();
    drop(events);
    context.close().unwrap();
}

fn vb_04_two_threads_and_one_event() {
    let context = open();
    let mut srq = context.alloc_protection_domain().unwrap().create_shared_receive_queue(4, 1).unwrap();
    let cq = context.create_completion_queue(64, None, 0).unwrap();
    let init = QueuePairInit { shared_receive_queue: Some(&srq), ..Setup::default().init(&cq) };
    let mut qp = srq.protection_domain().create_queue_pair(&init).unwrap();
    let mut sender = Setup::default().end(&context);
    Setup::default().connect(&context, &mut sender.qp, &mut qp);
    let events = context.async_events();
    for round in 0..10 {
        srq.post_receive(&[ReceiveRequest::new(round, &[])]).unwrap();
        srq.set_limit(1).unwrap();
        std::thread::scope(|scope| {
            let wait = || {
                let event = events.wait(Some(Duration::from_millis(50))).unwrap();
                event.is_some_and(|event| event.kind() == AsyncEventType::SharedReceiveQueueLimitReached)
            };
            let threads = [scope.spawn(wait), scope.spawn(wait)];
            sender.send_nothing(round).unwrap();
            let got = threads.map(|thread| usize::from(thread.join().unwrap()));
            // On a machine so busy that both gave up before it came, it is still there.
            if got == [0, 0] {
                drop(event_of(&events, AsyncEventType::SharedReceiveQueueLimitReached));
            } else {
                assert_eq!(got[0] + got[1], 1);
            }
        });
        no_event_of_objects(&events);
    }
}

fn vb_05_an_overrun_names_its_cq() {
    let context = open();
    let Pair { a, b } = overrun(&context);
    let event = event_of(&context.async_events(), AsyncEventType::CompletionQueueError);
    assert_eq!(event.element(), AsyncEventElement::CompletionQueue(b.cq.id()));
    assert_eq!(event.to_string(), format!("CQ error, CQ {}", b.cq.id()));
    wait_until("queue pair in error", || b.qp.query().unwrap().state == QueuePairState::Error);
    // The event holds up its own CQ and no other.
    b.qp.destroy().unwrap();
    a.qp.destroy().unwrap();
    a.cq.destroy().unwrap();
    let error = b.cq.destroy().unwrap_err();
    let text = "1 of its events are not acknowledged";
    refused(Err::<(), _>(error.error().clone()), Errno::EBUSY, &["destroy_cq", text]);
    drop(event);
    error.into_inner().destroy().unwrap();
}

fn events_of_a_cq_that_is_gone_are_skipped() {
    let context = open();
    let Pair { a, b } = overrun(&context);
    wait_until("queue pair in error", || b.qp.query().unwrap().state == QueuePairState::Error);
    let End { qp, cq, .. } = b;
    qp.destroy().unwrap();
    cq.destroy().unwrap();
    no_event_of_objects(&context.async_events());
    drop(a);
}

fn objects_may_be_dropped_before_their_events() {
    let context = open();
    let Pair { a, b } = overrun(&context);
    let event = event_of(&context.async_events(), AsyncEventType::CompletionQueueError);
    let id = b.cq.id();
    let start = Instant::now();
    drop((a, b));
    assert!(start.elapsed() < DEADLINE / 2, "{:?}", start.elapsed());
    assert_eq!(event.element(), AsyncEventElement::CompletionQueue(id));
    context.close().unwrap();
    drop(event);
}

fn the_limit_of_an_srq_is_reached_once() {
    let context = open();
    let events = context.async_events();
    let domain = context.alloc_protection_domain().unwrap();
    let mut cq = context.create_completion_queue(64, None, 0).unwrap();
    let mut srq = domain.create_shared_receive_queue(15, 1).unwrap();
    let init = QueuePairInit { shared_receive_queue: Some(&srq), ..Setup::default().init(&cq) };
    let mut qp = domain.create_queue_pair(&init).unwrap();
    let mut sender = Setup::default().end(&context);
    Setup::default().connect(&context, &mut sender.qp, &mut qp);
    for wr_id in 0..10 {
        srq.post_receive(&[ReceiveRequest::new(wr_id, &[])]).unwrap();
    }
    let mut consume = |count: usize| {
        for _ in 0..count {
            sender.send_nothing(0).unwrap();
        }
        succeeded(&poll_for(&mut cq, count));
    };
    srq.set_limit(8).unwrap();
    consume(2);
    no_event_of_objects(&events);
    consume(1);
    let event = event_of(&events, AsyncEventType::SharedReceiveQueueLimitReached);
    assert_eq!(event.element(), AsyncEventElement::SharedReceiveQueue(srq.id()));
    assert_eq!(srq.query().unwrap().limit, 0);
    consume(2);
    no_event_of_objects(&events);
    // Armed again, it comes again, with the queue resized in between.
    srq.set_limit(5).unwrap();
    srq.resize(100).unwrap();
    consume(1);
    let other = event_of(&events, AsyncEventType::SharedReceiveQueueLimitReached);
    assert_eq!(other.element(), AsyncEventElement::SharedReceiveQueue(srq.id()));

    qp.destroy().unwrap();
    let error = srq.destroy().unwrap_err();
    let text = "2 of its events are not acknowledged";
    refused(Err::<(), _>(error.error().clone()), Errno::EBUSY, &["destroy_srq", text]);
    drop((event, other));
    error.into_inner().destroy().unwrap();
}

fn the_last_wqe_of_a_queue_pair_with_an_srq() {
    let context = open();
    let events = context.async_events();
    let cq = context.create_completion_queue(4, None, 0).unwrap();
    let srq = context.alloc_protection_domain().unwrap().create_shared_receive_queue(4, 1).unwrap();
    let init = QueuePairInit { shared_receive_queue: Some(&srq), ..Setup::default().init(&cq) };
    let mut qp = srq.protection_domain().create_queue_pair(&init).unwrap();
    let mut other = Setup::default().end(&context);
    Setup::default().connect(&context, &mut other.qp, &mut qp);
    qp.modify(&ModifyQueuePair::to(QueuePairState::Error)).unwrap();
    if kernel_version() <= (6, 1) {
        // Its soft-RoCE does not tell.
        return;
    }
    let event = event_of(&events, AsyncEventType::LastWqeReached);
    assert_eq!(event.element(), AsyncEventElement::QueuePair(qp.qp_num()));
    let error = qp.destroy().unwrap_err();
    let text = "1 of its events are not acknowledged";
    refused(Err::<(), _>(error.error().clone()), Errno::EBUSY, &["destroy_qp", text]);
    drop(event);
    // soft-RoCE may tell more than once.
    while events.wait(Some(MOMENT)).unwrap().is_some() {}
    error.into_inner().destroy().unwrap();
    srq.destroy().unwrap();
}

fn an_access_violation_names_its_queue_pair() {
    let context = open();
    let events = context.async_events();
    let Pair { mut a, mut b } = Setup::default().pair_in(&context);
    let access = Some(AccessFlags::REMOTE_WRITE);
    b.qp.modify(&ModifyQueuePair { access_flags: access, ..ModifyQueuePair::default() }).unwrap();
    let nowhere = RemoteMemory { address: 4096, rkey: 0x1234_5600 };
    let sges = [a.memory.sge(0..8)];
    a.qp.post_send_list(&[SendRequest::rdma_write(1, &sges, nowhere).signaled()]).unwrap();
    let failed = poll_for(&mut a.cq, 1);
    assert_eq!(failed[0].status(), uverbs::CompletionStatus::REM_ACCESS_ERR);
    wait_until("queue pair in error", || b.qp.query().unwrap().state == QueuePairState::Error);
    if kernel_version() <= (6, 12) {
        // Its soft-RoCE does not tell.
        return;
    }
    let event = event_of(&events, AsyncEventType::QueuePairAccessError);
    assert_eq!(event.element(), AsyncEventElement::QueuePair(b.qp.qp_num()));
}

fn a_drained_send_queue_says_so() {
    let context = open();
    let Pair { mut a, mut b } = Setup::default().pair_in(&context);
    b.receive_nothing(0..4);
    (0..4).for_each(|wr_id| a.send_nothing(wr_id).unwrap());
    let drain =
        ModifyQueuePair { sqd_notify: Some(true), ..ModifyQueuePair::to(QueuePairState::SendQueueDrained) };
    a.qp.modify(&drain).unwrap();
    let event = event_of(&context.async_events(), AsyncEventType::SendQueueDrained);
    assert_eq!(event.element(), AsyncEventElement::QueuePair(a.qp.qp_num()));
    assert_eq!(a.qp.query().unwrap().state, QueuePairState::SendQueueDrained);
}

fn gids_change() {
    let soft = SoftDevice::new();
    let context = soft.device().open().unwrap();
    let events = context.async_events();
    let before = context.gid_table().unwrap();
    let address = Ipv4Addr::new(192, 168, 79, 1);
    soft.add_address(address);
    assert_eq!(event_of(&events, AsyncEventType::GidChange).element(), AsyncEventElement::Port(1));
    let has_it = |entries: &[GidEntry]| entries.iter().any(|entry| entry.gid.to_ipv4() == Some(address));
    wait_until("the new GID", || has_it(&context.gid_table().unwrap()));
    assert!(!has_it(&before));
}

fn ports_go_down_and_up() {
    let soft = SoftDevice::new();
    let context = soft.device().open().unwrap();
    let events = context.async_events();
    for (up, kind, state) in [
        (false, AsyncEventType::PortError, PortState::Down),
        (true, AsyncEventType::PortActive, PortState::Active),
    ] {
        soft.set_link(up);
        assert_eq!(event_of(&events, kind).element(), AsyncEventElement::Port(1));
        wait_until("the port's state", || context.query_port(PORT).unwrap().state == state);
    }
}

/// What has to go out fails at once, and its QP with it. What has been connected before works again when the port is up.
fn nothing_goes_out_of_a_port_that_is_down() {
    let soft = SoftDevice::new();
    let context = soft.device().open().unwrap();
    let mut pairs = [QueuePairType::ReliableConnection, QueuePairType::UnreliableConnection].map(|kind| {
        let setup = Setup { kind, ..Setup::default() };
        [setup.pair_in(&context), setup.pair_in(&context)]
    });
    let gid = own_gid(&context);
    let events = context.async_events();
    soft.set_link(false);
    drop(event_of(&events, AsyncEventType::PortError));
    for [Pair { a, b }, _] in &mut pairs {
        b.receive(1, 0..8);
        a.send(2, 0..8);
        let status = poll_for(&mut a.cq, 1)[0].status();
        assert!(
            [CompletionStatus::LOC_QP_OP_ERR, CompletionStatus::WR_FLUSH_ERR].contains(&status),
            "{status:?}"
        );
        assert_eq!(a.qp.query().unwrap().state, QueuePairState::Error);
        poll_for_none(&mut b.cq);
    }
    let mut end = Setup::default().end(&context);
    end.qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
    let address = AddressVector::global(PORT, gid.gid, gid.index as u8);
    let change = ModifyQueuePair::ready_to_receive(address, 17, 0, Mtu::Bytes1024);
    refused(end.qp.modify(&change), Errno::ENETUNREACH, &["no route to"]);
    soft.set_link(true);
    drop(event_of(&events, AsyncEventType::PortActive));
    pairs.iter_mut().for_each(|[_, untried]| untried.works());
    end.qp.modify(&change).unwrap();
}

fn the_last_event_of_a_device() {
    let soft = SoftDevice::new();
    let context = soft.device().open().unwrap();
    let pair = Setup::default().pair_in(&context);
    let events = context.async_events();
    soft.delete();
    let event = event_of(&events, AsyncEventType::DeviceFatal);
    assert_eq!(event.element(), AsyncEventElement::Device);
    assert_eq!(event.to_string(), "local catastrophic error, device");
    for _ in 0..2 {
        refused(events.wait(Some(DEADLINE)), Errno::EIO, &["get_async_event"]);
        assert_eq!(events.try_get_event().unwrap_err().kind(), ErrorKind::DeviceGone);
    }
    drop((pair, events));
    context.close().unwrap();
    soft.create();

    // One of several threads takes it, and the others do not wait for ever.
    let events = soft.device().open().unwrap().async_events();
    std::thread::scope(|scope| {
        let wait = || events.wait(None).map(|event| event.map(|event| event.kind()));
        let threads = [(); 3].map(|()| scope.spawn(wait));
        // Most likely they sleep by then; it has to be right in either case.
        std::thread::sleep(MOMENT);
        soft.delete();
        let seen = threads.map(|thread| thread.join().unwrap());
        let fatal = Ok(Some(AsyncEventType::DeviceFatal));
        assert_eq!(seen.iter().filter(|seen| **seen == fatal).count(), 1, "{seen:?}");
        assert!(seen.iter().all(|seen| *seen == fatal || seen.is_err()), "{seen:?}");
    });
    drop(events);
    soft.create();
}
