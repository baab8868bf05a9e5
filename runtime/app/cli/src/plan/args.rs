use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Deserialize;

use crate::help::{with_comparison_exit_codes, with_plain_exit_codes};
use crate::plan::yaml::{document, list, pairs, text, words};
use crate::values::InputPath;

pub(crate) const EXAMPLES: &str = with_comparison_exit_codes!(
    "Examples:
  vcr plan --model meta-llama/Llama-3.1-70B-Instruct --gpu h100-sxm,h200 --trace trace.jsonl \\
      --slo 'ttft.p95 < 2s' --slo 'itl.p99 < 60ms' --price h100-sxm=2.5,h200=3.6
  vcr plan --model Qwen/Qwen3-32B --gpu l40s --rate 12 --prompt-tokens 'lognormal(2000, 1500)' \\
      --output-tokens 300 --slo 'ttft.p95 < 1s' --out plan
  vcr plan plan.yaml --out plan --json
  vcr plan --model Qwen/Qwen3-8B --gpu h100 --rate 5 --prompt-tokens 800 --output-tokens 200 \\
      --slo 'goodput{ttft<1s,tpot<50ms}.ratio >= 95%' --space '{tensor_parallel: [1, 2]}'
  vcr plan tune --vllm-args 'vllm serve Qwen/Qwen3-8B -tp 2' --gpu h100 --rate 5 \\
      --prompt-tokens 800 --output-tokens 200 --slo 'ttft.p95 < 1s'
  vcr plan explain plan 1
  vcr plan verify plan --target http://localhost:8000",
    "at least one deployment keeps all objectives",
    "none does; the nearest one is shown"
);

/// Options of `vcr plan`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    pub(crate) command: Option<PlanCommand>,

    /// A YAML file with options of this command. Options on the command line override the file.
    #[arg(value_name = "PLAN.YAML", value_parser = InputPath)]
    pub(crate) file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) question: QuestionArgs,

    #[command(flatten)]
    pub(crate) search: SearchArgs,
}

const TUNE_EXAMPLES: &str = with_comparison_exit_codes!(
    "Examples:
  vcr plan tune --vllm-args 'vllm serve Qwen/Qwen3-8B -tp 2' --gpu h100 --rate 5 \\
      --prompt-tokens 800 --output-tokens 200 --slo 'ttft.p95 < 1s'
  vcr plan tune --vllm-args 'vllm serve Qwen/Qwen3-8B' --replicas 4 --gpu h100 --trace trace.jsonl \\
      --slo 'itl.p99 < 40ms' --space '{max_num_seqs: [32, 64, 128]}'",
    "some flags keep all objectives",
    "none do"
);

const EXPLAIN_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr plan explain plan          # the first row of `vcr plan ... --out plan`
  vcr plan explain plan 3 --json"
);

const VERIFY_EXAMPLES: &str = with_comparison_exit_codes!(
    "Examples:
  vcr plan verify plan --target http://localhost:8000
  vcr plan verify plan --row 2 --target router:80 --requests 200 --tolerance 15%",
    "the server meets the objectives, and no metric exceeds its prediction by more than allowed",
    "the server misses an objective, or a metric exceeds its prediction by more than allowed"
);

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Find the best flags for a deployment with given GPUs.
    #[command(after_help = TUNE_EXAMPLES)]
    Tune(Box<TuneArgs>),
    /// Show what limits a row of a plan, and simulate the effect of changing each setting.
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Send the load of a row to a server, and compare the measurement with the prediction.
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(VerifyArgs),
}

