//! The targets. Each combines a service with facts from its engines.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::LocalSet;
use vcr_cluster::metrics::Counter;
use vcr_cluster::observe::{Observer, RunSeries};
use vcr_cluster::{
    FrontendTarget, HttpTarget, MeasuredFacts, PoolRole, PrefillCancellation, Report, RunConfig, Target, TargetDriver,
    TargetError, TargetReport,
};
use vcr_frontend::faults::ClientFault;
use vcr_live::EnginesHandle;
use vcr_wire::VllmMinor;

use crate::client::completions::Completions;
use crate::client::disaggregated::DisaggregatedServers;
use crate::client::scraper::{Scraped, Scraper};
use crate::client::server::{self, PromptForm};
use crate::client::sessions::Sessions;
use crate::drive::vocabulary::Vocabulary;
use crate::drive::{Driven, NoPlan, Plan, drive};
use crate::engines::book::{Book, CountedOutputs};
use crate::engines::cluster;
use crate::engines::config::{beyond_servers, check_frontend, cluster_parts};
use crate::engines::direct::Direct;
use crate::engines::disaggregated::Disaggregated;
use crate::engines::faults::{FaultPlan, restarts};
use crate::engines::frontend::Frontend;
use crate::engines::gateway::Gateway;
use crate::engines::gateway::register::{Register, ToCluster};
use crate::engines::plane::check_plane;
use crate::engines::pool::{EnginePool, VOCAB_SIZE};
use crate::engines::series::EngineSeries;
use crate::engines::server::{self as embedded, Server};
use crate::engines::steps::RunSteps;
use crate::engines::totals::{SNAPSHOT_AGE, Totals};
use crate::facts::{absent_behind_server, absent_live, absent_without_metrics};

/// Default timeout for the next tokens of an answer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// The server of a cluster accepts any prompt length. The cluster itself refuses longer prompts than its engines
/// support.
const ANY_MODEL_LEN: u32 = i32::MAX as u32;
/// Number of tasks that the driver runs before it checks for I/O and timers.
const TASKS_BETWEEN_LOOKS: u32 = 16;
/// Pause between two checks whether a frontend has started.
const START_PAUSE: Duration = Duration::from_millis(20);

/// Carries out runs in real time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Targets;

impl TargetDriver for Targets {
    fn check(&self, target: &Target, run: &RunConfig) -> Result<(), TargetError> {
        match target {
            Target::Virtual => Ok(()),
            Target::Live => check_moving(target, run, &cluster_parts(run)),
            Target::Serve(serve) => {
                embedded::client_faults(serve)?;
                check_grammars(target, run)?;
                check_moving(target, run, &beyond_servers(run))
            }
            Target::Frontend(_) => check_frontend(run).and_then(|()| check_plane(run)),
            Target::Http(http) => {
                server::pool(http)?;
                check_grammars(target, run)?;
                check_foreign(run)
            }
        }
    }

    fn models(&self, target: &Target) -> Vec<String> {
        let Target::Http(http) = target else { return Vec::new() };
        if let Some(model) = &http.model {
            return vec![model.clone()];
        }
        // The run reports why a server does not answer.
        let asked = server::pool(http).and_then(|pool| on_one_thread(async move { Ok(server::models(&pool).await) }));
        asked.unwrap_or_default()
    }

    fn run(&self, target: &Target, run: RunConfig, observer: &mut dyn Observer) -> Result<Report, TargetError> {
        self.check(target, &run)?;
        raise_limit_of_files();
        match target {
            Target::Virtual => Ok(vcr_cluster::simulate(run, observer)?),
            Target::Live => match cluster_parts(&run) {
                parts if parts.is_empty() => on_one_thread(live(run, observer)),
                parts => cluster::run(run, parts, observer),
            },
            Target::Serve(target) => {
                let faults = embedded::client_faults(target)?;
                match beyond_servers(&run) {
                    parts if parts.is_empty() => on_one_thread(serve(run, &faults, observer)),
                    _ => on_one_thread(serve_cluster(run, faults, observer)),
                }
            }
            Target::Frontend(frontend) => on_one_thread(behind_frontend(frontend, run, observer)),
            Target::Http(http) => on_one_thread(foreign(http, run, observer)),
        }
    }
}

