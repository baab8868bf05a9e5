//! `vcr inspect pressure`: shares calculated by hand, and reports with missing fields.

use std::fs;

use serde_json::{Value, json};
use vcr_tests::Folder;

/// Report of a run of 100 ms with two engines in one pool, and a link that is busy for a quarter of the time.
fn report(links: &Value, metrics: &Value) -> String {
    let engine =
        |engine: u32, kv_peak_usage: f64| json!({"pool": "engines", "engine": engine, "kv_peak_usage": kv_peak_usage});
    let run = json!({"name": "one", "duration_ms": 100, "metrics": metrics, "links": links,
        "engines": [engine(0, 0.5), engine(1, 0.75)]});
    json!({"vcr_version": "1", "scenario": "s.rhai", "passed": true, "runs": [run]}).to_string()
}

fn step(engine: u32, number: u64, duration_ms: f64, running: u64, why: Option<&str>) -> Value {
    let mut line = json!({"of": "one", "pool": "engines", "engine": engine, "i": number, "s": number, "u": number,
        "start_ms": 0, "duration_ms": duration_ms, "run": (0..running).collect::<Vec<_>>(), "wait": 0});
    if let Some(why) = why {
        line["why"] = why.into();
        line["wait"] = 3.into();
    }
    line
}

/// Of 200 ms of engine time, 60 ms lack slots, 20 ms lack tokens, and 30 ms lack blocks.
fn steps() -> String {
    let mut lines = [
        step(0, 0, 60.0, 4, Some("cap")),
        step(0, 1, 10.0, 2, Some("budget")),
        step(0, 2, 10.0, 1, Some("no chunking")),
        step(0, 3, 5.0, 1, None),
        step(1, 0, 25.0, 2, Some("blocks")),
        step(1, 1, 5.0, 1, Some("preemption")),
        step(1, 2, 40.0, 4, None),
    ];
    let settings = json!({"max_num_active_seqs": null, "max_num_seqs": 4, "max_num_batched_tokens": 512,
        "num_blocks": 80, "async_scheduling": false});
    for line in [0, 4] {
        lines[line]["settings"] = settings.clone();
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Samples at 0, 25, 50 and 75 ms.
fn charts() -> String {
    let line = |name: &str, waiting: [u64; 4], kv_usage: [f64; 4]| {
        json!({"pool": "engines", "name": name, "engines": 1, "running": [1, 2, 3, 4], "waiting": waiting, "kv_usage": kv_usage,
            "prefill_tokens": [0, 0, 0, 0], "decode_tokens": [0, 0, 0, 0], "preemptions": [0, 0, 0, 0]})
    };
    let engines =
        [line("engines 0", [0, 1, 0, 0], [0.0, 0.5, 0.5, 0.2]), line("engines 1", [0, 0, 1, 0], [0.0, 0.1, 0.7, 0.4])];
    let run = json!({"name": "one", "distributions": [], "incidents": [], "phases": [], "slowest": [],
        "timeline": {"interval_ms": 25.0, "engines": engines, "router_queue_ms": 50.0}});
    json!({"schema_version": 1, "runs": [run]}).to_string()
}

fn folder() -> Folder {
    let folder = Folder::new();
    fs::create_dir(folder.path().join("out")).expect("the folder is writable");
    folder.write("out/report.json", report(&json!([]), &json!({})));
    folder.write("out/steps.jsonl", steps());
    folder.write("out/charts.json", charts());
    folder
}

fn run(folder: &Folder) -> Value {
    folder.vcr(&["inspect", "pressure", "out", "--json"]).ended(0).json()["runs"][0].clone()
}

fn bound<'a>(of: &'a Value, name: &str) -> &'a Value {
    let mut bounds = of["bounds"].as_array().expect("bounds").iter();
    bounds.find(|bound| bound["bound"] == name).unwrap_or_else(|| panic!("no {name} in {of:#}"))
}

