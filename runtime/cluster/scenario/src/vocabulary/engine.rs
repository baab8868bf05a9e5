//! Engines: their schedulers and settings.

pub(crate) mod adapters;
pub(crate) mod compat;
pub(super) mod memory;
pub(super) mod overheads;
pub(crate) mod policy;
pub(crate) mod served;
pub(crate) mod tiers;

use std::sync::Arc;

use rhai::{Array, Dynamic};
use vcr_cluster::{KvEviction, Overheads, PolicyFactory};
use vcr_core::sglang::{self, SglangConfig, SglangConfigInput};
use vcr_core::ticks::{self, TickConfig, TickConfigInput};
use vcr_core::{
    ACCEPTANCE_RATES, AdapterCosts, CapacityPolicy, ConfigError, DraftRange, EngineConfig, EngineConfigInput,
    EngineKind, EngineOption, KV_CACHE_GROUPS, KvCacheGroup, NamedValue as _, OPTIONS, OptionValue, option,
};
use vcr_model::vllm_args::VllmArgs;

use crate::script::error::Scripted;
use crate::script::options::{Options, as_text};
use crate::vocabulary::engine::memory::{MemoryPlan, ModelMemory};
use crate::vocabulary::engine::tiers::TiersSpec;
use crate::vocabulary::model::ModelSpec;
use crate::vocabulary::placement::Placement;

#[derive(Clone)]
pub(crate) struct EngineSpec {
    pub(crate) kind: EngineKind,
    pub(crate) policy: Option<PolicyFactory>,
    pub(crate) acceptance_rates: Vec<f64>,
    pub(crate) kv_eviction: KvEviction,
    pub(crate) memory: MemoryPlan,
    /// Overheads that override those of the latency model.
    pub(crate) overheads: Option<Overheads>,
    /// Settings of an engine whose `num_gpu_blocks` is computed from its model later.
    auto_blocks: Option<EngineConfigInput>,
    pub(crate) served: Option<Arc<VllmArgs>>,
    model: Option<ModelSpec>,
}

impl Default for EngineSpec {
    fn default() -> Self {
        let config = EngineConfig::new(EngineConfigInput::default()).expect("the defaults are valid");
        Self {
            kind: config.into(),
            policy: None,
            acceptance_rates: Vec::new(),
            kv_eviction: KvEviction::default(),
            memory: MemoryPlan::default(),
            overheads: None,
            auto_blocks: None,
            served: None,
            model: None,
        }
    }
}

impl EngineSpec {
    /// The GPUs of the engine's model, if stated.
    pub(crate) fn placement(&self) -> Option<Placement> {
        match (&self.model, &self.served) {
            (Some(model), _) => Some(Placement::of_model("engine", model)),
            (None, Some(args)) => Some(Placement::of_args(served::FUNCTION, args)),
            (None, None) => None,
        }
    }

    /// Combines the engine with the memory of its model. Fails if the model is larger than its GPUs. With
    /// `num_gpu_blocks: "auto"`, the engine gets as many KV blocks as fit.
    pub(crate) fn beside(self, model: Option<&ModelMemory>) -> Result<Self, String> {
        model.map(|model| model.available_bytes(&self.memory)).transpose()?;
        let Some(input) = self.auto_blocks else { return Ok(self) };
        let Some(model) = model else {
            let needs = "`num_gpu_blocks: \"auto\"` needs a latency model with the model and the memory of the GPU";
            return Err(format!(
                "{needs}: `tables`, or `roofline` or `trained_physics` with a `gpu` or with \
                         `gpu_memory`; else state the number"
            ));
        };
        if input.pipeline_parallel_size > 1 {
            let text = "`num_gpu_blocks: \"auto\"` counts the layers and weights of one stage: with \
                        `pipeline_parallel_size` above 1 say `model: model(\"NAME\", #{ pipeline_parallel: ... })`, or \
                        state the number";
            return Err(text.to_owned());
        }
        let num_gpu_blocks = model.num_gpu_blocks(&self.memory, input.block_size)?;
        let config = EngineConfig::new(EngineConfigInput { num_gpu_blocks, ..input });
        let checked = config.and_then(|config| config.check_start_up().map(|()| config));
        let config = checked.map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            format!("with `num_gpu_blocks: \"auto\"`, here {num_gpu_blocks}: {}", lines.join("; "))
        })?;
        Ok(Self { kind: config.into(), auto_blocks: None, ..self })
    }
}

#[derive(Clone, Copy, Default)]
enum EngineType {
    #[default]
    Vllm,
    Sglang,
    Trtllm,
    Ticks,
}

