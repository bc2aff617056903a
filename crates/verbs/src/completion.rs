//! Completions of work requests.

use std::fmt;

use uverbs_ioctl::uapi::user_verbs::{Wc, wc_opcode};
use uverbs_ioctl::uapi::values::{self, WcFlags};
use zerocopy::IntoBytes;

/// A flag of completions besides those of `enum ib_uverbs_wc_flags`: no receive was used up.
pub(crate) const UNSOLICITED: u32 = 1 << 31;

/// A work completion, `struct ibv_wc`.
///
/// A failed completion has only a `wr_id`, a QP number, a status and a vendor error. What else there is comes from
/// [`success`](Self::success), which is there only if the request succeeded.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct WorkCompletion(pub(crate) Wc);

impl Default for WorkCompletion {
    /// Room for a completion: not a success, but of a status that no completion has.
    fn default() -> Self {
        Self(Wc { status: u32::MAX, ..Wc::default() })
    }
}

impl WorkCompletion {
    /// The `wr_id` of the work request.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// Number of the QP that it was posted to.
    #[inline]
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num
    }

    /// How it ended.
    #[inline]
    pub fn status(&self) -> CompletionStatus {
        CompletionStatus(self.0.status)
    }

    /// Whether it succeeded.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.status() == CompletionStatus::SUCCESS
    }

    /// The rest of a completion that succeeded.
    ///
    /// # Errors
    /// A [`CompletionError`] that says which request failed and how.
    #[inline]
    pub fn success(&self) -> Result<Success<'_>, CompletionError> {
        if self.is_success() {
            Ok(Success(&self.0))
        } else {
            Err(CompletionError {
                wr_id: self.0.wr_id,
                qp_num: self.0.qp_num,
                status: self.status(),
                vendor_error: self.0.vendor_err,
            })
        }
    }
}

impl fmt::Debug for WorkCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.success() {
            Ok(success) => f
                .debug_struct("WorkCompletion")
                .field("wr_id", &self.wr_id())
                .field("qp_num", &self.qp_num())
                .field("opcode", &success.opcode())
                .field("byte_len", &success.byte_len())
                .field("immediate", &success.immediate())
                .finish_non_exhaustive(),
            Err(error) => fmt::Debug::fmt(&error, f),
        }
    }
}

/// A completion known to have succeeded.
#[derive(Clone, Copy)]
pub struct Success<'a>(&'a Wc);

impl fmt::Debug for Success<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&WorkCompletion(*self.0), f)
    }
}

impl Success<'_> {
    /// What was completed.
    pub fn opcode(&self) -> CompletionOpcode {
        match self.0.opcode {
            wc_opcode::SEND => CompletionOpcode::Send,
            wc_opcode::RDMA_WRITE => CompletionOpcode::RdmaWrite,
            wc_opcode::RDMA_READ => CompletionOpcode::RdmaRead,
            wc_opcode::COMP_SWAP => CompletionOpcode::CompareSwap,
            wc_opcode::FETCH_ADD => CompletionOpcode::FetchAdd,
            wc_opcode::BIND_MW => CompletionOpcode::BindMemoryWindow,
            wc_opcode::LOCAL_INV => CompletionOpcode::LocalInvalidate,
            wc_opcode::FLUSH => CompletionOpcode::Flush,
            wc_opcode::ATOMIC_WRITE => CompletionOpcode::AtomicWrite,
            values::wc_opcode::RECV => CompletionOpcode::Receive,
            values::wc_opcode::RECV_RDMA_WITH_IMM => CompletionOpcode::ReceiveRdmaWithImmediate,
            number => CompletionOpcode::Other(number),
        }
    }

    /// Bytes received, or read by an RDMA read (zero on EFA, which does not tell) or atomic. Means nothing for other operations.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// The immediate data of a receive, if the message carried any.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        let ex = self.0.ex.as_bytes().try_into().map_or(0, u32::from_be_bytes);
        self.has(WcFlags::WITH_IMM).then_some(ex)
    }

    /// The remote key of this process that the message of a receive has invalidated, if it was
    /// [a send that does so](crate::SendRequest::invalidate).
    ///
    /// ```no_run
    /// # use uverbs::{CompletionError, CompletionQueue, WorkCompletion};
    /// # fn example(cq: &mut CompletionQueue) -> Result<(), CompletionError> {
    /// for completion in cq.poll(&mut [WorkCompletion::default(); 16]) {
    ///     if let Some(rkey) = completion.success()?.invalidated_rkey() {
    ///         println!("the peer has done with {rkey:#x}");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        self.has(WcFlags::WITH_INVALIDATE).then_some(self.0.ex)
    }

    /// Whether the first 40 bytes of the buffer of a datagram receive hold, or leave room for, its global route header.
    pub fn has_global_route(&self) -> bool {
        self.has(WcFlags::GRH)
    }

    /// Whether it is a write with immediate data that used up no receive, `efadv_wc_is_unsolicited`. Its `wr_id` is 0.
    pub fn is_unsolicited(&self) -> bool {
        self.0.wc_flags & UNSOLICITED != 0
    }

    /// QP number of the sender of a datagram.
    pub fn source_qp(&self) -> u32 {
        self.0.src_qp
    }

    fn has(&self, flag: WcFlags) -> bool {
        WcFlags::from_bits_retain(self.0.wc_flags).contains(flag)
    }
}

