//! The shipped scenarios: each must pass its assertions on every machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use vcr_tests::{Folder, Said, root, skip, vcr};

/// Fingerprint of each scenario, on every machine and with every compiler. A fingerprint changes with the
/// behaviour, and must not change in a refactoring.
const FINGERPRINTS: &[(&str, &str)] = &[
    ("abandoned_prefills", "e574b2992f778b3e216305981c04f6f051a9ba841a77d849291cb3a03fe25db8"),
    ("canary", "dc7c78e89e2356f98091e4e65ccc609ab6f6d8dba986ffa5ba0df2d1d46eda0b"),
    ("capacity", "42b5830318acef353f04e18391be30d685e9ca4af69cc423d69a2cc77703c9f7"),
    ("cost", "8cbed8601d32c11a4568e4f798d10d7ef36edc50d20013976cc1ccc4ab777545"),
    ("failure_drill", "396e92aeb28fcbc701b914df71bda91e773cfb76b779eca04776a79297a19bbf"),
    ("fair_share", "06a7cddf4a13c967db177e41bca415a2e55cfc1b1bae47f7f249ad7f0da8b1bb"),
    ("impatient_clients", "b54f6ff7b96f8c8606419a5968fa68dc638a12e2944921cc7f2b4840bc828226"),
    ("kv_routing", "c95cdf0db17f83d473fb91358e733dd09d559d5177a744e35baddc6ba6360ba5"),
    ("lora_tenants", "12a0326714bd6e15b79d815fca1181377db9f80fc22e1f581a4bb8b20b71ec06"),
    ("measured_h100", "a9ae08c875d27d15f5e4e6a7ce7aefd177b6d1e3bf48be73cf0fdab901274756"),
    ("pd_burst", "7f3292dcd4e8d7bf19bcea3ee723f31cdf432b9c577ba654ceaeba710052b143"),
    ("scheduler_gate", "72c55430358a76af69b6d833ad5a8526ce13b2c9f5b9b7c6d82385734fbc376e"),
    ("same_everywhere", "962adfddbcd62c9e6042d56b0f6c5472227468224dccd0f882402e269ccb6c13"),
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

#[test]
fn shipped_scenarios_can_be_checked() {
    for scenario in scenarios() {
        let text = std::fs::read_to_string(&scenario).expect("it can be read");
        if text.contains("guests/dist") && !root().join("guests/dist").exists() {
            skip(&format!("{}: run `vcr guest build`", scenario.display()));
            continue;
        }
        let _ = Said::of(Command::new(vcr()).arg("check").arg(&scenario)).ended(0);
    }
}

/// A parameter that makes each claim false, and words of an assertion that then fails.
const BREAKING: &[(&str, &str, &str)] = &[
    ("abandoned_prefills", "abort_timeout=1s", "ttft{workload:chats}"),
    ("canary", "budget=8192", "it shortens the longest pause to a tenth"),
    ("capacity", "gpus=1", "two GPUs take at least 1.8 times as much"),
    ("cost", "least=4", "scaling saves a quarter"),
    ("failure_drill", "retries=0", "completed_ratio"),
    ("fair_share", "flood=10", "ttft{workload:chat}"),
    ("impatient_clients", "peak=10", "trying again at once loses chats"),
    ("kv_routing", "engines=1", "kv-aware computes a third less than round-robin"),
    ("lora_tenants", "max_loras=2", "goodput{class:chat,tenant:8}"),
    ("measured_h100", "gpus=5", "one GPU fewer takes at least 1.5 times as long for a token"),
    ("pd_burst", "shape=aggregated", "itl{workload:chat}"),
    ("same_everywhere", "sessions=1", "prefix_hit_ratio"),
    ("scheduler_gate", "aging=0.0", "decision against run `fcfs`"),
    ("thermal", "load=1s", "under load the hot GPU is at least a tenth slower"),
];

/// Scenarios whose claim holds for all parameters: a replaced text makes it false.
const REWRITTEN: &[(&str, [&str; 2], &str)] = &[(
    "trace_replay",
    ["workloads: [recorded] }", "workloads: [recorded], faults: [crash(#{ at: \"2s\", engine: 0 })] }"],
    "failed",
)];

fn breaks(command: &mut Command, name: &str, words: &str) {
    let said = Said::of(command).ended(1);
    let broken = said.stdout.lines().any(|line| line.contains('✗') && line.contains(words));
    assert!(broken, "{name} does not break {words}:\n{}", said.stdout);
}

#[test]
fn the_claim_of_each_shipped_scenario_can_be_broken() {
    for scenario in scenarios() {
        let text = std::fs::read_to_string(&scenario).expect("it can be read");
        if text.contains("guests/dist") && !root().join("guests/dist").exists() {
            skip(&format!("{}: run `vcr guest build`", scenario.display()));
            continue;
        }
        let name = scenario.file_stem().and_then(|name| name.to_str()).expect("a scenario has a name");
        let mut command = Command::new(vcr());
        if let Some((_, parameter, words)) = BREAKING.iter().find(|(breaking, ..)| *breaking == name) {
            breaks(command.arg("run").arg(&scenario).args(["-q", "-e", parameter]), name, words);
            continue;
        }
        let rewritten = REWRITTEN.iter().find(|(rewritten, ..)| *rewritten == name);
        let (_, [from, to], words) = rewritten.unwrap_or_else(|| panic!("nothing breaks {name}"));
        assert!(text.contains(from), "{name} has changed");
        let folder = Folder::with(&text.replace(from, to));
        let trace = format!("trace={}", root().join("scenarios/traces/chat.jsonl").display());
        breaks(command.args(["run", "test.rhai", "-q", "-e", &trace]).current_dir(folder.path()), name, words);
    }
}
