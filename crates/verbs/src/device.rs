//! Devices of this host.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use uverbs_ioctl::discovery::{self, DeviceInfo};
use uverbs_ioctl::{Errno, KernelDevice, netlink};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::provider::{self, Provider};

/// An RDMA device, `struct ibv_device`. It is a name and a place to open, not an open file; copies are cheap.
///
/// ```no_run
/// use uverbs::Device;
///
/// # fn main() -> uverbs::Result<()> {
/// for device in Device::list()? {
///     println!("{} {:?}", device.name(), device.provider());
/// }
/// let context = Device::find("rxe0")?.open()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    info: DeviceInfo,
    /// It is one inside the process.
    #[cfg(feature = "soft")]
    soft: Option<uverbs_soft::Device>,
}

/// What a device is in the network, `enum ibv_node_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeType {
    /// A host channel adapter; soft-RoCE is one too.
    ChannelAdapter,
    /// A switch.
    Switch,
    /// A router.
    Router,
    /// An iWARP adapter.
    Rnic,
    /// A usNIC adapter.
    Usnic,
    /// A usNIC adapter over UDP.
    UsnicUdp,
    /// A device with a transport of its own, such as EFA.
    Unspecified,
    /// One that this version does not know.
    Other(u8),
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChannelAdapter => "InfiniBand channel adapter",
            Self::Switch => "InfiniBand switch",
            Self::Router => "InfiniBand router",
            Self::Rnic => "iWARP NIC",
            Self::Usnic => "usNIC",
            Self::UsnicUdp => "usNIC UDP",
            Self::Unspecified => "unspecified",
            Self::Other(number) => return write!(f, "unknown ({number})"),
        })
    }
}

impl Device {
    /// The devices that this process can use, `ibv_get_device_list`: those with a device node here and a provider in this
    /// crate. There may be none. Each call looks anew, so devices that come and go are seen.
    ///
    /// # Errors
    /// Those of sysfs, where netlink is not to be had either. With the feature `soft`, `EINVAL` if `UVERBS_SOFT` is no number of devices.
    pub fn list() -> Result<Vec<Self>> {
        Ok(Self::all()?.into_iter().filter(|device| device.usable().is_ok()).collect())
    }

    /// The device of that name, usable or not: [`open`](Self::open) says what is wrong with it.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), with the names that there are.
    pub fn find(name: &str) -> Result<Self> {
        let all = Self::all()?;
        if let Some(device) = all.iter().find(|device| device.name() == name) {
            return Ok(device.clone());
        }
        let names: Vec<_> = all.iter().map(Self::name).collect();
        let there = if names.is_empty() {
            "there is no RDMA device".to_owned()
        } else {
            format!("there are {}", names.join(", "))
        };
        Err(Error::with("find_device", Errno::ENODEV, format!("no device {name}; {there}")))
    }

