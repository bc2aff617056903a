//! Completion counters.

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bitflags::bitflags;
use parking_lot::Mutex;
use uverbs_ioctl::uapi::ioctl_verbs::{QpAttachCompCntrOps as Ops, comp_cntr_entry, comp_cntr_modify_op};
use uverbs_ioctl::{Errno, calls};

use crate::context::{Context, ContextInner};
use crate::error::{DestroyError, Error, Result};
use crate::object::{Object, destroy_shared};
use crate::provider::CounterValues;

bitflags! {
    /// Operations of a QP that a completion counter can count, `enum ibv_qp_attach_comp_cntr_op`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CounterOperations: u32 {
        /// Sends that completed.
        const SEND = Ops::SEND.bits();
        /// Receives that completed.
        const RECV = Ops::RECV.bits();
        /// Own RDMA reads that completed.
        const RDMA_READ = Ops::RDMA_READ.bits();
        /// RDMA reads by the peer that were answered.
        const REMOTE_RDMA_READ = Ops::REMOTE_RDMA_READ.bits();
        /// Own RDMA writes that completed.
        const RDMA_WRITE = Ops::RDMA_WRITE.bits();
        /// RDMA writes by the peer that have arrived.
        const REMOTE_RDMA_WRITE = Ops::REMOTE_RDMA_WRITE.bits();
    }
}

impl fmt::Display for CounterOperations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// What a completion counter counts, `enum ibv_comp_cntr_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CounterType {
    /// Work requests, signalled or not.
    WorkRequests,
    /// Bytes. The interface of Linux 7.3 has no word for it.
    Bytes,
}

/// Where one of a completion counter's two values is, `struct efadv_memory_location`.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum CounterMemory<'a> {
    /// Where it always is: in the kernel, or in memory that belongs to the counter.
    #[default]
    Own,
    /// At an address of this process, a multiple of 8: in memory that others look at too, say another process.
    Address(*mut u64),
    /// In a dma-buf, for example of a GPU's memory.
    DmaBuf {
        /// The dma-buf. It can be closed when the counter has been created.
        fd: BorrowedFd<'a>,
        /// Where in it, in bytes: a multiple of 8.
        offset: u64,
        /// Where this process has it mapped; null if it does not. Without, reading the value is `EOPNOTSUPP`.
        mapped: *mut u64,
    },
}

impl CounterMemory<'_> {
    /// Why it cannot be, if that can be seen.
    fn check(&self) -> Result<(), String> {
        let size = size_of::<u64>();
        let aligned = |what: &str, number: u64| match number.is_multiple_of(size as u64) {
            true => Ok(()),
            false => Err(format!("{what} {number:#x} is no multiple of {size}")),
        };
        match *self {
            Self::Own => Ok(()),
            Self::Address(word) if word.is_null() => Err("the address of a value is null".to_owned()),
            Self::Address(word) => aligned("the address", word.addr() as u64),
            Self::DmaBuf { offset, mapped, .. } => aligned("the offset into the dma-buf", offset)
                .and_then(|()| aligned("the address", mapped.addr() as u64)),
        }
    }
}

/// What completion counters of a device can do, `struct ibv_comp_cntr_caps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompletionCounterCapabilities {
    /// Counters that the device has for all processes together.
    pub max_counters: u32,
    /// Largest value: one more is zero.
    pub max_value: u64,
    /// Operations that can be counted.
    pub operations: CounterOperations,
}

impl CompletionCounterCapabilities {
    pub(crate) fn query(context: &ContextInner, verb: &'static str) -> Result<Self> {
        let unsupported = || unsupported(verb, context);
        match calls::query_comp_cntr_caps(context.transport()) {
            // Hardware without counters under a driver that knows them.
            Ok(caps) if caps.max_counters == 0 => Err(unsupported()),
            Ok(caps) => Ok(Self {
                max_counters: caps.max_counters,
                max_value: caps.max_value,
                operations: CounterOperations::from_bits_truncate(caps.supported_ops),
            }),
            Err(Errno::EPROTONOSUPPORT | Errno::EOPNOTSUPP) => Err(unsupported()),
            Err(errno) => Err(Error::new(verb, errno)),
        }
    }
}

fn unsupported(verb: &'static str, context: &ContextInner) -> Error {
    let name = context.device().name();
    Error::with(
        verb,
        Errno::EOPNOTSUPP,
        format!("{name} or this kernel (Linux 7.3 or later) has no completion counters"),
    )
}

