//! Memory windows of both types, and invalidating their keys.

use std::fs;
use std::time::Instant;

use nix::errno::Errno;
use uverbs::{
    AccessFlags, CompletionOpcode, CompletionStatus, Context, ErrorKind, MemoryRegion, MemoryWindow,
    MemoryWindowType, ModifyQueuePair, PostReason, QueuePair, QueuePairState, QueuePairType, RemoteMemory,
    SendFlags, SendRequest, WindowBinding, WorkCompletion,
};
use uverbs_ioctl::uapi::user_verbs::DeviceCapFlags;

use crate::common::{
    DEADLINE, End, MOMENT, Pair, Setup, capabilities, open, pattern, poll_for, poll_for_none, refused,
    succeeded, wait_until,
};

crate::cases! {
    Shared type_1_is_bound_moved_and_unbound;
    Shared type_2_is_bound_and_invalidated;
    Shared type_2_is_for_the_peer_of_one_queue_pair;
    Shared sends_invalidate_keys_of_the_peer;
    Shared zero_based_windows;
    Shared atomics_through_windows;
    Shared bindings_that_cannot_be_are_refused;
    Shared vb_15_bindings_that_the_device_refuses;
    Shared bind_and_tell_in_one_batch;
    Shared regions_stay_while_windows_are_bound;
    Shared windows_can_go_while_they_are_bound;
    Shared queue_pairs_take_their_windows_with_them;
    Shared windows_move_to_another_queue_pair_once_invalidated;
    Shared unreliable_connections_bind_and_do_not_invalidate;
    Shared keys_that_are_not_bound_are_not_invalidated;
}

const WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;
const READ: AccessFlags = AccessFlags::REMOTE_READ;
const BINDABLE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND);

/// A pair, and memory of `b` that windows can be bound to. The peer has no access to it without one.
struct Scene {
    context: Context,
    setup: Setup,
    a: End,
    b: End,
    region: MemoryRegion,
}

impl Scene {
    fn new() -> Self {
        Self::of_kind(QueuePairType::ReliableConnection)
    }

    fn of_kind(kind: QueuePairType) -> Self {
        let context = open();
        let windows = DeviceCapFlags::MEM_WINDOW | DeviceCapFlags::MEM_WINDOW_TYPE_2B;
        assert!(capabilities(&context).contains(windows));
        let access = WRITE | READ | AccessFlags::REMOTE_ATOMIC;
        let setup = Setup { kind, access, ..Setup::default() };
        let Pair { a, b } = setup.pair_in(&context);
        let region = b.memory.protection_domain().allocate(4096, BINDABLE).unwrap();
        Self { context, setup, a, b, region }
    }

    fn window(&self, kind: MemoryWindowType) -> MemoryWindow {
        self.b.memory.protection_domain().alloc_memory_window(kind).unwrap()
    }

    /// Binds a window to a range of the region.
    fn bind(
        &mut self,
        window: &MemoryWindow,
        range: std::ops::Range<usize>,
        access: AccessFlags,
    ) -> RemoteMemory {
        let binding = window.binding(&self.region, range, access).unwrap();
        bind(&mut self.b, binding);
        binding.remote()
    }

    /// The peer writes through a window, and the bytes are there.
    fn writes(&mut self, to: RemoteMemory, place: usize) {
        let bytes = pattern(place, 32);
        self.region.write(place, &[0; 32]);
        self.a.qp.post_send_list(&[SendRequest::rdma_write_inline(9, &[&bytes], to).signaled()]).unwrap();
        assert_eq!(succeeded(&poll_for(&mut self.a.cq, 1)), [9]);
        // An unreliable connection does not wait for them to arrive.
        wait_until("what was written", || self.bytes(place..place + 32) == bytes);
    }

    /// The peer is not let do it. Then both ends start afresh.
    fn denied(&mut self, request: SendRequest<'_>) {
        self.a.qp.post_send_list(&[request]).unwrap();
        let error = poll_for(&mut self.a.cq, 1)[0].success().unwrap_err();
        assert_eq!((error.wr_id, error.status), (request.wr_id, CompletionStatus::REM_ACCESS_ERR));
        self.reconnect();
    }

