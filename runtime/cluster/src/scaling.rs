//! Engines that come and go: ticks of autoscalers, start-ups and drains.
//!
//! Every pool has a place for each engine that it can ever have; those without an
//! engine are off. An autoscaler says at its ticks how many engines are to be up
//! or coming up. More of them start in the first places that are off; of fewer,
//! start-ups are called off first, newest first, and then the newest engines
//! drain: they finish what they have and then turn off. The ranks of an engine come
//! and go together.

use vcr_core::ServingEngine;
use vcr_core::scale::{Autoscaler, ScaleError, ScaleView};

use crate::config::ScalingConfig;
use crate::error::SimError;
use crate::event::Event;
use crate::observe::Incident;
use crate::sim::{PoolRouter, Simulation, Stage};
use crate::worker::Health;

/// The autoscaler of a pool.
pub(crate) struct Scaler {
    config: ScalingConfig,
    autoscaler: Box<dyn Autoscaler>,
    at_last_tick: Tally,
    /// How many engines have been started, those at the beginning included.
    started: u64,
}

impl Scaler {
    pub(crate) fn new(config: ScalingConfig, autoscaler: Box<dyn Autoscaler>, engines: u32) -> Self {
        Self { config, autoscaler, at_last_tick: Tally::default(), started: u64::from(engines) }
    }

    pub(crate) fn interval_ns(&self) -> u64 {
        self.config.interval_ns
    }
}

/// What the cluster's clients have asked for and seen so far. Requests that are
/// answered as recorded are no load of any engine and not in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) arrived_requests: u64,
    pub(crate) arrived_prompt_tokens: u64,
    pub(crate) arrived_output_tokens: u64,
    pub(crate) completed_requests: u64,
    ttft_count: u64,
    ttft_sum_ns: u128,
    token_gap_count: u64,
    token_gap_sum_ns: u128,
}

impl Tally {
    pub(crate) fn first_token(&mut self, after_ns: u64) {
        self.ttft_count += 1;
        self.ttft_sum_ns += u128::from(after_ns);
    }

    pub(crate) fn token_gaps(&mut self, gap_ns: u64, times: u64) {
        self.token_gap_count += times;
        self.token_gap_sum_ns += u128::from(gap_ns) * u128::from(times);
    }

    /// So many gaps, which sum up to `sum_ns`, of each of `requests`.
    pub(crate) fn token_gaps_sum(&mut self, sum_ns: u64, gaps: u64, requests: u64) {
        self.token_gap_count += gaps * requests;
        self.token_gap_sum_ns += u128::from(sum_ns) * u128::from(requests);
    }
}

