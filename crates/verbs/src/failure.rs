//! QPs that fail by themselves.
//!
//! Receives that are posted to a QP in the error state are to complete as flushed. The kernel of soft-RoCE does so with those that are
//! there when the QP gets into the state, but does not see others arrive: it looks again when the QP is moved to the state once more.
//! Who posts must not pay for asking in which state the QP is, so this goes by what a failure leaves behind: a failed completion, or an
//! event. Whoever finds one marks the QP and makes the kernel look; whoever posts looks at the mark afterwards.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, compiler_fence};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::thread::{MembarrierCommand, membarrier};
use uverbs_ioctl::uapi::user_verbs::{ModifyQp, QueryQp};
use uverbs_ioctl::uapi::values::{QpAttrMask, qp_state};
use uverbs_ioctl::{Errno, Transport, calls};

use crate::context::ContextInner;
use crate::provider::FAILED;
use crate::qp::QueuePairState;

/// The QPs of a context, by number.
#[derive(Default)]
pub(crate) struct Failures(Mutex<FxHashMap<u32, Arc<Failure>>>);

impl Failures {
    /// A new QP.
    pub(crate) fn insert(&self, failure: &Arc<Failure>) {
        if failure.watched {
            self.0.lock().insert(failure.qp_num, failure.clone());
        }
    }

    /// The QP is about to go.
    pub(crate) fn remove(&self, failure: &Arc<Failure>) {
        failure.handle.lock().take();
        if let Entry::Occupied(there) = self.0.lock().entry(failure.qp_num)
            && Arc::ptr_eq(there.get(), failure)
        {
            there.remove();
        }
    }
}

/// What is known about the failure of a QP.
pub(crate) struct Failure {
    /// [`FAILED`] if it has failed, or may have; else zero.
    mark: AtomicUsize,
    /// Whether that matters: it has receives that have to be flushed.
    watched: bool,
    qp_num: u32,
    /// Its handle, as long as it is there. Held while its state is changed.
    handle: Mutex<Option<u32>>,
}

impl Failure {
    /// Of a new QP.
    pub(crate) fn new(handle: u32, qp_num: u32, watched: bool) -> Arc<Self> {
        Arc::new(Self { mark: AtomicUsize::new(0), watched, qp_num, handle: Mutex::new(Some(handle)) })
    }

    /// [`FAILED`] if the QP has failed, or may have; else zero.
    #[inline]
    pub(crate) fn mark(&self) -> usize {
        // Not before what was posted has been shown to the kernel. See `everywhere`.
        compiler_fence(Ordering::SeqCst);
        self.mark.load(Ordering::Relaxed)
    }

    /// Changes the state of the QP by its owner's will.
    pub(crate) fn change(
        &self,
        state: Option<QueuePairState>,
        change: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let _alone = self.handle.lock();
        change()?;
        match state {
            Some(QueuePairState::Error) if self.watched => self.mark.store(FAILED, Ordering::Relaxed),
            Some(QueuePairState::Reset) => self.mark.store(0, Ordering::Relaxed),
            _ => {}
        }
        Ok(())
    }

    /// Destroys the QP.
    pub(crate) fn destroy(&self, destroy: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let mut handle = self.handle.lock();
        destroy()?;
        handle.take();
        Ok(())
    }

    /// Makes the kernel look for receives to flush, if the QP has failed.
    pub(crate) fn flush(&self, transport: &dyn Transport) {
        if let Some(handle) = *self.handle.lock()
            && is_in_error(transport, handle)
        {
            enter_error(transport, handle);
        }
    }
}

/// There is a sign that the QP of that number has failed: a failed completion or an event. A flushed completion says for sure that it
/// was in the error state; another failure may come just before it gets there.
#[cold]
pub(crate) fn suspect(context: &ContextInner, qp_num: u32, flushed: bool) {
    let failure = context.failures().0.lock().get(&qp_num).cloned();
    let Some(failure) = failure.filter(|failure| failure.mark.load(Ordering::Relaxed) == 0) else {
        return;
    };
    let handle = failure.handle.lock();
    let Some(handle) = *handle else { return };
    // The sign may be an old one: of a QP that has been reset since, or of one that had the number before.
    if flushed && !is_in_error(context.transport(), handle) {
        return;
    }
    failure.mark.store(FAILED, Ordering::Relaxed);
    everywhere();
    if is_in_error(context.transport(), handle) {
        enter_error(context.transport(), handle);
    }
}

/// Makes what this thread has written visible to all threads, and what they have written to the kernel when it is called next. So
/// that those who post need no barrier of their own: either they see the mark, or the kernel sees what they have posted.
fn everywhere() {
    let expedited = membarrier(MembarrierCommand::RegisterPrivateExpedited)
        .and_then(|()| membarrier(MembarrierCommand::PrivateExpedited));
    if let Err(error) = expedited.or_else(|_| membarrier(MembarrierCommand::Global)) {
        log::debug!("membarrier: {error}");
    }
}

fn is_in_error(transport: &dyn Transport, qp_handle: u32) -> bool {
    let request = QueryQp { qp_handle, attr_mask: QpAttrMask::STATE.bits(), ..Default::default() };
    calls::invoke(transport, &request).is_ok_and(|response| u32::from(response.qp_state) == qp_state::ERR)
}

fn enter_error(transport: &dyn Transport, qp_handle: u32) {
    let request = ModifyQp {
        qp_handle,
        attr_mask: QpAttrMask::STATE.bits(),
        qp_state: qp_state::ERR as u8,
        ..Default::default()
    };
    if let Err(errno) = calls::invoke(transport, &request) {
        log::warn!("receives of a QP that has failed are not flushed: {errno}");
    }
}
