//! Speculation: of vLLM's methods n-grams are simulated.

use serde_json::Value;
use vcr_core::EngineConfigInput;

use super::object;
use crate::error::ArgumentError;
use crate::words::Word;

/// What the arguments say of it.
#[derive(Default)]
pub(super) struct Speculation {
    pub(super) method: Option<String>,
    pub(super) tokens: Option<u64>,
    pub(super) model: Option<String>,
}

impl Speculation {
    /// `--speculative-config`: an object, which wins over what was given apart.
    pub(super) fn read(&mut self, word: &Word) -> Result<(), ArgumentError> {
        let map = object(word)?;
        let text = |key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
        self.method = text("method").or(self.method.take());
        self.model = text("model").or(self.model.take());
        self.tokens = map.get("num_speculative_tokens").and_then(Value::as_u64).or(self.tokens);
        // An empty object asks for a drafter, too.
        self.method.get_or_insert_with(|| self.model.clone().unwrap_or_else(|| "draft_model".to_owned()));
        Ok(())
    }

    /// N-gram speculation, the only one that is simulated.
    pub(super) fn apply(&self, input: &mut EngineConfigInput, errors: &mut Vec<ArgumentError>) {
        let Self { method, tokens, model } = self;
        if method.is_none() && tokens.is_none() && model.is_none() {
            return;
        }
        let method = method.as_deref().or(model.as_deref()).unwrap_or("draft_model");
        if !matches!(method, "ngram" | "[ngram]") {
            errors.push(ArgumentError::NotSimulated {
                written: format!("speculation with {method}"),
                reason: "drafts without KV of their own are simulated: `ngram`, with `acceptance_rates`".to_owned(),
            });
            return;
        }
        match tokens {
            Some(tokens @ 1..=1_000) => input.num_speculative_tokens = *tokens as u32,
            _ => errors.push(ArgumentError::Value {
                name: "--speculative-config".to_owned(),
                value: format!("with {} tokens", tokens.map_or("no".to_owned(), |tokens| tokens.to_string())),
                expected: "`num_speculative_tokens` of 1 to 1000".to_owned(),
            }),
        }
    }
}