#[test]
fn shares_of_a_folder_are_those_of_its_steps() {
    let folder = folder();
    let run = run(&folder);
    let pool = &run["pools"][0];
    for (name, share, lift) in [
        ("sequences", 0.3, "raise `max_num_seqs` above 4, or add engines"),
        ("tokens", 0.1, "raise `max_num_batched_tokens` above 512, or add engines"),
        ("blocks", 0.15, "raise `num_gpu_blocks` above 80, shorten prompts and outputs, or add engines"),
    ] {
        let bound = bound(pool, name);
        assert_eq!((&bound["share"], &bound["lift"]), (&json!(share), &json!(lift)), "{name}");
    }
    assert_eq!(pool["queue_pressure"]["share"], 0.55, "110 of 200 ms");
    assert_eq!(pool["active_capacity"]["share"], 0.5, "60 + 40 of 200 ms with 4 running");
    assert_eq!((&pool["peak_queued"], &pool["peak_active"], &pool["engines"]), (&json!(3), &json!(4), &json!(2)));
    assert_eq!(pool["kv_usage_mean"]["share"], 0.3, "2.4 in 8 samples");
    assert_eq!(pool["kv_usage_peak"]["share"], 0.75);
    let curve = pool["curve"].as_array().expect("a curve");
    assert_eq!(curve.len(), 4);
    assert_eq!(
        curve[2],
        json!({"from": 50.0, "queued_mean": 1.0, "queued_max": 1, "active_mean": 6.0, "active_max": 6,
        "kv_usage_mean": 0.6, "kv_usage_max": 0.6})
    );
    let router = bound(&run, "router_queue");
    assert_eq!((&router["share"], router["lift"].is_string()), (&json!(0.5), true), "50 of 100 ms");
    let link = bound(&run, "link");
    assert_eq!((&link["share"], link.get("lift")), (&json!(0.0), None));
    let said = folder.vcr(&["inspect", "pressure", "out", "out/report.json"]).ended(0);
    assert_eq!(said.stdout.matches("bound by sequences").count(), 2, "a folder and its report are the same");
    assert!(said.stdout.contains("55.0%; steps left at most 3 waiting in an engine"), "{}", said.stdout);
    let below = said.stdout.split_once("\n\n  before and between pools\n").expect("a heading").1;
    assert!(below.trim_start().starts_with("bound by link"), "{}", said.stdout);
}

#[test]
fn requests_that_wait_for_the_next_step_are_told_from_those_that_a_step_left_waiting() {
    let folder = folder();
    let mut idle = step(0, 0, 10.0, 0, None);
    idle["settings"] = json!({"max_num_seqs": 4});
    folder.write("out/steps.jsonl", format!("{idle}\n"));
    let said = folder.vcr(&["inspect", "pressure", "out"]).ended(0);
    assert!(said.stdout.contains("no step left a request waiting: queued requests waited for"), "{}", said.stdout);
    fs::remove_file(folder.path().join("out/steps.jsonl")).expect("it is there");
    let said = folder.vcr(&["inspect", "pressure", "out"]).ended(0);
    assert!(!said.stdout.contains("at most"), "{}", said.stdout);
}

/// With async scheduling, a line applies an earlier schedule than the one it makes.
#[test]
fn a_step_has_the_reason_of_its_own_schedule() {
    let folder = folder();
    let mut ahead = [step(0, 1, 30.0, 4, Some("cap")), step(0, 2, 70.0, 1, None)];
    ahead[0]["u"] = 0.into();
    ahead[1]["u"] = 1.into();
    let mut first = step(0, 0, 0.0, 1, Some("blocks"));
    first["settings"] = json!({"max_num_seqs": 4, "async_scheduling": true});
    for key in ["u", "start_ms", "duration_ms"] {
        first.as_object_mut().expect("an object").remove(key);
    }
    folder.write("out/steps.jsonl", format!("{first}\n{}\n{}\n", ahead[0], ahead[1]));
    let run = run(&folder);
    let share = |name: &str| bound(&run["pools"][0], name)["share"].clone();
    assert_eq!((share("blocks"), share("sequences")), (json!(0.15), json!(0.35)), "30 and 70 of 200 ms");
}

