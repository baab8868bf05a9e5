//! Reads Mooncake JSONL, with Dynamo's extensions and aliases.
//!
//! The rules are those of `dynamo-mocker` 1.6, which refuses input that 1.4 repaired silently. If either version
//! ignores a value, a warning counts it.

mod agentic;
mod decode;
mod row;
mod scan;
mod text;

pub(crate) use agentic::read as read_agentic;

use crate::assemble::{Assembler, FieldProblem, Row};
use crate::lines::Lines;
use crate::millis::Millis;
use crate::{RowProblem, Strictness, TimestampUnit, Trace, TraceError, TraceOptions, WarningKind};
use row::{DecodedRow, Dialect, Field};
use std::collections::HashSet;
use std::io::BufRead;
use std::num::NonZeroU32;

pub(crate) fn is_field(name: &str) -> bool {
    Dialect::Plain.field(name).is_some()
}

/// Reads all Mooncake rows of a stream. With `is_delta`, the prompts of later turns contain only new content.
pub(crate) fn read(
    reader: impl BufRead,
    name: &str,
    options: &TraceOptions,
    is_delta: bool,
) -> Result<Trace, TraceError> {
    let at = |line, (field, problem): FieldProblem| TraceError::Row { name: name.to_owned(), line, field, problem };
    let mut lines = Lines::new(reader);
    let mut options = options.clone();
    let mut row = DecodedRow::default();
    let mut request_ids = HashSet::new();
    let mut assembler = None;
    loop {
        let Some((line, bytes)) = lines.next_row().map_err(|error| error.of(name))? else {
            return assembler.unwrap_or_else(|| Assembler::new(&options)).finish(name);
        };
        row.decode(bytes, Dialect::Plain).map_err(|problem| at(line, problem))?;
        let assembler = assembler.get_or_insert_with(|| {
            if row.has_text() && !row.has(Field::HashIds) {
                options.block_size_tokens = options.block_size_tokens.or(NonZeroU32::new(text::BLOCK_TOKENS));
            }
            Assembler::new(&options).with_deltas(is_delta)
        });
        if let Some(request_id) = row.request_id.clone().filter(|name| !request_ids.insert(name.clone())) {
            return Err(at(line, (Some(Field::RequestId.name()), RowProblem::DuplicateRequest { request_id })));
        }
        add(assembler, &mut row, line, &options).map_err(|problem| at(line, problem))?;
    }
}

/// Checks a row and adds it to the assembler. `row` can then be reused.
fn add(assembler: &mut Assembler, row: &mut DecodedRow, line: u32, options: &TraceOptions) -> Result<(), FieldProblem> {
    let delay_ns = row.delay.map(|delay| wait_ns(Field::Delay, delay)).transpose()?;
    let plain = checked(assembler, row, line, options)?;
    assembler.push(line, Row { delay_ns, ..plain })
}

/// Checks the fields that all dialects have, except delays.
fn checked<'a>(
    assembler: &mut Assembler,
    row: &'a mut DecodedRow,
    line: u32,
    options: &TraceOptions,
) -> Result<Row<'a>, FieldProblem> {
    if !row.has(Field::HashIds) && !row.has(Field::InputLength) && !row.has_text() {
        return Err((Some(Field::HashIds.name()), RowProblem::Missing));
    }
    let text = if row.has(Field::HashIds) { None } else { row.take_text() };
    let asked_tokens = text.as_ref().and_then(|(_, asked_tokens)| *asked_tokens);
    let Some(output_tokens) = row.has(Field::OutputLength).then_some(row.output_tokens).or(asked_tokens) else {
        return Err((Some(Field::OutputLength.name()), RowProblem::Missing));
    };
    let Prompt { input_tokens, used_ids, own_blocks } = match text {
        Some((text, _)) => text_prompt(assembler, row, &text, line, options)?,
        None => prompt(assembler, row, line, options)?,
    };
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
        own_blocks,
        times: None,
        call: None,
        recorded_ns: row.recorded_api_time.and_then(|time| u64::try_from(time.ns).ok()),
        output_token_ids: &row.output_token_ids,
        items: &row.items,
        timestamp_ns: row.timestamp.map(|timestamp| timestamp_ns(timestamp, options.timestamp_unit)).transpose()?,
        delay_ns: None,
        priority: row.priority,
        strict_priority: row.strict_priority,
        policy_class: row.policy_class.take(),
    })
}

fn timestamp_ns(timestamp: Millis, unit: TimestampUnit) -> Result<i64, FieldProblem> {
    let beyond = || (Some(Field::Timestamp.name()), RowProblem::Malformed("the time is beyond 292 years".to_owned()));
    match unit {
        TimestampUnit::Milliseconds => Ok(timestamp.ns),
        TimestampUnit::Seconds => timestamp.ns.checked_mul(1000).ok_or_else(beyond),
    }
}

/// Converts a wait to nanoseconds. A wait cannot be negative.
fn wait_ns(field: Field, wait: Millis) -> Result<u64, FieldProblem> {
    u64::try_from(wait.ns).map_err(|_| {
        let delay_ms = (wait.ns as f64 / 1e6).to_string();
        (Some(field.name()), RowProblem::NegativeDelay { delay_ms })
    })
}

struct Prompt {
    input_tokens: u32,
    /// Number of the row's hash ids that belong to the prompt.
    used_ids: usize,
    /// Number of further blocks, which no other prompt shares.
    own_blocks: u32,
}

/// The prompt of a row with a text. The hash ids are computed from the text.
fn text_prompt(
    assembler: &mut Assembler,
    row: &mut DecodedRow,
    text: &str,
    line: u32,
    options: &TraceOptions,
) -> Result<Prompt, FieldProblem> {
    let block_size_tokens = options.block_size_or_default().get();
    let input_tokens = if row.has(Field::InputLength) {
        row.input_tokens
    } else {
        let problem = || (Some(Field::InputLength.name()), RowProblem::PromptWithoutLength);
        assembler.warn(WarningKind::PromptLengthEstimated, line, problem)?;
        checked_length(text::tokens(text))?
    };
    text::block_ids(text, block_size_tokens, &mut row.hash_ids);
    let blocks = input_tokens.div_ceil(block_size_tokens);
    let used_ids = row.hash_ids.len().min(blocks as usize);
    Ok(Prompt { input_tokens, used_ids, own_blocks: blocks - used_ids as u32 })
}

fn checked_length(tokens: u64) -> Result<u32, FieldProblem> {
    u32::try_from(tokens).map_err(|_| {
        let text = format!("a prompt of {tokens} tokens is beyond {}", u32::MAX);
        (Some(Field::InputLength.name()), RowProblem::Malformed(text))
    })
}

/// The prompt of a row with hash ids or a length.
fn prompt(
    assembler: &mut Assembler,
    row: &DecodedRow,
    line: u32,
    options: &TraceOptions,
) -> Result<Prompt, FieldProblem> {
    if !row.has(Field::HashIds) {
        // The row has no content ids, so the prompt shares nothing with other prompts.
        return match row.has(Field::InputLength) {
            true => Ok(Prompt { input_tokens: row.input_tokens, used_ids: 0, own_blocks: 0 }),
            false => Err((Some(Field::HashIds.name()), RowProblem::Missing)),
        };
    }
    let block_size_tokens = options.block_size_or_default().get();
    let hash_ids = row.hash_ids.len() as u64;
    // The product cannot overflow, because a row is at most 64 MiB of text.
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
    Ok(Prompt { input_tokens: checked_length(input_tokens)?, used_ids, own_blocks: 0 })
}

#[cfg(test)]
mod tests;
