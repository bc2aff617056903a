//! RDMA devices inside the process: they answer the ioctls of a verbs device as Linux with soft-RoCE does, so that
//! everything above the [`Transport`](uverbs_ioctl::Transport) runs on them unchanged, without a kernel that has RDMA and without privileges.
//!
//! A [`Wire`] connects [`Device`]s; [`Device::open`] gives the transport of an open one. [`device`] and [`devices`] give the devices of a wire
//! that all of the process shares. Usually one does not come here, but to `uverbs::soft`.
//!
//! What is as in the kernel: which commands and attributes there are and how they are checked, error numbers, the layout of the rings,
//! states and attributes of QPs, statuses of completions, and asynchronous events. Messages are not cut into packets: each arrives as a
//! whole or not at all.

mod ah;
mod attributes;
mod context;
mod counter;
mod cq;
mod device;
mod events;
mod faults;
#[cfg(test)]
mod fuzz;
mod legacy;
mod memory;
mod methods;
mod mr;
mod multicast;
mod mw;
mod pd;
mod qp;
mod requester;
mod responder;
mod ring;
mod shared;
mod srq;
mod table;
mod wire;

pub use context::Opened;
pub use device::{Device, Limits};
pub use faults::Faults;
pub use shared::{MOST, device, devices};
pub use wire::Wire;
