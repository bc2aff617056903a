//! Properties of devices, ports and GIDs.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use uverbs_ioctl::uapi::ioctl_verbs::{GidEntry as RawGidEntry, QueryPortRespEx, gid_type};
use uverbs_ioctl::uapi::user_verbs::{ExQueryDeviceResp, QueryDeviceResp};
use uverbs_ioctl::uapi::values::{link_layer, mtu, port_state};
use zerocopy::IntoBytes;

/// Properties and limits of a device, `struct ibv_device_attr_ex`. Limits are upper bounds: the kernel may grant less together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "named and defined as in struct ibv_device_attr")]
pub struct DeviceAttributes {
    pub firmware_version: u64,
    pub node_guid: u64,
    pub system_image_guid: u64,
    /// Bytes.
    pub max_mr_size: u64,
    /// Bit n: pages of 2^n bytes.
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hardware_version: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    /// `enum ibv_device_cap_flags`.
    pub device_cap_flags: u64,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_ee_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_ee_init_rd_atom: u32,
    /// `enum ibv_atomic_cap`: 0 none, 1 within the device, 2 with the host too.
    pub atomic_cap: u32,
    pub max_ee: u32,
    pub max_rdd: u32,
    pub max_mw: u32,
    pub max_raw_ipv6_qp: u32,
    pub max_raw_ethy_qp: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_ah: u32,
    pub max_fmr: u32,
    pub max_map_per_fmr: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_pkeys: u16,
    /// 4.096 µs · 2^n.
    pub local_ca_ack_delay: u8,
    pub physical_ports: u8,
    /// `struct ibv_odp_caps`: zeros if the device cannot page on demand.
    pub odp_general_caps: u64,
    /// What of RC, UC, UD and XRC can use on-demand paging, `enum ibv_odp_transport_cap_bits`.
    pub odp_transport_caps: [u32; 4],
    /// Valid bits of completion timestamps; zero if there are none.
    pub completion_timestamp_mask: u64,
    /// Frequency of completion timestamps in kHz.
    pub hca_core_clock: u64,
    /// `enum ibv_raw_packet_caps`.
    pub raw_packet_caps: u32,
    /// Work queues for receive side scaling.
    pub max_wq_type_rq: u32,
    /// Tables of receive side scaling, and entries of one.
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    /// Completions to gather before an event, and µs to wait for them; zeros if a CQ cannot.
    pub max_cq_moderation_count: u16,
    pub max_cq_moderation_period: u16,
    /// Bytes of device memory.
    pub max_dm_size: u64,
}

