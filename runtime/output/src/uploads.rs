//! Uploads of complete files beside the work that makes the next ones.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use crate::error::OutputError;
use crate::remote::{shown, upload_of};
use crate::write_error;

/// Complete files that become objects one after the other, on a thread of their own. A file is
/// removed once it is uploaded; what a store does not take is tried again at the end, and then
/// kept.
#[derive(Debug)]
pub struct Uploads {
    folder: PathBuf,
    files: Sender<(PathBuf, PathBuf)>,
    thread: JoinHandle<Vec<(PathBuf, PathBuf)>>,
}

impl Uploads {
    /// Begins to upload for the output `path`; none for a path of the file system.
    ///
    /// # Errors
    /// When there is no folder for files, or the store does not take an object of this name.
    pub fn start(path: &Path) -> Result<Option<Self>, OutputError> {
        let failed = |source| write_error(&shown(path), source);
        let Some((upload, url)) = upload_of(path).map_err(failed)? else { return Ok(None) };
        let spool = upload.spool().map_err(failed)?;
        let folder = tempfile::Builder::new().prefix("parts-").tempdir_in(spool).map_err(failed)?;
        // Better now than when the first file is complete.
        let empty = folder.path().join("empty");
        fs::write(&empty, "").and_then(|()| upload.upload(&empty, url, true)).map_err(failed)?;
        upload.remove(url).and_then(|()| fs::remove_file(&empty)).map_err(failed)?;
        let (files, waiting) = channel();
        let thread = thread::Builder::new().name("upload".to_owned()).spawn(move || upload_all(&waiting));
        let thread = thread.map_err(failed)?;
        // From here on it may hold the only copy of something.
        Ok(Some(Self { folder: folder.keep(), files, thread }))
    }

    /// The folder of the files until they are uploaded.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Uploads a complete file to a URL.
    pub fn add(&self, file: PathBuf, url: PathBuf) {
        // Without a thread the file stays, and `finish` says so.
        let _ = self.files.send((file, url));
    }

    /// Waits until all are uploaded.
    ///
    /// # Errors
    /// When the store did not take one of them, which is kept.
    pub fn finish(self) -> Result<(), OutputError> {
        drop(self.files);
        let left = self.thread.join().unwrap_or_default();
        for (file, url) in left {
            try_upload(&file, &url).map_err(|source| OutputError::NotUploaded {
                path: shown(&url),
                kept: file,
                source,
            })?;
        }
        // It is empty, unless a file was not added.
        let _ = fs::remove_dir(&self.folder);
        Ok(())
    }
}

/// Uploads what comes, and returns what could not be uploaded.
fn upload_all(files: &Receiver<(PathBuf, PathBuf)>) -> Vec<(PathBuf, PathBuf)> {
    files.iter().filter(|(file, url)| try_upload(file, url).is_err()).collect()
}

fn try_upload(file: &Path, url: &Path) -> io::Result<()> {
    let Some((upload, url)) = upload_of(url)? else { return Ok(()) };
    upload.upload(file, url, true)?;
    fs::remove_file(file)
}
