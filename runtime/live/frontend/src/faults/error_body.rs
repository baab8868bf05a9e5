//! Errors in vLLM's format.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;
use serde_json::{Value, json};

use super::events::data;
use crate::dialects::anthropic;

/// vLLM's error object. The keys have vLLM's order.
#[derive(Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: u16,
}

/// vLLM's error type for a status code.
pub(super) fn error_type(code: u16) -> &'static str {
    match code {
        401 => "AuthenticationError",
        403 => "PermissionDeniedError",
        404 => "NotFoundError",
        422 => "UnprocessableEntityError",
        429 => "RateLimitError",
        503 => "ServiceUnavailableError",
        400..=499 => "BadRequestError",
        _ => "InternalServerError",
    }
}

/// The error object for a status code, as JSON.
pub(super) fn error_json(code: u16, message: &str, param: Option<&str>) -> String {
    let error = ErrorObject { message, kind: error_type(code), param, code };
    let error = serde_json::to_string(&error).expect("texts and numbers are JSON");
    format!("{{\"error\":{error}}}")
}

/// The final events of a stream that fails, in the format of the API that `event` belongs to.
pub(super) fn error_events(event: &[u8], code: u16, message: &str) -> String {
    let value = data(event).and_then(|data| serde_json::from_str::<Value>(data).ok()).unwrap_or_default();
    let error = match value["type"].as_str() {
        None => return format!("data: {}\n\ndata: [DONE]\n\n", error_json(code, message, None)),
        Some(kind) if kind.starts_with("response.") => {
            let number = value["sequence_number"].as_u64().unwrap_or(0);
            json!({
                "type": "error", "code": error_type(code), "message": message, "param": null, "sequence_number": number,
            })
        }
        Some(_) => anthropic::error(code, message),
    };
    format!("event: error\ndata: {error}\n\n")
}

/// An error response in the format that clients of this path expect.
#[must_use]
pub fn error_response(
    path: &str,
    code: u16,
    message: Option<&str>,
    param: Option<&str>,
    retry_after_s: Option<u64>,
) -> Response {
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let message = message.or_else(|| status.canonical_reason()).unwrap_or("Error");
    let value = if path.starts_with("/v1/messages") {
        anthropic::error(code, message).to_string()
    } else if code == 401 {
        // vLLM checks API keys outside of its error handling.
        json!({"error": "Unauthorized"}).to_string()
    } else {
        error_json(code, message, param)
    };
    let mut response = Response::new(Body::from(value));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Replaces the body of a response. The content type is JSON if the body is JSON, and HTML otherwise.
pub(super) fn with_own_body(response: Response, body: &str) -> Response {
    let (mut parts, _) = response.into_parts();
    let kind = if serde_json::from_str::<Value>(body).is_ok() { "application/json" } else { "text/html" };
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Response::from_parts(parts, Body::from(body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_in_streams_are_those_of_their_api() {
        let chat = error_events(b"data: {\"choices\": []}\n\n", 500, "no");
        assert!(
            chat.starts_with("data: {\"error\":{\"message\":\"no\"") && chat.ends_with("data: [DONE]\n\n"),
            "{chat}"
        );
        let message = error_events(b"event: x\ndata: {\"type\": \"content_block_delta\"}\n\n", 529, "no");
        let error = r#"{"error":{"message":"no","type":"overloaded_error"},"type":"error"}"#;
        assert_eq!(message, format!("event: error\ndata: {error}\n\n"));
        let event = b"data: {\"type\": \"response.output_text.delta\", \"sequence_number\": 7}\n\n";
        let response = error_events(event, 429, "no");
        assert!(response.contains(r#""sequence_number":7"#), "{response}");
        assert!(response.contains(r#""code":"RateLimitError""#) && !response.contains("[DONE]"), "{response}");
    }
}
