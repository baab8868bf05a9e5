//! Writes a pack.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::error::PackError;
use crate::manifest::{FileEntry, MANIFEST, Manifest};
use crate::path::check_path;

/// Most contents are compressed already; the rest is text.
const ZSTD_LEVEL: i32 = 3;

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// In memory.
    Bytes(Vec<u8>),
    /// On disk.
    File(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackFile {
    /// Path in the pack.
    pub path: String,
    pub content: Content,
}

impl PackFile {
    fn open(&self) -> io::Result<Box<dyn Read + '_>> {
        Ok(match &self.content {
            Content::Bytes(bytes) => Box::new(bytes.as_slice()),
            Content::File(path) => Box::new(BufReader::with_capacity(1 << 16, File::open(path)?)),
        })
    }

    fn entry(&self) -> Result<FileEntry, PackError> {
        check_path(&self.path)?;
        let mut hash = Sha256::new();
        let bytes = self.open().and_then(|mut content| io::copy(&mut content, &mut HashWriter(&mut hash)));
        let bytes = bytes.map_err(PackError::file(&self.path))?;
        Ok(FileEntry { path: self.path.clone(), bytes, sha256: hex::encode(hash.finalize()) })
    }
}

struct HashWriter<'a>(&'a mut Sha256);

impl Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a pack. Fills in the list of files in `manifest`, sorted by path.
///
/// # Errors
/// When a file cannot be read or changes while it is read, or `out` cannot be written.
pub fn write(out: impl Write, mut manifest: Manifest, mut files: Vec<PackFile>) -> Result<Manifest, PackError> {
    files.sort_by(|a, b| a.path.cmp(&b.path));
    // Removes an input that is named twice.
    files.dedup();
    manifest.files = files.iter().map(PackFile::entry).collect::<Result<_, _>>()?;
    // Ensures that the manifest can be read again.
    let json = serde_json::to_vec_pretty(&manifest).map_err(|error| PackError::Manifest(error.to_string()))?;
    let manifest = Manifest::parse(&json)?;
    let failed = PackError::file(MANIFEST);
    let mut archive = Builder::new(zstd::Encoder::new(out, ZSTD_LEVEL).map_err(failed)?);
    append(&mut archive, MANIFEST, json.len() as u64, json.as_slice()).map_err(PackError::file(MANIFEST))?;
    for (file, entry) in files.iter().zip(&manifest.files) {
        let content = file.open().map_err(PackError::file(&file.path))?;
        let mut content = content.take(entry.bytes);
        append(&mut archive, &entry.path, entry.bytes, &mut content).map_err(PackError::file(&file.path))?;
        if content.limit() > 0 {
            let source = io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was packed");
            return Err(PackError::File { path: file.path.clone(), source });
        }
    }
    let finished = archive.into_inner().and_then(zstd::Encoder::finish).and_then(|mut out| out.flush());
    finished.map_err(PackError::file(MANIFEST))?;
    Ok(manifest)
}

/// Appends a file with only its path and content, without times or owners.
fn append<W: Write>(archive: &mut Builder<W>, path: &str, bytes: u64, content: impl Read) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_size(bytes);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    archive.append_data(&mut header, path, content)
}
