//! Starts and stops engines for autoscalers.
//!
//! Every pool has a slot for each engine that it can ever have; slots without an engine are off. At each tick an
//! autoscaler sets the number of engines that are running or starting. Additional engines start in the first free
//! slots. To remove engines, start-ups are cancelled first, newest first. Then the newest engines drain: they
//! finish their requests and turn off. The ranks of an engine start and stop together.

use vcr_core::scale::{Autoscaler, EngineGauges, PoolView, ScaleError};
use vcr_core::{PluginContext, ServingEngine, seed};

use super::{Fleet, Health};
use crate::config::{PoolConfig, PoolRole, RunConfig, ScalingConfig};
use crate::error::SimError;
use crate::ledger::Tally;
use crate::report::GpuDeployment;

pub(super) struct Scaler {
    config: ScalingConfig,
    autoscaler: Box<dyn Autoscaler>,
    at_last_tick: Tally,
    /// Number of started engines, including the initial ones.
    started: u64,
}

impl Scaler {
    pub(super) fn new(pool: &PoolConfig, run: &RunConfig) -> Result<Option<Self>, SimError> {
        let Some(config) = pool.scaling.clone() else { return Ok(None) };
        let seed = seed::derive(run.seed, &format!("scaler:{}", pool.name), 0);
        let plugin_context = PluginContext { run: &run.name, pool: &pool.name, engine: None, engine_info: None, seed };
        let autoscaler = (config.policy)(&plugin_context).map_err(|reason| scale_error(pool, 0, reason))?;
        Ok(Some(Self { config, autoscaler, at_last_tick: Tally::default(), started: u64::from(pool.engines) }))
    }

    pub(super) fn interval_ns(&self) -> u64 {
        self.config.interval_ns
    }

    /// The time after which the autoscaler sees a change.
    pub(super) fn patience_ns(&self) -> u64 {
        self.config.interval_ns.max(self.autoscaler.patience_ns())
    }
}

/// A change of the number of engines that are up or starting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rescaled {
    pub(crate) at_ns: u64,
    pub(crate) role: PoolRole,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The metric value that the decision is based on.
    pub(crate) signal: Option<f64>,
}

/// The engines that a decision starts or removes, by their first ranks.
#[derive(Debug, Default)]
pub(crate) struct Rescaling {
    pub(crate) start: Vec<u32>,
    /// The engines to remove, each with a flag that says whether it is still starting.
    pub(crate) leave: Vec<(u32, bool)>,
}

impl Fleet {
    /// Decisions of autoscalers, in order of time.
    pub(crate) fn rescaled(&self) -> &[Rescaled] {
        &self.rescaled
    }

    /// Runs the autoscaler of a pool, whose `waiting_requests` have `waiting_tokens` tokens to compute.
    pub(crate) fn decide_scale(
        &mut self,
        role: PoolRole,
        now_ns: u64,
        tally: Tally,
        (waiting_requests, waiting_tokens): (u64, u64),
    ) -> Result<Rescaling, SimError> {
        let before = self.pool(role).scaler.as_ref().map_or(Tally::default(), |scaler| scaler.at_last_tick);
        let mut view = PoolView {
            now_ns,
            arrived_requests: tally.arrived_requests - before.arrived_requests,
            arrived_prompt_tokens: tally.arrived_prompt_tokens - before.arrived_prompt_tokens,
            arrived_output_tokens: tally.arrived_output_tokens - before.arrived_output_tokens,
            completed_requests: tally.completed_requests - before.completed_requests,
            ttft_count: tally.ttft_count - before.ttft_count,
            ttft_sum_ns: tally.ttft_sum_ns - before.ttft_sum_ns,
            queue_count: tally.queue_count - before.queue_count,
            queue_sum_ns: tally.queue_sum_ns - before.queue_sum_ns,
            slo_requests: tally.slo_requests - before.slo_requests,
            slo_met_requests: tally.slo_met_requests - before.slo_met_requests,
            token_gap_count: tally.token_gap_count - before.token_gap_count,
            token_gap_sum_ns: tally.token_gap_sum_ns - before.token_gap_sum_ns,
            waiting_requests,
            outstanding_prefill_tokens: waiting_tokens,
            engine_usd_per_hour: self
                .pool(role)
                .config
                .deployment
                .as_ref()
                .and_then(GpuDeployment::engine_usd_per_hour),
            ..PoolView::default()
        };
        self.count_engines(role, &mut view);
        let gauges = self.gauges(role);
        let pool = &mut self.pools[role.index()];
        let Some(scaler) = &mut pool.scaler else { return Ok(Rescaling::default()) };
        scaler.at_last_tick = tally;
        scaler.autoscaler.scrape(&view, &gauges);
        let desired = scaler.autoscaler.desired(&view).map_err(|reason| scale_error(&pool.config, now_ns, reason))?;
        let desired = desired.clamp(scaler.config.min_engines, scaler.config.max_engines);
        let signal = scaler.autoscaler.signal();
        Ok(self.rescale(role, desired, now_ns, signal))
    }

