//! Converts [`EngineArgs`] to a pool of the simulator.

use vcr_cluster::{DataParallel, LatencyFactory, PoolConfig, PoolRole, RouterConfig, ScalerFactory, ScalingConfig};
use vcr_core::latency::LatencyModel;
use vcr_core::sglang::{PassOrder, PrefixLookup, Retraction, SglangConfig, SglangConfigInput};
use vcr_core::{
    CapacityPolicy, ConfigError, EngineConfig, EngineConfigInput, EngineKind, Reservations, Victim, factory,
};
use vcr_latency::{
    Deployment, Fixed, FixedInput, InvalidConfig, Polynomial, PolynomialInput, Profile, ProfileInput, SpeedInput,
    WorkerPhases,
};

use super::{EngineArgs, EngineType, PreemptionMode, Preset, SglangArgs, Timing, state, tables};
use crate::autoscale::AutoscaleArgs;
use crate::problem::{DynamoError, Problem};

/// Token budget of passes without a limit. No pass has this many tokens.
const UNBOUNDED_TOKENS: u32 = 1 << 30;

/// Factor by which data-parallel attention changes SGLang's `schedule_conservativeness`.
const DATA_PARALLEL_CONSERVATIVENESS: f64 = 0.3;

/// Options of a pool beyond the engine arguments.
pub struct PoolOptions<'a> {
    /// Origin of the engine arguments, for errors.
    pub place: &'a str,
    /// Name of the pool in reports.
    pub name: &'a str,
    /// Number of engines; with an autoscaler, the number at the start.
    pub engines: u32,
    /// The autoscaler and its settings, if any.
    pub autoscale: Option<(&'a AutoscaleArgs, ScalerFactory)>,
    /// The version of Dynamo whose pass rules apply.
    pub preset: Preset,
    /// Role of the engines.
    pub role: PoolRole,
    /// Whether decode engines also compute whole prompts (`conditional_disagg_enabled`). Otherwise prompts take no
    /// time there.
    pub computes_prompts: bool,
    /// Latency model that overrides the arguments, if any.
    pub latency: Option<LatencyFactory>,
    pub router: RouterConfig,
}

impl EngineArgs {
    /// Makes the pool that the arguments describe.
    ///
    /// # Errors
    /// When the settings of an engine are invalid, its profile cannot be read, or an argument is not simulated.
    pub fn pool(&self, options: PoolOptions<'_>) -> Result<PoolConfig, DynamoError> {
        let refused = |key: &str, text: String| Problem { place: options.place.to_owned(), key: key.to_owned(), text };
        let mut problems = Vec::new();
        if let Some(worker_type) = self.worker_type.filter(|&worker_type| worker_type != options.role) {
            let (is, must) = (worker_type.name(), options.role.name());
            problems.push(refused("worker_type", format!("expected \"{must}\", got \"{is}\"")));
        }
        let engine = self.engine(options.preset).map_err(|texts| {
            problems.extend(texts.into_iter().map(|text| refused("", text)));
        });
        let latency = match options.latency.clone() {
            Some(latency) => Ok(latency),
            None => self
                .latency(options.preset, options.role, options.computes_prompts)
                .map_err(|text| problems.push(refused("", text))),
        };
        let (Ok(engine), Ok(latency), true) = (engine, latency, problems.is_empty()) else {
            return Err(DynamoError(problems));
        };
        Ok(PoolConfig {
            scaling: options.autoscale.map(|(autoscale, policy)| ScalingConfig {
                interval_ns: autoscale.interval_ns,
                min_engines: autoscale.min_workers,
                max_engines: autoscale.max_workers,
                startup_ns: self.startup_time_ns,
                policy,
            }),
            data_parallel: DataParallel { size: self.dp_size, barrier: true },
            prefill_schedule_interval: if self.dp_size > 1 { self.prefill_schedule_interval } else { 1 },
            router: options.router,
            kv_eviction: self.kv_eviction,
            acceptance_rates: self.mtp.as_ref().map(|mtp| mtp.acceptance_rates.clone()).unwrap_or_default(),
            rejects_in_queue: options.preset == Preset::Dynamo1_6 && !matches!(self.engine_type, EngineType::Sglang(_)),
            ..PoolConfig::new(options.name, options.engines, engine, latency)
        })
    }

