//! The admin queue: commands in, answers out, and the queue of asynchronous events.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use crate::config::{FaultEffect, FaultPlace};
use crate::device::Device;
use crate::host::{GuestMemory, Interrupts};

pub mod abi;
mod commands;

pub(crate) use commands::RNR_FOR_EVER;

use abi::{AnswerHeader, CommandFlags, CommandHeader, CommandHeaderV2, EventNotification};

numbered! {
    /// What a command does.
    Opcode {
        CreateQp = 1 => "create-qp",
        ModifyQp = 2 => "modify-qp",
        QueryQp = 3 => "query-qp",
        DestroyQp = 4 => "destroy-qp",
        CreateAh = 5 => "create-ah",
        DestroyAh = 6 => "destroy-ah",
        RegisterMr = 7 => "reg-mr",
        DeregisterMr = 8 => "dereg-mr",
        CreateCq = 9 => "create-cq",
        DestroyCq = 10 => "destroy-cq",
        GetFeature = 11 => "get-feature",
        SetFeature = 12 => "set-feature",
        GetStatistics = 13 => "get-stats",
        AllocatePd = 14 => "alloc-pd",
        DeallocatePd = 15 => "dealloc-pd",
        AllocateUar = 16 => "alloc-uar",
        DeallocateUar = 17 => "dealloc-uar",
        CreateEq = 18 => "create-eq",
        DestroyEq = 19 => "destroy-eq",
        AllocateMr = 20 => "alloc-mr",
        /// Not specified in public.
        Service = 21 => "service",
        CreateCounter = 25 => "create-event-counter",
        DestroyCounter = 26 => "destroy-event-counter",
        AttachCounter = 27 => "attach-event-counter",
        ModifyCounter = 28 => "modify-event-counter",
        DetachCounter = 29 => "detach-event-counter",
    }

    /// How a command ended.
    Status {
        Success = 0 => "success",
        ResourceAllocationFailure = 1 => "resource-allocation-failure",
        /// The interface has no such opcode.
        BadOpcode = 2 => "bad-opcode",
        /// The interface has it, this device does not.
        UnsupportedOpcode = 3 => "unsupported-opcode",
        MalformedRequest = 4 => "malformed-request",
        IllegalParameter = 5 => "illegal-parameter",
        UnknownError = 6 => "unknown-error",
        ResourceBusy = 7 => "resource-busy",
    }

    /// What can be asked about or set.
    Feature {
        DeviceAttributes = 1 => "device-attributes",
        EventGroups = 2 => "event-groups",
        NetworkAttributes = 3 => "network-attributes",
        QueueAttributes1 = 4 => "queue-attributes-1",
        HardwareHints = 5 => "hardware-hints",
        HostInformation = 6 => "host-information",
        EventQueueAttributes = 7 => "event-queue-attributes",
        QueueAttributes2 = 9 => "queue-attributes-2",
    }

    /// Transport of a queue pair.
    QpKind {
        Ud = 1 => "ud",
        Srd = 2 => "srd",
    }

    /// State of a queue pair.
    QpState {
        Reset = 0 => "reset",
        Init = 1 => "init",
        ReadyToReceive = 2 => "rtr",
        ReadyToSend = 3 => "rts",
        SendQueueDrained = 4 => "sqd",
        SendQueueError = 5 => "sqe",
        Error = 6 => "err",
    }

    /// What [`Opcode::GetStatistics`] can be asked for.
    StatisticsKind {
        Basic = 0 => "basic",
        Messages = 1 => "messages",
        RdmaRead = 2 => "rdma-read",
        RdmaWrite = 3 => "rdma-write",
        Network = 4 => "network",
    }
}

/// Sizes of commands, by version of the interface.
const COMMAND_SIZE: u32 = 64;
const COMMAND_SIZE_V2: u32 = 128;

/// Size of an answer and of an event.
pub(crate) const ENTRY_SIZE: u32 = 64;

/// Bytes of an answer after its header.
const ANSWER_BODY: usize = ENTRY_SIZE as usize - size_of::<AnswerHeader>();

/// First versions of the interface with checksums of answers, and with commands of 128 bytes.
const CHECKSUM_VERSION: u16 = 0x0002;
const V2_VERSION: u16 = 0x0003;

