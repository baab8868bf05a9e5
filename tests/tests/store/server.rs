//! An HTTP file server: ranges, versions, interrupted connections, the data-set API of the Hugging Face Hub, and
//! the single request with which Google's and Azure's clients upload a small object.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Commit to which every revision of a data set resolves.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    /// Content at every other path.
    elsewhere: Option<Vec<u8>>,
    /// Length after which answers are cut off, and the remaining number of answers that are cut off.
    cut: (usize, u32),
    sent_bytes: usize,
    /// `Authorization` of the last request.
    authorization: Option<String>,
}

pub(crate) struct Server {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it has one").port();
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&shared);
                thread::spawn(move || answer_all(&stream.expect("a client comes"), &state));
            }
        });
        Self { port, state }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().expect("no holder panicked"))
    }

    pub(crate) fn put(&self, path: &str, contents: &[u8]) {
        self.with(|state| state.files.insert(path.to_owned(), contents.to_vec()));
    }

    /// Serves this content at every path that has none.
    pub(crate) fn put_everywhere(&self, contents: &[u8]) {
        self.with(|state| state.elsewhere = Some(contents.to_vec()));
    }

    pub(crate) fn get(&self, path: &str) -> Option<Vec<u8>> {
        self.with(|state| state.files.get(path).cloned())
    }

    /// Cuts off answers after `bytes`, `times` times.
    pub(crate) fn cut(&self, bytes: usize, times: u32) {
        self.with(|state| state.cut = (bytes, times));
    }

    /// Number of bytes sent in bodies since the previous call.
    pub(crate) fn sent_bytes(&self) -> usize {
        self.with(|state| std::mem::take(&mut state.sent_bytes))
    }

    pub(crate) fn authorization(&self) -> Option<String> {
        self.with(|state| state.authorization.clone())
    }
}

fn answer_all(stream: &TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream);
    while let Some((method, path, headers)) = read_head(&mut reader) {
        let mut state = state.lock().expect("no holder panicked");
        state.authorization = headers.get("authorization").cloned();
        if method == "PUT" || method == "DELETE" {
            let mut body = vec![0; headers.get("content-length").map_or(0, |bytes| bytes.parse().expect("a number"))];
            reader.read_exact(&mut body).expect("a body is as long as it says");
            // The client demands that the object be new: Google's header, then Azure's.
            let is_new_only = headers.get("x-goog-if-generation-match").is_some_and(|of| of == "0")
                || headers.get("if-none-match").is_some_and(|of| of == "*");
            let path = path.split('?').next().unwrap_or_default().to_owned();
            let status = if is_new_only && state.files.contains_key(&path) {
                "412 Precondition Failed"
            } else if method == "PUT" {
                state.files.insert(path, body);
                "201 Created"
            } else {
                state.files.remove(&path);
                "202 Accepted"
            };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nETag: \"0\"\r\n\r\n");
            if (&mut &*stream).write_all(answer.as_bytes()).is_err() {
                return;
            }
            continue;
        }
        // It has no WebDAV, so it cannot list folders.
        if method == "PROPFIND" {
            let _ = (&mut &*stream).write_all(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n");
            continue;
        }
        let file = state.files.get(path.split('?').next().unwrap_or_default()).or(state.elsewhere.as_ref());
        let Some(file) = file.cloned() else {
            let _ = (&mut &*stream).write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
            continue;
        };
        let range = headers.get("range").and_then(|range| range.strip_prefix("bytes="));
        let (first, last) = range.and_then(|range| range.split_once('-')).unwrap_or(("0", ""));
        let first: usize = first.parse().expect("ranges begin with a number");
        let last = last.parse().map_or(file.len(), |last: usize| (last + 1).min(file.len()));
        let status = if range.is_some() { "206 Partial Content" } else { "200 OK" };
        let body = if method == "HEAD" { &[][..] } else { &file[first..last] };
        let mut head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"{:x}\"\r\nAccept-Ranges: bytes\r\nX-Repo-Commit: {COMMIT}\r\n\
             Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n",
            last - first,
            file.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte))),
        );
        if range.is_some() {
            head += &format!("Content-Range: bytes {first}-{}/{}\r\n", last - 1, file.len());
        }
        let (most, times) = state.cut;
        let is_cut = times > 0 && body.len() > most;
        if is_cut {
            state.cut.1 -= 1;
        }
        let body = if is_cut { &body[..most] } else { body };
        state.sent_bytes += body.len();
        let mut out = stream;
        if out.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| out.write_all(body)).is_err() || is_cut {
            return;
        }
    }
}

fn read_head(reader: &mut impl std::io::BufRead) -> Option<(String, String, BTreeMap<String, String>)> {
    let mut lines = reader.lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, decoded(&words.next()?));
    let headers = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    });
    Some((method, path, headers.collect()))
}

/// Decodes a percent-encoded path: Google's client encodes even slashes.
fn decoded(path: &str) -> String {
    let mut parts = path.split('%');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_at(2);
        decoded.push(char::from(u8::from_str_radix(code, 16).expect("two digits follow")));
        decoded += rest;
    }
    decoded
}
