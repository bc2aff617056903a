//! The seam between the verbs and whatever executes them.

use std::fmt::Debug;

use memmap2::MmapRaw;

use crate::{Packet, Result};

/// A call that only wakes the device up. It is apart from commands because it is on the hot path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// There are new work requests in the send queue of the QP with this handle.
    Send {
        /// Handle of the QP.
        qp: u32,
    },
    /// The next completion in the CQ with this handle shall raise an event.
    Arm {
        /// Handle of the CQ.
        cq: u32,
        /// Only a completion of a message that was sent with the solicited flag counts.
        solicited_only: bool,
    },
}

/// Executes commands for one open device file: the kernel, or a device model inside the process.
///
/// Event file descriptors need no method of their own: commands return them as attributes, and they are read as
/// [`events`](crate::events) says whoever made them.
///
/// # Safety
/// An implementation writes through an attribute of a packet only within the attribute's length, only where the method's
/// definition makes the attribute an output, and not after `issue` has returned. Memory that `map` returns stays valid until
/// the mapping is dropped.
pub unsafe trait Transport: Debug + Send + Sync {
    /// The driver that answers, one of [`driver_id`](uverbs_uapi::ioctl_verbs::driver_id). Every command carries it.
    fn driver_id(&self) -> u32;

    /// Executes a command of `RDMA_VERBS_IOCTL`.
    ///
    /// # Errors
    /// The kernel's. `EPROTONOSUPPORT` says that the object, the method or a mandatory attribute is unknown here.
    fn issue(&self, packet: &mut Packet) -> Result<()>;

    /// Rings a doorbell.
    ///
    /// # Errors
    /// The kernel's: `EINVAL` if the object is not in a state for it, `EIO` if the device is gone.
    fn doorbell(&self, doorbell: Doorbell) -> Result<()>;

    /// Maps `length` bytes at `offset`, both exactly as a driver returned them, shared and writable.
    ///
    /// # Errors
    /// `EINVAL` if nothing waits to be mapped there, `ENOMEM`, `EAGAIN`.
    fn map(&self, offset: u64, length: usize) -> Result<MmapRaw>;
}
