//! From options to the settings of live engines.

use std::path::Path;
use std::sync::Arc;

use vcr_core::fault::FaultError;
use vcr_core::latency::LatencyError;
use vcr_core::policy::PolicyError;
use vcr_core::tokens::TokenError;
use vcr_core::{EngineConfig, EngineConfigInput, Policy};
use vcr_guest::{GuestModule, Limits as GuestLimits};
use vcr_live::{
    FaultRule, Identity, InjectorFactory, KvEventSettings, LatencyFactory, Limits, LiveConfig, PolicyFactory,
    StatsSettings, TokenChoice, TokenList, TokenSettings, TransferSettings,
};
use vcr_scenario::expression;
use vcr_wire::{Dtype, KvEventsConfig};

use super::args::{DtypeArg, EngineArgs, EventArgs, FaultArgs, HashArg, LinkArgs, PlayArgs, TimingArgs};
use super::replay;

/// Longest sequence unless one is given: more than most models take.
const MODEL_LEN: u32 = 131_072;

/// Why options cannot be used: what, and what to do.
#[derive(Debug)]
pub(crate) struct Unusable {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Unusable {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }
}

impl From<vcr_scenario::ScenarioError> for Unusable {
    fn from(error: vcr_scenario::ScenarioError) -> Self {
        Self { message: error.to_string(), hint: error.hint }
    }
}

impl From<vcr_guest::GuestError> for Unusable {
    fn from(error: vcr_guest::GuestError) -> Self {
        Self { message: error.to_string(), hint: error.hint() }
    }
}

/// The settings that the options ask for.
pub(crate) fn live_config(args: &PlayArgs) -> Result<LiveConfig, Unusable> {
    let (latency, latency_name) = latency(&args.timing)?;
    let (ranking, policy) = policy(&args.engine)?;
    if !(args.timing.time_scale > 0.0 && args.timing.time_scale.is_finite()) {
        return Err(Unusable::new("--time-scale must be more than 0"));
    }
    let process = &args.process;
    let transfer = &args.transfer;
    Ok(LiveConfig {
        identity: identity(&args.link),
        engine: engine(&args.engine, &args.link, ranking)?,
        policy,
        latency,
        latency_name,
        time_scale: args.timing.time_scale,
        tokens: tokens(args)?,
        replay: replay::settings(&args.replay, &args.timing, &args.link.model_name)?,
        seed: args.tokens.seed,
        stats: StatsSettings {
            log_stats: !args.events.disable_log_stats,
            iteration_details: args.events.enable_logging_iteration_details,
            log_requests: process.log_requests,
        },
        kv_events: kv_events(&args.events, &args.link, args.engine.no_enable_prefix_caching)?,
        transfer: TransferSettings {
            engine_id: args.link.engine_id.clone(),
            side_channel_host: transfer.side_channel_host.clone(),
            side_channel_port: transfer.side_channel_port,
            latency_ns: transfer.kv_cache_transfer_latency,
            per_token_ns: transfer.kv_cache_transfer_time_per_token,
            std_dev_ns: transfer.kv_cache_transfer_time_std_dev,
            lease_ns: transfer.kv_lease,
        },
        faults: faults(&args.faults)?,
        injector: injector(&args.faults)?,
        limits: Limits {
            max_requests: process.max_requests.max(1),
            max_prompt_tokens: process.max_prompt_tokens.max(1),
            max_frame_bytes: process.max_message_bytes,
            ..Limits::default()
        },
        shutdown_timeout_ns: process.shutdown_timeout,
    })
}

fn identity(args: &LinkArgs) -> Identity {
    Identity {
        handshake_address: args.handshake_address.clone(),
        first_rank: args.data_parallel_start_rank,
        num_ranks: args.data_parallel_size,
        line: args.vllm_line.0,
        vllm_version: args.vllm_version.clone(),
        instance_id: args.engine_id.clone(),
        dtype: match args.dtype {
            DtypeArg::Float16 => Dtype::Float16,
            DtypeArg::Bfloat16 => Dtype::Bfloat16,
            DtypeArg::Float32 => Dtype::Float32,
        },
        tensor_parallel_size: args.tensor_parallel_size,
        is_local: args.local,
        is_headless: !args.no_headless,
        parallel_config_hash: args.parallel_config_hash.clone(),
        is_moe: args.moe,
    }
}

