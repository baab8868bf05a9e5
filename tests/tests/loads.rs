//! Loads, clients and kinds of requests as black boxes: their results in `vcr run`.

use serde_json::{Value, json};
use vcr_tests::Folder;

/// A scenario with one run of `workloads` on one engine whose steps take constant time.
fn on_one_engine(workloads: &str) -> String {
    format!(
        r#"let c = cluster(#{{ engines: pool(#{{
    engine: engine(#{{ num_gpu_blocks: 4_097, max_num_seqs: 16, max_loras: 4 }}),
    latency: fixed(#{{ step: "10ms" }}),
}}) }});
let workloads = {workloads};
let result = run(#{{ cluster: c, workloads: workloads }});
"#
    )
}

/// The report of the run, and its requests.
#[track_caller]
fn run(workloads: &str) -> (Value, Vec<Value>) {
    let folder = Folder::with(&on_one_engine(workloads));
    let report = folder.run(&["--json", "--requests", "requests.jsonl"]).ended(0).json()["runs"][0].clone();
    let text = std::fs::read_to_string(folder.path().join("requests.jsonl")).expect("it was written");
    let requests = text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    (report, requests)
}

fn counter(report: &Value, name: &str) -> u64 {
    report["metrics"]["counters"][name].as_u64().unwrap_or(0)
}

/// The first line of the error for a refused scenario.
#[track_caller]
fn refused(workloads: &str) -> String {
    Folder::with(&on_one_engine(workloads)).run(&[]).ended(2).stderr
}