impl DeviceAttributes {
    pub(crate) fn new(base: &QueryDeviceResp, extended: Option<&ExQueryDeviceResp>) -> Self {
        let mut this = Self {
            firmware_version: base.fw_ver,
            node_guid: base.node_guid.get(),
            system_image_guid: base.sys_image_guid.get(),
            max_mr_size: base.max_mr_size,
            page_size_cap: base.page_size_cap,
            vendor_id: base.vendor_id,
            vendor_part_id: base.vendor_part_id,
            hardware_version: base.hw_ver,
            max_qp: base.max_qp,
            max_qp_wr: base.max_qp_wr,
            device_cap_flags: u64::from(base.device_cap_flags),
            max_sge: base.max_sge,
            max_sge_rd: base.max_sge_rd,
            max_cq: base.max_cq,
            max_cqe: base.max_cqe,
            max_mr: base.max_mr,
            max_pd: base.max_pd,
            max_qp_rd_atom: base.max_qp_rd_atom,
            max_ee_rd_atom: base.max_ee_rd_atom,
            max_res_rd_atom: base.max_res_rd_atom,
            max_qp_init_rd_atom: base.max_qp_init_rd_atom,
            max_ee_init_rd_atom: base.max_ee_init_rd_atom,
            atomic_cap: base.atomic_cap,
            max_ee: base.max_ee,
            max_rdd: base.max_rdd,
            max_mw: base.max_mw,
            max_raw_ipv6_qp: base.max_raw_ipv6_qp,
            max_raw_ethy_qp: base.max_raw_ethy_qp,
            max_mcast_grp: base.max_mcast_grp,
            max_mcast_qp_attach: base.max_mcast_qp_attach,
            max_total_mcast_qp_attach: base.max_total_mcast_qp_attach,
            max_ah: base.max_ah,
            max_fmr: base.max_fmr,
            max_map_per_fmr: base.max_map_per_fmr,
            max_srq: base.max_srq,
            max_srq_wr: base.max_srq_wr,
            max_srq_sge: base.max_srq_sge,
            max_pkeys: base.max_pkeys,
            local_ca_ack_delay: base.local_ca_ack_delay,
            physical_ports: base.phys_port_cnt,
            ..Self::default()
        };
        // Fields that an older kernel does not know stay zero in the response.
        if let Some(extended) = extended {
            this.device_cap_flags |= extended.device_cap_flags_ex;
            let odp = &extended.odp_caps;
            this.odp_general_caps = odp.general_caps;
            this.odp_transport_caps =
                [odp.rc_odp_caps, odp.uc_odp_caps, odp.ud_odp_caps, extended.xrc_odp_caps];
            this.completion_timestamp_mask = extended.timestamp_mask;
            this.hca_core_clock = extended.hca_core_clock;
            this.raw_packet_caps = extended.raw_packet_caps;
            this.max_wq_type_rq = extended.max_wq_type_rq;
            this.max_rwq_indirection_tables = extended.rss_caps.max_rwq_indirection_tables;
            this.max_rwq_indirection_table_size = extended.rss_caps.max_rwq_indirection_table_size;
            this.max_cq_moderation_count = extended.cq_moderation_caps.max_cq_moderation_count;
            this.max_cq_moderation_period = extended.cq_moderation_caps.max_cq_moderation_period;
            this.max_dm_size = extended.max_dm_size;
        }
        this
    }
}

/// A path MTU, `enum ibv_mtu`: the most payload bytes in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Bytes256 = mtu::MTU_256 as u8,
    /// 512 bytes.
    Bytes512 = mtu::MTU_512 as u8,
    /// 1024 bytes.
    Bytes1024 = mtu::MTU_1024 as u8,
    /// 2048 bytes.
    Bytes2048 = mtu::MTU_2048 as u8,
    /// 4096 bytes.
    Bytes4096 = mtu::MTU_4096 as u8,
}

impl Mtu {
    const ALL: [Self; 5] =
        [Self::Bytes256, Self::Bytes512, Self::Bytes1024, Self::Bytes2048, Self::Bytes4096];

    /// Bytes.
    pub fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The MTU of that many bytes, if there is one.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// From the number of `enum ibv_mtu`.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u8 == number)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// State of a port, `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// Nothing to say.
    Nop,
    /// The link is down.
    Down,
    /// The link is up, but not configured.
    Initialize,
    /// The link is configured, but not active.
    Armed,
    /// It works.
    Active,
    /// The link is down for a moment.
    ActiveDefer,
    /// One that this version does not know.
    Other(u8),
}

impl PortState {
    /// From the number of `enum ibv_port_state`.
    pub fn from_number(number: u8) -> Self {
        match u32::from(number) {
            port_state::NOP => Self::Nop,
            port_state::DOWN => Self::Down,
            port_state::INIT => Self::Initialize,
            port_state::ARMED => Self::Armed,
            port_state::ACTIVE => Self::Active,
            port_state::ACTIVE_DEFER => Self::ActiveDefer,
            _ => Self::Other(number),
        }
    }

    /// The number of `enum ibv_port_state`.
    pub fn number(self) -> u8 {
        match self {
            Self::Nop => port_state::NOP as u8,
            Self::Down => port_state::DOWN as u8,
            Self::Initialize => port_state::INIT as u8,
            Self::Armed => port_state::ARMED as u8,
            Self::Active => port_state::ACTIVE as u8,
            Self::ActiveDefer => port_state::ACTIVE_DEFER as u8,
            Self::Other(number) => number,
        }
    }
}

