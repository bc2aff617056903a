//! Messages between queue pairs, and all that can go wrong with them.

use std::time::Duration;

use uverbs_efa_model::admin::abi::{
    AllocateMr, AllocateMrAnswer, CreateCqFlags1, CreateCqFlags2, CreateEq, CreateQpFlags, DestroyAh,
    GetStatistics, Lkey, Number,
};
use uverbs_efa_model::admin::{Opcode, QpKind, QpState, Status as AdminStatus};
use uverbs_efa_model::config::{Capabilities, Config, Gid};
use uverbs_efa_model::io::{FAST_INVALIDATE, FAST_REGISTER, FastRegister, Permissions, Status};
use uverbs_efa_model::registers::{ARM, Register};
use zerocopy::IntoBytes;

use crate::rig::{Cq, Mr, Node, PAGE, Pair, Qp, Send, Work, config, exchange};

const HAS_IMMEDIATE: u8 = 1 << 3;
const UNSOLICITED: u8 = 1 << 7;

fn srd() -> Pair {
    Pair::new(config(0), QpKind::Srd)
}

#[test]
fn sends_arrive() {
    let mut pair = srd();
    let message: Vec<u8> = (0..=255).collect();
    pair.node.put(&pair.mr.clone(), 2000, &message);
    pair.post_receive(7, 100, 4096);
    let (key, address) = (pair.mr.key, pair.mr.address);
    // Two buffers, of which the second crosses a page.
    let buffers = [(key, address + 2000, 16), (key, address + 2016, 240)];
    let mut request = pair.request(0x1_2345, Work::Send(&buffers));
    request.immediate = Some(0xaabb_ccdd);
    pair.post(&request);

    let sent = pair.poll(0).unwrap();
    assert_eq!((sent.id, sent.status, sent.qp), (0x2345, Status::Ok, pair.qp[0].number));
    let received = pair.poll(1).unwrap();
    assert_eq!((received.id, received.status, received.qp), (7, Status::Ok, pair.qp[1].number));
    assert_eq!(received.flags & (HAS_IMMEDIATE | UNSOLICITED), HAS_IMMEDIATE);
    let detail = received.receive.unwrap();
    assert_eq!((detail.length.get(), detail.immediate.get()), (256, 0xaabb_ccdd));
    assert_eq!((detail.ah.get(), detail.source_qp.get()), (pair.ah, pair.qp[0].number));
    assert_eq!(pair.node.get(&pair.mr, 100, 256), message);
    assert_eq!((pair.poll(0), pair.poll(1)), (None, None));
}

#[test]
fn sends_go_inline_and_unsignalled() {
    let mut pair = srd();
    pair.post_receive(1, 0, 100);
    pair.post_receive(2, 100, 100);
    let data = [5; 80];
    let mut request = pair.request(1, Work::Inline(&data));
    request.signalled = false;
    pair.post(&request);
    pair.post(&pair.request(2, Work::Inline(&[])));
    assert_eq!(pair.node.drain(&mut pair.cq[0]), [(2, Status::Ok)]);
    assert_eq!(pair.node.drain(&mut pair.cq[1]), [(1, Status::Ok), (2, Status::Ok)]);
    assert_eq!(pair.node.get(&pair.mr, 0, 81), [&data[..], &[0]].concat());
    // A failure is told whether wanted or not.
    let mut request = pair.request(3, Work::Inline(&[]));
    (request.signalled, request.destination_qp) = (false, 0);
    pair.post(&request);
    assert_eq!(pair.sent(), Some(Status::RemoteBadDestQpn));
}

#[test]
fn receives_have_several_buffers() {
    let mut pair = srd();
    let (key, address) = (pair.mr.key, pair.mr.address);
    let buffers = [(key, address, 3), (key, address + 10, 3)];
    pair.node.receive(&mut pair.qp[1], 9, &buffers);
    pair.post(&pair.request(1, Work::Inline(b"abcde")));
    assert_eq!(pair.poll(1).unwrap().receive.unwrap().length.get(), 5);
    assert_eq!(pair.node.get(&pair.mr, 0, 13), b"abc\0\0\0\0\0\0\0de\0");
}

