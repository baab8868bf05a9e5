//! Repeats the prompt with each token shifted by a number, then stops.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::String;
use alloc::vec::Vec;
use vcr_guest_sdk::{TokenGuest, TokenRequest, export_token_source};

/// The user's settings; `config.json` has an example.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Added to each token of the prompt.
    #[serde(default)]
    shift: u32,
    /// Size of the model's vocabulary.
    vocabulary: u32,
}

struct Source(Config);

/// State of a running request.
struct Echo {
    output: Vec<u32>,
    /// Token after the output: the end token, if the request has one.
    end: u32,
}

impl TokenGuest for Source {
    type Config = Config;
    type Request = Echo;

    fn configure(config: Config, _seed: u64) -> Result<Self, String> {
        if config.vocabulary == 0 {
            return Err("invalid `vocabulary`: expected at least 1, got 0".into());
        }
        Ok(Self(config))
    }

    fn start(&mut self, request: &TokenRequest<'_>) -> Result<Echo, String> {
        let Self(config) = self;
        let shifted = |token: &u32| (u64::from(*token) + u64::from(config.shift)) % u64::from(config.vocabulary);
        // Limited by the request's `max_tokens`.
        let length = request.max_tokens as usize;
        let output = request.prompt.iter().take(length).map(|token| shifted(token) as u32).collect();
        Ok(Echo { output, end: request.eos_token.unwrap_or(0) })
    }

    fn next_token(&mut self, request: &mut Echo, index: u32) -> Result<u32, String> {
        Ok(request.output.get(index as usize).copied().unwrap_or(request.end))
    }
}

export_token_source!(Source);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_comes_back_shifted_and_then_the_end() {
        let mut source = Source::configure(Config { shift: 3, vocabulary: 10 }, 0).expect("the config is valid");
        let request = TokenRequest { prompt: &[1, 9], max_tokens: 5, eos_token: Some(7), ..TokenRequest::default() };
        let mut echo = source.start(&request).expect("every request can be echoed");
        let output: Vec<u32> =
            (0..3).map(|index| source.next_token(&mut echo, index).expect("there is always a token")).collect();
        assert_eq!(output, [4, 2, 7]);
    }

    #[test]
    fn an_empty_vocabulary_is_refused_by_name() {
        let error = Source::configure(Config { shift: 0, vocabulary: 0 }, 0).err().expect("there are no tokens");
        assert!(error.contains("invalid `vocabulary`"), "{error}");
    }
}
