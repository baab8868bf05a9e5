//! Output files before they get their final names.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{Builder, TempPath};

use crate::output::error::OutputError;
use crate::output::remote::{send, shown, upload_of};
use crate::output::{Claim, make_parents, write_error};

/// All draft files and folders of this process. A signal that ends the process must remove them.
static DRAFTS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn drafts() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    DRAFTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all drafts of this process before it ends, and prevents further renames. Returns the number removed.
pub fn remove_drafts() -> usize {
    let mut drafts = drafts();
    let removed = drafts.iter().filter(|path| remove(path).is_ok()).count();
    drafts.clear();
    let made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    // Non-empty folders stay.
    made.iter().rev().for_each(|folder| drop(fs::remove_dir(folder)));
    // The lock is never released, so nothing can be renamed any more.
    std::mem::forget(drafts);
    removed
}

/// Folders that this process has made for files that are still drafts.
static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Folders that are removed on drop if they are empty.
#[derive(Debug)]
pub(crate) struct MadeFolders(Vec<PathBuf>);

impl MadeFolders {
    /// Registers a folder and its missing parents.
    pub(crate) fn about_to_make(folder: &Path) -> Self {
        let new = folder.ancestors().filter(|above| !above.as_os_str().is_empty() && !above.exists());
        let new: Vec<PathBuf> = new.map(Path::to_owned).collect();
        MADE.lock().unwrap_or_else(PoisonError::into_inner).extend(new.iter().cloned());
        Self(new)
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        for folder in &self.0 {
            made.remove(folder);
            // Fails for a non-empty folder, which stays.
            drop(fs::remove_dir(folder));
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// A draft that is removed if a signal ends the process.
#[derive(Debug)]
pub(crate) struct Registered(PathBuf);

impl Registered {
    pub(crate) fn new(path: &Path) -> Self {
        drafts().insert(path.to_owned());
        Self(path.to_owned())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        drafts().remove(&self.0);
    }
}

/// Calls `work` while no signal can remove drafts.
pub(crate) fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    let _drafts = drafts();
    work()
}

/// A file being written. [`OutputFile::commit`] gives it its name; dropping it earlier removes it.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    claim: Claim,
    draft: Option<Draft>,
}

#[derive(Debug)]
struct Draft {
    path: TempPath,
    _registered: Registered,
}

impl OutputFile {
    pub(crate) fn create(claim: Claim) -> Result<Self, OutputError> {
        make_parents(&claim)?;
        let failed = |source| write_error(&claim.path, source);
        if claim.is_special {
            let file = File::options().write(true).open(&claim.path).map_err(failed)?;
            return Ok(Self { file, claim, draft: None });
        }
        let draft = match claim.is_remote {
            true => make_spooled(&claim.path),
            false => make_draft(&claim.place),
        };
        let (file, path) = draft.map_err(failed)?.into_parts();
        let draft = Draft { _registered: Registered::new(&path), path };
        Ok(Self { file, claim, draft: Some(draft) })
    }

    /// Another handle of the draft, for a writer that must own one.
    ///
    /// # Errors
    /// When the process has too many files open.
    pub fn handle(&self) -> Result<File, OutputError> {
        self.file.try_clone().map_err(|source| write_error(&self.claim.path, source))
    }

    /// Renames the draft to its final name.
    ///
    /// # Errors
    /// When another file with that name was created meanwhile, or the system refuses.
    pub fn commit(self) -> Result<(), OutputError> {
        let Self { claim, draft: Some(draft), .. } = self else { return Ok(()) };
        if claim.is_remote {
            return upload(draft, &claim);
        }
        let Draft { path, _registered } = draft;
        undisturbed(|| match claim.replaces {
            true => path.persist(&claim.place).map_err(|refused| write_error(&claim.path, refused.error)),
            false => path.persist_noclobber(&claim.place).map_err(|refused| match refused.error.kind() {
                io::ErrorKind::AlreadyExists => OutputError::Exists { path: claim.path.clone() },
                _ => write_error(&claim.path, refused.error),
            }),
        })
    }

    /// Writes the whole file with `write`, and renames it to its name.
    ///
    /// # Errors
    /// If `write` or [`OutputFile::commit`] fails.
    pub fn write_with(self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), OutputError> {
        let mut out = BufWriter::with_capacity(1 << 16, self.handle()?);
        let written = write(&mut out).and_then(|()| out.flush());
        // Dropping the writer would try to write the remaining data again.
        let _ = out.into_parts();
        written.map_err(|source| write_error(&self.claim.path, source))?;
        self.commit()
    }
}

/// Uploads a draft. If the store refuses it, the draft is kept, because it may have taken hours to compute.
fn upload(draft: Draft, claim: &Claim) -> Result<(), OutputError> {
    let failed = |source| write_error(&shown(&claim.path), source);
    let Some((upload, url)) = upload_of(&claim.path).map_err(failed)? else { return Ok(()) };
    let pending = upload.plan(&draft.path, url, claim.replaces).map_err(failed)?;
    // From here on, a signal keeps the draft for `vcr upload`.
    let Draft { path, _registered } = draft;
    path.keep().map_err(|refused| failed(refused.error))?;
    drop(_registered);
    send(pending)
}

/// Makes a temporary file that will be uploaded.
pub(crate) fn make_spooled(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let spool = match upload_of(path)? {
        Some((upload, _)) => upload.spool()?,
        None => std::env::temp_dir(),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Builder::new().suffix(&format!("-{name}")).tempfile_in(spool)
}

/// Makes a draft in the folder of its final name.
pub(crate) fn make_draft(place: &Path) -> io::Result<tempfile::NamedTempFile> {
    let folder = place.parent().unwrap_or(Path::new("/"));
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    // Like a newly created file, subject to the umask.
    let mode = Permissions::from_mode(0o666);
    Builder::new().prefix(&format!(".{name}.")).suffix(".draft").permissions(mode).tempfile_in(folder)
}
