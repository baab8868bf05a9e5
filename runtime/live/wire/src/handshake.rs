//! The messages by which an engine connects to its frontends.

use serde::{Deserialize, Serialize};

use crate::codec::derived::is_default;
use crate::codec::error::DecodeError;
use crate::codec::serde_message;
use crate::codec::value::Value;

/// The two states that an engine reports on the handshake socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EngineStatus {
    /// The engine exists and asks for the addresses to connect to.
    Hello,
    /// The engine serves.
    Ready,
}

/// A message of an engine on the handshake socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineHandshake {
    /// The status.
    pub status: EngineStatus,
    /// Whether the frontend started this engine itself.
    #[serde(default)]
    pub local: bool,
    /// Whether the engine runs without a frontend of its own.
    #[serde(default = "yes")]
    pub headless: bool,
    /// Hash of the parallel configuration, sent with READY. A Python frontend of a mixture of experts compares it
    /// with its own hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_config_hash: Option<String>,
}

/// The addresses to which an engine connects. `inputs[i]` and `outputs[i]` belong to API server `i`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Addresses {
    /// ROUTER sockets from which requests come.
    pub inputs: Vec<String>,
    /// PULL sockets that receive outputs.
    pub outputs: Vec<String>,
    /// XPUB socket of the coordinator, if there is one.
    pub coordinator_input: Option<String>,
    /// PULL socket of the coordinator.
    pub coordinator_output: Option<String>,
    /// Address at which frontends get the coordinator's counts. Engines send it back in their ready responses.
    pub frontend_stats_publish_address: Option<String>,
}

/// The frontend's answer to HELLO.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Init {
    /// The addresses to connect to.
    pub addresses: Addresses,
    /// Settings of a coordinated deployment, which engines do not need.
    #[serde(default = "Value::empty_map")]
    pub parallel_config: Value,
}

impl Default for Init {
    fn default() -> Self {
        Self { addresses: Addresses::default(), parallel_config: Value::empty_map() }
    }
}

impl Init {
    /// Number of the frontend's engines. Only a Python frontend of a mixture of experts states it.
    #[must_use]
    pub fn data_parallel_size(&self) -> Option<u64> {
        match self.parallel_config.get("data_parallel_size") {
            Some(Value::Int(size)) => size.as_u64(),
            _ => None,
        }
    }

    /// Replaces addresses in the INIT `frame`. Addresses that are not in `addresses` and everything else stay
    /// unchanged, including unknown keys.
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

/// Data type of the model's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// `float16`.
    Float16,
    /// `bfloat16`.
    #[default]
    Bfloat16,
    /// `float32`.
    Float32,
}

/// The first message of an engine on each input socket. Frontends ignore keys that they do not know, so one map
/// with all keys serves every version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadyResponse {
    /// Maximum length of a sequence, in tokens.
    pub max_model_len: u64,
    /// Number of blocks in the KV cache.
    pub num_gpu_blocks: u64,
    /// Tokens per block.
    pub block_size: u64,
    /// Address at which frontends get the coordinator's counts, from INIT.
    pub dp_stats_address: Option<String>,
    /// Data type of the weights.
    pub dtype: Dtype,
    /// vLLM version of the engine, which is only reported.
    pub vllm_version: String,
    /// Number of the engine's workers.
    pub world_size: u64,
    /// Number of engines; 1 for each of several independent engines.
    pub data_parallel_size: u64,
    /// Number of workers that share a layer.
    #[serde(default = "one")]
    pub tensor_parallel_size: u64,
    /// Number of pipeline stages.
    #[serde(default = "one")]
    pub pipeline_parallel_size: u64,
    /// Number of workers that share a sequence.
    #[serde(default = "one")]
    pub decode_context_parallel_size: u64,
    /// This engine's rank.
    #[serde(default)]
    pub data_parallel_rank: u64,
    /// Maximum number of sequences in one step.
    #[serde(default)]
    pub max_num_seqs: u64,
    /// Maximum number of tokens in one step.
    #[serde(default)]
    pub max_num_batched_tokens: u64,
    /// Name of this process.
    pub instance_id: String,
    /// Whether `max_loras` is not 0.
    #[serde(default)]
    pub supports_lora: bool,
    /// Maximum number of adapters in one step.
    #[serde(default)]
    pub max_loras: u64,
    /// Tokens per Mamba block.
    pub mamba_block_size: Option<u64>,
    /// Number of tokens that the cache can hold.
    pub kv_cache_size_tokens: Option<u64>,
    /// Number of sequences of maximum length that the cache can hold at once.
    pub kv_cache_max_concurrency: Option<f64>,
    /// The settings of the engine's KV events.
    pub kv_events_config: Option<KvEventsConfig>,
    /// The backend for replacing weights.
    pub weight_transfer_backend: Option<String>,
    /// Whether the engine supports `sleep`.
    #[serde(default)]
    pub enable_sleep_mode: bool,
    /// Whether weights of the draft model can be replaced.
    #[serde(default)]
    pub supports_draft_weight_updates: bool,
    /// Tokens per block of full attention.
    pub effective_attention_block_size: Option<u64>,
    /// For elastic expert parallelism; from 0.33.
    #[serde(default, skip_serializing_if = "is_default")]
    pub coord_store_port: u64,
    /// For elastic expert parallelism; from 0.33.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator_input_address: Option<String>,
    /// For elastic expert parallelism; from 0.33.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator_output_address: Option<String>,
}

impl Default for ReadyResponse {
    fn default() -> Self {
        Self {
            max_model_len: 0,
            num_gpu_blocks: 0,
            block_size: 0,
            dp_stats_address: None,
            dtype: Dtype::default(),
            vllm_version: String::new(),
            world_size: 1,
            data_parallel_size: 1,
            tensor_parallel_size: 1,
            pipeline_parallel_size: 1,
            decode_context_parallel_size: 1,
            data_parallel_rank: 0,
            max_num_seqs: 0,
            max_num_batched_tokens: 0,
            instance_id: String::new(),
            supports_lora: false,
            max_loras: 0,
            mamba_block_size: None,
            kv_cache_size_tokens: None,
            kv_cache_max_concurrency: None,
            kv_events_config: None,
            weight_transfer_backend: None,
            enable_sleep_mode: false,
            supports_draft_weight_updates: false,
            effective_attention_block_size: None,
            coord_store_port: 0,
            coordinator_input_address: None,
            coordinator_output_address: None,
        }
    }
}

/// The settings of an engine's KV events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvEventsConfig {
    /// Whether the engine publishes KV events.
    pub enable_kv_cache_events: bool,
    /// `zmq` or `null`.
    pub publisher: String,
    /// Address of the PUB socket, with the port of this rank.
    pub endpoint: String,
    /// Address of the ROUTER socket for requests of missed batches.
    pub replay_endpoint: Option<String>,
    /// Number of batches kept for requests of missed batches.
    pub buffer_steps: u64,
    /// Maximum number of batches that wait for a slow subscriber.
    pub hwm: u64,
    /// Maximum number of batches that wait to be sent.
    pub max_queue_size: u64,
    /// The first frame of every message.
    pub topic: String,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self {
            enable_kv_cache_events: false,
            publisher: "null".to_owned(),
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            buffer_steps: 10_000,
            hwm: 100_000,
            max_queue_size: 100_000,
            topic: String::new(),
        }
    }
}

serde_message!(EngineHandshake: "handshake", Init: "INIT", ReadyResponse: "ready response");

fn one() -> u64 {
    1
}

fn yes() -> bool {
    true
}
