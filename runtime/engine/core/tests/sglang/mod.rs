//! An SGLang-style engine: its rules one by one, and random actions of a driver.

mod random;
mod rules;

use vcr_core::plan::{ScheduledKind, StepPlan};
use vcr_core::sglang::{SglangConfig, SglangConfigInput, SglangEngine};
use vcr_core::{Prompt, RequestId, RequestSpec, ServingEngine, TokenSource};

/// Tokens depend on request and position. About every 37th token is a stop token.
struct Tokens;

impl TokenSource for Tokens {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        (tag as u32).wrapping_mul(31).wrapping_add(output_index * 7) % 37
    }

    fn extra_tokens(&mut self, tag: u64, max_extra: u32) -> u32 {
        tag as u32 % (max_extra + 1)
    }
}

fn engine(input: SglangConfigInput) -> SglangEngine {
    SglangEngine::new(SglangConfig::new(input).expect("a valid engine"))
}

/// A prompt that begins with `shared` tokens of other prompts and continues with unique tokens.
fn prompt(page_size: u32, tag: u64, shared: u32, own: u32) -> Prompt {
    let mut prompt = Prompt::new(page_size, 0);
    prompt.push_run(1, 0, shared);
    prompt.push_run(1000 + tag, 0, own);
    prompt
}

fn submit(engine: &mut SglangEngine, tag: u64, shared: u32, own: u32, max_tokens: u32) -> RequestId {
    let prompt = prompt(engine.config().page_size(), tag, shared, own);
    engine.submit(RequestSpec::new(tag, prompt, max_tokens)).expect("the engine takes it")
}

/// The rows of a plan: request, kind, depth, tokens.
fn rows(plan: &StepPlan) -> Vec<(u64, ScheduledKind, u32, u32)> {
    plan.scheduled.iter().map(|e| (e.tag, e.kind, e.num_computed_tokens, e.num_scheduled_tokens)).collect()
}

fn pass(engine: &mut SglangEngine) -> Vec<(u64, ScheduledKind, u32, u32)> {
    let rows = rows(engine.schedule());
    if engine.step_in_flight() {
        engine.update(&mut Tokens);
    }
    rows
}
