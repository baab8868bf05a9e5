use std::path::PathBuf;

use clap::Args;
use vcr_gate::{Format, JoinBy, MirrorOptions};

use crate::help::with_plain_exit_codes;

pub(crate) const MIRROR_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr mirror capture.jsonl --lengths -o observations.jsonl
  vcr mirror chunks.jsonl -o observations.jsonl       # OpenAI's streams with the time of each chunk
  vcr mirror answers.csv --column request_id=id --column latency_s=total --column text=answer \\
      --set backend=vllm --set backend_version=0.33 -o candidate.jsonl

Reads observations, captures, folders of vcr run --out (DIR#RUN names a run), streams, responses and
request logs of servers, aiperf, guidellm, spans, and tables. Formats: docs/reference/gate.md."
);

pub(crate) const GATE_EXAMPLES: &str = "Examples:
  vcr gate --policy policy.toml --baseline stable.jsonl --candidate canary.jsonl
  vcr gate --baseline stable.jsonl --candidate canary.jsonl --out gate
  vcr gate --baseline stable.jsonl --candidate canary.jsonl --json | jq .decision
  vcr gate --print-policy > policy.toml                       # every limit with its reason

Exit codes:
  0   promote
  10  hold
  20  rollback
  2   bad usage, or an input that cannot be used";

/// How inputs are read.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReadArgs {
    /// Read the inputs in this format, such as aiperf; docs/reference/inspect.md lists all [default: detected].
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,

    /// Read a standard column from a column of another name in a table, such as latency_s=total (repeatable).
    #[arg(long, value_name = "STANDARD=OWN", value_parser = column)]
    column: Vec<(String, String)>,

    /// Compare only the lengths of answers where an input lacks their contents.
    #[arg(long)]
    lengths: bool,
}

impl ReadArgs {
    pub(super) fn options(&self, set: &[(String, String)]) -> MirrorOptions {
        MirrorOptions { format: self.format, lengths: self.lengths, set: set.to_vec(), columns: self.column.clone() }
    }
}

/// Options of `vcr mirror`.
#[derive(Debug, Args)]
pub(crate) struct MirrorArgs {
    /// Files and folders to read; DIR#RUN is one run of a folder.
    #[arg(required = true, value_name = "INPUT")]
    pub(super) inputs: Vec<String>,

    /// File to write; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: PathBuf,

    #[command(flatten)]
    pub(super) read: ReadArgs,

    /// Set this label where an observation lacks it, such as backend=vllm (repeatable).
    #[arg(long, value_name = "LABEL=VALUE", value_parser = label)]
    pub(super) set: Vec<(String, String)>,

    /// Replace an existing file.
    #[arg(long)]
    pub(super) force: bool,
}

/// Options of `vcr gate`.
#[derive(Debug, Args)]
pub(crate) struct GateArgs {
    /// TOML file with the limits [default: the policy that --print-policy prints].
    #[arg(long, value_name = "FILE")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(super) policy: Option<PathBuf>,

    /// Observations of the baseline, or anything that vcr mirror reads.
    #[arg(long, num_args = 1.., value_name = "INPUT", required_unless_present = "print_policy")]
    pub(super) baseline: Vec<String>,

    /// Observations of the candidate, or anything that vcr mirror reads.
    #[arg(long, num_args = 1.., value_name = "INPUT", required_unless_present = "print_policy")]
    pub(super) candidate: Vec<String>,

    /// Write gate.json, gate.html, junit.xml and summary.md to this folder.
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,

    /// Probability that noise alone causes a hold or a rollback, such as 0.05 [default: the policy's].
    #[arg(long, value_name = "SHARE")]
    pub(super) alpha: Option<f64>,

    /// Match requests of both sides by id, content, or auto (by id, or by content if the sides share no id).
    #[arg(long, value_name = "KEY", default_value = "auto")]
    pub(super) join: JoinBy,

    #[command(flatten)]
    pub(super) read: ReadArgs,

    /// Set this label where an observation of the baseline lacks it (repeatable).
    #[arg(long, value_name = "LABEL=VALUE", value_parser = label)]
    pub(super) set_baseline: Vec<(String, String)>,

    /// Set this label where an observation of the candidate lacks it (repeatable).
    #[arg(long, value_name = "LABEL=VALUE", value_parser = label)]
    pub(super) set_candidate: Vec<(String, String)>,

    /// Number of threads, which does not change the report [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,

    /// Print the policy with all defaults and reasons.
    #[arg(long)]
    pub(super) print_policy: bool,

    /// Print JSON instead of tables.
    #[arg(long)]
    pub(super) json: bool,

    /// Replace files not written by an earlier run.
    #[arg(long)]
    pub(super) force: bool,
}

fn pair<'a>(text: &'a str, what: &str) -> Result<(&'a str, &'a str), String> {
    let pair = text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    pair.ok_or_else(|| format!("invalid {what} `{text}`: expected NAME=VALUE"))
}

fn label(text: &str) -> Result<(String, String), String> {
    let (label, value) = pair(text, "label")?;
    if vcr_gate::mirror::SETTABLE.contains(&label) {
        return Ok((label.to_owned(), value.to_owned()));
    }
    Err(format!("unknown label `{label}`: expected {}", vcr_gate::mirror::SETTABLE.join(", ")))
}

fn column(text: &str) -> Result<(String, String), String> {
    let (standard, own) = pair(text, "column")?;
    if vcr_gate::mirror::is_column(standard) {
        return Ok((standard.to_owned(), own.to_owned()));
    }
    Err(format!("unknown column `{standard}`: expected {}", vcr_gate::mirror::columns()))
}
