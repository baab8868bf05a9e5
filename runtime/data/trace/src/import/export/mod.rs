//! Writes captures for other tools and for people.

mod mooncake;
pub mod perfetto;
#[cfg(feature = "formats")]
mod proto;
mod table;
pub(crate) mod tracks;

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::str::FromStr;

use crate::capture::{CaptureEnd, CaptureLine, CaptureMeta, CaptureWriter, VllmVcrDropped, VllmVcrWriter};

use crate::import::Note;
#[cfg(not(feature = "formats"))]
use crate::import::absent::proto;
use mooncake::MooncakeExport;
pub use table::RequestColumns;
use table::{ParquetExport, TableExport};

/// The format in which a capture is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A capture.
    Capture,
    /// A trace of vllm-vcr.
    VllmVcr,
    /// Mooncake rows.
    Mooncake,
    /// A table with one row for each request.
    Csv,
    /// The table of `Csv`, as Parquet.
    Parquet,
}

impl Target {
    /// All formats.
    pub const ALL: [Self; 5] = [Self::Capture, Self::VllmVcr, Self::Mooncake, Self::Csv, Self::Parquet];

    /// The format's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::VllmVcr => "vllm-vcr",
            Self::Mooncake => "mooncake",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
        }
    }

    /// The format for the suffix of a path: a table, or else a capture.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|suffix| suffix.to_str()) {
            Some("csv") => Self::Csv,
            Some("parquet") => Self::Parquet,
            _ => Self::Capture,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|target| target.name() == text);
        found.ok_or_else(|| format!("invalid format `{text}`: expected {}", known()))
    }
}

/// Writes the lines of a capture to a file.
///
/// Captures are packed according to the file's suffix; other formats are never packed.
pub struct Exporter<'a> {
    path: &'a Path,
    /// The file; None after the first line was written.
    file: Option<File>,
    target: Target,
    writer: Option<Writer>,
    /// The sum of all `end` lines so far.
    ended: CaptureEnd,
}

enum Writer {
    Capture(CaptureWriter),
    VllmVcr(VllmVcrWriter<BufWriter<File>>),
    Mooncake(MooncakeExport<BufWriter<File>>),
    Csv(TableExport<BufWriter<File>>),
    Parquet(ParquetExport<BufWriter<File>>),
}

impl<'a> Exporter<'a> {
    /// An exporter to an open, empty file. `path` is the file's present or later path.
    #[must_use]
    pub fn new(file: File, path: &'a Path, target: Target) -> Self {
        Self { path, file: Some(file), target, writer: None, ended: CaptureEnd::default() }
    }

    /// Writes a line. The first line must be the meta line.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn add(&mut self, line: CaptureLine) -> io::Result<()> {
        match (&mut self.writer, line) {
            (None, CaptureLine::Meta(meta)) => {
                self.writer = Some(self.begin(*meta)?);
                Ok(())
            }
            (None, _) => Err(io::Error::other("a capture begins with its meta line")),
            // The parts of a rotated capture are merged.
            (Some(_), CaptureLine::Meta(_)) => Ok(()),
            (Some(Writer::Capture(writer)), CaptureLine::End(end)) => {
                let ended = &mut self.ended;
                ended.requests = ended.requests.saturating_add(end.requests);
                ended.unfinished = ended.unfinished.saturating_add(end.unfinished);
                ended.at_ns = end.at_ns;
                if end.continues { Ok(()) } else { writer.write(&CaptureLine::End(ended.clone())) }
            }
            (Some(Writer::Capture(writer)), line) => writer.write(&line),
            (Some(Writer::VllmVcr(writer)), line) => writer.write(&line),
            (Some(Writer::Mooncake(writer)), line) => {
                writer.add(line);
                Ok(())
            }
            (Some(Writer::Csv(writer)), line) => writer.add(&line),
            (Some(Writer::Parquet(writer)), line) => {
                writer.add(&line);
                Ok(())
            }
        }
    }

    fn begin(&mut self, meta: CaptureMeta) -> io::Result<Writer> {
        let file = self.file.take().ok_or_else(|| io::Error::other("the file could not be begun"))?;
        if self.target == Target::Capture {
            return CaptureWriter::to_file(file, self.path, CaptureMeta { part: 0, ..meta }).map(Writer::Capture);
        }
        if self.path.extension().is_some_and(|suffix| suffix == "gz" || suffix == "zst") {
            return Err(io::Error::other("only captures are packed; leave the suffix away"));
        }
        let file = BufWriter::with_capacity(1 << 16, file);
        Ok(match self.target {
            Target::Mooncake => Writer::Mooncake(MooncakeExport::new(file, &meta)),
            Target::Csv => Writer::Csv(TableExport::new(file)?),
            Target::Parquet => Writer::Parquet(ParquetExport::new(file)),
            _ => Writer::VllmVcr(VllmVcrWriter::new(file, &meta)?),
        })
    }

    /// Ends the file. Returns notes on what the file cannot contain.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(self) -> io::Result<Vec<Note>> {
        match self.writer {
            None => Ok(Vec::new()),
            Some(Writer::Capture(writer)) => writer.finish().map(|()| Vec::new()),
            Some(Writer::VllmVcr(writer)) => writer.finish().map(|dropped| notes(&dropped)),
            Some(Writer::Mooncake(writer)) => writer.finish(),
            Some(Writer::Csv(writer)) => writer.finish(),
            Some(Writer::Parquet(writer)) => writer.finish(),
        }
    }
}

fn notes(dropped: &VllmVcrDropped) -> Vec<Note> {
    let note = |count: u64, what: String| Note { what, count };
    let mut notes = vec![
        note(dropped.unfinished, "requests that were not over".to_owned()),
        note(dropped.without_times, "requests without the times that vllm-vcr asks for".to_owned()),
    ];
    notes.extend(dropped.fields.iter().map(|(field, count)| note(*count, format!("requests lost their `{field}`"))));
    notes.extend(dropped.lines.iter().map(|(kind, count)| note(*count, format!("`{kind}` lines"))));
    notes.retain(|note| note.count > 0);
    notes
}

#[derive(Default)]
struct LineTally([u64; 6]);

impl LineTally {
    const KINDS: [&'static str; 6] = ["engine", "step", "kv", "http", "break", "arrival"];

    fn count(&mut self, line: &CaptureLine) {
        let kind = match line {
            CaptureLine::Engine(_) => 0,
            CaptureLine::Step(_) => 1,
            CaptureLine::Kv(_) => 2,
            CaptureLine::Http(_) => 3,
            CaptureLine::Break(_) => 4,
            CaptureLine::Arrival(_) => 5,
            CaptureLine::Meta(_) | CaptureLine::Request(_) | CaptureLine::End(_) => return,
        };
        self.0[kind] += 1;
    }

    /// Notes on these lines. Arrivals are omitted, because requests contain them.
    fn notes(&self) -> Vec<Note> {
        let counted = Self::KINDS.iter().zip(self.0).filter(|(kind, count)| *count > 0 && **kind != "arrival");
        counted.map(|(kind, count)| Note { what: format!("`{kind}` lines"), count }).collect()
    }
}

fn flushed(mut out: impl Write) -> io::Result<()> {
    out.flush()
}

#[cfg(all(test, feature = "formats"))]
mod tests;