/// Result of a command: what follows the header of the answer.
type Answer = Result<Vec<u8>, Status>;

/// CRC16 with the reflected polynomial 0xa001, begun with and inverted by 0xffff.
pub fn checksum(bytes: &[u8]) -> u16 {
    !bytes.iter().fold(0xffff, |sum, byte| {
        (0..8).fold(sum ^ u16::from(*byte), |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xa001 } else { sum >> 1 })
    })
}

/// A ring in guest memory that the driver has set up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ring {
    pub(crate) base: u64,
    /// Zero until set up.
    pub(crate) depth: u32,
    pub(crate) entry_size: u32,
    pub(crate) vector: u8,
    /// Entries that have passed.
    pub(crate) count: u32,
}

impl Ring {
    fn next(&self) -> u64 {
        self.base.wrapping_add(u64::from(self.count & (self.depth - 1)) * u64::from(self.entry_size))
    }

    /// Bit that is 1 in the first round and changes with each.
    fn phase(&self) -> u8 {
        u8::from((self.count / self.depth).is_multiple_of(2))
    }

    /// Takes the value of the register that tells depth, size of an entry and vector.
    pub(crate) fn set_up(&mut self, value: u32) {
        self.depth = value & 0xffff;
        self.entry_size = value >> 16 & 0xff;
        self.vector = (value >> 24) as u8;
        self.count = 0;
        if !self.depth.is_power_of_two() || self.entry_size != ENTRY_SIZE {
            log::warn!("ring of {} entries of {} bytes refused", self.depth, self.entry_size);
            self.depth = 0;
        }
    }
}

/// The rings of the admin interface.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdminQueues {
    pub(crate) commands: Ring,
    pub(crate) answers: Ring,
    pub(crate) events: Ring,
    /// Events that the driver has taken.
    pub(crate) events_taken: u32,
    /// Answers raise no interrupt.
    pub(crate) masked: bool,
}

impl AdminQueues {
    /// The register of the admin queue, whose entries may be larger than 255 bytes, has no vector.
    pub(crate) fn set_up_commands(&mut self, value: u32, api_version: u16) {
        let wanted = if api_version >= V2_VERSION { COMMAND_SIZE_V2 } else { COMMAND_SIZE };
        let (depth, entry_size) = (value & 0xffff, value >> 16);
        self.commands = Ring { base: self.commands.base, depth, entry_size, ..Ring::default() };
        if !depth.is_power_of_two() || entry_size != wanted {
            log::warn!("admin queue of {depth} commands of {entry_size} bytes refused: they have {wanted}");
            self.commands.depth = 0;
        }
    }

    /// Empties the command and answer rings.
    pub(crate) fn restart(&mut self) {
        self.commands.count = 0;
        self.answers.count = 0;
    }
}

impl<M: GuestMemory, I: Interrupts> Device<M, I> {
    /// Executes all commands up to the driver's counter, of which 16 bits count.
    pub(crate) fn ring_admin_queue(&mut self, producer: u32) {
        let Ring { depth, .. } = self.admin.commands;
        if depth == 0 || self.admin.answers.depth == 0 {
            return log::warn!("admin doorbell before the admin queues are set up");
        }
        let waiting = |device: &Self| (producer as u16).wrapping_sub(device.admin.commands.count as u16);
        if u32::from(waiting(self)) > depth {
            return log::warn!("admin doorbell {producer} ignored: more commands than the queue holds");
        }
        let mut answered = false;
        while waiting(self) != 0 {
            answered |= self.execute_next_command();
        }
        if answered && !self.admin.masked {
            self.interrupts.raise(self.admin.answers.vector);
        }
    }

