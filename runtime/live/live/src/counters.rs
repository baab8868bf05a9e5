//! Counters of an engine, for metrics and the control plane.

use vcr_wire::FinishReason;

/// The unit of a counter, which is appended to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountUnit {
    /// A plain number.
    None,
    /// Seconds; the counter itself is in nanoseconds.
    Seconds,
    /// Bytes.
    Bytes,
}

/// A counter of [`Counters`] with its public name.
#[derive(Clone, Copy, Debug)]
pub struct CounterInfo {
    /// Name in metrics and on the control plane, without the unit.
    pub name: &'static str,
    /// The unit.
    pub unit: CountUnit,
    /// The help text, a sentence.
    pub help: &'static str,
    /// Reads the value.
    pub amount: fn(&Counters) -> u64,
}

impl CounterInfo {
    /// The name with the unit, if it has one.
    #[must_use]
    pub fn full_name(&self) -> String {
        match self.unit {
            CountUnit::None => self.name.to_owned(),
            CountUnit::Seconds => format!("{}_seconds", self.name),
            CountUnit::Bytes => format!("{}_bytes", self.name),
        }
    }
}

macro_rules! counters {
    ($($field:ident: $name:literal, $unit:ident, $help:literal;)*) => {
        /// The counters of one engine.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $(#[doc = $help] pub $field: u64,)*
            /// Requests that ended, by [`FinishReason`].
            pub finished: [u64; 5],
            /// Maximum lateness of a step, in nanoseconds.
            pub max_late_ns: u64,
        }

        impl Counters {
            /// All counters in a fixed order, except `finished`, which is counted by reason, and `max_late_ns`, a
            /// maximum.
            pub const COUNTS: &[CounterInfo] = &[$(CounterInfo {
                name: $name,
                unit: CountUnit::$unit,
                help: $help,
                amount: |counters| counters.$field,
            },)*];

            /// Adds the counters, and takes the larger of the two maxima.
            #[must_use]
            pub fn plus(&self, other: &Self) -> Self {
                Self {
                    $($field: self.$field + other.$field,)*
                    finished: std::array::from_fn(|index| self.finished[index] + other.finished[index]),
                    max_late_ns: self.max_late_ns.max(other.max_late_ns),
                }
            }
        }
    };
}

counters! {
    requests: "requests", None, "Accepted requests.";
    aborted: "requests_aborted", None, "Requests that their frontend aborted.";
    refused: "requests_refused", None, "Requests that were refused.";
    malformed: "messages_malformed", None, "Messages that could not be decoded or were invalid.";
    prompt_tokens: "prompt_tokens", None, "Prompt tokens of accepted requests.";
    generation_tokens: "generation_tokens", None, "Tokens generated.";
    steps: "steps", None, "Steps applied.";
    busy_ns: "busy", Seconds, "Time of applied steps, in seconds.";
    late_steps: "steps_late", None, "Steps applied more than a millisecond after their end.";
    preemptions: "preemptions", None, "Preemptions.";
    prefix_queries: "prefix_cache_queries", None, "Prompt tokens looked up in the prefix cache.";
    prefix_hits: "prefix_cache_hits", None, "Prompt tokens found in the prefix cache.";
    draft_tokens: "draft_tokens", None, "Draft tokens verified.";
    accepted_tokens: "draft_tokens_accepted", None, "Draft tokens accepted.";
    utility_calls: "utility_calls", None, "Utility calls answered.";
    utility_failures: "utility_failures", None, "Utility calls answered with a failure.";
    kv_events: "kv_events", None, "KV events published.";
    kv_events_lost: "kv_events_lost", None, "KV events lost on purpose.";
    messages: "messages_sent", None, "Messages sent to frontends.";
    message_bytes: "sent", Bytes, "Bytes of sent messages; outputs of steps within a process have none.";
    faults: "faults_injected", None, "Faults that happened.";
    frontends_lost: "frontends_lost", None, "Frontends that were lost.";
    full: "limit_reached", None, "How often the limit of requests was reached.";
    leases_expired: "leases_expired", None, "Leases of KV blocks that ended before a decode engine came.";
    remote_kv_refused: "remote_kv_refused", None, "Requests whose prefill engine is not an allowed peer (--allow-remote-kv).";
    kv_loads: "kv_loads", None, "Transfers of KV to this engine.";
    kv_loads_failed: "kv_loads_failed", None, "Transfers of KV to this engine that failed.";
    kv_loads_recomputed: "kv_loads_recomputed", None, "Requests whose prompt was computed here because its KV did not arrive.";
    kv_notices_stray: "kv_notices_stray", None, "Notices of decode engines for prompts that are not held: duplicates, or late ones.";
    kv_rooms: "kv_rooms", None, "Rooms in which requests waited for a prefill engine (--kv-rendezvous).";
    kv_rooms_missed: "kv_rooms_missed", None, "Rooms in which the prefill engine did not come.";
    kv_rooms_waited_ns: "kv_rooms_waited", Seconds, "Time in rooms, in seconds.";
    played_back: "requests_played_back", None, "Requests that were answered from a capture.";
    unmatched: "requests_unmatched", None, "Requests without a record in the capture.";
    routed: "requests_routed", None, "Requests that the router gave to this engine.";
    routed_away: "requests_routed_away", None, "Requests that the router gave to another engine.";
    shed: "requests_shed", None, "Requests that the router refused.";
}

impl Counters {
    /// Requests that ended, by the reason's name.
    #[must_use]
    pub fn finished_by_reason(&self) -> [(&'static str, u64); 5] {
        FinishReason::ALL.map(|reason| (reason.name(), self.finished[reason as usize]))
    }
}
