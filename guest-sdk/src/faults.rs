use alloc::string::String;
use alloc::vec::Vec;

use serde::de::DeserializeOwned;
use vcr_policy::faults::{FaultAction, FaultBatch};

/// Injects faults into one engine.
///
/// One value serves one engine and may keep state between calls. Equally configured values must
/// give equal answers to equal calls.
///
/// ```
/// use vcr_guest_sdk::{FaultAction, FaultBatch, FaultEvent, FaultGuest, export_failure_injector, serde};
///
/// #[derive(serde::Deserialize)]
/// #[serde(crate = "vcr_guest_sdk::serde", deny_unknown_fields)]
/// struct Config {
///     tokens: u32,
/// }
///
/// /// Fails each request at its n-th token.
/// struct FailAt(u32);
///
/// impl FaultGuest for FailAt {
///     type Config = Config;
///
///     fn configure(config: Config, _seed: u64) -> Result<Self, String> {
///         Ok(Self(config.tokens))
///     }
///
///     fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), String> {
///         for event in batch.events {
///             if let FaultEvent::Emitted { slot, output_tokens } = *event
///                 && output_tokens == self.0
///             {
///                 actions.push(FaultAction::FailRequest { slot });
///             }
///         }
///         Ok(())
///     }
/// }
///
/// export_failure_injector!(FailAt);
///
/// let mut actions = Vec::new();
/// let events = [FaultEvent::Emitted { slot: 4, output_tokens: 3 }];
/// FailAt(3).decide(&FaultBatch { now_ns: 0, step: 3, events: &events }, &mut actions)?;
/// assert_eq!(actions, [FaultAction::FailRequest { slot: 4 }]);
/// # Ok::<(), String>(())
/// ```
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
