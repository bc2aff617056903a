//! Work requests and how they are posted.

use std::fmt;
use std::ops::Range;

use bitflags::bitflags;
use uverbs_ioctl::Errno;
use uverbs_ioctl::uapi::user_verbs::{PlacementType, wr_opcode};
use uverbs_ioctl::uapi::values::SendFlags as Flags;

use crate::ah::AddressHandle;
use crate::error::Error;
use crate::mw::WindowBinding;
use crate::qp::{QueuePair, QueuePairState};

/// A stretch of registered memory, `struct ibv_sge`. [`MemoryRegion::sge`](crate::MemoryRegion::sge) makes one.
///
/// It is plain numbers: the device checks that the key allows the range, and fails the request if not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ScatterGather {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Local key of the memory region.
    pub lkey: u32,
}

impl ScatterGather {
    /// A stretch of a region of `size` bytes.
    ///
    /// # Panics
    /// If the range is not inside of the region or has 4 GiB or more.
    #[inline]
    pub(crate) fn within(address: u64, size: u64, lkey: u32, range: Range<u64>) -> Self {
        let inside = range.start <= range.end && range.end <= size;
        assert!(inside, "{range:?} is not inside of a region of {size} bytes");
        let length = u32::try_from(range.end - range.start);
        let length = length.expect("a scatter/gather element has less than 4 GiB");
        Self { address: address.wrapping_add(range.start), length, lkey }
    }
}

bitflags! {
    /// Flags of a send request, `enum ibv_send_flags`. Inline data is a kind of [`Payload`], not a flag.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Wait until earlier RDMA reads and atomics are done.
        const FENCE = Flags::FENCE.bits();
        /// Make a completion, also if the QP was not created with `signal_all`.
        const SIGNALED = Flags::SIGNALED.bits();
        /// Raise a solicited event at the peer.
        const SOLICITED = Flags::SOLICITED.bits();
    }
}

/// What a send request does, `enum ibv_wr_opcode`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// Send to a receive posted by the peer.
    Send,
    /// The same, with 32 bits that arrive in the peer's completion.
    SendWithImmediate(u32),
    /// Write to the peer's memory. It does not notice.
    RdmaWrite(RemoteMemory),
    /// The same, using up a receive of the peer for 32 bits that arrive in its completion.
    RdmaWriteWithImmediate(RemoteMemory, u32),
    /// Read from the peer's memory into the SGEs. It does not notice.
    RdmaRead(RemoteMemory),
    /// Send to a receive posted by the peer, and invalidate this remote key of the peer's.
    SendWithInvalidate(u32),
    /// Put 8 bytes of the peer's memory into the SGEs and, if they are `compare`, put `swap` in their place. Nothing comes in between.
    CompareSwap {
        /// A multiple of 8.
        at: RemoteMemory,
        /// In the byte order of the peer's processor, as the others.
        compare: u64,
        /// What is stored.
        swap: u64,
    },
    /// Put 8 bytes of the peer's memory into the SGEs and add to them, modulo 2^64. Nothing comes in between.
    FetchAdd {
        /// A multiple of 8.
        at: RemoteMemory,
        /// In the byte order of the peer's processor.
        add: u64,
    },
    /// Write 8 bytes to the peer's memory. Nobody ever sees some of them only, or them before what was written earlier.
    AtomicWrite {
        /// A multiple of 8.
        to: RemoteMemory,
        /// The bytes as they are stored.
        value: [u8; 8],
    },
    /// Complete when what was written to the peer's memory is where it is to be.
    Flush {
        /// Where it was written.
        memory: RemoteMemory,
        /// How much of it.
        extent: FlushExtent,
        /// Where it is to be.
        placement: FlushPlacement,
    },
    /// Invalidate an own remote key: that of a memory window of type 2.
    LocalInvalidate(u32),
    /// Bind a memory window.
    BindMemoryWindow(WindowBinding<'a>),
}

/// How much a flush flushes, `enum ib_selectivity_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushExtent {
    /// So many bytes, `IBV_FLUSH_RANGE`.
    Range(u32),
    /// All of the memory region that the key is of, `IBV_FLUSH_MR`. The address does not matter.
    Region,
}

bitflags! {
    /// Where flushed bytes are to be, `enum ib_placement_type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FlushPlacement: u8 {
        /// Visible to everyone at the peer. Takes [`FLUSH_GLOBAL`](crate::AccessFlags::FLUSH_GLOBAL) there.
        const GLOBAL = PlacementType::GLOBAL.bits() as u8;
        /// Safe from a power failure. Takes [`FLUSH_PERSISTENT`](crate::AccessFlags::FLUSH_PERSISTENT) there.
        const PERSISTENT = PlacementType::PERSISTENT.bits() as u8;
    }
}

