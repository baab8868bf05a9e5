//! The record of every request.

use vcr_core::plan::TierLoad;

pub use super::outcome::{FailReason, GiveUp, Outcome};
use crate::config::Overheads;

/// One request from arrival to end. Times are virtual nanoseconds; those of a
/// request that was tried again are of its last attempt, but for the arrival.
/// Arrival, tokens and end are as the client sees them, all between as the engines do.
#[derive(Clone, Debug, Default)]
pub struct RequestRecord {
    /// Index of the workload in the run.
    pub workload: u32,
    /// Number of the session in the workload.
    pub session: u64,
    /// Position in the session, from 0.
    pub turn: u32,
    /// Prompt length.
    pub prompt_tokens: u32,
    /// Output tokens asked for.
    pub max_tokens: u32,
    /// Output tokens emitted.
    pub output_tokens: u32,
    /// Prompt tokens found in the (prefill) engine's prefix cache, or in its tiers.
    pub cached_tokens: u32,
    /// When its client sent it.
    pub arrival_ns: u64,
    /// When it reached the queue in front of the engines.
    pub queued_ns: u64,
    /// Start of the first step with it.
    pub scheduled_ns: Option<u64>,
    /// End of the computation of its prompt.
    pub prefill_end_ns: Option<u64>,
    /// Arrival of its KV at the decode engine.
    pub transfer_end_ns: Option<u64>,
    /// First output token.
    pub first_token_ns: Option<u64>,
    /// Latest output token.
    pub last_token_ns: Option<u64>,
    /// When it ended, completed or not.
    pub end_ns: Option<u64>,
    /// Engine that computed the prompt, as an index over all engines and their ranks.
    pub prefill_worker: Option<u32>,
    /// Engine that generated the output, if another.
    pub decode_worker: Option<u32>,
    /// Number of preemptions.
    pub preemptions: u32,
    /// Number of retries after a fault.
    pub retries: u32,
    /// Attempts of its client before this one.
    pub attempt: u32,
    /// When its client gives up for good, however often it tries again.
    pub deadline_ns: Option<u64>,
    /// Output tokens that it got in vain, in all its attempts on engines.
    pub wasted_tokens: u32,
    /// Prompt tokens that were computed for a client that gave up.
    pub wasted_prompt_tokens: u32,
    /// Number of its class in the workload.
    pub class: u32,
    /// Its LoRA adapter.
    pub adapter: Option<u32>,
    /// How it ended.
    pub outcome: Outcome,
    /// Further details.
    pub detail: RequestDetail,
}

/// Details of a request that explain its latency; of its last attempt, but for the routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestDetail {
    /// Second output token.
    pub second_token_ns: Option<u64>,
    /// Maximum prompt tokens found in the (prefill) engine's prefix cache, or in its
    /// tiers, at any of its admissions; of a decode engine's at those after preemptions alone.
    pub most_cached_tokens: u32,
    /// Of the tokens cached at its first admission, those loaded from the host.
    pub host_cached_tokens: u32,
    /// Of the tokens cached at its first admission, those loaded from the disk.
    pub disk_cached_tokens: u32,
    /// Since when it has waited for KV from the tiers, if it does.
    pub load_since_ns: Option<u64>,
    /// Time that it waited for KV from the tiers before its first step.
    pub first_load_ns: Option<u64>,
    /// Time that it waited for KV from the tiers in all, preempted or not.
    pub load_ns: Option<u64>,
    /// Since when it has been preempted, if it is.
    pub preempted_since_ns: Option<u64>,
    /// Time that it was preempted before.
    pub preempted_ns: u64,
    /// When the decode engine had reserved its blocks.
    pub transfer_start_ns: Option<u64>,
    /// Start of the first step with it on the decode engine.
    pub decode_scheduled_ns: Option<u64>,
    /// Maximum prompt tokens found in the decode engine's prefix cache, for the handoff and after preemptions.
    pub decode_cached_tokens: Option<u32>,
    /// Prompt tokens that the router of each pool took to be cached where it sent
    /// it; none where the router asks for no such thing.
    pub route_overlap_tokens: [Option<u32>; 2],
}

/// When output tokens came: the first and second of them, and the last. Any in
/// between do not show in a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenTimes {
    pub(super) first_ns: u64,
    pub(super) second_ns: u64,
    pub(super) last_ns: u64,
}

