use crate::versions::worlds::{generated, routing_adapter};

pub(super) use bindings::Router as Bindings;

generated! {
    path: "../../wit/v0_2",
    world: "router",
    with: { "vcr:guest/observe@0.2.0": crate::versions::v0_2::observe::bindings::vcr::guest::observe },
}

routing_adapter!();
