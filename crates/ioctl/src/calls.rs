//! The kernel's methods and legacy commands as functions with types.
//!
//! A method that a kernel does not have, or whose driver lacks the operation behind it, is `EPROTONOSUPPORT`.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use uverbs_uapi::efa;
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::ioctl_verbs::{AdviseMrFlags, BufferDesc, GidEntry, QpCap, QueryPortRespEx, srq_type};
use uverbs_uapi::user_verbs::{
    AllocMw, AllocMwResp, AllocPd, AllocPdResp, AttachMcast, CMD_FLAG_EXTENDED, CreateAh, CreateAhResp,
    CreateCompChannel, CreateCompChannelResp, DestroyCqResp, DestroyQpResp, DestroySrqResp, DetachMcast,
    ExQueryDevice, ExQueryDeviceResp, ModifyQp, ModifySrq, PostSend, PostSendResp, QueryDevice,
    QueryDeviceResp, QueryQp, QueryQpResp, QuerySrq, QuerySrqResp, RegMr, RegMrResp, ReqNotifyCq, ReregMr,
    ReregMrResp, ResizeCq, ResizeCqResp, Sge, write_cmd,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::{Command, Errno, Result, Transport};

/// A command of `ib_user_verbs.h` that the method INVOKE_WRITE carries.
///
/// # Safety
/// `NUMBER` is the number of the command that takes `Self` and answers with `Response`, and the kernel does not write through
/// any field of `Self` under INVOKE_WRITE (where `response` pointers are unused).
pub unsafe trait LegacyCommand: IntoBytes + Immutable {
    /// `enum ib_uverbs_write_cmds`, with the flag for extended commands.
    const NUMBER: u32;
    /// What the kernel answers; `()` if nothing.
    type Response: FromBytes + FromZeros + IntoBytes;
}

macro_rules! legacy_commands {
    ($($request:ty => $number:expr, $response:ty;)*) => {$(
        // SAFETY: as in ib_user_verbs.h; none of these has a pointer besides `response`.
        unsafe impl LegacyCommand for $request {
            const NUMBER: u32 = $number;
            type Response = $response;
        }
    )*};
}

legacy_commands! {
    QueryDevice => write_cmd::QUERY_DEVICE, QueryDeviceResp;
    ExQueryDevice => write_cmd::EX_QUERY_DEVICE | CMD_FLAG_EXTENDED, ExQueryDeviceResp;
    AllocPd => write_cmd::ALLOC_PD, AllocPdResp;
    AllocMw => write_cmd::ALLOC_MW, AllocMwResp;
    CreateCompChannel => write_cmd::CREATE_COMP_CHANNEL, CreateCompChannelResp;
    CreateAh => write_cmd::CREATE_AH, CreateAhResp;
    ReqNotifyCq => write_cmd::REQ_NOTIFY_CQ, ();
    ResizeCq => write_cmd::RESIZE_CQ, ResizeCqResp;
    ReregMr => write_cmd::REREG_MR, ReregMrResp;
    AttachMcast => write_cmd::ATTACH_MCAST, ();
    DetachMcast => write_cmd::DETACH_MCAST, ();
    QueryQp => write_cmd::QUERY_QP, QueryQpResp;
    ModifyQp => write_cmd::MODIFY_QP, ();
    QuerySrq => write_cmd::QUERY_SRQ, QuerySrqResp;
    PostSend => write_cmd::POST_SEND, PostSendResp;
}

/// What a driver is given besides what the core is given; `()` if nothing.
///
/// # Safety
/// The driver writes through no field of it.
pub unsafe trait DriverInput: IntoBytes + Immutable {}

// SAFETY: it has no field.
unsafe impl DriverInput for () {}
// SAFETY: numbers and flags only.
unsafe impl DriverInput for efa::AllocUcontextCmd {}
// SAFETY: numbers and flags only.
unsafe impl DriverInput for efa::CreateCq {}
// SAFETY: numbers and flags only.
unsafe impl DriverInput for efa::CreateQp {}

/// Executes a legacy command.
///
/// # Errors
/// The command's; `EOPNOTSUPP` if the kernel or the driver has no such command.
pub fn invoke<C: LegacyCommand>(transport: &dyn Transport, request: &C) -> Result<C::Response> {
    invoke_for_driver(transport, request, &mut ())
}

/// Executes a legacy command that the driver answers to as well.
///
/// # Errors
/// As [`invoke`].
pub fn invoke_for_driver<C: LegacyCommand, D: FromBytes + IntoBytes>(
    transport: &dyn Transport,
    request: &C,
    driver: &mut D,
) -> Result<C::Response> {
    // SAFETY: the trait's contract.
    unsafe { invoke_raw(transport, C::NUMBER, request, &(), driver) }
}

/// # Safety
/// `number` is the command that takes an `I` and answers with an `O`, and the pointers in `request` and in what the driver is
/// given are good for whatever the kernel does with them.
unsafe fn invoke_raw<I, O, G, D>(
    transport: &dyn Transport,
    number: u32,
    request: &I,
    driver_input: &G,
    driver: &mut D,
) -> Result<O>
where
    I: IntoBytes + Immutable,
    O: FromBytes + FromZeros + IntoBytes,
    G: IntoBytes + Immutable,
    D: FromBytes + IntoBytes,
{
    let mut response = O::new_zeroed();
    let mut command = invoke_write(number);
    command.input(attr::invoke_write::CORE_IN, request);
    if size_of::<O>() > 0 {
        command.output(attr::invoke_write::CORE_OUT, &mut response);
    }
    command.driver_input(driver_input).driver_output(driver);
    // SAFETY: INVOKE_WRITE defines CORE_IN and the driver's UHW_IN as inputs, CORE_OUT and UHW_OUT as outputs; the caller vouches for
    // their contents.
    unsafe { command.issue(transport) }?;
    Ok(response)
}

/// A legacy command with no room for its structs. No command succeeds like this: the error says how far the kernel went.
///
/// # Errors
/// `ENOSPC` if the kernel knows the command and the driver id is the device's; `EINVAL` if the driver id is another.
pub fn invoke_without_room(transport: &dyn Transport, number: u32) -> Result<()> {
    // SAFETY: there is nothing to write to.
    unsafe { invoke_write(number).issue(transport) }
}

fn invoke_write<'a>(number: u32) -> Command<'a> {
    let mut command = Command::new(object::DEVICE, method::device::INVOKE_WRITE);
    command.constant(attr::invoke_write::WRITE_CMD, u64::from(number));
    command
}

/// What GET_CONTEXT says of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextInfo {
    /// Number of completion vectors.
    pub completion_vectors: u32,
    /// `enum ib_uverbs_core_support`: what the kernel's core understands.
    pub core_support: u64,
}

