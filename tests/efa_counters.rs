//! Completion counters of EFA: the device keeps their values in memory, the counter's own or the caller's.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::errno::Errno;
use uverbs::{
    CompletionCounter, Context, CounterMemory, CounterOperations as Op, CounterType, ErrorKind,
    ModifyQueuePair, QueuePair, QueuePairInit, QueuePairState, ReceiveRequest, RemoteMemory, ScatterGather,
    SendRequest,
};

use crate::child::Process;
use crate::common::{
    DEADLINE, PORT, device_name, open, poll_for, poll_for_none, refused, succeeded, wait_until,
};
use crate::dma_buf::DmaBuf;
use crate::efa::{End, Pair, capabilities, srd, start, to};

crate::cases! {
    Efa every_operation_counts_exactly;
    Efa errors_count_apart;
    Efa values_are_set_and_added_to;
    Efa increments_of_many_threads_add_up;
    Efa queue_pairs_share_a_counter_and_counters_a_queue_pair;
    Efa attaching_is_refused_with_the_reason;
    Efa an_attached_counter_is_busy;
    Efa values_lie_where_the_caller_says;
    Efa values_lie_in_a_dma_buf;
    Efa memory_that_cannot_hold_values_is_refused;
    FewEfa capabilities_are_those_of_the_device;
    FewEfa values_wrap_after_the_largest;
    FewEfa counters_run_out;
    FewEfa a_killed_process_gives_its_counters_back;
    FewEfa operations_the_device_does_not_count_are_refused;
    MuteEfa a_device_that_no_longer_answers;
    Part count_until_killed;
}

/// Tests that use up all counters, or count those that are there, are alone.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn counter(context: &Context) -> CompletionCounter {
    context.create_completion_counter(CounterType::WorkRequests).unwrap()
}

fn values(counter: &CompletionCounter) -> (u64, u64) {
    (counter.read().unwrap(), counter.read_err().unwrap())
}

/// Takes the place of an end's queue pair, and gives a counter of its own for each operation of the new one.
fn attach_all(pair: &mut Pair, end: fn(&mut Pair) -> &mut End) -> Vec<(Op, CompletionCounter)> {
    let domain = pair.address.protection_domain().clone();
    let context = pair.context.clone();
    let end = end(pair);
    let init =
        QueuePairInit { capabilities: capabilities(), ..QueuePairInit::scalable_reliable_datagram(&end.cq) };
    end.qp = domain.create_queue_pair(&init).unwrap();
    let counters = Op::all().iter().map(|operation| {
        let counter = counter(&context);
        end.qp.attach_completion_counter(&counter, operation).unwrap();
        (operation, counter)
    });
    let counters = counters.collect();
    start(&mut end.qp);
    counters
}

/// What counters say that do not say zero.
fn counted(counters: &[(Op, CompletionCounter)]) -> Vec<(Op, (u64, u64))> {
    let all = counters.iter().map(|(operation, counter)| (*operation, values(counter)));
    all.filter(|(_, values)| *values != (0, 0)).collect()
}

struct Counting {
    pair: Pair,
    of_a: Vec<(Op, CompletionCounter)>,
    of_b: Vec<(Op, CompletionCounter)>,
    remote: RemoteMemory,
}

fn counting() -> Counting {
    let mut pair = srd();
    let of_a = attach_all(&mut pair, |pair| &mut pair.a);
    let of_b = attach_all(&mut pair, |pair| &mut pair.b);
    let remote = RemoteMemory { address: pair.b.region.address(), rkey: pair.b.region.rkey() };
    Counting { pair, of_a, of_b, remote }
}

