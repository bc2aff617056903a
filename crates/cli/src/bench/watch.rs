//! Looks at the clock and at the peer while a test runs.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::agreed::Test;
use super::exchange::Message;
use crate::peer::Peer;
use crate::progress::Progress;

/// Polls that find nothing before a look.
const POLLS: u32 = 1024;
/// As many of them let other threads run: the peer may be waiting for this processor.
const SPINS: u32 = 64;
/// Rounds of a loop between two looks.
const ROUNDS: u32 = 64;
/// Looks are not more frequent than this.
const PAUSE: Duration = Duration::from_millis(1);
/// Between two signs of life: some of them in the shortest time that a peer may wait.
const BEAT: Duration = Duration::from_millis(250);

/// For a peer that has something to say or has gone, for one that does not answer, and for a user who waits.
pub(super) struct Watch<'a> {
    test: &'a Test,
    timeout: Duration,
    peer: &'a mut Peer,
    /// What the peer has sent, when it has said so.
    peer_sent: Option<u64>,
    /// When it has said so, if it has.
    heard: Instant,
    /// Whether the peer knows what this end has sent, and may be done.
    told: bool,
    polls: u32,
    rounds: u32,
    moved: bool,
    start: Instant,
    last_move: Instant,
    last_look: Instant,
    last_beat: Instant,
    progress: Progress,
}

impl<'a> Watch<'a> {
    pub(super) fn new(test: &'a Test, timeout: Duration, peer: &'a mut Peer, shows_progress: bool) -> Self {
        let now = Instant::now();
        Self {
            test,
            timeout,
            peer,
            peer_sent: None,
            heard: now,
            told: false,
            polls: 0,
            rounds: 0,
            moved: true,
            start: now,
            last_move: now,
            last_look: now,
            last_beat: now,
            progress: Progress::new(shows_progress),
        }
    }

    /// What the peer has sent, if it has said so.
    pub(super) fn peer_sent(&self) -> Option<u64> {
        self.peer_sent
    }

    /// Something has completed.
    #[inline]
    pub(super) fn moved(&mut self) {
        (self.moved, self.polls) = (true, 0);
    }

    /// How long nothing has completed, as of the last look.
    fn quiet(&self) -> Duration {
        if self.moved { Duration::ZERO } else { self.last_look - self.last_move }
    }

    /// For so long, as of the last look, nothing has completed and the peer has sent nothing more.
    pub(super) fn over(&self) -> Duration {
        match self.peer_sent {
            Some(_) => self.quiet().min(self.last_look.saturating_duration_since(self.heard)),
            None => Duration::ZERO,
        }
    }

    /// A poll has found nothing. Now and then it lets other threads run, of which one may be the peer.
    #[inline]
    pub(super) fn idle(&mut self, done: u64) -> Result<()> {
        std::hint::spin_loop();
        self.polls += 1;
        if self.polls.is_multiple_of(SPINS) {
            thread::yield_now();
        }
        if self.polls >= POLLS { self.look(done) } else { Ok(()) }
    }

    /// A round of a loop in which something happens all the time.
    #[inline]
    pub(super) fn round(&mut self, done: u64) -> Result<()> {
        self.rounds += 1;
        if self.rounds >= ROUNDS { self.look(done) } else { Ok(()) }
    }

    /// Looks, unless it has just been done. So many operations are done.
    #[cold]
    pub(super) fn look(&mut self, done: u64) -> Result<()> {
        (self.polls, self.rounds) = (0, 0);
        let now = Instant::now();
        if now - self.last_look < PAUSE {
            return Ok(());
        }
        self.last_look = now;
        if self.moved {
            (self.moved, self.last_move) = (false, now);
        } else if self.quiet() > self.timeout {
            let loss = match self.test.connection.is_reliable() {
                true => String::new(),
                false => {
                    format!(", or was a message lost, which {} does not send again", self.test.connection)
                }
            };
            bail!(
                "nothing has happened for {} seconds, after {done} operations: has {} gone{loss}?",
                self.timeout.as_secs(),
                self.peer.name()
            );
        }
        if (self.peer_sent.is_none() || !self.told) && self.peer.has_spoken()? {
            self.listen()?;
        }
        if !self.told && now - self.last_beat >= BEAT {
            self.last_beat = now;
            Message::Alive.send(self.peer)?;
        }
        self.report(now, done);
        Ok(())
    }

    fn listen(&mut self) -> Result<()> {
        match Message::receive(self.peer, "finished")? {
            Message::Alive if self.peer_sent.is_none() => {}
            Message::Sent { messages } if self.peer_sent.is_none() => {
                (self.peer_sent, self.heard) = (Some(messages), Instant::now());
            }
            other => other.out_of_turn(self.peer)?,
        }
        Ok(())
    }

    /// Tells the peer that all has been sent, and how many messages that were.
    pub(super) fn tell(&mut self, messages: u64) -> Result<()> {
        self.told = true;
        Message::Sent { messages }.send(self.peer)
    }

    /// Waits for the peer to have sent all, as long as it shows that it is alive.
    pub(super) fn wait_for_peer(&mut self) -> Result<()> {
        while self.peer_sent.is_none() {
            self.listen()?;
        }
        Ok(())
    }

    fn report(&mut self, now: Instant, done: u64) {
        self.progress.show(|| match self.test.duration {
            Some(seconds) => format!("{} of {seconds} seconds", (now - self.start).as_secs().min(seconds)),
            None => format!("{done} of {} operations", self.test.operations()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::test;
    use super::*;

    const SOME: Duration = Duration::from_millis(20);

    /// What was under way when the peer said that it has sent all has time to arrive.
    #[test]
    fn nothing_is_over_before_the_peer_has_sent_all() {
        let test = test("bw send -c UD");
        let [mut own, mut peer] = Peer::pair(Duration::from_secs(5)).unwrap();
        let mut watch = Watch::new(&test, Duration::from_secs(5), &mut own, false);
        watch.moved();
        for _ in 0..5 {
            thread::sleep(SOME);
            watch.look(0).unwrap();
        }
        assert!(watch.quiet() >= SOME * 3);
        assert_eq!(watch.over(), Duration::ZERO);
        let before = Instant::now();
        Message::Sent { messages: 7 }.send(&mut peer).unwrap();
        thread::sleep(SOME);
        watch.look(0).unwrap();
        assert_eq!((watch.peer_sent(), watch.over()), (Some(7), Duration::ZERO));
        thread::sleep(SOME);
        watch.look(0).unwrap();
        let over = watch.over();
        assert!(SOME <= over && over < before.elapsed(), "{over:?}");
        watch.moved();
        assert_eq!(watch.over(), Duration::ZERO);
    }
}
