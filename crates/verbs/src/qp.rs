//! Queue pairs.

mod modify;

use std::fmt;
use std::sync::Arc;

use uverbs_ioctl::calls::{self, QpRequest};
use uverbs_ioctl::uapi::ioctl_verbs::{QpCap, QpCreateFlags, qp_type};
use uverbs_ioctl::uapi::user_verbs::{QueryQp, QueryQpResp};
use uverbs_ioctl::uapi::values::qp_state;
use uverbs_ioctl::{Errno, Transport};

pub use modify::{AddressVector, GlobalRoute, ModifyQueuePair};

use crate::attributes::{Gid, Mtu};
use crate::counter::{CompletionCounter, CounterInner, CounterOperations};
use crate::cq::{CompletionQueue, CqShared};
use crate::error::{DestroyError, Error, ErrorKind, Result};
use crate::events::{AsyncEventElement, EventSource};
use crate::failure::Failure;
use crate::mr::AccessFlags;
use crate::object::{Object, next_id};
use crate::pd::ProtectionDomain;
use crate::post::{PostError, PostReason, ReceiveRequest, SendBatch, SendRequest};
use crate::provider::{FAILED, WorkRings};
use crate::srq::{SharedReceiveQueue, SrqShared};

/// How a QP transports messages, `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueuePairType {
    /// RC: connected to one peer, every message arrives once and in order, or both ends hear of the failure.
    ReliableConnection,
    /// UC: connected to one peer, messages arrive in order, and one that does not arrive whole is dropped: nobody hears of it.
    UnreliableConnection,
    /// UD: to any peer, one packet a message, which may be lost.
    UnreliableDatagram,
    /// SRD, EFA's: to any peer, every message arrives once or the sender hears of the failure, in any order.
    ScalableReliableDatagram,
}

impl QueuePairType {
    fn number(self) -> u32 {
        match self {
            Self::ReliableConnection => qp_type::RC,
            Self::UnreliableConnection => qp_type::UC,
            Self::UnreliableDatagram => qp_type::UD,
            Self::ScalableReliableDatagram => qp_type::DRIVER,
        }
    }
}

impl fmt::Display for QueuePairType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReliableConnection => "RC",
            Self::UnreliableConnection => "UC",
            Self::UnreliableDatagram => "UD",
            Self::ScalableReliableDatagram => "SRD",
        })
    }
}

/// State of a QP, `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum QueuePairState {
    /// Newly created: takes no work.
    Reset = qp_state::RESET as u8,
    /// Takes receives, but nothing arrives yet.
    Init = qp_state::INIT as u8,
    /// Ready to receive: messages arrive.
    ReadyToReceive = qp_state::RTR as u8,
    /// Ready to send: works both ways.
    ReadyToSend = qp_state::RTS as u8,
    /// The send queue is drained; nothing is sent.
    SendQueueDrained = qp_state::SQD as u8,
    /// The send queue has failed; it can be set going again.
    SendQueueError = qp_state::SQE as u8,
    /// Failed: work is flushed.
    Error = qp_state::ERR as u8,
}

impl QueuePairState {
    const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendQueueDrained,
        Self::SendQueueError,
        Self::Error,
    ];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u8 == number)
    }
}

impl fmt::Display for QueuePairState {
    /// As the field writes it: `RTS`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::SendQueueDrained => "SQD",
            Self::SendQueueError => "SQE",
            Self::Error => "ERR",
        })
    }
}

/// Capacities of a QP's queues, `struct ibv_qp_cap`. What is granted is at least what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairCapabilities {
    /// Send requests not yet executed.
    pub max_send_wr: u32,
    /// Receives posted.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes that a send request can carry inline.
    pub max_inline_data: u32,
}

impl Default for QueuePairCapabilities {
    /// One request each way, of one element.
    fn default() -> Self {
        Self { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 }
    }
}

impl From<QpCap> for QueuePairCapabilities {
    fn from(cap: QpCap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }
    }
}

/// What a QP is created with, `struct ibv_qp_init_attr`.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairInit<'a> {
    /// How it transports messages.
    pub kind: QueuePairType,
    /// Where send requests complete.
    pub send_cq: &'a CompletionQueue,
    /// Where receives complete. It can be the same.
    pub recv_cq: &'a CompletionQueue,
    /// Least capacities.
    pub capabilities: QueuePairCapabilities,
    /// Whether every send request makes a completion, flagged or not, `sq_sig_all`.
    pub signal_all: bool,
    /// Whether RDMA writes with immediate data complete at this end without using up a receive,
    /// `EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV`. SRD on EFA devices that can.
    pub unsolicited_writes: bool,
    /// Where it takes receives from, instead of a queue of its own. Its capabilities for receives mean nothing then.
    pub shared_receive_queue: Option<&'a SharedReceiveQueue>,
}

