//! The commands of `write(2)`, as the method INVOKE_WRITE carries them.

use std::os::fd::IntoRawFd;

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::user_verbs::{
    CMD_COMMAND_MASK, CMD_FLAG_EXTENDED, CreateCompChannel, CreateCompChannelResp, DeallocMw, DeallocPd,
    DeregMr, DestroyAh, PostSend, PostSendResp, ReqNotifyCq, SendWr, Sge, write_cmd,
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
        may(attr::invoke_write::CORE_OUT, Form::Room(0)),
        must(attr::invoke_write::WRITE_CMD, Form::Constant(u32::MAX as u64)),
        may(attr::uhw::IN, Form::AtLeast(0)),
        may(attr::uhw::OUT, Form::Room(0)),
    ],
    run: invoke_write,
}];

/// Bytes of a request, at least.
const SEND_WR: u32 = size_of::<SendWr>() as u32;

const EX_QUERY_DEVICE: u32 = write_cmd::EX_QUERY_DEVICE | CMD_FLAG_EXTENDED;

fn invoke_write(session: &mut Session<'_>, attributes: &mut Attributes<'_>) -> Result<()> {
    let number = attributes.number(attr::invoke_write::WRITE_CMD) as u32;
    if number & !(CMD_COMMAND_MASK | CMD_FLAG_EXTENDED) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut call = Call { session, attributes, number };
    match number {
        write_cmd::QUERY_DEVICE => call.answer(|session, request, _| session.query_device(request)),
        EX_QUERY_DEVICE => call.answer_extended(|session, request, attributes| {
            session.query_device_ex(request, attributes.length(attr::invoke_write::CORE_OUT))
        }),
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
        write_cmd::POST_SEND => call.answer(|session, request: &PostSend, attributes| {
            check_list(request, attributes.length(attr::invoke_write::CORE_IN))?;
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

/// Checks what is said of requests that the command carries. It is to carry none: they are in the ring.
fn check_list(request: &PostSend, length: usize) -> Result<()> {
    /// More than this the kernel does not allocate at once.
    const MOST: u32 = 4 << 20;
    let left = (length - size_of::<PostSend>()) as u64;
    let requests = u64::from(request.wqe_size) * u64::from(request.wr_count);
    if left
        .checked_sub(requests)
        .is_none_or(|left| u64::from(request.sge_count) * size_of::<Sge>() as u64 > left)
    {
        return Err(Errno::ENOSPC);
    }
    match request.wqe_size {
        ..SEND_WR => Err(Errno::EINVAL),
        SEND_WR..=MOST => Ok(()),
        _ => Err(Errno::ENOMEM),
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
    number: u32,
}

impl Call<'_, '_, '_> {
    /// Gives the request to `run`, and its answer to the user.
    fn answer<Request: FromBytes, Response: Answer>(
        &mut self,
        run: impl FnOnce(&mut Session<'_>, &Request, &mut Attributes<'_>) -> Result<Response>,
    ) -> Result<()> {
        self.has_room::<Request>(size_of::<Response>())?;
        let response = run(self.session, &self.request()?, self.attributes)?;
        response.give(self.attributes)
    }

    /// The same for an extended command, whose structs may be shorter here or there.
    fn answer_extended<Request: FromBytes, Response: Answer>(
        &mut self,
        run: impl FnOnce(&mut Session<'_>, &Request, &mut Attributes<'_>) -> Result<Response>,
    ) -> Result<()> {
        let response = run(self.session, &self.request()?, self.attributes)?;
        if self.attributes.has(attr::invoke_write::CORE_OUT) {
            response.give(self.attributes)
        } else {
            Ok(())
        }
    }

    fn destroy<Request: FromBytes>(&mut self, kind: Kind, handle: fn(&Request) -> u32) -> Result<()> {
        self.has_room::<Request>(0)?;
        let handle = handle(&self.request()?);
        self.session.number(kind, handle)?;
        self.session.state.destroy(self.session.context, handle)
    }

    /// Whether there is a whole request, and room for an answer of that size.
    fn has_room<Request>(&self, response: usize) -> Result<()> {
        use attr::invoke_write as id;
        let asks = self.attributes.length(id::CORE_IN) >= size_of::<Request>();
        if asks && self.attributes.length(id::CORE_OUT) >= response { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    /// The request. What is not there of it is zero, and so must be what there is more.
    fn request<Request: FromBytes>(&self) -> Result<Request> {
        use write_cmd::{
            ALLOC_MW, ALLOC_PD, CREATE_AH, CREATE_COMP_CHANNEL, QUERY_DEVICE, QUERY_PORT, REG_MR,
        };
        let without = |commands: &[u32]| !self.session.context().ready && commands.contains(&self.number);
        if without(&[QUERY_DEVICE, EX_QUERY_DEVICE, QUERY_PORT]) {
            return Err(Errno::EINVAL);
        }
        let mut bytes = self.attributes.bytes(attr::invoke_write::CORE_IN);
        if bytes.iter().skip(size_of::<Request>()).any(|byte| *byte != 0) {
            return Err(Errno::EOPNOTSUPP);
        }
        if without(&[ALLOC_PD, REG_MR, ALLOC_MW, CREATE_AH, CREATE_COMP_CHANNEL]) {
            return Err(Errno::EINVAL);
        }
        bytes.resize(size_of::<Request>(), 0);
        Request::read_from_bytes(&bytes).map_err(|_| Errno::ENOSPC)
    }
}

/// What a command answers with.
trait Answer {
    fn give(&self, attributes: &mut Attributes<'_>) -> Result<()>;
}

impl<T: IntoBytes + Immutable> Answer for T {
    fn give(&self, attributes: &mut Attributes<'_>) -> Result<()> {
        if size_of::<T>() == 0 {
            Ok(())
        } else {
            attributes.output_padded(attr::invoke_write::CORE_OUT, self)
        }
    }
}
