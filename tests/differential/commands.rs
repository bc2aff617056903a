//! The commands that the library issues, as they are right.

use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU64;

use uverbs_ioctl::uapi::ioctl_cmds::{attr, method, object};
use uverbs_ioctl::uapi::ioctl_verbs::{GidEntry, QpCap, QueryPortRespEx};
use uverbs_ioctl::uapi::rxe;
use uverbs_ioctl::uapi::user_verbs::{
    AhAttr, AllocMw, AllocPd, AttachMcast, CMD_FLAG_EXTENDED, CreateAh, CreateCompChannel, DeallocPd,
    DeregMr, DetachMcast, ExQueryDevice, ExQueryDeviceResp, GlobalRoute, ModifyQp, ModifySrq, OdpCaps,
    PostSend, QueryDevice, QueryDeviceResp, QueryPort, QueryPortResp, QueryQp, QueryQpResp, QuerySrq, RegMr,
    ReqNotifyCq, ReregMr, ResizeCq, write_cmd,
};

use super::Accepted;
use super::call::{Call, Destroyed, Kind, Pair};

pub(super) fn get_context() -> Call {
    Call::new("GET_CONTEXT", object::DEVICE, method::device::GET_CONTEXT)
        .output(attr::get_context::NUM_COMP_VECTORS, 4)
        .hide(0..4, Accepted::Vectors)
        .output(attr::get_context::CORE_SUPPORT, 8)
}

pub(super) fn query_context() -> Call {
    Call::new("QUERY_CONTEXT", object::DEVICE, method::device::QUERY_CONTEXT)
        .output(attr::query_context::NUM_COMP_VECTORS, 4)
        .output(attr::query_context::CORE_SUPPORT, 8)
}

pub(super) fn query_device() -> Call {
    let answer = size_of::<QueryDeviceResp>();
    Call::legacy("QUERY_DEVICE", write_cmd::QUERY_DEVICE, &QueryDevice::default(), answer)
        .hide(8..24, Accepted::Identity)
}

pub(super) fn query_device_ex(comp_mask: u32, room: usize) -> Call {
    let request = ExQueryDevice { comp_mask, reserved: 0 };
    Call::legacy("EX_QUERY_DEVICE", write_cmd::EX_QUERY_DEVICE | CMD_FLAG_EXTENDED, &request, room)
        .hide(8..24, Accepted::Identity)
        .hide(ODP, Accepted::Paging)
}

pub(super) const DEVICE_EX: usize = size_of::<ExQueryDeviceResp>();
const ODP: Range<usize> = {
    let start = offset_of!(ExQueryDeviceResp, odp_caps);
    start..start + size_of::<OdpCaps>()
};

/// How often keys have been wrong.
const VIOLATIONS: Range<usize> =
    offset_of!(QueryPortResp, bad_pkey_cntr)..offset_of!(QueryPortResp, gid_tbl_len);

pub(super) fn query_port(port: u64) -> Call {
    Call::new("QUERY_PORT", object::DEVICE, method::device::QUERY_PORT)
        .constant(attr::query_port::PORT_NUM, port)
        .output(attr::query_port::RESP, size_of::<QueryPortRespEx>())
        .hide(VIOLATIONS, Accepted::Violations)
}

pub(super) fn query_port_legacy(port_num: u8) -> Call {
    let request = QueryPort { port_num, ..Default::default() };
    Call::legacy("QUERY_PORT of old", write_cmd::QUERY_PORT, &request, size_of::<QueryPortResp>())
        .hide(VIOLATIONS, Accepted::Violations)
}

pub(super) fn query_gid_entry(port: u64, index: u64) -> Call {
    use attr::query_gid_entry as id;
    Call::new("QUERY_GID_ENTRY", object::DEVICE, method::device::QUERY_GID_ENTRY)
        .constant(id::PORT, port)
        .constant(id::GID_INDEX, index)
        .constant(id::FLAGS, 0)
        .output(id::RESP_ENTRY, size_of::<GidEntry>())
        .hide(8..16, Accepted::Identity)
        .hide(28..32, Accepted::Identity)
}

pub(super) fn query_gid_table(size: u64, entries: usize) -> Call {
    use attr::query_gid_table as id;
    Call::new("QUERY_GID_TABLE", object::DEVICE, method::device::QUERY_GID_TABLE)
        .constant(id::ENTRY_SIZE, size)
        .constant(id::FLAGS, 0)
        .output(id::RESP_ENTRIES, entries * size_of::<GidEntry>())
        .hide(0..16, Accepted::Identity)
        .hide(28..32, Accepted::Identity)
        .hide(60..64, Accepted::Identity)
        .output(id::RESP_NUM_ENTRIES, 8)
}

