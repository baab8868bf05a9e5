//! Shared by sweeps of all commands: axes, combinations of their values, and table columns.

pub(crate) mod cluster;
pub(crate) mod kept;
pub(crate) mod part;
pub(crate) mod shard;
mod values;

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use vcr_trace::import::table::{Cells, TableFormat};

use crate::refusal::Refusal;

/// Largest number of runs; more suggest a typo in a range.
pub(crate) const MAX_POINTS: usize = 100_000;

/// A swept name and its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Axis {
    pub(crate) name: String,
    pub(crate) values: Vec<String>,
}

/// Parses axes from `NAME=VALUES` texts.
pub(crate) fn axes(texts: &[String]) -> Result<Vec<Axis>, String> {
    let axes = texts.iter().map(|text| axis(text)).collect::<Result<Vec<_>, _>>()?;
    let names: BTreeSet<&str> = axes.iter().map(|axis| axis.name.as_str()).collect();
    if names.len() < axes.len() {
        return Err("--sweep: a name is given twice; give all of its values at once".to_owned());
    }
    Ok(axes)
}

fn axis(text: &str) -> Result<Axis, String> {
    let bad = |what: String| format!("--sweep {text}: {what}");
    let named = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, given) = named.ok_or_else(|| bad("expected NAME=VALUES, such as num_workers=1..16".to_owned()))?;
    let values = values::values(given).map_err(bad)?;
    Ok(Axis { name: name.to_owned(), values })
}

/// All combinations; the last axis varies fastest.
pub(crate) fn combinations(axes: &[Axis]) -> Result<Vec<Vec<String>>, String> {
    let count = axes.iter().try_fold(1_usize, |count, axis| count.checked_mul(axis.values.len()));
    if count.is_none_or(|count| count > MAX_POINTS) {
        return Err(format!("--sweep: more than {MAX_POINTS} runs; sweep fewer values"));
    }
    let mut all = vec![Vec::new()];
    for axis in axes {
        let longer = |start: &Vec<String>| {
            let start = start.clone();
            axis.values.iter().map(move |value| [start.clone(), vec![value.clone()]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    Ok(all)
}

/// A combination as text.
pub(crate) fn label(axes: &[Axis], values: &[String]) -> String {
    let parts: Vec<String> = axes.iter().zip(values).map(|(axis, value)| format!("{}={value}", axis.name)).collect();
    parts.join(" ")
}

/// The values of an axis for a table: as numbers if all values are numbers.
pub(crate) fn value_cells(texts: &[&String]) -> Cells {
    let counts: Option<Vec<u64>> = texts.iter().map(|text| text.parse().ok()).collect();
    let numbers: Option<Vec<f64>> = texts.iter().map(|text| text.parse().ok()).collect();
    match (counts, numbers) {
        (Some(counts), _) => Cells::Counts(counts),
        (None, Some(numbers)) => Cells::Numbers(numbers.into_iter().map(Some).collect()),
        (None, None) => Cells::Texts(texts.iter().map(|text| (*text).clone()).collect()),
    }
}

/// The format of the table at `path`; `option` is named in the error.
pub(crate) fn out_format(option: &str, path: &Path) -> Result<TableFormat, Refusal> {
    let unknown = || Refusal::input(format!("{option}: `{}` must end in .csv, .json or .parquet", path.display()));
    TableFormat::of_path(path).ok_or_else(unknown)
}

pub(crate) fn sweep_out_format(path: Option<&Path>) -> Result<Option<TableFormat>, Refusal> {
    path.map(|path| out_format("--sweep-out", path)).transpose()
}
