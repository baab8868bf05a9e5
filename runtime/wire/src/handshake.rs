//! The messages by which an engine and its frontends find each other.

use crate::codec::error::{DecodeError, Problem};
use crate::codec::field::Wire;
use crate::codec::map_struct;
use crate::codec::read::Reader;
use crate::codec::value::Value;
use crate::codec::write;

/// The two things an engine says on the handshake socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineStatus {
    /// It is there and wants to know where to connect.
    Hello,
    /// It serves.
    Ready,
}

impl Wire for EngineStatus {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = reader.offset();
        match reader.str()? {
            "HELLO" => Ok(Self::Hello),
            "READY" => Ok(Self::Ready),
            other => Err(unknown_text("HELLO and READY", other, at)),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        write::str(out, if *self == Self::Hello { "HELLO" } else { "READY" });
    }
}

map_struct! {
    /// A message of an engine on the handshake socket.
    EngineHandshake, "handshake" {
        /// The status.
        required status: EngineStatus = EngineStatus::Hello,
        /// Whether the frontend started this engine itself.
        always local: bool = false,
        /// Whether the engine runs without a frontend beside it.
        always headless: bool = true,
        /// With READY, hash of the parallel configuration, which a Python
        /// frontend of a mixture of experts compares with its own.
        sparse parallel_config_hash: Option<String> = None,
    }
}

map_struct! {
    /// Where an engine connects. `inputs[i]` and `outputs[i]` belong to the
    /// API server `i`.
    Addresses, "INIT addresses" {
        /// ROUTER sockets that send requests.
        required inputs: Vec<String> = Vec::new(),
        /// PULL sockets that take outputs.
        required outputs: Vec<String> = Vec::new(),
        /// XPUB socket of the coordinator, if there is one.
        always coordinator_input: Option<String> = None,
        /// PULL socket of the coordinator.
        always coordinator_output: Option<String> = None,
        /// Where frontends learn the coordinator's counts; engines pass it on.
        always frontend_stats_publish_address: Option<String> = None,
    }
}

map_struct! {
    /// The frontend's answer to HELLO.
    Init, "INIT" {
        /// The addresses to connect to.
        required addresses: Addresses = Addresses::default(),
        /// Settings of a coordinated deployment; engines need none of them.
        always parallel_config: Value = Value::Map(Vec::new()),
    }
}

impl Init {
    /// Engines of the frontend, where it says so: only a Python frontend of a
    /// mixture of experts does.
    #[must_use]
    pub fn data_parallel_size(&self) -> Option<u64> {
        match self.parallel_config.get("data_parallel_size") {
            Some(Value::Int(size)) => size.as_u64(),
            _ => None,
        }
    }

    /// The INIT `frame` with other addresses. Those that `addresses` does not
    /// name and everything else stay as they are, unknown keys included.
    ///
    /// # Errors
    ///
    /// When the frame is no INIT.
    pub fn readdress(frame: &[u8], addresses: &Addresses) -> Result<Vec<u8>, DecodeError> {
        Self::decode(frame)?;
        let mut init = Value::decode(frame)?;
        let list = |texts: &[String]| Value::Array(texts.iter().map(|text| text.as_str().into()).collect());
        let one = |text: &Option<String>| text.as_deref().map(Value::from);
        let inner = init.get_mut("addresses").and_then(Value::as_map_mut);
        for (key, value) in inner.into_iter().flatten() {
            let other = match key.as_str() {
                Some("inputs") => Some(list(&addresses.inputs)),
                Some("outputs") => Some(list(&addresses.outputs)),
                Some("coordinator_input") => one(&addresses.coordinator_input),
                Some("coordinator_output") => one(&addresses.coordinator_output),
                _ => None,
            };
            if let Some(other) = other {
                *value = other;
            }
        }
        let mut out = Vec::new();
        init.encode(&mut out);
        Ok(out)
    }
}

/// The type of the model's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dtype {
    /// `float16`.
    Float16,
    /// `bfloat16`.
    #[default]
    Bfloat16,
    /// `float32`.
    Float32,
}

