//! Opening a trace: which format, packed or not, and with which rules.

use crate::capture::{self, CaptureReader, ReadOptions};
use crate::{Trace, TraceError, azure, mooncake};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::num::NonZeroU32;
use std::path::Path;

/// The formats that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// One JSON object a line, as published with Mooncake (FAST '25) and
    /// extended by Dynamo with sessions, delays and priorities.
    Mooncake,
    /// The CSV of the Azure LLM inference traces: `TIMESTAMP`, `ContextTokens`,
    /// `GeneratedTokens`. It says nothing of content, so no prompt shares
    /// anything with another.
    Azure,
    /// A capture, or a trace of vllm-vcr: what an engine was asked. Its arrivals,
    /// prompts, answers and sessions are read, not how long anything took.
    Capture,
}

/// The rules a trace is read with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// The format; `None` finds it out from the file's name, else from its
    /// first line.
    pub format: Option<TraceFormat>,
    /// Prompt tokens that one hash id stands for; 512 in the published traces. A
    /// capture says it itself.
    pub block_size_tokens: NonZeroU32,
    /// Cut an `input_length` that its hash ids do not cover, or skip the line of
    /// a capture that cannot be used, and count a warning, where it is otherwise
    /// an error.
    pub lenient: bool,
    /// Whether every first turn needs a timestamp. Off for closed-loop replay,
    /// which ignores arrivals.
    pub first_timestamp_required: bool,
}

impl Default for TraceOptions {
    fn default() -> Self {
        TraceOptions {
            format: None,
            block_size_tokens: const { NonZeroU32::new(512).expect("512 is not 0") },
            lenient: false,
            first_timestamp_required: true,
        }
    }
}

/// Large enough that a sniffed first row is usually whole.
const BUFFER_BYTES: usize = 128 << 10;

impl Trace {
    /// Reads a trace file; a packed one (gzip, zstd) is unpacked on the way. A
    /// capture may be a folder or the first of several files.
    ///
    /// # Errors
    /// [`TraceError`], always naming the file, and the line and field where
    /// there is one. A trace is read whole or not at all.
    pub fn open(path: &Path, options: &TraceOptions) -> Result<Trace, TraceError> {
        let name = path.display().to_string();
        let io_error = |source| TraceError::Io { name: name.clone(), source };
        let is_capture = options.format == Some(TraceFormat::Capture);
        if is_capture || path.is_dir() {
            return Self::open_capture(path, options);
        }
        let file = File::open(path).map_err(io_error)?;
        let (mut reader, _) = capture::unpack(BufReader::with_capacity(BUFFER_BYTES, file)).map_err(io_error)?;
        let stem = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
        let format = match options.format {
            Some(format) => format,
            None => detect(&name, stem, reader.fill_buf().map_err(io_error)?)?,
        };
        if format == TraceFormat::Capture {
            drop(reader);
            return Self::open_capture(path, options);
        }
        Self::read(reader, &name, format, options)
    }

    /// It knows its other files itself.
    fn open_capture(path: &Path, options: &TraceOptions) -> Result<Trace, TraceError> {
        let read = ReadOptions { lenient: options.lenient };
        capture::read_workload(CaptureReader::open(path, &read)?, options)
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
            TraceFormat::Mooncake => mooncake::read(reader, name, options),
            TraceFormat::Azure => azure::read(reader, name, options),
            TraceFormat::Capture => {
                let read = ReadOptions { lenient: options.lenient };
                capture::read_workload(CaptureReader::from_reader(reader, name, &read)?, options)
            }
        }
    }
}

/// Finds the format from the name, else from the first line that is not blank.
fn detect(name: &str, stem: &str, start: &[u8]) -> Result<TraceFormat, TraceError> {
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let text = text.trim_ascii_start();
    if text.is_empty() {
        return Err(TraceError::Empty { name: name.to_owned() });
    }
    let row = text.split(|byte| *byte == b'\n').next().unwrap_or(text);
    if row.starts_with(b"{") {
        if is_capture(row) {
            return Ok(TraceFormat::Capture);
        }
        refuse_relatives(name, row)?;
    }
    let suffix = Path::new(stem).extension().and_then(|e| e.to_str());
    match suffix {
        Some("jsonl" | "json" | "ndjson") => Ok(TraceFormat::Mooncake),
        Some("csv") => Ok(TraceFormat::Azure),
        _ if row.starts_with(b"{") => Ok(TraceFormat::Mooncake),
        _ if row.starts_with(b"TIMESTAMP") => Ok(TraceFormat::Azure),
        _ => Err(TraceError::UnknownFormat { name: name.to_owned() }),
    }
}

/// Whether a capture starts with such a row, of which the end may be missing.
fn is_capture(row: &[u8]) -> bool {
    const FIRST_KEYS_BYTES: usize = 4096;
    let starts = &row[..row.len().min(FIRST_KEYS_BYTES)];
    let has = |key: &[u8]| starts.windows(key.len()).any(|window| window == key);
    capture::detect(row).is_some() || has(b"\"vcr.capture\"") || has(b"\"ttft_ms\"")
}

/// Relatives of the Mooncake format would fail on some field far from the
/// cause; their first row gives them away.
fn refuse_relatives(name: &str, row: &[u8]) -> Result<(), TraceError> {
    const CONVERT: &str = "convert it to plain Mooncake rows";
    let has = |key: &[u8]| row.windows(key.len()).any(|window| window == key);
    let looks_like = if has(b"\"schema\"") || has(b"\"event_type\"") {
        "a Dynamo request trace or agentic Mooncake trace"
    } else if has(b"\"num_turns\"") {
        "an Applied Compute agentic trace"
    } else {
        return Ok(());
    };
    Err(TraceError::UnsupportedFormat { name: name.to_owned(), looks_like, advice: CONVERT })
}
