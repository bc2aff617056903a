//! Shared receive queues.

use std::fmt;
use std::sync::Arc;

use uverbs_ioctl::calls::{self, SrqRequest};
use uverbs_ioctl::uapi::user_verbs::QuerySrq;
use uverbs_ioctl::{Errno, Transport};

use crate::context::ContextInner;
use crate::error::{DestroyError, Error, Result};
use crate::events::{AsyncEventElement, EventSource};
use crate::object::{Object, destroy_shared, next_id};
use crate::pd::ProtectionDomain;
use crate::post::{PostError, ReceiveRequest};
use crate::provider::SharedReceiveRing;

/// A shared receive queue (SRQ), `struct ibv_srq`: receives that any of its QPs takes when a message arrives.
///
/// Posting takes `&mut self` and no lock. QPs keep the queue alive in the kernel, but receives can be posted only through this. A
/// completion names the QP that took the receive.
///
/// ```no_run
/// use uverbs::{AccessFlags, Device, QueuePairInit, ReceiveRequest};
///
/// # fn main() -> uverbs::Result<()> {
/// let context = Device::find("rxe0")?.open()?;
/// let domain = context.alloc_protection_domain()?;
/// let cq = context.create_completion_queue(64, None, 0)?;
/// let region = domain.allocate(4096, AccessFlags::LOCAL_WRITE)?;
/// let mut srq = domain.create_shared_receive_queue(64, 1)?;
/// let init = QueuePairInit { shared_receive_queue: Some(&srq), ..QueuePairInit::reliable_connection(&cq) };
/// let qps = [domain.create_queue_pair(&init)?, domain.create_queue_pair(&init)?];
/// srq.post_receive(&[ReceiveRequest::new(1, &[region.sge(0..4096)])])?;
/// // An event when fewer than 16 receives are left.
/// srq.set_limit(16)?;
/// # Ok(())
/// # }
/// ```
pub struct SharedReceiveQueue {
    ring: Box<dyn SharedReceiveRing>,
    max_wr: u32,
    max_sge: u32,
    number: u32,
    shared: Arc<SrqShared>,
}

/// What QPs keep alive of an SRQ.
pub(crate) struct SrqShared {
    // Fields are dropped in this order.
    object: Object,
    source: EventSource,
    domain: ProtectionDomain,
}

impl SrqShared {
    pub(crate) fn id(&self) -> u64 {
        self.source.id()
    }

    pub(crate) fn handle(&self) -> u32 {
        self.object.handle()
    }

    pub(crate) fn context(&self) -> &Arc<ContextInner> {
        self.object.context()
    }
}

impl SharedReceiveQueue {
    pub(crate) fn create(domain: &ProtectionDomain, max_wr: u32, max_sge: u32) -> Result<Self> {
        let context = domain.0.context().clone();
        let id = next_id();
        let request = SrqRequest { pd: domain.handle(), user_handle: id, max_wr, max_sge };
        let new = context.ops().create_srq(context.transport(), &request).map_err(|errno| {
            // Where the driver has none, the kernel does not know the method.
            let errno = if errno == Errno::EPROTONOSUPPORT { Errno::EOPNOTSUPP } else { errno };
            Error::new("create_srq", errno).or_detail(|| explain(&context, errno, max_wr, max_sge))
        })?;
        let destroy = |transport: &dyn Transport, handle| calls::destroy_srq(transport, handle).map(|_| ());
        let source = EventSource::new(&context, id, AsyncEventElement::SharedReceiveQueue(id));
        let object = Object::new(context, new.created.handle, destroy);
        Ok(Self {
            ring: new.ring,
            max_wr: new.created.max_wr,
            max_sge: new.created.max_sge,
            number: new.number,
            shared: Arc::new(SrqShared { object, source, domain: domain.clone() }),
        })
    }

    /// Receives that it holds, at least as many as asked for.
    pub fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// SGEs that a receive can have.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Its number on the device, `ibv_get_srq_num`.
    pub fn srq_num(&self) -> u32 {
        self.number
    }

    /// What events of this SRQ carry. No other object of this process has or had the same.
    pub fn id(&self) -> u64 {
        self.shared.id()
    }

