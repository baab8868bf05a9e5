//! Guests of the engines of a pool: failure injectors and token sources.

use std::num::NonZeroU32;
use std::sync::Arc;

use vcr_cluster::{InjectorFactory, TokenConfig, TokenFactory};
use vcr_core::fault::FailureInjector;
use vcr_core::tokens::BatchTokenSource;
use vcr_guest::{NoFaults, SeededTokens, WithFallback, World};

use crate::script::options::{Options, as_text, describe};
use crate::vocabulary::guest::GuestSpec;

pub(crate) fn failures(options: &mut Options<'_>) -> Option<InjectorFactory> {
    let guest = guest(options, "failures", World::FailureInjector)?;
    let has_fallback = has_fallback(options, "failures", &guest, "none")?;
    Some(Arc::new(move |plugin_context| {
        let made = guest.at(plugin_context).plug_in(&guest.config_json, plugin_context.seed);
        if !has_fallback {
            return made;
        }
        let failed = guest.failure_sink(plugin_context);
        Ok(Box::new(WithFallback::<dyn FailureInjector>::new(made, Box::new(NoFaults), failed)))
    }))
}

pub(crate) fn tokens(options: &mut Options<'_>) -> Option<TokenConfig> {
    let has_source = options.has("tokens");
    let guest = guest(options, "tokens", World::TokenSource);
    let eos_token = options.u32("eos_token");
    if eos_token.is_some() && !has_source {
        options.problem("eos_token", "`eos_token` needs `tokens`: drawn tokens end only by length");
    }
    let guest = guest?;
    let has_fallback = has_fallback(options, "tokens", &guest, "random")?;
    let source: TokenFactory = Arc::new(move |plugin_context| {
        let made = guest.at(plugin_context).plug_in(&guest.config_json, plugin_context.seed);
        if !has_fallback {
            return made;
        }
        let failed = guest.failure_sink(plugin_context);
        Ok(Box::new(WithFallback::<dyn BatchTokenSource>::new(
            made,
            Box::new(SeededTokens::new(NonZeroU32::MAX)),
            failed,
        )))
    });
    Some(TokenConfig { source, eos_token })
}

/// Whether the guest of an option has a fallback. Only the fallback `word` is allowed.
fn has_fallback(options: &mut Options<'_>, name: &'static str, guest: &GuestSpec, word: &str) -> Option<bool> {
    let Some(fallback) = &guest.fallback else { return Some(false) };
    if as_text(fallback).as_deref() == Some(word) {
        return Some(true);
    }
    let found = describe(fallback);
    options.problem(name, format!("invalid `{name}`: expected a guest whose `fallback` is \"{word}\", got {found}"));
    None
}

fn guest(options: &mut Options<'_>, name: &'static str, world: World) -> Option<GuestSpec> {
    let value = options.take(name)?;
    let found = match value.clone().try_cast::<GuestSpec>() {
        None => Err(format!("a {world} such as guest(#{{ path: \"guest.wasm\" }}), got {}", describe(&value))),
        Some(guest) => guest.must_be(world).map(|()| guest),
    };
    found.map_err(|what| options.problem(name, format!("invalid `{name}`: expected {what}"))).ok()
}
