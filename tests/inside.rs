//! What devices inside the process have beyond those of the kernel: wires of their own, and faults on request.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use uverbs::soft::{Device, Faults, Limits, Wire};
use uverbs::{
    AccessFlags, AddressVector, CompletionStatus, CounterType, Destination, ErrorKind, MemoryWindowType,
    ModifyQueuePair, Mtu, QueuePairCapabilities, QueuePairInit, QueuePairState, QueuePairType,
    ReceiveRequest, SendRequest,
};

use crate::common::{
    Holdings, PORT, Pair, Setup, own_address, own_gid, pattern, poll_for, poll_for_none, refused, succeeded,
    wait_until,
};

crate::cases! {
    Shared devices_on_a_wire_reach_each_other;
    Shared devices_on_other_wires_do_not;
    Shared a_peer_whose_link_is_down_does_not_answer;
    Shared limits_are_those_that_were_asked_for;
    Shared what_is_lost_is_sent_again;
    Shared what_is_lost_too_often_fails;
    Shared a_peer_that_is_not_ready_is_asked_again;
    Shared unreliable_messages_get_lost_and_come_twice;
    Shared datagrams_overtake_each_other;
    Shared requests_that_are_delayed_stay_in_order;
    Alone a_device_that_waits_takes_no_time;
    Alone every_call_may_fail;
    Alone every_call_may_be_the_last;
}

fn opened(device: &Device) -> uverbs::Context {
    uverbs::Device::from(device.clone()).open().unwrap()
}

fn lonely() -> Device {
    Device::new(&Wire::new(), "lonely")
}

/// A pair with an end on each of two devices of a wire.
fn pair_across(devices: &[Device; 2], setup: &Setup) -> Pair {
    let contexts = devices.each_ref().map(opened);
    let [mut a, mut b] = contexts.each_ref().map(|context| setup.end(context));
    let gids = contexts.each_ref().map(own_gid);
    assert_ne!(gids[0].gid, gids[1].gid);
    let numbers = [a.qp.qp_num(), b.qp.qp_num()];
    for (own, end) in [&mut a, &mut b].into_iter().enumerate() {
        let (gid, peer) = (gids[1 - own].gid, numbers[1 - own]);
        let address = AddressVector::global(PORT, gid, gids[own].index as u8);
        end.qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
        end.qp.modify(&ModifyQueuePair::ready_to_receive(address, peer, 0, Mtu::Bytes1024)).unwrap();
        end.qp.modify(&setup.ready_to_send()).unwrap();
    }
    Pair { a, b }
}

fn two_on_a_wire() -> [Device; 2] {
    let wire = Wire::new();
    ["one", "two"].map(|name| Device::new(&wire, name))
}

fn devices_on_a_wire_reach_each_other() {
    pair_across(&two_on_a_wire(), &Setup::default()).works();
}

fn a_peer_whose_link_is_down_does_not_answer() {
    let devices = two_on_a_wire();
    let mut patient = pair_across(&devices, &Setup { timeout: 12, ..Setup::default() });
    let mut hasty = pair_across(&devices, &Setup { timeout: 8, retry_count: 1, ..Setup::default() });
    devices[1].set_link(false);
    for Pair { a, b } in [&mut patient, &mut hasty] {
        b.receive(1, 0..8);
        a.send(2, 0..8);
    }
    assert_eq!(poll_for(&mut hasty.a.cq, 1)[0].status(), CompletionStatus::RETRY_EXC_ERR);
    poll_for_none(&mut patient.a.cq);
    poll_for_none(&mut patient.b.cq);
    devices[1].set_link(true);
    assert_eq!(succeeded(&poll_for(&mut patient.a.cq, 1)), [2]);
    assert_eq!(succeeded(&poll_for(&mut patient.b.cq, 1)), [1]);
    // Nobody answers for its address either.
    devices[1].set_link(false);
    let context = opened(&devices[0]);
    let mut end = Setup::default().end(&context);
    end.qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
    let address =
        AddressVector::global(PORT, own_gid(&opened(&devices[1])).gid, own_gid(&context).index as u8);
    let change = ModifyQueuePair::ready_to_receive(address, 17, 0, Mtu::Bytes1024);
    refused(end.qp.modify(&change), Errno::ETIMEDOUT, &["no neighbour answers"]);
}

