//! One value of a recording is changed. The replay must report exactly that field of exactly that line.

use serde_json::{Value, json};

use crate::recordings::{CaseCopy, with_text, with_value};

/// Drafts without async scheduling, preemptions, a prefix cache that is nearly full, and stop tokens.
const RICH: &str = "random-0.33/random-1-087";
/// Aborts, and several requests that are added at once.
const WITH_ABORTS: &str = "random-0.33/random-1-093";
/// Full attention and sliding windows, with preemptions and prefix-cache hits.
const GROUPS: &str = "groups/hybrid-3-095-0.33";
/// EAGLE under the rules of both releases, with two groups of which one contains the drafter's layers.
const DRAFTERS: [&str; 2] = ["drafters/any-2-034-0.32", "drafters/any-2-034-0.33"];
const DRAFTER_GROUPS: &str = "drafters/any-windows-2-022-0.32";
/// Mamba 2 states next to full attention, with preemptions, hits and drafts.
const STATES: &str = "groups/mamba-1-000-0.32";
const LIVE: &str = "vllm-cpu/burst-preempt";

/// Changes the first line of a scheduler recording whose `key` the edit can change, and expects that difference.
#[track_caller]
fn noticed(key: &'static str, edit: impl Fn(&mut Value) -> bool) {
    noticed_in(RICH, key, edit);
}

#[track_caller]
pub(crate) fn noticed_in(case: &str, key: &'static str, edit: impl Fn(&mut Value) -> bool) {
    let copy = CaseCopy::of(case);
    let line = copy.edit_first("steps.jsonl", |line| with_value(line, key, &edit));
    let mismatch = copy.mismatch();
    assert_eq!((mismatch.field, mismatch.line), (key, line), "{mismatch}");
    assert_ne!(mismatch.ours, mismatch.theirs);
    let message = mismatch.to_string();
    let sides = [mismatch.ours.to_string(), mismatch.theirs.to_string(), format!("`{key}`"), format!("line {line} ")];
    assert!(sides.iter().all(|part| message.contains(part.as_str())), "{message}");
}

pub(crate) fn add_one(value: &mut Value) -> bool {
    *value = json!(value.as_u64().expect("a number") + 1);
    true
}

pub(crate) fn swap(value: &mut Value) -> bool {
    let elements = value.as_array_mut().expect("an array");
    elements.len() > 1 && elements[0] != elements[1] && {
        elements.swap(0, 1);
        true
    }
}

pub(crate) fn row(edit: impl Fn(&mut Value) -> bool) -> impl Fn(&mut Value) -> bool {
    move |rows| rows.as_array_mut().expect("an array").iter_mut().any(&edit)
}

fn is_empty(value: &Value) -> bool {
    value.as_array().expect("an array").is_empty()
}

#[test]
fn nothing_is_noticed_where_nothing_was_changed() {
    for case in [RICH, LIVE] {
        assert_eq!(CaseCopy::of(case).replay().expect("it can be replayed").mismatch, None);
    }
}

#[test]
fn blocks_and_events_of_a_group() {
    let has_groups = |entry: &Value| entry[4].get(1).is_some_and(|blocks| blocks.get(0).is_some());
    noticed_in(GROUPS, "sched", row(|entry| has_groups(entry) && add_one(&mut entry[4][1][0])));
    noticed_in(GROUPS, "sched", row(|entry| has_groups(entry) && swap(&mut entry[4])));
    noticed_in(GROUPS, "win", |freed| add_one(&mut freed[0][0]));
    noticed_in(GROUPS, "win", |freed| add_one(&mut freed[0][1]));
    noticed_in(GROUPS, "win", |freed| add_one(&mut freed[0][2][0]));
    noticed_in(GROUPS, "win", |freed| freed.as_array_mut().is_some_and(|freed| freed.pop().is_some()));
    noticed_in(GROUPS, "ev", row(|event| event[0] == "S" && add_one(&mut event[3])));
    noticed_in(GROUPS, "ev", row(|event| event[0] == "R" && add_one(&mut event[2])));
}

#[test]
fn blocks_and_chunks_of_states() {
    let has_null = |entry: &Value| entry[4].get(0).is_some_and(|blocks| blocks.get(0) == Some(&json!(0)));
    noticed_in(STATES, "sched", row(|entry| has_null(entry) && add_one(&mut entry[4][0][0])));
    noticed_in(STATES, "sched", row(|entry| has_null(entry) && add_one(&mut entry[1])));
    noticed_in(STATES, "win", |freed| add_one(&mut freed[0][2][0]));
    noticed_in(STATES, "ev", row(|event| event[0] == "S" && event[3] == 0 && add_one(&mut event[3])));
}

