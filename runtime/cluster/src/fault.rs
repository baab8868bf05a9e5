//! Faults: crashes, restarts and slow-downs, and what becomes of the requests.

use std::ops::Range;

use vcr_core::ServingEngine;

use crate::config::FaultKind;
use crate::error::{SimError, make_error};
use crate::event::Event;
use crate::metrics::Counter;
use crate::observe::Incident;
use crate::record::{FailReason, Outcome, RequestDetail};
use crate::sim::{Simulation, Stage};
use crate::worker::Health;

impl Simulation<'_> {
    pub(crate) fn strike(&mut self, index: u32) -> Result<(), SimError> {
        let fault = self.config.faults[index as usize].clone();
        let pool = &self.pools[fault.pool as usize];
        let worker = pool.first_worker + fault.engine * pool.config.data_parallel.size;
        match fault.kind {
            FaultKind::Crash { restart_after_ns } => self.crash(worker, restart_after_ns)?,
            FaultKind::SlowDown { factor, duration_ns } => {
                for rank in self.ranks_of(worker) {
                    self.observer.incident(rank, self.now_ns, Incident::SlowDown);
                    self.workers[rank as usize].slow_down(index, factor);
                }
                if let Some(duration_ns) = duration_ns {
                    let end = Event::SlowDownEnd { worker, fault: index };
                    self.events.push(self.now_ns.saturating_add(duration_ns), end);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn end_slow_down(&mut self, worker: u32, fault: u32) {
        for rank in self.ranks_of(worker) {
            self.observer.incident(rank, self.now_ns, Incident::SlowDownEnd);
            self.workers[rank as usize].end_slow_down(fault);
        }
    }

    /// An engine is up that was restarted or started; `index` is its first rank.
    pub(crate) fn bring_up(&mut self, index: u32, incarnation: u32) -> Result<(), SimError> {
        let worker = &self.workers[index as usize];
        if worker.incarnation != incarnation {
            return Ok(());
        }
        let incident = if worker.health() == Health::Starting { Incident::Up } else { Incident::Restart };
        let pool = worker.pool as usize;
        for rank in self.ranks_of(index) {
            self.observer.incident(rank, self.now_ns, incident);
            let worker = &mut self.workers[rank as usize];
            worker
                .bring_up(&self.config.name, &self.pools[pool].config)
                .map_err(|error| make_error(&self.pools[pool].config, worker.index, self.now_ns, error))?;
        }
        self.pools[pool].queue_moves = true;
        for tag in std::mem::take(&mut self.pools[pool].parked) {
            // Requests that ended while parked are gone.
            if self.live[tag as usize].is_some() {
                self.resume_parked(tag)?;
            }
        }
        Ok(())
    }

    fn resume_parked(&mut self, tag: u64) -> Result<(), SimError> {
        let live = self.live_mut(tag);
        match live.stage {
            Stage::Parked { pool: 0 } if live.destination.is_some() => {
                let (max_tokens, role) = self.first_part(tag);
                self.submit(tag, 0, max_tokens, role)
            }
            Stage::Parked { pool } if pool == 0 || live.stays_with_decode || live.source.is_none() => {
                self.dispatch(tag)
            }
            Stage::Parked { pool } => {
                let max_tokens = self.records[tag as usize].max_tokens;
                self.submit(tag, pool, max_tokens, vcr_core::KvRole::Destination)
            }
            Stage::First { .. } | Stage::Decode { .. } | Stage::Played { .. } => Ok(()),
        }
    }

    /// An engine dies, with all of its ranks; `index` is any of them.
    pub(crate) fn crash(&mut self, index: u32, restart_after_ns: Option<u64>) -> Result<(), SimError> {
        if !self.workers[index as usize].is_serving() {
            return Ok(());
        }
        let ranks = self.ranks_of(index);
        // What drains would not be needed again.
        let restart_after_ns = restart_after_ns.filter(|_| self.workers[index as usize].is_up());
        let pool = self.workers[index as usize].pool;
        let then = match restart_after_ns {
            Some(_) => Health::Restarting,
            // An autoscaler may put another in its place.
            None if self.pools[pool as usize].scaler.is_some() => Health::Off,
            None => Health::Down,
        };
        let mut tags: Vec<u64> = Vec::new();
        for rank in ranks.clone() {
            self.observer.incident(rank, self.now_ns, Incident::Crash);
            self.dissolve_bulk(rank);
            let worker = &mut self.workers[rank as usize];
            tags.extend(worker.engine.live_tags());
            worker.crash(self.now_ns, then);
            self.tell_crash(rank);
        }
        tags.sort_unstable();
        if let Some(after_ns) = restart_after_ns {
            let incarnation = self.workers[ranks.start as usize].incarnation;
            let up = Event::WorkerUp { worker: ranks.start, incarnation };
            self.events.push(self.now_ns.saturating_add(after_ns), up);
        }
        for tag in tags {
            self.lose(tag, &ranks)?;
        }
        if !self.pool_may_recover(pool) {
            let mut nowhere = std::mem::take(&mut self.pools[pool as usize].parked);
            nowhere.extend(self.give_up_queued(pool));
            for tag in nowhere {
                if self.live[tag as usize].is_some() {
                    self.withdraw(tag, &(0..0));
                    self.end(tag, Outcome::Failed(FailReason::NoEngine));
                }
            }
        }
        Ok(())
    }

    /// A request loses what the ranks `crashed` held of it, and with that everything.
    fn lose(&mut self, tag: u64, crashed: &Range<u32>) -> Result<(), SimError> {
        self.cancel_transfer(tag);
        self.tell_lost(tag);
        self.live_mut(tag).attempt += 1;
        self.withdraw(tag, crashed);
        let record = &mut self.records[tag as usize];
        let wasted = u64::from(record.output_tokens);
        let again = record.retries < self.config.max_retries;
        record.output_tokens = 0;
        record.scheduled_ns = None;
        record.prefill_end_ns = None;
        record.transfer_end_ns = None;
        record.first_token_ns = None;
        record.last_token_ns = None;
        record.decode_worker = None;
        record.detail =
            RequestDetail { route_overlap_tokens: record.detail.route_overlap_tokens, ..Default::default() };
        record.retries += u32::from(again);
        self.count(tag, Counter::WastedTokens, wasted);
        if again {
            self.count(tag, Counter::Retries, 1);
            self.dispatch(tag)
        } else {
            self.end(tag, Outcome::Failed(FailReason::EngineCrash));
            Ok(())
        }
    }
}
