//! Work in rings that a number determines, mostly right: one request after the other, until one of the QPs has failed.
//!
//! None of it is on memory windows, whose invalidation the kernel's driver does not always survive.

use uverbs_ioctl::uapi::ioctl_verbs::AccessFlags;
use uverbs_ioctl::uapi::rxe::Sge;
use uverbs_ioctl::uapi::user_verbs::wr_opcode as op;
use uverbs_ioctl::uapi::values::SendFlags;
use zerocopy::IntoBytes;

use super::bench::{BASE, Bench, HALF, Request, Setup};
use super::generated::{LENGTH, Random, extent};
use super::queues::{atomic, compare, rdma};
use super::tell;

pub(super) fn generated_work_is_done_alike() {
    let (count, first) = extent();
    let mut differences = Vec::new();
    for seed in (first..).take(count.div_ceil(LENGTH)) {
        let mut random = Random { seed, drawn: 0 };
        let all = Setup::default().access;
        let setup = Setup {
            mtu: random.one_of(&[1, 2, 3, 5]),
            access: random.one_of(&[all, all, all, AccessFlags::REMOTE_READ, AccessFlags::REMOTE_WRITE]),
            signal_all: random.below(2) == 0,
            reads: random.one_of(&[1, 4, 16]),
            ..Setup::default()
        };
        let plan: Vec<Planned> = (0..REQUESTS).map(|_| Planned::new(&mut random)).collect();
        let name = format!("UVERBS_TEST_DIFFERENTIAL={LENGTH}:{seed}: {setup:?} {plan:?}");
        differences.extend(compare(&name, &setup, 1, |bench| {
            let mut in_packets = false;
            for (number, planned) in plan.iter().enumerate() {
                // Receives that are posted to a QP that has failed stay there.
                if bench.is_broken(0) || bench.is_broken(1) {
                    break;
                }
                planned.run(bench, number as u64);
                in_packets = planned.bytes() > 128 << setup.mtu;
            }
            if in_packets && (bench.is_broken(0) || bench.is_broken(1)) {
                bench.forget_memory();
                bench.forget_numbers();
            }
        }));
    }
    tell(&differences);
}

/// Requests of a sequence.
const REQUESTS: usize = 12;

/// Where receives and what the peer reads and writes begin in the memory that may be written.
const RECEIVED: u64 = 4096;
const REMOTE: u64 = 10240;

/// A request that is to be posted, with keys that are not yet known.
#[derive(Debug)]
struct Planned {
    from: usize,
    opcode: u32,
    flags: u32,
    /// By key, offset and bytes.
    sges: Vec<(Key, u64, u32)>,
    inline: usize,
    remote: (Key, u64),
    length: Option<u32>,
    /// The receive that is posted for it, if one is.
    receive: Option<(Key, u64, u32)>,
}

#[derive(Clone, Copy, Debug)]
enum Key {
    Writable,
    Readable,
    Wrong,
}

impl Key {
    fn of(self, bench: &Bench<'_>) -> u32 {
        match self {
            Self::Writable => bench.writable,
            Self::Readable => bench.readable,
            Self::Wrong => bench.writable ^ 0x55,
        }
    }
}

