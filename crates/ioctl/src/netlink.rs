//! RDMA netlink: what the kernel says of its devices, and soft devices added and removed.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{RDMA, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use uverbs_uapi::netlink::{client, nldev_attr as attr, nldev_cmd, type_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Errno, Result, errno};

/// `struct nlmsghdr` of `linux/netlink.h`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct MessageHeader {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
}

const HEADER: usize = size_of::<MessageHeader>();
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Flags in the upper bits of an attribute's type: nested, network byte order.
const TYPE_MASK: u16 = 0x3fff;

/// A device as the kernel's RDMA core describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The kernel's index of the device. It is not used again soon after the device has gone.
    pub index: u32,
    /// Name, `rxe0`. It can change.
    pub name: String,
    /// Number of ports.
    pub ports: u32,
    /// Firmware version, empty if the driver has none.
    pub firmware: String,
    /// GUID of the node, most significant byte first when printed.
    pub node_guid: u64,
    /// GUID of the system image.
    pub system_image_guid: u64,
    /// `enum ib_node_type` of `rdma_netlink.h`.
    pub node_type: u8,
    /// Protocol as iproute2 prints it: `ib`, `roce`, `iw`, `usnic` or empty.
    pub protocol: String,
}

/// The character device of a [`Device`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CharacterDevice {
    /// Name below `/dev/infiniband`.
    pub name: String,
    /// Version of the driver's user ABI.
    pub abi_version: u32,
    /// Device number as `st_rdev` has it.
    pub number: u64,
    /// The driver, see [`driver_id`](uverbs_uapi::ioctl_verbs::driver_id). Some old drivers do not say.
    pub driver_id: Option<u32>,
}

/// A port of a device with what lies below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Name of the RDMA device.
    pub device: String,
    /// Index of the RDMA device.
    pub device_index: u32,
    /// Port number.
    pub port: u32,
    /// `enum ib_port_state`.
    pub state: u8,
    /// Physical state as in `ibv_query_port`.
    pub physical_state: u8,
    /// Name of the network interface, if there is one in this network namespace.
    pub netdev: Option<String>,
    /// Index of the network interface.
    pub netdev_index: Option<u32>,
}

