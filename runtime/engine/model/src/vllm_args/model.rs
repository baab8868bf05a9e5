//! The model of a command line: its lengths, KV-cache groups and blocks.

use std::path::{Path, PathBuf};

use crate::{DraftMethod, KvPlan, Model, ModelError, Serving};

use crate::vllm_args::ArgumentError;
use crate::vllm_args::Gpu;
use crate::vllm_args::settings::FITS;
use crate::vllm_args::words::Word;
use crate::vllm_args::{Effect, Row, VllmArgs};

/// A model in the deployment that the command line describes.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// The model's layers and weights.
    pub model: Model,
    /// The deployment.
    pub serving: Serving,
    /// The model's KV cache.
    pub kv: KvPlan,
    pub(crate) gpu: Gpu,
}

impl ServedModel {
    /// Number of KV blocks in the GPU's memory. They get `kv_cache_bytes`. If these are not given, they get the part
    /// `utilization` of the memory, less the weights and `other_bytes`.
    pub fn num_gpu_blocks(
        &self,
        utilization: f64,
        other_bytes: u64,
        kv_cache_bytes: Option<u64>,
    ) -> Result<u32, ModelError> {
        if let Some(bytes) = kv_cache_bytes {
            return self.kv.blocks_in(bytes);
        }
        let memory = self.gpu.memory_bytes();
        let left = self.model.memory_left(&self.serving, memory, utilization, other_bytes as f64)?;
        self.kv.blocks_in_stages(&left)
    }
}

impl VllmArgs {
    /// Number of KV blocks that the command line states, or that follow from its model and GPU. None if neither is
    /// known.
    pub fn known_blocks(&self) -> Result<Option<u32>, ModelError> {
        match (self.num_gpu_blocks, &self.served) {
            (None, Some(served)) => {
                served.num_gpu_blocks(self.gpu_memory_utilization, 0, self.kv_cache_memory_bytes).map(Some)
            }
            (stated, _) => Ok(stated),
        }
    }
}

/// The model that the command line names, if it is known.
pub(crate) fn find(
    words: &[Word],
    folder: &Path,
    files: &mut Vec<(String, PathBuf)>,
    errors: &mut Vec<ArgumentError>,
) -> Option<Model> {
    let text = words.iter().rfind(|word| word.argument.name == "--model")?.text();
    read(text, folder, files).unwrap_or_else(|error| {
        errors.push(ArgumentError::Model(error.to_string()));
        None
    })
}

/// The model of a folder with a `config.json`, or with this name in the table. None for any other text.
fn read(text: String, folder: &Path, files: &mut Vec<(String, PathBuf)>) -> Result<Option<Model>, ModelError> {
    let path = folder.join(&text);
    if !path.join("config.json").is_file() {
        return Model::find_named(&text);
    }
    let found = Model::find_any(&path.display().to_string())?;
    files.push((text, path.join("config.json")));
    Ok(found)
}

/// Adds the drafter to the model, if the drafter is known. Otherwise a row reports it.
pub(crate) fn with_drafter(
    args: &mut VllmArgs,
    model: Model,
    folder: &Path,
    files: &mut Vec<(String, PathBuf)>,
    errors: &mut Vec<ArgumentError>,
) -> Model {
    let Some((method, name)) = args.drafter.clone() else { return model };
    let own = match name.clone().map(|name| read(name, folder, files)).transpose() {
        Ok(own) => own.flatten(),
        Err(error) => {
            errors.push(ArgumentError::Model(error.to_string()));
            return model;
        }
    };
    if method != DraftMethod::Mtp && own.is_none() {
        let name = name.unwrap_or_else(|| "without a model".to_owned());
        let result = format!(
            "layers and weights of the drafter are not counted: {name} is neither a folder with a config.json nor in the \
             table of models"
        );
        args.unknown_drafter = Some(result.clone());
        let argument = "--speculative-config".to_owned();
        args.rows.push(Row { argument, value: name, effect: Effect::Default, result });
        return model;
    }
    match model.clone().with_drafter(method, own) {
        Ok(with_drafter) => with_drafter,
        Err(error) => {
            errors.push(ArgumentError::Model(error.to_string()));
            model
        }
    }
}

