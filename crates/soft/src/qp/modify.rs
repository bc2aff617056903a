//! Changes of state and attributes.

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_verbs::{ACCESS_OPTIONAL_RANGE, AccessFlags, qp_type};
use uverbs_uapi::user_verbs::{ModifyQp, QpDest};
use uverbs_uapi::values::qp_state::{ERR, INIT, RESET, RTR, RTS, SQD, SQE};
use uverbs_uapi::values::{QpAttrMask as Mask, event_type, mtu};

use super::Qp;
use crate::context::Session;
use crate::device::{HOPS, Place};
use crate::responder::PSN;
use crate::table::Kind;
use crate::wire::State;

impl Session<'_> {
    pub(crate) fn modify_qp(&mut self, request: &ModifyQp) -> Result<()> {
        let mask = Mask::from_bits(request.attr_mask).filter(|mask| !mask.contains(Mask::RATE_LIMIT));
        let mask = mask.ok_or(Errno::EOPNOTSUPP)?;
        let number = self.number(Kind::Qp, request.qp_handle)?;
        let qp = self.state.qps.get(number).ok_or(Errno::ENOENT)?;
        let mut mask = mask;
        let mut request = *request;
        if mask.contains(Mask::PORT) && request.port_num != 1 {
            return Err(Errno::EINVAL);
        }
        if mask.contains(Mask::AV) {
            let port = request.dest.port_num;
            let ready = mask.contains(Mask::STATE) && u32::from(request.qp_state) == RTR;
            if port != 1 || ready && port != qp.attr.port_num {
                return Err(Errno::EINVAL);
            }
            if !ready {
                // The core takes the port along with the address.
                mask |= Mask::PORT;
                request.port_num = port;
            }
        }
        let out_of_range = mask.contains(Mask::ALT_PATH)
            && (request.alt_port_num != 1 || request.alt_dest.port_num != 1)
            || mask.contains(Mask::STATE) && u32::from(request.qp_state) > ERR
            || mask.contains(Mask::CUR_STATE) && u32::from(request.cur_qp_state) > ERR;
        if out_of_range {
            return Err(Errno::EINVAL);
        }
        let peer = if mask.contains(Mask::AV) { self.state.peer(qp, &request.dest)? } else { None };
        if mask.contains(Mask::ALT_PATH) {
            let dest = &request.alt_dest;
            if dest.is_global != 0 {
                self.hca().gid(dest.sgid_index).ok_or(Errno::ENODATA)?;
            }
            // The core has alternate paths for InfiniBand alone.
            return Err(Errno::EINVAL);
        }
        qp.check(&request, mask, self.limits().outstanding_reads)?;
        self.state.apply(number, &request, mask, peer);
        Ok(())
    }
}

impl Qp {
    /// A request is under way, and no other may start.
    pub(super) fn is_draining(&self) -> bool {
        self.state == SQD && self.wait.is_some()
    }

