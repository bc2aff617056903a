//! The loops that are measured.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::agreed::Role;
use super::end::End;
use super::exchange::Message;
use super::options::{Kind, Verb};
use super::report::{Arrival, DurationRow, Rates, Row};
use super::stats::{Latencies, Timeline};
use super::watch::Watch;
use crate::peer::Peer;

/// What has not arrived this long after the last message, where messages may be lost, is lost.
const GRACE: Duration = Duration::from_millis(200);

/// One run with messages of a size, of this end: what was measured, at whichever.
pub(super) fn run(
    end: &mut End<'_>,
    peer: &mut Peer,
    size: u32,
    timeout: Duration,
    shows_progress: bool,
) -> Result<Row> {
    let (test, role) = (&end.plan.test, end.plan.role);
    let mut watch = Watch::new(test, timeout, peer, shows_progress);
    let own = match (test.kind, role) {
        (Kind::Lat, Role::Client) => Some(ask(end, &mut watch, size)?),
        (Kind::Lat, Role::Server) => {
            if test.has_answers() {
                answer(end, &mut watch, size)?;
            }
            None
        }
        (Kind::Bw, _) if test.is_active(role) => Some(Row::Bandwidth(stream(end, &mut watch, size)?)),
        (Kind::Bw, _) => None,
    };
    watch.tell(end.posted)?;
    if end.plan.receives() {
        receive_rest(end, &mut watch)?;
    } else {
        watch.wait_for_peer()?;
    }
    drop(watch);
    let received = end.received;
    // Before the peer hears that it can go on.
    end.begin()?;
    Message::Done { received, row: own.clone() }.send(peer)?;
    let (arrived, theirs) = match Message::receive(peer, "finished")? {
        Message::Done { received, row } => (received, row),
        other => other.out_of_turn(peer)?,
    };
    let may_lose = test.verb == Verb::Send && !test.connection.is_reliable();
    let with_losses = |rates: Rates, received| Rates {
        arrival: may_lose.then_some(Arrival { sent: rates.messages, received }),
        ..rates
    };
    Ok(match (own, theirs) {
        (Some(Row::Bandwidth(own)), Some(Row::Bandwidth(theirs))) => {
            let (own, theirs) = (with_losses(own, arrived), with_losses(theirs, received));
            Row::Bandwidth(if role == Role::Client { own.with(theirs) } else { theirs.with(own) })
        }
        (Some(Row::Bandwidth(own)), None) => Row::Bandwidth(with_losses(own, arrived)),
        (None, Some(Row::Bandwidth(theirs))) => Row::Bandwidth(with_losses(theirs, received)),
        (Some(row), None) | (None, Some(row)) => row,
        (own, theirs) => anyhow::bail!("{}: {own:?} and {theirs:?} do not go together", peer.name()),
    })
}

/// The latency of one operation after the other.
fn ask(end: &mut End<'_>, watch: &mut Watch<'_>, size: u32) -> Result<Row> {
    let test = &end.plan.test;
    let has_answers = test.has_answers();
    let mut latencies = Latencies::new(if has_answers { 2 } else { 1 });
    let start = Instant::now();
    let until = test.duration.map(|seconds| start + Duration::from_secs(seconds));
    let (mut last, mut number) = (start, 0);
    while until.map_or(number < test.iters, |until| last < until) {
        number += 1;
        end.mark(size, number);
        end.post(0, size, number, None)?;
        while end.sent < number || has_answers && !end.has_arrived(size, number) {
            if end.poll()? {
                watch.moved();
            } else {
                end.rest(watch)?;
            }
        }
        let now = Instant::now();
        latencies.record(now - last);
        last = now;
        watch.round(number)?;
    }
    let (row, buckets) = (latencies.row(size), latencies.buckets());
    Ok(match until {
        None => Row::Latency(row, buckets),
        Some(_) => {
            let seconds = (last - start).as_secs_f64();
            let parts = if has_answers { 2.0 } else { 1.0 };
            let average = seconds * 1e6 / number as f64 / parts;
            let row = DurationRow { size, iterations: number, average, rate: number as f64 / seconds };
            Row::Duration(row, buckets)
        }
    })
}

/// Answers each message with one, until the peer says that it has sent all.
fn answer(end: &mut End<'_>, watch: &mut Watch<'_>, size: u32) -> Result<()> {
    for number in 1.. {
        while !end.has_arrived(size, number) || end.sent < number - 1 {
            if end.poll()? {
                watch.moved();
            } else if watch.peer_sent() == Some(number - 1) && end.sent == number - 1 {
                return Ok(());
            } else {
                end.rest(watch)?;
            }
        }
        end.mark(size, number);
        end.post(0, size, number, None)?;
        watch.round(number)?;
    }
    Ok(())
}

/// The rate of operations on all QPs, as many under way as there is room for.
fn stream(end: &mut End<'_>, watch: &mut Watch<'_>, size: u32) -> Result<Rates> {
    let (test, total) = (&end.plan.test, end.plan.test.operations());
    let mut timeline = end.plan.peak.then(|| Timeline::new(total));
    let start = Instant::now();
    let until = test.duration.map(|seconds| start + Duration::from_secs(seconds));
    let mut is_over = false;
    loop {
        is_over |= until.is_some_and(|until| Instant::now() >= until);
        for index in 0..end.lane_count() {
            let last = match until {
                None => test.iters,
                Some(_) if is_over => end.last(index),
                Some(_) => u64::MAX,
            };
            end.post(index, size, last, timeline.as_mut())?;
        }
        if end.poll()? {
            if let Some(timeline) = &mut timeline {
                timeline.completed.push((end.sent, Instant::now()));
            }
            watch.moved();
            // A round may post and complete very much.
            watch.look(end.sent)?;
        } else {
            end.rest(watch)?;
        }
        if end.sent == end.posted && (is_over || until.is_none() && end.posted == total) {
            break;
        }
    }
    let average = end.sent as f64 / start.elapsed().as_secs_f64();
    let peak = timeline.map(|timeline| timeline.peak());
    Ok(Rates { size, messages: end.sent, peak, average, arrival: None })
}

/// Receives until all that the peer has sent is there.
fn receive_rest(end: &mut End<'_>, watch: &mut Watch<'_>) -> Result<()> {
    let is_reliable = end.plan.test.connection.is_reliable();
    while watch.peer_sent().is_none_or(|sent| end.received < sent) {
        let is_over = !is_reliable && watch.over() > GRACE;
        if end.poll()? {
            watch.moved();
            watch.round(end.received)?;
        } else if is_over {
            break;
        } else {
            end.rest(watch)?;
        }
    }
    Ok(())
}
