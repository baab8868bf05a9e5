//! `vcr serve`: an OpenAI-compatible server with simulated engines in the same process.

pub(crate) mod args;
mod arguments;
mod backend;
mod chats;
pub(crate) mod config_file;
mod model;
pub(crate) mod operations;
mod rendering;
mod responses;
mod sglang;
mod tape;
mod texts;
mod traces;
pub(crate) mod vllm_flags;

use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use vcr_core::{EngineConfig, NamedValue as _};
use vcr_frontend::http::{Before, ServerThreads};
use vcr_frontend::metrics::CacheConfig;
use vcr_frontend::page::WatchedEngines;
use vcr_frontend::{
    Admission, App, CallParsing, ChatOptions, EncoderAddress, EncoderOnly, EngineClient, HttpServer, Model,
    SchemaBackend, ServerOptions, StructureCheck,
};
use vcr_live::control::Listeners;
use vcr_live::{EnginesHandle, Identity, LiveConfig, LiveError, TokenChoice, TokenFactory};
use vcr_text::TextModel;
use vcr_wire::VllmMinor;

use crate::announce::announce;
use crate::exit::{Exit, print_error};
use crate::page::{self, PageParts};
use crate::play::config::{FrontendSide, identity, live_config, output_tokens, token_count};
use crate::play::guests::LiveGuests;
use crate::play::unusable::Unusable;
use crate::play::{boards, control, ended, playback};
use crate::service::{log, raise_limit_of_files};
use crate::stop;
use args::{FrontendArg, ServeArgs, ServerArgs};
use operations::{ChangedFaults, ChangedMetrics, Operations, Server};
pub(crate) use rendering::rendering_process;
use tape::{Ending, PlayedTape};

/// Default embedding dimensions, as in small models.
const EMBEDDING_DIMENSIONS: u32 = 384;

/// Default size of a token's hidden state, without a `config.json`.
const HIDDEN_SIZE: u32 = 4096;

/// The parts of a server.
struct Prepared {
    config: LiveConfig,
    model: Model,
    chats: ChatOptions,
    operations: Operations,
    /// One listener, or one for each engine.
    listeners: Vec<TcpListener>,
    /// The place where outputs of an encoder-only model are read.
    encoder: Option<EncoderAddress>,
    control: Listeners,
    /// The page and its own socket, if there is a page.
    page: Option<PageParts>,
    threads: ServerThreads,
    structures: Option<StructureCheck>,
    schema_backend: SchemaBackend,
    /// The tokenizer's config, if the server shows it.
    tokenizer_info: Option<serde_json::Value>,
    /// The HTTP capture that is played back.
    tape: Option<PlayedTape>,
    /// Ends the server at the first request that is not in the capture, if playback is strict.
    ending: Ending,
}

pub(crate) fn serve(args: &ServeArgs) -> Exit {
    if args.server.show_config {
        return config_file::show();
    }
    log(args.live.process.quiet, None);
    config_file::log_translation();
    if let Some(line) = args.vllm.without_effect() {
        tracing::warn!("{line}");
    }
    let guests = LiveGuests::new(&args.live.guests);
    let prepared = prepare(args, &guests).and_then(|prepared| {
        let report = playback::report_file(&args.live.playback)?;
        Ok((prepared, report))
    });
    let (prepared, report) = match prepared {
        Ok(prepared) => prepared,
        Err(unusable) => {
            print_error(&unusable.message, unusable.hint.as_deref());
            return Exit::BadInput;
        }
    };
    let (capture, tape) = (prepared.config.playback.clone(), prepared.tape.clone());
    let served = run(args, prepared, guests);
    let played_back = match (capture, tape) {
        (Some(settings), _) => playback::finish(report, &settings.playback),
        (None, Some(tape)) => tape.finish(report),
        (None, None) => Ok(Exit::Passed),
    };
    ended(served, played_back)
}

