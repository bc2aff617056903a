//! Lifetimes: whatever the order, and however a process ends, nothing is left behind.

use std::io::{BufRead, BufReader};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Uid, setgid, setuid};
use uverbs::{AccessFlags, Device, ErrorKind, QueuePairCapabilities, QueuePairInit, WorkCompletion};

use crate::child::Process;
use crate::common::{
    DEADLINE, Holdings, Pair, Setup, device_name, open, out_of_address_space, poll_for, read_trimmed,
    refused, succeeded, wait_until,
};
use crate::soft::SoftDevice;

crate::cases! {
    Alone any_order_of_dropping_leaves_nothing;
    Alone everything_two_hundred_times_leaves_nothing;
    KernelAlone what_cannot_be_created_leaves_nothing;
    Kernel a_killed_process_leaves_nothing;
    Part work_until_killed;
    KernelAlone privileges_dropped_after_opening;
    KernelAlone out_of_file_descriptors;
    Unplugging objects_survive_their_device;
}

/// Numbers that look random, the same in each run.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn any_order_of_dropping_leaves_nothing() {
    let soft = SoftDevice::new();
    let (mut state, mut before) = (1, None);
    for round in 0..150 {
        {
            let context = soft.device().open().unwrap();
            let Pair { mut a, mut b } = Setup { events: true, ..Setup::default() }.pair_in(&context);
            b.receive_nothing(0..1);
            b.cq.arm(false).unwrap();
            a.send_nothing(0).unwrap();
            let event = b.channel().wait(Some(DEADLINE)).unwrap().unwrap();
            let domain = b.memory.protection_domain().clone();
            let mut objects: Vec<Box<dyn std::any::Any>> = vec![
                Box::new(context),
                Box::new(domain),
                Box::new(event),
                Box::new(a.qp),
                Box::new(a.cq),
                Box::new(a.channel),
                Box::new(a.memory),
                Box::new(b.qp),
                Box::new(b.cq),
                Box::new(b.channel),
                Box::new(b.memory),
            ];
            while !objects.is_empty() {
                let place = random(&mut state) as usize % objects.len();
                objects.swap_remove(place);
            }
        }
        let now = (Holdings::of_this_process(), soft.resources());
        // The first round is there to warm up what allocates once.
        match &before {
            Some(before) if round > 1 => assert_eq!(now, *before, "round {round}"),
            _ => before = Some(now),
        }
    }
}

fn everything_two_hundred_times_leaves_nothing() {
    let soft = SoftDevice::new();
    let mut before = None;
    for round in 0..200 {
        let context = soft.device().open().unwrap();
        let mut pair = Setup { events: true, ..Setup::default() }.pair_in(&context);
        if round % 20 == 0 {
            pair.works();
        }
        let Pair { a, b } = pair;
        for end in [a, b] {
            end.qp.destroy().unwrap();
            end.cq.destroy().unwrap();
            end.channel.unwrap().destroy().unwrap();
            let domain = end.memory.protection_domain().clone();
            end.memory.destroy().unwrap();
            domain.destroy().unwrap();
        }
        context.close().unwrap();
        let now = (Holdings::of_this_process(), soft.resources());
        match &before {
            Some(before) if round > 1 => assert_eq!(now, *before, "round {round}"),
            _ => before = Some(now),
        }
    }
}

fn what_cannot_be_created_leaves_nothing() {
    let soft = SoftDevice::new();
    let context = soft.device().open().unwrap();
    let domain = context.alloc_protection_domain().unwrap();
    let channel = context.create_completion_channel().unwrap();
    let cq = context.create_completion_queue(4, Some(&channel), 0).unwrap();
    let try_all = || {
        context.create_completion_queue(0, Some(&channel), 0).unwrap_err();
        context.create_completion_queue(1 << 20, Some(&channel), 0).unwrap_err();
        context.create_completion_queue(4, Some(&channel), 1 << 20).unwrap_err();
        let default = QueuePairCapabilities::default();
        for capabilities in [
            QueuePairCapabilities { max_send_wr: u32::MAX, ..default },
            QueuePairCapabilities { max_recv_sge: 1000, ..default },
            QueuePairCapabilities { max_inline_data: 1 << 16, ..default },
        ] {
            let init = QueuePairInit { capabilities, ..QueuePairInit::reliable_connection(&cq) };
            domain.create_queue_pair(&init).unwrap_err();
        }
        domain.allocate(4096, AccessFlags::REMOTE_WRITE).unwrap_err();
        Device::find("none7").unwrap_err();
    };
    try_all();
    let before = (Holdings::of_this_process(), soft.resources());
    for _ in 0..50 {
        try_all();
    }
    assert_eq!((Holdings::of_this_process(), soft.resources()), before);

    // The kernel makes the object, but there is no address space left to map its queues into.
    let big = QueuePairCapabilities { max_send_wr: 8000, max_recv_wr: 8000, ..Default::default() };
    let init = QueuePairInit { capabilities: big, ..QueuePairInit::reliable_connection(&cq) };
    let errors = out_of_address_space(|| {
        [
            context.create_completion_queue(30_000, Some(&channel), 0).unwrap_err(),
            domain.create_queue_pair(&init).unwrap_err(),
            domain.create_shared_receive_queue(30_000, 1).unwrap_err(),
        ]
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::OutOfResources, "{error}");
    }
    assert_eq!(soft.resources(), before.1);
    cq.destroy().unwrap();
    channel.destroy().unwrap();
}

