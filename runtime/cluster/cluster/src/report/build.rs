//! Builds the report of a run from its final state.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};

use sha2::{Digest, Sha256};
use vcr_base::units::format_ns;
use vcr_core::latency::RangeUse;
use vcr_core::{EngineStats, KvTierStats, RejectReason, ServingEngine};

use super::ends::{Ends, EndsOfWorkload};
use super::{
    EngineReport, KvTierReport, LinkReport, MetricsReport, PoolPeak, PoolReport, ProfileReport, Report, RequestNames,
    ScalingEvent, TableCoverage, TrendReport, WorkloadSlos,
};
use crate::config::{FaultConfig, RunConfig};
use crate::disaggregation::KvHandoffs;
use crate::error::SimError;
use crate::fleet::{Fleet, Rescaled, Worker};
use crate::ledger::Ledger;
use crate::ledger::metrics::{Counter, Gauge, MetricSummaries, Scope, Summarised, Summary, Trend, Unit};
use crate::ledger::record::{Outcome, ns_to_ms};
use crate::traffic::ProfileCounts;

pub(super) const SCHEMA_VERSION: u32 = 2;
/// The schema version that fingerprints cover. They omit additions of later versions, so that the fingerprint of a
/// run stays the same.
pub(super) const FINGERPRINTED_VERSION: u32 = 1;

pub(crate) struct RunEnd<'a> {
    pub(crate) config: &'a RunConfig,
    /// When the observer ended the run, if it did.
    pub(crate) stopped_at_ns: Option<u64>,
    /// Whether further requests were due when the run ended.
    pub(crate) expects_requests: bool,
    pub(crate) workload_names: Vec<String>,
    pub(crate) ledger: Ledger,
    pub(crate) fleet: Fleet,
    pub(crate) handoffs: &'a KvHandoffs,
    /// When the measurement began: at the start of the run, or after a warm-up.
    pub(crate) measured_from_ns: u64,
    pub(crate) profile: Option<ProfileCounts>,
}

