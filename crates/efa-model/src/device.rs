//! The device: registers, doorbells and time.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Instant;

use zerocopy::IntoBytes;

use crate::admin::AdminQueues;
use crate::admin::abi::{RegisterRead, event_group};
use crate::config::{Config, FaultEffect, FaultPlace, Gid};
use crate::datapath::{Outstanding, Statistics};
use crate::host::{GuestMemory, Interrupts};
use crate::objects::Objects;
use crate::packet::Packet;
use crate::registers::{
    ARM, CONTROLLER_VERSION, DeviceControl, DeviceStatus, Doorbell, DoorbellPages, Register, capabilities,
};

/// Value of a register that there is none.
const INVALID: u32 = u32::MAX;

/// An EFA device. It does nothing by itself: whoever holds it passes on accesses to its registers, packets of its peers
/// and the time.
#[derive(Debug)]
pub struct Device<M, I> {
    pub(crate) config: Config,
    pub(crate) memory: M,
    pub(crate) llq: M,
    pub(crate) interrupts: I,
    pub(crate) doorbells: DoorbellPages,
    started: Instant,
    /// Time of the latest call.
    pub(crate) now: Instant,
    status: DeviceStatus,
    register_response: u64,
    pub(crate) admin: AdminQueues,
    /// Groups of events that the driver wants to know of, as a mask.
    pub(crate) event_groups: u32,
    keep_alive_at: Option<Instant>,
    pub(crate) objects: Objects,
    /// Part of the numbers of queue pairs that makes new ones differ from old ones.
    pub(crate) qp_generation: u32,
    /// Requests that peers have not answered, by number.
    pub(crate) outstanding: BTreeMap<u64, Outstanding>,
    pub(crate) next_request: u64,
    /// Peers that have answered.
    pub(crate) responsive: HashSet<Gid>,
    pub(crate) transmit: VecDeque<Packet>,
    pub(crate) loopback: VecDeque<Packet>,
    pub(crate) statistics: Statistics,
}

impl<M: GuestMemory, I: Interrupts> Device<M, I> {
    /// A device after power-on. `llq` is the memory of BAR 2, from address 0.
    pub fn new(now: Instant, config: Config, memory: M, llq: M, interrupts: I) -> Self {
        Self {
            doorbells: DoorbellPages::new(&config.limits),
            started: now,
            now,
            status: DeviceStatus::READY,
            register_response: 0,
            admin: AdminQueues::default(),
            event_groups: 0,
            keep_alive_at: None,
            objects: Objects::new(&config),
            qp_generation: 0,
            outstanding: BTreeMap::new(),
            next_request: 0,
            responsive: HashSet::new(),
            transmit: VecDeque::new(),
            loopback: VecDeque::new(),
            statistics: Statistics::default(),
            config,
            memory,
            llq,
            interrupts,
        }
    }

    /// How the device was made.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The memory that the device reaches by DMA.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The memory that the device reaches by DMA.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// The memory of BAR 2.
    pub fn llq(&self) -> &M {
        &self.llq
    }

    /// The memory of BAR 2.
    pub fn llq_mut(&mut self) -> &mut M {
        &mut self.llq
    }

    /// The interrupts.
    pub fn interrupts(&self) -> &I {
        &self.interrupts
    }

    /// The interrupts.
    pub fn interrupts_mut(&mut self) -> &mut I {
        &mut self.interrupts
    }

    /// Where the doorbells are.
    pub fn doorbells(&self) -> DoorbellPages {
        self.doorbells
    }

    /// As after power-on, but for the memory and the interrupts.
    pub fn reset(&mut self) {
        self.drop_state();
        self.status = DeviceStatus::READY;
    }

    fn drop_state(&mut self) {
        self.register_response = 0;
        self.admin = AdminQueues::default();
        self.event_groups = 0;
        self.keep_alive_at = None;
        self.objects = Objects::new(&self.config);
        self.outstanding.clear();
        self.responsive.clear();
        self.transmit.clear();
        self.loopback.clear();
    }

    /// Reads a register of BAR 0. Doorbells and registers that are only written read as zero.
    pub fn read_register(&self, offset: u64) -> u32 {
        let Some(register) = Register::at(offset) else { return 0 };
        match register {
            Register::Version => self.config.api_version.into(),
            Register::ControllerVersion => CONTROLLER_VERSION,
            Register::Capabilities => capabilities(),
            Register::DeviceStatus => self.status.bits(),
            Register::InterruptMask => self.admin.masked.into(),
            _ => 0,
        }
    }

    /// Writes a register or a doorbell of BAR 0.
    pub fn write_register(&mut self, now: Instant, offset: u64, value: u32) {
        self.now = now;
        match Register::at(offset) {
            Some(register) => self.write(register, value),
            None if self.in_reset() => log::warn!("doorbell at {offset:#x} ignored during a reset"),
            None => match self.doorbells.at(offset) {
                Some(Doorbell::Send(slot)) => self.ring_send_queue(slot, value),
                Some(Doorbell::Receive(slot)) => self.ring_receive_queue(slot, value),
                Some(Doorbell::Completion(index)) => self.ring_completion_queue(index, value),
                None => log::warn!("write of {value:#x} to {offset:#x}, where there is no register"),
            },
        }
        self.run_loopback();
    }

