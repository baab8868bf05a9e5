//! A cluster behind a server, with external clients.
//!
//! The workloads of the run are only used for metadata: tenants, recorded answers and the names in the report.
//! External clients do everything else: no request arrives, is cancelled, is retried or follows another request by
//! itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use vcr_core::{Prompt, seed};

use super::{Cluster, ClusterError, ClusterOutput, Listener};
use crate::config::{ClientConfig, RunConfig};
use crate::error::SimError;
use crate::fleet::{Fleet, TokenRange};
use crate::observe::StepSink;
use crate::routing::Routing;
use crate::simulation::{RunFacts, Simulation};
use crate::traffic::{FollowUp, Traffic, Turn};

/// Facts about a request that no protocol carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOrigin {
    /// Index of the workload in the run.
    pub workload: u32,
    /// Number of the class in the workload.
    pub class: u32,
    /// Number of the session in the workload.
    pub session: u64,
    /// Position in the session, from 0.
    pub turn: u32,
    /// Strict priority in the router's queue.
    pub(crate) strict_priority: u32,
    /// Index of the policy class in the workload's trace.
    pub(crate) policy_class: Option<u32>,
    /// The row of the trace with the recorded answer, if the request is answered as recorded.
    pub(crate) played_row: Option<u32>,
}

impl RequestOrigin {
    pub(crate) fn of(workload: u32, turn: &Turn) -> Self {
        let Turn { class, session, turn: place, strict_priority, policy_class, played_row, .. } = *turn;
        Self { workload, class, session, turn: place, strict_priority, policy_class, played_row }
    }

    /// Whether the request is answered as recorded, without an engine.
    #[must_use]
    pub fn is_played(&self) -> bool {
        self.played_row.is_some()
    }
}

/// A request that a server has received.
#[derive(Clone, Debug)]
pub struct ServedRequest {
    /// The number by which observers of steps know the request, if any.
    pub number: Option<u64>,
    /// Facts that no protocol carries.
    pub origin: RequestOrigin,
    /// The prompt, from [`Cluster::salted_prompt`].
    pub prompt: Prompt,
    /// Number of output tokens.
    pub max_tokens: u32,
    /// Priority. Lower values are scheduled first, if engines schedule by priority.
    pub priority: i32,
    /// Number of the LoRA adapter.
    pub adapter: Option<u32>,
}

impl Cluster {
    /// A cluster at time 0 with the engines, links, routers, autoscalers and faults of a run. It reports each
    /// output token. It records time series of its engines if requested, and reports their steps to `steps`.
    pub fn behind_server(
        mut config: RunConfig,
        tokens: TokenRange,
        wants_series: bool,
        steps: Option<Arc<dyn StepSink>>,
    ) -> Result<Self, ClusterError> {
        let run = config.name.clone();
        let failed = |error: SimError| ClusterError::Failed { run: run.clone(), reason: error.to_string() };
        config.check().map_err(|errors| failed(SimError::Config(errors)))?;
        config.max_time_ns = None;
        config.max_retries = 0;
        config.keeps_requests = false;
        config.workloads.iter_mut().for_each(|workload| workload.client = ClientConfig::default());
        let mut fleet = Fleet::new(&config, true).map_err(failed)?;
        fleet.workers_mut().iter_mut().for_each(|worker| worker.show_tokens(tokens));
        let routing = Routing::new(&config, &fleet).map_err(failed)?;
        let traffic = Traffic::from_outside(&config);
        let listener = Listener::behind_server(wants_series, steps);
        let facts = RunFacts { is_served: true, ..RunFacts::of(config) };
        let mut simulation = Simulation::of(facts, listener, fleet, routing, traffic);
        simulation.begin_engines();
        Ok(Self { simulation, submitted: 0, horizon_ns: u64::MAX, tokens: BTreeMap::new(), failure: None })
    }

    /// A prompt without tokens. It shares no content with prompts of another salt.
    #[must_use]
    pub fn salted_prompt(&self, salt: &str) -> Prompt {
        let salt = if salt.is_empty() { 0 } else { seed::derive(0, salt, 0) };
        Prompt::new(self.simulation.facts.config.topology.pools()[0].engine.hashed_blocks(), salt)
    }

    /// Submits a request at the current instant. Returns the request's number.
    pub fn serve(&mut self, request: ServedRequest) -> Result<u64, ClusterError> {
        self.check_alive()?;
        let ServedRequest { number, origin, prompt, max_tokens, priority, adapter } = request;
        let turn = Turn {
            prompt,
            max_tokens,
            stop_after: None,
            priority,
            strict_priority: origin.strict_priority,
            policy_class: origin.policy_class,
            class: origin.class,
            adapter,
            session: origin.session,
            turn: origin.turn,
            earlier: None,
            follow_up: FollowUp::None,
            played_row: origin.played_row,
        };
        let tag = self.simulation.ledger.arrived();
        if let Some(number) = number {
            self.simulation.observation.observer_mut().name(tag, number);
        }
        let at_ns = self.simulation.clock.now_ns();
        let entered = self.simulation.open_instant(at_ns).and_then(|()| self.simulation.arrive(origin.workload, turn));
        self.or_fail(entered)?;
        Ok(tag)
    }

    /// Calls `callback` with the outputs of the current instant.
    pub fn deliver_outputs(&mut self, callback: impl FnMut(&ClusterOutput)) -> Result<(), ClusterError> {
        self.deliver(callback)
    }

    /// Takes `count` output tokens of a request from index `first` on. The callback of [`Cluster::deliver_outputs`]
    /// must have received them.
    pub fn take_tokens(&mut self, request: u64, first: u32, count: u32) -> Vec<u32> {
        let shown = self.simulation.fleet.workers_mut().iter_mut().flat_map(|worker| worker.take_shown_tokens());
        self.tokens.extend(shown.map(|(tag, place, token)| ((tag, place), token)));
        // No engine chose the tokens of a recorded answer, so they are arbitrary.
        (first..first + count).map(|place| self.tokens.remove(&(request, place)).unwrap_or(0)).collect()
    }

    /// Forgets the tokens of an ended request.
    pub fn forget_tokens(&mut self, request: u64) {
        let mut later = self.tokens.split_off(&(request, 0));
        self.tokens.append(&mut later.split_off(&(request + 1, 0)));
    }

    /// Delays of a request's outputs until they reach its client: of the first token, and of later tokens.
    #[must_use]
    pub fn way_ns(&self) -> [u64; 2] {
        [self.simulation.facts.overheads.answer_ns(1), self.simulation.facts.overheads.output_ns]
    }
}
