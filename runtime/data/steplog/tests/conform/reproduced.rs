//! Every recording is reproduced, field by field.

use std::path::{Path, PathBuf};

use serde_json::Value;
use vcr_steplog::conform::{self, CaseReport};
use vcr_steplog::{LogKind, StepLog};

use crate::recordings::{CaseCopy, cases, group, json_of, root, say, text_of};

/// Replays all recordings of a folder and prints the totals.
#[track_caller]
fn all_reproduced(folder: &Path) -> Vec<CaseReport> {
    let mut reports = Vec::new();
    let mut failures = Vec::new();
    for case in cases(folder) {
        match conform::replay(&case) {
            Ok(report) => {
                failures.extend(report.mismatch.as_ref().map(|mismatch| format!("{}: {mismatch}", report.case)));
                reports.push(report);
            }
            Err(error) => failures.push(error.to_string()),
        }
    }
    assert!(failures.is_empty(), "{} of {} differ:\n{}", failures.len(), reports.len(), failures.join("\n"));
    let sum = |of: fn(&CaseReport) -> u64| reports.iter().map(of).sum::<u64>();
    say(&format!(
        "{}: {} recordings are reproduced: {} steps, {} fields, {} KV events, {} block hashes",
        folder.strip_prefix(root()).unwrap_or(folder).display(),
        reports.len(),
        sum(|report| report.steps),
        sum(|report| report.fields),
        sum(|report| report.events),
        sum(|report| report.hashes),
    ));
    reports
}

#[test]
fn the_recorded_workloads() {
    assert_eq!(all_reproduced(&group("vllm-scheduler")).len(), 29);
}

#[test]
fn the_random_cases() {
    for name in ["random-0.32", "random-0.33"] {
        assert_eq!(all_reproduced(&group(name)).len(), 24);
    }
}

/// Releases before 0.32. Each recording was chosen for a rule, so that it differs under the rules of a neighbouring
/// release.
#[test]
fn the_cases_of_older_releases() {
    let folder = group("releases");
    assert_eq!(all_reproduced(&folder).len(), 32);
    let minor_of = |case: &Path| -> u32 {
        let version = json_of(case, "config.json")["vllm"].as_str().expect("a version is text").to_owned();
        version.split('.').nth(1).and_then(|minor| minor.parse().ok()).expect("a version has a minor number")
    };
    for case in cases(&folder) {
        let minor = minor_of(&case);
        let name = case.file_name().expect("a case has a name").to_string_lossy().into_owned();
        let differs_in = |other: u32| {
            let copy = CaseCopy::of(&format!("releases/{name}"));
            copy.edit_json("config.json", |file| file["vllm"] = format!("0.{other}.0").into());
            // Settings that follow from the rules may also differ.
            !copy.replay().is_ok_and(|report| report.mismatch.is_none())
        };
        assert!([minor - 1, minor + 1].into_iter().filter(|other| *other >= 27).any(differs_in), "{name}");
    }
    for minor in 27..=31 {
        let own = || cases(&folder).into_iter().filter(|case| minor_of(case) == minor);
        for kind in ["drafter", "groups", "encoder_cache_size"] {
            assert!(own().any(|case| !json_of(&case, "config.json")["config"][kind].is_null()), "0.{minor}: {kind}");
        }
    }
}

#[test]
fn the_cases_with_groups_of_layers() {
    let folder = group("groups");
    assert_eq!(all_reproduced(&folder).len(), 37);
    for kind in ["hybrid", "window", "windows", "sizes", "local", "mamba", "mamba-alone", "mamba-windows"] {
        let own = || cases(&folder).into_iter().filter(|case| case.to_string_lossy().contains(&format!("/{kind}-")));
        let total = |name: &str| -> u64 {
            own().map(|case| json_of(&case, "config.json")["stats"][name].as_u64().unwrap_or(0)).sum()
        };
        let has_freed = own().any(|case| text_of(&case, "steps.jsonl").contains("\"win\":"));
        assert!(has_freed && total("preemptions") > 0 && total("hits") > 0, "{kind}");
    }
}

/// Drafters with their own KV: each under both releases, alone and with groups.
#[test]
fn the_cases_with_drafters() {
    let folder = group("drafters");
    assert_eq!(all_reproduced(&folder).len(), 16);
    let configs: Vec<Value> = cases(&folder).iter().map(|case| json_of(case, "config.json")).collect();
    let asynchronous = configs.iter().filter(|case| case["config"]["async_scheduling"] == true).count();
    assert!((4..12).contains(&asynchronous), "{asynchronous} with async scheduling");
    for version in ["0.32.0", "0.33.0"] {
        for drafter in ["eagle", "mtp", "multi_module_mtp", "draft_model"] {
            let own = || configs.iter().filter(|case| case["vllm"] == version && case["config"]["drafter"] == drafter);
            let total = |name: &str| -> u64 { own().map(|case| case["stats"][name].as_u64().unwrap_or(0)).sum() };
            assert!(total("preemptions") > 0 && total("hits") > 0, "{version}: {drafter}");
            assert!(own().any(|case| case["config"]["groups"].is_array()), "{version}: {drafter}");
        }
    }
}

