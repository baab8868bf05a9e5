//! `vcr replay --engine ticks`: published sums, the report, and invalid workloads.

use std::fs;

use serde_json::{Value, json};
use vcr_tests::{Folder, root, sample_data};

const CONFIG: &str = r#"{"total_kv_pages": 10, "page_size_tokens": 16, "max_active": 2,
    "prefill_tokens_per_tick": 64, "decode_width": 1}"#;

fn workload(requests: &Value) -> String {
    format!("{{\"config\": {CONFIG},\n \"requests\": {requests}}}")
}

fn request(id: &str, prompt_tokens: u32, max_output_tokens: u32, priority: i32, arrival_tick: u32) -> Value {
    json!({"id": id, "prompt_tokens": prompt_tokens, "max_output_tokens": max_output_tokens, "priority": priority,
        "arrival_tick": arrival_tick})
}

fn replay(folder: &Folder, args: &[&str]) -> Value {
    folder.vcr(&[&["replay", "ticks.json", "--engine", "ticks", "--json"], args].concat()).ended(0).json()
}

/// Both workloads were found by a search with the published rules, because the original ones are not published. So
/// equal sums do not prove equal schedules, and fingerprints are not compared.
#[test]
fn synthesised_workloads_of_ours_reach_every_published_sum() {
    let Some(published) = sample_data("runtime-lab/published_results.json") else { return };
    let published: Value = serde_json::from_str(&fs::read_to_string(published).expect("readable")).expect("JSON");
    let folder = Folder::new();
    for (name, file, num_sums) in
        [("workload", "synth_workload.json", 10), ("workload_pressure", "synth_workload_pressure.json", 12)]
    {
        let Some(path) = sample_data(&format!("runtime-lab/{file}")) else { return };
        let text = fs::read_to_string(path).expect("readable");
        assert!(text.contains("NOT the original fixture"), "{file} says where it comes from");
        folder.write("ticks.json", text);
        let summary = &replay(&folder, &[])["summary"];
        let sums = published[name].as_object().expect("an object");
        let sums: Vec<_> = sums.iter().filter(|(key, _)| !key.contains("trace_fingerprint")).collect();
        assert_eq!(sums.len(), num_sums, "{name}");
        for (key, value) in sums {
            assert_eq!(summary[key].as_f64(), value.as_f64(), "{name}: {key}");
        }
    }
}

/// Expected values are calculated by hand. `c` has the highest priority but arrives late. `b` does not fit next to
/// `a`, but `c` does. `e` can never be admitted.
#[test]
fn a_replay_reports_every_tick() {
    let requests = json!([
        request("a", 60, 4, 0, 2),
        request("b", 64, 64, 1, 3),
        request("c", 30, 2, 9, 3),
        request("d", 1, 1, 0, 9),
        request("e", 65, 1, 0, 0),
    ]);
    let folder = Folder::new();
    folder.write("ticks.json", workload(&requests));
    let report = replay(&folder, &["--decode-width", "2", "--report-json", "report.json"]);
    let ticks = report["ticks"].as_array().expect("ticks");
    let row = |tick: &Value| {
        let ids = |key: &str| {
            let ids = tick[key].as_array().expect("ids").iter();
            ids.map(|id| id.as_str().expect("an id")).collect::<Vec<_>>().join(" ")
        };
        let ids = ["admitted_ids", "decoded_ids", "completed_ids"].map(ids).to_vec();
        (tick["tick"].as_u64(), ids, tick["queued"].as_u64(), tick["used_kv_pages"].as_u64(), tick["held_by"].clone())
    };
    let expected = |tick: u64, ids: [&str; 3], queued: u64, pages: u64, held_by: Value| {
        (Some(tick), ids.map(str::to_owned).to_vec(), Some(queued), Some(pages), held_by)
    };
    assert_eq!(row(&ticks[0]), expected(2, ["a", "a", ""], 0, 4, Value::Null));
    assert_eq!(row(&ticks[1]), expected(3, ["c", "a c", ""], 1, 6, json!("max_active")));
    assert_eq!(row(&ticks[2]), expected(4, ["", "a c", "c"], 1, 6, json!("max_active")));
    assert_eq!(row(&ticks[3]), expected(5, ["", "a", "a"], 1, 4, json!("kv_pages")));
    assert_eq!(row(&ticks[4]), expected(6, ["b", "b", ""], 0, 8, Value::Null));
    assert_eq!(row(&ticks[7]), expected(9, ["d", "b d", "d"], 0, 9, Value::Null));
    let summary = &report["summary"];
    let sum = |key: &str| summary[key].as_u64().expect("a count");
    // `b` decodes in ticks 6 to 69. Ticks 0 and 1 are idle.
    assert_eq!((sum("ticks"), sum("idle_ticks"), sum("decode_tokens")), (70, 2, 4 + 64 + 2 + 1));
    assert_eq!((sum("completed"), sum("refused"), sum("reserved_kv_pages")), (4, 1, 4 + 8 + 2 + 1));
    let refused = &report["requests"][0];
    assert_eq!((&refused["id"], &refused["status"]), (&json!("e"), &json!("refused")));
    assert!(refused["reason"].as_str().is_some_and(|reason| reason.contains("`prefill_tokens_per_tick`")), "{refused}");
    let written: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("report.json")).expect("it is written"))
            .expect("JSON");
    assert_eq!(written, report, "the file is what is printed, and a second replay is the same");
    let schema = fs::read_to_string(root().join("docs/schemas/ticks.schema.json")).expect("there is a schema");
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let schema = jsonschema::draft202012::new(&schema).expect("it is a schema of draft 2020-12");
    let errors: Vec<String> = schema.iter_errors(&report).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn invalid_workloads_are_refused_by_line_and_field() {
    let folder = Folder::new();
    let refused = |text: &str, needles: &[&str]| {
        folder.write("ticks.json", text);
        folder.vcr(&["replay", "ticks.json", "--engine", "ticks"]).failed(2, needles);
    };
    let good = request("a", 1, 1, 0, 0);
    refused("", &["invalid `ticks.json`, line 1, the workload: expected a JSON object: EOF"]);
    refused("[1]", &["line 1, the workload: expected a JSON object: invalid type"]);
    refused("{\n \"requests\": [\n", &["line 3, the workload: expected a JSON object: EOF"]);
    refused("{}", &["line 1, `requests`: expected an array of requests, but it is missing"]);
    refused("{\n\"requests\": 3}", &["line 2, `requests`: expected an array: invalid type"]);
    refused(&workload(&json!([])), &["line 3, `requests`: expected at least one request"]);
    refused(&workload(&json!([good, 7])), &["line 3, requests[1]: expected a JSON object"]);
    refused(
        &workload(&json!([good, good])),
        &["line 3, requests[1] `id`: expected a unique id; `a` is the request on line 3"],
    );
    for (field, value, expected) in [
        ("id", json!(3), "expected a text with a character, got 3"),
        ("prompt_tokens", json!(0), "expected an integer from 1 to 4294967295, got 0"),
        ("prompt_tokens", json!(1.5), "got 1.5"),
        ("max_output_tokens", json!("9"), "got \"9\""),
        ("max_output_tokens", json!(5_000_000_000_u64), "got 5000000000"),
        ("priority", json!(2_147_483_648_u64), "expected an integer from -2147483647 to 2147483647"),
        ("arrival_tick", json!(-1), "expected an integer from 0 to 4294967295, got -1"),
        ("deadline", json!(1), "unknown field: expected id, prompt_tokens"),
    ] {
        let mut request = good.clone();
        request[field] = value;
        refused(&workload(&json!([request])), &[&format!("line 3, requests[0] `{field}`: "), expected]);
    }
    refused(
        "{\"requests\": [{\"id\": \"a\"}]}",
        &["requests[0] `prompt_tokens`: expected an integer", "but it is missing"],
    );
    let settings = |config: &str| format!("{{\"requests\": [{good}],\n\"config\": {config}}}");
    refused(
        &settings("{\"max_active\": 0}"),
        &["line 2, config `max_active`: expected an integer from 1 to 4294967295, got 0"],
    );
    refused(&settings("{\"pages\": 1}"), &["line 2, config `pages`: unknown setting: expected total_kv_pages"]);
    refused(
        &settings("{\"max_active\": 1,\n\"max_active\": 1}"),
        &["line 3, `config` `max_active`: expected it once; it is on line 2"],
    );
    refused(
        &settings("{}"),
        &["ticks.json: missing `decode_width`: expected it in `config` of the workload, or as --decode-width"],
    );
}

