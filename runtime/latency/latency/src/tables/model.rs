//! Reads the shape of a model from its `config.json`.

mod kv_shape;
mod quantisation;

pub use kv_shape::KvShape;

use std::path::Path;

use serde_json::{Map, Value};

use crate::tables::Dtype;
use crate::tables::error::TablesError;
use crate::tables::files::package::ModelFiles;

/// Architectures that can be priced: transformers whose layers are equal, except for attention windows.
const DENSE: &[&str] =
    &["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MiMoForCausalLM", "Qwen3VLForConditionalGeneration"];
const EXPERTS: &[&str] = &[
    "GptOssForCausalLM",
    "MiniMaxM2ForCausalLM",
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3VLMoeForConditionalGeneration",
];
const LATENT: &[&str] = &["DeepSeekForCausalLM", "DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration"];
/// Architectures that normalise queries and keys, each head separately.
const NORMALISED: &[&str] = &["Qwen3ForCausalLM", "Qwen3MoeForCausalLM"];
/// Architectures that normalise all heads of the queries as one vector, and all heads of the keys as another.
const NORMALISED_AS_ONE: &[&str] = &["MiniMaxM2ForCausalLM"];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dtypes {
    pub(crate) gemm: Dtype,
    pub(crate) moe: Dtype,
    pub(crate) kv_cache: Dtype,
    pub(crate) attention: Dtype,
    pub(crate) latent: Dtype,
    pub(crate) shared: Dtype,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Experts {
    pub(crate) count: u32,
    pub(crate) per_token: u32,
    pub(crate) intermediate_size: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norms {
    /// Each head separately.
    OfEach,
    /// All heads as one vector, which tensor parallelism divides.
    OfAll,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attention {
    /// Separate keys and values. Groups of heads share them.
    Grouped {
        /// Number of layers with a window, and tokens of the window.
        windowed: Option<(u32, u32)>,
        normalised: Option<Norms>,
    },
    /// A compressed latent vector (MLA).
    Latent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LatentSizes {
    /// Size of compressed queries. None if queries are not compressed.
    pub(crate) query_rank: Option<u32>,
    pub(crate) kv_rank: u32,
    pub(crate) rope_head_dim: u32,
    pub(crate) nope_head_dim: u32,
    pub(crate) value_head_dim: u32,
}

impl LatentSizes {
    /// None if the file lacks a size. Prices do not need the sizes.
    fn read(fields: Fields<'_>) -> Result<Option<Self>, TablesError> {
        let [kv_rank, rope, nope, value] =
            [["kv_lora_rank"], ["qk_rope_head_dim"], ["qk_nope_head_dim"], ["v_head_dim"]]
                .map(|name| fields.count(&name));
        let (Some(kv_rank), Some(rope_head_dim), Some(nope_head_dim), Some(value_head_dim)) =
            (kv_rank?, rope?, nope?, value?)
        else {
            return Ok(None);
        };
        let query_rank = fields.count(&["q_lora_rank"])?;
        Ok(Some(Self { query_rank, kv_rank, rope_head_dim, nope_head_dim, value_head_dim }))
    }
}

/// The properties of a model that affect its time and memory.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) layers: u32,
    pub(crate) hidden_size: u32,
    pub(crate) intermediate_size: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) vocab_size: u32,
    /// Whether the output head and the embedding share weights.
    pub(crate) is_tied: bool,
    pub(crate) experts: Option<Experts>,
    /// Number of experts in each layer that process every token.
    pub(crate) shared_experts: u32,
    /// Number of first layers without experts. They are priced like the others.
    pub(crate) dense_layers: u32,
    pub(crate) attention: Attention,
    pub(crate) latent_sizes: Option<LatentSizes>,
    pub(crate) dtypes: Dtypes,
}

/// A JSON object in a file. Errors name the file and the field.
#[derive(Clone, Copy)]
struct Fields<'a> {
    path: &'a Path,
    map: &'a Map<String, Value>,
}

impl Fields<'_> {
    /// The first of the named fields that is neither absent nor null.
    fn find(&self, names: &[&str]) -> Option<(String, &Value)> {
        let value = |name: &&str| Some(((*name).to_owned(), self.map.get(*name).filter(|value| !value.is_null())?));
        names.iter().find_map(value)
    }

    fn wrong(&self, name: &str, value: &Value) -> TablesError {
        let reason = format!("`{name}` is {value}: expected a whole number from 1 to {}", u32::MAX);
        TablesError::file(self.path, reason)
    }

    /// A number above 0, from the first of the named fields that exists.
    fn count(&self, names: &[&str]) -> Result<Option<u32>, TablesError> {
        let Some((name, value)) = self.find(names) else { return Ok(None) };
        match value.as_u64().map(u32::try_from) {
            Some(Ok(0)) => Ok(None),
            Some(Ok(count)) => Ok(Some(count)),
            _ => Err(self.wrong(&name, value)),
        }
    }

    fn required(&self, names: &[&str]) -> Result<u32, TablesError> {
        self.count(names)?
            .ok_or_else(|| TablesError::file(self.path, format!("expected a field `{}` above 0", names[0])))
    }

    fn kv_heads(&self, heads: u32) -> Result<u32, TablesError> {
        let is_shared = |name| self.map.get(name).and_then(Value::as_bool) == Some(true);
        let alone = is_shared("multi_query") && !is_shared("new_decoder_architecture");
        let stated = self.count(&["num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"])?;
        Ok(stated.unwrap_or(if alone { 1 } else { heads }))
    }

    fn head_dim(&self, heads: u32) -> Result<u32, TablesError> {
        match self.count(&["head_dim"])? {
            Some(head_dim) => Ok(head_dim),
            None => Ok((self.required(&["hidden_size", "n_embd"])? / heads).max(1)),
        }
    }
}

