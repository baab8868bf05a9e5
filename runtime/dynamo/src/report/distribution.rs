//! A distribution as Dynamo tells it.

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
        let samples: Vec<(f64, u64)> = samples_ns.iter().map(|&ns| (ns as f64, 1)).collect();
        Self::of(&samples, NS_PER_MS)
    }

    /// Of times in nanoseconds, ascending, each with how often it came; told in
    /// milliseconds.
    #[must_use]
    pub fn of_counted_ns(samples_ns: &[(u64, u64)]) -> Self {
        let samples: Vec<(f64, u64)> = samples_ns.iter().map(|&(ns, count)| (ns as f64, count)).collect();
        Self::of(&samples, NS_PER_MS)
    }

    /// Of the rates per second that gaps make, without gaps of 0; gaps as in
    /// [`Distribution::of_counted_ns`].
    #[must_use]
    pub fn of_rates(gaps_ns: &[(u64, u64)]) -> Self {
        let rates = gaps_ns.iter().rev().filter(|(ns, _)| *ns > 0);
        let samples: Vec<(f64, u64)> = rates.map(|&(ns, count)| (1e9 / ns as f64, count)).collect();
        Self::of(&samples, 1.0)
    }

    /// Of milliseconds in any order.
    #[must_use]
    pub fn of_ms(mut samples_ms: Vec<f64>) -> Self {
        samples_ms.sort_unstable_by(f64::total_cmp);
        let samples: Vec<(f64, u64)> = samples_ms.into_iter().map(|ms| (ms, 1)).collect();
        Self::of(&samples, 1.0)
    }

    /// Of ascending samples, each with how often it came, divided by `scale`.
    /// Sums are taken in that order, so they are the same for the same samples.
    fn of(samples: &[(f64, u64)], scale: f64) -> Self {
        let count: u64 = samples.iter().map(|(_, count)| count).sum();
        let (Some(&(min, _)), Some(&(max, _))) = (samples.first(), samples.last()) else { return Self::default() };
        let sum: f64 = samples.iter().map(|&(value, count)| value * count as f64).sum();
        // Rounding must not put a mean outside of its samples.
        let mean = (sum / count as f64).clamp(min, max);
        let squares: f64 = samples.iter().map(|&(value, count)| (value - mean) * (value - mean) * count as f64).sum();
        let mut ends = Vec::with_capacity(samples.len());
        let mut seen = 0;
        for &(value, count) in samples {
            seen += count;
            ends.push((seen, value));
        }
        // The sample of rank round((n - 1) p / 100), without interpolation.
        let at = |percent: f64| {
            let rank = ((count - 1) as f64 * percent / 100.0).round() as u64;
            ends[ends.partition_point(|&(end, _)| end <= rank)].1 / scale
        };
        Self {
            count,
            mean: mean / scale,
            min: min / scale,
            max: max / scale,
            median: at(50.0),
            p75: at(75.0),
            p90: at(90.0),
            p95: at(95.0),
            p99: at(99.0),
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
