use crate::versions::worlds::{generated, scheduling_adapter};

pub(super) use bindings::SchedulerPolicy as Bindings;

generated! {
    path: "../../wit/v0_2",
    world: "scheduler-policy",
    with: { "vcr:guest/observe@0.2.0": crate::versions::v0_2::observe::bindings::vcr::guest::observe },
}

scheduling_adapter!();
