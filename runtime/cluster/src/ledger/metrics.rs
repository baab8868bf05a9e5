//! Metrics: what is measured, and under which name.

pub use crate::ledger::samples::{CountedSamples, Moments, Samples, Summary};

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
    /// Requests that kept latency limits: count, rate and share.
    Goodput,
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
        Queue = "queue", Time, "Time from reaching the queue to the first step with the request in it.";
        Prefill = "prefill", Time, "Time from that step to the end of the prompt's computation.";
        Transfer = "transfer", Time, "Time of a request's KV transfer, waiting for blocks included.";
        KvLoad = "kv_load", Time, "Time a request waited for KV from the host or the disk, for requests that did.";
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
        CachedTokens = "cached_tokens", Count, "Those found in a prefix cache, or in a tier below it.";
        HostCachedTokens = "host_cached_tokens", Count, "Of these, tokens that came from the memory of a host.";
        DiskCachedTokens = "disk_cached_tokens", Count, "Of these, tokens that came from a disk.";
        OutputTokens = "output_tokens", Count, "Output tokens of completed requests.";
        GeneratedTokens = "generated_tokens", Count, "Output tokens of all attempts, of requests that did not complete, too.";
        WastedTokens = "wasted_tokens", Count, "Output tokens of attempts that a fault cut off.";
        Stalls = "stalls", Count, "Times that a failure injector stalled an engine.";
        IgnoredFaults = "ignored_faults", Count, "Wishes of failure injectors that mean nothing in virtual time.";
        StayedWithDecode = "stayed_with_decode", Count, "Prompts computed by decode engines: conditional disaggregation.";
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
        matches!(
            self,
            Self::StayedWithDecode
                | Self::Shed
                | Self::Stalls
                | Self::IgnoredFaults
                | Self::HostCachedTokens
                | Self::DiskCachedTokens
        )
    }

    /// Whether only the whole run has it: engines serve all workloads together.
    #[must_use]
    pub const fn is_of_whole_run(self) -> bool {
        matches!(self, Self::Steps | Self::Stalls | Self::IgnoredFaults)
    }
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

    /// Each of `values` `times` times.
    pub(crate) fn sample_each(&mut self, trend: Trend, values: &[u64], times: u64) {
        self.trends[trend as usize].push_each(values, times);
    }

    #[inline]
    pub(crate) fn add(&mut self, counter: Counter, amount: u64) {
        self.counters[counter as usize] += amount;
    }

    pub(crate) fn total(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Sums up each of `sets`, and all of them together; returns the samples, too.
    pub(crate) fn summarise(sets: Vec<Self>) -> Summarised {
        let mut each = vec![MetricSummaries::default(); sets.len()];
        let mut all = MetricSummaries::default();
        for (summaries, set) in each.iter_mut().zip(&sets) {
            summaries.counters = set.counters;
            for (total, count) in all.counters.iter_mut().zip(&set.counters) {
                *total += count;
            }
        }
        let mut kept = RunSamples { sets: vec![Vec::with_capacity(Trend::ALL.len()); sets.len()] };
        let mut columns: Vec<_> = sets.into_iter().map(|set| set.trends.into_iter()).collect();
        let mut token_gaps_ns = CountedSamples::default();
        for trend in 0..Trend::ALL.len() {
            let own: Vec<Samples> = columns.iter_mut().filter_map(Iterator::next).collect();
            let several = own.iter().filter(|samples| !samples.is_empty()).count() > 1;
            let is_itl = trend == Trend::Itl as usize;
            let mut joined = Samples::default();
            for ((summaries, kept), samples) in each.iter_mut().zip(&mut kept.sets).zip(own) {
                if several {
                    joined.append(&samples);
                }
                let counted = CountedSamples::from(samples);
                summaries.trends[trend] = counted.summary();
                let is_all = !several && summaries.trends[trend].is_some();
                if is_all {
                    // What only one of them has, all have.
                    all.trends[trend] = summaries.trends[trend];
                }
                // The gaps of a run are by far the most samples: they are not kept twice.
                if is_all && is_itl {
                    token_gaps_ns = counted;
                    kept.push(Samples::default());
                } else {
                    kept.push(counted.into_samples());
                }
            }
            if several {
                let whole = CountedSamples::from(joined);
                all.trends[trend] = whole.summary();
                if is_itl {
                    token_gaps_ns = whole;
                }
            }
        }
        Summarised { each, all, samples: kept, token_gaps_ns }
    }
}

/// What [`MetricSet::summarise`] returns.
pub(crate) struct Summarised {
    pub(crate) each: Vec<MetricSummaries>,
    pub(crate) all: MetricSummaries,
    pub(crate) samples: RunSamples,
    pub(crate) token_gaps_ns: CountedSamples,
}

/// The samples of a run, for percentiles that its report does not list.
#[derive(Clone, Debug, Default)]
pub struct RunSamples {
    /// By workload, and last those of engine steps; in each by [`Trend`]. Where
    /// only one set has gaps between tokens, these are `Report::token_gaps_ns`.
    sets: Vec<Vec<Samples>>,
}

impl RunSamples {
    /// The samples of one workload by its index, or of the whole run.
    pub(crate) fn of(&self, trend: Trend, workload: Option<usize>) -> Samples {
        let sets = match workload {
            Some(index) => self.sets.get(index..=index).unwrap_or_default(),
            None => &self.sets[..],
        };
        let mut joined = Samples::default();
        sets.iter().filter_map(|set| set.get(trend as usize)).for_each(|samples| joined.append(samples));
        joined
    }
}

/// A [`MetricSet`] summed up.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetricSummaries {
    pub(crate) trends: [Option<Summary>; Trend::ALL.len()],
    pub(crate) counters: [u64; Counter::ALL.len()],
}
