//! Soft devices: made, removed and listed as `rdma link` of iproute2 does, by netlink.

use uverbs_ioctl::netlink::Socket;
use uverbs_ioctl::{Errno, netlink};

use crate::attributes::PortState;
use crate::device::Device;
use crate::error::{Error, Result};

/// A port of an RDMA device and the network interface below it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// Name of the RDMA device.
    pub device: String,
    /// Port, counted from 1.
    pub port: u32,
    /// State of the port.
    pub state: PortState,
    /// Physical state, as in [`PortAttributes`](crate::PortAttributes).
    pub physical_state: u8,
    /// Name of the network interface, if there is one in this network namespace.
    pub netdev: Option<String>,
    /// Index of the network interface.
    pub netdev_index: Option<u32>,
}

/// The ports of all devices in this network namespace.
///
/// # Errors
/// [`Unsupported`](crate::ErrorKind::Unsupported) if the kernel has no RDMA.
pub fn list() -> Result<Vec<Link>> {
    let from = |link: netlink::Link| Link {
        device: link.device,
        port: link.port,
        state: PortState::from_number(link.state),
        physical_state: link.physical_state,
        netdev: link.netdev,
        netdev_index: link.netdev_index,
    };
    let links = socket("link_list")?.links().map_err(|errno| Error::new("link_list", errno))?;
    Ok(links.into_iter().map(from).collect())
}

/// Makes a soft device called `name` of `kind`, `rxe` or `siw`, over a network interface. The kernel loads the module.
///
/// # Errors
/// [`PermissionDenied`](crate::ErrorKind::PermissionDenied) without `CAP_NET_ADMIN`; `EINVAL` if the kernel has no such kind;
/// `ENODEV` if there is no such interface; `EEXIST` if it has such a device already; `ENFILE` if the name is taken.
pub fn add(name: &str, kind: &str, netdev: &str) -> Result<()> {
    const VERB: &str = "link_add";
    if name.is_empty() || name.len() >= 64 || name.contains(['%', '/', '\0']) {
        let detail = format!("{name:?} is no device name: 1 to 63 characters without % and /");
        return Err(Error::with(VERB, Errno::EINVAL, detail));
    }
    socket(VERB)?.add_link(name, kind, netdev).map_err(|errno| {
        Error::new(VERB, errno).or_detail(|| {
            Some(match errno {
                Errno::EPERM => "it takes CAP_NET_ADMIN: run as root".to_owned(),
                Errno::EINVAL => format!(
                    "the kernel has no link type {kind}: is the module rdma_{kind} or {kind} installed?"
                ),
                Errno::ENODEV => format!("there is no network interface {netdev}"),
                Errno::EEXIST => format!("{netdev} has a device of type {kind} already"),
                // What the kernel says if the name is taken.
                Errno::ENFILE => format!("there is a device {name} already"),
                _ => return None,
            })
        })
    })
}

/// Removes the soft device called `name`. Open contexts on it see it go.
///
/// # Errors
/// [`NotFound`](crate::ErrorKind::NotFound) if there is none; [`PermissionDenied`](crate::ErrorKind::PermissionDenied) without
/// `CAP_NET_ADMIN`; `EINVAL` if it is not a soft device.
pub fn delete(name: &str) -> Result<()> {
    const VERB: &str = "link_del";
    let index = Device::find(name)?
        .index()
        .ok_or_else(|| Error::with(VERB, Errno::EOPNOTSUPP, "RDMA netlink is not to be had here"))?;
    socket(VERB)?.delete_link(index).map_err(|errno| {
        Error::new(VERB, errno).or_detail(|| match errno {
            Errno::EPERM => Some("it takes CAP_NET_ADMIN: run as root".to_owned()),
            Errno::EINVAL => Some(format!("{name} is no soft device, or has just gone")),
            _ => None,
        })
    })
}

fn socket(verb: &'static str) -> Result<Socket> {
    Socket::open().map_err(|errno| Error::with(verb, errno, "RDMA netlink is not to be had here"))
}
