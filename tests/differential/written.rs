//! Sequences that somebody has written down: every command that the library issues, right and with each of its wrongs, and objects that are
//! made and destroyed in any order.

use std::os::fd::RawFd;

use uverbs_ioctl::uapi::ioctl_cmds::{attr, method, object};
use uverbs_ioctl::uapi::ioctl_verbs::{AccessFlags, GidEntry, qp_type};
use uverbs_ioctl::uapi::user_verbs::{AhAttr, CMD_FLAG_EXTENDED, GlobalRoute, ModifySrq, RegMr, ReregMr};
use uverbs_ioctl::uapi::values::qp_state;

use super::call::{Call, Kind};
use super::commands::*;
use super::queue_pairs::*;
use super::spoil::NOTHING;
use super::{Accepted, Both, NOT_ISSUED, tell};
use crate::counters::are_expected;

/// Sequences by their names, with how many commands they issue at least, and how many of those succeed.
macro_rules! sequences {
    ($($name:ident: $issued:literal, $succeeded:literal;)*) => {
        const SEQUENCES: &[(&str, fn(&mut Both), [usize; 2])] =
            &[$((stringify!($name), $name, [$issued, $succeeded])),*];
    };
}

sequences! {
    contexts: 360, 1;
    queries_of_the_device: 510, 190;
    objects_and_methods: 220, 1;
    commands_of_old: 360, 3;
    domains: 240, 140;
    regions: 450, 210;
    access_to_regions: 640, 140;
    regions_again: 850, 290;
    windows: 520, 160;
    channels: 240, 110;
    event_files: 40, 20;
    completion_queues: 460, 210;
    shared_receive_queues: 1000, 650;
    queue_pairs: 1400, 370;
    capacities_of_queue_pairs: 1500, 1100;
    transitions_of_rc: 5200, 4200;
    transitions_of_uc: 5200, 4200;
    transitions_of_ud: 5200, 4200;
    attributes_of_queue_pairs: 4500, 4300;
    address_handles: 420, 240;
    groups: 450, 190;
    what_is_in_use: 50, 10;
    what_is_gone: 100, 10;
    counters: 450, 170;
}

pub(super) fn written_sequences_are_answered_alike() {
    let mut differences = Vec::new();
    for (name, sequence, least) in SEQUENCES {
        if *name == "counters" && !are_expected() {
            continue;
        }
        let mut both = if *name == "contexts" { Both::unready() } else { Both::new() };
        sequence(&mut both);
        let Both { issued, excluded, succeeded, .. } = both;
        if both.differences.is_empty() {
            both.destroy_all();
        }
        let count = both.differences.len();
        let said = format!("{issued} commands, {succeeded} succeeded, {excluded} not issued");
        eprintln!("{name}: {said}, {count} differences");
        differences.extend(both.differences.iter().map(|difference| format!("{name}: {difference}")));
        if issued < least[0] || succeeded < least[1] {
            differences.push(format!("{name}: too little: {said}"));
        }
    }
    tell(&differences);
}

/// The GID that both devices have at index 1.
pub(super) const GID: [u8; 16] = mapped([192, 168, 77, 1]);

pub(super) const GROUP: [u8; 16] = mapped([239, 1, 1, 1]);

const fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// Memory that is there for good.
pub(super) fn memory() -> u64 {
    static MEMORY: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *MEMORY.get_or_init(|| {
        let mut map = std::mem::ManuallyDrop::new(memmap2::MmapMut::map_anon(1 << 20).unwrap());
        map.as_mut_ptr().expose_provenance() as u64
    })
}

pub(super) fn region(pd_handle: u32, length: u64, access: AccessFlags) -> RegMr {
    let start = memory();
    RegMr { start, length, hca_va: start, pd_handle, access_flags: access.bits(), ..Default::default() }
}

impl Both {
    pub(super) fn pd_and_cq(&mut self) -> (u32, u32) {
        (self.does(&alloc_pd()), self.does(&create_cq(16)))
    }

    pub(super) fn qp(&mut self, kind: u32) -> u32 {
        let (pd, cq) = self.pd_and_cq();
        self.does(&create_qp(&QpOf { pd, cq, srq: None, kind, flags: 0, cap: CAP }))
    }

