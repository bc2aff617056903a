//! Shared receive queues.

use std::mem::offset_of;

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::ioctl_verbs::srq_type;
use uverbs_uapi::rxe::{CreateSrqResp, ModifySrqCmd, RecvWqe, Sge};
use uverbs_uapi::user_verbs::{DestroySrqResp, ModifySrq, QuerySrq, QuerySrqResp};
use uverbs_uapi::values::{SrqAttrMask, event_type};
use zerocopy::IntoBytes;

use crate::attributes::{Attributes, Form, may, must};
use crate::context::Session;
use crate::events::Use;
use crate::memory::{self, Segment};
use crate::methods::Method;
use crate::ring::{Ring, Side};
use crate::table::Kind;
use crate::wire::{Listener, State};

#[derive(Debug)]
pub(crate) struct Srq {
    pd: u32,
    listener: Listener,
    pub(crate) ring: Ring,
    pub(crate) max_sge: u32,
    limit: u32,
    /// QPs that use it.
    pub(crate) users: u32,
    events: u32,
}

pub(crate) const METHODS: &[Method] = &[
    Method {
        object: object::SRQ,
        method: method::srq::CREATE,
        attributes: &[
            must(attr::create_srq::HANDLE, Form::New),
            must(attr::create_srq::PD_HANDLE, Form::Handle(Kind::Pd)),
            must(attr::create_srq::USER_HANDLE, Form::In(8)),
            must(attr::create_srq::MAX_WR, Form::In(4)),
            must(attr::create_srq::MAX_SGE, Form::In(4)),
            must(attr::create_srq::LIMIT, Form::In(4)),
            must(attr::create_srq::TYPE, Form::Constant(u32::MAX as u64)),
            may(attr::create_srq::EVENT_FD, Form::File(Use::Asynchronous)),
            must(attr::create_srq::RESP_MAX_WR, Form::Out(4)),
            must(attr::create_srq::RESP_MAX_SGE, Form::Out(4)),
            may(attr::create_srq::RESP_SRQ_NUM, Form::Out(4)),
            may(attr::uhw::IN, Form::AtLeast(0)),
            may(attr::uhw::OUT, Form::Room(0)),
        ],
        run: create,
    },
    Method {
        object: object::SRQ,
        method: method::srq::DESTROY,
        attributes: &[
            must(attr::destroy_srq::HANDLE, Form::Handle(Kind::Srq)),
            must(attr::destroy_srq::RESP, Form::Out(size_of::<DestroySrqResp>())),
        ],
        run: |session, attributes| {
            let handle = attributes.handle(attr::destroy_srq::HANDLE)?;
            let number = session.number(Kind::Srq, handle)?;
            let srq = session.state.srqs.get(number).ok_or(Errno::ENOENT)?;
            let response = DestroySrqResp { events_reported: srq.events };
            session.state.destroy(session.context, handle)?;
            attributes.output(attr::destroy_srq::RESP, &response)
        },
    },
];

fn create(session: &mut Session<'_>, attributes: &mut Attributes<'_>) -> Result<()> {
    use attr::create_srq as id;
    let file = session.event_file(attributes, id::EVENT_FD)?;
    let kind = attributes.number(id::TYPE) as u32;
    if kind > srq_type::TM {
        return Err(Errno::EINVAL);
    }
    let pd = session.pd(attributes.handle(id::PD_HANDLE)?)?;
    if kind != srq_type::BASIC {
        // The others need an object that there is not.
        return Err(Errno::ENOENT);
    }
    let (max_wr, max_sge) = (attributes.input::<u32>(id::MAX_WR)?, attributes.input::<u32>(id::MAX_SGE)?);
    let limits = session.limits();
    if attributes.length(attr::uhw::OUT) < size_of::<CreateSrqResp>()
        || max_wr == 0
        || max_wr > limits.shared_receives
        || max_sge > limits.shared_sges
    {
        return Err(Errno::EINVAL);
    }
    let max_sge = max_sge.max(1);
    let listener =
        Listener { context: session.context, file, user_handle: attributes.input(id::USER_HANDLE)? };
    let element = size_of::<RecvWqe>() + max_sge as usize * size_of::<Sge>();
    let (ring, memory) = Ring::new(max_wr, element, Side::Consumer)?;
    let granted = ring.capacity();
    let srq = Srq { pd, listener, ring, max_sge, limit: attributes.input(id::LIMIT)?, users: 0, events: 0 };
    let number = session.state.srqs.insert(|_| srq)?;
    session.state.use_pd(pd);
    let mi = session.offer(Kind::Srq, number, memory);
    // The driver leaves what is behind the number as it is.
    let response = CreateSrqResp { mi, srq_num: number, reserved: 0 };
    attributes.output(attr::uhw::OUT, &response.as_bytes()[..offset_of!(CreateSrqResp, reserved)])?;
    attributes.output(id::RESP_MAX_WR, &granted)?;
    attributes.output(id::RESP_MAX_SGE, &max_sge)?;
    let handle = session.handle(Kind::Srq, number);
    attributes.created(id::HANDLE, handle);
    Ok(())
}

