//! Attention of prompts and of decodes, grouped and latent.

use std::sync::Arc;

use crate::tables::Dtype;
use crate::tables::error::TablesError;
use crate::tables::files::frame::Frame;
use crate::tables::files::package::Stack;
use crate::tables::files::parquet;
use crate::tables::interpolation::grid::{Grid, Limit, Order};
use crate::tables::interpolation::nested::Node;
use crate::tables::limits::{self, Heads};
use crate::tables::system::System;

/// Key of a row in a table of grouped attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grouped {
    pub(crate) heads: u32,
    pub(crate) shape: Heads,
    /// Data type in which prefills compute.
    pub(crate) compute: Dtype,
}

pub(crate) struct AttentionTables {
    prefill: Frame,
    decode: Frame,
}

impl AttentionTables {
    /// Reads both tables. None if one of them is absent.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub(crate) fn read(stack: &Stack) -> Result<Option<Self>, TablesError> {
        let tables = ["context_attention_perf.parquet", "generation_attention_perf.parquet"];
        let [Some(prefill), Some(decode)] = tables.map(|file| stack.table("attention", file)) else { return Ok(None) };
        Ok(Some(Self { prefill: parquet::read(&prefill.path)?, decode: parquet::read(&decode.path)? }))
    }

    /// The attention of prompts.
    ///
    /// # Errors
    /// If the file lacks a column.
    pub(crate) fn prefill(&self, system: &Arc<System>, grouped: Grouped) -> Result<Grid, TablesError> {
        let Grouped { heads, shape, compute } = grouped;
        let table = rows(&self.prefill, &grouped, Order::SequenceBatch, Some(compute), |_, _, _| 0.0)?;
        let table_limit =
            |heads: f64, batch: f64, sequence: f64| shape.prefill(system, compute, heads, batch, sequence);
        let own = Arc::clone(system);
        let limit =
            Box::new(move |batch: f64, sequence: f64| shape.prefill(&own, compute, f64::from(heads), batch, sequence));
        Ok(grid(system, &table, heads, Order::SequenceBatch, &table_limit, limit))
    }

    /// The attention of decodes.
    ///
    /// # Errors
    /// If the file lacks a column.
    pub(crate) fn decode(&self, system: &Arc<System>, grouped: Grouped) -> Result<Grid, TablesError> {
        let Grouped { heads, shape, .. } = grouped;
        let table_limit = |heads: f64, batch: f64, sequence: f64| shape.decode(system, heads, batch, sequence);
        let table = rows(&self.decode, &grouped, Order::BatchSequence, None, table_limit)?;
        let own = Arc::clone(system);
        let limit = Box::new(move |batch: f64, sequence: f64| shape.decode(&own, f64::from(heads), batch, sequence));
        Ok(grid(system, &table, heads, Order::BatchSequence, &table_limit, limit))
    }
}

/// The rows for one kind of heads, from the kernel with the most rows. Times are at least `least`, a function of heads,
/// batch and sequence.
fn rows(
    frame: &Frame,
    grouped: &Grouped,
    order: Order,
    compute: Option<Dtype>,
    least: impl Fn(f64, f64, f64) -> f64,
) -> Result<Node, TablesError> {
    let columns = ["num_heads", "num_key_value_heads", "head_dim", "batch_size", "isl"].map(|name| frame.keys(name));
    let [heads, kv_heads, dims, batches, lengths] = columns;
    let (heads, kv_heads, dims, batches, lengths) = (heads?, kv_heads?, dims?, batches?, lengths?);
    let (windows, steps) = (frame.keys_or_zero("window_size")?, frame.keys_or_zero("step")?);
    let latencies = frame.latencies_ns()?;
    let is_cache = frame.texts("kv_cache_dtype")?.is(grouped.shape.kv_cache.name);
    let kinds = frame.texts("attn_dtype")?;
    let kernels = frame.texts_if_any("kernel_source");
    let is_wanted = |row: usize| {
        let own = (heads[row] != kv_heads[row]).then_some(kv_heads[row]);
        is_cache(row)
            && own == grouped.shape.kv_heads
            && dims[row] == grouped.shape.head_dim
            && (order == Order::BatchSequence || steps[row] == 0)
            && windows[row] == grouped.shape.window.unwrap_or(0)
            && compute.is_none_or(|compute| kinds.at(row) == compute.name)
    };
    let mut by_kernel: Vec<(&str, Vec<usize>)> = Vec::new();
    for row in (0..frame.rows).filter(|&row| is_wanted(row)) {
        let kernel = kernels.map_or("", |kernels| kernels.at(row));
        match by_kernel.iter_mut().find(|(name, _)| *name == kernel) {
            Some((_, rows)) => rows.push(row),
            None => by_kernel.push((kernel, vec![row])),
        }
    }
    // The first of the kernels with the most rows.
    let most = by_kernel.iter().rev().max_by_key(|(_, rows)| rows.len());
    let mut table = Node::default();
    for &row in most.map_or(&[][..], |(_, rows)| rows) {
        let sequence =
            if order == Order::BatchSequence { lengths[row].saturating_add(steps[row]) } else { lengths[row] };
        let path = match order {
            Order::SequenceBatch => [heads[row], sequence, batches[row]],
            Order::BatchSequence => [heads[row], batches[row], sequence],
        };
        let least = least(f64::from(heads[row]), f64::from(batches[row]), f64::from(sequence));
        table.insert(&path, latencies[row].max(least));
    }
    Ok(table)
}

