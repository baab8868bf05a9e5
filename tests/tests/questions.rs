//! Questions about a scenario: searches in scripts and from the command line, sweeps, and
//! repetitions with other seeds.

use std::fs;

use serde_json::Value;
use vcr_tests::Folder;

/// One engine that serves one request at a time, each for 100 ms: ten a second. Its time to the first token is 10
/// ms while no request waits.
const ONE_AT_A_TIME: &str = r#"let engines = param("engines", 1);
let c = cluster(#{ engines: pool(#{
    engines: engines, engine: engine(#{ max_num_seqs: 1 }), latency: fixed(#{ step: "10ms" }),
}) });
let load = |rate| run(#{
    cluster: c, workloads: [constant(#{ rate: rate, duration: "20s", prompt_tokens: 10, output_tokens: 10 })],
});
"#;

fn scenario(rest: &str) -> Folder {
    Folder::with(&format!("{ONE_AT_A_TIME}{rest}"))
}

/// A scenario that passes while its parameter `rate` is at most 10.
fn with_rate() -> Folder {
    scenario("let r = load.call(param(\"rate\", 4.0));\nexpect(r, \"ttft\", \"p99 < 50ms\");\n")
}

#[test]
fn find_max_finds_the_capacity_and_says_what_it_took() {
    let folder = scenario(
        r#"let most = find_max("rate", 1.0, 64.0, |rate| expect(load.call(rate), "ttft", "p99 < 50ms"));
check("found", most.found && most.value == 10.0 && most.broken == 10.5, `${most.value}`);
check("fine", most.tolerance == 0.5 && most.runs == 9 && most.probes.len() == 9, `${most}`);
let whole = find_max("rate", 1, 64, |rate| load.call(rate).expect("ttft", "p99 < 50ms"));
check("whole", whole.value == 10 && whole.broken == 11, `${whole}`);
let fewest = find_min("rate", 1, 64, |rate| value(load.call(rate), "ttft", "p99") > 50.0, #{ tolerance: 9 });
check("at least", fewest.value > 10 && fewest.broken <= 10 && fewest.value - fewest.broken <= 9, `${fewest}`);
"#,
    );
    let said = folder.run(&["--json"]).ended(0);
    let outcome = said.json();
    // Assertions of the probes belong to the search. The scenario has only its own four.
    assert_eq!(outcome["assertions"].as_array().expect("assertions").len(), 4, "{outcome:#}");
    let search = &outcome["searches"][0];
    assert_eq!((&search["kept"], &search["broken"], &search["runs"]), (&10.0.into(), &10.5.into(), &9.into()));
    assert_eq!((&search["goal"], &search["tolerance"]), (&"highest".into(), &0.5.into()));
    let failed: Vec<&Value> =
        search["probes"].as_array().expect("probes").iter().map(|probe| &probe["passed"]).collect();
    assert_eq!(failed[..2], [&Value::Bool(true), &Value::Bool(false)], "both ends come first");
    assert!(
        search["probes"][1]["failed"][0].as_str().is_some_and(|text| text.starts_with("rate=64: ttft p99 < 50ms ("))
    );
    assert_eq!(outcome["runs"][0]["name"], "rate=1");
    assert_eq!(outcome["runs"][2]["name"], "rate=32.5");
    let text = folder.run(&[]).ended(0).stdout;
    let sentence = "the highest rate that keeps all assertions is 10; 10.5 does not (9 values tried, 9 runs, at \
                    most 0.5 apart)";
    assert!(text.contains(sentence), "{text}");
}

#[test]
fn searches_without_a_limit_say_so() {
    let folder = scenario(
        r#"let none = find_max("rate", 20, 64, |rate| expect(load.call(rate), "ttft", "p99 < 50ms"));
check("none", !none.found && none.value == () && none.broken == 20 && none.runs == 1, `${none}`);
let all = find_max("rate", 1, 9, |rate| expect(load.call(rate), "ttft", "p99 < 50ms"));
check("all", all.found && all.value == 9 && all.broken == () && all.runs == 2, `${all}`);
"#,
    );
    let text = folder.run(&[]).ended(0).stdout;
    assert!(text.contains("not even rate 20 keeps all assertions (1 value tried, 1 run)"), "{text}");
    assert!(text.contains("even rate 9 keeps all assertions: the limit is beyond the range 1..9"), "{text}");
}

#[test]
fn bad_searches_are_refused_where_they_are_written() {
    let refused = |rest: &str, needles: &[&str]| scenario(rest).run(&[]).failed(2, needles);
    refused(
        "find_max(\"rate\", 1, 64, |rate| { load.call(rate); });",
        &["test.rhai:8:1", "does not return whether 1 is good"],
    );
    refused("find_max(\"rate\", 64, 1, |rate| true);", &["test.rhai:8:1", "expected a start below the end"]);
    refused("find_max(\"rate\", \"1\", 64, |rate| true);", &["expected a number, but found the text \"1\""]);
    refused("find_max(\"rate\", 1, 64, |rate| true, #{ tolerance: 0.5 });", &["expected a whole number"]);
    refused("find_max(\"rate\", 1.0, 64.0, |rate| true, #{ tolerence: 0.5 });", &["did you mean `tolerance`"]);
    refused("find_max(\"rate\", 1, 64, 3);", &["call it as `find_max("]);
    // The error names its place within the function.
    refused(
        "find_max(\"rate\", 1, 64, |rate|\n  load.call(-rate));",
        &["test.rhai:5:19", "invalid `rate`: expected a finite number above 0"],
    );
}

/// The script engine counts operations separately for each call of a search's function, but the limit holds for
/// their sum.
#[test]
fn the_limit_of_operations_holds_over_a_whole_search() {
    let busy = "let i = 0; while i < 3_000_000 { i += 1; }";
    let folder = scenario(&format!("find_max(\"rate\", 1, 1_000_000, |rate| {{ {busy} rate < 700_000 }});"));
    folder.run(&["--timeout", "10m"]).failed(2, &["did not end within 50000000 operations"]);
    let folder = scenario("find_max(\"rate\", 1, 64, |rate| expect(load.call(rate), \"ttft\", \"p99 < 50ms\"));");
    folder.run(&["--max-runs", "3"]).failed(2, &["the scenario makes more than 3 runs"]);
}

#[test]
fn a_search_from_the_command_line_takes_far_fewer_runs_than_values() {
    let folder = with_rate();
    let said = folder.run(&["--search", "rate=1..64", "--until", "broken"]).ended(0);
    assert!(
        said.stdout.contains("✓  rate=10\n") && said.stdout.contains("✗  rate=11  run: ttft p99 < 50ms ("),
        "{}",
        said.stdout
    );
    assert!(
        said.stdout.contains("the highest rate that keeps all assertions is 10; 11 does not (8 values tried, 8 runs")
    );
    let one = folder.run(&["--search", "rate=1..64", "--json", "--threads", "1"]).ended(0);
    let search = one.json();
    assert_eq!((&search["kept"], &search["broken"], &search["runs"]), (&10.0.into(), &11.0.into(), &8.into()));
    assert_eq!(folder.run(&["--search", "rate=1..64", "--json", "--threads", "3"]).ended(0).stdout, one.stdout);
    let fine = folder.run(&["--search", "rate=1..64", "--tolerance", "0.25", "--json"]).ended(0).json();
    assert_eq!((&fine["kept"], &fine["broken"]), (&10.0.into(), &10.25.into()));
    let said = folder.run(&["-q", "--search", "rate=20..64"]).ended(1);
    assert_eq!(said.stdout, "  not even rate 20 keeps all assertions (2 values tried, 2 runs)\n");
    // A search for the lowest value that passes: how many engines serve 35 requests a second?
    let said = folder.run(&["-q", "-e", "rate=35", "--search", "engines=1..16", "--until", "kept"]).ended(0);
    assert!(
        said.stdout.starts_with("  the lowest engines that keeps all assertions is 4; 3 does not"),
        "{}",
        said.stdout
    );
}

#[test]
fn a_search_takes_units_and_seeds() {
    let folder = scenario("let r = load.call(param(\"rate\", \"4/s\"));\nexpect(r, \"ttft\", \"p99 < 50ms\");\n");
    let said = folder.run(&["-q", "--search", "rate=1/s..32/s", "--repeat", "2"]).ended(0);
    assert!(said.stdout.contains("is 10/s; 11/s does not (7 values tried, 14 runs"), "{}", said.stdout);
    let said = folder.run(&["--search", "rate=1/s..32/s", "--repeat", "2"]).ended(0).stdout;
    assert!(said.contains("rate=32/s  seed 1: run: ttft p99 < 50ms (") && said.contains("; seed 2: run: "), "{said}");
}

#[test]
fn searches_and_sweeps_that_cannot_be_are_refused() {
    let folder = with_rate();
    let refused = |args: &[&str], needles: &[&str]| folder.run(args).failed(2, needles);
    refused(&["--search", "rte=1..64"], &["the scenario has no parameter `rte`", "it takes engines, rate"]);
    refused(&["--search", "rate=64..1"], &["--search rate=64..1", "a start below the end"]);
    refused(&["--search", "rate"], &["expected NAME=FROM..TO"]);
    refused(&["--search", "rate=1..64", "-e", "rate=3"], &["the parameter `rate` is given twice"]);
    refused(&["--sweep", "rte=1..64"], &["the scenario has no parameter `rte`"]);
    refused(&["--sweep", "rate=1..3", "--sweep-out", "grid.xlsx"], &["must end in .csv, .json or .parquet"]);
    refused(&["--sweep", "engines=0,-1"], &["--sweep, engines=0"]);
    refused(&["--search", "engines=-1..0"], &["engines=-1"]);
    let bare = Folder::with(
        "run(#{ cluster: cluster(#{ engines: pool(#{ latency: fixed(#{ step: \"1ms\" }) }) }), workloads: [burst(#{ count: param(\"n\", 1), prompt_tokens: 1, output_tokens: 1 })] });",
    );
    bare.run(&["--search", "n=1..4"]).failed(2, &["a search needs assertions"]);
    refused(&["--search", "rate=1..64", "--sweep", "rate=1..3"], &["--sweep rate", "the parameter is searched"]);
    let said = folder.run(&["--search", "rate=1..64", "--requests", "requests.jsonl"]).ended(2);
    assert!(said.stderr.contains("cannot be used with"), "{}", said.stderr);
}

#[test]
fn a_search_is_made_for_each_value_of_a_sweep() {
    let folder = with_rate();
    let args = ["--search", "rate=4..64", "--sweep", "engines=1,2", "--sweep-out", "found.csv"];
    let said = folder.run(&[&args[..], &["-q"]].concat()).ended(0).stdout;
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].starts_with("engines=1: the highest rate that keeps all assertions is 10; 11 does not"), "{said}");
    assert!(lines[1].starts_with("engines=2: the highest rate that keeps all assertions is 20; 21 does not"), "{said}");
    let table = fs::read_to_string(folder.path().join("found.csv")).expect("it was written");
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows[0], "engines,kept,broken,values_tried,runs");
    assert!(rows[1].starts_with("1,10,11,") && rows[2].starts_with("2,20,21,"), "{table}");
    let all = folder.run(&["--search", "rate=4..64", "--sweep", "engines=1,2", "--json"]).ended(0).json();
    assert_eq!((&all[1]["sweep"]["engines"], &all[1]["kept"]), (&"2".into(), &20.0.into()), "{all:#}");
    // A point whose search finds no value decides the exit code.
    let _ = folder.run(&["--search", "rate=16..64", "--sweep", "engines=1,2", "-q"]).ended(1);
}