impl Session<'_> {
    pub(crate) fn query_srq(&mut self, request: &QuerySrq) -> Result<QuerySrqResp> {
        let number = self.number(Kind::Srq, request.srq_handle)?;
        let srq = self.state.srqs.get(number).ok_or(Errno::ENOENT)?;
        Ok(QuerySrqResp {
            max_wr: srq.ring.capacity(),
            max_sge: srq.max_sge,
            srq_limit: srq.limit,
            reserved: 0,
        })
    }

    pub(crate) fn modify_srq(&mut self, request: &ModifySrq, driver: &mut Attributes<'_>) -> Result<()> {
        let number = self.number(Kind::Srq, request.srq_handle)?;
        let mask = SrqAttrMask::from_bits_truncate(request.attr_mask);
        if driver.length(attr::uhw::IN) < size_of::<ModifySrqCmd>() {
            return Err(Errno::EINVAL);
        }
        if driver.bytes(attr::uhw::IN).iter().skip(size_of::<ModifySrqCmd>()).any(|byte| *byte != 0) {
            return Err(Errno::EOPNOTSUPP);
        }
        let where_to = driver.input::<ModifySrqCmd>(attr::uhw::IN)?.mmap_info_addr;
        let most = self.limits().shared_receives;
        let srq = self.state.srqs.get_mut(number).ok_or(Errno::ENOENT)?;
        if mask.contains(SrqAttrMask::MAX_WR)
            && (request.max_wr == 0 || request.max_wr > most || request.max_wr < srq.limit)
        {
            return Err(Errno::EINVAL);
        }
        if mask.contains(SrqAttrMask::LIMIT)
            && (request.srq_limit > most || request.srq_limit > srq.ring.capacity())
        {
            return Err(Errno::EINVAL);
        }
        if mask.contains(SrqAttrMask::MAX_WR) {
            if request.max_wr < srq.ring.count() {
                return Err(Errno::EINVAL);
            }
            let (ring, memory) = srq.ring.resized(request.max_wr)?;
            srq.ring = ring;
            let info = self.offer(Kind::Srq, number, memory);
            // SAFETY: who gave the driver that address has vouched that so much may be written there during the call.
            let there = unsafe { Segment::new(where_to, size_of_val(&info)) };
            memory::write(info.as_bytes(), &[there]);
        }
        if mask.contains(SrqAttrMask::LIMIT)
            && let Some(srq) = self.state.srqs.get_mut(number)
        {
            srq.limit = request.srq_limit;
        }
        Ok(())
    }
}

impl State {
    /// A receive has been taken: tells if too few are left.
    pub(crate) fn watch_limit(&mut self, number: u32) {
        let Some(srq) = self.srqs.get_mut(number) else { return };
        if srq.ring.count() < srq.limit {
            srq.limit = 0;
            let listener = srq.listener;
            let told = self.tell(listener, event_type::SRQ_LIMIT_REACHED);
            if let Some(srq) = self.srqs.get_mut(number) {
                srq.events += u32::from(told);
            }
        }
    }

    pub(crate) fn destroy_srq(&mut self, number: u32) -> Result<()> {
        if self.srqs.get(number).is_some_and(|srq| srq.users > 0) {
            return Err(Errno::EBUSY);
        }
        if let Some(srq) = self.srqs.remove(number) {
            self.unuse_pd(srq.pd);
        }
        Ok(())
    }
}