/// A send from one end to the other, one after the other, that many times.
fn send(pair: &mut Pair, count: u64) {
    let sges = [pair.a.region.sge(0..8)];
    for wr_id in 0..count {
        pair.b.qp.post_receive(&[ReceiveRequest::new(wr_id, &[pair.b.region.sge(0..8)])]).unwrap();
        let request = SendRequest::send(wr_id, &sges).to(to(&pair.address, pair.b.qp.qp_num()));
        pair.a.qp.post_send_list(&[request]).unwrap();
        assert_eq!(succeeded(&poll_for(&mut pair.a.cq, 1)), [wr_id]);
        assert_eq!(succeeded(&poll_for(&mut pair.b.cq, 1)), [wr_id]);
    }
}

fn every_operation_counts_exactly() {
    let Counting { mut pair, of_a, of_b, remote } = counting();
    send(&mut pair, 7);
    assert_eq!(counted(&of_a), [(Op::SEND, (7, 0))]);
    assert_eq!(counted(&of_b), [(Op::RECV, (7, 0))]);
    let Pair { mut a, mut b, address, .. } = pair;
    let sges = [a.region.sge(0..64)];
    let there = to(&address, b.qp.qp_num());
    for (request, count) in [
        (SendRequest::rdma_read(0, &sges, remote), 5),
        (SendRequest::rdma_write(0, &sges, remote), 3),
        (SendRequest::rdma_write(0, &sges, remote).immediate(1), 2),
    ] {
        for _ in 0..count {
            b.qp.post_receive(&[ReceiveRequest::new(1, &[])]).unwrap();
            a.qp.post_send_list(&[request.to(there)]).unwrap();
            succeeded(&poll_for(&mut a.cq, 1));
        }
    }
    let by_a = [(Op::SEND, (7, 0)), (Op::RDMA_READ, (5, 0)), (Op::RDMA_WRITE, (5, 0))];
    assert_eq!(counted(&of_a), by_a);
    // A write with immediate data is a write and uses up a receive.
    succeeded(&poll_for(&mut b.cq, 2));
    let by_b = [(Op::RECV, (9, 0)), (Op::REMOTE_RDMA_READ, (5, 0)), (Op::REMOTE_RDMA_WRITE, (5, 0))];
    assert_eq!(counted(&of_b), by_b);
}

fn errors_count_apart() {
    let Counting { pair, of_a, of_b, remote } = counting();
    let Pair { mut a, mut b, address, .. } = pair;
    let good = [a.region.sge(0..64)];
    let bad = [ScatterGather { lkey: !good[0].lkey, ..good[0] }];
    let wrong = RemoteMemory { rkey: !remote.rkey, ..remote };
    let there = to(&address, b.qp.qp_num());
    for (request, count) in [
        (SendRequest::send(0, &bad), 1),
        (SendRequest::rdma_write(0, &good, wrong), 2),
        (SendRequest::rdma_read(0, &good, wrong), 3),
        (SendRequest::rdma_read(0, &bad, remote), 1),
    ] {
        for _ in 0..count {
            a.qp.post_send_list(&[request.to(there)]).unwrap();
            assert!(!poll_for(&mut a.cq, 1)[0].is_success());
        }
    }
    let by_a = [(Op::SEND, (0, 1)), (Op::RDMA_READ, (0, 4)), (Op::RDMA_WRITE, (0, 2))];
    assert_eq!(counted(&of_a), by_a);
    // What was asked of an end in vain is no error of its own.
    assert_eq!(counted(&of_b), []);
    for wr_id in 0..4 {
        b.qp.post_receive(&[ReceiveRequest::new(wr_id, &[])]).unwrap();
    }
    b.qp.modify(&ModifyQueuePair::to(QueuePairState::Error)).unwrap();
    poll_for(&mut b.cq, 4);
    assert_eq!(counted(&of_b), [(Op::RECV, (0, 4))]);
}

