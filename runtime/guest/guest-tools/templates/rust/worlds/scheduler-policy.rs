//! Serves short prompts first. Waiting counts like a shorter prompt, so no request waits forever.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::String;
use alloc::vec::Vec;
use vcr_guest_sdk::{EngineView, PolicyEvent, PolicyGuest, Preference, export_scheduler_policy};

/// The user's settings; `config.json` has an example.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Value of a second of waiting, in prompt tokens.
    #[serde(default)]
    tokens_per_second: u32,
}

struct Policy(Config);

impl PolicyGuest for Policy {
    type Config = Config;

    fn configure(config: Config, _seed: u64) -> Result<Self, String> {
        Ok(Self(config))
    }

    fn decide(&mut self, engine: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), String> {
        for (index, event) in engine.events.iter().enumerate() {
            let PolicyEvent::Arrived { slot, arrival_ns, prompt_tokens, .. } = *event else { continue };
            // A request that arrived and ended in the same call needs no rank.
            let ends = |event: &PolicyEvent| matches!(event, PolicyEvent::Ended { slot: ended, .. } if *ended == slot);
            if engine.events[index..].iter().any(ends) {
                continue;
            }
            // All requests age at the same rate, so a rank never changes.
            let age = u128::from(arrival_ns) * u128::from(self.0.tokens_per_second) / 1_000_000_000;
            let rank = i64::try_from(age).unwrap_or(i64::MAX).saturating_add(prompt_tokens.into());
            preferences.push(Preference::AdmissionRank { slot, rank });
        }
        Ok(())
    }
}

export_scheduler_policy!(Policy);

#[cfg(test)]
mod tests {
    use vcr_guest_sdk::Slo;

    use super::*;

    fn decided(events: &[PolicyEvent]) -> Vec<Preference> {
        let mut policy = Policy::configure(Config { tokens_per_second: 100 }, 0).expect("the config is valid");
        let mut preferences = Vec::new();
        policy.decide(&EngineView { events, ..EngineView::default() }, &mut preferences).expect("it decides");
        preferences
    }

    fn arrived(slot: u32, arrival_ns: u64, prompt_tokens: u32) -> PolicyEvent {
        let slo = Slo::default();
        PolicyEvent::Arrived { slot, arrival_ns, prompt_tokens, max_tokens: 9, priority: 0, adapter: None, tenant: 0, slo }
    }

    #[test]
    fn a_request_waits_at_the_length_of_its_prompt_and_its_arrival() {
        assert_eq!(
            decided(&[arrived(3, 0, 50), arrived(4, 2_000_000_000, 50)]),
            [
                Preference::AdmissionRank { slot: 3, rank: 50 },
                Preference::AdmissionRank { slot: 4, rank: 250 },
            ]
        );
    }

    #[test]
    fn who_has_gone_is_not_ranked() {
        let ended = PolicyEvent::Ended { slot: 3, computed_tokens: 0, output_tokens: 0 };
        assert_eq!(decided(&[arrived(3, 0, 50), ended]), []);
    }
}
