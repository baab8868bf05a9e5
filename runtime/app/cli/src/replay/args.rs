//! Options of `vcr replay`: those of Dynamo, with their names and defaults, and more.

use std::ffi::OsString;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use vcr_dynamo::Preset;
use vcr_dynamo::report::ReportFormat;
use vcr_trace::{Format, NestedTimestamps, Sessions, TimestampUnit};

use super::profile_args::ProfileArgs;
use super::tick_args::TickArgs;
use crate::sweep::cluster::RayArgs;
use crate::sweep::shard::ShardArgs;

pub(crate) const EXAMPLES: &str = crate::help::with_simulation_exit_codes!(
    "Examples:
  vcr replay conversation_trace.jsonl --num-workers 4 --router-mode kv_router
  vcr replay trace.jsonl --extra-engine-args '{\"num_gpu_blocks\": 8192, \"speedup_ratio\": 2}'
  vcr replay trace.jsonl \\
      --extra-engine-args '{\"num_g2_blocks\": 100000, \"kv_bytes_per_token\": 131072}'
  vcr replay trace.jsonl --num-workers 2 --extra-engine-args '{\"dp_size\": 8}'
  vcr replay trace.jsonl --extra-engine-args @engine.json --preset dynamo-1.4 \\
      --report-format 1.4 --json
  vcr replay trace.jsonl --prefill-engine-args '{\"worker_type\": \"prefill\"}' \\
      --decode-engine-args '{\"worker_type\": \"decode\"}' \\
      --num-prefill-workers 2 --num-decode-workers 2
  vcr replay --input-tokens 1000 --output-tokens 200 --request-count 500 --request-rate 8
  vcr replay trace.jsonl --router-mode my-router.wasm \\
      --latency 'roofline(#{ model: \"llama-3.1-8b\", gpu: \"h100-sxm\" })'
  vcr replay trace.jsonl \\
      --autoscale '{\"policy\": \"target_requests\", \"target\": 8, \"interval_s\": 30, \"max\": 16}' \\
      --extra-engine-args '{\"startup_time\": 60}'
  vcr replay trace.jsonl --sweep num_workers=1..16 --sweep router_mode=round_robin,kv_router \\
      --sweep max_num_seqs=64,128 --sweep-out sweep.csv
  vcr replay ticks.json --engine ticks --total-kv-pages 20 --report-json report.json

JSON is given as text, or as @FILE. docs/reference/replay lists the mappings."
);

/// Options of `vcr replay`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Trace to replay. The formats dynamo and weka may have several files, or folders of files.
    #[arg(value_name = "TRACE")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) trace_files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    #[command(flatten)]
    pub(crate) profile: ProfileArgs,
    #[command(flatten)]
    pub(crate) synthetic: SyntheticArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) router: RouterFlags,
    #[command(flatten)]
    pub(crate) run: RunFlags,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) sweep: SweepArgs,
    #[command(flatten)]
    pub(crate) ticks: TickArgs,
    #[command(flatten)]
    pub(crate) refused: RefusedArgs,

    /// The whole command line.
    #[arg(skip)]
    pub(crate) words: Vec<OsString>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Trace")]
pub(crate) struct TraceArgs {
    /// Format of the trace, such as mooncake; docs/reference/inspect.md lists all [default: detected, or an error if
    /// ambiguous].
    #[arg(long, value_name = "FORMAT")]
    pub(crate) trace_format: Option<Format>,

    /// Unit of the timestamps of mooncake rows: ms or s. Other formats have their own.
    #[arg(long, value_name = "UNIT", default_value = "ms")]
    pub(crate) trace_timestamp_unit: TimestampUnit,

    /// Tokens per hash id of the trace [default: given by the trace or inferred from its lengths and hash ids, else 512].
    #[arg(long, value_name = "N", value_parser = crate::values::at_least_one::<NonZeroU32>)]
    pub(crate) trace_block_size: Option<NonZeroU32>,

    /// Which requests of a capture are turns that wait for each other: recorded (those of a recorded session),
    /// by-prefix (also those that extend an earlier prompt) or none.
    #[arg(long, value_name = "MODE", default_value = "recorded")]
    pub(crate) sessions: Sessions,

