//! JSON bodies of requests: parsing and limits.

use std::sync::Arc;

use axum::body::{Body as HttpBody, Bytes};
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, RequestExt as _};
use futures_util::StreamExt as _;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::python::{self, Limits, Refused};
use crate::server::App;
use crate::server::error::ApiError;
use crate::server::frontend_kind::FrontendKind;

/// The maximum number of values in a body. A value may take a hundred bytes of memory, so a body of a few megabytes
/// could take gigabytes. Real prompts are far shorter.
const MAX_VALUES: usize = 4 << 20;

/// The body of a request, or its error.
pub(in crate::api) type Body<T> = Result<FastJson<T>, ApiError>;

/// Reads a body as [`Json`] does, with the same errors. Valid bodies take half the time, because the path to a
/// possible error is not tracked.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct FastJson<T>(pub(in crate::api) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for FastJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let words = Words::of(&request, app);
        words.kind(check_kind(request.headers().get(header::CONTENT_TYPE)).await)?;
        let length = body_length(request.headers());
        words.read(&collected(request, length).await?).map(Self)
    }
}

/// Longer bodies are not checked by the rules of vLLM's Python server.
const CHECKED_BYTES_MAX: usize = 1 << 20;

/// The frontend whose error texts are used.
#[derive(Clone, Copy, Debug)]
struct Words {
    /// The path and the model's limits, if errors have the Python server's texts.
    python: Option<(&'static str, Limits)>,
}

impl Words {
    fn of(request: &Request, app: &App) -> Self {
        let is_python = app.options.frontend == FrontendKind::Python;
        let path = if is_python { python::known(request.uri().path()) } else { None };
        let limits = Limits { max_model_len: app.model.max_model_len, vocab_size: app.model.vocab_size };
        Self { python: path.map(|path| (path, limits)) }
    }

    /// Converts the error for a wrong content type.
    fn kind(self, checked: Result<(), ApiError>) -> Result<(), ApiError> {
        if self.python.is_some() { checked.map_err(|_| Refused::media_type().into()) } else { checked }
    }

    /// Parses a body. Bodies with null are checked again, because here null often means a missing value.
    fn read<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, ApiError> {
        let Some((path, limits)) = self.python.filter(|_| bytes.len() <= CHECKED_BYTES_MAX) else {
            return read(bytes);
        };
        let has_null = memchr::memmem::find(bytes, b"null").is_some();
        let value = serde_json::from_slice(bytes).ok();
        if let Some(value) = value.filter(|_| !has_null) {
            return Ok(value);
        }
        let checked = python::checked(path, bytes, &limits)?;
        match serde_json::from_slice(bytes) {
            Ok(value) => Ok(value),
            Err(_) => serde_json::from_value(checked).or_else(|_| read(bytes)),
        }
    }
}

/// The bytes of a request before it reaches the engines, for error texts.
#[derive(Clone, Debug)]
pub(in crate::api) struct Given(Option<(&'static str, Limits, Bytes)>);

impl Given {
    /// Returns the refusal of a request, with the error text of the simulated frontend.
    pub(in crate::api) fn refusal(&self, error: ApiError) -> ApiError {
        let Some((path, limits, bytes)) = self.0.as_ref().filter(|_| error.status == StatusCode::BAD_REQUEST) else {
            return error;
        };
        python::checked(path, bytes, limits).err().map_or(error, ApiError::from)
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let Refused { status, kind, message, param } = refused;
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
        Self { status, kind, message, param: param.map(Into::into) }
    }
}

/// A request with a JSON body, read as by [`FastJson`], and its headers. The headers are moved; axum's tuple of
/// extractors would copy them.
#[derive(Clone, Debug)]
pub(in crate::api) struct Call<T> {
    pub(in crate::api) headers: HeaderMap,
    pub(in crate::api) body: T,
    pub(in crate::api) given: Given,
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Call<T> {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let words = Words::of(&request, app);
        words.kind(check_kind(request.headers().get(header::CONTENT_TYPE)).await)?;
        let length = body_length(request.headers());
        let headers = std::mem::take(request.headers_mut());
        let bytes = collected(request, length).await?;
        let body = words.read(&bytes)?;
        let python = words.python.filter(|_| bytes.len() <= CHECKED_BYTES_MAX);
        Ok(Self { headers, body, given: Given(python.map(|(path, limits)| (path, limits, bytes))) })
    }
}

/// The maximum memory that is reserved because of a stated length. Longer bodies grow as they arrive.
const RESERVED_BYTES: usize = 64 << 20;

fn body_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok())
}

/// Collects a body. Each frame is freed as soon as it is copied. A body of one frame is not copied.
async fn collected(request: Request, length: Option<usize>) -> Result<Bytes, ApiError> {
    let mut frames = request.with_limited_body().into_body().into_data_stream().map(|frame| {
        // Use the error text that axum uses when it collects a body.
        frame.map_err(|error| ApiError::malformed(format!("Failed to buffer the request body: {error}")))
    });
    let Some(first) = frames.next().await.transpose()? else { return Ok(Bytes::new()) };
    let Some(second) = frames.next().await.transpose()? else { return Ok(first) };
    let mut bytes = Vec::with_capacity(length.unwrap_or(0).min(RESERVED_BYTES));
    bytes.extend_from_slice(&first);
    drop(first);
    bytes.extend_from_slice(&second);
    drop(second);
    while let Some(frame) = frames.next().await.transpose()? {
        bytes.extend_from_slice(&frame);
    }
    Ok(bytes.into())
}

pub(in crate::api) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.len() > MAX_VALUES && values(bytes) > MAX_VALUES {
        return Err(ApiError::invalid(format!("invalid body: expected at most {MAX_VALUES} JSON values")));
    }
    match serde_json::from_slice(bytes) {
        Ok(value) => Ok(value),
        Err(_) => Ok(Json::from_bytes(bytes).map(|Json(value)| value)?),
    }
}

