//! The admin queues as they lie in memory: headers, commands and answers.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};

bitflags! {
    /// [`CommandHeader::flags`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CommandFlags: u8 {
        /// Changes with each round of the ring.
        const PHASE = 1 << 0;
        /// The command names a buffer.
        const CONTROL_DATA = 1 << 1;
        /// The buffer is a list of pages that hold addresses.
        const CONTROL_DATA_INDIRECT = 1 << 2;
    }

    /// [`CreateQp::flags`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CreateQpFlags: u8 {
        /// The send ring is at a virtual address.
        const SQ_VIRTUAL = 1 << 0;
        /// The receive ring is at a virtual address.
        const RQ_VIRTUAL = 1 << 1;
        /// RDMA writes with immediate data consume no receive request.
        const UNSOLICITED_WRITE_RECV = 1 << 2;
        /// Identifiers of send requests have 64 bits.
        const SQ_64_BIT_REQ_ID = 1 << 3;
    }

    /// [`ModifyQp::mask`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ModifyQpMask: u32 {
        /// [`ModifyQp::state`].
        const STATE = 1 << 0;
        /// [`ModifyQp::current_state`].
        const CURRENT_STATE = 1 << 1;
        /// [`ModifyQp::qkey`].
        const QKEY = 1 << 2;
        /// [`ModifyQp::sq_psn`].
        const SQ_PSN = 1 << 3;
        /// [`ModifyQp::sq_drained_notify`].
        const SQ_DRAINED_NOTIFY = 1 << 4;
        /// [`ModifyQp::rnr_retry`].
        const RNR_RETRY = 1 << 5;
    }

    /// [`CreateCq::capabilities_1`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CreateCqFlags1: u8 {
        /// Events go to an event queue.
        const INTERRUPT = 1 << 5;
        /// The ring is at a virtual address.
        const VIRTUAL = 1 << 6;
    }

    /// Upper bits of [`CreateCq::capabilities_2`]; the size of an entry in 32-bit words is in bits 4:0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CreateCqFlags2: u8 {
        /// Completions carry the address of unknown senders.
        const SET_SOURCE_ADDRESS = 1 << 5;
        /// Completions of send requests carry identifiers of 64 bits.
        const SQ_64_BIT_REQ_ID = 1 << 6;
    }
}

/// [`RegisterMr::flags`]: addresses are physical, there is no translation. The page size as a power of two is in bits 5:0.
pub const PHYSICAL_MODE: u8 = 1 << 7;

/// [`CreateCqAnswer::flags`]: the doorbell can be used.
pub const CQ_DOORBELL_VALID: u32 = 1;

/// [`CreateEq::events`]: completion events.
pub const COMPLETION_EVENTS: u32 = 1;

/// [`AttachCounter::kind`]: events of a queue pair.
pub const ATTACH_QP_EVENTS: u8 = 0;

/// Groups of asynchronous events.
pub mod event_group {
    /// The device is out of order.
    pub const FATAL_ERROR: u16 = 1;
    /// A warning.
    pub const WARNING: u16 = 2;
    /// A notification.
    pub const NOTIFICATION: u16 = 3;
    /// The device lives.
    pub const KEEP_ALIVE: u16 = 4;
    /// All of them, as a mask.
    pub const ALL: u32 = 1 << FATAL_ERROR | 1 << WARNING | 1 << NOTIFICATION | 1 << KEEP_ALIVE;
}

/// Offset of [`AnswerHeader::flags`], which carries the phase.
pub(crate) const ANSWER_FLAGS: usize = 3;

/// Offset of [`EventNotification::flags`], which carries the phase.
pub(crate) const NOTIFICATION_FLAGS: usize = 4;

