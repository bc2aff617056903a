//! Commands: what they answer when they are right and when they are not.

use uverbs_efa_model::admin::abi::{
    AllocateMr, AllocateMrAnswer, CommandFlags, ControlBuffer, CreateAh, CreateCounter, CreateCq,
    CreateCqFlags1, CreateCqFlags2, CreateEq, CreateQp, CreateQpFlags, DestroyAh, DeviceAttributes,
    EventGroups, EventQueueAttributes, FeatureCommand, GetStatistics, HardwareHints, Lkey, ModifyQp,
    ModifyQpMask, NetworkAttributes, Number, PHYSICAL_MODE, QpHandle, QueueAttributes1, QueueAttributes2,
    RegisterMr, RegisterMrAnswer,
};
use uverbs_efa_model::admin::{Feature, Opcode, QpKind, QpState, Status};
use uverbs_efa_model::config::Capabilities;
use uverbs_efa_model::io::Permissions;
use uverbs_efa_model::registers::Register;
use zerocopy::IntoBytes;

use crate::rig::{Node, PAGE, config};

fn feature(feature: Feature) -> FeatureCommand {
    FeatureCommand { feature: feature as u8, ..FeatureCommand::default() }
}

#[test]
fn features_tell_what_is_configured() {
    let mut config = config(3);
    config.limits.mtu = 4096;
    config.capabilities.remove(Capabilities::RDMA_READ);
    let mut node = Node::new(config);
    let device: DeviceAttributes = node.ok(Opcode::GetFeature, feature(Feature::DeviceAttributes));
    assert_eq!(device.capabilities.get(), 0b100_0011_1010);
    assert_eq!(device.supported_features.get(), 0b10_1111_1110);
    assert_eq!(device.api_version.get(), 3);
    let network: NetworkAttributes = node.ok(Opcode::GetFeature, feature(Feature::NetworkAttributes));
    assert_eq!((network.address[15], network.mtu.get()), (3, 4096));
    let queues: QueueAttributes1 = node.ok(Opcode::GetFeature, feature(Feature::QueueAttributes1));
    assert_eq!((queues.max_qp.get(), queues.max_cq.get(), queues.inline_size.get()), (4, 8, 32));
    let queues: QueueAttributes2 = node.ok(Opcode::GetFeature, feature(Feature::QueueAttributes2));
    assert_eq!((queues.inline_size_ex.get(), queues.counter_events.get()), (80, 0x3ff));
    assert_eq!(queues.event_counter_max_value.get(), u64::MAX);
    let events: EventQueueAttributes = node.ok(Opcode::GetFeature, feature(Feature::EventQueueAttributes));
    assert_eq!((events.max_eq.get(), events.max_eq_depth.get()), (2, 16));
    let hints: HardwareHints = node.ok(Opcode::GetFeature, feature(Feature::HardwareHints));
    assert_eq!(hints, HardwareHints::default());

    let mut unknown = feature(Feature::HardwareHints);
    unknown.feature = 8;
    assert_eq!(node.status(Opcode::GetFeature, unknown), Status::UnsupportedOpcode);
    assert_eq!(node.status(Opcode::GetFeature, feature(Feature::HostInformation)), Status::IllegalParameter);
    assert_eq!(node.status(Opcode::SetFeature, feature(Feature::HardwareHints)), Status::IllegalParameter);
    let reserved = FeatureCommand { reserved: 1, ..feature(Feature::HardwareHints) };
    assert_eq!(node.status(Opcode::GetFeature, reserved), Status::MalformedRequest);
}

