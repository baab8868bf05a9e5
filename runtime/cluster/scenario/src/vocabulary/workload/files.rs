//! `workload_file`: workloads from the files of other tools.
//!
//! A warning names settings that a run cannot follow. Settings that would change the workload are errors.

mod aiperf;
mod blis;
mod fields;
mod guidellm;
mod inference_perf;
mod servegen;

use std::path::Path;
use std::sync::Arc;

use rhai::{Array, Dynamic, Engine, NativeCallContext};
use serde_json::Value;
use vcr_base::random::Distribution;
use vcr_cluster::{Arrivals, Curve, Gaps, Histogram, Lengths, Limit, RequestMix, WorkloadConfig, WorkloadSource};

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use fields::{Fields, Spread};

/// Maximum number of lengths that a range lists individually.
const MAX_LENGTHS: u32 = 1 << 20;

pub(super) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let context = Arc::clone(context);
    engine.register_fn("workload_file", move |call: NativeCallContext<'_>, path: &str| -> Scripted<Array> {
        let at = call.call_position();
        let resolved = context.resolve(path);
        context.reads(&resolved).map_err(|thrown| thrown.at(at))?;
        context.state().inputs.named("workload_file", path, resolved.clone());
        let read = context.meter.outside(|| read(&resolved));
        let (workloads, ignored) = read.map_err(|text| Thrown::input(format!("`{path}`: {text}")).at(at))?;
        if !ignored.is_empty() {
            context.reporter.warn(&format!("{path}: these have no effect here: {}", ignored.join(", ")));
        }
        Ok(workloads.into_iter().map(Dynamic::from).collect())
    });
}

/// Reads the workloads of a file. Also returns the settings that have no effect.
fn read(path: &Path) -> Result<(Vec<WorkloadConfig>, Vec<String>), String> {
    if path.is_dir() {
        return servegen::workloads(path).map(|workloads| (workloads, Vec::new()));
    }
    let text = vcr_base::input::read_yaml(path, vcr_base::input::MAX_CONFIG_BYTES);
    parse(&text.map_err(|error| format!("cannot be read: {error}"))?)
}

fn parse(text: &str) -> Result<(Vec<WorkloadConfig>, Vec<String>), String> {
    // YAML includes JSON.
    let value: Value = yaml_serde::from_str(text).map_err(|error| error.to_string())?;
    let has = |key: &str| value.get(key).is_some();
    let reader = if aiperf::is_config(&value) {
        aiperf::workloads
    } else if has("clients") || has("cohorts") || has("aggregate_rate") {
        blis::workloads
    } else if has("load") && has("data") {
        inference_perf::workloads
    } else if has("rate_type") || has("profile") || has("spec") {
        guidellm::workloads
    } else if has("benchmark") {
        return Err(
            "schemaVersion: is missing: a configuration of aiperf needs it, such as `schemaVersion: '2.0'`".to_owned()
        );
    } else {
        return Err("unknown kind of file: expected a WorkloadSpec of BLIS (`clients`), a configuration of \
                    aiperf (`schemaVersion`, `benchmark`) or inference-perf (`load`, `data`), a scenario of guidellm \
                    (`spec`, `rate_type`), or a folder of ServeGen"
            .to_owned());
    };
    let mut ignored = Vec::new();
    let mut fields = Fields::of("", &value)?;
    let workloads = reader(&mut fields, &mut ignored)?;
    fields.finish(&mut ignored);
    if workloads.is_empty() {
        return Err("it describes no requests".to_owned());
    }
    Ok((workloads, ignored))
}

fn synthetic(name: &str, arrivals: Arrivals, mix: RequestMix) -> WorkloadConfig {
    WorkloadConfig::new(name, WorkloadSource::Synthetic { arrivals, classes: mix.into() })
}

fn open_loop(rate: Curve, gaps: Gaps, limit: Limit) -> Arrivals {
    Arrivals::Varying { rate, gaps, limit }
}

/// Normally distributed lengths, clamped to `min` and `max`.
fn normal(mean: f64, std: f64, min: Option<f64>, max: Option<f64>) -> Result<Lengths, String> {
    let is_length = |value: f64| value.is_finite() && (0.0..=1e7).contains(&value);
    if !(is_length(mean) && is_length(std) && min.is_none_or(is_length) && max.is_none_or(is_length)) {
        return Err(format!("lengths around {mean}, spread by {std}, are out of range: expected 0 to 10000000"));
    }
    if std == 0.0 {
        let value = mean.clamp(min.unwrap_or(1.0), max.unwrap_or(mean).max(min.unwrap_or(1.0)));
        return Ok(Lengths::Drawn(Distribution::Constant { value }));
    }
    let from = min.unwrap_or(1.0).round().max(1.0) as u32;
    let to = max.unwrap_or(mean + 8.0 * std).round().max(f64::from(from)) as u32;
    if to - from > MAX_LENGTHS {
        return Err(format!("lengths from {from} to {to} are too many: expected at most {MAX_LENGTHS}"));
    }
    Histogram::clamped_normal(mean, std, from, to).map(|histogram| Lengths::Counted(Arc::new(histogram)))
}

