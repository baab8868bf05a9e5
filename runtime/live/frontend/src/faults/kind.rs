//! The kinds of client faults.

use axum::http::HeaderValue;
use vcr_base::units;
use vcr_base::units::rule::{Keys, RuleError};

/// A fault of a response. If `after_tokens` is `None`, it happens at the start.
#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// An error instead of an answer.
    Status {
        /// The HTTP status.
        code: u16,
        /// The header `Retry-After`, in seconds.
        retry_after_s: Option<u64>,
        /// The error message. `None` uses vLLM's.
        message: Option<String>,
        /// The error's `param`.
        param: Option<&'static str>,
        /// The whole body, instead of an error object.
        body: Option<String>,
    },
    /// The connection is reset right after it is accepted.
    Refuse,
    /// The connection is reset before the response or within the stream.
    Reset {
        /// The number of tokens before the reset.
        after_tokens: Option<u32>,
    },
    /// The response stops before its head or between two tokens.
    Stall {
        /// The duration in nanoseconds. `None` means forever.
        for_ns: Option<u64>,
        /// The number of tokens before the stall.
        after_tokens: Option<u32>,
    },
    /// The body arrives in small parts.
    Slow {
        /// Nanoseconds between two parts.
        every_ns: u64,
        bytes: usize,
    },
    /// The body ends within an event or a JSON value.
    Truncate {
        /// The number of tokens before the end.
        after_tokens: Option<u32>,
    },
    /// An event, or the body, is invalid JSON.
    Malformed {
        /// The number of tokens before the invalid event.
        after_tokens: Option<u32>,
    },
    /// The stream ends with an error event.
    ErrorEvent {
        /// The number of tokens before the error.
        after_tokens: Option<u32>,
        /// The error's status code.
        code: u16,
        message: Option<String>,
    },
    /// The header `Content-Type` does not match the body.
    ContentType { value: HeaderValue },
    /// `[DONE]` is sent a wrong number of times.
    Done {
        /// The number of times: 0 or more than 1.
        times: u8,
    },
    /// The response has no usage.
    NoUsage,
    /// The answer is well-formed and ends early, as if the text were complete.
    Short { after_tokens: u32 },
}

/// All kinds of faults, each with its own keys.
pub(super) const KINDS: &[(&str, &[&str])] = &[
    ("status", &["code", "retry-after", "message", "body"]),
    ("rate_limit", &["retry-after"]),
    ("invalid_api_key", &[]),
    ("context_length", &[]),
    ("server_error", &["retry-after"]),
    ("invalid_request", &[]),
    ("model_not_found", &[]),
    ("refuse", &[]),
    ("reset", &["after"]),
    ("stall", &["for", "after"]),
    ("slow", &["every", "bytes"]),
    ("truncate", &["after"]),
    ("malformed", &["after"]),
    ("error-event", &["after", "code", "message"]),
    ("content-type", &["value"]),
    ("no-done", &[]),
    ("twice-done", &[]),
    ("no-usage", &[]),
    ("short", &["after"]),
];

/// Named errors of llm-d-inference-sim: name, status code, `param`, message.
pub(super) const NAMED: &[(&str, u16, Option<&str>, &str)] = &[
    ("rate_limit", 429, None, "Rate limit reached. Please retry later."),
    ("invalid_api_key", 401, None, "Unauthorized"),
    (
        "context_length",
        400,
        Some("input_tokens"),
        "The prompt exceeds the model's maximum context length. Please reduce the length of the input prompt.",
    ),
    ("server_error", 503, None, "The server is overloaded or not ready yet."),
    ("invalid_request", 400, Some("model"), "Invalid request."),
    ("model_not_found", 404, Some("model"), "The model does not exist."),
];

impl FaultKind {
    /// The name in metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Status { .. } => "status",
            Self::Refuse => "refuse",
            Self::Reset { .. } => "reset",
            Self::Stall { .. } => "stall",
            Self::Slow { .. } => "slow",
            Self::Truncate { .. } => "truncate",
            Self::Malformed { .. } => "malformed",
            Self::ErrorEvent { .. } => "error-event",
            Self::ContentType { .. } => "content-type",
            Self::Done { times: 0 } => "no-done",
            Self::Done { .. } => "twice-done",
            Self::NoUsage => "no-usage",
            Self::Short { .. } => "short",
        }
    }
}

pub(super) fn kind(keys: &Keys) -> Result<FaultKind, RuleError> {
    let after_tokens = keys.get("after", str::parse::<u32>)?;
    let message = keys.text("message").map(str::to_owned);
    let retry_after_s =
        keys.get("retry-after", |text| units::duration_ns(text).map(|ns| ns.div_ceil(1_000_000_000)))?;
    if let Some((_, code, param, text)) = NAMED.iter().find(|(name, ..)| *name == keys.kind()) {
        let message = Some((*text).to_owned());
        return Ok(FaultKind::Status { code: *code, retry_after_s, message, param: *param, body: None });
    }
    Ok(match keys.kind() {
        "status" => {
            let code = keys.needed("code", keys.get("code", error_status)?)?;
            let body = keys.text("body").map(str::to_owned);
            if body.is_some() && message.is_some() {
                return Err(keys.error("`body` takes the place of the error that has the `message`; give one of them"));
            }
            FaultKind::Status { code, retry_after_s, message, param: None, body }
        }
        "refuse" => FaultKind::Refuse,
        "reset" => FaultKind::Reset { after_tokens },
        "stall" => FaultKind::Stall { for_ns: keys.needed("for", keys.get("for", span)?)?, after_tokens },
        "slow" => FaultKind::Slow {
            every_ns: keys.needed("every", keys.get("every", period)?)?,
            bytes: keys.get("bytes", size)?.unwrap_or(16),
        },
        "truncate" => FaultKind::Truncate { after_tokens },
        "malformed" => FaultKind::Malformed { after_tokens },
        "error-event" => {
            FaultKind::ErrorEvent { after_tokens, code: keys.get("code", error_status)?.unwrap_or(500), message }
        }
        "content-type" => FaultKind::ContentType {
            value: keys.get("value", HeaderValue::from_str)?.unwrap_or(HeaderValue::from_static("text/html")),
        },
        "no-done" => FaultKind::Done { times: 0 },
        "twice-done" => FaultKind::Done { times: 2 },
        "no-usage" => FaultKind::NoUsage,
        "short" => {
            keys.positive("after")?;
            FaultKind::Short { after_tokens: keys.needed("after", after_tokens)? }
        }
        _ => unreachable!("kinds are checked when the text is split"),
    })
}

/// Parses a duration. None for `ever`.
fn span(text: &str) -> Result<Option<u64>, units::UnitError> {
    if text == "ever" { Ok(None) } else { units::duration_ns(text).map(Some) }
}

pub(super) fn period(text: &str) -> Result<u64, String> {
    match units::duration_ns(text).map_err(|error| error.to_string())? {
        0 => Err("expected more than 0".to_owned()),
        ns => Ok(ns),
    }
}

fn size(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|bytes| *bytes > 0).ok_or_else(|| "expected a number of bytes from 1".to_owned())
}

fn error_status(text: &str) -> Result<u16, String> {
    let code = text.parse().ok().filter(|code| (400..=599).contains(code));
    code.ok_or_else(|| "expected a status from 400 to 599".to_owned())
}
