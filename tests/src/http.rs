//! Plain HTTP: allows requests that a client library would refuse to send, and shows the headers of answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, with its query.
    pub path: &'a str,
    /// Headers in addition to `Host`, `Connection` and `Content-Length`.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
}

/// An answer, as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// The headers in order, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl HttpAnswer {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Call<'_> {
    /// Sends the request to HOST:PORT over a new connection.
    ///
    /// # Panics
    /// Nobody listens there.
    #[must_use]
    pub fn begin(&self, address: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time is a time");
        let Self { method, path, .. } = self;
        let mut bytes = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n").into_bytes();
        for (name, value) in self.headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", self.body.len()).as_bytes());
        bytes.extend_from_slice(self.body);
        stream.write_all(&bytes).expect("it reads");
        stream
    }

    /// Sends the request and returns the answer.
    ///
    /// # Panics
    /// There is no answer.
    #[must_use]
    pub fn send(&self, address: &str) -> HttpAnswer {
        read_answer(self.begin(address))
    }
}

/// Reads an answer until the connection ends.
///
/// # Panics
/// The bytes are no HTTP answer.
#[must_use]
pub fn read_answer(stream: TcpStream) -> HttpAnswer {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("there is an answer");
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status: {line}"));
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).expect("a head has an end");
        match line.trim().split_once(':') {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
            None => break,
        }
    }
    let mut answer = HttpAnswer { status, headers, body: Vec::new() };
    if answer.header("transfer-encoding") == Some("chunked") {
        while read_chunk(&mut reader, &mut answer.body) {}
    } else {
        reader.read_to_end(&mut answer.body).expect("a body has an end");
    }
    answer
}

/// Reads a chunk; returns whether another follows.
fn read_chunk(reader: &mut impl BufRead, body: &mut Vec<u8>) -> bool {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a chunk has a length");
    let length = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
    if length == 0 {
        return false;
    }
    let start = body.len();
    body.resize(start + length, 0);
    reader.read_exact(&mut body[start..]).expect("a chunk is complete");
    line.clear();
    reader.read_line(&mut line).expect("a chunk has an end");
    true
}
