//! The plugins of a worker: their creation and its context.

use vcr_core::latency::{EngineInfo, LatencyError, LatencyModel};
use vcr_core::policy::SchedulingPolicy;
use vcr_core::{AnyEngine, PluginContext, seed};

use super::chosen::ChosenTokens;
use crate::config::PoolConfig;
use crate::error::MakeError;

/// The latency model of an incarnation of an engine, which knows the engine.
pub(super) fn new_latency(
    plugin_context: PluginContext<'_>,
    config: &PoolConfig,
) -> Result<Box<dyn LatencyModel>, MakeError> {
    let info = EngineInfo { tensor_parallel_size: config.tensor_parallel_size, ..config.engine.info() };
    (config.latency)(&PluginContext { engine_info: Some(&info), ..plugin_context }).map_err(MakeError::Latency)
}

pub(super) fn new_policy(
    plugin_context: &PluginContext<'_>,
    config: &PoolConfig,
) -> Result<Option<Box<dyn SchedulingPolicy>>, MakeError> {
    config.policy.as_ref().map(|make| make(plugin_context)).transpose().map_err(MakeError::Policy)
}

/// Makes an engine use per-request times, if its latency model has them.
pub(super) fn pace(engine: &mut AnyEngine, latency: &dyn LatencyModel) -> Result<(), MakeError> {
    match (engine.as_vllm_mut(), latency.request_times()) {
        (Some(engine), times) => engine.set_request_times(times),
        (None, None) => {}
        (None, Some(_)) => {
            let reason = "only vLLM's scheduler can give requests times of their own, and this engine has another";
            return Err(MakeError::Latency(LatencyError {
                model: "per_request".to_owned(),
                reason: reason.to_owned(),
            }));
        }
    }
    Ok(())
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
    PluginContext { run, pool: &pool.name, engine: Some(index), engine_info: None, seed }
}
