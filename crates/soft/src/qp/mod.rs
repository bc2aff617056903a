//! Queue pairs.

mod modify;

use std::time::Instant;

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::ioctl_verbs::{AccessFlags, QpCap, QpCreateFlags, qp_type};
use uverbs_uapi::rxe::{CreateQpResp, RecvWqe, SendWqe, Sge};
use uverbs_uapi::user_verbs::{DestroyQpResp, ModifyQp, QpDest, QueryQp, QueryQpResp};
use uverbs_uapi::values::{event_type, qp_state};

use crate::attributes::{Attributes, Form, may, must};
use crate::context::Session;
use crate::counter::OPERATIONS;
use crate::device::{Limits, Place};
use crate::events::Use;
use crate::methods::Method;
use crate::multicast::Group;
use crate::requester::Held;
use crate::ring::{Ring, Side};
use crate::table::Kind;
use crate::wire::{Listener, State};

#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) device: usize,
    pub(crate) pd: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<u32>,
    /// From [`qp_type`].
    pub(crate) kind: u32,
    pub(crate) listener: Listener,
    pub(crate) cap: QpCap,
    pub(crate) signal_all: bool,
    /// From [`qp_state`].
    pub(crate) state: u32,
    /// Attributes as they were set. Sequence numbers go on in `send_psn` and `receive_psn`.
    pub(crate) attr: ModifyQp,
    /// Where the peer is, once it is connected.
    pub(crate) peer: Option<Place>,
    pub(crate) sends: Ring,
    /// None if an SRQ takes its place.
    pub(crate) receives: Option<Ring>,
    pub(crate) send_psn: u32,
    pub(crate) receive_psn: u32,
    /// The request at the head of the send queue waits for its peer.
    pub(crate) wait: Option<Wait>,
    /// It has been made to wait on request.
    pub(crate) delayed: bool,
    /// A datagram that the next one is to overtake, with where it goes.
    pub(crate) held: Option<Held>,
    /// What is left of the retries for that request.
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    /// The last answer to an atomic operation, with its sequence number, for a peer that has not got it.
    pub(crate) answered: Option<(u32, u64)>,
    /// By bit of [`QpAttachCompCntrOps`](uverbs_uapi::ioctl_verbs::QpAttachCompCntrOps).
    pub(crate) counters: [Option<u32>; OPERATIONS],
    /// Multicast groups that it is in.
    pub(crate) groups: Vec<Group>,
    events: u32,
}

/// What the driver answers before it has been told where the peer is.
const NOWHERE: QpDest = QpDest {
    dgid: [0; 16],
    flow_label: 0,
    dlid: 0,
    reserved: 0,
    sgid_index: 0,
    hop_limit: 0,
    traffic_class: 0,
    sl: 0,
    src_path_bits: 0,
    static_rate: 0,
    is_global: 1,
    port_num: 0,
};

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// For ever without.
    pub(crate) until: Option<Instant>,
    /// An answer has not come; otherwise the peer has said that it has no receive.
    pub(crate) unanswered: bool,
}

