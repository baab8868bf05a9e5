//! Drives a real frontend and an engine over HTTP.

use std::time::Instant;

use crate::Failure;
use crate::client::{Load, Setup};
use crate::process::{Cpu, Process, free_port, own_cpu};
use crate::report::Sheet;
use crate::serve::{Clients, Commands, streamed, words};

/// Streams completions through a frontend, and compares the costs of the frontend and the engine.
///
/// `frontend` is a command with `{http_port}` and `{handshake_port}`.
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
    let frontend = frontend.split_whitespace().map(str::to_owned).collect();
    let commands = Commands { server: Vec::new(), frontend, engine: setup.engine.clone() };
    let options = words(&["--max-num-seqs", &load.at_once.to_string()]);
    let (relay, served) = commands.chain_with(&options, |address| {
        let engines = format!("tcp://127.0.0.1:{}", free_port()?);
        setup.start_relay(address, &engines)
    })?;
    let served = served.ready()?;
    let [frontend, engine] = served.processes.as_slice() else { return Err("a chain has two processes".into()) };
    let shape = streamed(load.prompt_tokens, load.output_tokens);
    let mut clients = Clients::open(served.port, load.at_once as usize, model, setup.seed)?;
    clients.closed_loop(load.at_once.max(load.requests / 10), shape)?;
    let relay_cpu = || relay.as_ref().map_or(Ok(Cpu::default()), Process::cpu);
    let before = (engine.cpu()?, frontend.cpu()?, own_cpu()?, relay_cpu()?);
    let started = Instant::now();
    clients.closed_loop(load.requests, shape)?;
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
