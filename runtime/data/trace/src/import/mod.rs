//! Captures from other tools and for other tools.
//!
//! An importer ([`import`]) converts the records of another tool to the lines of a capture. The exporters of
//! [`export`] write captures for other tools. [`summary`] computes statistics of captures, and [`demo`] generates a
//! capture. [`vocabulary`] lists the tokens of a tokenizer. [`table`] writes tables of results. This crate handles
//! files and formats, and prints nothing.
//!
//! No data is lost silently: an importer reports in [`Imported::notes`] what it leaves out.

#[cfg(not(feature = "formats"))]
mod absent;
mod chain;
pub mod demo;
mod error;
pub mod export;
mod input;
mod output;
mod outputs;
#[cfg(feature = "formats")]
mod parquet;
mod readers;
mod replay;
pub mod summary;
pub mod table;
mod time;
#[cfg(feature = "formats")]
mod tokenizer;

use std::io::{self, BufRead};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

pub use crate::Format;
use crate::capture::{CaptureLine, CaptureReader};
use crate::{FormatError, FormatOption, PARQUET_MAGIC, VcrOutput, folder_format};

#[cfg(not(feature = "formats"))]
use absent::{parquet, tokenizer};
pub use error::{ImportError, Place, Problem};
pub use input::without_nan;
use output::Out;
pub use output::{Imported, Note};
pub use outputs::Outputs;
pub use readers::aiperf::AiperfRequest;
use readers::{
    agentic, aiperf, bench, dataset, dynamo, guidellm, inference_perf, llmservingsim, otel, own, requests, workload,
};
pub use replay::read_trace;
pub use tokenizer::vocabulary;

/// Receives the lines of an import.
pub type Sink<'a> = dyn FnMut(CaptureLine) -> io::Result<()> + 'a;

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The format; `None` to detect it.
    pub format: Option<Format>,
    /// How the user can state the format, for errors.
    pub format_option: Option<FormatOption>,
    /// Whether invalid items are skipped and counted. Otherwise they end the import.
    pub lenient: bool,
    /// Number of prompt tokens of a block hash, or of an id of a workload. `None` for the number in the file, or
    /// else the usual number (512 for Mooncake rows, 16 for others).
    pub block_size_tokens: Option<NonZeroU32>,
    /// The `tokenizer.json` that data sets need.
    pub tokenizer: Option<PathBuf>,
    /// The workload of an LLMServingSim run, which contains the tokens of the prompts. `None` for the workload that
    /// the run names, if it is in the same folder as the run.
    pub workload: Option<PathBuf>,
    /// Name of the run whose requests are read, if a list of requests has several runs.
    pub run: Option<String>,
    /// Names of a table's columns: (standard name, name in the table), such as `("ttft_ms", "first_token")`. A
    /// standard name includes its unit.
    pub columns: Vec<(String, String)>,
    /// Whether the texts of answers are kept, under [`OUTPUT_TEXT`] among the other fields of a record.
    pub output_text: bool,
}

/// The field of a record that contains the text of the answer, if the options ask for texts.
pub const OUTPUT_TEXT: &str = "output_text";

/// The field of a meta line that says that queue times count from the arrival, as in the files of a run. vLLM counts
/// from the end of the step during which the request arrived.
pub const QUEUE_FROM_ARRIVAL: &str = "queue_from_arrival";

impl ImportOptions {
    fn block_size_tokens(&self, usual: u32) -> u32 {
        self.block_size_tokens.map_or(usual, NonZeroU32::get)
    }
}

/// Detects the format of a file or folder from its content.
///
/// # Errors
/// If the file cannot be read, or its format is unclear.
pub fn format_of(path: &Path) -> Result<Format, ImportError> {
    if path.is_dir() {
        return Ok(folder_format(path)?);
    }
    let name = path.display().to_string();
    let (start, _) = input::peek(input::open(path)?, &name)?;
    detect(path, &name, &start)
}

fn detect(path: &Path, name: &str, start: &[u8]) -> Result<Format, ImportError> {
    if !start.starts_with(PARQUET_MAGIC) {
        return Ok(Format::detect(name, start)?);
    }
    let columns = parquet::columns(path, name)?;
    Ok(Format::of_columns(name, columns.iter().map(String::as_str))?)
}

