//! An EFA device in software.
//!
//! EFA is the RDMA network device of a large cloud. This is a model of it, so that its Linux driver and everything above
//! run where there is no such hardware: the program `efa-model` serves devices to QEMU over vfio-user.
//!
//! This library is the device itself. A [`Device`] performs no I/O: it is told of accesses to its registers, of packets
//! and of the time, and reaches memory and interrupts through [`GuestMemory`] and [`Interrupts`]. A [`Wire`] connects
//! devices.
//!
//! `docs/efa-model.md` says what is modelled and what is not known about real devices.
// Every type here derives Debug; the helper types that the derives of zerocopy make do not.
#![allow(missing_debug_implementations)]
#![forbid(unsafe_code)]

#[macro_use]
mod macros;

pub mod admin;
pub mod config;
mod datapath;
mod device;
mod host;
pub mod io;
mod objects;
mod packet;
pub mod registers;
pub mod server;
mod wire;

pub use device::Device;
pub use host::{GuestMemory, Interrupts, NoMemory};
pub use packet::Packet;
pub use wire::Wire;
