//! Models with drafters, compared with vLLM 0.32 on an H100. `tests/oracle/memory/drafter_memory.py` wrote
//! `drafters.jsonl`.

use serde_json::Value;
use vcr_core::SchedulerRules;
use vcr_model::{DraftMethod, Model, Serving};
use vcr_roofline::{DraftingSpec, LayeredSpec};

/// Fraction of a drafter's weights that is not counted: norms, biases, scales of activations.
const TOLERANCE: f64 = 0.005;

/// Drafters with unquantised parts that are quantised in the model's own layers, with the allowed error.
const LOOSE: &[(&str, f64)] = &[("XiaomiMiMo/MiMo-V2-Flash", 0.09)];

fn cases() -> Vec<Value> {
    let text = include_str!("drafters.jsonl");
    text.lines().map(|line| serde_json::from_str(line).expect("each line is a case")).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is a number"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is a text"))
}

fn served(case: &Value) -> Serving {
    Serving {
        tensor_parallel: number(&case["tensor_parallel"]),
        kv_cache_dtype: text(&case["kv_cache_dtype"]).to_owned(),
        num_speculative_tokens: number(&case["num_speculative_tokens"]),
        in_flight_tokens: number(&case["in_flight_tokens"]),
        ..Serving::default()
    }
}

fn without_drafter(case: &Value) -> Model {
    let name = text(&case["model"]);
    Model::find(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn with_drafter(case: &Value) -> Model {
    let method = text(&case["method"]);
    let own = match &case["drafter"] {
        Value::Null => None,
        Value::String(name) => Some(Model::find(name)),
        head => Some(Model::parse("head", &head.to_string())),
    };
    let own = own.transpose().unwrap_or_else(|error| panic!("{case}: {error}"));
    let method = DraftMethod::of_name(method).expect("a method");
    without_drafter(case).with_drafter(method, own).unwrap_or_else(|error| panic!("{case}: {error}"))
}

fn label(case: &Value) -> String {
    let [model, method, dtype] = ["model", "method", "kv_cache_dtype"].map(|key| text(&case[key]));
    format!("{model} with {method} on {} with {dtype}", case["tensor_parallel"])
}

#[test]
fn groups_and_blocks_are_those_of_vllm() {
    let mut methods: Vec<(String, String)> = Vec::new();
    for case in cases() {
        let at = label(&case);
        let model = with_drafter(&case);
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
                let [layers, block_size] = ["layers", "block_size"].map(|key| number(&group[key]));
                let kind = text(&group["kind"]);
                // If layers with chunks keep all KV, the recording states the chunk length anyway.
                (kind, layers, block_size, group["window"].as_u64().filter(|_| kind != "full_attention"))
            })
            .collect();
        assert_eq!(found, wanted, "{at}");
        assert_eq!(plan.bytes_per_block, number(&case["bytes_per_block"]), "{at}");
        // The groups that vLLM marks as having layers of the drafter. If there is only one group, vLLM marks
        // none.
        let engine_groups = plan.engine_groups(SchedulerRules::V0_32);
        let wanted = groups.iter().map(|group| group["drafter"] == true);
        if !engine_groups.is_empty() {
            assert!(engine_groups.iter().map(|group| group.has_drafter).eq(wanted), "{at}");
        }
        // Up to 0.30, vLLM finds the groups of modules only in DeepSeek V4.
        assert!(plan.engine_groups(SchedulerRules::V0_30).iter().all(|group| !group.has_drafter), "{at}");
        assert_eq!(plan.engine_groups(SchedulerRules::V0_31), engine_groups, "{at}");
        for pool in case["pools"].as_array().expect("a list") {
            let bytes = number(&pool["bytes"]);
            match (plan.blocks_in(bytes), pool["blocks"].as_u64()) {
                (Ok(blocks), Some(wanted)) => assert_eq!(u64::from(blocks), wanted, "{at}: {bytes} bytes"),
                (Err(_), None) => assert_eq!(plan.longest_in(bytes), number(&pool["longest"]), "{at}: {bytes} bytes"),
                (found, wanted) => panic!("{at}: {bytes} bytes: {found:?}, vLLM {wanted:?}"),
            }
        }
        methods.push((text(&case["model"]).to_owned(), text(&case["method"]).to_owned()));
    }
    methods.dedup();
    assert!(methods.len() >= 12, "{methods:?}");
    for method in ["eagle", "eagle3", "mtp", "draft_model"] {
        assert!(methods.iter().any(|(_, known)| known == method), "{method}");
    }
}

#[test]
fn weights_of_drafters_are_those_of_vllm() {
    for case in cases() {
        let (at, serving) = (label(&case), served(&case));
        let bytes = |model: Model| model.weight_bytes(&serving).unwrap_or_else(|error| panic!("{at}: {error}"));
        let found = bytes(with_drafter(&case)) - bytes(without_drafter(&case));
        let wanted = number(&case["drafter_weight_bytes"]) as f64;
        let loose = LOOSE.iter().find(|(name, _)| case["model"] == *name).map_or(TOLERANCE, |(_, share)| *share);
        assert!((found / wanted - 1.0).abs() < loose, "{at}: {found:.0}, vLLM {wanted:.0}");
    }
}

