//! The result of a run: totals, distributions, engines, links, fingerprint.
//!
//! Equal configurations and seeds give byte-identical reports: maps are ordered, and sums are taken in a fixed
//! order.

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

/// A trend in reports: times in milliseconds, counts unchanged.
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

/// Metrics of all requests, or of one workload's requests.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MetricsReport {
    counters: BTreeMap<&'static str, u64>,
    /// Totals per second of virtual time, by name.
    rates_per_s: BTreeMap<&'static str, f64>,
    /// Single values by name (times have the suffix `_ms`).
    gauges: BTreeMap<String, f64>,
    /// Distributions by name (times have the suffix `_ms`); absent without samples.
    trends: BTreeMap<String, TrendReport>,
    /// Number of rejected requests by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rejections: BTreeMap<String, u64>,
    /// Number of failed requests by reason.
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

    /// A single value, in milliseconds for times. A workload has no values that are defined only for whole runs.
    #[must_use]
    pub fn gauge(&self, gauge: Gauge) -> Option<f64> {
        self.gauges.get(&gauge.info().report_name()).copied()
    }

    /// A distribution; None without samples.
    #[must_use]
    pub fn trend(&self, trend: Trend) -> Option<TrendReport> {
        self.trends.get(&trend.info().report_name()).copied()
    }
}

/// Work of one engine, or of one rank of an engine with several ranks.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// Name of the pool.
    pub pool: String,
    /// Index of the engine in the pool.
    pub engine: u32,
    /// Rank of the engine, if engines have several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Index over all engines of the run, as in [`RequestRecord::prefill_worker`].
    #[serde(skip)]
    pub worker: u32,
    /// Number of steps.
    pub steps: u64,
    /// Share of the provisioned time that was spent in steps.
    pub utilisation: f64,
    /// Share of the provisioned time that was spent waiting for other ranks' steps. Its sum with `utilisation` is
    /// the same for all ranks of an engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<f64>,
    /// Number of computed tokens, including recomputed ones.
    pub computed_tokens: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Largest share of KV blocks in use.
    pub kv_peak_usage: f64,
    /// Cached share of the tokens that first admissions looked up.
    pub prefix_hit_ratio: f64,
    /// Number of tokens that first admissions looked up.
    #[serde(skip)]
    pub prefix_queried_tokens: u64,
    /// Number of crashes.
    pub crashes: u32,
    /// Number of tokens computed in prefill chunks, including recomputed ones.
    #[serde(skip)]
    pub prefill_tokens: u64,
    /// Work of the host and disk tiers, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_tiers: Option<KvTierReport>,
}

/// Work of the host and disk tiers of one engine until the end of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvTierReport {
    /// Tokens found in the device's prefix cache at admissions.
    pub device_hit_tokens: u64,
    /// Further tokens that were loaded from the host.
    pub host_hit_tokens: u64,
    /// Further tokens that were loaded from the disk.
    pub disk_hit_tokens: u64,
    /// Number of loads that requests waited for.
    pub loads: u64,
    /// Bytes of blocks stored from the device to the host.
    pub device_to_host_bytes: u64,
    /// Bytes of blocks loaded from the host to the device.
    pub host_to_device_bytes: u64,
    /// Bytes of blocks evicted from the host to the disk.
    pub host_to_disk_bytes: u64,
    /// Bytes of blocks read from the disk to the host.
    pub disk_to_host_bytes: u64,
}

/// Engine time of a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolReport {
    /// Name of the pool.
    pub pool: String,
    /// Index over all ranks of the run of the pool's first rank.
    #[serde(skip)]
    pub first_worker: u32,
    /// Provisioned nanoseconds, summed over all engines. An engine counts from the decision to start it until it is
    /// off, including faults.
    #[serde(skip)]
    pub worker_ns: u128,
    /// `worker_ns` in seconds.
    pub worker_seconds: f64,
    /// Whether the number of engines can change.
    #[serde(skip)]
    pub scales: bool,
}

