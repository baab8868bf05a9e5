//! Partly computed prompts: their remaining tokens, those that hold blocks, and the deferral of prefills so
//! that decodes run undisturbed (vLLM's `prefill_schedule_interval`).
//!
//! For ranks that step together, the driver counts steps and decides which steps start prefills. A single
//! engine counts its own steps since the latest step with a prefill chunk.

use crate::engine::Engine;
use crate::engine::PauseState;
use crate::engine::schedule::Scan;
use crate::request::table::RequestTable;
use crate::request::{Flags, Request, RequestId, RequestStatus};

#[derive(Debug, Default)]
pub(super) struct Prefills {
    /// Total prefill tokens to compute, over waiting and running requests.
    outstanding_tokens: u64,
    /// Requests with [`Flags::IN_FLIGHT_PREFILL`], now or earlier in this step.
    in_flight: Vec<RequestId>,
    throttle: PrefillThrottle,
}

/// State for prefills that wait for every N-th step.
#[derive(Clone, Copy, Debug, Default)]
struct PrefillThrottle {
    /// Whether the driver of all ranks throttles prefills in the next step.
    is_on: bool,
    /// Whether requests still waited after the latest step that could start prefills. If so, throttled steps
    /// may start prefills, too.
    is_capacity_bound: bool,
    /// Number of the latest step with a prefill chunk ([`crate::EngineStats::steps`]).
    latest_prefill: Option<u64>,
}

impl Prefills {
    #[inline]
    pub(super) fn outstanding_tokens(&self) -> u64 {
        self.outstanding_tokens
    }

    #[inline]
    pub(super) fn add(&mut self, tokens: u32) {
        self.outstanding_tokens += u64::from(tokens);
    }

    /// Subtracts tokens that have been computed or never will be.
    #[inline]
    pub(super) fn subtract(&mut self, tokens: u32) {
        self.outstanding_tokens -= u64::from(tokens);
    }

    /// Updates the total while `change` changes a request.
    #[inline]
    pub(super) fn recount(&mut self, request: &mut Request, change: impl FnOnce(&mut Request)) {
        self.subtract(request.outstanding_prefill_tokens());
        change(request);
        self.add(request.outstanding_prefill_tokens());
    }

    /// Records that part of a request's prompt is still to be computed or loaded.
    pub(super) fn note_in_flight(&mut self, id: RequestId, requests: &mut RequestTable) {
        if !is_in_flight(&requests[id]) {
            requests[id].flags.set(Flags::IN_FLIGHT_PREFILL, true);
            self.in_flight.retain(|other| *other != id);
            self.in_flight.push(id);
        }
    }

    /// Forgets requests whose prompts the previous step completed. A request whose prompt this step completes
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

    /// The requests that hold blocks and still have part of their prompt to compute or load.
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

    pub(super) fn defers_prefills(&self) -> bool {
        let PrefillThrottle { is_on, is_capacity_bound, .. } = self.prefills.throttle;
        let decodes = |id: &RequestId| !self.requests[*id].flags.has(Flags::PREFILL_CHUNK);
        (is_on || self.is_within_interval(self.stats.steps + 1))
            && !is_capacity_bound
            && self.running.iter().any(decodes)
    }

    /// Whether step `step` comes too soon after the latest prefill.
    fn is_within_interval(&self, step: u64) -> bool {
        let interval = self.config.own_prefill_interval();
        interval > 1 && self.prefills.throttle.latest_prefill.is_some_and(|latest| step - latest < interval)
    }

    pub(super) fn note_prefills(&mut self, scan: &Scan) {
        if !scan.defers_prefills && scan.num_preempted == 0 && self.pause_state != PauseState::PausedAll {
            self.note_waiting_prefills();
        }
        if self.config.own_prefill_interval() > 1 && (scan.prefill_running || scan.prefill_admitted) {
            self.prefills.throttle.latest_prefill = Some(self.stats.steps);
        }
    }

    /// Updates the state for skipped steps, all of them decodes: some of them could have started prefills.
    pub(super) fn note_skipped_steps(&mut self) {
        if self.config.own_prefill_interval() > 1
            && (self.prefills.throttle.is_capacity_bound || !self.is_within_interval(self.stats.steps))
        {
            self.note_waiting_prefills();
        }
    }

    /// Records whether requests wait for capacity. Requests that were skipped wait for something else and do not count.
    fn note_waiting_prefills(&mut self) {
        self.prefills.throttle.is_capacity_bound =
            self.queues.len() - self.queues.num_destinations() > self.queues.num_deferred();
    }
}
