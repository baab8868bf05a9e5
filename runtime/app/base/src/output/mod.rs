//! The files that commands write.
//!
//! Rules for all outputs:
//!
//! * An output is never an input or another output of the same command. Files are compared by device and inode, so
//!   links are recognised.
//! * An existing file is not replaced without `--force`, except in a folder that an earlier run has marked as its own.
//! * A file gets its name when it is complete. Until then it is a draft in the same folder, which is removed if the
//!   command fails or is stopped.
//! * Missing parent folders are created.
//!
//! Devices, pipes and sockets are written directly. An output at a URL has a local draft and is uploaded when it is
//! complete. A failed upload is kept for the next command, and a signal does not remove it.

mod draft;
mod error;
mod folder;
mod identity;
mod remote;
mod uploads;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use draft::{OutputFile, remove_drafts};
pub use error::{OutputError, cause};
pub use folder::{MARKER, OutputFolder};
use identity::Known;
use remote::shown;
pub use remote::{Pending, Upload, pending, set_upload, upload_of};
pub use uploads::Uploads;

/// The inputs and outputs of one command.
#[derive(Debug, Default)]
pub struct Outputs {
    force: bool,
    inputs: Vec<Known>,
    claimed: Vec<Known>,
}

/// The checked path of an output.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) path: PathBuf,
    /// The path with links resolved.
    pub(crate) place: PathBuf,
    /// Whether the output is a device, a pipe or a socket.
    pub(crate) is_special: bool,
    /// Whether an existing file may be replaced on completion.
    pub(crate) replaces: bool,
    /// Whether the output is at a URL.
    pub(crate) is_remote: bool,
}

impl Outputs {
    /// Makes an empty set of files. With `force`, existing files are replaced.
    #[must_use]
    pub fn new(force: bool) -> Self {
        Self { force, ..Self::default() }
    }

    /// Registers `path` as an input. It need not exist; its reader reports that.
    ///
    /// # Errors
    /// When `path` is one of the outputs.
    pub fn reads(&mut self, path: &Path) -> Result<(), OutputError> {
        let input = Known::at(path);
        if let Some(output) = self.claimed.iter().find(|output| output.is_file() && output.is(&input)) {
            return Err(OutputError::IsOutput { input: path.to_owned(), path: output.path.clone() });
        }
        self.inputs.push(input);
        Ok(())
    }

    /// Creates the draft of the file `path`.
    ///
    /// # Errors
    /// When the rules above forbid it, or the file cannot be written.
    pub fn create(&mut self, path: &Path) -> Result<OutputFile, OutputError> {
        let claim = self.claim(path, self.force)?;
        OutputFile::create(claim)
    }

    /// Checks that `path` may be written by code that does not use drafts, and makes the parent folders. Returns
    /// `true` if an existing file will be replaced.
    ///
    /// # Errors
    /// When the rules above forbid it, or the folders cannot be created.
    pub fn check(&mut self, path: &Path) -> Result<bool, OutputError> {
        let claim = self.claim(path, self.force)?;
        make_parents(&claim)?;
        if claim.is_remote {
            if !self.force {
                waits(path)?;
            }
            return is_there(path);
        }
        Ok(!claim.is_special && claim.path.symlink_metadata().is_ok())
    }

    /// Opens a folder for files with these names. If an earlier command has marked the folder, the files listed there
    /// may be replaced.
    ///
    /// # Errors
    /// When the rules above forbid one of the names, or the folder cannot be created.
    pub fn folder(&mut self, path: &Path, names: &[&'static str]) -> Result<OutputFolder, OutputError> {
        let folder = OutputFolder::open(path)?;
        for name in names {
            self.claim(&folder.path().join(name), self.force || folder.is_marked(name))?;
        }
        Ok(folder)
    }

    fn claim(&mut self, path: &Path, replaces: bool) -> Result<Claim, OutputError> {
        let output = Known::at(path);
        if crate::input::remote::url(path).is_some() {
            return self.claim_remote(output, replaces);
        }
        crate::input::remote::check_scheme(path).map_err(|source| write_error(&shown(path), source))?;
        let there = fs::metadata(path);
        let is_special = there.as_ref().is_ok_and(|there| !there.is_file() && !there.is_dir());
        if there.as_ref().is_ok_and(fs::Metadata::is_dir) || path.file_name().is_none() {
            return Err(OutputError::IsFolder { path: path.to_owned() });
        }
        if !is_special {
            if let Some(input) = self.inputs.iter().find(|input| input.is(&output)) {
                return Err(OutputError::IsInput { path: path.to_owned(), input: input.path.clone() });
            }
            if self.claimed.iter().any(|other| other.is(&output)) {
                return Err(OutputError::Twice { path: path.to_owned() });
            }
            if !replaces && path.symlink_metadata().is_ok() {
                return Err(OutputError::Exists { path: path.to_owned() });
            }
        }
        let place = output.place.clone();
        self.claimed.push(output);
        Ok(Claim { path: path.to_owned(), place, is_special, replaces, is_remote: false })
    }

    fn claim_remote(&mut self, output: Known, replaces: bool) -> Result<Claim, OutputError> {
        let path = shown(&output.path);
        if let Some(input) = self.inputs.iter().find(|input| input.is(&output)) {
            return Err(OutputError::IsInput { path, input: input.path.clone() });
        }
        if self.claimed.iter().any(|other| other.is(&output)) {
            return Err(OutputError::Twice { path });
        }
        let is_there = is_there(&output.path)?;
        if is_there && !replaces {
            return Err(OutputError::Exists { path });
        }
        let claim = Claim {
            path: output.path.clone(),
            place: output.place.clone(),
            is_special: false,
            replaces,
            is_remote: true,
        };
        self.claimed.push(output);
        Ok(claim)
    }
}

/// Whether an object exists at a URL; false for a path of the file system.
fn is_there(path: &Path) -> Result<bool, OutputError> {
    let asked = upload_of(path).and_then(|upload| upload.map_or(Ok(false), |(upload, url)| upload.exists(url)));
    asked.map_err(|source| write_error(&shown(path), source))
}

/// Refuses a URL for which an earlier command's file has not been uploaded yet.
fn waits(path: &Path) -> Result<(), OutputError> {
    let asked = upload_of(path).and_then(|upload| upload.map_or(Ok(Vec::new()), |(upload, _)| upload.pending()));
    let mut pending = asked.map_err(|source| write_error(&shown(path), source))?.into_iter();
    match pending.find(|pending| !pending.is_sent() && Path::new(pending.url()) == path) {
        Some(pending) => Err(OutputError::Waits { path: shown(path), kept: pending.file().to_owned() }),
        None => Ok(()),
    }
}

/// Makes the parent folders of a file.
pub(crate) fn make_parents(claim: &Claim) -> Result<(), OutputError> {
    match claim.place.parent() {
        Some(parent) if !claim.is_special && !claim.is_remote => make_folders(parent, &claim.path),
        _ => Ok(()),
    }
}

/// Makes a folder and its parents for the output `path`.
pub(crate) fn make_folders(folder: &Path, path: &Path) -> Result<(), OutputError> {
    let Err(source) = fs::create_dir_all(folder) else { return Ok(()) };
    Err(match folder.ancestors().find(|above| above.is_file()) {
        Some(file) => OutputError::NotAFolder { path: path.to_owned(), file: file.to_owned() },
        None => write_error(path, source),
    })
}

pub(crate) fn write_error(path: &Path, source: io::Error) -> OutputError {
    OutputError::Write { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
