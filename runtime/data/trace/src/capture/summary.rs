use std::fmt;

use super::error::CaptureProblem;
use super::error::LineProblem;

/// The summary of a capture that was read to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureSummary {
    /// Number of request lines that were read.
    pub requests: u64,
    /// Number of requests that have arrived but not ended.
    pub under_way: u64,
    /// Number of skipped lines; 0 unless reading is lenient.
    pub skipped_lines: u64,
    /// How the capture breaks off; `None` if it is complete.
    pub broken_off: Option<BrokenOff>,
    /// Warnings, in order of first appearance.
    pub warnings: Vec<CaptureWarning>,
}

/// How a capture breaks off. Everything before the break is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenOff {
    /// After a complete line other than the `end` line.
    NoEndLine,
    /// In the middle of a line.
    HalfLine,
    /// In the middle of an archive.
    CutArchive,
    /// Before a missing file; only if reading is lenient.
    MissingPart,
}

/// A warning of the reader. Each is counted per file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureWarning {
    /// Kind of the warning.
    pub kind: CaptureWarningKind,
    /// The file.
    pub name: String,
    /// Line of the first occurrence, from 1.
    pub first_line: u32,
    /// Number of lines with this warning.
    pub lines: u32,
}

/// The kinds of [`CaptureWarning`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureWarningKind {
    /// A field that the format does not define. The record keeps it.
    UnknownField(String),
    /// Invalid lines were skipped; only if reading is lenient.
    Skipped {
        /// The field of the first problem; None if the problem concerns the whole line.
        field: Option<String>,
        /// The problem of the first skipped line.
        problem: CaptureProblem,
    },
    /// The file breaks off.
    BrokenOff {
        /// How the file breaks off.
        how: BrokenOff,
        /// Number of requests that were in progress.
        under_way: u64,
    },
    /// The parts before this one were not read.
    StartsLater {
        /// The first part that was read.
        part: u32,
    },
}

impl fmt::Display for BrokenOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoEndLine => "without an `end` line",
            Self::HalfLine => "in the middle of a line",
            Self::CutArchive => "in the middle of the archive",
            Self::MissingPart => "before a file that is missing",
        })
    }
}

impl fmt::Display for CaptureWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, first_line, lines } = self;
        match kind {
            CaptureWarningKind::UnknownField(field) => {
                write!(f, "`{name}`: unknown field `{field}` on {lines} line(s), first on line {first_line}")
            }
            CaptureWarningKind::Skipped { field, problem } => {
                write!(f, "`{name}`: {lines} line(s) skipped, first line {first_line}")?;
                field.iter().try_for_each(|field| write!(f, ", field `{field}`"))?;
                write!(f, ": {problem}")
            }
            CaptureWarningKind::BrokenOff { how, under_way } => {
                write!(f, "`{name}` breaks off {how} after line {first_line}; {under_way} request(s) were under way")
            }
            CaptureWarningKind::StartsLater { part } => {
                write!(f, "`{name}` is part {part} of a capture; the parts before it are not read")
            }
        }
    }
}

/// The warnings of a capture. Equal warnings are counted together.
#[derive(Default)]
pub(super) struct Warnings {
    list: Vec<CaptureWarning>,
}

impl Warnings {
    pub(super) fn unknown_field(&mut self, name: &str, line: u32, field: &str) {
        let is_same =
            |kind: &CaptureWarningKind| matches!(kind, CaptureWarningKind::UnknownField(known) if known == field);
        if !self.counted(name, is_same) {
            self.add(name, line, CaptureWarningKind::UnknownField(field.to_owned()));
        }
    }

    pub(super) fn skipped(&mut self, name: &str, line: u32, line_problem: LineProblem) {
        let LineProblem { field, problem } = line_problem;
        let is_same = |kind: &CaptureWarningKind| match kind {
            CaptureWarningKind::Skipped { field: its, problem: known } => {
                let is_same_kind = std::mem::discriminant(known) == std::mem::discriminant(&problem);
                is_same_kind && without_index(its.as_deref()) == without_index(field.as_deref())
            }
            _ => false,
        };
        if !self.counted(name, is_same) {
            self.add(name, line, CaptureWarningKind::Skipped { field, problem });
        }
    }

    /// Counts another occurrence of a known warning. Returns false if the warning is new.
    fn counted(&mut self, name: &str, is_same: impl Fn(&CaptureWarningKind) -> bool) -> bool {
        let known = self.list.iter_mut().find(|warning| warning.name == name && is_same(&warning.kind));
        known.map(|known| known.lines += 1).is_some()
    }

    pub(super) fn add(&mut self, name: &str, line: u32, kind: CaptureWarningKind) {
        self.list.push(CaptureWarning { kind, name: name.to_owned(), first_line: line, lines: 1 });
    }

    pub(super) fn list(&self) -> &[CaptureWarning] {
        &self.list
    }
}

/// Removes the index from a field such as `gap_tokens[7]`, because it differs from line to line.
fn without_index(field: Option<&str>) -> Option<&str> {
    field.and_then(|field| field.split('[').next())
}
