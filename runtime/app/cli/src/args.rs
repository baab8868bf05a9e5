//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "live")]
use clap::{Arg, ArgAction};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use vcr_scenario::OutFile;

#[cfg(not(feature = "serve"))]
use crate::absent::AbsentArgs as ServeArgs;
#[cfg(not(feature = "fit"))]
use crate::absent::{AbsentArgs as CalibrateArgs, AbsentArgs as FitArgs};
#[cfg(not(feature = "live"))]
use crate::absent::{AbsentArgs as KvBenchArgs, AbsentArgs as PlayArgs, AbsentArgs as RecordArgs};
use crate::check::{self, CheckArgs};
use crate::compare::args::{BaselineArgs, COMPARE_EXAMPLES, CompareArgs};
#[cfg(feature = "live")]
use crate::deferred::options;
use crate::deferred::{Deferred, with_negative_numbers};
#[cfg(feature = "fit")]
use crate::fit::args::{CALIBRATE_EXAMPLES, CalibrateArgs, FIT_EXAMPLES, FitArgs};
use crate::gate::args::{GATE_EXAMPLES, GateArgs, MIRROR_EXAMPLES, MirrorArgs};
use crate::guest::args::{
    self as guest, BuildArgs, CallArgs, CheckArgs as CheckGuestArgs, InspectArgs, NewArgs, VocabularyArgs, WitArgs,
};
use crate::guest::registry::{self, PullArgs, PushArgs};
use crate::health;
use crate::help::{
    BUILD_EXAMPLES, COMPLETIONS_EXAMPLES, CONFORM_EXAMPLES, INSPECT_EXAMPLES, RECORD_EXAMPLES, RUN_EXAMPLES,
    STEPS_EXAMPLES, exit_codes,
};
use crate::inspect::captures::args as captures;
#[cfg(feature = "live")]
use crate::inspect::kv_bench::{KV_BENCH_EXAMPLES, KvBenchArgs};
use crate::inspect::model::{MODEL_EXAMPLES, ModelArgs};
use crate::inspect::pressure::{PRESSURE_EXAMPLES, PressureArgs};
use crate::inspect::vllm_args::{VLLM_ARGS_EXAMPLES, VllmArgsArgs};
use crate::man::args::{self as man, ManArgs};
use crate::merge::args::{self as merge, MergeArgs};
use crate::new::NewCommand;
use crate::pack::args as pack;
use crate::plan::args::{self as plan, PlanArgs};
#[cfg(feature = "live")]
use crate::play::args::PlayArgs;
#[cfg(feature = "live")]
use crate::record::args::RecordArgs;
use crate::replay::args::{self as replay, ReplayArgs};
use crate::report::{REPORT_EXAMPLES, ReportArgs};
use crate::run::args::{QuestionArgs, SeveralArgs};
#[cfg(feature = "serve")]
use crate::serve::args::ServeArgs;
use crate::tables::args::{self as tables, TablesCommand};
use crate::upload::args::{self as upload, UploadArgs};
use crate::values::{memory_limit, parameter, time_limit, timeout};

/// Display order after the other options and before the help.
const LAST: usize = 900;