pub(crate) fn build(end: RunEnd<'_>) -> Result<Report, SimError> {
    let RunEnd { config, stopped_at_ns, expects_requests, workload_names, mut ledger, mut fleet, handoffs, .. } = end;
    let last_end_ns = ledger.last_end_ns();
    let (arrived, ended) = (ledger.arrived(), ledger.ended());
    let duration_ns = match stopped_at_ns {
        // A fast-forward may have simulated steps beyond this time.
        Some(at_ns) => fleet.workers().iter().map(Worker::computes_until_ns).fold(at_ns, u64::max),
        None => config.max_time_ns.filter(|_| ended < arrived).unwrap_or(last_end_ns),
    };
    let kv_peak = fleet.workers().iter().map(kv_peak_usage).fold(0.0, f64::max);
    let unmeasured = ledger.unmeasured();
    let measured_ns = duration_ns - end.measured_from_ns.min(duration_ns);
    let seconds = measured_ns as f64 / 1e9;
    if arrived > unmeasured
        && ledger.total(Counter::Rejected) == arrived - unmeasured
        && stopped_at_ns.is_none()
        && let Some(Outcome::Rejected(reason)) = ledger.find(unmeasured).map(|record| record.outcome)
        && reason != RejectReason::GrammarFailed
    {
        return Err(SimError::NothingFits { requests: arrived - unmeasured, reason });
    }
    // Steps in flight count as busy until the end of the run.
    fleet.workers_mut().iter_mut().for_each(|worker| worker.cut_step(duration_ns));
    let engines = engine_reports(&mut fleet, duration_ns);
    let pools = pool_reports(&fleet, duration_ns);
    let engine_ns = engine_ns(&fleet, duration_ns - measured_ns, duration_ns);
    let scaling = scaling_events(&fleet, duration_ns);
    let engine_names = fleet.workers().iter().map(|worker| fleet.engine_name(worker)).collect();
    let range_use = fleet.workers().iter().filter_map(Worker::range_use).reduce(RangeUse::plus);
    let step_digests: Vec<u64> = fleet.workers().iter().map(Worker::step_digest).collect();
    let kept_digests = fleet.workers_mut().iter_mut().map(Worker::take_step_digests).collect::<Option<Vec<_>>>();
    fleet.workers().iter().for_each(|worker| ledger.count_engine(&worker.engine_stats()));
    // Summarising needs the memory that this frees.
    drop(fleet);
    let kept = ledger.take_kept();
    let (records, packed, summarised) = ledger.close();
    let mut ends = Ends::of_workloads(workload_names.len());
    records.iter().for_each(|record| ends.count(record));
    packed.iter().for_each(|record| ends.count(&record));
    let Summarised { each: mut sets, all, samples, token_gaps_ns } = summarised;
    // The last set belongs to the steps, which serve all workloads together.
    sets.pop();
    let workloads = sets
        .into_iter()
        .enumerate()
        .map(|(index, set)| (workload_names[index].clone(), metrics_report(set, ends.of(index), seconds, None)));
    let link = |(bytes, busy_ns)| LinkReport { bytes, utilisation: share(busy_ns, duration_ns) };
    let empty = Report::empty(&config.name, config.seed, workload_names.iter().map(String::as_str));
    let mut report = Report {
        schema_version: FINGERPRINTED_VERSION,
        duration_ms: ns_to_ms(measured_ns),
        partial: stopped_at_ns.is_some(),
        cut_short: stopped_at_ns.is_none() && config.max_time_ns.is_some() && (expects_requests || ended < arrived),
        unfinished_requests: arrived - ended,
        workloads: workloads.collect(),
        metrics: metrics_report(all, &ends.of_all(), seconds, Some((measured_ns, kv_peak))),
        engines,
        pools,
        scaling,
        links: handoffs.link_totals().map(link).collect(),
        requests: records,
        packed_requests: packed,
        token_gaps_ns,
        samples,
        request_names: RequestNames::of(config),
        workload_slos: WorkloadSlos::of(config),
        engine_names,
        step_digests: kept_digests,
        kept,
        profile: end.profile.map(ProfileReport::of),
        overload: None,
        first_request: unmeasured,
        ..empty
    };
    report.fingerprint = fingerprint(&report, step_digests);
    unfingerprinted(&mut report);
    add_generated_tokens(&mut report, &ends);
    report.slo_classes = report.count_slos();
    // Fitted ranges describe the confidence in the times, so the fingerprint omits them.
    let fitted = range_use.filter(|used| used.priced_ns > 0 || used.tables.total_ns() == 0);
    report.outside_fitted_range = fitted.map(|used| share(used.outside_ns, used.priced_ns));
    report.table_coverage = range_use.and_then(|used| TableCoverage::of(&used.tables));
    report.peaks = PoolPeak::of(&config.topology.pools());
    let recorded = config.workloads.iter().filter(|workload| workload.has_recorded_answers());
    report.recorded_workloads = recorded.map(|workload| workload.name.clone()).collect();
    report.add_deployments(config, &engine_ns, measured_ns);
    if stopped_at_ns.is_none() {
        report.late_faults = late_faults(config, duration_ns);
    }
    Ok(report)
}

fn engine_reports(fleet: &mut Fleet, duration_ns: u64) -> Vec<EngineReport> {
    let mut tiers = Vec::with_capacity(fleet.workers().len());
    fleet.each_with_tiers(|worker| tiers.push(worker.tier_stats(duration_ns)));
    let started = fleet.workers().iter().enumerate().filter(|(_, worker)| worker.lifecycle().was_provisioned());
    let reports = started.map(|(index, worker)| {
        let (stats, totals) = (worker.engine_stats(), worker.totals());
        let config = fleet.pool(worker.role()).config();
        let ranks = config.data_parallel.size;
        let provisioned_ns = worker.provisioned_until(duration_ns);
        EngineReport {
            pool: config.name.clone(),
            engine: worker.index() / ranks,
            rank: (ranks > 1).then_some(worker.index() % ranks),
            worker: index as u32,
            steps: stats.steps,
            utilisation: share(totals.busy_ns, provisioned_ns),
            waiting: config.has_barrier().then(|| share(totals.waited_ns, provisioned_ns)),
            computed_tokens: totals.computed_tokens,
            preemptions: stats.preemptions,
            kv_peak_usage: kv_peak_usage(worker),
            prefix_hit_ratio: share(stats.prefix.hit_tokens, stats.prefix.queried_tokens),
            prefix_queried_tokens: stats.prefix.queried_tokens,
            crashes: totals.crashes,
            prefill_tokens: totals.prefill_tokens,
            kv_tiers: tiers[index].map(|tiers| tier_report(worker, &stats, &tiers)),
        }
    });
    reports.collect()
}

