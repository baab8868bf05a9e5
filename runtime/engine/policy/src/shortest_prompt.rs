//! Admits the request with the fewest tokens to compute first.

use alloc::format;
use alloc::vec::Vec;

use crate::error::checked_chunk;
use crate::{Algorithm, Arrival, InvalidConfig, PreferenceSink};

/// Ranks are in thousandths of a token, so that slow aging also has an effect.
const RANKS_PER_TOKEN: u32 = 1_000;
/// Maximum aging. With a million tokens per second, a request overtakes any prompt at once.
const MAX_AGING_TOKENS_PER_S: f64 = 1e6;
const NS_PER_S: u128 = 1_000_000_000;

/// The settings of [`ShortestPromptFirst`].
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ShortestPromptFirstConfig {
    /// By how many tokens per second the prompt of a waiting request counts as shorter. With 0 (the
    /// default), short prompts always go before a long one.
    pub aging_tokens_per_s: f64,
    /// Maximum number of tokens of a request in one step, so that long prompts leave room for short ones.
    /// None means no limit.
    pub max_chunk_tokens: Option<u32>,
}

impl ShortestPromptFirstConfig {
    /// Creates the policy of one engine.
    ///
    /// # Errors
    /// The invalid field, its value and the allowed values.
    pub fn build(&self) -> Result<ShortestPromptFirst, InvalidConfig> {
        let aging = self.aging_tokens_per_s;
        if !(0.0..=MAX_AGING_TOKENS_PER_S).contains(&aging) {
            return Err(InvalidConfig {
                field: "aging_tokens_per_s",
                text: format!("invalid `aging_tokens_per_s`: expected 0 to 1e6, got {aging}"),
            });
        }
        Ok(ShortestPromptFirst {
            // Rounded to the nearest thousandth of a token.
            aging_ranks_per_s: (aging * f64::from(RANKS_PER_TOKEN) + 0.5) as u64,
            max_chunk_tokens: checked_chunk(self.max_chunk_tokens)?,
            arrived: Vec::new(),
        })
    }
}

/// Admits the request with the fewest prompt tokens first, and preempts the request with the most.
///
/// All requests age at the same rate. So instead of lowering each rank over time, a later arrival gets a
/// higher rank, by the aging since time 0. Each rank is then set only once, and the order is the
/// same.
///
/// A preempted request has lost all its computed tokens, so it returns to its former place.
#[derive(Clone, Debug)]
pub struct ShortestPromptFirst {
    aging_ranks_per_s: u64,
    max_chunk_tokens: Option<u32>,
    /// Slots and ranks of requests whose rank has not been returned yet.
    arrived: Vec<(u32, i64)>,
}

impl ShortestPromptFirst {
    fn rank(&self, request: &Arrival) -> i64 {
        let aged = u128::from(request.arrival_ns) * u128::from(self.aging_ranks_per_s) / NS_PER_S;
        let rank = u128::from(request.prompt_tokens) * u128::from(RANKS_PER_TOKEN) + aged;
        i64::try_from(rank).unwrap_or(i64::MAX)
    }
}

impl Algorithm for ShortestPromptFirst {
    const NAME: &'static str = "shortest-prompt-first";

    fn arrived(&mut self, request: &Arrival) {
        let rank = self.rank(request);
        self.arrived.push((request.slot, rank));
    }

    fn admitted(&mut self, _slot: u32, _cached_tokens: u32) {}

    fn preempted(&mut self, _slot: u32) {}

    fn ended(&mut self, slot: u32, _output_tokens: u32) {
        // Only arrivals of the same call still need a rank. By then, the slot may belong to another of them.
        self.arrived.retain(|(arrived, _)| *arrived != slot);
    }

    fn progressed(&mut self, _slot: u32, _output_tokens: u32) {}

    fn decide(&mut self, say: &mut impl PreferenceSink) {
        for (slot, rank) in self.arrived.drain(..) {
            say.admission_rank(slot, rank);
            say.eviction_rank(slot, rank);
            if let Some(tokens) = self.max_chunk_tokens {
                say.chunk_cap(slot, tokens);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fair_share::tests::Said;

    fn policy(aging_tokens_per_s: f64) -> ShortestPromptFirst {
        ShortestPromptFirstConfig { aging_tokens_per_s, max_chunk_tokens: None }.build().expect("valid")
    }

    fn arrival(slot: u32, arrival_ms: u64, prompt_tokens: u32) -> Arrival {
        Arrival { slot, arrival_ns: arrival_ms * 1_000_000, prompt_tokens, tenant: 0 }
    }

    /// The slots, ordered by rank.
    fn order(mut policy: ShortestPromptFirst, arrivals: &[Arrival]) -> Vec<u32> {
        arrivals.iter().for_each(|arrival| policy.arrived(arrival));
        let mut said = Said::default();
        policy.decide(&mut said);
        let mut ranks: Vec<(i64, u32)> = said.admission.iter().map(|(&slot, &rank)| (rank, slot)).collect();
        assert_eq!(said.admission, said.eviction);
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, slot)| slot).collect()
    }

    #[test]
    fn the_shortest_goes_first_and_age_overtakes() {
        let arrivals = [arrival(0, 0, 1_000), arrival(1, 500, 300), arrival(2, 4_000, 200)];
        assert_eq!(order(policy(0.0), &arrivals), [2, 1, 0]);
        // After four seconds, the first request counts 400 tokens less, and the second one 350.
        assert_eq!(order(policy(100.0), &arrivals), [1, 2, 0]);
        assert_eq!(order(policy(2_000.0), &arrivals), [0, 1, 2]);
    }

    #[test]
    fn a_request_that_ended_before_it_was_spoken_of_is_not_spoken_of() {
        let mut policy = policy(0.0);
        policy.arrived(&arrival(3, 0, 10));
        policy.ended(3, 0);
        policy.arrived(&arrival(3, 0, 20));
        let mut said = Said::default();
        policy.decide(&mut said);
        assert_eq!(said.admission.into_iter().collect::<Vec<_>>(), [(3, 20_000)]);
    }

    #[test]
    fn times_of_centuries_do_not_overflow() {
        let mut policy = policy(1e6);
        policy.arrived(&Arrival { slot: 0, arrival_ns: u64::MAX, prompt_tokens: u32::MAX, tenant: 0 });
        let mut said = Said::default();
        policy.decide(&mut said);
        assert_eq!(said.admission[&0], i64::MAX);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let error = |aging_tokens_per_s, max_chunk_tokens| {
            let config = ShortestPromptFirstConfig { aging_tokens_per_s, max_chunk_tokens };
            alloc::string::ToString::to_string(&config.build().expect_err("it makes no sense"))
        };
        assert!(error(-1.0, None).contains("invalid `aging_tokens_per_s`: expected 0 to 1e6, got -1"));
        assert!(error(f64::NAN, None).contains("NaN"));
        assert!(error(0.0, Some(0)).contains("invalid `max_chunk_tokens`: expected at least 1"));
    }
}
