//! Errors as vLLM answers them.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use vcr_wire::RequestError;

use crate::engine::EngineError;

/// An error for a client: a status and vLLM's error object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// `BadRequestError` and the like.
    pub kind: &'static str,
    /// For the user.
    pub message: String,
    /// The parameter it is about.
    pub param: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None }
    }

    /// A request that cannot be served as it is.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message)
    }

    /// A body that is no request at all.
    #[must_use]
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", message)
    }

    /// Something that vLLM has and that is not simulated.
    #[must_use]
    pub fn not_simulated(what: &str) -> Self {
        let message = format!("{what} is not simulated.");
        Self::new(StatusCode::NOT_IMPLEMENTED, "NotImplementedError", message)
    }

    /// As [`ApiError::invalid`], because of one parameter.
    #[must_use]
    pub fn invalid_param(param: &'static str, message: impl Into<String>) -> Self {
        Self { param: Some(param), ..Self::invalid(message) }
    }

    /// A model that is not served.
    #[must_use]
    pub fn unknown_model(model: &str) -> Self {
        let message = format!("The model `{model}` does not exist.");
        Self { param: Some("model"), ..Self::new(StatusCode::NOT_FOUND, "NotFoundError", message) }
    }

    /// Something that does not exist.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFoundError", message)
    }

    /// A request with a chat template of its own.
    #[must_use]
    pub fn untrusted_template() -> Self {
        Self::invalid(
            "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with \
             untrusted chat template.",
        )
    }

    /// A failure that is not the client's.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", message)
    }

    /// Something that may work later.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", message)
    }

    /// The failure of a request in its engine.
    #[must_use]
    pub fn of_engine(error: Option<&RequestError>) -> Self {
        match error {
            Some(error) if error.code == "validation_error" => Self::invalid(error.message.clone()),
            Some(error) if error.retryable => Self::unavailable(error.message.clone()),
            _ => Self::internal("Internal server error"),
        }
    }

    /// The error object, its fields in vLLM's order.
    #[must_use]
    pub fn body(&self) -> ErrorBody<'_> {
        let Self { status, kind, message, param } = self;
        ErrorBody { error: ErrorObject { message, r#type: kind, param: *param, code: status.as_u16() } }
    }
}

/// The body of an error.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'static str>,
    code: u16,
}

impl From<JsonRejection> for ApiError {
    fn from(error: JsonRejection) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", error.body_text())
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::UnknownRank { .. } => Self::invalid(error.to_string()),
            EngineError::QueueFull { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "RateLimitError", error.to_string())
            }
            EngineError::Full => Self::unavailable(error.to_string()),
            EngineError::Dead | EngineError::Unreadable | EngineError::Utility(_) => Self::internal(error.to_string()),
        }
    }
}

/// Among the extensions of a response: why the server failed, for the log.
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

    /// Clients tell errors apart by these objects.
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
