//! Settings of a KV connector, as far as the scheduler knows them.

use super::{ConfigError, EngineConfigInput, NamedValue};
use crate::kv::tiers::offloading::OffloadingOptions;

/// The fate of requests whose KV did not arrive (vLLM's `kv_load_failure_policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFailures {
    /// They end with an error.
    #[default]
    Fail,
    /// Missing parts are computed here.
    Recompute,
}

impl NamedValue for LoadFailures {
    const NAMES: &'static [(&'static str, Self)] = &[("fail", Self::Fail), ("recompute", Self::Recompute)];
}

/// A KV connector beside the scheduler, whose answers come from the [driver](crate::Engine::answer_lookups).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConnector {
    /// Whether KV comes here (vLLM's roles `kv_consumer` and `kv_both`). With several steps in flight blocks that one of
    /// them may still write are freed when it is over, since a load is not ordered after that.
    pub is_consumer: bool,
    /// Whether KV that is handed over must be that of the tokens which were delivered (`requires_kv_delivery`): of a
    /// preempted request, outputs of steps in flight are dropped.
    pub requires_delivery: bool,
    /// The fate of requests whose KV did not arrive.
    pub load_failures: LoadFailures,
    /// Settings of the connector for offloading, which then answers itself; the driver says which of its jobs are over.
    pub offloading: Option<OffloadingOptions>,
}

/// Checks that what a connector has can be found.
pub(super) fn check(input: &EngineConfigInput, errors: &mut Vec<ConfigError>) {
    let Some(connector) = &input.kv_connector else { return };
    if let Some(options) = &connector.offloading {
        options.check(errors);
    }
    let mut exclude = |other_field, reason| {
        errors.push(ConfigError::Exclusive { field: "kv_connector", other_field, reason });
    };
    if !input.kv_cache_groups.is_empty() {
        exclude("kv_cache_groups", "KV of a connector is that of one group of full attention");
    }
    if input.kv_tiers.is_some() {
        exclude("kv_tiers", "both are asked for KV beyond that of the device");
    }
}
