//! Memory regions.

use std::ops::RangeInclusive;

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::ioctl_verbs::{ACCESS_OPTIONAL_RANGE, AccessFlags};
use uverbs_uapi::user_verbs::{RegMr, RegMrResp, ReregMr, ReregMrResp};
use uverbs_uapi::values::MrReregFlags;

use crate::attributes::{Form, may, must};
use crate::context::Session;
use crate::memory::{Segment, populate};
use crate::methods::{Method, destroy};
use crate::table::Kind;
use crate::wire::State;

pub(crate) const MR_NUMBERS: RangeInclusive<u32> = 1..=0x8_0000;

/// Access that memory has to be writable for.
const WRITES: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND);

/// A region that the user has registered.
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) pd: u32,
    start: u64,
    pub(crate) length: u64,
    pub(crate) iova: u64,
    pub(crate) access: AccessFlags,
    /// Its memory may be written, whatever its access is by now.
    writable: bool,
    /// Its number, and a byte that tells it from the region that had the number before.
    pub(crate) key: u32,
    /// Windows bound to it.
    pub(crate) windows: u32,
}

pub(crate) const METHODS: &[Method] = &[
    Method {
        object: object::MR,
        method: method::mr::DESTROY,
        attributes: &[must(attr::destroy_mr::HANDLE, Form::Handle(Kind::Mr))],
        run: |session, attributes| destroy(session, attributes, attr::destroy_mr::HANDLE),
    },
    Method {
        object: object::MR,
        method: method::mr::QUERY,
        attributes: &[
            must(attr::query_mr::HANDLE, Form::Handle(Kind::Mr)),
            must(attr::query_mr::RESP_LKEY, Form::Out(4)),
            must(attr::query_mr::RESP_RKEY, Form::Out(4)),
            must(attr::query_mr::RESP_LENGTH, Form::Out(8)),
            may(attr::query_mr::RESP_IOVA, Form::Out(8)),
        ],
        run: |session, attributes| {
            let number = session.number(Kind::Mr, attributes.handle(attr::query_mr::HANDLE)?)?;
            let mr = session.state.mrs.get(number).ok_or(Errno::ENOENT)?;
            attributes.output(attr::query_mr::RESP_LKEY, &mr.key)?;
            attributes.output(attr::query_mr::RESP_RKEY, &mr.key)?;
            attributes.output(attr::query_mr::RESP_LENGTH, &mr.length)?;
            attributes.output_if_wanted(attr::query_mr::RESP_IOVA, &mr.iova)
        },
    },
    Method {
        object: object::MR,
        method: method::mr::REG_DMABUF,
        attributes: &[
            must(attr::reg_dmabuf_mr::HANDLE, Form::New),
            must(attr::reg_dmabuf_mr::PD_HANDLE, Form::Handle(Kind::Pd)),
            must(attr::reg_dmabuf_mr::OFFSET, Form::In(8)),
            must(attr::reg_dmabuf_mr::LENGTH, Form::In(8)),
            must(attr::reg_dmabuf_mr::IOVA, Form::In(8)),
            must(attr::reg_dmabuf_mr::FD, Form::In(4)),
            may(attr::reg_dmabuf_mr::ACCESS_FLAGS, Form::Flags(u64::MAX)),
            must(attr::reg_dmabuf_mr::RESP_LKEY, Form::Out(4)),
            must(attr::reg_dmabuf_mr::RESP_RKEY, Form::Out(4)),
        ],
        // The driver has none.
        run: |_, _| Err(Errno::EOPNOTSUPP),
    },
    Method {
        object: object::MR,
        method: method::mr::ADVISE,
        attributes: &[
            must(attr::advise_mr::PD_HANDLE, Form::Handle(Kind::Pd)),
            must(attr::advise_mr::ADVICE, Form::Constant(u32::MAX as u64)),
            may(attr::advise_mr::FLAGS, Form::Flags(1)),
            must(attr::advise_mr::SGE_LIST, Form::AtLeast(16)),
        ],
        // Nor has it this, where it cannot page on demand.
        run: |_, _| Err(Errno::EOPNOTSUPP),
    },
];

impl Session<'_> {
    pub(crate) fn reg_mr(&mut self, request: &RegMr) -> Result<RegMrResp> {
        let page = rustix::param::page_size() as u64 - 1;
        if request.start & page != request.hca_va & page {
            return Err(Errno::EINVAL);
        }
        let access = check_access(request.access_flags)?;
        let pd = self.pd(request.pd_handle)?;
        supported(access)?;
        let end = request.start.checked_add(request.length).and_then(|end| end.checked_add(page));
        // Nothing at the beginning of a page is no page; elsewhere it is one.
        let pages = (end.ok_or(Errno::EINVAL)? / (page + 1)) - request.start / (page + 1);
        if pages == 0 || pages > u32::MAX.into() {
            return Err(Errno::EINVAL);
        }
        let writable = access.intersects(WRITES);
        populate(request.start, request.length, writable)?;
        let low = self.state.next_key();
        let number = self.state.mrs.insert(|number| Mr {
            pd,
            start: request.start,
            length: request.length,
            iova: request.hca_va,
            access,
            writable,
            key: number << 8 | u32::from(low),
            windows: 0,
        })?;
        self.state.use_pd(pd);
        let key = number << 8 | u32::from(low);
        Ok(RegMrResp { mr_handle: self.handle(Kind::Mr, number), lkey: key, rkey: key })
    }
}

