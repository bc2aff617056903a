//! What differs between drivers: the layout of the queues that they share with the user.
//!
//! A provider is one folder here and one line in [`PROVIDERS`].

mod efa;
mod rxe;

use std::ops::RangeInclusive;
use std::ptr;

use uverbs_ioctl::calls::{self, ContextInfo, CqRequest, QpCreated, QpRequest, SrqCreated, SrqRequest};
use uverbs_ioctl::uapi::ioctl_verbs::driver_id;
use uverbs_ioctl::uapi::user_verbs::CreateAh;
use uverbs_ioctl::uapi::values::QpAttrMask;
use uverbs_ioctl::{Errno, Transport};

use crate::completion::WorkCompletion;
use crate::counter::CounterMemory;
use crate::memory::Memory;
use crate::mw::BoundWindows;
use crate::post::{
    PostError, PostReason, ReceiveRequest, RemoteMemory, ScatterGather, SendFlags, SendRequest,
};

const PROVIDERS: &[&dyn Provider] = &[&rxe::Rxe, &efa::Efa];

/// The provider for a driver.
pub(crate) fn by_driver_id(id: u32) -> Option<&'static dyn Provider> {
    PROVIDERS.iter().copied().find(|provider| provider.driver_id() == id)
}

/// The kernel's drivers, by their names there. One number has two: irdma has replaced i40iw.
const DRIVERS: [(u32, &str); 21] = [
    (driver_id::MLX5, "mlx5"),
    (driver_id::MLX4, "mlx4"),
    (driver_id::CXGB3, "cxgb3"),
    (driver_id::CXGB4, "cxgb4"),
    (driver_id::MTHCA, "mthca"),
    (driver_id::BNXT_RE, "bnxt_re"),
    (driver_id::OCRDMA, "ocrdma"),
    (driver_id::NES, "nes"),
    (driver_id::IRDMA, "irdma"),
    (driver_id::VMW_PVRDMA, "vmw_pvrdma"),
    (driver_id::QEDR, "qedr"),
    (driver_id::HNS, "hns"),
    (driver_id::USNIC, "usnic"),
    (driver_id::RXE, "rxe"),
    (driver_id::HFI1, "hfi1"),
    (driver_id::QIB, "qib"),
    (driver_id::EFA, "efa"),
    (driver_id::SIW, "siw"),
    (driver_id::ERDMA, "erdma"),
    (driver_id::MANA, "mana"),
    (driver_id::IONIC, "ionic"),
];

/// Name of a driver.
pub(crate) fn driver_name(id: u32) -> Option<&'static str> {
    DRIVERS.into_iter().find(|(number, _)| *number == id).map(|(_, name)| name)
}

/// Every driver, those first that there is a provider for.
pub(crate) fn driver_ids() -> Vec<u32> {
    let served = PROVIDERS.iter().map(|provider| provider.driver_id());
    let others = DRIVERS.into_iter().map(|(id, _)| id).filter(|id| by_driver_id(*id).is_none());
    served.chain(others).collect()
}

/// What is wrong with a device whose driver there is no provider for.
pub(crate) fn none_for(device: &str, driver_id: u32) -> String {
    let driver = driver_name(driver_id).map_or_else(|| format!("number {driver_id}"), str::to_owned);
    let served: Vec<_> = PROVIDERS.iter().map(|provider| provider.name()).collect();
    format!("no provider for {driver}, the driver of {device}; there are {}", served.join(", "))
}

/// One driver.
pub(crate) trait Provider: Sync {
    /// One of [`driver_id`](uverbs_ioctl::uapi::ioctl_verbs::driver_id).
    fn driver_id(&self) -> u32;

    fn name(&self) -> &'static str;

    /// Versions of the driver's user ABI that it speaks.
    fn abi_versions(&self) -> RangeInclusive<u32>;

    /// Makes the open file a context.
    fn open(&self, transport: &dyn Transport) -> Result<(ContextInfo, Box<dyn ContextOps>), Errno>;
}

