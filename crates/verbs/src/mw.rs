//! Memory windows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::{fmt, mem, ptr};

use parking_lot::Mutex;
use uverbs_ioctl::uapi::user_verbs::AllocMw;
use uverbs_ioctl::uapi::values::mw_type;
use uverbs_ioctl::{Errno, calls};

use crate::error::{DestroyError, Error, Result};
use crate::mr::{AccessFlags, MemoryRegion};
use crate::object::{Object, next_id};
use crate::pd::{Domain, ProtectionDomain};
use crate::post::{PostReason, RemoteMemory};

const BIND: &str = "bind_mw";

/// What a window can be bound with. The kernel of Linux 6.12 loses references where it is given others.
const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND)
    .union(AccessFlags::ZERO_BASED)
    .union(AccessFlags::FLUSH_GLOBAL)
    .union(AccessFlags::FLUSH_PERSISTENT);

/// Type of a memory window, `enum ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryWindowType {
    /// Type 1: any peer of the protection domain may use it. It can be bound anew at any time, which ends the earlier binding.
    Type1 = mw_type::TYPE_1 as isize,
    /// Type 2: only the peer of the QP that has bound it may use it. It has to be invalidated before it is bound anew, by either side:
    /// [`SendRequest::local_invalidate`](crate::SendRequest::local_invalidate), [`invalidate`](crate::SendRequest::invalidate).
    Type2 = mw_type::TYPE_2 as isize,
}

/// A memory window, `struct ibv_mw`: a remote key for a part of a memory region, given out and taken back without a system call.
///
/// A request binds it, [`bind_memory_window`](crate::SendRequest::bind_memory_window): for both types, where libibverbs has
/// `ibv_bind_mw` for type 1.
///
/// Access through it ends when it is bound elsewhere, invalidated or destroyed. A region to which a window is bound cannot be
/// deregistered: its `destroy` says so, and if it is dropped it goes when a window or a QP of the domain does and it is bound no more,
/// since peers still reach it until then. A QP that is dropped takes the windows of type 2 that it has bound with it.
///
/// soft-RoCE keeps peers to the access rights of the window and inside of its region, but not inside of the window.
///
/// ```no_run
/// # use uverbs::{AccessFlags, CompletionQueue, MemoryRegion, MemoryWindowType, QueuePair, RemoteMemory, Result, SendRequest};
/// # fn example(qp: &mut QueuePair, cq: &mut CompletionQueue, region: &MemoryRegion) -> Result<()> {
/// // The region allows MW_BIND.
/// let window = region.protection_domain().alloc_memory_window(MemoryWindowType::Type2)?;
/// let binding = window.binding(region, 0..4096, AccessFlags::REMOTE_WRITE)?;
/// let remote: RemoteMemory = binding.remote();
/// qp.post_send_list(&[SendRequest::bind_memory_window(1, binding).signaled()])?;
/// // When it has completed:
/// window.note_bound(remote)?;
/// // The peer, told of `remote`, writes there. Then the key is taken back:
/// qp.post_send_list(&[SendRequest::local_invalidate(2, window.rkey()).signaled()])?;
/// // When that has completed:
/// window.note_invalidated();
/// # Ok(())
/// # }
/// ```
pub struct MemoryWindow {
    shared: Arc<Shared>,
    kind: MemoryWindowType,
    domain: ProtectionDomain,
}

/// What a window has in common with the QP that has bound it.
struct Shared(Mutex<State>);

struct State {
    object: Object,
    rkey: u32,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// No QP has it.
    Free,
    /// A QP may have bound it, or may bind it yet.
    QueuePair {
        /// Of its [`BoundWindows`].
        id: u64,
        qp_num: u32,
        /// Whether it is bound when all that has been posted has been executed. If a binding of it fails, so does the QP: nothing behind
        /// it is executed.
        bound: bool,
    },
    /// It has been destroyed.
    Gone,
}

impl Place {
    /// Whether it is the QP with those windows.
    fn is_at(self, owner: u64) -> bool {
        matches!(self, Self::QueuePair { id, .. } if id == owner)
    }
}

