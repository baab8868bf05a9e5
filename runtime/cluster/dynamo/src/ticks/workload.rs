//! Reads the workload file. Every problem names its line and field.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde_json::value::RawValue;

use crate::ticks::fields::{Fields, Text};
use crate::ticks::settings::TickSettings;

/// Maximum size of a workload file.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Maximum number of reported problems of a file.
const MAX_PROBLEMS: usize = 20;
/// Latest arrival. The run's clock then has room for 2^32 ticks of work.
const MAX_ARRIVAL_TICK: u32 = u32::MAX;
/// Maximum priority: it must be negatable.
const MAX_PRIORITY: i64 = i32::MAX as i64;

const REQUEST_FIELDS: &str = "id, prompt_tokens, max_output_tokens, priority and arrival_tick";

/// One request of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickRequest {
    /// Unique name of the request.
    pub id: String,
    /// Prompt tokens, at least 1.
    pub prompt_tokens: u32,
    /// Output tokens, at least 1.
    pub max_output_tokens: u32,
    /// Priority; higher values are tried first.
    pub priority: i32,
    /// The tick at whose start the request begins to wait.
    pub arrival_tick: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// The settings in the file.
    pub settings: TickSettings,
    /// Requests in order of arrival; requests that arrive together are ordered by id.
    pub requests: Vec<TickRequest>,
}

/// The reason why a workload cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    #[error("cannot read `{file}`: {source}")]
    Read {
        file: String,
        /// The operating system's error.
        source: io::Error,
    },
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
}

impl Workload {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, WorkloadError> {
        let file = path.display().to_string();
        match vcr_base::input::read_text(path, MAX_FILE_BYTES) {
            Ok(text) => Self::parse(&file, &text),
            Err(source) => Err(WorkloadError::Read { file, source }),
        }
    }

    /// Parses the text of the file named `file`.
    pub fn parse(file: &str, text: &str) -> Result<Self, WorkloadError> {
        let mut reader = Reader { file, text: Text::new(text), problems: Vec::new() };
        let workload = reader.workload();
        let mut problems = reader.problems;
        if problems.is_empty() {
            return Ok(workload);
        }
        if let Some(more) = problems.len().checked_sub(MAX_PROBLEMS).filter(|more| *more > 0) {
            problems.truncate(MAX_PROBLEMS);
            problems.push(format!("`{file}`: {more} further problems"));
        }
        Err(WorkloadError::Invalid(problems))
    }
}

struct Reader<'a> {
    file: &'a str,
    text: Text<'a>,
    problems: Vec<String>,
}

impl<'a> Reader<'a> {
    fn problem(&mut self, line: usize, what: &str, text: &str) {
        self.problems.push(format!("invalid `{}`, line {line}, {what}: {text}", self.file));
    }