/// Initial capacity, enough for a short response.
const ANSWER_BYTES: usize = 1024;

/// Builds a response like [`Json`].
pub(in crate::api) fn json(value: &impl Serialize) -> Response {
    let mut bytes = Vec::with_capacity(ANSWER_BYTES);
    match serde_json::to_writer(&mut bytes, value) {
        Ok(()) => ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], bytes).into_response(),
        Err(_) => Json(value).into_response(),
    }
}

/// Refuses a content type that is not JSON, as [`Json`] does.
async fn check_kind(kind: Option<&HeaderValue>) -> Result<(), ApiError> {
    if kind.is_some_and(|kind| kind.as_bytes() == b"application/json") {
        return Ok(());
    }
    // For other JSON types, axum reports the syntax error of the empty body.
    let mut probe = Request::new(HttpBody::empty());
    probe.headers_mut().extend(kind.map(|kind| (header::CONTENT_TYPE, kind.clone())));
    match Json::<IgnoredAny>::from_request(probe, &()).await {
        Err(refused @ JsonRejection::MissingJsonContentType(_)) => Err(refused.into()),
        _ => Ok(()),
    }
}

/// An upper bound for the number of values in a JSON text: it counts separators and opening brackets.
fn values(text: &[u8]) -> usize {
    let (mut count, mut is_text, mut is_escaped) = (1, false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b',' | b'[' | b'{' | b':' => count += usize::from(!is_text),
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use axum::extract::DefaultBodyLimit;

    use super::*;

    #[tokio::test]
    async fn kinds_of_json_are_read() {
        for (kind, is_json) in [
            ("application/json", true),
            ("application/json; charset=utf-8", true),
            ("application/problem+json", true),
            ("text/json", false),
            ("application/jsonl", false),
            ("json", false),
        ] {
            let kind = HeaderValue::from_static(kind);
            assert_eq!(check_kind(Some(&kind)).await.is_ok(), is_json, "{kind:?}");
        }
        assert!(check_kind(None).await.is_err_and(|error| error.message.contains("application/json")));
    }

    /// A body of several frames, with a limit in bytes.
    fn framed(limit: usize) -> Request {
        let frames = ["ab", "", "cde"].map(Ok::<_, std::io::Error>);
        let mut request = Request::new(HttpBody::from_stream(futures_util::stream::iter(frames)));
        DefaultBodyLimit::max(limit).apply(&mut request);
        request
    }

    #[tokio::test]
    async fn a_body_is_collected_as_axum_does() {
        assert_eq!(collected(framed(5), None).await, Ok(Bytes::from_static(b"abcde")));
        let refused = collected(framed(4), None).await.expect_err("it is too long");
        let theirs = Bytes::from_request(framed(4), &()).await.expect_err("it is too long");
        assert_eq!(refused, ApiError::from(JsonRejection::from(theirs)));
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (text, count) in [("1", 1), ("[1,2]", 3), (r#"{"a":[]}"#, 4), (r#""a,b\",[{""#, 1), (r#"["\\",1]"#, 3)] {
            assert_eq!(values(text.as_bytes()), count, "{text}");
        }
    }
}
