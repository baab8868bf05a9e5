//! Steps of an engine whose tokens are all alike, as rows that a test can state.

use vcr_core::plan::ScheduledKind;
use vcr_core::{Engine, TokenSource};

pub(crate) struct Ones;

impl TokenSource for Ones {
    fn token(&mut self, _tag: u64, _output_index: u32) -> u32 {
        1
    }
}

/// Tag, kind, depth and tokens of what is scheduled.
pub(crate) fn step(engine: &mut Engine) -> Vec<(u64, ScheduledKind, u32, u32)> {
    let rows = engine.schedule().scheduled.iter();
    let rows = rows.map(|entry| (entry.tag, entry.kind, entry.num_computed_tokens, entry.num_scheduled_tokens));
    let rows = rows.collect();
    if engine.step_in_flight() {
        engine.update(&mut Ones);
    }
    rows
}
