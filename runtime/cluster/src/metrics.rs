//! Metrics: what is measured, under which name, and how samples are summed up.
//!
//! Samples are exact. They are kept as runs of equal values, because the
//! requests of one batch share their token times, so a run of millions of
//! tokens costs little more than its steps.

use serde::Serialize;

/// The unit of a metric's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds inside, milliseconds in reports.
    Time,
    /// A number of things.
    Count,
    /// A share between 0 and 1.
    Ratio,
}

/// What a metric's values can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Many samples: percentiles, mean, min, max, count, rate.
    Trend,
    /// A total: count and rate.
    Counter,
    /// One value.
    Gauge,
}

/// A metric's description.
#[derive(Clone, Copy, Debug)]
pub struct MetricInfo {
    /// Name in assertions and reports (`_ms` is added there to times).
    pub name: &'static str,
    /// Unit of its values.
    pub unit: Unit,
    /// What it can be asked for.
    pub kind: MetricKind,
    /// One line for people.
    pub help: &'static str,
}

macro_rules! metric_enum {
    ($(#[$doc:meta])* $name:ident, $kind:expr, { $($variant:ident = $text:literal, $unit:ident, $help:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $(#[doc = $help] $variant,)* }

        impl $name {
            /// All of them, in report order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The description.
            #[must_use]
            pub const fn info(self) -> MetricInfo {
                match self {
                    $(Self::$variant => MetricInfo { name: $text, unit: Unit::$unit, kind: $kind, help: $help },)*
                }
            }
        }
    };
}

metric_enum! {
    /// Metrics with many samples.
    Trend, MetricKind::Trend, {
        Ttft = "ttft", Time, "Time from arrival to the first output token, per request.";
        Itl = "itl", Time, "Every gap between consecutive output tokens of a request.";
        Tpot = "tpot", Time, "Mean gap between a request's tokens, for requests with at least two.";
        E2e = "e2e", Time, "Time from arrival to the last output token, per request.";
        Queue = "queue", Time, "Time from arrival to the first step with the request in it.";
        Prefill = "prefill", Time, "Time from that step to the end of the prompt's computation.";
        Transfer = "transfer", Time, "Time of a request's KV transfer, waiting for blocks included.";
        StepTime = "step", Time, "Duration of every engine step.";
        BatchSize = "batch", Count, "Requests in every engine step.";
    }
}

metric_enum! {
    /// Totals.
    Counter, MetricKind::Counter, {
        Requests = "requests", Count, "Requests that arrived.";
        Completed = "completed", Count, "Requests that finished with their output.";
        Rejected = "rejected", Count, "Requests refused because they could never run.";
        Failed = "failed", Count, "Requests lost to a fault.";
        Retries = "retries", Count, "Attempts made again after a fault.";
        Preemptions = "preemptions", Count, "Requests put back to waiting for lack of KV blocks.";
        Steps = "steps", Count, "Engine steps.";
        PromptTokens = "prompt_tokens", Count, "Prompt tokens of completed requests.";
        CachedTokens = "cached_tokens", Count, "Those found in a prefix cache.";
        OutputTokens = "output_tokens", Count, "Output tokens of completed requests.";
        WastedTokens = "wasted_tokens", Count, "Output tokens of attempts that a fault cut off.";
        Stalls = "stalls", Count, "Times that a failure injector stalled an engine.";
        IgnoredFaults = "ignored_faults", Count, "Wishes of failure injectors that mean nothing in virtual time.";
        Shed = "shed", Count, "Requests refused by a router because all engines had too much to do.";
    }
}

metric_enum! {
    /// Single values.
    Gauge, MetricKind::Gauge, {
        Duration = "duration", Time, "Virtual time until the last request ended.";
        PrefixHitRatio = "prefix_hit_ratio", Ratio, "Cached share of the prompt tokens of completed requests.";
        CompletedRatio = "completed_ratio", Ratio, "Completed share of the requests that arrived.";
        KvPeakUsage = "kv_peak_usage", Ratio, "Largest share of an engine's KV blocks in use.";
    }
}

impl Counter {
    /// Whether it counts what most runs cannot have. Reports name it only where
    /// it is not 0, so that reports of other runs do not change with it.
    #[must_use]
    pub const fn is_occasional(self) -> bool {
        matches!(self, Self::Shed | Self::Stalls | Self::IgnoredFaults)
    }

    /// Whether only the whole run has it: engines serve all workloads together.
    #[must_use]
    pub const fn is_of_whole_run(self) -> bool {
        matches!(self, Self::Steps | Self::Stalls | Self::IgnoredFaults)
    }
}

/// Samples of one trend, exact, as runs of equal values.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    runs: Vec<(u64, u64)>,
}

