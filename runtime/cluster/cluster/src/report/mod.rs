//! The result of a run: totals, distributions, engines, links, fingerprint.
//!
//! Everything in it is a function of the run's configuration and seed. Maps are
//! ordered and sums are taken in a fixed order, so two runs of one
//! configuration serialise to the same bytes.

mod build;
mod deployment;
mod ends;
mod goodput;
mod kv_transfers;
mod measured;
mod peak;
mod request_names;
mod uncertainty;

use std::collections::BTreeMap;

use serde::Serialize;
use vcr_trace::RequestRow;

use crate::config::RunConfig;
use crate::ledger::KeptRequest;
use crate::ledger::gap_course::GapCourse;
use crate::ledger::metrics::{CountedSamples, Counter, Gauge, RunSamples, Trend, Unit};
use crate::ledger::packed::PackedRecords;
use crate::ledger::record::{RequestRecord, ns_to_ms};
use crate::observe::{Overload, RunSeries};
use crate::traffic::ProfileCounts;
pub(crate) use build::{RunEnd, build};
pub use deployment::{GpuDeployment, PoolDeployment};
pub use goodput::{Goodput, Selection, SloClassReport, SloCounts, SloMetric, WorkloadSlos};
pub use kv_transfers::{KvMoved, KvPeerReport, KvTransfer};
pub(crate) use measured::{MeasuredEnd, build_measured, measured_ns};
pub use measured::{MeasuredFacts, TargetReport};
pub use peak::{ComputePeak, PoolPeak};
pub use request_names::RequestNames;
pub use uncertainty::{Interval, Uncertainty, quantile};
use vcr_core::latency::TableUse;

/// A trend as written: times in milliseconds, counts unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrendReport {
    /// Number of samples.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Smallest sample.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 75th percentile.
    pub p75: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest sample.
    pub max: f64,
    /// Population standard deviation.
    pub std: f64,
}

/// Metrics of all requests, or of the requests of one workload.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MetricsReport {
    /// Totals by name.
    counters: BTreeMap<&'static str, u64>,
    /// Totals by name, per second of virtual time.
    rates_per_s: BTreeMap<&'static str, f64>,
    /// Single values by name (`_ms` appended to times).
    gauges: BTreeMap<String, f64>,
    /// Distributions by name (`_ms` appended to times); absent without samples.
    trends: BTreeMap<String, TrendReport>,
    /// Rejected requests by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rejections: BTreeMap<String, u64>,
    /// Failed requests by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
}

impl MetricsReport {
    /// A total; 0 if the report omits it.
    #[must_use]
    pub fn count(&self, counter: Counter) -> u64 {
        self.counters.get(counter.info().name).copied().unwrap_or(0)
    }

    /// A total per second of virtual time; 0 if the report omits it.
    #[must_use]
    pub fn rate_per_s(&self, counter: Counter) -> f64 {
        self.rates_per_s.get(counter.info().name).copied().unwrap_or(0.0)
    }

    /// A single value, in milliseconds for times; none in workloads for gauges of whole
    /// runs.
    #[must_use]
    pub fn gauge(&self, gauge: Gauge) -> Option<f64> {
        self.gauges.get(&gauge.info().report_name()).copied()
    }

    /// A distribution; none without samples.
    #[must_use]
    pub fn trend(&self, trend: Trend) -> Option<TrendReport> {
        self.trends.get(&trend.info().report_name()).copied()
    }
}

/// Work of one engine, or of one rank of an engine that has several.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// Name of its pool.
    pub pool: String,
    /// Index of the engine in the pool.
    pub engine: u32,
    /// Its rank, if engines have several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Index over all engines of the run, as [`RequestRecord::prefill_worker`].
    #[serde(skip)]
    pub worker: u32,
    /// Steps.
    pub steps: u64,
    /// Share of the time that it had its place for that was spent in steps.
    pub utilisation: f64,
    /// Share of that time in which it waited for the ends of other ranks' steps; the sum of both is
    /// the same for all ranks of an engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<f64>,
    /// Tokens computed, recomputed ones included.
    pub computed_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Largest share of KV blocks in use.
    pub kv_peak_usage: f64,
    /// Cached share of the tokens looked up at first admissions.
    pub prefix_hit_ratio: f64,
    /// Tokens that were looked up then.
    #[serde(skip)]
    pub prefix_queried_tokens: u64,
    /// Crashes.
    pub crashes: u32,
    /// Tokens computed in prefill chunks, recomputed ones included.
    #[serde(skip)]
    pub prefill_tokens: u64,
    /// Work of its tiers below the device, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_tiers: Option<KvTierReport>,
}

