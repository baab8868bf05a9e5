//! Endpoints for operators: the server's state, its models, its engines.

pub(super) mod admin;
pub(super) mod development;
pub(super) mod lora;
pub(super) mod models;
pub(super) mod status;

use std::sync::Arc;

use axum::extract::Request;
use axum::handler::Handler;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, post};
use vcr_live::WEB_PAGE_HEADERS;

use crate::server::App;
use crate::server::error::ApiError;

/// A POST route that changes engines or stops requests. Web pages may not call it, not even pages of allowed
/// origins, because a form on any page can send a POST request.
pub(super) fn changes<H: Handler<T, Arc<App>>, T: 'static>(handler: H) -> MethodRouter<Arc<App>> {
    guarded(post(handler))
}

/// Refuses requests from web pages of other origins, for all methods of a route.
pub(super) fn guarded(methods: MethodRouter<Arc<App>>) -> MethodRouter<Arc<App>> {
    methods.layer(from_fn(refuse_web_pages))
}

async fn refuse_web_pages(request: Request, next: Next) -> Response {
    if WEB_PAGE_HEADERS.iter().any(|name| request.headers().contains_key(*name)) {
        return ApiError::forbidden("web pages may not change engines").into_response();
    }
    next.run(request).await
}