/// A change of the number of a pool's engines that are up or starting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScalingEvent {
    /// Virtual time.
    pub at_ms: f64,
    /// Name of the pool.
    pub pool: String,
    /// Number of engines before the change.
    pub from: u32,
    /// Number of engines after the change.
    pub to: u32,
    /// Metric value that the decision is based on; only for HPA, KEDA and WVA.
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
    /// Seed of the run.
    pub seed: u64,
    /// Virtual time until the last request ended.
    pub duration_ms: f64,
    /// Whether the run was ended early from outside, by a signal or a time limit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Whether the run reached its maximum time before all requests ended.
    #[serde(skip)]
    pub cut_short: bool,
    /// Number of requests in progress when the run was cut off.
    pub unfinished_requests: u64,
    /// Target of the run, unless it ran in virtual time.
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
    /// Share of the step time outside the fitted range of the latency models; only present if a model has such a
    /// range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_fitted_range: Option<f64>,
    /// The sources of step times that operator tables priced; only present if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_coverage: Option<TableCoverage>,
    /// Peak compute that latency models assume, by pool; only present if a latency model knows it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peaks: Vec<PoolPeak>,
    /// Workloads that are answered at recorded times.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recorded_workloads: Vec<String>,
    /// GPUs of the pools and their cost; only present if any pool states its GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deployments: Vec<PoolDeployment>,
    /// Metrics that the run does not know, with reasons.
    #[serde(skip)]
    pub absent: BTreeMap<&'static str, String>,
    /// Planned faults that were due after the end of the run, each with the reason in words.
    #[serde(skip)]
    pub late_faults: Vec<String>,
    /// Intervals of the metrics; only present if the run was also simulated with coefficients drawn from uncertain
    /// latency models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncertainty: Option<Uncertainty>,
    /// Requests that met their SLO, by SLO class; only present if requests have SLOs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub slo_classes: BTreeMap<String, SloClassReport>,
    /// Counts of a trace profile; only present if a trace is played as a profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileReport>,
    /// The overload, if the queues kept growing; the fingerprint omits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overload: Option<Overload>,
    /// SHA-256 over every step, every request and all fields above, as hex.
    pub fingerprint: String,
    /// Number of the first measured request. Earlier requests warmed the caches.
    #[serde(skip)]
    pub first_request: u64,
    /// Every measured request, in order of arrival; empty if the run packs records.
    #[serde(skip)]
    pub requests: Vec<RequestRecord>,
    /// Every measured request, if the run packs records.
    #[serde(skip)]
    pub packed_requests: PackedRecords,
    /// Every gap between consecutive output tokens, in nanoseconds.
    #[serde(skip)]
    pub token_gaps_ns: CountedSamples,
    /// Gaps between output tokens over time, if the observer requested time series.
    #[serde(skip)]
    pub gap_course: Option<GapCourse>,
    /// Samples of all trends.
    #[serde(skip)]
    pub samples: RunSamples,
    /// The engines over time, if the run's observer requested them.
    #[serde(skip)]
    pub series: Option<RunSeries>,
    /// Names of the workloads, by [`RequestRecord::workload`].
    #[serde(skip)]
    pub workload_names: Vec<String>,
    /// Names of the requests, if they come from traces.
    #[serde(skip)]
    pub request_names: RequestNames,
    /// SLOs of the requests, by [`RequestRecord::workload`].
    #[serde(skip)]
    pub workload_slos: Vec<WorkloadSlos>,
    /// Names of the engines, by [`RequestRecord::prefill_worker`].
    #[serde(skip)]
    pub engine_names: Vec<String>,
    /// For each engine, a digest of each step and all steps before it, if the observer requested digests.
    #[serde(skip)]
    pub step_digests: Option<Vec<Vec<u32>>>,
    /// Every KV transfer with real bytes, in order of completion.
    #[serde(skip)]
    pub kv_transfers: Vec<KvTransfer>,
    /// For each request, the data that a capture needs in addition to the record, if requested.
    #[serde(skip)]
    pub kept: Option<Vec<KeptRequest>>,
}

impl Report {
    /// The report of a run that is not executed: empty, with the SLO classes of its workloads.
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

    /// The report of a run that is not executed, with its workloads but without results.
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
            late_faults: Vec::new(),
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

    /// Number of measured requests.
    #[must_use]
    pub fn num_requests(&self) -> u64 {
        self.requests.len() as u64 + self.packed_requests.len()
    }

    /// Calls `see` with every measured request, in order of arrival.
    pub fn for_each_request(&self, mut see: impl FnMut(&RequestRecord)) {
        self.requests.iter().for_each(&mut see);
        self.packed_requests.iter().for_each(|record| see(&record));
    }

    /// The row of the request at index `place`. Records must not be packed.
    ///
    /// # Panics
    /// If there are not as many requests, or if records are packed.
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

    /// A percentile of a trend, of the whole run or of one workload, by the rule and in the unit of a
    /// [`TrendReport`]. None without samples.
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

    /// Calls `give` with each sample value of a trend and its count, for the whole run or one workload. The order
    /// is arbitrary, and a value may come several times.
    pub fn for_each_sample(&self, trend: Trend, workload: Option<usize>, give: impl FnMut(u64, u64)) {
        let own = self.samples.of(trend, workload);
        let is_of_gaps = trend == Trend::Itl && own.is_empty();
        let has_gaps = workload.is_none_or(|index| {
            self.workloads.get(&self.workload_names[index]).is_some_and(|metrics| metrics.trend(trend).is_some())
        });
        // If only one set has gaps, they are stored only in `token_gaps_ns`.
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

/// Counts of a profile. Other numbers of the report do not include its warm-up. Times count from the beginning of
/// the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProfileReport {
    /// Virtual time at which the warm-up ended and the profile began.
    #[serde(skip)]
    pub began_ns: u64,
    /// `began_ns` in milliseconds.
    pub began_ms: f64,
    /// Number of warm-up requests.
    pub warmup_requests: u64,
    /// Number of plays that were started.
    pub plays_started: u64,
    /// Number of plays whose requests have all ended.
    pub plays_ended: u64,
    /// Number of waits that were shortened.
    pub idle_cuts: u64,
    /// Total time by which waits were shortened.
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

/// Shares of the step time, by the way in which operators were priced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TableCoverage {
    /// Priced by rows of the tables.
    pub measured: f64,
    /// Interpolated between rows.
    pub interpolated: f64,
    /// Extrapolated beyond rows, or from rows of another shape.
    pub extrapolated: f64,
    /// Priced by a formula, without a table.
    pub formula: f64,
}

impl TableCoverage {
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
