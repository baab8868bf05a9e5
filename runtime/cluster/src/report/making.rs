//! A report out of what a run has left behind.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};

use sha2::{Digest, Sha256};
use vcr_core::{EngineStats, KvTierStats, ServingEngine};

use super::{EngineReport, KvTierReport, LinkReport, MetricsReport, PoolReport, Report, ScalingEvent, TrendReport};
use crate::error::SimError;
use crate::metrics::{Counter, Gauge, MetricInfo, MetricSet, MetricSummaries, Summary, Trend, Unit};
use crate::record::{FailReason, Outcome, RequestRecord, ns_to_ms};
use crate::scaling::Rescaled;
use crate::sim::Simulation;
use crate::worker::Worker;

impl Simulation<'_> {
    pub(crate) fn into_report(mut self) -> Result<Report, SimError> {
        for worker in 0..self.workers.len() as u32 {
            self.dissolve_bulk(worker);
        }
        let last_end_ns = self.records.iter().filter_map(|record| record.end_ns).max().unwrap_or(0);
        let was_cut_off = self.ended < self.records.len() as u64;
        let duration_ns = self.config.max_time_ns.filter(|_| was_cut_off).unwrap_or(last_end_ns);
        let kv_peak = self.workers.iter().map(kv_peak_usage).fold(0.0, f64::max);
        let seconds = duration_ns as f64 / 1e9;
        self.step_metrics.add(Counter::Steps, self.steps);
        let arrived = self.records.len() as u64;
        let rejected: u64 = self.metrics.iter().map(|set| set.total(Counter::Rejected)).sum();
        if arrived > 0 && rejected == arrived {
            let Outcome::Rejected(reason) = self.records[0].outcome else { unreachable!("all were rejected") };
            return Err(SimError::NothingFits { requests: arrived, reason });
        }
        let engines = self.engine_reports(duration_ns);
        let pools = self.pool_reports(duration_ns);
        let scaling = self.scaling_events(duration_ns);
        let engine_names = self.workers.iter().map(|worker| self.engine_name(worker)).collect();
        let step_digests: Vec<u64> = self.workers.iter().map(|worker| worker.step_digest).collect();
        // What is summed up needs room.
        self.workers = Vec::new();
        let records = std::mem::take(&mut self.records);
        let names: Vec<String> = self.workloads.iter().map(|workload| workload.name().to_owned()).collect();
        let mut sets = std::mem::take(&mut self.metrics);
        sets.push(std::mem::take(&mut self.step_metrics));
        let (mut sets, all, token_gaps_ns) = MetricSet::summarise(sets);
        // Steps serve all workloads together.
        sets.pop();
        let workloads = sets.into_iter().enumerate().map(|(index, set)| {
            let own = || records.iter().filter(move |record| record.workload as usize == index);
            (names[index].clone(), metrics_report(set, own, seconds, None))
        });
        let mut report = Report {
            schema_version: 1,
            name: self.config.name.clone(),
            seed: self.config.seed,
            duration_ms: ns_to_ms(duration_ns),
            unfinished_requests: arrived - self.ended,
            workloads: workloads.collect(),
            metrics: metrics_report(all, || records.iter(), seconds, Some((duration_ns, kv_peak))),
            engines,
            pools,
            scaling,
            links: self
                .links
                .iter()
                .map(|link| LinkReport { bytes: link.bytes(), utilisation: share(link.busy_ns(), duration_ns) })
                .collect(),
            fingerprint: String::new(),
            requests: records,
            token_gaps_ns,
            workload_names: names,
            engine_names,
        };
        report.fingerprint = fingerprint(&report, step_digests);
        Ok(report)
    }

    pub(crate) fn engine_name(&self, worker: &Worker) -> String {
        let config = &self.pools[worker.pool as usize].config;
        format!("{} {}", config.name, config.rank_name(worker.index))
    }

    fn engine_reports(&mut self, duration_ns: u64) -> Vec<EngineReport> {
        let tiers: Vec<_> = self.workers.iter_mut().map(|worker| worker.tier_stats(duration_ns)).collect();
        let started = self.workers.iter().enumerate().filter(|(_, worker)| worker.was_provisioned());
        let reports = started.map(|(index, worker)| {
            let stats = worker.engine_stats();
            let config = &self.pools[worker.pool as usize].config;
            let ranks = config.data_parallel.size;
            let provisioned_ns = worker.provisioned_until(duration_ns);
            EngineReport {
                pool: config.name.clone(),
                engine: worker.index / ranks,
                rank: (ranks > 1).then_some(worker.index % ranks),
                worker: index as u32,
                steps: stats.steps,
                utilisation: share(worker.totals.busy_ns, provisioned_ns),
                waiting: config.has_barrier().then(|| share(worker.totals.waited_ns, provisioned_ns)),
                computed_tokens: worker.totals.computed_tokens,
                preemptions: stats.preemptions,
                kv_peak_usage: kv_peak_usage(worker),
                prefix_hit_ratio: share(stats.prefix.hit_tokens, stats.prefix.queried_tokens),
                prefix_queried_tokens: stats.prefix.queried_tokens,
                crashes: worker.totals.crashes,
                prefill_tokens: worker.totals.prefill_tokens,
                kv_tiers: tiers[index].map(|tiers| tier_report(worker, &stats, &tiers)),
            }
        });
        reports.collect()
    }

    fn pool_reports(&self, duration_ns: u64) -> Vec<PoolReport> {
        let reports = self.pools.iter().map(|pool| {
            let engines = pool.engines().map(|index| &self.workers[index]);
            let worker_ns = engines.map(|engine| u128::from(engine.provisioned_until(duration_ns))).sum();
            PoolReport {
                pool: pool.config.name.clone(),
                first_worker: pool.first_worker,
                worker_ns,
                worker_seconds: worker_ns as f64 / 1e9,
                scales: pool.scaler.is_some(),
            }
        });
        reports.collect()
    }

    /// What autoscalers did while there were requests.
    fn scaling_events(&self, duration_ns: u64) -> Vec<ScalingEvent> {
        let during = self.rescaled.iter().filter(|rescaled| rescaled.at_ns <= duration_ns);
        let event = |&Rescaled { at_ns, pool, from, to }: &Rescaled| {
            let pool = self.pools[pool as usize].config.name.clone();
            ScalingEvent { at_ms: ns_to_ms(at_ns), pool, from, to }
        };
        during.map(event).collect()
    }
}