/// Memory of the peer, as it has told us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// First byte, in the peer's terms.
    pub address: u64,
    /// Remote key of its memory region.
    pub rkey: u32,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// The port.
    pub address: &'a AddressHandle,
    /// The QP there.
    pub qp_num: u32,
    /// Its queue key.
    pub qkey: u32,
}

/// Where the bytes of a send request come from.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, one piece after the other. It is read when the device gets to the request.
    Sges(&'a [ScatterGather]),
    /// Any memory, one piece after the other. It is copied into the queue, so it can be used again at once. All pieces together
    /// are at most the granted `max_inline_data` bytes.
    Inline(&'a [&'a [u8]]),
}

/// A request for the send queue, `struct ibv_send_wr`.
///
/// ```
/// # use uverbs::{MemoryRegion, SendRequest};
/// # fn example(region: &MemoryRegion) {
/// let sges = [region.sge(0..4096)];
/// let request = SendRequest::send(1, &sges).signaled();
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation<'a>,
    /// How.
    pub flags: SendFlags,
    /// With which bytes.
    pub payload: Payload<'a>,
    /// To whom, for UD and SRD; `None` for a connected QP.
    pub destination: Option<Destination<'a>>,
}

impl<'a> SendRequest<'a> {
    /// Its SGE, its number and the other end of an RDMA write, if it is of the kinds that are most frequent, for which there is a short way: a
    /// send or an RDMA write of one SGE by a connected QP.
    #[inline(always)]
    pub(crate) fn plain(&self) -> Option<(&ScatterGather, u32, Option<&RemoteMemory>)> {
        let (Payload::Sges([sge]), None) = (&self.payload, &self.destination) else { return None };
        match &self.operation {
            Operation::Send => Some((sge, wr_opcode::SEND, None)),
            Operation::RdmaWrite(to) => Some((sge, wr_opcode::RDMA_WRITE, Some(to))),
            _ => None,
        }
    }

    /// Sends registered memory.
    pub fn send(wr_id: u64, sges: &'a [ScatterGather]) -> Self {
        Self::with_payload(wr_id, Payload::Sges(sges))
    }

