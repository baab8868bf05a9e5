//! Reads a pack.

use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use tar::{Archive, Entry};
use vcr_base::input::{MAX_CONFIG_BYTES, Packing, Unpacked};

use crate::error::PackError;
use crate::manifest::{EXTENSION, FileEntry, MANIFEST, Manifest};

/// Buffer size for copying.
const BUFFER_BYTES: usize = 64 << 10;

/// Number of bytes after the last entry that are ignored.
const MAX_REST_BYTES: u64 = 1 << 20;

/// Whether a file is probably a pack, even a truncated one: by its extension, or by zstd, which scripts never use.
#[must_use]
pub fn is_meant_as_pack(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
        || Unpacked::open(path).is_ok_and(|stream| stream.packing() == Some(Packing::Zstd))
}

/// Whether a file begins like a pack.
#[must_use]
pub fn is_pack(path: &Path) -> bool {
    let Ok(stream) = Unpacked::open(path) else { return false };
    if stream.packing() != Some(Packing::Zstd) {
        return false;
    }
    let mut start = [0; MANIFEST.len()];
    let mut stream = stream;
    stream.read_exact(&mut start).is_ok() && start == *MANIFEST.as_bytes()
}

/// Receives each file of a pack with its content. Results are valid only if the whole pack was read without an error.
pub type Sink<'a> = dyn FnMut(&FileEntry, &mut dyn Read) -> io::Result<()> + 'a;

/// Reads a pack and checks everything.
///
/// # Errors
/// The first problem found.
pub fn read<'a>(stream: impl BufRead + 'a, sink: &mut Sink<'_>) -> Result<Manifest, PackError> {
    let unpacked = Unpacked::new(stream).map_err(unreadable)?;
    if unpacked.packing() != Some(Packing::Zstd) {
        return Err(PackError::NotAPack);
    }
    let mut archive = Archive::new(unpacked);
    let mut entries = archive.entries().map_err(unreadable)?;
    let mut first = entries.next().ok_or(PackError::NotAPack)?.map_err(unreadable)?;
    if path_of(&first)? != MANIFEST {
        return Err(PackError::NotAPack);
    }
    check_plain(&first, MANIFEST)?;
    if first.size() > MAX_CONFIG_BYTES {
        let found = first.size();
        return Err(PackError::Size { path: MANIFEST.to_owned(), found, expected: MAX_CONFIG_BYTES });
    }
    let mut json = Vec::new();
    first.read_to_end(&mut json).map_err(unreadable)?;
    let manifest = Manifest::parse(&json)?;
    let mut listed = manifest.files.iter();
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        let found = path_of(&entry)?;
        let Some(expected) = listed.next().filter(|expected| expected.path == found) else {
            let expected = manifest.files.iter().find(|file| file.path == found);
            let expected = expected.map_or("nothing", |_| "another file").to_owned();
            return Err(PackError::Unexpected { found, expected });
        };
        check_plain(&entry, &found)?;
        if entry.size() != expected.bytes {
            return Err(PackError::Size { path: found, found: entry.size(), expected: expected.bytes });
        }
        let mut content = Hashed { content: entry, hash: Sha256::new() };
        sink(expected, &mut content).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => PackError::CutOff,
            _ => PackError::file(&expected.path)(error),
        })?;
        // Content that the sink did not read is hashed too.
        io::copy(&mut content, &mut io::sink()).map_err(unreadable)?;
        let found = hex::encode(content.hash.finalize());
        if found != expected.sha256 {
            return Err(PackError::Digest { path: expected.path.clone(), found, expected: expected.sha256.clone() });
        }
    }
    // A tar archive ends with zeros; some writers add kilobytes of them.
    let mut rest = archive.into_inner().take(MAX_REST_BYTES + 1);
    if io::copy(&mut rest, &mut io::sink()).map_err(unreadable)? > MAX_REST_BYTES {
        let (found, expected) = ("more behind its end".to_owned(), "nothing".to_owned());
        return Err(PackError::Unexpected { found, expected });
    }
    match listed.next() {
        Some(missing) => Err(PackError::Unexpected { found: "its end".to_owned(), expected: missing.path.clone() }),
        None => Ok(manifest),
    }
}

/// Checks a pack without storing it.
pub fn verify(path: &Path) -> Result<Manifest, PackError> {
    read(open(path)?, &mut |_, _| Ok(()))
}

/// Unpacks a pack into an existing, empty folder.
///
/// # Errors
/// The errors of [`read`], and a file that exists already or cannot be written.
pub fn unpack(path: &Path, folder: &Path) -> Result<Manifest, PackError> {
    read(open(path)?, &mut |entry, content| {
        // The path was checked to be inside the folder.
        let place = folder.join(&entry.path);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file = File::create_new(&place)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match content.read(&mut buffer)? {
                0 => return file.flush(),
                bytes => file.write_all(&buffer[..bytes])?,
            }
        }
    })
}

fn open(path: &Path) -> Result<io::BufReader<File>, PackError> {
    vcr_base::input::open(path).map(|file| io::BufReader::with_capacity(BUFFER_BYTES, file)).map_err(PackError::Read)
}

/// An archive that ends early was copied incompletely.
fn unreadable(error: io::Error) -> PackError {
    if error.kind() == io::ErrorKind::UnexpectedEof { PackError::CutOff } else { PackError::Read(error) }
}

fn path_of<R: Read>(entry: &Entry<'_, R>) -> Result<String, PackError> {
    let bytes = entry.path_bytes();
    let path = String::from_utf8_lossy(&bytes).into_owned();
    if String::from_utf8(bytes.into_owned()).is_err() { Err(PackError::Path(path)) } else { Ok(path) }
}

fn check_plain<R: Read>(entry: &Entry<'_, R>, path: &str) -> Result<(), PackError> {
    if entry.header().entry_type().is_file() { Ok(()) } else { Err(PackError::NotAFile(path.to_owned())) }
}

struct Hashed<R> {
    content: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.content.read(buffer)?;
        self.hash.update(&buffer[..bytes]);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests;