/// What a successful completion completed, `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionOpcode {
    /// A send.
    Send,
    /// An RDMA write.
    RdmaWrite,
    /// An RDMA read.
    RdmaRead,
    /// An atomic compare and swap.
    CompareSwap,
    /// An atomic fetch and add.
    FetchAdd,
    /// A memory window was bound.
    BindMemoryWindow,
    /// A key was invalidated.
    LocalInvalidate,
    /// A flush.
    Flush,
    /// An atomic write.
    AtomicWrite,
    /// A receive.
    Receive,
    /// A receive used up by the peer's RDMA write with immediate data.
    ReceiveRdmaWithImmediate,
    /// One that this version does not know.
    Other(u32),
}

/// How a work request ended, `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CompletionStatus(u32);

macro_rules! statuses {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $text:literal;)*) => {
        impl CompletionStatus {
            $($(#[doc = $doc])+ pub const $name: Self = Self($number);)*

            /// The number of `enum ibv_wc_status`.
            pub fn number(self) -> u32 {
                self.0
            }

            fn name(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $($number => Some((stringify!($name), $text)),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// It succeeded.
    SUCCESS = 0, "success";
    /// A receive buffer is shorter than the message, or a message longer than the device can send.
    LOC_LEN_ERR = 1, "local length error";
    /// The device could not execute the request, whatever its contents; soft-RoCE reports bad local keys and ranges like this.
    LOC_QP_OP_ERR = 2, "local QP operation error";
    /// End-to-end context trouble; not used today.
    LOC_EEC_OP_ERR = 3, "local EE context operation error";
    /// A local key, range, access right or protection domain does not fit.
    LOC_PROT_ERR = 4, "local protection error";
    /// The QP was in, or went to, the error state before the request was executed.
    WR_FLUSH_ERR = 5, "work request flushed";
    /// A memory window could not be bound.
    MW_BIND_ERR = 6, "memory window bind error";
    /// The peer's answer was not one that fits the request.
    BAD_RESP_ERR = 7, "bad response";
    /// A local protection error when an incoming immediate write was handled.
    LOC_ACCESS_ERR = 8, "local access error";
    /// The peer refuses the message: its receive buffer is too small, or it does not support the operation or the path MTU.
    REM_INV_REQ_ERR = 9, "remote invalid request";
    /// The peer's key, range or access rights do not allow it.
    REM_ACCESS_ERR = 10, "remote access error";
    /// The peer could not execute it.
    REM_OP_ERR = 11, "remote operation error";
    /// The peer did not answer, however often the message was sent.
    RETRY_EXC_ERR = 12, "transport retry counter exceeded";
    /// The peer had no receive posted, however often it was asked.
    RNR_RETRY_EXC_ERR = 13, "RNR retry counter exceeded";
    /// RDD violation; not used today.
    LOC_RDD_VIOL_ERR = 14, "local RDD violation";
    /// Invalid RD request; not used today.
    REM_INV_RD_REQ_ERR = 15, "remote invalid RD request";
    /// The peer aborted it.
    REM_ABORT_ERR = 16, "remote aborted";
    /// Invalid end-to-end context number; not used today.
    INV_EECN_ERR = 17, "invalid EE context number";
    /// Invalid end-to-end context state; not used today.
    INV_EEC_STATE_ERR = 18, "invalid EE context state";
    /// The device is broken.
    FATAL_ERR = 19, "fatal error";
    /// The peer took too long.
    RESP_TIMEOUT_ERR = 20, "response timed out";
    /// Something else: the vendor error may tell.
    GENERAL_ERR = 21, "general error";
    /// Tag matching failed.
    TM_ERR = 22, "tag matching error";
    /// Tag matching could not finish a rendezvous.
    TM_RNDV_INCOMPLETE = 23, "tag matching rendezvous incomplete";
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some((_, text)) => f.write_str(text),
            None => write!(f, "unknown status"),
        }
    }
}

impl fmt::Debug for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "CompletionStatus({})", self.0),
        }
    }
}

