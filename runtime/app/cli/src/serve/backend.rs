//! Options that select and configure the served engine: vLLM's or SGLang's.

use clap::{Args, ValueEnum};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendArg {
    Vllm,
    Sglang,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "SGLang")]
pub(crate) struct SglangArgs {
    /// Engine to imitate, with its scheduler, API and metrics.
    #[arg(long, value_name = "NAME", value_enum, default_value = "vllm")]
    pub(super) backend: BackendArg,

    /// Size of the KV pool in tokens, instead of --num-gpu-blocks.
    #[arg(long, value_name = "TOKENS")]
    pub(super) max_total_tokens: Option<u32>,

    /// Maximum prompt tokens of a chunk [default: 8192].
    #[arg(long, value_name = "TOKENS")]
    pub(super) chunked_prefill_size: Option<u32>,

    /// Maximum prompt tokens of a pass [default: 16384].
    #[arg(long, value_name = "TOKENS")]
    pub(super) max_prefill_tokens: Option<u32>,

    /// Order of admission: fcfs, or lpm, the longest cached prefix first [default: fcfs].
    #[arg(long, value_name = "NAME", value_parser = ["fcfs", "lpm"])]
    pub(super) schedule_policy: Option<String>,

    /// Factor on the share of running requests' outputs that KV is reserved for [default: 1.0].
    #[arg(long, value_name = "FACTOR")]
    pub(super) schedule_conservativeness: Option<f64>,
}
