//! `vcr record --upstream`: records HTTP exchanges as a reverse proxy.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use indicatif::MultiProgress;
use tokio::sync::watch;
use vcr_frontend::faults::{ClientFaults, FaultLayer, Tenants};
use vcr_frontend::http::{self, ClientCertificates, ListenOptions, ServerCertificate, ServerThreads, Tls, TlsSettings};
use vcr_frontend::metrics::{Metrics, MetricsOptions};
use vcr_frontend::proxy::{Address, Proxy, ProxyOptions, Upstream};
use vcr_record::http::{RedactRules, TokenCounter};
use vcr_record::{HttpRecordConfig, HttpRecorder, RecordError, Rotation};
use vcr_text::Tokenizer;

use super::args::RecordArgs;
use super::http_args::UpstreamArgs;
use super::{hint, passed, print_summary, removed, show_progress};
use crate::announce::announce;
use crate::exit::{Exit, print_error, printed};
use crate::page::{self, ServedPage};
use crate::play::unusable::Unusable;
use crate::serve::operations::ChangedFaults;
use crate::service::with_causes;
use crate::stop;

/// Time that running requests get when the recording ends.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// Time limit for a request's head and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// The parts of a recording.
struct Prepared {
    proxy: Arc<Proxy>,
    recorder: Arc<HttpRecorder>,
    listener: TcpListener,
    listen: ListenOptions,
    threads: ServerThreads,
    line: String,
    /// The page at its own address, if any.
    _page: Option<ServedPage>,
}

/// Relays and records until a signal.
pub(super) fn record(args: &RecordArgs, upstream: &str, lines: Option<MultiProgress>) -> Exit {
    let (_in_order, starting) = stop::in_order_from_start(|stop: &watch::Sender<bool>| {
        stop.send_replace(true);
    });
    let prepared = match prepare(args, upstream) {
        Ok(prepared) => prepared,
        Err(unusable) => {
            print_error(&unusable.message, unusable.hint.as_deref());
            return Exit::BadInput;
        }
    };
    let (stop, stopped) = watch::channel(false);
    starting.started(stop);
    let recorder = Arc::clone(&prepared.recorder);
    let shown = Arc::clone(&recorder);
    let bar = lines.and_then(|lines| show_progress(&lines, move || shown.summary()).ok());
    run(prepared, stopped, args.quiet);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    match recorder.finish() {
        Ok(summary) => {
            let written = print_summary(&summary, args);
            printed(written, removed(&summary).unwrap_or_else(passed))
        }
        Err(error) => {
            print_error(&with_causes(&error), hint(&error));
            Exit::Fault
        }
    }
}

fn run(prepared: Prepared, mut stopped: watch::Receiver<bool>, quiet: bool) {
    let Prepared { proxy, listener, listen, threads, line, _page, .. } = prepared;
    threads.first().block_on(async {
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!("cannot listen: {error}"),
        };
        announce(&line, quiet);
        let stopped = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
        http::serve(listener, proxy, listen, stopped).await;
    });
    // Waits for running tasks, so that aborted exchanges are recorded.
    drop(threads);
}