fn devices_on_other_wires_do_not() {
    let wire = Wire::new();
    // The second has an address that nobody has on the other wire.
    let devices = [Device::new(&wire, "one"), Device::new(&wire, "two"), lonely()];
    let [_, two, lonely] = devices.each_ref().map(opened);
    let mut end = Setup::default().end(&lonely);
    end.qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
    let address = AddressVector::global(PORT, own_gid(&two).gid, own_gid(&lonely).index as u8);
    let change = ModifyQueuePair::ready_to_receive(address, 17, 0, Mtu::Bytes1024);
    refused(end.qp.modify(&change), Errno::ETIMEDOUT, &["no neighbour answers"]);
}

fn limits_are_those_that_were_asked_for() {
    let mut limits = Limits::default();
    (limits.completions, limits.completion_counters, limits.largest_count) = (63, 2, 9);
    let context = opened(&Device::with_limits(&Wire::new(), "small", limits));
    assert_eq!(context.create_completion_queue(63, None, 0).unwrap().entries(), 63);
    refused(context.create_completion_queue(64, None, 0), Errno::EINVAL, &["64", "allows 63"]);
    let counter = || context.create_completion_counter(CounterType::WorkRequests);
    let counters = [counter().unwrap(), counter().unwrap()];
    refused(counter(), Errno::ENOMEM, &["2 counters"]);
    counters[0].set(9).unwrap();
    counters[0].inc(1).unwrap();
    assert_eq!(counters[0].read().unwrap(), 0);
    refused(counters[1].set(10), Errno::EINVAL, &["10", "9"]);
}

/// Sends messages, and has them all arrive once and in order.
fn all_arrive(device: &Device, setup: &Setup) {
    const MESSAGES: u64 = 300;
    let Pair { mut a, mut b } = setup.pair_in(&opened(device));
    for number in 0..MESSAGES {
        a.memory.write(0, &pattern(number as usize, 2000));
        b.receive(number, 0..2000);
        a.send(number, 0..2000);
        assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [number]);
        assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [number]);
        assert!(b.bytes(0..2000) == pattern(number as usize, 2000));
    }
    poll_for_none(&mut a.cq);
    poll_for_none(&mut b.cq);
}

fn what_is_lost_is_sent_again() {
    let device = lonely();
    let quick = Setup { timeout: 4, ..Setup::default() };
    device.set_faults(Faults::new(1).lose(300).lose_answers(300));
    all_arrive(&device, &quick);
    // Every atomic operation is done once.
    let access = AccessFlags::REMOTE_ATOMIC | AccessFlags::REMOTE_READ;
    let Pair { mut a, b } = Setup { access, ..quick }.pair_in(&opened(&device));
    let result = [a.memory.sge(0..8)];
    for number in 0..100_u64 {
        a.qp.post_send_list(&[SendRequest::fetch_add(number, &result, b.remote(64), 1).signaled()]).unwrap();
        assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [number]);
        assert_eq!(a.bytes(0..8), number.to_ne_bytes());
    }
    a.qp.post_send_list(&[SendRequest::rdma_read(7, &result, b.remote(64)).signaled()]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [7]);
    assert_eq!(a.bytes(0..8), 100_u64.to_ne_bytes());
}

fn what_is_lost_too_often_fails() {
    let device = lonely();
    let Pair { mut a, mut b } =
        Setup { timeout: 8, retry_count: 3, ..Setup::default() }.pair_in(&opened(&device));
    device.set_faults(Faults::new(1).lose(1000));
    b.receive(1, 0..8);
    let start = Instant::now();
    a.send(1, 0..8);
    assert_eq!(poll_for(&mut a.cq, 1)[0].status(), CompletionStatus::RETRY_EXC_ERR);
    // Four times 4.096 µs << 8.
    assert!(start.elapsed() >= Duration::from_micros(4 * 1048), "{:?}", start.elapsed());
    poll_for_none(&mut b.cq);
    assert_eq!(a.qp.query().unwrap().state, QueuePairState::Error);
}

