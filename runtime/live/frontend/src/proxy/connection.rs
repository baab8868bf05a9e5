//! A connection to a server.

use std::io;
use std::time::Duration;

use axum::body::Body;
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::proxy::address::Address;

/// The interval of HTTP/2 pings, and the timeout for their answers.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// TLS settings for one server.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) connector: TlsConnector,
    pub(crate) name: ServerName<'static>,
}

/// Sends requests on a connection.
pub(crate) enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

/// A request that got no response.
pub(crate) struct Unsent {
    pub(crate) error: hyper::Error,
    /// The request, if no part of it was sent.
    pub(crate) request: Option<Request<Body>>,
}

impl Sender {
    /// Connects, with HTTP/2 if the server selects it.
    pub(crate) async fn connect(address: &Address, tls: Option<&Tls>) -> io::Result<Self> {
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
        // Requests are small and must not wait for acknowledgements.
        stream.set_nodelay(true)?;
        let Some(tls) = tls else { return Self::http1(stream).await.map_err(io::Error::other) };
        let stream = tls.connector.connect(tls.name.clone(), stream).await?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let sender = if is_http2 { Self::http2(stream).await } else { Self::http1(stream).await };
        sender.map_err(io::Error::other)
    }

    async fn http1(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> hyper::Result<Self> {
        let mut builder = http1::Builder::new();
        builder.preserve_header_case(true);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        // The sender reports errors of the connection.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self::Http1(sender))
    }

    async fn http2(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> hyper::Result<Self> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self::Http2(sender))
    }

    /// Another sender for the same connection, if the connection supports concurrent requests.
    pub(crate) fn shared(&self) -> Option<Self> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(sender) => Some(Self::Http2(sender.clone())),
        }
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self, Self::Http2(_))
    }

    /// Whether the connection accepts a request now or soon.
    pub(crate) async fn is_ready(&mut self) -> bool {
        match self {
            Self::Http1(sender) => !sender.is_closed() && sender.ready().await.is_ok(),
            Self::Http2(sender) => !sender.is_closed() && sender.ready().await.is_ok(),
        }
    }

    pub(crate) async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, Unsent> {
        let sent = match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            Self::Http2(sender) => sender.try_send_request(request).await,
        };
        sent.map_err(|mut failed: TrySendError<Request<Body>>| {
            let request = failed.take_message();
            Unsent { error: failed.into_error(), request }
        })
    }
}
