//! Soft devices of a test's own, for what would disturb others.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::netlink::{RDMA, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use uverbs::{Device, link, soft};
use uverbs_ioctl::netlink::Socket;
use uverbs_ioctl::uapi::netlink::{client, nldev_attr, nldev_cmd, type_of};

use crate::common::{PORT, device_is_soft, wait_until};

/// A soft-RoCE device over a network interface of its own, or one inside the process. There is one at a time, so that device nodes come and
/// go in order.
pub(crate) struct SoftDevice {
    name: String,
    /// It is inside the process, where it has no interface.
    inside: Option<RefCell<soft::Device>>,
    netdev: String,
    _turn: File,
}

impl SoftDevice {
    /// One with an IPv4 address.
    pub(crate) fn new() -> Self {
        if device_is_soft() {
            let (name, netdev) = ("inside".to_owned(), String::new());
            let inside = Some(RefCell::new(soft::Device::new(&soft::Wire::new(), &name)));
            return Self { name, inside, netdev, _turn: turn() };
        }
        let this = Self::without_address();
        ip(&["address", "add", "192.168.78.1/24", "dev", &this.netdev]);
        let context = this.device().open().unwrap();
        let has_ipv4 = || context.gid_table().unwrap().iter().any(|entry| entry.gid.to_ipv4().is_some());
        wait_until("GID of the IPv4 address", has_ipv4);
        this
    }

    /// One whose only GID is the link-local one.
    pub(crate) fn without_address() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let turn = turn();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let netdev = format!("t{}n{number}", std::process::id());
        ip(&["link", "add", &netdev, "type", "dummy"]);
        let this = Self { name: format!("soft_{netdev}"), inside: None, netdev, _turn: turn };
        ip(&["link", "set", &this.netdev, "up"]);
        this.create();
        let context = this.device().open().unwrap();
        wait_until("link-local GID", || !context.gid_table().unwrap().is_empty());
        this
    }

    /// Makes the device, once more after `delete`.
    pub(crate) fn create(&self) {
        if let Some(inside) = &self.inside {
            inside.replace(soft::Device::new(&soft::Wire::new(), &self.name));
            return;
        }
        link::add(&self.name, "rxe", &self.netdev).unwrap();
        let has_node = || Device::list().unwrap().iter().any(|device| device.name() == self.name);
        wait_until("device node", has_node);
    }

    pub(crate) fn delete(&self) {
        if let Some(inside) = &self.inside {
            return inside.borrow().remove();
        }
        link::delete(&self.name).unwrap();
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn netdev(&self) -> &str {
        &self.netdev
    }

    pub(crate) fn device(&self) -> Device {
        if let Some(inside) = &self.inside {
            return inside.borrow().clone().into();
        }
        Device::find(&self.name).unwrap()
    }

    /// Objects on it, of all processes, by kind.
    pub(crate) fn resources(&self) -> BTreeMap<String, u64> {
        if let Some(inside) = &self.inside {
            let found = inside.borrow().resources();
            return found.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect();
        }
        let index = self.device().index().unwrap();
        Socket::open().unwrap().resources(index).unwrap().into_iter().collect()
    }

    /// Gives its interface another address, or what stands for it.
    pub(crate) fn add_address(&self, address: Ipv4Addr) {
        match &self.inside {
            Some(inside) => inside.borrow().add_address(address),
            None => ip(&["address", "add", &format!("{address}/24"), "dev", &self.netdev]),
        }
    }

    /// Takes its interface down or up, or what stands for it.
    pub(crate) fn set_link(&self, up: bool) {
        match &self.inside {
            Some(inside) => inside.borrow().set_link(up),
            None => ip(&["link", "set", &self.netdev, if up { "up" } else { "down" }]),
        }
    }

    /// Gives the device another name.
    pub(crate) fn rename(&mut self, name: &str) {
        rename(self.device().index().unwrap(), name);
        name.clone_into(&mut self.name);
    }
}

impl Drop for SoftDevice {
    fn drop(&mut self) {
        if self.inside.is_none() {
            // The interface takes the device with it.
            ip(&["link", "del", &self.netdev]);
        }
    }
}

/// Held by whoever has a device of its own.
fn turn() -> File {
    let turn = File::create(std::env::temp_dir().join("uverbs-tests-soft-device")).unwrap();
    turn.lock().unwrap();
    turn
}

pub(crate) fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().unwrap();
    assert!(status.success(), "ip {}: {status}", arguments.join(" "));
}

/// What `rdma dev set NAME name NEW` does. The library has no use for it.
fn rename(index: u32, name: &str) {
    let attribute = |kind: u16, value: &[u8]| {
        let mut bytes = [(4 + value.len()) as u16, kind].map(u16::to_ne_bytes).concat();
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let body = [
        attribute(nldev_attr::DEV_INDEX, &index.to_ne_bytes()),
        attribute(nldev_attr::DEV_NAME, &[name.as_bytes(), b"\0"].concat()),
    ]
    .concat();
    // struct nlmsghdr: length, type, flags (a request that wants an acknowledgement), sequence number, port.
    let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
    message.extend([type_of(client::NLDEV, nldev_cmd::SET) as u16, 5].map(u16::to_ne_bytes).concat());
    message.extend([1_u32, 0].map(u32::to_ne_bytes).concat());
    message.extend(body);

    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(RDMA))
            .unwrap();
    rustix::net::sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).unwrap();
    let mut answer = [0; 4096];
    let (_, length) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty()).unwrap();
    let code = answer[16..20].try_into().map(i32::from_ne_bytes).unwrap();
    assert!(length >= 20 && code == 0, "cannot rename the device to {name}: error {code}");
}

/// State of the port of a soft device.
pub(crate) fn port_state(device: &str) -> uverbs::PortState {
    let links = link::list().unwrap();
    links.iter().find(|link| link.device == device && link.port == u32::from(PORT)).unwrap().state
}
