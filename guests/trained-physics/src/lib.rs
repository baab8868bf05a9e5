//! A guest with the trained-physics latency model.
//!
//! The config is a `vcr_roofline::PhysicsConfig`, for example
//! `{"coefficients": {...}, "model": "llama-3.1-8b", "gpu": "h100-sxm"}`. The coefficients have the form of a
//! coefficients file.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use vcr_guest_sdk::{Batch, LatencyGuest, StepShape, export_latency_model};
use vcr_roofline::{Physics, PhysicsConfig};

struct PhysicsGuest(Physics);

impl LatencyGuest for PhysicsGuest {
    type Config = PhysicsConfig;

    fn configure(config: PhysicsConfig, _seed: u64) -> Result<Self, String> {
        config.build().map(Self).map_err(|error| error.to_string())
    }

    fn price(&mut self, _start_ns: u64, step: &StepShape) -> f64 {
        self.0.step_ns(step, step.batch_requests())
    }

    fn price_batch(&mut self, batch: &Batch<'_>, durations_ns: &mut Vec<f64>) -> Result<(), String> {
        batch.price_apart(durations_ns, |step| self.price(batch.start_ns(), step));
        Ok(())
    }
}

export_latency_model!(PhysicsGuest);