#[test]
fn the_cases_with_media() {
    let folder = group("media");
    assert_eq!(all_reproduced(&folder).len(), 14);
    for version in ["0.32", "0.33"] {
        let own = || cases(&folder).into_iter().filter(|case| case.to_string_lossy().ends_with(version));
        let total = |name: &str| -> u64 {
            own().map(|case| json_of(&case, "config.json")["stats"][name].as_u64().unwrap_or(0)).sum()
        };
        let lines_with = |key: &str| -> usize {
            own().map(|case| text_of(&case, "steps.jsonl").lines().filter(|line| line.contains(key)).count()).sum()
        };
        assert!(total("preemptions") > 50 && total("hits") > 500, "{version}");
        assert!(lines_with("\"enc\":") > 200 && lines_with("\"encf\":") > 100, "{version}");
    }
}

#[test]
fn the_cases_with_stages_and_ranks() {
    let folder = group("parallel");
    assert_eq!(all_reproduced(&folder).len(), 42);
    let configs: Vec<Value> = cases(&folder).iter().map(|case| json_of(case, "config.json")).collect();
    for version in ["0.32.0", "0.33.0"] {
        for key in ["pp", "dcp", "spec_by_batch"] {
            let own = || configs.iter().filter(|case| case["vllm"] == version && !case["config"][key].is_null());
            let total = |name: &str| -> u64 { own().map(|case| case["stats"][name].as_u64().unwrap_or(0)).sum() };
            assert!(total("preemptions") > 5 && total("hits") > 100, "{version}: {key}");
            let asynchronous = own().filter(|case| case["config"]["async_scheduling"] == true).count();
            assert!(asynchronous > 0 && asynchronous < own().count(), "{version}: {key}: {asynchronous}");
        }
        let own = || configs.iter().filter(|case| case["vllm"] == version && !case["config"]["pp"].is_null());
        for key in ["groups", "drafter", "encoder_cache_size"] {
            assert!(own().any(|case| !case["config"][key].is_null()), "{version}: {key}");
        }
    }
    for minor in 27..=31 {
        for key in ["pp", "dcp", "spec_by_batch"] {
            let is_own = |case: &Value| {
                let version = case["vllm"].as_str().is_some_and(|text| text.starts_with(&format!("0.{minor}.")));
                version && !case["config"][key].is_null()
            };
            assert!(configs.iter().any(is_own), "0.{minor}: {key}");
        }
    }
}

/// Token budgets smaller than the model's input, and prefill intervals, under all releases.
#[test]
fn the_cases_with_budgets_and_intervals() {
    let folder = group("steps");
    assert_eq!(all_reproduced(&folder).len(), 11);
    let configs: Vec<Value> = cases(&folder).iter().map(|case| json_of(case, "config.json")).collect();
    for minor in 27..=33 {
        let version = format!("0.{minor}.");
        let of_minor = |case: &&Value| case["vllm"].as_str().is_some_and(|text| text.starts_with(&version));
        let own = |key: &str| configs.iter().filter(of_minor).filter(|case| !case["config"][key].is_null()).count();
        assert!(own("max_num_scheduled_tokens") > 0, "{version}");
    }
    let total = |name: &str| -> u64 { configs.iter().map(|case| case["stats"][name].as_u64().unwrap_or(0)).sum() };
    assert!(total("preemptions") > 10 && total("hits") > 100);
}

/// All Mamba states, which releases up to 0.31 keep, and cross attention.
#[test]
fn the_cases_with_all_states_and_cross_attention() {
    let folder = group("layers");
    assert_eq!(all_reproduced(&folder).len(), 11);
    let configs: Vec<Value> = cases(&folder).iter().map(|case| json_of(case, "config.json")).collect();
    let of = |kind: &str, key: &str| -> u64 {
        let own = configs.iter().filter(|case| case["config"]["groups"].to_string().contains(kind));
        own.map(|case| case["stats"][key].as_u64().unwrap_or(0)).sum()
    };
    assert!(of("mamba", "preemptions") > 20 && of("mamba", "hits") > 500);
    assert!(of("cross_attention", "preemptions") > 20);
    for minor in [27, 28, 29, 30, 31, 32, 33] {
        let version = format!("0.{minor}.");
        assert!(
            configs.iter().any(|case| case["vllm"].as_str().is_some_and(|text| text.starts_with(&version))),
            "{version}"
        );
    }
}