/// Makes the open file a context. Nothing else works before, and it works once.
///
/// # Errors
/// `EINVAL` if there is a context already.
pub fn get_context<I: DriverInput, O: FromBytes + IntoBytes>(
    transport: &dyn Transport,
    driver_input: &I,
    driver_output: &mut O,
) -> Result<ContextInfo> {
    let mut info = ContextInfo::default();
    let mut command = Command::new(object::DEVICE, method::device::GET_CONTEXT);
    command
        .output(attr::get_context::NUM_COMP_VECTORS, &mut info.completion_vectors)
        .output(attr::get_context::CORE_SUPPORT, &mut info.core_support)
        .driver_input(driver_input)
        .driver_output(driver_output);
    // SAFETY: outputs of 32 and 64 bits, and the driver's input and output.
    unsafe { command.issue(transport) }?;
    Ok(info)
}

/// Opens a file for asynchronous events. The first one receives those of all objects that name no other.
///
/// # Errors
/// `EMFILE`, `ENOMEM`.
pub fn alloc_async_event(transport: &dyn Transport) -> Result<OwnedFd> {
    let mut command = Command::new(object::ASYNC_EVENT, method::async_event::ALLOC);
    command.create(attr::async_event_alloc::FD_HANDLE);
    // SAFETY: the attribute creates a file.
    unsafe { command.issue(transport) }?;
    // SAFETY: the command succeeded and nobody else takes the file.
    unsafe { command.new_fd(attr::async_event_alloc::FD_HANDLE) }.ok_or(Errno::EBADF)
}

