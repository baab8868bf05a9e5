//! Recordings with token budgets, prefill intervals, or prompts in parts are not reproduced with other settings.

use serde_json::Value;

use crate::recordings::{CaseCopy, cases, group, is_reproduced, json_of, name_of, with_value};

#[test]
fn other_budgets_and_intervals_are_noticed() {
    let mut noticed = [0; 2];
    for case in cases(&group("steps")) {
        let name = format!("steps/{}", name_of(&case));
        let file = json_of(&case, "config.json");
        assert!(is_reproduced(&name, |_| ()), "{name} as it is");
        if let Some(tokens) = file["config"]["max_num_scheduled_tokens"].as_u64() {
            let without = |config: &mut Value| config["max_num_scheduled_tokens"] = Value::Null;
            assert!(!is_reproduced(&name, without), "{name} without a budget");
            let less = |config: &mut Value| config["max_num_scheduled_tokens"] = (tokens - 1).into();
            assert!(!is_reproduced(&name, less), "{name} with less");
            noticed[0] += 1;
        }
        if let Some(steps) = file["config"]["prefill_schedule_interval"].as_u64() {
            let is_alone = file["vllm"].as_str().is_some_and(|version| version.starts_with("0.33"));
            for other in [1, steps + 1] {
                let edit = |config: &mut Value| config["prefill_schedule_interval"] = other.into();
                // Earlier releases ignore this setting.
                assert_eq!(is_reproduced(&name, edit), !is_alone, "{name} with {other}");
            }
            noticed[1] += usize::from(is_alone);
        }
    }
    assert!(noticed.iter().all(|count| *count > 1), "{noticed:?}");
}

/// Whether a change of the `parts` of some request is noticed.
fn notices(case: &str, edit: impl Fn(&mut Vec<Value>) -> bool) -> bool {
    let requests = CaseCopy::of(case).text("requests.jsonl").lines().count();
    (1..=requests).any(|number| {
        let copy = CaseCopy::of(case);
        let mut changes = false;
        copy.edit_line("requests.jsonl", number, |line| {
            let edited = with_value(line, "parts", |parts| edit(parts.as_array_mut().expect("parts are a list")));
            changes = edited.is_some();
            edited.unwrap_or_else(|| line.to_owned())
        });
        changes && !copy.replay().is_ok_and(|report| report.mismatch.is_none())
    })
}

#[test]
fn other_parts_of_prompts_are_noticed() {
    for case in cases(&group("sessions")) {
        let name = format!("sessions/{}", name_of(&case));
        let longer = |parts: &mut Vec<Value>| {
            let tokens = parts[0]["prompt"][0][1].as_u64();
            if let Some(tokens) = tokens {
                parts[0]["prompt"][0][1] = (tokens + 1).into();
            }
            tokens.is_some()
        };
        let other_length = |parts: &mut Vec<Value>| {
            let tokens = parts[0]["max_tokens"].as_u64();
            if let Some(tokens) = tokens {
                parts[0]["max_tokens"] = (tokens + 1).into();
            }
            tokens.is_some()
        };
        let without_end = |parts: &mut Vec<Value>| parts.len() > 1 && parts.pop().is_some();
        assert!(notices(&name, longer), "{name}: a longer part");
        assert!(notices(&name, other_length), "{name}: more output tokens");
        assert!(notices(&name, without_end), "{name}: no end");
        // A missing part. Some parts come too late to make a difference.
        let text = CaseCopy::of(&name).text("steps.jsonl");
        let mut with_parts = (1..).zip(text.lines()).filter(|(_, line)| line.contains("\"more\":"));
        let is_noticed = with_parts.any(|(number, _)| {
            let copy = CaseCopy::of(&name);
            copy.edit_line("steps.jsonl", number, |line| {
                let without = |more: &mut Value| more.as_array_mut().expect("ids are a list").pop().is_some();
                with_value(line, "more", without).expect("the line has parts")
            });
            !copy.replay().is_ok_and(|report| report.mismatch.is_none())
        });
        assert!(is_noticed, "{name}: a part is missing");
    }
}

#[test]
fn parts_that_do_not_come_to_a_session_are_errors() {
    let case = cases(&group("sessions")).remove(0);
    let copy = CaseCopy::of(&format!("sessions/{}", name_of(&case)));
    copy.edit_first("steps.jsonl", |line| {
        with_value(line, "more", |more| {
            more.as_array_mut().expect("ids are a list").push(4_000.into());
            true
        })
    });
    assert!(copy.error().contains("`more`: request 4000 is not in the engine"), "{}", copy.error());
    let copy = CaseCopy::of(&format!("sessions/{}", name_of(&case)));
    copy.edit_json("config.json", |file| file["config"]["pp"] = 2.into());
    let error = copy.error();
    assert!(error.contains("`batch_queue`"), "{error}");
}
