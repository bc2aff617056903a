//! Memory regions of dma-bufs.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use uverbs_ioctl::Errno;
use uverbs_ioctl::calls::{self, DmaBufRequest};

use crate::error::{DestroyError, Error, Result};
use crate::mr::AccessFlags;
use crate::object::Object;
use crate::pd::ProtectionDomain;
use crate::post::ScatterGather;

/// Registered memory of a dma-buf, such as a GPU's, `struct ibv_mr` from `ibv_reg_dmabuf_mr`.
///
/// This process need not have it mapped, so there is nothing here to read and write it with.
///
/// ```no_run
/// use std::os::fd::BorrowedFd;
/// use uverbs::{AccessFlags, Device};
///
/// # fn example(gpu_memory: BorrowedFd<'_>) -> uverbs::Result<()> {
/// let context = Device::find("efa_0")?.open()?;
/// let domain = context.alloc_protection_domain()?;
/// let region = domain.register_dma_buf(gpu_memory, 0..65_536, 0, AccessFlags::LOCAL_WRITE)?;
/// let place = region.sge(4096..8192);
/// # Ok(())
/// # }
/// ```
pub struct DmaBufRegion {
    object: Object,
    /// Keeps the domain alive.
    domain: ProtectionDomain,
    address: u64,
    length: u64,
    lkey: u32,
    rkey: u32,
}

impl DmaBufRegion {
    pub(crate) fn new(
        domain: &ProtectionDomain,
        fd: BorrowedFd<'_>,
        range: Range<u64>,
        address: u64,
        access: AccessFlags,
    ) -> Result<Self> {
        const VERB: &str = "reg_dmabuf_mr";
        let context = domain.0.context();
        let length = range.end.checked_sub(range.start).filter(|length| *length > 0);
        let length =
            length.ok_or_else(|| Error::with(VERB, Errno::EINVAL, format!("no bytes in {range:?}")))?;
        let page = rustix::param::page_size() as u64;
        if range.start % page != address % page {
            let start = range.start;
            let detail = format!("offset {start:#x} and address {address:#x} differ modulo {page}");
            return Err(Error::with(VERB, Errno::EINVAL, detail));
        }
        let request = DmaBufRequest {
            pd: domain.handle(),
            fd,
            offset: range.start,
            length,
            iova: address,
            access_flags: access.bits(),
        };
        let response = calls::reg_dmabuf_mr(context.transport(), &request).map_err(|errno| {
            // Before Linux 5.12 the method is unknown.
            let errno = if errno == Errno::EPROTONOSUPPORT { Errno::EOPNOTSUPP } else { errno };
            let detail = match errno {
                Errno::EOPNOTSUPP => format!("{} cannot register dma-bufs", context.device().name()),
                Errno::EINVAL => {
                    format!(
                        "the file is no dma-buf, or {range:?} is not in it, or access {access:?} cannot be"
                    )
                }
                _ => format!("{length} bytes, access {access:?}"),
            };
            Error::with(VERB, errno, detail)
        })?;
        Ok(Self {
            object: Object::new(context.clone(), response.mr_handle, calls::destroy_mr),
            domain: domain.clone(),
            address,
            length,
            lkey: response.lkey,
            rkey: response.rkey,
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

    /// Address by which work and peers name the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// A stretch of it as a scatter/gather element.
    ///
    /// # Panics
    /// If the range is not inside of the region or has 4 GiB or more.
    pub fn sge(&self, range: Range<u64>) -> ScatterGather {
        ScatterGather::within(self.address, self.length, self.lkey, range)
    }

    /// The domain that it belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Deregisters it, `ibv_dereg_mr`.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) or [`InvalidInput`](crate::ErrorKind::InvalidInput) while a memory window is bound to it.
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        match self.object.destroy() {
            Ok(()) => Ok(()),
            Err(errno) => Err(DestroyError::new(self, Error::new("dereg_mr", errno))),
        }
    }
}

impl fmt::Debug for DmaBufRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBufRegion")
            .field("address", &format_args!("{:#x}", self.address))
            .field("length", &self.length)
            .field("lkey", &format_args!("{:#x}", self.lkey))
            .field("rkey", &format_args!("{:#x}", self.rkey))
            .finish_non_exhaustive()
    }
}
