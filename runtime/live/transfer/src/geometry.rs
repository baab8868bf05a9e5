//! Sizes of an engine's KV, and the split of pages between engines with different ranks.

/// The order of the dimensions within a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadOrder {
    /// Heads, then tokens (vLLM's `HND`): the bytes of one head are contiguous.
    #[default]
    HeadsFirst,
    /// Tokens, then heads (vLLM's `NHD`): pages cannot be split by heads.
    TokensFirst,
}

/// What a region of memory contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Regions {
    /// K or V of one layer.
    #[default]
    Apart,
    /// K and V of one layer, alternating by head (vLLM's `LBHNC`).
    Together,
    /// A latent vector of one layer, from which K and V are derived (MLA).
    Latent,
}

/// Settings of a [`Geometry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeometryInput {
    /// Number of layers of the model.
    pub layers: u32,
    /// Number of KV heads of the model, over all ranks.
    pub kv_heads: u32,
    /// Bytes of one head's K, or V, in one block of one layer.
    pub slice_bytes: u32,
    /// Number of tensor-parallel ranks.
    pub ranks: u32,
    /// Number of blocks, including the null block.
    pub blocks: u32,
    pub block_tokens: u32,
    /// The order of dimensions within a page.
    pub order: HeadOrder,
    /// Whether K and V of a layer share a region.
    pub regions: Regions,
}

impl Regions {
    /// Number of regions per layer.
    const fn of_layer(self) -> u32 {
        match self {
            Self::Apart => 2,
            Self::Together | Self::Latent => 1,
        }
    }

    /// Number of slices per head in a region.
    const fn slices(self) -> u32 {
        match self {
            Self::Apart | Self::Latent => 1,
            Self::Together => 2,
        }
    }

    /// What each head has in a layer, for messages.
    const fn of_head(self) -> &'static str {
        match self {
            Self::Apart | Self::Together => "K and V",
            Self::Latent => "a latent vector",
        }
    }
}

impl GeometryInput {
    /// Sets the slice size so that blocks have `block_bytes` over all layers, K and V, heads and ranks.
    pub fn with_block_bytes(self, block_bytes: u64) -> Result<Self, GeometryError> {
        let GeometryInput { layers, kv_heads, regions, .. } = self;
        let slices = self.slices_per_block();
        if slices == 0 || block_bytes == 0 || !block_bytes.is_multiple_of(slices) {
            return Err(GeometryError::BlockBytes {
                block_bytes,
                layers,
                kv_heads,
                of_head: regions.of_head(),
                slices,
            });
        }
        let slice_bytes = u32::try_from(block_bytes / slices).map_err(|_| GeometryError::Page)?;
        Ok(Self { slice_bytes, ..self })
    }

    /// The slices of a block over all layers, K and V, and heads.
    fn slices_per_block(self) -> u64 {
        let of_head = u64::from(self.regions.of_layer() * self.regions.slices());
        u64::from(self.layers) * of_head * u64::from(self.kv_heads)
    }

    /// The inverse of [`Self::with_block_bytes`].
    fn block_bytes(self) -> u64 {
        u64::from(self.slice_bytes) * self.slices_per_block()
    }
}

/// Valid sizes of an engine's KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    input: GeometryInput,
    heads_per_rank: u32,
    head_bytes: u32,
    page_bytes: u32,
}

/// The reason why sizes are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    #[error("invalid KV geometry: {field} is {value}, expected 1 to {most}")]
    Range {
        /// Name of the size.
        field: &'static str,
        value: u32,
        /// The maximum value.
        most: u32,
    },
    #[error("invalid KV geometry: {kv_heads} KV heads cannot be divided among {ranks} tensor-parallel ranks")]
    Ranks { kv_heads: u32, ranks: u32 },
    /// The bytes of a block are not a multiple of its slices.
    #[error(
        "invalid KV block of {block_bytes} bytes: expected a multiple of {slices} ({layers} layers x {of_head} x \
         {kv_heads} KV heads)"
    )]
    BlockBytes {
        block_bytes: u64,
        layers: u32,
        kv_heads: u32,
        /// What each head has in a layer.
        of_head: &'static str,
        /// Number of slices in a block.
        slices: u64,
    },
    #[error("invalid KV geometry: a page must be smaller than 4 GiB")]
    Page,
    #[error("invalid KV geometry: its bytes cannot be addressed")]
    Total,
}

