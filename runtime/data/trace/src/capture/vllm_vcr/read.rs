//! Converts vllm-vcr's lines to lines of a capture.

use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::capture::decode::typed;
use crate::capture::error::CaptureProblem;
use crate::capture::error::LineProblem;
use crate::capture::hash::{BlockHash, HashScheme};
use crate::capture::record::{
    CAPTURE_FORMAT, CAPTURE_VERSION, CaptureLine, CaptureMeta, GapSummary, Holds, RequestRecord, StepContext,
};
use crate::millis::Millis;

/// Nanoseconds, read from a non-negative number of milliseconds.
#[derive(Clone, Copy, Default)]
struct Ns(u64);

impl<'de> Deserialize<'de> for Ns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ns = Millis::deserialize(deserializer)?.ns;
        u64::try_from(ns).map(Ns).map_err(|_| D::Error::custom("invalid time: expected at least 0"))
    }
}

#[derive(Deserialize)]
struct MetaLine {
    meta: Meta,
}

#[derive(Default, Deserialize)]
struct Meta {
    model: Option<String>,
    gpu: Option<String>,
    source: Option<String>,
    block_size: Option<u32>,
    config_hash: Option<String>,
    vllm_version: Option<String>,
    /// vllm-vcr never writes this field. vcr's writer writes it for hashes other than FNV.
    hash: Option<HashScheme>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Deserialize)]
struct Record {
    prompt_tokens: u32,
    #[serde(default)]
    cached_tokens: u32,
    output_tokens: u32,
    ttft_ms: Ns,
    #[serde(default)]
    itl_ms: Option<Vec<Ns>>,
    #[serde(default)]
    itl_tokens: Option<Vec<u32>>,
    #[serde(default)]
    itl_summary: Option<Summary>,
    #[serde(default)]
    concurrency: Option<u32>,
    #[serde(default)]
    arrival_ms: Option<Ns>,
    #[serde(default)]
    itl_ctx: Option<Context>,
    #[serde(default)]
    block_hashes: Option<Vec<BlockHash>>,
    #[serde(default)]
    mm_hashes: Option<Vec<String>>,
    #[serde(default)]
    output_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Deserialize)]
struct Summary {
    mean_ms: Ns,
    count: u32,
}

#[derive(Deserialize)]
struct Context {
    num_running: Vec<u32>,
    #[serde(default)]
    prefill_tokens: Vec<u32>,
}

pub(in crate::capture) fn decode(row: &[u8]) -> Result<CaptureLine, LineProblem> {
    #[derive(Deserialize)]
    struct Sniff {
        meta: Option<IgnoredAny>,
    }
    // There are many records and few meta lines, so only a row that starts like a meta line is parsed here.
    let is_meta = row.len() < 1 << 20
        && row.windows(6).take(16).any(|window| window == b"\"meta\"")
        && serde_json::from_slice::<Sniff>(row).is_ok_and(|line| line.meta.is_some());
    if is_meta { Ok(CaptureLine::Meta(Box::new(typed::<MetaLine>(row)?.meta.into()))) } else { record(typed(row)?) }
}

impl From<Meta> for CaptureMeta {
    fn from(meta: Meta) -> Self {
        CaptureMeta {
            format: CAPTURE_FORMAT.to_owned(),
            version: CAPTURE_VERSION,
            source: meta.source,
            model: meta.model,
            gpu: meta.gpu,
            vllm_version: meta.vllm_version,
            block_size_tokens: meta.block_size,
            hash: meta.hash.unwrap_or(HashScheme::Fnv1a),
            // A trace does not state what it contains. A check of what a trace discloses must assume this.
            holds: Holds { output_tokens: true, ..Holds::default() },
            fingerprint: meta.config_hash,
            other: meta.other,
            ..CaptureMeta::default()
        }
    }
}

pub(in crate::capture) fn absent_meta() -> CaptureMeta {
    Meta::default().into()
}