const TYPES: &[(&str, EngineType)] = &[
    ("vllm", EngineType::Vllm),
    ("sglang", EngineType::Sglang),
    ("trtllm", EngineType::Trtllm),
    ("ticks", EngineType::Ticks),
];

const TRTLLM_BLOCK_SIZE_TOKENS: u32 = 32;

pub(crate) fn make(mut options: Options<'_>) -> Scripted<EngineSpec> {
    let mut policy = None;
    let model = options.peek::<ModelSpec>("model");
    let is_auto = options.take_if("num_gpu_blocks", |value| as_text(value).as_deref() == Some("auto")).is_some();
    let mut memory = MemoryPlan { utilization: 1.0, ..MemoryPlan::default() };
    let made = match options.choice("engine_type", TYPES).unwrap_or_default() {
        EngineType::Vllm => {
            options.accept_former_name("vllm_line", "vllm_minor");
            let version = options.string("vllm_minor");
            let rules = version.map(|version| compat::check_version(&version, &mut options)).unwrap_or_default();
            policy = policy::option(&mut options);
            let own = EngineConfigInput {
                policy: policy.as_ref().map(|spec| spec.policy).unwrap_or_default(),
                rules,
                ..EngineConfigInput::default()
            };
            memory = MemoryPlan::default().of_engine(&mut options, is_auto);
            vllm(&mut options, own, is_auto)
        }
        EngineType::Trtllm => {
            memory = MemoryPlan::default().of_engine(&mut options, is_auto);
            let own = EngineConfigInput {
                block_size: TRTLLM_BLOCK_SIZE_TOKENS,
                capacity: CapacityPolicy::GuaranteedNoEvict,
                ..EngineConfigInput::default()
            };
            vllm(&mut options, own, is_auto)
        }
        EngineType::Sglang => {
            if is_auto {
                options.problem("num_gpu_blocks", "engines of SGLang have `num_pages`, which is a number");
            }
            sglang(&mut options)
        }
        EngineType::Ticks => {
            if is_auto {
                options.problem("num_gpu_blocks", "engines that schedule by ticks have `total_kv_pages`, a number");
            }
            ticks(&mut options)
        }
    };
    let read = Read { made, policy: policy.and_then(|spec| spec.factory), memory, is_auto, served: None, model };
    read.finish(options)
}

/// An engine with its scheduler settings, before the common options are read.
struct Read {
    made: Result<EngineKind, Vec<ConfigError>>,
    policy: Option<PolicyFactory>,
    memory: MemoryPlan,
    is_auto: bool,
    served: Option<Arc<VllmArgs>>,
    model: Option<ModelSpec>,
}

impl Read {
    /// Reads the options that all schedulers have.
    fn finish(self, mut options: Options<'_>) -> Scripted<EngineSpec> {
        let Self { made, policy, memory, is_auto, served, model } = self;
        let rates = options.array(ACCEPTANCE_RATES.name).unwrap_or_default();
        let acceptance_rates: Vec<f64> = rates.iter().filter_map(crate::script::options::as_number).collect();
        if acceptance_rates.len() < rates.len() {
            options.problem(ACCEPTANCE_RATES.name, "invalid `acceptance_rates`: expected numbers from 0 to 1");
        }
        if let Some(problem) = ACCEPTANCE_RATES.problem(&acceptance_rates) {
            options.problem(ACCEPTANCE_RATES.name, problem);
        }
        let overheads = overheads::option(&mut options);
        let kv_eviction = match &made {
            Ok(EngineKind::Sglang(_) | EngineKind::Ticks(_)) => own_eviction(&mut options),
            _ => options.choice("kv_eviction", KvEviction::NAMES).unwrap_or_default(),
        };
        for error in made.as_ref().err().into_iter().flatten() {
            options.problem(error.field(), error.to_string());
        }
        options.finish()?;
        let kind = made.expect("an invalid configuration is a problem of the options");
        let auto_blocks = match &kind {
            EngineKind::Vllm(config) if is_auto => Some(config.stated()),
            _ => None,
        };
        Ok(EngineSpec { kind, policy, acceptance_rates, kv_eviction, memory, overheads, auto_blocks, served, model })
    }
}

/// The eviction of engines with a cache of their own, which is simulated with one policy only.
fn own_eviction(options: &mut Options<'_>) -> KvEviction {
    if let Some(other) = options.string("kv_eviction").filter(|name| name != KvEviction::Lru.name()) {
        let text = format!(
            "invalid `kv_eviction`: expected \"lru\", the only policy that is simulated for this `engine_type`, got \"{other}\""
        );
        options.problem("kv_eviction", text);
    }
    KvEviction::Lru
}

