#[cfg(any(target_arch = "wasm32", test))]
pub(crate) mod words;

use alloc::string::String;
use alloc::vec::Vec;

use serde::de::DeserializeOwned;

/// Decides what goes wrong in one engine.
///
/// One value serves one engine and may keep state from call to call. It must
/// answer the same calls alike whenever it is configured alike.
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
    /// The injector's config, read from the user's JSON. Give it
    /// `#[serde(deny_unknown_fields)]`, so that a misspelt key is an error that
    /// names the key, and `#[serde(default)]` where fields may be left out.
    type Config: DeserializeOwned;

    /// Makes the injector of one engine.
    ///
    /// # Errors
    /// When the config makes no sense; the text is shown to the user and should
    /// name the field, its value and what to write instead.
    fn configure(config: Self::Config, seed: u64) -> Result<Self, String>;

    /// Appends to `actions` what goes wrong now, in the order in which it does.
    ///
    /// # Errors
    /// Ends the run; the text is shown to the user.
    fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), String>;
}

/// The arguments of an injector in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultBatch<'a> {
    /// The time; never less than in the call before.
    pub now_ns: u64,
    /// Steps that the engine has finished.
    pub step: u64,
    /// Events since the last call, oldest first; may be empty.
    pub events: &'a [FaultEvent<'a>],
}

/// An event in an engine since the last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEvent<'a> {
    /// A request came in.
    Arrived {
        /// Names the request from now on: a dense number that another request
        /// gets after this one has ended.
        slot: u32,
        /// Its name at the frontend.
        request_id: &'a str,
        /// Tokens of its prompt.
        prompt_tokens: u32,
        /// Output tokens it may have.
        max_tokens: u32,
        /// Its priority; lower is sooner.
        priority: i32,
        /// The adapter it runs with, where it has one.
        lora: Option<u32>,
    },
    /// A request got output tokens.
    Emitted {
        /// The request.
        slot: u32,
        /// All of its output tokens so far.
        output_tokens: u32,
    },
    /// A request is over, for whatever reason.
    Ended {
        /// The request; its slot is free again.
        slot: u32,
    },
    /// A utility call is about to be answered. At most one in a batch.
    Utility {
        /// Its name.
        method: &'a str,
    },
}

/// Something that goes wrong. Times are at most 1e18 ns, about 32 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The request ends with an error.
    FailRequest {
        /// One that has arrived, not ended and not been failed before.
        slot: u32,
    },
    /// The engine does nothing for a time.
    Stall {
        /// Its duration.
        duration_ns: u64,
    },
    /// The engine dies.
    Crash {
        /// Time until it comes back, if it does.
        restart_after_ns: Option<u64>,
    },
    /// The output message that is sent next is lost.
    DropMessage,
    /// The output message that is sent next is sent twice.
    DuplicateMessage,
    /// The output message that is sent next cannot be read.
    CorruptMessage,
    /// The output message that is sent next is late.
    DelayMessage {
        /// By how much.
        by_ns: u64,
    },
    /// The next batch of KV events is lost.
    LoseKvEvents,
    /// The utility call announced in this batch fails.
    FailUtility,
}