    fn may_not_write(&mut self, to: RemoteMemory) {
        let before = self.bytes(0..4096);
        self.denied(SendRequest::rdma_write_inline(8, &[b"intruder"], to));
        assert!(self.bytes(0..4096) == before);
    }

    fn reconnect(&mut self) {
        for end in [&mut self.a, &mut self.b] {
            end.qp.modify(&ModifyQueuePair::to(QueuePairState::Reset)).unwrap();
            while !end.cq.poll(&mut [WorkCompletion::default(); 16]).is_empty() {}
        }
        self.setup.connect(&self.context, &mut self.a.qp, &mut self.b.qp);
    }

    fn bytes(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.region.read(range.start, &mut bytes);
        bytes
    }
}

/// Executes a binding, and notes it.
fn bind(end: &mut End, binding: WindowBinding<'_>) {
    end.qp.post_send_list(&[SendRequest::bind_memory_window(5, binding).signaled()]).unwrap();
    completes(end, 5, CompletionOpcode::BindMemoryWindow);
}

fn completes(end: &mut End, wr_id: u64, opcode: CompletionOpcode) {
    let done = poll_for(&mut end.cq, 1)[0];
    assert_eq!((done.wr_id(), done.success().unwrap().opcode()), (wr_id, opcode));
}

fn invalidate(end: &mut End, rkey: u32) {
    end.qp.post_send_list(&[SendRequest::local_invalidate(6, rkey).signaled()]).unwrap();
    completes(end, 6, CompletionOpcode::LocalInvalidate);
}

fn type_1_is_bound_moved_and_unbound() {
    let mut scene = Scene::new();
    let window = scene.window(MemoryWindowType::Type1);
    assert_eq!(window.kind(), MemoryWindowType::Type1);
    let fresh = window.rkey();
    scene.may_not_write(RemoteMemory { address: scene.region.address(), rkey: fresh });

    let first = scene.bind(&window, 0..64, WRITE);
    assert_eq!(first.address, scene.region.address());
    // Only the low byte is the user's.
    assert_eq!((first.rkey >> 8, first.rkey & 0xff), (fresh >> 8, (fresh + 1) & 0xff));
    assert_eq!(window.rkey(), fresh);
    window.note_bound(first).unwrap();
    assert_eq!(window.rkey(), first.rkey);
    scene.writes(first, 0);
    // Writing is all.
    let landing = [scene.a.memory.sge(0..32)];
    scene.denied(SendRequest::rdma_read(7, &landing, first));

    // Bound anew, in one step.
    let second = scene.bind(&window, 1024..2048, READ);
    assert_eq!(second.address, scene.region.address() + 1024);
    window.note_bound(second).unwrap();
    scene.may_not_write(first);
    scene.may_not_write(second);
    let sent = pattern(7, 32);
    scene.region.write(1024, &sent);
    scene.a.qp.post_send_list(&[SendRequest::rdma_read(7, &landing, second).signaled()]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut scene.a.cq, 1)), [7]);
    assert_eq!(scene.a.bytes(0..32), sent);

    let nothing = window.unbinding().unwrap();
    bind(&mut scene.b, nothing);
    window.note_bound(nothing.remote()).unwrap();
    scene.denied(SendRequest::rdma_read(7, &landing, second));
    scene.denied(SendRequest::rdma_read(7, &landing, RemoteMemory { rkey: window.rkey(), ..second }));
    // Often enough for the low byte to wrap.
    for _ in 0..300 {
        let remote = scene.bind(&window, 0..64, WRITE);
        window.note_bound(remote).unwrap();
    }
    let last = RemoteMemory { rkey: window.rkey(), ..first };
    assert_eq!(last.rkey >> 8, fresh >> 8);
    scene.writes(last, 0);
    window.destroy().unwrap();
    scene.may_not_write(last);
    scene.region.destroy().unwrap();
}

