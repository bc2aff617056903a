//! The data path as it lies in memory: work requests, completions and events.

use bitflags::bitflags;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32, U64};

numbered! {
    /// What a send request does.
    OperationKind {
        Send = 0 => "send",
        Read = 1 => "read",
        Write = 2 => "write",
    }

    /// How a work request ended.
    Status {
        Ok = 0 => "ok",
        Flushed = 1 => "flushed",
        LocalQpInternalError = 2 => "qp-internal-error",
        LocalUnsupportedOp = 3 => "unsupported-op",
        LocalInvalidAh = 4 => "invalid-ah",
        LocalInvalidLkey = 5 => "invalid-lkey",
        LocalBadLength = 6 => "local-bad-length",
        RemoteBadAddress = 7 => "bad-address",
        RemoteAbort = 8 => "abort",
        RemoteBadDestQpn = 9 => "bad-dest-qpn",
        RemoteRnr = 10 => "rnr",
        RemoteBadLength = 11 => "bad-length",
        RemoteBadStatus = 12 => "bad-status",
        /// The peer answered before, but not now.
        LocalUnresponsiveRemote = 13 => "unresponsive-remote",
        /// The peer has no address handle for us.
        RemoteUnknownPeer = 14 => "unknown-peer",
        /// The peer never answered.
        LocalUnreachableRemote = 15 => "unreachable-remote",
        RemoteFeatureMismatch = 18 => "feature-mismatch",
    }

    /// Queue that a completion is of.
    QueueKind {
        Send = 1 => "send",
        Receive = 2 => "receive",
    }
}

/// Fast registration of a memory region, in the field for the operation.
pub const FAST_REGISTER: u8 = 3;
/// Fast invalidation of a memory region, in the field for the operation.
pub const FAST_INVALIDATE: u8 = 4;

/// Mask of keys.
pub const KEY_MASK: u32 = 0xff_ffff;

/// Number of an address handle that there is none.
pub const NO_AH: u16 = 0xffff;

bitflags! {
    /// Upper bits of [`SendMeta::control_1`]; the operation is in bits 3:0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SendControl1: u8 {
        /// There is immediate data.
        const HAS_IMMEDIATE = 1 << 4;
        /// The data follows in the request.
        const INLINE = 1 << 5;
        /// Extended: not defined, zero.
        const META_EXTENSION = 1 << 6;
        /// Must be set.
        const META = 1 << 7;
    }

    /// [`SendMeta::control_2`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SendControl2: u8 {
        /// Changes with each round of the ring.
        const PHASE = 1 << 0;
        /// First descriptor: must be set.
        const FIRST = 1 << 2;
        /// Last descriptor: must be set.
        const LAST = 1 << 3;
        /// Wants a completion.
        const COMPLETION_REQUEST = 1 << 4;
    }

    /// [`ReceiveDescriptor::key_control`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReceiveControl: u32 {
        /// First descriptor of a request.
        const FIRST = 1 << 30;
        /// Last descriptor of a request.
        const LAST = 1 << 31;
    }

    /// Bits of [`CompletionCommon::flags`]; the queue is in bits 2:1, the operation in bits 6:4.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CompletionFlags: u8 {
        /// Changes with each round of the ring.
        const PHASE = 1 << 0;
        /// There is immediate data.
        const HAS_IMMEDIATE = 1 << 3;
        /// No receive request was consumed.
        const UNSOLICITED = 1 << 7;
    }

    /// What may be done with a memory region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Permissions: u8 {
        /// Receives and reads may write to it.
        const LOCAL_WRITE = 1 << 0;
        /// RDMA writes may write to it.
        const REMOTE_WRITE = 1 << 1;
        /// RDMA reads may read it.
        const REMOTE_READ = 1 << 2;
    }
}

