use crate::versions::worlds::{faults_adapter, generated};

pub(super) use bindings::FailureInjector as Bindings;

generated! {
    path: "../../wit/v0_2",
    world: "failure-injector",
    with: { "vcr:guest/observe@0.2.0": crate::versions::v0_2::observe::bindings::vcr::guest::observe },
}

faults_adapter!();
