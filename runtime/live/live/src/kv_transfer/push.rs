//! A decode engine's registration of the blocks that a prefill engine is to write.
//!
//! It follows `PUSH_REG:` in a notice. vLLM's push connector encodes its registration in msgpack; this one is JSON
//! and is used only between vcr engines.

use serde::{Deserialize, Serialize};
use vcr_transfer::Peer;

/// The blocks of a decode engine to which a prompt's KV is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PushRegistration {
    /// The prefill engine's ID of the prompt.
    pub(crate) request: String,
    /// The decode engine's ID of the transfer.
    pub(crate) transfer: String,
    pub(crate) engine_id: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) generation: u64,
    pub(crate) groups: Vec<PushGroup>,
}

/// The wanted blocks of one KV-cache group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PushGroup {
    /// Index of the first block in the prompt.
    pub(crate) first_block: usize,
    pub(crate) blocks: Vec<u32>,
}

impl PushRegistration {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    pub(crate) fn peer(&self) -> Peer {
        Peer {
            host: self.host.clone(),
            port: self.port,
            engine_id: self.engine_id.clone(),
            generation: Some(self.generation),
        }
    }
}
