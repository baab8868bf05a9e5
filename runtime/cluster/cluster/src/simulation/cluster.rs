//! A cluster that its caller steps.
//!
//! [`Cluster`] is the simulation of [`simulate`](super::simulate) for programs with their own loop. They submit and
//! cancel requests, advance virtual time and read the outputs. Such a program cannot change the past: requests
//! arrive at the current instant, and a step beyond the program's horizon ends the run.

mod listener;
mod served;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use vcr_core::{Prompt, ServingEngine};

use super::observation::engine_sample;
use super::{RunFacts, Simulation};
use crate::config::{Arrivals, Limit, PackedRows, PoolRole, RequestMix, RunConfig, WorkloadConfig, WorkloadSource};
use crate::error::SimError;
use crate::fleet::{Fleet, Health};
use crate::ledger::record::{GiveUp, RequestRecord};
use crate::observe::EngineSample;
use crate::report::Report;
use crate::routing::{RoutedTo, Routing};
use crate::traffic::{FollowUp, Traffic, Turn};
use listener::Listener;
pub use served::{RequestOrigin, ServedRequest};

/// Name of the workload of submitted requests.
const SUBMITTED: &str = "submitted";

/// A request to be submitted to a [`Cluster`].
#[derive(Clone, Debug)]
pub struct ClusterRequest {
    /// The prompt, from [`Cluster::empty_prompt`].
    pub prompt: Prompt,
    /// Number of output tokens.
    pub max_tokens: u32,
    /// Priority. Lower values are scheduled first, if engines schedule by priority.
    pub priority: i32,
    /// Session of the request, for routers that use sessions.
    pub session: u64,
}

/// An output of a [`Cluster`].
#[derive(Clone, Debug)]
pub enum ClusterOutput {
    /// A request got output tokens. Only from a cluster [with tokens](Cluster::with_tokens).
    Tokens {
        /// The number that [`Cluster::submit`] returned, or the number of a workload's request.
        request: u64,
        /// Number of tokens.
        num_tokens: u32,
        /// Virtual arrival time in nanoseconds.
        at_ns: u64,
    },
    /// A request has ended.
    Ended {
        /// Number of the request.
        request: u64,
        /// The request's record, including its end.
        record: Box<RequestRecord>,
    },
}

/// State of one engine, or one rank of an engine, between two steps of the caller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineState {
    /// Index among all engines of the cluster; the engines of the prefill pool come first.
    pub index: u32,
    /// Role of the engine's pool.
    pub role: PoolRole,
    /// Whether the engine accepts requests.
    pub is_up: bool,
    /// Prompt tokens that the engine still has to compute.
    pub outstanding_prefill_tokens: u64,
    /// Queues, KV usage and totals.
    pub sample: EngineSample,
}

/// The reason why a cluster stopped. Clusters of other runs are not affected.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the error texts describe them")]
pub enum ClusterError {
    #[error("run `{run}`: {reason}")]
    Failed {
        /// The name of the run.
        run: String,
        /// The problem.
        reason: String,
    },
    #[error("run `{run}`: a callback panicked at {at_ms} ms: {message}")]
    Panicked {
        /// The name of the run.
        run: String,
        /// Virtual time.
        at_ms: f64,
        message: String,
    },
    #[error("run `{run}`: invalid step to {to_ms} ms: expected {from_ms} ms to {horizon_ms} ms")]
    OutOfReach {
        /// The name of the run.
        run: String,
        /// The requested instant.
        to_ms: f64,
        /// Virtual time.
        from_ms: f64,
        horizon_ms: f64,
    },
    #[error("run `{run}`: invalid engine {engine}: expected one that is up")]
    NoEngine {
        /// The name of the run.
        run: String,
        engine: u32,
    },
}

