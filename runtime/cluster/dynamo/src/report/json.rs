//! The report as JSON: Dynamo's keys, and the object `vcr` with further results.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use vcr_cluster::metrics::Counter;
use vcr_cluster::{EngineReport, Report};
use vcr_core::NamedValue as _;

use super::ReportFormat;
use super::Sla;
use super::Sums;
use super::distribution::Distribution;
use super::summary::Summary;
use super::time::TimeSpent;

/// Facts about the run that its report does not contain.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunFacts<'a> {
    /// Name of the preset.
    pub preset: &'a str,
    /// Options that were accepted but have no effect.
    pub warnings: &'a [String],
    /// The limit that stopped the run early, if any.
    pub stopped_by: Option<&'a str>,
    /// The time for which each limit made requests wait, if requested.
    pub capacity: Option<&'a Value>,
    /// Host resources used, if requested.
    pub host: Option<&'a Value>,
    /// Time series of the workers, if requested.
    pub timeline: Option<&'a Value>,
}

#[must_use]
pub fn report(run: &Report, summary: &Summary, facts: RunFacts<'_>, format: ReportFormat) -> Value {
    let mut flat = flat(summary);
    let ours = ours(run, facts);
    match format {
        ReportFormat::Flat1_4 => {
            flat.insert("vcr".to_owned(), ours);
            Value::Object(flat)
        }
        ReportFormat::Nested1_6 => {
            flat.extend(added_by_1_6(summary));
            json!({
                "coverage": {
                    "capture_per_request": false,
                    "capture_planner_details": false,
                    "per_request_records": 0,
                },
                "per_request": null,
                "planner": null,
                "summary": flat,
                "vcr": ours,
            })
        }
    }
}

/// The keys of 1.4.
#[must_use]
pub fn flat(summary: &Summary) -> Map<String, Value> {
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    let tokens = summary.total_input_tokens + summary.total_output_tokens;
    let per_host_second = |tokens: u64| match summary.wall_time_ms {
        Some(ms) if ms > 0.0 => json!(tokens as f64 / ms * 1000.0),
        Some(_) => json!(0.0),
        None => Value::Null,
    };
    put("num_requests", json!(summary.num_requests));
    put("completed_requests", json!(summary.completed_requests));
    put("total_input_tokens", json!(summary.total_input_tokens));
    put("total_output_tokens", json!(summary.total_output_tokens));
    put("duration_ms", json!(summary.duration_ms));
    put("wall_time_ms", json!(summary.wall_time_ms));
    put("processed_tokens", json!(tokens));
    put("processed_tokens_per_s", per_host_second(tokens));
    put("processed_output_tokens_per_s", per_host_second(summary.total_output_tokens));
    put("request_throughput_rps", json!(summary.request_throughput_rps));
    put("input_throughput_tok_s", json!(summary.input_throughput_tok_s));
    put("output_throughput_tok_s", json!(summary.output_throughput_tok_s));
    put("total_throughput_tok_s", json!(summary.total_throughput_tok_s));
    put("prefill_worker_seconds", json!(summary.prefill_worker_seconds));
    put("decode_worker_seconds", json!(summary.decode_worker_seconds));
    put("prefill_gpus_per_worker", json!(summary.prefill_gpus_per_worker));
    put("decode_gpus_per_worker", json!(summary.decode_gpus_per_worker));
    put("gpu_hours", json!(summary.gpu_hours));
    put("prefix_cache_reused_ratio", json!(summary.prefix_cache_reused_ratio));
    put("first_admission_prefix_cache_reused_ratio", json!(summary.first_admission_prefix_cache_reused_ratio));
    if let Some(goodput) = &summary.goodput {
        put("goodput_completed_requests", json!(goodput.completed_requests));
        put("goodput_request_throughput_rps", json!(goodput.request_throughput_rps));
        put("goodput_output_throughput_tok_s", json!(goodput.output_throughput_tok_s));
    }
    for (name, distribution) in summary.latencies() {
        for (statistic, value) in distribution.statistics() {
            put(&format!("{statistic}_{name}_ms"), json!(value));
        }
    }
    for (statistic, value) in summary.output_token_throughput_per_user.statistics() {
        put(&format!("{statistic}_output_token_throughput_per_user"), json!(value));
    }
    map
}

/// The keys that 1.6 added.
fn added_by_1_6(summary: &Summary) -> Map<String, Value> {
    let keys = json!({
        "committed_prefill_tokens": summary.committed_prefill_tokens,
        "kv_eviction_policy": summary.kv_eviction.name(),
        "num_ttft_samples": summary.ttft.count,
        "num_tpot_samples": summary.tpot.count,
        "num_e2e_latency_samples": summary.e2e_latency.count,
        "power_w": null,
        "power_coverage": null,
    });
    let Value::Object(map) = keys else { unreachable!("an object was written") };
    map
}