/// A simulator of the vLLM engine with scripted workloads and WebAssembly guests.
#[derive(Debug, Parser)]
#[command(name = "vcr", version, max_term_width = 100, after_help = exit_codes())]
pub(crate) struct Cli {
    /// End the command after this time, such as 90s or 10m, and write the results so far, as after a signal.
    #[arg(long, global = true, display_order = LAST, value_name = "DURATION", value_parser = timeout)]
    pub(crate) timeout: Option<Duration>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a scenario, in virtual time or on a target, and check its assertions.
    #[command(after_help = RUN_EXAMPLES)]
    Run(Deferred<RunArgs>),
    /// Check scenarios without running them: names, types, units, files, guests.
    #[command(after_help = check::EXAMPLES)]
    Check(Deferred<CheckArgs>),
    /// Find the cheapest deployment of a model that meets objectives under a load.
    #[command(after_help = plan::EXAMPLES)]
    Plan(Deferred<PlanArgs>),
    /// Create a scenario from a template.
    New {
        #[command(subcommand)]
        command: NewCommand,
    },
    /// Pack a scenario with everything it reads and its result into one file.
    #[command(after_help = pack::PACK_EXAMPLES)]
    Pack(Deferred<pack::PackArgs>),
    /// Unpack a pack into a folder.
    #[command(after_help = pack::UNPACK_EXAMPLES)]
    Unpack(Deferred<pack::UnpackArgs>),
    /// Compare two runs, two captures, or a run with a capture, and limit regressions.
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(Deferred<CompareArgs>),
    /// Join the shard files of a sweep into one table.
    #[command(after_help = merge::EXAMPLES)]
    Merge(Deferred<MergeArgs>),
    /// Convert captures, runs and files of other tools to observations for vcr gate.
    #[command(after_help = MIRROR_EXAMPLES)]
    Mirror(Deferred<MirrorArgs>),
    /// Compare a candidate release with a baseline: promote, hold or roll back.
    #[command(after_help = GATE_EXAMPLES)]
    Gate(Deferred<GateArgs>),
    /// Replay a trace with the options and the report of NVIDIA Dynamo's offline replay.
    #[command(after_help = replay::EXAMPLES, args_override_self = true)]
    Replay(Deferred<ReplayArgs>),
    /// Serve a real vLLM frontend as its engine, in real time.
    Play(Deferred<PlayArgs>),
    /// Serve OpenAI's API as vLLM does, with simulated engines in the same process.
    Serve(Deferred<ServeArgs>),
    /// Check whether a server is up: exit code 0 if it is, 1 if it is not.
    #[command(after_help = health::EXAMPLES)]
    Health(Deferred<health::HealthArgs>),
    /// Record the traffic between a real vLLM frontend and its engines, or between HTTP clients and any server.
    #[command(after_help = RECORD_EXAMPLES)]
    Record(Deferred<RecordArgs>),
    /// Fit a latency model to measurements of a real engine.
    #[cfg_attr(feature = "fit", command(after_help = FIT_EXAMPLES))]
    Fit(Deferred<FitArgs>),
    /// Predict measured requests with a latency model, and show the errors of the prediction.
    #[cfg_attr(feature = "fit", command(after_help = CALIBRATE_EXAMPLES))]
    Calibrate(Deferred<CalibrateArgs>),
    /// Convert the report of a run to a page, JUnit, Markdown, OpenMetrics or tables, or compare runs on a page.
    #[command(after_help = REPORT_EXAMPLES)]
    Report(Deferred<ReportArgs>),
    /// Work with WebAssembly guests.
    #[command(after_help = guest::GUEST_EXAMPLES)]
    Guest {
        #[command(subcommand)]
        command: GuestCommand,
    },
    /// Inspect, convert and compare captures and step logs.
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect {
        #[command(subcommand)]
        command: InspectCommand,
    },
    /// Show operator tables measured on GPUs, and compute a model's step times from them.
    #[command(after_help = tables::TABLES_EXAMPLES)]
    Tables {
        #[command(subcommand)]
        command: TablesCommand,
    },
    /// Upload outputs that an earlier command could not upload.
    #[command(after_help = upload::EXAMPLES)]
    Upload(Deferred<UploadArgs>),
    /// Print a completion script for a shell.
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write manual pages, one for each command, to a folder.
    #[command(after_help = man::EXAMPLES)]
    Man(Deferred<ManArgs>),
}

