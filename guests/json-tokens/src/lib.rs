//! A guest that produces structured output. `vcr-structured` does the work; the simulator also has it natively.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::String;

use vcr_guest_sdk::{TokenGuest, TokenRequest, export_token_source};
use vcr_structured::{Config, JsonTokens, Output};

/// The export macro needs a type of this crate.
struct Guest(JsonTokens);

impl TokenGuest for Guest {
    type Config = Config;
    type Request = Output;

    fn configure(config: Config, seed: u64) -> Result<Self, String> {
        JsonTokens::configure(config, seed).map(Self)
    }

    fn start(&mut self, request: &TokenRequest<'_>) -> Result<Output, String> {
        self.0.start(request)
    }

    fn next_token(&mut self, output: &mut Output, index: u32) -> Result<u32, String> {
        self.0.next_token(output, index)
    }

    fn accepted_drafts(&mut self, output: &mut Output) -> Option<u32> {
        self.0.accepted_drafts(output)
    }
}

export_token_source!(Guest);
