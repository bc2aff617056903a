//! RDMA flush. Devices that lack it refuse the requests.

use nix::errno::Errno;
use uverbs::{
    AccessFlags, CompletionOpcode, CompletionStatus, FlushExtent, FlushPlacement, PostReason, RemoteMemory,
    SendRequest,
};
use uverbs_ioctl::uapi::user_verbs::DeviceCapFlags;

use crate::common::{Pair, Setup, capabilities, open, pattern, poll_for, poll_for_none, refused, succeeded};

crate::cases! {
    Shared written_memory_is_flushed;
    Shared vb_15_access_and_range_are_checked_by_the_peer;
    Shared without_the_capability_it_is_refused;
    Shared persistent_access_needs_persistent_memory;
}

/// A pair of whose memory the peer may flush everything, if the device can.
fn pair() -> Option<Pair> {
    let context = open();
    let there = capabilities(&context).contains(DeviceCapFlags::FLUSH_GLOBAL);
    there.then(|| {
        let access = AccessFlags::REMOTE_WRITE | AccessFlags::FLUSH_GLOBAL;
        Setup { access, memory: 1 << 16, ..Setup::default() }.pair_in(&context)
    })
}

fn written_memory_is_flushed() {
    let Some(Pair { mut a, b }) = pair() else { return };
    let sent = pattern(1, 5000);
    a.memory.write(0, &sent);
    let sges = [a.memory.sge(0..5000)];
    let to = b.remote(300);
    // The address does not matter where the whole region is flushed.
    let region = RemoteMemory { address: 0, ..to };
    for (wr_id, memory, extent) in [
        (1, to, FlushExtent::Range(5000)),
        (2, to, FlushExtent::Range(0)),
        (3, region, FlushExtent::Region),
        (4, b.remote(0), FlushExtent::Range(1 << 16)),
    ] {
        let flush = SendRequest::flush(wr_id, memory, extent, FlushPlacement::GLOBAL).signaled();
        a.qp.post_send().push(&SendRequest::rdma_write(0, &sges, to)).push(&flush).submit().unwrap();
        let done = poll_for(&mut a.cq, 1)[0];
        assert_eq!((done.wr_id(), done.success().unwrap().opcode()), (wr_id, CompletionOpcode::Flush));
        assert!(b.bytes(300..5300) == sent);
        a.qp.post_send_list(&[flush]).unwrap();
        assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [wr_id]);
    }
    let error =
        a.qp.post_send_list(&[SendRequest {
            payload: uverbs::Payload::Sges(&sges),
            ..SendRequest::flush(1, to, FlushExtent::Region, FlushPlacement::GLOBAL)
        }])
        .unwrap_err();
    assert_eq!(error.reason, PostReason::NoPayload);
}

fn vb_15_access_and_range_are_checked_by_the_peer() {
    let range = FlushExtent::Range(64);
    let (global, persistent) = (FlushPlacement::GLOBAL, FlushPlacement::PERSISTENT);
    // Who forbids it is seen from the status: the QP, as it does persistent flushes, or the region.
    for (offset, extent, placement, status) in [
        ((1 << 16) - 32, range, global, CompletionStatus::REM_ACCESS_ERR),
        (1 << 16, range, global, CompletionStatus::REM_ACCESS_ERR),
        (0, range, persistent, CompletionStatus::REM_INV_REQ_ERR),
        (0, FlushExtent::Region, global | persistent, CompletionStatus::REM_INV_REQ_ERR),
    ] {
        let Some(Pair { mut a, b }) = pair() else { return };
        a.qp.post_send_list(&[SendRequest::flush(9, b.remote(offset), extent, placement)]).unwrap();
        let error = poll_for(&mut a.cq, 1)[0].success().unwrap_err();
        assert_eq!((error.wr_id, error.status), (9, status), "{offset} {extent:?} {placement:?}");
    }
    let Some(Pair { mut a, b }) = pair() else { return };
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let region = b.memory.protection_domain().allocate(4096, access).unwrap();
    let memory = RemoteMemory { address: region.address(), rkey: region.rkey() };
    a.qp.post_send_list(&[SendRequest::flush(9, memory, range, global)]).unwrap();
    let error = poll_for(&mut a.cq, 1)[0].success().unwrap_err();
    assert_eq!((error.wr_id, error.status), (9, CompletionStatus::REM_ACCESS_ERR));
}

fn without_the_capability_it_is_refused() {
    let context = open();
    if capabilities(&context).contains(DeviceCapFlags::FLUSH_GLOBAL) {
        return;
    }
    let Pair { mut a, b } = Setup::default().pair_in(&context);
    let flush = SendRequest::flush(1, b.remote(0), FlushExtent::Range(1), FlushPlacement::GLOBAL);
    refused(a.qp.post_send_list(&[flush]), Errno::EINVAL, &["request 0", "lack the operation"]);
    let batch = a.qp.post_send().push(&SendRequest::send(0, &[])).push(&flush);
    let error = batch.submit().unwrap_err();
    assert_eq!((error.index, error.reason), (1, PostReason::NoSuchOperation));
    poll_for_none(&mut a.cq);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::FLUSH_GLOBAL;
    let region = a.memory.protection_domain().allocate(4096, access);
    refused(region, Errno::EINVAL, &["FLUSH_GLOBAL"]);
}

fn persistent_access_needs_persistent_memory() {
    let domain = open().alloc_protection_domain().unwrap();
    let region = domain.allocate(4096, AccessFlags::LOCAL_WRITE | AccessFlags::FLUSH_PERSISTENT);
    refused(region, Errno::EINVAL, &["FLUSH_PERSISTENT"]);
}