/// The question.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct QuestionArgs {
    /// Model: a name from `vcr inspect model --list`, or a config.json (repeatable, for quantised or other variants).
    #[arg(long, value_name = "MODEL")]
    #[serde(deserialize_with = "list")]
    pub(crate) model: Vec<String>,

    /// GPU types to consider, separated by commas, such as h100-sxm,l40s.
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    #[serde(deserialize_with = "words")]
    pub(crate) gpu: Vec<String>,

    /// US dollars per GPU and hour, such as h100-sxm=2.5,l40s=1 [default: list prices].
    #[arg(long, value_name = "GPU=PRICE", value_delimiter = ',')]
    #[serde(deserialize_with = "pairs")]
    pub(crate) price: Vec<String>,

    /// The load: a trace, a capture, or the report of a load generator.
    #[arg(long, value_name = "FILE", help_heading = "Load")]
    pub(crate) trace: Option<PathBuf>,

    /// The load: requests per second, with Poisson arrivals.
    #[arg(long, value_name = "RATE", help_heading = "Load", conflicts_with = "trace")]
    #[serde(deserialize_with = "text")]
    pub(crate) rate: Option<String>,

    /// Length of prompts in tokens, such as 2000 or 'lognormal(2000, 1500)'.
    #[arg(long, value_name = "TOKENS", help_heading = "Load", conflicts_with = "trace")]
    #[serde(deserialize_with = "text")]
    pub(crate) prompt_tokens: Option<String>,

    /// Length of outputs in tokens, such as 300 or 'lognormal(300, 200)'.
    #[arg(long, value_name = "TOKENS", help_heading = "Load", conflicts_with = "trace")]
    #[serde(deserialize_with = "text")]
    pub(crate) output_tokens: Option<String>,

    /// File of conversations, whose lengths replace --prompt-tokens and --output-tokens.
    #[arg(long, value_name = "FILE", help_heading = "Load", conflicts_with_all = ["trace", "prompt_tokens", "output_tokens"])]
    pub(crate) dataset: Option<PathBuf>,

    /// Number of requests [default: all of a trace; with --rate, five minutes' worth, 500 to 20000].
    #[arg(long, value_name = "COUNT", help_heading = "Load")]
    pub(crate) requests: Option<NonZeroU32>,

    /// Also plan for these multiples of the load, with the flags found [default: 0.5,0.75,1,1.25,1.5,2].
    #[arg(long, value_name = "FACTOR", value_delimiter = ',', help_heading = "Load")]
    #[serde(deserialize_with = "words")]
    pub(crate) scale: Vec<String>,

    /// Objective, such as 'ttft.p95 < 2s' or 'goodput{ttft<1s}.ratio >= 95%' (repeatable).
    #[arg(long, value_name = "OBJECTIVE")]
    #[serde(deserialize_with = "list")]
    pub(crate) slo: Vec<String>,

    /// Latency model: tables, roofline, or a file of `vcr fit` [default: tables where they know the model, else roofline].
    #[arg(long, value_name = "MODEL")]
    pub(crate) latency: Option<String>,

    /// Maximum number of GPUs of a deployment [default: 64].
    #[arg(long, value_name = "COUNT")]
    pub(crate) max_gpus: Option<NonZeroU32>,

    /// GPUs per node, which limit tensor parallelism [default: the usual number for the GPU].
    #[arg(long, value_name = "COUNT")]
    pub(crate) gpus_per_node: Option<NonZeroU32>,

    /// Longest sequence that engines accept [default: the longest request of the load, rounded up].
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_model_len: Option<NonZeroU32>,

    /// vLLM version whose scheduling rules apply, such as 0.33 [default: the newest known].
    #[arg(long, value_name = "VERSION")]
    #[serde(deserialize_with = "text")]
    pub(crate) vllm_minor: Option<String>,

    /// Values to search, as YAML: '{tensor_parallel: [1, 2], max_num_seqs: [64, 256], prefill_decode:
    /// ["1:2"]}'.
    #[arg(long, value_name = "YAML")]
    #[serde(deserialize_with = "document")]
    pub(crate) space: Option<String>,

    /// Seed of all runs [default: 1].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
}

/// How the search is made, and where its answer goes.
#[derive(Clone, Debug, Args)]
pub(crate) struct SearchArgs {
    /// Print the best answer found within this time, such as 60s; it then depends on the machine's speed.
    #[arg(long, value_name = "DURATION", value_parser = crate::values::timeout)]
    pub(crate) budget: Option<std::time::Duration>,

    /// Simulate every deployment with the whole load, without the search's shortcuts.
    #[arg(long)]
    pub(crate) exhaustive: bool,

    /// Write a page, tables, and start scripts and a scenario for each row to this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Replace existing files.
    #[arg(long)]
    pub(crate) force: bool,

    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,