#[test]
fn what_a_report_does_not_say_is_unknown_with_the_reason() {
    let folder = folder();
    let unknown = |of: &Value, reason: &str| {
        assert!(of["share"].is_null() && of["unknown"].as_str().is_some_and(|why| why.contains(reason)), "{of}");
    };
    folder.write("out/report.json", report(&json!([{"bytes": 9, "utilisation": 0.25}]), &json!({})));
    let one = run(&folder);
    assert_eq!(bound(&one, "link")["share"], 0.25);
    assert!(bound(&one, "link")["lift"].as_str().is_some_and(|lift| lift.contains("`bandwidth`")));
    folder.write("out/report.json", report(&json!([]), &json!({})));
    folder.write("out/charts.json", charts().replace(",\"router_queue_ms\":50.0", ""));
    unknown(bound(&run(&folder), "router_queue"), "router_queue_ms");
    folder.write("out/charts.json", charts());
    for file in ["charts.json", "steps.jsonl"] {
        let path = folder.path().join("out").join(file);
        let text = fs::read_to_string(&path).expect("it is there");
        fs::remove_file(&path).expect("it is ours");
        let one = run(&folder);
        let pool = &one["pools"][0];
        match file {
            "charts.json" => {
                unknown(&pool["kv_usage_mean"], "time line");
                unknown(bound(&one, "router_queue"), "time line");
            }
            _ => {
                unknown(bound(pool, "blocks"), "--files report,steps,charts,requests");
                unknown(&pool["queue_pressure"], "no steps");
                assert_eq!(bound(&one, "router_queue")["share"], 0.5);
            }
        }
        fs::write(&path, text).expect("it is ours");
    }
}

