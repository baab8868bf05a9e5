//! Output on a terminal: tables, colours, progress, summaries, lines of scripts.

pub(crate) mod excerpt;
pub(crate) mod progress;
pub(crate) mod sparkline;
pub(crate) mod step_summary;
pub(crate) mod style;
pub(crate) mod summary;
pub(crate) mod text;
