//! Reads captures, a line at a time.

pub(super) mod intake;

use std::io::{self, BufRead, ErrorKind};
use std::path::{Path, PathBuf};

use intake::Intake;
use vcr_base::input::{MAX_LINE_BYTES, Unpacked};

use super::decode::{CaptureFormat, detect, is_cut_off};
use super::error::{CaptureError, CaptureProblem};
use super::record::{CaptureLine, CaptureMeta};
use super::summary::CaptureSummary;
use crate::VcrOutput;
use crate::lines::{LineError, Lines};

/// Options for reading a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Whether invalid lines are skipped and counted instead of causing an error.
    pub lenient: bool,
}

/// Reads a capture of either format line by line, over all its parts.
///
/// Every line is checked before it is returned. If a capture breaks off, everything before the break is read;
/// [`CaptureReader::summary`] then tells how the capture breaks off.
///
/// ```
/// use vcr_trace::capture::{CaptureLine, CaptureReader, ReadOptions};
///
/// let lines = concat!(
///     r#"{"kind":"meta","format":"vcr.capture","version":1}"#, "\n",
///     r#"{"kind":"request","prompt_tokens":5,"output_tokens":1,"finish_reason":"stop"}"#, "\n",
/// );
/// let mut reader = CaptureReader::from_reader(lines.as_bytes(), "inline", &ReadOptions::default())?;
/// while let Some((line, content)) = reader.next_line()? {
///     if let CaptureLine::Request(request) = content {
///         assert_eq!((line, request.prompt_tokens), (2, 5));
///     }
/// }
/// assert!(reader.summary().broken_off.is_some(), "there is no end line");
/// # Ok::<(), vcr_trace::capture::CaptureError>(())
/// ```
pub struct CaptureReader<'a> {
    lines: Lines<Unpacked<'a>>,
    intake: Intake,
    parts: Parts<'a>,
    /// Whether the first row is not a meta line and still has to be returned.
    is_row_pending: bool,
    is_done: bool,
}

/// The position of a line in a [`CaptureFile`](super::CaptureFile).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturePosition {
    /// Index of the file among the files of the capture, from 0.
    pub(super) file: u32,
    pub(super) line: u32,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u32,
}

impl CapturePosition {
    /// Number of the line in its file, from 1.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.line
    }
}

/// The source of the parts after the first.
pub(super) enum Parts<'a> {
    /// There are no more parts.
    None,
    /// From files with these names.
    Files(PartNames),
    /// From open streams.
    Open { names: Option<&'a PartNames>, streams: std::vec::IntoIter<(String, Unpacked<'a>)> },
}

impl CaptureReader<'static> {
    /// Opens a capture: a file, the first file of a rotated capture, or a folder that contains one capture. Packed
    /// files are recognised by their first bytes.
    ///
    /// # Errors
    /// If a file cannot be read, or does not start a capture.
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, CaptureError> {
        let file = first_file(path)?;
        let name = file.display().to_string();
        let stream = open(&file).map_err(|source| CaptureError::Io { name: name.clone(), source })?;
        let mut reader = CaptureReader::start(stream, name, Parts::None, options)?;
        reader.parts = reader.part_names(path, &file)?.map_or(Parts::None, Parts::Files);
        Ok(reader)
    }
}

/// Lists the files of a rotated capture after its first file `path`. Empty if `path` is not a capture, or not
/// rotated.
#[must_use]
pub fn later_parts(path: &Path) -> Vec<PathBuf> {
    let Ok(reader) = CaptureReader::open(path, &ReadOptions::default()) else { return Vec::new() };
    let Parts::Files(names) = &reader.parts else { return Vec::new() };
    let first = reader.meta().part.saturating_add(1);
    (first..).map_while(|part| names.find(part)).collect()
}

impl<'a> CaptureReader<'a> {
    /// Reads a capture from a stream, which may be packed. Errors use `name` for it.
    ///
    /// # Errors
    /// See [`CaptureReader::open`].
    pub fn from_reader(reader: impl BufRead + 'a, name: &str, options: &ReadOptions) -> Result<Self, CaptureError> {
        let name = name.to_owned();
        let stream = Unpacked::new(reader).map_err(|source| CaptureError::Io { name: name.clone(), source })?;
        Self::start(stream.ending_where_cut(), name, Parts::None, options)
    }

    /// Reads the first row, which shows the format.
    pub(super) fn start(
        stream: Unpacked<'a>,
        name: String,
        parts: Parts<'a>,
        options: &ReadOptions,
    ) -> Result<Self, CaptureError> {
        let mut lines = Lines::new(stream);
        let Some((line, row)) = next_row(&mut lines, &name)? else {
            let is_cut = lines.reader().is_cut();
            return Err(if is_cut { CaptureError::CutAtStart { name } } else { CaptureError::Empty { name } });
        };
        if let Some(output) = VcrOutput::detect(row) {
            return Err(CaptureError::VcrOutput { name, output });
        }
        let Some(format) = detect(row) else {
            let is_half = !row.ends_with(b"\n") && row.starts_with(b"{") && is_cut_off(row);
            return Err(if is_half { CaptureError::CutAtStart { name } } else { CaptureError::NoMeta { name, line } });
        };
        let mut intake = Intake::new(format, name, options.lenient);
        let is_row_pending = !intake.begin(line, row)?;
        Ok(Self { lines, intake, parts, is_row_pending, is_done: false })
    }