/// Work of the host and disk tiers of one engine until the end of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvTierReport {
    /// Tokens found in the prefix cache of the device at admissions.
    pub device_hit_tokens: u64,
    /// Tokens beyond these that were loaded from the host.
    pub host_hit_tokens: u64,
    /// Tokens beyond these that were loaded from the disk.
    pub disk_hit_tokens: u64,
    /// Loads that requests waited for.
    pub loads: u64,
    /// Bytes of offloaded blocks.
    pub device_to_host_bytes: u64,
    /// Bytes of loaded blocks.
    pub host_to_device_bytes: u64,
    /// Bytes of blocks that had to leave the host.
    pub host_to_disk_bytes: u64,
    /// Bytes of blocks read from the disk.
    pub disk_to_host_bytes: u64,
}

/// Engine time of a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolReport {
    /// Name of the pool.
    pub pool: String,
    /// Index of the first rank of its first engine among all ranks of the run.
    #[serde(skip)]
    pub first_worker: u32,
    /// Nanoseconds of the run for which places were occupied, summed over all engines: from the
    /// decision to start an engine until it is off, including faults.
    #[serde(skip)]
    pub worker_ns: u128,
    /// The same time in seconds.
    pub worker_seconds: f64,
    /// Whether the number of its engines can change.
    #[serde(skip)]
    pub scales: bool,
}

/// A change of the number of engines of a pool that are up or coming up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScalingEvent {
    /// Virtual time.
    pub at_ms: f64,
    /// Name of the pool.
    pub pool: String,
    /// Their number.
    pub from: u32,
    /// Their number from then on.
    pub to: u32,
    /// Value of the metric on which the decision rests; of HPA, KEDA and WVA only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<f64>,
}

/// Traffic of one link.
#[derive(Clone, Debug, Serialize)]
pub struct LinkReport {
    /// Bytes of all transfers.
    pub bytes: u64,
    /// Share of the run with at least one transfer in progress.
    pub utilisation: f64,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this schema.
    pub schema_version: u32,
    /// Name of the run.
    pub name: String,
    /// The seed it ran with.
    pub seed: u64,
    /// Virtual time until the last request ended.
    pub duration_ms: f64,
    /// Whether the run was ended early from outside: by a signal or a limit of time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Whether its maximum time ended it before all its requests.
    #[serde(skip)]
    pub cut_short: bool,
    /// Requests in progress when the run was cut off.
    pub unfinished_requests: u64,
    /// Its target, unless it ran in virtual time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetReport>,
    /// Metrics over all workloads.
    pub metrics: MetricsReport,
    /// Metrics of each workload, by name.
    pub workloads: BTreeMap<String, MetricsReport>,
    /// The engines that were ever started, pool by pool.
    pub engines: Vec<EngineReport>,
    /// The pools; only written if the number of engines of any pool can change.
    #[serde(skip_serializing_if = "none_scales")]
    pub pools: Vec<PoolReport>,
    /// Decisions of autoscalers, in order of time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scaling: Vec<ScalingEvent>,
    /// The links between prefill and decode engines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkReport>,
    /// Share of the time of all steps outside the fitted range of their latency models; only present if one
    /// of them has such a range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_fitted_range: Option<f64>,
    /// The sources of the times of steps priced by operator tables; only present if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_coverage: Option<TableCoverage>,
    /// Peaks of GPUs that prices rest on, by pool; only there if any latency model knows one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peaks: Vec<PoolPeak>,
    /// Workloads whose answers come at their recorded times.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recorded_workloads: Vec<String>,
    /// GPUs of the pools and their cost; only there if any pool states its GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deployments: Vec<PoolDeployment>,
    /// Metrics that the run does not know, with the reasons.
    #[serde(skip)]
    pub absent: BTreeMap<&'static str, String>,
    /// Intervals of its metrics if the latency models are uncertain; only present if it was also simulated
    /// with drawn coefficients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncertainty: Option<Uncertainty>,
    /// Requests that met their SLO, by SLO class; only there if any
    /// have one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub slo_classes: BTreeMap<String, SloClassReport>,
    /// The lanes of a profile; only present if the trace is played as a profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileReport>,
    /// The load above the capacity, if the queues kept growing; no part of the fingerprint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overload: Option<Overload>,
    /// SHA-256 over every step, every request and all of the above, as hex.
    pub fingerprint: String,
    /// Number of the first measured request: earlier ones warmed the caches.
    #[serde(skip)]
    pub first_request: u64,
    /// Every request that was measured, in order of arrival.
    #[serde(skip)]
    pub requests: Vec<RequestRecord>,
    /// The measured requests if the run packs them; `requests` is then empty.
    #[serde(skip)]
    pub packed_requests: PackedRecords,
    /// Every gap between consecutive output tokens, in nanoseconds.
    #[serde(skip)]
    pub token_gaps_ns: CountedSamples,
    /// The same over time, if the run's observer requested time series.
    #[serde(skip)]
    pub gap_course: Option<GapCourse>,
    /// The samples of all trends.
    #[serde(skip)]
    pub samples: RunSamples,
    /// The engines over time, if the run's observer requested them.
    #[serde(skip)]
    pub series: Option<RunSeries>,
    /// Names of the workloads, by [`RequestRecord::workload`].
    #[serde(skip)]
    pub workload_names: Vec<String>,
    /// Names of its requests, if they come from traces.
    #[serde(skip)]
    pub request_names: RequestNames,
    /// SLOs of their requests, by [`RequestRecord::workload`].
    #[serde(skip)]
    pub workload_slos: Vec<WorkloadSlos>,
    /// Names of the engines, by [`RequestRecord::prefill_worker`].
    #[serde(skip)]
    pub engine_names: Vec<String>,
    /// For each engine, a digest of each step and all steps before it, if the observer requested them.
    #[serde(skip)]
    pub step_digests: Option<Vec<Vec<u32>>>,
    /// Every KV transfer with real bytes between live engines, in order of their ends.
    #[serde(skip)]
    pub kv_transfers: Vec<KvTransfer>,
    /// For each request, the data that a capture has in addition to the record, if the run keeps it.
    #[serde(skip)]
    pub kept: Option<Vec<KeptRequest>>,
}

