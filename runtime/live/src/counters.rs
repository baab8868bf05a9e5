//! Counts of an engine, for metrics and the control plane.

use vcr_wire::FinishReason;

/// Totals of an engine since its process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests taken.
    pub requests: u64,
    /// Requests that ended, by [`FinishReason`].
    pub finished: [u64; 5],
    /// Requests that their frontend aborted.
    pub aborted: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Messages that could not be decoded or were invalid.
    pub malformed: u64,
    /// Prompt tokens of requests taken.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Steps applied.
    pub steps: u64,
    /// Nanoseconds of those steps.
    pub busy_ns: u64,
    /// Steps applied more than a millisecond late.
    pub late_steps: u64,
    /// Nanoseconds by which the latest one was late.
    pub max_late_ns: u64,
    pub preemptions: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens found there.
    pub prefix_hits: u64,
    /// Drafts verified.
    pub draft_tokens: u64,
    /// Drafts accepted.
    pub accepted_tokens: u64,
    /// Utility calls answered.
    pub utility_calls: u64,
    /// Those of them that failed.
    pub utility_failures: u64,
    /// KV events published.
    pub kv_events: u64,
    /// KV events lost on purpose.
    pub kv_events_lost: u64,
    /// Messages sent to frontends.
    pub messages: u64,
    /// Their bytes.
    pub message_bytes: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Frontends that were lost.
    pub frontends_lost: u64,
    /// How often the limit of requests was reached.
    pub full: u64,
    /// Leases of KV blocks that ended before a decode engine came.
    pub leases_expired: u64,
    /// Requests whose prefill engine is not an allowed peer.
    pub remote_kv_refused: u64,
    /// Transfers of KV to this engine.
    pub kv_loads: u64,
    /// Those of them that failed.
    pub kv_loads_failed: u64,
    /// Requests whose prompt was computed here because of that.
    pub kv_loads_recomputed: u64,
    /// Notices of decode engines for prompts that are not held: duplicates, or late ones.
    pub kv_notices_stray: u64,
    /// Rooms in which requests of this engine waited for a prefill engine.
    pub kv_rooms: u64,
    /// Those of them in which they missed it.
    pub kv_rooms_missed: u64,
    /// Nanoseconds that they waited.
    pub kv_rooms_waited_ns: u64,
    /// Requests that were answered from a capture.
    pub played_back: u64,
    /// Requests that were not in it.
    pub unmatched: u64,
    /// Requests that the router gave to this engine, its own among them.
    pub routed: u64,
    /// Requests of its frontend that the router gave to other engines.
    pub routed_away: u64,
    /// Requests of its frontend that the router refused; also among those
    /// refused.
    pub shed: u64,
}

impl Counters {
    /// Requests that ended, by the reason's name.
    #[must_use]
    pub fn finished_by_reason(&self) -> [(&'static str, u64); 5] {
        FinishReason::ALL.map(|reason| (reason.name(), self.finished[reason as usize]))
    }

    /// The sum of both; of maxima the larger one.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            finished: std::array::from_fn(|index| self.finished[index] + other.finished[index]),
            max_late_ns: self.max_late_ns.max(other.max_late_ns),
            requests: self.requests + other.requests,
            aborted: self.aborted + other.aborted,
            refused: self.refused + other.refused,
            malformed: self.malformed + other.malformed,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            generation_tokens: self.generation_tokens + other.generation_tokens,
            steps: self.steps + other.steps,
            busy_ns: self.busy_ns + other.busy_ns,
            late_steps: self.late_steps + other.late_steps,
            preemptions: self.preemptions + other.preemptions,
            prefix_queries: self.prefix_queries + other.prefix_queries,
            prefix_hits: self.prefix_hits + other.prefix_hits,
            draft_tokens: self.draft_tokens + other.draft_tokens,
            accepted_tokens: self.accepted_tokens + other.accepted_tokens,
            utility_calls: self.utility_calls + other.utility_calls,
            utility_failures: self.utility_failures + other.utility_failures,
            kv_events: self.kv_events + other.kv_events,
            kv_events_lost: self.kv_events_lost + other.kv_events_lost,
            messages: self.messages + other.messages,
            message_bytes: self.message_bytes + other.message_bytes,
            faults: self.faults + other.faults,
            frontends_lost: self.frontends_lost + other.frontends_lost,
            full: self.full + other.full,
            leases_expired: self.leases_expired + other.leases_expired,
            remote_kv_refused: self.remote_kv_refused + other.remote_kv_refused,
            kv_loads: self.kv_loads + other.kv_loads,
            kv_loads_failed: self.kv_loads_failed + other.kv_loads_failed,
            kv_loads_recomputed: self.kv_loads_recomputed + other.kv_loads_recomputed,
            kv_notices_stray: self.kv_notices_stray + other.kv_notices_stray,
            kv_rooms: self.kv_rooms + other.kv_rooms,
            kv_rooms_missed: self.kv_rooms_missed + other.kv_rooms_missed,
            kv_rooms_waited_ns: self.kv_rooms_waited_ns + other.kv_rooms_waited_ns,
            played_back: self.played_back + other.played_back,
            unmatched: self.unmatched + other.unmatched,
            routed: self.routed + other.routed,
            routed_away: self.routed_away + other.routed_away,
            shed: self.shed + other.shed,
        }
    }
}