fn type_2_is_bound_and_invalidated() {
    let mut scene = Scene::new();
    let window = scene.window(MemoryWindowType::Type2);
    assert_eq!(window.kind(), MemoryWindowType::Type2);
    for round in 0..300 {
        let start = 16 * (round % 8);
        let remote = scene.bind(&window, start..start + 64, WRITE);
        window.note_bound(remote).unwrap();
        if round % 50 == 0 {
            scene.writes(remote, start);
        }
        invalidate(&mut scene.b, remote.rkey);
        window.note_invalidated();
        if round % 100 == 0 {
            scene.may_not_write(remote);
        }
    }
    // Several bindings and invalidations in one batch, unsignaled but for the last, with other work between.
    let mut requests = Vec::new();
    for _ in 0..4 {
        let binding = window.binding(&scene.region, 0..64, WRITE).unwrap();
        window.note_bound(binding.remote()).unwrap();
        requests.push(SendRequest::bind_memory_window(1, binding));
        requests.push(SendRequest::send_inline(2, &[b"x"]));
        requests.push(SendRequest::local_invalidate(3, binding.remote().rkey));
    }
    let last = requests.pop().unwrap();
    for wr_id in 0..4 {
        scene.a.receive(wr_id, 0..8);
    }
    requests.iter().fold(scene.b.qp.post_send(), |batch, request| batch.push(request)).submit().unwrap();
    assert_eq!(succeeded(&poll_for(&mut scene.a.cq, 4)), [0, 1, 2, 3]);
    scene.b.qp.post_send_list(&[last.signaled()]).unwrap();
    completes(&mut scene.b, 3, CompletionOpcode::LocalInvalidate);
    poll_for_none(&mut scene.b.cq);
}

fn type_2_is_for_the_peer_of_one_queue_pair() {
    let mut scene = Scene::new();
    // Another queue pair of the same domain, with a peer of its own.
    let mut stranger = scene.setup.end(&scene.context);
    let cq = scene.context.create_completion_queue(16, None, 0).unwrap();
    let domain = scene.b.memory.protection_domain().clone();
    let mut other = domain.create_queue_pair(&scene.setup.init(&cq)).unwrap();
    scene.setup.connect(&scene.context, &mut stranger.qp, &mut other);
    let (one, two) = (scene.window(MemoryWindowType::Type1), scene.window(MemoryWindowType::Type2));
    let (first, second) = (scene.bind(&one, 0..64, WRITE), scene.bind(&two, 64..128, WRITE));
    scene.writes(first, 0);
    scene.writes(second, 64);
    let write = |to| SendRequest::rdma_write_inline(4, &[b"hello"], to).signaled();
    stranger.qp.post_send_list(&[write(first)]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut stranger.cq, 1)), [4]);
    stranger.qp.post_send_list(&[write(second)]).unwrap();
    let error = poll_for(&mut stranger.cq, 1)[0].success().unwrap_err();
    assert_eq!(error.status, CompletionStatus::REM_ACCESS_ERR);
}

fn sends_invalidate_keys_of_the_peer() {
    let mut scene = Scene::new();
    let window = scene.window(MemoryWindowType::Type2);
    for batch in [false, true] {
        let remote = scene.bind(&window, 0..64, WRITE);
        window.note_bound(remote).unwrap();
        scene.writes(remote, 0);
        scene.b.receive(20, 0..64);
        let parts: [&[u8]; 2] = [b"done ", b"with it"];
        // The last that is said counts.
        let request = SendRequest::send_inline(21, &parts).immediate(5).invalidate(remote.rkey).signaled();
        if batch {
            scene.a.qp.post_send().push(&request).submit().unwrap();
        } else {
            scene.a.qp.post_send_list(&[request]).unwrap();
        }
        completes(&mut scene.a, 21, CompletionOpcode::Send);
        let received = poll_for(&mut scene.b.cq, 1)[0];
        let success = received.success().unwrap();
        assert_eq!((received.wr_id(), success.opcode()), (20, CompletionOpcode::Receive));
        assert_eq!((success.invalidated_rkey(), success.immediate()), (Some(remote.rkey), None));
        assert_eq!(scene.b.bytes(0..12), b"done with it");
        window.note_invalidated();
        scene.may_not_write(remote);
    }
    // Other messages invalidate nothing.
    scene.b.receive_nothing(0..2);
    let key = window.rkey();
    let (plain, immediate) =
        (SendRequest::send(1, &[]), SendRequest::send(2, &[]).invalidate(key).immediate(0x77));
    scene.a.qp.post_send_list(&[plain, immediate]).unwrap();
    let told: Vec<_> = poll_for(&mut scene.b.cq, 2)
        .iter()
        .map(|done| done.success().map(|done| (done.invalidated_rkey(), done.immediate())).unwrap())
        .collect();
    assert_eq!(told, [(None, None), (None, Some(0x77))]);
}

