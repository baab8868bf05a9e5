//! Bodies of requests that change something.

use std::future::poll_fn;
use std::pin::pin;

use crate::WEB_PAGE_HEADERS;
use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::control::Refusal;

const MAX_BODY: usize = 64 << 10;
/// This much of a larger body is read and discarded, because a client that is still sending when its connection
/// closes may not see the answer.
const MAX_WASTE: usize = 4 << 20;

pub(crate) trait ChangeBody: DeserializeOwned + Send {
    /// A valid body.
    const EXAMPLE: &'static str;
}

/// The engine that the request concerns; `None`: all engines.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EngineChoice {
    pub(crate) engine: Option<u16>,
}

impl ChangeBody for EngineChoice {
    const EXAMPLE: &'static str = r#"{"engine": 0}, or nothing for all engines"#;
}

/// No choice: the request concerns all engines.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

impl ChangeBody for Nothing {
    const EXAMPLE: &'static str = "no body";
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LatencyChange {
    pub(crate) model: String,
    /// Configuration of a guest.
    pub(crate) config: Option<serde_json::Map<String, serde_json::Value>>,
    pub(crate) engine: Option<u16>,
}

impl ChangeBody for LatencyChange {
    const EXAMPLE: &'static str = r#"{"model": "fixed(#{ step: \"10ms\" })", "engine": 0}"#;
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TimeScaleChange {
    pub(crate) factor: f64,
    pub(crate) engine: Option<u16>,
}

impl ChangeBody for TimeScaleChange {
    const EXAMPLE: &'static str = r#"{"factor": 2.0, "engine": 0}"#;
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FaultChange {
    pub(crate) fault: String,
    pub(crate) engine: Option<u16>,
}

impl ChangeBody for FaultChange {
    const EXAMPLE: &'static str = r#"{"fault": "error:rate=0.1", "engine": 0}"#;
}

/// Removes a fault, or all faults if none is named.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FaultRemoval {
    pub(crate) fault: Option<String>,
    pub(crate) engine: Option<u16>,
}

impl ChangeBody for FaultRemoval {
    const EXAMPLE: &'static str = r#"{"fault": "error:rate=0.1", "engine": 0}, or nothing for all"#;
}

/// The body of a request that is allowed to change something.
#[derive(Debug)]
pub(crate) struct Change<T>(pub(crate) T);

impl<S: Sync, T: ChangeBody> FromRequest<S> for Change<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        if WEB_PAGE_HEADERS.iter().any(|name| request.headers().contains_key(*name)) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "web pages may not change engines"));
        }
        let hint = || format!("send {}", T::EXAMPLE);
        if let Some(query) = request.uri().query() {
            let refusal = Refusal::bad(format!("`?{query}` has no effect here; settings go into the body"));
            return Err(refusal.hint(hint()));
        }
        let bytes = read(request.into_body()).await?;
        parse(&bytes).map(Self).map_err(|reason| Refusal::bad(format!("the body is wrong: {reason}")).hint(hint()))
    }
}

async fn read(body: Body) -> Result<Vec<u8>, Refusal> {
    let mut body = pin!(body);
    let (mut kept, mut seen) = (Vec::new(), 0);
    while seen <= MAX_WASTE
        && let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await
    {
        let frame = frame.map_err(|error| Refusal::bad(format!("the body ends early: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        seen += data.len();
        if seen <= MAX_BODY {
            kept.extend_from_slice(&data);
        }
    }
    if seen > MAX_BODY {
        let message = format!("the body is larger than {} KiB", MAX_BODY >> 10);
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    Ok(kept)
}

/// An empty body means an empty object.
fn parse<T: ChangeBody>(bytes: &[u8]) -> Result<T, String> {
    let bytes = bytes.trim_ascii();
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    // Serde would accept an array as the values of the keys in order.
    if !bytes.starts_with(b"{") {
        return Err("expected a JSON object".to_owned());
    }
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_an_object_without_keys() {
        for body in ["", " \n", "{}", r#"{"engine": null}"#] {
            assert_eq!(parse::<EngineChoice>(body.as_bytes()).expect(body).engine, None);
        }
        assert_eq!(parse::<EngineChoice>(br#" {"engine": 3} "#).expect("it is right").engine, Some(3));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |body: &str| parse::<TimeScaleChange>(body.as_bytes()).expect_err(body);
        for (body, reason) in [
            ("", "missing field `factor`"),
            ("[2.0]", "expected a JSON object"),
            ("2.0", "expected a JSON object"),
            (r#"{"factor": "2"}"#, "invalid type: string \"2\", expected f64"),
            (r#"{"factor": 1, "factr": 1}"#, "unknown field `factr`, expected `factor` or `engine`"),
            (r#"{"factor": 1, "factor": 2}"#, "duplicate field `factor`"),
            (r#"{"factor": 1e999}"#, "number out of range"),
            (r#"{"factor": 1, "engine": -1}"#, "invalid value: integer `-1`, expected u16"),
            (r#"{"factor": 1} {}"#, "trailing characters"),
        ] {
            let error = wrong(body);
            assert!(error.contains(reason), "{body}: {error}");
        }
    }
}
