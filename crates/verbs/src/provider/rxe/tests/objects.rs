//! Whole objects on that transport: what the real kernel crashes on, waits long for or seldom does.

use std::cell::RefCell;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::{
    AccessFlags, Context, Device, ErrorKind, Memory, MemoryRegion, MemoryWindow, MemoryWindowType,
    ModifyQueuePair, PostReason, ProtectionDomain, QueuePair, QueuePairInit, QueuePairState, RemoteMemory,
    SendRequest,
};

const DESTROY_CQ: (u16, u16) = (object::CQ, method::cq::DESTROY);
const DESTROY_MR: (u16, u16) = (object::MR, method::mr::DESTROY);
const DESTROY_MW: (u16, u16) = (object::MW, method::mw::DESTROY);
const DESTROY_PD: (u16, u16) = (object::PD, method::pd::DESTROY);
const DESTROY_QP: (u16, u16) = (object::QP, method::qp::DESTROY);

fn open() -> (&'static Kernel, Context) {
    let kernel: &'static Kernel = Box::leak(Box::default());
    (kernel, Context::new(Device::nowhere(), Box::new(kernel)).unwrap())
}

fn queue_pair(context: &Context, domain: &ProtectionDomain) -> QueuePair {
    let cq = context.create_completion_queue(16, None, 0).unwrap();
    let mut qp = domain.create_queue_pair(&QueuePairInit::reliable_connection(&cq)).unwrap();
    qp.modify(&ModifyQueuePair::to(QueuePairState::ReadyToSend)).unwrap();
    qp
}

/// Two queue pairs with the same number (all have), a window of type 2, and a region to bind it to.
struct Scene {
    kernel: &'static Kernel,
    qp: QueuePair,
    other: QueuePair,
    window: MemoryWindow,
    region: MemoryRegion,
}

impl Scene {
    fn new() -> Self {
        let (kernel, context) = open();
        let domain = context.alloc_protection_domain().unwrap();
        Self {
            kernel,
            qp: queue_pair(&context, &domain),
            other: queue_pair(&context, &domain),
            window: domain.alloc_memory_window(MemoryWindowType::Type2).unwrap(),
            region: domain.allocate(4096, AccessFlags::MW_BIND).unwrap(),
        }
    }
}

/// A request that binds the window, and one that invalidates its key.
fn requests<'a>(window: &'a MemoryWindow, region: &MemoryRegion) -> (SendRequest<'a>, SendRequest<'static>) {
    let binding = window.binding(region, 0..64, AccessFlags::REMOTE_READ).unwrap();
    let invalidate = SendRequest::local_invalidate(2, binding.remote().rkey);
    (SendRequest::bind_memory_window(1, binding), invalidate)
}

fn post(qp: &mut QueuePair, request: SendRequest<'_>) -> Result<(), PostReason> {
    let list = qp.post_send_list(&[request]).map_err(|error| error.reason);
    if list.is_err() {
        assert_eq!(qp.post_send().push(&request).submit().map_err(|error| error.reason), list);
    }
    list
}

fn is_not_bound(qp: &mut QueuePair, invalidate: SendRequest<'_>) {
    assert!(matches!(post(qp, invalidate), Err(PostReason::NotBound { .. })));
}

#[test]
fn a_binding_is_invalidated_once() {
    let Scene { mut qp, window, region, .. } = Scene::new();
    let (bind, invalidate) = requests(&window, &region);
    for _ in 0..3 {
        is_not_bound(&mut qp, invalidate);
        post(&mut qp, bind).unwrap();
        post(&mut qp, invalidate).unwrap();
    }
    is_not_bound(&mut qp, invalidate);
    let batch = qp.post_send().push(&bind).push(&invalidate).push(&invalidate);
    assert_eq!(batch.submit().unwrap_err().index, 2);
    // Nobody knows yet whether it has been executed.
    let refusal = qp.destroy().unwrap_err();
    assert!(refusal.to_string().contains("1 memory windows"), "{refusal}");
}

