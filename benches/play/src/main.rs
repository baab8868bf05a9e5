//! Measures `vcr play`, or another engine, in the place of a frontend.
//!
//! Starts engines, sends them requests over vLLM's protocol, and reports the CPU time that the system counts for
//! each process, so that other work on the machine has little influence. The client's CPU time is reported
//! separately. Prompts come from a seed, and no two are equal.
//!
//! ```text
//! cargo build --release
//! cargo run --release -p vcr-bench-play -- targets
//! cargo run --release -p vcr-bench-play -- throughput --requests 10000 --at-once 64
//! cargo run --release -p vcr-bench-play -- paced --streams 64 --interval 1ms --duration 60s
//! cargo run --release -p vcr-bench-play -- moving --total 1GiB --page 256KiB
//! cargo run --release -p vcr-bench-play -- moving --all --rounds 6 --nixl-library PATH
//! ```
//!
//! With `--relay`, another process runs between client and engine:
//!
//! ```text
//! cargo run --release -p vcr-bench-play -- paced --streams 64 --relay "target/release/vcr record --quiet --force
//!   --out /tmp/bench.jsonl --frontend-handshake {frontend} --engine-handshake {engines}"
//! ```
//!
//! `http` drives a real frontend in front of the engine: vLLM 0.33's, from `tests/frontends/fetch.sh`, with a
//! folder that has a model's configuration and tokenizer:
//!
//! ```text
//! HF_HUB_OFFLINE=1 cargo run --release -p vcr-bench-play -- http --model sim --frontend "vllm-rs serve MODEL
//!   --served-model-name sim --host 127.0.0.1 --port {http_port} --data-parallel-address 127.0.0.1
//!   --data-parallel-rpc-port {handshake_port} --data-parallel-size 1 --data-parallel-size-local 0"
//! ```
//!
//! `serve` drives `vcr serve` in the same way, and also a real frontend for comparison if one is given.
//! `benches/serve.sh` takes all of its measurements.

mod cases;
mod client;
mod http;
mod moving;
mod paced;
mod process;
mod report;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use cases::Limits;
use client::{Load, Setup, Sockets};
use moving::{MovedBy, Moving, StreamEngine};
use paced::Pace;
use report::Sheet;
use serve::ServeArgs;

/// Reason why nothing could be measured.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// Measures engines in the place of a frontend.
#[derive(Debug, Parser)]
#[command(name = "play-load")]
struct Cli {
    /// The engine's command; {address} is where it finds its frontend.
    #[arg(long, global = true, value_name = "COMMAND")]
    #[arg(default_value = "target/release/vcr play --quiet --handshake-address {address}")]
    engine: String,

    /// A relay command, such as `vcr record`; {frontend} is the address it connects to, {engines}
    /// its own address for the engine.
    #[arg(long, global = true, value_name = "COMMAND", default_value = "")]
    relay: String,

    /// Transport of requests and outputs.
    #[arg(long, global = true, value_enum, default_value = "ipc")]
    sockets: Sockets,

    /// Seed of the prompts.
    #[arg(long, global = true, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Write all figures as JSON; - for standard output.
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<String>,

    /// Run everything N times.
    #[arg(long, global = true, value_name = "N", default_value_t = 1)]
    repeat: u32,

    #[command(subcommand)]
    case: Case,
}

