//! Errors while reading a capture. Each names the file, and the line and the field if known.

use std::io;

use super::record::CAPTURE_VERSION;
use crate::{MediaProblem, VcrOutput};

/// An error while reading a capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// A file could not be opened or read.
    #[error("cannot read capture `{name}`: {source}")]
    Io {
        /// The file, as the caller named it.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// A packed file cannot be unpacked.
    #[error("capture `{name}` is damaged after line {line}: {source}; unpack what is whole, and read that")]
    Packed {
        /// The file, as the caller named it.
        name: String,
        /// The last line before the damage; 0 if no line precedes it.
        line: u32,
        /// The cause.
        source: io::Error,
    },
    /// The file is empty.
    #[error("capture `{name}` holds no line; a capture starts with its meta line")]
    Empty {
        /// The file, as the caller named it.
        name: String,
    },
    /// The file ends within its first line.
    #[error("capture `{name}` breaks off before its first line ends, so nothing in it can be read; record it again")]
    CutAtStart {
        /// The file, as the caller named it.
        name: String,
    },
    /// The file is another output of vcr.
    #[error("`{name}` is {output}, not a capture; {}", output.next_step())]
    VcrOutput {
        /// The file, as the caller named it.
        name: String,
        /// Kind of the output.
        output: VcrOutput,
    },
    /// The first line cannot start a capture.
    #[error(
        "capture `{name}`, line {line}: a capture starts with a line of the kind `meta` (a trace of vllm-vcr: with a \
         meta line or a request); give the whole file, or the format it has"
    )]
    NoMeta {
        /// The file, as the caller named it.
        name: String,
        /// 1-based line.
        line: u32,
    },
    /// The capture has an unknown version.
    #[error(
        "capture `{name}`, line {line}, field `version`: unknown version {version}, expected \
         {CAPTURE_VERSION}; read it with the vcr that wrote it, or a newer one"
    )]
    Version {
        /// The file, as the caller named it.
        name: String,
        /// 1-based line.
        line: u32,
        /// The version in the file.
        version: u64,
    },
    /// A file of a rotated capture is missing.
    #[error("capture `{name}` continues in `{missing}`, which is missing; put it beside the others, or read leniently")]
    MissingPart {
        /// The file before the missing file, or the folder.
        name: String,
        /// The file that is missing.
        missing: String,
    },
    /// A file of a rotated capture contains another part than its name says.
    #[error("capture `{name}`, field `part`: invalid part {part}: expected {expected}; rename the files")]
    WrongPart {
        /// The file.
        name: String,
        /// The part that the file contains.
        part: u32,
        /// The part that the name says.
        expected: u32,
    },
    /// A file of a rotated capture breaks off, but is not the last file.
    #[error(
        "capture `{name}` breaks off, though `{next}` follows; lines are lost: read leniently to go on without them"
    )]
    BrokenPart {
        /// The file.
        name: String,
        /// The next file.
        next: String,
    },
    /// A folder contains no capture, or several.
    #[error("`{name}` holds {} captures{}; name the first file of the one to read", .found.len(), listed(.found))]
    Folder {
        /// The folder.
        name: String,
        /// The first file of each capture in the folder.
        found: Vec<String>,
    },
    /// A line cannot be used.
    #[error("capture `{name}`, line {line}{}: {problem}", in_field(.field))]
    Line {
        /// The file.
        name: String,
        /// 1-based line.
        line: u32,
        /// The field with the problem; None if the problem concerns the whole line.
        field: Option<String>,
        /// The problem and the next step.
        problem: CaptureProblem,
    },
}

fn in_field(field: &Option<String>) -> String {
    field.as_ref().map_or_else(String::new, |name| format!(", field `{name}`"))
}

fn listed(found: &[String]) -> String {
    if found.is_empty() { String::new() } else { format!(" ({})", found.join(", ")) }
}

