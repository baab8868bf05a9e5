//! A capture for replay. One pass reads the heads of its requests. A record is read only when it is needed, so that
//! few records are in memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::{Map, Value};
use vcr_base::finish_reason::FinishReason;
use vcr_base::input::{MAX_LINE_BYTES, Unpacked, is_regular};

use super::check::{BlockRule, check, check_http};
use super::decode::{CaptureFormat, decode};
use super::error::LineProblem;
use super::error::{CaptureError, CaptureProblem};
use super::hash::BlockHash;
use super::http::HttpRecord;
use super::reader::{CapturePosition, CaptureReader, Parts, ReadOptions, is_of_limit};
use super::record::{CaptureLine, CaptureMeta, RequestRecord};
use super::summary::CaptureSummary;
use crate::capture::reader::{self, PartNames};

const BUFFER_BYTES: usize = 256 << 10;

/// A capture whose records can be read in any order and from any thread.
///
/// A packed file is unpacked once into an unnamed temporary file, after its first line was found to start a
/// capture. [`vcr_base::input`] limits the size.
pub struct CaptureFile {
    options: ReadOptions,
    format: CaptureFormat,
    meta: CaptureMeta,
    names: Option<PartNames>,
    files: Vec<OpenPart>,
}

struct OpenPart {
    name: String,
    file: File,
    /// Whether the archive was cut off.
    is_cut: bool,
}

/// The fields of a [`RequestRecord`] by which a request is found and ordered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestHead<'a> {
    /// The position of the request's line.
    pub position: CapturePosition,
    /// Time of arrival.
    pub arrival_ns: Option<u64>,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Length of the answer.
    pub output_tokens: u32,
    /// Chained hashes of the prompt's full blocks.
    pub block_hashes: &'a [BlockHash],
    /// Hash of the whole prompt.
    pub prompt_hash: Option<BlockHash>,
    /// The request's id on the wire.
    pub id: Option<&'a str>,
    /// The id that the client gave the request.
    pub external_id: Option<&'a str>,
    /// Name of the session.
    pub session: Option<&'a str>,
    /// Name of the adapter.
    pub lora: Option<&'a str>,
    /// Sampling or pooling parameters that differ from their defaults.
    pub params: &'a Map<String, Value>,
    /// Reason for the end of the request.
    pub finish_reason: Option<FinishReason>,
    /// Time from arrival to end; see [`RequestRecord::duration_ns`].
    pub duration_ns: Option<u64>,
    /// Whether the tokens of the answer are known. Also true for an empty answer.
    pub has_tokens: bool,
}

impl<'a> RequestHead<'a> {
    fn of(position: CapturePosition, record: &'a RequestRecord) -> Self {
        Self {
            position,
            arrival_ns: record.arrival_ns,
            prompt_tokens: record.prompt_tokens,
            output_tokens: record.output_tokens,
            block_hashes: &record.block_hashes,
            prompt_hash: record.prompt_hash,
            id: record.id.as_deref(),
            external_id: record.external_id.as_deref(),
            session: record.session.as_deref(),
            lora: record.lora.as_deref(),
            params: &record.params,
            finish_reason: record.finish_reason.as_deref().and_then(FinishReason::parse),
            duration_ns: record.duration_ns(),
            has_tokens: record.output_tokens == 0 || record.output_token_ids.is_some(),
        }
    }
}

impl CaptureFile {
    /// Opens a capture with all its parts, as [`CaptureReader::open`] does.
    ///
    /// # Errors
    /// If a file cannot be read or unpacked, or does not start a capture.
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, CaptureError> {
        let first = reader::first_file(path)?;
        let opened = OpenPart::open(&first, Some(options))?;
        let start = CaptureReader::start(opened.stream(), opened.name.clone(), Parts::None, options)?;
        let names = start.part_names(path, &first)?;
        let (format, meta) = (start.format(), start.meta().clone());
        drop(start);
        let mut files = vec![opened];
        let mut part = meta.part.saturating_add(1);
        while let Some(next) = names.as_ref().and_then(|names| names.find(part)) {
            files.push(OpenPart::open(&next, None)?);
            part = part.saturating_add(1);
        }
        Ok(Self { options: *options, format, meta, names, files })
    }

    /// The meta line.
    #[must_use]
    pub fn meta(&self) -> &CaptureMeta {
        &self.meta
    }

    /// Format of the capture.
    #[must_use]
    pub fn format(&self) -> CaptureFormat {
        self.format
    }