/// A window with one more token, another interval of kept blocks, and one group less are noticed.
#[test]
fn settings_of_groups() {
    let is_noticed = |case: &str, edit: &dyn Fn(&mut Value)| {
        let copy = CaseCopy::of(case);
        copy.edit_json("config.json", |file| {
            edit(&mut file["config"]);
            file["config"].as_object_mut().expect("an object").remove("effective");
        });
        assert!(copy.replay().expect("it can be replayed").mismatch.is_some(), "{case}");
    };
    for case in ["groups/window-1-003-0.33", "groups/local-1-029-0.33", GROUPS] {
        is_noticed(case, &|config| {
            let groups = config["groups"].as_array_mut().expect("groups");
            let windows = groups.iter_mut().filter_map(|group| group.get_mut("window"));
            windows.for_each(|window| *window = json!(window.as_u64().expect("a length") + 40));
        });
    }
    is_noticed(GROUPS, &|config| config["retention"] = json!(null));
    is_noticed(STATES, &|config| config["retention"] = json!(0));
    is_noticed(STATES, &|config| {
        let groups = config["groups"].as_array_mut().expect("groups").iter_mut();
        groups.for_each(|group| _ = group.as_object_mut().expect("an object").remove("checkpoint"));
    });
    is_noticed(GROUPS, &|config| assert!(config["groups"].as_array_mut().expect("groups").pop().is_some()));
}

/// Another drafter, one more draft, another hash rule, and the drafter's layers in another group are noticed.
#[test]
fn settings_of_drafters() {
    let is_noticed = |case: &str, key: &str, value: Value| {
        let copy = CaseCopy::of(case);
        copy.edit_json("config.json", |file| {
            let config = file["config"].as_object_mut().expect("an object");
            config.remove("effective");
            assert_ne!(config.insert(key.to_owned(), value.clone()), Some(value.clone()), "{case}: {key}");
        });
        assert!(copy.replay().expect("it can be replayed").mismatch.is_some(), "{case}: `{key}` is {value}");
    };
    for case in DRAFTERS {
        for drafter in ["ngram", "draft_model", "multi_module_mtp"] {
            is_noticed(case, "drafter", json!(drafter));
        }
    }
    is_noticed(DRAFTERS[1], "disable_lookahead_block_hashes", json!(true));
    DRAFTERS.iter().for_each(|case| is_noticed(case, "spec", json!(3)));
    let copy = CaseCopy::of(DRAFTER_GROUPS);
    copy.edit_json("config.json", |file| {
        file["config"].as_object_mut().expect("an object").remove("effective");
        for group in file["config"]["groups"].as_array_mut().expect("groups") {
            let has = group.as_object_mut().expect("an object").remove("drafter").is_some();
            group["drafter"] = json!(!has);
        }
    });
    assert!(copy.replay().expect("it can be replayed").mismatch.is_some());
}

#[test]
fn a_number_of_a_schedule() {
    noticed("s", add_one);
    noticed("u", add_one);
}

#[test]
fn what_is_scheduled() {
    noticed("sched", row(|entry| add_one(&mut entry[1])));
    noticed("sched", row(|entry| add_one(&mut entry[2])));
    noticed("sched", row(|entry| !is_empty(&entry[4]) && add_one(&mut entry[4][0])));
    noticed("sched", row(|entry| swap(&mut entry[4])));
    noticed("sched", row(|entry| entry.get(5).is_some() && add_one(&mut entry[5])));
    noticed("sched", swap);
    noticed("sched", |entries| entries.as_array_mut().expect("an array").pop().is_some());
}

#[test]
fn the_kind_of_a_scheduled_request() {
    for (from, to) in [("n", "r"), ("p", "n"), ("r", "p")] {
        noticed(
            "sched",
            row(|entry| {
                let is = entry[3] == from;
                if is {
                    entry[3] = to.into();
                }
                is
            }),
        );
    }
}

#[test]
fn what_a_schedule_leaves_behind() {
    noticed("tot", add_one);
    noticed("pre", |preempted| add_one(&mut preempted[0]));
    noticed("flush", |flushed| add_one(&mut flushed[0]));
    noticed("run", swap);
    noticed("wait", add_one);
    noticed("free", add_one);
}

