//! BAR 0: the registers, and behind them the pages of doorbells.

use bitflags::bitflags;

use crate::config::Limits;

/// Size of a page, in which the doorbells of one object lie alone: the driver gives whole pages to programs.
pub const PAGE: u64 = 4096;

/// Offset of the receive doorbell from the send doorbell of the same queue pair.
const RECEIVE_DOORBELL: u64 = 8;

/// A register, numbered by its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Register {
    /// Version of the admin interface: minor in bits 7:0, major in bits 15:8.
    Version = 0x00,
    /// Version of the controller.
    ControllerVersion = 0x04,
    /// What the registers can do; see [`capabilities`].
    Capabilities = 0x08,
    /// Address of the admin queue.
    AdminQueueBaseLow = 0x10,
    /// Upper half.
    AdminQueueBaseHigh = 0x14,
    /// Depth in bits 15:0, size of an entry in bits 31:16.
    AdminQueueCapabilities = 0x18,
    /// Address of the admin completion queue.
    AdminCompletionBaseLow = 0x20,
    /// Upper half.
    AdminCompletionBaseHigh = 0x24,
    /// Depth in bits 15:0, size of an entry in bits 23:16, interrupt vector in bits 31:24.
    AdminCompletionCapabilities = 0x28,
    /// Producer counter of the admin queue.
    AdminQueueDoorbell = 0x2c,
    /// As [`Register::AdminCompletionCapabilities`], of the event notification queue.
    EventNotificationCapabilities = 0x34,
    /// Address of the event notification queue (AENQ).
    EventNotificationBaseLow = 0x38,
    /// Upper half.
    EventNotificationBaseHigh = 0x3c,
    /// Consumer counter of the event notification queue.
    EventNotificationDoorbell = 0x40,
    /// Bit 0 masks the interrupt of the admin completion queue.
    InterruptMask = 0x4c,
    /// [`DeviceControl`], and the reason of a reset in bits 31:28.
    DeviceControl = 0x54,
    /// [`DeviceStatus`].
    DeviceStatus = 0x58,
    /// Request to write a register to memory: number in bits 15:0, offset in bits 31:16.
    RegisterReadRequest = 0x5c,
    /// Where to write it.
    RegisterReadResponseLow = 0x60,
    /// Upper half.
    RegisterReadResponseHigh = 0x64,
    /// Event queue in bits 15:0, bit 31 arms it.
    EventQueueDoorbell = 0x68,
}

impl Register {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Self::Version,
        Self::ControllerVersion,
        Self::Capabilities,
        Self::AdminQueueBaseLow,
        Self::AdminQueueBaseHigh,
        Self::AdminQueueCapabilities,
        Self::AdminCompletionBaseLow,
        Self::AdminCompletionBaseHigh,
        Self::AdminCompletionCapabilities,
        Self::AdminQueueDoorbell,
        Self::EventNotificationCapabilities,
        Self::EventNotificationBaseLow,
        Self::EventNotificationBaseHigh,
        Self::EventNotificationDoorbell,
        Self::InterruptMask,
        Self::DeviceControl,
        Self::DeviceStatus,
        Self::RegisterReadRequest,
        Self::RegisterReadResponseLow,
        Self::RegisterReadResponseHigh,
        Self::EventQueueDoorbell,
    ];

    /// Offset in BAR 0.
    pub const fn offset(self) -> u64 {
        self as u64
    }

    /// The register at an offset.
    pub fn at(offset: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|register| register.offset() == offset)
    }
}

