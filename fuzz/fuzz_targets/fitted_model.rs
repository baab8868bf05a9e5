//! No text may panic the reader of fitted models. One that is accepted prices every step
//! with a time that is not negative, and can be written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_fitted::{ModelFile, StepWork};

/// A model whose step has more keys behind it.
const HEAD: &str = r#"{"format": "vcr.fitted/1", "step": {"coefficients": {"step": 1e6, "token": 10}, "range": {
"min_decode_tokens": 1, "max_decode_tokens": 64, "max_decode_context_tokens": 9000, "max_prefill_tokens": 2048,
"max_prefill_requests": 4, "max_prefill_context_tokens": 0}"#;

fuzz_target!(|text: &str| {
    for head in ["", HEAD] {
        let Ok(model) = serde_json::from_str::<ModelFile>(&format!("{head}{text}")) else { continue };
        if let Err(error) = model.check() {
            assert!(error.to_string().starts_with("invalid `"), "{error}");
            continue;
        }
        for size in [0, 1, 100, 1 << 20] {
            let work =
                StepWork { prefill_requests: size, prefill_tokens: size, decode_tokens: size, ..StepWork::default() };
            assert!(model.step.step_ns(&work) >= 0.0);
            let _ = model.step.range().contains(&work);
            if let Some(noise) = model.step.noise() {
                assert!(noise.factor(size > 1, 0.999) > 0.0);
            }
        }
        let written = serde_json::to_string(&model);
        assert!(written.is_ok());
    }
});
