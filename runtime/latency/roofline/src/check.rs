use crate::{Deployment, GpuSpec, RooflineError, TransformerSpec};

/// Checks the numbers of the hardware and of the deployment, so that no price can be NaN or infinite.
pub(crate) fn check_hardware(gpu: &GpuSpec, deployment: &Deployment) -> Result<(), RooflineError> {
    count("tensor_parallel", deployment.tensor_parallel)?;
    for (field, value) in [
        ("peak_flops", gpu.peak_flops),
        ("memory_bytes_per_s", gpu.memory_bytes_per_s),
        ("interconnect_bytes_per_s", gpu.interconnect_bytes_per_s),
    ] {
        quantity(field, value)?;
    }
    for (field, value) in [
        ("compute_efficiency", deployment.compute_efficiency),
        ("bandwidth_efficiency", deployment.bandwidth_efficiency),
    ] {
        in_range(field, value, value > 0.0 && value <= 1.0, "above 0 and at most 1")?;
    }
    for (field, value) in
        [("step_overhead_ns", deployment.step_overhead_ns), ("all_reduce_latency_ns", deployment.all_reduce_latency_ns)]
    {
        in_range(field, value, (0.0..=1e18).contains(&value), "0 to 1e18")?;
    }
    Ok(())
}

pub(crate) fn check(model: &TransformerSpec, gpu: &GpuSpec, deployment: &Deployment) -> Result<(), RooflineError> {
    for (field, value) in [
        ("layers", model.layers),
        ("hidden_size", model.hidden_size),
        ("intermediate_size", model.intermediate_size),
        ("attention_heads", model.attention_heads),
        ("kv_heads", model.kv_heads),
        ("head_dim", model.head_dim),
        ("vocab_size", model.vocab_size),
    ] {
        count(field, value)?;
    }
    for (field, value) in [("weight_bytes", model.weight_bytes), ("kv_bytes", model.kv_bytes)] {
        quantity(field, value)?;
    }
    check_hardware(gpu, deployment)?;

    let gpus = deployment.tensor_parallel;
    let heads = model.attention_heads;
    if !heads.is_multiple_of(gpus) {
        return Err(RooflineError::UnevenSplit { field: "attention_heads", heads, tensor_parallel: gpus });
    }
    if !model.kv_heads.is_multiple_of(gpus) && !gpus.is_multiple_of(model.kv_heads) {
        return Err(RooflineError::UnevenSplit { field: "kv_heads", heads: model.kv_heads, tensor_parallel: gpus });
    }
    Ok(())
}

fn count(field: &'static str, value: u64) -> Result<(), RooflineError> {
    // The upper limit keeps all products of these numbers finite.
    in_range(field, value as f64, (1.0..=1e9).contains(&(value as f64)), "1 to 1e9")
}

fn quantity(field: &'static str, value: f64) -> Result<(), RooflineError> {
    in_range(field, value, (1e-3..=1e24).contains(&value), "0.001 to 1e24")
}

fn in_range(field: &'static str, value: f64, holds: bool, expected: &'static str) -> Result<(), RooflineError> {
    if holds { Ok(()) } else { Err(RooflineError::OutOfRange { field, value, expected }) }
}
