//! Calls the routers of the pools for requests.

use vcr_core::KvRole;
use vcr_core::route::{RoutePhase, RouteRequest};

use super::Simulation;
use crate::config::PoolRole;
use crate::error::SimError;
use crate::observe::Observer;
use crate::routing::{RouteInput, Routed};

impl<O: Observer> Simulation<'_, O> {
    pub(super) fn route(&mut self, tag: u64, pool: PoolRole) -> Result<Routed, SimError> {
        self.release_first(pool);
        let phase = match self.kv_role(tag, pool) {
            KvRole::Local => RoutePhase::Whole,
            KvRole::Source => RoutePhase::Prefill,
            KvRole::Destination => RoutePhase::Decode,
        };
        let record = self.ledger.record(tag);
        let live = self.in_flight.get_mut(tag);
        let prompt = live.take_prompt();
        let config = self.fleet.pool(pool).config();
        let query = RouteRequest {
            now_ns: self.clock.now_ns(),
            id: tag,
            prompt_tokens: record.prompt_tokens,
            max_tokens: record.max_tokens,
            priority: live.priority,
            adapter: record.adapter,
            tenant: self.facts.config.workloads[record.workload as usize].tenant,
            slo: self.facts.config.workloads[record.workload as usize].objectives_of(record.class),
            // Sessions are numbered within their workload, so the workload is added.
            session: u64::from(record.workload) << 48 | record.session,
            block_size_tokens: config.engine.block_size(),
            phase,
            may_refuse: live.routed == [None; 2],
            block_hashes: prompt.block_hashes(),
        };
        let request = RouteInput {
            query,
            arrival_ns: record.queued_ns,
            strict_priority: live.strict_priority,
            policy_class: self.traffic.policy_class(record.workload, live.policy_class),
        };
        let routed = self.routing.route(pool, &request, self.fleet.workers_of_mut(pool));
        live.prompt = Some(prompt);
        if self.routing.take_moved(pool) {
            self.ledger.move_session(tag);
        }
        routed.map_err(|reason| SimError::Route {
            pool: self.fleet.pool(pool).config().name.clone(),
            request: Some(tag),
            at_ms: self.clock.now_ns() as f64 / 1e6,
            reason,
        })
    }

    /// Releases requests from the routers' queues while engines have room.
    pub(super) fn release_queued(&mut self) {
        for &pool in self.facts.config.topology.roles() {
            self.release_first(pool);
        }
    }

    /// Releases requests of one pool. Called before later requests of the same instant are routed, so that queued
    /// requests come first.
    pub(super) fn release_first(&mut self, pool: PoolRole) {
        if !self.routing.take_may_release(pool) {
            return;
        }
        while let Some((tag, to)) = self.routing.release(pool, self.clock.now_ns(), self.fleet.workers_of(pool)) {
            self.place(tag, pool, to);
        }
        self.routing.expect_wake(pool, self.clock.now_ns(), &mut self.events);
    }
}
