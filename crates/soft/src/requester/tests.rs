//! Cases that need rings with what no provider writes, or a look at what the device holds.

use std::time::{Duration, Instant};

use uverbs_ioctl::{Doorbell, Transport, calls};
use uverbs_uapi::ioctl_verbs::{AccessFlags, QpCap, qp_type};
use uverbs_uapi::rxe::{
    CreateAhResp, DmaInfo, SendWqe, SendWr, SendWrAtomic, SendWrMw, SendWrRdma, SendWrUd, Sge,
};
use uverbs_uapi::user_verbs::{
    AhAttr, AllocMw, AllocPd, AttachMcast, CreateAh, GlobalRoute, QueryQp, wr_opcode,
};
use uverbs_uapi::values::{MULTICAST_QPN, QpAttrMask, SendFlags, mw_type, qp_state, wc_status};
use zerocopy::IntoBytes;

use crate::context::Opened;
use crate::device::Device;
use crate::faults::Faults;
use crate::fuzz::PATIENCE;
use crate::fuzz::user::{
    Queue, connect, create_cq, create_qp, create_qp_with, create_srq, gid, open, part, receive, register,
    send, step,
};
use crate::wire::Wire;

/// A QP that is its own peer.
struct Own {
    wire: Wire,
    device: Device,
    context: Opened,
    pd: u32,
    cq: Queue,
    qp: Queue,
    kind: u32,
}

impl Own {
    fn new(kind: u32, entries: u32) -> Self {
        let wire = Wire::new();
        let device = Device::new(&wire, "own");
        let context = open(&device).unwrap();
        let pd = calls::invoke(&context, &AllocPd::default()).unwrap().pd_handle;
        let cq = create_cq(&context, entries);
        let qp = create_qp(&context, (pd, cq.handle, None), kind, 7);
        let this = Self { wire, device, context, pd, cq, qp, kind };
        this.connect();
        this
    }

    fn connect(&self) {
        connect(&self.context, self.qp.handle, self.kind, gid(&self.device), self.qp.number).unwrap();
    }

    /// All of some memory that lives longer than this, which the device may write.
    fn register(&self, memory: &mut [u8]) -> Sge {
        let addr = memory.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: it is there until the context has been closed, and nobody else uses it till then.
        let region = unsafe { register(&self.context, self.pd, addr, memory.len(), ALL.bits()) };
        Sge { addr, length: memory.len() as u32, lkey: region.lkey }
    }

    /// Posts a signaled request with four bytes inside, and rings no bell.
    fn push(&mut self, wr: SendWr) {
        let send_flags = (SendFlags::SIGNALED | SendFlags::INLINE).bits();
        self.qp.ring.as_mut().unwrap().push(&send(SendWr { send_flags, ..wr }, &[], b"four"));
    }

    fn receive(&mut self, wr_id: u64, sges: &[Sge]) {
        self.qp.receives.as_mut().unwrap().push(&receive(wr_id, sges));
    }

    fn ring(&self) {
        self.context.doorbell(Doorbell::Send { qp: self.qp.handle }).unwrap();
    }

    /// What a datagram to an address needs besides its data.
    fn datagram(&self, dgid: [u8; 16], remote_qpn: u32) -> [u64; 15] {
        let grh = GlobalRoute { dgid, sgid_index: 1, ..Default::default() };
        let attr = AhAttr { grh, is_global: 1, port_num: 1, ..Default::default() };
        let request = CreateAh { pd_handle: self.pd, attr, ..Default::default() };
        let mut driver = CreateAhResp::default();
        calls::invoke_for_driver(&self.context, &request, &mut driver).unwrap();
        part(&SendWrUd { remote_qpn, ah_num: driver.ah_num, ..Default::default() })
    }

    fn completions(&mut self) -> Vec<(u64, u32)> {
        let ring = self.cq.ring.as_mut().unwrap();
        std::iter::from_fn(|| ring.poll()).map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// It is broken, and has nothing more to tell.
    fn is_spent(&mut self) {
        let number = self.qp.number;
        self.wire.with(|state| {
            let qp = state.qps.get(number).unwrap();
            assert_eq!((qp.state, qp.sends.count()), (qp_state::ERR, 0));
        });
        self.ring();
        assert_eq!(self.completions(), []);
    }
}

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND);

/// A receive that cannot be used, with room for a datagram.
const MALFORMED: Sge = Sge { addr: 0, length: 64, lkey: 0 };