impl MemoryWindow {
    pub(crate) fn alloc(domain: &ProtectionDomain, kind: MemoryWindowType) -> Result<Self> {
        const VERB: &str = "alloc_mw";
        let context = domain.0.context();
        let request = AllocMw { pd_handle: domain.handle(), mw_type: kind as u8, ..Default::default() };
        let response = calls::invoke(context.transport(), &request).map_err(|errno| {
            let none = || format!("{} has no memory windows of that type", context.device().name());
            Error::new(VERB, errno).or_detail(|| (errno == Errno::EOPNOTSUPP).then(none))
        })?;
        let object = Object::new(context.clone(), response.mw_handle, calls::destroy_mw);
        let state = State { object, rkey: response.rkey, place: Place::Free };
        Ok(Self { shared: Arc::new(Shared(Mutex::new(state))), kind, domain: domain.clone() })
    }

    /// Its type.
    pub fn kind(&self) -> MemoryWindowType {
        self.kind
    }

    /// Its remote key: the one of the last binding that was [noted](Self::note_bound). Before the first one it gives access to nothing.
    pub fn rkey(&self) -> u32 {
        self.shared.0.lock().rkey
    }

    /// The domain that it belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// A binding to a range of a region, with the next key. Bytes are named as in the region, or with
    /// [`ZERO_BASED`](AccessFlags::ZERO_BASED) counted from the start of the range.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) if the range is empty or not inside of the region; for access that
    /// windows do not have, `ZERO_BASED` with type 1, and a window that has gone with its QP;
    /// [`PermissionDenied`](crate::ErrorKind::PermissionDenied) (`EPERM`) if the region belongs to another domain.
    ///
    /// What only the device knows shows when the request completes: with [`MW_BIND_ERR`](crate::CompletionStatus::MW_BIND_ERR), or on
    /// newer soft-RoCE (seen on Linux 6.12 and 7.3) as flushed, where the region lacks `MW_BIND`, or `LOCAL_WRITE` for remote writes
    /// and atomics, and where the window is bound already. A window of type 2 that was not bound already belongs to the QP until that is
    /// [noted](Self::note_invalidated).
    pub fn binding(
        &self,
        region: &MemoryRegion,
        range: Range<usize>,
        access: AccessFlags,
    ) -> Result<WindowBinding<'_>> {
        let refuse = |errno, detail| Err(Error::with(BIND, errno, detail));
        if !Arc::ptr_eq(&self.domain.0, &region.protection_domain().0) {
            return refuse(Errno::EPERM, "window and region belong to different domains".to_owned());
        }
        let (start, length) = (range.start, range.len());
        if length == 0 || range.end > region.len() {
            let whole = region.len();
            return refuse(Errno::EINVAL, format!("{length} bytes at {start} of a region of {whole}"));
        }
        if access.contains(AccessFlags::ZERO_BASED) && self.kind == MemoryWindowType::Type1 {
            return refuse(Errno::EINVAL, "windows of type 1 cannot be ZERO_BASED".to_owned());
        }
        if !(access - ACCESS).is_empty() {
            return refuse(Errno::EINVAL, format!("windows do not take {:?}", access - ACCESS));
        }
        let address = region.address() + start as u64;
        self.next(WindowBinding {
            window: self,
            window_rkey: 0,
            rkey: 0,
            lkey: region.lkey(),
            address,
            length: length as u64,
            access,
        })
    }

    /// A binding to nothing, which ends the one of a window of type 1.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) for a window of type 2, which is invalidated instead.
    pub fn unbinding(&self) -> Result<WindowBinding<'_>> {
        if self.kind == MemoryWindowType::Type2 {
            let detail = "windows of type 2 are not bound to nothing, but invalidated";
            return Err(Error::with(BIND, Errno::EINVAL, detail));
        }
        let access = AccessFlags::empty();
        let (window_rkey, rkey, lkey) = (0, 0, 0);
        self.next(WindowBinding { window: self, window_rkey, rkey, lkey, address: 0, length: 0, access })
    }

    /// The binding, from the window's key to the next one.
    fn next<'a>(&'a self, binding: WindowBinding<'a>) -> Result<WindowBinding<'a>> {
        let state = self.shared.0.lock();
        if state.place == Place::Gone {
            return Err(Error::with(
                BIND,
                Errno::EINVAL,
                "the window has gone with the QP that had bound it",
            ));
        }
        let window_rkey = state.rkey;
        Ok(WindowBinding { window_rkey, rkey: next_key(window_rkey), ..binding })
    }

    /// Notes that a binding has been executed, or surely will be: its [`remote`](WindowBinding::remote) tells the key that the window has
    /// now, `mw->rkey`.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) (`EINVAL`) for a key that the window cannot have.
    pub fn note_bound(&self, remote: RemoteMemory) -> Result<()> {
        let mut state = self.shared.0.lock();
        if index(remote.rkey) != index(state.rkey) {
            let detail =
                format!("{:#x} is no key of the window, which has {:#x} now", remote.rkey, state.rkey);
            return Err(Error::with(BIND, Errno::EINVAL, detail));
        }
        state.rkey = remote.rkey;
        Ok(())
    }

    /// Notes that a window of type 2 has been invalidated, by either side, or that a binding of it has failed: it is bound to nothing. Only
    /// then can another QP bind it.
    ///
    /// From then on the QP that had bound it is destroyed without it. If it is still bound, the kernel waits 50 seconds for that.
    pub fn note_invalidated(&self) {
        let mut state = self.shared.0.lock();
        if let Place::QueuePair { .. } = state.place {
            state.place = Place::Free;
        }
    }

    /// Gives it back, bound or not, `ibv_dealloc_mw`.
    ///
    /// # Errors
    /// [`DeviceGone`](crate::ErrorKind::DeviceGone).
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        match self.shared.destroy() {
            Ok(()) => Ok(()),
            Err(errno) => Err(DestroyError::new(self, Error::new("dealloc_mw", errno))),
        }
    }
}