fn values_are_set_and_added_to() {
    let counter = counter(&open());
    assert_eq!(values(&counter), (0, 0));
    counter.set(40).unwrap();
    counter.inc(2).unwrap();
    counter.set_err(7).unwrap();
    counter.inc_err(1).unwrap();
    assert_eq!(values(&counter), (42, 8));
    counter.inc(0).unwrap();
    counter.set(0).unwrap();
    assert_eq!(values(&counter), (0, 8));
    counter.set(u64::MAX).unwrap();
    counter.inc(1).unwrap();
    assert_eq!(values(&counter), (0, 8));
    counter.destroy().unwrap();
}

fn increments_of_many_threads_add_up() {
    const THREADS: u64 = 8;
    // Each is a command to the device, which soft-RoCE's 100 000 would take minutes for.
    const EACH: u64 = 1000;
    let counter = counter(&open());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..EACH).for_each(|_| counter.inc(1).unwrap()));
        }
        scope.spawn(|| (0..10_000).for_each(|_| assert!(counter.read().unwrap() <= THREADS * EACH)));
    });
    assert_eq!(values(&counter), (THREADS * EACH, 0));
}

fn queue_pairs_share_a_counter_and_counters_a_queue_pair() {
    let mut pairs = [srd(), srd()];
    let context = pairs[0].context.clone();
    let (sends, rest) = (counter(&context), counter(&context));
    let domain = pairs[0].address.protection_domain().clone();
    let mut both: Vec<QueuePair> = Vec::new();
    for _ in 0..2 {
        let init = QueuePairInit::scalable_reliable_datagram(&pairs[0].a.cq);
        let mut qp = domain.create_queue_pair(&init).unwrap();
        qp.attach_completion_counter(&sends, Op::SEND).unwrap();
        qp.attach_completion_counter(&rest, Op::all() - Op::SEND).unwrap();
        start(&mut qp);
        both.push(qp);
    }
    let Pair { a, b, address, .. } = &mut pairs[0];
    let remote = RemoteMemory { address: b.region.address(), rkey: b.region.rkey() };
    let sges = [a.region.sge(0..8)];
    let there = to(address, b.qp.qp_num());
    for (qp, count) in both.iter_mut().zip([3, 4]) {
        for _ in 0..count {
            b.qp.post_receive(&[ReceiveRequest::new(0, &[b.region.sge(0..8)])]).unwrap();
            let requests = [SendRequest::send(0, &sges), SendRequest::rdma_write(0, &sges, remote)];
            for request in requests {
                qp.post_send_list(&[request.to(there)]).unwrap();
                succeeded(&poll_for(&mut a.cq, 1));
            }
        }
    }
    assert_eq!((values(&sends), values(&rest)), ((7, 0), (7, 0)));
}

fn attaching_is_refused_with_the_reason() {
    let pair = srd();
    let counter = counter(&pair.context);
    let domain = pair.address.protection_domain().clone();
    let init = QueuePairInit::scalable_reliable_datagram(&pair.a.cq);
    let mut qp = domain.create_queue_pair(&init).unwrap();
    let attach = |qp: &mut QueuePair, operations| qp.attach_completion_counter(&counter, operations);
    refused(attach(&mut qp, Op::empty()), Errno::EINVAL, &["no operation"]);
    let unknown = Op::from_bits_retain(1 << 6 | Op::SEND.bits());
    refused(attach(&mut qp, unknown), Errno::EINVAL, &["no operation 0x40"]);
    let foreign = self::counter(&open());
    refused(qp.attach_completion_counter(&foreign, Op::SEND), Errno::EINVAL, &["another context"]);
    attach(&mut qp, Op::SEND).unwrap();
    refused(attach(&mut qp, Op::SEND | Op::RECV), Errno::EBUSY, &["SEND of this QP"]);
    qp.modify(&ModifyQueuePair::datagram_init(PORT, 1)).unwrap();
    attach(&mut qp, Op::RECV).unwrap();
    qp.modify(&ModifyQueuePair::datagram_ready_to_receive()).unwrap();
    refused(attach(&mut qp, Op::RDMA_READ), Errno::EINVAL, &["state RTR"]);
    qp.modify(&ModifyQueuePair::datagram_ready_to_send(0)).unwrap();
    refused(attach(&mut qp, Op::RDMA_READ), Errno::EINVAL, &["state RTS"]);
    let bytes = pair.context.create_completion_counter(CounterType::Bytes);
    refused(bytes, Errno::EOPNOTSUPP, &["type Bytes"]);
}

