//! Unreliable datagrams on a device that has connections too.

use nix::errno::Errno;
use uverbs::{
    AccessFlags, AddressVector, Destination, ModifyQueuePair, PostReason, ProtectionDomain, QueuePair,
    QueuePairCapabilities, QueuePairInit, ReceiveRequest, RemoteMemory, SendRequest,
};

use crate::common::{
    DEADLINE, PORT, open, own_address, own_gid, poll_for, poll_for_none, refused, succeeded,
};

crate::cases! {
    Shared datagrams_arrive_behind_their_header;
    Shared sp_3_datagrams_through_a_shared_receive_queue;
    Shared only_datagrams_have_destinations;
    Shared no_neighbour_no_address_handle;
}

const QKEY: u32 = 0x1234;
const HEADER: usize = 40;

/// A QP that sends and receives.
fn ready(domain: &ProtectionDomain, init: &QueuePairInit<'_>) -> QueuePair {
    let mut qp = domain.create_queue_pair(init).unwrap();
    qp.modify(&ModifyQueuePair::datagram_init(PORT, QKEY)).unwrap();
    qp.modify(&ModifyQueuePair::datagram_ready_to_receive()).unwrap();
    qp.modify(&ModifyQueuePair::datagram_ready_to_send(0)).unwrap();
    qp
}

fn datagrams_arrive_behind_their_header() {
    let context = open();
    let domain = context.alloc_protection_domain().unwrap();
    let address = domain.create_address_handle(&own_address(&context)).unwrap();
    let mut cq = context.create_completion_queue(16, None, 0).unwrap();
    let capabilities = QueuePairCapabilities {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_inline_data: 32,
        ..QueuePairCapabilities::default()
    };
    let mut qps = [(); 2]
        .map(|()| ready(&domain, &QueuePairInit { capabilities, ..QueuePairInit::unreliable_datagram(&cq) }));
    let mut region = domain.allocate(4096, AccessFlags::LOCAL_WRITE).unwrap();
    region.write(0, b"from a region");
    let [sender, receiver] = &mut qps;
    let to = Destination { address: &address, qp_num: receiver.qp_num(), qkey: QKEY };
    let sges = [region.sge(0..13)];
    let parts: [&[u8]; 2] = [b"from ", b"anywhere"];
    let requests = [SendRequest::send(1, &sges).immediate(9), SendRequest::send_inline(2, &parts)];
    for request in requests.map(|request| request.to(to)) {
        let landing = region.sge(1024..2048);
        receiver.post_receive(&[ReceiveRequest::new(request.wr_id, &[landing])]).unwrap();
        sender.post_send_list(&[request]).unwrap();
        let arrived = poll_for(&mut cq, 1);
        assert_eq!(succeeded(&arrived), [request.wr_id]);
        let success = arrived[0].success().unwrap();
        assert_eq!(success.byte_len() as usize, HEADER + 13);
        assert!(success.has_global_route());
        assert_eq!(success.source_qp(), sender.qp_num());
        assert_eq!(success.immediate(), (request.wr_id == 1).then_some(9));
        let mut bytes = [0; 13];
        region.read(1024 + HEADER, &mut bytes);
        assert_eq!(&bytes, if request.wr_id == 1 { b"from a region" } else { b"from anywhere" });
    }
    // Another key, and it is dropped.
    receiver.post_receive(&[ReceiveRequest::new(3, &[region.sge(1024..2048)])]).unwrap();
    let request = SendRequest::send(3, &sges).to(Destination { qkey: QKEY + 1, ..to });
    sender.post_send_list(&[request]).unwrap();
    poll_for_none(&mut cq);
    address.destroy().unwrap();
}

