//! `vcr run --watch`: runs again when a file of the scenario changes.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::exit::{Exit, eprint_line};
use crate::run::rebuild::GuestSource;
use crate::stop;
use crate::terminal::text::counted;

/// Interval between checks of the files. Polling costs a system call for each file and works on every file system.
const INTERVAL: Duration = Duration::from_millis(200);

/// Modification time and length of a file; none if it does not exist.
type State = Option<(SystemTime, u64)>;

/// A file, and its state when it was read.
type Watched = (PathBuf, State);

/// Calls `run`, and again after each change, until a signal arrives. `run` returns its exit code and the files it has
/// read. The files in `always` and the sources of guests are watched too. A guest with changed sources is rebuilt
/// before the next run, which waits until every guest builds.
pub(crate) fn watch(always: &[PathBuf], mut run: impl FnMut() -> (Exit, Vec<PathBuf>)) -> Exit {
    // A run that failed early has not read all its files.
    let mut files = always.to_vec();
    loop {
        let mut watched = states(files.clone());
        let (_, read) = run();
        for file in read {
            if !files.contains(&file) {
                watched.push((file.clone(), state(&file)));
                files.push(file);
            }
        }
        if let Some(cause) = stop::cause() {
            return cause.exit();
        }
        eprint_line(format_args!("watching {}; Ctrl-C ends it", counted(files.len(), "file")));
        let mut unbuilt: Vec<GuestSource> = Vec::new();
        loop {
            let guests: Vec<(GuestSource, Vec<Watched>)> = files
                .iter()
                .filter_map(|file| GuestSource::of_component(file))
                .map(|guest| {
                    let sources = states(guest.files());
                    (guest, sources)
                })
                .collect();
            let (changed, guest) = match wait_for_change(&watched, &guests) {
                Ok(changed) => changed,
                Err(exit) => return exit,
            };
            // An editor may still be writing.
            std::thread::sleep(INTERVAL);
            eprint_line(format_args!("\n{} has changed", changed.display()));
            watched = states(files.clone());
            unbuilt.extend(guest.filter(|guest| !unbuilt.contains(guest)).cloned());
            unbuilt.retain(|guest| !guest.build());
            if unbuilt.is_empty() {
                break;
            }
        }
    }
}

/// Waits until a file changes. Returns the file, and its guest if it is a source file.
///
/// # Errors
/// The exit code if a signal arrives first.
fn wait_for_change<'a>(
    watched: &[Watched],
    guests: &'a [(GuestSource, Vec<Watched>)],
) -> Result<(PathBuf, Option<&'a GuestSource>), Exit> {
    let is_changed = |(file, before): &&Watched| state(file) != *before;
    loop {
        if let Some((file, _)) = watched.iter().find(is_changed) {
            return Ok((file.clone(), None));
        }
        // A new source file is noticed when the file that names it changes.
        let source = guests.iter().find_map(|(guest, sources)| Some((sources.iter().find(is_changed)?, guest)));
        if let Some(((file, _), guest)) = source {
            return Ok((file.clone(), Some(guest)));
        }
        std::thread::sleep(INTERVAL);
        if let Some(cause) = stop::cause() {
            return Err(cause.exit());
        }
    }
}

fn states(files: Vec<PathBuf>) -> Vec<Watched> {
    let with_state = |file: PathBuf| {
        let state = state(&file);
        (file, state)
    };
    files.into_iter().map(with_state).collect()
}

fn state(file: &Path) -> State {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
