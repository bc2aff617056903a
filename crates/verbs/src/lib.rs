//! The Linux RDMA verbs in Rust, all the way down to the kernel: no libibverbs, no C library for verbs, no bindgen.
//!
//! A program opens a [`Device`], which gives a [`Context`]. In it are [`ProtectionDomain`]s with [`MemoryRegion`]s and
//! [`QueuePair`]s, which may share a [`SharedReceiveQueue`], and [`CompletionQueue`]s, which may report on a [`CompletionChannel`]. What
//! happens to the device and to all of these arrives as [`AsyncEvents`]. Each type names its counterpart in
//! libibverbs, and errors name the verb, the kernel's error number and what to do about it.
//!
//! Objects keep alive what they need, so they can be dropped in any order; `destroy` on an object gives the kernel's answer.
//! Posting and polling take `&mut self`, and on soft-RoCE neither lock nor allocate, except for binding memory windows of type 2. Polling
//! on EFA takes a lock that only creating and destroying QPs contend for.
//! With the feature `tokio`, completions and events are futures and streams; with the feature `soft` there are devices inside the process, for
//! tests that run anywhere.
//!
//! ```no_run
//! use uverbs::{AccessFlags, Device, QueuePairInit, ReceiveRequest};
//!
//! # fn main() -> uverbs::Result<()> {
//! let context = Device::find("rxe0")?.open()?;
//! let domain = context.alloc_protection_domain()?;
//! let region = domain.allocate(4096, AccessFlags::LOCAL_WRITE)?;
//! let channel = context.create_completion_channel()?;
//! let mut cq = context.create_completion_queue(16, Some(&channel), 0)?;
//! let mut qp = domain.create_queue_pair(&QueuePairInit::reliable_connection(&cq))?;
//! // Connect it: see `ModifyQueuePair`.
//! qp.post_receive(&[ReceiveRequest::new(1, &[region.sge(0..4096)])])?;
//! let mut completions = [Default::default(); 4];
//! for completion in cq.wait(&mut completions, None)? {
//!     println!("{completion:?}");
//! }
//! # Ok(())
//! # }
//! ```

mod ah;
mod attributes;
mod channel;
mod completion;
mod context;
mod counter;
mod cq;
mod device;
mod dma_buf;
mod error;
mod events;
mod failure;
pub mod link;
mod memory;
mod mr;
mod multicast;
mod mw;
mod object;
mod pd;
mod post;
mod provider;
mod qp;
#[cfg(feature = "soft")]
pub mod soft;
mod srq;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use ah::AddressHandle;
pub use attributes::{
    DeviceAttributes, Gid, GidEntry, GidType, IpFamily, LinkLayer, Mtu, PortAttributes, PortState,
};
pub use channel::{CompletionChannel, CompletionEvent};
pub use completion::{CompletionError, CompletionOpcode, CompletionStatus, Success, WorkCompletion};
pub use context::Context;
pub use counter::{
    CompletionCounter, CompletionCounterCapabilities, CounterMemory, CounterOperations, CounterType,
};
pub use cq::{CompletionQueue, Completions};
pub use device::{Device, NodeType};
pub use dma_buf::DmaBufRegion;
pub use error::{DestroyError, Error, ErrorKind, Result};
pub use events::{AsyncEvent, AsyncEventElement, AsyncEventType, AsyncEvents};
pub use memory::Memory;
pub use mr::{AccessFlags, MemoryAdvice, MemoryRegion};
pub use multicast::DatagramHeader;
pub use mw::{MemoryWindow, MemoryWindowType, WindowBinding};
pub use pd::ProtectionDomain;
pub use post::{
    Destination, FlushExtent, FlushPlacement, Operation, Payload, PostError, PostReason, ReceiveRequest,
    RemoteMemory, ScatterGather, SendBatch, SendFlags, SendRequest,
};
pub use qp::{
    AddressVector, GlobalRoute, ModifyQueuePair, QueuePair, QueuePairAttributes, QueuePairCapabilities,
    QueuePairInit, QueuePairState, QueuePairType,
};
pub use srq::{SharedReceiveQueue, SharedReceiveQueueAttributes};

/// The examples of the README and of the guides compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/completion-counters.md")]
struct Guides;

/// As above.
#[cfg(all(doctest, feature = "soft"))]
#[doc = include_str!("../../../docs/testing-your-rdma-code.md")]
struct SoftGuide;
