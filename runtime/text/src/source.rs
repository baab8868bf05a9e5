//! What a simulated model says: English, and structured outputs where they are asked for.

use std::collections::BTreeMap;
use std::sync::Arc;

use vcr_core::tokens::{BatchTokenSource, TokenAnswer, TokenError, TokenRefusal, TokenRequest, TokenWant};
use vcr_structured::{JsonTokens, Output};

use crate::{English, EnglishText, Tokenizer};

/// The name of the source in errors and refusals.
const NAME: &str = "text";

/// What sources of one model share.
#[derive(Clone)]
pub struct TextModel {
    english: English,
    /// None where the vocabulary cannot make up JSON, and why.
    structured: Arc<Result<JsonTokens, String>>,
}

impl std::fmt::Debug for TextModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextModel").field("english", &self.english).finish_non_exhaustive()
    }
}

impl TextModel {
    /// The texts of a tokenizer.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let plain = (0..tokenizer.vocab_size()).filter(|id| !tokenizer.is_special(*id));
        let pieces = plain.map(|id| (tokenizer.token_bytes(id).to_vec(), id));
        let structured = JsonTokens::of_pieces(pieces.filter(|(piece, _)| !piece.is_empty()).collect());
        Self { english: English::new(tokenizer), structured: Arc::new(structured) }
    }

    /// The word model.
    #[must_use]
    pub fn english(&self) -> &English {
        &self.english
    }

    /// The source of one engine.
    #[must_use]
    pub fn source(&self) -> TextSource {
        TextSource { model: self.clone(), outputs: BTreeMap::new() }
    }
}

/// The token source of one engine: English for requests without a structured output,
/// texts that satisfy it for those with one. What is said depends on the seed of the
/// request alone. Structured outputs that cannot be followed are refused.
#[derive(Debug)]
pub struct TextSource {
    model: TextModel,
    outputs: BTreeMap<u32, Said>,
}

/// What is said to one request.
enum Said {
    English {
        text: EnglishText,
        end: Option<u32>,
        min_tokens: u32,
    },
    Structured(Output),
    /// It was refused, so its tokens mean nothing.
    Nothing,
}

impl std::fmt::Debug for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::English { .. } => "English",
            Self::Structured(_) => "Structured",
            Self::Nothing => "Nothing",
        })
    }
}

impl TextSource {
    fn start(&self, request: &TokenRequest<'_>) -> Result<Said, String> {
        if request.structured_output.is_empty() {
            let end = request.eos_token.or(request.stop_tokens.first().copied());
            let text = self.model.english.start(request.seed);
            return Ok(Said::English { text, end, min_tokens: request.min_tokens });
        }
        let structured = self.model.structured.as_ref().as_ref().map_err(Clone::clone)?;
        let request = vcr_structured::TokenRequest {
            seed: request.seed,
            prompt: request.prompt,
            max_tokens: request.max_tokens,
            min_tokens: request.min_tokens,
            eos_token: request.eos_token,
            stop_tokens: request.stop_tokens,
            structured_output: request.structured_output,
        };
        structured.follow(&request).map(Said::Structured)
    }
}

impl BatchTokenSource for TextSource {
    fn step(
        &mut self,
        started: &[TokenRequest<'_>],
        ended: &[u32],
        wants: &[TokenWant],
        answer: &mut TokenAnswer,
    ) -> Result<(), TokenError> {
        let refusal = |slot, reason| TokenRefusal { slot, source: NAME.to_owned(), reason };
        for slot in ended {
            self.outputs.remove(slot);
        }
        for request in started {
            let said = self.start(request).unwrap_or_else(|reason| {
                answer.refusals.push(refusal(request.slot, reason));
                Said::Nothing
            });
            self.outputs.insert(request.slot, said);
        }
        for want in wants {
            let said = self.outputs.get_mut(&want.slot).ok_or_else(|| TokenError {
                r#source: NAME.to_owned(),
                reason: format!("slot {} was wanted, but not started", want.slot),
            })?;
            for index in want.first_index..want.first_index.saturating_add(want.count) {
                let token = match said {
                    Said::Nothing => 0,
                    Said::English { text, end: Some(end), min_tokens } if index >= *min_tokens && text.is_over() => {
                        *end
                    }
                    Said::English { text, .. } => text.next_token(&self.model.english),
                    Said::Structured(output) => match self.model.structured.as_ref() {
                        Ok(structured) => structured.continued(output, index).unwrap_or_else(|reason| {
                            answer.refusals.push(refusal(want.slot, reason));
                            *said = Said::Nothing;
                            0
                        }),
                        Err(_) => 0,
                    },
                };
                answer.tokens.push(token);
            }
        }
        Ok(())
    }
}
