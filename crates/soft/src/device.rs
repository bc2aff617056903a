//! Devices: who they are, what they can do, and where a GID leads to.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::ioctl_verbs::{
    GidEntry, PortCapFlags, QpAttachCompCntrOps, QueryPortFlags, QueryPortRespEx, gid_type,
};
use uverbs_uapi::user_verbs::{
    DeviceCapFlags, ExQueryDevice, ExQueryDeviceResp, QueryDevice, QueryDeviceResp, QueryPort, QueryPortResp,
};
use uverbs_uapi::values::{atomic_cap, link_layer, mtu, port_phys_state, port_speed, port_state, port_width};
use zerocopy::IntoBytes;

use crate::attributes::{Form, may, must};
use crate::context::{Opened, Session};
use crate::faults::Faults;
use crate::methods::Method;
use crate::multicast::{is_group, is_v4};
use crate::wire::{State, Wire};

/// Hops that a packet may take to where the kernel knows the way.
pub(crate) const HOPS: u8 = 64;

const GID_TABLE_LENGTH: u32 = 1024;
const MAX_CQE: u32 = 32767;
const PARTITION_KEYS: u16 = 1;

/// What a device is limited to. As it comes, this is what soft-RoCE of Linux 7.3 has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Requests that a queue of a QP holds.
    pub work_requests: u32,
    /// SGEs of a request.
    pub sges: u32,
    /// Bytes that a request carries inline.
    pub inline_data: u32,
    /// Completions that a CQ holds, one less than a power of two.
    pub completions: u32,
    /// Receives that an SRQ holds.
    pub shared_receives: u32,
    /// SGEs of a receive of an SRQ.
    pub shared_sges: u32,
    /// Reads and atomics that a QP may have outstanding.
    pub outstanding_reads: u8,
    /// Completion counters, of all contexts together.
    pub completion_counters: u32,
    /// Largest value of a completion counter, after which it wraps to zero.
    pub largest_count: u64,
    /// Operations that completion counters count.
    pub counted: QpAttachCompCntrOps,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            work_requests: 1 << 20,
            sges: 32,
            inline_data: 512,
            completions: MAX_CQE,
            shared_receives: 1 << 20,
            shared_sges: 27,
            outstanding_reads: 128,
            completion_counters: 1024,
            largest_count: u64::MAX,
            counted: QpAttachCompCntrOps::all(),
        }
    }
}

/// A device on its wire.
#[derive(Debug)]
pub(crate) struct Hca {
    guid: u64,
    /// Made from a link-local IPv6 address and from an IPv4 address, in this order, and from what has been added.
    gids: Vec<[u8; 16]>,
    pub(crate) limits: Limits,
    pub(crate) faults: Faults,
    /// Commands and mappings so far.
    pub(crate) calls: u64,
    /// It has been taken away.
    pub(crate) gone: bool,
    /// Nothing goes out of its port, and nothing comes in.
    pub(crate) down: bool,
}

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Device(usize),
    /// To all QPs that are attached to the group.
    Group([u8; 16]),
}

impl Hca {
    fn new(index: usize, limits: Limits) -> Self {
        let number = index as u64 + 1;
        let guid = 0x0273_7fff_fe00_0000 | number;
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        link_local[8..].copy_from_slice(&guid.to_be_bytes());
        let [.., high, low] = (number as u32).to_be_bytes();
        let address = Ipv4Addr::new(192, 168, 77_u8.wrapping_add(high), low);
        let gids = vec![link_local, address.to_ipv6_mapped().octets()];
        Self { guid, gids, limits, faults: Faults::new(0), calls: 0, gone: false, down: false }
    }