pub(super) fn alloc_async_event() -> Call {
    Call::new("ASYNC_EVENT.ALLOC", object::ASYNC_EVENT, method::async_event::ALLOC)
        .create_file(attr::async_event_alloc::FD_HANDLE)
}

pub(super) fn create_comp_channel() -> Call {
    let request = CreateCompChannel::default();
    Call::legacy("CREATE_COMP_CHANNEL", write_cmd::CREATE_COMP_CHANNEL, &request, 4).answers_file()
}

pub(super) fn alloc_pd() -> Call {
    Call::legacy("ALLOC_PD", write_cmd::ALLOC_PD, &AllocPd::default(), 4).answers(Kind::Pd)
}

/// What is registered, with its domain zero by default.
pub(super) fn reg_mr(request: &RegMr) -> Call {
    Call::legacy("REG_MR", write_cmd::REG_MR, request, 12).hide(4..12, Accepted::Keys).answers(Kind::Mr)
}

pub(super) fn rereg_mr(request: &ReregMr) -> Call {
    Call::legacy("REREG_MR", write_cmd::REREG_MR, request, 8).hide(0..8, Accepted::Keys)
}

pub(super) fn query_mr(mr: u32) -> Call {
    use attr::query_mr as id;
    Call::new("MR.QUERY", object::MR, method::mr::QUERY)
        .handle(id::HANDLE, mr)
        .output(id::RESP_LKEY, 4)
        .hide(0..4, Accepted::Keys)
        .output(id::RESP_RKEY, 4)
        .hide(0..4, Accepted::Keys)
        .output(id::RESP_LENGTH, 8)
        .output(id::RESP_IOVA, 8)
}

pub(super) fn reg_dmabuf_mr(pd: u32, file: RawFd) -> Call {
    use attr::reg_dmabuf_mr as id;
    Call::new("MR.REG_DMABUF", object::MR, method::mr::REG_DMABUF)
        .create(id::HANDLE, Kind::Mr)
        .handle(id::PD_HANDLE, pd)
        .input(id::OFFSET, &0_u64)
        .input(id::LENGTH, &4096_u64)
        .input(id::IOVA, &0_u64)
        .input(id::FD, &file)
        .constant(id::ACCESS_FLAGS, 1)
        .output(id::RESP_LKEY, 4)
        .output(id::RESP_RKEY, 4)
}

pub(super) fn alloc_mw(pd_handle: u32, mw_type: u8) -> Call {
    let request = AllocMw { pd_handle, mw_type, ..Default::default() };
    Call::legacy("ALLOC_MW", write_cmd::ALLOC_MW, &request, 8).hide(4..8, Accepted::Keys).answers(Kind::Mw)
}

pub(super) fn create_cq(cqe: u32) -> Call {
    use attr::create_cq as id;
    Call::new("CQ.CREATE", object::CQ, method::cq::CREATE)
        .create(id::HANDLE, Kind::Cq)
        .input(id::CQE, &cqe)
        .input(id::USER_HANDLE, &5_u64)
        .input(id::COMP_VECTOR, &0_u32)
        .constant(id::FLAGS, 0)
        .output(id::RESP_CQE, 4)
        .output(attr::uhw::OUT, size_of::<rxe::CreateCqResp>())
        .hide(0..8, Accepted::Places)
}

pub(super) fn create_cq_on(cqe: u32, channel: Pair<RawFd>) -> Call {
    create_cq(cqe).file(attr::create_cq::COMP_CHANNEL, channel)
}

pub(super) fn resize_cq(cq_handle: u32, cqe: u32) -> Call {
    let request = ResizeCq { cq_handle, cqe, ..Default::default() };
    Call::legacy("RESIZE_CQ", write_cmd::RESIZE_CQ, &request, 8)
        .output(attr::uhw::OUT, size_of::<rxe::ResizeCqResp>())
        .hide(0..8, Accepted::Places)
}

pub(super) fn req_notify_cq(cq_handle: u32, solicited_only: u32) -> Call {
    let request = ReqNotifyCq { cq_handle, solicited_only };
    Call::legacy("REQ_NOTIFY_CQ", write_cmd::REQ_NOTIFY_CQ, &request, 0)
}

