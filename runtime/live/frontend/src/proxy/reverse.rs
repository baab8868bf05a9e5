//! The proxy: forwards requests and responses.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::faults::{FaultLayer, error_response};
use crate::http::{Client, Service};
use crate::page::{PREFIX, Page, PageRequest, Peer, pairs, watched};
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};
use axum::response::Response;
use hyper::body::Incoming;
use vcr_record::HttpRecorder;
use vcr_record::http::Exchange;

use crate::proxy::exchange::OpenExchange;
use crate::proxy::upstream::{Upstream, remove_hop_by_hop};
use crate::tee::Tee;

/// Settings of a proxy.
#[derive(Clone, Copy, Debug)]
pub struct ProxyOptions {
    /// Limit of a recorded body, in bytes. Longer bodies are still forwarded.
    pub max_body_bytes: usize,
}

/// Forwards requests to a server and records the exchanges.
pub struct Proxy {
    upstream: Arc<Upstream>,
    recorder: Arc<HttpRecorder>,
    options: ProxyOptions,
    faults: Option<FaultLayer>,
    page: Option<Arc<Page>>,
    under_way: Arc<AtomicU32>,
}

impl Proxy {
    /// Creates a proxy for a server.
    #[must_use]
    pub fn new(
        upstream: Arc<Upstream>,
        recorder: Arc<HttpRecorder>,
        options: ProxyOptions,
        faults: Option<FaultLayer>,
    ) -> Self {
        Self { upstream, recorder, options, faults, page: None, under_way: Arc::default() }
    }

    /// Adds a page that shows the exchanges.
    #[must_use]
    pub fn with_page(self, page: Option<Arc<Page>>) -> Self {
        Self { page, ..self }
    }

    pub(crate) async fn forward(&self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        if let Some(name) = upgrade_of(&parts.method, &parts.headers) {
            let message = format!("cannot pass {name} on: expected plain requests, without upgrades of the connection");
            tracing::warn!(path, "{message}");
            return error_response(&path, 501, Some(&message), None, None);
        }
        let exchange = Exchange {
            method: parts.method.to_string(),
            path: path.clone(),
            query: parts.uri.query().map(str::to_owned),
            request_headers: pairs(&parts.headers),
            ..Exchange::default()
        };
        let (max_bytes, recorder) = (self.options.max_body_bytes, Arc::clone(&self.recorder));
        let mut exchange = OpenExchange::begin(exchange, max_bytes, recorder, Arc::clone(&self.under_way));
        let body = exchange.request_body(body);
        match self.upstream.send(parts, body).await {
            Ok(response) => {
                exchange.answered(response.status().as_u16(), response.headers());
                let mut response = response.map(|body| Body::new(Tee::new(body, exchange)));
                remove_hop_by_hop(response.headers_mut());
                response
            }
            Err(error) => {
                let message = error.to_string();
                tracing::warn!(path, "{message}");
                exchange.failed(message.clone());
                error_response(&path, 502, Some(&message), None, None)
            }
        }
    }
}

/// The name of an HTTP feature that cannot be forwarded: one that switches the protocol of the connection.
fn upgrade_of(method: &Method, headers: &HeaderMap) -> Option<String> {
    if *method == Method::CONNECT {
        return Some("CONNECT".to_owned());
    }
    let protocol = headers.get(header::UPGRADE)?.to_str().ok()?;
    protocol.to_ascii_lowercase().contains("websocket").then(|| format!("an upgrade to {protocol}"))
}

impl Service for Proxy {
    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: Client,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(async move {
            let mut request = request.map(Body::new);
            if let Some(page) = &self.page {
                let peer = Peer { address: client.peer, is_at_own: client.is_at_page };
                request = match page.answer(request, peer).await {
                    PageRequest::Answered(response) => return response,
                    PageRequest::Other(request) | PageRequest::Server(request) => request,
                };
            }
            let path = request.uri().path();
            if path.starts_with(PREFIX) {
                return error_response(path, 404, None, None, None);
            }
            let pass_on = async |request| match &self.faults {
                None => self.forward(request).await,
                Some(faults) => faults.around(client.connection, request, |request| self.forward(request)).await,
            };
            watched(self.page.as_deref(), client.peer, request, pass_on).await
        })
    }
}