    fn entry(&self, index: usize) -> Option<GidEntry> {
        let gid = self.gids.get(index)?;
        let half = |range: std::ops::Range<usize>| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&gid[range]);
            u64::from_ne_bytes(bytes)
        };
        Some(GidEntry {
            gid: [half(0..8), half(8..16)],
            gid_index: index as u32,
            port_num: 1,
            gid_type: gid_type::ROCE_V2,
            netdev_ifindex: 0,
        })
    }

    /// Whether anything that is sent to it arrives.
    pub(crate) fn is_reached(&self) -> bool {
        !self.gone && !self.down
    }

    pub(crate) fn gid(&self, index: u8) -> Option<[u8; 16]> {
        self.gids.get(usize::from(index)).copied()
    }

    /// Says whether it is a new one, for which there is room.
    pub(crate) fn add_gid(&mut self, gid: [u8; 16]) -> bool {
        let new = !self.gids.contains(&gid) && self.gids.len() < GID_TABLE_LENGTH as usize;
        if new {
            self.gids.push(gid);
        }
        new
    }

    fn attributes(&self) -> QueryDeviceResp {
        let limits = &self.limits;
        QueryDeviceResp {
            node_guid: self.guid.into(),
            sys_image_guid: self.guid.into(),
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            vendor_id: 0xff_ffff,
            max_qp: 0xf_fff0,
            max_qp_wr: limits.work_requests,
            device_cap_flags: capabilities().bits() as u32,
            max_sge: limits.sges,
            max_sge_rd: limits.sges,
            max_cq: 1 << 20,
            max_cqe: limits.completions,
            max_mr: 0x7_ffff,
            max_pd: 1 << 20,
            max_qp_rd_atom: limits.outstanding_reads.into(),
            max_res_rd_atom: 0x3_f000,
            max_qp_init_rd_atom: limits.outstanding_reads.into(),
            atomic_cap: atomic_cap::HCA,
            max_mw: 0x7_ffff,
            max_mcast_grp: 8192,
            max_mcast_qp_attach: 56,
            max_total_mcast_qp_attach: 0x7_0000,
            max_ah: 32767,
            max_srq: 0xd_ffff,
            max_srq_wr: limits.shared_receives,
            max_srq_sge: limits.shared_sges,
            max_pkeys: 64,
            local_ca_ack_delay: 15,
            phys_port_cnt: 1,
            ..Default::default()
        }
    }

    fn port(&self) -> QueryPortRespEx {
        let (state, phys_state) = match self.down {
            true => (port_state::DOWN, port_phys_state::DISABLED),
            false => (port_state::ACTIVE, port_phys_state::LINK_UP),
        };
        QueryPortRespEx {
            legacy_resp: QueryPortResp {
                port_cap_flags: PortCapFlags::CM_SUP.bits(),
                max_msg_sz: 1 << 31,
                gid_tbl_len: GID_TABLE_LENGTH,
                pkey_tbl_len: PARTITION_KEYS,
                state: state as u8,
                max_mtu: mtu::MTU_4096 as u8,
                active_mtu: mtu::MTU_1024 as u8,
                max_vl_num: 1,
                active_width: port_width::WIDTH_1X as u8,
                active_speed: port_speed::FDR10 as u8,
                phys_state: phys_state as u8,
                link_layer: link_layer::ETHERNET as u8,
                flags: QueryPortFlags::GRH_REQUIRED.bits(),
                ..Default::default()
            },
            active_speed_ex: port_speed::FDR10,
            ..Default::default()
        }
    }
}

fn capabilities() -> DeviceCapFlags {
    DeviceCapFlags::BAD_PKEY_CNTR
        | DeviceCapFlags::BAD_QKEY_CNTR
        | DeviceCapFlags::AUTO_PATH_MIG
        | DeviceCapFlags::CHANGE_PHY_PORT
        | DeviceCapFlags::UD_AV_PORT_ENFORCE
        | DeviceCapFlags::PORT_ACTIVE_EVENT
        | DeviceCapFlags::SYS_IMAGE_GUID
        | DeviceCapFlags::RC_RNR_NAK_GEN
        | DeviceCapFlags::SRQ_RESIZE
        | DeviceCapFlags::MEM_MGT_EXTENSIONS
        | DeviceCapFlags::MEM_WINDOW
        | DeviceCapFlags::MEM_WINDOW_TYPE_2B
        | DeviceCapFlags::FLUSH_GLOBAL
        | DeviceCapFlags::FLUSH_PERSISTENT
        | DeviceCapFlags::ATOMIC_WRITE
}

