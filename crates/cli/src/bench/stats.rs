//! What is made of the times measured: latencies and the peak of a bandwidth.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::report::{Bucket, LatencyRow};

/// One thousandth of a value is told apart, from nanoseconds to hours.
const DIGITS: u8 = 3;
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// A bucket of the histogram is so much wider than the one before.
const WIDER: f64 = 1.25;

/// Latencies, in a room that does not grow.
pub(super) struct Latencies {
    nanoseconds: Histogram<u64>,
    /// How many latencies there are in a time measured: two in a round trip.
    parts: f64,
}

impl Latencies {
    pub(super) fn new(parts: u32) -> Self {
        let bounds = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, DIGITS);
        Self { nanoseconds: bounds.expect("bounds of a histogram"), parts: f64::from(parts) }
    }

    #[inline]
    pub(super) fn record(&mut self, time: Duration) {
        self.nanoseconds.saturating_record(time.as_nanos() as u64);
    }

    fn usec(&self, nanoseconds: f64) -> f64 {
        nanoseconds / 1000.0 / self.parts
    }

    pub(super) fn row(&self, size: u32) -> LatencyRow {
        let quantile = |part| self.usec(self.nanoseconds.value_at_quantile(part) as f64);
        LatencyRow {
            size,
            iterations: self.nanoseconds.len(),
            min: self.usec(self.nanoseconds.min() as f64),
            max: self.usec(self.nanoseconds.max() as f64),
            typical: quantile(0.5),
            average: self.usec(self.nanoseconds.mean()),
            deviation: self.usec(self.nanoseconds.stdev()),
            percentile_99: quantile(0.99),
            percentile_99_9: quantile(0.999),
        }
    }

    /// How many there are up to each of some latencies, which grow by a factor; none of the empty ones.
    pub(super) fn buckets(&self) -> Vec<Bucket> {
        let first = self.nanoseconds.min().max(1);
        let buckets = self.nanoseconds.iter_log(first, WIDER).map(|step| Bucket {
            up_to: self.usec(step.value_iterated_to() as f64),
            count: step.count_since_last_iteration(),
        });
        buckets.filter(|bucket| bucket.count > 0).collect()
    }
}

/// When requests were posted and completed: so many in all, until then. Neither goes back.
pub(super) struct Timeline {
    pub(super) posted: Vec<(u64, Instant)>,
    pub(super) completed: Vec<(u64, Instant)>,
}

impl Timeline {
    /// With room for so many requests.
    pub(super) fn new(requests: u64) -> Self {
        let room = || Vec::with_capacity(requests as usize);
        Self { posted: room(), completed: room() }
    }

    /// The most requests a second between any posting and any completion after it.
    pub(super) fn peak(&self) -> f64 {
        let mut peak = 0.0;
        // Whatever is faster than the fastest found so far gains on it. The one that gains most is the next to beat: a few rounds find the
        // fastest of all (Dinkelbach's method), where comparing all pairs would take seconds.
        while let Some(faster) = self.most_ahead_of(peak) {
            peak = faster;
        }
        peak
    }