    /// The domain that it belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.shared.domain
    }

    /// Posts receives, `ibv_post_srq_recv`. If one is refused, those before it are posted.
    ///
    /// # Errors
    /// Which one, and why: see [`PostReason`](crate::PostReason).
    #[inline]
    pub fn post_receive(&mut self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        let posted = self.ring.post_receives(requests);
        if posted == requests.len() {
            return Ok(());
        }
        Err(PostError { index: posted, reason: self.ring.receive_refusal(&requests[posted]) })
    }

    /// Asks for one event when fewer than `limit` receives are left, `ibv_modify_srq` with `IBV_SRQ_LIMIT`. It is looked at when a
    /// message takes a receive. Zero asks for none.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) if it is more than the queue holds.
    pub fn set_limit(&mut self, limit: u32) -> Result<()> {
        let object = &self.shared.object;
        self.ring.set_limit(object.transport(), object.handle(), limit).map_err(|errno| {
            modify_failed(errno).or_detail(|| {
                (errno == Errno::EINVAL && limit > self.max_wr)
                    .then(|| format!("a limit of {limit}, the queue holds {}", self.max_wr))
            })
        })
    }

    /// Makes room for at least `max_wr` receives, `ibv_modify_srq` with `IBV_SRQ_MAX_WR`. What is posted stays.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) if it is zero, beyond the device's limit, below the limit that was
    /// set or below what is posted: all stays as it was. [`OutOfResources`](crate::ErrorKind::OutOfResources) (`ENOMEM`): if there is
    /// no address space left to map the new queue, nothing can be posted until another call has succeeded; what is posted is not
    /// lost.
    pub fn resize(&mut self, max_wr: u32) -> Result<()> {
        let object = &self.shared.object;
        match self.ring.resize(object.transport(), object.handle(), max_wr) {
            Ok(granted) => {
                self.max_wr = granted;
                Ok(())
            }
            Err(errno) => Err(modify_failed(errno).or_detail(|| self.explain_resize(errno, max_wr))),
        }
    }

    #[cold]
    fn explain_resize(&self, errno: Errno, max_wr: u32) -> Option<String> {
        if errno != Errno::EINVAL {
            return None;
        }
        let context = self.shared.context();
        let (most, limit) = (context.limits()?.max_srq_wr, self.query().ok()?.limit);
        Some(if max_wr == 0 {
            "a queue of zero receives".to_owned()
        } else if max_wr > most {
            format!("{max_wr} receives, {} allows {most}", context.device().name())
        } else if max_wr < limit {
            format!("{max_wr} receives, but the limit is {limit}")
        } else {
            format!("more than {max_wr} receives may be posted")
        })
    }

    /// Capacities and limit, `ibv_query_srq`. The limit is zero again when it has been reached.
    ///
    /// # Errors
    /// [`DeviceGone`](crate::ErrorKind::DeviceGone).
    pub fn query(&self) -> Result<SharedReceiveQueueAttributes> {
        let request = QuerySrq { srq_handle: self.shared.handle(), ..Default::default() };
        let response = calls::invoke(self.shared.object.transport(), &request)
            .map_err(|errno| Error::new("query_srq", errno))?;
        let (max_wr, max_sge, limit) = (response.max_wr, response.max_sge, response.srq_limit);
        Ok(SharedReceiveQueueAttributes { max_wr, max_sge, limit })
    }

    /// Gives the SRQ back, `ibv_destroy_srq`. What is posted is forgotten without completions.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) (`EBUSY`) while a QP uses it or an event of it has not been dropped.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        const VERB: &str = "destroy_srq";
        let check = |shared: &SrqShared| shared.source.check_acknowledged(VERB);
        destroy_shared(self, VERB, |queue| &mut queue.shared, check, |shared| &mut shared.object)
    }

    pub(crate) fn shared(&self) -> &Arc<SrqShared> {
        &self.shared
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("id", &self.id())
            .field("max_wr", &self.max_wr)
            .field("max_sge", &self.max_sge)
            .finish_non_exhaustive()
    }
}

/// Capacities and limit of an SRQ, `struct ibv_srq_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedReceiveQueueAttributes {
    /// Receives that it holds.
    pub max_wr: u32,
    /// SGEs that a receive can have.
    pub max_sge: u32,
    /// An event comes when fewer receives are left; zero for none.
    pub limit: u32,
}

#[cold]
fn modify_failed(errno: Errno) -> Error {
    Error::new("modify_srq", errno)
}

#[cold]
fn explain(context: &ContextInner, errno: Errno, max_wr: u32, max_sge: u32) -> Option<String> {
    let name = context.device().name();
    if errno == Errno::EOPNOTSUPP {
        return Some(format!("{name} or its provider has no shared receive queues"));
    }
    if max_wr == 0 {
        return Some("a queue of zero receives".to_owned());
    }
    let limits = context.limits()?;
    [("receives", max_wr, limits.max_srq_wr), ("SGEs of a receive", max_sge, limits.max_srq_sge)]
        .into_iter()
        .find(|(_, asked, most)| asked > most)
        .map(|(what, asked, most)| format!("{asked} {what}, {name} allows {most}"))
}