/// Requests arrive ten times as fast as one engine serves them. Each takes a second.
const OVERLOAD: &str = r#"
let run_at = |rate| {
    let p = pool(#{ engine: engine(#{ max_num_seqs: 1, num_gpu_blocks: 101 }), latency: fixed(#{ step: "10ms" }) });
    run(#{ name: rate, cluster: cluster(#{ engines: p }), workloads: [
        constant(#{ rate: rate, count: 60, prompt_tokens: 400, output_tokens: 100 }),
    ] })
};
for rate in ["0.5/s", "10/s"] {
    let seen = saturation(run_at.call(rate), #{ window: "2s", final_window: "30s", threshold: "4s" });
    print(`${rate} backlog ${seen["backlog-drift"].level} queue ${seen["queue-growth"].level} threshold ${seen["threshold"].level} kv ${seen["kv-pressure"].level}`);
}
check("half the rate is stable", saturation(run_at.call("0.4/s"))["peak-rate"].level == "STABLE");
"#;

#[test]
fn detectors_tell_an_overload_from_a_load() {
    let folder = Folder::with(OVERLOAD);
    let said = folder.run(&["--out", "out", "--files", "report,charts,requests"]).ended(0);
    assert!(said.stderr.contains("0.5/s backlog STABLE queue STABLE threshold STABLE kv STABLE"), "{}", said.stderr);
    assert!(said.stderr.contains("threshold OVERLOADED"), "{}", said.stderr);
    let args = ["inspect", "pressure", "out", "--detectors", "all", "--window", "2s", "--threshold", "4s"];
    let runs = folder.vcr(&[&args[..], &["--json"]].concat()).ended(0).json()["runs"].clone();
    let levels = |run: usize| -> Vec<(String, String)> {
        let all = runs[run]["detectors"].as_array().expect("detectors");
        let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
        all.iter().map(|one| (text(&one["detector"]), text(&one["level"]))).collect()
    };
    assert!(levels(0).iter().all(|(_, level)| level == "STABLE"), "{:?}", levels(0));
    let overloaded = levels(1);
    for name in ["composite", "threshold", "peak-rate", "ttft-trend", "utilization"] {
        let level = overloaded.iter().find(|(known, _)| known == name).map(|(_, level)| level.as_str());
        assert!(level.is_some_and(|level| level != "STABLE" && level != "unknown"), "{name}: {overloaded:?}");
    }
    let table = folder.vcr(&args).ended(0).stdout;
    assert_eq!(
        table.matches("OVERLOADED").count(),
        overloaded.iter().filter(|(_, level)| level == "OVERLOADED").count()
    );
    let one =
        folder.vcr(&["inspect", "pressure", "out", "--detectors", "threshold,peak-rate", "--json"]).ended(0).json();
    assert_eq!(one["runs"][1]["detectors"].as_array().map(Vec::len), Some(2));
    let wrong = folder.vcr(&["inspect", "pressure", "out", "--detectors", "thresold"]).ended(2);
    assert!(wrong.stderr.contains("expected all or some of composite, threshold"), "{}", wrong.stderr);
    folder.vcr(&["inspect", "pressure", "out", "--window", "1s"]).failed(2, &["--detectors"]);
}

/// By BLIS' formulas alone, some of these are growth: one request more at the end, or noise of a few.
#[test]
fn a_run_without_a_queue_is_stable_for_all_detectors() {
    let folder = Folder::with(
        r#"let idle = pool(#{ engines: 4, latency: fixed(#{ step: "10ms" }) });
for minutes in ["2m", "3m", "6m"] {
    run(#{ name: minutes, cluster: cluster(#{ engines: idle }),
        workloads: [constant(#{ rate: "1/s", duration: minutes, prompt_tokens: 100, output_tokens: 20 })] });
}
let half = pool(#{ engine: engine(#{ max_num_seqs: 32 }), latency: fixed(#{ step: "10ms" }) });
run(#{ name: "half", cluster: cluster(#{ engines: half }),
    workloads: [poisson(#{ rate: "5/s", duration: "3m", prompt_tokens: 100, output_tokens: 200 })] });"#,
    );
    let _ = folder.run(&["--out", "out", "--files", "report,charts,requests"]).ended(0);
    let args = ["inspect", "pressure", "out", "--detectors", "all", "--json"];
    let runs = folder.vcr(&args).ended(0).json()["runs"].clone();
    let runs = runs.as_array().expect("runs");
    assert_eq!(runs.len(), 4);
    for run in runs {
        for detector in run["detectors"].as_array().expect("detectors") {
            assert_eq!(detector["level"], "STABLE", "{}: {detector:#}", run["run"]);
        }
    }
}

#[test]
fn detectors_of_replays_and_of_reports_without_requests() {
    let folder = Folder::new();
    let load =
        ["replay", "--input-tokens", "16", "--output-tokens", "5", "--request-count", "4", "--request-rate", "5"];
    let detectors = || {
        let args = ["inspect", "pressure", "report.json", "--detectors", "threshold,kv-pressure", "--json"];
        folder.vcr(&args).ended(0).json()["runs"][0]["detectors"].clone()
    };
    let _ = folder.vcr(&[&load[..], &["--report-json", "report.json", "--capacity"]].concat()).ended(0);
    assert_eq!((&detectors()[0]["level"], &detectors()[1]["level"]), (&json!("STABLE"), &json!("STABLE")));
    let _ = folder.vcr(&[&load[..], &["--report-json", "report.json", "--force"]].concat()).ended(0);
    let unknown = detectors()[0].clone();
    assert!(unknown["level"].is_null() && unknown["unknown"].as_str().is_some_and(|why| why.contains("--capacity")));
}

/// Two requests of one page each, in a pool of two pages that admits one request at a time: `b` waits in 2 of 5
/// ticks, and tick 3 is idle.
#[test]
fn shares_of_ticks_are_those_of_its_records() {
    let folder = Folder::new();
    let request = |id: &str, output: u32, arrival: u32| json!({"id": id, "prompt_tokens": 4, "max_output_tokens": output, "arrival_tick": arrival});
    let config = json!({"total_kv_pages": 2, "page_size_tokens": 16, "max_active": 1, "prefill_tokens_per_tick": 8,
        "decode_width": 1});
    let requests = json!([request("a", 2, 0), request("b", 1, 0), request("c", 1, 4)]);
    folder.write("ticks.json", json!({"config": config, "requests": requests}).to_string());
    let args = ["replay", "ticks.json", "--engine", "ticks", "--report-json", "report.json"];
    let _ = folder.vcr(&args).ended(0);
    let run = &folder.vcr(&["inspect", "pressure", "report.json", "--json"]).ended(0).json()["runs"][0];
    let pool = &run["pools"][0];
    assert_eq!((&run["duration"], &run["unit"]), (&json!(5.0), &json!("ticks")));
    let sequences = bound(pool, "sequences");
    assert_eq!(
        (&sequences["share"], &sequences["lift"]),
        (&json!(0.4), &json!("raise `max_active` above 1, or add engines"))
    );
    for name in ["tokens", "blocks", "decode_width"] {
        assert_eq!(bound(pool, name)["share"], 0.0, "{name}");
    }
    assert_eq!((&pool["queue_pressure"]["share"], &pool["active_capacity"]["share"]), (&json!(0.4), &json!(0.8)));
    assert_eq!((&pool["kv_usage_mean"]["share"], &pool["kv_usage_peak"]["share"]), (&json!(0.4), &json!(0.5)));
}

/// Four requests arrive at once at an engine that runs one at a time: three wait first, then two.
#[test]
fn replays_with_capacity_have_shares() {
    let folder = Folder::new();
    let args =
        ["--input-tokens", "16", "--output-tokens", "5", "--request-count", "4", "--arrival-interval-ms", "0.001"];
    let engine = ["--extra-engine-args", r#"{"max_num_seqs": 1}"#, "--capacity", "--report-json", "report.json"];
    let plain = folder.vcr(&[&["replay", "--json"], &args[..], &engine[..2]].concat()).ended(0).json();
    let _ = folder.vcr(&[&["replay"], &args[..], &engine[..]].concat()).ended(0);
    let report: Value = serde_json::from_slice(&fs::read(folder.path().join("report.json")).expect("it was written"))
        .expect("it is JSON");
    assert_eq!(report["vcr"]["fingerprint"], plain["vcr"]["fingerprint"], "watching changes nothing");
    let run = &folder.vcr(&["inspect", "pressure", "report.json", "--json"]).ended(0).json()["runs"][0];
    let pool = &run["pools"][0];
    let sequences = bound(pool, "sequences");
    // Four requests have five steps of equal length each. Other requests wait in all steps except those of the last
    // request and those decided before the second request arrives.
    assert!(sequences["share"].as_f64().is_some_and(|share| (0.6..=0.75).contains(&share)), "{run:#}");
    assert_eq!((&pool["queue_pressure"]["share"], &pool["peak_active"]), (&sequences["share"], &json!(1)));
    assert_eq!(sequences["lift"], "raise `max_num_seqs` above 1, or add engines");
    assert_eq!(bound(run, "router_queue")["share"], 0.0);
    assert!(!pool["curve"].as_array().expect("a curve").is_empty());
}

#[test]
fn reports_of_replays_have_no_steps_and_other_files_are_refused() {
    let folder = Folder::new();
    let args = ["--input-tokens", "100", "--output-tokens", "5", "--request-count", "3", "--request-rate", "5"];
    let _ = folder.vcr(&[&["replay", "--report-json", "report.json"], &args[..]].concat()).ended(0);
    let run = &folder.vcr(&["inspect", "pressure", "report.json", "--json"]).ended(0).json()["runs"][0];
    assert!(run["duration"].as_f64().is_some_and(|duration| duration > 0.0));
    assert!(bound(run, "blocks")["unknown"].as_str().is_some_and(|why| why.contains("--capacity")), "{run}");
    folder.vcr(&[&["replay", "--capacity"], &args[..]].concat()).failed(2, &["--report-json or --json"]);
    let refused = |args: &[&str], needles: &[&str]| {
        folder.vcr(&[&["inspect", "pressure"], args].concat()).failed(2, needles);
    };
    refused(&["missing.json"], &["cannot read `missing.json`"]);
    refused(&["."], &["invalid `./report.json`"]);
    folder.write("other.json", "{}");
    refused(&["other.json"], &["invalid `other.json`", "expected a report of vcr replay, or a folder"]);
    folder.write("other.json", r#"{"kind": "ticks", "config": {}}"#);
    refused(&["other.json"], &["missing field `summary`"]);
    let broken = self::folder();
    broken.write("out/steps.jsonl", "{\"of\":\"one\",\"pool\":\"engines\",\"s\":0,\"u\":0,\"duration_ms\":-1}\n");
    broken
        .vcr(&["inspect", "pressure", "out"])
        .failed(2, &["steps.jsonl`", "line 1: `duration_ms` is -1: expected a number"]);
    broken.write("out/steps.jsonl", "{}\n[]\n");
    broken.vcr(&["inspect", "pressure", "out"]).failed(2, &["line 2"]);
}
