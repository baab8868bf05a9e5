use std::path::PathBuf;

use clap::{Args, Subcommand};
use vcr_latency::tables::TablesInput;

use crate::deferred::Deferred;
use crate::help::with_plain_exit_codes;

pub(crate) const TABLES_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  pip install aiconfigurator-core==0.12.0
  export VCR_TABLES=$VIRTUAL_ENV                 # or --data DIR
  vcr tables list                                # systems, backends, versions, models
  vcr tables show h100_sxm                       # operators: rows and ranges
  vcr tables check h100_sxm meta-llama/Meta-Llama-3.1-70B --tensor-parallel 4

The tables are NVIDIA's, of the package aiconfigurator-core; vcr has none of its own. In scenarios:
  latency: tables(#{ system: \"h100_sxm\", model: \"meta-llama/Meta-Llama-3.1-70B\",
      tensor_parallel: 4 })"
);

pub(crate) const LIST_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr tables list --data ~/venv
  vcr tables list --json"
);

pub(crate) const SHOW_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr tables show h100_sxm
  vcr tables show b200_sxm --backend vllm --version 0.24.0 --json"
);

pub(crate) const CHECK_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr tables check h100_sxm meta-llama/Meta-Llama-3.1-70B --tensor-parallel 4
  vcr tables check b200_sxm openai/gpt-oss-120b --tensor-parallel 2 --json
  vcr tables check h200_sxm deepseek-ai/DeepSeek-V3 --tensor-parallel 8 --expert-parallel 8
  vcr tables check h100_sxm ./config.json        # your own model

It prints the operators of one step and the times of typical steps, with the shares of time from
rows of the tables, interpolation, extrapolation and formulas."
);

pub(crate) const PRICE_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr tables price h100_sxm meta-llama/Meta-Llama-3.1-70B --tensor-parallel 4 --steps steps.jsonl
  vcr tables price h100_sxm meta-llama/Meta-Llama-3.1-8B --operators --steps -   # typed in

Each line of the file is a step, such as {\"decode_requests\": 64, \"decode_context_tokens\": 131072}.
Fields: prefill_requests, prefill_tokens, prefill_context_tokens, prefill_attention_pairs,
decode_requests, decode_tokens, decode_context_tokens, sampled_requests. Defaults: the pairs of
prompts of equal length, one token for each decode, one output for each request. For each step a
line of JSON is printed: nanoseconds, in total and by source."
);

#[derive(Debug, Subcommand)]
pub(crate) enum TablesCommand {
    /// List systems, backends, versions and models.
    #[command(after_help = LIST_EXAMPLES)]
    List(Deferred<ListArgs>),
    /// Show the tables of a system: rows and ranges.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(Deferred<ShowArgs>),
    /// Show which part of a model's step times is measured, interpolated, extrapolated or computed.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Deferred<CheckArgs>),
    /// Compute the times of the steps in a file.
    #[command(after_help = PRICE_EXAMPLES)]
    Price(Deferred<PriceArgs>),
}

/// Path of the package.
#[derive(Debug, Args)]
pub(crate) struct DataArgs {
    /// Folder of the package aiconfigurator-core, or of the virtual environment that has it.
    #[arg(long, value_name = "DIR", env = vcr_latency::tables::DATA_VARIABLE)]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) data: Option<PathBuf>,
}

/// Options of `vcr tables list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) data: DataArgs,

    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Backend of the measured kernels, and their place.
#[derive(Debug, Args)]
pub(crate) struct StackArgs {
    #[command(flatten)]
    pub(crate) data: DataArgs,

    /// The GPU, such as h100_sxm.
    pub(crate) system: String,

    /// Backend whose kernels were measured.
    #[arg(long, default_value = "vllm", value_name = "NAME")]
    pub(crate) backend: String,

    /// The backend's version [default: the latest with tables].
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<String>,
}

/// Options of `vcr tables show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) stack: StackArgs,

    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A model on GPUs.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    pub(crate) stack: StackArgs,

    /// A model that `vcr tables list` names, or the path of a config.json.
    pub(crate) model: String,

    /// GPUs that share the attention of a rank.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) tensor_parallel: u32,

    /// GPUs that experts are distributed over.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) expert_parallel: u32,

    /// Ranks with separate attention and shared experts.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) attention_dp: u32,

    /// Data type of matrix multiplications [default: the model's].
    #[arg(long, value_name = "DTYPE")]
    pub(crate) gemm_dtype: Option<String>,

    /// Data type of experts [default: the model's].
    #[arg(long, value_name = "DTYPE")]
    pub(crate) moe_dtype: Option<String>,

    /// Data type of the KV cache [default: the model's].
    #[arg(long, value_name = "DTYPE")]
    pub(crate) kv_cache_dtype: Option<String>,

    /// Data type of prefill attention [default: bfloat16].
    #[arg(long, value_name = "DTYPE")]
    pub(crate) attention_dtype: Option<String>,
}

impl ModelArgs {
    pub(crate) fn input(&self) -> TablesInput {
        let stack = &self.stack;
        TablesInput {
            data: stack.data.data.clone(),
            system: stack.system.clone(),
            backend: stack.backend.clone(),
            version: stack.version.clone(),
            model: self.model.clone(),
            tensor_parallel: self.tensor_parallel,
            expert_parallel: self.expert_parallel,
            attention_dp: self.attention_dp,
            gemm_dtype: self.gemm_dtype.clone(),
            moe_dtype: self.moe_dtype.clone(),
            kv_cache_dtype: self.kv_cache_dtype.clone(),
            attention_dtype: self.attention_dtype.clone(),
        }
    }
}

/// Options of `vcr tables check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `vcr tables price`.
#[derive(Debug, Args)]
pub(crate) struct PriceArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// File with a step per line, as a JSON object; - for standard input.
    #[arg(long, value_name = "FILE")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) steps: PathBuf,

    /// Add the time of each operator.
    #[arg(long)]
    pub(crate) operators: bool,
}
