//! Rings as the kernel maps them, and what happens when somebody writes over their headers.

use std::fs;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use uverbs::{
    QueuePairCapabilities, QueuePairInit, ReceiveRequest, RemoteMemory, SendRequest, WorkCompletion,
};
use uverbs_ioctl::uapi::rxe::{QueueBuf, RecvWqe, SendWqe};
use uverbs_ioctl::uapi::user_verbs::Wc;

use crate::common::{Holdings, Pair, Setup, open};
use crate::soft::SoftDevice;

crate::cases! {
    Alone vb_39_mappings_are_as_long_as_their_rings;
    Alone vb_38_headers_that_are_written_over;
}

/// A ring of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    start: usize,
    length: usize,
}

/// Words of a header.
const SHIFT: usize = 0;
const MASK: usize = 4;
const PRODUCER: usize = std::mem::offset_of!(QueueBuf, producer_index);
const CONSUMER: usize = std::mem::offset_of!(QueueBuf, consumer_index);

impl Mapping {
    fn all() -> Vec<Self> {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let rings = maps.lines().filter(|line| line.contains("infiniband"));
        let mut seen = Vec::new();
        rings
            // A device inside the process has mapped its rings too.
            .filter(|line| {
                let memory = line.split_whitespace().skip(2).take(3).collect::<Vec<_>>().join(" ");
                let new = !seen.contains(&memory);
                seen.push(memory);
                new
            })
            .map(|line| {
                let (range, rest) = line.split_once(' ').unwrap();
                assert!(rest.starts_with("rw-s"), "{line}");
                let (start, end) = range.split_once('-').unwrap();
                let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
                Self { start, length: end - start }
            })
            .collect()
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= size_of::<QueueBuf>());
        // SAFETY: a word of the header of a ring, aligned, that is touched as an atomic only; the caller keeps the ring's owner.
        unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(self.start + offset)) }
    }

    /// Slots and bytes of one, as the header says.
    fn geometry(&self) -> (usize, usize) {
        let word = |offset| self.word(offset).load(Ordering::Relaxed);
        (word(MASK) as usize + 1, 1 << word(SHIFT))
    }
}

/// The mappings that something adds.
fn added<T>(make: impl FnOnce() -> T) -> (T, Vec<Mapping>) {
    let before = Mapping::all();
    let made = make();
    let new = Mapping::all().into_iter().filter(|mapping| !before.contains(mapping)).collect();
    (made, new)
}

fn page_size() -> usize {
    rustix::param::page_size()
}

fn vb_39_mappings_are_as_long_as_their_rings() {
    let context = open();
    let domain = context.alloc_protection_domain().unwrap();
    let mut big = context.create_completion_queue(1, None, 0).unwrap();
    let before = Holdings::of_this_process();
    let check = |mapping: &Mapping, entries: u32, least: usize| {
        let (slots, size) = mapping.geometry();
        assert_eq!(slots, entries as usize + 1);
        assert!(size >= least, "{size} bytes for {least}");
        let length = size_of::<QueueBuf>() + slots * size;
        assert_eq!(mapping.length, length.next_multiple_of(page_size()), "{slots} slots of {size} bytes");
    };
    for entries in [1, 50, 61, 63, 64, 1000, 4000] {
        let (mut cq, new) = added(|| context.create_completion_queue(entries, None, 0).unwrap());
        assert_eq!(new.len(), 1);
        check(&new[0], cq.entries(), size_of::<Wc>());
        // Another ring takes the place of the first.
        let ((), new) = added(|| cq.resize(2 * entries).unwrap());
        assert_eq!(new.len(), 1);
        check(&new[0], cq.entries(), size_of::<Wc>());
        drop(cq);
        assert_eq!(Holdings::of_this_process(), before, "{entries} entries");
    }
    for (wr, sge, inline) in [(1, 1, 0), (3, 2, 17), (100, 4, 220), (1000, 8, 512)] {
        let capabilities = QueuePairCapabilities {
            max_send_wr: wr,
            max_recv_wr: wr,
            max_send_sge: sge,
            max_recv_sge: sge,
            max_inline_data: inline,
        };
        let init = QueuePairInit { capabilities, ..QueuePairInit::reliable_connection(&big) };
        let (qp, new) = added(|| domain.create_queue_pair(&init).unwrap());
        let granted = qp.capabilities();
        let mut slots = [granted.max_send_wr, granted.max_recv_wr].map(|entries| entries as usize + 1);
        let mut found: Vec<_> = new.iter().map(|mapping| mapping.geometry().0).collect();
        found.sort_unstable();
        slots.sort_unstable();
        assert_eq!(found, slots);
        let payload = (16 * granted.max_send_sge).max(granted.max_inline_data) as usize;
        let send = size_of::<SendWqe>() + payload;
        let receive = size_of::<RecvWqe>() + 16 * granted.max_recv_sge as usize;
        for mapping in &new {
            let is_send = mapping.geometry().1 >= send;
            let entries = if is_send { granted.max_send_wr } else { granted.max_recv_wr };
            check(mapping, entries, if is_send { send } else { receive });
        }
        drop(qp);
        assert_eq!(Holdings::of_this_process(), before, "{wr} requests");
    }
    let (srq, new) = added(|| domain.create_shared_receive_queue(100, 3).unwrap());
    assert_eq!(new.len(), 1);
    check(&new[0], srq.max_wr(), size_of::<RecvWqe>() + 16 * srq.max_sge() as usize);
    drop(srq);
    assert_eq!(Holdings::of_this_process(), before);
    // Zero entries map nothing.
    big.resize(0).unwrap_err();
    assert_eq!(Holdings::of_this_process(), before);
}

