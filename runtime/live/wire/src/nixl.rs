//! The metadata exchange of vLLM's NIXL connector.
//!
//! Before a decode engine reads KV, it asks the prefill engine's side channel, a ROUTER socket, for the metadata of
//! each worker with a [`NixlQuery`]. The answer has two frames. The first is a [`NixlHandshake`]: a hash of all
//! settings that must be equal on both sides, and the encoded [`NixlAgentMetadata`]. The second is the answering
//! engine's monotonic clock in seconds.
//!
//! Sources: `nixl/{metadata,base_scheduler,base_worker}.py` in `vllm/distributed/kv_transfer/kv_connector/v1`, of
//! each release.

use serde::{Deserialize, Serialize};
use serde_bytes::{ByteBuf, Bytes};
use sha2::{Digest, Sha256};

use crate::codec::derived::{self, is_default};
use crate::codec::error::{DecodeError, Problem};
use crate::codec::read::whole;
use crate::codec::serde_message;
use crate::versions::ProtocolRules;

const GET_METADATA: &[u8] = b"get_meta_msg";

/// Bytes that only their sender understands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob(#[serde(with = "serde_bytes")] pub Vec<u8>);

/// A query for the metadata of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NixlQuery {
    /// The worker's pipeline-parallel rank.
    pub pp_rank: u32,
    /// The worker's tensor-parallel rank.
    pub tp_rank: u32,
}

impl NixlQuery {
    /// Decodes a query.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        whole("NIXL query", frame, |reader| {
            let at = reader.offset();
            let (name, pp_rank, tp_rank): (ByteBuf, u32, u32) = derived::read(reader)?;
            match &name[..] {
                GET_METADATA => Ok(Self { pp_rank, tp_rank }),
                _ => Err(DecodeError::new(Problem::Invalid("another question than `get_meta_msg`".to_owned()), at)),
            }
        })
    }

    /// Appends the encoded query.
    pub fn encode(&self, out: &mut Vec<u8>) {
        derived::write(&(Bytes::new(GET_METADATA), self.pp_rank, self.tp_rank), out);
    }
}

/// The first frame of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NixlHandshake {
    /// Value of [`NixlCompatibility::hash`] on the answering side.
    pub compatibility_hash: String,
    /// An encoded [`NixlAgentMetadata`], which is usable only if both sides have the same hash.
    pub agent_metadata_bytes: Blob,
}

/// The KV cache of one worker, as NIXL can read it.
///
/// The cache has a region for each layer, and each region consists of blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NixlAgentMetadata {
    /// The engine's ID.
    pub engine_id: String,
    /// NIXL's own description of the worker's agent.
    pub agent_metadata: Blob,
    /// Address of the first block of each region.
    pub kv_caches_base_addr: Vec<u64>,
    /// The worker's device.
    pub device_id: u32,
    /// Number of blocks in a region.
    pub num_blocks: u64,
    /// Bytes per block, by region.
    pub block_lens: Vec<u64>,
    /// Bytes from the start of one block to the next, by region. Absent before 0.29, where blocks are contiguous.
    #[serde(default)]
    pub block_strides: Vec<u64>,
    /// Order of the dimensions of a region, such as `LBHNC`.
    pub kv_cache_layout: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Bytes per state of a state-space model.
    pub ssm_sizes: Vec<u64>,
    /// The attention backend, such as `FLASH_ATTN`.
    pub attn_backend_name: String,
    /// Number of the kernel's blocks in a block of the scheduler.
    pub physical_blocks_per_logical_kv_block: u32,
    /// Number of blocks by region, if it differs between regions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region_num_blocks: Option<Vec<u64>>,
    /// KV-cache group by region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region_group_ids: Option<Vec<i64>>,
    /// Layer by region. Both sides must have the same layers in the same order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region_names: Option<Vec<String>>,
    /// `DRAM` or `VRAM`, by region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region_mem_types: Option<Vec<String>>,
    /// Number of decode-context-parallel workers.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub dcp_size: u32,
    /// Number of prefill-context-parallel workers.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub pcp_size: u32,
    /// Number of tensor-parallel workers, sent only by vcr; 0 if unknown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub vcr_ranks: u32,
    /// Generation of the engine, which distinguishes its starts; sent only by vcr.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcr_generation: Option<u64>,
}

impl Default for NixlAgentMetadata {
    fn default() -> Self {
        Self {
            engine_id: String::new(),
            agent_metadata: Blob::default(),
            kv_caches_base_addr: Vec::default(),
            device_id: 0,
            num_blocks: 0,
            block_lens: Vec::default(),
            block_strides: Vec::default(),
            kv_cache_layout: String::new(),
            block_size: 0,
            ssm_sizes: vec![0, 0],
            attn_backend_name: String::new(),
            physical_blocks_per_logical_kv_block: 1,
            region_num_blocks: None,
            region_group_ids: None,
            region_names: None,
            region_mem_types: None,
            dcp_size: 1,
            pcp_size: 1,
            vcr_ranks: 0,
            vcr_generation: None,
        }
    }
}

serde_message!(NixlHandshake: "NIXL handshake", NixlAgentMetadata: "NIXL agent metadata");

fn one() -> u32 {
    1
}

fn is_one(workers: &u32) -> bool {
    *workers == 1
}

