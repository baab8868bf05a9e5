use crate::versions::worlds::{generated, scaling_adapter};

pub(super) use bindings::Autoscaler as Bindings;

generated! {
    path: "../../wit/v0_2",
    world: "autoscaler",
    with: { "vcr:guest/observe@0.2.0": crate::versions::v0_2::observe::bindings::vcr::guest::observe },
}

scaling_adapter!();
