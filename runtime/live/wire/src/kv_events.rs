//! Events of the KV cache, as engines publish them.

use serde::{Deserialize, Serialize, Serializer};

use crate::codec::error::{DecodeError, Problem};
use crate::codec::serde_message;
use crate::codec::value::Value;

/// The name of a block outside the engine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BlockHash {
    /// The last eight bytes of its digest, big-endian. vLLM's default.
    Int(u64),
    /// The digest.
    Digest(#[serde(with = "serde_bytes")] Vec<u8>),
}

impl Default for BlockHash {
    fn default() -> Self {
        Self::Int(0)
    }
}

/// Blocks became full and were cached, one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockStored {
    /// The blocks, in the order of the prompt.
    pub block_hashes: Vec<BlockHash>,
    /// The block before them; `None` at the start of a prompt.
    pub parent_block_hash: Option<BlockHash>,
    /// All tokens of these blocks.
    #[serde(default)]
    pub token_ids: Vec<u32>,
    /// Tokens of one block.
    #[serde(default)]
    pub block_size: u64,
    /// Number of the adapter; `lora_name` is authoritative.
    pub lora_id: Option<u64>,
    /// `GPU`, `CPU` or `STORAGE`.
    pub medium: Option<String>,
    /// The adapter whose blocks they are.
    pub lora_name: Option<String>,
    /// The other inputs of each block's hash, untagged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_keys: Option<Vec<Option<Vec<Value>>>>,
    /// Group of KV caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_idx: Option<u64>,
    /// `full_attention`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_spec_kind: Option<String>,
    /// Tokens of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_spec_sliding_window: Option<u64>,
    /// `LOCAL` or `REMOTE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<String>,
    /// A tier of offloading; from 0.29.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ownership: Option<String>,
    /// The session that stored them; from 0.30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Tokens behind each block that went into its hash; from 0.33.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookahead_token_ids: Option<Vec<Vec<u32>>>,
}

/// Cached blocks were taken for reuse.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockRemoved {
    /// The blocks.
    pub block_hashes: Vec<BlockHash>,
    /// `GPU`, `CPU` or `STORAGE`.
    pub medium: Option<String>,
    /// Group of KV caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_idx: Option<u64>,
    /// `LOCAL` or `REMOTE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<String>,
    /// A tier of offloading; from 0.29.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ownership: Option<String>,
}

/// A change of the cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum KvEvent {
    /// Blocks were cached.
    BlockStored(Box<BlockStored>),
    /// Blocks have been removed from the cache.
    BlockRemoved(Box<BlockRemoved>),
    /// The cache is empty.
    AllBlocksCleared,
}

/// The events of one step.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct KvEventBatch {
    /// Wall-clock seconds since 1970.
    pub ts: f64,
    /// The events, in order.
    pub events: Vec<KvEvent>,
    /// The engine's number.
    #[serde(default)]
    pub data_parallel_rank: Option<u32>,
}

serde_message!(KvEventBatch: "KV event batch");

/// An array, which ends where nothing follows.
impl Serialize for KvEventBatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.data_parallel_rank {
            Some(rank) => (self.ts, &self.events, rank).serialize(serializer),
            None => (self.ts, &self.events).serialize(serializer),
        }
    }
}

/// The frames of a published batch: topic, sequence number, batch.
#[derive(Clone, Debug, PartialEq)]
pub struct KvEventMessage {
    /// The topic for subscribers' filters.
    pub topic: String,
    /// Counts the publisher's batches, from 0.
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

/// The number in a sequence frame: eight bytes, big-endian.
pub fn decode_sequence(frame: &[u8]) -> Result<u64, DecodeError> {
    let bytes = frame.try_into().map_err(|_| {
        let problem = Problem::OutOfRange { expected: "a frame of 8 bytes", found: frame.len() as i128 };
        DecodeError::new(problem, 0).of("sequence number")
    })?;
    Ok(u64::from_be_bytes(bytes))
}