impl Planned {
    fn new(random: &mut Random) -> Self {
        let mut opcodes = vec![
            op::SEND,
            op::SEND_WITH_IMM,
            op::RDMA_WRITE,
            op::RDMA_WRITE_WITH_IMM,
            op::RDMA_READ,
            op::ATOMIC_CMP_AND_SWP,
            op::ATOMIC_FETCH_AND_ADD,
            op::ATOMIC_WRITE,
        ];
        // One that there is not.
        opcodes.push(if random.below(8) == 0 { 60 } else { op::SEND });
        let opcode = random.one_of(&opcodes);
        let key = |random: &mut Random| match random.below(40) {
            0 => Key::Wrong,
            1 => Key::Readable,
            _ => Key::Writable,
        };
        let atomic = matches!(opcode, op::ATOMIC_CMP_AND_SWP | op::ATOMIC_FETCH_AND_ADD);
        let place = |random: &mut Random| {
            let edge = random.below(40) == 0;
            if edge { HALF - 8 + random.below(9) as u64 } else { 8 * random.below(300) as u64 }
        };
        // Another than the first can be wrong only when some packets have been sent.
        let sge = |random: &mut Random, first: bool| {
            if !first {
                return (
                    Key::Writable,
                    8 * random.below(300) as u64,
                    random.one_of(&[0, 1, 8, 100, 257, 1024]),
                );
            }
            let length = if atomic { 8 } else { random.one_of(&[0, 1, 8, 100, 256, 257, 1024, 1500]) };
            (key(random), place(random), length)
        };
        let count = if atomic { 1 } else { random.below(4) };
        let sges = (0..count).map(|place| sge(random, place == 0)).collect();
        let inline = opcode == op::ATOMIC_WRITE || !atomic && opcode != op::RDMA_READ && random.below(5) == 0;
        let signaled = if random.below(3) > 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        let mut flags =
            signaled.bits() | random.one_of(&[0, 0, SendFlags::SOLICITED.bits(), SendFlags::FENCE.bits()]);
        if inline {
            flags |= SendFlags::INLINE.bits();
        }
        let remote_key = match random.below(12) {
            0 => Key::Readable,
            1 if random.below(4) == 0 => Key::Wrong,
            _ => Key::Writable,
        };
        let beyond = if random.below(30) == 0 { 4 } else { 0 };
        // Apart from what is sent and received: where those overlap it matters how packets are cut.
        let offset = if let Key::Readable = remote_key { HALF } else { REMOTE };
        let remote = 8 * random.below(100) as u64 + beyond + offset;
        Self {
            from: random.below(2),
            opcode,
            flags,
            sges: if inline { Vec::new() } else { sges },
            inline: if opcode == op::ATOMIC_WRITE { 8 } else { usize::from(inline) * random.below(65) },
            remote: (remote_key, remote),
            length: (random.below(60) == 0).then(|| if atomic { 5000 } else { random.one_of(&[0, 7]) }),
            receive: (random.below(25) > 0).then(|| {
                let wrong = random.below(20) == 0;
                let edge = if wrong { HALF - 8 } else { RECEIVED + 8 * random.below(100) as u64 };
                (key(random), edge, random.one_of(&[5000, 5000, 3000, 64]))
            }),
        }
    }

    /// Bytes of the message.
    fn bytes(&self) -> u32 {
        let there = self.sges.iter().map(|(_, _, length)| length).sum::<u32>() + self.inline as u32;
        self.length.unwrap_or(there)
    }

    fn run(&self, bench: &mut Bench<'_>, wr_id: u64) {
        let sge = |&(key, offset, length): &(Key, u64, u32)| Sge {
            addr: BASE + offset,
            length,
            lkey: key.of(bench),
        };
        let takes = [op::SEND, op::SEND_WITH_IMM, op::RDMA_WRITE_WITH_IMM].contains(&self.opcode);
        if let Some(receive) = self.receive.as_ref().filter(|_| takes) {
            bench.receive(1 - self.from, 100 + wr_id, &[sge(receive)]);
        }
        let sges: Vec<_> = self.sges.iter().map(sge).collect();
        let inline: Vec<u8> = (0..self.inline as u8).map(|byte| byte ^ wr_id as u8).collect();
        let rkey = self.remote.0.of(bench);
        let address = BASE + self.remote.1;
        let (rdma, atomic) = (rdma(address, rkey), atomic(address, rkey, wr_id * 77, 5));
        let of_atomic = matches!(self.opcode, op::ATOMIC_CMP_AND_SWP | op::ATOMIC_FETCH_AND_ADD);
        let request = Request {
            opcode: self.opcode,
            flags: self.flags,
            ex: 0x100 + wr_id as u32,
            part: if of_atomic { atomic.as_bytes() } else { rdma.as_bytes() },
            sges: &sges,
            inline: &inline,
            length: self.length,
            num_sge: None,
        };
        bench.run(self.from, wr_id, &request);
    }
}