pub(crate) fn serve(
    args: &mut VllmArgs,
    model: Model,
    gpu: Gpu,
    errors: &mut Vec<ArgumentError>,
) -> Option<ServedModel> {
    match served(args, model, gpu) {
        Ok(served) => Some(served),
        Err(error) => {
            errors.push(ArgumentError::Model(error.to_string()));
            None
        }
    }
}

/// The longest sequence that fits into the memory of all stages (`_auto_fit_max_model_len`).
fn longest_that_fits(
    args: &VllmArgs,
    model: &Model,
    serving: &Serving,
    kv: &KvPlan,
    gpu: Gpu,
) -> Result<u64, ModelError> {
    let bytes: Vec<u64> = match (args.num_gpu_blocks, args.kv_cache_memory_bytes) {
        (Some(blocks), _) => kv.stage_block_bytes.iter().map(|bytes| bytes.saturating_mul(blocks.into())).collect(),
        (None, Some(bytes)) => vec![bytes; kv.stage_block_bytes.len()],
        (None, None) => model.memory_left(serving, gpu.memory_bytes(), args.gpu_memory_utilization, 0.0)?,
    };
    match kv.longest_in_stages(&bytes) {
        0 => Err(ModelError::Memory(format!(
            "Cannot auto-fit max_model_len of {}: not enough GPU memory available to serve even a single token. Try \
             increasing `gpu_memory_utilization`",
            model.name
        ))),
        longest => Ok(longest),
    }
}

fn served(args: &mut VllmArgs, model: Model, gpu: Gpu) -> Result<ServedModel, ModelError> {
    let has = |name: &str| args.rows.iter().any(|row| row.argument == name && row.effect == Effect::Setting);
    let steps = u64::from(args.input.pipeline_parallel_size) + u64::from(args.input.async_scheduling);
    let mut serving = Serving {
        tensor_parallel: args.tensor_parallel_size.into(),
        pipeline_parallel: args.input.pipeline_parallel_size.into(),
        decode_context_parallel: args.input.decode_context_parallel_size.into(),
        prefill_context_parallel: args.prefill_context_parallel_size.into(),
        data_parallel: args.data_parallel_size.into(),
        expert_parallel: args.expert_parallel,
        kv_cache_dtype: args.kv_cache_dtype.clone(),
        block_size: has("--block-size").then_some(args.input.block_size.into()),
        max_model_len: args.input.max_model_len.map(u64::from),
        in_flight_tokens: steps * u64::from(args.input.max_num_batched_tokens),
        quantization: args.quantization.clone(),
        enable_prefix_caching: args.input.enable_prefix_caching,
        num_speculative_tokens: args.input.num_speculative_tokens.into(),
        disable_hybrid_kv_cache_manager: args.disable_hybrid_kv_cache_manager,
        adapter_slots: args.input.max_loras.into(),
        adapter_rank: args.max_lora_rank.into(),
    };
    let mut kv = model.kv_plan(&serving)?;
    if args.fits_model_len {
        let longest = longest_that_fits(args, &model, &serving, &kv, gpu)?;
        serving.max_model_len = Some(longest);
        kv = model.kv_plan(&serving)?;
        let longest = u32::try_from(longest).unwrap_or(u32::MAX);
        args.input.max_model_len = Some(longest);
        args.rows.retain(|row| row.argument != "--max-model-len" || row.effect != Effect::Default);
        for row in args.rows.iter_mut().filter(|row| row.result == FITS) {
            row.result = format!("max_model_len: {longest}, the longest that fits");
        }
    }
    let groups = kv.engine_groups(args.input.rules);
    let block_size = u32::try_from(kv.block_size).unwrap_or(u32::MAX);
    let mut row = |argument: &str, value: String, result: String| {
        args.rows.push(Row { argument: argument.to_owned(), value, effect: Effect::Default, result });
    };
    if serving.block_size.is_none() {
        row(
            "--block-size",
            block_size.to_string(),
            "tokens of a KV block, as the attention of the model takes them".to_owned(),
        );
    }
    if !groups.is_empty() {
        let texts: Vec<String> = groups.iter().map(ToString::to_string).collect();
        row("--model", model.name.clone(), format!("kv_cache_groups: {}", texts.join(", ")));
    }
    args.input.block_size = block_size;
    args.input.kv_cache_groups = groups;
    Ok(ServedModel { model, serving, kv, gpu })
}
