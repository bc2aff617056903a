//! Changing a QP's state, and saying why it could not be done.

use std::convert::identity;

use uverbs_ioctl::Errno;
use uverbs_ioctl::uapi::user_verbs::{AhAttr, GlobalRoute as RawGlobalRoute, ModifyQp, QpDest};
use uverbs_ioctl::uapi::values::QpAttrMask as Mask;

use super::{QueuePairState, QueuePairType};
use crate::attributes::{Gid, Mtu};
use crate::mr::AccessFlags;

/// A change to a QP, `struct ibv_qp_attr` with its mask: attributes that are `None` stay as they are.
///
/// ```
/// # use uverbs::{AccessFlags, AddressVector, Gid, ModifyQueuePair, Mtu, QueuePair, Result};
/// # fn connect(qp: &mut QueuePair, peer: Gid, peer_qp_num: u32) -> Result<()> {
/// qp.modify(&ModifyQueuePair::init(1, AccessFlags::empty()))?;
/// qp.modify(&ModifyQueuePair::ready_to_receive(AddressVector::global(1, peer, 1), peer_qp_num, 0, Mtu::Bytes1024))?;
/// qp.modify(&ModifyQueuePair::ready_to_send(0))
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModifyQueuePair {
    /// The state to go to.
    pub state: Option<QueuePairState>,
    /// The state that it is assumed to be in.
    pub current_state: Option<QueuePairState>,
    /// Whether an asynchronous event tells when the send queue has drained, on the way to SQD.
    pub sqd_notify: Option<bool>,
    /// What the peer may do.
    pub access_flags: Option<AccessFlags>,
    /// Index of the partition key.
    pub pkey_index: Option<u16>,
    /// Port, counted from 1.
    pub port: Option<u8>,
    /// Queue key of datagrams.
    pub qkey: Option<u32>,
    /// Where messages go.
    pub address: Option<AddressVector>,
    /// The same at both ends, and no larger than the active MTU of either port.
    pub path_mtu: Option<Mtu>,
    /// How long the peer has to acknowledge: 4.096 µs · 2^n; 0 is for ever.
    pub timeout: Option<u8>,
    /// How often to send again what is not acknowledged, at most 7.
    pub retry_count: Option<u8>,
    /// How often to send again what finds no receive posted; 7 is for ever.
    pub rnr_retry: Option<u8>,
    /// Sequence number of the first packet received, 24 bits.
    pub rq_psn: Option<u32>,
    /// RDMA reads and atomics under way to the peer.
    pub max_rd_atomic: Option<u8>,
    /// How long the peer waits if it finds no receive posted: a code, 1 for 10 µs to 31 for 491.52 ms, and 0 for 655.36 ms; 12 is
    /// 640 µs.
    pub min_rnr_timer: Option<u8>,
    /// Sequence number of the first packet sent, 24 bits.
    pub sq_psn: Option<u32>,
    /// RDMA reads and atomics under way from the peer.
    pub max_dest_rd_atomic: Option<u8>,
    /// Number of the peer's QP.
    pub dest_qp_num: Option<u32>,
}

impl ModifyQueuePair {
    /// From RESET to INIT, for connected QPs.
    pub fn init(port: u8, access: AccessFlags) -> Self {
        Self {
            state: Some(QueuePairState::Init),
            pkey_index: Some(0),
            port: Some(port),
            access_flags: Some(access),
            ..Self::default()
        }
    }

    /// From INIT to RTR, for RC, connected to a peer: its QP number and the sequence number that it starts to send with. One RDMA read or
    /// atomic from it at a time, and 640 µs of patience where it finds no receive.
    pub fn ready_to_receive(address: AddressVector, dest_qp_num: u32, rq_psn: u32, path_mtu: Mtu) -> Self {
        Self {
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(12),
            ..Self::unreliable_ready_to_receive(address, dest_qp_num, rq_psn, path_mtu)
        }
    }

    /// From RTR to RTS, for RC, starting to send with this sequence number. Seven retries, 67 ms apart; for ever where the peer has no
    /// receive; one RDMA read or atomic at a time.
    pub fn ready_to_send(sq_psn: u32) -> Self {
        Self {
            timeout: Some(14),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..Self::unreliable_ready_to_send(sq_psn)
        }
    }

