//! Readable answers: English sentences as a source of tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use vcr_core::tokens::{BatchTokenSource, TokenAnswer, TokenError, TokenRequest, TokenWant};
use vcr_live::TokenFactory;
use vcr_random::{Distribution, Stream};
use vcr_text::{English, EnglishText, Tokenizer};

/// Writes English, which ends where a text is over or, if lengths are given, after a
/// drawn number of tokens.
pub struct EnglishTokens {
    english: English,
    output_tokens: Option<Distribution>,
    texts: BTreeMap<u32, Text>,
}

struct Text {
    text: EnglishText,
    /// The length that was drawn, if any.
    length: Option<u32>,
    min_tokens: u32,
    eos_token: Option<u32>,
    stop_tokens: Vec<u32>,
}

impl EnglishTokens {
    /// Makes a source for each engine.
    #[must_use]
    pub fn factory(tokenizer: &Tokenizer, output_tokens: Option<Distribution>) -> TokenFactory {
        let english = English::new(tokenizer);
        Arc::new(move |_context| {
            let english = english.clone();
            Ok(Box::new(Self { english, output_tokens, texts: BTreeMap::new() }))
        })
    }

    fn begin(&mut self, request: &TokenRequest<'_>) {
        let length = self.output_tokens.as_ref().map(|lengths| {
            let drawn = lengths.draw(&mut Stream::new(request.seed, "live.output-tokens")).round();
            (drawn as u32).max(1)
        });
        let text = Text {
            text: self.english.start(request.seed),
            length,
            min_tokens: request.min_tokens,
            eos_token: request.eos_token,
            stop_tokens: request.stop_tokens.to_vec(),
        };
        self.texts.insert(request.slot, text);
    }
}

impl Text {
    fn token(&mut self, index: u32, english: &English) -> u32 {
        let is_over = match self.length {
            Some(length) => index >= length,
            None => index > 0 && self.text.is_over(),
        };
        match self.eos_token.filter(|_| is_over && index >= self.min_tokens) {
            Some(eos_token) => eos_token,
            None => self.word(index, english),
        }
    }

    /// The next token of the text; no stop token before `min_tokens`.
    fn word(&mut self, index: u32, english: &English) -> u32 {
        let mut token = self.text.next_token(english);
        // A text whose tokens all stop it goes on with them after a while.
        for _ in 0..64 {
            if index >= self.min_tokens || !self.stop_tokens.contains(&token) {
                break;
            }
            token = self.text.next_token(english);
        }
        token
    }
}

impl BatchTokenSource for EnglishTokens {
    fn step(
        &mut self,
        started: &[TokenRequest<'_>],
        ended: &[u32],
        wants: &[TokenWant],
        answer: &mut TokenAnswer,
    ) -> Result<(), TokenError> {
        for slot in ended {
            self.texts.remove(slot);
        }
        for request in started {
            self.begin(request);
        }
        for want in wants {
            let Some(text) = self.texts.get_mut(&want.slot) else {
                let reason = format!("slot {} was never started", want.slot);
                return Err(TokenError { source: "english".to_owned(), reason });
            };
            let indices = want.first_index..want.first_index + want.count;
            answer.tokens.extend(indices.map(|index| text.token(index, &self.english)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use vcr_core::PluginContext;

    use super::*;

    fn tokens(output_tokens: Option<Distribution>, seed: u64, min_tokens: u32, eos_token: Option<u32>) -> Vec<u32> {
        let factory = EnglishTokens::factory(&Tokenizer::builtin(), output_tokens);
        let mut source = factory(&PluginContext::of_seed(0)).expect("it cannot fail");
        let request = TokenRequest {
            slot: 3,
            seed,
            prompt: &[],
            max_tokens: 500,
            min_tokens,
            eos_token,
            stop_tokens: &[],
            structured_output: "",
        };
        let mut answer = TokenAnswer::default();
        let want = |first_index| [TokenWant { slot: 3, first_index, count: 250 }];
        source.step(&[request], &[], &want(0), &mut answer).expect("it writes");
        source.step(&[], &[], &want(250), &mut answer).expect("it goes on");
        assert!(source.step(&[], &[3], &want(500), &mut answer).is_err());
        answer.tokens.truncate(500);
        answer.tokens
    }

    #[test]
    fn the_same_seed_writes_the_same_text_and_another_one_another() {
        let text = |seed| Tokenizer::builtin().decode(&tokens(None, seed, 0, None), true);
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
        assert!(text(1).is_ascii() && text(1).contains(". "), "{}", text(1));
    }

    #[test]
    fn texts_end_at_their_length_but_not_before_the_least_one() {
        let end =
            |lengths, min_tokens| tokens(lengths, 1, min_tokens, Some(9999)).iter().position(|token| *token == 9999);
        let constant = |value| Some(Distribution::Constant { value });
        assert_eq!(end(constant(7.0), 0), Some(7));
        assert_eq!(end(constant(7.0), 20), Some(20));
        assert!(end(None, 0).is_some_and(|end| end > 0));
    }
}