/// Settings that must be equal in two engines that exchange KV through NIXL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NixlCompatibility {
    /// vLLM's full version, such as `0.33.0` or `0.32.0+cpu`.
    pub vllm_version: String,
    /// The model's name on the command line.
    pub model: String,
    /// Data type of the weights, such as `bfloat16`.
    pub dtype: String,
    /// Number of KV heads of the model, in all workers together.
    pub num_kv_heads: u32,
    /// Number of elements per head.
    pub head_size: u32,
    /// Number of layers of the model.
    pub num_hidden_layers: u32,
    /// The attention backend, such as `FLASH_ATTN`.
    pub attn_backend_name: String,
    /// Data type of the cache as configured; `auto` if it is not configured.
    pub cache_dtype: String,
    /// Whether the hybrid KV cache manager is on, which is the default.
    pub is_hma_enabled: bool,
    /// The side that moves the blocks: `pull` or `push`.
    pub transfer_mode: String,
}

impl NixlCompatibility {
    /// The compatibility hash: the SHA-256, in hexadecimal, of JSON with sorted keys. Assumes that speculative
    /// decoding and blocks across layers are off.
    #[must_use]
    pub fn hash(&self, rules: &ProtocolRules) -> String {
        let has = |key: &str| rules.nixl_hash_keys.iter().any(|other| other == key);
        let text = |text: &str| python_string(text);
        let mut pairs = vec![
            ("attn_backend_name", text(&self.attn_backend_name)),
            ("cache_dtype", text(&self.cache_dtype)),
            ("cross_layers_blocks", "false".to_owned()),
            ("dtype", text(&format!("torch.{}", self.dtype))),
            ("head_size", self.head_size.to_string()),
            ("is_hma_enabled", self.is_hma_enabled.to_string()),
            ("model", text(&self.model)),
            ("nixl_connector_version", rules.nixl_connector_version.to_string()),
            ("num_hidden_layers", self.num_hidden_layers.to_string()),
            ("num_kv_heads", self.num_kv_heads.to_string()),
            ("speculative_config", "null".to_owned()),
            ("transfer_mode", text(&self.transfer_mode)),
            ("vllm_version", text(&self.vllm_version)),
        ];
        let is_optional = |key: &str| matches!(key, "cross_layers_blocks" | "speculative_config" | "transfer_mode");
        pairs.retain(|(key, _)| !is_optional(key) || has(key));
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        hex::encode(Sha256::digest(format!("{{{}}}", pairs.join(", "))))
    }
}

/// Encodes a text like Python's `json.dumps`.
fn python_string(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(character),
            _ => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out.push('"');
    out
}

/// Encodes the second frame of an answer: the monotonic clock in seconds.
#[cfg(feature = "sockets")]
pub(crate) fn encode_clock(monotonic_ns: u64) -> Vec<u8> {
    let mut out = Vec::new();
    derived::write(&(monotonic_ns as f64 / 1e9), &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Protocol, VllmMinor};

    /// `compute_nixl_compatibility_hash` of each release has computed these hashes.
    #[test]
    fn hashes_are_those_of_each_release() {
        for (version, release, hash) in [
            (VllmMinor::V0_27, "0.27.1", "89f67909dffb39ecc198e819c2ddd6b65fa74ac84ebc944675b6f6870d27a714"),
            (VllmMinor::V0_28, "0.28.0", "8771a9265d292188d0c60b245cdba31666262523970a9bff50376ad92dcccf27"),
            (VllmMinor::V0_29, "0.29.0", "6e8b4c6ea426a35a5b4fbe52d2f2e9edb9a46382f3362896e822d9010a0d5fa5"),
            (VllmMinor::V0_30, "0.30.0", "6d6a26f64342a8ed15ca80a10eeb90865f256ebde89d6d8a17205dcbf5765a41"),
            (VllmMinor::V0_31, "0.31.0", "6ebaa6abdf6b47e6584f2bb198c53d64f97efa28c507c960863c806b856d15bf"),
            (VllmMinor::V0_32, "0.32.0", "231e356d1763c22b96b050c8e05b38ad311b67acac2a32d368f54ef0e0bea14a"),
            (VllmMinor::V0_33, "0.33.0", "414699cf057e2cb4f360e3da994a186c165736184c90e87565596caaa5575b62"),
        ] {
            let factors = NixlCompatibility {
                vllm_version: release.to_owned(),
                model: "meta-llama/Llama-3.1-8B".to_owned(),
                dtype: "bfloat16".to_owned(),
                num_kv_heads: 8,
                head_size: 128,
                num_hidden_layers: 32,
                attn_backend_name: "FLASH_ATTN".to_owned(),
                cache_dtype: "auto".to_owned(),
                is_hma_enabled: true,
                transfer_mode: "pull".to_owned(),
            };
            assert_eq!(factors.hash(version.rules()), hash, "{release}");
        }
    }

    #[test]
    fn texts_are_escaped_as_python_does() {
        assert_eq!(python_string("a\"\\\u{1}é\u{1f600}\u{7f}/"), r#""a\"\\\u0001\u00e9\ud83d\ude00\u007f/""#);
    }

    #[test]
    fn a_query_is_that_of_msgspec() {
        let mut out = Vec::new();
        NixlQuery { pp_rank: 0, tp_rank: 1 }.encode(&mut out);
        assert_eq!(out, b"\x93\xc4\x0cget_meta_msg\x00\x01");
        assert_eq!(NixlQuery::decode(&out), Ok(NixlQuery { pp_rank: 0, tp_rank: 1 }));
        for other in [&b"\x93\xc4\x0cget_meta_msX\x00\x01"[..], b"\x92\xc4\x0cget_meta_msg\x00", b"cmpl-1", b""] {
            assert!(NixlQuery::decode(other).is_err(), "{other:?}");
        }
    }
}
