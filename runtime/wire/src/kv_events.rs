//! Events of the KV cache, as engines publish them.

use crate::codec::error::{DecodeError, Problem, Step};
use crate::codec::field::Wire;
use crate::codec::read::{Reader, whole};
use crate::codec::value::Value;
use crate::codec::{Elements, array_struct, map_struct, write};

/// The name of a block outside the engine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockHash {
    /// The last eight bytes of its digest, big-endian. vLLM's default.
    Int(u64),
    /// The digest.
    Digest(Vec<u8>),
}

impl Default for BlockHash {
    fn default() -> Self {
        Self::Int(0)
    }
}

impl Wire for BlockHash {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        use rmp::Marker;
        match reader.peek() {
            Some(Marker::Bin8 | Marker::Bin16 | Marker::Bin32) => Ok(Self::Digest(reader.bin()?.to_vec())),
            _ => u64::read(reader).map(Self::Int),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Int(hash) => hash.write(out),
            Self::Digest(digest) => write::bin(out, digest),
        }
    }
}

/// The tag by which an event says what it is; written first.
macro_rules! tag {
    ($name:ident, $text:literal) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[doc = concat!("The tag `", $text, "`.")]
        pub struct $name;

        impl Wire for $name {
            fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                // Checked when the event's kind was looked for.
                reader.str().map(|_| Self)
            }

            fn write(&self, out: &mut Vec<u8>) {
                write::str(out, $text);
            }
        }
    };
}

tag!(StoredTag, "BlockStored");
tag!(RemovedTag, "BlockRemoved");

map_struct! {
    /// Blocks became full and were cached, one behind the other.
    BlockStored, "BlockStored" {
        /// The kind of the event.
        always tag as "type": StoredTag = StoredTag,
        /// The blocks, in the order of the prompt.
        required block_hashes: Vec<BlockHash> = Vec::new(),
        /// The block before them; `None` at the start of a prompt.
        always parent_block_hash: Option<BlockHash> = None,
        /// All tokens of these blocks.
        always token_ids: Vec<u32> = Vec::new(),
        /// Tokens of one block.
        always block_size: u64 = 0,
        /// Number of the adapter; `lora_name` is what counts.
        always lora_id: Option<u64> = None,
        /// `GPU`, `CPU` or `STORAGE`.
        always medium: Option<String> = None,
        /// The adapter whose blocks they are.
        always lora_name: Option<String> = None,
        /// The other inputs of each block's hash, untagged.
        sparse extra_keys: Option<Vec<Option<Vec<Value>>>> = None,
        /// Group of KV caches.
        sparse group_idx: Option<u64> = None,
        /// `full_attention`, ...
        sparse kv_cache_spec_kind: Option<String> = None,
        /// Tokens of the window.
        sparse kv_cache_spec_sliding_window: Option<u64> = None,
        /// `LOCAL` or `REMOTE`.
        sparse locality: Option<String> = None,
        /// A tier of offloading; from 0.29.
        sparse ownership: Option<String> = None,
        /// The session that stored them; from 0.30.
        sparse session_id: Option<String> = None,
        /// Tokens behind each block that went into its hash; from 0.33.
        sparse lookahead_token_ids: Option<Vec<Vec<u32>>> = None,
    }
}

map_struct! {
    /// Cached blocks were taken for reuse.
    BlockRemoved, "BlockRemoved" {
        /// The kind of the event.
        always tag as "type": RemovedTag = RemovedTag,
        /// The blocks.
        required block_hashes: Vec<BlockHash> = Vec::new(),
        /// `GPU`, `CPU` or `STORAGE`.
        always medium: Option<String> = None,
        /// Group of KV caches.
        sparse group_idx: Option<u64> = None,
        /// `LOCAL` or `REMOTE`.
        sparse locality: Option<String> = None,
        /// A tier of offloading; from 0.29.
        sparse ownership: Option<String> = None,
    }
}

/// A change of the cache.
#[derive(Clone, Debug, PartialEq)]
pub enum KvEvent {
    /// Blocks were cached.
    BlockStored(Box<BlockStored>),
    /// Cached blocks are gone.
    BlockRemoved(Box<BlockRemoved>),
    /// The cache is empty.
    AllBlocksCleared,
}

impl Wire for KvEvent {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (at, kind) = (reader.offset(), tag_of(reader)?);
        match kind {
            "BlockStored" => BlockStored::read(reader).map(|event| Self::BlockStored(Box::new(event))),
            "BlockRemoved" => BlockRemoved::read(reader).map(|event| Self::BlockRemoved(Box::new(event))),
            "AllBlocksCleared" => reader.skip().map(|()| Self::AllBlocksCleared),
            other => {
                let found = other.chars().take(40).collect();
                let expected = "BlockStored, BlockRemoved and AllBlocksCleared";
                Err(DecodeError::new(Problem::UnknownText { expected, found }, at).within(Step::Key("type")))
            }
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::BlockStored(event) => event.write(out),
            Self::BlockRemoved(event) => event.write(out),
            Self::AllBlocksCleared => {
                write::map(out, 1);
                write::str(out, "type");
                write::str(out, "AllBlocksCleared");
            }
        }
    }
}

/// The `type` of the map that follows, wherever it stands in it.
fn tag_of<'a>(reader: &Reader<'a>) -> Result<&'a str, DecodeError> {
    let mut ahead = reader.clone();
    for _ in 0..ahead.map()? {
        if ahead.key()? == Some("type") {
            return ahead.str().map_err(|error| error.within(Step::Key("type")));
        }
        ahead.skip()?;
    }
    Err(reader.error(Problem::Missing).within(Step::Key("type")))
}

array_struct! {
    /// The events of one step.
    KvEventBatch, 2 required {
        /// Wall-clock seconds since 1970.
        ts: f64 = 0.0,
        /// The events, in order.
        events: Vec<KvEvent> = Vec::new(),
        /// The engine's number.
        data_parallel_rank: Option<u32> = None,
    }
}

impl KvEventBatch {
    /// Decodes the payload of an event message.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        whole("KV event batch", payload, Self::read_elements)
    }

    /// Appends the batch to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.write_elements(out, self.shortest(usize::MAX));
    }
}

/// The frames of a published batch: topic, sequence number, batch.
#[derive(Clone, Debug, PartialEq)]
pub struct KvEventMessage {
    /// The topic, by which subscribers filter.
    pub topic: String,
    /// Counts the publisher's batches, from 0.
    pub sequence: u64,
    /// The batch.
    pub batch: KvEventBatch,
}

impl KvEventMessage {
    /// Decodes the frames of one message.
    ///
    /// # Errors
    ///
    /// When this is not a published batch.
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
///
/// # Errors
///
/// When the frame has another length.
pub fn decode_sequence(frame: &[u8]) -> Result<u64, DecodeError> {
    let bytes = frame.try_into().map_err(|_| {
        let problem = Problem::OutOfRange { expected: "a frame of 8 bytes", found: frame.len() as i128 };
        DecodeError::new(problem, 0).of("sequence number")
    })?;
    Ok(u64::from_be_bytes(bytes))
}
