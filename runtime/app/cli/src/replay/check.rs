//! Dynamo's rules for combinations of options.

use vcr_trace::Format;

use super::args::{ReplayArgs, ReplayMode, RouterMode};
use super::{Refusal, online};

/// Checks all rules and reports all problems at once.
pub(crate) fn check(args: &ReplayArgs) -> Result<(), Refusal> {
    let mut lines = Vec::new();
    let mut problem = |text: &str| lines.push(text.to_owned());
    sources(args, &mut problem);
    formats(args, &mut problem);
    workers(args, &mut problem);
    routers(args, &mut problem);
    refused(args, &mut problem);
    if args.run.replay_mode == ReplayMode::Online {
        online::refuse(args, &mut problem);
    }
    if !args.sweep.sweeps.is_empty() && args.output.telemetry.is_some() {
        problem("--telemetry cannot be combined with --sweep: it is of one run");
    }
    if !args.sweep.sweeps.is_empty() && (args.output.report_json.is_some() || args.output.report_jsonl.is_some()) {
        problem("--report-json and --report-jsonl cannot be combined with --sweep; use --sweep-out");
    }
    if args.output.capacity && args.output.report_json.is_none() && !args.output.json {
        problem("--capacity is for the report: give --report-json or --json, too");
    }
    if lines.is_empty() { Ok(()) } else { Err(Refusal::input(lines.join("\n"))) }
}

fn sources(args: &ReplayArgs, problem: &mut dyn FnMut(&str)) {
    let synthetic = &args.synthetic;
    let given =
        [synthetic.input_tokens.is_some(), synthetic.output_tokens.is_some(), synthetic.request_count.is_some()];
    let has_trace = !args.trace_files.is_empty();
    if has_trace && given.contains(&true) {
        problem("give either a trace, or --input-tokens, --output-tokens and --request-count; not both");
    } else if !has_trace && given != [true; 3] {
        problem("give either a trace, or all of --input-tokens, --output-tokens and --request-count");
    }
    let pacings = [
        args.trace.replay_concurrency.is_some(),
        synthetic.request_rate.is_some(),
        synthetic.arrival_interval_ms.is_some(),
    ];
    let count = pacings.iter().filter(|given| **given).count();
    if !has_trace && given == [true; 3] && count != 1 {
        problem(
            "a synthetic workload needs exactly one of --replay-concurrency, --request-rate, --arrival-interval-ms",
        );
    }
    if args.trace_files.len() > 1 && args.trace.trace_format.is_some_and(|format| !format.has_many_files()) {
        problem("several trace files: expected one, except with --trace-format dynamo or weka");
    }
    if !has_trace && args.profile.lanes.is_some() {
        problem("--lanes is for traces; use --replay-concurrency");
    }
    if has_trace {
        let only_synthetic = [
            (pacings[1], "--request-rate"),
            (pacings[2], "--arrival-interval-ms"),
            (synthetic.turns_per_session != 1, "--turns-per-session"),
            (synthetic.shared_prefix_ratio != 0.0, "--shared-prefix-ratio"),
            (synthetic.num_prefix_groups != 0, "--num-prefix-groups"),
            (synthetic.inter_turn_delay_ms != 0.0, "--inter-turn-delay-ms"),
        ];
        for (_, name) in only_synthetic.iter().filter(|(given, _)| *given) {
            problem(&format!("{name} is for synthetic workloads; remove it, or the trace"));
        }
    }
}

/// Checks the rules of trace formats.
fn formats(args: &ReplayArgs, problem: &mut dyn FnMut(&str)) {
    let trace = &args.trace;
    let is_agentic = trace.trace_format.is_some_and(Format::needs_closed_loop);
    if is_agentic && trace.replay_concurrency.is_none() && args.profile.lanes.is_none() {
        problem("--trace-format applied_compute_agentic needs --replay-concurrency or --lanes: it has no timestamps");
    }
    if !is_agentic && (trace.trace_shared_prefix_ratio != 0.0 || trace.trace_num_prefix_groups != 0) {
        problem(
            "--trace-shared-prefix-ratio and --trace-num-prefix-groups are for --trace-format applied_compute_agentic",
        );
    }
}

fn workers(args: &ReplayArgs, problem: &mut dyn FnMut(&str)) {
    let cluster = &args.cluster;
    for (count, name) in [
        (cluster.num_workers, "--num-workers"),
        (cluster.num_prefill_workers, "--num-prefill-workers"),
        (cluster.num_decode_workers, "--num-decode-workers"),
    ] {
        if count == 0 {
            problem(&format!("invalid {name}: expected at least 1, got 0"));
        }
    }
    let (prefill, decode) = (cluster.prefill_engine_args.is_some(), cluster.decode_engine_args.is_some());
    if prefill != decode {
        problem("--prefill-engine-args and --decode-engine-args must be given together");
    }
    if prefill && decode {
        if cluster.num_workers > 1 {
            problem(
                "--num-workers is for aggregated workers; use --num-prefill-workers and \
                     --num-decode-workers",
            );
        }
        if cluster.extra_engine_args.is_some() {
            problem(
                "--extra-engine-args is for aggregated workers; use --prefill-engine-args and \
                     --decode-engine-args",
            );
        }
    } else if cluster.num_prefill_workers > 1 || cluster.num_decode_workers > 1 {
        problem(
            "--num-prefill-workers and --num-decode-workers need --prefill-engine-args and --decode-engine-args; \
                 otherwise use --num-workers",
        );
    }
}

fn routers(args: &ReplayArgs, problem: &mut dyn FnMut(&str)) {
    let router = &args.router;
    if router.router_mode != RouterMode::KvRouter {
        let only_kv = [
            (router.router_config.is_some(), "--router-config"),
            (router.router_policy_config.is_some(), "--router-policy-config"),
            (router.model_name.is_some(), "--model-name"),
            (router.kv_event_lag_ms.is_some(), "--kv-event-lag-ms"),
            (router.exact_kv_events, "--exact-kv-events"),
            (router.router_replicas > 1, "--router-replicas"),
            (router.router_sync_ms.is_some(), "--router-sync-ms"),
        ];
        // A sweep over router modes has only some runs with the KV router.
        let is_swept = args.sweep.sweeps.iter().any(|sweep| sweep.starts_with("router_mode="));
        for (_, name) in only_kv.iter().filter(|(given, _)| *given && !is_swept) {
            problem(&format!("{name} is for --router-mode kv_router"));
        }
    } else if router.router_sync_ms.is_some() && router.router_replicas == 1 {
        problem("--router-sync-ms needs --router-replicas above 1");
    }
}

fn refused(args: &ReplayArgs, problem: &mut dyn FnMut(&str)) {
    let refused = &args.refused;
    let aic = "the router's estimate of prefill load is not simulated";
    let planner = "the planner is not simulated";
    for (given, name, why) in [
        (&refused.planner_config, "--planner-config", planner),
        (&refused.benchmark_granularity, "--benchmark-granularity", planner),
        (&refused.aic_backend, "--aic-backend", aic),
        (&refused.aic_system, "--aic-system", aic),
        (&refused.aic_model_path, "--aic-model-path", aic),
    ] {
        if given.is_some() {
            problem(&format!("{name}: {why}; remove it"));
        }
    }
}
