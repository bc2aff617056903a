//! Multicast, and the header of received datagrams.

use uverbs_ioctl::uapi::user_verbs::{AttachMcast, DetachMcast};
use uverbs_ioctl::{Errno, calls};

use crate::attributes::Gid;
use crate::error::{Error, Result};
use crate::qp::{AddressVector, GlobalRoute, QueuePair, QueuePairType};

impl QueuePair {
    /// Has datagrams to a multicast group arrive at this UD QP too, `ibv_attach_mcast`. `lid` counts on InfiniBand only. It is
    /// attached once, however often this is asked for, and detached when it is dropped.
    ///
    /// ```no_run
    /// use uverbs::{Device, QueuePairInit};
    ///
    /// # fn main() -> uverbs::Result<()> {
    /// let context = Device::find("rxe0")?.open()?;
    /// let domain = context.alloc_protection_domain()?;
    /// let cq = context.create_completion_queue(16, None, 0)?;
    /// let mut qp = domain.create_queue_pair(&QueuePairInit::unreliable_datagram(&cq))?;
    /// qp.attach_multicast("::ffff:239.1.2.3".parse().unwrap(), 0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// This concerns the device. What leads the datagrams to its port, such as membership of the IP group, is up to the program.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) if the GID is not that of a group, or the QP is not UD;
    /// [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) if the device has no multicast;
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) (`ENOMEM`) if too many are attached.
    pub fn attach_multicast(&mut self, group: Gid, lid: u16) -> Result<()> {
        let request = AttachMcast { gid: group.0, qp_handle: self.handle(), mlid: lid, ..Default::default() };
        calls::invoke(self.transport(), &request).map_err(|errno| {
            Error::new("attach_mcast", errno).or_detail(|| self.explain_multicast(errno, group))
        })?;
        if !self.groups.contains(&(group, lid)) {
            self.groups.push((group, lid));
        }
        Ok(())
    }

    /// Ends that, `ibv_detach_mcast`.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) if it is not attached.
    pub fn detach_multicast(&mut self, group: Gid, lid: u16) -> Result<()> {
        let request = DetachMcast { gid: group.0, qp_handle: self.handle(), mlid: lid, ..Default::default() };
        calls::invoke(self.transport(), &request).map_err(|errno| {
            Error::new("detach_mcast", errno).or_detail(|| {
                let not_attached = errno == Errno::EINVAL && !self.groups.contains(&(group, lid));
                not_attached.then(|| format!("the QP is not attached to {group}"))
            })
        })?;
        self.groups.retain(|attached| *attached != (group, lid));
        Ok(())
    }

    #[cold]
    fn explain_multicast(&self, errno: Errno, group: Gid) -> Option<String> {
        if errno != Errno::EINVAL {
            None
        } else if self.kind() != QueuePairType::UnreliableDatagram {
            Some(format!("the QP is of type {}, not UD", self.kind()))
        } else {
            (!group.is_multicast()).then(|| format!("{group} is no multicast group"))
        }
    }
}

/// The global route header that the first 40 bytes of a received datagram's buffer hold, `struct ibv_grh`, if the completion
/// [says so](crate::Success::has_global_route): an IPv6 header, or an IPv4 header in the last 20 bytes.
///
/// ```no_run
/// use uverbs::{AddressHandle, DatagramHeader, MemoryRegion, Success};
///
/// # fn example(region: &MemoryRegion, success: Success<'_>, gid_index: u8) -> uverbs::Result<Option<AddressHandle>> {
/// // A datagram has been received at the start of the region.
/// let mut bytes = [0; DatagramHeader::LENGTH];
/// region.read(0, &mut bytes);
/// let header = DatagramHeader::parse(&bytes).filter(|_| success.has_global_route());
/// let answer_to = header.map(|header| header.reply(1, gid_index));
/// answer_to.map(|to| region.protection_domain().create_address_handle(&to)).transpose()
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramHeader {
    /// Address of the sender.
    pub source: Gid,
    /// Address that it was sent to: the port's, or a group's.
    pub destination: Gid,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
    /// Flow label; zero with IPv4.
    pub flow_label: u32,
    /// Hops that were left.
    pub hop_limit: u8,
}

impl DatagramHeader {
    /// Bytes of it.
    pub const LENGTH: usize = 40;

