//! Measures how much moving KV to or from an engine disturbs a stream of that engine.

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use vcr_transfer::{MOVER_NICENESS, lower_priority};
use vcr_wire::{EngineCoreOutputs, Value, monotonic_ns};

use crate::Failure;
use crate::client::{Arrival, Client, Setup};
use crate::process::free_port;
use crate::report::{Sheet, median};

const BLOCK_TOKENS: u64 = 16;
const PROMPT_TOKENS: u32 = 64;
/// First content number of prompts whose KV moves. No other prompt has such a number.
const FIRST_CONTENT: u64 = 1 << 63;
/// Number of gaps with busy threads before each transfer.
const BUSY_GAPS: u64 = 32;
/// Maximum length of the stream.
const STREAM_TOKENS: u32 = 20_000;

/// The engine that streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamEngine {
    /// The engine that computes the prompts.
    Prefill,
    /// The engine to which the KV moves.
    Decode,
}

/// Transport of the KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MovedBy {
    Tcp,
    Nixl,
}

/// Transfers between two engines, one of which streams tokens.
#[derive(Clone, Debug)]
pub(crate) struct Moving {
    /// Bytes of each transfer.
    pub(crate) total_bytes: u64,
    pub(crate) page_bytes: u64,
    /// Number of transfers before the measured ones, after which every page of both engines has memory. The kernel
    /// allocates and clears pages at the first write, while a real engine has its KV memory from the start.
    pub(crate) warm_up_rounds: u32,
    /// Number of measured transfers.
    pub(crate) rounds: u32,
    /// Time between the stream's tokens.
    pub(crate) interval_ns: u64,
    pub(crate) stream_at: StreamEngine,
    pub(crate) moved_by: MovedBy,
    /// Path of NIXL's library; `None` if the engines find it themselves.
    pub(crate) nixl_library: Option<PathBuf>,
    /// Target: maximum increase of the gap error's 99th percentile while KV moves, in milliseconds.
    pub(crate) more_ms: Option<f64>,
}

/// Times of the stream's steps by the engine's clock, in nanoseconds.
struct Stream {
    name: String,
    instants_ns: Vec<u64>,
}

impl Stream {
    fn note(&mut self, outputs: &EngineCoreOutputs) {
        if outputs.outputs.iter().any(|output| output.request_id == self.name) {
            self.instants_ns.push((outputs.timestamp * 1e9).round() as u64);
        }
    }

    /// Differences between the interval and the gaps in this period.
    fn gap_errors(&self, interval_ns: u64, from_ns: u64, to_ns: u64) -> Vec<u64> {
        let inside = |pair: &&[u64]| pair[0] >= from_ns && pair[1] <= to_ns;
        let gaps = self.instants_ns.windows(2).filter(inside).map(|pair| pair[1].saturating_sub(pair[0]));
        gaps.map(|gap| gap.abs_diff(interval_ns)).collect()
    }
}

/// Measures a stream alone, beside busy threads, and while KV moves.
pub(crate) fn moving(setup: &Setup, what: &Moving) -> Result<(Sheet, Gaps), Failure> {
    let block_bytes = what.page_bytes * 2;
    let blocks = what.total_bytes / block_bytes.max(1);
    if blocks == 0 || blocks * block_bytes != what.total_bytes {
        return Err("the total must be an even number of pages".into());
    }
    let tokens = u32::try_from(blocks * BLOCK_TOKENS)?;
    let interval_of = |engine| (what.stream_at == engine).then_some(what.interval_ns);
    let mut prefill = start(setup, what, tokens, interval_of(StreamEngine::Prefill))?;
    let mut decode = start(setup, what, tokens, interval_of(StreamEngine::Decode))?;
    if what.stream_at == StreamEngine::Prefill {
        return beside_prompts(what, tokens, &mut prefill, &mut decode);
    }
    let mut stream = Stream { name: decode.send(PROMPT_TOKENS, STREAM_TOKENS)?, instants_ns: Vec::new() };

    let mut alone = next_gaps(what, &mut decode, &mut stream, wanted_gaps(what))?;
    let (mut busy, mut besides, mut times_ms) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..what.warm_up_rounds + what.rounds {
        busy.extend(beside_busy_threads(what, &mut decode, &mut stream)?);
        let params = computed(&mut prefill, round, tokens, None)?;
        let began_ns = monotonic_ns();
        let moved = decode.send_prompt(FIRST_CONTENT | u64::from(round), tokens, 1, Some(params))?;
        let ended_ns = loop {
            let arrival = receive(&mut decode, &mut stream)?;
            if arrival.outputs.outputs.iter().any(|output| output.request_id == moved) {
                break arrival.at_ns;
            }
        };
        if round >= what.warm_up_rounds {
            times_ms.push((ended_ns - began_ns) as f64 / 1e6);
            besides.extend(stream.gap_errors(what.interval_ns, began_ns, ended_ns));
        }
    }
    sheet(what, [&mut alone, &mut busy, &mut besides], times_ms)
}

