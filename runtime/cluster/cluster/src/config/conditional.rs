//! Prompts of a disaggregated cluster that need no prefill engine.
//!
//! Moving KV pays where there is much to compute. A short prompt, or one that a
//! decode engine has cached, may as well be computed where its output is
//! generated, as Dynamo's conditional disaggregation does.

/// The policy of conditional disaggregation.
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
    /// The policy.
    pub policy: ConditionalPolicy,
    /// It stays with at most this many prompt tokens that no decode engine has cached.
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
    /// The first invalid field, with its valid range.
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
                return Err(format!("invalid `{name}`: expected a finite number of at least 0, got {value}"));
            }
        }
        if self.policy == ConditionalPolicy::PrefillLoad && self.prefill_busy_threshold.is_none() {
            return Err("`prefill_load` needs a `prefill_busy_threshold`: without one prefill is never busy".to_owned());
        }
        Ok(())
    }
}
