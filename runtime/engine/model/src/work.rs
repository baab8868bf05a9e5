//! The work of an engine's steps, as far as the model determines it.

use std::collections::BTreeMap;

use vcr_roofline::{AttentionSpec, DraftingSpec, ExpertsSpec, LayeredSpec};

use crate::draft::{Draft, Target};
use crate::error::ModelError;
use crate::kv::spec;
use crate::layers::{FeedForward, Layer, Mixer, Reach};
use crate::model::Model;
use crate::quantisation::Formats;
use crate::serving::Serving;
use crate::weights::{self, Sizes};

impl Model {
    /// The work of steps on each GPU.
    pub fn work(&self, serving: &Serving) -> Result<LayeredSpec, ModelError> {
        let shape = self.shape();
        serving.check(shape)?;
        let kv_bytes = serving.kv_bytes(shape)?;
        let of_model = Pass {
            layers: &self.layers,
            sizes: self.sizes,
            formats: self.formats(serving)?,
            kv_bytes,
            plain_bytes: self.plain_bytes,
        };
        let drafting = self.draft.as_ref().map(|draft| {
            let target = self.target(serving)?;
            Ok(Box::new(of_drafter(draft, target, of_model, serving)))
        });
        Ok(LayeredSpec { drafting: drafting.transpose()?, ..of_model.work(serving) })
    }
}

/// The work of a drafter that follows the passes of its target.
fn of_drafter(draft: &Draft, target: Target, of_model: Pass<'_>, serving: &Serving) -> DraftingSpec {
    let (joins, formats) = (draft.joins(target, serving), draft.formats(target));
    let plain = formats.plain.bytes();
    let of_pass = Pass { layers: draft.layers_of_pass(), sizes: draft.sizes_of_pass(target), formats, ..of_model };
    let mut pass = of_pass.work(serving);
    pass.shared_weights += joins.each_pass;
    pass.shared_bytes += joins.each_pass * plain;
    DraftingSpec {
        drafts: serving.num_speculative_tokens,
        pass,
        first_weights: joins.first_pass,
        first_bytes: joins.first_pass * plain,
    }
}

/// Layers that are computed one after another, and the output head.
#[derive(Clone, Copy, Debug)]
struct Pass<'a> {
    layers: &'a [Layer],
    sizes: Sizes,
    formats: Formats,
    /// Bytes of a number in the KV cache.
    kv_bytes: u64,
    /// Bytes of a number that is not quantised.
    plain_bytes: u64,
}

impl Pass<'_> {
    fn work(&self, serving: &Serving) -> LayeredSpec {
        let weights = weights::of_step(self.sizes, self.layers, self.formats, serving);
        let experts = self.layers.iter().find_map(|layer| match layer.feed_forward {
            FeedForward::Experts(experts) => Some(experts),
            FeedForward::None | FeedForward::Dense(_) => None,
        });
        let mut attention: BTreeMap<Option<u64>, (u64, f64)> = BTreeMap::new();
        for layer in self.layers {
            let Some((window, bytes, flops)) = of_layer(layer, serving, self.kv_bytes) else { continue };
            let sums = attention.entry(window).or_default();
            *sums = (sums.0 + bytes, sums.1 + flops);
        }
        let state_bytes = self.layers.iter().map(|layer| match layer.mixer {
            Mixer::State(state) => spec::state_bytes(state, serving, self.plain_bytes),
            Mixer::Attention(_) | Mixer::Latent(_) | Mixer::None => 0,
        });
        LayeredSpec {
            layers: self.layers.len() as u64,
            hidden_size: self.sizes.hidden,
            shared_weights: weights.shared[0],
            shared_bytes: weights.shared[1],
            quantised_shared_weights: weights.shared[2],
            arithmetic: self.formats.arithmetic,
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
            drafting: None,
        }
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
