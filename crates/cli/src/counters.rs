//! `uverbs counters`: what completion counters can do, and whether they count.

use std::slice;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Subcommand};
use serde::Serialize;
use uverbs::{
    AccessFlags, AddressHandle, AddressVector, CompletionCounter, CompletionQueue, Context,
    CounterOperations, CounterType, Destination, ModifyQueuePair, Mtu, ProtectionDomain, QueuePair,
    QueuePairCapabilities, QueuePairInit, QueuePairState, ReceiveRequest, RemoteMemory, ScatterGather,
    SendRequest, WorkCompletion,
};

use crate::{find_device, output};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show what completion counters of a device can do.
    Caps(Caps),
    /// Run traffic of each operation between two queue pairs (RC, or SRD on EFA), and compare what their counters say with what was
    /// posted.
    ///
    /// Exit status 1 if a counter is wrong.
    Run(Run),
}

#[derive(Args)]
pub(crate) struct Caps {
    /// Device; the first one if it is not given.
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    device: Option<String>,
}

#[derive(Args)]
pub(crate) struct Run {
    /// Device; the first one if it is not given.
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    device: Option<String>,
    /// Operations to run and count, separated by commas; all that the device counts if it is not given.
    #[arg(long, value_delimiter = ',', value_parser = parse_operation)]
    ops: Vec<CounterOperations>,
    /// Number of operations of each kind.
    #[arg(short = 'n', long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    iters: u64,
    /// Provoke errors too: a remote access error, and requests flushed after it (on EFA, receives only).
    #[arg(long)]
    errors: bool,
}

const OPERATIONS: [(&str, CounterOperations); 6] = [
    ("SEND", CounterOperations::SEND),
    ("RECV", CounterOperations::RECV),
    ("RDMA_READ", CounterOperations::RDMA_READ),
    ("REMOTE_RDMA_READ", CounterOperations::REMOTE_RDMA_READ),
    ("RDMA_WRITE", CounterOperations::RDMA_WRITE),
    ("REMOTE_RDMA_WRITE", CounterOperations::REMOTE_RDMA_WRITE),
];

/// Requests in one batch: half of them are not signalled, the last one is.
const BATCH: u64 = 32;
/// Requests to be flushed, of each kind.
const FLUSHED: u64 = 5;
const MESSAGE: usize = 64;
const QKEY: u32 = 0x1111_1111;
const PATIENCE: Duration = Duration::from_secs(10);

fn parse_operation(text: &str) -> Result<CounterOperations, String> {
    let upper = text.to_ascii_uppercase();
    OPERATIONS.into_iter().find(|(name, _)| *name == upper).map(|(_, operation)| operation).ok_or_else(|| {
        let names = OPERATIONS.map(|(name, _)| name).join(", ");
        format!("no operation {text}: there are {names}")
    })
}

pub(crate) fn run(command: &Command, json: bool) -> Result<()> {
    match command {
        Command::Caps(caps) => show_capabilities(caps, json),
        Command::Run(run) => run_traffic(run, json),
    }
}

#[derive(Serialize)]
struct Capabilities {
    ifname: String,
    max_counters: u32,
    max_value: u64,
    operations: Vec<&'static str>,
}

fn show_capabilities(caps: &Caps, json: bool) -> Result<()> {
    let context = find_device(caps.device.as_deref())?.open()?;
    let found = context.completion_counter_capabilities()?;
    let capabilities = Capabilities {
        ifname: context.device().name().to_owned(),
        max_counters: found.max_counters,
        max_value: found.max_value,
        operations: names(found.operations),
    };
    output::print(json, &capabilities, |out, capabilities| {
        writeln!(out, "{}:", capabilities.ifname)?;
        writeln!(out, "\tmax_counters:\t{}", capabilities.max_counters)?;
        writeln!(out, "\tmax_value:\t{:#x}", capabilities.max_value)?;
        writeln!(out, "\toperations:\t{}", capabilities.operations.join(" "))
    })
}

