//! Interfaces of the replaceable parts that decide or measure for an engine.

pub mod factory;
pub mod fault;
pub mod latency;
pub mod policy;
pub mod request_times;
pub mod route;
pub mod scale;
pub mod tokens;

use latency::EngineInfo;

/// The run, pool and engine of a plugin. Factories receive it. Only the seed may change the plugin's
/// decisions.
#[derive(Clone, Copy, Debug)]
pub struct PluginContext<'a> {
    /// Name of the run. Empty for an engine process without a run.
    pub run: &'a str,
    /// Name of the pool. Empty for an engine process without a run.
    pub pool: &'a str,
    /// Index of the engine in its pool, or its number. None for a plugin of a whole pool.
    pub engine: Option<u32>,
    /// The engine's properties, for a latency model.
    pub engine_info: Option<&'a EngineInfo>,
    /// Seed for the plugin's random numbers. It differs for every run, pool, engine and restart.
    pub seed: u64,
}

impl PluginContext<'_> {
    /// A context without a particular engine, to try out a factory.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        Self { run: "", pool: "", engine: None, engine_info: None, seed }
    }
}

/// Chooses output tokens, in place of a model.
pub trait TokenSource {
    /// The token at `output_index` (from 0) of the request tagged `tag`.
    fn token(&mut self, tag: u64, output_index: u32) -> u32;

    /// Number of tokens, at most `max_extra`, that this step emits in addition to the token just sampled. Only called
    /// if `max_extra_tokens_per_step` is set.
    fn extra_tokens(&mut self, tag: u64, max_extra: u32) -> u32 {
        let _ = (tag, max_extra);
        0
    }

    /// Number of accepted drafts, counted from the first, among the `num_drafts` (at least 1) drafts verified in this
    /// step.
    fn accepted_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        let _ = (tag, num_drafts);
        0
    }

    /// Number of drafts that fit the request's grammar, counted from the first, among its `num_drafts` (at least 1)
    /// drafts. The drafts have just been proposed or, under async scheduling, are about to be verified.
    fn valid_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        let _ = tag;
        num_drafts
    }

    /// Number of drafts, at most `most`, proposed for the next step. Not called under async
    /// scheduling, where the number is always `most`.
    fn proposed_drafts(&mut self, tag: u64, most: u32) -> u32 {
        let _ = tag;
        most
    }
}
