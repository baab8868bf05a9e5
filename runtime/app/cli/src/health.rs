//! `vcr health`: checks that a server is up, for containers without an HTTP client.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use clap::Args;

use crate::exit::{Exit, print_error};

pub(crate) const EXAMPLES: &str = "Examples:
  vcr health
  vcr health http://127.0.0.1:8000/ready";

/// Long enough for a loaded server, and shorter than the timeout of common probes.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A status line is short, but a peer other than an HTTP server may send anything.
const STATUS_LIMIT: u64 = 256;

#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// URL to check, `http://HOST:PORT[/PATH]`; without a path, `/health`.
    #[arg(default_value = "http://127.0.0.1:8000")]
    url: String,
}

pub(crate) fn health(args: &HealthArgs) -> Exit {
    let Some((address, path)) = parts(&args.url) else {
        print_error(&format!("invalid URL `{}`: expected http://HOST:PORT[/PATH]", args.url), None);
        return Exit::BadInput;
    };
    match status(address, &path) {
        Ok(200) => Exit::Passed,
        Ok(status) => {
            print_error(&format!("{} answered with status {status}: expected 200", args.url), None);
            Exit::CheckFailed
        }
        Err(error) => {
            print_error(&format!("no answer from {}: {error}", args.url), None);
            Exit::CheckFailed
        }
    }
}

/// Splits a URL into host with port, and path.
fn parts(url: &str) -> Option<(&str, String)> {
    if url.contains(|char: char| char.is_whitespace() || char.is_control()) {
        return None;
    }
    let rest = url.strip_prefix("http://")?;
    let (address, path) = rest.split_once('/').map_or((rest, "health"), |(address, path)| (address, path));
    let (host, port) = address.rsplit_once(':')?;
    let is_valid = !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0);
    let path = if path.is_empty() { "health" } else { path };
    is_valid.then(|| (address, format!("/{path}")))
}

fn status(address: &str, path: &str) -> io::Result<u16> {
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut line = String::new();
    BufReader::new(stream.take(STATUS_LIMIT)).read_line(&mut line)?;
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    let status = status.and_then(|status| status.trim().parse().ok());
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
}

/// Tries all addresses of the host, because the server may listen on only one.
fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
