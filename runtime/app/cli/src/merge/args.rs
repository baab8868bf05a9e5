use std::path::PathBuf;

use clap::Args;

pub(crate) const EXAMPLES: &str = crate::help::with_plain_exit_codes!(
    "Examples:
  vcr run scenarios/failure_drill.rhai --sweep rate=8..32..8 --sweep-out grid.csv --shard 0/2
  vcr run scenarios/failure_drill.rhai --sweep rate=8..32..8 --sweep-out grid.csv --shard 1/2
  vcr merge grid.0-of-2.shard grid.1-of-2.shard -o grid.csv
  vcr merge shards -o grid.parquet        # every *.shard of a folder
  vcr merge grid.csv.points --partial -o some.csv     # finished points of a sweep that was killed"
);

/// Options of `vcr merge`.
#[derive(Debug, Args)]
pub(crate) struct MergeArgs {
    /// Files written by --shard, or folders of them; or the .points file of an interrupted sweep.
    #[arg(required = true, value_name = "FILE")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) files: Vec<PathBuf>,

    /// Table to write: .csv, .json or .parquet.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: PathBuf,

    /// Write a table even if points are missing.
    #[arg(long)]
    pub(crate) partial: bool,

    /// Replace an existing table.
    #[arg(long)]
    pub(crate) force: bool,

    /// Print no summary.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
