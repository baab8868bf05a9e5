//! Opening a trace: which format, packed or not, and with which rules.

use crate::{Trace, TraceError, azure, mooncake};
use flate2::bufread::MultiGzDecoder;
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
}

/// The rules a trace is read with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// The format; `None` finds it out from the file's name, else from its
    /// first line.
    pub format: Option<TraceFormat>,
    /// Prompt tokens that one hash id stands for; 512 in the published traces.
    pub block_size_tokens: NonZeroU32,
    /// Cut an `input_length` that its hash ids do not cover, and count a
    /// warning, where it is otherwise an error.
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
    /// Reads a trace file; one whose name ends in `.gz` is unpacked on the way.
    ///
    /// # Errors
    /// [`TraceError`], always naming the file, and the line and field where
    /// there is one. A trace is read whole or not at all.
    pub fn open(path: &Path, options: &TraceOptions) -> Result<Trace, TraceError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| TraceError::Io { name: name.clone(), source })?;
        let reader = BufReader::with_capacity(BUFFER_BYTES, file);
        let stem = name.strip_suffix(".gz");
        if let Some(stem) = stem {
            let unpacked = BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(reader));
            Self::detect_and_read(unpacked, &name, stem, options)
        } else {
            Self::detect_and_read(reader, &name, &name, options)
        }
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
        }
    }

    fn detect_and_read(
        mut reader: impl BufRead,
        name: &str,
        stem: &str,
        options: &TraceOptions,
    ) -> Result<Trace, TraceError> {
        let format = match options.format {
            Some(format) => format,
            None => {
                let start = reader.fill_buf().map_err(|source| TraceError::Io { name: name.to_owned(), source })?;
                detect(name, stem, start)?
            }
        };
        Self::read(reader, name, format, options)
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