/// A cluster in virtual time that its caller steps.
///
/// It has the pools, links, routers, autoscalers, faults and workloads of a [`RunConfig`], which may have no
/// workload. Requests that the caller submits form one more workload, `submitted`. If the caller submits the
/// requests of a workload at their arrival times, the results equal those of [`simulate`](crate::simulate) with
/// that workload.
///
/// Time stands at an instant. All events until then are handled, but the steps that start at the instant are not
/// decided yet. A request that is submitted now can therefore be part of them.
///
/// After an error each further call returns the same error. Other clusters are not affected.
pub struct Cluster {
    simulation: Simulation<'static, Listener>,
    submitted: u32,
    horizon_ns: u64,
    /// Output tokens that the caller has not taken yet, by request and index in the output.
    tokens: BTreeMap<(u64, u32), u32>,
    failure: Option<ClusterError>,
}

impl Cluster {
    /// A cluster at time 0.
    ///
    /// # Errors
    /// When the configuration is invalid, or a plugin cannot be made.
    pub fn new(config: RunConfig) -> Result<Self, ClusterError> {
        Self::made(config, false)
    }

    /// A cluster that returns an output for each token. It simulates every step individually, which takes longer
    /// but does not change the results.
    pub fn with_tokens(config: RunConfig) -> Result<Self, ClusterError> {
        Self::made(config, true)
    }

    fn made(mut config: RunConfig, wants_tokens: bool) -> Result<Self, ClusterError> {
        // The records of all requests must stay readable by number.
        config.packed_records = PackedRows::Never;
        let run = config.name.clone();
        let failed = |error: SimError| ClusterError::Failed { run: run.clone(), reason: error.to_string() };
        // The workload must not submit requests itself. [`RunConfig::check`] rejects a count of 0, so it is set
        // after the check.
        config.workloads.push(submitted_workload(1));
        config.check_open().map_err(|errors| failed(SimError::Config(errors)))?;
        config.workloads.pop();
        config.workloads.push(submitted_workload(0));
        let fleet = Fleet::new(&config, wants_tokens).map_err(failed)?;
        let routing = Routing::new(&config, &fleet).map_err(failed)?;
        let traffic = Traffic::new(&config, config.topology.pools()[0].engine.hashed_blocks(), false);
        let submitted = config.workloads.len() as u32 - 1;
        let listener = Listener::new(wants_tokens);
        let mut simulation = Simulation::of(RunFacts::of(config), listener, fleet, routing, traffic);
        simulation.begin();
        Ok(Self { simulation, submitted, horizon_ns: u64::MAX, tokens: BTreeMap::new(), failure: None })
    }

