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

/// Engines of one process behind one frontend.
#[derive(Clone)]
pub struct LiveConfig {
    /// Their identity towards the frontend.
    pub identity: Identity,
    /// Settings of the engine core.
    pub engine: EngineConfig,
    /// Settings of SGLang's scheduler, if it decides. What both have is the same in `engine`.
    pub sglang: Option<SglangConfig>,
    /// The policy that ranks requests; with [`vcr_core::Policy::Ranked`] only.
    pub policy: Option<PolicyFactory>,
    /// The router between them; `None` leaves the choice to the frontend.
    pub router: Option<RouterFactory>,
    /// The latency model of steps.
    pub latency: LatencyFactory,
    pub latency_name: String,
    /// Time outside of steps.
    pub overheads: Overheads,
    /// How long the grammar of a request with structured outputs is compiled; at 0 none waits for it.
    pub grammar_compile_ns: u64,
    /// All durations of steps, transfers, grammars and overheads are divided by this.
    pub time_scale: f64,
    /// The tokens of answers.
    pub tokens: TokenSettings,
    /// The capture for playback, if any.
    pub playback: Option<PlaybackSettings>,
    /// Base of every random stream.
    pub seed: u64,
    /// Statistics sent with outputs.
    pub stats: StatsSettings,
    /// Publishers of KV events, if any.
    pub kv_events: Option<KvEventSettings>,
    /// How KV moves between prefill and decode engines.
    pub transfer: TransferSettings,
    /// Faults to inject.
    pub faults: Vec<FaultRule>,
    /// A guest that injects failures.
    pub injector: Option<InjectorFactory>,
    /// Hears which engine has taken which request, when it is scheduled, and when its KV has
    /// arrived.
    pub placements: Option<PlacementObserver>,
    /// Sees their steps.
    pub steps: Option<Arc<dyn StepObserver>>,
    /// Limits of requests and messages.
    pub limits: Limits,
    /// How long a shutdown waits for requests in progress, in nanoseconds; 0 aborts them at once,
    /// as in vLLM.
    pub shutdown_timeout_ns: u64,
}

/// Where a request is, or its KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The engine of this rank has taken it.
    Taken(u16),
    /// It is scheduled for the first time.
    Scheduled {
        /// When, on the system's monotonic clock, in nanoseconds.
        at_ns: u64,
        /// How many tokens of its prompt were in the engine's cache.
        cached_tokens: u32,
    },
    /// It was preempted.
    Preempted,
    /// The KV of its prompt has arrived from another engine, at this time on the system's monotonic
    /// clock, in nanoseconds.
    Received(u64),
}

/// Hears the name of a request, as its frontend knows it, and where it is. It must not wait.
pub type PlacementObserver = Arc<dyn Fn(&str, Placement) + Send + Sync>;

/// How engines present themselves to a frontend.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The frontend's handshake socket, `tcp://...` or `ipc://...`.
    pub handshake_address: String,
    /// Timeout of each wait for a frontend; `None` waits forever.
    pub connect_timeout: Option<Duration>,
    /// Number of the first engine of this process.
    pub first_rank: u16,
    /// Engines of this process.
    pub num_ranks: u16,
    /// The frontend's vLLM version; `None` detects it.
    pub version: Option<VllmMinor>,
    /// The version to report; `None` reports the protocol's version.
    pub vllm_version: Option<String>,
    /// Any name of this process; the rank is appended where there are several.
    pub instance_id: String,
    /// The type of the weights.
    pub dtype: Dtype,
    /// Workers of each engine.
    pub tensor_parallel_size: u32,
    /// Whether the frontend started this process itself.
    pub is_local: bool,
    /// True, unless the frontend balances load itself.
    pub is_headless: bool,
    /// Compared by a Python frontend of a mixture of experts with its own.
    pub parallel_config_hash: Option<String>,
    /// Whether the model is a mixture of experts, whose engines run in waves;
    /// `None` goes by the frontend's settings.
    pub is_moe: Option<bool>,
}

impl Identity {
    /// The version to use until the frontend's is detected.
    #[must_use]
    pub fn default_version(&self) -> VllmMinor {
        self.version.unwrap_or(VllmMinor::V0_33)
    }
}

