//! Outputs of a model with structured outputs, natively and as a guest.
//!
//! A request with a structured output gets valid JSON of the requested kind (`json_object`, `json`
//! with a `Schema`, `choice`, `regex` with a `Pattern`, `grammar` with a `Grammar`,
//! `structural_tag` with a `Format`); any other request gets random words. Both end with the
//! request's end token. The text depends only on the request's seed. The config is a [`Config`],
//! for example `{"vocabulary": {"{": 90, "}": 92, "true": 1904, ...}}`.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod choice;
mod entries;
mod grammar;
mod node;
mod output;
pub mod python;
mod schema;
mod settings;
mod structural;
mod structure;
mod style;
mod values;
mod vocabulary;
mod writer;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use vcr_guest_sdk::observe;
pub use vcr_guest_sdk::{Rng, TokenGuest, TokenRequest};

use crate::entries::Entries;
pub use crate::output::Output;
pub use crate::settings::ArgumentSettings;
pub use crate::structure::Structure;
use crate::values::words::Words;
use crate::vocabulary::Vocabulary;

/// The config of the guest: the meaning of its tokens, and the length of its texts.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Tokens of pieces of text. Of several that fit, the longest is taken.
    #[serde(default)]
    vocabulary: Entries<u32>,
    /// The tokens of the 256 single bytes, for text that the vocabulary lacks.
    #[serde(default)]
    byte_tokens: Option<Vec<u32>>,
    /// The fewest and the most words of an answer without a structured output.
    #[serde(default = "usual_words")]
    words: [u32; 2],
    /// Whether a request with unsupported structured output is refused, instead of answered with words and counted.
    #[serde(default = "is_strict")]
    strict: bool,
    /// Drafts that are accepted in each step that verifies some; without a number, the engine's acceptance
    /// rates decide.
    #[serde(default)]
    accepted_drafts: Option<u32>,
}

fn is_strict() -> bool {
    true
}

fn usual_words() -> [u32; 2] {
    [10, 60]
}

/// The source of one engine.
pub struct JsonTokens {
    vocabulary: Vocabulary,
    words: [u32; 2],
    is_strict: bool,
    accepted_drafts: Option<u32>,
}

impl TokenGuest for JsonTokens {
    type Config = Config;
    type Request = Output;

    fn configure(config: Config, _seed: u64) -> Result<Self, String> {
        let [fewest, most] = config.words;
        if fewest > most {
            return Err(format!("invalid `words`: expected the lesser number first, got [{fewest}, {most}]"));
        }
        let vocabulary = Vocabulary::new(config.vocabulary.0, config.byte_tokens)?;
        let Config { words, strict: is_strict, accepted_drafts, .. } = config;
        Ok(Self { vocabulary, words, is_strict, accepted_drafts })
    }

    fn start(&mut self, request: &TokenRequest<'_>) -> Result<Output, String> {
        if request.structured_output.is_empty() {
            return self.plain_words(request);
        }
        match self.follow(request) {
            Err(reason) if !self.is_strict => {
                observe::count("structured_outputs_not_followed", 1);
                observe::log(&format!("a request gets words, because {reason}"));
                self.plain_words(request)
            }
            output => output,
        }
    }

    fn next_token(&mut self, output: &mut Output, index: u32) -> Result<u32, String> {
        self.continued(output, index)
    }

    fn accepted_drafts(&mut self, _output: &mut Output) -> Option<u32> {
        self.accepted_drafts
    }
}

impl JsonTokens {
    /// The source of a vocabulary that is given as pieces and their tokens. Of equal
    /// pieces the first counts.
    pub fn of_pieces(pieces: Vec<(Vec<u8>, u32)>) -> Result<Self, String> {
        let pieces = pieces.into_iter().map(|(piece, token)| (piece.into_boxed_slice(), token)).collect();
        let vocabulary = Vocabulary::of_pieces(pieces)?;
        Ok(Self { vocabulary, words: usual_words(), is_strict: true, accepted_drafts: None })
    }

    fn output(&self, request: &TokenRequest<'_>) -> Result<Output, String> {
        let space = self.vocabulary.tokens(" ")?;
        Ok(Output::new(request, space[0]))
    }

    /// Words, whatever was requested.
    fn plain_words(&self, request: &TokenRequest<'_>) -> Result<Output, String> {
        Ok(self.output(request)?.with_words(Words::new(Rng::new(request.seed, 0), self.words)))
    }

    /// The next token of an output: number `index` of it.
    pub fn continued(&self, output: &mut Output, index: u32) -> Result<u32, String> {
        output.next_token(index, &self.vocabulary)
    }

    /// The output that a structured-output request asks for.
    ///
    /// # Errors
    /// When it cannot be read or followed, or nothing fits it.
    pub fn follow(&self, request: &TokenRequest<'_>) -> Result<Output, String> {
        let structure = self.structure(request.structured_output)?;
        self.follow_structure(&structure, request, &settings::USUAL)
    }
}

#[cfg(test)]
mod tests;