/// Refuses a run with real KV transfers if it also needs the engines of virtual time.
fn check_moving(target: &Target, run: &RunConfig, parts: &[String]) -> Result<(), TargetError> {
    if run.topology.link().is_some_and(|link| link.plane.is_some()) && !parts.is_empty() {
        let (name, unsupported) = (target.name(), parts.join(", no "));
        let message = format!(
            "the target `{name}` cannot move KV of `{}`: engines of `vcr play` have no {unsupported}, and a cluster in real time has no memory for real transfers",
            run.name
        );
        let hint = "leave `kv_transfer` of its link out, and transfers take the link's time, or leave out these parts";
        return Err(TargetError::with_hint(message, hint));
    }
    check_plane(run)
}

/// Refuses structured outputs: a request over HTTP cannot set how long its grammar takes to compile.
fn check_grammars(target: &Target, run: &RunConfig) -> Result<(), TargetError> {
    let unsupported = vcr_cluster::structured_outputs(run);
    if unsupported.is_empty() {
        return Ok(());
    }
    let (target, name) = (target.name(), &run.name);
    let message = format!("the target `{target}` cannot run `{name}`: it has no {}", unsupported.join(", no "));
    Err(TargetError::with_hint(
        message,
        "leave `structured_outputs` out on this target, or run it on `virtual` or `live`",
    ))
}

/// Refuses features that an external server does not support.
fn check_foreign(run: &RunConfig) -> Result<(), TargetError> {
    let mut unsupported = vcr_cluster::recorded_answers(run);
    if !run.faults.is_empty() {
        unsupported.push("planned faults: its engines are not ours".to_owned());
    }
    if unsupported.is_empty() {
        return Ok(());
    }
    let message = format!("the target `http` cannot run `{}`: it has no {}", run.name, unsupported.join(", no "));
    Err(TargetError::with_hint(message, "leave `faults` out on this target, or run it on `virtual`, `live` or `serve`"))
}

fn on_one_thread<T>(run: impl Future<Output = Result<T, TargetError>>) -> Result<T, TargetError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    // A small interval keeps timers precise even if many streams have data.
    let runtime = builder.event_interval(TASKS_BETWEEN_LOOKS).enable_all().build();
    let runtime = runtime.map_err(|error| TargetError::Failed(format!("cannot start the driver: {error}")))?;
    LocalSet::new().block_on(&runtime, run)
}

/// Each open stream needs a file descriptor, and the default limit of a process is often low.
fn raise_limit_of_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A limit that is still too low causes connection errors later.
    _ = setrlimit(Resource::Nofile, limit);
}

/// Runs on engines in this process, called directly.
async fn live(run: RunConfig, observer: &mut dyn Observer) -> Result<Report, TargetError> {
    let steps = RunSteps::new(observer.step_sink());
    let (mut pools, mut services) = (Vec::new(), Vec::new());
    for role in run.topology.roles() {
        let (pool, engines) = EnginePool::start(&run, *role, VOCAB_SIZE, None, &steps).await?;
        services.push(Direct {
            engines,
            vocabulary: Vocabulary::new(Some(VOCAB_SIZE)),
            book: pool.book().clone(),
            restarts: restarts(&run.faults, *role),
            attempts: Cell::new(0),
        });
        pools.push(pool);
    }
    let (faults, cancels_prefill) = (run.faults.clone(), cancels_prefill(&run));
    let mut plan = FaultPlan::new(EngineSeries::new(handles(&pools), observer.wants_series()), &steps, &run);
    let target = TargetReport { name: "live".to_owned(), absent: absent_live(), ..TargetReport::default() };
    let driven = match (services.pop(), services.pop()) {
        (Some(decode), Some(prefill)) => {
            drive(run, true, Disaggregated { prefill, decode, cancels_prefill }, observer, &mut plan).await
        }
        (Some(service), None) => drive(run, true, service, observer, &mut plan).await,
        (None, _) => Err(TargetError::Failed("the run has no pool (this is a bug)".to_owned())),
    };
    tokio::time::sleep(SNAPSHOT_AGE).await;
    let duration_ns = driven.as_ref().map_or(0, |driven| driven.duration_ns);
    let totals = Totals::sum(pools.iter().map(|pool| pool.totals(&steps, &faults, duration_ns)));
    pools.into_iter().try_for_each(EnginePool::end)?;
    finish(driven?, target, (totals, &steps), plan.take_series())
}

