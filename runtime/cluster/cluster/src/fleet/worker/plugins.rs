//! Makes the plugins of a worker.

use vcr_core::latency::{EngineInfo, LatencyError, LatencyModel};
use vcr_core::policy::SchedulingPolicy;
use vcr_core::{AnyEngine, PluginContext, seed};

use super::chosen::ChosenTokens;
use crate::config::PoolConfig;
use crate::error::MakeError;

/// Makes the latency model of an engine's incarnation. The model gets the engine's settings.
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

/// Makes an engine use per-request times if the latency model has them.
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

/// Makes the token source of an engine's incarnation, if the pool has one.
pub(super) fn new_token_source(
    plugin_context: &PluginContext<'_>,
    config: &PoolConfig,
) -> Result<Option<Box<ChosenTokens>>, MakeError> {
    let Some(tokens) = &config.tokens else { return Ok(None) };
    let source = (tokens.source)(plugin_context).map_err(MakeError::Tokens)?;
    Ok(Some(Box::new(ChosenTokens::new(source))))
}

/// The context of a plugin. Its seed derives from the engine's seed, the plugin's `purpose` and the incarnation.
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
