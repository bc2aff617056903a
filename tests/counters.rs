//! Completion counters, on a soft-RoCE that has them (`cargo xtask vm --device rxe-counters`), whose limits are parameters of
//! its module.

use std::ffi::OsStr;
use std::fs;
use std::thread;

use nix::errno::Errno;
use uverbs::{
    AccessFlags, CompletionCounter, Context, CounterOperations as Op, CounterType, ErrorKind,
    ModifyQueuePair, QueuePair, QueuePairState, RemoteMemory, SendRequest,
};

use crate::child::Process;
use crate::common::{
    DEADLINE, End, PORT, Pair, Setup, device_name, open, poll_for, read_trimmed, ready_to_receive, refused,
    succeeded, wait_until,
};
use crate::soft::SoftDevice;

crate::cases! {
    Shared a_device_without_counters_says_so;
    KernelCounting capabilities_are_those_of_the_module;
    Counting every_operation_counts_exactly;
    Counting work_that_is_not_signaled_counts_the_same;
    Counting errors_count_apart;
    Counting values_are_set_and_added_to;
    KernelCounting values_wrap_after_the_largest;
    KernelCounting counters_run_out;
    KernelCounting operations_the_device_does_not_count_are_refused;
    Counting attaching_is_refused_with_the_reason;
    Counting an_attached_counter_is_busy;
    Counting any_order_of_dropping_counters;
    Counting queue_pairs_share_a_counter;
    Counting counters_share_a_queue_pair;
    Counting increments_of_many_threads_add_up;
    KernelCounting a_killed_process_gives_its_counters_back;
    Counting counters_survive_their_device;
    Part count_until_killed;
    Shared sp_11_a_switch_set_to_zero_is_off;
}

/// Whether the device is to have counters: it says so, or whoever started the tests does.
pub(crate) fn are_expected() -> bool {
    let has = || open().completion_counter_capabilities().is_ok();
    is_on(std::env::var_os("UVERBS_TEST_COUNTERS").as_deref()) || has()
}