    /// Reads and checks the whole capture. Calls `each` with the head of each request, in file order.
    ///
    /// # Errors
    /// As [`CaptureReader::next_line`].
    pub fn scan(&self, mut each: impl FnMut(&RequestHead<'_>)) -> Result<CaptureSummary, CaptureError> {
        self.scan_lines(|position, line| {
            if let CaptureLine::Request(record) = line {
                each(&RequestHead::of(position, &record));
            }
        })
    }

    /// Reads and checks the whole capture. Calls `each` with each HTTP exchange, in file order.
    ///
    /// # Errors
    /// As [`CaptureReader::next_line`].
    pub fn scan_http(&self, mut each: impl FnMut(CapturePosition, HttpRecord)) -> Result<CaptureSummary, CaptureError> {
        self.scan_lines(|position, line| {
            if let CaptureLine::Http(record) = line {
                each(position, *record);
            }
        })
    }

    fn scan_lines(&self, mut each: impl FnMut(CapturePosition, CaptureLine)) -> Result<CaptureSummary, CaptureError> {
        let mut streams: Vec<_> = self.files.iter().map(|part| (part.name.clone(), part.stream())).collect();
        let (name, first) = streams.remove(0);
        let parts = Parts::Open { names: self.names.as_ref(), streams: streams.into_iter() };
        let mut reader = CaptureReader::start(first, name, parts, &self.options)?;
        while let Some((position, line)) = reader.next_placed()? {
            each(position, line);
        }
        Ok(reader.summary())
    }

    /// Reads the record at a position that [`scan`](CaptureFile::scan) returned.
    ///
    /// # Errors
    /// If the file cannot be read, or was changed since.
    pub fn record_at(&self, position: CapturePosition) -> Result<RequestRecord, CaptureError> {
        match self.line_at(position)? {
            CaptureLine::Request(record) => {
                check(&record, BlockRule::of(&self.meta, self.format))
                    .map_err(|problem| self.problem_at(position, problem))?;
                Ok(*record)
            }
            _ => Err(self.changed_at(position, "a request line")),
        }
    }

    /// Reads the HTTP exchange at a position that [`scan_http`](CaptureFile::scan_http) returned.
    ///
    /// # Errors
    /// If the file cannot be read, or was changed since.
    pub fn http_at(&self, position: CapturePosition) -> Result<HttpRecord, CaptureError> {
        match self.line_at(position)? {
            CaptureLine::Http(record) => {
                check_http(&record).map_err(|problem| self.problem_at(position, problem))?;
                Ok(*record)
            }
            _ => Err(self.changed_at(position, "an http line")),
        }
    }

    fn line_at(&self, position: CapturePosition) -> Result<CaptureLine, CaptureError> {
        let part = &self.files[position.file as usize];
        let mut row = vec![0; position.len_bytes as usize];
        let read = part.file.read_exact_at(&mut row, position.offset_bytes);
        read.map_err(|source| CaptureError::Io { name: part.name.clone(), source })?;
        decode(self.format, &row).map_err(|problem| self.problem_at(position, problem))
    }

    fn problem_at(&self, position: CapturePosition, LineProblem { field, problem }: LineProblem) -> CaptureError {
        let name = self.files[position.file as usize].name.clone();
        CaptureError::Line { name, line: position.line, field, problem }
    }

    fn changed_at(&self, position: CapturePosition, what: &str) -> CaptureError {
        let text = format!("{what} was here when the capture was opened, but is not now");
        self.problem_at(position, LineProblem::of_line(CaptureProblem::Malformed(text)))
    }
}

impl OpenPart {
    /// Opens a file. `first` is the reading options if the file must be the first of a capture; otherwise None.
    fn open(path: &Path, first: Option<&ReadOptions>) -> Result<Self, CaptureError> {
        let name = path.display().to_string();
        let io_error = |source| CaptureError::Io { name: name.clone(), source };
        if path.exists() && !path.is_dir() && !is_regular(path) {
            let text = "records are read from it in any order; expected a regular file";
            return Err(io_error(io::Error::new(ErrorKind::InvalidInput, text)));
        }
        let mut stream = reader::open(path).map_err(io_error)?;
        if stream.packing().is_none() {
            drop(stream);
            let file = File::open(path).map_err(io_error)?;
            return Ok(Self { name, file, is_cut: false });
        }
        let mut unpacked = tempfile::tempfile().map_err(io_error)?;
        let mut unpack = || {
            let head = head_of(&mut stream)?;
            if let Some(options) = first {
                let head = Unpacked::plain(&head[..]);
                if let Err(error) = CaptureReader::start(head, name.clone(), Parts::None, options) {
                    return Ok(Some(error));
                }
            }
            unpacked.write_all(&head)?;
            io::copy(&mut stream, &mut unpacked)?;
            unpacked.flush().map(|()| None)
        };
        match unpack() {
            Ok(None) => Ok(Self { is_cut: stream.is_cut(), name, file: unpacked }),
            Ok(Some(error)) => Err(error),
            Err(source) if is_of_limit(&source) => Err(io_error(source)),
            Err(source) => Err(CaptureError::Packed { name: name.clone(), line: lines_of(&mut unpacked), source }),
        }
    }

    /// A stream over the whole file that does not change the file's own position.
    fn stream(&self) -> Unpacked<'_> {
        let cursor = Cursor { file: &self.file, offset_bytes: 0, is_cut: self.is_cut };
        Unpacked::plain(BufReader::with_capacity(BUFFER_BYTES, cursor)).ending_where_cut()
    }
}

/// Reads a stream up to the end of its first non-blank line, but at most the maximum length of a line.
fn head_of(stream: &mut Unpacked<'_>) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let start = head.len();
        let room = (MAX_LINE_BYTES + 1).saturating_sub(start as u64);
        let bytes = stream.by_ref().take(room).read_until(b'\n', &mut head)?;
        if bytes == 0 || !head[start..].trim_ascii().is_empty() {
            return Ok(head);
        }
    }
}

/// Number of lines that were unpacked before the damage, as far as known.
fn lines_of(unpacked: &mut File) -> u32 {
    let mut lines = 0u32;
    let mut buffer = vec![0; BUFFER_BYTES];
    if unpacked.seek(SeekFrom::Start(0)).is_err() {
        return lines;
    }
    while let Ok(bytes @ 1..) = unpacked.read(&mut buffer) {
        let ends = buffer[..bytes].iter().filter(|byte| **byte == b'\n').count();
        lines = lines.saturating_add(ends as u32);
    }
    lines
}

/// Reads a shared file from this reader's own position.
struct Cursor<'a> {
    file: &'a File,
    offset_bytes: u64,
    /// Whether the file is the unpacked part of an archive that was cut off.
    is_cut: bool,
}

impl Read for Cursor<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read_at(out, self.offset_bytes)?;
        if bytes == 0 && self.is_cut && !out.is_empty() {
            return Err(io::Error::from(ErrorKind::UnexpectedEof));
        }
        self.offset_bytes += bytes as u64;
        Ok(bytes)
    }
}
