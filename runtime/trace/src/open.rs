//! Opening a trace: which format, packed or not, and with which rules.

use crate::capture::{self, CaptureReader, ReadOptions};
use crate::detect::is_play;
use crate::formats::dynamo::DynamoReader;
use crate::formats::weka::{self, WekaReader};
use crate::formats::{applied_compute, azure, burstgpt, csv, mooncake, qwen_bailian, splitwise, vidur};
use crate::{
    Detected, RowProblem, Strictness, Trace, TraceError, TraceFormat, TraceOptions, TraceWarning, Unclear, VcrOutput,
    WarningKind, block_size,
};
use std::io::BufRead;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use vcr_input::{Unpacked, is_regular};

/// Enough that the first row is usually whole.
const PEEKED_BYTES: usize = 128 << 10;

impl Trace {
    /// Reads a trace file; a packed one (gzip, zstd) is unpacked on the way. A
    /// capture may be a folder or the first of several files.
    ///
    /// # Errors
    /// [`TraceError`], always naming the file, and the line and field where
    /// there is one. A trace is read whole or not at all.
    pub fn open(path: &Path, options: &TraceOptions) -> Result<Trace, TraceError> {
        read_files(&[path], options)
    }

    /// Reads a trace from any stream. `name` is what errors call it;
    /// `options.format` is not looked at.
    ///
    /// # Errors
    /// See [`Trace::open`].
    pub fn read(
        reader: impl BufRead,
        name: &str,
        format: TraceFormat,
        options: &TraceOptions,
    ) -> Result<Trace, TraceError> {
        match format {
            TraceFormat::Mooncake => mooncake::read(reader, name, options, false),
            TraceFormat::MooncakeDelta => mooncake::read(reader, name, options, true),
            TraceFormat::AgenticMooncake => mooncake::read_agentic(reader, name, options),
            TraceFormat::AppliedComputeAgentic => applied_compute::read(reader, name, options),
            TraceFormat::Dynamo => {
                let mut files = DynamoReader::new(options);
                files.add(reader, name)?;
                files.finish()
            }
            TraceFormat::Weka => {
                let mut files = WekaReader::new(options);
                files.add(reader, name)?;
                files.finish()
            }
            TraceFormat::Azure => csv::read(reader, name, options, &azure::COLUMNS),
            TraceFormat::QwenBailian => qwen_bailian::read(reader, name, options),
            TraceFormat::BurstGpt => csv::read(reader, name, options, &burstgpt::COLUMNS),
            TraceFormat::Vidur => csv::read(reader, name, options, &vidur::COLUMNS),
            TraceFormat::Splitwise => csv::read(reader, name, options, &splitwise::COLUMNS),
            TraceFormat::Capture => {
                read_capture(CaptureReader::from_reader(reader, name, &capture_options(options))?, name, options)
            }
        }
    }
}

