//! Reads one document of a corpus: a play in the recorder's format.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use vcr_base::input::MAX_LINE_BYTES;

use crate::RowProblem;
use crate::assemble::FieldProblem;
use crate::lines::{LineError, Lines};

/// Maximum number of requests of a play. It is limited because streams are compared pairwise.
const MAX_REQUESTS: usize = 32_768;
/// The longest time that a trace can contain: 285 years.
const MAX_SECONDS: f64 = 9e9;

type Others = BTreeMap<String, IgnoredAny>;

#[derive(Deserialize)]
pub(super) struct Document {
    pub(super) id: Box<str>,
    pub(super) block_size: NonZeroU32,
    hash_id_scope: Box<str>,
    pub(super) requests: Vec<Entry>,
    // These fields have no effect on a replay.
    #[serde(default, rename = "models")]
    _models: IgnoredAny,
    #[serde(default, rename = "tool_tokens")]
    _tool_tokens: IgnoredAny,
    #[serde(default, rename = "system_tokens")]
    _system_tokens: IgnoredAny,
    #[serde(default, rename = "totals")]
    _totals: IgnoredAny,
    #[serde(flatten)]
    pub(super) others: Others,
}

/// A request to the model, or a subagent with its own requests.
#[derive(Deserialize)]
pub(super) struct Entry {
    #[serde(rename = "type")]
    kind: Kind,
    /// Time of the start, in seconds.
    pub(super) t: f64,
    model: Option<Box<str>>,
    #[serde(rename = "in")]
    input: Option<u32>,
    #[serde(rename = "out")]
    output: Option<u32>,
    #[serde(default)]
    pub(super) hash_ids: Vec<u64>,
    /// Duration in seconds.
    pub(super) api_time: Option<f64>,
    agent_id: Option<Box<str>>,
    status: Option<Box<str>>,
    duration_ms: Option<i64>,
    pub(super) requests: Option<Vec<Entry>>,
    // These fields have no effect on a replay.
    #[serde(default, rename = "input_types")]
    _input_types: IgnoredAny,
    #[serde(default, rename = "output_types")]
    _output_types: IgnoredAny,
    #[serde(default, rename = "stop")]
    _stop: IgnoredAny,
    #[serde(default, rename = "think_time")]
    _think_time: IgnoredAny,
    #[serde(default, rename = "ttft")]
    _ttft: IgnoredAny,
    #[serde(default, rename = "subagent_type")]
    _subagent_type: IgnoredAny,
    #[serde(default, rename = "total_tokens")]
    _total_tokens: IgnoredAny,
    #[serde(default, rename = "tool_use_count")]
    _tool_use_count: IgnoredAny,
    #[serde(default, rename = "models")]
    _models: IgnoredAny,
    #[serde(default, rename = "tool_tokens")]
    _tool_tokens: IgnoredAny,
    #[serde(default, rename = "system_tokens")]
    _system_tokens: IgnoredAny,
    #[serde(flatten)]
    pub(super) others: Others,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Kind {
    /// A request whose answer came at once or as a stream.
    #[serde(rename = "n", alias = "s")]
    Request,
    #[serde(rename = "subagent")]
    Subagent,
}

/// An error in a document: (number of lines below the document's first line, problem).
pub(super) type Misread = (u32, FieldProblem);

impl Document {
    pub(super) fn read(text: &[u8]) -> Result<Self, Misread> {
        let mut decoder = serde_json::Deserializer::from_slice(text);
        let document: Self = serde_path_to_error::deserialize(&mut decoder).map_err(|error| {
            let place = error.path().to_string();
            let (below, cause) = located(error.inner());
            let text = if place == "." { cause } else { format!("{place}: {cause}") };
            (below, (field_of(&place), RowProblem::Malformed(text)))
        })?;
        decoder.end().map_err(|error| {
            let (below, cause) = located(&error);
            (below, (None, RowProblem::Malformed(cause)))
        })?;
        document.check().map_err(|problem| (0, problem))?;
        Ok(document)
    }

    fn check(&self) -> Result<(), FieldProblem> {
        let wrong = |field, text: String| Err((Some(field), RowProblem::Malformed(text)));
        if self.id.trim().is_empty() {
            return wrong("id", "is empty; a play needs a name".to_owned());
        }
        if &*self.hash_id_scope != "local" {
            let text = format!("`{}` is not a scope of these traces; there is `local`", self.hash_id_scope);
            return wrong("hash_id_scope", text);
        }
        let mut num_requests = 0;
        for (index, entry) in self.requests.iter().enumerate() {
            let place = format!("requests[{index}]");
            entry.check(&place)?;
            let Some(inner) = entry.subagent_requests() else {
                num_requests += 1;
                continue;
            };
            if num_requests == 0 {
                return wrong("requests", format!("{place}: no request is before this subagent, so none starts it"));
            }
            for (index, entry) in inner.iter().enumerate() {
                let place = format!("{place}.requests[{index}]");
                if entry.kind == Kind::Subagent {
                    return wrong("requests", format!("{place}: a subagent starts no other; move it up"));
                }
                entry.check(&place)?;
            }
        }
        if num_requests == 0 {
            return wrong("requests", "there is none; a play needs at least one".to_owned());
        }
        let all: usize =
            num_requests + self.requests.iter().filter_map(Entry::subagent_requests).map(<[_]>::len).sum::<usize>();
        if all > MAX_REQUESTS {
            return wrong("requests", format!("{all} requests in one play; at most {MAX_REQUESTS} are read"));
        }
        Ok(())
    }
}

impl Entry {
    pub(super) fn subagent_requests(&self) -> Option<&[Entry]> {
        (self.kind == Kind::Subagent).then(|| self.requests.as_deref().unwrap_or_default())
    }

