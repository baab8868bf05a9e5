//! A model, read from its `config.json` or from the table.

use std::path::Path;

use serde_json::{Map, Value};

use crate::draft::{Draft, HeadSizes, Target};
use crate::error::{ModelError, gib};
use crate::fields::Fields;
use crate::kv::KvPlan;
use crate::layers::architecture::Architecture;
use crate::layers::{FeedForward, Layer, Mixer, State};
use crate::quantisation::{Formats, WeightFormat, plain_bytes};
use crate::serving::{Serving, Shape};
use crate::table;
use crate::weights::{self, Sizes};

/// Types of RoPE scaling that `max_position_embeddings` already includes.
const SCALED_ALREADY: [&str; 6] = ["su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"];

/// The properties of a model that determine its weights and its KV.
#[derive(Clone, Debug)]
pub struct Model {
    /// The name in the table, or the file.
    pub name: String,
    pub architecture: String,
    pub layers: Vec<Layer>,
    /// Longest sequence in tokens.
    pub max_model_len: u64,
    /// Width of the hidden state.
    pub hidden_size: u64,
    /// Number of tokens in the vocabulary.
    pub vocab_size: u64,
    /// Number of multi-token-prediction modules, if the file states it.
    pub mtp_modules: Option<u64>,
    pub(crate) sizes: Sizes,
    pub(crate) formats: Formats,
    pub(crate) plain_bytes: u64,
    pub(crate) head_sizes: HeadSizes,
    pub(crate) draft: Option<Draft>,
}

impl Model {
    /// Finds a model by its name in the table, its `config.json`, or a folder with a `config.json`.
    ///
    /// # Errors
    /// If there is no such model, or a field is missing, invalid or unknown.
    pub fn find(text: &str) -> Result<Self, ModelError> {
        match Self::find_any(text)? {
            Some(model) => Ok(model),
            None => Err(ModelError::Unknown { name: text.to_owned(), hints: table::nearest_names(text) }),
        }
    }

    /// Like [`Model::find`]. None if the text is neither a path nor a name in the table.
    pub fn find_any(text: &str) -> Result<Option<Self>, ModelError> {
        let path = Path::new(text);
        if path.is_dir() {
            return Self::read(&path.join("config.json")).map(Some);
        }
        if path.is_file() || text.ends_with(".json") {
            return Self::read(path).map(Some);
        }
        Self::find_named(text)
    }

    /// The model with this name in the table, if there is one.
    pub fn find_named(name: &str) -> Result<Option<Self>, ModelError> {
        table::find(name).map(|(name, config)| Self::of(&name, &config, None)).transpose()
    }