#[test]
fn what_comes_out() {
    noticed("out", row(|entry| add_one(&mut entry[1])));
    noticed("out", swap);
    noticed("fin", |ended| {
        let other = if ended[0][1] == "stop" { "length" } else { "stop" };
        ended[0][1] = other.into();
        true
    });
    // The drafts that the model proposed: more than it may propose, and none.
    noticed(
        "drafts",
        row(|entry| {
            entry[1] = json!(99);
            true
        }),
    );
    noticed("drafts", |drafts| drafts.as_array_mut().is_some_and(|drafts| drafts.pop().is_some()));
    noticed("sampled", |sampled| {
        let first = sampled.as_object_mut().and_then(|sampled| sampled.values_mut().next()).expect("it is not empty");
        *first = json!(99);
        true
    });
    for place in 0..6 {
        noticed("pc", |counters| add_one(&mut counters[place]));
    }
}

#[test]
fn what_the_prefix_cache_announces() {
    noticed("ev", row(|event| event[0] == "S" && !event[1].is_null() && add_one(&mut event[1])));
    noticed(
        "ev",
        row(|event| {
            let is = event[0] == "S" && !event[1].is_null();
            if is {
                event[1] = Value::Null;
            }
            is
        }),
    );
    noticed("ev", row(|event| event[0] == "S" && add_one(&mut event[2][0])));
    noticed("ev", row(|event| event[0] == "R" && add_one(&mut event[1][0])));
    noticed("ev", swap);
    noticed("ev", |events| events.as_array_mut().is_some_and(|events| events.len() > 1 && events.pop().is_some()));
}

/// What was done to the engine is no decision, but a change of it leads to another decision.
#[test]
fn what_was_done_to_the_engine() {
    let copy = CaseCopy::of(WITH_ABORTS);
    let line = copy.edit_first("steps.jsonl", |line| with_value(line, "add", swap));
    assert!(copy.mismatch().line >= line);

    let copy = CaseCopy::of(WITH_ABORTS);
    let line = copy.edit_first("steps.jsonl", |line| with_text(line, "abort", |_| Some("[]".to_owned())));
    assert!(copy.mismatch().line >= line);

    let copy = CaseCopy::of(RICH);
    let line = copy.edit_first("steps.jsonl", |line| {
        with_value(line, "sampled", |sampled| {
            sampled.as_object_mut().and_then(|sampled| sampled.values_mut().next()).is_some_and(|tokens| {
                *tokens = json!(1);
                true
            })
        })
    });
    let mismatch = copy.mismatch();
    assert_eq!((mismatch.field, mismatch.line), ("out", line), "{mismatch}");
}

#[track_caller]
fn noticed_live(key: &str, field: &str, edit: impl Fn(&mut Value) -> bool) {
    noticed_live_text(field, |line| with_value(line, key, &edit));
}

#[track_caller]
fn noticed_live_text(field: &str, edit: impl Fn(&str) -> Option<String>) {
    let copy = CaseCopy::of(LIVE);
    let line = copy.edit_first("steps.jsonl", |line| if line.contains("\"step\"") { edit(line) } else { None });
    let mismatch = copy.mismatch();
    assert_eq!((mismatch.field, mismatch.line, mismatch.event), (field, line, None), "{mismatch}");
    assert_ne!(mismatch.ours, mismatch.theirs);
}

#[test]
fn a_step_of_a_live_engine() {
    noticed_live("sched", "sched", row(|entry| add_one(&mut entry[1])));
    noticed_live("sched", "sched", row(|entry| add_one(&mut entry[2])));
    noticed_live("sched", "sched", row(|entry| !is_empty(&entry[4]) && add_one(&mut entry[4][0])));
    noticed_live(
        "sched",
        "sched",
        row(|entry| {
            let is = entry[3] == "p";
            if is {
                entry[3] = "n".into();
            }
            is
        }),
    );
    noticed_live("sched", "sched", swap);
    noticed_live("total", "total", add_one);
    noticed_live("running", "running", add_one);
    noticed_live("waiting", "waiting", add_one);
    noticed_live("free_blocks", "free_blocks", add_one);
    noticed_live("free_blocks_after", "free_blocks_after", add_one);
    noticed_live("usage", "usage", |usage| {
        *usage = json!(usage.as_f64().expect("a number") + 0.00001);
        true
    });
    for (key, field) in [("preempted", "preempted"), ("finished", "finished")] {
        noticed_live(key, field, |names| {
            !is_empty(names) && {
                names[0] = "other".into();
                true
            }
        });
    }
}

#[test]
fn what_comes_out_of_a_live_engine() {
    noticed_live("stopped", "stopped", |stopped| {
        !is_empty(stopped) && {
            stopped[0][1] = "abort".into();
            true
        }
    });
    noticed_live_text("emitted", |line| {
        with_text(line, "emitted", |text| text.contains(":1").then(|| text.replacen(":1", ":2", 1)))
    });
    noticed_live_text("emitted", |line| {
        with_text(line, "emitted", |text| {
            let (first, rest) = text.trim_matches(['{', '}']).split_once(',')?;
            Some(format!("{{{rest},{first}}}"))
        })
    });
}