#[test]
fn queues_go_round() {
    let mut pair = srd();
    for round in 0..40u16 {
        pair.post_receive(round, 0, 64);
        pair.post(&pair.request(round.into(), Work::Inline(&round.to_le_bytes())));
        assert_eq!(pair.node.drain(&mut pair.cq[0]), [(round.into(), Status::Ok)]);
        assert_eq!(pair.node.drain(&mut pair.cq[1]), [(round.into(), Status::Ok)]);
        assert_eq!(pair.node.get(&pair.mr, 0, 2), round.to_le_bytes());
    }
}

#[test]
fn a_doorbell_beyond_the_queue_is_ignored() {
    let mut pair = srd();
    let mut qp = pair.qp[0];
    for id in 0..17 {
        let request = pair.request(id, Work::Inline(&[]));
        pair.node.write_send(&mut qp, &request);
    }
    pair.node.ring_send(&qp);
    assert_eq!(pair.poll(0), None);
}

#[test]
fn rdma_reads_and_writes_reach_memory() {
    let mut pair = srd();
    let (mr, key, address) = (pair.mr, pair.mr.key, pair.mr.address);
    pair.node.put(&mr, 0, b"to be read");
    pair.node.put(&mr, 5000, b"to be written");
    let read = Work::Read { remote: (key, address, 10), local: (key, address + 4090, 10) };
    pair.post(&pair.request(1, read));
    let write = Work::Write { remote: (key, address + 8000, 13), local: (key, address + 5000, 13) };
    pair.post(&pair.request(2, write));
    let inline = Work::WriteInline { remote: (key, address + 9000, 6), data: b"inline" };
    pair.post(&pair.request(3, inline));
    let ok = [(1, Status::Ok), (2, Status::Ok), (3, Status::Ok)];
    assert_eq!(pair.node.drain(&mut pair.cq[0]), ok);
    assert_eq!(pair.node.get(&mr, 4090, 10), b"to be read");
    assert_eq!(pair.node.get(&mr, 8000, 13), b"to be written");
    assert_eq!(pair.node.get(&mr, 9000, 6), b"inline");
    assert_eq!(pair.poll(1), None);
    let statistics = |pair: &mut Pair, kind| -> [u64; 4] {
        pair.node.ok(Opcode::GetStatistics, GetStatistics { kind, ..GetStatistics::default() })
    };
    assert_eq!(statistics(&mut pair, 2), [1, 10, 0, 10]);
    assert_eq!(statistics(&mut pair, 3), [2, 19, 0, 19]);
}

#[test]
fn writes_with_immediate_data_consume_a_receive() {
    let mut pair = srd();
    let remote = (pair.mr.key, pair.mr.address, 2);
    assert_eq!(pair.node.set_rnr_retry(&pair.qp[0], 0), AdminStatus::Success);
    let mut request = pair.request(1, Work::WriteInline { remote, data: b"ab" });
    request.immediate = Some(6);
    pair.post(&request);
    assert_eq!(pair.sent(), Some(Status::RemoteRnr));
    assert_eq!(pair.node.get(&pair.mr, 0, 2), [0, 0]);
    pair.post_receive(3, 100, 1);
    pair.post(&request);
    assert_eq!(pair.sent(), Some(Status::Ok));
    let received = pair.poll(1).unwrap();
    assert_eq!((received.id, received.flags & UNSOLICITED), (3, 0));
    let detail = received.receive.unwrap();
    assert_eq!((detail.length.get(), detail.immediate.get(), detail.extension), (2, 6, [0; 16]));
    assert_eq!(pair.node.get(&pair.mr, 0, 2), b"ab");
}

#[test]
fn writes_may_be_unsolicited() {
    let mut pair = srd();
    let mut command = Node::create_qp(QpKind::Srd, pair.pd, pair.uar, &pair.cq[1]);
    command.flags = CreateQpFlags::UNSOLICITED_WRITE_RECV.bits();
    let qp = pair.node.qp(command);
    pair.node.ready(&qp);
    let remote = (pair.mr.key, pair.mr.address, 2);
    let mut request = Send::new(1, pair.ah, qp.number, Work::WriteInline { remote, data: b"ab" });
    request.immediate = Some(6);
    pair.post(&request);
    assert_eq!(pair.sent(), Some(Status::Ok));
    let received = pair.poll(1).unwrap();
    assert_eq!(received.flags & (UNSOLICITED | HAS_IMMEDIATE), UNSOLICITED | HAS_IMMEDIATE);
    assert_eq!(received.receive.unwrap().immediate.get(), 6);
}

