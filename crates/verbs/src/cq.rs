//! Completion queues.

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use uverbs_ioctl::calls::{self, CqRequest};
use uverbs_ioctl::{Errno, Transport};

use crate::channel::{CompletionChannel, Reporter, deadline};
use crate::completion::{CompletionStatus, WorkCompletion};
use crate::context::{Context, ContextInner};
use crate::error::{DestroyError, Error, Result};
use crate::events::{AsyncEventElement, EventSource, not_acknowledged};
use crate::failure;
use crate::object::{Object, destroy_shared, next_id};
use crate::provider::{CompletionRing, FAILED};

/// A completion queue, `struct ibv_cq`.
///
/// Polling takes `&mut self` and no lock. QPs keep the queue alive in the kernel, but it can be polled only through this.
///
/// ```no_run
/// use std::time::Duration;
/// use uverbs::{Device, WorkCompletion};
///
/// # fn main() -> uverbs::Result<()> {
/// let context = Device::find("rxe0")?.open()?;
/// let channel = context.create_completion_channel()?;
/// let mut cq = context.create_completion_queue(16, Some(&channel), 0)?;
/// // Create QPs that complete here. More of them want more room.
/// cq.resize(64)?;
/// let mut room = [WorkCompletion::default(); 8];
/// for completion in cq.wait(&mut room, Some(Duration::from_secs(1)))? {
///     println!("{completion:?}");
/// }
/// # Ok(())
/// # }
/// ```
pub struct CompletionQueue {
    ring: Box<dyn CompletionRing>,
    entries: u32,
    /// What `completions` goes by.
    stride: usize,
    most: u32,
    shared: Arc<CqShared>,
}

/// What QPs keep alive of a CQ.
pub(crate) struct CqShared {
    // First to go: nothing is read of a CQ that is not there.
    reporter: Option<Reporter>,
    object: Object,
    source: EventSource,
}

impl CqShared {
    pub(crate) fn id(&self) -> u64 {
        self.source.id()
    }

    pub(crate) fn handle(&self) -> u32 {
        self.object.handle()
    }

    pub(crate) fn is_of(&self, context: &Arc<ContextInner>) -> bool {
        Arc::ptr_eq(self.object.context(), context)
    }

    /// Where it reports; an error if it does not.
    fn reporter(&self, verb: &'static str) -> Result<&Reporter> {
        let none = || Error::with(verb, Errno::EINVAL, "the CQ has no completion channel");
        self.reporter.as_ref().ok_or_else(none)
    }

    /// There is a completion of a request that has failed.
    #[cold]
    fn failed(&self, completion: &WorkCompletion) {
        let flushed = completion.status() == CompletionStatus::WR_FLUSH_ERR;
        failure::suspect(self.object.context(), completion.qp_num(), flushed);
    }
}

impl CompletionQueue {
    pub(crate) fn create(
        context: &Context,
        entries: u32,
        channel: Option<&CompletionChannel>,
        vector: u32,
    ) -> Result<Self> {
        const VERB: &str = "create_cq";
        if channel.is_some_and(|channel| !Arc::ptr_eq(channel.0.context(), context.inner())) {
            return Err(Error::with(VERB, Errno::EINVAL, "the channel belongs to another context"));
        }
        let id = next_id();
        let request = CqRequest {
            cqe: entries,
            user_handle: id,
            comp_vector: vector,
            channel: channel.map(|channel| channel.0.fd()),
        };
        let new = context.inner().ops().create_cq(context.transport(), &request).map_err(|errno| {
            Error::new(VERB, errno).or_detail(|| explain(context, errno, entries, vector))
        })?;
        let destroy = |transport: &dyn Transport, handle| calls::destroy_cq(transport, handle).map(|_| ());
        let shared = Arc::new(CqShared {
            object: Object::new(context.inner().clone(), new.handle, destroy),
            source: EventSource::new(context.inner(), id, AsyncEventElement::CompletionQueue(id)),
            reporter: channel.map(|channel| Reporter::new(channel, id)),
        });
        let mut this = Self { ring: new.ring, entries: 0, stride: 0, most: 0, shared };
        this.measure(new.entries);
        Ok(this)
    }

    /// Number of completions that it holds, at least as many as asked for, `cqe`. One more is lost, and breaks the QP.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// What events of this CQ carry. No other CQ of this process has or had the same.
    pub fn id(&self) -> u64 {
        self.shared.id()
    }

