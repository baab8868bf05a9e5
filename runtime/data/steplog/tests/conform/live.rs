//! One value or setting is changed in a capture of a live engine with several groups of layers, a drafter with its
//! own KV, or images.

use serde_json::{Value, json};
use vcr_steplog::StepLog;

use crate::can_fail::{add_one, row};
use crate::recordings::{CaseCopy, group, with_text, with_value};

const WINDOW: &str = "vllm-cpu/window";
const VISION: &str = "vllm-cpu/vision";
const DRAFTER: &str = "vllm-cpu/drafter";
const EAGLE: &str = "vllm-cpu/eagle";
const TENANTS: &str = "vllm-cpu/tenants";

/// Changes the first step whose `key` the edit can change. The difference must be reported there.
#[track_caller]
fn noticed(case: &str, key: &str, edit: impl Fn(&mut Value) -> bool) {
    let copy = CaseCopy::of(case);
    let is_step = |line: &str| line.contains("\"step\":");
    let line = copy.edit_first("steps.jsonl", |line| if is_step(line) { with_value(line, key, &edit) } else { None });
    let mismatch = copy.mismatch();
    assert_eq!((mismatch.field, mismatch.line), (key, line), "{mismatch}");
}

/// Changes a setting in the first line, and returns the field that then differs.
#[track_caller]
fn setting(case: &str, key: &str, value: &Value) -> &'static str {
    let copy = CaseCopy::of(case);
    copy.edit_line("steps.jsonl", 1, |line| with_text(line, key, |_| Some(value.to_string())).expect("it has the key"));
    copy.mismatch().field
}

/// Changes the last event that `edit` can change, and returns the field that then differs. The last events belong
/// to requests whose tokens are all known.
#[track_caller]
fn event(case: &str, edit: impl Fn(&mut Value) -> bool) -> &'static str {
    let copy = CaseCopy::of(case);
    let line = copy.edit_last("kv_events.jsonl", |line| {
        with_value(line, "batch", |batch| batch[1].as_array_mut().expect("events").iter_mut().any(&edit))
    });
    let mismatch = copy.mismatch();
    assert_eq!(mismatch.event.map(|event| event.line), Some(line), "{mismatch}");
    mismatch.field
}

#[test]
fn blocks_of_all_groups() {
    let has_second = |entry: &Value| entry[4].get(1).is_some_and(|blocks| blocks.get(0).is_some());
    noticed(WINDOW, "sched", row(|entry| has_second(entry) && add_one(&mut entry[4][1][0])));
    noticed(
        WINDOW,
        "sched",
        row(|entry| has_second(entry) && entry[4].as_array_mut().is_some_and(|all| all.pop().is_some())),
    );
    noticed(WINDOW, "free_blocks", add_one);
    let groups = |window: u32| json!([{"kind": "sliding_window", "block_size": 32, "window": window}, {"kind": "full", "block_size": 32}]);
    assert_ne!(setting(WINDOW, "groups", &groups(200)), "");
    assert_ne!(setting(WINDOW, "retention", &Value::Null), "");
    let full = json!([{"kind": "full", "block_size": 32}, {"kind": "full", "block_size": 32}]);
    let copy = CaseCopy::of(WINDOW);
    copy.edit_line("steps.jsonl", 1, |line| with_text(line, "groups", |_| Some(full.to_string())).expect("groups"));
    assert!(copy.error().contains("layers other than full_attention"), "{}", copy.error());
}

#[test]
fn events_of_all_groups() {
    let is_second = |event: &Value| event["type"] == "BlockStored" && event["group_idx"] == 1;
    let flip = |hash: &mut Value| {
        *hash = json!(hash.as_u64().expect("a hash") ^ (1 << 40));
        true
    };
    assert_eq!(event(WINDOW, |event| is_second(event) && flip(&mut event["block_hashes"][0])), "block hashes");
    assert_eq!(
        event(WINDOW, |event| is_second(event) && add_one(&mut event["token_ids"][3])),
        "tokens of a stored event"
    );
    assert_eq!(
        event(WINDOW, |event| is_second(event) && add_one(&mut event["block_size"])),
        "block size of a stored event"
    );
    let first_of_second = |event: &mut Value| {
        event["type"] == "BlockRemoved" && event["group_idx"] == 1 && {
            event["group_idx"] = 0.into();
            true
        }
    };
    assert_eq!(event(WINDOW, first_of_second), "group of a KV event");
    // The hashes of both groups were computed from the tokens.
    let report = CaseCopy::of(WINDOW).replay().expect("it can be replayed");
    assert!(report.hashes > 400 && report.notes.is_empty(), "{report:?}");
}

#[test]
fn items_of_the_encoder() {
    noticed(VISION, "enc", |rows| add_one(&mut rows[0][1][0]));
    noticed(VISION, "enc", |rows| rows.as_array_mut().is_some_and(|rows| rows.pop().is_some()));
    noticed(VISION, "encf", |freed| {
        freed[0] = "another".into();
        true
    });
    assert_ne!(setting(VISION, "encoder_cache_size", &json!(4096)), "");
    assert_ne!(setting(VISION, "max_num_encoder_input_tokens", &json!(40)), "");
    // A block's hash includes the identifier and the position of its multimodal items.
    for edit in [
        &(|item: &mut Value| {
            item[0] = "another".into();
            true
        }) as &dyn Fn(&mut Value) -> bool,
        &|item: &mut Value| add_one(&mut item[1]),
    ] {
        let copy = CaseCopy::of(VISION);
        copy.edit_first("steps.jsonl", |line| {
            with_value(line, "added", |added| {
                let mut requests = added.as_array_mut().expect("requests").iter_mut();
                requests.any(|request| request["media"].get(0).is_some() && edit(&mut request["media"][0]))
            })
        });
        copy.mismatch();
    }
}

