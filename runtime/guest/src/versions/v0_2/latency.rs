use crate::versions::worlds::latency_adapter;

pub(super) use bindings::LatencyModel as Bindings;

#[allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated code follows the rules of its generator"
)]
mod bindings {
    wasmtime::component::bindgen!({
        path: "../../wit/v0_2",
        world: "latency-model",
    });
}

latency_adapter!();
