//! Checks a request line beyond the types of its fields.

use vcr_base::finish_reason::FinishReason;

use super::decode::CaptureFormat;
use super::error::CaptureProblem;
use super::error::LineProblem;
use super::http::HttpRecord;
use super::record::{CaptureMeta, RequestRecord};
use crate::trace::media;

/// The required number of block hashes of a capture's requests.
#[derive(Clone, Copy)]
pub(super) enum BlockRule {
    /// One hash for each full block of this many tokens.
    Of(u32),
    /// No hashes, because the block size is unknown.
    None,
    /// Any number of hashes.
    Any,
}

impl BlockRule {
    pub(super) fn of(meta: &CaptureMeta, format: CaptureFormat) -> Self {
        match (meta.block_size_tokens, format) {
            (Some(block_size_tokens), _) => Self::Of(block_size_tokens),
            (None, CaptureFormat::Capture) => Self::None,
            (None, CaptureFormat::VllmVcr) => Self::Any,
        }
    }
}

pub(super) fn check(record: &RequestRecord, blocks: BlockRule) -> Result<(), LineProblem> {
    check_prompt(record, blocks)?;
    check_outputs(record)?;
    check_steps(record)?;
    if let Some(reason) = &record.finish_reason
        && FinishReason::parse(reason).is_none()
    {
        return Err(LineProblem::of("finish_reason", CaptureProblem::UnknownFinishReason { reason: reason.clone() }));
    }
    check_times(record)
}

fn check_prompt(record: &RequestRecord, blocks: BlockRule) -> Result<(), LineProblem> {
    let prompt_tokens = record.prompt_tokens;
    if prompt_tokens == 0 {
        return Err(LineProblem::of("prompt_tokens", CaptureProblem::EmptyPrompt));
    }
    if let Some(ids) = &record.prompt_token_ids {
        let rule = "one for each of `prompt_tokens`";
        check_length("prompt_token_ids", ids.len(), u64::from(prompt_tokens), rule)?;
    }
    for (field, cached_tokens) in
        [("cached_tokens", record.cached_tokens), ("external_cached_tokens", record.external_cached_tokens)]
    {
        if cached_tokens > prompt_tokens {
            return Err(LineProblem::of(field, CaptureProblem::CachedBeyondPrompt { cached_tokens, prompt_tokens }));
        }
    }
    if !record.mm_items.is_empty() && !record.mm_hashes.is_empty() {
        return Err(LineProblem::of("mm_hashes", CaptureProblem::MediaTwice));
    }
    media::check(&record.mm_items, prompt_tokens).map_err(|(index, field, problem)| {
        LineProblem::of(&format!("mm_items[{index}].{field}"), CaptureProblem::Item(problem))
    })?;
    if record.block_hashes.is_empty() {
        return Ok(());
    }
    match blocks {
        BlockRule::Any => Ok(()),
        BlockRule::None => Err(LineProblem::of("block_hashes", CaptureProblem::NoBlockSize)),
        BlockRule::Of(block_size_tokens) => {
            let full_blocks = u64::from(prompt_tokens / block_size_tokens);
            let rule = "one for each full block of the prompt, by the meta line's `block_size_tokens`";
            check_length("block_hashes", record.block_hashes.len(), full_blocks, rule)
        }
    }
}

/// Checks the tokens of outputs: of each output if gaps are known, or else only their sum.
fn check_outputs(record: &RequestRecord) -> Result<(), LineProblem> {
    let output_tokens = record.output_tokens;
    let gaps = record.gap_ns.len() as u64;
    if let Some(ids) = &record.output_token_ids {
        check_length("output_token_ids", ids.len(), u64::from(output_tokens), "one for each of `output_tokens`")?;
    }
    if let Some(tokens) = &record.gap_tokens {
        check_length("gap_tokens", tokens.len(), gaps, "one for each of `gap_ns`")?;
        if let Some(index) = tokens.iter().position(|tokens| *tokens == 0) {
            return Err(LineProblem::of(&format!("gap_tokens[{index}]"), CaptureProblem::EmptyChunk));
        }
    }
    if record.first_tokens == Some(0) {
        return Err(LineProblem::of("first_tokens", CaptureProblem::EmptyChunk));
    }
    let first_tokens = u64::from(record.first_tokens.unwrap_or(1));
    if let Some(summary) = record.gap_summary {
        if gaps > 0 {
            return Err(LineProblem::of("gap_summary", CaptureProblem::GapsTwice));
        }
        let count = summary.count;
        if u64::from(count) + first_tokens > u64::from(output_tokens) {
            return Err(LineProblem::of("gap_summary.count", CaptureProblem::TooManyGaps { count, output_tokens }));
        }
    } else if gaps > 0 || record.first_tokens.is_some() {
        let later_tokens =
            record.gap_tokens.as_ref().map_or(gaps, |tokens| tokens.iter().copied().map(u64::from).sum());
        let given = first_tokens + later_tokens;
        if given != u64::from(output_tokens) {
            return Err(LineProblem::of("output_tokens", CaptureProblem::OutputsDoNotAddUp { output_tokens, given }));
        }
    }
    Ok(())
}

