//! Memory regions.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use memmap2::{Mmap, MmapMut};
use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Uid, setuid};
use uverbs::{AccessFlags, ErrorKind, Memory, ScatterGather};

use crate::common::{Holdings, PORT, Setup, open, pattern, refused};

crate::cases! {
    Shared keys_and_addresses;
    Shared what_is_written_is_read;
    Shared ranges_outside_of_a_region_are_refused;
    Shared all_kinds_of_memory_register;
    Shared register_errors_are_explained;
    Shared memory_lent_to_be_read_is_not_written;
    Alone memory_that_cannot_be_accessed_is_refused;
    KernelAlone vb_20_the_locked_memory_limit_is_named;
    Shared a_domain_with_a_region_is_busy;
    Alone nothing_stays_pinned_or_mapped;
}

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

fn keys_and_addresses() {
    let domain = open().alloc_protection_domain().unwrap();
    let (one, other) = (domain.allocate(4096, ALL).unwrap(), domain.allocate(4096, ALL).unwrap());
    assert_ne!(one.lkey(), other.lkey());
    assert_ne!(one.rkey(), other.rkey());
    assert_ne!((one.lkey(), one.rkey()), (0, 0));
    assert_eq!((one.len(), one.address()), (4096, one.as_ptr().addr() as u64));
    let expected = ScatterGather { address: one.address() + 16, length: 84, lkey: one.lkey() };
    assert_eq!(one.sge(16..100), expected);
    assert_eq!(one.sge(4096..4096).length, 0);
    assert_eq!(format!("{:?}", one.protection_domain()), format!("{domain:?}"));
    // A hint that soft-RoCE has no use for.
    domain.allocate(1, AccessFlags::RELAXED_ORDERING).unwrap();
}

fn what_is_written_is_read() {
    let domain = open().alloc_protection_domain().unwrap();
    let mut region = domain.allocate(10_000, AccessFlags::LOCAL_WRITE).unwrap();
    let mut bytes = vec![1; 10_000];
    region.read(0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 0), "new memory is zeroed");
    region.write(77, &pattern(3, 5000));
    region.read(0, &mut bytes);
    assert_eq!(bytes[77..5077], pattern(3, 5000));
    assert!(bytes[..77].iter().chain(&bytes[5077..]).all(|byte| *byte == 0));
    // SAFETY: no work is posted that names the region, and it is not open to peers.
    assert_eq!(unsafe { region.as_slice() }, bytes);
    // SAFETY: as above.
    let slice = unsafe { region.as_mut_slice() };
    slice[9_999] = 5;
    region.read(9_999, &mut bytes[..1]);
    assert_eq!(bytes[0], 5);
    region.write(10_000, &[]);
}

fn ranges_outside_of_a_region_are_refused() {
    let domain = open().alloc_protection_domain().unwrap();
    let mut region = domain.allocate(100, AccessFlags::LOCAL_WRITE).unwrap();
    let panics = |run: &mut dyn FnMut()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).expect_err("refused");
    };
    panics(&mut || _ = region.sge(0..101));
    panics(&mut || _ = region.sge(101..101));
    panics(&mut || region.read(100, &mut [0]));
    panics(&mut || region.read(usize::MAX, &mut [0; 2]));
    panics(&mut || region.write(1, &[0; 100]));
    region.destroy().unwrap();
}

fn all_kinds_of_memory_register() {
    let domain = open().alloc_protection_domain().unwrap();
    let file = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(file);
    file.set_len(8192).unwrap();
    let memory = Memory::file(&file, 8192).unwrap();
    let mut region = domain.register(memory, ALL).unwrap();
    region.write(4000, b"in the file");
    let mut bytes = [0; 11];
    file.seek(SeekFrom::Start(4000)).unwrap();
    file.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"in the file");
    region.destroy().unwrap();

    let read_only = File::open("/proc/self/exe").unwrap();
    refused(Memory::file(&read_only, 4096), Errno::EACCES, &["4096 bytes"]);

    // Huge pages are there only if somebody has set them aside.
    match Memory::huge_pages(2 << 20) {
        Ok(memory) => domain.register(memory, ALL).unwrap().destroy().unwrap(),
        Err(error) => refused(Err::<(), _>(error), Errno::ENOMEM, &["2097152 bytes"]),
    }
    // Part of a huge page could not be given back.
    refused(Memory::huge_pages(4096), Errno::EINVAL, &["4096 bytes", "2 MiB"]);
    refused(Memory::anonymous(0), Errno::EINVAL, &["zero"]);
    refused(domain.allocate(0, ALL), Errno::EINVAL, &["zero"]);
    refused(Memory::anonymous(1 << 50), Errno::ENOMEM, &["1125899906842624 bytes"]);
}