impl Session<'_> {
    pub(crate) fn rereg_mr(&mut self, request: &ReregMr) -> Result<ReregMrResp> {
        if request.flags == 0 {
            return Err(Errno::EINVAL);
        }
        let changes = MrReregFlags::from_bits(request.flags).ok_or(Errno::EOPNOTSUPP)?;
        let page = rustix::param::page_size() as u64 - 1;
        if changes.contains(MrReregFlags::TRANS) && request.start & page != request.hca_va & page {
            return Err(Errno::EINVAL);
        }
        let number = self.number(Kind::Mr, request.mr_handle)?;
        let access = changes.contains(MrReregFlags::ACCESS).then(|| check_access(request.access_flags));
        let access = access.transpose()?;
        let pd = changes.contains(MrReregFlags::PD).then(|| self.pd(request.pd_handle)).transpose()?;
        if changes.contains(MrReregFlags::TRANS) {
            return Err(Errno::EOPNOTSUPP);
        }
        let mr = self.state.mrs.get_mut(number).ok_or(Errno::ENOENT)?;
        if access.is_some_and(|access| access.intersects(WRITES)) && !mr.writable {
            return Err(Errno::EACCES);
        }
        supported(access.unwrap_or_default())?;
        mr.access = access.unwrap_or(mr.access);
        let (key, before) = (mr.key, mr.pd);
        mr.pd = pd.unwrap_or(before);
        self.state.use_pd(pd.unwrap_or(before));
        self.state.unuse_pd(before);
        Ok(ReregMrResp { lkey: key, rkey: key })
    }
}

/// What a region may be used for, as the core checks it for a device without memory that survives power loss.
fn check_access(flags: u32) -> Result<AccessFlags> {
    let access = AccessFlags::from_bits_retain(flags & !ACCESS_OPTIONAL_RANGE);
    let remote = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let unwritable = access.intersects(remote) && !access.contains(AccessFlags::LOCAL_WRITE);
    let unknown = !(AccessFlags::all() - AccessFlags::FLUSH_PERSISTENT).contains(access);
    if unwritable || unknown {
        return Err(Errno::EINVAL);
    }
    if access.contains(AccessFlags::ON_DEMAND) { Err(Errno::EOPNOTSUPP) } else { Ok(access) }
}

/// Refuses what the driver does not have.
fn supported(access: AccessFlags) -> Result<()> {
    let lacks = AccessFlags::ZERO_BASED | AccessFlags::HUGETLB;
    if access.intersects(lacks) { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
}

impl State {
    /// The region with that key, if it is of that domain and allows that access.
    pub(crate) fn region(&self, pd: u32, key: u32, access: AccessFlags) -> Option<&Mr> {
        let mr = self.mrs.get(key >> 8)?;
        (mr.key == key && mr.pd == pd && mr.access.contains(access)).then_some(mr)
    }

    pub(crate) fn destroy_mr(&mut self, number: u32) -> Result<()> {
        if self.mrs.get(number).is_some_and(|mr| mr.windows > 0) {
            return Err(Errno::EINVAL);
        }
        if let Some(mr) = self.mrs.remove(number) {
            self.unuse_pd(mr.pd);
        }
        Ok(())
    }
}

impl Mr {
    /// A stretch of it, by the addresses that work uses.
    pub(crate) fn segment(&self, address: u64, length: u64) -> Option<Segment> {
        let offset = address.checked_sub(self.iova)?;
        if offset.checked_add(length)? > self.length {
            return None;
        }
        // SAFETY: who registered the region has vouched that the device may use it until it is deregistered, which waits for the
        // operation because both are done under the lock of the wire.
        Some(unsafe { Segment::new(self.start + offset, length as usize) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_a_region_is_reached() {
        let access = AccessFlags::empty();
        let mr = Mr {
            pd: 1,
            start: 0x1000,
            length: 100,
            iova: 0x9000,
            access,
            writable: false,
            key: 256,
            windows: 0,
        };
        assert!(mr.segment(0x9000, 100).is_some() && mr.segment(0x9064, 0).is_some());
        for (address, length) in [(0x9000, 101), (0x9064, 1), (0x8fff, 2), (0x9001, u64::MAX), (u64::MAX, 1)]
        {
            assert!(mr.segment(address, length).is_none(), "{address:#x} {length}");
        }
    }

    #[test]
    fn access_that_cannot_be_is_refused() {
        let check = |access: AccessFlags| check_access(access.bits());
        assert_eq!(check(AccessFlags::REMOTE_WRITE), Err(Errno::EINVAL));
        assert_eq!(check(AccessFlags::from_bits_retain(1 << 19)), Err(Errno::EINVAL));
        assert_eq!(check(AccessFlags::ON_DEMAND), Err(Errno::EOPNOTSUPP));
        assert_eq!(check(AccessFlags::LOCAL_WRITE | AccessFlags::FLUSH_PERSISTENT), Err(Errno::EINVAL));
        // Hints are dropped.
        assert_eq!(check_access(1 << 20 | 1 << 29), Ok(AccessFlags::empty()));
    }
}
