#[cfg(any(target_arch = "wasm32", test))]
pub(crate) mod words;

use alloc::string::String;
use alloc::vec::Vec;

use serde::de::DeserializeOwned;

/// Decides for one engine in which order requests are admitted and preempted, and in what
/// chunks.
///
/// One value serves one engine and may keep state from call to call. It must
/// answer the same calls alike whenever it is configured alike.
///
/// ```
/// use vcr_guest_sdk::{PolicyBatch, PolicyEvent, PolicyGuest, Preference, export_scheduler_policy, serde};
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
///     fn decide(&mut self, batch: &PolicyBatch<'_>, preferences: &mut Vec<Preference>) -> Result<(), String> {
///         for event in batch.events {
///             if let PolicyEvent::Arrived { slot, prompt_tokens, .. } = *event {
///                 preferences.push(Preference::AdmissionRank { slot, rank: prompt_tokens.into() });
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
///     lora: None,
///     tenant: 0,
/// };
/// let mut preferences = Vec::new();
/// Shortest.decide(&PolicyBatch { events: &[arrived], ..PolicyBatch::default() }, &mut preferences)?;
/// assert_eq!(preferences, [Preference::AdmissionRank { slot: 4, rank: 900 }]);
/// # Ok::<(), String>(())
/// ```
pub trait PolicyGuest: Sized + 'static {
    /// The policy's config, read from the user's JSON. Give it
    /// `#[serde(deny_unknown_fields)]`, so that a misspelt key is an error that
    /// names the key, and `#[serde(default)]` where fields may be left out.
    type Config: DeserializeOwned;

    /// Makes the policy of one engine.
    ///
    /// # Errors
    /// When the config makes no sense; the text is shown to the user and should
    /// name the field, its value and what to write instead.
    fn configure(config: Self::Config, seed: u64) -> Result<Self, String>;

    /// Appends the preferences that change, of each request and kind one at
    /// most, of requests that have arrived and not ended.
    ///
    /// # Errors
    /// Ends the run; the text is shown to the user.
    fn decide(&mut self, batch: &PolicyBatch<'_>, preferences: &mut Vec<Preference>) -> Result<(), String>;
}

/// The arguments of a policy in one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyBatch<'a> {
    /// The time; never less than in the call before.
    pub now_ns: u64,
    /// Token budget of the step.
    pub budget_tokens: u32,
    /// Number of further requests that may run.
    pub running_slots: u32,
    /// KV blocks that no request refers to.
    pub free_blocks: u32,
    /// KV blocks there are for requests.
    pub total_blocks: u32,
    /// Events since the last call, oldest first.
    pub events: &'a [PolicyEvent],
    /// The running requests whose computed or output tokens have changed since
    /// they were last reported, in the order in which they run.
    pub progress: &'a [Progress],
}

/// An event of a request in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyEvent {
    /// It came in and waits.
    Arrived {
        /// Names the request from now on: a dense number that another request
        /// gets after this one has ended.
        slot: u32,
        /// When it arrived, in nanoseconds.
        arrival_ns: u64,
        /// Tokens of its prompt.
        prompt_tokens: u32,
        /// Output tokens it may have.
        max_tokens: u32,
        /// Its priority; lower is sooner.
        priority: i32,
        /// The adapter it runs with, where it has one.
        lora: Option<u32>,
        /// Its tenant; 0 if unknown.
        tenant: u64,
    },
    /// It was admitted and runs.
    Admitted {
        /// The request.
        slot: u32,
        /// Tokens that it need not compute, because the prefix cache or a
        /// transfer brings them.
        cached_tokens: u32,
    },
    /// It was preempted and waits again; it lost all computed tokens.
    Preempted {
        /// The request.
        slot: u32,
    },
    /// It ended, for whatever reason.
    Ended {
        /// The request; its slot is free again, or soon will be.
        slot: u32,
        /// Its computed tokens at the end.
        computed_tokens: u32,
        /// Its output tokens.
        output_tokens: u32,
    },
}

/// Progress of a running request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The request.
    pub slot: u32,
    /// Its computed tokens: cached ones and those of steps in flight included.
    pub computed_tokens: u32,
    /// Its output tokens.
    pub output_tokens: u32,
}

/// Preference of a policy for one request, valid until it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Where it waits. The lowest rank is admitted first, and while that does
    /// not fit no later one is; of equal ones the one that arrived first.
    /// 0 until it is said.
    AdmissionRank {
        /// The request.
        slot: u32,
        /// The rank.
        rank: i64,
    },
    /// Its preemption rank. The greatest is preempted first, of equal ones
    /// the one that arrived last. 0 until it is said.
    EvictionRank {
        /// The request.
        slot: u32,
        /// The rank.
        rank: i64,
    },
    /// The most tokens that it computes in one step.
    ChunkCap {
        /// The request.
        slot: u32,
        /// At least 1; none for as many as there are, which holds until it is
        /// said.
        tokens: Option<u32>,
    },
}