/// Whether the computation of a prompt is cancelled when the client disconnects.
fn cancels_prefill(run: &RunConfig) -> bool {
    let link = run.topology.link();
    !link.is_some_and(|link| matches!(link.cancellation, PrefillCancellation::Never { .. }))
}

fn handles(pools: &[EnginePool]) -> Vec<(PoolRole, EnginesHandle)> {
    pools.iter().map(EnginePool::handle).collect()
}

/// Runs on live engines behind the server of `vcr serve`, with one server per pool.
async fn serve(run: RunConfig, faults: &[ClientFault], observer: &mut dyn Observer) -> Result<Report, TargetError> {
    let (adapters, steps) = (run.adapters(), RunSteps::new(observer.step_sink()));
    let (mut pools, mut servers) = (Vec::new(), Vec::new());
    for &role in run.topology.roles() {
        let Some(pool) = run.topology.pool(role) else { continue };
        let max_model_len = pool.engine.as_vllm().map_or(0, |engine| engine.max_model_len());
        let (metrics, engine_observer) = embedded::metrics(pool.most_ranks() as u16, max_model_len);
        let (pool, client) =
            EnginePool::start(&run, role, embedded::vocab_size(), Some(engine_observer), &steps).await?;
        servers.push(embedded::serve(client, metrics, max_model_len, &adapters, (faults.to_vec(), run.seed)));
        pools.push(pool);
    }
    let faults = run.faults.clone();
    let mut plan = FaultPlan::new(EngineSeries::new(handles(&pools), observer.wants_series()), &steps, &run);
    let books: Vec<Book> = pools.iter().map(|pool| pool.book().clone()).collect();
    let measured = match servers.into_iter().collect::<Result<Vec<_>, _>>() {
        Ok(servers) => {
            let http = servers.iter().map(Server::target).collect::<Vec<_>>();
            measure_servers(&http, books, run, observer, &mut plan).await
        }
        Err(error) => Err(error),
    };
    tokio::time::sleep(SNAPSHOT_AGE).await;
    let duration_ns = measured.as_ref().map_or(0, |(driven, _)| driven.duration_ns);
    let totals = Totals::sum(pools.iter().map(|pool| pool.totals(&steps, &faults, duration_ns)));
    pools.into_iter().try_for_each(EnginePool::end)?;
    let (driven, target) = measured?;
    let target = TargetReport { name: "serve".to_owned(), absent: absent_live(), ..target };
    finish(driven, target, (totals, &steps), plan.take_series())
}

/// Runs on a whole cluster behind one server, because servers of single engines do not support some of its parts.
async fn serve_cluster(
    run: RunConfig,
    faults: Vec<ClientFault>,
    observer: &mut dyn Observer,
) -> Result<Report, TargetError> {
    let parts = cluster_parts(&run);
    let adapters = run.adapters();
    let (metrics, engine_observer) = embedded::metrics(1, ANY_MODEL_LEN);
    let tokens = Vocabulary::new(Some(embedded::vocab_size())).range();
    let register = Register::default();
    let watched = (observer.wants_series(), observer.step_sink());
    let (gateway, client) = Gateway::start(&run, tokens, watched, &register, engine_observer)?;
    let mut plan = gateway.plan();
    let measured = async {
        if !client.ready().await || gateway.is_over() {
            return Err(TargetError::Failed("the cluster ended before it was ready".to_owned()));
        }
        let server = embedded::serve(client, metrics, ANY_MODEL_LEN, &adapters, (faults, run.seed))?;
        let Client { service, target, .. } = Client::connect(&server.target(), &run, None, CountedOutputs::All).await?;
        let service = ToCluster { server: service, register };
        Ok((drive(run, true, service, observer, &mut plan).await?, target))
    }
    .await;
    // The cluster's own error is more informative than those of its clients.
    let cluster = gateway.end()?;
    let (driven, target) = measured?;
    let target = TargetReport { name: "serve".to_owned(), cluster_parts: parts, ..target };
    let (run, facts) = facts_of(driven, target);
    Ok(run.finish(MeasuredFacts { cluster: Some(Box::new(cluster)), ..facts })?)
}

