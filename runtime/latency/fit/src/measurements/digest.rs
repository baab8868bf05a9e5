//! Digests of inputs, for provenance.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// SHA-256 of a file, or of the files of a folder in the order of their names, in hexadecimal.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn digest(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    let files: Vec<PathBuf> = if path.is_dir() {
        let mut files: Vec<_> =
            std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
        files.retain(|file| file.is_file());
        files.sort();
        files
    } else {
        vec![path.to_owned()]
    };
    for file in files {
        io::copy(&mut File::open(file)?, &mut HashWriter(&mut hash))?;
    }
    Ok(hex::encode(hash.finalize()))
}

struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
