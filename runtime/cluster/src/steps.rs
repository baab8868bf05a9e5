//! Steps of engines: which start, how far each may go by itself, what ends them.

use vcr_core::ServingEngine;
use vcr_core::latency::LatencyError;
use vcr_core::plan::ScheduledKind;

use crate::config::PoolConfig;
use crate::error::{MakeError, SimError, latency_error, make_error, policy_error};
use crate::event::Event;
use crate::metrics::Trend;
use crate::observe::StepRecord;
use crate::sim::{PoolRouter, Simulation};
use crate::worker::Worker;

impl Simulation<'_> {
    /// Lets every worker whose situation changed decide and start steps.
    pub(crate) fn start_steps(&mut self) -> Result<(), SimError> {
        if self.sources_go_on() {
            self.exhaust_instant_steps()?;
        }
        self.start_dirty()
    }

    /// Starts steps of the workers in `dirty`.
    pub(crate) fn start_dirty(&mut self) -> Result<(), SimError> {
        let mut dirty = std::mem::take(&mut self.dirty);
        self.widen_to_engines(&mut dirty);
        dirty.sort_unstable();
        dirty.dedup();
        // All of them are scheduled before the first is priced: what a transfer
        // brings may end a stretch of steps that could be told in advance.
        for &worker in &dirty {
            while self.may_decide(worker) && self.schedule_step(worker)? {}
        }
        dirty.retain(|&worker| self.may_start(worker));
        // KV that one of several ranks has reserved blocks for may be there at once.
        let is_settled = self.events.next_but_step_ends() != Some(self.now_ns);
        let mut postponed = Vec::new();
        let mut rest = &dirty[..];
        while let Some(&worker) = rest.first() {
            if self.has_barrier(worker) {
                let ranks = self.ranks_of(worker);
                let (together, others) = rest.split_at(rest.partition_point(|&rank| rank < ranks.end));
                rest = others;
                if is_settled {
                    self.start_together(ranks, together)?;
                } else {
                    postponed.push(worker);
                }
            } else {
                rest = &rest[1..];
                self.start_step(worker, rest.is_empty())?;
            }
        }
        dirty.clear();
        // Starting a step only ever adds events, never changes other workers.
        debug_assert!(self.dirty.is_empty());
        dirty.append(&mut postponed);
        self.dirty = dirty;
        Ok(())
    }

    /// Lets a worker decide its next step. False if that came to nothing.
    fn schedule_step(&mut self, index: u32) -> Result<bool, SimError> {
        let worker = &mut self.workers[index as usize];
        let now_ns = self.now_ns;
        worker.consult(now_ns).map_err(|reason| {
            let pool = &self.pools[worker.pool as usize].config;
            policy_error(pool, worker.index, worker.engine_stats().steps, now_ns, reason)
        })?;
        if let Some(tiers) = worker.engine.kv_tiers_mut() {
            tiers.advance(now_ns);
        }
        let plan = worker.engine.schedule();
        for &tag in &plan.preempted {
            let record = &mut self.records[tag as usize];
            record.preemptions += 1;
            record.detail.preempted_since_ns = Some(now_ns);
        }
        // Newly admitted requests come after all that were running.
        for entry in plan.scheduled.iter().rev().take_while(|entry| entry.kind != ScheduledKind::Running) {
            let record = &mut self.records[entry.tag as usize];
            if record.scheduled_ns.is_none() {
                record.scheduled_ns = Some(now_ns);
                record.cached_tokens = entry.num_computed_tokens;
            }
            if record.decode_worker.is_none() {
                record.detail.admitted(now_ns, entry.num_computed_tokens);
            } else {
                record.detail.admitted(now_ns, 0);
                record.detail.decode_scheduled_ns.get_or_insert(now_ns);
            }
        }
        // A prompt that goes on is before all others.
        if let Some(entry) = plan.scheduled.first()
            && entry.is_prefill
            && entry.kind == ScheduledKind::Running
            && self.pools[worker.pool as usize].config.engine.reports_chunks_as_cached()
        {
            let detail = &mut self.records[entry.tag as usize].detail;
            detail.most_cached_tokens = detail.most_cached_tokens.max(entry.num_computed_tokens);
        }
        // A step that did nothing but preempt has made room for another.
        let any = !plan.is_empty() || !plan.preempted.is_empty();
        self.remote_loads.clear();
        self.remote_loads.extend_from_slice(&plan.remote_loads);
        self.tier_loads.clear();
        self.tier_loads.extend_from_slice(&plan.tier_loads);
        if any && self.wants_steps {
            self.observer.scheduled(index, &worker.engine);
        }
        self.hear_untold(index);
        self.tell_events_of_start(index);
        let mut loads = std::mem::take(&mut self.remote_loads);
        for &load in &loads {
            self.start_transfer(load)?;
        }
        loads.clear();
        self.remote_loads = loads;
        let loads = std::mem::take(&mut self.tier_loads);
        self.note_tier_loads(index, &loads);
        self.tier_loads = loads;
        Ok(any)
    }

    /// Starts the oldest step that `index` has scheduled, and goes through those
    /// that must follow unless they are watched. `is_last` unless other workers
    /// have yet to start at this instant.
    fn start_step(&mut self, index: u32, is_last: bool) -> Result<(), SimError> {
        let now_ns = self.now_ns;
        let pool = self.workers[index as usize].pool;
        let horizon_ns = self.horizon_ns(index, is_last);
        let worker = &mut self.workers[index as usize];
        // A prompt that is computed for another pool ends with its first token.
        let told = matches!(&self.pools[pool as usize].router, PoolRouter::Kv(router) if router.needs_single_steps());
        let ahead = !self.wants_steps && !told && !worker.takes_single_steps() && (pool > 0 || self.pools.len() == 1);
        let priced = worker.price(now_ns, horizon_ns, ahead);
        let range =
            priced.map_err(|reason| pricing_error(&self.pools[pool as usize].config, worker, now_ns, reason))?;
        let priced_ns = worker.take_durations_ns();
        let durations_ns = &priced_ns[range.clone()];
        self.steps += durations_ns.len() as u64;
        self.tell_events_of_end(index, now_ns.saturating_add(durations_ns[0]));
        if durations_ns.len() > 1 {
            let worker = &mut self.workers[index as usize];
            let batch_requests = worker.plan().shape.batch_requests();
            worker.skip(durations_ns.len() as u32 - 1, &self.output_seeds);
            self.tell_events_of_stretch(index, durations_ns);
            self.emit_stretch(index, batch_requests, durations_ns);
        }
        let worker = &mut self.workers[index as usize];
        worker.give_back(priced_ns);
        let end_ns = worker.book(now_ns, range);
        self.expect_step_end(index, end_ns);
        Ok(())
    }

    /// A step of a worker has started and will end then.
    pub(crate) fn expect_step_end(&mut self, index: u32, end_ns: u64) {
        let worker = &self.workers[index as usize];
        let end = Event::StepEnd { worker: index, incarnation: worker.incarnation };
        self.events.push_step_end(worker.pool, end_ns, end);
        if self.wants_steps {
            let (start_ns, plan, engine) = (self.now_ns, worker.plan(), &worker.engine);
            self.observer.started(&StepRecord { worker: index, start_ns, end_ns, plan, engine });
        }
    }

    /// Until when nothing from outside can reach a worker.
    ///
    /// What is not in the queue yet comes out of a step of another engine: the
    /// end of a request that another waits for, or a prompt that moves on to
    /// decode. A prefill engine that waits for blocks may start such a step as
    /// soon as any decode engine takes a prompt from it.
    fn horizon_ns(&self, index: u32, all_priced: bool) -> u64 {
        let pool = self.workers[index as usize].pool;
        let feeding_workers = &self.workers[..self.pools[pool as usize].first_worker as usize];
        let any_pool = self.chained || feeding_workers.iter().any(Worker::can_step);
        // What is due of hand-overs comes at this instant, too.
        if any_pool && !all_priced || !self.due.is_empty() {
            return self.now_ns;
        }
        let feeding_pools = if any_pool { self.pools.len() as u32 } else { pool };
        let steps = (0..feeding_pools).filter_map(|other| self.events.next_step_end(other));
        // Steps that start after the last instant of the run do not happen.
        let end = self.config.max_time_ns.map(|max| max.saturating_add(1));
        let arrival = self.foreseen_arrival_ns(index).or_else(|| self.events.next_arrival());
        self.events.next_other().into_iter().chain(arrival).chain(steps).chain(end).min().unwrap_or(u64::MAX)
    }

    /// When the next session comes to a worker, where that is known: those of a single
    /// workload start at times of its own and go to the workers in turn.
    fn foreseen_arrival_ns(&self, index: u32) -> Option<u64> {
        let ([workload], [pool]) = (&self.workloads[..], &self.pools[..]) else { return None };
        let PoolRouter::Asked(router) = &pool.router else { return None };
        if self.chained || !self.is_steady {
            return None;
        }
        let before = router.requests_before(self.workers[index as usize].index)?;
        workload.foreseen_start_ns(before)
    }

    pub(crate) fn end_step(&mut self, index: u32) -> Result<(), SimError> {
        let worker = &mut self.workers[index as usize];
        let pool = worker.pool;
        let start_ns = worker.step_start_ns;
        // Steps that a crash cuts off are none.
        if self.config.samples_steps {
            self.step_metrics.sample(Trend::StepTime, self.now_ns - start_ns);
            self.step_metrics.sample(Trend::BatchSize, worker.plan().shape.batch_requests());
        }
        worker.engine.offload_prompts(self.now_ns);
        let config = &self.pools[pool as usize].config;
        worker
            .update(&self.output_seeds, &config.acceptance_rates, &self.records)
            .map_err(|reason| make_error(config, worker.index, self.now_ns, MakeError::Tokens(reason)))?;
        self.go_on_between_steps(index)?;
        let worker = &self.workers[index as usize];
        if self.wants_steps {
            self.observer.applied(index, start_ns, self.now_ns, &worker.engine);
        }
        self.tell_kv_events(index, self.now_ns);
        self.workers[index as usize].clear_kv_events();
        self.emit_bulk_step(index);
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.clear();
        outputs.extend_from_slice(&self.workers[index as usize].engine.outputs().outputs);
        let prefill_only = self.pools.len() > 1 && pool == 0;
        for output in &outputs {
            if prefill_only {
                if output.finish.is_some() {
                    self.end_prefill(index, output)?;
                }
            } else {
                self.emit(output.tag, output.num_tokens, pool);
                if output.finish.is_some() {
                    self.keep_answer(index, output.tag);
                    self.complete(output.tag);
                }
            }
        }
        self.inject(index, &outputs)?;
        self.outputs = outputs;
        self.dirty.push(index);
        Ok(())
    }
}

/// The failure of a worker's latency model to price the step that starts now.
pub(crate) fn pricing_error(config: &PoolConfig, worker: &Worker, now_ns: u64, reason: LatencyError) -> SimError {
    let step = worker.engine_stats().steps - worker.engine.steps_in_flight() as u64;
    latency_error(config, worker.index, step..step + worker.num_priced(), now_ns, reason)
}
