//! On-demand paging: memory that is registered without being locked. The device says whether it can.

use nix::errno::Errno;
use uverbs::{AccessFlags, Context, ErrorKind, MemoryAdvice, RemoteMemory, SendRequest};

use crate::common::{Holdings, Setup, open, pattern, poll_for, refused, succeeded};

crate::cases! {
    Shared without_paging_it_is_refused;
    Shared messages_and_rdma_over_paged_memory;
    Shared advice_is_taken_or_refused;
    Alone paged_memory_is_not_locked;
    Alone vb_24_no_region_is_kept_from_children;
}

const PAGED: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::ON_DEMAND);
const SIZE: usize = 3 * 4096 + 100;
const ADVICE: [MemoryAdvice; 3] =
    [MemoryAdvice::Prefetch, MemoryAdvice::PrefetchWrite, MemoryAdvice::PrefetchNoFault];

fn pages(context: &Context) -> bool {
    context.query_device().unwrap().odp_general_caps & 1 != 0
}

fn without_paging_it_is_refused() {
    let context = open();
    if pages(&context) {
        return;
    }
    let domain = context.alloc_protection_domain().unwrap();
    let error = domain.allocate(SIZE, PAGED).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    refused(Err::<(), _>(error), Errno::EOPNOTSUPP, &["reg_mr", "cannot page on demand"]);
    let region = domain.allocate(SIZE, AccessFlags::LOCAL_WRITE).unwrap();
    for advice in ADVICE {
        let result = domain.advise(advice, true, &[region.sge(0..10)]);
        refused(result, Errno::EOPNOTSUPP, &["advise_mr", "cannot page on demand"]);
    }
}

/// soft-RoCE of Linux 7.3 takes every access to paged memory for one to the beginning of the page, so each begins there here, and is of
/// one packet.
fn messages_and_rdma_over_paged_memory() {
    const LENGTH: usize = 1000;
    let context = open();
    if !pages(&context) {
        return;
    }
    let page = |number: usize| number * 4096..number * 4096 + LENGTH;
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let mut pair = Setup { access, ..Setup::default() }.pair_in(&context);
    for end in [&mut pair.a, &mut pair.b] {
        let domain = end.memory.protection_domain().clone();
        end.memory = domain.allocate(SIZE, PAGED).unwrap();
    }
    let (a, b) = (&mut pair.a, &mut pair.b);
    a.memory.write(4096, &pattern(1, LENGTH));
    // Into pages that nobody has touched.
    b.receive(1, page(0));
    a.send(2, page(1));
    assert_eq!(succeeded(&poll_for(&mut b.cq, 1)), [1]);
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [2]);
    assert_eq!(b.bytes(page(0)), pattern(1, LENGTH));

    let there = RemoteMemory { address: b.memory.address() + 8192, rkey: b.memory.rkey() };
    let sges = [a.memory.sge(page(1))];
    a.qp.post_send_list(&[SendRequest::rdma_write(3, &sges, there).signaled()]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [3]);
    assert_eq!(b.bytes(page(2)), pattern(1, LENGTH));
    let sges = [a.memory.sge(page(2))];
    a.qp.post_send_list(&[SendRequest::rdma_read(4, &sges, there).signaled()]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [4]);
    assert_eq!(a.bytes(page(2)), pattern(1, LENGTH));
}

fn advice_is_taken_or_refused() {
    let context = open();
    if !pages(&context) {
        return;
    }
    let domain = context.alloc_protection_domain().unwrap();
    let region = domain.allocate(SIZE, PAGED).unwrap();
    for advice in ADVICE {
        for flush in [false, true] {
            domain.advise(advice, flush, &[region.sge(0..SIZE), region.sge(5..6)]).unwrap();
        }
        let mut wrong = region.sge(0..10);
        wrong.lkey ^= 0xff00;
        refused(domain.advise(advice, true, &[wrong]), Errno::EINVAL, &["advise_mr"]);
        // It is to be said of something.
        refused(domain.advise(advice, true, &[]), Errno::EINVAL, &["advise_mr"]);
    }
    // A region of another domain.
    let other = context.alloc_protection_domain().unwrap();
    refused(other.advise(MemoryAdvice::Prefetch, true, &[region.sge(0..10)]), Errno::EINVAL, &[]);
}

fn paged_memory_is_not_locked() {
    let context = open();
    if !pages(&context) {
        return;
    }
    let domain = context.alloc_protection_domain().unwrap();
    let before = Holdings::of_this_process().pinned().to_owned();
    let region = domain.allocate(1 << 20, PAGED).unwrap();
    domain.advise(MemoryAdvice::PrefetchWrite, true, &[region.sge(0..1 << 20)]).unwrap();
    assert_eq!(Holdings::of_this_process().pinned(), before);
    region.destroy().unwrap();
}

/// Kernels copy pinned pages on fork, so nothing is marked, and no mark can be left or missing, paged or not.
fn vb_24_no_region_is_kept_from_children() {
    let context = open();
    let domain = context.alloc_protection_domain().unwrap();
    let kept = || {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        smaps.lines().filter(|line| line.starts_with("VmFlags") && line.contains(" dc")).count()
    };
    let before = kept();
    let mut regions = vec![domain.allocate(SIZE, AccessFlags::LOCAL_WRITE).unwrap()];
    if pages(&context) {
        let locked = &regions[0];
        let (start, length) = (locked.as_ptr(), locked.len());
        // SAFETY: the memory is that of the first region, which goes after this one; nobody uses either.
        regions.push(unsafe { domain.register_raw(start, length, PAGED) }.unwrap());
        assert_eq!(kept(), before);
        regions.pop();
    }
    assert_eq!(kept(), before);
    regions.pop();
    assert_eq!(kept(), before);
}
