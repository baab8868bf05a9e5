//! The plugins of a worker: how they are made, and from which context.

use vcr_core::policy::SchedulingPolicy;
use vcr_core::{PluginContext, seed};

use super::chosen::ChosenTokens;
use crate::config::PoolConfig;
use crate::error::MakeError;

pub(super) fn new_policy(
    plugin_context: &PluginContext<'_>,
    config: &PoolConfig,
) -> Result<Option<Box<dyn SchedulingPolicy>>, MakeError> {
    config.policy.as_ref().map(|make| make(plugin_context)).transpose().map_err(MakeError::Policy)
}

/// The token source of an incarnation of an engine, if its pool has any.
pub(super) fn new_token_source(
    plugin_context: &PluginContext<'_>,
    config: &PoolConfig,
) -> Result<Option<Box<ChosenTokens>>, MakeError> {
    let Some(tokens) = &config.tokens else { return Ok(None) };
    let source = (tokens.source)(plugin_context).map_err(MakeError::Tokens)?;
    Ok(Some(Box::new(ChosenTokens::new(source))))
}

/// The context of a plugin that serves `purpose` at an engine with this seed.
pub(super) fn plugin_context<'a>(
    run: &'a str,
    pool: &'a PoolConfig,
    index: u32,
    purpose: &str,
    seed: u64,
    incarnation: u32,
) -> PluginContext<'a> {
    let seed = seed::derive(seed, purpose, u64::from(incarnation));
    PluginContext { run, pool: &pool.name, engine: Some(index), seed }
}
