//! Files for people: the page in a browser, JUnit, Markdown, OpenMetrics, and tables of requests.
//! `tests/frontends/clients.sh browser` installs the browser's driver.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use vcr_tests::{Folder, browser, vcr};

/// Two runs with two workloads, a crash, preemptions, P/D, and texts that look like markup.
const SCENARIO: &str = r#"//! Claim: <b>markup</b> is "text" & stays it.
let model = fixed(#{ prefill: "20ms", decode: "10ms" });
let size = param("size", 60);
let word = param("word", "plain");
let small = engine(#{ num_gpu_blocks: 80, max_model_len: 600 });
let chat = poisson(#{ name: "chat", rate: "50/s", count: size, prompt_tokens: 300, output_tokens: 30 });
let bad = burst(#{ name: "<img src=x onerror='window.scripted=1'>", count: 60, prompt_tokens: 200, output_tokens: 40 });
let one = run(#{
    name: "one </script><script>window.scripted=2</script>", workloads: [chat, bad], retries: 1,
    cluster: cluster(#{ engines: pool(#{ engines: 2, engine: small, latency: model }) }),
    faults: [crash(#{ at: "300ms", engine: 1, restart_after: "200ms" })],
});
let two = run(#{
    name: "two", seed: 2, workloads: [chat],
    cluster: cluster(#{
        prefill: pool(#{ latency: model }), decode: pool(#{ latency: model }),
        link: link(#{ bandwidth: "1GB/s", kv_bytes_per_token: "4KiB" }),
    }),
});
expect(one, "retries", "count > 0");
expect(two, "ttft", "p99 < 1ms");
check("a <i>condition</i>", true, "it | is");
"#;

fn text(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn json(folder: &Path, name: &str) -> Value {
    serde_json::from_str(&text(folder, name)).expect("it is JSON")
}

/// Writes the scenario's folder `out`. The scenario's second assertion fails.
fn written(folder: &Folder, args: &[&str]) {
    let _ = folder.run(&[args, &["--quiet", "--out", "out"]].concat()).ended(1);
}

/// Coordinates of the chart's line with this label.
fn line(chart: &Value, label: &str) -> (Vec<f64>, Vec<f64>) {
    let labels = chart["labels"].as_array().expect("labels");
    let index = labels.iter().position(|own| own == label).unwrap_or_else(|| panic!("no {label}: {labels:?}"));
    let column = |index: usize| chart["data"][index].as_array().expect("a column");
    let points = column(0).iter().zip(column(index + 1));
    points.filter_map(|(x, y)| Some((x.as_f64()?, y.as_f64()?))).unzip()
}

fn chart<'a>(charts: &'a Value, id: &str) -> &'a Value {
    let mut all = charts.as_array().expect("a list of charts").iter();
    all.find(|chart| chart["id"] == id).unwrap_or_else(|| panic!("there is no chart {id}"))
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
}

/// Returns `true` if any cell of a table is this text.
fn has_cell(rows: &Value, text: &str) -> bool {
    rows.as_array().expect("rows").iter().any(|row| row.as_array().expect("cells").iter().any(|cell| cell == text))
}

#[test]
fn a_browser_draws_the_numbers_of_the_report() {
    let Some(browser) = browser() else { return };
    let folder = Folder::with(SCENARIO);
    written(&folder, &["-e", "word=</dd><script>window.scripted=3</script>"]);
    let out = folder.path().join("out");
    let page = browser.page(&out.join("report.html"));
    let report = json(&out, "report.json");
    let (run, charts) = (&report["runs"][0], &page["charts"]);
    for chart in charts.as_array().expect("a list") {
        let painted = chart["painted"].as_u64().expect("a number");
        assert!(painted > 1_000, "{} is almost empty: {painted} pixels", chart["id"]);
        assert!(chart["text"].as_str().is_some_and(|text| text.len() > 20), "{} has no words", chart["id"]);
    }
    // Distributions equal the report's values exactly.
    let (_, over_time) = line(chart(charts, "itl-time"), "p95");
    assert!(over_time.len() > 3 && over_time.iter().all(|gap_ms| *gap_ms >= 0.0), "{over_time:?}");
    for metric in ["ttft", "itl", "e2e"] {
        let of = |trends: &Value, label: &str| {
            let trend = &trends[format!("{metric}_ms")];
            let (xs, ys) = line(chart(charts, &format!("{metric}-cdf")), label);
            for (statistic, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)] {
                let value = trend[statistic].as_f64().expect("a number");
                // Where several values are equal, the line shows the highest of their shares.
                let drawn = xs.iter().zip(&ys).any(|(x, y)| close(*x, value) && *y >= share);
                assert!(drawn, "{metric} {statistic} of {label} is not drawn at {value}");
            }
            let (_, counts) = line(chart(charts, &format!("{metric}-histogram")), label);
            // The last bin occurs twice, to draw its end.
            let count: f64 = counts[..counts.len() - 1].iter().sum();
            assert_eq!(Some(count), trend["count"].as_f64(), "{metric} of {label}");
        };
        of(&run["metrics"]["trends"], "all requests");
        for (name, metrics) in run["workloads"].as_object().expect("workloads") {
            let is_long = name.chars().count() > 40;
            let label = if is_long { name.chars().take(39).chain(['…']).collect() } else { name.clone() };
            of(&metrics["trends"], &label);
        }
    }
    // Charts over time: totals equal the counters, and both ends of the crash are marked.
    let counters = &run["metrics"]["counters"];
    let seconds = run["duration_ms"].as_f64().expect("a number") / 1000.0;
    for (label, counter) in [("arriving", "requests"), ("ending", "requests")] {
        let (xs, rates) = line(chart(charts, "load"), label);
        let interval = xs[1] - xs[0];
        assert!((rates.iter().sum::<f64>() * interval - counters[counter].as_f64().expect("a number")).abs() < 1e-6);
        assert!((interval * xs.len() as f64 - seconds).abs() < 1e-9);
    }
    let last = |id: &str, label: &str| *line(chart(charts, id), label).1.last().expect("samples");
    let preempted = last("preemptions", "engines 0") + last("preemptions", "engines 1");
    assert_eq!(Some(preempted), counters["preemptions"].as_f64());
    assert!(preempted > 0.0, "the scenario is there to preempt");
    let (times, computed) = line(chart(charts, "prefill"), "engines 0");
    let tokens: f64 = computed.iter().sum::<f64>() * (times[1] - times[0]);
    assert!(tokens > 0.0 && tokens <= run["engines"][0]["computed_tokens"].as_f64().expect("a number"), "{tokens}");
    let (_, usage) = line(chart(charts, "kv"), "engines 0");
    let peak = run["engines"][0]["kv_peak_usage"].as_f64().expect("a number");
    let most = usage.iter().copied().fold(0.0, f64::max);
    assert!(most > 0.5 && most <= peak + 1e-4, "{most} of {peak}");
    assert!(has_cell(&page["#timelines"], "engines 1: crash") && has_cell(&page["#timelines"], "engines 1: restart"));
    // The slowest request equals its row in requests.jsonl.
    let requests = text(&out, "requests.jsonl");
    let rows = requests.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let own = rows.filter(|row| row["of"] == run["name"]);
    let total = |row: &Value| row["end_ms"].as_f64().expect("it ended") - row["arrival_ms"].as_f64().expect("a time");
    let slowest = own.max_by(|one, other| total(one).total_cmp(&total(other))).expect("there are requests");
    assert_eq!(page["#slowest"][0][0], slowest["id"].to_string());
    assert!(page["lives"][0].as_str().is_some_and(|life| life.contains("prefill") && life.contains("decode")));
    assert_eq!(page[".assertions"][0][0], "✗ failed", "failed assertions come first");
    assert!(has_cell(&page[".assertions"], "a <i>condition</i>"));
    assert_eq!(page["source"][0].as_str(), Some(SCENARIO));
    // The page also shows the second run, and the comparison of both.
    assert_eq!(page["others"].as_array().map(Vec::len), Some(3));
    let (_, both) = line(chart(&page["compared"], "ttft-cdf"), "two");
    assert!(both.len() > 5);
    let rows = page["comparison"].as_array().expect("rows");
    let ttft = rows.iter().find(|row| row[0] == "ttft p50").expect("it is compared");
    assert!(ttft[1] != ttft[2] && ttft[3].as_str().is_some_and(|change| change.ends_with('%')), "{ttft}");
    // The page differs by colour scheme, and can be printed.
    assert_ne!(page["light"], page["dark"]);
    assert_eq!(page["dark_charts"], page["compared"].as_array().map_or(0, Vec::len));
    assert!(page["paper"].as_u64() > Some(20_000), "nothing was printed");
    // The first screen shows the verdict, and tiles of the run whose assertion failed.
    assert_eq!(page["banner"][1], "1 of 3 assertions failed");
    let tile = &page["tiles"][0];
    assert_eq!((&tile[0], &tile[2]), (&"TTFT p99".into(), &"limit p99 < 1ms".into()), "{tile}");
    assert!(tile[3].as_str().is_some_and(|headroom| headroom.ends_with(" beyond")), "{tile}");
    let tooltip = |id: &str| page["tooltips"][id].as_str().unwrap_or_default().to_owned();
    assert!(
        tooltip("ttft-time").starts_with("at ") && tooltip("ttft-time").contains("p95: "),
        "{}",
        tooltip("ttft-time")
    );
    assert!(tooltip("ttft-cdf").contains(" %"), "{}", tooltip("ttft-cdf"));
}

#[test]
fn a_browser_compares_two_folders() {
    let Some(browser) = browser() else { return };
    let folder = Folder::with(SCENARIO);
    written(&folder, &[]);
    let _ = folder.run(&["--quiet", "--out", "later/out", "-e", "size=20", "--files", "report,charts"]).ended(1);
    let said = folder.vcr(&["report", "out", "later/out"]).ended(0);
    assert!(said.stderr.contains("wrote comparison.html"), "{}", said.stderr);
    folder.vcr(&["report", "out", "later/out"]).failed(2, &["comparison.html`: the file exists already", "--force"]);
    let page = browser.page(&folder.path().join("comparison.html"));
    assert_eq!(page["title"], "out and later/out - vcr");
    // At first, the page compares the first run of each folder.
    assert!(page["sections"].as_array().expect("titles").contains(&"Comparison".into()));
    let labels = chart(&page["charts"], "e2e-cdf")["labels"].to_string();
    assert!(labels.contains("out: one") && labels.contains("later/out: one"), "{labels}");
    assert_eq!(page["tiles"][0][0], "TTFT p95");
    assert!(page["tiles"][0][3].as_str().is_some_and(|text| text.contains("95 % interval")), "{}", page["tiles"]);
}

/// One engine that serves ten requests a second, so it keeps its limit up to that rate.
const QUESTION: &str = r#"
let c = cluster(#{ engines: pool(#{
    engine: engine(#{ max_num_seqs: param("seqs", 1) }), latency: fixed(#{ step: "10ms" }),
}) });
let w = constant(#{ rate: param("rate", 4.0), duration: "20s", prompt_tokens: 10, output_tokens: 10 });
expect(run(#{ cluster: c, workloads: [w] }), "ttft", "p99 < 50ms");
"#;

#[test]
fn searches_and_sweeps_have_pages_that_link_to_their_runs() {
    let folder = Folder::with(QUESTION);
    let _ = folder.run(&["--search", "rate=1..64", "--out", "search"]).ended(0);
    let _ = folder.run(&["--sweep", "rate=4,8,16", "--sweep", "seqs=1,2", "--out", "sweep"]).ended(0);
    // Folders of an earlier search or sweep may be replaced.
    let _ = folder.run(&["--search", "rate=1..64", "--out", "search"]).ended(0);
    for run in ["search/rate=10", "search/rate=11", "sweep/rate=16,seqs=2"] {
        assert!(folder.path().join(run).join("report.html").is_file(), "{run}");
    }
    assert!(!folder.path().join("search/rate=10/steps.jsonl").exists(), "steps of every point fill a disk");
    let Some(browser) = browser() else { return };
    let page = |name: &str| browser.page(&folder.path().join(name).join("points.html"));
    let search = page("search");
    assert!(search["banner"][1].as_str().is_some_and(|text| text.contains("is 10; 11 does not")), "{search}");
    assert_eq!((&search["tiles"][0][0], &search["tiles"][0][1]), (&"rate".into(), &"10".into()));
    let (rates, _) = line(chart(&search["charts"], "curve-0"), "keeps all assertions");
    assert!(rates.contains(&10.0) && !rates.contains(&11.0), "{rates:?}");
    assert!(search["tooltips"]["curve-0"].as_str().is_some_and(|text| text.contains("rate=")), "{search}");
    let sweep = page("sweep");
    assert!(sweep["sections"].to_string().contains("Output tokens/s by rate and seqs"), "{}", sweep["sections"]);
    assert!(chart(&sweep["charts"], "trade-ttft-ms-p95")["labels"].to_string().contains("Pareto front"));
    // Points with the same rate have the same x, and each is drawn.
    for id in ["curve-0", "curve-throughput", "trade-ttft-ms-p95"] {
        let drawn = |label: &str| line(chart(&sweep["charts"], id), label).0.len();
        assert_eq!(drawn("keeps all assertions") + drawn("breaks some"), 6, "{id}");
    }
}

/// `vcr report` writes the same files for people as `vcr run`.
#[test]
fn a_report_is_the_same_when_it_is_made_again() {
    let folder = Folder::with(SCENARIO);
    written(&folder, &[]);
    let out = folder.path().join("out");
    let names = ["report.html", "junit.xml", "summary.md", "openmetrics.txt"];
    let first = names.map(|name| text(&out, name));
    names.iter().for_each(|name| fs::remove_file(out.join(name)).expect("it is there"));
    let said = folder.vcr(&["report", "out"]).ended(0);
    assert!(
        said.stderr.contains("wrote report.html, junit.xml, summary.md, openmetrics.txt to out"),
        "{}",
        said.stderr
    );
    assert!(names.map(|name| text(&out, name)) == first, "the files differ");
    let _ = folder.vcr(&["report", "out", "--files", "csv,parquet"]).ended(0);
    assert_eq!(text(&out, "requests.csv").lines().count(), 1 + text(&out, "requests.jsonl").lines().count());
    assert!(fs::read(out.join("requests.parquet")).expect("it was written").starts_with(b"PAR1"));
    let of_run = ["--quiet", "--out", "tables", "--files", "csv,parquet"];
    let _ = folder.run(&of_run).ended(1);
    assert_eq!(text(&folder.path().join("tables"), "requests.csv"), text(&out, "requests.csv"));
    // A later run replaces all files.
    written(&folder, &[]);
    assert!(!out.join("requests.csv").exists(), "tables of an earlier run would be taken for this one's");
}

#[test]
fn results_are_told_to_other_tools() {
    let folder = Folder::with(SCENARIO);
    folder.write("steps.md", "before\n");
    let mut command = Command::new(vcr());
    command.args(["run", "test.rhai", "--quiet", "--out", "out"]).current_dir(folder.path());
    let status = command.env("GITHUB_STEP_SUMMARY", folder.path().join("steps.md")).status().expect("vcr starts");
    assert_eq!(status.code(), Some(1));
    let out = folder.path().join("out");
    let summary = text(&out, "summary.md");
    assert_eq!(text(folder.path(), "steps.md"), format!("before\n{summary}"));
    assert!(summary.starts_with("### ❌ test.rhai: 1 of 3 assertions failed\n"), "{summary}");
    assert!(summary.contains("| ✅ |  | a &lt;i&gt;condition&lt;/i&gt; | it \\| is |"), "{summary}");
    let junit = text(&out, "junit.xml");
    assert!(junit.contains(r#"tests="3" failures="1" errors="0""#), "{junit}");
    assert!(junit.contains("<failure message=\"observed "), "{junit}");
    assert!(junit.contains(r#"classname="test.rhai: two" name="ttft p99 &lt; 1ms""#), "{junit}");
    let metrics = text(&out, "openmetrics.txt");
    let report = json(&out, "report.json");
    let p99 = report["runs"][1]["metrics"]["trends"]["ttft_ms"]["p99"].as_f64().expect("a number") * 1e-3;
    let line = format!("vcr_ttft_seconds{{scenario=\"test.rhai\",run=\"two\",quantile=\"0.99\"}} {p99}");
    assert!(metrics.lines().any(|own| own == line), "no {line}");
    assert!(metrics.ends_with("# EOF\n"));
}

#[test]
fn folders_of_others_are_refused() {
    let folder = Folder::new();
    fs::create_dir(folder.path().join("out")).expect("it is writable");
    folder.vcr(&["report", "out"]).failed(2, &["`out` is not the folder of a run: it has no report.json"]);
    folder.vcr(&["report", "nowhere"]).failed(2, &["`nowhere` is not the folder of a run"]);
    assert!(!folder.path().join("nowhere").exists());
    folder.write("out/report.json", r#"{"schema_version": 2}"#);
    folder
        .vcr(&["report", "out"])
        .failed(2, &["invalid `out/report.json`: expected a file that vcr run --out has written"]);
    let report = r#"{"vcr_version":"1","scenario":"s","passed":true,"runs":[]}"#;
    folder.write("out/report.json", report);
    folder.write("out/junit.xml", "mine");
    folder.vcr(&["report", "out"]).failed(2, &["cannot write `out/junit.xml`: the file exists already"]);
    folder.vcr(&["report", "out", "--files", "csv"]).failed(2, &["`out` has no requests.jsonl"]);
    folder.vcr(&["report", "out", "--files", "steps"]).failed(2, &["invalid --files `steps`: expected html, junit"]);
    folder.vcr(&["report", "out", "out", "--files", "html"]).failed(2, &["invalid --files: expected one folder"]);
    folder.vcr(&["report", "out", "-o", "out/report.json", "--force"]).failed(2, &["it is the input"]);
    assert_eq!(text(&folder.path().join("out"), "report.json"), report);
}