#[derive(Debug, Subcommand)]
pub(crate) enum GuestCommand {
    /// Create a guest project that builds and passes its own test.
    #[command(after_help = guest::NEW_EXAMPLES)]
    New(Deferred<NewArgs>),
    /// Build guests from source into components.
    #[command(after_help = BUILD_EXAMPLES)]
    Build(Deferred<BuildArgs>),
    /// Describe a component: its world, imports and limits, and whether this build can run it.
    #[command(after_help = guest::INSPECT_EXAMPLES)]
    Inspect(Deferred<InspectArgs>),
    /// Call a guest thousands of times and check every answer.
    #[command(after_help = guest::CHECK_EXAMPLES)]
    Check(Deferred<CheckGuestArgs>),
    /// Measure time, fuel and memory of a guest's calls.
    #[command(after_help = guest::BENCH_EXAMPLES)]
    Bench(Deferred<CheckGuestArgs>),
    /// Make one call of a guest by hand, and print its answer.
    #[command(after_help = guest::CALL_EXAMPLES)]
    Call(Deferred<CallArgs>),
    /// Print the interface of guests.
    #[command(after_help = guest::WIT_EXAMPLES)]
    Wit(Deferred<WitArgs>),
    /// Convert a tokenizer.json to the config of the token source json-tokens.
    #[command(after_help = guest::VOCABULARY_EXAMPLES)]
    Vocabulary(Deferred<VocabularyArgs>),
    /// Pull a guest from an OCI registry, and print its reference with the digest.
    #[command(after_help = registry::PULL_EXAMPLES)]
    Pull(Deferred<PullArgs>),
    /// Push a guest to an OCI registry.
    #[command(after_help = registry::PUSH_EXAMPLES)]
    Push(Deferred<PushArgs>),
}

#[derive(Debug, Subcommand)]
pub(crate) enum InspectCommand {
    /// Summarize a capture.
    #[command(after_help = captures::SUMMARIZE_EXAMPLES)]
    Summarize(Deferred<captures::SummarizeArgs>),
    /// Convert reports, traces, spans and data sets to captures, and captures to other formats.
    #[command(after_help = captures::CONVERT_EXAMPLES)]
    Convert(Deferred<captures::ConvertArgs>),
    /// Convert a capture to a Perfetto trace.
    #[command(after_help = captures::PERFETTO_EXAMPLES)]
    Perfetto(Deferred<captures::PerfettoArgs>),
    /// Compare the requests and answers of two captures.
    #[command(after_help = captures::DIFF_EXAMPLES)]
    Diff(Deferred<captures::DiffArgs>),
    /// Generate a synthetic capture: heavy tails, bursts, sessions, shared prefixes.
    #[command(after_help = captures::DEMO_EXAMPLES)]
    GenDemo(Deferred<captures::DemoArgs>),
    /// Print the JSON Schema of captures.
    #[command(after_help = captures::SCHEMA_EXAMPLES)]
    Schema,
    /// Check a pack and list its contents.
    #[command(after_help = pack::INSPECT_EXAMPLES)]
    Pack(Deferred<pack::InspectPackArgs>),
    /// Replay recordings of a real engine and compare every decision.
    #[command(after_help = CONFORM_EXAMPLES)]
    Conform(Deferred<ConformArgs>),
    /// Show the steps of a log, explain one of them, or compare two logs.
    #[command(after_help = STEPS_EXAMPLES)]
    Steps(Deferred<StepsArgs>),
    /// Show which limits made requests wait in a run, with queue, active requests and KV over time.
    #[command(after_help = PRESSURE_EXAMPLES)]
    Pressure(Deferred<PressureArgs>),
    /// Show the simulation's equivalent of each argument of a `vllm serve` command line.
    #[command(after_help = VLLM_ARGS_EXAMPLES)]
    VllmArgs(Deferred<VllmArgsArgs>),
    /// Show a model's layers, KV-cache groups, weights and KV blocks.
    #[command(after_help = MODEL_EXAMPLES)]
    Model(Deferred<ModelArgs>),
    /// Measure how fast KV moves between two processes.
    #[cfg_attr(feature = "live", command(after_help = KV_BENCH_EXAMPLES))]
    KvBench(Deferred<KvBenchArgs>),
}

#[cfg(feature = "live")]
/// Options of `vcr play` in its short help; `--help-all` shows all.
const PLAY_COMMON: &[&str] = &[
    "handshake_address",
    "data_parallel_size",
    "num_gpu_blocks",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "router",
    "latency",
    "time_to_first_token",
    "inter_token_latency",
    "prefill_step_time",
    "decode_step_time",
    "tokens",
    "enable_kv_cache_events",
    "faults",
    "playback",
    "strict",
    "admin_address",
    "metrics_address",
    "quiet",
];

#[cfg(feature = "live")]
/// Help template of commands with live engines: examples first, then options.
const PLAY_TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

