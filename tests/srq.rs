//! Shared receive queues.

use nix::errno::Errno;
use uverbs::{
    AccessFlags, CompletionQueue, Context, ErrorKind, MemoryRegion, ModifyQueuePair, PostReason,
    ProtectionDomain, QueuePair, QueuePairCapabilities, QueuePairInit, QueuePairState, ReceiveRequest,
    SharedReceiveQueue,
};

use crate::common::{
    Holdings, Setup, open, out_of_address_space, pattern, poll_for, poll_for_none, refused, succeeded,
    wait_until,
};
use crate::soft::SoftDevice;

crate::cases! {
    Shared vb_18_a_queue_pair_with_an_srq_ignores_its_receive_capacities;
    Shared vb_18_an_srq_in_use_is_busy;
    Shared vb_12_receives_are_posted_to_the_srq_alone;
    Shared messages_of_several_queue_pairs_arrive_in_one_srq;
    Shared vb_10_exactly_what_was_granted_fits;
    Shared vb_17_limits_are_named;
    Shared what_is_posted_survives_resizing;
    Shared resizing_is_refused_below_what_is_posted;
    Shared the_limit_is_queried_and_disarms_itself;
    Shared any_order_of_dropping;
    KernelAlone resizing_without_address_space_loses_nothing;
    Alone what_is_made_is_given_back;
}

/// An SRQ with memory of its domain, whose receives complete in a CQ.
struct Shared {
    context: Context,
    domain: ProtectionDomain,
    memory: MemoryRegion,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
}

impl Shared {
    fn new(max_wr: u32, max_sge: u32) -> Self {
        Self::in_context(open(), max_wr, max_sge)
    }

    fn in_context(context: Context, max_wr: u32, max_sge: u32) -> Self {
        let domain = context.alloc_protection_domain().unwrap();
        let memory = domain.allocate(1 << 16, AccessFlags::LOCAL_WRITE).unwrap();
        let cq = context.create_completion_queue(256, None, 0).unwrap();
        let srq = domain.create_shared_receive_queue(max_wr, max_sge).unwrap();
        Self { context, domain, memory, cq, srq }
    }

    fn init(&self) -> QueuePairInit<'_> {
        QueuePairInit { shared_receive_queue: Some(&self.srq), ..Setup::default().init(&self.cq) }
    }

    /// A QP on the SRQ, and an end that sends to it.
    fn sender(&self) -> (QueuePair, crate::common::End) {
        let setup = Setup::default();
        let mut qp = self.domain.create_queue_pair(&self.init()).unwrap();
        let mut sender = setup.end(&self.context);
        setup.connect(&self.context, &mut sender.qp, &mut qp);
        (qp, sender)
    }

    fn post(&mut self, wr_ids: std::ops::Range<u64>) {
        for wr_id in wr_ids {
            self.srq.post_receive(&[ReceiveRequest::new(wr_id, &[])]).unwrap();
        }
    }
}

fn vb_18_a_queue_pair_with_an_srq_ignores_its_receive_capacities() {
    let mut shared = Shared::new(10, 2);
    let capabilities = QueuePairCapabilities {
        max_recv_wr: 0x7fff_ffff,
        max_recv_sge: u32::MAX,
        ..Setup::default().capabilities
    };
    let init = QueuePairInit { capabilities, ..shared.init() };
    let qp = shared.domain.create_queue_pair(&init).unwrap();
    let granted = qp.capabilities();
    assert_eq!((granted.max_recv_wr, granted.max_recv_sge), (0, 0));
    assert_eq!(qp.shared_receive_queue_id(), Some(shared.srq.id()));
    drop(qp);
    // The SRQ reaches the kernel: a message takes a receive of it.
    let (qp, mut sender) = shared.sender();
    shared.post(7..8);
    sender.send_nothing(1).unwrap();
    let arrived = poll_for(&mut shared.cq, 1);
    assert_eq!(succeeded(&arrived), [7]);
    assert_eq!(arrived[0].qp_num(), qp.qp_num());
}