#[test]
fn features_are_set() {
    let mut node = Node::new(config(0));
    assert_eq!(node.want_events(0x1e), Status::Success);
    let groups: EventGroups = node.ok(Opcode::GetFeature, feature(Feature::EventGroups));
    assert_eq!((groups.supported.get(), groups.enabled.get()), (0x1e, 0x1e));
    assert_eq!(node.want_events(0xff), Status::IllegalParameter);

    let buffer = node.allocate(PAGE);
    let mut host = feature(Feature::HostInformation);
    host.buffer = ControlBuffer { length: 188.into(), address: buffer.into() };
    assert_eq!(node.status(Opcode::SetFeature, host), Status::IllegalParameter);
    let (status, _) = node.command(Opcode::SetFeature, CommandFlags::CONTROL_DATA, host.as_bytes());
    assert_eq!(status, Status::Success);
    host.buffer.address = u64::MAX.into();
    let (status, _) = node.command(Opcode::SetFeature, CommandFlags::CONTROL_DATA, host.as_bytes());
    assert_eq!(status, Status::IllegalParameter);
}

#[test]
fn commands_go_round_the_ring() {
    for version in [1, 2, 3] {
        let mut config = config(0);
        config.api_version = version;
        let mut node = Node::new(config);
        // More than 16 bits of the producer's counter.
        for _ in 0..70_000 {
            let _: HardwareHints = node.ok(Opcode::GetFeature, feature(Feature::HardwareHints));
        }
        assert_eq!(node.device.interrupts().0[0], 70_000);
        node.write(Register::InterruptMask, 1);
        node.pd();
        assert_eq!(node.device.interrupts().0[0], 70_000);
    }
}

#[test]
fn several_commands_take_one_doorbell() {
    let mut node = Node::new(config(0));
    for _ in 0..4 {
        node.write_command(Opcode::AllocatePd as u8, CommandFlags::empty(), &[], true);
    }
    node.ring_admin();
    let (status, body) = node.answer().unwrap();
    assert_eq!((status, body[0]), (Status::Success, 3));
    assert_eq!(node.device.interrupts().0[0], 1);
    // More than the queue holds: ignored.
    node.write(Register::AdminQueueDoorbell, 9);
    assert_eq!(node.device.interrupts().0[0], 1);
}

#[test]
fn commands_that_make_no_sense_are_refused() {
    let mut node = Node::new(config(0));
    let mut raw = |opcode, flags, good| {
        node.write_command(opcode, flags, &[], good);
        node.ring_admin();
        node.answer().unwrap().0
    };
    assert_eq!(raw(0, CommandFlags::empty(), true), Status::BadOpcode);
    assert_eq!(raw(22, CommandFlags::empty(), true), Status::BadOpcode);
    assert_eq!(raw(30, CommandFlags::empty(), true), Status::BadOpcode);
    assert_eq!(raw(Opcode::Service as u8, CommandFlags::empty(), true), Status::UnsupportedOpcode);
    assert_eq!(raw(Opcode::AllocatePd as u8, CommandFlags::empty(), false), Status::MalformedRequest);
    // The phase of the second round is zero.
    assert_eq!(raw(Opcode::AllocatePd as u8, CommandFlags::PHASE, true), Status::MalformedRequest);
}

#[test]
fn protection_domains_and_doorbells_are_kept_while_used() {
    let mut node = Node::new(config(0));
    let pds: Vec<u16> = (0..4).map(|_| node.pd()).collect();
    assert_eq!(pds, [0, 1, 2, 3]);
    assert_eq!(node.status(Opcode::AllocatePd, ()), Status::ResourceAllocationFailure);
    assert_eq!(node.number(Opcode::DeallocatePd, 3), Status::Success);
    assert_eq!(node.number(Opcode::DeallocatePd, 3), Status::IllegalParameter);

    let mr = node.mr(0, Permissions::empty());
    assert_eq!(node.number(Opcode::DeallocatePd, 0), Status::ResourceBusy);
    assert_eq!(node.status(Opcode::DeregisterMr, Lkey { lkey: mr.key.into() }), Status::Success);
    let gid = node.device.config().gid();
    let ah = node.ah(0, gid);
    assert_eq!(node.number(Opcode::DeallocatePd, 0), Status::ResourceBusy);
    let command = |ah: u16, pd: u16| DestroyAh { ah: ah.into(), pd: pd.into() };
    assert_eq!(node.status(Opcode::DestroyAh, command(ah, 1)), Status::IllegalParameter);
    assert_eq!(node.status(Opcode::DestroyAh, command(ah, 0)), Status::Success);
    assert_eq!(node.number(Opcode::DeallocatePd, 0), Status::Success);

    let uar = node.uar();
    let cq = node.cq(Node::create_cq(uar));
    assert_eq!(node.number(Opcode::DeallocateUar, uar), Status::ResourceBusy);
    assert_eq!(node.number(Opcode::DestroyCq, cq.index), Status::Success);
    assert_eq!(node.number(Opcode::DeallocateUar, uar), Status::Success);
    assert_eq!(node.number(Opcode::DeallocateUar, uar), Status::IllegalParameter);
}

