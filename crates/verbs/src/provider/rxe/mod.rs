//! soft-RoCE, driver `rdma_rxe`: rings in kernel memory, `rdma/rdma_user_rxe.h`.

mod queues;
mod receives;
mod ring;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use uverbs_ioctl::calls::{self, ContextInfo, CqRequest, QpRequest, SrqRequest};
use uverbs_ioctl::uapi::ioctl_verbs::{driver_id, qp_type};
use uverbs_ioctl::uapi::rxe::{CreateAhResp, CreateCqResp, CreateQpResp, CreateSrqResp};
use uverbs_ioctl::uapi::user_verbs::{CreateAh, DeviceCapFlags, ExQueryDevice};
use uverbs_ioctl::{Errno, Transport};

use super::{ContextOps, NewAddressHandle, NewCq, NewQp, NewSrq, Provider};
use queues::{Completions, Work, operations};
use receives::Receives;

pub(super) struct Rxe;

impl Provider for Rxe {
    fn driver_id(&self) -> u32 {
        driver_id::RXE
    }

    fn name(&self) -> &'static str {
        "rxe"
    }

    fn abi_versions(&self) -> RangeInclusive<u32> {
        // Version 1 has the same layout where pointers have 64 bits.
        if cfg!(target_pointer_width = "64") { 1..=2 } else { 2..=2 }
    }

    fn open(&self, transport: &dyn Transport) -> Result<(ContextInfo, Box<dyn ContextOps>), Errno> {
        Ok((calls::get_context(transport, &(), &mut ())?, Box::<Ops>::default()))
    }
}

/// A context.
#[derive(Default)]
struct Ops {
    /// Asked for once: they do not change.
    device: OnceLock<DeviceCapFlags>,
}

impl Ops {
    /// What the device can do; nothing beyond the oldest kernels' if it does not tell.
    fn device(&self, transport: &dyn Transport) -> DeviceCapFlags {
        self.device.get().copied().unwrap_or_else(|| {
            calls::invoke(transport, &ExQueryDevice::default()).map_or(DeviceCapFlags::empty(), |response| {
                let flags = DeviceCapFlags::from_bits_retain(response.device_cap_flags_ex);
                *self.device.get_or_init(|| flags)
            })
        })
    }
}

impl ContextOps for Ops {
    fn create_cq(&self, transport: &dyn Transport, request: &CqRequest<'_>) -> Result<NewCq, Errno> {
        let mut response = CreateCqResp::default();
        let (handle, entries) = calls::create_cq(transport, request, &(), &mut response)?;
        let ring = Completions::map(transport, &response.mi)
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
        if unsolicited_writes || !matches!(request.qp_type, qp_type::RC | qp_type::UC | qp_type::UD) {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut request = *request;
        if request.srq.is_none() {
            request.cap.max_recv_sge = request.cap.max_recv_sge.max(1);
        }
        let operations = operations(request.qp_type, self.device(transport));
        let mut response = CreateQpResp::default();
        let mut created = calls::create_qp(transport, &request, &(), &mut response)?;
        let rings = Work::map(transport, &request, &response, &created, operations)
            .inspect_err(|_| _ = calls::destroy_qp(transport, created.handle))?;
        // Linux 6.1 says here what was asked for, and only in QUERY_QP what it granted.
        (created.cap.max_send_wr, created.cap.max_recv_wr) = rings.capacities();
        Ok(NewQp { created, rings: Box::new(rings) })
    }

    fn create_srq(&self, transport: &dyn Transport, request: &SrqRequest) -> Result<NewSrq, Errno> {
        let mut response = CreateSrqResp::default();
        let mut created = calls::create_srq(transport, request, &(), &mut response)?;
        let ring = Receives::map(transport, &response.mi, created.max_sge)
            .inspect_err(|_| _ = calls::destroy_srq(transport, created.handle))?;
        created.max_wr = ring.capacity();
        Ok(NewSrq { created, number: response.srq_num, ring: Box::new(ring) })
    }

    fn create_address_handle(
        &self,
        transport: &dyn Transport,
        request: &CreateAh,
    ) -> Result<NewAddressHandle, Errno> {
        let mut response = CreateAhResp::default();
        let handle = calls::invoke_for_driver(transport, request, &mut response)?.ah_handle;
        if response.ah_num == 0 {
            // Before Linux 5.16 the driver has no numbers, but wants the whole address in every request.
            let _ = calls::destroy_ah(transport, handle);
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(NewAddressHandle { handle, number: response.ah_num })
    }

    fn flushes_late_receives(&self) -> bool {
        false
    }

    fn resets(&self) -> usize {
        // The driver notes where the next send is before it drops those that were there, and would begin with a stale one.
        2
    }
}
