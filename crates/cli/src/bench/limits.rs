//! What a device can.

use anyhow::{Result, ensure};
use uverbs::{Context, Mtu};

use super::options::{Connection, Verb};

/// What a device can.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) name: String,
    pub(super) is_efa: bool,
    pub(super) port: u8,
    pub(super) mtu: Mtu,
    pub(super) max_message: u32,
    pub(super) max_qp: u32,
    pub(super) max_qp_wr: u32,
    pub(super) max_cqe: u32,
    pub(super) has_atomics: bool,
    /// RDMA reads and atomics under way to a peer, and from one.
    pub(super) reads: [u8; 2],
}

impl Limits {
    pub(super) fn new(context: &Context, port: u8) -> Result<Self> {
        let (device, attributes) = (context.query_device()?, context.query_port(port)?);
        let reads = |most: u32| u8::try_from(most).unwrap_or(u8::MAX);
        Ok(Self {
            name: context.device().name().to_owned(),
            is_efa: context.provider() == "efa",
            port,
            mtu: attributes.active_mtu.unwrap_or(Mtu::Bytes1024),
            max_message: attributes.max_message_size,
            max_qp: device.max_qp,
            max_qp_wr: device.max_qp_wr,
            max_cqe: device.max_cqe,
            has_atomics: device.atomic_cap != 0,
            reads: [reads(device.max_qp_init_rd_atom), reads(device.max_qp_rd_atom)],
        })
    }

    /// The largest message, and what says so. EFA's device tells how much it can read and write by RDMA when it refuses it.
    pub(super) fn largest(&self, verb: Verb, connection: Connection, mtu: Mtu) -> (u32, String) {
        match (verb, connection) {
            (Verb::Send, Connection::Ud) if !self.is_efa => {
                (mtu.bytes(), format!("a datagram, {}", mtu.bytes()))
            }
            (Verb::Write | Verb::Read, Connection::Srd) => (u32::MAX, "any message".to_owned()),
            _ => (self.max_message, format!("the largest message of {}, {}", self.name, self.max_message)),
        }
    }

    /// Whether there is such a connection, and it carries the operation.
    pub(super) fn check(&self, verb: Verb, connection: Connection) -> Result<()> {
        let is_there = (connection == Connection::Srd) == self.is_efa || connection == Connection::Ud;
        ensure!(
            is_there,
            "EOPNOTSUPP: --connection {connection}: {} has {}",
            self.name,
            if self.is_efa { "SRD and UD" } else { "RC, UC and UD" }
        );
        let carriers = Connection::of(verb);
        let names: Vec<_> = carriers.iter().map(Connection::to_string).collect();
        ensure!(
            carriers.contains(&connection),
            "EINVAL: --connection {connection}: {verb} goes over {}",
            names.join(" or ")
        );
        ensure!(verb != Verb::Atomic || self.has_atomics, "EOPNOTSUPP: {} has no atomics", self.name);
        Ok(())
    }
}
