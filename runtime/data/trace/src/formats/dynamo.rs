//! Reads Dynamo's log of requests, `dynamo.request.trace.v1`, in one or more files.
//!
//! Requests are sorted by time across all files. Without agent contexts, each request is its own session. With
//! agent contexts, a turn follows the end of the previous turn. The first turn of a child session follows the start
//! of the request that spawned the child, and the request that used the child's result follows the child's last
//! end. A tool's end names these two requests; without it, their times identify them. Each request waits as long as
//! in the log.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::num::NonZeroU32;

use hashbrown::HashMap;
use serde::Deserialize;

use crate::assemble::{Assembler, FieldProblem, Row};
use crate::lines::{Lines, describe};
use crate::{Dependency, RowProblem, Trace, TraceError, TraceOptions, Trigger, WarningKind};

const SCHEMA: &str = "dynamo.request.trace.v1";
const NS_PER_MS: u64 = 1_000_000;

#[derive(Deserialize)]
struct Event {
    schema: Option<Box<str>>,
    event_type: Option<Box<str>>,
    event_time_unix_ms: Option<u64>,
    agent_context: Option<AgentContext>,
    request: Option<Request>,
    tool: Option<Tool>,
    /// Some sinks put the event into another object.
    event: Option<Box<Event>>,
}

#[derive(Deserialize)]
struct AgentContext {
    session_id: Box<str>,
    parent_session_id: Option<Box<str>>,
}

#[derive(Deserialize)]
struct Request {
    request_id: Box<str>,
    output_tokens: Option<u32>,
    request_received_ms: Option<u64>,
    total_time_ms: Option<f64>,
    replay: Option<Replay>,
}

#[derive(Deserialize)]
struct Replay {
    trace_block_size: NonZeroU32,
    input_length: u32,
    input_sequence_hashes: Vec<u64>,
}

#[derive(Deserialize)]
struct Tool {
    claude: Option<ToolLinks>,
}

#[derive(Deserialize)]
struct ToolLinks {
    source_request_id: Box<str>,
    consumer_request_id: Option<Box<str>>,
    child_session_id: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    shard: u32,
    line: u32,
}

type Misplaced = (Place, FieldProblem);

/// A request of the log. `Log::ids` contains its hash ids.
struct LoggedRequest {
    place: Place,
    request_id: Box<str>,
    context: Option<AgentContext>,
    start_ms: u64,
    end_ms: u64,
    input_tokens: u32,
    output_tokens: u32,
    ids: std::ops::Range<usize>,
}

struct LoggedTool {
    place: Place,
    session_id: Box<str>,
    links: ToolLinks,
}

#[derive(Default)]
struct Log {
    requests: Vec<LoggedRequest>,
    ids: Vec<u64>,
    tools: Vec<LoggedTool>,
    block_size_tokens: Option<NonZeroU32>,
    unknown_events: Vec<(Box<str>, Place)>,
}

pub(crate) struct DynamoReader {
    options: TraceOptions,
    names: Vec<String>,
    log: Log,
}

impl DynamoReader {
    pub(crate) fn new(options: &TraceOptions) -> Self {
        DynamoReader { options: options.clone(), names: Vec::new(), log: Log::default() }
    }

