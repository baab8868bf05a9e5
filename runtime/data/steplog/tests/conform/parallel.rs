//! Recordings with pipeline stages, ranks, or drafts by batch size are not reproduced with other settings.

use serde_json::{Value, json};

use crate::recordings::{CaseCopy, cases, group, is_reproduced, json_of, name_of};

#[test]
fn other_stages_ranks_and_drafts_are_noticed() {
    let mut noticed = [0; 3];
    for case in cases(&group("parallel")) {
        let config = json_of(&case, "config.json")["config"].clone();
        let name = format!("parallel/{}", name_of(&case));
        assert!(is_reproduced(&name, |_| ()), "{name} as it is");
        if let Some(stages) = config["pp"].as_u64() {
            assert!(!is_reproduced(&name, |config| config["pp"] = 1.into()), "{name} with one stage");
            noticed[0] += 1;
            // Without async scheduling, more stages make no difference, because no step uses them.
            if config["async_scheduling"] == true {
                assert!(!is_reproduced(&name, |config| config["pp"] = (stages + 1).into()), "{name} with one more");
            }
        }
        if let Some(ranks) = config["dcp"].as_u64() {
            assert!(!is_reproduced(&name, |config| config["dcp"] = (2 * ranks).into()), "{name} with more ranks");
            noticed[1] += 1;
        }
        if config["spec_by_batch"].is_array() {
            let edit = |config: &mut Value| config["spec_by_batch"] = json!([[1, 1, config["spec"]]]);
            // Without async scheduling, the recording determines the drafts that are proposed after a step.
            if config["async_scheduling"] == true {
                assert!(!is_reproduced(&name, edit), "{name} with the same drafts in all batches");
                noticed[2] += 1;
            }
        }
    }
    assert!(noticed.iter().all(|count| *count > 1), "{noticed:?}");
}

#[test]
fn what_the_scheduler_derived_is_compared() {
    let case = |kind: &str| {
        let all = cases(&group("parallel")).into_iter();
        let mut names = all.map(|case| case.file_name().expect("a name").to_string_lossy().into_owned());
        names.find(|name| name.starts_with(kind)).expect("there is one")
    };
    for (kind, key) in [
        ("pipeline-61", "decode_stagger"),
        ("pipeline-61", "max_in_flight_tokens"),
        ("context-61", "hash_block_size"),
        ("context-61", "scheduler_block_size"),
    ] {
        let copy = CaseCopy::of(&format!("parallel/{}", case(kind)));
        copy.edit_json("config.json", |file| file["config"]["effective"][key] = 7.into());
        let error = copy.replay().expect_err("it is another scheduler").to_string();
        assert!(error.contains(&format!("`effective.{key}` is 7")), "{error}");
    }
    let copy = CaseCopy::of(&format!("parallel/{}", case("pipeline-61")));
    copy.edit_json("config.json", |file| file["batch_queue"] = 9.into());
    let error = copy.replay().expect_err("it has fewer steps in flight").to_string();
    assert!(error.contains("`batch_queue` is 9"), "{error}");
}
