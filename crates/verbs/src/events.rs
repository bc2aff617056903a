//! Asynchronous events.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use uverbs_ioctl::uapi::values::event_type;
use uverbs_ioctl::{Errno, Transport, calls, events};

use crate::channel::deadline;
use crate::context::ContextInner;
use crate::error::{Error, Result};
use crate::failure;

const GET_EVENT: &str = "get_async_event";

/// How long a thread sleeps before it looks whether the device has gone.
const GLANCE: Duration = Duration::from_secs(1);

/// Where a device reports what happens to it and to the objects of a context: ports that go up and down, CQs that overrun, SRQs that
/// run low.
///
/// It is a file ([`AsFd`]), non-blocking, that is readable while an event waits: for `poll`, `epoll` and async runtimes. Copies, and
/// those of the context, read the same events; each event goes to one of them.
///
/// ```no_run
/// use uverbs::{AsyncEventElement, AsyncEventType, Device};
///
/// # fn main() -> uverbs::Result<()> {
/// let context = Device::find("rxe0")?.open()?;
/// let events = context.async_events();
/// while let Some(event) = events.wait(None)? {
///     match (event.kind(), event.element()) {
///         (AsyncEventType::PortError, AsyncEventElement::Port(port)) => println!("port {port} is down"),
///         (AsyncEventType::DeviceFatal, _) => break,
///         _ => println!("{event}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncEvents(pub(crate) Arc<ContextInner>);

impl AsyncEvents {
    /// Makes the file non-blocking, which those who do not ask for events are spared.
    pub(crate) fn new(context: &Arc<ContextInner>) -> Self {
        if let Err(errno) = events::set_nonblocking(&context.async_file().fd) {
            log::error!("the file of asynchronous events stays blocking: {errno}");
        }
        Self(context.clone())
    }

    /// The next event if there is one, `ibv_get_async_event` on a non-blocking file.
    ///
    /// # Errors
    /// [`WouldBlock`](crate::ErrorKind::WouldBlock) (`EAGAIN`) if there is none; [`DeviceGone`](crate::ErrorKind::DeviceGone) (`EIO`)
    /// behind [`DeviceFatal`](AsyncEventType::DeviceFatal), the last one.
    pub fn try_get_event(&self) -> Result<AsyncEvent> {
        self.read().map_err(|errno| Error::new(GET_EVENT, errno))
    }

    /// The next event, or nothing if none arrives within `timeout`: `ibv_get_async_event`. `None` waits for ever. Signals do not end
    /// the wait. Any number of threads may wait; each event goes to one of them.
    ///
    /// # Errors
    /// [`DeviceGone`](crate::ErrorKind::DeviceGone) (`EIO`) behind [`DeviceFatal`](AsyncEventType::DeviceFatal), the last one.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>> {
        let failed = |errno| Error::new(GET_EVENT, errno);
        let (deadline, file) = (deadline(timeout), self.0.async_file());
        loop {
            match self.read() {
                Ok(event) => return Ok(Some(event)),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
            // The kernel wakes nobody whose last event another thread has taken.
            let soon = Instant::now() + GLANCE;
            let until = deadline.map_or(soon, |deadline| deadline.min(soon));
            let readable = events::wait_readable(&file.fd, Some(until)).map_err(failed)?;
            if !readable && deadline == Some(until) {
                return Ok(None);
            }
        }
    }
}

impl AsyncEvents {
    fn read(&self) -> Result<AsyncEvent, Errno> {
        use AsyncEventType::{QueuePairAccessError, QueuePairFatal, QueuePairRequestError};
        let event = self.0.async_file().read()?;
        if let AsyncEventElement::QueuePair(qp_num) = event.element
            && matches!(event.kind, QueuePairAccessError | QueuePairFatal | QueuePairRequestError)
        {
            failure::suspect(&self.0, qp_num, false);
        }
        Ok(event)
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.async_file().fd.as_fd()
    }
}

impl AsRawFd for AsyncEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncEvents").field("fd", &self.as_fd()).finish_non_exhaustive()
    }
}

/// The file of a context's asynchronous events.
pub(crate) struct AsyncFile {
    fd: OwnedFd,
    /// Held while an event is read, so that nothing happens in between to the object that it is of.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The objects that events can be of, by the number that the events carry.
    sources: FxHashMap<u64, Arc<Source>>,
    /// Whether the last event has been read: the kernel has no other sign for the end.
    ended: bool,
}

impl AsyncFile {
    pub(crate) fn new(transport: &dyn Transport) -> Result<Self, Errno> {
        Ok(Self { fd: calls::alloc_async_event(transport)?, state: Mutex::default() })
    }

