//! Experts: `moe_perf.parquet`.

use crate::tables::Dtype;
use crate::tables::Source;
use crate::tables::error::TablesError;
use crate::tables::files::package::Stack;
use crate::tables::files::parquet;
use crate::tables::interpolation::curve::Curve;
use crate::tables::limits::ExpertShape;
use crate::tables::operators::Rows;
use crate::tables::system::System;

pub(crate) struct ExpertTable {
    /// Shape, distribution of tokens over experts, and times as a function of tokens.
    shapes: Vec<(ExpertShape, String, Rows)>,
}

/// Tokens and time in nanoseconds, in the order of a file.
type Times = Vec<(f64, f64)>;

impl ExpertTable {
    /// Reads the rows of a data type. None if there is no table.
    ///
    /// # Errors
    /// If the file is invalid.
    pub(crate) fn read(stack: &Stack, dtype: Dtype) -> Result<Option<Self>, TablesError> {
        let Some(table) = stack.table("moe", "moe_perf.parquet") else { return Ok(None) };
        let frame = parquet::read(&table.path)?;
        let columns = ["hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size", "moe_ep_size"];
        let [hidden, inner, count, per_token, tensor, expert] = columns.map(|name| frame.keys(name));
        let (hidden, inner, count) = (hidden?, inner?, count?);
        let (per_token, tensor, expert) = (per_token?, tensor?, expert?);
        let (tokens, latencies) = (frame.keys("num_tokens")?, frame.latencies_ns()?);
        let (kinds, spreads) = (frame.texts("moe_dtype")?, frame.texts("distribution")?);
        let is_wanted = kinds.is(dtype.name);
        let mut by_shape: Vec<(ExpertShape, String, Times)> = Vec::new();
        for row in (0..frame.rows).filter(|&row| is_wanted(row)) {
            let shape = ExpertShape {
                hidden_size: hidden[row],
                intermediate_size: inner[row],
                count: count[row],
                per_token: per_token[row],
                tensor_parallel: tensor[row].max(1),
                expert_parallel: expert[row].max(1),
            };
            let spread = spreads.at(row);
            // Rows of the same shape are mostly adjacent.
            let known = by_shape.iter().rposition(|(known, name, _)| *known == shape && name == spread);
            let at = known.unwrap_or_else(|| {
                by_shape.push((shape, spread.to_owned(), Vec::new()));
                by_shape.len() - 1
            });
            by_shape[at].2.push((f64::from(tokens[row]), latencies[row]));
        }
        let shapes = by_shape
            .into_iter()
            .filter_map(|(shape, spread, rows)| Some((shape, spread, Rows::new(rows)?.without_outliers())));
        Ok(Some(Self { shapes: shapes.collect() }))
    }

    /// The time of a GPU's experts as a function of the tokens of one of `ranks` ranks. Shapes without rows take the
    /// utilisation of the most similar shape.
    pub(crate) fn curve(&self, system: &System, dtype: Dtype, shape: ExpertShape, spread: &str, ranks: f64) -> Curve {
        let limit = |tokens: f64| shape.limit(system, dtype, tokens);
        let of_spread =
            |wanted: &str| self.shapes.iter().filter(move |(_, name, _)| name == wanted).collect::<Vec<_>>();
        let candidates = [spread, "uniform", "balanced"].map(of_spread).into_iter().find(|found| !found.is_empty());
        let candidates = candidates.unwrap_or_default();
        if let Some((_, _, rows)) = candidates.iter().find(|(known, _, _)| *known == shape) {
            let sizes: Vec<f64> = rows.sizes().iter().map(|tokens| tokens / ranks).collect();
            return Curve::new(&sizes, |tokens| rows.price(tokens * ranks, 1, limit));
        }
        let is_sharded_alike = |known: &ExpertShape| {
            known.tensor_parallel == shape.tensor_parallel && known.expert_parallel == shape.expert_parallel
        };
        let similar = candidates
            .iter()
            .filter(|(known, _, _)| is_sharded_alike(known))
            .min_by(|one, other| distance(&one.0, &shape).total_cmp(&distance(&other.0, &shape)));
        let Some((known, _, rows)) = similar else {
            return Curve::new(&[], |tokens| (system.formula_ns(limit(tokens * ranks)), Source::Formula));
        };
        let known_limit = |tokens: f64| known.limit(system, dtype, tokens);
        let sizes: Vec<f64> = rows.sizes().iter().map(|tokens| tokens / ranks).collect();
        Curve::new(&sizes, |tokens| {
            let tokens = tokens * ranks;
            let utilisation = known_limit(tokens) / rows.price(tokens, 1, known_limit).0;
            (limit(tokens) / utilisation, Source::Extrapolated)
        })
    }
}

/// The difference between two shapes, in doublings.
fn distance(one: &ExpertShape, other: &ExpertShape) -> f64 {
    let sizes = |shape: &ExpertShape| [shape.per_token, shape.count, shape.hidden_size, shape.intermediate_size];
    let pairs = sizes(one).into_iter().zip(sizes(other));
    pairs
        .map(|(one, other)| {
            let doublings = libm::log2(f64::from(one.max(1)) / f64::from(other.max(1)));
            doublings * doublings
        })
        .sum()
}
