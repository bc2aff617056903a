//! Completions and asynchronous events in a loop of one's own: here one over `epoll`, as runtimes have it inside.
//!
//! `cargo run --example epoll -- rxe0`. A queue pair that is connected to itself sends messages.

use std::time::Duration;

use rustix::event::epoll;
use rustix::event::{Timespec, epoll::EventData};
use uverbs::{
    AccessFlags, AddressVector, CompletionChannel, CompletionQueue, Context, Device, ErrorKind,
    ModifyQueuePair, Mtu, ProtectionDomain, QueuePair, QueuePairCapabilities, QueuePairInit, ReceiveRequest,
    SendRequest,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const COMPLETIONS: u64 = 1;
const EVENTS: u64 = 2;
const MESSAGES: u64 = 1000;
const DEPTH: u32 = 16;

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "rxe0".to_owned());
    let context = Device::find(&name)?.open()?;
    let domain = context.alloc_protection_domain()?;
    let channel = context.create_completion_channel()?;
    let mut cq = context.create_completion_queue(2 * DEPTH, Some(&channel), 0)?;
    let mut qp = connected_to_itself(&context, &domain, &cq)?;
    let events = context.async_events();

    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &channel, EventData::new_u64(COMPLETIONS), epoll::EventFlags::IN)?;
    epoll::add(&epoll, &events, EventData::new_u64(EVENTS), epoll::EventFlags::IN)?;

    // Arm first: what completes from here on raises an event.
    cq.arm(false)?;
    let (mut posted, mut arrived) = (0, 0);
    post(&mut qp, &mut posted, u64::from(DEPTH / 2))?;
    while arrived < MESSAGES {
        let mut ready = [epoll::Event { flags: epoll::EventFlags::empty(), data: EventData::new_u64(0) }; 4];
        let patience = Timespec::try_from(Duration::from_secs(10))?;
        let count = epoll::wait(&epoll, &mut ready[..], Some(&patience))?;
        if count == 0 {
            return Err(format!("{arrived} of {MESSAGES} messages, and no event for ten seconds").into());
        }
        for event in &ready[..count] {
            match event.data.u64() {
                COMPLETIONS => arrived += drain(&mut cq, &channel)?,
                _ => println!("{}", events.try_get_event()?),
            }
        }
        post(&mut qp, &mut posted, (arrived + u64::from(DEPTH / 2)).min(MESSAGES))?;
    }
    println!("{arrived} messages");
    Ok(())
}

/// Takes the event, arms the CQ for the next one, and only then takes completions until there are none: none is missed.
fn drain(cq: &mut CompletionQueue, channel: &CompletionChannel) -> Result<u64> {
    match channel.try_get_event() {
        Ok(event) => drop(event),
        // Somebody else has been faster.
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
        Err(error) => return Err(error.into()),
    }
    cq.arm(false)?;
    let (mut arrived, mut completions) = (0, cq.completions());
    while let Some(completion) = completions.next() {
        completion.success()?;
        arrived += 1;
    }
    Ok(arrived)
}

/// Posts receives and sends for the messages up to number `end`. Sends make no completions.
fn post(qp: &mut QueuePair, posted: &mut u64, end: u64) -> Result<()> {
    while *posted < end {
        qp.post_receive(&[ReceiveRequest::new(*posted, &[])])?;
        qp.post_send_list(&[SendRequest::send(*posted, &[])])?;
        *posted += 1;
    }
    Ok(())
}

fn connected_to_itself(
    context: &Context,
    domain: &ProtectionDomain,
    cq: &CompletionQueue,
) -> Result<QueuePair> {
    let capabilities = QueuePairCapabilities { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..Default::default() };
    let init = QueuePairInit { capabilities, ..QueuePairInit::reliable_connection(cq) };
    let mut qp = domain.create_queue_pair(&init)?;
    let gid = context.routable_gid(1, None)?;
    let itself = AddressVector::global(1, gid.gid, u8::try_from(gid.index)?);
    qp.modify(&ModifyQueuePair::init(1, AccessFlags::empty()))?;
    qp.modify(&ModifyQueuePair::ready_to_receive(itself, qp.qp_num(), 0, Mtu::Bytes1024))?;
    qp.modify(&ModifyQueuePair::ready_to_send(0))?;
    Ok(qp)
}