    /// Sends copies of the bytes in `parts`.
    pub fn send_inline(wr_id: u64, parts: &'a [&'a [u8]]) -> Self {
        Self::with_payload(wr_id, Payload::Inline(parts))
    }

    fn with_payload(wr_id: u64, payload: Payload<'a>) -> Self {
        let flags = SendFlags::empty();
        Self { wr_id, operation: Operation::Send, flags, payload, destination: None }
    }

    /// Writes registered memory to the peer's.
    pub fn rdma_write(wr_id: u64, sges: &'a [ScatterGather], to: RemoteMemory) -> Self {
        Self { operation: Operation::RdmaWrite(to), ..Self::send(wr_id, sges) }
    }

    /// Writes copies of the bytes in `parts` to the peer's memory.
    pub fn rdma_write_inline(wr_id: u64, parts: &'a [&'a [u8]], to: RemoteMemory) -> Self {
        Self { operation: Operation::RdmaWrite(to), ..Self::send_inline(wr_id, parts) }
    }

    /// Reads the peer's memory into registered memory, as many bytes as it has room for.
    pub fn rdma_read(wr_id: u64, sges: &'a [ScatterGather], from: RemoteMemory) -> Self {
        Self { operation: Operation::RdmaRead(from), ..Self::send(wr_id, sges) }
    }

    /// Compares 8 bytes of the peer's memory with `compare` and, if they are equal, replaces them by `swap`, in one go. The first 8
    /// bytes that `result` has room for get what was there.
    ///
    /// ```
    /// # use uverbs::{MemoryRegion, PostError, QueuePair, RemoteMemory, SendRequest};
    /// # fn lock(qp: &mut QueuePair, region: &MemoryRegion, lock: RemoteMemory) -> Result<(), PostError> {
    /// // It is ours if the result is 0.
    /// let result = [region.sge(0..8)];
    /// qp.post_send_list(&[SendRequest::compare_swap(1, &result, lock, 0, 1).signaled()])
    /// # }
    /// ```
    pub fn compare_swap(
        wr_id: u64,
        result: &'a [ScatterGather],
        at: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> Self {
        Self { operation: Operation::CompareSwap { at, compare, swap }, ..Self::send(wr_id, result) }
    }

    /// Adds to 8 bytes of the peer's memory, modulo 2^64. The first 8 bytes that `result` has room for get what was there.
    ///
    /// ```
    /// # use uverbs::{MemoryRegion, PostError, QueuePair, RemoteMemory, SendRequest};
    /// # fn take_a_number(qp: &mut QueuePair, region: &MemoryRegion, counter: RemoteMemory) -> Result<(), PostError> {
    /// qp.post_send_list(&[SendRequest::fetch_add(1, &[region.sge(0..8)], counter, 1).signaled()])
    /// # }
    /// ```
    pub fn fetch_add(wr_id: u64, result: &'a [ScatterGather], at: RemoteMemory, add: u64) -> Self {
        Self { operation: Operation::FetchAdd { at, add }, ..Self::send(wr_id, result) }
    }

    /// Writes 8 bytes to the peer's memory in one go, after everything that was written before. It is there if `device_cap_flags` has
    /// `IBV_DEVICE_ATOMIC_WRITE` (bit 40): on soft-RoCE since Linux 6.2.
    pub fn atomic_write(wr_id: u64, value: [u8; 8], to: RemoteMemory) -> Self {
        Self { operation: Operation::AtomicWrite { to, value }, ..Self::send(wr_id, &[]) }
    }

    /// Completes when what was written to the peer's memory is where it is to be. It is there if `device_cap_flags` has
    /// `IBV_DEVICE_FLUSH_GLOBAL` (bit 38) or `IBV_DEVICE_FLUSH_PERSISTENT` (bit 39): on soft-RoCE since Linux 6.2.
    ///
    /// ```
    /// # use uverbs::{FlushExtent, FlushPlacement, PostError, QueuePair, RemoteMemory, SendRequest};
    /// # fn publish(qp: &mut QueuePair, log: RemoteMemory, record: &[u8]) -> Result<(), PostError> {
    /// let extent = FlushExtent::Range(record.len() as u32);
    /// qp.post_send()
    ///     .push(&SendRequest::rdma_write_inline(1, &[record], log))
    ///     .push(&SendRequest::flush(2, log, extent, FlushPlacement::GLOBAL).signaled())
    ///     .submit()
    /// # }
    /// ```
    pub fn flush(wr_id: u64, memory: RemoteMemory, extent: FlushExtent, placement: FlushPlacement) -> Self {
        Self { operation: Operation::Flush { memory, extent, placement }, ..Self::send(wr_id, &[]) }
    }

    /// Invalidates an own remote key: that of a memory window of type 2 that this QP has bound. It waits for everything posted before.
    ///
    /// The kernel's soft-RoCE crashes, up to Linux 7.3 at least, if the window is not bound any more. So it is
    /// [refused](PostReason::NotBound) unless a binding of the window has been posted since the last invalidation of it, and the QP has
    /// not been reset since: which bindings it had executed is not known, so a window that was bound before is destroyed, or invalidated
    /// by the peer. That the peer has invalidated it is not known either, until it is
    /// [noted](crate::MemoryWindow::note_invalidated): note it before the key can be invalidated again.
    pub fn local_invalidate(wr_id: u64, rkey: u32) -> Self {
        Self { operation: Operation::LocalInvalidate(rkey), ..Self::send(wr_id, &[]) }
    }

    /// Binds a memory window, `ibv_bind_mw` for type 1. The binding is in force before requests posted after it are executed.
    ///
    /// Posting one for a window of type 2, or an invalidation, takes a lock, and may take memory: the QP keeps account of what it has bound.
    /// A binding that fails, or is flushed, has to be [noted](crate::MemoryWindow::note_invalidated) before another QP can bind the window.
    pub fn bind_memory_window(wr_id: u64, binding: WindowBinding<'a>) -> Self {
        Self { operation: Operation::BindMemoryWindow(binding), ..Self::send(wr_id, &[]) }
    }

    /// Makes a send invalidate a remote key of the peer's, in place of immediate data. The peer's receive completes with
    /// [`invalidated_rkey`](crate::Success::invalidated_rkey). Other operations stay as they are.
    ///
    /// A key that the peer has not bound, or that has been invalidated already, breaks the connection, and up to Linux 7.3 at least crashes
    /// the kernel of a peer with soft-RoCE.
    #[must_use]
    pub fn invalidate(mut self, rkey: u32) -> Self {
        if matches!(
            self.operation,
            Operation::Send | Operation::SendWithImmediate(_) | Operation::SendWithInvalidate(_)
        ) {
            self.operation = Operation::SendWithInvalidate(rkey);
        }
        self
    }

    /// Adds immediate data to a send, in place of a key to invalidate, or to an RDMA write. Other operations have none and stay as they
    /// are.
    #[must_use]
    pub fn immediate(mut self, immediate: u32) -> Self {
        self.operation = match self.operation {
            Operation::Send | Operation::SendWithImmediate(_) | Operation::SendWithInvalidate(_) => {
                Operation::SendWithImmediate(immediate)
            }
            Operation::RdmaWrite(to) | Operation::RdmaWriteWithImmediate(to, _) => {
                Operation::RdmaWriteWithImmediate(to, immediate)
            }
            other => other,
        };
        self
    }

    /// Says where a datagram goes.
    #[must_use]
    pub fn to(mut self, destination: Destination<'a>) -> Self {
        self.destination = Some(destination);
        self
    }

    /// Asks for a completion.
    #[must_use]
    pub fn signaled(self) -> Self {
        self.flags(SendFlags::SIGNALED)
    }

    /// Adds flags.
    #[must_use]
    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.flags |= flags;
        self
    }
}

