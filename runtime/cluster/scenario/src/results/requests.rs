//! Converts the requests of a run for comparisons.

use vcr_cluster::Report;
use vcr_cluster::record::{Outcome, RequestRecord};
use vcr_compare::{Request, Requests};

/// The requests of a run, in the form for comparisons.
#[must_use]
pub fn compared_requests(report: &Report) -> Requests {
    Requests::new(report.requests.iter().map(|record| compared_request(report, record)).collect())
}

/// A request of a run, identified by workload, session and turn, and by its name in a trace.
pub(crate) fn compared_request(report: &Report, record: &RequestRecord) -> Request {
    let workload = &report.workload_names[record.workload as usize];
    let since = |at_ns: Option<u64>| at_ns.map(|at_ns| at_ns.saturating_sub(record.arrival_ns));
    let mut request = Request {
        arrival_ns: Some(record.arrival_ns),
        prompt_tokens: record.prompt_tokens,
        output_tokens: record.output_tokens,
        cached_tokens: record.cached_tokens,
        ttft_ns: since(record.first_token_ns),
        e2e_ns: since(record.last_token_ns),
        queue_ns: since(record.scheduled_ns),
        is_whole: record.outcome == Outcome::Completed,
        ..Request::default()
    };
    request.identity.turn = Some((workload.clone(), record.session, record.turn));
    request.identity.name = report.request_names.of_request(record).map(str::to_owned);
    request.identity.lengths = Some((record.prompt_tokens, record.output_tokens));
    request
}
