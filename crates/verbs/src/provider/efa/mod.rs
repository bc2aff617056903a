//! Amazon's Elastic Fabric Adapter, driver `efa`: `rdma/efa-abi.h`, and queues as the device has them.

mod cq;
mod mmio;
mod qp;
mod requests;
mod wire;

use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use uverbs_ioctl::calls::{self, ContextInfo, CqRequest, QpRequest};
use uverbs_ioctl::uapi::efa::{
    ABI_VERSION, AllocUcontextCaps, AllocUcontextCmd, AllocUcontextResp, CmdsSuppUdata, CreateAhResp,
    CreateCq, CreateCqFlags, CreateCqResp, CreateQp, CreateQpFlags, CreateQpResp, DeviceCaps,
    QueryDeviceResp, create_comp_cntr_attr, driver_qp_type,
};
use uverbs_ioctl::uapi::ioctl_verbs::{
    BufferDesc, QpCap, QpCreateFlags, buffer_type, comp_cntr_entry, driver_id, qp_type,
};
use uverbs_ioctl::uapi::user_verbs::{CreateAh, ExQueryDevice};
use uverbs_ioctl::uapi::values::QpAttrMask;
use uverbs_ioctl::{Errno, Transport};

use super::{ContextOps, CounterValues, NewAddressHandle, NewCounter, NewCq, NewQp, Provider};
use crate::counter::CounterMemory;
use crate::memory::Memory;
use cq::Completions;
use qp::{Layout, Work};
use requests::Table;
use wire::{
    COMPLETION_LONG, COMPLETION_SHORT, INLINE_SHORT, ReceiveBuffer, SEND_BUFFERS, SEND_LONG, SEND_SHORT,
};

pub(super) struct Efa;

impl Provider for Efa {
    fn driver_id(&self) -> u32 {
        driver_id::EFA
    }

    fn name(&self) -> &'static str {
        "efa"
    }

    fn abi_versions(&self) -> RangeInclusive<u32> {
        ABI_VERSION..=ABI_VERSION
    }

    fn open(&self, transport: &dyn Transport) -> Result<(ContextInfo, Box<dyn ContextOps>), Errno> {
        let understood = AllocUcontextCaps::TX_BATCH | AllocUcontextCaps::MIN_SQ_WR;
        let request = AllocUcontextCmd { supported_caps: understood.bits(), ..Default::default() };
        let mut limits = AllocUcontextResp::default();
        let info = calls::get_context(transport, &request, &mut limits)?;
        let answers = CmdsSuppUdata::from_bits_retain(limits.cmds_supp_udata_mask);
        if !answers.contains(CmdsSuppUdata::CREATE_AH | CmdsSuppUdata::QUERY_DEVICE) {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let mut device = QueryDeviceResp::default();
        calls::invoke_for_driver(transport, &ExQueryDevice::default(), &mut device)?;
        let capabilities = DeviceCaps::from_bits_retain(device.device_caps);
        Ok((info, Box::new(Opened { limits, device, capabilities, table: Arc::default() })))
    }
}

/// An open device.
struct Opened {
    limits: AllocUcontextResp,
    device: QueryDeviceResp,
    capabilities: DeviceCaps,
    table: Arc<Table>,
}