/// A problem of one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureProblem {
    /// The line is malformed.
    #[error("{0}; correct the line, or read leniently to skip it")]
    Malformed(String),
    /// The line is cut off.
    #[error("the line is cut off: {0}; remove it, or read leniently to skip it")]
    CutOff(String),
    /// The line exceeds the reader's buffer.
    #[error("the line is longer than {limit_bytes} bytes; is this a text file with one JSON object a line?")]
    TooLong {
        /// Maximum length of a line.
        limit_bytes: u64,
    },
    /// The file has more lines than can be counted.
    #[error("a file of a capture cannot hold more than {} lines; split it", u32::MAX)]
    TooManyLines,
    /// A mandatory field is absent.
    #[error("the field is missing; add it")]
    Missing,
    /// An unknown kind of line.
    #[error(
        "unknown kind of line `{kind}`: expected meta, engine, arrival, request, step, http, kv, break or end. A newer \
         vcr may know it; read leniently to skip such lines"
    )]
    UnknownKind {
        /// The kind.
        kind: String,
    },
    /// A second meta line.
    #[error("a second meta line; give each capture a file of its own")]
    SecondMeta,
    /// A second meta line, with another version.
    #[error(
        "a second meta line, of version {second} where the first is of version {first}; give each a file of its own"
    )]
    MixedVersions {
        /// Version of the capture.
        first: u32,
        /// Version of the second meta line.
        second: u32,
    },
    /// A line after the `end` line.
    #[error("nothing may follow the `end` line; give what follows a file of its own")]
    AfterEnd,
    /// The counts in the `end` line are wrong.
    #[error(
        "the `end` line counts {said} requests that are over and {unfinished} that are not, but the file has {held} \
         request lines; lines were lost or added: read leniently to go on with those that are there"
    )]
    WrongCount {
        /// Number of ended requests according to the `end` line.
        said: u64,
        /// Number of requests in progress according to the `end` line.
        unfinished: u64,
        /// Number of request lines in the file.
        held: u64,
    },
    /// A prompt without tokens.
    #[error("the prompt has no tokens; every request has at least one")]
    EmptyPrompt,
    /// A block size of 0.
    #[error("a block has at least 1 token")]
    EmptyBlock,
    /// An output without tokens.
    #[error("an output has at least 1 token; leave out those that have none, and add their gap to the next")]
    EmptyChunk,
    /// The tokens of the outputs do not add up to the total.
    #[error(
        "{output_tokens} tokens, but the outputs have {given} together (first_tokens and gap_tokens, 1 each where absent)"
    )]
    OutputsDoNotAddUp {
        /// The total.
        output_tokens: u32,
        /// The sum of the outputs' tokens.
        given: u64,
    },
    /// Two lists, or a list and a number, do not agree.
    #[error("expected {expected} items, got {given}: {rule}")]
    WrongLength {
        /// Number of items in the list.
        given: u64,
        /// Required number of items.
        expected: u64,
        /// The rule that requires this number.
        rule: &'static str,
    },
    /// Block hashes without a block size.
    #[error("block hashes need the size of their blocks; add `block_size_tokens` to the meta line")]
    NoBlockSize,
    /// Gaps are given both singly and as a mean.
    #[error("both `gap_ns` and `gap_summary` are given; keep one")]
    GapsTwice,
    /// The mean covers more gaps than the answer has.
    #[error("{count} gaps for {output_tokens} output tokens; there are fewer gaps than tokens")]
    TooManyGaps {
        /// Number of gaps.
        count: u32,
        /// Number of output tokens.
        output_tokens: u32,
    },
    /// A trace of vllm-vcr lacks gaps.
    #[error("more than one output token needs `itl_ms` or `itl_summary`; add one")]
    GapsMissing,
    /// More cached tokens than prompt tokens.
    #[error("{cached_tokens} cached tokens of a prompt of {prompt_tokens}; there cannot be more than it has")]
    CachedBeyondPrompt {
        /// Number of cached tokens.
        cached_tokens: u32,
        /// Number of prompt tokens.
        prompt_tokens: u32,
    },
    /// Multimodal items are given both with positions and as hashes only.
    #[error("both `mm_items` and `mm_hashes` are given; keep `mm_items`, which have the hashes")]
    MediaTwice,
    /// A multimodal item cannot be used.
    #[error("{0}")]
    Item(MediaProblem),
    /// An unknown finish reason.
    #[error("invalid finish reason `{reason}`: expected {}", vcr_base::finish_reason::FinishReason::EXPECTED)]
    UnknownFinishReason {
        /// The reason in the file.
        reason: String,
    },
    /// An invalid HTTP status.
    #[error("invalid status {status}: expected 100 to 999")]
    InvalidStatus {
        /// The status.
        status: u16,
    },
    /// A part of an answer is earlier than the part before it.
    #[error("the part comes before the one in front of it; times are nanoseconds since the arrival, in order")]
    ChunkBeforeItsTime,
    /// Times do not fit into 64 bits.
    #[error("the times add up to more than 584 years; they are nanoseconds")]
    TimesOverflow,
}

pub(super) struct LineProblem {
    pub(super) field: Option<String>,
    pub(super) problem: CaptureProblem,
}

impl LineProblem {
    pub(super) fn of(field: &str, problem: CaptureProblem) -> Self {
        LineProblem { field: Some(field.to_owned()), problem }
    }

    pub(super) fn of_line(problem: CaptureProblem) -> Self {
        LineProblem { field: None, problem }
    }
}
