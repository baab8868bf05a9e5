//! Generates a synthetic capture with heavy tails, bursts of arrivals, sessions, shared prefixes, speculative
//! tokens and clients that disconnect.
//!
//! The same settings give the same lines on every machine.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::num::{NonZeroU32, NonZeroU64};

use crate::capture::{
    CAPTURE_FORMAT, CAPTURE_VERSION, CaptureEnd, CaptureLine, CaptureMeta, ExtraKeys, FinishReason, Holds,
    PromptHasher, RequestRecord,
};
use serde_json::{Map, json};
use vcr_base::random::{Distribution, Stream};

use crate::import::Sink;

/// Options of a synthetic capture.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Number of requests.
    pub requests: NonZeroU64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Mean number of arrivals per second; above 0.
    pub requests_per_s: f64,
    /// Number of prompt tokens of a block hash.
    pub block_size_tokens: NonZeroU32,
    /// Whether outputs can have several tokens, as with speculative decoding.
    pub speculative: bool,
    /// Whether the capture contains the tokens of prompts and answers.
    pub tokens: bool,
}

/// Maximum number of sessions that can continue. More would only cost memory.
const MAX_SESSIONS: usize = 64;
const SYSTEM_PROMPTS: u64 = 4;
const SYSTEM_PROMPT_TOKENS: usize = 320;
const MAX_CONTEXT_TOKENS: usize = 16_384;
/// Shares of requests: those that continue a session, those that are aborted, and those that end before their
/// maximum length.
const CONTINUES: f64 = 0.4;
const ABORTS: f64 = 0.03;
const STOPS: f64 = 0.7;
const VOCABULARY: f64 = 32_000.0;

struct Session {
    number: u64,
    context: Vec<u32>,
    /// When the session's last answer ends.
    free_ns: u64,
}

struct Dice {
    arrivals: Stream,
    sessions: Stream,
    lengths: Stream,
    times: Stream,
    tokens: Stream,
}

/// Generates a capture. Writes its lines in the order in which requests end.
///
/// # Errors
/// If `sink` fails.
pub fn write(options: &DemoOptions, sink: &mut Sink<'_>) -> io::Result<()> {
    sink(CaptureLine::Meta(Box::new(meta(options))))?;
    let mut demo = Demo {
        options,
        dice: Dice {
            arrivals: Stream::new(options.seed, "demo arrivals"),
            sessions: Stream::new(options.seed, "demo sessions"),
            lengths: Stream::new(options.seed, "demo lengths"),
            times: Stream::new(options.seed, "demo times"),
            tokens: Stream::new(options.seed, "demo tokens"),
        },
        sessions: Vec::new(),
        next_session: 0,
        now_ns: 0,
        in_burst: false,
    };
    // Requests in progress: (end, number).
    let mut under_way: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let mut records: BTreeMap<u64, RequestRecord> = BTreeMap::new();
    let mut last_ns = 0;
    for number in 0..options.requests.get() {
        demo.next_arrival();
        while let Some(Reverse((_, ended))) = under_way.peek().copied().filter(|Reverse((end, _))| *end <= demo.now_ns)
        {
            under_way.pop();
            sink(take(&mut records, ended))?;
        }
        let concurrency = under_way.len() as u32 + 1;
        let record = demo.request(number, concurrency);
        let end_ns = demo.now_ns + record.end_ns.unwrap_or(0);
        last_ns = last_ns.max(end_ns);
        under_way.push(Reverse((end_ns, number)));
        records.insert(number, record);
    }
    while let Some(Reverse((_, ended))) = under_way.pop() {
        sink(take(&mut records, ended))?;
    }
    let requests = options.requests.get();
    sink(CaptureLine::End(CaptureEnd { at_ns: last_ns, requests, unfinished: 0, continues: false }))
}

fn take(records: &mut BTreeMap<u64, RequestRecord>, number: u64) -> CaptureLine {
    CaptureLine::Request(Box::new(records.remove(&number).expect("every request under way has its record")))
}

fn meta(options: &DemoOptions) -> CaptureMeta {
    CaptureMeta {
        format: CAPTURE_FORMAT.to_owned(),
        version: CAPTURE_VERSION,
        source: Some("gen-demo".to_owned()),
        model: Some("demo".to_owned()),
        block_size_tokens: Some(options.block_size_tokens.get()),
        holds: Holds { output_tokens: options.tokens, prompt_tokens: options.tokens, ..Holds::default() },
        other: Map::from_iter([("seed".to_owned(), json!(options.seed))]),
        ..CaptureMeta::default()
    }
}