    /// Reads events until one is of an object that is still there, or of none. It never sleeps: for who has [`AsyncEvents`], the file is
    /// non-blocking.
    fn read(&self) -> Result<AsyncEvent, Errno> {
        use AsyncEventElement as Element;
        let mut state = self.state.lock();
        loop {
            let raw = match events::read_async_event(&self.fd) {
                Err(Errno::EAGAIN) if state.ended => return Err(Errno::EIO),
                result => result?,
            };
            let kind = AsyncEventType::from_number(raw.event_type);
            let element = match kind.subject() {
                Subject::Object => {
                    let Some(source) = state.sources.get(&raw.element).cloned() else { continue };
                    source.unacknowledged.fetch_add(1, Ordering::Relaxed);
                    return Ok(AsyncEvent { kind, element: source.element, source: Some(source) });
                }
                Subject::Port => Element::Port(u32::try_from(raw.element).unwrap_or(u32::MAX)),
                Subject::Device => Element::Device,
                Subject::Unknown => Element::Other(raw.element),
            };
            state.ended |= kind == AsyncEventType::DeviceFatal;
            return Ok(AsyncEvent { kind, element, source: None });
        }
    }
}

/// What an object and the events of it share.
struct Source {
    element: AsyncEventElement,
    unacknowledged: AtomicU32,
}

/// An object's entry among those that events can be of, for as long as the object is there.
pub(crate) struct EventSource {
    id: u64,
    context: Arc<ContextInner>,
    source: Arc<Source>,
}

impl EventSource {
    pub(crate) fn new(context: &Arc<ContextInner>, id: u64, element: AsyncEventElement) -> Self {
        let source = Arc::new(Source { element, unacknowledged: AtomicU32::new(0) });
        context.async_file().state.lock().sources.insert(id, source.clone());
        Self { id, context: context.clone(), source }
    }

    /// What events of the object carry.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// How many events of the object have been read and not been dropped.
    pub(crate) fn unacknowledged(&self) -> u32 {
        self.source.unacknowledged.load(Ordering::Acquire)
    }

    /// An error if there are such events.
    pub(crate) fn check_acknowledged(&self, verb: &'static str) -> Result<()> {
        match self.unacknowledged() {
            0 => Ok(()),
            events => Err(not_acknowledged(verb, events)),
        }
    }
}

impl Drop for EventSource {
    fn drop(&mut self) {
        self.context.async_file().state.lock().sources.remove(&self.id);
    }
}

/// An object cannot be destroyed because of its events.
#[cold]
pub(crate) fn not_acknowledged(verb: &'static str, events: u32) -> Error {
    Error::with(verb, Errno::EBUSY, format!("{events} of its events are not acknowledged: drop them"))
}

/// Something has happened, `struct ibv_async_event`.
///
/// Dropped, it acknowledges itself on its own object, as `ibv_ack_async_event` does: an object with events that are not acknowledged
/// cannot be destroyed, where libibverbs would wait. (It can be dropped; the event then still says which one it was.)
#[must_use = "it says what has happened"]
pub struct AsyncEvent {
    kind: AsyncEventType,
    element: AsyncEventElement,
    source: Option<Arc<Source>>,
}

impl AsyncEvent {
    /// What has happened.
    pub fn kind(&self) -> AsyncEventType {
        self.kind
    }

    /// To what.
    pub fn element(&self) -> AsyncEventElement {
        self.element
    }
}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        if let Some(source) = &self.source {
            source.unacknowledged.fetch_sub(1, Ordering::Release);
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.kind, self.element)
    }
}

impl fmt::Debug for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncEvent").field("kind", &self.kind).field("element", &self.element).finish()
    }
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEventElement {
    /// The CQ with this [`id`](crate::CompletionQueue::id).
    CompletionQueue(u64),
    /// The QP with this [number](crate::QueuePair::qp_num).
    QueuePair(u32),
    /// The SRQ with this [`id`](crate::SharedReceiveQueue::id).
    SharedReceiveQueue(u64),
    /// A port, counted from 1.
    Port(u32),
    /// The device.
    Device,
    /// What the kernel gave with an event that this version does not know.
    Other(u64),
}

impl fmt::Display for AsyncEventElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CompletionQueue(id) => write!(f, "CQ {id}"),
            Self::QueuePair(number) => write!(f, "QP {number:#08x}"),
            Self::SharedReceiveQueue(id) => write!(f, "SRQ {id}"),
            Self::Port(number) => write!(f, "port {number}"),
            Self::Device => f.write_str("device"),
            Self::Other(element) => write!(f, "element {element}"),
        }
    }
}

/// What kind of thing an event is about.
#[derive(Clone, Copy)]
enum Subject {
    Object,
    Port,
    Device,
    Unknown,
}

