//! What devices send each other.

use std::sync::Arc;

use crate::admin::QpKind;
use crate::config::Gid;
use crate::io::{OperationKind, Status};

/// A message on the wire.
#[derive(Clone, Debug)]
pub struct Packet {
    pub(crate) source: Gid,
    pub(crate) destination: Gid,
    pub(crate) body: Body,
}

impl Packet {
    /// The device that sent it.
    pub fn source(&self) -> Gid {
        self.source
    }

    /// The device that it is for.
    pub fn destination(&self) -> Gid {
        self.destination
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Request { number: u64, request: Arc<Request> },
    Response { number: u64, status: Status, data: Vec<u8> },
}

/// A request to a peer. It is kept until the peer has answered, and sent again if the peer was not ready.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) kind: QpKind,
    pub(crate) source_qp: u16,
    pub(crate) destination_qp: u16,
    pub(crate) qkey: u32,
    pub(crate) operation: Operation,
}

#[derive(Debug)]
pub(crate) enum Operation {
    Send { data: Vec<u8>, immediate: Option<u32> },
    Read { remote: RemoteRange },
    Write { remote: RemoteRange, data: Vec<u8>, immediate: Option<u32> },
}

impl Operation {
    pub(crate) fn kind(&self) -> OperationKind {
        match self {
            Self::Send { .. } => OperationKind::Send,
            Self::Read { .. } => OperationKind::Read,
            Self::Write { .. } => OperationKind::Write,
        }
    }
}

/// Memory of the peer.
pub(crate) type RemoteRange = crate::objects::Range;
