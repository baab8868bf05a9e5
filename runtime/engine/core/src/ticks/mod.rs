//! An engine that schedules by ticks: admission by priority with full reservations,
//! and round-robin decoding.
//!
//! Owns its requests, its page count and its scheduler. The rules are those of
//! [runtime-lab](https://github.com/WaffleBits/deterministic-inference-scheduler)'s published
//! scheduler:
//!
//! * A request reserves the pages of its prompt and its whole output when it is admitted, and
//!   returns them when it ends. There are no preemptions.
//! * Each tick tries all waiting requests in order of priority, arrival and submission. A request
//!   that does not fit is skipped, so a smaller request may go first.
//! * Prompts are not split. The prompts of one tick have at most `prefill_tokens_per_tick` tokens.
//! * After admission, the first `decode_width` admitted requests get one token each and move
//!   behind all others.
//!
//! A step is a tick. Its duration comes from the latency model.

mod engine;
mod schedule;

pub use engine::TickEngine;

use crate::config::ConfigError;
use crate::config::options::options;
use crate::engine::RejectReason;
use crate::plan::{RequestOutput, ScheduledRequest, StepOutputs, StepPlan};
use crate::plugins::TokenSource;
use crate::request::{FinishReason, RequestId, RequestSpec, RequestStatus};
use crate::serving::{EngineLoad, ServingEngine};
use crate::stats::EngineStats;

impl TickEngine {
    fn apply<S: TokenSource + ?Sized>(&mut self, source: &mut S) {
        assert!(self.step_in_flight, "applied a tick that was never scheduled");
        let plan = std::mem::take(&mut self.plan);
        let mut out = std::mem::take(&mut self.outputs);
        out.clear();
        for entry in &plan.scheduled {
            // The request was aborted while the tick was in flight.
            if self.requests[entry.request].status == RequestStatus::Finished {
                continue;
            }
            if entry.samples {
                self.sample(entry, source, &mut out);
            } else {
                // The first token comes from a later tick, which recomputes the prompt's last token because
                // sampling needs its logits.
                let request = &mut self.requests[entry.request];
                request.num_computed_tokens -= 1;
                request.prefill_target_tokens = request.num_computed_tokens;
            }
        }
        self.plan = plan;
        self.outputs = out;
        self.step_in_flight = false;
        self.applied_steps += 1;
        self.requests.recycle(self.applied_steps);
    }

    /// Appends a request's token. Then ends the request or moves it behind all others.
    fn sample<S: TokenSource + ?Sized>(&mut self, entry: &ScheduledRequest, source: &mut S, out: &mut StepOutputs) {
        let id = entry.request;
        let request = &mut self.requests[id];
        let mut finish = (request.max_tokens == 0).then_some(FinishReason::Length);
        let num_tokens = u32::from(finish.is_none());
        if num_tokens > 0 {
            let token = source.token(entry.tag, request.num_output_tokens());
            out.tokens.push(token);
            request.num_computed_tokens = request.num_tokens;
            request.push_output(token, false, self.config.page_size_tokens());
            finish = request.finish_after(token);
        }
        let turn = self.active.iter().position(|&other| other == id);
        self.active.remove(turn.expect("only active requests are sampled"));
        if finish.is_some() {
            self.drop_request(id);
        } else {
            self.active.push_back(id);
        }
        out.outputs.push(RequestOutput {
            request: id,
            tag: entry.tag,
            num_tokens,
            num_sampled_tokens: num_tokens as u16,
            num_draft_tokens: 0,
            finish,
        });
    }
}

