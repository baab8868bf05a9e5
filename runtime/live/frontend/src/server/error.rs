//! Errors in vLLM's format.

use std::borrow::Cow;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use vcr_wire::RequestError;

use crate::dialects::anthropic;
use crate::engine::EngineError;

/// A kind of error that clients can distinguish.
#[derive(Debug)]
pub struct ErrorKind {
    /// The HTTP status, which is also the error object's `code`.
    pub status: StatusCode,
    /// The error object's `type`.
    pub name: &'static str,
    /// When the error occurs, for the reference documentation.
    pub meaning: &'static str,
}

/// All kinds, by status.
pub const ERROR_KINDS: [&ErrorKind; 11] = [
    &INVALID,
    &MALFORMED,
    &FORBIDDEN,
    &NOT_FOUND,
    &TOO_SLOW,
    &TOO_LARGE,
    &TOO_MANY,
    &INTERNAL,
    &NOT_SIMULATED,
    &UNAVAILABLE,
    &BUSY,
];

const INVALID: ErrorKind = ErrorKind {
    status: StatusCode::BAD_REQUEST,
    name: "BadRequestError",
    meaning: "a field of the request is invalid, or the engine refused it",
};
const MALFORMED: ErrorKind = ErrorKind {
    status: StatusCode::BAD_REQUEST,
    name: "Bad Request",
    meaning: "the body is not a request: it is not JSON, or a field has another type",
};
const FORBIDDEN: ErrorKind = ErrorKind {
    status: StatusCode::FORBIDDEN,
    name: "PermissionDeniedError",
    meaning: "a web page tries to change the engines",
};
const NOT_FOUND: ErrorKind = ErrorKind {
    status: StatusCode::NOT_FOUND,
    name: "NotFoundError",
    meaning: "no such model, adapter or stored response",
};
const TOO_SLOW: ErrorKind =
    ErrorKind { status: StatusCode::REQUEST_TIMEOUT, name: "RequestTimeoutError", meaning: "the body came too slowly" };
const TOO_LARGE: ErrorKind = ErrorKind {
    status: StatusCode::PAYLOAD_TOO_LARGE,
    name: "RequestTooLargeError",
    meaning: "the body is longer than `--max-request-body-size`",
};
const TOO_MANY: ErrorKind = ErrorKind {
    status: StatusCode::TOO_MANY_REQUESTS,
    name: "RateLimitError",
    meaning: "the queue of waiting requests is full",
};
const INTERNAL: ErrorKind = ErrorKind {
    status: StatusCode::INTERNAL_SERVER_ERROR,
    name: "InternalServerError",
    meaning: "the engine failed or was lost; see the log",
};
const NOT_SIMULATED: ErrorKind = ErrorKind {
    status: StatusCode::NOT_IMPLEMENTED,
    name: "NotImplementedError",
    meaning: "vLLM has this feature, but vcr does not simulate it",
};
const UNAVAILABLE: ErrorKind = ErrorKind {
    status: StatusCode::SERVICE_UNAVAILABLE,
    name: "ServiceUnavailableError",
    meaning: "the engine is paused or takes no more requests; try again later",
};

const BUSY: ErrorKind = ErrorKind {
    status: StatusCode::SERVICE_UNAVAILABLE,
    name: "Service Unavailable",
    meaning: "`--max-num-queued-reqs` or `--max-num-queued-tokens` is reached",
};

/// An error response: a status and vLLM's error object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub kind: &'static str,
    pub message: String,
    /// The invalid parameter.
    pub param: Option<Cow<'static, str>>,
}

impl ApiError {
    fn new(kind: &ErrorKind, message: impl Into<String>) -> Self {
        Self { status: kind.status, kind: kind.name, message: message.into(), param: None }
    }

