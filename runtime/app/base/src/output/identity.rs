//! Determines whether two paths are the same file.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::input::remote;

#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) path: PathBuf,
    /// Device and inode, if the file exists.
    id: Option<(u64, u64)>,
    is_file: bool,
    /// The path with links resolved, as far as it exists.
    pub(crate) place: PathBuf,
}

impl Known {
    pub(crate) fn at(path: &Path) -> Self {
        // A copy counts as the object itself.
        if let Some(url) = remote::origin(path).or_else(|| remote::url(path).map(PathBuf::from)) {
            return Self { path: url.clone(), id: None, is_file: true, place: url };
        }
        let there = fs::metadata(path).ok();
        Self {
            path: path.to_owned(),
            id: there.as_ref().map(|there| (there.dev(), there.ino())),
            is_file: there.is_none_or(|there| there.is_file()),
            place: resolved(path),
        }
    }

    /// Whether the path is a regular file or does not exist.
    pub(crate) fn is_file(&self) -> bool {
        self.is_file
    }

    /// Whether both are the same file. Links have the inode of their target; a missing file has only one name.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self.id, other.id) {
            (Some(own), Some(others)) => own == others,
            (None, None) => self.place == other.place,
            _ => false,
        }
    }
}

fn resolved(path: &Path) -> PathBuf {
    if let Ok(place) = path.canonicalize() {
        return place;
    }
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else { return whole };
    // The part after a missing folder cannot be resolved further.
    if parent == whole { whole } else { resolved(parent).join(name) }
}