impl ServingEngine for TickEngine {
    fn check(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason> {
        self.check_lengths(prompt_tokens, max_tokens)
    }

    fn submit(&mut self, spec: RequestSpec) -> Result<RequestId, RejectReason> {
        self.enqueue(spec)
    }

    fn abort(&mut self, id: RequestId) {
        self.abort_request(id);
    }

    fn live_tags(&self) -> Vec<u64> {
        self.requests.live_ids().map(|id| self.requests[id].tag).collect()
    }

    fn running_tags(&self) -> Vec<u64> {
        self.active.iter().map(|&id| self.requests[id].tag).collect()
    }

    fn has_schedulable_requests(&self) -> bool {
        !self.active.is_empty() || !self.waiting.is_empty()
    }

    fn schedule(&mut self) -> &StepPlan {
        assert!(!self.step_in_flight, "scheduled a tick while one is in flight");
        let mut plan = std::mem::take(&mut self.plan);
        plan.clear();
        self.decide(&mut plan);
        self.step_in_flight = !plan.scheduled.is_empty();
        self.stats.steps += u64::from(self.step_in_flight);
        self.plan = plan;
        &self.plan
    }

    fn steps_in_flight(&self) -> usize {
        usize::from(self.step_in_flight)
    }

    fn plan(&self) -> &StepPlan {
        &self.plan
    }

    fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs {
        self.apply(source);
        &self.outputs
    }

    fn outputs(&self) -> &StepOutputs {
        &self.outputs
    }

    fn load(&self) -> EngineLoad {
        EngineLoad {
            num_running: self.active.len(),
            num_waiting: self.waiting.len(),
            num_loading: 0,
            outstanding_prefill_tokens: self.outstanding_prefill_tokens,
            num_active_blocks: self.config.total_kv_pages() - self.num_free_pages,
            num_usable_blocks: self.config.total_kv_pages(),
        }
    }

    fn stats(&self) -> &EngineStats {
        &self.stats
    }
}

/// Settings as a user states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickConfigInput {
    /// KV pages.
    pub total_kv_pages: u32,
    /// Tokens per KV page.
    pub page_size_tokens: u32,
    /// Maximum number of admitted requests.
    pub max_active: u32,
    /// Maximum number of prompt tokens that one tick admits.
    pub prefill_tokens_per_tick: u32,
    /// Maximum number of requests that get a token in one tick.
    pub decode_width: u32,
}

impl Default for TickConfigInput {
    fn default() -> Self {
        Self {
            total_kv_pages: 1_024,
            page_size_tokens: 16,
            max_active: 16,
            prefill_tokens_per_tick: 2_048,
            decode_width: 8,
        }
    }
}

/// Checked settings of an engine that schedules by ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickConfig {
    input: TickConfigInput,
}

impl TickConfig {
    /// Checks every field and reports all problems, not only the first.
    pub fn new(input: TickConfigInput) -> Result<Self, Vec<ConfigError>> {
        let errors: Vec<_> = OPTIONS.iter().filter_map(|option| option.problem(&input)).collect();
        if errors.is_empty() { Ok(Self { input }) } else { Err(errors) }
    }

    /// The settings as the user stated them.
    #[must_use]
    pub fn stated(&self) -> &TickConfigInput {
        &self.input
    }

    /// Number of pages that a request reserves.
    #[must_use]
    pub fn reserved_pages(&self, prompt_tokens: u32, max_tokens: u32) -> u32 {
        let tokens = u64::from(prompt_tokens) + u64::from(max_tokens);
        u32::try_from(tokens.div_ceil(u64::from(self.input.page_size_tokens))).unwrap_or(u32::MAX)
    }
}

options! {
    crate::ticks::TickConfigInput, crate::ticks::TickConfig;
    TOTAL_KV_PAGES total_kv_pages: Count("count", 1..=u32::MAX), "total_kv_pages", None, Simulated, "KV pages";
    PAGE_SIZE_TOKENS page_size_tokens: Count("tokens", 1..=u32::MAX), "page_size_tokens", None, Simulated,
        "tokens of a KV page";
    MAX_ACTIVE max_active: Count("count", 1..=u32::MAX), "max_active", None, Simulated,
        "maximum number of admitted requests";
    PREFILL_TOKENS_PER_TICK prefill_tokens_per_tick: Count("tokens", 1..=u32::MAX), "prefill_tokens_per_tick", None,
        Simulated, "maximum prompt tokens of the requests that one tick admits; a longer prompt is refused";
    DECODE_WIDTH decode_width: Count("count", 1..=u32::MAX), "decode_width", None, Simulated,
        "maximum number of requests that get a token in one tick";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_reported_at_once() {
        let input =
            TickConfigInput { total_kv_pages: 0, page_size_tokens: 0, decode_width: 0, ..TickConfigInput::default() };
        let problems = TickConfig::new(input).expect_err("three settings are 0");
        let fields: Vec<_> = problems.iter().map(ConfigError::field).collect();
        assert_eq!(fields, ["total_kv_pages", "page_size_tokens", "decode_width"]);
    }

    #[test]
    fn reservations_are_whole_pages_of_prompt_and_output() {
        let config = TickConfig::new(TickConfigInput::default()).expect("the defaults are valid");
        let pages = [(16, 0), (15, 1), (16, 1), (1, 0)].map(|(prompt, output)| config.reserved_pages(prompt, output));
        assert_eq!(pages, [1, 1, 2, 1]);
        assert_eq!(config.reserved_pages(u32::MAX, u32::MAX), 1 << 29);
    }
}