    fn check(&self, request: &ModifyQp, mask: Mask, outstanding_reads: u8) -> Result<()> {
        let access = AccessFlags::from_bits_retain(request.qp_access_flags & !ACCESS_OPTIONAL_RANGE);
        let lacks = AccessFlags::ZERO_BASED | AccessFlags::HUGETLB;
        let good = !(mask.contains(Mask::ACCESS_FLAGS)
            && (self.kind == qp_type::UD || !(AccessFlags::all() - lacks).contains(access)))
            && !(mask.contains(Mask::PATH_MTU) && u32::from(request.path_mtu) > mtu::MTU_4096)
            && !(mask.contains(Mask::MAX_QP_RD_ATOMIC) && request.max_rd_atomic > outstanding_reads)
            && !(mask.contains(Mask::TIMEOUT) && request.timeout > 31)
            && (!mask.contains(Mask::STATE) || self.may_move(request, mask));
        if good { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Whether a change of state is one that there is, and has what it needs.
    fn may_move(&self, request: &ModifyQp, mask: Mask) -> bool {
        let from = if mask.contains(Mask::CUR_STATE) { request.cur_qp_state.into() } else { self.state };
        let to = request.qp_state.into();
        // As the driver does, whatever it was told to assume.
        let drains = from == SQD && self.is_draining() && to != ERR;
        let transition = transition(self.kind, from, to).filter(|_| !drains);
        transition.is_some_and(|(required, optional)| {
            mask.contains(required) && (required | optional | Mask::STATE).contains(mask)
        })
    }

    /// Takes what the mask selects over.
    fn set(&mut self, request: &ModifyQp, mask: Mask, peer: Option<Place>) {
        let attr = &mut self.attr;
        macro_rules! take {
            ($($flag:ident $field:ident;)*) => {
                $(if mask.contains(Mask::$flag) { attr.$field = request.$field; })*
            };
        }
        take! {
            ACCESS_FLAGS qp_access_flags;
            PKEY_INDEX pkey_index;
            PORT port_num;
            QKEY qkey;
            PATH_MTU path_mtu;
            TIMEOUT timeout;
            RETRY_CNT retry_cnt;
            RNR_RETRY rnr_retry;
            MIN_RNR_TIMER min_rnr_timer;
            PATH_MIG_STATE path_mig_state;
            EN_SQD_ASYNC_NOTIFY en_sqd_async_notify;
            DEST_QPN dest_qp_num;
        }
        if mask.contains(Mask::AV) {
            let QpDest { dgid, flow_label, sgid_index, traffic_class, port_num, .. } = request.dest;
            let resolved = matches!(peer, Some(Place::Device(_)));
            let hop_limit = if resolved { HOPS } else { request.dest.hop_limit };
            attr.dest =
                QpDest { dgid, flow_label, sgid_index, hop_limit, traffic_class, port_num, ..super::NOWHERE };
        }
        let round =
            |number: u8| if number == 0 { 0 } else { number.checked_next_power_of_two().unwrap_or(0) };
        if mask.contains(Mask::MAX_QP_RD_ATOMIC) {
            attr.max_rd_atomic = round(request.max_rd_atomic);
        }
        if mask.contains(Mask::MAX_DEST_RD_ATOMIC) {
            attr.max_dest_rd_atomic = round(request.max_dest_rd_atomic);
        }
        if mask.contains(Mask::RQ_PSN) {
            self.receive_psn = request.rq_psn & PSN;
        }
        if mask.contains(Mask::SQ_PSN) {
            self.send_psn = request.sq_psn & PSN;
        }
        self.peer = peer.or(self.peer);
        if mask.intersects(Mask::RETRY_CNT | Mask::RNR_RETRY) && self.wait.is_none() {
            self.refresh_retries();
        }
    }
}

impl State {
    /// Where a QP is to be connected to. That of datagrams is looked at no further.
    fn peer(&self, qp: &Qp, dest: &QpDest) -> Result<Option<Place>> {
        if dest.is_global == 0 {
            return Err(Errno::EINVAL);
        }
        if qp.kind == qp_type::UD {
            return self.hca(qp.device).gid(dest.sgid_index).map(|_| None).ok_or(Errno::ENODATA);
        }
        self.resolve(qp.device, true, &dest.dgid, dest.sgid_index).map(Some)
    }

    fn apply(&mut self, number: u32, request: &ModifyQp, mask: Mask, peer: Option<Place>) {
        let Some(qp) = self.qps.get_mut(number) else { return };
        qp.set(request, mask, peer);
        if !mask.contains(Mask::STATE) {
            return;
        }
        match request.qp_state.into() {
            RESET => {
                qp.state = RESET;
                qp.delayed = false;
                qp.held = None;
                qp.answered = None;
                qp.sends.drain();
                if let Some(receives) = &mut qp.receives {
                    receives.drain();
                }
                self.stop_waiting(number);
            }
            ERR => self.break_qp(number),
            SQD => {
                qp.state = SQD;
                self.drained(number);
            }
            state => {
                qp.state = state;
                self.run(number);
            }
        }
    }

    /// Tells that nothing is under way any more in a QP that is to drain, if that is so. Like the driver, it does not ask whether that is wanted.
    pub(crate) fn drained(&mut self, number: u32) {
        let tells = |qp: &Qp| qp.state == SQD && !qp.is_draining();
        if self.qps.get(number).is_some_and(tells) {
            self.tell_of_qp(number, event_type::SQ_DRAINED);
        }
    }
}

/// Attributes that a transition must have and may have besides the state; nothing if there is no such transition.
fn transition(kind: u32, from: u32, to: u32) -> Option<(Mask, Mask)> {
    let none = Mask::empty();
    match (from, to) {
        (_, RESET) => return Some((none, none)),
        (RESET, INIT) | (INIT, INIT | RTR) | (RTR, RTS) | (RTS, RTS | SQD) | (SQD, RTS | SQD) => {}
        (SQE, RTS) if kind != qp_type::RC => {}
        (RESET, _) => return None,
        (_, ERR) => return Some((none, none)),
        _ => return None,
    }
    let port = Mask::PKEY_INDEX | Mask::PORT;
    if kind == qp_type::UD {
        let key = Mask::PKEY_INDEX | Mask::QKEY;
        return Some(match (from, to) {
            (RESET, _) => (port | Mask::QKEY, none),
            (INIT, INIT) => (none, port | Mask::QKEY),
            (INIT, _) | (SQD, SQD) => (none, key),
            (RTR, _) => (Mask::SQ_PSN, Mask::CUR_STATE | Mask::QKEY),
            (RTS, SQD) => (none, Mask::EN_SQD_ASYNC_NOTIFY),
            _ => (none, Mask::CUR_STATE | Mask::QKEY),
        });
    }
    let reliable = |mask: Mask| if kind == qp_type::RC { mask } else { none };
    let retries = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
    let path = Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PATH_MIG_STATE | reliable(Mask::MIN_RNR_TIMER);
    Some(match (from, to) {
        (RESET, _) => (port | Mask::ACCESS_FLAGS, none),
        (INIT, INIT) => (none, port | Mask::ACCESS_FLAGS),
        (INIT, _) => (
            Mask::AV
                | Mask::PATH_MTU
                | Mask::DEST_QPN
                | Mask::RQ_PSN
                | reliable(Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER),
            Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PKEY_INDEX,
        ),
        (RTR, _) => (Mask::SQ_PSN | reliable(retries), Mask::CUR_STATE | path),
        (RTS, SQD) => (none, Mask::EN_SQD_ASYNC_NOTIFY),
        (SQD, SQD) => (
            none,
            path | Mask::AV | Mask::PKEY_INDEX | reliable(retries | Mask::PORT | Mask::MAX_DEST_RD_ATOMIC),
        ),
        (SQE, _) => (none, Mask::CUR_STATE | Mask::ACCESS_FLAGS),
        _ => (none, Mask::CUR_STATE | path),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_take_what_the_core_takes() {
        let rc = |from, to| transition(qp_type::RC, from, to);
        assert_eq!(
            rc(RESET, INIT),
            Some((Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS, Mask::empty()))
        );
        for (from, to) in
            [(RESET, ERR), (RESET, RTR), (INIT, RTS), (RTS, INIT), (ERR, RTS), (SQE, RTS), (RTR, SQD)]
        {
            assert_eq!(rc(from, to), None, "{from} to {to}");
        }
        for from in [RESET, INIT, RTR, RTS, SQD, SQE, ERR] {
            assert_eq!(rc(from, RESET), Some((Mask::empty(), Mask::empty())));
        }
        let (required, _) = transition(qp_type::UC, RTR, RTS).unwrap();
        assert_eq!(required, Mask::SQ_PSN);
        let (required, _) = transition(qp_type::UD, RESET, INIT).unwrap();
        assert_eq!(required, Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY);
    }
}