    /// The numbers of prompt and output tokens of a checked request.
    pub(super) fn lengths(&self) -> [u32; 2] {
        [self.input.unwrap_or(0), self.output.unwrap_or(0)]
    }

    pub(super) fn model(&self) -> &str {
        self.model.as_deref().unwrap_or("")
    }

    pub(super) fn agent_id(&self) -> &str {
        self.agent_id.as_deref().unwrap_or("")
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.status.as_deref() == Some("completed")
    }

    pub(super) fn duration_s(&self) -> Option<f64> {
        self.duration_ms.map(|duration_ms| duration_ms as f64 / 1e3)
    }

    /// Checks an entry whose path in the document is `place`.
    fn check(&self, place: &str) -> Result<(), FieldProblem> {
        let wrong = |text: String| Err((Some("requests"), RowProblem::Malformed(format!("{place}.{text}"))));
        let is_time = |seconds: f64| (0.0..=MAX_SECONDS).contains(&seconds);
        if !is_time(self.t) {
            return wrong(format!("t: invalid time {} s: expected at least 0 and below 285 years", self.t));
        }
        if self.kind == Kind::Request {
            let missing =
                [("model", self.model.is_none()), ("in", self.input.is_none()), ("out", self.output.is_none())];
            if let Some((name, _)) = missing.iter().find(|(_, is_missing)| *is_missing) {
                return wrong(format!("{name}: {}", RowProblem::Missing));
            }
            if self.model().trim().is_empty() {
                return wrong("model: is empty; a request needs one".to_owned());
            }
            if self.input == Some(0) {
                return wrong(format!("in: {}", RowProblem::EmptyPrompt));
            }
            return match self.api_time {
                Some(seconds) if !is_time(seconds) => {
                    wrong(format!("api_time: invalid time {seconds} s: expected at least 0 and below 285 years"))
                }
                _ => Ok(()),
            };
        }
        if self.agent_id().trim().is_empty() {
            return wrong("agent_id: is missing or empty; a subagent needs a name".to_owned());
        }
        if self.duration_ms.is_some_and(|duration_ms| duration_ms < 0) {
            return wrong("duration_ms: is negative; expected at least 0".to_owned());
        }
        match self.status.as_deref() {
            Some("async_launched") => Ok(()),
            Some("completed") if self.requests.as_ref().is_some_and(|requests| !requests.is_empty()) => Ok(()),
            Some("completed") => {
                wrong("requests: is empty, so nothing says how long its caller waits; remove the subagent".to_owned())
            }
            Some(other) => {
                wrong(format!("status: `{other}` is not replayed; expected `completed` or `async_launched`"))
            }
            None => wrong(format!("status: {}", RowProblem::Missing)),
        }
    }
}

/// The number of lines below the first on which a decoder failed, and the message with the column.
fn located(error: &serde_json::Error) -> (u32, String) {
    let below = u32::try_from(error.line().saturating_sub(1)).unwrap_or(u32::MAX);
    (below, crate::lines::describe(error))
}

fn field_of(path: &str) -> Option<&'static str> {
    const FIELDS: [&str; 4] = ["id", "block_size", "hash_id_scope", "requests"];
    FIELDS
        .into_iter()
        .find(|field| path == *field || path.strip_prefix(field).is_some_and(|rest| rest.starts_with('[')))
}

pub(super) struct Documents<R> {
    lines: Lines<R>,
    text: Vec<u8>,
}

impl<R: BufRead> Documents<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { lines: Lines::new(reader), text: Vec::new() }
    }

    /// Returns the next document and the number of its first line, from 1. `None` at the end. A document that is
    /// cut off, or is not an object, is returned up to its end.
    pub(super) fn next(&mut self) -> Result<Option<(u32, &[u8])>, LineError> {
        self.text.clear();
        let mut nesting = Nesting::default();
        let (mut first_line, mut last_line) = (0, 0);
        while let Some((line, row)) = self.lines.next_row()? {
            if self.text.is_empty() {
                first_line = line;
            } else {
                // Blank lines were skipped, but the decoder must count them.
                self.text.extend(std::iter::repeat_n(b'\n', (line - last_line - 1) as usize));
            }
            last_line = line;
            if (self.text.len() + row.len()) as u64 > MAX_LINE_BYTES {
                return Err(LineError::TooLong { line: first_line });
            }
            self.text.extend_from_slice(row);
            nesting.follow(row);
            if nesting.depth == 0 {
                break;
            }
        }
        Ok((!self.text.is_empty()).then_some((first_line, &self.text)))
    }
}

/// Depth of nested objects and lists at a position in a document.
#[derive(Default)]
struct Nesting {
    depth: u64,
    in_string: bool,
    is_escaped: bool,
}

impl Nesting {
    fn follow(&mut self, text: &[u8]) {
        for byte in text {
            if std::mem::take(&mut self.is_escaped) {
                continue;
            }
            match byte {
                b'\\' => self.is_escaped = self.in_string,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }
}

const MAX_DEPTH: u32 = 16;

/// Lists the JSON files of a folder and its sub-folders, packed or plain, sorted by name.
pub(crate) fn corpus_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    add(folder, MAX_DEPTH, &mut found)?;
    found.sort();
    Ok(found)
}

fn add(folder: &Path, depth: u32, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        // Links are not followed, because a link to a folder could lead back to it.
        if entry.file_type()?.is_dir() {
            if depth > 0 {
                add(&path, depth - 1, found)?;
            }
        } else if is_json(&path) && path.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

fn is_json(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    let stem = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    let suffix = Path::new(stem).extension().and_then(|suffix| suffix.to_str());
    suffix.is_some_and(|suffix| ["json", "jsonl"].iter().any(|known| suffix.eq_ignore_ascii_case(known)))
}
