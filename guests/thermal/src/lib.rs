//! A guest that models a GPU that heats up: a latency model with state.
//!
//! A roofline prices each step, and a factor that depends on the GPU's temperature stretches it; see [`Thermal`]. The
//! config is `{"roofline": {…}, …}` with the fields of [`ThermalConfig`]. The guest reports temperature and
//! throttling; see [`Diary`].

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

mod decay;
mod diary;
mod thermal;

use alloc::string::String;

use vcr_guest_sdk::{LatencyGuest, Rng, StepShape, export_latency_model};
use vcr_roofline::{Roofline, RooflineConfig};

pub use crate::decay::decay;
pub use crate::diary::Diary;
pub use crate::thermal::{Thermal, ThermalConfig};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The cool GPU, configured as in the guest `roofline`.
    roofline: RooflineConfig,
    /// Heating, cooling and throttling.
    #[serde(default)]
    thermal: ThermalConfig,
}

struct ThermalGuest {
    roofline: Roofline,
    thermal: Thermal,
    diary: Diary,
}

impl LatencyGuest for ThermalGuest {
    type Config = Config;

    fn configure(config: Config, seed: u64) -> Result<Self, String> {
        let roofline = config.roofline.build().map_err(|error| alloc::format!("`roofline`: {error}"))?;
        let thermal = Thermal::new(&config.thermal, &mut Rng::new(seed, 0))?;
        Ok(Self { roofline, thermal, diary: Diary::default() })
    }

    fn price(&mut self, start_ns: u64, step: &StepShape) -> f64 {
        let cool_ns = self.roofline.step_ns(step);
        let duration_ns = self.thermal.run(start_ns, cool_ns);
        self.diary.step(&self.thermal, start_ns.saturating_add(duration_ns as u64));
        duration_ns
    }
}

export_latency_model!(ThermalGuest);
