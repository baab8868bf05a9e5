//! Copies of objects on disk.
//!
//! An entry is a folder named by a digest of the URL. It has the copies in `data/`, interrupted downloads in
//! `partial/`, and the versions in `stamps.json`.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::StoreError;

/// Overrides the folder of copies.
const FOLDER_VARIABLE: &str = "VCR_STORE";
/// Overrides the maximum size of the folder.
const SIZE_VARIABLE: &str = "VCR_STORE_SIZE";
const DEFAULT_SIZE_BYTES: u64 = 64 << 30;

/// Files of an entry.
const STAMPS: &str = "stamps.json";
const IN_USE: &str = "in-use.lock";
const FETCHING: &str = "fetching.lock";

/// The version of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    e_tag: Option<String>,
    modified: String,
    pub(crate) bytes: u64,
}

impl Stamp {
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        Self { e_tag: meta.e_tag.clone(), modified: meta.last_modified.to_rfc3339(), bytes: meta.size }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// Locks of the entries that this process reads, held until it ends, by folder.
    used: Mutex<BTreeMap<PathBuf, File>>,
}

impl Cache {
    /// Opens the entry of a URL and locks it, so that no other process fetches it.
    pub(crate) fn entry(&self, url: &str) -> Result<Entry, StoreError> {
        let entries = folder()?.join("objects");
        let folder = entries.join(&hex::encode(Sha256::digest(url))[..32]);
        fs::create_dir_all(folder.join("data")).map_err(StoreError::file(&folder))?;
        fs::create_dir_all(folder.join("partial")).map_err(StoreError::file(&folder))?;
        let fetching = lock_file(&folder.join(FETCHING))?;
        // Some network filesystems have no locks; there two processes may fetch the same object.
        self.lock_shared(&folder)?;
        let _ = fetching.lock();
        let stamps = fs::read(folder.join(STAMPS)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Ok(Entry { stamps: stamps.unwrap_or_default(), entries, folder, _fetching: fetching })
    }

    /// Locks an entry, once in a process.
    fn lock_shared(&self, folder: &Path) -> Result<(), StoreError> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if !used.contains_key(folder) {
            let file = lock_file(&folder.join(IN_USE))?;
            let _ = file.lock_shared();
            used.insert(folder.to_owned(), file);
        }
        Ok(())
    }

    /// The folder of files that wait for their upload.
    pub(crate) fn spool(&self) -> Result<PathBuf, StoreError> {
        let spool = folder()?.join("uploads");
        fs::create_dir_all(&spool).map_err(StoreError::file(&spool))?;
        Ok(spool)
    }
}

fn folder() -> Result<PathBuf, StoreError> {
    let given = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let usual = || {
        let base = given("XDG_CACHE_HOME").or_else(|| Some(given("HOME")?.join(".cache")))?;
        Some(base.join("vcr").join("store"))
    };
    given(FOLDER_VARIABLE).or_else(usual).ok_or(StoreError::NoFolder)
}

fn size_limit() -> Result<u64, StoreError> {
    let Ok(text) = env::var(SIZE_VARIABLE) else { return Ok(DEFAULT_SIZE_BYTES) };
    vcr_base::units::bytes(&text)
        .map_err(|error| StoreError::Setting { variable: SIZE_VARIABLE, problem: error.to_string() })
}

fn lock_file(path: &Path) -> Result<File, StoreError> {
    File::options().create(true).truncate(false).write(true).open(path).map_err(StoreError::file(path))
}

#[derive(Debug)]
pub(crate) struct Entry {
    /// Versions of complete copies, by their names in `data/`.
    stamps: BTreeMap<String, Stamp>,
    entries: PathBuf,
    folder: PathBuf,
    _fetching: File,
}