struct Demo<'a> {
    options: &'a DemoOptions,
    dice: Dice,
    sessions: Vec<Session>,
    next_session: u64,
    now_ns: u64,
    in_burst: bool,
}

impl Demo<'_> {
    /// Draws the next arrival. Bursts of about twenty arrivals have ten times the rate; between bursts the rate is
    /// about half.
    fn next_arrival(&mut self) {
        let switch = self.dice.arrivals.unit();
        self.in_burst = if self.in_burst { switch >= 0.05 } else { switch < 0.05 };
        let scale = if self.in_burst { 0.1 } else { 1.9 };
        let gap_s = self.dice.arrivals.exponential() * scale / self.options.requests_per_s;
        self.now_ns += (gap_s * 1e9) as u64;
    }

    fn request(&mut self, number: u64, concurrency: u32) -> RequestRecord {
        let (mut session, cached) = self.session();
        let more = draw(&mut self.dice.lengths, 300.0, 600.0, 4.0, 8000.0);
        let fresh: Vec<u32> = self.draw_tokens(more as usize);
        session.context.extend(fresh);
        let max_tokens = draw(&mut self.dice.lengths, 180.0, 240.0, 1.0, 2048.0) as u32;
        let fate = self.dice.sessions.unit();
        let mut record = RequestRecord {
            id: Some(format!("demo-{number}")),
            arrival_ns: Some(self.now_ns),
            concurrency: Some(concurrency),
            prompt_tokens: session.context.len() as u32,
            session: Some(format!("s{}", session.number)),
            ..RequestRecord::default()
        };
        let block = self.options.block_size_tokens.get();
        let hasher = PromptHasher::new(block);
        let chain = hasher.chain(&session.context, &ExtraKeys::default());
        (record.block_hashes, record.prompt_hash) = (chain.blocks, Some(chain.whole));
        record.cached_tokens = (cached as u32 / block * block).min(record.prompt_tokens - 1);
        self.answer(&mut record, max_tokens, fate, concurrency);
        let answer = self.draw_tokens(record.output_tokens as usize);
        if self.options.tokens {
            record.prompt_token_ids = Some(session.context.clone());
            record.output_token_ids = Some(answer.clone());
        }
        session.context.extend(answer);
        session.free_ns = self.now_ns + record.end_ns.unwrap_or(0);
        self.sessions.push(session);
        record
    }

    /// Chooses an existing or a new session. Also returns the number of its cached tokens.
    fn session(&mut self) -> (Session, usize) {
        self.sessions.retain(|session| session.context.len() < MAX_CONTEXT_TOKENS);
        if self.sessions.len() > MAX_SESSIONS {
            self.sessions.remove(0);
        }
        let goes_on = self.dice.sessions.unit() < CONTINUES;
        let choice = self.dice.sessions.unit();
        let free: Vec<usize> =
            (0..self.sessions.len()).filter(|index| self.sessions[*index].free_ns < self.now_ns).collect();
        if goes_on && !free.is_empty() {
            let session = self.sessions.remove(free[(choice * free.len() as f64) as usize]);
            let cached = session.context.len();
            return (session, cached);
        }
        let group = (choice * SYSTEM_PROMPTS as f64) as u64;
        let mut shared = Stream::new(self.options.seed, &format!("demo system prompt {group}"));
        let context = (0..SYSTEM_PROMPT_TOKENS).map(|_| token(&mut shared)).collect();
        self.next_session += 1;
        let session = Session { number: self.next_session - 1, context, free_ns: 0 };
        (session, if self.next_session > SYSTEM_PROMPTS { SYSTEM_PROMPT_TOKENS } else { 0 })
    }

    fn answer(&mut self, record: &mut RequestRecord, max_tokens: u32, fate: f64, concurrency: u32) {
        let load = 1.0 + f64::from(concurrency) / 32.0;
        let dice = &mut self.dice.times;
        let queue_ms = dice.exponential() * 0.3 * f64::from(concurrency);
        let computed = f64::from(record.prompt_tokens - record.cached_tokens);
        let prefill_ms = draw(dice, 8.0 + 0.05 * computed, 4.0, 1.0, 60_000.0) * load;
        let (queue_ns, ttft_ns) = ((queue_ms * 1e6) as u64, ((queue_ms + prefill_ms) * 1e6) as u64);
        let mut tokens = 1;
        let mut gap_tokens = Vec::new();
        let aborted_at = if fate < ABORTS { max_tokens / 2 } else { u32::MAX };
        while tokens < max_tokens && tokens < aborted_at {
            // One gap in fifty includes the wait for another request's long prompt.
            let waits = if dice.unit() < 0.02 { draw(dice, 60.0, 80.0, 1.0, 2000.0) } else { 0.0 };
            record.gap_ns.push(((draw(dice, 9.0 * load, 1.5, 1.0, 1000.0) + waits) * 1e6) as u64);
            let burst = if self.options.speculative { 1 + (dice.unit() * 4.0) as u32 } else { 1 };
            gap_tokens.push(burst.min(max_tokens - tokens));
            tokens += burst.min(max_tokens - tokens);
        }
        record.output_tokens = tokens;
        record.gap_tokens = self.options.speculative.then_some(gap_tokens);
        record.ttft_ns = Some(ttft_ns);
        record.queue_ns = Some(queue_ns);
        record.end_ns = Some(ttft_ns + record.gap_ns.iter().sum::<u64>());
        let reason = if fate < ABORTS {
            FinishReason::Abort
        } else if fate < STOPS {
            FinishReason::Stop
        } else {
            FinishReason::Length
        };
        record.finish_reason = Some(reason.name().to_owned());
        let is_cut = reason == FinishReason::Length;
        record.params.insert("max_tokens".to_owned(), json!(if is_cut { max_tokens } else { 2048 }));
    }

    fn draw_tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| token(&mut self.dice.tokens)).collect()
    }
}

