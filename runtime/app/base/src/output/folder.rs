//! Folders of files that belong together, such as the folder of `vcr run --out`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

use crate::input::remote;

use crate::output::draft::{MadeFolders, Registered, make_draft, make_spooled, undisturbed};
use crate::output::error::OutputError;
use crate::output::remote::{Pending, shown, upload_of};
use crate::output::{make_folders, write_error};

/// Marks a folder as written by vcr: a headline, then the names of files that later commands may replace.
pub const MARKER: &str = ".vcr-run";

/// First line of a marker.
const HEADLINE: &str = "Written by vcr, which replaces the files listed here when it writes to this folder again:";

/// Prefix of the names of draft folders.
const DRAFTS: &str = ".vcr-drafts-";

/// A folder that may be written to.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
    /// File names in the folder's marker.
    marked: Vec<String>,
    drafts: Option<Drafts>,
    /// Must be dropped after the drafts.
    _made: MadeFolders,
}

/// A temporary folder for files until all of them are complete.
#[derive(Debug)]
struct Drafts {
    folder: TempDir,
    /// Locked while the process lives. The folder of a killed process is not locked.
    _lock: File,
    _registered: Registered,
}

impl OutputFolder {
    pub(crate) fn open(path: &Path) -> Result<Self, OutputError> {
        let is_remote = remote::url(path).is_some();
        remote::check_scheme(path).map_err(|source| folder_error(&shown(path), source))?;
        let made = MadeFolders::about_to_make(if is_remote { Path::new("") } else { path });
        let marker = if is_remote {
            marker_at(path).map_err(|source| folder_error(&shown(path), source))?
        } else {
            make_folders(path, path)?;
            remove_abandoned(path);
            fs::read_to_string(path.join(MARKER)).unwrap_or_default()
        };
        let marked = match marker.split_once('\n') {
            Some((HEADLINE, names)) => names.lines().map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        Ok(Self { path: path.to_owned(), marked, drafts: None, _made: made })
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_marked(&self, name: &str) -> bool {
        self.marked.iter().any(|marked| marked == name)
    }

    /// The folder for drafts. It is on the same disk, unless the output is at a URL.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn drafts(&mut self) -> Result<&Path, OutputError> {
        if self.drafts.is_none() {
            let parent = match upload_of(&self.path) {
                Ok(Some((upload, _))) => upload.spool(),
                Ok(None) => Ok(self.path.clone()),
                Err(source) => Err(source),
            };
            let made = parent.and_then(|parent| Builder::new().prefix(DRAFTS).tempdir_in(parent)).and_then(|folder| {
                let lock = File::open(folder.path())?;
                // Some network filesystems have no locks; there the folder stays unlocked.
                let _ = lock.try_lock_shared();
                let registered = Registered::new(folder.path());
                Ok(Drafts { folder, _lock: lock, _registered: registered })
            });
            self.drafts = Some(made.map_err(|source| folder_error(&self.path, source))?);
        }
        Ok(self.drafts.as_ref().map_or(&self.path, |drafts| drafts.folder.path()))
    }

    /// Renames drafts to files in this folder, all or none if possible, and removes files of an earlier command.
    /// If they were all files of the folder, it is removed.
    ///
    /// # Errors
    /// When the system refuses one of them.
    pub fn commit(self, files: &[(&str, PathBuf)]) -> Result<(), OutputError> {
        if remote::url(&self.path).is_some() {
            return self.send(files, true);
        }
        let is_written = |name: &str| files.iter().any(|(written, _)| *written == name);
        let names = || files.iter().map(|(name, _)| *name);
        let old = || self.marked.iter().map(String::as_str).filter(|name| !is_written(name));
        undisturbed(|| {
            // The marker is written first: it may list missing files, but must list every file of this command.
            self.mark(names().chain(old()))?;
            self.rename(files)?;
            for stale in old() {
                self.remove(stale)?;
            }
            if files.is_empty() && !self.marked.is_empty() {
                self.remove(MARKER)?;
                // The user's own files keep the folder.
                let _ = fs::remove_dir(&self.path);
                return Ok(());
            }
            self.mark(names())
        })
    }

    /// Renames drafts to files in this folder, and keeps the files of an earlier command.
    ///
    /// # Errors
    /// When the system refuses one of them.
    pub fn commit_beside(self, files: &[(&str, PathBuf)]) -> Result<(), OutputError> {
        if remote::url(&self.path).is_some() {
            return self.send(files, false);
        }
        let is_written = |name: &str| files.iter().any(|(written, _)| *written == name);
        let old = self.marked.iter().map(String::as_str).filter(|name| !is_written(name));
        undisturbed(|| {
            self.mark(old.chain(files.iter().map(|(name, _)| *name)))?;
            self.rename(files)
        })
    }

    /// Uploads drafts, the marker first. The drafts stay recorded until all are uploaded, so that the next command
    /// with the same files uploads only the missing ones.
    fn send(mut self, files: &[(&str, PathBuf)], drops_old: bool) -> Result<(), OutputError> {
        let is_written = |name: &str| files.iter().any(|(written, _)| *written == name);
        let old: Vec<String> = self.marked.iter().filter(|name| !is_written(name)).cloned().collect();
        let names = || files.iter().map(|(name, _)| *name);
        let marker = lines(names().chain(old.iter().map(String::as_str)));
        let draft = self.drafts()?.join(MARKER);
        fs::write(&draft, marker).map_err(|source| folder_error(&shown(&self.path), source))?;
        let mut all = vec![(MARKER, draft.as_path())];
        all.extend(files.iter().map(|(name, draft)| (*name, draft.as_path())));
        let mut pending = all.into_iter().map(|(name, draft)| self.plan(name, draft)).collect::<Result<Vec<_>, _>>()?;
        // From here on, a signal keeps the drafts for `vcr upload`.
        let drafts = self.drafts.take().map(|drafts| drafts.folder.keep());
        for file in pending.iter_mut().flatten() {
            file.upload().map_err(|source| OutputError::NotUploaded {
                path: file.url().into(),
                kept: file.file().to_owned(),
                source,
            })?;
        }
        if drops_old && !old.is_empty() {
            old.iter().try_for_each(|name| self.remove(name))?;
            self.mark(names())?;
        }
        // A draft that cannot be removed is recorded as uploaded.
        let _ = drafts.map(fs::remove_dir_all);
        Ok(())
    }

    fn plan(&self, name: &str, draft: &Path) -> Result<Option<Box<dyn Pending>>, OutputError> {
        let place = self.path.join(name);
        let planned =
            upload_of(&place).and_then(|upload| upload.map(|(upload, url)| upload.plan(draft, url, true)).transpose());
        planned.map_err(|source| write_error(&shown(&place), source))
    }

    fn rename(&self, files: &[(&str, PathBuf)]) -> Result<(), OutputError> {
        files.iter().try_for_each(|(name, draft)| self.place(draft, name))
    }

    fn place(&self, draft: &Path, name: &str) -> Result<(), OutputError> {
        let place = self.path.join(name);
        let placed = upload_of(&place).and_then(|upload| match upload {
            Some((upload, url)) => upload.upload(draft, url, true),
            None => fs::rename(draft, &place),
        });
        placed.map_err(|source| write_error(&shown(&place), source))
    }

    fn remove(&self, name: &str) -> Result<(), OutputError> {
        let place = self.path.join(name);
        let removed = upload_of(&place).and_then(|upload| match upload {
            Some((upload, url)) => upload.remove(url),
            None => fs::remove_file(&place),
        });
        match removed {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(write_error(&shown(&place), source)),
            _ => Ok(()),
        }
    }

    fn mark<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<(), OutputError> {
        let place = self.path.join(MARKER);
        let lines = lines(names);
        let is_remote = remote::url(&place).is_some();
        let made = if is_remote { make_spooled(&place) } else { make_draft(&place) };
        let written = made.and_then(|mut draft| {
            draft.write_all(lines.as_bytes())?;
            Ok(draft)
        });
        let draft = written.map_err(|source| write_error(&shown(&place), source))?;
        if is_remote {
            return self.place(draft.path(), MARKER);
        }
        draft.persist(&place).map(drop).map_err(|refused| write_error(&place, refused.error))
    }
}

/// Formats a marker.
fn lines<'a>(names: impl Iterator<Item = &'a str>) -> String {
    std::iter::once(HEADLINE).chain(names).map(|line| format!("{line}\n")).collect()
}

/// Reads the marker of a folder at a URL; empty if there is none.
fn marker_at(folder: &Path) -> io::Result<String> {
    // Checked first, so that a build without network support reports that.
    let _ = upload_of(folder)?;
    match remote::local(&folder.join(MARKER)) {
        Ok(copy) => fs::read_to_string(copy),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
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
            // Another process may have removed it.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