#[test]
fn identifiers_may_have_64_bits() {
    let mut node = Node::new(config(0));
    let (uar, pd) = (node.uar(), node.pd());
    let mut command = Node::create_cq(uar);
    command.capabilities_2 |= CreateCqFlags2::SQ_64_BIT_REQ_ID.bits();
    let mut cq = node.cq(command);
    let mut command = Node::create_qp(QpKind::Srd, pd, uar, &cq);
    command.flags = CreateQpFlags::SQ_64_BIT_REQ_ID.bits();
    let mut qp = node.qp(command);
    node.ready(&qp);
    node.send(&mut qp, &Send::new(0x0123_4567_89ab_cdef, 0, 0, Work::Inline(&[])));
    assert_eq!(node.drain(&mut cq), [(0x0123_4567_89ab_cdef, Status::LocalInvalidAh)]);
}

#[test]
fn datagrams_arrive_or_vanish() {
    let mut pair = Pair::new(config(0), QpKind::Ud);
    // No receive request: lost, and the sender does not know.
    pair.post(&pair.request(1, Work::Inline(b"lost")));
    assert_eq!(pair.sent(), Some(Status::Ok));
    pair.post_receive(5, 0, 100);
    let mut request = pair.request(2, Work::Inline(b"wrong key"));
    request.qkey = 1;
    pair.post(&request);
    assert_eq!(pair.sent(), Some(Status::Ok));
    pair.post(&pair.request(3, Work::Inline(b"hello")));
    assert_eq!(pair.sent(), Some(Status::Ok));
    let received = pair.poll(1).unwrap();
    assert_eq!((received.id, received.receive.unwrap().length.get()), (5, 45));
    assert_eq!(pair.node.get(&pair.mr, 40, 5), b"hello");
    let basic: [u64; 6] = pair.node.ok(Opcode::GetStatistics, GetStatistics::default());
    assert_eq!(basic[4..], [1, 1], "drops and violations of the key");
    // Datagrams do no RDMA.
    let remote = (pair.mr.key, pair.mr.address, 1);
    pair.post(&pair.request(4, Work::Read { remote, local: remote }));
    assert_eq!(pair.sent(), Some(Status::LocalUnsupportedOp));
}

#[test]
fn wrong_requests_fail_alone() {
    let mut pair = srd();
    let (key, address) = (pair.mr.key, pair.mr.address);
    let weak = pair.node.mr(pair.pd, Permissions::empty());
    let other_pd = pair.node.pd();
    let foreign = pair.node.mr(other_pd, Permissions::all());
    let good = (key, address, 8);
    let wrong = (key + 1, address, 8);
    let foreign_range = (foreign.key, foreign.address, 8);
    let beyond = (key, address + 3 * PAGE - 4, 8);
    let wild = (key, u64::MAX - 2, 8);
    let too_long = [(key, address, 4500), (key, address, 4500)];
    let unwritable = (weak.key, weak.address, 8);
    for (work, status) in [
        (Work::Send(&[wrong]), Status::LocalInvalidLkey),
        (Work::Send(&[foreign_range]), Status::LocalInvalidLkey),
        (Work::Send(&[beyond]), Status::LocalInvalidLkey),
        (Work::Send(&[wild]), Status::LocalInvalidLkey),
        (Work::Send(&too_long), Status::LocalBadLength),
        (Work::Inline(&[0; 81]), Status::LocalBadLength),
        (Work::Read { remote: wrong, local: good }, Status::RemoteBadAddress),
        (Work::Read { remote: foreign_range, local: good }, Status::RemoteBadAddress),
        (Work::Read { remote: unwritable, local: good }, Status::RemoteBadAddress),
        (Work::Read { remote: beyond, local: good }, Status::RemoteBadAddress),
        (Work::Read { remote: good, local: wrong }, Status::LocalInvalidLkey),
        (Work::Read { remote: good, local: unwritable }, Status::LocalInvalidLkey),
        (Work::Read { remote: good, local: (key, address, 7) }, Status::LocalBadLength),
        (Work::Write { remote: wrong, local: good }, Status::RemoteBadAddress),
        (Work::Write { remote: unwritable, local: good }, Status::RemoteBadAddress),
        (Work::Write { remote: good, local: wrong }, Status::LocalInvalidLkey),
        (Work::Write { remote: good, local: (key, address, 7) }, Status::LocalBadLength),
        (Work::Write { remote: good, local: unwritable }, Status::Ok),
        (Work::Raw(9, &[]), Status::LocalUnsupportedOp),
    ] {
        let request = pair.request(5, work);
        pair.post(&request);
        assert_eq!(pair.sent(), Some(status), "{request:?}");
        assert_eq!(pair.poll(1), None);
    }
    let mut wrong_ah = pair.request(6, Work::Inline(&[]));
    wrong_ah.ah = 99;
    pair.post(&wrong_ah);
    assert_eq!(pair.sent(), Some(Status::LocalInvalidAh));
    let mut wrong_key = pair.request(6, Work::Inline(&[]));
    wrong_key.qkey = 1;
    pair.post(&wrong_key);
    assert_eq!(pair.sent(), Some(Status::RemoteBadDestQpn));
    // The queue pair still works.
    pair.post_receive(1, 0, 10);
    pair.post(&pair.request(7, Work::Inline(&[])));
    assert_eq!(pair.sent(), Some(Status::Ok));
}