fn memory_lent_to_be_read_is_not_written() {
    let domain = open().alloc_protection_domain().unwrap();
    // The kernel wants to be able to write what windows may be bound to.
    let mut lent = MmapMut::map_anon(8192).unwrap();
    let start = lent.as_mut_ptr();
    for access in [AccessFlags::empty(), AccessFlags::REMOTE_READ | AccessFlags::MW_BIND] {
        // SAFETY: it stays mapped until the end of the test, and nothing writes it.
        let mut region = unsafe { domain.register_raw(start, 4096, access) }.unwrap();
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region.write(0, &[1])));
        assert!(written.is_err());
        let writable = region.reregister(None, Some(AccessFlags::LOCAL_WRITE));
        refused(writable, Errno::EACCES, &["registered without"]);
    }
    // SAFETY: as above.
    let paged = unsafe { domain.register_raw(start.wrapping_add(100), 1000, AccessFlags::ON_DEMAND) };
    refused(paged, Errno::EINVAL, &["middle of a page"]);
}

fn register_errors_are_explained() {
    let domain = open().alloc_protection_domain().unwrap();
    for access in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC] {
        let error = domain.allocate(4096, access).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        refused(Err::<(), _>(error), Errno::EINVAL, &["reg_mr", "LOCAL_WRITE"]);
    }
    let unknown = AccessFlags::from_bits_retain(1 << 19);
    refused(domain.allocate(4096, unknown), Errno::EINVAL, &["reg_mr", "0x80000"]);
    domain.allocate(4096, AccessFlags::REMOTE_READ).unwrap();
}

fn memory_that_cannot_be_accessed_is_refused() {
    let domain = open().alloc_protection_domain().unwrap();
    let read_only: Mmap = MmapMut::map_anon(8192).unwrap().make_read_only().unwrap();
    let start = read_only.as_ptr().cast_mut();
    let writable = AccessFlags::LOCAL_WRITE;
    // SAFETY: registering it for writing does not succeed, so nothing writes it.
    refused(
        unsafe { domain.register_raw(start, 8192, writable) },
        Errno::EFAULT,
        &["8192 bytes", "LOCAL_WRITE"],
    );
    // SAFETY: the mapping outlives the region, and nothing writes it.
    let region = unsafe { domain.register_raw(start, 8192, AccessFlags::empty()) }.unwrap();
    assert_eq!(region.as_ptr(), start);
    region.destroy().unwrap();
    // SAFETY: no byte is registered.
    refused(unsafe { domain.register_raw(start, 0, writable) }, Errno::EINVAL, &["zero"]);
    drop(read_only);
    // SAFETY: registering what is not mapped does not succeed.
    refused(unsafe { domain.register_raw(start, 8192, writable) }, Errno::EFAULT, &["8192 bytes"]);
    // SAFETY: as above.
    refused(unsafe { domain.register_raw(std::ptr::null_mut(), 4096, writable) }, Errno::EFAULT, &["reg_mr"]);
}

fn vb_20_the_locked_memory_limit_is_named() {
    let context = open();
    let domain = context.alloc_protection_domain().unwrap();
    setrlimit(Resource::RLIMIT_MEMLOCK, 65536, 65536).unwrap();
    setuid(Uid::from_raw(65534)).unwrap();
    let before = Holdings::of_this_process();
    for _ in 0..100 {
        let error = domain.allocate(1 << 20, AccessFlags::LOCAL_WRITE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfResources);
        refused(Err::<(), _>(error), Errno::ENOMEM, &["1048576 bytes", "RLIMIT_MEMLOCK is 65536"]);
    }
    assert_eq!(Holdings::of_this_process(), before);
    let small = domain.allocate(4096, AccessFlags::LOCAL_WRITE).unwrap();
    assert_ne!(Holdings::of_this_process(), before);
    small.destroy().unwrap();
    assert_eq!(Holdings::of_this_process(), before);
    assert_eq!(context.query_pkey(PORT, 0).unwrap(), 0xffff);
}

fn a_domain_with_a_region_is_busy() {
    let context = open();
    let domain = context.alloc_protection_domain().unwrap();
    let region = domain.allocate(4096, AccessFlags::empty()).unwrap();
    let error = domain.destroy().unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::Busy);
    refused(Err::<(), _>(error.error().clone()), Errno::EBUSY, &["dealloc_pd", "in use 1 times"]);
    let domain = error.into_inner();
    // It works as before.
    let qp = Setup::default();
    let cq = context.create_completion_queue(1, None, 0).unwrap();
    let qp = domain.create_queue_pair(&qp.init(&cq)).unwrap();
    region.destroy().unwrap();
    let domain = domain.destroy().unwrap_err().into_inner();
    qp.destroy().unwrap();
    domain.destroy().unwrap();
}

fn nothing_stays_pinned_or_mapped() {
    let context = open();
    let domain = context.alloc_protection_domain().unwrap();
    let before = Holdings::of_this_process();
    for round in 0..2000 {
        let region = domain.allocate(1 + round * 37 % 20_000, ALL).unwrap();
        if round % 2 == 0 {
            region.destroy().unwrap();
        }
    }
    let many: Vec<_> = (0..200).map(|_| domain.allocate(8192, ALL).unwrap()).collect();
    assert_ne!(Holdings::of_this_process(), before);
    drop(many);
    assert_eq!(Holdings::of_this_process(), before);
}
