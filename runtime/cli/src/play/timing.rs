//! Options of step times.

use clap::Args;

use crate::guest::config::guest_config;

#[derive(Debug, Args)]
#[command(next_help_heading = "Timing (none: as fast as possible)")]
pub(crate) struct TimingArgs {
    /// A latency model as in scenarios, or a guest: its .wasm file or oci:// reference.
    #[arg(long, value_name = "MODEL", conflicts_with_all = KNOBS)]
    pub(crate) latency: Option<String>,

    /// Configuration of the guest, as JSON.
    #[arg(long, value_name = "JSON|@FILE", requires = "latency", value_parser = guest_config)]
    pub(crate) latency_config: Option<String>,

    /// Time of a step that completes a prompt.
    #[arg(long, value_name = "TIME", conflicts_with = "prefill_overhead", value_parser = crate::values::duration)]
    pub(crate) time_to_first_token: Option<u64>,

    /// Its standard deviation.
    #[arg(long, value_name = "TIME", requires = "time_to_first_token", value_parser = crate::values::duration)]
    pub(crate) time_to_first_token_std_dev: Option<u64>,

    /// Time of a step that only decodes.
    #[arg(long, value_name = "TIME", value_parser = crate::values::duration)]
    pub(crate) inter_token_latency: Option<u64>,

    /// Its standard deviation.
    #[arg(long, value_name = "TIME", requires = "inter_token_latency", value_parser = crate::values::duration)]
    pub(crate) inter_token_latency_std_dev: Option<u64>,

    /// Like --time-to-first-token, to be used with --prefill-time-per-token.
    #[arg(long, value_name = "TIME", value_parser = crate::values::duration)]
    pub(crate) prefill_overhead: Option<u64>,

    /// Time added by each computed prompt token.
    #[arg(long, value_name = "TIME", value_parser = crate::values::duration)]
    pub(crate) prefill_time_per_token: Option<u64>,

    /// Standard deviation of --prefill-overhead.
    #[arg(long, value_name = "TIME", requires = "prefill_overhead", value_parser = crate::values::duration)]
    pub(crate) prefill_time_std_dev: Option<u64>,

    /// Slowdown of a full engine relative to a single request.
    #[arg(long, value_name = "FACTOR")]
    pub(crate) time_factor_under_load: Option<f64>,

    /// Give each request these times, whatever others do [default: they are times of steps that requests share].
    #[arg(long)]
    pub(crate) per_request_latency: bool,

    /// How long a request with structured outputs waits for its grammar.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = crate::values::duration)]
    pub(crate) grammar_compile_time: u64,

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

const KNOBS: [&str; 9] = [
    "time_to_first_token",
    "time_to_first_token_std_dev",
    "inter_token_latency",
    "inter_token_latency_std_dev",
    "prefill_overhead",
    "prefill_time_per_token",
    "prefill_time_std_dev",
    "time_factor_under_load",
    "per_request_latency",
];
