//! Answers requests from recordings, before the routes of a server.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::alarm::Alarm;
use crate::faults::error_response;
use crate::http::{Before, Next};
use crate::page::{PREFIX, pairs};
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde_json::json;
use tokio::task::yield_now;
use tokio::time::sleep;
use vcr_record::playback::http::{Asked, AskedParts, Difference, Found, HttpTape, Miss};
use vcr_trace::capture::{HttpEnd, HttpRecord};
use vcr_wire::monotonic_ns;

use crate::proxy::head::head_of;
use crate::proxy::journal::{AnsweredBy, Journal};
use crate::proxy::pace::Pace;
use crate::proxy::reverse::Proxy;

/// The path of the latest requests, for tests.
const REQUESTS_PATH: &str = "/_vcr/requests";

/// Paths that the server itself answers, because they describe the server and not the model.
const OPERATIONS: [&str; 7] = ["/health", "/ready", "/ping", "/load", "/metrics", "/version", "/openapi.json"];

/// Handling of a request that was not recorded.
pub enum Misses {
    /// Refuse it, and call `stop` if it is set.
    Refuse {
        /// Stops the server.
        stop: Option<Box<dyn Fn() + Send + Sync>>,
    },
    /// Let the simulated server answer it.
    Simulate,
    /// Forward it and record the exchange.
    Record(Box<Proxy>),
}

/// When the parts of recorded responses are sent.
pub enum Times {
    /// At their recorded times, divided by this factor.
    Recorded(f64),
    /// When the engines have generated their tokens. Parts without tokens use their recorded times.
    Engines(Arc<Pace>),
}

/// Answers from a tape and records requests in a journal.
pub struct Player {
    /// The tape, if there is one.
    pub tape: Option<Arc<HttpTape>>,
    /// Handling of a request that was not recorded.
    pub misses: Misses,
    /// When the parts of recorded responses are sent.
    pub times: Times,
    /// The latest requests for `/_vcr/requests`, if they are kept.
    pub journal: Option<Journal>,
}

impl fmt::Debug for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Player").finish_non_exhaustive()
    }
}

impl Before for Player {
    fn see(&self, request: Request) -> Pin<Box<dyn Future<Output = Request> + Send + '_>> {
        Box::pin(async move {
            let path = request.uri().path();
            let is_own = path.starts_with(PREFIX) || OPERATIONS.contains(&path);
            let Some(journal) = self.journal.as_ref().filter(|_| !is_own) else {
                return request;
            };
            let (mut parts, body) = request.into_parts();
            let body = match to_bytes(body, usize::MAX).await {
                Ok(body) => {
                    parts.extensions.insert(journal.note(&parts, &body));
                    Body::from(body)
                }
                Err(error) => Body::from_stream(stream::once(async { Err::<Bytes, _>(error) })),
            };
            Request::from_parts(parts, body)
        })
    }

    fn answer<'a>(&'a self, request: Request, next: Next<'a>) -> Pin<Box<dyn Future<Output = Response> + Send + 'a>> {
        Box::pin(async move {
            let path = request.uri().path();
            match &self.journal {
                Some(journal) if path == REQUESTS_PATH => served(journal, request.method()),
                None if path == REQUESTS_PATH => {
                    error_response(path, 404, Some("no requests are kept: expected --keep-requests N"), None, None)
                }
                _ if path.starts_with(PREFIX) || OPERATIONS.contains(&path) => next.run(request).await,
                _ => self.played(request, next).await,
            }
        })
    }
}

impl Player {
    async fn played(&self, request: Request, next: Next<'_>) -> Response {
        let start_ns = monotonic_ns();
        let (parts, body) = request.into_parts();
        // The outer layers have their own limits.
        let body = match to_bytes(body, usize::MAX).await {
            Ok(body) => body,
            Err(error) => return error_response(parts.uri.path(), 400, Some(&error.to_string()), None, None),
        };
        let Some(tape) = &self.tape else {
            note(&parts, "server");
            return next.run(Request::from_parts(parts, Body::from(body))).await;
        };
        let (path, query, headers) = (parts.uri.path(), parts.uri.query(), pairs(&parts.headers));
        let as_it_came = AskedParts { method: parts.method.as_str(), path, query, headers: &headers, body: &body };
        let asked = Asked::of(as_it_came, tape.rules());
        let miss = match tape.take(&asked) {
            Ok(Found::Record(record)) => {
                note(&parts, "tape");
                return match &self.times {
                    Times::Recorded(scale) => play(*record, start_ns, *scale).await,
                    Times::Engines(pace) => match pace.tokens(&record) {
                        Some(tokens) => pace.play(*record, &body, tokens).await,
                        None => play(*record, start_ns, 1.0).await,
                    },
                };
            }
            Ok(Found::Miss(miss)) => miss,
            Err(error) => return error_response(path, 500, Some(&error.to_string()), None, None),
        };
        match &self.misses {
            Misses::Refuse { stop } => {
                note(&parts, "nobody");
                let refused = refused(path, &miss);
                if let Some(stop) = stop {
                    stop();
                }
                refused
            }
            Misses::Simulate => {
                note(&parts, "server");
                next.run(Request::from_parts(parts, Body::from(body))).await
            }
            Misses::Record(proxy) => {
                note(&parts, "upstream");
                proxy.forward(Request::from_parts(parts, Body::from(body))).await
            }
        }
    }
}

/// Records the source of a request's answer.
fn note(parts: &Parts, answered_by: &'static str) {
    if let Some(noted) = parts.extensions.get::<AnsweredBy>() {
        _ = noted.set(answered_by);
    }
}

