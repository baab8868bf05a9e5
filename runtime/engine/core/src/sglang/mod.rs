//! An SGLang-style engine: a radix cache, passes that prefill first, an estimated reserve for outputs, and retraction
//! where the estimate was wrong.
//!
//! Owns its requests, its KV pages and its scheduler, as [`Engine`] does under vLLM's rules, and returns the
//! same plans. Pages are counted, not numbered: shared pages are in the radix tree, other pages belong to one
//! request. The rules and the numbers are those of Dynamo's mocker, under either [`PassOrder`], with
//! three differences:
//! * A prompt computed in chunks stays one request, so its own chunks do not count as reuse. (In 1.4, they do.)
//! * [`ServingEngine::check`] refuses a request that can never fit, instead of letting it wait
//!   forever.
//! * If nothing else can continue, a retracted request is admitted without a reserve for its output, and the
//!   prompt that was started first keeps its pages.
//!
//! [`Engine`]: crate::Engine
//! [`ServingEngine::check`]: crate::ServingEngine::check

mod admit;
mod ahead;
mod config;
mod decode;
mod engine;
mod pages;
mod queues;
mod reserve;
mod serving;
mod update;

pub use config::{PassOrder, PrefixLookup, Retraction, SchedulePolicy, SglangConfig, SglangConfigInput};
pub use engine::SglangEngine;

use crate::compat::Reservations;
use crate::config::NamedValue;
use crate::config::options::options;
use crate::request::{RequestId, RequestStatus};

// Decode passes between two passes that prefill. Data-parallel ranks may count them together.
//
// SGLang's ranks tell each other whether any of them prefills, so all of them wait for the same number of passes. The
// driver knows the ranks, and calls the engine at the start and at the end of each of their passes.

#[derive(Clone, Copy, Debug)]
struct PrefillInterval {
    length: u32,
    decodes_due: u32,
    /// Whether the driver counts passes, for several ranks.
    counts_together: bool,
}

impl PrefillInterval {
    fn new(length: u32) -> Self {
        Self { length, decodes_due: 0, counts_together: false }
    }

    fn decodes_due(self) -> u32 {
        self.decodes_due
    }

    fn counts_together(self) -> bool {
        self.counts_together
    }

    fn count_together(&mut self) {
        self.counts_together = true;
    }

    fn end_passes(&mut self, passes: u32, any_prefills: bool) {
        self.decodes_due = if any_prefills { self.length } else { self.decodes_due.saturating_sub(passes) };
    }

    /// Skips all decode passes that are due, since nothing decodes. Returns false if none is due.
    fn skip(&mut self) -> bool {
        std::mem::take(&mut self.decodes_due) > 0
    }
}

impl SglangEngine {
    /// Aborts all requests, and calls `aborted` with each tag. KV held for another engine stays.
    pub fn abort_all(&mut self, mut aborted: impl FnMut(u64)) {
        let held = |id: &RequestId| self.requests[*id].status == RequestStatus::HoldingKv;
        let ids: Vec<RequestId> = self.requests.live_ids().filter(|id| !held(id)).collect();
        for id in ids {
            aborted(self.requests[id].tag);
            self.abort_request(id);
        }
    }

    /// Empties the radix cache (SGLang's `flush_cache`). Does nothing and returns false while there is any request.
    pub fn flush_cache(&mut self) -> bool {
        let is_idle = !self.step_in_flight && self.requests.live_ids().next().is_none();
        if is_idle {
            self.pages.flush();
        }
        is_idle
    }

    /// Ends a request early and frees its resources. Does nothing if the request has ended.
    fn abort_request(&mut self, id: RequestId) {
        match self.requests[id].status {
            RequestStatus::HoldingKv if self.released.contains(&id) => return,
            RequestStatus::Finished => return,
            _ => {}
        }
        if !self.queues.leave(id, &mut self.requests) {
            self.running.retain(|&other| other != id);
        }
        self.outstanding_prefill_tokens -= u64::from(self.requests[id].outstanding_prefill_tokens());
        self.drop_request(id);
    }

    /// Ends a request that has left all lists. The KV of its first `kept_tokens` tokens may be
    /// reused, and is held if another engine needs it.
    fn finish(&mut self, id: RequestId, kept_tokens: u32) {
        self.reserve.end(&mut self.requests[id]);
        if self.is_source(id) && self.stores_sources_late() {
            self.pages.store_late(id, kept_tokens);
            self.requests[id].status = RequestStatus::HoldingKv;
            return;
        }
        self.pages.store_ended(id, &self.requests[id], kept_tokens);
        if self.is_source(id) {
            self.requests[id].status = RequestStatus::HoldingKv;
        } else {
            self.drop_request(id);
        }
    }

    /// Whether KV for another engine is offered to the cache only when that engine has received it.
    /// Source: `aisimulate-core` of Dynamo 1.6.
    fn stores_sources_late(&self) -> bool {
        self.config.reservations() == Reservations::BetweenSteps && self.config.pass_order() == PassOrder::PrefillFirst
    }

    /// Frees the KV that a request holds for another engine. If a pass is in flight, that happens at its end.
    fn release_source(&mut self, id: RequestId) {
        if self.step_in_flight && self.stores_sources_late() {
            self.released.push(id);
            return;
        }
        self.pages.store_what_is_late(id, &self.requests[id]);
        self.drop_request(id);
    }

    fn drop_request(&mut self, id: RequestId) {
        self.reserve.end(&mut self.requests[id]);
        self.pages.release(id);
        self.requests.retire(id, self.stats.steps);
        self.requests.recycle(self.applied_steps);
    }

