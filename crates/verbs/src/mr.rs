//! Memory regions.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::{fmt, mem};

use bitflags::bitflags;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use uverbs_ioctl::uapi::ioctl_verbs::{AccessFlags as Access, CoreSupport, advise_mr_advice};
use uverbs_ioctl::uapi::user_verbs::{ExQueryDevice, RegMr, ReregMr};
use uverbs_ioctl::uapi::values::MrReregFlags;
use uverbs_ioctl::{Errno, calls};

use crate::context::ContextInner;
use crate::error::{DestroyError, Error, Result};
use crate::memory::Memory;
use crate::object::Object;
use crate::pd::ProtectionDomain;
use crate::post::ScatterGather;

bitflags! {
    /// What may be done to a memory region, and what peers of a QP may do, `enum ibv_access_flags`. Local reads are always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AccessFlags: u32 {
        /// The device may write it, as receives do.
        const LOCAL_WRITE = Access::LOCAL_WRITE.bits();
        /// Peers may write it. Needs local write access too.
        const REMOTE_WRITE = Access::REMOTE_WRITE.bits();
        /// Peers may read it.
        const REMOTE_READ = Access::REMOTE_READ.bits();
        /// Peers may use atomics on it. Needs local write access too.
        const REMOTE_ATOMIC = Access::REMOTE_ATOMIC.bits();
        /// Memory windows may be bound to it.
        const MW_BIND = Access::MW_BIND.bits();
        /// For binding a memory window of type 2: peers count addresses from the start of the window.
        const ZERO_BASED = Access::ZERO_BASED.bits();
        /// Peers may flush it, so far that what they wrote is visible to all: [`FlushPlacement::GLOBAL`](crate::FlushPlacement).
        const FLUSH_GLOBAL = Access::FLUSH_GLOBAL.bits();
        /// Peers may flush it, so far that what they wrote outlasts a power failure. The memory has to be of that kind: a file in
        /// persistent memory.
        const FLUSH_PERSISTENT = Access::FLUSH_PERSISTENT.bits();
        /// The memory is not locked: the device takes pages as it comes to them. See
        /// [`DeviceAttributes::odp_general_caps`](crate::DeviceAttributes::odp_general_caps).
        ///
        /// soft-RoCE of Linux 7.3 mixes up the bytes of sends, receives, RDMA reads and writes: it takes each packet for one that
        /// begins at the start of a page. Only accesses of one packet that do begin there are right.
        const ON_DEMAND = Access::ON_DEMAND.bits();
        /// Writes may become visible in another order. A hint: kernels that do not know it do without.
        const RELAXED_ORDERING = Access::RELAXED_ORDERING.bits();
    }
}

/// Flags that a kernel may ignore, `IBV_ACCESS_OPTIONAL_RANGE`.
const OPTIONAL: u32 = 0x3ff0_0000;

/// How memory will be used, `enum ibv_advise_mr_advice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum MemoryAdvice {
    /// It will be read soon: page it in.
    Prefetch = advise_mr_advice::PREFETCH,
    /// It will be written soon: page it in to be written.
    PrefetchWrite = advise_mr_advice::PREFETCH_WRITE,
    /// Take what is paged in already.
    PrefetchNoFault = advise_mr_advice::PREFETCH_NO_FAULT,
}

/// Access that lets a device or a peer write.
const WRITES: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_ATOMIC);

