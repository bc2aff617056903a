//! What the library itself costs, on a device inside the process: no kernel, no privileges. `cargo bench -p uverbs-benches`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use uverbs::soft::{Device, Wire};
use uverbs::{
    AccessFlags, AddressVector, CompletionQueue, Context, CounterType, GidEntry, MemoryRegion,
    ModifyQueuePair, Mtu, ProtectionDomain, QueuePair, QueuePairCapabilities, QueuePairInit, QueuePairState,
    ReceiveRequest, ScatterGather, SendRequest, WorkCompletion,
};
use uverbs_ioctl::calls::{self, CqRequest};
use uverbs_ioctl::{Doorbell, Errno, MmapRaw, Packet, Transport};

const PORT: u8 = 1;
const DEPTH: u32 = 256;
const BATCH: u32 = 32;
const MESSAGE: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);

/// A device with nothing behind it: what is left is the making of a command.
#[derive(Debug)]
struct Nothing;

// SAFETY: it writes nothing through attributes and maps nothing.
unsafe impl Transport for Nothing {
    fn driver_id(&self) -> u32 {
        0
    }

    fn issue(&self, packet: &mut Packet) -> Result<(), Errno> {
        black_box(packet);
        Ok(())
    }

    fn doorbell(&self, _: Doorbell) -> Result<(), Errno> {
        Ok(())
    }

    fn map(&self, _: u64, _: usize) -> Result<MmapRaw, Errno> {
        Err(Errno::EINVAL)
    }
}

/// A QP connected to itself, and what it needs.
struct Setup {
    qp: QueuePair,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    source: [ScatterGather; 1],
    target: [ScatterGather; 1],
    gid: GidEntry,
    _region: MemoryRegion,
    _domain: ProtectionDomain,
    context: Context,
}

impl Setup {
    fn new() -> Result<Self> {
        let context = uverbs::Device::from(Device::new(&Wire::new(), "bench0")).open()?;
        let domain = context.alloc_protection_domain()?;
        let region = domain.allocate(2 * MESSAGE, AccessFlags::LOCAL_WRITE)?;
        let send_cq = context.create_completion_queue(DEPTH, None, 0)?;
        let recv_cq = context.create_completion_queue(DEPTH, None, 0)?;
        let capabilities =
            QueuePairCapabilities { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..Default::default() };
        let init =
            QueuePairInit { recv_cq: &recv_cq, capabilities, ..QueuePairInit::reliable_connection(&send_cq) };
        let qp = domain.create_queue_pair(&init)?;
        let gid = context.routable_gid(PORT, None)?;
        let mut setup = Self {
            qp,
            send_cq,
            recv_cq,
            source: [region.sge(0..MESSAGE)],
            target: [region.sge(MESSAGE..2 * MESSAGE)],
            gid,
            _region: region,
            _domain: domain,
            context,
        };
        setup.connect()?;
        Ok(setup)
    }

    fn connect(&mut self) -> Result<()> {
        let peer = AddressVector::global(PORT, self.gid.gid, self.gid.index as u8);
        self.qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty()))?;
        let number = self.qp.qp_num();
        self.qp.modify(&ModifyQueuePair::ready_to_receive(peer, number, 0, Mtu::Bytes1024))?;
        Ok(self.qp.modify(&ModifyQueuePair::ready_to_send(0))?)
    }

    /// The queues are empty when it returns.
    fn empty(&mut self) -> Result<()> {
        self.qp.modify(&ModifyQueuePair::to(QueuePairState::Reset))?;
        self.connect()
    }

    fn post_receives(&mut self, count: u32) -> Result<()> {
        for wr_id in 0..count.into() {
            self.qp.post_receive(&[ReceiveRequest::new(wr_id, &self.target)])?;
        }
        Ok(())
    }

    fn post_send(&mut self, wr_id: u64) -> Result<()> {
        Ok(self.qp.post_send_list(&[SendRequest::send(wr_id, &self.source).signaled()])?)
    }

    /// Completions of so many sends are in the send CQ when it returns.
    fn fill(&mut self, count: u32) -> Result<()> {
        self.post_receives(count)?;
        (0..count.into()).try_for_each(|wr_id| self.post_send(wr_id))?;
        take(&mut self.recv_cq, count)
    }

    fn take_both(&mut self, count: u32) -> Result<()> {
        take(&mut self.send_cq, count)?;
        take(&mut self.recv_cq, count)
    }
}

fn take(cq: &mut CompletionQueue, count: u32) -> Result<()> {
    let (deadline, mut left) = (Instant::now() + PATIENCE, count as usize);
    let mut room = [WorkCompletion::default(); 16];
    while left > 0 {
        let most = left.min(room.len());
        for completion in cq.poll(&mut room[..most]) {
            completion.success()?;
            left -= 1;
        }
        ensure!(Instant::now() < deadline, "{left} completions are missing");
    }
    Ok(())
}

/// How long so many repetitions take, as many at a time as `most`; `prepare` is not counted and is told how many follow.
fn in_parts(
    setup: &mut Setup,
    times: u64,
    most: u32,
    mut prepare: impl FnMut(&mut Setup, u32) -> Result<()>,
    mut work: impl FnMut(&mut Setup, u32) -> Result<()>,
) -> Result<Duration> {
    let (mut left, mut spent) = (times, Duration::ZERO);
    while left > 0 {
        let count = left.min(most.into()) as u32;
        prepare(setup, count)?;
        let begun = Instant::now();
        work(setup, count)?;
        spent += begun.elapsed();
        left -= u64::from(count);
    }
    Ok(spent)
}

