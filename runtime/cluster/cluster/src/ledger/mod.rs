//! The records of all requests, and the metrics of the run.
//!
//! Only the ledger changes a request's tokens and times, the samples and the counters. The module `tokens` records
//! all tokens.

pub(crate) mod gap_course;
pub mod metrics;
mod outcome;
pub(crate) mod packed;
pub mod record;
mod samples;
mod steady_decode;
mod store;
mod tokens;

use vcr_core::EngineStats;
use vcr_core::plan::TierLoad;
use vcr_trace::capture::PromptChain;

use self::metrics::Samples;
use crate::config::{Overheads, PoolRole};
use gap_course::GapCourse;
use metrics::{Counter, MetricSet, Summarised, Trend};
use packed::PackedRecords;
use record::{GiveUp, Outcome, RequestDetail, RequestRecord};
use steady_decode::SteadyDecode;
use store::RecordStore;

/// The maximum number of records for which memory is reserved at the start.
const MAX_RESERVED: u64 = 1 << 22;

pub(crate) struct Ledger {
    /// Records by tag.
    records: RecordStore,
    last_end_ns: u64,
    /// Metrics by workload.
    metrics: Vec<MetricSet>,
    step_metrics: MetricSet,
    samples_steps: bool,
    tally: Tally,
    ended: u64,
    steps: u64,
    /// Number of requests and steps in the warm-up.
    unmeasured: (u64, u64),
    /// Steady decodes by worker.
    steady_decodes: Vec<SteadyDecode>,
    overheads: Overheads,
    /// Data for a capture of the run, if requested.
    kept: Option<Kept>,
    /// Gaps over time, if requested.
    gap_course: Option<Box<GapCourse>>,
    /// Scratch: number of each workload's requests that decode in a fast-forward.
    decoding: Vec<u64>,
    /// Scratch: number of these requests that get their first two tokens in the fast-forward.
    first_two: Vec<u64>,
    /// Scratch: number of each workload's requests that get their second token; all 0 between uses.
    second_tokens: Vec<u64>,
}

impl Ledger {
    pub(crate) fn new(workloads: usize, workers: usize, samples_steps: bool, overheads: Overheads) -> Self {
        Self {
            records: RecordStore::default(),
            last_end_ns: 0,
            metrics: vec![MetricSet::default(); workloads],
            step_metrics: MetricSet::default(),
            samples_steps,
            tally: Tally::default(),
            ended: 0,
            steps: 0,
            unmeasured: (0, 0),
            steady_decodes: (0..workers).map(|_| SteadyDecode::default()).collect(),
            overheads,
            kept: None,
            gap_course: None,
            decoding: vec![0; workloads],
            first_two: vec![0; workloads],
            second_tokens: vec![0; workloads],
        }
    }

    /// Reserves memory for the records of `requests`, because a growing list briefly needs twice its memory.
    pub(crate) fn reserve(&mut self, requests: u64) {
        self.records.reserve(requests.min(MAX_RESERVED) as usize);
    }

    /// Packs the records of requests that have ended.
    pub(crate) fn pack_records(&mut self) {
        self.records.pack_ended();
    }

    /// The first tag whose record is not packed: the first request that may not have ended.
    pub(crate) fn first_open(&self) -> u64 {
        self.records.first_open()
    }

    pub(crate) fn last_end_ns(&self) -> u64 {
        self.last_end_ns
    }

    /// Keeps the request data that a capture needs in addition to the records. Outputs must then be recorded one by
    /// one.
    pub(crate) fn keep_requests(&mut self) {
        self.kept = Some(Kept::default());
    }

    /// Takes the kept data of the measured requests.
    pub(crate) fn take_kept(&mut self) -> Option<Vec<KeptRequest>> {
        let mut kept = self.kept.take().map(Kept::into_requests)?;
        kept.drain(..self.unmeasured.0 as usize);
        Some(kept)
    }

    /// Ends the warm-up of the caches: the measurement begins now.
    pub(crate) fn begin_measuring(&mut self) {
        self.unmeasured = (self.records.len(), self.steps);
        self.metrics.fill(MetricSet::default());
        self.step_metrics = MetricSet::default();
        self.gap_course = self.gap_course.take().map(|_| Box::default());
    }

    /// The number of warm-up requests, which have the lowest tags.
    pub(crate) fn unmeasured(&self) -> u64 {
        self.unmeasured.0
    }