    /// The metrics of the pool's serving engines: sums over their ranks, and the mean of their KV usage.
    fn gauges(&self, role: PoolRole) -> Vec<EngineGauges> {
        let pool = self.pool(role);
        let ranks = pool.config.data_parallel.size;
        let serving = pool.engines().filter(|&index| self.workers[index].lifecycle().is_serving());
        let gauges = serving.map(|index| {
            let mut gauges = EngineGauges {
                engine: (index as u32 - pool.first_worker) / ranks,
                is_ready: self.workers[index].lifecycle().health() == Health::Up,
                ..EngineGauges::default()
            };
            for rank in self.ranks_of(index as u32) {
                let load = self.worker(rank).engine().load();
                gauges.running += load.num_running as u64;
                gauges.waiting += load.num_waiting as u64;
                let usable = load.num_usable_blocks.max(1);
                gauges.kv_usage += f64::from(load.num_active_blocks) / f64::from(usable) / f64::from(ranks);
            }
            gauges
        });
        gauges.collect()
    }

    fn count_engines(&self, role: PoolRole, view: &mut PoolView) {
        for index in self.pool(role).engines() {
            match self.workers[index].lifecycle().health() {
                Health::Up => view.up_engines += 1,
                Health::Draining => view.draining_engines += 1,
                Health::Starting | Health::Restarting => view.starting_engines += 1,
                Health::Off | Health::Down => {}
            }
        }
        for worker in self.workers_of(role).iter().filter(|worker| worker.lifecycle().is_serving()) {
            let load = worker.engine().load();
            view.running_requests += load.num_running as u64;
            view.waiting_requests += load.num_waiting as u64;
            view.active_blocks += u64::from(load.num_active_blocks);
            view.total_blocks += u64::from(load.num_usable_blocks);
            view.outstanding_prefill_tokens += load.outstanding_prefill_tokens;
            view.preemption_count += worker.engine().stats().preemptions;
        }
    }

    /// Chooses the engines to start or remove so that `desired` engines are up or starting.
    fn rescale(&mut self, role: PoolRole, desired: u32, now_ns: u64, signal: Option<f64>) -> Rescaling {
        let is_coming = |health| matches!(health, Health::Starting | Health::Restarting);
        let mut off: Vec<u32> = Vec::new();
        let mut here: Vec<(bool, u64, u32)> = Vec::new();
        for index in self.pool(role).engines() {
            let worker = &self.workers[index];
            match worker.lifecycle().health() {
                Health::Off => off.push(index as u32),
                health if health == Health::Up || is_coming(health) => {
                    here.push((is_coming(health), worker.lifecycle().start_number(), index as u32));
                }
                _ => {}
            }
        }
        let from = here.len() as u32;
        off.truncate(desired.saturating_sub(from) as usize);
        // Starting engines leave before running ones, and newer ones before older ones.
        here.sort_unstable_by(|a, b| b.cmp(a));
        here.truncate(from.saturating_sub(desired) as usize);
        let to = from + off.len() as u32 - here.len() as u32;
        if to != from {
            self.rescaled.push(Rescaled { at_ns: now_ns, role, from, to, signal });
        }
        Rescaling { start: off, leave: here.into_iter().map(|(is_coming, _, index)| (index, is_coming)).collect() }
    }

    /// Starts the ranks of an engine that is off. Returns the time at which they will be up.
    pub(crate) fn start_up(&mut self, index: u32, now_ns: u64) -> u64 {
        let ranks = self.ranks_of(index);
        let role = self.worker(index).role();
        let Some(scaler) = &mut self.pools[role.index()].scaler else { return now_ns };
        for rank in &mut self.workers[ranks.start as usize..ranks.end as usize] {
            rank.lifecycle_mut().start(now_ns, scaler.started);
        }
        scaler.started += 1;
        now_ns.saturating_add(scaler.config.startup_ns)
    }
}

fn scale_error(pool: &PoolConfig, now_ns: u64, reason: ScaleError) -> SimError {
    SimError::Scale { pool: pool.name.clone(), at_ms: now_ns as f64 / 1e6, reason }
}