fn grid(
    system: &System,
    table: &Node,
    heads: u32,
    order: Order,
    table_limit: &dyn Fn(f64, f64, f64) -> f64,
    limit: Limit,
) -> Grid {
    Grid::new(table, heads, order, table_limit, limit, |limit_ns| system.formula_ns(limit_ns))
}

/// The tables of latent attention. Each row has projections, attention and output as one operator.
pub(crate) struct LatentTables {
    prefill: Frame,
    decode: Frame,
}

impl LatentTables {
    /// Reads both tables. None if one of them is absent.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub(crate) fn read(stack: &Stack) -> Result<Option<Self>, TablesError> {
        let tables = ["mla_context_module_perf.parquet", "mla_generation_module_perf.parquet"];
        let [Some(prefill), Some(decode)] = tables.map(|file| stack.table("mla", file)) else { return Ok(None) };
        Ok(Some(Self { prefill: parquet::read(&prefill.path)?, decode: parquet::read(&decode.path)? }))
    }

    /// The grids of prompts and of decodes, for the heads of one GPU.
    ///
    /// # Errors
    /// If a file lacks a column.
    pub(crate) fn grids(
        &self,
        system: &Arc<System>,
        heads: u32,
        gemm: Dtype,
        kv_cache: Dtype,
        compute: Dtype,
    ) -> Result<(Grid, Grid), TablesError> {
        let prefill = latent_rows(&self.prefill, Order::SequenceBatch, gemm, kv_cache, Some(compute))?;
        let decode = latent_rows(&self.decode, Order::BatchSequence, gemm, kv_cache, None)?;
        let of_prefill = |heads: f64, batch: f64, sequence: f64| {
            limits::latent_prefill(system, compute, kv_cache, heads, batch, sequence)
        };
        let of_decode = |heads: f64, batch: f64, sequence: f64| {
            limits::latent_decode(system, gemm, kv_cache, heads, batch, sequence)
        };
        let (own, of_own) = (Arc::clone(system), f64::from(heads));
        let prefill_limit = Box::new(move |batch: f64, sequence: f64| {
            limits::latent_prefill(&own, compute, kv_cache, of_own, batch, sequence)
        });
        let own = Arc::clone(system);
        let decode_limit = Box::new(move |batch: f64, sequence: f64| {
            limits::latent_decode(&own, gemm, kv_cache, of_own, batch, sequence)
        });
        Ok((
            grid(system, &prefill, heads, Order::SequenceBatch, &of_prefill, prefill_limit),
            grid(system, &decode, heads, Order::BatchSequence, &of_decode, decode_limit),
        ))
    }
}

fn latent_rows(
    frame: &Frame,
    order: Order,
    gemm: Dtype,
    kv_cache: Dtype,
    compute: Option<Dtype>,
) -> Result<Node, TablesError> {
    let columns = ["num_heads", "batch_size", "isl", "step"].map(|name| frame.keys(name));
    let [heads, batches, lengths, steps] = columns;
    let (heads, batches, lengths, steps) = (heads?, batches?, lengths?, steps?);
    let latencies = frame.latencies_ns()?;
    let is_cache = frame.texts("kv_cache_dtype")?.is(kv_cache.name);
    let is_gemm = frame.texts("gemm_type")?.is(gemm.rows());
    let kinds = frame.texts("mla_dtype")?;
    let mut table = Node::default();
    for row in 0..frame.rows {
        if !is_cache(row) || !is_gemm(row) || compute.is_some_and(|compute| kinds.at(row) != compute.name) {
            continue;
        }
        let path = match order {
            Order::SequenceBatch => [heads[row], lengths[row], batches[row]],
            Order::BatchSequence => [heads[row], batches[row], lengths[row].saturating_add(steps[row])],
        };
        table.insert(&path, latencies[row]);
    }
    Ok(table)
}
