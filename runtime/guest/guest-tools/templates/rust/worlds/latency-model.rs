//! Prices steps by their tokens and requests.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::String;
use vcr_guest_sdk::{LatencyGuest, StepShape, export_latency_model};

/// The user's settings; `config.json` has an example.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Cost of a step.
    ns_per_step: f64,
    /// Cost of each new token.
    ns_per_token: f64,
    /// Cost of each request.
    #[serde(default)]
    ns_per_request: f64,
}

struct Model(Config);

impl LatencyGuest for Model {
    type Config = Config;

    fn configure(config: Config, _seed: u64) -> Result<Self, String> {
        for (field, value) in [
            ("ns_per_step", config.ns_per_step),
            ("ns_per_token", config.ns_per_token),
            ("ns_per_request", config.ns_per_request),
        ] {
            if !(0.0..=1e12).contains(&value) {
                return Err(alloc::format!("invalid `{field}`: expected 0 to 1e12 nanoseconds, got {value}"));
            }
        }
        Ok(Self(config))
    }

    fn price(&mut self, _start_ns: u64, step: &StepShape) -> f64 {
        let Self(config) = self;
        config.ns_per_step
            + config.ns_per_token * step.tokens() as f64
            + config.ns_per_request * step.batch_requests() as f64
    }
}

export_latency_model!(Model);

#[cfg(test)]
mod tests {
    use super::*;

    fn config(ns_per_token: f64) -> Config {
        Config { ns_per_step: 1_000.0, ns_per_token, ns_per_request: 100.0 }
    }

    #[test]
    fn a_step_costs_its_tokens_and_requests() {
        let mut model = Model::configure(config(10.0), 0).expect("the config is valid");
        let step = StepShape { decode_requests: 2, decode_tokens: 2, ..StepShape::default() };
        assert_eq!(model.price(0, &step), 1_000.0 + 20.0 + 200.0);
    }

    #[test]
    fn a_negative_price_is_refused_by_name() {
        let error = Model::configure(config(-1.0), 0).err().expect("prices are not negative");
        assert!(error.contains("invalid `ns_per_token`"), "{error}");
    }
}
