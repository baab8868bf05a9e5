//! The minimum times of operators on a system, in nanoseconds, from the peaks of the hardware. They determine how times
//! grow beyond the rows of a table.

use crate::tables::Dtype;
use crate::tables::system::System;

/// Minimum time of multiplying an `m` x `k` matrix by a `k` x `n` matrix.
pub(crate) fn gemm(system: &System, dtype: Dtype, m: f64, n: f64, k: f64) -> f64 {
    system.limit_ns(2.0 * m * n * k, dtype, dtype.bytes * (m * n + m * k + n * k))
}

/// The heads of grouped attention on one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Heads {
    /// Number of heads with their own keys and values. None if all heads have them.
    pub(crate) kv_heads: Option<u32>,
    pub(crate) head_dim: u32,
    /// Number of tokens that a head attends to. None means all tokens.
    pub(crate) window: Option<u32>,
    pub(crate) kv_cache: Dtype,
}

impl Heads {
    fn kv_heads(&self, heads: f64) -> f64 {
        self.kv_heads.map_or(heads, f64::from)
    }

    /// Minimum time of the attention of a batch of prompts without a prefix.
    pub(crate) fn prefill(&self, system: &System, compute: Dtype, heads: f64, batch: f64, sequence: f64) -> f64 {
        let dim = f64::from(self.head_dim);
        let pairs = match self.window.map(f64::from) {
            Some(window) if sequence > window => sequence * window,
            _ => sequence * sequence / 2.0,
        };
        let rows = 4.0 * heads * sequence * dim + 2.0 * self.kv_cache.bytes * self.kv_heads(heads) * sequence * dim;
        system.limit_ns(4.0 * batch * pairs * heads * dim, compute, batch * rows)
    }

    /// Minimum time of the attention of a batch of decodes, each over one sequence.
    pub(crate) fn decode(&self, system: &System, heads: f64, batch: f64, sequence: f64) -> f64 {
        let dim = f64::from(self.head_dim);
        let before = sequence - 1.0;
        let keys = self.window.map_or(before, |window| before.min(f64::from(window)));
        let rows = 4.0 * heads * dim + 2.0 * self.kv_heads(heads) * keys * dim * self.kv_cache.bytes;
        system.limit_ns(4.0 * batch * heads * dim * keys, decode_compute(system, self.kv_cache), batch * rows)
    }
}

/// Data type in which decodes compute: FP8 if the cache has it and the GPU supports it.
fn decode_compute(system: &System, kv_cache: Dtype) -> Dtype {
    if kv_cache == Dtype::FP8 && system.has_fp8() { Dtype::FP8 } else { Dtype::BFLOAT16 }
}

/// Sizes of the latent attention of DeepSeek V3, for which the tables were measured.
const LATENT_PAIR: f64 = 192.0 + 128.0;
const LATENT_DECODE_PAIR: f64 = 1088.0;
const LATENT_ROW: f64 = 576.0;

/// Minimum time of the latent attention of a batch of prompts.
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

/// Minimum time of the latent attention of a batch of decodes, with the multiplications into and out of the latent
/// space.
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
    /// Minimum time of the gate, up and down projections of tokens. Fractions of tokens and experts are cut off, as in
    /// the tables' own estimates.
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
