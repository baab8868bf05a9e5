//! Writes a trace as Mooncake rows.

use crate::Trace;
use crate::millis::write_ms;
use std::io::{self, Write};

/// Writes a trace as Mooncake JSONL, from which the same requests can be read.
///
/// A session with several turns is named `s<number>`. A prompt without known content gets its own ids, because the
/// format requires ids. Times are exact (the reader is exact for times of up to 49 days).
///
/// # Errors
/// If `out` fails. [`io::ErrorKind::Unsupported`] for a trace with [free turns](Trace::has_free_turns), because
/// Mooncake rows cannot express its dependencies.
pub fn write_mooncake(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    if trace.has_free_turns {
        let text = "Mooncake rows cannot say which requests wait for which others";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    let mut next_own_id = u64::from(trace.distinct_hash_ids);
    for request in &trace.requests {
        write!(out, "{{")?;
        if let Some(id) = &request.request_id {
            write!(out, "\"request_id\": {}, ", serde_json::to_string(id)?)?;
        }
        let has_turns = request.turn > 0 || request.next_turn.is_some();
        let own_id = trace.session_id(request.session).map(str::to_owned);
        if let Some(id) = own_id.or_else(|| has_turns.then(|| format!("s{}", request.session))) {
            write!(out, "\"session_id\": {}, ", serde_json::to_string(&id)?)?;
        }
        if let Some(arrival_ns) = request.arrival_ns {
            write!(out, "\"timestamp\": ")?;
            write_ms(out, arrival_ns)?;
            write!(out, ", ")?;
        }
        if request.turn > 0 {
            write!(out, "\"delay\": ")?;
            write_ms(out, request.delay_ns)?;
            write!(out, ", ")?;
        }
        let (input, output) = (request.input_tokens, request.output_tokens);
        write!(out, "\"input_length\": {input}, \"output_length\": {output}, ")?;
        if request.output_token_ids.len > 0 {
            let ids = trace.output_token_ids(request);
            write!(out, "\"output_token_ids\": {}, ", serde_json::to_string(ids)?)?;
        }
        let items = trace.items(request);
        if !items.is_empty() {
            write!(out, "\"mm_items\": {}, ", serde_json::to_string(items)?)?;
        }
        if request.priority != 0 {
            write!(out, "\"priority\": {}, ", request.priority)?;
        }
        if request.strict_priority != 0 {
            write!(out, "\"strict_priority\": {}, ", request.strict_priority)?;
        }
        if let Some(class) = trace.policy_class(request) {
            write!(out, "\"policy_class\": {}, ", serde_json::to_string(class)?)?;
        }
        if !request.hash_ids.is_empty() {
            let ids = trace.hash_ids(request).to_vec();
            writeln!(out, "\"hash_ids\": {}}}", serde_json::to_string(&ids)?)?;
        } else {
            let blocks = u64::from(input.div_ceil(trace.block_size_tokens));
            let ids: Vec<u64> = (next_own_id..next_own_id + blocks).collect();
            next_own_id += blocks;
            writeln!(out, "\"hash_ids\": {}}}", serde_json::to_string(&ids)?)?;
        }
    }
    Ok(())
}
