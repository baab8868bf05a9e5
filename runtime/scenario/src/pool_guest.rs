//! Guests that stand around the engines of a pool: failure injectors and token
//! sources.

use std::sync::Arc;

use vcr_cluster::{InjectorFactory, TokenConfig, TokenFactory};
use vcr_core::fault::FaultError;
use vcr_core::tokens::TokenError;
use vcr_guest::World;

use crate::guest::GuestSpec;
use crate::options::{Options, describe};

/// The option `failures`.
pub(crate) fn failures(options: &mut Options<'_>) -> Option<InjectorFactory> {
    let guest = guest(options, "failures", World::FailureInjector)?;
    Some(Arc::new(move |seed| {
        let made = guest.module.failure_injector(&guest.config_json, seed);
        made.map_err(|error| FaultError { injector: guest.module.name().to_owned(), reason: error.to_string() })
    }))
}

/// The options `tokens` and `eos_token`.
pub(crate) fn tokens(options: &mut Options<'_>) -> Option<TokenConfig> {
    let has_source = options.has("tokens");
    let guest = guest(options, "tokens", World::TokenSource);
    let eos_token = options.u32("eos_token");
    if eos_token.is_some() && !has_source {
        options.problem("eos_token", "`eos_token` needs `tokens`: tokens that are drawn end by length alone");
    }
    let guest = guest?;
    let source: TokenFactory = Arc::new(move |seed| {
        let made = guest.module.token_source(&guest.config_json, seed);
        made.map_err(|error| TokenError { source: guest.module.name().to_owned(), reason: error.to_string() })
    });
    Some(TokenConfig { source, eos_token })
}

/// An option whose value is a guest of the world that is wanted.
fn guest(options: &mut Options<'_>, name: &'static str, world: World) -> Option<GuestSpec> {
    let value = options.take(name)?;
    let found = match value.clone().try_cast::<GuestSpec>() {
        None => Err(format!("a {world} such as guest(#{{ path: \"guest.wasm\" }}), but is {}", describe(&value))),
        Some(guest) => guest.must_be(world).map(|()| guest),
    };
    found.map_err(|what| options.problem(name, format!("`{name}` must be {what}"))).ok()
}
