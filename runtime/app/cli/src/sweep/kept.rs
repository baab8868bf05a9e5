//! The finished points of a sweep, in a file next to its table while it runs: neither `kill -9` nor
//! a fault of one point loses them, and the same command continues from them.
//!
//! The file has the form of a shard's, so that `vcr merge --partial` makes a table of it. Each line
//! has the digests of the files that were read since the line before: results are used again only
//! while these files are the same.

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

/// Suffix behind the name of the table.
const SUFFIX: &str = ".points";

/// The finished points of a sweep that is executed.
pub(crate) struct KeptPoints {
    path: PathBuf,
    /// Results of an earlier process.
    earlier: Part,
    log: Mutex<Log>,
}

struct Log {
    file: File,
    /// Digests of files, by their names.
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
    /// The points of the sweep `header`, whose results go to `out`; none if `out` is not a file on
    /// this machine. All points read the files `read`. With `force`, points of another sweep are
    /// replaced.
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
        // An incomplete line of a killed process is written again.
        file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(failed)?;
        let inputs = earlier.header.inputs.clone();
        let log = Log { file, inputs, header: first, added: 0, failed: None };
        Ok(Some(Self { path, earlier, log: Mutex::new(log) }))
    }

    /// Results of an earlier process, by the numbers of their points.
    pub(crate) fn earlier<T: DeserializeOwned>(&self) -> Result<BTreeMap<usize, T>, Refusal> {
        Ok(self.earlier.results::<T>().map_err(Refusal::input)?.into_iter().collect())
    }

    /// Reports that an earlier process has finished some of `points`.
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

    /// Keeps a finished point; `read` are the files that points have read until now.
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

    /// Removes the file: the results are where they belong.
    pub(crate) fn remove(kept: Option<Self>) {
        if let Some(Self { path, .. }) = kept {
            // It may be in a folder that has become read-only; then it stays.
            let _ = fs::remove_file(path);
        }
    }

    /// Reports the place of the finished points of a failed sweep.
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
        // In one piece and without a buffer: a written line outlives the process.
        self.file.write_all(&text)?;
        self.added += 1;
        Ok(())
    }
}

/// Whether points are kept next to a table: not for pipes and devices, nor at URLs.
fn is_kept(out: &Path) -> bool {
    let is_special = fs::metadata(out).is_ok_and(|there| !there.is_file());
    vcr_base::input::remote::url(out).is_none() && !is_special
}

/// The results in `text`, if they belong to the sweep `header` and the current files; none in an
/// empty file.
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
