//! Faults on request.

use std::time::Duration;

use uverbs_ioctl::Errno;

/// What is to go wrong on a device. How often is given in thousandths; whether it happens to a message is drawn from a sequence that the
/// seed determines, so that the same work fails the same way each time.
///
/// ```
/// use std::time::Duration;
/// use uverbs_soft::{Device, Faults, Wire};
///
/// let device = Device::new(&Wire::new(), "unlucky");
/// device.set_faults(Faults::new(7).lose(50).lose_answers(50).delay(10, Duration::from_millis(1)));
/// ```
#[derive(Clone, Debug)]
pub struct Faults {
    random: u64,
    lose: u16,
    lose_answers: u16,
    duplicate: u16,
    reorder: u16,
    not_ready: u16,
    delay: (u16, Duration),
    failing_call: Option<(u64, Errno)>,
    removing_call: Option<u64>,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) lost: bool,
    pub(crate) answer_lost: bool,
    pub(crate) twice: bool,
    pub(crate) overtaken: bool,
    pub(crate) not_ready: bool,
}

/// What becomes of a command or mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFate {
    Fails(Errno),
    RemovesDevice,
}

impl Faults {
    /// None yet.
    pub fn new(seed: u64) -> Self {
        let never = (0, Duration::ZERO);
        Self {
            random: seed,
            lose: 0,
            lose_answers: 0,
            duplicate: 0,
            reorder: 0,
            not_ready: 0,
            delay: never,
            failing_call: None,
            removing_call: None,
        }
    }

    /// Messages that the device sends do not arrive. Those of RC are sent again after the QP's timeout, as often as its retries allow (7
    /// is for ever, as on soft-RoCE).
    pub fn lose(mut self, thousandths: u16) -> Self {
        self.lose = thousandths;
        self
    }

    /// Messages of RC arrive, but the device does not hear of it, and sends them again.
    pub fn lose_answers(mut self, thousandths: u16) -> Self {
        self.lose_answers = thousandths;
        self
    }

    /// Messages of UC and UD arrive twice. (Those of RC have numbers by which the peer would know the second.)
    pub fn duplicate(mut self, thousandths: u16) -> Self {
        self.duplicate = thousandths;
        self
    }

    /// Datagrams are overtaken by the next one of their QP. The last of all may never arrive.
    pub fn reorder(mut self, thousandths: u16) -> Self {
        self.reorder = thousandths;
        self
    }

    /// Messages of RC find the peer without a receive, whether it has one or not.
    pub fn not_ready(mut self, thousandths: u16) -> Self {
        self.not_ready = thousandths;
        self
    }

    /// Requests start later by this time, and so do those behind them in the same queue.
    pub fn delay(mut self, thousandths: u16, time: Duration) -> Self {
        self.delay = (thousandths, time);
        self
    }

    /// The command or mapping with this number, counted from 1 on, fails with that error number.
    pub fn fail_call(mut self, number: u64, errno: i32) -> Self {
        self.failing_call = Some((number, Errno::from_raw(errno)));
        self
    }

    /// The device is removed at the command or mapping with this number, counted from 1 on.
    pub fn remove_at_call(mut self, number: u64) -> Self {
        self.removing_call = Some(number);
        self
    }

    /// Draws: `splitmix64`.
    fn happens(&mut self, thousandths: u16) -> bool {
        if thousandths == 0 {
            return false;
        }
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % 1000 < thousandths.into()
    }

    pub(crate) fn fate(&mut self) -> Fate {
        Fate {
            lost: self.happens(self.lose),
            answer_lost: self.happens(self.lose_answers),
            twice: self.happens(self.duplicate),
            overtaken: self.happens(self.reorder),
            not_ready: self.happens(self.not_ready),
        }
    }

    /// How long a request is to wait before it starts.
    pub(crate) fn delays(&mut self) -> Option<Duration> {
        let (thousandths, time) = self.delay;
        self.happens(thousandths).then_some(time)
    }

    /// Counts a call.
    pub(crate) fn call(&mut self) -> Option<CallFate> {
        let due = |left: &mut u64| {
            *left = left.wrapping_sub(1);
            *left == 0
        };
        if self.removing_call.as_mut().is_some_and(due) {
            return Some(CallFate::RemovesDevice);
        }
        let (left, errno) = self.failing_call.as_mut()?;
        due(left).then_some(CallFate::Fails(*errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_what_happens() {
        let fates = |seed| {
            let mut faults = Faults::new(seed).lose(500).lose_answers(300);
            (0..1000).map(|_| faults.fate()).collect::<Vec<_>>()
        };
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
        let lost = fates(3).iter().filter(|fate| fate.lost).count();
        assert!((400..600).contains(&lost), "{lost}");
        assert!(fates(3).iter().all(|fate| !fate.twice && !fate.overtaken && !fate.not_ready));
    }

    #[test]
    fn calls_are_counted() {
        let mut faults = Faults::new(0).fail_call(2, 12).remove_at_call(3);
        let fates = [(); 4].map(|()| faults.call());
        let expected = [None, Some(CallFate::Fails(Errno::ENOMEM)), Some(CallFate::RemovesDevice), None];
        assert_eq!(fates, expected);
    }
}
