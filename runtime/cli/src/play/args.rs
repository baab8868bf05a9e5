//! Options of `vcr play`.

use clap::{Args, ValueEnum};
use vcr_live::FaultRule;
use vcr_units as units;

use super::control::ControlArgs;
use super::guests::GuestArgs;
use super::replay::ReplayArgs;

/// Options of `vcr play`, by what they concern.
#[derive(Debug, Args)]
pub(crate) struct PlayArgs {
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) routing: RoutingArgs,
    #[command(flatten)]
    pub(crate) timing: TimingArgs,
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
    #[command(flatten)]
    pub(crate) replay: ReplayArgs,
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
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
}

pub(crate) fn duration(text: &str) -> Result<u64, units::UnitError> {
    units::duration_ns(text)
}

fn bytes(text: &str) -> Result<u64, units::UnitError> {
    units::bytes(text)
}

fn line(text: &str) -> Result<LineArg, String> {
    if text == "auto" {
        return Ok(LineArg(None));
    }
    text.parse().map(|line| LineArg(Some(line))).map_err(|error: vcr_wire::UnknownLine| format!("{error}, or `auto`"))
}

/// A line of vLLM, or `auto`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineArg(pub(crate) Option<vcr_wire::Line>);

/// The type of the weights.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DtypeArg {
    Float16,
    Bfloat16,
    Float32,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Frontend")]
pub(crate) struct LinkArgs {
    /// Where the frontend waits for engines (its --data-parallel-address and -rpc-port).
    #[arg(long, value_name = "ADDRESS", default_value = "tcp://127.0.0.1:29550", env = "VCR_HANDSHAKE_ADDRESS")]
    pub(crate) handshake_address: String,

    /// Engines in this process, numbered from --data-parallel-start-rank.
    #[arg(long, alias = "engine-count", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) data_parallel_size: u16,

    /// Number of the first engine, where others run elsewhere.
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(..60000))]
    pub(crate) data_parallel_start_rank: u16,

    /// The frontend's line of vLLM, 0.27 to 0.33; `auto` goes by what it sends.
    #[arg(long, value_name = "LINE", default_value = "auto", value_parser = line)]
    pub(crate) vllm_line: LineArg,

    /// Version to report [default: that of the line].
    #[arg(long, value_name = "TEXT")]
    pub(crate) vllm_version: Option<String>,

    /// Name of this process, for other engines and topics.
    #[arg(long, value_name = "NAME", default_value = "vcr-engine-0", env = "VCR_ENGINE_ID")]
    pub(crate) engine_id: String,

    /// Name of the model, for topics.
    #[arg(long, value_name = "NAME", default_value = "", env = "MODEL")]
    pub(crate) model_name: String,

    /// Type of the weights, as reported.
    #[arg(long, value_enum, default_value = "bfloat16")]
    pub(crate) dtype: DtypeArg,

    /// Workers of each engine, as reported.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) tensor_parallel_size: u32,

    /// Say that the frontend started this engine itself (a Python frontend asks).
    #[arg(long)]
    pub(crate) local: bool,

    /// Say that the frontend balances load itself (a Python frontend asks).
    #[arg(long)]
    pub(crate) no_headless: bool,

    /// What a Python frontend of a mixture of experts compares with its own.
    #[arg(long, value_name = "HASH")]
    pub(crate) parallel_config_hash: Option<String>,

    /// Whether engines run in waves, as those of mixtures of experts do [default: as the frontend says].
    #[arg(long, value_name = "BOOL")]
    pub(crate) moe: Option<bool>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// KV blocks, the reserved null block included.
    #[arg(long, alias = "kv-cache-size", value_name = "N", default_value_t = 16_385)]
    pub(crate) num_gpu_blocks: u32,

    /// Tokens of a KV block.
    #[arg(long, alias = "tokens-per-block", value_name = "TOKENS", default_value_t = 16)]
    pub(crate) block_size: u32,

    /// Longest sequence [default: what the KV blocks hold, at most 131072].
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_model_len: Option<u32>,

    /// Most requests that run at once.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_num_seqs: u32,

    /// Most tokens computed in one step.
    #[arg(long, value_name = "TOKENS", default_value_t = 8192)]
    pub(crate) max_num_batched_tokens: u32,

    /// Most tokens of one request in a step while others exist; 0 for no cap.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub(crate) long_prefill_token_threshold: u32,

    /// Who is admitted first and who gives way: fcfs, priority, shortest-prompt-first or fair-share, an expression as in
    /// scenarios, or the path of a .wasm guest.
    #[arg(long, value_name = "POLICY", default_value = "fcfs")]
    pub(crate) scheduling_policy: String,

    /// The guest's configuration.
    #[arg(long, value_name = "JSON", requires = "scheduling_policy")]
    pub(crate) scheduling_policy_config: Option<String>,

    /// Most adapters in one step; 0 refuses requests that name one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) max_loras: u32,

    /// Keep nothing for later requests with the same prefix.
    #[arg(long)]
    pub(crate) no_enable_prefix_caching: bool,

    /// Compute each prompt in one step.
    #[arg(long)]
    pub(crate) no_enable_chunked_prefill: bool,

    /// Decide each step before the outputs of the one before are known.
    #[arg(long)]
    pub(crate) async_scheduling: bool,

    /// Share of the KV blocks that admissions leave free.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) watermark: f64,

    /// Draft tokens of each request and step.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) num_speculative_tokens: u32,

    /// Probability that the first, second, ... draft is accepted if those before it were.
    #[arg(long, value_name = "RATES", value_delimiter = ',', requires = "num_speculative_tokens")]
    pub(crate) acceptance_rates: Vec<f64>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Routing (none: each engine computes what its frontend sends it)")]
