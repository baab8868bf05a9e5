use alloc::string::String;

use serde::de::DeserializeOwned;

/// Decides how many engines one pool has.
///
/// One value serves one pool and may keep state from call to call. It must
/// answer the same calls alike whenever it is configured alike.
///
/// ```
/// use vcr_guest_sdk::{PoolView, ScalerGuest, export_autoscaler, serde};
///
/// #[derive(serde::Deserialize)]
/// #[serde(crate = "vcr_guest_sdk::serde", deny_unknown_fields)]
/// struct Config {
///     requests_per_engine: u64,
/// }
///
/// /// As many engines as the requests need, and never fewer than are up.
/// struct OnlyUp(u64);
///
/// impl ScalerGuest for OnlyUp {
///     type Config = Config;
///
///     fn configure(config: Config, _seed: u64) -> Result<Self, String> {
///         if config.requests_per_engine == 0 {
///             return Err("`requests_per_engine` is 0, but must be at least 1".into());
///         }
///         Ok(Self(config.requests_per_engine))
///     }
///
///     fn desired(&mut self, pool: &PoolView) -> Result<u32, String> {
///         let requests = pool.running_requests + pool.waiting_requests;
///         let enough = u32::try_from(requests.div_ceil(self.0)).map_err(|_| "too many requests")?;
///         Ok(enough.max(pool.up_engines + pool.starting_engines))
///     }
/// }
///
/// export_autoscaler!(OnlyUp);
/// ```
pub trait ScalerGuest: Sized + 'static {
    /// The autoscaler's config, read from the user's JSON. Give it
    /// `#[serde(deny_unknown_fields)]`, so that a misspelt key is an error that
    /// names the key, and `#[serde(default)]` where fields may be left out.
    type Config: DeserializeOwned;

    /// Makes the autoscaler of one pool.
    ///
    /// # Errors
    /// When the config makes no sense; the text is shown to the user and should
    /// name the field, its value and what to write instead.
    fn configure(config: Self::Config, seed: u64) -> Result<Self, String>;

    /// Number of engines that are to be up or on their way, at most a million. The
    /// host applies the pool's limits to the answer.
    ///
    /// # Errors
    /// Ends the run; the text is shown to the user.
    fn desired(&mut self, pool: &PoolView) -> Result<u32, String>;
}

/// State of a pool when a decision is due.
///
/// Counters since the last decision cover the whole cluster; engines and their load are those of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolView {
    /// The time, in nanoseconds; more than in the call before.
    pub now_ns: u64,
    /// Engines that take requests.
    pub up_engines: u32,
    /// Engines on their way up, those that restart after a crash among them.
    pub starting_engines: u32,
    /// Engines that finish what they have and take no more.
    pub draining_engines: u32,
    /// Requests that arrived since the last decision.
    pub arrived_requests: u64,
    /// Prompt tokens of those.
    pub arrived_prompt_tokens: u64,
    /// Output tokens that those ask for.
    pub arrived_output_tokens: u64,
    /// Requests that ended with their whole output since the last decision.
    pub completed_requests: u64,
    /// Requests that had their first token since the last decision.
    pub ttft_count: u64,
    /// Sum of their times from arrival to that token, in nanoseconds.
    pub ttft_sum_ns: u64,
    /// Gaps between consecutive output tokens that ended since the last decision.
    pub token_gap_count: u64,
    /// Their sum, in nanoseconds.
    pub token_gap_sum_ns: u64,
    /// Requests that run in the pool's engines, draining ones included.
    pub running_requests: u64,
    /// Requests that wait in those engines, or in front of them.
    pub waiting_requests: u64,
    /// KV blocks in use in those engines.
    pub active_blocks: u64,
    /// KV blocks that they have.
    pub total_blocks: u64,
    /// Prompt tokens yet to be computed, in those engines and in front of them.
    pub outstanding_prefill_tokens: u64,
}
