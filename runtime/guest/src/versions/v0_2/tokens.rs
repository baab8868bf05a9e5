use crate::versions::worlds::{generated, tokens_adapter};

pub(super) use bindings::TokenSource as Bindings;

generated! {
    path: "../../wit/v0_2",
    world: "token-source",
    with: {
        "vcr:guest/observe@0.2.0": crate::versions::v0_2::observe::bindings::vcr::guest::observe,
        "vcr:guest/requests@0.2.0": crate::versions::v0_2::remarks::bindings::vcr::guest::requests,
        "vcr:guest/drafts@0.2.0": crate::versions::v0_2::remarks::bindings::vcr::guest::drafts,
    },
}

tokens_adapter!();