fn commands(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("command");
    group.bench_function("create a CQ", |bench| {
        let request = CqRequest { cqe: DEPTH, user_handle: 1, comp_vector: 0, channel: None };
        bench.iter(|| calls::create_cq(&Nothing, black_box(&request), &(), &mut ()));
    });
    group.bench_function("destroy a CQ", |bench| bench.iter(|| calls::destroy_cq(&Nothing, black_box(1))));
    group.finish();
}

fn devices(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("device");
    group.bench_function("list", |bench| bench.iter(uverbs::Device::list));
    let setup = Setup::new().unwrap();
    let device = setup.context.device().clone();
    group.bench_function("open and close", |bench| bench.iter(|| device.open().unwrap().close()));
    group.bench_function("query a port", |bench| bench.iter(|| setup.context.query_port(PORT)));
    group.finish();
}

/// A send is posted with its doorbell, on which the device transports the message.
fn posts(criterion: &mut Criterion) {
    let mut setup = Setup::new().unwrap();
    let mut group = criterion.benchmark_group("post");
    group.throughput(Throughput::Elements(1));
    group.bench_function("a receive", |bench| {
        bench.iter_custom(|times| {
            in_parts(&mut setup, times, DEPTH, |setup, _| setup.empty(), Setup::post_receives).unwrap()
        });
    });
    setup.empty().unwrap();
    group.bench_function("a send, its message and completions", |bench| {
        bench.iter_custom(|times| {
            in_parts(&mut setup, times, 1, Setup::post_receives, |setup, _| {
                setup.post_send(0)?;
                setup.take_both(1)
            })
            .unwrap()
        });
    });
    group.throughput(Throughput::Elements(BATCH.into()));
    let source = setup.source;
    let requests: Vec<_> =
        (0..BATCH.into()).map(|wr_id| SendRequest::send(wr_id, &source).signaled()).collect();
    group.bench_function("a list of 32 sends, their messages and completions", |bench| {
        bench.iter_custom(|times| {
            let prepare = |setup: &mut Setup, _| setup.post_receives(BATCH);
            in_parts(&mut setup, times, 1, prepare, |setup, _| {
                setup.qp.post_send_list(&requests)?;
                setup.take_both(BATCH)
            })
            .unwrap()
        });
    });
    group.bench_function("a built batch of 32 sends, their messages and completions", |bench| {
        bench.iter_custom(|times| {
            let prepare = |setup: &mut Setup, _| setup.post_receives(BATCH);
            in_parts(&mut setup, times, 1, prepare, |setup, _| {
                let mut batch = setup.qp.post_send();
                for wr_id in 0..BATCH.into() {
                    batch = batch.push(&SendRequest::send(wr_id, &source).signaled());
                }
                batch.submit()?;
                setup.take_both(BATCH)
            })
            .unwrap()
        });
    });
    group.finish();
}

fn polls(criterion: &mut Criterion) {
    let mut setup = Setup::new().unwrap();
    let mut group = criterion.benchmark_group("poll");
    group.throughput(Throughput::Elements(1));
    let mut room = [WorkCompletion::default(); 16];
    group.bench_function("an empty CQ", |bench| bench.iter(|| setup.send_cq.poll(&mut room).len()));
    for at_once in [1, 16] {
        group.bench_function(format!("a completion, {at_once} at a time"), |bench| {
            let room = &mut room[..at_once];
            bench.iter_custom(|times| {
                in_parts(&mut setup, times, DEPTH, Setup::fill, |setup, count| {
                    let (mut left, mut sum) = (count as usize, 0);
                    while left > 0 {
                        let completions = setup.send_cq.poll(room);
                        ensure!(!completions.is_empty());
                        sum += completions.iter().map(WorkCompletion::wr_id).sum::<u64>();
                        left -= completions.len();
                    }
                    black_box(sum);
                    Ok(())
                })
                .unwrap()
            });
        });
    }
    group.bench_function("a completion, where it lies", |bench| {
        bench.iter_custom(|times| {
            in_parts(&mut setup, times, DEPTH, Setup::fill, |setup, count| {
                let (mut left, mut sum, mut completions) = (count, 0, setup.send_cq.completions());
                while let Some(completion) = completions.next() {
                    sum += completion.wr_id();
                    left -= 1;
                }
                ensure!(left == 0);
                black_box(sum);
                Ok(())
            })
            .unwrap()
        });
    });
    group.finish();
}

fn counters(criterion: &mut Criterion) {
    let setup = Setup::new().unwrap();
    let counter = setup.context.create_completion_counter(CounterType::WorkRequests).unwrap();
    let mut group = criterion.benchmark_group("completion counter");
    group.bench_function("read", |bench| bench.iter(|| counter.read()));
    group.bench_function("increment", |bench| bench.iter(|| counter.inc(1)));
    group.finish();
}

criterion_group!(benches, commands, devices, posts, polls, counters);
criterion_main!(benches);
