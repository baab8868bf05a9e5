//! Output of commands, its streams, and their exit codes.

use std::path::Path;
use std::process::{Command, Stdio};

use vcr_tests::{Folder, Said, vcr};

/// One assertion always holds; the other one fails if `-e n=...` changes it.
const SCENARIO: &str = r#"//! A burst on two engines.
//! Claim: all of it is served.
let n = param("n", 20);
let c = cluster(#{ engines: pool(#{ engines: 2, latency: fixed(#{ step: "10ms" }) }) });
let w = burst(#{ count: n, prompt_tokens: 100, output_tokens: 10 });
let r = run(#{ name: "base", cluster: c, workloads: [ w ] });
expect(r, "ttft", "p99 < 10s");
expect(r, "completed", "count == 20");
check("sane", value(r, "ttft", "mean") <= value(r, "ttft", "max"));
"#;

#[test]
fn the_summary_shows_assertions_then_metrics_then_the_fingerprint() {
    let said = Folder::with(SCENARIO).run(&[]).ended(0);
    let lines: Vec<&str> = said.stdout.lines().map(str::trim).collect();
    let at = |start: &str| {
        let found = lines.iter().position(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("no line starts with `{start}`:\n{}", said.stdout))
    };
    let order = [
        at("test.rhai  n=20"),
        at("3 of 3 assertions passed"),
        at("A burst on two engines. Claim: all of it is served."),
        at("ASSERTIONS"),
        at("✓  base  ttft"),
        at("✓  base  completed  count == 20  20"),
        at("✓        sane"),
        at("RUN base  seed 1"),
        at("times: set by the scenario"),
        at("ttft"),
        at("requests: 20 arrived, 20 completed"),
        at("engines 1"),
        at("fingerprint "),
    ];
    assert!(order.is_sorted(), "{order:?}\n{}", said.stdout);
    assert!(said.stdout.contains("p99 < 10s    ") && said.stdout.contains(" % left"), "{}", said.stdout);
    // Wall time differs from run to run, so it is not part of the results.
    assert!(said.stderr.contains("of virtual time in"), "{}", said.stderr);
    assert!(!said.stdout.contains("of virtual time in"));
    assert!(!said.stdout.contains('\u{1b}') && !said.stderr.contains('\u{1b}'), "no colours off a terminal");
}

#[test]
fn a_failed_assertion_is_marked_and_decides_the_exit_code() {
    let folder = Folder::with(SCENARIO);
    let said = folder.run(&["-e", "n=5"]).ended(1);
    assert!(said.stdout.contains("✗  base  completed  count == 20  5"), "{}", said.stdout);
    assert!(said.stdout.contains("✓  base  ttft"), "{}", said.stdout);
    assert!(said.stdout.contains("1 of 3 assertions failed"), "{}", said.stdout);
    assert!(said.stderr.contains("reproduce with: vcr run test.rhai -e n=5 --seed 1"), "{}", said.stderr);
    let limited = folder.run(&["-q", "-e", "n=5", "--max-sim-time", "1h"]).ended(1).stderr;
    assert!(limited.ends_with(" -e n=5 --seed 1 --max-sim-time 1h\n"), "{limited}");

    let outcome = folder.run(&["-e", "n=5", "--json"]).ended(1).json();
    assert_eq!(outcome["passed"], false);
    let passed: Vec<_> = outcome["assertions"].as_array().unwrap().iter().map(|check| &check["passed"]).collect();
    assert_eq!(passed, [true, false, true]);
}

#[test]
fn an_assertion_without_samples_fails() {
    let script = format!("{SCENARIO}\nexpect(r, \"transfer\", \"p99 < 1s\");");
    let said = Folder::with(&script).run(&[]).ended(1);
    assert!(said.stdout.contains("no samples"), "{}", said.stdout);
}

#[test]
fn the_reproduce_line_leaves_seeds_alone_that_differ() {
    let script = r#"let why = param("why", "");
let c = cluster(#{ engines: pool(#{ latency: fixed(#{ step: "10ms" }) }) });
let w = burst(#{ count: 1, prompt_tokens: 100, output_tokens: 10 });
run_all([ #{ cluster: c, workloads: [ w ], seed: 3 }, #{ cluster: c, workloads: [ w ], seed: 4 } ]);
check("never", why == "because");"#;
    let said = Folder::with(script).run(&["-e", "why=no reason"]).ended(1);
    assert!(said.stderr.contains("reproduce with: vcr run test.rhai -e 'why=no reason'\n"), "{}", said.stderr);
}

#[test]
fn quiet_prints_only_broken_assertions() {
    let folder = Folder::with(SCENARIO);
    let kept = folder.run(&["--quiet"]).ended(0);
    assert_eq!((kept.stdout.as_str(), kept.stderr.as_str()), ("", ""));
    let broken = folder.run(&["-q", "-e", "n=5"]).ended(1);
    assert_eq!(broken.stdout, "  ✗  base  completed  count == 20  5\n  1 of 3 assertions failed\n");
    assert_eq!(broken.stderr, "reproduce with: vcr run test.rhai -e n=5 --seed 1\n");
    // `-q` does not suppress results that were requested.
    let outcome = folder.run(&["-q", "--json"]).ended(0).json();
    assert_eq!(outcome["passed"], true);
}

#[test]
fn json_has_the_parts_that_others_rely_on() {
    let outcome = Folder::with(SCENARIO).run(&["--json", "--seed", "42"]).ended(0).json();
    assert_eq!(outcome["schema_version"], 2);
    assert_eq!(outcome["scenario"], "test.rhai");
    assert_eq!(outcome["claim"], "A burst on two engines. Claim: all of it is served.");
    assert_eq!(outcome["parameters"]["n"], "20");
    assert_eq!(outcome["passed"], true);
    assert_eq!(outcome["fingerprint"].as_str().map(str::len), Some(64));
    let check = &outcome["assertions"][0];
    assert_eq!((&check["run"], &check["subject"]), (&"base".into(), &"ttft".into()));
    assert_eq!((&check["condition"], &check["observed"]), (&"p99 < 10s".into(), &10.0.into()));
    let run = &outcome["runs"][0];
    assert_eq!((&run["name"], &run["seed"]), (&"base".into(), &42.into()));
    assert_eq!(run["metrics"]["counters"]["completed"], 20);
    assert_eq!(run["metrics"]["trends"]["ttft_ms"]["p99"], 10.0);
    assert_eq!(run["metrics"]["gauges"]["completed_ratio"], 1.0);
    assert_eq!(run["workloads"]["burst"]["counters"]["requests"], 20);
    assert_eq!(run["engines"].as_array().map(Vec::len), Some(2));
    assert_eq!(run["fingerprint"].as_str().map(str::len), Some(64));
}

#[test]
fn parameters_take_the_type_of_their_default() {
    let script = format!(
        "{SCENARIO}\ncheck(\"types\", param(\"f\", 0.5) == 2.0 && param(\"b\", false) && param(\"s\", \"\") == \"a=b\");"
    );
    // Parameters must be declared before the first run.
    let script = script.replace("let n =", "param(\"f\", 0.5); param(\"b\", false); param(\"s\", \"\");\nlet n =");
    let args = ["-e", "f=2", "-e", "b=true", "-e", "s=a=b", "-e", "n=2_0", "--json"];
    let outcome = Folder::with(&script).run(&args).ended(0).json();
    assert_eq!(outcome["parameters"]["s"], "a=b");
    assert_eq!(outcome["parameters"]["n"], "20");
}

#[test]
fn what_a_script_prints_is_kept_apart_from_results() {
    let said = Folder::with(&format!("print(\"half-way\");\n{SCENARIO}")).run(&["--json"]).ended(0);
    assert!(said.stderr.contains("half-way"));
    assert_eq!(said.json()["passed"], true);
}

#[test]
fn the_help_of_every_command_has_examples_and_exit_codes() {
    let folder = Folder::new();
    let inspect = [&["inspect"][..], &["inspect", "conform"], &["inspect", "steps"]];
    for command in [&["run"][..], &["guest"], &["guest", "build"], &["completions"]].into_iter().chain(inspect) {
        let help = folder.vcr(&[command, &["--help"]].concat()).ended(0).stdout;
        let line = format!("  vcr {}", command.join(" "));
        assert!(help.contains("Examples:\n") && help.contains(&line), "{help}");
        assert!(help.contains("Exit codes:\n  0  "), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
    let help = folder.vcr(&["--help"]).ended(0).stdout;
    for code in
        ["  0  every assertion passed", "  1  an assertion", "  2  bad usage", "  3  a guest or an engine failed"]
    {
        assert!(help.contains(code), "{help}");
    }
    assert!(folder.vcr(&["--version"]).ended(0).stdout.starts_with("vcr "));
}

#[test]
fn the_summary_counts_what_clients_do() {
    let patience = r#"output_tokens: 10, first_token_timeout: "5ms", retry: #{ max_attempts: 3, backoff: "1ms" }"#;
    let (script, _) = SCENARIO.split_once("expect(").expect("it has assertions");
    let folder = Folder::with(&script.replace("output_tokens: 10", patience));
    let said = folder.run(&[]).ended(0).stdout;
    assert!(said.contains("60 arrived, 0 completed, 60 timeouts; 0 retries, 40 repeated client attempts"), "{said}");
    assert!(!said.contains("p99"), "there is a table without rows:\n{said}");
}

#[test]
fn bad_usage_is_bad_input() {
    let folder = Folder::new();
    folder.vcr(&["run"]).failed(2, &["<FILE>"]);
    folder.vcr(&["run", "x.rhai", "--sead", "1"]).failed(2, &["--sead", "--seed"]);
    folder.vcr(&["run", "x.rhai", "--seed=-1"]).failed(2, &["--seed"]);
    folder.vcr(&["run", "x.rhai", "--threads", "0"]).failed(2, &["--threads"]);
    folder.vcr(&["inspect", "conform"]).failed(2, &["<PATH>"]);
    folder.vcr(&["inspect", "steps"]).failed(2, &["<LOG>"]);
    folder.vcr(&["rnu"]).failed(2, &["rnu", "--help"]);
    folder.vcr(&["completions", "tcsh"]).failed(2, &["bash"]);
    assert_eq!(folder.vcr(&[]).code, 2);
    folder.vcr(&["guest", "build", "nowhere"]).failed(2, &["cannot read `nowhere`"]);
    folder.vcr(&["guest", "build", "."]).failed(2, &["error: "]);
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = Folder::new().vcr(&["completions", shell]).ended(0).stdout;
        for word in ["completions", "guest", "threads", "inspect", "conform"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

/// A reader such as `head` and a full disk must not look like a crash.
#[test]
#[cfg(target_os = "linux")]
fn a_reader_that_leaves_and_a_full_disk_are_no_panics() {
    let folder = Folder::with(SCENARIO);
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    for args in [&["run", "test.rhai"][..], &["run", "test.rhai", "--json"], &["completions", "bash"]] {
        let mut command = Command::new(vcr());
        let said = Said::of(command.args(args).current_dir(folder.path()).stdout(full())).ended(2);
        assert!(said.stderr.contains("cannot print the results"), "{}", said.stderr);
    }
    let mut command = Command::new(vcr());
    command.args(["run", "test.rhai"]).current_dir(folder.path());
    let _ = Said::of(command.stderr(full())).ended(0);

    let (reader, writer) = std::io::pipe().expect("pipes are to be had");
    drop(reader);
    let mut command = Command::new(vcr());
    command.args(["run", "test.rhai", "--json"]).current_dir(folder.path()).stdin(Stdio::null()).stdout(writer);
    let said = Said::of(&mut command).ended(0);
    assert!(!said.stderr.contains("error"), "{}", said.stderr);
}

#[test]
fn paths_in_a_scenario_start_where_it_lies() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("below")).unwrap();
    let row = r#"{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]}"#;
    folder.write("below/t.jsonl", row);
    let script = SCENARIO.replace("let w =", "let w = trace(#{ path: \"t.jsonl\" }); let unused =");
    folder.write("below/test.rhai", script.replace("count == 20", "count == 1"));
    let below = Path::new("below").join("test.rhai");
    let _ = folder.vcr(&["run", &below.display().to_string()]).ended(0);
}
