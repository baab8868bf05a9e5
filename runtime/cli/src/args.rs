//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::guest::args::{self as guest, CheckArgs, InspectArgs, NewArgs};
use crate::guest_registry::{self, PullArgs, PushArgs};
use crate::inspect::captures::args as captures;
use crate::play::args::PlayArgs;
use crate::record::args::RecordArgs;
use crate::replay::args::{self as replay, ReplayArgs};

/// The exit codes, as the help of every command lists them. A macro, because
/// only literals can be put together into one.
macro_rules! with_exit_codes {
    ($text:literal) => {
        concat!(
            $text,
            "\n\nExit codes:
  0  every promise was kept
  1  a promise was broken
  2  bad usage, script or input file
  3  a guest or an engine failed"
        )
    };
}

/// As above, for all commands together.
const EXIT_CODES: &str = "Exit codes:
  0  every promise was kept; what was compared is equal
  1  a promise was broken, or a difference was found
  2  bad usage, script or input file
  3  a guest or an engine failed";

/// As above, for commands that keep no promises.
macro_rules! with_plain_exit_codes {
    ($text:literal) => {
        concat!($text, "\n\nExit codes:\n  0  all went well\n  2  bad usage or input file")
    };
}

/// As above, for commands that compare.
macro_rules! with_comparison_exit_codes {
    ($text:literal, $equal:literal, $different:literal) => {
        concat!(
            $text,
            "\n\nExit codes:\n  0  ",
            $equal,
            "\n  1  ",
            $different,
            "\n  2  bad usage, or an input that cannot be read or is out of scope"
        )
    };
}

/// As above, for commands that simulate and keep no promises.
macro_rules! with_simulation_exit_codes {
    ($text:literal) => {
        concat!(
            $text,
            "\n\nExit codes:
  0  all went well
  2  bad usage or input file
  3  a guest or an engine failed"
        )
    };
}

pub(crate) use {with_comparison_exit_codes, with_plain_exit_codes, with_simulation_exit_codes};

