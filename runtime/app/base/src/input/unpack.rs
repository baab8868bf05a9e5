//! Streams that may be compressed; they are unpacked within limits.

use std::fmt;
use std::io::{self, BufRead, BufReader, Chain, Cursor, ErrorKind, Read};
use std::path::Path;

use crate::units::format_bytes;
use flate2::bufread::MultiGzDecoder;

use crate::input::{MAX_UNPACK_RATIO, MIN_UNPACKED_BYTES, file, memory};

/// Large enough that the cost of a read call is negligible.
const BUFFER_BYTES: usize = 256 << 10;

/// Bytes read between two checks of the memory limit.
const MEMORY_CHECK_BYTES: u64 = 16 << 20;

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// The compression of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        })
    }
}

/// The stored stream, including the first bytes, which have been inspected.
type Stored<'a> = Counted<Chain<Cursor<Vec<u8>>, Box<dyn BufRead + 'a>>>;

enum Inner<'a> {
    Plain(Box<dyn BufRead + 'a>),
    Gzip(Box<BufReader<MultiGzDecoder<Stored<'a>>>>),
    Zstd(BufReader<zstd::Decoder<'static, Stored<'a>>>),
}

/// A stream, unpacked if it is compressed.
///
/// The first bytes, not the name, show whether a stream is compressed. A compressed stream fails if it unpacks to
/// more than [`MIN_UNPACKED_BYTES`] plus [`MAX_UNPACK_RATIO`] times its size. Any stream fails if the process exceeds
/// its memory limit.
pub struct Unpacked<'a> {
    inner: Inner<'a>,
    /// Bytes that were peeked, and the number of them that were consumed.
    start: Vec<u8>,
    start_consumed: usize,
    consumed_bytes: u64,
    next_memory_check: u64,
    ends_where_cut: bool,
    end: Option<End>,
}

/// The reason why a stream ended early.
#[derive(Clone, Copy)]
enum End {
    Cut,
    TooLarge { packed_bytes: u64 },
}

impl Unpacked<'static> {
    /// Opens a file, as [`open`](crate::input::open) does.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::new(BufReader::with_capacity(BUFFER_BYTES, file::open(path)?))
    }
}

