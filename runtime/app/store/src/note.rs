//! Notes of unfinished uploads, in the folders of the files: `FILE.upload` has a JSON line for each event.
//!
//! A note is written before its upload begins and removed with its file. An incomplete last line is ignored.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const SUFFIX: &str = ".upload";
/// Buffer size for computing a digest.
const PIECE_BYTES: usize = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Planned { url: String, replaces: bool },
    Begun(Begun),
    Part { index: usize, content_id: String },
    Sent(Sent),
}

/// A multipart upload that has begun in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Begun {
    /// The store's id of the upload; empty if the store identifies parts by the object alone.
    pub(crate) upload_id: String,
    pub(crate) part_bytes: usize,
    /// Digest of the whole file.
    pub(crate) digest: String,
}

/// A completed upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) digest: String,
    /// The store's identifier of this version.
    pub(crate) e_tag: Option<String>,
}

/// The note of a file, locked until dropped.
#[derive(Debug)]
pub(crate) struct Note {
    pub(crate) file: PathBuf,
    pub(crate) url: String,
    /// Whether an existing object may be replaced.
    pub(crate) replaces: bool,
    pub(crate) begun: Option<Begun>,
    /// Parts that the store has, by index.
    pub(crate) parts: BTreeMap<usize, String>,
    pub(crate) sent: Option<Sent>,
    lines: File,
}

impl Note {
    /// Writes a new note that a file must be uploaded.
    pub(crate) fn create(file: &Path, url: &str, replaces: bool) -> io::Result<Self> {
        let lines = File::options().read(true).append(true).create_new(true).open(path_of(file))?;
        // Some network filesystems have no locks; there two processes may upload the same file.
        let _ = lines.try_lock();
        let (file, url) = (file.to_owned(), url.to_owned());
        let mut note = Self { file, url, replaces, begun: None, parts: BTreeMap::new(), sent: None, lines };
        note.write(&Line::Planned { url: note.url.clone(), replaces })?;
        Ok(note)
    }

    /// Reads a note; none if its file no longer exists or another process is uploading it.
    fn open(path: &Path) -> io::Result<Option<Self>> {
        let Some(file) = file_of(path).filter(|file| file.is_file()) else { return Ok(None) };
        let mut lines = File::options().read(true).append(true).open(path)?;
        if matches!(lines.try_lock(), Err(TryLockError::WouldBlock)) {
            return Ok(None);
        }
        let mut text = String::new();
        lines.read_to_string(&mut text)?;
        let mut read = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        let Some(Line::Planned { url, replaces }) = read.next() else { return Ok(None) };
        let mut note = Self { file, url, replaces, begun: None, parts: BTreeMap::new(), sent: None, lines };
        read.for_each(|line| note.take(line));
        if !text.ends_with('\n') {
            note.lines.write_all(b"\n")?;
        }
        Ok(Some(note))
    }

    /// All notes in a folder and its subfolders, sorted by file name, except those locked by other processes.
    pub(crate) fn all(spool: &Path) -> io::Result<Vec<Self>> {
        let mut paths = Vec::new();
        for path in entries(spool)? {
            match path.is_dir() {
                // The folder may have been removed meanwhile.
                true => paths.extend(entries(&path).unwrap_or_default()),
                false => paths.push(path),
            }
        }
        paths.retain(|path| file_of(path).is_some());
        paths.sort();
        Ok(paths.iter().filter_map(|path| Self::open(path).ok().flatten()).collect())
    }

    /// Records that a multipart upload has begun.
    pub(crate) fn begin(&mut self, begun: Begun) -> io::Result<()> {
        self.append(Line::Begun(begun))
    }

    /// Records that the store has a part.
    pub(crate) fn add_part(&mut self, index: usize, content_id: String) -> io::Result<()> {
        self.append(Line::Part { index, content_id })
    }

    /// Records that the object is complete.
    pub(crate) fn finish(&mut self, sent: Sent) -> io::Result<()> {
        self.append(Line::Sent(sent))
    }

