//! The horizon of an engine: until when nothing from outside can reach it.

use crate::config::PoolRole;
use crate::fleet::Worker;
use crate::observe::Observer;
use crate::simulation::Simulation;

impl<O: Observer> Simulation<'_, O> {
    /// Whether the step that a worker has scheduled must be taken by itself.
    pub(super) fn must_single_step(&self, index: u32) -> bool {
        let worker = self.fleet.worker(index);
        let role = worker.role();
        self.observation.wants_steps()
            || self.clock.is_real()
            || self.routing.needs(role).single_steps
            || worker.takes_single_steps()
            || !worker.plan().refused.is_empty()
            // A prompt that is computed for another pool ends with its first token.
            || role == PoolRole::Prefill
    }

    /// Until when nothing from outside can reach a worker.
    ///
    /// The next instant at which anything outside may reach the engine. What is not in the queue
    /// yet comes out of a step of another engine: the end of a request that another one depends on,
    /// or a prompt that moves on to decode. A prefill engine that waits for blocks may start such a
    /// step as soon as any decode engine takes a prompt from it.
    pub(super) fn horizon_ns(&mut self, index: u32, all_priced: bool) -> u64 {
        if self.clock.is_real() {
            // Steps may end late, and arrivals come earlier among them than planned.
            return self.clock.now_ns();
        }
        let role = self.fleet.worker(index).role();
        let any_pool = self.facts.is_chained || self.fleet.workers_before(role).iter().any(Worker::can_step);
        // What is due of handoffs comes at this instant, too.
        if any_pool && !all_priced || self.handoffs.has_due() {
            return self.clock.now_ns();
        }
        let foreseen = self.foreseen_arrival_ns(index);
        let roles = self.facts.config.topology.roles();
        let feeding = if any_pool { roles } else { &roles[..role.index()] };
        let steps = feeding.iter().filter_map(|&other| self.events.next_step_end(other));
        // Steps that start after the last instant of the run do not happen.
        let end = self.facts.config.max_time_ns.map(|max| max.saturating_add(1));
        let arrival = foreseen.or_else(|| {
            // A request that starts then is on the way to the queue for at least as long.
            self.events.next_arrival().map(|at_ns| at_ns.saturating_add(self.facts.overheads.arrival_ns))
        });
        let others = self.events.next_other().into_iter().chain(self.observation.due_ns());
        others.chain(arrival).chain(self.clock.outside_ns()).chain(steps).chain(end).min().unwrap_or(u64::MAX)
    }

    /// When the next session comes to a worker, where that is known: those of a single
    /// workload start at times of its own and go to the workers in turn, unless they may
    /// overtake each other on the way.
    fn foreseen_arrival_ns(&mut self, index: u32) -> Option<u64> {
        let worker = self.fleet.worker(index);
        let may_overtake = self.facts.overheads.delays_arrivals() || self.clock.outside_ns().is_some();
        if worker.role() != PoolRole::Aggregated || self.facts.is_chained || !self.facts.is_steady || may_overtake {
            return None;
        }
        self.traffic.foreseen_start_ns(self.routing.requests_before(worker.role(), worker.index())?)
    }
}