pub(crate) const METHODS: &[Method] = &[
    Method {
        object: object::QP,
        method: method::qp::CREATE,
        attributes: &[
            must(attr::create_qp::HANDLE, Form::New),
            may(attr::create_qp::PD_HANDLE, Form::Handle(Kind::Pd)),
            may(attr::create_qp::SRQ_HANDLE, Form::Handle(Kind::Srq)),
            may(attr::create_qp::SEND_CQ_HANDLE, Form::Handle(Kind::Cq)),
            may(attr::create_qp::RECV_CQ_HANDLE, Form::Handle(Kind::Cq)),
            must(attr::create_qp::USER_HANDLE, Form::In(8)),
            must(attr::create_qp::CAP, Form::Struct(size_of::<QpCap>())),
            must(attr::create_qp::TYPE, Form::Constant(u32::MAX as u64)),
            may(attr::create_qp::FLAGS, Form::Flags(u32::MAX as u64)),
            may(attr::create_qp::SOURCE_QPN, Form::In(4)),
            may(attr::create_qp::EVENT_FD, Form::File(Use::Asynchronous)),
            must(attr::create_qp::RESP_CAP, Form::Room(size_of::<QpCap>())),
            must(attr::create_qp::RESP_QP_NUM, Form::Out(4)),
            may(attr::uhw::IN, Form::AtLeast(0)),
            may(attr::uhw::OUT, Form::Room(0)),
        ],
        run: create,
    },
    Method {
        object: object::QP,
        method: method::qp::DESTROY,
        attributes: &[
            must(attr::destroy_qp::HANDLE, Form::Handle(Kind::Qp)),
            must(attr::destroy_qp::RESP, Form::Out(size_of::<DestroyQpResp>())),
        ],
        run: |session, attributes| {
            let handle = attributes.handle(attr::destroy_qp::HANDLE)?;
            let number = session.number(Kind::Qp, handle)?;
            let qp = session.state.qps.get(number).ok_or(Errno::ENOENT)?;
            let response = DestroyQpResp { events_reported: qp.events };
            session.state.destroy(session.context, handle)?;
            attributes.output(attr::destroy_qp::RESP, &response)
        },
    },
];

/// The capacities that are granted, but for the lengths of the queues.
fn grant(asked: &QpCap, limits: &Limits, has_srq: bool) -> Result<QpCap> {
    let receives = asked.max_recv_wr > limits.work_requests || asked.max_recv_sge > limits.sges;
    if asked.max_send_wr > limits.work_requests
        || asked.max_send_sge > limits.sges
        || asked.max_inline_data > limits.inline_data
        || !has_srq && receives
    {
        return Err(Errno::EINVAL);
    }
    // SGEs and inline bytes share their room.
    let payload = (asked.max_send_sge * size_of::<Sge>() as u32).max(asked.max_inline_data);
    Ok(QpCap {
        max_send_sge: payload / size_of::<Sge>() as u32,
        max_inline_data: payload,
        max_recv_wr: if has_srq { 0 } else { asked.max_recv_wr },
        max_recv_sge: if has_srq { 0 } else { asked.max_recv_sge },
        ..*asked
    })
}

