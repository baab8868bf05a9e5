//! Adds an engine if the mean TTFT is too high, and removes one if most KV blocks are free.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use vcr_guest_sdk::{PoolView, ScalerGuest, export_autoscaler};

/// The user's settings; `config.json` has an example.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Mean TTFT above which an engine is added.
    max_ttft_ms: f64,
    /// Share of used KV blocks below which an engine is removed.
    idle_kv_share: f64,
}

struct Scaler(Config);

impl Scaler {
    fn is_late(&self, pool: &PoolView) -> bool {
        pool.ttft_sum_ns as f64 > self.0.max_ttft_ms * 1e6 * pool.ttft_count as f64
    }

    fn is_idle(&self, pool: &PoolView) -> bool {
        (pool.active_blocks as f64) < self.0.idle_kv_share * pool.total_blocks as f64
    }
}

impl ScalerGuest for Scaler {
    type Config = Config;

    fn configure(config: Config, _seed: u64) -> Result<Self, String> {
        if !(0.0..=1.0).contains(&config.idle_kv_share) {
            return Err(format!("invalid `idle_kv_share`: expected 0 to 1, got {}", config.idle_kv_share));
        }
        Ok(Self(config))
    }

    fn desired(&mut self, pool: &PoolView) -> Result<u32, String> {
        let there = pool.up_engines + pool.starting_engines;
        Ok(if self.is_late(pool) {
            // Wait for engines that are starting.
            if pool.starting_engines == 0 { there + 1 } else { there }
        } else if self.is_idle(pool) && pool.waiting_requests == 0 {
            there.saturating_sub(1)
        } else {
            there
        })
    }
}

export_autoscaler!(Scaler);

#[cfg(test)]
mod tests {
    use super::*;

    fn desired(pool: PoolView) -> u32 {
        let mut scaler = Scaler(Config { max_ttft_ms: 500.0, idle_kv_share: 0.3 });
        scaler.desired(&PoolView { up_engines: 4, total_blocks: 1_000, ..pool }).expect("it decides")
    }

    #[test]
    fn late_tokens_start_one_engine_at_a_time() {
        let late = PoolView { ttft_count: 10, ttft_sum_ns: 6_000_000_000, active_blocks: 900, ..PoolView::default() };
        assert_eq!(desired(late), 5);
        assert_eq!(desired(PoolView { starting_engines: 1, ..late }), 5);
    }

    #[test]
    fn free_blocks_turn_an_engine_off_where_nothing_waits() {
        let idle = PoolView { active_blocks: 100, ..PoolView::default() };
        assert_eq!(desired(idle), 3);
        assert_eq!(desired(PoolView { waiting_requests: 1, ..idle }), 4);
        assert_eq!(desired(PoolView { active_blocks: 500, ..idle }), 4);
    }

    #[test]
    fn a_share_above_1_is_refused_by_name() {
        let error = Scaler::configure(Config { max_ttft_ms: 1.0, idle_kv_share: 2.0 }, 0).err().expect("it is bad");
        assert_eq!(error, "invalid `idle_kv_share`: expected 0 to 1, got 2");
    }
}
