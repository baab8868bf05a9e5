//! Reads Applied Compute's sessions of tool calls.
//!
//! A row is a session. After each answer except the last, a tool is called and its output is added to the
//! conversation. Prompts only grow, so all turns share the blocks of the longest prompt. There are no arrivals.

use std::io::BufRead;

use serde::Deserialize;

use crate::assemble::{Assembler, FieldProblem, Row};
use crate::lines::{Lines, describe};
use crate::millis::Millis;
use crate::{Format, RowProblem, SharedPrefix, Trace, TraceError, TraceOptions};

/// A conversation is described by a few numbers, so a typing error could exhaust the memory.
const MAX_CONVERSATION_BLOCKS: u32 = 1 << 20;

#[derive(Deserialize)]
struct Session {
    num_turns: usize,
    input_prompt_length: u32,
    assistant_response_length: Vec<u32>,
    tool_call_output_length: Vec<u32>,
    /// In seconds.
    tool_call_latency: Vec<f64>,
    final_assistant_response_length: u32,
    #[serde(flatten)]
    others: std::collections::BTreeMap<String, serde::de::IgnoredAny>,
}

pub(crate) fn read(reader: impl BufRead, name: &str, options: &TraceOptions) -> Result<Trace, TraceError> {
    if options.first_timestamp_required {
        return Err(TraceError::NeedsClosedLoop { format: Format::AppliedComputeAgentic });
    }
    let shared = options.shared_prefix;
    if !(0.0..=1.0).contains(&shared.ratio) {
        return Err(TraceError::SharedPrefixRatio { ratio: shared.ratio });
    }
    let at = |line, (field, problem): FieldProblem| TraceError::Row { name: name.to_owned(), line, field, problem };
    let mut lines = Lines::new(reader);
    let mut assembler = Assembler::new(options);
    let mut session_number = 0;
    while let Some((line, bytes)) = lines.next_row().map_err(|error| error.of(name))? {
        let session = decode(bytes).map_err(|problem| at(line, problem))?;
        session.add(&mut assembler, line, session_number, &shared).map_err(|problem| at(line, problem))?;
        session_number += 1;
    }
    assembler.finish(name)
}

fn decode(row: &[u8]) -> Result<Session, FieldProblem> {
    let mut decoder = serde_json::Deserializer::from_slice(row);
    let session: Session = serde_path_to_error::deserialize(&mut decoder).map_err(|error| {
        let place = error.path().to_string();
        let problem = RowProblem::Malformed(format!("{place}: {}", describe(error.inner())));
        (field_of(&place), problem)
    })?;
    decoder.end().map_err(|error| (None, RowProblem::Malformed(describe(&error))))?;
    Ok(session)
}

fn field_of(path: &str) -> Option<&'static str> {
    const FIELDS: [&str; 6] = [
        "num_turns",
        "input_prompt_length",
        "assistant_response_length",
        "tool_call_output_length",
        "tool_call_latency",
        "final_assistant_response_length",
    ];
    FIELDS
        .into_iter()
        .find(|field| path == *field || path.strip_prefix(field).is_some_and(|rest| rest.starts_with('[')))
}

impl Session {
    fn add(
        &self,
        assembler: &mut Assembler,
        line: u32,
        number: u32,
        shared: &SharedPrefix,
    ) -> Result<(), FieldProblem> {
        for name in self.others.keys() {
            assembler.warn_of_field(name, line)?;
        }
        for (field, given) in [
            ("assistant_response_length", self.assistant_response_length.len()),
            ("tool_call_output_length", self.tool_call_output_length.len()),
            ("tool_call_latency", self.tool_call_latency.len()),
        ] {
            if given != self.num_turns {
                let text = format!("{given} entries for {} turns; there must be one for each", self.num_turns);
                return Err((Some(field), RowProblem::Malformed(text)));
            }
        }
        if self.input_prompt_length == 0 {
            return Err((Some("input_prompt_length"), RowProblem::EmptyPrompt));
        }
        let prompts = self.prompts()?;
        let group = shared.group(number);
        let block_tokens = assembler.block_size_tokens();
        let first_blocks = self.input_prompt_length.div_ceil(block_tokens);
        let shared_blocks = group.map_or(0, |_| (f64::from(first_blocks) * shared.ratio).round() as u32);
        let last = prompts.last().map_or(0, |(input_tokens, _)| *input_tokens);
        let blocks = last.div_ceil(block_tokens);
        if blocks > MAX_CONVERSATION_BLOCKS {
            let text = format!("the conversation has {blocks} blocks; at most {MAX_CONVERSATION_BLOCKS} are read");
            return Err((None, RowProblem::Malformed(text)));
        }
        let ids = assembler.push_conversation(group, shared_blocks, blocks)?;
        let answers = self.assistant_response_length.iter().chain([&self.final_assistant_response_length]);
        let session_id: Box<str> = format!("applied_compute_agentic_session_{line}").into();
        for ((input_tokens, delay_ns), &output_tokens) in prompts.into_iter().zip(answers) {
            let len = input_tokens.div_ceil(block_tokens);
            let session_id = Some(session_id.clone());
            let row = Row { session_id, input_tokens, output_tokens, delay_ns, ..Row::default() };
            assembler.push_with_ids(line, row, ids.first(len))?;
        }
        Ok(())
    }

