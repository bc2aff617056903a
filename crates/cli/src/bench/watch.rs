//! Looks at the clock and at the peer while a test runs.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::agreed::Test;
use super::exchange::Message;
use crate::peer::Peer;
use crate::progress::Progress;

/// Polls that find nothing, or rounds of a loop, between two looks.
const ROUNDS: u32 = 1024;
/// Looks are not more frequent than this.
const PAUSE: Duration = Duration::from_millis(1);

/// For a peer that has something to say or has gone, for one that does not answer, and for a user who waits.
pub(super) struct Watch<'a> {
    test: &'a Test,
    timeout: Duration,
    peer: &'a mut Peer,
    /// What the peer has sent, when it has said so.
    peer_sent: Option<u64>,
    /// Whether the peer knows what this end has sent, and may be done.
    told: bool,
    rounds: u32,
    moved: bool,
    start: Instant,
    last_move: Instant,
    last_look: Instant,
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
            told: false,
            rounds: 0,
            moved: true,
            start: now,
            last_move: now,
            last_look: now,
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
        self.moved = true;
    }

    /// How long nothing has completed, as of the last look.
    pub(super) fn quiet(&self) -> Duration {
        if self.moved { Duration::ZERO } else { self.last_look - self.last_move }
    }

    /// A poll has found nothing. Now and then it lets other threads run, of which one may be the peer.
    #[inline]
    pub(super) fn idle(&mut self, done: u64) -> Result<()> {
        std::hint::spin_loop();
        self.rounds += 1;
        if self.rounds >= ROUNDS {
            thread::yield_now();
            self.look(done)?;
        }
        Ok(())
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
        self.rounds = 0;
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
        self.report(now, done);
        Ok(())
    }

    fn listen(&mut self) -> Result<()> {
        match Message::receive(self.peer, "was done")? {
            Message::Sent { messages } if self.peer_sent.is_none() => self.peer_sent = Some(messages),
            other => other.out_of_turn(self.peer)?,
        }
        Ok(())
    }

    /// Tells the peer that all has been sent, and how many messages that were.
    pub(super) fn tell(&mut self, messages: u64) -> Result<()> {
        self.told = true;
        Message::Sent { messages }.send(self.peer)
    }

    /// Waits for the peer to have sent all, however long that takes.
    pub(super) fn wait_for_peer(&mut self) -> Result<u64> {
        loop {
            if let Some(sent) = self.peer_sent {
                return Ok(sent);
            }
            self.peer.wait()?;
            self.listen()?;
        }
    }

    fn report(&mut self, now: Instant, done: u64) {
        self.progress.show(|| match self.test.duration {
            Some(seconds) => format!("{} of {seconds} seconds", (now - self.start).as_secs().min(seconds)),
            None => format!("{done} of {} operations", self.test.operations()),
        });
    }
}