bitflags! {
    /// Bits of [`Register::DeviceControl`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DeviceControl: u32 {
        /// Begin a reset, and end it when cleared.
        const RESET = 1 << 0;
        /// Begin a restart of the admin queues, and end it when cleared.
        const ADMIN_QUEUE_RESTART = 1 << 1;
    }

    /// Bits of [`Register::DeviceStatus`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DeviceStatus: u32 {
        /// Ready for a driver.
        const READY = 1 << 0;
        /// See [`DeviceControl::ADMIN_QUEUE_RESTART`].
        const ADMIN_QUEUE_RESTART_IN_PROGRESS = 1 << 1;
        /// See [`DeviceControl::ADMIN_QUEUE_RESTART`].
        const ADMIN_QUEUE_RESTART_FINISHED = 1 << 2;
        /// See [`DeviceControl::RESET`].
        const RESET_IN_PROGRESS = 1 << 3;
        /// See [`DeviceControl::RESET`].
        const RESET_FINISHED = 1 << 4;
        /// The device does not work any more.
        const FATAL_ERROR = 1 << 5;
    }
}

/// Version of the controller, 0.0.1: the least that the driver accepts.
pub const CONTROLLER_VERSION: u32 = 1;

/// Bits of an address that the device can reach.
pub const ADDRESS_BITS: u8 = 48;

/// Value of [`Register::Capabilities`]: queues are contiguous, a reset and an admin command take at most a second.
pub const fn capabilities() -> u32 {
    const SECOND: u32 = 10;
    1 | SECOND << 1 | (ADDRESS_BITS as u32) << 8 | SECOND << 16
}

/// Bit 31 of the doorbells of event queues and completion queues.
pub const ARM: u32 = 1 << 31;

/// A doorbell of the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Producer counter of the send queue in this slot.
    Send(u32),
    /// Producer counter of the receive queue in this slot.
    Receive(u32),
    /// Consumer counter in bits 15:0, number of the event in bits 30:29, [`ARM`]; of the completion queue with this
    /// index.
    Completion(u32),
}

/// Where the doorbells are: one page a queue pair, then one page a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct DoorbellPages {
    qps: u32,
    cqs: u32,
}

impl DoorbellPages {
    /// Of a device with these limits.
    pub fn new(limits: &Limits) -> Self {
        Self { qps: limits.max_qp, cqs: limits.max_cq }
    }

    /// Size of BAR 0, a power of two as PCI wants it.
    pub fn bar_size(self) -> u64 {
        (PAGE * (1 + u64::from(self.qps) + u64::from(self.cqs))).next_power_of_two()
    }

    /// Offset of a doorbell in BAR 0.
    pub fn offset(self, doorbell: Doorbell) -> u32 {
        let (page, offset) = match doorbell {
            Doorbell::Send(slot) => (slot, 0),
            Doorbell::Receive(slot) => (slot, RECEIVE_DOORBELL as u32),
            Doorbell::Completion(index) => (self.qps + index, 0),
        };
        (1 + page) * PAGE as u32 + offset
    }

    /// The doorbell at an offset.
    pub fn at(self, offset: u64) -> Option<Doorbell> {
        let page = u32::try_from((offset / PAGE).checked_sub(1)?).ok()?;
        match offset % PAGE {
            0 if page < self.qps => Some(Doorbell::Send(page)),
            RECEIVE_DOORBELL if page < self.qps => Some(Doorbell::Receive(page)),
            0 if page < self.qps + self.cqs => Some(Doorbell::Completion(page - self.qps)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_have_pages_of_their_own() {
        let pages = DoorbellPages::new(&Limits { max_qp: 3, max_cq: 2, ..Limits::default() });
        let all = [
            Doorbell::Send(0),
            Doorbell::Send(2),
            Doorbell::Receive(1),
            Doorbell::Completion(0),
            Doorbell::Completion(1),
        ];
        for doorbell in all {
            assert_eq!(pages.at(pages.offset(doorbell).into()), Some(doorbell));
        }
        assert_eq!(pages.bar_size(), 8 * PAGE);
        assert_eq!(pages.at(0x2c), None);
        assert_eq!(pages.at(6 * PAGE), None);
        assert_eq!(Register::at(0x2c), Some(Register::AdminQueueDoorbell));
        assert_eq!(Register::at(0x2d), None);
    }
}
