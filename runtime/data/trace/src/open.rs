//! Opens traces: detects the format, unpacks, and applies the reading options.

use crate::capture::{self, CaptureReader, ReadOptions};
use crate::detect::starts_play;
use crate::formats::dynamo::DynamoReader;
use crate::formats::weka::{self, WekaReader};
use crate::formats::{applied_compute, azure, burstgpt, csv, mooncake, qwen_bailian, splitwise, vidur};
use crate::{
    Format, FormatError, RowProblem, Strictness, Trace, TraceError, TraceOptions, TraceWarning, VcrOutput, WarningKind,
    block_size,
};
use std::io::BufRead;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use vcr_base::input::{Unpacked, is_regular};

/// Number of bytes that are read to detect the format. Most first rows are shorter.
const PEEKED_BYTES: usize = 128 << 10;

impl Trace {
    /// Reads a trace file. A packed file (gzip, zstd) is unpacked while it is read. A capture may be a folder, or
    /// the first of several files.
    ///
    /// # Errors
    /// A [`TraceError`] that names the file, and the line and field if known. A trace is read completely or not at
    /// all.
    pub fn open(path: &Path, options: &TraceOptions) -> Result<Trace, TraceError> {
        read_files(&[path], options)
    }

    /// Reads a trace from a stream. Errors use `name` for the stream. `options.format` is ignored.
    ///
    /// # Errors
    /// See [`Trace::open`].
    pub fn read(reader: impl BufRead, name: &str, format: Format, options: &TraceOptions) -> Result<Trace, TraceError> {
        match format {
            Format::Mooncake => mooncake::read(reader, name, options, false),
            Format::MooncakeDelta => mooncake::read(reader, name, options, true),
            Format::AgenticMooncake => mooncake::read_agentic(reader, name, options),
            Format::AppliedComputeAgentic => applied_compute::read(reader, name, options),
            Format::Dynamo => {
                let mut files = DynamoReader::new(options);
                files.add(reader, name)?;
                files.finish()
            }
            Format::Weka => {
                let mut files = WekaReader::new(options);
                files.add(reader, name)?;
                files.finish()
            }
            Format::Azure => csv::read(reader, name, options, &azure::COLUMNS),
            Format::QwenBailian => qwen_bailian::read(reader, name, options),
            Format::BurstGpt => csv::read(reader, name, options, &burstgpt::COLUMNS),
            Format::Vidur => csv::read(reader, name, options, &vidur::COLUMNS),
            Format::Splitwise => csv::read(reader, name, options, &splitwise::COLUMNS),
            Format::Capture => {
                read_capture(CaptureReader::from_reader(reader, name, &capture_options(options))?, name, options)
            }
            Format::LlmServingSim
            | Format::Guidellm
            | Format::VllmBench
            | Format::SglangBench
            | Format::Aiperf
            | Format::InferencePerf
            | Format::Otel
            | Format::Dataset
            | Format::Requests
            | Format::Observations
            | Format::Sse
            | Format::Responses
            | Format::Log => Err(TraceError::NotATrace { name: name.to_owned(), format }),
        }
    }
}

/// Reads a trace from its files; see [`Trace::open`]. Only some formats allow several files. The files of
/// [`Format::Dynamo`] may be in any order.
///
/// # Errors
/// See [`Trace::open`].
pub fn read_files(paths: &[impl AsRef<Path>], options: &TraceOptions) -> Result<Trace, TraceError> {
    let first = paths.first().ok_or(TraceError::NoFile)?.as_ref();
    let only_one = |format: Format| match paths.len() {
        files if files > 1 && !format.has_many_files() => Err(TraceError::ManyFiles { files, format }),
        _ => Ok(()),
    };
    let format = match options.format {
        None if first.is_dir() => Some(folder_format(first)?),
        format => format,
    };
    match format {
        Some(Format::Weka) if first.is_dir() => return read_corpus(&files_in_folders(paths)?, first, options),
        Some(format @ (Format::LlmServingSim | Format::Requests)) if first.is_dir() => {
            return Err(TraceError::NotATrace { name: first.display().to_string(), format });
        }
        _ if first.is_dir() || format == Some(Format::Capture) => {
            only_one(Format::Capture)?;
            return open_capture(first, options);
        }
        _ => {}
    }
    let (name, mut reader) = unpacked(first)?;
    let start = reader.peek(PEEKED_BYTES).map_err(|source| TraceError::Io { name: name.clone(), source })?;
    let format = match format {
        None => Format::detect(&name, start).map_err(|error| error.with_option(options.format_option))?,
        Some(format) => match VcrOutput::detect(start) {
            Some(output) if !output.has_requests() => return Err(FormatError::NoRequests { name, output }.into()),
            _ => format,
        },
    };
    let is_inferred = format == Format::Mooncake && options.block_size_tokens.is_none();
    let inferred = is_inferred.then(|| block_size::infer(start)).flatten();
    only_one(format)?;
    if format == Format::Capture {
        if is_regular(first) {
            drop(reader);
            return open_capture(first, options);
        }
        return Trace::read(reader, &name, format, options);
    }
    if let Some(block_size_tokens) = inferred {
        return read_inferred(reader, &name, block_size_tokens, options);
    }
    if paths.len() == 1 {
        return Trace::read(reader, &name, format, options);
    }
    if format == Format::Weka {
        drop(reader);
        return read_corpus(&files_in_folders(paths)?, first, options);
    }
    let mut files = DynamoReader::new(options);
    files.add(reader, &name)?;
    for path in &paths[1..] {
        let (name, reader) = unpacked(path.as_ref())?;
        files.add(reader, &name)?;
    }
    files.finish()
}