/// Whether a switch in the environment is on: `0` is off, as nothing is.
fn is_on(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

fn sp_11_a_switch_set_to_zero_is_off() {
    for (value, on) in [(None, false), (Some(""), false), (Some("0"), false), (Some("1"), true)] {
        assert_eq!(is_on(value.map(OsStr::new)), on, "{value:?}");
    }
}

/// A parameter of the module, with another value for a while. One at a time: all devices have it.
struct Parameter(String, String);

impl Parameter {
    fn set(name: &str, value: &str) -> Self {
        let path = format!("/sys/module/rdma_rxe/parameters/{name}");
        let before = read_trimmed(&path);
        fs::write(&path, value).unwrap();
        Self(path, before)
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        fs::write(&self.0, &self.1).unwrap();
    }
}

/// Serialises the tests that set parameters with those that depend on them.
fn alone<T>(test: impl FnOnce() -> T) -> T {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    test()
}

fn counter(context: &Context) -> CompletionCounter {
    context.create_completion_counter(CounterType::WorkRequests).unwrap()
}

fn values(counter: &CompletionCounter) -> (u64, u64) {
    (counter.read().unwrap(), counter.read_err().unwrap())
}

/// A counter of its own for each operation of a queue pair.
fn attach_all(context: &Context, qp: &mut QueuePair) -> Vec<(Op, CompletionCounter)> {
    let attach = |operation| {
        let counter = counter(context);
        qp.attach_completion_counter(&counter, operation).unwrap();
        (operation, counter)
    };
    Op::all().iter().map(attach).collect()
}

/// What counters say that do not say zero.
fn counted(counters: &[(Op, CompletionCounter)]) -> Vec<(Op, (u64, u64))> {
    let all = counters.iter().map(|(operation, counter)| (*operation, values(counter)));
    all.filter(|(_, values)| *values != (0, 0)).collect()
}

struct Counting {
    a: End,
    b: End,
    of_a: Vec<(Op, CompletionCounter)>,
    of_b: Vec<(Op, CompletionCounter)>,
    remote: RemoteMemory,
}

/// A pair with all counters, whose ends may read and write each other's memory.
fn counting() -> Counting {
    let (context, setup) = (open(), Setup::default());
    let (mut a, mut b) = (setup.end(&context), setup.end(&context));
    let (of_a, of_b) = (attach_all(&context, &mut a.qp), attach_all(&context, &mut b.qp));
    let all = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    b.memory = b.memory.protection_domain().allocate(4096, all).unwrap();
    let numbers = (a.qp.qp_num(), b.qp.qp_num());
    for (one, other) in [(&mut a.qp, numbers.1), (&mut b.qp, numbers.0)] {
        one.modify(&ModifyQueuePair::init(PORT, AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE))
            .unwrap();
        one.modify(&ready_to_receive(&context, other)).unwrap();
        one.modify(&setup.ready_to_send()).unwrap();
    }
    let remote = RemoteMemory { address: b.memory.address(), rkey: b.memory.rkey() };
    Counting { a, b, of_a, of_b, remote }
}

fn a_device_without_counters_says_so() {
    let context = open();
    if are_expected() {
        return;
    }
    let error = context.completion_counter_capabilities().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    refused(Err::<(), _>(error), Errno::EOPNOTSUPP, &["query_comp_cntr_caps", &device_name()]);
    let error = context.create_completion_counter(CounterType::WorkRequests).unwrap_err();
    refused(Err::<(), _>(error), Errno::EOPNOTSUPP, &["create_comp_cntr", &device_name()]);
}

fn capabilities_are_those_of_the_module() {
    alone(|| {
        let found = open().completion_counter_capabilities().unwrap();
        assert_eq!((found.max_counters, found.max_value, found.operations), (1024, u64::MAX, Op::all()));
        let _few = Parameter::set("comp_cntr_max", "3");
        let _small = Parameter::set("comp_cntr_max_value", "1000");
        let found = open().completion_counter_capabilities().unwrap();
        assert_eq!((found.max_counters, found.max_value), (3, 1000));
        let _none = Parameter::set("comp_cntr_max", "0");
        let error = open().completion_counter_capabilities().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    });
}

fn every_operation_counts_exactly() {
    alone(|| {
        let Counting { mut a, mut b, of_a, of_b, remote } = counting();
        let sges = [a.memory.sge(0..64)];
        let run = |a: &mut End, b: &mut End, request: SendRequest<'_>, count: u64, receives: bool| {
            for number in 0..count {
                if receives {
                    b.receive(number, 0..64);
                }
                a.qp.post_send_list(&[request.signaled()]).unwrap();
                succeeded(&poll_for(&mut a.cq, 1));
                if receives {
                    succeeded(&poll_for(&mut b.cq, 1));
                }
            }
        };
        run(&mut a, &mut b, SendRequest::send(0, &sges), 7, true);
        assert_eq!(counted(&of_a), [(Op::SEND, (7, 0))]);
        assert_eq!(counted(&of_b), [(Op::RECV, (7, 0))]);
        run(&mut a, &mut b, SendRequest::rdma_read(0, &sges, remote), 5, false);
        assert_eq!(counted(&of_a), [(Op::SEND, (7, 0)), (Op::RDMA_READ, (5, 0))]);
        assert_eq!(counted(&of_b), [(Op::RECV, (7, 0)), (Op::REMOTE_RDMA_READ, (5, 0))]);
        run(&mut a, &mut b, SendRequest::rdma_write(0, &sges, remote), 3, false);
        run(&mut a, &mut b, SendRequest::rdma_write(0, &sges, remote).immediate(1), 2, true);
        let by_a = [(Op::SEND, (7, 0)), (Op::RDMA_READ, (5, 0)), (Op::RDMA_WRITE, (5, 0))];
        assert_eq!(counted(&of_a), by_a);
        // A write with immediate data is a write and uses up a receive.
        let by_b = [(Op::RECV, (9, 0)), (Op::REMOTE_RDMA_READ, (5, 0)), (Op::REMOTE_RDMA_WRITE, (5, 0))];
        assert_eq!(counted(&of_b), by_b);
    });
}

fn work_that_is_not_signaled_counts_the_same() {
    alone(|| {
        let Counting { mut a, mut b, of_a, of_b, .. } = counting();
        for number in 0..12 {
            b.receive_nothing(number..number + 1);
            a.send_nothing(number).unwrap();
        }
        succeeded(&poll_for(&mut b.cq, 12));
        // The last acknowledgement may still be on its way.
        wait_until("12 sends", || counted(&of_a) == [(Op::SEND, (12, 0))]);
        assert_eq!(counted(&of_b), [(Op::RECV, (12, 0))]);
    });
}

fn errors_count_apart() {
    alone(|| {
        let Counting { mut a, mut b, of_a, of_b, remote } = counting();
        let sges = [a.memory.sge(0..64)];
        a.receive_nothing(0..4);
        b.receive_nothing(0..3);
        let wrong = RemoteMemory { rkey: !remote.rkey, ..remote };
        a.qp.post_send_list(&[SendRequest::rdma_write(1, &sges, wrong)]).unwrap();
        poll_for(&mut a.cq, 5);
        b.qp.modify(&ModifyQueuePair::to(QueuePairState::Error)).unwrap();
        poll_for(&mut b.cq, 3);
        assert_eq!(counted(&of_a), [(Op::RECV, (0, 4)), (Op::RDMA_WRITE, (0, 1))]);
        // What the peer did in vain is no error of this end's.
        assert_eq!(counted(&of_b), [(Op::RECV, (0, 3))]);
        a.send_nothing(2).unwrap();
        a.qp.post_send_list(&[SendRequest::rdma_read(3, &sges, remote)]).unwrap();
        poll_for(&mut a.cq, 2);
        let after =
            [(Op::SEND, (0, 1)), (Op::RECV, (0, 4)), (Op::RDMA_READ, (0, 1)), (Op::RDMA_WRITE, (0, 1))];
        assert_eq!(counted(&of_a), after);
    });
}

