//! Errors as vLLM writes them.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;
use serde_json::json;

/// vLLM's error object, with its keys in vLLM's order.
#[derive(Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: u16,
}

/// vLLM's name of an error with a status.
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

/// The error object of a status, as JSON.
pub(super) fn error_json(code: u16, message: &str, param: Option<&str>) -> String {
    let error = ErrorObject { message, kind: error_type(code), param, code };
    let error = serde_json::to_string(&error).expect("texts and numbers are JSON");
    format!("{{\"error\":{error}}}")
}

/// An answer with an error, in the form that the clients of a path expect.
pub(super) fn error_response(
    path: &str,
    code: u16,
    message: Option<&str>,
    param: Option<&str>,
    retry_after_s: Option<u64>,
) -> Response {
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let message = message.or_else(|| status.canonical_reason()).unwrap_or("Error");
    let value = if path.starts_with("/v1/messages") {
        let kind = match code {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            529 => "overloaded_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": message}}).to_string()
    } else if code == 401 {
        // vLLM refuses keys outside of its error handling.
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