    /// Show every column and reason, however wide.
    #[arg(long, conflicts_with = "json")]
    pub(crate) full: bool,

    /// Print only the answer.
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Threads [default: all cores].
    #[arg(long, value_name = "COUNT")]
    pub(crate) threads: Option<NonZeroU16>,

    /// Simulate on a Ray cluster, such as ray://head:10001, or `auto`; needs the Python package
    /// with Ray.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "threads")]
    pub(crate) on: Option<String>,
}

/// Options of `vcr plan tune`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TuneArgs {
    /// The command line of the deployment; its flags are kept, except those that --space lists.
    #[arg(long, value_name = "COMMAND", allow_hyphen_values = true)]
    pub(crate) vllm_args: String,

    /// Replicas.
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = crate::values::at_least_one::<NonZeroU32>)]
    pub(crate) replicas: NonZeroU32,

    #[command(flatten)]
    pub(crate) question: QuestionArgs,

    #[command(flatten)]
    pub(crate) search: SearchArgs,
}

/// Options of `vcr plan explain`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The folder of `vcr plan --out`.
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,

    /// Row of the plan, counted from 1.
    #[arg(value_name = "ROW", default_value = "1")]
    pub(crate) row: usize,

    /// Print JSON instead of sentences.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `vcr plan verify`.
#[derive(Clone, Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The folder of `vcr plan --out`.
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,

    /// Row of the plan, counted from 1.
    #[arg(long, value_name = "ROW", default_value = "1")]
    pub(crate) row: usize,

    /// Server to measure: a URL, or HOST:PORT.
    #[arg(long, value_name = "URL")]
    pub(crate) target: String,

    /// Simulate and send only the first requests of the load [default: all].
    #[arg(long, value_name = "COUNT")]
    pub(crate) requests: Option<NonZeroU32>,

    /// Largest accepted difference between prediction and measurement, as a share of the prediction.
    #[arg(long, value_name = "SHARE", default_value = "25%", value_parser = share)]
    pub(crate) tolerance: f64,
}

fn share(text: &str) -> Result<f64, String> {
    let share = vcr_base::units::ratio(text).map_err(|error| error.to_string())?;
    // A bare 20 more likely means 20 % than a factor of twenty.
    if share <= 1.0 || text.contains('%') {
        Ok(share)
    } else {
        Err(format!("expected at most 1, or a percentage: {text}%"))
    }
}

impl QuestionArgs {
    /// Fills in missing options from a file.
    pub(crate) fn or(self, file: Self) -> Self {
        fn first<T>(one: Vec<T>, other: Vec<T>) -> Vec<T> {
            if one.is_empty() { other } else { one }
        }
        // One kind of load replaces the other.
        let (has_trace, has_rate) = (self.trace.is_some(), self.rate.is_some());
        let lengths_of_file = !has_trace && self.dataset.is_none();
        let dataset_of_file = !has_trace && self.prompt_tokens.is_none() && self.output_tokens.is_none();
        Self {
            model: first(self.model, file.model),
            gpu: first(self.gpu, file.gpu),
            price: first(self.price, file.price),
            trace: self.trace.or(file.trace.filter(|_| !has_rate)),
            rate: self.rate.or(file.rate.filter(|_| !has_trace)),
            prompt_tokens: self.prompt_tokens.or(file.prompt_tokens.filter(|_| lengths_of_file)),
            output_tokens: self.output_tokens.or(file.output_tokens.filter(|_| lengths_of_file)),
            dataset: self.dataset.or(file.dataset.filter(|_| dataset_of_file)),
            requests: self.requests.or(file.requests),
            scale: first(self.scale, file.scale),
            slo: first(self.slo, file.slo),
            latency: self.latency.or(file.latency),
            max_gpus: self.max_gpus.or(file.max_gpus),
            gpus_per_node: self.gpus_per_node.or(file.gpus_per_node),
            max_model_len: self.max_model_len.or(file.max_model_len),
            vllm_minor: self.vllm_minor.or(file.vllm_minor),
            space: self.space.or(file.space),
            seed: self.seed.or(file.seed),
        }
    }
}
