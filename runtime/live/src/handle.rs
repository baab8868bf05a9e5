//! Engines from outside: what they are doing, and what they are told to do.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vcr_wire::{Line, Waker};

use crate::config::LatencyFactory;
use crate::faults::FaultRule;

/// What an engine is told to do while it serves.
#[derive(Clone)]
pub enum Command {
    /// Price steps by another model from now on.
    SetLatency {
        /// Makes the model.
        factory: LatencyFactory,
        /// What it is called in snapshots.
        name: String,
    },
    /// Divide all durations by this, which must be positive.
    SetTimeScale(f64),
    /// Add a fault.
    AddFault(FaultRule),
    /// End all faults.
    ClearFaults,
    /// Schedule nothing, or go on.
    SetPaused(bool),
    /// Drop the prefix cache, running requests included.
    ResetPrefixCache,
}

/// Where an engine stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineState {
    /// It has not said HELLO, or waits for the frontend's answer.
    #[default]
    Connecting,
    /// It serves.
    Serving,
    /// It stands still on purpose.
    Stalled,
    /// It has crashed on purpose and may come back.
    Crashed,
    /// It waits for the requests under way, and then stops.
    Draining,
    /// It has stopped.
    Stopped,
}

impl EngineState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Connecting, Self::Serving, Self::Stalled, Self::Crashed, Self::Draining, Self::Stopped];

    /// A word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Serving => "serving",
            Self::Stalled => "stalled",
            Self::Crashed => "crashed",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }
}

/// What an engine has done and is doing. Counts are totals since its process
/// started.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The engine's number.
    pub rank: u16,
    /// Where it stands.
    pub state: EngineState,
    /// The line of its frontend, once it is known.
    pub line: Option<Line>,
    /// Requests that compute or generate.
    pub num_running: usize,
    /// Requests that wait.
    pub num_waiting: usize,
    /// Whether it is paused, by a frontend or from outside.
    pub is_paused: bool,
    /// Whether it sleeps.
    pub is_sleeping: bool,
    /// Share of KV blocks in use.
    pub kv_cache_usage: f64,
    /// KV blocks, the null block included.
    pub num_gpu_blocks: u32,
    /// Finished prompts whose blocks a decode engine has not fetched.
    pub num_held_prompts: usize,
    /// What prices steps.
    pub latency: String,
    /// What durations are divided by.
    pub time_scale: f64,
    /// Faults in force, as they were written.
    pub faults: Vec<String>,
    /// What it counts.
    pub counters: Counters,
}

/// What an engine counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests taken.
    pub requests: u64,
    /// Requests that ended, by [`vcr_wire::FinishReason`].
    pub finished: [u64; 5],
    /// Requests that their frontend aborted.
    pub aborted: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Messages that could not be decoded, or made no sense.
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
    /// Preemptions.
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
    /// Requests that were answered from a capture.
    pub replayed: u64,
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
        let [stop, length, abort, error, repetition] = self.finished;
        [("stop", stop), ("length", length), ("abort", abort), ("error", error), ("repetition", repetition)]
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
            replayed: self.replayed + other.replayed,
            unmatched: self.unmatched + other.unmatched,
            routed: self.routed + other.routed,
            routed_away: self.routed_away + other.routed_away,
            shed: self.shed + other.shed,
        }
    }
}

/// What one engine's thread shares with others.
pub(crate) struct Shared {
    commands: Mutex<VecDeque<Command>>,
    snapshot: Mutex<Snapshot>,
    waker: Waker,
    /// Set to end the engine.
    pub(crate) stop: Arc<AtomicBool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these is replaced as a whole, never half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(waker: Waker, stop: Arc<AtomicBool>, snapshot: Snapshot) -> Self {
        Self { commands: Mutex::default(), snapshot: Mutex::new(snapshot), waker, stop }
    }

    /// Ends the engine as a signal does.
    pub(crate) fn stop_soon(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
    }

    pub(crate) fn next_command(&self) -> Option<Command> {
        lock(&self.commands).pop_front()
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut lock(&self.snapshot));
    }
}

/// All engines of a process, from any thread.
#[derive(Clone)]
pub struct EnginesHandle {
    pub(crate) ranks: Arc<[Shared]>,
    pub(crate) stop: Arc<AtomicBool>,
}

impl EnginesHandle {
    /// What each engine is doing. At most a twentieth of a second old.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.ranks.iter().map(|shared| lock(&shared.snapshot).clone()).collect()
    }

    /// Tells one engine, or all, what to do; it does so between two steps.
    /// `false` if there is no such engine.
    pub fn command(&self, rank: Option<u16>, command: &Command) -> bool {
        let mut is_known = false;
        for shared in self.ranks.iter() {
            if rank.is_none_or(|rank| lock(&shared.snapshot).rank == rank) {
                lock(&shared.commands).push_back(command.clone());
                shared.waker.wake();
                is_known = true;
            }
        }
        is_known
    }

    /// Ends all engines as SIGTERM does in vLLM: requests under way are waited
    /// for or aborted, then the threads end.
    pub fn shut_down(&self) {
        self.stop.store(true, Ordering::Relaxed);
        for shared in self.ranks.iter() {
            shared.waker.wake();
        }
    }
}
