//! Disturbance of a stream while KV moves to its engine.

use vcr_wire::{EngineCoreOutputs, Value, monotonic_ns};

use crate::Failure;
use crate::client::{Arrival, Client, Setup};
use crate::process::free_port;
use crate::report::{Sheet, median};

/// Tokens of a block.
const BLOCK_TOKENS: u64 = 16;
const PROMPT_TOKENS: u32 = 64;
/// Numbers of the contents that move begin here: no other prompt has them.
const FIRST_CONTENT: u64 = 1 << 63;
/// Longest stream.
const STREAM_TOKENS: u32 = 20_000;

/// Transfers to an engine with a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moving {
    /// Bytes of each transfer.
    pub(crate) total_bytes: u64,
    /// Bytes of a page.
    pub(crate) page_bytes: u64,
    /// Transfers.
    pub(crate) rounds: u32,
    /// Time between the stream's tokens.
    pub(crate) interval_ns: u64,
    /// Target: by how much the error of gaps at the 99th percentile may be larger while KV moves, in milliseconds.
    pub(crate) more_ms: Option<f64>,
}

/// The stream's steps by the engine's clock, in nanoseconds.
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

    /// Absolute differences between the gaps of these times and the interval.
    fn gap_errors(&self, interval_ns: u64, from_ns: u64, to_ns: u64) -> Vec<u64> {
        let inside = |pair: &&[u64]| pair[0] >= from_ns && pair[1] <= to_ns;
        let gaps = self.instants_ns.windows(2).filter(inside).map(|pair| pair[1].saturating_sub(pair[0]));
        gaps.map(|gap| gap.abs_diff(interval_ns)).collect()
    }
}

/// Runs a stream alone, and then while prompts of another engine move to it.
pub(crate) fn moving(setup: &Setup, what: Moving) -> Result<Sheet, Failure> {
    let block_bytes = what.page_bytes * 2;
    let blocks = what.total_bytes / block_bytes.max(1);
    if blocks == 0 || blocks * block_bytes != what.total_bytes {
        return Err("the total must be an even number of pages".into());
    }
    let tokens = u32::try_from(blocks * BLOCK_TOKENS)?;
    let mut prefill = start(setup, &what, tokens, None)?;
    let mut decode = start(setup, &what, tokens, Some(what.interval_ns))?;
    let mut stream = Stream { name: decode.send(PROMPT_TOKENS, STREAM_TOKENS)?, instants_ns: Vec::new() };

    // Gaps without a transfer: one second for each of the rounds that follow.
    let wanted =
        (u64::from(what.rounds) * 1_000_000_000 / what.interval_ns.max(1)).clamp(20, u64::from(STREAM_TOKENS) / 4);
    let began_ns = monotonic_ns();
    while stream.instants_ns.len() < wanted as usize {
        receive(&mut decode, &mut stream)?;
    }
    let mut alone = stream.gap_errors(what.interval_ns, began_ns, u64::MAX);
    let (mut besides, mut times_ms) = (Vec::new(), Vec::new());
    for round in 0..what.rounds {
        let params = computed(&mut prefill, round, tokens)?;
        let began_ns = monotonic_ns();
        let moved = decode.send_prompt(FIRST_CONTENT | u64::from(round), tokens, 1, Some(params))?;
        let ended_ns = loop {
            let arrival = receive(&mut decode, &mut stream)?;
            if arrival.outputs.outputs.iter().any(|output| output.request_id == moved) {
                break arrival.at_ns;
            }
        };
        times_ms.push((ended_ns - began_ns) as f64 / 1e6);
        besides.extend(stream.gap_errors(what.interval_ns, began_ns, ended_ns));
    }
    let mut sheet = Sheet::new(format!(
        "moving: {} MiB in pages of {} KiB, a token every {} ms",
        what.total_bytes >> 20,
        what.page_bytes >> 10,
        what.interval_ns as f64 / 1e6
    ));
    if besides.is_empty() {
        return Err("no gap lay within a transfer: move more bytes".into());
    }
    let (before, during) = (p99_ms(&mut alone), p99_ms(&mut besides));
    let time_ms = median(times_ms);
    sheet
        .figure("gaps alone", alone.len() as f64, "")
        .figure("gap error alone, 99 %", before, "ms")
        .figure("gaps while KV moves", besides.len() as f64, "")
        .figure("gap error while KV moves, 99 %", during, "ms")
        .figure("difference", during - before, "ms")
        .at_most(what.more_ms)
        .figure("request until first token, median", time_ms, "ms")
        .figure("bytes by that time", what.total_bytes as f64 / (time_ms * 1e6), "GB/s");
    Ok(sheet)
}

fn p99_ms(errors: &mut [u64]) -> f64 {
    errors.sort_unstable();
    errors.get(errors.len().saturating_sub(1) * 99 / 100).map_or(f64::NAN, |error| *error as f64 / 1e6)
}

fn start(setup: &Setup, what: &Moving, tokens: u32, interval_ns: Option<u64>) -> Result<Client, Failure> {
    // Two prompts, and a stream.
    let blocks = u64::from(tokens) / BLOCK_TOKENS * 2 + u64::from(STREAM_TOKENS) / BLOCK_TOKENS + 64;
    let longest = tokens.max(STREAM_TOKENS + PROMPT_TOKENS) + 64;
    let options = format!(
        "--kv-transfer tcp --side-channel-port {} --kv-shape 1x1x128 --kv-block-bytes {}B --block-size {BLOCK_TOKENS} \
         --num-gpu-blocks {blocks} --max-model-len {longest} --max-num-batched-tokens {longest} \
         --kv-transfer-time real --kv-lease 600s",
        free_port()?,
        what.page_bytes * 2,
    );
    let mut options: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
    if let Some(interval_ns) = interval_ns {
        options.extend(["--inter-token-latency".to_owned(), format!("{interval_ns}ns")]);
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

/// Has a prompt computed, which its engine holds then; where it is.
fn computed(prefill: &mut Client, content: u32, tokens: u32) -> Result<Value, Failure> {
    let flag = |name: &str, value| (Value::Str(name.to_owned()), Value::Bool(value));
    let params = Value::Map(vec![flag("do_remote_decode", true), flag("do_remote_prefill", false)]);
    let name = prefill.send_prompt(FIRST_CONTENT | u64::from(content), tokens, 1, Some(params))?;
    loop {
        let arrival = prefill.receive()?;
        prefill.note(&arrival.outputs)?;
        let output = arrival.outputs.outputs.iter().find(|output| output.request_id == name);
        if let Some(output) = output.filter(|output| output.finish_reason.is_some()) {
            let params = output.kv_transfer_params.clone();
            return params.ok_or_else(|| "the prefill engine did not keep its prompt".into());
        }
    }
}