    fn file(&mut self, call: &Call) -> [RawFd; 2] {
        self.does(call);
        self.last_file()
    }
}

fn contexts(both: &mut Both) {
    // Without a context, nothing else works.
    for call in [query_context(), query_device(), query_port(1), query_gid_entry(1, 1), alloc_pd()] {
        both.sweep(|_| call.clone());
    }
    let none = AccessFlags::empty();
    let ah = ah_attr(GID, 1);
    for call in [
        create_cq(1),
        create_comp_channel(),
        alloc_async_event(),
        reg_mr(&region(0, 4096, none)),
        create_ah(0, ah),
    ] {
        let _ = both.issue(&call);
    }
    for kind in Kind::ALL {
        let calls = [Some(destroy(kind, 0)), destroy_legacy(kind, 0)];
        for call in calls.into_iter().flatten().filter(|_| kind != Kind::Counter) {
            let _ = both.issue(&call);
        }
    }
    for call in [
        modify_qp(&to_state(0, qp_type::RC, 1)),
        query_qp(0),
        post_send(0),
        resize_cq(0, 1),
        req_notify_cq(0, 0),
    ] {
        let _ = both.issue(&call);
    }
    let context = get_context();
    let _ = both.issue(&context.but("wrong", |call| call.header.driver_id = 0));
    let _ = both.issue(&context.but("short", |call| call.args[0].attr.len = 2));
    both.does(&context);
    both.sweep(|_| context.clone());
}

fn queries_of_the_device(both: &mut Both) {
    both.sweep(|_| query_context());
    both.sweep(|_| query_device());
    both.sweep(|_| query_device_ex(0, DEVICE_EX));
    for room in [0, 7, 8, 176, 180, 184, 200, 300, DEVICE_EX, 400] {
        let _ = both.issue(&query_device_ex(0, room));
    }
    let _ = both.issue(&query_device_ex(1, DEVICE_EX));
    both.sweep(|_| query_port(1));
    for port in [0, 2, 255, 256, 1 << 32 | 1] {
        let _ = both.issue(&query_port(port));
    }
    both.sweep(|_| query_port_legacy(1));
    both.sweep(|_| query_gid_entry(1, 1));
    for (port, index) in [(1, 0), (0, 0), (2, 0), (1, 900), (1, 1023), (1, 1024), (1, 1 << 32)] {
        let _ = both.issue(&query_gid_entry(port, index));
    }
    let size = size_of::<GidEntry>() as u64;
    both.sweep(|_| query_gid_table(size, 2));
    for (size, entries) in [(size, 4), (size, 1), (size, 0), (size - 8, 4), (size + 8, 4), (0, 4), (1, 4)] {
        let _ = both.issue(&query_gid_table(size, entries));
    }
}

/// Which there are, but for those that the library does not issue.
fn objects_and_methods(both: &mut Both) {
    let unissued = [
        (object::DEVICE, method::device::INFO_HANDLES),
        (object::DEVICE, method::device::QUERY_PORT_SPEED),
        (object::MR, method::mr::REG),
    ];
    let of_counters =
        [(object::DEVICE, method::device::QUERY_COMP_CNTR_CAPS), (object::QP, method::qp::ATTACH_COMP_CNTR)];
    let counted = are_expected();
    for object in 0..24 {
        for method in 0..10 {
            let of_counters = object == object::COMP_CNTR || of_counters.contains(&(object, method));
            if unissued.contains(&(object, method)) && Accepted::Unissued.passes() || of_counters && !counted
            {
                continue;
            }
            let _ = both.issue(&Call::new(&format!("object {object}, method {method}"), object, method));
        }
    }
}

fn commands_of_old(both: &mut Both) {
    use attr::invoke_write as id;
    for number in (0..64).chain([64, 200, 255]).flat_map(|number| [number, number | CMD_FLAG_EXTENDED]) {
        let call = Call::new(&format!("command {number:#x}"), object::DEVICE, method::device::INVOKE_WRITE)
            .constant(id::WRITE_CMD, number.into());
        let _ = both.issue(&call);
        let _ = both.issue(&call.clone().input(id::CORE_IN, &[0_u8; 4]));
        let _ = both.issue(&call.input(id::CORE_IN, &[0_u8; 3]));
    }
    for number in [1 << 8, 1 << 30, 1 << 32] {
        let call = Call::new(&format!("command {number:#x}"), object::DEVICE, method::device::INVOKE_WRITE);
        let _ = both.issue(&call.constant(id::WRITE_CMD, number));
    }
}