fn an_attached_counter_is_busy() {
    let pair = srd();
    let counter = counter(&pair.context);
    let domain = pair.address.protection_domain().clone();
    let init = QueuePairInit::scalable_reliable_datagram(&pair.a.cq);
    let mut qp = domain.create_queue_pair(&init).unwrap();
    qp.attach_completion_counter(&counter, Op::SEND).unwrap();
    let busy = counter.destroy().unwrap_err();
    assert_eq!((busy.error().kind(), busy.error().errno()), (ErrorKind::Busy, Errno::EBUSY as i32));
    let counter = busy.into_inner();
    counter.inc(3).unwrap();
    qp.destroy().unwrap();
    assert_eq!(values(&counter), (3, 0));
    counter.destroy().unwrap();
}

/// Sends with a counter, until it says so.
fn counts_sends(counter: &CompletionCounter, mut pair: Pair) {
    let domain = pair.address.protection_domain().clone();
    let init = QueuePairInit::scalable_reliable_datagram(&pair.a.cq);
    pair.a.qp = domain.create_queue_pair(&init).unwrap();
    pair.a.qp.attach_completion_counter(counter, Op::SEND).unwrap();
    start(&mut pair.a.qp);
    counter.set(100).unwrap();
    send(&mut pair, 5);
}

fn values_lie_where_the_caller_says() {
    // They outlive the counter.
    let words: &'static [AtomicU64; 2] = Box::leak(Box::new([AtomicU64::new(0), AtomicU64::new(0)]));
    let pair = srd();
    let create = |completions, errors| {
        let kind = CounterType::WorkRequests;
        // SAFETY: the words are never freed, and accessed as what they are.
        unsafe { pair.context.create_completion_counter_in(kind, completions, errors) }.unwrap()
    };
    let at = |index: usize| CounterMemory::Address(words[index].as_ptr());
    let loads = || words.each_ref().map(|word| word.load(Ordering::Acquire));
    let outside = create(at(0), at(1));
    let half = create(CounterMemory::Own, at(1));
    half.set_err(30).unwrap();
    assert_eq!((half.read().unwrap(), half.read_err().unwrap(), loads()[1]), (0, 30, 30));
    half.destroy().unwrap();
    counts_sends(&outside, pair);
    outside.set_err(9).unwrap();
    assert_eq!((loads(), values(&outside)), ([105, 9], (105, 9)));
    outside.destroy().unwrap();
    // Nobody writes there any more.
    assert_eq!(loads(), [105, 9]);
}

fn values_lie_in_a_dma_buf() {
    let buffer = DmaBuf::new(8192);
    let word = |offset: usize| buffer.map.as_ptr().wrapping_add(offset).cast::<u64>().cast_mut();
    let pair = srd();
    let completions =
        CounterMemory::DmaBuf { fd: buffer.fd.as_fd(), offset: 4096 + 16, mapped: word(4096 + 16) };
    let unmapped = CounterMemory::DmaBuf { fd: buffer.fd.as_fd(), offset: 64, mapped: std::ptr::null_mut() };
    // SAFETY: the dma-buf stays mapped until the end of the test, when the counter is gone.
    let counter = unsafe {
        pair.context.create_completion_counter_in(CounterType::WorkRequests, completions, unmapped)
    };
    let counter = counter.unwrap();
    counts_sends(&counter, pair);
    assert_eq!(counter.read().unwrap(), 105);
    counter.set_err(11).unwrap();
    refused(counter.read_err(), Errno::EOPNOTSUPP, &["read_err_comp_cntr", "not mapped"]);
    assert_eq!((buffer.word(4096 + 16), buffer.word(64)), (105, 11));
    counter.destroy().unwrap();
}