{before-help}{all-args}{after-help}";

/// The complete command line, for parsing and for the documentation.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    #[cfg(feature = "live")]
    let command = command.mut_subcommand("play", |play| play.defer(play_options));
    #[cfg(feature = "serve")]
    let command = command.mut_subcommand("serve", |serve| serve.defer(serve_options));
    with_negative_numbers(command)
}

#[cfg(feature = "live")]
fn play_options(play: clap::Command) -> clap::Command {
    live_help(options::<PlayArgs>(play), PLAY_COMMON, crate::help::PLAY_EXAMPLES, "")
}

#[cfg(feature = "serve")]
fn serve_options(serve: clap::Command) -> clap::Command {
    // The default is `english` in builds with a tokenizer.
    let serve = options::<ServeArgs>(serve).mut_arg("tokens", |tokens| {
        tokens
            .default_value("english")
            .help("Source of output tokens: `english`, `random`, `echo`, a .jsonl file, or a guest")
    });
    let reasons = crate::serve::vllm_flags::reasons(&serve);
    live_help(serve, crate::serve::args::SERVE_COMMON, crate::help::SERVE_EXAMPLES, &reasons)
}

#[cfg(feature = "live")]
fn live_help(command: clap::Command, common: &'static [&str], examples: &'static str, further: &str) -> clap::Command {
    let faults = format!("Faults are written {}\n\n{further}", vcr_live::FaultRule::syntax());
    let faults = faults.trim_end().to_owned();
    let name = command.get_name().to_owned();
    command
        .disable_help_flag(true)
        .help_template(PLAY_TEMPLATE)
        .before_help(examples)
        .after_help(format!("`vcr {name} --help-all` lists every option and the syntax of faults."))
        .after_long_help(faults)
        .mut_args(|arg| {
            // Options of all commands are already in the short help.
            let is_common = common.contains(&arg.get_id().as_str()) || arg.is_global_set();
            arg.hide_short_help(!is_common)
        })
        .arg(Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print help"))
        .arg(Arg::new("help_all").long("help-all").action(ArgAction::HelpLong).help("Print help on every option"))
}

/// Options of `vcr run`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// The scenario, a Rhai script, or a pack of one.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) file: PathBuf,

    /// Set a parameter that the scenario reads with param("KEY", default).
    #[arg(short = 'e', long = "env", value_name = "KEY=VALUE", value_parser = parameter)]
    pub(crate) parameters: Vec<(String, String)>,

    /// Target of every run, instead of the scenario's own: virtual, live, serve, a URL such as
    /// http://localhost:8000, or an expression such as http("http://...", #{ model: "..." }).
    #[arg(long, value_name = "TARGET")]
    pub(crate) target: Option<String>,

    /// Seed of every run, instead of the scenario's own.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Threads for the runs of run_all and the draws of --uncertainty [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,

    /// Simulate each run N more times with randomly drawn latency-model coefficients, for intervals of all metrics.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) uncertainty: Option<u16>,

    /// End the scenario with an error when it makes more than N runs.
    #[arg(long, value_name = "N", default_value_t = vcr_scenario::DEFAULT_MAX_RUNS)]
    pub(crate) max_runs: u64,

    /// End each run at this virtual time, such as 10m; a run that is cut short is marked partial.
    #[arg(long, value_name = "DURATION", value_parser = time_limit, conflicts_with = "pack_on_failure")]
    pub(crate) max_sim_time: Option<u64>,

    /// Maximum memory of the process, such as 4GiB [default: 80 % of the available memory].
    #[arg(long, value_name = "SIZE", value_parser = memory_limit)]
    pub(crate) memory_limit: Option<u64>,

    /// Write report.html, report.json, requests.jsonl, steps.jsonl, trace.json (Perfetto), junit.xml and more to a
    /// folder. A search or a sweep writes points.html, and a folder with the report of each run.
    #[arg(long, value_name = "DIR", conflicts_with = "on")]
    pub(crate) out: Option<PathBuf>,

    /// Files to write: report, requests, steps, trace, guests, charts, html, junit, summary,
    /// openmetrics, csv, parquet [default: all but csv and parquet, and steps and trace only up to
    /// 128 MB together].
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "out")]
    pub(crate) files: Option<Vec<OutFile>>,

    /// Write a JSON line for each request to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) requests: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) baseline: BaselineArgs,

    /// Pack the scenario if an assertion, a guest or an engine fails [default file: SCENARIO.vcr].
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "",
          conflicts_with_all = ["search", "sweeps", "repeat"])]
    pub(crate) pack_on_failure: Option<String>,

    /// Replace existing outputs; a folder written by an earlier run needs no --force.
    #[arg(long)]
    pub(crate) force: bool,

    /// Print the report as JSON instead of the summary.
    #[arg(long)]
    pub(crate) json: bool,

    /// Show everything in the summary: every metric, run, workload, engine and column, however wide.
    #[arg(long)]
    pub(crate) full: bool,

    /// Print only failed assertions, and the command that repeats the run.
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) questions: QuestionArgs,

    #[command(flatten)]
    pub(crate) several: SeveralArgs,

    /// The whole command line.
    #[arg(skip)]
    pub(crate) words: Vec<OsString>,
}