wire_structs! {
    /// Begin of a send request.
    SendMeta: 32 {
        /// Lower 16 bits of the identifier.
        request_id: U16,
        /// [`SendControl1`] and the operation.
        control_1: u8,
        /// [`SendControl2`].
        control_2: u8,
        destination_qp: U16,
        /// Bytes of inline data, or number of buffers.
        length: U16,
        immediate: U32,
        ah: U16,
        control_3: u8,
        reserved: u8,
        qkey: U32,
        reserved_2: [u8; 6],
        /// Upper bits of the identifier, if it has 64.
        request_id_ex: [U16; 3],
    }

    /// Buffer of a send request.
    SendBuffer: 16 {
        length: U32,
        lkey: U32,
        address: U64,
    }

    /// Memory of the peer.
    RemoteMemory: 16 {
        length: U32,
        rkey: U32,
        address: U64,
    }

    /// What follows [`SendMeta`] in a fast registration.
    FastRegister: 32 {
        /// The new key.
        lkey: U32,
        /// [`Permissions`].
        permissions: u8,
        /// Page size as a power of two in bits 4:0, kind of the page list in bits 6:5.
        flags: u8,
        reserved: [u8; 2],
        iova: U64,
        length: U64,
        /// The page, or the address of the list of pages.
        pages: U64,
    }

    /// Buffer of a receive request.
    ReceiveDescriptor: 16 {
        address: U64,
        request_id: U16,
        length: U16,
        /// Local key in bits 23:0, [`ReceiveControl`].
        key_control: U32,
    }

    /// Begin of a completion.
    CompletionCommon: 6 {
        request_id: U16,
        /// [`Status`].
        status: u8,
        /// [`CompletionFlags`], [`QueueKind`] and [`OperationKind`].
        flags: u8,
        qp: U16,
    }

    /// Completion of a send request.
    SendCompletion: 16 {
        common: CompletionCommon,
        /// Upper bits of the identifier, if it has 64.
        request_id_ex: [U16; 3],
        reserved: [u8; 4],
    }

    /// Completion of a receive request.
    ReceiveCompletion: 32 {
        common: CompletionCommon,
        /// Lower 16 bits.
        length: U16,
        /// Our address handle for the sender, or [`NO_AH`].
        ah: U16,
        source_qp: U16,
        immediate: U32,
        /// Upper 16 bits of the length of an RDMA write, or address of a sender that has no address handle.
        extension: [u8; 16],
    }

    /// Entry of an event queue.
    Event: 16 {
        /// Phase in bit 0; the kind in bits 8:1 is zero, a completion.
        common: U32,
        reserved: U32,
        cq: U16,
        reserved_2: U16,
        reserved_3: U32,
    }
}

/// Offset of [`CompletionCommon::flags`], which carries the phase.
pub(crate) const COMPLETION_FLAGS: usize = 3;

/// A send request taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SendRequest {
    pub(crate) id: u64,
    pub(crate) destination_qp: u16,
    pub(crate) ah: u16,
    pub(crate) qkey: u32,
    pub(crate) signalled: bool,
    pub(crate) work: Work,
}

/// What a send request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Send { data: Data, immediate: Option<u32> },
    Read { remote: RemoteMemory, local: Vec<SendBuffer> },
    Write { remote: RemoteMemory, data: Data, immediate: Option<u32> },
    FastRegister(FastRegister),
    FastInvalidate { lkey: u32 },
}

/// Where the data of a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Inline(Vec<u8>),
    Buffers(Vec<SendBuffer>),
}

/// Identifier, operation and wish for a completion: what is known even of a request that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHead {
    pub(crate) id: u64,
    /// `None` if there is no such operation.
    pub(crate) kind: Option<OperationKind>,
    pub(crate) signalled: bool,
}

impl RequestHead {
    pub(crate) fn parse(request: &[u8]) -> Self {
        let Ok((meta, _)) = SendMeta::read_from_prefix(request) else {
            return Self { id: 0, kind: None, signalled: true };
        };
        let words = [meta.request_id, meta.request_id_ex[0], meta.request_id_ex[1], meta.request_id_ex[2]];
        Self {
            id: words.iter().rev().fold(0, |id, word| id << 16 | u64::from(word.get())),
            kind: OperationKind::from_number(meta.control_1 & 0xf),
            signalled: SendControl2::from_bits_retain(meta.control_2)
                .contains(SendControl2::COMPLETION_REQUEST),
        }
    }
}

