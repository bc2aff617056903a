//! Queue pairs: capacities, states, attributes, paths.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use uverbs::{
    AccessFlags, AddressVector, CompletionQueue, Context, ErrorKind, Gid, GlobalRoute, IpFamily,
    ModifyQueuePair, Mtu, ProtectionDomain, QueuePair, QueuePairCapabilities, QueuePairState, QueuePairType,
};

use crate::common::{PORT, Setup, open, own_gid, pair, ready_to_receive, refused, wait_until};

crate::cases! {
    Shared vb_17_limits_are_named;
    Shared vb_17_capacities_granted_are_those_queried;
    Shared vb_17_inline_capacities;
    Shared states_from_reset_to_error_and_back;
    Shared attributes_round_trip;
    Shared wrong_attributes_are_named;
    Shared wrong_transitions_are_named;
    Shared vb_32_paths_that_cannot_be_are_explained;
    Shared vb_32_pairs_over_each_family;
    Shared numbers_differ;
}

const NONE: QueuePairCapabilities = QueuePairCapabilities {
    max_send_wr: 0,
    max_recv_wr: 0,
    max_send_sge: 0,
    max_recv_sge: 0,
    max_inline_data: 0,
};

struct Bench {
    context: Context,
    domain: ProtectionDomain,
    cq: CompletionQueue,
}

impl Bench {
    fn new() -> Self {
        let context = open();
        let domain = context.alloc_protection_domain().unwrap();
        let cq = context.create_completion_queue(16, None, 0).unwrap();
        Self { context, domain, cq }
    }

    fn create(&self, capabilities: QueuePairCapabilities) -> uverbs::Result<QueuePair> {
        self.domain.create_queue_pair(&Setup { capabilities, ..Setup::default() }.init(&self.cq))
    }

    fn qp(&self) -> QueuePair {
        self.create(QueuePairCapabilities::default()).unwrap()
    }
}

fn vb_17_limits_are_named() {
    let bench = Bench::new();
    let limits = bench.context.query_device().unwrap();
    let (wr, sge) = (limits.max_qp_wr, limits.max_sge);
    for (capabilities, name, asked, most) in [
        (QueuePairCapabilities { max_send_wr: wr + 1, ..NONE }, "max_send_wr", wr + 1, wr),
        (QueuePairCapabilities { max_recv_wr: u32::MAX, ..NONE }, "max_recv_wr", u32::MAX, wr),
        (QueuePairCapabilities { max_send_sge: sge + 1, ..NONE }, "max_send_sge", sge + 1, sge),
        (QueuePairCapabilities { max_recv_sge: 4000, ..NONE }, "max_recv_sge", 4000, sge),
    ] {
        let error = bench.create(capabilities).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let texts = ["create_qp", &*format!("{name} is {asked}"), &*format!("allows {most}")];
        refused(Err::<(), _>(error), Errno::EINVAL, &texts);
    }
    for inline in [513, 1 << 20] {
        let asked = QueuePairCapabilities { max_inline_data: inline, ..NONE };
        refused(bench.create(asked), Errno::EINVAL, &[&*format!("max_inline_data is {inline}")]);
    }
}

fn granted(qp: &QueuePair, asked: QueuePairCapabilities) -> QueuePairCapabilities {
    let got = qp.capabilities();
    for (got, asked) in [
        (got.max_send_wr, asked.max_send_wr),
        (got.max_recv_wr, asked.max_recv_wr),
        (got.max_send_sge, asked.max_send_sge),
        (got.max_recv_sge, asked.max_recv_sge),
        (got.max_inline_data, asked.max_inline_data),
    ] {
        assert!(got >= asked, "{got:?} of {asked:?}");
    }
    assert_eq!(qp.query().unwrap().capabilities, got);
    got
}