fn a_peer_that_is_not_ready_is_asked_again() {
    let device = lonely();
    device.set_faults(Faults::new(3).not_ready(400));
    all_arrive(&device, &Setup::default());
}

fn unreliable_messages_get_lost_and_come_twice() {
    let device = lonely();
    let kind = QueuePairType::UnreliableConnection;
    let arrivals = |faults| {
        let context = opened(&device);
        let Pair { mut a, mut b } = Setup { kind, ..Setup::default() }.pair_in(&context);
        device.set_faults(faults);
        let mut arrived = Vec::new();
        for number in 0..50_u32 {
            // Two receives, and what is left of them is flushed.
            b.receive_nothing(0..2);
            a.qp.post_send_list(&[SendRequest::send(0, &[]).immediate(number).signaled()]).unwrap();
            succeeded(&poll_for(&mut a.cq, 1));
            b.qp.modify(&ModifyQueuePair::to(QueuePairState::Error)).unwrap();
            for completion in poll_for(&mut b.cq, 2) {
                arrived.extend(completion.success().ok().and_then(|success| success.immediate()));
            }
            b.qp.modify(&ModifyQueuePair::to(QueuePairState::Reset)).unwrap();
            let (address, peer) = (own_address(&context), a.qp.qp_num());
            b.qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
            b.qp.modify(&ModifyQueuePair::unreliable_ready_to_receive(address, peer, 0, Mtu::Bytes1024))
                .unwrap();
        }
        device.set_faults(Faults::new(0));
        arrived
    };
    assert!(arrivals(Faults::new(0)).into_iter().eq(0..50));
    let lossy = || Faults::new(5).lose(300);
    let some = arrivals(lossy());
    assert!((10..50).contains(&some.len()) && some.is_sorted(), "{some:?}");
    assert_eq!(arrivals(lossy()), some, "the same seed, the same losses");
    let twice = arrivals(Faults::new(5).duplicate(1000));
    assert!(twice.into_iter().eq((0..50).flat_map(|number| [number; 2])));
}

fn datagrams_overtake_each_other() {
    const QKEY: u32 = 7;
    let device = lonely();
    let context = opened(&device);
    let domain = context.alloc_protection_domain().unwrap();
    let mut cq = context.create_completion_queue(16, None, 0).unwrap();
    let init = QueuePairInit {
        capabilities: Setup::default().capabilities,
        ..QueuePairInit::unreliable_datagram(&cq)
    };
    let mut qp = domain.create_queue_pair(&init).unwrap();
    qp.modify(&ModifyQueuePair::datagram_init(PORT, QKEY)).unwrap();
    qp.modify(&ModifyQueuePair::datagram_ready_to_receive()).unwrap();
    qp.modify(&ModifyQueuePair::datagram_ready_to_send(0)).unwrap();
    let gid = own_gid(&context);
    let address =
        domain.create_address_handle(&AddressVector::global(PORT, gid.gid, gid.index as u8)).unwrap();
    let mut memory = domain.allocate(4096, AccessFlags::LOCAL_WRITE).unwrap();
    device.set_faults(Faults::new(1).reorder(1000));
    let to = Destination { address: &address, qp_num: qp.qp_num(), qkey: QKEY };
    for wr_id in 0..4 {
        let start = 1024 + wr_id * 100;
        qp.post_receive(&[ReceiveRequest::new(wr_id as u64, &[memory.sge(start..start + 100)])]).unwrap();
    }
    for number in 0..4 {
        memory.write(0, &pattern(number, 20));
        let sges = [memory.sge(0..20)];
        qp.post_send_list(&[SendRequest::send(9, &sges).immediate(number as u32).to(to)]).unwrap();
    }
    let arrived = poll_for(&mut cq, 4);
    let order: Vec<_> = arrived.iter().map(|done| done.success().unwrap().immediate().unwrap()).collect();
    assert_eq!(order, [1, 0, 3, 2]);
    for (wr_id, number) in order.into_iter().enumerate() {
        let mut bytes = [0; 20];
        memory.read(1024 + wr_id * 100 + 40, &mut bytes);
        assert_eq!(&bytes[..], pattern(number as usize, 20));
    }
}

