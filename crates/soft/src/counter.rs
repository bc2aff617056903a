//! Completion counters. The user asks for their values, which are kept here.

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::ioctl_verbs::{QpAttachCompCntrOps as Ops, comp_cntr_entry, comp_cntr_modify_op};
use uverbs_uapi::user_verbs::wr_opcode;
use uverbs_uapi::values::{qp_state, wc_status};

use crate::attributes::{Form, may, must};
use crate::methods::{Method, destroy};
use crate::table::Kind;
use crate::wire::State;

/// How many operations there are to count.
pub(crate) const OPERATIONS: usize = 6;

#[derive(Debug)]
pub(crate) struct Counter {
    device: usize,
    largest: u64,
    /// By `enum ib_uverbs_comp_cntr_entry`.
    values: [u64; 2],
    /// QPs that it is attached to, as often as it is.
    pub(crate) users: u32,
}

impl Counter {
    fn add(&mut self, entry: u32, amount: u64) {
        let value = &mut self.values[entry as usize];
        let room = self.largest - *value;
        *value = if amount <= room { *value + amount } else { amount - room - 1 };
    }
}

pub(crate) const METHODS: &[Method] = &[
    Method {
        object: object::DEVICE,
        method: method::device::QUERY_COMP_CNTR_CAPS,
        attributes: &[
            may(attr::query_comp_cntr_caps::MAX_COUNTERS, Form::Out(4)),
            may(attr::query_comp_cntr_caps::MAX_VALUE, Form::Out(8)),
            may(attr::query_comp_cntr_caps::SUPPORTED_QP_ATTACH_OPS, Form::Out(4)),
        ],
        run: |session, attributes| {
            use attr::query_comp_cntr_caps as id;
            let limits = session.limits();
            let (most, largest) = (limits.completion_counters, limits.largest_count);
            let operations = limits.counted.bits();
            attributes.output_if_wanted(id::MAX_COUNTERS, &most)?;
            attributes.output_if_wanted(id::MAX_VALUE, &largest)?;
            attributes.output_if_wanted(id::SUPPORTED_QP_ATTACH_OPS, &operations)
        },
    },
    Method {
        object: object::COMP_CNTR,
        method: method::comp_cntr::CREATE,
        attributes: &[must(attr::create_comp_cntr::HANDLE, Form::New)],
        run: |session, attributes| {
            let device = session.device();
            let limits = session.limits();
            let (most, largest) = (limits.completion_counters, limits.largest_count);
            let there = session.state.counters.values().filter(|counter| counter.device == device).count();
            if there >= most as usize {
                return Err(Errno::ENOMEM);
            }
            let counter = Counter { device, largest, values: [0; 2], users: 0 };
            let number = session.state.counters.insert(|_| counter)?;
            let handle = session.handle(Kind::Counter, number);
            attributes.created(attr::create_comp_cntr::HANDLE, handle);
            Ok(())
        },
    },
    Method {
        object: object::COMP_CNTR,
        method: method::comp_cntr::DESTROY,
        attributes: &[must(attr::destroy_comp_cntr::HANDLE, Form::Handle(Kind::Counter))],
        run: |session, attributes| destroy(session, attributes, attr::destroy_comp_cntr::HANDLE),
    },
    Method {
        object: object::COMP_CNTR,
        method: method::comp_cntr::MODIFY,
        attributes: &[
            must(attr::modify_comp_cntr::HANDLE, Form::Handle(Kind::Counter)),
            must(attr::modify_comp_cntr::ENTRY, Form::Constant(u32::MAX as u64)),
            must(attr::modify_comp_cntr::OP, Form::Constant(u32::MAX as u64)),
            must(attr::modify_comp_cntr::VALUE, Form::In(8)),
        ],
        run: |session, attributes| {
            use attr::modify_comp_cntr as id;
            let number = session.number(Kind::Counter, attributes.handle(id::HANDLE)?)?;
            let (entry, value) = (attributes.number(id::ENTRY), attributes.input::<u64>(id::VALUE)?);
            let counter = session.state.counters.get_mut(number).ok_or(Errno::ENOENT)?;
            if entry > 1 || value > counter.largest {
                return Err(Errno::EINVAL);
            }
            match attributes.number(id::OP) as u32 {
                comp_cntr_modify_op::SET => counter.values[entry as usize] = value,
                comp_cntr_modify_op::INC => counter.add(entry as u32, value),
                _ => return Err(Errno::EINVAL),
            }
            Ok(())
        },
    },
    Method {
        object: object::COMP_CNTR,
        method: method::comp_cntr::READ,
        attributes: &[
            must(attr::read_comp_cntr::HANDLE, Form::Handle(Kind::Counter)),
            must(attr::read_comp_cntr::ENTRY, Form::Constant(u32::MAX as u64)),
            must(attr::read_comp_cntr::RESP_VALUE, Form::Out(8)),
        ],
        run: |session, attributes| {
            use attr::read_comp_cntr as id;
            let number = session.number(Kind::Counter, attributes.handle(id::HANDLE)?)?;
            let counter = session.state.counters.get(number).ok_or(Errno::ENOENT)?;
            let entry = attributes.number(id::ENTRY) as usize;
            let value = *counter.values.get(entry).ok_or(Errno::EINVAL)?;
            attributes.output(id::RESP_VALUE, &value)
        },
    },
    Method {
        object: object::QP,
        method: method::qp::ATTACH_COMP_CNTR,
        attributes: &[
            must(attr::qp_attach_comp_cntr::HANDLE, Form::Handle(Kind::Qp)),
            must(attr::qp_attach_comp_cntr::CNTR_HANDLE, Form::Handle(Kind::Counter)),
            must(attr::qp_attach_comp_cntr::OP_MASK, Form::Flags(Ops::all().bits() as u64)),
        ],
        run: |session, attributes| {
            use attr::qp_attach_comp_cntr as id;
            let qp = session.number(Kind::Qp, attributes.handle(id::HANDLE)?)?;
            let counter = session.number(Kind::Counter, attributes.handle(id::CNTR_HANDLE)?)?;
            let operations = Ops::from_bits_retain(attributes.number(id::OP_MASK) as u32);
            let counted = session.limits().counted;
            session.state.attach(qp, counter, operations, counted)
        },
    },
];