fn files_in_folders(paths: &[impl AsRef<Path>]) -> Result<Vec<PathBuf>, TraceError> {
    let mut files = Vec::new();
    for path in paths.iter().map(AsRef::as_ref) {
        let io_error = |source| TraceError::Io { name: path.display().to_string(), source };
        match path.is_dir() {
            true => files.extend(weka::corpus_files(path).map_err(io_error)?),
            false => files.push(path.to_owned()),
        }
    }
    Ok(files)
}

/// Detects the format of the files in a folder. They are the parts of a capture, unless they have another format.
///
/// # Errors
/// If a file in the folder cannot be read.
pub fn folder_format(path: &Path) -> Result<Format, TraceError> {
    let has = |name: &str| path.join(name).is_file();
    if has("requests.jsonl") && has("meta.json") {
        return Ok(Format::LlmServingSim);
    }
    if has("requests.jsonl") && has("report.json") {
        return Ok(Format::Requests);
    }
    let files = files_in_folders(&[path])?;
    let Some(first) = files.first() else { return Ok(Format::Capture) };
    let (name, mut reader) = unpacked(first)?;
    let start = reader.peek(PEEKED_BYTES).map_err(|source| TraceError::Io { name, source })?;
    Ok(if starts_play(start) { Format::Weka } else { Format::Capture })
}

fn read_corpus(files: &[PathBuf], place: &Path, options: &TraceOptions) -> Result<Trace, TraceError> {
    let mut corpus = WekaReader::new(options);
    for file in files {
        let (name, reader) = unpacked(file)?;
        corpus.add(reader, &name)?;
    }
    if files.is_empty() {
        return Err(TraceError::Empty { name: place.display().to_string() });
    }
    corpus.finish()
}

/// Reads a Mooncake trace with the block size that was inferred from its rows, and adds a warning about it.
fn read_inferred(
    reader: impl BufRead,
    name: &str,
    block_size_tokens: NonZeroU32,
    options: &TraceOptions,
) -> Result<Trace, TraceError> {
    let options = TraceOptions { block_size_tokens: Some(block_size_tokens), ..options.clone() };
    let mut trace = Trace::read(reader, name, Format::Mooncake, &options)?;
    let kind = WarningKind::BlockSizeInferred(block_size_tokens.get());
    trace.warnings.insert(0, TraceWarning { kind, first_line: 1, rows: 0 });
    Ok(trace)
}

fn unpacked(path: &Path) -> Result<(String, Unpacked<'static>), TraceError> {
    let name = path.display().to_string();
    match Unpacked::open(path) {
        Ok(stream) => Ok((name, stream)),
        Err(source) => Err(TraceError::Io { name, source }),
    }
}

fn capture_options(options: &TraceOptions) -> ReadOptions {
    ReadOptions { lenient: options.strictness == Strictness::Lenient }
}

fn open_capture(path: &Path, options: &TraceOptions) -> Result<Trace, TraceError> {
    let reader = CaptureReader::open(path, &capture_options(options))?;
    read_capture(reader, &path.display().to_string(), options)
}

fn read_capture(reader: CaptureReader<'_>, name: &str, options: &TraceOptions) -> Result<Trace, TraceError> {
    let trace = capture::read_workload(reader, options)?;
    match trace.warnings.first() {
        Some(warning) if options.strictness == Strictness::Strict => Err(TraceError::Row {
            name: name.to_owned(),
            line: warning.first_line,
            field: None,
            problem: RowProblem::Malformed(warning.to_string()),
        }),
        _ => Ok(trace),
    }
}