fn requests_that_are_delayed_stay_in_order() {
    let device = lonely();
    let Pair { mut a, mut b } = Setup::default().pair_in(&opened(&device));
    let time = Duration::from_millis(20);
    device.set_faults(Faults::new(1).delay(1000, time));
    b.receive_nothing(0..3);
    let start = Instant::now();
    (0..3).for_each(|wr_id| a.send_nothing(wr_id).unwrap());
    assert!(b.cq.poll(&mut [uverbs::WorkCompletion::default()]).is_empty() || start.elapsed() > time);
    assert_eq!(succeeded(&poll_for(&mut b.cq, 3)), [0, 1, 2]);
    assert!(start.elapsed() >= 3 * time, "{:?}", start.elapsed());
}

/// Processor time that this process has taken, and how often a thread of it has gone to sleep.
fn processor_time() -> (Duration, i64) {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let time = |value: TimeVal| Duration::new(value.tv_sec() as u64, value.tv_usec() as u32 * 1000);
    (time(usage.user_time()) + time(usage.system_time()), usage.voluntary_context_switches())
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Nothing runs but whoever calls this and sleeps.
fn takes_no_time() {
    let (before, sleeps_before) = processor_time();
    std::thread::sleep(Duration::from_millis(500));
    let (after, sleeps) = processor_time();
    // Less than a tenth. Where time is counted by the ticks of a clock it is not much more exact.
    assert!(after - before < Duration::from_millis(50), "{:?}", after - before);
    assert!(sleeps - sleeps_before <= 2, "{sleeps} after {sleeps_before}");
}

fn a_device_that_waits_takes_no_time() {
    let device = lonely();
    let before = threads();
    let contexts = [opened(&device), opened(&device)];
    let setup = Setup { events: true, ..Setup::default() };
    let mut pairs: Vec<_> = (0..8).map(|number| setup.pair_in(&contexts[number % 2])).collect();
    for Pair { a, b } in &mut pairs {
        b.receive(1, 0..8);
        a.send(1, 0..8);
        for end in [a, b] {
            succeeded(&poll_for(&mut end.cq, 1));
            end.receive(2, 0..8);
            end.cq.arm(false).unwrap();
        }
    }
    // Nothing had to wait, so there is no thread.
    assert_eq!(threads(), before);
    takes_no_time();
    // With a receive that comes later there is one, and it sleeps.
    let mut pair = Setup::default().pair_in(&contexts[0]);
    pair.a.send(1, 0..8);
    pair.b.receive(2, 0..8);
    succeeded(&poll_for(&mut pair.b.cq, 1));
    assert_eq!(threads(), before + 1);
    takes_no_time();
    drop((pairs, pair, contexts));
    wait_until("the thread's end", || threads() == before);
}

/// Opens the device, creates one of everything, and leaves work under way. Says how many calls that took.
fn everything(device: &Device) -> uverbs::Result<u64> {
    let threads_before = threads();
    let context = uverbs::Device::from(device.clone()).open()?;
    let events = context.async_events();
    let domains = [context.alloc_protection_domain()?, context.alloc_protection_domain()?];
    let domain = &domains[0];
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::MW_BIND;
    let region = domain.allocate(4096, access)?;
    let mut other = domain.allocate(4096, access)?;
    other.reregister(Some(&domains[1]), None)?;
    let unbound = domain.alloc_memory_window(MemoryWindowType::Type1)?;
    let window = domain.alloc_memory_window(MemoryWindowType::Type2)?;
    let channel = context.create_completion_channel()?;
    let mut cq = context.create_completion_queue(16, Some(&channel), 0)?;
    cq.resize(40)?;
    cq.arm(false)?;
    let mut srq = domain.create_shared_receive_queue(8, 2)?;
    srq.resize(30)?;
    srq.set_limit(3)?;
    srq.query()?;
    let init = QueuePairInit { shared_receive_queue: Some(&srq), ..QueuePairInit::reliable_connection(&cq) };
    let shared = domain.create_queue_pair(&init)?;
    let unreliable = domain.create_queue_pair(&QueuePairInit::unreliable_connection(&cq))?;
    let capabilities = QueuePairCapabilities { max_send_wr: 30, max_recv_wr: 30, ..Default::default() };
    let init = QueuePairInit { capabilities, ..QueuePairInit::reliable_connection(&cq) };
    let mut qp = domain.create_queue_pair(&init)?;
    let mut datagrams = domain.create_queue_pair(&QueuePairInit::unreliable_datagram(&cq))?;
    for group in ["::ffff:239.1.2.3", "ff0e::1"] {
        datagrams.attach_multicast(group.parse().unwrap(), 0)?;
    }
    datagrams.detach_multicast("ff0e::1".parse().unwrap(), 0)?;
    let counter = context.create_completion_counter(CounterType::WorkRequests)?;
    counter.set(7)?;
    qp.attach_completion_counter(&counter, uverbs::CounterOperations::SEND)?;
    let gid = context.routable_gid(PORT, None)?;
    let address = AddressVector::global(PORT, gid.gid, gid.index as u8);
    let handle = domain.create_address_handle(&address)?;
    qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::REMOTE_WRITE))?;
    qp.modify(&ModifyQueuePair::ready_to_receive(address, qp.qp_num(), 0, Mtu::Bytes1024))?;
    qp.modify(&ModifyQueuePair::ready_to_send(0))?;
    qp.query()?;
    counter.read()?;
    // The second waits for a receive, for which the device needs a thread.
    let binding = window.binding(&region, 0..64, AccessFlags::REMOTE_WRITE)?;
    qp.post_send_list(&[SendRequest::bind_memory_window(1, binding), SendRequest::send(2, &[])])?;
    assert_eq!(threads(), threads_before + 1);
    let calls = device.calls();
    drop((region, other, unbound, shared, unreliable, handle, events));
    Ok(calls)
}

