//! What each command does.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::abi::{
    ATTACH_QP_EVENTS, AllocateMr, AllocateMrAnswer, AttachCounter, COMPLETION_EVENTS, CQ_DOORBELL_VALID,
    CommandFlags, ControlBuffer, CounterHandle, CreateAh, CreateCounter, CreateCounterAnswer, CreateCq,
    CreateCqAnswer, CreateCqFlags1, CreateCqFlags2, CreateEq, CreateQp, CreateQpAnswer, CreateQpFlags,
    DestroyAh, DeviceAttributes, EventGroups, EventQueueAttributes, FeatureCommand, GetStatistics,
    HardwareHints, Lkey, ModifyCounter, ModifyQp, ModifyQpMask, NetworkAttributes, Number, PHYSICAL_MODE,
    QpHandle, QueryQpAnswer, QueueAttributes1, QueueAttributes2, RegisterMr, RegisterMrAnswer, event_group,
};
use super::{Answer, Feature, Opcode, QpKind, QpState, StatisticsKind, Status};
use crate::config::{Capabilities, Gid, INLINE_SIZE, Limits, MAX_LLQ_SIZE, PAGE_SIZES, QP_EVENTS, QpEvents};
use crate::device::Device;
use crate::host::{GuestMemory, Interrupts};
use crate::io::Permissions;
use crate::objects::{
    AddressHandle, CompletionQueue, EventCounter, EventQueue, Mapping, MemoryRegion, QueuePair, WorkQueue,
    key, number_of_handle,
};
use crate::registers::{ADDRESS_BITS, Doorbell, PAGE};

/// Size of an entry of a receive queue.
const RECEIVE_ENTRY: u32 = 16;

/// Sizes of entries of send queues.
const SEND_ENTRIES: [u32; 2] = [64, 128];

/// Sizes of entries of completion queues, and of event queues, in 32-bit words.
const COMPLETION_WORDS: [u8; 2] = [4, 8];
const EVENT_WORDS: u8 = 4;

/// Largest number of RNR retries; it means for ever.
pub(crate) const RNR_FOR_EVER: u8 = 7;

/// Addresses in a page of the addresses of a region's pages.
const PAGE_ADDRESSES: usize = PAGE as usize / size_of::<u64>();

/// Addresses in a page that leads to such pages. A full one ends with a link to the next.
const LIST_ADDRESSES: usize = (PAGE as usize - LIST_LINK) / size_of::<u64>();
const LIST_LINK: usize = size_of::<ControlBuffer>();

/// Bytes of the name in the information about the host.
const HOST_NAME: usize = 128;

const FIRMWARE_VERSION: u32 = 1;

fn read<T: FromBytes + KnownLayout + Immutable + Unaligned>(payload: &[u8]) -> Result<T, Status> {
    T::read_from_prefix(payload).map(|(command, _)| command).map_err(|_| Status::MalformedRequest)
}

fn done() -> Answer {
    Ok(Vec::new())
}

fn answer(body: impl IntoBytes + Immutable) -> Answer {
    Ok(body.as_bytes().to_vec())
}

fn number(number: u32) -> Answer {
    answer(Number { number: (number as u16).into(), ..Number::default() })
}

/// Fails unless a condition holds.
fn legal(condition: bool) -> Result<(), Status> {
    condition.then_some(()).ok_or(Status::IllegalParameter)
}

/// Fails if an object is in use.
fn idle(used: bool) -> Result<(), Status> {
    (!used).then_some(()).ok_or(Status::ResourceBusy)
}

/// Fails unless reserved fields are zero.
fn zero(fields: bool) -> Result<(), Status> {
    fields.then_some(()).ok_or(Status::MalformedRequest)
}

const EXHAUSTED: Status = Status::ResourceAllocationFailure;

