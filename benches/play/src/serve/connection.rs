//! One connection to an HTTP server, with one request at a time.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;

use vcr_core::seed::mix;

use super::timestamp;
use crate::Failure;

/// Number of bytes of an answer's end that are kept for inspection.
const TAIL_BYTES: usize = 2048;

/// Size and kind of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) is_streamed: bool,
}

/// Bytes of a request for a text completion. Its prompt depends on `base`.
pub(crate) fn request(model: &str, base: u64, shape: Shape) -> String {
    let mut prompt = String::new();
    for place in 0..u64::from(shape.prompt_tokens) {
        let separator = if place == 0 { "" } else { "," };
        // These IDs are far from the special tokens of any vocabulary.
        _ = write!(prompt, "{separator}{}", 1000 + (mix(base ^ place) >> 32) % 20_000);
    }
    let usage = if shape.is_streamed { ",\"stream_options\":{\"include_usage\":true}" } else { "" };
    let body = format!(
        "{{\"model\":\"{model}\",\"prompt\":[{prompt}],\"max_tokens\":{},\"ignore_eos\":true,\"stream\":{}{usage}}}",
        shape.output_tokens, shape.is_streamed
    );
    post("/v1/completions", &body)
}

pub(crate) fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub(crate) struct Connection {
    pub(crate) socket: TcpStream,
    /// Received part of the answer: all of a short answer, or the end of a long one.
    answer: Vec<u8>,
    /// Length of the answer, if its head states it. Otherwise the answer ends with an empty chunk.
    length: Option<usize>,
    received: usize,
    status: [u8; 3],
    last_byte: u8,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// Number of completed events.
    pub(crate) events: u32,
    /// Time at which the system received the last event, in nanoseconds since 1970, however late the client reads
    /// it. 0 unless times are enabled.
    pub(crate) at_ns: u64,
    pub(crate) is_over: bool,
}

impl Connection {
    pub(crate) fn open(port: u16) -> Result<Self, Failure> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        let answer = Vec::new();
        Ok(Self { socket, answer, length: None, received: 0, status: [0; 3], last_byte: 0 })
    }

    /// Makes the system record arrival times of bytes.
    pub(crate) fn take_times(&self) -> Result<(), Failure> {
        Ok(timestamp::take_times(&self.socket)?)
    }

    pub(crate) fn ask(&mut self, request: &str) -> Result<(), Failure> {
        self.answer.clear();
        (self.length, self.received, self.last_byte) = (None, 0, 0);
        Ok(self.socket.write_all(request.as_bytes())?)
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<Arrived, Failure> {
        let (count, at_ns) = match timestamp::receive(&self.socket, buffer) {
            Ok((0, _)) => return Err("the server has closed a connection".into()),
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Arrived::default()),
            Err(error) => return Err(error.into()),
        };
        let bytes = &buffer[..count];
        let mut events = 0;
        for byte in bytes {
            events += u32::from(*byte == b'\n' && self.last_byte == b'\n');
            self.last_byte = *byte;
        }
        if self.received < 12 {
            self.answer.extend_from_slice(bytes);
            self.read_head();
        } else {
            self.answer.extend_from_slice(bytes);
        }
        self.received += count;
        if self.answer.len() > 2 * TAIL_BYTES {
            self.answer.drain(..self.answer.len() - TAIL_BYTES);
        }
        let is_over = match self.length {
            Some(length) => self.received >= length,
            None => self.answer.ends_with(b"\r\n0\r\n\r\n"),
        };
        Ok(Arrived { events, at_ns, is_over })
    }

    /// Reads the status and the length of the answer from its first packet.
    fn read_head(&mut self) {
        if let Some(status) = self.answer.get(9..12) {
            self.status.copy_from_slice(status);
        }
        let Some(end) = self.answer.windows(4).position(|four| four == b"\r\n\r\n") else { return };
        let head = String::from_utf8_lossy(&self.answer[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        self.length = length.and_then(|length| length.trim().parse::<usize>().ok()).map(|length| end + 4 + length);
    }

    /// Fails unless the answer is a success with `output_tokens` tokens.
    pub(crate) fn check(&self, output_tokens: u32) -> Result<(), Failure> {
        let text = String::from_utf8_lossy(&self.answer);
        let expected = format!("\"completion_tokens\":{output_tokens}");
        if &self.status == b"200" && text.contains(&expected) {
            return Ok(());
        }
        Err(format!("the server answers with {}, without {expected}: {text}", self.status()).into())
    }

    pub(crate) fn status(&self) -> String {
        String::from_utf8_lossy(&self.status).into_owned()
    }
}