#[test]
fn address_handles_are_one_an_address() {
    let mut node = Node::new(config(0));
    let (one, two) = (node.pd(), node.pd());
    let gid = node.device.config().gid();
    let command = |pd: u16| CreateAh { destination: gid.0, pd: pd.into(), ..CreateAh::default() };
    assert_eq!(node.status(Opcode::CreateAh, command(one)), Status::Success);
    assert_eq!(node.status(Opcode::CreateAh, command(one)), Status::IllegalParameter);
    assert_eq!(node.status(Opcode::CreateAh, command(two)), Status::Success);
    assert_eq!(node.status(Opcode::CreateAh, command(9)), Status::IllegalParameter);
}

fn register(pd: u16, length: u64) -> RegisterMr {
    RegisterMr {
        pd: pd.into(),
        length: length.into(),
        flags: 12,
        permissions: Permissions::LOCAL_WRITE.bits(),
        iova: 0x10_0000.into(),
        ..RegisterMr::default()
    }
}

#[test]
fn memory_regions_have_pages_in_lists() {
    let mut node = Node::new(config(0));
    let pd = node.pd();
    let with_buffer = |mut command: RegisterMr, length: u32, address: u64| {
        let buffer = ControlBuffer { length: length.into(), address: address.into() };
        command.pages.as_mut_bytes()[..12].copy_from_slice(buffer.as_bytes());
        command
    };

    // In a list.
    let list = node.allocate(PAGE);
    for page in 0..8u64 {
        node.store(list + page * 8, &(page * PAGE).to_le_bytes());
    }
    let direct = CommandFlags::CONTROL_DATA;
    let command = with_buffer(register(pd, 8 * PAGE), 64, list);
    assert_eq!(node.command(Opcode::RegisterMr, direct, command.as_bytes()).0, Status::Success);
    let command = with_buffer(register(pd, 8 * PAGE), 56, list);
    assert_eq!(node.command(Opcode::RegisterMr, direct, command.as_bytes()).0, Status::IllegalParameter);
    let command = with_buffer(register(pd, 8 * PAGE), 64, u64::MAX - 8);
    assert_eq!(node.command(Opcode::RegisterMr, direct, command.as_bytes()).0, Status::IllegalParameter);

    // In pages that two pages of a list lead to: the first one holds 510 addresses of pages of 512 addresses.
    let indirect = CommandFlags::CONTROL_DATA | CommandFlags::CONTROL_DATA_INDIRECT;
    let (first, second) = (node.allocate(PAGE), node.allocate(PAGE));
    for place in 0..510u64 {
        node.store(first + place * 8, &list.to_le_bytes());
    }
    node.store(second, &list.to_le_bytes());
    let link = ControlBuffer { length: 20.into(), address: second.into() };
    node.store(first + 4080, link.as_bytes());
    let pages = 510 * 512 + 8;
    let command = with_buffer(register(pd, pages * PAGE), 4092, first);
    let (status, _) = node.command(Opcode::RegisterMr, indirect, command.as_bytes());
    assert_eq!(status, Status::Success);
    let command = with_buffer(register(pd, (pages + 512) * PAGE), 4092, first);
    let (status, _) = node.command(Opcode::RegisterMr, indirect, command.as_bytes());
    assert_eq!(status, Status::IllegalParameter, "the list ends too early");
}

