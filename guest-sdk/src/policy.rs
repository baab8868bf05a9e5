use alloc::string::String;
use alloc::vec::Vec;

use serde::de::DeserializeOwned;
use vcr_policy::scheduling::{EngineView, Preference};

/// Decides the order in which one engine admits and preempts requests, and the sizes of their
/// chunks.
///
/// One value serves one engine and may keep state between calls. Equally configured values must
/// give equal answers to equal calls.
///
/// ```
/// use vcr_guest_sdk::{EngineView, PolicyEvent, PolicyGuest, Preference, Slo, export_scheduler_policy, serde};
///
/// #[derive(serde::Deserialize)]
/// #[serde(crate = "vcr_guest_sdk::serde", deny_unknown_fields)]
/// struct Config {}
///
/// /// Admits the request with the fewest prompt tokens first.
/// struct Shortest;
///
/// impl PolicyGuest for Shortest {
///     type Config = Config;
///
///     fn configure(_config: Config, _seed: u64) -> Result<Self, String> {
///         Ok(Self)
///     }
///
///     fn decide(&mut self, engine: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), String> {
///         for event in engine.events {
///             match *event {
///                 PolicyEvent::Arrived { slot, prompt_tokens, .. } => {
///                     preferences.push(Preference::AdmissionRank { slot, rank: prompt_tokens.into() });
///                 }
///                 // A request that arrived and ended since the last call may have no preference.
///                 PolicyEvent::Ended { slot, .. } => preferences.retain(|preference| preference.slot() != slot),
///                 PolicyEvent::Admitted { .. } | PolicyEvent::Preempted { .. } => {}
///             }
///         }
///         Ok(())
///     }
/// }
///
/// export_scheduler_policy!(Shortest);
///
/// let arrived = PolicyEvent::Arrived {
///     slot: 4,
///     arrival_ns: 0,
///     prompt_tokens: 900,
///     max_tokens: 10,
///     priority: 0,
///     adapter: None,
///     tenant: 0,
///     slo: Slo::default(),
/// };
/// let mut preferences = Vec::new();
/// Shortest.decide(&EngineView { events: &[arrived], ..EngineView::default() }, &mut preferences)?;
/// assert_eq!(preferences, [Preference::AdmissionRank { slot: 4, rank: 900 }]);
/// # Ok::<(), String>(())
/// ```
pub trait PolicyGuest: Sized + 'static {
    /// The policy's config, read from the user's JSON. Use `#[serde(deny_unknown_fields)]`, so that an error names a
    /// misspelt key, and `#[serde(default)]` for optional fields.
    type Config: DeserializeOwned;

    /// Makes the policy of one engine.
    ///
    /// # Errors
    /// When the config is invalid. The user sees the text: name the field, its value and what is allowed.
    fn configure(config: Self::Config, seed: u64) -> Result<Self, String>;

    /// Appends the preferences that change: at most one of each kind for each request. Only requests that have
    /// arrived and not ended may have preferences.
    ///
    /// # Errors
    /// Ends the run. The user sees the text.
    fn decide(&mut self, engine: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), String>;
}

/// A policy and its buffer of preferences; the buffer is reused, so that most calls allocate only their answer.
#[cfg(any(target_arch = "wasm32", test))]
pub struct Policy<G> {
    guest: G,
    preferences: Vec<Preference>,
}

#[cfg(any(target_arch = "wasm32", test))]
impl<G: PolicyGuest> Policy<G> {
    /// Makes the policy; it has no preferences yet.
    #[must_use]
    pub fn new(guest: G) -> Self {
        Self { guest, preferences: Vec::new() }
    }

    /// Asks the guest for the preferences that change.
    ///
    /// # Errors
    /// The guest's error.
    pub fn decide(&mut self, engine: &EngineView<'_>) -> Result<&[Preference], String> {
        self.preferences.clear();
        self.guest.decide(engine, &mut self.preferences)?;
        Ok(&self.preferences)
    }
}
