//! The engines of a run: pools of workers, their ranks, and autoscaling.
//!
//! Every rank is a worker with its own scheduler, KV blocks and clock. The ranks of an engine have adjacent
//! indices, and start, stop and crash together. With a barrier they also step together: ranks with work start at
//! the same instant and end with the slowest rank. Requests that reach a rank without work wait until then.

mod scaling;
mod worker;

use std::collections::BTreeMap;
use std::iter::StepBy;
use std::ops::Range;
use std::sync::Arc;

use crate::config::{PoolConfig, PoolRole, RunConfig, ScalerFactory};
use crate::error::{SimError, make_error};
pub(crate) use scaling::Rescaled;
use scaling::Scaler;
pub use worker::TokenRange;
pub(crate) use worker::{Health, Worker};

use vcr_core::scale::{Autoscaler, DESIRED_ENGINES_MAX, EngineGauges, PoolView, ScaleError};
use vcr_policy::kubernetes::{ControllerConfig, KubernetesScaler};
use vcr_policy::target_load::{ENGINES_MAX, PoolWork, TargetPolicy, TargetScaler};

pub(crate) struct Pool {
    role: PoolRole,
    config: PoolConfig,
    first_worker: u32,
    scaler: Option<Scaler>,
    /// The worker that currently holds the pool's shared KV tiers, if workers share them. Tiers move to a worker
    /// before it uses them.
    tiers_at: Option<u32>,
}

impl Pool {
    pub(crate) fn role(&self) -> PoolRole {
        self.role
    }

    pub(crate) fn config(&self) -> &PoolConfig {
        &self.config
    }

    pub(crate) fn first_worker(&self) -> u32 {
        self.first_worker
    }

    pub(crate) fn scales(&self) -> bool {
        self.scaler.is_some()
    }

    /// The time after which the pool's autoscaler sees a change, if there is an autoscaler.
    pub(crate) fn scale_patience_ns(&self) -> Option<u64> {
        self.scaler.as_ref().map(Scaler::patience_ns)
    }

    /// Virtual time between two decisions of the pool's autoscaler, if there is one.
    pub(crate) fn scale_interval_ns(&self) -> Option<u64> {
        self.scaler.as_ref().map(Scaler::interval_ns)
    }

    /// The indices of the pool's workers. The ranks of an engine are adjacent.
    pub(crate) fn workers(&self) -> Range<usize> {
        let first = self.first_worker as usize;
        first..first + self.config.most_ranks() as usize
    }

    /// The indices of the first ranks of the pool's engines.
    pub(crate) fn engines(&self) -> StepBy<Range<usize>> {
        self.workers().step_by(self.config.data_parallel.size as usize)
    }
}

pub(crate) struct Fleet {
    pools: Vec<Pool>,
    workers: Vec<Worker>,
    /// Whether the ranks of any pool wait for each other.
    barriers: bool,
    /// Whether the workers of any pool share tiers.
    shares_tiers: bool,
    /// Number of passes in the current wave, by the first rank of the engine. Only for engines whose ranks count
    /// passes together.
    wave_passes: BTreeMap<u32, u64>,
    rescaled: Vec<Rescaled>,
    /// Workers whose situation changed at this instant.
    changed: Vec<u32>,
}

impl Fleet {
    pub(crate) fn new(run: &RunConfig, records_events: bool) -> Result<Self, SimError> {
        let mut pools = Vec::new();
        let mut workers = Vec::new();
        for (config, &role) in run.topology.pools().into_iter().zip(run.topology.roles()) {
            let first_worker = workers.len() as u32;
            for index in 0..config.most_ranks() {
                let worker = Worker::new(role, index, config, run, records_events);
                workers.push(worker.map_err(|error| make_error(config, index, 0, error))?);
            }
            let tiers_at = config.shares_tiers().then_some(first_worker);
            if tiers_at.is_some() {
                Worker::share_tiers(&mut workers[first_worker as usize..]);
            }
            let scaler = Scaler::new(config, run)?;
            pools.push(Pool { role, first_worker, scaler, config: config.clone(), tiers_at });
        }
        let barriers = pools.iter().any(|pool| pool.config.has_barrier());
        let shares_tiers = pools.iter().any(|pool| pool.tiers_at.is_some());
        Ok(Self {
            pools,
            workers,
            barriers,
            shares_tiers,
            wave_passes: BTreeMap::new(),
            rescaled: Vec::new(),
            changed: Vec::new(),
        })
    }

