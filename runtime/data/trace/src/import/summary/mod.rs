//! Statistics of a capture.

mod quantiles;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::capture::{AcceptanceTally, Break, CaptureLine, CaptureMeta, RequestRecord};
use serde::Serialize;

pub use quantiles::Quantiles;
use quantiles::Samples;
pub use quantiles::StepSummary;
use quantiles::StepTally;
pub(crate) use quantiles::scheduler_number;

/// Maximum number of classes of concurrency. If there are more, concurrencies are grouped.
const MAX_CLASSES: usize = 12;

/// Statistics of a capture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The meta line of the capture.
    pub meta: CaptureMeta,
    /// Whether the capture is a workload, which has no answers.
    pub is_workload: bool,
    /// Number of engines that connected, or else of engines that requests name.
    pub engines: u64,
    /// Number of requests.
    pub requests: u64,
    /// Number of requests by their end: `stop`, ..., `ended` without a reason, `unfinished`.
    pub finished: BTreeMap<String, u64>,
    /// Number of prompt tokens.
    pub prompt_tokens: u64,
    /// Number of output tokens.
    pub output_tokens: u64,
    /// Number of prompt tokens that were in caches.
    pub cached_tokens: u64,
    /// Share of cached tokens among all prompt tokens, from 0 to 1.
    pub cached_share: f64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Time from the first arrival to the last known time of any request.
    pub duration_ns: u64,
    /// Requests per second, by arrivals.
    pub requests_per_s: Option<f64>,
    /// Output tokens per second.
    pub output_tokens_per_s: Option<f64>,
    /// Time from arrival to first output.
    pub ttft_ns: Option<Quantiles>,
    /// Time between outputs.
    pub itl_ns: Option<Quantiles>,
    /// Number of samples of `itl_ns` that are known only by their mean.
    pub itl_of_means: u64,
    /// Time from arrival to end.
    pub e2e_ns: Option<Quantiles>,
    /// Time from arrival to admission.
    pub queue_ns: Option<Quantiles>,
    /// Outputs of several tokens.
    pub bursts: Option<Bursts>,
    /// For the first, second, ... draft: share of outputs that accepted it, among the outputs that accepted all
    /// drafts before it.
    pub acceptance_rates: Vec<f64>,
    /// Maximum number of requests in progress at the same time.
    pub peak_concurrency: Option<u64>,
    /// Mean number of requests in progress.
    pub mean_concurrency: Option<f64>,
    /// Sessions of the requests, if any.
    pub sessions: Option<Sessions>,
    /// Shared prefixes of prompts.
    pub prefixes: Option<Prefixes>,
    /// Images, audio and video in prompts.
    pub media: Option<MediaCounts>,
    /// Latencies by concurrency at arrival.
    pub classes: Vec<Class>,
    /// Steps of the engines, if the file has them.
    pub steps: Option<StepSummary>,
    /// Number of batches of KV events.
    pub kv_batches: u64,
    /// Number of HTTP exchanges.
    pub http: u64,
    /// Losses of connections.
    pub breaks: Vec<Break>,
    /// Whether the capture has an `end` line.
    pub is_ended: bool,
}

/// Outputs that have several tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bursts {
    /// Number of outputs with several tokens.
    pub outputs: u64,
    /// Tokens per output, over all outputs.
    pub tokens_per_output: f64,
    /// Maximum number of tokens of one output.
    pub max_tokens: u64,
}

/// Sessions of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sessions {
    /// Number of sessions.
    pub count: u64,
    /// Number of requests that belong to a session.
    pub requests: u64,
    /// Maximum number of requests of one session.
    pub max_turns: u64,
}

/// Shared prefixes of prompts, by the hashes of their full blocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prefixes {
    /// Number of full blocks of all prompts.
    pub blocks: u64,
    /// Number of different blocks among them.
    pub distinct_blocks: u64,
    /// Share of blocks that an unlimited prefix cache would have contained, from 0 to 1.
    pub shared: f64,
}

/// Images, audio and video in prompts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MediaCounts {
    /// Number of requests with such items.
    pub requests: u64,
    /// Number of items in all prompts.
    pub items: u64,
    /// Number of different items.
    pub distinct_items: u64,
    /// Number of placeholder tokens of items with known positions.
    pub tokens: u64,
}

/// Requests with the same range of concurrency at arrival.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Class {
    /// The lowest concurrency at arrival.
    pub concurrency_from: u32,
    /// The highest concurrency at arrival.
    pub concurrency_to: u32,
    /// Number of requests.
    pub requests: u64,
    /// Time from arrival to the first output.
    pub ttft_ns: Option<Quantiles>,
    /// Time between outputs.
    pub itl_ns: Option<Quantiles>,
    /// Time from arrival to end.
    pub e2e_ns: Option<Quantiles>,
}

