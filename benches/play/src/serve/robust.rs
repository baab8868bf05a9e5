//! Clients that burden a server, and their effect on other clients.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::cases::Streams;
use super::connection::{Connection, Shape, post, request};
use super::drive::quantile_ms;
use super::server::Served;
use super::{Bench, MIB, words};
use crate::Failure;
use crate::report::Sheet;

/// Well-behaved streams that run at the same time.
const BESIDE: Streams = Streams { count: 16, interval_ns: 10_000_000, duration_ns: 8_000_000_000 };
/// Target for the gaps of these streams: three tokens late.
const GAP_MS: f64 = 40.0;

/// A server with room for the burdening clients.
fn served(bench: &Bench, max_model_len: u64) -> Result<Served, Failure> {
    let options = [
        "--decode-step-time",
        &format!("{}ns", BESIDE.interval_ns),
        "--max-num-seqs",
        "256",
        "--max-model-len",
        &max_model_len.to_string(),
        "--num-gpu-blocks",
        "500000",
        "--max-num-batched-tokens",
        "1000000",
    ];
    bench.commands.server(&words(&options))?.ready()
}

/// Runs `harm` while well-behaved streams run, and reports the effects on both.
fn beside(
    bench: &Bench,
    name: &str,
    max_model_len: u64,
    memory_mib: f64,
    harm: impl FnOnce(&Served, &AtomicBool) -> Result<(), Failure>,
) -> Result<Sheet, Failure> {
    let mut sheet = Sheet::new(name.to_owned());
    let served = served(bench, max_model_len)?;
    // The streams' buffers belong to the idle memory, so let them grow first.
    let warm = Streams { duration_ns: 100_000_000, ..BESIDE };
    warm.gaps(served.port, bench)?;
    let idle = served.memory()?.peak;
    let is_over = AtomicBool::new(false);
    let gaps = std::thread::scope(|scope| {
        let streams = scope.spawn(|| {
            let gaps = BESIDE.gaps(served.port, bench).map_err(|error| error.to_string());
            is_over.store(true, Ordering::Relaxed);
            gaps
        });
        std::thread::sleep(Duration::from_millis(300));
        let harmed = harm(&served, &is_over);
        let gaps = streams.join().map_err(|_| "the streams panicked".to_owned()).and_then(|gaps| gaps);
        harmed.and(gaps.map_err(Failure::from))
    })?;
    let more = served.memory()?.peak.saturating_sub(idle) as f64 / MIB;
    sheet
        .figure("gap that others see, 99 %", quantile_ms(&gaps, 0.99), "ms")
        .at_most(Some(GAP_MS))
        .figure("gap that others see, longest", quantile_ms(&gaps, 1.0), "ms")
        .figure("memory above the idle server", more, "MiB")
        .at_most(Some(memory_mib));
    Ok(sheet)
}

fn connect(port: u16) -> Result<TcpStream, Failure> {
    Ok(TcpStream::connect(("127.0.0.1", port))?)
}

fn until(is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Clients that request long streams and never read them.
pub(crate) fn never_read(bench: &Bench, clients: u32) -> Result<Sheet, Failure> {
    let name = format!("{clients} clients that never read their streams of 100,000 tokens");
    beside(bench, &name, 200_000, 64.0, |served, is_over| {
        let shape = Shape { prompt_tokens: 16, output_tokens: 100_000, is_streamed: true };
        let mut sockets = Vec::new();
        for client in 0..clients {
            let mut socket = connect(served.port)?;
            socket.write_all(request(&bench.model, u64::from(client), shape).as_bytes())?;
            sockets.push(socket);
        }
        until(is_over);
        Ok(())
    })
}

/// Connections that begin a request and never finish it.
pub(crate) fn half_open(bench: &Bench, connections: u32) -> Result<Sheet, Failure> {
    let name = format!("{connections} connections with half a request");
    beside(bench, &name, 4096, 256.0, |served, is_over| {
        let mut sockets = Vec::new();
        for number in 0..connections {
            let mut socket = connect(served.port)?;
            // Each socket stops in the head's first line, later in the head, or in the body.
            let parts = [
                "POST /v1/comp",
                "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-",
                "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
            ];
            // The server may have closed the connection by now.
            _ = socket.write_all(parts[number as usize % parts.len()].as_bytes());
            sockets.push(socket);
        }
        until(is_over);
        Ok(())
    })
}

/// Sends prompts as long as a book, as text and as tokens, one after the other.
pub(crate) fn long_prompts(bench: &Bench, tokens: u32) -> Result<Sheet, Failure> {
    let name = format!("prompts of {tokens} tokens, one after the other, as text and as tokens");
    beside(bench, &name, 400_000, 256.0, |served, is_over| {
        let model = &bench.model;
        let text = "word ".repeat(tokens as usize);
        let texts = post("/v1/completions", &format!(r#"{{"model":"{model}","prompt":"{text}","max_tokens":1}}"#));
        let shape = Shape { prompt_tokens: tokens, output_tokens: 1, is_streamed: false };
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) {
            ask(served, &texts, "200")?;
            ask(served, &request(model, count, shape), "200")?;
            count += 2;
        }
        Ok(())
    })
}

/// Sends the largest bodies that are accepted, and larger ones.
pub(crate) fn large_bodies(bench: &Bench, bytes: usize) -> Result<Sheet, Failure> {
    let name = format!("bodies of {} MB, one after the other", bytes / 1_000_000);
    beside(bench, &name, 4096, 512.0, |served, is_over| {
        let model = &bench.model;
        let bodies = [
            format!(r#"{{"model":"{model}","prompt":"{}","max_tokens":1}}"#, "word ".repeat(bytes / 5)),
            format!(r#"{{"model":"{model}","prompt":[{}1],"max_tokens":1}}"#, "1,".repeat(bytes / 2)),
            format!(r#"{{"model":"{model}","messages":[{}1],"max_tokens":1}}"#, "1,".repeat(bytes / 2)),
        ];
        let paths = ["/v1/completions", "/v1/completions", "/v1/chat/completions"];
        let requests: Vec<_> = paths.iter().zip(&bodies).map(|(path, body)| post(path, body)).collect();
        let too_large = post("/v1/completions", &"x".repeat(70 << 20));
        while !is_over.load(Ordering::Relaxed) {
            for request in &requests {
                ask(served, request, "400")?;
            }
            // The server refuses this request by its head, so it may not read all of it.
            let mut socket = connect(served.port)?;
            _ = socket.write_all(too_large.as_bytes());
            _ = socket.shutdown(Shutdown::Write);
            _ = socket.read(&mut [0; 64]);
        }
        Ok(())
    })
}

fn ask(served: &Served, request: &str, status: &str) -> Result<(), Failure> {
    let mut connection = Connection::open(served.port)?;
    connection.ask(request)?;
    let (mut buffer, started) = (vec![0; 65_536], Instant::now());
    while !connection.read(&mut buffer)?.is_over {
        if started.elapsed() > Duration::from_secs(60) {
            return Err("a request was not answered for 60 s".into());
        }
    }
    if connection.status() == status {
        return Ok(());
    }
    Err(format!("the server answers with {} instead of {status}", connection.status()).into())
}
