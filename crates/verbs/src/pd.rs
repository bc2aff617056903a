//! Protection domains.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use uverbs_ioctl::uapi::user_verbs::{AllocPd, Sge};
use uverbs_ioctl::{Errno, calls};

use crate::ah::AddressHandle;
use crate::context::{Context, ContextInner};
use crate::dma_buf::DmaBufRegion;
use crate::error::{DestroyError, Error, Result};
use crate::memory::Memory;
use crate::mr::{AccessFlags, MemoryAdvice, MemoryRegion, Registration};
use crate::mw::{MemoryWindow, MemoryWindowType};
use crate::object::{Object, destroy_shared};
use crate::post::ScatterGather;
use crate::qp::{AddressVector, QueuePair, QueuePairInit};
use crate::srq::SharedReceiveQueue;

/// A protection domain, `struct ibv_pd`: what may work together. Copies are of the same domain.
///
/// ```no_run
/// use uverbs::{AccessFlags, Device, QueuePairInit};
///
/// # fn main() -> uverbs::Result<()> {
/// let context = Device::find("rxe0")?.open()?;
/// let domain = context.alloc_protection_domain()?;
/// let region = domain.allocate(4096, AccessFlags::LOCAL_WRITE)?;
/// let cq = context.create_completion_queue(16, None, 0)?;
/// let qp = domain.create_queue_pair(&QueuePairInit::reliable_connection(&cq))?;
/// // They keep it alive.
/// drop(domain);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ProtectionDomain(pub(crate) Arc<Domain>);

/// What all objects of a domain keep alive of it.
pub(crate) struct Domain {
    // Fields are dropped in this order.
    /// Regions that were dropped while a memory window was bound to them.
    retained: Mutex<Vec<Registration>>,
    object: Object,
}

impl Domain {
    pub(crate) fn context(&self) -> &Arc<ContextInner> {
        self.object.context()
    }

    /// Takes a region that the kernel does not let go yet.
    pub(crate) fn retain(&self, region: Registration) {
        self.retained.lock().push(region);
    }

    /// Something has been destroyed that may have kept such regions.
    pub(crate) fn release(&self) {
        self.retained.lock().retain_mut(|region| region.destroy().is_err());
    }
}

