//! `vcr inspect`: verified recordings, shown and explained steps, compared logs.

use std::fs;

use vcr_tests::{Folder, root};

/// Decisions of vLLM's scheduler for three requests on eight blocks of four tokens, with at most two running
/// requests and eight tokens per step.
const CONFIG: &str = r#"{"config": {
    "block_size": 4, "num_blocks": 9, "max_num_seqs": 2, "max_num_batched_tokens": 8, "max_model_len": 32,
    "policy": "fcfs", "prefix_caching": true, "chunked_prefill": true, "long_prefill_token_threshold": 0,
    "adaptive": false, "watermark": 0.0, "reserve_full_isl": true, "max_num_active_seqs": null, "max_loras": 0,
    "spec": 0, "async_scheduling": false
}}"#;
const REQUESTS: &str = r#"{"id":0,"prompt":[[1,6]],"max_tokens":3,"prio":0}
{"id":1,"prompt":[[2,5]],"max_tokens":2,"prio":0}
{"id":2,"prompt":[[1,6]],"max_tokens":1,"prio":0}
"#;
const STEPS: &str = r#"{"i":0,"add":[0,1,2],"s":0,"sched":[[0,6,0,"n",[1,2]],[1,2,0,"n",[3]]],"tot":8,"run":[0,1],"wait":1,"free":5,"pc":[2,11,0,0,0,0],"u":0,"out":[[0,1]],"ev":[["S",null,[0]]]}
{"i":1,"s":1,"sched":[[0,1,6,"r",[]],[1,3,2,"r",[4]]],"tot":4,"run":[0,1],"wait":1,"free":4,"u":1,"out":[[0,1],[1,1]],"ev":[["S",null,[1]]]}
{"i":2,"s":2,"sched":[[0,1,7,"r",[]],[1,1,5,"r",[]]],"tot":2,"run":[0,1],"wait":1,"free":4,"u":2,"out":[[0,1],[1,1]],"fin":[[0,"length"],[1,"length"]],"ev":[["S",0,[2]]]}
{"i":3,"s":3,"sched":[[2,2,4,"n",[1,4]]],"tot":2,"flush":[0,1],"run":[2],"wait":0,"free":6,"pc":[1,6,4,0,0,0],"u":3,"out":[[2,1]],"fin":[[2,"length"]]}
{"i":4,"s":4,"sched":[],"tot":0,"flush":[2],"run":[],"wait":0,"free":8,"u":4,"out":[]}
"#;

/// Steps in a live capture of the same engine, with the first two requests.
const LIVE_STEPS: &str = r#"{"kind":"engine","num_gpu_blocks":9,"block_size":4,"max_num_seqs":2,"max_num_active_reqs":2,"max_num_batched_tokens":8,"max_model_len":32,"policy":"fcfs","chunked_prefill":true,"long_prefill_token_threshold":0,"prefix_caching":true,"async_scheduling":false,"reserve_full_isl":true,"watermark":0.0,"max_loras":null,"num_spec_tokens":0}
{"kind":"step","step":0,"added":[{"id":"a","prompt":6,"max_tokens":2,"prio":0,"arrival":1.0},{"id":"b","prompt":5,"max_tokens":1,"prio":0,"arrival":2.0}],"aborted":[],"finished":[],"preempted":[],"sched":[["a",6,0,"n",[1,2]],["b",2,0,"n",[3]]],"total":8,"running":2,"waiting":0,"free_blocks":5,"usage":0.375,"emitted":{"a":1},"stopped":[],"free_blocks_after":5,"t":[7.0,7.001,7.01,7.011]}
{"kind":"step","step":1,"added":[],"aborted":[],"finished":[],"preempted":[],"sched":[["a",1,6,"r",[]],["b",3,2,"r",[4]]],"total":4,"running":2,"waiting":0,"free_blocks":4,"usage":0.5,"emitted":{"a":1,"b":1},"stopped":[["a","length"],["b","length"]],"free_blocks_after":8,"t":[7.02,7.021,7.03,7.031]}
"#;