#[cfg(test)]
mod tests {
    use vcr_cluster::TracePacing;

    use super::*;

    #[test]
    fn a_specification_of_blis_gives_a_workload_for_each_client() {
        let (workloads, ignored) = parse(
            "version: '2'\nseed: 3\naggregate_rate: 10\nhorizon: 60000000\nclients:\n\
             - {id: chat, tenant_id: acme, slo_class: critical, rate_fraction: 0.75, streaming: true, \
             arrival: {process: gamma, cv: 2}, prefix_group: g, prefix_length: 100, \
             input_distribution: {type: gaussian, params: {mean: 100, std_dev: 10, min: 90, max: 120}}, \
             output_distribution: {type: exponential, params: {mean: 50}}, network: {rtt_ms: 5}, \
             reasoning: {multi_turn: {max_rounds: 3, think_time_us: 500000, context_growth: accumulate}}}\n\
             - {id: batch, tenant_id: other, rate_fraction: 0.25, arrival: {process: constant}, \
             lifecycle: {windows: [{start_us: 1000000, end_us: 3000000}]}, \
             input_distribution: {type: constant, params: {value: 7}}, \
             output_distribution: {type: empirical, params: {10: 0.5, 20: 0.5}}}\n",
        )
        .unwrap();
        assert_eq!(ignored, ["clients[0].network", "clients[0].streaming", "seed"]);
        let [chat, batch] = &workloads[..] else { panic!("two workloads") };
        assert_eq!((&*chat.name, chat.tenant, &*batch.name, batch.tenant), ("chat", 1, "batch", 2));
        assert_eq!(chat.slo.as_ref().map(|slo| &*slo.class), Some("critical"));
        let WorkloadSource::Synthetic { arrivals, classes } = &chat.source else { panic!("drawn") };
        let limit = Limit { count: None, duration_ns: Some(60_000_000_000) };
        assert_eq!(*arrivals, open_loop(Curve::constant(7.5), Gaps::Gamma { shape: 0.25 }, limit));
        let mix = &classes[0].mix;
        assert_eq!((mix.shared_prefix_tokens, mix.turns), (100, Distribution::Constant { value: 3.0 }));
        assert_eq!(mix.think_time_ms, Distribution::Constant { value: 500.0 });
        let WorkloadSource::Synthetic { arrivals: Arrivals::Varying { rate, .. }, .. } = &batch.source else {
            panic!("drawn")
        };
        assert_eq!([0, 2, 4].map(|s| rate.level_at(s * 1_000_000_000)), [0.0, 2.5, 0.0]);
    }

    #[test]
    fn stages_of_inference_perf_follow_each_other() {
        let (workloads, ignored) = parse(
            "load: {type: poisson, interval: 5, stages: [{rate: 1, duration: 10}, {rate: 2, duration: 20}]}\n\
             api: completion\nserver: {type: vllm}\ndata:\n  type: shared_prefix\n  shared_prefix: \
             {num_unique_system_prompts: 10, num_users_per_system_prompt: 3, system_prompt_len: 100, \
             question_len: 50, output_len: 20}\n",
        )
        .unwrap();
        assert_eq!(ignored, ["data.shared_prefix.num_users_per_system_prompt", "api", "server"]);
        let WorkloadSource::Synthetic { arrivals: Arrivals::Varying { rate, gaps, .. }, classes } =
            &workloads[0].source
        else {
            panic!("drawn")
        };
        assert_eq!(*gaps, Gaps::Exponential);
        assert_eq!([5, 12, 20, 36].map(|s| rate.level_at(s * 1_000_000_000)), [1.0, 0.0, 2.0, 0.0]);
        assert_eq!((classes[0].mix.shared_prefix_tokens, classes[0].mix.prefix_groups), (100, 10));
    }

