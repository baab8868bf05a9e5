//! Reads Dynamo's log of requests (`dynamo.request.trace.v1`).
//!
//! The log contains the arrivals and ends of requests, but not the times of first tokens. Its hashes cover whole
//! prefixes. The trace reader cannot be used here, because it drops the ends and the hashes, and builds a graph for
//! replays.

use std::io::BufRead;

use crate::capture::{BlockHash, CaptureMeta, RequestRecord};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::import::error::{Place, Problem, decode};
use crate::import::input::Rows;
use crate::import::output::{Out, Timed, checked, since_earliest};
use crate::import::time::{clock_ns, duration_ns, started_unix_ns};
use crate::import::{Format, ImportError};

const END_OF_REQUEST: &str = "request_end";

#[derive(Deserialize)]
struct Event {
    event_type: String,
    #[serde(default)]
    agent_context: AgentContext,
    request: Option<Value>,
}

#[derive(Default, Deserialize)]
struct AgentContext {
    session_id: Option<String>,
    parent_session_id: Option<String>,
}

#[derive(Deserialize)]
struct Request {
    request_id: String,
    output_tokens: u32,
    request_received_ms: f64,
    total_time_ms: Option<f64>,
    model: Option<String>,
    replay: Replay,
}

#[derive(Deserialize)]
struct Replay {
    trace_block_size: std::num::NonZeroU32,
    input_length: u32,
    input_sequence_hashes: Vec<u64>,
}

pub(crate) fn read(reader: impl BufRead, name: &str, out: &mut Out<'_>) -> Result<(), ImportError> {
    let mut rows = Rows::new(reader, name);
    let mut requests = Vec::new();
    let mut block_size_tokens = None;
    let mut model = None;
    while let Some((line, event)) = rows.next_as::<Event>(&mut out.tally)? {
        if event.event_type != END_OF_REQUEST {
            out.tally.note(&format!("events of type `{}`", event.event_type));
            continue;
        }
        if event.agent_context.parent_session_id.is_some() {
            out.tally.note("links from a session to its parent");
        }
        let request = event.request.ok_or_else(|| Problem::new("request", "the field is missing; add it"));
        let request = request.and_then(|request| within("request", decode::<Request, _>(request)));
        let timed = request.and_then(|request| {
            let block_size = request.replay.trace_block_size.get();
            if *block_size_tokens.get_or_insert(block_size) != block_size {
                let text = "another block size than before; a capture has one: split the file";
                return Err(Problem::new("request.replay.trace_block_size", text));
            }
            model = model.take().or_else(|| request.model.clone());
            request.timed(event.agent_context.session_id)
        });
        match timed {
            Ok(timed) => requests.push(timed),
            Err(problem) => out.tally.refuse(problem.at(name, Place::Line(line)))?,
        }
    }
    let earliest = since_earliest(&mut requests);
    let started_unix_ns = started_unix_ns(earliest);
    out.meta(Format::Dynamo, CaptureMeta { started_unix_ns, model, block_size_tokens, ..CaptureMeta::default() })?;
    requests.into_iter().try_for_each(|timed| out.request(timed.record))
}

/// Puts `outer` before the field of a problem.
fn within<T>(outer: &str, read: Result<T, Problem>) -> Result<T, Problem> {
    read.map_err(|problem| Problem { field: format!("{outer}.{}", problem.field), ..problem })
}

impl Request {
    fn timed(self, session: Option<String>) -> Result<Timed, Problem> {
        let Replay { trace_block_size, input_length, mut input_sequence_hashes } = self.replay;
        let block_size = trace_block_size.get();
        let (full, all) = (input_length / block_size, input_length.div_ceil(block_size));
        let given = input_sequence_hashes.len();
        if given != full as usize && given != all as usize {
            let text =
                format!("{given} hashes for {input_length} tokens in blocks of {block_size}; there must be {all}");
            return Err(Problem::new("request.replay.input_sequence_hashes", text));
        }
        // If the last block is partial, its hash is the hash of the whole prompt.
        let whole = input_sequence_hashes.last().copied().filter(|_| given == all as usize);
        input_sequence_hashes.truncate(full as usize);
        let end_ns = self.total_time_ms.map(|ms| duration_ns("request.total_time_ms", ms, 1e6)).transpose()?;
        let record = RequestRecord {
            id: Some(self.request_id),
            prompt_tokens: input_length,
            block_hashes: input_sequence_hashes.into_iter().map(BlockHash).collect(),
            prompt_hash: whole.map(BlockHash),
            output_tokens: self.output_tokens,
            end_ns,
            params: serde_json::Map::from_iter([("max_tokens".to_owned(), json!(self.output_tokens))]),
            session,
            ..RequestRecord::default()
        };
        let at_ns = clock_ns("request.request_received_ms", self.request_received_ms, 1_000_000)?;
        Ok(Timed { at_ns: Some(at_ns), record: checked(record)? })
    }
}
