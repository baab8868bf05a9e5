//! Writes a capture as a trace for ui.perfetto.dev.
//!
//! Steps are written immediately. Of requests, only the times are kept until the end; then the requests are
//! distributed over threads.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use crate::capture::{CaptureLine, FinishReason, RequestRecord, StepRecord};
use crate::perfetto::PerfettoWriter;

use super::proto;
use super::tracks::{Slice, TrackSink};
use crate::import::summary::scheduler_number;

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfettoFormat {
    /// Trace events as JSON, which `chrome://tracing` can also read.
    Json,
    /// Perfetto's own packets; less than half as large.
    Proto,
}

impl fmt::Display for PerfettoFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Json => "json",
            Self::Proto => "proto",
        })
    }
}

impl FromStr for PerfettoFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "json" => Ok(Self::Json),
            "proto" => Ok(Self::Proto),
            _ => Err(format!("invalid format `{text}`: expected json or proto")),
        }
    }
}

struct JsonSink<W: Write>(PerfettoWriter<W>);

impl<W: Write> TrackSink for JsonSink<W> {
    fn process(&mut self, process: u64, name: &str) -> io::Result<()> {
        self.0.process_name(process, name)
    }

    fn name_thread(&mut self, process: u64, thread: u64, name: &str) -> io::Result<()> {
        self.0.thread_name(process, thread, name)
    }

    fn slice(&mut self, process: u64, thread: u64, slice: &Slice<'_>, parts: &[Slice<'_>]) -> io::Result<()> {
        for Slice { name, start_ns, end_ns, args, .. } in std::iter::once(slice).chain(parts) {
            self.0.slice(process, thread, name, *start_ns, end_ns - start_ns, args)?;
        }
        Ok(())
    }

    fn instant(&mut self, process: u64, thread: u64, name: &str, at_ns: u64) -> io::Result<()> {
        self.0.instant(process, thread, name, at_ns)
    }

    fn counter(&mut self, process: u64, name: &str, at_ns: u64, value: f64) -> io::Result<()> {
        self.0.gauge(process, name, at_ns, value)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.end_document()
    }
}

const REQUESTS: u64 = 1;
const FIRST_ENGINE: u64 = 2;
/// The thread for steps in the group of an engine.
const STEPS: u64 = 1;
const BIN_NS: u64 = 1_000_000_000;
const BINS_PER_S: f64 = 1e9 / BIN_NS as f64;

struct Span {
    name: String,
    arrival_ns: u64,
    admitted_ns: Option<u64>,
    first_ns: Option<u64>,
    end_ns: u64,
    args: [u64; 3],
    ended: Option<String>,
}

/// Converts the lines of a capture into a trace.
pub struct PerfettoExport<'a> {
    out: Box<dyn TrackSink + 'a>,
    spans: Vec<Span>,
    /// Numbers of outputs and of tokens in each second.
    bins: BTreeMap<u64, (u64, u64)>,
    has_bursts: bool,
    without_arrival: u64,
    /// The time of each engine's latest step, and whether requests kept running after it.
    engines: BTreeMap<u32, (u64, bool)>,
}

impl<'a> PerfettoExport<'a> {
    /// Starts a document.
    ///
    /// # Errors
    /// If `out` fails; this is true of all methods here.
    pub fn new(mut out: impl Write + 'a, format: PerfettoFormat) -> io::Result<Self> {
        let mut out: Box<dyn TrackSink + 'a> = match format {
            PerfettoFormat::Json => {
                out.write_all(PerfettoWriter::<Vec<u8>>::HEADER)?;
                Box::new(JsonSink(PerfettoWriter::continued(out)))
            }
            PerfettoFormat::Proto => proto::sink(out)?,
        };
        out.process(REQUESTS, "requests")?;
        Ok(Self {
            out,
            spans: Vec::new(),
            bins: BTreeMap::new(),
            has_bursts: false,
            without_arrival: 0,
            engines: BTreeMap::new(),
        })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn add(&mut self, line: &CaptureLine) -> io::Result<()> {
        match line {
            CaptureLine::Request(request) => {
                self.add_request(request);
                Ok(())
            }
            CaptureLine::Step(step) => self.add_step(step),
            CaptureLine::Break(broken) => self.out.instant(REQUESTS, 0, &broken.reason, broken.at_ns),
            _ => Ok(()),
        }
    }

