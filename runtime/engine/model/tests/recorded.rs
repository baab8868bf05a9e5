//! Every model of the table, compared with vLLM 0.32 on an H100. `tests/oracle/memory/model_memory.py` wrote
//! `recorded.jsonl` from the models' published `config.json`.

use serde_json::Value;
use vcr_model::{Model, ModelError, Serving};

/// Models whose weights a backend pads (gpt-oss) or quantises layer by layer, with the allowed error.
const LOOSE: &[(&str, f64)] = &[("openai/gpt-oss", 0.12)];

/// Fraction of the weights that is not counted: norms, biases, scales of activations.
const TOLERANCE: f64 = 0.005;

fn cases() -> Vec<Value> {
    let text = include_str!("recorded.jsonl");
    text.lines().map(|line| serde_json::from_str(line).expect("each line is a case")).collect()
}

fn served(case: &Value) -> Serving {
    Serving {
        tensor_parallel: case["tensor_parallel"].as_u64().expect("a number"),
        kv_cache_dtype: case["kv_cache_dtype"].as_str().expect("a text").to_owned(),
        ..Serving::default()
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is a number"))
}

#[test]
fn each_model_of_the_table_is_recorded() {
    let recorded: Vec<String> = cases().iter().map(|case| case["model"].as_str().expect("a name").to_owned()).collect();
    assert!(vcr_model::names().count() >= 30);
    for name in vcr_model::names() {
        assert!(recorded.iter().any(|known| known == name), "{name} is not recorded");
    }
}

#[test]
fn groups_and_blocks_are_those_of_vllm() {
    for case in cases() {
        let name = case["model"].as_str().expect("a name");
        let at = format!("{name} on {} with {}", case["tensor_parallel"], case["kv_cache_dtype"]);
        let model = Model::find(name).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(model.max_model_len, number(&case["max_model_len"]), "{at}");
        let plan = model.kv_plan(&served(&case)).unwrap_or_else(|error| panic!("{at}: {error}"));
        let found: Vec<_> = plan
            .groups
            .iter()
            .map(|group| (group.kind.name(), group.layers as u64, group.block_size, group.kind.window_tokens()))
            .collect();
        let groups = case["groups"].as_array().expect("a list");
        let wanted: Vec<_> = groups
            .iter()
            .map(|group| {
                let kind = group["kind"].as_str().expect("a name");
                (kind, number(&group["layers"]), number(&group["block_size"]), group["window"].as_u64())
            })
            .collect();
        assert_eq!(found, wanted, "{at}");
        assert_eq!(plan.bytes_per_block, number(&case["bytes_per_block"]), "{at}");
        for pool in case["pools"].as_array().expect("a list") {
            let bytes = number(&pool["bytes"]);
            match (plan.blocks_in(bytes), pool["blocks"].as_u64()) {
                (Ok(blocks), Some(wanted)) => assert_eq!(u64::from(blocks), wanted, "{at}: {bytes} bytes"),
                (Err(ModelError::Memory(text)), None) => {
                    assert_eq!(plan.longest_in(bytes), number(&pool["longest"]), "{at}: {text}");
                }
                (found, wanted) => panic!("{at}: {bytes} bytes are {found:?}, not {wanted:?}: {pool}"),
            }
        }
    }
}

#[test]
fn weights_are_those_of_vllm() {
    let mut wrong = Vec::new();
    for case in cases() {
        let name = case["model"].as_str().expect("a name");
        let model = Model::find(name).expect("it is in the table");
        let found = model.weight_bytes(&served(&case)).expect("it is valid");
        let wanted = number(&case["weight_bytes"]) as f64;
        let tolerance = LOOSE.iter().find(|(known, _)| name.starts_with(known)).map_or(TOLERANCE, |(_, share)| *share);
        if (found / wanted - 1.0).abs() > tolerance {
            wrong.push(format!(
                "{name} on {}: {found} bytes, not {wanted}: {:.4}",
                case["tensor_parallel"],
                found / wanted
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