    /// The pools; prefill comes before decode.
    pub(crate) fn pools(&self) -> &[Pool] {
        &self.pools
    }

    pub(crate) fn pool(&self, role: PoolRole) -> &Pool {
        &self.pools[role.index()]
    }

    pub(crate) fn pool_of(&self, worker: u32) -> &Pool {
        self.pool(self.worker(worker).role())
    }

    /// The role of the pool that requests reach first.
    pub(crate) fn first_role(&self) -> PoolRole {
        self.pools[0].role
    }

    pub(crate) fn workers(&self) -> &[Worker] {
        &self.workers
    }

    pub(crate) fn workers_mut(&mut self) -> &mut [Worker] {
        &mut self.workers
    }

    pub(crate) fn worker(&self, index: u32) -> &Worker {
        &self.workers[index as usize]
    }

    pub(crate) fn worker_mut(&mut self, index: u32) -> &mut Worker {
        if self.shares_tiers {
            self.hand_tiers(index);
        }
        &mut self.workers[index as usize]
    }

    pub(crate) fn shares_tiers(&self) -> bool {
        self.shares_tiers
    }

    #[cold]
    fn hand_tiers(&mut self, index: u32) {
        let tiers_at = &mut self.pools[self.workers[index as usize].role().index()].tiers_at;
        if let Some(at) = tiers_at.filter(|&at| at != index) {
            *tiers_at = Some(index);
            if let Ok([from, to]) = self.workers.get_disjoint_mut([at as usize, index as usize]) {
                from.hand_tiers(to);
            }
        }
    }

    /// Calls `act` with each worker while the worker holds its tiers.
    pub(crate) fn each_with_tiers(&mut self, mut act: impl FnMut(&mut Worker)) {
        for pool in 0..self.pools.len() {
            Worker::each_with_tiers(self.workers_of_mut(self.pools[pool].role), &mut act);
        }
    }

    /// A worker, borrowed separately from the pools.
    pub(crate) fn split(&mut self, index: u32) -> (&[Pool], &mut Worker) {
        if self.shares_tiers {
            self.hand_tiers(index);
        }
        (&self.pools, &mut self.workers[index as usize])
    }

    pub(crate) fn workers_of(&self, role: PoolRole) -> &[Worker] {
        &self.workers[self.pool(role).workers()]
    }

    pub(crate) fn workers_of_mut(&mut self, role: PoolRole) -> &mut [Worker] {
        let workers = self.pool(role).workers();
        &mut self.workers[workers]
    }

    /// The workers of the pools that send requests to the pool of `role`.
    pub(crate) fn workers_before(&self, role: PoolRole) -> &[Worker] {
        &self.workers[..self.pool(role).first_worker as usize]
    }

    pub(crate) fn engine_name(&self, worker: &Worker) -> String {
        let config = &self.pool(worker.role()).config;
        format!("{} {}", config.name, config.rank_name(worker.index()))
    }

    /// Whether a worker of a pool is up or starting, or an autoscaler may start one.
    pub(crate) fn may_recover(&self, role: PoolRole) -> bool {
        self.pool(role).scales()
            || self.workers_of(role).iter().any(|worker| worker.lifecycle().health() != Health::Down)
    }

    /// Starts the workers of the engine whose first rank is `worker`.
    pub(crate) fn bring_up(&mut self, worker: u32, run: &str, now_ns: u64) -> Result<(), SimError> {
        let ranks = self.ranks_of(worker);
        let config = &self.pools[self.worker(worker).role().index()].config;
        for rank in &mut self.workers[ranks.start as usize..ranks.end as usize] {
            rank.bring_up(run, config).map_err(|error| make_error(config, rank.index(), now_ns, error))?;
        }
        Ok(())
    }

    /// The ranks of the engine that `worker` belongs to.
    pub(crate) fn ranks_of(&self, worker: u32) -> Range<u32> {
        let pool = self.pool_of(worker);
        let size = pool.config.data_parallel.size;
        let first = worker - (worker - pool.first_worker) % size;
        first..first + size
    }

    /// Whether `worker` is a rank that waits for the other ranks of its engine.
    pub(crate) fn has_barrier(&self, worker: u32) -> bool {
        self.barriers && self.pool_of(worker).config.has_barrier()
    }

