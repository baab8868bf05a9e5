//! `vcr run --watch`: runs again whenever a file of the scenario changes.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::exit::{Exit, eprint_line};
use crate::run::rebuild::GuestSource;
use crate::stop;
use crate::terminal::text::counted;

/// Time between two looks at the files. A look costs a system call for each, which is less
/// than a service for notifications, and works on every file system.
const INTERVAL: Duration = Duration::from_millis(200);

/// Modification time and length of a file; none if it does not exist.
type State = Option<(SystemTime, u64)>;

/// Calls `run` until a signal comes; it gives its exit code and the files it has read. The
/// files of `always` are watched, too, and so are the sources of guests: a guest whose sources
/// change is built before the next run.
pub(crate) fn watch(always: &[PathBuf], mut run: impl FnMut() -> (Exit, Vec<PathBuf>)) -> Exit {
    // Those of a run that failed early are not all of them.
    let mut files = always.to_vec();
    loop {
        let before: Vec<State> = files.iter().map(|file| state(file)).collect();
        let (_, read) = run();
        let mut watched: Vec<(PathBuf, State)> = files.iter().cloned().zip(before).collect();
        for file in read {
            if !files.contains(&file) {
                watched.push((file.clone(), state(&file)));
                files.push(file);
            }
        }
        if let Some(cause) = stop::cause() {
            return cause.exit();
        }
        let guests: Vec<(GuestSource, Vec<(PathBuf, State)>)> = files
            .iter()
            .filter_map(|file| GuestSource::of_component(file))
            .map(|guest| {
                let states = |file: PathBuf| {
                    let state = state(&file);
                    (file, state)
                };
                let sources = guest.files().into_iter().map(states).collect();
                (guest, sources)
            })
            .collect();
        eprint_line(format_args!("watching {}; Ctrl-C ends it", counted(files.len(), "file")));
        let (changed, guest) = loop {
            let is_changed = |(file, before): &&(PathBuf, State)| state(file) != *before;
            if let Some((file, _)) = watched.iter().find(is_changed) {
                break (file.clone(), None);
            }
            // A new source file shows in the file that names it.
            let source = guests.iter().find_map(|(guest, sources)| Some((sources.iter().find(is_changed)?, guest)));
            if let Some(((file, _), guest)) = source {
                break (file.clone(), Some(guest));
            }
            std::thread::sleep(INTERVAL);
            if let Some(cause) = stop::cause() {
                return cause.exit();
            }
        };
        // An editor may still write.
        std::thread::sleep(INTERVAL);
        eprint_line(format_args!("\n{} has changed", changed.display()));
        if let Some(guest) = guest {
            guest.build();
        }
    }
}

fn state(file: &Path) -> State {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
