//! A guest that admits the shortest prompt first.
//!
//! The config is a `vcr_policy::ShortestPromptFirstConfig`, for example
//! `{"aging_tokens_per_s": 200, "max_chunk_tokens": 2048}`.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use vcr_guest_sdk::{EngineView, PolicyGuest, Preference, export_scheduler_policy};
use vcr_policy::{ShortestPromptFirst, ShortestPromptFirstConfig};

struct ShortestPromptFirstGuest(ShortestPromptFirst);

impl PolicyGuest for ShortestPromptFirstGuest {
    type Config = ShortestPromptFirstConfig;

    fn configure(config: ShortestPromptFirstConfig, _seed: u64) -> Result<Self, String> {
        config.build().map(Self).map_err(|error| error.to_string())
    }

    fn decide(&mut self, engine: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), String> {
        vcr_policy::decide(&mut self.0, engine, preferences);
        Ok(())
    }
}

export_scheduler_policy!(ShortestPromptFirstGuest);
