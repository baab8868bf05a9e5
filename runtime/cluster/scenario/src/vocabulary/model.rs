//! `model("NAME")`: a model's layers, KV cache groups, weights and KV blocks.

use std::sync::Arc;

use rhai::{Array, Dynamic, Engine, ImmutableString, Map, NativeCallContext};
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_core::{EngineConfigInput, SchedulerRules};
use vcr_model::vllm_args::{GPUS, Gpu};
use vcr_model::{DraftMethod, KvPlan, Model, ModelError, Serving, WeightFormat};
use vcr_roofline::LayeredSpec;

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::Options;
use crate::vocabulary::engine::memory::MemoryPlan;

const FUNCTION: &str = "model";

#[derive(Clone)]
pub(crate) struct ModelSpec {
    model: Arc<Model>,
    serving: Arc<Serving>,
    kv: Arc<KvPlan>,
    weight_bytes: f64,
    gpu: Option<&'static str>,
    /// Number of KV blocks, if the GPU's memory is known.
    num_gpu_blocks: Option<u32>,
}

impl ModelSpec {
    /// A model from the table on this many GPUs, otherwise with the defaults of `vllm serve`.
    pub(crate) fn of_table(name: &str, tensor_parallel: u64) -> Result<Self, String> {
        let serving = Serving { tensor_parallel, ..Serving::default() };
        let of = || -> Result<Self, ModelError> {
            let model = Model::find(name)?;
            let kv = model.kv_plan(&serving)?;
            let weight_bytes = model.weight_bytes(&serving)?;
            let (model, kv) = (Arc::new(model), Arc::new(kv));
            Ok(Self { model, serving: Arc::new(serving.clone()), kv, weight_bytes, gpu: None, num_gpu_blocks: None })
        };
        of().map_err(|error| error.to_string())
    }

    pub(crate) fn weight_bytes(&self) -> f64 {
        self.weight_bytes
    }

    pub(crate) fn kv_bytes_per_token(&self) -> f64 {
        self.kv.bytes_per_token()
    }

    /// Whether all layers form one KV cache group with full attention.
    pub(crate) fn has_one_group(&self) -> bool {
        self.kv.engine_groups(SchedulerRules::V0_33).is_empty()
    }

    /// The model's name in the table, or its file.
    pub(crate) fn name(&self) -> &str {
        &self.model.name
    }

    pub(crate) fn serving(&self) -> &Serving {
        &self.serving
    }

    pub(crate) fn gpu(&self) -> Option<&'static str> {
        self.gpu
    }

    pub(crate) fn work(&self) -> Result<LayeredSpec, ModelError> {
        self.model.work(&self.serving)
    }

    /// Format of the largest part of the weights.
    pub(crate) fn weight_format(&self) -> Result<WeightFormat, ModelError> {
        self.model.weight_format(&self.serving)
    }

    /// Applies the model's properties to an engine.
    pub(crate) fn apply(&self, options: &mut Options<'_>, input: &mut EngineConfigInput, is_auto: bool) {
        input.kv_cache_groups = self.kv.engine_groups(input.rules);
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        input.block_size = number(self.kv.block_size);
        input.max_model_len = Some(number(self.kv.max_model_len));
        input.pipeline_parallel_size = number(self.serving.pipeline_parallel);
        input.decode_context_parallel_size = number(self.serving.decode_context_parallel);
        if let Some(drafter) = self.model.drafter(self.serving.num_speculative_tokens) {
            input.drafter = drafter;
            input.num_speculative_tokens = number(self.serving.num_speculative_tokens);
        }
        match self.num_gpu_blocks {
            Some(_) if is_auto => {
                options.problem("num_gpu_blocks", "the number follows from `model`: leave `num_gpu_blocks` out");
            }
            Some(blocks) => input.num_gpu_blocks = blocks,
            None => {}
        }
    }
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let shared = Arc::clone(context);
    engine.register_fn(FUNCTION, move |call: NativeCallContext<'_>, name: ImmutableString| {
        make(&shared, &name, Options::new(FUNCTION, &shared.source, &call, Map::new()))
    });
    let shared = Arc::clone(context);
    engine.register_fn(FUNCTION, move |call: NativeCallContext<'_>, name: ImmutableString, options: Map| {
        make(&shared, &name, Options::new(FUNCTION, &shared.source, &call, options))
    });
    engine.register_get("name", |spec: &mut ModelSpec| spec.model.name.clone());
    engine.register_get("architecture", |spec: &mut ModelSpec| spec.model.architecture.clone());
    engine.register_get("layers", |spec: &mut ModelSpec| spec.model.layers.len() as i64);
    engine.register_get("max_model_len", |spec: &mut ModelSpec| spec.kv.max_model_len as i64);
    engine.register_get("block_size", |spec: &mut ModelSpec| spec.kv.block_size as i64);
    engine.register_get("bytes_per_block", |spec: &mut ModelSpec| spec.kv.bytes_per_block as i64);
    engine.register_get("kv_bytes_per_token", |spec: &mut ModelSpec| spec.kv.bytes_per_token() as i64);
    engine.register_get("weight_bytes", |spec: &mut ModelSpec| spec.weight_bytes as i64);
    engine.register_get("num_gpu_blocks", |spec: &mut ModelSpec| {
        spec.num_gpu_blocks.map_or(Dynamic::UNIT, |blocks| i64::from(blocks).into())
    });
    engine.register_get("kv_cache_groups", |spec: &mut ModelSpec| -> Array {
        let groups = spec.kv.engine_groups(SchedulerRules::V0_33);
        groups.iter().map(|group| group.to_string().into()).collect()
    });
}