/// Like [`moving`], but the stream runs on the prefill engine. Counts gaps from a prompt's arrival until its KV has
/// moved.
fn beside_prompts(
    what: &Moving,
    tokens: u32,
    prefill: &mut Client,
    decode: &mut Client,
) -> Result<(Sheet, Gaps), Failure> {
    let mut stream = Stream { name: prefill.send(PROMPT_TOKENS, STREAM_TOKENS)?, instants_ns: Vec::new() };
    let mut alone = next_gaps(what, prefill, &mut stream, wanted_gaps(what))?;
    let (mut busy, mut besides, mut times_ms) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..what.warm_up_rounds + what.rounds {
        busy.extend(beside_busy_threads(what, prefill, &mut stream)?);
        let began_ns = monotonic_ns();
        let params = computed(prefill, round, tokens, Some(&mut stream))?;
        let moved = decode.send_prompt(FIRST_CONTENT | u64::from(round), tokens, 1, Some(params))?;
        loop {
            let arrival = decode.receive()?;
            decode.note(&arrival.outputs)?;
            if arrival.outputs.outputs.iter().any(|output| output.request_id == moved) {
                break;
            }
        }
        let ended_ns = monotonic_ns();
        // Receive the stream's output up to now.
        while stream.instants_ns.last().is_none_or(|last_ns| *last_ns < ended_ns) {
            receive(prefill, &mut stream)?;
        }
        if round >= what.warm_up_rounds {
            times_ms.push((ended_ns - began_ns) as f64 / 1e6);
            besides.extend(stream.gap_errors(what.interval_ns, began_ns, ended_ns));
        }
    }
    sheet(what, [&mut alone, &mut busy, &mut besides], times_ms)
}

/// Gap errors beside busy threads that move no KV. There is one thread per processor, with the niceness of the
/// threads that move KV: a host that takes processors away from a virtual machine takes busy ones.
fn beside_busy_threads(what: &Moving, engine: &mut Client, stream: &mut Stream) -> Result<Vec<u64>, Failure> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                lower_priority(MOVER_NICENESS);
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let gaps = next_gaps(what, engine, stream, BUSY_GAPS);
        is_over.store(true, Ordering::Relaxed);
        gaps
    })
}

/// Errors of the next `wanted` gaps.
fn next_gaps(what: &Moving, engine: &mut Client, stream: &mut Stream, wanted: u64) -> Result<Vec<u64>, Failure> {
    let wanted = stream.instants_ns.len() + wanted as usize;
    let began_ns = monotonic_ns();
    while stream.instants_ns.len() < wanted {
        receive(engine, stream)?;
    }
    Ok(stream.gap_errors(what.interval_ns, began_ns, u64::MAX))
}

/// Number of gaps to measure without a transfer: one second for each measured transfer.
fn wanted_gaps(what: &Moving) -> u64 {
    (u64::from(what.rounds) * 1_000_000_000 / what.interval_ns.max(1)).clamp(20, u64::from(STREAM_TOKENS) / 4)
}

fn sheet(what: &Moving, errors: [&mut Vec<u64>; 3], times_ms: Vec<f64>) -> Result<(Sheet, Gaps), Failure> {
    let mut sheet = Sheet::new(format!(
        "moving: {} MiB in pages of {} KiB {}, a token every {} ms at the {:?} engine",
        what.total_bytes >> 20,
        what.page_bytes >> 10,
        if what.moved_by == MovedBy::Nixl { "through NIXL" } else { "over TCP" },
        what.interval_ns as f64 / 1e6,
        what.stream_at
    ));
    if errors[2].is_empty() {
        return Err("no gap lay within a transfer: move more bytes".into());
    }
    let [num_alone, num_busy, num_moving] = [errors[0].len(), errors[1].len(), errors[2].len()];
    let [alone, busy, moving] = errors.map(|errors| quantiles_ms(errors));
    let gaps = Gaps { stream_at: what.stream_at, moved_by: what.moved_by, alone, busy, moving };
    let [alone, busy, moving] = [alone.1, busy.1, moving.1];
    let time_ms = median(times_ms);
    sheet
        .figure("gaps on free processors", num_alone as f64, "")
        .figure("their error, 99 %", alone, "ms")
        .figure("gaps beside busy threads", num_busy as f64, "")
        .figure("their error, 99 %", busy, "ms")
        .figure("gaps while KV moves", num_moving as f64, "")
        .figure("their error, 99 %", moving, "ms")
        .figure("difference to free processors", moving - alone, "ms")
        .figure("difference to the worse of both", moving - busy.max(alone), "ms")
        .at_most(what.more_ms)
        .figure("request until first token, median", time_ms, "ms")
        .figure("bytes by that time", what.total_bytes as f64 / (time_ms * 1e6), "GB/s");
    Ok((sheet, gaps))
}

