//! Waiting for a number of remote writes with a completion counter: the passive end polls no completion queue and posts no
//! receive, and still knows when everything has arrived.
//!
//! `cargo run --example remote_writes -- rxe0`, on a device with completion counters.

mod common;

use std::thread;

use common::{DEPTH, End, pair, wait_for};
use uverbs::{RemoteMemory, Result, SendRequest};

const WRITES: u64 = 1000;

fn main() -> Result<()> {
    let (mut active, passive) = pair(WRITES as usize * 8)?;
    let target = passive.remote(0);

    let writer = thread::spawn(move || -> Result<End> {
        for number in 0..WRITES {
            // Not signalled: the counter says what is done, so the queue never runs over.
            if number >= u64::from(DEPTH) {
                wait_for(&active.written, number - u64::from(DEPTH) + 1)?;
            }
            let to = RemoteMemory { address: target.address + number * 8, ..target };
            let bytes = number.to_le_bytes();
            let parts = [&bytes[..]];
            let request = SendRequest::rdma_write_inline(number, &parts, to);
            active.qp.post_send_list(&[request])?;
        }
        wait_for(&active.written, WRITES)?;
        Ok(active)
    });

    wait_for(&passive.arrived, WRITES)?;
    for number in 0..WRITES {
        let mut bytes = [0; 8];
        passive.memory.read(number as usize * 8, &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), number);
    }
    println!("{WRITES} remote writes have arrived, errors: {}", passive.arrived.read_err()?);
    // Either end stays until the other has no more to say.
    let _active = writer.join().expect("the writer does not panic")?;
    Ok(())
}
