//! The operators of a model on the GPUs of one rank, each with its time.

use std::path::PathBuf;
use std::sync::Arc;

use crate::tables::Dtype;
use crate::tables::Source;
use crate::tables::error::TablesError;
use crate::tables::files::package::Stack;
use crate::tables::interpolation::curve::Curve;
use crate::tables::interpolation::grid::Grid;
use crate::tables::limits::{ExpertShape, Heads};
use crate::tables::model::{Attention, Experts, Model, Norms};
use crate::tables::operators::attention::{AttentionTables, Grouped, LatentTables};
use crate::tables::operators::collective::{Collective, Collectives};
use crate::tables::operators::experts::ExpertTable;
use crate::tables::operators::gemm::{Gemm, Gemms};
use crate::tables::system::System;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parallel {
    /// Number of GPUs that share the attention of a rank.
    pub(crate) tensor: u32,
    /// Number of GPUs over which experts are distributed.
    pub(crate) expert: u32,
    /// Number of ranks with separate attention and shared experts.
    pub(crate) attention_ranks: u32,
}

impl Parallel {
    pub(crate) fn gpus(self) -> u32 {
        self.tensor * self.attention_ranks
    }
}

/// The operators that run at the same time as an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// None.
    Serial,
    /// Experts that tokens are routed to. In decodes, they run at the same time as the shared experts.
    Routed,
    /// Experts that process every token.
    Shared,
}

pub(crate) struct TokenOperator {
    pub(crate) name: &'static str,
    /// Number of executions in a step.
    pub(crate) count: f64,
    pub(crate) curve: Curve,
    pub(crate) group: Group,
}

pub(crate) struct AttentionOperator {
    pub(crate) name: &'static str,
    /// Number of executions in a step.
    pub(crate) count: f64,
    pub(crate) prefill: Grid,
    pub(crate) decode: Grid,
    /// Time of the operators that are fused with the attention of prompts.
    pub(crate) prefill_extra_ns: f64,
    /// Whether times are averaged over decodes of different lengths.
    pub(crate) averages_decodes: bool,
}

pub(crate) struct Plan {
    pub(crate) tokens: Vec<TokenOperator>,
    pub(crate) attention: Vec<AttentionOperator>,
    /// The output head, as a function of the requests that emit a token.
    pub(crate) logits: Curve,
    /// The files that the plan was read from.
    pub(crate) files: Vec<PathBuf>,
}

struct Maker<'a> {
    system: Arc<System>,
    model: &'a Model,
    parallel: Parallel,
    gemms: Gemms,
    collectives: Collectives,
    operators: Vec<TokenOperator>,
}

impl Plan {
    /// Reads the tables that a model needs.
    ///
    /// # Errors
    /// If the model cannot be distributed in this way, a whole table is missing, or a file is invalid.
    pub(crate) fn new(stack: Stack, model: &Model, parallel: Parallel) -> Result<Self, TablesError> {
        check(model, parallel)?;
        let dtypes = model.dtypes;
        let gemms = Gemms::read(&stack, &[Dtype::BFLOAT16, dtypes.gemm, dtypes.shared])?;
        let experts = if model.experts.is_some() { ExpertTable::read(&stack, dtypes.moe)? } else { None };
        let is_latent = model.attention == Attention::Latent;
        let grouped = if is_latent { None } else { AttentionTables::read(&stack)? };
        let latent = if is_latent { LatentTables::read(&stack)? } else { None };
        let missing = [
            (gemms.is_none(), "gemm"),
            (model.experts.is_some() && experts.is_none(), "moe"),
            (!is_latent && grouped.is_none(), "attention"),
            (is_latent && latent.is_none(), "mla"),
        ];
        let missing: Vec<String> =
            missing.iter().filter(|(is_missing, _)| *is_missing).map(|(_, name)| (*name).to_owned()).collect();
        let (Some(gemms), true) = (gemms, missing.is_empty()) else {
            return Err(TablesError::NoOperators {
                model: model.name.clone(),
                system: stack.system().to_owned(),
                backend: stack.backend().to_owned(),
                version: stack.version().to_owned(),
                operators: missing,
            });
        };
        let collectives = Collectives::read(&stack)?;
        let files = stack.files_used();
        let system = Arc::new(stack.system);
        let mut maker = Maker { system, model, parallel, gemms, collectives, operators: Vec::new() };
        maker.embedding();
        let attention = match (&grouped, &latent) {
            (Some(tables), _) => maker.grouped(tables)?,
            (None, Some(tables)) => vec![maker.latent(tables)?],
            (None, None) => Vec::new(),
        };
        match (&model.experts, &experts) {
            (Some(shape), Some(table)) => maker.experts(*shape, table),
            _ => maker.feed_forward(),
        }
        let logits = maker.gemms.curve(
            &maker.system,
            Gemm {
                n: model.vocab_size / parallel.tensor,
                k: model.hidden_size,
                dtype: Dtype::BFLOAT16,
                is_input_cast: false,
            },
        );
        Ok(Self { tokens: maker.operators, attention, logits, files })
    }
}

