//! Model folders, local or in a Hugging Face cache.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::files::{read_json, read_text};
use crate::{ChatTemplate, TextError, Tokenizer};

/// Sampling defaults of a model, from `generation_config.json`.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(default)]
pub struct GenerationConfig {
    /// Tokens that end an output.
    #[serde(rename = "eos_token_id", deserialize_with = "one_or_many")]
    pub eos_token_ids: Vec<u32>,
    pub temperature: Option<f64>,
    /// Nucleus sampling: total probability of the candidate tokens.
    pub top_p: Option<f64>,
    /// Number of candidate tokens.
    pub top_k: Option<i64>,
    /// Minimum probability of a candidate, relative to the most likely token.
    pub min_p: Option<f64>,
    /// Penalty for repeated tokens.
    pub repetition_penalty: Option<f64>,
    /// Maximum length of an output.
    pub max_new_tokens: Option<u32>,
}

/// Tokenizer, chat template and settings from a model folder.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    /// The folder that holds the files.
    pub path: PathBuf,
    /// The name of a cached model, such as `Qwen/Qwen3-0.6B`.
    pub cached_name: Option<String>,
    pub tokenizer: Tokenizer,
    /// The chat template, if the folder has one.
    pub chat_template: Option<ChatTemplate>,
    /// Sampling defaults.
    pub generation: GenerationConfig,
    /// The longest context that `config.json` allows, as vLLM derives it.
    pub max_model_len: Option<u32>,
    /// The contents of `config.json`, if it exists.
    pub config: Option<Json>,
}

impl ModelFolder {
    /// Reads a local folder, a cached model `models--ORG--NAME`, or one of its snapshots.
    ///
    /// # Errors
    /// When a file is missing, cannot be read or is invalid.
    pub fn load(path: &Path) -> Result<Self, TextError> {
        let path = snapshot(path)?;
        let tokenizer = Tokenizer::from_folder(&path)?;
        let tokenizer_config = read_json(&path.join("tokenizer_config.json"))?;
        let config = read_json(&path.join("config.json"))?;
        let generation = match read_json(&path.join("generation_config.json"))? {
            None => GenerationConfig::default(),
            Some(json) => serde_json::from_value(json).map_err(|error| TextError::Invalid {
                path: path.join("generation_config.json"),
                reason: error.to_string(),
            })?,
        };
        for name in ["vocab_size", "hidden_size"] {
            if stated(config.as_ref(), name) == Some(0) {
                let reason = format!("`{name}` is 0: expected at least 1");
                return Err(TextError::Invalid { path: path.join("config.json"), reason });
            }
        }
        let chat_template = template(&path, tokenizer_config.as_ref(), &tokenizer)?;
        let max_model_len = config.as_ref().and_then(|config| max_model_len(config, tokenizer_config.as_ref()));
        let cached_name = cached_name(&path);
        Ok(Self { path, cached_name, tokenizer, chat_template, generation, max_model_len, config })
    }

    /// The size of a hidden state, if `config.json` has it.
    #[must_use]
    pub fn hidden_size(&self) -> Option<u32> {
        self.stated("hidden_size")
    }

    /// Reads a number from the text part of `config.json`.
    fn stated(&self, name: &str) -> Option<u32> {
        stated(self.config.as_ref(), name)
    }

    /// The vocabulary size in `config.json`, or else the tokenizer's.
    #[must_use]
    pub fn vocab_size(&self) -> u32 {
        self.stated("vocab_size").unwrap_or_else(|| self.tokenizer.vocab_size())
    }

    /// Tokens that end an output: the generation config's, then the tokenizer's.
    #[must_use]
    pub fn eos_token_ids(&self) -> Vec<u32> {
        let mut ids = self.generation.eos_token_ids.clone();
        ids.extend(self.tokenizer.eos_token_ids().iter().filter(|id| !self.generation.eos_token_ids.contains(id)));
        ids
    }
}

fn stated(config: Option<&Json>, name: &str) -> Option<u32> {
    let config = config?;
    let text = config.get("text_config").filter(|text| text.is_object()).unwrap_or(config);
    text.get(name)?.as_u64().and_then(|size| u32::try_from(size).ok())
}