fn values_are_set_and_added_to() {
    alone(|| {
        let counter = counter(&open());
        assert_eq!(values(&counter), (0, 0));
        counter.set(40).unwrap();
        counter.inc(2).unwrap();
        assert_eq!(values(&counter), (42, 0));
        counter.set_err(7).unwrap();
        counter.inc_err(1).unwrap();
        assert_eq!(values(&counter), (42, 8));
        counter.inc(0).unwrap();
        counter.set(0).unwrap();
        assert_eq!(values(&counter), (0, 8));
        counter.set(u64::MAX).unwrap();
        assert_eq!(values(&counter), (u64::MAX, 8));
        counter.inc(1).unwrap();
        assert_eq!(values(&counter), (0, 8));
        counter.destroy().unwrap();
    });
}

fn values_wrap_after_the_largest() {
    alone(|| {
        let _small = Parameter::set("comp_cntr_max_value", "9");
        let counter = counter(&open());
        refused(counter.set(10), Errno::EINVAL, &["set_comp_cntr", "10", "9"]);
        refused(counter.inc_err(10), Errno::EINVAL, &["inc_err_comp_cntr"]);
        counter.set(9).unwrap();
        counter.inc(1).unwrap();
        assert_eq!(counter.read().unwrap(), 0);
        counter.set(8).unwrap();
        counter.inc(9).unwrap();
        assert_eq!(counter.read().unwrap(), 7);
    });
}

fn counters_run_out() {
    alone(|| {
        let _few = Parameter::set("comp_cntr_max", "3");
        let context = open();
        let mut counters: Vec<_> = (0..3).map(|_| counter(&context)).collect();
        let error = context.create_completion_counter(CounterType::WorkRequests).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfResources);
        refused(Err::<(), _>(error), Errno::ENOMEM, &["create_comp_cntr", "3 counters"]);
        counters.pop().unwrap().destroy().unwrap();
        counter(&context);
    });
}

fn operations_the_device_does_not_count_are_refused() {
    alone(|| {
        let _some = Parameter::set("comp_cntr_ops", &(Op::SEND | Op::RECV).bits().to_string());
        let context = open();
        assert_eq!(context.completion_counter_capabilities().unwrap().operations, Op::SEND | Op::RECV);
        let (mut end, counter) = (Setup::default().end(&context), counter(&context));
        let attached = end.qp.attach_completion_counter(&counter, Op::SEND | Op::RDMA_WRITE);
        assert_eq!(attached.as_ref().unwrap_err().kind(), ErrorKind::Unsupported);
        refused(attached, Errno::EOPNOTSUPP, &["does not count RDMA_WRITE", "SEND | RECV"]);
        // Nothing of it was attached.
        end.qp.attach_completion_counter(&counter, Op::SEND).unwrap();
    });
}

fn attaching_is_refused_with_the_reason() {
    alone(|| {
        let (context, setup) = (open(), Setup::default());
        let (mut end, mut peer) = (setup.end(&context), setup.end(&context));
        let counter = counter(&context);
        let attach = |qp: &mut QueuePair, operations| qp.attach_completion_counter(&counter, operations);
        refused(attach(&mut end.qp, Op::empty()), Errno::EINVAL, &["no operation"]);
        let unknown = Op::from_bits_retain(1 << 6 | Op::SEND.bits());
        refused(attach(&mut end.qp, unknown), Errno::EINVAL, &["no operation 0x40"]);
        let foreign = self::counter(&open());
        refused(end.qp.attach_completion_counter(&foreign, Op::SEND), Errno::EINVAL, &["another context"]);
        attach(&mut end.qp, Op::SEND).unwrap();
        refused(attach(&mut end.qp, Op::SEND | Op::RECV), Errno::EBUSY, &["SEND of this QP"]);
        end.qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
        attach(&mut end.qp, Op::RECV).unwrap();
        end.qp.modify(&ready_to_receive(&context, peer.qp.qp_num())).unwrap();
        refused(attach(&mut end.qp, Op::RDMA_READ), Errno::EINVAL, &["state RTR"]);
        setup.connect(&context, &mut peer.qp, &mut setup.end(&context).qp);
        refused(attach(&mut peer.qp, Op::RDMA_READ), Errno::EINVAL, &["state RTS"]);
        let bytes = context.create_completion_counter(CounterType::Bytes);
        refused(bytes, Errno::EOPNOTSUPP, &["type Bytes"]);
    });
}

