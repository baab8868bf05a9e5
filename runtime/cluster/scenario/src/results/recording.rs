//! Captures of runs, made from their reports. A run's option `record` requests one.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use vcr_base::output::{OutputError, OutputFile};
use vcr_cluster::record::{Outcome, RequestRecord};
use vcr_cluster::{Report, TargetReport};
use vcr_trace::capture::{
    CAPTURE_FORMAT, CAPTURE_VERSION, CaptureEnd, CaptureLine, CaptureMeta, CaptureWriter, FinishReason, GapSummary,
    RequestRecord as CapturedRequest,
};

const SOURCE: &str = "run";

/// Writes the requests of a run as a capture. The name of `path` determines the compression. Prompts were hashed in
/// blocks of `block_size_tokens`.
pub(crate) fn write(
    report: &Report,
    block_size_tokens: u32,
    path: &Path,
    draft: OutputFile,
) -> Result<(), OutputError> {
    let file = draft.handle()?;
    let has_hashes = report.kept.iter().flatten().any(|kept| kept.prompt.is_some());
    let meta = CaptureMeta { block_size_tokens: has_hashes.then_some(block_size_tokens), ..meta(report) };
    let written = CaptureWriter::to_file(file, path, meta).and_then(|writer| write_lines(report, writer));
    written.map_err(|source| OutputError::Write { path: path.to_owned(), source })?;
    draft.commit()
}

fn meta(report: &Report) -> CaptureMeta {
    let target = report.target.as_ref();
    CaptureMeta {
        format: CAPTURE_FORMAT.to_owned(),
        version: CAPTURE_VERSION,
        source: Some(SOURCE.to_owned()),
        model: target.and_then(|target| target.model.clone()),
        ..CaptureMeta::default()
    }
}

/// Writes requests in the order of their ends, as captures require.
fn write_lines(report: &Report, mut writer: CaptureWriter) -> io::Result<()> {
    let mut ends_ns: Vec<u64> = report.requests.iter().filter_map(|record| record.end_ns).collect();
    ends_ns.sort_unstable();
    let sessions = sessions_with_turns(&report.requests);
    let mut ended: Vec<(u64, usize)> = Vec::with_capacity(ends_ns.len());
    ended.extend(report.requests.iter().enumerate().filter_map(|(place, record)| Some((record.end_ns?, place))));
    ended.sort_unstable();
    for (end_ns, place) in &ended {
        let record = &report.requests[*place];
        let ended_before = ends_ns.partition_point(|end_ns| *end_ns <= record.arrival_ns);
        let mut line = captured(report, *place, *end_ns);
        // Requests are stored in order of arrival, so `place` is the number of earlier arrivals.
        line.concurrency = Some((place + 1).saturating_sub(ended_before).max(1) as u32);
        let session = (record.workload, record.session);
        line.session = sessions
            .contains(&session)
            .then(|| format!("{} {}", report.workload_names[record.workload as usize], record.session));
        writer.write(&CaptureLine::Request(Box::new(line)))?;
    }
    let end = CaptureEnd {
        at_ns: ((report.duration_ms * 1e6).round() as u64).max(ends_ns.last().copied().unwrap_or(0)),
        requests: ended.len() as u64,
        unfinished: (report.requests.len() - ended.len()) as u64,
        continues: false,
    };
    writer.write(&CaptureLine::End(end))?;
    writer.finish()
}

fn sessions_with_turns(records: &[RequestRecord]) -> BTreeSet<(u32, u64)> {
    records.iter().filter(|record| record.turn > 0).map(|record| (record.workload, record.session)).collect()
}

