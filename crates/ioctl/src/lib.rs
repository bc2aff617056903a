//! The transport below the [`uverbs`](https://docs.rs/uverbs) crate: how a process talks to the kernel's RDMA verbs.
//!
//! * [`discovery`] finds devices by RDMA netlink, or by sysfs where netlink is refused.
//! * [`calls`] are the methods and legacy commands as typed functions.
//! * [`Command`] is what they are made of: it builds one `RDMA_VERBS_IOCTL` call on the
//!   stack, attribute by attribute.
//! * [`Transport`] carries commands, maps rings and rings doorbells. [`KernelDevice`] is the kernel's own,
//!   `/dev/infiniband/uverbsN`.
//! * [`events`] reads completion and asynchronous events from their file descriptors.
//!
//! Everything here returns the kernel's bare [`Errno`]; the `uverbs` crate adds the words. Nothing that works on an
//! open device allocates, and nothing knows any driver.

pub mod calls;
pub mod command;
pub mod discovery;
pub mod events;
mod kernel;
pub mod netlink;
mod transport;

pub use command::{Command, Packet};
pub use kernel::{KernelDevice, NodeStamp};
pub use memmap2::MmapRaw;
pub use nix::errno::Errno;
pub use transport::{Doorbell, Transport};
pub use uverbs_uapi as uapi;

/// Result of a call into the kernel.
pub type Result<T> = std::result::Result<T, Errno>;

/// The same error number as the type used in this crate's interface.
fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

/// The error number inside a [`std::io::Error`], `EIO` if it has none.
fn io_errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