fn zero_based_windows() {
    let mut scene = Scene::new();
    let window = scene.window(MemoryWindowType::Type2);
    let remote = scene.bind(&window, 100..1100, WRITE | AccessFlags::ZERO_BASED);
    assert_eq!(remote.address, 0);
    scene.writes(remote, 100);
    scene.writes(RemoteMemory { address: 500, ..remote }, 600);
    // Beyond the region in any case.
    scene.may_not_write(RemoteMemory { address: 4096, ..remote });
    // Not by its own address.
    scene.may_not_write(RemoteMemory { address: scene.region.address() + 100, ..remote });

    let one = scene.window(MemoryWindowType::Type1);
    refused(
        one.binding(&scene.region, 0..8, WRITE | AccessFlags::ZERO_BASED),
        Errno::EINVAL,
        &["bind_mw", "type 1", "ZERO_BASED"],
    );
}

fn atomics_through_windows() {
    let mut scene = Scene::new();
    let window = scene.window(MemoryWindowType::Type2);
    let remote = scene.bind(&window, 64..72, AccessFlags::REMOTE_ATOMIC);
    window.note_bound(remote).unwrap();
    let result = [scene.a.memory.sge(0..8)];
    scene.region.write(64, &7_u64.to_ne_bytes());
    scene
        .a
        .qp
        .post_send()
        .push(&SendRequest::fetch_add(1, &result, remote, 5))
        .push(&SendRequest::compare_swap(2, &result, remote, 12, 13).signaled())
        .submit()
        .unwrap();
    assert_eq!(succeeded(&poll_for(&mut scene.a.cq, 1)), [2]);
    assert_eq!(scene.a.bytes(0..8), 12_u64.to_ne_bytes());
    assert_eq!(scene.bytes(64..72), 13_u64.to_ne_bytes());
    scene.may_not_write(remote);
    if capabilities(&scene.context).contains(DeviceCapFlags::FLUSH_GLOBAL) {
        let extent = uverbs::FlushExtent::Range(8);
        scene.denied_flush(SendRequest::flush(3, remote, extent, uverbs::FlushPlacement::GLOBAL));
    }
}

impl Scene {
    /// The queue pair itself does not let the peer flush.
    fn denied_flush(&mut self, request: SendRequest<'_>) {
        self.a.qp.post_send_list(&[request]).unwrap();
        let error = poll_for(&mut self.a.cq, 1)[0].success().unwrap_err();
        assert_eq!(error.status, CompletionStatus::REM_INV_REQ_ERR);
    }
}

fn bindings_that_cannot_be_are_refused() {
    let mut scene = Scene::new();
    let window = scene.window(MemoryWindowType::Type2);
    let elsewhere = scene.a.memory.protection_domain().allocate(4096, BINDABLE).unwrap();
    refused(window.binding(&elsewhere, 0..8, WRITE), Errno::EPERM, &["bind_mw", "different domains"]);
    let region = &scene.region;
    refused(window.binding(region, 8..8, WRITE), Errno::EINVAL, &["0 bytes at 8"]);
    refused(
        window.binding(region, 4090..4097, WRITE),
        Errno::EINVAL,
        &["7 bytes at 4090 of a region of 4096"],
    );
    refused(window.binding(region, 5000..5001, WRITE), Errno::EINVAL, &["5000"]);
    let relaxed = WRITE | AccessFlags::RELAXED_ORDERING;
    refused(window.binding(region, 0..8, relaxed), Errno::EINVAL, &["RELAXED_ORDERING"]);
    refused(window.unbinding(), Errno::EINVAL, &["type 2", "invalidated"]);
    let other = scene.window(MemoryWindowType::Type2);
    let key = other.binding(region, 0..8, WRITE).unwrap().remote();
    let named = [format!("{:#x}", key.rkey), format!("{:#x}", window.rkey())];
    refused(window.note_bound(key), Errno::EINVAL, &["no key", &named[0], &named[1]]);

    // Neither of another domain nor of another context.
    let mut stranger = Scene::new();
    for kind in [MemoryWindowType::Type1, MemoryWindowType::Type2] {
        let window = scene.window(kind);
        let binding = window.binding(region, 0..8, WRITE).unwrap();
        let request = SendRequest::bind_memory_window(1, binding);
        for qp in [&mut scene.a.qp, &mut stranger.b.qp] {
            let error = qp.post_send_list(&[request]).unwrap_err();
            assert_eq!((error.reason, error.errno()), (PostReason::OtherDomain, Errno::EPERM as i32));
            refused(qp.post_send().push(&request).submit(), Errno::EPERM, &["different domains"]);
        }
        bind(&mut scene.b, binding);
    }

    let Scene { mut b, .. } = scene;
    let sges = [b.memory.sge(0..8)];
    let binding = window.binding(&scene.region, 0..8, WRITE).unwrap();
    let request = SendRequest::bind_memory_window(1, binding);
    let loaded = SendRequest { payload: uverbs::Payload::Sges(&sges), ..request };
    let error = b.qp.post_send().push(&request).push(&loaded).submit().unwrap_err();
    assert_eq!((error.index, error.reason, error.errno()), (1, PostReason::NoPayload, Errno::EINVAL as i32));
    // Nothing was posted: the window is as it was.
    bind(&mut b, binding);
}

