use crate::versions::worlds::{generated, latency_adapter};

pub(super) use bindings::LatencyModel as Bindings;

generated! {
    path: "../../wit/v0_2",
    world: "latency-model",
    with: { "vcr:guest/observe@0.2.0": crate::versions::v0_2::observe::bindings::vcr::guest::observe },
}

latency_adapter!();