fn memory_that_cannot_hold_values_is_refused() {
    let context = open();
    let word = AtomicU64::new(5);
    let buffer = DmaBuf::new(4096);
    let read_only = memmap2::MmapOptions::new().len(4096).map_anon().unwrap().make_read_only().unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let null = std::ptr::null_mut::<u64>();
    let in_dma_buf = |offset| CounterMemory::DmaBuf { fd: buffer.fd.as_fd(), offset, mapped: null };
    for (place, errno, texts) in [
        (CounterMemory::Address(null), Errno::EINVAL, "null"),
        (CounterMemory::Address(word.as_ptr().wrapping_byte_add(4)), Errno::EINVAL, "no multiple of 8"),
        (CounterMemory::Address(read_only.as_ptr().cast::<u64>().cast_mut()), Errno::EFAULT, "not writable"),
        (CounterMemory::Address(null.wrapping_byte_add(4096)), Errno::EFAULT, "not mapped"),
        (in_dma_buf(12), Errno::EINVAL, "offset into the dma-buf 0xc"),
        (in_dma_buf(4096), Errno::EINVAL, "not in it"),
        (
            CounterMemory::DmaBuf {
                fd: buffer.fd.as_fd(),
                offset: 0,
                mapped: word.as_ptr().wrapping_byte_add(2),
            },
            Errno::EINVAL,
            "no multiple of 8",
        ),
        (CounterMemory::DmaBuf { fd: file.as_fd(), offset: 0, mapped: null }, Errno::EINVAL, "no dma-buf"),
    ] {
        for errors in [false, true] {
            let (completions, errors) =
                if errors { (CounterMemory::Own, place) } else { (place, CounterMemory::Own) };
            let kind = CounterType::WorkRequests;
            // SAFETY: no counter comes of it.
            let created = unsafe { context.create_completion_counter_in(kind, completions, errors) };
            refused(created, errno, &["create_comp_cntr", texts]);
        }
    }
    assert_eq!(word.load(Ordering::Relaxed), 5);
    context.close().unwrap();
}

/// What `--limit max-event-counters=7` leaves: a counter takes two.
const FEW: usize = 3;
/// `--limit event-counter-max-value`.
const LARGEST: u64 = 100;

fn capabilities_are_those_of_the_device() {
    let found = open().completion_counter_capabilities().unwrap();
    // The driver counts what the device can count with and without success.
    let operations = Op::SEND | Op::RECV | Op::RDMA_WRITE | Op::REMOTE_RDMA_READ | Op::REMOTE_RDMA_WRITE;
    assert_eq!((found.max_counters, found.max_value, found.operations), (FEW as u32, LARGEST, operations));
}

fn values_wrap_after_the_largest() {
    let _turn = alone();
    let pair = srd();
    let counter = counter(&pair.context);
    refused(counter.set(LARGEST + 1), Errno::EINVAL, &["set_comp_cntr", "101", "100"]);
    refused(counter.inc_err(LARGEST + 1), Errno::EINVAL, &["inc_err_comp_cntr"]);
    counter.set_err(LARGEST).unwrap();
    counter.inc_err(1).unwrap();
    assert_eq!(values(&counter), (0, 0));
    counter.set_err(LARGEST - 1).unwrap();
    counter.inc_err(LARGEST).unwrap();
    assert_eq!(values(&counter), (0, LARGEST - 2));
    // Traffic wraps too: 100, and four more after the one that makes it zero.
    counts_sends(&counter, pair);
    assert_eq!(values(&counter), (4, LARGEST - 2));
}