/// Which of a counter's two values.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Entry {
    Completions = comp_cntr_entry::COMP,
    Errors = comp_cntr_entry::ERR,
}

/// A completion counter, `struct ibv_comp_cntr`: how many operations of QPs have completed, and how many with an error.
///
/// [Attached](crate::QueuePair::attach_completion_counter) to QPs it counts without CQ entries, so also work that is not signalled
/// and, at the passive end, what the peer does. Values wrap to zero after
/// [`max_value`](CompletionCounterCapabilities::max_value). Copies are of the same counter; any thread may use them.
///
/// ```no_run
/// use uverbs::{CounterOperations, CounterType, Device, QueuePairInit};
///
/// # fn main() -> uverbs::Result<()> {
/// let context = Device::find("efa_0")?.open()?;
/// let domain = context.alloc_protection_domain()?;
/// let cq = context.create_completion_queue(16, None, 0)?;
/// let mut qp = domain.create_queue_pair(&QueuePairInit::scalable_reliable_datagram(&cq))?;
/// let sent = context.create_completion_counter(CounterType::WorkRequests)?;
/// qp.attach_completion_counter(&sent, CounterOperations::SEND)?;
/// // When it has been connected and has sent something:
/// println!("{} sent, {} failed", sent.read()?, sent.read_err()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CompletionCounter(Arc<CounterInner>);

pub(crate) struct CounterInner {
    object: Object,
    /// The handle. The kernel refuses calls on a counter while another one is on its way (`EBUSY`); the lock lines them up.
    handle: Mutex<u32>,
    /// Goes only when the device no longer writes it.
    values: ManuallyDrop<CounterValues>,
    max_value: u64,
}

// SAFETY: the addresses in it are of values that threads only read, each with an atomic load.
unsafe impl Send for CounterInner {}
// SAFETY: as above.
unsafe impl Sync for CounterInner {}

impl Drop for CounterInner {
    fn drop(&mut self) {
        match self.object.destroy() {
            // SAFETY: dropped once, here.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.values) },
            Err(errno) => log::error!("memory of counter {} is leaked: {errno}", self.object.handle()),
        }
    }
}

impl CounterInner {
    pub(crate) fn context(&self) -> &Arc<ContextInner> {
        self.object.context()
    }

    /// Uses the handle while nobody else does.
    pub(crate) fn with_handle<T>(&self, with: impl FnOnce(u32) -> T) -> T {
        with(*self.handle.lock())
    }
}

impl CompletionCounter {
    /// # Safety
    /// As [`Context::create_completion_counter_in`].
    pub(crate) unsafe fn create(
        context: &Context,
        kind: CounterType,
        completions: CounterMemory<'_>,
        errors: CounterMemory<'_>,
    ) -> Result<Self> {
        const VERB: &str = "create_comp_cntr";
        for place in [completions, errors] {
            place.check().map_err(|detail| Error::with(VERB, Errno::EINVAL, detail))?;
        }
        let inner = context.inner();
        let capabilities = inner.counter_capabilities(VERB)?;
        if kind != CounterType::WorkRequests {
            let detail = format!("{} has no counters of type {kind:?}", inner.device().name());
            return Err(Error::with(VERB, Errno::EOPNOTSUPP, detail));
        }
        let is_own = [completions, errors].iter().all(|place| matches!(place, CounterMemory::Own));
        // SAFETY: the caller's.
        let new = unsafe { inner.ops().create_counter(context.transport(), completions, errors) };
        let new = new.map_err(|errno| match errno {
            Errno::EPROTONOSUPPORT => unsupported(VERB, inner),
            Errno::EOPNOTSUPP if !is_own => {
                let detail =
                    format!("the values of a counter of {} are in the kernel", inner.device().name());
                Error::with(VERB, errno, detail)
            }
            Errno::EINVAL if !is_own => {
                let detail = "the file for a value is no dma-buf, or the value is not in it";
                Error::with(VERB, errno, detail)
            }
            Errno::EFAULT => Error::with(VERB, errno, "the memory of a value is not mapped, or not writable"),
            Errno::ENOMEM => {
                let most = capabilities.max_counters;
                let detail =
                    format!("{} has {most} counters for all processes together", inner.device().name());
                Error::with(VERB, errno, detail)
            }
            _ => Error::new(VERB, errno),
        })?;
        Ok(Self(Arc::new(CounterInner {
            object: Object::new(inner.clone(), new.handle, calls::destroy_comp_cntr),
            handle: Mutex::new(new.handle),
            values: ManuallyDrop::new(new.values),
            max_value: capabilities.max_value,
        })))
    }

