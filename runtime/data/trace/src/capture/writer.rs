//! Writes captures, line by line.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use serde::Serialize;

use super::record::{CaptureLine, CaptureMeta, StepRecord};

const ZSTD_LEVEL: i32 = 3;

/// Writes one file of a capture.
///
/// Only after [`flush`] is data certainly passed to the system, and only after [`finish`] is the file complete.
///
/// [`flush`]: CaptureWriter::flush
/// [`finish`]: CaptureWriter::finish
pub struct CaptureWriter {
    out: Packed,
    line: Vec<u8>,
    written_bytes: u64,
}

enum Packed {
    Plain(BufWriter<File>),
    Gz(GzEncoder<BufWriter<File>>),
    Zst(zstd::Encoder<'static, BufWriter<File>>),
}

impl CaptureWriter {
    /// Creates a file, packed according to its suffix, and writes the first line.
    ///
    /// # Errors
    /// If the file already exists, or cannot be written.
    pub fn create(path: &Path, meta: CaptureMeta) -> io::Result<Self> {
        Self::to_file(File::create_new(path)?, path, meta)
    }

    /// Writes to an open, empty file, packed according to the suffix of `path`. Starts with the first line.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn to_file(file: File, path: &Path, meta: CaptureMeta) -> io::Result<Self> {
        let file = BufWriter::with_capacity(1 << 16, file);
        let out = match path.extension().and_then(|suffix| suffix.to_str()) {
            Some("gz") => Packed::Gz(GzEncoder::new(file, Compression::default())),
            Some("zst") => Packed::Zst(zstd::Encoder::new(file, ZSTD_LEVEL)?),
            _ => Packed::Plain(file),
        };
        let mut writer = Self { out, line: Vec::new(), written_bytes: 0 };
        writer.write(&CaptureLine::Meta(Box::new(meta)))?;
        Ok(writer)
    }

    /// Writes a line.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, line: &CaptureLine) -> io::Result<()> {
        self.write_line(line)
    }

    fn write_line(&mut self, line: &impl Serialize) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, line)?;
        self.line.push(b'\n');
        self.written_bytes += self.line.len() as u64;
        self.out.as_write().write_all(&self.line)
    }

    /// Writes a step whose statistics have any type that serialises to JSON.
    ///
    /// # Errors
    /// If the file cannot be written, or the statistics cannot be serialised. In the second case nothing is
    /// written.
    pub fn write_step<S: Serialize>(&mut self, step: &StepRecord<S>) -> io::Result<()> {
        #[derive(Serialize)]
        struct Line<'a, S> {
            kind: &'static str,
            #[serde(flatten)]
            step: &'a StepRecord<S>,
        }
        self.write_line(&Line { kind: "step", step })
    }

    /// Number of bytes written so far, before packing.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Passes everything written so far to the system, so that a reader sees it even if this process ends at once.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.as_write().flush()
    }

    /// Ends the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(self) -> io::Result<()> {
        match self.out {
            Packed::Plain(file) => file,
            Packed::Gz(packed) => packed.finish()?,
            Packed::Zst(packed) => packed.finish()?,
        }
        .flush()
    }
}

impl Packed {
    fn as_write(&mut self) -> &mut dyn Write {
        match self {
            Self::Plain(file) => file,
            Self::Gz(packed) => packed,
            Self::Zst(packed) => packed,
        }
    }
}
