//! Communication between GPUs: `custom_allreduce_perf.parquet` and NCCL's collectives.

use std::collections::BTreeMap;

use crate::tables::Source;
use crate::tables::error::TablesError;
use crate::tables::files::frame::Frame;
use crate::tables::files::package::Stack;
use crate::tables::files::parquet;
use crate::tables::interpolation::curve::Curve;
use crate::tables::operators::Rows;
use crate::tables::system::System;

/// Bytes of each sent value.
const BYTES: f64 = 2.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    AllReduce,
    /// Sends every rank's part to all ranks.
    AllGather,
    /// Gives every rank a part of the sum over all ranks.
    ReduceScatter,
}

/// Measured collectives: time as a function of the number of values, for each number of GPUs.
#[derive(Default)]
pub(crate) struct Collectives {
    all_reduce: BTreeMap<u32, Rows>,
    all_gather: BTreeMap<u32, Rows>,
    reduce_scatter: BTreeMap<u32, Rows>,
}

impl Collectives {
    /// Reads the existing tables.
    ///
    /// # Errors
    /// If a file is invalid.
    pub(crate) fn read(stack: &Stack) -> Result<Self, TablesError> {
        let mut collectives = Self::default();
        if let Some(table) = stack.table("comm", "custom_allreduce_perf.parquet") {
            let frame = parquet::read(&table.path)?;
            let kernels = frame.texts_if_any("kernel_source");
            // Steps run as CUDA graphs.
            collectives.all_reduce =
                by_gpus(&frame, |row| !kernels.is_some_and(|kernels| kernels.at(row).ends_with("_eager")))?;
        }
        if let Some(path) = stack.nccl() {
            let frame = parquet::read(&path)?;
            let is_half = frame.texts("nccl_dtype")?.is("half");
            let operations = frame.texts("op_name")?;
            let of = |wanted: &str| by_gpus(&frame, |row| is_half(row) && operations.at(row) == wanted);
            collectives.all_gather = of("all_gather")?;
            collectives.reduce_scatter = of("reduce_scatter")?;
        }
        Ok(collectives)
    }

    /// The time of a collective between `gpus` GPUs, with `values` values for each token.
    pub(crate) fn curve(&self, system: &System, collective: Collective, gpus: u32, values: f64) -> Curve {
        let tables = match collective {
            Collective::AllReduce => &self.all_reduce,
            Collective::AllGather => &self.all_gather,
            Collective::ReduceScatter => &self.reduce_scatter,
        };
        let most = if collective == Collective::AllReduce { gpus.min(system.gpus_per_node()) } else { gpus };
        let Some((&measured, rows)) = tables.range(..=most).next_back().filter(|(gpus, _)| **gpus > 1) else {
            let sent = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
            return Curve::new(&[], |tokens| {
                let bytes = sent * BYTES * tokens * values * share(gpus);
                (bytes / system.link_bytes_per_s(gpus) * 1e9 + system.constant_ns(), Source::Formula)
            });
        };
        let growth = share(gpus) / share(measured) * system.link_bytes_per_s(measured) / system.link_bytes_per_s(gpus);
        let sizes: Vec<f64> = rows.sizes().iter().map(|size| size / values).collect();
        Curve::new(&sizes, |tokens| {
            let (ns, source) = rows.price(tokens * values, 1, |size| size);
            if measured == gpus { (ns, source) } else { (ns * growth, Source::Extrapolated) }
        })
    }
}

fn share(gpus: u32) -> f64 {
    f64::from(gpus - 1) / f64::from(gpus)
}

fn by_gpus(frame: &Frame, is_wanted: impl Fn(usize) -> bool) -> Result<BTreeMap<u32, Rows>, TablesError> {
    let (gpus, sizes, latencies) = (frame.keys("num_gpus")?, frame.keys("message_size")?, frame.latencies_ns()?);
    let mut by_gpus: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for row in (0..frame.rows).filter(|&row| is_wanted(row)) {
        by_gpus.entry(gpus[row]).or_default().push((f64::from(sizes[row]), latencies[row]));
    }
    Ok(by_gpus.into_iter().filter_map(|(gpus, rows)| Some((gpus, Rows::new(rows)?.without_outliers()))).collect())
}