    /// The number of prompt tokens of each turn, and the wait for the tool.
    fn prompts(&self) -> Result<Vec<(u32, Option<u64>)>, FieldProblem> {
        let mut prompt_tokens = self.input_prompt_length;
        let mut prompts = vec![(prompt_tokens, None)];
        for turn in 0..self.num_turns {
            let grown = self.assistant_response_length[turn].checked_add(self.tool_call_output_length[turn]);
            prompt_tokens = grown.and_then(|grown| prompt_tokens.checked_add(grown)).ok_or_else(|| {
                let text = format!("the conversation is longer than {} tokens", u32::MAX);
                (Some("tool_call_output_length"), RowProblem::Malformed(text))
            })?;
            let latency_s = self.tool_call_latency[turn];
            let delay_ns = Millis::from_f64(latency_s * 1e3).and_then(|latency| u64::try_from(latency.ns).ok());
            let delay_ns = delay_ns.ok_or_else(|| {
                let text = format!("invalid latency {latency_s} s: expected at least 0 and below 292 years");
                (Some("tool_call_latency"), RowProblem::Malformed(text))
            })?;
            prompts.push((prompt_tokens, Some(delay_ns)));
        }
        Ok(prompts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"num_turns":2,"input_prompt_length":16,"assistant_response_length":[4,4],"tool_call_output_length":[8,8],"tool_call_latency":[0.01,0.02],"final_assistant_response_length":4}"#;

    fn check(rows: &str, shared_prefix: SharedPrefix) -> Result<Trace, String> {
        let options = TraceOptions {
            block_size_tokens: std::num::NonZeroU32::new(4),
            first_timestamp_required: false,
            shared_prefix,
            ..TraceOptions::default()
        };
        Trace::read(rows.as_bytes(), "t", Format::AppliedComputeAgentic, &options).map_err(|error| error.to_string())
    }

    #[test]
    fn a_session_grows_by_answers_and_tool_outputs() {
        let trace = check(&format!("{ROW}\n{ROW}"), SharedPrefix::default()).unwrap();
        let turns: Vec<_> = trace.requests.iter().map(|r| (r.input_tokens, r.output_tokens, r.delay_ns)).collect();
        assert_eq!(turns[..3], [(16, 4, 0), (28, 4, 10_000_000), (40, 4, 20_000_000)]);
        assert_eq!(turns[..3], turns[3..]);
        assert_eq!(trace.hash_ids(&trace.requests[1]), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(trace.requests[1].hash_ids, trace.requests[2].hash_ids.first(7), "turns share their ids");
        assert_eq!(trace.hash_ids(&trace.requests[3]), [10, 11, 12, 13]);
        assert_eq!((trace.sessions, trace.requests[0].next_turn, trace.requests[0].arrival_ns), (2, Some(1), None));
    }

    #[test]
    fn sessions_of_a_group_share_leading_blocks_of_the_first_prompt() {
        let shared = SharedPrefix { ratio: 0.5, groups: 1, seed: 42 };
        let trace = check(&format!("{ROW}\n{ROW}"), shared).unwrap();
        let [first, second] = [0, 3].map(|index| trace.hash_ids(&trace.requests[index]).to_vec());
        assert_eq!(first[..2], second[..2]);
        assert!(first[2..].iter().all(|id| !second.contains(id)));
    }

    #[test]
    fn errors_name_line_and_field() {
        let cases = [
            (ROW.replace("[4,4]", "[4]"), "line 1, field `assistant_response_length`: 1 entries for 2 turns"),
            (ROW.replace("16", "0"), "field `input_prompt_length`: the prompt has no tokens"),
            (ROW.replace("0.02", "-0.02"), "field `tool_call_latency`: invalid latency -0.02 s"),
            (ROW.replace("[8,8]", "[8,4294967295]"), "field `tool_call_output_length`: the conversation is longer"),
            (ROW.replace("[8,8]", "[8,-1]"), "field `tool_call_output_length`: tool_call_output_length[1]: invalid"),
            (ROW.replace("\"num_turns\":2,", ""), "missing field `num_turns`"),
        ];
        for (row, expected) in cases {
            let message = check(&row, SharedPrefix::default()).unwrap_err();
            assert!(message.contains(expected), "{message}\nlacks {expected}");
        }
        let options = TraceOptions::default();
        let open = Trace::read(ROW.as_bytes(), "t", Format::AppliedComputeAgentic, &options).unwrap_err();
        assert!(open.to_string().contains("give a concurrency"));
        let ratio = check(ROW, SharedPrefix { ratio: 1.5, ..SharedPrefix::default() }).unwrap_err();
        assert!(ratio.contains("1.5: expected 0 to 1"));
    }
}
