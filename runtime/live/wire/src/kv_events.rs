//! Events of the KV cache, as engines publish them.

use serde::{Deserialize, Serialize, Serializer};

use crate::codec::error::{DecodeError, Problem};
use crate::codec::serde_message;
use crate::codec::value::Value;

/// The hash that names a block outside of the engine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BlockHash {
    /// The last eight bytes of the digest, big-endian. vLLM's default.
    Int(u64),
    /// The whole digest.
    Digest(#[serde(with = "serde_bytes")] Vec<u8>),
}

impl Default for BlockHash {
    fn default() -> Self {
        Self::Int(0)
    }
}

/// Consecutive blocks became full and were cached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockStored {
    /// The blocks, in the order of the prompt.
    pub block_hashes: Vec<BlockHash>,
    /// Hash of the block before these; `None` at the start of a prompt.
    pub parent_block_hash: Option<BlockHash>,
    /// The tokens of all these blocks.
    #[serde(default)]
    pub token_ids: Vec<u32>,
    /// Tokens per block.
    #[serde(default)]
    pub block_size: u64,
    /// Number of the adapter; `lora_name` is authoritative.
    pub lora_id: Option<u64>,
    /// `GPU`, `CPU` or `STORAGE`.
    pub medium: Option<String>,
    /// Name of the adapter with which the blocks were computed.
    pub lora_name: Option<String>,
    /// Other inputs of each block's hash, untagged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_keys: Option<Vec<Option<Vec<Value>>>>,
    /// Index of the KV-cache group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_idx: Option<u64>,
    /// Kind of the group's layers, such as `full_attention`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_spec_kind: Option<String>,
    /// Tokens per sliding window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_spec_sliding_window: Option<u64>,
    /// `LOCAL` or `REMOTE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<String>,
    /// Tier of an offloading connector; from 0.29.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ownership: Option<String>,
    /// The session that stored the blocks; from 0.30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Tokens after each block that its hash covers; from 0.33.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookahead_token_ids: Option<Vec<Vec<u32>>>,
}

/// Blocks were removed from the cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockRemoved {
    /// The blocks.
    pub block_hashes: Vec<BlockHash>,
    /// `GPU`, `CPU` or `STORAGE`.
    pub medium: Option<String>,
    /// Index of the KV-cache group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_idx: Option<u64>,
    /// `LOCAL` or `REMOTE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<String>,
    /// Tier of an offloading connector; from 0.29.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ownership: Option<String>,
}

/// A change of the cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum KvEvent {
    /// Blocks were cached.
    BlockStored(Box<BlockStored>),
    /// Blocks were removed from the cache.
    BlockRemoved(Box<BlockRemoved>),
    /// All blocks were removed from the cache.
    AllBlocksCleared,
}

/// The events of one step.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct KvEventBatch {
    /// Wall-clock seconds since 1970.
    pub ts: f64,
    /// The events, in order.
    pub events: Vec<KvEvent>,
    /// The engine's rank.
    #[serde(default)]
    pub data_parallel_rank: Option<u32>,
}

serde_message!(KvEventBatch: "KV event batch");

/// Serialized as an array, which omits an absent rank.
impl Serialize for KvEventBatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.data_parallel_rank {
            Some(rank) => (self.ts, &self.events, rank).serialize(serializer),
            None => (self.ts, &self.events).serialize(serializer),
        }
    }
}

/// The frames of a published batch: topic, sequence number and batch.
#[derive(Clone, Debug, PartialEq)]
pub struct KvEventMessage {
    /// The topic, by which subscribers filter.
    pub topic: String,
    /// Sequence number of the batch, from 0.
    pub sequence: u64,
    /// The batch.
    pub batch: KvEventBatch,
}

impl KvEventMessage {
    /// Decodes the frames of one message.
    pub fn decode(frames: &[impl AsRef<[u8]>]) -> Result<Self, DecodeError> {
        let [topic, sequence, payload] = frames else {
            let problem = Problem::Frames { expected: "a topic, a sequence number and a batch", found: frames.len() };
            return Err(DecodeError::new(problem, 0).of("KV event message"));
        };
        let topic = std::str::from_utf8(topic.as_ref())
            .map_err(|_| DecodeError::new(Problem::NotUtf8, 0).of("topic of a KV event message"))?;
        let sequence = decode_sequence(sequence.as_ref())?;
        let batch = KvEventBatch::decode(payload.as_ref())?;
        Ok(Self { topic: topic.to_owned(), sequence, batch })
    }
}

/// Decodes a sequence number: eight bytes, big-endian.
pub fn decode_sequence(frame: &[u8]) -> Result<u64, DecodeError> {
    let bytes = frame.try_into().map_err(|_| {
        let problem = Problem::OutOfRange { expected: "a frame of 8 bytes", found: frame.len() as i128 };
        DecodeError::new(problem, 0).of("sequence number")
    })?;
    Ok(u64::from_be_bytes(bytes))
}