impl Shared {
    fn destroy(&self) -> Result<(), Errno> {
        let mut state = self.0.lock();
        state.object.destroy()?;
        state.place = Place::Gone;
        Ok(())
    }

    fn is_at(&self, owner: u64) -> bool {
        self.0.lock().place.is_at(owner)
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if let Err(errno) = self.shared.destroy() {
            log::warn!("{self:?} is left to the kernel: {errno}");
        }
        self.domain.0.release();
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("kind", &self.kind)
            .field("rkey", &format_args!("{:#x}", self.rkey()))
            .finish_non_exhaustive()
    }
}

/// What a memory window is to be bound to, `struct ibv_mw_bind`. [`MemoryWindow::binding`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct WindowBinding<'a> {
    pub(crate) window: &'a MemoryWindow,
    /// The key that the window has.
    pub(crate) window_rkey: u32,
    /// The key that it gets.
    pub(crate) rkey: u32,
    pub(crate) lkey: u32,
    pub(crate) address: u64,
    /// Zero for nothing.
    pub(crate) length: u64,
    pub(crate) access: AccessFlags,
}

impl WindowBinding<'_> {
    /// The first byte of the window as peers have to name it.
    pub fn remote(&self) -> RemoteMemory {
        let zero_based = self.access.contains(AccessFlags::ZERO_BASED);
        RemoteMemory { address: if zero_based { 0 } else { self.address }, rkey: self.rkey }
    }
}

/// The part of a key that is the device's.
fn index(rkey: u32) -> u32 {
    rkey >> 8
}