#[test]
fn wrong_memory_regions_are_refused() {
    let mut config = config(0);
    config.capabilities.remove(Capabilities::RDMA_READ);
    config.limits.max_mr_pages = 2;
    let mut node = Node::new(config);
    let pd = node.pd();
    let good = register(pd, PAGE);
    let mut refused = |command: RegisterMr, status| {
        assert_eq!(node.status(Opcode::RegisterMr, command), status, "{command:?}");
    };
    refused(good, Status::Success);
    refused(RegisterMr { pd: 9.into(), ..good }, Status::IllegalParameter);
    refused(RegisterMr { length: 0.into(), ..good }, Status::IllegalParameter);
    refused(RegisterMr { length: u64::MAX.into(), ..good }, Status::IllegalParameter);
    refused(RegisterMr { length: (3 * PAGE).into(), ..good }, Status::IllegalParameter);
    refused(RegisterMr { flags: 11, ..good }, Status::IllegalParameter);
    refused(RegisterMr { flags: 63, ..good }, Status::IllegalParameter);
    refused(RegisterMr { page_count: 2.into(), ..good }, Status::IllegalParameter);
    refused(RegisterMr { permissions: 1 << 2, ..good }, Status::IllegalParameter);
    refused(RegisterMr { permissions: 1 << 3, ..good }, Status::MalformedRequest);
    refused(RegisterMr { reserved: 1.into(), ..good }, Status::MalformedRequest);
    let pages = [1.into(), 0.into(), 0.into(), 0.into()];
    refused(RegisterMr { pages, ..good }, Status::IllegalParameter);
    refused(RegisterMr { flags: 12 | PHYSICAL_MODE, ..good }, Status::Success);
    for wrong in [0x0000_ff00, 0x0000_0001] {
        let status = node.status(Opcode::DeregisterMr, Lkey { lkey: wrong.into() });
        assert_eq!(status, Status::IllegalParameter);
    }
    let allocate =
        |max_pages: u32| AllocateMr { pd: pd.into(), max_pages: max_pages.into(), ..AllocateMr::default() };
    let answer: AllocateMrAnswer = node.ok(Opcode::AllocateMr, allocate(2));
    assert_eq!(answer.lkey, answer.rkey);
    assert_eq!(node.status(Opcode::AllocateMr, allocate(0)), Status::IllegalParameter);
    assert_eq!(node.status(Opcode::AllocateMr, allocate(3)), Status::IllegalParameter);
}

#[test]
fn keys_run_out_and_differ() {
    let mut node = Node::new(config(0));
    let pd = node.pd();
    let keys: Vec<u32> = (0..8)
        .map(|_| node.ok::<RegisterMrAnswer>(Opcode::RegisterMr, register(pd, PAGE)).lkey.get())
        .collect();
    assert!(keys.windows(2).all(|two| two[0] != two[1]));
    assert_eq!(node.status(Opcode::RegisterMr, register(pd, PAGE)), Status::ResourceAllocationFailure);
    assert_eq!(node.status(Opcode::DeregisterMr, Lkey { lkey: keys[0].into() }), Status::Success);
    assert_eq!(node.status(Opcode::RegisterMr, register(pd, PAGE)), Status::Success);
}

