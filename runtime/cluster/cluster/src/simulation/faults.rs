//! Planned and injected faults: crashes, restarts, slow-downs and stalls, and their effects on requests.

use std::ops::Range;

use vcr_core::ServingEngine;
use vcr_core::fault::FaultAction;
use vcr_core::plan::RequestOutput;

use super::Simulation;
use crate::config::{FaultKind, PoolRole};
use crate::error::SimError;
use crate::event::Event;
use crate::fleet::Health;
use crate::in_flight::{Live, Stage};
use crate::ledger::record::{FailReason, Outcome};
use crate::observe::{Incident, Observer};

impl<O: Observer> Simulation<'_, O> {
    pub(super) fn apply_planned_fault(&mut self, index: u32) -> Result<(), SimError> {
        let fault = &self.facts.config.faults[index as usize];
        let pool = self.fleet.pool(fault.pool);
        let worker = pool.first_worker() + fault.engine * pool.config().data_parallel.size;
        match fault.kind {
            FaultKind::Crash { restart_after_ns } => self.crash(worker, restart_after_ns)?,
            FaultKind::SlowDown { factor, duration_ns } => {
                for rank in self.fleet.ranks_of(worker) {
                    self.note_incident(rank, Incident::SlowDown);
                    self.fleet.worker_mut(rank).slow_down(index, factor);
                }
                if let Some(duration_ns) = duration_ns {
                    let end = Event::SlowDownEnd { worker, fault: index };
                    self.events.push(self.clock.now_ns().saturating_add(duration_ns), end);
                }
            }
        }
        Ok(())
    }

    pub(super) fn end_slow_down(&mut self, worker: u32, fault: u32) {
        for rank in self.fleet.ranks_of(worker) {
            self.note_incident(rank, Incident::SlowDownEnd);
            self.fleet.worker_mut(rank).end_slow_down(fault);
        }
    }

    /// Brings up an engine that was started or restarted; `index` is its first rank.
    pub(super) fn bring_up(&mut self, index: u32, incarnation: u32) -> Result<(), SimError> {
        let worker = self.fleet.worker(index);
        if worker.incarnation() != incarnation {
            return Ok(());
        }
        let incident = if worker.lifecycle().health() == Health::Starting { Incident::Up } else { Incident::Restart };
        let pool = worker.role();
        for rank in self.fleet.ranks_of(index) {
            self.note_incident(rank, incident);
        }
        self.fleet.bring_up(index, &self.facts.config.name, self.clock.now_ns())?;
        self.routing.may_release(pool);
        for tag in self.routing.take_parked(pool) {
            // Requests that ended while parked are no longer in flight.
            if let Some(&Live { stage: Stage::Waiting { pool }, .. }) = self.in_flight.find(tag) {
                self.resume(tag, pool)?;
            }
        }
        Ok(())
    }

    /// Continues a request that waited for an engine of `pool`.
    fn resume(&mut self, tag: u64, pool: PoolRole) -> Result<(), SimError> {
        let live = self.in_flight.get(tag);
        let has_blocks_or_kv = match pool {
            PoolRole::Aggregated | PoolRole::Prefill => live.destination.is_some(),
            PoolRole::Decode => !live.stays_with_decode && live.source.is_some(),
        };
        if has_blocks_or_kv { self.submit(tag, pool) } else { self.dispatch(tag) }
    }

    /// Crashes an engine with all its ranks; `index` is any rank of it.
    fn crash(&mut self, index: u32, restart_after_ns: Option<u64>) -> Result<(), SimError> {
        let worker = self.fleet.worker(index);
        if !worker.lifecycle().is_serving() {
            return Ok(());
        }
        // A draining engine is not restarted.
        let restart_after_ns = restart_after_ns.filter(|_| worker.lifecycle().is_up());
        let pool = worker.role();
        let then = match restart_after_ns {
            Some(_) => Health::Restarting,
            // An autoscaler may start another engine in its place.
            None if self.fleet.pool(pool).scales() => Health::Off,
            None => Health::Down,
        };
        let ranks = self.fleet.ranks_of(index);
        let mut tags: Vec<u64> = Vec::new();
        for rank in ranks.clone() {
            self.note_incident(rank, Incident::Crash);
            self.dissolve_steady_decode(rank);
            let worker = self.fleet.worker_mut(rank);
            // The engine may also hold cancelled requests whose blocks a load still fills. They are skipped.
            let live = |tag: &u64| self.in_flight.find(*tag);
            let held = worker.engine().live_tags().into_iter();
            tags.extend(held.filter(|tag| live(tag).is_some_and(|live| live.is_at(&ranks))));
            if worker.engine().step_in_flight() {
                let refused = worker.plan().refused.iter().copied();
                tags.extend(refused.filter(|tag| live(tag).is_some_and(|live| live.stage == Stage::Refused)));
            }
            worker.crash(self.clock.now_ns(), then);
            self.routing.crashed(worker);
            self.ledger.forget_steady_decode(rank);
            self.expect_loads_of_others(rank);
        }
        tags.sort_unstable();
        if let Some(after_ns) = restart_after_ns {
            let incarnation = self.fleet.worker(ranks.start).incarnation();
            let up = Event::WorkerUp { worker: ranks.start, incarnation };
            self.events.push(self.clock.now_ns().saturating_add(after_ns), up);
        }
        for tag in tags {
            self.lose(tag, &ranks)?;
        }
        if !self.fleet.may_recover(pool) {
            for tag in self.routing.drain(pool) {
                if self.in_flight.find(tag).is_some() {
                    self.fail_without_engine(tag);
                }
            }
        }
        Ok(())
    }

    /// Restarts a request that lost its state on the ranks `crashed`.
    fn lose(&mut self, tag: u64, crashed: &Range<u32>) -> Result<(), SimError> {
        self.cancel_transfer(tag);
        self.routing.lost(self.clock.now_ns(), tag);
        self.in_flight.get_mut(tag).attempt += 1;
        self.withdraw(tag, crashed);
        if self.in_flight.get(tag).abandoned.is_some() {
            self.end_abandoned(tag);
            return Ok(());
        }
        if self.ledger.lose(tag, self.facts.config.max_retries) {
            self.dispatch(tag)
        } else {
            self.end(tag, Outcome::Failed(FailReason::EngineCrash));
            Ok(())
        }
    }

    /// Shows an arriving request to the failure injector of its worker, if any.
    pub(super) fn announce(&mut self, worker: u32, tag: u64, max_tokens: u32) {
        let Some(injector) = self.fleet.worker_mut(worker).injector_mut() else { return };
        let record = self.ledger.record(tag);
        let name = format!("{}-{}-{}", self.traffic.name(record.workload), record.session, record.turn);
        let priority = self.in_flight.find(tag).map_or(0, |live| live.priority);
        injector.arrived(tag, name, record.prompt_tokens, max_tokens, priority);
    }

    /// Shows the outputs of the step that just ended to the worker's failure injector, if any, and applies the
    /// injector's faults.
    pub(super) fn inject(&mut self, index: u32, outputs: &[RequestOutput]) -> Result<(), SimError> {
        let worker = self.fleet.worker_mut(index);
        if worker.injector_mut().is_none() {
            return Ok(());
        }
        let (step, moves_on) = (worker.step_number(), worker.role() == PoolRole::Prefill);
        let Some(injector) = worker.injector_mut() else { return Ok(()) };
        for output in outputs {
            if output.num_tokens > 0 {
                // The record does not count tokens of a prompt that moves on.
                let emitted = self.ledger.record(output.tag).output_tokens;
                injector.emitted(output.tag, if moves_on { output.num_tokens } else { emitted });
            }
            if moves_on || output.finish.is_some() {
                injector.ended(output.tag);
            }
        }
        let decided = injector.decide(self.clock.now_ns(), step);
        let actions = decided.map_err(|reason| {
            let config = self.fleet.pool_of(index).config();
            SimError::Failures {
                pool: config.name.clone(),
                engine: config.rank_name(self.fleet.worker(index).index()),
                at_ms: self.clock.now_ns() as f64 / 1e6,
                reason,
            }
        })?;
        for action in actions {
            self.apply_fault(index, action)?;
        }
        Ok(())
    }

    /// Applies an injected fault. Message faults are counted but have no effect, because simulated engines exchange
    /// no messages.
    fn apply_fault(&mut self, index: u32, action: FaultAction) -> Result<(), SimError> {
        let worker = self.fleet.worker_mut(index);
        let is_serving = worker.lifecycle().is_serving();
        match action {
            FaultAction::FailRequest { slot } => {
                // The request is missing if a crash in the same answer of the injector removed it.
                if let Some(tag) = worker.injector_mut().and_then(|injector| injector.request(slot)) {
                    self.fail_request(tag);
                }
                Ok(())
            }
            FaultAction::Stall { duration_ns } if is_serving => {
                self.stall(index, duration_ns);
                Ok(())
            }
            FaultAction::Crash { restart_after_ns } if is_serving => self.crash(index, restart_after_ns),
            FaultAction::Stall { .. }
            | FaultAction::Crash { .. }
            | FaultAction::DropMessage
            | FaultAction::DuplicateMessage
            | FaultAction::CorruptMessage
            | FaultAction::DelayMessage { .. }
            | FaultAction::LoseKvEvents
            | FaultAction::FailUtility => {
                self.ledger.count_ignored_fault();
                Ok(())
            }
        }
    }

    /// Ends a request with an error. The error is the client's answer, so the client does not retry.
    fn fail_request(&mut self, tag: u64) {
        self.cancel_transfer(tag);
        self.withdraw(tag, &(0..0));
        self.ledger.waste(tag);
        self.end(tag, Outcome::Failed(FailReason::Injected));
    }

    fn stall(&mut self, index: u32, duration_ns: u64) {
        self.note_incident(index, Incident::Stall);
        self.ledger.count_stall();
        let until_ns = self.clock.now_ns().saturating_add(duration_ns);
        let worker = self.fleet.worker_mut(index);
        worker.stall(self.clock.now_ns(), until_ns);
        let incarnation = worker.incarnation();
        self.events.push(until_ns, Event::StallEnd { worker: index, incarnation });
    }

    /// Ends a stall, unless a longer one has begun or the engine died.
    pub(super) fn end_stall(&mut self, index: u32, incarnation: u32) {
        let worker = self.fleet.worker_mut(index);
        if worker.incarnation() == incarnation && worker.end_stall(self.clock.now_ns()) {
            self.note_incident(index, Incident::StallEnd);
            self.fleet.note_change(index);
        }
    }
}