    /// From INIT to RTR, for UC, connected to a peer: its QP number and the sequence number that it starts to send with.
    pub fn unreliable_ready_to_receive(
        address: AddressVector,
        dest_qp_num: u32,
        rq_psn: u32,
        path_mtu: Mtu,
    ) -> Self {
        Self {
            state: Some(QueuePairState::ReadyToReceive),
            address: Some(address),
            dest_qp_num: Some(dest_qp_num),
            rq_psn: Some(rq_psn),
            path_mtu: Some(path_mtu),
            ..Self::default()
        }
    }

    /// From RTR to RTS, for UC, starting to send with this sequence number.
    pub fn unreliable_ready_to_send(sq_psn: u32) -> Self {
        Self { state: Some(QueuePairState::ReadyToSend), sq_psn: Some(sq_psn), ..Self::default() }
    }

    /// From RESET to INIT, for UD and SRD. Only messages with that queue key arrive.
    pub fn datagram_init(port: u8, qkey: u32) -> Self {
        Self {
            state: Some(QueuePairState::Init),
            pkey_index: Some(0),
            port: Some(port),
            qkey: Some(qkey),
            ..Self::default()
        }
    }

    /// From INIT to RTR, for UD and SRD.
    pub fn datagram_ready_to_receive() -> Self {
        Self::to(QueuePairState::ReadyToReceive)
    }

    /// From RTR to RTS, for UD and SRD, starting to send with this sequence number. How often SRD tries again where a peer has no
    /// receive stays the device's choice; those that can be told take [`rnr_retry`](Self::rnr_retry) here.
    pub fn datagram_ready_to_send(sq_psn: u32) -> Self {
        Self { state: Some(QueuePairState::ReadyToSend), sq_psn: Some(sq_psn), ..Self::default() }
    }

