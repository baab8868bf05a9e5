//! Settings of live engines.

use std::sync::Arc;
use std::time::Duration;

use vcr_base::block_hash::HashAlgorithm;
use vcr_base::random::Distribution;
use vcr_core::EngineConfig;
use vcr_core::host::Overheads;
use vcr_core::sglang::SglangConfig;
use vcr_wire::{Dtype, KvEventsConfig, VllmMinor};

use crate::faults::rule::FaultRule;
use crate::kv_transfer::SharedLink;
use crate::kv_transfer::peers::KvPeer;
use crate::kv_transfer::settings::{LoadFailurePolicy, MeetingSettings, PlaneSettings};
use crate::playback::capture::PlaybackSettings;
use crate::stepping::watch::StepObserver;

pub use vcr_core::factory::{InjectorFactory, LatencyFactory, PolicyFactory, RouterFactory, TokenFactory};

/// Settings of the engines of one process, which serve one frontend.
#[derive(Clone)]
pub struct LiveConfig {
    /// The identity of the engines at the frontend.
    pub identity: Identity,
    /// Settings of the engine core.
    pub engine: EngineConfig,
    /// Settings of SGLang's scheduler, if it is used. Settings that both schedulers have are the same in `engine`.
    pub sglang: Option<SglangConfig>,
    /// The policy that ranks requests; only with [`vcr_core::Policy::Ranked`].
    pub policy: Option<PolicyFactory>,
    /// The router between the engines; `None`: the frontend chooses the engine.
    pub router: Option<RouterFactory>,
    /// The latency model of steps.
    pub latency: LatencyFactory,
    pub latency_name: String,
    /// Delays outside of steps.
    pub overheads: Overheads,
    /// Time for which a request with structured outputs waits for the compilation of its grammar; 0: it does not wait.
    pub grammar_compile_ns: u64,
    /// All durations of steps, transfers, grammars and overheads are divided by this.
    pub time_scale: f64,
    /// The source of output tokens and embeddings.
    pub tokens: TokenSettings,
    /// The capture for playback, if any.
    pub playback: Option<PlaybackSettings>,
    /// Base of every random stream.
    pub seed: u64,
    /// Statistics sent with outputs.
    pub stats: StatsSettings,
    /// Publishers of KV events, if any.
    pub kv_events: Option<KvEventSettings>,
    /// Settings of KV transfers between prefill and decode engines.
    pub transfer: TransferSettings,
    /// Faults to inject.
    pub faults: Vec<FaultRule>,
    /// A guest that injects failures.
    pub injector: Option<InjectorFactory>,
    /// Observes which engine takes each request, when the request is scheduled, and when its KV arrives.
    pub placements: Option<PlacementObserver>,
    /// Observes each step of the engines.
    pub steps: Option<Arc<dyn StepObserver>>,
    /// Limits of requests and messages.
    pub limits: Limits,
    /// Maximum wait of a shutdown for requests in progress, in nanoseconds; 0 aborts them at once, as in vLLM.
    pub shutdown_timeout_ns: u64,
}

/// An event of a request or its KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The engine of this rank has taken the request.
    Taken(u16),
    /// The request is scheduled for the first time.
    Scheduled {
        /// Time on the system's monotonic clock, in nanoseconds.
        at_ns: u64,
        /// Number of prompt tokens found in the engine's cache.
        cached_tokens: u32,
    },
    /// The request was preempted.
    Preempted,
    /// The KV of the prompt has arrived from another engine at this time on the system's monotonic clock, in
    /// nanoseconds.
    Received(u64),
}

/// Is called with a request's ID at the frontend and its placement. It must not block.
pub type PlacementObserver = Arc<dyn Fn(&str, Placement) + Send + Sync>;

/// The identity of engines at a frontend.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The frontend's handshake socket, `tcp://...` or `ipc://...`.
    pub handshake_address: String,
    /// Timeout of each wait for a frontend; `None` waits forever.
    pub connect_timeout: Option<Duration>,
    /// Rank of the first engine of this process.
    pub first_rank: u16,
    /// Number of engines in this process.
    pub num_ranks: u16,
    /// The frontend's vLLM version; `None` detects it.
    pub version: Option<VllmMinor>,
    /// The version to report; `None` reports the protocol's version.
    pub vllm_version: Option<String>,
    /// Name of this process; the rank is appended if there are several engines.
    pub instance_id: String,
    /// Data type of the weights.
    pub dtype: Dtype,
    /// Workers per engine.
    pub tensor_parallel_size: u32,
    /// Whether the frontend started this process itself.
    pub is_local: bool,
    /// True, unless the frontend balances load itself.
    pub is_headless: bool,
    /// A Python frontend of a mixture of experts compares this hash with its own.
    pub parallel_config_hash: Option<String>,
    /// Whether the model is a mixture of experts, whose engines run in waves; `None`: as the frontend's settings say.
    pub is_moe: Option<bool>,
}

impl Identity {
    /// The version to use until the frontend's is detected.
    #[must_use]
    pub fn default_version(&self) -> VllmMinor {
        self.version.unwrap_or(VllmMinor::V0_33)
    }
}