pub(crate) const METHODS: &[Method] = &[
    Method {
        object: object::DEVICE,
        method: method::device::QUERY_PORT,
        attributes: &[
            must(attr::query_port::PORT_NUM, Form::Constant(u8::MAX as u64)),
            must(attr::query_port::RESP, Form::Room(size_of::<QueryPortRespEx>())),
        ],
        run: |session, attributes| {
            if attributes.number(attr::query_port::PORT_NUM) != 1 {
                return Err(Errno::EINVAL);
            }
            attributes.output_padded(attr::query_port::RESP, &session.hca().port())
        },
    },
    Method {
        object: object::DEVICE,
        method: method::device::QUERY_GID_ENTRY,
        attributes: &[
            must(attr::query_gid_entry::PORT, Form::Constant(u32::MAX as u64)),
            must(attr::query_gid_entry::GID_INDEX, Form::Constant(u32::MAX as u64)),
            must(attr::query_gid_entry::FLAGS, Form::Flags(0)),
            must(attr::query_gid_entry::RESP_ENTRY, Form::Room(size_of::<GidEntry>())),
        ],
        run: |session, attributes| {
            use attr::query_gid_entry as id;
            let index = attributes.number(id::GID_INDEX);
            if attributes.number(id::PORT) != 1 || index >= u64::from(GID_TABLE_LENGTH) {
                return Err(Errno::EINVAL);
            }
            let entry = session.hca().entry(index as usize).ok_or(Errno::ENODATA)?;
            attributes.output_padded(id::RESP_ENTRY, &entry)
        },
    },
    Method {
        object: object::DEVICE,
        method: method::device::QUERY_GID_TABLE,
        attributes: &[
            must(attr::query_gid_table::ENTRY_SIZE, Form::Constant(u64::MAX)),
            may(attr::query_gid_table::FLAGS, Form::Flags(0)),
            must(attr::query_gid_table::RESP_ENTRIES, Form::Room(0)),
            must(attr::query_gid_table::RESP_NUM_ENTRIES, Form::Out(8)),
        ],
        run: |session, attributes| {
            use attr::query_gid_table as id;
            let entries: Vec<_> = (0..).map_while(|index| session.hca().entry(index)).collect();
            let room = attributes.length(id::RESP_ENTRIES);
            let size = usize::try_from(attributes.number(id::ENTRY_SIZE)).map_err(|_| Errno::EINVAL)?;
            if size == 0 || !room.is_multiple_of(size) || room / size < entries.len() {
                return Err(Errno::EINVAL);
            }
            // Each as long as the caller takes an entry to be.
            let resized = |entry: &GidEntry| {
                let mut bytes = entry.as_bytes().to_vec();
                bytes.resize(size, 0);
                bytes
            };
            attributes
                .output(id::RESP_ENTRIES, entries.iter().flat_map(resized).collect::<Vec<_>>().as_slice())?;
            attributes.output(id::RESP_NUM_ENTRIES, &(entries.len() as u64))
        },
    },
];

impl Session<'_> {
    pub(crate) fn query_device(&mut self, _: &QueryDevice) -> Result<QueryDeviceResp> {
        Ok(self.hca().attributes())
    }

    pub(crate) fn query_device_ex(
        &mut self,
        request: &ExQueryDevice,
        room: usize,
    ) -> Result<ExQueryDeviceResp> {
        if request.comp_mask != 0 || request.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(ExQueryDeviceResp {
            base: self.hca().attributes(),
            response_length: size_of::<ExQueryDeviceResp>().min(room) as u32,
            device_cap_flags_ex: capabilities().bits(),
            ..Default::default()
        })
    }

    pub(crate) fn query_port(&mut self, request: &QueryPort) -> Result<QueryPortResp> {
        if request.port_num == 1 { Ok(self.hca().port().legacy_resp) } else { Err(Errno::EINVAL) }
    }
}

impl State {
    pub(crate) fn hca(&self, device: usize) -> &Hca {
        &self.devices[device]
    }

