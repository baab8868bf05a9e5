//! `vllm_args("vllm serve ...")`: an engine from a command line of vLLM.

use std::sync::Arc;

use rhai::{Engine, ImmutableString, Map, NativeCallContext};
use vcr_core::{EngineConfigInput, option};
use vcr_model::vllm_args::{Deployment, VllmArgs};

use super::memory::MemoryPlan;
use super::policy;
use super::{EngineSpec, Read, compat, vllm};
use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::{Options, as_text};
use crate::vocabulary::model::ModelSpec;

pub(super) const FUNCTION: &str = "vllm_args";

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let shared = Arc::clone(context);
    engine.register_fn(FUNCTION, move |call: NativeCallContext<'_>, command: ImmutableString| {
        make(&shared, &command, Options::new(FUNCTION, &shared.source, &call, Map::new()))
    });
    let shared = Arc::clone(context);
    engine.register_fn(FUNCTION, move |call: NativeCallContext<'_>, command: ImmutableString, options: Map| {
        make(&shared, &command, Options::new(FUNCTION, &shared.source, &call, options))
    });
    engine.register_get("model", |spec: &mut EngineSpec| {
        spec.served.as_ref().and_then(|args| args.model.clone()).map_or(rhai::Dynamic::UNIT, Into::into)
    });
    engine.register_get("tensor_parallel_size", |spec: &mut EngineSpec| count(spec, |args| args.tensor_parallel_size));
    engine.register_get("data_parallel_size", |spec: &mut EngineSpec| count(spec, |args| args.data_parallel_size));
    engine.register_get("expert_parallel", |spec: &mut EngineSpec| {
        spec.served.as_ref().is_some_and(|args| args.expert_parallel)
    });
}

/// A number of the command line; 1 for an engine without a command line.
fn count(spec: &EngineSpec, number: impl Fn(&VllmArgs) -> u32) -> i64 {
    spec.served.as_ref().map_or(1, |args| number(args).into())
}

/// Makes the engine of a command line. Options of `engine(...)` override its arguments.
pub(crate) fn make(context: &Context, command: &str, mut options: Options<'_>) -> Scripted<EngineSpec> {
    let default = Deployment::default();
    let minor = options.string("vllm_minor").unwrap_or_else(|| default.minor.to_owned());
    let gpu = options.string("gpu").unwrap_or_else(|| default.gpu.to_owned());
    let args = VllmArgs::read(command, Deployment { minor: &minor, gpu: &gpu, folder: &context.folder });
    let args = match args {
        Ok(args) => args,
        Err(errors) => {
            for error in errors {
                options.problem_at(options.call_position(), error.to_string());
            }
            options.finish()?;
            unreachable!("an invalid command line is a problem of the options")
        }
    };
    if let Some(text) = &args.unknown_drafter {
        context.reporter.warn(&format!("{text}, so that its passes take no time"));
    }
    for (name, path) in &args.files {
        context.state().inputs.named("vllm-args", name, path.clone());
    }
    let rules = compat::check_version(&minor, &mut options);
    let policy = policy::option(&mut options);
    let is_auto_text = options.take_if("num_gpu_blocks", |value| as_text(value).as_deref() == Some("auto")).is_some();
    let is_auto = is_auto_text || (!options.has("num_gpu_blocks") && args.num_gpu_blocks.is_none());
    let plan = MemoryPlan {
        utilization: args.gpu_memory_utilization,
        kv_cache_bytes: args.kv_cache_memory_bytes,
        ..MemoryPlan::default()
    };
    let memory = plan.of_engine(&mut options, is_auto);
    let served = args.served.as_ref().filter(|_| is_auto);
    let of_memory =
        served.map(|served| served.num_gpu_blocks(memory.utilization, memory.activation_bytes, memory.kv_cache_bytes));
    if let Some(Err(error)) = &of_memory {
        options.problem_at(options.call_position(), error.to_string());
    }
    let of_memory = of_memory.and_then(Result::ok);
    let is_auto = is_auto && of_memory.is_none();
    let own = EngineConfigInput {
        num_gpu_blocks: of_memory.or(args.num_gpu_blocks).unwrap_or(option::NUM_GPU_BLOCKS.max),
        policy: policy.as_ref().map_or(args.input.policy, |spec| spec.policy),
        rules,
        ..args.input.clone()
    };
    let model = options.peek::<ModelSpec>("model");
    let made = vllm(&mut options, own, is_auto);
    let policy = policy.and_then(|spec| spec.factory);
    Read { made, policy, memory, is_auto, served: Some(Arc::new(args)), model }.finish(options)
}
