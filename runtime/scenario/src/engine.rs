//! Engines: whose scheduler they have, and its settings.

use vcr_cluster::PolicyFactory;
use vcr_core::sglang::{PassOrder, PrefixLookup, Retraction, SchedulePolicy, SglangConfig, SglangConfigInput};
use vcr_core::{CapacityPolicy, ConfigError, EngineConfig, EngineConfigInput, EngineKind, Reservations};

use crate::error::Scripted;
use crate::options::Options;
use crate::tiers::TiersSpec;
use crate::{compat, policy};

/// Checked engine settings.
#[derive(Clone)]
pub(crate) struct EngineSpec {
    pub(crate) kind: EngineKind,
    pub(crate) policy: Option<PolicyFactory>,
    pub(crate) acceptance_rates: Vec<f64>,
}

impl Default for EngineSpec {
    fn default() -> Self {
        let config = EngineConfig::new(EngineConfigInput::default()).expect("the defaults are valid");
        Self { kind: config.into(), policy: None, acceptance_rates: Vec::new() }
    }
}

/// Whose scheduler an engine has.
#[derive(Clone, Copy, Default)]
enum EngineType {
    #[default]
    Vllm,
    Sglang,
    Trtllm,
}

const TYPES: &[(&str, EngineType)] =
    &[("vllm", EngineType::Vllm), ("sglang", EngineType::Sglang), ("trtllm", EngineType::Trtllm)];

const SCHEDULE_POLICIES: &[(&str, SchedulePolicy)] =
    &[("fifo", SchedulePolicy::Fifo), ("fcfs", SchedulePolicy::Fifo), ("lpm", SchedulePolicy::Lpm)];

const RETRACTIONS: &[(&str, Retraction)] =
    &[("behind-all", Retraction::BehindAll), ("before-all", Retraction::BeforeAll)];

const PASS_ORDERS: &[(&str, PassOrder)] = &[("mixed", PassOrder::Mixed), ("prefill-first", PassOrder::PrefillFirst)];

/// TensorRT-LLM's.
const TRTLLM_BLOCK_SIZE_TOKENS: u32 = 32;

pub(crate) fn make(mut options: Options<'_>) -> Scripted<EngineSpec> {
    let mut policy = None;
    let made = match options.choice("engine_type", TYPES).unwrap_or_default() {
        EngineType::Vllm => {
            let line = options.string("vllm_line");
            let rules = line.map(|line| compat::check_line(&line, &mut options)).unwrap_or_default();
            policy = policy::option(&mut options);
            let own = EngineConfigInput {
                policy: policy.as_ref().map(|spec| spec.policy).unwrap_or_default(),
                rules,
                ..EngineConfigInput::default()
            };
            vllm(&mut options, own)
        }
        EngineType::Trtllm => {
            let own = EngineConfigInput {
                block_size: TRTLLM_BLOCK_SIZE_TOKENS,
                capacity: CapacityPolicy::GuaranteedNoEvict,
                ..EngineConfigInput::default()
            };
            vllm(&mut options, own)
        }
        EngineType::Sglang => sglang(&mut options),
    };
    let rates = options.array("acceptance_rates").unwrap_or_default();
    let acceptance_rates: Vec<f64> = rates.iter().filter_map(crate::options::as_number).collect();
    if acceptance_rates.len() < rates.len() {
        options.problem("acceptance_rates", "`acceptance_rates` must be numbers between 0 and 1");
    }
    for error in made.as_ref().err().into_iter().flatten() {
        let text = error.to_string();
        // The first setting an error names is where it belongs.
        let field = text.split('`').nth(1).unwrap_or_default().to_owned();
        options.problem(&field, text);
    }
    options.finish()?;
    let kind = made.expect("an invalid configuration is a problem of the options");
    Ok(EngineSpec { kind, policy: policy.and_then(|spec| spec.factory), acceptance_rates })
}

/// An engine with vLLM's core; what its scripts do not say is as in `own`.
fn vllm(options: &mut Options<'_>, own: EngineConfigInput) -> Result<EngineKind, Vec<ConfigError>> {
    compat::refuse_unsupported(options);
    let input = EngineConfigInput {
        block_size: options.u32("block_size").unwrap_or(own.block_size),
        num_gpu_blocks: options.u32("num_gpu_blocks").unwrap_or(own.num_gpu_blocks),
        max_num_seqs: options.u32("max_num_seqs").unwrap_or(own.max_num_seqs),
        max_num_batched_tokens: options.u32("max_num_batched_tokens").unwrap_or(own.max_num_batched_tokens),
        max_model_len: options.u32("max_model_len"),
        enable_prefix_caching: options.boolean("enable_prefix_caching").unwrap_or(true),
        enable_chunked_prefill: options.boolean("enable_chunked_prefill").unwrap_or(true),
        long_prefill_token_threshold: options.u32("long_prefill_token_threshold").unwrap_or(0),
        adaptive_long_prefill: options.boolean("adaptive_long_prefill").unwrap_or(false),
        watermark: options.f64("watermark").unwrap_or(0.0),
        scheduler_reserve_full_isl: options.boolean("scheduler_reserve_full_isl").unwrap_or(true),
        max_num_active_seqs: options.u32("max_num_active_seqs"),
        max_extra_tokens_per_step: options.u32("max_extra_tokens_per_step").unwrap_or(0),
        num_speculative_tokens: options.u32("num_speculative_tokens").unwrap_or(0),
        async_scheduling: options.boolean("async_scheduling").unwrap_or(false),
        kv_tiers: options.made::<TiersSpec>("kv_tiers", "made by kv_tiers(#{ ... })").map(|spec| spec.0),
        ..own
    };
    let config = EngineConfig::new(input)?;
    config.check_start_up()?;
    Ok(config.into())
}

fn sglang(options: &mut Options<'_>) -> Result<EngineKind, Vec<ConfigError>> {
    let own = SglangConfigInput::default();
    let input = SglangConfigInput {
        page_size: options.u32("page_size").unwrap_or(own.page_size),
        num_pages: options.u32("num_pages").unwrap_or(own.num_pages),
        max_num_seqs: options.u32("max_num_seqs").unwrap_or(own.max_num_seqs),
        max_model_len: options.u32("max_model_len"),
        enable_prefix_caching: options.boolean("enable_prefix_caching").unwrap_or(true),
        schedule_policy: options.choice("schedule_policy", SCHEDULE_POLICIES).unwrap_or_default(),
        max_prefill_tokens: options.u32("max_prefill_tokens").unwrap_or(own.max_prefill_tokens),
        chunked_prefill_size: options.u32("chunked_prefill_size").unwrap_or(own.chunked_prefill_size),
        clip_max_new_tokens: options.u32("clip_max_new_tokens").unwrap_or(own.clip_max_new_tokens),
        schedule_conservativeness: options.f64("schedule_conservativeness").unwrap_or(own.schedule_conservativeness),
        pass_order: options.choice("pass_order", PASS_ORDERS).unwrap_or_default(),
        prefix_lookup: PrefixLookup::WholePrompt,
        retraction: options.choice("retraction", RETRACTIONS).unwrap_or_default(),
        reservations: Reservations::default(),
        max_extra_tokens_per_step: options.u32("max_extra_tokens_per_step").unwrap_or(0),
    };
    Ok(SglangConfig::new(input)?.into())
}