fn tier_report(worker: &Worker, stats: &EngineStats, tiers: &KvTierStats) -> KvTierReport {
    let block_size_tokens = u64::from(worker.engine.kind().block_size());
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
    share(u64::from(worker.totals.peak_active_blocks), u64::from(worker.engine.num_usable_blocks()))
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn metrics_report<'a, I: Iterator<Item = &'a RequestRecord>>(
    set: MetricSummaries,
    records: impl Fn() -> I,
    seconds: f64,
    run: Option<(u64, f64)>,
) -> MetricsReport {
    let MetricSummaries { trends, counters } = set;
    let total = |counter: Counter| counters[counter as usize];
    let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let mut gauges = BTreeMap::from([
        (report_name(Gauge::PrefixHitRatio.info()), share(total(Counter::CachedTokens), total(Counter::PromptTokens))),
        (report_name(Gauge::CompletedRatio.info()), share(total(Counter::Completed), total(Counter::Requests))),
    ]);
    if let Some((duration_ns, kv_peak)) = run {
        gauges.insert(report_name(Gauge::Duration.info()), ns_to_ms(duration_ns));
        gauges.insert(report_name(Gauge::KvPeakUsage.info()), kv_peak);
    }
    let mut rejections = BTreeMap::new();
    let mut failures: BTreeMap<FailReason, u64> = BTreeMap::new();
    for record in records() {
        match record.outcome {
            Outcome::Rejected(reason) => *rejections.entry(reason.to_string()).or_insert(0) += 1,
            Outcome::Failed(reason) => *failures.entry(reason).or_insert(0) += 1,
            Outcome::Completed | Outcome::Shed | Outcome::Unfinished => {}
        }
    }
    let is_counted = |counter: Counter| {
        (run.is_some() || !counter.is_of_whole_run()) && (total(counter) > 0 || !counter.is_occasional())
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
                Some((report_name(trend.info()), trend_report(&summary, trend.info().unit)))
            })
            .collect(),
        rejections,
        failures: failures.into_iter().map(|(reason, count)| (reason.to_string(), count)).collect(),
    }
}

/// A metric's key in reports: its name, with its unit where it has one.
#[must_use]
pub fn report_name(info: MetricInfo) -> String {
    match info.unit {
        Unit::Time => format!("{}_ms", info.name),
        Unit::Count | Unit::Ratio => info.name.to_owned(),
    }
}

fn trend_report(summary: &Summary, unit: Unit) -> TrendReport {
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

fn fingerprint(report: &Report, step_digests: Vec<u64>) -> String {
    let mut hash = Sha256::new();
    for digest in step_digests {
        hash.update(digest.to_le_bytes());
    }
    // Records are written piece by piece, and hashed in large ones.
    let mut sink = BufWriter::with_capacity(1 << 16, HashWriter(&mut hash));
    // Writing to a hash cannot fail, and the report has no non-string keys.
    let mut write = |bytes: &[u8]| sink.write_all(bytes).expect("a hash accepts everything");
    for record in &report.requests {
        write(record.words().map(u64::to_le_bytes).as_flattened());
        if let Some(reason) = record.outcome.reason() {
            write(reason.as_bytes());
        }
    }
    serde_json::to_writer(&mut sink, report).expect("a report is serialisable");
    sink.flush().expect("a hash accepts everything");
    drop(sink);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
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
