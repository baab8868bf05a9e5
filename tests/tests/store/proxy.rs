//! A proxy that refuses or holds some requests to a server, and records the others.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Passed,
    Refused,
    /// Answered as by S3 when it does not know the upload.
    Forgotten,
    /// Never answered.
    Held,
}

/// Decides by the method, the path with its query, and the length of the body.
type Rule = Box<dyn Fn(&str, &str, usize) -> Fate + Send>;

struct State {
    rule: Rule,
    /// Methods and paths of requests that were passed on and answered.
    passed: Vec<String>,
    /// Connections of held requests.
    held: Vec<TcpStream>,
}

pub(crate) struct Proxy {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    pub(crate) fn before(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it has one").port();
        let state = State { rule: Box::new(|_, _, _| Fate::Passed), passed: Vec::new(), held: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&shared);
                thread::spawn(move || answer(&mut stream.expect("a client comes"), target, &state));
            }
        });
        Self { port, state }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn decide(&self, rule: impl Fn(&str, &str, usize) -> Fate + Send + 'static) {
        lock(&self.state).rule = Box::new(rule);
    }

    /// `METHOD PATH?QUERY` of requests that were passed on since the previous call.
    pub(crate) fn passed(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.state).passed)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no holder panicked")
}

/// Answers one request and closes the connection.
fn answer(client: &mut TcpStream, target: u16, state: &Mutex<State>) {
    let mut reader = BufReader::new(client.try_clone().expect("a handle"));
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if reader.read_exact(&mut byte).is_err() {
            return;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("a head is text");
    let (mut lines, mut bytes) = (head.split("\r\n"), 0);
    let first = lines.next().expect("a line").to_owned();
    let mut passed = vec![first.clone(), "Connection: close".to_owned()];
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').expect("a header");
        match name.to_ascii_lowercase().as_str() {
            "content-length" => bytes = value.trim().parse().expect("a number"),
            "connection" => continue,
            _ => {}
        }
        passed.push(line.to_owned());
    }
    let mut body = vec![0; bytes];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next().expect("a method"), words.next().expect("a path"));
    let fate = (lock(state).rule)(method, path, bytes);
    match fate {
        Fate::Held => lock(state).held.push(client.try_clone().expect("a handle")),
        Fate::Refused | Fate::Forgotten => {
            let (status, code) = match fate {
                Fate::Forgotten => ("404 Not Found", "NoSuchUpload"),
                _ => ("403 Forbidden", "AccessDenied"),
            };
            let body = format!("<Error><Code>{code}</Code></Error>");
            let refusal =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            let _ = client.write_all(refusal.as_bytes());
        }
        Fate::Passed => {
            let mut server = TcpStream::connect(("127.0.0.1", target)).expect("the server runs");
            server.write_all((passed.join("\r\n") + "\r\n\r\n").as_bytes()).expect("it reads");
            server.write_all(&body).expect("it reads");
            let mut answer = Vec::new();
            server.read_to_end(&mut answer).expect("it answers");
            lock(state).passed.push(format!("{method} {path}"));
            let _ = client.write_all(&answer);
        }
    }
}
