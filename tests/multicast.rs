//! Multicast datagrams.

use std::net::{Ipv4Addr, UdpSocket};

use nix::errno::Errno;
use uverbs::{
    AccessFlags, AddressHandle, AddressVector, CompletionQueue, Context, DatagramHeader, Destination,
    ErrorKind, Gid, MemoryRegion, ModifyQueuePair, ProtectionDomain, QueuePair, QueuePairCapabilities,
    QueuePairInit, ReceiveRequest, SendRequest,
};

use crate::common::{
    PORT, Setup, device_is_soft, open, own_gid, pattern, poll_for, poll_for_none, refused, succeeded,
};
use crate::soft::SoftDevice;

crate::cases! {
    Shared every_queue_pair_in_the_group_gets_it;
    Shared an_answer_finds_its_way_back;
    Shared what_is_no_group_is_refused;
    Alone groups_are_left_when_queue_pairs_go;
}

const QKEY: u32 = 0x2345;
const EVERYONE: u32 = 0xff_ffff;
const LENGTH: usize = 100;

/// A group of a test's own.
fn group(number: u8) -> (Ipv4Addr, Gid) {
    let address = Ipv4Addr::new(239, 7, 7, number);
    (address, address.to_ipv6_mapped().into())
}

struct Members {
    context: Context,
    domain: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl Members {
    fn new(context: Context) -> Self {
        let domain = context.alloc_protection_domain().unwrap();
        let cq = context.create_completion_queue(16, None, 0).unwrap();
        let memory = domain.allocate(1 << 14, AccessFlags::LOCAL_WRITE).unwrap();
        Self { context, domain, cq, memory }
    }

    fn queue_pair(&self) -> QueuePair {
        let capabilities = QueuePairCapabilities { max_send_wr: 4, max_recv_wr: 4, ..Default::default() };
        let init = QueuePairInit { capabilities, ..QueuePairInit::unreliable_datagram(&self.cq) };
        let mut qp = self.domain.create_queue_pair(&init).unwrap();
        qp.modify(&ModifyQueuePair::datagram_init(PORT, QKEY)).unwrap();
        qp.modify(&ModifyQueuePair::datagram_ready_to_receive()).unwrap();
        qp.modify(&ModifyQueuePair::datagram_ready_to_send(0)).unwrap();
        qp
    }

    fn address(&self, group: Gid) -> AddressHandle {
        let gid = own_gid(&self.context);
        let vector = AddressVector::global(PORT, group, gid.index as u8);
        self.domain.create_address_handle(&vector).unwrap()
    }

    /// Posts a receive into a place of its own.
    fn receive(&self, qp: &mut QueuePair, wr_id: u64) {
        let start = wr_id as usize * 1024;
        qp.post_receive(&[ReceiveRequest::new(wr_id, &[self.memory.sge(start..start + 1024)])]).unwrap();
    }

    /// What has arrived for that receive.
    fn arrived(&self, wr_id: u64) -> (DatagramHeader, Vec<u8>) {
        let mut bytes = vec![0; DatagramHeader::LENGTH + LENGTH];
        self.memory.read(wr_id as usize * 1024, &mut bytes);
        let (header, payload) = bytes.split_first_chunk().unwrap();
        (DatagramHeader::parse(header).expect("a header"), payload.to_vec())
    }
}

/// Joins the IP group on the interface that has this address, so that the network leads its datagrams here.
fn join(group: Ipv4Addr, context: &Context) -> Option<UdpSocket> {
    if device_is_soft() {
        // There is no network.
        return None;
    }
    let interface = own_gid(context).gid.to_ipv4().expect("an IPv4 address");
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.join_multicast_v4(&group, &interface).unwrap();
    Some(socket)
}

fn every_queue_pair_in_the_group_gets_it() {
    let mut members = Members::new(open());
    let (address, gid) = group(1);
    let _joined = join(address, &members.context);
    let (mut sender, mut one, mut other, mut outsider) =
        (members.queue_pair(), members.queue_pair(), members.queue_pair(), members.queue_pair());
    for qp in [&mut one, &mut other] {
        qp.attach_multicast(gid, 0).unwrap();
        // Once is enough.
        qp.attach_multicast(gid, 0).unwrap();
    }
    for (wr_id, qp) in [&mut one, &mut other, &mut outsider].into_iter().enumerate() {
        members.receive(qp, wr_id as u64);
    }
    let handle = members.address(gid);
    let to = Destination { address: &handle, qp_num: EVERYONE, qkey: QKEY };
    members.memory.write(8192, &pattern(5, LENGTH));
    let sges = [members.memory.sge(8192..8192 + LENGTH)];
    let request = SendRequest::send(9, &sges).to(to);
    sender.post_send_list(&[request]).unwrap();
    let mut seen = succeeded(&poll_for(&mut members.cq, 2));
    seen.sort_unstable();
    assert_eq!(seen, [0, 1]);
    let own = own_gid(&members.context).gid;
    for wr_id in 0..2 {
        let (header, payload) = members.arrived(wr_id);
        assert_eq!((header.source, header.destination), (own, gid));
        assert!(header.destination.is_multicast() && !header.source.is_multicast());
        assert_eq!(payload, pattern(5, LENGTH));
    }
    poll_for_none(&mut members.cq);

    // One leaves.
    one.detach_multicast(gid, 0).unwrap();
    refused(one.detach_multicast(gid, 0), Errno::EINVAL, &["detach_mcast", "not attached", "239.7.7.1"]);
    members.receive(&mut one, 3);
    members.receive(&mut other, 4);
    sender.post_send_list(&[request]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut members.cq, 1)), [4]);
    poll_for_none(&mut members.cq);
    one.destroy().unwrap();
    let error = other.destroy().unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::Busy);
    let mut other = error.into_inner();
    other.detach_multicast(gid, 0).unwrap();
    other.destroy().unwrap();
}

