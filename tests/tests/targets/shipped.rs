//! The scenarios that ship, with small parameters, on all targets that can run them.

use std::path::Path;

use vcr_tests::{Folder, root};

/// Scenarios, and parameters with which they take a few seconds in real time. Others are tied
/// to virtual time by claims about minutes of traffic.
const IN_REAL_TIME: &[(&str, &[&str])] =
    &[("same_everywhere", &[]), ("trace_replay", &["-e", "speedup=40"]), ("lora_tenants", &["-e", "duration=5s"])];

/// Scenarios that a target must refuse, with the part that it lacks.
const REFUSED: &[(&str, &str, &str)] = &[("pd_burst", "serve", "prefill and decode pools")];

fn scenario(name: &str) -> String {
    root().join("scenarios").join(format!("{name}.rhai")).display().to_string()
}

#[test]
fn shipped_scenarios_pass_their_assertions_in_real_time() {
    for (name, parameters) in IN_REAL_TIME {
        for target in ["virtual", "live", "serve"] {
            let path = scenario(name);
            assert!(Path::new(&path).exists(), "{path}");
            let args = ["run", &path, "--target", target, "--json"];
            let said = Folder::new().vcr(&[&args[..], parameters].concat()).ended(0);
            let outcome = said.json();
            assert!(outcome["assertions"].as_array().is_some_and(|checks| checks.len() >= 2), "{name} on {target}");
            assert_eq!(outcome["passed"], true, "{name} on {target}");
        }
    }
}

#[test]
fn scenarios_are_refused_before_anything_starts() {
    for (name, target, part) in REFUSED {
        Folder::new().vcr(&["run", &scenario(name), "--target", target]).failed(2, &[part, "--target virtual"]);
    }
}