/// A simulator of the vLLM engine with scripted workloads and WebAssembly guests.
#[derive(Debug, Parser)]
#[command(name = "vcr", version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a scenario in virtual time and check its promises.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Replay a trace as NVIDIA Dynamo's offline replay does: its options, its report.
    #[command(after_help = replay::EXAMPLES, args_override_self = true)]
    Replay(Box<ReplayArgs>),
    /// Stand behind a real vLLM frontend as its engine, in real time.
    #[command(after_help = play_help())]
    Play(Box<PlayArgs>),
    /// Stand between a real vLLM frontend and its engines, and write down what passes.
    #[command(after_help = RECORD_EXAMPLES)]
    Record(Box<RecordArgs>),
    /// Work with WebAssembly guests.
    #[command(after_help = guest::GUEST_EXAMPLES)]
    Guest {
        #[command(subcommand)]
        command: GuestCommand,
    },
    /// Look into captures and logs of engine steps, convert them, and prove them against the engine core.
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect {
        #[command(subcommand)]
        command: InspectCommand,
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
    /// Begin a guest: a project that builds and passes its own test.
    #[command(after_help = guest::NEW_EXAMPLES)]
    New(NewArgs),
    /// Build guests from source into components.
    #[command(after_help = BUILD_EXAMPLES)]
    Build(BuildArgs),
    /// Say what a component is, what it wants and whether this build can run it.
    #[command(after_help = guest::INSPECT_EXAMPLES)]
    Inspect(InspectArgs),
    /// Put a guest through thousands of calls, and check every answer.
    #[command(after_help = guest::CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Get a guest from an OCI registry, and print the reference to put into scenarios.
    #[command(after_help = guest_registry::PULL_EXAMPLES)]
    Pull(PullArgs),
    /// Put a guest into an OCI registry.
    #[command(after_help = guest_registry::PUSH_EXAMPLES)]
    Push(PushArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum InspectCommand {
    /// Say what a capture holds, in numbers.
    #[command(after_help = captures::SUMMARIZE_EXAMPLES)]
    Summarize(captures::SummarizeArgs),
    /// Convert reports, traces, spans and data sets to captures, and captures to other formats.
    #[command(after_help = captures::CONVERT_EXAMPLES)]
    Convert(captures::ConvertArgs),
    /// Show a capture in Perfetto.
    #[command(after_help = captures::PERFETTO_EXAMPLES)]
    Perfetto(captures::PerfettoArgs),
    /// Compare two captures: what was asked, what was answered.
    #[command(after_help = captures::DIFF_EXAMPLES)]
    Diff(captures::DiffArgs),
    /// Make up a capture: heavy tails, bursts, sessions, shared prefixes.
    #[command(after_help = captures::DEMO_EXAMPLES)]
    GenDemo(captures::DemoArgs),
    /// Print the JSON Schema of captures.
    #[command(after_help = captures::SCHEMA_EXAMPLES)]
    Schema,
    /// Replay recordings of a real engine and compare every decision.
    #[command(after_help = CONFORM_EXAMPLES)]
    Conform(ConformArgs),
    /// Show the steps of a log, explain one of them, or compare two logs.
    #[command(after_help = STEPS_EXAMPLES)]
    Steps(StepsArgs),
}

/// Examples of `vcr play`, and how faults are written.
fn play_help() -> String {
    format!("{PLAY_EXAMPLES}\n\nFaults are written {}", vcr_live::FaultRule::SYNTAX)
}

const PLAY_EXAMPLES: &str = "Examples:
  vllm-rs serve MODEL --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 29550 \\
      --data-parallel-size 1 --data-parallel-size-local 0 &
  vcr play --handshake-address tcp://127.0.0.1:29550 --inter-token-latency 10ms
  vcr play --time-to-first-token 200ms --inter-token-latency 10ms --max-num-seqs 64
  vcr play --latency 'roofline(#{ model: \"llama-3.1-8b\", gpu: \"h100-sxm\" })'
  vcr play --latency guests/dist/thermal.wasm --data-parallel-size 2
  vcr play --data-parallel-size 4 --router prefix-affinity
  vcr play --data-parallel-size 4 --router guests/dist/prefix-affinity.wasm \\
      --router-config '{\"max_waiting\": 64}' --router-fallback least-loaded
  vcr play --enable-kv-cache-events --kv-events-endpoint 'tcp://*:5557' --num-gpu-blocks 4096
  vcr play --fault error:rate=0.05,after=10 --fault stall:for=2s,at=30s
  vcr play --metrics-address 0.0.0.0:9091 --admin-address 127.0.0.1:9090
  vcr play --replay day.jsonl.zst --strict --replay-report report.json
  vcr play --replay day.jsonl.zst --replay-times model --inter-token-latency 10ms

Exit codes:
  0  stopped by a signal, after the requests under way
  1  with --strict: a request was not in the capture
  2  bad usage, or an address that cannot be used
  3  a guest or an engine failed";

const RECORD_EXAMPLES: &str = "Examples:
  vllm-rs serve MODEL --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 29550 \\
      --data-parallel-size 1 --data-parallel-size-local 0 &
  vcr record --out day.jsonl.zst --model llama-3.1-8b --gpu h100-sxm &
  vllm serve MODEL --headless --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 29560
  vcr record --out day.jsonl.gz --rotate-size 1GB --rotate-time 10m
  vcr record --out kv.jsonl --kv-events tcp://127.0.0.1:5557
  vcr record --out far.jsonl --engine-handshake tcp://0.0.0.0:29560 --bind-host 10.0.0.5

What a capture discloses: lengths and times of requests, sampling parameters with stop texts,
schemas and the like, names of adapters and sessions, and hashes of every block of each prompt.
Who can guess a prompt can tell by those hashes whether it was sent. Texts can be read only with
--record-tokens (answers) and --record-prompts. docs/record.md says more.

Exit codes:
  0  stopped by a signal, all that passed was written or counted
  2  bad usage, or an address or a file that cannot be used
  3  the capture could not be written to its end, or the sockets failed";

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
  vcr guest build guests-python/per-token        # a guest in Python, by componentize-py

A guest is compiled with the first of these that works: an installed wasm32 target, one that
rustup can add, the toolchain's own library source, or Debian's rustc-web packages (downloaded
once, never installed). VCR_GUEST_TOOLCHAIN picks one: installed, rustup, rust-src or debian."
);

const INSPECT_EXAMPLES: &str = with_comparison_exit_codes!(
    "Examples:
  vcr inspect summarize capture.jsonl # what a capture holds
  vcr inspect conform recordings/     # does the core decide as the recorded engine did?
  vcr inspect steps out --step 200    # what was in step 200, and why",
    "all went well; what was compared is equal",
    "a difference was found"
);

const CONFORM_EXAMPLES: &str = with_comparison_exit_codes!(
    "Examples:
  vcr inspect conform recordings/
  vcr inspect conform recordings/fcfs-preempt captures/burst
  vcr inspect conform recordings/ --json > conform.json

A recording is a folder with `steps.jsonl`, `requests.jsonl`, and `config.json` (of the
scheduler alone) or `engine.json` (of a live engine). docs/step-logs.md says how to make one.",
    "every decision of every recording is the same",
    "a decision differs"
);

const STEPS_EXAMPLES: &str = with_comparison_exit_codes!(
    "Examples:
  vcr inspect steps out                                # steps.jsonl of `vcr run --out out`
  vcr inspect steps out --engine decode/1 --from 300 --limit 20
  vcr inspect steps recordings/fcfs-preempt --step 200
  vcr inspect steps out --diff other-out               # the first step that differs",
    "all went well; with --diff: the logs are equal",
    "with --diff: the logs differ"
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

/// Options of `vcr inspect conform`.
#[derive(Debug, Args)]
pub(crate) struct ConformArgs {
    /// Recordings, or folders of recordings.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,

    /// Print the reports as JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print no progress, and of the results only differences.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Options of `vcr inspect steps`.
#[derive(Debug, Args)]
pub(crate) struct StepsArgs {
    /// A step log, or the folder that its steps.jsonl lies in.
    pub(crate) log: PathBuf,

    /// Show step N in full, and why it is as it is.
    #[arg(long, value_name = "N", conflicts_with_all = ["from", "limit", "diff"])]
    pub(crate) step: Option<u64>,

    /// Compare with another log, step by step.
    #[arg(long, value_name = "OTHER", conflicts_with_all = ["from", "limit"])]
    pub(crate) diff: Option<PathBuf>,

    /// Only this engine.
    #[arg(long, value_name = "POOL/INDEX", value_parser = engine)]
    pub(crate) engine: Option<(String, u32)>,

    /// Only this run of the scenario.
    #[arg(long, value_name = "RUN")]
    pub(crate) of: Option<String>,

    /// Begin with step N.
    #[arg(long, value_name = "N")]
    pub(crate) from: Option<u64>,

    /// Show so many steps [default: 40; with --json all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,

    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

fn engine(text: &str) -> Result<(String, u32), String> {
    let parts = text.rsplit_once('/').and_then(|(pool, index)| Some((pool.to_owned(), index.parse().ok()?)));
    parts.filter(|(pool, _)| !pool.is_empty()).ok_or_else(|| "write it as POOL/INDEX, such as decode/0".to_owned())
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

    #[test]
    fn engines_are_a_pool_and_an_index() {
        assert_eq!(engine("decode/1"), Ok(("decode".to_owned(), 1)));
        for wrong in ["decode", "decode/", "/1", "decode/x", "decode/-1"] {
            assert!(engine(wrong).is_err(), "{wrong}");
        }
    }
}
