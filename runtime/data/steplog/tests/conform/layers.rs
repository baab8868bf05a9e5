//! Recordings with all Mamba states or with cross attention are not reproduced with other settings or blocks.

use serde_json::{Value, json};

use crate::can_fail::{add_one, noticed_in, row};
use crate::recordings::{CaseCopy, cases, group, is_reproduced, json_of, name_of, with_value};

/// Mamba next to a sliding window, with hits, preemptions and drafts.
const STATES: &str = "layers/mamba-all-41-101-0.28";
const CROSS: [&str; 2] = ["layers/cross-31-063-0.32", "layers/cross-31-063-0.33"];

fn names(has: impl Fn(&Value) -> bool) -> Vec<String> {
    let all = cases(&group("layers")).into_iter();
    all.filter(|case| has(&json_of(case, "config.json")["config"]))
        .map(|case| format!("layers/{}", name_of(&case)))
        .collect()
}

fn has_cross(config: &Value) -> bool {
    config["groups"].to_string().contains("cross_attention")
}

#[test]
fn other_modes_of_states_are_noticed() {
    let cases = names(|config| config["mamba_cache_mode"] == "all");
    assert_eq!(cases.len(), 6);
    for name in cases {
        assert!(is_reproduced(&name, |_| ()), "{name} as it is");
        for mode in ["none", "align"] {
            let other = |config: &mut Value| {
                // In this mode, chunks end at states.
                (config["mamba_cache_mode"], config["chunked_prefill"]) = (mode.into(), true.into());
            };
            assert!(!is_reproduced(&name, other), "{name}: {mode}");
        }
        let copy = CaseCopy::of(&name);
        copy.edit_json("config.json", |file| file["vllm"] = "0.32.0".into());
        assert!(
            copy.error().contains("invalid `mamba_cache_mode`: expected none or align, got all"),
            "{}",
            copy.error()
        );
        copy.edit_json("config.json", |file| file["config"]["mamba_cache_mode"] = "some".into());
        assert!(copy.error().contains("`config.mamba_cache_mode` is \"some\": not known here"), "{}", copy.error());
    }
}

#[test]
fn blocks_of_all_states() {
    let is_mamba = |entry: &Value| entry[4].get(1).is_some_and(|blocks| blocks.get(0).is_some());
    noticed_in(STATES, "sched", row(|entry| is_mamba(entry) && add_one(&mut entry[4][1][0])));
    noticed_in(STATES, "win", |freed| add_one(&mut freed[0][2][0]));
    noticed_in(STATES, "ev", row(|event| event[0] == "S" && event[3] == 1 && add_one(&mut event[3])));
}

#[test]
fn other_encoders_are_noticed() {
    let cases = names(has_cross);
    assert_eq!(cases.len(), 5);
    let mut larger_blocks = 0;
    for name in &cases {
        assert!(is_reproduced(name, |_| ()), "{name} as it is");
        let groups = |config: &mut Value, edit: &dyn Fn(&mut Value)| {
            let groups = config["groups"].as_array_mut().expect("groups").iter_mut();
            groups.filter(|group| group["kind"] == "cross_attention").for_each(edit);
        };
        assert!(!is_reproduced(name, |config| groups(config, &|group| group["kind"] = "full".into())), "{name}: full");
        let larger = |group: &mut Value| group["block_size"] = (group["block_size"].as_u64().unwrap_or(1) * 2).into();
        // An input may also fit into the larger block, so not every case notices the change.
        larger_blocks += u32::from(!is_reproduced(name, |config| groups(config, &larger)));
        // A longer encoder input takes more blocks.
        let copy = CaseCopy::of(name);
        copy.edit_first("requests.jsonl", |line| {
            with_value(line, "media", |media| {
                let has_item = media.get(0).is_some();
                if has_item {
                    media[0][2] = json!(media[0][2].as_u64().expect("a length") + 200);
                }
                has_item
            })
        });
        assert!(!copy.replay().is_ok_and(|report| report.mismatch.is_none()), "{name}: a longer item");
    }
    assert!(larger_blocks > 2, "{larger_blocks}");
    for key in ["max_num_encoder_input_tokens", "encoder_cache_size"] {
        let more = |config: &mut Value| config[key] = (config[key].as_u64().unwrap_or(0) * 20).into();
        assert!(cases.iter().any(|name| !is_reproduced(name, more)), "{key}");
    }
}

#[test]
fn blocks_and_items_of_cross_attention() {
    for case in CROSS {
        // The group of cross attention is the last group.
        let first_block = |entry: &mut Value| {
            let group = entry[4].as_array_mut().and_then(|groups| groups.last_mut());
            group.and_then(|blocks| blocks.get_mut(0)).is_some_and(add_one)
        };
        noticed_in(case, "sched", |rows| rows.as_array_mut().expect("rows").iter_mut().any(first_block));
        noticed_in(case, "enc", |rows| add_one(&mut rows[0][1][0]));
        noticed_in(case, "encf", |freed| add_one(&mut freed[0]));
        noticed_in(case, "encf", |freed| freed.as_array_mut().is_some_and(|freed| freed.pop().is_some()));
    }
}

/// Settings that vLLM switches off for encoder-decoder models.
#[test]
fn settings_that_exclude_cross_attention_are_refused() {
    for key in ["prefix_caching", "chunked_prefill"] {
        let copy = CaseCopy::of(CROSS[1]);
        copy.edit_json("config.json", |file| file["config"][key] = true.into());
        let error = copy.error();
        assert!(error.contains(&format!("`kv_cache_groups` cannot be combined with `enable_{key}`")), "{error}");
    }
}