/// A request for the receive queue, `struct ibv_recv_wr`: room for one message.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes, one piece after the other.
    pub sges: &'a [ScatterGather],
}

impl<'a> ReceiveRequest<'a> {
    /// A receive into registered memory.
    pub fn new(wr_id: u64, sges: &'a [ScatterGather]) -> Self {
        Self { wr_id, sges }
    }
}

/// Several send requests for one doorbell, all or nothing: `ibv_wr_start` to `ibv_wr_complete`.
///
/// [`submit`](Self::submit) posts them. Dropped without, or if one of them was refused, nothing is posted.
#[derive(Debug)]
#[must_use = "nothing is posted before `submit`"]
pub struct SendBatch<'a> {
    qp: &'a mut QueuePair,
    count: usize,
    failed: Option<PostError>,
}

impl<'a> SendBatch<'a> {
    pub(crate) fn new(qp: &'a mut QueuePair) -> Self {
        // A batch that was leaked has left requests behind.
        qp.rings.abort_sends();
        let failed = qp.can_send().err().map(|reason| PostError { index: 0, reason });
        Self { qp, count: 0, failed }
    }

    /// Adds a request. The first that cannot be posted is reported by [`submit`](Self::submit).
    #[inline]
    pub fn push(mut self, request: &SendRequest<'_>) -> Self {
        if self.failed.is_none()
            && !request.plain().is_some_and(|(sge, opcode, to)| {
                self.qp.rings.push_plain_send(request.wr_id, request.flags, sge, opcode, to)
            })
            && let Err(reason) = push_any(self.qp, *request)
        {
            self.failed = Some(PostError { index: self.count, reason });
        }
        self.count += 1;
        self
    }

    /// Posts all of them, or none.
    ///
    /// # Errors
    /// Which request could not be posted and why.
    #[inline]
    pub fn submit(mut self) -> Result<(), PostError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return Ok(());
        }
        self.qp
            .commit_sends()
            .map_err(|errno| PostError { index: count, reason: PostReason::Doorbell(errno as i32) })
    }
}

/// It takes a copy, so that a request that was made on the spot needs no memory if it goes the short way.
#[inline(never)]
fn push_any(qp: &mut QueuePair, request: SendRequest<'_>) -> Result<(), PostReason> {
    qp.rings.push_send(&request)
}

impl Drop for SendBatch<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.qp.rings.abort_sends();
        }
    }
}

/// A request that could not be posted. It takes no memory and no time beyond the failure itself, since a full queue is part of
/// ordinary work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// Index in the list or batch of the first request that is not posted, `bad_wr`.
    pub index: usize,
    /// Why.
    pub reason: PostReason,
}

