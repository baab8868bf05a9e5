//! Compares `vcr serve` with a frontend in front of `vcr play`.

use std::time::{Duration, Instant};

use super::bare::{self, Written};
use super::connection::{Connection, Shape, post};
use super::drive::{Clients, errors, quantile_ms};
use super::server::Served;
use super::{Bench, MIB, words};
use crate::Failure;
use crate::paced::{Pace, own_gap_errors};
use crate::report::{Sheet, median};

/// A closed loop. `at_most` is the target for `vcr serve`'s share of the other chain's cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loop {
    pub(crate) requests: u64,
    pub(crate) at_once: usize,
    pub(crate) shape: Shape,
    pub(crate) at_most: f64,
}

/// Measures the CPU time of a closed loop with both.
pub(crate) fn closed_loop(bench: &Bench, load: Loop) -> Result<Sheet, Failure> {
    let Loop { requests, at_once, shape, at_most } = load;
    let kind = if shape.is_streamed { "streams" } else { "answers in one" };
    let mut sheet = Sheet::new(format!(
        "{requests} {kind}, {at_once} at a time, {} in / {} out",
        shape.prompt_tokens, shape.output_tokens
    ));
    let (unit, units) = match shape.is_streamed {
        true => ("token", requests * u64::from(shape.output_tokens)),
        false => ("request", requests),
    };
    let options = words(&["--max-num-seqs", &at_once.to_string()]);
    let run = |served: &Served| -> Result<(f64, f64), Failure> {
        let mut clients = Clients::open(served.port, at_once, &bench.model, bench.seed)?;
        clients.closed_loop((requests / 10).max(at_once as u64), shape)?;
        let (cpu, started) = (served.cpu()?, Instant::now());
        clients.closed_loop(requests, shape)?;
        let wall_s = started.elapsed().as_secs_f64();
        Ok((served.cpu()?.since(cpu).total_ns as f64 / 1e3 / units as f64, units as f64 / wall_s))
    };
    let (mut own, mut chain) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        own.push(run(&bench.commands.server(&options)?.ready()?)?);
        if let Some(served) = bench.commands.chain(&options)? {
            chain.push(run(&served.ready()?)?);
        }
    }
    let cpu = |runs: &[(f64, f64)]| median(runs.iter().map(|run| run.0));
    let rate = |runs: &[(f64, f64)]| median(runs.iter().map(|run| run.1));
    sheet.figure(format!("vcr serve: CPU per {unit}"), cpu(&own), "us").figure(
        format!("vcr serve: {unit}s"),
        rate(&own),
        "/s",
    );
    if !chain.is_empty() {
        sheet
            .figure(format!("frontend and vcr play: CPU per {unit}"), cpu(&chain), "us")
            .figure(format!("frontend and vcr play: {unit}s"), rate(&chain), "/s")
            .figure("share of vcr serve", cpu(&own) / cpu(&chain), "")
            .at_most(Some(at_most));
    }
    Ok(sheet)
}

/// Streams with a token every `interval_ns`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    pub(crate) count: u64,
    pub(crate) interval_ns: u64,
    pub(crate) duration_ns: u64,
}

impl Streams {
    pub(crate) fn shape(self) -> Shape {
        let output_tokens = (self.duration_ns / self.interval_ns).max(10) as u32;
        Shape { prompt_tokens: 64, output_tokens, is_streamed: true }
    }

    pub(crate) fn options(self) -> Vec<String> {
        let Shape { prompt_tokens, output_tokens, .. } = self.shape();
        let blocks = self.count * (u64::from(prompt_tokens + output_tokens) / 16 + 2) + 1;
        let options = [
            "--decode-step-time",
            &format!("{}ns", self.interval_ns),
            "--max-num-seqs",
            &self.count.to_string(),
            "--num-gpu-blocks",
            &blocks.max(16_385).to_string(),
        ];
        words(&options)
    }

    /// Gaps that clients of the server at `port` see, in ascending order.
    pub(crate) fn gaps(self, port: u16, bench: &Bench) -> Result<Vec<u64>, Failure> {
        let mut clients = Clients::open(port, self.count as usize, &bench.model, bench.seed)?;
        Ok(clients.paced(self.shape(), &mut || Ok(()))?.gaps())
    }
}