fn vb_17_capacities_granted_are_those_queried() {
    let bench = Bench::new();
    let most = bench.context.query_device().unwrap().max_sge;
    for number in [0, 1, 2, 3, 7, 8, 100, 1000] {
        let asked = QueuePairCapabilities {
            max_send_wr: number,
            max_recv_wr: number / 2,
            max_send_sge: (number / 3).min(most),
            max_recv_sge: (number / 4).min(most),
            max_inline_data: 0,
        };
        granted(&bench.create(asked).unwrap(), asked);
    }
    let asked = QueuePairCapabilities { max_send_sge: most, max_recv_sge: most, ..NONE };
    granted(&bench.create(asked).unwrap(), asked);
    let qp = bench.domain.create_queue_pair(&Setup::default().init(&bench.cq)).unwrap();
    assert!(!qp.query().unwrap().signal_all);
    let signal_all = Setup { signal_all: true, ..Setup::default() };
    let qp = bench.domain.create_queue_pair(&signal_all.init(&bench.cq)).unwrap();
    assert!(qp.query().unwrap().signal_all);
}

fn vb_17_inline_capacities() {
    let bench = Bench::new();
    for inline in [0, 1, 17, 220, 512] {
        let asked = QueuePairCapabilities { max_inline_data: inline, ..NONE };
        let got = granted(&bench.create(asked).unwrap(), asked);
        // Inline bytes and SGEs share the room in an element of the queue, 16 bytes each.
        assert!(got.max_inline_data < inline + 16, "{inline} asked, {} granted", got.max_inline_data);
    }
}

fn states_from_reset_to_error_and_back() {
    use QueuePairState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};
    let mut pair = pair();
    let context = open();
    let peer = pair.b.qp.qp_num();
    let qp = &mut pair.a.qp;
    assert_eq!((qp.kind(), qp.kind().to_string()), (QueuePairType::ReliableConnection, "RC".to_owned()));
    let setup = Setup::default();
    let in_state = |qp: &QueuePair, state: QueuePairState| {
        assert_eq!(qp.query().unwrap().state, state);
        assert!(format!("{qp:?}").contains(&format!("state: {state:?}")), "{qp:?}");
    };
    in_state(qp, ReadyToSend);
    qp.modify(&ModifyQueuePair::to(SendQueueDrained)).unwrap();
    in_state(qp, SendQueueDrained);
    // It goes on only from where nothing is under way.
    wait_until("drained", || !qp.query().unwrap().sq_draining);
    qp.modify(&ModifyQueuePair::to(ReadyToSend)).unwrap();
    in_state(qp, ReadyToSend);
    for _ in 0..2 {
        qp.modify(&ModifyQueuePair::to(Error)).unwrap();
        in_state(qp, Error);
        qp.modify(&ModifyQueuePair::to(Reset)).unwrap();
        in_state(qp, Reset);
        qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
        in_state(qp, Init);
        qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
        in_state(qp, Init);
        qp.modify(&ready_to_receive(&context, peer)).unwrap();
        in_state(qp, ReadyToReceive);
        qp.modify(&setup.ready_to_send()).unwrap();
        in_state(qp, ReadyToSend);
    }
    // Both ends start anew, and it works.
    qp.modify(&ModifyQueuePair::to(Reset)).unwrap();
    pair.b.qp.modify(&ModifyQueuePair::to(Reset)).unwrap();
    setup.connect(&context, &mut pair.a.qp, &mut pair.b.qp);
    pair.works();
}