#[test]
fn wrong_completion_queues_are_refused() {
    let mut node = Node::new(config(0));
    let uar = node.uar();
    let good = Node::create_cq(uar);
    let mut refused = |command: CreateCq, status| {
        assert_eq!(node.status(Opcode::CreateCq, command), status, "{command:?}");
    };
    refused(good, Status::Success);
    refused(CreateCq { uar: 3.into(), ..good }, Status::IllegalParameter);
    refused(CreateCq { sub_cq_depth: 3.into(), ..good }, Status::IllegalParameter);
    refused(CreateCq { sub_cq_depth: 0.into(), ..good }, Status::IllegalParameter);
    refused(CreateCq { sub_cqs: 2.into(), ..good }, Status::IllegalParameter);
    refused(CreateCq { capabilities_2: 5, ..good }, Status::IllegalParameter);
    let address = CreateCqFlags2::SET_SOURCE_ADDRESS.bits();
    refused(CreateCq { capabilities_2: 4 | address, ..good }, Status::IllegalParameter);
    refused(CreateCq { capabilities_2: 8 | address, ..good }, Status::Success);
    refused(CreateCq { capabilities_2: 8 | 1 << 7, ..good }, Status::MalformedRequest);
    refused(CreateCq { capabilities_1: 1, ..good }, Status::MalformedRequest);
    let flags = CreateCqFlags1::VIRTUAL.bits();
    refused(CreateCq { capabilities_1: flags, ..good }, Status::IllegalParameter);
    let flags = CreateCqFlags1::INTERRUPT.bits();
    refused(CreateCq { capabilities_1: flags, ..good }, Status::IllegalParameter);
}

#[test]
fn event_queues_are_kept_while_used() {
    let mut node = Node::new(config(0));
    let uar = node.uar();
    let good = CreateEq {
        depth: 4.into(),
        vector: 1,
        capabilities: 4,
        base: 0x1000.into(),
        events: 1.into(),
        ..CreateEq::default()
    };
    for wrong in [
        CreateEq { depth: 3.into(), ..good },
        CreateEq { depth: 32.into(), ..good },
        CreateEq { vector: 3, ..good },
        CreateEq { capabilities: 8, ..good },
        CreateEq { events: 2.into(), ..good },
    ] {
        assert_eq!(node.status(Opcode::CreateEq, wrong), Status::IllegalParameter, "{wrong:?}");
    }
    let eq = node.ok::<Number>(Opcode::CreateEq, good).number;
    let command = CreateCq { capabilities_1: 1 << 5, eq, ..Node::create_cq(uar) };
    let cq = node.cq(command);
    assert_eq!(node.number(Opcode::DestroyEq, eq.get()), Status::ResourceBusy);
    assert_eq!(node.number(Opcode::DestroyCq, cq.index), Status::Success);
    assert_eq!(node.number(Opcode::DestroyEq, eq.get()), Status::Success);
    assert_eq!(node.number(Opcode::DestroyEq, eq.get()), Status::IllegalParameter);
    for _ in 0..2 {
        assert_eq!(node.status(Opcode::CreateEq, good), Status::Success);
    }
    assert_eq!(node.status(Opcode::CreateEq, good), Status::ResourceAllocationFailure);
}