fn pool_reports(fleet: &Fleet, duration_ns: u64) -> Vec<PoolReport> {
    let reports = fleet.pools().iter().map(|pool| {
        let engines = pool.engines().map(|index| &fleet.workers()[index]);
        let worker_ns = engines.map(|engine| u128::from(engine.provisioned_until(duration_ns))).sum();
        PoolReport {
            pool: pool.config().name.clone(),
            first_worker: pool.first_worker(),
            worker_ns,
            worker_seconds: worker_ns as f64 / 1e9,
            scales: pool.scales(),
        }
    });
    reports.collect()
}

/// For each pool, the total time between `from_ns` and `to_ns` for which its engines were provisioned.
fn engine_ns(fleet: &Fleet, from_ns: u64, to_ns: u64) -> Vec<u128> {
    let of_engine = |worker: &Worker| u128::from(worker.provisioned_until(to_ns) - worker.provisioned_until(from_ns));
    fleet.pools().iter().map(|pool| pool.engines().map(|index| of_engine(&fleet.workers()[index])).sum()).collect()
}

/// The planned faults that are due after `end_ns`.
fn late_faults(config: &RunConfig, end_ns: u64) -> Vec<String> {
    let late = (1..).zip(&config.faults).filter(|(_, fault)| fault.at_ns > end_ns);
    let text = |(number, fault): (usize, &FaultConfig)| {
        let (name, at, end) = (fault.kind.name(), format_ns(fault.at_ns as f64), format_ns(end_ns as f64));
        format!("fault {number}, `{name}` at {at}, never happened: the run ended at {end}")
    };
    late.map(text).collect()
}

/// Decisions of autoscalers until the last request ended.
fn scaling_events(fleet: &Fleet, duration_ns: u64) -> Vec<ScalingEvent> {
    let during = fleet.rescaled().iter().filter(|rescaled| rescaled.at_ns <= duration_ns);
    let event = |&Rescaled { at_ns, role, from, to, signal }: &Rescaled| ScalingEvent {
        at_ms: ns_to_ms(at_ns),
        pool: fleet.pool(role).config().name.clone(),
        from,
        to,
        signal,
    };
    during.map(event).collect()
}

fn tier_report(worker: &Worker, stats: &EngineStats, tiers: &KvTierStats) -> KvTierReport {
    let block_size_tokens = u64::from(worker.block_size_tokens());
    KvTierReport {
        device_hit_tokens: stats.prefix.hit_tokens + stats.preempted_prefix.hit_tokens,
        host_hit_tokens: tiers.host_hit_blocks * block_size_tokens,
        disk_hit_tokens: tiers.disk_hit_blocks * block_size_tokens,
        loads: tiers.loads,
        device_to_host_bytes: tiers.device_to_host_bytes,
        host_to_device_bytes: tiers.host_to_device_bytes,
        host_to_disk_bytes: tiers.host_to_disk_bytes,
        disk_to_host_bytes: tiers.disk_to_host_bytes,
    }
}

