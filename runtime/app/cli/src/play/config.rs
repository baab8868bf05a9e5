//! Makes the settings of live engines from command-line options.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vcr_base::random::Distribution;
use vcr_core::host::Overheads;
use vcr_core::{ACCEPTANCE_RATES, EngineConfig, Policy};
use vcr_live::{
    FaultRule, Identity, InjectorFactory, KvEventSettings, LatencyFactory, Limits, LiveConfig, PolicyFactory,
    RouterFactory, StatsSettings, TokenChoice, TokenFactory, TokenList, TokenSettings,
};
use vcr_scenario::expression;
use vcr_wire::{Dtype, KvEventsConfig, VllmMinor, check_peer_address};

use super::args::{DtypeArg, EventArgs, FaultArgs, HashArg, LinkArgs, LiveArgs, PlayArgs, RankArgs, TokenArgs};
use super::guests::LiveGuests;
use super::kv_shape::weights_dtype;
use super::latency::{named_latency, single_times};
use super::playback::{self, NamedModel};
use super::unusable::Unusable;
use crate::service::{raise_limit_of_files, use_small_pages};
use crate::values::is_guest;

/// Open files and sockets of a process, excluding its engines.
const FILES_OF_PROCESS: u64 = 100;
/// Open files of an engine with one API server: sockets, the wake-up descriptors of their threads, and connections.
const FILES_OF_ENGINE: u64 = 18;

fn check_open_files(engines: u16) -> Result<(), Unusable> {
    let limit = raise_limit_of_files();
    let needed = FILES_OF_PROCESS + u64::from(engines) * FILES_OF_ENGINE;
    if engines == 1 || needed <= limit {
        return Ok(());
    }
    let most = limit.saturating_sub(FILES_OF_PROCESS) / FILES_OF_ENGINE;
    Err(Unusable {
        message: format!(
            "--data-parallel-size {engines}: {engines} engines open about {needed} files and sockets, but this process may \
             open {limit}, enough for {most} engines"
        ),
        hint: Some(
            "raise the hard limit of open files (ulimit -Hn, LimitNOFILE=, --ulimit nofile=), or start fewer engines in \
             each process, the later ones with --data-parallel-start-rank"
                .to_owned(),
        ),
    })
}

/// Default upper bound of random tokens if the vocabulary is unknown.
const VOCAB_SIZE: u32 = 32_000;