impl SendRequest {
    /// Reads a request of 64 or 128 bytes.
    pub(crate) fn parse(request: &[u8], max_inline: usize, max_buffers: usize) -> Result<Self, Status> {
        let (meta, body) = SendMeta::read_from_prefix(request).map_err(|_| Status::LocalQpInternalError)?;
        let control = SendControl1::from_bits_truncate(meta.control_1);
        let order = SendControl2::from_bits_retain(meta.control_2);
        if !control.contains(SendControl1::META)
            || control.contains(SendControl1::META_EXTENSION)
            || !order.contains(SendControl2::FIRST | SendControl2::LAST)
        {
            return Err(Status::LocalQpInternalError);
        }
        let inline = control.contains(SendControl1::INLINE);
        let immediate = control.contains(SendControl1::HAS_IMMEDIATE).then(|| meta.immediate.get());
        let length = usize::from(meta.length.get());
        let buffers = |bytes: &[u8], max: usize| -> Result<Vec<SendBuffer>, Status> {
            if length > max {
                return Err(Status::LocalBadLength);
            }
            let (buffers, _) = <[SendBuffer]>::ref_from_prefix_with_elems(bytes, length)
                .map_err(|_| Status::LocalBadLength)?;
            Ok(buffers.to_vec())
        };
        let data = |bytes: &[u8], max: usize| match bytes.get(..length) {
            Some(data) if inline && length <= max_inline => Ok(Data::Inline(data.to_vec())),
            _ if inline => Err(Status::LocalBadLength),
            _ => buffers(bytes, max).map(Data::Buffers),
        };
        let remote = || RemoteMemory::read_from_prefix(body).map_err(|_| Status::LocalQpInternalError);
        let work = match meta.control_1 & 0xf {
            0 => Work::Send { data: data(body, max_buffers)?, immediate },
            1 => {
                let (remote, rest) = remote()?;
                Work::Read { remote, local: buffers(rest, 1)? }
            }
            2 => {
                let (remote, rest) = remote()?;
                Work::Write { remote, data: data(rest, 1)?, immediate }
            }
            FAST_REGISTER => {
                let (register, _) =
                    FastRegister::read_from_prefix(body).map_err(|_| Status::LocalQpInternalError)?;
                Work::FastRegister(register)
            }
            FAST_INVALIDATE => {
                let (lkey, _) = U32::read_from_prefix(body).map_err(|_| Status::LocalQpInternalError)?;
                Work::FastInvalidate { lkey: lkey.get() & KEY_MASK }
            }
            _ => return Err(Status::LocalUnsupportedOp),
        };
        let head = RequestHead::parse(request);
        Ok(Self {
            id: head.id,
            destination_qp: meta.destination_qp.get(),
            ah: meta.ah.get(),
            qkey: meta.qkey.get(),
            signalled: head.signalled,
            work,
        })
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn request(control_1: u8, length: u16, body: &[u8]) -> Vec<u8> {
        let meta = SendMeta {
            request_id: 0x1122.into(),
            control_1: control_1 | SendControl1::META.bits(),
            control_2: (SendControl2::FIRST | SendControl2::LAST).bits(),
            length: length.into(),
            request_id_ex: [1.into(), 2.into(), 3.into()],
            ..SendMeta::default()
        };
        let mut bytes = meta.as_bytes().to_vec();
        bytes.extend(body);
        bytes.resize(64, 0);
        bytes
    }

    #[test]
    fn requests_are_read() {
        let inline = request(SendControl1::INLINE.bits(), 3, b"abc");
        let parsed = SendRequest::parse(&inline, 32, 2).unwrap();
        assert_eq!(parsed.id, 0x0003_0002_0001_1122);
        assert!(!parsed.signalled);
        assert_eq!(parsed.work, Work::Send { data: Data::Inline(b"abc".to_vec()), immediate: None });

        let invalidate = request(FAST_INVALIDATE, 0, &0x5512_3456_u32.to_le_bytes());
        let parsed = SendRequest::parse(&invalidate, 32, 2).unwrap();
        assert_eq!(parsed.work, Work::FastInvalidate { lkey: 0x12_3456 });
    }

    #[test]
    fn requests_that_make_no_sense_are_refused() {
        let parse = |bytes: &[u8]| SendRequest::parse(bytes, 32, 2).unwrap_err();
        assert_eq!(parse(&request(SendControl1::INLINE.bits(), 33, &[])), Status::LocalBadLength);
        assert_eq!(parse(&request(0, 3, &[])), Status::LocalBadLength);
        assert_eq!(parse(&request(1, 2, &[])), Status::LocalBadLength);
        assert_eq!(parse(&request(5, 0, &[])), Status::LocalUnsupportedOp);
        assert_eq!(
            parse(&request(SendControl1::META_EXTENSION.bits(), 0, &[])),
            Status::LocalQpInternalError
        );
        assert_eq!(parse(&[0; 64]), Status::LocalQpInternalError);
        assert_eq!(parse(&[0; 8]), Status::LocalQpInternalError);
    }
}