    /// Scope within which equal hash ids mean equal tokens: trace, play or session [default: set by the trace].
    #[arg(long, value_name = "SCOPE")]
    pub(crate) hash_id_scope: Option<IdScope>,

    /// What times within a subagent count from (weka): absolute (the play's start), relative (the subagent's start) or
    /// auto (relative if a request would otherwise precede its subagent).
    #[arg(long, value_name = "BASIS", default_value = "auto")]
    pub(crate) nested_timestamp_basis: NestedTimestamps,

    /// Share of leading blocks that the first prompts of a group of sessions have in common (applied_compute_agentic).
    #[arg(long, value_name = "RATIO", default_value = "0.0", value_parser = share)]
    pub(crate) trace_shared_prefix_ratio: f64,

    /// Number of groups of sessions that share leading blocks (applied_compute_agentic).
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) trace_num_prefix_groups: u32,

    /// Keep N requests (or sessions) in flight and ignore arrival times.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) replay_concurrency: Option<u64>,

    /// Divide arrival times and delays between turns by this factor.
    #[arg(long, value_name = "RATIO", default_value = "1.0", value_parser = positive)]
    pub(crate) arrival_speedup_ratio: f64,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Synthetic workload (instead of a trace)")]
pub(crate) struct SyntheticArgs {
    /// Prompt tokens per request.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) input_tokens: Option<u32>,

    /// Output tokens per request.
    #[arg(long, value_name = "N")]
    pub(crate) output_tokens: Option<u32>,

    /// Number of requests, or of sessions if they have several turns.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) request_count: Option<u32>,

    /// Requests per second (Poisson arrivals).
    #[arg(long, value_name = "RATE", value_parser = positive)]
    pub(crate) request_rate: Option<f64>,

    /// Milliseconds between requests.
    #[arg(long, value_name = "MS", value_parser = positive)]
    pub(crate) arrival_interval_ms: Option<f64>,

    /// Seed of the arrivals.
    #[arg(long, value_name = "N", default_value = "42")]
    pub(crate) arrival_seed: u64,

    /// Turns per session.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) turns_per_session: u32,

    /// Share of leading blocks that the prompts of a group have in common.
    #[arg(long, value_name = "RATIO", default_value = "0.0", value_parser = share)]
    pub(crate) shared_prefix_ratio: f64,

    /// Number of groups that share a prefix.
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) num_prefix_groups: u32,

    /// Milliseconds between the end of a turn and the start of the next.
    #[arg(long, value_name = "MS", default_value = "0.0", value_parser = not_negative)]
    pub(crate) inter_turn_delay_ms: f64,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Workers")]
pub(crate) struct ClusterArgs {
    /// Number of workers.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) num_workers: u32,

    /// Number of prefill workers.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) num_prefill_workers: u32,

    /// Number of decode workers.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) num_decode_workers: u32,

    /// Scale the number of workers with the load, starting from the given one: {"policy": "target_requests" or
    /// "target_prefill_tokens", "target": 8, "interval_s": 30, "min": 1, "max": 16, "scale_down_delay_ticks": 0}. A guest
    /// as the policy takes "config" instead of a target.
    #[arg(long, value_name = "JSON|@FILE")]
    pub(crate) autoscale: Option<String>,

    /// Engine arguments, flat as in Dynamo 1.4 or nested as in 1.6.
    #[arg(long, value_name = "JSON|@FILE")]
    pub(crate) extra_engine_args: Option<String>,

    /// Engine arguments of prefill workers; requires --decode-engine-args.
    #[arg(long, value_name = "JSON|@FILE")]
    pub(crate) prefill_engine_args: Option<String>,

    /// Engine arguments of decode workers; requires --prefill-engine-args.
    #[arg(long, value_name = "JSON|@FILE")]
    pub(crate) decode_engine_args: Option<String>,

    /// Engine type, overriding the engine arguments: vllm, sglang or trtllm.
    #[arg(long, value_name = "TYPE", value_parser = ["vllm", "sglang", "trtllm"])]
    pub(crate) engine_type: Option<String>,

