//! Invented logprobs that are consistent with each other.
//!
//! The likeliest token has some probability, and each further rank has a fixed share of the probability of the rank
//! before: a geometric distribution whose sum over all ranks is 1. A walk through the vocabulary assigns tokens to
//! ranks. It visits every token once, and the sampled token at its rank. So no token is listed twice, probabilities
//! fall with the rank, and the sampled token has the same logprob in both places where it appears.

use vcr_core::seed::mix;
use vcr_wire::LogprobRows;

/// The inputs of the logprobs at one position.
#[derive(Clone, Copy)]
pub(crate) struct Position {
    pub(crate) seed: u64,
    pub(crate) index: u32,
    pub(crate) token: u32,
    /// Whether the likeliest token is always taken.
    pub(crate) is_greedy: bool,
}

/// The rows of `positions`, each with the `k` likeliest tokens.
pub(crate) fn rows(positions: impl IntoIterator<Item = Position>, k: u32, vocab_size: u32) -> LogprobRows {
    let k = k.min(vocab_size);
    let mut rows =
        LogprobRows { width: k as usize + 1, token_ids: Vec::new(), logprobs: Vec::new(), ranks: Vec::new() };
    for position in positions {
        push_row(position, k, vocab_size, &mut rows);
    }
    rows
}

fn push_row(position: Position, k: u32, vocab_size: u32, rows: &mut LogprobRows) {
    // A token list may contain tokens beyond the vocabulary: extend the vocabulary to them.
    let vocab_size = vocab_size.max(position.token.saturating_add(1)).max(2);
    let draw = mix(position.seed ^ mix(u64::from(position.index) ^ 0x6c6f_6770_726f_6273));
    // The likeliest token has a probability from 0.3 to 0.9.
    let best = 0.3 + 0.6 * ((draw >> 40) as f64 / (1u64 << 24) as f64);
    let rank = if position.is_greedy { 1 } else { sampled_rank(mix(draw), best, vocab_size) };
    let stride = coprime(mix(draw ^ 1) as u32 % vocab_size, vocab_size);
    let logprob = |rank: u32| (best.ln() + f64::from(rank - 1) * (1.0 - best).ln()) as f32;
    let token_at = |at: u32| {
        let steps = (i64::from(at) - i64::from(rank)).rem_euclid(i64::from(vocab_size)) as u64;
        ((u64::from(position.token) + steps * u64::from(stride)) % u64::from(vocab_size)) as u32
    };
    rows.token_ids.push(position.token);
    rows.logprobs.push(logprob(rank));
    rows.ranks.push(rank);
    for at in 1..=k {
        rows.token_ids.push(token_at(at));
        rows.logprobs.push(logprob(at));
    }
}

fn sampled_rank(draw: u64, best: f64, vocab_size: u32) -> u32 {
    let unit = (draw >> 11) as f64 / (1u64 << 53) as f64;
    let mut rank = 1;
    let mut beyond = 1.0 - best;
    while unit < beyond && rank < vocab_size {
        rank += 1;
        beyond *= 1.0 - best;
    }
    rank
}

/// A number near `near` that is coprime to `size`, so that steps of this length visit every token.
fn coprime(near: u32, size: u32) -> u32 {
    let mut stride = near.max(1);
    while divisor(stride, size) != 1 {
        stride = stride % size + 1;
    }
    stride
}

fn divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_agree_with_themselves(
            seed: u64, index in 0u32..1000, token in 0u32..50, k in 0u32..60, is_greedy: bool, vocab_size in 1u32..50,
        ) {
            let rows = rows([Position { seed, index, token, is_greedy }], k, vocab_size);
            prop_assert_eq!(rows.width, k.min(vocab_size) as usize + 1);
            let (own, likeliest) = rows.token_ids.split_first().unwrap();
            prop_assert_eq!(*own, token);
            let mut seen = likeliest.to_vec();
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len(), likeliest.len(), "a token is listed twice");
            prop_assert!(rows.logprobs[1..].windows(2).all(|pair| pair[0] >= pair[1]));
            let probability: f64 = rows.logprobs[1..].iter().map(|logprob| f64::from(*logprob).exp()).sum();
            prop_assert!(probability <= 1.0 + 1e-6);
            let rank = rows.ranks[0] as usize;
            prop_assert!(!is_greedy || rank == 1);
            match likeliest.iter().position(|other| *other == token) {
                Some(at) => prop_assert!(at + 1 == rank && rows.logprobs[at + 1] == rows.logprobs[0]),
                None => prop_assert!(rank > likeliest.len()),
            }
        }
    }
}