fn a_killed_process_leaves_nothing() {
    let soft = SoftDevice::new();
    let before = soft.resources();
    for _ in 0..3 {
        let environment = [("UVERBS_TEST_DEVICE", soft.name())];
        let mut victim = Process::start("lifetime::work_until_killed", &environment);
        let mut line = String::new();
        BufReader::new(victim.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "working\n");
        let during = soft.resources();
        assert_eq!((during["qp"], during["cq"]), (before["qp"] + 2, before["cq"] + 2));
        assert_eq!(during["mr"], before["mr"] + 2);
        victim.0.kill().unwrap();
        victim.0.wait().unwrap();
        wait_until("the objects of the dead", || soft.resources() == before);
    }
}

fn work_until_killed() {
    let Pair { mut a, mut b } = Setup { memory: 1 << 16, ..Setup::default() }.pair();
    for number in 0_u64.. {
        b.receive(number, 0..1 << 16);
        a.send(number, 0..1 << 16);
        succeeded(&poll_for(&mut a.cq, 1));
        succeeded(&poll_for(&mut b.cq, 1));
        if number == 10 {
            println!("working");
        }
    }
}

/// write(2), by which doorbells are rung, is refused to a process whose credentials have changed.
fn privileges_dropped_after_opening() {
    let Pair { mut a, mut b } = Setup { events: true, ..Setup::default() }.pair();
    setgid(Gid::from_raw(65534)).unwrap();
    setuid(Uid::from_raw(65534)).unwrap();
    let mut completions = [WorkCompletion::default(); 1];
    for number in 0..100_u64 {
        b.receive(number, 0..8);
        b.cq.arm(false).unwrap();
        a.memory.write(0, &number.to_ne_bytes());
        a.send(number, 0..8);
        b.take_event();
        assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [number]);
        assert_eq!(b.bytes(0..8), number.to_ne_bytes());
        assert_eq!(succeeded(a.cq.wait(&mut completions, Some(DEADLINE)).unwrap()), [number]);
    }
    let another = Setup::default();
    let domain = a.memory.protection_domain();
    domain.create_queue_pair(&another.init(&a.cq)).unwrap().destroy().unwrap();
}

fn out_of_file_descriptors() {
    let context = open();
    let before = Holdings::of_this_process();
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, used + 2, hard).unwrap();
    let channels = [(); 2].map(|()| context.create_completion_channel().unwrap());
    let error = context.create_completion_channel().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfResources);
    refused(Err::<(), _>(error), Errno::EMFILE, &["create_comp_channel"]);
    refused(context.device().open(), Errno::EMFILE, &["open_device", &device_name()]);
    // Room for the device's file, but not for that of its events.
    let [_one, other] = channels;
    drop(other);
    refused(context.device().open(), Errno::EMFILE, &["open_device"]);
    drop(_one);
    context.device().open().unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    assert_eq!(Holdings::of_this_process(), before);
}

pub(crate) fn kernel_version() -> (u32, u32) {
    let release = read_trimmed("/proc/sys/kernel/osrelease");
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

fn objects_survive_their_device() {
    let soft = SoftDevice::new();
    let context = soft.device().open().unwrap();
    let Pair { mut a, mut b } = Setup { events: true, ..Setup::default() }.pair_in(&context);
    b.receive_nothing(0..1);
    soft.delete();
    refused(context.query_port(1), Errno::EIO, &["query_port"]);
    refused(context.alloc_protection_domain(), Errno::EIO, &["alloc_pd"]);
    assert_eq!(context.query_device().unwrap_err().kind(), ErrorKind::DeviceGone);
    refused(b.cq.arm(false), Errno::EIO, &["req_notify_cq"]);
    refused(a.qp.query(), Errno::EIO, &["query_qp"]);
    refused(a.send_nothing(1), Errno::EIO, &["could not be told"]);
    let mut completions = [WorkCompletion::default(); 1];
    refused(b.cq.wait(&mut completions, Some(DEADLINE)), Errno::EIO, &[]);
    refused(b.channel().wait(Some(DEADLINE)), Errno::EIO, &["get_cq_event"]);
    b.cq.poll(&mut completions);
    a.qp.destroy().unwrap();
    a.memory.destroy().unwrap();
    a.cq.destroy().unwrap();
    drop((a.channel, b));
    context.close().unwrap();
    soft.create();
    Setup::default().pair_in(&soft.device().open().unwrap()).works();
}
