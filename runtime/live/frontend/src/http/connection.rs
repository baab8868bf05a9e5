//! A client's connection, for the code that handles its requests.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Controls a connection from within a request.
#[derive(Clone, Debug, Default)]
pub struct ConnectionControl(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// The engine rank of the server port, from 0, if each engine has its own port.
    rank: Option<u32>,
    /// The server port.
    port: u16,
    is_reset: AtomicBool,
    reset: Notify,
}

impl ConnectionControl {
    /// Creates the control of a connection to this port. `rank` is set if the port belongs to an engine.
    pub(super) fn by_port(port: u16, rank: Option<u32>) -> Self {
        Self(Arc::new(State { rank, port, ..State::default() }))
    }

    pub(super) fn port(&self) -> u16 {
        self.0.port
    }

    /// The rank of the engine for requests that select no engine.
    pub(crate) fn rank(&self) -> Option<u32> {
        self.0.rank
    }

    /// Resets the connection: the client gets RST instead of an orderly close.
    pub fn reset(&self) {
        self.0.is_reset.store(true, Ordering::Release);
        self.0.reset.notify_one();
    }

    pub(super) async fn wait_for_reset(&self) {
        self.0.reset.notified().await;
    }

    fn is_reset(&self) -> bool {
        self.0.is_reset.load(Ordering::Acquire)
    }
}

/// A client's socket. If it is dropped after a reset, the client gets RST.
#[derive(Debug)]
pub(super) struct ClientSocket {
    stream: TcpStream,
    control: ConnectionControl,
}

impl ClientSocket {
    pub(super) fn new(stream: TcpStream, control: ConnectionControl) -> Self {
        Self { stream, control }
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        if self.control.is_reset() {
            reset_on_close(&self.stream);
        }
    }
}

/// Makes the socket send RST when it is closed, by setting its linger time to zero.
pub(super) fn reset_on_close(stream: &TcpStream) {
    let zero = Some(Duration::ZERO);
    if let Err(error) = rustix::net::sockopt::set_socket_linger(stream, zero) {
        tracing::debug!(%error, "a connection cannot be reset");
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