    #[test]
    fn rates_of_guidellm_follow_each_other() {
        let (workloads, ignored) = parse(
            r#"{"target": "http://x", "rate_type": "constant", "rate": [2, 4], "max_seconds": 30,
                "data": "prompt_tokens=256,prompt_tokens_stdev=16,output_tokens=64"}"#,
        )
        .unwrap();
        assert_eq!(ignored, ["target"]);
        let starts: Vec<_> = workloads.iter().map(|w| (w.name.as_str(), w.start_ns / 1_000_000_000)).collect();
        assert_eq!(starts, [("constant 2", 0), ("constant 4", 30)]);
        let (closed, _) = parse(
            r#"{"rate_type": "concurrent", "rate": 8, "max_requests": 100, "data": {"prompt_tokens": 5, "output_tokens": 6}}"#,
        )
        .unwrap();
        let limit = Limit { count: Some(100), duration_ns: None };
        let WorkloadSource::Synthetic { arrivals, .. } = &closed[0].source else { panic!("drawn") };
        assert_eq!(*arrivals, Arrivals::ClosedLoop { concurrency: 8, limit });
    }

    #[test]
    fn conversations_of_guidellm_have_branches() {
        let file = |data: &str| {
            format!(
                r#"{{"metadata": {{"name": "x"}}, "spec": {{"backend": {{"kind": "openai_http"}},
                "profile": {{"kind": "concurrent", "streams": 2}}, "data": [{{"kind": "synthetic_text",
                "prompt_tokens": 100, "output_tokens": 10{data}}}],
                "constraints": [{{"kind": "max_requests", "count": 30}}, {{"kind": "max_errors", "count": 1}}]}}}}"#
            )
        };
        let branches = r#", "turns": 4, "first_prompt_tokens": 500, "branches": [
            {"at_turn": 0, "turns": 2, "agent_id": "worker", "merge_after": 2, "first_output_tokens": 7},
            {"at_turn": 1, "turns": 1}, {"at_turn": 0, "turns": 3, "first_prompt_tokens": 40}]"#;
        let (workloads, ignored) = parse(&file(branches)).unwrap();
        assert_eq!(ignored, ["spec.constraints[1].kind", "spec.backend"]);
        let WorkloadSource::Trace { trace, pacing, .. } = &workloads[0].source else { panic!("planned") };
        assert_eq!(*pacing, TracePacing::ClosedLoop { concurrency: 2, speedup: 1.0 });
        assert_eq!((trace.requests.len(), trace.sessions), (30, 3));
        // guidellm 0.8.1 makes the same requests, according to its generator and the history of its graph's nodes.
        let row = |index: usize| {
            let request = &trace.requests[index];
            let waits = trace.dependencies(request).iter().map(|wait| wait.request).collect::<Vec<_>>();
            (request.input_tokens, request.output_tokens, waits)
        };
        let main = [0, 6, 8, 9].map(row);
        let expected = [(500, vec![]), (720, vec![0, 5]), (1450, vec![6, 2, 7]), (1560, vec![8])];
        assert_eq!(main, expected.map(|(prompt, waits)| (prompt, 10, waits)));
        assert_eq!([row(1), row(2)], [(500, 7, vec![0]), (607, 10, vec![1])]);
        assert_eq!([row(3), row(4), row(5)], [(40, 10, vec![0]), (150, 10, vec![3]), (260, 10, vec![4])]);
        assert_eq!(row(7), (500, 10, vec![6]));
        let (workloads, _) =
            parse(&file(r#", "turns": 3, "delay": 2, "prefix_tokens": 64, "prefix_count": 4"#)).unwrap();
        let WorkloadSource::Synthetic { arrivals, classes } = &workloads[0].source else { panic!("drawn") };
        let limit = Limit { count: Some(10), duration_ns: None };
        assert_eq!(*arrivals, Arrivals::ClosedLoop { concurrency: 2, limit });
        let mix = &classes[0].mix;
        assert_eq!((&mix.turns, mix.prefix_groups), (&Distribution::Constant { value: 3.0 }, 4));
        assert_eq!(mix.think_time_ms, Distribution::Constant { value: 2000.0 });
        let error = |data: &str| parse(&file(data)).map(|_| ()).unwrap_err();
        assert_eq!(
            error(r#", "turns": 3, "delay": 2, "first_prompt_tokens": 5"#),
            "data.delay: expected none with branches"
        );
        assert_eq!(
            error(r#", "turns": 2, "branches": [{"at_turn": 1, "turns": 1}]"#),
            "data: invalid branch: expected it to end at turn 1 at most, got 2"
        );
        assert_eq!(error(r#", "branches": [{"turns": 1}]"#), "data.branches[0].at_turn: is missing");
        assert_eq!(error(r#", "tool_call_turns": 1"#), "data.tool_call_turns: is not supported");
    }

    #[test]
    fn phases_of_aiperf_begin_with_a_warm_up() {
        let file = |phases: &str| {
            format!(
                "schemaVersion: '2.0'\nrandomSeed: 42\nbenchmark:\n  model: m\n  endpoint: {{url: http://x}}\n  \
                 dataset: {{type: synthetic, entries: 10, isl: {{mean: 550, stddev: 50}}, osl: 150}}\n{phases}"
            )
        };
        let phases = "  warmup: {type: concurrency, requests: 100, concurrency: 8}\n  profiling: {type: gamma, \
                      duration: 5m, rate: 50.0, concurrency: 64, smoothness: 1.5, rateRamp: 30s, gracePeriod: 60s}\n";
        let (workloads, ignored) = parse(&file(phases)).unwrap();
        assert_eq!(
            ignored,
            [
                "benchmark.dataset.entries",
                "benchmark.profiling.grace_period",
                "benchmark.endpoint",
                "benchmark.model",
                "randomSeed"
            ]
        );
        let [warm, measured] = &workloads[..] else { panic!("two phases") };
        assert_eq!(
            (&*warm.name, warm.is_warm_up, &*measured.name, measured.is_warm_up),
            ("warmup", true, "profiling", false)
        );
        let WorkloadSource::Synthetic { arrivals, .. } = &warm.source else { panic!("drawn") };
        let limit = Limit { count: Some(100), duration_ns: None };
        assert_eq!(*arrivals, Arrivals::ClosedLoop { concurrency: 8, limit });
        let WorkloadSource::Synthetic { arrivals: Arrivals::Varying { rate, gaps, .. }, .. } = &measured.source else {
            panic!("drawn")
        };
        assert_eq!(*gaps, Gaps::Gamma { shape: 1.5 });
        assert_eq!([0, 15, 30, 299, 301].map(|s| rate.level_at(s * 1_000_000_000)), [0.0, 25.0, 50.0, 50.0, 0.0]);
        assert_eq!(measured.client.max_in_flight, Some(64));
        let error = |phases: &str| parse(&file(phases)).map(|_| ()).unwrap_err();
        assert_eq!(
            error(
                "  phases:\n  - {name: a, kind: profiling, type: constant, rate: 1, requests: 5}\n  - {name: b, kind: \
                   profiling, type: constant, rate: 1, requests: 5, seamless: true}\n"
            ),
            "benchmark.phases[1].seamless: expected a `duration` of the phase before"
        );
        assert_eq!(
            error("  profiling: {type: constant, rate: 1}\n"),
            "benchmark.profiling.requests: is missing, as are `sessions` and `duration`"
        );
        assert_eq!(
            error("  phases: [{name: x, requests: 1}]\n"),
            "benchmark.phases[0].kind: is missing: a phase with the name `x`, and not warmup or profiling, needs one of \
             them as its kind"
        );
        assert_eq!(
            error("  phases: [{name: warmup, kind: x, requests: 1}]\n"),
            "benchmark.phases[0].kind: expected warmup or profiling, found `x`"
        );
        let without_version = file(phases).replace("schemaVersion: '2.0'\n", "");
        assert_eq!(
            parse(&without_version).map(|_| ()).unwrap_err(),
            "schemaVersion: is missing: a configuration of aiperf needs it, such as `schemaVersion: '2.0'`"
        );
    }

    #[test]
    fn what_would_be_another_workload_is_refused() {
        let error = |text: &str| parse(text).map(|_| ()).unwrap_err();
        assert!(error("a: 1").starts_with("unknown kind of file: expected"));
        assert!(error("[1]").contains("unknown kind of file"));
        assert_eq!(
            error(
                "aggregate_rate: 1\nnum_requests: 1\nclients: [{rate_fraction: 1, arrival: {process: poisson}, \
                   input_distribution: {type: pareto_lognormal, params: {}}, output_distribution: {type: constant, \
                   params: {value: 1}}}]"
            ),
            "clients[0].input_distribution.type: `pareto_lognormal` is not supported: expected gaussian, exponential, \
             lognormal, constant or empirical"
        );
        assert_eq!(
            error("load: {type: constant, stages: []}\ndata: {type: shareGPT}"),
            "data.type: `shareGPT` is not supported: expected random, synthetic or shared_prefix; for a data set, use \
             dataset(#{ path: ... })"
        );
        assert_eq!(
            error("rate_type: sweep\ndata: prompt_tokens=1,output_tokens=1"),
            "rate_type: `sweep` is a search, not a \
             workload: expected constant, poisson, concurrent, synchronous or throughput"
        );
    }
}