/// The first difference between two geometries that makes a transfer impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} differ: {local} here, {remote} at the peer")]
pub struct Mismatch {
    /// The property, in the plural.
    pub field: &'static str,
    /// The value of this engine.
    pub local: String,
    /// The value of the peer.
    pub remote: String,
}

/// The part of a page that a local rank and a remote rank have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub local_rank: u32,
    pub remote_rank: u32,
    /// Offset in the local page.
    pub local_offset: u32,
    /// Offset in the remote page.
    pub remote_offset: u32,
    /// Length of the part in bytes.
    pub bytes: u32,
}

const MAX_LAYERS: u32 = 1024;
const MAX_HEADS: u32 = 4096;
const MAX_RANKS: u32 = 1024;
const MAX_BLOCKS: u32 = 1 << 30;
const MAX_BLOCK_TOKENS: u32 = 1 << 20;

impl Geometry {
    /// Checks the sizes.
    ///
    /// # Errors
    /// Some size is invalid; this is the first one.
    pub fn new(input: GeometryInput) -> Result<Self, GeometryError> {
        let GeometryInput { layers, kv_heads, slice_bytes, ranks, blocks, block_tokens, .. } = input;
        for (field, value, most) in [
            ("layers", layers, MAX_LAYERS),
            ("KV heads", kv_heads, MAX_HEADS),
            ("slice bytes", slice_bytes, u32::MAX),
            ("tensor-parallel ranks", ranks, MAX_RANKS),
            ("blocks", blocks, MAX_BLOCKS),
            ("tokens of a block", block_tokens, MAX_BLOCK_TOKENS),
        ] {
            if value == 0 || value > most {
                return Err(GeometryError::Range { field, value, most });
            }
        }
        let divides = if ranks <= kv_heads { kv_heads.is_multiple_of(ranks) } else { ranks.is_multiple_of(kv_heads) };
        if !divides {
            return Err(GeometryError::Ranks { kv_heads, ranks });
        }
        let heads_per_rank = (kv_heads / ranks).max(1);
        let head_bytes = slice_bytes.checked_mul(input.regions.slices()).ok_or(GeometryError::Page)?;
        let page_bytes = heads_per_rank.checked_mul(head_bytes).ok_or(GeometryError::Page)?;
        let geometry = Self { input, heads_per_rank, head_bytes, page_bytes };
        let total = geometry.block_bytes().checked_mul(u64::from(blocks)).ok_or(GeometryError::Total)?;
        isize::try_from(total).map_err(|_| GeometryError::Total)?;
        Ok(geometry)
    }

    /// The settings that these sizes follow from.
    #[must_use]
    pub fn input(&self) -> &GeometryInput {
        &self.input
    }

    /// Number of regions of one rank: one for each layer, or one for K and one for V of each layer. The latter have
    /// index `2 * layer + (0 or 1)`.
    #[must_use]
    pub fn regions(&self) -> u32 {
        self.input.layers * self.input.regions.of_layer()
    }

