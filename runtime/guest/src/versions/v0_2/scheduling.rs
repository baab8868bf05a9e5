use crate::versions::worlds::scheduling_adapter;

pub(super) use bindings::SchedulerPolicy as Bindings;

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
        world: "scheduler-policy",
    });
}

scheduling_adapter!();
