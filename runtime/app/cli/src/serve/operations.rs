//! Options of the server around the API: keys, TLS, CORS, limits, metrics and client faults.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use vcr_base::units;
use vcr_frontend::engine::EngineObserver;
use vcr_frontend::faults::{ClientFault, ClientFaults, FaultLayer, HeaderName, RuleError, Tenants};
use vcr_frontend::http::{
    Around, BodyLimits, ClientCertificates, Cors, ListenOptions, PodHeaders, RequestLog, SessionCookie,
};
use vcr_frontend::http::{ServerCertificate, Tls, TlsError, TlsSettings};
use vcr_frontend::llm_d::{self, Translation};
use vcr_frontend::metrics::{CacheConfig, CustomBuckets, EngineMetrics, FakeSlot, Metrics, MetricsOptions};
use vcr_frontend::traces::TraceExporter;
use vcr_frontend::{FrontendKind, HttpServer};
use vcr_live::control::{ClientFaultRules, FakeMetricValues};

use super::traces::{TraceArgs, traced};
use crate::play::unusable::Unusable;

#[derive(Debug, Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpArgs {
    /// Require one of these keys (repeatable).
    #[arg(long, value_name = "KEY", env = "VLLM_API_KEY", hide_env_values = true, value_parser = api_key)]
    pub(crate) api_key: Vec<String>,

    /// Serve HTTPS with this certificate (PEM), read again when it changes.
    #[arg(long, value_name = "FILE", group = "certificate")]
    pub(crate) ssl_certfile: Option<PathBuf>,

    /// Key of the certificate (PEM) [default: in --ssl-certfile].
    #[arg(long, value_name = "FILE", requires = "ssl_certfile")]
    pub(crate) ssl_keyfile: Option<PathBuf>,

    /// Serve HTTPS with a self-signed certificate, made at the start.
    #[arg(long, group = "certificate")]
    pub(crate) self_signed_certs: bool,

    /// Certificate authorities of clients (PEM).
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) ssl_ca_certs: Option<PathBuf>,

    /// Client certificates: 0 not requested, 1 optional, 2 required.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=2))]
    pub(crate) ssl_cert_reqs: u8,

    /// Origins of web pages that may send requests (CORS), as a JSON list.
    #[arg(long, value_name = "JSON", default_value = "[]", value_parser = list)]
    pub(crate) allowed_origins: List,

    /// HTTP methods that pages of --allowed-origins may use, as a JSON list.
    #[arg(long, value_name = "JSON", default_value = "[\"*\"]", value_parser = list)]
    pub(crate) allowed_methods: List,

    /// Request headers that pages of --allowed-origins may send, as a JSON list.
    #[arg(long, value_name = "JSON", default_value = "[\"*\"]", value_parser = list)]
    pub(crate) allowed_headers: List,

    /// Let pages of --allowed-origins send cookies and the Authorization header.
    #[arg(long)]
    pub(crate) allow_credentials: bool,

    /// Add X-Request-Id to responses.
    #[arg(long)]
    pub(crate) enable_request_id_headers: bool,

    /// Pod name for the response header x-inference-pod; responses then also have x-inference-port.
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub(crate) pod_name: Option<String>,

    /// Pod namespace for the response header x-inference-namespace.
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub(crate) pod_namespace: Option<String>,

    /// Cookie with the session of requests that lack X-Session-Id, for --router; the first response sets it.
    #[arg(long, value_name = "NAME", value_parser = SessionCookie::new)]
    pub(crate) session_cookie: Option<SessionCookie>,

    /// Maximum seconds for the headers of a request, and between two requests of a connection.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, env = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) http_timeout_keep_alive: u64,

    /// Maximum seconds for the body of a request, plus 1 s for each 100 KB that has arrived.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) request_body_timeout: u64,

    /// Maximum size of a request's body.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub(crate) max_request_body_size: usize,

    /// Memory for large bodies that arrive at the same time; further bodies wait.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub(crate) max_request_body_memory: usize,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Metrics and client faults")]
pub(crate) struct ClientFaultArgs {
    /// Replace bucket bounds of histograms, as a JSON object of lists.
    #[arg(long, value_name = "JSON", value_parser = CustomBuckets::from_json)]
    pub(crate) custom_histogram_buckets: Option<CustomBuckets>,

    /// Serve made-up metrics from this object with the keys of llm-d-inference-sim.
    #[arg(long, value_name = "JSON")]
    pub(crate) fake_metrics: Option<String>,

    /// Inject a fault for clients, such as `stall:for=2s,call=3` (repeatable).
    #[arg(long, value_name = "FAULT")]
    pub(crate) client_fault: Vec<ClientFault>,

    /// Header that names the tenant of a request, for client faults.
    #[arg(long, value_name = "NAME", default_value = "x-tenant")]
    tenant_header: HeaderName,

    /// Tenant of the requests with this API key, for client faults (repeatable).
    #[arg(long, value_name = "TENANT=KEY", value_parser = tenant_key)]
    tenant_key: Vec<TenantKey>,
}

