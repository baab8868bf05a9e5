//! Ends runs that make no progress, and describes their state.
//!
//! There are two cases: endless steps without duration, which a latency model may cause, and unfinished requests
//! without any event left.

use vcr_core::ServingEngine;
use vcr_core::plan::AdmissionStop;

use super::Simulation;
use crate::error::SimError;
use crate::in_flight::Stage;
use crate::ledger::record::Outcome;
use crate::observe::Observer;

impl<O: Observer> Simulation<'_, O> {
    /// The error for too many steps at one instant.
    pub(super) fn time_stands_still(&self) -> SimError {
        let at_work =
            self.fleet.workers().iter().find(|worker| worker.is_executing() || worker.engine().load().num_running > 0);
        let place = at_work.map_or_else(String::new, |worker| match worker.engine().running_tags().first() {
            Some(tag) => format!(" of engine `{}` for request {tag}", self.fleet.engine_name(worker)),
            None => format!(" of engine `{}`", self.fleet.engine_name(worker)),
        });
        SimError::TimeStandsStill { at_ms: self.clock.now_ns() as f64 / 1e6, place }
    }

    /// Checks that all requests have ended when no event is left.
    pub(super) fn check_that_all_ended(&self) -> Result<(), SimError> {
        let mut open = (self.ledger.first_open()..).zip(self.ledger.open_records());
        let Some((first, _)) = open.find(|(_, record)| record.outcome == Outcome::Unfinished) else { return Ok(()) };
        Err(SimError::Stuck {
            at_ms: self.clock.now_ns() as f64 / 1e6,
            requests: self.ledger.arrived() - self.ledger.ended(),
            first,
            reason: self.whereabouts(first),
        })
    }

    /// Stage of an unfinished request, and the event that it waits for.
    fn whereabouts(&self, tag: u64) -> String {
        let Some(live) = self.in_flight.find(tag) else { return "has ended".to_owned() };
        let (worker, id) = match live.stage {
            Stage::Waiting { pool } => {
                let name = &self.fleet.pool(pool).config().name;
                return format!("waits for pool `{name}`: for an engine, or its router");
            }
            Stage::Refused => return "is rejected when a step ends".to_owned(),
            Stage::Answered => return "has its answer on the way".to_owned(),
            Stage::Played { next_output, .. } => return format!("waits for its recorded output {next_output}"),
            Stage::Prefill { worker, id } | Stage::Decode { worker, id } => (self.fleet.worker(worker), id),
        };
        let engine = self.fleet.engine_name(worker);
        if !worker.lifecycle().is_serving() {
            return format!("is at engine `{engine}`, which is not up");
        }
        if live.source.is_some_and(|(_, held)| held == id) {
            return format!("has its KV at engine `{engine}`, which holds it for a transfer");
        }
        if worker.engine().running_tags().contains(&tag) {
            return format!("runs at engine `{engine}`, which takes no step");
        }
        let waits_for = match worker.engine().plan().admission_stop {
            AdmissionStop::Drained => "for KV that is on its way, or for a step",
            AdmissionStop::Budget => "for room in the token budget of a step",
            AdmissionStop::RunningSlots => "for a running slot to free up",
            AdmissionStop::Blocks => "for KV blocks",
            AdmissionStop::Preemption => "until a preempted request has its blocks again",
            AdmissionStop::Unchunkable => "for a step that has room for its whole prompt",
            AdmissionStop::Drafts => "for room for its drafts in a step",
            AdmissionStop::Encoder => "for the encoder's budget or room in the encoder cache",
            AdmissionStop::Interval => "for a step that may compute prompts",
            AdmissionStop::Paused => "while the engine is paused",
        };
        format!("waits at engine `{engine}` {waits_for}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, price_until_horizon};
    use vcr_core::{EngineConfig, EngineConfigInput};

    use super::*;
    use crate::config::{PoolConfig, RunConfig, SyntheticInput, Topology};
    use crate::observe::Unobserved;

    /// A latency model with a constant step time.
    struct Constant(u64);

    impl LatencyModel for Constant {
        fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
            price_until_horizon(batch, durations_ns, |_| Ok(self.0))
        }
    }

    /// A run that sends all requests at once to an engine with two running slots.
    fn config(step_ns: u64, requests: u32, output_tokens: u32) -> RunConfig {
        let engine = EngineConfigInput { max_num_seqs: 2, ..EngineConfigInput::default() };
        let engine = EngineConfig::new(engine).expect("valid");
        let pool = PoolConfig::new("pool", 1, engine, Arc::new(move |_| Ok(Box::new(Constant(step_ns)))));
        let input = SyntheticInput {
            input_tokens: 10,
            output_tokens,
            request_count: requests,
            replay_concurrency: Some(u64::from(requests)),
            ..SyntheticInput::default()
        };
        RunConfig {
            seed: 1,
            workloads: vec![input.workload("load").expect("valid")],
            max_time_ns: Some(1000),
            ..RunConfig::new("run", Topology::Aggregated(pool))
        }
    }

    #[test]
    fn a_stuck_request_is_named_with_what_it_waits_for() {
        let mut observer = Unobserved;
        let mut simulation = Simulation::new(config(10, 10, 1000), &mut observer).expect("valid");
        simulation.run().expect("the run is cut off, not stuck");
        let SimError::Stuck { requests, first, reason, .. } = simulation.check_that_all_ended().unwrap_err() else {
            panic!("another error");
        };
        assert_eq!((requests, first), (10, 0));
        assert_eq!(reason, "runs at engine `pool 0`, which takes no step");
        assert_eq!(simulation.whereabouts(9), "waits at engine `pool 0` for a running slot to free up");
    }

    #[test]
    fn steps_without_time_are_reported_with_their_engine() {
        let mut observer = Unobserved;
        let mut simulation = Simulation::new(config(0, 30, 100_000), &mut observer).expect("valid");
        let error = simulation.run().unwrap_err().to_string();
        assert!(error.contains("steps of engine `pool 0` for request "), "{error}");
    }
}