    /// Whether a worker is neither in a step nor stalled. With a barrier, this must hold for every rank of the
    /// engine.
    pub(crate) fn is_between_steps(&self, worker: u32) -> bool {
        let is_idle = |worker: &Worker| worker.may_work() && !worker.is_executing();
        if self.has_barrier(worker) {
            self.ranks_of(worker).all(|rank| is_idle(self.worker(rank)))
        } else {
            is_idle(self.worker(worker))
        }
    }

    /// Whether a worker may decide a step now.
    pub(crate) fn may_decide(&self, index: u32) -> bool {
        let worker = self.worker(index);
        // A rank may decide its next step while its own part of the current step runs.
        worker.can_step() && (worker.is_executing() || !self.has_barrier(index) || self.is_between_steps(index))
    }

    /// Whether a worker may start a step now.
    pub(crate) fn may_start(&self, index: u32) -> bool {
        self.worker(index).can_start() && (!self.has_barrier(index) || self.is_between_steps(index))
    }
}

impl Fleet {
    #[inline]
    pub(crate) fn note_change(&mut self, worker: u32) {
        self.changed.push(worker);
    }

    /// The changed workers, in any order and possibly with duplicates.
    pub(crate) fn changed(&self) -> &[u32] {
        &self.changed
    }

    /// Takes the changed workers without duplicates, with all ranks of engines that step together.
    pub(crate) fn take_changed(&mut self) -> Vec<u32> {
        let mut workers = std::mem::take(&mut self.changed);
        self.widen_to_engines(&mut workers);
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// Takes the changed workers with indices of at least `first`.
    pub(crate) fn take_changed_from(&mut self, first: u32) -> impl Iterator<Item = u32> {
        self.changed.extract_if(.., move |worker| *worker >= first)
    }

    /// Keeps only the `postponed` workers as changed: all others have started their steps at this instant. `room`
    /// is the list of [`Self::take_changed`], returned for reuse.
    pub(crate) fn keep_changed(&mut self, mut room: Vec<u32>, postponed: &[u32]) {
        // Starting a step adds events, but does not change other workers.
        debug_assert!(self.changed.is_empty());
        room.clear();
        room.extend_from_slice(postponed);
        self.changed = room;
    }

    /// Adds the other ranks of engines that step together.
    fn widen_to_engines(&self, workers: &mut Vec<u32>) {
        if !self.barriers {
            return;
        }
        workers.sort_unstable();
        let mut widened = 0;
        for position in 0..workers.len() {
            let worker = workers[position];
            if worker >= widened && self.has_barrier(worker) {
                let ranks = self.ranks_of(worker);
                widened = ranks.end;
                workers.extend(ranks);
            }
        }
    }
}

const _: () = assert!(ENGINES_MAX <= DESIRED_ENGINES_MAX, "what a guest asks for is taken");

/// A factory of autoscalers that follow a target policy.
#[must_use]
pub fn target_autoscaler(policy: TargetPolicy) -> ScalerFactory {
    Arc::new(move |_plugin_context| {
        let failed = |reason| ScaleError { autoscaler: policy.metric.name().to_owned(), reason };
        Ok(Box::new(Target(TargetScaler::new(policy).map_err(failed)?)))
    })
}

struct Target(TargetScaler);

impl Autoscaler for Target {
    fn desired(&mut self, view: &PoolView) -> Result<u32, ScaleError> {
        Ok(self.0.desired(&PoolWork {
            running_requests: view.running_requests,
            waiting_requests: view.waiting_requests,
            outstanding_prefill_tokens: view.outstanding_prefill_tokens,
        }))
    }
}

/// A factory of Kubernetes autoscalers.
#[must_use]
pub fn kubernetes_autoscaler(config: ControllerConfig) -> ScalerFactory {
    Arc::new(move |_plugin_context| {
        let failed = |reason| ScaleError { autoscaler: config.name().to_owned(), reason };
        Ok(Box::new(Kubernetes(KubernetesScaler::new(config).map_err(failed)?, config.patience_ns())))
    })
}

struct Kubernetes(KubernetesScaler, u64);

impl Autoscaler for Kubernetes {
    fn desired(&mut self, view: &PoolView) -> Result<u32, ScaleError> {
        Ok(self.0.desired(view))
    }

