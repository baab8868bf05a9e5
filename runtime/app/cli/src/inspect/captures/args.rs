use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

use clap::Args;
use vcr_trace::FormatOption;
use vcr_trace::import::export::Target;
use vcr_trace::import::export::perfetto::PerfettoFormat;
use vcr_trace::import::{Format, ImportOptions};

use crate::help::{with_comparison_exit_codes, with_plain_exit_codes};

pub(crate) const SUMMARIZE_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr inspect summarize capture.jsonl.zst
  vcr inspect summarize report.json            # of guidellm, or another format
  vcr inspect summarize capture.jsonl --json | jq .ttft_ns.p99

docs/reference/inspect.md lists the formats and explains the numbers."
);

pub(crate) const CONVERT_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr inspect convert report.json -o capture.jsonl.zst
  vcr inspect convert prompts.parquet --tokenizer tokenizer.json -o capture.jsonl.gz
  vcr inspect convert spans.json --from otel -o capture.jsonl --lenient
  vcr inspect convert capture.jsonl --to mooncake -o trace.jsonl
  vcr inspect convert capture.jsonl -o requests.csv
  vcr inspect convert capture.jsonl.zst -o - | head -n 3

docs/reference/inspect.md says what each format keeps and loses."
);

pub(crate) const PERFETTO_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr inspect perfetto capture.jsonl -o trace.pftrace          # open it in ui.perfetto.dev
  vcr inspect perfetto capture.jsonl -o trace.json --format json"
);

pub(crate) const DIFF_EXAMPLES: &str = with_comparison_exit_codes!(
    "Examples:
  vcr inspect diff before.jsonl after.jsonl
  vcr inspect diff before.jsonl after.jsonl --json

Requests are matched by the hash of their prompts, else by the hashes of their blocks, else by
their names, else by their order. Equal requests are matched in order of arrival. Times are shown
side by side and never count as a difference.",
    "requests and answers are the same",
    "requests, tokens, lengths, finish reasons or cached tokens differ"
);

pub(crate) const DEMO_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr inspect gen-demo -o demo.jsonl
  vcr inspect gen-demo -o demo.jsonl.zst --requests 10000 --seed 7 --speculative"
);

pub(crate) const SCHEMA_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr inspect schema > capture.schema.json"
);

/// How any input is read.
#[derive(Debug, Args)]
pub(crate) struct InputArgs {
    /// Read the input in this format, such as aiperf; docs/reference/inspect.md lists all [default: detected].
    #[arg(long, value_name = "FORMAT", help_heading = "Input")]
    pub(crate) from: Option<Format>,

    /// Skip and count unusable items instead of failing.
    #[arg(long, help_heading = "Input")]
    pub(crate) lenient: bool,

    /// The tokenizer.json that turns the texts of a data set into tokens.
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) tokenizer: Option<PathBuf>,

    /// The workload file of an LLMServingSim run [default: the file that the run names, in the same folder].
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) workload: Option<PathBuf>,

    /// Read only the run of this name from a requests.jsonl with several runs.
    #[arg(long, value_name = "RUN", help_heading = "Input")]
    pub(crate) of: Option<String>,

    /// Prompt tokens per block hash, if the input does not state them [default: 512 for Mooncake rows, else 16].
    #[arg(long, value_name = "TOKENS", help_heading = "Input", value_parser = crate::values::at_least_one::<NonZeroU32>)]
    pub(crate) block_size: Option<NonZeroU32>,
}

impl InputArgs {
    /// Files that are read in addition to the inputs.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.tokenizer.iter().chain(&self.workload)
    }

    pub(super) fn options(&self) -> ImportOptions {
        ImportOptions {
            format: self.from,
            format_option: Some(FormatOption { format: "--from", timestamp_unit: None }),
            lenient: self.lenient,
            block_size_tokens: self.block_size,
            tokenizer: self.tokenizer.clone(),
            workload: self.workload.clone(),
            run: self.of.clone(),
            columns: Vec::new(),
            output_text: false,
        }
    }
}

/// Options for results that are shown or written.
#[derive(Debug, Args)]
pub(crate) struct ResultArgs {
    /// Write to a file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Replace the output if it exists.
    #[arg(long, requires = "output")]
    pub(crate) force: bool,

    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `vcr inspect summarize`.
#[derive(Debug, Args)]
pub(crate) struct SummarizeArgs {
    /// A capture, or anything that can be converted to one.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) input: InputArgs,

    #[command(flatten)]
    pub(crate) result: ResultArgs,
}

/// Options of `vcr inspect convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// Input to convert: a file, or the folder of a run of LLMServingSim.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) file: PathBuf,

    /// The file to write, or - for standard output; .gz and .zst pack captures.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// Replace the output if it exists.
    #[arg(long)]
    pub(crate) force: bool,

    /// Format of the output: capture, vllm-vcr, mooncake, csv or parquet [default: csv or parquet by the suffix,
    /// else capture].
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: Option<Target>,

    #[command(flatten)]
    pub(crate) input: InputArgs,

    /// Print a summary of the conversion as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `vcr inspect perfetto`.
#[derive(Debug, Args)]
pub(crate) struct PerfettoArgs {
    /// A capture, or anything that can be converted to one.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) file: PathBuf,

    /// The file to write, or - for standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// Replace the output if it exists.
    #[arg(long)]
    pub(crate) force: bool,

    /// json, or proto: Perfetto's own format [default: json for *.json, else proto].
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<PerfettoFormat>,

    #[command(flatten)]
    pub(crate) input: InputArgs,
}

/// Options of `vcr inspect diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The first capture, or anything that can be converted to one.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) left: PathBuf,

    /// The second capture, or anything that can be converted to one.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) right: PathBuf,

    #[command(flatten)]
    pub(crate) input: InputArgs,

    /// Maximum number of differing requests to show; --json shows all.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,

    #[command(flatten)]
    pub(crate) result: ResultArgs,
}

/// Options of `vcr inspect gen-demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// The file to write, or - for standard output; .gz and .zst pack it.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// Replace the output if it exists.
    #[arg(long)]
    pub(crate) force: bool,

    /// Requests.
    #[arg(long, value_name = "N", default_value = "200", value_parser = crate::values::at_least_one::<NonZeroU64>)]
    pub(crate) requests: NonZeroU64,

    /// Seed of all random draws.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Arrivals a second, on average.
    #[arg(long, value_name = "RATE", default_value_t = 4.0, value_parser = rate)]
    pub(crate) rate: f64,

    /// Prompt tokens of a block.
    #[arg(long, value_name = "TOKENS", default_value = "16", value_parser = crate::values::at_least_one::<NonZeroU32>)]
    pub(crate) block_size: NonZeroU32,

    /// Generate outputs of several tokens, as with speculative decoding.
    #[arg(long)]
    pub(crate) speculative: bool,

    /// Keep the tokens of prompts and answers.
    #[arg(long)]
    pub(crate) tokens: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| (1e-3..=1e6).contains(rate));
    rate.ok_or_else(|| "give a number from 0.001 to 1000000".to_owned())
}
