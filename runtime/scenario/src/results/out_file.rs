//! The files of `vcr run --out`, by name.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Maximum bytes of `steps.jsonl` and `trace.json` together, over all runs, unless they are
/// requested by name.
pub const STEPS_LIMIT_BYTES: u64 = 128_000_000;

/// A file of `vcr run --out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutFile {
    /// The results, with all assertions.
    Report,
    /// One line per request.
    Requests,
    /// One line per step of each engine.
    Steps,
    /// A trace for Perfetto.
    Trace,
    /// Log lines of guests; absent without any.
    Guests,
}

impl OutFile {
    /// All files, in the order of the listing.
    pub const ALL: [Self; 5] = [Self::Report, Self::Requests, Self::Steps, Self::Trace, Self::Guests];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Requests => "requests",
            Self::Steps => "steps",
            Self::Trace => "trace",
            Self::Guests => "guests",
        }
    }

    /// Its name in the folder.
    #[must_use]
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Report => "report.json",
            Self::Requests => "requests.jsonl",
            Self::Steps => "steps.jsonl",
            Self::Trace => "trace.json",
            Self::Guests => "guests.jsonl",
        }
    }

    /// Whether it grows with the number of steps.
    pub(crate) fn is_of_steps(self) -> bool {
        matches!(self, Self::Steps | Self::Trace)
    }
}

impl fmt::Display for OutFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for OutFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|file| file.name() == text);
        found.ok_or_else(|| format!("expected one or more of {known}, separated by commas"))
    }
}

/// The part of a run in a file.
pub(crate) fn part(drafts: &Path, index: usize, file: OutFile) -> PathBuf {
    drafts.join(format!("{}.{index}", file.file_name()))
}
