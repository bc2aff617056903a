//! Sequences that a number determines: commands for objects that earlier ones have made, mostly right, at times with one of their wrongs.
//!
//! `UVERBS_TEST_DIFFERENTIAL=COMMANDS` says how many commands there are, `UVERBS_TEST_DIFFERENTIAL=COMMANDS:SEED` with which number to
//! begin. For every 200 of them there is some work in rings as well ([`planned`](super::planned)).

use std::time::Duration;

use uverbs_ioctl::uapi::ioctl_cmds::attr;
use uverbs_ioctl::uapi::ioctl_verbs::{GidEntry, QpCap, qp_type};
use uverbs_ioctl::uapi::user_verbs::{AhAttr, ModifyQp, ModifySrq, RegMr, ReregMr};
use uverbs_ioctl::uapi::values::qp_state;

use super::call::{Call, Kind};
use super::commands::*;
use super::queue_pairs::to_state;
use super::spoil::{NOTHING, wrongs};
use super::written::{GID, GROUP, memory};
use super::{Both, tell};
use crate::stress::mix;

/// Commands of one sequence, with contexts of their own.
pub(super) const LENGTH: usize = 200;

/// How many commands there are, and the number of the first sequence.
pub(super) fn extent() -> (usize, u64) {
    let text = std::env::var("UVERBS_TEST_DIFFERENTIAL").unwrap_or_else(|_| "4000".to_owned());
    let (count, seed) = text.split_once(':').unwrap_or((&text, "0"));
    let wrong = "UVERBS_TEST_DIFFERENTIAL=COMMANDS or COMMANDS:SEED";
    (count.parse().expect(wrong), seed.parse().expect(wrong))
}

/// How much longer the test may take if there are many.
pub(crate) fn allowance() -> Duration {
    Duration::from_millis(20) * extent().0 as u32
}

pub(super) fn generated_sequences_are_answered_alike() {
    let (count, first) = extent();
    let mut differences = Vec::new();
    let (mut issued, mut succeeded, mut excluded) = (0, 0, 0);
    for seed in (first..).take(count.div_ceil(LENGTH)) {
        let mut sequence = Sequence { both: Both::new(), random: Random { seed, drawn: 0 } };
        // After one difference the devices differ in much.
        let step = (0..LENGTH).find(|_| {
            sequence.step();
            !sequence.both.differences.is_empty()
        });
        issued += sequence.both.issued;
        succeeded += sequence.both.succeeded;
        excluded += sequence.both.excluded;
        if step.is_none() {
            sequence.both.destroy_all();
        }
        differences.extend(sequence.both.differences.iter().map(|difference| {
            let step = step.unwrap_or_default();
            format!("step {step} of UVERBS_TEST_DIFFERENTIAL={LENGTH}:{seed}: {difference}")
        }));
    }
    eprintln!("{issued} commands, {succeeded} succeeded, {excluded} not issued");
    tell(&differences);
    // Not all of them were wrong.
    assert!(succeeded > issued / 3, "only {succeeded} of {issued} succeeded");
}

/// Numbers that look random.
pub(super) struct Random {
    pub(super) seed: u64,
    pub(super) drawn: u64,
}

impl Random {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.drawn += 1;
        (mix(mix(self.seed) ^ self.drawn) % limit as u64) as usize
    }

    pub(super) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}

struct Sequence {
    both: Both,
    random: Random,
}