/// The object `vcr` with results that Dynamo does not report.
fn ours(run: &Report, facts: RunFacts<'_>) -> Value {
    let sums = Sums::of(run, &Sla::default());
    let time: Map<String, Value> = TimeSpent::of(run)
        .into_iter()
        .map(|spent| {
            let mut of_phase = statistics(&spent.distribution);
            of_phase.insert("share".to_owned(), json!(spent.share));
            (spent.phase.name().to_owned(), Value::Object(of_phase))
        })
        .collect();
    let of_worker = workers(run, &sums.by_worker);
    let mut ours = json!({
        "schema_version": 1,
        "preset": facts.preset,
        "seed": run.seed,
        "fingerprint": run.fingerprint,
        "warnings": facts.warnings,
        "unfinished_requests": run.unfinished_requests,
        "rejections": run.metrics.rejections,
        "failures": run.metrics.failures,
        "shed_requests": run.metrics.count(Counter::Shed),
        "preemptions": run.metrics.count(Counter::Preemptions),
        "where_time_went": time,
        "prefix_cache": {
            "prompt_tokens": sums.prompt_tokens,
            "cached_at_first_admission_tokens": sums.cached_tokens,
            "cached_at_any_admission_tokens": sums.most_cached_tokens,
            "cached_at_decode_tokens": sums.decode_cached_tokens,
            "requests_with_a_hit": sums.with_a_hit,
            "requests_without": sums.completed - sums.with_a_hit,
        },
        "workers": of_worker,
        "links": run.links,
        "scaling": run.scaling,
    });
    if run.engines.iter().any(|engine| engine.kv_tiers.is_some()) {
        // These are parts of the tokens cached at first admissions.
        ours["prefix_cache"]["loaded_from_host_tokens"] = json!(sums.host_cached_tokens);
        ours["prefix_cache"]["loaded_from_disk_tokens"] = json!(sums.disk_cached_tokens);
    }
    if let Some(profile) = &run.profile {
        ours["profile"] = json!(profile);
    }
    if let Some(capacity) = facts.capacity {
        ours["capacity"] = capacity.clone();
    }
    if let Some(timeline) = facts.timeline {
        ours["timeline"] = timeline.clone();
    }
    if let Some(target) = &run.target {
        ours["target"] = json!(target);
    }
    if let Some(host) = facts.host {
        ours["host"] = host.clone();
    }
    if let Some(stopped_by) = facts.stopped_by {
        ours["partial"] = json!({ "stopped_by": stopped_by });
    }
    ours
}

fn statistics(distribution: &Distribution) -> Map<String, Value> {
    distribution.statistics().into_iter().map(|(name, value)| (format!("{name}_ms"), json!(value))).collect()
}

/// Work of each worker, and of each of its ranks if there are several.
fn workers(run: &Report, requests: &BTreeMap<u32, u64>) -> Vec<Value> {
    let place = |engine: &EngineReport| (engine.pool.clone(), engine.engine);
    let workers = run.engines.chunk_by(|one, other| place(one) == place(other)).map(|ranks| {
        let mut worker = Map::new();
        worker.insert("pool".to_owned(), json!(ranks[0].pool));
        worker.insert("worker".to_owned(), json!(ranks[0].engine));
        work_of(ranks, requests, &mut worker);
        if ranks[0].rank.is_some() {
            let written = ranks.iter().map(|rank| {
                let mut written = Map::new();
                written.insert("rank".to_owned(), json!(rank.rank));
                work_of(std::slice::from_ref(rank), requests, &mut written);
                Value::Object(written)
            });
            worker.insert("ranks".to_owned(), written.collect());
        }
        Value::Object(worker)
    });
    workers.collect()
}

/// Work of several ranks together: sums, means of time shares, and the maximum memory.
fn work_of(ranks: &[EngineReport], requests: &BTreeMap<u32, u64>, written: &mut Map<String, Value>) {
    let total = |of: fn(&EngineReport) -> u64| json!(ranks.iter().map(of).sum::<u64>());
    let mean = |shares: f64| json!(shares / ranks.len() as f64);
    let queried_tokens: u64 = ranks.iter().map(|rank| rank.prefix_queried_tokens).sum();
    let hit_tokens = |rank: &EngineReport| rank.prefix_hit_ratio * rank.prefix_queried_tokens as f64;
    let hit_ratio = match ranks {
        [only] => only.prefix_hit_ratio,
        _ => ranks.iter().map(hit_tokens).sum::<f64>() / queried_tokens.max(1) as f64,
    };
    let requests_of = |rank: &EngineReport| requests.get(&rank.worker).copied().unwrap_or(0);
    let mut put = |key: &str, value: Value| written.insert(key.to_owned(), value);
    put("requests", json!(ranks.iter().map(requests_of).sum::<u64>()));
    put("utilisation", mean(ranks.iter().map(|rank| rank.utilisation).sum()));
    if let Some(waiting) = ranks.iter().map(|rank| rank.waiting).sum::<Option<f64>>() {
        put("waiting", mean(waiting));
    }
    put("steps", total(|rank| rank.steps));
    put("computed_tokens", total(|rank| rank.computed_tokens));
    put("prefill_tokens", total(|rank| rank.prefill_tokens));
    put("preemptions", total(|rank| rank.preemptions));
    put("kv_peak_usage", json!(ranks.iter().map(|rank| rank.kv_peak_usage).fold(0.0, f64::max)));
    put("prefix_hit_ratio", json!(hit_ratio));
    if let [EngineReport { kv_tiers: Some(tiers), .. }] = ranks {
        put("kv_tiers", json!(tiers));
    }
}
