//! The scenarios that ship: each must keep its promises, everywhere alike.

use std::path::PathBuf;
use std::process::Command;

use vcr_tests::{Said, root, skip, vcr};

fn scenarios() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("scenarios")).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("it can be listed").path());
    let mut found: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|kind| kind == "rhai")).collect();
    found.sort();
    if found.is_empty() {
        skip("there are no scenarios");
    }
    found
}

#[test]
fn shipped_scenarios_keep_their_promises_with_one_thread_and_two() {
    for scenario in scenarios() {
        let text = std::fs::read_to_string(&scenario).expect("it can be read");
        if text.contains("guests/dist") && !root().join("guests/dist").exists() {
            skip(&format!("{}: run `vcr guest build`", scenario.display()));
            continue;
        }
        if text.contains("shared/data") && !root().join("../shared/data").exists() {
            skip(&format!("{}: sample data is missing", scenario.display()));
            continue;
        }
        let run = |threads: &str| {
            let mut command = Command::new(vcr());
            command.arg("run").arg(&scenario).args(["--json", "--threads", threads]);
            Said::of(&mut command).ended(0)
        };
        let one = run("1");
        let outcome = one.json();
        assert!(outcome["checks"].as_array().is_some_and(|checks| !checks.is_empty()), "it promises something");
        assert!(outcome["claim"].is_string(), "{} says what it shows", scenario.display());
        assert_eq!(run("2").stdout, one.stdout, "{}", scenario.display());
    }
}