fn an_attached_counter_is_busy() {
    alone(|| {
        let context = open();
        let (mut end, counter) = (Setup::default().end(&context), counter(&context));
        end.qp.attach_completion_counter(&counter, Op::SEND).unwrap();
        let busy = counter.destroy().unwrap_err();
        assert_eq!((busy.error().kind(), busy.error().errno()), (ErrorKind::Busy, Errno::EBUSY as i32));
        let counter = busy.into_inner();
        counter.inc(3).unwrap();
        end.qp.destroy().unwrap();
        assert_eq!(values(&counter), (3, 0));
        counter.destroy().unwrap();
    });
}

fn any_order_of_dropping_counters() {
    let soft = SoftDevice::new();
    let before = soft.resources();
    for counter_first in [true, false] {
        let context = soft.device().open().unwrap();
        let (mut end, counter) = (Setup::default().end(&context), counter(&context));
        end.qp.attach_completion_counter(&counter, Op::SEND).unwrap();
        drop(context);
        assert_eq!(soft.resources()["comp_cntr"], 1);
        if counter_first {
            drop(counter);
            assert_eq!(soft.resources()["comp_cntr"], 1);
            drop(end);
        } else {
            drop(end);
            assert_eq!(soft.resources()["comp_cntr"], 1);
            drop(counter);
        }
        assert_eq!(soft.resources(), before);
    }
}

fn queue_pairs_share_a_counter() {
    alone(|| {
        let (context, setup) = (open(), Setup::default());
        let counter = counter(&context);
        let mut pairs = [(); 2].map(|()| (setup.end(&context), setup.end(&context)));
        for (a, b) in &mut pairs {
            a.qp.attach_completion_counter(&counter, Op::SEND | Op::RECV).unwrap();
            setup.connect(&context, &mut a.qp, &mut b.qp);
        }
        for (index, (a, b)) in pairs.into_iter().enumerate() {
            let mut pair = Pair { a, b };
            pair.works();
            // One sent, one received.
            wait_until("both ends", || values(&counter) == (2 * (index as u64 + 1), 0));
        }
    });
}

fn counters_share_a_queue_pair() {
    alone(|| {
        let (context, setup) = (open(), Setup::default());
        let (sends, rest) = (counter(&context), counter(&context));
        let (mut a, mut b) = (setup.end(&context), setup.end(&context));
        a.qp.attach_completion_counter(&sends, Op::SEND).unwrap();
        a.qp.attach_completion_counter(&rest, Op::all() - Op::SEND).unwrap();
        setup.connect(&context, &mut a.qp, &mut b.qp);
        let mut pair = Pair { a, b };
        pair.works();
        wait_until("both counters", || (values(&sends), values(&rest)) == ((1, 0), (1, 0)));
    });
}

fn increments_of_many_threads_add_up() {
    alone(|| {
        const THREADS: u64 = 8;
        const EACH: u64 = 100_000;
        let counter = counter(&open());
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..EACH).for_each(|_| counter.inc(1).unwrap()));
            }
            // Reading meanwhile is no trouble either.
            scope.spawn(|| (0..1000).for_each(|_| assert!(counter.read().unwrap() <= THREADS * EACH)));
        });
        assert_eq!(values(&counter), (THREADS * EACH, 0));
    });
}

fn a_killed_process_gives_its_counters_back() {
    let soft = SoftDevice::new();
    let before = soft.resources();
    let environment = [("UVERBS_TEST_DEVICE", soft.name())];
    let victim = Process::start("counters::count_until_killed", &environment);
    wait_until("counters of the child", || soft.resources()["comp_cntr"] == before["comp_cntr"] + 12);
    drop(victim);
    wait_until("the counters of the dead", || soft.resources() == before);
}

fn count_until_killed() {
    let _counting = counting();
    thread::sleep(DEADLINE);
}

fn counters_survive_their_device() {
    let soft = SoftDevice::new();
    let context = soft.device().open().unwrap();
    let (mut end, counter) = (Setup::default().end(&context), counter(&context));
    end.qp.attach_completion_counter(&counter, Op::SEND).unwrap();
    soft.delete();
    refused(counter.read(), Errno::EIO, &["read_comp_cntr"]);
    refused(counter.set_err(1), Errno::EIO, &["set_err_comp_cntr"]);
    drop(end);
    counter.destroy().unwrap();
    soft.create();
}
