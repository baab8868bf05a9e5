//! The report of a run on a target: client measurements and data from the target.

use std::collections::BTreeMap;

use serde::Serialize;

use super::build::{
    FINGERPRINTED_VERSION, add_generated_tokens, fingerprint, metrics_report, trend_report, unfingerprinted,
};
use super::ends::Ends;
use super::kv_transfers::{KvPeerReport, KvTransfer, by_peer};
use super::{EngineReport, MetricsReport, Report, RequestNames, TrendReport, WorkloadSlos};
use crate::config::RunConfig;
use crate::ledger::metrics::{CountedSamples, Counter, Gauge, Metric, Samples, Summarised, Trend, Unit};
use crate::ledger::record::ns_to_ms;
use crate::ledger::{Ledger, StepFacts};
use crate::observe::RunSeries;

/// The target of a run, as its report describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TargetReport {
    /// Name of the target: `live`, `serve`, `frontend` or `http`.
    pub name: String,
    /// Address of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The name that the server reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Name of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Form in which prompts were sent: `token ids` or `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<String>,
    /// Milliseconds by which requests were sent after their due time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_delay_ms: Option<TrendReport>,
    /// Metrics that are unknown on this target, with reasons.
    pub absent: BTreeMap<&'static str, String>,
    /// Metrics that are known for the run but not for single workloads, with reasons.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub absent_of_workloads: BTreeMap<&'static str, String>,
    /// Output files that this target has no data for, with reasons.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub absent_files: BTreeMap<&'static str, String>,
    /// Parts of the cluster that engines of `vcr play` do not support in real time. The engines are therefore
    /// simulated in virtual time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cluster_parts: Vec<String>,
    /// KV transfers with real bytes, by pair of engines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kv_transfers: Vec<KvPeerReport>,
    /// Notes for readers of the measurement.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Facts that a target reports about a run, in addition to client times.
#[derive(Clone, Debug, Default)]
pub struct MeasuredFacts {
    /// The target.
    pub target: TargetReport,
    /// Delays between due time and sending of requests, in nanoseconds.
    pub send_delays_ns: Samples,
    /// When the run was ended early, if it was.
    pub stopped_at_ns: Option<u64>,
    /// The engines; empty if unknown.
    pub engines: Vec<EngineReport>,
    /// Names of the engines.
    pub engine_names: Vec<String>,
    /// KV transfers with real bytes.
    pub kv_transfers: Vec<KvTransfer>,
    /// Facts about single steps; empty if unknown.
    pub steps: StepFacts,
    /// Totals of the whole run that clients cannot count.
    pub counters: BTreeMap<&'static str, u64>,
    /// Largest share of an engine's KV blocks in use.
    pub kv_peak_usage: Option<f64>,
    /// Time series of the engines, if known and requested.
    pub series: Option<RunSeries>,
    /// Report of the engines' own run, if a simulated cluster is behind a server.
    pub cluster: Option<Box<Report>>,
}

/// The final state of a run on a target.
pub(crate) struct MeasuredEnd<'a> {
    pub(crate) config: &'a RunConfig,
    /// Whether further requests were due when the run ended.
    pub(crate) expects_requests: bool,
    pub(crate) workload_names: Vec<String>,
    pub(crate) ledger: Ledger,
    pub(crate) facts: MeasuredFacts,
}

/// Duration of a run on a target: until its last request ended, or until the run was ended.
pub(crate) fn measured_ns(config: &RunConfig, ledger: &Ledger, stopped_at_ns: Option<u64>) -> u64 {
    let is_cut = ledger.ended() < ledger.arrived();
    stopped_at_ns.or(config.max_time_ns.filter(|_| is_cut)).unwrap_or(ledger.last_end_ns())
}

pub(crate) fn build_measured(end: MeasuredEnd<'_>) -> Report {
    let MeasuredEnd { config, expects_requests, workload_names, mut ledger, facts } = end;
    let MeasuredFacts {
        mut target,
        send_delays_ns,
        stopped_at_ns,
        engines,
        engine_names,
        mut kv_transfers,
        steps,
        counters,
        kv_peak_usage,
        series,
        cluster,
    } = facts;
    let (arrived, ended) = (ledger.arrived(), ledger.ended());
    let duration_ns = measured_ns(config, &ledger, stopped_at_ns);
    let seconds = duration_ns as f64 / 1e9;
    let kept = ledger.take_kept();
    ledger.take_steps(steps);
    // Measured runs do not pack records.
    let (records, _, summarised) = ledger.close();
    let Summarised { each: mut sets, all, samples, token_gaps_ns } = summarised;
    sets.pop();
    let mut ends = Ends::of_workloads(workload_names.len());
    records.iter().for_each(|record| ends.count(record));
    let mut workloads: BTreeMap<String, MetricsReport> = sets
        .into_iter()
        .enumerate()
        .map(|(index, set)| (workload_names[index].clone(), metrics_report(set, ends.of(index), seconds, None)))
        .collect();
    let run = Some((duration_ns, kv_peak_usage.unwrap_or(0.0)));
    let mut metrics = metrics_report(all, &ends.of_all(), seconds, run);
    metrics.replace_counters(&counters, seconds);
    if let [only] = &workload_names[..]
        && let Some(own) = workloads.get_mut(only)
    {
        // All events belong to the only workload's requests.
        own.replace_counters(&counters, seconds);
    } else {
        let reason = "the target reports it for all requests together";
        target.absent_of_workloads.extend(counters.keys().map(|name| (*name, reason.to_owned())));
    }
    if counters.contains_key(Counter::CachedTokens.info().name) && workload_names.len() > 1 {
        let reason = "it follows from `cached_tokens`, which are known of all requests together";
        target.absent_of_workloads.insert(Gauge::PrefixHitRatio.info().name, reason.to_owned());
    }
    target.send_delay_ms = send_delay_ms(send_delays_ns);
    kv_transfers.sort_by_key(|transfer| transfer.end_ns);
    target.kv_transfers = by_peer(&kv_transfers, &engine_names);
    metrics.forget(target.absent.keys());
    for own in workloads.values_mut() {
        own.forget(target.absent.keys().chain(target.absent_of_workloads.keys()));
    }
    let empty = Report::empty(&config.name, config.seed, workload_names.iter().map(String::as_str));
    let mut report = Report {
        schema_version: FINGERPRINTED_VERSION,
        duration_ms: ns_to_ms(duration_ns),
        partial: stopped_at_ns.is_some(),
        cut_short: stopped_at_ns.is_none() && config.max_time_ns.is_some() && (expects_requests || ended < arrived),
        unfinished_requests: arrived - ended,
        target: Some(target),
        workloads,
        metrics,
        engines,
        requests: records,
        kept,
        token_gaps_ns,
        samples,
        request_names: RequestNames::of(config),
        workload_slos: WorkloadSlos::of(config),
        engine_names,
        kv_transfers,
        series,
        ..empty
    };
    if let Some(cluster) = cluster {
        report.take_engines(*cluster);
    }
    report.fingerprint = fingerprint(&report, Vec::new());
    unfingerprinted(&mut report);
    add_generated_tokens(&mut report, &ends);
    report.slo_classes = report.count_slos();
    report
}