/// Registered memory, `struct ibv_mr`.
///
/// It owns the memory, and deregisters it before it frees it: work that names it is safe to post, because its keys bound what
/// the device reaches. [`read`](Self::read) and [`write`](Self::write) copy out of it and into it.
///
/// ```no_run
/// use uverbs::{AccessFlags, Device, RemoteMemory, ScatterGather};
///
/// # fn main() -> uverbs::Result<()> {
/// let context = Device::find("rxe0")?.open()?;
/// let domain = context.alloc_protection_domain()?;
/// let mut region = domain.allocate(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
/// region.write(0, b"hello");
/// // What work of this process names, and what a peer has to be told.
/// let here: ScatterGather = region.sge(0..5);
/// let there = RemoteMemory { address: region.address(), rkey: region.rkey() };
/// # Ok(())
/// # }
/// ```
pub struct MemoryRegion {
    object: Object,
    /// Keeps the domain alive.
    domain: ProtectionDomain,
    start: NonNull<u8>,
    length: usize,
    lkey: u32,
    rkey: u32,
    /// Whether it was registered to be written.
    writable: bool,
    /// The memory, if it is the region's own. Freed only when the region is gone from the kernel.
    memory: Option<Memory>,
}

// SAFETY: the pointer is to memory that the region owns or that the caller of `register_raw` vouched for; access to it goes by
// `&self` for reading and `&mut self` for writing.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    pub(crate) fn own(domain: &ProtectionDomain, memory: Memory, access: AccessFlags) -> Result<Self> {
        // SAFETY: the memory goes into the region, which frees it only after it has been deregistered.
        let mut region = unsafe { Self::borrow(domain, memory.as_ptr(), memory.len(), access) }?;
        region.memory = Some(memory);
        Ok(region)
    }

    /// # Safety
    /// As [`ProtectionDomain::register_raw`].
    pub(crate) unsafe fn borrow(
        domain: &ProtectionDomain,
        start: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<Self> {
        if length == 0 {
            return Err(explain(Errno::EINVAL, length, access));
        }
        // soft-RoCE takes what lies at the start of the page, which may be somebody else's.
        if access.contains(AccessFlags::ON_DEMAND) && !start.addr().is_multiple_of(rustix::param::page_size())
        {
            let detail = format!("memory to be paged on demand begins in the middle of a page, at {start:p}");
            return Err(Error::with("reg_mr", Errno::EINVAL, detail));
        }
        let context = domain.0.context();
        let access_flags = known_to(context, access);
        let request = RegMr {
            start: start.expose_provenance() as u64,
            length: length as u64,
            hca_va: start.addr() as u64,
            pd_handle: domain.handle(),
            access_flags,
            ..Default::default()
        };
        // SAFETY: the caller's.
        let response = unsafe { calls::reg_mr(context.transport(), &request) }
            .map_err(|errno| explain_on(context, errno, length, access))?;
        let object = Object::new(context.clone(), response.mr_handle, calls::destroy_mr);
        let start = NonNull::new(start).ok_or_else(|| explain(Errno::EFAULT, length, access))?;
        Ok(Self {
            object,
            domain: domain.clone(),
            start,
            length,
            lkey: response.lkey,
            rkey: response.rkey,
            writable: access.intersects(WRITES),
            memory: None,
        })
    }

    /// Local key, for scatter/gather elements.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Remote key, for peers.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Address of the first byte, by which peers name it too.
    pub fn address(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// Pointer to the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// A stretch of it as a scatter/gather element.
    ///
    /// # Panics
    /// If the range is not inside of the region or has 4 GiB or more.
    #[inline]
    pub fn sge(&self, range: Range<usize>) -> ScatterGather {
        let range = range.start as u64..range.end as u64;
        ScatterGather::within(self.address(), self.length as u64, self.lkey, range)
    }

    /// Copies `bytes.len()` bytes at `offset` out of the region. A device that writes there meanwhile may leave old and new bytes
    /// mixed.
    ///
    /// # Panics
    /// If the range is not inside of the region.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.check(offset, bytes.len());
        // SAFETY: the range is in the region, which is mapped. `bytes` may overlap memory that was registered where it is.
        unsafe { self.start.as_ptr().add(offset).copy_to(bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Copies `bytes` into the region at `offset`.
    ///
    /// # Panics
    /// If the range is not inside of the region, or if the memory is [somebody else's](ProtectionDomain::register_raw) and was registered
    /// to be read only.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        assert!(self.writable || self.memory.is_some(), "the memory was registered to be read only");
        // SAFETY: as in `read`; `&mut self` keeps other threads away.
        unsafe { self.start.as_ptr().add(offset).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    /// The whole region as a slice.
    ///
    /// # Safety
    /// Nobody writes it while the slice is there: no receive into it is posted, no peer that may write it does, and there is no other
    /// region or mapping of the same memory or file that is written.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the region is that long and mapped; nothing writes it, says the caller.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The whole region as a slice to write to.
    ///
    /// # Safety
    /// The memory may be written: it is the region's own, or was lent for that. Nobody reads or writes it while the slice is there: no work that names it is posted, no peer accesses it, and there is no other
    /// region or mapping of the same memory or file that is used.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes it the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    /// The domain that it belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Gives it to another domain, or other access, or both, `ibv_rereg_mr` with `IBV_REREG_MR_CHANGE_PD` and
    /// `IBV_REREG_MR_CHANGE_ACCESS`. Its keys may be others afterwards. (No driver that there is a provider for can change the memory
    /// of a region.)
    ///
    /// If it fails, the region is what it was, as with `IBV_REREG_MR_ERR_INPUT`: soft-RoCE looks before it changes anything.
    ///
    /// ```no_run
    /// use uverbs::{AccessFlags, Device};
    ///
    /// # fn main() -> uverbs::Result<()> {
    /// let context = Device::find("rxe0")?.open()?;
    /// let domain = context.alloc_protection_domain()?;
    /// let mut region = domain.allocate(4096, AccessFlags::LOCAL_WRITE)?;
    /// // Open it to peers, and close it again.
    /// region.reregister(None, Some(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ))?;
    /// region.reregister(None, Some(AccessFlags::LOCAL_WRITE))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) if the device or this kernel's driver cannot;
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) without a change, with a domain of another context or with access
    /// that cannot be; [`PermissionDenied`](crate::ErrorKind::PermissionDenied) (`EACCES`) for access to write, if the region was
    /// registered without; [`Busy`](crate::ErrorKind::Busy) while it is in use by another call.
    pub fn reregister(
        &mut self,
        domain: Option<&ProtectionDomain>,
        access: Option<AccessFlags>,
    ) -> Result<()> {
        const VERB: &str = "rereg_mr";
        let context = self.object.context();
        if domain.is_some_and(|domain| !Arc::ptr_eq(domain.0.context(), context)) {
            return Err(Error::with(VERB, Errno::EINVAL, "the domain belongs to another context"));
        }
        if access.is_some_and(|access| access.intersects(WRITES)) && !self.writable {
            // Its pages are taken for reading, and who lent them may have allowed no more.
            let detail = "access to write, but the region was registered without";
            return Err(Error::with(VERB, Errno::EACCES, detail));
        }
        let mut flags = MrReregFlags::empty();
        flags.set(MrReregFlags::PD, domain.is_some());
        flags.set(MrReregFlags::ACCESS, access.is_some());
        let request = ReregMr {
            mr_handle: self.object.handle(),
            flags: flags.bits(),
            pd_handle: domain.map_or(0, ProtectionDomain::handle),
            access_flags: access.map_or(0, |access| known_to(context, access)),
            ..Default::default()
        };
        let response = calls::invoke(context.transport(), &request).map_err(|errno| {
            Error::new(VERB, errno).or_detail(|| match errno {
                Errno::EINVAL if flags.is_empty() => Some("nothing to change".to_owned()),
                Errno::EOPNOTSUPP => {
                    Some(format!("{} or its driver cannot do this", context.device().name()))
                }
                Errno::EINVAL => access.map(|access| format!("access {access:?}")),
                _ => None,
            })
        })?;
        (self.lkey, self.rkey) = (response.lkey, response.rkey);
        if let Some(domain) = domain {
            self.domain = domain.clone();
        }
        Ok(())
    }

    /// Deregisters it, `ibv_dereg_mr`, and frees its memory.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) or [`InvalidInput`](crate::ErrorKind::InvalidInput) (soft-RoCE) while a memory window is bound
    /// to it.
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        match self.object.destroy() {
            Ok(()) => Ok(()),
            Err(errno) => Err(DestroyError::new(self, Error::new("dereg_mr", errno))),
        }
    }

    #[inline]
    fn check(&self, offset: usize, length: usize) {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        assert!(inside, "{length} bytes at {offset} are not inside of a region of {}", self.length);
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if let Err(errno) = self.object.destroy() {
            let (object, memory) = (self.object.take(), self.memory.take());
            self.domain.0.retain(Registration { object, memory, start: self.address(), length: self.length });
            log::debug!("{} bytes at {:p} stay registered for now: {errno}", self.length, self.start);
        }
    }
}

/// What is left of a region that was dropped, but that the kernel does not let go yet.
pub(crate) struct Registration {
    object: Object,
    memory: Option<Memory>,
    start: u64,
    length: usize,
}

impl Registration {
    pub(crate) fn destroy(&mut self) -> Result<(), Errno> {
        self.object.destroy()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(errno) = self.object.destroy() {
            // The device may still reach it.
            mem::forget(self.memory.take());
            self.object.abandon();
            let Self { start, length, .. } = *self;
            log::error!("{length} bytes at {start:#x} stay registered and are leaked: {errno}");
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("address", &self.start)
            .field("length", &self.length)
            .field("lkey", &format_args!("{:#x}", self.lkey))
            .field("rkey", &format_args!("{:#x}", self.rkey))
            .finish_non_exhaustive()
    }
}

/// The flags without those that the kernel does not know and may ignore.
fn known_to(context: &ContextInner, access: AccessFlags) -> u32 {
    let support = CoreSupport::from_bits_retain(context.info().core_support);
    let optional = if support.contains(CoreSupport::OPTIONAL_MR_ACCESS) { 0 } else { OPTIONAL };
    access.bits() & !optional
}

#[cold]
fn explain_on(context: &ContextInner, errno: Errno, length: usize, access: AccessFlags) -> Error {
    let can_page = || {
        let device = calls::invoke(context.transport(), &ExQueryDevice::default());
        device.is_ok_and(|device| device.odp_caps.general_caps != 0)
    };
    if access.contains(AccessFlags::ON_DEMAND)
        && matches!(errno, Errno::EINVAL | Errno::EOPNOTSUPP)
        && !can_page()
    {
        let detail = format!("{} cannot page on demand", context.device().name());
        return Error::with("reg_mr", Errno::EOPNOTSUPP, detail);
    }
    explain(errno, length, access)
}

#[cold]
fn explain(errno: Errno, length: usize, access: AccessFlags) -> Error {
    const VERB: &str = "reg_mr";
    let remote_writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let detail = match errno {
        Errno::ENOMEM => match getrlimit(Resource::RLIMIT_MEMLOCK) {
            Ok((limit, _)) if limit != RLIM_INFINITY => format!(
                "{length} bytes to lock, and RLIMIT_MEMLOCK is {limit} bytes: raise it (ulimit -l, LimitMEMLOCK=, \
                 docker --ulimit memlock=-1)"
            ),
            _ => format!("{length} bytes"),
        },
        Errno::EINVAL if length == 0 => "a length of zero".to_owned(),
        Errno::EINVAL if access.intersects(remote_writes) && !access.contains(AccessFlags::LOCAL_WRITE) => {
            "remote write access and atomics need LOCAL_WRITE too".to_owned()
        }
        Errno::EFAULT => format!("{length} bytes are not all mapped, or not writable as {access:?} needs"),
        _ => format!("{length} bytes, access {access:?}"),
    };
    Error::with(VERB, errno, detail)
}