fn vb_15_bindings_that_the_device_refuses() {
    let mut scene = Scene::new();
    let domain = scene.b.memory.protection_domain().clone();
    let unbindable = domain.allocate(4096, AccessFlags::LOCAL_WRITE).unwrap();
    let constant = domain.allocate(4096, AccessFlags::MW_BIND).unwrap();
    for kind in [MemoryWindowType::Type1, MemoryWindowType::Type2] {
        let window = scene.window(kind);
        for (region, access) in
            [(&unbindable, READ), (&constant, WRITE), (&constant, READ | AccessFlags::REMOTE_ATOMIC)]
        {
            let binding = window.binding(region, 0..64, access).unwrap();
            fails_to_bind(&mut scene, binding);
            window.note_invalidated();
        }
        // It is as good as new.
        let region = &constant;
        let binding = window.binding(region, 0..64, READ).unwrap();
        bind(&mut scene.b, binding);
        let landing = [scene.a.memory.sge(0..32)];
        let read = SendRequest::rdma_read(3, &landing, binding.remote()).signaled();
        scene.a.qp.post_send_list(&[read]).unwrap();
        assert_eq!(succeeded(&poll_for(&mut scene.a.cq, 1)), [3]);
        // With a key that it does not have any more.
        fails_to_bind(&mut scene, binding);
        window.note_bound(binding.remote()).unwrap();
        if kind == MemoryWindowType::Type2 {
            // Bound already.
            let binding = window.binding(region, 64..128, READ).unwrap();
            fails_to_bind(&mut scene, binding);
        }
    }
}

/// A binding completes with an error, which moves the queue pair to the error state. Then both ends start afresh.
fn fails_to_bind(scene: &mut Scene, binding: WindowBinding<'_>) {
    scene
        .b
        .qp
        .post_send_list(&[SendRequest::bind_memory_window(33, binding), SendRequest::send(34, &[])])
        .unwrap();
    let statuses: Vec<_> = poll_for(&mut scene.b.cq, 2)
        .iter()
        .map(|done| done.success().unwrap_err())
        .map(|error| (error.wr_id, error.qp_num, error.status))
        .collect();
    let number = scene.b.qp.qp_num();
    // Linux 6.12 and 7.3 count the request itself among those that are flushed.
    assert!([CompletionStatus::MW_BIND_ERR, CompletionStatus::WR_FLUSH_ERR].contains(&statuses[0].2));
    let expected = [(33, number, statuses[0].2), (34, number, CompletionStatus::WR_FLUSH_ERR)];
    assert_eq!(statuses, expected);
    assert_eq!(scene.b.qp.query().unwrap().state, QueuePairState::Error);
    scene.reconnect();
}

