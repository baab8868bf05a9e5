//! Finished simulations of a plan, kept in a file next to the output folder while `vcr plan` searches. If the command
//! was killed or ran out of time, the same command continues from them.
//!
//! A simulation is identified by the digest of its script, so a changed question reuses the simulations that are
//! unaffected.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use vcr_base::input::remote;
use vcr_latency::tables::DATA_VARIABLE;

use crate::exit::eprint_line;
use crate::plan::inputs::Inputs;
use crate::refusal::Refusal;
use crate::sweep::part::{digest, whole_lines};
use crate::terminal::text::counted;

/// Suffix of the file's name after the name of the folder.
const SUFFIX: &str = ".simulations";

/// The first line of the file: all inputs of simulations except the scripts.
#[derive(PartialEq, Serialize, Deserialize)]
struct Header {
    vcr_version: String,
    tables: Option<String>,
    /// Digests of the input files, by path.
    files: BTreeMap<PathBuf, String>,
}

#[derive(Serialize, Deserialize)]
struct Line<R> {
    script: String,
    result: R,
}

/// The file of finished simulations. Earlier results are read from it, and new ones are appended.
pub(crate) struct Finished<T> {
    path: PathBuf,
    earlier: BTreeMap<String, T>,
    /// Simulations in the file.
    kept: AtomicUsize,
    /// Length of the first line, in bytes.
    header_bytes: u64,
    file: Mutex<File>,
}

impl<T: Clone + Serialize + DeserializeOwned> Finished<T> {
    /// Opens or creates the file for the folder `out` and locks it; none if `out` is a URL.
    pub(crate) fn open(out: &Path, inputs: &Inputs, quiet: bool) -> Result<Option<Self>, Refusal> {
        if remote::url(out).is_some() {
            return Ok(None);
        }
        let name = out.file_name().unwrap_or(out.as_os_str());
        let mut name = name.to_owned();
        name.push(SUFFIX);
        let path = out.with_file_name(name);
        let failed = |error: io::Error| {
            Refusal::input(format!("cannot keep the simulations of the plan in `{}`: {error}", path.display()))
        };
        let header = header(inputs).map_err(failed)?;
        let mut file =
            File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        // Some network filesystems have no locks.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            let message = format!("another process keeps the simulations of its plan in `{}`", path.display());
            return Err(Refusal::input(message).hint("wait for its end, or name another folder for --out"));
        }
        let text = fs::read_to_string(&path).map_err(failed)?;
        let whole = whole_lines(&text);
        let mut lines = whole.lines();
        let is_same = lines.next().and_then(|line| serde_json::from_str::<Header>(line).ok()).as_ref() == Some(&header);
        let lines = lines.filter(|_| is_same).filter_map(|line| serde_json::from_str(line).ok());
        let lines: Vec<Line<T>> = lines.collect();
        let kept = lines.len();
        let earlier: BTreeMap<String, T> = lines.into_iter().map(|Line { script, result }| (script, result)).collect();
        let end = if is_same { whole.len() as u64 } else { 0 };
        file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(failed)?;
        let first = serde_json::to_string(&header).map_err(|error| failed(error.into()))? + "\n";
        if !is_same {
            file.write_all(first.as_bytes()).map_err(failed)?;
        }
        if !earlier.is_empty() && !quiet {
            let done = counted(kept, "simulation");
            eprint_line(format_args!("goes on from `{}`: {done} of the load made before", path.display()));
        }
        let (header_bytes, kept) = (first.len() as u64, AtomicUsize::new(kept));
        Ok(Some(Self { path, earlier, kept, header_bytes, file: Mutex::new(file) }))
    }

    /// The result of a script, if an earlier process stored it.
    pub(crate) fn of(&self, script: &str) -> Option<T> {
        if self.earlier.is_empty() { None } else { self.earlier.get(&name(script)).cloned() }
    }

    /// Stores a result. Errors such as a full disk are ignored: then a later process repeats the simulation.
    pub(crate) fn add(&self, script: &str, result: &T) {
        let line = serde_json::to_string(&Line { script: name(script), result }).unwrap_or_default();
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Written at once and unbuffered, so that the line survives if the process is killed.
        let _ = file.write_all(format!("{line}\n").as_bytes());
        self.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes the file if the plan is complete or nothing was stored; otherwise prints its path.
    pub(crate) fn end(&self, is_whole: bool) {
        let bytes = self.file.lock().unwrap_or_else(PoisonError::into_inner).metadata().map_or(0, |file| file.len());
        if is_whole || bytes <= self.header_bytes {
            // The file stays if its folder has become read-only.
            let _ = fs::remove_file(&self.path);
        } else {
            let (path, kept) = (self.path.display(), counted(self.kept.load(Ordering::Relaxed), "simulation"));
            eprint_line(format_args!("kept in `{path}`: {kept} of the load; the same command goes on from there"));
        }
    }
}

fn name(script: &str) -> String {
    hex::encode(Sha256::digest(script))
}

fn header(inputs: &Inputs) -> io::Result<Header> {
    let configs = inputs.bounds.models.iter().map(|model| Path::new(model).join("config.json"));
    let files = inputs.files().into_iter().chain(configs).filter(|path| vcr_base::input::is_regular(path));
    let files = files.map(|path| digest(&path).map(|digest| (path, digest))).collect::<io::Result<_>>()?;
    let tables = std::env::var_os(DATA_VARIABLE).map(|folder| folder.to_string_lossy().into_owned());
    Ok(Header { vcr_version: env!("CARGO_PKG_VERSION").to_owned(), tables, files })
}