impl fmt::Display for PortState {
    /// As `ibv_devinfo` writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nop => "PORT_NOP",
            Self::Down => "PORT_DOWN",
            Self::Initialize => "PORT_INIT",
            Self::Armed => "PORT_ARMED",
            Self::Active => "PORT_ACTIVE",
            Self::ActiveDefer => "PORT_ACTIVE_DEFER",
            Self::Other(_) => "invalid state",
        })
    }
}

/// What lies below a port, `IBV_LINK_LAYER_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// Not said.
    Unspecified,
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE, iWARP, EFA.
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "Unspecified",
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}

/// State and properties of a port, `struct ibv_port_attr`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "named and defined as in struct ibv_port_attr")]
pub struct PortAttributes {
    pub state: PortState,
    /// The most that the port can do.
    pub max_mtu: Option<Mtu>,
    /// What it can do now, over the network that it is on: the one to use.
    pub active_mtu: Option<Mtu>,
    pub gid_table_length: u32,
    pub pkey_table_length: u16,
    /// `enum ibv_port_cap_flags`.
    pub port_cap_flags: u32,
    /// `enum ibv_port_cap_flags2`.
    pub port_cap_flags2: u16,
    /// Bytes.
    pub max_message_size: u32,
    pub bad_pkey_counter: u32,
    pub qkey_violation_counter: u32,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_number: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    /// `enum ibv_port_width`: 1, 2, 4, 8, 16 stand for 1, 4, 8, 12, 2 lanes.
    pub active_width: u8,
    /// Speed of a lane as in `ibv_query_port`. Kernels that know faster ones put them here too.
    pub active_speed: u32,
    /// As in `ibv_query_port`: 5 is up.
    pub physical_state: u8,
    pub link_layer: LinkLayer,
    /// `IBV_QPF_`.
    pub flags: u8,
}

impl PortAttributes {
    pub(crate) fn new(response: &QueryPortRespEx) -> Self {
        let legacy = &response.legacy_resp;
        Self {
            state: PortState::from_number(legacy.state),
            max_mtu: Mtu::from_number(legacy.max_mtu),
            active_mtu: Mtu::from_number(legacy.active_mtu),
            gid_table_length: legacy.gid_tbl_len,
            pkey_table_length: legacy.pkey_tbl_len,
            port_cap_flags: legacy.port_cap_flags,
            port_cap_flags2: response.port_cap_flags2,
            max_message_size: legacy.max_msg_sz,
            bad_pkey_counter: legacy.bad_pkey_cntr,
            qkey_violation_counter: legacy.qkey_viol_cntr,
            lid: legacy.lid,
            sm_lid: legacy.sm_lid,
            lmc: legacy.lmc,
            max_vl_number: legacy.max_vl_num,
            sm_sl: legacy.sm_sl,
            subnet_timeout: legacy.subnet_timeout,
            init_type_reply: legacy.init_type_reply,
            active_width: legacy.active_width,
            active_speed: match response.active_speed_ex {
                0 => u32::from(legacy.active_speed),
                speed => speed,
            },
            physical_state: legacy.phys_state,
            link_layer: match u32::from(legacy.link_layer) {
                link_layer::INFINIBAND => LinkLayer::InfiniBand,
                link_layer::ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::Unspecified,
            },
            flags: legacy.flags,
        }
    }
}

/// A global identifier, `union ibv_gid`: an address of a port. Written as an IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

/// The family of the IP address in a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    /// IPv4, mapped into IPv6.
    V4,
    /// IPv6.
    V6,
}

impl Gid {
    /// As an IPv6 address.
    pub fn to_ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    /// The IPv4 address in it, if it is made from one.
    pub fn to_ipv4(self) -> Option<Ipv4Addr> {
        self.to_ipv6().to_ipv4_mapped()
    }