impl Samples {
    /// Adds `times` equal samples.
    #[inline]
    pub fn push(&mut self, value: u64, times: u64) {
        match self.runs.last_mut() {
            Some((last, count)) if *last == value => *count += times,
            _ => self.runs.push((value, times)),
        }
    }

    /// The distinct samples in order, each with how often it came.
    pub fn counted(&mut self) -> &[(u64, u64)] {
        self.runs.sort_unstable();
        self.runs.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            earlier.1 += u64::from(same) * later.1;
            same
        });
        &self.runs
    }

    /// Sums the samples up; `None` without samples.
    #[must_use]
    pub fn summarise(mut self) -> Option<Summary> {
        // One run a value, so that the sums below do not show how they came.
        self.counted();
        let count: u64 = self.runs.iter().map(|(_, count)| count).sum();
        let (min, max) = (self.runs.first()?.0, self.runs.last()?.0);
        let sum: u128 = self.runs.iter().map(|&(value, count)| u128::from(value) * u128::from(count)).sum();
        let mean = sum as f64 / count as f64;
        // Runs are sorted, so the order of this summation is fixed.
        let square = |value: u64| (value as f64 - mean) * (value as f64 - mean);
        let squares: f64 = self.runs.iter().map(|&(value, count)| square(value) * count as f64).sum();
        let mut cumulative = 0;
        let ends: Vec<(u64, u64)> = self
            .runs
            .iter()
            .map(|&(value, count)| {
                cumulative += count;
                (cumulative, value)
            })
            .collect();
        let at = |percent: f64| {
            let rank = ((count - 1) as f64 * percent / 100.0).round() as u64;
            ends[ends.partition_point(|&(end, _)| end <= rank)].1
        };
        Some(Summary {
            count,
            mean,
            min,
            max,
            std: (squares / count as f64).sqrt(),
            p50: at(50.0),
            p75: at(75.0),
            p90: at(90.0),
            p95: at(95.0),
            p99: at(99.0),
        })
    }
}

/// A trend summed up. Values are in the metric's inner unit (nanoseconds for
/// times). A percentile `p` is the sample of rank `round((n - 1) * p / 100)`,
/// without interpolation, as Dynamo's replay reports it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Number of samples.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Smallest sample.
    pub min: u64,
    /// Largest sample.
    pub max: u64,
    /// Population standard deviation.
    pub std: f64,
    /// Median.
    pub p50: u64,
    /// 75th percentile.
    pub p75: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
}

/// The metrics of a set of requests: all of a run, or those of one workload.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetricSet {
    trends: [Samples; Trend::ALL.len()],
    counters: [u64; Counter::ALL.len()],
}

impl MetricSet {
    #[inline]
    pub(crate) fn sample(&mut self, trend: Trend, value: u64) {
        self.sample_times(trend, value, 1);
    }

    #[inline]
    pub(crate) fn sample_times(&mut self, trend: Trend, value: u64, times: u64) {
        self.trends[trend as usize].push(value, times);
    }

    #[inline]
    pub(crate) fn add(&mut self, counter: Counter, amount: u64) {
        self.counters[counter as usize] += amount;
    }

    pub(crate) fn total(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Adds everything in `other`.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.trends.iter_mut().zip(&other.trends) {
            mine.runs.extend_from_slice(&theirs.runs);
        }
        for (mine, theirs) in self.counters.iter_mut().zip(&other.counters) {
            *mine += theirs;
        }
    }

    /// See [`Samples::counted`].
    pub(crate) fn counted(&mut self, trend: Trend) -> &[(u64, u64)] {
        self.trends[trend as usize].counted()
    }

    pub(crate) fn into_summaries(self) -> MetricSummaries {
        MetricSummaries { trends: self.trends.map(Samples::summarise), counters: self.counters }
    }
}

/// A [`MetricSet`] summed up.
#[derive(Clone, Debug)]
pub(crate) struct MetricSummaries {
    pub(crate) trends: [Option<Summary>; Trend::ALL.len()],
    pub(crate) counters: [u64; Counter::ALL.len()],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(values: impl IntoIterator<Item = u64>) -> Summary {
        let mut samples = Samples::default();
        values.into_iter().for_each(|value| samples.push(value, 1));
        samples.summarise().unwrap()
    }

    #[test]
    fn percentiles_are_samples_by_rounded_rank() {
        let all = summary(1..=100);
        assert_eq!((all.p50, all.p90, all.p99), (51, 90, 99));
        assert_eq!((all.min, all.max, all.count), (1, 100, 100));
        assert!((all.mean - 50.5).abs() < 1e-12);
    }

    #[test]
    fn order_and_runs_do_not_matter() {
        assert_eq!(summary([3, 3, 1, 2, 3]), summary([1, 3, 2, 3, 3]));
        assert_eq!(summary([7]).p99, 7);
    }

    #[test]
    fn no_samples_have_no_summary() {
        assert_eq!(Samples::default().summarise(), None);
    }
}
