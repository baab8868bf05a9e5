//! Recordings of agents: Weka corpora as Dynamo reads them, and profiles in lanes.

use serde_json::Value;
use vcr_tests::{Folder, Said};

/// A recording with a subagent, and a branch of the conversation in the meantime.
const PLAY: &str = r#"{"id":"fix-a-bug","models":["m"],"block_size":16,"hash_id_scope":"local","requests":[
  {"type":"s","t":0.0,"model":"m","in":48,"out":20,"api_time":1.5,"hash_ids":[1,2,3]},
  {"type":"subagent","t":1.6,"agent_id":"look","subagent_type":"search","status":"completed","duration_ms":2400,"requests":[
    {"type":"s","t":1.7,"model":"m","in":40,"out":9,"api_time":0.5,"hash_ids":[1,7]},
    {"type":"s","t":2.4,"model":"m","in":64,"out":30,"api_time":1.4,"hash_ids":[1,7,8,9]}]},
  {"type":"s","t":2.0,"model":"m","in":50,"out":12,"api_time":0.7,"hash_ids":[1,2,5]},
  {"type":"n","t":4.5,"model":"m","in":80,"out":12,"api_time":1.0,"hash_ids":[1,2,3,4,6]}]}"#;

/// The rows that aisimulate-core 0.13.0, the replay of Dynamo 1.6.1, makes of the recording; IDs are shortened.
const ROWS: &str = r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":16,"hash_id_scope":"local"}
{"request_id":"0","play_id":"p","session_id":"root","input_length":48,"output_length":20,"hash_ids":[1,2,3],"not_before_ms":0.0,"recorded_api_time_ms":1500.0}
{"request_id":"1:0","play_id":"p","session_id":"look","input_length":40,"output_length":9,"hash_ids":[1,7,100],"not_before_ms":1700.0,"recorded_api_time_ms":500.0,"dependencies":[{"request_id":"0","trigger":"completion","delay_ms":200.0,"relation":"spawn"}]}
{"request_id":"1:1","play_id":"p","session_id":"look","input_length":64,"output_length":30,"hash_ids":[1,7,8,9],"not_before_ms":2400.0,"recorded_api_time_ms":1400.0,"dependencies":[{"request_id":"1:0","trigger":"completion","delay_ms":200.0,"relation":"sequence"}]}
{"request_id":"2","play_id":"p","session_id":"worker","input_length":50,"output_length":12,"hash_ids":[1,2,5,101],"not_before_ms":2000.0,"recorded_api_time_ms":700.0,"dependencies":[{"request_id":"0","trigger":"completion","delay_ms":500.0,"relation":"spawn"},{"request_id":"0","trigger":"completion","delay_ms":0.0,"relation":"replay_barrier"}]}
{"request_id":"3","play_id":"p","session_id":"root","input_length":80,"output_length":12,"hash_ids":[1,2,3,4,6],"not_before_ms":4500.0,"recorded_api_time_ms":1000.0,"dependencies":[{"request_id":"0","trigger":"completion","delay_ms":3000.0,"relation":"sequence"},{"request_id":"2","trigger":"completion","delay_ms":0.0,"relation":"replay_barrier"},{"request_id":"1:1","trigger":"completion","delay_ms":700.0,"relation":"join"}]}"#;

const ENGINE: [&str; 2] = ["--extra-engine-args", r#"{"block_size": 16}"#];

/// Requests of a replay, by time and without their IDs.
fn requests(folder: &Folder, trace: &str, args: &[&str]) -> Vec<String> {
    let rows = ["--report-jsonl", "rows.jsonl", "--force", "--quiet"];
    _ = folder.vcr(&[&["replay", trace], args, &rows[..], &ENGINE[..]].concat()).ended(0);
    let text = std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("it was written");
    let mut rows: Vec<String> = text
        .lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).expect("lines are JSON");
            let keys = ["arrival_time_ms", "last_token_ms", "input_length", "output_length", "reused_input_tokens"];
            keys.map(|key| row[key].to_string()).join(" ")
        })
        .collect();
    rows.sort();
    rows
}

fn corpus() -> Folder {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("agents")).expect("the folder is writable");
    folder.write("agents/one.json", PLAY);
    folder
}

#[test]
fn a_corpus_replays_as_the_rows_that_dynamo_makes_of_it() {
    let folder = corpus();
    folder.write("rows-of-dynamo.jsonl", ROWS);
    let expected = requests(&folder, "rows-of-dynamo.jsonl", &[]);
    assert_eq!(expected.len(), 5);
    // The trace is a folder or a file, its format is detected or named, and it has several lines or, below, one.
    for (trace, args) in [("agents", &[][..]), ("agents/one.json", &[]), ("agents", &["--trace-format", "weka"])] {
        assert_eq!(requests(&folder, trace, args), expected, "{trace}");
    }
    folder.write("agents.jsonl", PLAY.replace('\n', ""));
    assert_eq!(requests(&folder, "agents.jsonl", &[]), expected);
}