/// Computes the summary from the lines of a capture.
#[derive(Default)]
pub struct SummaryBuilder {
    meta: CaptureMeta,
    engines: BTreeSet<u32>,
    request_ranks: BTreeSet<u32>,
    requests: u64,
    finished: BTreeMap<String, u64>,
    sums: [u64; 4],
    outputs: [u64; 4],
    acceptance: AcceptanceTally,
    classes: BTreeMap<Option<u32>, Times>,
    queue_ns: Samples,
    /// (Arrival, end) of each request for which both are known.
    spans: Vec<(u64, u64)>,
    arrivals: Option<(u64, u64, u64)>,
    last_ns: u64,
    sessions: BTreeMap<String, u64>,
    blocks: u64,
    // Only the size of this set is used.
    distinct_blocks: HashSet<u64>,
    /// Numbers of requests with media, of items, and of placeholder tokens.
    media: [u64; 3],
    // Only the size of this set is used.
    distinct_media: HashSet<String>,
    steps: StepTally,
    kv_batches: u64,
    http: u64,
    breaks: Vec<Break>,
    is_ended: bool,
}

#[derive(Clone, Default)]
struct Times {
    requests: u64,
    ttft_ns: Samples,
    itl_ns: Samples,
    e2e_ns: Samples,
}

impl Times {
    fn append(&mut self, other: &Self) {
        self.requests += other.requests;
        self.ttft_ns.append(&other.ttft_ns);
        self.itl_ns.append(&other.itl_ns);
        self.e2e_ns.append(&other.e2e_ns);
    }
}

impl SummaryBuilder {
    /// Adds a line.
    pub fn add(&mut self, line: &CaptureLine) {
        match line {
            CaptureLine::Meta(meta) => self.meta = (**meta).clone(),
            CaptureLine::Engine(engine) => drop(self.engines.insert(engine.rank)),
            CaptureLine::Arrival(_) => {}
            CaptureLine::Request(request) => self.add_request(request),
            CaptureLine::Step(step) => self.steps.add(step),
            CaptureLine::Http(_) => self.http += 1,
            CaptureLine::Kv(_) => self.kv_batches += 1,
            CaptureLine::Break(broken) => self.breaks.push(broken.clone()),
            CaptureLine::End(end) => self.is_ended = !end.continues,
        }
    }

    fn add_request(&mut self, request: &RequestRecord) {
        self.requests += 1;
        self.request_ranks.insert(request.rank);
        let ended = match &request.finish_reason {
            Some(reason) => reason,
            None if request.end_ns.is_some() => "ended",
            None => "unfinished",
        };
        *self.finished.entry(ended.to_owned()).or_default() += 1;
        let counts = [request.prompt_tokens, request.output_tokens, request.cached_tokens, request.preemptions];
        for (sum, count) in self.sums.iter_mut().zip(counts) {
            *sum += u64::from(count);
        }
        if let Some(session) = &request.session {
            *self.sessions.entry(session.clone()).or_default() += 1;
        }
        self.blocks += request.block_hashes.len() as u64;
        self.distinct_blocks.extend(request.block_hashes.iter().map(|hash| hash.0));
        self.add_media(request);
        self.add_times(request);
        self.add_outputs(request);
        self.acceptance.add(request);
    }

    fn add_media(&mut self, request: &RequestRecord) {
        let items = request.media_hashes().count() as u64;
        let tokens: u64 = request.mm_items.iter().map(|item| u64::from(item.tokens)).sum();
        for (sum, count) in self.media.iter_mut().zip([u64::from(items > 0), items, tokens]) {
            *sum += count;
        }
        self.distinct_media.extend(request.media_hashes().map(str::to_owned));
    }

    fn add_times(&mut self, request: &RequestRecord) {
        let duration_ns = request.duration_ns();
        let times = self.classes.entry(request.concurrency).or_default();
        times.requests += 1;
        request.ttft_ns.into_iter().for_each(|ns| times.ttft_ns.add(ns));
        duration_ns.into_iter().for_each(|ns| times.e2e_ns.add(ns));
        times.itl_ns.extend(&request.gap_ns);
        if let Some(gaps) = request.gap_summary {
            times.itl_ns.add_mean(gaps.mean_ns, u64::from(gaps.count));
        }
        request.queue_ns.into_iter().for_each(|ns| self.queue_ns.add(ns));
        let Some(arrival_ns) = request.arrival_ns else { return };
        let (first, last, count) = self.arrivals.unwrap_or((arrival_ns, arrival_ns, 0));
        self.arrivals = Some((first.min(arrival_ns), last.max(arrival_ns), count + 1));
        let end_ns = arrival_ns.saturating_add(duration_ns.unwrap_or(0));
        self.last_ns = self.last_ns.max(end_ns);
        if duration_ns.is_some() {
            self.spans.push((arrival_ns, end_ns));
        }
    }

    /// Counts outputs, tokens, and outputs with several tokens, and finds the largest output.
    fn add_outputs(&mut self, request: &RequestRecord) {
        let first = request.ttft_ns.map(|_| request.first_tokens.unwrap_or(1));
        let later = request.gap_tokens.iter().flatten().copied();
        let ones = if request.gap_tokens.is_none() { request.gap_ns.len() as u64 } else { 0 };
        self.outputs[0] += ones;
        self.outputs[1] += ones;
        for tokens in first.into_iter().chain(later).map(u64::from) {
            self.outputs[0] += 1;
            self.outputs[1] += tokens;
            self.outputs[2] += u64::from(tokens > 1);
            self.outputs[3] = self.outputs[3].max(tokens);
        }
    }