impl Entry {
    /// Path of a copy.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.folder.join("data").join(name)
    }

    /// Whether a copy of this version is complete.
    pub(crate) fn has(&self, name: &str, stamp: &Stamp) -> bool {
        self.stamps.get(name) == Some(stamp)
            && fs::metadata(self.place(name)).is_ok_and(|file| file.len() == stamp.bytes)
    }

    /// Opens the interrupted download of a version at its end. Discards a download of another version.
    pub(crate) fn partial(&self, name: &str, stamp: &Stamp) -> Result<Partial, StoreError> {
        let place = self.folder.join("partial").join(hex::encode(Sha256::digest(name)));
        let noted = place.with_extension("json");
        let begun = || {
            let before = fs::read(&noted).ok().and_then(|text| serde_json::from_slice::<Stamp>(&text).ok());
            let is_same = before.as_ref() == Some(stamp);
            let file = File::options().create(true).append(true).open(&place)?;
            if !is_same {
                file.set_len(0)?;
                fs::write(&noted, serde_json::to_vec(stamp)?)?;
            }
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        };
        let (file, bytes) = begun().map_err(StoreError::file(&place))?;
        Ok(Partial { file, bytes, place, noted })
    }

    /// Turns the downloaded file into a complete copy.
    pub(crate) fn complete(&mut self, name: &str, stamp: Stamp, partial: Partial) -> Result<(), StoreError> {
        let place = self.place(name);
        let parent = place.parent().unwrap_or(&self.folder);
        fs::create_dir_all(parent)
            .and_then(|()| fs::rename(&partial.place, &place))
            .map_err(StoreError::file(&place))?;
        // A leftover file does no harm.
        let _ = fs::remove_file(&partial.noted);
        self.stamps.insert(name.to_owned(), stamp);
        self.note()
    }

    /// Removes copies of deleted objects, and the least recently used entries if the total size is too large.
    pub(crate) fn keep_only(&mut self, names: &[&str]) -> Result<(), StoreError> {
        let gone: Vec<String> = self.stamps.keys().filter(|name| !names.contains(&name.as_str())).cloned().collect();
        for name in gone {
            let place = self.place(&name);
            match fs::remove_file(&place) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::File { path: place, source });
                }
                _ => self.stamps.remove(&name),
            };
        }
        self.note()?;
        trim(&self.entries, size_limit()?);
        Ok(())
    }

    /// Writes the versions. The file's modification time is the time of last use.
    fn note(&self) -> Result<(), StoreError> {
        let place = self.folder.join(STAMPS);
        let draft = self.folder.join("stamps.draft");
        let text = serde_json::to_vec(&self.stamps).map_err(io::Error::other);
        text.and_then(|text| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, &place))
            .map_err(StoreError::file(&place))
    }
}

#[derive(Debug)]
pub(crate) struct Partial {
    /// Positioned at its end.
    pub(crate) file: File,
    pub(crate) bytes: u64,
    place: PathBuf,
    noted: PathBuf,
}

impl Partial {
    /// Restarts the download.
    pub(crate) fn clear(&mut self) -> Result<(), StoreError> {
        self.bytes = 0;
        self.file.set_len(0).map_err(StoreError::file(&self.place))
    }
}

/// Removes unused entries, the oldest first, until the total size is at most `most_bytes`.
fn trim(entries: &Path, most_bytes: u64) {
    let mut found: Vec<(SystemTime, u64, PathBuf)> = fs::read_dir(entries)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| {
            let used = fs::metadata(entry.path().join(STAMPS)).and_then(|stamps| stamps.modified());
            (used.unwrap_or(SystemTime::UNIX_EPOCH), bytes_below(&entry.path()), entry.path())
        })
        .collect();
    found.sort();
    let mut bytes: u64 = found.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, its, path) in found {
        if bytes <= most_bytes {
            return;
        }
        let is_unused = lock_file(&path.join(IN_USE)).is_ok_and(|lock| lock.try_lock().is_ok());
        if is_unused && fs::remove_dir_all(&path).is_ok() {
            bytes -= its;
        }
    }
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_unused_entries_are_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, age) in [("old", 3), ("used", 2), ("new", 1)] {
            let entry = folder.path().join(name);
            fs::create_dir_all(entry.join("data")).expect("it is writable");
            fs::write(entry.join("data/a"), [0; 1000]).expect("it is writable");
            let stamps = File::create(entry.join(STAMPS)).expect("it is writable");
            stamps.set_modified(SystemTime::now() - std::time::Duration::from_secs(age)).expect("it is ours");
        }
        let used = lock_file(&folder.path().join("used").join(IN_USE)).expect("it is writable");
        used.lock_shared().expect("it is free");
        let left = || {
            let mut names: Vec<_> =
                fs::read_dir(folder.path()).expect("a folder").flatten().map(|it| it.file_name()).collect();
            names.sort();
            names
        };
        trim(folder.path(), 3000);
        assert_eq!(left(), ["new", "old", "used"]);
        trim(folder.path(), 2000);
        assert_eq!(left(), ["new", "used"]);
        trim(folder.path(), 0);
        assert_eq!(left(), ["used"]);
    }
}
