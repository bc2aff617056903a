//! Memory windows.

use std::ops::RangeInclusive;

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::ioctl_verbs::AccessFlags;
use uverbs_uapi::rxe::SendWrMw;
use uverbs_uapi::user_verbs::{AllocMw, AllocMwResp};
use uverbs_uapi::values::mw_type;

use crate::attributes::{Form, must};
use crate::context::Session;
use crate::memory::Segment;
use crate::methods::{Method, destroy};
use crate::table::Kind;
use crate::wire::State;

/// They lie above those of regions, so that a key tells what it is of.
pub(crate) const MW_NUMBERS: RangeInclusive<u32> = 0x8_0001..=0x10_0000;

#[derive(Debug)]
pub(crate) struct Mw {
    pd: u32,
    kind: u32,
    rkey: u32,
    bound: Option<Bound>,
}

/// What a window is bound to.
#[derive(Debug)]
struct Bound {
    mr: u32,
    /// The QP whose peer may use it, for a window of type 2.
    qp: Option<u32>,
    address: u64,
    access: AccessFlags,
}

pub(crate) const METHODS: &[Method] = &[Method {
    object: object::MW,
    method: method::mw::DESTROY,
    attributes: &[must(attr::destroy_mw::HANDLE, Form::Handle(Kind::Mw))],
    run: |session, attributes| destroy(session, attributes, attr::destroy_mw::HANDLE),
}];

impl Session<'_> {
    pub(crate) fn alloc_mw(&mut self, request: &AllocMw) -> Result<AllocMwResp> {
        let kind = u32::from(request.mw_type);
        let pd = self.pd(request.pd_handle)?;
        if !matches!(kind, mw_type::TYPE_1 | mw_type::TYPE_2) {
            return Err(Errno::EINVAL);
        }
        let low = u32::from(self.state.next_key());
        let number = self.state.mws.insert(|number| Mw { pd, kind, rkey: number << 8 | low, bound: None })?;
        self.state.use_pd(pd);
        Ok(AllocMwResp { mw_handle: self.handle(Kind::Mw, number), rkey: number << 8 | low })
    }
}

/// Whether a key is a window's.
pub(crate) fn is_window(rkey: u32) -> bool {
    rkey >> 8 >= *MW_NUMBERS.start()
}

impl State {
    /// A stretch of what a window is bound to, for the peer of a QP.
    pub(crate) fn window_segment(
        &self,
        (qp, pd): (u32, u32),
        rkey: u32,
        access: AccessFlags,
        (address, length): (u64, u64),
    ) -> Option<Segment> {
        let mw = self.mws.get(rkey >> 8).filter(|mw| mw.rkey == rkey && mw.pd == pd)?;
        let bound = mw.bound.as_ref()?;
        if bound.qp.is_some_and(|of| of != qp) || !bound.access.contains(access) {
            return None;
        }
        // Like the driver, this does not look at the window's end, but at that of the region.
        let zero_based = bound.access.contains(AccessFlags::ZERO_BASED);
        let address = if zero_based { address.checked_add(bound.address)? } else { address };
        self.mrs.get(bound.mr)?.segment(address, length)
    }

    /// Binds a window, by a request of a QP. Says whether that could be done.
    pub(crate) fn bind_window(&mut self, (qp, pd): (u32, u32), request: &SendWrMw) -> bool {
        let Some(mw) = self.mws.get(request.mw_rkey >> 8).filter(|mw| mw.rkey == request.mw_rkey) else {
            return false;
        };
        let access = AccessFlags::from_bits_retain(request.access);
        let remote = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        if !(remote | AccessFlags::ZERO_BASED | AccessFlags::LOCAL_WRITE).contains(access) {
            return false;
        }
        let type_2 = mw.kind == mw_type::TYPE_2;
        let allowed = if type_2 {
            mw.bound.is_none() && request.length > 0
        } else {
            !access.contains(AccessFlags::ZERO_BASED)
        };
        if mw.pd != pd || !allowed {
            return false;
        }
        let bound = if request.length > 0 {
            let Some(mr) = self.bindable(pd, request, access) else { return false };
            Some(Bound { mr, qp: type_2.then_some(qp), address: request.addr, access })
        } else {
            None
        };
        self.unbind(request.mw_rkey >> 8);
        if let Some(mr) = bound.as_ref().and_then(|bound| self.mrs.get_mut(bound.mr)) {
            mr.windows += 1;
        }
        if let Some(mw) = self.mws.get_mut(request.mw_rkey >> 8) {
            mw.rkey = mw.rkey & !0xff | request.rkey & 0xff;
            mw.bound = bound;
        }
        true
    }

    /// The region of a binding, if a window of that domain with that access can be bound to that stretch of it.
    fn bindable(&self, pd: u32, request: &SendWrMw, access: AccessFlags) -> Option<u32> {
        let number = request.mr_lkey >> 8;
        let mr = self.mrs.get(number).filter(|mr| mr.key == request.mr_lkey && mr.pd == pd)?;
        let writes = access.intersects(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC);
        let allowed = mr.access.contains(AccessFlags::MW_BIND)
            && !mr.access.contains(AccessFlags::ZERO_BASED)
            && (!writes || mr.access.contains(AccessFlags::LOCAL_WRITE));
        let fits = if access.contains(AccessFlags::ZERO_BASED) {
            request.length <= mr.length
        } else {
            mr.segment(request.addr, request.length).is_some()
        };
        (allowed && fits).then_some(number)
    }

    /// Invalidates a key, by a request of a QP or of its peer. Says whether that could be done.
    pub(crate) fn invalidate(&mut self, rkey: u32) -> bool {
        let bound = self
            .mws
            .get(rkey >> 8)
            .is_some_and(|mw| mw.rkey == rkey && mw.kind == mw_type::TYPE_2 && mw.bound.is_some());
        if bound {
            self.unbind(rkey >> 8);
        }
        bound
    }

    fn unbind(&mut self, number: u32) {
        let bound = self.mws.get_mut(number).and_then(|mw| mw.bound.take());
        if let Some(mr) = bound.and_then(|bound| self.mrs.get_mut(bound.mr)) {
            mr.windows -= 1;
        }
    }

    /// A QP goes, and with it what its peer could reach.
    pub(crate) fn unbind_from(&mut self, qp: u32) {
        let of_qp = |(number, mw): (&u32, &Mw)| {
            mw.bound.as_ref().is_some_and(|bound| bound.qp == Some(qp)).then_some(*number)
        };
        let numbers: Vec<_> = self.mws.iter().filter_map(of_qp).collect();
        numbers.into_iter().for_each(|number| self.unbind(number));
    }

    pub(crate) fn destroy_mw(&mut self, number: u32) -> Result<()> {
        self.unbind(number);
        if let Some(mw) = self.mws.remove(number) {
            self.unuse_pd(mw.pd);
        }
        Ok(())
    }
}