impl<M: GuestMemory, I: Interrupts> Device<M, I> {
    pub(super) fn execute(&mut self, opcode: Opcode, flags: CommandFlags, payload: &[u8]) -> Answer {
        let counters = self.config.capabilities.contains(Capabilities::EVENT_COUNTERS);
        match opcode {
            Opcode::CreateQp => self.create_qp(&read(payload)?),
            Opcode::ModifyQp => self.modify_qp(&read(payload)?),
            Opcode::QueryQp => self.query_qp(read(payload)?),
            Opcode::DestroyQp => self.destroy_qp(read(payload)?),
            Opcode::CreateAh => self.create_ah(&read(payload)?),
            Opcode::DestroyAh => self.destroy_ah(read(payload)?),
            Opcode::RegisterMr => self.register_mr(flags, &read(payload)?),
            Opcode::DeregisterMr => self.deregister_mr(read(payload)?),
            Opcode::AllocateMr => self.allocate_mr(read(payload)?),
            Opcode::CreateCq => self.create_cq(&read(payload)?),
            Opcode::DestroyCq => self.destroy_cq(read(payload)?),
            Opcode::GetFeature => self.get_feature(&read(payload)?),
            Opcode::SetFeature => self.set_feature(flags, &read(payload)?, payload),
            Opcode::GetStatistics => self.get_statistics(&read(payload)?),
            Opcode::AllocatePd => number(self.objects.pds.insert(()).ok_or(EXHAUSTED)?),
            Opcode::DeallocatePd => self.deallocate_pd(read(payload)?),
            Opcode::AllocateUar => number(self.objects.uars.insert(()).ok_or(EXHAUSTED)?),
            Opcode::DeallocateUar => self.deallocate_uar(read(payload)?),
            Opcode::CreateEq => self.create_eq(&read(payload)?),
            Opcode::DestroyEq => self.destroy_eq(read(payload)?),
            Opcode::CreateCounter if counters => self.create_counter(&read(payload)?),
            Opcode::DestroyCounter if counters => self.destroy_counter(read(payload)?),
            Opcode::AttachCounter if counters => self.attach_counter(&read(payload)?),
            Opcode::DetachCounter if counters => self.detach_counter(&read(payload)?),
            Opcode::ModifyCounter if counters => self.modify_counter(&read(payload)?),
            Opcode::Service
            | Opcode::CreateCounter
            | Opcode::DestroyCounter
            | Opcode::AttachCounter
            | Opcode::DetachCounter
            | Opcode::ModifyCounter => Err(Status::UnsupportedOpcode),
        }
    }

    // Queue pairs.

