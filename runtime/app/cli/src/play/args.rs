use std::time::Duration;

use clap::{Args, ValueEnum};
use vcr_base::units;
use vcr_live::FaultRule;

use super::control::ControlArgs;
use super::engine::EngineArgs;
use super::guests::GuestArgs;
use super::playback::PlaybackArgs;
use super::timing::TimingArgs;
use super::transfer::TransferArgs;
use crate::guest::config::guest_config;

/// Options of `vcr play`, by topic.
#[derive(Debug, Args)]
pub(crate) struct PlayArgs {
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
}

/// Options of live engines, behind whatever frontend.
#[derive(Debug, Args)]
pub(crate) struct LiveArgs {
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) routing: RoutingArgs,
    #[command(flatten)]
    pub(crate) timing: TimingArgs,
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
    #[command(flatten)]
    pub(crate) playback: PlaybackArgs,
    #[command(flatten)]
    pub(crate) events: EventArgs,
    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
    #[command(flatten)]
    pub(crate) faults: FaultArgs,
    #[command(flatten)]
    pub(crate) guests: GuestArgs,
    #[command(flatten)]
    pub(crate) control: ControlArgs,
    #[cfg(feature = "serve")]
    #[command(flatten)]
    pub(crate) page: crate::page::PageArgs,
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
}

fn bytes(text: &str) -> Result<u64, units::UnitError> {
    units::bytes(text)
}

/// Parses a duration, or a number of seconds as in vLLM.
fn seconds(text: &str) -> Result<u64, units::UnitError> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { units::duration_ns(&format!("{text}s")) } else { units::duration_ns(text) }
}