fn names(operations: CounterOperations) -> Vec<&'static str> {
    OPERATIONS.into_iter().filter(|(_, one)| operations.contains(*one)).map(|(name, _)| name).collect()
}

/// A counter, and what it should say.
struct Counted {
    end: &'static str,
    name: &'static str,
    operation: CounterOperations,
    counter: CompletionCounter,
    expected: u64,
    expected_errors: u64,
}

#[derive(Serialize)]
struct Row {
    end: &'static str,
    operation: &'static str,
    expected: u64,
    observed: u64,
    expected_errors: u64,
    observed_errors: u64,
    ok: bool,
}

#[derive(Serialize)]
struct Report {
    ifname: String,
    iters: u64,
    counters: Vec<Row>,
    ok: bool,
}

/// How the two queue pairs reach each other.
enum Link {
    Connection { address: AddressVector, mtu: Mtu },
    Datagrams(AddressHandle),
}

impl Link {
    fn new(context: &Context, domain: &ProtectionDomain) -> Result<Self> {
        let port = context.query_port(1)?;
        let mtu = port.active_mtu.map_or(Mtu::Bytes1024, |active| active.min(Mtu::Bytes1024));
        let gid = context.routable_gid(1, None)?;
        let index = u8::try_from(gid.index).context("GID index")?;
        let address = AddressVector::global(1, gid.gid, index);
        Ok(match context.provider() {
            "efa" => Self::Datagrams(domain.create_address_handle(&address)?),
            _ => Self::Connection { address, mtu },
        })
    }

    fn init<'a>(&self, cq: &'a CompletionQueue) -> QueuePairInit<'a> {
        match self {
            Self::Connection { .. } => QueuePairInit::reliable_connection(cq),
            Self::Datagrams(_) => QueuePairInit::scalable_reliable_datagram(cq),
        }
    }

    /// Where requests to a queue pair go.
    fn to(&self, qp_num: u32) -> Option<Destination<'_>> {
        match self {
            Self::Connection { .. } => None,
            Self::Datagrams(address) => Some(Destination { address, qp_num, qkey: QKEY }),
        }
    }
}

/// One of the two queue pairs, with its counters.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    counted: Vec<Counted>,
}

impl End {
    fn new(
        name: &'static str,
        context: &Context,
        domain: &ProtectionDomain,
        link: &Link,
        operations: CounterOperations,
    ) -> Result<Self> {
        let cq = context.create_completion_queue(8 * BATCH as u32, None, 0)?;
        let depth = 2 * BATCH as u32;
        let capabilities = QueuePairCapabilities {
            max_send_wr: depth,
            max_recv_wr: depth,
            ..QueuePairCapabilities::default()
        };
        let mut qp = domain.create_queue_pair(&QueuePairInit { capabilities, ..link.init(&cq) })?;
        let mut counted = Vec::new();
        for (label, operation) in OPERATIONS {
            if operations.contains(operation) {
                let counter = context.create_completion_counter(CounterType::WorkRequests)?;
                qp.attach_completion_counter(&counter, operation)?;
                counted.push(Counted {
                    end: name,
                    name: label,
                    operation,
                    counter,
                    expected: 0,
                    expected_errors: 0,
                });
            }
        }
        qp.modify(&match link {
            Link::Connection { .. } => {
                ModifyQueuePair::init(1, AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE)
            }
            Link::Datagrams(_) => ModifyQueuePair::datagram_init(1, QKEY),
        })?;
        Ok(Self { qp, cq, counted })
    }

    fn connect(&mut self, peer_qp_num: u32, link: &Link) -> Result<()> {
        let (receive, send) = match *link {
            Link::Connection { address, mtu } => (
                ModifyQueuePair::ready_to_receive(address, peer_qp_num, 0, mtu),
                ModifyQueuePair::ready_to_send(0),
            ),
            Link::Datagrams(_) => {
                (ModifyQueuePair::datagram_ready_to_receive(), ModifyQueuePair::datagram_ready_to_send(0))
            }
        };
        self.qp.modify(&receive)?;
        Ok(self.qp.modify(&send)?)
    }