fn bind_and_tell_in_one_batch() {
    let mut scene = Scene::new();
    let window = scene.window(MemoryWindowType::Type2);
    let binding = window.binding(&scene.region, 256..512, WRITE).unwrap();
    let RemoteMemory { address, rkey } = binding.remote();
    let (address, key) = (address.to_ne_bytes(), rkey.to_ne_bytes());
    let parts: [&[u8]; 2] = [&address, &key];
    scene.a.receive(1, 0..12);
    scene
        .b
        .qp
        .post_send()
        .push(&SendRequest::bind_memory_window(2, binding))
        .push(&SendRequest::send_inline(3, &parts).flags(SendFlags::FENCE | SendFlags::SOLICITED))
        .submit()
        .unwrap();
    assert_eq!(poll_for(&mut scene.a.cq, 1)[0].success().unwrap().byte_len(), 12);
    let told = RemoteMemory {
        address: u64::from_ne_bytes(scene.a.bytes(0..8).try_into().unwrap()),
        rkey: u32::from_ne_bytes(scene.a.bytes(8..12).try_into().unwrap()),
    };
    assert_eq!(told, binding.remote());
    scene.writes(told, 256);
    poll_for_none(&mut scene.b.cq);
}

fn is_mapped(address: u64) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        let (end, _) = rest.split_once(' ').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&address)
    })
}

fn regions_stay_while_windows_are_bound() {
    for kind in [MemoryWindowType::Type1, MemoryWindowType::Type2] {
        let mut scene = Scene::new();
        let window = scene.window(kind);
        let remote = scene.bind(&window, 0..64, WRITE);
        window.note_bound(remote).unwrap();
        let Scene { region, .. } = scene;
        let refusal = region.destroy().unwrap_err();
        assert!(matches!(refusal.error().kind(), ErrorKind::InvalidInput | ErrorKind::Busy), "{refusal}");
        scene.region = refusal.into_inner();
        scene.writes(remote, 0);
        // Once the window is bound to nothing, or invalidated, it can go.
        if kind == MemoryWindowType::Type1 {
            let nothing = window.unbinding().unwrap();
            bind(&mut scene.b, nothing);
            window.note_bound(nothing.remote()).unwrap();
        } else {
            invalidate(&mut scene.b, remote.rkey);
            window.note_invalidated();
        }
        let Scene { region, .. } = scene;
        region.destroy().unwrap();
        scene.region = scene.b.memory.protection_domain().allocate(4096, BINDABLE).unwrap();

        // Dropped while one is bound, it stays where it is, for the peer still reaches it.
        let remote = scene.bind(&window, 0..64, WRITE);
        let Scene { region, mut a, b, .. } = scene;
        drop(region);
        let write = SendRequest::rdma_write_inline(9, &[b"late"], remote).signaled();
        a.qp.post_send_list(&[write]).unwrap();
        assert_eq!(succeeded(&poll_for(&mut a.cq, 1)), [9]);
        assert!(is_mapped(remote.address));
        // SAFETY: the memory is mapped, and nobody writes it now.
        let bytes =
            unsafe { std::ptr::with_exposed_provenance::<[u8; 4]>(remote.address as usize).read_volatile() };
        assert_eq!(&bytes, b"late");
        // It goes with the window, or with the queue pair that takes that along.
        let End { qp, memory, .. } = b;
        let domain = memory.protection_domain().clone();
        match kind {
            MemoryWindowType::Type1 => {
                window.destroy().unwrap();
                qp.destroy().unwrap();
            }
            MemoryWindowType::Type2 => {
                drop(qp);
                window.destroy().unwrap();
            }
        }
        memory.destroy().unwrap();
        domain.destroy().unwrap();
    }
}

fn windows_can_go_while_they_are_bound() {
    let mut scene = Scene::new();
    for kind in [MemoryWindowType::Type1, MemoryWindowType::Type2] {
        for drop_it in [false, true] {
            let window = scene.window(kind);
            let remote = scene.bind(&window, 0..64, WRITE);
            scene.writes(remote, 0);
            if drop_it {
                drop(window);
            } else {
                window.destroy().unwrap();
            }
            scene.may_not_write(remote);
        }
    }
    // Nothing holds the queue pair or the region back.
    let Scene { region, b, .. } = scene;
    b.qp.destroy().unwrap();
    region.destroy().unwrap();
}