impl Opened {
    /// How a QP can be made that has what was asked for. `EINVAL` if it cannot.
    fn layout(&self, request: &QpRequest) -> Result<Layout, Errno> {
        let asked = &request.cap;
        let is_srd = request.qp_type == qp_type::DRIVER;
        let writes = is_srd && self.capabilities.contains(DeviceCaps::RDMA_WRITE);
        // Inline bytes of a write are behind its target, for which short requests have no room. Old devices have no long ones.
        let has_long = self.limits.inline_buf_size_ex > 0;
        let long = asked.max_inline_data > INLINE_SHORT || (writes && has_long && asked.max_inline_data > 0);
        let request_size = if long { SEND_LONG } else { SEND_SHORT };
        let most_inline = u32::from(self.limits.inline_buf_size.max(self.limits.inline_buf_size_ex));
        let max_send_sge = asked.max_send_sge.max(1);
        let max_recv_sge = asked.max_recv_sge.max(1);
        if max_send_sge > SEND_BUFFERS.min(self.device.max_sq_sge.into())
            || max_recv_sge > self.device.max_rq_sge.into()
            || asked.max_inline_data > most_inline
        {
            return Err(Errno::EINVAL);
        }
        let power = |number: u32| number.checked_next_power_of_two().ok_or(Errno::EINVAL);
        let depth = power(asked.max_send_wr.max(self.limits.min_sq_wr.into()))?;
        let buffers = asked.max_recv_wr.max(1).checked_mul(max_recv_sge).ok_or(Errno::EINVAL)?;
        let receive_buffers = power(buffers)?;
        let bytes = u64::from(depth) * request_size as u64;
        if bytes > self.limits.max_llq_size.into() || receive_buffers > 1 << 15 || depth > 1 << 15 {
            return Err(Errno::EINVAL);
        }
        let max_batch = match usize::from(self.limits.max_tx_batch) {
            0 => depth as usize,
            units => (units * SEND_SHORT / request_size).max(1),
        };
        // A device with a least depth takes no doorbell for a whole queue.
        let whole = depth as usize - usize::from(self.limits.min_sq_wr > 0 && depth > 1);
        Ok(Layout {
            cap: QpCap {
                max_send_wr: depth,
                max_recv_wr: receive_buffers / max_recv_sge,
                max_send_sge,
                max_recv_sge,
                max_inline_data: asked.max_inline_data,
            },
            request_size,
            receive_buffers,
            max_batch: max_batch.min(whole),
            signal_all: request.flags & QpCreateFlags::SQ_SIG_ALL.bits() != 0,
            reads: is_srd && self.capabilities.contains(DeviceCaps::RDMA_READ),
            writes,
            has_header: !is_srd,
        })
    }
}

impl ContextOps for Opened {
    fn create_cq(&self, transport: &dyn Transport, request: &CqRequest<'_>) -> Result<NewCq, Errno> {
        let mut flags = CreateCqFlags::empty();
        if request.channel.is_some() {
            if !self.capabilities.contains(DeviceCaps::CQ_NOTIFICATIONS) {
                return Err(Errno::EOPNOTSUPP);
            }
            flags |= CreateCqFlags::WITH_COMPLETION_CHANNEL;
        }
        let cqe = request.cqe.checked_next_power_of_two().ok_or(Errno::EINVAL)?;
        let parts = self.limits.sub_cqs_per_cq;
        // Only RDMA writes are longer than a short completion can tell.
        let entry_size = match self.capabilities.contains(DeviceCaps::RDMA_WRITE) {
            true => COMPLETION_LONG,
            false => COMPLETION_SHORT,
        };
        let driver = CreateCq {
            cq_entry_size: entry_size as u32,
            num_sub_cqs: parts,
            flags: flags.bits(),
            ..Default::default()
        };
        let mut response = CreateCqResp::default();
        let request = CqRequest { cqe, ..*request };
        let (handle, entries) = calls::create_cq(transport, &request, &driver, &mut response)?;
        let ring = Completions::map(transport, &response, entries, entry_size, parts, self.table.clone())
            // The error that matters is the first.
            .inspect_err(|_| _ = calls::destroy_cq(transport, handle))?;
        Ok(NewCq { handle, entries, ring: Box::new(ring) })
    }

