//! Errors while reading a trace. Each names the file, and the line and field if known.

use std::io;

use crate::capture::CaptureError;
use crate::{Format, FormatOption, MediaProblem, VcrOutput};

/// The format of a file is unclear, or the file has no requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Neither the name nor the start shows the format.
    #[error("cannot tell the format of `{name}`{}; known: {}", naming(*.option), Format::names())]
    Unknown {
        /// The file, as the caller named it.
        name: String,
        /// How the user can state the format.
        option: Option<FormatOption>,
    },
    /// Several formats are possible, and they differ in their units.
    #[error("cannot tell the format of `{name}`: {why}. It may be {candidates}{}{}", naming(*.option), and_unit(*.option))]
    Unclear {
        /// The file, as the caller named it.
        name: String,
        /// The reason why the format is unclear.
        why: String,
        /// Names of the possible formats.
        candidates: String,
        /// How the user can state the format.
        option: Option<FormatOption>,
    },
    /// The file is a page, such as a server's list of a folder.
    #[error("`{name}` is an HTML page, which holds no requests; end the URL of a folder with `/`")]
    Page {
        /// The file, as the caller named it.
        name: String,
    },
    /// The columns of the table belong to no known format.
    #[error(
        "cannot tell the format of `{name}` by its columns {columns}: tables of requests have `prompt_tokens` and \
         `output_tokens`, data sets a column such as `prompt` or `instruction`; rename the columns in its header"
    )]
    UnknownColumns {
        /// The file, as the caller named it.
        name: String,
        /// The columns of the table.
        columns: String,
    },
    /// The file is an output of vcr without requests.
    #[error("`{name}` is {output}, which holds no requests; {}", output.next_step())]
    NoRequests {
        /// The file, as the caller named it.
        name: String,
        /// Kind of the output.
        output: VcrOutput,
    },
    /// The file contains only white space.
    #[error("`{name}` holds no request; give a file with at least one row")]
    Empty {
        /// The file, as the caller named it.
        name: String,
    },
}

impl FormatError {
    /// Adds how the user can state the format.
    #[must_use]
    pub fn with_option(mut self, stated_by: Option<FormatOption>) -> Self {
        if let Self::Unknown { option, .. } | Self::Unclear { option, .. } = &mut self {
            *option = stated_by;
        }
        self
    }
}

fn naming(option: Option<FormatOption>) -> String {
    option.map_or_else(String::new, |option| format!(": name it with `{}`", option.format))
}

fn and_unit(option: Option<FormatOption>) -> String {
    option
        .and_then(|option| option.timestamp_unit)
        .map_or_else(String::new, |unit| format!(", and the unit of timestamps other than the format's with `{unit}`"))
}

/// An error while reading a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be opened or read.
    #[error("cannot read trace `{name}`: {source}")]
    Io {
        /// The file, as the caller named it.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// The format is unclear.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The format is not one of a trace, so [`Trace::open`](crate::Trace::open) cannot read the file.
    #[error("`{name}` has the format {format}, which is not a trace; make a capture of it with `vcr inspect convert`")]
    NotATrace {
        /// The file, as the caller named it.
        name: String,
        /// The format.
        format: Format,
    },
    /// The file contains no request.
    #[error("trace `{name}` holds no request; give a file with at least one row")]
    Empty {
        /// The file, as the caller named it.
        name: String,
    },
    /// A capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Several files were given, but a trace in this format has only one.
    #[error("{files} trace files, but a {format} trace is one file; only dynamo and weka traces may have several")]
    ManyFiles {
        /// Number of files.
        files: usize,
        /// The format.
        format: Format,
    },
    /// No file was given.
    #[error("no trace file is named; name at least one")]
    NoFile,
    /// The format has no arrivals, but the replay needs them.
    #[error("{format} traces do not say when requests arrive; give a concurrency")]
    NeedsClosedLoop {
        /// The format.
        format: Format,
    },
    /// The ratio of shared blocks is invalid.
    #[error("invalid shared-prefix ratio {ratio}: expected 0 to 1")]
    SharedPrefixRatio {
        /// The given ratio.
        ratio: f64,
    },
    /// A row cannot be used.
    #[error("trace `{name}`, line {line}{}: {problem}", in_field(.field))]
    Row {
        /// The file, as the caller named it.
        name: String,
        /// 1-based line.
        line: u32,
        /// The field with the problem; None if the problem concerns the whole row.
        field: Option<&'static str>,
        /// The problem and the next step.
        problem: RowProblem,
    },
}

impl TraceError {
    /// Whether the trace lacks arrivals, which a replay in a closed loop does not need.
    #[must_use]
    pub fn is_without_arrivals(&self) -> bool {
        match self {
            Self::NeedsClosedLoop { .. } => true,
            Self::Row { field, problem: RowProblem::MissingColumn { needed: [time, ..] }, .. } => *field == Some(*time),
            Self::Row { problem, .. } => *problem == RowProblem::MissingFirstTimestamp,
            _ => false,
        }
    }
}

fn in_field(field: &Option<&'static str>) -> String {
    field.map_or_else(String::new, |name| format!(", field `{name}`"))
}