    /// Reads a `config.json`, and `hf_quant_config.json` if it is in the same folder.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let config = object(path)?;
        let separate = path.with_file_name("hf_quant_config.json");
        let separate = if separate.is_file() { Some(object(&separate)?) } else { None };
        Self::of(&path.display().to_string(), &config, separate.as_ref())
    }

    /// Parses a `config.json`. Errors name it as `place`.
    pub fn parse(place: &str, text: &str) -> Result<Self, ModelError> {
        Self::of(place, &object_of(place, text)?, None)
    }

    pub(crate) fn of(
        place: &str,
        config: &Map<String, Value>,
        separate: Option<&Map<String, Value>>,
    ) -> Result<Self, ModelError> {
        let whole = Fields { place, map: config };
        let name = config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        let name = name.ok_or_else(|| whole.missing("architectures"))?;
        let architecture = Architecture::named(place, name)?;
        // Models with image encoders have a separate section for their language model.
        let fields = Fields { place, map: whole.object("text_config").unwrap_or(config) };
        let layers = architecture.layers(fields)?;
        let hidden_size = fields.required(&["hidden_size"])?;
        let vocab_size = fields.required(&["vocab_size"])?;
        let is_tied = [fields, whole].iter().find_map(|fields| fields.map.get("tie_word_embeddings")?.as_bool());
        let dtype = [fields, whole].iter().find_map(|fields| fields.text(&["dtype", "torch_dtype"]));
        let dtype = dtype.unwrap_or("bfloat16");
        // vLLM computes in 16 bits even if the weights are stored in 32.
        let plain_bytes = plain_bytes(dtype)
            .ok_or_else(|| fields.wrong("dtype", &dtype.into(), "bfloat16, float16 or float32"))?
            .min(2);
        Ok(Self {
            name: place.to_owned(),
            architecture: name.to_owned(),
            layers,
            max_model_len: longest(fields)?,
            hidden_size,
            vocab_size,
            mtp_modules: fields.count(&["num_nextn_predict_layers", "mtp_num_hidden_layers"])?,
            sizes: Sizes::new(hidden_size, vocab_size, is_tied, architecture),
            formats: Formats::read(fields, config, separate, plain_bytes)?,
            plain_bytes,
            head_sizes: HeadSizes::read(fields)?,
            draft: None,
        })
    }

    /// Whether the model has Mamba layers, which can keep states at the ends of all blocks.
    #[must_use]
    pub fn has_mamba(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.mixer, Mixer::State(State::Mamba { .. })))
    }

    /// Bytes of weights on each GPU of the largest stage. This includes the drafter, but not norms, biases
    /// and image encoders.
    pub fn weight_bytes(&self, serving: &Serving) -> Result<f64, ModelError> {
        Ok(self.stage_weight_bytes(serving)?.into_iter().fold(0.0, f64::max))
    }

    /// Bytes of weights on each GPU, by stage.
    pub fn stage_weight_bytes(&self, serving: &Serving) -> Result<Vec<f64>, ModelError> {
        serving.check(self.shape())?;
        let mut stages = weights::bytes(self.sizes, &self.layers, self.formats(serving)?, serving);
        // The drafter is on the last stage.
        if let Some((draft, last)) = self.draft.as_ref().zip(stages.last_mut()) {
            *last += draft.bytes(self.target(serving)?, serving);
        }
        let adapters = self.adapter_bytes(serving);
        stages.iter_mut().zip(adapters).for_each(|(stage, bytes)| *stage += bytes * serving.adapter_slots as f64);
        Ok(stages)
    }

    /// Bytes of an adapter on each GPU, by stage, for the rank in `serving`. Counts attention and dense
    /// networks.
    #[must_use]
    pub fn adapter_bytes(&self, serving: &Serving) -> Vec<f64> {
        let each = weights::adapter(self.sizes, &self.layers, serving);
        let bytes = serving.adapter_rank as f64 * self.plain_bytes as f64;
        each.into_iter().map(|numbers| numbers * bytes).collect()
    }

    /// Weight format of the experts if there are any, otherwise of the dense networks.
    pub fn weight_format(&self, serving: &Serving) -> Result<WeightFormat, ModelError> {
        let formats = self.formats(serving)?;
        let has_experts = self.layers.iter().any(|layer| matches!(layer.feed_forward, FeedForward::Experts(_)));
        Ok(if has_experts { formats.experts } else { formats.dense })
    }

    pub(crate) fn shape(&self) -> Shape<'_> {
        Shape {
            name: &self.name,
            layers: &self.layers,
            draft: self.draft.as_ref().map(Draft::shape),
            max_model_len: self.max_model_len,
            plain_bytes: self.plain_bytes,
            has_fp8_kv_cache: self.formats.has_fp8_kv_cache,
        }
    }

    /// The model as its drafter sees it.
    pub(crate) fn target(&self, serving: &Serving) -> Result<Target, ModelError> {
        let splits_projection = self.architecture.starts_with("Qwen3");
        Ok(Target { sizes: self.sizes, formats: self.formats(serving)?, splits_projection })
    }

    pub(crate) fn formats(&self, serving: &Serving) -> Result<Formats, ModelError> {
        match &serving.quantization {
            Some(method) => self.formats.quantised(method),
            None => Ok(self.formats),
        }
    }

    /// The model's KV cache in this deployment.
    pub fn kv_plan(&self, serving: &Serving) -> Result<KvPlan, ModelError> {
        serving.check(self.shape())?;
        KvPlan::of(self.shape(), serving)
    }

    /// Memory left for KV blocks on one GPU, by stage.
    pub fn memory_left(
        &self,
        serving: &Serving,
        gpu_bytes: f64,
        utilization: f64,
        other_bytes: f64,
    ) -> Result<Vec<u64>, ModelError> {
        let stages = self.stage_weight_bytes(serving)?;
        let left = |weights: &f64| gpu_bytes * utilization - weights - other_bytes;
        if stages.iter().all(|weights| left(weights) > 0.0) {
            return Ok(stages.iter().map(|weights| left(weights) as u64).collect());
        }
        let weights = stages.into_iter().fold(0.0, f64::max);
        let other = if other_bytes > 0.0 { format!(" and {} besides", gib(other_bytes)) } else { String::new() };
        Err(ModelError::Memory(format!(
            "No available memory for the cache blocks: {} has {} of weights on each of {} GPUs{other}, but {} x {} of \
             gpu_memory_utilization is {}; raise tensor_parallel, or take a larger GPU or smaller weights",
            self.name,
            gib(weights),
            serving.tensor_parallel * serving.pipeline_parallel * serving.prefill_context_parallel,
            gib(gpu_bytes),
            utilization,
            gib(gpu_bytes * utilization)
        )))
    }
}

/// Longest sequence, derived as in vLLM (`_get_and_verify_max_len`).
fn longest(fields: Fields<'_>) -> Result<u64, ModelError> {
    let positions = fields.required(&["max_position_embeddings", "n_positions", "max_seq_len", "seq_length"])?;
    let scaling = fields.object("rope_scaling").or_else(|| fields.object("rope_parameters"));
    let Some(scaling) = scaling else { return Ok(positions) };
    let kind = scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(Value::as_str).unwrap_or("default");
    let factor = scaling.get("factor").and_then(Value::as_f64).unwrap_or(1.0);
    // In Gemma 3, `max_position_embeddings` already includes the scaling.
    let is_scaled = fields.text(&["model_type"]).is_some_and(|kind| kind.contains("gemma3"));
    if is_scaled || kind == "default" || SCALED_ALREADY.contains(&kind) || !(1.0..=1e6).contains(&factor) {
        return Ok(positions);
    }
    Ok((positions as f64 * factor) as u64)
}

fn object(path: &Path) -> Result<Map<String, Value>, ModelError> {
    let place = path.display().to_string();
    match vcr_base::input::read_text(path, vcr_base::input::MAX_CONFIG_BYTES) {
        Ok(text) => object_of(&place, &text),
        Err(error) => Err(ModelError::File { place, reason: error.to_string() }),
    }
}

fn object_of(place: &str, text: &str) -> Result<Map<String, Value>, ModelError> {
    serde_json::from_str(text).map_err(|error| ModelError::File {
        place: place.to_owned(),
        reason: format!("expected a JSON object: {error}"),
    })
}
