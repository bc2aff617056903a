//! Receives: those of a QP, and those that QPs share.

use uverbs_ioctl::calls;
use uverbs_ioctl::uapi::rxe::{DmaInfo, MmapInfo, ModifySrqCmd, RecvWqe, Sge};
use uverbs_ioctl::uapi::user_verbs::ModifySrq;
use uverbs_ioctl::uapi::values::SrqAttrMask;
use uverbs_ioctl::{Errno, Transport};

use super::queues::{total_length, write_sge, write_sges};
use super::ring::Producer;
use crate::post::{PostReason, ReceiveRequest};
use crate::provider::SharedReceiveRing;

/// A ring of receives. Elements have room for one SGE at least.
pub(super) struct Receives {
    ring: Producer,
    max_sge: usize,
}

impl Receives {
    pub(super) fn map(transport: &dyn Transport, info: &MmapInfo, max_sge: u32) -> Result<Self, Errno> {
        let max_sge = max_sge as usize;
        if max_sge == 0 {
            return Err(Errno::EPROTO);
        }
        let slot_size = size_of::<RecvWqe>() + max_sge * size_of::<Sge>();
        Ok(Self { ring: Producer::map(transport, info, slot_size)?, max_sge })
    }

    /// How many fit.
    pub(super) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Posts requests until one does not go, and says how many went.
    #[inline]
    pub(super) fn post(&mut self, requests: &[ReceiveRequest<'_>]) -> usize {
        // By far the most frequent call, apart because it needs no loop and few registers.
        if let &[ReceiveRequest { wr_id, sges: &[sge] }] = requests
            && let Some(slot) = self.ring.reserve()
        {
            // SAFETY: there is room for one SGE in the slot (checked when mapped).
            unsafe {
                write_receive(slot, wr_id, sge.length, 1);
                write_sge(slot.add(size_of::<RecvWqe>()), 0, sge);
            }
            self.ring.advance();
            self.ring.publish();
            return 1;
        }
        self.post_any(requests)
    }

    #[inline(never)]
    fn post_any(&mut self, requests: &[ReceiveRequest<'_>]) -> usize {
        let mut posted = 0;
        for request in requests {
            let Ok(length) = total_length(request.sges, self.max_sge) else { break };
            let Some(slot) = self.ring.reserve() else { break };
            // SAFETY: slots have room for as many SGEs as were granted, and there are not more (checked above).
            unsafe {
                write_receive(slot, request.wr_id, length, request.sges.len() as u32);
                write_sges(slot.add(size_of::<RecvWqe>()), request.sges);
            }
            self.ring.advance();
            posted += 1;
        }
        self.ring.publish();
        posted
    }

    /// Takes requests, or none.
    pub(super) fn accept(&mut self, accept: bool) {
        if accept {
            self.ring.open();
        } else {
            self.ring.close();
        }
    }

    /// Why this one did not go.
    pub(super) fn refusal(&self, request: &ReceiveRequest<'_>) -> PostReason {
        total_length(request.sges, self.max_sge).err().unwrap_or(PostReason::QueueFull)
    }
}

/// # Safety
/// `slot` is a free slot of the receive ring.
#[inline(always)]
unsafe fn write_receive(slot: *mut u8, wr_id: u64, length: u32, num_sge: u32) {
    let dma = DmaInfo { length, resid: length, num_sge, ..Default::default() };
    // SAFETY: slots are aligned and have room for the element (checked when mapped), and the kernel does not look at this one before
    // it is published.
    unsafe { slot.cast::<RecvWqe>().write(RecvWqe { wr_id, dma, ..Default::default() }) };
}

impl SharedReceiveRing for Receives {
    fn post_receives(&mut self, requests: &[ReceiveRequest<'_>]) -> usize {
        self.post(requests)
    }

    fn receive_refusal(&self, request: &ReceiveRequest<'_>) -> PostReason {
        self.refusal(request)
    }

    fn set_limit(&mut self, transport: &dyn Transport, srq: u32, limit: u32) -> Result<(), Errno> {
        let request =
            ModifySrq { srq_handle: srq, attr_mask: SrqAttrMask::LIMIT.bits(), srq_limit: limit, max_wr: 0 };
        modify(transport, &request).map(|_| ())
    }

    fn resize(&mut self, transport: &dyn Transport, srq: u32, max_wr: u32) -> Result<u32, Errno> {
        let request =
            ModifySrq { srq_handle: srq, attr_mask: SrqAttrMask::MAX_WR.bits(), max_wr, srq_limit: 0 };
        let info = modify(transport, &request)?;
        // The kernel has another ring now, with what was posted in it.
        match Self::map(transport, &info, self.max_sge as u32) {
            Ok(new) => *self = new,
            Err(errno) => {
                self.accept(false);
                return Err(errno);
            }
        }
        Ok(self.capacity())
    }
}

/// Modifies an SRQ. If that gave it a new ring, the answer says where.
fn modify(transport: &dyn Transport, request: &ModifySrq) -> Result<MmapInfo, Errno> {
    let mut info = MmapInfo::default();
    // The driver wants the pointer even if it has nothing to say.
    let input = ModifySrqCmd { mmap_info_addr: (&raw mut info).expose_provenance() as u64 };
    // SAFETY: the driver writes one such struct through the pointer, during the call.
    unsafe { calls::modify_srq(transport, request, &input) }?;
    Ok(info)
}
