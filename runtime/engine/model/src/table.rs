//! `models.toml`: the shapes of published models.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

const MODELS: &str = include_str!("../models.toml");

#[derive(Deserialize)]
struct Table {
    model: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The model's names, starting with the published one.
    names: Vec<String>,
    /// Fields of `config.json` that describe the shape. A list for layers may be shorter than the number of layers; it
    /// is then repeated.
    config: Map<String, Value>,
}

static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(MODELS).expect("the table is part of this build and checked by a test"));

/// Lists with one item per layer.
const BY_LAYER: [&str; 4] = ["hybrid_layer_pattern", "indexer_types", "layer_types", "moe_layer_freq"];

/// The published names of all models.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.model.iter().map(|entry| entry.names[0].as_str())
}

/// The names of a model, with and without the publisher.
fn aliases(entry: &'static Entry) -> impl Iterator<Item = &'static str> {
    entry.names.iter().flat_map(|name| [name.as_str(), without_publisher(name)])
}

fn without_publisher(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or_default()
}

fn entry(name: &str) -> Option<&'static Entry> {
    let of = |name: &str| TABLE.model.iter().find(|entry| aliases(entry).any(|known| known.eq_ignore_ascii_case(name)));
    of(name).or_else(|| of(without_publisher(name)))
}

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

/// All published names of the model with this name. Empty if it is not in the table.
pub fn names_of(name: &str) -> &'static [String] {
    entry(name).map_or(&[], |entry| &entry.names)
}

/// Name suffixes that state the format of weights.
const FORMATS: [&str; 8] = ["-awq", "-bf16", "-fp8", "-gptq", "-int4", "-int8", "-mxfp4", "-nvfp4"];

/// A name in lower case without its publisher and format, and the format.
fn stem(name: &str) -> (String, Option<&'static str>) {
    let lower = without_publisher(name).to_lowercase();
    match FORMATS.into_iter().find(|format| lower.ends_with(format)) {
        Some(format) => (lower[..lower.len() - format.len()].to_owned(), Some(format)),
        None => (lower, None),
    }
}

/// The most similar published names: one in the same format, and one in another format.
pub(crate) fn nearest_names(name: &str) -> Vec<String> {
    let (asked, format) = stem(name);
    // A known name that only has more words at the end is similar.
    let distance = |known: &str| if known.starts_with(&asked) { 1 } else { strsim::damerau_levenshtein(&asked, known) };
    let nearest = |is_like: bool| {
        let names = TABLE.model.iter().flat_map(|entry| &entry.names).filter_map(|name| {
            let (known, of) = stem(name);
            let distance = if known == asked { 0 } else { distance(&known) };
            ((of == format) == is_like && distance * 3 <= asked.len().max(3)).then_some((distance, name))
        });
        names.min_by_key(|(distance, _)| *distance)
    };
    let (like, other) = (nearest(true), nearest(false));
    // A less similar name in another format is not suggested, since it probably has another size.
    let limit = like.map_or(usize::MAX, |(distance, _)| distance);
    let mut found: Vec<_> = like.into_iter().chain(other.filter(|(distance, _)| *distance <= limit)).collect();
    found.sort_by_key(|(distance, _)| *distance);
    found.into_iter().map(|(_, name)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_keep_the_format_of_weights() {
        let near = |name| nearest_names(name).join(" ");
        assert_eq!(near("Qwen/Qwen3-32-FP8"), "Qwen/Qwen3-32B-FP8 Qwen/Qwen3-32B");
        assert_eq!(near("Qwen/Qwen3-8B-FP8"), "Qwen/Qwen3-8B Qwen/Qwen3-32B-FP8");
        assert_eq!(near("Llama-3.1-70B-FP8"), "meta-llama/Llama-3.1-70B nvidia/Llama-3.1-70B-Instruct-FP8");
        assert_eq!(near("meta-llama/Llama-3.1-8B-Instrukt"), "meta-llama/Llama-3.1-8B-Instruct");
        assert_eq!(near("nothing-like-it"), "");
    }
}