    pub(crate) fn add(&mut self, reader: impl BufRead, name: &str) -> Result<(), TraceError> {
        let shard = self.names.len() as u32;
        self.names.push(name.to_owned());
        let mut lines = Lines::new(reader);
        while let Some((line, bytes)) = lines.next_row().map_err(|error| error.of(name))? {
            let place = Place { shard, line };
            let added = self.log.add(bytes, place, self.options.block_size_tokens);
            added.map_err(|problem| self.at((place, problem)))?;
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Trace, TraceError> {
        let all_names = self.names.join("`, `");
        self.log
            .requests
            .sort_by(|a, b| (a.start_ms, a.end_ms, &a.request_id).cmp(&(b.start_ms, b.end_ms, &b.request_id)));
        let by_name = self.log.by_name().map_err(|problem| self.at(problem))?;
        let edges = edges(&self.log, &by_name).map_err(|problem| self.at(problem))?;
        let mut options = self.options.clone();
        options.block_size_tokens = self.log.block_size_tokens;
        let mut assembler = Assembler::new(&options).with_free_turns();
        for (name, place) in &self.log.unknown_events {
            let problem = || (Some("event_type"), RowProblem::UnknownEvent { name: name.clone() });
            let warned = assembler.warn(WarningKind::UnknownEvent(name.clone()), place.line, problem);
            warned.map_err(|problem| self.at((*place, problem)))?;
        }
        let mut waits = vec![false; self.log.requests.len()];
        for (request, _) in &edges {
            waits[*request as usize] = true;
        }
        for (request, waits) in self.log.requests.iter().zip(waits) {
            let row = self.log.row(request, waits);
            let pushed = row.and_then(|row| assembler.push(request.place.line, row));
            pushed.map_err(|(field, problem)| self.at((request.place, (field.map(name_in_logs), problem))))?;
        }
        assembler.attach(edges).map_err(|(request, problem)| {
            let place = self.log.requests[request as usize].place;
            self.at((place, (None, problem)))
        })?;
        assembler.finish(&all_names)
    }

    fn at(&self, (place, (field, problem)): Misplaced) -> TraceError {
        TraceError::Row { name: self.names[place.shard as usize].clone(), line: place.line, field, problem }
    }
}

impl Log {
    fn add(&mut self, row: &[u8], place: Place, expected: Option<NonZeroU32>) -> Result<(), FieldProblem> {
        let mut event: Event = decode(row)?;
        if let Some(inner) = event.event.take() {
            event = *inner;
        }
        let Some(event_type) = event.event_type.take() else {
            return Err((Some("event_type"), RowProblem::Missing));
        };
        match &*event_type {
            // These events are texts of requests, and tool calls that have not ended.
            "request_payload" | "tool_start" => return Ok(()),
            "request_end" | "tool_end" | "tool_error" => {}
            _ => {
                self.unknown_events.push((event_type, place));
                return Ok(());
            }
        }
        match event.schema.as_deref() {
            Some(SCHEMA) => {}
            None => return Err((Some("schema"), RowProblem::Missing)),
            Some(other) => {
                let text = format!("`{other}` is another schema than {SCHEMA}");
                return Err((Some("schema"), RowProblem::Malformed(text)));
            }
        }
        if &*event_type == "request_end" {
            self.add_request(event, place, expected)
        } else {
            self.add_tool(event, place)
        }
    }

    fn add_request(&mut self, event: Event, place: Place, expected: Option<NonZeroU32>) -> Result<(), FieldProblem> {
        let missing = |field| (Some(field), RowProblem::Missing);
        let request = event.request.ok_or(missing("request"))?;
        let replay = request.replay.ok_or(missing("request.replay"))?;
        let block_size = replay.trace_block_size;
        let expected = *self.block_size_tokens.get_or_insert(expected.unwrap_or(block_size));
        if block_size != expected {
            let problem = RowProblem::BlockSize { given: block_size.get(), expected: expected.get() };
            return Err((Some("request.replay.trace_block_size"), problem));
        }
        let (hashes, blocks) = (replay.input_sequence_hashes, replay.input_length.div_ceil(block_size.get()));
        if hashes.len() != blocks as usize {
            let text = format!(
                "{} hashes for {} tokens in blocks of {block_size}; there must be {blocks}",
                hashes.len(),
                replay.input_length
            );
            return Err((Some("request.replay.input_sequence_hashes"), RowProblem::Malformed(text)));
        }
        let start_ms = request.request_received_ms.ok_or(missing("request.request_received_ms"))?;
        let end_ms = match request.total_time_ms {
            None => event.event_time_unix_ms.ok_or(missing("event_time_unix_ms"))?,
            Some(time_ms) if (0.0..1e15).contains(&time_ms) => start_ms.saturating_add(time_ms.round() as u64),
            Some(time_ms) => {
                let text = format!("invalid duration {time_ms} ms: expected at least 0");
                return Err((Some("request.total_time_ms"), RowProblem::Malformed(text)));
            }
        };
        let ids_start = self.ids.len();
        self.ids.extend_from_slice(&hashes);
        self.requests.push(LoggedRequest {
            place,
            request_id: request.request_id,
            context: event.agent_context,
            start_ms,
            end_ms: end_ms.max(start_ms),
            input_tokens: replay.input_length,
            output_tokens: request.output_tokens.ok_or(missing("request.output_tokens"))?,
            ids: ids_start..self.ids.len(),
        });
        Ok(())
    }

    fn add_tool(&mut self, event: Event, place: Place) -> Result<(), FieldProblem> {
        if let (Some(context), Some(Tool { claude: Some(links) })) = (event.agent_context, event.tool) {
            self.tools.push(LoggedTool { place, session_id: context.session_id, links });
        }
        Ok(())
    }

    fn by_name(&self) -> Result<HashMap<&str, u32>, Misplaced> {
        let mut by_name = HashMap::with_capacity(self.requests.len());
        for (index, request) in self.requests.iter().enumerate() {
            if by_name.insert(&*request.request_id, index as u32).is_some() {
                let request_id = request.request_id.clone();
                let problem = RowProblem::DuplicateRequest { request_id };
                return Err((request.place, (Some("request.request_id"), problem)));
            }
        }
        Ok(by_name)
    }

    fn row(&self, request: &LoggedRequest, waits: bool) -> Result<Row<'_>, FieldProblem> {
        let since_epoch_ns = request.start_ms.checked_mul(NS_PER_MS).and_then(|ns| i64::try_from(ns).ok());
        let timestamp_ns = since_epoch_ns.ok_or_else(|| {
            let text = format!("{} ms is beyond 292 years", request.start_ms);
            (Some("request.request_received_ms"), RowProblem::Malformed(text))
        })?;
        Ok(Row {
            request_id: Some(request.request_id.clone()),
            session_id: request.context.as_ref().map(|context| context.session_id.clone()),
            input_tokens: request.input_tokens,
            output_tokens: request.output_tokens,
            hash_ids: &self.ids[request.ids.clone()],
            timestamp_ns: (!waits).then_some(timestamp_ns),
            ..Row::default()
        })
    }
}

fn decode(row: &[u8]) -> Result<Event, FieldProblem> {
    let mut decoder = serde_json::Deserializer::from_slice(row);
    let event = serde_path_to_error::deserialize(&mut decoder).map_err(|error| {
        let place = error.path().to_string();
        let text = describe(error.inner());
        // `.` stands for the row itself.
        (None, RowProblem::Malformed(if place == "." { text } else { format!("field `{place}`: {text}") }))
    })?;
    decoder.end().map_err(|error| (None, RowProblem::Malformed(describe(&error))))?;
    Ok(event)
}

fn name_in_logs(field: &'static str) -> &'static str {
    match field {
        "input_length" => "request.replay.input_length",
        other => other,
    }
}

#[cfg(test)]
mod tests;

/// The sessions of a log: the requests of each session in order of time, and the parent of each child session.
struct Sessions<'a> {
    by_name: BTreeMap<&'a str, Vec<u32>>,
    parents: BTreeMap<&'a str, &'a str>,
}

/// The dependencies of requests, by their indices in order of time.
fn edges(log: &Log, by_name: &HashMap<&str, u32>) -> Result<Vec<(u32, Dependency)>, Misplaced> {
    let Some(sessions) = sessions(log)? else { return Ok(Vec::new()) };
    let mut edges = Edges { log, edges: Vec::new() };
    for turns in sessions.by_name.values() {
        for pair in turns.windows(2) {
            edges.push(pair[1], pair[0], Trigger::Completion);
        }
    }
    let tools = tools_by_child(log, by_name, &sessions)?;
    for (child, parent) in &sessions.parents {
        // The log may begin after the parent ended.
        let Some(parents) = sessions.by_name.get(parent) else { continue };
        let children = &sessions.by_name[child];
        let first_child = children[0];
        let end_ms = |index: u32| log.requests[index as usize].end_ms;
        let start_ms = |index: u32| log.requests[index as usize].start_ms;
        // Among equal ends, the last one counts.
        let last_child = children.iter().copied().max_by_key(|index| end_ms(*index)).unwrap_or(first_child);
        let (caller, taker) = match tools.get(child) {
            Some(tool) => {
                let taker = tool.links.consumer_request_id.as_deref().map(|name| by_name[name]);
                (Some(by_name[&*tool.links.source_request_id]), taker)
            }
            None => (
                parents.iter().copied().rfind(|index| start_ms(*index) <= start_ms(first_child)),
                parents.iter().copied().find(|index| start_ms(*index) >= end_ms(last_child)),
            ),
        };
        if let Some(caller) = caller {
            edges.push(first_child, caller, Trigger::Dispatch);
        }
        if let Some(taker) = taker {
            edges.push(taker, last_child, Trigger::Completion);
        }
    }
    Ok(edges.edges)
}

/// The sessions; None if the log has no agent contexts.
fn sessions(log: &Log) -> Result<Option<Sessions<'_>>, Misplaced> {
    let with_context = log.requests.iter().filter(|request| request.context.is_some()).count();
    if with_context == 0 {
        return Ok(None);
    }
    let mut sessions = Sessions { by_name: BTreeMap::new(), parents: BTreeMap::new() };
    for (index, request) in log.requests.iter().enumerate() {
        let Some(context) = &request.context else {
            let text = "the field is missing, but other requests have it; all or none must".to_owned();
            return Err((request.place, (Some("agent_context"), RowProblem::Malformed(text))));
        };
        sessions.by_name.entry(&context.session_id).or_default().push(index as u32);
        let Some(parent) = &context.parent_session_id else { continue };
        let known = sessions.parents.insert(&context.session_id, parent);
        if let Some(known) = known.filter(|known| **known != **parent) {
            let text = format!("session `{}` has two parents, `{known}` and `{parent}`", context.session_id);
            return Err((request.place, (Some("agent_context.parent_session_id"), RowProblem::Malformed(text))));
        }
    }
    Ok(Some(sessions))
}