fn engine(args: &EngineArgs, link: &LinkArgs, policy: Policy) -> Result<EngineConfig, Unusable> {
    let line = link.vllm_line.0.unwrap_or(vcr_wire::Line::V0_33);
    let capacity = args.num_gpu_blocks.saturating_sub(1).saturating_mul(args.block_size);
    let input = EngineConfigInput {
        block_size: args.block_size,
        num_gpu_blocks: args.num_gpu_blocks,
        max_num_seqs: args.max_num_seqs,
        max_num_batched_tokens: args.max_num_batched_tokens,
        max_model_len: Some(args.max_model_len.unwrap_or(capacity.clamp(1, MODEL_LEN))),
        policy,
        enable_prefix_caching: !args.no_enable_prefix_caching,
        enable_chunked_prefill: !args.no_enable_chunked_prefill,
        long_prefill_token_threshold: args.long_prefill_token_threshold,
        watermark: args.watermark,
        max_loras: args.max_loras,
        num_speculative_tokens: args.num_speculative_tokens,
        async_scheduling: args.async_scheduling,
        rules: expression::scheduler_rules(line.name()).unwrap_or_default(),
        ..EngineConfigInput::default()
    };
    let several = |errors: Vec<vcr_core::ConfigError>| {
        let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
        Unusable::new(lines.join("\n"))
    };
    let config = EngineConfig::new(input).map_err(several)?;
    config.check_start_up().map_err(several)?;
    Ok(config)
}

/// What engines follow, and what ranks for them.
fn policy(args: &EngineArgs) -> Result<(Policy, Option<PolicyFactory>), Unusable> {
    let (place, text) = ("--scheduling-policy", args.scheduling_policy.as_str());
    let guest_config = args.scheduling_policy_config.as_deref();
    if text.ends_with(".wasm") {
        let factory = policy_guest(Path::new(text), guest_config.unwrap_or("{}"))?;
        return Ok((Policy::Ranked, Some(factory)));
    }
    if guest_config.is_some() {
        return Err(only_guests_are_configured(place, "policy"));
    }
    Ok(expression::policy(place, text, Path::new(""))?)
}

fn policy_guest(path: &Path, config: &str) -> Result<PolicyFactory, Unusable> {
    let module = GuestModule::load(path, GuestLimits::default())?;
    // Made once now, so that a bad configuration is told before anything starts.
    module.scheduler_policy(config, 0)?;
    let config = config.to_owned();
    Ok(Arc::new(move |seed| {
        module
            .scheduler_policy(&config, seed)
            .map_err(|error| PolicyError { policy: module.name().to_owned(), reason: error.to_string() })
    }))
}

fn only_guests_are_configured(place: &str, what: &str) -> Unusable {
    Unusable {
        message: format!("{place}: only guests take a configuration"),
        hint: Some(format!("name the path of a .wasm guest, or put the settings into the {what}'s own map")),
    }
}

/// The model, and what to call it.
fn latency(args: &TimingArgs) -> Result<(LatencyFactory, String), Unusable> {
    match &args.latency {
        Some(text) => named_latency("--latency", text, args.latency_config.as_deref()),
        None => named_latency("--latency", &knobs(args), None),
    }
}

/// The model that a user, at the place `place`, calls `text`, and what to call
/// it.
pub(crate) fn named_latency(
    place: &str,
    text: &str,
    guest_config: Option<&str>,
) -> Result<(LatencyFactory, String), Unusable> {
    if text.ends_with(".wasm") {
        return latency_guest(Path::new(text), guest_config.unwrap_or("{}"));
    }
    if guest_config.is_some() {
        return Err(only_guests_are_configured(place, "model"));
    }
    let factory = expression::latency(place, text, Path::new(""))?;
    Ok((factory, text.to_owned()))
}

fn latency_guest(path: &Path, config: &str) -> Result<(LatencyFactory, String), Unusable> {
    let module = GuestModule::load(path, GuestLimits::default())?;
    // Made once now, so that a bad configuration is told before anything starts.
    module.latency_model(config, 0)?;
    let (name, config) = (module.name().to_owned(), config.to_owned());
    let factory: LatencyFactory = Arc::new(move |seed| {
        module
            .latency_model(&config, seed)
            .map_err(|error| LatencyError { model: module.name().to_owned(), reason: error.to_string() })
    });
    Ok((factory, name))
}

/// The options of single times, in the words of scenarios.
fn knobs(args: &TimingArgs) -> String {
    let spread = |mean_ns: u64, std_ns: Option<u64>| match std_ns {
        Some(std_ns) if std_ns > 0 => format!("normal(\"{mean_ns}ns\", \"{std_ns}ns\")"),
        _ => format!("\"{mean_ns}ns\""),
    };
    let first_ns = args.time_to_first_token.or(args.prefill_overhead);
    let first_std_ns = args.time_to_first_token_std_dev.or(args.prefill_time_std_dev);
    let is_instant = first_ns.is_none() && args.inter_token_latency.is_none() && args.prefill_time_per_token.is_none();
    if is_instant {
        return "fixed(#{ step: \"0ns\" })".to_owned();
    }
    format!(
        "knobs(#{{ ttft: {}, itl: {}, prefill_per_token: \"{}ns\", full_load_factor: {:?} }})",
        spread(first_ns.unwrap_or(0), first_std_ns),
        spread(args.inter_token_latency.unwrap_or(0), args.inter_token_latency_std_dev),
        args.prefill_time_per_token.unwrap_or(0),
        args.time_factor_under_load.unwrap_or(1.0),
    )
}