/// Opens a completion channel.
///
/// # Errors
/// `EMFILE`, `ENOMEM`.
pub fn create_comp_channel(transport: &dyn Transport) -> Result<OwnedFd> {
    let fd = invoke(transport, &CreateCompChannel::default())?.fd;
    let fd = RawFd::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Attributes of a port, `ibv_query_port`.
///
/// # Errors
/// `EINVAL` if there is no such port.
pub fn query_port(transport: &dyn Transport, port: u8) -> Result<QueryPortRespEx> {
    let mut response = QueryPortRespEx::default();
    let mut command = Command::new(object::DEVICE, method::device::QUERY_PORT);
    command
        .constant(attr::query_port::PORT_NUM, u64::from(port))
        .output(attr::query_port::RESP, &mut response);
    // SAFETY: a constant and an output of that struct.
    unsafe { command.issue(transport) }?;
    Ok(response)
}

/// One entry of a port's GID table, `ibv_query_gid_ex`.
///
/// # Errors
/// `ENODATA` if the entry is empty; `EINVAL` if the index or the port is out of range.
pub fn query_gid_entry(transport: &dyn Transport, port: u32, index: u32) -> Result<GidEntry> {
    let mut entry = GidEntry::default();
    let mut command = Command::new(object::DEVICE, method::device::QUERY_GID_ENTRY);
    command
        .constant(attr::query_gid_entry::PORT, u64::from(port))
        .constant(attr::query_gid_entry::GID_INDEX, u64::from(index))
        .flags(attr::query_gid_entry::FLAGS, 0)
        .output(attr::query_gid_entry::RESP_ENTRY, &mut entry);
    // SAFETY: two constants, a flag word and an output of that struct.
    unsafe { command.issue(transport) }?;
    Ok(entry)
}

/// The valid entries of the GID tables of all ports, `ibv_query_gid_table`. Says how many of `entries` it filled.
///
/// # Errors
/// `EINVAL` if `entries` is too small. `E2BIG` if it is longer than one attribute can be, 2 047 entries.
pub fn query_gid_table(transport: &dyn Transport, entries: &mut [GidEntry]) -> Result<usize> {
    let room = entries.len();
    let mut count = 0_u64;
    let mut command = Command::new(object::DEVICE, method::device::QUERY_GID_TABLE);
    command
        .constant(attr::query_gid_table::ENTRY_SIZE, size_of::<GidEntry>() as u64)
        .flags(attr::query_gid_table::FLAGS, 0)
        .output(attr::query_gid_table::RESP_ENTRIES, entries)
        .output(attr::query_gid_table::RESP_NUM_ENTRIES, &mut count);
    // SAFETY: a constant, a flag word, an output array of entries of the size named and an output of 64 bits.
    unsafe { command.issue(transport) }?;
    Ok(usize::try_from(count).map_or(room, |count| count.min(room)))
}

/// Registers memory. `start` and `hca_va` agree modulo the page size.
///
/// # Errors
/// `EFAULT` if the range is not mapped or not writable; `ENOMEM` beyond `RLIMIT_MEMLOCK`; `EINVAL`.
///
/// # Safety
/// The device may read and write the range as `access_flags` allow until the region has been destroyed.
pub unsafe fn reg_mr(transport: &dyn Transport, request: &RegMr) -> Result<RegMrResp> {
    // SAFETY: the kernel writes through no field itself; the caller vouches for what the device does with the range.
    unsafe { invoke_raw(transport, write_cmd::REG_MR, request, &(), &mut ()) }
}

/// What of a dma-buf is registered, `ibv_reg_dmabuf_mr`.
#[derive(Clone, Copy, Debug)]
pub struct DmaBufRequest<'a> {
    /// The protection domain's handle.
    pub pd: u32,
    /// The dma-buf.
    pub fd: BorrowedFd<'a>,
    /// First byte in the dma-buf.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Address by which work names the first byte. It agrees with `offset` modulo the page size.
    pub iova: u64,
    /// [`AccessFlags`](uverbs_uapi::ioctl_verbs::AccessFlags).
    pub access_flags: u32,
}

