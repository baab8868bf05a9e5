//! The arrangement of pools.

use super::ConditionalConfig;
use super::pool::PoolConfig;
use super::router::RouterConfig;
use vcr_core::host::Overheads;

/// Selects the tokens whose KV a transfer moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferScope {
    /// The tokens that the destination has not cached, as in vLLM's NIXL connector.
    #[default]
    Missing,
    /// The whole prompt.
    FullPrompt,
}

/// Selects the transfers that contend for bandwidth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkSharing {
    /// All transfers contend: one fabric connects the pools.
    #[default]
    Shared,
    /// Transfers from the same prefill engine contend.
    PerPrefillEngine,
    /// No transfers contend: each has the full bandwidth, as in Dynamo's model.
    Unshared,
}

/// The part of the output that a prefill engine generates before the KV transfer. Clients do not receive
/// these tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceOutput {
    /// The first token, in the step that completes the prompt.
    #[default]
    FirstToken,
    /// The complete output, as in Dynamo 1.4: the request stays on the prefill engine for all its decode steps.
    Whole,
}

/// The duration of a transfer with real bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvPlaneTime {
    /// The measured time of moving the bytes.
    Real,
    /// The modelled time of the link. The bytes move as well, but do not affect times.
    Modelled,
    /// The longer of the two times.
    #[default]
    SlowerOf,
}

/// Real KV bytes that live engines transfer over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlane {
    /// The time that a transfer takes.
    pub time: KvPlaneTime,
    /// Number of layers of the model. A block has a K page and a V page per layer.
    pub layers: u32,
}

/// Handling of a prompt whose client cancels before a decode engine has its KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillCancellation {
    /// All resources of the request are freed immediately.
    #[default]
    Anytime,
    /// An unfinished computation is cancelled. If the prompt is already computed, its KV is held.
    Handoff {
        /// Time for which the KV is held after the computation, in nanoseconds.
        hold_ns: u64,
    },
    /// The prompt is computed nevertheless, and its KV is held.
    Never {
        /// Time for which the KV is held after the computation, in nanoseconds.
        hold_ns: u64,
    },
}

impl PrefillCancellation {
    /// vLLM's `VLLM_NIXL_ABORT_REQUEST_TIMEOUT`.
    pub const ABORT_TIMEOUT_NS: u64 = 480_000_000_000;

    /// Time for which KV is held if no decode engine fetches it; None if it is freed immediately.
    #[must_use]
    pub const fn hold_ns(self) -> Option<u64> {
        match self {
            Self::Anytime => None,
            Self::Handoff { hold_ns } | Self::Never { hold_ns } => Some(hold_ns),
        }
    }
}

/// The link that moves KV from prefill to decode engines.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bandwidth that concurrent transfers share; None for instant transfers.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Latency that is added to every transfer.
    pub latency_ns: u64,
    /// KV bytes of one token over all layers.
    pub kv_bytes_per_token: u64,
    /// The tokens whose KV is moved.
    pub scope: TransferScope,
    /// The transfers that contend for bandwidth.
    pub sharing: LinkSharing,
    /// The output that prefill engines generate before the transfer.
    pub source_output: SourceOutput,
    /// Handling of prompts whose clients cancel.
    pub cancellation: PrefillCancellation,
    /// Data plane between live engines, if any. In virtual time, only the modelled times apply.
    pub plane: Option<KvPlane>,
}

impl LinkConfig {
    /// Duration of a transfer that has the whole bandwidth to itself, in nanoseconds, rounded to the nearest.
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
        /// The pool that computes prompts.
        prefill: PoolConfig,
        /// The pool that generates outputs.
        decode: PoolConfig,
        /// The link that moves KV from the prefill to the decode pool.
        link: LinkConfig,
        /// Selects requests that bypass the prefill pool; None for no requests.
        conditional: Option<ConditionalConfig>,
    },
}

/// The part of a request that the engines of a pool compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolRole {
    /// Engines compute the prompt and generate the output.
    Aggregated,
    /// Engines compute the prompt.
    Prefill,
    /// Engines generate the output, from KV that the prefill pool has computed.
    Decode,
}

impl PoolRole {
    /// The role's name in scenarios and in Dynamo's engine arguments.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aggregated => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// Whether KV routers look up the engines' caches. Decode engines get the KV of prompts from the prefill pool.
    pub(crate) const fn is_routed_by_cache(self) -> bool {
        !matches!(self, Self::Decode)
    }

    /// Whether engines in this role record KV events for `router`.
    pub(crate) fn needs_kv_events(self, router: &RouterConfig) -> bool {
        self.is_routed_by_cache() && router.needs_kv_events()
    }

    /// The index of the role's pool in [`Topology::pools`].
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

    /// The settings of conditional disaggregation, if any.
    #[must_use]
    pub fn conditional(&self) -> Option<&ConditionalConfig> {
        match self {
            Self::Aggregated(_) => None,
            Self::Disaggregated { conditional, .. } => conditional.as_ref(),
        }
    }

    /// Time that requests spend outside of engine steps: before the first pool, and after the last one.
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