#[test]
fn who_breaks_itself_completes_every_request_once() {
    let flushed = |wr_id| (wr_id, wc_status::WR_FLUSH_ERR);
    for (kind, opcode, multicast, status) in [
        (qp_type::UD, wr_opcode::SEND, false, wc_status::LOC_QP_OP_ERR),
        (qp_type::UD, wr_opcode::SEND, true, wc_status::LOC_QP_OP_ERR),
        (qp_type::UC, wr_opcode::SEND, false, wc_status::LOC_QP_OP_ERR),
        (qp_type::RC, wr_opcode::SEND, false, wc_status::LOC_QP_OP_ERR),
        (qp_type::RC, wr_opcode::SEND_WITH_INV, false, wc_status::REM_INV_REQ_ERR),
    ] {
        let mut memory = [0_u8; 64];
        let mut own = Own::new(kind, 60);
        let usable = own.register(&mut memory);
        let sge = if opcode == wr_opcode::SEND { MALFORMED } else { usable };
        let mut wr = SendWr { opcode, ..Default::default() };
        if multicast {
            let mut group = gid(&own.device);
            group[12] = 239;
            let request = AttachMcast { gid: group, qp_handle: own.qp.handle, ..Default::default() };
            calls::invoke(&own.context, &request).unwrap();
            wr.wr = own.datagram(group, MULTICAST_QPN);
        } else if kind == qp_type::UD {
            wr.wr = own.datagram(gid(&own.device), own.qp.number);
        }
        own.receive(10, &[sge]);
        own.receive(11, &[sge]);
        own.push(SendWr { wr_id: 1, ..wr });
        own.push(SendWr { wr_id: 2, ..wr });
        own.ring();
        assert_eq!(own.completions(), [(10, status), flushed(11), flushed(1), flushed(2)], "{kind} {opcode}");
        own.is_spent();
    }
}

#[test]
fn who_fills_its_own_queue_completes_no_request_twice() {
    let mut memory = [0_u8; 64];
    let mut own = Own::new(qp_type::UD, 1);
    let sge = own.register(&mut memory);
    let wr = own.datagram(gid(&own.device), own.qp.number);
    let wr = SendWr { opcode: wr_opcode::SEND, wr, ..Default::default() };
    for number in [1, 2] {
        own.receive(10 + number, &[sge]);
        own.push(SendWr { wr_id: number, ..wr });
    }
    own.ring();
    // The first datagram takes what room there is, and the second breaks the QP.
    assert_eq!(own.completions(), [(11, wc_status::SUCCESS)]);
    own.is_spent();
}