/// A problem of one row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowProblem {
    /// The row is malformed.
    #[error("{0}")]
    Malformed(String),
    /// The row exceeds the reader's buffer.
    #[error("the row is longer than {limit_bytes} bytes; is this a text file with one row a line?")]
    RowTooLong {
        /// Maximum length of a row.
        limit_bytes: u64,
    },
    /// The file has too many items for the 32-bit indices of a trace.
    #[error("a trace cannot hold more than {} {what}; split the file", u32::MAX)]
    TooMany {
        /// The name of the items of which there are too many.
        what: &'static str,
    },
    /// A mandatory field is absent.
    #[error("the field is missing; add it")]
    Missing,
    /// A field is given twice, perhaps once under its alias.
    #[error("the field is given twice (`{alias}` is another name of it); keep one")]
    Duplicate {
        /// The alias, or the field's name if it has none.
        alias: &'static str,
    },
    /// A prompt without tokens.
    #[error("the prompt has no tokens; every request needs at least one")]
    EmptyPrompt,
    /// More prompt tokens than the hash ids cover.
    #[error(
        "{input_tokens} tokens, but {hash_ids} hash ids of {block_size_tokens} tokens cover only \
         {covered_tokens}; correct the row or the trace block size, or read leniently to cut it"
    )]
    InputTooLong {
        /// Number of prompt tokens in the row.
        input_tokens: u64,
        /// Number of hash ids.
        hash_ids: u64,
        /// Number of tokens of a hash id.
        block_size_tokens: u32,
        /// Number of tokens that the ids cover.
        covered_tokens: u64,
    },
    /// More hash ids than the prompt needs; an error only in strict reading.
    #[error("{hash_ids} hash ids, but the prompt has only {used} blocks; remove the surplus")]
    SurplusHashIds {
        /// Number of hash ids.
        hash_ids: u64,
        /// Number of hash ids that the prompt needs.
        used: u64,
    },
    /// A field or column that the format does not define; an error only in strict reading.
    #[error("`{name}` is not a field of this format; remove it, or read less strictly to ignore it")]
    UnknownField {
        /// Name of the field.
        name: Box<str>,
    },
    /// An unknown event; an error only in strict reading.
    #[error("events of type `{name}` are not replayed; remove it, or read less strictly to skip it")]
    UnknownEvent {
        /// Name of the event.
        name: Box<str>,
    },
    /// Another request already has this name.
    #[error("duplicate request `{request_id}`; names of requests must differ")]
    DuplicateRequest {
        /// The name.
        request_id: Box<str>,
    },
    /// No request has this name.
    #[error("unknown request `{request_id}`")]
    UnknownRequest {
        /// The name.
        request_id: Box<str>,
    },
    /// The dependencies of requests form a cycle.
    #[error("requests wait for each other in a circle: {path}")]
    Cycle {
        /// Names of the requests in the cycle.
        path: String,
    },
    /// The block sizes of the trace and of the caller differ.
    #[error("the trace has blocks of {given} tokens, but {expected} were expected; correct the block size")]
    BlockSize {
        /// The block size of the trace.
        given: u32,
        /// The block size of the caller, or of an earlier row.
        expected: u32,
    },
    /// It is unclear whether times of a subagent's requests count from the start of the subagent. An error only in
    /// strict reading.
    #[error(
        "a request of a subagent is before the subagent itself, so nested times seem relative; read nested timestamps as \
         relative, or as absolute"
    )]
    RelativeTimestamps,
    /// The stated length of the recorded output differs from its number of token ids.
    #[error("{given} token ids for an output length of {output_tokens}; they must be equal")]
    OutputLengthMismatch {
        /// Number of token ids.
        given: u64,
        /// The stated length.
        output_tokens: u32,
    },
    /// A multimodal item cannot be used.
    #[error("item {index}, `{field}`: {problem}")]
    Item {
        /// Index of the item in the list.
        index: u64,
        /// The field of the item.
        field: &'static str,
        /// The problem.
        problem: MediaProblem,
    },
    /// The first turn of a session has a delay, but no previous turn.
    #[error("a first turn has nothing to wait for; remove the delay or use the timestamp")]
    DelayOnFirstTurn,
    /// A delay is negative.
    #[error("invalid delay {delay_ms} ms: expected at least 0")]
    NegativeDelay {
        /// The delay in the row.
        delay_ms: String,
    },
    /// A later turn has an earlier timestamp than its previous turn.
    #[error(
        "turn {turn} of its session is stamped earlier than the turn before it; order the \
         session's rows, or give an explicit delay"
    )]
    TurnBackwards {
        /// Number of the turn, from 0.
        turn: u32,
    },
    /// The session has no start time.
    #[error("a first turn needs a timestamp, unless arrivals are ignored (closed loop); add it")]
    MissingFirstTimestamp,
    /// The header lacks a column.
    #[error("the header has no such column; this format has {}", needed.map(|column| format!("`{column}`")).join(", "))]
    MissingColumn {
        /// The columns that the format needs.
        needed: [&'static str; 3],
    },
    /// The request failed in the recording; an error only in strict reading.
    #[error("the request failed when it was recorded: it has no response tokens; remove it, or read less strictly")]
    FailedRequest,
    /// The prompt is a text without a length; an error only in strict reading.
    #[error("the prompt is given as text; state its length with `input_length`, or read less strictly to estimate it")]
    PromptWithoutLength,
    /// The row has more or fewer cells than the header.
    #[error("{given} cells, but the header has {expected}; is the row cut off?")]
    WrongCellCount {
        /// Number of cells of the row.
        given: usize,
        /// Number of cells of the header.
        expected: usize,
    },
    /// An invalid timestamp.
    #[error("`{text}` is not a time such as 2023-11-16 18:15:46.6805900: {cause}")]
    NotATime {
        /// The text.
        text: String,
        /// The time parser's message.
        cause: String,
    },
    /// An invalid time in seconds.
    #[error("`{text}` is not a number of seconds within 292 years of 0")]
    NotSeconds {
        /// The text.
        text: String,
    },
    /// An invalid count.
    #[error("`{text}` is not a whole number from 0 to {}", u32::MAX)]
    NotACount {
        /// The text.
        text: String,
    },
}
