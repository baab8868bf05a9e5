//! The observer of a run: what it asked for, and its notifications.
//!
//! The only effect on the run is an early end. Instants between two samples are still grouped, so
//! [`Observation::due_ns`] limits how far engines run ahead.

mod overload;

use vcr_core::{AnyEngine, Compilation, ServingEngine};

use crate::config::RunConfig;
use crate::error::SimError;
use crate::fleet::{Fleet, Worker};
use crate::ledger::Ledger;
use crate::ledger::record::RequestRecord;
use crate::observe::{EngineSample, Incident, Observer, Overload, Progress, RunSeries, StepRecord, Telemetry};
use crate::routing::Routing;
use crate::simulation::Simulation;
pub(super) use overload::{OverloadWatch, Queues};

pub(super) struct Observation<O> {
    observer: O,
    /// Whether the observer or the ledger must see each step.
    wants_steps: bool,
    /// Whether the observer sees tokens and ends of requests.
    wants_requests: bool,
    /// Whether the ledger keeps data beyond records, for which it must see each step.
    keeps_requests: bool,
    /// Whether the run was stopped before its end.
    is_stopped: bool,
    /// Time series of the engines, if the observer requests them.
    series: Option<RunSeries>,
    /// The next time of telemetry, and the interval; None if the observer does not request telemetry.
    telemetry: Option<(u64, u64)>,
    /// Scratch.
    samples: Vec<EngineSample>,
    overload: OverloadWatch,
    overloaded: Option<Overload>,
}

pub(super) fn sees_steps(observer: &impl Observer, config: &RunConfig) -> bool {
    observer.wants_steps() || config.keeps_requests
}

impl<O: Observer> Observation<O> {
    pub(super) fn new(observer: O, config: &RunConfig, workers: usize) -> Self {
        Self {
            wants_steps: sees_steps(&observer, config),
            wants_requests: observer.wants_requests(),
            keeps_requests: config.keeps_requests,
            is_stopped: false,
            series: observer.wants_series().then(|| RunSeries::new(workers)),
            telemetry: observer.telemetry_interval_ns().map(|interval_ns| (0, interval_ns.max(1))),
            samples: Vec::new(),
            overload: OverloadWatch::default(),
            overloaded: None,
            observer,
        }
    }

    pub(super) fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    pub(super) fn wants_steps(&self) -> bool {
        self.wants_steps
    }

    /// Whether the observer ends the run. Also checks whether the observer still wants steps.
    pub(super) fn stops(&mut self, fleet: &mut Fleet) -> bool {
        if self.wants_steps && !self.observer.wants_steps() && !self.keeps_requests {
            self.wants_steps = false;
            fleet.workers_mut().iter_mut().for_each(Worker::stop_recording);
        }
        self.is_stopped = self.observer.wants_stop();
        self.is_stopped
    }

    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Times of due samples. Engines must not run ahead of them, because an engine that has run ahead has no state
    /// of the sample's instant.
    pub(super) fn due_ns(&self) -> impl Iterator<Item = u64> {
        let sample = self.series.as_ref().map(RunSeries::due_ns);
        sample.into_iter().chain(self.telemetry.map(|(due_ns, _)| due_ns))
    }

    pub(super) fn has_series(&self) -> bool {
        self.series.is_some()
    }

    /// The parts of a report that come from the observation: the time series, and an overload.
    pub(super) fn into_report(self) -> (Option<RunSeries>, Option<Overload>) {
        (self.series, self.overloaded)
    }

    /// Takes the time-series samples due before `at_ns`, the time of the next event.
    pub(super) fn sample_series(&mut self, at_ns: u64, fleet: &Fleet) {
        let Some(series) = &mut self.series else { return };
        while series.due_ns() < at_ns {
            series.sample(fleet.workers().iter().map(engine_sample));
        }
    }

    /// Calls the observer's telemetry for all times that are due before `at_ns`.
    pub(super) fn show_telemetry(&mut self, at_ns: u64, ledger: &Ledger, fleet: &Fleet, routing: &Routing) {
        let Some((mut due_ns, interval_ns)) = self.telemetry else { return };
        while due_ns < at_ns {
            self.samples.clear();
            self.samples.extend(fleet.workers().iter().map(engine_sample));
            let telemetry = Telemetry {
                at_ns: due_ns,
                arrived: ledger.arrived(),
                ended: ledger.ended(),
                waiting_in_routers: fleet.pools().iter().map(|pool| routing.waiting(pool.role())).sum(),
                engines: &self.samples,
            };
            self.observer.telemetry(&telemetry);
            due_ns = due_ns.saturating_add(interval_ns);
        }
        self.telemetry = Some((due_ns, interval_ns));
    }