/// A change of the number of engines that are up or coming up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rescaled {
    pub(crate) at_ns: u64,
    pub(crate) pool: u32,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl Simulation<'_> {
    /// The autoscaler of a pool decides.
    pub(crate) fn scale_tick(&mut self, pool: u32) -> Result<(), SimError> {
        self.turn_off_drained();
        let view = self.scale_view(pool);
        let tally = self.tally;
        let at_ms = self.now_ns as f64 / 1e6;
        let Some((name, scaler)) = self.scaler_mut(pool) else { return Ok(()) };
        scaler.at_last_tick = tally;
        let desired = scaler.autoscaler.desired(&view).map_err(|reason| scale_error(name.to_owned(), at_ms, reason))?;
        let desired = desired.clamp(scaler.config.min_engines, scaler.config.max_engines);
        // Before any step starts: what starts now must know how far it may go.
        if let Some(at_ns) = view.now_ns.checked_add(scaler.interval_ns()) {
            self.events.push(at_ns, Event::ScaleTick { pool });
        }
        self.scale_to(pool, desired);
        Ok(())
    }

    fn scaler_mut(&mut self, pool: u32) -> Option<(&str, &mut Scaler)> {
        let pool = &mut self.pools[pool as usize];
        Some((pool.config.name.as_str(), pool.scaler.as_mut()?))
    }

    fn scale_view(&self, pool: u32) -> ScaleView {
        let (now, before) = (self.tally, self.pools[pool as usize].scaler.as_ref().map(|scaler| scaler.at_last_tick));
        let before = before.unwrap_or_default();
        let (waiting_in_front, tokens_in_front) = self.in_front(pool);
        let mut view = ScaleView {
            now_ns: self.now_ns,
            arrived_requests: now.arrived_requests - before.arrived_requests,
            arrived_prompt_tokens: now.arrived_prompt_tokens - before.arrived_prompt_tokens,
            arrived_output_tokens: now.arrived_output_tokens - before.arrived_output_tokens,
            completed_requests: now.completed_requests - before.completed_requests,
            ttft_count: now.ttft_count - before.ttft_count,
            ttft_sum_ns: now.ttft_sum_ns - before.ttft_sum_ns,
            token_gap_count: now.token_gap_count - before.token_gap_count,
            token_gap_sum_ns: now.token_gap_sum_ns - before.token_gap_sum_ns,
            waiting_requests: waiting_in_front,
            outstanding_prefill_tokens: tokens_in_front,
            ..ScaleView::default()
        };
        for index in self.pools[pool as usize].engines() {
            match self.workers[index].health() {
                Health::Up => view.up_engines += 1,
                Health::Draining => view.draining_engines += 1,
                Health::Starting | Health::Restarting => view.starting_engines += 1,
                Health::Off | Health::Down => {}
            }
        }
        for worker in &self.workers[self.pools[pool as usize].workers()] {
            if worker.is_serving() {
                view.running_requests += worker.engine.num_running() as u64;
                view.waiting_requests += worker.engine.num_waiting() as u64;
                view.active_blocks += u64::from(worker.engine.num_active_blocks());
                view.total_blocks += u64::from(worker.engine.num_usable_blocks());
                view.outstanding_prefill_tokens += worker.engine.outstanding_prefill_tokens();
            }
        }
        view
    }

    /// Requests that wait in front of the engines of a pool, and their prompt
    /// tokens as far as that pool computes them.
    fn in_front(&self, index: u32) -> (u64, u64) {
        let pool = &self.pools[index as usize];
        let (mut requests, mut tokens) = match &pool.router {
            PoolRouter::Kv(router) => router.queued(),
            PoolRouter::Asked(_) => (0, 0),
        };
        for &tag in &pool.parked {
            // Requests that ended while parked are gone.
            let Some(live) = self.live[tag as usize].as_deref() else { continue };
            if live.stage == (Stage::Parked { pool: index }) {
                requests += 1;
                if index == 0 || live.stays_with_decode {
                    tokens += u64::from(self.records[tag as usize].prompt_tokens);
                }
            }
        }
        (requests, tokens)
    }

    fn scale_to(&mut self, pool: u32, desired: u32) {
        let places = self.pools[pool as usize].engines();
        let is_coming = |health| matches!(health, Health::Starting | Health::Restarting);
        let mut off: Vec<u32> = Vec::new();
        let mut here: Vec<(bool, u64, u32)> = Vec::new();
        for index in places {
            let worker = &self.workers[index];
            match worker.health() {
                Health::Off => off.push(index as u32),
                health if health == Health::Up || is_coming(health) => {
                    here.push((is_coming(health), worker.started, index as u32));
                }
                _ => {}
            }
        }
        let from = here.len() as u32;
        let starting = desired.saturating_sub(from).min(off.len() as u32);
        for &index in &off[..starting as usize] {
            self.start_up(index);
        }
        // What is coming before what is up, and of either the newest first.
        here.sort_unstable_by(|a, b| b.cmp(a));
        let leaving = from.saturating_sub(desired);
        for &(is_coming, _, index) in &here[..leaving as usize] {
            if is_coming {
                self.turn_off(index);
            } else {
                self.drain(index);
            }
        }
        let to = from + starting - leaving;
        if to != from {
            self.pools[pool as usize].queue_moves = true;
            self.rescaled.push(Rescaled { at_ns: self.now_ns, pool, from, to });
        }
    }

    fn start_up(&mut self, index: u32) {
        let ranks = self.ranks_of(index);
        let (pool, incarnation) = (self.workers[index as usize].pool, self.workers[index as usize].incarnation);
        let Some(scaler) = &mut self.pools[pool as usize].scaler else { return };
        for rank in ranks {
            self.workers[rank as usize].start(self.now_ns, scaler.started);
            self.observer.incident(rank, self.now_ns, Incident::StartUp);
        }
        scaler.started += 1;
        let up = Event::WorkerUp { worker: index, incarnation };
        self.events.push(self.now_ns.saturating_add(scaler.config.startup_ns), up);
    }

    fn drain(&mut self, index: u32) {
        for rank in self.ranks_of(index) {
            self.workers[rank as usize].drain();
            self.observer.incident(rank, self.now_ns, Incident::Drain);
        }
        // It may have nothing to finish.
        self.dirty.push(index);
    }

    fn turn_off(&mut self, index: u32) {
        for rank in self.ranks_of(index) {
            self.workers[rank as usize].turn_off(self.now_ns);
            self.tell_crash(rank);
            self.observer.incident(rank, self.now_ns, Incident::Off);
        }
    }

    /// Turns off what has finished draining, of the workers whose situation has
    /// changed at this instant.
    pub(crate) fn turn_off_drained(&mut self) {
        for position in 0..self.dirty.len() {
            let index = self.dirty[position];
            if self.ranks_of(index).all(|rank| self.workers[rank as usize].is_drained()) {
                self.turn_off(index);
            }
        }
    }

    /// Whether nothing but ticks is to come, and no tick will change that: each
    /// autoscaler has seen what there is.
    pub(crate) fn only_ticks_are_left(&mut self) -> bool {
        if self.events.has_more_than_ticks() {
            self.only_ticks_since_ns = None;
            return false;
        }
        let since_ns = *self.only_ticks_since_ns.get_or_insert(self.now_ns);
        let intervals = self.pools.iter().filter_map(|pool| pool.scaler.as_ref().map(Scaler::interval_ns));
        let all_are_over = self.ended == self.records.len() as u64;
        all_are_over || self.now_ns - since_ns > intervals.max().unwrap_or(0)
    }
}

/// The failure of the autoscaler of a pool.
pub(crate) fn scale_error(pool: String, at_ms: f64, reason: ScaleError) -> SimError {
    SimError::Scale { pool, at_ms, reason }
}
