//! Guests of earlier interfaces run as they always did, and those interfaces do
//! not change.

use std::path::PathBuf;

use sha2::{Digest as _, Sha256};
use vcr_core::latency::{StepBatch, StepShape};
use vcr_guest::{GuestModule, Limits};
use vcr_roofline::RooflineConfig;

use crate::roofline::work;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// SHA-256 of the files of a released interface: a released one never changes,
/// not even in its words, since guests are built from copies of it.
const FROZEN: &[(&str, &str)] = &[
    ("v0_1/failure-injector.wit", "715d9d02b8719e2b4f8de287279f9726e95d9fface462628226faf22e46507cd"),
    ("v0_1/latency-model.wit", "9e5823b04e02cd27e29b381922e726c5bd3bfd37848cbac8e175dcdb5fbc55d6"),
    ("v0_1/token-source.wit", "c9cd4a009143345ec82093eef13eb72d129962213119a03d31d3883050ed968e"),
];

#[test]
fn released_interfaces_are_frozen() {
    let entries = std::fs::read_dir(root().join("wit/v0_1")).expect("the interface is there");
    assert_eq!(entries.count(), FROZEN.len(), "a file came or went");
    for (name, frozen) in FROZEN {
        let text = std::fs::read(root().join("wit").join(name)).expect("the file is there");
        let digest = hex::encode(Sha256::digest(&text));
        assert_eq!(digest, *frozen, "{name} was released and must not change: add a version instead");
    }
}

#[test]
fn a_guest_built_for_0_1_answers_as_the_native_roofline_does() {
    let path = root().join("tests/guests/fixtures/roofline-0.1.wasm");
    let module = GuestModule::load(&path, Limits::default()).expect("old guests load");
    assert_eq!(module.api_version().to_string(), "0.1.0");
    let config = r#"{"model": "llama-3.1-8b", "gpu": "h100-sxm"}"#;
    let mut guest = module.latency_model(config, 1).expect("it configures");
    let native = RooflineConfig::of_presets("llama-3.1-8b", "h100-sxm").build().expect("both presets exist");
    let shapes: Vec<StepShape> = (1..200).map(shape).collect();
    let expected: Vec<u64> = shapes.iter().map(|shape| native.step_ns(&work(shape)).round() as u64).collect();
    let mut batched = Vec::new();
    let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes };
    guest.price(&batch, &mut batched).expect("it prices");
    assert_eq!(batched, expected);
    let mut single = Vec::new();
    for shape in &shapes {
        let batch = StepBatch { start_ns: 0, horizon_ns: 0, shapes: std::slice::from_ref(shape) };
        guest.price(&batch, &mut single).expect("it prices");
    }
    assert_eq!(single, expected);
}

/// Steps of all kinds: prompts, decodes and both.
fn shape(index: u64) -> StepShape {
    let prompts = index % 3;
    let decodes = (index * 7) % 65;
    StepShape {
        prefill_requests: prompts,
        prefill_tokens: prompts * 37 * index,
        prefill_context_tokens: prompts * 11 * index,
        prefill_attention_pairs: prompts * 900 * index,
        decode_requests: decodes,
        decode_tokens: decodes,
        decode_context_tokens: decodes * 300 + index,
        sampled_requests: prompts + decodes,
        block_size_tokens: 16,
        ..StepShape::default()
    }
}
