//! Completion channels.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use uverbs_ioctl::{Errno, calls, events};

use crate::context::{Context, ContextInner};
use crate::error::{DestroyError, Error, Result};

const GET_EVENT: &str = "get_cq_event";

/// Where completion queues report that completions have arrived, `struct ibv_comp_channel`. Copies are of the same channel.
///
/// It is a file ([`AsFd`]), non-blocking, that is readable while an event waits: for `poll`, `epoll` and async runtimes. A CQ reports only once
/// after it has been [armed](crate::CompletionQueue::arm), and only completions that arrive after that: arm, then poll the CQ
/// until it is empty, and only then wait.
///
/// ```no_run
/// use uverbs::{Device, WorkCompletion};
///
/// # fn main() -> uverbs::Result<()> {
/// let context = Device::find("rxe0")?.open()?;
/// let channel = context.create_completion_channel()?;
/// let mut queues = [
///     context.create_completion_queue(16, Some(&channel), 0)?,
///     context.create_completion_queue(16, Some(&channel), 0)?,
/// ];
/// for queue in &mut queues {
///     queue.arm(false)?;
/// }
/// while let Some(event) = channel.wait(None)? {
///     for queue in queues.iter_mut().filter(|queue| queue.id() == event.queue_id()) {
///         queue.arm(false)?;
///         while !queue.poll(&mut [WorkCompletion::default(); 4]).is_empty() {}
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CompletionChannel(pub(crate) Arc<ChannelInner>);

pub(crate) struct ChannelInner {
    fd: OwnedFd,
    /// Of the CQs that report here, by the number that their events carry.
    queues: Mutex<FxHashMap<u64, Arc<Reports>>>,
    /// Keeps the device open.
    context: Arc<ContextInner>,
}

/// What a CQ, its channel and its events share. They do not keep the CQ alive.
pub(crate) struct Reports {
    id: u64,
    pub(crate) unacknowledged: AtomicU32,
    /// Whether the next completion raises an event, or has raised one that nobody has read.
    pub(crate) armed: AtomicBool,
    /// Number of events that have been read.
    pub(crate) events: AtomicU32,
}

/// A CQ's place among those that report to a channel.
pub(crate) struct Reporter {
    pub(crate) channel: Arc<ChannelInner>,
    pub(crate) reports: Arc<Reports>,
}

impl Reporter {
    /// Of a new CQ, whose events carry that number.
    pub(crate) fn new(channel: &CompletionChannel, id: u64) -> Self {
        let (unacknowledged, armed, events) = Default::default();
        let reports = Arc::new(Reports { id, unacknowledged, armed, events });
        channel.0.queues.lock().insert(id, reports.clone());
        Self { channel: channel.0.clone(), reports }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.channel.queues.lock().remove(&self.reports.id);
    }
}

impl ChannelInner {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn context(&self) -> &Arc<ContextInner> {
        &self.context
    }

    pub(crate) fn queue_count(&self) -> usize {
        self.queues.lock().len()
    }

    /// Reads events until one is of a CQ that is still there. It never sleeps: the file is non-blocking.
    fn read(&self) -> Result<CompletionEvent, Errno> {
        loop {
            let id = events::read_completion_event(&self.fd)?;
            let queue = self.queues.lock().get(&id).cloned();
            if let Some(queue) = queue {
                queue.unacknowledged.fetch_add(1, Ordering::Relaxed);
                queue.events.fetch_add(1, Ordering::Release);
                queue.armed.store(false, Ordering::Release);
                return Ok(CompletionEvent(queue));
            }
        }
    }

    /// The next event, unless the deadline passes first.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Result<Option<CompletionEvent>> {
        match self.read() {
            Ok(event) => Ok(Some(event)),
            Err(Errno::EAGAIN | Errno::EINTR) => self.sleep(deadline),
            Err(errno) => Err(Error::new(GET_EVENT, errno)),
        }
    }

    /// The same, for one who expects that there is none yet.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) -> Result<Option<CompletionEvent>> {
        let failed = |errno| Error::new(GET_EVENT, errno);
        while events::wait_readable(&self.fd, deadline).map_err(failed)? {
            match self.read() {
                Ok(event) => return Ok(Some(event)),
                // Somebody else was faster.
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(None)
    }
}

impl CompletionChannel {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let failed = |errno| Error::new("create_comp_channel", errno);
        let fd = calls::create_comp_channel(context.transport()).map_err(failed)?;
        events::set_nonblocking(&fd).map_err(failed)?;
        Ok(Self(Arc::new(ChannelInner { fd, queues: Mutex::default(), context: context.inner().clone() })))
    }

    /// The next event if there is one, `ibv_get_cq_event` on a non-blocking file.
    ///
    /// # Errors
    /// [`WouldBlock`](crate::ErrorKind::WouldBlock) (`EAGAIN`) if there is none; [`DeviceGone`](crate::ErrorKind::DeviceGone) (`EIO`).
    pub fn try_get_event(&self) -> Result<CompletionEvent> {
        self.0.read().map_err(|errno| Error::new(GET_EVENT, errno))
    }

    /// The next event, or nothing if none arrives within `timeout`: `ibv_get_cq_event`. `None` waits for ever. Signals do not end the
    /// wait. Any number of threads may wait; each event goes to one of them.
    ///
    /// # Errors
    /// [`DeviceGone`](crate::ErrorKind::DeviceGone) (`EIO`).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CompletionEvent>> {
        self.0.wait(deadline(timeout))
    }

    /// Gives the channel back, `ibv_destroy_comp_channel`.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) (`EBUSY`) while a CQ reports to it, or a copy of it is there.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        match Arc::try_unwrap(self.0) {
            Ok(_closed_when_dropped) => Ok(()),
            Err(inner) => {
                let detail = match inner.queue_count() {
                    0 => "copies of it are still there".to_owned(),
                    count => format!("{count} completion queues report to it"),
                };
                let error = Error::with("destroy_comp_channel", Errno::EBUSY, detail);
                Err(DestroyError::new(Self(inner), error))
            }
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("fd", &self.0.fd).finish_non_exhaustive()
    }
}

/// The moment when a timeout is over; `None`, for ever, also stands for what is further away than clocks can tell.
pub(crate) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// A CQ has had a completion since it was armed.
///
/// Dropped, it acknowledges itself on its own CQ, as `ibv_ack_cq_events` does: a CQ with events that are not acknowledged
/// cannot be destroyed.
#[must_use = "it says which CQ to poll"]
pub struct CompletionEvent(Arc<Reports>);

impl CompletionEvent {
    /// Which CQ: the one with this [`id`](crate::CompletionQueue::id).
    pub fn queue_id(&self) -> u64 {
        self.0.id
    }
}

impl Drop for CompletionEvent {
    fn drop(&mut self) {
        self.0.unacknowledged.fetch_sub(1, Ordering::Release);
    }
}

impl fmt::Debug for CompletionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionEvent").field("queue_id", &self.queue_id()).finish()
    }
}