    fn create_qp(&mut self, command: &CreateQp) -> Answer {
        let Limits { max_sq_depth, max_rq_depth, min_sq_depth, sub_cqs_per_cq, .. } = self.config.limits;
        let kind = QpKind::from_number(command.kind).ok_or(Status::IllegalParameter)?;
        let flags = CreateQpFlags::from_bits(command.flags).ok_or(Status::MalformedRequest)?;
        zero(command.reserved == 0 && command.reserved_2.get() == 0)?;
        // Send queues are in device memory, and no driver has receive queues at virtual addresses.
        legal(!flags.intersects(CreateQpFlags::SQ_VIRTUAL | CreateQpFlags::RQ_VIRTUAL))?;
        let unsolicited = flags.contains(CreateQpFlags::UNSOLICITED_WRITE_RECV);
        let wide_ids = flags.contains(CreateQpFlags::SQ_64_BIT_REQ_ID);
        legal(!unsolicited || self.config.capabilities.contains(Capabilities::UNSOLICITED_WRITE_RECV))?;
        legal(!wide_ids || self.config.capabilities.contains(Capabilities::SQ_64_BIT_REQ_ID))?;
        let objects = &self.objects;
        legal(objects.pds.contains(command.pd.get()) && objects.uars.contains(command.uar.get()))?;
        let send_cq = objects.cqs.get(command.send_cq.get()).ok_or(Status::IllegalParameter)?;
        legal(objects.cqs.contains(command.receive_cq.get()))?;
        legal(!wide_ids || send_cq.wide_ids)?;

        let (sq_ring, sq_depth) = (command.sq_ring_size.get(), command.sq_depth.get());
        let (rq_ring, rq_depth) = (command.rq_ring_size.get(), command.rq_depth.get());
        if sq_depth != 0 {
            legal(sq_depth.is_power_of_two() && sq_depth >= min_sq_depth.into() && sq_depth <= max_sq_depth)?;
            legal(
                sq_ring <= MAX_LLQ_SIZE && SEND_ENTRIES.into_iter().any(|entry| sq_depth * entry == sq_ring),
            )?;
        }
        if rq_ring != 0 {
            let entries = rq_ring / RECEIVE_ENTRY;
            legal(entries.is_power_of_two() && entries * RECEIVE_ENTRY == rq_ring)?;
            legal(entries >= rq_depth && entries <= max_rq_depth.next_power_of_two())?;
            legal(command.rq_base.get().is_multiple_of(RECEIVE_ENTRY.into()))?;
        }

        let slot = self.objects.qps.free().ok_or(EXHAUSTED)?;
        let slots = self.config.qp_slots();
        // Generation zero is left out, so that zero is no number.
        let generations = (1 + u32::from(u16::MAX)) / slots;
        self.qp_generation = self.qp_generation % (generations - 1) + 1;
        let qp_number = (self.qp_generation * slots + slot) as u16;
        let sub_cq = |offset: u32| ((slot + offset) % u32::from(sub_cqs_per_cq)) as u16;
        let llq_offset = slot * MAX_LLQ_SIZE;
        let qp = QueuePair {
            number: qp_number,
            kind,
            state: QpState::Reset,
            pd: command.pd.get(),
            uar: command.uar.get(),
            qkey: 0,
            sq_psn: 0,
            rnr_retry: RNR_FOR_EVER,
            unsolicited_write_recv: unsolicited,
            send: WorkQueue {
                base: llq_offset.into(),
                depth: sq_depth,
                entry_size: sq_ring.checked_div(sq_depth).unwrap_or(0),
                produced: 0,
                consumed: 0,
                cq: command.send_cq.get(),
                sub_cq: sub_cq(0),
            },
            receive: WorkQueue {
                base: command.rq_base.get(),
                depth: rq_ring / RECEIVE_ENTRY,
                entry_size: RECEIVE_ENTRY,
                produced: 0,
                consumed: 0,
                cq: command.receive_cq.get(),
                sub_cq: sub_cq(1),
            },
            counters: [None; QP_EVENTS],
        };
        let body = CreateQpAnswer {
            handle: qp.handle().into(),
            number: qp_number.into(),
            send_sub_cq: qp.send.sub_cq.into(),
            receive_sub_cq: qp.receive.sub_cq.into(),
            sq_doorbell: self.doorbells.offset(Doorbell::Send(slot)).into(),
            rq_doorbell: self.doorbells.offset(Doorbell::Receive(slot)).into(),
            llq_offset: llq_offset.into(),
            ..CreateQpAnswer::default()
        };
        self.objects.qps.insert(qp).ok_or(EXHAUSTED)?;
        answer(body)
    }

    fn slot_of_handle(&self, handle: U32) -> Result<u32, Status> {
        let number = number_of_handle(handle.get()).ok_or(Status::IllegalParameter)?;
        self.objects.slot(self.config.qp_slots(), number).ok_or(Status::IllegalParameter)
    }

    fn modify_qp(&mut self, command: &ModifyQp) -> Answer {
        let slot = self.slot_of_handle(command.handle)?;
        let mask = ModifyQpMask::from_bits(command.mask.get()).ok_or(Status::MalformedRequest)?;
        let can_retry = self.config.capabilities.contains(Capabilities::RNR_RETRY);
        let qp = self.objects.qps.get_mut(slot).ok_or(Status::IllegalParameter)?;
        let mut state = None;
        if mask.contains(ModifyQpMask::STATE) {
            let new = QpState::from_number(command.state.get()).ok_or(Status::IllegalParameter)?;
            // The driver may not know that the queue pair has failed, so these are possible from wherever it is.
            let away = matches!(new, QpState::Reset | QpState::Error);
            let current = command.current_state.get();
            legal(away || !mask.contains(ModifyQpMask::CURRENT_STATE) || current == qp.state as u32)?;
            legal(transition(qp.state, new))?;
            state = Some(new);
        }
        if mask.contains(ModifyQpMask::RNR_RETRY) {
            legal(can_retry && qp.kind == QpKind::Srd && command.rnr_retry <= RNR_FOR_EVER)?;
            qp.rnr_retry = command.rnr_retry;
        }
        if mask.contains(ModifyQpMask::QKEY) {
            qp.qkey = command.qkey.get();
        }
        if mask.contains(ModifyQpMask::SQ_PSN) {
            qp.sq_psn = command.sq_psn.get();
        }
        if let Some(state) = state {
            qp.state = state;
            self.state_changed(slot);
        }
        done()
    }