fn domains(both: &mut Both) {
    both.sweep(|_| alloc_pd());
    for legacy in [false, true] {
        both.sweep(|both| {
            let pd = both.does(&alloc_pd());
            destroy_legacy(Kind::Pd, pd).filter(|_| legacy).unwrap_or(destroy(Kind::Pd, pd))
        });
    }
}

fn regions(both: &mut Both) {
    let pd = both.does(&alloc_pd());
    both.does(&create_cq(1));
    let read = AccessFlags::empty();
    both.sweep(|_| reg_mr(&region(pd, 4096, read)));
    let start = memory();
    for (offset, length, shift) in [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 0),
        (4095, 1, 0),
        (4095, 2, 0),
        (0, 1 << 20, 0),
        (0, 4096, 1),
        (0, 4096, 4096),
        (0, 4096, 1 << 40),
        (0, u64::MAX, 0),
        (0, u64::MAX - 8191, 0),
        (0, 1 << 63, 0),
        (0, 1 << 40, 0),
        (0, 4096, 0_u64.wrapping_sub(start)),
        (0, 4096, 0_u64.wrapping_sub(start).wrapping_sub(4096)),
        (0, 8192, 0_u64.wrapping_sub(start).wrapping_sub(4096)),
    ] {
        let start = start + offset;
        let request = RegMr { start, length, hca_va: start.wrapping_add(shift), ..region(pd, 0, read) };
        let _ = both.issue(&reg_mr(&request));
    }
    for start in [0, 4096, 1 << 46, 1 << 48, 1 << 63, u64::MAX - 4095] {
        let _ = both.issue(&reg_mr(&RegMr { start, hca_va: start, ..region(pd, 4096, read) }));
    }
    for legacy in [false, true] {
        both.sweep(|both| {
            let mr = both.does(&reg_mr(&region(pd, 4096, read)));
            destroy_legacy(Kind::Mr, mr).filter(|_| legacy).unwrap_or(destroy(Kind::Mr, mr))
        });
    }
    let mr = both.does(&reg_mr(&region(pd, 5000, read)));
    both.sweep(|_| query_mr(mr));
}

fn access_to_regions(both: &mut Both) {
    let pd = both.does(&alloc_pd());
    let single = (0..32).map(|bit| 1 << bit);
    let small = 0..1 << 9;
    let read_only = memmap2::MmapMut::map_anon(4096).unwrap().make_read_only().unwrap();
    let start = read_only.as_ptr().expose_provenance() as u64;
    for access_flags in single.chain(small) {
        let writable = RegMr { access_flags, ..region(pd, 4096, AccessFlags::empty()) };
        for request in [writable, RegMr { start, hca_va: start, ..writable }] {
            if let Ok(mr) = both.issue(&reg_mr(&request)) {
                let _ = both.issue(&destroy(Kind::Mr, mr));
            }
        }
    }
}

fn regions_again(both: &mut Both) {
    let all = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    for before in [AccessFlags::empty(), AccessFlags::LOCAL_WRITE] {
        let (pd, other) = (both.does(&alloc_pd()), both.does(&alloc_pd()));
        let mr = both.does(&reg_mr(&region(pd, 8192, before)));
        let request = ReregMr { mr_handle: mr, flags: 2, pd_handle: other, ..Default::default() };
        both.sweep(|_| rereg_mr(&request));
        for flags in 0..9 {
            for access in [AccessFlags::empty(), all, AccessFlags::REMOTE_WRITE, AccessFlags::MW_BIND] {
                for pd_handle in [pd, other, NOTHING] {
                    let access_flags = access.bits();
                    let place = ReregMr { start: memory(), length: 4096, hca_va: memory(), ..request };
                    let _ = both.issue(&rereg_mr(&ReregMr { flags, pd_handle, access_flags, ..place }));
                }
            }
        }
        // It is of the domain that it was moved to.
        let _ = both.issue(&destroy(Kind::Pd, pd));
        let _ = both.issue(&destroy(Kind::Pd, other));
        let _ = both.issue(&destroy(Kind::Mr, mr));
    }
    let pd = both.does(&alloc_pd());
    both.sweep(|_| reg_dmabuf_mr(pd, 0));
}

