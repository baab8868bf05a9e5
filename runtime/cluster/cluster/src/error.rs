//! Errors that end a run.

use std::ops::Range;

use vcr_core::fault::FaultError;
use vcr_core::latency::LatencyError;
use vcr_core::policy::PolicyError;
use vcr_core::route::RouteError;
use vcr_core::scale::ScaleError;
use vcr_core::tokens::TokenError;

use crate::config::PoolConfig;
use crate::config::RunConfigError;

/// A run with more steps than this at one instant counts as stuck.
pub(crate) const MAX_STEPS_AT_ONE_INSTANT: u64 = 1_000_000;

/// An error that ends a run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the error texts describe them")]
pub enum SimError {
    #[error("{}", join_lines(.0))]
    Config(Vec<RunConfigError>),
    #[error("{reason} (engine {engine} of pool `{pool}`, {}, at {at_ms} ms of virtual time)", name_steps(*step, *steps))]
    Latency {
        pool: String,
        /// Number of the engine in the pool, and of the rank if engines have several.
        engine: String,
        /// Number of the engine's first step in the failed call.
        step: u64,
        /// Number of steps that the call priced.
        steps: u64,
        at_ms: f64,
        reason: LatencyError,
    },
    #[error("{reason} (engine {engine} of pool `{pool}`, before step {step}, at {at_ms} ms of virtual time)")]
    Policy {
        pool: String,
        /// Number of the engine in the pool, and of the rank if engines have several.
        engine: String,
        /// Number of the engine's step that the policy was to decide.
        step: u64,
        at_ms: f64,
        reason: PolicyError,
    },
    #[error("{reason} ({} of pool `{pool}`, at {at_ms} ms of virtual time)", name_request(*request))]
    Route {
        pool: String,
        /// Number of the request to be routed; None if the router could not be made.
        request: Option<u64>,
        at_ms: f64,
        reason: RouteError,
    },
    #[error("{reason} (engine {engine} of pool `{pool}`, at {at_ms} ms of virtual time)")]
    Failures {
        pool: String,
        /// Number of the engine in the pool, and of the rank if engines have several.
        engine: String,
        at_ms: f64,
        reason: FaultError,
    },
    #[error("{reason} (engine {engine} of pool `{pool}`, at {at_ms} ms of virtual time)")]
    Tokens {
        pool: String,
        /// Number of the engine in the pool, and of the rank if engines have several.
        engine: String,
        at_ms: f64,
        reason: TokenError,
    },
    #[error("{reason} (of pool `{pool}`, at {at_ms} ms of virtual time)")]
    Scale { pool: String, at_ms: f64, reason: ScaleError },
    #[error("no request could run: all {requests} were rejected, the first because {reason}")]
    NothingFits {
        requests: u64,
        /// Reason of the first rejection.
        reason: vcr_core::RejectReason,
    },
    /// The process exceeds a limit, according to [`Observer::check_limits`].
    ///
    /// [`Observer::check_limits`]: crate::observe::Observer::check_limits
    #[error(
        "{reason}; at {at_ms} ms of virtual time {arrived} requests have arrived, of which {waiting} wait and {ended} \
         have ended"
    )]
    Limit {
        reason: String,
        at_ms: f64,
        arrived: u64,
        /// Number of requests that wait in engines.
        waiting: u64,
        ended: u64,
    },
    /// Steps take no time while requests keep coming.
    #[error(
        "virtual time stands still at {at_ms} ms: {MAX_STEPS_AT_ONE_INSTANT} steps{place} took 0 ns; give the \
         latency model a duration above zero, or the workload a `count`"
    )]
    TimeStandsStill {
        at_ms: f64,
        /// The engines of these steps, if known.
        place: String,
    },
    /// Requests are unfinished although no event is left: a bug of the simulator.
    #[error(
        "the run is stuck at {at_ms} ms: {requests} request(s) unfinished; the first, number {first}, {reason}; nothing \
         is left to happen (this is a bug)"
    )]
    Stuck {
        at_ms: f64,
        requests: u64,
        first: u64,
        /// Stage of the first unfinished request, and the event that it waits for.
        reason: String,
    },
}

fn name_steps(first: u64, count: u64) -> String {
    match count {
        1 => format!("step {first}"),
        _ => format!("one of the steps {first} to {}", first + count - 1),
    }
}

fn name_request(request: Option<u64>) -> String {
    match request {
        Some(request) => format!("for request {request}, in front"),
        None => "when it was made, in front".to_owned(),
    }
}

fn join_lines(errors: &[RunConfigError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The error of a plugin's factory when a worker is made or restarted.
#[derive(Debug)]
pub(crate) enum MakeError {
    Latency(LatencyError),
    Policy(PolicyError),
    Failures(FaultError),
    Tokens(TokenError),
}

/// The error of a plugin's factory, for the engine with this index in its pool.
pub(crate) fn make_error(pool: &PoolConfig, index: u32, now_ns: u64, error: MakeError) -> SimError {
    let (name, engine, at_ms) = (pool.name.clone(), pool.rank_name(index), now_ns as f64 / 1e6);
    match error {
        MakeError::Latency(reason) => latency_error(pool, index, 0..1, now_ns, reason),
        MakeError::Policy(reason) => policy_error(pool, index, 0, now_ns, reason),
        MakeError::Failures(reason) => SimError::Failures { pool: name, engine, at_ms, reason },
        MakeError::Tokens(reason) => SimError::Tokens { pool: name, engine, at_ms, reason },
    }
}

/// The error of an engine's latency model in a call that priced `steps`.
pub(crate) fn latency_error(
    pool: &PoolConfig,
    index: u32,
    steps: Range<u64>,
    now_ns: u64,
    reason: LatencyError,
) -> SimError {
    let at_ms = now_ns as f64 / 1e6;
    SimError::Latency {
        pool: pool.name.clone(),
        engine: pool.rank_name(index),
        step: steps.start,
        steps: steps.end - steps.start,
        at_ms,
        reason,
    }
}

pub(crate) fn policy_error(pool: &PoolConfig, index: u32, step: u64, now_ns: u64, reason: PolicyError) -> SimError {
    let engine = pool.rank_name(index);
    SimError::Policy { pool: pool.name.clone(), engine, step, at_ms: now_ns as f64 / 1e6, reason }
}
