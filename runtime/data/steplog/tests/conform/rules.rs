//! Each rule in which releases differ is inverted. At least one recording must notice it.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use vcr_core::SchedulerRules;
use vcr_steplog::conform;

use crate::recordings::{cases, group};

/// Whether the recording is no longer reproduced if the rule is inverted.
fn notices(case: &Path, rule: &str) -> bool {
    let inverted = |rules: SchedulerRules| rules.with_inverted(rule).expect("there is such a rule");
    // An inverted rule may contradict another rule, so that the core stops at an assertion.
    let replayed = catch_unwind(|| conform::replay_by(case, inverted));
    !matches!(replayed, Ok(Ok(report)) if report.mismatch.is_none())
}

fn recordings() -> Vec<PathBuf> {
    let folders = [
        "releases",
        "groups",
        "drafters",
        "media",
        "random-0.32",
        "random-0.33",
        "connectors",
        "steps",
        "sessions",
        "structured",
    ];
    folders.into_iter().flat_map(|folder| cases(&group(folder))).collect()
}

#[test]
fn every_rule_is_noticed_by_a_recording() {
    let recordings = recordings();
    let unnoticed: Vec<&str> = SchedulerRules::RULES
        .iter()
        .copied()
        .filter(|rule| !recordings.iter().any(|case| notices(case, rule)))
        .collect();
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

#[test]
fn every_recording_of_an_older_release_notices_a_rule() {
    for case in cases(&group("releases")) {
        assert!(SchedulerRules::RULES.iter().any(|rule| notices(&case, rule)), "{}", case.display());
    }
}