wire_structs! {
    /// Begin of a command.
    CommandHeader: 4 {
        /// Bits 11:0.
        id: U16,
        /// [`Opcode`](super::Opcode).
        opcode: u8,
        /// [`CommandFlags`].
        flags: u8,
    }

    /// What follows [`CommandHeader`] in commands of 128 bytes.
    CommandHeaderV2: 8 {
        /// CRC16 of the whole command, with zero in its own place.
        checksum: U16,
        payload_version: u8,
        reserved: [u8; 5],
    }

    /// Begin of an answer.
    AnswerHeader: 8 {
        /// As in the command.
        id: U16,
        /// [`Status`](super::Status).
        status: u8,
        /// Phase in bit 0.
        flags: u8,
        /// CRC16 of the whole answer, with zero in its own place.
        checksum: U16,
        reserved: U16,
    }

    /// Entry of the event notification queue.
    EventNotification: 64 {
        /// From [`event_group`].
        group: U16,
        syndrome: U16,
        /// Phase in bit 0.
        flags: u8,
        reserved: [u8; 3],
        timestamp_low: U32,
        timestamp_high: U32,
        data: [U32; 12],
    }

    /// A register, written to memory.
    RegisterRead: 8 {
        request_id: U16,
        offset: U16,
        value: U32,
    }

    /// Buffer of a command, and link from one page of a list to the next.
    ControlBuffer: 12 {
        length: U32,
        address: U64,
    }

    /// Command.
    CreateQp: 60 {
        pd: U16,
        /// [`QpKind`](super::QpKind).
        kind: u8,
        /// [`CreateQpFlags`].
        flags: u8,
        sq_base: U64,
        rq_base: U64,
        send_cq: U32,
        receive_cq: U32,
        sq_lkey: U32,
        rq_lkey: U32,
        /// Bytes.
        sq_ring_size: U32,
        sq_depth: U32,
        /// Bytes.
        rq_ring_size: U32,
        rq_depth: U32,
        uar: U16,
        service_level: u8,
        reserved: u8,
        reserved_2: U32,
    }

    /// Answer.
    CreateQpAnswer: 24 {
        handle: U32,
        number: U16,
        reserved: U16,
        send_sub_cq: U16,
        receive_sub_cq: U16,
        sq_doorbell: U32,
        rq_doorbell: U32,
        llq_offset: U32,
    }

    /// Command.
    ModifyQp: 28 {
        /// [`ModifyQpMask`].
        mask: U32,
        handle: U32,
        /// [`QpState`](super::QpState).
        state: U32,
        current_state: U32,
        qkey: U32,
        sq_psn: U32,
        sq_drained_notify: u8,
        rnr_retry: u8,
        reserved: U16,
    }

    /// Command: query or destroy a queue pair.
    QpHandle: 4 {
        handle: U32,
    }

    /// Answer.
    QueryQpAnswer: 16 {
        /// [`QpState`](super::QpState).
        state: U32,
        qkey: U32,
        sq_psn: U32,
        sq_draining: u8,
        rnr_retry: u8,
        reserved: U16,
    }

    /// Command.
    CreateAh: 20 {
        destination: [u8; 16],
        pd: U16,
        reserved: U16,
    }

    /// Command.
    DestroyAh: 4 {
        ah: U16,
        pd: U16,
    }

    /// Command.
    RegisterMr: 60 {
        pd: U16,
        reserved: U16,
        /// Up to 4 addresses of pages, or a [`ControlBuffer`].
        pages: [U64; 4],
        length: U64,
        /// Page size as a power of two, [`PHYSICAL_MODE`].
        flags: u8,
        /// [`Permissions`](crate::io::Permissions).
        permissions: u8,
        reserved_2: U16,
        /// Can be computed; Linux leaves it zero.
        page_count: U32,
        iova: U64,
    }

    /// Answer.
    RegisterMrAnswer: 12 {
        lkey: U32,
        rkey: U32,
        /// Which of the interconnects are known: none.
        validity: u8,
        interconnects: [u8; 3],
    }

    /// Command.
    Lkey: 4 {
        lkey: U32,
    }

    /// Command: a memory region for fast registration.
    AllocateMr: 8 {
        pd: U16,
        reserved: U16,
        max_pages: U32,
    }

    /// Answer.
    AllocateMrAnswer: 8 {
        lkey: U32,
        rkey: U32,
    }

    /// Command.
    CreateCq: 24 {
        /// [`CreateCqFlags1`].
        capabilities_1: u8,
        /// Size of an entry, [`CreateCqFlags2`].
        capabilities_2: u8,
        /// A power of two.
        sub_cq_depth: U16,
        eq: U16,
        reserved: U16,
        base: U64,
        lkey: U32,
        sub_cqs: U16,
        uar: U16,
    }

    /// Answer.
    CreateCqAnswer: 12 {
        cq: U16,
        sub_cq_depth: U16,
        doorbell: U32,
        /// [`CQ_DOORBELL_VALID`].
        flags: U32,
    }

    /// Command or answer that names an object by 16 bits: a completion queue, protection domain, region of doorbells,
    /// event queue or address handle.
    Number: 4 {
        number: U16,
        reserved: U16,
    }

    /// Command.
    CreateEq: 20 {
        /// A power of two.
        depth: U16,
        vector: u8,
        /// Size of an entry in 32-bit words in bits 4:0.
        capabilities: u8,
        base: U64,
        /// [`COMPLETION_EVENTS`].
        events: U32,
        reserved: U32,
    }

    /// Command: get or set a feature; 44 bytes of the feature follow when setting.
    FeatureCommand: 16 {
        buffer: ControlBuffer,
        reserved: u8,
        /// [`Feature`](super::Feature).
        feature: u8,
        reserved_2: U16,
    }

    /// Answer.
    DeviceAttributes: 56 {
        /// Mask of [`Feature`](super::Feature).
        supported_features: U64,
        page_sizes: U64,
        firmware_version: U32,
        api_version: U32,
        device_version: U32,
        /// BAR that the doorbells are in.
        doorbell_bar: U16,
        physical_address_bits: u8,
        virtual_address_bits: u8,
        /// [`Capabilities`](crate::config::Capabilities).
        capabilities: U32,
        max_rdma_size: U32,
        guid: U64,
        max_link_speed: U16,
        reserved: U16,
        reserved_2: U32,
    }

    /// Answer.
    QueueAttributes1: 56 {
        max_qp: U32,
        max_sq_depth: U32,
        inline_size: U32,
        max_rq_depth: U32,
        max_cq: U32,
        max_cq_depth: U32,
        sub_cqs_per_cq: U16,
        min_sq_depth: U16,
        max_send_sge: U16,
        max_receive_sge: U16,
        max_mr: U32,
        max_mr_pages: U32,
        max_pd: U32,
        max_ah: U32,
        max_llq_size: U32,
        max_rdma_sge: U16,
        max_tx_batch: U16,
    }

    /// Answer.
    QueueAttributes2: 24 {
        inline_size_ex: U16,
        reserved: [u8; 6],
        /// [`QpEvents`](crate::config::QpEvents).
        counter_events: U32,
        max_event_counters: U32,
        event_counter_max_value: U64,
    }

    /// Answer.
    EventQueueAttributes: 12 {
        max_eq: U32,
        max_eq_depth: U32,
        /// [`COMPLETION_EVENTS`].
        events: U32,
    }

    /// Answer, and value to set: masks of [`event_group`].
    EventGroups: 8 {
        supported: U32,
        enabled: U32,
    }

    /// Answer.
    NetworkAttributes: 20 {
        address: [u8; 16],
        mtu: U32,
    }

    /// Answer: times that the driver should keep to, in milliseconds; zero leaves it to the driver.
    HardwareHints: 8 {
        register_read_timeout: U16,
        watchdog_timeout: U16,
        command_timeout: U16,
        poll_interval: U16,
    }

    /// Command.
    GetStatistics: 16 {
        buffer: ControlBuffer,
        /// [`StatisticsKind`](super::StatisticsKind).
        kind: u8,
        /// Zero is the whole device.
        scope: u8,
        scope_modifier: U16,
    }

    /// Command.
    CreateCounter: 12 {
        uar: U16,
        reserved: U16,
        /// Where to keep the value; aligned to 8 bytes.
        address: U64,
    }

    /// Answer.
    CreateCounterAnswer: 8 {
        handle: U32,
        reserved: U32,
    }

    /// Command: destroy a counter.
    CounterHandle: 4 {
        handle: U32,
    }

    /// Command: attach or detach a counter.
    AttachCounter: 16 {
        handle: U32,
        /// [`ATTACH_QP_EVENTS`].
        kind: u8,
        reserved: [u8; 3],
        qp_handle: U32,
        /// [`QpEvents`](crate::config::QpEvents).
        events: U32,
    }

    /// Command.
    ModifyCounter: 20 {
        handle: U32,
        /// 0 sets, 1 adds.
        operation: u8,
        reserved: [u8; 7],
        value: U64,
    }
}