/// Carries out a run on one server per pool: either one server, or a prefill and a decode server.
async fn measure_servers(
    servers: &[HttpTarget],
    books: Vec<Book>,
    run: RunConfig,
    observer: &mut dyn Observer,
    plan: &mut dyn Plan,
) -> Result<(Driven, TargetReport), TargetError> {
    let parts: &[CountedOutputs] =
        if servers.len() == 1 { &[CountedOutputs::All] } else { &[CountedOutputs::Prompt, CountedOutputs::Output] };
    let mut clients = Vec::new();
    for ((http, book), counted) in servers.iter().zip(books).zip(parts) {
        clients.push(Client::connect(http, &run, Some(book), *counted).await?);
    }
    let (decode, prefill) = (clients.pop(), clients.pop());
    match (prefill, decode) {
        (None, Some(Client { service, target, .. })) => Ok((drive(run, true, service, observer, plan).await?, target)),
        (Some(prefill), Some(decode)) => {
            let service = DisaggregatedServers {
                prefill: prefill.service,
                decode: decode.service,
                cancels_prefill: cancels_prefill(&run),
            };
            Ok((drive(run, true, service, observer, plan).await?, prefill.target))
        }
        (_, None) => Err(TargetError::Failed("the run has no pool (this is a bug)".to_owned())),
    }
}

/// Runs on live engines behind vLLM's own frontend, with one frontend per pool.
async fn behind_frontend(
    asked: &FrontendTarget,
    run: RunConfig,
    observer: &mut dyn Observer,
) -> Result<Report, TargetError> {
    let version = asked.line.as_deref().map(str::parse::<VllmMinor>).transpose();
    let version = version.map_err(|error| TargetError::unusable(format!("invalid `line`: {error}")))?;
    let steps = RunSteps::new(observer.step_sink());
    let (mut pools, mut frontends) = (Vec::new(), Vec::new());
    for &role in run.topology.roles() {
        let Some(pool) = run.topology.pool(role) else { continue };
        let frontend = Frontend::start(asked, pool.most_ranks(), &run.adapters())?;
        pools.push(EnginePool::behind(&run, role, (frontend.handshake_address(), version), &steps)?);
        frontends.push(frontend);
    }
    let faults = run.faults.clone();
    let mut plan = FaultPlan::new(EngineSeries::new(handles(&pools), observer.wants_series()), &steps, &run);
    let books: Vec<Book> = pools.iter().map(|pool| pool.book().clone()).collect();
    let measured = async {
        let mut servers = Vec::new();
        for frontend in &mut frontends {
            let http = HttpTarget { vocab_size: Some(VOCAB_SIZE), ..frontend.target() };
            wait_until_it_serves(frontend, &http).await?;
            servers.push(http);
        }
        measure_servers(&servers, books, run, observer, &mut plan).await
    }
    .await;
    tokio::time::sleep(SNAPSHOT_AGE).await;
    let duration_ns = measured.as_ref().map_or(0, |(driven, _)| driven.duration_ns);
    let totals = Totals::sum(pools.iter().map(|pool| pool.totals(&steps, &faults, duration_ns)));
    pools.into_iter().try_for_each(EnginePool::end)?;
    drop(frontends);
    let (driven, target) = measured?;
    let target = TargetReport { name: "frontend".to_owned(), absent: absent_live(), ..target };
    finish(driven, target, (totals, &steps), plan.take_series())
}

async fn wait_until_it_serves(frontend: &mut Frontend, http: &HttpTarget) -> Result<(), TargetError> {
    let (pool, since) = (server::pool(http)?, Instant::now());
    while server::get(&pool, "/v1/models").await.is_err() {
        frontend.check_start(since)?;
        tokio::time::sleep(START_PAUSE).await;
    }
    Ok(())
}

