//! Checks of token ids and words in requests, with vLLM's error texts, and logit biases.

use std::collections::BTreeMap;

use vcr_wire::LogitBias;

use crate::server::error::ApiError;
use crate::server::frontend_kind::FrontendKind;
use crate::server::model::Model;

/// Refuses ids outside the vocabulary.
pub(super) fn check_ids(name: &str, ids: &[u32], vocab_size: u32) -> Result<(), ApiError> {
    let unknown: Vec<u32> = ids.iter().copied().filter(|id| *id >= vocab_size).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "token_id(s) {unknown:?} in {name} are out of vocabulary. Vocabulary size: {vocab_size}"
    )))
}

/// Refuses prompts with ids outside the vocabulary.
pub(super) fn check_prompt_ids(ids: &[u32], model: &Model) -> Result<(), ApiError> {
    match (model.frontend, ids.iter().max()) {
        (FrontendKind::Python, Some(greatest)) if *greatest >= model.vocab_size => {
            Err(ApiError::invalid(format!("Token id {greatest} is out of vocabulary")))
        }
        (FrontendKind::Python, _) => Ok(()),
        (FrontendKind::Rust, _) => check_ids("prompt", ids, model.vocab_size),
    }
}

/// Refuses `allowed_token_ids` that are empty or contain unknown ids.
pub(super) fn check_allowed(ids: Option<&[u32]>, model: &Model) -> Result<(), ApiError> {
    match ids {
        None => Ok(()),
        Some([]) => Err(ApiError::invalid("allowed_token_ids should not be empty")),
        Some(ids) => {
            let vocab_size = match model.frontend {
                FrontendKind::Python => model.vocab_size,
                FrontendKind::Rust => model.tokenizer.vocab_size(),
            };
            check_ids("allowed_token_ids", ids, vocab_size)
        }
    }
}

pub(super) fn check_bad_words(words: Option<&[String]>) -> Result<(), ApiError> {
    match words {
        Some(words) if words.iter().any(String::is_empty) => {
            Err(ApiError::invalid("bad_words cannot contain an empty string."))
        }
        _ => Ok(()),
    }
}

/// Parses the logit biases. Requests write token ids as strings.
pub(super) fn logit_bias(biases: BTreeMap<String, f32>, model: &Model) -> Result<LogitBias, ApiError> {
    let wrong: Vec<&String> = biases.keys().filter(|key| key.parse::<u32>().is_err()).collect();
    if !wrong.is_empty() {
        let message = format!(
            "logit_bias contains key(s) that are not valid token IDs: {wrong:?}. Token IDs must be non-negative integers."
        );
        return Err(ApiError::invalid_param("logit_bias", message));
    }
    let pairs = biases.iter().filter_map(|(key, bias)| Some((key.parse().ok()?, wide(bias.clamp(-100.0, 100.0)))));
    let pairs: BTreeMap<u32, f64> = pairs.collect();
    let ids: Vec<u32> = pairs.keys().copied().collect();
    check_ids("logit_bias", &ids, model.vocab_size)?;
    Ok(LogitBias(pairs.into_iter().collect()))
}

/// Widens a number to the shortest decimal that rounds to the same `f32`.
pub(crate) fn wide(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}