/// Options of `vcr inspect conform`.
#[derive(Debug, Args)]
pub(crate) struct ConformArgs {
    /// Recordings, or folders of recordings.
    #[arg(required = true, value_name = "PATH")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) paths: Vec<PathBuf>,

    /// Print the reports as JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only differences, and no progress.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Options of `vcr inspect steps`.
#[derive(Debug, Args)]
pub(crate) struct StepsArgs {
    /// A step log, or the folder of its steps.jsonl.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) log: PathBuf,

    /// Show step N in full, with explanations.
    #[arg(long, value_name = "N", conflicts_with_all = ["from", "limit", "diff"])]
    pub(crate) step: Option<u64>,

    /// Compare with another log, step by step.
    #[arg(long, value_name = "OTHER", conflicts_with_all = ["from", "limit"])]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) diff: Option<PathBuf>,

    /// Only this engine. "POOL INDEX", as in requests.jsonl, is accepted too.
    #[arg(long, value_name = "POOL/INDEX", value_parser = engine)]
    pub(crate) engine: Option<(String, u32)>,

    /// Only this run of the scenario.
    #[arg(long, value_name = "RUN")]
    pub(crate) of: Option<String>,

    /// Begin with step N.
    #[arg(long, value_name = "N")]
    pub(crate) from: Option<u64>,

    /// Number of steps to show [default: 40; all with --json].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,

    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads `decode/1`, or `decode 1` as in requests.jsonl.
fn engine(text: &str) -> Result<(String, u32), String> {
    let parts = text.rsplit_once(['/', ' ']).and_then(|(pool, index)| Some((pool.to_owned(), index.parse().ok()?)));
    parts.filter(|(pool, _)| !pool.is_empty()).ok_or_else(|| "write it as POOL/INDEX, such as decode/0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    #[cfg(feature = "live")]
    fn the_short_help_of_play_names_options_that_exist() {
        let mut command = command();
        command.build();
        let play = command.find_subcommand("play").expect("there is `vcr play`");
        for name in PLAY_COMMON {
            assert!(play.get_arguments().any(|arg| arg.get_id() == *name), "{name}");
        }
    }

    #[test]
    #[cfg(feature = "serve")]
    fn the_short_help_of_serve_names_options_that_exist() {
        let mut command = command();
        command.build();
        let serve = command.find_subcommand("serve").expect("there is `vcr serve`");
        for name in crate::serve::args::SERVE_COMMON {
            assert!(serve.get_arguments().any(|arg| arg.get_id() == *name), "{name}");
        }
    }

    #[test]
    fn engines_are_a_pool_and_an_index() {
        for right in ["decode/1", "decode 1"] {
            assert_eq!(engine(right), Ok(("decode".to_owned(), 1)), "{right}");
        }
        assert_eq!(engine("my pool 12"), Ok(("my pool".to_owned(), 12)));
        for wrong in [" 1", "decode ", "decode", "decode/", "/1", "decode/x", "decode/-1"] {
            assert!(engine(wrong).is_err(), "{wrong}");
        }
    }
}