fn an_answer_finds_its_way_back() {
    let mut members = Members::new(open());
    let (mut sender, mut receiver) = (members.queue_pair(), members.queue_pair());
    members.receive(&mut receiver, 0);
    members.receive(&mut sender, 1);
    let gid = own_gid(&members.context);
    let handle = members.address(gid.gid);
    members.memory.write(8192, &pattern(6, LENGTH));
    let sges = [members.memory.sge(8192..8192 + LENGTH)];
    let to = Destination { address: &handle, qp_num: receiver.qp_num(), qkey: QKEY };
    sender.post_send_list(&[SendRequest::send(8, &sges).to(to)]).unwrap();
    let arrived = poll_for(&mut members.cq, 1);
    let (header, _) = members.arrived(0);
    assert_eq!((header.source, header.destination), (gid.gid, gid.gid));
    let vector = header.reply(PORT, gid.index as u8);
    let back = members.domain.create_address_handle(&vector).unwrap();
    let qp_num = arrived[0].success().unwrap().source_qp();
    let to = Destination { address: &back, qp_num, qkey: QKEY };
    receiver.post_send_list(&[SendRequest::send(8, &sges).to(to)]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut members.cq, 1)), [1]);
    assert_eq!(members.arrived(1).1, pattern(6, LENGTH));
}

fn what_is_no_group_is_refused() {
    let members = Members::new(open());
    let mut qp = members.queue_pair();
    for gid in ["fd00::1", "::ffff:10.0.0.1"] {
        let texts = ["attach_mcast", gid, "no multicast group"];
        refused(qp.attach_multicast(gid.parse().unwrap(), 0), Errno::EINVAL, &texts);
    }
    let mut end = Setup::default().end(&members.context);
    let text = "the QP is of type RC, not UD";
    refused(end.qp.attach_multicast(group(2).1, 0), Errno::EINVAL, &["attach_mcast", text]);
    qp.destroy().unwrap();
}

fn groups_are_left_when_queue_pairs_go() {
    let soft = SoftDevice::new();
    let members = Members::new(soft.device().open().unwrap());
    let before = soft.resources();
    for _ in 0..100 {
        let mut qp = members.queue_pair();
        for number in 3..6 {
            qp.attach_multicast(group(number).1, 0).unwrap();
        }
        qp.detach_multicast(group(4).1, 0).unwrap();
        drop(qp);
        assert_eq!(soft.resources(), before);
    }
}