fn check(model: &Model, parallel: Parallel) -> Result<(), TablesError> {
    let tensor = parallel.tensor;
    if tensor == 0 || !model.heads.is_multiple_of(tensor) {
        let reason = format!("it is {tensor}: expected a divisor of the model's {} attention heads", model.heads);
        return Err(TablesError::setting("tensor_parallel", reason));
    }
    if parallel.attention_ranks == 0 {
        return Err(TablesError::setting("attention_dp", "it is 0: expected at least 1"));
    }
    let gpus = parallel.gpus();
    let is_split = parallel.expert > 0 && gpus.is_multiple_of(parallel.expert);
    let is_possible =
        model.experts.map_or(parallel.expert == 1, |experts| is_split && parallel.expert <= experts.count);
    if !is_possible {
        let reason = match model.experts {
            Some(experts) => format!(
                "it is {}: expected a divisor of the {gpus} GPUs, up to the model's {} experts",
                parallel.expert, experts.count
            ),
            None => format!("it is {}: expected 1, since the model has no experts", parallel.expert),
        };
        return Err(TablesError::setting("expert_parallel", reason));
    }
    Ok(())
}

impl Maker<'_> {
    fn add(&mut self, name: &'static str, count: f64, group: Group, curve: Curve) {
        self.operators.push(TokenOperator { name, count, curve, group });
    }

    /// Number of times that an operator runs in a step if it runs once in every layer.
    fn layers(&self) -> f64 {
        f64::from(self.model.layers)
    }

    fn traffic(&self, bytes: f64) -> Curve {
        Curve::new(&[], |tokens| (self.system.traffic_ns(bytes * tokens), Source::Formula))
    }

    fn gemm(&mut self, name: &'static str, group: Group, gemm: Gemm) {
        let curve = self.gemms.curve(&self.system, gemm);
        self.add(name, self.layers(), group, curve);
    }

    fn all_reduce(&mut self, name: &'static str, count: f64, gpus: u32) {
        if gpus > 1 {
            let values = f64::from(self.model.hidden_size);
            let curve = self.collectives.curve(&self.system, Collective::AllReduce, gpus, values);
            self.add(name, count, Group::Serial, curve);
        }
    }

    fn embedding(&mut self) {
        let hidden = f64::from(self.model.hidden_size);
        let (embedding, norm) = (self.traffic(2.0 * hidden), self.traffic(8.0 * hidden));
        self.add("embedding", 1.0, Group::Serial, embedding);
        // Reads and writes two sums and norms of the hidden values.
        self.add("norms", 2.0 * self.layers(), Group::Serial, norm);
        if self.model.attention != Attention::Latent {
            self.all_reduce("embedding all-reduce", 1.0, self.parallel.tensor);
        }
    }

    fn grouped(&mut self, tables: &AttentionTables) -> Result<Vec<AttentionOperator>, TablesError> {
        let model = self.model;
        let heads = model.heads / self.parallel.tensor;
        let kv_heads = model.kv_heads.div_ceil(self.parallel.tensor);
        let dim = model.head_dim;
        let projected = heads * dim;
        let dtype = model.dtypes.gemm;
        let qkv = Gemm { n: projected + 2 * kv_heads * dim, k: model.hidden_size, dtype, is_input_cast: false };
        self.gemm("qkv projection", Group::Serial, qkv);
        let output = Gemm { n: model.hidden_size, k: projected, dtype, is_input_cast: true };
        self.gemm("output projection", Group::Serial, output);
        let Attention::Grouped { windowed, normalised } = model.attention else { return Ok(Vec::new()) };
        if normalised == Some(Norms::OfAll) {
            self.norms_of_all(f64::from(projected), f64::from(kv_heads * dim));
        }
        let (windowed_layers, window) = windowed.unwrap_or((0, 0));
        let kinds = [
            ("attention", model.layers - windowed_layers, None),
            ("windowed attention", windowed_layers, Some(window)),
        ];
        let mut operators = Vec::new();
        for (name, layers, window) in kinds.into_iter().filter(|(_, layers, _)| *layers > 0) {
            let shape = Heads {
                kv_heads: (kv_heads != heads).then_some(kv_heads),
                head_dim: dim,
                window,
                kv_cache: model.dtypes.kv_cache,
            };
            let grouped = Grouped { heads, shape, compute: model.dtypes.attention };
            operators.push(AttentionOperator {
                name,
                count: f64::from(layers),
                prefill: tables.prefill(&self.system, grouped)?,
                decode: tables.decode(&self.system, grouped)?,
                prefill_extra_ns: self.fused_ns(f64::from(projected), f64::from(kv_heads * dim), normalised),
                averages_decodes: true,
            });
        }
        Ok(operators)
    }

    /// Time of the operators that are fused with the attention of prompts: rotary embeddings, writes to the KV cache
    /// and, in models that have them, norms of queries and keys. As in the package, only the memory traffic of one
    /// token is charged, which takes little more than the constant time of a kernel.
    fn fused_ns(&self, queries: f64, keys: f64, normalised: Option<Norms>) -> f64 {
        const MARGIN: f64 = 1.1;
        let traffic = |bytes: f64| self.system.traffic_ns(bytes);
        let rotary = 2.0 * traffic(2.0 * (queries + keys));
        let writes = 2.0 * traffic(self.model.dtypes.attention.bytes * keys);
        let norms =
            if normalised == Some(Norms::OfEach) { 4.0 * (traffic(2.0 * queries) + traffic(2.0 * keys)) } else { 0.0 };
        MARGIN * (rotary + writes + norms)
    }

    /// Adds norms of queries and keys over all heads: an all-reduce of the sums of squares (two 32-bit numbers per
    /// token), then the norms themselves.
    fn norms_of_all(&mut self, queries: f64, keys: f64) {
        let values = queries + keys;
        let squares = self.traffic(2.0 * values);
        let norms = self.traffic(4.0 * values);
        self.add("squares of queries and keys", self.layers(), Group::Serial, squares);
        self.add("norms of queries and keys", self.layers(), Group::Serial, norms);
        let gpus = self.parallel.tensor;
        if gpus > 1 {
            const VALUES: f64 = 4.0;
            let curve = self.collectives.curve(&self.system, Collective::AllReduce, gpus, VALUES);
            self.add("all-reduces of norms", self.layers(), Group::Serial, curve);
        }
    }

    fn latent(&mut self, tables: &LatentTables) -> Result<AttentionOperator, TablesError> {
        let dtypes = self.model.dtypes;
        let heads = self.model.heads / self.parallel.tensor;
        let (prefill, decode) = tables.grids(&self.system, heads, dtypes.latent, dtypes.kv_cache, dtypes.attention)?;
        Ok(AttentionOperator {
            name: "latent attention",
            count: self.layers(),
            prefill,
            decode,
            prefill_extra_ns: 0.0,
            averages_decodes: false,
        })
    }

    fn feed_forward(&mut self) {
        let (hidden, dtype) = (self.model.hidden_size, self.model.dtypes.gemm);
        let inner = self.model.intermediate_size / self.parallel.tensor;
        let up = Gemm { n: 2 * inner, k: hidden, dtype, is_input_cast: false };
        self.gemm("gate and up projection", Group::Serial, up);
        let activation = self.traffic(6.0 * f64::from(inner));
        self.add("activation", self.layers(), Group::Serial, activation);
        self.gemm("down projection", Group::Serial, Gemm { n: hidden, k: inner, dtype, is_input_cast: true });
        self.all_reduce("all-reduces", 2.0 * self.layers(), self.parallel.tensor);
    }

    fn experts(&mut self, experts: Experts, table: &ExpertTable) {
        let (model, parallel) = (self.model, self.parallel);
        let (hidden, gpus) = (model.hidden_size, parallel.gpus());
        let is_latent = model.attention == Attention::Latent;
        if is_latent {
            let inner = experts.intermediate_size / parallel.tensor;
            let dtype = model.dtypes.shared;
            let up = Gemm { n: 2 * inner, k: hidden, dtype, is_input_cast: false };
            self.gemm("shared gate and up projection", Group::Shared, up);
            let activation = self.traffic(6.0 * f64::from(inner));
            self.add("shared activation", self.layers(), Group::Shared, activation);
            let down = Gemm { n: hidden, k: inner, dtype, is_input_cast: false };
            self.gemm("shared down projection", Group::Shared, down);
        }
        let router = Gemm { n: experts.count, k: hidden, dtype: Dtype::BFLOAT16, is_input_cast: false };
        self.gemm("router", Group::Routed, router);
        let ranks = f64::from(parallel.attention_ranks);
        let shape = ExpertShape {
            hidden_size: hidden,
            intermediate_size: experts.intermediate_size,
            count: experts.count,
            per_token: experts.per_token,
            tensor_parallel: gpus / parallel.expert,
            expert_parallel: parallel.expert,
        };
        let spread = if is_latent { "power_law_1.01" } else { "power_law_1.2" };
        let curve = table.curve(&self.system, model.dtypes.moe, shape, spread, ranks);
        self.add("experts", self.layers(), Group::Routed, curve);
        if parallel.tensor > 1 {
            let curve = self.collectives.curve(&self.system, Collective::AllReduce, gpus, f64::from(hidden));
            self.add("all-reduces", 2.0 * self.layers(), Group::Routed, curve);
        }
        if parallel.attention_ranks > 1 {
            let values = f64::from(hidden) * ranks;
            for (name, collective) in
                [("all-gather", Collective::AllGather), ("reduce-scatter", Collective::ReduceScatter)]
            {
                let curve = self.collectives.curve(&self.system, collective, gpus, values);
                self.add(name, self.layers(), Group::Routed, curve);
            }
        }
    }
}