fn prepare(args: &ServeArgs, guests: &LiveGuests) -> Result<Prepared, Unusable> {
    raise_limit_of_files();
    let backend = args.server.structured_outputs_config.as_ref().and_then(|config| config.backend.as_deref());
    let schema_backend = SchemaBackend::of(args.server.frontend.into(), backend)
        .map_err(|reason| Unusable::new(format!("invalid --structured-outputs-config: {reason}")))?;
    let (mut model, own) = model::model(&args.server, &args.live.engine, args.media.rules())?;
    chats::replace_template(&args.chats, &mut model)?;
    let chats = chats::options(&args.chats, &model, args.server.model.is_none())?;
    // Filled later: a large vocabulary takes long, and may not be needed.
    let text = Arc::default();
    let side = FrontendSide {
        // The simulated frontend has a fixed vLLM version.
        identity: Identity { version: Some(VllmMinor::V0_33), is_headless: false, ..identity(&args.live.ranks) },
        model_name: model.names.first().cloned().unwrap_or_default(),
        model_option: "--served-model-name",
        model_config: own.config.clone(),
        // Ids that only pad the model's vocabulary have no text.
        vocab_size: model.tokenizer.vocab_size(),
        max_model_len: own.max_model_len,
        num_adapters: model.adapters.all().len() as u32,
        embedding_dimensions: Some(EMBEDDING_DIMENSIONS),
        takes_connector_stats: true,
        engine_words: args.sglang.words(args)?,
        tokens: Some(("english", english(args, &model, &chats, &text)?)),
        listed: texts::read(&args.live.tokens.tokens, &model, &chats)?.map(Arc::new),
        plays_http: tape::is_http(&args.tape, &args.live.playback),
    };
    let mut config = live_config(&args.live, side, guests)?;
    args.sglang.apply(&mut config)?;
    if args.media.mm_encoder_only {
        config.tokens.choice = TokenChoice::Native(Arc::new(|_context| Ok(Box::new(EncoderOnly))));
    }
    model.max_model_len = config.engine.max_model_len();
    model.embedding_dimensions = config.tokens.embedding_dimensions.unwrap_or(EMBEDDING_DIMENSIONS);
    let first = config.identity.first_rank;
    let has_adapters = args.vllm.enables_adapters() || !args.server.lora_modules.is_empty();
    let server = Server {
        model_name: model.names.first().cloned().unwrap_or_default(),
        host: args.server.host.clone(),
        engines: first..first + config.identity.num_ranks,
        max_model_len_tokens: u64::from(model.max_model_len),
        seed: args.live.tokens.seed,
        frontend: args.server.frontend.into(),
        sglang: sglang::engine_type(&config),
        max_loras: has_adapters.then_some(config.engine.max_loras()),
        cache: cache_config(args, &config.engine),
        has_tool_parser: matches!(chats.calls, CallParsing::Form(_)),
        shutdown_timeout: Duration::from_nanos(config.shutdown_timeout_ns) + LAST_ANSWERS,
    };
    let mut operations = Operations::new(&args.http, &args.clients, &args.traces, &server)?;
    let ending = Ending::default();
    let (player, tape) = tape::player(&args.tape, &args.live, &args.clients.client_fault, &ending, &model.tokenizer)?;
    operations.front.around.before = player.map(|player| Arc::new(player) as Arc<dyn Before>);
    let pod = args.http.pod_name.clone().map(|name| [args.http.pod_namespace.clone().unwrap_or_default(), name]);
    let control = control::listen(&args.live.control, boards::gpus(&args.live, pod)?)?;
    let page = args.live.page.parts("serve", Some(&args.server.host), &mut config)?;
    if page.is_some() {
        operations.observer = Arc::new(WatchedEngines(Arc::clone(&operations.observer)));
    }
    let listeners = match args.server.data_parallel_multi_port_external_lb {
        true => (0..config.identity.num_ranks).map(|rank| listen(&args.server, rank)).collect::<Result<_, _>>()?,
        false => vec![listen(&args.server, 0)?],
    };
    let port = listeners.first().and_then(|listener| listener.local_addr().ok()).map_or(0, |address| address.port());
    let encoder = args.media.mm_encoder_only.then(|| EncoderAddress {
        host: args.server.host.clone(),
        port,
        hidden_size: own.hidden_size.unwrap_or(HIDDEN_SIZE),
    });
    let threads = ServerThreads::start(usize::from(args.server.server_threads))
        .map_err(|error| Unusable::new(format!("cannot start the server's threads: {error}")))?;
    operations.front.listen.threads = Arc::new(threads.pool());
    // Recorded answers do not follow structured-output requests.
    let structures = config.playback.is_none().then(|| structure_check(text));
    let tokenizer_info = model::tokenizer_info(&args.server, &model)?;
    Ok(Prepared {
        config,
        model,
        chats,
        operations,
        listeners,
        encoder,
        control,
        page,
        threads,
        structures,
        schema_backend,
        tokenizer_info,
        tape,
        ending,
    })
}