fn windows(both: &mut Both) {
    let pd = both.does(&alloc_pd());
    both.sweep(|_| alloc_mw(pd, 1));
    for kind in 0..=255 {
        let _ = both.issue(&alloc_mw(pd, kind));
    }
    for legacy in [false, true] {
        both.sweep(|both| {
            let mw = both.does(&alloc_mw(pd, 2));
            destroy_legacy(Kind::Mw, mw).filter(|_| legacy).unwrap_or(destroy(Kind::Mw, mw))
        });
    }
}

fn channels(both: &mut Both) {
    both.sweep(|_| create_comp_channel());
    let events = both.file(&alloc_async_event());
    let channel = both.file(&create_comp_channel());
    both.sweep(|_| create_cq_on(4, channel));
    let _ = both.issue(&create_cq_on(4, events));
    let _ = both.issue(&create_cq_on(4, [0; 2]));
}

fn event_files(both: &mut Both) {
    both.sweep(|_| alloc_async_event());
    let channel = both.file(&create_comp_channel());
    let events = both.file(&alloc_async_event());
    let pd = both.does(&alloc_pd());
    let cq = both.does(&create_cq(4).file(attr::create_cq::EVENT_FD, events));
    let of = QpOf { pd, cq, srq: None, kind: qp_type::RC, flags: 0, cap: CAP };
    for files in [events, channel, [0; 2], [-1; 2]] {
        let _ = both.issue(&create_cq(4).file(attr::create_cq::EVENT_FD, files));
        let _ = both.issue(&create_srq(pd, 4, 1).file(attr::create_srq::EVENT_FD, files));
        let _ = both.issue(&create_qp(&of).file(attr::create_qp::EVENT_FD, files));
    }
}

fn completion_queues(both: &mut Both) {
    both.does(&alloc_pd());
    both.sweep(|_| create_cq(16));
    for cqe in [0, 1, 2, 3, 63, 64, 1000, 32766, 32767, 32768, 1 << 20, i32::MAX as u32, 1 << 31, u32::MAX] {
        let _ = both.issue(&create_cq(cqe));
    }
    let cq = both.does(&create_cq(16));
    both.sweep(|_| resize_cq(cq, 20));
    for cqe in [0, 1, 3, 100, 32767, 32768, 1 << 31, u32::MAX] {
        let _ = both.issue(&resize_cq(cq, cqe));
        let _ = both.issue(&resize_cq(NOTHING, cqe));
    }
    both.sweep(|_| req_notify_cq(cq, 0));
    for solicited_only in [1, 2, u32::MAX] {
        let _ = both.issue(&req_notify_cq(cq, solicited_only));
    }
    both.sweep(|both| {
        let cq = both.does(&create_cq(1));
        destroy(Kind::Cq, cq)
    });
}

fn shared_receive_queues(both: &mut Both) {
    let (pd, _) = both.pd_and_cq();
    both.sweep(|_| create_srq(pd, 8, 2));
    for max_wr in [0, 1, 2, 7, 8, 1000, (1 << 20) + 1, 1 << 31, u32::MAX] {
        for max_sge in [0, 1, 27, 28, 32, 1 << 31] {
            if let Ok(srq) = both.issue(&create_srq(pd, max_wr, max_sge)) {
                let _ = both.issue(&query_srq(srq));
            }
        }
    }
    for kind in 0..5 {
        let call = create_srq(pd, 4, 1);
        let place = call.args.iter().position(|arg| arg.attr.attr_id == attr::create_srq::TYPE).unwrap();
        let _ = both.issue(&call.but(format!("type {kind}"), |call| call.args[place].attr.data = kind));
    }
    let _ = both
        .issue(&create_srq(pd, 4, 1).output(attr::create_srq::RESP_SRQ_NUM, 4).hide(0..4, Accepted::Numbers));
    let srq_handle = both.does(&create_srq(pd, 8, 2));
    both.sweep(|_| query_srq(srq_handle));
    let change = |attr_mask, max_wr, srq_limit| ModifySrq { srq_handle, attr_mask, max_wr, srq_limit };
    both.sweep(|_| modify_srq(&change(2, 0, 3)));
    for mask in 0..6 {
        for max_wr in [0, 1, 5, 100, (1 << 20) + 1, u32::MAX] {
            for limit in [0, 1, 5, 100, 101, (1 << 20) + 1, u32::MAX] {
                let _ = both.issue(&modify_srq(&change(mask, max_wr, limit)));
                let _ = both.issue(&query_srq(srq_handle));
            }
        }
    }
    both.sweep(|both| {
        let srq = both.does(&create_srq(pd, 1, 1));
        destroy(Kind::Srq, srq)
    });
}

