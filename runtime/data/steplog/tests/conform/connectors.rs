//! Changes one value of a recording with a KV connector: a decision, a report of the workers, or a setting.

use serde_json::{Value, json};

use crate::can_fail::{add_one, noticed_in, row, swap};
use crate::recordings::{CaseCopy, cases, group, with_value};

/// Connectors that answer at random: synchronous and asynchronous loads, failures, and KV that is held.
const SCRIPTED: [&str; 2] = ["connectors/scripted-1-015-0.32", "connectors/scripted-1-015-0.33"];

/// The offloading connector, whose answers depend on what it stored.
const OFFLOADING: [&str; 2] = ["connectors/offloading-21-035-0.32", "connectors/offloading-21-035-0.33"];

/// Full attention and a sliding window.
const GROUPS: [&str; 2] = ["connectors/scripted-hybrid-1-002-0.32", "connectors/scripted-hybrid-1-002-0.33"];

#[test]
fn lookups_and_their_counters() {
    for case in SCRIPTED {
        noticed_in(case, "look", |rows| add_one(&mut rows[0][0]));
        noticed_in(case, "look", |rows| add_one(&mut rows[0][1]));
        noticed_in(case, "look", swap);
        noticed_in(case, "look", |rows| {
            // A lookup that was not made.
            let one = rows[0].clone();
            rows.as_array_mut().is_some_and(|rows| {
                rows.push(one);
                true
            })
        });
        noticed_in(case, "sync", |sync| {
            *sync = json!(false);
            true
        });
        for place in 0..6 {
            noticed_in(case, "xc", |counters| add_one(&mut counters[place]));
        }
        noticed_in(
            case,
            "fin",
            row(|end| {
                let is = end[1] == "error";
                if is {
                    end[1] = "length".into();
                }
                is
            }),
        );
    }
}

/// Blocks of each group, blocks that left windows, and loads that fail as a whole.
#[test]
fn groups_beside_connectors() {
    for case in GROUPS {
        for group in 0..2 {
            let has_block = move |entry: &mut Value| {
                let block = entry[4].get_mut(group).and_then(|blocks| blocks.get_mut(0));
                block.is_some_and(add_one)
            };
            noticed_in(case, "sched", row(has_block));
        }
        noticed_in(case, "win", |freed| add_one(&mut freed[0][2][0]));
        changes_a_decision(case, "kv", |report| {
            report.as_object_mut().is_some_and(|report| report.remove("failed").is_some())
        });
        let with_bad = CaseCopy::of(case);
        with_bad.edit_first("steps.jsonl", |line| {
            with_value(line, "kv", |report| {
                report["bad"] = json!([1]);
                true
            })
        });
        let error = with_bad.replay().expect_err("vLLM's scheduler fails there").to_string();
        assert!(error.contains("`kv`: blocks are bad where there are several groups"), "{error}");
    }
}

/// Tokens that a NIXL prefill engine leaves to the decode engine. An engine without that role computes them.
#[test]
fn tokens_that_are_left_to_the_engine_that_decodes() {
    let noticed = changed_cases(|copy| {
        copy.edit_json("config.json", |file| {
            if file["config"]["drafter"] == "multi_module_mtp" && file["config"]["connector"]["kind"] == "nixl" {
                file["config"]["connector"]["kind"] = json!("scripted");
            }
        });
    });
    assert!(of_both_versions(&noticed), "{noticed:?}");
}

/// Asserts that a change of the first line that `edit` changes also changes a decision on that line or later.
#[track_caller]
fn changes_a_decision(case: &str, key: &str, edit: impl Fn(&mut Value) -> bool) {
    let copy = CaseCopy::of(case);
    let line = copy.edit_first("steps.jsonl", |line| with_value(line, key, &edit));
    let mismatch = copy.mismatch();
    assert!(mismatch.line >= line, "{case}: {key}: {mismatch}");
}

fn take_one(value: &mut Value) -> bool {
    let one_less = value.as_u64().expect("a number").saturating_sub(1);
    *value = json!(one_less);
    one_less > 0
}

/// Answers and reports are no decisions, but a change of them leads to another decision.
#[test]
fn answers_and_reports() {
    for case in SCRIPTED {
        changes_a_decision(case, "look", row(|entry| entry[3] == true && take_one(&mut entry[2])));
        changes_a_decision(
            case,
            "look",
            row(|entry| {
                let is = entry[3] == true;
                if is {
                    entry[3] = json!(false);
                }
                is
            }),
        );
        for kind in ["recv", "send", "bad"] {
            changes_a_decision(case, "kv", |report| {
                report.as_object_mut().is_some_and(|report| report.remove(kind).is_some())
            });
        }
        changes_a_decision(case, "pause", |state| {
            let is = *state == "PAUSED_NEW" || *state == "PAUSED_ALL";
            *state = json!("UNPAUSED");
            is
        });
    }
}

