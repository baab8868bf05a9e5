//! `vcr inspect` for captures: summarises, converts, shows and compares.

pub(crate) mod args;
mod convert;
mod demo;
mod diff;
mod output;
mod perfetto;
mod summarize;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use vcr_base::output::OutputError;
use vcr_trace::capture::{BrokenOff, CAPTURE_SCHEMA, CaptureLine};
use vcr_trace::import::{ImportError, Imported, Note, import};

use crate::exit::{Exit, eprint_line, print_error, printed};
use crate::terminal::text::counted;
use args::InputArgs;

pub(crate) use convert::convert;
pub(crate) use demo::gen_demo;
pub(crate) use diff::diff;
pub(crate) use perfetto::perfetto;
pub(crate) use summarize::summarize;

/// Number of lines between two progress updates.
const LINES_A_TICK: u64 = 1024;

pub(crate) fn schema() -> Exit {
    use std::io::Write;
    printed(io::stdout().write_all(CAPTURE_SCHEMA.as_bytes()), Exit::Passed)
}

/// Reads any file that converts to a capture, with progress on a terminal. Prints skipped and dropped parts.
fn read(
    path: &Path,
    input: &InputArgs,
    mut each: impl FnMut(CaptureLine) -> io::Result<()>,
) -> Result<Imported, ImportError> {
    let bar = spinner(&format!("reading {}", path.display()));
    let mut lines = 0u64;
    let imported = import(path, &input.options(), &mut |line| {
        lines += 1;
        if lines.is_multiple_of(LINES_A_TICK) {
            bar.set_message(format!("{lines} lines"));
            bar.tick();
        }
        each(line)
    });
    bar.finish_and_clear();
    let imported = imported?;
    if imported.skipped > 0 {
        let first = imported.first_skipped.as_deref().unwrap_or_default();
        eprint_line(format_args!("warning: {} skipped, first: {first}", counted(imported.skipped, "item")));
    }
    print_notes("not kept", &imported.notes);
    Ok(imported)
}

fn print_notes(what: &str, notes: &[Note]) {
    for note in notes {
        eprint_line(format_args!("note: {what}: {} {}", note.count, note.what));
    }
}

fn spinner(what: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {prefix}  {msg}").unwrap_or(ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner().with_style(style).with_prefix(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn broken_off_text(how: BrokenOff) -> &'static str {
    match how {
        BrokenOff::NoEndLine => "there is no `end` line",
        BrokenOff::HalfLine => "in the middle of a line",
        BrokenOff::CutArchive => "in the middle of an archive",
        BrokenOff::MissingPart => "before a file that is missing",
    }
}

fn refused(error: &ImportError) -> Exit {
    print_error(error, None);
    Exit::BadInput
}

fn not_written(error: &OutputError) -> Exit {
    if error.is_broken_pipe() {
        // A closed pipe, such as of `head`, is not a failure.
        return Exit::Passed;
    }
    print_error(error, error.hint());
    Exit::BadInput
}