/// One driver's part in creating the objects of one context.
pub(crate) trait ContextOps: Send + Sync {
    /// Creates a CQ and maps its ring. Nothing is left of it if that fails.
    fn create_cq(&self, transport: &dyn Transport, request: &CqRequest<'_>) -> Result<NewCq, Errno>;

    /// Creates a QP and maps its rings. Nothing is left of it if that fails. With `unsolicited_writes`, RDMA writes with immediate
    /// data take no receive from it.
    fn create_qp(
        &self,
        transport: &dyn Transport,
        request: &QpRequest,
        unsolicited_writes: bool,
    ) -> Result<NewQp, Errno>;

    /// Creates an SRQ and maps its ring. Nothing is left of it if that fails.
    fn create_srq(&self, _: &dyn Transport, _: &SrqRequest) -> Result<NewSrq, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Attributes of a QP that can be asked for.
    fn qp_attributes(&self) -> QpAttrMask {
        QpAttrMask::all()
    }

    /// Whether the device sees receives arrive at a QP in the error state, and flushes them.
    fn flushes_late_receives(&self) -> bool {
        true
    }

    /// How often a QP is to be moved to RESET until it has forgotten its sends.
    fn resets(&self) -> usize {
        1
    }

    /// Creates an address handle.
    fn create_address_handle(
        &self,
        transport: &dyn Transport,
        request: &CreateAh,
    ) -> Result<NewAddressHandle, Errno>;

    /// Creates a completion counter. The kernel keeps its values unless the driver has another place for them.
    ///
    /// # Safety
    /// Memory that does not belong to the counter is as [`Context::create_completion_counter_in`](crate::Context) asks.
    unsafe fn create_counter(
        &self,
        transport: &dyn Transport,
        completions: CounterMemory<'_>,
        errors: CounterMemory<'_>,
    ) -> Result<NewCounter, Errno> {
        match (completions, errors) {
            (CounterMemory::Own, CounterMemory::Own) => {
                let values = CounterValues { words: [ptr::null_mut(); 2], in_kernel: true, _own: None };
                Ok(NewCounter { handle: calls::create_comp_cntr(transport)?, values })
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// A CQ just made.
pub(crate) struct NewCq {
    pub(crate) handle: u32,
    pub(crate) entries: u32,
    pub(crate) ring: Box<dyn CompletionRing>,
}

/// A QP just made.
pub(crate) struct NewQp {
    pub(crate) created: QpCreated,
    pub(crate) rings: Box<dyn WorkRings>,
}

/// An SRQ just made.
pub(crate) struct NewSrq {
    pub(crate) created: SrqCreated,
    pub(crate) number: u32,
    pub(crate) ring: Box<dyn SharedReceiveRing>,
}

/// An address handle just made.
pub(crate) struct NewAddressHandle {
    pub(crate) handle: u32,
    /// The device's name for it, in send requests.
    pub(crate) number: u32,
}

/// A completion counter just made.
pub(crate) struct NewCounter {
    pub(crate) handle: u32,
    pub(crate) values: CounterValues,
}

/// Where a completion counter's two values are.
pub(crate) struct CounterValues {
    /// Addresses in memory, by `enum ib_uverbs_comp_cntr_entry`, where the device writes them, little-endian. Null where this process
    /// has none.
    pub(crate) words: [*mut u64; 2],
    /// Whether the kernel has them, and is asked.
    pub(crate) in_kernel: bool,
    /// What of the memory is the counter's own.
    pub(crate) _own: Option<Memory>,
}

/// What goes with a number of completions or requests to say that a QP has failed: beyond any such number.
pub(crate) const FAILED: usize = 1 << (usize::BITS - 1);

/// The user's side of a CQ.
pub(crate) trait CompletionRing: Send + Sync {
    /// Takes completions, oldest first, and says how many there were. [`FAILED`] comes with the number if one of them is a failure
    /// and the device does not see receives arrive at a QP that has failed.
    fn poll(&mut self, completions: &mut [WorkCompletion]) -> usize;

    /// The completions behind the `ahead` oldest ones, which have been looked at like these, in turn: where the first is, and how many
    /// follow each other at the same distance; none if there are none. They stay as they are until the next call of anything here.
    fn peek(&mut self, ahead: u32) -> (*const WorkCompletion, u32);

    /// Bytes from one of them to the next.
    fn stride(&self) -> usize;

    /// Takes the oldest `count` completions, which have been looked at.
    fn take(&mut self, count: u32);

    /// Asks for one event when the next completion arrives. So many events of this CQ have been read.
    fn arm(
        &mut self,
        transport: &dyn Transport,
        cq: u32,
        solicited_only: bool,
        events: u32,
    ) -> Result<(), Errno>;

    /// Makes room for at least that many completions, and says for how many there is. Those that are there stay, in order.
    fn resize(&mut self, _transport: &dyn Transport, _cq: u32, _entries: u32) -> Result<u32, Errno> {
        Err(Errno::EOPNOTSUPP)
    }
}

/// The user's side of a QP's two queues.
pub(crate) trait WorkRings: Send + Sync {
    /// Writes a request behind those written before, without showing it to the device.
    fn push_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostReason>;

    /// The short way for requests of the kinds that are most frequent; nothing has happened if it says that it has not gone.
    fn push_plain_send(
        &mut self,
        _: u64,
        _: SendFlags,
        _: &ScatterGather,
        _: u32,
        _: Option<&RemoteMemory>,
    ) -> bool {
        false
    }

    /// Shows the device what has been written.
    fn commit_sends(&mut self, transport: &dyn Transport, qp: u32) -> Result<(), Errno>;

    /// Forgets what has been written since the last commit.
    fn abort_sends(&mut self);

    /// Posts requests until one does not go.
    fn post_send_list(
        &mut self,
        transport: &dyn Transport,
        qp: u32,
        requests: &[SendRequest<'_>],
    ) -> Result<(), PostError> {
        // A batch that was leaked has left requests behind.
        self.abort_sends();
        let failed = requests.iter().enumerate().find_map(|(index, request)| {
            self.push_send(request).err().map(|reason| PostError { index, reason })
        });
        let queued = failed.as_ref().map_or(requests.len(), |error| error.index);
        if queued > 0 {
            self.commit_sends(transport, qp)
                .map_err(|errno| PostError { index: queued, reason: PostReason::Doorbell(errno as i32) })?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether receives go at all.
    fn accept_receives(&mut self, accept: bool);

    /// Posts requests until one does not go, and says how many went. (A number comes back in a register.)
    fn post_receives(&mut self, requests: &[ReceiveRequest<'_>]) -> usize;

    /// Why this one did not go.
    fn receive_refusal(&self, request: &ReceiveRequest<'_>) -> PostReason;

    /// The memory windows that the QP may have bound and that have to be destroyed before it.
    fn windows(&mut self) -> Option<&mut BoundWindows> {
        None
    }

    /// Begins anew: the QP has been moved to RESET.
    fn reset(&mut self) {}
}

/// The user's side of an SRQ.
pub(crate) trait SharedReceiveRing: Send + Sync {
    /// Posts requests until one does not go, and says how many went.
    fn post_receives(&mut self, requests: &[ReceiveRequest<'_>]) -> usize;

    /// Why this one did not go.
    fn receive_refusal(&self, request: &ReceiveRequest<'_>) -> PostReason;

    /// Asks for one event when fewer receives than this are left; zero for none.
    fn set_limit(&mut self, transport: &dyn Transport, srq: u32, limit: u32) -> Result<(), Errno>;

    /// Makes room for at least that many receives, and says how many there is room for. Those posted stay.
    fn resize(&mut self, transport: &dyn Transport, srq: u32, max_wr: u32) -> Result<u32, Errno>;
}
