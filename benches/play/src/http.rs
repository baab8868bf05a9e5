//! The chain of a real frontend and an engine, driven over HTTP.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use vcr_core::seed::{derive, mix};

use crate::Failure;
use crate::client::{Load, Setup};
use crate::process::{Cpu, Process, free_port, own_cpu};
use crate::report::Sheet;

/// For the frontend to start and to find its engine.
const START: Duration = Duration::from_secs(120);

/// A connection with one request at a time.
struct Connection {
    socket: TcpStream,
    /// What has come of the answer.
    answer: Vec<u8>,
    is_busy: bool,
}

/// Streams completions through a frontend and compares what both ends use.
///
/// `frontend` is a command with `{http_port}` and `{handshake_port}` in it.
pub(crate) fn through_frontend(
    setup: &Setup,
    frontend: &str,
    model: &str,
    load: Load,
    at_most: Option<f64>,
) -> Result<Sheet, Failure> {
    let mut sheet = Sheet::new(format!(
        "through a frontend: {} requests, {} at a time, {} in / {} out",
        load.requests, load.at_once, load.prompt_tokens, load.output_tokens
    ));
    let (http_port, handshake_port) = (free_port()?, free_port()?);
    let words = frontend.split_whitespace().map(|word| {
        let word = word.replace("{http_port}", &http_port.to_string());
        word.replace("{handshake_port}", &handshake_port.to_string())
    });
    let mut frontend = Process::start(&words.collect::<Vec<_>>())?;
    let options = ["--max-num-seqs".to_owned(), load.at_once.to_string()];
    let (frontend_address, engines) = (local(handshake_port), local(free_port()?));
    let (relay, address) = setup.start_relay(&frontend_address, &engines)?;
    let mut engine = Process::start(&setup.command(&address, &options))?;
    let deadline = Instant::now() + START;
    while !is_healthy(http_port) {
        frontend.check()?;
        engine.check()?;
        if Instant::now() > deadline {
            return Err(format!("the frontend was not ready after {} s", START.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let connect = |_| {
        let socket = TcpStream::connect(("127.0.0.1", http_port))?;
        socket.set_nodelay(true)?;
        Ok(Connection { socket, answer: Vec::new(), is_busy: false })
    };
    let mut connections = (0..load.at_once).map(connect).collect::<Result<Vec<_>, std::io::Error>>()?;
    let seed = derive(setup.seed, "bench.http", 0);
    let warm_up = load.at_once.max(load.requests / 10);
    drive(&mut connections, model, seed, 0..warm_up, load)?;
    let relay_cpu = || relay.as_ref().map_or(Ok(Cpu::default()), Process::cpu);
    let before = (engine.cpu()?, frontend.cpu()?, own_cpu()?, relay_cpu()?);
    let started = Instant::now();
    drive(&mut connections, model, seed, warm_up..warm_up + load.requests, load)?;
    let wall_s = started.elapsed().as_secs_f64();
    let engine_cpu = engine.cpu()?.since(before.0).total_ns as f64;
    let frontend_cpu = frontend.cpu()?.since(before.1).total_ns as f64;
    let own = own_cpu()?.since(before.2).total_ns as f64;
    let between = relay_cpu()?.since(before.3).total_ns as f64;
    let tokens = (load.requests * u64::from(load.output_tokens)) as f64;
    sheet
        .figure("requests", load.requests as f64 / wall_s, "/s")
        .figure("tokens", tokens / wall_s, "/s")
        .figure("engine CPU per token", engine_cpu / 1e3 / tokens, "us")
        .figure("frontend CPU per token", frontend_cpu / 1e3 / tokens, "us")
        .figure("client CPU per token", own / 1e3 / tokens, "us")
        .figure("the engine's share of the chain", engine_cpu / (engine_cpu + frontend_cpu) * 100.0, "%")
        .at_most(at_most);
    if relay.is_some() {
        sheet.figure("relay CPU per token", between / 1e3 / tokens, "us");
    }
    Ok(sheet)
}

fn local(port: u16) -> String {
    format!("tcp://127.0.0.1:{port}")
}

fn is_healthy(port: u16) -> bool {
    let ask = || {
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        socket.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = [0; 12];
        socket.read_exact(&mut answer)?;
        Ok::<_, std::io::Error>(answer.ends_with(b"200"))
    };
    ask().unwrap_or(false)
}

/// Sends the requests of `range`, one on each free connection, and waits for
/// all answers.
fn drive(
    connections: &mut [Connection],
    model: &str,
    seed: u64,
    range: std::ops::Range<u64>,
    load: Load,
) -> Result<(), Failure> {
    let expected = format!("\"completion_tokens\":{}", load.output_tokens);
    let mut numbers = range.clone();
    let mut left = range.end - range.start;
    for connection in connections.iter_mut() {
        if let Some(number) = numbers.next() {
            connection.ask(&request(model, mix(seed ^ number), load))?;
        }
    }
    let mut ready = Vec::new();
    while left > 0 {
        let mut items: Vec<_> = connections.iter().map(|each| PollFd::new(&each.socket, PollFlags::IN)).collect();
        poll(&mut items, None)?;
        ready.clear();
        ready.extend(items.iter().enumerate().filter(|(_, item)| !item.revents().is_empty()).map(|(place, _)| place));
        for &place in &ready {
            let connection = &mut connections[place];
            if !connection.read()? {
                continue;
            }
            connection.check(&expected)?;
            left -= 1;
            if let Some(number) = numbers.next() {
                connection.ask(&request(model, mix(seed ^ number), load))?;
            }
        }
    }
    Ok(())
}

fn request(model: &str, base: u64, load: Load) -> String {
    let mut prompt = String::new();
    for place in 0..u64::from(load.prompt_tokens) {
        let separator = if place == 0 { "" } else { "," };
        // Far from any special token of any vocabulary.
        _ = write!(prompt, "{separator}{}", 1000 + (mix(base ^ place) >> 32) % 20_000);
    }
    let body = format!(
        "{{\"model\":\"{model}\",\"prompt\":[{prompt}],\"max_tokens\":{},\"ignore_eos\":true,\"stream\":true,\
         \"stream_options\":{{\"include_usage\":true}}}}",
        load.output_tokens
    );
    format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

impl Connection {
    fn ask(&mut self, request: &str) -> Result<(), Failure> {
        self.answer.clear();
        self.is_busy = true;
        Ok(self.socket.write_all(request.as_bytes())?)
    }

    /// Takes what has come; whether that was the end of the answer.
    fn read(&mut self) -> Result<bool, Failure> {
        let mut bytes = [0; 16_384];
        let count = self.socket.read(&mut bytes)?;
        if count == 0 {
            return Err("the frontend has closed a connection".into());
        }
        self.answer.extend_from_slice(&bytes[..count]);
        Ok(self.is_busy && self.answer.ends_with(b"\r\n0\r\n\r\n"))
    }

    /// Whether the answer is all that was asked for.
    fn check(&mut self, expected: &str) -> Result<(), Failure> {
        self.is_busy = false;
        let text = String::from_utf8_lossy(&self.answer);
        if text.starts_with("HTTP/1.1 200") && text.contains(expected) {
            return Ok(());
        }
        Err(format!("the frontend answers, without {expected}: {text}").into())
    }
}
