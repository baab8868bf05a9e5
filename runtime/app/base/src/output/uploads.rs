//! Uploads complete files while the next ones are computed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use crate::output::error::OutputError;
use crate::output::remote::{Pending, send, shown, upload_of};
use crate::output::write_error;

/// Uploads complete files one by one on its own thread. Each file is removed after its upload. Failed uploads are
/// retried at the end, and then kept for `vcr upload`.
#[derive(Debug)]
pub struct Uploads {
    folder: PathBuf,
    files: Sender<Box<dyn Pending>>,
    thread: JoinHandle<Vec<Box<dyn Pending>>>,
}

impl Uploads {
    /// Starts uploads for the output `path`; none for a path of the file system.
    ///
    /// # Errors
    /// When the folder for files cannot be created, or the store refuses an object of this name.
    pub fn start(path: &Path) -> Result<Option<Self>, OutputError> {
        let failed = |source| write_error(&shown(path), source);
        let Some((upload, url)) = upload_of(path).map_err(failed)? else { return Ok(None) };
        let spool = upload.spool().map_err(failed)?;
        let folder = tempfile::Builder::new().prefix("parts-").tempdir_in(spool).map_err(failed)?;
        // Test the store now, rather than when the first file is complete.
        let empty = folder.path().join("empty");
        fs::write(&empty, "").and_then(|()| upload.upload(&empty, url, true)).map_err(failed)?;
        upload.remove(url).and_then(|()| fs::remove_file(&empty)).map_err(failed)?;
        let (files, waiting) = channel();
        let thread = thread::Builder::new().name("upload".to_owned()).spawn(move || upload_all(&waiting));
        let thread = thread.map_err(failed)?;
        // The folder is kept, because it may soon hold the only copy of a file.
        Ok(Some(Self { folder: folder.keep(), files, thread }))
    }

    /// The folder of files until they are uploaded.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Uploads a complete file to a URL.
    ///
    /// # Errors
    /// When the upload cannot be recorded.
    pub fn add(&self, file: &Path, url: &Path) -> Result<(), OutputError> {
        let failed = |source| write_error(&shown(url), source);
        if let Some((upload, url)) = upload_of(url).map_err(failed)? {
            // If the thread has ended, the file keeps waiting.
            let _ = self.files.send(upload.plan(file, url, true).map_err(failed)?);
        }
        Ok(())
    }

    /// Waits until all files are uploaded.
    ///
    /// # Errors
    /// When the store refused a file, which is kept.
    pub fn finish(self) -> Result<(), OutputError> {
        drop(self.files);
        let left = self.thread.join().unwrap_or_default();
        // Retries every file before returning errors, because the store may accept it now.
        let sent: Vec<Result<(), OutputError>> = left.into_iter().map(send).collect();
        // The folder is empty unless a file was not added or not uploaded.
        let _ = fs::remove_dir(&self.folder);
        sent.into_iter().collect()
    }
}

/// Uploads the received files, and returns those that failed.
fn upload_all(files: &Receiver<Box<dyn Pending>>) -> Vec<Box<dyn Pending>> {
    let mut left = Vec::new();
    for mut file in files {
        match file.upload() {
            // A file that cannot be removed is uploaded again later.
            Ok(()) => drop(file.remove()),
            Err(_) => left.push(file),
        }
    }
    left
}
