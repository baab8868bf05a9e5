//! Quantised checkpoints: bytes of their weights, and their arithmetic.

use serde_json::{Value, json};
use vcr_model::{Model, Serving};
use vcr_roofline::Arithmetic;

/// Format, bits per weight of a layer, and arithmetic for a checkpoint with this quantisation.
fn read(quantisation: &Value) -> Result<(&'static str, f64, Arithmetic), String> {
    let config = json!({"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14_336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128_256,
        "max_position_embeddings": 131_072, "torch_dtype": "bfloat16", "quantization_config": quantisation});
    let model = Model::parse("config.json", &config.to_string()).map_err(|error| error.to_string())?;
    let serving = Serving::default();
    let work = model.work(&serving).expect("it can be served");
    assert_eq!(work.quantised_shared_weights, work.shared_weights, "all layers are quantised");
    assert_eq!(work.head_bytes, 2.0 * work.head_weights, "the output head is not");
    let format = model.weight_format(&serving).expect("it is known").name();
    Ok((format, 8.0 * work.shared_bytes / work.shared_weights, work.arithmetic))
}

fn groups(weights: &Value, activations: &Value) -> Value {
    json!({"quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights, "input_activations": activations}}})
}

#[test]
fn checkpoints_say_what_their_weights_are_multiplied_as() {
    let int = |bits: u32| json!({"num_bits": bits, "type": "int", "group_size": 128});
    let float = |bits: u32, group: u32| json!({"num_bits": bits, "type": "float", "group_size": group});
    for (quantisation, wanted) in [
        (json!({"quant_method": "awq", "bits": 4, "group_size": 128}), ("int4", 4.125, Arithmetic::Bfloat16)),
        (json!({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}), ("int4", 4.25, Arithmetic::Bfloat16)),
        (json!({"quant_method": "gptq", "bits": 4, "group_size": 128}), ("int4", 4.125, Arithmetic::Bfloat16)),
        (json!({"quant_method": "gptq", "bits": 4, "group_size": -1}), ("int4", 4.0, Arithmetic::Bfloat16)),
        (json!({"quant_method": "gptq", "bits": 8, "group_size": 128}), ("int8", 8.0, Arithmetic::Bfloat16)),
        (json!({"quant_method": "fp8", "activation_scheme": "dynamic"}), ("fp8", 8.0, Arithmetic::Fp8)),
        (groups(&float(8, 0), &float(8, 0)), ("fp8", 8.0, Arithmetic::Fp8)),
        (groups(&float(8, 0), &Value::Null), ("fp8", 8.0, Arithmetic::Bfloat16)),
        (groups(&int(8), &int(8)), ("int8", 8.0, Arithmetic::Int8)),
        (groups(&int(8), &Value::Null), ("int8", 8.0, Arithmetic::Bfloat16)),
        (groups(&int(4), &Value::Null), ("int4", 4.125, Arithmetic::Bfloat16)),
        (groups(&int(4), &float(8, 0)), ("int4", 4.125, Arithmetic::Fp8)),
        (groups(&float(4, 16), &float(4, 16)), ("nvfp4", 4.5, Arithmetic::Fp4)),
        (groups(&float(4, 16), &Value::Null), ("nvfp4", 4.5, Arithmetic::Bfloat16)),
        (groups(&float(4, 32), &Value::Null), ("mxfp4", 4.25, Arithmetic::Bfloat16)),
    ] {
        assert_eq!(read(&quantisation), Ok(wanted), "{quantisation}");
    }
    let error = read(&json!({"quant_method": "gptq", "bits": 3})).expect_err("a form that is not read");
    assert!(error.contains("`quantization_config.bits` is 3: expected 4 or 8"), "{error}");
}

#[test]
fn ranks_share_the_experts_with_and_without_expert_parallelism() {
    let of = |data_parallel: u64, expert_parallel: bool| {
        let serving = Serving { data_parallel, expert_parallel, ..Serving::default() };
        Model::find("openai/gpt-oss-20b").and_then(|model| model.work(&serving)).expect("known")
    };
    let (one, shared, whole) = (of(1, false), of(2, false), of(2, true));
    assert_eq!(shared, whole);
    assert_eq!(one.shared_bytes, shared.shared_bytes, "attention is copied");
    let [one, shared] = [one, shared].map(|work| work.experts.expect("it has experts"));
    assert_eq!((one.bytes / 2.0, one.ranks * 2), (shared.bytes, shared.ranks));
}

#[test]
fn experts_of_gpt_oss_are_quantised_and_nothing_else() {
    let work = Model::find("openai/gpt-oss-20b").and_then(|model| model.work(&Serving::default())).expect("known");
    let experts = work.experts.expect("it has experts");
    assert_eq!((work.quantised_shared_weights, experts.quantised_weights), (0.0, experts.weights));
    assert_eq!(work.arithmetic, Arithmetic::Bfloat16);
    let plain = Model::find("Qwen/Qwen3-8B").and_then(|model| model.work(&Serving::default())).expect("known");
    assert_eq!((plain.quantised_shared_weights, plain.arithmetic), (0.0, Arithmetic::Bfloat16));
}