/// Returns the folder that holds the files. For a cached model, this is a snapshot.
fn snapshot(path: &Path) -> Result<PathBuf, TextError> {
    let unreadable = |source| TextError::Unreadable { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(unreadable)?.is_dir() {
        return Err(TextError::Invalid { path: path.to_owned(), reason: "expected a folder".to_owned() });
    }
    let snapshots = path.join("snapshots");
    if !snapshots.is_dir() {
        return Ok(path.to_owned());
    }
    if let Some(revision) = read_text(&path.join("refs/main"))? {
        let named = snapshots.join(revision.trim());
        if named.is_dir() {
            return Ok(named);
        }
    }
    let entries = std::fs::read_dir(&snapshots).map_err(unreadable)?;
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.sort();
    match &found[..] {
        [only] => Ok(only.clone()),
        others => Err(TextError::Missing {
            folder: path.to_owned(),
            file: "refs/main".to_owned(),
            needed: format!("it names one of the {} snapshots; name one as `snapshots/REVISION`", others.len()),
        }),
    }
}

/// Returns `ORG/NAME` for a snapshot below a folder `models--ORG--NAME`.
fn cached_name(path: &Path) -> Option<String> {
    let model = path.parent()?.parent()?.file_name()?.to_str()?;
    model.strip_prefix("models--").map(|name| name.replacen("--", "/", 1))
}

/// Finds the chat template in Transformers' search order.
fn template(folder: &Path, config: Option<&Json>, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, TextError> {
    let in_file = read_text(&folder.join("chat_template.jinja"))?;
    let in_json = match &in_file {
        Some(_) => None,
        None => read_json(&folder.join("chat_template.json"))?.as_ref().and_then(default_template),
    };
    let source = in_file.or(in_json).or_else(|| config.and_then(default_template));
    let compiled = source.map(|source| ChatTemplate::new(&source, tokenizer.special_texts().clone()));
    compiled.transpose().map_err(TextError::from)
}

/// Returns `chat_template` of a config: a string, or the list entry named `default`.
fn default_template(config: &Json) -> Option<String> {
    let template = config.get("chat_template")?;
    let named = |list: &Vec<Json>| {
        let default = list.iter().find(|entry| entry["name"] == "default").or(list.first())?;
        default["template"].as_str().map(str::to_owned)
    };
    template.as_str().map(str::to_owned).or_else(|| template.as_array().and_then(named))
}

/// Keys of `config.json` that hold a maximum length, as in vLLM's `_get_and_verify_max_len`.
const LENGTH_KEYS: [&str; 8] = [
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_seq_length",
    "seq_len",
];

/// Derives the maximum context length as vLLM does: the smallest length in the config, times the factor of a scaled
/// rotary embedding.
fn max_model_len(config: &Json, tokenizer_config: Option<&Json>) -> Option<u32> {
    let text = config.get("text_config").filter(|text| text.is_object()).unwrap_or(config);
    let stated = LENGTH_KEYS.iter().filter_map(|key| text.get(key)?.as_f64()).reduce(f64::min);
    let mut length = stated?;
    let rope = text.get("rope_scaling").or_else(|| text.get("rope_parameters")).filter(|rope| rope.is_object());
    if let Some(rope) = rope {
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Json::as_str).unwrap_or_default();
        let factor = rope.get("factor").and_then(Json::as_f64).unwrap_or(1.0);
        if !["su", "longrope", "llama3"].contains(&kind) {
            if kind == "yarn" {
                length = rope.get("original_max_position_embeddings").and_then(Json::as_f64).unwrap_or(length);
            }
            length *= factor;
        }
    }
    let of_tokenizer = tokenizer_config.and_then(|config| config.get("model_max_length")?.as_f64());
    let length = of_tokenizer.map_or(length, |most| most.min(length));
    (length >= 1.0 && length <= f64::from(u32::MAX)).then_some(length as u32)
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Given {
        One(u32),
        Many(Vec<u32>),
        None,
    }
    Ok(match <Given as serde::Deserialize>::deserialize(deserializer)? {
        Given::One(one) => vec![one],
        Given::Many(many) => many,
        Given::None => Vec::new(),
    })
}
