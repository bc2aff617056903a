//! The loop that runs the ends of a ping-pong, by polling or by events.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use uverbs::{CompletionChannel, QueuePairType};

use super::Plan;
use super::end::End;
use crate::progress::Progress;

/// Runs until all ends are done: how long it took.
pub(super) fn exchange_messages(
    plan: &Plan<'_>,
    ends: &mut [End<'_>],
    channel: Option<&CompletionChannel>,
) -> Result<Duration> {
    let start = Instant::now();
    let mut watch = Watch::new(plan);
    ends.iter_mut().try_for_each(End::begin)?;
    while !ends.iter().all(End::is_done) {
        let mut moved = false;
        for end in &mut *ends {
            moved |= end.progress()?;
        }
        if moved {
            watch.moved();
        } else if let Some(channel) = channel {
            wait_for_event(ends, channel, &mut watch)?;
        } else {
            watch.idle(ends)?;
        }
    }
    Ok(start.elapsed())
}

/// Sleeps until a CQ has completions. An end that was not armed is, and is looked at once more before anybody sleeps.
fn wait_for_event(ends: &mut [End<'_>], channel: &CompletionChannel, watch: &mut Watch<'_>) -> Result<()> {
    let mut ready = false;
    for end in &mut *ends {
        ready |= end.arm()?;
    }
    if !ready {
        match channel.wait(Some(watch.plan.options.timeout()))? {
            Some(event) => ends.iter_mut().for_each(|end| end.fired(event.queue_id())),
            None => return Err(watch.stalled(ends)),
        }
    }
    watch.report(ends);
    Ok(())
}

/// Looks at the clock now and then: for a peer that has gone, and for a user who waits.
struct Watch<'a> {
    plan: &'a Plan<'a>,
    /// Polls since the last completion.
    idle: u64,
    last_move: Instant,
    progress: Progress,
}

impl<'a> Watch<'a> {
    fn new(plan: &'a Plan<'a>) -> Self {
        Self { plan, idle: 0, last_move: Instant::now(), progress: Progress::new(true) }
    }

    fn moved(&mut self) {
        self.idle = 0;
    }

    fn idle(&mut self, ends: &[End<'_>]) -> Result<()> {
        std::hint::spin_loop();
        self.idle += 1;
        if self.idle == 1 || self.idle.is_multiple_of(1024) {
            let now = Instant::now();
            if self.idle == 1 {
                self.last_move = now;
            } else if now.duration_since(self.last_move) > self.plan.options.timeout() {
                return Err(self.stalled(ends));
            }
            self.report(ends);
        }
        Ok(())
    }

    #[cold]
    fn stalled(&self, ends: &[End<'_>]) -> anyhow::Error {
        let received = ends.iter().map(End::received).min().unwrap_or_default();
        let loss = match self.plan.kind {
            QueuePairType::ReliableConnection => String::new(),
            kind => format!(", or was a message lost, which {kind} does not send again"),
        };
        anyhow!(
            "nothing has happened for {} seconds, after {received} of {} exchanges: has the peer gone, been started \
             with another --size or fewer --iters, or is it another kind of ping-pong{loss}?",
            self.plan.options.timeout,
            self.plan.options.iters
        )
    }

    fn report(&mut self, ends: &[End<'_>]) {
        self.progress.show(|| {
            let done = ends.iter().map(End::received).min().unwrap_or_default();
            format!("{done} of {} exchanges", self.plan.options.iters)
        });
    }
}