impl Report {
    /// Adds the fields that only the engines know, from the report of their own run.
    fn take_engines(&mut self, mut cluster: Self) {
        let seconds = self.duration_ms / 1e3;
        self.metrics.take_engines(&cluster.metrics, seconds);
        for (name, own) in &mut self.workloads {
            if let Some(engines) = cluster.workloads.get(name) {
                own.take_engines(engines, seconds);
            }
        }
        self.samples.take_steps(&mut cluster.samples);
        self.engines = cluster.engines;
        self.engine_names = cluster.engine_names;
        self.pools = cluster.pools;
        self.scaling = cluster.scaling;
        self.links = cluster.links;
        self.outside_fitted_range = cluster.outside_fitted_range;
        self.table_coverage = cluster.table_coverage;
        self.peaks = cluster.peaks;
        self.deployments = cluster.deployments;
        self.absent = cluster.absent;
        self.series = cluster.series;
    }

    pub(crate) fn set_target(&mut self, target: TargetReport, send_delays_ns: Samples) {
        self.target = Some(TargetReport { send_delay_ms: send_delay_ms(send_delays_ns), ..target });
    }

    /// The reason why the run or its target does not know a metric, for the run or for single workloads. None if the
    /// metric is known.
    #[must_use]
    pub fn why_absent(&self, metric: Metric, of_workload: bool) -> Option<&str> {
        let name = metric.info().name;
        if let Some(reason) = self.absent.get(name) {
            return Some(reason);
        }
        let target = self.target.as_ref()?;
        let of_workload = target.absent_of_workloads.get(name).filter(|_| of_workload);
        target.absent.get(name).or(of_workload).map(String::as_str)
    }
}

fn send_delay_ms(send_delays_ns: Samples) -> Option<TrendReport> {
    CountedSamples::from(send_delays_ns).summary().map(|summary| trend_report(&summary, Unit::Time))
}

impl MetricsReport {
    /// Replaces totals by the target's totals, and updates derived values.
    fn replace_counters(&mut self, counters: &BTreeMap<&'static str, u64>, seconds: f64) {
        for (&name, &total) in counters {
            self.counters.insert(name, total);
            self.rates_per_s.insert(name, if seconds > 0.0 { total as f64 / seconds } else { 0.0 });
        }
        if counters.contains_key(Counter::CachedTokens.info().name) {
            let (cached, prompt) = (self.count(Counter::CachedTokens), self.count(Counter::PromptTokens));
            let ratio = if prompt == 0 { 0.0 } else { cached as f64 / prompt as f64 };
            self.gauges.insert(Gauge::PrefixHitRatio.info().report_name(), ratio);
        }
    }

    /// Takes the metrics that only engines know. Rates use `seconds`, the duration of the run.
    fn take_engines(&mut self, engines: &Self, seconds: f64) {
        for name in Counter::ALL
            .iter()
            .map(|counter| counter.info())
            .filter(|info| info.origin.is_total())
            .map(|info| info.name)
        {
            let Some(&total) = engines.counters.get(name) else { continue };
            self.counters.insert(name, total);
            self.rates_per_s.insert(name, if seconds > 0.0 { total as f64 / seconds } else { 0.0 });
        }
        for name in [Trend::StepTime, Trend::BatchSize].map(|trend| trend.info().report_name()) {
            if let Some(trend) = engines.trends.get(&name) {
                self.trends.insert(name, *trend);
            }
        }
        for name in Gauge::OF_GPUS.iter().chain(&[Gauge::KvPeakUsage]).map(|gauge| gauge.info().report_name()) {
            if let Some(&value) = engines.gauges.get(&name) {
                self.gauges.insert(name, value);
            }
        }
    }

    /// Removes metrics that are not known.
    fn forget<'a>(&mut self, names: impl Iterator<Item = &'a &'static str>) {
        for name in names {
            self.counters.remove(name);
            self.rates_per_s.remove(name);
            self.gauges.remove(*name);
            for trend in Trend::ALL.iter().filter(|trend| trend.info().name == *name) {
                self.trends.remove(&trend.info().report_name());
            }
        }
    }
}
