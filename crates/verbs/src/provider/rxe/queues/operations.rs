//! Which operations there are, and those that carry no message.
//!
//! The latter are marked as cold because that keeps their registers out of the path of the frequent ones.

use uverbs_ioctl::uapi::ioctl_verbs::qp_type;
use uverbs_ioctl::uapi::rxe::{DmaInfo, SendWqe, SendWr, SendWrAtomic, SendWrFlush, SendWrMw, SendWrRdma};
use uverbs_ioctl::uapi::user_verbs::{DeviceCapFlags, selectivity_level, wr_opcode};

use super::{Work, total_length, write_sges};
use crate::mw::WindowBinding;
use crate::post::{
    FlushExtent, FlushPlacement, Payload, PostReason, RemoteMemory, ScatterGather, SendRequest,
};

/// The operations of QPs of a type besides plain sends, bit n for number n of [`wr_opcode`]. What the driver lacks it would notice only when it executes
/// the request, and break the QP.
pub(crate) fn operations(qp_type: u32, device: DeviceCapFlags) -> u32 {
    let set = |opcodes: &[u32]| opcodes.iter().fold(0, |set, opcode| set | 1 << opcode);
    if qp_type == qp_type::UD {
        return 0;
    }
    let mut operations = set(&[wr_opcode::RDMA_WRITE, wr_opcode::RDMA_WRITE_WITH_IMM, wr_opcode::BIND_MW]);
    if qp_type == qp_type::UC {
        return operations;
    }
    operations |= set(&[
        wr_opcode::SEND_WITH_INV,
        wr_opcode::RDMA_READ,
        wr_opcode::ATOMIC_CMP_AND_SWP,
        wr_opcode::ATOMIC_FETCH_AND_ADD,
        wr_opcode::LOCAL_INV,
    ]);
    if device.contains(DeviceCapFlags::ATOMIC_WRITE) {
        operations |= set(&[wr_opcode::ATOMIC_WRITE]);
    }
    if device.intersects(DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::FLUSH_PERSISTENT) {
        operations |= set(&[wr_opcode::FLUSH]);
    }
    operations
}

impl Work {
    /// The number of an operation, if the QP has it.
    #[inline]
    pub(super) fn having(&self, opcode: u32) -> Result<u32, PostReason> {
        if self.operations & (1 << opcode) == 0 { Err(PostReason::NoSuchOperation) } else { Ok(opcode) }
    }

    /// An atomic operation whose result goes to the SGEs of the request.
    #[cold]
    pub(super) fn push_atomic(
        &mut self,
        request: &SendRequest<'_>,
        opcode: u32,
        at: RemoteMemory,
        compare_add: u64,
        swap: u64,
    ) -> Result<(), PostReason> {
        const LENGTH: u32 = 8;
        self.check_connected(request, opcode)?;
        let address = aligned(at)?;
        let Payload::Sges(sges) = request.payload else { return Err(PostReason::InlineRead) };
        let length = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if length < u64::from(LENGTH) {
            return Err(PostReason::ResultTooShort { length });
        }
        total_length(sges, self.max_send_sge)?;
        let mut wr = head(request, opcode);
        let atomic = SendWrAtomic { remote_addr: address, compare_add, swap, rkey: at.rkey, reserved: 0 };
        [wr.wr[0], wr.wr[1], wr.wr[2], wr.wr[3]] = zerocopy::transmute!(atomic);
        self.push_without_message(wr, address, LENGTH, sges, None)
    }

    #[cold]
    pub(super) fn push_atomic_write(
        &mut self,
        request: &SendRequest<'_>,
        to: RemoteMemory,
        value: [u8; 8],
    ) -> Result<(), PostReason> {
        self.check_connected(request, wr_opcode::ATOMIC_WRITE)?;
        check_no_payload(request)?;
        let address = aligned(to)?;
        let mut wr = head(request, wr_opcode::ATOMIC_WRITE);
        let rdma = SendWrRdma { remote_addr: address, rkey: to.rkey, reserved: 0 };
        [wr.wr[0], wr.wr[1]] = zerocopy::transmute!(rdma);
        self.push_without_message(wr, address, size_of_val(&value) as u32, &[], Some(value))
    }

