use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::Args;
use vcr_fit::{Gate, Load, Setting, WarmUp};
use vcr_trace::import::Format;

use crate::help::{with_comparison_exit_codes, with_plain_exit_codes};

pub(crate) const FIT_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr fit recorded.jsonl.zst --engine 'num_gpu_blocks: 27_000, max_num_seqs: 256' -o model.json
  vcr fit requests.csv --engine 'vllm serve Qwen/Qwen3-8B' --shape qwen3-8b -o model.json
  vcr fit requests.csv --engine 'num_gpu_blocks: 27_000' -o model.json \\
      --base 'roofline(#{ model: \"llama-3.1-8b\", gpu: \"h100-sxm\" })'
  vcr fit low.csv high.csv --map ttft_s=first --map e2e_s=total \\
      --engine 'num_gpu_blocks: 27_000' -o model.json
  vcr fit run.jsonl --steps steps.jsonl --engine 'num_gpu_blocks: 27_000' -o model.json
  vcr fit run.jsonl --engine 'num_gpu_blocks: 27_000' --infer max_num_seqs -o model.json
  vcr fit run.jsonl --engine 'num_gpu_blocks: 27_000' -o model.json --emit-wasm model.wasm
  vcr fit run.jsonl --engine 'num_gpu_blocks: 27_000' -o model.json \\
      --suggest 'prompt_tokens: 4000, output_tokens: 200, concurrency: 16'

Inputs are captures, or tables (CSV, JSONL, Parquet) with a row for each request: arrival_ms,
prompt_tokens, output_tokens, ttft_ms, e2e_ms and, if known, mean_itl_ms, queue_ms, cached_tokens,
hash_ids or prompt_token_ids. Use the model as `fitted(#{ path: \"model.json\" })`.
docs/reference/fit.md describes the method and the file."
);

pub(crate) const CALIBRATE_EXAMPLES: &str = with_comparison_exit_codes!(
    "Examples:
  vcr calibrate model.json other-load.csv
  vcr calibrate model.json loads/ --gates gates.toml --html calibration.html
  vcr calibrate model.json run.jsonl --gate 'ttft p50 < 20%' --gate 'itl mean < 5%'
  vcr calibrate --fit requests.csv --predict other-load.csv --engine 'num_gpu_blocks: 27_000'
  vcr calibrate --leave-one-out loads/ --engine 'num_gpu_blocks: 27_000' --json

Without --engine, the engine settings of the model file are used.
docs/reference/calibrate.md describes metrics, gates and figures.",
    "every gate holds, or there is none",
    "a gate does not hold"
);

/// How measurements are read.
#[derive(Debug, Args)]
pub(crate) struct MeasurementArgs {
    /// Engine settings: options of `engine(#{ ... })`, JSON, a command line of `vllm serve` or its arguments, or a
    /// `pool(#{ ... })` (repeatable: once for all inputs, or once per input).
    #[arg(long, value_name = "SETTINGS", help_heading = "Engine", allow_hyphen_values = true)]
    pub(crate) engine: Vec<String>,

    /// Format of the inputs [default: detected from their content].
    #[arg(long, value_name = "FORMAT", help_heading = "Input")]
    pub(crate) from: Option<Format>,

    /// Read a standard column from a column of another name: `ttft_ms=first_token`. The standard
    /// name ends with the unit: _ns, _us, _ms or _s. Inputs are then tables, unless --from is given.
    #[arg(long, value_name = "NAME=COLUMN", help_heading = "Input", value_parser = column)]
    pub(crate) map: Vec<(String, String)>,

    /// Prompt tokens per block hash, if the input does not state them.
    #[arg(long, value_name = "TOKENS", help_heading = "Input", value_parser = crate::values::at_least_one::<NonZeroU32>)]
    pub(crate) block_size: Option<NonZeroU32>,

    /// Start later turns of a session by their think times instead of their recorded arrivals.
    #[arg(long, help_heading = "Input")]
    pub(crate) sessions: bool,

    /// Seed of all random draws.
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    pub(crate) seed: u64,

    /// Threads for simulations, which do not change results [default: all cores].
    #[arg(long, value_name = "N", value_parser = crate::values::at_least_one::<NonZeroUsize>)]
    pub(crate) threads: Option<NonZeroUsize>,
}

/// Prior knowledge of a model.
#[derive(Debug, Args)]
pub(crate) struct PriorArgs {
    /// Derive a prior for the coefficients from this model: a published name such as llama-3.1-8b, or its config.json.
    #[arg(long, value_name = "MODEL", help_heading = "Engine")]
    pub(crate) shape: Option<String>,

    /// Correct this latency model instead of fitting one from scratch, for few measurements: `roofline(#{ ... })` or
    /// `tables(#{ ... })`, as in scenarios.
    #[arg(long, value_name = "MODEL", help_heading = "Engine")]
    pub(crate) base: Option<String>,
}

/// Options of `vcr fit`.
#[derive(Debug, Args)]
pub(crate) struct FitArgs {
    /// Captures or tables of requests.
    #[arg(required = true, value_name = "INPUT")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) inputs: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) measurements: MeasurementArgs,

