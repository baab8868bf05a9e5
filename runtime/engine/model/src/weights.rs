//! Bytes of a model's weights on each GPU.

use crate::layers::architecture::Architecture;
use crate::layers::{Attention, Experts, FeedForward, Latent, Layer, Mixer, State};
use crate::quantisation::Formats;
use crate::serving::Serving;

/// Sizes that all layers of a model share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) hidden: u64,
    pub(crate) vocabulary: u64,
    pub(crate) is_tied: bool,
    pub(crate) matrices: u64,
}

impl Sizes {
    pub(crate) fn new(hidden: u64, vocabulary: u64, is_tied: Option<bool>, architecture: &Architecture) -> Self {
        let is_tied = is_tied.unwrap_or(architecture.is_tied);
        Self { hidden, vocabulary, is_tied, matrices: architecture.matrices }
    }
}

const VOCABULARY_MULTIPLE: u64 = 64;

/// Bytes of the matrices of all layers, the embedding and the output head on one GPU, by stage. Norms and biases are
/// not counted.
pub(crate) fn bytes(sizes: Sizes, layers: &[Layer], formats: Formats, serving: &Serving) -> Vec<f64> {
    let rows = sizes.vocabulary.next_multiple_of(VOCABULARY_MULTIPLE);
    let tensor = serving.tensor_parallel as f64;
    let table = product(rows, sizes.hidden) * formats.plain.bytes() / tensor;
    let count = Count { sizes, formats, tensor, expert_ranks: expert_ranks(serving), experts: ExpertsCounted::All };
    let stages = serving.stages(layers.len());
    let last = stages.len() - 1;
    let of_stage = |(stage, layers_of): (usize, &std::ops::Range<usize>)| {
        // The last stage has the output head. If the head is tied to the embedding and on the same GPU, it is the
        // embedding.
        let tables = match (stage == 0, stage == last) {
            (true, true) => {
                if sizes.is_tied {
                    1.0
                } else {
                    2.0
                }
            }
            (true, false) | (false, true) => 1.0,
            (false, false) => 0.0,
        };
        tables * table + layers[layers_of.clone()].iter().map(|layer| count.layer(layer)).sum::<f64>()
    };
    stages.iter().enumerate().map(of_stage).collect()
}

/// Number of values of an adapter of rank 1 on each GPU, by stage. Each matrix of attention and of dense networks has
/// two adapter matrices, of which the first is not split where vLLM splits the columns. Adapters of other layers are
/// not counted.
pub(crate) fn adapter(sizes: Sizes, layers: &[Layer], serving: &Serving) -> Vec<f64> {
    let tensor = serving.tensor_parallel as f64;
    let hidden = sizes.hidden as f64;
    let of_layer = |layer: &Layer| {
        let attention = match layer.mixer {
            Mixer::Attention(attention) => 4.0 * hidden + outputs(attention, tensor).into_iter().sum::<f64>(),
            Mixer::Latent(_) | Mixer::State(_) | Mixer::None => 0.0,
        };
        let network = match layer.feed_forward {
            FeedForward::Dense(width) => sizes.matrices as f64 * (hidden + width as f64 / tensor),
            FeedForward::Experts(_) | FeedForward::None => 0.0,
        };
        attention + network
    };
    serving.stages(layers.len()).into_iter().map(|stage| layers[stage].iter().map(of_layer).sum()).collect()
}

/// Width of queries, keys and values, and of the input of the output projection, on each GPU.
fn outputs(attention: Attention, tensor: f64) -> [f64; 4] {
    let Attention { heads, kv_heads, head_dim, value_head_dim, has_gate, values_are_keys, .. } = attention;
    let queries = product(heads, head_dim) * if has_gate { 2.0 } else { 1.0 } / tensor;
    // With more GPUs than key heads, each GPU keeps one whole head.
    let kv_heads = (kv_heads as f64 / tensor).max(1.0);
    let values = if values_are_keys { 0.0 } else { kv_heads * value_head_dim as f64 };
    [queries, kv_heads * head_dim as f64, values, product(heads, value_head_dim) / tensor]
}

/// Bytes of the matrices of some layers on each GPU.
pub(crate) fn of_layers(sizes: Sizes, layers: &[Layer], formats: Formats, serving: &Serving) -> f64 {
    let tensor = serving.tensor_parallel as f64;
    let count = Count { sizes, formats, tensor, expert_ranks: expert_ranks(serving), experts: ExpertsCounted::All };
    layers.iter().map(|layer| count.layer(layer)).sum()
}

/// Number of values in an embedding for a vocabulary of `tokens` tokens.
pub(crate) fn table(tokens: u64, hidden: u64) -> f64 {
    product(tokens.next_multiple_of(VOCABULARY_MULTIPLE), hidden)
}

/// Weights that a step reads on one GPU. Each entry has the number of weights, their bytes, and the number of quantised
/// weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepWeights {
    /// Matrices of all layers, without routed experts.
    pub(crate) shared: [f64; 3],
    /// One routed expert of each layer.
    pub(crate) expert: [f64; 3],
    /// The output head: number and bytes.
    pub(crate) head: [f64; 2],
}

