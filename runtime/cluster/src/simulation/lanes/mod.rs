//! One run on several threads.
//!
//! Engines between two instants at which something from outside can reach them are
//! independent. Where all that reaches them are requests, whose start depends on no other
//! request, each engine is simulated by itself, as a lane ([`lane`]). What reaches a lane, and
//! when, does not depend on threads, so neither do the results: a run on lanes has the report
//! of [`Simulation::run`](super::Simulation), to the last byte.
//!
//! Where requests go to the engines in turn, a lane knows its requests long before: lanes
//! run for batches of requests ([`in_turn`]).
//!
//! All other runs take one thread: engines that share links or tiers, fail, or whose requests follow on
//! each other or wait in a router. So do runs that are watched step by step, and those of routers that
//! choose by the state of the engines: all lanes would meet at each request, every few microseconds,
//! and on two to sixteen cores that took 0.95 to 1.4 times as long as one thread. A run that fails
//! on lanes is repeated on one thread, which finds the first failure.

mod arrivals;
mod in_turn;
mod lane;
mod merge;
mod watch;
mod work;

use std::num::NonZeroUsize;

use crate::config::{KvEviction, PoolConfig, RouterConfig, RunConfig, Topology, WorkloadConfig};
use crate::error::SimError;
use crate::observe::{Observer, Unobserved};
use crate::report::Report;
use arrivals::Arrivals;
use lane::{Interrupt, Lane, LaneOptions};
use watch::Watch;
pub use work::{CoresEstimate, LaneCosts, LaneRound, LaneWork};

/// Fewer requests are simulated on one thread: they take less time than threads cost.
const MIN_REQUESTS: u64 = 1_000;

/// Number of threads that a run may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    most: NonZeroUsize,
    takes_small_runs: bool,
}

impl Threads {
    /// One thread.
    pub const ONE: Self = Self { most: NonZeroUsize::MIN, takes_small_runs: false };

    /// Up to `most` threads where that is faster.
    #[must_use]
    pub const fn up_to(most: NonZeroUsize) -> Self {
        Self { most, takes_small_runs: false }
    }

    /// Up to `most` threads wherever that is possible, also where it is slower: for tests.
    #[must_use]
    pub const fn wherever_possible(most: NonZeroUsize) -> Self {
        Self { most, takes_small_runs: true }
    }
}

impl Default for Threads {
    fn default() -> Self {
        Self::ONE
    }
}

/// The end of a run on lanes.
enum Done {
    /// All is simulated.
    Whole,
    /// The observer has ended it.
    Stopped,
    /// A lane has failed.
    Failed,
}

/// Runs `config` on lanes, if it can be and that pays. None if it is to be run on one thread.
///
/// # Errors
/// When the observer finds a limit exceeded.
pub(super) fn simulate(
    threads: Threads,
    run: &RunConfig,
    observer: &mut dyn Observer,
) -> Result<Option<Report>, SimError> {
    simulate_and_count(threads, run, observer, None)
}

/// The work of each lane of a run, if it can be simulated on lanes.
#[must_use]
pub fn lane_work(run: &RunConfig) -> Option<LaneWork> {
    let threads = Threads::wherever_possible(const { NonZeroUsize::new(2).expect("it is not 0") });
    run.check().ok()?;
    let mut work = LaneWork::default();
    simulate_and_count(threads, run, &mut Unobserved, Some(&mut work)).ok()??;
    Some(work)
}

fn simulate_and_count(
    threads: Threads,
    run: &RunConfig,
    observer: &mut dyn Observer,
    work: Option<&mut LaneWork>,
) -> Result<Option<Report>, SimError> {
    let Some(pool) = splittable(threads, run).filter(|_| !watches_closely(observer)) else { return Ok(None) };
    let mut arrivals = Arrivals::new(run, pool);
    if !threads.takes_small_runs && arrivals.known().is_none_or(|requests| requests < MIN_REQUESTS) {
        return Ok(None);
    }
    let options =
        LaneOptions { keeps_step_digests: observer.wants_step_digests(), keeps_series: observer.wants_series() };
    let lanes = (0..pool.engines).map(|engine| Lane::new(run, pool, engine, options));
    let Ok(mut lanes) = lanes.collect::<Result<Vec<_>, _>>() else { return Ok(None) };
    if let Some(requests) = arrivals.known() {
        lanes.iter_mut().for_each(|lane| lane.reserve(requests.div_ceil(u64::from(pool.engines))));
    }
    let mut watch = Watch::new(observer, &pool.name, arrivals.known(), work);
    if watch.wants_stop() {
        return Ok(None);
    }
    let (done, lanes) = in_turn::run(threads.most, lanes, &mut arrivals, &mut watch)?;
    let is_stopped = match done {
        Done::Failed => return Ok(None),
        Done::Whole if run.max_time_ns.is_none() && !lanes.iter().all(Lane::has_ended) => return Ok(None),
        Done::Whole => false,
        Done::Stopped => true,
    };
    let left = (arrivals.workload_names(), arrivals.are_more());
    merge::report(run, pool, lanes, left, is_stopped).map(Some)
}

/// Whether an observer sees more of a run than its series and its end.
fn watches_closely(observer: &dyn Observer) -> bool {
    observer.wants_steps() || observer.wants_requests() || observer.telemetry_interval_ns().is_some()
}

/// The only pool of a run that can be simulated on lanes.
fn splittable(threads: Threads, run: &RunConfig) -> Option<&PoolConfig> {
    let Topology::Aggregated(pool) = &run.topology else { return None };
    let is_steady = run.faults.is_empty() && pool.scaling.is_none() && pool.failures.is_none();
    let is_split = threads.most.get() > 1
        && pool.engines > 1
        && matches!(pool.router, RouterConfig::RoundRobin)
        && is_steady
        && !pool.shares_tiers()
        && pool.kv_eviction == KvEviction::Lru
        && !run.keeps_requests
        && !run.topology.overheads().delays_arrivals()
        && run.workloads.iter().all(WorkloadConfig::starts_by_itself);
    is_split.then_some(pool)
}
