//! Facts of one engine that do not change while it serves a frontend.

use std::sync::Arc;

use vcr_core::PluginContext;
use vcr_core::factory::LatencyFactory;
use vcr_core::latency::{EngineInfo, LatencyError, LatencyModel};
use vcr_core::seed::derive;
use vcr_wire::monotonic_ns;

use crate::config::LiveConfig;

pub(crate) struct Context {
    pub(crate) config: Arc<LiveConfig>,
    /// Index among the engines of this process.
    pub(crate) index: usize,
    /// Rank among the engines of the frontend.
    pub(crate) rank: u16,
    /// Start of serving: time zero for faults and models.
    origin_ns: u64,
}

impl Context {
    /// The context of engine `index` of this process, which starts to serve now.
    pub(crate) fn new(config: Arc<LiveConfig>, index: usize) -> Self {
        let rank = config.identity.first_rank + index as u16;
        Self { config, index, rank, origin_ns: monotonic_ns() }
    }

    #[inline]
    pub(crate) fn since_start_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.origin_ns)
    }

    /// Delay until a request with a prompt of this length reaches the queue.
    pub(crate) fn arrival_delay_ns(&self, prompt_tokens: usize) -> u64 {
        let prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
        self.scaled_ns(self.config.overheads.arrival_of_ns(prompt_tokens))
    }

    pub(crate) fn grammar_compile_ns(&self) -> u64 {
        self.scaled_ns(self.config.grammar_compile_ns)
    }

    /// Delay until the outputs of a step reach the client, and the additional delay of first tokens.
    pub(crate) fn output_delays_ns(&self) -> (u64, u64) {
        let overheads = &self.config.overheads;
        (self.scaled_ns(overheads.output_ns), self.scaled_ns(overheads.first_token_ns))
    }

    fn scaled_ns(&self, ns: u64) -> u64 {
        (ns as f64 / self.config.time_scale) as u64
    }

    /// The inverse of [`Context::since_start_ns`].
    pub(crate) fn at_ns(&self, since_start_ns: u64) -> u64 {
        self.origin_ns.saturating_add(since_start_ns)
    }
}

pub(crate) fn latency_model(
    config: &LiveConfig,
    factory: &LatencyFactory,
    rank: u16,
) -> Result<Box<dyn LatencyModel>, LatencyError> {
    let tensor_parallel_size = config.identity.tensor_parallel_size;
    let info = EngineInfo { tensor_parallel_size, ..config.engine.info() };
    let model = factory(&PluginContext { engine_info: Some(&info), ..plugin_context(config.seed, "latency", rank) })?;
    if config.sglang.is_some() && model.request_times().is_some() {
        let reason = "expected a model of steps: SGLang's engine has no times of single requests".to_owned();
        return Err(LatencyError { model: config.latency_name.clone(), reason });
    }
    Ok(model)
}

pub(crate) fn plugin_context(base_seed: u64, purpose: &str, rank: u16) -> PluginContext<'static> {
    let engine = Some(u32::from(rank));
    PluginContext { engine, ..PluginContext::of_seed(derive(base_seed, purpose, rank.into())) }
}