pub(super) fn create_srq(pd: u32, max_wr: u32, max_sge: u32) -> Call {
    use attr::create_srq as id;
    Call::new("SRQ.CREATE", object::SRQ, method::srq::CREATE)
        .create(id::HANDLE, Kind::Srq)
        .handle(id::PD_HANDLE, pd)
        .input(id::USER_HANDLE, &6_u64)
        .input(id::MAX_WR, &max_wr)
        .input(id::MAX_SGE, &max_sge)
        .input(id::LIMIT, &0_u32)
        .constant(id::TYPE, 0)
        .output(id::RESP_MAX_WR, 4)
        .output(id::RESP_MAX_SGE, 4)
        .output(attr::uhw::OUT, size_of::<rxe::CreateSrqResp>())
        .hide(0..8, Accepted::Places)
        .hide(16..20, Accepted::Numbers)
}

pub(super) fn query_srq(srq_handle: u32) -> Call {
    let request = QuerySrq { srq_handle, ..Default::default() };
    Call::legacy("QUERY_SRQ", write_cmd::QUERY_SRQ, &request, 16)
}

pub(super) fn modify_srq(request: &ModifySrq) -> Call {
    /// Where the driver writes where the queue is now: a struct of two words.
    static PLACE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    let mmap_info_addr = PLACE.as_ptr().expose_provenance() as u64;
    Call::legacy("MODIFY_SRQ", write_cmd::MODIFY_SRQ, request, 0)
        .input(attr::uhw::IN, &rxe::ModifySrqCmd { mmap_info_addr })
}

/// What a QP is made of; zero is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct QpOf {
    pub(super) pd: u32,
    pub(super) cq: u32,
    pub(super) srq: Option<u32>,
    pub(super) kind: u32,
    pub(super) flags: u64,
    pub(super) cap: QpCap,
}

pub(super) const CAP: QpCap =
    QpCap { max_send_wr: 7, max_recv_wr: 7, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };

pub(super) fn create_qp(of: &QpOf) -> Call {
    use attr::create_qp as id;
    let call = Call::new("QP.CREATE", object::QP, method::qp::CREATE)
        .create(id::HANDLE, Kind::Qp)
        .handle(id::PD_HANDLE, of.pd)
        .handle(id::SEND_CQ_HANDLE, of.cq)
        .handle(id::RECV_CQ_HANDLE, of.cq)
        .input(id::USER_HANDLE, &7_u64)
        .input(id::CAP, &of.cap)
        .constant(id::TYPE, of.kind.into())
        .constant(id::FLAGS, of.flags)
        .output(id::RESP_CAP, size_of::<QpCap>())
        .output(id::RESP_QP_NUM, 4)
        .hide(0..4, Accepted::Numbers)
        .output(attr::uhw::OUT, size_of::<rxe::CreateQpResp>())
        .hide(0..8, Accepted::Places)
        .hide(16..24, Accepted::Places);
    match of.srq {
        Some(srq) => call.handle(id::SRQ_HANDLE, srq),
        None => call,
    }
}

pub(super) fn modify_qp(request: &ModifyQp) -> Call {
    Call::legacy("MODIFY_QP", write_cmd::MODIFY_QP, request, 0)
}

pub(super) fn query_qp(qp_handle: u32) -> Call {
    let request = QueryQp { qp_handle, attr_mask: u32::MAX, ..Default::default() };
    Call::legacy("QUERY_QP", write_cmd::QUERY_QP, &request, size_of::<QueryQpResp>())
}

pub(super) fn post_send(qp_handle: u32) -> Call {
    let request = PostSend { qp_handle, wqe_size: 56, ..Default::default() };
    Call::legacy("POST_SEND", write_cmd::POST_SEND, &request, 4)
}

pub(super) fn create_ah(pd_handle: u32, attr: AhAttr) -> Call {
    let request = CreateAh { pd_handle, attr, ..Default::default() };
    Call::legacy("CREATE_AH", write_cmd::CREATE_AH, &request, 4)
        .answers(Kind::Ah)
        .output(attr::uhw::OUT, size_of::<rxe::CreateAhResp>())
        .hide(0..4, Accepted::Numbers)
}

/// To a place that the device reaches from its GID with that index.
pub(super) fn ah_attr(dgid: [u8; 16], sgid_index: u8) -> AhAttr {
    let grh = GlobalRoute { dgid, sgid_index, hop_limit: 9, traffic_class: 3, ..Default::default() };
    AhAttr { grh, is_global: 1, port_num: 1, ..Default::default() }
}