/// Changes the last event that `edit` can change; the difference must be reported there. The last events belong to
/// requests whose tokens are all known.
#[track_caller]
fn noticed_event(field: &str, edit: impl Fn(&mut Value) -> bool) {
    let copy = CaseCopy::of(LIVE);
    let place = std::cell::Cell::new(0);
    let line = copy.edit_last("kv_events.jsonl", |line| {
        with_value(line, "batch", |batch| {
            let events = batch[1].as_array_mut().expect("a batch has events");
            events.iter_mut().zip(0..).any(|(event, index)| {
                place.set(index);
                edit(event)
            })
        })
    });
    let mismatch = copy.mismatch();
    let at = mismatch.event.unwrap_or_else(|| panic!("{mismatch}"));
    assert_eq!((mismatch.field, at.line, at.event), (field, line, place.get()), "{mismatch}");
}

#[test]
fn an_event_of_a_live_engine() {
    let flip = |hash: &mut Value| {
        *hash = json!(hash.as_u64().expect("a hash") ^ (1 << 40));
        true
    };
    let is = |event: &Value, kind: &str| event["type"] == kind;
    // Flips a bit of a block's hash, of its parent's hash and of a removed block's hash.
    noticed_event("block hashes", |event| is(event, "BlockStored") && flip(&mut event["block_hashes"][0]));
    noticed_event("block hashes", |event| is(event, "BlockRemoved") && flip(&mut event["block_hashes"][0]));
    noticed_event("parent of a stored event", |event| {
        is(event, "BlockStored") && !event["parent_block_hash"].is_null() && flip(&mut event["parent_block_hash"])
    });
    noticed_event("whether a stored event has a parent", |event| {
        is(event, "BlockStored") && !event["parent_block_hash"].is_null() && {
            event["parent_block_hash"] = Value::Null;
            true
        }
    });
    noticed_event("tokens of a stored event", |event| is(event, "BlockStored") && add_one(&mut event["token_ids"][3]));
    noticed_event("blocks of a stored event", |event| {
        event["block_hashes"].as_array_mut().is_some_and(|hashes| hashes.len() > 1 && hashes.pop().is_some())
    });
    noticed_event("kind of a KV event", |event| {
        is(event, "BlockRemoved") && {
            *event = json!({ "type": "AllBlocksCleared" });
            true
        }
    });
}

#[test]
fn events_of_a_live_engine_that_are_missing_or_too_many() {
    let batch = |edit: fn(&mut Vec<Value>) -> bool| {
        let copy = CaseCopy::of(LIVE);
        let line = copy.edit_first("kv_events.jsonl", |line| {
            with_value(line, "batch", |batch| edit(batch[1].as_array_mut().expect("a batch has events")))
        });
        let mismatch = copy.mismatch();
        assert_eq!(mismatch.event.map(|event| event.line), Some(line), "{mismatch}");
        mismatch.field
    };
    assert_eq!(batch(|events| events.len() > 1 && events.pop().is_some()), "number of KV events");
    assert_eq!(
        batch(|events| {
            events.push(events[0].clone());
            true
        }),
        "number of KV events"
    );
    let copy = CaseCopy::of(LIVE);
    copy.edit_first("kv_events.jsonl", |line| with_value(line, "batch", |batch| swap(&mut batch[1])));
    assert!(copy.mismatch().event.is_some());
    // One more batch than the core publishes.
    let copy = CaseCopy::of(LIVE);
    let text = copy.text("kv_events.jsonl");
    let more = r#"{"t":0,"topic":"","seq":100000,"batch":[0,[{"type":"AllBlocksCleared"}],0]}"#;
    copy.write("kv_events.jsonl", &format!("{text}{more}\n"));
    assert_eq!(copy.mismatch().field, "batches of KV events");
}

/// Hashes are computed from the tokens that the caller sent and received.
#[test]
fn a_token_of_a_live_request() {
    for (file, key) in [("requests.jsonl", "prompt"), ("tokens.jsonl", "tokens")] {
        let copy = CaseCopy::of(LIVE);
        copy.edit_first(file, |line| with_value(line, key, |tokens| add_one(&mut tokens[0])));
        let field = copy.mismatch().field;
        assert!(["block hashes", "tokens of a stored event"].contains(&field), "{file}: {field}");
    }
}
