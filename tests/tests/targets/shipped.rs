//! The shipped scenarios, with small parameters, on all targets that can run them.

use vcr_tests::{Folder, root, skip};

struct InRealTime {
    name: &'static str,
    /// Parameters with which the scenario takes seconds.
    parameters: &'static [&'static str],
}

/// Scenarios that take seconds in real time: all except those in [`TIED`].
const IN_REAL_TIME: &[InRealTime] = &[
    InRealTime { name: "same_everywhere", parameters: &[] },
    InRealTime { name: "trace_replay", parameters: &["-e", "speedup=40"] },
    InRealTime { name: "lora_tenants", parameters: &["-e", "duration=8s"] },
    InRealTime { name: "pd_burst", parameters: &["-e", "copies=1", "-e", "burst=2"] },
];

/// Scenarios whose claims are about minutes of traffic, so that they take minutes in real time. The documentation
/// gives the reason for each.
const TIED: &[&str] = &[
    "abandoned_prefills",
    "canary",
    "capacity",
    "cost",
    "failure_drill",
    "fair_share",
    "impatient_clients",
    "kv_routing",
    "measured_h100",
    "scheduler_gate",
    "thermal",
];

fn scenario(name: &str) -> String {
    root().join("scenarios").join(format!("{name}.rhai")).display().to_string()
}

/// Fails unless a scenario's assertions pass on every target.
#[track_caller]
fn passes_everywhere(name: &str) {
    let found = IN_REAL_TIME.iter().find(|scenario| scenario.name == name);
    let InRealTime { parameters, .. } = found.expect("it is one of those");
    let path = scenario(name);
    let text = std::fs::read_to_string(&path).expect("it ships");
    if text.contains("guests/dist") && !root().join("guests/dist").exists() {
        return skip(&format!("{name}: run `vcr guest build`"));
    }
    let mut subjects = Vec::new();
    for target in ["virtual", "live", "serve"] {
        let args = ["run", &path, "--target", target, "--json"];
        let said = Folder::new().vcr(&[&args[..], parameters].concat());
        let outcome = said.json();
        let checks = outcome["assertions"].as_array().cloned().unwrap_or_default();
        assert!(checks.len() >= 2, "{name} on {target}: {}", said.stderr);
        for check in &checks {
            assert!(check["passed"] == true, "{name} on {target}: {check}");
        }
        let checked: Vec<_> =
            checks.iter().map(|check| (check["subject"].clone(), check["condition"].clone())).collect();
        if subjects.is_empty() {
            subjects = checked;
        } else {
            assert_eq!(checked, subjects, "the same assertions on {target}");
        }
    }
}

#[test]
fn same_everywhere_passes_everywhere() {
    passes_everywhere("same_everywhere");
}

#[test]
fn trace_replay_passes_everywhere() {
    passes_everywhere("trace_replay");
}

#[test]
fn lora_tenants_passes_everywhere() {
    passes_everywhere("lora_tenants");
}

#[test]
fn pd_burst_passes_everywhere() {
    passes_everywhere("pd_burst");
}

/// Every scenario is in exactly one of the lists, and the documentation lists those in [`TIED`].
#[test]
fn scenarios_tied_to_virtual_time_are_in_the_docs() {
    let mut known: Vec<&str> = IN_REAL_TIME.iter().map(|scenario| scenario.name).chain(TIED.iter().copied()).collect();
    known.sort_unstable();
    let files = std::fs::read_dir(root().join("scenarios")).expect("there are scenarios");
    let names = files.map(|file| file.expect("they can be listed").file_name().display().to_string());
    let mut shipped: Vec<String> = names.filter_map(|name| Some(name.strip_suffix(".rhai")?.to_owned())).collect();
    shipped.sort_unstable();
    assert_eq!(shipped, known);
    let page = std::fs::read_to_string(root().join("docs/reference/scenarios/targets.md")).expect("it is there");
    for name in &shipped {
        assert!(page.contains(&format!("`{name}`")), "{name} is missing from docs/reference/scenarios/targets.md");
    }
}
