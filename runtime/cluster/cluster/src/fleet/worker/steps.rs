//! Steps of a worker: schedule, start, cut off, end.

use vcr_core::plan::StepPlan;
use vcr_core::policy::PolicyError;
use vcr_core::tokens::TokenError;
use vcr_core::{AnyEngine, Compilation, Engine, ServingEngine, TokenSource};

use super::Worker;
use super::drawn::{Acceptance, DrawnTokens};
use super::shown::{Showing, ShownTokens};
use crate::window::Window;

impl Worker {
    /// Schedules a step. The worker's policy, if any, ranks the requests first.
    pub(crate) fn schedule(&mut self, now_ns: u64) -> Result<&StepPlan, PolicyError> {
        if let Some(engine) = self.engine.as_vllm_mut() {
            if let Some(policy) = &mut self.policy {
                engine.apply_policy(policy.as_mut(), now_ns)?;
            }
            if let Some(tiers) = engine.kv_tiers_mut() {
                tiers.advance(now_ns);
            }
            engine.advance_clock(now_ns);
        }
        Ok(self.engine.schedule())
    }

    /// The time of the next token of a request with per-request times, unless an event for it is already scheduled.
    pub(crate) fn expect_token_ns(&mut self, now_ns: u64) -> Option<u64> {
        let at_ns = self.engine.as_vllm()?.next_token_ns()?;
        self.waits.expect_token(now_ns, at_ns)
    }

    /// Ends the compilation of a request's grammar. Returns false if the request does not wait for it.
    pub(crate) fn end_compilation(&mut self, tag: u64, compilation: Compilation) -> bool {
        self.engine.as_vllm_mut().is_some_and(|engine| engine.end_compilation(tag, compilation))
    }

    /// Ends the requests whose grammars failed, if no step is in flight that would end them. Returns the requests.
    pub(crate) fn end_without_grammars(&mut self) -> Vec<u64> {
        let idle = self.engine.as_vllm_mut().filter(|engine| !engine.step_in_flight() && engine.has_failed_grammars());
        idle.map_or_else(Vec::new, |engine| engine.apply_transfers().outputs.iter().map(|output| output.tag).collect())
    }

    /// Shows the requests that left the steady decode, with the number of tokens that each got there.
    pub(crate) fn take_left_steady_decode(&mut self, mut show: impl FnMut(u64, u32)) {
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.take_unreported().for_each(|(tag, tokens)| show(tag, tokens));
        }
    }

    pub(crate) fn dissolve_steady_decode(&mut self) {
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.dissolve_steady_decode();
        }
    }

    pub(crate) fn can_step(&self) -> bool {
        self.may_work()
            && self.engine.may_schedule()
            && !self.pipeline.as_ref().is_some_and(|pipeline| pipeline.is_waiting())
            && self.engine.has_schedulable_requests()
    }

    /// Whether the model's layers are split into pipeline stages.
    pub(crate) fn has_stages(&self) -> bool {
        self.pipeline.is_some()
    }

    /// Records a batch, with or without work. Returns whether another batch may be scheduled immediately. Without
    /// stages, this is `any`.
    pub(crate) fn queue_batch(&mut self, has_work: bool, any: bool, now_ns: u64) -> bool {
        self.pipeline.as_mut().map_or(any, |pipeline| pipeline.push(has_work, now_ns))
    }

    /// Drops empty batches at the end of an instant's schedules.
    pub(crate) fn drop_empty_batches(&mut self) {
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.drop_empty_batches();
        }
    }

    /// Whether a scheduled step has not started.
    pub(crate) fn can_start(&self) -> bool {
        self.may_work() && !self.booking.is_executing() && self.engine.step_in_flight()
    }

    /// Whether steps must be simulated one by one, because a plugin may end a request or the engine after any step,
    /// or needs KV events or group shapes of each step.
    pub(crate) fn takes_single_steps(&self) -> bool {
        // In a fast-forward, only vLLM's engine reports the step of each event.
        let unclear = self.engine.kv_events().is_some() && self.engine.as_vllm().is_none();
        // Other engines' transfers to shared tiers may admit a waiting request.
        self.injector.is_some()
            || self.tokens.is_some()
            || self.pipeline.is_some()
            || self.pricing.reads_kv_groups()
            || self.facts.shares_tiers
            || self.facts.uses_forecast
            || unclear
    }

    /// Counts the step in flight as busy time only until `now_ns`, where the step or the run is cut off.
    pub(crate) fn cut_step(&mut self, now_ns: u64) {
        let [rest_ns, wait_ns] = self.booking.cut(now_ns);
        self.totals.busy_ns = self.totals.busy_ns.saturating_sub(rest_ns);
        self.totals.waited_ns = self.totals.waited_ns.saturating_sub(wait_ns);
    }

    /// Ends the step that was executing. The engine then holds its outputs.
    pub(crate) fn update(
        &mut self,
        now_ns: u64,
        output_seeds: &Window<u64>,
        acceptance_rates: &[f64],
        num_output_tokens: impl Fn(u64) -> u32,
    ) -> Result<(), TokenError> {
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.offload_prompts(now_ns);
        }
        let acceptance = Acceptance { rates: acceptance_rates, stream: &mut self.acceptance };
        match &mut self.tokens {
            None => apply(&mut self.engine, DrawnTokens { output_seeds, acceptance }, true, self.shown.as_deref_mut()),
            Some(tokens) => {
                let more = self.engine.max_extra_tokens_per_step();
                tokens.prepare(self.engine.oldest_plan(), more, num_output_tokens)?;
                apply(&mut self.engine, tokens.of_step(acceptance), false, self.shown.as_deref_mut());
            }
        }
        self.booking.end();
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.pop();
        }
        Ok(())
    }

    /// Whether the step in progress decodes several tokens per request and must be followed by a step of the same
    /// requests, unless something arrives from outside.
    pub(crate) fn decodes_bursts_on(&self) -> bool {
        self.engine.as_vllm().is_some_and(Engine::decodes_bursts_on)
    }

    /// Advances from a step that decodes bursts to the next one. The engine then holds the outputs of the earlier step.
    pub(crate) fn decode_bursts(&mut self, output_seeds: &Window<u64>, acceptance_rates: &[f64]) {
        let acceptance = Acceptance { rates: acceptance_rates, stream: &mut self.acceptance };
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.decode_bursts(&mut DrawnTokens { output_seeds, acceptance });
        }
    }

    /// Skips from the step in flight to the step `steps` later, which is then in flight. The engine then holds the
    /// outputs of the skipped steps.
    pub(crate) fn skip(&mut self, steps: u32, output_seeds: &Window<u64>) {
        let acceptance = Acceptance { rates: &[], stream: &mut self.acceptance };
        let mut source = DrawnTokens { output_seeds, acceptance };
        self.engine.decode_ahead(steps, &mut source);
    }
}

/// Applies a step with the tokens of a source. In a served cluster, the tokens are also kept for the server.
fn apply(engine: &mut AnyEngine, mut source: impl TokenSource, are_drawn: bool, shown: Option<&mut ShownTokens>) {
    match shown {
        None => engine.update(&mut source),
        Some(shown) => engine.update(&mut Showing { source, are_drawn, shown }),
    };
}