/// Weights that belong to the drafter alone, as far as its passes read them, in bytes.
fn read_in_passes(case: &Value, drafting: &DraftingSpec) -> f64 {
    let DraftingSpec { pass, first_bytes, .. } = drafting;
    let experts = pass.experts.map_or(0.0, |experts| experts.count as f64 * experts.bytes);
    let layers = pass.shared_bytes + experts;
    let of_drafter = |key: &str| case["drafter"][key].as_u64();
    match text(&case["method"]) {
        "mtp" => {
            let modules = without_drafter(case).mtp_modules.unwrap_or(1);
            modules as f64 * layers
        }
        "eagle3" if of_drafter("draft_vocab_size").is_some_and(|size| Some(size) != of_drafter("vocab_size")) => {
            layers + first_bytes + pass.head_bytes
        }
        _ => layers + first_bytes,
    }
}

#[test]
fn passes_read_the_weights_of_drafters() {
    for case in cases().into_iter().filter(|case| case["method"] != "draft_model") {
        let (at, serving) = (label(&case), served(&case));
        let work = |model: Model| model.work(&serving).unwrap_or_else(|error| panic!("{at}: {error}"));
        let (with, without) = (work(with_drafter(&case)), work(without_drafter(&case)));
        let drafting = with.drafting.clone().unwrap_or_else(|| panic!("{at}: it has a drafter"));
        assert_eq!(LayeredSpec { drafting: None, ..with }, without, "{at}: the model's own work");
        assert_eq!(drafting.drafts, serving.num_speculative_tokens, "{at}");
        let (found, wanted) = (read_in_passes(&case, &drafting), number(&case["drafter_weight_bytes"]) as f64);
        let loose = LOOSE.iter().find(|(name, _)| case["model"] == *name).map_or(TOLERANCE, |(_, share)| *share);
        assert!((found / wanted - 1.0).abs() < loose, "{at}: {found:.0}, vLLM {wanted:.0}");
        assert!(drafting.pass.head_bytes > 0.0 && !drafting.pass.attention.is_empty(), "{at}");
    }
}

#[test]
fn a_draft_model_is_computed_as_when_it_is_served_alone() {
    let case = cases().into_iter().find(|case| case["method"] == "draft_model").expect("there is one");
    let serving = served(&case);
    let work = with_drafter(&case).work(&serving).expect("it can be served");
    let alone = Model::find(text(&case["drafter"])).and_then(|model| model.work(&serving));
    let drafting = work.drafting.expect("it has a drafter");
    assert_eq!(drafting.pass, alone.expect("it can be served"));
    assert_eq!(drafting.first_weights, 0.0);
}

#[test]
fn a_reduced_vocabulary_makes_the_output_head_smaller() {
    let head = |field: &str| {
        let text = format!(
            r#"{{"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 4096, "intermediate_size": 14336,
            "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1, "vocab_size": 128256,
            "max_position_embeddings": 2048, "torch_dtype": "bfloat16"{field}}}"#
        );
        let serving = Serving { num_speculative_tokens: 4, ..Serving::default() };
        let own = Model::parse("head", &text).expect("it is a head");
        let model = Model::find("meta-llama/Llama-3.1-8B-Instruct").expect("it is in the table");
        let work = model.with_drafter(DraftMethod::Eagle3, Some(own)).and_then(|model| model.work(&serving));
        work.expect("it can be served").drafting.expect("it has a drafter").pass
    };
    let (whole, reduced) = (head(""), head(r#", "draft_vocab_size": 32000"#));
    assert_eq!(whole.head_weights, 128_256.0 * 4_096.0);
    assert_eq!(reduced.head_weights, 32_000.0 * 4_096.0);
    let layers = |pass: LayeredSpec| LayeredSpec { head_weights: 0.0, head_bytes: 0.0, ..pass };
    assert_eq!(layers(whole), layers(reduced));
}

#[test]
fn stages_with_a_drafter() {
    let case = cases().into_iter().find(|case| case["method"] == "draft_model").expect("there is one");
    let serving = Serving { pipeline_parallel: 2, ..served(&case) };
    let stages = |model: &Model| model.stage_weight_bytes(&serving).expect("it can be served");
    let blocks = |model: &Model| model.kv_plan(&serving).expect("it can be served").stage_block_bytes;
    let (without, with) = (without_drafter(&case), with_drafter(&case));
    assert_eq!(stages(&without)[0], stages(&with)[0]);
    assert!(stages(&without)[1] < stages(&with)[1]);
    assert_eq!(blocks(&without)[0], blocks(&with)[0]);
    assert!(blocks(&without)[1] < blocks(&with)[1]);
}

#[test]
fn drafters_that_do_not_fit() {
    let find = |name: &str| Model::find(name).expect("it is in the table");
    let error = |method, own: Option<&str>| {
        find("Qwen/Qwen3-8B").with_drafter(method, own.map(find)).expect_err("it is refused").to_string()
    };
    assert!(error(DraftMethod::Eagle3, None).contains("expected the model of the drafter"));
    assert!(error(DraftMethod::Mtp, Some("Qwen/Qwen3-0.6B")).contains("expected no draft model"));
    let model = find("Qwen/Qwen3-8B").with_drafter(DraftMethod::DraftModel, Some(find("Qwen/Qwen3-0.6B")));
    let model = model.expect("it is a draft model");
    let error = model.kv_plan(&Serving::default()).expect_err("without drafts").to_string();
    assert!(error.contains("invalid `num_speculative_tokens`: 0"), "{error}");
}