/// Runs on an external server.
async fn foreign(http: &HttpTarget, run: RunConfig, observer: &mut dyn Observer) -> Result<Report, TargetError> {
    let Measured { driven, mut target, scraped, tells_cached } = measure(http, run, observer).await?;
    absent_behind_server(&mut target);
    absent_without_metrics(&mut target, &scraped, tells_cached);
    let (run, mut facts) = facts_of(driven, target);
    if let Some(preemptions) = scraped.preemptions {
        facts.counters.insert(Counter::Preemptions.info().name, preemptions);
    }
    if let Some(cached_tokens) = scraped.cached_tokens.filter(|_| !tells_cached) {
        facts.counters.insert(Counter::CachedTokens.info().name, cached_tokens);
    }
    facts.kv_peak_usage = scraped.kv_peak_usage;
    Ok(run.finish(facts)?)
}

/// A finished run on a server, as its client measured it.
struct Measured {
    driven: Driven,
    target: TargetReport,
    scraped: Scraped,
    tells_cached: bool,
}

/// Queries a server's model and carries out a run on it.
async fn measure(http: &HttpTarget, run: RunConfig, observer: &mut dyn Observer) -> Result<Measured, TargetError> {
    let Client { service, target, tells_cached } = Client::connect(http, &run, None, CountedOutputs::All).await?;
    let scraper = Scraper::begin(&service.pool).await;
    let driven = drive(run, false, service, observer, &mut NoPlan).await?;
    let scraped = scraper.end().await;
    Ok(Measured { driven, target, scraped, tells_cached: tells_cached.get() })
}

struct Client {
    service: Completions,
    target: TargetReport,
    tells_cached: Rc<Cell<bool>>,
}

impl Client {
    /// Connects to a server and queries its model. `book` has the reports of its engines, and `counted` selects
    /// which of them count.
    async fn connect(
        http: &HttpTarget,
        run: &RunConfig,
        book: Option<Book>,
        counted: CountedOutputs,
    ) -> Result<Self, TargetError> {
        let pool = Rc::new(server::pool(http)?);
        let server = server::identify(&pool, http, &run.adapters()).await?;
        let prompts = match &server.prompts {
            PromptForm::TokenIds(_) => "token ids",
            PromptForm::Text(_) => "text",
        };
        let target = TargetReport {
            name: "http".to_owned(),
            address: Some(pool.address.to_string()),
            server: server.version.as_ref().map(|version| format!("vLLM {version}")),
            model: Some(server.model.clone()),
            prompts: Some(prompts.to_owned()),
            ..TargetReport::default()
        };
        let tells_cached = Rc::new(Cell::new(false));
        let idle_timeout = http.idle_timeout_ns.map_or(IDLE_TIMEOUT, Duration::from_nanos);
        let service = Completions {
            pool,
            server,
            replaces_model: http.model.is_some(),
            idle_timeout,
            tells_cached: Rc::clone(&tells_cached),
            book,
            counted,
            sessions: Rc::new(Sessions::new(&http.sessions)?),
        };
        Ok(Self { service, target, tells_cached })
    }
}

/// Splits a finished run into its results and the other facts for the report.
fn facts_of(driven: Driven, mut target: TargetReport) -> (vcr_cluster::MeasuredRun, MeasuredFacts) {
    let Driven { run, send_delays_ns, stopped_at_ns, notes, .. } = driven;
    target.notes.extend(notes);
    let facts = MeasuredFacts { target, send_delays_ns, stopped_at_ns, ..MeasuredFacts::default() };
    (run, facts)
}

/// Builds the report of a run on engines in this process.
fn finish(
    driven: Driven,
    target: TargetReport,
    (totals, steps): (Totals, &RunSteps),
    series: Option<RunSeries>,
) -> Result<Report, TargetError> {
    let clock = driven.clock;
    let (run, facts) = facts_of(driven, target);
    let Totals { engines, engine_names, counters, kv_peak_usage, mut kv_transfers } = totals;
    for transfer in &mut kv_transfers {
        transfer.end_ns = clock.of_monotonic_ns(transfer.end_ns);
    }
    let known = MeasuredFacts { engines, engine_names, kv_transfers, steps: steps.take(), counters, ..facts };
    Ok(run.finish(MeasuredFacts { kv_peak_usage: Some(kv_peak_usage), series, ..known })?)
}