    fn in_reset(&self) -> bool {
        self.status.contains(DeviceStatus::RESET_IN_PROGRESS)
    }

    fn write(&mut self, register: Register, value: u32) {
        fn low(address: &mut u64, value: u32) {
            *address = *address & !0xffff_ffff | u64::from(value);
        }
        fn high(address: &mut u64, value: u32) {
            *address = *address & 0xffff_ffff | u64::from(value) << 32;
        }
        let admin = &mut self.admin;
        match register {
            Register::AdminQueueBaseLow => low(&mut admin.commands.base, value),
            Register::AdminQueueBaseHigh => high(&mut admin.commands.base, value),
            Register::AdminQueueCapabilities => admin.set_up_commands(value, self.config.api_version),
            Register::AdminCompletionBaseLow => low(&mut admin.answers.base, value),
            Register::AdminCompletionBaseHigh => high(&mut admin.answers.base, value),
            Register::AdminCompletionCapabilities => admin.answers.set_up(value),
            Register::EventNotificationBaseLow => low(&mut admin.events.base, value),
            Register::EventNotificationBaseHigh => high(&mut admin.events.base, value),
            Register::EventNotificationCapabilities => {
                admin.events.set_up(value);
                admin.events_taken = 0;
                self.keep_alive_at = self.config.keep_alive.map(|interval| self.now + interval);
            }
            Register::EventNotificationDoorbell => admin.events_taken = value,
            Register::InterruptMask => admin.masked = value & 1 == 1,
            Register::RegisterReadResponseLow => low(&mut self.register_response, value),
            Register::RegisterReadResponseHigh => high(&mut self.register_response, value),
            Register::RegisterReadRequest => self.read_to_memory(value),
            Register::DeviceControl => self.control(value),
            Register::AdminQueueDoorbell if self.in_reset() => {
                log::warn!("admin doorbell ignored during a reset");
            }
            Register::AdminQueueDoorbell => self.ring_admin_queue(value),
            Register::EventQueueDoorbell => self.arm_event_queue(value as u16, value & ARM != 0),
            Register::Version
            | Register::ControllerVersion
            | Register::Capabilities
            | Register::DeviceStatus => {
                log::warn!("write of {value:#x} to {register:?}, which is only read");
            }
        }
    }

    /// Drivers read registers by asking the device to write them to memory.
    fn read_to_memory(&mut self, request: u32) {
        let offset = (request >> 16) as u16;
        let known = Register::at(offset.into()).is_some();
        let answer = RegisterRead {
            request_id: (request as u16).into(),
            offset: if known { offset } else { u16::MAX }.into(),
            value: if known { self.read_register(offset.into()) } else { INVALID }.into(),
        };
        if let Err(error) = self.memory.publish(self.register_response, answer.as_bytes(), 0) {
            log::warn!("answer to reading register {offset:#x}: {error}");
        }
    }

    fn control(&mut self, value: u32) {
        let control = DeviceControl::from_bits_truncate(value);
        if control.contains(DeviceControl::RESET) {
            log::info!("reset for reason {}", value >> 28);
            self.drop_state();
            self.status = DeviceStatus::READY | DeviceStatus::RESET_IN_PROGRESS;
        } else if self.in_reset() {
            self.status = DeviceStatus::READY | DeviceStatus::RESET_FINISHED;
        } else if control.contains(DeviceControl::ADMIN_QUEUE_RESTART) {
            self.admin.restart();
            self.status = DeviceStatus::READY | DeviceStatus::ADMIN_QUEUE_RESTART_IN_PROGRESS;
        } else if self.status.contains(DeviceStatus::ADMIN_QUEUE_RESTART_IN_PROGRESS) {
            self.status = DeviceStatus::READY | DeviceStatus::ADMIN_QUEUE_RESTART_FINISHED;
        }
    }

    /// The fault that strikes at this place, if any.
    pub(crate) fn fault(&mut self, at: impl Fn(FaultPlace) -> bool) -> Option<FaultEffect> {
        let mut found = None;
        for fault in self.config.faults.iter_mut().filter(|fault| at(fault.place)) {
            if fault.strikes() {
                found = found.or(Some(fault.effect));
            }
        }
        found
    }

    /// Takes a packet of a peer.
    pub fn receive(&mut self, now: Instant, packet: Packet) {
        self.now = now;
        if !self.in_reset() {
            self.handle_packet(packet);
            self.run_loopback();
        }
    }

    fn run_loopback(&mut self) {
        while let Some(packet) = self.loopback.pop_front() {
            self.handle_packet(packet);
        }
    }

    /// The next packet for a peer.
    pub fn poll_transmit(&mut self) -> Option<Packet> {
        self.transmit.pop_front()
    }

    /// When [`Device::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.outstanding.values().map(|outstanding| outstanding.at).chain(self.keep_alive_at).min()
    }

    /// Does what is to be done by now.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if let (Some(at), Some(interval)) = (self.keep_alive_at, self.config.keep_alive)
            && at <= now
        {
            self.keep_alive_at = Some(now + interval);
            let since_start = now.saturating_duration_since(self.started).as_millis() as u64;
            self.notify(event_group::KEEP_ALIVE, 0, since_start);
        }
        self.handle_late_requests();
        self.run_loopback();
    }
}
