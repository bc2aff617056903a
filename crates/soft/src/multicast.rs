//! Multicast groups.

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_verbs::qp_type;
use uverbs_uapi::user_verbs::{AttachMcast, DetachMcast};

use crate::context::Session;
use crate::qp::Qp;
use crate::table::Kind;

/// The most QPs that may be in a group.
const MOST: usize = 56;

/// A group that a QP is in: its GID, and the LID, which tells nothing here.
pub(crate) type Group = ([u8; 16], u16);

/// Whether a GID is made of an IPv4 address.
pub(crate) fn is_v4(gid: &[u8; 16]) -> bool {
    gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
}

/// Whether it is that of a group.
pub(crate) fn is_group(gid: &[u8; 16]) -> bool {
    gid[0] == 0xff || is_v4(gid) && gid[12] & 0xf0 == 0xe0
}

impl Session<'_> {
    pub(crate) fn attach_multicast(&mut self, request: &AttachMcast) -> Result<()> {
        let group = (request.gid, request.mlid);
        let members = self.state.qps.values().filter(|qp| qp.is_in(&request.gid)).count();
        let qp = self.member(request.qp_handle)?;
        if qp.groups.contains(&group) {
            return Ok(());
        }
        if !is_group(&request.gid) || qp.kind != qp_type::UD {
            return Err(Errno::EINVAL);
        }
        if members >= MOST {
            return Err(Errno::ENOMEM);
        }
        qp.groups.push(group);
        Ok(())
    }

    pub(crate) fn detach_multicast(&mut self, request: &DetachMcast) -> Result<()> {
        let qp = self.member(request.qp_handle)?;
        let place = qp.groups.iter().position(|group| *group == (request.gid, request.mlid));
        qp.groups.swap_remove(place.ok_or(Errno::EINVAL)?);
        Ok(())
    }

    fn member(&mut self, handle: u32) -> Result<&mut Qp> {
        let number = self.number(Kind::Qp, handle)?;
        self.state.qps.get_mut(number).ok_or(Errno::ENOENT)
    }
}

impl Qp {
    /// Whether it gets what is sent to that group.
    pub(crate) fn is_in(&self, gid: &[u8; 16]) -> bool {
        self.groups.iter().any(|(group, _)| group == gid)
    }
}
