//! All metrics with their names, units and meanings.

pub use crate::ledger::samples::{CountedSamples, Moments, Samples, Summary};

/// The unit of a metric's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A duration: nanoseconds internally, milliseconds in reports.
    Time,
    /// A number of items.
    Count,
    /// A share between 0 and 1.
    Ratio,
    /// US dollars.
    Usd,
}

/// Kind of a metric, which determines its statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Many samples: percentiles, mean, min, max, count, rate.
    Trend,
    /// A total: count and rate.
    Counter,
    /// One value.
    Gauge,
    /// Requests that met latency limits: count, rate and ratio.
    Goodput,
}

/// Scope of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Reported for a run and for each of its workloads.
    Workload,
    /// Reported only for a run, because engines serve all workloads together.
    Run,
}

/// The source of a metric's value, which determines the targets that know it. A report omits a metric that its
/// target cannot know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Clients measure the value, so every target knows it.
    Clients,
    /// Engines know the value, and servers may report it.
    Reported,
    /// The engines' request records. Unknown for engines behind an external server.
    Records,
    /// The engines' totals. Unknown for engines behind an external server.
    Totals,
    /// Request records that only engines in virtual time have.
    VirtualRecords,
    /// Totals that only engines in virtual time have.
    VirtualTotals,
    /// The computed part of each prompt before its first token. Only engines in virtual time report it.
    PromptProgress,
}

impl Origin {
    /// Whether only engines in virtual time know the value.
    #[must_use]
    pub const fn is_virtual(self) -> bool {
        matches!(self, Self::VirtualRecords | Self::VirtualTotals | Self::PromptProgress)
    }

    /// Whether engines behind an external server do not reveal the value.
    #[must_use]
    pub const fn is_hidden_by_servers(self) -> bool {
        !matches!(self, Self::Clients | Self::Reported)
    }

    /// Whether the value comes from engine totals rather than from request records.
    pub(crate) const fn is_total(self) -> bool {
        matches!(self, Self::Totals | Self::VirtualTotals | Self::PromptProgress)
    }
}

/// The description of a metric.
#[derive(Clone, Copy, Debug)]
pub struct MetricInfo {
    /// Name in assertions and reports (reports append `_ms` to times).
    pub name: &'static str,
    /// Unit of the values.
    pub unit: Unit,
    /// Kind of the metric.
    pub kind: MetricKind,
    /// Scope of the metric.
    pub scope: Scope,
    /// The origin of the value.
    pub origin: Origin,
    /// The meaning, as a clause without an initial capital and full stop.
    pub meaning: &'static str,
}

impl MetricInfo {
    /// The metric's key in reports: its name, with its unit if it has one.
    #[must_use]
    pub fn report_name(&self) -> String {
        match self.unit {
            Unit::Time => format!("{}_ms", self.name),
            Unit::Usd => format!("{}_usd", self.name),
            Unit::Count | Unit::Ratio => self.name.to_owned(),
        }
    }
}