/// An engine with vLLM's core; options that are not given are as in `own`.
fn vllm(options: &mut Options<'_>, own: EngineConfigInput, is_auto: bool) -> Result<EngineKind, Vec<ConfigError>> {
    compat::refuse_unsupported(options);
    let mut input = own;
    if let Some(model) = options.made::<ModelSpec>("model", "model(\"NAME\")") {
        model.apply(options, &mut input, is_auto);
    }
    if is_auto {
        // A placeholder until the number is computed.
        input.num_gpu_blocks = option::NUM_GPU_BLOCKS.max;
    }
    read(options, OPTIONS, &mut input);
    if let Some(entries) = options.array("num_speculative_tokens_per_batch_size") {
        match draft_ranges(entries) {
            Ok(ranges) => input.draft_ranges = ranges,
            Err(problem) => options.problem("num_speculative_tokens_per_batch_size", problem),
        }
    }
    if options.has(KV_CACHE_GROUPS.name) {
        input.kv_cache_groups = kv_cache_groups(options);
    }
    input.adapter_costs = options.made::<AdapterCosts>("adapter_costs", "adapter_costs(#{ ... })");
    let tiers = options.made::<TiersSpec>("kv_tiers", "kv_tiers(#{ ... })").map(|spec| spec.beside(&input));
    input.kv_tiers = tiers.or(input.kv_tiers);
    let config = EngineConfig::new(input)?;
    config.check_start_up()?;
    Ok(config.into())
}

/// Reads numbers of draft tokens by batch size. Each entry is an array of three numbers.
fn draft_ranges(entries: Array) -> Result<Vec<DraftRange>, String> {
    let number = |value: Dynamic| value.as_int().ok().and_then(|number| u32::try_from(number).ok());
    let entry = |entry: Dynamic| -> Option<Vec<u32>> { entry.try_cast::<Array>()?.into_iter().map(number).collect() };
    let entries: Option<Vec<Vec<u32>>> = entries.into_iter().map(entry).collect();
    let expected = "invalid `num_speculative_tokens_per_batch_size`: expected an array such as [[1, 8, 3], [9, 64, 1]]";
    DraftRange::read(&entries.ok_or_else(|| expected.to_owned())?)
}

/// Reads KV cache groups, each of which is a text.
fn kv_cache_groups(options: &mut Options<'_>) -> Vec<KvCacheGroup> {
    let values = options.array(KV_CACHE_GROUPS.name).unwrap_or_default();
    let texts: Vec<String> = values.iter().map(|value| as_text(value).unwrap_or_else(|| value.to_string())).collect();
    match KV_CACHE_GROUPS.read(texts.iter().map(String::as_str)) {
        Ok(groups) => groups,
        Err(problem) => {
            options.problem(KV_CACHE_GROUPS.name, problem);
            Vec::new()
        }
    }
}

fn sglang(options: &mut Options<'_>) -> Result<EngineKind, Vec<ConfigError>> {
    let mut input = SglangConfigInput::default();
    read(options, sglang::OPTIONS, &mut input);
    Ok(SglangConfig::new(input)?.into())
}

fn ticks(options: &mut Options<'_>) -> Result<EngineKind, Vec<ConfigError>> {
    let mut input = TickConfigInput::default();
    read(options, ticks::OPTIONS, &mut input);
    Ok(TickConfig::new(input)?.into())
}

fn read<C>(options: &mut Options<'_>, declared: &'static [EngineOption<C>], input: &mut C) {
    for option in declared {
        let value = match (option.get)(input) {
            OptionValue::Count(_) => options.u32(option.name).map(OptionValue::Count),
            OptionValue::Limit(_) => options.u32(option.name).map(|limit| OptionValue::Limit(Some(limit))),
            OptionValue::Share(_) => options.f64(option.name).map(OptionValue::Share),
            OptionValue::Factor(_) => options.f64(option.name).map(OptionValue::Factor),
            OptionValue::Switch(_) => options.boolean(option.name).map(OptionValue::Switch),
            OptionValue::Name(_) => {
                let names: Vec<_> = (option.names)().into_iter().map(|name| (name, name)).collect();
                options.choice(option.name, &names).map(OptionValue::Name)
            }
        };
        if let Some(value) = value {
            (option.set)(input, value);
        }
    }
}
