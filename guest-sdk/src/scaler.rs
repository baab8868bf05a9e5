use alloc::string::String;

use serde::de::DeserializeOwned;
use vcr_policy::scaling::PoolView;

/// Decides how many engines one pool has.
///
/// One value serves one pool and may keep state between calls. Equally configured values must give
/// equal answers to equal calls.
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
    /// The autoscaler's config, read from the user's JSON. Use `#[serde(deny_unknown_fields)]`, so that an error
    /// names a misspelt key, and `#[serde(default)]` for optional fields.
    type Config: DeserializeOwned;

    /// Makes the autoscaler of one pool.
    ///
    /// # Errors
    /// When the config is invalid. The user sees the text: name the field, its value and what is allowed.
    fn configure(config: Self::Config, seed: u64) -> Result<Self, String>;

    /// Returns the desired number of running and starting engines, at most a million. The host applies the pool's
    /// limits to it.
    ///
    /// # Errors
    /// Ends the run. The user sees the text.
    fn desired(&mut self, pool: &PoolView) -> Result<u32, String>;
}
