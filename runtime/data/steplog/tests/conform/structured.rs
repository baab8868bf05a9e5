//! Recordings with structured outputs are not reproduced if a grammar is ready at another time or a count differs.

use serde_json::{Value, json};

use crate::can_fail::{add_one, noticed_in};
use crate::recordings::{CaseCopy, cases, group, name_of, text_of, with_value};

/// Drafts that do not fit, with and without async scheduling; preemptions, aborts and failed grammars.
const DRAFTS: [&str; 3] =
    ["structured/structured-11-005-0.32", "structured/structured-11-005-0.27", "structured/structured-11-004-0.30"];

fn is_same(copy: &CaseCopy) -> bool {
    copy.replay().is_ok_and(|report| report.mismatch.is_none())
}

#[test]
fn counters_of_requests_and_drafts() {
    for case in DRAFTS {
        noticed_in(case, "skip", add_one);
        for place in 0..3 {
            noticed_in(case, "sd", |counters| add_one(&mut counters[place]));
        }
        // One more draft that does not fit changes the next schedule, or a count.
        let copy = CaseCopy::of(case);
        copy.edit_first("steps.jsonl", |line| with_value(line, "inv", |rows| add_one(&mut rows[0][1])));
        assert!(!is_same(&copy), "{case}");
        let copy = CaseCopy::of(case);
        copy.edit_first("steps.jsonl", |line| {
            with_value(line, "inv", |rows| rows.as_array_mut().expect("rows").pop().is_some())
        });
        assert!(!is_same(&copy), "{case}");
    }
}

/// Whether a change of some line with grammars is noticed.
fn notices(case: &str, edit: impl Fn(&mut Vec<Value>) -> bool) -> bool {
    let lines = CaseCopy::of(case).text("steps.jsonl").lines().count();
    (1..=lines).any(|number| {
        let copy = CaseCopy::of(case);
        let mut changes = false;
        copy.edit_line("steps.jsonl", number, |line| {
            let edited = with_value(line, "gram", |rows| edit(rows.as_array_mut().expect("rows are a list")));
            changes = edited.is_some();
            edited.unwrap_or_else(|| line.to_owned())
        });
        changes && !is_same(&copy)
    })
}

#[test]
fn the_times_and_ends_of_compilations() {
    for case in cases(&group("structured")) {
        let name = format!("structured/{}", name_of(&case));
        assert!(notices(&name, |rows| rows.pop().is_some()), "{name}: one is never compiled");
        let other_end = |rows: &mut Vec<Value>| {
            let succeeds = rows[0][1] == json!(true);
            rows[0][1] = (!succeeds).into();
            true
        };
        assert!(notices(&name, other_end), "{name}: one ends otherwise");
        // A request that does not wait for a grammar.
        let requests = text_of(&case, "requests.jsonl").lines().count();
        let copies = (1..=requests).filter_map(|number| {
            let copy = CaseCopy::of(&name);
            let mut changes = false;
            copy.edit_line("requests.jsonl", number, |line| {
                let edited = with_value(line, "grammar", |grammar| {
                    *grammar = Value::Null;
                    true
                });
                changes = edited.is_some();
                edited.unwrap_or_else(|| line.to_owned())
            });
            changes.then_some(copy)
        });
        assert!(copies.into_iter().any(|copy| !is_same(&copy)), "{name}: one has no grammar");
    }
}

#[test]
fn grammars_of_requests_that_are_not_there_are_errors() {
    let copy = CaseCopy::of(DRAFTS[0]);
    copy.edit_first("steps.jsonl", |line| {
        with_value(line, "gram", |rows| {
            rows[0][0] = 4_000.into();
            true
        })
    });
    assert!(copy.error().contains("`gram`: request 4000 is not in the engine"), "{}", copy.error());
}
