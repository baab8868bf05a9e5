//! Steps of an engine in which all tokens are the same, as rows that a test can write down.

use vcr_core::plan::{RemoteLoad, ScheduledKind};
use vcr_core::{Engine, KvRole, Prompt, RequestSpec, TokenSource};

pub(crate) struct Ones;

impl TokenSource for Ones {
    fn token(&mut self, _tag: u64, _output_index: u32) -> u32 {
        1
    }
}

/// Tag, kind, depth and tokens of each scheduled request.
pub(crate) fn step(engine: &mut Engine) -> Vec<(u64, ScheduledKind, u32, u32)> {
    let rows = engine.schedule().scheduled.iter();
    let rows = rows.map(|entry| (entry.tag, entry.kind, entry.num_computed_tokens, entry.num_scheduled_tokens));
    let rows = rows.collect();
    if engine.step_in_flight() {
        engine.update(&mut Ones);
    }
    rows
}

pub(crate) fn request(tag: u64, content: u64, prompt_tokens: u32, max_tokens: u32) -> RequestSpec {
    let mut prompt = Prompt::new(16, 0);
    prompt.push_run(content, 0, prompt_tokens);
    RequestSpec::new(tag, prompt, max_tokens)
}

/// Submits a request whose prompt another engine computes, and runs the step that
/// starts its transfer.
pub(crate) fn start_load(engine: &mut Engine, spec: RequestSpec) -> RemoteLoad {
    let id = engine.submit(RequestSpec { kv_role: KvRole::Destination, ..spec }).expect("it fits");
    let load = engine.schedule().remote_loads.iter().find(|load| load.request == id).copied();
    if engine.step_in_flight() {
        engine.update(&mut Ones);
    }
    load.expect("its load starts")
}