macro_rules! metric_enum {
    ($(#[$doc:meta])* $name:ident, {
        $($variant:ident = $text:literal, $unit:ident, $scope:ident, $origin:ident, $meaning:literal;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $(#[doc = $meaning] $variant,)* }

        impl $name {
            /// All metrics, in report order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The description.
            #[must_use]
            pub const fn info(self) -> MetricInfo {
                match self {
                    $(Self::$variant => MetricInfo {
                        name: $text,
                        unit: Unit::$unit,
                        kind: MetricKind::$name,
                        scope: Scope::$scope,
                        origin: Origin::$origin,
                        meaning: $meaning,
                    },)*
                }
            }
        }
    };
}

metric_enum! {
    /// Metrics with many samples.
    Trend, {
        Ttft = "ttft", Time, Workload, Clients, "arrival to first output token, per completed request";
        Itl = "itl", Time, Workload, Clients,
            "every gap between consecutive output tokens of a request, including requests that are lost later";
        Tpot = "tpot", Time, Workload, Clients, "mean gap of a completed request with at least two tokens";
        E2e = "e2e", Time, Workload, Clients, "arrival to last output token, per completed request";
        Queue = "queue", Time, Workload, Records, "from reaching the queue to the start of the first step with the request in it";
        Prefill = "prefill", Time, Workload, Records, "from the end of `queue` to the end of the prompt's computation";
        Transfer = "transfer", Time, Workload, Records,
            "from the end of `prefill` to the arrival of the KV cache, including the wait for blocks; disaggregated clusters only";
        KvLoad = "kv_load", Time, Workload, VirtualRecords,
            "wait of a completed request for KV from the host or the disk, if any; part of `queue` or of its preemption";
        StepTime = "step", Time, Run, Totals, "duration of every engine step";
        BatchSize = "batch", Count, Run, Totals, "requests in every engine step";
    }
}

metric_enum! {
    /// Totals.
    Counter, {
        Requests = "requests", Count, Workload, Clients, "requests that arrived";
        Completed = "completed", Count, Workload, Clients, "requests that finished with their output";
        Rejected = "rejected", Count, Workload, Records, "requests refused because they could never run";
        Failed = "failed", Count, Workload, Clients, "requests lost to a fault";
        Retries = "retries", Count, Workload, Clients, "repeated attempts after a fault";
        Preemptions = "preemptions", Count, Workload, Reported, "running requests moved back to waiting for lack of KV blocks";
        Steps = "steps", Count, Run, Totals, "engine steps";
        PromptTokens = "prompt_tokens", Count, Workload, Clients, "prompt tokens of completed requests";
        CachedTokens = "cached_tokens", Count, Workload, Reported,
            "the part of `prompt_tokens` found in the (prefill) engine's prefix cache, or loaded from its tiers, at first admission";
        HostCachedTokens = "host_cached_tokens", Count, Workload, VirtualRecords, "the part of `cached_tokens` loaded from the host";
        DiskCachedTokens = "disk_cached_tokens", Count, Workload, VirtualRecords, "the part of `cached_tokens` loaded from the disk";
        OutputTokens = "output_tokens", Count, Workload, Clients, "output tokens of completed requests";
        GeneratedTokens = "generated_tokens", Count, Workload, Clients,
            "output tokens of all attempts, whether the request completed or not: the throughput of a run that was cut off";
        WastedTokens = "wasted_tokens", Count, Workload, Clients, "output tokens of attempts that a fault or their client cut off";
        WastedPromptTokens = "wasted_prompt_tokens", Count, Workload, PromptProgress,
            "prompt tokens computed for requests whose client gave up";
        Timeouts = "timeouts", Count, Workload, Clients, "requests whose client gave up after waiting too long";
        Cancelled = "cancelled", Count, Workload, Clients, "requests that their client cancelled";
        ClientRetries = "client_retries", Count, Workload, Clients,
            "further attempts of clients after a request that timed out, failed or was shed";
        Dropped = "dropped", Count, Workload, Clients,
            "sessions that did not start because `max_in_flight` were in flight; not counted in `requests`";
        Stalls = "stalls", Count, Run, Totals, "number of stalls by failure injectors";
        IgnoredFaults = "ignored_faults", Count, Run, VirtualTotals,
            "actions of failure injectors without effect in virtual time";
        EncoderQueries = "encoder_queries", Count, Run, VirtualTotals, "images and other media looked up in the encoder caches of engines";
        EncoderHits = "encoder_hits", Count, Run, VirtualTotals, "those of `encoder_queries` that were cached, or repeated in one prompt";
        EncoderItems = "encoder_items", Count, Run, VirtualTotals, "images and other media that encoders computed";
        EncoderTokens = "encoder_tokens", Count, Run, VirtualTotals, "tokens of prompts that `encoder_items` stand for";
        AdapterLoads = "adapter_loads", Count, Run, VirtualTotals, "LoRA adapters loaded from the disk, with `adapter_costs`";
        StayedWithDecode = "stayed_with_decode", Count, Workload, VirtualTotals,
            "prompts computed by decode engines because of conditional disaggregation";
        MovedSessions = "moved_sessions", Count, Workload, VirtualTotals,
            "turns that went to a different engine than the previous turn, except after a `ttl`, with the routers \
             `sticky` and `session_hash`";
        AbandonedPrompts = "abandoned_prompts", Count, Workload, VirtualTotals,
            "prompts whose KV a prefill engine held although their client had left";
        Shed = "shed", Count, Workload, Clients, "requests refused by a router because all engines were too busy";
    }
}

metric_enum! {
    /// Single values.
    Gauge, {
        Duration = "duration", Time, Run, Clients, "virtual time until the last request ended";
        PrefixHitRatio = "prefix_hit_ratio", Ratio, Workload, Reported, "`cached_tokens / prompt_tokens`";
        CompletedRatio = "completed_ratio", Ratio, Workload, Clients, "`completed / requests`";
        KvPeakUsage = "kv_peak_usage", Ratio, Run, Reported, "largest share of an engine's KV blocks in use";
        Gpus = "gpus", Count, Run, VirtualTotals,
            "mean number of GPUs held by engines, including their starts; known if every pool has a `deployment`";
        Cost = "cost", Usd, Run, VirtualTotals, "price of the GPUs while engines held them; known if all prices are";
        CostPerHour = "cost_per_hour", Usd, Run, VirtualTotals, "`cost` divided by the hours of the run";
        CostPerMillionOutputTokens = "cost_per_million_output_tokens", Usd, Run, VirtualTotals,
            "`cost` divided by the millions of `output_tokens`";
    }
}

impl Gauge {
    /// Metrics that need the GPUs of every pool.
    pub(crate) const OF_GPUS: &'static [Self] =
        &[Self::Gpus, Self::Cost, Self::CostPerHour, Self::CostPerMillionOutputTokens];
    /// Metrics that also need the price of every GPU.
    pub(crate) const OF_COST: &'static [Self] = &[Self::Cost, Self::CostPerHour, Self::CostPerMillionOutputTokens];
}

/// Any metric of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Many samples.
    Trend(Trend),
    /// A total.
    Counter(Counter),
    /// A single value.
    Gauge(Gauge),
    /// Requests that completed within latency limits.
    Goodput,
}

impl Metric {
    /// Every metric, in the order of the documentation.
    pub fn all() -> impl Iterator<Item = Self> {
        let trends = Trend::ALL.iter().map(|&trend| Self::Trend(trend));
        let counters = Counter::ALL.iter().map(|&counter| Self::Counter(counter));
        let gauges = Gauge::ALL.iter().map(|&gauge| Self::Gauge(gauge));
        trends.chain(counters).chain(gauges).chain([Self::Goodput])
    }

    /// The description.
    #[must_use]
    pub const fn info(self) -> MetricInfo {
        match self {
            Self::Trend(trend) => trend.info(),
            Self::Counter(counter) => counter.info(),
            Self::Gauge(gauge) => gauge.info(),
            Self::Goodput => MetricInfo {
                name: "goodput",
                unit: Unit::Ratio,
                kind: MetricKind::Goodput,
                scope: Scope::Workload,
                origin: Origin::Clients,
                meaning: "requests that completed within all limits, such as `goodput{ttft<1s,tpot<50ms}`",
            },
        }
    }
}

impl Metric {
    /// Finds a metric by its name, with or without the unit that reports append.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|metric| metric.info().name == name || metric.info().report_name() == name)
    }

    /// Whether the metric has many samples.
    #[must_use]
    pub const fn is_trend(self) -> bool {
        matches!(self, Self::Trend(_))
    }

    /// Whether higher values are better; None if neither direction is better.
    #[must_use]
    pub const fn is_higher_better(self) -> Option<bool> {
        match self {
            Self::Trend(Trend::BatchSize) => None,
            Self::Goodput | Self::Gauge(Gauge::PrefixHitRatio | Gauge::CompletedRatio) => Some(true),
            Self::Trend(_) | Self::Gauge(_) => Some(false),
            Self::Counter(counter) => counter.is_higher_better(),
        }
    }
}

impl Counter {
    const fn is_higher_better(self) -> Option<bool> {
        match self {
            Self::Completed
            | Self::CachedTokens
            | Self::HostCachedTokens
            | Self::DiskCachedTokens
            | Self::OutputTokens
            | Self::GeneratedTokens => Some(true),
            Self::Rejected
            | Self::Failed
            | Self::Retries
            | Self::Preemptions
            | Self::WastedTokens
            | Self::Stalls
            | Self::Shed => Some(false),
            _ => None,
        }
    }

    /// Whether most runs cannot have what the metric counts. Reports omit such a metric if it is 0, so that
    /// existing reports do not change.
    #[must_use]
    pub const fn is_occasional(self) -> bool {
        matches!(
            self,
            Self::StayedWithDecode
                | Self::EncoderQueries
                | Self::EncoderHits
                | Self::EncoderItems
                | Self::EncoderTokens
                | Self::AdapterLoads
                | Self::Shed
                | Self::Stalls
                | Self::IgnoredFaults
                | Self::HostCachedTokens
                | Self::DiskCachedTokens
                | Self::WastedPromptTokens
                | Self::Timeouts
                | Self::Cancelled
                | Self::ClientRetries
                | Self::Dropped
                | Self::MovedSessions
                | Self::AbandonedPrompts
        )
    }
}

/// The metrics of all requests of a run, or of one workload.
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

    pub(crate) fn sample_each(&mut self, trend: Trend, values: &[u64], times: u64) {
        self.trends[trend as usize].push_each(values, times);
    }

    pub(crate) fn take(&mut self, trend: Trend, samples: Samples) {
        self.trends[trend as usize].absorb(samples);
    }

    #[inline]
    pub(crate) fn add(&mut self, counter: Counter, amount: u64) {
        self.counters[counter as usize] += amount;
    }

    pub(crate) fn total(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Summarises each of `sets` and all sets together, and returns the samples as well.
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
                    joined.absorb(samples.clone());
                }
                let counted = CountedSamples::from(samples);
                summaries.trends[trend] = counted.summary();
                let is_all = !several && summaries.trends[trend].is_some();
                if is_all {
                    // If only one set has samples, they are the samples of the whole run.
                    all.trends[trend] = summaries.trends[trend];
                }
                // Gaps between tokens are by far the most samples, so they are not stored twice.
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

pub(crate) struct Summarised {
    pub(crate) each: Vec<MetricSummaries>,
    pub(crate) all: MetricSummaries,
    pub(crate) samples: RunSamples,
    pub(crate) token_gaps_ns: CountedSamples,
}

/// The samples of a run, for percentiles that its report does not list.
#[derive(Clone, Debug, Default)]
pub struct RunSamples {
    /// Samples by workload, followed by the samples of engine steps. Each set is indexed by [`Trend`]. If only one
    /// set has gaps between tokens, they are stored in `Report::token_gaps_ns` instead.
    sets: Vec<Vec<Samples>>,
}

impl RunSamples {
    /// Takes the samples of engine steps from `engines`.
    pub(crate) fn take_steps(&mut self, engines: &mut Self) {
        if let (Some(own), Some(steps)) = (self.sets.last_mut(), engines.sets.last_mut()) {
            *own = std::mem::take(steps);
        }
    }

    /// The samples of one workload, or of the whole run if `workload` is None.
    pub(crate) fn of(&self, trend: Trend, workload: Option<usize>) -> Samples {
        let sets = match workload {
            Some(index) => self.sets.get(index..=index).unwrap_or_default(),
            None => &self.sets[..],
        };
        let mut joined = Samples::default();
        sets.iter().filter_map(|set| set.get(trend as usize)).for_each(|samples| joined.absorb(samples.clone()));
        joined
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct MetricSummaries {
    pub(crate) trends: [Option<Summary>; Trend::ALL.len()],
    pub(crate) counters: [u64; Counter::ALL.len()],
}
