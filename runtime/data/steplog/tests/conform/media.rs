//! One value of a recording with multimodal items, or one setting of its encoder, is changed.

use serde_json::{Value, json};

use crate::can_fail::{add_one, noticed_in, row, swap};
use crate::recordings::{CaseCopy, cases, group};

/// Images, a small encoder budget and preemptions.
const MEDIA: [&str; 2] = ["media/media-102-032-0.32", "media/media-201-073-0.33"];

#[test]
fn items_of_the_encoder() {
    for case in MEDIA {
        noticed_in(case, "enc", |rows| add_one(&mut rows[0][0]));
        noticed_in(case, "enc", |rows| add_one(&mut rows[0][1][0]));
        noticed_in(case, "enc", |rows| rows.as_array_mut().is_some_and(|rows| rows.pop().is_some()));
        noticed_in(case, "enc", row(|row| swap(&mut row[1])));
        noticed_in(case, "encf", |freed| add_one(&mut freed[0]));
        noticed_in(case, "encf", swap);
        noticed_in(case, "encf", |freed| freed.as_array_mut().is_some_and(|freed| freed.pop().is_some()));
    }
}

/// Names the cases that are not reproduced after a change.
fn changed_cases(change: impl Fn(&CaseCopy)) -> Vec<String> {
    let all = cases(&group("media")).into_iter();
    let is_noticed = |name: &String| {
        let copy = CaseCopy::of(&format!("media/{name}"));
        change(&copy);
        copy.replay().map_or(true, |report| report.mismatch.is_some())
    };
    all.map(|case| case.file_name().expect("a folder").to_string_lossy().into_owned()).filter(is_noticed).collect()
}

fn of_both_versions(cases: &[String]) -> bool {
    ["0.32", "0.33"].iter().all(|version| cases.iter().any(|case| case.ends_with(version)))
}

/// A larger budget, a larger cache, chunks that must or may split an item, and the rules of the other release.
#[test]
fn settings_of_the_encoder() {
    let with = |edit: &dyn Fn(&mut Value)| {
        changed_cases(|copy| {
            copy.edit_json("config.json", |file| {
                edit(file);
                file["config"].as_object_mut().expect("an object").remove("effective");
            });
        })
    };
    for key in ["max_num_encoder_input_tokens", "encoder_cache_size"] {
        let noticed = with(&|file| {
            let value = &mut file["config"][key];
            *value = json!(value.as_u64().expect("a number") * 20);
        });
        assert!(of_both_versions(&noticed), "{key}: {noticed:?}");
    }
    let noticed = with(&|file| file["config"]["disable_chunked_mm_input"] = json!(false));
    assert!(of_both_versions(&noticed), "{noticed:?}");
    let noticed = with(&|file| file["vllm"] = json!(if file["vllm"] == "0.33.0" { "0.32.0" } else { "0.33.0" }));
    assert!(of_both_versions(&noticed), "{noticed:?}");
}

/// Items that are all equal, that have one token less at the start or end, or that have other embeddings.
#[test]
fn items_of_a_prompt() {
    let with = |edit: &dyn Fn(&mut Value)| {
        changed_cases(|copy| {
            copy.edit_all("requests.jsonl", |line| {
                let mut request: Value = serde_json::from_str(line).expect("a request");
                request["media"].as_array_mut().expect("items").iter_mut().for_each(edit);
                request.to_string()
            });
        })
    };
    let shorter = |item: &mut Value| item[2] = json!(item[2].as_u64().expect("a length").saturating_sub(1).max(1));
    let edits: [&dyn Fn(&mut Value); 4] = [
        &|item| item[0] = json!(7),
        &|item| {
            let len = item[2].as_u64().expect("a length");
            item[1] = json!(item[1].as_u64().expect("a place") + u64::from(len > 1));
            shorter(item);
        },
        &shorter,
        &|item| {
            let runs = json!([[0, 1]]);
            item.as_array_mut().expect("an item").truncate(3);
            item.as_array_mut().expect("an item").push(runs);
        },
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        let noticed = with(edit);
        assert!(of_both_versions(&noticed), "edit {number}: {noticed:?}");
    }
}