#[derive(Debug, Subcommand)]
enum Case {
    /// All measurements that have a target.
    Targets {
        /// Command of a real frontend, with {http_port} and {handshake_port} in it; none: leave it out.
        #[arg(long, value_name = "COMMAND")]
        frontend: Option<String>,
        /// Model name that the frontend serves.
        #[arg(long, value_name = "NAME", default_value = "sim")]
        model: String,
    },
    /// A closed loop: a new request for each that has ended.
    Throughput(LoadArgs),
    /// Streams at a fixed latency between tokens.
    Paced {
        /// Streams at a time.
        #[arg(long, value_name = "N", default_value_t = 64)]
        streams: u64,
        /// Time between tokens.
        #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = duration)]
        interval: u64,
        /// Length of each stream.
        #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
        duration: u64,
    },
    /// Cost of requests by the number of KV blocks, while blocks are evicted.
    Cache {
        /// Numbers of KV blocks.
        #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1000,10000,100000")]
        blocks: Vec<u64>,
    },
    /// Waiting requests, and requests that queue behind them.
    Queue {
        /// Numbers of waiting requests.
        #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "10000,30000")]
        waiting: Vec<u64>,
        /// Tokens of each prompt.
        #[arg(long, value_name = "TOKENS", default_value_t = 512)]
        prompt_tokens: u32,
    },
    /// Far more requests at once than the engine may hold.
    Flood {
        /// Number of requests.
        #[arg(long, value_name = "N", default_value_t = 100_000)]
        requests: u64,
        /// Maximum requests at a time.
        #[arg(long, value_name = "N", default_value_t = 1000)]
        max_requests: u64,
        /// Tokens of each prompt.
        #[arg(long, value_name = "TOKENS", default_value_t = 512)]
        prompt_tokens: u32,
    },
    /// A stream with and without KV moving to or from its engine.
    Moving {
        /// Bytes of each transfer.
        #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = vcr_base::units::bytes)]
        total: u64,
        /// Bytes of a page.
        #[arg(long, value_name = "BYTES", default_value = "256KiB", value_parser = vcr_base::units::bytes)]
        page: u64,
        /// Transfers before the measured ones, so that all pages have memory.
        #[arg(long, value_name = "N", default_value_t = 4)]
        warm_up_rounds: u32,
        /// Measured transfers.
        #[arg(long, value_name = "N", default_value_t = 30)]
        rounds: u32,
        /// Time between tokens.
        #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = duration)]
        interval: u64,
        /// The engine that streams.
        #[arg(long, value_enum, default_value = "decode")]
        stream_at: StreamEngine,
        /// Move the bytes through NIXL, with this library.
        #[arg(long, value_name = "PATH")]
        nixl_library: Option<PathBuf>,
        /// Measure streams at both engines, over TCP and through NIXL, and print a table of all four cases.
        #[arg(long, conflicts_with = "stream_at")]
        all: bool,
    },
    /// A real frontend and the engine behind it, driven over HTTP.
    Http {
        /// The frontend's command, with {http_port} and {handshake_port} in it.
        #[arg(long, value_name = "COMMAND")]
        frontend: String,
        /// Model name that the frontend serves.
        #[arg(long, value_name = "NAME", default_value = "sim")]
        model: String,
        #[command(flatten)]
        load: LoadArgs,
    },
    /// `vcr serve`, compared with a real frontend and the engine behind it.
    Serve(ServeArgs),
}

#[derive(Args, Clone, Copy, Debug)]
struct LoadArgs {
    /// Number of requests.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    requests: u64,
    /// Requests at a time.
    #[arg(long, value_name = "N", default_value_t = 64)]
    at_once: u64,
    /// Tokens of each prompt.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    prompt_tokens: u32,
    /// Tokens of each output.
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    output_tokens: u32,
}

impl LoadArgs {
    fn load(self) -> Load {
        let Self { requests, at_once, prompt_tokens, output_tokens } = self;
        Load { requests, at_once, prompt_tokens, output_tokens }
    }
}

fn duration(text: &str) -> Result<u64, vcr_base::units::UnitError> {
    vcr_base::units::duration_ns(text)
}

/// Long prompts, so that the cache must evict blocks.
const CACHE: Load = Load { requests: 1500, at_once: 64, prompt_tokens: 2048, output_tokens: 4 };