fn vb_18_an_srq_in_use_is_busy() {
    let shared = Shared::new(4, 1);
    let init = shared.init();
    let qp = shared.domain.create_queue_pair(&init).unwrap();
    let Shared { context, domain, memory, cq, srq } = shared;
    let error = srq.destroy().unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::Busy);
    refused(Err::<(), _>(error.error().clone()), Errno::EBUSY, &["destroy_srq", "in use 1 times"]);
    let srq = error.into_inner();
    drop(memory);
    let domain = domain.destroy().unwrap_err().into_inner();
    let cq = cq.destroy().unwrap_err().into_inner();
    qp.destroy().unwrap();
    srq.destroy().unwrap();
    cq.destroy().unwrap();
    domain.destroy().unwrap();
    context.close().unwrap();
}

fn vb_12_receives_are_posted_to_the_srq_alone() {
    let mut shared = Shared::new(4, 2);
    let (mut qp, mut sender) = shared.sender();
    let receive = ReceiveRequest::new(1, &[]);
    let error = qp.post_receive(&[receive, receive]).unwrap_err();
    assert_eq!((error.index, error.reason), (0, PostReason::SharedReceiveQueue));
    refused(Err::<(), _>(error), Errno::EINVAL, &["shared receive queue"]);
    // So it is in the error state.
    qp.modify(&ModifyQueuePair::to(QueuePairState::Error)).unwrap();
    assert_eq!(qp.post_receive(&[receive]).unwrap_err().reason, PostReason::SharedReceiveQueue);
    poll_for_none(&mut shared.cq);
    // Another QP of the SRQ is not affected.
    drop((qp, sender));
    let qp;
    (qp, sender) = shared.sender();
    let sge = shared.memory.sge(0..8);
    let error = shared.srq.post_receive(&[receive, ReceiveRequest::new(2, &[sge; 3])]).unwrap_err();
    assert_eq!((error.index, error.reason), (1, PostReason::TooManySges { given: 3, most: 2 }));
    sender.send_nothing(1).unwrap();
    assert_eq!(succeeded(&poll_for(&mut shared.cq, 1)), [1]);
    drop(qp);
    // No SRQ of another context.
    let other = Setup::default().end(&open());
    let init = QueuePairInit { shared_receive_queue: Some(&shared.srq), ..Setup::default().init(&other.cq) };
    let domain = other.memory.protection_domain();
    refused(domain.create_queue_pair(&init), Errno::EINVAL, &["shared receive queue", "another context"]);
}

fn messages_of_several_queue_pairs_arrive_in_one_srq() {
    const SENDERS: usize = 3;
    const ROUNDS: usize = 40;
    const SIZE: usize = 200;
    let mut shared = Shared::new(8, 2);
    let mut senders: Vec<_> = (0..SENDERS).map(|_| shared.sender()).collect();
    let numbers: Vec<_> = senders.iter().map(|(qp, _)| qp.qp_num()).collect();
    for round in 0..ROUNDS {
        for wr_id in 0..SENDERS {
            // In two pieces, the second first.
            let start = wr_id * SIZE;
            let sges = [shared.memory.sge(start + 150..start + SIZE), shared.memory.sge(start..start + 150)];
            shared.srq.post_receive(&[ReceiveRequest::new(wr_id as u64, &sges)]).unwrap();
        }
        for (place, (_, sender)) in senders.iter_mut().enumerate() {
            sender.memory.write(0, &pattern(round * SENDERS + place, SIZE));
            sender.send(place as u64, 0..SIZE);
        }
        let arrived = poll_for(&mut shared.cq, SENDERS);
        let mut seen = Vec::new();
        for completion in &arrived {
            let place = numbers.iter().position(|number| *number == completion.qp_num()).unwrap();
            assert_eq!(completion.success().unwrap().byte_len() as usize, SIZE);
            let mut bytes = vec![0; SIZE];
            shared.memory.read(completion.wr_id() as usize * SIZE, &mut bytes);
            bytes.rotate_left(150);
            assert_eq!(bytes, pattern(round * SENDERS + place, SIZE), "round {round}");
            seen.push((completion.wr_id(), place));
        }
        // Each receive is taken once, by another QP.
        seen.sort_unstable();
        assert!(seen.iter().map(|(wr_id, _)| *wr_id).eq(0..SENDERS as u64));
        seen.sort_by_key(|(_, place)| *place);
        assert!(seen.iter().map(|(_, place)| *place).eq(0..SENDERS));
        for (_, sender) in &mut senders {
            succeeded(&poll_for(&mut sender.cq, 1));
        }
    }
}

