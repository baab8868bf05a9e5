//! The KV connector of a recorded scheduler.

use serde::Deserialize;
use vcr_core::{EvictionPolicy, KvConnector, LoadFailures, OffloadingOptions};

/// A KV connector.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseConnector {
    /// Its answers are those of the lines, or follow from the requests, or for offloading from what it has stored.
    kind: ConnectorKind,
    role: ConnectorRole,
    load_failures: FailurePolicy,
    /// Whether KV that is handed over must be that of the delivered tokens.
    delivery: bool,
    /// Chunks that the connector for offloading keeps.
    chunks: Option<u32>,
    /// Further settings of that connector.
    eviction_policy: Option<CasePolicy>,
    store_threshold: Option<u32>,
    max_tracker_size: Option<u32>,
    offload_prompt_only: Option<bool>,
    blocks_per_chunk: Option<u32>,
}

/// vLLM's `eviction_policy`.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CasePolicy {
    Lru,
    Arc,
}

/// The connectors that are recorded.
#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ConnectorKind {
    Scripted,
    Nixl,
    Offloading,
}

/// vLLM's `kv_role`.
#[derive(Clone, Copy, PartialEq, Deserialize)]
enum ConnectorRole {
    #[serde(rename = "kv_producer")]
    Producer,
    #[serde(rename = "kv_consumer")]
    Consumer,
    #[serde(rename = "kv_both")]
    Both,
}

/// vLLM's `kv_load_failure_policy`.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FailurePolicy {
    Recompute,
    Fail,
}

impl CaseConnector {
    fn offloading(self) -> OffloadingOptions {
        let own = OffloadingOptions::default();
        OffloadingOptions {
            chunks: self.chunks.unwrap_or(own.chunks),
            blocks_per_chunk: self.blocks_per_chunk.unwrap_or(own.blocks_per_chunk),
            eviction_policy: match self.eviction_policy {
                Some(CasePolicy::Arc) => EvictionPolicy::Arc,
                Some(CasePolicy::Lru) | None => EvictionPolicy::Lru,
            },
            store_threshold: self.store_threshold.unwrap_or(own.store_threshold),
            max_tracker_size: self.max_tracker_size.unwrap_or(own.max_tracker_size),
            offload_prompt_only: self.offload_prompt_only.unwrap_or(own.offload_prompt_only),
        }
    }
}

impl From<CaseConnector> for KvConnector {
    fn from(connector: CaseConnector) -> Self {
        Self {
            is_consumer: connector.role != ConnectorRole::Producer,
            requires_delivery: connector.delivery,
            load_failures: match connector.load_failures {
                FailurePolicy::Recompute => LoadFailures::Recompute,
                FailurePolicy::Fail => LoadFailures::Fail,
            },
            is_nixl: connector.kind == ConnectorKind::Nixl,
            offloading: (connector.kind == ConnectorKind::Offloading).then(|| connector.offloading()),
        }
    }
}