/// Registers memory of a dma-buf, and gives its handle and keys.
///
/// # Errors
/// `EOPNOTSUPP` if the driver has none; `EINVAL` for a file that is no dma-buf or a range beyond its end; `EBADF`.
pub fn reg_dmabuf_mr(transport: &dyn Transport, request: &DmaBufRequest<'_>) -> Result<RegMrResp> {
    use attr::reg_dmabuf_mr as id;
    let (mut lkey, mut rkey) = (0_u32, 0_u32);
    // Here the kernel takes it for a number, not for a file.
    let fd = request.fd.as_raw_fd();
    let mut command = Command::new(object::MR, method::mr::REG_DMABUF);
    command
        .create(id::HANDLE)
        .handle(id::PD_HANDLE, request.pd)
        .input(id::OFFSET, &request.offset)
        .input(id::LENGTH, &request.length)
        .input(id::IOVA, &request.iova)
        .input(id::FD, &fd)
        .flags(id::ACCESS_FLAGS, request.access_flags)
        .output(id::RESP_LKEY, &mut lkey)
        .output(id::RESP_RKEY, &mut rkey);
    // SAFETY: a new handle, a handle, three inputs of 64 bits, one of 32, a flag word and two outputs of 32 bits. What the device does
    // with memory of a dma-buf is as what another process does with it: no memory that belongs to Rust.
    unsafe { command.issue(transport) }?;
    let mr_handle = command.new_handle(id::HANDLE);
    Ok(RegMrResp { mr_handle, lkey, rkey })
}

/// Gives advice on memory, `ibv_advise_mr`. `advice` is one of
/// [`advise_mr_advice`](uverbs_uapi::ioctl_verbs::advise_mr_advice). With `flush` it is done on return.
///
/// # Errors
/// `EOPNOTSUPP` if the device has no use for it; `EINVAL` if a region is not of the domain or cannot be paged; `EFAULT`.
pub fn advise_mr(transport: &dyn Transport, pd: u32, advice: u32, flush: bool, sges: &[Sge]) -> Result<()> {
    let flags = if flush { AdviseMrFlags::FLUSH } else { AdviseMrFlags::empty() };
    let mut command = Command::new(object::MR, method::mr::ADVISE);
    command
        .handle(attr::advise_mr::PD_HANDLE, pd)
        .constant(attr::advise_mr::ADVICE, u64::from(advice))
        .flags(attr::advise_mr::FLAGS, flags.bits())
        .input(attr::advise_mr::SGE_LIST, sges);
    // SAFETY: a handle, a constant, a flag word and an array of such structs. What is paged in stays as it is.
    unsafe { command.issue(transport) }
}

/// What a CQ is created with, `ibv_create_cq`.
#[derive(Clone, Copy, Debug)]
pub struct CqRequest<'a> {
    /// Least number of entries.
    pub cqe: u32,
    /// What events of this CQ carry.
    pub user_handle: u64,
    /// Which completion vector signals its events.
    pub comp_vector: u32,
    /// Where its completion events go.
    pub channel: Option<BorrowedFd<'a>>,
}