fn vb_10_exactly_what_was_granted_fits() {
    for asked in [1, 2, 3, 7, 8, 15] {
        let mut shared = Shared::new(asked, 1);
        let granted = shared.srq.max_wr();
        assert!(granted >= asked, "{granted} of {asked}");
        assert_eq!(shared.srq.query().unwrap().max_wr, granted);
        let (_qp, mut sender) = shared.sender();
        // From every place of the ring on.
        for start in 0..u64::from(granted) + 2 {
            let list: Vec<_> = (0..40).map(|number| ReceiveRequest::new(start * 100 + number, &[])).collect();
            let error = shared.srq.post_receive(&list).unwrap_err();
            assert_eq!((error.index, error.reason), (granted as usize, PostReason::QueueFull));
            assert_eq!(error.errno(), Errno::ENOMEM as i32);
            for _ in 0..granted {
                sender.send_nothing(0).unwrap();
            }
            let arrived = succeeded(&poll_for(&mut shared.cq, granted as usize));
            assert!(arrived.into_iter().eq(start * 100..start * 100 + u64::from(granted)));
            shared.post(5..6);
            sender.send_nothing(0).unwrap();
            assert_eq!(succeeded(&poll_for(&mut shared.cq, 1)), [5]);
        }
    }
}

fn vb_17_limits_are_named() {
    let context = open();
    let limits = context.query_device().unwrap();
    let domain = context.alloc_protection_domain().unwrap();
    let (wr, sge) = (limits.max_srq_wr, limits.max_srq_sge);
    let create = |wr, sge| domain.create_shared_receive_queue(wr, sge);
    refused(create(0, 1), Errno::EINVAL, &["create_srq", "zero receives"]);
    for more in [wr + 1, u32::MAX] {
        refused(create(more, 1), Errno::EINVAL, &[&format!("{more} receives"), &format!("allows {wr}")]);
    }
    let texts = [&*format!("{} SGEs", sge + 1), &*format!("allows {sge}")];
    refused(create(4, sge + 1), Errno::EINVAL, &texts);
    let mut srq = create(4, sge).unwrap();
    assert_eq!(srq.max_sge(), sge);
    // No SGE at all is granted one at least.
    assert!(create(4, 0).unwrap().max_sge() >= 1);
    refused(
        srq.set_limit(u32::MAX),
        Errno::EINVAL,
        &["modify_srq", &format!("the queue holds {}", srq.max_wr())],
    );
    refused(srq.resize(0), Errno::EINVAL, &["modify_srq", "zero receives"]);
    refused(srq.resize(wr + 1), Errno::EINVAL, &[&format!("allows {wr}")]);
    srq.resize(30).unwrap();
    srq.set_limit(20).unwrap();
    refused(srq.resize(10), Errno::EINVAL, &["10 receives", "limit is 20"]);
    let found = srq.query().unwrap();
    assert_eq!((found.max_wr, found.max_sge, found.limit), (31, sge, 20));
}

fn what_is_posted_survives_resizing() {
    let mut shared = Shared::new(7, 2);
    let (_qp, mut sender) = shared.sender();
    let mut next = 0;
    for (round, size) in [20, 7, 100, 1000, 7, 60, 8].into_iter().enumerate() {
        for wr_id in next..next + 5 {
            let start = wr_id as usize * 64;
            let sges = [shared.memory.sge(start..start + 40), shared.memory.sge(start + 40..start + 64)];
            shared.srq.post_receive(&[ReceiveRequest::new(wr_id, &sges)]).unwrap();
        }
        shared.srq.resize(size).unwrap();
        assert!(shared.srq.max_wr() >= size, "{} of {size}", shared.srq.max_wr());
        assert_eq!(shared.srq.query().unwrap().max_wr, shared.srq.max_wr());
        for wr_id in next..next + 5 {
            sender.memory.write(0, &pattern(wr_id as usize, 64));
            sender.send(wr_id, 0..64);
            assert_eq!(succeeded(&poll_for(&mut shared.cq, 1)), [wr_id], "round {round}");
            let mut bytes = [0; 64];
            shared.memory.read(wr_id as usize * 64, &mut bytes);
            assert_eq!(&bytes[..], pattern(wr_id as usize, 64));
            succeeded(&poll_for(&mut sender.cq, 1));
        }
        next += 5;
    }
}

