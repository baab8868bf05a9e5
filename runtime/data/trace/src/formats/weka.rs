//! Reads Weka and AgentX corpora: recorded plays of coding agents, one JSON document each.
//!
//! A play is a list of requests and of subagents, which have their own requests. A play does not state which
//! request waited for which. Conversations are found by shared parts of prompts (`streams.rs`), waits by the
//! recorded times (`graph.rs`). The rules are those of Dynamo's replay. Plays are independent of each other, and
//! their times start at 0.

mod document;
mod graph;
mod streams;

use std::collections::HashSet;
use std::io::BufRead;
use std::ops::Range;

pub(crate) use document::corpus_files;
use document::{Document, Documents, Entry};
use graph::{Join, Recorded, Stream, ns_of};
use streams::{SLACK_S, Seen};

use crate::assemble::{Assembler, FieldProblem, Row};
use crate::format::{HashIdScope, NestedTimestamps};
use crate::trace::hash_ids::HashIdRange;
use crate::{Dependency, RowProblem, Trace, TraceError, TraceOptions, WarningKind};

/// Maximum number of blocks of a prompt without ids; each block gets a new id.
const MAX_OWN_BLOCKS: u32 = 1 << 20;

/// A request of a play, with the times in the document.
struct Call {
    start_s: f64,
    taken_s: Option<f64>,
    input_tokens: u32,
    output_tokens: u32,
    ids: HashIdRange,
}

/// A subagent. Subagents are numbered from 1 in the play; a stream states this number as its agent.
struct Subagent {
    name: Box<str>,
    start_s: f64,
    duration_s: Option<f64>,
    is_awaited: bool,
    calls: Range<u32>,
    /// The play's latest request before the subagent.
    caller: u32,
}

struct Play {
    file: u32,
    line: u32,
    name: Box<str>,
    calls: Vec<Call>,
    subagents: Vec<Subagent>,
    streams: Vec<Stream>,
}

pub(crate) struct WekaReader {
    options: TraceOptions,
    names: Vec<String>,
    assembler: Option<Assembler>,
    plays: Vec<Play>,
    play_names: HashSet<Box<str>>,
    /// Number of streams so far. It numbers the scopes of ids that belong to one stream.
    num_streams: u64,
    /// File and line of the first play in which a request precedes its subagent.
    relative: Option<(u32, u32)>,
}

impl WekaReader {
    pub(crate) fn new(options: &TraceOptions) -> Self {
        Self {
            options: options.clone(),
            names: Vec::new(),
            assembler: None,
            plays: Vec::new(),
            play_names: HashSet::new(),
            num_streams: 0,
            relative: None,
        }
    }

    pub(crate) fn add(&mut self, reader: impl BufRead, name: &str) -> Result<(), TraceError> {
        self.names.push(name.to_owned());
        let mut documents = Documents::new(reader);
        while let Some((line, text)) = documents.next().map_err(|error| error.of(name))? {
            let at = |below: u32, (field, problem): FieldProblem| TraceError::Row {
                name: name.to_owned(),
                line: line.saturating_add(below),
                field,
                problem,
            };
            let document = Document::read(text).map_err(|(below, problem)| at(below, problem))?;
            self.add_play(&document, line).map_err(|problem| at(0, problem))?;
        }
        Ok(())
    }