/// Measures the gap errors that clients see, next to the engine's own and those of a bare writer.
pub(crate) fn paced(bench: &Bench, streams: Streams, at_most_more_ms: f64) -> Result<Sheet, Failure> {
    let Streams { count, interval_ns, duration_ns } = streams;
    let interval_ms = interval_ns as f64 / 1e6;
    let mut sheet =
        Sheet::new(format!("{count} streams, a token every {interval_ms} ms, {} s", duration_ns as f64 / 1e9));
    let pace = Pace { streams: count, interval_ns, duration_ns, p99_ms: None, drift_ms: None };
    let p99 = |gaps: Vec<u64>| quantile_ms(&errors(&gaps, interval_ns), 0.99);
    let (mut own, mut chain, mut engine, mut bare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        engine.push(quantile_ms(&own_gap_errors(&bench.setup, pace)?, 0.99));
        let written = Written { count, interval_ns, tokens: streams.shape().output_tokens };
        bare.push(p99(streams.gaps(bare::serve_once(written)?, bench)?));
        let served = bench.commands.server(&streams.options())?.ready()?;
        own.push(p99(streams.gaps(served.port, bench)?));
        drop(served);
        if let Some(served) = bench.commands.chain(&streams.options())? {
            let served = served.ready()?;
            chain.push(p99(streams.gaps(served.port, bench)?));
        }
    }
    let (own, engine) = (median(own), median(engine));
    sheet
        .figure("gap error by the engine's clock, 99 %", engine, "ms")
        .figure("gap error by clients of vcr serve, 99 %", own, "ms")
        .figure("more than the engine's own", own - engine, "ms")
        .at_most(Some(at_most_more_ms))
        .figure("gap error by clients of a bare writer, 99 %", median(bare), "ms");
    if !chain.is_empty() {
        sheet.figure("gap error by clients of frontend and vcr play, 99 %", median(chain), "ms");
    }
    Ok(sheet)
}

/// Measures the longest gaps and the memory per stream with many streams at a time.
pub(crate) fn many(bench: &Bench, streams: Streams, gap_ms: f64, stream_kb: f64) -> Result<Sheet, Failure> {
    let Streams { count, interval_ns, .. } = streams;
    let mut sheet = Sheet::new(format!("{count} streams, a token every {} ms", interval_ns as f64 / 1e6));
    let (mut gaps_ms, mut kb, mut cpu_s) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        // All connections are open before the first request is sent.
        let patient = words(&["--http-timeout-keep-alive", "600"]);
        let served = bench.commands.server(&[streams.options(), patient].concat())?.ready()?;
        let idle = served.memory()?.resident;
        let mut clients = Clients::open(served.port, count as usize, &bench.model, bench.seed)?;
        let mut begun = None;
        let mut on_way = || {
            begun = Some((Instant::now(), served.cpu()?.total_ns));
            Ok(())
        };
        let tokens = clients.paced(streams.shape(), &mut on_way)?;
        if let Some((at, cpu_ns)) = begun {
            cpu_s.push((served.cpu()?.total_ns - cpu_ns) as f64 / 1e9 / at.elapsed().as_secs_f64());
        }
        gaps_ms.push(quantile_ms(&tokens.gaps(), 0.99));
        kb.push((served.memory()?.peak.saturating_sub(idle)) as f64 / 1e3 / count as f64);
    }
    sheet
        .figure("gap that clients see, 99 %", median(gaps_ms), "ms")
        .at_most(Some(gap_ms))
        .figure("memory of a stream above the idle server", median(kb), "KB")
        .at_most(Some(stream_kb))
        .figure("CPU of the server", median(cpu_s), "s/s");
    Ok(sheet)
}

/// Measures idle data-parallel ranks.
pub(crate) fn idle(bench: &Bench, ranks: u32, seconds: u64) -> Result<Sheet, Failure> {
    let mut sheet = Sheet::new(format!("{ranks} ranks without requests, {seconds} s"));
    let options = words(&["--data-parallel-size", &ranks.to_string()]);
    let served = bench.commands.server(&options)?.ready()?;
    std::thread::sleep(Duration::from_secs(1));
    let (cpu, started) = (served.cpu()?, Instant::now());
    std::thread::sleep(Duration::from_secs(seconds));
    let used = served.cpu()?.since(cpu).total_ns as f64 / 1e9 / started.elapsed().as_secs_f64();
    sheet
        .figure("CPU", used * 100.0, "%")
        .at_most(Some(2.0))
        .figure("memory", served.memory()?.resident as f64 / MIB, "MiB")
        .at_most(Some(60e6 / MIB));
    Ok(sheet)
}

/// Measures the time from the start of the process to the first answer.
pub(crate) fn start(bench: &Bench) -> Result<Sheet, Failure> {
    let mut sheet = Sheet::new("start to first answer, with the built-in tokenizer".to_owned());
    let chat = r#"{"messages":[{"role":"user","content":"Hello"}],"max_tokens":1}"#;
    let request = post("/v1/chat/completions", chat);
    let mut times = Vec::new();
    for _ in 0..bench.rounds.max(5) {
        let started = Instant::now();
        let mut served = bench.builtin()?;
        let mut connection = loop {
            match Connection::open(served.port) {
                Ok(connection) => break connection,
                Err(_) => served.processes.iter_mut().try_for_each(crate::process::Process::check)?,
            }
            std::thread::sleep(Duration::from_micros(200));
        };
        connection.ask(&request)?;
        let mut buffer = [0; 4096];
        while !connection.read(&mut buffer)?.is_over {}
        times.push(started.elapsed().as_secs_f64() * 1e3);
        connection.check(1)?;
    }
    sheet.figure("start to first answer", median(times), "ms").at_most(Some(100.0));
    Ok(sheet)
}
