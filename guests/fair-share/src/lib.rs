//! A guest that gives tenants fair shares of tokens.
//!
//! The config is a `vcr_policy::FairShareConfig`, for example
//! `{"weights": {"3": 2.0}, "max_chunk_tokens": 2048}`.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use vcr_guest_sdk::{EngineView, PolicyGuest, Preference, export_scheduler_policy};
use vcr_policy::{FairShare, FairShareConfig};

struct FairShareGuest(FairShare);

impl PolicyGuest for FairShareGuest {
    type Config = FairShareConfig;

    fn configure(config: FairShareConfig, _seed: u64) -> Result<Self, String> {
        config.build().map(Self).map_err(|error| error.to_string())
    }

    fn decide(&mut self, engine: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), String> {
        vcr_policy::decide(&mut self.0, engine, preferences);
        Ok(())
    }
}

export_scheduler_policy!(FairShareGuest);