/// The source of tokens.
#[derive(Clone)]
pub enum TokenChoice {
    /// Drawn from a seed derived from the request's content.
    Random,
    /// The prompt again, then the end of the text.
    Echo,
    /// Tokens from a list, by prompt or in rotation.
    Listed(Arc<crate::token_list::TokenList>),
    /// A guest chooses them.
    Guest(TokenFactory),
    /// A source of this process chooses them, which knows when a text ends.
    Native(TokenFactory),
}

/// The tokens of answers.
#[derive(Clone)]
pub struct TokenSettings {
    /// The source of tokens.
    pub choice: TokenChoice,
    /// Drawn tokens are below this.
    pub vocab_size: u32,
    /// Output tokens before the end of the text, for requests with an end-of-text token; `None`:
    /// they continue to their length.
    pub output_tokens: Option<Distribution>,
    /// Probability that a draft is accepted if the one before it was, by place.
    pub acceptance_rates: Vec<f64>,
    /// Numbers in an embedding; `None` refuses requests for pooling.
    pub embedding_dimensions: Option<u32>,
}

/// Statistics sent with outputs, by vLLM's options.
#[derive(Clone, Copy, Debug)]
pub struct StatsSettings {
    /// Whether counts and events of requests are sent (`--disable-log-stats`
    /// sends none).
    pub log_stats: bool,
    /// Whether each step's details are sent.
    pub iteration_details: bool,
    /// Whether the counts of KV transfers are sent. vLLM's Python frontend takes them only if it has a KV connector
    /// itself.
    pub connector: bool,
    /// One log line at the start and end of each request, and when its KV has arrived.
    pub log_requests: bool,
}

/// Publishers of KV events.
#[derive(Clone, Debug)]
pub struct KvEventSettings {
    /// The sockets, as of rank 0.
    pub config: KvEventsConfig,
    /// How blocks are hashed.
    pub algorithm: HashAlgorithm,
    /// `PYTHONHASHSEED` of the engine that is imitated.
    pub hash_seed: Option<String>,
    /// Send whole digests instead of their last eight bytes.
    pub whole_digests: bool,
}

/// How KV moves between prefill and decode engines.
#[derive(Clone, Debug)]
pub struct TransferSettings {
    /// Name of this engine for other engines.
    pub engine_id: String,
    /// Where notices of decode engines arrive.
    pub side_channel_host: String,
    /// The port of rank 0; the ports of the other ranks follow.
    pub side_channel_port: u16,
    /// Hosts that requests may name as their prefill engine, in addition to this machine and
    /// `side_channel_host`.
    pub allowed_peers: Vec<KvPeer>,
    /// Duration of every transfer.
    pub latency_ns: u64,
    /// Duration that each token adds.
    pub per_token_ns: u64,
    /// Standard deviation of the sum.
    pub std_dev_ns: u64,
    /// The link that transfers share. Its durations replace these.
    pub shared_link: Option<Arc<dyn SharedLink>>,
    /// How long blocks are held for a decode engine.
    pub lease_ns: u64,
    /// Data plane; `None` moves nothing.
    pub plane: Option<PlaneSettings>,
    /// Time limit of a transfer to this engine.
    pub load_timeout_ns: u64,
    /// The fate of a request whose KV does not arrive.
    pub load_failure: LoadFailurePolicy,
    /// How engines meet whose requests come in any order; `None`: the prefill engine's answer comes first.
    pub meetings: Option<MeetingSettings>,
}

impl TransferSettings {
    /// Settings of an engine that moves nothing, and whose transfers take no time.
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
    /// Requests known at once; at more, no further messages are read until
    /// some have ended, so that they wait at their sender.
    pub max_requests: usize,
    /// Prompt tokens of these requests.
    pub max_prompt_tokens: u64,
    /// Received and unprocessed messages on each connection; further ones wait at their sender. 0
    /// means no limit.
    pub max_waiting_messages: u32,
    /// Messages larger than this end the connection.
    pub max_frame_bytes: u64,
    /// Adapters that stay loaded, the least recently used making room; `None`: as
    /// many as may run at once.
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