    /// Every device that the kernel shows to this process, also those that [`open`](Self::open) will refuse, and says why.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn all() -> Result<Vec<Self>> {
        let devices = discovery::devices().map_err(|errno| Error::new("get_device_list", errno))?;
        let devices = devices.into_iter().map(Self::of_kernel);
        #[cfg(feature = "soft")]
        let devices = devices.chain(crate::soft::listed()?.into_iter().map(Self::from));
        Ok(devices.collect())
    }

    fn of_kernel(info: DeviceInfo) -> Self {
        Self(Arc::new(Inner {
            info,
            #[cfg(feature = "soft")]
            soft: None,
        }))
    }

    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// The device inside the process that it is.
    #[cfg(feature = "soft")]
    pub(crate) fn soft(&self) -> Option<&uverbs_soft::Device> {
        self.0.soft.as_ref()
    }

    /// A device that is not there, for tests that open it with a transport of their own.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self::of_kernel(DeviceInfo {
            device: netlink::Device { name: "nowhere0".to_owned(), ..Default::default() },
            has_index: false,
            driver_id: None,
            abi_version: 2,
            node: "/nowhere".into(),
            stamp: Err(Errno::ENOENT),
            found_at: std::time::Instant::now(),
        })
    }

    /// What the device with that index is called now.
    pub(crate) fn name_of_index(index: u32) -> Option<String> {
        let devices = netlink::Socket::open().and_then(|mut socket| socket.devices()).ok()?;
        devices.into_iter().find(|device| device.index == index).map(|device| device.name)
    }

    /// Why it cannot be opened, as far as that can be seen without trying.
    fn usable(&self) -> Result<()> {
        const VERB: &str = "open_device";
        #[cfg(feature = "soft")]
        if self.soft().is_some() {
            return Ok(());
        }
        let name = self.name();
        if let Err(errno) = self.info().stamp {
            let node = self.info().node.display();
            return Err(Error::with(
                VERB,
                errno,
                format!(
                    "{name} is there, but not its device node {node}: pass it into this container or namespace"
                ),
            ));
        }
        self.info().driver_id.map_or(Ok(()), |id| self.provider_for(id).map(|_| ()))
    }

    /// The provider for the driver that it turns out to have, if there is one and it speaks the driver's user ABI.
    pub(crate) fn provider_for(&self, driver_id: u32) -> Result<&'static dyn Provider> {
        let (name, abi) = (self.name(), self.info().abi_version);
        let refused = |detail| Error::with("open_device", Errno::EOPNOTSUPP, detail);
        let provider =
            provider::by_driver_id(driver_id).ok_or_else(|| refused(provider::none_for(name, driver_id)))?;
        if !provider.abi_versions().contains(&abi) {
            return Err(refused(format!(
                "{name} speaks version {abi} of the user ABI of {}, which this crate does not",
                provider.name()
            )));
        }
        Ok(provider)
    }

    /// Opens the device, `ibv_open_device`.
    ///
    /// # Errors
    /// [`PermissionDenied`](crate::ErrorKind::PermissionDenied) with the node's path; [`NotFound`](crate::ErrorKind::NotFound)
    /// if the device has gone or another has taken its place; [`Unsupported`](crate::ErrorKind::Unsupported) if there is no
    /// provider for it or the kernel is older than 5.10.
    pub fn open(&self) -> Result<Context> {
        const VERB: &str = "open_device";
        #[cfg(feature = "soft")]
        if let Some(soft) = self.soft() {
            let transport = soft.open().map_err(|errno| self.explain_open(errno))?;
            return Context::new(self.clone(), Box::new(transport));
        }
        self.usable()?;
        let stamp = self.info().stamp.map_err(|errno| Error::new(VERB, errno))?;
        let transport =
            KernelDevice::open(&self.info().node, stamp, self.info().driver_id, provider::driver_ids)
                .map_err(|errno| self.explain_open(errno))?;
        if self.is_replaced(stamp.device_number) {
            return Err(self.explain_open(Errno::ENODEV));
        }
        Context::new(self.clone(), Box::new(transport))
    }

    /// Whether the node leads to another device by now. Its stamp does not tell in a container whose nodes nobody renews, but an
    /// index is not used again soon. To ask costs more than to open, so a device just listed is taken to be still there.
    fn is_replaced(&self, device_number: u64) -> bool {
        const FRESH: Duration = Duration::from_millis(100);
        self.info().found_at.elapsed() > FRESH
            && self.index().is_some_and(|index| {
                let now = netlink::Socket::open().map(|mut socket| socket.character_device(index));
                // Without netlink there is no telling.
                now.is_ok_and(|now| !now.is_ok_and(|now| now.number == device_number))
            })
    }

    #[cold]
    fn explain_open(&self, errno: Errno) -> Error {
        let (name, node) = (self.name(), self.info().node.display());
        let detail = match errno {
            Errno::EACCES => {
                let mode = rustix::fs::stat(&self.info().node).map_or_else(
                    |_| String::new(),
                    |stat| {
                        format!(
                            " (mode {:04o}, owner {}:{})",
                            stat.st_mode & 0o7777,
                            stat.st_uid,
                            stat.st_gid
                        )
                    },
                );
                format!(
                    "no permission to read and write {node}{mode}: give it to this user, as udev rules of rdma-core do (mode 0666)"
                )
            }
            Errno::EPERM => format!("{name} belongs to another network namespace (rdma system show)"),
            Errno::ENODEV => format!("{name} has gone or been replaced since it was listed"),
            Errno::ENOTTY => "this kernel has no RDMA ioctl interface".to_owned(),
            _ => format!("{name}, {node}"),
        };
        Error::with("open_device", errno, detail)
    }

    /// Name, `ibv_get_device_name`: `rxe0`. An administrator can change it at any time.
    pub fn name(&self) -> &str {
        &self.info().device.name
    }

    /// The kernel's index of the device, `ibv_get_device_index`; nothing if it was found without netlink.
    pub fn index(&self) -> Option<u32> {
        self.info().has_index.then_some(self.info().device.index)
    }

    /// Node GUID, `ibv_get_device_guid`, as a number: the first byte is the most significant.
    pub fn guid(&self) -> u64 {
        self.info().device.node_guid
    }

    /// Kind of node.
    pub fn node_type(&self) -> NodeType {
        match self.info().device.node_type {
            1 => NodeType::ChannelAdapter,
            2 => NodeType::Switch,
            3 => NodeType::Router,
            4 => NodeType::Rnic,
            5 => NodeType::Usnic,
            6 => NodeType::UsnicUdp,
            7 => NodeType::Unspecified,
            number => NodeType::Other(number),
        }
    }

    /// Firmware version, empty if the device has none.
    pub fn firmware(&self) -> &str {
        &self.info().device.firmware
    }

    /// Path of the character device; empty if it is inside the process.
    pub fn node(&self) -> &Path {
        &self.info().node
    }

    /// Whether its device node is here: not in a container that was given none, or another device's. A device inside the process needs
    /// none.
    pub fn has_node(&self) -> bool {
        #[cfg(feature = "soft")]
        if self.soft().is_some() {
            return true;
        }
        self.info().stamp.is_ok()
    }

    /// Name of the kernel's driver, `rxe`, `mlx5`; nothing if it was found without netlink, or the driver is a new one.
    pub fn driver(&self) -> Option<&'static str> {
        provider::driver_name(self.info().driver_id?)
    }

    /// Name of the provider in this crate that serves it, if that is known before it is open.
    pub fn provider(&self) -> Option<&'static str> {
        Some(provider::by_driver_id(self.info().driver_id?)?.name())
    }
}

