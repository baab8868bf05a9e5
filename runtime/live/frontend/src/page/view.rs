//! Converts exchanges to JSON.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value, json};
use vcr_record::capture_of;
use vcr_record::http::{Exchange as Recorded, REDACTED, is_secret_name};
use vcr_trace::capture::HttpEnd;

use super::gist::Gist;
use super::watch::{EngineRequest, Exchange, State};
use crate::tee::Passed;

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// An exchange as an entry of a list.
pub(super) fn summary(exchange: &Exchange) -> Value {
    let state = exchange.state();
    let gist = match exchange.gist.get() {
        Some(gist) => gist.clone(),
        None => {
            let gist = Gist::of(&state.request.bytes);
            // If there is a response, the request body is complete.
            if state.status.is_some() || state.end.is_some() {
                _ = exchange.gist.set(gist.clone());
            }
            gist
        }
    };
    let sum = |of: fn(&EngineRequest) -> u64| state.engine.iter().map(of).sum::<u64>();
    let (end, error) = match &state.end {
        None => (None, None),
        Some((_, Passed::Whole)) => (Some("whole"), None),
        Some((_, Passed::Left)) => (Some("client gone"), None),
        Some((_, Passed::Failed(error))) => (Some("failed"), Some(error)),
    };
    json!({
        "number": exchange.number,
        "unix_ms": exchange.start_unix_ms,
        "method": exchange.method.as_str(),
        "path": exchange.uri.path(),
        "model": gist.model,
        "stream": gist.stream,
        "text": gist.text,
        "status": state.status,
        "end": end,
        "error": error,
        "fault": state.fault,
        "head_ms": state.status.map(|_| ms(state.head_ns)),
        "first_ms": first_ns(&state, exchange.start_ns).map(ms),
        "last_ms": (state.num_chunks > 0).then(|| ms(state.last_chunk_ns)),
        "ms": state.end.as_ref().map_or_else(|| ms(exchange.since_start_ns()), |(ns, _)| ms(*ns)),
        "chunks": state.num_chunks,
        "bytes": state.answer.bytes.len() as u64 + state.answer.left_out,
        "requests": state.engine.len(),
        "finish": state.engine.first().and_then(|request| request.finish),
        "rank": state.engine.first().map(|request| request.rank),
        "prompt_tokens": (!state.engine.is_empty()).then(|| sum(|request| request.prompt_tokens)),
        "cached_tokens": sum(|request| request.cached_tokens),
        "output_tokens": sum(|request| request.output_tokens),
        "preemptions": sum(|request| request.preempted_s.len() as u64),
    })
}

/// When the client got the first token: with the first chunk after the engine's first token. Earlier chunks may
/// contain only the role.
fn first_ns(state: &State, start_ns: u64) -> Option<u64> {
    let of_engine = state.engine.iter().filter_map(|request| request.first_token_s).min_by(f64::total_cmp);
    let least_ns = of_engine.map_or(0, |first_s| ((first_s * 1e9) as u64).saturating_sub(start_ns));
    let first = state.chunks.iter().map(|(at_ns, _)| *at_ns).find(|at_ns| *at_ns >= least_ns);
    first.or((state.num_chunks > 0).then_some(state.first_chunk_ns))
}

pub(super) fn detail(exchange: &Exchange) -> Value {
    let mut all = summary(exchange);
    let state = exchange.state();
    let State { request, answer, chunks, .. } = &*state;
    let start_s = exchange.start_ns as f64 / 1e9;
    let more = json!({
        "query": exchange.uri.query(),
        "peer": exchange.peer.to_string(),
        "request_headers": headers(&exchange.headers),
        "request_body": String::from_utf8_lossy(&request.bytes),
        "request_left_out": request.left_out,
        "headers": headers(&state.headers),
        "body": String::from_utf8_lossy(&answer.bytes),
        "left_out": answer.left_out,
        "parts": chunks.iter().map(|(ns, bytes)| json!([ms(*ns), bytes])).collect::<Vec<_>>(),
        "engine": state.engine.iter().map(|request| engine_request(request, start_s)).collect::<Vec<_>>(),
    });
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
    all
}

/// An exchange as a capture. If it is in progress, it looks as if its client had just disconnected.
pub(super) fn capture(exchange: &Exchange) -> serde_json::Result<String> {
    let state = exchange.state();
    let mut rest = state.answer.bytes.as_slice();
    let mut part = |bytes: usize| {
        let (part, behind) = rest.split_at(bytes.min(rest.len()));
        rest = behind;
        part.to_vec()
    };
    let mut chunks: Vec<_> = state.chunks.iter().map(|(at_ns, bytes)| (*at_ns, part(*bytes as usize))).collect();
    // The last part holds all chunks whose times were not kept.
    chunks.push((state.last_chunk_ns, part(usize::MAX)));
    chunks.retain(|(_, bytes)| !bytes.is_empty());
    let (end, error) = match &state.end {
        Some((_, Passed::Whole)) => (HttpEnd::Whole, None),
        Some((_, Passed::Failed(error))) => (HttpEnd::ServerLost, Some(error.clone())),
        Some((_, Passed::Left)) | None => (HttpEnd::ClientGone, None),
    };
    let recorded = Recorded {
        method: exchange.method.to_string(),
        path: exchange.uri.path().to_owned(),
        query: exchange.uri.query().map(str::to_owned),
        request_headers: pairs(&exchange.headers),
        request_body: state.request.bytes.clone(),
        request_left_out_bytes: state.request.left_out,
        status: state.status,
        headers: pairs(&state.headers),
        head_ns: state.status.map(|_| state.head_ns),
        chunks,
        left_out_bytes: state.answer.left_out,
        end_ns: state.end.as_ref().map_or_else(|| exchange.since_start_ns(), |(end_ns, _)| *end_ns),
        end,
        error,
        concurrency: 1,
        ..Recorded::default()
    };
    drop(state);
    capture_of(&recorded, exchange.limits.body_bytes)
}

/// Converts an engine request. Times are in milliseconds since the start of the exchange.
fn engine_request(request: &EngineRequest, start_s: f64) -> Value {
    let since = |time_s: f64| (time_s - start_s) * 1e3;
    let preempted_ms: Vec<f64> = request.preempted_s.iter().map(|time_s| since(*time_s)).collect();
    json!({
        "id": request.id,
        "rank": request.rank,
        "prompt_tokens": request.prompt_tokens,
        "max_tokens": request.max_tokens,
        "cached_tokens": request.cached_tokens,
        "output_tokens": request.output_tokens,
        "queued_ms": request.queued_s.map(since),
        "scheduled_ms": request.scheduled_s.map(since),
        "first_token_ms": request.first_token_s.map(since),
        "last_token_ms": request.last_token_s.map(since),
        "preempted_ms": preempted_ms,
        "finish": request.finish,
    })
}

/// Headers without secrets. Several values of a header are joined.
pub(crate) fn headers(headers: &HeaderMap) -> Map<String, Value> {
    let mut all = Map::new();
    for (name, value) in headers {
        let value = match is_secret_name(name.as_str()) {
            true => REDACTED.to_owned(),
            false => String::from_utf8_lossy(value.as_bytes()).into_owned(),
        };
        match all.get_mut(name.as_str()) {
            Some(Value::String(before)) => *before = format!("{before}, {value}"),
            _ => _ = all.insert(name.as_str().to_owned(), value.into()),
        }
    }
    all
}

/// Header names and values. Bytes beyond ASCII are replaced.
pub(crate) fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let pair = |(name, value): (&HeaderName, &HeaderValue)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    headers.iter().map(pair).collect()
}