    /// Keeps the hashes of a request's prompt, if requested.
    pub(crate) fn keep_prompt(&mut self, tag: u64, chain: impl FnOnce() -> PromptChain) {
        if let Some(kept) = &mut self.kept {
            kept.enter_prompt(tag, chain());
        }
    }

    pub(crate) fn record(&self, tag: u64) -> &RequestRecord {
        &self.records[tag as usize]
    }

    pub(crate) fn find(&self, tag: u64) -> Option<RequestRecord> {
        self.records.find(tag)
    }

    pub(crate) fn open_records(&self) -> &[RequestRecord] {
        self.records.open()
    }

    pub(crate) fn arrived(&self) -> u64 {
        self.records.len()
    }

    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// Number of engine steps that have started.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// A counter's total over all workloads.
    pub(crate) fn total(&self, counter: Counter) -> u64 {
        self.metrics.iter().map(|set| set.total(counter)).sum()
    }

    /// Opens the record of an arriving request and returns the request's tag.
    pub(crate) fn arrive(&mut self, record: RequestRecord) -> u64 {
        let metrics = &mut self.metrics[record.workload as usize];
        metrics.add(Counter::Requests, 1);
        metrics.add(Counter::ClientRetries, u64::from(record.attempt > 0));
        self.records.push(record);
        if let Some(kept) = &mut self.kept {
            kept.arrive();
        }
        self.records.len() - 1
    }

    /// Counts an arrival as load of the engines; not called for requests that are answered as recorded.
    pub(crate) fn count_load(&mut self, tag: u64) {
        self.tally.arrived(&self.records[tag as usize]);
    }

    /// Counts a request with an SLO that has ended.
    pub(crate) fn count_slo(&mut self, is_met: bool) {
        self.tally.slo_requests += 1;
        self.tally.slo_met_requests += u64::from(is_met);
    }

    /// Sets the recorded admission of a request that is answered as recorded.
    pub(crate) fn replay_admission(&mut self, tag: u64, scheduled_ns: Option<u64>, cached_tokens: u32) {
        let record = &mut self.records[tag as usize];
        record.cached_tokens = cached_tokens;
        record.scheduled_ns = scheduled_ns;
    }

    pub(crate) fn set_deadline(&mut self, tag: u64, deadline_ns: Option<u64>) {
        self.records[tag as usize].deadline_ns = deadline_ns;
    }

    pub(crate) fn stays_with_decode(&mut self, tag: u64) {
        self.count(tag, Counter::StayedWithDecode, 1);
    }

    /// Records how many cached tokens the router knew of at the engine that it chose.
    pub(crate) fn route(&mut self, tag: u64, pool: PoolRole, overlap_tokens: Option<u32>) {
        self.records[tag as usize].detail.set_overlap_tokens(pool, overlap_tokens);
    }

    pub(crate) fn enter_prefill_worker(&mut self, tag: u64, worker: u32) {
        self.records[tag as usize].prefill_worker = Some(worker);
    }

    pub(crate) fn enter_decode_worker(&mut self, tag: u64, worker: u32) {
        self.records[tag as usize].decode_worker = Some(worker);
    }

    pub(crate) fn preempt(&mut self, tag: u64, now_ns: u64) {
        let record = &mut self.records[tag as usize];
        record.preemptions += 1;
        record.detail.preempted_since_ns = Some(now_ns);
    }

    /// Admits a request, for the first time or again, with this many computed tokens.
    pub(crate) fn admit(&mut self, tag: u64, now_ns: u64, num_computed_tokens: u32) {
        self.records[tag as usize].admit(now_ns, num_computed_tokens);
    }

    /// Continues a prompt on another engine, where its computed part counts as cached.
    pub(crate) fn continue_prompt(&mut self, tag: u64, num_computed_tokens: u32) {
        let detail = &mut self.records[tag as usize].detail;
        detail.most_cached_tokens = detail.most_cached_tokens.max(num_computed_tokens);
    }

    pub(crate) fn start_load(&mut self, load: &TierLoad, now_ns: u64) {
        self.records[load.tag as usize].start_load(now_ns, load);
    }

    pub(crate) fn end_load(&mut self, tag: u64, now_ns: u64) {
        self.records[tag as usize].end_load(now_ns);
    }

    pub(crate) fn end_prefill(&mut self, tag: u64, now_ns: u64) {
        self.records[tag as usize].prefill_end_ns = Some(now_ns);
    }

