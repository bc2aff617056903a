//! Flow control by credits with completion counters alone: neither end polls a completion queue.
//!
//! The producer writes messages into slots of the consumer's memory, never more of them than the consumer has given credit for. The
//! consumer sees in its counter how many have arrived. For every few that it has used it writes to the producer, whose counter
//! turns each of these writes into credit for as many more.
//!
//! `cargo run --example credits -- rxe0`, on a device with completion counters.

mod common;

use std::thread;

use common::{DEPTH, End, pair, wait_for};
use uverbs::{RemoteMemory, Result, SendRequest};

const MESSAGES: u64 = 2000;
const SLOTS: u64 = 32;
const SLOT: usize = 8;
/// Messages that one credit stands for.
const BATCH: u64 = 8;

fn main() -> Result<()> {
    let (producer, consumer) = pair(SLOTS as usize * SLOT)?;
    let (slots, credits) = (consumer.remote(0), producer.remote(0));
    let producer = thread::spawn(move || produce(producer, slots));
    let (sum, _consumer) = consume(consumer, credits)?;
    // Either end stays until the other has no more to say.
    let _producer = producer.join().expect("the producer does not panic")?;
    assert_eq!(sum, MESSAGES * (MESSAGES - 1) / 2);
    println!("{MESSAGES} messages through {SLOTS} slots, none lost and none overwritten");
    Ok(())
}

fn produce(mut end: End, slots: RemoteMemory) -> Result<End> {
    for number in 0..MESSAGES {
        // All slots are free at first; later each credit frees a few more.
        if number >= SLOTS {
            wait_for(&end.arrived, (number - SLOTS) / BATCH + 1)?;
        }
        let place = RemoteMemory { address: slots.address + number % SLOTS * SLOT as u64, ..slots };
        write(&mut end, number, number, place)?;
    }
    wait_for(&end.written, MESSAGES)?;
    Ok(end)
}

fn consume(mut end: End, credits: RemoteMemory) -> Result<(u64, End)> {
    let mut sum = 0;
    for number in 0..MESSAGES {
        wait_for(&end.arrived, number + 1)?;
        let mut bytes = [0; SLOT];
        end.memory.read((number % SLOTS) as usize * SLOT, &mut bytes);
        sum += u64::from_le_bytes(bytes);
        if (number + 1).is_multiple_of(BATCH) {
            write(&mut end, number / BATCH, number + 1, credits)?;
        }
    }
    wait_for(&end.written, MESSAGES / BATCH)?;
    Ok((sum, end))
}

/// Writes a number to the peer, when there is room for the request: the counter tells how many are done.
fn write(end: &mut End, posted: u64, value: u64, to: RemoteMemory) -> Result<()> {
    if posted >= u64::from(DEPTH) {
        wait_for(&end.written, posted - u64::from(DEPTH) + 1)?;
    }
    let bytes = value.to_le_bytes();
    Ok(end.qp.post_send_list(&[SendRequest::rdma_write_inline(posted, &[&bytes], to)])?)
}