/// A work request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionError {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// Number of the QP.
    pub qp_num: u32,
    /// How it failed.
    pub status: CompletionStatus,
    /// What the driver adds; zero if nothing.
    pub vendor_error: u32,
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "work request {} on QP {:#08x} failed: {} (status {})",
            self.wr_id, self.qp_num, self.status, self.status.0
        )?;
        match self.vendor_error {
            0 => Ok(()),
            number => write!(f, ", vendor error {number:#x}"),
        }
    }
}

impl std::error::Error for CompletionError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_completion_hides_what_is_not_valid() {
        let failed = WorkCompletion(Wc {
            wr_id: 7,
            status: 5,
            qp_num: 17,
            opcode: 0xeeee,
            byte_len: 0xeeee,
            ..Wc::default()
        });
        assert!(!failed.is_success());
        let error = failed.success().unwrap_err();
        assert_eq!((error.wr_id, error.qp_num, error.status), (7, 17, CompletionStatus::WR_FLUSH_ERR));
        assert_eq!(
            error.to_string(),
            "work request 7 on QP 0x000011 failed: work request flushed (status 5)"
        );
    }

    #[test]
    fn immediate_data_is_big_endian_and_only_there_if_flagged() {
        let mut wc = Wc { opcode: values::wc_opcode::RECV, ..Wc::default() };
        wc.ex.as_mut_bytes().copy_from_slice(&0x0102_0304_u32.to_be_bytes());
        assert_eq!(WorkCompletion(wc).success().unwrap().immediate(), None);
        wc.wc_flags = WcFlags::WITH_IMM.bits();
        assert_eq!(WorkCompletion(wc).success().unwrap().immediate(), Some(0x0102_0304));
    }

    #[test]
    fn invalidated_keys_are_in_host_order_and_only_there_if_flagged() {
        let mut wc = Wc { opcode: values::wc_opcode::RECV, ex: 0x0102_0304, ..Wc::default() };
        assert_eq!(WorkCompletion(wc).success().unwrap().invalidated_rkey(), None);
        wc.wc_flags = WcFlags::WITH_INVALIDATE.bits();
        let completion = WorkCompletion(wc);
        let success = completion.success().unwrap();
        assert_eq!((success.invalidated_rkey(), success.immediate()), (Some(0x0102_0304), None));
    }

    #[test]
    fn unknown_numbers_are_kept() {
        let wc = Wc { status: 99, ..Wc::default() };
        let status = WorkCompletion(wc).status();
        assert_eq!((status.number(), format!("{status:?}")), (99, "CompletionStatus(99)".to_owned()));
        let wc = Wc { opcode: 77, ..Wc::default() };
        assert_eq!(WorkCompletion(wc).success().unwrap().opcode(), CompletionOpcode::Other(77));
    }
}
