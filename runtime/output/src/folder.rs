//! Folders of files that belong together, such as those of `vcr run --out`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

use crate::draft::{Registered, make_draft, undisturbed};
use crate::error::OutputError;
use crate::{make_folders, write_error};

/// The file that marks a folder: a headline, then the names of files that later
/// commands may replace.
pub const MARKER: &str = ".vcr-run";

/// First line of a marker.
const HEADLINE: &str = "Written by vcr, which replaces the files listed here when it writes to this folder again:";

/// Folders of drafts begin with this.
const DRAFTS: &str = ".vcr-drafts-";

/// A folder that may be written to.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
    /// Names in its marker.
    marked: Vec<String>,
    drafts: Option<Drafts>,
}

/// The folder of files until all of them are complete.
#[derive(Debug)]
struct Drafts {
    folder: TempDir,
    /// Locked as long as the process lives, which distinguishes it from what a process
    /// that was killed has left.
    _lock: File,
    _registered: Registered,
}

impl OutputFolder {
    pub(crate) fn open(path: &Path) -> Result<Self, OutputError> {
        make_folders(path, path)?;
        let marker = fs::read_to_string(path.join(MARKER)).unwrap_or_default();
        let marked = match marker.split_once('\n') {
            Some((HEADLINE, names)) => names.lines().map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        remove_abandoned(path);
        Ok(Self { path: path.to_owned(), marked, drafts: None })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_marked(&self, name: &str) -> bool {
        self.marked.iter().any(|marked| marked == name)
    }

    /// The folder for drafts, on the same disk.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn drafts(&mut self) -> Result<&Path, OutputError> {
        if self.drafts.is_none() {
            let made = Builder::new().prefix(DRAFTS).tempdir_in(&self.path).and_then(|folder| {
                let lock = File::open(folder.path())?;
                // Some network filesystems have no locks; there it stays unlocked.
                let _ = lock.try_lock_shared();
                let registered = Registered::new(folder.path());
                Ok(Drafts { folder, _lock: lock, _registered: registered })
            });
            self.drafts = Some(made.map_err(|source| folder_error(&self.path, source))?);
        }
        Ok(self.drafts.as_ref().map_or(&self.path, |drafts| drafts.folder.path()))
    }

    /// Gives drafts the names of files here, all or none as far as the system
    /// lets it, and removes files of an earlier command that are not among them.
    ///
    /// # Errors
    /// When the system refuses one of them.
    pub fn commit(self, files: &[(&str, PathBuf)]) -> Result<(), OutputError> {
        let is_written = |name: &str| files.iter().any(|(written, _)| *written == name);
        let names = || files.iter().map(|(name, _)| *name);
        let old = || self.marked.iter().map(String::as_str).filter(|name| !is_written(name));
        undisturbed(|| {
            // The marker comes first: what has no name yet may be listed, but no
            // file of ours may be left that is not.
            self.mark(names().chain(old()))?;
            self.rename(files)?;
            for stale in old() {
                let place = self.path.join(stale);
                match fs::remove_file(&place) {
                    Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(write_error(&place, source)),
                    _ => {}
                }
            }
            self.mark(names())
        })
    }

    /// Gives drafts the names of files here; files of an earlier command stay beside them.
    ///
    /// # Errors
    /// When the system refuses one of them.
    pub fn commit_beside(self, files: &[(&str, PathBuf)]) -> Result<(), OutputError> {
        let is_written = |name: &str| files.iter().any(|(written, _)| *written == name);
        let old = self.marked.iter().map(String::as_str).filter(|name| !is_written(name));
        undisturbed(|| {
            self.mark(old.chain(files.iter().map(|(name, _)| *name)))?;
            self.rename(files)
        })
    }

    fn rename(&self, files: &[(&str, PathBuf)]) -> Result<(), OutputError> {
        for (name, draft) in files {
            let place = self.path.join(name);
            fs::rename(draft, &place).map_err(|source| write_error(&place, source))?;
        }
        Ok(())
    }

    fn mark<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<(), OutputError> {
        let place = self.path.join(MARKER);
        let lines: String = std::iter::once(HEADLINE).chain(names).map(|line| format!("{line}\n")).collect();
        let written = make_draft(&place).and_then(|mut draft| {
            draft.write_all(lines.as_bytes())?;
            draft.persist(&place).map_err(|refused| refused.error)
        });
        written.map(drop).map_err(|source| write_error(&place, source))
    }
}

fn folder_error(path: &Path, source: io::Error) -> OutputError {
    OutputError::Folder { path: path.to_owned(), source }
}

/// Removes the drafts of processes that were killed.
fn remove_abandoned(path: &Path) {
    let Ok(entries) = fs::read_dir(path) else { return };
    let names = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(DRAFTS));
    for entry in names {
        let is_abandoned = File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok());
        if is_abandoned {
            // Another process may have been faster.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
