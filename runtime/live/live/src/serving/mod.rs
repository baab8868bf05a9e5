//! One engine while it serves a frontend: the owners of its state, and the operations that involve several of them.
//!
//! Each owner's fields are private. Intake and administration change the engine through this type, which knows
//! neither of them.

mod ends;
mod loads;

use std::sync::Arc;
use std::time::Duration;

use vcr_wire::{FinishReason, IterationDetails, LinkError};

use crate::context::Context;
use crate::counters::Counters;
use crate::egress::outputs::Outputs;
use crate::egress::{Egress, SnapshotTimer};
use crate::error::LiveError;
use crate::faults::active::{EngineFault, Faults, GuestFault};
use crate::faults::injector::Injector;
use crate::handle::Shared;
use crate::kv_transfer::transfers::Transfers;
use crate::lifecycle::{End, Lifecycle};
use crate::playback::capture::CaptureLookup;
use crate::playback::player::Player;
use crate::requests::{Requests, slot_of};
use crate::routing::routes::Routes;
use crate::stepping::output::OutputParts;
use crate::stepping::results::StepResults;
use crate::stepping::stepper::Stepper;
use crate::tokens::Tokens;

pub(crate) use crate::serving::ends::Refusal;

pub(crate) struct Serving {
    pub(crate) context: Context,
    /// State shared with other threads, by the engine's index in the process.
    pub(crate) shared: Arc<[Shared]>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) requests: Requests,
    pub(crate) tokens: Tokens,
    pub(crate) stepper: Stepper,
    pub(crate) player: Player,
    pub(crate) captures: CaptureLookup,
    pub(crate) transfers: Transfers,
    /// `None` without a router.
    pub(crate) routes: Option<Routes>,
    pub(crate) faults: Faults,
    pub(crate) injector: Injector,
    pub(crate) egress: Egress,
    pub(crate) counters: Counters,
    pub(crate) snapshot: SnapshotTimer,
}

impl Serving {
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared[self.context.index]
    }

    /// Number of requests in the engine core and in playback that have not ended.
    pub(crate) fn num_unfinished(&self) -> usize {
        match self.stepper.engine().as_vllm() {
            Some(engine) => engine.num_unfinished() + self.player.len(),
            None => self.requests.len(),
        }
    }

    /// Whether there is no request and no step in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.num_unfinished() == 0 && self.stepper.is_idle()
    }

    pub(crate) fn is_at_limit(&self) -> bool {
        let limits = &self.context.config.limits;
        self.requests.len() >= limits.max_requests || self.requests.prompt_tokens() >= limits.max_prompt_tokens
    }

    /// Whether a request with this ID is here or delegated to another engine.
    pub(crate) fn has_request(&self, id: &str) -> bool {
        self.requests.find(id).is_some() || self.routes.as_ref().is_some_and(|routes| routes.is_delegated(id))
    }

    fn output_parts(&mut self) -> (&mut Stepper, &mut Player, OutputParts<'_>) {
        let parts = OutputParts {
            context: &self.context,
            requests: &mut self.requests,
            tokens: &mut self.tokens,
            transfers: &mut self.transfers,
            injector: &mut self.injector,
            egress: &mut self.egress,
            counters: &mut self.counters,
        };
        (&mut self.stepper, &mut self.player, parts)
    }

    /// Decides steps as long as the core may decide and has work.
    pub(crate) fn decide_steps(&mut self, now_ns: u64) -> Result<(), LiveError> {
        self.stepper.decide(&mut self.requests, &mut self.transfers, &self.context, now_ns)?;
        self.prepare_blocks();
        self.start_loads(now_ns);
        Ok(())
    }

    pub(crate) fn apply_due(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let due = self.stepper.take_due(&self.requests, &mut self.tokens, &mut self.egress, now_ns)?;
        let Some(due) = due else { return Ok(()) };
        let refused = self.drop_refused();
        let (stepper, _, mut parts) = self.output_parts();
        let mut step = stepper.apply(due, &mut parts, now_ns);
        self.gather_shown_cache_events();
        self.counters.steps += 1;
        self.counters.busy_ns += step.duration_ns();
        self.deliver(&step.results, step.details.take(), now_ns)?;
        self.send_refusals(refused, now_ns)?;
        self.publish_kv_events(now_ns)?;
        self.run_injector(now_ns)?;
        let by_step = self.faults.due(self.context.since_start_ns(now_ns), true);
        for fault in std::mem::take(&mut step.results.faults).into_iter().chain(by_step) {
            self.apply_fault(fault, now_ns)?;
        }
        self.egress.finish_wave(self.num_unfinished() > 0)?;
        self.stepper.finish(&step, &mut self.counters, now_ns);
        Ok(())
    }

    /// Sends the recorded outputs that are due.
    pub(crate) fn play_due(&mut self, now_ns: u64) -> Result<(), LiveError> {
        if self.stepper.stalled_until_ns() > now_ns {
            return Ok(());
        }
        let (stepper, player, mut parts) = self.output_parts();
        let Some(results) = player.play_due(&mut parts, stepper.engine(), now_ns) else { return Ok(()) };
        self.deliver(&results, None, now_ns)?;
        self.run_injector(now_ns)?;
        for fault in results.faults {
            self.apply_fault(fault, now_ns)?;
        }
        Ok(())
    }

    /// Sends the gathered outputs and removes the requests that have ended.
    fn deliver(
        &mut self,
        results: &StepResults,
        details: Option<IterationDetails>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        for &(tag, reason) in &results.ended {
            self.forget(tag, reason);
        }
        for &(tag, reason) in &results.failed {
            self.drop_request(tag, reason);
        }
        for &request in &results.unheld {
            self.stepper.release_held_kv(request);
        }
        self.egress.set_owes_stats(results.has_ends());
        self.snapshot.mark_stale();
        self.send_step(details, now_ns)?;
        for &(tag, reason) in &results.ended_apart {
            if let Some(request) = self.forget(tag, reason) {
                self.egress.outputs.send_finish(request.client, &[&request.id], reason, None, now_ns)?;
            }
        }
        Ok(())
    }

    fn send_step(&mut self, details: Option<IterationDetails>, now_ns: u64) -> Result<(), LinkError> {
        let faults = (&mut self.faults, self.context.since_start_ns(now_ns));
        self.egress.send_step(self.stepper.engine(), self.player.counts(), details, now_ns, faults)
    }

    /// Sends the statistics of an idle engine, if its last message had other statistics.
    pub(crate) fn send_owed_stats(&mut self, now_ns: u64) -> Result<(), LiveError> {
        if !self.egress.owes_stats() || !self.is_idle() {
            return Ok(());
        }
        self.egress.set_owes_stats(false);
        if self.egress.sends_stats() {
            self.send_step(None, now_ns)?;
        }
        self.publish_kv_events(now_ns)?;
        Ok(self.egress.finish_wave(self.num_unfinished() > 0)?)
    }

    fn publish_kv_events(&mut self, now_ns: u64) -> Result<(), LinkError> {
        self.gather_cache_events();
        self.egress.publish_kv_events(&mut self.faults, self.context.since_start_ns(now_ns))
    }

    /// Takes the prefix cache changes since the last call, for the router and for subscribers.
    pub(crate) fn gather_cache_events(&mut self) {
        self.stepper.show_cache_events();
        self.gather_shown_cache_events();
    }

    /// Gathers cache events that the step observer has already seen with the result of a step.
    fn gather_shown_cache_events(&mut self) {
        let Some(log) = self.stepper.cache_events() else { return };
        if let Some(routes) = &self.routes {
            routes.report_cache_events(log);
        }
        self.egress.gather_cache_events(self.stepper.engine(), &self.requests);
        self.stepper.clear_cache_events();
    }

    /// Drops the prefix cache; with `preempt_running`, running requests are recomputed. Returns `false` if blocks
    /// are in use.
    pub(crate) fn reset_prefix_cache(&mut self, preempt_running: bool) -> bool {
        let is_reset = self.stepper.reset_prefix_cache(preempt_running);
        if is_reset {
            self.egress.stats().cache_reset();
            // A client may act on the answer before the next step.
            self.gather_cache_events();
        }
        is_reset
    }

    /// Leaves the other engines. Requests delegated to them are aborted, and requests computed for them are lost.
    pub(crate) fn close_routes(&mut self) {
        let Some(routes) = self.routes.take() else { return };
        let outputs: &Outputs = &self.egress.outputs;
        routes.close(self.requests.iter().filter_map(|request| {
            let origin = outputs.origin_of(request.client);
            request.handle.map(|handle| (handle, origin, &*request.id, request.output_tokens))
        }));
    }
}

