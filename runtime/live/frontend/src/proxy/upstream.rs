//! The server behind the proxy, and the connections to it.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body as AxumBody;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::{Request, Uri};
use hyper::{Response, Version};
use rustls::pki_types::ServerName;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::proxy::address::Address;
use crate::proxy::connection::{Sender, Tls, Unsent};
use crate::tee::with_causes;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of idle connections.
const IDLE_MAX: usize = 256;

/// Headers that apply to one connection only.
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The reason why a request to the server failed.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// The server's address.
        address: String,
        /// The reason why the connection failed.
        reason: String,
    },
    #[error("the connection to {address} was lost before the answer: {reason}")]
    Lost {
        /// The server's address.
        address: String,
        /// The reason why the connection was lost.
        reason: String,
    },
    #[error("the request cannot be sent to {address}: {reason}")]
    Request {
        /// The server's address.
        address: String,
        /// The reason why the request cannot be sent.
        reason: String,
    },
    #[error("cannot use TLS with {address}: {reason}")]
    Tls {
        /// The server's address.
        address: String,
        /// The reason why TLS cannot be used.
        reason: String,
    },
}

/// The server behind the proxy.
pub struct Upstream {
    address: Address,
    host: HeaderValue,
    tls: Option<Tls>,
    idle: Mutex<Vec<Sender>>,
}

/// The body of a response. At its end, its connection becomes available for the next request.
pub(crate) struct AnswerBody {
    incoming: Incoming,
    sender: Option<Sender>,
    upstream: Arc<Upstream>,
}

impl Upstream {
    /// Creates the server at an address, without connecting. Its certificate is checked against the system's
    /// authorities and the PEM file `authorities`.
    pub fn new(address: Address, authorities: Option<&Path>) -> Result<Arc<Self>, UpstreamError> {
        let failed = |reason: String| UpstreamError::Tls { address: address.to_string(), reason };
        let tls = match (address.is_tls, authorities) {
            (false, None) => None,
            (false, Some(_)) => return Err(failed("authorities are for https:// addresses only".to_owned())),
            (true, path) => {
                let read =
                    |path: &Path| std::fs::read(path).map_err(|error| failed(format!("{}: {error}", path.display())));
                let pem = path.map(read).transpose()?;
                let mut config = crate::http::client_tls(pem.as_deref()).map_err(|error| failed(error.to_string()))?;
                config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
                let name = ServerName::try_from(address.host.clone()).map_err(|error| failed(error.to_string()))?;
                Some(Tls { connector: TlsConnector::from(Arc::new(config)), name })
            }
        };
        let host = HeaderValue::from_str(&address.authority()).map_err(|error| failed(error.to_string()))?;
        Ok(Arc::new(Self { address, host, tls, idle: Mutex::default() }))
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Sends a request and returns the head of the response.
    pub(crate) async fn send(
        self: &Arc<Self>,
        parts: Parts,
        body: AxumBody,
    ) -> Result<Response<AnswerBody>, UpstreamError> {
        let mut request = self.request(parts, body)?;
        loop {
            let kept = self.idle().pop();
            let is_kept = kept.is_some();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            if !sender.is_ready().await {
                if is_kept {
                    continue;
                }
                return Err(self.lost("it was closed at once".to_owned()));
            }
            // Other requests can share an HTTP/2 connection meanwhile.
            if let Some(shared) = sender.shared() {
                self.keep(shared);
            }
            self.complete(&mut request, sender.is_http2())?;
            match sender.send(request).await {
                Ok(response) => {
                    let is_shared = sender.is_http2();
                    let sender = Some(sender).filter(|_| !is_shared);
                    return Ok(response.map(|incoming| AnswerBody { incoming, sender, upstream: Arc::clone(self) }));
                }
                // The server closed an idle connection; try another one.
                Err(Unsent { request: Some(unsent), .. }) if is_kept => request = unsent,
                Err(Unsent { error, .. }) => return Err(self.lost(with_causes(&error))),
            }
        }
    }

    /// Converts a request for the server: changes its path, and removes headers that apply to one connection only.
    fn request(&self, mut parts: Parts, body: AxumBody) -> Result<Request<AxumBody>, UpstreamError> {
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let path = format!("{}{path}", self.address.path);
        let invalid = |reason: String| UpstreamError::Request { address: self.address.to_string(), reason };
        parts.uri = path.parse::<Uri>().map_err(|error| invalid(error.to_string()))?;
        remove_hop_by_hop(&mut parts.headers);
        // Bodies are sent without waiting for `100 Continue`.
        parts.headers.remove(header::EXPECT);
        parts.extensions.clear();
        Ok(Request::from_parts(parts, body))
    }

    /// Completes a request for the HTTP version of the connection.
    fn complete(&self, request: &mut Request<AxumBody>, is_http2: bool) -> Result<(), UpstreamError> {
        *request.version_mut() = if is_http2 { Version::HTTP_2 } else { Version::HTTP_11 };
        let path = request.uri().path_and_query().cloned();
        let mut uri = Uri::builder().path_and_query(path.map_or_else(|| "/".to_owned(), |path| path.to_string()));
        if is_http2 {
            request.headers_mut().remove(header::HOST);
            uri = uri.scheme("https").authority(self.address.authority());
        } else {
            request.headers_mut().insert(header::HOST, self.host.clone());
        }
        let invalid = |error: hyper::http::Error| UpstreamError::Request {
            address: self.address.to_string(),
            reason: error.to_string(),
        };
        *request.uri_mut() = uri.build().map_err(invalid)?;
        Ok(())
    }

    async fn connect(&self) -> Result<Sender, UpstreamError> {
        let failed = |reason: String| UpstreamError::Connect { address: self.address.to_string(), reason };
        let connected = timeout(CONNECT_TIMEOUT, Sender::connect(&self.address, self.tls.as_ref())).await;
        let silent = |_| failed(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()));
        connected.map_err(silent)?.map_err(|error: io::Error| failed(error.to_string()))
    }

    fn lost(&self, reason: String) -> UpstreamError {
        UpstreamError::Lost { address: self.address.to_string(), reason }
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(sender);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Sender>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

impl AnswerBody {
    fn keep_connection(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.upstream.keep(sender);
        }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        if self.incoming.is_end_stream() {
            self.keep_connection();
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(context);
        match &polled {
            Poll::Ready(None) => self.keep_connection(),
            // After an error, the connection cannot be used again.
            Poll::Ready(Some(Err(_))) => self.sender = None,
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_connection_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-mine"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("accept", "*/*"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        remove_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn paths_are_passed_on_byte_for_byte() {
        let upstream = Upstream::new("http://127.0.0.1:9/base/v1".parse().expect("an address"), None).expect("no TLS");
        let (parts, ()) = Request::get("/v1/a%2Fb/../c;x?q=%20+%7e&&").body(()).expect("a request").into_parts();
        let mut request = upstream.request(parts, AxumBody::empty()).expect("a path");
        upstream.complete(&mut request, false).expect("a path");
        assert_eq!(request.uri().to_string(), "/base/v1/a%2Fb/../c;x?q=%20+%7e&&");
        assert_eq!(request.headers()["host"], "127.0.0.1:9");
        upstream.complete(&mut request, true).expect("a path");
        assert_eq!(request.uri().to_string(), "https://127.0.0.1:9/base/v1/a%2Fb/../c;x?q=%20+%7e&&");
        assert!(!request.headers().contains_key("host"));
    }
}