fn create(session: &mut Session<'_>, attributes: &mut Attributes<'_>) -> Result<()> {
    use attr::create_qp as id;
    let file = session.event_file(attributes, id::EVENT_FD)?;
    let kind = attributes.number(id::TYPE) as u32;
    let known =
        [qp_type::RC, qp_type::UC, qp_type::UD, qp_type::XRC_INI, qp_type::RAW_PACKET, qp_type::DRIVER];
    let initiator = kind == qp_type::XRC_INI;
    if !known.contains(&kind) || initiator && attributes.has(id::SRQ_HANDLE) {
        return Err(Errno::EINVAL);
    }
    let pd = session.pd(attributes.handle(id::PD_HANDLE)?)?;
    let send_cq = session.number(Kind::Cq, attributes.handle(id::SEND_CQ_HANDLE)?)?;
    // What is an initiator of XRC alone receives nothing.
    let recv_cq = match attributes.handle(id::RECV_CQ_HANDLE) {
        Err(_) if initiator => send_cq,
        handle => session.number(Kind::Cq, handle?)?,
    };
    let srq = attributes.has(id::SRQ_HANDLE).then(|| attributes.handle(id::SRQ_HANDLE)).transpose()?;
    let srq = srq.map(|handle| session.number(Kind::Srq, handle)).transpose()?;
    let flags = QpCreateFlags::from_bits(attributes.number(id::FLAGS) as u32).ok_or(Errno::EINVAL)?;
    let special = flags - QpCreateFlags::SQ_SIG_ALL;
    let of_raw = QpCreateFlags::SCATTER_FCS | QpCreateFlags::CVLAN_STRIPPING;
    let allowed = match kind {
        qp_type::RAW_PACKET | qp_type::DRIVER => true,
        qp_type::UD => !special.intersects(of_raw),
        _ => special.is_empty(),
    };
    let wants_input = attributes.length(attr::uhw::IN) > 0;
    if !allowed || wants_input || attributes.length(attr::uhw::OUT) < size_of::<CreateQpResp>() {
        return Err(Errno::EINVAL);
    }
    let supported = matches!(kind, qp_type::RC | qp_type::UC | qp_type::UD);
    if !supported || !special.is_empty() || attributes.has(id::SOURCE_QPN) {
        return Err(Errno::EOPNOTSUPP);
    }
    let asked: QpCap = attributes.input(id::CAP)?;
    let mut cap = grant(&asked, session.limits(), srq.is_some())?;
    let listener =
        Listener { context: session.context, file, user_handle: attributes.input(id::USER_HANDLE)? };
    let element = size_of::<SendWqe>() + cap.max_inline_data as usize;
    let (sends, send_memory) = Ring::new(cap.max_send_wr, element, Side::Consumer)?;
    cap.max_send_wr = sends.capacity();
    let element = size_of::<RecvWqe>() + cap.max_recv_sge as usize * size_of::<Sge>();
    let (receives, receive_memory) = match srq {
        None => Ring::new(cap.max_recv_wr, element, Side::Consumer)
            .map(|(ring, file)| (Some(ring), Some(file)))?,
        Some(_) => (None, None),
    };
    cap.max_recv_wr = receives.as_ref().map_or(0, Ring::capacity);
    let device = session.device();
    let number = session.state.qps.insert(|_| Qp {
        device,
        pd,
        send_cq,
        recv_cq,
        srq,
        kind,
        listener,
        cap,
        signal_all: flags.contains(QpCreateFlags::SQ_SIG_ALL),
        state: qp_state::RESET,
        attr: ModifyQp { path_mtu: 1, dest: NOWHERE, alt_dest: NOWHERE, ..Default::default() },
        peer: None,
        sends,
        receives,
        send_psn: 0,
        receive_psn: 0,
        wait: None,
        delayed: false,
        held: None,
        retries: 0,
        rnr_retries: 0,
        answered: None,
        counters: [None; OPERATIONS],
        groups: Vec::new(),
        events: 0,
    })?;
    session.state.use_all_of(number, true);
    let mut response: CreateQpResp = attributes.before(attr::uhw::OUT)?;
    response.sq_mi = session.offer(Kind::Qp, number, send_memory);
    if let Some(memory) = receive_memory {
        response.rq_mi = session.offer(Kind::Qp, number, memory);
    } else {
        // What was asked for of what there is not is not looked at.
        (cap.max_recv_wr, cap.max_recv_sge) = (asked.max_recv_wr, asked.max_recv_sge);
    }
    attributes.output(attr::uhw::OUT, &response)?;
    attributes.output_padded(id::RESP_CAP, &cap)?;
    attributes.output(id::RESP_QP_NUM, &number)?;
    let handle = session.handle(Kind::Qp, number);
    attributes.created(id::HANDLE, handle);
    Ok(())
}

impl Qp {
    /// Bytes of payload in a packet.
    pub(crate) fn mtu(&self) -> u32 {
        128 << self.attr.path_mtu.clamp(1, 5)
    }

    /// What the peer may do.
    pub(crate) fn access(&self) -> AccessFlags {
        AccessFlags::from_bits_retain(self.attr.qp_access_flags)
    }

    /// Whether messages of its peers are taken.
    pub(crate) fn takes_messages(&self) -> bool {
        matches!(self.state, qp_state::RTR | qp_state::RTS | qp_state::SQD)
    }

    /// A request has been completed: the next one starts with all retries.
    pub(crate) fn refresh_retries(&mut self) {
        self.delayed = false;
        self.retries = self.attr.retry_cnt;
        self.rnr_retries = self.attr.rnr_retry;
    }
}