    pub(crate) fn start_transfer(&mut self, tag: u64, now_ns: u64, decode_cached_tokens: u32) {
        let detail = &mut self.records[tag as usize].detail;
        detail.transfer_start_ns = Some(now_ns);
        detail.decode_cached_tokens = Some(decode_cached_tokens);
    }

    pub(crate) fn end_transfer(&mut self, tag: u64, now_ns: u64) {
        self.records[tag as usize].transfer_end_ns = Some(now_ns);
    }

    pub(crate) fn start_steps(&mut self, steps: u64) {
        self.steps += steps;
    }

    /// Records the end of a step. Not called for steps that a crash cuts off.
    pub(crate) fn end_step(&mut self, duration_ns: u64, batch_requests: u64) {
        if self.samples_steps {
            self.step_metrics.sample(Trend::StepTime, duration_ns);
            self.step_metrics.sample(Trend::BatchSize, batch_requests);
        }
    }

    pub(crate) fn count_stall(&mut self) {
        self.step_metrics.add(Counter::Stalls, 1);
    }

    /// Adds an engine's encoder and adapter totals.
    pub(crate) fn count_engine(&mut self, stats: &EngineStats) {
        self.step_metrics.add(Counter::AdapterLoads, stats.adapter_loads);
        let stats = &stats.encoder;
        self.step_metrics.add(Counter::EncoderQueries, stats.queries);
        self.step_metrics.add(Counter::EncoderHits, stats.hits);
        self.step_metrics.add(Counter::EncoderItems, stats.computed_items);
        self.step_metrics.add(Counter::EncoderTokens, stats.computed_embeds);
    }

    pub(crate) fn count_ignored_fault(&mut self) {
        self.step_metrics.add(Counter::IgnoredFaults, 1);
    }

    /// Counts the tokens that a request has received as wasted.
    pub(crate) fn waste(&mut self, tag: u64) {
        let record = &mut self.records[tag as usize];
        let wasted = record.output_tokens;
        record.wasted_tokens = record.wasted_tokens.saturating_add(wasted);
        self.count(tag, Counter::WastedTokens, u64::from(wasted));
    }

    pub(crate) fn move_session(&mut self, tag: u64) {
        self.count(tag, Counter::MovedSessions, 1);
    }

    pub(crate) fn drop_session(&mut self, workload: u32) {
        self.metrics[workload as usize].add(Counter::Dropped, 1);
    }

    /// Counts the computed tokens of a cancelled request as wasted. `uncomputed_tokens` of its prompt are not
    /// computed yet.
    pub(crate) fn waste_all(&mut self, tag: u64, uncomputed_tokens: u64) {
        self.waste(tag);
        let record = self.record(tag);
        let is_begun = record.scheduled_ns.is_some() || record.prefill_end_ns.is_some();
        let found_tokens = u64::from(record.cached_tokens);
        let left_tokens = if record.prefill_end_ns.is_some() { 0 } else { uncomputed_tokens };
        let computed = u64::from(record.prompt_tokens).saturating_sub(found_tokens).saturating_sub(left_tokens);
        let computed = if is_begun { computed } else { 0 };
        self.records[tag as usize].wasted_prompt_tokens = computed as u32;
        self.count(tag, Counter::WastedPromptTokens, computed);
    }

    /// Records that a request lost its engine and its progress. Returns whether the request is retried.
    pub(crate) fn lose(&mut self, tag: u64, max_retries: u32) -> bool {
        self.waste(tag);
        let record = &mut self.records[tag as usize];
        record.reset();
        if let Some(kept) = &mut self.kept {
            kept.lose(tag);
        }
        let is_retried = record.retries < max_retries;
        if is_retried {
            record.retries += 1;
            self.count(tag, Counter::Retries, 1);
        }
        is_retried
    }

    /// Copies the engine-side fields of a request from another ledger. Arrival, tokens and end remain as the client
    /// saw them.
    pub(crate) fn adopt(&mut self, tag: u64, engines: &RequestRecord) {
        let record = &mut self.records[tag as usize];
        let seen = record.clone();
        *record = RequestRecord {
            cached_tokens: engines.cached_tokens,
            queued_ns: engines.queued_ns.max(seen.arrival_ns),
            scheduled_ns: engines.scheduled_ns,
            prefill_end_ns: engines.prefill_end_ns,
            transfer_end_ns: engines.transfer_end_ns,
            prefill_worker: engines.prefill_worker,
            decode_worker: engines.decode_worker,
            preemptions: seen.preemptions + engines.preemptions,
            detail: RequestDetail { second_token_ns: seen.detail.second_token_ns, ..engines.detail },
            ..seen
        };
    }

