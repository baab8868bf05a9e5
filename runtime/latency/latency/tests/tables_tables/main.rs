//! Tests tables in the package's layout: reading, and missing or invalid tables.

mod common;
mod operators;
mod refusals;

use common::{Fake, assert_close, decodes, ms, operator, prompts};
use vcr_core::latency::{DecodeSteps, LatencyModel, StepBatch, StepShape};
use vcr_latency::tables::{Scale, Source, Tables, TablesInput};

#[test]
fn a_step_is_the_sum_of_its_operators() {
    let tables = Fake::with_tables().tables("dense");
    for shape in [decodes(8, 64), prompts(&[(16, 0)]), StepShape { prefill_requests: 1, ..prompts(&[(20, 4)]) }] {
        let operators = tables.operators(&shape).iter().map(|(_, priced)| priced.ns()).sum::<f64>();
        assert_close(tables.price_step(&shape).ns(), operators);
    }
    assert_eq!(tables.price_step(&StepShape::default()).ns(), 0.0);
}

#[test]
fn steps_are_priced_in_whole_nanoseconds_and_counted_by_source() {
    let fake = Fake::with_tables();
    let mut tables = fake.tables("dense");
    let shapes = [decodes(8, 64), prompts(&[(16, 0)]), decodes(3, 20)];
    let mut durations = Vec::new();
    let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes };
    tables.price(&batch, &mut durations).unwrap();
    let expected: Vec<u64> = shapes.iter().map(|shape| tables.price_step(shape).ns().round() as u64).collect();
    assert_eq!(durations, expected);
    let covered = tables.coverage();
    assert_close(covered.ns(), shapes.iter().map(|shape| tables.price_step(shape).ns()).sum());
    assert!(Source::ALL.iter().all(|&source| covered.of(source) > 0.0), "{covered:?}");
    assert_close(covered.shares().iter().sum(), 1.0);
    // A second engine without state gives the same results.
    let mut other = fake.tables("dense");
    assert_eq!(other.coverage().ns(), 0.0);
    let mut again = Vec::new();
    other.price(&batch, &mut again).unwrap();
    assert_eq!(again, durations);
}

#[test]
fn steps_with_prompts_have_a_scale_of_their_own() {
    let fake = Fake::with_tables();
    let mixed = StepShape { decode_requests: 1, decode_tokens: 1, decode_context_tokens: 9, ..prompts(&[(16, 0)]) };
    let shapes = [decodes(8, 64), prompts(&[(16, 0)]), mixed];
    let priced = |scale: Scale| {
        let mut durations = Vec::new();
        let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes };
        fake.tables("dense").with_scale(scale).price(&batch, &mut durations).unwrap();
        durations
    };
    let plain = priced(Scale::default());
    let scaled = priced(Scale { decodes: 2.0, prompts: 3.0 });
    for ((plain, scaled), factor) in plain.into_iter().zip(scaled).zip([2, 3, 3]) {
        assert!(scaled.abs_diff(factor * plain) <= factor, "{scaled} is not {factor} x {plain}");
    }
}

#[test]
fn decodes_in_a_row_cost_what_they_cost_alone() {
    let mut tables = Fake::with_tables().tables("dense");
    let mut steps = DecodeSteps::default();
    steps.restart(&decodes(5, 30), 0);
    (0..6).for_each(|_| steps.push(7));
    let (mut together, mut alone) = (Vec::new(), Vec::new());
    tables.price_decodes(0, u64::MAX, &steps, &mut together).unwrap();
    let shapes: Vec<StepShape> = steps.shapes().collect();
    tables.price(&StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes }, &mut alone).unwrap();
    assert_eq!((together.len(), &together), (6, &alone));
    // Only steps that start before the horizon.
    let mut some = Vec::new();
    tables.price_decodes(0, together[0] + 1, &steps, &mut some).unwrap();
    assert_eq!(some, together[..2]);
}

#[test]
fn the_latest_version_is_taken_and_older_tables_fill_in() {
    let fake = Fake::with_tables();
    fake.gemm("1.2", &[(8, 128, 64, 7.0)]);
    fake.gemm("1.10", &[(8, 128, 64, 9.0)]);
    let shape = decodes(8, 64);
    let tables = fake.tables("dense");
    assert_eq!(tables.resolved().version, "1.10");
    assert_close(ms(&tables, &shape, "qkv projection"), 18.0);
    // Attention was only measured with version 1.0.
    assert!(operator(&tables, &shape, "attention of decodes").of(Source::Formula) == 0.0);
    let version = |version: &str| TablesInput { version: Some(version.to_owned()), ..fake.input("dense") };
    assert_close(ms(&Tables::new(&version("1.2")).unwrap(), &shape, "qkv projection"), 14.0);
    let error = fake.refusal(&version("1.3")).to_string();
    assert!(error.contains("invalid version `1.3`: expected one of 1.0, 1.2, 1.10"), "{error}");
}