    fn engine(&self, preset: Preset) -> Result<EngineKind, Vec<String>> {
        let made = match self.engine_type {
            EngineType::Vllm => self.vllm(CapacityPolicy::Preempt),
            EngineType::Trtllm => self.vllm(CapacityPolicy::GuaranteedNoEvict),
            EngineType::Sglang(own) => self.sglang(own, preset),
        };
        made.map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    fn vllm(&self, capacity: CapacityPolicy) -> Result<EngineKind, Vec<ConfigError>> {
        let max_num_batched_tokens = self.max_num_batched_tokens.unwrap_or(UNBOUNDED_TOKENS);
        // A request needs at least one token to be admitted, and one block to run.
        let most_seqs = max_num_batched_tokens.min(self.num_gpu_blocks);
        let input = EngineConfigInput {
            block_size: self.block_size,
            // Dynamo does not count the null block.
            num_gpu_blocks: self.num_gpu_blocks.saturating_add(1),
            max_num_seqs: self.max_num_seqs.map_or(most_seqs, |seqs| seqs.min(max_num_batched_tokens)),
            max_num_batched_tokens,
            max_model_len: self.max_model_len,
            enable_prefix_caching: self.enable_prefix_caching,
            enable_chunked_prefill: self.enable_chunked_prefill,
            max_extra_tokens_per_step: self.mtp.as_ref().map_or(0, |mtp| mtp.extra_tokens),
            capacity,
            victim: match self.preemption_mode {
                PreemptionMode::Lifo => Victim::Newest,
                PreemptionMode::Fifo => Victim::Oldest,
            },
            async_scheduling: self.async_scheduling,
            // Dynamo has no asynchronous scheduling, so vLLM's rule applies to it. Workers with states receive no
            // KV from other workers.
            reservations: match self.async_scheduling || self.state_blocks > 0 {
                true => Reservations::InSteps,
                false => Reservations::BetweenSteps,
            },
            kv_cache_groups: state::groups(self.state_blocks),
            kv_tiers: self.kv_tiers,
            ..EngineConfigInput::default()
        };
        EngineConfig::new(input).map(EngineKind::from)
    }

    fn sglang(&self, own: SglangArgs, preset: Preset) -> Result<EngineKind, Vec<ConfigError>> {
        let (mut chunk, mut conservativeness) = (own.chunked_prefill_size, own.schedule_conservativeness);
        // With data-parallel attention, SGLang gives each rank its share of a chunk, and reserves less for outputs.
        // Dynamo simulates this since 1.6.
        if self.dp_size > 1 && preset == Preset::Dynamo1_6 {
            let pages = chunk / self.dp_size / self.block_size.max(1);
            chunk = pages.max(1) * self.block_size;
            conservativeness *= DATA_PARALLEL_CONSERVATIVENESS;
        }
        let input = SglangConfigInput {
            page_size: self.block_size,
            num_pages: self.num_gpu_blocks,
            max_num_seqs: self.max_num_seqs.unwrap_or(self.num_gpu_blocks),
            max_model_len: self.max_model_len,
            enable_prefix_caching: self.enable_prefix_caching,
            schedule_policy: own.schedule_policy,
            max_prefill_tokens: own.max_prefill_tokens,
            chunked_prefill_size: chunk,
            clip_max_new_tokens: own.clip_max_new_tokens,
            schedule_conservativeness: conservativeness,
            pass_order: match preset {
                Preset::Dynamo1_4 => PassOrder::Mixed,
                Preset::Dynamo1_6 => PassOrder::PrefillFirst,
            },
            prefix_lookup: match preset {
                Preset::Dynamo1_4 => PrefixLookup::FirstChunk,
                Preset::Dynamo1_6 => PrefixLookup::WholePrompt,
            },
            retraction: match preset {
                Preset::Dynamo1_4 => Retraction::BeforeAll,
                Preset::Dynamo1_6 => Retraction::BehindAll,
            },
            reservations: Reservations::BetweenSteps,
            max_extra_tokens_per_step: self.mtp.as_ref().map_or(0, |mtp| mtp.extra_tokens),
            prefill_decode_interval: own.prefill_decode_interval,
        };
        SglangConfig::new(input).map(EngineKind::from)
    }

    /// Whether Dynamo's router receives the KV events of a pass at its end. This holds in 1.6, and always for
    /// SGLang engines. Otherwise the router receives them at the start of the pass.
    #[must_use]
    pub fn reports_kv_at_step_end(&self, preset: Preset) -> bool {
        preset == Preset::Dynamo1_6 || matches!(self.engine_type, EngineType::Sglang(_))
    }

    fn latency(&self, preset: Preset, role: PoolRole, computes_prompts: bool) -> Result<LatencyFactory, String> {
        let semantics = preset.semantics();
        let is_sglang = matches!(self.engine_type, EngineType::Sglang(_));
        let phases = match role {
            // These prefill workers generate whole outputs, which takes time.
            PoolRole::Prefill if is_sglang && preset == Preset::Dynamo1_4 => WorkerPhases::Both,
            PoolRole::Prefill => WorkerPhases::Prefill,
            PoolRole::Decode if !computes_prompts => WorkerPhases::Decode,
            PoolRole::Aggregated | PoolRole::Decode => WorkerPhases::Both,
        };
        let speculative = self.mtp.is_some();
        let sums_contexts = is_sglang;
        let speed = SpeedInput { speedup_ratio: self.speedup_ratio, decode_speedup_ratio: self.decode_speedup_ratio };
        match &self.timing {
            Timing::Polynomial => {
                let input = PolynomialInput { semantics, phases, speculative, sums_contexts, speed };
                copies(Polynomial::new(input))
            }
            Timing::Fixed { prefill_ms, decode_ms } => {
                let ns = |ms: f64, ratio: f64| (ms * 1e6 / ratio).round() as u64;
                copies(Fixed::new(FixedInput::Passes {
                    prefill_ns: ns(*prefill_ms, self.speedup_ratio),
                    decode_ns: ns(*decode_ms, self.speedup_ratio * self.decode_speedup_ratio),
                    semantics,
                    phases,
                    speculative,
                    sums_contexts,
                }))
            }
            Timing::Profile(path) => {
                let tables = vcr_latency::profile::read(path, Deployment::Only).map_err(|error| error.to_string())?;
                let input = ProfileInput { tables, semantics, phases, speculative, sums_contexts, speed };
                copies(Profile::new(input))
            }
            Timing::Tables(input) => tables::latency(input, phases, [self.speedup_ratio, self.decode_speedup_ratio]),
        }
    }
}

fn copies<M: LatencyModel + Clone + Sync + 'static>(model: Result<M, InvalidConfig>) -> Result<LatencyFactory, String> {
    model.map(factory::copies).map_err(|error| error.to_string())
}
