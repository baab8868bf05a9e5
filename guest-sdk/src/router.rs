#[cfg(any(target_arch = "wasm32", test))]
pub(crate) mod words;

use alloc::string::String;

use serde::de::DeserializeOwned;

/// Chooses the engine of each request of one pool.
///
/// One value serves one pool and may keep state from call to call. It must
/// answer the same calls alike whenever it is configured alike.
///
/// ```
/// use vcr_guest_sdk::{Choice, RouteRequest, RouterGuest, Workers, export_router, serde};
///
/// #[derive(serde::Deserialize)]
/// #[serde(crate = "vcr_guest_sdk::serde", deny_unknown_fields)]
/// struct Config {
///     max_waiting: u32,
/// }
///
/// /// The engine with the fewest waiting requests, unless those are too many.
/// struct Shortest(u32);
///
/// impl RouterGuest for Shortest {
///     type Config = Config;
///
///     fn configure(config: Config, _seed: u64) -> Result<Self, String> {
///         Ok(Self(config.max_waiting))
///     }
///
///     fn route(&mut self, request: &RouteRequest<'_>, workers: Workers<'_>) -> Result<Choice, String> {
///         let best = workers.iter().min_by_key(|load| load.waiting_requests).ok_or("there are no engines")?;
///         if request.may_shed && best.waiting_requests > self.0 {
///             return Ok(Choice::Shed);
///         }
///         Ok(Choice::Worker(best.worker))
///     }
/// }
///
/// export_router!(Shortest);
/// ```
pub trait RouterGuest: Sized + 'static {
    /// The router's config, read from the user's JSON. Give it
    /// `#[serde(deny_unknown_fields)]`, so that a misspelt key is an error that
    /// names the key, and `#[serde(default)]` where fields may be left out.
    type Config: DeserializeOwned;

    /// Makes the router of one pool.
    ///
    /// # Errors
    /// When the config makes no sense; the text is shown to the user and should
    /// name the field, its value and what to write instead.
    fn configure(config: Self::Config, seed: u64) -> Result<Self, String>;

    /// Chooses one of `workers`, or refuses the request where it may be.
    ///
    /// # Errors
    /// Ends the run; the text is shown to the user.
    fn route(&mut self, request: &RouteRequest<'_>, workers: Workers<'_>) -> Result<Choice, String>;

    /// A request that this router has routed is over. Called before the request
    /// that is routed next.
    fn ended(&mut self, _request: &EndedRequest) {}
}

/// The request to be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteRequest<'a> {
    /// The time; never less than in the call before.
    pub now_ns: u64,
    /// Its number. A request whose engine died may be routed again, under the
    /// same number.
    pub request: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Output tokens it may have.
    pub max_tokens: u32,
    /// Its priority; lower is sooner.
    pub priority: i32,
    /// The adapter it runs with, where it has one.
    pub lora: Option<u32>,
    /// Its tenant, 0 if unknown.
    pub tenant: u64,
    /// Its session: the turns of a conversation share the number.
    pub session: u64,
    /// Tokens in a KV block.
    pub block_size_tokens: u32,
    /// The engine's part in the request.
    pub phase: RoutePhase,
    /// Whether it may be refused: it has not been with an engine before.
    pub may_shed: bool,
    /// A number for each full KV block of the prompt, first to last. It stands
    /// for the tokens of the block and of all before it.
    pub blocks: &'a [u64],
}

/// An engine's part in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutePhase {
    /// All of it.
    Whole,
    /// It computes the prompt; another pool generates the output.
    Prefill,
    /// It gets the prompt's KV from another pool and generates the output.
    Decode,
}

/// An engine that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Its index in the pool.
    pub worker: u32,
    /// Requests that run.
    pub running_requests: u32,
    /// Requests that wait, for admission or for a transfer.
    pub waiting_requests: u32,
    /// Requests that may run at once.
    pub max_num_seqs: u32,
    /// KV blocks that a request refers to.
    pub active_blocks: u32,
    /// KV blocks in all.
    pub total_blocks: u32,
    /// Prompt tokens assigned to it and not computed.
    pub outstanding_prefill_tokens: u64,
    /// Blocks at the beginning of the prompt that its cache holds.
    pub overlap_blocks: u32,
}

/// The engines that are up, at least one, by index ascending. They are read from
/// the words of the call as they are gone through.
#[derive(Clone, Copy, Debug)]
pub struct Workers<'a>(&'a [[u64; WORKER_WORDS]]);

/// Words of an engine in the flat lists of the interface.
const WORKER_WORDS: usize = 8;

impl<'a> Workers<'a> {
    /// Reads engines from the words of the interface; none where these are not
    /// a whole number of engines.
    #[must_use]
    pub fn of_words(words: &'a [u64]) -> Option<Self> {
        let (workers, rest) = words.as_chunks();
        rest.is_empty().then_some(Self(workers))
    }

    /// Their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none, which the host never says.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The engine at a position.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<WorkerLoad> {
        self.0.get(position).map(load)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = WorkerLoad> + Clone + 'a {
        self.0.iter().map(load)
    }
}

/// The host sends counts below 2^32, so nothing is cut off.
#[inline]
fn load(words: &[u64; WORKER_WORDS]) -> WorkerLoad {
    WorkerLoad {
        worker: words[0] as u32,
        running_requests: words[1] as u32,
        waiting_requests: words[2] as u32,
        max_num_seqs: words[3] as u32,
        active_blocks: words[4] as u32,
        total_blocks: words[5] as u32,
        outstanding_prefill_tokens: words[6],
        overlap_blocks: words[7] as u32,
    }
}

/// Decision of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The engine with this index in the pool.
    Worker(u32),
    /// None: all have too much to do, and the request is refused.
    Shed,
}

/// A request that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRequest {
    /// Its number.
    pub request: u64,
    /// Index of the engine that it was last routed to.
    pub worker: u32,
    /// Output tokens that it got.
    pub output_tokens: u32,
    /// Whether it failed, and was not answered to its end.
    pub failed: bool,
}
