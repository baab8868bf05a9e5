//! `vcr serve` as a process of its own, and a client of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use serde_json::Value;

use crate::running::Running;

/// Long enough for a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `vcr serve`, killed in the end. A test that fails prints its log.
#[derive(Debug)]
pub struct Serve {
    running: Running,
    address: String,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The body, null if it is no JSON.
    pub body: Value,
}

impl Serve {
    /// Starts it on a free port and waits until it serves.
    ///
    /// # Panics
    /// When there is no such binary, or it does not serve.
    #[must_use]
    pub fn start(args: &[&str]) -> Self {
        let running = Running::start(&[&["serve", "--port", "0"], args].concat());
        let line = running.wait_for("on http://");
        let address = line.rsplit("http://").next().expect("the line has an address").trim().to_owned();
        Self { running, address }
    }

    /// Where it serves, as HOST:PORT.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Gets a path.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn get(&self, path: &str) -> Reply {
        self.answered(self.send("GET", path, "", ""))
    }

    /// Deletes a path.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn delete(&self, path: &str) -> Reply {
        self.answered(self.send("DELETE", path, "", ""))
    }

    /// Posts JSON to a path.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, &body.to_string())
    }

    /// Posts a body as it is.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn post_text(&self, path: &str, body: &str) -> Reply {
        self.answered(self.send("POST", path, "", body))
    }

    /// Posts JSON with a further header, such as `Name: value`.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn post_with(&self, path: &str, header: &str, body: &Value) -> Reply {
        self.answered(self.send("POST", path, &format!("{header}\r\n"), &body.to_string()))
    }

    /// Posts JSON and returns the connection, with nothing of the answer read.
    ///
    /// # Panics
    /// When it cannot be sent.
    #[must_use]
    pub fn begin(&self, path: &str, body: &Value) -> TcpStream {
        self.send("POST", path, "", &body.to_string())
    }

    /// The events of a stream: their JSON, and the texts of those that are none.
    ///
    /// # Panics
    /// When the answer is no stream.
    #[must_use]
    pub fn stream(&self, path: &str, body: &Value) -> Vec<Result<Value, String>> {
        let (status, text) = read_all(self.begin(path, body));
        assert_eq!(status, 200, "{text}");
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        events.map(|event| serde_json::from_str(event).map_err(|_| event.to_owned())).collect()
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time is a time");
        let (address, length) = (&self.address, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        stream.write_all(body.as_bytes()).expect("it reads");
        stream
    }

    fn answered(&self, stream: TcpStream) -> Reply {
        let (status, text) = read_all(stream);
        Reply { status, body: serde_json::from_str(&text).unwrap_or(Value::Null) }
    }
}

/// The status and the body of an answer, to the end of its connection.
fn read_all(stream: TcpStream) -> (u16, String) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("there is an answer");
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status: {line}"));
    let mut is_chunked = false;
    loop {
        line.clear();
        reader.read_line(&mut line).expect("a head has an end");
        match line.trim() {
            "" => break,
            header => is_chunked |= header.eq_ignore_ascii_case("transfer-encoding: chunked"),
        }
    }
    let mut body = Vec::new();
    if !is_chunked {
        reader.read_to_end(&mut body).expect("a body has an end");
        return (status, String::from_utf8(body).expect("bodies are texts"));
    }
    loop {
        line.clear();
        reader.read_line(&mut line).expect("a chunk has a length");
        let length = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
        if length == 0 {
            return (status, String::from_utf8(body).expect("bodies are texts"));
        }
        let start = body.len();
        body.resize(start + length, 0);
        reader.read_exact(&mut body[start..]).expect("a chunk is complete");
        line.clear();
        reader.read_line(&mut line).expect("a chunk has an end");
    }
}

impl Deref for Serve {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl DerefMut for Serve {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.running
    }
}
