use crate::versions::worlds::{generated, latency_adapter};

pub(super) use bindings::LatencyModel as Bindings;

generated! {
    path: "../../wit/v0_1",
    world: "latency-model",
}

latency_adapter!();