/// How many counters can be created now.
fn left() -> usize {
    let context = open();
    let mut counters = Vec::new();
    loop {
        match context.create_completion_counter(CounterType::WorkRequests) {
            Ok(counter) => counters.push(counter),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OutOfResources, "{error}");
                return counters.len();
            }
        }
    }
}

fn counters_run_out() {
    let _turn = alone();
    assert_eq!(left(), FEW);
    let context = open();
    let mut counters: Vec<_> = (0..FEW).map(|_| counter(&context)).collect();
    let error = context.create_completion_counter(CounterType::WorkRequests);
    refused(error, Errno::ENOMEM, &["create_comp_cntr", "3 counters"]);
    counters.pop().unwrap().destroy().unwrap();
    counter(&context);
}

/// What the child says when it has attached its counters.
const ATTACHED: &[u8; 8] = b"attached";

fn a_killed_process_gives_its_counters_back() {
    let _turn = alone();
    let name = device_name();
    let mut victim = Process::start("efa_counters::count_until_killed", &[("UVERBS_TEST_DEVICE", &name)]);
    let mut says = [0; ATTACHED.len()];
    victim.0.stdout.as_mut().unwrap().read_exact(&mut says).unwrap();
    assert_eq!(says, *ATTACHED);
    assert_eq!(left(), 0);
    drop(victim);
    wait_until("the counters of the dead", || left() == FEW);
}

fn count_until_killed() {
    let pair = srd();
    let init = QueuePairInit::scalable_reliable_datagram(&pair.a.cq);
    let mut qp = pair.address.protection_domain().create_queue_pair(&init).unwrap();
    for operation in [Op::SEND, Op::RECV, Op::RDMA_WRITE] {
        qp.attach_completion_counter(&counter(&pair.context), operation).unwrap();
    }
    std::io::stdout().write_all(ATTACHED).unwrap();
    std::io::stdout().flush().unwrap();
    thread::sleep(DEADLINE);
}

fn operations_the_device_does_not_count_are_refused() {
    let _turn = alone();
    let pair = srd();
    let counter = counter(&pair.context);
    let init = QueuePairInit::scalable_reliable_datagram(&pair.a.cq);
    let mut qp = pair.address.protection_domain().create_queue_pair(&init).unwrap();
    let attached = qp.attach_completion_counter(&counter, Op::SEND | Op::RDMA_READ);
    assert_eq!(attached.as_ref().unwrap_err().kind(), ErrorKind::Unsupported);
    refused(attached, Errno::EOPNOTSUPP, &["does not count RDMA_READ", "SEND | RECV"]);
    // Nothing of it was attached.
    qp.attach_completion_counter(&counter, Op::SEND).unwrap();
}

/// `--fault query-qp:lost:20`: the driver gives up a device that does not answer a command.
fn a_device_that_no_longer_answers() {
    let mut pair = srd();
    let counter = counter(&pair.context);
    let domain = pair.address.protection_domain().clone();
    let mut qp = domain.create_queue_pair(&QueuePairInit::scalable_reliable_datagram(&pair.a.cq)).unwrap();
    qp.attach_completion_counter(&counter, Op::SEND).unwrap();
    counter.set(5).unwrap();
    let lost = (0..20).find_map(|_| pair.a.qp.query().err()).expect("one of them is not answered");
    refused(Err::<(), _>(lost), Errno::ETIME, &["query_qp"]);
    refused(pair.a.qp.query(), Errno::ENODEV, &["query_qp"]);
    refused(counter.inc(1), Errno::ENODEV, &["inc_comp_cntr"]);
    refused(qp.attach_completion_counter(&counter, Op::RECV), Errno::ENODEV, &["qp_attach_comp_cntr"]);
    let created = pair.context.create_completion_counter(CounterType::WorkRequests);
    refused(created, Errno::ENODEV, &["create_comp_cntr"]);
    // Values are in memory, and stay.
    assert_eq!(values(&counter), (5, 0));
    poll_for_none(&mut pair.a.cq);
}
