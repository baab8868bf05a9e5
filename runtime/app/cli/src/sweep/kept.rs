//! Finished points of a sweep, stored in a file next to its table while it runs. If the process is killed or a point
//! fails, the same command continues from them.
//!
//! The file has the format of a shard, so `vcr merge --partial` can make a table of it. Each line has the digests of
//! files that were first read since the line before. Results are reused only while these files are unchanged.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::part::{Header, Part, digest, whole_lines};
use crate::exit::eprint_line;
use crate::refusal::Refusal;
use crate::terminal::text::counted;

/// Suffix of the file's name after the name of the table.
const SUFFIX: &str = ".points";

/// The stored points of a running sweep.
pub(crate) struct KeptPoints {
    path: PathBuf,
    /// Results of an earlier process.
    earlier: Part,
    log: Mutex<Log>,
}

struct Log {
    file: File,
    /// Digests of files, by name.
    inputs: BTreeMap<String, String>,
    /// The first line, until it is written.
    header: Option<String>,
    added: usize,
    failed: Option<io::Error>,
}

#[derive(Serialize)]
struct Line<'a, T> {
    point: usize,
    result: &'a T,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    inputs: BTreeMap<String, String>,
}

impl KeptPoints {
    /// Opens the stored points of the sweep `header` for the table `out`; none if `out` is not a local file. All
    /// points read the files `read`. With `force`, points of another sweep are replaced.
    pub(crate) fn open(
        out: Option<&Path>,
        header: &Header,
        read: &[PathBuf],
        force: bool,
    ) -> Result<Option<Self>, Refusal> {
        let Some(out) = out.filter(|out| is_kept(out)) else { return Ok(None) };
        let mut path = out.as_os_str().to_owned();
        path.push(SUFFIX);
        let path = PathBuf::from(path);
        let failed = |error: io::Error| {
            Refusal::input(format!("cannot keep the points of the sweep in `{}`: {error}", path.display()))
        };
        let mut file =
            File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        // Some network filesystems have no locks.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            let message = format!("another process keeps the points of its sweep in `{}`", path.display());
            return Err(Refusal::input(message).hint("wait for its end, or name another file for --sweep-out"));
        }
        let text = fs::read_to_string(&path).map_err(failed)?;
        let earlier = match of_sweep(&path, &text, header, read) {
            Ok(earlier) => earlier,
            Err(_) if force => Part::of(path.clone(), header.clone(), BTreeMap::new()),
            Err(why) => {
                let hint = "make a table of it by vcr merge --partial, remove it, or replace it by --force";
                return Err(Refusal::input(why).hint(hint));
            }
        };
        let (end, first) = match earlier.is_empty() {
            true => (0, Some(serde_json::to_string(header).map_err(|error| failed(error.into()))?)),
            false => (whole_lines(&text).len() as u64, None),
        };
        // Overwrite the incomplete last line of a killed process.
        file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(failed)?;
        let inputs = earlier.header.inputs.clone();
        let log = Log { file, inputs, header: first, added: 0, failed: None };
        Ok(Some(Self { path, earlier, log: Mutex::new(log) }))
    }

    /// Results of an earlier process, by point number.
    pub(crate) fn earlier<T: DeserializeOwned>(&self) -> Result<BTreeMap<usize, T>, Refusal> {
        Ok(self.earlier.results::<T>().map_err(Refusal::input)?.into_iter().collect())
    }

    /// Reports how many of `points` an earlier process has finished.
    pub(crate) fn tell(&self, points: usize, quiet: bool) {
        let done = self.earlier.len();
        if done > 0 && !quiet {
            let path = self.path.display();
            eprint_line(format_args!("continues from `{path}`: {done} of {points} points were done before"));
        }
    }

    /// Digests of the files that points of an earlier process have read.
    pub(crate) fn inputs(&self) -> BTreeMap<String, String> {
        self.earlier.header.inputs.clone()
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a finished point. `read` are all files that points have read so far.
    pub(crate) fn add(&self, point: usize, result: &impl Serialize, read: &[PathBuf]) {
        let mut log = self.log();
        if log.failed.is_none()
            && let Err(error) = log.add(point, result, read)
        {
            eprint_line(format_args!(
                "warning: finished points are no longer kept in `{}`: {error}",
                self.path.display()
            ));
            log.failed = Some(error);
        }
    }

    /// Removes the file after the results were written to the table.
    pub(crate) fn remove(kept: Option<Self>) {
        if let Some(Self { path, .. }) = kept {
            // The file stays if its folder has become read-only.
            let _ = fs::remove_file(path);
        }
    }

    /// After a failure, reports where finished points are stored.
    pub(crate) fn leave(kept: Option<Self>) {
        let Some(kept) = kept else { return };
        let (path, done) = (kept.path.clone(), kept.earlier.len() + kept.log().added);
        if done == 0 {
            return Self::remove(Some(kept));
        }
        eprint_line(format_args!(
            "finished points are kept in `{}`, {}: the same command continues from there, and vcr merge --partial makes a table",
            path.display(),
            counted(done, "point")
        ));
    }
}

impl Log {
    fn add(&mut self, point: usize, result: &impl Serialize, read: &[PathBuf]) -> io::Result<()> {
        let mut inputs = BTreeMap::new();
        for path in read.iter().filter(|path| vcr_base::input::is_regular(path)) {
            let name = vcr_base::input::remote::named(path).display().to_string();
            if !self.inputs.contains_key(&name) {
                let digest = digest(path)?;
                self.inputs.insert(name.clone(), digest.clone());
                inputs.insert(name, digest);
            }
        }
        let mut text = self.header.take().map(|header| header + "\n").unwrap_or_default().into_bytes();
        serde_json::to_writer(&mut text, &Line { point, result, inputs })?;
        text.push(b'\n');
        // Written at once and unbuffered, so that the line survives if the process is killed.
        self.file.write_all(&text)?;
        self.added += 1;
        Ok(())
    }
}

/// Whether points can be stored next to a table: not for pipes, devices or URLs.
fn is_kept(out: &Path) -> bool {
    let is_special = fs::metadata(out).is_ok_and(|there| !there.is_file());
    vcr_base::input::remote::url(out).is_none() && !is_special
}

/// The results in `text`, which must belong to the sweep `header` and the current files. An empty file has none.
fn of_sweep(path: &Path, text: &str, header: &Header, read: &[PathBuf]) -> Result<Part, String> {
    if whole_lines(text).is_empty() {
        return Ok(Part::of(path.to_owned(), header.clone(), BTreeMap::new()));
    }
    let part = Part::of_text(path, whole_lines(text))?;
    let inputs = &part.header.inputs;
    let mut named =
        read.iter().filter(|path| vcr_base::input::is_regular(path)).map(|path| vcr_base::input::remote::named(path));
    let is_same_grid = (Header { inputs: BTreeMap::new(), ..part.header.clone() }) == *header;
    if !is_same_grid || named.any(|name| !inputs.contains_key(&name.display().to_string())) {
        return Err(format!("`{}` holds finished points of another sweep", path.display()));
    }
    let is_same = |(name, known): (&String, &String)| digest(Path::new(name)).is_ok_and(|found| found == *known);
    match inputs.iter().find(|input| !is_same(*input)) {
        Some((name, _)) => {
            Err(format!("`{}` holds finished points, and `{name}` had other contents then", path.display()))
        }
        None => Ok(part),
    }
}
