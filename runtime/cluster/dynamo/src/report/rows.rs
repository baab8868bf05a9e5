//! Writes one line per request.

use std::io::{self, Write};

use serde::Serialize;
use vcr_cluster::Report;
use vcr_cluster::record::{FailReason, Outcome, RequestRecord, ns_to_ms};
use vcr_core::seed;

use super::tpot_ms;

/// A line with Dynamo's keys. Times are milliseconds of virtual time.
#[derive(Debug, Serialize)]
struct Row {
    session_id: Option<String>,
    turn_index: Option<u32>,
    uuid: String,
    arrival_time_ms: f64,
    first_admit_ms: Option<f64>,
    terminal_time_ms: f64,
    first_token_ms: Option<f64>,
    last_token_ms: Option<f64>,
    ttft_ms: Option<f64>,
    ttst_ms: Option<f64>,
    e2e_latency_ms: Option<f64>,
    itl_ms: Option<f64>,
    input_length: u32,
    requested_output_length: u32,
    output_length: u32,
    reused_input_tokens: u32,
    prefill_worker_idx: Option<u32>,
    decode_worker_idx: Option<u32>,
    prefill_admit_ms: Option<f64>,
    source_held_ms: Option<f64>,
    destination_reserved_ms: Option<f64>,
    destination_activated_ms: Option<f64>,
    decode_admit_ms: Option<f64>,
    source_released_ms: Option<f64>,
    decode_reused_input_tokens: Option<u32>,
    prefill_route_overlap_tokens: Option<u32>,
    decode_route_overlap_tokens: Option<u32>,
    terminal_status: &'static str,
    /// The reason why the request was not completed. Dynamo has no such key.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Writes a JSON line for each request that has ended, in order of arrival. Requests that arrive together are in
/// the order of the trace. `session_id` returns the session's name, if there is one.
pub fn write(
    out: &mut dyn Write,
    report: &Report,
    session_id: &dyn Fn(&RequestRecord) -> Option<String>,
) -> io::Result<()> {
    let prefill_workers = prefill_workers(report);
    let (mut number, mut written) = (0, Ok(()));
    report.for_each_request(|record| {
        if let (Some(end_ns), Ok(())) = (record.end_ns, &written) {
            let row = row(report.seed, number, record, end_ns, prefill_workers, session_id(record));
            written =
                serde_json::to_writer(&mut *out, &row).map_err(io::Error::from).and_then(|()| out.write_all(b"\n"));
        }
        number += 1;
    });
    written
}

/// Number of prefill workers, which have the lowest indices. None in an aggregated cluster.
fn prefill_workers(report: &Report) -> Option<u32> {
    report.pools.get(1).map(|decode| decode.first_worker)
}

fn row(
    run_seed: u64,
    number: u64,
    record: &RequestRecord,
    end_ns: u64,
    prefill_workers: Option<u32>,
    session_id: Option<String>,
) -> Row {
    let ms = |ns: Option<u64>| ns.map(ns_to_ms);
    let since = |from: Option<u64>, to: Option<u64>| Some(ns_to_ms(to? - from?));
    let detail = &record.detail;
    let is_split = prefill_workers.is_some();
    // Only requests with a prefill worker have these fields.
    let split = |ns: Option<u64>| ms(ns).filter(|_| is_split);
    let (prefill_worker_idx, decode_worker_idx) = match prefill_workers {
        Some(first) => (record.prefill_worker, record.decode_worker.map(|worker| worker - first)),
        None => (None, record.prefill_worker),
    };
    let overlap = |tokens: Option<u32>| is_split.then(|| tokens.unwrap_or(0));
    let (terminal_status, reason) = match record.outcome {
        Outcome::Completed | Outcome::Unfinished => ("completed", None),
        Outcome::Rejected(reason) => ("rejected", Some(reason.to_string())),
        Outcome::Shed => ("rejected", Some("all engines had too much to do".to_owned())),
        Outcome::Failed(FailReason::Aborted) => ("canceled", Some(FailReason::Aborted.to_string())),
        Outcome::GivenUp(reason) => ("canceled", Some(reason.to_string())),
        Outcome::Failed(reason) => ("failed", Some(reason.to_string())),
    };
    Row {
        turn_index: session_id.as_ref().map(|_| record.turn),
        session_id,
        uuid: uuid(run_seed, number),
        arrival_time_ms: ns_to_ms(record.arrival_ns),
        first_admit_ms: ms(record.scheduled_ns),
        terminal_time_ms: ns_to_ms(end_ns),
        first_token_ms: ms(record.first_token_ns),
        last_token_ms: ms(record.last_token_ns),
        ttft_ms: since(Some(record.arrival_ns), record.first_token_ns),
        ttst_ms: since(record.first_token_ns, detail.second_token_ns),
        e2e_latency_ms: since(Some(record.arrival_ns), record.last_token_ns),
        itl_ms: tpot_ms(record),
        input_length: record.prompt_tokens,
        requested_output_length: record.max_tokens,
        output_length: record.output_tokens,
        reused_input_tokens: detail.most_cached_tokens,
        prefill_worker_idx,
        decode_worker_idx,
        prefill_admit_ms: split(record.scheduled_ns),
        source_held_ms: split(record.prefill_end_ns),
        destination_reserved_ms: split(detail.transfer_start_ns),
        destination_activated_ms: split(record.transfer_end_ns),
        decode_admit_ms: split(detail.decode_scheduled_ns),
        source_released_ms: split(record.transfer_end_ns),
        decode_reused_input_tokens: detail.decode_cached_tokens,
        prefill_route_overlap_tokens: overlap(detail.prefill_overlap_tokens),
        decode_route_overlap_tokens: overlap(detail.decode_overlap_tokens),
        terminal_status,
        reason,
    }
}

/// An id that is the same in every run with this seed, in the form of a UUID of version 8 (application-defined).
fn uuid(run_seed: u64, number: u64) -> String {
    let high = seed::derive(run_seed, "request uuid high", number);
    let low = seed::derive(run_seed, "request uuid low", number);
    let high = high & !0xf000 | 0x8000;
    let low = low & !(0b11 << 62) | 0b10 << 62;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}
