//! The written sequences of QPs: how they are made, and all transitions.

use uverbs_ioctl::uapi::ioctl_cmds::attr;
use uverbs_ioctl::uapi::ioctl_verbs::{QpCap, QpCreateFlags, qp_type};
use uverbs_ioctl::uapi::user_verbs::{ModifyQp, QpDest};
use uverbs_ioctl::uapi::values::{QpAttrMask as Mask, qp_state};

use super::Both;
use super::call::Kind;
use super::commands::*;
use super::written::GID;

pub(super) fn queue_pairs(both: &mut Both) {
    let (pd, cq) = both.pd_and_cq();
    let srq = both.does(&create_srq(pd, 8, 2));
    let of = QpOf { pd, cq, srq: None, kind: qp_type::RC, flags: 0, cap: CAP };
    both.does(&create_qp(&of));
    both.sweep(|_| create_qp(&of));
    both.sweep(|_| create_qp(&QpOf { srq: Some(srq), ..of }));
    for kind in (0..12).chain([0xff, 256]) {
        for srq in [None, Some(srq)] {
            let _ = both.issue(&create_qp(&QpOf { kind, srq, ..of }));
        }
        let number = create_qp(&QpOf { kind, ..of }).input(attr::create_qp::SOURCE_QPN, &3_u32);
        let _ = both.issue(&number);
        for without in
            [attr::create_qp::PD_HANDLE, attr::create_qp::SEND_CQ_HANDLE, attr::create_qp::RECV_CQ_HANDLE]
        {
            let _ = both.issue(&create_qp(&QpOf { kind, ..of }).but(format!("without {without}"), |call| {
                call.args.retain(|arg| arg.attr.attr_id != without);
            }));
        }
        for bit in 0..34 {
            let _ = both.issue(&create_qp(&QpOf { kind, flags: 1 << bit, ..of }));
        }
    }
    let all = QpCreateFlags::all().bits().into();
    let _ = both.issue(&create_qp(&QpOf { flags: all, ..of }));
    both.sweep(|both| {
        let qp = both.does(&create_qp(&of));
        destroy(Kind::Qp, qp)
    });
    let qp = both.does(&create_qp(&of));
    both.sweep(|_| query_qp(qp));
    both.sweep(|_| post_send(qp));
}

pub(super) fn capacities_of_queue_pairs(both: &mut Both) {
    let (pd, cq) = both.pd_and_cq();
    let srq = both.does(&create_srq(pd, 8, 2));
    let most = [0, 1, 2, 3, 63, 64, (1 << 20) + 1, 1 << 31, u32::MAX];
    let few = [0, 1, 4, 31, 32, 33, 1 << 31, u32::MAX];
    let inline = [0, 1, 15, 16, 17, 100, 511, 512, 513, 1 << 31, u32::MAX];
    let mut caps = Vec::new();
    for number in most {
        caps.extend([QpCap { max_send_wr: number, ..CAP }, QpCap { max_recv_wr: number, ..CAP }]);
    }
    for number in few {
        caps.extend([QpCap { max_send_sge: number, ..CAP }, QpCap { max_recv_sge: number, ..CAP }]);
        caps.extend(inline.map(|max_inline_data| QpCap { max_send_sge: number, max_inline_data, ..CAP }));
    }
    for cap in caps {
        for kind in [qp_type::RC, qp_type::UC, qp_type::UD] {
            for srq in [None, Some(srq)] {
                if let Ok(qp) = both.issue(&create_qp(&QpOf { pd, cq, srq, kind, flags: 0, cap })) {
                    let _ = both.issue(&query_qp(qp));
                    let _ = both.issue(&destroy(Kind::Qp, qp));
                }
            }
        }
    }
}

