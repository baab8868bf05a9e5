//! Detects the HTTP version of a connection from its first bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Size of the first read. It is enough for a request without a long prompt.
const FIRST_BYTES: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Reads until the version is known.
pub(super) async fn detect<S: AsyncRead + Unpin>(mut socket: S) -> io::Result<(Protocol, Replayed<S>)> {
    let mut first = Vec::with_capacity(FIRST_BYTES);
    loop {
        let count = socket.read_buf(&mut first).await?;
        let known = first.len().min(PREFACE.len());
        let protocol = match () {
            () if first[..known] != PREFACE[..known] || count == 0 => Protocol::Http1,
            () if known == PREFACE.len() => Protocol::Http2,
            () => continue,
        };
        return Ok((protocol, Replayed { socket, first, taken: 0 }));
    }
}

/// A connection that returns its first bytes again.
#[derive(Debug)]
pub(super) struct Replayed<S> {
    socket: S,
    /// The first bytes. Freed when all of them have been read.
    first: Vec<u8>,
    taken: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for Replayed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.first.is_empty() {
            return Pin::new(&mut this.socket).poll_read(cx, buffer);
        }
        let rest = &this.first[this.taken..];
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        this.taken += count;
        if this.taken == this.first.len() {
            this.first = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Replayed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn the_first_bytes_tell_the_version_and_come_again() {
        for (parts, protocol) in [
            (&["GET / HTTP/1.1\r\n", "x: y\r\n\r\n"][..], Protocol::Http1),
            (&["P", "OST / HTTP/1.1\r\n\r\n"], Protocol::Http1),
            (&["P", "RI * HTTP/1.1\r\n\r\n"], Protocol::Http1),
            (&["PRI * HTTP/2.0\r\n\r\n", "SM\r\n\r\n1234"], Protocol::Http2),
            (&["PRI"], Protocol::Http1),
            (&[], Protocol::Http1),
        ] {
            let (mut client, server) = duplex(64);
            let sent: String = parts.concat();
            let detected = tokio::spawn(async move {
                let (protocol, mut replayed) = detect(server).await.expect("it reads");
                let mut all = String::new();
                replayed.read_to_string(&mut all).await.expect("it reads on");
                (protocol, all)
            });
            for part in parts {
                client.write_all(part.as_bytes()).await.expect("there is room");
                tokio::task::yield_now().await;
            }
            drop(client);
            assert_eq!(detected.await.expect("it ends"), (protocol, sent), "{parts:?}");
        }
    }
}
