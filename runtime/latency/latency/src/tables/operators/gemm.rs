//! Matrix multiplications: `gemm_perf.parquet`, and the tables of FP8 scales.

use std::collections::BTreeMap;

use crate::tables::Dtype;
use crate::tables::Source;
use crate::tables::error::TablesError;
use crate::tables::files::package::Stack;
use crate::tables::files::parquet;
use crate::tables::interpolation::curve::Curve;
use crate::tables::interpolation::nested::{Node, Rules};
use crate::tables::limits;
use crate::tables::operators::Rows;
use crate::tables::system::System;

/// The rows of one shape can replace those of another up to this distance, in doublings over both sizes of the matrix.
const REACH: f64 = 2.0;
/// Number of shapes that together replace a shape without rows.
const NEIGHBOURS: usize = 4;
/// The utilisation of this many last rows applies beyond them.
const TAIL: usize = 3;

#[derive(Default)]
pub(crate) struct Gemms {
    by_dtype: Vec<(&'static str, Shapes)>,
    /// Times of computing FP8's dynamic scales and of casting inputs, by rows and inner size.
    scales: Option<Node>,
    casts: Option<Node>,
}

/// Rows by columns and inner size.
type Shapes = BTreeMap<(u32, u32), Rows>;

/// A matrix multiplication of a model, with `n` columns and inner size `k`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gemm {
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) dtype: Dtype,
    /// For multiplications in FP8 with static scales: whether the input already has FP8.
    pub(crate) is_input_cast: bool,
}

impl Gemms {
    /// Reads the rows of data types. None if there is no table.
    ///
    /// # Errors
    /// If a file is invalid.
    pub(crate) fn read(stack: &Stack, dtypes: &[Dtype]) -> Result<Option<Self>, TablesError> {
        let Some(table) = stack.table("gemm", "gemm_perf.parquet") else { return Ok(None) };
        let frame = parquet::read(&table.path)?;
        let (m, n, k) = (frame.keys("m")?, frame.keys("n")?, frame.keys("k")?);
        let (kinds, latencies) = (frame.texts("gemm_dtype")?, frame.latencies_ns()?);
        let mut gemms = Self::default();
        for dtype in dtypes {
            if gemms.by_dtype.iter().any(|(name, _)| *name == dtype.rows()) {
                continue;
            }
            let is_wanted = kinds.is(dtype.rows());
            let mut by_shape: BTreeMap<(u32, u32), Vec<(f64, f64)>> = BTreeMap::new();
            for row in (0..frame.rows).filter(|&row| is_wanted(row)) {
                let sizes = [m[row], n[row], k[row]].map(f64::from);
                let least = limits::gemm(&stack.system, *dtype, sizes[0], sizes[1], sizes[2]);
                by_shape.entry((n[row], k[row])).or_default().push((sizes[0], latencies[row].max(least)));
            }
            let shapes =
                by_shape.into_iter().filter_map(|(shape, rows)| Some((shape, Rows::new(rows)?.without_outliers())));
            gemms.by_dtype.push((dtype.rows(), shapes.collect()));
        }
        if dtypes.contains(&Dtype::FP8_STATIC) {
            gemms.scales = scales(stack, "computescale_perf.parquet")?;
            gemms.casts = scales(stack, "scale_matrix_perf.parquet")?;
        }
        Ok(Some(gemms))
    }

    /// The time of a multiplication as a function of its rows.
    pub(crate) fn curve(&self, system: &System, gemm: Gemm) -> Curve {
        let limit = |m: f64| limits::gemm(system, gemm.dtype, m, f64::from(gemm.n), f64::from(gemm.k));
        let formula = |m: f64| (system.formula_ns(limit(m)), Source::Formula);
        let shapes = self.by_dtype.iter().find(|(name, _)| *name == gemm.dtype.rows()).map(|(_, shapes)| shapes);
        let Some(shapes) = shapes.filter(|shapes| !shapes.is_empty()) else { return Curve::new(&[], formula) };
        if let Some(rows) = shapes.get(&(gemm.n, gemm.k)) {
            return self.with_static_scales(system, gemm, rows.sizes(), |m| rows.price(m, TAIL, limit));
        }
        let near = neighbours(shapes, gemm);
        if near.is_empty() {
            return Curve::new(&[], formula);
        }
        let within = |size: u32, sizes: &dyn Fn(&(u32, u32)) -> u32| {
            let sizes = || shapes.keys().map(sizes);
            sizes().min() <= Some(size) && Some(size) <= sizes().max()
        };
        let is_inside = within(gemm.n, &|shape| shape.0) && within(gemm.k, &|shape| shape.1);
        let source = if is_inside { Source::Interpolated } else { Source::Extrapolated };
        let borrowed = |m: f64| {
            let covering: Vec<_> = near.iter().filter(|near| near.rows.covers(m)).collect();
            let (used, source) =
                if covering.is_empty() { (near.iter().collect(), Source::Extrapolated) } else { (covering, source) };
            let (mut utilisation, mut weights) = (0.0, 0.0);
            for near in used.into_iter().take(NEIGHBOURS) {
                let limit = |m: f64| limits::gemm(system, gemm.dtype, m, f64::from(near.n), f64::from(near.k));
                let weight = 1.0 / (near.distance * near.distance + 1e-12);
                utilisation += weight * limit(m) / near.rows.price(m, TAIL, limit).0;
                weights += weight;
            }
            (limit(m) * weights / utilisation, source)
        };
        let mut sizes: Vec<f64> = near.iter().flat_map(|near| near.rows.sizes()).copied().collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        self.with_static_scales(system, gemm, &sizes, borrowed)
    }

