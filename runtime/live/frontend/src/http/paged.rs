//! A page at its own address, for commands without a server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;

use super::around::{Client, Service};
use crate::page::{Page, PageRequest, Peer};

/// Serves only a page.
#[derive(Debug)]
pub struct PageSite(pub Arc<Page>);

impl Service for PageSite {
    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: Client,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(async move {
            let peer = Peer { address: client.peer, is_at_own: client.is_at_page };
            match self.0.answer(request.map(Body::new), peer).await {
                PageRequest::Answered(response) => response,
                _ => StatusCode::NOT_FOUND.into_response(),
            }
        })
    }
}