pub(super) fn attach_mcast(gid: [u8; 16], qp_handle: u32) -> Call {
    let request = AttachMcast { gid, qp_handle, ..Default::default() };
    Call::legacy("ATTACH_MCAST", write_cmd::ATTACH_MCAST, &request, 0)
}

pub(super) fn detach_mcast(gid: [u8; 16], mlid: u16, qp_handle: u32) -> Call {
    let request = DetachMcast { gid, qp_handle, mlid, ..Default::default() };
    Call::legacy("DETACH_MCAST", write_cmd::DETACH_MCAST, &request, 0)
}

pub(super) fn query_comp_cntr_caps() -> Call {
    use attr::query_comp_cntr_caps as id;
    Call::new("QUERY_COMP_CNTR_CAPS", object::DEVICE, method::device::QUERY_COMP_CNTR_CAPS)
        .output(id::MAX_COUNTERS, 4)
        .output(id::MAX_VALUE, 8)
        .output(id::SUPPORTED_QP_ATTACH_OPS, 4)
}

pub(super) fn create_comp_cntr() -> Call {
    Call::new("COMP_CNTR.CREATE", object::COMP_CNTR, method::comp_cntr::CREATE)
        .create(attr::create_comp_cntr::HANDLE, Kind::Counter)
}

pub(super) fn modify_comp_cntr(counter: u32, entry: u64, operation: u64, value: u64) -> Call {
    use attr::modify_comp_cntr as id;
    Call::new("COMP_CNTR.MODIFY", object::COMP_CNTR, method::comp_cntr::MODIFY)
        .handle(id::HANDLE, counter)
        .constant(id::ENTRY, entry)
        .constant(id::OP, operation)
        .input(id::VALUE, &value)
}

pub(super) fn read_comp_cntr(counter: u32, entry: u64) -> Call {
    use attr::read_comp_cntr as id;
    Call::new("COMP_CNTR.READ", object::COMP_CNTR, method::comp_cntr::READ)
        .handle(id::HANDLE, counter)
        .constant(id::ENTRY, entry)
        .output(id::RESP_VALUE, 8)
}

pub(super) fn attach_comp_cntr(qp: u32, counter: u32, operations: u64) -> Call {
    use attr::qp_attach_comp_cntr as id;
    Call::new("QP.ATTACH_COMP_CNTR", object::QP, method::qp::ATTACH_COMP_CNTR)
        .handle(id::HANDLE, qp)
        .handle(id::CNTR_HANDLE, counter)
        .constant(id::OP_MASK, operations)
}

pub(super) fn destroy(kind: Kind, handle: u32) -> Call {
    let (object, method, answer) = match kind {
        Kind::Pd => (object::PD, method::pd::DESTROY, 0),
        Kind::Mr => (object::MR, method::mr::DESTROY, 0),
        Kind::Mw => (object::MW, method::mw::DESTROY, 0),
        Kind::Ah => (object::AH, method::ah::DESTROY, 0),
        Kind::Cq => (object::CQ, method::cq::DESTROY, 8),
        Kind::Srq => (object::SRQ, method::srq::DESTROY, 4),
        Kind::Qp => (object::QP, method::qp::DESTROY, 4),
        Kind::Counter => (object::COMP_CNTR, method::comp_cntr::DESTROY, 0),
    };
    // All of them have the handle first, and then the answer.
    let call = Call::new(&format!("{kind:?}.DESTROY"), object, method)
        .handle(0, handle)
        .destroys(Destroyed::Handle(0));
    if answer > 0 { call.output(1, answer).hide(0..answer, Accepted::Events) } else { call }
}

/// The commands of old that do the same, for some kinds.
pub(super) fn destroy_legacy(kind: Kind, handle: u32) -> Option<Call> {
    let number = match kind {
        Kind::Pd => write_cmd::DEALLOC_PD,
        Kind::Mr => write_cmd::DEREG_MR,
        Kind::Mw => write_cmd::DEALLOC_MW,
        Kind::Ah => write_cmd::DESTROY_AH,
        Kind::Cq | Kind::Srq | Kind::Qp | Kind::Counter => return None,
    };
    // They all take a handle alone.
    let request = DeallocPd { pd_handle: handle };
    const _: () = assert!(size_of::<DeallocPd>() == size_of::<DeregMr>());
    Some(Call::legacy(&format!("{kind:?}.DESTROY of old"), number, &request, 0).destroys(Destroyed::Request))
}