/// A model of 141 GB on GPUs with 80 GB each.
const TOO_LARGE_FOR_ONE: &str = r#"let tp = param("tp", 2);
let c = cluster(#{ engines: pool(#{
    engine: engine(#{}), latency: roofline(#{ model: "llama-3.1-70b", gpu: "h100-sxm", tensor_parallel: tp }),
}) });
let r = run(#{ name: "chat", cluster: c, workloads: [
    constant(#{ rate: param("rate", 1), duration: "10s", prompt_tokens: 1000, output_tokens: 10 }) ] });
expect(r, "ttft", "p99 < 1s");
"#;

#[test]
fn an_infeasible_point_is_a_row_that_says_so() {
    let folder = Folder::with(TOO_LARGE_FOR_ONE);
    let said = folder.run(&["--sweep", "tp=1,2,4", "--sweep-out", "grid.csv"]).ended(0).stdout;
    assert!(said.contains("infeasible: tp=1: test.rhai:3:"), "{said}");
    assert!(said.contains("3 combinations, 3 executions"), "{said}");
    let rows = folder.run(&["--sweep", "tp=1,2,4", "--json"]).ended(0).json();
    assert_eq!((&rows[0]["tp"], &rows[0]["run"], &rows[0]["passed"]), (&1.into(), &"".into(), &0.into()), "{rows:#}");
    assert!(rows[0]["infeasible"].as_str().is_some_and(|why| why.contains("llama-3.1-70b")), "{rows:#}");
    assert_eq!((&rows[0]["ttft_ms_p99"], &rows[2]["infeasible"]), (&Value::Null, &"".into()), "{rows:#}");
    assert!(rows[2]["ttft_ms_p99"].as_f64() < rows[1]["ttft_ms_p99"].as_f64(), "{rows:#}");
    let csv = fs::read_to_string(folder.path().join("grid.csv")).expect("it was written");
    assert!(csv.starts_with("tp,run,seed,passed,infeasible,") && csv.lines().count() == 4, "{csv}");
    // Searches at each point also continue after an infeasible point, and so do shards.
    let search = ["--search", "rate=1..2", "--sweep", "tp=1,2", "--sweep-out"];
    let said = folder.run(&[&search[..], &["found.csv"]].concat()).ended(0).stdout;
    assert!(said.contains("tp=1: infeasible: test.rhai:3:") && said.contains("tp=2: even rate 2 keeps"), "{said}");
    let found = fs::read_to_string(folder.path().join("found.csv")).expect("it was written");
    assert!(found.starts_with("tp,kept,broken,values_tried,runs,infeasible\n1,,1,2,0,"), "{found}");
    for shard in ["0/2", "1/2"] {
        let _ = folder.run(&["--sweep", "tp=1,2,4", "--sweep-out", "split.csv", "--shard", shard]).ended(0);
    }
    let _ = folder.vcr(&["merge", "split.0-of-2.shard", "split.1-of-2.shard", "-o", "merged.csv"]).ended(0);
    assert_eq!(fs::read_to_string(folder.path().join("merged.csv")).expect("it was written"), csv);
    // In a search, an infeasible value counts as failing.
    let said = folder.run(&["--search", "tp=1..4", "--until", "kept"]).ended(0).stdout;
    assert!(said.contains("✗  tp=1  infeasible: ") && said.contains("the lowest tp that keeps"), "{said}");
    // The command fails if no point has a result.
    folder.run(&["--sweep", "tp=1", "--sweep-out", "none.csv"]).failed(2, &["--sweep, tp=1: test.rhai:3:"]);
    folder.run(&["--search", "rate=1..2", "-e", "tp=1"]).failed(2, &["rate=1: test.rhai:3:"]);
    folder.run(&["--repeat", "2", "-e", "tp=1"]).failed(2, &["--repeat: test.rhai:3:"]);
    // A value that the parameter does not accept is an error of the command line.
    folder.run(&["--sweep", "tp=2,x"]).failed(2, &["--sweep, tp=x: test.rhai:", "`tp`: expected a whole number"]);
}

#[test]
fn a_warning_within_a_search_names_the_value() {
    let folder = with_rate();
    let said = folder.run(&["--search", "rate=1..400", "--threads", "1"]).ended(0).stderr;
    assert!(said.contains("warning: rate=400: run `run`: the load is above the capacity"), "{said}");
    let said = folder.run(&["--sweep", "rate=1,400", "--threads", "1"]).ended(0).stderr;
    assert!(said.contains("warning: --sweep, rate=400: run `run`: the load is above"), "{said}");
}

#[test]
fn sweeps_are_the_same_with_any_number_of_threads() {
    let folder = with_rate();
    let sweep = ["--sweep", "rate=8..12..2", "--sweep", "engines=1,2", "--sweep-out"];
    let mut said = Vec::new();
    for threads in ["1", "3"] {
        for format in ["csv", "json", "parquet"] {
            let file = format!("{threads}.{format}");
            let table = folder.run(&[&sweep[..], &[&file, "--threads", threads]].concat()).ended(0).stdout;
            said.push((table, fs::read(folder.path().join(&file)).expect("a table")));
        }
    }
    assert_eq!(said[..3], said[3..]);
    let csv = String::from_utf8(said[0].1.clone()).expect("text");
    assert!(csv.starts_with("rate,engines,run,seed,passed,kept: ttft p99 < 50ms,observed: ttft p99 < 50ms,"), "{csv}");
    assert_eq!(csv.lines().count(), 1 + 3 * 2);
    let rows: Value = serde_json::from_slice(&said[1].1).expect("JSON");
    let passed: Vec<&Value> = rows.as_array().expect("rows").iter().map(|row| &row["passed"]).collect();
    assert_eq!(passed, [1, 1, 1, 1, 0, 1]);
    // Each row equals a single run with the same parameters.
    let alone = folder.run(&["-e", "rate=12", "-e", "engines=2", "--json"]).ended(0).json();
    assert_eq!(rows[5]["ttft_ms_p99"], alone["runs"][0]["metrics"]["trends"]["ttft_ms"]["p99"]);
    assert_eq!(rows[5]["fingerprint"], alone["runs"][0]["fingerprint"]);
    assert!(
        said[0].0.contains("broken: ttft p99 < 50ms") && said[0].0.contains("6 combinations, 6 executions"),
        "{}",
        said[0].0
    );
}

#[test]
fn rows_of_a_sweep_have_the_assertions_of_their_run() {
    let folder = scenario(
        r#"let rate = param("rate", 4.0);
expect(load.call(rate), "ttft", "p99 < 50ms");
expect(load.call(rate / 2), "ttft", "p99 < 50ms");
"#,
    );
    let said = folder.run(&["--sweep", "rate=8,16,32", "--sweep-out", "grid.json"]).ended(0).stdout;
    let verdicts: Vec<bool> =
        said.lines().filter(|line| line.contains("run")).skip(1).map(|line| line.contains("broken: ttft")).collect();
    assert_eq!(verdicts, [false, false, true, false, true, true], "{said}");
    let text = fs::read(folder.path().join("grid.json")).expect("a table");
    let rows: Value = serde_json::from_slice(&text).expect("JSON");
    let passed: Vec<&Value> = rows.as_array().expect("rows").iter().map(|row| &row["passed"]).collect();
    assert_eq!(passed, [1, 1, 0, 1, 0, 0]);
    _ = folder.run(&["--sweep", "rate=16", "--out", "out"]).ended(0);
    let page = fs::read_to_string(folder.path().join("out/points.html")).expect("a page");
    let cells = |word: &str| page.matches(&format!("<td class=\"{word}\">")).count();
    assert_eq!((cells("passed"), cells("failed")), (1, 1));
}

#[test]
fn repetitions_give_intervals_and_shares() {
    let folder = Folder::with(
        r#"let c = cluster(#{ engines: pool(#{ engine: engine(#{ max_num_seqs: 1 }), latency: fixed(#{ step: "10ms" }) }) });
let r = run(#{ cluster: c, workloads: [poisson(#{ rate: 6, duration: "10s", prompt_tokens: 10, output_tokens: 10 })] });
expect(r, "completed_ratio", "value == 100%");
expect(r, "ttft", "mean < 120ms");
"#,
    );
    let said = folder.run(&["--repeat", "12"]).ended(1);
    assert!(said.stdout.contains("kept by 12 of 12 seeds (100 %)"), "{}", said.stdout);
    // Each mean is shown with its unit.
    let of = |start: &str| said.stdout.lines().find(|line| line.trim_start().starts_with(start)).unwrap_or_default();
    assert!(of("ttft mean").ends_with("ms") && of("completed").ends_with("/s"), "{}", said.stdout);
    assert!(
        said.stdout.lines().any(|line| line.contains("mean < 120ms") && line.contains("ms to ")),
        "{}",
        said.stdout
    );
    let rows = folder.run(&["--repeat", "12", "--json"]).ended(1).json();
    let row = &rows[0];
    let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row:#}"));
    // Runs with the same seeds, one by one.
    let alone: Vec<(f64, bool)> = (1..=12)
        .map(|seed: u32| {
            let said = folder.run(&["--json", "--seed", &seed.to_string()]);
            let outcome = said.json();
            let mean = outcome["runs"][0]["metrics"]["trends"]["ttft_ms"]["mean"].as_f64().expect("a mean");
            (mean, outcome["passed"] == true)
        })
        .collect();
    let mean = alone.iter().map(|(mean, _)| mean).sum::<f64>() / 12.0;
    let kept = alone.iter().filter(|(_, passed)| *passed).count() as f64 / 12.0;
    assert!(
        (number("ttft_ms_mean") - mean).abs() < 1e-9
            && number("ttft_ms_mean_low") < mean
            && mean < number("ttft_ms_mean_high")
    );
    assert!(kept > 0.0 && kept < 1.0, "the limit must divide the seeds: {alone:?}");
    assert!((number("passed") - kept).abs() < 1e-9 && (number("kept: ttft mean < 120ms") - kept).abs() < 1e-9);
    assert_eq!((number("seeds"), number("seed")), (12.0, 1.0));
    let first_broken = 1 + alone.iter().position(|(_, passed)| !passed).expect("one");
    assert!(said.stdout.contains(&format!(", not by {first_broken}")), "{}", said.stdout);
}