fn prepare(args: &RecordArgs, upstream: &str) -> Result<Prepared, Unusable> {
    let http = &args.http;
    let address: Address = upstream.parse().map_err(|error| Unusable {
        message: format!("--upstream: {error}"),
        hint: Some("vcr record --upstream http://localhost:8000 --port 8001 --out day.jsonl.zst".to_owned()),
    })?;
    let unusable = |error: &dyn std::error::Error| Unusable::new(with_causes(error));
    let upstream = Upstream::new(address, http.upstream_ca.as_deref()).map_err(|error| unusable(&error))?;
    let count_tokens = http.tokenizer.as_deref().map(counter).transpose()?;
    let tls = http.ssl_certfile.as_ref().map(|path| tls(path, http.ssl_keyfile.as_ref())).transpose()?;
    let (listener, line) = listen(http, tls.is_some(), &upstream)?;
    let config = HttpRecordConfig {
        out: args.out.clone(),
        replace: args.force,
        rotation: Rotation { size_bytes: args.rotate_size, time: args.rotate_time.map(Duration::from_nanos) },
        model: args.model.clone(),
        gpu: args.gpu.clone(),
        redact: RedactRules {
            headers: http.redact_header.clone(),
            query: http.redact_query.clone(),
            json: http.redact_json.clone(),
        },
        queue_bytes: args.queue_size.try_into().unwrap_or(usize::MAX),
        max_body_bytes: http.max_body_size.try_into().unwrap_or(usize::MAX),
        count_tokens,
        continues: false,
        observer: None,
    };
    let started = HttpRecorder::start(&config);
    let refused = |error: RecordError| Unusable { hint: hint(&error).map(str::to_owned), ..unusable(&error) };
    let recorder = Arc::new(started.map_err(refused)?);
    let threads = ServerThreads::start(2)
        .map_err(|error| Unusable::new(format!("cannot start the server's threads: {error}")))?;
    let metrics = Metrics::new(&MetricsOptions::default());
    let faults = Arc::new(ClientFaults::new(http.client_fault.clone(), 0, Tenants::default()));
    let refuses = Arc::clone(&faults);
    let layer = FaultLayer { faults, metrics: metrics.clone(), max_body_bytes: config.max_body_bytes };
    let options = ProxyOptions { max_body_bytes: config.max_body_bytes };
    let changed = Arc::new(ChangedFaults { faults: Arc::clone(&layer.faults), is_playback: false });
    let (page, own) = http.page.of_proxy(upstream.address().to_string(), &http.host, changed)?.unzip();
    let served_page = match (&page, own.flatten()) {
        (None, _) => None,
        (Some(page), Some(own)) => Some(ServedPage::start(Arc::clone(page), own).map_err(|error| unusable(&error))?),
        (Some(_), None) => {
            page::tell(&listener, if tls.is_some() { "https" } else { "http" });
            None
        }
    };
    let proxy = Arc::new(Proxy::new(upstream, Arc::clone(&recorder), options, Some(layer)).with_page(page));
    let listen = ListenOptions {
        tls,
        head_timeout: HEAD_TIMEOUT,
        shutdown_timeout: LAST_ANSWERS,
        refuses: Arc::new(move || refuses.refuses_connection()),
        metrics,
        rank: None,
        is_at_page: false,
        threads: Arc::new(threads.pool()),
    };
    Ok(Prepared { proxy, recorder, listener, listen, threads, line, _page: served_page })
}

/// Opens the port. Also returns the address for clients.
fn listen(args: &UpstreamArgs, is_tls: bool, upstream: &Upstream) -> Result<(TcpListener, String), Unusable> {
    let unusable = |error: std::io::Error| Unusable {
        message: format!("cannot listen on {}:{}: {error}", args.host, args.port),
        hint: Some("--port 0 takes a free port".to_owned()),
    };
    let listener = TcpListener::bind((args.host.as_str(), args.port)).map_err(unusable)?;
    listener.set_nonblocking(true).map_err(unusable)?;
    let own = listener.local_addr().map_err(unusable)?;
    let scheme = if is_tls { "https" } else { "http" };
    Ok((listener, format!("recording {} on {scheme}://{own}", upstream.address())))
}

fn tls(certificates: &Path, key: Option<&PathBuf>) -> Result<Arc<Tls>, Unusable> {
    let settings = TlsSettings {
        own: ServerCertificate::Files { certificates: certificates.to_owned(), key: key.cloned() },
        client_authorities: None,
        client_certificates: ClientCertificates::None,
    };
    Tls::new(settings).map(Arc::new).map_err(|error| Unusable::new(error.to_string()))
}

fn counter(folder: &Path) -> Result<TokenCounter, Unusable> {
    let invalid = |error: &dyn std::fmt::Display| Unusable::new(format!("invalid --tokenizer: {error}"));
    let tokenizer = Tokenizer::from_folder(folder).map_err(|error| invalid(&error))?;
    Ok(Arc::new(move |text| tokenizer.encode(text, false).map_or(0, |tokens| tokens.len() as u64)))
}
