//! The command line of `vcr man`.

use std::path::PathBuf;

use clap::Args;

use crate::help::with_plain_exit_codes;

pub(crate) const EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr man --out ~/.local/share/man/man1
  vcr man --out man --force              # in place of the pages that are there"
);

/// Options of `vcr man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write the pages to this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// Replace pages that exist.
    #[arg(long)]
    pub(crate) force: bool,
}
