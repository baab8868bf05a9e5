//! The arrangement of pools.

use super::ConditionalConfig;
use super::pool::PoolConfig;
use super::router::RouterConfig;
use vcr_core::host::Overheads;

/// Tokens whose KV a transfer moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferScope {
    /// The tokens that the destination has not cached, as in vLLM's NIXL connector.
    #[default]
    Missing,
    /// The whole prompt.
    FullPrompt,
}

/// Transfers that contend with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkSharing {
    /// All transfers: one fabric between the pools.
    #[default]
    Shared,
    /// One link for each prefill engine.
    PerPrefillEngine,
    /// No transfers: each has the full bandwidth, as in Dynamo's model.
    Unshared,
}

/// The part of the output that a prefill engine generates before the KV transfer. Clients do not receive
/// these tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceOutput {
    /// The first token, with the prompt.
    #[default]
    FirstToken,
    /// The complete output, as in Dynamo 1.4: the prompt stays for the corresponding steps.
    Whole,
}

/// The duration of a transfer with real bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvPlaneTime {
    /// The real transfer time of the bytes.
    Real,
    /// The modelled time of the link. Real bytes move in addition.
    Modelled,
    /// The longer one of both.
    #[default]
    SlowerOf,
}

/// Bytes that live engines of a run really move, over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlane {
    /// The time that a transfer takes.
    pub time: KvPlaneTime,
    /// Layers of the model: a block has a page for K and one for V of each.
    pub layers: u32,
}

/// What happens to a prompt whose client cancels it before a decode engine has its KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillCancellation {
    /// All its resources are freed immediately, at any time.
    #[default]
    Anytime,
    /// Its computation is cancelled. Once it is computed, its KV stays.
    Handoff {
        /// Time after the computation, in nanoseconds.
        hold_ns: u64,
    },
    /// It is computed nevertheless, and its KV stays.
    Never {
        /// Time after the computation, in nanoseconds.
        hold_ns: u64,
    },
}

impl PrefillCancellation {
    /// vLLM's `VLLM_NIXL_ABORT_REQUEST_TIMEOUT`.
    pub const ABORT_TIMEOUT_NS: u64 = 480_000_000_000;

    /// Time for which KV is held that no decode engine fetches, if it is held.
    #[must_use]
    pub const fn hold_ns(self) -> Option<u64> {
        match self {
            Self::Anytime => None,
            Self::Handoff { hold_ns } | Self::Never { hold_ns } => Some(hold_ns),
        }
    }
}

/// The link for KV from prefill to decode engines.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bandwidth that concurrent transfers share; none for instant transfers.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Added to every transfer.
    pub latency_ns: u64,
    /// KV bytes of one token over all layers.
    pub kv_bytes_per_token: u64,
    /// Tokens whose KV is moved.
    pub scope: TransferScope,
    /// Transfers that contend.
    pub sharing: LinkSharing,
    /// The output that prefill engines generate first.
    pub source_output: SourceOutput,
    /// How prompts of clients that cancel are treated.
    pub cancellation: PrefillCancellation,
    /// Data plane between live engines, if there is one; virtual time has only the times above.
    pub plane: Option<KvPlane>,
}

impl LinkConfig {
    /// Duration of a transfer that has the whole bandwidth to itself, in
    /// nanoseconds, rounded to the nearest.
    pub(crate) fn alone_ns(&self, bytes: u64) -> u64 {
        let Some(bytes_per_s) = self.bandwidth_bytes_per_s else { return 0 };
        let bytes_per_s = u128::from(bytes_per_s.max(1));
        let ns = (u128::from(bytes) * 1_000_000_000 + bytes_per_s / 2) / bytes_per_s;
        u64::try_from(ns).unwrap_or(u64::MAX / 2)
    }
}

/// The arrangement of engines.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "a run has one of them")]
pub enum Topology {
    /// Every engine prefills and decodes.
    Aggregated(PoolConfig),
    /// One pool computes prompts, another generates outputs.
    Disaggregated {
        /// Computes prompts.
        prefill: PoolConfig,
        /// Generates outputs.
        decode: PoolConfig,
        /// Moves KV from the first to the second.
        link: LinkConfig,
        /// Requests that bypass the first pool, if any.
        conditional: Option<ConditionalConfig>,
    },
}

/// The part of a request that the engines of a pool compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolRole {
    /// It computes the prompt and generates the output.
    Aggregated,
    /// They compute its prompt.
    Prefill,
    /// It generates the output, from KV that another pool has computed.
    Decode,
}

impl PoolRole {
    /// Its name in scenarios and in Dynamo's engine arguments.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aggregated => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// Whether KV routers look up its engines' caches. Decode engines get the KV of prompts from
    /// elsewhere.
    pub(crate) const fn is_routed_by_cache(self) -> bool {
        !matches!(self, Self::Decode)
    }

    /// Whether its engines record KV events for this router.
    pub(crate) fn needs_kv_events(self, router: &RouterConfig) -> bool {
        self.is_routed_by_cache() && router.needs_kv_events()
    }

    /// The index of the pool in [`Topology::pools`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Aggregated | Self::Prefill => 0,
            Self::Decode => 1,
        }
    }
}

impl Topology {
    /// The roles of the pools, in the order of [`Topology::pools`].
    #[must_use]
    pub const fn roles(&self) -> &'static [PoolRole] {
        match self {
            Self::Aggregated(_) => &[PoolRole::Aggregated],
            Self::Disaggregated { .. } => &[PoolRole::Prefill, PoolRole::Decode],
        }
    }

    /// The pool of a role, if there is one.
    #[must_use]
    pub fn pool(&self, role: PoolRole) -> Option<&PoolConfig> {
        match (self, role) {
            (Self::Aggregated(pool), PoolRole::Aggregated) => Some(pool),
            (Self::Disaggregated { prefill, .. }, PoolRole::Prefill) => Some(prefill),
            (Self::Disaggregated { decode, .. }, PoolRole::Decode) => Some(decode),
            _ => None,
        }
    }

    /// The link between the pools, if there are two.
    #[must_use]
    pub const fn link(&self) -> Option<&LinkConfig> {
        match self {
            Self::Aggregated(_) => None,
            Self::Disaggregated { link, .. } => Some(link),
        }
    }

    /// Requests that need no prefill engine, if any.
    #[must_use]
    pub fn conditional(&self) -> Option<&ConditionalConfig> {
        match self {
            Self::Aggregated(_) => None,
            Self::Disaggregated { conditional, .. } => conditional.as_ref(),
        }
    }

    /// Time of requests outside of engine steps: before the first pool, and after the last one.
    #[must_use]
    pub fn overheads(&self) -> Overheads {
        match self {
            Self::Aggregated(pool) => pool.overheads,
            Self::Disaggregated { prefill, decode, .. } => Overheads {
                arrival_ns: prefill.overheads.arrival_ns,
                arrival_per_prompt_token_ps: prefill.overheads.arrival_per_prompt_token_ps,
                ..decode.overheads
            },
        }
    }

    /// The pools, prefill before decode.
    #[must_use]
    pub fn pools(&self) -> Vec<&PoolConfig> {
        match self {
            Self::Aggregated(pool) => vec![pool],
            Self::Disaggregated { prefill, decode, .. } => vec![prefill, decode],
        }
    }

    /// The pools, mutable.
    pub fn pools_mut(&mut self) -> Vec<&mut PoolConfig> {
        match self {
            Self::Aggregated(pool) => vec![pool],
            Self::Disaggregated { prefill, decode, .. } => vec![prefill, decode],
        }
    }
}
