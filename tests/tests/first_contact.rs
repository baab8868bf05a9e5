//! Texts do not mislead: errors name a newcomer's mistakes in the newcomer's terms, and the contents of a file or
//! script cannot control the terminal.

use vcr_tests::Folder;

/// Defines a cluster `c` and a workload `w` in line 1.
const HEAD: &str = r#"let c = cluster(#{ engines: pool(#{ engines: 1, latency: fixed(#{ step: "10ms" }) }) }); let w = burst(#{ count: 2, prompt_tokens: 100, output_tokens: 10 });"#;

#[track_caller]
fn refused(line: &str, needles: &[&str]) {
    Folder::with(&format!("{HEAD}\n{line}\n")).run(&[]).failed(2, needles);
}

#[test]
fn a_map_without_its_sign_is_explained() {
    let hint = "hint: a map is written #{ name: value }; the `{` at 2:5 begins a block";
    refused("run({ cluster: c, workloads: [w] });", &["test.rhai:2:", hint]);
    refused("let e = engine({ num_gpu_blocks: 1000 });", &["hint: a map is written #{ name: value }", "2:16"]);
    // A block that is not an argument gets no such hint.
    let said = Folder::with("if true { let x = 1 y }").run(&[]).ended(2);
    assert!(!said.stderr.contains("hint"), "{}", said.stderr);
}

#[test]
fn a_byte_order_mark_is_accepted_and_a_nul_is_named() {
    let folder = Folder::with(&format!("\u{feff}{HEAD}\nrun(#{{ cluster: c, workloads: [w] }});"));
    assert_eq!(folder.run(&["-q"]).ended(0).stdout, "");
    refused("\0run(#{ cluster: c, workloads: [w] });", &["test.rhai:2:1: unexpected character `\\0`"]);
}

#[test]
fn values_that_are_too_large_are_reported_with_their_limit() {
    let text = "let s = \"x\"; for i in 0..30 { s += s; }";
    refused(text, &["value too large: expected at most 1048576 bytes of text"]);
    let maps = "let a = []; for i in 0..20000 { a.push(#{ i: i }); }";
    refused(maps, &["value too large: expected at most 10000 entries of maps, including nested values"]);
    refused("let a = []; a.pad(100000, 1);", &["value too large: expected at most 20000 elements of arrays"]);
}

#[test]
fn absurd_numbers_are_named_in_few_digits() {
    refused(
        "burst(#{ count: 2, prompt_tokens: lognormal(1e308, 1.0), output_tokens: 2 });",
        &["invalid `mean`: expected a finite number of at most 10000000, got 1e308"],
    );
    refused("guest(#{ path: \"x.wasm\", memory: \"900TiB\" });", &["invalid `memory`: expected 64KiB", "to 4GiB"]);
}