    /// Counts on so many operations, completed or failed.
    fn expect(&mut self, operations: CounterOperations, completed: u64, failed: u64) {
        for counted in self.counted.iter_mut().filter(|counted| operations.contains(counted.operation)) {
            counted.expected += completed;
            counted.expected_errors += failed;
        }
    }

    /// Waits for so many completions.
    fn wait(&mut self, mut count: u64, may_fail: bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut room = [WorkCompletion::default(); 16];
        while count > 0 {
            ensure!(Instant::now() < deadline, "{count} completions are missing after {PATIENCE:?}");
            for completion in self.cq.poll(&mut room) {
                if !may_fail {
                    completion.success()?;
                }
                count -= 1;
            }
        }
        Ok(())
    }

    fn post_receives(&mut self, count: u64, sges: &[ScatterGather]) -> Result<()> {
        for wr_id in 0..count {
            self.qp.post_receive(&[ReceiveRequest::new(wr_id, sges)])?;
        }
        Ok(())
    }
}

/// A kind of traffic, what it counts at the end that posts it, and what at the other.
struct Kind<'a> {
    request: SendRequest<'a>,
    active: CounterOperations,
    passive: CounterOperations,
}

impl Kind<'_> {
    fn takes_receives(&self) -> bool {
        self.passive.contains(CounterOperations::RECV)
    }
}

fn run_traffic(options: &Run, json: bool) -> Result<()> {
    let context = find_device(options.device.as_deref())?.open()?;
    let supported = context.completion_counter_capabilities()?.operations;
    let asked = options.ops.iter().copied().reduce(|a, b| a | b).unwrap_or(supported);
    let domain = context.alloc_protection_domain()?;
    let link = Link::new(&context, &domain)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let region = domain.allocate(4 * MESSAGE, access)?;
    let mut active = End::new("active", &context, &domain, &link, asked)?;
    let mut passive = End::new("passive", &context, &domain, &link, asked)?;
    let (active_num, passive_num) = (active.qp.qp_num(), passive.qp.qp_num());
    active.connect(passive_num, &link)?;
    passive.connect(active_num, &link)?;

    let own = [region.sge(0..MESSAGE)];
    let target = [region.sge(2 * MESSAGE..3 * MESSAGE)];
    let remote = RemoteMemory { address: region.address() + MESSAGE as u64, rkey: region.rkey() };
    let destination = link.to(passive_num);
    for kind in kinds(&own, remote, destination) {
        if asked.intersects(kind.active | kind.passive) {
            run_kind(&kind, options.iters, &mut active, &mut passive, &target)?;
        }
    }
    if options.errors {
        run_errors(&mut active, &mut passive, &own, &target, remote, destination)?;
    }
    let counted = active.counted.iter().chain(&passive.counted);
    let rows = counted.map(read).collect::<Result<Vec<_>>>()?;
    let ok = rows.iter().all(|row| row.ok);
    let report =
        Report { ifname: context.device().name().to_owned(), iters: options.iters, counters: rows, ok };
    output::print(json, &report, |out, report| {
        writeln!(
            out,
            "{:<8} {:<18} {:>12} {:>12} {:>8} {:>8}",
            "end", "operation", "expected", "observed", "errors", "observed"
        )?;
        for row in &report.counters {
            writeln!(
                out,
                "{:<8} {:<18} {:>12} {:>12} {:>8} {:>8}{}",
                row.end,
                row.operation,
                row.expected,
                row.observed,
                row.expected_errors,
                row.observed_errors,
                if row.ok { "" } else { "  WRONG" }
            )?;
        }
        Ok(())
    })?;
    let wrong = report.counters.iter().filter(|row| !row.ok).count();
    if wrong > 0 {
        bail!("{wrong} of {} counters are wrong", report.counters.len());
    }
    Ok(())
}

