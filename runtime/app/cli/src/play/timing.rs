//! Timing options, of requests or of steps.

use clap::Args;

use crate::guest::config::guest_config;

#[derive(Debug, Args)]
#[command(next_help_heading = "Timing (none: as fast as possible)")]
pub(crate) struct TimingArgs {
    /// A latency model as in scenarios, or a guest: its .wasm file or oci:// reference.
    #[arg(long, value_name = "MODEL", conflicts_with_all = KNOBS)]
    pub(crate) latency: Option<String>,

    /// Configuration of the guest of --latency, as JSON.
    #[arg(long, value_name = "JSON|@FILE", requires = "latency", value_parser = guest_config)]
    pub(crate) latency_config: Option<String>,

    /// Time to first token of each request as clients measure it, at any load [default: 0].
    #[arg(long, value_name = "TIME", conflicts_with = "prefill_overhead", value_parser = crate::values::duration)]
    pub(crate) time_to_first_token: Option<u64>,

    /// Standard deviation of --time-to-first-token.
    #[arg(long, value_name = "TIME", requires = "time_to_first_token", value_parser = crate::values::duration)]
    pub(crate) time_to_first_token_std_dev: Option<u64>,

    /// Time between tokens of each request as clients measure it, at any load [default: 0].
    #[arg(long, value_name = "TIME", value_parser = crate::values::duration)]
    pub(crate) inter_token_latency: Option<u64>,

    /// Standard deviation of --inter-token-latency.
    #[arg(long, value_name = "TIME", requires = "inter_token_latency", value_parser = crate::values::duration)]
    pub(crate) inter_token_latency_std_dev: Option<u64>,

    /// Same as --time-to-first-token, for use with --prefill-time-per-token.
    #[arg(long, value_name = "TIME", value_parser = crate::values::duration)]
    pub(crate) prefill_overhead: Option<u64>,

    /// Standard deviation of --prefill-overhead.
    #[arg(long, value_name = "TIME", requires = "prefill_overhead", value_parser = crate::values::duration)]
    pub(crate) prefill_time_std_dev: Option<u64>,

    /// Duration of each step that completes a prompt; all requests in the step wait for it [default: 0].
    #[arg(long, value_name = "TIME", conflicts_with_all = REQUEST_TIMES, value_parser = crate::values::duration)]
    pub(crate) prefill_step_time: Option<u64>,

    /// Standard deviation of --prefill-step-time.
    #[arg(long, value_name = "TIME", requires = "prefill_step_time", value_parser = crate::values::duration)]
    pub(crate) prefill_step_time_std_dev: Option<u64>,

    /// Duration of each step that only decodes [default: 0].
    #[arg(long, value_name = "TIME", conflicts_with_all = REQUEST_TIMES, value_parser = crate::values::duration)]
    pub(crate) decode_step_time: Option<u64>,

    /// Standard deviation of --decode-step-time.
    #[arg(long, value_name = "TIME", requires = "decode_step_time", value_parser = crate::values::duration)]
    pub(crate) decode_step_time_std_dev: Option<u64>,

    /// Time added for each computed prompt token: to the request's first token, or to the step with
    /// --prefill-step-time or --decode-step-time.
    #[arg(long, value_name = "TIME", value_parser = crate::values::duration)]
    pub(crate) prefill_time_per_token: Option<u64>,

    /// How many times slower a full engine is than an engine with a single request [default: 1].
    #[arg(long, value_name = "FACTOR")]
    pub(crate) time_factor_under_load: Option<f64>,

    /// Time that a request with structured outputs waits for its grammar.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = crate::values::duration)]
    pub(crate) grammar_compile_time: u64,

    /// Divide all times by this factor.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) time_scale: f64,
}

impl TimingArgs {
    /// Whether the given times are those of steps.
    pub(crate) fn are_of_steps(&self) -> bool {
        self.prefill_step_time.is_some() || self.decode_step_time.is_some()
    }

    /// Whether any timing option was given.
    pub(crate) fn is_given(&self) -> bool {
        self.latency.is_some()
            || self.time_to_first_token.is_some()
            || self.inter_token_latency.is_some()
            || self.prefill_overhead.is_some()
            || self.are_of_steps()
            || self.prefill_time_per_token.is_some()
    }
}

/// Options with times of single requests.
const REQUEST_TIMES: [&str; 3] = ["time_to_first_token", "inter_token_latency", "prefill_overhead"];

const KNOBS: [&str; 12] = [
    "time_to_first_token",
    "time_to_first_token_std_dev",
    "inter_token_latency",
    "inter_token_latency_std_dev",
    "prefill_overhead",
    "prefill_time_std_dev",
    "prefill_step_time",
    "prefill_step_time_std_dev",
    "decode_step_time",
    "decode_step_time_std_dev",
    "prefill_time_per_token",
    "time_factor_under_load",
];
