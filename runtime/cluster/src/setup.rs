//! A run before its first event: its parts made, what begins it scheduled.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use vcr_core::{Seat, seed};

use crate::config::{LinkSharing, PoolConfig, RunConfig, Topology, WorkloadConfig, WorkloadSource};
use crate::error::{SimError, make_error};
use crate::event::{Event, EventQueue};
use crate::kv_router::{KvRouter, PoolFacts, PoolPart};
use crate::link::Link;
use crate::metrics::MetricSet;
use crate::observe::Observer;
use crate::router::{RoundRobin, RouterConfig};
use crate::scaling::{Scaler, Tally, scale_error};
use crate::sim::{Pool, PoolRouter, Simulation};
use crate::worker::Worker;
use crate::workload::Workload;

impl<'o> Simulation<'o> {
    pub(crate) fn new(config: RunConfig, observer: &'o mut dyn Observer) -> Result<Self, SimError> {
        let mut pools = Vec::new();
        let mut workers = Vec::new();
        for (pool, pool_config) in config.topology.pools().into_iter().enumerate() {
            let first_worker = workers.len() as u32;
            for index in 0..pool_config.most_ranks() {
                let worker = Worker::new(pool as u32, index, pool_config, &config, observer.wants_steps())
                    .map_err(|error| make_error(pool_config, index, 0, error))?;
                workers.push(worker);
            }
            let router_seed = seed::derive(config.seed, &format!("router:{}", pool_config.name), 0);
            let seat = Seat { run: &config.name, pool: &pool_config.name, engine: None, seed: router_seed };
            let part = match (config.topology.pools().len(), pool) {
                (1, _) => PoolPart::Whole,
                (_, 0) => PoolPart::Prefill,
                _ => PoolPart::Decode,
            };
            let router = pool_router(pool_config, part, &seat)?;
            let scaler = pool_scaler(pool_config, &config)?;
            pools.push(Pool {
                first_worker,
                router,
                hears_at_ns: None,
                queue_moves: false,
                parked: Vec::new(),
                scaler,
                config: pool_config.clone(),
            });
        }
        let block_size = pools[0].config.engine.block_size();
        let workloads: Vec<Workload> =
            (0..config.workloads.len()).map(|index| workload(&config, index, block_size)).collect();
        let mut simulation = Self {
            now_ns: 0,
            events: EventQueue::new(pools.len()),
            links: links(&config.topology),
            metrics: vec![MetricSet::default(); workloads.len()],
            step_metrics: MetricSet::default(),
            pools,
            workers,
            workloads,
            records: Vec::new(),
            live: Vec::new(),
            output_seeds: Vec::new(),
            thinking: Vec::new(),
            thinking_vacant: Vec::new(),
            answers: BTreeMap::new(),
            chained: config.workloads.iter().any(WorkloadConfig::is_chained)
                || config.topology.pools().iter().any(|pool| pool.failures.is_some() || pool.router.has_queue()),
            is_steady: config.faults.is_empty()
                && config.topology.pools().iter().all(|pool| pool.failures.is_none() && pool.scaling.is_none()),
            barriers: config.topology.pools().iter().any(|pool| pool.has_barrier()),
            scales: config.topology.pools().iter().any(|pool| pool.scaling.is_some()),
            tally: Tally::default(),
            rescaled: Vec::new(),
            only_ticks_since_ns: None,
            ended: 0,
            steps: 0,
            due: VecDeque::new(),
            dirty: Vec::new(),
            loads: Vec::new(),
            candidates: Vec::new(),
            outputs: Vec::new(),
            remote_loads: Vec::new(),
            tier_loads: Vec::new(),
            loaded: Vec::new(),
            decoding: Vec::new(),
            wants_steps: observer.wants_steps(),
            observer,
            config,
        };
        simulation.schedule_beginnings();
        Ok(simulation)
    }

    fn schedule_beginnings(&mut self) {
        for (index, fault) in self.config.faults.iter().enumerate() {
            self.events.push(fault.at_ns, Event::Fault { index: index as u32 });
        }
        for (index, pool) in self.pools.iter().enumerate() {
            if let Some(scaler) = &pool.scaler {
                self.events.push(scaler.interval_ns(), Event::ScaleTick { pool: index as u32 });
            }
        }
        for (index, workload) in self.workloads.iter_mut().enumerate() {
            let arrival = Event::Arrival { workload: index as u32 };
            match workload.closed_loop() {
                Some(concurrency) => {
                    for _ in 0..concurrency {
                        self.events.push(workload.start_ns(), arrival);
                    }
                }
                None => {
                    if let Some(at_ns) = workload.next_start_ns() {
                        let ready = |node| Event::Ready { workload: index as u32, node };
                        self.events.push(at_ns, workload.next_node().map_or(arrival, ready));
                    }
                }
            }
        }
    }
}

fn pool_router(config: &PoolConfig, part: PoolPart, seat: &Seat<'_>) -> Result<PoolRouter, SimError> {
    if let RouterConfig::Kv(kv) = &config.router {
        let facts = PoolFacts {
            workers: config.most_ranks(),
            block_size_tokens: config.engine.block_size(),
            max_num_batched_tokens: config.engine.max_num_batched_tokens(),
            part,
            has_tiers: config.engine.kv_tiers().is_some(),
        };
        return Ok(PoolRouter::Kv(Box::new(KvRouter::new(kv.clone(), facts, seat.seed))));
    }
    if let (RouterConfig::RoundRobin, PoolPart::Whole) = (&config.router, part) {
        let router = RoundRobin::over(config.most_engines(), config.data_parallel.size);
        return Ok(PoolRouter::Asked(Box::new(router)));
    }
    let made = config.router.build(seat);
    made.map(PoolRouter::Asked).map_err(|reason| SimError::Route {
        pool: config.name.clone(),
        request: None,
        at_ms: 0.0,
        reason,
    })
}

fn pool_scaler(pool: &PoolConfig, run: &RunConfig) -> Result<Option<Scaler>, SimError> {
    let Some(scaling) = &pool.scaling else { return Ok(None) };
    let seed = seed::derive(run.seed, &format!("scaler:{}", pool.name), 0);
    let seat = Seat { run: &run.name, pool: &pool.name, engine: None, seed };
    let made = (scaling.policy)(&seat).map_err(|reason| scale_error(pool.name.clone(), 0.0, reason))?;
    Ok(Some(Scaler::new(scaling.clone(), made, pool.engines)))
}

fn workload(config: &RunConfig, index: usize, block_size_tokens: u32) -> Workload {
    let own = &config.workloads[index];
    let same_trace = |other: &WorkloadConfig| match (&own.source, &other.source) {
        (WorkloadSource::Trace { trace: a, .. }, WorkloadSource::Trace { trace: b, .. }) => Arc::ptr_eq(a, b),
        _ => false,
    };
    let first_of_trace = config.workloads.iter().position(same_trace).unwrap_or(index);
    Workload::new(own.clone(), config.seed, block_size_tokens, first_of_trace)
}

fn links(topology: &Topology) -> Vec<Link> {
    let Topology::Disaggregated { prefill, link, .. } = topology else { return Vec::new() };
    let Some(bytes_per_s) = link.bandwidth_bytes_per_s else { return Vec::new() };
    let count = match link.sharing {
        LinkSharing::Shared => 1,
        LinkSharing::PerPrefillEngine => prefill.most_engines(),
        LinkSharing::Unshared => 0,
    };
    (0..count).map(|_| Link::new(bytes_per_s)).collect()
}
