//! The socket of a connection, with or without TLS.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;

use crate::tcp::tls::TlsStream;

/// A non-blocking socket.
pub(super) enum Socket {
    /// Without encryption.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<TlsStream>),
}

impl Socket {
    /// The events to wait for before a call is repeated that had to wait for `wanted`.
    pub(super) fn interest(&self, wanted: PollFlags) -> PollFlags {
        match self {
            Self::Plain(_) => wanted,
            Self::Tls(stream) if stream.wants_write() => wanted | PollFlags::OUT,
            Self::Tls(_) => wanted,
        }
    }

    /// Completes the TLS handshake, unless that would block.
    pub(super) fn advance(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.advance(),
        }
    }

    /// Whether received bytes are buffered here, for which the system's socket would not become readable. The end
    /// of the connection counts too, because reading finds it.
    pub(super) fn has_received(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(_) => Ok(false),
            Self::Tls(stream) => stream.has_received(),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.socket().as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read_vectored(buffers),
            Self::Tls(stream) => stream.read_vectored(buffers),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(buffer),
            Self::Tls(stream) => stream.write(buffer),
        }
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write_vectored(buffers),
            Self::Tls(stream) => stream.write_vectored(buffers),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
