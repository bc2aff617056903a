//! A dma-buf from the kernel's heap, and registering one.

use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use rustix::fs::OFlags;
use rustix::ioctl::{Updater, ioctl, opcode};
use uverbs::{AccessFlags, ReceiveRequest, RemoteMemory, SendRequest};

use crate::common::{open, pattern, poll_for, refused, succeeded};
use crate::efa::{srd, to};

crate::cases! {
    Shared vb_22_soft_roce_registers_no_dma_buf;
    Efa a_dma_buf_is_registered;
    Efa what_is_no_part_of_a_dma_buf_is_refused;
}

/// A dma-buf of the system's memory, mapped.
pub(crate) struct DmaBuf {
    pub(crate) fd: OwnedFd,
    pub(crate) map: MmapRaw,
}

impl DmaBuf {
    pub(crate) fn new(length: usize) -> Self {
        /// `struct dma_heap_allocation_data` of `linux/dma-heap.h`.
        #[repr(C)]
        struct Allocation {
            len: u64,
            fd: u32,
            fd_flags: u32,
            heap_flags: u64,
        }
        const ALLOC: rustix::ioctl::Opcode = opcode::read_write::<Allocation>(b'H', 0);
        let heap = File::options().read(true).write(true).open("/dev/dma_heap/system").unwrap();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mut allocation = Allocation { len: length as u64, fd: 0, fd_flags: flags.bits(), heap_flags: 0 };
        // SAFETY: the ioctl reads and writes such a struct.
        unsafe { ioctl(&heap, Updater::<ALLOC, Allocation>::new(&mut allocation)) }.unwrap();
        // SAFETY: the kernel has just made it for us.
        let fd = unsafe { OwnedFd::from_raw_fd(allocation.fd as i32) };
        let map = MmapOptions::new().len(length).map_raw(&fd).unwrap();
        Self { fd, map }
    }

    /// The number at an offset.
    pub(crate) fn word(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.map.len());
        // SAFETY: aligned and in the mapping.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }.load(Ordering::Acquire)
    }

    fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.map.len());
        // SAFETY: in the mapping; the caller looks when nobody writes.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(offset), length) }.to_vec()
    }
}

const ALL: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_READ);

fn vb_22_soft_roce_registers_no_dma_buf() {
    let domain = open().alloc_protection_domain().unwrap();
    // No driver looks at the file before it knows that it can.
    let file = File::open("/dev/null").unwrap();
    let registered = domain.register_dma_buf(file.as_fd(), 0..4096, 0, ALL);
    refused(registered, Errno::EOPNOTSUPP, &["reg_dmabuf_mr", "cannot register dma-bufs"]);
    // So that a program can do without: the file is as it was, and memory registers by its address.
    assert!(file.metadata().unwrap().file_type().is_char_device());
    domain.allocate(4096, ALL).unwrap().destroy().unwrap();
    domain.destroy().unwrap();
}

fn a_dma_buf_is_registered() {
    const ADDRESS: u64 = 0x10_0000_0000 + 100;
    let mut pair = srd();
    let domain = pair.address.protection_domain().clone();
    let buffer = DmaBuf::new(3 * 4096);
    // From within its first page to within its last.
    let region = domain.register_dma_buf(buffer.fd.as_fd(), 4096 + 100..12_000, ADDRESS, ALL).unwrap();
    assert_eq!((region.address(), region.len()), (ADDRESS, 12_000 - 4196));
    assert_ne!(region.lkey(), 0);

    // A peer writes into it, and reads it.
    let sent = pattern(1, 6000);
    pair.a.region.write(0, &sent);
    let remote = RemoteMemory { address: ADDRESS + 50, rkey: region.rkey() };
    let there = to(&pair.address, pair.b.qp.qp_num());
    let here = [pair.a.region.sge(0..6000)];
    pair.a.qp.post_send_list(&[SendRequest::rdma_write(1, &here, remote).to(there)]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut pair.a.cq, 1)), [1]);
    assert_eq!(buffer.bytes(4096 + 150, 6000), sent);
    let back = [pair.a.region.sge(10_000..16_000)];
    pair.a.qp.post_send_list(&[SendRequest::rdma_read(2, &back, remote).to(there)]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut pair.a.cq, 1)), [2]);
    let mut bytes = vec![0; 6000];
    pair.a.region.read(10_000, &mut bytes);
    assert_eq!(bytes, sent);

    // It is where a message comes from and goes to.
    pair.b.qp.post_receive(&[ReceiveRequest::new(3, &[region.sge(7000..7500)])]).unwrap();
    let sges = [region.sge(50..550)];
    pair.a.qp.post_send_list(&[SendRequest::send(4, &sges).to(there)]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut pair.b.cq, 1)), [3]);
    assert_eq!(buffer.bytes(4096 + 7100, 500), sent[..500]);

    // The region goes without the file.
    drop(buffer);
    region.destroy().unwrap();
}

fn what_is_no_part_of_a_dma_buf_is_refused() {
    let domain = open().alloc_protection_domain().unwrap();
    let buffer = DmaBuf::new(4096);
    let null = File::open("/dev/null").unwrap();
    let register = |fd, range, address| domain.register_dma_buf(fd, range, address, ALL);
    let fd = buffer.fd.as_fd();
    refused(register(fd, 16..16, 16), Errno::EINVAL, &["no bytes"]);
    #[expect(clippy::reversed_empty_ranges, reason = "it is what is refused")]
    let reversed = 4096..0;
    refused(register(fd, reversed, 0), Errno::EINVAL, &["no bytes"]);
    refused(register(fd, 0..8192, 0), Errno::EINVAL, &["0..8192"]);
    refused(register(fd, 16..32, 8), Errno::EINVAL, &["0x10", "0x8", "modulo 4096"]);
    refused(register(null.as_fd(), 0..4096, 0), Errno::EINVAL, &["no dma-buf"]);
    let access = AccessFlags::REMOTE_WRITE;
    refused(domain.register_dma_buf(fd, 0..4096, 0, access), Errno::EINVAL, &["REMOTE_WRITE"]);
    domain.destroy().unwrap();
}
