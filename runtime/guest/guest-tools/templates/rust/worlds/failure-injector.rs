//! Fails requests at their n-th token, with some probability, and stalls the engine with each failure.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::String;
use alloc::vec::Vec;
use vcr_guest_sdk::{FaultAction, FaultBatch, FaultEvent, FaultGuest, Rng, export_failure_injector};

/// The user's settings; `config.json` has an example.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Number of output tokens at which a request may fail.
    after_tokens: u32,
    /// Share of these requests that fail.
    probability: f64,
    /// Duration of the stall with each failure.
    #[serde(default)]
    stall_ns: u64,
}

struct Injector {
    config: Config,
    rng: Rng,
}

impl FaultGuest for Injector {
    type Config = Config;

    fn configure(config: Config, seed: u64) -> Result<Self, String> {
        if !(0.0..=1.0).contains(&config.probability) {
            return Err(alloc::format!("invalid `probability`: expected 0 to 1, got {}", config.probability));
        }
        if config.stall_ns > 1_000_000_000_000_000_000 {
            return Err(alloc::format!("invalid `stall_ns`: expected at most 1e18, got {}", config.stall_ns));
        }
        Ok(Self { config, rng: Rng::new(seed, 0) })
    }

    fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), String> {
        for event in batch.events {
            // A request that ends in the same batch no longer exists.
            let ends = |slot: u32| batch.events.contains(&FaultEvent::Ended { slot });
            if let FaultEvent::Emitted { slot, output_tokens } = *event
                && output_tokens == self.config.after_tokens
                && !ends(slot)
                && self.rng.uniform() < self.config.probability
            {
                actions.push(FaultAction::FailRequest { slot });
                if self.config.stall_ns > 0 {
                    actions.push(FaultAction::Stall { duration_ns: self.config.stall_ns });
                }
            }
        }
        Ok(())
    }
}

export_failure_injector!(Injector);

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(probability: f64, events: &[FaultEvent<'_>]) -> Vec<FaultAction> {
        let config = Config { after_tokens: 3, probability, stall_ns: 0 };
        let mut injector = Injector::configure(config, 1).expect("the config is valid");
        let mut actions = Vec::new();
        injector.decide(&FaultBatch { now_ns: 0, step: 1, events }, &mut actions).expect("it decides");
        actions
    }

    #[test]
    fn a_request_fails_at_its_third_token() {
        let events = [
            FaultEvent::Emitted { slot: 1, output_tokens: 2 },
            FaultEvent::Emitted { slot: 4, output_tokens: 3 },
        ];
        assert_eq!(decided(1.0, &events), [FaultAction::FailRequest { slot: 4 }]);
        assert_eq!(decided(0.0, &events), []);
    }

    #[test]
    fn a_request_that_has_ended_cannot_fail() {
        let events = [FaultEvent::Emitted { slot: 4, output_tokens: 3 }, FaultEvent::Ended { slot: 4 }];
        assert_eq!(decided(1.0, &events), []);
    }
}
