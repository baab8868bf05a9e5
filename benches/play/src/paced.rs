//! Measures how exactly an engine keeps the time between tokens.

use crate::Failure;
use crate::client::{Client, Setup};
use crate::process::{Cpu, own_cpu};
use crate::report::Sheet;

/// Streams with a fixed time between their tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) streams: u64,
    pub(crate) interval_ns: u64,
    pub(crate) duration_ns: u64,
    /// Target for the gap error's 99th percentile, in milliseconds.
    pub(crate) p99_ms: Option<f64>,
    /// Target for the drift over the whole stream, in milliseconds.
    pub(crate) drift_ms: Option<f64>,
}

/// Times at which steps were reported, in nanoseconds.
#[derive(Default)]
struct Instants(Vec<u64>);

impl Instants {
    /// Differences between the gaps and the interval, in ascending order.
    fn gap_errors(&self, interval_ns: u64) -> Vec<u64> {
        let gaps = self.0.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        let mut errors: Vec<u64> = gaps.map(|gap| gap.abs_diff(interval_ns)).collect();
        errors.sort_unstable();
        errors
    }

    /// Delay of the last tenth of the steps compared with the first tenth, by their medians: single steps may be
    /// late although the stream does not drift.
    fn drift_ms(&self, interval_ns: u64) -> f64 {
        let on_grid = |(step, at_ns): (usize, &u64)| *at_ns as i64 - (step as u64 * interval_ns) as i64;
        let late_ns: Vec<i64> = self.0.iter().enumerate().map(on_grid).collect();
        let median_ns = |steps: &[i64]| {
            let mut sorted = steps.to_vec();
            sorted.sort_unstable();
            sorted[sorted.len() / 2]
        };
        let tenth = late_ns.len().div_ceil(10);
        (median_ns(&late_ns[late_ns.len() - tenth..]) - median_ns(&late_ns[..tenth])) as f64 / 1e6
    }

    fn add_to(&self, sheet: &mut Sheet, clock: &str, pace: &Pace) {
        let errors = self.gap_errors(pace.interval_ns);
        let at = |share: f64| errors[((errors.len() - 1) as f64 * share) as usize] as f64 / 1e6;
        sheet
            .figure(format!("gap error by {clock}, median"), at(0.5), "ms")
            .figure(format!("gap error by {clock}, 99 %"), at(0.99), "ms")
            .at_most(pace.p99_ms)
            .figure(format!("gap error by {clock}, most"), at(1.0), "ms")
            .figure(format!("drift by {clock}"), self.drift_ms(pace.interval_ns), "ms")
            .at_most(pace.drift_ms);
    }
}

/// Differences between the gaps and the interval by the engine's own clock, in ascending order.
pub(crate) fn own_gap_errors(setup: &Setup, pace: Pace) -> Result<Vec<u64>, Failure> {
    Ok(run(setup, pace)?.by_engine.gap_errors(pace.interval_ns))
}

/// Runs all streams at once and measures the steps in which every stream gets a token.
pub(crate) fn paced(setup: &Setup, pace: Pace) -> Result<Sheet, Failure> {
    let mut sheet = Sheet::new(format!(
        "paced: {} streams, a token every {} ms, {} s",
        pace.streams,
        pace.interval_ns as f64 / 1e6,
        pace.duration_ns as f64 / 1e9
    ));
    let Run { by_engine, by_client, apart, engine, own, relay, has_relay } = run(setup, pace)?;
    add_ages(&mut sheet, &by_engine, &by_client);
    by_engine.add_to(&mut sheet, "the engine's clock", &pace);
    by_client.add_to(&mut sheet, "the client's clock", &pace);
    let (steps, tokens) = (by_engine.0.len() as f64, by_engine.0.len() as f64 * pace.streams as f64);
    sheet
        .figure("steps", steps, "")
        .figure("messages without all streams", apart as f64, "")
        .figure("engine CPU per step", engine.total_ns as f64 / 1e3 / steps, "us")
        .figure("  of it in the thread of libzmq", engine.io_ns as f64 / 1e3 / steps, "us")
        .figure("engine CPU per token", engine.total_ns as f64 / 1e3 / tokens, "us")
        .figure("client CPU per token", own.total_ns as f64 / 1e3 / tokens, "us");
    if has_relay {
        sheet
            .figure("relay CPU per step", relay.total_ns as f64 / 1e3 / steps, "us")
            .figure("  of it in the thread of libzmq", relay.io_ns as f64 / 1e3 / steps, "us")
            .figure("relay CPU per token", relay.total_ns as f64 / 1e3 / tokens, "us");
    }
    Ok(sheet)
}

struct Run {
    by_engine: Instants,
    by_client: Instants,
    /// Number of messages in which some streams are missing.
    apart: u64,
    engine: Cpu,
    own: Cpu,
    relay: Cpu,
    has_relay: bool,
}

fn run(setup: &Setup, pace: Pace) -> Result<Run, Failure> {
    const PROMPT_TOKENS: u32 = 64;
    let tokens = (pace.duration_ns / pace.interval_ns.max(1)).max(10) as u32;
    let blocks = pace.streams * (u64::from(PROMPT_TOKENS + tokens) / 16 + 2) + 1;
    let options = [
        "--decode-step-time".to_owned(),
        format!("{}ns", pace.interval_ns),
        "--max-num-seqs".to_owned(),
        pace.streams.to_string(),
        "--num-gpu-blocks".to_owned(),
        blocks.to_string(),
    ];
    let mut client = Client::start(setup, &options)?;
    client.wait_until_taken()?;
    for _ in 0..pace.streams {
        client.send(PROMPT_TOKENS, tokens)?;
    }
    let (mut by_engine, mut by_client) = (Instants::default(), Instants::default());
    let (mut engine, mut own, mut relay) = (Cpu::default(), Cpu::default(), Cpu::default());
    let (mut ended, mut apart) = (0, 0_u64);
    while ended < pace.streams {
        let arrival = client.receive()?;
        let (tokens, finished) = client.note(&arrival.outputs)?;
        ended += finished;
        // Count only steps in which all streams run: earlier steps also compute prompts, and the streams do not all
        // end in the same step.
        if tokens == pace.streams && ended == 0 {
            by_engine.0.push((arrival.outputs.timestamp * 1e9).round() as u64);
            by_client.0.push(arrival.at_ns);
            if by_engine.0.len() == 1 {
                (engine, own, relay) = (client.engine.cpu()?, own_cpu()?, client.relay_cpu()?);
            }
        } else if !by_engine.0.is_empty() && ended == 0 {
            apart += 1;
        }
    }
    if by_engine.0.len() < 2 {
        return Err("no two steps had all streams in them: choose a longer duration".into());
    }
    Ok(Run {
        by_engine,
        by_client,
        apart,
        engine: client.engine.cpu()?.since(engine),
        own: own_cpu()?.since(own),
        relay: client.relay_cpu()?.since(relay),
        has_relay: client.relay.is_some(),
    })
}

/// Adds the age of messages at their arrival. Both ends read the same clock.
fn add_ages(sheet: &mut Sheet, by_engine: &Instants, by_client: &Instants) {
    let ages = by_engine.0.iter().zip(&by_client.0).map(|(sent, came)| came.saturating_sub(*sent));
    let mut ages: Vec<u64> = ages.collect();
    ages.sort_unstable();
    let at = |share: f64| ages[((ages.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    sheet.figure("age of a message, median", at(0.5), "us").figure("age of a message, 99 %", at(0.99), "us").figure(
        "age of a message, most",
        at(1.0),
        "us",
    );
}