fn kv_peak_usage(worker: &Worker) -> f64 {
    share(u64::from(worker.totals().peak_active_blocks), u64::from(worker.engine().load().num_usable_blocks))
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

pub(super) fn metrics_report(
    set: MetricSummaries,
    ends: &EndsOfWorkload,
    seconds: f64,
    run: Option<(u64, f64)>,
) -> MetricsReport {
    let MetricSummaries { trends, counters } = set;
    let total = |counter: Counter| counters[counter as usize];
    let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let mut gauges = BTreeMap::from([
        (Gauge::PrefixHitRatio.info().report_name(), share(total(Counter::CachedTokens), total(Counter::PromptTokens))),
        (Gauge::CompletedRatio.info().report_name(), share(total(Counter::Completed), total(Counter::Requests))),
    ]);
    if let Some((duration_ns, kv_peak)) = run {
        gauges.insert(Gauge::Duration.info().report_name(), ns_to_ms(duration_ns));
        gauges.insert(Gauge::KvPeakUsage.info().report_name(), kv_peak);
    }
    let is_counted = |counter: Counter| {
        (run.is_some() || counter.info().scope == Scope::Workload)
            && (total(counter) > 0 || !counter.is_occasional())
            && counter != Counter::GeneratedTokens
    };
    let counted = || Counter::ALL.iter().filter(|counter| is_counted(**counter));
    MetricsReport {
        counters: counted().map(|&counter| (counter.info().name, total(counter))).collect(),
        rates_per_s: counted().map(|&counter| (counter.info().name, rate(total(counter)))).collect(),
        gauges,
        trends: Trend::ALL
            .iter()
            .filter_map(|&trend| {
                let summary = trends[trend as usize]?;
                Some((trend.info().report_name(), trend_report(&summary, trend.info().unit)))
            })
            .collect(),
        rejections: ends.rejections.clone(),
        failures: ends.failures.clone(),
    }
}

/// Adds the tokens that requests received, completed or not. They are the tokens in records and the tokens of
/// attempts that a fault cut off. The fingerprint omits these sums, because it covers the data from which they
/// follow.
pub(super) fn add_generated_tokens(report: &mut Report, ends: &Ends) {
    let seconds = report.duration_ms / 1e3;
    let name = Counter::GeneratedTokens.info().name;
    let add = |metrics: &mut MetricsReport, tokens: u64| {
        let generated = tokens + metrics.count(Counter::WastedTokens);
        metrics.counters.insert(name, generated);
        metrics.rates_per_s.insert(name, if seconds > 0.0 { generated as f64 / seconds } else { 0.0 });
    };
    add(&mut report.metrics, ends.of_all().tokens);
    for (index, workload) in report.workload_names.iter().enumerate() {
        let tokens = ends.of(index).tokens;
        report.workloads.get_mut(workload).into_iter().for_each(|metrics| add(metrics, tokens));
    }
}

pub(super) fn trend_report(summary: &Summary, unit: Unit) -> TrendReport {
    let scale = if unit == Unit::Time { 1e6 } else { 1.0 };
    let of = |value: u64| value as f64 / scale;
    TrendReport {
        count: summary.count,
        mean: summary.mean / scale,
        min: of(summary.min),
        p50: of(summary.p50),
        p75: of(summary.p75),
        p90: of(summary.p90),
        p95: of(summary.p95),
        p99: of(summary.p99),
        max: of(summary.max),
        std: summary.std / scale,
    }
}

/// Sets the fields that the fingerprint does not cover. Called after taking the fingerprint.
pub(super) fn unfingerprinted(report: &mut Report) {
    report.schema_version = SCHEMA_VERSION;
}

pub(super) fn fingerprint(report: &Report, step_digests: Vec<u64>) -> String {
    let mut hash = Sha256::new();
    for digest in step_digests {
        hash.update(digest.to_le_bytes());
    }
    // Records are written in small pieces and hashed in large ones.
    let mut sink = BufWriter::with_capacity(1 << 16, HashWriter(&mut hash));
    // Writing to a hash cannot fail, and the report has no non-string keys.
    let mut write = |bytes: &[u8]| sink.write_all(bytes).expect("a hash accepts everything");
    report.for_each_request(|record| {
        write(record.words().map(u64::to_le_bytes).as_flattened());
        if let Some(words) = record.further_words() {
            write(words.map(u64::to_le_bytes).as_flattened());
        }
        if let Some(reason) = record.outcome.reason() {
            write(reason.as_bytes());
        }
    });
    serde_json::to_writer(&mut sink, report).expect("a report is serialisable");
    sink.flush().expect("a hash accepts everything");
    drop(sink);
    hex::encode(hash.finalize())
}

struct HashWriter<'a>(&'a mut Sha256);

impl Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