    fn add_play(&mut self, document: &Document, line: u32) -> Result<(), FieldProblem> {
        let given = document.block_size;
        let expected = *self.options.block_size_tokens.get_or_insert(given);
        if given != expected {
            let problem = RowProblem::BlockSize { given: given.get(), expected: expected.get() };
            return Err((Some("block_size"), problem));
        }
        let options = &self.options;
        let assembler = self.assembler.get_or_insert_with(|| Assembler::new(options).with_free_turns());
        for (name, entry) in unknown_fields(document) {
            let name = if entry { format!("requests.{name}") } else { name.to_owned() };
            assembler.warn_of_field(&name, line)?;
        }
        let mut name = document.id.clone();
        if self.play_names.contains(&name) {
            name = format!("{name}#{}", self.plays.len() + 1).into();
        }
        self.play_names.insert(name.clone());

        let (entries, subagents) = flatten(document);
        let mut streams = Vec::new();
        let own: Vec<u32> = (0..entries.len() as u32)
            .filter(|call| !subagents.iter().any(|subagent| subagent.calls.contains(call)))
            .collect();
        let lists = std::iter::once(own).chain(subagents.iter().map(|subagent| subagent.calls.clone().collect()));
        for (agent, calls) in (0u32..).zip(lists) {
            let started_by = agent.checked_sub(1).map(|index| subagents[index as usize].caller);
            let seen = calls.into_iter().map(|call| seen(call, entries[call as usize])).collect();
            let found = streams::find(seen).into_iter().enumerate();
            streams.extend(found.map(|(index, found)| {
                let fork = if index == 0 { started_by.or(found.fork) } else { found.fork };
                Stream { calls: found.calls, fork, agent }
            }));
        }

        let play = self.plays.len() as u64;
        let mut stream_of = vec![0; entries.len()];
        for stream in &streams {
            self.num_streams += 1;
            stream.calls.iter().for_each(|call| stream_of[*call as usize] = self.num_streams);
        }
        let scope = |call: usize| match self.options.hash_id_scope.unwrap_or(HashIdScope::Play) {
            HashIdScope::Trace => None,
            HashIdScope::Play => Some(play),
            HashIdScope::Session => Some(stream_of[call]),
        };
        let calls = entries.iter().enumerate().map(|(index, entry)| {
            let ids = prompt(assembler, entry, scope(index), given.get())?;
            let [input_tokens, output_tokens] = entry.lengths();
            Ok(Call { start_s: entry.t, taken_s: entry.api_time, input_tokens, output_tokens, ids })
        });
        let calls = calls.collect::<Result<_, FieldProblem>>()?;
        let file = self.names.len() as u32 - 1;
        let is_relative = |subagent: &Subagent| {
            let starts = &entries[subagent.calls.start as usize..subagent.calls.end as usize];
            starts.iter().any(|entry| entry.t < subagent.start_s - SLACK_S)
        };
        if subagents.iter().any(is_relative) {
            self.relative.get_or_insert((file, line));
        }
        self.plays.push(Play { file, line, name, calls, subagents, streams });
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<Trace, TraceError> {
        let all_names = self.names.join("`, `");
        let Some(mut assembler) = self.assembler else { return Err(TraceError::Empty { name: all_names }) };
        let at = |file: u32, line: u32, (field, problem): FieldProblem| {
            let name = self.names[file as usize].clone();
            TraceError::Row { name, line, field, problem }
        };
        let is_relative = match self.options.nested_timestamps {
            NestedTimestamps::Auto => self.relative.is_some(),
            NestedTimestamps::Absolute => false,
            NestedTimestamps::Relative => true,
        };
        if let Some((file, line)) = self.relative.filter(|_| self.options.nested_timestamps == NestedTimestamps::Auto) {
            let problem = || (Some("requests"), RowProblem::RelativeTimestamps);
            assembler
                .warn(WarningKind::RelativeTimestamps, line, problem)
                .map_err(|problem| at(file, line, problem))?;
        }
        let mut edges = Vec::new();
        let mut play_of = Vec::new();
        for (number, play) in self.plays.iter().enumerate() {
            play_of.resize(play_of.len() + play.calls.len(), number);
            play.assemble(is_relative, &mut assembler, &mut edges)
                .map_err(|problem| at(play.file, play.line, problem))?;
        }
        assembler.attach(edges).map_err(|(request, problem)| {
            let play = &self.plays[play_of[request as usize]];
            at(play.file, play.line, (Some("requests"), problem))
        })?;
        assembler.finish(&all_names)
    }
}

impl Play {
    /// Adds the requests in order of time, with their dependencies.
    fn assemble(
        &self,
        is_relative: bool,
        assembler: &mut Assembler,
        edges: &mut Vec<(u32, Dependency)>,
    ) -> Result<(), FieldProblem> {
        let recorded = self.recorded(is_relative)?;
        let mut order: Vec<u32> = (0..self.calls.len() as u32).collect();
        order.sort_by(|a, b| recorded[*a as usize].start_s.total_cmp(&recorded[*b as usize].start_s));
        let first_s = order.first().map_or(0.0, |call| recorded[*call as usize].start_s);
        let mut stream_of = vec![0; self.calls.len()];
        for (index, stream) in self.streams.iter().enumerate() {
            stream.calls.iter().for_each(|call| stream_of[*call as usize] = index);
        }
        let first_request = assembler.num_requests();
        let mut request_of = vec![0; self.calls.len()];
        for (request, &call) in (first_request..).zip(&order) {
            request_of[call as usize] = request;
            let Call { taken_s, input_tokens, output_tokens, ids, .. } = &self.calls[call as usize];
            let row = Row {
                request_id: Some(format!("{}:{call}", self.name).into()),
                session_id: Some(self.stream_name(stream_of[call as usize])),
                input_tokens: *input_tokens,
                output_tokens: *output_tokens,
                timestamp_ns: Some(ns_of(recorded[call as usize].start_s - first_s) as i64),
                recorded_ns: taken_s.map(ns_of),
                ..Row::default()
            };
            assembler.push_with_ids(self.line, row, *ids)?;
        }
        let own = graph::edges(&recorded, &self.streams, &self.joins(&recorded));
        edges.extend(own.into_iter().map(|(call, other)| {
            (request_of[call as usize], Dependency { request: request_of[other.request as usize], ..other })
        }));
        Ok(())
    }