#[test]
fn data_types_come_from_the_checkpoint_or_the_input() {
    let fake = Fake::with_tables();
    let with = |quantisation: &str| {
        let config = common::DENSE.replacen('{', &format!("{{{quantisation},"), 1);
        fake.text("model_configs/us--quantised_config.json", &config);
        let resolved = fake.tables("quantised").resolved().clone();
        (resolved.gemm_dtype, resolved.kv_cache_dtype)
    };
    let config = |fields: &str| format!(r#""quantization_config": {{"quant_method": {fields}}}"#);
    assert_eq!(with(r#""dtype": "bfloat16""#), ("bfloat16", "bfloat16"));
    assert_eq!(with(&config(r#""fp8", "activation_scheme": "dynamic""#)), ("fp8", "bfloat16"));
    assert_eq!(
        with(&config(r#""fp8", "activation_scheme": "static", "kv_cache_dtype": "fp8""#)),
        ("fp8_static", "fp8")
    );
    assert_eq!(with(&config(r#""fp8", "weight_block_size": [128, 128]"#)), ("fp8_block", "bfloat16"));
    assert_eq!(with(&config(r#""mxfp4""#)), ("bfloat16", "bfloat16"));
    let groups = r#""compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int"}}}"#;
    assert_eq!(with(&config(groups)), ("int4_wo", "bfloat16"));
    assert_eq!(with(&config(&format!(r#"{groups}, "ignore": ["re:.*self_attn.*"]"#))), ("bfloat16", "bfloat16"));
    assert_eq!(with(&config(r#""awq", "bits": 4, "group_size": 128"#)), ("int4_wo", "bfloat16"));
    assert_eq!(with(&config(r#""gptq", "bits": 8"#)), ("int8_wo", "bfloat16"));
    let both = |bits: u32, kind: &str, group: u32| {
        let part = format!(r#"{{"num_bits": {bits}, "type": "{kind}", "group_size": {group}}}"#);
        config(&format!(
            r#""compressed-tensors", "config_groups": {{"a": {{"weights": {part}, "input_activations": {part}}}}}"#
        ))
    };
    assert_eq!(with(&both(8, "int", 0)), ("sq", "bfloat16"), "activations are quantised as well");
    assert_eq!(with(&both(4, "float", 16)), ("nvfp4", "bfloat16"));
    let given = TablesInput { kv_cache_dtype: Some("fp8".to_owned()), ..fake.input("dense") };
    assert_eq!(Tables::new(&given).unwrap().resolved().kv_cache_dtype, "fp8");
}

#[test]
fn a_model_may_be_a_file_of_ones_own() {
    let fake = Fake::with_tables();
    fake.text("mine/config.json", common::DENSE);
    let own = fake.path("mine/config.json").display().to_string();
    let tables = Tables::new(&TablesInput { model: own, ..fake.input("dense") }).unwrap();
    let shape = decodes(8, 64);
    assert_eq!(tables.price_step(&shape), fake.tables("dense").price_step(&shape));
}

/// Uses the real package, if `VCR_TABLES` names it. The expected times are those of the package's own estimator,
/// version 0.12.0, on an H100 with vLLM 0.24.0.
#[test]
fn the_real_tables_give_what_their_own_estimator_does() {
    if std::env::var_os(vcr_latency::tables::DATA_VARIABLE).is_none() {
        return vcr_skips::skip_optional("VCR_TABLES does not name an installed aiconfigurator-core");
    }
    let version = Some("0.24.0".to_owned());
    let input = TablesInput { tensor_parallel: 4, version, ..TablesInput::new("h100_sxm", "Meta-Llama-3.1-70B") };
    let tables = Tables::new(&input).expect("the package can be read");
    let mixed = StepShape {
        decode_requests: 64,
        decode_tokens: 64,
        decode_context_tokens: 64 * 2048,
        sampled_requests: 65,
        ..prompts(&[(2048, 0)])
    };
    for (shape, expected_ms) in [(decodes(64, 2048), 20.739), (prompts(&[(2048, 0)]), 130.179), (mixed, 143.512)] {
        let ms = tables.price_step(&shape).ns() / 1e6;
        assert!((ms / expected_ms - 1.0).abs() < 0.01, "{ms} ms, expected {expected_ms}");
    }
}

#[test]
fn memory_is_that_of_the_config_and_the_system() {
    let need = Fake::with_tables().tables("dense").memory().expect("its layers are alike");
    // Two layers, each with two matrices of 96 columns in attention and three of 128 in the feed-forward part; an
    // embedding and an output head; two bytes per weight.
    assert_eq!(need.weight_bytes, 2.0 * 64.0 * (2.0 * (2.0 * 96.0 + 3.0 * 128.0) + 2.0 * 1000.0));
    assert_eq!(need.kv_bytes_per_token, 2.0 * 2.0 * 32.0 * 2.0);
    assert_eq!(need.gpu_memory_bytes, None, "the file of the system does not say it");
}

/// A pack contains only the files that were read.
#[test]
fn a_folder_with_the_files_that_were_read_alone_has_the_same_times() {
    let fake = Fake::with_tables();
    // A newer version, chosen by name, without a table of the model; and one with a table that is not needed.
    fake.text("systems/data/gpu/gemm/vllm/2.0/other_perf.parquet", "not read");
    fake.text("systems/data/gpu/mla/vllm/2.0/unread_perf.parquet", "not read");
    let tables = fake.tables("dense");
    let source = tables.source();
    let copy = tempfile::tempdir().unwrap();
    for file in &source.files {
        let to = copy.path().join(file);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(source.folder.join(file), to).unwrap();
    }
    let files: Vec<String> = source.files.iter().map(|file| file.display().to_string()).collect();
    assert_eq!(
        files,
        [
            "model_configs/us--dense_config.json",
            "systems/data/gpu/attention/vllm/1.0/context_attention_perf.parquet",
            "systems/data/gpu/attention/vllm/1.0/generation_attention_perf.parquet",
            "systems/data/gpu/gemm/vllm/1.0/gemm_perf.parquet",
            "systems/data/gpu/gemm/vllm/2.0/other_perf.parquet",
            "systems/gpu.yaml",
        ]
    );
    let copied = Tables::new(&TablesInput { data: Some(copy.path().to_owned()), ..fake.input("dense") }).unwrap();
    assert_eq!(copied.resolved(), tables.resolved());
    for shape in [decodes(8, 64), prompts(&[(16, 0)])] {
        assert_eq!(copied.price_step(&shape), tables.price_step(&shape));
    }
}