fn token(stream: &mut Stream) -> u32 {
    (stream.unit() * VOCABULARY) as u32
}

fn draw(stream: &mut Stream, mean: f64, std: f64, min: f64, max: f64) -> f64 {
    Distribution::LogNormal { mean, std }.draw(stream).clamp(min, max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{CaptureReader, ReadOptions};
    use crate::import::summary::SummaryBuilder;

    fn lines(options: &DemoOptions) -> Vec<CaptureLine> {
        let mut lines = Vec::new();
        let mut sink = |line| {
            lines.push(line);
            Ok(())
        };
        write(options, &mut sink).expect("nothing can fail");
        lines
    }

    fn options(seed: u64) -> DemoOptions {
        DemoOptions {
            requests: NonZeroU64::new(300).expect("not 0"),
            seed,
            requests_per_s: 4.0,
            block_size_tokens: NonZeroU32::new(16).expect("not 0"),
            speculative: true,
            tokens: true,
        }
    }

    #[test]
    fn a_demonstration_is_a_capture_with_all_its_parts() {
        let lines = lines(&options(1));
        let text: String = lines.iter().map(|line| serde_json::to_string(line).expect("JSON") + "\n").collect();
        let mut reader =
            CaptureReader::from_reader(text.as_bytes(), "demo", &ReadOptions::default()).expect("a capture");
        let mut builder = SummaryBuilder::default();
        while let Some((_, line)) = reader.next_line().expect("a line") {
            builder.add(&line);
        }
        assert_eq!(reader.summary().broken_off, None);
        let summary = builder.finish();
        assert_eq!(summary.requests, 300);
        assert!(summary.finished.contains_key("abort") && summary.finished.contains_key("length"));
        assert!(summary.sessions.is_some_and(|sessions| sessions.max_turns > 1));
        assert!(summary.prefixes.is_some_and(|prefixes| prefixes.shared > 0.2));
        assert!(summary.bursts.is_some_and(|bursts| bursts.tokens_per_output > 2.0));
        let ttft = summary.ttft_ns.expect("first tokens");
        assert!(ttft.p99 > 2 * ttft.p50, "the tail is heavy: {ttft:?}");
    }

    #[test]
    fn the_seed_decides_everything() {
        assert_eq!(lines(&options(7)), lines(&options(7)));
        assert_ne!(lines(&options(7)), lines(&options(8)));
    }
}