/// Bit by bit.
fn places(operations: Ops) -> impl Iterator<Item = usize> {
    (0..OPERATIONS).filter(move |place| operations.bits() & 1 << place != 0)
}

impl State {
    fn attach(&mut self, qp: u32, counter: u32, operations: Ops, counted: Ops) -> Result<()> {
        let qp = self.qps.get_mut(qp).ok_or(Errno::ENOENT)?;
        if operations.is_empty() {
            return Err(Errno::EINVAL);
        }
        if places(operations).any(|place| qp.counters[place].is_some()) {
            return Err(Errno::EBUSY);
        }
        if !counted.contains(operations) {
            return Err(Errno::EOPNOTSUPP);
        }
        if !matches!(qp.state, qp_state::RESET | qp_state::INIT) {
            return Err(Errno::EINVAL);
        }
        let counter_of = self.counters.get_mut(counter).ok_or(Errno::ENOENT)?;
        for place in places(operations) {
            qp.counters[place] = Some(counter);
            counter_of.users += 1;
        }
        Ok(())
    }

    /// Counts an operation of a QP, or one that its peer did to it.
    pub(crate) fn count(&mut self, qp: u32, operation: Ops, status: u32) {
        let counter = self
            .qps
            .get(qp)
            .and_then(|qp| places(operation).find_map(|place| qp.counters[place]))
            .and_then(|counter| self.counters.get_mut(counter));
        if let Some(counter) = counter {
            let good = status == wc_status::SUCCESS;
            counter.add(if good { comp_cntr_entry::COMP } else { comp_cntr_entry::ERR }, 1);
        }
    }

    /// Counts a request of a send queue.
    pub(crate) fn count_request(&mut self, qp: u32, opcode: u32, status: u32) {
        let operation = match opcode {
            wr_opcode::SEND | wr_opcode::SEND_WITH_IMM | wr_opcode::SEND_WITH_INV => Ops::SEND,
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => Ops::RDMA_WRITE,
            wr_opcode::RDMA_READ => Ops::RDMA_READ,
            _ => return,
        };
        self.count(qp, operation, status);
    }

    pub(crate) fn destroy_counter(&mut self, number: u32) -> Result<()> {
        if self.counters.get(number).is_some_and(|counter| counter.users > 0) {
            return Err(Errno::EBUSY);
        }
        self.counters.remove(number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_wrap_after_the_largest() {
        let mut counter = Counter { device: 0, largest: 9, values: [8, 0], users: 0 };
        counter.add(0, 9);
        assert_eq!(counter.values, [7, 0]);
        let mut counter = Counter { largest: u64::MAX, values: [u64::MAX, 5], ..counter };
        counter.add(0, 1);
        counter.add(1, u64::MAX);
        assert_eq!(counter.values, [0, 4]);
    }
}