    /// Current virtual time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.simulation.clock.now_ns()
    }

    /// A prompt without tokens. [`Prompt::push_run`] and [`Prompt::push_tokens`] fill it. Equal beginnings of two
    /// prompts are cached once.
    #[must_use]
    pub fn empty_prompt(&self) -> Prompt {
        Prompt::new(self.simulation.facts.config.topology.pools()[0].engine.hashed_blocks(), 0)
    }

    /// Sets the time until which the caller knows its submissions. A step beyond it ends the run. If several
    /// simulators run side by side, each should set the time before which no other simulator can affect it. None
    /// removes the limit.
    pub fn set_horizon_ns(&mut self, horizon_ns: Option<u64>) {
        self.horizon_ns = horizon_ns.unwrap_or(u64::MAX);
    }

    /// Submits a request at the current instant. The router of the first pool chooses its engine. Returns the
    /// request's number.
    pub fn submit(&mut self, request: ClusterRequest) -> Result<u64, ClusterError> {
        self.enter(request, None)
    }

    /// Submits a request at the current instant to the engine with this index in the first pool, without asking the
    /// router. Returns the request's number.
    ///
    /// # Errors
    /// As [`Self::submit`], and when there is no such engine or it is not up.
    pub fn submit_to(&mut self, engine: u32, request: ClusterRequest) -> Result<u64, ClusterError> {
        self.enter(request, Some(engine))
    }

    fn enter(&mut self, request: ClusterRequest, engine: Option<u32>) -> Result<u64, ClusterError> {
        self.check_alive()?;
        let role = self.simulation.fleet.first_role();
        if let Some(engine) = engine
            && !self.simulation.fleet.workers_of(role).get(engine as usize).is_some_and(|w| w.lifecycle().is_up())
        {
            return Err(ClusterError::NoEngine { run: self.simulation.facts.config.name.clone(), engine });
        }
        let (workload, at_ns) = (self.submitted, self.simulation.clock.now_ns());
        let turn = turn_of(request);
        let tag = self.simulation.ledger.arrived();
        let entered = self.simulation.open_instant(at_ns).and_then(|()| {
            self.simulation.traffic.begin_session(workload);
            match engine {
                None => self.simulation.arrive(workload, turn),
                Some(engine) => {
                    self.simulation.arrive_at(workload, turn, RoutedTo { worker: engine, overlap_blocks: None });
                    Ok(())
                }
            }
        });
        self.or_fail(entered)?;
        Ok(tag)
    }

    /// Cancels a request at the current instant. Returns false if it has ended.
    pub fn cancel(&mut self, request: u64) -> Result<bool, ClusterError> {
        self.check_alive()?;
        if request >= self.simulation.ledger.arrived() || self.simulation.in_flight.find(request).is_none() {
            return Ok(false);
        }
        let opened = self.simulation.open_instant(self.simulation.clock.now_ns());
        self.or_fail(opened)?;
        self.simulation.take_back(request, GiveUp::Cancelled);
        Ok(true)
    }

    /// The time of the next event if nothing is submitted before. Decides the steps of the current instant, so
    /// requests that are submitted afterwards cannot be part of them.
    pub fn next_event_ns(&mut self) -> Result<Option<u64>, ClusterError> {
        self.check_alive()?;
        if self.simulation.clock.close() {
            self.simulation.clock.expect_outside(self.simulation.clock.now_ns());
            let done =
                self.simulation.handle_due(self.simulation.clock.now_ns()).and_then(|()| self.simulation.end_instant());
            self.or_fail(done)?;
        }
        Ok(self.simulation.events.next_time())
    }

    /// Advances to the next event and passes the outputs to `callback`, in order. Returns the event's time; None if
    /// there are no more events.
    ///
    /// # Errors
    /// When the event is beyond the horizon, the simulation fails, or the callback panics.
    pub fn step(&mut self, callback: impl FnMut(&ClusterOutput)) -> Result<Option<u64>, ClusterError> {
        let Some(at_ns) = self.next_event_ns()? else {
            self.deliver(callback)?;
            return Ok(None);
        };
        self.step_until(at_ns, callback)?;
        Ok(Some(at_ns))
    }

    /// Advances to `at_ns` and passes the outputs to `callback`, in order of time.
    pub fn step_until(&mut self, at_ns: u64, callback: impl FnMut(&ClusterOutput)) -> Result<(), ClusterError> {
        self.check_alive()?;
        let now_ns = self.simulation.clock.now_ns();
        if at_ns < now_ns || at_ns > self.horizon_ns {
            let [to_ms, from_ms, horizon_ms] = [at_ns, now_ns, self.horizon_ns].map(|ns| ns as f64 / 1e6);
            let run = self.simulation.facts.config.name.clone();
            return Err(self.fail(ClusterError::OutOfReach { run, to_ms, from_ms, horizon_ms }));
        }
        let advanced = self.simulation.advance(Some(at_ns));
        self.or_fail(advanced)?;
        if self.simulation.clock.now_ns() < at_ns {
            let opened = self.simulation.open_instant(at_ns);
            self.or_fail(opened)?;
        }
        self.deliver(callback)
    }

    /// Advances until there are no more events.
    pub fn run_to_end(&mut self, callback: impl FnMut(&ClusterOutput)) -> Result<(), ClusterError> {
        self.check_alive()?;
        let advanced = self.simulation.advance(None);
        self.or_fail(advanced)?;
        self.deliver(callback)
    }

    /// The states of all engines or their ranks.
    #[must_use]
    pub fn engines(&self) -> Vec<EngineState> {
        let state = |(index, worker): (usize, &crate::fleet::Worker)| EngineState {
            index: index as u32,
            role: worker.role(),
            is_up: worker.lifecycle().health() == Health::Up,
            outstanding_prefill_tokens: worker.engine().load().outstanding_prefill_tokens,
            sample: engine_sample(worker),
        };
        self.simulation.fleet.workers().iter().enumerate().map(state).collect()
    }

    /// Number of leading blocks of a prompt that an engine of the first pool has cached. None if there is no such
    /// engine.
    #[must_use]
    pub fn cached_blocks(&self, engine: u32, prompt: &Prompt) -> Option<u32> {
        let workers = self.simulation.fleet.workers_of(self.simulation.fleet.first_role());
        workers.get(engine as usize).map(|worker| worker.engine().cached_prefix_blocks(prompt.block_hashes()))
    }

    /// Record of a request.
    #[must_use]
    pub fn request(&self, request: u64) -> Option<&RequestRecord> {
        self.simulation.ledger.open_records().get(usize::try_from(request).ok()?)
    }

    /// Number of requests in front of a pool's engines: in its router, or waiting for an engine to start.
    #[must_use]
    pub fn waiting_at_router(&self, pool: PoolRole) -> u64 {
        let has_pool = self.simulation.facts.config.topology.roles().contains(&pool);
        if has_pool { self.simulation.routing.waiting(pool) } else { 0 }
    }

    /// Makes the report of the run so far. Requests that have not ended count as unfinished.
    ///
    /// # Errors
    /// When the cluster has failed, or no request could ever run.
    pub fn into_report(mut self) -> Result<Report, ClusterError> {
        self.check_alive()?;
        let run = self.simulation.facts.config.name.clone();
        if self.simulation.ledger.ended() < self.simulation.ledger.arrived() {
            self.simulation.observation.stop();
        }
        self.simulation.into_report().map_err(|error| ClusterError::Failed { run, reason: error.to_string() })
    }

    fn check_alive(&self) -> Result<(), ClusterError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn fail(&mut self, failure: ClusterError) -> ClusterError {
        self.failure.get_or_insert(failure).clone()
    }

    fn or_fail<T>(&mut self, done: Result<T, SimError>) -> Result<T, ClusterError> {
        done.map_err(|error| {
            let run = self.simulation.facts.config.name.clone();
            self.fail(ClusterError::Failed { run, reason: error.to_string() })
        })
    }

    /// Calls `callback` with the outputs of the current instant.
    fn deliver(&mut self, mut callback: impl FnMut(&ClusterOutput)) -> Result<(), ClusterError> {
        let mut outputs = self.simulation.observation.observer_mut().take_outputs();
        let delivered = catch_unwind(AssertUnwindSafe(|| outputs.iter().for_each(&mut callback)));
        outputs.clear();
        self.simulation.observation.observer_mut().keep_room(outputs);
        delivered.map_err(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            let run = self.simulation.facts.config.name.clone();
            self.fail(ClusterError::Panicked { run, at_ms: self.simulation.clock.now_ns() as f64 / 1e6, message })
        })
    }
}

/// The workload of submitted requests. `count` requests arrive without being submitted.
fn submitted_workload(count: u64) -> WorkloadConfig {
    let one = || vcr_base::random::Distribution::Constant { value: 1.0 };
    let arrivals = Arrivals::Constant { rate_per_s: 1.0, limit: Limit { count: Some(count), duration_ns: None } };
    let classes = RequestMix::new(one(), one()).into();
    WorkloadConfig::new(SUBMITTED, WorkloadSource::Synthetic { arrivals, classes })
}

fn turn_of(request: ClusterRequest) -> Turn {
    let ClusterRequest { prompt, max_tokens, priority, session } = request;
    Turn {
        prompt,
        max_tokens,
        stop_after: None,
        priority,
        strict_priority: 0,
        policy_class: None,
        class: 0,
        adapter: None,
        session,
        turn: 0,
        earlier: None,
        follow_up: FollowUp::None,
        played_row: None,
    }
}
