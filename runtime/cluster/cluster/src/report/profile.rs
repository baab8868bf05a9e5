//! Lanes of plays, as they are reported.

use serde::Serialize;

use crate::ledger::record::ns_to_ms;
use crate::traffic::ProfileCounts;

/// Counts of a profile. Its warm-up is in no other number of the report; times count from the
/// beginning of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProfileReport {
    /// Virtual time at which the profile began, after the warm-up.
    #[serde(skip)]
    pub began_ns: u64,
    /// The same in milliseconds.
    pub began_ms: f64,
    /// Requests of the warm-up.
    pub warmup_requests: u64,
    /// Plays that were started.
    pub plays_started: u64,
    /// Plays of which all requests have ended.
    pub plays_ended: u64,
    /// Number of times that a wait was cut short.
    pub idle_cuts: u64,
    /// Time that was cut, over all of them.
    pub idle_cut_ms: f64,
}

impl ProfileReport {
    pub(super) fn of(counts: ProfileCounts) -> Self {
        Self {
            began_ns: counts.began_ns,
            began_ms: ns_to_ms(counts.began_ns),
            warmup_requests: counts.warmup_requests,
            plays_started: counts.plays_started,
            plays_ended: counts.plays_ended,
            idle_cuts: counts.idle_cuts,
            idle_cut_ms: ns_to_ms(counts.idle_cut_ns),
        }
    }
}