fn queue_pairs_take_their_windows_with_them() {
    let mut scene = Scene::new();
    let windows: Vec<_> = (0..20).map(|_| scene.window(MemoryWindowType::Type2)).collect();
    let keys: Vec<_> = windows.iter().map(|window| scene.bind(window, 0..64, WRITE).rkey).collect();
    // Some are as they were, some are not there any more.
    invalidate(&mut scene.b, keys[0]);
    windows[0].note_invalidated();
    let mut windows = windows;
    drop(windows.split_off(10));

    let Scene { b, region, .. } = scene;
    let End { qp, memory, .. } = b;
    let started = Instant::now();
    let refusal = qp.destroy().unwrap_err();
    let error = refusal.error();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Busy, Errno::EBUSY as i32));
    assert!(error.to_string().contains("9 memory windows of type 2"), "{error}");
    drop(refusal);
    // The kernel would wait for the windows for 50 seconds.
    assert!(started.elapsed() < DEADLINE, "{:?}", started.elapsed());
    refused(windows[1].binding(&region, 0..8, WRITE), Errno::EINVAL, &["gone", "QP"]);
    windows[0].binding(&region, 0..8, WRITE).unwrap();
    // The region is free, and so is the domain.
    region.destroy().unwrap();
    windows.into_iter().for_each(|window| window.destroy().unwrap());
    let domain = memory.protection_domain().clone();
    memory.destroy().unwrap();
    domain.destroy().unwrap();
}

fn windows_move_to_another_queue_pair_once_invalidated() {
    let mut scene = Scene::new();
    let (cq, domain) = {
        let cq = scene.context.create_completion_queue(16, None, 0).unwrap();
        (cq, scene.b.memory.protection_domain().clone())
    };
    let mut other_a = scene.setup.end(&scene.context);
    let mut other_b: QueuePair = domain.create_queue_pair(&scene.setup.init(&cq)).unwrap();
    scene.setup.connect(&scene.context, &mut other_a.qp, &mut other_b);
    let mut cq = cq;

    let window = scene.window(MemoryWindowType::Type2);
    let remote = scene.bind(&window, 0..64, WRITE);
    window.note_bound(remote).unwrap();
    let binding = window.binding(&scene.region, 64..128, WRITE).unwrap();
    let request = SendRequest::bind_memory_window(1, binding).signaled();
    let number = scene.b.qp.qp_num();
    // What is not posted moves nothing.
    let spare = scene.window(MemoryWindowType::Type2);
    let spare_binding = spare.binding(&scene.region, 0..8, WRITE).unwrap();
    drop(scene.b.qp.post_send().push(&SendRequest::bind_memory_window(1, spare_binding)));
    other_b.post_send_list(&[SendRequest::bind_memory_window(1, spare_binding).signaled()]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut cq, 1)), [1]);
    let error = other_b.post_send_list(&[request]).unwrap_err();
    assert_eq!((error.reason, error.errno()), (PostReason::WindowElsewhere { qp_num: number }, 22));
    refused(
        other_b.post_send().push(&request).submit(),
        Errno::EINVAL,
        &[&*format!("{number:#08x}"), "has not been invalidated"],
    );
    invalidate(&mut scene.b, remote.rkey);
    window.note_invalidated();
    other_b.post_send_list(&[request]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut cq, 1)), [1]);
    window.note_bound(binding.remote()).unwrap();
    // The one that had it goes without it.
    let Scene { b, region, .. } = scene;
    b.qp.destroy().unwrap();
    let write = SendRequest::rdma_write_inline(2, &[b"moved"], binding.remote()).signaled();
    other_a.qp.post_send_list(&[write]).unwrap();
    assert_eq!(succeeded(&poll_for(&mut other_a.cq, 1)), [2]);
    let mut bytes = [0; 5];
    region.read(64, &mut bytes);
    assert_eq!(&bytes, b"moved");
    // The other one takes it along, and a request with it is refused from then on.
    drop(other_b);
    let mut late = domain.create_queue_pair(&scene.setup.init(&cq)).unwrap();
    other_a.qp.modify(&ModifyQueuePair::to(QueuePairState::Reset)).unwrap();
    scene.setup.connect(&scene.context, &mut other_a.qp, &mut late);
    let error = late.post_send_list(&[request]).unwrap_err();
    assert_eq!(error.reason, PostReason::WindowGone);
}