#[cfg(feature = "soft")]
impl From<uverbs_soft::Device> for Device {
    fn from(soft: uverbs_soft::Device) -> Self {
        let device = netlink::Device {
            index: 0,
            name: soft.name().to_owned(),
            node_guid: soft.guid(),
            system_image_guid: soft.guid(),
            node_type: 1,
            firmware: String::new(),
            ports: 1,
            protocol: "roce".to_owned(),
        };
        let info = DeviceInfo {
            device,
            has_index: false,
            driver_id: Some(uverbs_ioctl::uapi::ioctl_verbs::driver_id::RXE),
            abi_version: 2,
            node: std::path::PathBuf::new(),
            stamp: Err(Errno::ENOENT),
            found_at: std::time::Instant::now(),
        };
        Self(Arc::new(Inner { info, soft: Some(soft) }))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .field("node", &self.info().node)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn device(driver_id: Option<u32>, abi_version: u32) -> Device {
        Device::of_kernel(DeviceInfo {
            // As a device of another driver would be called.
            device: netlink::Device { name: "mlx5_7".to_owned(), ..Default::default() },
            has_index: true,
            driver_id,
            abi_version,
            node: "/dev/infiniband/uverbs9".into(),
            stamp: Err(Errno::ENOENT),
            found_at: Instant::now(),
        })
    }

    #[test]
    fn vb_29_the_provider_is_that_of_the_driver_and_its_version() {
        const RXE: u32 = 14;
        // Version 1 has another layout where pointers have 32 bits.
        let spoken = if cfg!(target_pointer_width = "64") {
            [false, true, true, false]
        } else {
            [false, false, true, false]
        };
        for (abi, spoken) in (0..).zip(spoken) {
            // Whether the driver was known when the device was found, or only once it was open.
            for known in [Some(RXE), None] {
                let device = device(known, abi);
                match device.provider_for(RXE) {
                    Ok(provider) => assert!(spoken && provider.name() == "rxe", "version {abi}"),
                    Err(error) => {
                        assert!(!spoken, "version {abi}: {error}");
                        assert_eq!(error.errno(), Errno::EOPNOTSUPP as i32);
                        let text = error.to_string();
                        assert!(
                            text.contains(&format!("mlx5_7 speaks version {abi} of the user ABI of rxe")),
                            "{text}"
                        );
                    }
                }
            }
        }
        for (id, driver) in [(1, "mlx5"), (4711, "number 4711")] {
            let Err(error) = device(Some(id), 1).provider_for(id) else { panic!("a provider for {driver}") };
            let text = error.to_string();
            assert!(text.contains(&format!("no provider for {driver}, the driver of mlx5_7")), "{text}");
        }
        assert_eq!(device(Some(RXE), 2).provider(), Some("rxe"));
        assert_eq!(device(Some(1), 2).provider(), None);
    }
}
