//! Whole objects on that transport: what the real kernel crashes on, waits long for or seldom does.

use std::io::Write;

use super::*;
use crate::{Context, Device, ErrorKind};

const DESTROY_CQ: (u16, u16) = (object::CQ, method::cq::DESTROY);

fn open() -> (&'static Kernel, Context) {
    let kernel: &'static Kernel = Box::leak(Box::default());
    (kernel, Context::new(Device::nowhere(), Box::new(kernel)).unwrap())
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
