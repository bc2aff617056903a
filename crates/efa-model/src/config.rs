//! What a device can do, how much of it, and which of its operations are to fail.

use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use bitflags::bitflags;

use crate::admin::Opcode;
use crate::admin::Status as AdminStatus;
use crate::io::{OperationKind, Status};

/// Address of a device on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

bitflags! {
    /// Capabilities of a device, as its attributes carry them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// RDMA reads.
        const RDMA_READ = 1 << 0;
        /// The number of RNR retries can be set.
        const RNR_RETRY = 1 << 1;
        /// RDMA writes.
        const RDMA_WRITE = 1 << 3;
        /// RDMA writes with immediate data need not consume a receive request.
        const UNSOLICITED_WRITE_RECV = 1 << 4;
        /// Event counters.
        const EVENT_COUNTERS = 1 << 5;
        /// Identifiers of send requests may have 64 bits.
        const SQ_64_BIT_REQ_ID = 1 << 10;
    }

    /// Events of a queue pair that a counter can count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QpEvents: u32 {
        /// Send completed.
        const SEND_COMP = 1 << 0;
        /// Send failed.
        const SEND_COMP_ERR = 1 << 1;
        /// Receive completed.
        const RECV_COMP = 1 << 2;
        /// Receive failed.
        const RECV_COMP_ERR = 1 << 3;
        /// RDMA read completed.
        const READ_COMP = 1 << 4;
        /// RDMA read failed.
        const READ_COMP_ERR = 1 << 5;
        /// RDMA write completed.
        const WRITE_COMP = 1 << 6;
        /// RDMA write failed.
        const WRITE_COMP_ERR = 1 << 7;
        /// The peer's RDMA read of our memory completed.
        const REMOTE_READ_COMP = 1 << 8;
        /// The peer's RDMA write to our memory completed.
        const REMOTE_WRITE_COMP = 1 << 9;
    }
}

/// Number of events in [`QpEvents`].
pub const QP_EVENTS: usize = 10;

/// Bytes of inline data in a request of 64 bytes.
pub const INLINE_SIZE: u32 = 32;

/// Largest size of a send queue in device memory.
pub const MAX_LLQ_SIZE: u32 = 128 << 10;

/// Sizes of memory pages that regions may have: all from 4 KiB.
pub const PAGE_SIZES: u64 = !0xfff;

/// What cannot be configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