impl Report {
    /// The report of a run that is not made: empty, with the SLO classes of its workloads.
    #[must_use]
    pub fn unmade(config: &RunConfig) -> Self {
        let workloads = config.workloads.iter().map(|workload| workload.name.as_str());
        let mut report = Self::empty(&config.name, config.seed, workloads);
        report.absent = deployment::absent(config);
        for WorkloadSlos { tenant, slos } in WorkloadSlos::of(config) {
            for slo in slos.into_iter().flatten() {
                report.slo_classes.entry(slo.class).or_default().tenants.entry(tenant).or_default();
            }
        }
        report
    }

    /// The report of a run that was not made, with its workloads but without results.
    #[must_use]
    pub fn empty<'a>(name: &str, seed: u64, workloads: impl Iterator<Item = &'a str>) -> Self {
        let workload_names: Vec<String> = workloads.map(str::to_owned).collect();
        Self {
            schema_version: build::SCHEMA_VERSION,
            name: name.to_owned(),
            seed,
            duration_ms: 0.0,
            partial: false,
            cut_short: false,
            unfinished_requests: 0,
            slo_classes: BTreeMap::new(),
            target: None,
            metrics: MetricsReport::default(),
            workloads: workload_names.iter().map(|name| (name.clone(), MetricsReport::default())).collect(),
            engines: Vec::new(),
            pools: Vec::new(),
            scaling: Vec::new(),
            links: Vec::new(),
            outside_fitted_range: None,
            table_coverage: None,
            peaks: Vec::new(),
            recorded_workloads: Vec::new(),
            deployments: Vec::new(),
            absent: BTreeMap::new(),
            uncertainty: None,
            profile: None,
            overload: None,
            fingerprint: String::new(),
            first_request: 0,
            requests: Vec::new(),
            packed_requests: PackedRecords::default(),
            token_gaps_ns: CountedSamples::default(),
            gap_course: None,
            samples: RunSamples::default(),
            series: None,
            workload_names,
            request_names: RequestNames::default(),
            workload_slos: Vec::new(),
            engine_names: Vec::new(),
            step_digests: None,
            kv_transfers: Vec::new(),
            kept: None,
        }
    }

    /// The rows of `requests.jsonl`, in order of arrival.
    pub fn request_rows(&self) -> impl Iterator<Item = RequestRow<'_>> {
        let listed = self.requests.iter().enumerate().map(|(place, record)| self.row_of(place, record));
        let packed = self.packed_requests.iter().enumerate().map(|(place, record)| self.row_of(place, &record));
        listed.chain(packed)
    }

    /// Number of requests that were measured, in a list or packed.
    #[must_use]
    pub fn num_requests(&self) -> u64 {
        self.requests.len() as u64 + self.packed_requests.len()
    }

    /// Shows every request that was measured, in order of arrival, whether in a list or packed.
    pub fn for_each_request(&self, mut see: impl FnMut(&RequestRecord)) {
        self.requests.iter().for_each(&mut see);
        self.packed_requests.iter().for_each(|record| see(&record));
    }

    /// The row of a request whose records are in a list.
    ///
    /// # Panics
    /// If there are not as many requests.
    #[must_use]
    pub fn request_row(&self, place: usize) -> RequestRow<'_> {
        self.row_of(place, &self.requests[place])
    }

    fn row_of(&self, place: usize, record: &RequestRecord) -> RequestRow<'_> {
        let workload = &self.workload_names[record.workload as usize];
        let slo_class = self.slo_of(record).map(|slo| slo.class.as_str());
        let name = self.request_names.of_request(record).map(Into::into);
        RequestRow { name, ..record.row(place as u64, workload, slo_class, &self.engine_names) }
    }

    /// Any percentile of a trend, of the whole run or of one workload, by the rule
    /// of a [`TrendReport`] and in its unit. `None` without samples.
    #[must_use]
    pub fn percentile(&self, trend: Trend, workload: Option<&str>, percent: f64) -> Option<f64> {
        let workload = match workload {
            Some(name) => Some(self.workload_names.iter().position(|known| known == name)?),
            None => None,
        };
        let metrics = match workload {
            Some(index) => self.workloads.get(&self.workload_names[index])?,
            None => &self.metrics,
        };
        let expected = metrics.trend(trend)?.count;
        let value = if trend == Trend::Itl && self.token_gaps_ns.count() == expected {
            self.token_gaps_ns.percentile(percent)
        } else {
            CountedSamples::from(self.samples.of(trend, workload)).percentile(percent)
        };
        let scale = if trend.info().unit == Unit::Time { 1e6 } else { 1.0 };
        value.map(|value| value as f64 / scale)
    }

    /// Passes on the samples of a trend, of the whole run or of one workload by its index, each with its
    /// count, in any order and possibly several times for a value.
    pub fn for_each_sample(&self, trend: Trend, workload: Option<usize>, give: impl FnMut(u64, u64)) {
        let own = self.samples.of(trend, workload);
        let is_of_gaps = trend == Trend::Itl && own.is_empty();
        let has_gaps = workload.is_none_or(|index| {
            self.workloads.get(&self.workload_names[index]).is_some_and(|metrics| metrics.trend(trend).is_some())
        });
        // Gaps of a single set are kept only there.
        match is_of_gaps && has_gaps {
            true => self.token_gaps_ns.for_each(give),
            false => own.for_each(give),
        }
    }

    /// [`outside_fitted_range`](Self::outside_fitted_range) as a sentence.
    #[must_use]
    pub fn outside_fitted_range_text(&self) -> Option<String> {
        let percent = self.outside_fitted_range? * 100.0;
        Some(format!(
            "{percent:.1} % of the simulated step time is outside the range that the latency model was fitted on"
        ))
    }

    /// Writes the requests as JSON lines, in order of arrival.
    pub fn write_requests(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        for row in self.request_rows() {
            serde_json::to_writer(&mut *out, &row)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

fn none_scales(pools: &[PoolReport]) -> bool {
    pools.iter().all(|pool| !pool.scales)
}

/// Counts of a profile. Its warm-up is in no other number of the report; times count from the beginning of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProfileReport {
    /// Virtual time at which the profile began after the warm-up.
    #[serde(skip)]
    pub began_ns: u64,
    /// The same time in milliseconds.
    pub began_ms: f64,
    /// Requests of the warm-up.
    pub warmup_requests: u64,
    /// Plays that were started.
    pub plays_started: u64,
    /// Plays whose requests have all ended.
    pub plays_ended: u64,
    /// Number of times that a wait was cut short.
    pub idle_cuts: u64,
    /// Time that was cut, over all of them.
    pub idle_cut_ms: f64,
}

impl ProfileReport {
    pub(super) fn of(counts: ProfileCounts) -> Self {
        Self {
            began_ns: counts.began_ns,
            began_ms: ns_to_ms(counts.began_ns),
            warmup_requests: counts.warmup_requests,
            plays_started: counts.plays_started,
            plays_ended: counts.plays_ended,
            idle_cuts: counts.idle_cuts,
            idle_cut_ms: ns_to_ms(counts.idle_cut_ns),
        }
    }
}

/// Shares of the step time that tables of measured operators have priced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TableCoverage {
    /// Priced by rows of the tables.
    pub measured: f64,
    /// Between rows.
    pub interpolated: f64,
    /// Extrapolated beyond rows, or from rows of another shape.
    pub extrapolated: f64,
    /// Priced by a formula, without a table.
    pub formula: f64,
}

impl TableCoverage {
    /// None if no table has priced any step.
    pub(crate) fn of(used: &TableUse) -> Option<Self> {
        let total_ns = used.total_ns();
        let share = |ns: u64| ns as f64 / total_ns as f64;
        (total_ns > 0).then(|| Self {
            measured: share(used.measured_ns),
            interpolated: share(used.interpolated_ns),
            extrapolated: share(used.extrapolated_ns),
            formula: share(used.formula_ns),
        })
    }
}

impl std::fmt::Display for TableCoverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |share: f64| share * 100.0;
        write!(
            f,
            "step time priced by tables: {:.1} % measured points, {:.1} % interpolation, {:.1} % extrapolation, {:.1} % \
             formulas",
            percent(self.measured),
            percent(self.interpolated),
            percent(self.extrapolated),
            percent(self.formula)
        )
    }
}