#[test]
fn items_that_cannot_be() {
    let with_item = |edit: &dyn Fn(&mut Value)| {
        let copy = CaseCopy::of(VISION);
        copy.edit_first("steps.jsonl", |line| {
            with_value(line, "added", |added| {
                let mut requests = added.as_array_mut().expect("requests").iter_mut();
                requests.find(|request| request["media"].get(0).is_some()).map(edit).is_some()
            })
        });
        copy.error()
    };
    let behind = with_item(&|request| request["media"][0][1] = json!(4_000_000_000_u32));
    assert!(behind.contains("an item of request ") && behind.contains("ends behind its prompt"), "{behind}");
    let unknown = with_item(&|request| request["id"] = "unknown".into());
    assert!(unknown.contains("`requests.jsonl` has no prompt of it"), "{unknown}");
}

fn with_requests(copy: &CaseCopy, edit: impl Fn(&mut Value) + Copy) {
    copy.edit_all("steps.jsonl", |line| {
        let each = |added: &mut Value| {
            added.as_array_mut().expect("requests").iter_mut().for_each(edit);
            true
        };
        with_value(line, "added", each).unwrap_or_else(|| line.to_owned())
    });
}

fn without(request: &mut Value, key: &str) {
    request.as_object_mut().expect("a request").remove(key);
}

/// vLLM hashes the `cache_salt` with the first block. A request can also forbid the reuse of blocks.
#[test]
fn salts_and_requests_that_read_no_cache() {
    let report = CaseCopy::of(TENANTS).replay().expect("it can be replayed");
    assert!(report.mismatch.is_none() && report.hashes > 100, "{report:?}");
    let copy = CaseCopy::of(TENANTS);
    with_requests(&copy, |request| {
        if request["cache_salt"] == "red" {
            request["cache_salt"] = "blue".into();
        }
    });
    let error = copy.error();
    assert!(
        error.contains("`extra_keys` has \"red\", but no request in `steps.jsonl` has this `cache_salt`"),
        "{error}"
    );
    let copy = CaseCopy::of(TENANTS);
    copy.edit_first("steps.jsonl", |line| {
        with_value(line, "added", |added| {
            let salt = &mut added[0]["cache_salt"];
            let is_salted = salt.is_string();
            *salt = if salt == "red" { "blue" } else { "red" }.into();
            is_salted
        })
    });
    assert_eq!(copy.mismatch().field, "block hashes");
    let copy = CaseCopy::of(TENANTS);
    with_requests(&copy, |request| without(request, "skip_reading_prefix_cache"));
    copy.mismatch();
}

/// The drafts are those in the capture, or else those that were scheduled.
#[test]
fn drafts_of_a_live_engine() {
    for case in [DRAFTER, EAGLE] {
        let text = CaseCopy::of(case).text("steps.jsonl");
        assert!(text.lines().filter(|line| line.contains("\"drafts\":{\"")).count() > 50, "{case}");
        let copy = CaseCopy::of(case);
        copy.edit_first("steps.jsonl", |line| {
            with_text(line, "drafts", |text| text.contains(":3").then(|| text.replacen(":3", ":2", 1)))
        });
        assert_eq!(copy.mismatch().field, "sched", "{case}");
        let copy = CaseCopy::of(case);
        copy.edit_all("steps.jsonl", |line| {
            with_text(line, "drafts", |_| Some("null".to_owned())).unwrap_or(line.to_owned())
        });
        copy.replay().expect("it can be replayed");
        let numbers = CaseCopy::of(case);
        numbers
            .edit_line("steps.jsonl", 1, |line| with_text(line, "drafter", |_| Some("\"ngram\"".into())).expect("it"));
        assert!(numbers.error().contains("`num_lookahead_tokens` is 3, where 0 is expected"), "{}", numbers.error());
    }
    // With EAGLE, the last block of a hit is dropped.
    assert_ne!(setting(EAGLE, "drafter", &json!("draft_model")), "");
}

/// The time of an abort determines its position among the steps.
#[test]
fn aborts_while_steps_are_in_flight() {
    let copy = CaseCopy::of(WINDOW);
    let text = copy.text("steps.jsonl");
    assert!(text.lines().any(|line| line.contains("\"aborted_at\":[")), "some are aborted");
    // Changes the times as if each abort had come with the step before its line.
    copy.edit_all("steps.jsonl", |line| {
        let late = |times: &mut Value| {
            times.as_array_mut().expect("times").iter_mut().for_each(|at| *at = json!(9e9));
            true
        };
        with_value(line, "aborted_at", late).unwrap_or_else(|| line.to_owned())
    });
    assert_eq!(copy.mismatch().field, "emitted", "one was aborted while a step was in flight that gave it a token");
}

/// `vcr inspect steps` shows these lines.
#[test]
fn lines_of_these_captures() {
    let vision = StepLog::read(&group(VISION)).expect("it can be read");
    assert!(vision.lines.iter().any(|line| !line.enc.is_empty()));
    let window = StepLog::read(&group(WINDOW)).expect("it can be read");
    assert_eq!(window.settings["groups"].as_array().map(Vec::len), Some(2));
}
