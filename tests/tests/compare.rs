//! `compare` in scenarios, `vcr compare`, and `vcr run --baseline`.

use std::fs;

use vcr_tests::{Folder, Said};

/// Simulates a capture and plays it back.
const SCENARIO: &str = r#"
let real = capture("real.jsonl.zst");
let c = cluster(#{ engines: pool(#{ engines: 2, engine: engine(#{}), latency: fixed(#{ step: param("step", "10ms") }) }) });
let sim = run(#{ name: "sim", cluster: c, workloads: [ real ] });
let again = run(#{ name: "again", cluster: c, workloads: [ playback(real) ] });
"#;

/// A single run without a capture.
const PLAIN: &str = r#"
let c = cluster(#{ engines: pool(#{ engines: 1, engine: engine(#{}), latency: fixed(#{ step: param("step", "10ms") }) }) });
run(#{ name: "chat", cluster: c, workloads: [ poisson(#{ rate: "5/s", count: 60, prompt_tokens: 100, output_tokens: 20 }) ] });
"#;

fn folder() -> Folder {
    let folder = Folder::with(SCENARIO);
    let _ = folder.vcr(&["inspect", "gen-demo", "-o", "real.jsonl.zst", "--requests", "120"]).ended(0);
    folder.write("plain.rhai", PLAIN);
    folder
}

fn with(folder: &Folder, lines: &str) -> Said {
    folder.write("more.rhai", format!("{SCENARIO}{lines}"));
    folder.vcr(&["run", "more.rhai", "--json"])
}

#[test]
fn a_played_back_capture_is_itself() {
    let folder = folder();
    let said = with(
        &folder,
        r#"let same = compare(again, real);
        expect(same, "ttft p50 error < 0.01%");
        expect(same, "e2e p99.9 error < 0.01%");
        expect(same, "itl ks < 0.01");
        expect(same, "queue wasserstein < 0.01%");
        expect(same, "e2e pearson > 0.999");
        check("sides", value(same, "ttft p50 reference") == value(same, "ttft p50 compared"));
        let range = interval(same, "ttft mean");
        check("interval", range[0] <= 0.0 && range[1] >= 0.0);"#,
    );
    let report = said.ended(0).json();
    let found = &report["comparisons"][0];
    assert_eq!((&found["rule"], &found["matched"]), (&"id".into(), &120.into()), "{found:#}");
    assert_eq!(found["metrics"].as_array().map(Vec::len), Some(4));
}

#[test]
fn a_simulation_that_is_wrong_fails_with_its_error() {
    let folder = folder();
    let said =
        with(&folder, r#"expect(compare(sim, real, #{ seed: 7, resamples: 200 }), "ttft p50 error < 10%");"#).ended(1);
    let report = said.json();
    let assertion = &report["assertions"][0];
    assert_eq!(assertion["subject"], "ttft p50 error against real.jsonl.zst");
    assert!(assertion["observed"].as_f64().is_some_and(|error| error > 0.1), "{assertion:#}");
    assert!(assertion["observed_text"].as_str().is_some_and(|text| text.contains(" % (95 %: -")), "{assertion:#}");
    // The same seed leads to the same intervals.
    let again = folder.vcr(&["run", "more.rhai", "--json"]).ended(1).json();
    assert_eq!(again["comparisons"], report["comparisons"]);
    // Requests are joined by their IDs, even if their sessions shift their arrivals.
    assert_eq!(
        (&report["comparisons"][0]["rule"], &report["comparisons"][0]["only_reference"]),
        (&"id".into(), &0.into())
    );
}

#[test]
fn two_results_are_joined_by_their_turns() {
    let folder = folder();
    let said = with(&folder, r#"expect(compare(sim, again, #{ workload: "capture" }), "throughput error < 90%");"#);
    let report = said.ended(0).json();
    assert_eq!(report["comparisons"][0]["rule"], "turn");
}

#[test]
fn a_comparison_that_makes_no_sense_is_refused() {
    let folder = folder();
    let refused = |lines: &str, needles: &[&str]| with(&folder, lines).failed(2, needles);
    refused(
        r#"expect(compare(sim, real), "ttft p50 < 10ms");"#,
        &["is not a condition on a comparison", "hint: write a metric"],
    );
    refused(r#"expect(compare(sim, real), "outside < 10%");"#, &["is not a condition on a comparison"]);
    refused(r#"value(compare(sim, real), "speed p50 error");"#, &["is not a metric of comparisons"]);
    refused(r#"interval(compare(sim, real), "ttft mape");"#, &["has no interval", "hint: intervals are of"]);
    refused("compare(sim, 3);", &["takes results of runs and captures, not the number 3"]);
    refused(r#"compare(sim, real, #{ workload: "chat" });"#, &["has no workload `chat`", "it has capture"]);
    refused("compare(sim, real, #{ resample: 3 });", &["no option `resample`", "did you mean `resamples`?"]);
    refused(r#"capture("more.rhai");"#, &["more.rhai"]);
    refused(r#"capture("none.jsonl");"#, &["none.jsonl", "No such file"]);

    let head = r#"{"kind":"meta","format":"vcr.capture","version":1}"#;
    folder.write("empty.jsonl", format!("{head}\n"));
    refused(r#"compare(sim, capture("empty.jsonl"));"#, &["the capture has no requests"]);
    let row = r#"{"kind":"request","arrival_ns":0,"prompt_tokens":5,"output_tokens":2,"finish_reason":"stop"}"#;
    let end = r#"{"kind":"end","at_ns":9,"requests":1,"unfinished":0}"#;
    folder.write("timeless.jsonl", format!("{head}\n{row}\n{end}\n"));
    refused(r#"compare(sim, capture("timeless.jsonl"));"#, &["timeless.jsonl has no times to compare"]);
    refused(r#"playback(capture("timeless.jsonl"));"#, &["has no times of its answers"]);
    let aborted = row.replace("stop", "abort");
    folder.write("aborted.jsonl", format!("{head}\n{aborted}\n{end}\n"));
    refused(r#"compare(sim, capture("aborted.jsonl"));"#, &["no request was answered whole in both"]);
}

#[test]
fn a_regression_ends_with_exit_code_1() {
    let folder = folder();
    for (out, step) in [("before", "step=10ms"), ("after", "step=11ms")] {
        let _ =
            folder.vcr(&["run", "plain.rhai", "-q", "-e", step, "--out", out, "--files", "report,requests"]).ended(0);
    }
    let compare = |limits: &[&str]| folder.vcr(&[&["compare", "before", "after"], limits].concat());
    let said = compare(&[]).ended(0).stdout;
    for part in
        ["after compared with before", "  ttft", "worse", "60 requests matched by workload, session and turn", "KS"]
    {
        assert!(said.contains(part), "`{part}` is not in:\n{said}");
    }
    // The mean gap of a request has the same name in both tables.
    let (_, of_requests) = said.split_once("change (95 %)").expect("a table of requests");
    let has = |name: &str| of_requests.lines().any(|line| line.split_whitespace().next() == Some(name));
    assert!(has("tpot") && !has("itl"), "{said}");
    let said = compare(&["--max-regression", "tpot.mean=5%", "--max-regression", "tpot.mean=15%"]).ended(1).stdout;
    assert!(said.contains("✗ chat  tpot.mean  10.00 % worse, at most 5 % allowed"), "{said}");
    assert!(said.contains("✓ chat  tpot.mean  10.00 % worse, at most 15 % allowed"), "{said}");
    // For throughput, a lower value is worse.
    let _ = compare(&["--max-regression", "output_tokens.rate=0%"]).ended(1);
    let better =
        folder.vcr(&["compare", "after", "before", "--max-regression", "tpot.mean=0%", "--json"]).ended(0).json();
    assert_eq!((&better["passed"], &better["limits"][0]["holds"]), (&true.into(), &true.into()));
    let error = &better["pairs"][0]["requests"]["metrics"][1]["statistics"][0];
    assert!(error["error_interval"]["low"].as_f64() <= error["error"].as_f64(), "{error:#}");

    let refused = |limit: &str, needles: &[&str]| compare(&["--max-regression", limit]).failed(2, needles);
    refused("ttft=5%", &["expected METRIC.STATISTIC=PERCENT%"]);
    refused("tttft.p99=5%", &["unknown metric `tttft`"]);
    refused("ttft.p98=5%", &["`ttft` has no `p98` on both sides: expected", "p99"]);
    refused("batch.mean=5%", &["`batch` has no direction"]);
}

/// Tables of results fit the terminal: some columns are omitted, and `--full` shows all.
#[test]
fn tables_fit_a_terminal_of_80_columns() {
    let folder = folder();
    for (out, step) in [("before", "step=10ms"), ("after", "step=11ms")] {
        let _ = folder.vcr(&["run", "plain.rhai", "-q", "-e", step, "--out", out]).ended(0);
    }
    let said = |args: &[&str]| {
        let mut command = std::process::Command::new(vcr_tests::vcr());
        Said::of(command.args(args).current_dir(folder.path()).env("COLUMNS", "80")).stdout
    };
    let compare = ["compare", "before", "after"];
    for args in [
        &compare[..],
        &["gate", "--baseline", "before", "--candidate", "after"],
        &["inspect", "steps", "after/steps.jsonl"],
        &["inspect", "model", "llama-3.1-8b", "--gpu", "h100"],
        &["inspect", "vllm-args", "vllm serve Qwen/Qwen3-8B -tp 2"],
        &["run", "plain.rhai", "--sweep", "step=10ms,11ms"],
    ] {
        let text = said(args);
        assert!(text.lines().count() > 3, "{args:?}: {text}");
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{args:?} writes wide lines:\n{}", wide.join("\n"));
    }
    let narrow = said(&compare);
    assert!(
        narrow.contains("--full also shows") && !narrow.contains("Wasserstein") && narrow.contains("p99"),
        "{narrow}"
    );
    let full = said(&[&compare[..], &["--full"]].concat());
    assert!(!full.contains("--full also shows") && full.contains("Wasserstein"), "{full}");
}

#[test]
fn a_run_is_compared_with_its_baseline() {
    let folder = folder();
    let _ = folder.vcr(&["run", "plain.rhai", "-q", "--out", "base"]).ended(0);
    let run = |args: &[&str]| folder.vcr(&[&["run", "plain.rhai", "--baseline", "base"], args].concat());
    let said = run(&["--max-regression", "ttft.p99=5%"]).ended(0);
    assert!(said.stdout.contains("✓  chat  ttft.p99  at most 5 % worse than base  unchanged"), "{}", said.stdout);
    assert!(said.stdout.contains("1 of 1 assertions passed"), "{}", said.stdout);
    let slower = ["-e", "step=12ms", "--max-regression", "tpot.p50=5%"];
    let _ = run(&slower).ended(1);
    // The baseline may be the folder that is written.
    let _ = run(&[&slower[..], &["--out", "base"]].concat()).ended(1);
    let _ = run(&slower).ended(0);
    folder.vcr(&["run", "plain.rhai", "--baseline", "none"]).failed(2, &["none"]);
    folder.vcr(&["run", "plain.rhai", "--max-regression", "ttft.p99=5%"]).failed(2, &["--baseline"]);
    run(&["plain.rhai"]).failed(2, &["--baseline"]);
    run(&["--repeat", "2"]).failed(2, &["--baseline"]);
}

/// A limit decides the exit code, so every output shows a broken limit.
#[test]
fn a_regression_is_in_every_output() {
    let folder = folder();
    let _ = folder.vcr(&["run", "plain.rhai", "-q", "--out", "base"]).ended(0);
    let slower = ["plain.rhai", "--baseline", "base", "-e", "step=12ms", "--max-regression", "tpot.p50=5%"];
    let mut command = std::process::Command::new(vcr_tests::vcr());
    let _ = command.arg("run").args(slower).args(["--out", "out"]).current_dir(folder.path());
    let said = Said::of(command.env("GITHUB_STEP_SUMMARY", folder.path().join("steps.md"))).ended(1);
    let broken = "✗  chat  tpot.p50  at most 5 % worse than base  20.00 % worse";
    assert!(said.stdout.contains(broken) && said.stdout.contains("1 of 1 assertions failed"), "{}", said.stdout);
    assert!(said.stderr.contains("--baseline base --max-regression tpot.p50=5%"), "{}", said.stderr);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect("it was written");
    for (file, part) in [
        ("steps.md", "### ❌ plain.rhai: 1 of 1 assertions failed"),
        ("out/summary.md", "| ❌ | chat | tpot.p50 at most 5 % worse than base | 20.00 % worse |"),
        ("out/junit.xml", "<failure message=\"observed 20.00 % worse\"/>"),
        ("out/report.html", "1 of 1 assertions failed"),
        ("out/openmetrics.txt", "assertion=\"tpot.p50 at most 5 % worse than base\"} 0"),
    ] {
        assert!(read(file).contains(part), "`{part}` is not in {file}:\n{}", read(file));
    }
    let quiet = folder.vcr(&[&["run", "-q"], &slower[..]].concat()).ended(1);
    assert!(quiet.stdout.contains(broken), "{}", quiet.stdout);
    let report = folder.vcr(&[&["run", "--json"], &slower[..]].concat()).ended(1).json();
    assert_eq!((&report["passed"], &report["assertions"][0]["passed"]), (&false.into(), &false.into()));
    // If the baseline cannot be compared, no output may look like a success.
    let said = folder.vcr(&["run", "plain.rhai", "--baseline", "base", "--max-regression", "ttft.p98=5%", "--json"]);
    let said = said.ended(2);
    assert_eq!(
        (&said.json()["passed"], &said.json()["assertions"][0]["subject"]),
        (&false.into(), &"comparison".into())
    );
}

#[test]
fn captures_and_reports_are_compared() {
    let folder = folder();
    let _ = folder.vcr(&["run", "test.rhai", "-q", "--out", "out"]).ended(0);
    folder.vcr(&["compare", "real.jsonl.zst", "out"]).failed(2, &["has several runs", "--of: sim, again"]);
    folder.vcr(&["compare", "real.jsonl.zst", "out", "--of", "sam"]).failed(2, &["no run `sam`: it has sim, again"]);
    let found = folder.vcr(&["compare", "real.jsonl.zst", "out", "--of", "again", "--json"]).ended(0).json();
    let change = |metric: &str| {
        let changes = found["pairs"][0]["changes"].as_array().expect("a list");
        let change = changes.iter().find(|each| each["metric"] == metric && each["statistic"] == "p50").expect(metric);
        (change["reference"].clone(), change["compared"].clone())
    };
    let (reference, compared) = change("ttft");
    assert_eq!(reference, compared, "it was played back");
    assert_eq!(found["pairs"][0]["requests"]["rule"], "id");

    for args in [&["out/requests.jsonl", "--of", "again"][..], &["out/requests.jsonl#again"], &["out#again"]] {
        let said = folder.vcr(&[&["compare", "real.jsonl.zst"], args].concat()).ended(0).stdout;
        assert!(said.contains("120 requests matched"), "{said}");
    }
    folder
        .vcr(&["compare", "real.jsonl.zst", "out/requests.jsonl#sam"])
        .failed(2, &["unknown run `sam`: expected sim, again"]);

    // Without requests.jsonl, only the statistics can be compared.
    fs::remove_file(folder.path().join("out/requests.jsonl")).expect("it was written");
    let said = folder.vcr(&["compare", "out", "out"]).ended(0).stdout;
    assert!(said.contains("requests were not compared: one side has no requests.jsonl"), "{said}");
    let head = r#"{"kind":"meta","format":"vcr.capture","version":1}"#;
    folder
        .write("timeless.jsonl", format!(r#"{head}{}{{"kind":"request","prompt_tokens":5,"output_tokens":2}}"#, "\n"));
    folder
        .vcr(&["compare", "timeless.jsonl", "real.jsonl.zst"])
        .failed(2, &["nothing to compare: timeless.jsonl has no times"]);
    folder.write("empty.jsonl", format!("{head}\n"));
    folder.vcr(&["compare", "empty.jsonl", "real.jsonl.zst"]).failed(2, &["empty.jsonl has no requests"]);
    folder.vcr(&["compare", "nothing", "real.jsonl.zst"]).failed(2, &["nothing"]);
    folder.write("out/report.json", "{}");
    folder.vcr(&["compare", "out", "real.jsonl.zst"]).failed(2, &["expected `schema_version` 2"]);
}