    /// The curve of `price`. With static scales, the cost of dynamic scales is subtracted, down to the hardware's
    /// limit.
    fn with_static_scales(
        &self,
        system: &System,
        gemm: Gemm,
        sizes: &[f64],
        price: impl Fn(f64) -> (f64, Source),
    ) -> Curve {
        if gemm.dtype != Dtype::FP8_STATIC {
            return Curve::new(sizes, price);
        }
        let least = |m: f64| limits::gemm(system, gemm.dtype, m, f64::from(gemm.n), f64::from(gemm.k));
        // A difference between two measurements is not a measurement.
        let price = |m: f64| {
            let (ns, source) = price(m);
            let scales = self.scales.as_ref().map_or(0.0, |table| scale_ns(system, table, 2.0, false, m, gemm.k));
            let casts = self.casts.as_ref().filter(|_| gemm.is_input_cast);
            let casts = casts.map_or(0.0, |table| scale_ns(system, table, 3.0, true, m, gemm.k));
            ((ns - scales - casts).max(least(m)), source.max(Source::Interpolated))
        };
        let tables = [&self.scales, &self.casts].into_iter().flatten();
        let mut sizes: Vec<f64> =
            sizes.iter().copied().chain(tables.flat_map(|table| table.keys(0)).map(f64::from)).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        Curve::new(&sizes, price)
    }
}

/// A shape whose rows replace those of another.
struct Near<'a> {
    distance: f64,
    n: u32,
    k: u32,
    rows: &'a Rows,
}

/// The shapes within reach, nearest first. If one size is beyond all rows, only the other size counts.
fn neighbours(shapes: &Shapes, gemm: Gemm) -> Vec<Near<'_>> {
    let log = |size: u32| libm::log2(f64::from(size.max(1)));
    let along = |n: u32, k: u32| (log(n) - log(gemm.n), log(k) - log(gemm.k));
    let mut all: Vec<Near<'_>> = shapes
        .iter()
        .map(|(&(n, k), rows)| {
            let (along_n, along_k) = along(n, k);
            Near { distance: (along_n * along_n + along_k * along_k).sqrt(), n, k, rows }
        })
        .collect();
    if all.iter().any(|near| near.distance <= REACH) {
        all.retain(|near| near.distance <= REACH);
    } else {
        let beyond_n = all.iter().all(|near| near.n < gemm.n);
        let beyond_k = all.iter().all(|near| near.k < gemm.k);
        all.retain(|near| match (beyond_n, beyond_k) {
            (true, false) => along(near.n, near.k).1.abs() <= REACH,
            (false, true) => along(near.n, near.k).0.abs() <= REACH,
            _ => false,
        });
    }
    all.sort_by(|one, other| one.distance.total_cmp(&other.distance));
    all
}

/// Reads a table of FP8 scales over rows and inner size.
fn scales(stack: &Stack, file: &str) -> Result<Option<Node>, TablesError> {
    let Some(table) = stack.table("quantize", file) else { return Ok(None) };
    let frame = parquet::read(&table.path)?;
    let (m, k, latencies) = (frame.keys("m")?, frame.keys("k")?, frame.latencies_ns()?);
    let is_fp8 = frame.texts("quant_dtype")?.is(Dtype::FP8.name);
    let mut node = Node::default();
    for row in (0..frame.rows).filter(|&row| is_fp8(row)) {
        node.insert(&[m[row], k[row]], latencies[row]);
    }
    Ok(node.children().is_some_and(|rows| !rows.is_empty()).then_some(node))
}

/// A time from a table of FP8 scales. `passes` says how often its kernel reads or writes the matrix. Beyond the rows,
/// the time is constant or grows with the matrix.
fn scale_ns(system: &System, table: &Node, passes: f64, grows: bool, m: f64, k: u32) -> f64 {
    let clamp = |value: f64, keys: Vec<u32>| {
        let ends = (keys.first().copied().unwrap_or(1), keys.last().copied().unwrap_or(1));
        value.clamp(f64::from(ends.0), f64::from(ends.1))
    };
    let k = f64::from(k);
    let inside = [clamp(m, table.keys(0)), clamp(k, table.keys(1))];
    let limit = |point: &[f64]| system.limit_ns(0.0, Dtype::FP8, passes * point[0] * point[1]);
    let rules = Rules { limit: &limit, square_axis: None };
    let ns = table.price(&rules, &[], &inside).map_or(0.0, |(ns, _)| ns);
    if grows { ns * (m * k) / (inside[0] * inside[1]) } else { ns }
}
