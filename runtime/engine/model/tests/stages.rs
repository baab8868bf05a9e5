//! Models over several stages, and sequences over several GPUs, compared with vLLM 0.32 on H100s.
//! `tests/oracle/memory/model_memory.py --split` wrote `stages.jsonl`.

use serde_json::Value;
use vcr_model::{Model, ModelError, Serving};

/// Models whose weights a backend pads (gpt-oss), with the allowed error.
const LOOSE: &[(&str, f64)] = &[("openai/gpt-oss", 0.12)];

/// Fraction of the weights that is not counted: norms, biases, scales of activations.
const TOLERANCE: f64 = 0.005;

fn cases() -> Vec<Value> {
    let text = include_str!("stages.jsonl");
    text.lines().map(|line| serde_json::from_str(line).expect("each line is a case")).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is a number"))
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().expect("a list").iter().map(number).collect()
}

fn served(case: &Value) -> Serving {
    Serving {
        tensor_parallel: number(&case["tensor_parallel"]),
        pipeline_parallel: number(&case["pipeline_parallel"]),
        decode_context_parallel: number(&case["decode_context_parallel"]),
        ..Serving::default()
    }
}

#[test]
fn blocks_of_stages_are_those_of_vllm() {
    let mut seen = [0; 4];
    for case in cases() {
        let name = case["model"].as_str().expect("a name");
        let at = format!("{name}: {case}");
        let model = Model::find(name).unwrap_or_else(|error| panic!("{at}: {error}"));
        let serving = served(&case);
        let plan = match model.kv_plan(&serving) {
            Ok(plan) => plan,
            Err(ModelError::Serving { field: "decode_context_parallel", .. }) => {
                assert!(case["refused"].is_string(), "{at}: vLLM serves it");
                seen[3] += 1;
                continue;
            }
            Err(error) => panic!("{at}: {error}"),
        };
        assert!(case["refused"].is_null(), "{at}: vLLM refuses it");
        assert_eq!(plan.stage_block_bytes, numbers(&case["stage_block_bytes"]), "{at}");
        for pool in case["pools"].as_array().expect("a list") {
            let found = plan.blocks_in_stages(&numbers(&pool["bytes"]));
            match (found, pool["blocks"].as_u64()) {
                (Ok(blocks), Some(wanted)) => assert_eq!(u64::from(blocks), wanted, "{at}"),
                (Err(ModelError::Memory(_)), None) => seen[2] += 1,
                (found, wanted) => panic!("{at}: {pool} is {found:?}, not {wanted:?}"),
            }
        }
        seen[0] += usize::from(serving.pipeline_parallel > 1);
        seen[1] += usize::from(serving.decode_context_parallel > 1);
    }
    assert!(seen[0] > 10 && seen[1] > 2 && seen[2] > 2 && seen[3] > 2, "{seen:?}");
}

#[test]
fn weights_of_stages_are_those_of_vllm() {
    // For quantised models, only the blocks were recorded.
    for case in cases().iter().filter(|case| case["stage_weight_bytes"].is_array()) {
        let name = case["model"].as_str().expect("a name");
        let found = Model::find(name).and_then(|model| model.stage_weight_bytes(&served(case))).expect("it is valid");
        let wanted = numbers(&case["stage_weight_bytes"]);
        assert_eq!(found.len(), wanted.len(), "{case}");
        let loose = LOOSE.iter().find(|(known, _)| name.starts_with(known)).map_or(TOLERANCE, |(_, share)| *share);
        for (found, wanted) in found.iter().zip(wanted) {
            let off = (found - wanted as f64).abs() / wanted as f64;
            assert!(off <= loose, "{found} bytes instead of {wanted}: {case}");
        }
    }
}
