//! Changing the domain and the access of registered memory. Kernel 6.1's soft-RoCE cannot, and says so.

use nix::errno::Errno;
use uverbs::{AccessFlags, CompletionStatus, Context, ErrorKind, MemoryRegion, RemoteMemory, SendRequest};

use crate::common::{Pair, Setup, open, pattern, poll_for, refused, succeeded};

crate::cases! {
    Shared access_is_given_and_taken;
    Shared a_region_moves_to_another_domain;
    Shared what_cannot_be_changed_stays_as_it_was;
}

const LOCAL: AccessFlags = AccessFlags::LOCAL_WRITE;

/// Whether the device can do it, asked by a change that changes nothing.
fn can(region: &mut MemoryRegion) -> bool {
    let domain = region.protection_domain().clone();
    let before = (region.lkey(), region.rkey());
    match region.reregister(Some(&domain), None) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            refused(Err::<(), _>(error), Errno::EOPNOTSUPP, &["rereg_mr", "cannot do this"]);
            assert_eq!((region.lkey(), region.rkey()), before);
            false
        }
    }
}

/// How an RDMA read of 64 bytes of the second end's memory by the first ends.
fn read(Pair { a, b }: &mut Pair) -> CompletionStatus {
    let from = RemoteMemory { address: b.memory.address(), rkey: b.memory.rkey() };
    let sges = [a.memory.sge(0..64)];
    a.qp.post_send_list(&[SendRequest::rdma_read(1, &sges, from).signaled()]).unwrap();
    poll_for(&mut a.cq, 1)[0].status()
}

/// A pair whose queue pairs let peers read, but whose memory does not.
fn closed_pair(context: &Context) -> Pair {
    let mut pair = Setup { access: AccessFlags::REMOTE_READ, ..Setup::default() }.pair_in(context);
    let domain = pair.b.memory.protection_domain().clone();
    pair.b.memory = domain.allocate(4096, LOCAL).unwrap();
    pair.b.memory.write(0, &pattern(1, 64));
    pair
}

fn access_is_given_and_taken() {
    let mut pair = closed_pair(&open());
    if !can(&mut pair.b.memory) {
        return;
    }
    pair.b.memory.reregister(None, Some(LOCAL | AccessFlags::REMOTE_READ)).unwrap();
    assert_eq!(read(&mut pair), CompletionStatus::SUCCESS);
    assert_eq!(pair.a.bytes(0..64), pattern(1, 64));
    // It is still good for what it was good for.
    pair.b.receive(5, 0..64);
    pair.a.memory.write(0, &pattern(2, 64));
    pair.a.send(6, 0..64);
    assert_eq!(succeeded(&poll_for(&mut pair.b.cq, 1)), [5]);
    assert_eq!(pair.b.bytes(0..64), pattern(2, 64));
    succeeded(&poll_for(&mut pair.a.cq, 1));
    pair.b.memory.reregister(None, Some(LOCAL)).unwrap();
    assert_eq!(read(&mut pair), CompletionStatus::REM_ACCESS_ERR);
}

fn a_region_moves_to_another_domain() {
    let context = open();
    let mut pair = closed_pair(&context);
    if !can(&mut pair.b.memory) {
        return;
    }
    let old = pair.b.memory.protection_domain().clone();
    let new = context.alloc_protection_domain().unwrap();
    pair.b.memory.reregister(Some(&new), Some(LOCAL | AccessFlags::REMOTE_READ)).unwrap();
    assert_eq!(format!("{:?}", pair.b.memory.protection_domain()), format!("{new:?}"));
    // A queue pair of the old domain reaches it no more.
    assert_eq!(read(&mut pair), CompletionStatus::REM_ACCESS_ERR);
    // The region keeps the new domain alive, and the old one no longer.
    new.destroy().unwrap_err();
    let Pair { b, .. } = pair;
    b.qp.destroy().unwrap();
    old.destroy().unwrap();
    b.memory.destroy().unwrap();
}

fn what_cannot_be_changed_stays_as_it_was() {
    let context = open();
    let domain = context.alloc_protection_domain().unwrap();
    let other = open().alloc_protection_domain().unwrap();
    let mut region = domain.allocate(4096, AccessFlags::REMOTE_READ).unwrap();
    let keys = (region.lkey(), region.rkey());
    refused(region.reregister(Some(&other), None), Errno::EINVAL, &["rereg_mr", "another context"]);
    // Read-only memory is not made writable behind the back of who lent it.
    for access in [LOCAL, LOCAL | AccessFlags::MW_BIND, AccessFlags::REMOTE_ATOMIC] {
        refused(region.reregister(None, Some(access)), Errno::EACCES, &["registered without"]);
    }
    if can(&mut region) {
        refused(region.reregister(None, None), Errno::EINVAL, &["nothing to change"]);
        let mut region = domain.allocate(4096, LOCAL).unwrap();
        let remote_alone = Some(AccessFlags::REMOTE_WRITE);
        refused(region.reregister(None, remote_alone), Errno::EINVAL, &["rereg_mr", "REMOTE_WRITE"]);
    }
    assert_eq!((region.lkey(), region.rkey()), keys);
    region.destroy().unwrap();
}