pub(crate) struct RoutingArgs {
    /// Who decides which engine of this process computes a request: round-robin, least-loaded, kv-aware or
    /// prefix-affinity, an expression as in scenarios, or a guest: its .wasm file or oci:// reference.
    #[arg(long, value_name = "ROUTER")]
    pub(crate) router: Option<String>,

    /// Configuration of the guest, as JSON.
    #[arg(long, value_name = "JSON", requires = "router")]
    pub(crate) router_config: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Timing (none: as fast as possible)")]
pub(crate) struct TimingArgs {
    /// A latency model as in scenarios, or a guest: its .wasm file or oci:// reference.
    #[arg(long, value_name = "MODEL", conflicts_with_all = KNOBS)]
    pub(crate) latency: Option<String>,

    /// Configuration of the guest, as JSON.
    #[arg(long, value_name = "JSON", requires = "latency")]
    pub(crate) latency_config: Option<String>,

    /// Time of a step that completes a prompt.
    #[arg(long, value_name = "TIME", conflicts_with = "prefill_overhead", value_parser = duration)]
    pub(crate) time_to_first_token: Option<u64>,

    /// Its standard deviation.
    #[arg(long, value_name = "TIME", requires = "time_to_first_token", value_parser = duration)]
    pub(crate) time_to_first_token_std_dev: Option<u64>,

    /// Time of a step that only decodes.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) inter_token_latency: Option<u64>,

    /// Its standard deviation.
    #[arg(long, value_name = "TIME", requires = "inter_token_latency", value_parser = duration)]
    pub(crate) inter_token_latency_std_dev: Option<u64>,

    /// Like --time-to-first-token, to be used with --prefill-time-per-token.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) prefill_overhead: Option<u64>,

    /// Time that each computed prompt token adds.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) prefill_time_per_token: Option<u64>,

    /// Standard deviation of --prefill-overhead.
    #[arg(long, value_name = "TIME", requires = "prefill_overhead", value_parser = duration)]
    pub(crate) prefill_time_std_dev: Option<u64>,

    /// By how much a full engine is slower than one with a single request.
    #[arg(long, value_name = "FACTOR")]
    pub(crate) time_factor_under_load: Option<f64>,

    /// Divide all times by this.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) time_scale: f64,
}

impl TimingArgs {
    /// Whether any latency was asked for.
    pub(crate) fn is_given(&self) -> bool {
        self.latency.is_some()
            || self.time_to_first_token.is_some()
            || self.inter_token_latency.is_some()
            || self.prefill_overhead.is_some()
            || self.prefill_time_per_token.is_some()
    }
}

const KNOBS: [&str; 8] = [
    "time_to_first_token",
    "time_to_first_token_std_dev",
    "inter_token_latency",
    "inter_token_latency_std_dev",
    "prefill_overhead",
    "prefill_time_per_token",
    "prefill_time_std_dev",
    "time_factor_under_load",
];

#[derive(Debug, Args)]
#[command(next_help_heading = "Tokens")]
pub(crate) struct TokenArgs {
    /// Where tokens come from: `random`, `echo`, a .jsonl file, or a guest.
    #[arg(long, value_name = "SOURCE", default_value = "random")]
    pub(crate) tokens: String,

    /// Configuration of the guest, as JSON.
    #[arg(long, value_name = "JSON")]
    pub(crate) tokens_config: Option<String>,

    /// Drawn tokens are below this.
    #[arg(long, value_name = "N", default_value_t = 32_000, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) vocab_size: u32,