    /// Counts a prompt whose KV stays although its client has left.
    pub(crate) fn abandon(&mut self, tag: u64) {
        self.count(tag, Counter::AbandonedPrompts, 1);
    }

    /// Ends a request whose client cancelled at `left_ns`.
    pub(crate) fn end_abandoned(&mut self, tag: u64, outcome: Outcome, left_ns: u64, now_ns: u64) {
        self.end(tag, outcome, left_ns);
        self.last_end_ns = self.last_end_ns.max(now_ns);
    }

    pub(crate) fn end(&mut self, tag: u64, outcome: Outcome, now_ns: u64) {
        let record = &mut self.records[tag as usize];
        assert_eq!(record.outcome, Outcome::Unfinished, "request {tag} ended twice");
        record.outcome = outcome;
        record.apply_client_overheads(&self.overheads);
        record.end_ns = Some(now_ns);
        self.last_end_ns = self.last_end_ns.max(now_ns);
        self.ended += 1;
        let metrics = &mut self.metrics[record.workload as usize];
        metrics.add(Counter::Preemptions, u64::from(record.preemptions));
        match outcome {
            Outcome::Completed => {
                self.tally.completed(record);
                metrics.add(Counter::Completed, 1);
                sample_completed(record, metrics);
            }
            Outcome::Rejected(_) => metrics.add(Counter::Rejected, 1),
            Outcome::Shed => metrics.add(Counter::Shed, 1),
            Outcome::GivenUp(GiveUp::Cancelled) => metrics.add(Counter::Cancelled, 1),
            Outcome::GivenUp(_) => metrics.add(Counter::Timeouts, 1),
            Outcome::Failed(_) | Outcome::Unfinished => metrics.add(Counter::Failed, 1),
        }
    }

    /// Returns the records, unpacked and packed, and the summarised samples by workload, steps last.
    pub(crate) fn close(mut self) -> (Vec<RequestRecord>, PackedRecords, Summarised) {
        self.records.open_mut().iter_mut().for_each(|record| reach_unfinished(record, &self.overheads));
        self.step_metrics.add(Counter::Steps, self.steps - self.unmeasured.1);
        self.metrics.push(self.step_metrics);
        let (records, packed) = self.records.close(self.unmeasured.0);
        (records, packed, MetricSet::summarise(self.metrics))
    }

    fn count(&mut self, tag: u64, counter: Counter, amount: u64) {
        let workload = self.records[tag as usize].workload;
        self.metrics[workload as usize].add(counter, amount);
    }
}

/// Converts the times of an unfinished request to its client's times.
fn reach_unfinished(record: &mut RequestRecord, overheads: &Overheads) {
    if record.outcome == Outcome::Unfinished {
        record.apply_client_overheads(overheads);
    }
}

fn sample_completed(record: &RequestRecord, metrics: &mut MetricSet) {
    let arrival_ns = record.arrival_ns;
    if let (Some(first_ns), Some(last_ns)) = (record.first_token_ns, record.last_token_ns) {
        metrics.sample(Trend::Ttft, first_ns - arrival_ns);
        metrics.sample(Trend::E2e, last_ns - arrival_ns);
        if record.output_tokens > 1 {
            metrics.sample(Trend::Tpot, (last_ns - first_ns) / u64::from(record.output_tokens - 1));
        }
    }
    if let (Some(scheduled_ns), Some(prefill_end_ns)) = (record.scheduled_ns, record.prefill_end_ns) {
        metrics.sample(Trend::Queue, scheduled_ns - record.queued_ns);
        metrics.sample(Trend::Prefill, prefill_end_ns - scheduled_ns);
        if let Some(transfer_end_ns) = record.transfer_end_ns {
            metrics.sample(Trend::Transfer, transfer_end_ns - prefill_end_ns);
        }
    }
    metrics.add(Counter::PromptTokens, u64::from(record.prompt_tokens));
    metrics.add(Counter::CachedTokens, u64::from(record.cached_tokens));
    metrics.add(Counter::OutputTokens, u64::from(record.output_tokens));
    if let Some(load_ns) = record.detail.load_ns {
        metrics.sample(Trend::KvLoad, load_ns);
        metrics.add(Counter::HostCachedTokens, u64::from(record.detail.host_cached_tokens));
        metrics.add(Counter::DiskCachedTokens, u64::from(record.detail.disk_cached_tokens));
    }
}