    /// The meta line.
    #[must_use]
    pub fn meta(&self) -> &CaptureMeta {
        self.intake.meta()
    }

    /// Format of the capture.
    #[must_use]
    pub fn format(&self) -> CaptureFormat {
        self.intake.format()
    }

    /// Name of the file with the latest line, as the caller gave it.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.intake.name()
    }

    /// The summary of the lines read so far. It is complete when [`next_line`] has returned `None`.
    ///
    /// [`next_line`]: CaptureReader::next_line
    #[must_use]
    pub fn summary(&self) -> CaptureSummary {
        self.intake.summary()
    }

    /// Returns the next line and its number in its file, from 1. `None` at the end. Meta lines are left out.
    ///
    /// # Errors
    /// If a line is invalid (unless reading is lenient), or a file cannot be read. After an error about a line,
    /// reading may continue with the next line.
    pub fn next_line(&mut self) -> Result<Option<(u32, CaptureLine)>, CaptureError> {
        Ok(self.next_placed()?.map(|(place, line)| (place.line, line)))
    }

    pub(super) fn next_placed(&mut self) -> Result<Option<(CapturePosition, CaptureLine)>, CaptureError> {
        while !self.is_done {
            if !std::mem::take(&mut self.is_row_pending) {
                match next_row(&mut self.lines, self.intake.name()) {
                    Ok(Some(_)) => {}
                    Ok(None) => {
                        self.next_part()?;
                        continue;
                    }
                    // Nothing after this error can be read.
                    Err(error) => {
                        self.is_done = true;
                        return Err(error);
                    }
                }
            }
            let row = self.lines.row();
            let place = CapturePosition {
                file: self.intake.files() - 1,
                line: self.lines.line(),
                offset_bytes: self.lines.row_offset_bytes(),
                // A row has at most 64 MiB.
                len_bytes: row.len() as u32,
            };
            if let Some(line) = self.intake.take(place.line, row)? {
                return Ok(Some((place, line)));
            }
        }
        Ok(None)
    }

    /// The names of the parts after the opened `file`. `path` is what the caller passed.
    pub(super) fn part_names(&self, path: &Path, file: &Path) -> Result<Option<PartNames>, CaptureError> {
        // vllm-vcr does not rotate its traces.
        if self.format() == CaptureFormat::VllmVcr {
            return Ok(None);
        }
        let part = self.meta().part;
        let names = PartNames::of(file, part);
        if let (true, Some(names)) = (part > 0 && path.is_dir(), &names) {
            let missing = names.expected(0).display().to_string();
            return Err(CaptureError::MissingPart { name: path.display().to_string(), missing });
        }
        Ok(names)
    }

    /// Ends the file. Opens the next file if the capture continues.
    fn next_part(&mut self) -> Result<(), CaptureError> {
        let is_cut = self.lines.reader().is_cut();
        self.is_done = true;
        let part = self.meta().part.saturating_add(self.intake.files());
        let line = self.lines.line();
        let next = self.next_name(part);
        if !self.intake.end_file(line, is_cut, next.as_deref())? {
            return Ok(());
        }
        let Some((name, stream)) = self.open_next(part)? else {
            let missing = self.expected(part).map_or_else(|| format!("part {part}"), |path| path.display().to_string());
            return self.intake.part_is_missing(line, missing);
        };
        let mut lines = Lines::new(stream);
        match next_row(&mut lines, &name)? {
            Some((line, row)) => self.intake.begin_part(line, row, name, part)?,
            // The file was created, but nothing was written.
            None => self.intake.begin_empty_part(name),
        }
        self.lines = lines;
        self.is_done = false;
        Ok(())
    }

    fn expected(&self, part: u32) -> Option<PathBuf> {
        match &self.parts {
            Parts::None => None,
            Parts::Files(names) => Some(names.expected(part)),
            Parts::Open { names, .. } => names.map(|names| names.expected(part)),
        }
    }

    /// The path of a part; None if it does not exist.
    fn next_name(&self, part: u32) -> Option<String> {
        match &self.parts {
            Parts::None => None,
            Parts::Files(names) => names.find(part).map(|path| path.display().to_string()),
            Parts::Open { streams, .. } => streams.as_slice().first().map(|(name, _)| name.clone()),
        }
    }

    fn open_next(&mut self, part: u32) -> Result<Option<(String, Unpacked<'a>)>, CaptureError> {
        let path = match &mut self.parts {
            Parts::None => return Ok(None),
            Parts::Open { streams, .. } => return Ok(streams.next()),
            Parts::Files(names) => names.find(part),
        };
        let Some(path) = path else { return Ok(None) };
        let name = path.display().to_string();
        match open(&path) {
            Ok(stream) => Ok(Some((name, stream))),
            Err(source) => Err(CaptureError::Io { name, source }),
        }
    }
}

