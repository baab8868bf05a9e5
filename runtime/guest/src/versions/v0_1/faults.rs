use crate::versions::worlds::{faults_adapter, generated};

pub(super) use bindings::FailureInjector as Bindings;

generated! {
    path: "../../wit/v0_1",
    world: "failure-injector",
}

faults_adapter!();