fn kinds<'a>(
    own: &'a [ScatterGather],
    remote: RemoteMemory,
    destination: Option<Destination<'a>>,
) -> [Kind<'a>; 5] {
    use CounterOperations as Op;
    let kind =
        |request, active, passive| Kind { request: SendRequest { destination, ..request }, active, passive };
    [
        kind(SendRequest::send(0, own), Op::SEND, Op::RECV),
        kind(SendRequest::send(0, own).immediate(7), Op::SEND, Op::RECV),
        kind(SendRequest::rdma_read(0, own, remote), Op::RDMA_READ, Op::REMOTE_RDMA_READ),
        kind(SendRequest::rdma_write(0, own, remote), Op::RDMA_WRITE, Op::REMOTE_RDMA_WRITE),
        kind(
            SendRequest::rdma_write(0, own, remote).immediate(7),
            Op::RDMA_WRITE,
            Op::REMOTE_RDMA_WRITE | Op::RECV,
        ),
    ]
}

/// Runs operations of one kind in batches. In each only every other one is signalled, and the last; datagrams all are.
fn run_kind(
    kind: &Kind<'_>,
    count: u64,
    active: &mut End,
    passive: &mut End,
    target: &[ScatterGather],
) -> Result<()> {
    let mut left = count;
    while left > 0 {
        let batch = left.min(BATCH);
        if kind.takes_receives() {
            passive.post_receives(batch, target)?;
        }
        let mut signaled = 0;
        for number in (0..batch).rev() {
            let mut request = kind.request;
            if number % 2 == 0 || request.destination.is_some() {
                request = request.signaled();
                signaled += 1;
            }
            active.qp.post_send_list(slice::from_ref(&request))?;
        }
        active.wait(signaled, false)?;
        if kind.takes_receives() {
            passive.wait(batch, false)?;
        }
        left -= batch;
    }
    active.expect(kind.active, count, 0);
    passive.expect(kind.passive, count, 0);
    Ok(())
}

/// An RDMA write with a wrong key breaks the connection at both ends, which flushes what is posted: all of it counts as an
/// error. Datagrams have no connection to break: there the state is changed by hand, and takes no more sends.
fn run_errors(
    active: &mut End,
    passive: &mut End,
    own: &[ScatterGather],
    target: &[ScatterGather],
    remote: RemoteMemory,
    destination: Option<Destination<'_>>,
) -> Result<()> {
    active.post_receives(FLUSHED, target)?;
    passive.post_receives(FLUSHED, target)?;
    let wrong = RemoteMemory { rkey: !remote.rkey, ..remote };
    active.qp.post_send_list(&[SendRequest { destination, ..SendRequest::rdma_write(0, own, wrong) }])?;
    if destination.is_some() {
        active.wait(1, true)?;
        active.qp.modify(&ModifyQueuePair::to(QueuePairState::Error))?;
        active.wait(FLUSHED, true)?;
    } else {
        active.wait(1 + FLUSHED, true)?;
    }
    active.expect(CounterOperations::RDMA_WRITE, 0, 1);
    // The passive end learns of it too; entering the state again is no harm.
    passive.qp.modify(&ModifyQueuePair::to(QueuePairState::Error))?;
    passive.wait(FLUSHED, true)?;
    if destination.is_none() {
        for kind in kinds(own, remote, None) {
            for _ in 0..FLUSHED {
                active.qp.post_send_list(slice::from_ref(&kind.request))?;
            }
            active.wait(FLUSHED, true)?;
            active.expect(kind.active, 0, FLUSHED);
        }
    }
    for end in [active, passive] {
        end.expect(CounterOperations::RECV, 0, FLUSHED);
    }
    Ok(())
}

fn read(counted: &Counted) -> Result<Row> {
    let (observed, observed_errors) = (counted.counter.read()?, counted.counter.read_err()?);
    Ok(Row {
        end: counted.end,
        operation: counted.name,
        expected: counted.expected,
        observed,
        expected_errors: counted.expected_errors,
        observed_errors,
        ok: (observed, observed_errors) == (counted.expected, counted.expected_errors),
    })
}