fn address_handles(both: &mut Both) {
    let (pd, _) = both.pd_and_cq();
    let right = ah_attr(GID, 1);
    both.sweep(|_| create_ah(pd, right));
    for dgid in [GID, GROUP, [0; 16], [0xff; 16]] {
        for (sgid_index, port_num, is_global) in
            [(1, 1, 1), (0, 1, 1), (60, 1, 1), (1, 0, 1), (1, 2, 1), (1, 1, 0), (60, 1, 0), (1, 1, 2)]
        {
            // One that nobody has takes long to find out.
            if sgid_index == 0 && dgid == [0; 16] {
                continue;
            }
            let grh = GlobalRoute { dgid, sgid_index, ..right.grh };
            let _ = both.issue(&create_ah(pd, AhAttr { grh, port_num, is_global, ..right }));
        }
    }
    for legacy in [false, true] {
        both.sweep(|both| {
            let ah = both.does(&create_ah(pd, right));
            destroy_legacy(Kind::Ah, ah).filter(|_| legacy).unwrap_or(destroy(Kind::Ah, ah))
        });
    }
}

fn groups(both: &mut Both) {
    let (rc, ud) = (both.qp(qp_type::RC), both.qp(qp_type::UD));
    both.sweep(|_| attach_mcast(GROUP, ud));
    both.sweep(|both| {
        let _ = both.issue(&attach_mcast(GROUP, ud));
        detach_mcast(GROUP, 0, ud)
    });
    for gid in [GROUP, GID, [0; 16], [0xff; 16]] {
        for qp in [ud, rc, NOTHING] {
            for mlid in [0, 1] {
                let _ = both.issue(&attach_mcast(gid, qp));
                let _ = both.issue(&attach_mcast(gid, qp));
                let _ = both.issue(&destroy(Kind::Qp, qp));
                let _ = both.issue(&detach_mcast(gid, mlid, qp));
                let _ = both.issue(&detach_mcast(gid, mlid, qp));
            }
        }
    }
}

fn what_is_in_use(both: &mut Both) {
    let (pd, cq) = both.pd_and_cq();
    let other = both.does(&create_cq(4));
    let srq = both.does(&create_srq(pd, 4, 1));
    let mr = both.does(&reg_mr(&region(pd, 4096, AccessFlags::empty())));
    let mw = both.does(&alloc_mw(pd, 1));
    let ah = both.does(&create_ah(pd, ah_attr(GID, 1)));
    let of = QpOf { pd, cq, srq: Some(srq), kind: qp_type::UD, flags: 0, cap: CAP };
    let qp = both.does(&create_qp(&of).but("another CQ", |call| call.args[3].attr.data = other.into()));
    both.does(&attach_mcast(GROUP, qp));
    let all = [
        (Kind::Pd, pd),
        (Kind::Cq, cq),
        (Kind::Cq, other),
        (Kind::Srq, srq),
        (Kind::Qp, qp),
        (Kind::Mr, mr),
        (Kind::Mw, mw),
        (Kind::Ah, ah),
    ];
    let refused = |both: &mut Both, kinds: &[Kind]| {
        for (kind, handle) in all.iter().filter(|(kind, _)| kinds.contains(kind)) {
            for call in [Some(destroy(*kind, *handle)), destroy_legacy(*kind, *handle)].into_iter().flatten()
            {
                let result = both.issue(&call);
                assert!(result.is_err_and(|errno| errno != NOT_ISSUED), "{call}: {result:?}");
            }
        }
    };
    refused(both, &[Kind::Pd, Kind::Cq, Kind::Srq, Kind::Qp]);
    both.does(&detach_mcast(GROUP, 0, qp));
    refused(both, &[Kind::Pd, Kind::Cq, Kind::Srq]);
    both.does(&destroy(Kind::Qp, qp));
    both.does(&destroy(Kind::Cq, other));
    for (kind, handle) in [(Kind::Srq, srq), (Kind::Mr, mr), (Kind::Mw, mw), (Kind::Ah, ah)] {
        refused(both, &[Kind::Pd]);
        both.does(&destroy(kind, handle));
    }
    both.does(&destroy(Kind::Pd, pd));
    both.does(&destroy(Kind::Cq, cq));
    refused(both, &Kind::ALL);
}

