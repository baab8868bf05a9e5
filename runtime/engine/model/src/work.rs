//! The work of an engine's steps, as far as the model determines it.

use std::collections::BTreeMap;

use vcr_roofline::{AttentionSpec, ExpertsSpec, LayeredSpec};

use crate::error::ModelError;
use crate::kv::spec;
use crate::layers::{FeedForward, Layer, Mixer, Reach};
use crate::model::Model;
use crate::serving::Serving;
use crate::weights;

impl Model {
    /// The work of steps on each GPU.
    pub fn work(&self, serving: &Serving) -> Result<LayeredSpec, ModelError> {
        let shape = self.shape();
        serving.check(shape)?;
        let kv_bytes = serving.kv_bytes(shape)?;
        let formats = self.formats(serving)?;
        let weights = weights::of_step(self.sizes, &self.layers, formats, serving);
        let experts = self.layers.iter().find_map(|layer| match layer.feed_forward {
            FeedForward::Experts(experts) => Some(experts),
            FeedForward::None | FeedForward::Dense(_) => None,
        });
        let mut attention: BTreeMap<Option<u64>, (u64, f64)> = BTreeMap::new();
        for layer in &self.layers {
            let Some((window, bytes, flops)) = of_layer(layer, serving, kv_bytes) else { continue };
            let sums = attention.entry(window).or_default();
            *sums = (sums.0 + bytes, sums.1 + flops);
        }
        let state_bytes = self.layers.iter().map(|layer| match layer.mixer {
            Mixer::State(state) => spec::state_bytes(state, serving, self.plain_bytes),
            Mixer::Attention(_) | Mixer::Latent(_) | Mixer::None => 0,
        });
        Ok(LayeredSpec {
            layers: self.layers.len() as u64,
            hidden_size: self.hidden_size,
            shared_weights: weights.shared[0],
            shared_bytes: weights.shared[1],
            quantised_shared_weights: weights.shared[2],
            arithmetic: formats.arithmetic,
            experts: experts.map(|experts| ExpertsSpec {
                count: experts.count,
                per_token: experts.per_token,
                weights: weights.expert[0],
                bytes: weights.expert[1],
                quantised_weights: weights.expert[2],
                ranks: serving.data_parallel,
            }),
            head_weights: weights.head[0],
            head_bytes: weights.head[1],
            attention: attention
                .into_iter()
                .map(|(window_tokens, (bytes, flops_per_pair))| AttentionSpec {
                    window_tokens,
                    kv_bytes_per_token: bytes as f64,
                    flops_per_pair,
                })
                .collect(),
            state_bytes: state_bytes.sum::<u64>() as f64,
        })
    }
}

/// For one layer: its window or chunk, bytes per cached token, and operations per query-key pair.
fn of_layer(layer: &Layer, serving: &Serving, kv_bytes: u64) -> Option<(Option<u64>, u64, f64)> {
    let tensor = serving.tensor_parallel;
    match layer.mixer {
        Mixer::Attention(attention) => {
            let window = match attention.reach {
                Reach::Full => None,
                Reach::Window(tokens) | Reach::Chunk(tokens) => Some(tokens),
            };
            let width = attention.head_dim + attention.value_head_dim;
            let flops = 2.0 * (attention.heads * width) as f64 / tensor as f64;
            Some((window, spec::token_bytes(attention, tensor, kv_bytes), flops))
        }
        // Prompts are computed with keys and values per head. Every GPU has the whole latent cache.
        Mixer::Latent(latent) => {
            let width = latent.nope_head_dim + latent.rope_head_dim + latent.value_head_dim;
            let cached = spec::latent_bytes(latent, latent.kv_rank + latent.rope_head_dim, kv_bytes);
            Some((None, cached, 2.0 * (latent.heads * width) as f64 / tensor as f64))
        }
        Mixer::State(_) | Mixer::None => None,
    }
}