    fn query_qp(&self, command: QpHandle) -> Answer {
        let slot = self.slot_of_handle(command.handle)?;
        let qp = self.objects.qps.get(slot).ok_or(Status::IllegalParameter)?;
        answer(QueryQpAnswer {
            state: (qp.state as u32).into(),
            qkey: qp.qkey.into(),
            sq_psn: qp.sq_psn.into(),
            rnr_retry: qp.rnr_retry,
            ..QueryQpAnswer::default()
        })
    }

    fn destroy_qp(&mut self, command: QpHandle) -> Answer {
        let slot = self.slot_of_handle(command.handle)?;
        if let Some(qp) = self.objects.qps.remove(slot) {
            self.outstanding.retain(|_, outstanding| outstanding.qp != qp.number);
        }
        done()
    }

    // Address handles.

    fn create_ah(&mut self, command: &CreateAh) -> Answer {
        zero(command.reserved.get() == 0)?;
        let pd = command.pd.get();
        legal(self.objects.pds.contains(pd))?;
        let ah = AddressHandle { pd, destination: Gid(command.destination) };
        // The driver must not ask twice for the same address.
        legal(self.objects.ah_for(pd, ah.destination).is_none())?;
        number(self.objects.ahs.insert(ah).ok_or(EXHAUSTED)?)
    }

    fn destroy_ah(&mut self, command: DestroyAh) -> Answer {
        let ah = self.objects.ahs.get(command.ah.get()).ok_or(Status::IllegalParameter)?;
        legal(ah.pd == command.pd.get())?;
        self.objects.ahs.remove(command.ah.get());
        done()
    }

    // Memory regions.

    fn register_mr(&mut self, flags: CommandFlags, command: &RegisterMr) -> Answer {
        let pd = command.pd.get();
        zero(command.reserved.get() == 0 && command.reserved_2.get() == 0)?;
        let permissions = Permissions::from_bits(command.permissions).ok_or(Status::MalformedRequest)?;
        legal(self.objects.pds.contains(pd) && self.permitted(permissions))?;
        let (iova, length) = (command.iova.get(), command.length.get());
        let page_shift = u32::from(command.flags & 0x3f);
        legal(length > 0 && iova.checked_add(length).is_some())?;
        legal(PAGE_SIZES & 1 << page_shift != 0 && page_shift < u32::from(ADDRESS_BITS))?;
        let physical = command.flags & PHYSICAL_MODE != 0;
        let pages = if physical { None } else { Some(self.page_list(flags, command, page_shift)?) };
        let mapping = Mapping { iova, length, page_shift, pages, permissions };
        let region = MemoryRegion { pd, variant: 0, mapping: Some(mapping), fast: None };
        let key = U32::from(key(self.objects.mrs.insert(region).ok_or(EXHAUSTED)?, 0));
        answer(RegisterMrAnswer { lkey: key, rkey: key, ..RegisterMrAnswer::default() })
    }

    fn permitted(&self, permissions: Permissions) -> bool {
        let needs = [
            (Permissions::REMOTE_READ, Capabilities::RDMA_READ),
            (Permissions::REMOTE_WRITE, Capabilities::RDMA_WRITE),
        ];
        needs.into_iter().all(|(permission, capability)| {
            !permissions.contains(permission) || self.config.capabilities.contains(capability)
        })
    }