impl Serving {
    /// Lets the failure injector decide on the events since the last call.
    pub(crate) fn run_injector(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let since_start_ns = self.context.since_start_ns(now_ns);
        for action in self.injector.decide(since_start_ns, self.counters.steps)? {
            match self.faults.queue_action(action, since_start_ns) {
                None => {}
                Some(GuestFault::Engine(fault)) => self.apply_fault(fault, now_ns)?,
                Some(GuestFault::FailRequest { slot }) => self.fail_slot(slot, now_ns)?,
            }
        }
        Ok(())
    }

    /// Ends the request in a slot with an error; an unused slot is ignored.
    fn fail_slot(&mut self, slot: u32, now_ns: u64) -> Result<(), LiveError> {
        let found = self.requests.iter().find(|request| slot_of(request.tag) == slot as usize);
        let Some(tag) = found.map(|request| request.tag) else { return Ok(()) };
        if let Some(request) = self.drop_request(tag, FinishReason::Error) {
            self.egress.outputs.send_finish(request.client, &[&request.id], FinishReason::Error, None, now_ns)?;
        }
        Ok(())
    }

    pub(crate) fn apply_fault(&mut self, fault: EngineFault, now_ns: u64) -> Result<(), LiveError> {
        let rank = self.context.rank;
        match fault {
            EngineFault::Stall { for_ns } => {
                tracing::warn!(rank, duration = ?Duration::from_nanos(for_ns), "a fault stalls the engine");
                self.stepper.stall(for_ns, now_ns);
            }
            EngineFault::Crash { restart_ns, sends_dead } => {
                tracing::warn!(rank, restart_after = ?restart_ns.map(Duration::from_nanos), "a fault ends the engine");
                if sends_dead {
                    self.egress.outputs.send_dead()?;
                }
                self.lifecycle.end(End::Crashed { restart_ns });
            }
        }
        self.snapshot.expire();
        Ok(())
    }

    /// Ends all engines of the process because one has failed.
    pub(crate) fn fail_process(&self) {
        for shared in self.shared.iter() {
            shared.fail_soon();
        }
    }
}
