//! Measures `vcr serve` as its clients see it.

mod bare;
mod cases;
mod connection;
mod drive;
mod robust;
mod server;
mod timestamp;

use clap::{Args, ValueEnum};

use crate::Failure;
use crate::client::Setup;
use crate::report::Sheet;
use cases::{Loop, Streams};
use connection::Shape;
pub(crate) use drive::Clients;
pub(crate) use server::{Commands, Served};

pub(crate) const MIB: f64 = 1_048_576.0;

/// A shape of requests that streams.
pub(crate) fn streamed(prompt_tokens: u32, output_tokens: u32) -> Shape {
    Shape { prompt_tokens, output_tokens, is_streamed: true }
}

/// A kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Processor time of streams without any latency.
    Chain,
    /// Processor time of requests of one token.
    Requests,
    /// Gap errors at 10 ms, next to those of a server that only writes.
    Paced,
    /// 5,000 streams at a time.
    Many,
    /// 64 ranks without requests.
    Idle,
    /// Start to first answer.
    Start,
    /// Clients that never read, half requests, long prompts, large bodies.
    Robust,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Command of `vcr serve`, with {http_port} in it.
    #[arg(long, value_name = "COMMAND", default_value = "target/release/vcr serve --quiet --port {http_port}")]
    server: String,

    /// Command of a real frontend, with {http_port} and {handshake_port} in it; none: leave it out.
    #[arg(long, value_name = "COMMAND", default_value = "")]
    frontend: String,

    /// Model name that both serve.
    #[arg(long, value_name = "NAME", default_value = "sim")]
    model: String,

    /// Rounds, in each of which both are measured; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,

    /// Measurements to take.
    #[arg(long, value_name = "PART,...", value_enum, value_delimiter = ',')]
    #[arg(default_value = "chain,requests,paced,many,idle,start,robust")]
    parts: Vec<Part>,
}

pub(crate) struct Bench {
    commands: Commands,
    /// Settings for the engine alone.
    setup: Setup,
    model: String,
    seed: u64,
    rounds: u32,
}

impl Bench {
    /// Starts `vcr serve` without a model folder.
    fn builtin(&self) -> Result<Served, Failure> {
        let program = self.commands.server.first().cloned().unwrap_or_default();
        let server = [vec![program], words(&["serve", "--quiet", "--port", "{http_port}"])].concat();
        Commands { server, ..self.commands.clone() }.server(&[])
    }
}

pub(crate) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Takes the requested measurements, each with its target.
pub(crate) fn serve(setup: &Setup, args: &ServeArgs, done: &mut dyn FnMut(Sheet)) -> Result<(), Failure> {
    let split = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let bench = Bench {
        commands: Commands {
            server: split(&args.server),
            frontend: split(&args.frontend),
            engine: setup.engine.clone(),
        },
        setup: setup.clone(),
        model: args.model.clone(),
        seed: setup.seed,
        rounds: args.rounds.max(1),
    };
    for part in &args.parts {
        match part {
            Part::Chain => {
                let shape = streamed(64, 128);
                done(cases::closed_loop(&bench, Loop { requests: 4000, at_once: 64, shape, at_most: 0.5 })?);
            }
            Part::Requests => {
                let shape = Shape { output_tokens: 1, is_streamed: false, ..streamed(64, 1) };
                done(cases::closed_loop(&bench, Loop { requests: 20_000, at_once: 64, shape, at_most: 1.0 / 3.0 })?);
            }
            Part::Paced => {
                for count in [1, 64, 512] {
                    let streams = Streams { count, interval_ns: 10_000_000, duration_ns: 8_000_000_000 };
                    done(cases::paced(&bench, streams, 0.5)?);
                }
            }
            Part::Many => {
                let streams = Streams { count: 5000, interval_ns: 50_000_000, duration_ns: 15_000_000_000 };
                done(cases::many(&bench, streams, 75.0, 25.0)?);
            }
            Part::Idle => done(cases::idle(&bench, 64, 10)?),
            Part::Start => done(cases::start(&bench)?),
            Part::Robust => {
                done(robust::never_read(&bench, 64)?);
                done(robust::half_open(&bench, 10_000)?);
                done(robust::long_prompts(&bench, 100_000)?);
                done(robust::large_bodies(&bench, 64_000_000)?);
            }
        }
    }
    Ok(())
}