    fn create_qp(
        &self,
        transport: &dyn Transport,
        request: &QpRequest,
        unsolicited_writes: bool,
    ) -> Result<NewQp, Errno> {
        if !matches!(request.qp_type, qp_type::UD | qp_type::DRIVER) {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut flags = CreateQpFlags::empty();
        if unsolicited_writes {
            let can = self.capabilities.contains(DeviceCaps::UNSOLICITED_WRITE_RECV);
            if request.qp_type != qp_type::DRIVER || !can {
                return Err(Errno::EOPNOTSUPP);
            }
            flags |= CreateQpFlags::WITH_UNSOLICITED_WRITE_RECV;
        }
        let layout = self.layout(request)?;
        let driver = CreateQp {
            rq_ring_size: layout.receive_buffers * size_of::<ReceiveBuffer>() as u32,
            sq_ring_size: layout.cap.max_send_wr * layout.request_size as u32,
            driver_qp_type: driver_qp_type::SRD,
            flags: flags.bits(),
            ..Default::default()
        };
        let mut response = CreateQpResp::default();
        let request = QpRequest { cap: layout.cap, ..*request };
        let mut created = calls::create_qp(transport, &request, &driver, &mut response)?;
        created.cap = layout.cap;
        let rings = Work::map(transport, &response, layout, created.qp_num, self.table.clone())
            .inspect_err(|_| _ = calls::destroy_qp(transport, created.handle))?;
        Ok(NewQp { created, rings: Box::new(rings) })
    }

    fn qp_attributes(&self) -> QpAttrMask {
        QpAttrMask::STATE
            | QpAttrMask::PORT
            | QpAttrMask::PKEY_INDEX
            | QpAttrMask::QKEY
            | QpAttrMask::SQ_PSN
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::CAP
    }

    fn create_address_handle(
        &self,
        transport: &dyn Transport,
        request: &CreateAh,
    ) -> Result<NewAddressHandle, Errno> {
        // The driver would take the GID of zeros that there is without.
        if request.attr.is_global == 0 {
            return Err(Errno::EINVAL);
        }
        let mut response = CreateAhResp::default();
        let created = calls::invoke_for_driver(transport, request, &mut response)?;
        Ok(NewAddressHandle { handle: created.ah_handle, number: response.efa_address_handle.into() })
    }

    unsafe fn create_counter(
        &self,
        transport: &dyn Transport,
        completions: CounterMemory<'_>,
        errors: CounterMemory<'_>,
    ) -> Result<NewCounter, Errno> {
        let page = || {
            let page = Memory::anonymous(rustix::param::page_size());
            page.map_err(|error| Errno::from_raw(error.errno()))
        };
        let needs_own = [completions, errors].iter().any(|place| matches!(place, CounterMemory::Own));
        let own = needs_own.then(page).transpose()?;
        let own_word = |index| {
            own.as_ref().map_or(ptr::null_mut(), |page| page.as_ptr().cast::<u64>().wrapping_add(index))
        };
        let place = |memory, own| match memory {
            CounterMemory::Own => (own, at_address(own)),
            CounterMemory::Address(word) => (word, at_address(word)),
            CounterMemory::DmaBuf { fd, offset, mapped } => (mapped, in_dma_buf(fd, offset)),
        };
        let (completions, completions_place) = place(completions, own_word(0));
        let (errors, errors_place) = place(errors, own_word(1));
        let places = [
            (create_comp_cntr_attr::COMP_BUFFER, completions_place),
            (create_comp_cntr_attr::ERR_BUFFER, errors_place),
        ];
        // SAFETY: both attributes take such a description; the words are in memory that the counter owns and that goes only after it
        // has been destroyed, or that the caller keeps as long.
        let handle = unsafe { calls::create_comp_cntr_in(transport, &places) }?;
        let mut words = [ptr::null_mut(); 2];
        words[comp_cntr_entry::COMP as usize] = completions;
        words[comp_cntr_entry::ERR as usize] = errors;
        Ok(NewCounter { handle, values: CounterValues { words, in_kernel: false, _own: own } })
    }
}

/// A completion counter's value at an address.
fn at_address(word: *mut u64) -> BufferDesc {
    let length = size_of::<u64>() as u64;
    BufferDesc {
        r#type: buffer_type::VA,
        addr: word.expose_provenance() as u64,
        length,
        ..Default::default()
    }
}

/// A completion counter's value in a dma-buf.
fn in_dma_buf(fd: BorrowedFd<'_>, offset: u64) -> BufferDesc {
    let length = size_of::<u64>() as u64;
    BufferDesc { r#type: buffer_type::DMABUF, fd: fd.as_raw_fd(), addr: offset, length, ..Default::default() }
}
