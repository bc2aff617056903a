//! Protection domains.

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::user_verbs::{AllocPd, AllocPdResp};

use crate::attributes::{Form, must};
use crate::context::Session;
use crate::methods::{Method, destroy};
use crate::table::Kind;
use crate::wire::State;

#[derive(Debug)]
pub(crate) struct Pd {
    /// Objects that belong to it.
    pub(crate) users: u32,
}

pub(crate) const METHODS: &[Method] = &[Method {
    object: object::PD,
    method: method::pd::DESTROY,
    attributes: &[must(attr::destroy_pd::HANDLE, Form::Handle(Kind::Pd))],
    run: |session, attributes| destroy(session, attributes, attr::destroy_pd::HANDLE),
}];

impl Session<'_> {
    pub(crate) fn alloc_pd(&mut self, _: &AllocPd) -> Result<AllocPdResp> {
        let number = self.state.pds.insert(|_| Pd { users: 0 })?;
        Ok(AllocPdResp { pd_handle: self.handle(Kind::Pd, number) })
    }

    /// The domain with that handle.
    pub(crate) fn pd(&self, handle: u32) -> Result<u32> {
        self.number(Kind::Pd, handle)
    }
}

impl State {
    pub(crate) fn use_pd(&mut self, number: u32) {
        if let Some(pd) = self.pds.get_mut(number) {
            pd.users += 1;
        }
    }

    pub(crate) fn unuse_pd(&mut self, number: u32) {
        if let Some(pd) = self.pds.get_mut(number) {
            pd.users -= 1;
        }
    }

    pub(crate) fn destroy_pd(&mut self, number: u32) -> Result<()> {
        if self.pds.get(number).is_some_and(|pd| pd.users > 0) {
            return Err(Errno::EBUSY);
        }
        self.pds.remove(number);
        Ok(())
    }
}
