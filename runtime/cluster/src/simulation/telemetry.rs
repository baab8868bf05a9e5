//! Samples of engines for time series and for observers.

use vcr_core::ServingEngine;

use super::Simulation;
use crate::fleet::Worker;
use crate::observe::{EngineSample, Incident, Observer, Telemetry};

impl<O: Observer> Simulation<'_, O> {
    /// Takes the samples of time series that are due before `at_ns`, the next instant at
    /// which anything happens.
    pub(super) fn sample_series(&mut self, at_ns: u64) {
        let Some(series) = &mut self.series else { return };
        while series.due_ns() < at_ns {
            series.sample(self.fleet.workers().iter().map(engine_sample));
        }
    }

    /// Nothing happens until then, so what waits in front of engines waits for that long.
    pub(super) fn note_router_queue(&mut self, until_ns: u64) {
        if self.series.is_none() {
            return;
        }
        let waits = self.facts.config.topology.roles().iter().any(|&pool| self.waiting_in_front(pool).0 > 0);
        let waited_ns = if waits { until_ns.saturating_sub(self.now_ns) } else { 0 };
        if let Some(series) = &mut self.series {
            series.add_router_queue(waited_ns);
        }
    }

    /// Shows the observer the engines as they were before `at_ns`, at the instants it wants.
    pub(super) fn show_telemetry(&mut self, at_ns: u64) {
        let Some((mut due_ns, interval_ns)) = self.telemetry else { return };
        while due_ns < at_ns {
            self.scratch.samples.clear();
            self.scratch.samples.extend(self.fleet.workers().iter().map(engine_sample));
            let telemetry = Telemetry {
                at_ns: due_ns,
                arrived: self.ledger.arrived(),
                ended: self.ledger.ended(),
                waiting_in_routers: self.facts.config.topology.roles().iter().map(|role| self.waiting_at_router(*role)).sum(),
                engines: &self.scratch.samples,
            };
            self.observer.telemetry(&telemetry);
            due_ns = due_ns.saturating_add(interval_ns);
        }
        self.telemetry = Some((due_ns, interval_ns));
    }

    /// An engine changed its health.
    pub(super) fn note_incident(&mut self, worker: u32, incident: Incident) {
        if let Some(series) = &mut self.series {
            series.incident(self.now_ns, worker, incident);
        }
        self.observer.incident(worker, self.now_ns, incident);
    }
}

pub(super) fn engine_sample(worker: &Worker) -> EngineSample {
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
