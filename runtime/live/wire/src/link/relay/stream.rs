//! Plain connections to ZeroMQ addresses.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use crate::link::handshake::DataAddress;

/// Time limit for connecting; no peer is further away than this.
const PATIENCE: Duration = Duration::from_secs(5);

/// The address of an abstract socket, which has no file.
#[cfg(target_os = "linux")]
fn abstract_address(name: &str) -> io::Result<SocketAddr> {
    <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)
}

/// Fails: only Linux has abstract sockets.
#[cfg(not(target_os = "linux"))]
fn abstract_address(_name: &str) -> io::Result<SocketAddr> {
    Err(ErrorKind::Unsupported.into())
}

/// A connection that never blocks.
pub(in crate::link) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects to `tcp://host:port` or `ipc://path`; may take a while.
    pub(in crate::link) fn connect(address: &str) -> io::Result<Self> {
        if let Some(path) = address.strip_prefix("ipc://") {
            let address = match path.strip_prefix('@') {
                Some(name) => abstract_address(name)?,
                None => SocketAddr::from_pathname(path)?,
            };
            return Self::Unix(UnixStream::connect_addr(&address)?).ready();
        }
        let host = address.strip_prefix("tcp://").ok_or(ErrorKind::InvalidInput)?;
        let mut last = ErrorKind::AddrNotAvailable.into();
        for address in host.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Self::Tcp(stream).ready(),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn ready(self) -> io::Result<Self> {
        match &self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
            }
            Self::Unix(stream) => stream.set_nonblocking(true)?,
        }
        Ok(self)
    }

    pub(in crate::link) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }

    pub(in crate::link) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

pub(in crate::link) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens on a free port, or at the file `name`. Also returns the address.
    pub(in crate::link) fn bind(at: &DataAddress, name: &str) -> io::Result<(Self, String)> {
        match at {
            DataAddress::Tcp { host } => {
                let listener = TcpListener::bind((host.trim_matches(['[', ']']), 0))?;
                listener.set_nonblocking(true)?;
                let port = listener.local_addr()?.port();
                Ok((Self::Tcp(listener), format!("tcp://{host}:{port}")))
            }
            DataAddress::Ipc { folder } => {
                let path = folder.join(name);
                let listener = UnixListener::bind(&path)?;
                listener.set_nonblocking(true)?;
                Ok((Self::Unix(listener), format!("ipc://{}", path.display())))
            }
        }
    }

    /// Accepts a waiting connection.
    pub(in crate::link) fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => Stream::Tcp(listener.accept()?.0).ready(),
            Self::Unix(listener) => Stream::Unix(listener.accept()?.0).ready(),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}
