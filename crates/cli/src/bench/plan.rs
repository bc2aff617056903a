//! What an end does, checked against what the device can before anything is sent.

use anyhow::{Result, bail, ensure};
use uverbs::Mtu;

use super::agreed::{ATOMIC, Role, Test};
use super::limits::Limits;
use super::options::{Command, Connection, Kind, Verb};

/// Peaks are not looked for among more operations on each QP, as by perftest, nor among more in all, for which the peer would wait.
const MOST_FOR_PEAK: u64 = 20_000;
const MOST_IN_ALL_FOR_PEAK: u64 = 1_000_000;
/// Larger messages all make a completion, unless told otherwise.
const MODERATED: u32 = 8192;

/// What an end does for a test.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) test: Test,
    pub(super) role: Role,
    pub(super) port: u8,
    /// The most that the path MTU can be.
    pub(super) mtu: Mtu,
    pub(super) tx_depth: u32,
    /// Zero if there are no receives.
    pub(super) rx_depth: u32,
    pub(super) post_list: u32,
    pub(super) cq_mod: u32,
    /// Messages of so many bytes go inline.
    pub(super) inline: u32,
    /// Whether it was asked for: then the device has to do it.
    pub(super) inline_asked: bool,
    pub(super) events: bool,
    pub(super) peak: bool,
    /// Room in the CQ.
    pub(super) completions: u32,
}

impl Plan {
    pub(super) fn new(test: Test, command: &Command, limits: &Limits, role: Role) -> Result<Self> {
        let options = command.options();
        let (verb, name, most) = (test.verb, &limits.name, limits.max_qp_wr);
        limits.check(verb, test.connection)?;
        let (asked, mtu) = (test.mtu, limits.mtu);
        let mtu = match asked.and_then(Mtu::from_bytes) {
            Some(asked) if asked > mtu => {
                bail!(
                    "EINVAL: --mtu {asked} is more than the active MTU of port {} of {name}, {mtu}",
                    limits.port
                )
            }
            Some(asked) => asked,
            None => mtu,
        };
        let (largest, what) = limits.largest(verb, test.connection, mtu);
        let size = test.largest();
        ensure!(size <= largest, "EINVAL: --size {size} is more than {what}");
        ensure!(
            verb != Verb::Atomic || size == ATOMIC,
            "EINVAL: --size {size}: an atomic operation has {ATOMIC} bytes"
        );
        let is_polling = test.polls_memory();
        ensure!(!(options.events && is_polling), "EINVAL: --events: a write raises none where it arrives");
        ensure!(
            test.num_qp <= limits.max_qp,
            "EINVAL: --qp {} is more than {name} allows, {}",
            test.num_qp,
            limits.max_qp
        );

        let queues = command.queues();
        let tx_depth = queues.map_or(1, |queues| queues.tx_depth.unwrap_or(128.min(most)));
        ensure!(tx_depth <= most, "EINVAL: --tx-depth {tx_depth} is more than {name} allows, {most}");
        let post_list = queues.and_then(|queues| queues.post_list).unwrap_or(1);
        ensure!(post_list <= tx_depth, "EINVAL: --post_list {post_list} is more than --tx-depth {tx_depth}");
        let cq_mod = match queues.and_then(|queues| queues.cq_mod) {
            Some(asked) if asked > tx_depth => {
                bail!(
                    "EINVAL: --cq-mod {asked} is more than --tx-depth {tx_depth}: no operation would complete"
                )
            }
            Some(asked) if asked > 1 && limits.is_efa => {
                bail!("EINVAL: --cq-mod {asked}: {name} completes every operation")
            }
            Some(asked) => asked,
            None if limits.is_efa || test.sizes.len() == 1 && size > MODERATED => 1,
            None if post_list > 1 => post_list,
            None => 100.min(tx_depth),
        };

        let carries = test.carries_data();
        let inline = match options.inline_size {
            Some(asked) if asked > 0 && !carries => {
                bail!("EINVAL: --inline_size {asked}: {verb} carries no data")
            }
            Some(asked) => asked,
            None if !carries || test.kind == Kind::Bw => 0,
            None if limits.is_efa => 32,
            None if verb == Verb::Write => 220,
            None if test.connection == Connection::Ud => 188,
            None => 236,
        };
        let mut plan = Self {
            role,
            port: limits.port,
            mtu,
            tx_depth,
            rx_depth: 0,
            post_list,
            cq_mod,
            inline,
            inline_asked: options.inline_size.is_some(),
            events: options.events,
            peak: queues.is_some_and(|queues| !queues.no_peak)
                && test.duration.is_none()
                && test.iters <= MOST_FOR_PEAK
                && test.operations() <= MOST_IN_ALL_FOR_PEAK,
            completions: 0,
            test,
        };
        plan.share_completions(options.rx_depth, limits)?;
        Ok(plan)
    }

    /// One CQ takes the completions of all QPs: there has to be room for all that may be there at once, or some are lost.
    fn share_completions(&mut self, rx_depth: Option<u32>, limits: &Limits) -> Result<()> {
        let (num_qp, name, most) = (self.test.num_qp, &limits.name, limits.max_cqe);
        let sends = match self.posts() {
            // One for each moderated round, one that is early because the queue is full, and the last.
            true => self.tx_depth.min(self.tx_depth / self.cq_mod + 3),
            false => 0,
        };
        if !self.receives() {
            ensure!(
                rx_depth.is_none() || self.test.takes_receives(),
                "EINVAL: --rx-depth: {} takes no receives",
                self.test.verb
            );
        } else {
            let room = (most.saturating_sub(64) / num_qp).saturating_sub(sends);
            self.rx_depth = rx_depth.unwrap_or(512.min(room).min(limits.max_qp_wr).max(1));
        }
        ensure!(
            self.rx_depth <= limits.max_qp_wr,
            "EINVAL: --rx-depth {} is more than {name} allows, {}",
            self.rx_depth,
            limits.max_qp_wr
        );
        let (total, depths) =
            (u64::from(num_qp) * (u64::from(sends) + u64::from(self.rx_depth)), self.depths());
        // Those that are being looked at are in it still while receives are posted again: 64, or a quarter of it.
        let total = total + total.div_ceil(3).clamp(1, 64);
        match u32::try_from(total) {
            Ok(total) if total <= most => self.completions = total,
            _ => bail!(
                "EINVAL: --qp {num_qp} with {depths} need room for {total} completions, a CQ of {name} has {most}: take shorter queues, or a larger --cq-mod"
            ),
        }
        Ok(())
    }

    fn depths(&self) -> String {
        let Self { tx_depth, cq_mod, rx_depth, .. } = self;
        match (self.posts(), *rx_depth) {
            (true, 0) => format!("--tx-depth {tx_depth} and --cq-mod {cq_mod}"),
            (false, _) => format!("--rx-depth {rx_depth}"),
            (true, _) => format!("--tx-depth {tx_depth}, --cq-mod {cq_mod} and --rx-depth {rx_depth}"),
        }
    }

    /// Whether this end posts sends of any kind.
    pub(super) fn posts(&self) -> bool {
        self.test.is_active(self.role) || self.test.has_answers()
    }

    /// Whether it posts receives.
    pub(super) fn receives(&self) -> bool {
        self.test.takes_receives()
            && (self.role == Role::Server || self.test.bidirectional || self.test.has_answers())
    }
}