impl Sequence {
    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit)
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        self.random.one_of(values)
    }

    /// Mostly an object of that kind, at times another, or none.
    fn handle(&mut self, kind: Kind) -> u32 {
        let any = self.below(30) == 0;
        let there: Vec<_> =
            self.both.objects.iter().filter(|(other, _)| any || *other == kind).map(|(_, it)| *it).collect();
        if there.is_empty() { NOTHING } else { self.one_of(&there) }
    }

    fn step(&mut self) {
        let mut call = self.command();
        if self.below(3) == 0 {
            let wrongs = wrongs(&call, &self.both.one_of_each_kind());
            let wrong = self.below(wrongs.len());
            call = wrongs[wrong].applied(&call);
        }
        // The answer is of no interest, but to compare.
        let _ = self.both.issue(&call);
    }

    fn command(&mut self) -> Call {
        // Without these there is nothing to do much with.
        if self.both.objects.len() < 2 {
            return if self.below(2) == 0 { alloc_pd() } else { create_cq(16) };
        }
        match self.below(32) {
            0 => alloc_pd(),
            1 | 2 => self.create_cq(),
            3 | 4 => self.reg_mr(),
            5 => self.rereg_mr(),
            6 => query_mr(self.handle(Kind::Mr)),
            7 => alloc_mw(self.handle(Kind::Pd), self.one_of(&[1, 2, 0, 3])),
            8 => resize_cq(self.handle(Kind::Cq), self.one_of(&[1, 3, 100, 0, 32767, 32768])),
            9 => req_notify_cq(self.handle(Kind::Cq), self.one_of(&[0, 1, 7])),
            10 | 11 => {
                let (max_wr, max_sge) = (self.one_of(&[1, 5, 64, 0, u32::MAX]), self.one_of(&[0, 1, 27, 28]));
                create_srq(self.handle(Kind::Pd), max_wr, max_sge)
            }
            12 => query_srq(self.handle(Kind::Srq)),
            13 => self.modify_srq(),
            14..=16 => self.create_qp(),
            17..=20 => self.modify_qp(),
            21 => query_qp(self.handle(Kind::Qp)),
            22 => post_send(self.handle(Kind::Qp)),
            23 => {
                let dgid = self.one_of(&[GID, GROUP, [0; 16], [0xff; 16]]);
                let is_global = self.one_of(&[1, 1, 1, 0]);
                create_ah(self.handle(Kind::Pd), AhAttr { is_global, ..ah_attr(dgid, self.one_of(&[1, 60])) })
            }
            24 => attach_mcast(self.one_of(&[GROUP, GROUP, GID]), self.handle(Kind::Qp)),
            25 => detach_mcast(GROUP, self.one_of(&[0, 1]), self.handle(Kind::Qp)),
            26 => self.query(),
            27 => self.one_of(&[create_comp_channel, alloc_async_event])(),
            _ => self.destroy(),
        }
    }

    fn query(&mut self) -> Call {
        match self.below(5) {
            0 => query_device(),
            1 => query_device_ex(0, DEVICE_EX),
            2 => query_port(1),
            3 => query_gid_entry(1, self.one_of(&[0, 1, 2, 1024])),
            _ => query_gid_table(size_of::<GidEntry>() as u64, 2),
        }
    }

    fn create_cq(&mut self) -> Call {
        let cqe = self.one_of(&[1, 16, 100, 32767, 0, 32768]);
        let files = self.both.last_file();
        match self.below(4) {
            0 => create_cq_on(cqe, files),
            1 => create_cq(cqe).file(attr::create_cq::EVENT_FD, files),
            _ => create_cq(cqe),
        }
    }

    fn reg_mr(&mut self) -> Call {
        let start = memory() + self.one_of(&[0, 1, 4095, 4096]);
        let hca_va = start + self.one_of(&[0, 0, 0, 4096, 1]);
        let length = self.one_of(&[4096, 1, 8192, 0, 1 << 63]);
        let access_flags =
            self.one_of(&[0, 1, 1, 3, 7, 0xf, 0x10, 0x11, 0x101, 0x20, 0x80, 2, 1 << 19, 1 << 20]);
        let pd_handle = self.handle(Kind::Pd);
        reg_mr(&RegMr { start, hca_va, length, pd_handle, access_flags, ..Default::default() })
    }

    fn rereg_mr(&mut self) -> Call {
        let flags = self.one_of(&[2, 4, 6, 1, 3, 0, 8]);
        let access_flags = self.one_of(&[0, 1, 3, 2, 0x20]);
        let (mr_handle, pd_handle) = (self.handle(Kind::Mr), self.handle(Kind::Pd));
        rereg_mr(&ReregMr { mr_handle, flags, pd_handle, access_flags, ..Default::default() })
    }

    fn modify_srq(&mut self) -> Call {
        let attr_mask = self.one_of(&[1, 2, 3, 0, 4]);
        let (max_wr, srq_limit) = (self.one_of(&[1, 10, 64, 0]), self.one_of(&[0, 1, 10, 65]));
        modify_srq(&ModifySrq { srq_handle: self.handle(Kind::Srq), attr_mask, max_wr, srq_limit })
    }

    fn create_qp(&mut self) -> Call {
        let kind = self.one_of(&[qp_type::RC, qp_type::RC, qp_type::UC, qp_type::UD, qp_type::UD, 9, 8, 77]);
        let number = |sequence: &mut Self| sequence.one_of(&[0, 1, 3, 16, 100, (1 << 20) + 1]);
        let few = |sequence: &mut Self| sequence.one_of(&[0, 1, 2, 32, 33]);
        let cap = QpCap {
            max_send_wr: number(self),
            max_recv_wr: number(self),
            max_send_sge: few(self),
            max_recv_sge: few(self),
            max_inline_data: self.one_of(&[0, 0, 1, 17, 512, 513]),
        };
        let flags = self.one_of(&[0, 0, 0, 1 << 12, 2, 1 << 8, 1 << 30]);
        let srq = (self.below(4) == 0).then(|| self.handle(Kind::Srq));
        create_qp(&QpOf { pd: self.handle(Kind::Pd), cq: self.handle(Kind::Cq), srq, kind, flags, cap })
    }

    fn modify_qp(&mut self) -> Call {
        use qp_state::{ERR, INIT, RESET, RTR, RTS, SQD, SQE};
        let state = self.one_of(&[RESET, INIT, INIT, RTR, RTR, RTS, RTS, SQD, SQE, ERR]);
        let kind = self.one_of(&[qp_type::RC, qp_type::RC, qp_type::UC, qp_type::UD]);
        let right = to_state(self.handle(Kind::Qp), kind, state);
        let turned = if self.below(5) == 0 { 1 << self.below(27) } else { 0 };
        modify_qp(&ModifyQp { attr_mask: right.attr_mask ^ turned, ..right })
    }

    fn destroy(&mut self) -> Call {
        let place = self.below(self.both.objects.len());
        let (kind, handle) = self.both.objects[place];
        let legacy = destroy_legacy(kind, handle).filter(|_| self.below(2) == 0);
        legacy.unwrap_or(destroy(kind, handle))
    }
}