fn sp_3_datagrams_through_a_shared_receive_queue() {
    let context = open();
    let domain = context.alloc_protection_domain().unwrap();
    let address = domain.create_address_handle(&own_address(&context)).unwrap();
    let mut cq = context.create_completion_queue(16, None, 0).unwrap();
    let mut srq = domain.create_shared_receive_queue(8, 1).unwrap();
    let capabilities = QueuePairCapabilities { max_inline_data: 32, ..QueuePairCapabilities::default() };
    let init = QueuePairInit { capabilities, ..QueuePairInit::unreliable_datagram(&cq) };
    let shared = QueuePairInit { shared_receive_queue: Some(&srq), ..init };
    let mut senders = [(); 2].map(|()| ready(&domain, &init));
    let receivers = [(); 2].map(|()| ready(&domain, &shared));
    let memory = domain.allocate(4096, AccessFlags::LOCAL_WRITE).unwrap();
    for (number, (from, into)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
        srq.post_receive(&[ReceiveRequest::new(number as u64, &[memory.sge(0..1000)])]).unwrap();
        let to = Destination { address: &address, qp_num: receivers[into].qp_num(), qkey: QKEY };
        let request = SendRequest::send_inline(9, &[b"shared"]).immediate(number as u32);
        senders[from].post_send_list(&[request.to(to)]).unwrap();
        let arrived = poll_for(&mut cq, 1)[0];
        let success = arrived.success().unwrap();
        assert_eq!((arrived.wr_id(), arrived.qp_num()), (number as u64, receivers[into].qp_num()));
        assert_eq!((success.source_qp(), success.has_global_route()), (senders[from].qp_num(), true));
        assert_eq!((success.byte_len() as usize, success.immediate()), (HEADER + 6, Some(number as u32)));
        let mut bytes = [0; 6];
        memory.read(HEADER, &mut bytes);
        assert_eq!(&bytes, b"shared");
    }
}

fn only_datagrams_have_destinations() {
    let context = open();
    let domain = context.alloc_protection_domain().unwrap();
    let address = domain.create_address_handle(&own_address(&context)).unwrap();
    let to = Destination { address: &address, qp_num: 1, qkey: QKEY };
    let mut a = crate::common::pair().a;
    let region = domain.allocate(64, AccessFlags::LOCAL_WRITE).unwrap();
    let sges = [region.sge(0..8)];
    let request = SendRequest::send(1, &sges);
    assert_eq!(a.qp.post_send_list(&[request.to(to)]).unwrap_err().reason, PostReason::Connected);

    let cq = context.create_completion_queue(4, None, 0).unwrap();
    let mut qp = domain.create_queue_pair(&QueuePairInit::unreliable_datagram(&cq)).unwrap();
    let change = ModifyQueuePair::init(PORT, AccessFlags::empty());
    refused(qp.modify(&change), Errno::EINVAL, &["UD RESET to INIT misses QKEY"]);
    qp.modify(&ModifyQueuePair::datagram_init(PORT, QKEY)).unwrap();
    qp.modify(&ModifyQueuePair::datagram_ready_to_receive()).unwrap();
    qp.modify(&ModifyQueuePair::datagram_ready_to_send(0)).unwrap();
    assert_eq!(qp.post_send_list(&[request]).unwrap_err().reason, PostReason::NoDestination);
    let remote = RemoteMemory { address: 0, rkey: 0 };
    let write = SendRequest::rdma_write(1, &sges, remote).to(to);
    assert_eq!(qp.post_send_list(&[write]).unwrap_err().reason, PostReason::NoSuchOperation);
    refused(
        domain.create_queue_pair(&QueuePairInit::scalable_reliable_datagram(&cq)),
        Errno::EOPNOTSUPP,
        &["type SRD"],
    );
}

fn no_neighbour_no_address_handle() {
    let context = open();
    let domain = context.alloc_protection_domain().unwrap();
    let gid = own_gid(&context);
    let started = std::time::Instant::now();
    let nobody = AddressVector::global(PORT, "::ffff:192.168.77.9".parse().unwrap(), gid.index as u8);
    refused(domain.create_address_handle(&nobody), Errno::ETIMEDOUT, &["no neighbour", "192.168.77.9"]);
    assert!(started.elapsed() < DEADLINE);
    let no_route = AddressVector { port: PORT, ..AddressVector::default() };
    refused(domain.create_address_handle(&no_route), Errno::EINVAL, &["global route"]);
}