    fn recorded(&self, is_relative: bool) -> Result<Vec<Recorded>, FieldProblem> {
        let of = |call: &Call, start_s: f64| Recorded { start_s, end_s: start_s + call.taken_s.unwrap_or(0.0) };
        let mut recorded: Vec<Recorded> = self.calls.iter().map(|call| of(call, call.start_s)).collect();
        for subagent in &self.subagents {
            for call in subagent.calls.clone() {
                let own = &self.calls[call as usize];
                if !is_relative && own.start_s < subagent.start_s - SLACK_S {
                    let text = format!(
                        "a request of subagent `{}` is at {} s, before the subagent itself at {} s, so its time is \
                         relative to that; read nested timestamps as relative",
                        subagent.name, own.start_s, subagent.start_s
                    );
                    return Err((Some("requests"), RowProblem::Malformed(text)));
                }
                let start_s =
                    if is_relative { subagent.start_s + own.start_s } else { own.start_s.max(subagent.start_s) };
                recorded[call as usize] = of(own, start_s);
            }
        }
        Ok(recorded)
    }

    /// The requests that wait for subagents. In the calling stream, that is the first request after the subagent's
    /// end.
    fn joins(&self, recorded: &[Recorded]) -> Vec<Join> {
        let awaited = (1..).zip(&self.subagents).filter(|(_, subagent)| subagent.is_awaited);
        let join = |(agent, subagent): (u32, &Subagent)| {
            let ends =
                recorded[subagent.calls.start as usize..subagent.calls.end as usize].iter().map(|call| call.end_s);
            let end_s = match subagent.duration_s {
                Some(duration_s) => subagent.start_s + duration_s,
                None => ends.fold(subagent.start_s, f64::max),
            };
            let caller = self.streams.iter().find(|stream| stream.calls.contains(&subagent.caller))?;
            let later = caller.calls.iter().copied().filter(|call| *call >= subagent.calls.end);
            let call = later.filter(|call| recorded[*call as usize].start_s + SLACK_S >= end_s).min()?;
            Some(Join { call, agent })
        };
        awaited.filter_map(join).collect()
    }

    fn stream_name(&self, index: usize) -> Box<str> {
        let agent = self.streams[index].agent;
        let first = self.streams.iter().position(|stream| stream.agent == agent).unwrap_or(index);
        let own = match agent.checked_sub(1) {
            None => self.name.to_string(),
            Some(subagent) => format!("{}/{}-{agent}", self.name, self.subagents[subagent as usize].name),
        };
        if index == first { own.into() } else { format!("{own}/branch-{}", index - first).into() }
    }
}

/// Lists all requests of a document in order, and the subagents that have requests.
fn flatten(document: &Document) -> (Vec<&Entry>, Vec<Subagent>) {
    let mut entries: Vec<&Entry> = Vec::new();
    let mut subagents = Vec::new();
    let mut caller = 0;
    for entry in &document.requests {
        let Some(inner) = entry.subagent_requests() else {
            caller = entries.len() as u32;
            entries.push(entry);
            continue;
        };
        if inner.is_empty() {
            continue;
        }
        let start = entries.len() as u32;
        entries.extend(inner);
        subagents.push(Subagent {
            name: entry.agent_id().into(),
            start_s: entry.t,
            duration_s: entry.duration_s(),
            is_awaited: entry.is_awaited(),
            calls: start..entries.len() as u32,
            caller,
        });
    }
    (entries, subagents)
}

fn seen(call: u32, entry: &Entry) -> Seen<'_> {
    let [_, output_tokens] = entry.lengths();
    Seen {
        call,
        start_s: entry.t,
        end_s: entry.t + entry.api_time.unwrap_or(0.0),
        output_tokens,
        model: entry.model(),
        ids: &entry.hash_ids,
    }
}

/// Numbers the blocks of a prompt. No other prompt shares full blocks without an id, or a partial last block.
fn prompt(
    assembler: &mut Assembler,
    entry: &Entry,
    scope: Option<u64>,
    block_size_tokens: u32,
) -> Result<HashIdRange, FieldProblem> {
    let [input_tokens, _] = entry.lengths();
    let whole = (input_tokens / block_size_tokens) as usize;
    let ids = &entry.hash_ids[..entry.hash_ids.len().min(whole)];
    let own_blocks = input_tokens.div_ceil(block_size_tokens) - ids.len() as u32;
    if own_blocks > MAX_OWN_BLOCKS {
        let text =
            format!("a prompt of {input_tokens} tokens has {} hash ids; at most {MAX_OWN_BLOCKS} may lack", ids.len());
        return Err((Some("requests"), RowProblem::Malformed(text)));
    }
    assembler.push_hash_ids(scope, ids, own_blocks)
}

/// Lists unknown fields, and whether each belongs to a request.
fn unknown_fields(document: &Document) -> Vec<(&str, bool)> {
    let entries =
        document.requests.iter().flat_map(|entry| std::iter::once(entry).chain(entry.requests.iter().flatten()));
    let mut fields: Vec<(&str, bool)> = document.others.keys().map(|name| (&**name, false)).collect();
    fields.extend(entries.flat_map(|entry| entry.others.keys()).map(|name| (&**name, true)));
    // A play counts as one row, so each field counts once.
    fields.sort_unstable();
    fields.dedup();
    fields
}

#[cfg(test)]
mod tests;
