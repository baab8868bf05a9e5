//! JSON bodies of requests that come by the thousand.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use serde::de::DeserializeOwned;

/// The body of a request, read as [`Json`] reads it, with its errors. Where it is
/// valid that takes half the time: nothing is noted down of the path to an error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quick<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Quick<T> {
    type Rejection = JsonRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, JsonRejection> {
        let kind = request.headers().get(header::CONTENT_TYPE);
        if kind.is_none_or(|kind| kind.as_bytes() != b"application/json") {
            return Json::from_request(request, state).await.map(|Json(value)| Self(value));
        }
        let bytes = Bytes::from_request(request, state).await?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Self(value)),
            Err(_) => Json::from_bytes(&bytes).map(|Json(value)| Self(value)),
        }
    }
}