    /// The error for an invalid request, which must be changed.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(&INVALID, message)
    }

    /// The error for a body that cannot be parsed as a request.
    #[must_use]
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(&MALFORMED, message)
    }

    /// The error for a feature of vLLM that is not simulated.
    #[must_use]
    pub fn not_simulated(what: &str) -> Self {
        let message = format!("{what} is not simulated.");
        Self::new(&NOT_SIMULATED, message)
    }

    /// Like [`ApiError::invalid`], for one parameter.
    #[must_use]
    pub fn invalid_param(param: &'static str, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::invalid(message) }
    }

    /// The error for a model that is not served.
    #[must_use]
    pub fn unknown_model(model: &str) -> Self {
        let message = format!("The model `{model}` does not exist.");
        Self { param: Some("model".into()), ..Self::not_found(message) }
    }

    /// The error for an action that this client may not perform.
    #[must_use]
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(&FORBIDDEN, message)
    }

    /// The error for an object that does not exist.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(&NOT_FOUND, message)
    }

    /// The error for a request that contains a chat template.
    #[must_use]
    pub fn untrusted_template() -> Self {
        Self::invalid(
            "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with \
             untrusted chat template.",
        )
    }

    /// The error for a body that arrived too slowly.
    #[must_use]
    pub fn too_slow() -> Self {
        Self::new(&TOO_SLOW, "The request body took too long to arrive.")
    }

    /// The error for a body above the limit.
    #[must_use]
    pub fn too_large(max_bytes: usize) -> Self {
        Self::new(&TOO_LARGE, format!("The request body is too large: expected at most {max_bytes} bytes."))
    }

    /// The error for a failure of the server.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(&INTERNAL, message)
    }

    /// The error for a temporary failure.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(&UNAVAILABLE, message)
    }

    /// The error for a request that failed in its engine.
    #[must_use]
    pub fn of_engine(error: Option<&RequestError>) -> Self {
        match error {
            Some(error) if error.code == "validation_error" => Self::invalid(error.message.clone()),
            Some(error) if error.retryable => Self::unavailable(error.message.clone()),
            _ => Self::internal("Internal server error"),
        }
    }

    /// The error object. Its fields have vLLM's order.
    #[must_use]
    pub fn body(&self) -> ErrorBody<'_> {
        let Self { status, kind, message, param } = self;
        ErrorBody { error: ErrorObject { message, r#type: kind, param: param.as_deref(), code: status.as_u16() } }
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: u16,
}

impl From<JsonRejection> for ApiError {
    fn from(error: JsonRejection) -> Self {
        Self::new(&MALFORMED, error.body_text())
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::UnknownRank { .. } | EngineError::TooMany { .. } => Self::invalid(error.to_string()),
            EngineError::QueueFull { .. } => Self::new(&TOO_MANY, error.to_string()),
            EngineError::Busy | EngineError::Backlog => Self::new(&BUSY, error.to_string()),
            EngineError::Full => Self::unavailable(error.to_string()),
            EngineError::Dead | EngineError::Unreadable | EngineError::Utility(_) => Self::internal(error.to_string()),
        }
    }
}

/// Returns a function that formats errors for the API of this path.
pub(crate) fn refusal(path: &str) -> fn(&ApiError) -> Response {
    match path.starts_with("/v1/messages") {
        true => |error| (error.status, Json(anthropic::error(error.status.as_u16(), &error.message))).into_response(),
        false => |error| (error.status, Json(error.body())).into_response(),
    }
}

/// An extension of responses: why the server failed, for the log.
#[derive(Clone, Debug)]
pub(crate) struct Failure(pub(crate) String);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status.is_server_error() {
            response.extensions_mut().insert(Failure(self.message));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients distinguish errors by these objects.
    #[test]
    fn errors_have_the_objects_of_vllm() {
        let text = serde_json::to_string(&ApiError::unknown_model("x").body()).expect("it is JSON");
        let object = r#"{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}"#;
        assert_eq!(text, format!(r#"{{"error":{object}}}"#));
        let refused = RequestError { code: "validation_error".into(), message: "no".into(), retryable: false };
        assert_eq!(ApiError::of_engine(Some(&refused)).status, StatusCode::BAD_REQUEST);
        let paused = RequestError { code: "engine_paused".into(), message: "paused".into(), retryable: true };
        assert_eq!(ApiError::of_engine(Some(&paused)).status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ApiError::of_engine(None), ApiError::internal("Internal server error"));
    }
}