fn resizing_is_refused_below_what_is_posted() {
    let mut shared = Shared::new(15, 1);
    let (_qp, mut sender) = shared.sender();
    shared.post(0..10);
    refused(shared.srq.resize(3), Errno::EINVAL, &["modify_srq", "more than 3 receives"]);
    // Nothing has changed.
    assert_eq!((shared.srq.max_wr(), shared.srq.query().unwrap().max_wr), (15, 15));
    shared.post(10..15);
    let full = shared.srq.post_receive(&[ReceiveRequest::new(15, &[])]).unwrap_err();
    assert_eq!(full.reason, PostReason::QueueFull);
    for _ in 0..15 {
        sender.send_nothing(0).unwrap();
    }
    assert!(succeeded(&poll_for(&mut shared.cq, 15)).into_iter().eq(0..15));
}

fn the_limit_is_queried_and_disarms_itself() {
    let mut shared = Shared::new(15, 1);
    let (_qp, mut sender) = shared.sender();
    shared.post(0..8);
    assert_eq!(shared.srq.query().unwrap().limit, 0);
    shared.srq.set_limit(6).unwrap();
    assert_eq!(shared.srq.query().unwrap().limit, 6);
    for left in [7, 6] {
        sender.send_nothing(0).unwrap();
        succeeded(&poll_for(&mut shared.cq, 1));
        assert_eq!(shared.srq.query().unwrap().limit, 6, "{left} left");
    }
    sender.send_nothing(0).unwrap();
    wait_until("the limit reached", || shared.srq.query().unwrap().limit == 0);
    // Growing does not bring it back.
    shared.srq.resize(40).unwrap();
    assert_eq!(shared.srq.query().unwrap().limit, 0);
}

fn any_order_of_dropping() {
    // The SRQ goes first: its QP still takes what was posted.
    let mut shared = Shared::new(4, 1);
    let (qp, mut sender) = shared.sender();
    shared.post(0..2);
    let Shared { context, domain, memory, mut cq, srq } = shared;
    drop((srq, domain, memory));
    sender.send_nothing(0).unwrap();
    assert_eq!(succeeded(&poll_for(&mut cq, 1)), [0]);
    drop((cq, qp, context));
}

fn resizing_without_address_space_loses_nothing() {
    let mut shared = Shared::new(7, 1);
    let (_qp, mut sender) = shared.sender();
    shared.post(0..5);
    let error = out_of_address_space(|| shared.srq.resize(1 << 15)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfResources, "{error}");
    // Nothing is posted into the ring that the kernel has left.
    let full = shared.srq.post_receive(&[ReceiveRequest::new(9, &[])]).unwrap_err();
    assert_eq!(full.reason, PostReason::QueueFull);
    sender.send_nothing(0).unwrap();
    assert_eq!(succeeded(&poll_for(&mut shared.cq, 1)), [0]);
    shared.srq.resize(20).unwrap();
    shared.post(5..8);
    for _ in 1..8 {
        sender.send_nothing(0).unwrap();
    }
    assert!(succeeded(&poll_for(&mut shared.cq, 7)).into_iter().eq(1..8));
}

fn what_is_made_is_given_back() {
    let soft = SoftDevice::new();
    let mut before = None;
    for round in 0..30 {
        {
            let mut shared = Shared::in_context(soft.device().open().unwrap(), 7, 3);
            let (qp, sender) = shared.sender();
            for size in [100, 10, 3000] {
                shared.post(0..2);
                shared.srq.resize(size).unwrap();
                shared.srq.resize(1).unwrap_err();
            }
            if round % 2 == 0 {
                drop(shared);
                drop(qp);
            } else {
                qp.destroy().unwrap();
                shared.srq.destroy().unwrap();
            }
            drop(sender);
        }
        let now = (Holdings::of_this_process(), soft.resources());
        match &before {
            Some(before) if round > 1 => assert_eq!(now, *before, "round {round}"),
            _ => before = Some(now),
        }
    }
}
