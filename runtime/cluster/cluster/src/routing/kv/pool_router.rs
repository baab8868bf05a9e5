//! Implements [`PoolRouter`] for a pool's KV routers.

use vcr_core::route::{EndedRequest, RouteError, RouteRequest};
use vcr_core::{ServingEngine, TierRun};

use super::books::Entry;
use super::queue::RouterQueue;
use super::{Candidate, KvRouter};
use crate::fleet::Worker;
use crate::routing::sessions::Sessions;
use crate::routing::{PoolRouter, RouteInput, Routed, RoutedTo, RouterNeeds};

impl KvRouter {
    /// Whether candidates must include the KV tiers.
    fn needs_tiers(&self) -> bool {
        self.needs_overlap() && self.sees_tiers()
    }

    /// Finds the running workers, with their cached blocks if the router does not track these itself.
    fn find_candidates(&mut self, request: &RouteInput<'_>, workers: &mut [Worker]) {
        let RouteRequest { now_ns, block_hashes: blocks, .. } = request.query;
        let needs_overlap = self.needs_overlap();
        let sees_tiers = self.needs_tiers();
        self.candidates.clear();
        let candidates = &mut self.candidates;
        let look = |worker: &mut Worker| {
            if !worker.lifecycle().is_up() {
                return;
            }
            let hit = if needs_overlap { worker.engine().cached_prefix_blocks(blocks) } else { 0 };
            let tiers =
                if sees_tiers { worker.find_tier_run(now_ns, &blocks[hit as usize..]) } else { TierRun::default() };
            candidates.push(Candidate { worker: worker.index(), overlap_blocks: hit, tiers });
        };
        match sees_tiers {
            true => Worker::each_with_tiers(workers, look),
            false => workers.iter_mut().for_each(look),
        }
    }
}

impl PoolRouter for KvRouter {
    fn route(&mut self, request: &RouteInput<'_>, workers: &mut [Worker]) -> Result<Routed, RouteError> {
        self.find_candidates(request, workers);
        if self.needs_events() {
            Worker::each_with_tiers(workers, |worker| {
                let index = worker.index();
                worker.take_tier_changes(request.query.now_ns, |change| self.tier_change(index, change));
            });
        }
        if self.candidates.is_empty() {
            return Ok(Routed::Nowhere);
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        if let Some(sessions) = &self.sessions
            && let Some(pin) = sessions.pin(&request.query, |worker| candidates.iter().any(|one| one.worker == worker))
        {
            candidates.retain(|one| one.worker == pin);
        }
        let routed = self.choose(request, &mut candidates);
        self.candidates = candidates;
        if let (Some(sessions), Routed::To(to)) = (&mut self.sessions, routed) {
            sessions.enter(&request.query, to.worker);
        }
        Ok(routed)
    }

    fn take_moved(&mut self) -> bool {
        self.sessions.as_mut().is_some_and(Sessions::take_moved)
    }

    fn needs(&self) -> RouterNeeds {
        RouterNeeds {
            queue: self.config.queue.is_some(),
            outputs: self.needs_outputs(),
            single_steps: self.needs_single_steps(),
            kv_events: self.needs_events(),
            kv_events_at_step_end: self.sees_events_at_step_end(),
        }
    }

    fn release(&mut self, now_ns: u64, workers: &[Worker]) -> Option<(u64, RoutedTo)> {
        if self.queued().0 == 0 {
            return None;
        }
        let up = workers.iter().filter(|worker| worker.lifecycle().is_up());
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        candidates.extend(up.map(|worker| Candidate { worker: worker.index(), ..Candidate::default() }));
        let released = self.release_to(now_ns, &candidates);
        self.candidates = candidates;
        released
    }

    fn wakes_at_ns(&self) -> Option<u64> {
        let waiting = self.replicas.iter().filter(|replica| !replica.queue.is_empty());
        waiting.filter_map(|replica| replica.coming.front().map(|(at_ns, _)| *at_ns)).min()
    }

    fn queued(&self) -> (u64, u64) {
        let each = self.replicas.iter().map(|replica| replica.queue.load());
        each.fold((0, 0), |(requests, tokens), (more, more_tokens)| (requests + more, tokens + more_tokens))
    }

    fn leave_queue(&mut self, request: u64) {
        self.replicas.iter_mut().for_each(|replica| replica.queue.leave(request));
    }

    fn drain_queue(&mut self) -> Vec<u64> {
        let queues = self.replicas.iter_mut().map(|replica| &mut replica.queue);
        queues.flat_map(RouterQueue::drain).map(|queued| queued.request).collect()
    }

    fn prefilled(&mut self, now_ns: u64, request: u64) {
        if self.config.track_prefill_tokens {
            self.book(self.owner(request), now_ns, Entry::Prefilled { request });
        }
    }

    fn generated(&mut self, now_ns: u64, request: u64, output_tokens: u32) {
        let blocks = u64::from(output_tokens / self.facts.block_size_tokens);
        self.book(self.owner(request), now_ns, Entry::Generated { request, blocks });
    }

    fn left(&mut self, now_ns: u64, request: u64) {
        self.book(self.owner(request), now_ns, Entry::Over { request });
    }

    fn crashed(&mut self, worker: u32) {
        if let Some(index) = self.events.get_mut(worker as usize) {
            index.forget();
        }
        for replica in &mut self.replicas {
            if let Some(guess) = replica.guesses.get_mut(worker as usize) {
                guess.forget();
            }
        }
    }

    fn ended(&mut self, now_ns: u64, request: &EndedRequest) {
        self.left(now_ns, request.id);
        // Visible changes are applied even if no further request arrives, so that they do not accumulate.
        self.events.iter_mut().for_each(|index| index.see_changes(now_ns));
    }

    fn kv_events(&mut self, at_ns: u64, worker: &mut Worker, upto: usize) {
        let index = worker.index();
        worker.show_kv_events(upto, |event| self.kv_event(at_ns, index, event));
    }
}