#[test]
fn receivers_that_cannot_take_a_message_say_so() {
    let mut pair = srd();
    pair.post_receive(1, 0, 4);
    pair.post(&pair.request(1, Work::Inline(b"too long")));
    assert_eq!(pair.sent(), Some(Status::RemoteBadLength));
    assert_eq!(pair.node.drain(&mut pair.cq[1]), [(1, Status::LocalBadLength)]);
    let buffer = (pair.mr.key + 1, pair.mr.address, 100);
    pair.node.receive(&mut pair.qp[1], 2, &[buffer]);
    pair.post(&pair.request(2, Work::Inline(b"hello")));
    assert_eq!(pair.sent(), Some(Status::RemoteAbort));
    assert_eq!(pair.node.drain(&mut pair.cq[1]), [(2, Status::LocalInvalidLkey)]);
    assert_eq!(pair.node.modify(&pair.qp[1], QpState::Error), AdminStatus::Success);
    pair.post(&pair.request(3, Work::Inline(b"hello")));
    assert_eq!(pair.sent(), Some(Status::RemoteBadDestQpn));
}

#[test]
fn rdma_needs_an_address_handle_for_the_sender() {
    for (needed, status) in [(true, Status::RemoteUnknownPeer), (false, Status::Ok)] {
        let mut config = config(0);
        config.need_remote_ah = needed;
        let mut pair = Pair::new(config, QpKind::Srd);
        let gid = pair.node.device.config().gid();
        let pd = pair.node.pd();
        let mr = pair.node.mr(pd, Permissions::all());
        let qp = pair.node.qp(Node::create_qp(QpKind::Srd, pd, pair.uar, &pair.cq[1]));
        pair.node.ready(&qp);
        let read = Work::Read { remote: (mr.key, mr.address, 4), local: (pair.mr.key, pair.mr.address, 4) };
        let request = Send::new(1, pair.ah, qp.number, read);
        pair.post(&request);
        assert_eq!(pair.sent(), Some(status));
        let ah = pair.node.ah(pd, gid);
        pair.post(&request);
        assert_eq!(pair.sent(), Some(Status::Ok));
        let command = DestroyAh { ah: ah.into(), pd: pd.into() };
        assert_eq!(pair.node.status(Opcode::DestroyAh, command), AdminStatus::Success);
    }
}

/// Devices on one wire, each with a queue pair that has an address handle for the other's device.
fn wired(configs: [Config; 2]) -> (Vec<Node>, Vec<Side>) {
    let gids = configs.each_ref().map(Config::gid);
    let mut nodes: Vec<Node> = configs.into_iter().map(Node::new).collect();
    let sides = nodes.iter_mut().zip([gids[1], gids[0]]).map(|(node, peer)| Side::new(node, peer)).collect();
    (nodes, sides)
}