    fn execute_next_command(&mut self) -> bool {
        let ring = self.admin.commands;
        self.admin.commands.count = self.admin.commands.count.wrapping_add(1);
        let mut entry = vec![0; ring.entry_size as usize];
        if let Err(error) = self.memory.read(ring.next(), &mut entry) {
            log::warn!("admin queue: {error}");
            return false;
        }
        let Ok((header, mut payload)) = CommandHeader::read_from_prefix(&entry) else { return false };
        let mut answer = Err(Status::MalformedRequest);
        let opcode = Opcode::from_number(header.opcode);
        let name = opcode.map_or("an unknown command", Opcode::name);
        let flags = CommandFlags::from_bits_truncate(header.flags);
        let mut sound = flags.contains(CommandFlags::PHASE) == (ring.phase() == 1);
        if ring.entry_size == COMMAND_SIZE_V2
            && let Ok((v2, rest)) = CommandHeaderV2::read_from_prefix(payload)
        {
            payload = rest;
            let place = size_of::<CommandHeader>()..size_of::<CommandHeader>() + size_of::<U16>();
            let mut zeroed = entry.clone();
            zeroed[place].fill(0);
            sound &= v2.checksum.get() == checksum(&zeroed);
        }
        if sound {
            let fault = opcode.and_then(|opcode| self.fault(|place| place == FaultPlace::Command(opcode)));
            answer = match (opcode, fault) {
                (_, Some(FaultEffect::Lost)) => {
                    log::info!("{name}: lost by a fault");
                    return false;
                }
                (_, Some(FaultEffect::Command(Status::Success))) => Ok(Vec::new()),
                (_, Some(FaultEffect::Command(status))) => Err(status),
                (Some(opcode), _) => self.execute(opcode, flags, payload),
                (None, _) => Err(Status::BadOpcode),
            };
        }
        match &answer {
            Ok(_) => log::debug!("{name}: done"),
            Err(status) => log::info!("{name} ({}): {status}", header.opcode),
        }
        self.answer(header.id, answer)
    }

    fn answer(&mut self, id: U16, answer: Answer) -> bool {
        let ring = self.admin.answers;
        let (status, body) = match answer {
            Ok(body) => (Status::Success, body),
            Err(status) => (status, Vec::new()),
        };
        let mut header = AnswerHeader {
            id: (id.get() & 0xfff).into(),
            status: status as u8,
            flags: ring.phase(),
            ..AnswerHeader::default()
        };
        let entry = |header: AnswerHeader| {
            let mut entry = header.as_bytes().to_vec();
            entry.extend(body.iter().take(ANSWER_BODY));
            entry.resize(ENTRY_SIZE as usize, 0);
            entry
        };
        if self.config.api_version >= CHECKSUM_VERSION {
            header.checksum = checksum(&entry(header)).into();
        }
        self.admin.answers.count = ring.count.wrapping_add(1);
        match self.memory.publish(ring.next(), &entry(header), abi::ANSWER_FLAGS) {
            Ok(()) => true,
            Err(error) => {
                log::warn!("admin completion queue: {error}");
                false
            }
        }
    }

    /// Tells the driver of an event, if it wants such events and has room.
    pub(crate) fn notify(&mut self, group: u16, syndrome: u16, since_start: u64) {
        let ring = self.admin.events;
        if ring.depth == 0 || self.event_groups & 1 << group == 0 {
            return;
        }
        if ring.count.wrapping_sub(self.admin.events_taken) >= ring.depth {
            return log::warn!("event of group {group} dropped: the driver takes none");
        }
        let event = EventNotification {
            group: group.into(),
            syndrome: syndrome.into(),
            flags: ring.phase(),
            timestamp_low: (since_start as u32).into(),
            timestamp_high: ((since_start >> 32) as u32).into(),
            ..EventNotification::default()
        };
        self.admin.events.count = ring.count.wrapping_add(1);
        match self.memory.publish(ring.next(), event.as_bytes(), abi::NOTIFICATION_FLAGS) {
            Ok(()) => self.interrupts.raise(ring.vector),
            Err(error) => log::warn!("event notification queue: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_inverted_crc16() {
        // CRC-16/USB of the digits, the usual check value.
        assert_eq!(checksum(b"123456789"), 0xb4c8);
    }

    #[test]
    fn rings_change_phase_each_round() {
        let mut ring = Ring { base: 0x1000, ..Ring::default() };
        ring.set_up(2 | ENTRY_SIZE << 16 | 3 << 24);
        let rounds: Vec<(u64, u8)> = (0..5)
            .map(|count| {
                ring.count = count;
                (ring.next(), ring.phase())
            })
            .collect();
        assert_eq!(rounds, [(0x1000, 1), (0x1040, 1), (0x1000, 0), (0x1040, 0), (0x1000, 1)]);
        ring.set_up(3 | ENTRY_SIZE << 16);
        assert_eq!(ring.depth, 0);
    }
}