/// Gap errors of one case in milliseconds: the median and the 99th percentile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gaps {
    stream_at: StreamEngine,
    moved_by: MovedBy,
    alone: (f64, f64),
    busy: (f64, f64),
    moving: (f64, f64),
}

fn quantiles_ms(errors: &mut [u64]) -> (f64, f64) {
    errors.sort_unstable();
    let at = |percent| errors.get(errors.len().saturating_sub(1) * percent / 100);
    let ms = |error: Option<&u64>| error.map_or(f64::NAN, |error| *error as f64 / 1e6);
    (ms(at(50)), ms(at(99)))
}

/// Prints several cases side by side, and the mean of each column.
pub(crate) fn print_table(cases: &[Gaps]) {
    let columns = ["free processors", "busy threads", "while KV moves"];
    let [free, busy, moving] = columns.map(|name| format!("{name:>20}"));
    println!("errors of gaps in ms, 50 % / 99 %\n  {:<10} {:<6}{free}{busy}{moving}", "stream at", "by");
    let row = |names: String, values: [(f64, f64); 3]| {
        let values = values.map(|(half, most)| format!("{:>20}", format!("{half:.3} / {most:.3}")));
        println!("  {names:<17}{}", values.concat());
    };
    for case in cases {
        let names = format!("{:<10} {:<6}", format!("{:?}", case.stream_at), format!("{:?}", case.moved_by));
        row(names, [case.alone, case.busy, case.moving]);
    }
    let mean = |of: fn(&Gaps) -> (f64, f64)| {
        let sum = cases.iter().map(of).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (sum.0 / cases.len() as f64, sum.1 / cases.len() as f64)
    };
    row("mean".to_owned(), [mean(|case| case.alone), mean(|case| case.busy), mean(|case| case.moving)]);
}

fn start(setup: &Setup, what: &Moving, tokens: u32, interval_ns: Option<u64>) -> Result<Client, Failure> {
    // Enough blocks for two prompts and a stream.
    let blocks = u64::from(tokens) / BLOCK_TOKENS * 2 + u64::from(STREAM_TOKENS) / BLOCK_TOKENS + 64;
    let longest = tokens.max(STREAM_TOKENS + PROMPT_TOKENS) + 64;
    let options = format!(
        "--side-channel-port {} --kv-shape 1x1x128 --kv-block-bytes {}B --block-size {BLOCK_TOKENS} \
         --num-gpu-blocks {blocks} --max-model-len {longest} --max-num-batched-tokens {longest} \
         --kv-transfer-time real --kv-lease 600s",
        free_port()?,
        what.page_bytes * 2,
    );
    let mut options: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
    let plane = if what.moved_by == MovedBy::Nixl { "nixl" } else { "tcp" };
    options.extend(["--kv-transfer".to_owned(), plane.to_owned()]);
    if let Some(library) = what.nixl_library.as_ref().filter(|_| what.moved_by == MovedBy::Nixl) {
        options.extend(["--nixl-library".to_owned(), library.display().to_string()]);
    }
    if let Some(interval_ns) = interval_ns {
        // Steps with a prompt take as long as others, so that all gaps are equal.
        for option in ["--decode-step-time", "--prefill-step-time"] {
            options.extend([option.to_owned(), format!("{interval_ns}ns")]);
        }
    }
    let mut client = Client::start(setup, &options)?;
    client.wait_until_taken()?;
    Ok(client)
}

fn receive(client: &mut Client, stream: &mut Stream) -> Result<Arrival, Failure> {
    let arrival = client.receive()?;
    if client.note(&arrival.outputs)?.1 > 0
        && arrival.outputs.outputs.iter().any(|it| it.request_id == stream.name && it.finish_reason.is_some())
    {
        return Err("the stream ended before the transfers: move less, or fewer times".into());
    }
    stream.note(&arrival.outputs);
    Ok(arrival)
}

/// Waits until the prefill engine has computed a prompt, whose KV it then holds. Returns the KV-transfer parameters.
fn computed(
    prefill: &mut Client,
    content: u32,
    tokens: u32,
    mut stream: Option<&mut Stream>,
) -> Result<Value, Failure> {
    let flag = |name: &str, value| (Value::Str(name.to_owned()), Value::Bool(value));
    let params = Value::Map(vec![flag("do_remote_decode", true), flag("do_remote_prefill", false)]);
    let name = prefill.send_prompt(FIRST_CONTENT | u64::from(content), tokens, 1, Some(params))?;
    loop {
        let arrival = match &mut stream {
            Some(stream) => receive(prefill, stream)?,
            None => {
                let arrival = prefill.receive()?;
                prefill.note(&arrival.outputs)?;
                arrival
            }
        };
        let output = arrival.outputs.outputs.iter().find(|output| output.request_id == name);
        if let Some(output) = output.filter(|output| output.finish_reason.is_some()) {
            let params = output.kv_transfer_params.clone();
            return params.ok_or_else(|| "the prefill engine did not keep its prompt".into());
        }
    }
}
