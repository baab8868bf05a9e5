//! The JSON Schemas of `docs/schemas` describe the files that `vcr run` and `vcr fit` write.

use std::fs;
use std::path::{Path, PathBuf};

use jsonschema::Validator;
use serde_json::{Value, json};
use vcr_tests::{Folder, Serve, root, shipped_guest};

const SCHEMAS: [&str; 10] =
    ["report", "requests", "step-log", "model", "charts", "ticks", "observation", "gate", "plan", "match"];

fn schema(name: &str) -> Value {
    let path = root().join(format!("docs/schemas/{name}.schema.json"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("a schema is JSON")
}

fn validator(name: &str) -> Validator {
    jsonschema::draft202012::new(&schema(name)).expect("it is a schema of draft 2020-12")
}

#[track_caller]
fn assert_valid(validator: &Validator, value: &Value, place: &str) {
    let errors: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{place} does not fit its schema:\n{}\n{value:#}", errors.join("\n"));
}

/// Validates every line of a file, and returns the lines.
#[track_caller]
fn valid_lines(validator: &Validator, text: &str, place: &str) -> Vec<Value> {
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    lines.iter().enumerate().for_each(|(index, line)| assert_valid(validator, line, &format!("{place}:{}", index + 1)));
    lines
}

/// Runs a scenario and validates its files. Returns the report, the requests and the steps.
#[track_caller]
fn valid_outputs(folder: &Folder, args: &[&str], code: i32) -> (Value, Vec<Value>, Vec<Value>) {
    let files = ["--out", "out", "--files", "report,requests,steps,charts"];
    let _ = folder.run(&[args, &files[..]].concat()).ended(code);
    let read = |name: &str| fs::read_to_string(folder.path().join("out").join(name)).expect("it was written");
    let report: Value = serde_json::from_str(&read("report.json")).expect("the report is JSON");
    assert_valid(&validator("report"), &report, "report.json");
    let charts: Value = serde_json::from_str(&read("charts.json")).expect("the charts are JSON");
    assert_valid(&validator("charts"), &charts, "charts.json");
    let requests = valid_lines(&validator("requests"), &read("requests.jsonl"), "requests.jsonl");
    let steps = valid_lines(&validator("step-log"), &read("steps.jsonl"), "steps.jsonl");
    assert!(!requests.is_empty() && !steps.is_empty(), "nothing was validated");
    (report, requests, steps)
}

/// Plans with and without rows.
#[test]
fn plans_fit_their_schema() {
    let folder = Folder::new();
    for (objective, pipeline, code) in [("ttft.p95 < 1s", 1, 0), ("ttft.p95 < 30ms", 1, 1), ("ttft.p95 < 1s", 2, 0)] {
        let load = ["--rate", "20", "--requests", "200", "--prompt-tokens", "800", "--output-tokens", "50"];
        let space = format!(
            "{{tensor_parallel: [1, 16], pipeline_parallel: [{pipeline}], max_num_seqs: [64], max_num_batched_tokens: [8192]}}"
        );
        let asked = ["plan", "--model", "Qwen/Qwen3-8B", "--gpu", "h100", "--latency", "roofline", "--max-gpus", "2"];
        let said = folder.vcr(&[&asked[..], &load, &["--slo", objective, "--space", &space, "--json"]].concat());
        let plan = said.ended(code).json();
        assert_valid(&validator("plan"), &plan, objective);
        assert!(!plan["left_out"].as_array().expect("a list").is_empty(), "16 GPUs are not in a node");
        let stages = &plan["rows"][0]["deployment"]["pipeline_parallel"];
        assert_eq!(*stages, if pipeline == 1 { Value::Null } else { pipeline.into() }, "{plan:#}");
    }
}

/// Schemas describe facts of a target, and allow unknown facts to be absent.
#[test]
fn reports_of_targets_fit_their_schemas() {
    let folder = Folder::with(EVERYWHERE);
    let server = Serve::start(&["--num-gpu-blocks", "501"]);
    for target in ["live".to_owned(), "serve".to_owned(), format!("http://{}", server.address())] {
        let out = if target.starts_with("http") { "foreign" } else { "out" };
        let args = ["--target", &target, "--out", out, "--force", "--files", "report,requests,steps"];
        let _ = folder.run(&args).ended(0);
        let read = |name: &str| fs::read_to_string(folder.path().join(out).join(name)).expect("it was written");
        let report: Value = serde_json::from_str(&read("report.json")).expect("the report is JSON");
        assert_valid(&validator("report"), &report, "report.json");
        assert!(report["runs"][0]["target"]["send_delay_ms"].is_object(), "{target}");
        let requests = valid_lines(&validator("requests"), &read("requests.jsonl"), "requests.jsonl");
        assert_eq!(requests.len(), 6, "{target}");
        let (steps, absent) =
            (folder.path().join(out).join("steps.jsonl"), &report["runs"][0]["target"]["absent_files"]);
        if out == "foreign" {
            assert!(!steps.exists() && absent["steps.jsonl"].is_string(), "{target}: {absent}");
        } else {
            let steps = valid_lines(&validator("step-log"), &read("steps.jsonl"), "steps.jsonl");
            assert!(!steps.is_empty() && absent.is_null(), "{target}: {absent}");
        }
    }
}

/// A run that every target can carry out.
const EVERYWHERE: &str = r#"
run(#{
    cluster: cluster(#{ engines: pool(#{ engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "1ms" }) }) }),
    workloads: [
        burst(#{ name: "one", count: 3, prompt_tokens: 32, output_tokens: 4 }),
        burst(#{ name: "two", count: 3, prompt_tokens: 32, output_tokens: 4 }),
    ],
});
"#;

/// A request with an ID.
const TRACE: &str =
    r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2], "request_id": "first"}"#;

/// Runs that together write every key that needs no guest.
const EVERYTHING: &str = r#"//! Claim: every key is described.
let size = param("size", 40);
let model = fixed(#{ prefill: "20ms", decode: "10ms" });
let chat = poisson(#{ name: "chat", rate: "50/s", count: size, prompt_tokens: 300, output_tokens: 12, turns: 2, shared_prefix_tokens: 64 });
let load = burst(#{ name: "load", count: 60, prompt_tokens: 200, output_tokens: 40 });

let apart = run(#{
    name: "apart", retries: 1, workloads: [chat],
    cluster: cluster(#{
        prefill: pool(#{ engines: 2, latency: model }),
        decode: pool(#{ engines: 2, latency: model }),
        link: link(#{ bandwidth: "1GB/s", kv_bytes_per_token: "4KiB" }),
        conditional: conditional(#{ eff_isl_threshold: 50 }),
    }),
    faults: [crash(#{ at: "200ms", pool: "decode", restart_after: "100ms" }), crash(#{ at: "400ms", pool: "prefill", engine: 1 }),
             slow_down(#{ at: "100ms", pool: "prefill", factor: 2.0, duration: "1s" })],
});
let small = engine(#{ num_gpu_blocks: 40, max_model_len: 600, async_scheduling: true, num_speculative_tokens: 2, acceptance_rates: [0.7, 0.4] });
run(#{
    name: "preempts", workloads: [load, burst(#{ name: "too long", count: 1, prompt_tokens: 700, output_tokens: 1 })],
    cluster: cluster(#{ engines: pool(#{ engine: small, latency: model }) }), faults: [crash(#{ at: "300ms", restart_after: "50ms" })],
});
run(#{
    name: "tiers", workloads: [poisson(#{ rate: "20/s", count: 30, prompt_tokens: 100, output_tokens: 20, turns: 3 })],
    cluster: cluster(#{ engines: pool(#{ latency: model, engine: engine(#{ num_gpu_blocks: 60,
        kv_tiers: kv_tiers(#{ host_blocks: 120, disk_blocks: 500, kv_bytes_per_token: "1KiB" }) }) }) }),
});
run(#{
    name: "ranks", workloads: [load],
    cluster: cluster(#{ engines: pool(#{ engines: 2, data_parallel_size: 2, data_parallel_barrier: true, latency: model }) }),
});
run(#{
    name: "scales", workloads: [burst(#{ count: 200, over: "1s", prompt_tokens: 200, output_tokens: 40 })],
    cluster: cluster(#{ engines: pool(#{ latency: model, router: prefix_affinity(#{ max_waiting: 1 }),
        engine: engine(#{ max_num_seqs: 4 }), autoscale: autoscale(#{ policy: "target_requests", target: 2, interval: "100ms", max: 2 }) }) }),
});
run(#{ name: "sglang", workloads: [load], cluster: cluster(#{ engines: pool(#{ latency: model, engine: engine(#{ engine_type: "sglang" }) }) }) });
run(#{ name: "overheads", workloads: [load], cluster: cluster(#{ engines: pool(#{ latency: model, engine: engine(#{ overheads: #{ arrival: "5ms" } }) }) }) });
run(#{
    name: "clients", cluster: cluster(#{ engines: pool(#{ latency: model, engine: engine(#{ max_num_seqs: 4, max_loras: 2 }) }) }),
    workloads: [constant(#{ rate: "50/s", count: 60, prompt_tokens: 200, output_tokens: 40, timeout: "500ms", deadline: "30s", retry: #{ max_attempts: 2 },
        cancel: #{ share: 0.2, after_tokens: 5 }, max_in_flight: 20, adapter: 1, slo: #{ class: "quick", ttft: "50ms" } })],
});
run(#{
    name: "left", workloads: [burst(#{ count: 8, prompt_tokens: 500, output_tokens: 4, first_token_timeout: "1ms" })],
    cluster: cluster(#{
        prefill: pool(#{ latency: model }), decode: pool(#{ latency: model }),
        link: link(#{ prefill_cancel_until: "never" }),
    }),
});
run(#{
    name: "moves", retries: 1, workloads: [chat],
    cluster: cluster(#{ engines: pool(#{ engines: 2, latency: model, router: sticky(#{}) }) }),
    faults: [crash(#{ at: "100ms" })],
});
run(#{ name: "windows", workloads: [load], cluster: cluster(#{ engines: pool(#{ latency: model, engine: engine(#{ kv_cache_groups: ["full", "sliding_window:64"] }) }) }) });
run(#{
    name: "sees", cluster: cluster(#{ engines: pool(#{ latency: model, engine: engine(#{ encoder_cache_size: 64 }) }) }),
    workloads: [poisson(#{ rate: "20/s", count: 20, prompt_tokens: 100, output_tokens: 20, images: #{ tokens: 32, distinct: 10 } })],
});
run(#{ name: "named", workloads: [trace(#{ path: "trace.jsonl" })], cluster: cluster(#{ engines: pool(#{ latency: model }) }) });
run(#{ name: "cut", max_time: "50ms", workloads: [load], cluster: cluster(#{ engines: pool(#{ latency: model }) }) });
expect(apart, "ttft", "p99 < 1ms");
expect(apart, "kv_load", "p50 < 1s");
compare(apart, apart, #{ resamples: 10 });
check("a condition", true);
check("another one", true, "as seen");
"#;

#[test]
fn outputs_of_runs_fit_their_schemas() {
    let folder = Folder::with(EVERYTHING);
    folder.write("trace.jsonl", TRACE);
    let (report, requests, steps) = valid_outputs(&folder, &["-e", "size=30"], 1);
    // Each part of the scenario must have its effect.
    let run = |name: &str| {
        let runs = report["runs"].as_array().expect("an array of runs");
        runs.iter().find(|run| run["name"] == name).unwrap_or_else(|| panic!("unknown run `{name}`"))
    };
    let counter = |name: &str, counter: &str| run(name)["metrics"]["counters"][counter].as_u64().unwrap_or(0);
    assert!(
        run("apart")["links"].is_array() && run("scales")["pools"].is_array() && run("scales")["scaling"].is_array()
    );
    assert!(run("ranks")["engines"][3]["rank"] == 1 && run("ranks")["engines"][0]["waiting"].is_number());
    assert!(run("tiers")["engines"][0]["kv_tiers"]["loads"].as_u64() > Some(0));
    for (name, key) in [
        ("apart", "stayed_with_decode"),
        ("left", "abandoned_prompts"),
        ("moves", "moved_sessions"),
        ("apart", "retries"),
        ("preempts", "preemptions"),
        ("preempts", "rejected"),
        ("preempts", "failed"),
        ("tiers", "host_cached_tokens"),
        ("scales", "shed"),
        ("clients", "timeouts"),
        ("clients", "cancelled"),
        ("clients", "client_retries"),
        ("clients", "dropped"),
        ("clients", "wasted_prompt_tokens"),
        ("sees", "encoder_items"),
    ] {
        assert!(counter(name, key) > 0, "run `{name}` has no {key}");
    }
    let has = |lines: &[Value], key: &str| lines.iter().any(|line| line.get(key).is_some());
    let missing = |lines: &[Value], name: &str| -> Vec<String> {
        let schema = schema(name);
        let keys = schema["properties"].as_object().expect("a schema has properties").keys().cloned();
        keys.filter(|key| !has(lines, key)).collect()
    };
    assert_eq!(missing(&requests, "requests"), [""; 0], "keys that no request has");
    // Only recordings of vLLM contain proposed drafts, and the effects of pauses, sessions, structured outputs and a KV
    // connector.
    let of_recordings = ["drafts", "gram", "inv", "kv", "look", "more", "moves", "pause", "sd", "skip", "sync", "xc"];
    assert_eq!(missing(&steps, "step-log"), of_recordings, "keys that no step has");
    for status in ["completed", "rejected", "shed", "failed", "unfinished"] {
        assert!(requests.iter().any(|request| request["status"] == status), "no request is {status}");
    }
}

#[test]
fn outputs_of_a_run_with_guests_fit_their_schemas() {
    let names = ["roofline", "chaos", "thermal"];
    let guests: Vec<_> = names.iter().filter_map(|name| shipped_guest(name)).collect();
    if guests.len() < names.len() {
        return;
    }
    let config = |name: &str| -> Value {
        let text = fs::read_to_string(root().join("guests").join(name).join("config.json")).expect("an example config");
        serde_json::from_str(&text).expect("the config is JSON")
    };
    let guest = |index: usize, config: &Value| {
        let path = guests[index].display();
        format!(r#"guest(#{{ path: "{path}", config: parse_json(`{config}`), fallback: FALLBACK }})"#)
    };
    let rules = json!({"rules": [{"match": {}, "after_tokens": 3, "every": 4, "action": "fail_request"}]});
    let model = guest(2, &config("thermal")).replace("FALLBACK", r#"fixed(#{ step: "10ms" })"#);
    let failures = guest(1, &rules).replace("FALLBACK", r#""none""#);
    let scenario = format!(
        r#"run(#{{
    workloads: [burst(#{{ count: 20, prompt_tokens: 500, output_tokens: 10 }})],
    cluster: cluster(#{{ engines: pool(#{{ engines: 2, latency: {model}, failures: {failures} }}) }}),
}});"#
    );
    let (report, requests, _) = valid_outputs(&Folder::with(&scenario), &[], 0);
    assert_eq!(report["guests"].as_array().map(Vec::len), Some(2), "{:#}", report["guests"]);
    assert!(report["guests"].to_string().contains("gauges"), "no guest has reported a gauge");
    assert!(requests.iter().any(|request| request["status"] == "failed"));
}

#[test]
fn outputs_of_a_drawn_run_fit_their_schemas() {
    let folder = Folder::with(
        r#"let c = cluster(#{ engines: pool(#{ latency: fitted(#{ path: "model.json" }) }) });
let r = run(#{ cluster: c, workloads: [burst(#{ count: 4, prompt_tokens: 100, output_tokens: 10 })] });
expect(r, "ttft", "p99.9 < 1s", #{ confidence: 0.9 });
expect(r, "goodput{ttft<1s}", "ratio > 90%", #{ confidence: 0.9 });
"#,
    );
    let model = json!({
        "format": "vcr.fitted/1",
        "step": {"coefficients": {"step": 1e7}, "range": {"min_decode_tokens": 1, "max_decode_tokens": 1,
            "max_decode_context_tokens": 1, "max_prefill_tokens": 1, "max_prefill_requests": 1,
            "max_prefill_context_tokens": 0}},
        "uncertainty": {"parameters": ["step"], "covariance": [[1e10]]},
    });
    folder.write("model.json", model.to_string());
    let (report, _, _) = valid_outputs(&folder, &["--uncertainty", "5"], 0);
    let run = &report["runs"][0];
    assert!(run["uncertainty"]["metrics"]["goodput{ttft<1s}"]["ratio"]["low"].is_number(), "{run:#}");
    assert!(run["outside_fitted_range"].as_f64() > Some(0.0) && report["assertions"][0]["held_share"] == 1.0);
}

#[test]
fn outputs_of_a_stopped_run_fit_their_schemas() {
    let endless = r#"run(#{
    workloads: [closed_loop(#{ concurrency: 4, duration: "50000h", prompt_tokens: 100, output_tokens: 50 })],
    cluster: cluster(#{ engines: pool(#{ latency: fixed(#{ step: "10ms" }) }) }),
});"#;
    let folder = Folder::with(endless);
    let _ = folder.run(&["--timeout", "300ms", "--out", "out", "--files", "report"]).ended(124);
    let text = fs::read_to_string(folder.path().join("out/report.json")).expect("it was written");
    let report: Value = serde_json::from_str(&text).expect("the report is JSON");
    assert_valid(&validator("report"), &report, "report.json");
    assert_eq!((&report["partial"]["stopped_by"], &report["runs"][0]["partial"]), (&"--timeout".into(), &true.into()));
}

#[test]
fn models_of_fits_fit_their_schema() {
    let folder = Folder::new();
    let _ = folder.vcr(&["inspect", "gen-demo", "-o", "demo.jsonl", "--requests", "60"]).ended(0);
    let fit =
        ["fit", "demo.jsonl", "--engine", "num_gpu_blocks: 27_000", "--shape", "llama-3.1-8b", "--part", "0..0.9"];
    // The measured times are made up, so it does not matter whether a model explains them.
    let _ = folder.vcr(&[&fit[..], &["--folds", "1", "--force", "-o", "model.json"]].concat()).ended(0);
    let text = fs::read_to_string(folder.path().join("model.json")).expect("it was written");
    let mut model: Value = serde_json::from_str(&text).expect("a model is JSON");
    let validator = validator("model");
    assert_valid(&validator, &model, "model.json");
    assert!(model["quality"][0].is_object() && model["provenance"]["inputs"][0]["part"].is_array(), "{model:#}");
    model["step"]["noise"] = json!({"decode": vec![1.0; 13], "prefill": vec![1.0; 13]});
    model["failed_checks"] = json!(["a text"]);
    assert_valid(&validator, &model, "model.json with more");
    model["step"]["coefficients"]["step"] = json!(-1);
    assert!(!validator.is_valid(&model), "a negative price");
}

#[test]
fn recordings_of_the_scheduler_fit_the_schema_of_step_logs() {
    let validator = validator("step-log");
    let mut lines = Vec::new();
    let entries = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.expect("it can be listed").path()).collect::<Vec<_>>()
    };
    // Recordings of live engines have another layout.
    let is_live = |folder: &PathBuf| ["h100", "vllm-cpu", "vllm-gpu"].iter().any(|name| folder.ends_with(name));
    let folders = entries(&root().join("tests/recordings")).into_iter().filter(|folder| !is_live(folder));
    for path in folders.flat_map(|folder| entries(&folder)).map(|folder| folder.join("steps.jsonl.gz")) {
        let Ok(packed) = fs::File::open(&path) else { continue };
        let text = std::io::read_to_string(flate2::read::MultiGzDecoder::new(packed)).expect("it is packed text");
        // Validating every line of every recording would take minutes.
        let text: Vec<&str> = text.lines().take(60).collect();
        lines.extend(valid_lines(&validator, &text.join("\n"), &path.display().to_string()));
    }
    assert!(lines.len() > 10_000, "only {} lines were validated", lines.len());
    for key in ["drafts", "win", "moves", "more", "gram", "enc", "pause", "kv"] {
        assert!(lines.iter().any(|line| line.get(key).is_some()), "no recording has `{key}`");
    }
    let has_error = |line: &Value| line["fin"].to_string().contains("\"error\"");
    assert!(lines.iter().any(has_error), "no request of a recording ended with an error");
}

/// Collects all properties of a schema with their paths.
fn properties(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    match schema {
        Value::Object(map) => {
            for (name, property) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
                found.push((format!("{path}/{name}"), property.clone()));
            }
            map.iter().for_each(|(key, value)| properties(value, &format!("{path}/{key}"), found));
        }
        Value::Array(items) => items.iter().for_each(|item| properties(item, path, found)),
        _ => {}
    }
}

#[test]
fn every_property_is_described_and_unknown_keys_are_refused() {
    for name in SCHEMAS {
        let schema = schema(name);
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name}");
        let mut found = Vec::new();
        properties(&schema, name, &mut found);
        assert!(found.len() > 6, "{name}");
        for (path, property) in found {
            let is_described = property["description"].is_string() || property["$ref"].is_string();
            assert!(is_described, "{path} has no description");
        }
        assert_eq!(schema["additionalProperties"], false, "{name}");
        assert!(!validator(name).is_valid(&json!({"surprise": 1})), "{name}");
    }
}

#[test]
fn observations_and_decisions_fit_their_schemas() {
    let folder = Folder::new();
    let side = |is_candidate: bool| {
        let lines = (0..240).map(|index: u64| {
            let mut line = json!({"observation": 1, "request_id": format!("r{index}"), "content": format!("c{index}"), "ok": true,
                "latency_ns": 9_000_000, "event_ns": [1000, 2000, 2500], "event_tokens": [1, 1, 2], "token_ids": [index, 4],
                "text": "text", "fingerprint": format!("{index}"), "vector": [0.5], "model": "m", "model_version": "1",
                "backend": "vllm", "backend_version": "0.33", "accelerator": "h100", "route": "east", "replica": "0",
                "scheduler": "fcfs", "tenant": if index.is_multiple_of(2) { "even" } else { "odd" }, "queue_depth": 3,
                "kv_usage": 0.25, "provenance": "here"});
            if is_candidate && index < 30 {
                line["fingerprint"] = "other".into();
                line["latency_ns"] = 90_000_000.into();
            }
            if is_candidate && index >= 200 {
                line["ok"] = false.into();
                line["error"] = "timeout".into();
            }
            format!("{line}\n")
        });
        lines.collect::<String>()
    };
    folder.write("before.jsonl", side(false));
    folder.write("after.jsonl", side(true));
    let said = folder.vcr(&["mirror", "after.jsonl", "-o", "-"]).ended(0);
    assert_eq!(valid_lines(&validator("observation"), &said.stdout, "observations.jsonl").len(), 240);
    let gate = ["gate", "--baseline", "before.jsonl", "--candidate", "after.jsonl", "--json"];
    let report = folder.vcr(&gate).ended(20).json();
    assert_valid(&validator("gate"), &report, "gate.json");
    assert!(report["triage"][0]["examples"][0]["difference"].is_object(), "{report:#}");
    // A line that the reader refuses is also invalid in the schema.
    let line: Value = serde_json::from_str(side(false).lines().next().expect("a line")).expect("JSON");
    for (key, value) in
        [("observation", json!(2)), ("latency_ns", json!(-1)), ("kv_usage", json!(2)), ("error", json!("x"))]
    {
        let mut line = line.clone();
        line[key] = value;
        assert!(!validator("observation").is_valid(&line), "{key}");
    }
}
