//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

/// The exit codes, as the help of every command lists them. A macro, because
/// only literals can be put together into one.
macro_rules! with_exit_codes {
    ($($text:literal)?) => {
        concat!(
            $($text, "\n\n",)?
            "Exit codes:
  0  every promise was kept
  1  a promise was broken
  2  bad usage, script or input file
  3  a guest or an engine failed"
        )
    };
}

/// As above, for commands that keep no promises.
macro_rules! with_plain_exit_codes {
    ($text:literal) => {
        concat!($text, "\n\nExit codes:\n  0  all went well\n  2  bad usage or input file")
    };
}

/// A simulator of the vLLM engine with scripted workloads and WebAssembly guests.
#[derive(Debug, Parser)]
#[command(name = "vcr", version, max_term_width = 100, after_help = with_exit_codes!())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a scenario in virtual time and check its promises.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Work with WebAssembly guests.
    #[command(after_help = GUEST_EXAMPLES)]
    Guest {
        #[command(subcommand)]
        command: GuestCommand,
    },
    /// Print a completion script for a shell.
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum GuestCommand {
    /// Build guests from source into components.
    #[command(after_help = BUILD_EXAMPLES)]
    Build(BuildArgs),
}

const RUN_EXAMPLES: &str = with_exit_codes!(
    "Examples:
  vcr run scenarios/pd_burst.rhai
  vcr run scenarios/pd_burst.rhai -e burst=400 --seed 7
  vcr run scenarios/pd_burst.rhai --json > report.json
  vcr run scenarios/pd_burst.rhai --out out    # report, requests, steps, Perfetto trace"
);

const BUILD_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr guest build                     # every guest of ./guests, into guests/dist
  vcr guest build guests/roofline     # one guest
  vcr guest build my-guest --out .

A guest is compiled with the first of these that works: an installed wasm32 target, one that
rustup can add, the toolchain's own library source, or Debian's rustc-web packages (downloaded
once, never installed). VCR_GUEST_TOOLCHAIN picks one: installed, rustup, rust-src or debian."
);

const GUEST_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr guest build                     # every guest of ./guests, into guests/dist"
);

const COMPLETIONS_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr completions bash > ~/.local/share/bash-completion/completions/vcr
  vcr completions zsh > ~/.zfunc/_vcr"
);

/// Options of `vcr run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The scenario, a Rhai script.
    pub(crate) file: PathBuf,

    /// Set a parameter that the scenario reads with param("KEY", default).
    #[arg(short = 'e', long = "env", value_name = "KEY=VALUE", value_parser = parameter)]
    pub(crate) parameters: Vec<(String, String)>,

    /// Seed of every run, in place of the scenario's own.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Runs of one run_all that go on side by side [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,

    /// Write report.json, requests.jsonl, steps.jsonl and trace.json (Perfetto) to a folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Print the report as JSON instead of the summary.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print no progress, no warnings, and of the summary only broken promises.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Options of `vcr guest build`.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Folders of guest crates, or of a workspace of them [default: guests].
    pub(crate) paths: Vec<PathBuf>,

    /// Where the components go [default: `dist` in the guests' workspace].
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Print what was built as JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print no progress.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn parameters_keep_later_equal_signs() {
        assert_eq!(parameter("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(parameter("=b").is_err());
        assert!(parameter("a").is_err());
    }
}
