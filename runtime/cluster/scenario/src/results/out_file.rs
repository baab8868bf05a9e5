//! The output files of `vcr run --out`, by name.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use vcr_trace::import::table::TableFormat;

/// Maximum total size in bytes of `steps.jsonl` and `trace.json` over all runs, unless they are requested by name.
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
    /// Log lines of guests; absent without log lines.
    Guests,
    /// Data of the charts in the page.
    Charts,
    /// An HTML page with charts.
    Html,
    /// The assertions as JUnit test cases.
    Junit,
    /// The results in Markdown.
    Summary,
    /// The metrics in the OpenMetrics text format.
    OpenMetrics,
    /// The requests as CSV; only written on request.
    Csv,
    /// The requests as Parquet; only written on request.
    Parquet,
}

impl OutFile {
    /// All files, in the order in which they are listed.
    pub const ALL: [Self; 12] = [
        Self::Report,
        Self::Requests,
        Self::Steps,
        Self::Trace,
        Self::Guests,
        Self::Charts,
        Self::Html,
        Self::Junit,
        Self::Summary,
        Self::OpenMetrics,
        Self::Csv,
        Self::Parquet,
    ];

    /// Whether the file is written if no files are named.
    #[must_use]
    pub fn is_default(self) -> bool {
        !matches!(self, Self::Csv | Self::Parquet)
    }

    /// The file's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Requests => "requests",
            Self::Steps => "steps",
            Self::Trace => "trace",
            Self::Guests => "guests",
            Self::Charts => "charts",
            Self::Html => "html",
            Self::Junit => "junit",
            Self::Summary => "summary",
            Self::OpenMetrics => "openmetrics",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
        }
    }

    /// The file's name in the folder.
    #[must_use]
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Report => "report.json",
            Self::Requests => "requests.jsonl",
            Self::Steps => "steps.jsonl",
            Self::Trace => "trace.json",
            Self::Guests => "guests.jsonl",
            Self::Charts => "charts.json",
            Self::Html => "report.html",
            Self::Junit => "junit.xml",
            Self::Summary => "summary.md",
            Self::OpenMetrics => "openmetrics.txt",
            Self::Csv => "requests.csv",
            Self::Parquet => "requests.parquet",
        }
    }

    /// Whether the file is derived from other results, for people and other tools.
    pub(crate) fn is_picture(self) -> bool {
        self >= Self::Charts
    }

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
        if found == Some(Self::Parquet) && !TableFormat::Parquet.is_built() {
            return Err("this build of vcr lacks the feature `formats`, which Parquet needs".to_owned());
        }
        found.ok_or_else(|| format!("expected one or more of {known}, separated by commas"))
    }
}

/// The path of the part of a file that run number `index` writes.
pub(crate) fn part(drafts: &Path, index: usize, file: OutFile) -> PathBuf {
    drafts.join(format!("{}.{index}", file.file_name()))
}
