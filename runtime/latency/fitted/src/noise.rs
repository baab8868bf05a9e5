//! The spread of measured steps around their prices.

use alloc::string::String;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng as _;
use serde::{Deserialize, Serialize};

use crate::error::InvalidModel;

/// Fractions of the steps for which [`Noise`] has factors. Rare stalls lie above the last but one.
pub const QUANTILES: [f64; 13] = [0.0, 0.01, 0.05, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.95, 0.99, 1.0];

/// Quantiles of `measured / price`, separately for steps with and without prefill. Their mean is 1, because the price
/// is the mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// Quantiles of steps that only decode.
    pub decode: [f64; QUANTILES.len()],
    /// Quantiles of steps with prefill chunks.
    pub prefill: [f64; QUANTILES.len()],
}

impl Noise {
    /// # Errors
    /// If a factor is not a positive number, or is less than the one before it.
    pub(crate) fn check(&self) -> Result<(), InvalidModel> {
        for (name, factors) in [("decode", &self.decode), ("prefill", &self.prefill)] {
            let mut last = 0.0;
            for &factor in factors {
                if !(factor.is_finite() && factor > 0.0 && factor >= last) {
                    let reason = "expected positive factors in ascending order";
                    return Err(InvalidModel::new(alloc::format!("noise.{name}"), String::from(reason)));
                }
                last = factor;
            }
        }
        Ok(())
    }

    /// The factor at a fraction `share` of the steps, from 0 to 1.
    #[must_use]
    pub fn factor(&self, has_prefill: bool, share: f64) -> f64 {
        let factors = if has_prefill { &self.prefill } else { &self.decode };
        let above = QUANTILES.iter().position(|quantile| *quantile > share).unwrap_or(QUANTILES.len() - 1);
        let below = above - 1;
        let part = (share - QUANTILES[below]) / (QUANTILES[above] - QUANTILES[below]);
        factors[below] + (factors[above] - factors[below]) * part
    }
}

/// A seeded stream of random fractions. Each step draws one.
#[derive(Clone, Debug)]
pub struct NoiseStream(Pcg64Mcg);

impl NoiseStream {
    /// Creates the stream of one engine.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // The generator needs an odd state. The constant is the fraction of the golden ratio.
        Self(Pcg64Mcg::new(u128::from(seed) << 64 | 0x9E37_79B9_7F4A_7C15))
    }

    /// A fraction, uniform in [0, 1) on a grid of 2^-53.
    pub fn share(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1u64 << 53) as f64;
        (self.0.next_u64() >> 11) as f64 * STEP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_interpolated() {
        let mut decode = [1.0; QUANTILES.len()];
        decode[0] = 0.8;
        decode[12] = 3.0;
        let noise = Noise { decode, prefill: [1.0; QUANTILES.len()] };
        assert_eq!(noise.factor(false, 0.0), 0.8);
        assert!((noise.factor(false, 0.005) - 0.9).abs() < 1e-12);
        assert_eq!(noise.factor(false, 0.5), 1.0);
        assert!((noise.factor(false, 0.995) - 2.0).abs() < 1e-12);
        assert_eq!(noise.factor(true, 0.995), 1.0);
    }

    #[test]
    fn streams_differ_by_seed_alone() {
        let draw = |seed| {
            let mut stream = NoiseStream::new(seed);
            [(); 4].map(|()| stream.share())
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(3).iter().all(|share| (0.0..1.0).contains(share)));
    }
}