    /// Takes completions, `ibv_poll_cq`: as many as there are and fit, oldest first. The slice returned has those.
    ///
    /// It costs no system call, allocates nothing, and takes no lock but one on EFA that others hold only while they create or destroy a
    /// QP. (Failed completions do: a QP that has failed is helped to flush receives, see
    /// [`post_receive`](crate::QueuePair::post_receive).)
    #[inline]
    pub fn poll<'a>(&mut self, completions: &'a mut [WorkCompletion]) -> &'a [WorkCompletion] {
        let mut taken = self.ring.poll(completions);
        // One comparison for two questions: whether there is a failure, and whether the number is in the slice.
        if taken > completions.len() {
            taken = self.look_after(completions, taken);
        }
        &completions[..taken]
    }

    /// There are failures among the completions taken.
    #[cold]
    #[inline(never)]
    fn look_after(&self, completions: &[WorkCompletion], taken: usize) -> usize {
        let count = taken & !FAILED;
        for completion in &completions[..count] {
            if !completion.is_success() {
                self.shared.failed(completion);
            }
        }
        count
    }

    /// Takes completions one after the other and reads of each what is asked for, where it lies: `ibv_start_poll`. On soft-RoCE
    /// that is less work than [`poll`](Self::poll) where few fields matter; on EFA it is more.
    ///
    /// ```no_run
    /// # fn example(cq: &mut uverbs::CompletionQueue) -> Result<(), uverbs::CompletionError> {
    /// let mut completions = cq.completions();
    /// while let Some(completion) = completions.next() {
    ///     completion.success()?;
    ///     println!("{} has completed", completion.wr_id());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn completions(&mut self) -> Completions<'_> {
        let (stride, most) = (self.stride, self.most);
        Completions {
            ring: &mut *self.ring,
            shared: &self.shared,
            next: Next(ptr::null()),
            left: 0,
            stride,
            seen: 0,
            most,
        }
    }

    /// It has so many entries.
    fn measure(&mut self, entries: u32) {
        self.entries = entries;
        self.stride = self.ring.stride();
        // As long as some are not given back there is that much less room.
        self.most = (entries / 4).clamp(1, 64);
    }

    /// Makes room for at least `entries` completions, `ibv_resize_cq`. Those that are there stay, in order.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) if it is zero, beyond the device's limit or below the number of
    /// completions that are there: all stays as it was. [`OutOfResources`](crate::ErrorKind::OutOfResources) (`ENOMEM`): if there is no
    /// address space left to map the new queue, nothing is found in it until another call has succeeded; no completion is lost.
    /// [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) on EFA.
    pub fn resize(&mut self, entries: u32) -> Result<()> {
        const VERB: &str = "resize_cq";
        let object = &self.shared.object;
        match self.ring.resize(object.transport(), object.handle(), entries) {
            Ok(granted) => {
                self.measure(granted);
                Ok(())
            }
            Err(errno) => Err(Error::new(VERB, errno).or_detail(|| {
                if errno != Errno::EINVAL {
                    return None;
                }
                let out_of_range = explain_entries(object.context(), entries);
                out_of_range.or_else(|| Some(format!("more than {entries} completions may be there")))
            })),
        }
    }

    /// Asks for one event on the channel when the next completion arrives, `ibv_req_notify_cq`. With `solicited_only`, only a
    /// message that was sent with [`SOLICITED`](crate::SendFlags::SOLICITED) counts.
    ///
    /// Completions that are there already raise no event: poll after arming, before waiting.
    ///
    /// # Errors
    /// [`DeviceGone`](crate::ErrorKind::DeviceGone); [`InvalidInput`](crate::ErrorKind::InvalidInput) without a channel;
    /// [`Unsupported`](crate::ErrorKind::Unsupported) (`EOPNOTSUPP`) for `solicited_only` on EFA.
    pub fn arm(&mut self, solicited_only: bool) -> Result<()> {
        const VERB: &str = "req_notify_cq";
        let reports = &self.shared.reporter(VERB)?.reports;
        let object = &self.shared.object;
        // Before the kernel is asked: the event may be read by another thread before it has answered.
        reports.armed.fetch_or(!solicited_only, Ordering::AcqRel);
        let events = reports.events.load(Ordering::Acquire);
        self.ring.arm(object.transport(), object.handle(), solicited_only, events).map_err(|errno| {
            reports.armed.store(false, Ordering::Release);
            let detail = (errno == Errno::EOPNOTSUPP && solicited_only)
                .then(|| "the device cannot tell solicited completions apart".to_owned());
            Error::new(VERB, errno).or_detail(|| detail)
        })
    }

    /// Waits for completions: polls, and if there are none arms, polls again, and sleeps on the channel. The slice returned is
    /// empty only if `timeout` has passed; `None` waits for ever.
    ///
    /// The channel must be this CQ's alone: otherwise events of the others would be taken here. For a shared channel, use
    /// [`CompletionChannel::wait`].
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) without a channel of its own;
    /// [`DeviceGone`](crate::ErrorKind::DeviceGone).
    pub fn wait<'a>(
        &mut self,
        completions: &'a mut [WorkCompletion],
        timeout: Option<Duration>,
    ) -> Result<&'a [WorkCompletion]> {
        const VERB: &str = "wait";
        let mut count = self.poll(completions).len();
        if count > 0 || completions.is_empty() {
            return Ok(&completions[..count]);
        }
        let deadline = deadline(timeout);
        let channel = self.own_channel(VERB)?;
        while count == 0 {
            self.arm_once()?;
            // What arrived before the CQ was armed raises no event.
            count = self.poll(completions).len();
            if count == 0 {
                let event = channel.0.sleep(deadline)?;
                // An event left over from an earlier round may have nothing behind it.
                count = self.poll(completions).len();
                if event.is_none() {
                    break;
                }
            }
        }
        Ok(&completions[..count])
    }

    /// The channel, if no other CQ reports to it.
    pub(crate) fn own_channel(&self, verb: &'static str) -> Result<CompletionChannel> {
        let channel = &self.shared.reporter(verb)?.channel;
        match channel.queue_count() {
            0 | 1 => Ok(CompletionChannel(channel.clone())),
            sharing => {
                let detail = format!("{sharing} CQs share the channel: wait on the channel");
                Err(Error::with(verb, Errno::EINVAL, detail))
            }
        }
    }

    /// Arms it, unless it is armed still: one event a sleep is enough, and the kernel's list of them does not grow. Whether it was
    /// not.
    pub(crate) fn arm_once(&mut self) -> Result<bool> {
        let armed = |reporter: &Reporter| reporter.reports.armed.load(Ordering::Acquire);
        let armed = self.shared.reporter.as_ref().is_some_and(armed);
        if !armed {
            self.arm(false)?;
        }
        Ok(!armed)
    }

    /// Gives the CQ back, `ibv_destroy_cq`.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) (`EBUSY`) while a QP uses it or an event of it has not been dropped.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        const VERB: &str = "destroy_cq";
        let check = |shared: &CqShared| {
            let unacknowledged =
                |reporter: &Reporter| reporter.reports.unacknowledged.load(Ordering::Acquire);
            let completions = shared.reporter.as_ref().map_or(0, unacknowledged);
            match completions + shared.source.unacknowledged() {
                0 => Ok(()),
                events => Err(not_acknowledged(VERB, events)),
            }
        };
        destroy_shared(self, VERB, |queue| &mut queue.shared, check, |shared| &mut shared.object)
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }
}

