//! Files and names that are refused.

use serde_json::{Value, json};
use vcr_model::{Model, Serving};

fn read(config: &Value) -> Result<Model, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("it is writable");
    Model::find(&folder.path().display().to_string()).map_err(|error| error.to_string())
}

fn llama() -> Value {
    json!({"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14_336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128_256,
        "max_position_embeddings": 131_072, "torch_dtype": "bfloat16"})
}

/// The file with another value for a field, or without the field if the value is null.
fn with(field: &str, value: Value) -> Value {
    let mut config = llama();
    let map = config.as_object_mut().expect("an object");
    if value.is_null() {
        map.remove(field)
    } else {
        map.insert(field.to_owned(), value)
    };
    config
}

#[test]
fn each_field_that_is_missing_is_named() {
    read(&llama()).expect("it is whole");
    for field in [
        "architectures",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
        "max_position_embeddings",
    ] {
        let error = read(&with(field, Value::Null)).expect_err(field);
        assert!(error.ends_with(&format!("expected a field `{field}`")), "{error}");
    }
}

#[test]
fn other_values_are_refused_with_what_is_expected() {
    for (field, value, wanted) in [
        ("architectures", json!(["LlamaForCausalLN"]), "is not known: did you mean `LlamaForCausalLM`?"),
        ("architectures", json!(["KimiK3ForConditionalGeneration"]), "is not supported: it combines latent attention"),
        ("num_hidden_layers", json!(-1), "`num_hidden_layers` is -1: expected a whole number"),
        ("num_hidden_layers", json!(1_000_000), "expected at most 4096"),
        ("num_attention_heads", json!(33), "`hidden_size` is 4096: expected a multiple of `num_attention_heads` (33)"),
        (
            "num_key_value_heads",
            json!(5),
            "`num_attention_heads` is 32: expected a multiple of `num_key_value_heads` (5)",
        ),
        ("torch_dtype", json!("int8"), "`dtype` is \"int8\": expected bfloat16, float16 or float32"),
        ("use_sliding_window", json!(true), "windows in only some layers are not derived"),
        ("layer_types", json!(["full_attention"]), "expected an item for each of 32 layers"),
        ("quantization_config", json!({"quant_method": "fp9"}), "did you mean `fp8`?"),
        ("quantization_config", json!({"bits": 4}), "expected a field `quantization_config.quant_method`"),
    ] {
        let error = read(&with(field, value)).expect_err(field);
        assert!(error.contains(wanted), "{error}");
    }
    let error = Model::find("Qwen/Qwen3-9B").expect_err("there is none").to_string();
    assert!(error.contains("did you mean `Qwen/Qwen3-8B`?"), "{error}");
    assert!(Model::find("none.json").expect_err("there is none").to_string().starts_with("invalid model `none.json`"));
}

#[test]
fn every_sixth_layer_of_gemma_3_looks_at_everything() {
    let mut config = with("architectures", json!(["Gemma3ForCausalLM"]));
    config["sliding_window"] = json!(1024);
    let plan = read(&config).expect("it is whole").kv_plan(&Serving::default()).expect("it is valid");
    let groups: Vec<_> = plan.groups.iter().map(|group| (group.kind.name(), group.layers)).collect();
    assert_eq!((groups.len(), groups.last()), (7, Some(&("full_attention", 5))), "{groups:?}");
    assert_eq!(groups.iter().map(|(_, layers)| layers).sum::<usize>(), 32);
}

#[test]
fn nothing_makes_it_panic() {
    let values = [
        json!(0),
        json!(1),
        json!(-3),
        json!(3.5),
        json!(1 << 27),
        json!("x"),
        json!([]),
        json!({}),
        json!([0, 1]),
        json!(true),
    ];
    for name in vcr_model::names() {
        let model = Model::find(name).expect("it is in the table");
        for tensor_parallel in [0, 1, 3, 1 << 40] {
            let serving = Serving { tensor_parallel, max_model_len: Some(1), ..Serving::default() };
            if let Ok(plan) = model.kv_plan(&serving) {
                _ = [0, 1, u64::MAX].map(|bytes| (plan.blocks_in(bytes), plan.longest_in(bytes)));
            }
        }
    }
    for field in llama().as_object().expect("an object").keys() {
        for value in &values {
            if let Ok(model) = read(&with(field, value.clone())) {
                for block_size in [None, Some(0), Some(16), Some(u64::MAX)] {
                    let serving = Serving { block_size, in_flight_tokens: 1 << 40, ..Serving::default() };
                    _ = model.weight_bytes(&serving);
                    _ = model.kv_plan(&serving).map(|plan| plan.blocks_in(1 << 40));
                }
            }
        }
    }
}
