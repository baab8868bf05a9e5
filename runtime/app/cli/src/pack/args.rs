use std::path::PathBuf;

use clap::Args;

use crate::help::with_plain_exit_codes;
use crate::values::parameter;

pub(crate) const PACK_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr pack scenarios/pd_burst.rhai -o bug.vcr
  vcr pack scenarios/pd_burst.rhai --seed 7 -o bug.vcr
  vcr pack scenarios/trace_replay.rhai --redact -o bug.vcr    # no contents of traces
  vcr run bug.vcr                              # on another machine: compare the results

The scenario is run once. The pack has the script, every file it reads, the options, the report,
the fingerprint, and a digest of each step, so that a later run can name the first that differs.
Packing the same again gives the same bytes. Failed assertions are part of the result."
);

pub(crate) const UNPACK_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr unpack bug.vcr                  # into ./bug
  vcr unpack bug.vcr -o somewhere"
);

pub(crate) const INSPECT_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr inspect pack bug.vcr
  vcr inspect pack bug.vcr --json | jq .expected.fingerprint"
);

/// Options of `vcr pack`.
#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// The scenario, a Rhai script.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) file: PathBuf,

    /// The pack to write [default: the scenario's name with .vcr].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Keep only lengths, hashes and times of traces and captures, and pack the result of a run with these.
    #[arg(long)]
    pub(crate) redact: bool,

    /// Set a parameter that the scenario reads with param("KEY", default).
    #[arg(short = 'e', long = "env", value_name = "KEY=VALUE", value_parser = parameter)]
    pub(crate) parameters: Vec<(String, String)>,

    /// Seed of every run, instead of the scenario's own.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Simulate each run N more times with randomly drawn latency-model coefficients.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) uncertainty: Option<u16>,

    /// Threads for the runs of run_all and the draws of --uncertainty [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,

    /// Replace an existing pack.
    #[arg(long)]
    pub(crate) force: bool,

    /// Print nothing but errors.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Options of `vcr unpack`.
#[derive(Debug, Args)]
pub(crate) struct UnpackArgs {
    /// The pack.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) pack: PathBuf,

    /// The folder to make [default: the pack's name without .vcr].
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// Options of `vcr inspect pack`.
#[derive(Debug, Args)]
pub(crate) struct InspectPackArgs {
    /// The pack.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) pack: PathBuf,

    /// Print the manifest of the pack as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