    fn scrape(&mut self, view: &PoolView, engines: &[EngineGauges]) {
        self.0.scrape(view, engines);
    }

    fn signal(&self) -> Option<f64> {
        self.0.signal()
    }

    fn patience_ns(&self) -> u64 {
        self.1
    }
}

// Passes that the ranks of an engine count together, to space passes with prefills.
//
// vLLM's ranks start prefills only in every N-th step of a wave, which lasts while any rank has requests. SGLang's
// ranks wait N passes after a pass in which any rank prefills.

impl PoolConfig {
    /// Whether the ranks of an engine count their passes together.
    pub(crate) fn counts_passes(&self) -> bool {
        let has_interval = match &self.engine {
            vcr_core::EngineKind::Vllm(_) => self.prefill_schedule_interval > 1,
            vcr_core::EngineKind::Sglang(engine) => engine.prefill_decode_interval() > 0,
            vcr_core::EngineKind::Ticks(_) => false,
        };
        self.has_barrier() && has_interval
    }
}

impl Fleet {
    pub(crate) fn counts_passes(&self, worker: u32) -> bool {
        self.barriers && self.pool_of(worker).config.counts_passes()
    }

    /// Records that a request reaches a worker. The first request begins a wave of passes.
    pub(crate) fn note_request(&mut self, worker: u32) {
        if self.counts_passes(worker) {
            let ranks = self.ranks_of(worker);
            let is_idle = |worker: &Worker| !worker.has_decided() && !worker.has_requests();
            if ranks.clone().all(|rank| is_idle(self.worker(rank))) {
                self.wave_passes.insert(ranks.start, 0);
            }
        }
    }

    /// Begins a pass of the engine's ranks, unless a rank has already decided its step.
    pub(crate) fn begin_pass(&mut self, worker: u32) {
        let ranks = self.ranks_of(worker);
        if !self.is_between_steps(worker) || ranks.clone().any(|rank| self.worker(rank).has_decided()) {
            return;
        }
        let any_decodes = ranks.clone().any(|rank| self.worker(rank).has_decodes());
        let interval = u64::from(self.pool_of(worker).config.prefill_schedule_interval);
        let passes = self.wave_passes.get(&ranks.start).copied().unwrap_or(0);
        for rank in ranks {
            self.worker_mut(rank).begin_pass(any_decodes, !passes.is_multiple_of(interval));
        }
    }

    /// Ends passes of the ranks. The ranks in `together` took part in the first of these passes.
    pub(crate) fn end_passes(&mut self, ranks: Range<u32>, together: &[u32], passes: u32) {
        if !self.counts_passes(ranks.start) {
            return;
        }
        let prefills = |&rank: &u32| self.worker(rank).plan().shape.prefill_requests > 0;
        let any_prefills = together.iter().any(prefills);
        *self.wave_passes.entry(ranks.start).or_insert(0) += u64::from(passes);
        for rank in ranks {
            self.worker_mut(rank).end_passes(passes, any_prefills);
        }
    }
}

#[cfg(test)]
mod tests {
    use vcr_core::PluginContext;
    use vcr_policy::target_load::TargetMetric;

    use super::*;

    #[test]
    fn each_measure_is_that_of_the_pool() {
        let view = PoolView {
            running_requests: 3,
            waiting_requests: 5,
            outstanding_prefill_tokens: 100,
            ..PoolView::default()
        };
        let desired = |metric, target| {
            let policy = TargetPolicy { metric, target, scale_down_delay_ticks: 0 };
            let mut scaler = target_autoscaler(policy)(&PluginContext::of_seed(1)).expect("it can be made");
            scaler.desired(&view).expect("it decides")
        };
        assert_eq!(desired(TargetMetric::Requests, 1.0), 8);
        assert_eq!(desired(TargetMetric::PrefillTokens, 1.0), 100);
    }

    #[test]
    fn a_bad_target_is_named() {
        let policy = TargetPolicy { metric: TargetMetric::Requests, target: 0.0, scale_down_delay_ticks: 0 };
        let error = target_autoscaler(policy)(&PluginContext::of_seed(1)).err().expect("it is bad");
        let text = "autoscaler `target_requests` failed: invalid `target`: expected a finite number above 0, got 0";
        assert_eq!(error.to_string(), text);
    }
}
