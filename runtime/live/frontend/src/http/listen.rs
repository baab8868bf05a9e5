//! The server's sockets: accept, TLS, limits for slow clients, and shutdown.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::around::{Client, Service};
use super::connection::{ClientSocket, ConnectionControl, reset_on_close};
use super::head_timer::HeadTimer;
use super::protocol::{Protocol, detect};
use super::threads::ThreadPool;
use super::tls::Tls;
use crate::metrics::{Held, Metrics};

/// Pause after a failed accept. Usually there are no free file descriptors, and other connections must end first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Interval of HTTP/2 pings, and the timeout for their answers. They detect clients that have silently
/// disconnected.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The read buffer of an HTTP/1 connection, which limits a request's head.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Settings for connections.
#[derive(Clone)]
pub struct ListenOptions {
    /// The certificate, for HTTPS.
    pub tls: Option<Arc<Tls>>,
    /// Timeout for the TLS handshake, for a request's head, and for an idle connection between two requests.
    pub head_timeout: Duration,
    /// Time for running requests to end after shutdown has started.
    pub shutdown_timeout: Duration,
    /// Decides which new connections are reset at once.
    pub refuses: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Counts connections.
    pub metrics: Metrics,
    /// The rank of the engine for requests that select no engine, from 0. `None` allows any engine.
    pub rank: Option<u32>,
    /// Whether this is the page's own address.
    pub is_at_page: bool,
    /// The threads that serve connections. By default, the accepting thread serves all.
    pub threads: Arc<ThreadPool>,
}

impl std::fmt::Debug for ListenOptions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = out.debug_struct("ListenOptions");
        out.field("tls", &self.tls).field("head_timeout", &self.head_timeout).finish_non_exhaustive()
    }
}

/// An address on which the server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Opens the server's socket.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|source| ListenError { address, source })
}