impl Wire for Dtype {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = reader.offset();
        match reader.str()? {
            "float16" => Ok(Self::Float16),
            "bfloat16" => Ok(Self::Bfloat16),
            "float32" => Ok(Self::Float32),
            other => Err(unknown_text("float16, bfloat16 and float32", other, at)),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let name = match self {
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
        };
        write::str(out, name);
    }
}

fn unknown_text(expected: &'static str, found: &str, at: usize) -> DecodeError {
    let found = found.chars().take(40).collect();
    DecodeError::new(Problem::UnknownText { expected, found }, at)
}

map_struct! {
    /// The first message of an engine on each input socket. Frontends ignore
    /// keys that they do not know, so one map with all keys serves every version.
    ReadyResponse, "ready response" {
        /// Longest sequence, in tokens.
        required max_model_len: u64 = 0,
        /// Blocks of the KV cache.
        required num_gpu_blocks: u64 = 0,
        /// Tokens of one block.
        required block_size: u64 = 0,
        /// Where frontends learn the coordinator's counts: INIT's stats address.
        always dp_stats_address: Option<String> = None,
        /// The type of the weights.
        required dtype: Dtype = Dtype::default(),
        /// Only reported, never compared.
        required vllm_version: String = String::new(),
        /// Workers of the engine.
        required world_size: u64 = 1,
        /// Engines; 1 in each of several independent ones.
        required data_parallel_size: u64 = 1,
        /// Workers that share a layer.
        always tensor_parallel_size: u64 = 1,
        /// Stages of the model.
        always pipeline_parallel_size: u64 = 1,
        /// Workers that share a sequence.
        always decode_context_parallel_size: u64 = 1,
        /// This engine's number.
        always data_parallel_rank: u64 = 0,
        /// Sequences in one step at most.
        always max_num_seqs: u64 = 0,
        /// Tokens in one step at most.
        always max_num_batched_tokens: u64 = 0,
        /// Any name of this process.
        required instance_id: String = String::new(),
        /// Must say the same as `max_loras`.
        always supports_lora: bool = false,
        /// Adapters in one step at most.
        always max_loras: u64 = 0,
        /// Tokens of a Mamba block.
        always mamba_block_size: Option<u64> = None,
        /// Tokens that the cache can hold.
        always kv_cache_size_tokens: Option<u64> = None,
        /// Longest sequences that the cache can hold at once.
        always kv_cache_max_concurrency: Option<f64> = None,
        /// The address of KV events.
        always kv_events_config: Option<KvEventsConfig> = None,
        /// The settings of replacing weights.
        always weight_transfer_backend: Option<String> = None,
        /// Whether `sleep` works.
        always enable_sleep_mode: bool = false,
        /// Whether weights of the draft model can be replaced.
        always supports_draft_weight_updates: bool = false,
        /// Tokens of a block of full attention.
        always effective_attention_block_size: Option<u64> = None,
        /// Elastic expert parallelism; from 0.33.
        sparse coord_store_port: u64 = 0,
        /// Elastic expert parallelism; from 0.33.
        sparse coordinator_input_address: Option<String> = None,
        /// Elastic expert parallelism; from 0.33.
        sparse coordinator_output_address: Option<String> = None,
    }
}

map_struct! {
    /// The settings of an engine's KV events.
    KvEventsConfig, "kv_events_config" {
        /// Whether it does.
        always enable_kv_cache_events: bool = false,
        /// `zmq` or `null`.
        always publisher: String = "null".to_owned(),
        /// Its PUB socket, already that of this rank.
        always endpoint: String = "tcp://*:5557".to_owned(),
        /// Its ROUTER socket for those who missed something.
        always replay_endpoint: Option<String> = None,
        /// Batches kept for them.
        always buffer_steps: u64 = 10_000,
        /// Batches that wait for a slow subscriber.
        always hwm: u64 = 100_000,
        /// Batches that wait for being sent.
        always max_queue_size: u64 = 100_000,
        /// First frame of every message.
        always topic: String = String::new(),
    }
}