/// Names the cases that are not reproduced after a change.
fn changed_cases(change: impl Fn(&CaseCopy)) -> Vec<String> {
    let all = cases(&group("connectors")).into_iter();
    let is_noticed = |name: &String| {
        let copy = CaseCopy::of(&format!("connectors/{name}"));
        change(&copy);
        copy.replay().map_or(true, |report| report.mismatch.is_some())
    };
    all.map(|case| case.file_name().expect("a folder").to_string_lossy().into_owned()).filter(is_noticed).collect()
}

fn of_both_versions(cases: &[String]) -> bool {
    ["0.32", "0.33"].iter().all(|version| cases.iter().any(|case| case.ends_with(version)))
}

#[test]
fn settings_of_a_connector() {
    let with = |edit: &dyn Fn(&mut Value)| {
        changed_cases(|copy| {
            copy.edit_json("config.json", |file| {
                edit(&mut file["config"]["connector"]);
                file["config"].as_object_mut().expect("an object").remove("effective");
            });
        })
    };
    let edits: [&dyn Fn(&mut Value); 4] = [
        &|connector| {
            let producer = connector["role"] == "kv_producer";
            connector["role"] = json!(if producer { "kv_consumer" } else { "kv_producer" });
        },
        &|connector| connector["load_failures"] = json!("fail"),
        &|connector| connector["load_failures"] = json!("recompute"),
        &|connector| connector["delivery"] = json!(connector["delivery"] != true),
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        let noticed = with(edit);
        assert!(of_both_versions(&noticed), "edit {number}: {noticed:?}");
    }
}

#[test]
fn parts_of_other_engines() {
    for key in ["hold", "remote"] {
        let noticed = changed_cases(|copy| {
            copy.edit_all("requests.jsonl", |line| {
                let mut request: Value = serde_json::from_str(line).expect("a request");
                request.as_object_mut().expect("an object").remove(key);
                request.to_string()
            });
        });
        assert!(of_both_versions(&noticed), "{key}: {noticed:?}");
    }
}

/// The copies' numbers, requests and host positions, and the loads among the ended copies.
#[test]
fn copies_of_the_connector_for_offloading() {
    for case in OFFLOADING {
        for kind in ["load", "store"] {
            for place in 0..2 {
                noticed_in(case, "moves", |moves| {
                    moves.get_mut(kind).is_some_and(|copies| add_one(&mut copies[0][place]))
                });
            }
            noticed_in(case, "moves", |moves| moves.get_mut(kind).is_some_and(|copies| add_one(&mut copies[0][2][0])));
            noticed_in(case, "moves", |moves| moves.as_object_mut().is_some_and(|moves| moves.remove(kind).is_some()));
        }
        noticed_in(case, "moves", |moves| moves.get_mut("flush").is_some_and(|numbers| add_one(&mut numbers[0])));
        noticed_in(case, "look", row(|entry| add_one(&mut entry[2])));
        noticed_in(case, "kv", |report| report.get_mut("recv").is_some_and(|requests| add_one(&mut requests[0])));
        changes_a_decision(case, "kv", |report| {
            report.get("recv").is_none() && report.as_object_mut().is_some_and(|report| report.remove("jobs").is_some())
        });
    }
}

#[test]
fn settings_of_the_connector_for_offloading() {
    type Edit = dyn Fn(&Value) -> Value;
    let edits: [(&str, &Edit); 6] = [
        ("chunks", &|chunks| json!(chunks.as_u64().map(|chunks| chunks + 1))),
        ("eviction_policy", &|policy| json!(if policy == "lru" { "arc" } else { "lru" })),
        ("store_threshold", &|threshold| json!(threshold.as_u64().map(|threshold| threshold.max(1) + 1))),
        ("max_tracker_size", &|_| json!(1)),
        ("offload_prompt_only", &|prompt_only| json!(prompt_only != true)),
        ("blocks_per_chunk", &|blocks| json!(blocks.as_u64().map(|blocks| blocks + 1))),
    ];
    for (key, edit) in edits {
        let noticed = changed_cases(|copy| {
            copy.edit_json("config.json", |file| {
                let value = edit(&file["config"]["connector"][key]);
                if file["config"]["connector"]["kind"] == "offloading" {
                    file["config"]["connector"][key] = value;
                }
            });
        });
        assert!(of_both_versions(&noticed), "{key}: {noticed:?}");
    }
}
