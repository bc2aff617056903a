//! Forks. The kernel copies registered pages for the child, so the library marks nothing, and nothing is to be undone.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use memmap2::{MmapOptions, MmapRaw};
use nix::libc;
use nix::sys::mman::munmap;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use std::ptr::NonNull;
use uverbs::{AccessFlags, MemoryRegion, ProtectionDomain, ReceiveRequest, SendRequest};

use crate::common::{Pair, Setup, open, pair, pattern, poll_for, succeeded};

crate::cases! {
    Alone vb_23_a_fork_disturbs_no_registered_memory;
    Alone vb_23_memory_is_neither_marked_nor_split;
    Alone vb_24_pages_of_several_regions;
    Alone vb_24_memory_unmapped_before_its_region;
}

const PAGE: usize = 4096;

/// A child process, which ends when it has done `work`: successfully, if that says so.
struct Forked(Pid);

impl Forked {
    fn new(work: impl FnOnce() -> bool) -> Self {
        // SAFETY: a case that runs alone is the only thread of its process.
        match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => Self(child),
            ForkResult::Child => {
                let status = i32::from(!work());
                // SAFETY: it ends the process at once: what is the parent's is left alone.
                unsafe { libc::_exit(status) }
            }
        }
    }

    fn succeeds(self) {
        assert_eq!(waitpid(self.0, None).unwrap(), WaitStatus::Exited(self.0, 0));
    }
}

fn pages(count: usize) -> MmapRaw {
    MmapOptions::new().len(count * PAGE).map_anon().unwrap().into()
}

/// Registers a stretch of a mapping.
fn register(domain: &ProtectionDomain, map: &MmapRaw, start: usize, length: usize) -> MemoryRegion {
    assert!(start + length <= map.len());
    // SAFETY: in the mapping, which outlives the region, or whose pages nobody looks at once it has gone.
    unsafe { domain.register_raw(map.as_mut_ptr().add(start), length, AccessFlags::LOCAL_WRITE) }.unwrap()
}

fn fill(map: &MmapRaw, start: usize, bytes: &[u8]) {
    assert!(start + bytes.len() <= map.len());
    // SAFETY: in the mapping, which no Rust reference is into.
    unsafe { map.as_mut_ptr().add(start).copy_from(bytes.as_ptr(), bytes.len()) };
}

fn is(map: &MmapRaw, start: usize, bytes: &[u8]) -> bool {
    let mut found = vec![0; bytes.len()];
    assert!(start + bytes.len() <= map.len());
    // SAFETY: as above.
    unsafe { map.as_ptr().add(start).copy_to(found.as_mut_ptr(), found.len()) };
    found == bytes
}

/// One message from a region to another.
fn message(pair: &mut Pair, from: &MemoryRegion, into: &MemoryRegion) {
    pair.b.qp.post_receive(&[ReceiveRequest::new(1, &[into.sge(0..into.len())])]).unwrap();
    let sges = [from.sge(0..from.len())];
    pair.a.qp.post_send_list(&[SendRequest::send(2, &sges).signaled()]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut pair.b.cq, 1)), [1]);
    assert_eq!(succeeded(&poll_for(&mut pair.a.cq, 1)), [2]);
}

/// Half a page is registered at each end; the other half is anybody's.
fn vb_23_a_fork_disturbs_no_registered_memory() {
    const HALF: usize = PAGE / 2;
    let mut pair = pair();
    let (source, target) = (pages(1), pages(1));
    let from = register(pair.a.memory.protection_domain(), &source, HALF, HALF);
    let into = register(pair.b.memory.protection_domain(), &target, HALF, HALF);
    let (one, two, three, four) = (pattern(1, HALF), pattern(2, HALF), pattern(3, HALF), pattern(4, HALF));
    fill(&target, 0, &one);
    fill(&source, HALF, &one);
    message(&mut pair, &from, &into);
    assert!(is(&target, HALF, &one));

    let (mut here, mut there) = UnixStream::pair().unwrap();
    let child = Forked::new(|| {
        let mut byte = [0];
        // The neighbour of registered memory is there, and what is registered is as it was.
        let before = is(&target, 0, &one) && is(&target, HALF, &one) && is(&source, HALF, &one);
        fill(&target, 0, &two);
        fill(&target, HALF, &two);
        fill(&source, HALF, &two);
        let told = there.write_all(&[1]).is_ok() && there.read_exact(&mut byte).is_ok();
        // What the parent's device has written since did not come here.
        before && told && is(&target, 0, &two) && is(&target, HALF, &two) && is(&source, HALF, &two)
    });
    here.read_exact(&mut [0]).unwrap();
    // The child has written, and the parent writes: the device sees the parent's pages.
    assert!(is(&target, 0, &one) && is(&target, HALF, &one));
    fill(&source, HALF, &three);
    message(&mut pair, &from, &into);
    assert!(is(&target, 0, &one) && is(&target, HALF, &three));
    here.write_all(&[1]).unwrap();
    child.succeeds();

    fill(&source, HALF, &four);
    message(&mut pair, &from, &into);
    assert!(is(&target, 0, &one) && is(&target, HALF, &four));
    from.destroy().unwrap();
    into.destroy().unwrap();
    pair.works();
}