macro_rules! limits {
    ($($(#[$meta:meta])* $name:ident: $ty:ty = $default:expr, $range:expr;)*) => {
        /// How much of everything a device has.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Limits {
            $($(#[$meta])* pub $name: $ty,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Limits {
            /// Names for [`Limits::set`], with the default and the range of each.
            pub fn names() -> Vec<String> {
                vec![$(format!(
                    "{} (default {}, {} to {})",
                    stringify!($name).replace('_', "-"), $default, $range.start(), $range.end(),
                )),*]
            }

            /// Sets the limit with this name, written as on command lines (`max-qp`).
            pub fn set(&mut self, name: &str, value: u64) -> Result<(), ConfigError> {
                $(
                    if name == stringify!($name).replace('_', "-") {
                        return match <$ty>::try_from(value).ok().filter(|value| $range.contains(value)) {
                            Some(value) => {
                                self.$name = value;
                                Ok(())
                            }
                            None => Err(ConfigError(format!(
                                "limit {name} cannot be {value}: it goes from {} to {}",
                                $range.start(), $range.end(),
                            ))),
                        };
                    }
                )*
                Err(ConfigError(format!("there is no limit {name}; there are: {}", Self::names().join(", "))))
            }
        }
    };
}

limits! {
    /// Queue pairs.
    max_qp: u32 = 256, 1..=1024;
    /// Completion queues.
    max_cq: u32 = 512, 1..=1024;
    /// Event queues; each has an interrupt vector, and there is one more for the admin queue.
    max_eq: u32 = 8, 0..=64;
    /// Protection domains.
    max_pd: u32 = 1024, 1..=65535;
    /// Regions of doorbells: one an open context.
    max_uar: u32 = 256, 1..=65535;
    /// Address handles.
    max_ah: u32 = 1024, 1..=65535;
    /// Memory regions.
    max_mr: u32 = 65535, 1..=65535;
    /// Pages of a memory region.
    max_mr_pages: u32 = 1 << 20, 1..=1 << 24;
    /// Requests of a send queue.
    max_sq_depth: u32 = 2048, 16..=2048;
    /// The least number of requests of a send queue.
    min_sq_depth: u16 = 16, 0..=2048;
    /// Buffers of a receive queue.
    max_rq_depth: u32 = 8192, 1..=32768;
    /// Entries of a completion queue.
    max_cq_depth: u32 = 16384, 1..=32768;
    /// Parts that a completion queue is made of.
    sub_cqs_per_cq: u16 = 1, 1..=4;
    /// Buffers of a send request.
    max_send_sge: u16 = 2, 1..=2;
    /// Buffers of a receive request.
    max_recv_sge: u16 = 2, 1..=16;
    /// Bytes of inline data; above 32 it takes requests of 128 bytes.
    inline_size_ex: u16 = 80, 32..=80;
    /// Units of 64 bytes that may be written to a send queue between two doorbells; 0 for no limit.
    max_tx_batch: u16 = 0, 0..=65535;
    /// Bytes of a message.
    mtu: u32 = 8928, 256..=8928;
    /// Bytes of an RDMA transfer.
    max_rdma_size: u32 = 1 << 30, 4096..=1 << 30;
    /// Event counters; a completion counter of the verbs takes two.
    max_event_counters: u32 = 512, 0..=65535;
    /// Largest value of a counter, after which comes zero.
    event_counter_max_value: u64 = u64::MAX, 1..=u64::MAX;
    /// Gigabits a second that the device claims.
    link_speed: u16 = 100, 1..=3200;
}

/// All about a device that its maker chooses.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of the device on its wire.
    pub index: u8,
    /// PCI device: `0xefa0` to `0xefa4`.
    pub device_id: u16,
    /// Version of the admin interface: 0x0001, 0x0002 (checksums of completions) or 0x0003 (commands of 128 bytes).
    pub api_version: u16,
    /// What it can do.
    pub capabilities: Capabilities,
    /// What its counters can count.
    pub counter_events: QpEvents,
    /// How much of everything it has.
    pub limits: Limits,
    /// Time between keep-alive events.
    pub keep_alive: Option<Duration>,
    /// How long to wait for an answer of the peer.
    pub response_timeout: Duration,
    /// How long to wait before a message is sent again to a receiver that was not ready.
    pub rnr_delay: Duration,
    /// An RDMA request is refused if the queue pair that it is for has no address handle for the sender.
    pub need_remote_ah: bool,
    /// What fails.
    pub faults: Vec<Fault>,
}

impl Config {
    /// The device with this number on its wire, able to do everything.
    pub fn new(index: u8) -> Self {
        Self {
            index,
            device_id: 0xefa3,
            api_version: 0x0003,
            capabilities: Capabilities::all(),
            counter_events: QpEvents::all(),
            limits: Limits::default(),
            keep_alive: Some(Duration::from_secs(1)),
            response_timeout: Duration::from_millis(500),
            rnr_delay: Duration::from_millis(5),
            need_remote_ah: true,
            faults: Vec::new(),
        }
    }

    /// Address on the wire: a link-local one made of an Ethernet address.
    pub fn gid(&self) -> Gid {
        Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x00, 0x5e, 0xff, 0xfe, 0x00, 0xef, self.index])
    }

    /// Globally unique number: its bytes in memory are those of an EUI-64.
    pub fn guid(&self) -> u64 {
        u64::from_le_bytes([0x02, 0x00, 0x5e, 0xff, 0xfe, 0x00, 0xef, self.index])
    }

    /// Interrupt vectors: one for the admin queue, one an event queue.
    pub fn vectors(&self) -> u32 {
        1 + self.limits.max_eq
    }

    /// Places for queue pairs: the lower bits of their numbers.
    pub fn qp_slots(&self) -> u32 {
        self.limits.max_qp.next_power_of_two()
    }

    /// Size of BAR 2, which holds the send queues.
    pub fn llq_size(&self) -> u64 {
        u64::from(self.qp_slots()) * u64::from(MAX_LLQ_SIZE)
    }

    /// Whether the numbers fit each other.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Limits { min_sq_depth, max_sq_depth, .. } = self.limits;
        if !(0xefa0..=0xefa4).contains(&self.device_id) {
            return Err(ConfigError(format!(
                "no EFA device has the PCI number {:#x}: take 0xefa0 to 0xefa4",
                self.device_id
            )));
        }
        if u32::from(min_sq_depth) > max_sq_depth {
            return Err(ConfigError(format!(
                "limit min-sq-depth is {min_sq_depth}, more than max-sq-depth, which is {max_sq_depth}"
            )));
        }
        if self.capabilities.contains(Capabilities::UNSOLICITED_WRITE_RECV)
            && !self.capabilities.contains(Capabilities::RDMA_WRITE)
        {
            return Err(ConfigError("unsolicited-write-recv needs rdma-write: take both or none".to_owned()));
        }
        Ok(())
    }
}

/// Where a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPlace {
    /// Requests of this kind that reach the device.
    Request(OperationKind),
    /// Any request that reaches the device.
    AnyRequest,
    /// Admin commands.
    Command(Opcode),
}

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEffect {
    /// The request or the command disappears.
    Lost,
    /// The peer answers a request with this status and does nothing else.
    Request(Status),
    /// The device answers a command with this status and does nothing else.
    Command(AdminStatus),
}