impl<'a> Unpacked<'a> {
    /// Opens a stream that may be compressed.
    ///
    /// # Errors
    /// If the stream fails.
    pub fn new(mut reader: impl BufRead + 'a) -> io::Result<Self> {
        let mut magic = [0; ZSTD_MAGIC.len()];
        let len = read_up_to(&mut reader, &mut magic)?;
        let magic = &magic[..len];
        let (is_gzip, is_zstd) = (magic.starts_with(GZIP_MAGIC), magic.starts_with(ZSTD_MAGIC));
        let stored = Cursor::new(magic.to_vec()).chain(Box::new(reader) as Box<dyn BufRead + 'a>);
        let inner = if is_gzip {
            let decoder = MultiGzDecoder::new(Counted::new(stored));
            Inner::Gzip(Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder)))
        } else if is_zstd {
            let decoder = zstd::Decoder::with_buffer(Counted::new(stored))?;
            Inner::Zstd(BufReader::with_capacity(BUFFER_BYTES, decoder))
        } else {
            Inner::Plain(Box::new(stored))
        };
        // An archive that was cut off after a few bytes.
        let is_stub = (1..ZSTD_MAGIC.len()).contains(&len)
            && (magic == &GZIP_MAGIC[..1] || (len > 1 && ZSTD_MAGIC.starts_with(magic)));
        Ok(Self { end: is_stub.then_some(End::Cut), ..Self::of(inner) })
    }

    /// A stream that is not compressed.
    pub fn plain(reader: impl BufRead + 'a) -> Self {
        Self::of(Inner::Plain(Box::new(reader)))
    }

    fn of(inner: Inner<'a>) -> Self {
        Self {
            inner,
            start: Vec::new(),
            start_consumed: 0,
            consumed_bytes: 0,
            next_memory_check: MEMORY_CHECK_BYTES,
            ends_where_cut: false,
            end: None,
        }
    }

    /// Makes a truncated archive simply end, like a truncated plain file; see [`is_cut`](Self::is_cut). By default it
    /// is an error of the kind [`ErrorKind::UnexpectedEof`].
    #[must_use]
    pub fn ending_where_cut(self) -> Self {
        Self { ends_where_cut: true, ..self }
    }

    /// The compression of the stream, if any.
    pub fn packing(&self) -> Option<Packing> {
        match &self.inner {
            Inner::Plain(_) => None,
            Inner::Gzip(_) => Some(Packing::Gzip),
            Inner::Zstd(_) => Some(Packing::Zstd),
        }
    }

    /// Whether the archive is truncated; known at its end.
    pub fn is_cut(&self) -> bool {
        matches!(self.end, Some(End::Cut))
    }

    /// Returns the next unread bytes, at most `most`, without consuming them. If the stream breaks off, returns fewer
    /// bytes; the next read returns the error.
    ///
    /// # Errors
    /// Errors of the stream before the first byte.
    pub fn peek(&mut self, most: usize) -> io::Result<&[u8]> {
        self.start.drain(..self.start_consumed);
        self.start_consumed = 0;
        while self.start.len() < most {
            // Keep the bytes peeked so far, and read those after them.
            let looked_at = std::mem::take(&mut self.start);
            let left = most - looked_at.len();
            let outcome = self.fill().map(|more| more[..more.len().min(left)].to_vec());
            self.start = looked_at;
            match outcome {
                Ok(more) if more.is_empty() => break,
                Ok(more) => {
                    self.inner.consume(more.len());
                    self.consumed_bytes += more.len() as u64;
                    self.start.extend(more);
                }
                Err(error) if self.start.is_empty() && !self.is_cut() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(&self.start[..self.start.len().min(most)])
    }

    /// Reads on after the peeked bytes.
    fn fill(&mut self) -> io::Result<&[u8]> {
        if let Some(end) = self.end {
            return self.ended(end);
        }
        if self.consumed_bytes >= self.next_memory_check {
            self.next_memory_check = self.consumed_bytes + MEMORY_CHECK_BYTES;
            memory::check()?;
        }
        if let Some(packed_bytes) = self.inner.packed_bytes().filter(|_| self.consumed_bytes > MIN_UNPACKED_BYTES)
            && self.consumed_bytes - MIN_UNPACKED_BYTES > packed_bytes.saturating_mul(MAX_UNPACK_RATIO)
        {
            let end = End::TooLarge { packed_bytes };
            self.end = Some(end);
            return self.ended(end);
        }
        match self.inner.fill_buf() {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                self.end = Some(End::Cut);
                if self.ends_where_cut { Ok(&[]) } else { Err(cut_off()) }
            }
            other => other,
        }
    }

    fn ended(&self, end: End) -> io::Result<&[u8]> {
        match end {
            End::Cut if self.ends_where_cut => Ok(&[]),
            End::Cut => Err(cut_off()),
            End::TooLarge { packed_bytes } => {
                let text = format!(
                    "{} of packed data unpack to more than {}, and the limit is {} and {MAX_UNPACK_RATIO} times the \
                     packed size; if that is right, unpack the file and give that",
                    format_bytes(packed_bytes as f64),
                    format_bytes(self.consumed_bytes as f64),
                    format_bytes(MIN_UNPACKED_BYTES as f64),
                );
                Err(io::Error::new(ErrorKind::FileTooLarge, text))
            }
        }
    }
}

fn cut_off() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the packed data is cut off")
}

fn read_up_to(reader: &mut impl Read, out: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < out.len() {
        match reader.read(&mut out[len..]) {
            Ok(0) => break,
            Ok(bytes) => len += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

impl Inner<'_> {
    /// Bytes of the compressed stream read so far; none for a plain stream.
    fn packed_bytes(&self) -> Option<u64> {
        match self {
            Self::Plain(_) => None,
            Self::Gzip(reader) => Some(reader.get_ref().get_ref().bytes),
            Self::Zstd(reader) => Some(reader.get_ref().get_ref().bytes),
        }
    }

    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self {
            Self::Plain(reader) => reader.fill_buf(),
            Self::Gzip(reader) => reader.fill_buf(),
            Self::Zstd(reader) => reader.fill_buf(),
        }
    }

    fn consume(&mut self, bytes: usize) {
        match self {
            Self::Plain(reader) => reader.consume(bytes),
            Self::Gzip(reader) => reader.consume(bytes),
            Self::Zstd(reader) => reader.consume(bytes),
        }
    }
}

impl Read for Unpacked<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let bytes = available.len().min(out.len());
        out[..bytes].copy_from_slice(&available[..bytes]);
        self.consume(bytes);
        Ok(bytes)
    }
}

impl BufRead for Unpacked<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start_consumed < self.start.len() {
            return Ok(&self.start[self.start_consumed..]);
        }
        self.fill()
    }

    fn consume(&mut self, bytes: usize) {
        if self.start_consumed < self.start.len() {
            self.start_consumed += bytes;
        } else {
            self.inner.consume(bytes);
            self.consumed_bytes += bytes as u64;
        }
    }
}

struct Counted<R> {
    reader: R,
    bytes: u64,
}

impl<R> Counted<R> {
    fn new(reader: R) -> Self {
        Self { reader, bytes: 0 }
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let bytes = self.reader.read(out)?;
        self.bytes += bytes as u64;
        Ok(bytes)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
        self.bytes += bytes as u64;
    }
}

#[cfg(test)]
mod tests;