    /// The addresses of a region's pages: in the command, in a list, or in pages that a list of pages leads to.
    fn page_list(
        &self,
        flags: CommandFlags,
        command: &RegisterMr,
        page_shift: u32,
    ) -> Result<Vec<u64>, Status> {
        let count = Mapping::page_count(command.iova.get(), command.length.get(), page_shift);
        let told = u64::from(command.page_count.get());
        legal(told == 0 || told == count)?;
        let bytes = count.saturating_mul(1 << page_shift);
        legal(bytes <= u64::from(self.config.limits.max_mr_pages) * PAGE)?;
        let count = usize::try_from(count).map_err(|_| Status::IllegalParameter)?;
        let mut pages: Vec<u64> = Vec::new();
        if !flags.contains(CommandFlags::CONTROL_DATA) {
            legal(count <= command.pages.len())?;
            pages.extend(command.pages[..count].iter().map(|page| page.get()));
        } else {
            let (mut buffer, _) = ControlBuffer::read_from_prefix(command.pages.as_bytes())
                .map_err(|_| Status::MalformedRequest)?;
            if !flags.contains(CommandFlags::CONTROL_DATA_INDIRECT) {
                legal(buffer.length.get() as usize >= count * size_of::<u64>())?;
                pages = self.addresses(buffer.address.get(), count)?;
            }
            while pages.len() < count {
                let length = buffer.length.get() as usize;
                let entries = length.saturating_sub(LIST_LINK) / size_of::<u64>();
                legal((1..=LIST_ADDRESSES).contains(&entries))?;
                for list in self.addresses(buffer.address.get(), entries)? {
                    let part = (count - pages.len()).min(PAGE_ADDRESSES);
                    pages.extend(self.addresses(list, part)?);
                }
                legal(pages.len() >= count || entries == LIST_ADDRESSES)?;
                if pages.len() < count {
                    let link = buffer.address.get().wrapping_add((LIST_ADDRESSES * size_of::<u64>()) as u64);
                    self.memory.read(link, buffer.as_mut_bytes()).map_err(|_| Status::IllegalParameter)?;
                }
            }
        }
        legal(pages.iter().all(|page| page & ((1 << page_shift) - 1) == 0))?;
        log::debug!("memory region of {count} pages of {} bytes, listed by {flags:?}", 1u64 << page_shift);
        Ok(pages)
    }

    fn addresses(&self, at: u64, count: usize) -> Result<Vec<u64>, Status> {
        let mut list = vec![U64::default(); count];
        self.memory.read(at, list.as_mut_bytes()).map_err(|_| Status::IllegalParameter)?;
        Ok(list.iter().map(|address| address.get()).collect())
    }

    fn deregister_mr(&mut self, command: Lkey) -> Answer {
        let lkey = command.lkey.get();
        let region = self.objects.mrs.get(lkey >> 8).ok_or(Status::IllegalParameter)?;
        legal(u32::from(region.variant) == lkey & 0xff)?;
        self.objects.mrs.remove(lkey >> 8);
        done()
    }

    fn allocate_mr(&mut self, command: AllocateMr) -> Answer {
        zero(command.reserved.get() == 0)?;
        let (pd, max_pages) = (command.pd.get(), command.max_pages.get());
        legal(self.objects.pds.contains(pd) && max_pages > 0)?;
        legal(max_pages <= self.config.limits.max_mr_pages)?;
        let region = MemoryRegion { pd, variant: 0, mapping: None, fast: Some(max_pages) };
        let key = U32::from(key(self.objects.mrs.insert(region).ok_or(EXHAUSTED)?, 0));
        answer(AllocateMrAnswer { lkey: key, rkey: key })
    }

    // Completion and event queues.

    fn create_cq(&mut self, command: &CreateCq) -> Answer {
        let limits = &self.config.limits;
        let flags_1 = CreateCqFlags1::from_bits(command.capabilities_1).ok_or(Status::MalformedRequest)?;
        let flags_2 =
            CreateCqFlags2::from_bits(command.capabilities_2 & !0x1f).ok_or(Status::MalformedRequest)?;
        zero(command.reserved.get() == 0)?;
        legal(!flags_1.contains(CreateCqFlags1::VIRTUAL))?;
        let words = command.capabilities_2 & 0x1f;
        let source_address = flags_2.contains(CreateCqFlags2::SET_SOURCE_ADDRESS);
        let wide_ids = flags_2.contains(CreateCqFlags2::SQ_64_BIT_REQ_ID);
        legal(COMPLETION_WORDS.contains(&words))?;
        legal(!source_address || words == COMPLETION_WORDS[1])?;
        legal(!wide_ids || self.config.capabilities.contains(Capabilities::SQ_64_BIT_REQ_ID))?;
        let depth = u32::from(command.sub_cq_depth.get());
        legal(depth.is_power_of_two() && depth <= limits.max_cq_depth)?;
        legal(command.sub_cqs.get() == limits.sub_cqs_per_cq)?;
        legal(self.objects.uars.contains(command.uar.get()))?;
        let eq = flags_1.contains(CreateCqFlags1::INTERRUPT).then(|| command.eq.get());
        legal(eq.is_none_or(|eq| self.objects.eqs.contains(eq)))?;
        let cq = CompletionQueue {
            uar: command.uar.get(),
            base: command.base.get(),
            depth,
            entry_size: u32::from(words) * 4,
            source_address,
            wide_ids,
            eq,
            written: vec![0; limits.sub_cqs_per_cq.into()],
            taken: 0,
            armed: false,
        };
        let index = self.objects.cqs.insert(cq).ok_or(EXHAUSTED)?;
        answer(CreateCqAnswer {
            cq: (index as u16).into(),
            sub_cq_depth: command.sub_cq_depth,
            doorbell: self.doorbells.offset(Doorbell::Completion(index)).into(),
            flags: CQ_DOORBELL_VALID.into(),
        })
    }

