//! The least times of operators on a system, in nanoseconds: what the hardware's peaks
//! allow. They say how times grow beyond the rows of a table.

use crate::tables::Dtype;
use crate::tables::system::System;

/// Of a matrix multiplication: `m` rows by `n` columns over `k`.
pub(crate) fn gemm(system: &System, dtype: Dtype, m: f64, n: f64, k: f64) -> f64 {
    system.limit_ns(2.0 * m * n * k, dtype, dtype.bytes * (m * n + m * k + n * k))
}

/// The heads of a grouped attention on one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Heads {
    /// Those with keys and values of their own; none for as many as there are heads.
    pub(crate) kv_heads: Option<u32>,
    pub(crate) head_dim: u32,
    /// Tokens that a head looks back; none for all.
    pub(crate) window: Option<u32>,
    pub(crate) kv_cache: Dtype,
}

impl Heads {
    fn kv_heads(&self, heads: f64) -> f64 {
        self.kv_heads.map_or(heads, f64::from)
    }

    /// Of the attention of a batch of prompts without anything before them.
    pub(crate) fn prefill(&self, system: &System, compute: Dtype, heads: f64, batch: f64, sequence: f64) -> f64 {
        let dim = f64::from(self.head_dim);
        let pairs = match self.window.map(f64::from) {
            Some(window) if sequence > window => sequence * window,
            _ => sequence * sequence / 2.0,
        };
        let rows = 4.0 * heads * sequence * dim + 2.0 * self.kv_cache.bytes * self.kv_heads(heads) * sequence * dim;
        system.limit_ns(4.0 * batch * pairs * heads * dim, compute, batch * rows)
    }

    /// The limit for the attention of a batch of decodes, each over one sequence.
    pub(crate) fn decode(&self, system: &System, heads: f64, batch: f64, sequence: f64) -> f64 {
        let dim = f64::from(self.head_dim);
        let before = sequence - 1.0;
        let keys = self.window.map_or(before, |window| before.min(f64::from(window)));
        let rows = 4.0 * heads * dim + 2.0 * self.kv_heads(heads) * keys * dim * self.kv_cache.bytes;
        system.limit_ns(4.0 * batch * heads * dim * keys, decode_compute(system, self.kv_cache), batch * rows)
    }
}

/// Data type that decodes compute with: FP8 if the cache is and the GPU can.
fn decode_compute(system: &System, kv_cache: Dtype) -> Dtype {
    if kv_cache == Dtype::FP8 && system.has_fp8() { Dtype::FP8 } else { Dtype::BFLOAT16 }
}

/// Sizes of latent attention as DeepSeek V3 has them: the tables are of it.
const LATENT_PAIR: f64 = 192.0 + 128.0;
const LATENT_DECODE_PAIR: f64 = 1088.0;
const LATENT_ROW: f64 = 576.0;

/// Of the latent attention of a batch of prompts.
pub(crate) fn latent_prefill(
    system: &System,
    compute: Dtype,
    kv_cache: Dtype,
    heads: f64,
    batch: f64,
    sequence: f64,
) -> f64 {
    let operations = batch * heads * LATENT_PAIR * sequence * sequence;
    let bytes = batch * heads * LATENT_PAIR * sequence * (kv_cache.bytes + 2.0);
    system.limit_ns(operations, compute, bytes)
}

/// Of the latent attention of a batch of decodes, with the two multiplications that go
/// into the latent space and come out of it.
pub(crate) fn latent_decode(
    system: &System,
    gemm: Dtype,
    kv_cache: Dtype,
    heads: f64,
    batch: f64,
    sequence: f64,
) -> f64 {
    let attention = 2.0 * batch * heads * LATENT_DECODE_PAIR * sequence;
    let rows = batch * (heads * LATENT_DECODE_PAIR * 2.0 + (sequence - 1.0) * LATENT_ROW * kv_cache.bytes);
    let projections = 4.0 * batch * heads * 128.0 * 512.0;
    let weights = 2.0 * heads * (batch * 640.0 + 128.0 * 512.0) * gemm.bytes;
    let compute =
        system.limit_ns(attention, decode_compute(system, kv_cache), 0.0) + system.limit_ns(projections, gemm, 0.0);
    compute.max(system.limit_ns(0.0, gemm, rows + weights))
}

/// The experts of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ExpertShape {
    pub(crate) hidden_size: u32,
    pub(crate) intermediate_size: u32,
    pub(crate) count: u32,
    pub(crate) per_token: u32,
    pub(crate) tensor_parallel: u32,
    pub(crate) expert_parallel: u32,
}

impl ExpertShape {
    /// Of gate, up and down projections for tokens. Fractions of tokens and experts are
    /// cut off, as in the tables' own estimates.
    pub(crate) fn limit(&self, system: &System, dtype: Dtype, tokens: f64) -> f64 {
        const MATRICES: f64 = 3.0;
        let parts = f64::from(self.expert_parallel);
        let shards = f64::from(self.tensor_parallel);
        let (hidden, inner) = (f64::from(self.hidden_size), f64::from(self.intermediate_size));
        let routed = tokens.round() * f64::from(self.per_token);
        let here = (routed / parts).floor();
        let busy = (f64::from(self.count) / parts).floor().min(here);
        let values = here * hidden * 2.0
            + (here * inner * MATRICES / shards).floor()
            + (hidden * inner * MATRICES / shards).floor() * busy;
        system.limit_ns(routed * hidden * inner * MATRICES * 2.0 / parts / shards, dtype, values * dtype.bytes)
    }
}
