//! The commands of `write(2)`, as the method INVOKE_WRITE carries them.

use std::os::fd::IntoRawFd;

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::user_verbs::{
    CMD_COMMAND_MASK, CMD_FLAG_EXTENDED, CreateCompChannel, CreateCompChannelResp, DeallocMw, DeallocPd,
    DeregMr, DestroyAh, PostSend, PostSendResp, ReqNotifyCq, write_cmd,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::attributes::{Attributes, Form, may, must};
use crate::context::Session;
use crate::events::Use;
use crate::methods::Method;
use crate::table::Kind;

pub(crate) const METHODS: &[Method] = &[Method {
    object: object::DEVICE,
    method: method::device::INVOKE_WRITE,
    attributes: &[
        may(attr::invoke_write::CORE_IN, Form::AtLeast(4)),
        may(attr::invoke_write::CORE_OUT, Form::Out(0)),
        must(attr::invoke_write::WRITE_CMD, Form::Constant(u32::MAX as u64)),
        may(attr::uhw::IN, Form::AtLeast(0)),
        may(attr::uhw::OUT, Form::Out(0)),
    ],
    run: invoke_write,
}];

const EX_QUERY_DEVICE: u32 = write_cmd::EX_QUERY_DEVICE | CMD_FLAG_EXTENDED;

fn invoke_write(session: &mut Session<'_>, attributes: &mut Attributes<'_>) -> Result<()> {
    let number = attributes.number(attr::invoke_write::WRITE_CMD) as u32;
    if number & !(CMD_COMMAND_MASK | CMD_FLAG_EXTENDED) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut call = Call { session, attributes };
    match number {
        write_cmd::QUERY_DEVICE => call.answer(|session, request, _| session.query_device(request)),
        EX_QUERY_DEVICE => call.answer(|session, request, _| session.query_device_ex(request)),
        write_cmd::QUERY_PORT => call.answer(|session, request, _| session.query_port(request)),
        write_cmd::ALLOC_PD => call.answer(|session, request, _| session.alloc_pd(request)),
        write_cmd::DEALLOC_PD => call.destroy(Kind::Pd, |request: &DeallocPd| request.pd_handle),
        write_cmd::REG_MR => call.answer(|session, request, _| session.reg_mr(request)),
        write_cmd::REREG_MR => call.answer(|session, request, _| session.rereg_mr(request)),
        write_cmd::DEREG_MR => call.destroy(Kind::Mr, |request: &DeregMr| request.mr_handle),
        write_cmd::ALLOC_MW => call.answer(|session, request, _| session.alloc_mw(request)),
        write_cmd::DEALLOC_MW => call.destroy(Kind::Mw, |request: &DeallocMw| request.mw_handle),
        write_cmd::CREATE_AH => call.answer(|session, request, driver| session.create_ah(request, driver)),
        write_cmd::DESTROY_AH => call.destroy(Kind::Ah, |request: &DestroyAh| request.ah_handle),
        write_cmd::CREATE_COMP_CHANNEL => call.answer(create_comp_channel),
        write_cmd::RESIZE_CQ => call.answer(|session, request, driver| session.resize_cq(request, driver)),
        write_cmd::REQ_NOTIFY_CQ => call.answer(|session, request: &ReqNotifyCq, _| {
            let cq = session.number(Kind::Cq, request.cq_handle)?;
            session.state.arm(cq, request.solicited_only != 0)
        }),
        write_cmd::QUERY_QP => call.answer(|session, request, _| session.query_qp(request)),
        write_cmd::MODIFY_QP => call.answer(|session, request, _| session.modify_qp(request)),
        write_cmd::POST_SEND => call.answer(|session, request: &PostSend, _| {
            let qp = session.number(Kind::Qp, request.qp_handle)?;
            session.state.ring_send(qp).map(|()| PostSendResp::default())
        }),
        write_cmd::ATTACH_MCAST => call.answer(|session, request, _| session.attach_multicast(request)),
        write_cmd::DETACH_MCAST => call.answer(|session, request, _| session.detach_multicast(request)),
        write_cmd::QUERY_SRQ => call.answer(|session, request, _| session.query_srq(request)),
        write_cmd::MODIFY_SRQ => call.answer(|session, request, driver| session.modify_srq(request, driver)),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn create_comp_channel(
    session: &mut Session<'_>,
    _: &CreateCompChannel,
    _: &mut Attributes<'_>,
) -> Result<CreateCompChannelResp> {
    let (_, user) = session.state.new_file(session.context, Use::Completions)?;
    Ok(CreateCompChannelResp { fd: user.into_raw_fd().cast_unsigned() })
}

struct Call<'a, 'b, 'c> {
    session: &'a mut Session<'b>,
    attributes: &'a mut Attributes<'c>,
}

impl Call<'_, '_, '_> {
    /// Gives the request to `run`, and its answer to the user.
    fn answer<Request: FromBytes, Response: Answer>(
        &mut self,
        run: impl FnOnce(&mut Session<'_>, &Request, &mut Attributes<'_>) -> Result<Response>,
    ) -> Result<()> {
        let request = self.request(size_of::<Response>())?;
        let response = run(self.session, &request, self.attributes)?;
        response.give(self.attributes)
    }

    fn destroy<Request: FromBytes>(&mut self, kind: Kind, handle: fn(&Request) -> u32) -> Result<()> {
        let handle = handle(&self.request(0)?);
        self.session.number(kind, handle)?;
        self.session.state.destroy(self.session.context, handle)
    }

    /// The request, if there is room for an answer of that size.
    fn request<Request: FromBytes>(&self, response: usize) -> Result<Request> {
        let bytes = self.attributes.bytes(attr::invoke_write::CORE_IN);
        if bytes.len() < size_of::<Request>()
            || self.attributes.length(attr::invoke_write::CORE_OUT) < response
        {
            return Err(Errno::ENOSPC);
        }
        if !self.session.context().ready {
            return Err(Errno::EINVAL);
        }
        let (request, rest) = Request::read_from_prefix(&bytes).map_err(|_| Errno::ENOSPC)?;
        if rest.iter().any(|byte| *byte != 0) { Err(Errno::EOPNOTSUPP) } else { Ok(request) }
    }
}

/// What a command answers with.
trait Answer {
    fn give(&self, attributes: &mut Attributes<'_>) -> Result<()>;
}

impl<T: IntoBytes + Immutable> Answer for T {
    fn give(&self, attributes: &mut Attributes<'_>) -> Result<()> {
        if size_of::<T>() == 0 { Ok(()) } else { attributes.output(attr::invoke_write::CORE_OUT, self) }
    }
}