/// Creates a CQ: its handle and the number of entries granted.
///
/// # Errors
/// `EINVAL` if a number is out of range.
pub fn create_cq<I: DriverInput, O: FromBytes + IntoBytes>(
    transport: &dyn Transport,
    request: &CqRequest<'_>,
    driver_input: &I,
    driver_output: &mut O,
) -> Result<(u32, u32)> {
    let mut cqe = 0_u32;
    let mut command = Command::new(object::CQ, method::cq::CREATE);
    command
        .create(attr::create_cq::HANDLE)
        .input(attr::create_cq::CQE, &request.cqe)
        .input(attr::create_cq::USER_HANDLE, &request.user_handle)
        .input(attr::create_cq::COMP_VECTOR, &request.comp_vector)
        .output(attr::create_cq::RESP_CQE, &mut cqe)
        .driver_input(driver_input)
        .driver_output(driver_output);
    if let Some(channel) = request.channel {
        command.fd(attr::create_cq::COMP_CHANNEL, channel);
    }
    // SAFETY: a new handle, inputs of 32, 64 and 32 bits, an output of 32 bits, the driver's input and output and a
    // file.
    unsafe { command.issue(transport) }?;
    let handle = command.new_handle(attr::create_cq::HANDLE);
    Ok((handle, cqe))
}

/// Destroys a CQ.
///
/// # Errors
/// `EBUSY` while a QP uses it.
pub fn destroy_cq(transport: &dyn Transport, handle: u32) -> Result<DestroyCqResp> {
    let mut response = DestroyCqResp::default();
    let mut command = Command::new(object::CQ, method::cq::DESTROY);
    command.handle(attr::destroy_cq::HANDLE, handle).output(attr::destroy_cq::RESP, &mut response);
    // SAFETY: a handle and an output of that struct.
    unsafe { command.issue(transport) }?;
    Ok(response)
}

/// What a QP is created with, `ibv_create_qp`.
#[derive(Clone, Copy, Debug)]
pub struct QpRequest {
    /// Handle of the protection domain.
    pub pd: u32,
    /// Handle of the CQ for the send queue.
    pub send_cq: u32,
    /// Handle of the CQ for the receive queue.
    pub recv_cq: u32,
    /// Handle of the SRQ that stands in for the receive queue.
    pub srq: Option<u32>,
    /// What asynchronous events of this QP carry.
    pub user_handle: u64,
    /// Least capacities of the queues.
    pub cap: QpCap,
    /// `enum ib_uverbs_qp_type`.
    pub qp_type: u32,
    /// `enum ib_uverbs_qp_create_flags`.
    pub flags: u32,
}

/// A QP as created.
#[derive(Clone, Copy, Debug)]
pub struct QpCreated {
    /// Its handle.
    pub handle: u32,
    /// Its number.
    pub qp_num: u32,
    /// Capacities granted.
    pub cap: QpCap,
}

/// Creates a QP.
///
/// # Errors
/// `EINVAL` if a capacity is beyond the device's, `EOPNOTSUPP` if the type is not supported.
pub fn create_qp<I: DriverInput, O: FromBytes + IntoBytes>(
    transport: &dyn Transport,
    request: &QpRequest,
    driver_input: &I,
    driver_output: &mut O,
) -> Result<QpCreated> {
    let mut cap = QpCap::default();
    let mut qp_num = 0_u32;
    let mut command = Command::new(object::QP, method::qp::CREATE);
    command
        .create(attr::create_qp::HANDLE)
        .handle(attr::create_qp::PD_HANDLE, request.pd)
        .handle(attr::create_qp::SEND_CQ_HANDLE, request.send_cq)
        .handle(attr::create_qp::RECV_CQ_HANDLE, request.recv_cq)
        .input(attr::create_qp::USER_HANDLE, &request.user_handle)
        .input(attr::create_qp::CAP, &request.cap)
        .constant(attr::create_qp::TYPE, u64::from(request.qp_type))
        .flags(attr::create_qp::FLAGS, request.flags)
        .output(attr::create_qp::RESP_CAP, &mut cap)
        .output(attr::create_qp::RESP_QP_NUM, &mut qp_num)
        .driver_input(driver_input)
        .driver_output(driver_output);
    if let Some(srq) = request.srq {
        command.handle(attr::create_qp::SRQ_HANDLE, srq);
    }
    // SAFETY: a new handle, three or four handles, inputs of 64 bits and of that struct, a constant, a flag word, outputs of that
    // struct and of 32 bits, and the driver's input and output.
    unsafe { command.issue(transport) }?;
    let handle = command.new_handle(attr::create_qp::HANDLE);
    Ok(QpCreated { handle, qp_num, cap })
}