    /// Where a GID leads to, from one of a device's own. The kernel asks the network; here what is not on the wire is not there.
    pub(crate) fn resolve(
        &self,
        device: usize,
        global: bool,
        dgid: &[u8; 16],
        sgid_index: u8,
    ) -> Result<Place> {
        if !global {
            return Err(Errno::EINVAL);
        }
        let own = self.hca(device).gid(sgid_index).ok_or(Errno::ENODATA)?;
        if is_group(dgid) {
            return Ok(Place::Group(*dgid));
        }
        if is_v4(&own) != is_v4(dgid) {
            return Err(Errno::EINVAL);
        }
        if self.hca(device).down {
            return Err(Errno::ENETUNREACH);
        }
        let place = self.devices.iter().position(|hca| hca.is_reached() && hca.gids.contains(dgid));
        place.map(Place::Device).ok_or(Errno::ETIMEDOUT)
    }
}

/// A device that can be opened. Copies are of the same device.
#[derive(Clone)]
pub struct Device {
    name: String,
    wire: Wire,
    index: usize,
    guid: u64,
}

impl Device {
    /// A new device on a wire.
    pub fn new(wire: &Wire, name: &str) -> Self {
        Self::with_limits(wire, name, Limits::default())
    }

    /// A new device that has other limits.
    pub fn with_limits(wire: &Wire, name: &str, limits: Limits) -> Self {
        let (index, guid) = wire.with(|state| {
            let hca = Hca::new(state.devices.len(), limits);
            let guid = hca.guid;
            state.devices.push(hca);
            (state.devices.len() - 1, guid)
        });
        Self { name: name.to_owned(), wire: wire.clone(), index, guid }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its node GUID, as a number: the first byte is the most significant.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Opens it.
    ///
    /// # Errors
    /// `ENXIO` if it has been removed.
    pub fn open(&self) -> Result<Opened> {
        Opened::new(self.wire.clone(), self.index)
    }

    /// Lets things go wrong from now on; no longer with `Faults::new(0)`.
    pub fn set_faults(&self, faults: Faults) {
        self.wire.with(|state| state.devices[self.index].faults = faults);
    }

    /// How many commands and mappings there have been, of all contexts, failures included: what
    /// [`fail_call`](Faults::fail_call) counts from where it was set.
    pub fn calls(&self) -> u64 {
        self.wire.with(|state| state.devices[self.index].calls)
    }

    /// Takes it away, as if it had been unplugged: open contexts read one event of that, and everything in them gives `EIO`.
    pub fn remove(&self) {
        self.wire.with(|state| state.remove_device(self.index));
    }

    /// Takes its link down or up, as a soft-RoCE device's when its network interface goes down or up: open contexts read an event of the
    /// port. While it is down, requests for peers fail with [`LOC_QP_OP_ERR`](uverbs_uapi::values::wc_status::LOC_QP_OP_ERR), and their QP
    /// with them; connecting is `ENETUNREACH`; what peers send is lost.
    pub fn set_link(&self, up: bool) {
        self.wire.with(|state| state.set_link(self.index, up));
    }

    /// Adds an IPv4 address, as to the network interface of a soft-RoCE device: open contexts read an event of the GIDs that have changed.
    /// An address that it has changes nothing.
    pub fn add_address(&self, address: Ipv4Addr) {
        self.wire.with(|state| state.add_gid(self.index, address.to_ipv6_mapped().octets()));
    }

    /// How many objects there are on it, of all contexts, by kind: `pd`, `mr`, `mw`, `cq`, `srq`, `qp`, `ah`, `comp_cntr`, and `ctx` for the
    /// contexts, if there are any.
    pub fn resources(&self) -> BTreeMap<&'static str, u64> {
        self.wire.with(|state| state.resources(self.index))
    }

    /// The partition key with that index, `None` beyond the table. Where the kernel is asked by sysfs, this is how to ask here.
    pub fn partition_key(&self, index: u16) -> Option<u16> {
        (index < PARTITION_KEYS).then_some(0xffff)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}
