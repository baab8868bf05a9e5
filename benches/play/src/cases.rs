//! Measurements that send as fast as the engine answers.

use std::time::Instant;

use crate::Failure;
use crate::client::{Client, Load, Setup, Spent};
use crate::report::Sheet;

const MIB: f64 = 1_048_576.0;

/// Targets for the engine's CPU time under a load, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) us_per_token: Option<f64>,
    pub(crate) us_per_request: Option<f64>,
}

pub(crate) fn throughput(setup: &Setup, load: Load, limits: Limits) -> Result<Sheet, Failure> {
    let mut sheet = Sheet::new(format!(
        "throughput: {} requests, {} at a time, {} in / {} out",
        load.requests, load.at_once, load.prompt_tokens, load.output_tokens
    ));
    let options = [words(&["--max-num-seqs", &load.at_once.to_string()]), blocks_for(&load)].concat();
    let mut client = Client::start(setup, &options)?;
    // Grow the buffers, and warm up code and sockets.
    client.closed_loop(Load { requests: (load.requests / 10).clamp(load.at_once, load.at_once + 1000), ..load })?;
    let spent = client.closed_loop(load)?;
    add_spent(&mut sheet, &spent, limits);
    sheet.figure("engine memory, most", client.engine.memory()?.peak as f64 / MIB, "MiB");
    if let Some(relay) = &client.relay {
        let per_token = |ns: u64| ns as f64 / 1e3 / spent.tokens as f64;
        sheet
            .figure("relay CPU per token", per_token(spent.relay.total_ns), "us")
            .figure("relay CPU per message", spent.relay.total_ns as f64 / 1e3 / spent.messages as f64, "us")
            .figure("relay memory, most", relay.memory()?.peak as f64 / MIB, "MiB");
    }
    Ok(sheet)
}