/// Why a request could not be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostReason {
    /// The queue holds as many requests as it was created for: `ENOMEM`. There is room again when the device has executed some.
    QueueFull,
    /// More SGEs than were granted: `EINVAL`.
    TooManySges {
        /// In the request.
        given: usize,
        /// Granted.
        most: usize,
    },
    /// More inline bytes than were granted: `EINVAL`.
    InlineTooLong {
        /// In the request.
        length: u64,
        /// Granted.
        most: usize,
    },
    /// Inline data with an operation that reads into memory: `EINVAL`.
    InlineRead,
    /// SGEs or inline data with an operation that carries none: `EINVAL`.
    NoPayload,
    /// Less than 8 bytes of room for what an atomic operation reads: `EINVAL`.
    ResultTooShort {
        /// Bytes.
        length: u64,
    },
    /// An atomic operation at an address that is no multiple of 8: `EINVAL`.
    Misaligned {
        /// The peer's.
        address: u64,
    },
    /// 4 GiB or more in one message: `EINVAL`.
    MessageTooLong {
        /// Bytes.
        length: u64,
    },
    /// A memory window of type 2 that another QP may have bound: `EINVAL`. If it has been invalidated, or the binding has failed,
    /// [say so](crate::MemoryWindow::note_invalidated).
    WindowElsewhere {
        /// Number of that QP.
        qp_num: u32,
    },
    /// A key to invalidate that is not of a memory window of type 2 that this QP has bound since it was reset: `EINVAL`.
    NotBound {
        /// The key.
        rkey: u32,
    },
    /// A memory window of another protection domain than the QP: `EPERM`.
    OtherDomain,
    /// A memory window that has gone with the QP that had bound it: `EINVAL`.
    WindowGone,
    /// A datagram without a destination: `EINVAL`.
    NoDestination,
    /// A QP number that there cannot be: `EINVAL`.
    NoSuchQueuePair(u32),
    /// A destination on a QP that is connected: `EINVAL`.
    Connected,
    /// An operation that QPs of this type or this device lack: `EINVAL`.
    NoSuchOperation,
    /// Flags that this device lacks: `EINVAL`.
    NoSuchFlags(SendFlags),
    /// A request without [`SIGNALED`](SendFlags::SIGNALED), where the device makes a completion for every one: `EINVAL`.
    Unsignaled,
    /// The QP is in a state in which it takes no such request: `EINVAL`.
    WrongState(QueuePairState),
    /// A receive for a QP that takes receives from a shared receive queue: `EINVAL`.
    SharedReceiveQueue,
    /// All requests are in the queue, but the kernel could not be told, with the error number that it gave. They are
    /// executed, or flushed, with what is posted next.
    Doorbell(i32),
}

impl PostError {
    /// The error number that libibverbs gives.
    pub fn errno(&self) -> i32 {
        self.number() as i32
    }

    fn number(&self) -> Errno {
        match self.reason {
            PostReason::QueueFull => Errno::ENOMEM,
            PostReason::OtherDomain => Errno::EPERM,
            PostReason::Doorbell(errno) => Errno::from_raw(errno),
            _ => Errno::EINVAL,
        }
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Error::from(*self), f)
    }
}

impl std::error::Error for PostError {}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        let what = match error.reason {
            PostReason::QueueFull => "the queue is full".to_owned(),
            PostReason::TooManySges { given, most } => format!("{given} SGEs, there is room for {most}"),
            PostReason::InlineTooLong { length, most } => {
                format!("{length} bytes inline, the QP has room for {most}")
            }
            PostReason::MessageTooLong { length } => format!("{length} bytes in one message"),
            PostReason::InlineRead => "a read into inline data".to_owned(),
            PostReason::NoPayload => "SGEs or inline data, but the operation carries none".to_owned(),
            PostReason::ResultTooShort { length } => {
                format!("{length} bytes of room for the result of an atomic operation, which has 8")
            }
            PostReason::Misaligned { address } => {
                format!("an atomic operation at {address:#x}, which is no multiple of 8")
            }
            PostReason::WindowElsewhere { qp_num } => {
                format!("QP {qp_num:#08x} has bound the memory window and it has not been invalidated")
            }
            PostReason::NotBound { rkey } => {
                format!("{rkey:#x} is not the key of a memory window of type 2 that the QP has bound")
            }
            PostReason::OtherDomain => "QP and memory window belong to different domains".to_owned(),
            PostReason::WindowGone => "the memory window has gone with the QP that had bound it".to_owned(),
            PostReason::NoDestination => "a datagram without a destination".to_owned(),
            PostReason::NoSuchQueuePair(number) => format!("{number:#x} is no QP number of this device"),
            PostReason::Connected => "a destination, but the QP is connected".to_owned(),
            PostReason::NoSuchOperation => "QPs of this type or device lack the operation".to_owned(),
            PostReason::NoSuchFlags(flags) => format!("the device does not know {flags:?}"),
            PostReason::Unsignaled => {
                "not signaled, but the device completes every request: flag it, or create the QP with signal_all"
                    .to_owned()
            }
            PostReason::WrongState(state) => format!("the QP is in state {state}"),
            PostReason::SharedReceiveQueue => {
                "the QP takes receives from a shared receive queue: post them there".to_owned()
            }
            PostReason::Doorbell(_) => "queued, but the device could not be told".to_owned(),
        };
        Self::with("post", error.number(), format!("request {}: {what}", error.index))
    }
}