    /// Ends the load of a request's KV. Other requests may now reuse it, and the request decodes from the next pass on.
    fn end_load(&mut self, id: RequestId) {
        let request = &mut self.requests[id];
        assert_eq!(request.status, RequestStatus::WaitingForRemoteKv, "no transfer was pending");
        request.status = RequestStatus::RemoteKvReady;
        let prompt_tokens = request.prompt_tokens;
        // The last token is recomputed here, because sampling needs its logits.
        request.num_computed_tokens = prompt_tokens - 1;
        self.pages.store_now(id, request, prompt_tokens);
        self.queues.end_load(id, &mut self.requests);
    }
}

impl NamedValue for SchedulePolicy {
    const NAMES: &'static [(&'static str, Self)] = &[("fifo", Self::Fifo), ("fcfs", Self::Fifo), ("lpm", Self::Lpm)];
}

impl NamedValue for PassOrder {
    const NAMES: &'static [(&'static str, Self)] = &[("prefill-first", Self::PrefillFirst), ("mixed", Self::Mixed)];
}

impl NamedValue for PrefixLookup {
    const NAMES: &'static [(&'static str, Self)] =
        &[("whole-prompt", Self::WholePrompt), ("first-chunk", Self::FirstChunk)];
}

impl NamedValue for Retraction {
    const NAMES: &'static [(&'static str, Self)] = &[("behind-all", Self::BehindAll), ("before-all", Self::BeforeAll)];
}

options! {
    crate::sglang::SglangConfigInput, crate::sglang::SglangConfig;
    PAGE_SIZE page_size: Count("tokens", 1..=u32::MAX), "page_size", None, Simulated, "tokens of a KV page";
    NUM_PAGES num_pages: Count("count", 1..=u32::MAX), "num_pages", None, Simulated,
        "KV pages; with pages of one token the default is a small engine";
    MAX_NUM_SEQS max_num_seqs: Count("count", 1..=u32::MAX), "max_num_seqs", None, Simulated,
        "maximum number of running requests, including requests that load KV";
    MAX_MODEL_LEN max_model_len: Limit("tokens", 1..=u32::MAX, "no limit but the pool"), "max_model_len", None, Simulated,
        "longest sequence, prompt and output";
    ENABLE_PREFIX_CACHING enable_prefix_caching: Switch(), "prefix_caching", None, Simulated,
        "keep computed pages in the radix cache";
    SCHEDULE_POLICY schedule_policy: Name(), "schedule_policy", None, Simulated,
        "order of admission; `\"fcfs\"` is `\"fifo\"`; `\"lpm\"` is the longest cached prefix first, while at most \
         128 requests wait";
    MAX_PREFILL_TOKENS max_prefill_tokens: Count("tokens", 1..=u32::MAX), "max_prefill_tokens", None, Simulated,
        "maximum prompt tokens of a pass";
    CHUNKED_PREFILL_SIZE chunked_prefill_size: Count("tokens", 1..=u32::MAX), "chunked_prefill_size", None, Simulated,
        "second maximum of a pass's prompt tokens, in full pages; longer prompts are computed in chunks of this \
         size";
    CLIP_MAX_NEW_TOKENS clip_max_new_tokens: Count("tokens", 0..=u32::MAX), "clip_max_new_tokens", None, Simulated,
        "maximum number of output tokens that a request reserves KV for";
    SCHEDULE_CONSERVATIVENESS schedule_conservativeness: Factor("number"), "schedule_conservativeness", None, Simulated,
        "factor on the share of running requests' outputs that KV is reserved for";
    PASS_ORDER pass_order: Name(), "pass_order", None, Simulated,
        "whether running requests wait during a pass with prompts (Dynamo 1.6, SGLang itself) or decode in the \
         same pass (Dynamo 1.4)";
    RETRACTION retraction: Name(), "retraction", None, Simulated,
        "place of a retracted request in the queue, and share reserved afterwards: as in Dynamo 1.6 and SGLang \
         itself, or as in Dynamo 1.4 ([retraction](../../appendix/other-schedulers.md#sglang))";
    MAX_EXTRA_TOKENS_PER_STEP max_extra_tokens_per_step: Count("tokens", 0..=u32::MAX), "max_extra_tokens_per_step", None,
        Simulated, "further tokens that a decode may emit in a pass: multi-token prediction as Dynamo's mocker models it";
    PREFILL_DECODE_INTERVAL prefill_decode_interval: Count("count", 0..=u32::MAX), "prefill_decode_interval", None, Simulated,
        "decode passes between two prefill passes, while any request decodes";
}

/// Settings that scenarios cannot set directly, by their key in a step log.
#[must_use]
pub fn derived_settings(input: &SglangConfigInput) -> [(&'static str, &'static str); 2] {
    [("prefix_lookup", input.prefix_lookup.name()), ("reservations", input.reservations.name())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OptionValue;

    #[test]
    fn every_option_sets_what_it_gets() {
        let own = SglangConfigInput::default();
        for option in OPTIONS {
            let mut input = own.clone();
            let other = match (option.get)(&input) {
                OptionValue::Count(count) => OptionValue::Count(count + 7),
                OptionValue::Limit(_) => OptionValue::Limit(Some(7)),
                OptionValue::Share(number) | OptionValue::Factor(number) => OptionValue::Factor(number + 0.5),
                OptionValue::Switch(on) => OptionValue::Switch(!on),
                OptionValue::Name(name) => {
                    let names = (option.names)();
                    assert_eq!(names.first(), Some(&name), "the default of {} is listed first", option.name);
                    OptionValue::Name(names.last().copied().expect("there are names"))
                }
            };
            (option.set)(&mut input, other);
            assert_eq!((option.get)(&input), other, "{}", option.name);
            let changed = OPTIONS.iter().filter(|o| (o.get)(&input) != (o.get)(&own));
            assert_eq!(changed.count(), 1, "{} sets another option", option.name);
        }
    }
}
