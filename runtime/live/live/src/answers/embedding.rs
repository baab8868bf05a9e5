//! Embeddings: the more runs of tokens two prompts share, the smaller is the angle between their vectors.
//!
//! Each run of one, two or three tokens is hashed. The hash selects a few numbers of the vector, and the run's
//! weight is added to or subtracted from them. Equal prompts have equal vectors, and prompts of different words
//! have nearly orthogonal ones. The meaning of a prompt has no influence.

use vcr_core::seed::mix;
use xxhash_rust::xxh3::xxh3_64;

use crate::requests::Medium;

/// Weights of runs of one, two and three tokens: longer runs are more specific.
const WEIGHTS: [f32; 3] = [0.25, 0.5, 1.0];
/// Draws from each run's hash, and the numbers of the vector that each draw changes. There are enough that the
/// first few numbers of a vector alone are informative.
const DRAWS: u64 = 10;
const PICKS: u32 = 3;
/// Bits of a draw that select a number of the vector; one more bit is the sign.
const PICK_BITS: u32 = 20;

#[derive(Clone, Copy, Debug)]
pub(crate) struct EmbeddingSpace {
    seed: u64,
    dimensions: u32,
}

impl EmbeddingSpace {
    /// Vectors have `dimensions` numbers. An adapter has other vectors than its base model.
    pub(crate) fn new(seed: u64, adapter: Option<&str>, dimensions: u32) -> Self {
        let adapter = adapter.map_or(0, |name| xxh3_64(name.as_bytes()));
        Self { seed: mix(mix(seed) ^ adapter ^ 0x656d_6265_6464_696e), dimensions: dimensions.max(1) }
    }

    /// The vector of a prompt of at least one token.
    pub(crate) fn embed(&self, prompt: &[u32], media: &[Medium]) -> Vec<f32> {
        let mut content: Vec<u64> = prompt.iter().map(|token| u64::from(*token)).collect();
        for medium in media {
            let start = medium.offset as usize;
            let places = content.iter_mut().skip(start).take(medium.tokens as usize);
            for (index, place) in (0..).zip(places) {
                // All media have the same placeholder token, so use their content instead.
                *place = mix(medium.content() ^ index);
            }
        }
        let mut vector = vec![0.0; self.dimensions as usize];
        for (length, weight) in (1..).zip(WEIGHTS) {
            for run in content.windows(length) {
                let hash = run.iter().fold(self.seed ^ length as u64, |hash, element| mix(hash ^ mix(*element)));
                self.add(hash, weight, &mut vector);
            }
        }
        vector
    }

    fn add(&self, hash: u64, weight: f32, vector: &mut [f32]) {
        for draw in 0..DRAWS {
            let drawn = mix(hash ^ draw);
            for pick in 0..PICKS {
                let bits = drawn >> (pick * (PICK_BITS + 1));
                let place = (bits >> 1) % (1 << PICK_BITS) % u64::from(self.dimensions);
                vector[place as usize] += if bits & 1 == 0 { weight } else { -weight };
            }
        }
    }

    /// Truncates a vector to `dimensions` and normalizes it if asked, as models with Matryoshka embeddings do.
    pub(crate) fn shortened(&self, mut vector: Vec<f32>, dimensions: Option<u32>, is_normalized: bool) -> Vec<f32> {
        vector.truncate(dimensions.map_or(usize::MAX, |dimensions| dimensions as usize));
        let length = vector.iter().map(|number| f64::from(*number) * f64::from(*number)).sum::<f64>().sqrt();
        if length == 0.0 {
            // A short prompt may have changed none of the first few numbers.
            vector[0] = 1.0;
        } else if is_normalized {
            vector.iter_mut().for_each(|number| *number = (f64::from(*number) / length) as f32);
        }
        vector
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> EmbeddingSpace {
        EmbeddingSpace::new(7, None, 384)
    }

    fn unit(prompt: &[u32], media: &[Medium]) -> Vec<f32> {
        space().shortened(space().embed(prompt, media), None, true)
    }

    fn cosine(one: &[f32], other: &[f32]) -> f32 {
        one.iter().zip(other).map(|(one, other)| one * other).sum()
    }

    #[test]
    fn what_prompts_share_brings_their_vectors_together() {
        let prompt = |tokens: std::ops::Range<u32>| unit(&tokens.collect::<Vec<_>>(), &[]);
        let one = prompt(0..40);
        assert!((cosine(&one, &prompt(0..40)) - 1.0).abs() < 1e-5);
        let (most, some, none) = (prompt(5..45), prompt(20..60), prompt(100..140));
        let (most, some, none) = (cosine(&one, &most), cosine(&one, &some), cosine(&one, &none));
        assert!(most > 0.7 && some > 0.3 && none.abs() < 0.2, "{most} {some} {none}");
        assert!(most > some + 0.1 && some > none + 0.1, "{most} {some} {none}");
    }

    #[test]
    fn media_adapters_and_seeds_have_vectors_of_their_own() {
        let image = |name: &str| [Medium { identifier: name.to_owned(), offset: 0, tokens: 30, embed_runs: None }];
        let prompt = [9; 32];
        let cat = unit(&prompt, &image("cat"));
        assert_eq!(cat, unit(&prompt, &image("cat")));
        assert!(cosine(&cat, &unit(&prompt, &image("dog"))).abs() < 0.5);
        let of = |seed, adapter| EmbeddingSpace::new(seed, adapter, 384).embed(&prompt, &[]);
        assert_ne!(of(7, None), of(7, Some("fine")));
        assert_ne!(of(7, None), of(8, None));
    }

    #[test]
    fn vectors_are_shortened_and_then_brought_to_length_one() {
        for dimensions in [1, 3, 384] {
            let vector = space().shortened(space().embed(&[1, 2, 3], &[]), Some(dimensions), true);
            assert_eq!(vector.len(), dimensions as usize);
            assert!((cosine(&vector, &vector) - 1.0).abs() < 1e-5, "{dimensions}: {vector:?}");
        }
        let raw = space().shortened(space().embed(&[1, 2, 3], &[]), None, false);
        assert!(cosine(&raw, &raw) > 1.5);
    }
}
