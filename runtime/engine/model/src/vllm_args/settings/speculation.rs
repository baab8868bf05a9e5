//! Speculative decoding: the drafter and its number of drafts.

use crate::{DraftMethod, Model};
use serde_json::{Map, Value};
use vcr_core::{DraftRange, Drafter, EngineConfigInput};

use super::object;
use crate::vllm_args::ArgumentError;
use crate::vllm_args::words::Word;

/// Keys of `--speculative-config` that must be off, because their effects are not simulated.
const MUST_BE_OFF: &[(&str, &str)] = &[
    ("parallel_drafting", "drafts are proposed one after another"),
    ("disable_eagle_block_drop", "the last block of a hit is dropped, or distinguished by the tokens after it"),
    ("disable_padded_drafter_batch", "batches of the drafter are padded"),
    ("enable_adaptive_verification", "all drafts of a step are verified"),
    ("max_model_len", "a drafter drafts for sequences of any length"),
];

/// The key for drafts by batch size.
const BY_BATCH: &str = "num_speculative_tokens_per_batch_size";

/// Multi-token-prediction methods with several modules, used if the model itself is unknown.
const MULTI_MODULE: &[&str] = &["step3p5_mtp", "step5_mtp", "inkling_mtp"];

pub(super) const RESULT: &str = "the drafter; set its acceptance with `acceptance_rates`";

#[derive(Default)]
pub(super) struct Speculation {
    pub(super) method: Option<String>,
    pub(super) tokens: Option<u64>,
    pub(super) model: Option<String>,
    disable_lookahead_block_hashes: bool,
    /// Whether there is a KV connector. vLLM's connectors use block hashes that do not cover later tokens.
    pub(super) has_kv_connector: bool,
    /// Drafts by batch size, as the object states them.
    by_batch: Option<Value>,
    /// Keys that are refused, with the reasons.
    refused: Vec<(&'static str, &'static str)>,
}

impl Speculation {
    /// Reads `--speculative-config`, an object that overrides the separate arguments.
    pub(super) fn read(&mut self, word: &Word) -> Result<(), ArgumentError> {
        let map = object(word)?;
        let text = |key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
        self.method = text("method").or(self.method.take());
        self.model = text("model").or(self.model.take());
        self.tokens = map.get("num_speculative_tokens").and_then(Value::as_u64).or(self.tokens);
        self.disable_lookahead_block_hashes |= is_on(&map, "disable_lookahead_block_hashes");
        self.by_batch = map.get(BY_BATCH).filter(|value| !value.is_null()).cloned();
        self.refused.extend(MUST_BE_OFF.iter().filter(|(key, _)| is_on(&map, key)));
        // An empty object asks for a drafter, too.
        self.method.get_or_insert_with(|| self.model.clone().unwrap_or_else(|| "draft_model".to_owned()));
        Ok(())
    }

    /// The drafter for vLLM's method. None if it is not simulated.
    fn drafter(&self, target: Option<&Model>) -> Option<Drafter> {
        let method = self.method.as_deref().or(self.model.as_deref()).unwrap_or("draft_model");
        let model = self.model.as_deref().unwrap_or_default().to_lowercase();
        Some(match method {
            "ngram" | "[ngram]" => Drafter::Ngram,
            "eagle" | "eagle3" => Drafter::Eagle,
            "dflash"
            | "dspark"
            | "suffix"
            | "ngram_gpu"
            | "custom_class"
            | "extract_hidden_states"
            | "medusa"
            | "mlp_speculator" => return None,
            // vLLM also detects the method from the drafter's name.
            _ if model.contains("eagle-") || model.contains("eagle3") => Drafter::Eagle,
            _ if model.contains("dflash") || model.contains("dspark") => return None,
            _ if method == "mtp" || method.ends_with("_mtp") => {
                let said = target.and_then(|target| target.mtp_modules);
                let modules = said.unwrap_or(if MULTI_MODULE.contains(&method) { u64::MAX } else { 1 });
                if modules.min(self.tokens.unwrap_or(0)) > 1 { Drafter::MultiModuleMtp } else { Drafter::Mtp }
            }
            // A method that is the same as the drafter's name counts as absent.
            _ if method == "draft_model" || self.model.as_deref() == Some(method) => Drafter::DraftModel,
            _ => return None,
        })
    }

    pub(super) fn layers(&self, drafter: Drafter) -> Option<(DraftMethod, Option<String>)> {
        let model = self.model.clone();
        match drafter {
            Drafter::Ngram => None,
            Drafter::Mtp | Drafter::MultiModuleMtp => Some((DraftMethod::Mtp, None)),
            Drafter::DraftModel => Some((DraftMethod::DraftModel, model)),
            Drafter::Eagle => {
                let is_third =
                    |text: &Option<String>| text.as_ref().is_some_and(|text| text.to_lowercase().contains("eagle3"));
                let is_third = is_third(&self.method) || self.method.as_deref() != Some("eagle") && is_third(&model);
                Some((if is_third { DraftMethod::Eagle3 } else { DraftMethod::Eagle }, model))
            }
        }
    }

    pub(super) fn apply(
        &self,
        input: &mut EngineConfigInput,
        target: Option<&Model>,
        minor: u8,
        errors: &mut Vec<ArgumentError>,
    ) {
        let Self { method, tokens, model, refused, .. } = self;
        if method.is_none() && tokens.is_none() && model.is_none() {
            return;
        }
        let mut refuse = |written: String, reason: String| {
            errors.push(ArgumentError::NotSimulated { written, reason });
        };
        for (key, reason) in refused {
            refuse(format!("--speculative-config.{key}"), (*reason).to_owned());
        }
        let Some(drafter) = self.drafter(target) else {
            let method = method.as_deref().or(model.as_deref()).unwrap_or_default();
            let known = "ngram, eagle, eagle3, mtp and draft_model are simulated, with `acceptance_rates`";
            return refuse(format!("speculation with {method}"), known.to_owned());
        };
        input.drafter = drafter;
        if let Some(value) = &self.by_batch {
            let entries: Option<Vec<Vec<u32>>> = serde_json::from_value(value.clone()).ok();
            let entries = entries.filter(|entries| !entries.is_empty());
            let ranges = entries.ok_or_else(|| "a list of `[first, last, tokens]`".to_owned());
            match ranges.and_then(|entries| DraftRange::read(&entries)) {
                Ok(ranges) => input.draft_ranges = ranges,
                Err(expected) => errors.push(ArgumentError::Value {
                    name: format!("--speculative-config.{BY_BATCH}"),
                    value: value.to_string(),
                    expected,
                }),
            }
        }
        let is_disabled = self.disable_lookahead_block_hashes || self.has_kv_connector && drafter.is_eagle_like();
        input.disable_lookahead_block_hashes = is_disabled && minor >= 33;
        match tokens {
            Some(tokens @ 1..=1_000) => input.num_speculative_tokens = *tokens as u32,
            _ => errors.push(ArgumentError::SpeculativeTokens {
                found: tokens.map_or("none".to_owned(), |tokens| tokens.to_string()),
            }),
        }
    }
}

/// Whether a key has a value that turns its feature on.
fn is_on(map: &Map<String, Value>, key: &str) -> bool {
    !matches!(map.get(key), None | Some(Value::Null | Value::Bool(false)))
}
