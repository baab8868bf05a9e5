//! Reads Mooncake rows with dependencies.
//!
//! Dynamo has two versions. In version 1, a row with `wait_for` starts when all requests in this list have ended
//! and `delay` and `tool_wait_ms` have passed; other rows start at their `timestamp`. Version 2 begins with a
//! header. Its rows have `dependencies`, each with a trigger and a delay, and start no earlier than
//! `not_before_ms`. In both versions, sessions delay no row.

use std::io::BufRead;
use std::num::NonZeroU32;

use hashbrown::HashMap;
use serde::Deserialize;

use super::row::{DecodedRow, DecodedTrigger, Dialect, Field};
use super::{checked, wait_ns};
use crate::assemble::{Assembler, FieldProblem};
use crate::lines::{Lines, describe};
use crate::{Dependency, HashIdScope, RowProblem, Trace, TraceError, TraceOptions, Trigger};

const SCHEMA: &str = "dynamo.agentic_mooncake";

#[derive(Deserialize)]
struct Header {
    schema: String,
    version: u32,
    block_size: NonZeroU32,
    hash_id_scope: HeaderScope,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum HeaderScope {
    Local,
    Global,
}

struct Reference {
    request: u32,
    field: Field,
    name: Box<str>,
    /// The trigger and the delay of the wait for the other row; None if the row does not wait.
    wait: Option<(Trigger, u64)>,
}

/// The reader's state in addition to the assembler.
struct Graph {
    is_version_2: bool,
    first_timestamp_required: bool,
    references: Vec<Reference>,
    // The map is looked up, never iterated, so its order has no effect.
    by_name: HashMap<Box<str>, u32>,
}

pub(crate) fn read(reader: impl BufRead, name: &str, options: &TraceOptions) -> Result<Trace, TraceError> {
    let at = |line, (field, problem): FieldProblem| TraceError::Row { name: name.to_owned(), line, field, problem };
    let mut lines = Lines::new(reader);
    let mut options = options.clone();
    let mut graph = Graph {
        is_version_2: false,
        first_timestamp_required: options.first_timestamp_required,
        references: Vec::new(),
        by_name: HashMap::new(),
    };
    let first = lines.next_row().map_err(|error| error.of(name))?;
    // A first row that is not a header is an ordinary row.
    let mut is_read = false;
    if let Some((line, bytes)) = first {
        match header(bytes).map_err(|problem| at(line, problem))? {
            None => is_read = true,
            Some(header) => {
                header.apply(&mut options).map_err(|problem| at(line, problem))?;
                graph.is_version_2 = true;
            }
        }
    }
    let mut assembler = Assembler::new(&options).with_free_turns();
    let mut row = DecodedRow::default();
    while std::mem::take(&mut is_read) || lines.next_row().map_err(|error| error.of(name))?.is_some() {
        let line = lines.line();
        row.decode(lines.row(), Dialect::Agentic).map_err(|problem| at(line, problem))?;
        graph.add(&mut assembler, &mut row, line, &options).map_err(|problem| at(line, problem))?;
    }
    let finished = graph.finish(&mut assembler);
    finished.map_err(|(request, problem)| at(assembler.line_of(request), problem))?;
    assembler.finish(name)
}

/// Reads the header; None if the row is not a header.
fn header(row: &[u8]) -> Result<Option<Header>, FieldProblem> {
    let has = |key: &[u8]| row.windows(key.len()).any(|window| window == key);
    if !has(b"\"schema\"") || has(b"\"hash_ids\"") {
        return Ok(None);
    }
    let header = serde_json::from_slice(row).map_err(|error| (None, RowProblem::Malformed(describe(&error))))?;
    Ok(Some(header))
}

impl Header {
    fn apply(&self, options: &mut TraceOptions) -> Result<(), FieldProblem> {
        let wrong = |field, text: String| Err((Some(field), RowProblem::Malformed(text)));
        if self.schema != SCHEMA {
            return wrong("schema", format!("`{}` is another schema than {SCHEMA}", self.schema));
        }
        if self.version != 2 {
            return wrong("version", format!("version {} is not known; there is version 2", self.version));
        }
        let (given, expected) = (self.block_size, options.block_size_tokens.unwrap_or(self.block_size));
        if given != expected {
            let problem = RowProblem::BlockSize { given: given.get(), expected: expected.get() };
            return Err((Some("block_size"), problem));
        }
        options.block_size_tokens = Some(given);
        options.hash_id_scope = options.hash_id_scope.or(Some(match self.hash_id_scope {
            HeaderScope::Local => HashIdScope::Play,
            HeaderScope::Global => HashIdScope::Trace,
        }));
        Ok(())
    }
}

impl Graph {
    /// Checks a row and adds it to the assembler, but not its dependencies.
    fn add(
        &mut self,
        assembler: &mut Assembler,
        row: &mut DecodedRow,
        line: u32,
        options: &TraceOptions,
    ) -> Result<(), FieldProblem> {
        let request = assembler.num_requests();
        let Some(request_id) = row.request_id.clone() else {
            return Err((Some(Field::RequestId.name()), RowProblem::Missing));
        };
        if self.by_name.insert(request_id.clone(), request).is_some() {
            return Err((Some(Field::RequestId.name()), RowProblem::DuplicateRequest { request_id }));
        }

        let delay_ns = row.delay.map_or(Ok(0), |delay| wait_ns(Field::Delay, delay))?;
        let tool_wait_ns = row.tool_wait.map_or(Ok(0), |tool_wait| wait_ns(Field::ToolWait, tool_wait))?;
        let delay_ns = delay_ns.saturating_add(tool_wait_ns);
        let first_reference = self.references.len();
        let mut refer = |field, name, wait| self.references.push(Reference { request, field, name, wait });
        for name in row.wait_for.drain(..) {
            refer(Field::WaitFor, name, Some((Trigger::Completion, delay_ns)));
        }
        for dependency in row.dependencies.drain(..) {
            let own_ns = dependency.delay_ms.map_or(Ok(0), |delay| wait_ns(Field::Dependencies, delay))?;
            let trigger = match dependency.trigger {
                DecodedTrigger::Dispatch => Trigger::Dispatch,
                DecodedTrigger::Completion => Trigger::Completion,
            };
            refer(Field::Dependencies, dependency.request_id, Some((trigger, own_ns.saturating_add(delay_ns))));
            row.unknown_fields.extend(dependency.others.keys().map(|name| format!("dependencies.{name}").into()));
        }
        let waits = self.references.len() > first_reference;
        if !waits && delay_ns > 0 {
            return Err((Some(Field::Delay.name()), RowProblem::DelayOnFirstTurn));
        }
        let branches = row.branches.drain(..);
        self.references.extend(branches.map(|name| Reference { request, field: Field::Branches, name, wait: None }));
        let has_time = row.not_before.is_some() || row.timestamp.is_some() || self.is_version_2;
        if !waits && !has_time && self.first_timestamp_required {
            return Err((Some(Field::Timestamp.name()), RowProblem::MissingFirstTimestamp));
        }
        let not_before_ns = row.not_before.map(|time| time.ns).or(self.is_version_2.then_some(0));
        let mut plain = checked(assembler, row, line, options)?;
        // If a row waits, its timestamp is only its recorded arrival.
        let timestamp_ns = plain.timestamp_ns.filter(|_| !waits && not_before_ns.is_none());
        plain.timestamp_ns = timestamp_ns.or(not_before_ns);
        assembler.push(line, plain)
    }

    /// Resolves the names of requests. An error contains the referring request and the problem.
    fn finish(self, assembler: &mut Assembler) -> Result<(), (u32, FieldProblem)> {
        let mut edges = Vec::new();
        for Reference { request, field, name, wait } in self.references {
            let Some(&other) = self.by_name.get(&name) else {
                let problem = RowProblem::UnknownRequest { request_id: name };
                return Err((request, (Some(field.name()), problem)));
            };
            edges.extend(wait.map(|(trigger, delay_ns)| (request, Dependency { request: other, trigger, delay_ns })));
        }
        let field = if self.is_version_2 { Field::Dependencies } else { Field::WaitFor };
        assembler.attach(edges).map_err(|(request, problem)| (request, (Some(field.name()), problem)))
    }
}

#[cfg(test)]
mod tests;
