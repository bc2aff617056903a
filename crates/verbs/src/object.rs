//! What all kernel objects of a context have in common.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uverbs_ioctl::{Errno, Transport};

use crate::context::ContextInner;
use crate::error::{DestroyError, Error, Result};

/// A number for events to name an object by. It is never used twice in this process, so that a late event cannot be taken for one of
/// a later object.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A handle of the kernel, destroyed at the latest when it is dropped.
pub(crate) struct Object {
    context: Arc<ContextInner>,
    handle: u32,
    destroy: fn(&dyn Transport, u32) -> Result<(), Errno>,
    live: bool,
}

impl Object {
    pub(crate) fn new(
        context: Arc<ContextInner>,
        handle: u32,
        destroy: fn(&dyn Transport, u32) -> Result<(), Errno>,
    ) -> Self {
        Self { context, handle, destroy, live: true }
    }

    pub(crate) fn context(&self) -> &Arc<ContextInner> {
        &self.context
    }

    pub(crate) fn transport(&self) -> &dyn Transport {
        self.context.transport()
    }

    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    /// Destroys it in the kernel. A device that is gone has taken its objects with it.
    pub(crate) fn destroy(&mut self) -> Result<(), Errno> {
        if self.live {
            match (self.destroy)(self.context.transport(), self.handle) {
                Ok(()) | Err(Errno::EIO) => self.live = false,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Moves it out of a place that is dropped.
    pub(crate) fn take(&mut self) -> Self {
        let live = std::mem::take(&mut self.live);
        Self { context: self.context.clone(), handle: self.handle, destroy: self.destroy, live }
    }

    /// Leaves it to the kernel, without a word.
    pub(crate) fn abandon(&mut self) {
        self.live = false;
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if let Err(errno) = self.destroy() {
            log::warn!(
                "object {} of {} is left to the kernel: {errno}",
                self.handle,
                self.context.device().name()
            );
        }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("device", &self.context.device().name())
            .field("handle", &self.handle)
            .finish()
    }
}

/// Destroys the object in the part of `owner` that others share, if nobody else does and `check` has nothing against it.
pub(crate) fn destroy_shared<W, T>(
    mut owner: W,
    verb: &'static str,
    shared: fn(&mut W) -> &mut Arc<T>,
    check: impl FnOnce(&T) -> Result<()>,
    object: fn(&mut T) -> &mut Object,
) -> Result<(), DestroyError<W>> {
    let shared = shared(&mut owner);
    let users = Arc::strong_count(shared).saturating_sub(1);
    let outcome = check(shared).and_then(|()| match Arc::get_mut(shared) {
        Some(alone) => object(alone).destroy().map_err(|errno| Error::new(verb, errno)),
        None => {
            let detail = format!("still in use {users} times, by other objects or as copies");
            Err(Error::with(verb, Errno::EBUSY, detail))
        }
    });
    outcome.map_err(|error| DestroyError::new(owner, error))
}
