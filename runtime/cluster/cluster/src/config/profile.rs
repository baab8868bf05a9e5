//! Profiles: plays of agents in lanes, for as long as is wanted.

/// How the plays of a trace are kept going. A play is a session, or sessions that wait for each
/// other; a lane has one at a time and takes the next of the trace when it ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfileConfig {
    /// Lanes.
    pub lanes: u32,
    /// Waits are divided by it; above 1 is faster.
    pub speedup: f64,
    /// The seed by which the first play of each lane starts somewhere between a quarter and three
    /// quarters of its recorded time; none if they start at their beginning.
    pub snapshot_seed: Option<u64>,
    /// Requests of each lane that warm the caches before the profile begins, besides those that
    /// fill them with what snapshots had sent before. They are not measured.
    pub warmup_requests: u32,
    /// Duration of the profile, for which plays follow on each other, the trace from its beginning
    /// again after its last; none if each play is played once.
    pub duration_ns: Option<u64>,
    /// Time after the profile for which requests in flight are waited for, and then cancelled.
    pub grace_ns: u64,
    /// The longest that a play may have nothing in flight. All that it waits for comes earlier by
    /// what is beyond.
    pub play_idle_cap_ns: Option<u64>,
    /// The longest that all plays may have nothing in flight.
    pub idle_cap_ns: Option<u64>,
}

impl ProfileConfig {
    /// Each play once, from its beginning, without warm-up.
    #[must_use]
    pub fn new(lanes: u32) -> Self {
        Self {
            lanes,
            speedup: 1.0,
            snapshot_seed: None,
            warmup_requests: 0,
            duration_ns: None,
            grace_ns: 0,
            play_idle_cap_ns: None,
            idle_cap_ns: None,
        }
    }
}
