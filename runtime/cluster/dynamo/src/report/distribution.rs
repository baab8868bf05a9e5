//! A distribution as Dynamo reports it.

use vcr_base::percentile::percentile_rank;
use vcr_cluster::TrendReport;
use vcr_cluster::metrics::{CountedSamples, Moments};

/// Statistics of samples. Without samples all fields are 0, as in Dynamo.
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
const PERCENTILES: [f64; 5] = [50.0, 75.0, 90.0, 95.0, 99.0];

impl Distribution {
    /// The distribution, in milliseconds, of times in nanoseconds.
    #[must_use]
    pub fn of_ns(mut samples_ns: Vec<u64>) -> Self {
        samples_ns.sort_unstable();
        Self::of(samples_ns.len(), |index| samples_ns[index] as f64, NS_PER_MS)
    }

    /// The distribution of a trend in a run's report; 0 in all fields if the trend is absent.
    #[must_use]
    pub fn of_trend(trend: Option<TrendReport>) -> Self {
        let Some(trend) = trend else { return Self::default() };
        Self {
            count: trend.count,
            mean: trend.mean,
            min: trend.min,
            max: trend.max,
            median: trend.p50,
            p75: trend.p75,
            p90: trend.p90,
            p95: trend.p95,
            p99: trend.p99,
            std: trend.std,
        }
    }

    /// The distribution of rates per second, which are the inverse of gaps in nanoseconds. Gaps of 0 are omitted.
    #[must_use]
    pub fn of_rates(gaps_ns: &CountedSamples) -> Self {
        let (all, zeros) = (gaps_ns.count(), gaps_ns.zeros());
        let count = all - zeros;
        if count == 0 {
            return Self::default();
        }
        // The longest gap is the lowest rate, so ranks are reversed.
        let [p50, p75, p90, p95, p99] =
            PERCENTILES.map(|percent| all - 1 - percentile_rank(count, percent).unwrap_or(0));
        let of_gaps = gaps_ns.at_ranks([zeros, p99, p95, p90, p75, p50, all - 1]);
        let [max, p99, p95, p90, p75, median, min] = of_gaps.map(|gap_ns| 1e9 / gap_ns as f64);
        // Sums are integers in units of a fraction of the highest rate, so they do not depend on the order of the
        // gaps.
        let parts_per_rate = (1u64 << 43) as f64 / max;
        let parts_of = |rate: f64| (rate * parts_per_rate) as i64 as u64;
        let mut parts = Moments::default();
        gaps_ns.for_each(|gap_ns, times| {
            if gap_ns > 0 {
                parts.add(parts_of(1e9 / gap_ns as f64), times);
            }
        });
        let least = parts_of(min);
        // Rounding must not move the mean out of the samples' range.
        let mean = (parts.mean() / parts_per_rate).clamp(min, max);
        Self { count, mean, min, max, median, p75, p90, p95, p99, std: parts.std(least) / parts_per_rate }
    }

    /// The distribution of milliseconds in any order.
    #[must_use]
    pub fn of_ms(mut samples_ms: Vec<f64>) -> Self {
        samples_ms.sort_unstable_by(f64::total_cmp);
        Self::of(samples_ms.len(), |index| samples_ms[index], 1.0)
    }

    /// The distribution of ascending samples, divided by `scale`. Samples are summed in ascending order, so equal
    /// samples give equal sums.
    fn of(len: usize, sample: impl Fn(usize) -> f64, scale: f64) -> Self {
        let Some(last) = len.checked_sub(1) else { return Self::default() };
        let (min, max) = (sample(0), sample(last));
        let count = len as u64;
        let sum: f64 = (0..len).map(&sample).sum();
        // Rounding must not move the mean out of the samples' range.
        let mean = (sum / count as f64).clamp(min, max);
        let squares: f64 = (0..len).map(|index| (sample(index) - mean) * (sample(index) - mean)).sum();
        let at = |percent: f64| sample(percentile_rank(count, percent).unwrap_or(0) as usize) / scale;
        let [median, p75, p90, p95, p99] = PERCENTILES.map(at);
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

    /// The statistics with their names in Dynamo's keys, in Dynamo's order.
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