    fn destroy_cq(&mut self, command: Number) -> Answer {
        let cq = u32::from(command.number.get());
        legal(self.objects.cqs.contains(cq))?;
        idle(self.objects.qps.values().any(|qp| qp.send.cq == cq || qp.receive.cq == cq))?;
        self.objects.cqs.remove(cq);
        done()
    }

    fn create_eq(&mut self, command: &CreateEq) -> Answer {
        zero(command.reserved.get() == 0 && command.capabilities & !0x1f == 0)?;
        let depth = u32::from(command.depth.get());
        legal(depth.is_power_of_two() && depth <= self.max_eq_depth())?;
        legal(command.capabilities == EVENT_WORDS && command.events.get() & !COMPLETION_EVENTS == 0)?;
        legal(u32::from(command.vector) < self.config.vectors())?;
        let eq = EventQueue {
            base: command.base.get(),
            depth,
            vector: command.vector,
            count: 0,
            armed: false,
            pending: false,
        };
        number(self.objects.eqs.insert(eq).ok_or(EXHAUSTED)?)
    }

    fn destroy_eq(&mut self, command: Number) -> Answer {
        let eq = command.number.get();
        legal(self.objects.eqs.contains(eq))?;
        idle(self.objects.cqs.values().any(|cq| cq.eq == Some(eq)))?;
        self.objects.eqs.remove(eq);
        done()
    }

    /// Room for an event of each completion queue.
    fn max_eq_depth(&self) -> u32 {
        (self.config.limits.max_cq + 1).next_power_of_two()
    }

    // Protection domains and doorbells.

    fn deallocate_pd(&mut self, command: Number) -> Answer {
        let pd = command.number.get();
        legal(self.objects.pds.contains(pd))?;
        let objects = &self.objects;
        idle(
            objects.qps.values().any(|qp| qp.pd == pd)
                || objects.mrs.values().any(|mr| mr.pd == pd)
                || objects.ahs.values().any(|ah| ah.pd == pd),
        )?;
        self.objects.pds.remove(pd);
        done()
    }

    fn deallocate_uar(&mut self, command: Number) -> Answer {
        let uar = command.number.get();
        legal(self.objects.uars.contains(uar))?;
        let objects = &self.objects;
        idle(
            objects.qps.values().any(|qp| qp.uar == uar)
                || objects.cqs.values().any(|cq| cq.uar == uar)
                || objects.counters.values().any(|counter| counter.uar == uar),
        )?;
        self.objects.uars.remove(uar);
        done()
    }

    // Event counters.

    fn create_counter(&mut self, command: &CreateCounter) -> Answer {
        zero(command.reserved.get() == 0)?;
        let (uar, address) = (command.uar.get(), command.address.get());
        legal(self.objects.uars.contains(uar) && address.is_multiple_of(8))?;
        if self.objects.counters.free().is_none() {
            return Err(EXHAUSTED);
        }
        self.memory.store(address, 0).map_err(|_| Status::IllegalParameter)?;
        let counter = EventCounter { uar, address, value: 0 };
        let handle = self.objects.counters.insert(counter).ok_or(EXHAUSTED)?;
        answer(CreateCounterAnswer { handle: handle.into(), ..CreateCounterAnswer::default() })
    }

