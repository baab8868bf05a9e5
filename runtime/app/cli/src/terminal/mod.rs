//! Terminal output: tables, colours, progress, summaries and script excerpts.

pub(crate) mod checks;
pub(crate) mod excerpt;
pub(crate) mod layout;
pub(crate) mod progress;
pub(crate) mod sparkline;
pub(crate) mod step_summary;
pub(crate) mod style;
pub(crate) mod summary;
pub(crate) mod text;

use std::io::{self, Write};

/// Writes the output of `print` to standard output at once, not line by line.
pub(crate) fn write_at_once(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
    let mut text = Vec::new();
    print(&mut text)?;
    anstream::stdout().lock().write_all(&text)
}
