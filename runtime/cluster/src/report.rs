//! The result of a run: totals, distributions, engines, links, fingerprint.
//!
//! Everything in it is a function of the run's configuration and seed. Maps are
//! ordered and sums are taken in a fixed order, so two runs of one
//! configuration serialise to the same bytes.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};

use serde::Serialize;
use sha2::{Digest, Sha256};

use vcr_core::{EngineStats, KvTierStats, ServingEngine};

use crate::error::SimError;
use crate::metrics::{Counter, Gauge, MetricSet, MetricSummaries, SortedSamples, Summary, Trend, Unit};
use crate::record::{FailReason, Outcome, RequestRecord, RequestRow, ns_to_ms};
use crate::scaling::Rescaled;
use crate::sim::Simulation;
use crate::worker::Worker;

/// A trend as it is written: times in milliseconds, counts as they are.
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

/// Metrics of all requests, or of those of one workload.
#[derive(Clone, Debug, Serialize)]
pub struct MetricsReport {
    /// Totals by name.
    pub counters: BTreeMap<&'static str, u64>,
    /// Totals by name, per second of virtual time.
    pub rates_per_s: BTreeMap<&'static str, f64>,
    /// Single values by name (`_ms` appended to times).
    pub gauges: BTreeMap<String, f64>,
    /// Distributions by name (`_ms` appended to times); absent without samples.
    pub trends: BTreeMap<String, TrendReport>,
    /// Why requests were rejected, and how many.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rejections: BTreeMap<String, u64>,
    /// Why requests were lost, and how many.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
}

/// What one engine did, or one rank of an engine that has several.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// Name of its pool.
    pub pool: String,
    /// Index of the engine in the pool.
    pub engine: u32,
    /// Its rank, where engines have several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Index over all engines of the run, as [`RequestRecord::prefill_worker`].
    #[serde(skip)]
    pub worker: u32,
    /// Steps.
    pub steps: u64,
    /// Share of the time that it had its place for that was spent in steps.
    pub utilisation: f64,
    /// Share of that time in which it waited for the end of other ranks' steps, where
    /// ranks wait for each other: the two together are the same for all of an engine.
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
    /// How many tokens were looked up then.
    #[serde(skip)]
    pub prefix_queried_tokens: u64,
    /// Crashes.
    pub crashes: u32,
    /// Tokens computed in prefill chunks, recomputed ones included.
    #[serde(skip)]
    pub prefill_tokens: u64,
    /// What its tiers below the device did, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_tiers: Option<KvTierReport>,
}

/// What the host and disk tiers of one engine did, until the end of the run.
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

/// How long a pool had engines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolReport {
    /// Name of the pool.
    pub pool: String,
    /// Index of the first rank of its first engine over all those of the run.
    #[serde(skip)]
    pub first_worker: u32,
    /// Nanoseconds during the run for which engines had their places, over all of
    /// them: from the decision to start an engine until it is off, whatever it
    /// does or suffers meanwhile.
    #[serde(skip)]
    pub worker_ns: u128,
    /// The same in seconds.
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
    /// How many there were.
    pub from: u32,
    /// How many there are from then on.
    pub to: u32,
}

/// What one link carried.
#[derive(Clone, Debug, Serialize)]
pub struct LinkReport {
    /// Bytes of all transfers.
    pub bytes: u64,
    /// Share of the run with at least one transfer under way.
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
    /// Requests still under way when the run was cut off.
    pub unfinished_requests: u64,
    /// Metrics over all workloads.
    pub metrics: MetricsReport,
    /// Metrics of each workload, by name.
    pub workloads: BTreeMap<String, MetricsReport>,
    /// The engines that were ever started, pool by pool.
    pub engines: Vec<EngineReport>,
    /// The pools; written only where the number of engines of any can change.
    #[serde(skip_serializing_if = "none_scales")]
    pub pools: Vec<PoolReport>,
    /// What autoscalers did, in order of time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scaling: Vec<ScalingEvent>,
    /// The links between prefill and decode engines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkReport>,
    /// SHA-256 over every step, every request and all of the above, as hex.
    pub fingerprint: String,
    /// Every request, in order of arrival.
    #[serde(skip)]
    pub requests: Vec<RequestRecord>,
    /// Every gap between consecutive output tokens, in nanoseconds.
    #[serde(skip)]
    pub token_gaps_ns: SortedSamples,
    /// Names of the workloads, by [`RequestRecord::workload`].
    #[serde(skip)]
    pub workload_names: Vec<String>,
    /// Names of the engines, by [`RequestRecord::prefill_worker`].
    #[serde(skip)]
    pub engine_names: Vec<String>,
}

impl Report {
    /// The rows of `requests.jsonl`, in order of arrival.
    pub fn request_rows(&self) -> impl Iterator<Item = RequestRow<'_>> {
        let rows = self.requests.iter().enumerate();
        rows.map(|(id, record)| {
            let workload = &self.workload_names[record.workload as usize];
            record.row(id as u64, workload, &self.engine_names)
        })
    }

    /// Writes the requests as JSON lines, in order of arrival.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_requests(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        for row in self.request_rows() {
            serde_json::to_writer(&mut *out, &row)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

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

fn none_scales(pools: &[PoolReport]) -> bool {
    pools.iter().all(|pool| !pool.scales)
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
pub fn report_name(info: crate::metrics::MetricInfo) -> String {
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