    fn destroy_counter(&mut self, command: CounterHandle) -> Answer {
        let handle = command.handle.get();
        legal(self.objects.counters.contains(handle))?;
        idle(self.objects.qps.values().any(|qp| qp.counters.contains(&Some(handle))))?;
        self.objects.counters.remove(handle);
        done()
    }

    fn counter_and_events(&mut self, command: &AttachCounter) -> Result<(u32, QpEvents), Status> {
        zero(command.reserved == [0; 3])?;
        let events = QpEvents::from_bits(command.events.get()).ok_or(Status::MalformedRequest)?;
        legal(command.kind == ATTACH_QP_EVENTS && self.objects.counters.contains(command.handle.get()))?;
        if !self.config.counter_events.contains(events) {
            return Err(Status::UnsupportedOpcode);
        }
        Ok((self.slot_of_handle(command.qp_handle)?, events))
    }

    fn attach_counter(&mut self, command: &AttachCounter) -> Answer {
        let (slot, events) = self.counter_and_events(command)?;
        let qp = self.objects.qps.get_mut(slot).ok_or(Status::IllegalParameter)?;
        legal(matches!(qp.state, QpState::Reset | QpState::Init))?;
        idle(chosen(&mut qp.counters, events).any(|place| place.is_some()))?;
        chosen(&mut qp.counters, events).for_each(|place| *place = Some(command.handle.get()));
        done()
    }

    fn detach_counter(&mut self, command: &AttachCounter) -> Answer {
        let (slot, events) = self.counter_and_events(command)?;
        let handle = Some(command.handle.get());
        let qp = self.objects.qps.get_mut(slot).ok_or(Status::IllegalParameter)?;
        legal(chosen(&mut qp.counters, events).all(|place| *place == handle))?;
        chosen(&mut qp.counters, events).for_each(|place| *place = None);
        done()
    }

    fn modify_counter(&mut self, command: &ModifyCounter) -> Answer {
        zero(command.reserved == [0; 7])?;
        let max = self.config.limits.event_counter_max_value;
        let value = command.value.get();
        let counter = self.objects.counters.get_mut(command.handle.get()).ok_or(Status::IllegalParameter)?;
        counter.value = match command.operation {
            0 if value <= max => value,
            1 => ((u128::from(counter.value) + u128::from(value)) % (u128::from(max) + 1)) as u64,
            _ => return Err(Status::IllegalParameter),
        };
        self.memory.store(counter.address, counter.value).map_err(|_| Status::UnknownError)?;
        done()
    }

    // Features and statistics.

    fn supported_features(&self) -> u64 {
        let has = |feature: &&Feature| match feature {
            Feature::EventQueueAttributes => self.config.limits.max_eq > 0,
            _ => true,
        };
        Feature::ALL.iter().filter(has).fold(0, |mask, feature| mask | 1 << *feature as u8)
    }

    fn feature(&self, command: &FeatureCommand) -> Result<Feature, Status> {
        zero(command.reserved == 0 && command.reserved_2.get() == 0)?;
        let feature = Feature::from_number(command.feature).ok_or(Status::UnsupportedOpcode)?;
        if self.supported_features() & 1 << feature as u8 == 0 {
            return Err(Status::UnsupportedOpcode);
        }
        Ok(feature)
    }