impl<'a> QueuePairInit<'a> {
    /// An RC QP with the default capabilities, both queues completing on `cq`.
    pub fn reliable_connection(cq: &'a CompletionQueue) -> Self {
        Self::of_type(QueuePairType::ReliableConnection, cq)
    }

    /// A UC QP with the default capabilities, both queues completing on `cq`.
    ///
    /// ```no_run
    /// # use uverbs::{AccessFlags, AddressVector, CompletionQueue, Gid, ModifyQueuePair, Mtu, ProtectionDomain, QueuePair};
    /// # use uverbs::{QueuePairInit, Result};
    /// # fn connect(domain: &ProtectionDomain, cq: &CompletionQueue, peer: Gid, peer_qp_num: u32) -> Result<QueuePair> {
    /// let mut qp = domain.create_queue_pair(&QueuePairInit::unreliable_connection(cq))?;
    /// let address = AddressVector::global(1, peer, 1);
    /// qp.modify(&ModifyQueuePair::init(1, AccessFlags::REMOTE_WRITE))?;
    /// qp.modify(&ModifyQueuePair::unreliable_ready_to_receive(address, peer_qp_num, 0, Mtu::Bytes1024))?;
    /// qp.modify(&ModifyQueuePair::unreliable_ready_to_send(0))?;
    /// # Ok(qp)
    /// # }
    /// ```
    pub fn unreliable_connection(cq: &'a CompletionQueue) -> Self {
        Self::of_type(QueuePairType::UnreliableConnection, cq)
    }

    /// A UD QP with the default capabilities, both queues completing on `cq`.
    pub fn unreliable_datagram(cq: &'a CompletionQueue) -> Self {
        Self::of_type(QueuePairType::UnreliableDatagram, cq)
    }

    /// An SRD QP with the default capabilities, both queues completing on `cq`. EFA makes a completion for every request, so
    /// `signal_all` is set.
    pub fn scalable_reliable_datagram(cq: &'a CompletionQueue) -> Self {
        Self { signal_all: true, ..Self::of_type(QueuePairType::ScalableReliableDatagram, cq) }
    }

    fn of_type(kind: QueuePairType, cq: &'a CompletionQueue) -> Self {
        Self {
            kind,
            send_cq: cq,
            recv_cq: cq,
            capabilities: QueuePairCapabilities::default(),
            signal_all: false,
            unsolicited_writes: false,
            shared_receive_queue: None,
        }
    }
}

/// A queue pair, `struct ibv_qp`.
///
/// Posting takes `&mut self` and no lock. It keeps its protection domain, its CQs and its SRQ alive.
///
/// ```no_run
/// use uverbs::{AccessFlags, AddressVector, Device, ModifyQueuePair, Mtu, QueuePairInit, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Device::find("rxe0")?.open()?;
/// let domain = context.alloc_protection_domain()?;
/// let cq = context.create_completion_queue(16, None, 0)?;
/// let mut qp = domain.create_queue_pair(&QueuePairInit::reliable_connection(&cq))?;
/// // Connected to itself.
/// let gid = context.routable_gid(1, None)?;
/// let peer = AddressVector::global(1, gid.gid, gid.index as u8);
/// qp.modify(&ModifyQueuePair::init(1, AccessFlags::empty()))?;
/// qp.modify(&ModifyQueuePair::ready_to_receive(peer, qp.qp_num(), 0, Mtu::Bytes1024))?;
/// qp.modify(&ModifyQueuePair::ready_to_send(0))?;
/// qp.post_send_list(&[SendRequest::send_inline(1, &[b"hello"]).signaled()])?;
/// # Ok(())
/// # }
/// ```
pub struct QueuePair {
    // Fields are dropped in this order: the QP goes before its rings are unmapped.
    object: Object,
    source: EventSource,
    failure: Arc<Failure>,
    pub(crate) rings: Box<dyn WorkRings>,
    kind: QueuePairType,
    qp_num: u32,
    capabilities: QueuePairCapabilities,
    /// As this process last set it. The device can only have gone on to the error state since.
    state: QueuePairState,
    /// Operations that a completion counter counts.
    counted: CounterOperations,
    /// Multicast groups that it is attached to.
    pub(crate) groups: Vec<(Gid, u16)>,
    // Kept alive, and let go only after the QP itself.
    counters: Vec<Arc<CounterInner>>,
    domain: ProtectionDomain,
    _send_cq: Arc<CqShared>,
    _recv_cq: Arc<CqShared>,
    srq: Option<Arc<SrqShared>>,
}