impl ProtectionDomain {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let response = calls::invoke(context.transport(), &AllocPd::default())
            .map_err(|errno| Error::new("alloc_pd", errno))?;
        let object = Object::new(context.inner().clone(), response.pd_handle, calls::destroy_pd);
        Ok(Self(Arc::new(Domain { retained: Mutex::default(), object })))
    }

    /// Allocates zeroed memory and registers it, `ibv_reg_mr`.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn allocate(&self, length: usize, access: AccessFlags) -> Result<MemoryRegion> {
        self.register(Memory::anonymous(length)?, access)
    }

    /// Registers memory, `ibv_reg_mr`. It belongs to the region from now on.
    ///
    /// # Errors
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) (`ENOMEM`) if it exceeds `RLIMIT_MEMLOCK`, which the error names;
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): `EINVAL` if remote write access or atomics come without local write
    /// access, `EFAULT` if the memory cannot be accessed so.
    pub fn register(&self, memory: Memory, access: AccessFlags) -> Result<MemoryRegion> {
        MemoryRegion::own(self, memory, access)
    }

    /// Registers memory that belongs to someone else, `ibv_reg_mr`.
    ///
    /// # Errors
    /// As [`register`](Self::register), and `EINVAL` if `length` is zero, or if `access` is `ON_DEMAND` and `start` not the start of a page.
    ///
    /// # Safety
    /// Until the region is gone (a region that is dropped while a memory window is bound to it is not), the range stays mapped, and the
    /// device may read it and, if `access` has any right to write, write it, at any time; so may [`MemoryRegion::write`]. No Rust code
    /// relies on its contents through a reference meanwhile.
    pub unsafe fn register_raw(
        &self,
        start: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion> {
        // SAFETY: the caller's.
        unsafe { MemoryRegion::borrow(self, start, length, access) }
    }

    /// Registers memory of a dma-buf, `ibv_reg_dmabuf_mr`: these bytes of it. Work names the first one by `address`, which agrees
    /// with its offset modulo the page size.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) if the driver cannot, as soft-RoCE's;
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) if the range is empty or not in the dma-buf, if the file is no
    /// dma-buf, or for access that cannot be; [`OutOfResources`](crate::ErrorKind::OutOfResources).
    pub fn register_dma_buf(
        &self,
        fd: BorrowedFd<'_>,
        range: Range<u64>,
        address: u64,
        access: AccessFlags,
    ) -> Result<DmaBufRegion> {
        DmaBufRegion::new(self, fd, range, address, access)
    }

    /// Allocates a memory window, `ibv_alloc_mw`.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) if the device has none of that type;
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources).
    pub fn alloc_memory_window(&self, kind: MemoryWindowType) -> Result<MemoryWindow> {
        MemoryWindow::alloc(self, kind)
    }

    /// Says how regions of this domain that were registered with [`ON_DEMAND`](AccessFlags::ON_DEMAND) will be used,
    /// `ibv_advise_mr`. With `flush` the device has taken the advice on return, and errors are told.
    ///
    /// ```no_run
    /// use uverbs::{AccessFlags, Device, MemoryAdvice};
    ///
    /// # fn main() -> uverbs::Result<()> {
    /// let context = Device::find("rxe0")?.open()?;
    /// let domain = context.alloc_protection_domain()?;
    /// let region = domain.allocate(1 << 20, AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND)?;
    /// domain.advise(MemoryAdvice::PrefetchWrite, true, &[region.sge(0..4096)])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) if the device cannot page on demand;
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) for a key that is not of such a region, `EFAULT` for a range that
    /// is not of it; [`PermissionDenied`](crate::ErrorKind::PermissionDenied) (`EPERM`) to write what may not be written.
    pub fn advise(&self, advice: MemoryAdvice, flush: bool, sges: &[ScatterGather]) -> Result<()> {
        const VERB: &str = "advise_mr";
        let raw = |sge: &ScatterGather| Sge { addr: sge.address, length: sge.length, lkey: sge.lkey };
        let sges: Vec<_> = sges.iter().map(raw).collect();
        let context = self.0.context();
        calls::advise_mr(context.transport(), self.handle(), advice as u32, flush, &sges).map_err(|errno| {
            let detail = (errno == Errno::EOPNOTSUPP)
                .then(|| format!("{} cannot page on demand", context.device().name()));
            Error::new(VERB, errno).or_detail(|| detail)
        })
    }

    /// Creates an address handle, `ibv_create_ah`: where datagrams of QPs of this domain can go.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) on soft-RoCE before Linux 5.16;
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) for an address that cannot be;
    /// [`TimedOut`](crate::ErrorKind::TimedOut) (`ETIMEDOUT`) if no neighbour answers for the GID;
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources).
    pub fn create_address_handle(&self, address: &AddressVector) -> Result<AddressHandle> {
        AddressHandle::new(self, address)
    }

    /// Creates a QP, `ibv_create_qp`.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) if a capacity is beyond the device's limit, which the error
    /// names; [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) if the device or its provider has no such type;
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources).
    pub fn create_queue_pair(&self, init: &QueuePairInit<'_>) -> Result<QueuePair> {
        QueuePair::create(self, init)
    }

    /// Creates a shared receive queue with room for at least `max_wr` receives of up to `max_sge` SGEs, `ibv_create_srq`.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) if `max_wr` is zero or a number is beyond the device's limit, which the
    /// error names; [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) if the device or its provider has none;
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources).
    pub fn create_shared_receive_queue(&self, max_wr: u32, max_sge: u32) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::create(self, max_wr, max_sge)
    }

    /// Gives the domain back, `ibv_dealloc_pd`.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) (`EBUSY`) while a region, a window, a QP or a copy of it is there.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        let release = |domain: &Domain| {
            domain.release();
            Ok(())
        };
        destroy_shared(self, "dealloc_pd", |domain| &mut domain.0, release, |domain| &mut domain.object)
    }

    pub(crate) fn handle(&self) -> u32 {
        self.0.object.handle()
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionDomain").field(&self.handle()).finish()
    }
}
