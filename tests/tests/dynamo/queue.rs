//! Queue policies of the KV router. The expected numbers were printed by Dynamo 1.4.2.

use serde_json::Value;
use vcr_tests::Folder;

use crate::{replay, trace};

const ROWS: [(u32, u32, Option<&str>); 9] = [
    (0, 3000, None),
    (1, 2800, Some("chat")),
    (2, 700, Some("chat")),
    (3, 2000, Some("chat")),
    (4, 1500, Some("nobody")),
    (5, 600, Some("batch")),
    (6, 900, Some("batch")),
    (7, 400, None),
    (8, 1200, Some("chat")),
];

const POLICIES: &str = "
default_policy_family: chat
uncached_isl_buckets:
  - {min_tokens: 0, bucket: short}
  - {min_tokens: 1000, bucket: long}
policy_classes:
  - {name: chat_short, policy_family: chat, cache_bucket: short, quantum: 1000, prefill_busy_threshold: 0}
  - {name: chat_long, policy_family: chat, cache_bucket: long, queue_policy: wspt, quantum: 500,
     prefill_busy_threshold_frac: 0.1}
  - {name: batch, quantum: 4000, prefill_busy_threshold: 0}
";

/// Rows of three classes that arrive faster than two workers compute them, and the policies of their queue.
fn folder(policies: &str) -> Folder {
    let row = |(index, &(at_ms, tokens, class)): (usize, &(u32, u32, Option<&str>))| {
        let ids: Vec<String> = (0..tokens.div_ceil(512)).map(|block| (index as u32 * 10 + block).to_string()).collect();
        let class = class.map_or(String::new(), |class| format!(r#""policy_class": "{class}", "#));
        format!(
            r#"{{"timestamp": {at_ms}, "input_length": {tokens}, "output_length": 3, {class}"hash_ids": [{}]}}"#,
            ids.join(",")
        )
    };
    let rows: Vec<String> = ROWS.iter().enumerate().map(row).collect();
    let folder = trace(&rows.iter().map(String::as_str).collect::<Vec<_>>());
    folder.write("queue.yaml", policies);
    folder
}

const TWO: [&str; 6] = ["--router-mode", "kv_router", "--num-workers", "2", "--preset", "dynamo-1.4"];

/// The admission time of each request, in microseconds.
fn admitted(folder: &Folder, args: &[&str]) -> Vec<Option<String>> {
    let _ = replay(folder, &[&TWO, args, &["--report-jsonl", "rows.jsonl", "--force"]].concat()).ended(0);
    let text = std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("rows");
    let row = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
    text.lines().map(|line| row(line)["first_admit_ms"].as_f64().map(|ms| format!("{ms:.3}"))).collect()
}

fn times_of(times: [&str; 9]) -> Vec<Option<String>> {
    times.map(|time| Some(time.to_owned())).to_vec()
}

/// The expected order is that of Dynamo 1.4.2 for the same rows.
#[test]
fn classes_leave_the_queue_as_dynamo_lets_them() {
    let folder = folder(POLICIES);
    let with_classes =
        times_of(["0.000", "1.000", "69.201", "127.985", "71.735", "71.735", "122.054", "127.985", "69.201"]);
    assert_eq!(admitted(&folder, &["--router-policy-config", "queue.yaml"]), with_classes);
    assert_eq!(admitted(&folder, &["--router-config", r#"{"router_policy_config": "queue.yaml"}"#]), with_classes);
    let one_class =
        times_of(["0.000", "1.000", "69.201", "69.201", "71.735", "71.735", "127.985", "127.985", "127.985"]);
    assert_eq!(admitted(&folder, &["--router-config", r#"{"router_queue_threshold": 0.2}"#]), one_class);
}

#[test]
fn a_model_has_policies_of_its_own_and_a_full_queue_refuses() {
    let indented = POLICIES.trim().replace('\n', "\n    ");
    let limited = indented.replace("quantum: 4000", "quantum: 4000, request_queue_limit_per_worker: 0");
    let folder = folder(&format!("{POLICIES}models:\n  small:\n    {limited}\n"));
    let of = |model: &[&str]| admitted(&folder, &[&["--router-policy-config", "queue.yaml"], model].concat());
    let refused = |rows: &[Option<String>]| rows.iter().filter(|time| time.is_none()).count();
    assert_eq!(refused(&of(&["--model-name", "large"])), 0);
    assert_eq!(refused(&of(&["--model-name", "small"])), 2, "those of class batch");
    let text = std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("rows");
    assert_eq!(text.matches(r#""terminal_status":"rejected""#).count(), 2);
}

#[test]
fn what_has_no_effect_or_makes_no_sense_is_reported() {
    let folder = folder(&POLICIES.replace("quantum: 4000", "quantum: 0"));
    let policies = ["--router-policy-config", "queue.yaml"];
    replay(&folder, &[&TWO[..], &policies].concat()).failed(2, &["queue.yaml: class `batch`", "got 0"]);
    replay(&folder, &policies).failed(2, &["--router-policy-config is for --router-mode kv_router"]);
    replay(&folder, &[&TWO[..], &["--router-policy-config", "missing.yaml"]].concat())
        .failed(2, &["--router-policy-config: cannot read `missing.yaml`"]);
    folder.write("queue.yaml", POLICIES);
    let said = replay(&folder, &[&TWO[..], &policies].concat()).ended(0);
    assert!(said.stderr.contains("`policy_class` `nobody`"), "{}", said.stderr);
    replay(&folder, &[&TWO[..], &policies, &["--strict"]].concat()).failed(2, &["`policy_class` `nobody`"]);
    replay(&folder, &[&TWO[..], &["--strict", "--model-name", "m"]].concat())
        .failed(2, &["it needs --router-policy-config"]);
}

#[test]
fn scenarios_have_queue_policies() {
    let folder = folder(POLICIES);
    let scenario = |quantum: &str| {
        format!(
            r#"let queue = #{{
    default_policy_family: "chat",
    uncached_isl_buckets: [#{{ min_tokens: 0, bucket: "any" }}],
    policy_classes: [
        #{{ name: "chat", policy_family: "chat", cache_bucket: "any", quantum: 1, prefill_busy_threshold: 0 }},
        #{{ name: "batch", quantum: {quantum}, prefill_busy_threshold: 0 }},
    ],
}};
let two = pool(#{{ engines: 2, latency: fixed(#{{ step: "20ms" }}), router: kv_router(#{{ queue_policies: queue }}) }});
run(#{{ name: "classes", cluster: cluster(#{{ engines: two }}), workloads: [trace(#{{ path: ["trace.jsonl"] }})] }});
"#
        )
    };
    folder.write("classes.rhai", scenario("1"));
    let _ = folder.vcr(&["run", "classes.rhai"]).ended(0);
    folder.write("classes.rhai", scenario("0"));
    folder
        .vcr(&["run", "classes.rhai"])
        .failed(2, &["`queue_policies`: class `batch`: invalid `quantum`: expected at least 1"]);
    folder.write("classes.rhai", scenario("1, weight: 2"));
    folder.vcr(&["run", "classes.rhai"]).failed(2, &["`queue_policies`", "weight"]);
}