/// The source of output tokens.
#[derive(Clone)]
pub enum TokenChoice {
    /// Drawn from a seed derived from the request's content.
    Random,
    /// The prompt again, then the end-of-text token.
    Echo,
    /// Tokens from a list, by prompt or in rotation.
    Listed(Arc<crate::token_list::TokenList>),
    /// A guest chooses the tokens.
    Guest(TokenFactory),
    /// A source in this process chooses the tokens and decides when a text ends.
    Native(TokenFactory),
}

/// The source of output tokens and embeddings.
#[derive(Clone)]
pub struct TokenSettings {
    /// The source of tokens.
    pub choice: TokenChoice,
    /// Random token IDs are below this number.
    pub vocab_size: u32,
    /// Output tokens before the end-of-text token, for requests that have one; `None`: they run to their maximum
    /// length.
    pub output_tokens: Option<Distribution>,
    /// By position, the probability that a draft token is accepted if the one before it was accepted.
    pub acceptance_rates: Vec<f64>,
    /// Number of dimensions of an embedding; `None` refuses requests for pooling.
    pub embedding_dimensions: Option<u32>,
}

/// Statistics sent with outputs, by vLLM's options.
#[derive(Clone, Copy, Debug)]
pub struct StatsSettings {
    /// Whether counts and events of requests are sent; `--disable-log-stats` turns them off.
    pub log_stats: bool,
    /// Whether each step's details are sent.
    pub iteration_details: bool,
    /// Whether counts of KV transfers are sent. vLLM's Python frontend accepts them only if it has a KV connector
    /// itself.
    pub connector: bool,
    /// Whether to log one line when a request starts, when it ends, and when its KV has arrived.
    pub log_requests: bool,
}

/// Publishers of KV events.
#[derive(Clone, Debug)]
pub struct KvEventSettings {
    /// The socket addresses of rank 0.
    pub config: KvEventsConfig,
    /// The hash algorithm of blocks.
    pub algorithm: HashAlgorithm,
    /// `PYTHONHASHSEED` of the imitated engine.
    pub hash_seed: Option<String>,
    /// Whether to send whole digests instead of their last eight bytes.
    pub whole_digests: bool,
}

/// Settings of KV transfers between prefill and decode engines.
#[derive(Clone, Debug)]
pub struct TransferSettings {
    /// Name of this engine for other engines.
    pub engine_id: String,
    /// Host at which notices of decode engines arrive.
    pub side_channel_host: String,
    /// The port of rank 0; the ports of the other ranks follow.
    pub side_channel_port: u16,
    /// Hosts that requests may name as their prefill engine, in addition to this machine and `side_channel_host`.
    pub allowed_peers: Vec<KvPeer>,
    /// Base duration of a transfer.
    pub latency_ns: u64,
    /// Additional duration for each token.
    pub per_token_ns: u64,
    /// Standard deviation of a transfer's duration.
    pub std_dev_ns: u64,
    /// The link that transfers share. Its durations replace the three fields above.
    pub shared_link: Option<Arc<dyn SharedLink>>,
    /// Time for which blocks are held for a decode engine.
    pub lease_ns: u64,
    /// Data plane; `None`: no bytes are moved.
    pub plane: Option<PlaneSettings>,
    /// Time limit of a transfer to this engine.
    pub load_timeout_ns: u64,
    /// Handling of a request whose KV does not arrive.
    pub load_failure: LoadFailurePolicy,
    /// How prefill and decode engines meet if their requests come in any order; `None`: the prefill engine answers
    /// first.
    pub meetings: Option<MeetingSettings>,
}

impl TransferSettings {
    /// Settings of an engine that moves no bytes and whose transfers take no time.
    #[must_use]
    pub fn new(engine_id: impl Into<String>) -> Self {
        Self {
            engine_id: engine_id.into(),
            side_channel_host: "127.0.0.1".to_owned(),
            side_channel_port: 0,
            allowed_peers: Vec::new(),
            latency_ns: 0,
            per_token_ns: 0,
            std_dev_ns: 0,
            shared_link: None,
            lease_ns: 480_000_000_000,
            plane: None,
            load_timeout_ns: 120_000_000_000,
            load_failure: LoadFailurePolicy::default(),
            meetings: None,
        }
    }
}

/// Limits of one engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of requests. At the limit no further messages are read until some requests have ended, so
    /// that messages wait at their sender.
    pub max_requests: usize,
    /// Maximum number of prompt tokens of all requests together.
    pub max_prompt_tokens: u64,
    /// Maximum number of received but unprocessed messages on each connection; further ones wait at their sender.
    /// 0: no limit.
    pub max_waiting_messages: u32,
    /// Messages larger than this end the connection.
    pub max_frame_bytes: u64,
    /// Number of adapters that stay loaded; the least recently used is unloaded first. `None`: as many as may run
    /// at once.
    pub max_cpu_loras: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_requests: 200_000,
            max_prompt_tokens: 256 << 20,
            max_waiting_messages: 10_000,
            max_frame_bytes: 1 << 30,
            max_cpu_loras: None,
        }
    }
}