#[test]
fn rates_and_users_follow_stages_spikes_and_days() {
    let sizes = "prompt_tokens: 16, output_tokens: 2";
    let (report, requests) =
        run(&format!(r#"[constant(#{{ rate: stages([["10s", 10], ["10s", 10], ["0s", 1], ["10s", 1]]), {sizes} }})]"#));
    assert_eq!(counter(&report, "requests"), 50 + 100 + 10);
    let between = |from: f64, to: f64| {
        let at = |request: &&Value| (from..to).contains(&request["arrival_ms"].as_f64().expect("a time"));
        requests.iter().filter(at).count()
    };
    assert_eq!((between(0.0, 5_001.0), between(20_001.0, 40_000.0)), (12, 10));
    for (rate, wanted) in [
        (r#"spike(#{ base: 1, peak: 20, at: "10s", lasts: "5s", duration: "20s" })"#, 115),
        (r#"on_off(#{ on: 10, on_for: "1s", off_for: "3s" }), duration: "20s""#, 50),
        (r#"diurnal(#{ mean: 5, amplitude: 5, period: "10s" }), duration: "20s""#, 100),
    ] {
        let (report, _) = run(&format!("[constant(#{{ rate: {rate}, {sizes} }})]"));
        assert_eq!(counter(&report, "requests"), wanted, "{rate}");
    }
    let (report, _) = run(&format!(r#"[closed_loop(#{{ concurrency: stages([["4s", 4], ["4s", 4]]), {sizes} }})]"#));
    // Each request takes 20 ms: about 50 per second for each user.
    assert!((1100..1300).contains(&counter(&report, "requests")), "{}", counter(&report, "requests"));
}

#[test]
fn clients_give_up_and_try_again_and_what_they_waste_is_reported() {
    let (report, requests) = run(r#"[burst(#{ count: 2, prompt_tokens: 64, output_tokens: 100, timeout: "505ms",
            retry: #{ max_attempts: 2, backoff: "1s" } })]"#);
    let counters = ["requests", "timeouts", "client_retries", "completed"].map(|name| counter(&report, name));
    assert_eq!(counters, [4, 4, 2, 0]);
    // Each of four attempts wastes 50 tokens. Each retry recomputes the last block of its prompt.
    assert_eq!(["wasted_tokens", "wasted_prompt_tokens"].map(|name| counter(&report, name)), [200, 2 * 64 + 2 * 16]);
    let last = &requests[3];
    assert_eq!((&last["status"], &last["attempt"]), (&Value::from("timeout"), &Value::from(1)));
    assert_eq!(last["reason"], "no whole answer within the timeout");
    assert_eq!(requests[0]["end_ms"], 505.0);
    let (report, requests) =
        run(r#"[burst(#{ count: 1, prompt_tokens: 64, output_tokens: 100, cancel: #{ after_tokens: 7 } })]"#);
    assert_eq!((counter(&report, "cancelled"), &requests[0]["status"]), (1, &Value::from("cancelled")));
    assert_eq!(requests[0]["output_tokens"], 7);
    let (report, _) =
        run(r#"[constant(#{ rate: 100, count: 100, prompt_tokens: 64, output_tokens: 50, max_in_flight: 3 })]"#);
    assert_eq!(counter(&report, "requests") + counter(&report, "dropped"), 100);
    assert!(counter(&report, "dropped") > 90);
}

#[test]
fn slos_are_counted_by_class_and_tenant() {
    let scenario = on_one_engine(
        r#"[
        poisson(#{ name: "a", tenant: 1, rate: 5, count: 50, classes: [
            #{ weight: 3, prompt_tokens: 16, output_tokens: 4, slo: #{ class: "quick", e2e: "1s" } },
            #{ prompt_tokens: 16, output_tokens: 200, slo: #{ class: "slow", e2e: "1s" } },
        ] }),
        burst(#{ name: "b", tenant: 2, count: 5, prompt_tokens: 16, output_tokens: 4, adapter: 2, slo: #{ class: "quick", ttft: "1ms" } }),
    ]"#,
    ) + r#"
expect(result, "goodput{class:slow}", "ratio == 0%");
expect(result, "goodput{class:quick,tenant:1}", "ratio == 100%");
expect(result, "goodput{class:quick,tenant:2}", "count == 0");
expect(result, "goodput{tenant:1}", "ratio < 100%");
expect(result, "goodput{class:slow,e2e<10s}", "ratio == 100%");
"#;
    let report = Folder::with(&scenario).run(&["--json"]).ended(0).json()["runs"][0].clone();
    let quick = &report["slo_classes"]["quick"];
    assert_eq!(quick["tenants"]["2"]["requests"], 5);
    assert_eq!(quick["requests"].as_u64(), Some(5 + quick["tenants"]["1"]["good"].as_u64().expect("a count")));
    let wrong = scenario.replace("{class:slow}", "{class:slwo}");
    let said = Folder::with(&wrong).run(&[]).ended(2).stderr;
    assert!(said.contains("has no SLO class `slwo`") && said.contains("slow"), "{said}");
}

#[test]
fn agents_wait_for_their_tools() {
    let (report, requests) = run(
        r#"[agents(#{ count: 3, concurrency: 1, rounds: 2, tools: 2, tool_time: "50ms", agent_share: 1.0, depth: 2,
            task_tokens: 32, output_tokens: 5, result_tokens: 16 })]"#,
    );
    // The root runs twice, and two agents run two rounds each.
    assert_eq!(counter(&report, "completed"), 3 * 6);
    let time = |row: usize, key: &str| requests[row][key].as_f64().expect("a time");
    assert_eq!(time(1, "arrival_ms"), time(0, "end_ms") + 50.0);
    assert!(time(5, "arrival_ms") >= time(3, "end_ms").max(time(4, "end_ms")));
}

#[test]
fn data_sets_and_files_of_other_tools_are_workloads() {
    let folder = Folder::with(
        r#"let c = cluster(#{ engines: pool(#{ engine: engine(#{ num_gpu_blocks: 4_097 }), latency: fixed(#{ step: "10ms" }) }) });
let chats = burst(#{ count: 4, over: "10s", dataset: dataset(#{ path: "chats.json", order: "file" }) });
run(#{ cluster: c, workloads: [chats] + workload_file("load.yaml") });
"#,
    );
    folder.write(
        "chats.json",
        r#"[{"conversations": [{"from": "human", "value": "What is the capital of France?"}, {"from": "gpt", "value": "It is Paris."}]}]"#,
    );
    folder.write(
        "load.yaml",
        "load: {type: constant, stages: [{rate: 2, duration: 10}]}\nserver: {type: vllm}\ndata:\n  type: random\n  \
         input_distribution: {mean: 100, std: 10, min: 50, max: 150}\n  output_distribution: {mean: 10}\n",
    );
    let said = folder.run(&["--json"]).ended(0);
    assert!(said.stderr.contains("load.yaml: these have no effect here: server"), "{}", said.stderr);
    let report = said.json()["runs"][0].clone();
    let of = |workload: &str, name: &str| report["workloads"][workload]["counters"][name].clone();
    // 30 and 12 characters are 8 and 3 tokens.
    assert_eq!((of("burst", "prompt_tokens"), of("burst", "output_tokens")), (32.into(), 12.into()));
    assert_eq!((of("inference-perf", "completed"), of("inference-perf", "output_tokens")), (20.into(), 200.into()));
}

#[test]
fn what_makes_no_sense_is_refused_with_its_place() {
    let sizes = "prompt_tokens: 16, output_tokens: 2";
    for (workload, message) in [
        (r#"constant(#{ rate: stages([["10s"]]), SIZES })"#, "invalid `stages`: element 1: expected a stage"),
        (r#"constant(#{ rate: stages([["10s", 0]]), SIZES })"#, "the rate is 0 all the time"),
        (r#"constant(#{ rate: on_off(#{ on: 1, on_for: "1s", off_for: "1s" }), SIZES })"#, "needs an end"),
        (r#"burst(#{ count: 1, timeout: "0s", SIZES })"#, "invalid `timeout`: expected above 0"),
        (r#"burst(#{ count: 1, retry: #{ backoff: "1s" }, SIZES })"#, "`retry` needs the option `max_attempts`"),
        (
            r#"burst(#{ count: 1, cancel: #{ share: 2.0, after: "1s" }, SIZES })"#,
            "invalid `share` of `cancel`: expected 0 to 1",
        ),
        (r#"closed_loop(#{ concurrency: 1, count: 1, max_in_flight: 1, SIZES })"#, "`max_in_flight` limits open loops"),
        (r#"burst(#{ count: 1, classes: [] })"#, "`classes` needs at least one class"),
        (r#"burst(#{ count: 1, classes: [#{ wieght: 1, SIZES }] })"#, "has no option `wieght`"),
        (r#"burst(#{ count: 1, slo: #{ class: "a" }, SIZES })"#, "`slo` needs at least one of"),
        (r#"burst(#{ count: 1, dataset: dataset(#{ path: "none" }) })"#, "cannot be read"),
        (r#"burst(#{ count: 1, adapters: #{ count: 0 }, SIZES })"#, "invalid `count`: expected 1 to"),
        (r#"bursty(#{ rate: 1, count: 1, burstiness: 0.0, SIZES })"#, "invalid `burstiness`: expected 0.01"),
        (r#"burst(#{ count: 1, prompt_tokens: histogram([[5, 1], [0, 1]]), output_tokens: 1 })"#, "invalid length 0"),
    ] {
        let said = refused(&format!("[{}]", workload.replace("SIZES", sizes)));
        assert!(said.contains(message), "{workload}: {said}");
    }
}

#[test]
fn requests_know_their_deadline_and_what_was_computed_in_vain() {
    let (report, requests) = run(
        r#"[constant(#{ rate: 20, count: 20, prompt_tokens: 500, output_tokens: 100, timeout: "700ms", deadline: "2s",
            retry: #{ max_attempts: 3, backoff: "100ms" } })]"#,
    );
    let sum = |key: &str| requests.iter().filter_map(|request| request[key].as_u64()).sum::<u64>();
    assert!(counter(&report, "wasted_tokens") > 0 && counter(&report, "wasted_prompt_tokens") > 0);
    assert_eq!(sum("wasted_tokens"), counter(&report, "wasted_tokens"));
    assert_eq!(sum("wasted_prompt_tokens"), counter(&report, "wasted_prompt_tokens"));
    let first = |request: &Value| {
        let is_first = |other: &&Value| other["session"] == request["session"] && other["attempt"].is_null();
        requests.iter().find(is_first).and_then(|first| first["arrival_ms"].as_f64()).expect("a first attempt")
    };
    assert!(requests.iter().any(|request| request["attempt"].is_u64()));
    for request in &requests {
        let deadline_ms = request["deadline_ms"].as_f64().expect("a deadline");
        assert!((deadline_ms - first(request) - 2000.0).abs() < 1e-6, "{request}");
    }
    let (_, patient) = run(r#"[constant(#{ rate: 20, count: 2, prompt_tokens: 5, output_tokens: 1 })]"#);
    assert!(
        patient.iter().all(|request| request.get("deadline_ms").is_none() && request.get("wasted_tokens").is_none())
    );
}

#[test]
fn folders_of_servegen_are_workloads() {
    let folder = Folder::with(&on_one_engine(r#"workload_file("day")"#));
    std::fs::create_dir(folder.path().join("day")).expect("the folder is writable");
    folder.write("day/chunk-0-trace.csv", "3600,0.05,1.5,Gamma,0.44,45\n4200,0,,,,\n4800,0.1,1.2,Weibull,0.8,9\n");
    folder.write(
        "day/chunk-0-dataset.json",
        r#"{"0": {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{7: 1.0}"},
            "4500": {"input_tokens": "{300: 1.0}", "output_tokens": "{8: 1.0}"}}"#,
    );
    let _ = folder.run(&["--requests", "requests.jsonl"]).ended(0);
    let text = std::fs::read_to_string(folder.path().join("requests.jsonl")).expect("it was written");
    let requests: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let of = |name: &str| requests.iter().filter(|request| request["workload"] == name).collect::<Vec<_>>();
    let (first, second) = (of("chunk-0 3600s"), of("chunk-0 4800s"));
    assert_eq!(first.len() + second.len(), requests.len());
    assert!((5..100).contains(&first.len()) && (20..150).contains(&second.len()), "{} {}", first.len(), second.len());
    let at_ms = |request: &&Value| request["arrival_ms"].as_f64().expect("a time");
    assert!(first.iter().all(|request| at_ms(request) < 600_000.0));
    assert!(second.iter().all(|request| (1_200_000.0..1_800_000.0).contains(&at_ms(request))));
    assert!(first.iter().all(|request| matches!(request["prompt_tokens"].as_u64(), Some(100 | 200))));
    assert!(second.iter().all(|request| request["prompt_tokens"] == 300 && request["output_tokens"] == 8));
    folder.write("day/chunk-0-trace.csv", "0,1,200,Gamma,1,1\n");
    folder.run(&[]).failed(2, &["chunk-0-trace.csv: line 1", "invalid variation 200"]);
}

/// A request that waits for its turn is not lost, and its times count from its start.
#[test]
fn sessions_above_the_limit_may_wait() {
    let load = |full: &str| {
        run(&format!(
            "[constant(#{{ rate: 100, count: 40, prompt_tokens: 64, output_tokens: 10, max_in_flight: 3{full} }})]"
        ))
    };
    let (dropping, _) = load("");
    let (again, _) = load(", when_full: \"drop\"");
    assert_eq!(dropping["fingerprint"], again["fingerprint"]);
    assert!(counter(&dropping, "dropped") > 20);
    let (report, requests) = load(", when_full: \"queue\"");
    assert_eq!((counter(&report, "completed"), counter(&report, "dropped")), (40, 0));
    let ms = |row: &Value, field: &str| row[field].as_f64().expect("a time");
    for row in &requests {
        let at_ms = ms(row, "arrival_ms");
        let in_flight = requests.iter().filter(|other| ms(other, "arrival_ms") <= at_ms && at_ms < ms(other, "end_ms"));
        assert!(in_flight.count() <= 3, "at {at_ms}");
        assert!(ms(row, "end_ms") - at_ms < 200.0, "{row}");
    }
    assert!(
        refused(r#"[constant(#{ rate: 1, count: 1, prompt_tokens: 1, output_tokens: 1, when_full: "queue" })]"#)
            .contains("`when_full` needs `max_in_flight`")
    );
}

/// The measured workload starts when the last request of the warm-up has ended. Only this workload is measured.
#[test]
fn a_workload_may_warm_up_and_is_in_no_number() {
    let warm = r#"burst(#{ name: "w", count: 4, over: "1s", prompt_tokens: 64, output_tokens: 10, warm_up: true })"#;
    let measured = r#"constant(#{ name: "m", rate: 10, count: 5, start: "2s", prompt_tokens: 64, output_tokens: 3 })"#;
    let (_, alone) = run(&format!("[{}]", warm.replace("true", "false")));
    let end_ms = |requests: &[Value]| {
        requests.iter().map(|request| request["end_ms"].as_f64().expect("it ends")).fold(0.0, f64::max)
    };
    let (report, requests) = run(&format!("[{measured}, {warm}]"));
    assert!(requests.len() == 5 && requests.iter().all(|request| request["workload"] == "m"), "{requests:?}");
    assert_eq!((counter(&report, "completed"), counter(&report, "output_tokens")), (5, 15));
    let first_ms = requests[0]["arrival_ms"].as_f64().expect("a time");
    assert!((first_ms - end_ms(&alone) - 2000.0).abs() < 1e-6, "{first_ms}");
    let measured_ms = report["duration_ms"].as_f64().expect("a time");
    assert!((measured_ms - (end_ms(&requests) - end_ms(&alone))).abs() < 1e-6, "{measured_ms}");
    assert!(refused(&format!("[{warm}]")).contains("needs a workload that is measured after the warm-up"));
    // A run that ends during the warm-up has no measurements.
    let cut = Folder::with(
        &on_one_engine(&format!("[{measured}, {warm}]")).replace("#{ cluster", "#{ max_time: \"500ms\", cluster"),
    );
    let report = cut.run(&["--json"]).ended(0).json()["runs"][0].clone();
    assert_eq!(counter(&report, "requests"), 0, "{report}");
}

/// Branches start after a turn. A later turn waits for the branches and repeats their last answers.
#[test]
fn files_of_guidellm_and_aiperf_are_workloads() {
    let of_file = |load: &Value| {
        let folder = Folder::with(&on_one_engine(r#"workload_file("load.json")"#));
        folder.write("load.json", load.to_string());
        folder
    };
    let rows = |load: &Value| {
        let folder = of_file(load);
        let report = folder.run(&["--json", "--requests", "requests.jsonl"]).ended(0).json()["runs"][0].clone();
        let text = std::fs::read_to_string(folder.path().join("requests.jsonl")).expect("it was written");
        let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
        (report, rows)
    };
    let branches = json!([
        {"at_turn": 0, "turns": 2, "agent_id": "worker", "merge_after": 2, "first_output_tokens": 7},
        {"at_turn": 1, "turns": 1},
        {"at_turn": 0, "turns": 3, "first_prompt_tokens": 40},
    ]);
    let (_, requests) = rows(&json!({"metadata": {"name": "x"}, "spec": {
        "profile": {"kind": "concurrent", "streams": 1},
        "data": [{"kind": "synthetic_text", "prompt_tokens": 100, "output_tokens": 10, "turns": 4,
            "first_prompt_tokens": 500, "branches": branches}],
        "constraints": [{"kind": "max_requests", "count": 10}],
    }}));
    let mut lengths: Vec<_> =
        requests.iter().map(|row| (row["prompt_tokens"].as_u64(), row["output_tokens"].as_u64())).collect();
    lengths.sort_unstable();
    // Generated by guidellm 0.8.1 itself: the lengths of its generator, with the history of each node in its graph.
    let expected =
        [(40, 10), (150, 10), (260, 10), (500, 7), (500, 10), (500, 10), (607, 10), (720, 10), (1450, 10), (1560, 10)];
    assert_eq!(lengths, expected.map(|(prompt, output)| (Some(prompt), Some(output))));
    let time = |row: &Value, name: &str| row[name].as_f64().expect("a time");
    let of = |prompt: u64| requests.iter().find(|row| row["prompt_tokens"] == prompt).expect("it is there");
    assert_eq!(time(of(720), "arrival_ms"), time(of(260), "end_ms"), "it waits for the branch");
    assert_eq!(time(of(40), "arrival_ms"), time(&requests[0], "end_ms"));
    let phase = |kind: &str, requests: u64| json!({"type": kind, "requests": requests, "rate": 5, "concurrency": 2});
    let (report, requests) = rows(&json!({"schemaVersion": "2.0", "benchmark": {
        "dataset": {"type": "synthetic", "isl": {"mean": 60, "stddev": 5}, "osl": 4, "turnDelayRatio": 1.0},
        "warmup": phase("concurrency", 8), "profiling": phase("poisson", 20),
    }}));
    assert_eq!((counter(&report, "completed"), requests.len()), (20, 20));
    assert!(requests.iter().all(|row| row["workload"] == "profiling"));
    let refused = |load: &Value, needle: &str| {
        of_file(load).run(&[]).failed(2, &[needle]);
    };
    refused(
        &json!({"schemaVersion": "2.0", "benchmark": {"dataset": {"isl": 1, "osl": 1},
        "profiling": {"type": "user_centric", "requests": 1}}}),
        "benchmark.profiling.type: `user_centric` is not supported",
    );
    refused(
        &json!({"spec": {"profile": {"kind": "poisson", "rate": 1}, "data": [{"prompt_tokens": 1, "output_tokens": 1,
        "turns": 2}]}}),
        "rate_type: expected concurrent, synchronous or throughput with several turns",
    );
}