/// Checks the tool calls. Returns those that started a child session, by the child's name.
fn tools_by_child<'a>(
    log: &'a Log,
    by_name: &HashMap<&str, u32>,
    sessions: &Sessions<'_>,
) -> Result<BTreeMap<&'a str, &'a LoggedTool>, Misplaced> {
    let mut by_child: BTreeMap<&str, &LoggedTool> = BTreeMap::new();
    for tool in &log.tools {
        let named = [
            ("tool.claude.source_request_id", Some(&tool.links.source_request_id)),
            ("tool.claude.consumer_request_id", tool.links.consumer_request_id.as_ref()),
        ];
        for (field, name) in named {
            let Some(name) = name else { continue };
            let Some(index) = by_name.get(&**name) else {
                let problem = RowProblem::UnknownRequest { request_id: name.clone() };
                return Err((tool.place, (Some(field), problem)));
            };
            let session = log.requests[*index as usize].context.as_ref().map(|context| &context.session_id);
            if session != Some(&tool.session_id) {
                let text = format!("request `{name}` is not of session `{}`, which called the tool", tool.session_id);
                return Err((tool.place, (Some(field), RowProblem::Malformed(text))));
            }
        }
        let Some(child) = &tool.links.child_session_id else { continue };
        if sessions.parents.contains_key(&**child) && by_child.insert(child, tool).is_some() {
            let text = format!("an earlier tool call has started session `{child}`");
            return Err((tool.place, (Some("tool.claude.child_session_id"), RowProblem::Malformed(text))));
        }
    }
    Ok(by_child)
}

struct Edges<'a> {
    log: &'a Log,
    edges: Vec<(u32, Dependency)>,
}

impl Edges<'_> {
    /// Makes `request` wait for `other` as long as in the log.
    fn push(&mut self, request: u32, other: u32, trigger: Trigger) {
        let [waiting, awaited] = [request, other].map(|index| &self.log.requests[index as usize]);
        let from_ms = match trigger {
            Trigger::Dispatch => awaited.start_ms,
            Trigger::Completion => awaited.end_ms,
        };
        let delay_ns = waiting.start_ms.saturating_sub(from_ms).saturating_mul(NS_PER_MS);
        self.edges.push((request, Dependency { request: other, trigger, delay_ns }));
    }
}