    /// Dynamo version to reproduce: dynamo-1.4 or dynamo-1.6.
    #[arg(long, value_name = "PRESET", default_value = "dynamo-1.6")]
    pub(crate) preset: Preset,

    /// Latency model, overriding the engine arguments: an expression as in scenarios, or a guest (.wasm, oci://).
    #[arg(long, value_name = "MODEL")]
    pub(crate) latency: Option<String>,

    /// Which KV transfers share bandwidth: none (as in Dynamo), per-prefill-worker (those of a prefill worker) or
    /// shared (all).
    #[arg(long, value_name = "MODE", default_value = "none")]
    pub(crate) kv_transfer_contention: Contention,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Router")]
pub(crate) struct RouterFlags {
    /// Router: round_robin, kv_router, least_loaded, or a guest (.wasm, oci://).
    #[arg(long, value_name = "MODE", default_value = "round_robin")]
    pub(crate) router_mode: RouterMode,

    /// Configuration of the KV router.
    #[arg(long, value_name = "JSON|@FILE")]
    pub(crate) router_config: Option<String>,

    /// YAML file of queue policies: classes of requests in the KV router's queue.
    #[arg(long, value_name = "FILE")]
    pub(crate) router_policy_config: Option<String>,

    /// Model whose queue policies apply [default: the policies for all models].
    #[arg(long, value_name = "MODEL")]
    pub(crate) model_name: Option<String>,

    /// Milliseconds until the KV router learns of a KV event.
    #[arg(long, value_name = "MS", value_parser = not_negative)]
    pub(crate) kv_event_lag_ms: Option<f64>,

    /// Send KV events to the KV router when Dynamo does: at the end of a pass under 1.6 and for SGLang. Takes two to
    /// three times the CPU, and more memory [default: at the start of the pass].
    #[arg(long)]
    pub(crate) exact_kv_events: bool,

    /// Number of KV router replicas.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) router_replicas: u32,

    /// Milliseconds until a router replica learns the decisions of another [default: never].
    #[arg(long, value_name = "MS", value_parser = not_negative)]
    pub(crate) router_sync_ms: Option<f64>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Run")]
pub(crate) struct RunFlags {
    /// Replay in virtual time (offline), or in real time on live engines of this process (online).
    #[arg(long, value_name = "MODE", default_value = "offline")]
    pub(crate) replay_mode: ReplayMode,

    /// Seed of all random streams.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) seed: u64,

    /// Treat warnings as errors.
    #[arg(long)]
    pub(crate) strict: bool,

    /// End the run at this virtual time, such as 10m. The report is then partial, and leaves out unfinished requests.
    #[arg(long, value_name = "DURATION", value_parser = crate::values::time_limit)]
    pub(crate) max_sim_time: Option<u64>,

    /// Same as --max-sim-time, in seconds (Dynamo's name).
    #[arg(long, value_name = "S", value_parser = positive, conflicts_with = "max_sim_time")]
    pub(crate) max_sim_time_seconds: Option<f64>,

    /// Threads for the runs of a sweep, which do not change results [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,

    /// Maximum memory of the process, such as 4GiB [default: 80 % of the available memory].
    #[arg(long, value_name = "SIZE", value_parser = crate::values::memory_limit)]
    pub(crate) memory_limit: Option<u64>,

    /// Count a request as goodput only if its time to first token is at most this many milliseconds.
    #[arg(long, value_name = "MS", value_parser = positive)]
    pub(crate) sla_ttft_ms: Option<f64>,

    /// Count a request as goodput only if its mean inter-token latency is at most this many milliseconds.
    #[arg(long, value_name = "MS", value_parser = positive)]
    pub(crate) sla_itl_ms: Option<f64>,

    /// Count a request as goodput only if its end-to-end latency is at most this many milliseconds.
    #[arg(long, value_name = "MS", value_parser = positive)]
    pub(crate) sla_e2e_ms: Option<f64>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Results")]
pub(crate) struct OutputArgs {
    /// Write the report to a file, or into a folder as replay_report.json.
    #[arg(long, value_name = "PATH")]
    pub(crate) report_json: Option<PathBuf>,