#[test]
fn options_of_clusters_are_refused() {
    let folder = Folder::new();
    folder.write("ticks.json", workload(&json!([request("a", 1, 1, 0, 0)])));
    for option in [["--num-workers", "2"], ["--router-mode", "kv_router"], ["--sweep", "max_active=1..2"]] {
        let args = [&["replay", "ticks.json", "--engine", "ticks"], &option[..]].concat();
        folder.vcr(&args).failed(2, &["'--engine <ENGINE>' cannot be used with", option[0]]);
    }
    folder.vcr(&["replay", "ticks.json", "--max-active", "2"]).failed(2, &["--engine <ENGINE>"]);
    folder.vcr(&["replay", "--engine", "ticks"]).failed(2, &["expected one tick workload with --engine ticks"]);
    folder.vcr(&["replay", "missing.json", "--engine", "ticks"]).failed(2, &["cannot read `missing.json`"]);
}

/// The scheduler in a scenario, with the times of a latency model.
#[test]
fn scenarios_have_the_scheduler() {
    let scenario = r#"
let small = engine(#{ engine_type: "ticks", total_kv_pages: 20, max_active: 3, prefill_tokens_per_tick: 128, decode_width: 2 });
let work = burst(#{ name: "w", count: 4, prompt_tokens: 30, output_tokens: 4 });
let one = run(#{ name: "one", workloads: [work],
    cluster: cluster(#{ engines: pool(#{ engine: small, latency: fixed(#{ step: "1ms" }) }) }) });
// Three requests have 12 tokens in 6 ticks. The fourth one is admitted in the last of these,
// and then has one token a tick.
expect(one, "steps", "count == 10");
expect(one, "completed", "count == 4");
"#;
    let folder = Folder::with(scenario);
    let _ = folder.run(&["--out", "out"]).ended(0);
    let step = folder.vcr(&["inspect", "steps", "out", "--step", "1"]).ended(0);
    for reason in ["it was the turn of others (`decode_width`)", "as many requests ran as may (3)"] {
        assert!(step.stdout.contains(reason), "{}", step.stdout);
    }
    let pools = scenario.replace("engines: pool(", "prefill: pool(#{ engine: small, latency: fixed(#{ step: \"1ms\" }) }), link: link(#{ bandwidth: \"1GB/s\", kv_bytes_per_token: 1024 }), decode: pool(");
    Folder::with(&pools).run(&[]).failed(2, &["cannot take KV from others"]);
}