struct Side {
    ah: u16,
    mr: Mr,
    cq: Cq,
    qp: Qp,
}

impl Side {
    fn new(node: &mut Node, peer: Gid) -> Self {
        let (uar, pd) = (node.uar(), node.pd());
        let capabilities = node.device.config().capabilities;
        let mut permissions = Permissions::LOCAL_WRITE;
        permissions.set(Permissions::REMOTE_READ, capabilities.contains(Capabilities::RDMA_READ));
        permissions.set(Permissions::REMOTE_WRITE, capabilities.contains(Capabilities::RDMA_WRITE));
        let (ah, mr) = (node.ah(pd, peer), node.mr(pd, permissions));
        let cq = node.cq(Node::create_cq(uar));
        let qp = node.qp(Node::create_qp(QpKind::Srd, pd, uar, &cq));
        node.ready(&qp);
        Self { ah, mr, cq, qp }
    }
}

#[test]
fn operations_need_the_capability() {
    let mut without = config(1);
    without.capabilities = Capabilities::empty();
    let (mut nodes, mut sides) = wired([config(0), without]);
    for (from, to, status) in [(0, 1, Status::RemoteFeatureMismatch), (1, 0, Status::LocalUnsupportedOp)] {
        let remote = (sides[to].mr.key, sides[to].mr.address, 4);
        let peer = sides[to].qp.number;
        let Side { ah, mr, cq, qp } = &mut sides[from];
        let local = (mr.key, mr.address, 4);
        nodes[from].send(qp, &Send::new(1, *ah, peer, Work::Read { remote, local }));
        nodes[from].send(qp, &Send::new(2, *ah, peer, Work::Write { remote, local }));
        exchange(&mut nodes);
        assert_eq!(nodes[from].drain(cq), [(1, status), (2, status)]);
    }
}

#[test]
fn receivers_that_are_not_ready_are_tried_again() {
    let delay = config(0).rnr_delay;
    let mut pair = srd();
    // Three tries after the first.
    assert_eq!(pair.node.set_rnr_retry(&pair.qp[0], 3), AdminStatus::Success);
    pair.post(&pair.request(1, Work::Inline(b"hello")));
    for _ in 0..2 {
        assert_eq!(pair.poll(0), None);
        pair.node.wait(delay);
    }
    assert_eq!(pair.poll(0), None);
    pair.node.wait(delay);
    assert_eq!(pair.sent(), Some(Status::RemoteRnr));

    pair.post(&pair.request(2, Work::Inline(b"hello")));
    pair.node.wait(delay);
    pair.post_receive(1, 0, 10);
    assert_eq!(pair.poll(0), None);
    pair.node.wait(delay);
    assert_eq!(pair.sent(), Some(Status::Ok));

    // For ever.
    assert_eq!(pair.node.set_rnr_retry(&pair.qp[0], 7), AdminStatus::Success);
    pair.post(&pair.request(3, Work::Inline(b"hello")));
    (0..1000).for_each(|_| pair.node.wait(delay));
    assert_eq!(pair.poll(0), None);
    pair.post_receive(2, 0, 10);
    pair.node.wait(delay);
    assert_eq!(pair.sent(), Some(Status::Ok));
    let network: [u64; 5] =
        pair.node.ok(Opcode::GetStatistics, GetStatistics { kind: 4, ..GetStatistics::default() });
    assert_eq!(network, [1006 * 5, 1006, 0, 0, 0]);
}

#[test]
fn peers_that_do_not_answer_are_given_up() {
    let timeout = config(0).response_timeout;
    let mut pair = srd();
    let mut nobody = pair.node.device.config().gid();
    nobody.0[15] = 99;
    let ah = pair.node.ah(pair.pd, nobody);
    let mut request = pair.request(1, Work::Inline(&[]));
    request.ah = ah;
    pair.post(&request);
    assert!(pair.node.device.poll_transmit().is_some());
    assert_eq!(pair.node.device.poll_timeout(), Some(pair.node.now + timeout));
    pair.node.wait(timeout - Duration::from_millis(1));
    assert_eq!(pair.poll(0), None);
    pair.node.wait(Duration::from_millis(1));
    assert_eq!(pair.sent(), Some(Status::LocalUnreachableRemote));
}

