//! Pools whose latency models can be drawn, for `--uncertainty`.

use vcr_cluster::{PoolConfig, RunConfig};
use vcr_core::seed;

use crate::vocabulary::latency::{Draws, LatencySpec};

/// The part of a pool that can be drawn.
#[derive(Clone)]
pub(crate) struct DrawnPool {
    draw: Draws,
    /// Whether the option `overheads` overrides the model's overheads.
    keeps_overheads: bool,
}

impl DrawnPool {
    /// None if the latency model cannot be drawn.
    pub(crate) fn of(latency: &LatencySpec, keeps_overheads: bool) -> Option<Self> {
        latency.draws.clone().map(|draw| Self { draw, keeps_overheads })
    }

    fn redraw(&self, pool: &mut PoolConfig, seed: u64) {
        let drawn = (self.draw)(seed);
        pool.latency = drawn.factory;
        if !self.keeps_overheads {
            pool.overheads = drawn.overheads.unwrap_or_default();
        }
    }
}

/// A run with the coefficients of draw number `draw`. Runs with the same seed share draws, and so do pools with the
/// same model.
pub(crate) fn redrawn(config: &RunConfig, pools: &[Option<DrawnPool>], draw: usize) -> RunConfig {
    let mut drawn = config.clone();
    let seed = seed::derive(config.seed, "uncertainty", draw as u64);
    for (pool, drawn_pool) in drawn.topology.pools_mut().into_iter().zip(pools) {
        if let Some(drawn_pool) = drawn_pool {
            drawn_pool.redraw(pool, seed);
        }
    }
    drawn
}