/// What a QP that reaches the state by the way has set.
pub(super) fn to_state(qp_handle: u32, kind: u32, state: u32) -> ModifyQp {
    let path = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
    let retries = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
    let mask = match (state, kind) {
        (qp_state::INIT, qp_type::UD) => Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY,
        (qp_state::INIT, _) => Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS,
        (qp_state::RTR, qp_type::RC) => path | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER,
        (qp_state::RTR, qp_type::UC) => path,
        (qp_state::RTS, qp_type::RC) => Mask::SQ_PSN | retries,
        (qp_state::RTS, _) => Mask::SQ_PSN,
        _ => Mask::empty(),
    };
    ModifyQp {
        qp_handle,
        attr_mask: (mask | Mask::STATE).bits(),
        qp_state: state as u8,
        cur_qp_state: state as u8,
        port_num: 1,
        path_mtu: 3,
        timeout: 14,
        retry_cnt: 3,
        rnr_retry: 2,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        dest_qp_num: 0x12_3456,
        rq_psn: 0x55_5555,
        sq_psn: 0x66_6666,
        qkey: 0x1111_1111,
        qp_access_flags: 0xf,
        dest: QpDest {
            dgid: GID,
            sgid_index: 1,
            is_global: 1,
            port_num: 1,
            hop_limit: 9,
            ..Default::default()
        },
        alt_dest: QpDest { port_num: 1, ..Default::default() },
        alt_port_num: 1,
        path_mig_state: 1,
        ..Default::default()
    }
}

/// The states that a QP goes through to one.
const WAYS: [&[u32]; 6] = {
    use qp_state::{ERR, INIT, RTR, RTS, SQD};
    [&[], &[INIT], &[INIT, RTR], &[INIT, RTR, RTS], &[INIT, RTR, RTS, SQD], &[INIT, ERR]]
};

fn transitions(both: &mut Both, kind: u32) {
    let qp = both.qp(kind);
    let go = |both: &mut Both, way: &[u32]| {
        both.does(&modify_qp(&to_state(qp, kind, qp_state::RESET)));
        for state in way {
            both.does(&modify_qp(&to_state(qp, kind, *state)));
        }
    };
    for way in WAYS {
        for to in 0..9 {
            go(both, way);
            let change = to_state(qp, kind, to);
            let result = both.issue(&modify_qp(&change));
            let _ = both.issue(&query_qp(qp));
            let _ = both.issue(&post_send(qp));
            let bits = (0..32).filter(|_| result.is_ok());
            for bit in bits {
                go(both, way);
                let attr_mask = change.attr_mask ^ 1 << bit;
                let _ = both.issue(&modify_qp(&ModifyQp { attr_mask, ..change }));
                let _ = both.issue(&query_qp(qp));
            }
            // Whatever state it is said to be in.
            for cur_qp_state in 0..8 {
                go(both, way);
                let attr_mask = change.attr_mask | Mask::CUR_STATE.bits();
                let _ = both.issue(&modify_qp(&ModifyQp { attr_mask, cur_qp_state, ..change }));
                let _ = both.issue(&query_qp(qp));
            }
        }
    }
}

pub(super) fn transitions_of_rc(both: &mut Both) {
    transitions(both, qp_type::RC);
}

pub(super) fn transitions_of_uc(both: &mut Both) {
    transitions(both, qp_type::UC);
}

pub(super) fn transitions_of_ud(both: &mut Both) {
    transitions(both, qp_type::UD);
}

pub(super) fn attributes_of_queue_pairs(both: &mut Both) {
    let kind = qp_type::RC;
    let qp = both.qp(kind);
    for (way, state) in [(WAYS[0], qp_state::INIT), (WAYS[1], qp_state::RTR), (WAYS[2], qp_state::RTS)] {
        let mut asked = false;
        both.sweep(|both| {
            if asked {
                let _ = both.issue(&query_qp(qp));
            }
            asked = true;
            both.does(&modify_qp(&to_state(qp, kind, qp_state::RESET)));
            for state in way {
                both.does(&modify_qp(&to_state(qp, kind, *state)));
            }
            modify_qp(&to_state(qp, kind, state))
        });
    }
}
