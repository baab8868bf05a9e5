//! Reads the usage traces of Qwen on Alibaba's Bailian, with one chat request per line.
//!
//! A row names the request whose answer it continues. It starts at its recorded time, but not before that answer
//! has ended.

use std::collections::HashMap;
use std::io::BufRead;
use std::num::NonZeroU32;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::assemble::{Assembler, FieldProblem, Row};
use crate::lines::{Lines, describe};
use crate::millis::Seconds;
use crate::{Dependency, RowProblem, Trace, TraceError, TraceOptions, Trigger, WarningKind};

/// Number of tokens of a hash id in the published files.
const BLOCK_TOKENS: NonZeroU32 = NonZeroU32::new(16).expect("it is not zero");
/// The parent id of a chat that continues no other chat.
const NO_PARENT: i64 = -1;

#[derive(Deserialize)]
struct Chat {
    chat_id: i64,
    #[serde(default = "no_parent")]
    parent_chat_id: i64,
    timestamp: Seconds,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
    #[serde(default, rename = "type")]
    _type: IgnoredAny,
    #[serde(default, rename = "turn")]
    _turn: IgnoredAny,
    #[serde(flatten)]
    others: std::collections::BTreeMap<String, IgnoredAny>,
}

fn no_parent() -> i64 {
    NO_PARENT
}

struct Known {
    request: u32,
    /// Id of the first chat in the conversation.
    root: i64,
}

pub(crate) fn read(reader: impl BufRead, name: &str, options: &TraceOptions) -> Result<Trace, TraceError> {
    let at = |line, (field, problem): FieldProblem| TraceError::Row { name: name.to_owned(), line, field, problem };
    let block_size_tokens = options.block_size_tokens.unwrap_or(BLOCK_TOKENS);
    let options = TraceOptions { block_size_tokens: Some(block_size_tokens), ..options.clone() };
    let mut lines = Lines::new(reader);
    let mut assembler = Assembler::new(&options).with_free_turns();
    // The map is looked up, never iterated, so its order has no effect.
    let mut known: HashMap<i64, Known> = HashMap::new();
    let mut parents: Vec<(u32, i64)> = Vec::new();
    while let Some((line, bytes)) = lines.next_row().map_err(|error| error.of(name))? {
        let chat = decode(bytes).map_err(|problem| at(line, problem))?;
        let request = assembler.num_requests();
        let parent = (chat.parent_chat_id != NO_PARENT).then_some(chat.parent_chat_id);
        parents.extend(parent.map(|parent| (request, parent)));
        let root = parent.and_then(|parent| known.get(&parent)).map_or(chat.chat_id, |parent| parent.root);
        if known.insert(chat.chat_id, Known { request, root }).is_some() {
            let request_id = chat.chat_id.to_string().into();
            return Err(at(line, (Some("chat_id"), RowProblem::DuplicateRequest { request_id })));
        }
        chat.add(&mut assembler, line, root, block_size_tokens).map_err(|problem| at(line, problem))?;
    }
    let mut edges = Vec::with_capacity(parents.len());
    for (request, parent) in parents {
        match known.get(&parent) {
            Some(Known { request: parent, .. }) => {
                edges.push((request, Dependency { request: *parent, trigger: Trigger::Completion, delay_ns: 0 }));
            }
            None => {
                let line = assembler.line_of(request);
                let unknown = || (Some("parent_chat_id"), unknown_parent(parent));
                assembler.warn(WarningKind::ParentNotFound, line, unknown).map_err(|problem| at(line, problem))?;
            }
        }
    }
    if let Err((request, problem)) = assembler.attach(edges) {
        return Err(at(assembler.line_of(request), (Some("parent_chat_id"), problem)));
    }
    assembler.finish(name)
}

fn unknown_parent(parent: i64) -> RowProblem {
    RowProblem::UnknownRequest { request_id: parent.to_string().into() }
}

fn decode(row: &[u8]) -> Result<Chat, FieldProblem> {
    let mut decoder = serde_json::Deserializer::from_slice(row);
    let chat: Chat = serde_path_to_error::deserialize(&mut decoder).map_err(|error| {
        let field = field_of(&error.path().to_string());
        (field, RowProblem::Malformed(describe(error.inner())))
    })?;
    decoder.end().map_err(|error| (None, RowProblem::Malformed(describe(&error))))?;
    Ok(chat)
}

fn field_of(path: &str) -> Option<&'static str> {
    const FIELDS: [&str; 6] = ["chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids"];
    let name = path.split('[').next().unwrap_or(path);
    FIELDS.into_iter().find(|field| name == *field)
}

