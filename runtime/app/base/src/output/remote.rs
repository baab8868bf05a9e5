//! Outputs at URLs: written to a local draft, uploaded when they are complete.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::input::remote;

use crate::output::error::OutputError;

/// Writes objects.
pub trait Upload: Send + Sync {
    /// Whether there is an object.
    ///
    /// # Errors
    /// When the store does not say.
    fn exists(&self, url: &str) -> io::Result<bool>;

    /// Makes an object of a file. Without `replaces`, an existing object stays, and the result is an error of
    /// the kind [`io::ErrorKind::AlreadyExists`].
    ///
    /// # Errors
    /// When the store does not take it.
    fn upload(&self, file: &Path, url: &str, replaces: bool) -> io::Result<()>;

    /// Notes on disk that a complete file is to be uploaded, so that another process can do it if
    /// this one ends before.
    ///
    /// # Errors
    /// When the note cannot be written.
    fn plan(&self, file: &Path, url: &str, replaces: bool) -> io::Result<Box<dyn Pending>>;

    /// The files that earlier processes have planned and not uploaded, in order.
    ///
    /// # Errors
    /// When their folder cannot be read.
    fn pending(&self) -> io::Result<Vec<Box<dyn Pending>>>;

    /// Removes an existing object.
    ///
    /// # Errors
    /// When the store refuses.
    fn remove(&self, url: &str) -> io::Result<()>;

    /// The folder of files on their way to a store.
    ///
    /// # Errors
    /// When there is none.
    fn spool(&self) -> io::Result<PathBuf>;
}

/// A complete file whose upload is noted on disk. Dropped, it keeps waiting, for this process and
/// for others.
pub trait Pending: Debug + Send {
    /// The file.
    fn file(&self) -> &Path;

    /// Its place.
    fn url(&self) -> &str;

    /// Whether it is uploaded, and kept only for the sake of others.
    fn is_sent(&self) -> bool;

    /// Allows it to replace an existing object.
    fn replace(&mut self);

    /// Uploads the parts that the store lacks.
    ///
    /// # Errors
    /// As [`Upload::upload`].
    fn upload(&mut self) -> io::Result<()>;

    /// Removes the file and its note.
    ///
    /// # Errors
    /// When the system refuses.
    fn remove(self: Box<Self>) -> io::Result<()>;

    /// Removes them, and the parts that the store has.
    ///
    /// # Errors
    /// When the store or the system refuses; then both are still there.
    fn discard(self: Box<Self>) -> io::Result<()>;
}

static UPLOAD: OnceLock<Box<dyn Upload>> = OnceLock::new();

/// Sets the function that writes objects, once for the process. Without it URLs are refused.
pub fn set_upload(upload: Box<dyn Upload>) {
    // The first one stays.
    let _ = UPLOAD.set(upload);
}

/// The uploader of the object at `path`; none for a path of the file system.
///
/// # Errors
/// When the build cannot reach URLs.
pub fn upload_of(path: &Path) -> io::Result<Option<(&'static dyn Upload, &str)>> {
    let Some(url) = remote::url(path) else { return Ok(None) };
    let upload = UPLOAD.get().ok_or_else(|| remote::not_built(url))?;
    Ok(Some((upload.as_ref(), url)))
}

/// The files that earlier commands could not upload, in order.
///
/// # Errors
/// When the build cannot reach URLs, or their folder cannot be read.
pub fn pending() -> io::Result<Vec<Box<dyn Pending>>> {
    UPLOAD.get().ok_or_else(|| remote::not_built("vcr upload"))?.pending()
}

/// Uploads a planned file, and removes it once the store has it.
pub(crate) fn send(mut pending: Box<dyn Pending>) -> Result<(), OutputError> {
    let path = PathBuf::from(pending.url());
    match pending.upload() {
        // A file that cannot be removed is sent again some day.
        Ok(()) => {
            let _ = pending.remove();
            Ok(())
        }
        Err(source) => Err(OutputError::NotUploaded { path, kept: pending.file().to_owned(), source }),
    }
}

/// A path as messages show it.
pub(crate) fn shown(path: &Path) -> PathBuf {
    remote::url(path).map_or_else(|| path.to_owned(), |url| remote::without_secrets(url).into())
}
