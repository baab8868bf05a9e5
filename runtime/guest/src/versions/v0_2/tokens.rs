use crate::versions::worlds::tokens_adapter;

pub(super) use bindings::TokenSource as Bindings;

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
        world: "token-source",
        with: {
            "vcr:guest/observe@0.2.0": crate::versions::v0_2::observe::bindings::vcr::guest::observe,
            "vcr:guest/requests@0.2.0": crate::versions::v0_2::requests::bindings::vcr::guest::requests,
        },
    });
}

tokens_adapter!();
