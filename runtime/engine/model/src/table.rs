//! `models.toml`: the shapes of published models.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::nearest;

/// The table, as this build knows it.
const MODELS: &str = include_str!("../models.toml");

#[derive(Deserialize)]
struct Table {
    model: Vec<Entry>,
}

/// A model.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Its names; the published name comes first.
    names: Vec<String>,
    /// Fields of its `config.json` about its shape. A list for layers may be shorter: it is repeated.
    config: Map<String, Value>,
}

static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(MODELS).expect("the table is part of this build and checked by a test"));

/// Lists with an item for each layer.
const BY_LAYER: [&str; 4] = ["hybrid_layer_pattern", "indexer_types", "layer_types", "moe_layer_freq"];

/// The names of all models, by which they are published.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.model.iter().map(|entry| entry.names[0].as_str())
}

/// Names that a text may mean: with the publisher or without it.
fn aliases(entry: &'static Entry) -> impl Iterator<Item = &'static str> {
    entry.names.iter().flat_map(|name| [name.as_str(), without_publisher(name)])
}

fn without_publisher(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or_default()
}

/// The entry of a name, whatever its case. Other publishers have copies under the same name.
fn entry(name: &str) -> Option<&'static Entry> {
    let of = |name: &str| TABLE.model.iter().find(|entry| aliases(entry).any(|known| known.eq_ignore_ascii_case(name)));
    of(name).or_else(|| of(without_publisher(name)))
}

/// The model of a name: its name and configuration.
pub(crate) fn find(name: &str) -> Option<(String, Map<String, Value>)> {
    let entry = entry(name)?;
    let mut config = entry.config.clone();
    let layers = config.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0) as usize;
    for list in BY_LAYER {
        if let Some(Value::Array(items)) = config.get_mut(list) {
            *items = items.iter().cycle().take(layers).cloned().collect();
        }
    }
    Some((entry.names[0].clone(), config))
}

/// All names of the model of a name, by which it is published; none if it is not in the table.
pub fn names_of(name: &str) -> &'static [String] {
    entry(name).map_or(&[], |entry| &entry.names)
}

/// The name that is most like this one.
pub(crate) fn nearest_name(name: &str) -> Option<String> {
    nearest(name, TABLE.model.iter().flat_map(aliases))
}