    /// Reads a header; `None` if it is neither.
    ///
    /// ```
    /// # use uverbs::DatagramHeader;
    /// let mut bytes = [0; DatagramHeader::LENGTH];
    /// // IPv6, hop limit 64, from ::1 to ff02::1.
    /// (bytes[0], bytes[7], bytes[23]) = (0x60, 64, 1);
    /// (bytes[24], bytes[25], bytes[39]) = (0xff, 2, 1);
    /// let header = DatagramHeader::parse(&bytes).unwrap();
    /// assert_eq!((header.source.to_string(), header.hop_limit), ("::1".to_owned(), 64));
    /// assert!(header.destination.is_multicast());
    /// ```
    pub fn parse(bytes: &[u8; Self::LENGTH]) -> Option<Self> {
        let (before, v4) = bytes.split_at(20);
        // What comes before an IPv4 header may look like anything: if it looks like IPv6, the checksum decides. Otherwise it does
        // not matter, because soft-RoCE leaves it to be made on the way, where a datagram to itself does not come by.
        if v4[0] == 0x45 && (before[0] >> 4 != 6 || checksum(v4) == 0xffff) {
            let address = |at: usize| std::net::Ipv4Addr::new(v4[at], v4[at + 1], v4[at + 2], v4[at + 3]);
            return Some(Self {
                source: address(12).to_ipv6_mapped().into(),
                destination: address(16).to_ipv6_mapped().into(),
                traffic_class: v4[1],
                flow_label: 0,
                hop_limit: v4[8],
            });
        }
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let gid = |at: usize| bytes[at..at + 16].try_into().map(Gid).ok();
        (word >> 28 == 6).then_some(Self {
            source: gid(8)?,
            destination: gid(24)?,
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            hop_limit: bytes[7],
        })
    }

    /// Where an answer goes on RoCE, `ibv_init_ah_from_wc`: back to the sender, from that entry of the GID table of that port.
    pub fn reply(&self, port: u8, sgid_index: u8) -> AddressVector {
        let route = GlobalRoute {
            dgid: self.source,
            sgid_index,
            hop_limit: 0xff,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
        };
        AddressVector { port, global_route: Some(route), ..AddressVector::default() }
    }
}

/// The sum of an IPv4 header's words: all ones if it is whole.
fn checksum(header: &[u8]) -> u32 {
    let words = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From 10.0.0.1 to 239.1.2.3, time to live 7.
    fn v4() -> [u8; 40] {
        let mut bytes = [0x66; 40];
        let header = [0x45, 3, 0, 60, 0, 0, 0, 0, 7, 17, 0, 0, 10, 0, 0, 1, 239, 1, 2, 3];
        bytes[20..].copy_from_slice(&header);
        let sum = !(checksum(&header) as u16);
        bytes[30..32].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    #[test]
    fn an_ipv4_header_is_told_from_what_is_before_it() {
        let header = DatagramHeader::parse(&v4()).unwrap();
        assert_eq!(header.source.to_string(), "::ffff:10.0.0.1");
        assert_eq!(header.destination.to_string(), "::ffff:239.1.2.3");
        assert_eq!((header.traffic_class, header.hop_limit, header.flow_label), (3, 7, 0));
        // Without a checksum, if nothing else speaks for IPv6.
        let mut bytes = v4();
        bytes[30] ^= 1;
        assert_ne!(DatagramHeader::parse(&bytes), Some(header));
        bytes[..20].fill(0);
        assert_eq!(DatagramHeader::parse(&bytes), Some(header));
        let reply = header.reply(1, 5);
        assert_eq!(reply.port, 1);
        assert_eq!(reply.global_route.unwrap().dgid, header.source);
    }

    #[test]
    fn an_ipv6_header_is_read() {
        let mut bytes = [0; 40];
        bytes[..4].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45]);
        (bytes[7], bytes[8], bytes[24]) = (9, 0xfd, 0xff);
        let header = DatagramHeader::parse(&bytes).unwrap();
        assert_eq!((header.traffic_class, header.flow_label, header.hop_limit), (0xab, 0x12345, 9));
        assert_eq!(header.source.0[0], 0xfd);
        assert!(header.destination.is_multicast() && !header.source.is_multicast());
    }

    #[test]
    fn what_is_no_header_is_none() {
        assert_eq!(DatagramHeader::parse(&[0; 40]), None);
        assert_eq!(DatagramHeader::parse(&[0xff; 40]), None);
    }
}
