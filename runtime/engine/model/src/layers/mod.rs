//! Layers: the token mixer and the feed-forward network.

pub(crate) mod architecture;
mod grouped;
mod hybrid;
mod latent;

/// The tokens that an attention layer attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// All tokens of the context.
    Full,
    /// The latest tokens, up to this number.
    Window(u64),
    /// The tokens of the current chunk of this length.
    Chunk(u64),
}

/// Attention with keys and values per head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Number of query heads.
    pub heads: u64,
    /// Number of key and value heads.
    pub kv_heads: u64,
    /// Width of a head's keys.
    pub head_dim: u64,
    /// Width of a head's values.
    pub value_head_dim: u64,
    /// The tokens that the layer attends to.
    pub reach: Reach,
    /// Whether a gate as wide as the queries is projected together with them.
    pub has_gate: bool,
    /// Whether the key projection also gives the values.
    pub values_are_keys: bool,
}

/// Attention with one latent vector for keys and values (MLA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    pub(crate) heads: u64,
    pub(crate) query_rank: Option<u64>,
    pub(crate) kv_rank: u64,
    pub(crate) rope_head_dim: u64,
    pub(crate) nope_head_dim: u64,
    pub(crate) value_head_dim: u64,
    /// Number of heads and head width of the indexer of sparse attention.
    pub(crate) indexer: Option<(u64, u64)>,
    /// Whether an indexer selects the tokens, in this layer or in an earlier one.
    pub(crate) is_sparse: bool,
}

/// A layer that keeps a state per sequence instead of KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Mamba 2.
    Mamba {
        heads: u64,
        /// Width of a head.
        head_dim: u64,
        /// Number of groups of heads that share input and output projections.
        groups: u64,
        /// Size of the state per channel.
        state: u64,
        /// Number of tokens that the convolution covers.
        kernel: u64,
        /// Bytes per value of the state.
        state_bytes: u64,
    },
    /// Gated delta rule.
    Delta {
        key_heads: u64,
        value_heads: u64,
        /// Width of a key.
        key_dim: u64,
        /// Width of a value.
        value_dim: u64,
        /// Number of tokens that the convolution covers.
        kernel: u64,
        /// Bytes per value of the state.
        state_bytes: u64,
    },
}

/// Token mixer of a layer: attention or a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Attention with keys and values per head.
    Attention(Attention),
    /// Attention with a latent vector.
    Latent(Latent),
    State(State),
    /// Neither attention nor a state.
    None,
}

/// The experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Number of experts.
    pub count: u64,
    /// Number of experts that each token uses.
    pub per_token: u64,
    /// Width of each expert.
    pub intermediate_size: u64,
    /// Width of the expert that all tokens use; 0 if there is none.
    pub shared_intermediate_size: u64,
    /// Width of the experts' inputs, if it differs from the hidden size.
    pub latent_size: Option<u64>,
    /// Width of an additional dense network; 0 if there is none.
    pub dense_intermediate_size: u64,
}

/// Feed-forward part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// No feed-forward network.
    None,
    /// A network of this width, for all tokens.
    Dense(u64),
    Experts(Experts),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The token mixer.
    pub mixer: Mixer,
    /// The feed-forward network.
    pub feed_forward: FeedForward,
}