#[test]
fn the_cases_with_streaming_inputs() {
    let folder = group("sessions");
    assert_eq!(all_reproduced(&folder).len(), 12);
    for version in ["0.32.0", "0.33.0"] {
        let own = || cases(&folder).into_iter().filter(|case| json_of(case, "config.json")["vllm"] == version);
        let lines_with = |key: &str| -> usize {
            own().map(|case| text_of(&case, "steps.jsonl").lines().filter(|line| line.contains(key)).count()).sum()
        };
        assert!(lines_with("\"win\":") > 20, "{version}: windows");
        assert!(lines_with("\"more\":") > 20 && lines_with("\"pre\":") > 2, "{version}");
        let staged = own().filter(|case| !json_of(case, "config.json")["config"]["pp"].is_null());
        assert_eq!(staged.count(), 2, "{version}: stages");
    }
    // A part that arrives while everything is paused has its own line.
    let paused = text_of(&folder.join("sessions-7201-018-0.33"), "steps.jsonl");
    let has_only_a_part =
        |line: &str| line.contains("\"more\":") && !line.contains("\"s\":") && !line.contains("\"u\":");
    assert!(paused.lines().any(has_only_a_part));
}

/// Requests that wait for their grammar under each version of the rules, and drafts that do not fit the grammar.
#[test]
fn the_cases_with_structured_outputs() {
    let folder = group("structured");
    assert_eq!(all_reproduced(&folder).len(), 17);
    for (version, keys) in [
        ("0.27.1", ["\"gram\":", "\"inv\":", "\"pre\":"]),
        ("0.30.0", ["\"gram\":", "\"inv\":", "\"pre\":"]),
        ("0.32.0", ["\"error\"", "\"inv\":", "\"pre\":"]),
        ("0.33.0", ["\"error\"", "\"inv\":", "\"pre\":"]),
    ] {
        let own = || cases(&folder).into_iter().filter(|case| json_of(case, "config.json")["vllm"] == version);
        for key in keys {
            let lines = |case: PathBuf| text_of(&case, "steps.jsonl").lines().filter(|line| line.contains(key)).count();
            assert!(own().map(lines).sum::<usize>() > 2, "{version}: {key}");
        }
    }
    let policies: Vec<Value> =
        cases(&folder).iter().map(|case| json_of(case, "config.json")["config"]["policy"].clone()).collect();
    assert!(policies.contains(&"priority".into()) && policies.contains(&"fcfs".into()));
}

/// Each kind of KV connector under both releases: loads, failures, KV that is held, pipeline stages and a drafter.
#[test]
fn the_cases_with_connectors() {
    let folder = group("connectors");
    assert_eq!(all_reproduced(&folder).len(), 62);
    for version in ["0.32.0", "0.33.0"] {
        let all = cases(&folder).into_iter().map(|case| (json_of(&case, "config.json"), text_of(&case, "steps.jsonl")));
        let own: Vec<(Value, String)> = all.filter(|(config, _)| config["vllm"] == version).collect();
        let lines_with = |kind: &str, key: &str| -> usize {
            let of_kind = own.iter().filter(|(config, _)| config["config"]["connector"]["kind"] == kind);
            of_kind.map(|(_, steps)| steps.lines().filter(|line| line.contains(key)).count()).sum()
        };
        for kind in ["scripted", "nixl", "offloading"] {
            for key in ["\"pre\":", "\"recv\":", "\"xc\":"] {
                assert!(lines_with(kind, key) > 0, "{version}: {kind}: {key}");
            }
        }
        for key in ["\"sync\":", "\"bad\":", "\"failed\":", "\"error\"", "\"send\":", ",null,false]", "\"PAUSED_NEW\""]
        {
            assert!(lines_with("scripted", key) > 0, "{version}: {key}");
        }
        for key in ["\"bad\":", "\"error\"", "\"send\":"] {
            assert!(lines_with("nixl", key) > 0, "{version}: {key}");
        }
        for key in [",null,false]", "\"load\":", "\"store\":", "\"flush\":[", "\"jobs\":"] {
            assert!(lines_with("offloading", key) > 0, "{version}: {key}");
        }
        let has = |kind: &str, key: &str, value: &str| {
            let of_kind = own.iter().filter(|(config, _)| config["config"]["connector"]["kind"] == kind);
            of_kind.clone().any(|(config, _)| config["config"][key].to_string().contains(value))
        };
        for value in ["sliding_window", "mamba"] {
            assert!(has("scripted", "groups", value), "{version}: {value}");
        }
        assert!(has("nixl", "groups", "mamba") && has("nixl", "drafter", "multi_module_mtp"), "{version}");
        for setting in ["defer_block_free", "requires_kv_delivery", "recompute_kv_load_failures"] {
            for value in [true, false] {
                let has = own.iter().any(|(config, _)| config["config"]["effective"][setting] == value);
                assert!(has, "{version}: {setting}: {value}");
            }
        }
    }
}