fn vllm_minor(text: &str) -> Result<VersionArg, String> {
    if text == "auto" {
        return Ok(VersionArg(None));
    }
    text.parse()
        .map(|version| VersionArg(Some(version)))
        .map_err(|error: vcr_wire::UnknownVersion| format!("{error}, or `auto`"))
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct VersionArg(pub(crate) Option<vcr_wire::VllmMinor>);

/// Data type of the weights.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DtypeArg {
    /// The model's with --kv-transfer, otherwise bfloat16.
    Auto,
    #[value(alias = "half")]
    Float16,
    Bfloat16,
    #[value(alias = "float")]
    Float32,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Frontend")]
pub(crate) struct LinkArgs {
    /// Frontend's handshake address (its --data-parallel-address and -rpc-port).
    #[arg(long, value_name = "ADDRESS", default_value = "tcp://127.0.0.1:29550", env = "VCR_HANDSHAKE_ADDRESS")]
    pub(crate) handshake_address: String,

    /// Exit with an error if the frontend has not answered after this time [default: wait without limit].
    #[arg(long, value_name = "DURATION", value_parser = crate::values::timeout)]
    pub(crate) connect_timeout: Option<Duration>,

    /// Frontend's minor version of vLLM, 0.27 to 0.33; `auto` detects it.
    #[arg(long, alias = "vllm-line", value_name = "VERSION", default_value = "auto", value_parser = vllm_minor)]
    pub(crate) vllm_minor: VersionArg,

    /// Model name in the topics of KV events.
    #[arg(long, value_name = "NAME", default_value = "", env = "MODEL")]
    pub(crate) model_name: String,

    /// Tell a Python frontend that it started this engine itself.
    #[arg(long)]
    pub(crate) local: bool,

    /// Tell a Python frontend that it balances the load itself.
    #[arg(long)]
    pub(crate) no_headless: bool,

    /// Parallel configuration hash that a Python frontend of a mixture of experts compares with its own.
    #[arg(long, value_name = "HASH")]
    pub(crate) parallel_config_hash: Option<String>,

    /// Run engines in waves, as for mixtures of experts [default: as the frontend configures].
    #[arg(long, value_name = "BOOL")]
    pub(crate) moe: Option<bool>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Engines")]
pub(crate) struct RankArgs {
    /// Engines in this process, numbered from --data-parallel-start-rank.
    #[arg(long, alias = "engine-count", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) data_parallel_size: u16,

    /// Number of the first engine, if other processes run the ones before it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(..60000))]
    pub(crate) data_parallel_start_rank: u16,

    /// vLLM version that engines report.
    #[arg(long, value_name = "TEXT")]
    pub(crate) vllm_version: Option<String>,

    /// Name of this process in KV transfers and in the topics of KV events.
    #[arg(long, value_name = "NAME", default_value = "vcr-engine-0", env = "VCR_ENGINE_ID")]
    pub(crate) engine_id: String,

    /// Data type of the weights that engines report; `auto` is bfloat16, but the model's with --kv-transfer.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) dtype: DtypeArg,

    /// Number of workers that each engine reports.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) tensor_parallel_size: u32,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Routing (none: each engine computes what its frontend sends it)")]
pub(crate) struct RoutingArgs {
    /// Router among the engines of this process: round-robin, least-loaded, kv-aware, prefix-affinity or
    /// session-hash, an expression as in scenarios, or a guest: its .wasm file or oci:// reference.
    #[arg(long, value_name = "ROUTER")]
    pub(crate) router: Option<String>,

    /// Configuration of the guest of --router, as JSON.
    #[arg(long, value_name = "JSON|@FILE", requires = "router", value_parser = guest_config)]
    pub(crate) router_config: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Tokens")]
pub(crate) struct TokenArgs {
    /// Source of output tokens: `random`, `echo`, a .jsonl file, or a guest.
    #[arg(long, value_name = "SOURCE", default_value = "random", value_parser = crate::values::token_source)]
    pub(crate) tokens: String,

    /// Configuration of the guest of --tokens, as JSON.
    #[arg(long, value_name = "JSON|@FILE", value_parser = guest_config)]
    pub(crate) tokens_config: Option<String>,

    /// Draw random tokens below this id [default: 32000, or the tokenizer's vocabulary size].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) vocab_size: Option<u32>,

    /// Output length in tokens: a number or a distribution as in scenarios
    /// [default: up to max_tokens].
    #[arg(long, value_name = "COUNT")]
    pub(crate) output_tokens: Option<String>,

    /// Seed of all random streams.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Length of embedding vectors [default: 384 in `vcr serve`; `vcr play` refuses embeddings].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) embedding_dimensions: Option<u32>,
}

/// Hash algorithm of KV blocks.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum HashArg {
    Sha256,
    Sha256Cbor,
    Xxhash,
    XxhashCbor,
}

impl HashArg {
    /// Name of the algorithm in vLLM.
    #[cfg(feature = "serve")]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha256Cbor => "sha256_cbor",
            Self::Xxhash => "xxhash",
            Self::XxhashCbor => "xxhash_cbor",
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Statistics and KV events")]
pub(crate) struct EventArgs {
    /// Send no scheduler statistics and no request events.
    #[arg(long)]
    pub(crate) disable_log_stats: bool,

    /// Send iteration details with each step.
    #[arg(long)]
    pub(crate) enable_logging_iteration_details: bool,

    /// Publish KV cache events.
    #[arg(long)]
    pub(crate) enable_kv_cache_events: bool,

    /// Address to publish KV events at; the engine's number is added to the port.
    #[arg(long, value_name = "ADDRESS", default_value = "tcp://*:5557")]
    pub(crate) kv_events_endpoint: String,

    /// Address of the replay socket for missed KV events.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) kv_events_replay_endpoint: Option<String>,

    /// Topic of KV events, such as `kv@{engine}@{model}`; empty in vLLM.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) kv_events_topic: String,

    /// Batches of KV events kept for replay.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) kv_events_buffer_steps: u64,

    /// Hash algorithm of KV blocks.
    #[arg(long, value_enum, value_name = "ALGORITHM", default_value = "sha256")]
    pub(crate) prefix_caching_hash_algo: HashArg,

    /// Seed of the first block's hash: PYTHONHASHSEED of the real engine.
    #[arg(long, alias = "kv-cache-none-seed", value_name = "TEXT")]
    pub(crate) kv_cache_hash_seed: Option<String>,

    /// Send block hashes as bytes, as vLLM with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0.
    #[arg(long)]
    pub(crate) kv_events_whole_digests: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Faults")]
pub(crate) struct FaultArgs {
    /// Inject a fault, such as `error:rate=0.1,after=5` (repeatable); --help-all has the syntax.
    #[arg(long = "fault", value_name = "FAULT")]
    pub(crate) faults: Vec<FaultRule>,

    /// Share of requests that fail on arrival.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) failure_injection_rate: f64,

    /// Finish reasons of failed requests, in equal parts: error, length, repetition.
    #[arg(long, value_name = "REASONS", value_delimiter = ',', default_value = "error")]
    pub(crate) failure_types: Vec<String>,

    /// Failure injector, a guest: its .wasm file or oci:// reference.
    #[arg(long, value_name = "GUEST")]
    pub(crate) failure_injector: Option<String>,

    /// Configuration of the failure injector, as JSON.
    #[arg(long, value_name = "JSON|@FILE", requires = "failure_injector", value_parser = guest_config)]
    pub(crate) failure_injector_config: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Process")]
pub(crate) struct ProcessArgs {
    /// Time that running requests have to finish at shutdown, before they are aborted.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = seconds)]
    pub(crate) shutdown_timeout: u64,

    /// Maximum number of requests per engine; further requests wait at the sender.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub(crate) max_requests: usize,

    /// Maximum prompt tokens of all requests of an engine; further requests wait at the sender.
    #[arg(long, value_name = "TOKENS", default_value_t = 256 << 20)]
    pub(crate) max_prompt_tokens: u64,

    /// Maximum message size; larger ones end the connection.
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = bytes)]
    pub(crate) max_message_bytes: u64,

    /// Log a line at the start and end of each request, and when its KV has arrived from another engine.
    #[arg(long, alias = "enable-log-requests")]
    pub(crate) log_requests: bool,

    /// Log errors only; RUST_LOG selects more precisely.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
