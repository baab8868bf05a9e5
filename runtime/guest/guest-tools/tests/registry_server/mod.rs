//! A registry over plain HTTP, with the part of the protocol for pushing and pulling. Each connection has a thread.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use sha2::{Digest as _, Sha256};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

pub(crate) struct Server {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Contents by path.
    contents: Mutex<BTreeMap<String, Vec<u8>>>,
    lies: Mutex<Option<&'static str>>,
    requests: AtomicUsize,
    is_shut: AtomicBool,
    is_endless: AtomicBool,
    password: Option<String>,
}

struct Request {
    method: String,
    path: String,
    query: String,
    authorization: Option<String>,
    body: Vec<u8>,
}

impl Server {
    pub(crate) fn start(password: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it has one").port();
        let state = Arc::new(State { password: password.map(str::to_owned), ..State::default() });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || state.serve(&stream.expect("a client comes")));
            }
        });
        Self { port, state }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Stops answering.
    pub(crate) fn shut(&self) {
        self.state.is_shut.store(true, Ordering::Relaxed);
    }

    /// Sends answers that never end.
    pub(crate) fn answer_without_end(&self) {
        self.state.is_endless.store(true, Ordering::Relaxed);
    }

    pub(crate) fn requests(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// Sends false content for paths that contain `part`.
    pub(crate) fn lie_about(&self, part: &'static str) {
        *self.state.lies.lock().expect("no holder panicked") = Some(part);
    }

    pub(crate) fn content(&self, path: &str) -> Vec<u8> {
        self.state.contents.lock().expect("no holder panicked").get(path).cloned().expect("it is there")
    }

    pub(crate) fn put_manifest(&self, path: &str, bytes: Vec<u8>) {
        self.state.contents.lock().expect("no holder panicked").insert(path.to_owned(), bytes);
    }
}

impl State {
    /// Answers requests until the client disconnects.
    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        while let Some(request) = read_request(&mut reader) {
            if self.is_shut.load(Ordering::Relaxed) {
                return;
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            if self.is_endless.load(Ordering::Relaxed) {
                let mut out = stream;
                let begun = out.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"a\":\"");
                while begun.is_ok() && out.write_all(&[b' '; 1 << 16]).is_ok() {}
                return;
            }
            let (status, headers, body) = self.answer(&request);
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n");
            let mut out = stream;
            let body = if request.method == "HEAD" { &[][..] } else { &body };
            if out.write_all(head.as_bytes()).and_then(|()| out.write_all(body)).is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: &Request) -> (&'static str, String, Vec<u8>) {
        if let Some(password) = &self.password {
            let pair = base64::engine::general_purpose::STANDARD.encode(password);
            if request.authorization.as_deref() != Some(&format!("Basic {pair}")) {
                let challenge = "WWW-Authenticate: Basic realm=\"test\"\r\n".to_owned();
                return ("401 Unauthorized", challenge, Vec::new());
            }
        }
        let mut contents = self.contents.lock().expect("no holder panicked");
        let path = request.path.as_str();
        match request.method.as_str() {
            "GET" | "HEAD" if path == "/v2/" => ("200 OK", String::new(), Vec::new()),
            "GET" | "HEAD" => {
                let Some(bytes) = contents.get(path) else { return ("404 Not Found", String::new(), Vec::new()) };
                let digest = digest(bytes);
                let mut bytes = bytes.clone();
                if self.lies.lock().expect("no holder panicked").is_some_and(|part| path.contains(part)) {
                    bytes[1] ^= 1;
                }
                let kind = if path.contains("/manifests/") { MANIFEST } else { "application/octet-stream" };
                ("200 OK", format!("Content-Type: {kind}\r\nDocker-Content-Digest: {digest}\r\n"), bytes)
            }
            "POST" => ("202 Accepted", format!("Location: {path}upload\r\n"), Vec::new()),
            "PATCH" => {
                let upload = contents.entry(path.to_owned()).or_default();
                upload.extend_from_slice(&request.body);
                let range = format!("Range: 0-{}\r\n", upload.len() - 1);
                ("202 Accepted", format!("Location: {path}\r\n{range}"), Vec::new())
            }
            "PUT" if path.contains("/uploads/") => {
                let mut bytes = contents.remove(path).unwrap_or_default();
                bytes.extend_from_slice(&request.body);
                let digest = digest(&bytes);
                assert!(request.query.replace("%3A", ":").contains(&digest), "the client names what it sends");
                let blob = path.replace("uploads/upload", &digest);
                contents.insert(blob.clone(), bytes);
                ("201 Created", format!("Location: {blob}\r\n"), Vec::new())
            }
            "PUT" => {
                let digest = digest(&request.body);
                let (repository, _) = path.rsplit_once('/').expect("a path of a manifest");
                contents.insert(format!("{repository}/{digest}"), request.body.clone());
                contents.insert(path.to_owned(), request.body.clone());
                ("201 Created", format!("Location: {path}\r\nDocker-Content-Digest: {digest}\r\n"), Vec::new())
            }
            _ => ("405 Method Not Allowed", String::new(), Vec::new()),
        }
    }
}

fn read_request(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (mut length, mut authorization, mut is_chunked) = (0, None, false);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().expect("a number"),
            "authorization" => authorization = Some(value.to_owned()),
            "transfer-encoding" => is_chunked = value == "chunked",
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    while is_chunked {
        let mut size = String::new();
        reader.read_line(&mut size).ok()?;
        let size = usize::from_str_radix(size.trim_end(), 16).expect("a size in hexadecimal digits");
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).ok()?;
        body.extend_from_slice(&chunk[..size]);
        is_chunked = size > 0;
    }
    Some(Request { method, path: path.to_owned(), query: query.to_owned(), authorization, body })
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}
