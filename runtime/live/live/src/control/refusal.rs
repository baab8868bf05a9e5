//! Refusals of requests to the control plane.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// The refusal of a request.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    message: String,
    hint: Option<String>,
}

/// What clients see of it.
#[derive(Serialize)]
struct Body {
    error: String,
    hint: Option<String>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), hint: None }
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(Body { error: self.message, hint: self.hint })).into_response()
    }
}