impl Chat {
    fn add(
        &self,
        assembler: &mut Assembler,
        line: u32,
        root: i64,
        block_size_tokens: NonZeroU32,
    ) -> Result<(), FieldProblem> {
        for name in self.others.keys() {
            assembler.warn_of_field(name, line)?;
        }
        let blocks = self.input_length.div_ceil(block_size_tokens.get());
        let used = self.hash_ids.len().min(blocks as usize);
        if used < self.hash_ids.len() && self.input_length > 0 {
            let surplus = RowProblem::SurplusHashIds { hash_ids: self.hash_ids.len() as u64, used: used as u64 };
            assembler.warn(WarningKind::SurplusHashIds, line, || (Some("hash_ids"), surplus))?;
        }
        // A row without ids has no content.
        let own_blocks = if used == 0 { 0 } else { blocks - used as u32 };
        assembler.push(
            line,
            Row {
                request_id: Some(self.chat_id.to_string().into()),
                session_id: Some(root.to_string().into()),
                input_tokens: self.input_length,
                output_tokens: self.output_length,
                hash_ids: &self.hash_ids[..used],
                own_blocks,
                timestamp_ns: Some(self.timestamp.ns),
                ..Row::default()
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Strictness;

    fn check(rows: &str, options: &TraceOptions) -> Result<Trace, String> {
        read(rows.as_bytes(), "q.jsonl", options).map_err(|error| error.to_string())
    }

    fn row(chat_id: i64, parent: i64, timestamp: &str, input_length: u32, hash_ids: &[u64]) -> String {
        format!(
            "{{\"chat_id\": {chat_id}, \"parent_chat_id\": {parent}, \"timestamp\": {timestamp}, \
             \"input_length\": {input_length}, \"output_length\": 7, \"type\": \"text\", \"turn\": 1, \
             \"hash_ids\": {hash_ids:?}}}\n"
        )
    }

    #[test]
    fn chats_arrive_in_seconds_and_wait_for_their_parents() {
        let rows =
            row(159, -1, "61.114", 33, &[1, 2, 3]) + &row(7, 159, "70.5", 50, &[1, 2, 4]) + &row(8, -1, "60", 5, &[9]);
        let trace = check(&rows, &TraceOptions::default()).unwrap();
        assert_eq!((trace.block_size_tokens, trace.has_free_turns, trace.warnings.len()), (16, true, 0));
        let arrivals: Vec<_> = trace.requests.iter().map(|r| r.arrival_ns).collect();
        assert_eq!(arrivals, [Some(1_114_000_000), Some(10_500_000_000), Some(0)]);
        let [first, second, third] = &trace.requests[..] else { panic!("three requests") };
        assert_eq!((first.session, second.session, second.turn, third.session), (0, 0, 1, 1));
        let waits = trace.dependencies(second);
        assert_eq!(waits, [Dependency { request: 0, trigger: Trigger::Completion, delay_ns: 0 }]);
        // 50 tokens are four blocks, of which the last has no id.
        assert_eq!(trace.hash_ids(second).len(), 4);
        assert_eq!(trace.hash_ids(second).to_vec()[..2], trace.hash_ids(first).to_vec()[..2]);
    }

    #[test]
    fn chats_without_their_parent_start_at_their_own_time() {
        let rows = row(2, 1, "0.5", 16, &[1]) + &row(3, 2, "1", 16, &[]);
        let trace = check(&rows, &TraceOptions::default()).unwrap();
        assert!(trace.dependencies(&trace.requests[0]).is_empty());
        assert_eq!(trace.dependencies(&trace.requests[1])[0].request, 0);
        let said = trace.warnings[0].to_string();
        assert!(said.starts_with("a chat whose `parent_chat_id` is not in the file"), "{said}");
        let strict = TraceOptions { strictness: Strictness::Strict, ..TraceOptions::default() };
        assert!(check(&rows, &strict).unwrap_err().contains("line 1, field `parent_chat_id`: unknown request `1`"));
    }

    #[test]
    fn wrong_chats_are_named() {
        let error = |rows: &str| check(rows, &TraceOptions::default()).unwrap_err();
        assert!(error(&row(1, -1, "\"now\"", 16, &[])).contains("line 1, field `timestamp`: "));
        assert!(error(&(row(1, -1, "0", 16, &[]) + &row(1, -1, "1", 16, &[]))).contains("duplicate request `1`"));
        assert!(error(&row(1, -1, "0", 0, &[])).contains("the prompt has no tokens"));
        let circle = error(&(row(1, 2, "0", 16, &[]) + &row(2, 1, "1", 16, &[])));
        assert!(circle.contains("requests wait for each other in a circle: 1 -> 2 -> 1"), "{circle}");
    }
}