    /// The rate of the stretch that completes most requests beyond what this rate does in its time, if there is a faster one.
    fn most_ahead_of(&self, rate: f64) -> Option<f64> {
        let (_, start) = *self.posted.first()?;
        let seconds = |time: Instant| time.saturating_duration_since(start).as_secs_f64();
        let ahead = |(count, time): (u64, Instant)| count as f64 - rate * seconds(time);
        let mut completed = self.completed.iter().rev().copied().peekable();
        let mut best: Option<(u64, Instant)> = None;
        let (mut most, mut fastest) = (0.0, rate);
        for &from in self.posted.iter().rev() {
            // The earlier it was posted, the more come after.
            while let Some(to) = completed.next_if(|to| to.0 > from.0 && to.1 > from.1) {
                if best.is_none_or(|best| ahead(to) > ahead(best)) {
                    best = Some(to);
                }
            }
            if let Some(to) = best
                && ahead(to) - ahead(from) > most
            {
                most = ahead(to) - ahead(from);
                fastest = (to.0 - from.0) as f64 / (to.1 - from.1).as_secs_f64();
            }
        }
        (fastest > rate).then_some(fastest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(parts: u32, nanoseconds: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::new(parts);
        nanoseconds.into_iter().for_each(|time| latencies.record(Duration::from_nanos(time)));
        latencies
    }

    #[test]
    fn percentiles_are_the_nearest_ranks() {
        let row = latencies(1, (1..=1000).rev()).row(8);
        assert_eq!((row.size, row.iterations), (8, 1000));
        assert_eq!((row.min, row.max, row.typical), (0.001, 1.0, 0.5));
        assert_eq!((row.percentile_99, row.percentile_99_9), (0.99, 0.999));
        assert!((row.average - 0.5005).abs() < 1e-9);
        // Of the numbers from 1 to n: the root of (n² - 1) / 12.
        assert!((row.deviation - 0.288_674_99).abs() < 1e-6);
    }

    #[test]
    fn one_value_is_all_of_them_and_a_round_trip_is_two() {
        let row = latencies(2, [1500]).row(2);
        let values = [row.min, row.max, row.typical, row.average, row.percentile_99, row.percentile_99_9];
        assert_eq!((values, row.deviation), ([0.75; 6], 0.0));
    }

    #[test]
    fn deviation_of_known_values() {
        let row = latencies(1, [2, 4, 4, 4, 5, 5, 7, 9]).row(2);
        assert!((row.average - 0.005).abs() < 1e-9 && (row.deviation - 0.002).abs() < 1e-9);
    }

    #[test]
    fn what_is_beyond_the_histogram_is_its_end() {
        let row = latencies(1, [u64::MAX]).row(2);
        assert!((row.max / 86_400e6 - 1.0).abs() < 0.001 && row.iterations == 1);
    }

    #[test]
    fn buckets_hold_everything_and_grow() {
        let latencies = latencies(2, (1000..3000).step_by(10).chain([50_000]));
        let buckets = latencies.buckets();
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 201);
        assert!(buckets.windows(2).all(|pair| pair[0].up_to < pair[1].up_to), "{buckets:?}");
        assert!(buckets.iter().all(|bucket| bucket.count > 0) && buckets.len() < 10, "{buckets:?}");
        assert!(buckets[0].up_to >= 0.5 && buckets.last().unwrap().up_to >= 25.0, "{buckets:?}");
        assert_eq!(super::Latencies::new(1).buckets().len(), 0);
    }

    #[test]
    fn the_peak_is_the_steepest_stretch() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let timeline = Timeline {
            posted: vec![(0, at(0)), (10, at(90)), (20, at(100))],
            completed: vec![(10, at(100)), (20, at(110)), (30, at(200))],
        };
        // From the second posting to the second completion.
        assert!((timeline.peak() - 500.0).abs() < 1e-6, "{}", timeline.peak());
        assert_eq!(Timeline::new(0).peak(), 0.0);
    }

    #[test]
    fn no_stretch_is_faster_than_the_peak() {
        let start = Instant::now();
        let mut seed = 7_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed >> 33
        };
        for _ in 0..100 {
            let (mut timeline, mut now, mut posted, mut completed) = (Timeline::new(60), start, 0, 0);
            while completed < 60 {
                now += Duration::from_nanos(1 + random() % 5000);
                if posted < 60 && random() % 2 == 0 {
                    timeline.posted.push((posted, now));
                    posted += 1 + random() % 4;
                } else if completed < posted {
                    completed += 1 + random() % (posted - completed);
                    timeline.completed.push((completed, now));
                }
            }
            let rates = timeline.posted.iter().flat_map(|from| {
                let after = timeline.completed.iter().filter(|to| to.1 > from.1 && to.0 > from.0);
                after.map(|to| (to.0 - from.0) as f64 / (to.1 - from.1).as_secs_f64())
            });
            assert_eq!(timeline.peak(), rates.fold(0.0, f64::max));
        }
    }
}