fn unreliable_connections_bind_and_do_not_invalidate() {
    let mut scene = Scene::of_kind(QueuePairType::UnreliableConnection);
    for kind in [MemoryWindowType::Type1, MemoryWindowType::Type2] {
        let window = scene.window(kind);
        let remote = scene.bind(&window, 0..64, WRITE);
        scene.writes(remote, 0);
        for request in
            [SendRequest::local_invalidate(1, remote.rkey), SendRequest::send(1, &[]).invalidate(1)]
        {
            let error = scene.b.qp.post_send_list(&[request]).unwrap_err();
            assert_eq!(error.reason, PostReason::NoSuchOperation);
        }
        window.destroy().unwrap();
        // What is not allowed is dropped in silence.
        scene.region.write(0, &[0; 8]);
        scene
            .a
            .qp
            .post_send_list(&[SendRequest::rdma_write_inline(1, &[b"intruder"], remote).signaled()])
            .unwrap();
        assert_eq!(succeeded(&poll_for(&mut scene.a.cq, 1)), [1]);
        std::thread::sleep(MOMENT);
        assert_eq!(scene.bytes(0..8), [0; 8]);
    }
}

/// The kernel crashes on some of them.
fn keys_that_are_not_bound_are_not_invalidated() {
    let mut scene = Scene::new();
    let (one, two) = (scene.window(MemoryWindowType::Type1), scene.window(MemoryWindowType::Type2));
    let remote = scene.bind(&one, 0..64, WRITE);
    let refused = |end: &mut End, rkey| {
        let request = SendRequest::local_invalidate(1, rkey).signaled();
        let list = end.qp.post_send_list(&[request]).unwrap_err();
        let batch = end.qp.post_send().push(&SendRequest::send(0, &[])).push(&request).submit().unwrap_err();
        assert_eq!((list.index, batch.index, list.errno()), (0, 1, Errno::EINVAL as i32));
        assert_eq!([list.reason, batch.reason], [PostReason::NotBound { rkey }; 2]);
        assert!(list.to_string().contains(&format!("{rkey:#x} is not the key")), "{list}");
    };
    for rkey in [0, scene.b.memory.rkey(), remote.rkey, two.rkey()] {
        refused(&mut scene.b, rkey);
    }
    let bound = scene.bind(&two, 0..64, WRITE).rkey;
    two.note_bound(RemoteMemory { rkey: bound, ..remote }).unwrap();
    // Not by another queue pair.
    refused(&mut scene.a, bound);
    invalidate(&mut scene.b, bound);
    refused(&mut scene.b, bound);
    two.note_invalidated();
    refused(&mut scene.b, bound);
    // Not bound.
    let binding = two.binding(&scene.region, 0..64, WRITE).unwrap();
    drop(scene.b.qp.post_send().push(&SendRequest::bind_memory_window(1, binding)));
    refused(&mut scene.b, binding.remote().rkey);
    // Failed.
    let missing = scene.b.memory.protection_domain().allocate(4096, AccessFlags::LOCAL_WRITE).unwrap();
    let binding = two.binding(&missing, 0..64, WRITE).unwrap();
    fails_to_bind(&mut scene, binding);
    refused(&mut scene.b, binding.remote().rkey);
    refused(&mut scene.b, bound);
    // A key that the window does not have any more is the device's to refuse.
    let again = scene.bind(&two, 0..64, WRITE);
    scene.b.qp.post_send_list(&[SendRequest::local_invalidate(1, bound)]).unwrap();
    let error = poll_for(&mut scene.b.cq, 1)[0].success().unwrap_err();
    assert_eq!(error.wr_id, 1);
    // Linux 6.12 and 7.3 count the request itself among those that are flushed.
    assert!([CompletionStatus::LOC_QP_OP_ERR, CompletionStatus::WR_FLUSH_ERR].contains(&error.status));
    scene.reconnect();
    scene.writes(again, 0);
    // It may or may not have been executed before the reset.
    refused(&mut scene.b, again.rkey);
    two.destroy().unwrap();
    refused(&mut scene.b, again.rkey);
}
