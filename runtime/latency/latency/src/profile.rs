//! Interpolates measured profiles.

mod error;
#[cfg(feature = "profiles")]
mod read;
mod table;

pub use error::{PointsFault, PointsProblem, ProfileError};
#[cfg(feature = "profiles")]
pub use read::read;
pub use table::{Column, DecodeSurface, PrefillCurve};

use crate::pass::{PassRules, PassSemantics, WorkerPhases};
use crate::problem::{InvalidConfig, Problems};
use crate::speed::SpeedInput;
use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, StepShape, price_until_horizon};

const MODEL: &str = "profile";

/// Checked measurements of one deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileTables {
    /// Prefill time as a function of new tokens.
    pub prefill: PrefillCurve,
    /// Decode time as a function of occupied KV tokens and mean context.
    pub decode: DecodeSurface,
}

/// The deployment to read from a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deployment {
    /// The only deployment. An error if there are several.
    #[default]
    Only,
    /// The deployment in this row, from 0.
    Row(usize),
    /// The deployment with this tensor-parallel size, by the array `tp`.
    TensorParallel(u64),
}

/// Reads a profile.
///
/// # Errors
/// Always: this build reads no NumPy arrays.
#[cfg(not(feature = "profiles"))]
pub fn read(path: &std::path::Path, _deployment: Deployment) -> Result<ProfileTables, ProfileError> {
    Err(ProfileError::NotBuilt { path: path.display().to_string() })
}

/// Inputs of a [`Profile`].
#[derive(Clone, Debug)]
pub struct ProfileInput {
    /// The measured points, from [`read()`] or built by hand.
    pub tables: ProfileTables,
    /// Dynamo version whose rules define the decode part of a step.
    pub semantics: PassSemantics,
    /// Phases that the engine is charged for (see [`PolynomialInput::phases`](crate::PolynomialInput::phases)).
    pub phases: WorkerPhases,
    /// Whether the engine drafts tokens (see [`PolynomialInput::speculative`](crate::PolynomialInput::speculative)).
    pub speculative: bool,
    /// Whether occupancy is the sum of the contexts under 1.4 too, as for Dynamo's SGLang engines.
    pub sums_contexts: bool,
    /// Divisors of the times.
    pub speed: SpeedInput,
}

/// A model that interpolates a planner profile: prefill by new tokens, decode by occupied KV tokens and mean context
/// length. The step is the sum of both.
///
/// Times beyond the measured range are extrapolated linearly (see [`PrefillCurve`] and [`DecodeSurface`]); negative
/// results become 0. Each part is rounded to whole nanoseconds, divided by its speed and rounded again before they are
/// added. A step without new prefill tokens has no prefill part.
#[derive(Clone, Debug)]
pub struct Profile {
    tables: ProfileTables,
    rules: PassRules,
    speed: SpeedInput,
}

impl Profile {
    /// Checks the input. Its tables are already checked.
    ///
    /// # Errors
    /// Every speed that is not above 0.
    pub fn new(input: ProfileInput) -> Result<Profile, InvalidConfig> {
        let mut problems = Problems::default();
        input.speed.check(&mut problems);
        problems.none_or(
            MODEL,
            Profile {
                tables: input.tables,
                rules: PassRules {
                    semantics: input.semantics,
                    phases: input.phases,
                    speculative: input.speculative,
                    sums_contexts: input.sums_contexts,
                },
                speed: input.speed,
            },
        )
    }

    fn price_one(&self, shape: &StepShape) -> Result<u64, LatencyError> {
        let mut duration_ns = 0;
        let prompt_tokens = self.rules.prefill_load(shape).tokens;
        if prompt_tokens > 0 {
            let ms = self.tables.prefill.ttft_ms(prompt_tokens as f64);
            duration_ns += self.speed.prefill_ns(MODEL, ms)?;
        }
        if let Some(load) = self.rules.decode_load(shape) {
            let active_kv_tokens = load.active_kv_tokens as f64;
            let ms = self.tables.decode.itl_ms(active_kv_tokens, load.mean_context_tokens);
            duration_ns += self.speed.decode_ns(MODEL, ms)?;
        }
        Ok(duration_ns)
    }
}

impl LatencyModel for Profile {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| self.price_one(shape))
    }
}
