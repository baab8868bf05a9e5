//! Sends the requests of an HTTP capture again.

use bytes::Bytes;
use hyper::Method;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tokio::time::timeout;
use vcr_cluster::IssuedRequest;
use vcr_record::http::{AnswerReader, REDACTED};
use vcr_trace::capture::RecordedCall;

use super::completions::{Completions, MAX_ERROR_BYTES};
use super::error::ClientError;
use super::pool::Outgoing;
use super::server::{message_of, next_data, whole_body};
use super::sessions::session_of;
use super::sse::EventReader;
use crate::drive::AnswerReporter;

/// Headers that belong to a connection, a client or a run. They are not copied from recorded requests.
const OWN_HEADERS: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "host",
    "accept-encoding",
    "x-request-id",
];
/// Limit of a response that is not a stream.
const MAX_ANSWER_BYTES: usize = 64 << 20;

impl Completions {
    pub(super) async fn repeat(
        &self,
        request: &IssuedRequest,
        call: &RecordedCall,
        reporter: &AnswerReporter,
    ) -> Result<(), ClientError> {
        let invalid = |what: &str| ClientError::Garbage(format!("the recorded request has an invalid {what}"));
        let outgoing = Outgoing {
            method: call.method.parse::<Method>().map_err(|_| invalid("method"))?,
            path: &call.target,
            headers: headers(call),
            own: self.sessions.headers(request),
            body: (!call.body.is_empty()).then(|| self.recorded_body(call)),
        };
        let sending = self.pool.send(&outgoing, async || reporter.sent().await);
        let (response, busy) = timeout(self.idle_timeout, sending).await.map_err(|_| self.silent())??;
        self.sessions.answered(session_of(request), response.headers());
        let status = response.status();
        if !status.is_success() {
            let bytes = whole_body(response.into_body(), MAX_ERROR_BYTES).await?;
            busy.done();
            return Err(ClientError::Status { status: status.as_u16(), body: message_of(&bytes) });
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let mut reader = AnswerReader::default();
        let counted = match is_stream {
            true => self.events(response.into_body(), &mut reader, reporter).await?,
            false => {
                let read = timeout(self.idle_timeout, whole_body(response.into_body(), MAX_ANSWER_BYTES)).await;
                reader.whole(&read.map_err(|_| self.silent())??);
                0
            }
        };
        busy.done();
        if let Some(message) = reader.error() {
            return Err(ClientError::Server(message.to_owned()));
        }
        self.note_engine(request, reporter);
        let total = reader.output_tokens().map_or(counted, |tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
        if total == 0 && request.max_tokens > 0 {
            return Err(ClientError::Garbage("an answer without any token".to_owned()));
        }
        if total > counted {
            reporter.tokens(total - counted);
        }
        if self.book.is_none()
            && let Some(cached) = reader.cached_tokens()
        {
            self.tells_cached.set(true);
            reporter.cached(u32::try_from(cached).unwrap_or(u32::MAX));
        }
        Ok(())
    }

    /// Reads a stream. Returns the number of events with text.
    async fn events(
        &self,
        mut body: Incoming,
        reader: &mut AnswerReader,
        reporter: &AnswerReporter,
    ) -> Result<u32, ClientError> {
        let (mut events, mut counted) = (EventReader::default(), 0);
        loop {
            let data = timeout(self.idle_timeout, next_data(&mut body)).await.map_err(|_| self.silent())??;
            let Some(data) = data else { return Ok(counted) };
            let mut arrived = 0;
            let taken = events.read(&data, |event| {
                arrived += u32::from(reader.event(event));
                Ok::<(), ClientError>(())
            });
            if arrived > 0 {
                counted += arrived;
                reporter.tokens(arrived);
            }
            taken.map_err(|error| ClientError::Garbage(error.0))??;
        }
    }

    /// The recorded body, with the target's model if it names one.
    fn recorded_body(&self, call: &RecordedCall) -> Bytes {
        let parsed =
            self.replaces_model.then(|| serde_json::from_slice::<serde_json::Value>(&call.body).ok()).flatten();
        match parsed {
            Some(mut body) if body.get("model").is_some() => {
                body["model"] = self.server.model.as_str().into();
                Bytes::from(body.to_string())
            }
            _ => Bytes::copy_from_slice(&call.body),
        }
    }
}

fn headers(call: &RecordedCall) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let is_sent = |(name, value): &&(String, String)| {
        value != REDACTED && !OWN_HEADERS.iter().any(|own| name.eq_ignore_ascii_case(own))
    };
    for (name, value) in call.headers.iter().filter(is_sent) {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    }
    headers
}