    /// To a state that needs nothing else: RESET or ERR.
    pub fn to(state: QueuePairState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    /// Which attributes there are.
    fn mask(&self) -> Mask {
        Mask::from_bits_retain(self.request(0).attr_mask)
    }

    /// What the kernel is given. Fields that the mask does not select are zero.
    pub(super) fn request(&self, handle: u32) -> ModifyQp {
        let mut mask = Mask::empty();
        let mut request = ModifyQp { qp_handle: handle, ..Default::default() };
        macro_rules! set {
            ($($attribute:ident, $bit:ident, $field:ident, $convert:expr;)*) => {
                $(if let Some(value) = self.$attribute {
                    request.$field = $convert(value);
                    mask |= Mask::$bit;
                })*
            };
        }
        set! {
            state, STATE, qp_state, |state: QueuePairState| state as u8;
            current_state, CUR_STATE, cur_qp_state, |state: QueuePairState| state as u8;
            sqd_notify, EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify, u8::from;
            access_flags, ACCESS_FLAGS, qp_access_flags, |flags: AccessFlags| flags.bits();
            pkey_index, PKEY_INDEX, pkey_index, identity;
            port, PORT, port_num, identity;
            qkey, QKEY, qkey, identity;
            address, AV, dest, |address: AddressVector| address.dest();
            path_mtu, PATH_MTU, path_mtu, |mtu: Mtu| mtu as u8;
            timeout, TIMEOUT, timeout, identity;
            retry_count, RETRY_CNT, retry_cnt, identity;
            rnr_retry, RNR_RETRY, rnr_retry, identity;
            rq_psn, RQ_PSN, rq_psn, identity;
            max_rd_atomic, MAX_QP_RD_ATOMIC, max_rd_atomic, identity;
            min_rnr_timer, MIN_RNR_TIMER, min_rnr_timer, identity;
            sq_psn, SQ_PSN, sq_psn, identity;
            max_dest_rd_atomic, MAX_DEST_RD_ATOMIC, max_dest_rd_atomic, identity;
            dest_qp_num, DEST_QPN, dest_qp_num, identity;
        }
        request.attr_mask = mask.bits();
        request
    }

    /// Why the kernel refused it, for a QP that is in `from`.
    #[cold]
    pub(super) fn explain(&self, errno: Errno, kind: QueuePairType, from: QueuePairState) -> Option<String> {
        match errno {
            // EFA says the latter of what it does not take.
            Errno::EINVAL | Errno::EOPNOTSUPP => {
                let to = self.state.unwrap_or(from);
                let Some((required, optional)) = transition(kind, from, to) else {
                    let allowed: Vec<_> = QueuePairState::ALL
                        .into_iter()
                        .filter(|to| transition(kind, from, *to).is_some())
                        .map(|to| to.to_string())
                        .collect();
                    return Some(format!(
                        "{from} to {to} is no transition; from {from} it goes to {}",
                        allowed.join(", ")
                    ));
                };
                let missing = required - self.mask();
                let extra = self.mask() - required - optional - Mask::STATE;
                let mut reasons = Vec::new();
                if !missing.is_empty() {
                    reasons.push(format!("misses {}", names(missing)));
                }
                if !extra.is_empty() {
                    reasons.push(format!("does not take {}", names(extra)));
                }
                match (reasons.is_empty(), self.address) {
                    (false, _) => Some(format!("{kind} {from} to {to} {}", reasons.join(" and "))),
                    (true, Some(address)) => address.explain(errno),
                    (true, None) if from == QueuePairState::SendQueueDrained => Some(format!(
                        "{kind} {from} to {to}: a value is out of range, or the send queue is still draining"
                    )),
                    (true, None)
                        if kind == QueuePairType::ScalableReliableDatagram && self.rnr_retry.is_some() =>
                    {
                        Some(format!(
                            "{kind} {from} to {to}: the device has no RNR_RETRY, or a value is out of range"
                        ))
                    }
                    (true, None) => Some(format!("{kind} {from} to {to}: a value is out of range")),
                }
            }
            _ => self.address?.explain(errno),
        }
    }
}

/// Where messages go, `struct ibv_ah_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// Own port, counted from 1.
    pub port: u8,
    /// The peer's LID, on InfiniBand.
    pub dlid: u16,
    /// Service level.
    pub service_level: u8,
    /// Low bits of the own LID.
    pub source_path_bits: u8,
    /// `enum ibv_rate`; 0 is the port's.
    pub static_rate: u8,
    /// The global route, which RoCE always needs.
    pub global_route: Option<GlobalRoute>,
}

impl AddressVector {
    /// To a GID, from the own GID with that index. Routers may forward it 64 times.
    pub fn global(port: u8, dgid: Gid, sgid_index: u8) -> Self {
        let route = GlobalRoute { dgid, sgid_index, hop_limit: 64, traffic_class: 0, flow_label: 0 };
        Self { port, global_route: Some(route), ..Self::default() }
    }

    /// Why the kernel refused it.
    #[cold]
    pub(crate) fn explain(&self, errno: Errno) -> Option<String> {
        let Some(route) = self.global_route else {
            return (errno == Errno::EINVAL)
                .then(|| "the address has no global route, which RoCE and EFA need".to_owned());
        };
        let GlobalRoute { dgid, sgid_index, .. } = route;
        match errno {
            Errno::EINVAL => Some(format!(
                "a value is out of range, or {dgid} and GID index {sgid_index} are not of one address family"
            )),
            Errno::ETIMEDOUT => Some(format!("no neighbour answers for {dgid}")),
            Errno::EHOSTUNREACH | Errno::ENETUNREACH => Some(format!("no route to {dgid}")),
            Errno::ENODATA | Errno::ENOENT => Some(format!("GID index {sgid_index} is empty")),
            _ => None,
        }
    }

    /// As the kernel takes it for an address handle.
    pub(crate) fn attributes(&self) -> AhAttr {
        let route = self.global_route.unwrap_or_default();
        AhAttr {
            grh: RawGlobalRoute {
                dgid: route.dgid.0,
                flow_label: route.flow_label,
                sgid_index: route.sgid_index,
                hop_limit: route.hop_limit,
                traffic_class: route.traffic_class,
                ..Default::default()
            },
            dlid: self.dlid,
            sl: self.service_level,
            src_path_bits: self.source_path_bits,
            static_rate: self.static_rate,
            is_global: u8::from(self.global_route.is_some()),
            port_num: self.port,
            ..Default::default()
        }
    }

