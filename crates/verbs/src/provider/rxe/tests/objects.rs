//! Whole objects on that transport: what the real kernel crashes on, waits long for or seldom does.

use std::cell::RefCell;
use std::io::Write;

use super::*;
use crate::{
    AccessFlags, Context, Device, ErrorKind, Memory, MemoryWindowType, ModifyQueuePair, ProtectionDomain,
    QueuePair, QueuePairInit, QueuePairState,
};

const DESTROY_CQ: (u16, u16) = (object::CQ, method::cq::DESTROY);
const DESTROY_MR: (u16, u16) = (object::MR, method::mr::DESTROY);
const DESTROY_MW: (u16, u16) = (object::MW, method::mw::DESTROY);
const DESTROY_PD: (u16, u16) = (object::PD, method::pd::DESTROY);

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
    let (kernel, context) = open();
    let domain = context.alloc_protection_domain().unwrap();
    let (qp, window) =
        (queue_pair(&context, &domain), domain.alloc_memory_window(MemoryWindowType::Type2).unwrap());
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
