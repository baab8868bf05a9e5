//! `tables(#{ ... })`: operator times measured on GPUs, from an installed package.

use std::path::Path;

use vcr_cluster::ComputePeak;
use vcr_core::factory::copies;
use vcr_latency::tables::{DATA_VARIABLE, Resolved, Scale, SourceFiles, Tables, TablesError, TablesInput};
use vcr_roofline::MemoryNeed;
use vcr_roofline::gpus::Gpu;

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::Options;
use crate::vocabulary::engine::memory::ModelMemory;
use crate::vocabulary::latency::{LatencySpec, finish};
use crate::vocabulary::placement::Placement;

/// The file beside a model's configuration that states its quantisation.
const QUANTISATION: &str = "hf_quant_config.json";

pub(super) fn make(context: &Context, mut options: Options<'_>) -> Scripted<LatencySpec> {
    let system = options.string("system");
    let system = options.required("system", system);
    let model = options.string("model");
    let model = options.required("model", model);
    let mut input = TablesInput::new(&system, &model);
    let data = options.string("data");
    // A pack stores the package of the environment variable under the variable's name.
    input.data = match &data {
        Some(data) => Some(context.resolve(data)),
        None => context.options.files_by_name.get(DATA_VARIABLE).cloned(),
    };
    input.version = options.string("version");
    if let Some(backend) = options.string("backend") {
        input.backend = backend;
    }
    let has_gpus = options.has("tensor_parallel");
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
    let decodes = options.f64("scale").unwrap_or(1.0);
    let scale = Scale { decodes, prompts: options.f64("prompt_scale").unwrap_or(decodes) };
    for (name, scale) in [("scale", scale.decodes), ("prompt_scale", scale.prompts)] {
        if !(scale.is_finite() && scale > 0.0) {
            options.problem(name, format!("invalid `{name}`: expected above 0, got {scale}"));
        }
    }
    let mut spec = None;
    if !system.is_empty() && !model.is_empty() {
        let own = context.resolve(&model);
        // A model that is named as in the package has no file in the script's folder.
        let read = if own.is_file() && Path::new(&model).extension().is_some() {
            context.state().inputs.named("model", &model, own.clone());
            let quantisation = own.with_file_name(QUANTISATION);
            if quantisation.is_file() {
                let name = Path::new(&model).with_file_name(QUANTISATION).display().to_string();
                context.state().inputs.named("model", &name, quantisation);
            }
            input.model = own.display().to_string();
            context.reads(&own).map_err(|thrown| thrown.message)
        } else {
            Ok(())
        };
        let read = read.and_then(|()| {
            named(context, &mut input).map_err(|error| match error.hint() {
                Some(hint) => format!("{error}; {hint}"),
                None => error.to_string(),
            })
        });
        match read {
            Ok(tables) => {
                let SourceFiles { folder, files } = tables.source().clone();
                context.state().inputs.tables(data.as_deref().unwrap_or(DATA_VARIABLE), folder, files);
                let names = [Some(&*model), Some(&*system)];
                let memory =
                    tables.memory().and_then(|need| ModelMemory::of(&mut options, &in_memory(need), names, gpu_memory));
                let gpus = has_gpus.then_some(input.tensor_parallel.into());
                let placement = Some(Placement::of_latency("tables", gpus));
                let peak = Some(compute_peak(tables.resolved(), &system));
                spec =
                    Some(LatencySpec { memory, peak, placement, ..LatencySpec::new(copies(tables.with_scale(scale))) });
            }
            Err(message) => options.problem("", format!("`tables`: {message}")),
        }
    }
    finish(options, spec)
}

/// The tables for a deployment, from the package that the environment variable names.
pub(crate) fn of_input(context: &Context, mut input: TablesInput) -> Result<LatencySpec, String> {
    input.data = context.options.files_by_name.get(DATA_VARIABLE).cloned();
    let system = input.system.clone();
    let tables = named(context, &mut input).map_err(|error| match error {
        // The user wants tables, and may not see that there are none.
        error @ TablesError::NotThePackage { .. } => {
            let was_told = std::mem::replace(&mut context.state().lacks_tables, true);
            if !was_told {
                context.reporter.warn(&format!("no operator tables: {error}"));
            }
            error.to_string()
        }
        TablesError::NoData => format!("`{DATA_VARIABLE}` does not name their folder"),
        TablesError::Unknown { what, name, .. } => format!("they have no {what} `{name}`"),
        error => error.to_string(),
    })?;
    let SourceFiles { folder, files } = tables.source().clone();
    context.state().inputs.tables(DATA_VARIABLE, folder, files);
    let peak = Some(compute_peak(tables.resolved(), &system));
    Ok(LatencySpec { peak, ..LatencySpec::new(copies(tables)) })
}

/// The tables of a model, by any of the names that `model(...)` knows for it.
fn named(context: &Context, input: &mut TablesInput) -> Result<Tables, TablesError> {
    let first = context.loaded.tables(input);
    let Err(TablesError::Unknown { what: "model", .. }) = &first else { return first };
    for name in vcr_model::names_of(&input.model) {
        let made = context.loaded.tables(&TablesInput { model: name.clone(), ..input.clone() });
        if !matches!(made, Err(TablesError::Unknown { what: "model", .. })) {
            input.model.clone_from(name);
            return made;
        }
    }
    first
}

/// The peak that is assumed for operators without a table.
fn compute_peak(resolved: &Resolved, system: &str) -> ComputePeak {
    ComputePeak {
        weights: resolved.moe_dtype.unwrap_or(resolved.gemm_dtype).to_owned(),
        computed_as: resolved.computed_as.to_owned(),
        peak_tflops: resolved.peak_flops / 1e12,
        gpu: Some(Gpu::named(system).map_or(system, |gpu| gpu.name).to_owned()),
        is_fitted: false,
    }
}

fn in_memory(need: vcr_latency::tables::MemoryNeed) -> MemoryNeed {
    let vcr_latency::tables::MemoryNeed { weight_bytes, kv_bytes_per_token, gpu_memory_bytes } = need;
    MemoryNeed { weight_bytes, kv_bytes_per_token, gpu_memory_bytes }
}
