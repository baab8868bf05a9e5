//! Runs the server of `vcr serve` on the engines of a run, on a free local port.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use vcr_cluster::{AdapterNames, HttpTarget, ServeTarget, SessionNames, TargetError};
use vcr_frontend::engine::EngineObserver;
use vcr_frontend::faults::{ClientFault, ClientFaults, FaultLayer, RuleError, Tenants};
use vcr_frontend::http::{Around, BodyLimits, Cors, ListenOptions, PodHeaders, RequestLog, ServerThreads};
use vcr_frontend::metrics::{EngineMetrics, Metrics, MetricsOptions};
use vcr_frontend::{Adapters, App, ChatOptions, EngineClient, HttpServer, MediaRules, Model, ServerOptions};
use vcr_text::{ChatTemplate, GenerationConfig, Tokenizer};

const MODEL: &str = "sim";
/// The run's own client keeps connections open for the whole run.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3600);
/// At the end of a run, requests in progress are cancelled.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(100);
/// Enough for a prompt of a million tokens.
const MAX_BODY_BYTES: usize = 64 << 20;

/// The metrics of a server, and the observer that updates them.
pub(crate) fn metrics(engines: u16, max_model_len: u32) -> (Metrics, Box<dyn EngineObserver>) {
    let metrics = Metrics::new(&MetricsOptions {
        model_name: MODEL.to_owned(),
        engines: (0..u32::from(engines)).collect(),
        max_model_len_tokens: u64::from(max_model_len),
        ..MetricsOptions::default()
    });
    let observer = Box::new(EngineMetrics::new(&metrics, 0..engines));
    (metrics, observer)
}

/// A running server. It stops on drop.
pub(crate) struct Server {
    url: String,
    _stop: oneshot::Sender<()>,
    /// Taken on drop.
    threads: Option<ServerThreads>,
}

impl Server {
    /// The server as an HTTP target.
    pub(crate) fn target(&self) -> HttpTarget {
        HttpTarget {
            url: self.url.clone(),
            vocab_size: Some(vocab_size()),
            sessions: SessionNames { header: Some("x-session-id".to_owned()), token: None },
            ..HttpTarget::default()
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The results of the threads are not needed.
        self.threads.take().into_iter().for_each(ServerThreads::shut_down);
    }
}

pub(crate) fn vocab_size() -> u32 {
    Tokenizer::builtin().vocab_size()
}

/// The path of the run's requests.
const COMPLETIONS: &str = "/v1/completions";

/// Parses the client faults. A fault without a path applies only to the run's requests, not to the identification
/// requests before them.
///
/// # Errors
/// The first text that is not a client fault.
pub(crate) fn client_faults(target: &ServeTarget) -> Result<Vec<ClientFault>, TargetError> {
    let of_completions = |text: &str| {
        let is_placed = text.contains("path=") || text.starts_with("refuse");
        let separator = if text.contains(':') { ',' } else { ':' };
        if is_placed { text.to_owned() } else { format!("{text}{separator}path={COMPLETIONS}") }
    };
    let rule = |text: &String| {
        let error = |error: RuleError| TargetError::unusable(error.to_string());
        // Parse the original text first, so that an error does not show the added path.
        text.parse::<ClientFault>().map_err(error)?;
        of_completions(text).parse().map_err(error)
    };
    target.client_faults.iter().map(rule).collect()
}

/// Serves engines that are ready, with these LoRA adapters and client faults. Faults are drawn from `seed`. The
/// server's threads are separate from the client's.
pub(crate) fn serve(
    engines: EngineClient,
    metrics: Metrics,
    max_model_len: u32,
    adapters: &BTreeSet<u32>,
    (faults, seed): (Vec<ClientFault>, u64),
) -> Result<Server, TargetError> {
    let failed = |error: std::io::Error| TargetError::Failed(format!("cannot serve: {error}"));
    let count = std::thread::available_parallelism().map_or(1, usize::from).saturating_sub(1);
    let threads = ServerThreads::start(count).map_err(failed)?;
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let rules = Arc::new(ClientFaults::new(faults, seed, Tenants::default()));
    let refuses = Arc::clone(&rules);
    let front = HttpServer {
        around: Around {
            metrics: metrics.clone(),
            fake_metrics: None,
            api_keys: Vec::new(),
            cors: Cors { origins: Vec::new(), methods: Vec::new(), headers: Vec::new(), credentials: false },
            log: RequestLog { has_id_header: false },
            pod: PodHeaders::default(),
            session_cookie: None,
            body: BodyLimits { max_bytes: MAX_BODY_BYTES, timeout: HEAD_TIMEOUT },
            body_memory_bytes: 4 * MAX_BODY_BYTES,
            before: None,
            page: None,
        },
        faults: FaultLayer { faults: rules, metrics: metrics.clone(), max_body_bytes: MAX_BODY_BYTES },
        listen: ListenOptions {
            tls: None,
            head_timeout: HEAD_TIMEOUT,
            shutdown_timeout: SHUTDOWN_TIMEOUT,
            refuses: Arc::new(move || refuses.refuses_connection()),
            metrics,
            rank: None,
            is_at_page: false,
            threads: Arc::new(threads.pool()),
        },
        is_traced: false,
    };
    let options = ServerOptions { chat: ChatOptions::default(), ..ServerOptions::default() };
    let app = App::new(engines, model(max_model_len, adapters), options);
    let (stop, stopped) = oneshot::channel::<()>();
    threads.first().spawn(async move {
        if let Ok(listener) = TcpListener::from_std(listener) {
            front.serve(listener, app, async { drop(stopped.await) }).await;
        }
    });
    Ok(Server { url: format!("http://{address}"), _stop: stop, threads: Some(threads) })
}

fn model(max_model_len: u32, adapters: &BTreeSet<u32>) -> Model {
    let names = AdapterNames::default();
    let adapters = adapters.iter().filter_map(|number| names.name(*number)).map(|name| (name.clone(), name));
    let tokenizer = Tokenizer::builtin();
    Model {
        names: vec![MODEL.to_owned()],
        root: MODEL.to_owned(),
        template: Some(ChatTemplate::builtin()),
        generation: GenerationConfig::default(),
        eos_tokens: tokenizer.eos_token_ids().to_vec(),
        max_model_len,
        vocab_size: tokenizer.vocab_size(),
        tokenizer,
        embedding_dimensions: 1,
        media: MediaRules::default(),
        adapters: Adapters::new(adapters),
        stream_interval: 1,
        frontend: vcr_frontend::FrontendKind::default(),
    }
}