#[test]
fn names_are_short_and_without_control_characters() {
    let named = |name: &str| format!("run(#{{ name: {name}, cluster: c, workloads: [w] }});");
    refused(&named(r#""a\x1b[31mb""#), &["invalid `name` \"a\\u{1b}[31mb\": expected 1 to 128 characters"]);
    refused(&named("\"\""), &["invalid `name` \"\""]);
    let long = "x".repeat(129);
    refused(&named(&format!("\"{long}\"")), &["invalid `name`"]);
    refused("burst(#{ name: \"\\n\", count: 2, prompt_tokens: 1, output_tokens: 2 });", &["invalid `name`"]);
}

/// Control characters in a script's output and errors do not reach the terminal.
#[test]
fn scripts_cannot_command_the_terminal() {
    let script =
        format!("//! A \u{1b}[31mclaim.\n{HEAD}\nprint(\"\\x1b]0;t\\x07\"); run(#{{ cluster: c, workloads: [w] }});");
    let said = Folder::with(&script).run(&["-e", "unused=1"]).ended(2);
    assert!(!said.stderr.contains('\u{1b}') && said.stderr.contains("\\u{1b}]0;t\\u{7}"), "{}", said.stderr);
    let said = Folder::with(&script).run(&[]).ended(0);
    assert!(!said.stdout.contains('\u{1b}') && said.stdout.contains("\\u{1b}[31mclaim"), "{}", said.stdout);
}

#[test]
fn numbers_on_the_command_line_are_refused_for_what_they_are() {
    let folder = Folder::new();
    folder.vcr(&["run", "x.rhai", "--seed", "-1"]).failed(2, &["'-1' for '--seed <N>'", "expected a whole number"]);
    folder.vcr(&["run", "x.rhai", "--seed", "x"]).failed(2, &["'x' for '--seed <N>'", "expected a whole number"]);
    let at_least_one = "expected a whole number of at least 1 and below 2^32";
    folder.vcr(&["replay", "x.jsonl", "--trace-block-size", "0"]).failed(2, &[at_least_one]);
    folder.vcr(&["inspect", "gen-demo", "--requests", "0"]).failed(2, &["at least 1 and below 2^64"]);
}

#[test]
fn numbers_in_files_are_refused_in_words() {
    let folder = Folder::new();
    let row =
        |length: &str| format!(r#"{{"timestamp": 0, "input_length": {length}, "output_length": 1, "hash_ids": [1]}}"#);
    for wrong in ["\"x\"", "-5", "1.5"] {
        folder.write("trace.jsonl", row(wrong));
        let expected = "expected a whole number from 0 to 4294967295";
        folder.vcr(&["replay", "trace.jsonl"]).failed(2, &["line 1", "`input_length`", expected]);
    }
}

#[test]
fn two_requests_of_one_name_are_refused() {
    let folder = Folder::new();
    let row = r#"{"request_id": "a", "timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}"#;
    folder.write("trace.jsonl", format!("{row}\n{row}\n"));
    let needles = ["line 2", "`request_id`", "duplicate request `a`"];
    folder.vcr(&["replay", "trace.jsonl"]).failed(2, &needles);
}

/// Seven ids for 100 tokens mean blocks of 16 tokens, whatever the default is.
#[test]
fn the_block_size_of_a_trace_is_inferred_and_said() {
    let folder = Folder::with(
        r#"let c = cluster(#{ engines: pool(#{ engines: 1, latency: fixed(#{ step: "10ms" }) }) });
let r = run(#{ cluster: c, workloads: [trace(#{ path: "trace.jsonl" })] });
expect(r, "cached_tokens", "count == 96");"#,
    );
    let row = |at: u32, last: u32| {
        format!(
            r#"{{"timestamp": {at}, "input_length": 100, "output_length": 1, "hash_ids": [1, 2, 3, 4, 5, 6, {last}]}}"#
        )
    };
    folder.write("trace.jsonl", [row(0, 7), row(1000, 8)].join("\n") + "\n");
    let said = folder.run(&[]).ended(0);
    assert!(said.stderr.contains("trace.jsonl: block size 16 inferred from"), "{}", said.stderr);
    let replay = |args: &[&str]| folder.vcr(&[&["replay", "trace.jsonl"], args].concat()).ended(0).stderr;
    assert!(replay(&[]).contains("block size 16 inferred"));
    assert!(!replay(&["--trace-block-size", "16"]).contains("inferred"));
}

/// A request that arrives during a step joins the next step. With asynchronous scheduling, that step is decided
/// already.
#[test]
fn replay_takes_async_scheduling() {
    let folder = Folder::new();
    let row =
        |at: u32| format!(r#"{{"timestamp": {at}, "input_length": 100, "output_length": 8, "hash_ids": [{at}]}}"#);
    folder.write("trace.jsonl", [row(0), row(1)].join("\n"));
    let slowest_ttft_ms = |engine: &str| {
        let args = ["replay", "trace.jsonl", "--report-format", "1.4", "--json", "-q", "--latency"];
        let args = [&args[..], &["fixed(#{ step: \"10ms\" })", "--extra-engine-args", engine]].concat();
        folder.vcr(&args).ended(0).json()["max_ttft_ms"].as_f64().expect("a number")
    };
    // The request arrives 1 ms after the start of the first step, which takes 10 ms.
    assert!((slowest_ttft_ms("{}") - 19.0).abs() < 1e-6);
    assert!((slowest_ttft_ms(r#"{"async_scheduling": true}"#) - 29.0).abs() < 1e-6);
    assert!((slowest_ttft_ms(r#"{"engine": {"async_scheduling": true}}"#) - 29.0).abs() < 1e-6);
    for (more, why) in [("\"engine_type\": \"sglang\"", "of type \"vllm\" only"), ("\"aic_nextn\": 2", "aic_nextn")] {
        let engine = format!("{{\"async_scheduling\": true, {more}}}");
        let said = folder.vcr(&["replay", "trace.jsonl", "--extra-engine-args", &engine]);
        said.failed(2, &["`async_scheduling`", why]);
    }
}

#[test]
fn many_workloads_are_folded_and_several_runs_compared() {
    let script = r#"let c = cluster(#{ engines: pool(#{ engines: 1, latency: fixed(#{ step: "10ms" }) }) });
let many = [];
for i in 0..9 { many.push(burst(#{ name: "w" + i, count: 2, prompt_tokens: 10, output_tokens: 2 })); }
let few = [burst(#{ name: "only", count: 3, prompt_tokens: 10, output_tokens: 2 })];
let runs = run_all([#{ name: "many", cluster: c, workloads: many }, #{ name: "few", cluster: c, workloads: few }]);
expect(runs[0], "ttft", "p99 < 1ms");"#;
    let folder = Folder::with(script);
    let short = folder.run(&[]).ended(1);
    assert!(short.stdout.contains("9 workloads folded") && !short.stdout.contains("w7"), "{}", short.stdout);
    let table = short.stdout.split("ALL RUNS").nth(1).expect("a table of all runs");
    let row = |name: &str| table.lines().find(|line| line.trim_start().starts_with(name)).expect("a row").to_owned();
    assert!(row("many").contains("18/18") && row("few").contains("3/3"), "{table}");
    let full = folder.run(&["--full"]).ended(1);
    assert!(full.stdout.contains("w7") && !full.stdout.contains("folded"), "{}", full.stdout);
    // Even with `-q`, a failed run prints how to repeat it.
    let quiet = folder.run(&["-q"]).ended(1);
    assert_eq!(quiet.stderr, "reproduce with: vcr run test.rhai --seed 1\n");
}

/// By default, the output fits the width of the terminal; `--full` shows more.
#[test]
fn the_summary_fits_the_terminal() {
    let claim =
        "//! A claim of many words, which says what holds and why it does, and goes on for longer than any line.";
    let script = format!(
        r#"{claim}
let note = param("note", "a parameter that is long enough to need a line");
let c = cluster(#{{ engines: pool(#{{ name: "answers", engines: 10, latency: fixed(#{{ step: "10ms" }}) }}) }});
let load = ["documents", "conversations"].map(|name|
    burst(#{{ name: name, count: 20, prompt_tokens: 1000, output_tokens: 20 }}));
let runs = run_all([#{{ name: "as it is", cluster: c, workloads: load }}, #{{ name: "again", cluster: c, workloads: load }}]);
check("an assertion in words, that are more than fit into a line", true, "with what was observed, in words as well");"#
    );
    let folder = Folder::with(&script);
    let shown = |columns: &str, more: &[&str]| {
        let mut command = std::process::Command::new(vcr_tests::vcr());
        let _ = command.args(["run", "test.rhai"]).args(more).env("COLUMNS", columns).current_dir(folder.path());
        vcr_tests::Said::of(&mut command).ended(0).stdout
    };
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max();
    let has = |text: &str, title: &str| text.lines().any(|line| line.split_whitespace().any(|word| word == title));
    let narrow = shown("80", &[]);
    assert!(widest(&narrow) <= Some(80), "{narrow}");
    assert!(has(&narrow, "p95") && has(&narrow, "p99") && has(&narrow, "med"), "{narrow}");
    assert!(!has(&narrow, "step") && narrow.contains("answers") && !narrow.contains("answers 7"), "{narrow}");
    let omitted =
        "--full also shows the metrics prefill, step, batch; each engine; each workload; columns that do not fit";
    assert!(narrow.split_whitespace().collect::<Vec<_>>().join(" ").contains(omitted), "{narrow}");
    let wide = shown("140", &[]);
    assert!(widest(&wide) <= Some(140) && widest(&wide) > Some(100), "{wide}");
    assert!(has(&wide, "min") && has(&wide, "preempted") && !wide.contains("do not fit"), "{wide}");
    let full = shown("80", &["--full"]);
    assert!(has(&full, "min") && has(&full, "step") && full.contains("answers 7"), "{full}");
    assert!(!full.contains("--full"), "{full}");
    // Output to a file is not wrapped.
    let said = folder.run(&[]).ended(0).stdout;
    assert!(said.contains(claim.trim_start_matches("//! ")) && has(&said, "min"), "{said}");
}

/// Thousands of runs with one name are numbered without comparing all pairs.
#[test]
fn equal_names_of_runs_are_numbered() {
    let script = format!(
        "{HEAD}\nlet runs = []; for i in 0..300 {{ runs.push(#{{ cluster: c, workloads: [w] }}); }}\nrun_all(runs);"
    );
    let report = Folder::with(&script).run(&["--json"]).ended(0).json();
    let names: Vec<&str> =
        report["runs"].as_array().expect("runs").iter().filter_map(|run| run["name"].as_str()).collect();
    assert_eq!((names[0], names[1], names[299]), ("run", "run 2", "run 300"));
}

#[test]
fn play_shows_examples_and_common_options_first() {
    let folder = Folder::new();
    let short = folder.vcr(&["play", "--help"]).ended(0).stdout;
    let (examples, options) = short.split_once("--handshake-address <ADDRESS>").expect("a common option");
    assert!(examples.contains("Examples:") && options.contains("--help-all"), "{short}");
    assert!(short.lines().count() < 100 && !short.contains("--parallel-config-hash"), "{short}");
    let all = folder.vcr(&["play", "--help-all"]).ended(0).stdout;
    assert!(all.contains("--parallel-config-hash") && all.contains("Faults are written"), "{all}");
}