    fn get_feature(&self, command: &FeatureCommand) -> Answer {
        let (config, limits) = (&self.config, &self.config.limits);
        match self.feature(command)? {
            Feature::DeviceAttributes => answer(DeviceAttributes {
                supported_features: self.supported_features().into(),
                page_sizes: PAGE_SIZES.into(),
                firmware_version: FIRMWARE_VERSION.into(),
                api_version: u32::from(config.api_version).into(),
                device_version: u32::from(config.device_id).into(),
                physical_address_bits: ADDRESS_BITS,
                virtual_address_bits: ADDRESS_BITS,
                capabilities: config.capabilities.bits().into(),
                max_rdma_size: limits.max_rdma_size.into(),
                guid: config.guid().into(),
                max_link_speed: limits.link_speed.into(),
                ..DeviceAttributes::default()
            }),
            Feature::EventGroups => {
                answer(EventGroups { supported: event_group::ALL.into(), enabled: self.event_groups.into() })
            }
            Feature::NetworkAttributes => {
                answer(NetworkAttributes { address: config.gid().0, mtu: limits.mtu.into() })
            }
            Feature::QueueAttributes1 => answer(QueueAttributes1 {
                max_qp: limits.max_qp.into(),
                max_sq_depth: limits.max_sq_depth.into(),
                inline_size: INLINE_SIZE.into(),
                max_rq_depth: limits.max_rq_depth.into(),
                max_cq: limits.max_cq.into(),
                max_cq_depth: limits.max_cq_depth.into(),
                sub_cqs_per_cq: limits.sub_cqs_per_cq.into(),
                min_sq_depth: limits.min_sq_depth.into(),
                max_send_sge: limits.max_send_sge.into(),
                max_receive_sge: limits.max_recv_sge.into(),
                max_mr: limits.max_mr.into(),
                max_mr_pages: limits.max_mr_pages.into(),
                max_pd: limits.max_pd.into(),
                max_ah: limits.max_ah.into(),
                max_llq_size: MAX_LLQ_SIZE.into(),
                max_rdma_sge: 1.into(),
                max_tx_batch: limits.max_tx_batch.into(),
            }),
            Feature::HardwareHints => answer(HardwareHints::default()),
            Feature::EventQueueAttributes => answer(EventQueueAttributes {
                max_eq: limits.max_eq.into(),
                max_eq_depth: self.max_eq_depth().into(),
                events: COMPLETION_EVENTS.into(),
            }),
            Feature::QueueAttributes2 => {
                let counters = config.capabilities.contains(Capabilities::EVENT_COUNTERS);
                let mut attributes = QueueAttributes2 {
                    inline_size_ex: limits.inline_size_ex.into(),
                    ..QueueAttributes2::default()
                };
                if counters {
                    attributes.counter_events = config.counter_events.bits().into();
                    attributes.max_event_counters = limits.max_event_counters.into();
                    attributes.event_counter_max_value = limits.event_counter_max_value.into();
                }
                answer(attributes)
            }
            Feature::HostInformation => Err(Status::IllegalParameter),
        }
    }

    fn set_feature(&mut self, flags: CommandFlags, command: &FeatureCommand, payload: &[u8]) -> Answer {
        match self.feature(command)? {
            Feature::EventGroups => {
                let value = payload.get(size_of::<FeatureCommand>()..).unwrap_or_default();
                let enabled = read::<EventGroups>(value)?.enabled.get();
                legal(enabled & !event_group::ALL == 0)?;
                self.event_groups = enabled;
                done()
            }
            Feature::HostInformation => {
                legal(flags.contains(CommandFlags::CONTROL_DATA))?;
                let mut name = [0; HOST_NAME];
                legal(command.buffer.length.get() as usize >= name.len())?;
                self.memory
                    .read(command.buffer.address.get(), &mut name)
                    .map_err(|_| Status::IllegalParameter)?;
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                log::info!("driver on {}", String::from_utf8_lossy(name));
                done()
            }
            _ => Err(Status::IllegalParameter),
        }
    }

    fn get_statistics(&self, command: &GetStatistics) -> Answer {
        let kind = StatisticsKind::from_number(command.kind).ok_or(Status::IllegalParameter)?;
        legal(command.scope == 0)?;
        let values = self.statistics.values(kind);
        Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }
}

/// The places of events.
fn chosen(
    counters: &mut [Option<u32>; QP_EVENTS],
    events: QpEvents,
) -> impl Iterator<Item = &mut Option<u32>> {
    counters
        .iter_mut()
        .enumerate()
        .filter(move |(bit, _)| events.bits() & 1 << bit != 0)
        .map(|(_, place)| place)
}

/// Whether a queue pair can go from one state to another.
fn transition(from: QpState, to: QpState) -> bool {
    match to {
        QpState::Reset | QpState::Error => true,
        QpState::Init => matches!(from, QpState::Reset | QpState::Init),
        QpState::ReadyToReceive => from == QpState::Init,
        QpState::ReadyToSend => matches!(
            from,
            QpState::ReadyToReceive
                | QpState::ReadyToSend
                | QpState::SendQueueDrained
                | QpState::SendQueueError
        ),
        QpState::SendQueueDrained => matches!(from, QpState::ReadyToSend | QpState::SendQueueDrained),
        QpState::SendQueueError => false,
    }
}
