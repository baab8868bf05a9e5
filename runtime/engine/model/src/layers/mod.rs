//! Layers: the token mixer, the network after it, and their numbers of weights.

pub(crate) mod architecture;
mod grouped;
mod hybrid;
mod latent;

/// Tokens that an attention layer attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// The whole context.
    Full,
    /// The latest ones.
    Window(u64),
    /// The tokens of its chunk.
    Chunk(u64),
}

/// Attention with keys and values of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Query heads.
    pub heads: u64,
    /// Heads of keys and values.
    pub kv_heads: u64,
    /// Numbers of a head's key.
    pub head_dim: u64,
    /// Numbers of a head's value.
    pub value_head_dim: u64,
    /// Tokens that it attends to.
    pub reach: Reach,
    /// Whether a gate as wide as the queries is projected with them.
    pub has_gate: bool,
    /// Whether values are projected as keys are.
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
    /// Heads and numbers of the indexer of sparse attention.
    pub(crate) indexer: Option<(u64, u64)>,
    /// Whether an indexer, possibly of another layer, selects the tokens.
    pub(crate) is_sparse: bool,
}

/// A state for each sequence instead of KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Mamba 2.
    Mamba {
        heads: u64,
        /// Numbers of a head.
        head_dim: u64,
        /// Groups of heads with the same projections of inputs and outputs.
        groups: u64,
        /// Numbers of a state.
        state: u64,
        /// Tokens of the convolution.
        kernel: u64,
        /// Bytes of a number of the state.
        state_bytes: u64,
    },
    /// Gated delta rule.
    Delta {
        key_heads: u64,
        value_heads: u64,
        /// Numbers of a key.
        key_dim: u64,
        /// Numbers of a value.
        value_dim: u64,
        /// Tokens of the convolution.
        kernel: u64,
        /// Bytes of a number of the state.
        state_bytes: u64,
    },
}

/// Token mixer of a layer: attention, or a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Attention with keys and values.
    Attention(Attention),
    /// Attention with a latent vector.
    Latent(Latent),
    State(State),
    /// Neither attention nor a state.
    None,
}

/// Experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Their number.
    pub count: u64,
    /// Experts of a token.
    pub per_token: u64,
    /// Their width.
    pub intermediate_size: u64,
    /// Width of the expert of all tokens; 0 without one.
    pub shared_intermediate_size: u64,
    /// Width of their inputs, if it differs from the model's.
    pub latent_size: Option<u64>,
    /// Width of an additional dense part; 0 without one.
    pub dense_intermediate_size: u64,
}

/// Feed-forward part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// No network.
    None,
    /// One network for all tokens, of this width.
    Dense(u64),
    Experts(Experts),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Token mixer.
    pub mixer: Mixer,
    /// Feed-forward part.
    pub feed_forward: FeedForward,
}