#[test]
fn wrong_queue_pairs_are_refused() {
    let mut config = config(0);
    config.capabilities.remove(Capabilities::UNSOLICITED_WRITE_RECV);
    let mut node = Node::new(config);
    let (uar, pd) = (node.uar(), node.pd());
    let cq = node.cq(Node::create_cq(uar));
    let good = Node::create_qp(QpKind::Srd, pd, uar, &cq);
    let flag = |flag: CreateQpFlags| flag.bits();
    for (wrong, status) in [
        (Node::create_qp(QpKind::Srd, 9, uar, &cq), Status::IllegalParameter),
        (Node::create_qp(QpKind::Srd, pd, 9, &cq), Status::IllegalParameter),
        (CreateQp { kind: 3, ..good }, Status::IllegalParameter),
        (CreateQp { send_cq: 9.into(), ..good }, Status::IllegalParameter),
        (CreateQp { receive_cq: 9.into(), ..good }, Status::IllegalParameter),
        (CreateQp { sq_depth: 8.into(), ..good }, Status::IllegalParameter),
        (CreateQp { sq_depth: 17.into(), ..good }, Status::IllegalParameter),
        (CreateQp { rq_ring_size: 48.into(), ..good }, Status::IllegalParameter),
        (CreateQp { rq_depth: 5.into(), ..good }, Status::IllegalParameter),
        (CreateQp { reserved: 1, ..good }, Status::MalformedRequest),
        (CreateQp { flags: 1 << 4, ..good }, Status::MalformedRequest),
        (CreateQp { flags: flag(CreateQpFlags::RQ_VIRTUAL), ..good }, Status::IllegalParameter),
        (CreateQp { flags: flag(CreateQpFlags::UNSOLICITED_WRITE_RECV), ..good }, Status::IllegalParameter),
        (
            // The completion queue has no room for identifiers of 64 bits.
            CreateQp { flags: flag(CreateQpFlags::SQ_64_BIT_REQ_ID), ..good },
            Status::IllegalParameter,
        ),
    ] {
        assert_eq!(node.status(Opcode::CreateQp, wrong), status, "{wrong:?}");
    }
    let numbers: Vec<u16> = (0..4).map(|_| node.qp(good).number).collect();
    assert!(numbers.iter().enumerate().all(|(slot, number)| usize::from(number & 3) == slot));
    assert_eq!(node.status(Opcode::CreateQp, good), Status::ResourceAllocationFailure);
    assert_eq!(node.number(Opcode::DestroyCq, cq.index), Status::ResourceBusy);
    assert_eq!(node.number(Opcode::DeallocatePd, pd), Status::ResourceBusy);
    assert_eq!(node.number(Opcode::DeallocateUar, uar), Status::ResourceBusy);
}

#[test]
fn queue_pairs_change_state_as_allowed() {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};
    let mut node = Node::new(config(0));
    let (uar, pd) = (node.uar(), node.pd());
    let cq = node.cq(Node::create_cq(uar));
    let qp = node.qp(Node::create_qp(QpKind::Srd, pd, uar, &cq));
    let path = [Init, Init, ReadyToReceive, ReadyToSend, SendQueueDrained, ReadyToSend, Error, Reset, Error];
    for state in path {
        assert_eq!(node.modify(&qp, state), Status::Success, "{state}");
        assert_eq!(node.query(&qp).state.get(), state as u32);
    }
    for (from, to) in [
        (vec![], ReadyToReceive),
        (vec![], ReadyToSend),
        (vec![Init], ReadyToSend),
        (vec![Init, ReadyToReceive], Init),
        (vec![Init, ReadyToReceive], SendQueueDrained),
        (vec![Init, ReadyToReceive, ReadyToSend], ReadyToReceive),
        (vec![Init, ReadyToReceive, ReadyToSend], SendQueueError),
        (vec![Error], ReadyToSend),
    ] {
        node.modify(&qp, Reset);
        for state in &from {
            node.modify(&qp, *state);
        }
        assert_eq!(node.modify(&qp, to), Status::IllegalParameter, "{from:?} to {to}");
    }

    let modify = |mask: ModifyQpMask| ModifyQp {
        mask: mask.bits().into(),
        handle: qp.handle.into(),
        state: (Init as u32).into(),
        current_state: (ReadyToSend as u32).into(),
        sq_psn: 77.into(),
        qkey: 88.into(),
        rnr_retry: 8,
        ..ModifyQp::default()
    };
    node.modify(&qp, Reset);
    let states = ModifyQpMask::STATE | ModifyQpMask::CURRENT_STATE;
    assert_eq!(node.status(Opcode::ModifyQp, modify(states)), Status::IllegalParameter);
    assert_eq!(node.status(Opcode::ModifyQp, modify(ModifyQpMask::RNR_RETRY)), Status::IllegalParameter);
    let values = ModifyQpMask::SQ_PSN | ModifyQpMask::QKEY;
    assert_eq!(node.status(Opcode::ModifyQp, modify(values)), Status::Success);
    let state = node.query(&qp);
    assert_eq!((state.sq_psn.get(), state.qkey.get(), state.rnr_retry), (77, 88, 7));
    let unknown = ModifyQp { mask: 0x40.into(), ..modify(values) };
    assert_eq!(node.status(Opcode::ModifyQp, unknown), Status::MalformedRequest);

    // The number is no handle.
    let wrong = QpHandle { handle: u32::from(qp.number).into() };
    assert_eq!(node.status(Opcode::QueryQp, wrong), Status::IllegalParameter);
    let right = QpHandle { handle: qp.handle.into() };
    assert_eq!(node.status(Opcode::DestroyQp, right), Status::Success);
    assert_eq!(node.status(Opcode::DestroyQp, right), Status::IllegalParameter);
    // Its place gets a new number.
    assert_ne!(node.qp(Node::create_qp(QpKind::Srd, pd, uar, &cq)).number, qp.number);
}

