use std::path::PathBuf;

use clap::Args;
use vcr_compare::MaxRegression;

use crate::help::with_comparison_exit_codes;

pub(crate) const COMPARE_EXAMPLES: &str = with_comparison_exit_codes!(
    "Examples:
  vcr compare before after                    # two folders of `vcr run --out`
  vcr compare day.jsonl.zst out               # a simulation against what was recorded
  vcr compare before after --max-regression ttft.p99=5% --max-regression output_tokens.rate=2%
  vcr compare before after --of disaggregated --json

The first argument is the reference. Requests are matched by workload, session and turn (two runs),
by the hash of their prompts, else by the hashes of their blocks, else by their names, else by their
lengths, else by their order. Each metric defines whether higher or lower values are worse.",
    "no figure is worse than --max-regression allows",
    "a figure is worse"
);

/// Options of `vcr compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The reference: a folder of `vcr run --out`, a capture, or anything that converts to one; PATH#RUN names a run.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) reference: PathBuf,

    /// The side to compare with the reference, in any of the same forms.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) compared: PathBuf,

    /// Compare only the run of this name, if a report has several.
    #[arg(long, value_name = "RUN")]
    pub(crate) of: Option<String>,

    /// Exit with code 1 if this metric is worse by more than this percentage, such as ttft.p99=5% (repeatable).
    #[arg(long, value_name = "METRIC.STATISTIC=PERCENT%")]
    pub(crate) max_regression: Vec<MaxRegression>,

    #[command(flatten)]
    pub(crate) resampling: ResamplingArgs,

    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,

    /// Show every column, however wide.
    #[arg(long)]
    pub(crate) full: bool,
}

/// How intervals are found.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ResamplingArgs {
    /// Bootstrap resamples for confidence intervals; 0 prints none [default: 1000, fewer above 20,000 requests].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) resamples: Option<u32>,
}

/// The options of `vcr run` that compare it with an earlier one.
#[derive(Clone, Debug, Args)]
pub(crate) struct BaselineArgs {
    /// Compare the runs with an earlier `vcr run --out DIR`, or with a capture.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["more_files", "search", "sweeps", "repeat"])]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) baseline: Option<PathBuf>,

    /// Exit with code 1 if this metric is worse than the baseline's by more than this percentage, such as ttft.p99=5%
    /// (repeatable).
    #[arg(long, value_name = "METRIC.STATISTIC=PERCENT%", requires = "baseline")]
    pub(crate) max_regression: Vec<MaxRegression>,
}
