//! Outputs at URLs: written to a local draft, uploaded when they are complete.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use vcr_input::remote;

/// Writes objects.
pub trait Upload: Send + Sync {
    /// Whether there is an object.
    ///
    /// # Errors
    /// When the store does not say.
    fn exists(&self, url: &str) -> io::Result<bool>;

    /// Makes an object of a file. Without `replaces`, one that is there stays, which is an error
    /// of the kind [`io::ErrorKind::AlreadyExists`].
    ///
    /// # Errors
    /// When the store does not take it.
    fn upload(&self, file: &Path, url: &str, replaces: bool) -> io::Result<()>;

    /// Removes an object, if it is there.
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

static UPLOAD: OnceLock<Box<dyn Upload>> = OnceLock::new();

/// Sets what writes objects, once for the process. Without it URLs are refused.
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

/// A path as messages show it.
pub(crate) fn shown(path: &Path) -> PathBuf {
    remote::url(path).map_or_else(|| path.to_owned(), |url| remote::without_secrets(url).into())
}
