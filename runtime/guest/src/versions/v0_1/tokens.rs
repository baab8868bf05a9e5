use crate::versions::worlds::{generated, tokens_adapter};

pub(super) use bindings::TokenSource as Bindings;

generated! {
    path: "../../wit/v0_1",
    world: "token-source",
}

tokens_adapter!();
