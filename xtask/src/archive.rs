//! Archives with the same bytes for the same files: sorted, with one time and no owner.

use std::collections::BTreeMap;
use std::io::{self, Write};

use flate2::{Compression, GzBuilder, write::GzEncoder};
use tar::{Builder, EntryType, Header};

/// A file of an archive.
pub(crate) struct Entry {
    pub(crate) contents: Vec<u8>,
    /// Whether it is a program.
    pub(crate) is_program: bool,
}

impl Entry {
    /// A file that is not run.
    pub(crate) fn file(contents: impl Into<Vec<u8>>) -> Self {
        Self { contents: contents.into(), is_program: false }
    }
}

/// Files by their paths in the archive.
pub(crate) type Entries = BTreeMap<String, Entry>;

/// Compressed bytes, without a name or a time of their own.
fn gzip<W: Write>(out: W) -> GzEncoder<W> {
    // The operating system is written, too: 255 means an unknown one.
    GzBuilder::new().mtime(0).operating_system(255).write(out, Compression::best())
}

/// A file of its own, compressed.
pub(crate) fn compressed(contents: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = gzip(Vec::new());
    encoder.write_all(contents)?;
    encoder.finish()
}

/// A `.tar.gz` of files below one folder.
pub(crate) fn archive(folder: &str, entries: &Entries, time: u64) -> io::Result<Vec<u8>> {
    let mut builder = Builder::new(gzip(Vec::new()));
    for (path, entry) in entries {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(if entry.is_program { 0o755 } else { 0o644 });
        header.set_mtime(time);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(entry.contents.len() as u64);
        builder.append_data(&mut header, format!("{folder}/{path}"), &entry.contents[..])?;
    }
    builder.into_inner()?.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_have_order_modes_and_times_of_their_own() {
        let mut entries = Entries::new();
        entries.insert("b".into(), Entry::file("text"));
        entries.insert("a/vcr".into(), Entry { contents: vec![1, 2], is_program: true });
        let bytes = archive("vcr-1", &entries, 1_700_000_000).expect("memory can be written");
        assert_eq!(bytes, archive("vcr-1", &entries, 1_700_000_000).expect("memory can be written"));
        // Time zero and an unknown system in gzip's own header.
        assert_eq!((&bytes[4..8], bytes[9]), (&[0; 4][..], 255));
        let mut read = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
        let listed: Vec<_> = read
            .entries()
            .expect("an archive")
            .map(|entry| {
                let entry = entry.expect("an entry");
                let header = entry.header();
                let path = entry.path().expect("a path").display().to_string();
                (path, header.mode().expect("a mode"), header.mtime().expect("a time"), header.uid().expect("a user"))
            })
            .collect();
        let time = 1_700_000_000;
        assert_eq!(listed, [("vcr-1/a/vcr".to_owned(), 0o755, time, 0), ("vcr-1/b".to_owned(), 0o644, time, 0)]);
    }
}
