//! Replaces TLS in builds without it: settings and connections with TLS cannot exist.

use std::io::{self, Read, Write};
use std::net::TcpStream;

/// TLS of an engine, which does not exist without the feature `tls`.
#[derive(Clone, Copy, Debug)]
pub enum TcpTls {}

impl TcpTls {
    pub(super) fn connect(&self, _socket: TcpStream, _host: &str) -> Result<TlsStream, String> {
        match *self {}
    }

    pub(super) fn accept(&self, _socket: TcpStream) -> Result<TlsStream, String> {
        match *self {}
    }
}

pub(super) enum TlsStream {}

impl TlsStream {
    pub(super) fn socket(&self) -> &TcpStream {
        match *self {}
    }

    pub(super) fn wants_write(&self) -> bool {
        match *self {}
    }

    pub(super) fn has_received(&mut self) -> io::Result<bool> {
        match *self {}
    }

    pub(super) fn advance(&mut self) -> io::Result<()> {
        match *self {}
    }
}

impl Read for TlsStream {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}

impl Write for TlsStream {
    fn write(&mut self, _buffer: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match *self {}
    }
}

pub(super) fn reason(error: io::Error) -> Result<String, io::Error> {
    Err(error)
}