fn main() -> ExitCode {
    let cli = Cli::parse();
    let setup = Setup {
        engine: cli.engine.split_whitespace().map(str::to_owned).collect(),
        relay: cli.relay.split_whitespace().map(str::to_owned).collect(),
        sockets: cli.sockets,
        seed: cli.seed,
    };
    let mut sheets = Vec::new();
    let measured = (0..cli.repeat).try_for_each(|_| run(&setup, &cli.case, &mut sheets));
    let written = cli.json.map_or(Ok(()), |path| report::write_json(&path, &sheets));
    match measured.and(written) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(setup: &Setup, case: &Case, sheets: &mut Vec<Sheet>) -> Result<(), Failure> {
    let mut done = |sheet: Sheet| {
        sheet.print();
        sheets.push(sheet);
    };
    match case {
        Case::Throughput(args) => done(cases::throughput(setup, args.load(), Limits::default())?),
        &Case::Paced { streams, interval, duration } => done(paced::paced(
            setup,
            Pace { streams, interval_ns: interval, duration_ns: duration, p99_ms: None, drift_ms: None },
        )?),
        Case::Cache { blocks } => cases::cache(setup, CACHE, blocks, None)?.into_iter().for_each(done),
        Case::Queue { waiting, prompt_tokens } => {
            for &waiting in waiting {
                done(cases::waiting(setup, waiting, *prompt_tokens)?);
            }
            done(cases::queue_lengths(setup, &[&[0], waiting.as_slice()].concat(), None)?);
        }
        &Case::Flood { requests, max_requests, prompt_tokens } => {
            done(cases::flood(setup, requests, max_requests, prompt_tokens)?);
        }
        Case::Moving { total, page, warm_up_rounds, rounds, interval, stream_at, nixl_library, all } => {
            let moved_by = if nixl_library.is_some() { MovedBy::Nixl } else { MovedBy::Tcp };
            let mut cases = vec![(*stream_at, moved_by)];
            if *all {
                let planes = |engine| [(engine, MovedBy::Tcp), (engine, MovedBy::Nixl)];
                cases = [StreamEngine::Decode, StreamEngine::Prefill].into_iter().flat_map(planes).collect();
            }
            let mut gaps = Vec::new();
            for (stream_at, moved_by) in cases {
                let what = Moving {
                    total_bytes: *total,
                    page_bytes: *page,
                    warm_up_rounds: *warm_up_rounds,
                    rounds: *rounds,
                    interval_ns: *interval,
                    stream_at,
                    moved_by,
                    nixl_library: nixl_library.clone(),
                    more_ms: Some(0.3),
                };
                let (sheet, of_case) = moving::moving(setup, &what)?;
                done(sheet);
                gaps.push(of_case);
            }
            if *all {
                moving::print_table(&gaps);
            }
        }
        Case::Http { frontend, model, load } => {
            done(http::through_frontend(setup, frontend, model, load.load(), None)?);
        }
        Case::Serve(args) => serve::serve(setup, args, &mut done)?,
        Case::Targets { frontend, model } => {
            targets(setup, frontend.as_deref().map(|command| (command, model.as_str())), &mut done)?;
        }
    }
    Ok(())
}

fn targets(setup: &Setup, frontend: Option<(&str, &str)>, done: &mut dyn FnMut(Sheet)) -> Result<(), Failure> {
    let load = |requests, at_once, output_tokens| Load { requests, at_once, prompt_tokens: 64, output_tokens };
    let per_token = Limits { us_per_token: Some(0.7), ..Limits::default() };
    done(cases::throughput(setup, load(10_000, 64, 128), per_token)?);
    done(cases::throughput(setup, load(4000, 512, 128), per_token)?);
    let per_request = Limits { us_per_request: Some(15.0), ..Limits::default() };
    done(cases::throughput(setup, load(20_000, 64, 1), per_request)?);
    cases::cache(setup, CACHE, &[1000, 10_000, 100_000], Some(1.2))?.into_iter().for_each(&mut *done);
    for waiting in [10_000, 30_000] {
        done(cases::waiting(setup, waiting, 512)?);
    }
    done(cases::queue_lengths(setup, &[0, 10_000, 30_000], Some(1.2))?);
    done(cases::flood(setup, 100_000, 1000, 512)?);
    let pace =
        Pace { streams: 64, interval_ns: 10_000_000, duration_ns: 20_000_000_000, p99_ms: Some(0.2), drift_ms: None };
    for streams in [1, 64, 512] {
        done(paced::paced(setup, Pace { streams, ..pace })?);
    }
    let a_minute = Pace { interval_ns: 1_000_000, duration_ns: 60_000_000_000, drift_ms: Some(1.0), ..pace };
    done(paced::paced(setup, Pace { p99_ms: None, ..a_minute })?);
    if let Some((command, model)) = frontend {
        done(http::through_frontend(setup, command, model, load(4000, 64, 128), Some(10.0))?);
    }
    Ok(())
}