fn check_steps(record: &RequestRecord) -> Result<(), LineProblem> {
    let Some(steps) = &record.steps else { return Ok(()) };
    let outputs = if record.output_tokens == 0 { 0 } else { record.gap_ns.len() as u64 + 1 };
    let lists = [
        ("steps.running", &steps.running),
        ("steps.waiting", &steps.waiting),
        ("steps.prefill_tokens", &steps.prefill_tokens),
    ];
    for (field, list) in lists {
        if !list.is_empty() {
            check_length(field, list.len(), outputs, "one for the first output and one for each of `gap_ns`")?;
        }
    }
    Ok(())
}

fn check_times(record: &RequestRecord) -> Result<(), LineProblem> {
    let overflow = |field: &str| LineProblem::of(field, CaptureProblem::TimesOverflow);
    let add = |sum_ns: u64, more_ns: Option<u64>, field| {
        sum_ns.checked_add(more_ns.unwrap_or(0)).ok_or_else(|| overflow(field))
    };
    let arrival_ns = record.arrival_ns.unwrap_or(0);
    add(arrival_ns, record.end_ns, "end_ns")?;
    add(arrival_ns, record.queue_ns, "queue_ns")?;
    let mut sum_ns = add(arrival_ns, record.ttft_ns, "ttft_ns")?;
    for gap_ns in &record.gap_ns {
        sum_ns = add(sum_ns, Some(*gap_ns), "gap_ns")?;
    }
    if let Some(summary) = record.gap_summary {
        let gaps_ns = summary.mean_ns.checked_mul(u64::from(summary.count));
        add(sum_ns, Some(gaps_ns.ok_or_else(|| overflow("gap_summary"))?), "gap_summary")?;
    }
    Ok(())
}

fn check_length(field: &str, given: usize, expected: u64, rule: &'static str) -> Result<(), LineProblem> {
    let given = given as u64;
    if given == expected {
        return Ok(());
    }
    Err(LineProblem::of(field, CaptureProblem::WrongLength { given, expected, rule }))
}

pub(super) fn check_http(record: &HttpRecord) -> Result<(), LineProblem> {
    if let Some(status) = record.status.filter(|status| !(100..1000).contains(status)) {
        return Err(LineProblem::of("status", CaptureProblem::InvalidStatus { status }));
    }
    let mut before_ns = 0;
    for (index, (after_ns, _)) in record.chunks.iter().enumerate() {
        if *after_ns < before_ns {
            return Err(LineProblem::of(&format!("chunks[{index}]"), CaptureProblem::ChunkBeforeItsTime));
        }
        before_ns = *after_ns;
    }
    let end_ns = record.end_ns.max(before_ns);
    match record.arrival_ns.checked_add(end_ns) {
        Some(_) => Ok(()),
        None => Err(LineProblem::of("end_ns", CaptureProblem::TimesOverflow)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::HttpBytes;

    #[test]
    fn times_and_statuses_are_checked() {
        let record = HttpRecord { status: Some(200), end_ns: 5, ..HttpRecord::default() };
        assert!(check_http(&record).is_ok());
        let chunk = |after_ns| (after_ns, HttpBytes::default());
        let wrong = [
            HttpRecord { status: Some(1), ..record.clone() },
            HttpRecord { chunks: vec![chunk(4), chunk(3)], ..record.clone() },
            HttpRecord { arrival_ns: u64::MAX, ..record.clone() },
            HttpRecord { arrival_ns: 1, chunks: vec![chunk(u64::MAX)], ..record },
        ];
        assert!(wrong.iter().all(|record| check_http(record).is_err()));
    }
}
