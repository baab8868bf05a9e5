use alloc::string::String;
use alloc::vec::Vec;

use serde::de::DeserializeOwned;
use vcr_policy::faults::{FaultAction, FaultBatch};

/// Injects faults into one engine.
pub trait FaultGuest: Sized + 'static {
    /// The injector's config, read from the user's JSON. Use `#[serde(deny_unknown_fields)]`, so that an error names
    /// a misspelt key, and `#[serde(default)]` for optional fields.
    type Config: DeserializeOwned;

    /// Makes the injector of one engine.
    ///
    /// # Errors
    /// When the config is invalid. The user sees the text: name the field, its value and what is allowed.
    fn configure(config: Self::Config, seed: u64) -> Result<Self, String>;

    /// Appends the faults to inject at this moment to `actions`, in order.
    ///
    /// # Errors
    /// Ends the run. The user sees the text.
    fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), String>;
}