    /// Of which family the address in it is.
    pub fn family(self) -> IpFamily {
        if self.to_ipv4().is_some() { IpFamily::V4 } else { IpFamily::V6 }
    }

    /// Whether it names a group, not a port.
    pub fn is_multicast(self) -> bool {
        self.to_ipv6().is_multicast() || self.to_ipv4().is_some_and(|address| address.is_multicast())
    }

    /// Whether it is link-local: it means something on one link only.
    pub fn is_link_local(self) -> bool {
        self.to_ipv6().is_unicast_link_local()
            || self.to_ipv4().is_some_and(|address| address.is_link_local())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_ipv6(), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl FromStr for Gid {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Ipv6Addr>().map(Self::from)
    }
}

/// What a GID is good for, `enum ibv_gid_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: one Ethernet segment.
    RoceV1,
    /// RoCE version 2: over UDP.
    RoceV2,
    /// One that this version does not know.
    Other(u32),
}

impl fmt::Display for GidType {
    /// As `ibv_devinfo` writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("IB"),
            Self::RoceV1 => f.write_str("RoCE v1"),
            Self::RoceV2 => f.write_str("RoCE v2"),
            Self::Other(number) => write!(f, "unknown ({number})"),
        }
    }
}

/// An entry of a GID table, `struct ibv_gid_entry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its place in the table of its port.
    pub index: u32,
    /// The port, counted from 1.
    pub port: u32,
    /// What it is good for.
    pub kind: GidType,
    /// Index of the network interface that its address is of; zero if there is none.
    pub netdev_index: u32,
}

impl GidEntry {
    pub(crate) fn new(raw: &RawGidEntry) -> Self {
        let mut gid = Gid::default();
        gid.0.copy_from_slice(raw.gid.as_bytes());
        Self {
            gid,
            index: raw.gid_index,
            port: raw.port_num,
            kind: match raw.gid_type {
                gid_type::IB => GidType::InfiniBand,
                gid_type::ROCE_V1 => GidType::RoceV1,
                gid_type::ROCE_V2 => GidType::RoceV2,
                number => GidType::Other(number),
            },
            netdev_index: raw.netdev_ifindex,
        }
    }

    /// The smaller, the better to speak to other hosts with.
    pub(crate) fn preference(&self) -> (bool, bool, u32) {
        (self.kind != GidType::RoceV2, self.gid.is_link_local(), self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(gid: &str, index: u32, kind: GidType) -> GidEntry {
        GidEntry { gid: gid.parse().unwrap(), index, port: 1, kind, netdev_index: 0 }
    }

    #[test]
    fn routable_gids_come_before_link_local_ones_and_roce_v2_before_v1() {
        let mut table = [
            entry("fe80::1", 0, GidType::RoceV1),
            entry("fe80::1", 1, GidType::RoceV2),
            entry("::ffff:10.0.0.1", 2, GidType::RoceV1),
            entry("::ffff:169.254.0.1", 3, GidType::RoceV2),
            entry("::ffff:10.0.0.1", 4, GidType::RoceV2),
            entry("fd00::1", 5, GidType::RoceV2),
        ];
        table.sort_by_key(GidEntry::preference);
        assert_eq!(table.map(|entry| entry.index), [4, 5, 1, 3, 2, 0]);
    }

    #[test]
    fn families_of_gids() {
        assert_eq!("::ffff:10.0.0.1".parse::<Gid>().unwrap().family(), IpFamily::V4);
        assert_eq!("fe80::1".parse::<Gid>().unwrap().family(), IpFamily::V6);
        assert_eq!("::ffff:10.0.0.1".parse::<Gid>().unwrap().to_string(), "::ffff:10.0.0.1");
    }

    #[test]
    fn mtus() {
        for (number, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            let mtu = Mtu::from_number(number).unwrap();
            assert_eq!((mtu.bytes(), Mtu::from_bytes(bytes)), (bytes, Some(mtu)));
        }
        assert_eq!((Mtu::from_number(0), Mtu::from_number(6), Mtu::from_bytes(1500)), (None, None, None));
    }
}