fn report(folder: &Folder, args: &[&str]) -> Said {
    folder.vcr(&[&["replay", "agents", "--json", "--quiet"], args, &ENGINE[..]].concat())
}

#[test]
fn a_profile_is_the_same_on_any_number_of_threads_and_leaves_out_its_warm_up() {
    let folder = corpus();
    let profile = [
        "--lanes",
        "3",
        "--snapshot-seed",
        "7",
        "--warmup-requests",
        "2",
        "--profile-duration",
        "30s",
        "--profile-grace",
        "1s",
        "--idle-cap",
        "500ms",
        "--num-workers",
        "2",
    ];
    let on = |threads: &str| report(&folder, &[&profile[..], &["--threads", threads]].concat()).ended(0);
    let one = on("1");
    assert_eq!(one.stdout, on("2").stdout);
    let json = one.json();
    let counts = &json["vcr"]["profile"];
    assert!(counts["warmup_requests"].as_u64().is_some_and(|requests| requests >= 6), "{counts}");
    assert!(counts["plays_started"].as_u64().is_some_and(|plays| plays > 3), "{counts}");
    // The last requests end after the grace period, and the duration excludes the warm-up.
    let duration_ms = json["summary"]["duration_ms"].as_f64().expect("a number");
    assert!((20_000.0..=31_000.0).contains(&duration_ms), "{duration_ms}");
    let shown = folder.vcr(&[&["replay", "agents"], &profile[..], &ENGINE[..]].concat()).ended(0).stdout;
    assert!(
        shown.contains("plays ended; it began at ") && shown.contains(" requests before that are not measured"),
        "{shown}"
    );
    let without = report(&folder, &[&profile[..4], &profile[6..]].concat()).ended(0).json();
    assert_eq!(without["vcr"]["profile"]["warmup_requests"], 0);
    assert_eq!(without["vcr"]["profile"]["began_ms"], 0.0);
}

#[test]
fn scenarios_play_profiles_too() {
    let folder = corpus();
    let script = |options: &str| {
        format!(
            r#"
            let run = run(#{{
                cluster: cluster(#{{ engines: pool(#{{ engines: 2, latency: fixed(#{{ step: "1ms" }}) }}) }}),
                workloads: [trace(#{{ path: "agents", {options} }})],
            }});
            expect(run, "completed_ratio", "value == 100%");
            "#
        )
    };
    folder.write(
        "agents.rhai",
        script(r#"lanes: 2, duration: "20s", grace: "10s", warmup_requests: 2, snapshot_seed: 1"#),
    );
    _ = folder.vcr(&["run", "agents.rhai", "--out", "out"]).ended(0);
    let text = std::fs::read_to_string(folder.path().join("out/report.json")).expect("it was written");
    let report: Value = serde_json::from_str(&text).expect("a report is JSON");
    let profile = &report["runs"][0]["profile"];
    assert!(profile["warmup_requests"].as_u64().is_some_and(|requests| requests >= 4), "{profile}");
    folder.write("wrong.rhai", script("warmup_requests: 2"));
    let said = folder.vcr(&["run", "wrong.rhai"]).ended(2);
    assert!(said.stderr.contains("`warmup_requests` is for a trace with `lanes`"), "{}", said.stderr);
}

#[test]
fn wrong_profiles_are_refused_with_what_to_do() {
    let folder = corpus();
    let refused = |args: &[&str]| report(&folder, args).ended(2).stderr;
    assert!(refused(&["--warmup-requests", "3"]).contains("--lanes"));
    let both = refused(&["--lanes", "2", "--replay-concurrency", "2"]);
    assert!(both.contains("cannot be used with"), "{both}");
    let online = refused(&["--lanes", "2", "--replay-mode", "online"]);
    assert!(online.contains("--lanes cannot be combined with --replay-mode online"), "{online}");
    let synthetic = ["replay", "--input-tokens", "9", "--output-tokens", "1", "--request-count", "2", "--lanes", "1"];
    let said = folder.vcr(&[&synthetic[..], &["--request-rate", "1"]].concat()).ended(2);
    assert!(said.stderr.contains("--lanes is for traces"), "{}", said.stderr);
    folder.write("agents/two.json", PLAY.replace("\"in\":50", "\"in\":0"));
    let broken = refused(&[]);
    assert!(
        broken.contains("two.json`, line 1, field `requests`: requests[2].in: the prompt has no tokens"),
        "{broken}"
    );
}