impl Model {
    /// Reads the files of a model.
    ///
    /// # Errors
    /// If they cannot be read, a field is missing or invalid, or the architecture cannot be priced.
    pub(crate) fn read(name: &str, files: &ModelFiles) -> Result<Self, TablesError> {
        let path = &files.config;
        let config = object(path)?;
        let architecture = config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        let Some(architecture) = architecture else {
            return Err(TablesError::file(path, "expected a field `architectures` with a text"));
        };
        let text = config.get("text_config").and_then(Value::as_object).unwrap_or(&config);
        let fields = Fields { path, map: text };
        let is_latent = LATENT.contains(&architecture);
        let has_experts = is_latent || EXPERTS.contains(&architecture);
        if !has_experts && !DENSE.contains(&architecture) {
            let known: Vec<&str> = [DENSE, EXPERTS, LATENT].concat();
            let reason =
                format!("architecture `{architecture}` cannot be priced: expected one of {}", known.join(", "));
            return Err(TablesError::file(path, reason));
        }
        let layers = fields.required(&["num_hidden_layers"])?;
        let hidden_size = fields.required(&["hidden_size"])?;
        let heads = fields.required(&["num_attention_heads"])?;
        let intermediate_size = fields.required(&["intermediate_size", "moe_intermediate_size"])?;
        let experts = if has_experts {
            Some(Experts {
                count: fields.required(&["num_local_experts", "n_routed_experts", "num_experts"])?,
                per_token: fields.required(&["num_experts_per_tok", "experts_per_token"])?,
                intermediate_size: fields.count(&["moe_intermediate_size"])?.unwrap_or(intermediate_size),
            })
        } else {
            None
        };
        let windowed = if architecture == "GptOssForCausalLM" {
            fields.count(&["sliding_window"])?.map(|window| (layers / 2, window))
        } else {
            None
        };
        let normalised = if NORMALISED.contains(&architecture) {
            Some(Norms::OfEach)
        } else {
            NORMALISED_AS_ONE.contains(&architecture).then_some(Norms::OfAll)
        };
        let attention = if is_latent { Attention::Latent } else { Attention::Grouped { windowed, normalised } };
        let quantised = object_if_any(&files.quantisation)?;
        Ok(Self {
            name: name.to_owned(),
            layers,
            hidden_size,
            intermediate_size,
            heads,
            kv_heads: fields.kv_heads(heads)?,
            head_dim: fields.head_dim(heads)?,
            vocab_size: fields.required(&["vocab_size"])?,
            is_tied: text.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
            experts,
            shared_experts: fields.count(&["n_shared_experts"])?.unwrap_or(0),
            dense_layers: fields.count(&["first_k_dense_replace"])?.unwrap_or(0),
            attention,
            latent_sizes: if is_latent { LatentSizes::read(fields)? } else { None },
            dtypes: quantisation::dtypes(path, &config, text, quantised.as_ref())?,
        })
    }
}

fn object_if_any(path: &Path) -> Result<Option<Map<String, Value>>, TablesError> {
    if path.is_file() { object(path).map(Some) } else { Ok(None) }
}

fn object(path: &Path) -> Result<Map<String, Value>, TablesError> {
    let text = vcr_base::input::read_text(path, vcr_base::input::MAX_CONFIG_BYTES)
        .map_err(|error| TablesError::file(path, format!("cannot read it: {error}")))?;
    serde_json::from_str(&text).map_err(|error| TablesError::file(path, error.to_string()))
}