impl QueuePair {
    pub(crate) fn create(domain: &ProtectionDomain, init: &QueuePairInit<'_>) -> Result<Self> {
        const VERB: &str = "create_qp";
        let context = domain.0.context().clone();
        for (queue, cq) in [("send", init.send_cq), ("receive", init.recv_cq)] {
            if !cq.shared().is_of(&context) {
                let detail =
                    format!("the CQ for the {queue} queue belongs to another context than the domain");
                return Err(Error::with(VERB, Errno::EINVAL, detail));
            }
        }
        let srq = init.shared_receive_queue.map(SharedReceiveQueue::shared);
        if srq.is_some_and(|srq| !Arc::ptr_eq(srq.context(), &context)) {
            let detail = "the shared receive queue belongs to another context than the domain";
            return Err(Error::with(VERB, Errno::EINVAL, detail));
        }
        let mut asked = init.capabilities;
        if srq.is_some() {
            (asked.max_recv_wr, asked.max_recv_sge) = (0, 0);
        }
        let id = next_id();
        let request = QpRequest {
            pd: domain.handle(),
            send_cq: init.send_cq.shared().handle(),
            recv_cq: init.recv_cq.shared().handle(),
            srq: srq.map(|srq| srq.handle()),
            user_handle: id,
            cap: QpCap {
                max_send_wr: asked.max_send_wr,
                max_recv_wr: asked.max_recv_wr,
                max_send_sge: asked.max_send_sge,
                max_recv_sge: asked.max_recv_sge,
                max_inline_data: asked.max_inline_data,
            },
            qp_type: init.kind.number(),
            flags: if init.signal_all { QpCreateFlags::SQ_SIG_ALL.bits() } else { 0 },
        };
        let new = context.ops().create_qp(context.transport(), &request, init.unsolicited_writes);
        let new = new.map_err(|errno| {
            Error::new(VERB, errno).or_detail(|| {
                explain_create(&context, errno, &QueuePairInit { capabilities: asked, ..*init })
            })
        })?;
        let destroy = |transport: &dyn Transport, handle| calls::destroy_qp(transport, handle).map(|_| ());
        let element = AsyncEventElement::QueuePair(new.created.qp_num);
        let mut rings = new.rings;
        rings.accept_receives(false);
        if let Some(windows) = rings.windows() {
            windows.belong_to(domain);
        }
        let watched = srq.is_none() && !context.ops().flushes_late_receives();
        let failure = Failure::new(new.created.handle, new.created.qp_num, watched);
        context.failures().insert(&failure);
        Ok(Self {
            source: EventSource::new(&context, id, element),
            failure,
            object: Object::new(context, new.created.handle, destroy),
            rings,
            kind: init.kind,
            qp_num: new.created.qp_num,
            capabilities: new.created.cap.into(),
            state: QueuePairState::Reset,
            counted: CounterOperations::empty(),
            groups: Vec::new(),
            counters: Vec::new(),
            domain: domain.clone(),
            _send_cq: init.send_cq.shared().clone(),
            _recv_cq: init.recv_cq.shared().clone(),
            srq: srq.cloned(),
        })
    }

    /// Its number, by which peers name it.
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// How it transports messages.
    pub fn kind(&self) -> QueuePairType {
        self.kind
    }

    /// The capacities granted.
    pub fn capabilities(&self) -> QueuePairCapabilities {
        self.capabilities
    }

    /// The [`id`](SharedReceiveQueue::id) of the shared receive queue that it takes receives from, if it does.
    pub fn shared_receive_queue_id(&self) -> Option<u64> {
        self.srq.as_ref().map(|srq| srq.id())
    }

