//! Reads captures and all formats that `vcr inspect convert` turns into captures: guidellm's reports, spans,
//! Dynamo's logs and tables.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::Value;
use vcr_trace::Format;
use vcr_trace::capture::{CaptureLine, CaptureMeta, RequestRecord};
use vcr_trace::import::{ImportOptions, OUTPUT_TEXT};

use super::Out;
use super::exchange::Exchanges;
use crate::error::{GateError, Place};
use crate::observation::Observation;

/// Reads a file. Returns the file's format, and counts of what was skipped.
pub(super) fn read(
    path: &Path,
    run: Option<&str>,
    out: &mut Out<'_, '_>,
) -> Result<(Format, Vec<(String, u64)>), GateError> {
    let format = out.options.format;
    let options = ImportOptions { format, run: run.map(str::to_owned), output_text: true, ..ImportOptions::default() };
    let mut meta = CaptureMeta::default();
    let mut kv_usage: BTreeMap<u32, f64> = BTreeMap::new();
    let (mut requests, mut ended) = (0_u64, None);
    let mut exchanges = Exchanges::default();
    let imported = vcr_trace::import::import(path, &options, &mut |line| {
        match line {
            CaptureLine::Meta(found) => meta = *found,
            CaptureLine::Step(step) => {
                let usage = step.scheduler.as_ref().and_then(|stats| stats.get("kv_cache_usage")?.as_f64());
                kv_usage.extend(usage.map(|usage| (step.rank, usage)));
            }
            CaptureLine::Http(http) => exchanges.add(&http),
            CaptureLine::Request(mut record) if record.is_over() => {
                exchanges.complete(&mut record);
                requests += 1;
                let place = Place::Request(requests);
                let usage = kv_usage.get(&record.rank).copied().filter(|usage| (0.0..=1.0).contains(usage));
                let tokens = u64::from(record.output_tokens);
                let observation = Observation { kv_usage: usage, ..observation(&meta, *record, requests) };
                let taken = out.add(observation, Some(tokens), place);
                match taken {
                    Ok(ControlFlow::Continue(())) => {}
                    other => {
                        ended = Some(other.map(|_| ()));
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                }
            }
            _ => {}
        }
        Ok(())
    });
    match (ended, imported) {
        (Some(ended), _) => ended.map(|()| (Format::Capture, Vec::new())),
        (None, imported) => {
            let imported = imported?;
            let notes = imported.notes.into_iter().map(|note| (note.what, note.count));
            Ok((imported.format, notes.collect()))
        }
    }
}

fn observation(meta: &CaptureMeta, mut record: RequestRecord, number: u64) -> Observation<'static> {
    let failed = matches!(record.finish_reason.as_deref(), Some("abort" | "error")) || record.error.is_some();
    // The finish reason is used because error messages differ from request to request.
    let error = failed.then(|| record.finish_reason.clone().unwrap_or_else(|| "error".to_owned()));
    let outputs = record.ttft_ns.and_then(|_| record.output_times()).unwrap_or_default();
    let known_tokens: u64 = outputs.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
    let are_single = record.gap_summary.is_none() && known_tokens >= u64::from(record.output_tokens);
    let is_streamed = are_single && !outputs.is_empty();
    let last_ns = outputs.last().map(|(at_ns, _)| *at_ns);
    // The sum of rounded mean gaps differs from the measured end of the answer.
    let latency_ns = record.end_ns.max(last_ns.filter(|_| are_single)).or(last_ns).or(record.ttft_ns);
    let content = record.prompt_hash.map(|hash| format!("{:016x} {}", hash.0, record.prompt_tokens));
    // Each block hash includes the previous one, so the last hash covers all full blocks.
    let content =
        content.or_else(|| record.block_hashes.last().map(|hash| format!("{:016x} {}", hash.0, record.prompt_tokens)));
    let text = match record.other.remove(OUTPUT_TEXT) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    let id = record.external_id.or(record.id);
    let (event_ns, event_tokens): (Vec<u64>, Vec<u32>) = outputs.into_iter().filter(|(_, tokens)| *tokens > 0).unzip();
    let is_one_each = event_tokens.iter().all(|tokens| *tokens == 1);
    Observation {
        request_id: id.unwrap_or_else(|| format!("request {number}")).into(),
        content: content.map(Into::into),
        ok: !failed,
        error: error.map(Into::into),
        latency_ns,
        ttft_ns: record.ttft_ns.filter(|_| !is_streamed),
        mean_gap_ns: record.gap_summary.filter(|_| !is_streamed).map(|gaps| gaps.mean_ns),
        event_tokens: (is_streamed && !is_one_each).then_some(event_tokens),
        event_ns: is_streamed.then_some(event_ns),
        token_ids: record.output_token_ids,
        text: text.map(Into::into),
        model: meta.model.clone().map(Into::into),
        backend: meta.vllm_version.as_ref().map(|_| "vllm".into()),
        backend_version: meta.vllm_version.clone().map(Into::into),
        accelerator: meta.gpu.clone().map(Into::into),
        replica: Some(record.rank.to_string().into()),
        queue_depth: record.steps.and_then(|steps| steps.waiting.first().copied()),
        ..Observation::default()
    }
}
