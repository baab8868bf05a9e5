//! Interfaces of everything that decides or measures for an engine and can be replaced.

pub mod factory;
pub mod fault;
pub mod latency;
pub mod policy;
pub mod request_times;
pub mod route;
pub mod scale;
pub mod tokens;

use latency::EngineInfo;

/// The place of a latency model, a token source or another plugin of one engine or pool. Factories receive
/// it; only the seed may change the plugin's decisions.
#[derive(Clone, Copy, Debug)]
pub struct PluginContext<'a> {
    /// Name of the run; empty for an engine process without a run.
    pub run: &'a str,
    /// Name of the pool, likewise.
    pub pool: &'a str,
    /// Index of the engine in its pool, or its number; none for a plugin of a whole pool.
    pub engine: Option<u32>,
    /// The engine, for a latency model.
    pub engine_info: Option<&'a EngineInfo>,
    /// Source of its randomness, its own in every run, pool, engine and restart.
    pub seed: u64,
}

impl PluginContext<'_> {
    /// A plugin context of no engine in particular, to try a maker.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        Self { run: "", pool: "", engine: None, engine_info: None, seed }
    }
}

/// Chooses output tokens; the stand-in for the model.
pub trait TokenSource {
    /// The token at `output_index` (from 0) of the request tagged `tag`.
    fn token(&mut self, tag: u64, output_index: u32) -> u32;

    /// Number of further tokens, at most `max_extra`, in addition to this one in this step. Only called if
    /// `max_extra_tokens_per_step` is set.
    fn extra_tokens(&mut self, tag: u64, max_extra: u32) -> u32 {
        let _ = (tag, max_extra);
        0
    }

    /// How many of the `num_drafts` (at least 1) drafts verified in this step are accepted, counted from the first.
    fn accepted_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        let _ = (tag, num_drafts);
        0
    }

    /// How many of the `num_drafts` (at least 1) drafts of a request with structured outputs fit its grammar,
    /// counted from the first. They are the drafts just proposed, or, under async scheduling, the drafts
    /// about to be verified.
    fn valid_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        let _ = tag;
        num_drafts
    }

    /// Number of drafts, at most `most`, that are proposed for the next step. Not called under async
    /// scheduling, where the number is always `most`.
    fn proposed_drafts(&mut self, tag: u64, most: u32) -> u32 {
        let _ = tag;
        most
    }
}