#[test]
fn who_is_reset_forgets_what_was_under_way() {
    const WAIT: Duration = Duration::from_millis(100);
    let timers = |own: &Own| own.wire.with(|state| state.timers.len());
    for to in [qp_state::RESET, qp_state::ERR] {
        let mut own = Own::new(qp_type::UC, 60);
        own.device.set_faults(Faults::new(0).delay(1000, WAIT));
        let write = SendWr { opcode: wr_opcode::RDMA_WRITE, ..Default::default() };
        own.push(SendWr { wr_id: 1, ..write });
        own.ring();
        let waits_until = Instant::now() + WAIT;
        assert_eq!(timers(&own), 1);
        let change = step(own.qp.handle, gid(&own.device), own.qp.number, to, QpAttrMask::empty());
        calls::invoke(&own.context, &change).unwrap();
        assert_eq!(timers(&own), 0, "to {to}");
        let flushed = (to == qp_state::ERR).then_some((1, wc_status::WR_FLUSH_ERR));
        assert_eq!(own.completions(), Vec::from_iter(flushed));
        // The one that is posted next waits for its bell, and then for its own time.
        own.connect();
        own.push(SendWr { wr_id: 2, ..write });
        std::thread::sleep(waits_until.saturating_duration_since(Instant::now()) + WAIT / 4);
        assert_eq!(own.completions(), []);
        own.ring();
        assert_eq!((timers(&own), own.completions()), (1, Vec::new()));
        let deadline = Instant::now() + PATIENCE;
        let done = loop {
            let done = own.completions();
            if !done.is_empty() {
                break done;
            }
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(done, [(2, wc_status::SUCCESS)]);
        assert_eq!(timers(&own), 0);
    }
}

#[test]
fn who_is_reset_forgets_the_datagram_that_was_to_be_overtaken() {
    let mut memory = [0_u8; 64];
    let mut own = Own::new(qp_type::UD, 60);
    let sge = own.register(&mut memory);
    let wr = own.datagram(gid(&own.device), own.qp.number);
    let wr = SendWr { opcode: wr_opcode::SEND, wr, ..Default::default() };
    own.device.set_faults(Faults::new(0).reorder(1000));
    own.push(SendWr { wr_id: 1, ..wr });
    own.ring();
    assert_eq!(own.completions(), [(1, wc_status::SUCCESS)]);
    let change = step(own.qp.handle, gid(&own.device), 0, qp_state::RESET, QpAttrMask::empty());
    calls::invoke(&own.context, &change).unwrap();
    own.connect();
    own.device.set_faults(Faults::new(0));
    own.receive(10, &[sge]);
    own.receive(11, &[sge]);
    own.push(SendWr { wr_id: 2, ..wr });
    own.ring();
    assert_eq!(own.completions(), [(10, wc_status::SUCCESS), (2, wc_status::SUCCESS)]);
}

#[test]
fn windows_are_bound_in_one_domain() {
    for mw_type in [mw_type::TYPE_1, mw_type::TYPE_2] {
        let mut memory = [0_u8; 64];
        let mut own = Own::new(qp_type::RC, 60);
        let other = calls::invoke(&own.context, &AllocPd::default()).unwrap().pd_handle;
        let window = |pd_handle| {
            let request = AllocMw { pd_handle, mw_type: mw_type as u8, ..Default::default() };
            calls::invoke(&own.context, &request).unwrap().rkey
        };
        let addr = memory.as_mut_ptr().expose_provenance() as u64;
        let region = |pd| {
            // SAFETY: it is there until the context has been closed, and nobody else uses it till then.
            unsafe { register(&own.context, pd, addr, 64, ALL.bits()) }.lkey
        };
        let (windows, regions) = ([own.pd, other].map(window), [own.pd, other].map(region));
        let bind = |window, region, length| {
            let binding = SendWrMw {
                addr,
                length,
                mr_lkey: regions[region],
                mw_rkey: windows[window],
                rkey: windows[window],
                access: AccessFlags::REMOTE_WRITE.bits(),
            };
            SendWr { wr_id: 1, opcode: wr_opcode::BIND_MW, wr: part(&binding), ..Default::default() }
        };
        for (window, region, length, status) in [
            (1, 0, 64, wc_status::MW_BIND_ERR),
            (0, 1, 64, wc_status::MW_BIND_ERR),
            (1, 1, 64, wc_status::MW_BIND_ERR),
            (1, 0, 0, wc_status::MW_BIND_ERR),
            (0, 0, 64, wc_status::SUCCESS),
        ] {
            own.connect();
            let wr = bind(window, region, length);
            own.push(wr);
            own.ring();
            assert_eq!(own.completions(), [(1, status)], "{mw_type}: {window} to {region}, {length}");
        }
    }
}

#[test]
fn only_messages_that_are_taken_are_counted_on() {
    let (message, read, add) = (wr_opcode::SEND, wr_opcode::RDMA_READ, wr_opcode::ATOMIC_FETCH_AND_ADD);
    let invalidate = wr_opcode::SEND_WITH_INV;
    let (reliable, unreliable) = (qp_type::RC, qp_type::UC);
    // A receive that cannot be used, or the key of nothing: the number expected next stays.
    for (kind, opcode, is_right, expected, status) in [
        (reliable, message, true, 1, wc_status::SUCCESS),
        (reliable, message, false, 0, wc_status::REM_OP_ERR),
        (reliable, invalidate, false, 0, wc_status::SUCCESS),
        (reliable, wr_opcode::RDMA_WRITE, true, 1, wc_status::SUCCESS),
        (reliable, wr_opcode::RDMA_WRITE, false, 0, wc_status::REM_ACCESS_ERR),
        (reliable, read, true, 1, wc_status::SUCCESS),
        (reliable, read, false, 0, wc_status::REM_ACCESS_ERR),
        (reliable, add, true, 1, wc_status::SUCCESS),
        (reliable, add, false, 0, wc_status::REM_ACCESS_ERR),
        (unreliable, message, true, 1, wc_status::SUCCESS),
        (unreliable, message, false, 0, wc_status::SUCCESS),
        (unreliable, wr_opcode::RDMA_WRITE, true, 1, wc_status::SUCCESS),
        (unreliable, wr_opcode::RDMA_WRITE, false, 0, wc_status::SUCCESS),
    ] {
        let mut memory = [0_u8; 64];
        let mut own = Own::new(kind, 60);
        let sge = own.register(&mut memory);
        let mut peer = create_qp(&own.context, (own.pd, own.cq.handle, None), kind, 7);
        let gid = gid(&own.device);
        connect(&own.context, own.qp.handle, kind, gid, peer.number).unwrap();
        connect(&own.context, peer.handle, kind, gid, own.qp.number).unwrap();
        if opcode == message || opcode == invalidate {
            let usable = is_right || opcode == invalidate;
            peer.receives.as_mut().unwrap().push(&receive(10, &[if usable { sge } else { MALFORMED }]));
        }
        let (remote_addr, rkey) = (sge.addr, if is_right { sge.lkey } else { 0 });
        let wr = if opcode == add {
            part(&SendWrAtomic { remote_addr, rkey, ..Default::default() })
        } else {
            part(&SendWrRdma { remote_addr, rkey, reserved: 0 })
        };
        let send_flags = SendFlags::SIGNALED.bits();
        let wr = SendWr { wr_id: 1, opcode, send_flags, wr, ..Default::default() };
        let request = send(wr, &[Sge { length: 8, ..sge }], &[]);
        own.qp.ring.as_mut().unwrap().push(&request);
        own.ring();
        let done: Vec<_> = own.completions().into_iter().filter(|(wr_id, _)| *wr_id == 1).collect();
        assert_eq!(done, [(1, status)], "{kind} {opcode} {is_right}");
        let query = |qp_handle| {
            let request = QueryQp { qp_handle, attr_mask: QpAttrMask::all().bits(), ..Default::default() };
            let answer = calls::invoke(&own.context, &request).unwrap();
            (answer.rq_psn, answer.sq_psn)
        };
        assert_eq!(
            (query(own.qp.handle), query(peer.handle)),
            ((0, 1), (expected, 0)),
            "{kind} {opcode} {is_right}"
        );
    }
}

#[test]
fn a_peer_that_a_message_breaks_does_not_take_it_twice() {
    let mut memory = [0_u8; 64];
    let mut own = Own::new(qp_type::UC, 60);
    let sge = own.register(&mut memory);
    let mut srq = create_srq(&own.context, own.pd, 3, 1);
    let of = (own.pd, own.cq.handle, Some(srq.handle));
    own.qp = create_qp(&own.context, of, qp_type::UC, 7);
    let peer = create_qp(&own.context, of, qp_type::UC, 7);
    let gid = gid(&own.device);
    connect(&own.context, own.qp.handle, qp_type::UC, gid, peer.number).unwrap();
    connect(&own.context, peer.handle, qp_type::UC, gid, own.qp.number).unwrap();
    own.device.set_faults(Faults::new(0).duplicate(1000));
    for (wr_id, sge) in [(10, MALFORMED), (11, sge)] {
        srq.receives.as_mut().unwrap().push(&receive(wr_id, &[sge]));
    }
    own.push(SendWr { wr_id: 1, opcode: wr_opcode::SEND, ..Default::default() });
    own.ring();
    assert_eq!(own.completions(), [(10, wc_status::LOC_QP_OP_ERR), (1, wc_status::SUCCESS)]);
}

#[test]
fn a_request_has_no_more_sges_than_the_queue_takes() {
    let (refused, done) = (wc_status::LOC_QP_OP_ERR, wc_status::SUCCESS);
    // SGEs asked for, inline bytes, those of the request and the one that it says it is at.
    for (max_send_sge, max_inline_data, sges, cur_sge, length, status) in [
        (0, 0, 0, 0, 0, done),
        (0, 0, 0, 5, 0, done),
        (0, 0, 1, 0, 0, refused),
        (0, 0, 1, 0, 8, refused),
        (0, 15, 1, 0, 8, refused),
        (0, 15, 0, 0, 8, refused),
        (0, 16, 1, 0, 8, done),
        (2, 0, 2, 0, 8, done),
        (2, 0, 3, 0, 8, refused),
        (2, 0, 2, 2, 8, refused),
        (2, 0, 2, 2, 0, done),
    ] {
        let mut memory = [0_u8; 64];
        let mut own = Own::new(qp_type::UC, 60);
        let cap = QpCap { max_send_wr: 7, max_send_sge, max_inline_data, ..Default::default() };
        own.qp = create_qp_with(&own.context, (own.pd, own.cq.handle, None), qp_type::UC, cap);
        own.connect();
        let sge = own.register(&mut memory);
        let wqe = SendWqe {
            wr: SendWr {
                wr_id: 1,
                opcode: wr_opcode::RDMA_WRITE,
                send_flags: SendFlags::SIGNALED.bits(),
                wr: part(&SendWrRdma { remote_addr: sge.addr, rkey: sge.lkey, reserved: 0 }),
                ..Default::default()
            },
            dma: DmaInfo { length, resid: length, num_sge: sges, cur_sge, ..Default::default() },
            ..Default::default()
        };
        let sge = Sge { length, ..sge };
        own.qp.ring.as_mut().unwrap().push(&[wqe.as_bytes(), [sge; 3].as_bytes()].concat());
        own.ring();
        assert_eq!(
            own.completions(),
            [(1, status)],
            "{sges} of {max_send_sge} or {max_inline_data} bytes, at {cur_sge}, {length} bytes"
        );
    }
}