#[test]
fn requests_fail_by_faults() {
    let mut config = config(0);
    config.faults = vec![
        "write:bad-status:2".parse().unwrap(),
        "send:lost:2".parse().unwrap(),
        "read:rnr:2".parse().unwrap(),
    ];
    let (timeout, delay) = (config.response_timeout, config.rnr_delay);
    let mut pair = Pair::new(config, QpKind::Srd);
    let range = (pair.mr.key, pair.mr.address, 4);
    for status in [Status::Ok, Status::RemoteBadStatus, Status::Ok, Status::RemoteBadStatus] {
        pair.post(&pair.request(1, Work::Write { remote: range, local: range }));
        assert_eq!(pair.sent(), Some(status));
    }
    pair.post_receive(1, 0, 4);
    pair.post(&pair.request(2, Work::Inline(&[])));
    assert_eq!(pair.sent(), Some(Status::Ok));
    pair.post(&pair.request(2, Work::Inline(&[])));
    assert_eq!(pair.poll(0), None);
    pair.node.wait(timeout);
    assert_eq!(pair.sent(), Some(Status::LocalUnresponsiveRemote));
    let read = Work::Read { remote: range, local: range };
    pair.post(&pair.request(3, read.clone()));
    assert_eq!(pair.sent(), Some(Status::Ok));
    pair.post(&pair.request(4, read));
    assert_eq!(pair.poll(0), None);
    pair.node.wait(delay);
    assert_eq!(pair.sent(), Some(Status::Ok));
}

#[test]
fn queue_pairs_in_error_flush() {
    let mut pair = srd();
    pair.post_receive(1, 0, 4);
    pair.post_receive(2, 0, 4);
    // One that waits for the receiver, and one that waits in the queue.
    let mut request = pair.request(3, Work::Inline(&[]));
    request.destination_qp = pair.qp[0].number;
    pair.post(&request);
    assert_eq!(pair.node.modify(&pair.qp[0], QpState::SendQueueDrained), AdminStatus::Success);
    pair.post(&pair.request(4, Work::Inline(&[])));
    assert_eq!(pair.poll(0), None);
    for qp in pair.qp {
        assert_eq!(pair.node.modify(&qp, QpState::Error), AdminStatus::Success);
    }
    let flushed = Status::Flushed;
    assert_eq!(pair.node.drain(&mut pair.cq[0]), [(3, flushed), (4, flushed)]);
    assert_eq!(pair.node.drain(&mut pair.cq[1]), [(1, flushed), (2, flushed)]);
    pair.post(&pair.request(5, Work::Inline(&[])));
    pair.post_receive(6, 0, 4);
    assert_eq!(pair.node.drain(&mut pair.cq[0]), [(5, flushed)]);
    assert_eq!(pair.node.drain(&mut pair.cq[1]), [(6, flushed)]);
    pair.node.wait(Duration::from_secs(10));
    assert_eq!(pair.poll(0), None);
}

#[test]
fn drained_queues_go_on_when_ready_again() {
    let mut pair = srd();
    pair.post_receive(1, 0, 4);
    assert_eq!(pair.node.modify(&pair.qp[0], QpState::SendQueueDrained), AdminStatus::Success);
    pair.post(&pair.request(1, Work::Inline(&[])));
    assert_eq!(pair.poll(0), None);
    assert_eq!(pair.node.modify(&pair.qp[0], QpState::ReadyToSend), AdminStatus::Success);
    assert_eq!(pair.sent(), Some(Status::Ok));
}