    fn dest(&self) -> QpDest {
        let route = self.global_route.unwrap_or_default();
        QpDest {
            dgid: route.dgid.0,
            flow_label: route.flow_label,
            dlid: self.dlid,
            sgid_index: route.sgid_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
            sl: self.service_level,
            src_path_bits: self.source_path_bits,
            static_rate: self.static_rate,
            is_global: u8::from(self.global_route.is_some()),
            port_num: self.port,
            ..Default::default()
        }
    }
}

/// A global route, `struct ibv_global_route`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's GID.
    pub dgid: Gid,
    /// Which of the own GIDs to send from. The kernel's interface has 8 bits for it.
    pub sgid_index: u8,
    /// How often routers may forward it.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN on RoCE v2.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// Attributes that a transition must have and may have besides the state; nothing if there is no such transition.
fn transition(kind: QueuePairType, from: QueuePairState, to: QueuePairState) -> Option<(Mask, Mask)> {
    match kind {
        QueuePairType::ReliableConnection => connected_transition(from, to),
        // Nothing is acknowledged, sent again or read.
        QueuePairType::UnreliableConnection => connected_transition(from, to).map(|(required, optional)| {
            let reliable = Mask::TIMEOUT
                | Mask::RETRY_CNT
                | Mask::RNR_RETRY
                | Mask::MIN_RNR_TIMER
                | Mask::MAX_QP_RD_ATOMIC
                | Mask::MAX_DEST_RD_ATOMIC;
            let drained = (from, to) == (QueuePairState::SendQueueDrained, QueuePairState::SendQueueDrained);
            let port = if drained { Mask::PORT } else { Mask::empty() };
            (required - reliable, optional - reliable - port)
        }),
        QueuePairType::UnreliableDatagram | QueuePairType::ScalableReliableDatagram => {
            datagram_transition(kind, from, to)
        }
    }
}

/// For RC.
fn connected_transition(from: QueuePairState, to: QueuePairState) -> Option<(Mask, Mask)> {
    use QueuePairState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};
    let none = Mask::empty();
    let path = Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PATH_MIG_STATE | Mask::MIN_RNR_TIMER;
    let port = Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
    Some(match (from, to) {
        (_, Reset) => (none, none),
        (Reset, Init) => (port, none),
        (Reset, _) => return None,
        (_, Error) => (none, none),
        (Init, Init) => (none, port),
        (Init, ReadyToReceive) => (
            Mask::AV
                | Mask::PATH_MTU
                | Mask::DEST_QPN
                | Mask::RQ_PSN
                | Mask::MAX_DEST_RD_ATOMIC
                | Mask::MIN_RNR_TIMER,
            Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PKEY_INDEX,
        ),
        (ReadyToReceive, ReadyToSend) => (
            Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::SQ_PSN | Mask::MAX_QP_RD_ATOMIC,
            Mask::CUR_STATE | path,
        ),
        (ReadyToSend | SendQueueDrained, ReadyToSend) => (none, Mask::CUR_STATE | path),
        (ReadyToSend, SendQueueDrained) => (none, Mask::EN_SQD_ASYNC_NOTIFY),
        (SendQueueDrained, SendQueueDrained) => (
            none,
            path | Mask::PORT
                | Mask::AV
                | Mask::TIMEOUT
                | Mask::RETRY_CNT
                | Mask::RNR_RETRY
                | Mask::MAX_QP_RD_ATOMIC
                | Mask::MAX_DEST_RD_ATOMIC
                | Mask::PKEY_INDEX,
        ),
        (SendQueueError, ReadyToSend) => (none, Mask::CUR_STATE | Mask::ACCESS_FLAGS),
        _ => return None,
    })
}

