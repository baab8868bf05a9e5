//! The settings of a KV connector that the scheduler knows.

use super::{ConfigError, EngineConfig, EngineConfigInput, NamedValue};
use crate::kv::tiers::offloading::OffloadingOptions;

/// Handling of requests whose KV did not arrive (vLLM's `kv_load_failure_policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFailures {
    /// The requests end with an error.
    #[default]
    Fail,
    /// The engine computes the missing parts itself.
    Recompute,
}

impl NamedValue for LoadFailures {
    const NAMES: &'static [(&'static str, Self)] = &[("fail", Self::Fail), ("recompute", Self::Recompute)];
}

/// A KV connector of the scheduler, whose lookups the [driver answers](crate::Engine::answer_lookups).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConnector {
    /// Whether this engine loads KV (vLLM's roles `kv_consumer` and `kv_both`). With several steps in flight,
    /// blocks that a step may still write are then freed only when that step ends, because a load could otherwise
    /// overtake the write.
    pub is_consumer: bool,
    /// Whether transferred KV must match the delivered tokens (`requires_kv_delivery`). The outputs in flight
    /// of a preempted request are then dropped.
    pub requires_delivery: bool,
    /// Handling of requests whose KV did not arrive.
    pub load_failures: LoadFailures,
    /// Whether the connector is vLLM's NIXL connector. It leaves the last tokens of a prompt to the decode engine if
    /// their KV or state cannot be transferred. It counts the hits of states and of full attention separately.
    pub is_nixl: bool,
    /// Settings of the offloading connector, which finds KV itself; the driver reports its finished jobs.
    pub offloading: Option<OffloadingOptions>,
}

impl EngineConfig {
    /// Tokens at the end of a prompt that a prefill engine leaves to the decode engine (NIXL's
    /// `_prefill_backoff`). A model with states leaves one token, because the next token needs the state before it.
    /// With one drafter module per draft, the tokens that the drafter reads ahead are left as well.
    pub(crate) fn tokens_left_to_decode(&self) -> u32 {
        if !self.input.kv_connector.is_some_and(|connector| connector.is_nixl) {
            return 0;
        }
        u32::from(self.keeps_states()).max(self.drafting().unsettled_tokens())
    }
}

/// Checks that the connector's KV can be looked up.
pub(super) fn check(input: &EngineConfigInput, errors: &mut Vec<ConfigError>) {
    let Some(connector) = &input.kv_connector else { return };
    if let Some(options) = &connector.offloading {
        options.check(errors);
    }
    let mut exclude = |other_field, reason| {
        errors.push(ConfigError::Exclusive { field: "kv_connector", other_field, reason });
    };
    if !input.kv_cache_groups.is_empty() && connector.offloading.is_some() {
        exclude("kv_cache_groups", "KV that is offloaded is that of one group of full attention");
    }
    if input.kv_tiers.is_some() {
        exclude("kv_tiers", "both are asked for KV beyond that of the device");
    }
}