/// vLLM's second model runner gets a resumed request as a new request.
#[test]
fn the_cases_of_the_second_model_runner() {
    assert_eq!(all_reproduced(&group("runner-v2")).len(), 4);
    for case in cases(&group("runner-v2")) {
        let config = json_of(&case, "config.json");
        assert!(config["stats"]["preemptions"].as_u64() > Some(10), "{}", case.display());
        assert!(!text_of(&case, "steps.jsonl").contains("\"p\""), "{}", case.display());
    }
}

#[test]
fn the_live_captures() {
    let reports = all_reproduced(&group("vllm-cpu"));
    assert_eq!(reports.len(), 10);
    for report in &reports {
        assert!(report.hashes > 0, "{}: no block hash was compared", report.case);
        // The subscriber may miss the first batch of KV events; everything else is compared.
        assert!(
            report.notes.iter().all(|note| note.contains("missing from the capture: 1 ")),
            "{}: {:?}",
            report.case,
            report.notes
        );
    }
}

/// vLLM 0.33.0 on an H100, with the runner, the async scheduling and the settings that it chooses there.
#[test]
fn the_live_capture_of_a_gpu() {
    let reports = all_reproduced(&group("vllm-gpu"));
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].steps, reports[0].fields), (827, 9097));
}

/// A checkout may have the original recordings next to it.
#[test]
fn the_recordings_beside_the_checkout() {
    for name in ["vllm-scheduler", "vllm-cpu"] {
        if let Some(folder) = vcr_skips::sample(name) {
            all_reproduced(&folder);
        }
    }
}

#[test]
fn our_lines_are_the_recorded_lines() {
    let mut lines = 0;
    for name in [
        "vllm-scheduler",
        "random-0.32",
        "random-0.33",
        "runner-v2",
        "groups",
        "drafters",
        "parallel",
        "connectors",
        "steps",
        "sessions",
        "layers",
    ] {
        for case in cases(&group(name)) {
            let text = text_of(&case, "steps.jsonl");
            let mut recorded = text.lines();
            for replayed in conform::replay_lines(&case).expect("it can be replayed") {
                let replayed = replayed.expect("every line can be replayed");
                let mut ours = serde_json::to_value(&replayed.ours).expect("a line is JSON");
                // vLLM does not say why it admits no more requests.
                ours.as_object_mut().expect("a line is an object").remove("why");
                let theirs: Value = serde_json::from_str(recorded.next().expect("as many lines")).expect("JSON");
                assert_eq!(ours, theirs, "{}, line {}", case.display(), replayed.line);
                lines += 1;
            }
            assert_eq!(recorded.next(), None, "{}", case.display());
        }
    }
    say(&format!("{lines} lines are written as they were recorded"));
}

#[test]
fn packed_logs_are_read_like_plain_ones() {
    for (case, kind) in [("random-0.33/random-1-057", LogKind::Scheduler), ("vllm-cpu/wire", LogKind::Live)] {
        let packed = StepLog::read(&group(case)).expect("it can be read");
        let copy = CaseCopy::of(case);
        let plain = StepLog::read(copy.folder()).expect("it can be read");
        assert_eq!((packed.kind, plain.kind), (kind, kind));
        assert_eq!((packed.lines, packed.settings), (plain.lines, plain.settings));
        assert!(packed.path.ends_with("steps.jsonl.gz") && plain.path.ends_with("steps.jsonl"));
        let by_name = StepLog::read(&packed.path).expect("it can be read");
        assert_eq!(by_name.kind, kind);
    }
}

/// The rules of one release fail on recordings for which the other release decides differently.
#[test]
fn the_rules_of_one_line_do_not_reproduce_the_other() {
    for (name, other, least) in [("random-0.33", "0.32.0", 12), ("random-0.32", "0.33.0", 12)] {
        let mut differ = Vec::new();
        for case in cases(&group(name)) {
            let case_name = case.file_name().expect("a case has a name").to_string_lossy().into_owned();
            let copy = CaseCopy::of(&format!("{name}/{case_name}"));
            copy.edit_json("config.json", |config| config["vllm"] = other.into());
            let report = copy.replay().expect("it can be replayed");
            differ.extend(report.mismatch.map(|mismatch| format!("{case_name}: {}", mismatch.field)));
        }
        say(&format!("with the rules of {other}, {} of {name} differ: {}", differ.len(), differ.join(", ")));
        assert!(differ.len() >= least, "only {differ:?}");
    }
}