/// Destroys a QP.
///
/// # Errors
/// `EBUSY` while it is attached to a multicast group.
pub fn destroy_qp(transport: &dyn Transport, handle: u32) -> Result<DestroyQpResp> {
    let mut response = DestroyQpResp::default();
    let mut command = Command::new(object::QP, method::qp::DESTROY);
    command.handle(attr::destroy_qp::HANDLE, handle).output(attr::destroy_qp::RESP, &mut response);
    // SAFETY: a handle and an output of that struct.
    unsafe { command.issue(transport) }?;
    Ok(response)
}

/// What an SRQ is created with, `ibv_create_srq`.
#[derive(Clone, Copy, Debug)]
pub struct SrqRequest {
    /// Handle of the protection domain.
    pub pd: u32,
    /// What asynchronous events of this SRQ carry.
    pub user_handle: u64,
    /// Least number of receives.
    pub max_wr: u32,
    /// Least number of SGEs of a receive.
    pub max_sge: u32,
}

/// An SRQ as created.
#[derive(Clone, Copy, Debug)]
pub struct SrqCreated {
    /// Its handle.
    pub handle: u32,
    /// Receives granted.
    pub max_wr: u32,
    /// SGEs of a receive granted.
    pub max_sge: u32,
}

/// Creates an SRQ.
///
/// # Errors
/// `EINVAL` if a capacity is zero or beyond the device's; `EPROTONOSUPPORT` if the device has none.
pub fn create_srq<I: DriverInput, O: FromBytes + IntoBytes>(
    transport: &dyn Transport,
    request: &SrqRequest,
    driver_input: &I,
    driver_output: &mut O,
) -> Result<SrqCreated> {
    let (mut max_wr, mut max_sge) = (0_u32, 0_u32);
    let mut command = Command::new(object::SRQ, method::srq::CREATE);
    command
        .create(attr::create_srq::HANDLE)
        .handle(attr::create_srq::PD_HANDLE, request.pd)
        .input(attr::create_srq::USER_HANDLE, &request.user_handle)
        .input(attr::create_srq::MAX_WR, &request.max_wr)
        .input(attr::create_srq::MAX_SGE, &request.max_sge)
        .input(attr::create_srq::LIMIT, &0_u32)
        .constant(attr::create_srq::TYPE, u64::from(srq_type::BASIC))
        .output(attr::create_srq::RESP_MAX_WR, &mut max_wr)
        .output(attr::create_srq::RESP_MAX_SGE, &mut max_sge)
        .driver_input(driver_input)
        .driver_output(driver_output);
    // SAFETY: a new handle, a handle, an input of 64 bits, three of 32 bits, a constant, two outputs of 32 bits, and the driver's
    // input and output.
    unsafe { command.issue(transport) }?;
    let handle = command.new_handle(attr::create_srq::HANDLE);
    Ok(SrqCreated { handle, max_wr, max_sge })
}

/// Changes capacity or limit of an SRQ, `ibv_modify_srq`.
///
/// # Errors
/// `EINVAL` if a number is out of range, or the capacity below what is posted.
///
/// # Safety
/// What the driver writes through fields of its input is memory that may be written so during the call.
pub unsafe fn modify_srq<I: IntoBytes + Immutable>(
    transport: &dyn Transport,
    request: &ModifySrq,
    driver_input: &I,
) -> Result<()> {
    // SAFETY: the command takes that struct and answers with nothing; the caller vouches for what the driver is given.
    unsafe { invoke_raw(transport, write_cmd::MODIFY_SRQ, request, driver_input, &mut ()) }
}