    /// Changes attributes and state, `ibv_modify_qp`.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) with the attributes that are missing or not allowed in this
    /// transition, or the transitions that are; [`TimedOut`](crate::ErrorKind::TimedOut) (`ETIMEDOUT`) if no neighbour answers
    /// for the peer's GID, after about a second; [`NotFound`](crate::ErrorKind::NotFound) if the peer's or the own GID cannot be
    /// used.
    pub fn modify(&mut self, change: &ModifyQueuePair) -> Result<()> {
        let request = change.request(self.object.handle());
        let times = match change.state {
            Some(QueuePairState::Reset) => self.object.context().ops().resets(),
            _ => 1,
        };
        let mut changed = false;
        let transport = self.object.transport();
        let mut invoke = || calls::invoke(transport, &request).map(|()| changed = true);
        let result = self.failure.change(change.state, || (0..times).try_for_each(|_| invoke()));
        // Also if it was not changed as often as it should have been.
        if changed {
            self.state = change.state.unwrap_or(self.state);
            if change.state == Some(QueuePairState::Reset) {
                self.rings.reset();
            }
            self.rings.accept_receives(self.state != QueuePairState::Reset);
        }
        result.map_err(|errno| {
            Error::new("modify_qp", errno).or_detail(|| {
                let state = self.query().ok()?.state;
                change.explain(errno, self.kind, state)
            })
        })
    }

    /// Attributes and state, `ibv_query_qp`. This is where a state shows that the QP went to by itself.
    ///
    /// # Errors
    /// [`DeviceGone`](crate::ErrorKind::DeviceGone).
    pub fn query(&self) -> Result<QueuePairAttributes> {
        // The kernel fills in everything whatever the mask; drivers may look at it.
        let request = QueryQp {
            qp_handle: self.object.handle(),
            attr_mask: self.object.context().ops().qp_attributes().bits(),
            ..Default::default()
        };
        let response = calls::invoke(self.object.transport(), &request)
            .map_err(|errno| Error::new("query_qp", errno))?;
        QueuePairAttributes::new(&response)
    }