/// Every command on handles of other kinds, and on those of nothing.
fn what_is_gone(both: &mut Both) {
    let (pd, cq) = both.pd_and_cq();
    let srq = both.does(&create_srq(pd, 4, 1));
    let mr = both.does(&reg_mr(&region(pd, 4096, AccessFlags::empty())));
    for handle in [pd, cq, srq, mr, NOTHING, u32::MAX] {
        for call in [
            reg_mr(&region(handle, 4096, AccessFlags::empty())),
            query_mr(handle),
            alloc_mw(handle, 1),
            resize_cq(handle, 5),
            req_notify_cq(handle, 0),
            create_srq(handle, 4, 1),
            query_srq(handle),
            modify_srq(&ModifySrq { srq_handle: handle, attr_mask: 0, max_wr: 0, srq_limit: 0 }),
            create_qp(&QpOf { pd: handle, cq, srq: None, kind: qp_type::RC, flags: 0, cap: CAP }),
            create_qp(&QpOf { pd, cq: handle, srq: None, kind: qp_type::RC, flags: 0, cap: CAP }),
            create_qp(&QpOf { pd, cq, srq: Some(handle), kind: qp_type::RC, flags: 0, cap: CAP }),
            modify_qp(&to_state(handle, qp_type::RC, qp_state::INIT)),
            query_qp(handle),
            post_send(handle),
            create_ah(handle, ah_attr(GID, 1)),
            attach_mcast(GROUP, handle),
            detach_mcast(GROUP, 0, handle),
        ] {
            let _ = both.issue(&call);
        }
    }
}

fn counters(both: &mut Both) {
    let (qp, other) = (both.qp(qp_type::RC), both.qp(qp_type::RC));
    both.sweep(|_| query_comp_cntr_caps());
    both.sweep(|_| create_comp_cntr());
    let counter = both.does(&create_comp_cntr());
    both.sweep(|_| modify_comp_cntr(counter, 0, 0, 5));
    both.sweep(|_| read_comp_cntr(counter, 0));
    for (entry, operation, value) in
        [(0, 0, 9), (1, 0, 7), (0, 1, 1), (1, 1, u64::MAX), (2, 0, 0), (0, 2, 0), (0, 1, u64::MAX)]
    {
        let _ = both.issue(&modify_comp_cntr(counter, entry, operation, value));
        for entry in 0..3 {
            let _ = both.issue(&read_comp_cntr(counter, entry));
        }
    }
    both.sweep(|_| attach_comp_cntr(other, counter, 1));
    for operations in [0, 1, 2, 3, 4, 0x3f, 0x40, 0x3c, 1 << 32] {
        let _ = both.issue(&attach_comp_cntr(qp, counter, operations));
    }
    let _ = both.issue(&destroy(Kind::Counter, counter));
    let _ = both.issue(&destroy(Kind::Qp, qp));
    let _ = both.issue(&destroy(Kind::Counter, counter));
    let _ = both.issue(&destroy(Kind::Qp, other));
    let _ = both.issue(&destroy(Kind::Counter, counter));
    both.sweep(|both| {
        let counter = both.does(&create_comp_cntr());
        destroy(Kind::Counter, counter)
    });
}
