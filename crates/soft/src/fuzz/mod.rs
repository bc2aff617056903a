//! Generated work: commands of any kind, rings with anything in them, and traffic on a bad wire that a model follows.
//!
//! `UVERBS_TEST_FUZZ=OPERATIONS` says how many operations each of the three makes at least, `UVERBS_TEST_FUZZ=OPERATIONS:SEED` where to
//! begin. An operation is a call into the device (a command, a doorbell, a mapping, a change of its faults) or something put into a ring:
//! a request, an index, bytes. What only looks at the outcome does not count.

mod commands;
mod rings;
mod traffic;
pub(crate) mod user;

use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::io::Write;
use std::panic::resume_unwind;
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use parking_lot::Mutex;

use crate::wire::Wire;

const VARIABLE: &str = "UVERBS_TEST_FUZZ";

/// The seeds of rounds.
static UNDER_WAY: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// A round takes much less, however slow the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Makes rounds from one seed after the other, until there have been enough operations.
fn generate(name: &'static str, default: u64, round: fn(u64) -> u64) {
    let text = std::env::var(VARIABLE).unwrap_or_else(|_| default.to_string());
    let (operations, seed) = text.split_once(':').unwrap_or((&text, "0"));
    let number = |text: &str| text.parse::<u64>().expect("UVERBS_TEST_FUZZ=OPERATIONS or OPERATIONS:SEED");
    let (wanted, first) = (number(operations), number(seed));
    notice_panics_of_devices();
    let mut made = 0;
    for seed in first.. {
        made += watched(name, seed, round);
        if made >= wanted {
            println!("{name}: {made} operations, seeds {first} to {seed}");
            return;
        }
    }
}

/// Runs a round in a thread of its own, so that one that hangs is noticed.
fn watched(name: &'static str, seed: u64, round: fn(u64) -> u64) -> u64 {
    let (sender, receiver) = channel();
    UNDER_WAY.lock().insert(name, seed);
    let thread = std::thread::spawn(move || sender.send(round(seed)));
    let again = format!("{name}: seed {seed}: {VARIABLE}=1:{seed} begins with it");
    match receiver.recv_timeout(PATIENCE) {
        Ok(made) => made,
        Err(RecvTimeoutError::Disconnected) => {
            eprintln!("{again}");
            resume_unwind(thread.join().unwrap_err());
        }
        Err(RecvTimeoutError::Timeout) => {
            end(format_args!("a round does not end; {again}"));
        }
    }
}

/// Ends the process, and says why where nothing keeps it back for the end of the test.
fn end(why: Arguments<'_>) -> ! {
    // It is the last word either way.
    let _ = writeln!(std::io::stderr(), "{why}");
    std::process::abort();
}

/// A device's own thread ends in silence if it panics: here it takes the process along.
fn notice_panics_of_devices() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            usual(panic);
            if std::thread::current().name() == Some(crate::wire::THREAD) {
                end(format_args!("{panic}, with one of these seeds: {:?}", UNDER_WAY.lock()));
            }
        }));
    });
}

/// Nothing is left on a wire whose contexts have all been closed.
fn nothing_is_left(wire: &Wire) {
    wire.with(|state| {
        let left = [
            ("contexts", state.contexts.len()),
            ("files", state.files.len()),
            ("pds", state.pds.len()),
            ("mrs", state.mrs.len()),
            ("mws", state.mws.len()),
            ("cqs", state.cqs.len()),
            ("srqs", state.srqs.len()),
            ("qps", state.qps.len()),
            ("ahs", state.ahs.len()),
            ("counters", state.counters.len()),
            ("timers", state.timers.len()),
        ];
        assert!(left.iter().all(|(_, count)| *count == 0), "{left:?}");
    });
}

#[test]
fn commands_of_any_kind_are_answered() {
    generate("commands", 60_000, commands::round);
}

#[test]
fn rings_with_anything_in_them_lead_nowhere() {
    generate("rings", 60_000, rings::round);
}

#[test]
fn traffic_on_a_bad_wire_is_whole() {
    generate("traffic", 30_000, traffic::round);
}

#[test]
fn a_ring_that_never_runs_empty_holds_nobody_up() {
    watched("endless", 0, rings::endless);
}