/// The KV cache of an engine, for metrics.
fn cache_config(args: &ServeArgs, engine: &EngineConfig) -> CacheConfig {
    CacheConfig {
        block_size: engine.block_size(),
        num_gpu_blocks: engine.num_gpu_blocks(),
        enable_prefix_caching: engine.enable_prefix_caching(),
        cache_dtype: args.live.transfer.kv_cache_dtype.to_string(),
        prefix_caching_hash_algo: args.live.events.prefix_caching_hash_algo.name().to_owned(),
        mamba_cache_mode: engine.stated().mamba_cache_mode.name().to_owned(),
        prefix_cache_retention_interval: engine.prefix_cache_retention_interval().unwrap_or(0),
    }
}

/// The token source of English answers, with reasoning if a parser separates it.
fn english(
    args: &ServeArgs,
    model: &Model,
    chats: &ChatOptions,
    text: &Arc<OnceLock<TextModel>>,
) -> Result<TokenFactory, Unusable> {
    let reasoning_tokens = token_count("--reasoning-tokens", args.chats.reasoning_tokens.as_deref())?;
    let output_tokens = output_tokens(&args.live.tokens)?;
    let arguments = args.arguments.settings()?;
    let (tokenizer, reasoning) = (model.tokenizer.clone(), chats.reasoning.clone());
    let make = move || {
        TextModel::new(&tokenizer)
            .with_output_tokens(output_tokens)
            .with_reasoning(reasoning.clone(), reasoning_tokens)
            .with_arguments(arguments.clone())
    };
    let text = Arc::clone(text);
    Ok(Arc::new(move |_context| Ok(Box::new(text.get_or_init(&make).source()))))
}

/// Checks structured-output requests, if the engines generate English answers.
fn structure_check(text: Arc<OnceLock<TextModel>>) -> StructureCheck {
    StructureCheck(Arc::new(move |asked, is_gone| match text.get() {
        Some(text) => text.structure(asked, is_gone).map(drop),
        None => Ok(()),
    }))
}

/// Opens the port of a rank, counted from `--port`; with port 0, a free port.
fn listen(args: &ServerArgs, rank: u16) -> Result<TcpListener, Unusable> {
    let port = if args.port == 0 { Some(0) } else { args.port.checked_add(rank) };
    let port = port.ok_or_else(|| Unusable::new(format!("--port {}: there is no port for rank {rank}", args.port)))?;
    let unusable = |error: std::io::Error| Unusable {
        message: format!("cannot listen on {}:{port}: {error}", args.host),
        hint: Some("--port 0 takes a free port".to_owned()),
    };
    let listener = TcpListener::bind((args.host.as_str(), port)).map_err(unusable)?;
    listener.set_nonblocking(true).map_err(unusable)?;
    Ok(listener)
}

/// The parts that a signal stops.
struct Running {
    engines: EnginesHandle,
    stop: watch::Sender<bool>,
}

