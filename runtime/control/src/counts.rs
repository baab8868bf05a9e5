//! Counts of engines, under their public names.

use prometheus_client::registry::Unit;
use vcr_live::Counters;

/// An amount that only grows.
pub(crate) struct Count {
    /// Its name, without the unit.
    pub(crate) name: &'static str,
    pub(crate) unit: Option<Unit>,
    pub(crate) help: &'static str,
    pub(crate) amount: Amount,
}

/// The value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    Whole(u64),
    Seconds(f64),
}

impl Count {
    /// Its name with the unit, if it has one.
    pub(crate) fn full_name(&self) -> String {
        match &self.unit {
            Some(unit) => format!("{}_{}", self.name, unit.as_str()),
            None => self.name.to_owned(),
        }
    }
}

/// Seconds of nanoseconds.
pub(crate) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// All counts of an engine, always in the same order. Requests that ended are
/// counted by their reason, which makes them no single count, and a maximum is
/// none.
pub(crate) fn counts(counters: &Counters) -> [Count; 37] {
    // All by name, so that a new one is not forgotten here.
    let Counters {
        requests,
        finished: _,
        aborted,
        refused,
        malformed,
        prompt_tokens,
        generation_tokens,
        steps,
        busy_ns,
        late_steps,
        max_late_ns: _,
        preemptions,
        prefix_queries,
        prefix_hits,
        draft_tokens,
        accepted_tokens,
        utility_calls,
        utility_failures,
        kv_events,
        kv_events_lost,
        messages,
        message_bytes,
        faults,
        frontends_lost,
        full,
        leases_expired,
        remote_kv_refused,
        kv_loads,
        kv_loads_failed,
        kv_loads_recomputed,
        kv_notices_stray,
        kv_rooms,
        kv_rooms_missed,
        kv_rooms_waited_ns,
        played_back,
        unmatched,
        routed,
        routed_away,
        shed,
    } = *counters;
    let whole = |name, help, amount| Count { name, unit: None, help, amount: Amount::Whole(amount) };
    [
        whole("requests", "Requests taken.", requests),
        whole("requests_aborted", "Requests that their frontend aborted.", aborted),
        whole("requests_refused", "Requests that were refused.", refused),
        whole("messages_malformed", "Messages that could not be decoded or were invalid.", malformed),
        whole("prompt_tokens", "Prompt tokens of requests taken.", prompt_tokens),
        whole("generation_tokens", "Tokens generated.", generation_tokens),
        whole("steps", "Steps applied.", steps),
        Count {
            name: "busy",
            unit: Some(Unit::Seconds),
            help: "Time of those steps, in seconds.",
            amount: Amount::Seconds(seconds(busy_ns)),
        },
        whole("steps_late", "Steps applied more than a millisecond after their end.", late_steps),
        whole("preemptions", "Preemptions.", preemptions),
        whole("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", prefix_queries),
        whole("prefix_cache_hits", "Prompt tokens found in the prefix cache.", prefix_hits),
        whole("draft_tokens", "Draft tokens verified.", draft_tokens),
        whole("draft_tokens_accepted", "Draft tokens accepted.", accepted_tokens),
        whole("utility_calls", "Utility calls answered.", utility_calls),
        whole("utility_failures", "Utility calls answered with a failure.", utility_failures),
        whole("kv_events", "KV events published.", kv_events),
        whole("kv_events_lost", "KV events lost on purpose.", kv_events_lost),
        whole("messages_sent", "Messages sent to frontends.", messages),
        Count {
            name: "sent",
            unit: Some(Unit::Bytes),
            help: "Bytes of those messages; outputs of steps have none on their way within a process.",
            amount: Amount::Whole(message_bytes),
        },
        whole("faults_injected", "Faults that happened.", faults),
        whole("frontends_lost", "Frontends that were lost.", frontends_lost),
        whole("limit_reached", "How often the limit of requests was reached.", full),
        whole("leases_expired", "Leases of KV blocks that ended before a decode engine came.", leases_expired),
        whole(
            "remote_kv_refused",
            "Requests whose prefill engine is not an allowed peer (--allow-remote-kv).",
            remote_kv_refused,
        ),
        whole("kv_loads", "Transfers of KV to this engine.", kv_loads),
        whole("kv_loads_failed", "Transfers of KV to this engine that failed.", kv_loads_failed),
        whole(
            "kv_loads_recomputed",
            "Requests whose prompt was computed here because its KV did not arrive.",
            kv_loads_recomputed,
        ),
        whole(
            "kv_notices_stray",
            "Notices of decode engines for prompts that are not held: duplicates, or late ones.",
            kv_notices_stray,
        ),
        whole("kv_rooms", "Rooms in which requests waited for a prefill engine (--kv-rendezvous).", kv_rooms),
        whole("kv_rooms_missed", "Rooms in which they missed it.", kv_rooms_missed),
        Count {
            name: "kv_rooms_waited",
            unit: Some(Unit::Seconds),
            help: "Time in rooms, in seconds.",
            amount: Amount::Seconds(seconds(kv_rooms_waited_ns)),
        },
        whole("requests_played_back", "Requests that were answered from a capture.", played_back),
        whole("requests_unmatched", "Requests that were not in the capture.", unmatched),
        whole("requests_routed", "Requests that the router gave to this engine.", routed),
        whole("requests_routed_away", "Requests that the router gave to another engine.", routed_away),
        whole("requests_shed", "Requests that the router refused.", shed),
    ]
}