/// Settings that depend on the frontend.
#[derive(Clone)]
pub(crate) struct FrontendSide {
    /// Identity of the engines towards the frontend.
    pub(crate) identity: Identity,
    pub(crate) model_name: String,
    /// The option that names the model.
    pub(crate) model_option: &'static str,
    /// The model's `config.json`.
    pub(crate) model_config: Option<PathBuf>,
    pub(crate) vocab_size: u32,
    /// Default longest sequence.
    pub(crate) max_model_len: Option<u32>,
    /// Number of adapters loaded at the start.
    pub(crate) num_adapters: u32,
    /// Default embedding dimensions; `None` disables embeddings.
    pub(crate) embedding_dimensions: Option<u32>,
    /// More engine settings, as arguments of `vllm serve`.
    pub(crate) engine_words: Vec<String>,
    /// Whether the frontend accepts statistics of KV transfers.
    pub(crate) takes_connector_stats: bool,
    /// An additional token source and its name.
    pub(crate) tokens: Option<(&'static str, TokenFactory)>,
    /// Token lists that the frontend has already read from the token source's file.
    pub(crate) listed: Option<Arc<TokenList>>,
    /// Whether the frontend plays back an HTTP capture itself.
    pub(crate) plays_http: bool,
}

/// Makes the settings of `vcr play`.
pub(crate) fn play_config(args: &PlayArgs, guests: &LiveGuests) -> Result<LiveConfig, Unusable> {
    check_open_files(args.live.ranks.data_parallel_size)?;
    check_peer_address(&args.link.handshake_address).map_err(|error| Unusable {
        message: format!("--handshake-address: {error}"),
        hint: Some("it is that of the frontend: tcp://, its --data-parallel-address and its -rpc-port".to_owned()),
    })?;
    let side = FrontendSide {
        identity: play_identity(&args.link, &args.live.ranks),
        model_name: args.link.model_name.clone(),
        model_option: "--model-name",
        model_config: None,
        vocab_size: VOCAB_SIZE,
        max_model_len: None,
        num_adapters: 0,
        embedding_dimensions: None,
        takes_connector_stats: false,
        engine_words: Vec::new(),
        tokens: None,
        listed: None,
        plays_http: false,
    };
    let config = live_config(&args.live, side, guests)?;
    if config.limits.max_cpu_loras.is_some() && config.engine.max_loras() == 0 {
        return Err(Unusable::new("invalid --max-cpu-loras: expected --max-loras with it"));
    }
    Ok(config)
}

/// Makes the settings of engines behind the frontend `side`.
pub(crate) fn live_config(
    args: &LiveArgs,
    mut side: FrontendSide,
    guests: &LiveGuests,
) -> Result<LiveConfig, Unusable> {
    use_small_pages();
    let (latency, latency_name) = latency(args, guests)?;
    check_placement(args, side.identity.version)?;
    let (ranking, policy) = policy(args, side.identity.version, guests)?;
    if !(args.timing.time_scale > 0.0 && args.timing.time_scale.is_finite()) {
        return Err(Unusable::new("invalid --time-scale: expected more than 0"));
    }
    let process = &args.process;
    let (model_len, adapters) = (side.max_model_len, side.num_adapters);
    let engine = args.engine.config(side.identity.version, ranking, model_len, adapters, &side.engine_words)?;
    let max_cpu_loras = args.engine.max_cpu_loras(&engine)?;
    let kv_events = kv_events(&args.events, &args.ranks, &side.model_name, &engine)?;
    let shape = args.transfer.shape(side.model_config.as_deref())?;
    if let (DtypeArg::Auto, Some(dtype)) = (args.ranks.dtype, shape.as_ref().and_then(weights_dtype)) {
        side.identity.dtype = dtype;
    }
    let transfer = args.transfer.settings(&engine, &side.identity, &side.model_name, shape.as_ref())?;
    Ok(LiveConfig {
        engine,
        sglang: None,
        policy,
        router: router(args, guests)?,
        latency,
        latency_name,
        overheads: overheads(args)?,
        grammar_compile_ns: args.timing.grammar_compile_time,
        time_scale: args.timing.time_scale,
        tokens: tokens(args, &side, guests)?,
        playback: match side.plays_http {
            true => None,
            false => {
                let model = NamedModel { name: &side.model_name, option: side.model_option };
                playback::settings(&args.playback, args.timing.is_given(), model)?
            }
        },
        seed: args.tokens.seed,
        stats: StatsSettings {
            log_stats: !args.events.disable_log_stats,
            iteration_details: args.events.enable_logging_iteration_details,
            connector: side.takes_connector_stats,
            log_requests: process.log_requests,
        },
        kv_events,
        transfer,
        faults: faults(&args.faults)?,
        injector: injector(args, guests)?,
        placements: None,
        steps: None,
        limits: Limits {
            max_requests: process.max_requests.max(1),
            max_prompt_tokens: process.max_prompt_tokens.max(1),
            max_frame_bytes: process.max_message_bytes,
            max_cpu_loras,
            ..Limits::default()
        },
        shutdown_timeout_ns: process.shutdown_timeout,
        identity: side.identity,
    })
}

fn play_identity(args: &LinkArgs, ranks: &RankArgs) -> Identity {
    Identity {
        handshake_address: args.handshake_address.clone(),
        connect_timeout: args.connect_timeout,
        is_local: args.local,
        is_headless: !args.no_headless,
        parallel_config_hash: args.parallel_config_hash.clone(),
        is_moe: args.moe,
        version: args.vllm_minor.0,
        ..identity(ranks)
    }
}

/// The identity of engines without frontend information.
pub(crate) fn identity(args: &RankArgs) -> Identity {
    Identity {
        handshake_address: String::new(),
        connect_timeout: None,
        first_rank: args.data_parallel_start_rank,
        num_ranks: args.data_parallel_size,
        version: None,
        vllm_version: args.vllm_version.clone(),
        instance_id: args.engine_id.clone(),
        dtype: match args.dtype {
            DtypeArg::Float16 => Dtype::Float16,
            DtypeArg::Bfloat16 | DtypeArg::Auto => Dtype::Bfloat16,
            DtypeArg::Float32 => Dtype::Float32,
        },
        tensor_parallel_size: args.tensor_parallel_size,
        is_local: false,
        is_headless: true,
        parallel_config_hash: None,
        is_moe: None,
    }
}

/// The engines' policy, and the factory of their ranking policy.
fn policy(
    args: &LiveArgs,
    minor: Option<VllmMinor>,
    guests: &LiveGuests,
) -> Result<(Policy, Option<PolicyFactory>), Unusable> {
    let (place, text) = ("--scheduling-policy", &*args.engine.scheduling_policy(minor)?);
    let guest_config = args.engine.scheduling_policy_config.as_deref();
    const FALLBACK: &str = "--scheduling-policy-fallback";
    let fallback = args.guests.scheduling_policy_fallback.as_ref();
    if is_guest(text) {
        let fallback = fallback
            .map(|text| expression::ranking_policy(FALLBACK, text, Path::new(""), guests.wall_time()))
            .transpose()?;
        let factory = guests.policy(text, guest_config.unwrap_or("{}"), fallback)?;
        return Ok((Policy::Ranked, Some(factory)));
    }
    if fallback.is_some() {
        return Err(Unusable::fallback_of_native(place, FALLBACK, "policy"));
    }
    if guest_config.is_some() {
        return Err(Unusable::config_of_native(place, "policy"));
    }
    Ok(expression::policy(place, text, Path::new(""), guests.wall_time())?)
}

fn router(args: &LiveArgs, guests: &LiveGuests) -> Result<Option<RouterFactory>, Unusable> {
    let Some(text) = args.routing.router.as_deref() else { return Ok(None) };
    let guest_config = args.routing.router_config.as_deref();
    let native = |place: &str, text: &str| -> Result<RouterFactory, Unusable> {
        let config = expression::router(place, text, Path::new(""), Some(guests.wall_time()))?;
        if config.kv().is_some() {
            return Err(Unusable {
                message: format!("{place}: the KV router keeps books of whole clusters, in virtual time only"),
                hint: Some("`kv-aware` uses the same costs from the reports of live engines".to_owned()),
            });
        }
        Ok(Arc::new(move |plugin_context| config.build(plugin_context)))
    };
    let fallback = args.guests.router_fallback.as_deref();
    let fallback = fallback.map(|text| native("--router-fallback", text)).transpose()?;
    if is_guest(text) {
        return guests.router(text, guest_config.unwrap_or("{}"), fallback).map(Some);
    }
    if fallback.is_some() {
        return Err(Unusable::fallback_of_native("--router", "--router-fallback", "router"));
    }
    if guest_config.is_some() {
        return Err(Unusable::config_of_native("--router", "router"));
    }
    Ok(Some(native("--router", text)?))
}

/// Checks that the latency model has as many GPUs as vLLM's command line.
fn check_placement(args: &LiveArgs, minor: Option<VllmMinor>) -> Result<(), Unusable> {
    let Some(text) = args.timing.latency.as_ref().filter(|text| !is_guest(text)) else { return Ok(()) };
    let Some(command) = args.engine.command_line(minor)? else { return Ok(()) };
    let contradictions = expression::contradictions("--latency", text, Path::new(""), ("--vllm-args", &command))?;
    if contradictions.is_empty() { Ok(()) } else { Err(Unusable::new(contradictions.join("\n"))) }
}

fn latency(args: &LiveArgs, guests: &LiveGuests) -> Result<(LatencyFactory, String), Unusable> {
    let fallback = args.guests.latency_fallback.as_ref();
    let fallback = fallback.map(|text| named_latency(guests, "--latency-fallback", text, None, None)).transpose()?;
    let fallback = fallback.map(|(factory, _)| factory);
    match &args.timing.latency {
        Some(text) => named_latency(guests, "--latency", text, args.timing.latency_config.as_deref(), fallback),
        None => single_times(&args.timing),
    }
}

/// Time outside of steps, if the latency model has it.
fn overheads(args: &LiveArgs) -> Result<Overheads, Unusable> {
    let Some(text) = args.timing.latency.as_ref().filter(|text| !is_guest(text)) else {
        return Ok(Overheads::default());
    };
    Ok(expression::overheads("--latency", text, Path::new(""))?.unwrap_or_default())
}

fn tokens(args: &LiveArgs, side: &FrontendSide, guests: &LiveGuests) -> Result<TokenSettings, Unusable> {
    let tokens = &args.tokens;
    let vocab_size = tokens.vocab_size.unwrap_or(side.vocab_size);
    let own = side.tokens.as_ref().filter(|(name, _)| *name == tokens.tokens);
    let choice = match tokens.tokens.as_str() {
        _ if own.is_some() => own.map_or(TokenChoice::Random, |(_, make)| TokenChoice::Native(Arc::clone(make))),
        "random" => TokenChoice::Random,
        "echo" => TokenChoice::Echo,
        guest if is_guest(guest) => {
            let config = tokens.tokens_config.as_deref().unwrap_or("{}");
            let fallback = NonZeroU32::new(vocab_size).filter(|_| args.guests.tokens_fallback);
            TokenChoice::Guest(guests.tokens(guest, config, fallback)?)
        }
        path if Path::new(path).is_file() => {
            let read = || TokenList::read(Path::new(path)).map_err(|error| Unusable::new(error.to_string()));
            TokenChoice::Listed(side.listed.clone().map_or_else(|| read().map(Arc::new), Ok)?)
        }
        other => {
            return Err(Unusable {
                message: format!("unknown source or file `{other}` of --tokens"),
                hint: Some("expected random, echo, the path of a .jsonl file or that of a .wasm guest".to_owned()),
            });
        }
    };
    if args.guests.tokens_fallback && !matches!(choice, TokenChoice::Guest(_)) {
        return Err(Unusable {
            message: "--tokens-fallback: only guests take a fallback".to_owned(),
            hint: Some("leave it out: other sources do not fail".to_owned()),
        });
    }
    let output_tokens = output_tokens(tokens)?;
    if let Some(problem) = ACCEPTANCE_RATES.problem(&args.engine.acceptance_rates) {
        return Err(Unusable::new(problem));
    }
    Ok(TokenSettings {
        choice,
        vocab_size,
        output_tokens,
        acceptance_rates: args.engine.acceptance_rates.clone(),
        embedding_dimensions: tokens.embedding_dimensions.or(side.embedding_dimensions),
    })
}

/// The output lengths, if given.
pub(crate) fn output_tokens(tokens: &TokenArgs) -> Result<Option<Distribution>, Unusable> {
    token_count("--output-tokens", tokens.output_tokens.as_deref())
}

/// Parses a distribution of token counts given for the option `name`.
pub(crate) fn token_count(name: &str, text: Option<&str>) -> Result<Option<Distribution>, Unusable> {
    let Some(text) = text else { return Ok(None) };
    let distribution = expression::count_distribution(name, text)?;
    if let Some(problem) = distribution.problems(f64::from(u32::MAX)).first() {
        return Err(Unusable::new(format!("{name}: {problem}")));
    }
    Ok(Some(distribution))
}

fn kv_events(
    args: &EventArgs,
    ranks: &RankArgs,
    model_name: &str,
    engine: &EngineConfig,
) -> Result<Option<KvEventSettings>, Unusable> {
    if !args.enable_kv_cache_events {
        return Ok(None);
    }
    if !engine.enable_prefix_caching() {
        return Err(Unusable::new("--enable-kv-cache-events needs prefix caching: without it nothing is ever cached"));
    }
    use vcr_base::block_hash::HashAlgorithm as Algorithm;
    Ok(Some(KvEventSettings {
        config: KvEventsConfig {
            endpoint: args.kv_events_endpoint.clone(),
            replay_endpoint: args.kv_events_replay_endpoint.clone(),
            buffer_steps: args.kv_events_buffer_steps,
            topic: args.kv_events_topic.replace("{engine}", &ranks.engine_id).replace("{model}", model_name),
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

/// All faults. `--failure-injection-rate` becomes one rule for each reason, applied to the requests that the earlier
/// rules left.
fn faults(args: &FaultArgs) -> Result<Vec<FaultRule>, Unusable> {
    let mut rules = args.faults.clone();
    let rate = args.failure_injection_rate;
    if !(0.0..=1.0).contains(&rate) {
        return Err(Unusable::new(format!("invalid --failure-injection-rate: expected 0 to 1, got {rate}")));
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

fn injector(args: &LiveArgs, guests: &LiveGuests) -> Result<Option<InjectorFactory>, Unusable> {
    let Some(guest) = &args.faults.failure_injector else { return Ok(None) };
    let config = args.faults.failure_injector_config.as_deref().unwrap_or("{}");
    guests.injector(guest, config, args.guests.failure_injector_fallback).map(Some)
}