/// The same for UD and SRD, which differ in one attribute.
fn datagram_transition(
    kind: QueuePairType,
    from: QueuePairState,
    to: QueuePairState,
) -> Option<(Mask, Mask)> {
    use QueuePairState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};
    let none = Mask::empty();
    let port = Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY;
    let pkey = Mask::PKEY_INDEX | Mask::QKEY;
    let sending = Mask::CUR_STATE | Mask::QKEY;
    let retries = match kind {
        QueuePairType::ScalableReliableDatagram => Mask::RNR_RETRY,
        _ => none,
    };
    Some(match (from, to) {
        (_, Reset) => (none, none),
        (Reset, Init) => (port, none),
        (Reset, _) => return None,
        (_, Error) => (none, none),
        (Init, Init) => (none, port),
        (Init, ReadyToReceive) => (none, pkey),
        (ReadyToReceive, ReadyToSend) => (Mask::SQ_PSN, sending | retries),
        (ReadyToSend | SendQueueDrained | SendQueueError, ReadyToSend) => (none, sending),
        (ReadyToSend, SendQueueDrained) => (none, Mask::EN_SQD_ASYNC_NOTIFY),
        (SendQueueDrained, SendQueueDrained) => (none, pkey),
        _ => return None,
    })
}

/// The names of attributes as libibverbs has them in `enum ibv_qp_attr_mask`, without the prefix.
fn names(mask: Mask) -> String {
    mask.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use QueuePairState::{Error, Init, ReadyToReceive, ReadyToSend, Reset};
    use zerocopy::IntoBytes;

    const RC: QueuePairType = QueuePairType::ReliableConnection;

    fn rtr() -> ModifyQueuePair {
        ModifyQueuePair::ready_to_receive(AddressVector::global(1, Gid::default(), 1), 17, 0, Mtu::Bytes1024)
    }

    #[test]
    fn presets_have_what_their_transitions_need() {
        for (from, change) in [
            (Reset, ModifyQueuePair::init(1, AccessFlags::empty())),
            (Init, rtr()),
            (ReadyToReceive, ModifyQueuePair::ready_to_send(0)),
        ] {
            let (required, optional) = transition(RC, from, change.state.unwrap()).unwrap();
            assert_eq!(required - change.mask(), Mask::empty());
            assert_eq!(change.mask() - required - optional, Mask::STATE);
        }
    }

    #[test]
    fn unreliable_presets_have_what_their_transitions_need() {
        let uc = QueuePairType::UnreliableConnection;
        let address = AddressVector::global(1, Gid::default(), 1);
        for (from, change) in [
            (Reset, ModifyQueuePair::init(1, AccessFlags::empty())),
            (Init, ModifyQueuePair::unreliable_ready_to_receive(address, 17, 0, Mtu::Bytes1024)),
            (ReadyToReceive, ModifyQueuePair::unreliable_ready_to_send(0)),
        ] {
            let (required, optional) = transition(uc, from, change.state.unwrap()).unwrap();
            assert_eq!(required - change.mask(), Mask::empty());
            assert_eq!(change.mask() - required - optional, Mask::STATE);
        }
        let text = rtr().explain(Errno::EINVAL, uc, Init).unwrap();
        assert_eq!(text, "UC INIT to RTR does not take MIN_RNR_TIMER, MAX_DEST_RD_ATOMIC");
    }

    #[test]
    fn datagram_presets_have_what_their_transitions_need() {
        use QueuePairType::{ScalableReliableDatagram, UnreliableDatagram};
        for kind in [UnreliableDatagram, ScalableReliableDatagram] {
            for (from, change) in [
                (Reset, ModifyQueuePair::datagram_init(1, 7)),
                (Init, ModifyQueuePair::datagram_ready_to_receive()),
                (ReadyToReceive, ModifyQueuePair::datagram_ready_to_send(0)),
            ] {
                let (required, optional) = transition(kind, from, change.state.unwrap()).unwrap();
                assert_eq!(required - change.mask(), Mask::empty());
                assert_eq!(change.mask() - required - optional, Mask::STATE);
            }
        }
        let change = ModifyQueuePair::init(1, AccessFlags::empty());
        let text = change.explain(Errno::EINVAL, ScalableReliableDatagram, Reset).unwrap();
        assert_eq!(text, "SRD RESET to INIT misses QKEY and does not take ACCESS_FLAGS");
    }

    #[test]
    fn wrong_masks_are_named() {
        let change = ModifyQueuePair { dest_qp_num: None, qkey: Some(1), ..rtr() };
        let text = change.explain(Errno::EINVAL, RC, Init).unwrap();
        assert_eq!(text, "RC INIT to RTR misses DEST_QPN and does not take QKEY");
    }

    #[test]
    fn wrong_transitions_are_named() {
        let text = rtr().explain(Errno::EINVAL, RC, Reset).unwrap();
        assert_eq!(text, "RESET to RTR is no transition; from RESET it goes to RESET, INIT");
        let text = rtr().explain(Errno::EINVAL, RC, Error).unwrap();
        assert_eq!(text, "ERR to RTR is no transition; from ERR it goes to RESET, ERR");
        let text = ModifyQueuePair::to(Init).explain(Errno::EINVAL, RC, ReadyToSend).unwrap();
        assert_eq!(text, "RTS to INIT is no transition; from RTS it goes to RESET, RTS, SQD, ERR");
    }

    /// Each attribute by itself: the kernel is given that one, its bit, and zeros.
    #[test]
    fn vb_35_fields_not_selected_are_zero() {
        let zero = ModifyQp { qp_handle: 3, ..Default::default() };
        let none = ModifyQueuePair::default();
        assert_eq!(none.request(3).as_bytes(), zero.as_bytes());
        let address = AddressVector::global(4, Gid([9; 16]), 5);
        let access = AccessFlags::REMOTE_READ;
        macro_rules! alone {
            ($attribute:ident: $value:expr, $bit:ident, $field:ident: $number:expr) => {
                let request = ModifyQueuePair { $attribute: Some($value), ..none }.request(3);
                let expected = ModifyQp { attr_mask: Mask::$bit.bits(), $field: $number, ..zero };
                assert_eq!(request.as_bytes(), expected.as_bytes(), stringify!($attribute));
            };
        }
        alone!(state: Error, STATE, qp_state: Error as u8);
        alone!(current_state: ReadyToSend, CUR_STATE, cur_qp_state: ReadyToSend as u8);
        alone!(sqd_notify: true, EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify: 1);
        alone!(access_flags: access, ACCESS_FLAGS, qp_access_flags: access.bits());
        alone!(pkey_index: 0xffff, PKEY_INDEX, pkey_index: 0xffff);
        alone!(port: 0xff, PORT, port_num: 0xff);
        alone!(qkey: u32::MAX, QKEY, qkey: u32::MAX);
        alone!(address: address, AV, dest: address.dest());
        alone!(path_mtu: Mtu::Bytes4096, PATH_MTU, path_mtu: 5);
        alone!(timeout: 0xff, TIMEOUT, timeout: 0xff);
        alone!(retry_count: 0xff, RETRY_CNT, retry_cnt: 0xff);
        alone!(rnr_retry: 0xff, RNR_RETRY, rnr_retry: 0xff);
        alone!(rq_psn: u32::MAX, RQ_PSN, rq_psn: u32::MAX);
        alone!(max_rd_atomic: 0xff, MAX_QP_RD_ATOMIC, max_rd_atomic: 0xff);
        alone!(min_rnr_timer: 0xff, MIN_RNR_TIMER, min_rnr_timer: 0xff);
        alone!(sq_psn: u32::MAX, SQ_PSN, sq_psn: u32::MAX);
        alone!(max_dest_rd_atomic: 0xff, MAX_DEST_RD_ATOMIC, max_dest_rd_atomic: 0xff);
        alone!(dest_qp_num: u32::MAX, DEST_QPN, dest_qp_num: u32::MAX);
        // Without a global route nothing of it is there, not even its index.
        let plain = AddressVector { port: 4, dlid: 7, ..AddressVector::default() };
        let expected = QpDest { port_num: 4, dlid: 7, ..Default::default() };
        assert_eq!(plain.dest().as_bytes(), expected.as_bytes());
    }

    #[test]
    fn sp_4_routers_may_forward() {
        let address = AddressVector::global(1, Gid::default(), 1);
        assert_eq!((address.dest().hop_limit, address.attributes().grh.hop_limit), (64, 64));
    }
}
