//! Options of `vcr replay --engine ticks`.

use clap::Args;
use vcr_dynamo::ticks::TickSettings;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine of ticks (instead of workers)")]
pub(crate) struct TickArgs {
    /// Schedule in ticks; the trace is then a tick workload in JSON (docs/reference/ticks.md).
    #[arg(long, value_name = "ENGINE", value_parser = ["ticks"], conflicts_with_all = [
        "TraceArgs", "SyntheticArgs", "ClusterArgs", "RouterFlags", "sweeps", "RefusedArgs",
        "replay_mode", "seed", "strict", "max_sim_time", "max_sim_time_seconds", "threads", "sla_ttft_ms", "sla_itl_ms", "sla_e2e_ms",
        "report_jsonl", "telemetry", "capacity", "report_format", "table", "host_times",
    ])]
    pub(crate) engine: Option<String>,

    /// KV pages [default: the workload's].
    #[arg(long, value_name = "N", requires = "engine", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) total_kv_pages: Option<u32>,

    /// Tokens per KV page [default: the workload's].
    #[arg(long, value_name = "N", requires = "engine", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) page_size_tokens: Option<u32>,

    /// Maximum number of admitted requests [default: the workload's].
    #[arg(long, value_name = "N", requires = "engine", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_active: Option<u32>,

    /// Maximum prompt tokens of the requests that one tick admits [default: the workload's].
    #[arg(long, value_name = "N", requires = "engine", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prefill_tokens_per_tick: Option<u32>,

    /// Maximum number of requests that get a token in one tick [default: the workload's].
    #[arg(long, value_name = "N", requires = "engine", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) decode_width: Option<u32>,
}

impl TickArgs {
    /// The settings given.
    pub(crate) fn settings(&self) -> TickSettings {
        TickSettings {
            total_kv_pages: self.total_kv_pages,
            page_size_tokens: self.page_size_tokens,
            max_active: self.max_active,
            prefill_tokens_per_tick: self.prefill_tokens_per_tick,
            decode_width: self.decode_width,
        }
    }
}