    fn add_request(&mut self, request: &RequestRecord) {
        let Some(arrival_ns) = request.arrival_ns else {
            self.without_arrival += 1;
            return;
        };
        let at = |since_ns: Option<u64>| since_ns.map(|since_ns| arrival_ns.saturating_add(since_ns));
        let end_ns = at(request.duration_ns()).unwrap_or(arrival_ns);
        let name = request.external_id.as_deref().or(request.id.as_deref()).unwrap_or("request");
        self.spans.push(Span {
            name: name.to_owned(),
            arrival_ns,
            admitted_ns: at(request.queue_ns).map(|ns| ns.min(end_ns)),
            first_ns: at(request.ttft_ns).map(|ns| ns.min(end_ns)),
            end_ns,
            args: [request.prompt_tokens, request.output_tokens, request.cached_tokens].map(u64::from),
            ended: request.finish_reason.clone().filter(|reason| {
                !matches!(FinishReason::parse(reason), Some(FinishReason::Stop | FinishReason::Length))
            }),
        });
        let Some(mut at_ns) = at(request.ttft_ns) else { return };
        let mut output = |at_ns: u64, tokens: u32| {
            let bin = self.bins.entry(at_ns / BIN_NS).or_default();
            *bin = (bin.0 + 1, bin.1 + u64::from(tokens));
            self.has_bursts |= tokens > 1;
        };
        output(at_ns, request.first_tokens.unwrap_or(1));
        let tokens = request.gap_tokens.as_deref().unwrap_or_default();
        for (index, gap_ns) in request.gap_ns.iter().enumerate() {
            at_ns = at_ns.saturating_add(*gap_ns);
            output(at_ns, tokens.get(index).copied().unwrap_or(1));
        }
        // If only the mean gap is known, the outputs are evenly spaced.
        let means = request.gap_summary.unwrap_or_default();
        for _ in 0..means.count {
            at_ns = at_ns.saturating_add(means.mean_ns);
            output(at_ns, 1);
        }
    }

    /// Adds a step. It ends when its message is sent. It starts at the end of the previous step if requests were
    /// still running then.
    fn add_step(&mut self, step: &StepRecord) -> io::Result<()> {
        let process = FIRST_ENGINE + u64::from(step.rank);
        let running = scheduler_number(step, "num_running_reqs");
        let runs_on = running.is_none_or(|running| running > 0.0);
        let before = self.engines.insert(step.rank, (step.at_ns, runs_on));
        if before.is_none() {
            self.out.process(process, &format!("engine {}", step.rank))?;
            self.out.name_thread(process, STEPS, "steps")?;
        }
        let start_ns = before.filter(|(_, ran_on)| *ran_on).map_or(step.at_ns, |(at_ns, _)| at_ns.min(step.at_ns));
        let (tokens, outputs) = (u64::from(step.tokens), u64::from(step.outputs));
        let args = [("step", step.step), ("tokens", tokens), ("outputs", outputs)];
        let slice = Slice { name: "step", is_common: true, start_ns, end_ns: step.at_ns, args: &args };
        self.out.slice(process, STEPS, &slice, &[])?;
        let speculative = |field: &str| step.scheduler.as_ref()?.get("spec_decoding_stats")?.get(field)?.as_f64();
        for (name, value) in [
            ("running", running),
            ("waiting", scheduler_number(step, "num_waiting_reqs")),
            ("KV cache usage", scheduler_number(step, "kv_cache_usage")),
            ("draft tokens", speculative("num_draft_tokens")),
            ("accepted tokens", speculative("num_accepted_tokens")),
        ] {
            if let Some(value) = value {
                self.out.counter(process, name, step.at_ns, value)?;
            }
        }
        Ok(())
    }

