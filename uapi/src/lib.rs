//! The Linux kernel's RDMA user ABI as Rust types and constants.
//!
//! One module mirrors one kernel header of `include/uapi/rdma`; [`values`] holds the numbers that the ABI
//! carries but that no uapi header defines. There is no I/O and no logic here.
//!
//! * Every struct has the kernel's size on every architecture (asserted at compile time), no implicit
//!   padding, and the `zerocopy` traits, so it is read from and written to kernel memory as bytes without
//!   `unsafe`.
//! * Big-endian fields have the types [`Be16`], [`Be32`] and [`Be64`]; all others are in the byte order of
//!   the host.
//! * Flexible arrays at the end of C structs (`driver_data[]`, `wc[]`, `sge[]` and the like) are left out:
//!   the data follows the struct.
//! * Flag words inside of structs are plain integers, since kernels may set bits that this crate does not
//!   know; the `bitflags` types convert with `from_bits_retain`.
//! * Items can be searched by their kernel name, for example `ib_uverbs_create_cq` or
//!   `UVERBS_METHOD_CQ_CREATE`.
//!
//! With the feature `abi-tables` the module `abi` lists every struct and constant, for comparison with the
//! kernel's headers.
#![no_std]
// Every type here derives Debug; the helper types that the derives of zerocopy make do not.
#![allow(missing_debug_implementations)]

#[macro_use]
mod macros;

#[cfg(feature = "abi-tables")]
pub mod abi;
pub mod efa;
pub mod ioctl;
pub mod ioctl_cmds;
pub mod ioctl_verbs;
pub mod netlink;
pub mod rxe;
pub mod siw;
pub mod user_verbs;
pub mod values;

pub use zerocopy::byteorder::big_endian::{U16 as Be16, U32 as Be32, U64 as Be64};