/// Changes, which the ledger makes.
impl RequestRecord {
    /// The record of a request that arrives.
    pub(crate) fn new(workload: u32, session: u64, turn: u32, lengths: [u32; 2], times_ns: [u64; 2]) -> Self {
        let [prompt_tokens, max_tokens] = lengths;
        let [arrival_ns, queued_ns] = times_ns;
        Self { workload, session, turn, prompt_tokens, max_tokens, arrival_ns, queued_ns, ..Self::default() }
    }

    /// Takes everything back that is of one attempt only.
    pub(super) fn reset(&mut self) {
        let Self {
            workload: _,
            session: _,
            turn: _,
            prompt_tokens: _,
            max_tokens: _,
            arrival_ns: _,
            queued_ns: _,
            end_ns: _,
            preemptions: _,
            retries: _,
            attempt: _,
            deadline_ns: _,
            wasted_tokens: _,
            wasted_prompt_tokens: _,
            class: _,
            adapter: _,
            outcome: _,
            // Of the latest attempt that got so far.
            cached_tokens: _,
            prefill_worker: _,
            output_tokens,
            scheduled_ns,
            prefill_end_ns,
            transfer_end_ns,
            first_token_ns,
            last_token_ns,
            decode_worker,
            detail,
        } = self;
        *output_tokens = 0;
        *decode_worker = None;
        for time_ns in [scheduled_ns, prefill_end_ns, transfer_end_ns, first_token_ns, last_token_ns] {
            *time_ns = None;
        }
        *detail = RequestDetail { route_overlap_tokens: detail.route_overlap_tokens, ..RequestDetail::default() };
    }

    /// Output tokens come, or none at the end of a prompt without output.
    #[inline]
    pub(super) fn give_tokens(&mut self, num_tokens: u32, times: TokenTimes) {
        self.prefill_end_ns.get_or_insert(times.first_ns);
        if num_tokens == 0 {
            return;
        }
        self.first_token_ns.get_or_insert(times.first_ns);
        match self.output_tokens {
            0 if num_tokens > 1 => self.detail.second_token_ns = Some(times.second_ns),
            1 => self.detail.second_token_ns = Some(times.first_ns),
            _ => {}
        }
        self.add_tokens(num_tokens, times.last_ns);
    }

    /// Tokens behind the first two have come, the latest at `last_ns`.
    #[inline]
    pub(super) fn add_tokens(&mut self, num_tokens: u32, last_ns: u64) {
        self.output_tokens += num_tokens;
        self.last_token_ns = Some(last_ns);
    }

    /// Turns the times of its tokens, which so far are those of the engine, into those of
    /// its client. Called once, at the end.
    pub(super) fn reach_client(&mut self, overheads: &Overheads) {
        // A request that is answered as recorded has no engine, and its client's times.
        if self.prefill_worker.is_none() || *overheads == Overheads::default() {
            return;
        }
        let sent = |at_ns: u64| at_ns.saturating_add(overheads.output_ns);
        self.detail.second_token_ns = self.detail.second_token_ns.map(sent);
        let second_ns = self.detail.second_token_ns.unwrap_or(u64::MAX);
        let first = |at_ns: u64| sent(at_ns).saturating_add(overheads.first_token_ns).min(second_ns);
        self.first_token_ns = self.first_token_ns.map(first);
        self.last_token_ns = if self.output_tokens == 1 { self.first_token_ns } else { self.last_token_ns.map(sent) };
    }

    pub(super) fn admit(&mut self, now_ns: u64, num_computed_tokens: u32) {
        if self.scheduled_ns.is_none() {
            self.scheduled_ns = Some(now_ns);
            self.cached_tokens = num_computed_tokens;
        }
        let detail = &mut self.detail;
        if self.decode_worker.is_none() {
            detail.most_cached_tokens = detail.most_cached_tokens.max(num_computed_tokens);
        } else {
            detail.decode_scheduled_ns.get_or_insert(now_ns);
            // A prompt whose KV has come is not looked up, but after a preemption.
            if detail.preempted_since_ns.is_some() {
                detail.most_cached_tokens = detail.most_cached_tokens.max(num_computed_tokens);
                detail.decode_cached_tokens = Some(detail.decode_cached_tokens.unwrap_or(0).max(num_computed_tokens));
            }
        }
        if let Some(since_ns) = detail.preempted_since_ns.take() {
            detail.preempted_ns += now_ns - since_ns;
        }
    }

