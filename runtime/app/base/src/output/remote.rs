//! Outputs at URLs: written to a local draft and uploaded when complete.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::input::remote;

use crate::output::error::OutputError;

/// Writes objects to a store.
pub trait Upload: Send + Sync {
    /// Whether the object exists.
    ///
    /// # Errors
    /// When the store does not answer.
    fn exists(&self, url: &str) -> io::Result<bool>;

    /// Uploads a file. Without `replaces`, an existing object is an error of the kind
    /// [`io::ErrorKind::AlreadyExists`].
    ///
    /// # Errors
    /// When the store refuses the file.
    fn upload(&self, file: &Path, url: &str, replaces: bool) -> io::Result<()>;

    /// Records on disk that a complete file must be uploaded, so that another process can do it if this one ends.
    ///
    /// # Errors
    /// When the record cannot be written.
    fn plan(&self, file: &Path, url: &str, replaces: bool) -> io::Result<Box<dyn Pending>>;

    /// The files that earlier processes have planned and not uploaded, in order.
    ///
    /// # Errors
    /// When the folder of these files cannot be read.
    fn pending(&self) -> io::Result<Vec<Box<dyn Pending>>>;

    /// Removes an existing object.
    ///
    /// # Errors
    /// When the store refuses.
    fn remove(&self, url: &str) -> io::Result<()>;

    /// The folder of files that wait for their upload.
    ///
    /// # Errors
    /// When the folder cannot be created.
    fn spool(&self) -> io::Result<PathBuf>;
}

/// A complete file whose upload is recorded on disk. If dropped, it keeps waiting, for this process or another.
pub trait Pending: Debug + Send {
    /// Path of the file.
    fn file(&self) -> &Path;

    /// URL of the object.
    fn url(&self) -> &str;

    /// Whether the file is uploaded. It may be kept because other files of its folder are not.
    fn is_sent(&self) -> bool;

    /// Allows the upload to replace an existing object.
    fn replace(&mut self);

    /// Uploads the parts that the store lacks.
    ///
    /// # Errors
    /// The errors of [`Upload::upload`].
    fn upload(&mut self) -> io::Result<()>;

    /// Removes the file and its record.
    ///
    /// # Errors
    /// When the system refuses.
    fn remove(self: Box<Self>) -> io::Result<()>;

    /// Removes the file and its record, and the parts that the store already has.
    ///
    /// # Errors
    /// When the store or the system refuses; then file and record remain.
    fn discard(self: Box<Self>) -> io::Result<()>;
}

static UPLOAD: OnceLock<Box<dyn Upload>> = OnceLock::new();

/// Sets the object store client, once for the process. Without it URLs are refused.
pub fn set_upload(upload: Box<dyn Upload>) {
    // Only the first client is kept.
    let _ = UPLOAD.set(upload);
}

/// The client and URL of the object at `path`; none for a path of the file system.
///
/// # Errors
/// When the build has no network support.
pub fn upload_of(path: &Path) -> io::Result<Option<(&'static dyn Upload, &str)>> {
    let Some(url) = remote::url(path) else { return Ok(None) };
    let upload = UPLOAD.get().ok_or_else(|| remote::not_built(url))?;
    Ok(Some((upload.as_ref(), url)))
}

/// The files that earlier commands could not upload, in order.
///
/// # Errors
/// When the build has no network support, or the folder of these files cannot be read.
pub fn pending() -> io::Result<Vec<Box<dyn Pending>>> {
    UPLOAD.get().ok_or_else(|| remote::not_built("vcr upload"))?.pending()
}

/// Uploads a planned file, then removes it.
pub(crate) fn send(mut pending: Box<dyn Pending>) -> Result<(), OutputError> {
    let path = PathBuf::from(pending.url());
    match pending.upload() {
        // A file that cannot be removed is uploaded again later.
        Ok(()) => {
            let _ = pending.remove();
            Ok(())
        }
        Err(source) => Err(OutputError::NotUploaded { path, kept: pending.file().to_owned(), source }),
    }
}

/// The path in messages, without secrets.
pub(crate) fn shown(path: &Path) -> PathBuf {
    remote::url(path).map_or_else(|| path.to_owned(), |url| remote::without_secrets(url).into())
}