    /// The fields of an object. None if the value is not an object, or names a field twice.
    fn fields(&mut self, raw: &'a str, what: &str) -> Option<Vec<(String, &'a RawValue)>> {
        let line = self.text.line_of(raw);
        match serde_json::from_str::<Fields<'a>>(raw) {
            Ok(Fields(fields)) => {
                let mut seen = BTreeMap::new();
                for (name, value) in &fields {
                    if let Some(first) = seen.insert(name.as_str(), self.text.line_of(value.get())) {
                        let line = self.text.line_of(value.get());
                        self.problem(
                            line,
                            &format!("{what} `{name}`"),
                            &format!("expected it once; it is on line {first}, too"),
                        );
                    }
                }
                Some(fields)
            }
            Err(error) => {
                let at = line + error.line().saturating_sub(1);
                self.problem(at, what, &format!("expected a JSON object: {}", reason_of(&error)));
                None
            }
        }
    }

    fn workload(&mut self) -> Workload {
        let mut workload = Workload::default();
        let Some(fields) = self.fields(self.text.text.trim_start(), "the workload") else { return workload };
        let mut has_requests = false;
        for (name, raw) in fields {
            match name.as_str() {
                "config" => workload.settings = self.settings(raw),
                "requests" => {
                    has_requests = true;
                    workload.requests = self.requests(raw);
                }
                // Other keys may describe the workload, such as its origin.
                _ => {}
            }
        }
        if !has_requests {
            self.problem(1, "`requests`", "expected an array of requests, but it is missing");
        }
        workload.requests.sort_by(|one, other| (one.arrival_tick, &one.id).cmp(&(other.arrival_tick, &other.id)));
        workload
    }

    fn settings(&mut self, raw: &'a RawValue) -> TickSettings {
        let mut settings = TickSettings::default();
        for (name, value) in self.fields(raw.get(), "`config`").unwrap_or_default() {
            let place = format!("config `{name}`");
            let Some(setting) = settings.named(&name) else {
                let known = TickSettings::NAMES.join(", ");
                self.problem(self.text.line_of(value.get()), &place, &format!("unknown setting: expected {known}"));
                continue;
            };
            *setting = self.integer(value, &place, 1, i64::from(u32::MAX)).map(|number| number as u32);
        }
        settings
    }

    fn requests(&mut self, raw: &'a RawValue) -> Vec<TickRequest> {
        let items: Vec<&'a RawValue> = match serde_json::from_str(raw.get()) {
            Ok(items) => items,
            Err(error) => {
                self.problem(
                    self.text.line_of(raw.get()),
                    "`requests`",
                    &format!("expected an array: {}", reason_of(&error)),
                );
                return Vec::new();
            }
        };
        if items.is_empty() {
            self.problem(self.text.line_of(raw.get()), "`requests`", "expected at least one request");
        }
        let mut lines: BTreeMap<String, usize> = BTreeMap::new();
        let mut requests = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            let Some(request) = self.request(index, item) else { continue };
            let line = self.text.line_of(item.get());
            if let Some(first) = lines.insert(request.id.clone(), line) {
                let text = format!("expected a unique id; `{}` is the request on line {first}, too", request.id);
                self.problem(line, &format!("requests[{index}] `id`"), &text);
            }
            requests.push(request);
        }
        requests
    }

    fn request(&mut self, index: usize, raw: &'a RawValue) -> Option<TickRequest> {
        let place = format!("requests[{index}]");
        let problems = self.problems.len();
        let mut fields = self.fields(raw.get(), &place)?;
        let mut take = |name: &str| {
            let value = fields.iter().find(|(own, _)| own == name)?.1;
            // A problem was already added for repeated fields.
            fields.retain(|(own, _)| own != name);
            Some(value)
        };
        let given = ["id", "prompt_tokens", "max_output_tokens", "priority", "arrival_tick"].map(&mut take);
        let [id, prompt, output, priority, arrival] = given;
        for (name, value) in &fields {
            let line = self.text.line_of(value.get());
            self.problem(line, &format!("{place} `{name}`"), &format!("unknown field: expected {REQUEST_FIELDS}"));
        }
        let line = self.text.line_of(raw.get());
        let most = i64::from(u32::MAX);
        let id = self.id(id, &place, line);
        let prompt_tokens = self.needed(prompt, &format!("{place} `prompt_tokens`"), line, 1, most);
        let max_output_tokens = self.needed(output, &format!("{place} `max_output_tokens`"), line, 1, most);
        let priority = match priority {
            Some(raw) => self.integer(raw, &format!("{place} `priority`"), -MAX_PRIORITY, MAX_PRIORITY),
            None => Some(0),
        };
        let arrival_tick = match arrival {
            Some(raw) => self.integer(raw, &format!("{place} `arrival_tick`"), 0, i64::from(MAX_ARRIVAL_TICK)),
            None => Some(0),
        };
        if self.problems.len() > problems {
            return None;
        }
        Some(TickRequest {
            id: id?,
            prompt_tokens: prompt_tokens? as u32,
            max_output_tokens: max_output_tokens? as u32,
            priority: priority? as i32,
            arrival_tick: arrival_tick? as u32,
        })
    }

    fn id(&mut self, raw: Option<&'a RawValue>, place: &str, line: usize) -> Option<String> {
        let place = format!("{place} `id`");
        let Some(raw) = raw else {
            self.problem(line, &place, "expected a text, but it is missing");
            return None;
        };
        match serde_json::from_str::<String>(raw.get()) {
            Ok(id) if !id.is_empty() => Some(id),
            _ => {
                let got = shortened(raw.get());
                self.problem(
                    self.text.line_of(raw.get()),
                    &place,
                    &format!("expected a text with a character, got {got}"),
                );
                None
            }
        }
    }

    fn needed(&mut self, raw: Option<&'a RawValue>, place: &str, line: usize, least: i64, most: i64) -> Option<i64> {
        match raw {
            Some(raw) => self.integer(raw, place, least, most),
            None => {
                self.problem(line, place, &format!("expected an integer from {least} to {most}, but it is missing"));
                None
            }
        }
    }

    fn integer(&mut self, raw: &'a RawValue, place: &str, least: i64, most: i64) -> Option<i64> {
        let number = serde_json::from_str::<i64>(raw.get()).ok().filter(|number| (least..=most).contains(number));
        if number.is_none() {
            let text = format!("expected an integer from {least} to {most}, got {}", shortened(raw.get()));
            self.problem(self.text.line_of(raw.get()), place, &text);
        }
        number
    }
}

/// The reason without a position, which would be relative to a part of the file.
fn reason_of(error: &serde_json::Error) -> String {
    error.to_string().split(" at line ").next().unwrap_or_default().to_owned()
}

/// The beginning of a value, for errors.
fn shortened(text: &str) -> String {
    const MOST: usize = 40;
    let line: String = text.chars().take(MOST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MOST).is_some() { format!("{line}...") } else { line }
}