    /// Tokens before the end of the text: a number or a distribution as in scenarios
    /// [default: go on to max_tokens].
    #[arg(long, value_name = "COUNT")]
    pub(crate) output_tokens: Option<String>,

    /// Base of every random stream.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Answer embedding requests with vectors of this length.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) embedding_dimensions: Option<u32>,
}

/// How KV blocks are hashed.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum HashArg {
    Sha256,
    Sha256Cbor,
    Xxhash,
    XxhashCbor,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Statistics and KV events")]
pub(crate) struct EventArgs {
    /// Send no counts and no events of requests.
    #[arg(long)]
    pub(crate) disable_log_stats: bool,

    /// Say with each step what it did.
    #[arg(long)]
    pub(crate) enable_logging_iteration_details: bool,

    /// Publish what the prefix cache holds.
    #[arg(long)]
    pub(crate) enable_kv_cache_events: bool,

    /// Where; the port counts up with the engine's number.
    #[arg(long, value_name = "ADDRESS", default_value = "tcp://*:5557")]
    pub(crate) kv_events_endpoint: String,

    /// Where subscribers ask for what they have missed.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) kv_events_replay_endpoint: Option<String>,

    /// First frame of every message, such as `kv@{engine}@{model}` with the names of both
    /// [default: empty, as in vLLM].
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) kv_events_topic: String,

    /// Batches kept for those who ask again.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) kv_events_buffer_steps: u64,

    /// How blocks are hashed.
    #[arg(long, value_enum, default_value = "sha256")]
    pub(crate) prefix_caching_hash_algo: HashArg,

    /// Seed of the first block's hash: PYTHONHASHSEED of the engine that is imitated.
    #[arg(long, alias = "kv-cache-none-seed", value_name = "TEXT")]
    pub(crate) kv_cache_hash_seed: Option<String>,

    /// Send whole digests, as vLLM does with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0.
    #[arg(long)]
    pub(crate) kv_events_whole_digests: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Prefill and decode apart")]
pub(crate) struct TransferArgs {
    /// Address that other engines send notices to.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", env = "VCR_SIDE_CHANNEL_HOST")]
    pub(crate) side_channel_host: String,

    /// Its port; counts up with the engine's number.
    #[arg(long, value_name = "PORT", default_value_t = 5600, env = "VCR_SIDE_CHANNEL_PORT")]
    pub(crate) side_channel_port: u16,

    /// Time that every transfer of KV takes.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = duration)]
    pub(crate) kv_cache_transfer_latency: u64,

    /// Time that each moved token adds.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = duration)]
    pub(crate) kv_cache_transfer_time_per_token: u64,

    /// Standard deviation of the sum.
    #[arg(long, alias = "kv-cache-transfer-latency-std-dev", value_name = "TIME", default_value = "0ms")]
    #[arg(value_parser = duration)]
    pub(crate) kv_cache_transfer_time_std_dev: u64,

    /// How long blocks are held for a decode engine that does not come.
    #[arg(long, value_name = "TIME", default_value = "480s", value_parser = duration)]
    pub(crate) kv_lease: u64,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Faults")]
pub(crate) struct FaultArgs {
    /// Let something go wrong, such as `error:rate=0.1,after=5`; see below.
    #[arg(long = "fault", value_name = "FAULT")]
    pub(crate) faults: Vec<FaultRule>,

    /// Share of requests that fail when they arrive.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) failure_injection_rate: f64,

    /// How they fail, in equal parts: error, length, repetition.
    #[arg(long, value_name = "REASONS", value_delimiter = ',', default_value = "error")]
    pub(crate) failure_types: Vec<String>,

    /// A guest that decides what goes wrong: its .wasm file or oci:// reference.
    #[arg(long, value_name = "GUEST")]
    pub(crate) failure_injector: Option<String>,

    /// Its configuration, as JSON.
    #[arg(long, value_name = "JSON", requires = "failure_injector")]
    pub(crate) failure_injector_config: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Process")]
pub(crate) struct ProcessArgs {
    /// Time that requests under way get when the process is told to stop.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(crate) shutdown_timeout: u64,

    /// Most requests that an engine holds; further ones wait at their sender.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub(crate) max_requests: usize,

    /// Most prompt tokens of those requests.
    #[arg(long, value_name = "TOKENS", default_value_t = 256 << 20)]
    pub(crate) max_prompt_tokens: u64,

    /// Larger messages end the connection.
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = bytes)]
    pub(crate) max_message_bytes: u64,

    /// Log a line at the start and end of each request.
    #[arg(long)]
    pub(crate) log_requests: bool,

    /// Log errors only; RUST_LOG says more precisely what.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