/// Destroys an SRQ.
///
/// # Errors
/// `EBUSY` while a QP uses it.
pub fn destroy_srq(transport: &dyn Transport, handle: u32) -> Result<DestroySrqResp> {
    let mut response = DestroySrqResp::default();
    let mut command = Command::new(object::SRQ, method::srq::DESTROY);
    command.handle(attr::destroy_srq::HANDLE, handle).output(attr::destroy_srq::RESP, &mut response);
    // SAFETY: a handle and an output of that struct.
    unsafe { command.issue(transport) }?;
    Ok(response)
}

/// What QUERY_COMP_CNTR_CAPS says, `struct ibv_comp_cntr_caps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompCntrCaps {
    /// Completion counters of the device, all processes together.
    pub max_counters: u32,
    /// Largest value, after which a counter wraps to zero.
    pub max_value: u64,
    /// Bits of [`QpAttachCompCntrOps`](uverbs_uapi::ioctl_verbs::QpAttachCompCntrOps).
    pub supported_ops: u32,
}

/// Capabilities of completion counters, `ibv_query_comp_cntr_caps`.
///
/// # Errors
/// `EPROTONOSUPPORT` before Linux 7.3, `EOPNOTSUPP` if the driver has none. All zeros say the same.
pub fn query_comp_cntr_caps(transport: &dyn Transport) -> Result<CompCntrCaps> {
    let mut caps = CompCntrCaps::default();
    let mut command = Command::new(object::DEVICE, method::device::QUERY_COMP_CNTR_CAPS);
    command
        .output(attr::query_comp_cntr_caps::MAX_COUNTERS, &mut caps.max_counters)
        .output(attr::query_comp_cntr_caps::MAX_VALUE, &mut caps.max_value)
        .output(attr::query_comp_cntr_caps::SUPPORTED_QP_ATTACH_OPS, &mut caps.supported_ops);
    // SAFETY: outputs of 32, 64 and 32 bits.
    unsafe { command.issue(transport) }?;
    Ok(caps)
}

/// Creates a completion counter whose values the kernel keeps, `ibv_create_comp_cntr`.
///
/// # Errors
/// `EPROTONOSUPPORT` if the kernel or the driver has none, `ENOMEM` if all are in use.
pub fn create_comp_cntr(transport: &dyn Transport) -> Result<u32> {
    // SAFETY: there is no memory.
    unsafe { create_comp_cntr_in(transport, &[]) }
}

/// Creates a completion counter whose values are in memory of the user: the driver's attributes that say where, by their ids.
///
/// # Errors
/// As [`create_comp_cntr`]; `EFAULT` or `EINVAL` if the memory cannot be used so.
///
/// # Safety
/// Each attribute takes such a description, and the device may write to the memory until the counter has been destroyed.
pub unsafe fn create_comp_cntr_in(transport: &dyn Transport, values: &[(u16, BufferDesc)]) -> Result<u32> {
    let mut command = Command::new(object::COMP_CNTR, method::comp_cntr::CREATE);
    command.create(attr::create_comp_cntr::HANDLE);
    for (attribute, memory) in values {
        command.input(*attribute, memory);
    }
    // SAFETY: a new handle, and inputs of that struct, for whose contents the caller vouches.
    unsafe { command.issue(transport) }?;
    Ok(command.new_handle(attr::create_comp_cntr::HANDLE))
}

/// Destroys a completion counter, `ibv_destroy_comp_cntr`.
///
/// # Errors
/// `EBUSY` while it is attached to a QP.
pub fn destroy_comp_cntr(transport: &dyn Transport, handle: u32) -> Result<()> {
    let (method, attribute) = (method::comp_cntr::DESTROY, attr::destroy_comp_cntr::HANDLE);
    destroy(transport, object::COMP_CNTR, method, attribute, handle)
}