/// Completions that are taken one after the other, from [`CompletionQueue::completions`].
///
/// Those that were seen are taken for good; the others stay when this is dropped (`ibv_end_poll`). Room in the queue is given back then,
/// and before that when there is no completion left or a quarter of the queue has been seen. It never waits. It is no `Iterator`: a
/// completion can be looked at until the next one is.
pub struct Completions<'a> {
    ring: &'a mut dyn CompletionRing,
    shared: &'a CqShared,
    /// The next one, if any are left of those that have been found.
    next: Next,
    left: u32,
    stride: usize,
    /// Those that were seen and are not given back, and the most there may be of them.
    seen: u32,
    most: u32,
}

/// Where a completion of the ring is.
struct Next(*const WorkCompletion);

// SAFETY: it is followed only by whoever has the ring, which can be sent.
unsafe impl Send for Next {}
// SAFETY: as above.
unsafe impl Sync for Next {}

impl Completions<'_> {
    /// The next completion, oldest first, `ibv_next_poll`; nothing if there is none now, which changes nothing.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "an iterator could not lend what it gives")]
    pub fn next(&mut self) -> Option<&WorkCompletion> {
        if self.left == 0 && !self.look() {
            return None;
        }
        // SAFETY: it has been found, and stays as it is until the ring is used again, which takes `self`. Any bits make a completion.
        let completion = unsafe { &*self.next.0 };
        self.next.0 = self.next.0.wrapping_byte_add(self.stride);
        self.left -= 1;
        self.seen += 1;
        if !completion.is_success() {
            self.shared.failed(completion);
        }
        Some(completion)
    }

    /// Whether more are found.
    #[inline]
    fn look(&mut self) -> bool {
        if self.seen == self.most {
            self.give_back();
        }
        let (first, count) = self.ring.peek(self.seen);
        if count == 0 {
            self.give_back();
            return false;
        }
        (self.next.0, self.left) = (first, count.min(self.most - self.seen));
        true
    }

    #[inline]
    fn give_back(&mut self) {
        if self.seen > 0 {
            self.ring.take(self.seen);
            self.seen = 0;
        }
    }
}

impl Drop for Completions<'_> {
    #[inline]
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for Completions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("id", &self.id())
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}

#[cold]
fn explain(context: &Context, errno: Errno, entries: u32, vector: u32) -> Option<String> {
    if errno != Errno::EINVAL {
        return None;
    }
    explain_entries(context.inner(), entries).or_else(|| {
        let (name, vectors) = (context.device().name(), context.completion_vectors());
        (vector >= vectors)
            .then(|| format!("completion vector {vector}, {name} has {vectors}, counted from 0"))
    })
}

#[cold]
fn explain_entries(context: &ContextInner, entries: u32) -> Option<String> {
    if entries == 0 {
        return Some("a CQ of zero entries".to_owned());
    }
    let most = context.limits()?.max_cqe;
    (entries > most).then(|| format!("{entries} entries, {} allows {most}", context.device().name()))
}
