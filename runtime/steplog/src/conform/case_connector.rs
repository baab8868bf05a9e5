//! The KV connector of a recorded scheduler.

use serde::Deserialize;
use vcr_core::{KvConnector, LoadFailures};

/// A KV connector.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseConnector {
    /// Its answers are those of the lines, or follow from the requests.
    #[expect(dead_code, reason = "known kinds alone are read")]
    kind: ConnectorKind,
    role: ConnectorRole,
    load_failures: FailurePolicy,
    /// Whether KV that is handed over must be that of the delivered tokens.
    delivery: bool,
    /// Chunks that the connector for offloading keeps.
    #[expect(dead_code, reason = "its answers are in the lines")]
    chunks: Option<u32>,
}

/// The connectors that are recorded.
#[derive(Clone, Copy, Deserialize)]
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

impl From<CaseConnector> for KvConnector {
    fn from(connector: CaseConnector) -> Self {
        Self {
            is_consumer: connector.role != ConnectorRole::Producer,
            requires_delivery: connector.delivery,
            load_failures: match connector.load_failures {
                FailurePolicy::Recompute => LoadFailures::Recompute,
                FailurePolicy::Fail => LoadFailures::Fail,
            },
        }
    }
}
