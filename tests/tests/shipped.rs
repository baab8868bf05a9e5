//! The scenarios that ship: each must pass its assertions, everywhere alike.

use std::path::{Path, PathBuf};
use std::process::Command;

use vcr_tests::{Said, root, skip, vcr};

/// What each scenario comes to, on every machine and with every compiler. A change
/// of behaviour changes them; a refactoring must not.
const FINGERPRINTS: &[(&str, &str)] = &[
    ("failure_drill", "396e92aeb28fcbc701b914df71bda91e773cfb76b779eca04776a79297a19bbf"),
    ("fair_share", "06a7cddf4a13c967db177e41bca415a2e55cfc1b1bae47f7f249ad7f0da8b1bb"),
    ("impatient_clients", "b54f6ff7b96f8c8606419a5968fa68dc638a12e2944921cc7f2b4840bc828226"),
    ("kv_routing", "c95cdf0db17f83d473fb91358e733dd09d559d5177a744e35baddc6ba6360ba5"),
    ("lora_tenants", "12a0326714bd6e15b79d815fca1181377db9f80fc22e1f581a4bb8b20b71ec06"),
    ("pd_burst", "7f3292dcd4e8d7bf19bcea3ee723f31cdf432b9c577ba654ceaeba710052b143"),
    ("thermal", "7bad0fdb613426d087df1db230a87611ec4fe0695776d6ea0a7b67457dd95464"),
    ("trace_replay", "f7ff3082260de3509462dbbd86d153e3b1313fd3a605e1d40deb432fbdb4d57d"),
];

fn fingerprint_of(scenario: &Path) -> &'static str {
    let name = scenario.file_stem().and_then(|name| name.to_str()).expect("a scenario has a name");
    let found = FINGERPRINTS.iter().find(|(scenario, _)| *scenario == name);
    found.unwrap_or_else(|| panic!("FINGERPRINTS lacks {name}")).1
}

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
fn shipped_scenarios_pass_their_assertions_with_one_thread_and_two() {
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
        assert!(outcome["assertions"].as_array().is_some_and(|checks| !checks.is_empty()), "it assertions something");
        assert_eq!(outcome["fingerprint"], fingerprint_of(&scenario), "{}", scenario.display());
        assert!(outcome["claim"].is_string(), "{} says what it shows", scenario.display());
        assert_eq!(run("2").stdout, one.stdout, "{}", scenario.display());
    }
}

/// What a scenario claims must not be true of anything.
#[test]
fn claims_of_clients_and_adapters_fail_where_they_are_not_true() {
    for (name, parameters, failing) in [
        ("impatient_clients", &["backoff=100ms", "factor=1.0"][..], "waiting longer each time saves them"),
        ("impatient_clients", &["peak=10"], "trying again at once loses chats"),
        ("lora_tenants", &["max_loras=2"], "goodput{class:chat,tenant:8}"),
    ] {
        let mut command = Command::new(vcr());
        command.arg("run").arg(root().join(format!("scenarios/{name}.rhai"))).arg("--json");
        parameters.iter().for_each(|parameter| {
            command.args(["-e", parameter]);
        });
        let outcome = Said::of(&mut command).ended(1).json();
        let checks = outcome["assertions"].as_array().expect("it has assertions");
        let says = |check: &&serde_json::Value| check["passed"] == false && check.to_string().contains(failing);
        assert!(checks.iter().any(|check| says(&check)), "{name} {parameters:?}: {outcome}");
    }
}