    pub(super) fn add_router_queue(&mut self, waited_ns: u64) {
        if let Some(series) = &mut self.series {
            series.add_router_queue(waited_ns);
        }
    }

    /// Reports a change of an engine's health.
    pub(super) fn incident(&mut self, at_ns: u64, worker: u32, incident: Incident) {
        if let Some(series) = &mut self.series {
            series.incident(at_ns, worker, incident);
        }
        self.observer.incident(worker, at_ns, incident);
    }

    pub(super) fn progress(&mut self, progress: &Progress) {
        self.observer.progress(progress);
    }

    pub(super) fn check_limits(&mut self) -> Result<(), String> {
        self.observer.check_limits()
    }

    pub(super) fn submitted(&mut self, worker: u32, tag: u64) {
        if self.wants_steps {
            self.observer.submitted(worker, tag);
        }
    }

    pub(super) fn aborted(&mut self, worker: u32, tag: u64) {
        self.observer.aborted(worker, tag);
    }

    pub(super) fn compiled(&mut self, worker: u32, tag: u64, compilation: Compilation) {
        if self.wants_steps {
            self.observer.compiled(worker, tag, compilation);
        }
    }

    pub(super) fn failed(&mut self, worker: u32, tag: u64) {
        if self.wants_steps {
            self.observer.failed(worker, tag);
        }
    }

    pub(super) fn scheduled(&mut self, index: u32, engine: &AnyEngine) {
        if self.wants_steps {
            self.observer.scheduled(index, engine);
        }
    }

    pub(super) fn started(&mut self, index: u32, [start_ns, end_ns]: [u64; 2], worker: &Worker) {
        if self.wants_steps {
            let (plan, engine) = (worker.plan(), worker.engine());
            self.observer.started(&StepRecord { worker: index, start_ns, end_ns, plan, engine });
        }
    }

    pub(super) fn applied(&mut self, index: u32, [start_ns, end_ns]: [u64; 2], engine: &AnyEngine) {
        if self.wants_steps {
            self.observer.applied(index, start_ns, end_ns, engine);
        }
    }

    pub(super) fn tokens(&mut self, tag: u64, num_tokens: u32, at_ns: u64) {
        if self.wants_requests && self.wants_steps {
            self.observer.tokens(tag, num_tokens, at_ns);
        }
    }

    pub(super) fn ended(&mut self, tag: u64, record: &RequestRecord) {
        if self.wants_requests {
            self.observer.ended(tag, record);
        }
    }
}

impl<O: Observer> Simulation<'_, O> {
    pub(super) fn check_limits(&mut self) -> Result<(), SimError> {
        self.observation.check_limits().map_err(|reason| {
            let Progress { now_ns, arrived, waiting, ended, .. } = self.progress();
            SimError::Limit { reason, at_ms: now_ns as f64 / 1e6, arrived, waiting, ended }
        })
    }

    pub(super) fn progress(&self) -> Progress {
        let Queues { at_ns, arrived, ended, running, waiting } = self.queues();
        Progress {
            now_ns: at_ns,
            arrived,
            ended,
            running,
            waiting,
            steps: self.ledger.steps(),
            expected: if self.facts.is_chained { None } else { self.traffic.sessions_known() },
        }
    }

    /// Adds the time until `until_ns` to the time with waiting requests, if any wait. Nothing changes before
    /// `until_ns`.
    pub(super) fn note_router_queue(&mut self, until_ns: u64) {
        if !self.observation.has_series() {
            return;
        }
        let waits = self.facts.config.topology.roles().iter().any(|&pool| self.waiting_in_front(pool).0 > 0);
        let waited_ns = if waits { until_ns.saturating_sub(self.clock.now_ns()) } else { 0 };
        self.observation.add_router_queue(waited_ns);
    }

    pub(super) fn note_incident(&mut self, worker: u32, incident: Incident) {
        self.observation.incident(self.clock.now_ns(), worker, incident);
    }
}

pub(in crate::simulation) fn engine_sample(worker: &Worker) -> EngineSample {
    let (load, totals) = (worker.engine().load(), worker.totals());
    EngineSample {
        running: load.num_running as u32,
        waiting: load.num_waiting as u32,
        kv_usage: f64::from(load.num_active_blocks) / f64::from(load.num_usable_blocks.max(1)),
        prefill_tokens: totals.prefill_tokens,
        decode_tokens: totals.computed_tokens - totals.prefill_tokens,
        preemptions: worker.engine_stats().preemptions,
    }
}