#[test]
fn retries_need_the_capability_and_a_reliable_queue_pair() {
    for (has, kind, status) in [
        (true, QpKind::Srd, Status::Success),
        (false, QpKind::Srd, Status::IllegalParameter),
        (true, QpKind::Ud, Status::IllegalParameter),
    ] {
        let mut config = config(0);
        config.capabilities.set(Capabilities::RNR_RETRY, has);
        let mut node = Node::new(config);
        let (uar, pd) = (node.uar(), node.pd());
        let cq = node.cq(Node::create_cq(uar));
        let qp = node.qp(Node::create_qp(kind, pd, uar, &cq));
        assert_eq!(node.set_rnr_retry(&qp, 3), status);
    }
}

#[test]
fn counters_need_the_capability() {
    let mut config = config(0);
    config.capabilities.remove(Capabilities::EVENT_COUNTERS);
    let mut node = Node::new(config);
    let uar = node.uar();
    let command = CreateCounter { uar: uar.into(), address: 0x1000.into(), ..CreateCounter::default() };
    assert_eq!(node.status(Opcode::CreateCounter, command), Status::UnsupportedOpcode);
    let queues: QueueAttributes2 = node.ok(Opcode::GetFeature, feature(Feature::QueueAttributes2));
    assert_eq!((queues.counter_events.get(), queues.max_event_counters.get()), (0, 0));
}

#[test]
fn statistics_are_of_the_whole_device() {
    let mut node = Node::new(config(0));
    for kind in 0..5 {
        let command = GetStatistics { kind, ..GetStatistics::default() };
        let values: [u64; 6] = node.ok(Opcode::GetStatistics, command);
        assert_eq!(values, [0; 6]);
    }
    let wrong = GetStatistics { kind: 5, ..GetStatistics::default() };
    assert_eq!(node.status(Opcode::GetStatistics, wrong), Status::IllegalParameter);
    let wrong = GetStatistics { scope: 1, ..GetStatistics::default() };
    assert_eq!(node.status(Opcode::GetStatistics, wrong), Status::IllegalParameter);
}

#[test]
fn commands_fail_by_faults() {
    let mut config = config(0);
    config.faults =
        vec!["alloc-pd:resource-allocation-failure:2".parse().unwrap(), "alloc-uar:lost".parse().unwrap()];
    let mut node = Node::new(config);
    let statuses: Vec<Status> = (0..4).map(|_| node.status(Opcode::AllocatePd, ())).collect();
    let failure = Status::ResourceAllocationFailure;
    assert_eq!(statuses, [Status::Success, failure, Status::Success, failure]);
    node.write_command(Opcode::AllocateUar as u8, CommandFlags::empty(), &[], true);
    node.ring_admin();
    assert_eq!(node.answer(), None);
}