/// Imports a file, or the folder of an LLMServingSim run, as lines of a capture.
///
/// # Errors
/// An [`ImportError`] that names the file, and the place and the field if known. `sink` may already have received
/// lines.
pub fn import(path: &Path, options: &ImportOptions, sink: &mut Sink<'_>) -> Result<Imported, ImportError> {
    let name = path.display().to_string();
    if path.is_dir() {
        return import_folder(path, &name, options, sink);
    }
    let (start, reader) = input::peek(input::open(path)?, &name)?;
    let format = match options.format {
        Some(format) => fitting(format, &name, &start)?,
        None => match detect(path, &name, &start) {
            Err(ImportError::Format(error)) => return Err(error.with_option(options.format_option).into()),
            detected => detected?,
        },
    };
    let mut out = Out::new(sink, options.lenient).keeping_output_text(options.output_text);
    match format {
        Format::Requests
            if start.starts_with(PARQUET_MAGIC) && reader.packing().is_none() && vcr_base::input::is_regular(path) =>
        {
            requests::read_parquet_file(path, options, &mut out)?;
        }
        Format::Capture if vcr_base::input::is_regular(path) => {
            own::read(CaptureReader::open(path, &own::rules(options))?, &mut out)?;
        }
        Format::LlmServingSim => llmservingsim::read_file(path, reader, options, &mut out)?,
        Format::Dataset
            if start.starts_with(PARQUET_MAGIC) && reader.packing().is_none() && vcr_base::input::is_regular(path) =>
        {
            dataset::read_parquet_file(path, options, &mut out)?;
        }
        format => read(reader, &start, &name, format, options, &mut out)?,
    }
    out.finish(format, &name)
}

/// The stated format. An error if the file is an output of vcr in another format.
fn fitting(asked: Format, name: &str, start: &[u8]) -> Result<Format, ImportError> {
    let name = || name.to_owned();
    match VcrOutput::detect(start) {
        Some(output) if !output.has_requests() => Err(FormatError::NoRequests { name: name(), output }.into()),
        Some(output) if asked != Format::Requests && output != VcrOutput::RequestTable => {
            Err(ImportError::OtherFormat { name: name(), asked, output })
        }
        _ => Ok(asked),
    }
}

/// Imports a run of LLMServingSim, a folder of `vcr run --out`, a corpus of plays, or the parts of a capture.
fn import_folder(
    path: &Path,
    name: &str,
    options: &ImportOptions,
    sink: &mut Sink<'_>,
) -> Result<Imported, ImportError> {
    let format = match options.format {
        Some(format) => format,
        None => folder_format(path)?,
    };
    if format == Format::Requests {
        return import(&path.join("requests.jsonl"), options, sink);
    }
    let mut out = Out::new(sink, options.lenient);
    match format {
        Format::LlmServingSim => llmservingsim::read_run(path, options, &mut out)?,
        Format::Weka => workload::read_folder(path, format, options, &mut out)?,
        _ => own::read(CaptureReader::open(path, &own::rules(options))?, &mut out)?,
    }
    out.finish(format, name)
}

/// Imports an unpacked stream of a known format. Errors use `name` for the stream.
///
/// # Errors
/// See [`import`].
pub fn import_bytes(
    bytes: &[u8],
    name: &str,
    format: Format,
    options: &ImportOptions,
    sink: &mut Sink<'_>,
) -> Result<Imported, ImportError> {
    let mut out = Out::new(sink, options.lenient).keeping_output_text(options.output_text);
    read(bytes, bytes, name, format, options, &mut out)?;
    out.finish(format, name)
}

fn read(
    reader: impl BufRead,
    start: &[u8],
    name: &str,
    format: Format,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    match format {
        Format::Capture => own::read(CaptureReader::from_reader(reader, name, &own::rules(options))?, out),
        Format::Guidellm => guidellm::read(reader, name, out),
        Format::VllmBench | Format::SglangBench => bench::read(reader, name, format, out),
        Format::Aiperf => aiperf::read(reader, name, out),
        Format::InferencePerf => inference_perf::read(reader, name, out),
        Format::Mooncake
        | Format::MooncakeDelta
        | Format::Azure
        | Format::AppliedComputeAgentic
        | Format::QwenBailian
        | Format::BurstGpt
        | Format::Vidur
        | Format::Splitwise
        | Format::Weka => workload::read(reader, name, format, options, out),
        Format::AgenticMooncake => agentic::read(reader, name, options, out),
        Format::Dynamo => dynamo::read(reader, name, out),
        Format::LlmServingSim => llmservingsim::read_rows(reader, name, None, options, out),
        Format::Dataset => dataset::read(reader, start, name, options, out),
        Format::Otel => otel::read(reader, name, out),
        Format::Requests => requests::read(reader, start, name, options, out),
        Format::Observations | Format::Sse | Format::Responses | Format::Log => {
            Err(ImportError::OnlyAnswers { name: name.to_owned(), format })
        }
    }
}
