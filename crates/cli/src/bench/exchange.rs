//! What the ends tell each other over TCP.
//!
//! A message is a head of 24 bytes, which says what and which version this is and how long the rest is, and JSON. The client says
//! hello, the server welcomes it when it is connected, the client is ready then. In each run both say that they are alive until they
//! say what they have sent, when it has completed, and then what they have seen, when all has arrived. An end that fails says why, at
//! any time.

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::agreed::Test;
use super::report::Row;
use crate::connect::Endpoint;
use crate::peer::Peer;

const NAME: &str = "uverbs bench ";
const VERSION: u32 = 2;
/// `uverbs bench 2 00001234` and a newline.
const HEAD: usize = 24;
/// More than ten thousands of QPs take.
const LONGEST: usize = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    Hello {
        test: Test,
        end: Told,
    },
    Welcome(Told),
    Ready,
    /// Not done, but there.
    Alive,
    /// So many messages, all complete.
    Sent {
        messages: u64,
    },
    Done {
        received: u64,
        row: Option<Row>,
    },
    Failed {
        reason: String,
    },
}

/// What an end tells of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Told {
    /// Its QPs.
    pub(super) endpoints: Vec<Endpoint>,
    /// Its largest path MTU in bytes.
    pub(super) mtu: u32,
    /// Where to write, read or add.
    pub(super) address: u64,
    pub(super) rkey: u32,
    /// RDMA reads and atomics that may be under way to it.
    pub(super) reads: u8,
}

impl Message {
    fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Welcome(_) => "welcome",
            Self::Ready => "ready",
            Self::Alive => "alive",
            Self::Sent { .. } => "sent",
            Self::Done { .. } => "done",
            Self::Failed { .. } => "failed",
        }
    }

    /// Sends it. A peer that has gone has perhaps said why.
    pub(super) fn send(&self, peer: &mut Peer) -> Result<()> {
        let body = serde_json::to_vec(self)?;
        let mut bytes = format!("{NAME}{VERSION} {:08}\n", body.len()).into_bytes();
        bytes.extend(body);
        let sent = peer.send(&bytes);
        while sent.is_err() && peer.has_spoken()? {
            Self::receive(peer, "finished")?;
        }
        sent
    }

    /// The next message, if it is no failure.
    pub(super) fn receive(peer: &mut Peer, awaited: &str) -> Result<Self> {
        let mut head = [0; HEAD];
        peer.receive(&mut head, awaited)?;
        let length = parse_head(&head).with_context(|| format!("{} is no uverbs bench", peer.name()))?;
        let mut body = vec![0; length];
        peer.receive(&mut body, awaited)?;
        let message = serde_json::from_slice(&body);
        match message.with_context(|| format!("{} sends what cannot be understood", peer.name()))? {
            Self::Failed { reason } => bail!("{}: {reason}", peer.name()),
            message => Ok(message),
        }
    }

    /// The message that is not in its turn.
    pub(super) fn out_of_turn<T>(&self, peer: &Peer) -> Result<T> {
        bail!("{} says \"{}\" out of turn", peer.name(), self.name())
    }
}

fn parse_head(head: &[u8; HEAD]) -> Result<usize> {
    let text = String::from_utf8_lossy(head);
    let Some(rest) = text.strip_prefix(NAME) else { bail!("it sent {text:?}") };
    let (version, length) = rest.trim_end().split_once(' ').unwrap_or_default();
    ensure!(version == VERSION.to_string(), "it speaks version {version:?}, this is version {VERSION}");
    let length = length.parse().ok().filter(|length| *length <= LONGEST);
    length.with_context(|| format!("it sent {text:?}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::report::Rates;
    use super::*;

    fn pair() -> [Peer; 2] {
        Peer::pair(Duration::from_millis(100)).unwrap()
    }

    fn refusal(bytes: &[u8]) -> String {
        let [mut one, mut other] = pair();
        one.send(bytes).unwrap();
        format!("{:#}", Message::receive(&mut other, "said hello").unwrap_err())
    }

    #[test]
    fn messages_arrive_whole_and_in_order() {
        let [mut one, mut other] = pair();
        Message::Sent { messages: u64::MAX }.send(&mut one).unwrap();
        Message::Ready.send(&mut one).unwrap();
        let first = Message::receive(&mut other, "").unwrap();
        assert!(matches!(first, Message::Sent { messages: u64::MAX }), "{first:?}");
        let second = Message::receive(&mut other, "").unwrap();
        assert!(matches!(second, Message::Ready), "{second:?}");
        assert!(second.out_of_turn::<()>(&other).unwrap_err().to_string().contains("\"ready\" out of turn"));
    }

    #[test]
    fn failures_carry_their_reason() {
        let [mut one, mut other] = pair();
        Message::Failed { reason: "EINVAL: no".to_owned() }.send(&mut one).unwrap();
        assert_eq!(Message::receive(&mut other, "").unwrap_err().to_string(), "the other end: EINVAL: no");
    }

    #[test]
    fn the_reason_of_a_peer_that_has_gone_is_told() {
        let [mut one, mut other] = pair();
        Message::Sent { messages: 1 }.send(&mut one).unwrap();
        Message::Failed { reason: "EINVAL: no".to_owned() }.send(&mut one).unwrap();
        drop(one);
        let error = Message::Ready.send(&mut other).unwrap_err();
        assert_eq!(error.to_string(), "the other end: EINVAL: no");
        let error = Message::Ready.send(&mut other).unwrap_err();
        assert!(error.to_string().starts_with("the other end closed the connection"), "{error}");
        assert!(error.downcast_ref::<std::io::Error>().is_none());
    }

    /// Both ends print the same.
    #[test]
    fn numbers_arrive_as_they_were() {
        let [mut one, mut other] = pair();
        for average in [0.022_250_163_483_076_194, 5.107_544_456_066_946, f64::MIN_POSITIVE, 1e300] {
            let rates = Rates { size: 64, messages: 1, peak: None, average, arrival: None };
            let row = Some(Row::Bandwidth(rates));
            Message::Done { received: 1, row }.send(&mut one).unwrap();
            let message = Message::receive(&mut other, "").unwrap();
            let Message::Done { row: Some(Row::Bandwidth(arrived)), .. } = message else {
                panic!("{message:?}")
            };
            assert_eq!(arrived, rates);
        }
    }

    #[test]
    fn others_are_told_apart() {
        let pingpong = refusal(b"0000:000011:abcdef:00000000000000000000ffffc0a84d01\0");
        assert!(pingpong.contains("the other end is no uverbs bench: it sent \"0000:000011"), "{pingpong}");
        assert!(refusal(b"uverbs bench 1 00000002\n{}").contains("version \"1\", this is version 2"));
        assert!(refusal(b"uverbs bench 2 0000000x\n").contains("it sent"));
        assert!(refusal(b"uverbs bench 2 99999999\n").contains("it sent"));
        assert!(refusal(b"uverbs bench 2 00000002\n{}").contains("cannot be understood"));
        assert!(refusal(b"uverbs ben").contains("it has not said hello, or needs longer (--timeout)"));
        let [one, mut other] = pair();
        drop(one);
        let closed = Message::receive(&mut other, "said hello").unwrap_err().to_string();
        assert_eq!(closed, "the other end closed the connection before it said hello");
    }
}
