//! What the verbs cost in instructions, user and kernel together, on soft-RoCE.
//!
//! It is meant for a virtual machine whose clock counts instructions, one a nanosecond: `cargo xtask bench` runs it in one. The
//! least of several rounds counts, so that what else the kernel does in between does not. Bounds are goals, at most what rdma-core 65
//! took in the same machine when they were set; the exit status is 1 if one is passed.
//!
//! It runs with real-time priority, so that the kernel's own threads, which execute what is posted, wait until it sleeps.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use uverbs::{
    AccessFlags, AddressVector, CompletionQueue, Context, Device, ModifyQueuePair, Mtu, ProtectionDomain,
    QueuePair, QueuePairCapabilities, QueuePairInit, ReceiveRequest, SendRequest, WorkCompletion,
};

const DEPTH: u32 = 256;
const ROUNDS: usize = 7;

struct Row {
    operation: &'static str,
    instructions: u128,
    bound: u128,
}

fn main() -> Result<ExitCode> {
    run_before_the_kernel()?;
    let name = std::env::args().nth(1).unwrap_or_else(|| "rxe0".to_owned());
    let context = Device::find(&name)?.open()?;
    let domain = context.alloc_protection_domain()?;
    let rows = [
        row("list devices", 85_096, per_operation(10, || Device::list().map(drop).map_err(Into::into))?),
        row("list devices, open one, close it", 107_780, per_operation(10, list_and_open)?),
        row("poll an empty CQ", 20, poll_empty(&context)?),
        row("post a receive", 50, post_receive(&context, &domain)?),
        row("post a send, with doorbell", 4193, post_send(&context, &domain)?),
    ];
    println!("| operation | instructions | bound |\n|---|---|---|");
    for Row { operation, instructions, bound } in &rows {
        println!("| {operation} | {instructions} | {bound} |");
    }
    let passed = rows.iter().all(|row| row.instructions <= row.bound);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_before_the_kernel() -> Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter is a valid struct, and the call changes nothing but this thread's priority.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    ensure!(result == 0, "sched_setscheduler: {}", std::io::Error::last_os_error());
    Ok(())
}

fn row(operation: &'static str, bound: u128, instructions: u128) -> Row {
    Row { operation, instructions, bound }
}

/// The least time of an operation over some rounds, in nanoseconds.
fn per_operation(count: u32, mut operation: impl FnMut() -> Result<()>) -> Result<u128> {
    let mut least = u128::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..count {
            operation()?;
        }
        least = least.min(start.elapsed().as_nanos() / u128::from(count));
    }
    Ok(least)
}

fn list_and_open() -> Result<()> {
    let device = Device::list()?.into_iter().next().context("the device has gone")?;
    Ok(device.open()?.close().map_err(uverbs::Error::from)?)
}

fn poll_empty(context: &Context) -> Result<u128> {
    let mut cq = context.create_completion_queue(16, None, 0)?;
    let mut room = [WorkCompletion::default(); 16];
    per_operation(100_000, || {
        std::hint::black_box(cq.poll(&mut room));
        Ok(())
    })
}

/// A QP connected to itself.
fn queue_pair(context: &Context, domain: &ProtectionDomain, cq: &CompletionQueue) -> Result<QueuePair> {
    let capabilities = QueuePairCapabilities { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..Default::default() };
    let init = QueuePairInit { capabilities, ..QueuePairInit::reliable_connection(cq) };
    let mut qp = domain.create_queue_pair(&init)?;
    let gid = context.routable_gid(1, None)?;
    let address = AddressVector::global(1, gid.gid, u8::try_from(gid.index)?);
    qp.modify(&ModifyQueuePair::init(1, AccessFlags::empty()))?;
    qp.modify(&ModifyQueuePair::ready_to_receive(address, qp.qp_num(), 0, Mtu::Bytes1024))?;
    qp.modify(&ModifyQueuePair::ready_to_send(0))?;
    Ok(qp)
}

fn post_receive(context: &Context, domain: &ProtectionDomain) -> Result<u128> {
    let region = domain.allocate(4096, AccessFlags::LOCAL_WRITE)?;
    let sges = [region.sge(0..64)];
    let mut least = u128::MAX;
    for _ in 0..ROUNDS {
        let cq = context.create_completion_queue(DEPTH, None, 0)?;
        let mut qp = queue_pair(context, domain, &cq)?;
        let start = Instant::now();
        for wr_id in 0..u64::from(DEPTH) {
            qp.post_receive(&[ReceiveRequest::new(wr_id, &sges)])?;
        }
        least = least.min(start.elapsed().as_nanos() / u128::from(DEPTH));
    }
    Ok(least)
}

fn post_send(context: &Context, domain: &ProtectionDomain) -> Result<u128> {
    let region = domain.allocate(4096, AccessFlags::LOCAL_WRITE)?;
    let (source, target) = ([region.sge(0..64)], [region.sge(64..128)]);
    let mut cq = context.create_completion_queue(2 * DEPTH, None, 0)?;
    let mut qp = queue_pair(context, domain, &cq)?;
    let mut least = Duration::MAX;
    for wr_id in 0..u64::from(DEPTH) {
        qp.post_receive(&[ReceiveRequest::new(wr_id, &target)])?;
        let start = Instant::now();
        qp.post_send_list(&[SendRequest::send(wr_id, &source).signaled()])?;
        least = least.min(start.elapsed());
        // The send and its receive.
        let mut left = 2;
        let deadline = Instant::now() + Duration::from_secs(5);
        while left > 0 {
            ensure!(Instant::now() < deadline, "{left} completions are missing");
            let mut room = [WorkCompletion::default(); 2];
            for completion in cq.poll(&mut room) {
                completion.success()?;
                left -= 1;
            }
            // One processor: the kernel's side has to run.
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    Ok(least.as_nanos())
}
