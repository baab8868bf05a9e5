//! `tables(#{ ... })`: operator times measured on GPUs, from an installed package.

use std::path::Path;

use vcr_core::factory::copies;
use vcr_roofline::MemoryNeed;
use vcr_tables::{Tables, TablesInput};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::Options;
use crate::vocabulary::latency::{LatencySpec, finish};
use crate::vocabulary::memory::ModelMemory;

pub(super) fn make(context: &Context, mut options: Options<'_>) -> Scripted<LatencySpec> {
    let system = options.string("system");
    let system = options.required("system", system);
    let model = options.string("model");
    let model = options.required("model", model);
    let mut input = TablesInput::new(&system, &model);
    input.data = options.string("data").map(|data| context.resolve(&data));
    input.version = options.string("version");
    if let Some(backend) = options.string("backend") {
        input.backend = backend;
    }
    let sizes = [
        ("tensor_parallel", &mut input.tensor_parallel),
        ("expert_parallel", &mut input.expert_parallel),
        ("attention_dp", &mut input.attention_dp),
    ];
    for (name, size) in sizes {
        if let Some(given) = options.u64(name) {
            *size = u32::try_from(given).unwrap_or(u32::MAX);
        }
    }
    let dtypes = [
        ("gemm_dtype", &mut input.gemm_dtype),
        ("moe_dtype", &mut input.moe_dtype),
        ("kv_cache_dtype", &mut input.kv_cache_dtype),
        ("attention_dtype", &mut input.attention_dtype),
    ];
    for (name, dtype) in dtypes {
        *dtype = options.string(name);
    }
    let gpu_memory = options.bytes("gpu_memory");
    let scale = options.f64("scale").unwrap_or(1.0);
    if !(scale.is_finite() && scale > 0.0) {
        options.problem("scale", format!("is {scale}: expected a number above 0"));
    }
    let mut spec = None;
    if !system.is_empty() && !model.is_empty() {
        let own = context.resolve(&model);
        // A name of the package has no file beside the script.
        let read = if own.is_file() && Path::new(&model).extension().is_some() {
            context.state().inputs.named("model", &model, own.clone());
            input.model = own.display().to_string();
            context.reads(&own).map_err(|thrown| thrown.message)
        } else {
            Ok(())
        };
        let read = read.and_then(|()| {
            Tables::new(&input).map_err(|error| match error.hint() {
                Some(hint) => format!("{error}; {hint}"),
                None => error.to_string(),
            })
        });
        match read {
            Ok(tables) => {
                let names = [Some(&*model), Some(&*system)];
                let memory =
                    tables.memory().and_then(|need| ModelMemory::of(&mut options, &in_memory(need), names, gpu_memory));
                spec = Some(LatencySpec { memory, ..LatencySpec::new(copies(tables.with_scale(scale))) });
            }
            Err(message) => options.problem("", format!("`tables`: {message}")),
        }
    }
    finish(options, spec)
}

fn in_memory(need: vcr_tables::MemoryNeed) -> MemoryNeed {
    let vcr_tables::MemoryNeed { weight_bytes, kv_bytes_per_token, gpu_memory_bytes } = need;
    MemoryNeed { weight_bytes, kv_bytes_per_token, gpu_memory_bytes }
}
