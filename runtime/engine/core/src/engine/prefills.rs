//! Partly computed prompts: their remaining tokens, the ones that hold blocks, and steps that defer
//! them for undisturbed decodes (vLLM's `prefill_schedule_interval`).
//!
//! Ranks that step together count the steps of their wave, and their driver decides which of them
//! start prefills. A single engine counts its own steps since the latest one with a part of a
//! prompt.

use crate::engine::Engine;
use crate::engine::PauseState;
use crate::engine::schedule::Scan;
use crate::request::table::RequestTable;
use crate::request::{Flags, Request, RequestId, RequestStatus};

/// The prefill work of an engine.
#[derive(Debug, Default)]
pub(super) struct Prefills {
    /// Prefill tokens not yet computed, over waiting and running requests.
    outstanding_tokens: u64,
    /// Requests that are [`Flags::IN_FLIGHT_PREFILL`], or were in this step.
    in_flight: Vec<RequestId>,
    throttle: PrefillThrottle,
}

/// Prefills that wait for every N-th step.
#[derive(Clone, Copy, Debug, Default)]
struct PrefillThrottle {
    /// Whether the next step is between prefill steps, by the count of all ranks.
    is_on: bool,
    /// Whether requests still waited after the latest step that could start prefills: then
    /// steps between do so, too.
    is_capacity_bound: bool,
    /// The number of the latest step that computed a part of a prompt ([`crate::EngineStats::steps`]).
    latest_prefill: Option<u64>,
}

impl Prefills {
    /// Prefill tokens not yet computed, over waiting and running requests.
    #[inline]
    pub(super) fn outstanding_tokens(&self) -> u64 {
        self.outstanding_tokens
    }

    /// Adds this number of tokens to compute.
    #[inline]
    pub(super) fn add(&mut self, tokens: u32) {
        self.outstanding_tokens += u64::from(tokens);
    }

    /// This number of tokens has been computed, or never will be.
    #[inline]
    pub(super) fn subtract(&mut self, tokens: u32) {
        self.outstanding_tokens -= u64::from(tokens);
    }

    /// Updates the remaining tokens after a change of a request.
    #[inline]
    pub(super) fn recount(&mut self, request: &mut Request, change: impl FnOnce(&mut Request)) {
        self.subtract(request.outstanding_prefill_tokens());
        change(request);
        self.add(request.outstanding_prefill_tokens());
    }

    /// Notes that a request has a part of its prompt still to compute, or to load.
    pub(super) fn note_in_flight(&mut self, id: RequestId, requests: &mut RequestTable) {
        if !is_in_flight(&requests[id]) {
            requests[id].flags.set(Flags::IN_FLIGHT_PREFILL, true);
            self.in_flight.retain(|other| *other != id);
            self.in_flight.push(id);
        }
    }

    /// Forgets requests whose prompts the previous step completed. A request that this step ends
    /// still counts.
    #[inline]
    pub(super) fn clean_in_flight(&mut self, requests: &mut RequestTable) {
        self.in_flight.retain(|&id| {
            let request = &mut requests[id];
            if request.status == RequestStatus::Running && !request.flags.has(Flags::PREFILL_CHUNK) {
                request.flags.set(Flags::IN_FLIGHT_PREFILL, false);
            }
            is_in_flight(request)
        });
    }

    /// The requests that hold blocks and have a part of their prompt still to compute, or to load.
    pub(super) fn in_flight(&self, requests: &RequestTable) -> impl Iterator<Item = RequestId> {
        self.in_flight.iter().copied().filter(|&id| is_in_flight(&requests[id]))
    }
}

fn is_in_flight(request: &Request) -> bool {
    request.flags.has(Flags::IN_FLIGHT_PREFILL) && request.status != RequestStatus::Finished
}

impl Engine {
    /// Sets whether the next step defers prefills while any request decodes (vLLM's
    /// `schedule(throttle_prefills)`).
    pub fn throttle_prefills(&mut self, is_on: bool) {
        self.prefills.throttle.is_on = is_on;
    }

    /// Whether the step that is decided now defers prefills.
    pub(super) fn defers_prefills(&self) -> bool {
        let PrefillThrottle { is_on, is_capacity_bound, .. } = self.prefills.throttle;
        let decodes = |id: &RequestId| !self.requests[*id].flags.has(Flags::PREFILL_CHUNK);
        (is_on || self.is_within_interval(self.stats.steps + 1))
            && !is_capacity_bound
            && self.running.iter().any(decodes)
    }

    /// Whether the step with this number is too early after the latest prefill.
    fn is_within_interval(&self, step: u64) -> bool {
        let interval = self.config.own_prefill_interval();
        interval > 1 && self.prefills.throttle.latest_prefill.is_some_and(|latest| step - latest < interval)
    }

    /// A step is decided, and counted if it computes anything.
    pub(super) fn note_prefills(&mut self, scan: &Scan) {
        if !scan.defers_prefills && scan.num_preempted == 0 && self.pause_state != PauseState::PausedAll {
            self.note_waiting_prefills();
        }
        if self.config.own_prefill_interval() > 1 && (scan.prefill_running || scan.prefill_admitted) {
            self.prefills.throttle.latest_prefill = Some(self.stats.steps);
        }
    }

    /// Steps that decode all running requests are skipped, and counted: some of them could have started prefills.
    pub(super) fn note_skipped_steps(&mut self) {
        if self.config.own_prefill_interval() > 1
            && (self.prefills.throttle.is_capacity_bound || !self.is_within_interval(self.stats.steps))
        {
            self.note_waiting_prefills();
        }
    }

    /// Requests that wait for anything but room do not count: they were stepped over.
    fn note_waiting_prefills(&mut self) {
        self.prefills.throttle.is_capacity_bound =
            self.queues.len() - self.queues.num_destinations() > self.queues.num_deferred();
    }
}