/// Has each call fail in turn. Nothing is left behind after any of them; few are made just to learn what can be done without.
fn all_calls(faults: impl Fn(u64) -> Faults, fails_well: impl Fn(&uverbs::Error)) {
    let attempt = |number| {
        let device = lonely();
        device.set_faults(faults(number));
        let result = everything(&device);
        assert!(device.resources().values().all(|count| *count == 0), "{number}: {:?}", device.resources());
        result
    };
    let threads_before = threads();
    // A thread is seen for a moment after it has been joined.
    let no_thread_is_left = || wait_until("the thread's end", || threads() == threads_before);
    // What is allocated once is there from then on.
    let calls = attempt(u64::MAX).unwrap();
    no_thread_is_left();
    let before = Holdings::of_this_process();
    let mut failed = 0;
    for number in 1..=calls {
        if let Err(error) = attempt(number) {
            fails_well(&error);
            failed += 1;
        }
        no_thread_is_left();
        assert_eq!(Holdings::of_this_process(), before, "call {number} of {calls}");
    }
    assert!(failed > 25 && failed + 3 >= calls, "{failed} of {calls} calls");
}

fn every_call_may_fail() {
    for errno in [libc::ENOMEM, libc::EMFILE, libc::EINVAL, libc::EIO] {
        let fails_well = |error: &uverbs::Error| assert_eq!(error.errno(), errno, "{error}");
        all_calls(|number| Faults::new(0).fail_call(number, errno), fails_well);
    }
}

fn every_call_may_be_the_last() {
    let gone = |error: &uverbs::Error| assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
    all_calls(|number| Faults::new(0).remove_at_call(number), gone);
}