/// The next of the 256 keys of a window, `ibv_inc_rkey`.
fn next_key(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// The windows of type 2 that a QP may have bound, by the part of their keys that never changes.
///
/// They are destroyed before the QP is. The kernel has them hold on to the QP: it would wait for them for 50 seconds, then free the QP
/// all the same.
pub(crate) struct BoundWindows {
    /// Numbers of QPs are those of a device, and used again.
    id: u64,
    qp_num: u32,
    /// The QP's.
    domain: Weak<Domain>,
    windows: HashMap<u32, Arc<Shared>>,
    /// Where windows were before the requests that the device has not been shown yet.
    before: Vec<(Arc<Shared>, Place)>,
}

impl BoundWindows {
    pub(crate) fn new(qp_num: u32) -> Self {
        let (domain, windows, before) = Default::default();
        Self { id: next_id(), qp_num, domain, windows, before }
    }

    /// Says which domain the QP belongs to: windows of others are refused.
    pub(crate) fn belong_to(&mut self, domain: &ProtectionDomain) {
        self.domain = Arc::downgrade(&domain.0);
    }

    /// Notes that the QP is about to bind a window.
    pub(crate) fn bind(&mut self, window: &MemoryWindow) -> Result<(), PostReason> {
        if !ptr::eq(self.domain.as_ptr(), Arc::as_ptr(&window.domain.0)) {
            return Err(PostReason::OtherDomain);
        }
        if window.kind == MemoryWindowType::Type1 {
            return Ok(());
        }
        let mut state = window.shared.0.lock();
        match state.place {
            Place::QueuePair { id, qp_num, .. } if id != self.id => {
                return Err(PostReason::WindowElsewhere { qp_num });
            }
            Place::Gone => return Err(PostReason::WindowGone),
            Place::QueuePair { .. } | Place::Free => {}
        }
        let place = Place::QueuePair { id: self.id, qp_num: self.qp_num, bound: true };
        self.before.push((window.shared.clone(), mem::replace(&mut state.place, place)));
        let index = index(state.rkey);
        drop(state);
        // Before it takes more memory, those that have left are forgotten.
        if self.windows.len() == self.windows.capacity() {
            self.windows.retain(|_, window| window.is_at(self.id));
        }
        self.windows.insert(index, window.shared.clone());
        Ok(())
    }

    /// Notes that the QP is about to invalidate a key, if that is of a window that is bound then.
    pub(crate) fn invalidate(&mut self, rkey: u32) -> Result<(), PostReason> {
        let none = PostReason::NotBound { rkey };
        let window = self.windows.get(&index(rkey)).ok_or(none)?;
        let mut state = window.0.lock();
        let before = state.place;
        match &mut state.place {
            Place::QueuePair { id, bound, .. } if *id == self.id && *bound => *bound = false,
            _ => return Err(none),
        }
        self.before.push((window.clone(), before));
        Ok(())
    }

    /// The device has been shown the requests.
    #[inline]
    pub(crate) fn commit(&mut self) {
        self.before.clear();
    }

    /// The requests that the device has not been shown are forgotten.
    #[inline]
    pub(crate) fn rewind(&mut self) {
        while let Some((window, before)) = self.before.pop() {
            let mut state = window.0.lock();
            // Not if it has been noted, meanwhile, that it is elsewhere.
            if state.place.is_at(self.id) {
                state.place = before;
            }
        }
    }

    /// The QP has forgotten its requests, and nobody can say which of them it has executed.
    pub(crate) fn reset(&mut self) {
        self.rewind();
        for window in self.windows.values() {
            if let Place::QueuePair { id, bound, .. } = &mut window.0.lock().place
                && *id == self.id
            {
                *bound = false;
            }
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.windows.values().filter(|window| window.is_at(self.id)).count()
    }

    /// Destroys them.
    pub(crate) fn destroy(&mut self) {
        for (_, window) in self.windows.drain().filter(|(_, window)| window.is_at(self.id)) {
            if let Err(errno) = window.destroy() {
                log::warn!("a memory window of QP {:#08x} is left to the kernel: {errno}", self.qp_num);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::next_key;

    #[test]
    fn only_the_low_byte_of_a_key_changes() {
        assert_eq!(next_key(0x0123_4567), 0x0123_4568);
        assert_eq!(next_key(0x0123_45ff), 0x0123_4500);
        assert_eq!(next_key(u32::MAX), 0xffff_ff00);
    }
}