    /// Fit to measured step times too: the engine's step log of each input (of vcr or live_log.py), or a table of
    /// steps (repeatable, once per input).
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) steps: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) prior: PriorArgs,

    /// Estimate engine settings: num_gpu_blocks, max_num_seqs, or both.
    #[arg(long, value_name = "SETTINGS", help_heading = "Engine", value_delimiter = ',')]
    pub(crate) infer: Vec<Setting>,

    /// Fit only this part of the requests, in order of arrival: 0..0.5 is the first half.
    #[arg(long, value_name = "FROM..TO", help_heading = "Input", value_parser = part)]
    pub(crate) part: Option<(f64, f64)>,

    /// Suggest the next measurement that makes this prediction more certain: 'prompt_tokens: 4000,
    /// output_tokens: 200, concurrency: 16', or with a `rate` per second instead of `concurrency`.
    #[arg(long, value_name = "PREDICTION")]
    pub(crate) suggest: Option<Load>,

    /// Leave out the beginning of each input: auto (a part clearly slower than the rest), none, or
    /// a duration: 30s.
    #[arg(long, value_name = "WARM-UP", default_value = "auto", help_heading = "Input")]
    pub(crate) warm_up: WarmUp,

    /// Number of folds of the cross-validation, which predicts each from the others; 0 for none.
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub(crate) folds: u32,

    /// Write the model to this file.
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: PathBuf,

    /// Also write a WebAssembly guest that contains the coefficients, but none of the measurements.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) emit_wasm: Option<PathBuf>,

    /// Replace existing outputs, and write a model that failed its own checks; the file then says
    /// so.
    #[arg(long, help_heading = "Output")]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) show: ShowArgs,
}

/// Options for the output on the terminal.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Print JSON instead of tables.
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,

    /// Print no progress.
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// Options of `vcr calibrate`.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// The model file, then captures or tables of requests, or folders of them. Without a model: --fit with
    /// --predict, or --leave-one-out.
    #[arg(value_name = "MODEL INPUT")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) inputs: Vec<PathBuf>,

    /// Fit a model to these inputs first.
    #[arg(long, value_name = "INPUT", num_args = 1.., requires = "predict", conflicts_with_all = ["inputs", "leave_one_out"])]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) fit: Vec<PathBuf>,

    /// Judge the fitted model on these inputs.
    #[arg(long, value_name = "INPUT", num_args = 1.., requires = "fit")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) predict: Vec<PathBuf>,

    /// Predict each input of this folder from a fit to all the others.
    #[arg(long, value_name = "FOLDER", conflicts_with = "inputs")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) leave_one_out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) measurements: MeasurementArgs,

    #[command(flatten)]
    pub(crate) prior: PriorArgs,

    /// Compare simulated with measured steps too: the engine's step log of each predicted input (of vcr or
    /// live_log.py), or a table of steps (repeatable, once per input).
    #[arg(long, value_name = "FILE", help_heading = "Input", conflicts_with = "leave_one_out")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) steps: Vec<PathBuf>,

    /// With two predicted inputs: also compare the measured change from one to the other with the simulated change.
    #[arg(long, conflicts_with = "leave_one_out")]
    pub(crate) effect: bool,

    /// Judge only this part of the requests, in order of arrival: 0.5..1 is the second half.
    #[arg(long, value_name = "FROM..TO", help_heading = "Input", value_parser = part)]
    pub(crate) part: Option<(f64, f64)>,

    /// Simulate each prediction N more times with randomly drawn coefficients, for 90 % intervals; 0 for none.
    #[arg(long, default_value_t = 50, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=10_000))]
    pub(crate) uncertainty: u16,

    /// Exit with code 1 unless this error limit is kept: `ttft p50 < 10%`, `itl pearson > 0.9`, `throughput < 3%`,
    /// `outside < 5%` (repeatable).
    #[arg(long, value_name = "GATE", help_heading = "Gates")]
    pub(crate) gate: Vec<Gate>,

    /// TOML file of gates: a table `gates` with entries such as "ttft p50" = "< 10%".
    #[arg(long, value_name = "FILE", help_heading = "Gates")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) gates: Option<PathBuf>,

    /// Write a page with tables and figures.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) html: Option<PathBuf>,

    /// Write each figure as an SVG file into this folder.
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    pub(crate) figures: Option<PathBuf>,

    /// Replace existing outputs.
    #[arg(long, help_heading = "Output")]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) show: ShowArgs,
}

fn column(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').map(|(name, column)| (name.trim().to_owned(), column.trim().to_owned()));
    let parts = parts.filter(|(name, column)| !name.is_empty() && !column.is_empty());
    parts.ok_or_else(|| "expected NAME=COLUMN, such as ttft_ms=first_token".to_owned())
}

fn part(text: &str) -> Result<(f64, f64), String> {
    let parts = text.split_once("..").and_then(|(from, to)| Some((from.trim().parse().ok()?, to.trim().parse().ok()?)));
    let parts = parts.filter(|(from, to): &(f64, f64)| (0.0..1.0).contains(from) && from < to && *to <= 1.0);
    parts.ok_or_else(|| "expected FROM..TO with shares between 0 and 1, such as 0..0.5".to_owned())
}
