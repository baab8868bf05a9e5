//! Generates structured outputs, natively and as a guest.
//!
//! A request with a structured output gets valid output of the requested kind (`json_object`, `json`
//! with a `Schema`, `choice`, `regex` with a `Pattern`, `grammar` with a `Grammar`,
//! `structural_tag` with a `Format`). Any other request gets random words. The output ends with the
//! request's end token and depends only on the request's seed. The configuration is a [`Config`],
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

/// The guest's configuration: the meaning of tokens, and the length of texts.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Tokens for pieces of text. If several pieces fit, the longest is used.
    #[serde(default)]
    vocabulary: Entries<u32>,
    /// Tokens for the 256 single bytes, for text that the vocabulary does not cover.
    #[serde(default)]
    byte_tokens: Option<Vec<u32>>,
    /// Minimum and maximum number of words in an answer without structured output.
    #[serde(default = "usual_words")]
    words: [u32; 2],
    /// Whether a request with unsupported structured output is refused. Otherwise it is answered with words and
    /// counted.
    #[serde(default = "is_strict")]
    strict: bool,
    /// Number of drafts that are accepted in each step that verifies drafts. If not set, the engine's acceptance
    /// rates apply.
    #[serde(default)]
    accepted_drafts: Option<u32>,
}

fn is_strict() -> bool {
    true
}

fn usual_words() -> [u32; 2] {
    [10, 60]
}

/// The token source of one engine.
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
    /// Creates the source from pieces of text and their tokens. If two pieces are equal, the first one
    /// counts.
    pub fn of_pieces(pieces: Vec<(Vec<u8>, u32)>) -> Result<Self, String> {
        let pieces = pieces.into_iter().map(|(piece, token)| (piece.into_boxed_slice(), token)).collect();
        let vocabulary = Vocabulary::of_pieces(pieces)?;
        Ok(Self { vocabulary, words: usual_words(), is_strict: true, accepted_drafts: None })
    }

    fn output(&self, request: &TokenRequest<'_>) -> Result<Output, String> {
        let space = self.vocabulary.tokens(" ")?;
        Ok(Output::new(request, space[0]))
    }

    fn plain_words(&self, request: &TokenRequest<'_>) -> Result<Output, String> {
        Ok(self.output(request)?.with_words(Words::new(Rng::new(request.seed, 0), self.words)))
    }

    /// The token at `index` of an output.
    pub fn continued(&self, output: &mut Output, index: u32) -> Result<u32, String> {
        output.next_token(index, &self.vocabulary)
    }

    /// Starts the output that a structured-output request asks for.
    ///
    /// # Errors
    /// If the request cannot be parsed or followed, or no output fits it.
    pub fn follow(&self, request: &TokenRequest<'_>) -> Result<Output, String> {
        let structure = self.structure(request.structured_output)?;
        self.follow_structure(&structure, request, &settings::USUAL)
    }
}

#[cfg(test)]
mod tests;
