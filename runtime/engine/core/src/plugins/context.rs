//! The context of a plugin.

/// The place of a latency model, a token source or another plugin of one engine or pool.
/// Factories receive it; only the seed may change the plugin's decisions.
#[derive(Clone, Copy, Debug)]
pub struct PluginContext<'a> {
    /// Name of the run, empty where there is one engine process and no run.
    pub run: &'a str,
    /// Name of the pool, likewise.
    pub pool: &'a str,
    /// Index of the engine in its pool, or its number; none for a plugin of a whole pool.
    pub engine: Option<u32>,
    /// Source of its randomness, its own in every run, pool, engine and restart.
    pub seed: u64,
}

impl PluginContext<'_> {
    /// A plugin context of no engine in particular, to try a maker.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        Self { run: "", pool: "", engine: None, seed }
    }
}
