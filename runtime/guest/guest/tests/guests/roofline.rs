//! Compares the roofline guest with the native model: the results must be equal to the bit.

use std::cell::RefCell;

use proptest::prelude::*;
use vcr_core::latency::{LatencyModel, StepBatch, StepShape};
use vcr_roofline::RooflineConfig;

use crate::components::built::built;

/// Configs with 16-bit weights, quantised weights, and weights that the GPU cannot multiply.
const CONFIGS: [(&str, &str, Option<&str>); 3] = [
    (r#"{"model": "llama-3.3-70b", "gpu": "h100-sxm", "tensor_parallel": 4}"#, "h100-sxm", None),
    (
        r#"{"model": "llama-3.3-70b", "gpu": "h100-sxm", "tensor_parallel": 4, "weight_dtype": "fp8"}"#,
        "h100-sxm",
        Some("fp8"),
    ),
    (
        r#"{"model": "llama-3.3-70b", "gpu": "a100-80gb", "tensor_parallel": 4, "weight_dtype": "fp8"}"#,
        "a100-80gb",
        Some("fp8"),
    ),
];

fn shape() -> impl Strategy<Value = StepShape> {
    let tokens = 0u64..300_000;
    (
        (0u64..64, tokens.clone(), tokens.clone(), 0u64..u64::from(u32::MAX), 0u64..64, tokens),
        (0u64..1_024, 0u64..4_096, 0u64..10_000_000, 0u64..1_024),
        (0u64..100_000, 0u64..100_000, 1u64..256, 0u64..10_000),
    )
        .prop_map(|(prefill, decode, pool)| StepShape {
            prefill_requests: prefill.0,
            prefill_tokens: prefill.1,
            prefill_context_tokens: prefill.2,
            prefill_attention_pairs: prefill.3,
            prefill_completions: prefill.4,
            prefill_completion_context_tokens: prefill.5,
            decode_requests: decode.0,
            decode_tokens: decode.1,
            decode_context_tokens: decode.2,
            sampled_requests: decode.3,
            kv_active_blocks: pool.0,
            kv_total_blocks: pool.1,
            block_size_tokens: pool.2,
            waiting_requests: pool.3,
            ..StepShape::default()
        })
}

fn priced(model: &mut dyn LatencyModel, horizon_ns: u64, shapes: &[StepShape]) -> Vec<u64> {
    let batch = StepBatch { start_ns: 0, horizon_ns, shapes };
    let mut durations_ns = Vec::new();
    model.price(&batch, &mut durations_ns).expect("the guest prices");
    durations_ns
}

#[test]
fn guest_and_native_roofline_agree() {
    let Some(module) = built("roofline") else {
        return;
    };
    for (json, gpu, dtype) in CONFIGS {
        let mut config = RooflineConfig::of_presets("llama-3.3-70b", gpu);
        config.tensor_parallel = Some(4);
        config.weight_dtype = dtype.map(str::to_owned);
        let native = config.build().expect("the presets are valid");
        let guest = module.latency_model(json, 1).expect("it configures");
        agree(&native, guest);
    }
}

/// Compares the guest with the native formulas on random steps.
fn agree(native: &vcr_roofline::Roofline, guest: Box<dyn LatencyModel>) {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let guest = RefCell::new(guest);
    runner
        .run(&(proptest::collection::vec(shape(), 1..600), any::<bool>()), |(shapes, bounded)| {
            let horizon_ns = if bounded { 2_000_000_000 } else { u64::MAX };
            let mut expected = Vec::new();
            let mut now_ns = 0;
            for (index, shape) in shapes.iter().enumerate() {
                if index > 0 && now_ns >= horizon_ns {
                    break;
                }
                let duration_ns = native.step_ns(shape).round() as u64;
                expected.push(duration_ns);
                now_ns += duration_ns;
            }
            prop_assert_eq!(&priced(guest.borrow_mut().as_mut(), horizon_ns, &shapes), &expected);
            let singly = priced_singly(guest.borrow_mut().as_mut(), &shapes[..expected.len()]);
            prop_assert_eq!(singly, expected);
            Ok(())
        })
        .expect("guest and native agree");
}

/// Prices `shapes` back to back, one step a call.
fn priced_singly(model: &mut dyn LatencyModel, shapes: &[StepShape]) -> Vec<u64> {
    let (mut now_ns, mut durations_ns) = (0, Vec::new());
    for shape in shapes {
        let batch = StepBatch { start_ns: now_ns, horizon_ns: now_ns, shapes: std::slice::from_ref(shape) };
        model.price(&batch, &mut durations_ns).expect("the guest prices");
        now_ns += durations_ns[durations_ns.len() - 1];
    }
    durations_ns
}

/// Single steps and batches give the same prices, with and without state.
#[test]
fn steps_one_by_one_cost_what_they_cost_in_a_batch() {
    let thermal = r#"{"roofline": {"model": "llama-3.1-8b", "gpu": "h100-sxm"},
                      "thermal": {"time_constant_s": 2.0, "throttle_celsius": 40.0}}"#;
    for (name, config) in [("roofline", CONFIGS[0].0), ("thermal", thermal)] {
        let Some(module) = built(name) else {
            return;
        };
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        runner
            .run(&proptest::collection::vec(shape(), 1..100), |shapes| {
                let mut single = module.latency_model(config, 1).expect("it configures");
                let mut listed = module.latency_model(config, 1).expect("it configures");
                prop_assert_eq!(priced_singly(single.as_mut(), &shapes), priced(listed.as_mut(), u64::MAX, &shapes));
                Ok(())
            })
            .expect("both calls agree");
    }
}

#[test]
fn mistakes_in_the_config_are_named() {
    let Some(module) = built("roofline") else {
        return;
    };
    for (config, expected) in [
        (r#"{"modle": "llama-3.1-8b"}"#, "unknown field `modle`"),
        (r#"{"model": "llama-3.1-8b"}"#, "`peak_flops` has no value"),
        (r#"{"model": "llama", "gpu": "l4"}"#, "`model` is \"llama\", which is not a preset"),
        ("not json", "the config cannot be read"),
    ] {
        let text = module.latency_model(config, 1).err().expect("a mistake").to_string();
        assert!(text.starts_with("guest `roofline` failed in `configure`: "), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn the_thermal_guest_slows_down_under_load_and_recovers() {
    let Some(module) = built("thermal") else {
        return;
    };
    let config = r#"{"roofline": {"model": "llama-3.1-8b", "gpu": "h100-sxm"},
                     "thermal": {"time_constant_s": 2.0}}"#;
    let mut gpu = module.latency_model(config, 1).expect("it configures");
    let step = StepShape {
        decode_requests: 8,
        decode_tokens: 8,
        decode_context_tokens: 8_000,
        sampled_requests: 8,
        ..StepShape::default()
    };
    let durations_ns = priced(gpu.as_mut(), u64::MAX, &vec![step; 5_000]);
    let (cool_ns, hot_ns) = (durations_ns[0], durations_ns[4_999]);
    assert!(hot_ns > cool_ns + cool_ns / 10, "{cool_ns} ns, then {hot_ns} ns");

    let busy_ns: u64 = durations_ns.iter().sum();
    let rested = StepBatch { start_ns: busy_ns + 60_000_000_000, horizon_ns: u64::MAX, shapes: &[step] };
    let mut after = Vec::new();
    gpu.price(&rested, &mut after).expect("it prices");
    assert_eq!(after, [cool_ns]);

    let mut twin = module.latency_model(config, 1).expect("it configures");
    assert_eq!(priced(twin.as_mut(), u64::MAX, &vec![step; 5_000]), durations_ns);
}