    #[cold]
    pub(super) fn push_flush(
        &mut self,
        request: &SendRequest<'_>,
        memory: RemoteMemory,
        extent: FlushExtent,
        placement: FlushPlacement,
    ) -> Result<(), PostReason> {
        self.check_connected(request, wr_opcode::FLUSH)?;
        check_no_payload(request)?;
        let (level, length) = match extent {
            FlushExtent::Range(length) => (selectivity_level::RANGE, length),
            FlushExtent::Region => (selectivity_level::MR, 0),
        };
        let RemoteMemory { address: remote_addr, rkey } = memory;
        let mut wr = head(request, wr_opcode::FLUSH);
        let (r#type, level) = (placement.bits(), level as u8);
        let flush = SendWrFlush { remote_addr, length, rkey, r#type, level, ..Default::default() };
        [wr.wr[0], wr.wr[1], wr.wr[2]] = zerocopy::transmute!(flush);
        self.push_without_message(wr, remote_addr, length, &[], None)
    }

    #[cold]
    pub(super) fn push_local_invalidate(
        &mut self,
        request: &SendRequest<'_>,
        rkey: u32,
    ) -> Result<(), PostReason> {
        self.check_connected(request, wr_opcode::LOCAL_INV)?;
        check_no_payload(request)?;
        // It may only be noted if it does go.
        self.send.reserve().ok_or(PostReason::QueueFull)?;
        // There is nothing else that the driver could invalidate for a user, and the kernel crashes if it is a window that is not bound.
        self.windows.invalidate(rkey)?;
        self.push_without_message(SendWr { ex: rkey, ..head(request, wr_opcode::LOCAL_INV) }, 0, 0, &[], None)
    }

    #[cold]
    pub(super) fn push_bind(
        &mut self,
        request: &SendRequest<'_>,
        binding: &WindowBinding<'_>,
    ) -> Result<(), PostReason> {
        self.check_connected(request, wr_opcode::BIND_MW)?;
        check_no_payload(request)?;
        self.send.reserve().ok_or(PostReason::QueueFull)?;
        self.windows.bind(binding.window)?;
        let mut wr = head(request, wr_opcode::BIND_MW);
        let window = SendWrMw {
            addr: binding.address,
            length: binding.length,
            mr_lkey: binding.lkey,
            mw_rkey: binding.window_rkey,
            rkey: binding.rkey,
            access: binding.access.bits(),
        };
        [wr.wr[0], wr.wr[1], wr.wr[2], wr.wr[3]] = zerocopy::transmute!(window);
        self.push_without_message(wr, 0, 0, &[], None)
    }

    /// For operations that only connected QPs have.
    fn check_connected(&self, request: &SendRequest<'_>, opcode: u32) -> Result<(), PostReason> {
        self.having(opcode)?;
        if request.destination.is_some() { Err(PostReason::Connected) } else { Ok(()) }
    }

    /// Writes a request for so many bytes of the peer's memory at `iova`, and behind it SGEs, not more than were granted, or the value of
    /// an atomic write.
    fn push_without_message(
        &mut self,
        wr: SendWr,
        iova: u64,
        length: u32,
        sges: &[ScatterGather],
        value: Option<[u8; 8]>,
    ) -> Result<(), PostReason> {
        if length > 0 && self.max_send_sge == 0 {
            // Linux 7.3 wants room for an SGE where there are bytes, even if they are not in one. An atomic write's are there.
            return Err(PostReason::TooManySges { given: 1, most: 0 });
        }
        let slot = self.send.reserve().ok_or(PostReason::QueueFull)?;
        let dma = DmaInfo { length, resid: length, num_sge: sges.len() as u32, ..Default::default() };
        // SAFETY: slots have room for an element with as many SGEs as were granted (checked when mapped), which is not exceeded (says
        // the caller); a value takes half the room of an SGE, and there is at least one (checked above, for it has a length). The slot
        // is aligned, free, and the kernel does not look at it before it is published.
        unsafe {
            slot.cast::<SendWqe>().write(SendWqe { wr, iova, dma, ..Default::default() });
            let room = slot.add(size_of::<SendWqe>());
            match value {
                Some(value) => room.cast::<[u8; 8]>().write(value),
                None => write_sges(room, sges),
            }
        }
        self.send.advance();
        Ok(())
    }
}

/// The part of a request that does not depend on the operation.
fn head(request: &SendRequest<'_>, opcode: u32) -> SendWr {
    SendWr { wr_id: request.wr_id, opcode, send_flags: request.flags.bits(), ..Default::default() }
}

/// The kernel would break the QP, and the peer's.
fn aligned(memory: RemoteMemory) -> Result<u64, PostReason> {
    let RemoteMemory { address, .. } = memory;
    if address.is_multiple_of(8) { Ok(address) } else { Err(PostReason::Misaligned { address }) }
}

fn check_no_payload(request: &SendRequest<'_>) -> Result<(), PostReason> {
    if matches!(request.payload, Payload::Sges([])) { Ok(()) } else { Err(PostReason::NoPayload) }
}