/// A socket to the kernel's RDMA core.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// Opens a socket.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` if the kernel has no RDMA; `EPERM`, `EACCES` or `EAFNOSUPPORT` in a sandbox that refuses netlink.
    pub fn open() -> Result<Self> {
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(RDMA),
        )
        .map_err(errno)?;
        Ok(Self { fd, sequence: 0 })
    }

    /// All devices visible in this network namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn devices(&mut self) -> Result<Vec<Device>> {
        self.dump(nldev_cmd::GET, |attributes| {
            let mut device = Device::default();
            for (kind, value) in attributes {
                match kind {
                    attr::DEV_INDEX => device.index = number(value) as u32,
                    attr::DEV_NAME => device.name = text(value),
                    attr::PORT_INDEX => device.ports = number(value) as u32,
                    attr::FW_VERSION => device.firmware = text(value),
                    attr::NODE_GUID => device.node_guid = number(value),
                    attr::SYS_IMAGE_GUID => device.system_image_guid = number(value),
                    attr::DEV_NODE_TYPE => device.node_type = number(value) as u8,
                    attr::DEV_PROTOCOL => device.protocol = text(value),
                    _ => {}
                }
            }
            device
        })
    }

    /// The uverbs character device of a device.
    ///
    /// # Errors
    /// `EINVAL` or `ENODEV` if the device is gone or has none.
    pub fn character_device(&mut self, index: u32) -> Result<CharacterDevice> {
        let mut request = Request::new(nldev_cmd::GET_CHARDEV, 0);
        request.push(attr::DEV_INDEX, index.as_bytes());
        request.push(attr::CHARDEV_TYPE, b"uverbs\0");
        let mut found = None;
        self.exchange(request, |attributes| {
            let mut device = CharacterDevice::default();
            for (kind, value) in attributes {
                match kind {
                    attr::CHARDEV_NAME => device.name = text(value),
                    attr::CHARDEV_ABI => device.abi_version = number(value) as u32,
                    attr::CHARDEV => device.number = decode_device_number(number(value)),
                    attr::UVERBS_DRIVER_ID => device.driver_id = Some(number(value) as u32),
                    _ => {}
                }
            }
            found = Some(device);
        })?;
        found.ok_or(Errno::ENODEV)
    }

    /// All ports of all devices, as `rdma link show`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        let mut links = Vec::new();
        for device in self.devices()? {
            let mut request = Request::new(nldev_cmd::PORT_GET, NLM_F_DUMP);
            request.push(attr::DEV_INDEX, device.index.as_bytes());
            self.exchange(request, |attributes| {
                let mut link = Link::default();
                for (kind, value) in attributes {
                    match kind {
                        attr::DEV_INDEX => link.device_index = number(value) as u32,
                        attr::DEV_NAME => link.device = text(value),
                        attr::PORT_INDEX => link.port = number(value) as u32,
                        attr::PORT_STATE => link.state = number(value) as u8,
                        attr::PORT_PHYS_STATE => link.physical_state = number(value) as u8,
                        attr::NDEV_INDEX => link.netdev_index = Some(number(value) as u32),
                        attr::NDEV_NAME => link.netdev = Some(text(value)),
                        _ => {}
                    }
                }
                links.push(link);
            })?;
        }
        Ok(links)
    }

    /// How many objects of each kind a device has, of all processes: `rdma resource show`.
    ///
    /// # Errors
    /// `EINVAL` or `ENODEV` if the device is gone.
    pub fn resources(&mut self, index: u32) -> Result<Vec<(String, u64)>> {
        let mut request = Request::new(nldev_cmd::RES_GET, 0);
        request.push(attr::DEV_INDEX, index.as_bytes());
        let mut resources = Vec::new();
        self.exchange(request, |attributes| {
            let table = attributes.into_iter().filter(|(kind, _)| *kind == attr::RES_SUMMARY);
            for (_, entry) in table.flat_map(|(_, table)| Attributes(table)) {
                let mut resource = (String::new(), 0);
                for (kind, value) in Attributes(entry) {
                    match kind {
                        attr::RES_SUMMARY_ENTRY_NAME => resource.0 = text(value),
                        attr::RES_SUMMARY_ENTRY_CURR => resource.1 = number(value),
                        _ => {}
                    }
                }
                resources.push(resource);
            }
        })?;
        Ok(resources)
    }

    /// Makes a soft device of `kind` (`rxe`, `siw`) over a network interface: `rdma link add`. The kernel loads the module.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`; `EINVAL` if the kernel has no such kind or the name is not valid; `ENODEV` if there is no
    /// such interface; `EEXIST` if it has one already; `ENFILE` if the name is taken.
    pub fn add_link(&mut self, name: &str, kind: &str, netdev: &str) -> Result<()> {
        let mut request = Request::new(nldev_cmd::NEWLINK, NLM_F_ACK);
        request.push_text(attr::DEV_NAME, name);
        request.push_text(attr::LINK_TYPE, kind);
        request.push_text(attr::NDEV_NAME, netdev);
        self.exchange(request, |_| {})
    }

    /// Removes a soft device: `rdma link delete`.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`; `EINVAL` if the device is gone or is no soft device.
    pub fn delete_link(&mut self, index: u32) -> Result<()> {
        let mut request = Request::new(nldev_cmd::DELLINK, NLM_F_ACK);
        request.push(attr::DEV_INDEX, index.as_bytes());
        self.exchange(request, |_| {})
    }

    fn dump<T>(&mut self, command: u32, parse: impl Fn(Attributes<'_>) -> T) -> Result<Vec<T>> {
        loop {
            let mut found = Vec::new();
            match self.exchange(Request::new(command, NLM_F_DUMP), |attributes| found.push(parse(attributes)))
            {
                // The list changed while it was being read.
                Err(Errno::EAGAIN) => {}
                result => return result.map(|()| found),
            }
        }
    }

    /// Sends a request and hands the attributes of each answer to `each`, until the kernel says that it is done.
    fn exchange(&mut self, mut request: Request, mut each: impl FnMut(Attributes<'_>)) -> Result<()> {
        self.sequence += 1;
        let (bytes, last_is_answer) = request.finish(self.sequence);
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.fd, bytes, SendFlags::empty(), &kernel).map_err(errno)?;

        // The kernel makes no message longer than this. On the stack, because it is in use already.
        let mut buffer = [MaybeUninit::uninit(); 8 << 10];
        let mut interrupted = false;
        loop {
            let size = loop {
                match rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::TRUNC) {
                    Err(rustix::io::Errno::INTR) => {}
                    result => break result.map_err(errno)?,
                }
            };
            let ((answer, _), size) = size;
            let mut rest: &[u8] = if size == answer.len() { answer } else { return Err(Errno::EMSGSIZE) };
            while let Ok((header, _)) = MessageHeader::read_from_prefix(rest) {
                let length = header.length as usize;
                let body = rest.get(HEADER..length).ok_or(Errno::EBADMSG)?;
                rest = rest.get(align(length)..).unwrap_or_default();
                if header.sequence != self.sequence {
                    continue;
                }
                interrupted |= header.flags & NLM_F_DUMP_INTR != 0;
                match header.kind {
                    NLMSG_DONE if interrupted => return Err(Errno::EAGAIN),
                    // The end of a dump carries how it went, as an acknowledgement does.
                    NLMSG_DONE | NLMSG_ERROR => {
                        let (code, _) = i32::read_from_prefix(body).map_err(|_| Errno::EBADMSG)?;
                        return if code >= 0 { Ok(()) } else { Err(Errno::from_raw(code.wrapping_neg())) };
                    }
                    _ => {
                        each(Attributes(body));
                        if last_is_answer {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }
}

/// A request under construction.
struct Request(Vec<u8>);

impl Request {
    fn new(command: u32, flags: u16) -> Self {
        let header = MessageHeader {
            length: 0,
            kind: type_of(client::NLDEV, command) as u16,
            flags: NLM_F_REQUEST | flags,
            sequence: 0,
            port: 0,
        };
        Self(header.as_bytes().to_vec())
    }

    fn push(&mut self, kind: u16, value: &[u8]) {
        self.0.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(align(self.0.len()), 0);
    }

    fn push_text(&mut self, kind: u16, value: &str) {
        self.push(kind, &[value.as_bytes(), b"\0"].concat());
    }

    /// The bytes to send, and whether the kernel's first message is its whole answer.
    fn finish(&mut self, sequence: u32) -> (&[u8], bool) {
        let length = self.0.len() as u32;
        let mut single = false;
        // Copied out and back: the buffer has no alignment.
        if let Ok((header, _)) = MessageHeader::read_from_prefix(&self.0) {
            single = header.flags & (NLM_F_ACK | NLM_F_DUMP) == 0;
            self.0[..HEADER].copy_from_slice(MessageHeader { length, sequence, ..header }.as_bytes());
        }
        (&self.0, single)
    }
}

/// The attributes in a message or in a nested attribute. Malformed ones end it.
#[derive(Clone, Copy)]
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        // Read, not referred to: the buffer has no alignment.
        let ([length, kind], _) = <[u16; 2]>::read_from_prefix(self.0).ok()?;
        let value = self.0.get(4..usize::from(length))?;
        self.0 = self.0.get(align(usize::from(length))..).unwrap_or_default();
        Some((kind & TYPE_MASK, value))
    }
}

/// Messages and attributes start at multiples of four bytes.
fn align(length: usize) -> usize {
    (length + 3) & !3
}

/// An unsigned number of any width.
fn number(value: &[u8]) -> u64 {
    match *value {
        [byte] => u64::from(byte),
        [a, b] => u64::from(u16::from_ne_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
        _ => value.try_into().map_or(0, u64::from_ne_bytes),
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned()
}

/// From the kernel's encoding of device numbers to that of `st_rdev`.
fn decode_device_number(number: u64) -> u64 {
    let major = (number & 0xf_ff00) >> 8;
    let minor = number & 0xff | (number >> 12) & 0xf_ff00;
    rustix::fs::makedev(major as u32, minor as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_to_four_bytes() {
        let mut request = Request::new(nldev_cmd::NEWLINK, NLM_F_ACK);
        request.push_text(attr::DEV_NAME, "rxe0");
        request.push(attr::DEV_INDEX, 7_u32.as_bytes());
        let (bytes, single) = request.finish(9);
        assert!(!single);
        assert_eq!(u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize, bytes.len());
        assert_eq!(bytes.len() % 4, 0);
        let seen: Vec<_> = Attributes(&bytes[HEADER..]).collect();
        assert_eq!(seen, [(attr::DEV_NAME, &b"rxe0\0"[..]), (attr::DEV_INDEX, 7_u32.as_bytes())]);
    }

    #[test]
    fn malformed_attributes_end_the_list() {
        for bytes in [&[][..], &[4], &[0; 4], &[3, 0, 1, 0], &[255, 255, 1, 0, 0, 0, 0, 0]] {
            assert!(Attributes(bytes).all(|(_, value)| value.is_empty()), "{bytes:?}");
        }
    }

    #[test]
    fn numbers_of_every_width() {
        assert_eq!(number(&[7]), 7);
        assert_eq!(number(0x1234_u16.as_bytes()), 0x1234);
        assert_eq!(number(0x1234_5678_u32.as_bytes()), 0x1234_5678);
        assert_eq!(number(u64::MAX.as_bytes()), u64::MAX);
        assert_eq!(number(&[]), 0);
        assert_eq!(number(&[1, 2, 3]), 0);
    }

    #[test]
    fn device_numbers_are_decoded() {
        assert_eq!(decode_device_number(0xe7c0), rustix::fs::makedev(0xe7, 0xc0));
        assert_eq!(decode_device_number(0x0010_e7c0), rustix::fs::makedev(0xe7, 0x1c0));
    }
}