    /// How many operations have completed without an error, `ibv_read_comp_cntr`.
    ///
    /// # Errors
    /// [`DeviceGone`](crate::ErrorKind::DeviceGone); [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) for a value in a
    /// dma-buf that is not mapped.
    #[inline]
    pub fn read(&self) -> Result<u64> {
        self.read_entry("read_comp_cntr", Entry::Completions)
    }

    /// How many operations have completed with an error, flushed ones included, `ibv_read_err_comp_cntr`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline]
    pub fn read_err(&self) -> Result<u64> {
        self.read_entry("read_err_comp_cntr", Entry::Errors)
    }

    /// Sets the count of completions, `ibv_set_comp_cntr`. What completes meanwhile may or may not be counted.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) for more than the largest value;
    /// [`DeviceGone`](crate::ErrorKind::DeviceGone).
    pub fn set(&self, value: u64) -> Result<()> {
        self.modify("set_comp_cntr", Entry::Completions, comp_cntr_modify_op::SET, value)
    }

    /// Sets the count of errors, `ibv_set_err_comp_cntr`.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn set_err(&self, value: u64) -> Result<()> {
        self.modify("set_err_comp_cntr", Entry::Errors, comp_cntr_modify_op::SET, value)
    }

    /// Adds to the count of completions, `ibv_inc_comp_cntr`. Nothing that is added or that completes meanwhile is lost.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn inc(&self, amount: u64) -> Result<()> {
        self.modify("inc_comp_cntr", Entry::Completions, comp_cntr_modify_op::INC, amount)
    }

    /// Adds to the count of errors, `ibv_inc_err_comp_cntr`.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn inc_err(&self, amount: u64) -> Result<()> {
        self.modify("inc_err_comp_cntr", Entry::Errors, comp_cntr_modify_op::INC, amount)
    }

    /// Gives the counter back, `ibv_destroy_comp_cntr`.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) (`EBUSY`) while it is attached to a QP, or a copy of it is there.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        const VERB: &str = "destroy_comp_cntr";
        destroy_shared(self, VERB, |counter| &mut counter.0, |_| Ok(()), |inner| &mut inner.object)
    }

    pub(crate) fn inner(&self) -> &Arc<CounterInner> {
        &self.0
    }

    #[inline]
    fn read_entry(&self, verb: &'static str, entry: Entry) -> Result<u64> {
        let word = self.0.values.words[entry as usize];
        if word.is_null() {
            return self.read_elsewhere(verb, entry);
        }
        // SAFETY: aligned, and mapped as long as the counter is there: it is the counter's own, or who created it saw to that. The
        // device writes it with whole stores.
        let word = unsafe { AtomicU64::from_ptr(word) };
        Ok(u64::from_le(word.load(Ordering::Acquire)))
    }

    /// A value that is not in memory.
    #[cold]
    fn read_elsewhere(&self, verb: &'static str, entry: Entry) -> Result<u64> {
        let inner = &*self.0;
        if !inner.values.in_kernel {
            let detail = "the value is in a dma-buf that is not mapped here";
            return Err(Error::with(verb, Errno::EOPNOTSUPP, detail));
        }
        inner
            .with_handle(|handle| calls::read_comp_cntr(inner.object.transport(), handle, entry as u32))
            .map_err(|errno| Error::new(verb, errno))
    }

    fn modify(&self, verb: &'static str, entry: Entry, operation: u32, value: u64) -> Result<()> {
        let inner = &*self.0;
        if value > inner.max_value {
            let detail = format!("{value} is more than the largest value, {}", inner.max_value);
            return Err(Error::with(verb, Errno::EINVAL, detail));
        }
        inner
            .with_handle(|handle| {
                calls::modify_comp_cntr(inner.object.transport(), handle, entry as u32, operation, value)
            })
            .map_err(|errno| Error::new(verb, errno))
    }
}

impl fmt::Debug for CompletionCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionCounter").field(&self.0.object.handle()).finish()
    }
}