/// Geometry and indices are random numbers while messages go to and fro. They may be lost, fail and come twice; nothing else happens, and the
/// device serves the next one.
fn vb_38_headers_that_are_written_over() {
    const TIME: Duration = Duration::from_secs(1);
    let soft = SoftDevice::new();
    for words in [[SHIFT, MASK], [PRODUCER, CONSUMER]] {
        let context = soft.device().open().unwrap();
        let setup = Setup { access: uverbs::AccessFlags::REMOTE_WRITE, ..Setup::default() };
        let (pair, rings) = added(|| setup.pair_in(&context));
        assert_eq!(rings.len(), 6);
        let Pair { mut a, mut b } = pair;
        let done = AtomicBool::new(false);
        let mut polled = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = 1_u64;
                while !done.load(Ordering::Relaxed) {
                    for ring in &rings {
                        for offset in words {
                            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            let number = (random >> 33) as u32;
                            // Small numbers look right.
                            let number = if number.is_multiple_of(2) { number } else { number % 64 };
                            ring.word(offset).store(number, Ordering::Relaxed);
                        }
                    }
                    thread::yield_now();
                }
            });
            let end = Instant::now() + TIME;
            let mut completions = [WorkCompletion::default(); 100];
            while Instant::now() < end {
                let to = RemoteMemory { address: b.memory.address() + 2048, rkey: b.memory.rkey() };
                let (from, into) = ([a.memory.sge(0..1000)], [b.memory.sge(0..2000)]);
                // What becomes of these is not told: a queue may be full, a QP broken.
                let _ = b.qp.post_receive(&[ReceiveRequest::new(1, &into); 3]);
                let _ = a.qp.post_send_list(&[SendRequest::send(2, &from).signaled(); 2]);
                let write = SendRequest::rdma_write_inline(3, &[b"inline"], to).immediate(1);
                let _ = a.qp.post_send().push(&write).push(&write).submit();
                polled += a.cq.poll(&mut completions).len() + b.cq.poll(&mut completions[..7]).len();
                assert!(a.qp.query().is_ok() && b.qp.query().is_ok());
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(polled > 0);
        // The driver waits for this index among those of the ring. One beyond it never comes, so the task of a QP that has failed never ends, and
        // destroying the QP takes 50 seconds.
        for ring in &rings {
            ring.word(PRODUCER).store(0, Ordering::Release);
        }
        drop((a, b));
        setup.pair_in(&context).works();
    }
    Setup::default().pair_in(&soft.device().open().unwrap()).works();
}
