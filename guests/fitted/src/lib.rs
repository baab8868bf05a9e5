//! A guest with fitted step prices.
//!
//! The component contains the model: `model.json` next to the manifest, written by `vcr fit --emit-wasm`. A config
//! may replace the model, or disable its noise: `{"noise": "none"}`.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::Deserialize;
use vcr_fitted::{NoiseStream, StepPrice, StepWork};
use vcr_guest_sdk::{Batch, LatencyGuest, StepShape, export_latency_model};

/// The built-in model.
const MODEL: &str = include_str!("../model.json");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Replaces the built-in model.
    #[serde(default)]
    step: Option<StepPrice>,
    #[serde(default)]
    noise: NoiseChoice,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum NoiseChoice {
    /// The noise of the model.
    #[default]
    Fitted,
    None,
}

struct FittedGuest {
    price: StepPrice,
    noise: NoiseStream,
}

impl LatencyGuest for FittedGuest {
    type Config = Config;

    fn configure(config: Config, seed: u64) -> Result<Self, String> {
        let price = match config.step {
            Some(price) => price,
            None => serde_json::from_str(MODEL).map_err(|error| format!("invalid model inside: {error}"))?,
        };
        let price = if config.noise == NoiseChoice::None { price.without_noise() } else { price };
        Ok(Self { price, noise: NoiseStream::new(seed) })
    }

    fn price(&mut self, _start_ns: u64, step: &StepShape) -> f64 {
        let work = StepWork::from(step);
        let ns = self.price.step_ns(&work);
        match self.price.noise() {
            Some(noise) => ns * noise.factor(work.prefill_requests > 0, self.noise.share()),
            None => ns,
        }
    }

    fn price_batch(&mut self, batch: &Batch<'_>, durations_ns: &mut Vec<f64>) -> Result<(), String> {
        if self.price.noise().is_some() {
            // Steps past the horizon must not draw from the random stream.
            return batch.price_each(durations_ns, |start_ns, step| Ok(self.price(start_ns, step)));
        }
        batch.price_apart(durations_ns, |step| self.price(batch.start_ns(), step));
        Ok(())
    }
}

export_latency_model!(FittedGuest);
