//! Options of `vcr run` for more than one execution.

use std::num::NonZeroU16;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use vcr_scenario::search::Goal;

use crate::sweep::cluster::RayArgs;
use crate::sweep::shard::ShardArgs;

/// Questions about a scenario: searches, sweeps, repetitions.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Searches and sweeps")]
pub(crate) struct QuestionArgs {
    /// Find the highest value of a parameter at which all assertions pass, by bisection: rate=1..64.
    #[arg(long, value_name = "NAME=FROM..TO", conflicts_with = "requests")]
    pub(crate) search: Option<String>,

    /// Value to find: `broken` for the highest at which all assertions pass, `kept` for the lowest.
    #[arg(long, value_name = "END", requires = "search", default_value = "broken", hide_default_value = true)]
    pub(crate) until: Until,

    /// Distance between the values that a search may try [default: 1 for whole numbers, else about 1 % of the range].
    #[arg(long, value_name = "NUMBER", requires = "search")]
    pub(crate) tolerance: Option<f64>,

    /// Run, or search, once per value of a parameter: 1..16 (both included), 0.5..2..0.5 or a,b,c (repeatable: runs
    /// every combination).
    #[arg(long = "sweep", value_name = "NAME=VALUES", conflicts_with = "requests")]
    pub(crate) sweeps: Vec<String>,

    /// Write one row per run of a sweep, or per search, to a .csv, .json or .parquet file; an
    /// interrupted sweep continues from FILE.points.
    #[arg(long, value_name = "FILE", requires = "sweeps")]
    pub(crate) sweep_out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) shard: ShardArgs,

    #[command(flatten)]
    pub(crate) cluster: RayArgs,

    /// Run with N consecutive seeds, for confidence intervals and the share of seeds that pass each assertion.
    #[arg(long, value_name = "N", conflicts_with_all = ["out", "requests"],
          value_parser = clap::value_parser!(u64).range(2..=10_000))]
    pub(crate) repeat: Option<u64>,
}

/// Several scenarios, and scenarios that are run again.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Several scenarios")]
pub(crate) struct SeveralArgs {
    /// Further scenarios, or packs.
    #[arg(value_name = "FILE", conflicts_with_all = ["search", "sweeps", "repeat", "requests"])]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) more_files: Vec<PathBuf>,

    /// Number of scenarios to run at the same time.
    #[arg(long, value_name = "N", default_value = "1", hide_default_value = true)]
    pub(crate) jobs: NonZeroU16,

    /// Start no further scenario once one has failed.
    #[arg(long)]
    pub(crate) fail_fast: bool,

    /// Run again whenever the scenario, or a file that it reads, changes.
    #[arg(long)]
    pub(crate) watch: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Until {
    /// The highest value at which all assertions pass; higher values break some.
    Broken,
    /// The lowest value at which all assertions pass; lower values break some.
    Kept,
}

impl Until {
    pub(crate) fn goal(self) -> Goal {
        match self {
            Self::Broken => Goal::Highest,
            Self::Kept => Goal::Lowest,
        }
    }
}
