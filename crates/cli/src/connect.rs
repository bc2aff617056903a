//! Devices to open and QPs to connect, for commands that run traffic between two ends.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use uverbs::{
    AddressHandle, AddressVector, Context, Gid, GidEntry, IpFamily, ModifyQueuePair, Mtu, ProtectionDomain,
    QueuePair, QueuePairType,
};

use crate::find_device;

/// The queue key of libibverbs' examples and of perftest.
pub(crate) const QKEY: u32 = 0x1111_1111;

/// One end of a connection, as the ends tell each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Endpoint {
    pub(crate) lid: u16,
    pub(crate) qp_num: u32,
    pub(crate) psn: u32,
    #[serde(with = "gid_as_text")]
    pub(crate) gid: Gid,
}

mod gid_as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use uverbs::Gid;

    pub(super) fn serialize<S: Serializer>(gid: &Gid, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(gid)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Gid, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom(format_args!("{text} is no GID")))
    }
}

impl Endpoint {
    /// Of a QP of this process, with a random sequence number to begin with.
    pub(crate) fn new(lid: u16, gid: Gid, qp_num: u32) -> Self {
        Self { lid, qp_num, psn: RandomState::new().hash_one(0) as u32 & 0xff_ffff, gid }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { lid, qp_num, psn, gid } = self;
        write!(f, "LID {lid:#06x}, QPN {qp_num:#08x}, PSN {psn:#08x}, GID {gid}")
    }
}

/// How the QPs of an end are connected.
pub(crate) struct Route {
    /// The own port.
    pub(crate) port: u8,
    /// The own GID.
    pub(crate) gid: GidEntry,
    pub(crate) service_level: u8,
    /// Path MTU of connected QPs.
    pub(crate) mtu: Mtu,
    /// RDMA reads and atomics under way to the peer, and from it.
    pub(crate) reads: [u8; 2],
}

impl Route {
    /// Connects a QP, which is in INIT, with its counterpart. Datagrams need the address handle to send to it.
    pub(crate) fn connect(
        &self,
        qp: &mut QueuePair,
        domain: &ProtectionDomain,
        own: &Endpoint,
        peer: &Endpoint,
    ) -> Result<Option<(AddressHandle, u32)>> {
        let sgid_index = u8::try_from(self.gid.index).with_context(|| {
            format!("GID index {} is more than the kernel's interface takes, 255", self.gid.index)
        })?;
        let mut address = AddressVector::global(self.port, peer.gid, sgid_index);
        address.dlid = peer.lid;
        address.service_level = self.service_level;
        if peer.gid == Gid::default() {
            ensure!(peer.lid != 0, "the peer has no GID: on RoCE it needs one too");
            address.global_route = None;
        }
        let (qp_num, psn, [own_reads, peers_reads]) = (peer.qp_num, peer.psn, self.reads);
        let mut handle = None;
        let [receive, send] = match qp.kind() {
            QueuePairType::ReliableConnection => {
                let receive = ModifyQueuePair::ready_to_receive(address, qp_num, psn, self.mtu);
                let send = ModifyQueuePair::ready_to_send(own.psn);
                [
                    ModifyQueuePair { max_dest_rd_atomic: Some(peers_reads), ..receive },
                    ModifyQueuePair { max_rd_atomic: Some(own_reads), ..send },
                ]
            }
            QueuePairType::UnreliableConnection => [
                ModifyQueuePair::unreliable_ready_to_receive(address, qp_num, psn, self.mtu),
                ModifyQueuePair::unreliable_ready_to_send(own.psn),
            ],
            _ => {
                handle = Some((domain.create_address_handle(&address)?, qp_num));
                [
                    ModifyQueuePair::datagram_ready_to_receive(),
                    ModifyQueuePair::datagram_ready_to_send(own.psn),
                ]
            }
        };
        qp.modify(&receive)?;
        qp.modify(&send)?;
        Ok(handle)
    }
}

/// A GID of a port: the one asked for, or one that can reach a peer of that family.
pub(crate) fn own_gid(context: &Context, port: u8, asked: Option<u8>, family: IpFamily) -> Result<GidEntry> {
    if let Some(index) = asked {
        return Ok(context.query_gid(port, u32::from(index))?);
    }
    let of_family = context.routable_gid(port, Some(family));
    Ok(of_family.or_else(|_| context.routable_gid(port, None))?)
}

pub(crate) fn parse_mtu(text: &str) -> Result<Mtu, String> {
    text.parse().ok().and_then(Mtu::from_bytes).ok_or_else(|| "not 256, 512, 1024, 2048 or 4096".to_owned())
}

/// Opens the device of that name. Without a name it is the first one, or for `loopback` the first one that works, or else one inside
/// this process; then it says which.
pub(crate) fn open(name: Option<&str>, loopback: bool, json: bool) -> Result<Context> {
    match name {
        None if loopback => open_for_loopback(json),
        name => Ok(find_device(name)?.open()?),
    }
}

fn open_for_loopback(json: bool) -> Result<Context> {
    let mut refusal = None;
    for device in uverbs::Device::all()? {
        match device.open() {
            Ok(context) => {
                say(json, format_args!("  device:         {}", device.name()))?;
                return Ok(context);
            }
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    let reason = refusal.map_or_else(|| "there is no RDMA device".to_owned(), |error| error.to_string());
    let device = uverbs::soft::device("soft0")?;
    say(json, format_args!("  device:         {}, inside this process, because {reason}", device.name()))?;
    Ok(device.open()?)
}

fn say(json: bool, line: std::fmt::Arguments<'_>) -> Result<()> {
    if !json {
        writeln!(std::io::stdout().lock(), "{line}")?;
    }
    Ok(())
}

/// Prints the addresses of both ends.
pub(crate) fn announce(json: bool, own: &[Endpoint], others: &[Endpoint]) -> Result<()> {
    if !json {
        let mut out = std::io::stdout().lock();
        for own in own {
            writeln!(out, "  local address:  {own}")?;
        }
        for other in others {
            writeln!(out, "  remote address: {other}")?;
        }
        out.flush()?;
    }
    Ok(())
}
