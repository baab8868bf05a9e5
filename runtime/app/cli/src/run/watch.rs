//! `vcr run --watch`: runs again whenever a file of the scenario changes.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::exit::{Exit, eprint_line};
use crate::run::rebuild::GuestSource;
use crate::stop;
use crate::terminal::text::counted;

/// Time between two checks of the files. A check costs a system call for each, which is less than a
/// service for notifications, and works on every file system.
const INTERVAL: Duration = Duration::from_millis(200);

/// Modification time and length of a file; none if it does not exist.
type State = Option<(SystemTime, u64)>;

/// A file and its state when it was read.
type Watched = (PathBuf, State);

/// Calls `run` until a signal comes; it returns its exit code and the files it has read. The files
/// of `always` are watched, too, and so are the sources of guests: a guest whose sources change is
/// built before the next run. There is no run until every guest builds.
pub(crate) fn watch(always: &[PathBuf], mut run: impl FnMut() -> (Exit, Vec<PathBuf>)) -> Exit {
    // The files of a run that failed early are incomplete.
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
            // An editor may still write.
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

/// Waits until a file changes; returns the file, and the guest whose source it is.
///
/// # Errors
/// The exit code if a signal comes first.
fn wait_for_change<'a>(
    watched: &[Watched],
    guests: &'a [(GuestSource, Vec<Watched>)],
) -> Result<(PathBuf, Option<&'a GuestSource>), Exit> {
    let is_changed = |(file, before): &&Watched| state(file) != *before;
    loop {
        if let Some((file, _)) = watched.iter().find(is_changed) {
            return Ok((file.clone(), None));
        }
        // A new source file shows in the file that names it.
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
