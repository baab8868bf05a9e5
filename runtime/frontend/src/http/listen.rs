//! The sockets of the server: accepting, TLS, limits against clients that are
//! slow on purpose, and an orderly end.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::connection::{ClientSocket, ConnectionControl, PeerAddress, reset_on_close};
use super::tls::Tls;
use crate::metrics::{Held, Metrics};

/// Pause after a failure to accept: most are a lack of file descriptors, which
/// only the end of other connections heals.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// The read buffer of an HTTP/1 connection, and so the limit of a request's head.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// How connections are treated.
#[derive(Clone)]
pub struct ListenOptions {
    /// The certificate, for HTTPS.
    pub tls: Option<Arc<Tls>>,
    /// Time for the TLS handshake and the head of a request, and for a connection
    /// to be idle between two requests.
    pub head_timeout: Duration,
    /// Time that requests under way have to end after the shutdown began.
    pub shutdown_timeout: Duration,
    /// Decides which new connections are reset at once.
    pub refuses: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Where connections are counted.
    pub metrics: Metrics,
}

impl std::fmt::Debug for ListenOptions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = out.debug_struct("ListenOptions");
        out.field("tls", &self.tls).field("head_timeout", &self.head_timeout).finish_non_exhaustive()
    }
}

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Opens the socket of a server.
///
/// # Errors
/// The port is in use, for example.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|source| ListenError { address, source })
}

/// Serves HTTP/1 and HTTP/2 until `shutdown`, then until the last request ends
/// or its time is up.
pub async fn serve(listener: TcpListener, router: Router, options: ListenOptions, shutdown: impl Future<Output = ()>) {
    let (ending, ends) = watch::channel(false);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((stream, _)) if (options.refuses)() => {
                options.metrics.fault("refuse");
                reset_on_close(&stream);
            }
            Ok((stream, peer)) => {
                let connection =
                    Connection { router: router.clone(), options: options.clone(), peer, ends: ends.clone() };
                tokio::spawn(connection.accepted(stream));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop((listener, ends));
    ending.send_replace(true);
    if timeout(options.shutdown_timeout, ending.closed()).await.is_err() {
        tracing::warn!("requests are cut off at the end");
    }
}

/// A connection and what it serves.
struct Connection {
    router: Router,
    options: ListenOptions,
    peer: SocketAddr,
    ends: watch::Receiver<bool>,
}

impl Connection {
    async fn accepted(self, stream: TcpStream) {
        let _held = Held::connection(&self.options.metrics);
        // A token is a packet: it must not wait for the next one.
        let _ = stream.set_nodelay(true);
        let control = ConnectionControl::default();
        let socket = ClientSocket::new(stream, control.clone());
        match &self.options.tls {
            None => self.served(socket, control).await,
            Some(tls) => match timeout(self.options.head_timeout, tls.acceptor().accept(socket)).await {
                Ok(Ok(socket)) => self.served(socket, control).await,
                Ok(Err(error)) => tracing::debug!(peer = %self.peer, %error, "the TLS handshake failed"),
                Err(_) => tracing::debug!(peer = %self.peer, "the TLS handshake took too long"),
            },
        }
    }

    async fn served(self, socket: impl AsyncRead + AsyncWrite + Unpin + 'static, control: ConnectionControl) {
        let Self { router, options, peer, mut ends } = self;
        let mut builder = Builder::new(TokioExecutor::new());
        let http1 = &mut builder.http1();
        http1.timer(TokioTimer::new()).header_read_timeout(options.head_timeout).max_buf_size(MAX_HEAD_BYTES);
        builder.http2().timer(TokioTimer::new());
        // Until the first request, the library waits for the protocol's first
        // bytes without a limit.
        let has_begun = Arc::new(AtomicBool::new(false));
        let begun = has_begun.clone();
        let service = TowerToHyperService::new(router);
        let of_connection = control.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            begun.store(true, Ordering::Relaxed);
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(of_connection.clone());
            request.extensions_mut().insert(PeerAddress(peer));
            service.call(request)
        });
        let deadline = Instant::now() + options.head_timeout;
        let connection = builder.serve_connection(TokioIo::new(socket), service);
        let mut connection = std::pin::pin!(connection);
        let (mut watches_begin, mut watches_end) = (true, true);
        loop {
            tokio::select! {
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(%peer, %error, "a connection ended");
                    }
                    break;
                }
                () = control.wait_for_reset() => break,
                () = sleep_until(deadline), if watches_begin => {
                    watches_begin = false;
                    if !has_begun.load(Ordering::Relaxed) {
                        tracing::debug!(%peer, "a connection brought no request");
                        break;
                    }
                }
                _ = ends.wait_for(|is_ending| *is_ending), if watches_end => {
                    watches_end = false;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}