    /// Number of tensor-parallel ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.input.ranks
    }

    /// Number of blocks, including the null block.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.input.blocks
    }

    /// Number of KV heads in a page.
    #[must_use]
    pub fn heads_per_rank(&self) -> u32 {
        self.heads_per_rank
    }

    /// The first KV head of a rank. If there are more ranks than heads, several ranks have the same head.
    #[must_use]
    pub fn first_head(&self, rank: u32) -> u32 {
        (u64::from(rank) * u64::from(self.input.kv_heads) / u64::from(self.input.ranks)) as u32
    }

    /// Bytes per head in a page.
    #[must_use]
    pub fn head_bytes(&self) -> u32 {
        self.head_bytes
    }

    /// Bytes per page: one block in one region of one rank.
    #[must_use]
    pub fn page_bytes(&self) -> u32 {
        self.page_bytes
    }

    /// Number of pages of a block, over all regions and ranks.
    #[must_use]
    pub fn pages_per_block(&self) -> u32 {
        self.regions() * self.input.ranks
    }

    /// Bytes per block, over all regions and ranks.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        u64::from(self.page_bytes) * u64::from(self.pages_per_block())
    }

    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        u64::from(self.page_bytes) * u64::from(self.input.blocks)
    }

    /// Bytes of all pages.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.region_bytes() * u64::from(self.pages_per_block())
    }

    /// Offset of a page in the arena, which is ordered by rank, then by region, then by block.
    #[must_use]
    pub fn page_offset(&self, rank: u32, region: u32, block: u32) -> u64 {
        let region = u64::from(rank) * u64::from(self.regions()) + u64::from(region);
        region * self.region_bytes() + u64::from(block) * u64::from(self.page_bytes)
    }

    /// A hash of all properties that must be equal in two engines. Ranks and numbers of blocks may differ.
    #[must_use]
    pub fn layout_hash(&self) -> u64 {
        let GeometryInput { layers, kv_heads, slice_bytes, block_tokens, order, regions, .. } = self.input;
        [layers, kv_heads, slice_bytes, block_tokens, order as u32, regions as u32]
            .iter()
            .fold(0x6b76_7061_6765_7331, |hash, value| crate::pattern::mix(hash ^ u64::from(*value)))
    }

    /// How pages of `remote` map to pages of this geometry.
    pub fn pieces(&self, remote: &Self) -> Result<Vec<Piece>, Mismatch> {
        let (local, other) = (&self.input, &remote.input);
        for (field, here, there) in [
            ("tokens of a block", local.block_tokens, other.block_tokens),
            ("layers", local.layers, other.layers),
            ("KV heads", local.kv_heads, other.kv_heads),
        ] {
            if here != there {
                return Err(Mismatch { field, local: here.to_string(), remote: there.to_string() });
            }
        }
        if local.order != other.order {
            let (local, remote) = (format!("{:?}", local.order), format!("{:?}", other.order));
            return Err(Mismatch { field: "orders of heads and tokens", local, remote });
        }
        if local.regions != other.regions {
            let (local, remote) = (format!("{:?}", local.regions), format!("{:?}", other.regions));
            return Err(Mismatch { field: "K and V of a layer", local, remote });
        }
        if local.slice_bytes != other.slice_bytes {
            let field = "bytes of a block (see --kv-block-bytes)";
            let [local, remote] = [local, other].map(|input| input.block_bytes().to_string());
            return Err(Mismatch { field, local, remote });
        }
        if local.ranks != other.ranks && local.order == HeadOrder::TokensFirst {
            return Err(Mismatch {
                field: "tensor-parallel ranks (pages with tokens first cannot be split by heads)",
                local: local.ranks.to_string(),
                remote: other.ranks.to_string(),
            });
        }
        let head_bytes = self.head_bytes;
        let mut pieces = Vec::new();
        for local_rank in 0..local.ranks {
            let first = self.first_head(local_rank);
            let mut head = first;
            while head < first + self.heads_per_rank {
                // Of the ranks with the same head, take the one with the same index among the copies.
                let remote_rank = remote.rank_with(head, local_rank, local.ranks);
                let remote_first = remote.first_head(remote_rank);
                let end = (remote_first + remote.heads_per_rank).min(first + self.heads_per_rank);
                pieces.push(Piece {
                    local_rank,
                    remote_rank,
                    local_offset: (head - first) * head_bytes,
                    remote_offset: (head - remote_first) * head_bytes,
                    bytes: (end - head) * head_bytes,
                });
                head = end;
            }
        }
        Ok(pieces)
    }

    /// A rank that has this head. If there are several, `readers` are spread over them.
    fn rank_with(&self, head: u32, reader: u32, readers: u32) -> u32 {
        let GeometryInput { kv_heads, ranks, .. } = self.input;
        if ranks <= kv_heads {
            return head / self.heads_per_rank;
        }
        let copies = ranks / kv_heads;
        let readers_of_head = (readers / kv_heads).max(1);
        let place = reader % readers_of_head;
        head * copies + place * copies / readers_of_head
    }
}

#[cfg(test)]
mod tests;