fn captured(report: &Report, place: usize, end_ns: u64) -> CapturedRequest {
    let record = &report.requests[place];
    let since = |at_ns: Option<u64>| at_ns.map(|at_ns| at_ns.saturating_sub(record.arrival_ns));
    let kept = report.kept.as_ref().map(|kept| &kept[place]);
    let outputs = kept.and_then(|kept| outputs(record, &kept.outputs));
    let gap_summary = match (record.first_token_ns, record.last_token_ns, record.output_tokens) {
        (Some(first_ns), Some(last_ns), 2..) if outputs.is_none() => {
            let count = record.output_tokens - 1;
            Some(GapSummary { mean_ns: last_ns.saturating_sub(first_ns) / u64::from(count), count })
        }
        _ => None,
    };
    let Outputs { first_tokens, gap_ns, gap_tokens } = outputs.unwrap_or_default();
    let prompt = kept.and_then(|kept| kept.prompt.clone());
    let failure = match record.outcome {
        Outcome::Unfinished | Outcome::Completed | Outcome::GivenUp(_) => None,
        Outcome::Rejected(_) | Outcome::Shed | Outcome::Failed(_) => {
            Some(record.outcome.reason().unwrap_or_else(|| record.outcome.status().to_owned()))
        }
    };
    CapturedRequest {
        id: report.request_names.of_request(record).map(str::to_owned),
        rank: record.prefill_worker.unwrap_or(0),
        arrival_ns: Some(record.arrival_ns),
        prompt_tokens: record.prompt_tokens,
        cached_tokens: record.cached_tokens.min(record.prompt_tokens),
        output_tokens: record.output_tokens,
        ttft_ns: since(record.first_token_ns),
        first_tokens,
        gap_ns,
        gap_tokens,
        gap_summary,
        block_hashes: prompt.as_ref().map(|prompt| prompt.blocks.clone()).unwrap_or_default(),
        prompt_hash: prompt.map(|prompt| prompt.whole),
        finish_reason: Some(finish_reason(record).name().to_owned()),
        end_ns: Some(end_ns.saturating_sub(record.arrival_ns)),
        queue_ns: since(record.scheduled_ns).filter(|_| knows_queue(report.target.as_ref())),
        preemptions: record.preemptions,
        lora: record.adapter.map(|adapter| adapter.to_string()),
        error: failure,
        ..CapturedRequest::default()
    }
}

#[derive(Default)]
struct Outputs {
    first_tokens: Option<u32>,
    gap_ns: Vec<u64>,
    gap_tokens: Option<Vec<u32>>,
}

/// Outputs at the client's times. None if not all outputs were kept.
fn outputs(record: &RequestRecord, emitted: &[(u64, u32)]) -> Option<Outputs> {
    let kept_tokens: u64 = emitted.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
    if kept_tokens != u64::from(record.output_tokens) {
        return None;
    }
    let (&(_, first_tokens), later) = emitted.split_first()?;
    let (first_ns, last_ns) = (record.first_token_ns?, record.last_token_ns?);
    // All outputs except the first take the same time to reach the client.
    let way_ns = later.last().map_or(0, |(emitted_ns, _)| last_ns.saturating_sub(*emitted_ns));
    let mut before_ns = first_ns;
    let gap_ns = later.iter().map(|(emitted_ns, _)| {
        let at_ns = emitted_ns.saturating_add(way_ns);
        let gap_ns = at_ns.saturating_sub(before_ns);
        before_ns = at_ns;
        gap_ns
    });
    let gap_ns = gap_ns.collect();
    let is_single = first_tokens == 1 && later.iter().all(|(_, tokens)| *tokens == 1);
    let gap_tokens = (!is_single && !later.is_empty()).then(|| later.iter().map(|(_, tokens)| *tokens).collect());
    Some(Outputs { first_tokens: (first_tokens != 1).then_some(first_tokens), gap_ns, gap_tokens })
}

/// Whether the run knows when engines began to compute a request.
fn knows_queue(target: Option<&TargetReport>) -> bool {
    target.is_none_or(|target| !target.absent.contains_key("queue"))
}

fn finish_reason(record: &RequestRecord) -> FinishReason {
    match record.outcome {
        Outcome::Completed if record.output_tokens < record.max_tokens => FinishReason::Stop,
        Outcome::Unfinished | Outcome::Completed => FinishReason::Length,
        Outcome::GivenUp(_) => FinishReason::Abort,
        Outcome::Rejected(_) | Outcome::Shed | Outcome::Failed(_) => FinishReason::Error,
    }
}