/// Facts about steps of engines that do not run in virtual time.
#[derive(Clone, Debug, Default)]
pub struct StepFacts {
    /// Duration of each step, in nanoseconds.
    pub durations_ns: Samples,
    /// Number of requests in each step.
    pub batches: Samples,
    /// Number of engine stalls.
    pub stalls: u64,
}

impl Ledger {
    /// Adds the steps of engines whose run this ledger has not followed.
    pub(crate) fn take_steps(&mut self, steps: StepFacts) {
        let StepFacts { durations_ns, batches, stalls } = steps;
        self.step_metrics.take(Trend::StepTime, durations_ns);
        self.step_metrics.take(Trend::BatchSize, batches);
        self.step_metrics.add(Counter::Stalls, stalls);
    }
}

/// Totals of the requests that engines serve, and of their outputs so far. Requests that are answered as recorded
/// do not count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) arrived_requests: u64,
    pub(crate) arrived_prompt_tokens: u64,
    pub(crate) arrived_output_tokens: u64,
    pub(crate) completed_requests: u64,
    pub(crate) queue_count: u64,
    pub(crate) queue_sum_ns: u128,
    pub(crate) slo_requests: u64,
    pub(crate) slo_met_requests: u64,
    pub(crate) ttft_count: u64,
    pub(crate) ttft_sum_ns: u128,
    pub(crate) token_gap_count: u64,
    pub(crate) token_gap_sum_ns: u128,
}

impl Tally {
    pub(super) fn arrived(&mut self, record: &RequestRecord) {
        self.arrived_requests += 1;
        self.arrived_prompt_tokens += u64::from(record.prompt_tokens);
        self.arrived_output_tokens += u64::from(record.max_tokens);
    }

    pub(super) fn completed(&mut self, record: &RequestRecord) {
        if record.prefill_worker.is_none() {
            return;
        }
        self.completed_requests += 1;
        if let Some(scheduled_ns) = record.scheduled_ns {
            self.queue_count += 1;
            self.queue_sum_ns += u128::from(scheduled_ns - record.queued_ns);
        }
    }

    pub(super) fn add_first_token(&mut self, after_ns: u64) {
        self.ttft_count += 1;
        self.ttft_sum_ns += u128::from(after_ns);
    }

    pub(super) fn add_gaps(&mut self, gap_ns: u64, times: u64) {
        self.add_gap_sum(gap_ns, 1, times);
    }

    /// Adds `gaps` gaps, which sum up to `sum_ns`, for each of `requests` requests.
    pub(super) fn add_gap_sum(&mut self, sum_ns: u64, gaps: u64, requests: u64) {
        self.token_gap_count += gaps * requests;
        self.token_gap_sum_ns += u128::from(sum_ns) * u128::from(requests);
    }
}

/// The maximum number of outputs whose times are kept, over all requests of a run: 256 MiB.
const MAX_OUTPUTS: usize = 16 << 20;

/// Data of a request that is kept for a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptRequest {
    /// Time and number of tokens of each output of the last attempt. Incomplete in runs with more than 16 million
    /// outputs.
    pub outputs: Vec<(u64, u32)>,
    /// The hashes of the prompt, if the run knows its tokens.
    pub prompt: Option<PromptChain>,
}

#[derive(Debug, Default)]
pub(super) struct Kept {
    requests: Vec<KeptRequest>,
    outputs: usize,
}

impl Kept {
    pub(super) fn arrive(&mut self) {
        self.requests.push(KeptRequest::default());
    }

    pub(super) fn enter_prompt(&mut self, tag: u64, prompt: PromptChain) {
        self.requests[tag as usize].prompt = Some(prompt);
    }

    pub(super) fn emit(&mut self, tag: u64, num_tokens: u32, at_ns: u64) {
        if num_tokens > 0 && self.outputs < MAX_OUTPUTS {
            self.requests[tag as usize].outputs.push((at_ns, num_tokens));
            self.outputs += 1;
        }
    }

    /// Forgets the outputs of a request that starts again.
    pub(super) fn lose(&mut self, tag: u64) {
        self.requests[tag as usize].outputs.clear();
    }

    pub(super) fn into_requests(self) -> Vec<KeptRequest> {
        self.requests
    }
}