    /// Write one JSON line per request.
    #[arg(long, value_name = "FILE")]
    pub(crate) report_jsonl: Option<PathBuf>,

    /// During the replay, write a JSON line per interval of virtual time with the workers' queues, running requests and
    /// KV usage. The report then also has their time series.
    #[arg(long, value_name = "FILE")]
    pub(crate) telemetry: Option<PathBuf>,

    /// Virtual time between two lines of --telemetry.
    #[arg(long, value_name = "DURATION", default_value = "1s", requires = "telemetry", value_parser = crate::values::time_limit)]
    pub(crate) telemetry_interval: u64,

    /// Report how long each limit kept requests waiting, for vcr inspect pressure; slows the replay down.
    #[arg(long)]
    pub(crate) capacity: bool,

    /// Replace existing outputs.
    #[arg(long)]
    pub(crate) force: bool,

    /// Layout of the report: 1.4 (flat) or 1.6 (nested) [default: the preset's].
    #[arg(long, value_name = "VERSION")]
    pub(crate) report_format: Option<ReportFormat>,

    /// Print the report as JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,

    /// Table to print: vcr's own, or aiperf's as in Dynamo.
    #[arg(long, value_name = "TABLE", default_value = "vcr", value_parser = ["vcr", "aiperf"])]
    pub(crate) table: String,

    /// Report the time and memory used on this machine; reports then differ from run to run.
    #[arg(long)]
    pub(crate) host_times: bool,

    /// Print neither progress nor warnings.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sweeps")]
pub(crate) struct SweepArgs {
    /// Run once per value of an option or engine argument: 1..16 (both included), 0.5..2..0.5 or a,b,c (repeatable:
    /// runs every combination).
    #[arg(long = "sweep", value_name = "NAME=VALUES")]
    pub(crate) sweeps: Vec<String>,

    /// Write one row per run to a .csv, .json or .parquet file.
    #[arg(long, value_name = "FILE", requires = "sweeps")]
    pub(crate) sweep_out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) shard: ShardArgs,

    #[command(flatten)]
    pub(crate) cluster: RayArgs,
}

impl RunFlags {
    /// Maximum virtual time of the run in nanoseconds, if set.
    pub(crate) fn max_time_ns(&self) -> Option<u64> {
        self.max_sim_time.or_else(|| self.max_sim_time_seconds.map(|seconds| (seconds * 1e9).round() as u64))
    }

    /// Number of threads for a sweep.
    pub(crate) fn threads(&self) -> NonZeroUsize {
        let given = self.threads.and_then(|threads| NonZeroUsize::new(threads.into()));
        given.unwrap_or_else(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }
}

/// Options of Dynamo's replay that are refused with a reason.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Not simulated")]
pub(crate) struct RefusedArgs {
    #[arg(long, hide = true)]
    pub(crate) planner_config: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) benchmark_granularity: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) aic_backend: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) aic_system: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) aic_model_path: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum IdScope {
    Trace,
    Play,
    Session,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReplayMode {
    /// In virtual time.
    Offline,
    /// In real time, on live engines of this process.
    Online,
}

/// Which KV transfers share bandwidth.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Contention {
    None,
    PerPrefillWorker,
    Shared,
}

/// The router that chooses workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouterMode {
    RoundRobin,
    KvRouter,
    LeastLoaded,
    /// A guest: its path or reference.
    Guest(String),
}

impl FromStr for RouterMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "round_robin" => Ok(Self::RoundRobin),
            "kv_router" => Ok(Self::KvRouter),
            "least_loaded" => Ok(Self::LeastLoaded),
            guest if crate::values::is_guest(guest) => Ok(Self::Guest(guest.to_owned())),
            _ => Err("expected round_robin, kv_router, least_loaded, or the path of a .wasm guest".to_owned()),
        }
    }
}

fn number(text: &str, is_allowed: impl Fn(f64) -> bool, what: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && is_allowed(*number));
    number.ok_or_else(|| format!("expected {what}"))
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0, "a finite number above 0")
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |number| number >= 0.0, "a finite number of at least 0")
}

fn share(text: &str) -> Result<f64, String> {
    number(text, |number| (0.0..=1.0).contains(&number), "a number from 0 to 1")
}
