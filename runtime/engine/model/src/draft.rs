//! Drafters: the layers and weights that an engine has in addition to its model.
//!
//! Sources: vLLM 0.32's `v1/worker/gpu/spec_decode`, and `models/{llama_eagle,llama_eagle3,deepseek_mtp}.py`.

use crate::drafter::{DraftMethod, DraftShape};
use crate::error::ModelError;
use crate::fields::Fields;
use crate::layers::{Attention, Layer, Mixer};
use crate::quantisation::Formats;
use crate::serving::Serving;
use crate::weights::{self, Sizes};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeadSizes {
    vocabulary: Option<u64>,
    target_hidden: Option<u64>,
    /// Number of target layers that the head reads.
    aux_states: Option<u64>,
}

/// Default number of target layers that an EAGLE-3 head reads.
const AUX_STATES: u64 = 3;

impl HeadSizes {
    pub(crate) fn read(fields: Fields<'_>) -> Result<Self, ModelError> {
        let listed = fields.object("eagle_config").and_then(|config| config.get("eagle_aux_hidden_state_layer_ids"));
        let listed = listed.and_then(serde_json::Value::as_array).map(|ids| ids.len() as u64);
        Ok(Self {
            vocabulary: fields.count(&["draft_vocab_size"])?,
            target_hidden: fields.count(&["target_hidden_size"])?,
            aux_states: fields.count(&["num_aux_hidden_states"])?.or(listed.filter(|count| *count > 0)),
        })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) method: DraftMethod,
    pub(crate) layers: Vec<Layer>,
    pub(crate) own: Option<OwnSizes>,
}

/// Sizes of a head or a draft model.
#[derive(Clone, Debug)]
pub(crate) struct OwnSizes {
    pub(crate) sizes: Sizes,
    pub(crate) formats: Formats,
    pub(crate) head: HeadSizes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) sizes: Sizes,
    pub(crate) formats: Formats,
    /// Whether the projection of the two states in a module is split over the GPUs.
    pub(crate) splits_projection: bool,
}

impl Draft {
    pub(crate) fn shape(&self) -> DraftShape<'_> {
        DraftShape { method: self.method, layers: &self.layers }
    }

    /// Bytes of the drafter's weights on each GPU, without weights that vLLM shares with the model. Heads and modules
    /// share the embedding, and also the output head unless their vocabulary differs.
    pub(crate) fn bytes(&self, target: Target, served: &Serving) -> f64 {
        let alone = Serving { pipeline_parallel: 1, quantization: None, ..served.clone() };
        let (formats, joins) = (self.formats(target), self.joins(target, served));
        let plain = formats.plain.bytes();
        let Some(own) = &self.own else {
            let layers = weights::of_layers(target.sizes, &self.layers, formats, &alone);
            return layers + self.layers.len() as f64 * joins.each_pass * plain;
        };
        if self.method == DraftMethod::DraftModel {
            return weights::bytes(own.sizes, &self.layers, formats, &alone)[0];
        }
        let layers = weights::of_layers(own.sizes, &self.layers, formats, &alone);
        let rows = own.head.vocabulary.filter(|tokens| *tokens != target.sizes.vocabulary);
        let rows = rows.filter(|_| self.method == DraftMethod::Eagle3);
        let output = rows.map_or(0.0, |rows| weights::table(rows, own.sizes.hidden) / served.tensor_parallel as f64);
        layers + (joins.first_pass + joins.each_pass + output) * plain
    }

    /// Matrices beside the layers and the output head.
    pub(crate) fn joins(&self, target: Target, served: &Serving) -> Joins {
        let tensor = served.tensor_parallel as f64;
        let in_each = |each_pass: f64| Joins { each_pass, first_pass: 0.0 };
        let Some(own) = &self.own else {
            // The projection of a token's embedding and the previous hidden state.
            let ranks = if target.splits_projection { tensor } else { 1.0 };
            return in_each(2.0 * square(target.sizes.hidden) / ranks);
        };
        match self.method {
            DraftMethod::DraftModel | DraftMethod::Mtp => in_each(0.0),
            DraftMethod::Eagle => in_each(2.0 * square(own.sizes.hidden)),
            DraftMethod::Eagle3 => {
                let hidden = own.sizes.hidden as f64;
                let target_hidden = own.head.target_hidden.unwrap_or(own.sizes.hidden);
                let first_pass = (own.head.aux_states.unwrap_or(AUX_STATES) * target_hidden) as f64 * hidden;
                // The first layer's queries, keys and values read the embedding joined with the hidden state.
                let each_pass = match self.layers.first().map(|layer| layer.mixer) {
                    Some(Mixer::Attention(attention)) => hidden * projected(attention, tensor),
                    _ => 0.0,
                };
                Joins { each_pass, first_pass }
            }
        }
    }

    /// The layers of one pass: one module of the model itself, or all layers of a head or a draft model.
    pub(crate) fn layers_of_pass(&self) -> &[Layer] {
        if self.own.is_some() { &self.layers } else { &self.layers[..1.min(self.layers.len())] }
    }

    /// The sizes of one pass. Heads and modules use the model's output head, unless a head has its own vocabulary.
    pub(crate) fn sizes_of_pass(&self, target: Target) -> Sizes {
        match (&self.own, self.method) {
            (None, _) => target.sizes,
            (Some(own), DraftMethod::DraftModel) => own.sizes,
            (Some(own), _) => {
                let vocabulary = own.head.vocabulary.unwrap_or(target.sizes.vocabulary);
                Sizes { vocabulary, ..own.sizes }
            }
        }
    }

    pub(crate) fn formats(&self, target: Target) -> Formats {
        self.own.as_ref().map_or(target.formats, |own| own.formats)
    }
}

/// Numbers of weights on each GPU that join a drafter's inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joins {
    /// Multiplied in every pass.
    pub(crate) each_pass: f64,
    /// Multiplied in the first pass after a step only.
    pub(crate) first_pass: f64,
}

fn square(side: u64) -> f64 {
    side as f64 * side as f64
}

/// Total width of queries, keys and values of attention on each GPU.
fn projected(attention: Attention, tensor: f64) -> f64 {
    let kv_heads = (attention.kv_heads as f64 / tensor).max(1.0);
    let queries = attention.heads as f64 * attention.head_dim as f64 / tensor;
    queries + kv_heads * (attention.head_dim + attention.value_head_dim) as f64
}
