//! Settings of the tiers below the device, checked with the other settings.

use super::{ConfigError, EngineConfigInput, NamedValue};
use crate::compat::{CapacityPolicy, Reservations, Victim};
use crate::kv::tiers::HostRules;
use crate::kv::tiers::offloading::EvictionPolicy;

impl HostRules {
    /// The host rules of an engine: vLLM's, or the rules of Dynamo's mocker. None if the release's connector is not
    /// simulated.
    #[must_use]
    pub fn of(input: &EngineConfigInput) -> Self {
        let is_vllm = input.rules.knows_offloading()
            && input.capacity == CapacityPolicy::Preempt
            && input.victim == Victim::Newest
            && input.reservations == Reservations::InSteps
            && input.max_extra_tokens_per_step == 0;
        if is_vllm { Self::Vllm } else { Self::Dynamo }
    }
}

impl NamedValue for HostRules {
    const NAMES: &'static [(&'static str, Self)] =
        &[("dynamo", Self::Dynamo), ("dynamo-1.6", Self::Dynamo16), ("vllm", Self::Vllm)];
}

impl NamedValue for EvictionPolicy {
    const NAMES: &'static [(&'static str, Self)] = &[("lru", Self::Lru), ("arc", Self::Arc)];
}

/// Checks the tiers. They need prefix caching, because blocks below the device are found by prefix-cache hashes. They
/// are undefined with reservations or bursts.
pub(super) fn check(input: &EngineConfigInput, errors: &mut Vec<ConfigError>) {
    let Some(tiers) = &input.kv_tiers else { return };
    let field = "kv_tiers";
    if !input.enable_prefix_caching {
        let reason = "what is kept below the device is found by its hashes";
        errors.push(ConfigError::Needs { field, needed: "enable_prefix_caching", reason });
    }
    let mut exclude = |other_field, reason| errors.push(ConfigError::Exclusive { field, other_field, reason });
    if input.capacity == CapacityPolicy::GuaranteedNoEvict {
        exclude("capacity", "only vLLM's way of offloading is simulated");
    }
    if input.max_extra_tokens_per_step > 0 {
        exclude("max_extra_tokens_per_step", "the last cached block is computed again, wherever it is kept");
    }
    if tiers.rules == HostRules::Dynamo16 && input.num_speculative_tokens > 0 {
        exclude("num_speculative_tokens", "Dynamo 1.6's mocker offloads nothing with drafts");
    }
    if tiers.rules == HostRules::Vllm && HostRules::of(input) != HostRules::Vllm {
        exclude(
            "rules",
            "the connector for offloading is that of vLLM 0.32 and 0.33, without rules of Dynamo's mocker",
        );
    }
    if tiers.rules == HostRules::Vllm {
        let scopes = [("host_scope", tiers.shared_host), ("disk_scope", tiers.shared_disk)];
        for (scope, _) in scopes.iter().filter(|(_, shared)| shared.is_some()) {
            let reason = "vLLM's connector for offloading belongs to one engine: tiers of a pool have Dynamo's rules";
            errors.push(ConfigError::Exclusive { field: "rules", other_field: scope, reason });
        }
    }
}