/// Makes the model of a name or path with its serving settings.
fn make(context: &Context, name: &str, mut options: Options<'_>) -> Scripted<ModelSpec> {
    let default = Serving::default();
    let serving = Serving {
        tensor_parallel: options.u64("tensor_parallel").unwrap_or(default.tensor_parallel),
        pipeline_parallel: options.u64("pipeline_parallel").unwrap_or(default.pipeline_parallel),
        decode_context_parallel: options.u64("decode_context_parallel").unwrap_or(default.decode_context_parallel),
        prefill_context_parallel: options.u64("prefill_context_parallel").unwrap_or(default.prefill_context_parallel),
        data_parallel: options.u64("data_parallel").unwrap_or(default.data_parallel),
        expert_parallel: options.boolean("expert_parallel").unwrap_or(default.expert_parallel),
        kv_cache_dtype: options.string("kv_cache_dtype").unwrap_or(default.kv_cache_dtype),
        block_size: options.u64("block_size"),
        max_model_len: options.u64("max_model_len"),
        in_flight_tokens: options.u64("in_flight_tokens").unwrap_or(default.in_flight_tokens),
        quantization: options.string("quantization"),
        enable_prefix_caching: options.boolean("enable_prefix_caching").unwrap_or(default.enable_prefix_caching),
        num_speculative_tokens: options.u64("num_speculative_tokens").unwrap_or(default.num_speculative_tokens),
        disable_hybrid_kv_cache_manager: options.boolean("disable_hybrid_kv_cache_manager").unwrap_or(false),
        adapter_slots: options.u64("max_loras").unwrap_or(default.adapter_slots),
        adapter_rank: options.u64("max_lora_rank").unwrap_or(default.adapter_rank),
    };
    let (gpu, gpu_memory) = gpu(&mut options);
    let plan = MemoryPlan::default().with_options(&mut options);
    let drafter = drafter(context, &mut options);
    let found = find(context, name).and_then(|model| {
        let model = match drafter {
            Some((method, own)) => model.with_drafter(method, own?).map_err(|error| error.to_string())?,
            None => model,
        };
        let kv = model.kv_plan(&serving).map_err(|error| error.to_string())?;
        let weight_bytes = model.weight_bytes(&serving).map_err(|error| error.to_string())?;
        let blocks = match (plan.kv_cache_bytes, gpu_memory) {
            (Some(bytes), _) => Some(kv.blocks_in(bytes)),
            (None, Some(memory)) => {
                let left = model.memory_left(&serving, memory, plan.utilization, plan.activation_bytes as f64);
                Some(left.and_then(|left| kv.blocks_in_stages(&left)))
            }
            (None, None) => None,
        };
        let blocks = blocks.transpose().map_err(|error| error.to_string())?;
        Ok(ModelSpec {
            model: Arc::new(model),
            serving: Arc::new(serving),
            kv: Arc::new(kv),
            weight_bytes,
            gpu,
            num_gpu_blocks: blocks,
        })
    });
    if let Err(problem) = &found {
        options.problem_at(options.call_position(), problem.clone());
    }
    options.finish()?;
    Ok(found.expect("a model that cannot be used is a problem of the options"))
}

/// Finds the model. Relative paths start at the script's folder.
fn find(context: &Context, name: &str) -> Result<Model, String> {
    let path = context.resolve(name);
    let found = if path.exists() {
        context.reads(&path).map_err(|thrown| thrown.message)?;
        context.state().inputs.named("model", name, path.clone());
        Model::find(&path.display().to_string())
    } else {
        Model::find(name)
    };
    found.map_err(|error| error.to_string())
}

/// Reads the options `drafter` and `draft_model`: vLLM's method, and the model of the drafter.
fn drafter(context: &Context, options: &mut Options<'_>) -> Option<(DraftMethod, Result<Option<Model>, String>)> {
    let (name, own) = (options.string("drafter"), options.string("draft_model"));
    let Some(name) = name else {
        if own.is_some() {
            let expected = format!("`draft_model` needs `drafter`: expected {}", DraftMethod::expected());
            options.problem("draft_model", expected);
        }
        return None;
    };
    let method = DraftMethod::of_name(&name);
    if method.is_none() {
        options.problem("drafter", format!("invalid `drafter` \"{name}\": expected {}", DraftMethod::expected()));
    }
    Some((method?, own.map(|own| find(context, &own)).transpose()))
}

/// Reads the options `gpu` and `gpu_memory`: the name of a known GPU, and the memory.
fn gpu(options: &mut Options<'_>) -> (Option<&'static str>, Option<f64>) {
    let stated = options.bytes("gpu_memory").map(|bytes| bytes as f64);
    let Some(name) = options.string("gpu") else { return (None, stated) };
    let found = Gpu::named(&name);
    if found.is_none() && stated.is_none() {
        let names = GPUS.iter().map(|gpu| gpu.name);
        let hint = match nearest(&name, names.clone()) {
            Some(near) => did_you_mean(near),
            None => format!("expected one of {}", names.collect::<Vec<_>>().join(", ")),
        };
        options
            .problem("gpu", format!("`gpu` is \"{name}\", whose memory is not known; {hint}, or state `gpu_memory`"));
    }
    (found.map(|gpu| gpu.name), stated.or(found.map(Gpu::memory_bytes)))
}