pub(crate) fn of_step(sizes: Sizes, layers: &[Layer], formats: Formats, serving: &Serving) -> StepWeights {
    let tensor = serving.tensor_parallel as f64;
    let sum = |formats: Formats, experts: ExpertsCounted| {
        let count = Count { sizes, formats, tensor, expert_ranks: expert_ranks(serving), experts };
        layers.iter().map(|layer| count.layer(layer)).sum::<f64>()
    };
    let all = |experts: ExpertsCounted| {
        [Formats::numbers(), formats, formats.quantised_numbers()].map(|formats| sum(formats, experts))
    };
    let (shared, with_one) = (all(ExpertsCounted::None), all(ExpertsCounted::One));
    let head = product(sizes.vocabulary, sizes.hidden) / tensor;
    StepWeights {
        shared,
        expert: [0, 1, 2].map(|index| with_one[index] - shared[index]),
        head: [head, head * formats.plain.bytes()],
    }
}

/// Number of GPUs over which the experts of a layer are distributed. Without expert parallelism each GPU has a part of
/// every expert (`flatten_tp_across_dp_and_pcp` in vLLM's `FusedMoEParallelConfig`), with it some whole experts.
fn expert_ranks(serving: &Serving) -> f64 {
    (serving.tensor_parallel * serving.data_parallel * serving.prefill_context_parallel) as f64
}

fn product(left: u64, right: u64) -> f64 {
    left as f64 * right as f64
}

#[derive(Clone, Copy, Debug)]
enum ExpertsCounted {
    All,
    One,
    None,
}

struct Count {
    sizes: Sizes,
    formats: Formats,
    tensor: f64,
    expert_ranks: f64,
    experts: ExpertsCounted,
}

impl Count {
    fn layer(&self, layer: &Layer) -> f64 {
        let mixer = match layer.mixer {
            Mixer::Attention(attention) => self.attention(attention) * self.formats.attention.bytes(),
            Mixer::Latent(latent) => self.latent(latent),
            Mixer::State(state) => self.state(state),
            Mixer::None => 0.0,
        };
        let network = match layer.feed_forward {
            FeedForward::None => 0.0,
            FeedForward::Dense(width) => self.network(width) * self.formats.dense.bytes(),
            FeedForward::Experts(experts) => self.experts(experts),
        };
        mixer + network
    }

    fn network(&self, width: u64) -> f64 {
        self.sizes.matrices as f64 * product(self.sizes.hidden, width) / self.tensor
    }

    fn attention(&self, attention: Attention) -> f64 {
        self.sizes.hidden as f64 * outputs(attention, self.tensor).into_iter().sum::<f64>()
    }

    /// Weights of latent attention. Every GPU has the whole projections to latent vectors.
    fn latent(&self, latent: Latent) -> f64 {
        let hidden = self.sizes.hidden as f64;
        let heads = latent.heads as f64 / self.tensor;
        let query = heads * (latent.nope_head_dim + latent.rope_head_dim) as f64;
        let queries = match latent.query_rank {
            Some(rank) => rank as f64 * (hidden + query),
            None => hidden * query,
        };
        let rank = latent.kv_rank as f64;
        let value = heads * latent.value_head_dim as f64;
        let expanded = rank * (heads * latent.nope_head_dim as f64 + value);
        let projected = queries + hidden * (rank + latent.rope_head_dim as f64) + expanded + value * hidden;
        projected * self.formats.attention.bytes() + self.indexer(latent)
    }

    /// Weights of the indexer of sparse attention. Every GPU has the whole indexer. Its head weights are not quantised.
    fn indexer(&self, latent: Latent) -> f64 {
        let Some((heads, head_dim)) = latent.indexer else { return 0.0 };
        let queries = latent.query_rank.unwrap_or(self.sizes.hidden);
        let projected = product(queries, heads * head_dim) * self.formats.attention.bytes();
        projected + product(self.sizes.hidden, head_dim + heads) * self.formats.plain.bytes()
    }

    fn state(&self, state: State) -> f64 {
        let (projected, convolved) = match state {
            State::Mamba { heads, head_dim, groups, state, kernel, .. } => {
                let inner = heads * head_dim;
                let outer = inner + 2 * groups * state;
                (self.sizes.hidden as f64 * (inner + outer + heads + inner) as f64, product(outer, kernel))
            }
            State::Delta { key_heads, value_heads, key_dim, value_dim, kernel, .. } => {
                let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
                let outer = 2 * keys + values;
                let projected = outer + values + 2 * value_heads + values;
                (self.sizes.hidden as f64 * projected as f64, product(outer, kernel))
            }
        };
        (projected * self.formats.state.bytes() + convolved * self.formats.plain.bytes()) / self.tensor
    }

    fn experts(&self, experts: Experts) -> f64 {
        let inputs = experts.latent_size.unwrap_or(self.sizes.hidden);
        let expert = self.sizes.matrices as f64 * product(inputs, experts.intermediate_size);
        let count = match self.experts {
            ExpertsCounted::All => experts.count,
            ExpertsCounted::One => 1,
            ExpertsCounted::None => 0,
        };
        let routed = count as f64 * expert / self.expert_ranks * self.formats.experts.bytes();
        let shared = self.network(experts.shared_intermediate_size) * self.formats.shared.bytes();
        let dense = self.network(experts.dense_intermediate_size) * self.formats.dense.bytes();
        let to_latent = experts.latent_size.map_or(0.0, |latent| 2.0 * product(self.sizes.hidden, latent));
        let router = product(self.sizes.hidden, experts.count) + to_latent;
        routed + shared + dense + router * self.formats.plain.bytes()
    }
}
