//! The Mooncake JSONL readers, with Dynamo's extensions and aliases.
//!
//! The rules are those of `dynamo-mocker` 1.6, which refuses what 1.4 repaired
//! in silence; where either ignores something, a warning counts it.

mod agentic;
mod decode;
mod row;
mod scan;

pub(crate) use agentic::read as read_agentic;

use crate::assemble::{Assembler, FieldProblem, Row};
use crate::lines::Lines;
use crate::millis::Millis;
use crate::{RowProblem, Strictness, Trace, TraceError, TraceOptions, WarningKind};
use row::{DecodedRow, Dialect, Field};
use std::collections::HashSet;
use std::io::BufRead;

/// Reads Mooncake rows to the end of the stream; `is_delta` if later turns give
/// only what is new in their prompts.
pub(crate) fn read(
    reader: impl BufRead,
    name: &str,
    options: &TraceOptions,
    is_delta: bool,
) -> Result<Trace, TraceError> {
    let at = |line, (field, problem): FieldProblem| TraceError::Row { name: name.to_owned(), line, field, problem };
    let mut lines = Lines::new(reader);
    let mut assembler = Assembler::new(options).with_deltas(is_delta);
    let mut row = DecodedRow::default();
    let mut request_ids = HashSet::new();
    loop {
        let Some((line, bytes)) = lines.next_row().map_err(|error| error.of(name))? else {
            return assembler.finish(name);
        };
        row.decode(bytes, Dialect::Plain).map_err(|problem| at(line, problem))?;
        if let Some(request_id) = row.request_id.clone().filter(|name| !request_ids.insert(name.clone())) {
            return Err(at(line, (Some(Field::RequestId.name()), RowProblem::DuplicateRequest { request_id })));
        }
        add(&mut assembler, &mut row, line, options).map_err(|problem| at(line, problem))?;
    }
}

/// Checks a row and hands it on, leaving `row` free for the next one.
fn add(assembler: &mut Assembler, row: &mut DecodedRow, line: u32, options: &TraceOptions) -> Result<(), FieldProblem> {
    let delay_ns = row.delay.map(|delay| wait_ns(Field::Delay, delay)).transpose()?;
    let plain = checked(assembler, row, line, options)?;
    assembler.push(line, Row { delay_ns, ..plain })
}

/// The common fields of all dialects, without delays.
fn checked<'a>(
    assembler: &mut Assembler,
    row: &'a mut DecodedRow,
    line: u32,
    options: &TraceOptions,
) -> Result<Row<'a>, FieldProblem> {
    for field in [Field::HashIds, Field::OutputLength] {
        if !row.has(field) {
            return Err((Some(field.name()), RowProblem::Missing));
        }
    }
    let (input_tokens, used_ids) = prompt(assembler, row, line, options)?;
    let output_tokens = row.output_tokens;
    let given = row.output_token_ids.len() as u64;
    if row.has(Field::OutputTokenIds) && given != u64::from(output_tokens) {
        return Err((Some(Field::OutputTokenIds.name()), RowProblem::OutputLengthMismatch { given, output_tokens }));
    }
    for name in row.unknown_fields.drain(..) {
        assembler.warn_of_field(&name, line)?;
    }
    Ok(Row {
        request_id: row.request_id.take(),
        session_id: row.session_id.take(),
        play_id: row.play_id.take(),
        input_tokens,
        output_tokens,
        hash_ids: &row.hash_ids[..used_ids],
        own_blocks: 0,
        times: None,
        recorded_ns: row.recorded_api_time.and_then(|time| u64::try_from(time.ns).ok()),
        output_token_ids: &row.output_token_ids,
        items: &row.items,
        timestamp_ns: row.timestamp.map(|timestamp| timestamp.ns),
        delay_ns: None,
        priority: row.priority,
        strict_priority: row.strict_priority,
        policy_class: row.policy_class.take(),
    })
}

/// A wait as nanoseconds, which cannot be negative.
fn wait_ns(field: Field, wait: Millis) -> Result<u64, FieldProblem> {
    u64::try_from(wait.ns).map_err(|_| {
        let delay_ms = (wait.ns as f64 / 1e6).to_string();
        (Some(field.name()), RowProblem::NegativeDelay { delay_ms })
    })
}

/// The prompt's length, and how many of the row's hash ids belong to it.
fn prompt(
    assembler: &mut Assembler,
    row: &DecodedRow,
    line: u32,
    options: &TraceOptions,
) -> Result<(u32, usize), FieldProblem> {
    let block_size_tokens = options.block_size_or_default().get();
    let hash_ids = row.hash_ids.len() as u64;
    // Neither can wrap: a row is at most 64 MiB of text.
    let covered_tokens = hash_ids * u64::from(block_size_tokens);
    let field = Some(Field::InputLength.name());
    let mut input_tokens = covered_tokens;
    if row.has(Field::InputLength) {
        input_tokens = u64::from(row.input_tokens);
        if input_tokens > covered_tokens {
            if options.strictness != Strictness::Lenient {
                return Err((
                    field,
                    RowProblem::InputTooLong { input_tokens, hash_ids, block_size_tokens, covered_tokens },
                ));
            }
            input_tokens = covered_tokens;
            assembler.warn(WarningKind::InputLengthClamped, line, || (field, RowProblem::EmptyPrompt))?;
        }
    }
    let used_ids = input_tokens.div_ceil(u64::from(block_size_tokens)) as usize;
    if used_ids < row.hash_ids.len() && input_tokens > 0 {
        let surplus = RowProblem::SurplusHashIds { hash_ids, used: used_ids as u64 };
        assembler.warn(WarningKind::SurplusHashIds, line, || (Some(Field::HashIds.name()), surplus))?;
    }
    let input_tokens = u32::try_from(input_tokens).map_err(|_| {
        let text = format!("a prompt of {input_tokens} tokens is beyond {}", u32::MAX);
        (field, RowProblem::Malformed(text))
    })?;
    Ok((input_tokens, used_ids))
}

#[cfg(test)]
mod tests;