/// `VmFlags` of the mapping at an address, as `/proc/self/smaps` has them.
fn flags(map: &MmapRaw) -> String {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let address = map.as_ptr().addr();
    let mut inside = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().unwrap().split_once('-');
        let number = |text| usize::from_str_radix(text, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(start, end)| (number(start), number(end))) {
            inside = (start..end).contains(&address);
        }
        if let Some(flags) = line.strip_prefix("VmFlags: ")
            && inside
        {
            return flags.to_owned();
        }
    }
    panic!("no mapping at {address:#x}");
}

fn mapping_count() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

fn vb_23_memory_is_neither_marked_nor_split() {
    let domain = open().alloc_protection_domain().unwrap();
    let map = pages(64);
    let (before, count) = (flags(&map), mapping_count());
    assert!(!before.split(' ').any(|flag| flag == "dc"), "{before}");
    for round in 0..3000 {
        let start = round * 97 % (40 * PAGE);
        let region = register(&domain, &map, start, 1 + round * 331 % (20 * PAGE));
        drop(region);
    }
    let regions: Vec<_> =
        (0..50).map(|number| register(&domain, &map, number * PAGE + 17, PAGE + 500)).collect();
    assert_eq!((flags(&map), mapping_count()), (before.clone(), count), "while regions are there");
    drop(regions);
    assert_eq!((flags(&map), mapping_count()), (before, count));
}

fn vb_24_pages_of_several_regions() {
    let mut pair = pair();
    let (source, target) = (pages(2), pages(2));
    let from = register(pair.a.memory.protection_domain(), &source, 100, PAGE);
    let domain = pair.b.memory.protection_domain().clone();
    let into = register(&domain, &target, 100, PAGE);
    let other = register(&domain, &target, 0, 2 * PAGE);
    // One goes: the pages stay the other's, whatever a child does.
    other.destroy().unwrap();
    for round in 0..3 {
        let child = Forked::new(|| {
            fill(&target, 0, &[0xee; 2 * PAGE]);
            fill(&source, 0, &[0xee; 2 * PAGE]);
            true
        });
        let sent = pattern(round, PAGE);
        fill(&source, 100, &sent);
        message(&mut pair, &from, &into);
        assert!(is(&target, 100, &sent), "round {round}");
        child.succeeds();
        assert!(is(&target, 100, &sent) && is(&target, 0, &[0; 100]), "round {round}");
    }
}

fn vb_24_memory_unmapped_before_its_region() {
    let domain = open().alloc_protection_domain().unwrap();
    let setup = Setup::default();
    let map = pages(4);
    fill(&map, 0, &pattern(1, 4 * PAGE));
    let region = register(&domain, &map, 0, 4 * PAGE);
    let end = NonNull::new(map.as_mut_ptr().wrapping_add(2 * PAGE)).unwrap();
    // SAFETY: nothing refers to the second half any more; the mapping is not unmapped again, below.
    unsafe { munmap(end.cast(), 2 * PAGE) }.unwrap();
    region.destroy().unwrap();
    let region = register(&domain, &map, 0, 2 * PAGE);
    Forked::new(|| is(&map, 0, &pattern(1, 2 * PAGE))).succeeds();
    region.destroy().unwrap();
    // Somebody else's memory may be where the second half was.
    let start = NonNull::new(map.as_mut_ptr()).unwrap();
    std::mem::forget(map);
    // SAFETY: nothing refers to the first half any more.
    unsafe { munmap(start.cast(), 2 * PAGE) }.unwrap();
    setup.pair().works();
}
