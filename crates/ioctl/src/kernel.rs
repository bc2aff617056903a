//! The kernel's character device.

use std::os::fd::OwnedFd;
use std::path::Path;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use uverbs_uapi::ioctl::RDMA_VERBS_IOCTL;
use uverbs_uapi::user_verbs::{CmdHdr, PostSend, PostSendResp, ReqNotifyCq, SendWr, write_cmd};
use zerocopy::{Immutable, IntoBytes};

use crate::calls::{invoke, invoke_without_room};
use crate::{Doorbell, Errno, Packet, Result, Transport, errno, io_errno};

/// An open `/dev/infiniband/uverbsN`.
///
/// Closing it makes the kernel destroy whatever was created through it, once all rings are unmapped too.
#[derive(Debug)]
pub struct KernelDevice {
    fd: OwnedFd,
    driver_id: u32,
}

/// What tells a device node from a later one of the same name: device number and inode. Not the change time, because udev sets
/// owner and mode of a node that has just come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStamp {
    /// `st_rdev`.
    pub device_number: u64,
    inode: u64,
}

impl NodeStamp {
    /// The stamp of the node at `path`.
    ///
    /// # Errors
    /// As `stat(2)`; `ENODEV` if it is no character device.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        Self::from_stat(&rustix::fs::stat(path).map_err(errno)?)
    }

    fn from_stat(stat: &rustix::fs::Stat) -> Result<Self> {
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device() {
            return Err(Errno::ENODEV);
        }
        Ok(Self { device_number: stat.st_rdev, inode: stat.st_ino })
    }
}

impl KernelDevice {
    /// Opens the node at `path`, which is to be the one that had this stamp when it was found.
    ///
    /// `driver_id` may be unknown (found by sysfs): then each of `candidates` is tried until the kernel accepts one.
    ///
    /// # Errors
    /// As `open(2)`: `ENOENT`, `EACCES` (permissions of the node), `EPERM` (another network namespace), `ENXIO` or `EIO`
    /// (device gone). `ENODEV` if the node is another one by now, or answers to none of the candidates. `ENOTTY` if the
    /// kernel has no RDMA ioctl interface.
    pub fn open(
        path: &Path,
        stamp: NodeStamp,
        driver_id: Option<u32>,
        candidates: impl FnOnce() -> Vec<u32>,
    ) -> Result<Self> {
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(errno)?;
        if NodeStamp::from_stat(&rustix::fs::fstat(&fd).map_err(errno)?)? != stamp {
            return Err(Errno::ENODEV);
        }
        let mut device = Self { fd, driver_id: driver_id.unwrap_or_default() };
        if driver_id.is_none() {
            device.driver_id = device.probe(&candidates())?;
        }
        Ok(device)
    }

    fn write(&self, command: &[u8]) -> Result<()> {
        rustix::io::write(&self.fd, command).map(|_| ()).map_err(errno)
    }

    /// The driver is whichever id does not make the kernel refuse the command before it looks at it.
    fn probe(&mut self, candidates: &[u32]) -> Result<u32> {
        for &candidate in candidates {
            self.driver_id = candidate;
            match invoke_without_room(self, write_cmd::QUERY_DEVICE) {
                // The kernel went as far as to miss the structs of the command.
                Err(Errno::ENOSPC) => return Ok(candidate),
                Err(Errno::EINVAL) => {}
                Err(other) => return Err(other),
                Ok(()) => return Err(Errno::EPROTO),
            }
        }
        Err(Errno::ENODEV)
    }
}

/// POST_SEND as `write(2)` takes it.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct WrittenPostSend {
    header: CmdHdr,
    request: PostSend,
}

/// REQ_NOTIFY_CQ as `write(2)` takes it.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct WrittenReqNotifyCq {
    header: CmdHdr,
    request: ReqNotifyCq,
}

/// The header of a command of `command` bytes with it, and a response of `response` bytes.
fn header(number: u32, command: usize, response: usize) -> CmdHdr {
    CmdHdr { command: number, in_words: (command / 4) as u16, out_words: (response / 4) as u16 }
}

/// `RDMA_VERBS_IOCTL` on a packet.
struct VerbsIoctl<'a>(&'a mut Packet);

// SAFETY: the opcode is that of a struct ib_uverbs_ioctl_hdr followed by `num_attrs` attributes, which a packet is. The
// kernel writes into the packet only handles and flags, for which every bit pattern is valid.
unsafe impl Ioctl for VerbsIoctl<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        RDMA_VERBS_IOCTL as Opcode
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        (&raw mut *self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut core::ffi::c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

// SAFETY: the kernel keeps to the lengths and directions of its own definition, and mappings are its own memory, which lives
// as long as it is mapped.
unsafe impl Transport for KernelDevice {
    fn driver_id(&self) -> u32 {
        self.driver_id
    }

    fn issue(&self, packet: &mut Packet) -> Result<()> {
        // SAFETY: the file is that of a node which discovery found to have the number of a uverbs device, so the opcode means what
        // VerbsIoctl says; the pointers in the packet are those of borrows that Command holds.
        unsafe { rustix::ioctl::ioctl(&self.fd, VerbsIoctl(packet)) }.map_err(errno)
    }

    fn doorbell(&self, doorbell: Doorbell) -> Result<()> {
        // write(2) takes the kernel fewer instructions than an ioctl does. It refuses a process that has changed its
        // credentials since it opened the device; the ioctl serves that one too.
        match doorbell {
            Doorbell::Send { qp } => {
                let mut response = PostSendResp::default();
                let request = PostSend {
                    response: (&raw mut response).expose_provenance() as u64,
                    qp_handle: qp,
                    wr_count: 0,
                    sge_count: 0,
                    wqe_size: size_of::<SendWr>() as u32,
                };
                let header =
                    header(write_cmd::POST_SEND, size_of::<WrittenPostSend>(), size_of::<PostSendResp>());
                match self.write(WrittenPostSend { header, request }.as_bytes()) {
                    Err(Errno::EACCES) => invoke(self, &request).map(|_| ()),
                    result => result,
                }
            }
            Doorbell::Arm { cq, solicited_only } => {
                let request = ReqNotifyCq { cq_handle: cq, solicited_only: u32::from(solicited_only) };
                let header = header(write_cmd::REQ_NOTIFY_CQ, size_of::<WrittenReqNotifyCq>(), 0);
                match self.write(WrittenReqNotifyCq { header, request }.as_bytes()) {
                    Err(Errno::EACCES) => invoke(self, &request),
                    result => result,
                }
            }
        }
    }

    fn map(&self, offset: u64, length: usize) -> Result<MmapRaw> {
        MmapOptions::new().offset(offset).len(length).map_raw(&self.fd).map_err(|error| io_errno(&error))
    }
}