#[test]
fn what_was_not_posted_changes_nothing() {
    let Scene { mut qp, mut other, window, region, .. } = Scene::new();
    let (bind, invalidate) = requests(&window, &region);
    let nowhere = RemoteMemory { address: 0, rkey: 0 };
    let too_long = SendRequest::rdma_write_inline(0, &[&[0; 100]], nowhere);
    drop(qp.post_send().push(&bind));
    is_not_bound(&mut qp, invalidate);
    qp.post_send().push(&bind).push(&invalidate).push(&bind).push(&too_long).submit().unwrap_err();
    is_not_bound(&mut qp, invalidate);
    std::mem::forget(qp.post_send().push(&bind));
    is_not_bound(&mut qp, invalidate);
    while post(&mut qp, SendRequest::send(0, &[])).is_ok() {}
    assert_eq!(post(&mut qp, bind), Err(PostReason::QueueFull));

    post(&mut other, bind).unwrap();
    drop(other.post_send().push(&invalidate));
    other.post_send().push(&invalidate).push(&too_long).submit().unwrap_err();
    post(&mut other, invalidate).unwrap();
    is_not_bound(&mut other, invalidate);
    qp.destroy().unwrap();
}

#[test]
fn a_full_queue_keeps_what_is_bound() {
    let Scene { mut qp, window, region, .. } = Scene::new();
    let (bind, invalidate) = requests(&window, &region);
    post(&mut qp, bind).unwrap();
    while post(&mut qp, SendRequest::send(0, &[])).is_ok() {}
    for _ in 0..2 {
        assert_eq!(post(&mut qp, invalidate), Err(PostReason::QueueFull));
    }
}

#[test]
fn what_a_reset_queue_pair_has_bound_is_not_known() {
    let Scene { kernel, mut qp, window, region, .. } = Scene::new();
    let (bind, invalidate) = requests(&window, &region);
    post(&mut qp, bind).unwrap();
    std::mem::forget(qp.post_send().push(&invalidate));
    qp.modify(&ModifyQueuePair::to(QueuePairState::Reset)).unwrap();
    qp.modify(&ModifyQueuePair::to(QueuePairState::ReadyToSend)).unwrap();
    is_not_bound(&mut qp, invalidate);
    // If this one fails, the queue pair does not get as far as the other.
    post(&mut qp, bind).unwrap();
    post(&mut qp, invalidate).unwrap();
    drop(qp);
    assert!(kernel.methods().ends_with(&[DESTROY_MW, DESTROY_QP, DESTROY_CQ]));
}

#[test]
fn queue_pairs_are_not_told_by_their_number() {
    let Scene { kernel, mut qp, mut other, window, region } = Scene::new();
    assert_eq!(qp.qp_num(), other.qp_num());
    let (bind, invalidate) = requests(&window, &region);
    post(&mut qp, bind).unwrap();
    assert_eq!(post(&mut other, bind), Err(PostReason::WindowElsewhere { qp_num: QP_NUM }));
    is_not_bound(&mut other, invalidate);
    other.destroy().unwrap();
    drop(qp);
    assert!(kernel.methods().ends_with(&[DESTROY_MW, DESTROY_QP, DESTROY_CQ]));
}

#[test]
fn windows_of_other_domains_are_refused() {
    let Scene { window, region, .. } = Scene::new();
    let (bind, _) = requests(&window, &region);
    let mut elsewhere = Scene::new();
    let error = elsewhere.qp.post_send_list(&[bind]).unwrap_err();
    assert_eq!((error.reason, error.errno()), (PostReason::OtherDomain, Errno::EPERM as i32));
    assert_eq!(crate::Error::from(error).kind(), ErrorKind::PermissionDenied);
    elsewhere.qp.destroy().unwrap();
}

