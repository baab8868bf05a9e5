//! Facts of a worker that never change.

use crate::config::PoolRole;

#[expect(clippy::struct_excessive_bools, reason = "each is a fact by itself")]
pub(super) struct WorkerFacts {
    pub(super) role: PoolRole,
    /// Index in the pool, where the ranks of an engine are neighbours.
    pub(super) index: u32,
    pub(super) seed: u64,
    pub(super) block_size_tokens: u32,
    pub(super) reserves_between_steps: bool,
    /// Whether its ranks count passes together.
    pub(super) counts_passes: bool,
    /// Whether it shares tiers with others of its pool.
    pub(super) shares_tiers: bool,
    /// Whether its cache knows the future, which other workers change.
    pub(super) foresees: bool,
    /// Whether routers see its KV events and what its tiers keep.
    pub(super) reports_to_router: bool,
}