impl ClientFaultArgs {
    fn tenants(&self) -> Tenants {
        let by_key = self.tenant_key.iter().map(|TenantKey { tenant, key }| (key.clone(), tenant.clone()));
        Tenants { header: self.tenant_header.clone(), by_key: by_key.collect() }
    }
}

#[derive(Clone, Debug)]
struct TenantKey {
    tenant: String,
    key: String,
}

fn tenant_key(text: &str) -> Result<TenantKey, String> {
    match text.split_once('=') {
        Some((tenant, key)) if !tenant.is_empty() && !key.is_empty() => {
            Ok(TenantKey { tenant: tenant.to_owned(), key: key.to_owned() })
        }
        _ => Err("expected TENANT=KEY".to_owned()),
    }
}

/// Parses an API key. An empty key is an error, because it usually means a missing secret.
fn api_key(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        false => Ok(text.to_owned()),
        true => Err("expected a key; leave it out to serve without keys".to_owned()),
    }
}

#[derive(Clone, Debug)]
pub(crate) struct List(Vec<String>);

fn list(text: &str) -> Result<List, String> {
    serde_json::from_str(text).map(List).map_err(|_| "expected a JSON list such as [\"*\"]".to_owned())
}

pub(super) fn size(text: &str) -> Result<usize, String> {
    let bytes = units::bytes(text).map_err(|error| error.to_string())?;
    usize::try_from(bytes).map_err(|_| "expected a size that fits into memory".to_owned())
}

/// Properties of the server that are not in these options.
pub(crate) struct Server {
    /// The first served model name.
    pub(crate) model_name: String,
    /// Listening host.
    pub(crate) host: String,
    /// Numbers of the engines.
    pub(crate) engines: std::ops::Range<u16>,
    /// Context length.
    pub(crate) max_model_len_tokens: u64,
    /// Seed of random draws.
    pub(crate) seed: u64,
    /// Grace period of running requests at shutdown.
    pub(crate) shutdown_timeout: Duration,
    /// vLLM's frontend to imitate.
    pub(crate) frontend: FrontendKind,
    /// Role of an SGLang server, for metrics; none for vLLM.
    pub(crate) sglang: Option<&'static str>,
    /// Maximum number of adapters in a step, if adapters are enabled.
    pub(crate) max_loras: Option<u32>,
    /// The KV cache of each engine.
    pub(crate) cache: CacheConfig,
    /// Whether answers are parsed for tool calls.
    pub(crate) has_tool_parser: bool,
}

/// Everything around the API.
pub(crate) struct Operations {
    /// Receives events of engines, for metrics and traces.
    pub(crate) observer: Arc<dyn EngineObserver>,
    /// Exports spans.
    pub(crate) exporter: Option<TraceExporter>,
    /// The HTTP server in front of the API.
    pub(crate) front: HttpServer,
    pub(crate) fake_metrics: Arc<FakeSlot>,
}

impl Operations {
    /// Makes everything from the options; reads files and checks values.
    pub(crate) fn new(
        http: &HttpArgs,
        faults: &ClientFaultArgs,
        traces: &TraceArgs,
        server: &Server,
    ) -> Result<Self, Unusable> {
        let options = MetricsOptions {
            model_name: server.model_name.clone(),
            engines: server.engines.clone().map(u32::from).collect(),
            max_model_len_tokens: server.max_model_len_tokens,
            buckets: faults.custom_histogram_buckets.clone().unwrap_or_default(),
            frontend: server.frontend,
            sglang: server.sglang,
            max_loras: server.max_loras,
            cache: Some(server.cache.clone()),
            has_tool_parser: server.has_tool_parser,
        };
        let metrics = Metrics::new(&options);
        let fake_metrics = fake_metrics(faults.fake_metrics.as_deref(), &options)?;
        let mut api_keys = http.api_key.clone();
        if let Ok(key) = std::env::var("VCR_API_KEY") {
            api_keys.push(api_key(&key).map_err(|reason| Unusable::new(format!("invalid VCR_API_KEY: {reason}")))?);
        }
        let around = Around {
            metrics: metrics.clone(),
            fake_metrics: Some(Arc::clone(&fake_metrics)),
            api_keys,
            cors: Cors {
                origins: http.allowed_origins.0.clone(),
                methods: http.allowed_methods.0.clone(),
                headers: http.allowed_headers.0.clone(),
                credentials: http.allow_credentials,
            },
            log: RequestLog { has_id_header: http.enable_request_id_headers },
            pod: PodHeaders::new(http.pod_name.as_deref(), http.pod_namespace.as_deref())
                .map_err(|_| Unusable::new("--pod-name or --pod-namespace cannot be in a header".to_owned()))?,
            session_cookie: http.session_cookie.clone(),
            body: BodyLimits {
                max_bytes: http.max_request_body_size,
                timeout: Duration::from_secs(http.request_body_timeout),
            },
            body_memory_bytes: http.max_request_body_memory,
            before: None,
            page: None,
        };
        let rules = Arc::new(ClientFaults::new(faults.client_fault.clone(), server.seed, faults.tenants()));
        let refuses = Arc::clone(&rules);
        let listen = ListenOptions {
            tls: http.tls(&server.host)?,
            head_timeout: Duration::from_secs(http.http_timeout_keep_alive),
            shutdown_timeout: server.shutdown_timeout,
            refuses: Arc::new(move || refuses.refuses_connection()),
            metrics: metrics.clone(),
            rank: None,
            is_at_page: false,
            threads: Arc::default(),
        };
        let observer = Arc::new(EngineMetrics::new(&metrics, server.engines.clone()));
        let (observer, exporter) = traced(traces, observer)?;
        let faults = FaultLayer { faults: rules, metrics, max_body_bytes: http.max_request_body_size };
        let front = HttpServer { around, faults, listen, is_traced: exporter.is_some() };
        Ok(Self { observer, exporter, front, fake_metrics })
    }
}

