//! Connections to one server: HTTP/1.1 with keep-alive, one request at a time on each.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::address::Address;
use super::error::ClientError;
use super::tls::Tls;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A request body that is sent in one piece.
pub(crate) struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// The connections to a server, and the headers of all requests.
pub(crate) struct Pool {
    pub(crate) address: Address,
    headers: HeaderMap,
    tls: Option<Tls>,
    /// The resolved address, after the first connection.
    resolved: Cell<Option<SocketAddr>>,
    idle: Rc<RefCell<Vec<SendRequest<Whole>>>>,
}

/// A connection with a request in progress. [`Busy::done`] returns it to the pool.
pub(crate) struct Busy {
    sender: SendRequest<Whole>,
    idle: Rc<RefCell<Vec<SendRequest<Whole>>>>,
}

impl Busy {
    /// Returns the connection to the pool. Call this when the response has been read completely.
    pub(crate) fn done(self) {
        if !self.sender.is_closed() {
            self.idle.borrow_mut().push(self.sender);
        }
    }
}

pub(crate) struct Outgoing<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    /// Default headers, which the target's headers override.
    pub(crate) headers: HeaderMap,
    /// Headers that override the target's headers.
    pub(crate) own: HeaderMap,
    pub(crate) body: Option<Bytes>,
}

impl<'a> Outgoing<'a> {
    /// A request with an optional JSON body.
    pub(crate) fn json(method: Method, path: &'a str, body: Option<Bytes>, own: HeaderMap) -> Self {
        let mut headers = HeaderMap::new();
        if method == Method::POST {
            headers.insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Self { method, path, headers, own, body }
    }
}

impl Pool {
    pub(crate) fn new(address: Address, mut headers: HeaderMap, tls: Option<Tls>) -> Self {
        if let Ok(host) = HeaderValue::from_str(&address.authority()) {
            headers.insert(hyper::header::HOST, host);
        }
        Self { address, headers, tls, resolved: Cell::new(None), idle: Rc::default() }
    }

    /// Sends a request. `sent` is called when the connection is ready, and the request is sent when it returns.
    /// Returns the response's head and the connection, which must be kept until the body has been read.
    pub(crate) async fn send(
        &self,
        outgoing: &Outgoing<'_>,
        sent: impl AsyncFnOnce(),
    ) -> Result<(Response<Incoming>, Busy), ClientError> {
        let mut sent = Some(sent);
        loop {
            let kept = self.idle.borrow_mut().pop();
            let is_kept = kept.is_some();
            let mut sender = match kept {
                Some(sender) if sender.is_closed() => continue,
                Some(sender) => sender,
                None => self.connect().await?,
            };
            if sender.ready().await.is_err() {
                if is_kept {
                    continue;
                }
                return Err(ClientError::Lost("before the request was sent".to_owned()));
            }
            let request = self.request(outgoing)?;
            if let Some(sent) = sent.take() {
                sent().await;
            }
            match sender.send_request(request).await {
                Ok(response) => return Ok((response, Busy { sender, idle: Rc::clone(&self.idle) })),
                // The server closed an idle connection; try another one.
                Err(error) if is_kept && !error.is_parse() => {}
                Err(error) if error.is_parse() => return Err(ClientError::Garbage(with_causes(&error))),
                Err(error) => return Err(ClientError::Lost(with_causes(&error))),
            }
        }
    }

    fn request(&self, outgoing: &Outgoing<'_>) -> Result<Request<Whole>, ClientError> {
        let Outgoing { method, path, headers, own, body } = outgoing;
        let uri = format!("{}{path}", self.address.path);
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .body(Whole(body.clone()))
            .map_err(|error| ClientError::Garbage(error.to_string()))?;
        *request.headers_mut() = headers.clone();
        for (name, value) in self.headers.iter().chain(own) {
            request.headers_mut().insert(name, value.clone());
        }
        Ok(request)
    }

    async fn connect(&self) -> Result<SendRequest<Whole>, ClientError> {
        let Address { host, port, .. } = &self.address;
        let failed = |reason: String| ClientError::Connect { address: self.address.to_string(), reason };
        let connecting = async {
            match self.resolved.get() {
                Some(address) => TcpStream::connect(address).await,
                None => TcpStream::connect((host.as_str(), *port)).await,
            }
        };
        let silent = |_| failed(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()));
        let connected = timeout(CONNECT_TIMEOUT, connecting).await.map_err(silent)?;
        // Resolve the host again if this address fails.
        self.resolved.set(connected.as_ref().ok().and_then(|stream| stream.peer_addr().ok()));
        let stream = connected.map_err(|error| failed(error.to_string()))?;
        // Requests are small and must not wait for acknowledgements.
        stream.set_nodelay(true).map_err(|error| failed(error.to_string()))?;
        let Some(tls) = &self.tls else { return self.handshake(stream).await };
        let tls_failed = |reason: String| ClientError::Tls { address: self.address.to_string(), reason };
        let shaken = timeout(CONNECT_TIMEOUT, tls.connector.connect(tls.name.clone(), stream));
        let silent = |_| tls_failed(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()));
        let stream = shaken.await.map_err(silent)?.map_err(|error| tls_failed(error.to_string()))?;
        self.handshake(stream).await
    }

    async fn handshake(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    ) -> Result<SendRequest<Whole>, ClientError> {
        let shaken = Builder::new().handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| ClientError::Lost(with_causes(&error)))?;
        tokio::task::spawn_local(async move {
            // The sender reports errors of the connection.
            _ = connection.await;
        });
        Ok(sender)
    }
}

pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