macro_rules! event_types {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:ident, $text:literal, $subject:ident;)*) => {
        /// What has happened, `enum ibv_event_type`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum AsyncEventType {
            $($(#[doc = $doc])+ $name,)*
            /// One that this version does not know.
            Other(u32),
        }

        impl AsyncEventType {
            /// From the number of `enum ibv_event_type`.
            pub fn from_number(number: u32) -> Self {
                match number {
                    $(event_type::$number => Self::$name,)*
                    _ => Self::Other(number),
                }
            }

            /// The number of `enum ibv_event_type`.
            pub fn number(self) -> u32 {
                match self {
                    $(Self::$name => event_type::$number,)*
                    Self::Other(number) => number,
                }
            }

            fn subject(self) -> Subject {
                match self {
                    $(Self::$name => Subject::$subject,)*
                    Self::Other(_) => Subject::Unknown,
                }
            }
        }

        impl fmt::Display for AsyncEventType {
            /// As `ibv_event_type_str` writes it.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)*
                    Self::Other(_) => "unknown",
                })
            }
        }
    };
}

event_types! {
    /// A CQ has overrun, or failed otherwise: completions are lost.
    CompletionQueueError = CQ_ERR, "CQ error", Object;
    /// A QP has failed for a reason of the device's.
    QueuePairFatal = QP_FATAL, "local work queue catastrophic error", Object;
    /// A QP has had an invalid request from its peer.
    QueuePairRequestError = QP_REQ_ERR, "invalid request local work queue error", Object;
    /// A QP's peer has tried to reach memory that it may not reach.
    QueuePairAccessError = QP_ACCESS_ERR, "local access violation work queue error", Object;
    /// A message has arrived before the QP was ready to send.
    CommunicationEstablished = COMM_EST, "communication established", Object;
    /// A QP in SQD has sent what it had begun.
    SendQueueDrained = SQ_DRAINED, "send queue drained", Object;
    /// A connection has moved to its other path.
    PathMigrated = PATH_MIG, "path migrated", Object;
    /// A connection could not be moved to its other path.
    PathMigrationError = PATH_MIG_ERR, "path migration request error", Object;
    /// The device has been removed, or is broken. No event follows.
    DeviceFatal = DEVICE_FATAL, "local catastrophic error", Device;
    /// A port has come up.
    PortActive = PORT_ACTIVE, "port active", Port;
    /// A port has gone down.
    PortError = PORT_ERR, "port error", Port;
    /// A port has another LID.
    LidChange = LID_CHANGE, "LID change", Port;
    /// A port's table of partition keys has changed.
    PartitionKeyChange = PKEY_CHANGE, "P_Key change", Port;
    /// A port has another subnet manager.
    SubnetManagerChange = SM_CHANGE, "SM change", Port;
    /// An SRQ has failed.
    SharedReceiveQueueError = SRQ_ERR, "SRQ catastrophic error", Object;
    /// Fewer receives are left in an SRQ than its [limit](crate::SharedReceiveQueue::set_limit) says.
    SharedReceiveQueueLimitReached = SRQ_LIMIT_REACHED, "SRQ limit reached", Object;
    /// A QP in the error state has taken its last receive from its SRQ.
    LastWqeReached = QP_LAST_WQE_REACHED, "last WQE reached", Object;
    /// The subnet manager asks for everything to be registered with it again.
    ClientReregister = CLIENT_REREGISTER, "client reregistration", Port;
    /// A port's table of GIDs has changed.
    GidChange = GID_CHANGE, "GID table change", Port;
    /// A work queue has failed.
    WorkQueueFatal = WQ_FATAL, "WQ fatal", Object;
    /// A port has another speed.
    DeviceSpeedChange = DEVICE_SPEED_CHANGE, "Device link speed change", Port;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_numbers_and_texts_of_the_field() {
        for (number, text) in [
            (0, "CQ error"),
            (8, "local catastrophic error"),
            (9, "port active"),
            (10, "port error"),
            (15, "SRQ limit reached"),
            (16, "last WQE reached"),
            (18, "GID table change"),
            (20, "Device link speed change"),
            (21, "unknown"),
        ] {
            let kind = AsyncEventType::from_number(number);
            assert_eq!((kind.to_string().as_str(), kind.number()), (text, number));
        }
        assert_eq!(AsyncEventType::from_number(99), AsyncEventType::Other(99));
    }

    #[test]
    fn events_say_what_they_are_about() {
        let event = |kind, element| AsyncEvent { kind, element, source: None }.to_string();
        let port = event(AsyncEventType::PortActive, AsyncEventElement::Port(1));
        assert_eq!(port, "port active, port 1");
        let qp = event(AsyncEventType::LastWqeReached, AsyncEventElement::QueuePair(17));
        assert_eq!(qp, "last WQE reached, QP 0x000011");
    }
}