impl HttpArgs {
    /// TLS settings of a server that listens on `host`, if enabled.
    fn tls(&self, host: &str) -> Result<Option<Arc<Tls>>, Unusable> {
        let unusable = |error: TlsError| Unusable::new(error.to_string());
        let own = match (&self.ssl_certfile, self.self_signed_certs) {
            (Some(path), _) => ServerCertificate::Files { certificates: path.clone(), key: self.ssl_keyfile.clone() },
            (None, true) => ServerCertificate::self_signed(own_names(host)).map_err(unusable)?,
            (None, false) if self.ssl_cert_reqs > 0 => {
                let message =
                    format!("--ssl-cert-reqs {}: clients have no certificates without TLS", self.ssl_cert_reqs);
                let hint = Some("give --ssl-certfile or --self-signed-certs".to_owned());
                return Err(Unusable { message, hint });
            }
            (None, false) => return Ok(None),
        };
        let settings = TlsSettings {
            own,
            client_authorities: self.ssl_ca_certs.clone(),
            client_certificates: match self.ssl_cert_reqs {
                0 => ClientCertificates::None,
                1 => ClientCertificates::Optional,
                _ => ClientCertificates::Required,
            },
        };
        Ok(Some(Arc::new(Tls::new(settings).map_err(unusable)?)))
    }
}

/// Names and addresses of a server that listens on `host`, for its certificate.
fn own_names(host: &str) -> Vec<String> {
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
    // A wildcard address is no name.
    if !["0.0.0.0", "::"].contains(&host) && !names.iter().any(|name| name == host) {
        names.push(host.to_owned());
    }
    names
}

/// The fake metrics of an option; empty without the option.
fn fake_metrics(text: Option<&str>, options: &MetricsOptions) -> Result<Arc<FakeSlot>, Unusable> {
    let slot = FakeSlot::new(options.clone());
    if let Some(text) = text {
        let invalid = |reason: String| Unusable::new(format!("invalid --fake-metrics: {reason}"));
        let values = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        slot.set(values).map_err(invalid)?;
    }
    Ok(Arc::new(slot))
}

/// Lets the control plane change fake metrics.
pub(crate) struct ChangedMetrics(pub(crate) Arc<FakeSlot>);

impl FakeMetricValues for ChangedMetrics {
    fn values(&self) -> serde_json::Map<String, serde_json::Value> {
        self.0.values()
    }

    fn set(&self, values: serde_json::Map<String, serde_json::Value>) -> Result<(), String> {
        self.0.set(values)
    }

    fn clear(&self) {
        self.0.clear();
    }
}

/// The reason why a fault that changes requests is refused during playback.
pub(crate) const FOUND_BY_REQUEST: &str = "`short` changes the request by which a recording is found; use truncate";

/// Lets the control plane change client faults.
pub(crate) struct ChangedFaults {
    pub(crate) faults: Arc<ClientFaults>,
    /// Whether recorded answers are played back.
    pub(crate) is_playback: bool,
}

impl ClientFaultRules for ChangedFaults {
    fn rules(&self) -> Vec<String> {
        self.faults.rules()
    }

    fn add(&self, rule: &str) -> Result<(), String> {
        let rule: ClientFault = rule.parse().map_err(|error: RuleError| error.to_string())?;
        if self.is_playback && rule.changes_requests() {
            return Err(FOUND_BY_REQUEST.to_owned());
        }
        self.faults.add(rule);
        Ok(())
    }

    fn remove(&self, rule: &str) -> bool {
        self.faults.remove(rule)
    }

    fn clear(&self) {
        self.faults.clear();
    }
}

/// Reads a config of llm-d-inference-sim.
pub(crate) fn llm_d_config(path: &Path) -> Result<Translation, String> {
    let text =
        vcr_base::input::read_yaml(path, vcr_base::input::MAX_CONFIG_BYTES).map_err(|error| error.to_string())?;
    llm_d::parse(&text)
}