/// Option for enough 16-token blocks for all requests that run at once, but at least the default number.
fn blocks_for(load: &Load) -> Vec<String> {
    let tokens = u64::from(load.prompt_tokens) + u64::from(load.output_tokens);
    let blocks = (load.at_once * (tokens.div_ceil(16) + 1)).max(16_385);
    words(&["--num-gpu-blocks", &blocks.to_string()])
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn add_spent(sheet: &mut Sheet, spent: &Spent, limits: Limits) {
    let per_token = |ns: u64| ns as f64 / 1e3 / spent.tokens as f64;
    sheet
        .figure("requests", spent.requests as f64 / spent.wall_s, "/s")
        .figure("tokens", spent.tokens as f64 / spent.wall_s, "/s")
        .figure("tokens in a message", spent.tokens as f64 / spent.messages as f64, "")
        .figure("engine CPU per token", spent.engine_us_per_token(), "us")
        .at_most(limits.us_per_token)
        .figure("  of it in the thread of libzmq", per_token(spent.engine.io_ns), "us")
        .figure("engine CPU per request", spent.engine_us_per_request(), "us")
        .at_most(limits.us_per_request)
        .figure("engine CPU per second", spent.engine.total_ns as f64 / 1e9 / spent.wall_s, "s")
        .figure("client CPU per token", per_token(spent.client.total_ns), "us");
}

/// Measures a request for several numbers of KV blocks. All blocks are in use first, so that every new block evicts
/// an old one.
pub(crate) fn cache(setup: &Setup, load: Load, blocks: &[u64], at_most: Option<f64>) -> Result<Vec<Sheet>, Failure> {
    let mut sheets = Vec::new();
    let mut costs: Vec<f64> = Vec::new();
    for &blocks in blocks {
        let mut sheet = Sheet::new(format!(
            "cache of {blocks} blocks: {} requests, {} at a time, {} in / {} out",
            load.requests, load.at_once, load.prompt_tokens, load.output_tokens
        ));
        let mut client = Client::start(setup, &words(&["--num-gpu-blocks", &blocks.to_string()]))?;
        let fills = blocks.div_ceil(u64::from(load.prompt_tokens / 16).max(1));
        client.closed_loop(Load { requests: fills.max(load.at_once), ..load })?;
        let spent = client.closed_loop(load)?;
        let cost = spent.engine_us_per_request();
        sheet.figure("engine CPU per request", cost, "us");
        if let Some(first) = costs.first() {
            sheet.figure("of that with the fewest blocks", cost / first, "").at_most(at_most);
        }
        sheet.figure("engine memory, most", client.engine.memory()?.peak as f64 / MIB, "MiB");
        costs.push(cost);
        sheets.push(sheet);
    }
    Ok(sheets)
}

/// Measures requests that wait while nothing else runs, and their abort.
pub(crate) fn waiting(setup: &Setup, requests: u64, prompt_tokens: u32) -> Result<Sheet, Failure> {
    let mut sheet = Sheet::new(format!("queue: {requests} requests of {prompt_tokens} tokens wait, then are aborted"));
    let options = words(&["--max-num-seqs", "1", "--prefill-step-time", "3600s"]);
    let mut client = Client::start(setup, &options)?;
    client.wait_until_taken()?;
    let (memory, cpu) = (client.engine.memory()?, client.engine.cpu()?);
    let started = Instant::now();
    for _ in 0..requests {
        client.send(prompt_tokens, 16)?;
    }
    client.wait_until_taken()?;
    let taken_s = started.elapsed().as_secs_f64();
    let (full, taken) = (client.engine.memory()?, client.engine.cpu()?);
    client.abort_all(1)?;
    client.wait_until_taken()?;
    let aborted = client.engine.cpu()?;
    let each = |amount: u64| amount as f64 / requests as f64;
    sheet
        .figure("requests taken", requests as f64 / taken_s, "/s")
        .figure("engine CPU per request", each(taken.since(cpu).total_ns) / 1e3, "us")
        .figure("engine memory per request", each(full.resident.saturating_sub(memory.resident)), "bytes")
        .figure("engine memory, most", full.peak as f64 / MIB, "MiB")
        .figure("engine CPU per abort", each(aborted.since(taken).total_ns) / 1e3, "us")
        .figure("engine memory after all", client.engine.memory()?.resident as f64 / MIB, "MiB");
    Ok(sheet)
}

/// Measures a request for several numbers of waiting requests.
pub(crate) fn queue_lengths(setup: &Setup, waiting: &[u64], at_most: Option<f64>) -> Result<Sheet, Failure> {
    const RUNNING: u64 = 64;
    let load = Load { requests: 10_000, at_once: RUNNING, prompt_tokens: 64, output_tokens: 4 };
    let mut sheet = Sheet::new(format!("queue: {} requests, {RUNNING} run, 64 in / 4 out, others wait", load.requests));
    let mut first = None;
    for &waiting in waiting {
        let mut client = Client::start(setup, &words(&["--max-num-seqs", &RUNNING.to_string()]))?;
        client.closed_loop(load)?;
        // The waiting requests also cost something, so they count as additional requests.
        let load = Load { requests: load.requests + waiting, at_once: RUNNING + waiting, ..load };
        let cost = client.closed_loop(load)?.engine_us_per_request();
        sheet.figure(format!("engine CPU per request, {waiting} wait"), cost, "us");
        match first {
            Some(first) => _ = sheet.figure("  of that with the fewest", cost / first, "").at_most(at_most),
            None => first = Some(cost),
        }
    }
    Ok(sheet)
}

/// Sends far more requests than the engine may hold, and checks that none is lost.
pub(crate) fn flood(setup: &Setup, requests: u64, max_requests: u64, prompt_tokens: u32) -> Result<Sheet, Failure> {
    let mut sheet = Sheet::new(format!(
        "flood: {requests} requests of {prompt_tokens} tokens at once, {max_requests} held at most"
    ));
    let limit = max_requests.to_string();
    let options = words(&["--max-requests", &limit, "--decode-step-time", "5ms", "--prefill-step-time", "5ms"]);
    let mut client = Client::start(setup, &options)?;
    client.wait_until_taken()?;
    let before = client.engine.memory()?;
    let load = Load { requests, at_once: requests, prompt_tokens, output_tokens: 4 };
    let spent = client.closed_loop(load)?;
    let after = client.engine.memory()?;
    sheet
        .figure("requests that did not end as they should", (requests - spent.requests) as f64, "")
        .at_most(Some(0.0))
        .figure("requests", spent.requests as f64 / spent.wall_s, "/s")
        .figure("engine CPU per request", spent.engine_us_per_request(), "us")
        .figure("engine memory before", before.peak as f64 / MIB, "MiB")
        .figure("engine memory, most", after.peak as f64 / MIB, "MiB");
    Ok(sheet)
}
