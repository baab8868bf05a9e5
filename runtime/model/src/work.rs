//! Work of an engine's steps, as far as the model determines it.

use crate::layers::{Layer, Mixer, Reach};
use crate::model::Model;
use crate::weights;

/// Bytes and operations of a model, over all layers and without parallelism.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelWork {
    /// Bytes of all weights that a step of many tokens reads.
    pub weight_bytes: f64,
    /// Weights that one token is multiplied with.
    pub weights_per_token: f64,
    /// Bytes of KV cache of one token in layers that attend to the whole context.
    pub kv_bytes_per_token: f64,
    /// Floating-point operations of one query-key pair in these layers.
    pub flops_per_pair: f64,
    /// Bytes of one weight, on average.
    pub bytes_per_weight: f64,
}

impl Model {
    /// Work of its steps. The KV cache has the type of the weights before quantisation.
    #[must_use]
    pub fn work(&self) -> ModelWork {
        let weight_bytes = weights::bytes_of_step(self.sizes, &self.layers, self.formats);
        let weights = weights::weights_of_step(self.sizes, &self.layers);
        let (values, flops) =
            self.layers.iter().map(of_layer).fold((0, 0), |sums, layer| (sums.0 + layer.0, sums.1 + layer.1));
        ModelWork {
            weight_bytes,
            weights_per_token: weights::weights_of_token(self.sizes, &self.layers),
            kv_bytes_per_token: (values * self.plain_bytes) as f64,
            flops_per_pair: flops as f64,
            bytes_per_weight: weight_bytes / weights,
        }
    }
}

/// Cached numbers of a token, and operations of a query-key pair. Layers with windows or chunks have
/// none: their context does not grow.
fn of_layer(layer: &Layer) -> (u64, u64) {
    match layer.mixer {
        Mixer::Attention(attention) if attention.reach == Reach::Full => {
            let width = attention.head_dim + attention.value_head_dim;
            (attention.kv_heads * width, 2 * attention.heads * width)
        }
        // Prompts are computed with keys and values of heads.
        Mixer::Latent(latent) => {
            let width = latent.nope_head_dim + latent.rope_head_dim + latent.value_head_dim;
            (latent.kv_rank + latent.rope_head_dim, 2 * latent.heads * width)
        }
        Mixer::Attention(_) | Mixer::State(_) | Mixer::None => (0, 0),
    }
}
