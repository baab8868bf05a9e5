//! `trained_physics(#{ ... })`: physical terms with fitted coefficients from the script or a file.

use std::sync::Arc;

use rhai::{Dynamic, Map};
use vcr_cluster::ComputePeak;
use vcr_latency::Physics;
use vcr_roofline::{Coefficients, PhysicsConfig};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::{Options, describe};
use crate::vocabulary::engine::memory::ModelMemory;
use crate::vocabulary::latency::roofline::compute_peak;
use crate::vocabulary::latency::{LatencySpec, finish};
use crate::vocabulary::placement::Placement;

pub(super) fn make(context: &Context, mut options: Options<'_>) -> Scripted<LatencySpec> {
    let coefficients = options.take("coefficients").and_then(|value| {
        let read = coefficients(context, &value);
        read.map_err(|message| options.problem("coefficients", format!("`coefficients`: {message}"))).ok()
    });
    options.required("coefficients", coefficients.map(|_| ()));
    let model = options.string("model");
    let gpu = options.string("gpu");
    let weight_dtype = options.string("weight_dtype");
    let mut count = |name| options.u64(name);
    let [layers, hidden_size, intermediate_size, attention_heads, kv_heads, head_dim] =
        ["layers", "hidden_size", "intermediate_size", "attention_heads", "kv_heads", "head_dim"].map(&mut count);
    let [tensor_parallel, moe_layers, experts, experts_per_token, expert_intermediate_size] =
        ["tensor_parallel", "moe_layers", "experts", "experts_per_token", "expert_intermediate_size"].map(&mut count);
    let [weight_bytes, kv_bytes, peak_flops, memory_bytes_per_s] =
        ["weight_bytes", "kv_bytes", "peak_flops", "memory_bytes_per_s"].map(|name| options.f64(name));
    let gpu_memory = options.bytes("gpu_memory");
    let config = coefficients.map(|coefficients| PhysicsConfig {
        coefficients,
        model,
        gpu,
        layers,
        hidden_size,
        intermediate_size,
        attention_heads,
        kv_heads,
        head_dim,
        weight_dtype,
        weight_bytes,
        kv_bytes,
        peak_flops,
        memory_bytes_per_s,
        tensor_parallel,
        moe_layers,
        experts,
        experts_per_token,
        expert_intermediate_size,
    });
    let memory = config.as_ref().and_then(|config| {
        let names = [config.model.as_deref(), config.gpu.as_deref()];
        ModelMemory::of(&mut options, &config.memory().ok()?, names, gpu_memory)
    });
    let peak = config.as_ref().and_then(|config| {
        let target = config.roofline();
        let peak = compute_peak(target.weights_and_peak().ok()?, &target);
        Some(ComputePeak { is_fitted: true, ..peak })
    });
    let built = config.map(|config| config.build());
    let spec = match built {
        Some(Ok(formulas)) => {
            let placement = Some(Placement::of_latency("trained_physics", tensor_parallel));
            let model = Physics::new(formulas);
            Some(LatencySpec {
                memory,
                peak,
                placement,
                ..LatencySpec::new(Arc::new(move |_seed| Ok(Box::new(model))))
            })
        }
        Some(Err(error)) => {
            options.problem("", format!("`trained_physics`: {error}"));
            None
        }
        // A problem was already added for missing coefficients.
        None => None,
    };
    finish(options, spec)
}

/// Reads coefficients from a map, or from the JSON file that a text names.
fn coefficients(context: &Context, value: &Dynamic) -> Result<Coefficients, String> {
    if value.is::<Map>() {
        let json = serde_json::to_value(value).map_err(|error| error.to_string())?;
        return serde_json::from_value(json).map_err(|error| error.to_string());
    }
    let path = value.clone().into_string().map_err(|_| {
        format!(
            "give the name of a JSON file, or a map such as #{{ weights: 1.36, ... }}, but it is {}",
            describe(value)
        )
    })?;
    context.state().inputs.named("coefficients", &path, context.resolve(&path));
    let path = context.resolve(&path);
    context.reads(&path).map_err(|thrown| thrown.message)?;
    let text = vcr_base::input::read_text(&path, vcr_base::input::MAX_CONFIG_BYTES)
        .map_err(|error| format!("cannot read `{}`: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("`{}`: {error}", path.display()))
}