fn run(args: &ServeArgs, prepared: Prepared, guests: LiveGuests) -> Result<(), LiveError> {
    let Prepared {
        config,
        model,
        chats,
        mut operations,
        listeners,
        encoder,
        control,
        page,
        threads,
        structures,
        schema_backend,
        tokenizer_info,
        tape,
        ending,
    } = prepared;
    let (stop, stopped) = watch::channel(false);
    let (_in_order, starting) = stop::in_order_from_start(|running: &Running| {
        running.stop.send_replace(true);
        running.engines.shut_down();
    });
    // Without a seed, English answers differ each time.
    let is_varied = args.live.tokens.tokens == "english" && args.live.tokens.seed == 0;
    let max_num_seqs = config.engine.max_num_seqs() as usize;
    let sglang = sglang::info(args, &config);
    let grace = Duration::from_nanos(config.shutdown_timeout_ns);
    let (engines, client) = EngineClient::start(config, Some(operations.observer))?;
    if let Some(pace) = tape.and_then(|tape| tape.pace) {
        pace.begin(client.clone());
    }
    if let Some(most) = args.server.max_waiting_queue_length {
        client.limit_load(max_num_seqs.saturating_add(most as usize));
    }
    if matches!(args.server.frontend, FrontendArg::Python) {
        let (requests, prompt_tokens) = (args.server.max_num_queued_reqs, args.server.max_num_queued_tokens);
        client.limit_admission(Admission { requests, prompt_tokens });
    }
    starting.started(Running { engines: engines.handle(), stop: stop.clone() });
    let (ends, of_server) = (engines.handle(), stop.clone());
    _ = ending.set(Box::new(move || {
        of_server.send_replace(true);
        ends.shut_down();
    }));
    let faults = Arc::clone(&operations.front.faults.faults);
    let client_faults = Arc::new(ChangedFaults { faults, is_playback: args.live.playback.playback.is_some() });
    let fake_metrics = Arc::new(ChangedMetrics(operations.fake_metrics));
    let control =
        control.with_guests(guests.reader()).with_client_faults(client_faults).with_fake_metrics(fake_metrics);
    let latency = control::latency_reader(guests);
    let page = page.map(|page| {
        let admin = control.admin_routes(engines.handle(), Arc::clone(&latency));
        let title = model.names.first().cloned().unwrap_or_default();
        page.page(title, engines.handle(), admin, !operations.front.around.api_keys.is_empty())
    });
    let page_listener = match page.transpose() {
        Ok(page) => page.and_then(|(page, listener)| {
            operations.front.around.page = Some(page);
            listener
        }),
        Err(error) => {
            engines.handle().shut_down();
            return Err(LiveError::Thread(error));
        }
    };
    let control = control
        .serve(engines.handle(), latency)
        .map_err(LiveError::Thread)
        .inspect_err(|_| engines.handle().shut_down());
    let options = ServerOptions {
        startup_duration: Duration::from_nanos(args.server.startup_duration),
        frontend: args.server.frontend.into(),
        sglang,
        schema_backend,
        has_document: !args.server.disable_fastapi_docs,
        tokenizer_info,
        forces_usage: args.server.enable_force_include_usage,
        tokens_as_ids: args.server.return_tokens_as_token_ids,
        enable_prompt_tokens_details: args.server.enable_prompt_tokens_details,
        engine_id: args.live.ranks.engine_id.clone(),
        is_varied,
        least_cached: args.server.global_cache_hit_threshold,
        stored_responses_bytes: args.responses.stored_bytes(),
        chat: chats,
        images: args.media.images(args.live.tokens.seed),
        encoder,
        structures,
    };
    let listeners = (listeners, page_listener);
    let served = serve_http(client, model, options, operations.front, listeners, stopped, args.live.process.quiet);
    let served = threads.first().spawn(served);
    let result = engines.wait();
    stop.send_replace(true);
    // Complete answers may still be in transmission.
    threads.first().block_on(async {
        _ = tokio::time::timeout(grace + LAST_ANSWERS, served).await;
    });
    threads.shut_down();
    if let Some(exporter) = operations.exporter {
        exporter.finish();
    }
    drop(control?);
    result
}

/// Time to send the remaining answers after the engines have ended.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

async fn serve_http(
    client: EngineClient,
    model: Model,
    options: ServerOptions,
    front: HttpServer,
    (listeners, page): (Vec<TcpListener>, Option<TcpListener>),
    mut stopped: watch::Receiver<bool>,
    quiet: bool,
) {
    let name = model.names.first().cloned().unwrap_or_default();
    if !client.ready().await {
        return;
    }
    let app = App::new(client, model, options);
    if let Err(error) = app.model.adapters.load_listed(&app.engines).await {
        tracing::error!("--lora-modules: {}", error.message);
    }
    let scheme = if front.listen.tls.is_some() { "https" } else { "http" };
    if front.around.page.is_some()
        && let Some(listener) = page.as_ref().or(listeners.first())
    {
        page::tell(listener, scheme);
    }
    let listen = tokio::net::TcpListener::from_std;
    let listeners: Result<Vec<_>, _> = listeners.into_iter().map(listen).collect();
    let (listeners, page) = match listeners.and_then(|listeners| Ok((listeners, page.map(listen).transpose()?))) {
        Ok(listeners) => listeners,
        Err(error) => return tracing::error!("cannot listen: {error}"),
    };
    for (rank, listener) in listeners.iter().enumerate() {
        let of_rank = if rank > 0 { format!("rank {rank} of ") } else { String::new() };
        if let Ok(address) = listener.local_addr() {
            announce(&format!("serving {of_rank}{name} on {scheme}://{address}"), quiet);
        }
    }
    let stopped = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
    front.serve_ranks(listeners, page, app, stopped).await;
}
