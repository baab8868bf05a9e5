//! A distribution as Dynamo tells it.

use vcr_cluster::metrics::SortedSamples;

/// How samples come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Ascending,
    Descending,
}

/// Samples summed up. Without samples all of it is 0, as in Dynamo; how many
/// there were is in `count`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Number of samples.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// 50th percentile.
    pub median: f64,
    /// 75th percentile.
    pub p75: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Population standard deviation.
    pub std: f64,
}

const NS_PER_MS: f64 = 1e6;

impl Distribution {
    /// Of times in nanoseconds, in any order; told in milliseconds.
    #[must_use]
    pub fn of_ns(mut samples_ns: Vec<u64>) -> Self {
        samples_ns.sort_unstable();
        Self::of(Order::Ascending, || samples_ns.iter().map(|&ns| (ns as f64, 1)), NS_PER_MS)
    }

    /// Of times in nanoseconds; told in milliseconds.
    #[must_use]
    pub fn of_sorted_ns(samples_ns: &SortedSamples) -> Self {
        Self::of(Order::Ascending, || samples_ns.runs().map(|(ns, count)| (ns as f64, count)), NS_PER_MS)
    }

    /// Of the rates per second that gaps in nanoseconds make, without gaps of 0.
    #[must_use]
    pub fn of_rates(gaps_ns: &SortedSamples) -> Self {
        let rates = || gaps_ns.runs().filter(|(ns, _)| *ns > 0).map(|(ns, count)| (1e9 / ns as f64, count));
        Self::of(Order::Descending, rates, 1.0)
    }

    /// Of milliseconds in any order.
    #[must_use]
    pub fn of_ms(mut samples_ms: Vec<f64>) -> Self {
        samples_ms.sort_unstable_by(f64::total_cmp);
        Self::of(Order::Ascending, || samples_ms.iter().map(|&ms| (ms, 1)), 1.0)
    }

    /// Of samples in that order, each with how often it came in a row, divided by
    /// `scale`. Sums are taken in that order, so they are the same for the same
    /// samples.
    fn of<I: Iterator<Item = (f64, u64)>>(order: Order, samples: impl Fn() -> I, scale: f64) -> Self {
        let mut count = 0u64;
        let (mut sum, mut min, mut max) = (0.0, f64::INFINITY, f64::NEG_INFINITY);
        for (value, times) in samples() {
            count += times;
            sum += value * times as f64;
            min = min.min(value);
            max = max.max(value);
        }
        if count == 0 {
            return Self::default();
        }
        // Rounding must not put a mean outside of its samples.
        let mean = (sum / count as f64).clamp(min, max);
        // The sample of rank round((n - 1) p / 100), without interpolation.
        let mut ranks = [50.0, 75.0, 90.0, 95.0, 99.0].map(|percent| {
            let rank = ((count - 1) as f64 * percent / 100.0).round() as u64;
            match order {
                Order::Ascending => rank,
                Order::Descending => count - 1 - rank,
            }
        });
        if order == Order::Descending {
            ranks.reverse();
        }
        let mut percentiles = [0.0; 5];
        let (mut squares, mut seen, mut next) = (0.0, 0, 0);
        for (value, times) in samples() {
            squares += (value - mean) * (value - mean) * times as f64;
            seen += times;
            while next < ranks.len() && ranks[next] < seen {
                percentiles[next] = value / scale;
                next += 1;
            }
        }
        if order == Order::Descending {
            percentiles.reverse();
        }
        let [median, p75, p90, p95, p99] = percentiles;
        Self {
            count,
            mean: mean / scale,
            min: min / scale,
            max: max / scale,
            median,
            p75,
            p90,
            p95,
            p99,
            std: (squares / count as f64).sqrt() / scale,
        }
    }

    /// The statistics with their names in Dynamo's keys, in its order.
    #[must_use]
    pub fn statistics(&self) -> [(&'static str, f64); 9] {
        [
            ("mean", self.mean),
            ("min", self.min),
            ("max", self.max),
            ("median", self.median),
            ("p75", self.p75),
            ("p90", self.p90),
            ("p95", self.p95),
            ("p99", self.p99),
            ("std", self.std),
        ]
    }
}
