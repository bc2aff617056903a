//! What lies in the queues: requests and completions as the device has them, all little-endian.

use uverbs_ioctl::uapi::values::wc_status;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a send request: short, and long for more inline data.
pub(super) const SEND_SHORT: usize = 64;
pub(super) const SEND_LONG: usize = 128;
/// Inline bytes of a short request, and of a long one.
pub(super) const INLINE_SHORT: u32 = 32;
/// Local buffers of an RDMA request.
pub(super) const RDMA_BUFFERS: usize = 1;
/// Local buffers of a send.
pub(super) const SEND_BUFFERS: u32 = 2;
/// Bytes of a completion: short, and long, which tells lengths of 64 KiB and more.
pub(super) const COMPLETION_SHORT: usize = 16;
pub(super) const COMPLETION_LONG: usize = 32;
/// Bits of a key.
pub(super) const KEY_MASK: u32 = (1 << 24) - 1;

/// What a send request does: bits 3:0 of [`SendHead::control`], and bits 6:4 of [`Completion::flags`].
pub(super) mod operation {
    pub(in super::super) const SEND: u8 = 0;
    pub(in super::super) const RDMA_READ: u8 = 1;
    pub(in super::super) const RDMA_WRITE: u8 = 2;
}

/// Bits of [`SendHead::control`].
pub(super) mod control {
    pub(in super::super) const HAS_IMMEDIATE: u8 = 1 << 4;
    pub(in super::super) const INLINE: u8 = 1 << 5;
    pub(in super::super) const HEAD: u8 = 1 << 7;
}

/// Bits of [`SendHead::control2`]. Bit 0 changes with every round of the ring.
pub(super) mod control2 {
    pub(in super::super) const FIRST: u8 = 1 << 2;
    pub(in super::super) const LAST: u8 = 1 << 3;
    pub(in super::super) const WANT_COMPLETION: u8 = 1 << 4;
}

/// The first half of a send request. Buffers or inline bytes follow.
#[derive(Default, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct SendHead {
    pub(super) identifier: U16,
    pub(super) control: u8,
    pub(super) control2: u8,
    pub(super) dest_qp_num: U16,
    /// Inline bytes, or number of buffers.
    pub(super) length: U16,
    pub(super) immediate: U32,
    pub(super) address_handle: U16,
    pub(super) control3: u8,
    pub(super) reserved: u8,
    pub(super) qkey: U32,
    pub(super) reserved2: [u8; 6],
    /// Upper bits of identifiers of 64 bits, which are not used.
    pub(super) identifier_high: [u8; 6],
}

/// A buffer of a send request, here or at the peer.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Buffer {
    pub(super) length: U32,
    pub(super) key: U32,
    pub(super) address: U64,
}

/// A buffer of a receive.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ReceiveBuffer {
    pub(super) address: U64,
    pub(super) identifier: U16,
    pub(super) length: U16,
    /// The key and [`receive`](self::receive).
    pub(super) key_control: U32,
}

/// Bits of [`ReceiveBuffer::key_control`].
pub(super) mod receive {
    pub(in super::super) const FIRST: u32 = 1 << 30;
    pub(in super::super) const LAST: u32 = 1 << 31;
}

/// A completion. What is behind `qp_num` is there for receives.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(super) struct Completion {
    pub(super) identifier: U16,
    pub(super) status: u8,
    /// [`flag`], the queue in bits 2:1, the operation in bits 6:4.
    pub(super) flags: u8,
    pub(super) qp_num: U16,
    pub(super) length: U16,
    /// Handle of the sender's address, or all ones.
    pub(super) address_handle: U16,
    pub(super) source_qp: U16,
    pub(super) immediate: U32,
    /// Upper bits of the length of an RDMA write. From here on it is there in long ones only.
    pub(super) length_high: U16,
    pub(super) reserved: [u8; 14],
}

const _: () = assert!(size_of::<Completion>() == COMPLETION_LONG);
const _: () = assert!(size_of::<SendHead>() == 32);

/// Bits of [`Completion::flags`].
pub(super) mod flag {
    /// Changes with every round of the ring.
    pub(in super::super) const PHASE: u8 = 1;
    pub(in super::super) const HAS_IMMEDIATE: u8 = 1 << 3;
    /// A receive that used up no request.
    pub(in super::super) const UNSOLICITED: u8 = 1 << 7;
}

impl Completion {
    pub(super) fn operation(&self) -> u8 {
        self.flags >> 4 & 7
    }

    /// Whether it is of a send queue, not of a receive queue.
    pub(super) fn is_send(&self) -> bool {
        self.flags >> 1 & 3 == 1
    }

    /// The status as the verbs have it, the nearest one.
    pub(super) fn verbs_status(&self) -> u32 {
        match self.status {
            0 => wc_status::SUCCESS,
            // Flushed.
            1 => wc_status::WR_FLUSH_ERR,
            // Internal error, unsupported operation, bad address handle.
            2..=4 => wc_status::LOC_QP_OP_ERR,
            // Bad local key.
            5 => wc_status::LOC_PROT_ERR,
            // Message too long.
            6 => wc_status::LOC_LEN_ERR,
            // Bad remote key or address.
            7 => wc_status::REM_ACCESS_ERR,
            // Connection reset by the peer.
            8 => wc_status::REM_ABORT_ERR,
            // No such QP there, or in the error state.
            9 => wc_status::REM_INV_RD_REQ_ERR,
            // No receive posted there.
            10 => wc_status::RNR_RETRY_EXC_ERR,
            // Receive too short there, features do not match.
            11 | 18 => wc_status::REM_INV_REQ_ERR,
            // Unexpected status from the peer.
            12 => wc_status::BAD_RESP_ERR,
            // The peer no longer answers, or never did.
            13 | 15 => wc_status::RESP_TIMEOUT_ERR,
            // The peer has no address handle for us.
            14 => wc_status::REM_OP_ERR,
            _ => wc_status::GENERAL_ERR,
        }
    }
}