fn attributes_round_trip() {
    let bench = Bench::new();
    let mut qp = bench.qp();
    let gid = own_gid(&bench.context);
    let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    qp.modify(&ModifyQueuePair::init(PORT, access)).unwrap();
    let at_init = qp.query().unwrap();
    assert_eq!((at_init.port, at_init.pkey_index, at_init.access_flags), (PORT, 0, access));

    let route = GlobalRoute {
        dgid: gid.gid,
        sgid_index: u8::try_from(gid.index).unwrap(),
        // What the kernel puts there, whatever it is given.
        hop_limit: 64,
        traffic_class: 0x20,
        flow_label: 0x12345,
    };
    let address = AddressVector { port: PORT, global_route: Some(route), ..AddressVector::default() };
    qp.modify(&ModifyQueuePair {
        max_dest_rd_atomic: Some(4),
        min_rnr_timer: Some(21),
        ..ModifyQueuePair::ready_to_receive(address, 0x1234, 0x00ab_cdef, Mtu::Bytes512)
    })
    .unwrap();
    let at_rtr = qp.query().unwrap();
    assert_eq!(at_rtr.address, address);
    assert_eq!((at_rtr.dest_qp_num, at_rtr.rq_psn), (0x1234, 0x00ab_cdef));
    assert_eq!(at_rtr.path_mtu, Some(Mtu::Bytes512));
    assert_eq!((at_rtr.max_dest_rd_atomic, at_rtr.min_rnr_timer), (4, 21));

    qp.modify(&ModifyQueuePair {
        timeout: Some(13),
        retry_count: Some(5),
        rnr_retry: Some(3),
        max_rd_atomic: Some(2),
        ..ModifyQueuePair::ready_to_send(0x0012_3456)
    })
    .unwrap();
    let at_rts = qp.query().unwrap();
    assert_eq!((at_rts.sq_psn, at_rts.timeout), (0x0012_3456, 13));
    assert_eq!((at_rts.retry_count, at_rts.rnr_retry, at_rts.max_rd_atomic), (5, 3, 2));
    assert!(!at_rts.sq_draining);

    // What is not named stays.
    let change = ModifyQueuePair { state: Some(QueuePairState::ReadyToSend), ..Default::default() };
    qp.modify(&ModifyQueuePair { access_flags: Some(AccessFlags::empty()), ..change }).unwrap();
    let mut expected = at_rts;
    expected.access_flags = AccessFlags::empty();
    assert_eq!(qp.query().unwrap(), expected);
}

