//! Completion queues.

use std::ptr;
use std::sync::Arc;

use uverbs_ioctl::uapi::efa::{CreateCqResp, CreateCqRespMask};
use uverbs_ioctl::uapi::user_verbs::{Wc, wc_opcode};
use uverbs_ioctl::uapi::values::{self, WcFlags};
use uverbs_ioctl::{Errno, Transport};
use zerocopy::IntoBytes;

use super::mmio::{self, Register, Window};
use super::requests::{Queues, Table};
use super::wire::{COMPLETION_LONG, Completion, flag, operation};
use crate::completion::{UNSOLICITED, WorkCompletion};
use crate::provider::CompletionRing;

/// Words of a long completion.
const LONG: usize = COMPLETION_LONG / size_of::<u64>();

/// Bits of the doorbell. Bits 15:0 count completions taken.
const EVENT_SHIFT: u32 = 29;
const EVENT_MASK: u32 = 3;
const ARM: u32 = 1 << 31;

/// A CQ's ring.
pub(super) struct Completions {
    parts: Parts,
    table: Arc<Table>,
    /// The one that is looked at.
    current: WorkCompletion,
}

/// The ring has one or several parts, which the device fills each on its own.
struct Parts {
    ring: Window,
    /// Words of a completion.
    words: usize,
    /// Completions that a part holds: a power of two.
    entries: usize,
    /// Completions taken from each part.
    taken: Box<[usize]>,
    /// The part to look into next.
    next: usize,
    /// What the doorbell was told last: completions taken, and events read.
    total: u16,
    events: u32,
    doorbell: Option<Register>,
}

impl Completions {
    pub(super) fn map(
        transport: &dyn Transport,
        response: &CreateCqResp,
        entries: u32,
        entry_size: usize,
        parts: u16,
        table: Arc<Table>,
    ) -> Result<Self, Errno> {
        let (entries, parts) = (entries as usize, usize::from(parts));
        let length = entries * parts * entry_size;
        if !entries.is_power_of_two() || parts == 0 || (length as u64) > response.q_mmap_size {
            return Err(Errno::EPROTO);
        }
        let doorbell = CreateCqRespMask::from_bits_retain(response.comp_mask)
            .contains(CreateCqRespMask::DB_OFF)
            .then(|| Register::map(transport, response.db_mmap_key, response.db_off))
            .transpose()?;
        let parts = Parts {
            ring: Window::map(transport, response.q_mmap_key, 0, length)?,
            words: entry_size / size_of::<u64>(),
            entries,
            taken: vec![0; parts].into(),
            next: 0,
            total: 0,
            events: 0,
            doorbell,
        };
        Ok(Self { parts, table, current: WorkCompletion::default() })
    }
}

impl Parts {
    /// The next completion of any part, which is taken with it.
    #[inline]
    fn take(&mut self) -> Option<Completion> {
        for _ in 0..self.taken.len() {
            let part = self.next;
            self.next = if part + 1 == self.taken.len() { 0 } else { part + 1 };
            let taken = self.taken[part];
            let first = (part * self.entries + (taken & (self.entries - 1))) * self.words;
            let head = self.ring.read(first);
            // The flags are byte 3. In the first round the bit is set, in the second it is not, and so on.
            let phase = head.to_ne_bytes()[3] & flag::PHASE != 0;
            if phase == (taken & self.entries == 0) {
                mmio::after_read();
                let mut words = [0; LONG];
                for (index, word) in words.iter_mut().enumerate().take(self.words) {
                    *word = self.ring.read(first + index);
                }
                self.taken[part] = taken.wrapping_add(1);
                self.total = self.total.wrapping_add(1);
                return Some(zerocopy::transmute!(words));
            }
        }
        None
    }

    fn ring_doorbell(&self, arm: u32) {
        if let Some(doorbell) = &self.doorbell {
            let event = (self.events & EVENT_MASK) << EVENT_SHIFT;
            doorbell.write(u32::from(self.total) | event | arm);
        }
    }
}

impl CompletionRing for Completions {
    fn poll(&mut self, completions: &mut [WorkCompletion]) -> usize {
        if completions.is_empty() {
            return 0;
        }
        let Some(mut next) = self.parts.take() else { return 0 };
        let mut count = 0;
        let table = self.table.lock();
        loop {
            // A completion that is nobody's was left behind by a QP that is gone.
            if let Some(completion) = table.get(next.qp_num.get()).and_then(|qp| translate(&next, qp)) {
                completions[count] = completion;
                count += 1;
            }
            if count == completions.len() {
                break;
            }
            match self.parts.take() {
                Some(another) => next = another,
                None => break,
            }
        }
        drop(table);
        self.parts.ring_doorbell(0);
        count
    }

    fn peek(&mut self, _: u32) -> (*const WorkCompletion, u32) {
        while let Some(next) = self.parts.take() {
            let table = self.table.lock();
            if let Some(completion) = table.get(next.qp_num.get()).and_then(|qp| translate(&next, qp)) {
                self.current = completion;
                return (&self.current, 1);
            }
        }
        (ptr::null(), 0)
    }

    fn stride(&self) -> usize {
        // One at a time.
        0
    }

    fn take(&mut self, _: u32) {
        self.parts.ring_doorbell(0);
    }

    fn arm(&mut self, _: &dyn Transport, _: u32, solicited_only: bool, events: u32) -> Result<(), Errno> {
        if solicited_only || self.parts.doorbell.is_none() {
            return Err(Errno::EOPNOTSUPP);
        }
        self.parts.events = events;
        self.parts.ring_doorbell(ARM);
        Ok(())
    }
}

/// A completion of a QP in the terms of the verbs, unless it is not of one of its requests.
#[inline]
fn translate(completion: &Completion, qp: &Queues) -> Option<WorkCompletion> {
    let mut wc = Wc {
        status: completion.verbs_status(),
        vendor_err: completion.status.into(),
        qp_num: completion.qp_num.get().into(),
        ..Wc::default()
    };
    if completion.is_send() {
        wc.wr_id = qp.sends.complete(completion.identifier.get())?;
        wc.opcode = match completion.operation() {
            operation::RDMA_READ => wc_opcode::RDMA_READ,
            operation::RDMA_WRITE => wc_opcode::RDMA_WRITE,
            _ => wc_opcode::SEND,
        };
        return Some(WorkCompletion(wc));
    }
    if completion.flags & flag::UNSOLICITED == 0 {
        wc.wr_id = qp.receives.complete(completion.identifier.get())?;
    } else {
        wc.wc_flags |= UNSOLICITED;
    }
    wc.byte_len = completion.length.get().into();
    wc.opcode = if completion.operation() == operation::RDMA_WRITE {
        wc.byte_len |= u32::from(completion.length_high.get()) << 16;
        values::wc_opcode::RECV_RDMA_WITH_IMM
    } else {
        values::wc_opcode::RECV
    };
    wc.src_qp = completion.source_qp.get().into();
    if completion.flags & flag::HAS_IMMEDIATE != 0 {
        wc.ex.as_mut_bytes().copy_from_slice(&completion.immediate.get().to_be_bytes());
        wc.wc_flags |= WcFlags::WITH_IMM.bits();
    }
    if qp.has_header {
        wc.wc_flags |= WcFlags::GRH.bits();
    }
    Some(WorkCompletion(wc))
}
