//! Output files: an input is never overwritten, an existing file only if asked, and files are complete or absent.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use vcr_tests::{DEFAULT_FILES, Folder, Said, vcr};

const SCENARIO: &str = r#"
let c = cluster(#{ engines: pool(#{ engines: 2, engine: engine(#{}), latency: fixed(#{ step: "10ms" }) }) });
let w = burst(#{ count: 20, prompt_tokens: 200, output_tokens: 30 });
run_all([ #{ name: "a", cluster: c, workloads: [ w ] }, #{ name: "b", seed: 2, cluster: c, workloads: [ w ] } ]);
"#;

const ROWS: &str = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
{"timestamp": 9, "input_length": 600, "output_length": 5, "hash_ids": [1, 3]}
"#;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = entries.map(|entry| name(entry.expect("it can be listed"))).collect();
    names.sort();
    names
}

fn text(folder: &Folder, name: &str) -> String {
    fs::read_to_string(folder.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn replay_never_writes_over_its_inputs() {
    let folder = Folder::new();
    let trace = folder.write("t.jsonl", ROWS);
    folder.write("engine.json", "{}");
    symlink(&trace, folder.path().join("symbolic")).expect("links can be made");
    fs::hard_link(&trace, folder.path().join("hard")).expect("links can be made");
    for option in ["--report-json", "--report-jsonl"] {
        for output in ["t.jsonl", "symbolic", "hard", "engine.json"] {
            let args = ["replay", "t.jsonl", "--extra-engine-args", "@engine.json", "--force", option, output];
            folder.vcr(&args).failed(2, &[&format!("cannot write `{output}`: it is the input `")]);
        }
    }
    let sweep = ["replay", "table.csv", "--sweep", "num_workers=1..2", "--force", "--sweep-out", "table.csv"];
    folder.write("table.csv", ROWS);
    folder.vcr(&sweep).failed(2, &["cannot write `table.csv`: it is the input `table.csv`"]);
    assert_eq!((text(&folder, "t.jsonl"), text(&folder, "table.csv")), (ROWS.to_owned(), ROWS.to_owned()));
    assert_eq!(text(&folder, "engine.json"), "{}");
}

#[test]
fn replay_replaces_results_only_if_asked_to_and_makes_their_folders() {
    let folder = Folder::new();
    folder.write("t.jsonl", ROWS);
    let args = ["replay", "t.jsonl", "--quiet", "--report-json", "new/er/r.json", "--report-jsonl", "new/rows.jsonl"];
    let _ = folder.vcr(&args).ended(0);
    let first = text(&folder, "new/er/r.json");
    folder.vcr(&args).failed(2, &["`new/er/r.json`: the file exists already", "--force"]);
    let _ = folder.vcr(&[&args[..], &["--force", "--seed", "9"]].concat()).ended(0);
    assert!(text(&folder, "new/er/r.json") != first, "another seed is another report");
    let twice = ["replay", "t.jsonl", "--report-json", "x", "--report-jsonl", "./x"];
    folder.vcr(&twice).failed(2, &["another output goes to the same file"]);
    assert_eq!(names(folder.path()), ["new", "t.jsonl"]);
}

#[test]
fn a_run_replaces_what_an_earlier_run_has_written_and_nothing_else() {
    let folder = Folder::with(SCENARIO);
    folder.write("report.json", "mine");
    folder.run(&["--out", "."]).failed(2, &["cannot write `./report.json`: the file exists already", "--force"]);
    assert_eq!(text(&folder, "report.json"), "mine");
    assert_eq!(names(folder.path()), ["report.json", "test.rhai"]);

    let all = DEFAULT_FILES;
    let out = folder.path().join("out");
    let _ = folder.run(&["--quiet", "--out", "out"]).ended(0);
    assert_eq!(names(&out), all);
    let report = text(&folder, "out/report.json");
    let _ = folder.run(&["--quiet", "--out", "out", "--seed", "7"]).ended(0);
    assert_eq!(names(&out), all);
    assert!(text(&folder, "out/report.json") != report, "another seed is another report");
    // Steps of an earlier run beside the report of a later run would be taken for the later run's steps.
    let said = folder.run(&["--out", "out", "--files", "report,requests"]).ended(0);
    assert!(said.stderr.contains("wrote report.json, requests.jsonl to out"), "{}", said.stderr);
    assert_eq!(names(&out), [".vcr-run", "report.json", "requests.jsonl"]);
    // A file that no earlier run has written belongs to the user.
    folder.write("out/steps.jsonl", "mine");
    folder.run(&["--out", "out"]).failed(2, &["cannot write `out/steps.jsonl`: the file exists already"]);
    assert_eq!(text(&folder, "out/steps.jsonl"), "mine");
    let _ = folder.run(&["--quiet", "--out", "out", "--force"]).ended(0);
    assert_eq!(names(&out), all);
    let trace: Value = serde_json::from_str(&text(&folder, "out/trace.json")).expect("JSON");
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 100));
}

#[test]
fn only_what_is_asked_for_is_written() {
    let folder = Folder::with(SCENARIO);
    let all = folder.run(&["--json", "--out", "all", "--files", "report,requests,steps,trace"]).ended(0);
    let some = folder.run(&["--json", "--out", "some", "--files", "steps"]).ended(0);
    assert_eq!(all.stdout, some.stdout);
    assert_eq!(names(&folder.path().join("some")), [".vcr-run", "steps.jsonl"]);
    assert_eq!(text(&folder, "all/steps.jsonl"), text(&folder, "some/steps.jsonl"));
    let said = folder.run(&["--requests", "new/rows.jsonl"]).ended(0);
    assert!(said.stderr.contains("wrote new/rows.jsonl"), "{}", said.stderr);
    assert_eq!(text(&folder, "new/rows.jsonl"), text(&folder, "all/requests.jsonl"));
    folder.run(&["--requests", "new/rows.jsonl"]).failed(2, &["exists already"]);
    folder.run(&["--requests", "test.rhai", "--force"]).failed(2, &["it is the input `test.rhai`"]);
    folder.run(&["--out", "x", "--files", "stepps"]).failed(2, &["expected one or more of report, requests, steps"]);
    folder.run(&["--files", "steps"]).failed(2, &["--out"]);
}

/// The script's inputs are known only while it runs.
#[test]
fn a_run_never_writes_over_what_its_script_reads() {
    let script = r#"
let c = cluster(#{ engines: pool(#{ engines: 1, engine: engine(#{}), latency: fixed(#{ step: "10ms" }) }) });
run(#{ cluster: c, workloads: [ trace(#{ path: "t.jsonl" }) ] });
"#;
    let folder = Folder::with(script);
    folder.write("t.jsonl", ROWS);
    symlink("t.jsonl", folder.path().join("link")).expect("links can be made");
    for output in ["t.jsonl", "link"] {
        folder.run(&["--requests", output, "--force"]).failed(2, &["test.rhai:3:", "would replace it by its output"]);
        let said = folder.run(&["--requests", output]).ended(2);
        assert!(said.stderr.contains(&format!("cannot write `{output}`: it is the input `")), "{}", said.stderr);
        assert!(!said.stderr.contains("--force"), "{}", said.stderr);
    }
    assert_eq!(text(&folder, "t.jsonl"), ROWS);
}

#[test]
fn captures_are_converted_to_standard_output_and_never_over_themselves() {
    let folder = Folder::new();
    let _ = folder.vcr(&["inspect", "gen-demo", "-o", "deep/er/a.jsonl", "--requests", "9"]).ended(0);
    let capture = text(&folder, "deep/er/a.jsonl");
    folder.write("a.jsonl", &capture);
    let said = folder.vcr(&["inspect", "convert", "a.jsonl", "-o", "-"]).ended(0);
    assert_eq!(said.stdout, capture);
    assert!(said.stderr.contains("9 requests"), "{}", said.stderr);
    let table = folder.vcr(&["inspect", "convert", "a.jsonl", "-o", "-", "--to", "csv"]).ended(0);
    assert_eq!(table.stdout.lines().count(), 10);
    let made = folder.vcr(&["inspect", "gen-demo", "-o", "-", "--requests", "9"]).ended(0);
    assert_eq!(made.stdout, capture);
    for command in ["convert", "perfetto", "summarize"] {
        let args = ["inspect", command, "a.jsonl", "--force", "-o", "a.jsonl"];
        folder.vcr(&args).failed(2, &["cannot write `a.jsonl`: it is the input `a.jsonl`"]);
        folder.write("b.out", "mine");
        let args = ["inspect", command, "a.jsonl", "-o", "b.out"];
        folder.vcr(&args).failed(2, &["`b.out`: the file exists already", "--force"]);
        assert_eq!(text(&folder, "b.out"), "mine");
        let _ = folder.vcr(&[&args[..], &["--force"]].concat()).ended(0);
        assert!(fs::read(folder.path().join("b.out")).expect("it is there").len() > 10);
    }
    let diff = ["inspect", "diff", "deep/er/a.jsonl", "a.jsonl", "--force", "-o", "a.jsonl"];
    folder.vcr(&diff).failed(2, &["it is the input"]);
    assert_eq!(text(&folder, "a.jsonl"), capture);
    assert_eq!(names(folder.path()), ["a.jsonl", "b.out", "deep"]);
}

/// Runs `vcr` with a limit on the size of files, to simulate a full disk.
fn on_a_small_disk(folder: &Folder, kilobytes: u32, args: &str) -> Said {
    let script = format!("ulimit -f {kilobytes}; exec \"$VCR\" {args}");
    Said::of(Command::new("bash").args(["-c", &script]).env("VCR", vcr()).current_dir(folder.path()))
}

#[test]
fn a_full_disk_leaves_nothing_half_and_nothing_lost() {
    let folder = Folder::with(SCENARIO);
    folder.write("t.jsonl", ROWS.repeat(400));
    let _ = folder.run(&["--quiet", "--out", "out", "--files", "report,requests"]).ended(0);
    let report = text(&folder, "out/report.json");
    for args in [
        "run test.rhai --seed 7 --out out",
        "run test.rhai --out new",
        "run test.rhai --requests rows.jsonl",
        "replay t.jsonl --quiet --report-jsonl rows.jsonl",
        "inspect gen-demo -o demo.jsonl --requests 500",
        "inspect gen-demo -o demo.jsonl.gz --requests 500",
    ] {
        on_a_small_disk(&folder, 5, args).failed(2, &["cannot write", "File too large"]);
    }
    assert_eq!(text(&folder, "out/report.json"), report);
    assert_eq!(names(&folder.path().join("out")), [".vcr-run", "report.json", "requests.jsonl"]);
    assert_eq!(names(folder.path()), ["out", "t.jsonl", "test.rhai"], "no folder is made for nothing");
    let full = ["inspect", "gen-demo", "-o", "/dev/full", "--requests", "500"];
    folder.vcr(&full).failed(2, &["cannot write `/dev/full`", "No space left on device"]);
}