fn wrong_attributes_are_named() {
    let bench = Bench::new();
    let mut qp = bench.qp();
    let init = ModifyQueuePair::init(PORT, AccessFlags::empty());
    let error = qp.modify(&ModifyQueuePair { pkey_index: None, ..init }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let texts = ["modify_qp", "RC RESET to INIT misses PKEY_INDEX"];
    refused(Err::<(), _>(error), Errno::EINVAL, &texts);
    let change = ModifyQueuePair { qkey: Some(1), port: None, ..init };
    refused(qp.modify(&change), Errno::EINVAL, &["misses PORT and does not take QKEY"]);
    refused(qp.modify(&ModifyQueuePair { port: Some(7), ..init }), Errno::EINVAL, &["out of range"]);
    assert_eq!(qp.query().unwrap().state, QueuePairState::Reset);

    qp.modify(&init).unwrap();
    let rtr = ready_to_receive(&bench.context, 17);
    let change = ModifyQueuePair { rq_psn: None, path_mtu: None, address: None, ..rtr };
    refused(qp.modify(&change), Errno::EINVAL, &["INIT to RTR misses AV, PATH_MTU, RQ_PSN"]);
    let change = ModifyQueuePair { sq_psn: Some(1), ..rtr };
    refused(qp.modify(&change), Errno::EINVAL, &["INIT to RTR does not take SQ_PSN"]);
    qp.modify(&rtr).unwrap();
    let rts = ModifyQueuePair::ready_to_send(0);
    let change = ModifyQueuePair { timeout: None, retry_count: None, rnr_retry: None, ..rts };
    refused(qp.modify(&change), Errno::EINVAL, &["RTR to RTS misses TIMEOUT, RETRY_CNT, RNR_RETRY"]);
    assert_eq!(qp.query().unwrap().state, QueuePairState::ReadyToReceive);
    qp.modify(&rts).unwrap();
}

fn wrong_transitions_are_named() {
    use QueuePairState::{Error, Init, ReadyToSend, Reset};
    let bench = Bench::new();
    let mut qp = bench.qp();
    let rts = ModifyQueuePair::ready_to_send(0);
    refused(qp.modify(&rts), Errno::EINVAL, &["RESET to RTS is no transition", "RESET, INIT"]);
    qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
    refused(qp.modify(&rts), Errno::EINVAL, &["INIT to RTS is no transition"]);
    qp.modify(&ready_to_receive(&bench.context, 17)).unwrap();
    qp.modify(&rts).unwrap();
    refused(qp.modify(&ModifyQueuePair::to(Init)), Errno::EINVAL, &["RTS to INIT is no transition"]);
    assert_eq!(qp.query().unwrap().state, ReadyToSend);
    qp.modify(&ModifyQueuePair::to(Error)).unwrap();
    refused(qp.modify(&rts), Errno::EINVAL, &["ERR to RTS is no transition", "RESET, ERR"]);
    qp.modify(&ModifyQueuePair::to(Reset)).unwrap();
    let assumed = ModifyQueuePair { current_state: Some(ReadyToSend), ..ModifyQueuePair::to(Error) };
    refused(qp.modify(&assumed), Errno::EINVAL, &["RESET to ERR is no transition"]);
}

fn vb_32_paths_that_cannot_be_are_explained() {
    let bench = Bench::new();
    let own = own_gid(&bench.context);
    assert_eq!(own.gid.family(), IpFamily::V4, "the device of the tests has an IPv4 address");
    let link_local = bench.context.routable_gid(PORT, Some(IpFamily::V6)).unwrap();
    let index = |entry: uverbs::GidEntry| u8::try_from(entry.index).unwrap();
    let mut qp = bench.qp();
    qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
    let mut to = |address: AddressVector| {
        qp.modify(&ModifyQueuePair::ready_to_receive(address, 17, 0, Mtu::Bytes1024))
    };
    let start = Instant::now();
    let empty = AddressVector::global(PORT, own.gid, 60);
    refused(to(empty), Errno::ENODATA, &["GID index 60 is empty"]);
    let mixed = AddressVector::global(PORT, own.gid, index(link_local));
    let texts = [&*own.gid.to_string(), &*format!("GID index {}", link_local.index), "address family"];
    refused(to(mixed), Errno::EINVAL, &texts);
    let no_route = AddressVector { port: PORT, ..AddressVector::default() };
    refused(to(no_route), Errno::EINVAL, &["no global route"]);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());

    // An address of the own network that nobody has.
    let mut nobody = own.gid.to_ipv4().unwrap().octets();
    nobody[3] = nobody[3].wrapping_add(100);
    let nobody = Gid::from(std::net::Ipv4Addr::from(nobody).to_ipv6_mapped());
    let error = to(AddressVector::global(PORT, nobody, index(own))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let text = format!("no neighbour answers for {nobody}");
    refused(Err::<(), _>(error), Errno::ETIMEDOUT, &[&text]);

    to(AddressVector::global(PORT, own.gid, index(own))).unwrap();
}

fn vb_32_pairs_over_each_family() {
    let context = open();
    for family in [IpFamily::V4, IpFamily::V6] {
        let Ok(gid) = context.routable_gid(PORT, Some(family)) else { continue };
        let setup = Setup::default();
        let (mut a, mut b) = (setup.end(&context), setup.end(&context));
        let peers = [b.qp.qp_num(), a.qp.qp_num()];
        for (qp, peer) in [&mut a.qp, &mut b.qp].into_iter().zip(peers) {
            let address = AddressVector::global(PORT, gid.gid, u8::try_from(gid.index).unwrap());
            qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty())).unwrap();
            qp.modify(&ModifyQueuePair::ready_to_receive(address, peer, 0, Mtu::Bytes1024)).unwrap();
            qp.modify(&setup.ready_to_send()).unwrap();
        }
        crate::common::Pair { a, b }.works();
    }
}

fn numbers_differ() {
    let bench = Bench::new();
    let qps: Vec<_> = (0..10).map(|_| bench.qp()).collect();
    let mut numbers: Vec<_> = qps.iter().map(QueuePair::qp_num).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 10);
    assert!(numbers.iter().all(|number| *number > 1 && *number < 1 << 24), "{numbers:?}");
}