fn tokens(args: &PlayArgs) -> Result<TokenSettings, Unusable> {
    let tokens = &args.tokens;
    let choice = match tokens.tokens.as_str() {
        "random" => TokenChoice::Random,
        "echo" => TokenChoice::Echo,
        path if path.ends_with(".wasm") => token_guest(Path::new(path), tokens.tokens_config.as_deref())?,
        path if Path::new(path).is_file() => {
            let list = TokenList::read(Path::new(path)).map_err(|error| Unusable::new(error.to_string()))?;
            TokenChoice::Listed(Arc::new(list))
        }
        other => {
            return Err(Unusable {
                message: format!("--tokens {other}: there is no such source and no such file"),
                hint: Some("say random, echo, the path of a .jsonl file or that of a .wasm guest".to_owned()),
            });
        }
    };
    let output_tokens = match &tokens.output_tokens {
        Some(text) => {
            let distribution = expression::count_distribution("--output-tokens", text)?;
            if let Some(problem) = distribution.problems(f64::from(u32::MAX)).first() {
                return Err(Unusable::new(format!("--output-tokens: {problem}")));
            }
            Some(distribution)
        }
        None => None,
    };
    if let Some(rate) = args.engine.acceptance_rates.iter().find(|rate| !(0.0..=1.0).contains(*rate)) {
        return Err(Unusable::new(format!("--acceptance-rates must be from 0 to 1, but one is {rate}")));
    }
    Ok(TokenSettings {
        choice,
        vocab_size: tokens.vocab_size,
        output_tokens,
        acceptance_rates: args.engine.acceptance_rates.clone(),
        embedding_dimensions: tokens.embedding_dimensions,
    })
}

fn kv_events(args: &EventArgs, link: &LinkArgs, no_prefix_caching: bool) -> Result<Option<KvEventSettings>, Unusable> {
    if !args.enable_kv_cache_events {
        return Ok(None);
    }
    if no_prefix_caching {
        return Err(Unusable::new("--enable-kv-cache-events needs prefix caching: without it nothing is ever cached"));
    }
    use vcr_block_hash::HashAlgorithm as Algorithm;
    Ok(Some(KvEventSettings {
        config: KvEventsConfig {
            endpoint: args.kv_events_endpoint.clone(),
            replay_endpoint: args.kv_events_replay_endpoint.clone(),
            buffer_steps: args.kv_events_buffer_steps,
            topic: args.kv_events_topic.replace("{engine}", &link.engine_id).replace("{model}", &link.model_name),
            ..KvEventsConfig::default()
        },
        algorithm: match args.prefix_caching_hash_algo {
            HashArg::Sha256 => Algorithm::Sha256,
            HashArg::Sha256Cbor => Algorithm::Sha256Cbor,
            HashArg::Xxhash => Algorithm::Xxhash,
            HashArg::XxhashCbor => Algorithm::XxhashCbor,
        },
        hash_seed: args.kv_cache_hash_seed.clone(),
        whole_digests: args.kv_events_whole_digests,
    }))
}

/// The faults, those of the rate among them: each reason gets its share of
/// the requests that the ones before it left.
fn faults(args: &FaultArgs) -> Result<Vec<FaultRule>, Unusable> {
    let mut rules = args.faults.clone();
    let rate = args.failure_injection_rate;
    if !(0.0..=1.0).contains(&rate) {
        return Err(Unusable::new(format!("--failure-injection-rate must be from 0 to 1, but is {rate}")));
    }
    if rate > 0.0 {
        let share = rate / args.failure_types.len() as f64;
        let mut left = 1.0;
        for reason in &args.failure_types {
            let text = format!("error:reason={reason},rate={}", share / left);
            rules.push(text.parse().map_err(|error| Unusable::new(format!("--failure-types: {error}")))?);
            left -= share;
        }
    }
    Ok(rules)
}

fn injector(args: &FaultArgs) -> Result<Option<InjectorFactory>, Unusable> {
    let Some(path) = &args.failure_injector else { return Ok(None) };
    let config = args.failure_injector_config.clone().unwrap_or_else(|| "{}".to_owned());
    let module = GuestModule::load(path, GuestLimits::default())?;
    module.failure_injector(&config, 0)?;
    Ok(Some(Arc::new(move |seed| {
        module
            .failure_injector(&config, seed)
            .map_err(|error| FaultError { injector: module.name().to_owned(), reason: error.to_string() })
    })))
}

fn token_guest(path: &Path, config: Option<&str>) -> Result<TokenChoice, Unusable> {
    let config = config.unwrap_or("{}").to_owned();
    let module = GuestModule::load(path, GuestLimits::default())?;
    module.token_source(&config, 0)?;
    Ok(TokenChoice::Guest(Arc::new(move |seed| {
        module
            .token_source(&config, seed)
            .map_err(|error| TokenError { r#source: module.name().to_owned(), reason: error.to_string() })
    })))
}