    /// Returns the summary.
    #[must_use]
    pub fn finish(self) -> Summary {
        let mut all = Times::default();
        self.classes.values().for_each(|times| all.append(times));
        let (first_ns, last_arrival_ns, arrived) = self.arrivals.unwrap_or_default();
        let duration_ns = self.last_ns.saturating_sub(first_ns);
        let [prompt_tokens, output_tokens, cached_tokens, preemptions] = self.sums;
        let [outputs, tokens, several, max_tokens] = self.outputs;
        let [media_requests, media_items, media_tokens] = self.media;
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let per_s = |count: u64, ns: u64| (ns > 0 && count > 0).then(|| count as f64 * 1e9 / ns as f64);
        let has_ended = !self.spans.is_empty();
        let (peak_concurrency, mean_concurrency) = concurrency(self.spans);
        let itl_of_means = all.itl_ns.of_means();
        let max_turns = self.sessions.values().copied().max();
        let engines = if self.engines.is_empty() { &self.request_ranks } else { &self.engines };
        Summary {
            is_workload: self.meta.other.get("workload").is_some_and(|workload| workload == true),
            meta: self.meta,
            engines: engines.len() as u64,
            requests: self.requests,
            finished: self.finished,
            prompt_tokens,
            output_tokens,
            cached_tokens,
            cached_share: share(cached_tokens, prompt_tokens),
            preemptions,
            duration_ns,
            requests_per_s: per_s(arrived.saturating_sub(1), last_arrival_ns - first_ns),
            output_tokens_per_s: per_s(output_tokens, duration_ns).filter(|_| has_ended),
            ttft_ns: all.ttft_ns.quantiles(),
            itl_ns: all.itl_ns.quantiles(),
            itl_of_means,
            e2e_ns: all.e2e_ns.quantiles(),
            queue_ns: self.queue_ns.quantiles(),
            bursts: (several > 0).then(|| Bursts {
                outputs: several,
                tokens_per_output: share(tokens, outputs),
                max_tokens,
            }),
            acceptance_rates: self.acceptance.rates(),
            peak_concurrency,
            mean_concurrency,
            sessions: max_turns.map(|max_turns| Sessions {
                count: self.sessions.len() as u64,
                requests: self.sessions.values().sum(),
                max_turns,
            }),
            prefixes: (self.blocks > 0).then(|| {
                let distinct_blocks = self.distinct_blocks.len() as u64;
                let shared = share(self.blocks - distinct_blocks, self.blocks);
                Prefixes { blocks: self.blocks, distinct_blocks, shared }
            }),
            media: (media_items > 0).then_some(MediaCounts {
                requests: media_requests,
                items: media_items,
                distinct_items: self.distinct_media.len() as u64,
                tokens: media_tokens,
            }),
            classes: classes(self.classes),
            steps: self.steps.finish(),
            kv_batches: self.kv_batches,
            http: self.http,
            breaks: self.breaks,
            is_ended: self.is_ended,
        }
    }
}

fn concurrency(spans: Vec<(u64, u64)>) -> (Option<u64>, Option<f64>) {
    let total: u128 = spans.iter().map(|(from, to)| u128::from(to - from)).sum();
    let mut changes: Vec<(u64, i64)> = spans.iter().flat_map(|(from, to)| [(*from, 1), (*to, -1)]).collect();
    // Ends come before starts at the same time.
    changes.sort_unstable();
    let (mut now, mut peak) = (0i64, 0i64);
    for (_, change) in &changes {
        now += change;
        peak = peak.max(now);
    }
    let length = changes.last().zip(changes.first()).map(|((last, _), (first, _))| last - first);
    let mean = length.filter(|length| *length > 0).map(|length| total as f64 / length as f64);
    ((!spans.is_empty()).then_some(peak as u64), mean)
}

/// Makes a class for each concurrency, or for each power of two if there are many.
fn classes(by_concurrency: BTreeMap<Option<u32>, Times>) -> Vec<Class> {
    let known = by_concurrency.into_iter().filter_map(|(concurrency, times)| Some((concurrency?, times)));
    let known: Vec<(u32, Times)> = known.collect();
    let is_many = known.len() > MAX_CLASSES;
    let mut ranges: BTreeMap<(u32, u32), Times> = BTreeMap::new();
    for (concurrency, times) in known {
        let to = if is_many { concurrency.checked_next_power_of_two().unwrap_or(u32::MAX) } else { concurrency };
        let from = if is_many && to > 1 { to / 2 + 1 } else { to };
        ranges.entry((from, to)).or_default().append(&times);
    }
    let class = |((concurrency_from, concurrency_to), times): (_, Times)| Class {
        concurrency_from,
        concurrency_to,
        requests: times.requests,
        ttft_ns: times.ttft_ns.quantiles(),
        itl_ns: times.itl_ns.quantiles(),
        e2e_ns: times.e2e_ns.quantiles(),
    };
    ranges.into_iter().map(class).collect()
}

#[cfg(test)]
mod tests;