fn record(theirs: Record) -> Result<CaptureLine, LineProblem> {
    let gap_ns: Vec<u64> = theirs.itl_ms.unwrap_or_default().into_iter().map(|gap| gap.0).collect();
    if let Some(tokens) = &theirs.itl_tokens
        && tokens.len() != gap_ns.len()
    {
        let (given, expected) = (tokens.len() as u64, gap_ns.len() as u64);
        let rule = "one for each of `itl_ms`";
        return Err(LineProblem::of("itl_tokens", CaptureProblem::WrongLength { given, expected, rule }));
    }
    if theirs.output_tokens > 1 && gap_ns.is_empty() && theirs.itl_summary.is_none() {
        return Err(LineProblem::of("itl_ms", CaptureProblem::GapsMissing));
    }
    let first_tokens = first_tokens(theirs.output_tokens, gap_ns.len(), theirs.itl_tokens.as_deref())?;
    let concurrency = theirs.concurrency.unwrap_or(1);
    let own_tokens = theirs.prompt_tokens.saturating_sub(theirs.cached_tokens);
    let context = theirs.itl_ctx.filter(|_| theirs.output_tokens > 0);
    let steps = context.map(|context| steps(context, gap_ns.len(), concurrency, own_tokens)).transpose()?;
    let mut record = RequestRecord {
        arrival_ns: theirs.arrival_ms.map(|arrival| arrival.0),
        concurrency: Some(concurrency),
        prompt_tokens: theirs.prompt_tokens,
        cached_tokens: theirs.cached_tokens,
        block_hashes: theirs.block_hashes.unwrap_or_default(),
        output_tokens: theirs.output_tokens,
        output_token_ids: theirs.output_token_ids,
        ttft_ns: Some(theirs.ttft_ms.0),
        first_tokens: first_tokens.filter(|tokens| *tokens != 1),
        gap_ns,
        gap_tokens: theirs.itl_tokens,
        gap_summary: theirs.itl_summary.map(|summary| GapSummary { mean_ns: summary.mean_ms.0, count: summary.count }),
        steps,
        finish_reason: theirs.finish_reason,
        mm_hashes: theirs.mm_hashes.unwrap_or_default(),
        other: theirs.other,
        ..RequestRecord::default()
    };
    record.end_ns = record.duration_ns();
    Ok(CaptureLine::Request(Box::new(record)))
}

/// Number of tokens of the first output: the total minus the tokens of later outputs. `None` without gaps. An
/// error if no token is left for the first output.
fn first_tokens(output_tokens: u32, gaps: usize, gap_tokens: Option<&[u32]>) -> Result<Option<u32>, LineProblem> {
    if gaps == 0 {
        return Ok(None);
    }
    let later = gap_tokens.map_or(gaps as u64, |tokens| tokens.iter().copied().map(u64::from).sum());
    match u64::from(output_tokens).checked_sub(later) {
        Some(first @ 1..) => Ok(u32::try_from(first).ok()),
        _ => {
            Err(LineProblem::of("output_tokens", CaptureProblem::OutputsDoNotAddUp { output_tokens, given: later + 1 }))
        }
    }
}

fn steps(context: Context, gaps: usize, concurrency: u32, own_tokens: u32) -> Result<StepContext, LineProblem> {
    let lists = [("itl_ctx.num_running", &context.num_running), ("itl_ctx.prefill_tokens", &context.prefill_tokens)];
    for (field, list) in lists {
        if list.len() != gaps {
            let (given, expected) = (list.len() as u64, gaps as u64);
            return Err(LineProblem::of(
                field,
                CaptureProblem::WrongLength { given, expected, rule: "one for each of `itl_ms`" },
            ));
        }
    }
    let with_first = |first: u32, later: Vec<u32>| std::iter::once(first).chain(later).collect();
    Ok(StepContext {
        running: with_first(concurrency, context.num_running),
        waiting: Vec::new(),
        prefill_tokens: with_first(own_tokens, context.prefill_tokens),
    })
}
