use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::help::with_plain_exit_codes;

pub(crate) const EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr man --out ~/.local/share/man/man1
  vcr man --out man --force              # replace existing pages
  vcr man --out site --format markdown   # commands.md, all commands on one page"
);

/// The formats of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Manual pages, one for each command.
    Roff,
    /// One page for all commands.
    Markdown,
}

/// Options of `vcr man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write the pages to this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// Format of the pages.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Roff)]
    pub(crate) format: Format,

    /// Replace existing pages.
    #[arg(long)]
    pub(crate) force: bool,
}