impl Session<'_> {
    pub(crate) fn query_qp(&mut self, request: &QueryQp) -> Result<QueryQpResp> {
        let number = self.number(Kind::Qp, request.qp_handle)?;
        let qp = self.state.qps.get(number).ok_or(Errno::ENOENT)?;
        let attr = &qp.attr;
        Ok(QueryQpResp {
            dest: attr.dest,
            alt_dest: attr.alt_dest,
            max_send_wr: qp.cap.max_send_wr,
            max_recv_wr: qp.cap.max_recv_wr,
            max_send_sge: qp.cap.max_send_sge,
            max_recv_sge: qp.cap.max_recv_sge,
            max_inline_data: qp.cap.max_inline_data,
            qkey: attr.qkey,
            rq_psn: qp.receive_psn,
            sq_psn: qp.send_psn,
            dest_qp_num: attr.dest_qp_num,
            qp_access_flags: attr.qp_access_flags,
            pkey_index: attr.pkey_index,
            alt_pkey_index: attr.alt_pkey_index,
            qp_state: qp.state as u8,
            cur_qp_state: qp.state as u8,
            path_mtu: attr.path_mtu,
            path_mig_state: attr.path_mig_state,
            sq_draining: u8::from(qp.is_draining()),
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            port_num: attr.port_num,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            alt_port_num: attr.alt_port_num,
            alt_timeout: attr.alt_timeout,
            sq_sig_all: u8::from(qp.signal_all),
            ..Default::default()
        })
    }
}

impl State {
    /// Counts a QP as a user of what it needs, or no longer.
    fn use_all_of(&mut self, number: u32, uses: bool) {
        let Some(qp) = self.qps.get(number) else { return };
        let (pd, srq, cqs, counters) = (qp.pd, qp.srq, [qp.send_cq, qp.recv_cq], qp.counters);
        let change = |users: &mut u32| if uses { *users += 1 } else { *users -= 1 };
        if let Some(pd) = self.pds.get_mut(pd) {
            change(&mut pd.users);
        }
        if let Some(srq) = srq.and_then(|srq| self.srqs.get_mut(srq)) {
            change(&mut srq.users);
        }
        for cq in cqs {
            if let Some(cq) = self.cqs.get_mut(cq) {
                change(&mut cq.users);
            }
        }
        for counter in counters.into_iter().flatten() {
            if let Some(counter) = self.counters.get_mut(counter) {
                change(&mut counter.users);
            }
        }
    }

    /// Tells of something that has happened to a QP.
    pub(crate) fn tell_of_qp(&mut self, number: u32, event: u32) {
        if let Some(qp) = self.qps.get(number) {
            let listener = qp.listener;
            let told = self.tell(listener, event);
            if let Some(qp) = self.qps.get_mut(number) {
                qp.events += u32::from(told);
            }
        }
    }

    /// Moves a QP to the error state, and flushes its queues.
    pub(crate) fn break_qp(&mut self, number: u32) {
        let Some(qp) = self.qps.get_mut(number) else { return };
        let was_whole = std::mem::replace(&mut qp.state, qp_state::ERR) != qp_state::ERR;
        let has_srq = qp.srq.is_some();
        self.stop_waiting(number);
        self.flush_receives(number);
        self.flush_sends(number);
        if was_whole && has_srq {
            self.tell_of_qp(number, event_type::QP_LAST_WQE_REACHED);
        }
    }

    pub(crate) fn destroy_qp(&mut self, number: u32) -> Result<()> {
        if self.qps.get(number).is_some_and(|qp| !qp.groups.is_empty()) {
            return Err(Errno::EBUSY);
        }
        self.use_all_of(number, false);
        self.unbind_from(number);
        self.stop_waiting(number);
        self.qps.remove(number);
        Ok(())
    }
}
