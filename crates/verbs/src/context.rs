//! Open devices.

use std::fmt;
use std::fs;
use std::sync::{Arc, OnceLock};

use uverbs_ioctl::calls::{self, ContextInfo};
use uverbs_ioctl::uapi::ioctl_verbs::GidEntry as RawGidEntry;
use uverbs_ioctl::uapi::user_verbs::{ExQueryDevice, QueryDevice};
use uverbs_ioctl::{Errno, Transport};

use crate::attributes::{DeviceAttributes, GidEntry, IpFamily, PortAttributes};
use crate::channel::CompletionChannel;
use crate::counter::{CompletionCounter, CompletionCounterCapabilities, CounterMemory, CounterType};
use crate::cq::CompletionQueue;
use crate::device::Device;
use crate::error::{DestroyError, Error, Result};
use crate::events::{AsyncEvents, AsyncFile};
use crate::failure::Failures;
use crate::pd::ProtectionDomain;
use crate::provider::{ContextOps, Provider};

/// An open device, `struct ibv_context`. Copies are of the same open device.
///
/// ```no_run
/// use uverbs::Device;
///
/// # fn main() -> uverbs::Result<()> {
/// let context = Device::find("rxe0")?.open()?;
/// let port = context.query_port(1)?;
/// let gid = context.routable_gid(1, None)?;
/// println!("{} is {}, its address {}", context.device().name(), port.state, gid.gid);
/// let domain = context.alloc_protection_domain()?;
/// let cq = context.create_completion_queue(16, None, 0)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Context(Arc<ContextInner>);

pub(crate) struct ContextInner {
    // Fields are dropped in this order; the command file goes last.
    async_file: AsyncFile,
    failures: Failures,
    provider: &'static dyn Provider,
    ops: Box<dyn ContextOps>,
    info: ContextInfo,
    device: Device,
    /// Asked for once: they do not change.
    counter_capabilities: OnceLock<CompletionCounterCapabilities>,
    transport: Box<dyn Transport>,
}

impl ContextInner {
    #[inline]
    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// The provider's part.
    pub(crate) fn ops(&self) -> &dyn ContextOps {
        &*self.ops
    }

    pub(crate) fn async_file(&self) -> &AsyncFile {
        &self.async_file
    }

    pub(crate) fn failures(&self) -> &Failures {
        &self.failures
    }

    pub(crate) fn info(&self) -> ContextInfo {
        self.info
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// What completion counters of the device can do, for `verb`.
    pub(crate) fn counter_capabilities(&self, verb: &'static str) -> Result<CompletionCounterCapabilities> {
        if let Some(capabilities) = self.counter_capabilities.get() {
            return Ok(*capabilities);
        }
        let capabilities = CompletionCounterCapabilities::query(self, verb)?;
        Ok(*self.counter_capabilities.get_or_init(|| capabilities))
    }

    /// The device's limits, if they can be had, to explain an error with.
    #[cold]
    pub(crate) fn limits(&self) -> Option<DeviceAttributes> {
        calls::invoke(self.transport(), &QueryDevice::default())
            .ok()
            .map(|base| DeviceAttributes::new(&base, None))
    }
}

impl Context {
    pub(crate) fn new(device: Device, transport: Box<dyn Transport>) -> Result<Self> {
        const VERB: &str = "open_device";
        let provider = device.provider_for(transport.driver_id())?;
        let too_old = |errno| {
            let detail = (errno == Errno::EPROTONOSUPPORT).then(|| {
                "this kernel lacks ioctl methods that uverbs needs (Linux 5.10 or later)".to_owned()
            });
            Error::new(VERB, errno).or_detail(|| detail)
        };
        let (info, ops) = provider.open(&*transport).map_err(too_old)?;
        let async_file = AsyncFile::new(&*transport).map_err(too_old)?;
        Ok(Self(Arc::new(ContextInner {
            async_file,
            failures: Failures::default(),
            provider,
            ops,
            info,
            device,
            counter_capabilities: OnceLock::new(),
            transport,
        })))
    }

    /// The device as it was when it was opened.
    pub fn device(&self) -> &Device {
        self.0.device()
    }

    /// Name of the provider in use.
    pub fn provider(&self) -> &'static str {
        self.0.provider.name()
    }

    /// Number of completion vectors, `num_comp_vectors`.
    pub fn completion_vectors(&self) -> u32 {
        self.0.info.completion_vectors
    }

    /// Where asynchronous events of the device and of the objects of this context arrive, `ibv_get_async_event`.
    pub fn async_events(&self) -> AsyncEvents {
        AsyncEvents::new(&self.0)
    }