/// Sets one value of a completion counter (`operation` SET) or adds to it (INC), `ibv_set_comp_cntr` and the like. `entry` and
/// `operation` are [`comp_cntr_entry`](uverbs_uapi::ioctl_verbs::comp_cntr_entry) and
/// [`comp_cntr_modify_op`](uverbs_uapi::ioctl_verbs::comp_cntr_modify_op).
///
/// # Errors
/// `EBUSY` while another call uses the counter; `EOPNOTSUPP` if the driver cannot.
pub fn modify_comp_cntr(
    transport: &dyn Transport,
    handle: u32,
    entry: u32,
    operation: u32,
    value: u64,
) -> Result<()> {
    let mut command = Command::new(object::COMP_CNTR, method::comp_cntr::MODIFY);
    command
        .handle(attr::modify_comp_cntr::HANDLE, handle)
        .constant(attr::modify_comp_cntr::ENTRY, u64::from(entry))
        .constant(attr::modify_comp_cntr::OP, u64::from(operation))
        .input(attr::modify_comp_cntr::VALUE, &value);
    // SAFETY: a handle, two constants and an input of 64 bits.
    unsafe { command.issue(transport) }
}

/// Reads one value of a completion counter that the kernel keeps.
///
/// # Errors
/// `EBUSY` while another call changes the counter; `EOPNOTSUPP` if the driver keeps values elsewhere.
pub fn read_comp_cntr(transport: &dyn Transport, handle: u32, entry: u32) -> Result<u64> {
    let mut value = 0;
    let mut command = Command::new(object::COMP_CNTR, method::comp_cntr::READ);
    command
        .handle(attr::read_comp_cntr::HANDLE, handle)
        .constant(attr::read_comp_cntr::ENTRY, u64::from(entry))
        .output(attr::read_comp_cntr::RESP_VALUE, &mut value);
    // SAFETY: a handle, a constant and an output of 64 bits.
    unsafe { command.issue(transport) }?;
    Ok(value)
}

/// Makes a completion counter count operations of a QP, `ibv_qp_attach_comp_cntr`.
///
/// # Errors
/// `EBUSY` if one of the operations is counted already; `EINVAL` if there is none or an unknown one; `EOPNOTSUPP` if the driver
/// cannot count one.
pub fn attach_comp_cntr(transport: &dyn Transport, qp: u32, counter: u32, operations: u32) -> Result<()> {
    let mut command = Command::new(object::QP, method::qp::ATTACH_COMP_CNTR);
    command
        .handle(attr::qp_attach_comp_cntr::HANDLE, qp)
        .handle(attr::qp_attach_comp_cntr::CNTR_HANDLE, counter)
        .flags(attr::qp_attach_comp_cntr::OP_MASK, operations);
    // SAFETY: two handles and a flag word.
    unsafe { command.issue(transport) }
}

/// Destroys an address handle.
///
/// # Errors
/// The driver's.
pub fn destroy_ah(transport: &dyn Transport, handle: u32) -> Result<()> {
    destroy(transport, object::AH, method::ah::DESTROY, attr::destroy_ah::HANDLE, handle)
}

/// Destroys a memory window, bound or not.
///
/// # Errors
/// The driver's.
pub fn destroy_mw(transport: &dyn Transport, handle: u32) -> Result<()> {
    destroy(transport, object::MW, method::mw::DESTROY, attr::destroy_mw::HANDLE, handle)
}

/// Destroys a protection domain.
///
/// # Errors
/// `EBUSY` while something belongs to it.
pub fn destroy_pd(transport: &dyn Transport, handle: u32) -> Result<()> {
    destroy(transport, object::PD, method::pd::DESTROY, attr::destroy_pd::HANDLE, handle)
}

/// Deregisters a memory region.
///
/// # Errors
/// `EINVAL` or `EBUSY` while a memory window is bound to it.
pub fn destroy_mr(transport: &dyn Transport, handle: u32) -> Result<()> {
    destroy(transport, object::MR, method::mr::DESTROY, attr::destroy_mr::HANDLE, handle)
}

fn destroy(transport: &dyn Transport, object: u16, method: u16, attribute: u16, handle: u32) -> Result<()> {
    let mut command = Command::new(object, method);
    command.handle(attribute, handle);
    // SAFETY: a handle.
    unsafe { command.issue(transport) }
}