/// Serves HTTP/1 and HTTP/2 until `shutdown`, then until the last request ends or the shutdown timeout is over.
pub async fn serve(
    listener: TcpListener,
    site: Arc<dyn Service>,
    options: ListenOptions,
    shutdown: impl Future<Output = ()>,
) {
    let options = Arc::new(options);
    let port = listener.local_addr().map_or(0, |address| address.port());
    let (ending, ends) = watch::channel(false);
    let mut shutdown = pin!(shutdown);
    let mut is_failing = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let was_failing = std::mem::replace(&mut is_failing, accepted.is_err());
        match accepted {
            Ok((stream, _)) if (options.refuses)() => {
                options.metrics.fault("refuse");
                reset_on_close(&stream);
            }
            Ok((stream, peer)) => {
                let (site, options) = (Arc::clone(&site), Arc::clone(&options));
                let connection = Connection { site, options, peer, port, ends: ends.clone() };
                connection.begin(stream);
            }
            Err(error) => {
                // The accept is retried many times per second, so log only the first failure.
                if !was_failing {
                    tracing::warn!(%error, "a connection cannot be accepted");
                }
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

/// A connection and its service. There are thousands, so rarely needed parts are boxed.
struct Connection {
    site: Arc<dyn Service>,
    options: Arc<ListenOptions>,
    peer: SocketAddr,
    port: u16,
    ends: watch::Receiver<bool>,
}

impl Connection {
    fn begin(self, stream: TcpStream) {
        let options = Arc::clone(&self.options);
        match options.threads.next() {
            None => drop(tokio::spawn(self.accepted(stream))),
            Some(thread) => drop(thread.spawn(self.moved(stream.into_std()))),
        }
    }

    /// Serves the connection on another thread than the accepting one.
    async fn moved(self, stream: io::Result<std::net::TcpStream>) {
        match stream.and_then(TcpStream::from_std) {
            Ok(stream) => self.accepted(stream).await,
            Err(error) => tracing::warn!(peer = %self.peer, %error, "a connection cannot be served"),
        }
    }

    async fn accepted(self, stream: TcpStream) {
        let _held = Held::connection(&self.options.metrics);
        // Each token is a packet that must not wait for the next one.
        let _ = stream.set_nodelay(true);
        let control = ConnectionControl::by_port(self.port, self.options.rank);
        let socket = ClientSocket::new(stream, control.clone());
        match self.options.tls.clone() {
            None => self.served(socket, control).await,
            Some(tls) => Box::pin(self.secured(tls, socket, control)).await,
        }
    }

    async fn secured(self, tls: Arc<Tls>, socket: ClientSocket, control: ConnectionControl) {
        match timeout(self.options.head_timeout, tls.acceptor().accept(socket)).await {
            Ok(Ok(socket)) => self.served(socket, control).await,
            Ok(Err(error)) => tracing::debug!(peer = %self.peer, %error, "the TLS handshake failed"),
            Err(_) => tracing::debug!(peer = %self.peer, "the TLS handshake took too long"),
        }
    }

    async fn served(
        mut self,
        socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        control: ConnectionControl,
    ) {
        let head_timeout = self.options.head_timeout;
        let detected = tokio::select! {
            detected = Box::pin(timeout(head_timeout, detect(socket))) => detected,
            _ = self.ends.wait_for(|is_ending| *is_ending) => return,
        };
        let (protocol, socket) = match detected {
            Ok(Ok((protocol, socket))) => (protocol, TokioIo::new(socket)),
            Ok(Err(error)) => return tracing::debug!(peer = %self.peer, %error, "a connection ended"),
            Err(_) => return tracing::debug!(peer = %self.peer, "a connection brought no request"),
        };
        match protocol {
            Protocol::Http1 => {
                let mut builder = http1::Builder::new();
                builder.timer(HeadTimer::default()).header_read_timeout(head_timeout).max_buf_size(MAX_HEAD_BYTES);
                // Responses and events are short, so copying them after their heads is faster than a vectored
                // write.
                builder.writev(false);
                let connection = builder.serve_connection(socket, self.service(&control, || ()));
                self.driven(pin!(connection), http1::Connection::graceful_shutdown, &control, pending()).await;
            }
            Protocol::Http2 => {
                let has_begun = Arc::new(AtomicBool::new(false));
                let begun = Arc::clone(&has_begun);
                let service = self.service(&control, move || begun.store(true, Ordering::Relaxed));
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder.timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
                let mut connection = Box::pin(builder.serve_connection(socket, service));
                // hyper has no timeout for the first request of an HTTP/2 connection.
                let without_request = async {
                    sleep(head_timeout).await;
                    if has_begun.load(Ordering::Relaxed) {
                        pending::<()>().await;
                    }
                };
                let ended =
                    self.driven(connection.as_mut(), http2::Connection::graceful_shutdown, &control, without_request);
                Box::pin(ended).await;
            }
        }
    }

    /// Returns the service of this connection. It calls `begin` for each request.
    fn service<B: Fn() + Send>(
        &self,
        control: &ConnectionControl,
        begin: B,
    ) -> impl HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send + 'static> + Send + use<B> {
        let is_at_page = self.options.is_at_page;
        let client = Client { peer: self.peer, connection: control.clone(), is_at_page };
        let site = Arc::clone(&self.site);
        service_fn(move |request: Request<Incoming>| {
            begin();
            let answer = Arc::clone(&site).answer(request, client.clone());
            async move { Ok::<Response<Body>, Infallible>(answer.await) }
        })
    }

    /// Drives the connection until it ends, is reset, or `too_late` completes.
    async fn driven<C: Future<Output = hyper::Result<()>>>(
        &mut self,
        mut connection: Pin<&mut C>,
        shut_down: impl Fn(Pin<&mut C>),
        control: &ConnectionControl,
        too_late: impl Future<Output = ()>,
    ) {
        let peer = self.peer;
        let mut too_late = pin!(too_late);
        let mut watches_end = true;
        loop {
            tokio::select! {
                // Poll the connection first, because the other events are rare.
                biased;
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(%peer, %error, "a connection ended");
                    }
                    break;
                }
                () = control.wait_for_reset() => break,
                () = &mut too_late => {
                    tracing::debug!(%peer, "a connection brought no request");
                    break;
                }
                _ = self.ends.wait_for(|is_ending| *is_ending), if watches_end => {
                    watches_end = false;
                    shut_down(connection.as_mut());
                }
            }
        }
    }
}