    /// Properties and limits of the device, `ibv_query_device_ex`.
    ///
    /// # Errors
    /// [`DeviceGone`](crate::ErrorKind::DeviceGone).
    pub fn query_device(&self) -> Result<DeviceAttributes> {
        match calls::invoke(self.transport(), &ExQueryDevice::default()) {
            Ok(response) => Ok(DeviceAttributes::new(&response.base, Some(&response))),
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                calls::invoke(self.transport(), &QueryDevice::default())
                    .map(|base| DeviceAttributes::new(&base, None))
                    .map_err(|errno| Error::new("query_device", errno))
            }
            Err(errno) => Err(Error::new("query_device", errno)),
        }
    }

    /// State and properties of a port, `ibv_query_port`. Ports are counted from 1.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) if there is no such port.
    pub fn query_port(&self, port: u8) -> Result<PortAttributes> {
        calls::query_port(self.transport(), port)
            .map(|response| PortAttributes::new(&response))
            .map_err(|errno| Error::new("query_port", errno).or_detail(|| self.explain_port(errno, port)))
    }

    /// An entry of a port's GID table, `ibv_query_gid_ex`.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) (`ENODATA`) if the entry is empty;
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) if the index or the port is out of range.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<GidEntry> {
        calls::query_gid_entry(self.transport(), u32::from(port), index)
            .map(|raw| GidEntry::new(&raw))
            .map_err(|errno| {
                Error::new("query_gid", errno).or_detail(|| match errno {
                    Errno::ENODATA => {
                        Some(format!("GID index {index} of port {port} is empty; {}", self.list_gids(port)))
                    }
                    Errno::EINVAL => self.explain_port(errno, port).or_else(|| {
                        let length = self.query_port(port).ok()?.gid_table_length;
                        Some(format!("GID index {index} is out of range: port {port} has {length} entries"))
                    }),
                    _ => None,
                })
            })
    }

    /// All valid entries of the GID tables of all ports, `ibv_query_gid_table`.
    ///
    /// # Errors
    /// [`DeviceGone`](crate::ErrorKind::DeviceGone).
    pub fn gid_table(&self) -> Result<Vec<GidEntry>> {
        // As many as one attribute holds. The kernel refuses a table that is too short for its entries.
        let mut raw = vec![RawGidEntry::default(); usize::from(u16::MAX) / size_of::<RawGidEntry>()];
        let count = calls::query_gid_table(self.transport(), &mut raw)
            .map_err(|errno| Error::new("query_gid_table", errno))?;
        Ok(raw[..count].iter().map(GidEntry::new).collect())
    }

    /// A GID of the port to speak to other hosts with: RoCE v2 before RoCE v1 or InfiniBand, then one that is not link-local, then
    /// the lowest index. With a `family`, only GIDs made from addresses of that family count, since the two cannot talk.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) (`ENODATA`) if there is none.
    pub fn routable_gid(&self, port: u8, family: Option<IpFamily>) -> Result<GidEntry> {
        const VERB: &str = "routable_gid";
        self.query_port(port)?;
        let candidates = self.gid_table()?;
        let of_port = candidates.iter().filter(|entry| entry.port == u32::from(port));
        of_port
            .filter(|entry| family.is_none_or(|family| entry.gid.family() == family))
            .min_by_key(|entry| entry.preference())
            .copied()
            .ok_or_else(|| {
                let of_family = match family {
                    Some(IpFamily::V4) => " made from an IPv4 address",
                    Some(IpFamily::V6) => " made from an IPv6 address",
                    None => "",
                };
                let detail = format!(
                    "port {port} has no GID{of_family}: give its network interface an address; {}",
                    self.list_gids(port)
                );
                Error::with(VERB, Errno::ENODATA, detail)
            })
    }

    /// A partition key of a port, `ibv_query_pkey`, in host byte order. The kernel offers it in sysfs only.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) (`ENOENT`) if there is no such entry or no `/sys`.
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<u16> {
        const VERB: &str = "query_pkey";
        #[cfg(feature = "soft")]
        if let Some(soft) = self.device().soft() {
            let key = soft.partition_key(index).filter(|_| port == 1);
            let entry = || format!("{}/ports/{port}/pkeys/{index}", soft.name());
            return key.ok_or_else(|| Error::with(VERB, Errno::ENOENT, entry()));
        }
        let path = format!("/sys/class/infiniband/{}/ports/{port}/pkeys/{index}", self.current_name());
        let text = fs::read_to_string(&path).map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            Error::with(VERB, errno, path.clone())
        })?;
        u16::from_str_radix(text.trim().trim_start_matches("0x"), 16)
            .map_err(|_| Error::with(VERB, Errno::EPROTO, format!("{path} holds {:?}", text.trim())))
    }

    /// Allocates a protection domain, `ibv_alloc_pd`.
    ///
    /// # Errors
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources).
    pub fn alloc_protection_domain(&self) -> Result<ProtectionDomain> {
        ProtectionDomain::new(self)
    }

    /// Creates a completion channel, `ibv_create_comp_channel`.
    ///
    /// # Errors
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources): `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn create_completion_channel(&self) -> Result<CompletionChannel> {
        CompletionChannel::new(self)
    }

    /// Creates a CQ with room for at least `entries` completions, `ibv_create_cq`. If it is to raise events, they arrive on
    /// `channel`. `vector` is below [`completion_vectors`](Self::completion_vectors); zero if it does not matter.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) if a number is out of range, with the device's limit;
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources).
    pub fn create_completion_queue(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
        vector: u32,
    ) -> Result<CompletionQueue> {
        CompletionQueue::create(self, entries, channel, vector)
    }

    /// What completion counters of the device can do, `ibv_query_comp_cntr_caps`.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) if the kernel is older than 7.3 or the device has none.
    pub fn completion_counter_capabilities(&self) -> Result<CompletionCounterCapabilities> {
        self.0.counter_capabilities("query_comp_cntr_caps")
    }

    /// Creates a completion counter, `ibv_create_comp_cntr`: both its values are zero.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) if the kernel or the device has none of that type;
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) (`ENOMEM`) if all are in use, by this process or others.
    pub fn create_completion_counter(&self, kind: CounterType) -> Result<CompletionCounter> {
        // SAFETY: all memory is the counter's own.
        unsafe { CompletionCounter::create(self, kind, CounterMemory::Own, CounterMemory::Own) }
    }

    /// Creates a completion counter whose values are in memory of the caller's choice, `efadv_create_comp_cntr`. No interface says
    /// that the device writes them before there is something to count: zero them first.
    ///
    /// # Errors
    /// As [`create_completion_counter`](Self::create_completion_counter), and [`Unsupported`](crate::ErrorKind::Unsupported)
    /// (`EOPNOTSUPP`) on devices other than EFA; [`InvalidInput`](crate::ErrorKind::InvalidInput): `EINVAL` for an address or offset
    /// that is not a multiple of 8, or beyond the end of the dma-buf, `EFAULT` for memory that is not mapped or cannot be written;
    /// `EBADF` for a file that is closed, and `EINVAL` for one that is no dma-buf.
    ///
    /// # Safety
    /// Until [`destroy`](CompletionCounter::destroy) has succeeded, or the context is closed, memory at
    /// an [`Address`](CounterMemory::Address), or that a dma-buf is mapped to, stays mapped; the device may write its 8 bytes at any
    /// time, so that Rust code accesses them only as an `AtomicU64`.
    pub unsafe fn create_completion_counter_in(
        &self,
        kind: CounterType,
        completions: CounterMemory<'_>,
        errors: CounterMemory<'_>,
    ) -> Result<CompletionCounter> {
        // SAFETY: the caller's.
        unsafe { CompletionCounter::create(self, kind, completions, errors) }
    }

    /// Closes the device, `ibv_close_device`.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) (`EBUSY`) while an object of it, or a copy of the context, is there.
    pub fn close(self) -> Result<(), DestroyError<Self>> {
        match Arc::try_unwrap(self.0) {
            Ok(_closed_when_dropped) => Ok(()),
            Err(inner) => {
                let users = Arc::strong_count(&inner).saturating_sub(1);
                let detail = format!("{users} objects or copies are still there");
                Err(DestroyError::new(Self(inner), Error::with("close_device", Errno::EBUSY, detail)))
            }
        }
    }

    pub(crate) fn inner(&self) -> &Arc<ContextInner> {
        &self.0
    }

    pub(crate) fn transport(&self) -> &dyn Transport {
        self.0.transport()
    }

    /// The device's name now: it may have been renamed since it was opened.
    fn current_name(&self) -> String {
        let renamed = self.device().index().and_then(Device::name_of_index);
        renamed.unwrap_or_else(|| self.device().name().to_owned())
    }

    fn explain_port(&self, errno: Errno, port: u8) -> Option<String> {
        let ports = self.0.limits()?.physical_ports;
        (errno == Errno::EINVAL && !(1..=ports).contains(&port))
            .then(|| format!("there is no port {port}: {} has ports 1 to {ports}", self.device().name()))
    }

    fn list_gids(&self, port: u8) -> String {
        let of_port = |entry: &GidEntry| entry.port == u32::from(port);
        let gids: Vec<_> = self
            .gid_table()
            .unwrap_or_default()
            .into_iter()
            .filter(of_port)
            .map(|entry| format!("{} ({})", entry.index, entry.gid))
            .collect();
        if gids.is_empty() {
            "it has none at all".to_owned()
        } else {
            format!("there are {}", gids.join(", "))
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(self.device()).finish()
    }
}