    /// Starts a batch of send requests that are posted together, with one doorbell, or not at all.
    ///
    /// ```
    /// # use uverbs::{MemoryRegion, PostError, QueuePair, SendRequest};
    /// # fn example(qp: &mut QueuePair, region: &MemoryRegion) -> Result<(), PostError> {
    /// qp.post_send()
    ///     .push(&SendRequest::send(1, &[region.sge(0..64)]))
    ///     .push(&SendRequest::send_inline(2, &[b"done"]).immediate(7).signaled())
    ///     .submit()
    /// # }
    /// ```
    pub fn post_send(&mut self) -> SendBatch<'_> {
        SendBatch::new(self)
    }

    /// Posts send requests one after the other, with one doorbell, `ibv_post_send`. If one is refused, those before it are posted.
    ///
    /// # Errors
    /// Which one, and why: see [`PostReason`].
    #[inline]
    pub fn post_send_list(&mut self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.can_send().map_err(|reason| PostError { index: 0, reason })?;
        self.rings.post_send_list(self.object.transport(), self.object.handle(), requests)
    }

    /// Posts receives, `ibv_post_recv`. If one is refused, those before it are posted.
    ///
    /// In the error state they complete as flushed. soft-RoCE does not see receives arrive at a QP that has failed, so it is told;
    /// this works as soon as a failed completion of the QP has been polled, or an event of its failure has been read. A QP that goes
    /// to the error state without either, because nothing was posted to it, is only found out by [`query`](Self::query): receives that
    /// are posted then are flushed when [`modify`](Self::modify) moves it to [`Error`](QueuePairState::Error).
    ///
    /// # Errors
    /// Which one, and why: see [`PostReason`].
    #[inline]
    pub fn post_receive(&mut self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        let posted = self.rings.post_receives(requests);
        // Looked at when they can be seen, so that whoever finds out that the QP has failed sees them, or this sees that. One
        // comparison for two questions: the mark of a failure is beyond any number.
        let outcome = posted | self.failure.mark();
        if outcome == requests.len() { Ok(()) } else { self.post_receive_otherwise(requests, outcome) }
    }

    /// Something was refused, or the QP is to be told to flush.
    #[cold]
    fn post_receive_otherwise(
        &self,
        requests: &[ReceiveRequest<'_>],
        outcome: usize,
    ) -> Result<(), PostError> {
        let posted = outcome & !FAILED;
        if posted > 0 && outcome & FAILED != 0 {
            self.failure.flush(self.object.transport());
        }
        let reason = match requests.get(posted) {
            None => return Ok(()),
            Some(_) if self.srq.is_some() => PostReason::SharedReceiveQueue,
            Some(_) if self.state == QueuePairState::Reset => PostReason::WrongState(self.state),
            Some(request) => self.rings.receive_refusal(request),
        };
        Err(PostError { index: posted, reason })
    }

    /// Makes a completion counter count operations of this QP, `ibv_qp_attach_comp_cntr`. There is no way to detach it but to
    /// destroy the QP; the counter stays alive until then. One counter can count for many QPs, and several counters can share out
    /// the operations of one QP.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) without an operation, for an unknown one, in a state other than
    /// RESET and INIT, or with a counter of another context; [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) for an
    /// operation that the device does not count; [`Busy`](crate::ErrorKind::Busy) (`EBUSY`) for one that is counted already.
    pub fn attach_completion_counter(
        &mut self,
        counter: &CompletionCounter,
        operations: CounterOperations,
    ) -> Result<()> {
        const VERB: &str = "qp_attach_comp_cntr";
        let state = self.state;
        let refuse = |errno, detail| Err(Error::with(VERB, errno, detail));
        let inner = counter.inner();
        let unknown = operations - CounterOperations::all();
        if operations.is_empty() {
            return refuse(Errno::EINVAL, "no operation to count".to_owned());
        }
        if !unknown.is_empty() {
            return refuse(Errno::EINVAL, format!("there is no operation {:#x}", unknown.bits()));
        }
        if !Arc::ptr_eq(self.object.context(), inner.context()) {
            return refuse(Errno::EINVAL, "the counter belongs to another context".to_owned());
        }
        if !matches!(state, QueuePairState::Reset | QueuePairState::Init) {
            return refuse(Errno::EINVAL, format!("the QP is in state {state}: attach in RESET or INIT"));
        }
        let capabilities = self.object.context().counter_capabilities(VERB)?;
        let unsupported = operations - capabilities.operations;
        if !unsupported.is_empty() {
            let (device, can) = (self.object.context().device().name(), capabilities.operations);
            return refuse(Errno::EOPNOTSUPP, format!("{device} does not count {unsupported}, but {can}"));
        }
        let twice = operations & self.counted;
        if !twice.is_empty() {
            return refuse(Errno::EBUSY, format!("{twice} of this QP has a counter already"));
        }
        inner
            .with_handle(|handle| {
                let transport = self.object.transport();
                calls::attach_comp_cntr(transport, self.object.handle(), handle, operations.bits())
            })
            .map_err(|errno| Error::new(VERB, errno))?;
        self.counted |= operations;
        self.counters.push(inner.clone());
        Ok(())
    }

    /// Gives the QP back, `ibv_destroy_qp`. What is posted is forgotten without completions.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) (`EBUSY`) while it is attached to a multicast group, an event of it has not been dropped, or it
    /// may have bound a memory window of type 2: destroy that before. (If the QP is dropped, the window goes with it.)
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        const VERB: &str = "destroy_qp";
        if let Err(error) = self.source.check_acknowledged(VERB) {
            return Err(DestroyError::new(self, error));
        }
        let windows = self.rings.windows().map_or(0, |windows| windows.count());
        if windows > 0 {
            let detail = format!("{windows} memory windows of type 2 may be bound by it: destroy them first");
            return Err(DestroyError::new(self, Error::with(VERB, Errno::EBUSY, detail)));
        }
        match self.failure.destroy(|| self.object.destroy()) {
            Ok(()) => Ok(()),
            Err(errno) => Err(DestroyError::new(self, Error::new(VERB, errno))),
        }
    }

    pub(crate) fn handle(&self) -> u32 {
        self.object.handle()
    }

    pub(crate) fn transport(&self) -> &dyn Transport {
        self.object.transport()
    }

    /// The device would execute requests posted in an earlier state only when it is told again.
    #[inline]
    pub(crate) fn can_send(&self) -> Result<(), PostReason> {
        if self.state < QueuePairState::ReadyToSend {
            Err(PostReason::WrongState(self.state))
        } else {
            Ok(())
        }
    }

    #[inline]
    pub(crate) fn commit_sends(&mut self) -> Result<(), Errno> {
        self.rings.commit_sends(self.object.transport(), self.object.handle())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.object.context().failures().remove(&self.failure);
        if let Some(windows) = self.rings.windows() {
            windows.destroy();
            self.domain.0.release();
        }
        // The kernel does not let one go that is attached.
        for (group, lid) in std::mem::take(&mut self.groups) {
            if let Err(error) = self.detach_multicast(group, lid)
                && error.kind() != ErrorKind::DeviceGone
            {
                log::warn!("QP {:#08x}: {error}", self.qp_num);
            }
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qp_num", &format_args!("{:#08x}", self.qp_num))
            .field("kind", &self.kind)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// Attributes of a QP, `struct ibv_qp_attr`, with its capabilities and `sq_sig_all`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "named and defined as in struct ibv_qp_attr")]
pub struct QueuePairAttributes {
    pub state: QueuePairState,
    pub path_mtu: Option<Mtu>,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    /// What the peer may do.
    pub access_flags: AccessFlags,
    pub capabilities: QueuePairCapabilities,
    /// Where messages go.
    pub address: AddressVector,
    pub pkey_index: u16,
    pub sq_draining: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    /// Code of the RNR timer, see [`ModifyQueuePair::min_rnr_timer`].
    pub min_rnr_timer: u8,
    pub port: u8,
    /// 4.096 µs · 2^n; zero is for ever.
    pub timeout: u8,
    pub retry_count: u8,
    /// 7 is for ever.
    pub rnr_retry: u8,
    /// Whether every send request makes a completion.
    pub signal_all: bool,
}

impl QueuePairAttributes {
    fn new(response: &QueryQpResp) -> Result<Self> {
        let state = QueuePairState::from_number(response.qp_state)
            .ok_or_else(|| Error::with("query_qp", Errno::EPROTO, format!("state {}", response.qp_state)))?;
        let dest = &response.dest;
        Ok(Self {
            state,
            path_mtu: Mtu::from_number(response.path_mtu),
            qkey: response.qkey,
            rq_psn: response.rq_psn,
            sq_psn: response.sq_psn,
            dest_qp_num: response.dest_qp_num,
            access_flags: AccessFlags::from_bits_retain(response.qp_access_flags),
            capabilities: QueuePairCapabilities {
                max_send_wr: response.max_send_wr,
                max_recv_wr: response.max_recv_wr,
                max_send_sge: response.max_send_sge,
                max_recv_sge: response.max_recv_sge,
                max_inline_data: response.max_inline_data,
            },
            address: AddressVector {
                port: dest.port_num,
                dlid: dest.dlid,
                service_level: dest.sl,
                source_path_bits: dest.src_path_bits,
                static_rate: dest.static_rate,
                global_route: (dest.is_global != 0).then_some(GlobalRoute {
                    dgid: Gid(dest.dgid),
                    sgid_index: dest.sgid_index,
                    hop_limit: dest.hop_limit,
                    traffic_class: dest.traffic_class,
                    flow_label: dest.flow_label,
                }),
            },
            pkey_index: response.pkey_index,
            sq_draining: response.sq_draining != 0,
            max_rd_atomic: response.max_rd_atomic,
            max_dest_rd_atomic: response.max_dest_rd_atomic,
            min_rnr_timer: response.min_rnr_timer,
            port: response.port_num,
            timeout: response.timeout,
            retry_count: response.retry_cnt,
            rnr_retry: response.rnr_retry,
            signal_all: response.sq_sig_all != 0,
        })
    }
}

#[cold]
fn explain_create(
    context: &crate::context::ContextInner,
    errno: Errno,
    init: &QueuePairInit<'_>,
) -> Option<String> {
    let (kind, asked, name) = (init.kind, &init.capabilities, context.device().name());
    if errno == Errno::EOPNOTSUPP {
        let taking = if init.unsolicited_writes { " that take unsolicited writes" } else { "" };
        return Some(format!("{name} or its provider has no QPs of type {kind}{taking}"));
    }
    let limits = context.limits().filter(|_| errno == Errno::EINVAL || errno == Errno::ENOMEM)?;
    [
        ("max_send_wr", asked.max_send_wr, limits.max_qp_wr),
        ("max_recv_wr", asked.max_recv_wr, limits.max_qp_wr),
        ("max_send_sge", asked.max_send_sge, limits.max_sge),
        ("max_recv_sge", asked.max_recv_sge, limits.max_sge),
    ]
    .into_iter()
    .find(|(_, asked, most)| asked > most)
    .map(|(what, asked, most)| format!("{what} is {asked}, {name} allows {most}"))
    .or_else(|| {
        (errno == Errno::EINVAL && asked.max_inline_data > 0)
            .then(|| format!("max_inline_data is {}: {name} may allow less", asked.max_inline_data))
    })
}