thread_local! {
    static LOGGED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Collects what each thread logs.
struct Collector;

impl log::Log for Collector {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LOGGED.with_borrow_mut(|logged| logged.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

/// What this thread has logged since it was asked last: warnings and errors.
fn logged() -> Vec<String> {
    // Another test may have been first.
    let _ = log::set_logger(&Collector);
    log::set_max_level(log::LevelFilter::Warn);
    LOGGED.take()
}

/// Memory that is found again by its name.
fn named(name: &str) -> Memory {
    let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    Memory::file(&file.into(), 4096).unwrap()
}

fn is_mapped(name: &str) -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains(&format!("memfd:{name} "))
}

#[test]
fn a_region_that_cannot_go_goes_with_the_window() {
    logged();
    const NAME: &str = "goes-with-the-window";
    let Scene { kernel, qp, window, .. } = Scene::new();
    let domain = window.protection_domain().clone();
    let region = domain.register(named(NAME), AccessFlags::MW_BIND).unwrap();
    let before = kernel.methods().len();
    kernel.refuse(DESTROY_MR, Some(Errno::EINVAL));
    drop(region);
    let regions = || kernel.methods()[before..].iter().filter(|method| **method == DESTROY_MR).count();
    assert_eq!((regions(), is_mapped(NAME)), (1, true));
    // Something else keeps it.
    domain.alloc_memory_window(MemoryWindowType::Type1).unwrap().destroy().unwrap();
    drop(qp);
    assert_eq!((regions(), is_mapped(NAME)), (3, true));
    kernel.refuse(DESTROY_MR, None);
    window.destroy().unwrap();
    assert_eq!((regions(), is_mapped(NAME)), (4, false));
    domain.destroy().unwrap();
    assert_eq!(regions(), 4);
    assert!(kernel.methods().ends_with(&[DESTROY_MW, DESTROY_MR, DESTROY_PD]));
    assert_eq!(logged(), [""; 0]);
}

#[test]
fn a_region_that_never_goes_is_leaked_and_that_is_said_once() {
    logged();
    const NAME: &str = "never-goes";
    let (kernel, context) = open();
    let domain = context.alloc_protection_domain().unwrap();
    let region = domain.register(named(NAME), AccessFlags::MW_BIND).unwrap();
    kernel.refuse(DESTROY_MR, Some(Errno::EINVAL));
    drop(region);
    drop(domain);
    assert!(is_mapped(NAME));
    context.close().unwrap();
    let logged = logged();
    assert!(logged.len() == 1 && logged[0].contains("4096 bytes"), "{logged:?}");
}

#[test]
fn a_queue_that_is_not_destroyed_loses_no_event() {
    let (kernel, context) = open();
    let channel = context.create_completion_channel().unwrap();
    let mut cq = context.create_completion_queue(16, Some(&channel), 0).unwrap();
    cq.arm(false).unwrap();
    kernel.refuse(DESTROY_CQ, Some(Errno::EBUSY));
    kernel.watched.set(channel.clone()).unwrap();
    let mut events = kernel.channel.get().unwrap();
    events.write_all(&cq.id().to_ne_bytes()).unwrap();
    let cq = cq.destroy().unwrap_err().into_inner();
    assert_eq!(*kernel.seen.lock().unwrap(), [cq.id()]);
    events.write_all(&cq.id().to_ne_bytes()).unwrap();
    assert_eq!(channel.try_get_event().unwrap().queue_id(), cq.id());
    kernel.refuse(DESTROY_CQ, None);
    cq.destroy().unwrap();
    let event = channel.try_get_event();
    assert_eq!(event.unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "it is to be refused")]
fn stretches_are_inside_of_their_region() {
    let Scene { region, .. } = Scene::new();
    let stretch = |range| catch_unwind(AssertUnwindSafe(|| region.sge(range))).ok();
    assert_eq!(stretch(4000..4096).map(|sge| (sge.address, sge.length)), Some((region.address() + 4000, 96)));
    assert_eq!(stretch(4096..4096).map(|sge| sge.length), Some(0));
    for range in [5..3, 4096..4097, 4097..4097, usize::MAX..usize::MAX] {
        assert_eq!(stretch(range.clone()), None, "{range:?}");
    }
}