#[test]
fn events_come_once_armed() {
    let mut node = Node::new(config(0));
    let (uar, pd) = (node.uar(), node.pd());
    let base = node.allocate(PAGE);
    let command = CreateEq {
        depth: 4.into(),
        vector: 2,
        capabilities: 4,
        base: base.into(),
        events: 1.into(),
        ..CreateEq::default()
    };
    let eq = node.ok::<Number>(Opcode::CreateEq, command).number;
    let mut command = Node::create_cq(uar);
    command.capabilities_1 = CreateCqFlags1::INTERRUPT.bits();
    command.eq = eq;
    let mut cq = node.cq(command);
    let mut qp = node.qp(Node::create_qp(QpKind::Srd, pd, uar, &cq));
    node.ready(&qp);
    let request = Send::new(1, 0, 0, Work::Inline(&[]));
    let arm_eq = |node: &mut Node| node.write(Register::EventQueueDoorbell, u32::from(eq.get()) | ARM);
    let event = |node: &Node, place: u64| -> (u32, u16) {
        (
            node.load::<[u8; 4]>(base + place % 4 * 16)[0].into(),
            node.load::<[u8; 2]>(base + place % 4 * 16 + 8)[0].into(),
        )
    };

    arm_eq(&mut node);
    node.send(&mut qp, &request);
    assert_eq!(node.device.interrupts().0[2], 0, "the completion queue is not armed");
    node.drain(&mut cq);
    for round in 0..10u32 {
        // Armed before the completion, or after it.
        if round % 2 == 0 {
            node.ring_cq(&cq, true);
            node.send(&mut qp, &request);
        } else {
            node.send(&mut qp, &request);
            node.ring_cq(&cq, true);
        }
        assert_eq!(node.device.interrupts().0[2], round + 1);
        let phase = u32::from(round / 4 % 2 == 0);
        assert_eq!(event(&node, round.into()), (phase, cq.index));
        node.send(&mut qp, &request);
        assert_eq!(node.device.interrupts().0[2], round + 1, "one event each time it is armed");
        arm_eq(&mut node);
        assert_eq!(node.drain(&mut cq).len(), 2);
    }
    // An event while the event queue is not armed interrupts when it is.
    node.ring_cq(&cq, true);
    node.send(&mut qp, &request);
    node.drain(&mut cq);
    node.ring_cq(&cq, true);
    node.send(&mut qp, &request);
    assert_eq!(node.device.interrupts().0[2], 11);
    arm_eq(&mut node);
    assert_eq!(node.device.interrupts().0[2], 12);
}

#[test]
fn completion_queues_have_parts() {
    let mut config = config(0);
    config.limits.sub_cqs_per_cq = 2;
    let mut node = Node::new(config);
    let (uar, pd) = (node.uar(), node.pd());
    let mut command = Node::create_cq(uar);
    command.sub_cqs = 2.into();
    let mut cq = node.cq(command);
    let qps = [(); 2].map(|()| node.qp(Node::create_qp(QpKind::Srd, pd, uar, &cq)));
    for mut qp in qps {
        node.ready(&qp);
        let number = qp.number.into();
        node.send(&mut qp, &Send::new(number, 0, 0, Work::Inline(&[])));
    }
    // The first part has the first queue pair's completion only.
    assert_eq!(node.drain(&mut cq), [(qps[0].number.into(), Status::LocalInvalidAh)]);
}

#[test]
fn unknown_senders_are_named() {
    let mut pair = srd();
    let pd = pair.node.pd();
    let mr = pair.node.mr(pd, Permissions::all());
    let mut command = Node::create_cq(pair.uar);
    command.capabilities_2 |= CreateCqFlags2::SET_SOURCE_ADDRESS.bits();
    let mut cq = pair.node.cq(command);
    let mut qp = pair.node.qp(Node::create_qp(QpKind::Srd, pd, pair.uar, &cq));
    pair.node.ready(&qp);
    pair.node.receive(&mut qp, 1, &[(mr.key, mr.address, 10)]);
    pair.post(&Send::new(1, pair.ah, qp.number, Work::Inline(&[])));
    let detail = pair.node.poll(&mut cq).unwrap().receive.unwrap();
    assert_eq!((detail.ah.get(), detail.extension), (0xffff, pair.node.device.config().gid().0));
}