    /// Writes the rest. Returns the number of requests without known times, which are not shown.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn finish(mut self) -> io::Result<u64> {
        self.spans.sort_by_key(|span| span.arrival_ns);
        self.write_lanes()?;
        self.write_counts()?;
        self.write_rates()?;
        self.out.finish()?;
        Ok(self.without_arrival)
    }

    fn write_lanes(&mut self) -> io::Result<()> {
        let mut busy: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
        let mut free = BTreeSet::new();
        let mut threads = 0;
        for span in &self.spans {
            while let Some(Reverse((_, thread))) =
                busy.peek().copied().filter(|Reverse((end, _))| *end <= span.arrival_ns)
            {
                busy.pop();
                free.insert(thread);
            }
            let thread = match free.pop_first() {
                Some(thread) => thread,
                None => {
                    threads += 1;
                    self.out.name_thread(REQUESTS, threads, &format!("lane {threads}"))?;
                    threads
                }
            };
            busy.push(Reverse((span.end_ns, thread)));
            write_span(self.out.as_mut(), thread, span)?;
        }
        Ok(())
    }

    fn write_counts(&mut self) -> io::Result<()> {
        let mut changes: BTreeMap<u64, [i64; 2]> = BTreeMap::new();
        for span in &self.spans {
            changes.entry(span.arrival_ns).or_default()[0] += 1;
            changes.entry(span.end_ns).or_default()[0] -= 1;
            if let Some(admitted_ns) = span.admitted_ns {
                changes.entry(span.arrival_ns).or_default()[1] += 1;
                changes.entry(admitted_ns).or_default()[1] -= 1;
            }
        }
        let has_queue = self.spans.iter().any(|span| span.admitted_ns.is_some());
        let mut now = [0i64; 2];
        for (at_ns, change) in changes {
            now = [now[0] + change[0], now[1] + change[1]];
            self.out.counter(REQUESTS, "requests under way", at_ns, now[0] as f64)?;
            if has_queue {
                self.out.counter(REQUESTS, "requests waiting", at_ns, now[1] as f64)?;
            }
        }
        Ok(())
    }

    fn write_rates(&mut self) -> io::Result<()> {
        let mut last = None;
        for (bin, (outputs, tokens)) in &self.bins {
            // Seconds without outputs have no entry, but their rate is 0.
            if let Some(last) = last.filter(|last: &u64| last + 1 < *bin) {
                self.out.counter(REQUESTS, "output tokens/s", (last + 1).saturating_mul(BIN_NS), 0.0)?;
            }
            let at_ns = bin.saturating_mul(BIN_NS);
            self.out.counter(REQUESTS, "output tokens/s", at_ns, *tokens as f64 * BINS_PER_S)?;
            if self.has_bursts {
                self.out.counter(REQUESTS, "tokens/output", at_ns, *tokens as f64 / *outputs as f64)?;
            }
            last = Some(*bin);
        }
        let Some(last) = last else { return Ok(()) };
        self.out.counter(REQUESTS, "output tokens/s", last.saturating_add(1).saturating_mul(BIN_NS), 0.0)
    }
}

fn write_span(out: &mut dyn TrackSink, thread: u64, span: &Span) -> io::Result<()> {
    let part = |name, start_ns, end_ns| Slice { name, is_common: true, start_ns, end_ns, args: &[] };
    let mut parts = Vec::new();
    let admitted_ns = span.admitted_ns.unwrap_or(span.arrival_ns);
    if span.admitted_ns.is_some() {
        parts.push(part("queue", span.arrival_ns, admitted_ns));
    }
    if let Some(first_ns) = span.first_ns {
        let first_ns = first_ns.max(admitted_ns);
        parts.push(part("prefill", admitted_ns, first_ns));
        parts.push(part("decode", first_ns, span.end_ns.max(first_ns)));
    }
    let [prompt, output, cached] = span.args;
    let args = [("prompt_tokens", prompt), ("output_tokens", output), ("cached_tokens", cached)];
    let (start_ns, end_ns) = (span.arrival_ns, span.end_ns);
    out.slice(REQUESTS, thread, &Slice { name: &span.name, is_common: false, start_ns, end_ns, args: &args }, &parts)?;
    match &span.ended {
        Some(ended) => out.instant(REQUESTS, thread, ended, end_ns),
        None => Ok(()),
    }
}