/// Reads a trace from its files; see [`Trace::open`]. Some formats may have several, those of
/// [`TraceFormat::Dynamo`] in any order.
///
/// # Errors
/// See [`Trace::open`].
pub fn read_files(paths: &[impl AsRef<Path>], options: &TraceOptions) -> Result<Trace, TraceError> {
    let first = paths.first().ok_or(TraceError::NoFile)?.as_ref();
    let only_one = |format: TraceFormat| match paths.len() {
        files if files > 1 && !format.has_many_files() => Err(TraceError::ManyFiles { files, format }),
        _ => Ok(()),
    };
    if first.is_dir() && options.format.is_none_or(|format| format == TraceFormat::Weka) {
        let in_folders = files_in_folders(paths)?;
        if options.format.is_some() || is_corpus(&in_folders)? {
            return read_corpus(&in_folders, first, options);
        }
    }
    if options.format == Some(TraceFormat::Capture) || first.is_dir() {
        only_one(TraceFormat::Capture)?;
        return open_capture(first, options);
    }
    let (name, mut reader) = unpacked(first)?;
    let start = reader.peek(PEEKED_BYTES).map_err(|source| TraceError::Io { name: name.clone(), source })?;
    if let Some(output) = VcrOutput::detect(start) {
        return Err(TraceError::VcrOutput { name, output });
    }
    let inferred = block_size::infer(start);
    let format = match options.format {
        Some(format) => format,
        None => {
            let stem = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
            detect(&name, stem, start)?
        }
    };
    only_one(format)?;
    if format == TraceFormat::Capture {
        if is_regular(first) {
            drop(reader);
            return open_capture(first, options);
        }
        return Trace::read(reader, &name, format, options);
    }
    if let Some(block_size_tokens) = inferred.filter(|_| options.block_size_tokens.is_none())
        && format == TraceFormat::Mooncake
    {
        return read_inferred(reader, &name, block_size_tokens, options);
    }
    if paths.len() == 1 {
        return Trace::read(reader, &name, format, options);
    }
    if format == TraceFormat::Weka {
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

/// The files that paths name, with those in folders.
fn files_in_folders(paths: &[impl AsRef<Path>]) -> Result<Vec<PathBuf>, TraceError> {
    let mut files = Vec::new();
    for path in paths.iter().map(AsRef::as_ref) {
        let io_error = |source| TraceError::Io { name: path.display().to_string(), source };
        match path.is_dir() {
            true => files.extend(weka::folder::files(path).map_err(io_error)?),
            false => files.push(path.to_owned()),
        }
    }
    Ok(files)
}

/// Whether files are a corpus of plays.
fn is_corpus(files: &[PathBuf]) -> Result<bool, TraceError> {
    let Some(first) = files.first() else { return Ok(false) };
    let (name, mut reader) = unpacked(first)?;
    let start = reader.peek(PEEKED_BYTES).map_err(|source| TraceError::Io { name, source })?;
    Ok(is_play(start))
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

/// Reads a Mooncake trace whose rows determine the block size, and says so.
fn read_inferred(
    reader: impl BufRead,
    name: &str,
    block_size_tokens: NonZeroU32,
    options: &TraceOptions,
) -> Result<Trace, TraceError> {
    let options = TraceOptions { block_size_tokens: Some(block_size_tokens), ..options.clone() };
    let mut trace = Trace::read(reader, name, TraceFormat::Mooncake, &options)?;
    let kind = WarningKind::BlockSizeInferred(block_size_tokens.get());
    trace.warnings.insert(0, TraceWarning { kind, first_line: 1, rows: 0 });
    Ok(trace)
}

/// A file's name and its text.
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

/// A capture knows its other files itself.
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

/// Finds the format by the start of the file. A start that says nothing may be a damaged row of the
/// usual format of files with such a name, which its reader says.
fn detect(name: &str, stem: &str, start: &[u8]) -> Result<TraceFormat, TraceError> {
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    if text.trim_ascii().is_empty() {
        return Err(TraceError::Empty { name: name.to_owned() });
    }
    let is_object = text.trim_ascii_start().starts_with(b"{");
    let suffix = Path::new(stem).extension().and_then(|suffix| suffix.to_str()).unwrap_or_default();
    let unknown = || Err(TraceError::UnknownFormat { name: name.to_owned() });
    if suffix == "csv" && is_object {
        return unknown();
    }
    match Detected::of(start) {
        Detected::Certain(format) => Ok(format),
        Detected::Unclear(Unclear { why, candidates }) => {
            Err(TraceError::UnclearFormat { name: name.to_owned(), why, candidates: names_of(&candidates) })
        }
        Detected::Unknown if is_damaged(text) && ["jsonl", "json", "ndjson"].contains(&suffix) => {
            Ok(TraceFormat::Mooncake)
        }
        Detected::Unknown => unknown(),
    }
}

fn names_of(formats: &[TraceFormat]) -> String {
    formats.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ")
}

/// Whether the first line is a Mooncake row that is not whole.
fn is_damaged(text: &[u8]) -> bool {
    let row = text.trim_ascii_start().split(|byte| *byte == b'\n').next().unwrap_or_default();
    let has = |key: &[u8]| row.windows(key.len()).any(|window| window == key);
    let is_row = [&b"\"timestamp\""[..], b"\"input_length\"", b"\"output_length\""].into_iter().any(has);
    is_row && serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(row).is_err()
}