    pub(super) fn start_load(&mut self, now_ns: u64, load: &TierLoad) {
        let detail = &mut self.detail;
        detail.load_since_ns = Some(now_ns);
        // Hits of the first admission count, as in `cached_tokens`.
        if self.scheduled_ns.is_none() {
            detail.host_cached_tokens = load.host_tokens;
            detail.disk_cached_tokens = load.disk_tokens;
        }
    }

    pub(super) fn end_load(&mut self, now_ns: u64) {
        let detail = &mut self.detail;
        let waited_ns = detail.load_since_ns.take().map_or(0, |since_ns| now_ns - since_ns);
        *detail.load_ns.get_or_insert(0) += waited_ns;
        if self.scheduled_ns.is_none() {
            detail.first_load_ns = Some(waited_ns);
        }
    }
}

impl RequestRecord {
    /// Number of words of [`RequestRecord::words`].
    const WORDS: usize = 31;

    /// All of it in numbers, for a fingerprint; reasons are hashed as text.
    pub(crate) fn words(&self) -> [u64; Self::WORDS] {
        let maybe = |value: Option<u64>| value.map_or(0, |value| value.wrapping_add(1));
        let maybe_small = |value: Option<u32>| maybe(value.map(u64::from));
        // Every field is named here, so that none escapes the fingerprint.
        let Self {
            workload,
            session,
            turn,
            prompt_tokens,
            max_tokens,
            output_tokens,
            cached_tokens,
            arrival_ns,
            // It follows from the arrival and the prompt.
            queued_ns: _,
            scheduled_ns,
            prefill_end_ns,
            transfer_end_ns,
            first_token_ns,
            last_token_ns,
            end_ns,
            prefill_worker,
            decode_worker,
            preemptions,
            retries,
            // Of requests that have them; see `further_words`.
            attempt: _,
            class: _,
            adapter: _,
            // They follow from the configuration, and are in the metrics.
            deadline_ns: _,
            wasted_tokens: _,
            wasted_prompt_tokens: _,
            outcome,
            detail,
        } = *self;
        let RequestDetail {
            second_token_ns,
            most_cached_tokens,
            host_cached_tokens,
            disk_cached_tokens,
            load_since_ns: _,
            first_load_ns,
            load_ns,
            preempted_since_ns: _,
            preempted_ns,
            transfer_start_ns,
            decode_scheduled_ns,
            decode_cached_tokens,
            route_overlap_tokens: [prefill_overlap_tokens, decode_overlap_tokens],
        } = detail;
        let status = match outcome {
            Outcome::Unfinished => 0,
            Outcome::Completed => 1,
            Outcome::Rejected(_) => 2,
            Outcome::Shed => 3,
            Outcome::Failed(_) => 4,
            Outcome::GivenUp(reason) => 5 + reason as u64,
        };
        [
            u64::from(workload),
            session,
            u64::from(turn),
            u64::from(prompt_tokens),
            u64::from(max_tokens),
            u64::from(output_tokens),
            u64::from(cached_tokens),
            arrival_ns,
            maybe(scheduled_ns),
            maybe(prefill_end_ns),
            maybe(transfer_end_ns),
            maybe(first_token_ns),
            maybe(last_token_ns),
            maybe(end_ns),
            maybe_small(prefill_worker),
            maybe_small(decode_worker),
            u64::from(preemptions),
            u64::from(retries),
            status,
            maybe(second_token_ns),
            u64::from(most_cached_tokens),
            u64::from(host_cached_tokens),
            u64::from(disk_cached_tokens),
            maybe(first_load_ns),
            maybe(load_ns),
            preempted_ns,
            maybe(transfer_start_ns),
            maybe(decode_scheduled_ns),
            maybe_small(decode_cached_tokens),
            maybe_small(prefill_overlap_tokens),
            maybe_small(decode_overlap_tokens),
        ]
    }
}

impl RequestRecord {
    /// The rest of it in numbers, for the fingerprints of runs that have such requests.
    pub(crate) fn further_words(&self) -> Option<[u64; 3]> {
        let adapter = self.adapter.map_or(0, |adapter| u64::from(adapter) + 1);
        let words = [u64::from(self.attempt), u64::from(self.class), adapter];
        (words != [0; 3]).then_some(words)
    }
}

/// Nanoseconds as milliseconds, for people and reports.
#[must_use]
pub fn ns_to_ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
