//! Which prompts of a disaggregated cluster need no prefill engine.
//!
//! Moving KV pays where there is much to compute. A short prompt, or one that a
//! decode engine has cached, may as well be computed where its output is
//! generated, as Dynamo's conditional disaggregation does.

use vcr_core::{Prompt, ServingEngine};

use crate::sim::Simulation;
use crate::worker::Worker;

/// What lets a request stay with the decode engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConditionalPolicy {
    /// Few prompt tokens to compute.
    #[default]
    IslBounding,
    /// Busy prefill engines.
    PrefillLoad,
    /// Either.
    IslOrLoad,
}

/// Conditional disaggregation, with Dynamo's names and defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConditionalConfig {
    /// What lets a request stay.
    pub policy: ConditionalPolicy,
    /// It stays with at most so many prompt tokens that no decode engine has cached.
    pub eff_isl_threshold_tokens: u32,
    /// It stays with at most this share of its prompt that no decode engine has
    /// cached.
    pub eff_isl_ratio_threshold: f64,
    /// Prefill is busy while each of its engines has prompt tokens for more than
    /// this many steps of full budget; none for never.
    pub prefill_busy_threshold: Option<f64>,
    /// Decode is busy while each of its engines has more than this share of its KV
    /// blocks in use, and then nothing stays; none for never.
    pub decode_busy_threshold: Option<f64>,
}

impl Default for ConditionalConfig {
    fn default() -> Self {
        Self {
            policy: ConditionalPolicy::default(),
            eff_isl_threshold_tokens: 2048,
            eff_isl_ratio_threshold: 0.7,
            prefill_busy_threshold: None,
            decode_busy_threshold: None,
        }
    }
}

impl ConditionalConfig {
    /// Checks every number.
    ///
    /// # Errors
    /// The first field that makes no sense, and what it must be.
    pub fn check(&self) -> Result<(), String> {
        let numbers = [
            ("eff_isl_ratio_threshold", Some(self.eff_isl_ratio_threshold)),
            ("prefill_busy_threshold", self.prefill_busy_threshold),
            ("decode_busy_threshold", self.decode_busy_threshold),
        ];
        for (name, value) in numbers {
            if let Some(value) = value
                && !(value.is_finite() && value >= 0.0)
            {
                return Err(format!("`{name}` must be finite and at least 0, but is {value}"));
            }
        }
        if self.policy == ConditionalPolicy::PrefillLoad && self.prefill_busy_threshold.is_none() {
            return Err("`prefill_load` needs a `prefill_busy_threshold`: without one prefill is never busy".to_owned());
        }
        Ok(())
    }

    fn is_little(&self, prompt_tokens: u32, uncached_tokens: u32) -> bool {
        uncached_tokens <= self.eff_isl_threshold_tokens
            || f64::from(uncached_tokens) <= self.eff_isl_ratio_threshold * f64::from(prompt_tokens)
    }

    fn prefill_is_busy<'a>(&self, mut workers: impl Iterator<Item = &'a Worker>) -> bool {
        let Some(threshold) = self.prefill_busy_threshold else { return false };
        workers.all(|worker| {
            let budget = f64::from(worker.engine.max_num_batched_tokens());
            worker.engine.outstanding_prefill_tokens() as f64 > threshold * budget
        })
    }

    fn decode_is_busy<'a>(&self, mut workers: impl Iterator<Item = &'a Worker>) -> bool {
        let Some(threshold) = self.decode_busy_threshold else { return false };
        workers.all(|worker| {
            f64::from(worker.engine.num_active_blocks()) > threshold * f64::from(worker.engine.num_usable_blocks())
        })
    }
}

impl Simulation<'_> {
    /// Whether a request of a disaggregated cluster stays with the decode engines.
    pub(crate) fn stays_with_decode(&self, prompt: &Prompt) -> bool {
        let Some(config) = self.config.topology.conditional() else { return false };
        let up = |pool: usize| self.workers[self.pools[pool].workers()].iter().filter(|worker| worker.is_up());
        if up(1).next().is_none() || config.decode_is_busy(up(1)) {
            return false;
        }
        let little = || {
            let cached = up(1).map(|worker| worker.engine.cached_prefix_blocks(prompt.block_hashes()));
            let cached_tokens = cached.max().unwrap_or(0) * self.pools[1].config.engine.block_size();
            let prompt_tokens = prompt.len_tokens();
            config.is_little(prompt_tokens, prompt_tokens.saturating_sub(cached_tokens))
        };
        match config.policy {
            ConditionalPolicy::IslBounding => little(),
            ConditionalPolicy::PrefillLoad => config.prefill_is_busy(up(0)),
            ConditionalPolicy::IslOrLoad => little() || config.prefill_is_busy(up(0)),
        }
    }
}