fn next_row<'l>(lines: &'l mut Lines<Unpacked<'_>>, name: &str) -> Result<Option<(u32, &'l [u8])>, CaptureError> {
    let error = match lines.next_row() {
        Ok(None) => return Ok(None),
        Ok(Some(_)) => None,
        Err(error) => Some(error),
    };
    let Some(error) = error else { return Ok(Some((lines.line(), lines.row()))) };
    let name = name.to_owned();
    let (line, problem) = match error {
        LineError::Io(source) if lines.reader().packing().is_some() && !is_of_limit(&source) => {
            return Err(CaptureError::Packed { name, line: lines.line(), source });
        }
        LineError::Io(source) => return Err(CaptureError::Io { name, source }),
        LineError::TooLong { line } => (line, CaptureProblem::TooLong { limit_bytes: MAX_LINE_BYTES }),
        LineError::TooMany { line } => (line, CaptureProblem::TooManyLines),
    };
    Err(CaptureError::Line { name, line, field: None, problem })
}

/// Whether an error means that a limit was exceeded, not that the data is damaged.
pub(super) fn is_of_limit(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::FileTooLarge | ErrorKind::OutOfMemory | ErrorKind::StorageFull)
}

/// The suffixes of packed files, starting with none.
const PACKINGS: [&str; 3] = ["", ".gz", ".zst"];

#[derive(Clone, Debug)]
pub(in crate::capture) struct PartNames {
    folder: PathBuf,
    /// The name without the part's number, suffix and packing.
    base: String,
    suffix: String,
    packing: &'static str,
}

impl PartNames {
    /// The names of a capture whose part `part` is `path`. None if the name of a later part does not end with its
    /// number.
    pub(in crate::capture) fn of(path: &Path, part: u32) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (stem, packing) = without_packing(name);
        let (base, suffix) = stem.rsplit_once('.').unwrap_or((stem, ""));
        let base = if part == 0 { base } else { base.strip_suffix(&format!(".{part}"))? };
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Some(Self { folder, base: base.to_owned(), suffix: suffix.to_owned(), packing })
    }

    /// The file name of a part with the packing of the first part.
    pub(in crate::capture) fn expected(&self, part: u32) -> PathBuf {
        self.with_packing(part, self.packing)
    }

    /// The existing file of a part, with any packing.
    pub(in crate::capture) fn find(&self, part: u32) -> Option<PathBuf> {
        let packings = std::iter::once(self.packing).chain(PACKINGS);
        packings.map(|packing| self.with_packing(part, packing)).find(|path| path.exists())
    }

    fn with_packing(&self, part: u32, packing: &str) -> PathBuf {
        let number = if part == 0 { String::new() } else { format!(".{part}") };
        let dot = if self.suffix.is_empty() { "" } else { "." };
        self.folder.join(format!("{}{number}{dot}{}{packing}", self.base, self.suffix))
    }
}

fn without_packing(name: &str) -> (&str, &'static str) {
    let packed = PACKINGS.iter().skip(1).find_map(|packing| Some((name.strip_suffix(packing)?, *packing)));
    packed.unwrap_or((name, ""))
}

/// The first file of a capture: `path`, or the capture in the folder `path`.
pub(in crate::capture) fn first_file(path: &Path) -> Result<PathBuf, CaptureError> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let name = path.display().to_string();
    let io_error = |source| CaptureError::Io { name: name.clone(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io_error)? {
        let entry = entry.map_err(io_error)?.file_name();
        names.extend(entry.to_str().filter(|entry| without_packing(entry).0.ends_with(".jsonl")).map(str::to_owned));
    }
    names.sort();
    let mut first = names.iter().filter(|entry| !is_later_part(entry, &names));
    match (first.next(), first.next()) {
        (Some(only), None) => Ok(path.join(only)),
        _ => {
            let found = names.iter().filter(|entry| !is_later_part(entry, &names)).cloned().collect();
            Err(CaptureError::Folder { name, found })
        }
    }
}

/// Whether a file is a later part of a capture whose earlier part is in `names`.
fn is_later_part(name: &str, names: &[String]) -> bool {
    let Some((base, number)) = part_number(name) else { return false };
    let is_of_base = |other: &String| {
        let stem = without_packing(other).0.strip_suffix(".jsonl");
        stem == Some(base) || part_number(other).is_some_and(|(its, before)| its == base && before < number)
    };
    names.iter().any(is_of_base)
}

/// Splits a name such as `NAME.3.jsonl.gz` into `NAME` and 3.
fn part_number(name: &str) -> Option<(&str, u32)> {
    let stem = without_packing(name).0.strip_suffix(".jsonl")?;
    let (base, number) = stem.rsplit_once('.')?;
    Some((base, number.parse().ok()?))
}

/// Opens a file and unpacks it while it is read. An archive that is cut off ends there, like a plain file.
pub(in crate::capture) fn open(path: &Path) -> io::Result<Unpacked<'static>> {
    Unpacked::open(path).map(Unpacked::ending_where_cut)
}
