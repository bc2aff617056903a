//! Completions and asynchronous events for programs on tokio, feature `tokio`.
//!
//! Other runtimes do the same with the files themselves: [`CompletionChannel`] and
//! [`AsyncEvents`] are [`AsFd`](std::os::fd::AsFd), and the example `epoll` shows how to wait for them.
//!
//! ```no_run
//! use uverbs::tokio::CompletionStream;
//! use uverbs::{Context, WorkCompletion};
//!
//! # async fn example(context: &Context) -> uverbs::Result<()> {
//! let channel = context.create_completion_channel()?;
//! let cq = context.create_completion_queue(64, Some(&channel), 0)?;
//! // Create QPs that complete on it first; they do not need it any more.
//! let mut completions = CompletionStream::new(cq)?;
//! let mut room = [WorkCompletion::default(); 16];
//! for completion in completions.wait(&mut room).await? {
//!     println!("{completion:?}");
//! }
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::task::coop;
use futures_core::Stream;
use uverbs_ioctl::Errno;

use crate::channel::CompletionChannel;
use crate::completion::WorkCompletion;
use crate::cq::CompletionQueue;
use crate::error::{DestroyError, Error, ErrorKind, Result};
use crate::events::{AsyncEvent, AsyncEvents};

const WAIT: &str = "wait";
const GET_EVENT: &str = "get_async_event";

/// A CQ whose completions a task waits for: a [`Stream`] of them, one by one, or [`wait`](Self::wait) for many.
///
/// It arms the CQ, polls again, and only then sleeps, so no completion is missed; nothing is lost when a future of it is dropped.
/// Dropped, it takes the CQ with it.
pub struct CompletionStream {
    queue: CompletionQueue,
    channel: AsyncFd<CompletionChannel>,
}

impl CompletionStream {
    /// Waits for a CQ that has a channel of its own, and keeps it.
    ///
    /// # Errors
    /// With the CQ, as usable as before: [`InvalidInput`](ErrorKind::InvalidInput) (`EINVAL`) if it has no channel, or one that other CQs
    /// report to as well; what `epoll` says.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O, as [`AsyncFd::register`].
    pub fn new(queue: CompletionQueue) -> Result<Self, DestroyError<CompletionQueue>> {
        let register = |channel| {
            // SAFETY: a channel is the owner of its file and never changes it.
            let file = unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) };
            file.map_err(|error| failed(WAIT, &error.into()))
        };
        match queue.own_channel(WAIT).and_then(register) {
            Ok(channel) => Ok(Self { queue, channel }),
            Err(error) => Err(DestroyError::new(queue, error)),
        }
    }

    /// The next completions, as many as there are and fit. The slice is never empty, unless `completions` is.
    ///
    /// # Errors
    /// [`DeviceGone`](ErrorKind::DeviceGone); [`InvalidInput`](ErrorKind::InvalidInput) (`EINVAL`) if another CQ reports to its channel
    /// meanwhile.
    pub async fn wait<'a>(&mut self, completions: &'a mut [WorkCompletion]) -> Result<&'a [WorkCompletion]> {
        let count = poll_fn(|task| self.poll_wait(task, completions)).await?;
        Ok(&completions[..count])
    }

    fn poll_wait(&mut self, task: &mut Context<'_>, room: &mut [WorkCompletion]) -> Poll<Result<usize>> {
        // Where completions keep coming, others have their turn too.
        let turn = ready!(coop::poll_proceed(task));
        loop {
            let count = self.queue.poll(room).len();
            if count > 0 || room.is_empty() {
                turn.made_progress();
                return Poll::Ready(Ok(count));
            }
            // What arrived before the CQ was armed raises no event: poll once more.
            if self.queue.arm_once()? {
                continue;
            }
            // It can have been given to others since.
            self.queue.own_channel(WAIT)?;
            // A device that is gone shows as nothing but an error of the file, which here is readiness to be written.
            let ready = match self.channel.poll_read_ready(task) {
                Poll::Pending => self.channel.poll_write_ready(task),
                ready => ready,
            };
            let mut ready = ready!(ready).map_err(|error| failed(WAIT, &error))?;
            match self.channel.get_ref().try_get_event() {
                Ok(event) => drop(event),
                Err(error) if error.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// The CQ, to poll, arm or resize it.
    pub fn queue(&mut self) -> &mut CompletionQueue {
        &mut self.queue
    }

    /// The CQ back.
    pub fn into_inner(self) -> CompletionQueue {
        self.queue
    }
}

impl Stream for CompletionStream {
    type Item = Result<WorkCompletion>;

    /// It has no end; after an error it has only errors.
    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut completions = [WorkCompletion::default()];
        let count = ready!(self.poll_wait(task, &mut completions));
        Poll::Ready(Some(count.map(|_| completions[0])))
    }
}

impl fmt::Debug for CompletionStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionStream").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// A device's asynchronous events as a [`Stream`]. Each event goes to one reader: have one stream for a context.
///
/// ```no_run
/// use uverbs::tokio::EventStream;
///
/// # async fn example(context: &uverbs::Context) -> uverbs::Result<()> {
/// let mut events = EventStream::new(context.async_events())?;
/// while let Some(event) = events.next().await? {
///     println!("{event}");
/// }
/// println!("the device is gone");
/// # Ok(())
/// # }
/// ```
pub struct EventStream(AsyncFd<AsyncEvents>);

impl EventStream {
    /// Waits for the events of a context.
    ///
    /// # Errors
    /// What `epoll` says.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O, as [`AsyncFd::register`].
    pub fn new(events: AsyncEvents) -> Result<Self> {
        // SAFETY: it shares the context that owns the file, which never changes it.
        let events = unsafe { AsyncFd::register_with_interest(events, Interest::READABLE) };
        events.map(Self).map_err(|error| failed(GET_EVENT, &error.into()))
    }

    /// The next event; nothing behind [`DeviceFatal`](crate::AsyncEventType::DeviceFatal), the last one. Nothing is lost when the
    /// future is dropped.
    ///
    /// # Errors
    /// What reading the file says.
    pub async fn next(&mut self) -> Result<Option<AsyncEvent>> {
        poll_fn(|task| self.poll_event(task)).await
    }

    fn poll_event(&mut self, task: &mut Context<'_>) -> Poll<Result<Option<AsyncEvent>>> {
        loop {
            match self.0.get_ref().try_get_event() {
                Ok(event) => return Poll::Ready(Ok(Some(event))),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::DeviceGone => return Poll::Ready(Ok(None)),
                Err(error) => return Poll::Ready(Err(error)),
            }
            ready!(self.0.poll_read_ready(task)).map_err(|error| failed(GET_EVENT, &error))?.clear_ready();
        }
    }
}

impl Stream for EventStream {
    type Item = Result<AsyncEvent>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(task).map(Result::transpose)
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventStream").field(self.0.get_ref()).finish()
    }
}

fn failed(verb: &'static str, error: &std::io::Error) -> Error {
    Error::new(verb, error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}
