//! Converts lines of a capture to lines of vllm-vcr.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::capture::hash::{BlockHash, HashScheme};
use crate::capture::record::{CaptureLine, CaptureMeta, RequestRecord};

/// Counts of the content that a trace of vllm-vcr cannot contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VllmVcrDropped {
    /// Number of requests that had not ended.
    pub unfinished: u64,
    /// Number of requests without the times that the schema requires: the time of the first output, and, with more
    /// than one output token, the gaps or their mean.
    pub without_times: u64,
    /// Number of requests that lost a field, by name of the field.
    pub fields: BTreeMap<&'static str, u64>,
    /// Number of lines that were left out, by kind.
    pub lines: BTreeMap<&'static str, u64>,
}

/// Writes a capture as a trace of vllm-vcr, line by line.
pub struct VllmVcrWriter<W: Write> {
    out: W,
    dropped: VllmVcrDropped,
}

#[derive(Serialize)]
struct MetaLine<'a> {
    meta: Meta<'a>,
}

#[derive(Serialize)]
struct Meta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config_hash: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vllm_version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<HashScheme>,
    #[serde(flatten)]
    other: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct Record<'a> {
    prompt_tokens: u32,
    #[serde(skip_serializing_if = "is_zero")]
    cached_tokens: u32,
    output_tokens: u32,
    ttft_ms: Ms,
    #[serde(skip_serializing_if = "<[u64]>::is_empty", serialize_with = "many_ms")]
    itl_ms: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    itl_tokens: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    itl_summary: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arrival_ms: Option<Ms>,
    #[serde(skip_serializing_if = "Option::is_none")]
    itl_ctx: Option<Context<'a>>,
    #[serde(skip_serializing_if = "<[BlockHash]>::is_empty", serialize_with = "as_numbers")]
    block_hashes: &'a [BlockHash],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mm_hashes: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<&'a str>,
    #[serde(flatten)]
    other: &'a Map<String, Value>,
}

/// Nanoseconds, written as milliseconds. Times below 2^32 ms can be read back exactly.
#[derive(Clone, Copy)]
struct Ms(u64);

impl Serialize for Ms {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0 as f64 / 1e6)
    }
}

#[derive(Serialize)]
struct Summary {
    mean_ms: Ms,
    count: u32,
}

#[derive(Serialize)]
struct Context<'a> {
    num_running: &'a [u32],
    prefill_tokens: &'a [u32],
}

impl<W: Write> VllmVcrWriter<W> {
    /// Starts a trace with the meta line.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn new(out: W, meta: &CaptureMeta) -> io::Result<Self> {
        let mut writer = Self { out, dropped: VllmVcrDropped::default() };
        writer.write_json(&MetaLine {
            meta: Meta {
                model: meta.model.as_deref(),
                gpu: meta.gpu.as_deref(),
                source: meta.source.as_deref(),
                block_size: meta.block_size_tokens,
                config_hash: meta.fingerprint.as_deref(),
                vllm_version: meta.vllm_version.as_deref(),
                hash: (meta.hash != HashScheme::Fnv1a).then_some(meta.hash),
                other: &meta.other,
            },
        })?;
        Ok(writer)
    }

    /// Writes what the schema can contain, and counts the rest. Arrivals and the ends of files are neither written
    /// nor counted.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn write(&mut self, line: &CaptureLine) -> io::Result<()> {
        let kind = match line {
            CaptureLine::Request(record) => return self.write_record(record),
            CaptureLine::Meta(_) | CaptureLine::Arrival(_) | CaptureLine::End(_) => return Ok(()),
            CaptureLine::Engine(_) => "engine",
            CaptureLine::Step(_) => "step",
            CaptureLine::Http(_) => "http",
            CaptureLine::Kv(_) => "kv",
            CaptureLine::Break(_) => "break",
        };
        *self.dropped.lines.entry(kind).or_default() += 1;
        Ok(())
    }

    /// Ends the trace. Returns the counts of what the trace could not contain.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn finish(mut self) -> io::Result<VllmVcrDropped> {
        self.out.flush()?;
        Ok(self.dropped)
    }

    fn write_record(&mut self, record: &RequestRecord) -> io::Result<()> {
        if !record.is_over() {
            self.dropped.unfinished += 1;
            return Ok(());
        }
        let are_gaps_known = record.output_tokens <= 1 || !record.gap_ns.is_empty() || record.gap_summary.is_some();
        let (Some(ttft_ns), true) = (record.ttft_ns, are_gaps_known) else {
            self.dropped.without_times += 1;
            return Ok(());
        };
        for (field, is_given) in fields_left_out(record) {
            if is_given {
                *self.dropped.fields.entry(field).or_default() += 1;
            }
        }
        self.write_json(&Record {
            prompt_tokens: record.prompt_tokens,
            // This field counts both kinds of cached tokens. A sum above the prompt's length would be refused.
            cached_tokens: record.cached_tokens.saturating_add(record.external_cached_tokens).min(record.prompt_tokens),
            output_tokens: record.output_tokens,
            ttft_ms: Ms(ttft_ns),
            itl_ms: &record.gap_ns,
            itl_tokens: record.gap_tokens.as_deref(),
            itl_summary: record
                .gap_summary
                .map(|summary| Summary { mean_ms: Ms(summary.mean_ns), count: summary.count }),
            concurrency: record.concurrency,
            arrival_ms: record.arrival_ns.map(Ms),
            itl_ctx: context(record),
            block_hashes: &record.block_hashes,
            mm_hashes: record.media_hashes().collect(),
            output_token_ids: record.output_token_ids.as_deref(),
            finish_reason: record.finish_reason.as_deref(),
            other: &record.other,
        })
    }

    fn write_json(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, line)?;
        self.out.write_all(b"\n")
    }
}

/// The step context. It starts with the second output, and both lists are required.
fn context(record: &RequestRecord) -> Option<Context<'_>> {
    let steps = record.steps.as_ref()?;
    let (_, num_running) = steps.running.split_first()?;
    let (_, prefill_tokens) = steps.prefill_tokens.split_first()?;
    Some(Context { num_running, prefill_tokens })
}

/// The fields that the schema lacks, and whether the record has each. The end of a request is left out silently,
/// because it follows from the gaps.
fn fields_left_out(record: &RequestRecord) -> [(&'static str, bool); 17] {
    let steps = record.steps.as_ref();
    [
        ("id", record.id.is_some()),
        ("external_id", record.external_id.is_some()),
        ("client", record.client != 0),
        ("rank", record.rank != 0),
        ("prompt_hash", record.prompt_hash.is_some()),
        ("prompt_token_ids", record.prompt_token_ids.is_some()),
        ("steps", steps.is_some() && context(record).is_none()),
        ("steps.waiting", steps.is_some_and(|steps| !steps.waiting.is_empty())),
        ("stop_reason", record.stop_reason.is_some()),
        ("queue_ns", record.queue_ns.is_some()),
        ("preemptions", record.preemptions != 0),
        ("params", !record.params.is_empty()),
        ("priority", record.priority != 0),
        ("lora", record.lora.is_some()),
        ("session", record.session.is_some()),
        // The hashes of the items are kept.
        ("mm_items", !record.mm_items.is_empty()),
        ("kv_role or error", record.kv_role.is_some() || record.error.is_some()),
    ]
}

fn many_ms<S: Serializer>(times_ns: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(times_ns.iter().copied().map(Ms))
}

fn as_numbers<S: Serializer>(hashes: &[BlockHash], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(hashes.iter().map(|hash| hash.0))
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