#[test]
fn memory_is_registered_fast() {
    let mut pair = srd();
    let allocate = AllocateMr { pd: pair.pd.into(), max_pages: 2.into(), ..AllocateMr::default() };
    let answer: AllocateMrAnswer = pair.node.ok(Opcode::AllocateMr, allocate);
    let key = answer.lkey.get() + 1;
    let (list, page) = (pair.node.allocate(PAGE), pair.node.allocate(2 * PAGE));
    pair.node.store(list, &(page + PAGE).to_le_bytes());
    pair.node.store(list + 8, &page.to_le_bytes());
    pair.node.store(page + PAGE, b"first");
    let mut register = FastRegister {
        lkey: key.into(),
        permissions: Permissions::REMOTE_READ.bits(),
        flags: 12 | 1 << 5,
        iova: 0x5000.into(),
        length: (2 * PAGE).into(),
        pages: list.into(),
        ..FastRegister::default()
    };
    let local = (pair.mr.key, pair.mr.address, 5);
    let read = Work::Read { remote: (key, 0x5000, 5), local };
    pair.post(&pair.request(1, read.clone()));
    assert_eq!(pair.sent(), Some(Status::RemoteBadAddress));
    pair.post(&pair.request(2, Work::Raw(FAST_REGISTER, register.as_bytes())));
    assert_eq!(pair.sent(), Some(Status::Ok));
    pair.post(&pair.request(3, read.clone()));
    assert_eq!(pair.sent(), Some(Status::Ok));
    assert_eq!(pair.node.get(&pair.mr, 0, 5), b"first");
    pair.post(&pair.request(4, Work::Raw(FAST_INVALIDATE, &key.to_le_bytes())));
    assert_eq!(pair.sent(), Some(Status::Ok));
    pair.post(&pair.request(5, read));
    assert_eq!(pair.sent(), Some(Status::RemoteBadAddress));
    register.length = (3 * PAGE).into();
    pair.post(&pair.request(6, Work::Raw(FAST_REGISTER, register.as_bytes())));
    assert_eq!(pair.sent(), Some(Status::LocalBadLength));
    let ordinary = pair.mr.key;
    pair.post(&pair.request(7, Work::Raw(FAST_INVALIDATE, &ordinary.to_le_bytes())));
    assert_eq!(pair.sent(), Some(Status::LocalInvalidLkey));
    assert_eq!(pair.node.status(Opcode::DeregisterMr, Lkey { lkey: key.into() }), AdminStatus::Success);
}

#[test]
fn devices_on_a_wire_reach_each_other() {
    let (mut nodes, mut sides) = wired([config(0), config(1)]);
    let remote = (sides[1].mr.key, sides[1].mr.address, 4);
    let peer = sides[1].qp.number;
    nodes[1].put(&sides[1].mr, 0, b"data");
    let range = (sides[1].mr.key, sides[1].mr.address + 100, 10);
    nodes[1].receive(&mut sides[1].qp, 4, &[range]);

    let Side { ah, mr, mut cq, mut qp } = sides.remove(0);
    let read = Work::Read { remote, local: (mr.key, mr.address, 4) };
    nodes[0].send(&mut qp, &Send::new(1, ah, peer, read.clone()));
    nodes[0].send(&mut qp, &Send::new(2, ah, peer, Work::Inline(b"over")));
    assert_eq!(nodes[0].poll(&mut cq), None, "the wire has not carried anything");
    exchange(&mut nodes);
    assert_eq!(nodes[0].drain(&mut cq), [(1, Status::Ok), (2, Status::Ok)]);
    assert_eq!(nodes[0].get(&mr, 0, 4), b"data");
    let received = nodes[1].poll(&mut sides[0].cq).unwrap().receive.unwrap();
    assert_eq!((received.ah.get(), received.source_qp.get()), (sides[0].ah, qp.number));
    assert_eq!(nodes[1].get(&sides[0].mr, 100, 4), b"over");

    // A region that is gone when the answer comes is not written to.
    nodes[0].send(&mut qp, &Send::new(3, ah, peer, read));
    let deregister = Lkey { lkey: mr.key.into() };
    assert_eq!(nodes[0].status(Opcode::DeregisterMr, deregister), AdminStatus::Success);
    exchange(&mut nodes);
    assert_eq!(nodes[0].drain(&mut cq), [(3, Status::LocalInvalidLkey)]);

    // The answer to a queue pair that has been reset goes nowhere.
    nodes[0].send(&mut qp, &Send::new(4, ah, peer, Work::Inline(b"x")));
    assert_eq!(nodes[0].modify(&qp, QpState::Reset), AdminStatus::Success);
    exchange(&mut nodes);
    nodes[0].wait(Duration::from_secs(10));
    assert!(nodes[0].drain(&mut cq).is_empty());
}
