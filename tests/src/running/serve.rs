//! `vcr serve` as a separate process, and a client of it.

use std::net::TcpStream;
use std::ops::{Deref, DerefMut};

use serde_json::Value;

use crate::http::{Call, read_answer};
use crate::running::Running;

/// A running `vcr serve`, which is killed on drop. A failed test prints its log.
#[derive(Debug)]
pub struct Serve {
    running: Running,
    address: String,
}

/// An answer with any status.
#[derive(Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The body; null if it is not JSON.
    pub body: Value,
}

impl Serve {
    /// Starts the server on a free port and waits until it serves.
    ///
    /// # Panics
    /// There is no such binary, or it does not serve.
    #[must_use]
    pub fn start(args: &[&str]) -> Self {
        Self::with_scheme("http", &[], args)
    }

    /// Like [`Serve::start`], but for a TLS client.
    ///
    /// # Panics
    /// There is no such binary, or it does not serve.
    #[must_use]
    pub fn start_tls(args: &[&str]) -> Self {
        Self::with_scheme("https", &[], args)
    }

    /// Like [`Serve::start`], with environment variables.
    ///
    /// # Panics
    /// There is no such binary, or it does not serve.
    #[must_use]
    pub fn start_with(variables: &[(&str, &str)], args: &[&str]) -> Self {
        Self::with_scheme("http", variables, args)
    }

    fn with_scheme(scheme: &str, variables: &[(&str, &str)], args: &[&str]) -> Self {
        let running = Running::start_with(variables, &[&["serve", "--port", "0"], args].concat());
        let line = running.wait_for(&format!("on {scheme}://"));
        let address = line.rsplit("://").next().expect("the line has an address").trim().to_owned();
        Self { running, address }
    }

    /// The server's address, as HOST:PORT.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends a GET request.
    ///
    /// # Panics
    /// There is no answer.
    #[must_use]
    pub fn get(&self, path: &str) -> Reply {
        self.answered(self.send("GET", path, &[], ""))
    }

    /// Sends a DELETE request.
    ///
    /// # Panics
    /// There is no answer.
    #[must_use]
    pub fn delete(&self, path: &str) -> Reply {
        self.answered(self.send("DELETE", path, &[], ""))
    }

    /// Posts JSON to a path.
    ///
    /// # Panics
    /// There is no answer.
    #[must_use]
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, &body.to_string())
    }

    /// Posts a body unchanged.
    ///
    /// # Panics
    /// There is no answer.
    #[must_use]
    pub fn post_text(&self, path: &str, body: &str) -> Reply {
        self.answered(self.send("POST", path, &[], body))
    }

    /// Posts JSON with a further header, such as `Name: value`.
    ///
    /// # Panics
    /// There is no answer.
    #[must_use]
    pub fn post_with(&self, path: &str, header: &str, body: &Value) -> Reply {
        self.answered(self.send(
            "POST",
            path,
            &[header.split_once(": ").expect("a name and a value")],
            &body.to_string(),
        ))
    }

    /// Sends a request with further headers, and with a body unless it is null.
    ///
    /// # Panics
    /// There is no answer.
    #[must_use]
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.answered(self.send(method, path, headers, &body))
    }

    /// Posts JSON and returns the connection, from which nothing has been read.
    ///
    /// # Panics
    /// The request cannot be sent.
    #[must_use]
    pub fn begin(&self, path: &str, body: &Value) -> TcpStream {
        self.send("POST", path, &[], &body.to_string())
    }

    /// Like [`Serve::begin`], with a further header.
    ///
    /// # Panics
    /// The request cannot be sent.
    #[must_use]
    pub fn begin_with(&self, path: &str, header: (&str, &str), body: &Value) -> TcpStream {
        self.send("POST", path, &[header], &body.to_string())
    }

    /// The events of a stream: JSON, or else text.
    ///
    /// # Panics
    /// The answer is not a stream.
    #[must_use]
    pub fn stream(&self, path: &str, body: &Value) -> Vec<Result<Value, String>> {
        let answer = read_answer(self.begin(path, body));
        let text = answer.text();
        assert_eq!(answer.status, 200, "{text}");
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        events.map(|event| serde_json::from_str(event).map_err(|_| event.to_owned())).collect()
    }

    fn send(&self, method: &str, path: &str, further: &[(&str, &str)], body: &str) -> TcpStream {
        let headers = [&[("Content-Type", "application/json")], further].concat();
        Call { method, path, headers: &headers, body: body.as_bytes() }.begin(&self.address)
    }

    fn answered(&self, stream: TcpStream) -> Reply {
        let answer = read_answer(stream);
        Reply { status: answer.status, body: serde_json::from_slice(&answer.body).unwrap_or(Value::Null) }
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