fn served(journal: &Journal, method: &Method) -> Response {
    match *method {
        Method::GET => axum::Json(journal.json()).into_response(),
        Method::DELETE => {
            journal.clear();
            StatusCode::NO_CONTENT.into_response()
        }
        _ => error_response(REQUESTS_PATH, 405, None, None, None),
    }
}

/// The response to a request that is not in the capture.
fn refused(path: &str, miss: &Miss) -> Response {
    let message = message_of(miss);
    tracing::warn!("{message}");
    let error = if path.starts_with("/v1/messages") {
        json!({"type": "error", "error": {"type": "not_found_error", "message": message}, "playback": miss})
    } else {
        json!({"error": {"message": message, "type": "playback_miss", "param": null, "code": 404}, "playback": miss})
    };
    (StatusCode::NOT_FOUND, axum::Json(error)).into_response()
}

fn message_of(miss: &Miss) -> String {
    let request = &miss.request;
    let Some(nearest) = &miss.nearest else {
        return format!("not in the capture: {request}, of which it has no recording");
    };
    let at = |Difference { path, recorded, asked }: &Difference| {
        let shown =
            |value: &Option<serde_json::Value>| value.as_ref().map_or("nothing".to_owned(), ToString::to_string);
        format!("{} (recorded {}, asked {})", if path.is_empty() { "/" } else { path }, shown(recorded), shown(asked))
    };
    let differences: Vec<String> = nearest.differences.iter().map(at).collect();
    format!(
        "not in the capture: {request}; the nearest recording, {}, differs in {}",
        nearest.id,
        differences.join(", ")
    )
}

/// The recorded times of one answer, from the arrival of its request.
struct RecordedTimes {
    start_ns: u64,
    time_scale: f64,
    /// None if the process has no descriptor left; waits are then rounded to milliseconds.
    alarm: Option<Alarm>,
}

impl RecordedTimes {
    async fn until(&self, after_ns: u64) {
        let at_ns = self.start_ns.saturating_add((after_ns as f64 / self.time_scale) as u64);
        let is_due = match &self.alarm {
            Some(alarm) => alarm.until(at_ns).await.is_ok(),
            None => false,
        };
        if !is_due {
            sleep(Duration::from_nanos(at_ns.saturating_sub(monotonic_ns()))).await;
        }
    }
}

/// Answers as recorded, at the recorded times after `start_ns`.
async fn play(record: HttpRecord, start_ns: u64, time_scale: f64) -> Response {
    let times = RecordedTimes { start_ns, time_scale, alarm: Alarm::new().ok() };
    let head = head_of(&record);
    times.until(record.head_ns.unwrap_or(0)).await;
    let is_lost = record.end == HttpEnd::ServerLost;
    let body = match record.chunks.is_empty() && !is_lost {
        true => Body::empty(),
        false => {
            let state = (record.chunks.into_iter(), Some(record.end_ns), times);
            let parts = stream::unfold(state, move |(mut chunks, end_ns, times)| async move {
                if let Some((after_ns, bytes)) = chunks.next() {
                    times.until(after_ns).await;
                    return Some((Ok(Bytes::from(bytes.0)), (chunks, end_ns, times)));
                }
                times.until(end_ns?).await;
                // Yield, so that hyper sends the buffered data first. An error would discard it.
                yield_now().await;
                let lost = || Err(io::Error::new(io::ErrorKind::ConnectionReset, "the recorded answer broke off"));
                is_lost.then(|| (lost(), (chunks, None, times)))
            });
            Body::from_stream(parts)
        }
    };
    head.map(|()| body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::head::headers_of;
    use axum::http::HeaderName;
    use vcr_record::http::REDACTED;
    use vcr_record::playback::http::Nearest;
    use vcr_trace::capture::HttpBytes;

    fn record(headers: &[(&str, &str)], end: HttpEnd) -> HttpRecord {
        HttpRecord {
            method: "POST".to_owned(),
            status: Some(429),
            headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            head_ns: Some(1),
            chunks: vec![(2, HttpBytes(b"ab".to_vec())), (3, HttpBytes(b"c".to_vec()))],
            end_ns: 3,
            end,
            ..HttpRecord::default()
        }
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(future)
    }

    #[test]
    fn answers_are_as_recorded() {
        let headers = [
            ("content-length", "3"),
            ("connection", "close"),
            ("set-cookie", REDACTED),
            ("x-a", "1"),
            ("bad name", "x"),
        ];
        let played = block_on(async {
            let response = play(record(&headers, HttpEnd::Whole), monotonic_ns(), 1.0).await;
            let (parts, body) = response.into_parts();
            (parts, to_bytes(body, 100).await.expect("a body"))
        });
        let (parts, body) = played;
        assert_eq!((parts.status.as_u16(), body.as_ref()), (429, b"abc".as_ref()));
        let names: Vec<&str> = parts.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["content-length", "x-a"]);
        let decoded = record(&[("content-length", "9")], HttpEnd::Whole);
        assert!(headers_of(&decoded, 3).is_empty());
    }

    #[test]
    fn an_answer_that_broke_off_breaks_off() {
        let failed = block_on(async {
            let response = play(record(&[], HttpEnd::ServerLost), monotonic_ns(), 1.0).await;
            to_bytes(response.into_body(), 100).await
        });
        assert!(failed.is_err());
    }

    #[test]
    fn a_miss_says_in_what_it_differs() {
        let difference = Difference { path: "/n".to_owned(), recorded: Some(json!(1)), asked: None };
        let nearest = Some(Nearest { id: "http-3".to_owned(), differences: vec![difference] });
        let miss = Miss { request: "POST /v1/x".to_owned(), nearest };
        let expected =
            "not in the capture: POST /v1/x; the nearest recording, http-3, differs in /n (recorded 1, asked nothing)";
        assert_eq!(message_of(&miss), expected);
    }
}
