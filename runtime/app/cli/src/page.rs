//! Options and listeners of the page at `/_vcr/`.

use std::net::{TcpListener, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::watch;
use vcr_frontend::http::{self, ListenOptions, PageSite, ServerThreads};
use vcr_frontend::metrics::{Metrics, MetricsOptions};
use vcr_frontend::page::{Audience, EngineWatch, Page, PageOf, StepRing, Watch, WatchLimits};
use vcr_live::control::{Addresses, ClientFaultRules, Listeners, Routes, UnusableModel};
use vcr_live::{EnginesHandle, LiveConfig, StepObserver};

use crate::play::unusable::Unusable;
use crate::service::with_causes;

/// Time limit for a request's head and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// Time that running requests get at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// A page, and its own socket if it has its own address.
type PageAndSocket = (Arc<Page>, Option<TcpListener>);

#[derive(Debug, Args)]
#[command(next_help_heading = "Page at /_vcr/")]
pub(crate) struct PageArgs {
    /// Serve the page at this HOST:PORT instead, also to other machines that can reach the address.
    #[arg(long, value_name = "ADDRESS", env = "VCR_UI_ADDRESS")]
    pub(crate) ui_address: Option<String>,

    /// Serve no page.
    #[arg(long, conflicts_with = "ui_address")]
    no_ui: bool,
}

impl PageArgs {
    /// Prepares the page of engines, unless it is disabled. The engines report their steps to it.
    pub(crate) fn parts(
        &self,
        command: &'static str,
        host: Option<&str>,
        config: &mut LiveConfig,
    ) -> Result<Option<PageParts>, Unusable> {
        if self.no_ui {
            return Ok(None);
        }
        let listener = self.listen()?;
        let audience = self.audience(listener.as_ref(), host);
        let watch = Watch::new(WatchLimits::default());
        // In `vcr serve`, the frontend records the requests of clients; for other commands, the engines record them.
        let of_engines = (command != "serve").then(|| Arc::clone(&watch));
        let steps = StepRing::new(config.identity.first_rank, config.identity.num_ranks, of_engines);
        config.steps = Some(Arc::clone(&steps) as Arc<dyn StepObserver>);
        Ok(Some(PageParts { command, watch, steps, block_size: config.engine.block_size(), listener, audience }))
    }

    /// The page of a proxy, and its own socket.
    pub(crate) fn of_proxy(
        &self,
        upstream: String,
        host: &str,
        faults: Arc<dyn ClientFaultRules>,
    ) -> Result<Option<PageAndSocket>, Unusable> {
        if self.no_ui {
            return Ok(None);
        }
        let listener = self.listen()?;
        let audience = self.audience(listener.as_ref(), Some(host));
        let no_model =
            |_: &str, _: Option<&str>| Err(UnusableModel { message: "a proxy has no engines".to_owned(), hint: None });
        let control = Listeners::bind(&Addresses::default())
            .map_err(|error| Unusable::new(with_causes(&error)))?
            .with_client_faults(faults)
            .admin_routes(EnginesHandle::default(), Arc::new(no_model));
        let of = PageOf {
            command: "record",
            title: upstream,
            watch: Some(Watch::new(WatchLimits::default())),
            control: Some(control),
            ..PageOf::default()
        };
        let page = Page::new(of, audience, listener.is_some()).map_err(|error| Unusable::new(error.to_string()))?;
        Ok(Some((Arc::new(page), listener)))
    }

    /// Opens the page's own address, if it has one.
    fn listen(&self) -> Result<Option<TcpListener>, Unusable> {
        let Some(address) = &self.ui_address else { return Ok(None) };
        let unusable = |error: std::io::Error| Unusable {
            message: format!("cannot serve the page at `{address}`: {error}"),
            hint: Some("--ui-address 127.0.0.1:8080, or port 0 for a free one".to_owned()),
        };
        let resolved: Vec<_> = address.to_socket_addrs().map_err(unusable)?.collect();
        let listener = TcpListener::bind(&resolved[..]).map_err(unusable)?;
        listener.set_nonblocking(true).map_err(unusable)?;
        Ok(Some(listener))
    }

    /// Who may open the page: other machines only if they can reach its own address. `host` is the server's.
    fn audience(&self, listener: Option<&TcpListener>, host: Option<&str>) -> Audience {
        let own = self.ui_address.as_deref().and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
        let address = listener.and_then(|listener| listener.local_addr().ok());
        Audience {
            host: own.or(host).map(str::to_owned),
            is_open: address.is_some_and(|address| !address.ip().is_loopback()),
        }
    }
}

/// The page of engines, before the engines exist.
pub(crate) struct PageParts {
    command: &'static str,
    watch: Arc<Watch>,
    steps: Arc<StepRing>,
    block_size: u32,
    listener: Option<TcpListener>,
    audience: Audience,
}

impl PageParts {
    /// Makes the page and its own socket.
    pub(crate) fn page(
        self,
        title: String,
        engines: EnginesHandle,
        control: Routes,
        needs_key: bool,
    ) -> std::io::Result<PageAndSocket> {
        let Self { command, watch, steps, block_size, listener, audience } = self;
        let of = PageOf {
            command,
            title,
            watch: Some(watch),
            engines: Some(EngineWatch::start(engines, steps)?),
            block_size: Some(block_size),
            control: Some(control),
            has_server: command == "serve",
            needs_key,
        };
        Ok((Arc::new(Page::new(of, audience, listener.is_some())?), listener))
    }
}

pub(crate) fn tell(listener: &TcpListener, scheme: &str) {
    if let Ok(address) = listener.local_addr() {
        tracing::info!("the page is at {scheme}://{address}/_vcr/");
    }
}

/// A page with its own server, which stops on drop.
pub(crate) struct ServedPage {
    stop: Option<watch::Sender<()>>,
    threads: Option<ServerThreads>,
}

impl ServedPage {
    pub(crate) fn start(page: Arc<Page>, listener: TcpListener) -> std::io::Result<Self> {
        let threads = ServerThreads::start(1)?;
        tell(&listener, "http");
        let (stop, mut stopped) = watch::channel(());
        let options = ListenOptions {
            tls: None,
            head_timeout: HEAD_TIMEOUT,
            shutdown_timeout: LAST_ANSWERS,
            refuses: Arc::new(|| false),
            metrics: Metrics::new(&MetricsOptions::default()),
            rank: None,
            is_at_page: true,
            threads: Arc::default(),
        };
        threads.first().spawn(async move {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => {
                    let until = async move { drop(stopped.changed().await) };
                    http::serve(listener, Arc::new(PageSite(page)), options, until).await;
                }
                Err(error) => tracing::error!("cannot listen: {error}"),
            }
        });
        Ok(Self { stop: Some(stop), threads: Some(threads) })
    }
}

impl Drop for ServedPage {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(threads) = self.threads.take() {
            threads.shut_down();
        }
    }
}