/// Four requests on two engines that each run one at a time.
const SCENARIO: &str = r#"let e = engine(#{ max_num_seqs: 1, num_gpu_blocks: 64 });
let c = cluster(#{ engines: pool(#{ engines: 2, engine: e, latency: fixed(#{ step: "10ms" }) }) });
let w = burst(#{ count: param("n", 4), prompt_tokens: 40, output_tokens: param("out", 3) });
run(#{ name: "base", cluster: c, workloads: [ w ] });"#;

/// Writes a recording of the scheduler to a folder in `folder`.
fn record(folder: &Folder, name: &str, steps: &str) {
    fs::create_dir_all(folder.path().join(name)).expect("a temporary folder is writable");
    for (file, text) in [("config.json", CONFIG), ("requests.jsonl", REQUESTS), ("steps.jsonl", steps)] {
        folder.write(&format!("{name}/{file}"), text);
    }
}

/// Writes a capture of a live engine to a folder in `folder`.
fn capture(folder: &Folder, name: &str, steps: &str) {
    fs::create_dir_all(folder.path().join(name)).expect("a temporary folder is writable");
    let requests = "{\"id\":\"a\",\"prompt\":[11,12,13,14,15,16]}\n{\"id\":\"b\",\"prompt\":[21,22,23,24,25]}\n";
    let files = [("engine.json", "{\"vllm\": \"0.32.0\"}"), ("requests.jsonl", requests), ("steps.jsonl", steps)];
    for (file, text) in files {
        folder.write(&format!("{name}/{file}"), text);
    }
}

/// Replaces a text, which must occur.
#[track_caller]
fn changed(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "`{from}` is not in:\n{text}");
    text.replacen(from, to, 1)
}

/// A folder with the recordings `a` and `b` and the capture `live`.
fn recorded() -> Folder {
    let folder = Folder::new();
    for name in ["b", "a"] {
        record(&folder, &format!("all/{name}"), STEPS);
    }
    capture(&folder, "all/live", LIVE_STEPS);
    folder
}

/// A folder with logs of `vcr run`: their names, and the parameters of the runs.
fn logged(runs: &[(&str, &[&str])]) -> Folder {
    let folder = Folder::with(SCENARIO);
    for (name, args) in runs {
        let _ = folder.run(&[&["--quiet", "--out", name], *args].concat()).ended(0);
    }
    folder
}

/// Asserts that `text` has these lines in this order, with any space between words.
#[track_caller]
fn has_lines(text: &str, lines: &[&str]) {
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<&str>>().join(" ");
    let mut rest = text.lines().map(squeezed);
    for line in lines {
        assert!(rest.any(|other| other == *line), "no line `{line}`, or not in its place, in:\n{text}");
    }
}

#[test]
fn recordings_of_both_kinds_are_proved_exact() {
    let said = recorded().vcr(&["inspect", "conform", "all"]).ended(0);
    let lines = [
        "case steps fields KV events hashes result",
        "✓ a 5 75 3 0 exact",
        "✓ b 5 75 3 0 exact",
        "✓ live 2 22 0 0 exact",
        "no `kv_events.jsonl`, so KV events are not compared",
        "3 recordings exact: 12 steps, 172 fields, 6 KV events, 0 block hashes bit for bit",
    ];
    has_lines(&said.stdout, &lines);
    assert_eq!(said.stderr, "");
    assert_eq!(recorded().vcr(&["inspect", "conform", "all", "-q"]).ended(0).stdout, "");
}

#[test]
fn recordings_may_be_named_one_by_one() {
    let folder = recorded();
    let said = folder.vcr(&["inspect", "conform", "all/live", "all/b"]).ended(0);
    has_lines(&said.stdout, &["✓ b 5 75 3 0 exact", "✓ live 2 22 0 0 exact"]);
    // Equal names are distinguished by their paths.
    let said = folder.vcr(&["inspect", "conform", "all/b", "all/../all/b"]).ended(0);
    has_lines(&said.stdout, &["✓ all/../all/b 5 75 3 0 exact", "✓ all/b 5 75 3 0 exact"]);
}

#[test]
fn a_decision_that_differs_is_shown_from_both_sides() {
    let folder = recorded();
    record(&folder, "all/c", &changed(STEPS, r#"[1,3,2,"r",[4]]"#, r#"[1,2,2,"r",[4]]"#));
    let said = folder.vcr(&["inspect", "conform", "all"]).ended(1);
    let lines = [
        "✓ b 5 75 3 0 exact",
        "✗ c 2 16 2 0 step 1: `sched` differs",
        "✗ c, line 2 (step 1): `sched` differs",
        "entry 1: tokens 3 instead of 2",
        "ours request 1, running: 3 tokens after 2, blocks 4",
        "recorded request 1, running: 2 tokens after 2, blocks 4",
        "in our step, requests waited (cap): as many requests ran as may",
        "1 of 4 recordings differs: 14 steps, 188 fields, 8 KV events, 0 block hashes bit for bit",
    ];
    has_lines(&said.stdout, &lines);
    let quiet = folder.vcr(&["inspect", "conform", "all", "--quiet"]).ended(1).stdout;
    assert!(!quiet.contains("exact") && quiet.contains("✗ c, line 2 (step 1)"), "{quiet}");
}

#[test]
fn differences_outside_lists_are_shown_as_numbers() {
    let folder = Folder::new();
    record(&folder, "free", &changed(STEPS, "\"free\":6", "\"free\":7"));
    capture(&folder, "live", &changed(LIVE_STEPS, "\"usage\":0.5", "\"usage\":0.25"));
    let said = folder.vcr(&["inspect", "conform", "."]).ended(1);
    let lines = [
        "✗ free, line 4 (step 3): `free` differs",
        "ours 6",
        "recorded 7",
        "in our step, no request waited",
        "✗ live, line 3 (step 1): `usage` differs",
        "ours 0.5",
        "recorded 0.25",
        "2 of 2 recordings differ: 6 steps, 70 fields, 3 KV events, 0 block hashes bit for bit",
    ];
    has_lines(&said.stdout, &lines);
}

#[test]
fn conformance_as_json() {
    let folder = recorded();
    record(&folder, "all/c", &changed(STEPS, "\"free\":6", "\"free\":7"));
    let said = folder.vcr(&["inspect", "conform", "all", "--json"]).ended(1).json();
    let cases: Vec<_> = said["cases"].as_array().unwrap().iter().map(|case| case["case"].as_str().unwrap()).collect();
    assert_eq!(cases, ["a", "b", "c", "live"]);
    assert_eq!(said["cases"][0]["mismatch"], serde_json::Value::Null);
    assert_eq!(said["cases"][2]["mismatch"]["line"], 4);
    assert_eq!(said["cases"][2]["mismatch"]["field"], "free");
    assert_eq!(
        (&said["cases"][2]["mismatch"]["ours"], &said["cases"][2]["mismatch"]["theirs"]),
        (&6.into(), &7.into())
    );
    assert_eq!(said["cases"][3]["path"], "all/live");
    assert_eq!((&said["totals"]["exact"], &said["totals"]["different"]), (&3.into(), &1.into()));
    assert_eq!(said["errors"], serde_json::json!([]));
}

#[test]
fn recordings_that_cannot_be_read_are_reported_and_the_rest_is_proved() {
    let folder = recorded();
    folder.vcr(&["inspect", "conform", "nowhere"]).failed(2, &["nowhere", "no such file or folder"]);
    folder.vcr(&["inspect", "conform", "all/a/nowhere", "all/nowhere"]).failed(2, &["all/a/nowhere", "all/nowhere"]);
    fs::create_dir(folder.path().join("empty")).unwrap();
    folder.vcr(&["inspect", "conform", "empty"]).failed(2, &["empty", "no recording here", "steps.jsonl"]);

    record(&folder, "all/garbage", &changed(STEPS, "{\"i\":3", "{\"i\":3,,"));
    record(&folder, "all/schema", &changed(STEPS, r#"[1,2,0,"n",[3]]"#, r#"[1,2,0]"#));
    record(&folder, "all/scope", &changed(STEPS, "\"tot\":8", "\"tot\":8,\"encoder\":1"));
    record(&folder, "all/stranger", &changed(STEPS, r#""add":[0,1,2]"#, r#""add":[0,1,9]"#));
    let said = folder.vcr(&["inspect", "conform", "all", "nowhere"]).ended(2);
    has_lines(
        &said.stdout,
        &["✓ a 5 75 3 0 exact", "✗ garbage unreadable", "✓ live 2 22 0 0 exact", "✗ scope out of scope"],
    );
    assert!(
        said.stdout.contains("3 recordings exact") && said.stdout.contains("5 could not be replayed"),
        "{}",
        said.stdout
    );
    for needle in [
        "garbage/steps.jsonl, line 4: not JSON",
        "schema/steps.jsonl, line 1: ",
        "scope/steps.jsonl, line 1: `encoder` of a step is not known here",
        "stranger/steps.jsonl, line 1: `add`: request 9 is not in `requests.jsonl`",
        "nowhere: no such file or folder",
    ] {
        assert!(said.stderr.contains(needle), "`{needle}` is not in:\n{}", said.stderr);
    }
    assert_eq!(said.stderr.matches("error: ").count(), 5, "{}", said.stderr);
    let report = folder.vcr(&["inspect", "conform", "all", "--json"]).ended(2).json();
    assert_eq!((report["totals"]["refused"].as_u64(), report["errors"].as_array().map(Vec::len)), (Some(4), Some(4)));
}

#[test]
fn settings_must_be_there_and_make_sense() {
    let folder = recorded();
    folder.write("all/a/config.json", changed(CONFIG, "\"block_size\": 4", "\"block_size\": 0"));
    folder.write("all/b/config.json", changed(CONFIG, "\"block_size\": 4, ", ""));
    folder.write("all/live/steps.jsonl", changed(LIVE_STEPS, "\"block_size\":4,", ""));
    let needles = [
        "a/config.json: invalid `block_size`",
        "b/config.json: `config`: missing field `block_size`",
        "live/steps.jsonl, line 1: ",
    ];
    folder.vcr(&["inspect", "conform", "all"]).failed(2, &needles);
}

/// Recordings of vLLM's decisions are reproduced exactly, whatever their format is.
#[test]
fn recordings_of_vllm_are_exact() {
    let recordings = root().join("tests/recordings");
    let folders = ["vllm-scheduler", "random-0.33", "releases", "vllm-cpu"]
        .map(|name| recordings.join(name).display().to_string());
    let args = [&["inspect", "conform", "--json"], &folders.each_ref().map(String::as_str)[..]].concat();
    let report = Folder::new().vcr(&args).ended(0).json();
    let more_than = |what: &str, count| assert!(report["totals"][what].as_u64() > Some(count), "{}", report["totals"]);
    more_than("exact", 75);
    more_than("steps", 30_000);
    more_than("events", 90_000);
    more_than("hashes", 1_000);
}

/// A compressed log can be shown and compared like any other.
#[test]
fn recordings_of_vllm_are_explained() {
    let recording = root().join("tests/recordings/vllm-scheduler/fcfs-preempt").display().to_string();
    let folder = Folder::new();
    let said = folder.vcr(&["inspect", "steps", &recording, "--step", "109"]).ended(0);
    let lines = [
        "3 running 1 304 82",
        "preempted 10",
        "KV events removed 71",
        "request 10 was preempted: the running requests needed more blocks than were free; FCFS takes the last of the \
         running list",
        "110 requests wait: a step that preempts admits no request",
    ];
    has_lines(&said.stdout, &lines);
    let said = folder.vcr(&["inspect", "steps", &recording, "--diff", &recording]).ended(0);
    has_lines(&said.stdout, &["equal: 1991 steps, 25883 fields"]);
}

#[test]
fn steps_as_a_table() {
    let folder = recorded();
    let said = folder.vcr(&["inspect", "steps", "all/a"]).ended(0);
    let lines = [
        "s tokens n p r preempted running waiting free events why",
        "0 8 2 0 0 0 2 1 5 1 budget",
        "1 4 0 0 2 0 2 1 4 1 cap",
        "2 2 0 0 2 0 2 1 4 1 cap",
        "3 2 1 0 0 0 1 0 6 0",
        "4 0 0 0 0 0 0 0 8 0",
    ];
    has_lines(&said.stdout, &lines);
    assert_eq!(said.stdout.lines().count(), 6, "{}", said.stdout);

    let few = folder.vcr(&["inspect", "steps", "all/a/steps.jsonl", "--from", "1", "--limit", "2"]).ended(0);
    has_lines(
        &few.stdout,
        &["1 4 0 0 2 0 2 1 4 1 cap", "2 more steps: --from 3 continues, --limit shows more at once"],
    );
    let none = folder.vcr(&["inspect", "steps", "all/a", "--from", "9"]).ended(0);
    has_lines(&none.stdout, &["no steps here; the log has steps 0 to 4"]);

    // A live capture has times, but neither running requests nor KV events.
    let live = folder.vcr(&["inspect", "steps", "all/live"]).ended(0);
    let head = "s start ms ms tokens n p r preempted running waiting free";
    has_lines(&live.stdout, &[head, "0 0.000 11.000 8 2 0 0 0 2 0 5", "1 20.000 11.000 4 0 0 2 0 2 0 4"]);
}

/// A slow-down is a fault of the run. The step log does not contain it, but the charts do.
#[test]
fn a_step_names_the_slow_down_that_lengthens_it() {
    let folder = Folder::with(
        r#"let p = pool(#{ engines: 1, latency: fixed(#{ step: "10ms" }) });
run(#{ cluster: cluster(#{ engines: p }),
    workloads: [constant(#{ rate: "5/s", duration: "10s", prompt_tokens: 100, output_tokens: 20 })],
    faults: [slow_down(#{ at: "2s", duration: "4s", factor: 2.5 })] });"#,
    );
    let _ = folder.run(&["--out", "out", "--files", "report,charts,requests,steps"]).ended(0);
    let explained = |log: &str, step: &str| {
        let said = folder.vcr(&["inspect", "steps", log, "--step", step, "--json"]).ended(0).json();
        (said["result"]["duration_ms"].clone(), said["explanation"]["sentences"].to_string())
    };
    let named = "a slow-down, active since 2000.000ms, lengthens the step";
    for (step, duration_ms) in [("199", 10.0), ("200", 25.0), ("359", 25.0), ("360", 10.0)] {
        let (duration, sentences) = explained("out", step);
        assert_eq!(duration, duration_ms, "step {step}");
        assert_eq!(sentences.contains(named), duration_ms > 10.0, "step {step}: {sentences}");
    }
    assert!(explained("out/steps.jsonl", "200").1.contains(named), "the log by its own name");
    fs::remove_file(folder.path().join("out/charts.json")).expect("it is ours");
    assert!(!explained("out", "200").1.contains(named));
}

#[test]
fn steps_as_json() {
    let folder = recorded();
    let said = folder.vcr(&["inspect", "steps", "all/a", "--json", "--limit", "2"]).ended(0).json();
    assert_eq!((said["steps"].as_array().map(Vec::len), &said["more"]), (Some(2), &3.into()));
    let first = &said["steps"][0];
    assert_eq!((&first["tokens"], &first["requests"]["new"], &first["waiting"]), (&8.into(), &2.into(), &1.into()));
    let why = serde_json::json!({ "waiting": 1, "stops": ["budget"], "source": "settings" });
    assert_eq!(first["why"], why);
    assert_eq!(folder.vcr(&["inspect", "steps", "all/a", "--json"]).ended(0).json()["more"], 0);
}

#[test]
fn one_step_in_full() {
    let folder = recorded();
    let said = folder.vcr(&["inspect", "steps", "all/a", "--step", "0"]).ended(0);
    let lines = [
        "step 0",
        "request kind tokens computed before new blocks",
        "0 new 6 0 1, 2",
        "1 new 2 0 3",
        "8 tokens of 2 requests: 2 new, 0 resumed, 0 running",
        "added 0-2",
        "running 2: 0, 1",
        "waiting 1",
        "free 5 blocks",
        "emitted 1 token of 1 request",
        "prefixes 2 prompts looked up, 0 of 11 tokens found",
        "KV events stored 0",
        "why",
        "the prompt of 1 was cut after 2 tokens: the budget was used up; it continues in step 1",
        "1 request waits: the step's budget of tokens (8) was used up",
    ];
    has_lines(&said.stdout, &lines);
    let said = folder.vcr(&["inspect", "steps", "all/a", "--step", "2"]).ended(0);
    let lines =
        ["finished 0 (length)", "KV events stored 2 after 0", "1 request waits: as many requests ran as may (2)"];
    has_lines(&said.stdout, &lines);
    let said = folder.vcr(&["inspect", "steps", "all/a", "--step", "4"]).ended(0);
    has_lines(&said.stdout, &["flushed 2", "no request got any tokens: it only informs the workers of ended requests"]);

    let step = folder.vcr(&["inspect", "steps", "all/a", "--step", "3", "--json"]).ended(0).json();
    assert_eq!(step["schedule"]["sched"], serde_json::json!([[2, 2, 4, "n", [1, 4]]]));
    assert_eq!(step["result"]["fin"], serde_json::json!([[2, "length"]]));
    assert_eq!(step["explanation"]["sentences"], serde_json::json!(["every request got all the tokens it could use"]));
}

#[test]
fn equal_logs_and_different_ones() {
    let folder = recorded();
    let said = folder.vcr(&["inspect", "steps", "all/a", "--diff", "all/b"]).ended(0);
    has_lines(&said.stdout, &["equal: 5 steps, 65 fields"]);

    record(
        &folder,
        "all/c",
        &changed(STEPS, "\"run\":[0,1],\"wait\":1,\"free\":4,\"u\":2", "\"run\":[0],\"wait\":1,\"free\":4,\"u\":2"),
    );
    let said = folder.vcr(&["inspect", "steps", "all/a", "--diff", "all/c"]).ended(1);
    let lines = [
        "✗ step 2: `run` differs",
        "entry 1",
        "all/a 1",
        "all/c the list ends before",
        "all/a",
        "1 request waits: as many requests ran as may (2)",
        "all/c",
        "1 request waits: the KV of the next request did not fit into the 4 free blocks",
        "2 steps before it are equal",
    ];
    has_lines(&said.stdout, &lines);

    let said = folder.vcr(&["inspect", "steps", "all/a", "--diff", "all/c", "--json"]).ended(1).json();
    assert_eq!(
        (&said["equal"], &said["first"]["step"], &said["first"]["field"]),
        (&false.into(), &2.into(), &"run".into())
    );
    assert_eq!(said["first"]["right"], serde_json::json!([0]));
    assert!(said["first"]["left_explanation"]["sentences"].is_array());

    let head: String = STEPS.lines().take(3).map(|line| format!("{line}\n")).collect();
    record(&folder, "all/short", &head);
    let said = folder.vcr(&["inspect", "steps", "all/short", "--diff", "all/a"]).ended(1);
    has_lines(&said.stdout, &["✗ step 3: only all/a has it", "3 steps before it are equal"]);
}

#[test]
fn fields_that_one_log_lacks_are_named() {
    let folder = recorded();
    let without: String = STEPS.replace("\"run\":[0,1],", "").replace("\"run\":[2],", "").replace("\"run\":[],", "");
    record(&folder, "all/c", &without);
    let said = folder.vcr(&["inspect", "steps", "all/a", "--diff", "all/c"]).ended(0);
    has_lines(&said.stdout, &["equal: 5 steps, 60 fields", "not compared: `run`, which only all/a has"]);
}

#[test]
fn logs_that_cannot_be_read_or_compared() {
    let other = Folder::new();
    let _ = other.vcr(&["inspect", "gen-demo", "-o", "a.jsonl", "--requests", "3"]).ended(0);
    let needles = ["expected \"engine\" in a step log, got \"meta\"", "`vcr inspect summarize a.jsonl`"];
    other.vcr(&["inspect", "steps", "a.jsonl"]).failed(2, &needles);
    other.vcr(&["inspect", "steps", "."]).failed(2, &["cannot read ./steps.jsonl", "--files report,steps"]);
    let folder = recorded();
    let steps =
        |args: &[&str], needles: &[&str]| folder.vcr(&[&["inspect", "steps"], args].concat()).failed(2, needles);
    steps(&["nowhere"], &["cannot read nowhere"]);
    steps(&["all/a", "--diff", "nowhere"], &["cannot read nowhere"]);
    steps(&["nowhere", "--diff", "elsewhere"], &["cannot read nowhere", "cannot read elsewhere"]);
    steps(&["all/a/requests.jsonl"], &["all/a/requests.jsonl, line 1: ", "is this a step log?"]);
    steps(&["all/a", "--step", "9"], &["all/a/steps.jsonl: there is no step 9; it has steps 0 to 4"]);
    steps(&["all/a", "--engine", "pool/0"], &["unknown engine `pool/0`: the log names no engines"]);
    steps(&["all/a", "--of", "base"], &["unknown run `base`: the log names no runs"]);
    steps(&["all/a", "--diff", "all/live"], &["requests are numbered here and named in all/live/steps.jsonl"]);
    steps(&["all/a", "--engine", "pool"], &["write it as POOL/INDEX"]);
    steps(&["all/a", "--step", "1", "--limit", "3"], &["--limit"]);
    steps(&["all/a", "--limit", "0"], &["--limit"]);
    folder.write("bad.jsonl", changed(STEPS, "\"tot\":4", "\"tot\":\"four\""));
    steps(&["bad.jsonl"], &["bad.jsonl, line 2: ", "expected a whole number from 0 to"]);
    folder.write("empty.jsonl", "");
    steps(&["empty.jsonl", "--diff", "all/a"], &["empty.jsonl: expected at least one schedule (`s`)"]);
    let said = folder.vcr(&["inspect", "steps", "empty.jsonl"]).ended(0);
    has_lines(&said.stdout, &["no steps"]);
}

#[test]
fn logs_of_runs_are_shown_by_engine() {
    let folder = logged(&[("out", &[])]);
    let said = folder.vcr(&["inspect", "steps", "out"]).ended(0);
    let head = said.stdout.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<&str>>();
    assert_eq!(head[..4], ["engine", "s", "start", "ms"], "{}", said.stdout);
    assert!(said.stdout.contains("engines/1"), "{}", said.stdout);

    let one = folder.vcr(&["inspect", "steps", "out", "--engine", "engines/1", "--of", "base"]).ended(0);
    assert!(!one.stdout.contains("engines/0"), "{}", one.stdout);
    let said = folder.vcr(&["inspect", "steps", "out", "--engine", "engines/1", "--step", "1"]).ended(0);
    has_lines(&said.stdout, &["step 1 of engines/1 of run base, at 10.000ms, for 10.000ms"]);
    assert!(said.stdout.contains("1 request waits: as many requests ran as may"), "{}", said.stdout);

    folder.vcr(&["inspect", "steps", "out", "--step", "1"]).failed(
        2,
        &[
            "several engines have a step 1: engines/0 of run base, engines/1 of run base",
            "hint: pick one with --engine",
        ],
    );
    folder
        .vcr(&["inspect", "steps", "out", "--engine", "engines/2"])
        .failed(2, &["out/steps.jsonl: unknown engine `engines/2`: expected engines/0, engines/1"]);
}

#[test]
fn logs_of_runs_are_compared_engine_by_engine() {
    let folder = logged(&[("out", &[]), ("again", &[]), ("longer", &["-e", "out=4"]), ("more", &["-e", "n=5"])]);
    let said = folder.vcr(&["inspect", "steps", "out", "--diff", "again"]).ended(0);
    assert!(said.stdout.trim_start().starts_with("equal: ") && said.stdout.contains("of 2 engines"), "{}", said.stdout);
    let said = folder.vcr(&["inspect", "steps", "out", "--diff", "longer"]).ended(1);
    assert!(said.stdout.contains("2 of 2 engines differ"), "{}", said.stdout);
    let said = folder.vcr(&["inspect", "steps", "out", "--diff", "more", "--engine", "engines/1"]).ended(0);
    assert!(said.stdout.trim_start().starts_with("equal: "), "{}", said.stdout);
    let one = SCENARIO.replace("engines: 2", "engines: 1");
    folder.write("test.rhai", one);
    let _ = folder.run(&["--quiet", "--out", "one", "-e", "n=2"]).ended(0);
    let said = folder.vcr(&["inspect", "steps", "out", "--diff", "one"]).ended(1);
    assert!(said.stdout.contains("only out has the engine engines/1 of run base"), "{}", said.stdout);
}