/// An operation that is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which.
    pub place: FaultPlace,
    /// How.
    pub effect: FaultEffect,
    /// One out of so many: 1 is each.
    pub every: u32,
    /// How many there have been.
    pub seen: u32,
}

impl Fault {
    /// Counts one more operation and tells whether it is one to fail.
    pub fn strikes(&mut self) -> bool {
        self.seen = (self.seen + 1) % self.every;
        self.seen == 0
    }
}

impl std::str::FromStr for Fault {
    type Err = ConfigError;

    /// `PLACE:EFFECT` or `PLACE:EFFECT:EVERY`.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let error = |what: String| ConfigError(format!("fault {text}: {what}"));
        let mut parts = text.split(':');
        let (Some(place), Some(effect), every, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(error("write PLACE:EFFECT or PLACE:EFFECT:EVERY".to_owned()));
        };
        let place = match (place, OperationKind::from_name(place), Opcode::from_name(place)) {
            ("any", ..) => FaultPlace::AnyRequest,
            (_, Some(kind), _) => FaultPlace::Request(kind),
            (_, _, Some(opcode)) => FaultPlace::Command(opcode),
            _ => {
                let commands: Vec<&str> = Opcode::ALL.iter().map(|opcode| opcode.name()).collect();
                return Err(error(format!(
                    "there is no place {place}; there are: send, read, write, any, {}",
                    commands.join(", ")
                )));
            }
        };
        let effect = match place {
            _ if effect == "lost" => FaultEffect::Lost,
            FaultPlace::Command(_) => {
                FaultEffect::Command(AdminStatus::from_name(effect).ok_or_else(|| {
                    let names: Vec<&str> = AdminStatus::ALL.iter().map(|status| status.name()).collect();
                    error(format!("a command cannot end with {effect}, but with: lost, {}", names.join(", ")))
                })?)
            }
            FaultPlace::Request(_) | FaultPlace::AnyRequest => {
                FaultEffect::Request(Status::from_name(effect).ok_or_else(|| {
                    let names: Vec<&str> = Status::ALL.iter().map(|status| status.name()).collect();
                    error(format!("a request cannot end with {effect}, but with: lost, {}", names.join(", ")))
                })?)
            }
        };
        let every = match every.map(str::parse) {
            None => 1,
            Some(Ok(every @ 1..)) => every,
            Some(_) => return Err(error("EVERY is a number from 1".to_owned())),
        };
        Ok(Self { place, effect, every, seen: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read() {
        let fault: Fault = "write:bad-address:3".parse().unwrap();
        assert_eq!(fault.place, FaultPlace::Request(OperationKind::Write));
        assert_eq!(fault.effect, FaultEffect::Request(Status::RemoteBadAddress));
        assert_eq!(fault.every, 3);
        let fault: Fault = "create-cq:resource-allocation-failure".parse().unwrap();
        assert_eq!(fault.place, FaultPlace::Command(Opcode::CreateCq));
        assert_eq!(fault.effect, FaultEffect::Command(AdminStatus::ResourceAllocationFailure));
        for bad in ["", "send", "send:what", "what:lost", "send:rnr:0", "send:rnr:1:1", "create-cq:rnr"] {
            assert!(bad.parse::<Fault>().is_err(), "{bad}");
        }
    }

    #[test]
    fn faults_strike_one_in_so_many() {
        let mut fault: Fault = "any:lost:3".parse().unwrap();
        let strikes: Vec<bool> = (0..6).map(|_| fault.strikes()).collect();
        assert_eq!(strikes, [false, false, true, false, false, true]);
    }

    #[test]
    fn limits_have_names_and_ranges() {
        let mut limits = Limits::default();
        limits.set("max-qp", 4).unwrap();
        assert_eq!(limits.max_qp, 4);
        assert!(limits.set("max-qp", 0).unwrap_err().to_string().contains("1 to 1024"));
        assert!(limits.set("max-what", 1).unwrap_err().to_string().contains("max-sq-depth"));
        assert!(limits.set("mtu", u64::MAX).is_err());
    }

    #[test]
    fn configurations_are_checked() {
        assert_eq!(Config::new(0).check(), Ok(()));
        let mut config = Config::new(0);
        config.capabilities.remove(Capabilities::RDMA_WRITE);
        assert!(config.check().is_err());
        config.capabilities.remove(Capabilities::UNSOLICITED_WRITE_RECV);
        assert_eq!(config.check(), Ok(()));
        config.limits.min_sq_depth = 1000;
        config.limits.max_sq_depth = 999;
        assert!(config.check().is_err());
    }
}