    /// Takes over the upload that another note has begun.
    pub(crate) fn adopt(&mut self, other: &Self) -> io::Result<()> {
        let Some(begun) = &other.begun else { return Ok(()) };
        self.begin(begun.clone())?;
        other.parts.iter().try_for_each(|(index, content_id)| self.add_part(*index, content_id.clone()))
    }

    /// Removes the file and its note, and their folder if it is empty.
    pub(crate) fn remove(self, spool: &Path) -> io::Result<()> {
        let removed = fs::remove_file(&self.file);
        fs::remove_file(path_of(&self.file))?;
        if let Some(folder) = self.file.parent().filter(|folder| *folder != spool) {
            // Fails if other files are waiting in the folder.
            let _ = fs::remove_dir(folder);
        }
        removed
    }

    fn append(&mut self, line: Line) -> io::Result<()> {
        self.write(&line)?;
        self.take(line);
        Ok(())
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        self.lines.write_all(text.as_bytes())
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Planned { .. } => {}
            Line::Begun(begun) => {
                self.begun = Some(begun);
                self.parts.clear();
            }
            Line::Part { index, content_id } => drop(self.parts.insert(index, content_id)),
            Line::Sent(sent) => self.sent = Some(sent),
        }
    }
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

fn path_of(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(SUFFIX);
    path.into()
}

fn file_of(path: &Path) -> Option<PathBuf> {
    path.to_str()?.strip_suffix(SUFFIX).map(PathBuf::from)
}

pub(crate) fn digest(file: &Path) -> io::Result<String> {
    let mut open = File::open(file)?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match open.read(&mut piece)? {
            0 => return Ok(hex::encode(hash.finalize())),
            len => hash.update(&piece[..len]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(digest: &str) -> Begun {
        Begun { upload_id: "an-id".to_owned(), part_bytes: 5, digest: digest.to_owned() }
    }

    #[test]
    fn a_note_is_read_as_it_was_written_also_where_a_line_was_cut() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (spool, file) = (folder.path(), folder.path().join("parts/a.jsonl"));
        fs::create_dir(spool.join("parts")).expect("it is writable");
        fs::write(&file, "contents").expect("it is writable");
        let mut note = Note::create(&file, "s3://bucket/a.jsonl", true).expect("it is writable");
        note.begin(begun("old")).expect("it is writable");
        note.add_part(7, "of another file".to_owned()).expect("it is writable");
        note.begin(begun("new")).expect("it is writable");
        note.add_part(1, "one".to_owned()).expect("it is writable");
        assert!(Note::all(spool).expect("a folder").is_empty(), "it is locked");
        note.lines.write_all(b"{\"part\":{\"index\":0,\"cont").expect("it is writable");
        drop(note);
        for _ in 0..2 {
            let all = Note::all(spool).expect("a folder");
            let [note] = all.try_into().expect("one note");
            assert_eq!((note.file.as_path(), note.url.as_str(), note.replaces), (&*file, "s3://bucket/a.jsonl", true));
            assert_eq!(note.begun, Some(begun("new")));
            assert_eq!(note.parts, BTreeMap::from([(1, "one".to_owned())]));
            assert_eq!(note.sent, None);
        }
        let note = Note::all(spool).expect("a folder").pop().expect("a note");
        note.remove(spool).expect("it is ours");
        assert_eq!(entries(spool).expect("a folder"), Vec::<PathBuf>::new(), "the folder is gone, too");
    }

    #[test]
    fn what_follows_a_cut_line_counts() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("a");
        fs::write(&file, "contents").expect("it is writable");
        let mut note = Note::create(&file, "s3://bucket/a", false).expect("it is writable");
        note.lines.write_all(b"{\"begun\":").expect("it is writable");
        drop(note);
        let mut note = Note::all(folder.path()).expect("a folder").pop().expect("a note");
        note.begin(begun("new")).expect("it is writable");
        drop(note);
        let note = Note::all(folder.path()).expect("a folder").pop().expect("a note");
        assert_eq!(note.begun, Some(begun("new")));
    }
}
