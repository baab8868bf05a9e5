//! The targets: each joins a service with what it knows of its engines.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::LocalSet;
use vcr_cluster::metrics::Counter;
use vcr_cluster::observe::Observer;
use vcr_cluster::{
    FrontendTarget, HttpTarget, MeasuredFacts, PoolRole, Report, RunConfig, Target, TargetDriver, TargetError,
    TargetReport,
};
use vcr_live::LiveEngines;
use vcr_wire::VllmMinor;

use crate::client::completions::Completions;
use crate::client::scraper::{Scraped, Scraper};
use crate::client::server::{self, PromptForm};
use crate::drive::vocabulary::Vocabulary;
use crate::drive::{Driven, NoPlan, Plan, drive};
use crate::engines::book::Book;
use crate::engines::config::{check_live, live_config, served_pool, shares_link};
use crate::engines::direct::Direct;
use crate::engines::disaggregated::Disaggregated;
use crate::engines::faults::{FaultPlan, restarts};
use crate::engines::frontend::Frontend;
use crate::engines::pool::{EnginePool, end, engine_error};
use crate::engines::server as embedded;
use crate::engines::totals::{SNAPSHOT_AGE, Totals};
use crate::facts::{absent_behind_server, absent_live, absent_without_metrics};

/// Longest wait for tokens of an answer unless the script says.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Tokens that live engines draw, and that their prompts have.
const VOCAB_SIZE: u32 = 32_000;
/// Between two looks at a frontend that starts.
const START_PAUSE: Duration = Duration::from_millis(20);

/// Carries out runs in real time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Targets;

impl TargetDriver for Targets {
    fn check(&self, target: &Target, run: &RunConfig) -> Result<(), TargetError> {
        match target {
            Target::Virtual => Ok(()),
            Target::Live => check_live(run),
            Target::Serve | Target::Frontend(_) => served_pool(target.name(), run).map(drop),
            Target::Http(http) => {
                server::pool(http)?;
                check_foreign(run)
            }
        }
    }

    fn run(&self, target: &Target, run: RunConfig, observer: &mut dyn Observer) -> Result<Report, TargetError> {
        self.check(target, &run)?;
        raise_limit_of_files();
        match target {
            Target::Virtual => Ok(vcr_cluster::simulate(run, observer)?),
            Target::Live => on_one_thread(live(run, observer)),
            Target::Serve => on_one_thread(serve(run, observer)),
            Target::Frontend(frontend) => on_one_thread(behind_frontend(frontend, run, observer)),
            Target::Http(http) => on_one_thread(foreign(http, run, observer)),
        }
    }
}

/// Refuses what a server that is not ours cannot do.
fn check_foreign(run: &RunConfig) -> Result<(), TargetError> {
    let mut lacking = vcr_cluster::virtual_only(run);
    if !run.faults.is_empty() {
        lacking.push("planned faults: its engines are not ours".to_owned());
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let message = format!("the target `http` cannot run `{}`: it has no {}", run.name, lacking.join(", no "));
    Err(TargetError::with_hint(message, "leave `faults` out on this target, or run it on `virtual`, `live` or `serve`"))
}

fn on_one_thread<T>(run: impl Future<Output = Result<T, TargetError>>) -> Result<T, TargetError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| TargetError::Failed(format!("cannot start the driver: {error}")))?;
    LocalSet::new().block_on(&runtime, run)
}

/// Each open stream is a file; the limit of processes is often low.
fn raise_limit_of_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A lower limit shows when a connection cannot be made.
    _ = setrlimit(Resource::Nofile, limit);
}

/// Engines of this process, called directly.
async fn live(run: RunConfig, observer: &mut dyn Observer) -> Result<Report, TargetError> {
    let mut pools = Vec::new();
    let mut services = Vec::new();
    for role in run.topology.roles() {
        let (pool, engines) = EnginePool::start(&run, *role, VOCAB_SIZE, None).await?;
        services.push(Direct {
            engines,
            vocabulary: Vocabulary::new(Some(VOCAB_SIZE)),
            is_routed: run.topology.pool(*role).is_some_and(|pool| pool.engines > 1),
            restarts: restarts(&run.faults, *role),
            attempts: Cell::new(0),
        });
        pools.push(pool);
    }
    let faults = run.faults.clone();
    let mut plan = FaultPlan::new(pools.iter().map(EnginePool::handle).collect(), &faults);
    let mut target = TargetReport { name: "live".to_owned(), absent: absent_live(), ..TargetReport::default() };
    let link_note = shares_link(&run).then(|| "each transfer of KV had the whole bandwidth of the link".to_owned());
    target.notes.extend(link_note);
    let prefill_engines = run.topology.pools()[0].engines;
    let driven = match (services.pop(), services.pop()) {
        (Some(decode), Some(prefill)) => {
            let service = Disaggregated { prefill, decode, prefill_engines };
            drive(run, true, service, observer, &mut plan).await
        }
        (Some(service), None) => drive(run, true, service, observer, &mut plan).await,
        (None, _) => Err(TargetError::Failed("the run has no pool (this is a bug)".to_owned())),
    };
    tokio::time::sleep(SNAPSHOT_AGE).await;
    let duration_ns = driven.as_ref().map_or(0, |driven| driven.duration_ns);
    let totals = Totals::sum(pools.iter().map(|pool| pool.totals(&faults, duration_ns)));
    pools.into_iter().try_for_each(EnginePool::end)?;
    finish(driven?, target, totals, None)
}

/// The same behind the server of `vcr serve`.
async fn serve(run: RunConfig, observer: &mut dyn Observer) -> Result<Report, TargetError> {
    let pool = served_pool("serve", &run)?;
    let max_model_len = pool.engine.as_vllm().map_or(0, |engine| engine.max_model_len());
    let (metrics, heard) = embedded::metrics(pool.engines as u16, max_model_len);
    let (pool, client) = EnginePool::start(&run, PoolRole::Aggregated, embedded::vocab_size(), Some(heard)).await?;
    let faults = run.faults.clone();
    let mut plan = FaultPlan::new(vec![pool.handle()], &faults);
    let served = embedded::serve(client, metrics, max_model_len, &run.adapters());
    let asked = match served {
        Ok(server) => {
            let http = HttpTarget { vocab_size: Some(embedded::vocab_size()), ..server.target.clone() };
            let measured = measure(&http, run, true, Some(pool.book().clone()), observer, &mut plan).await;
            tokio::time::sleep(SNAPSHOT_AGE).await;
            measured
        }
        Err(error) => Err(error),
    };
    let duration_ns = asked.as_ref().map_or(0, |measured| measured.driven.duration_ns);
    let totals = pool.totals(&faults, duration_ns);
    pool.end()?;
    let Measured { driven, target, .. } = asked?;
    let target = TargetReport { name: "serve".to_owned(), absent: absent_live(), ..target };
    finish(driven, target, totals, None)
}

/// The same behind vLLM's own frontend.
async fn behind_frontend(
    asked: &FrontendTarget,
    run: RunConfig,
    observer: &mut dyn Observer,
) -> Result<Report, TargetError> {
    let pool = served_pool("frontend", &run)?.clone();
    let line = asked.line.as_deref().map(str::parse::<VllmMinor>).transpose();
    let line = line.map_err(|error| TargetError::unusable(format!("invalid `line`: {error}")))?;
    let mut frontend = Frontend::start(asked, pool.engines, &run.adapters())?;
    let mut config = live_config(&run, PoolRole::Aggregated, VOCAB_SIZE, 0)?;
    config.identity.handshake_address = frontend.handshake_address();
    config.identity.version = line;
    let engines = LiveEngines::start(config).map_err(engine_error)?;
    let faults = run.faults.clone();
    let mut plan = FaultPlan::new(vec![(PoolRole::Aggregated, engines.handle())], &faults);
    let http = HttpTarget { vocab_size: Some(VOCAB_SIZE), ..frontend.target() };
    let measured = match wait_until_it_serves(&mut frontend, &http).await {
        Ok(()) => measure(&http, run, true, None, observer, &mut plan).await,
        Err(error) => Err(error),
    };
    tokio::time::sleep(SNAPSHOT_AGE).await;
    let duration_ns = measured.as_ref().map_or(0, |measured| measured.driven.duration_ns);
    let mut totals = Totals::of(&engines.handle(), &pool, &Book::default(), &faults, duration_ns);
    totals.counts_cached_tokens(&engines.handle());
    end(engines)?;
    drop(frontend);
    let Measured { driven, mut target, scraped, .. } = measured?;
    target.name = "frontend".to_owned();
    absent_behind_server(&mut target, true);
    finish(driven, target, totals, scraped.kv_peak_usage)
}

async fn wait_until_it_serves(frontend: &mut Frontend, http: &HttpTarget) -> Result<(), TargetError> {
    let (pool, since) = (server::pool(http)?, Instant::now());
    while server::get(&pool, "/v1/models").await.is_err() {
        frontend.check_start(since)?;
        tokio::time::sleep(START_PAUSE).await;
    }
    Ok(())
}

/// Any server.
async fn foreign(http: &HttpTarget, run: RunConfig, observer: &mut dyn Observer) -> Result<Report, TargetError> {
    let Measured { driven, mut target, scraped, tells_cached } =
        measure(http, run, false, None, observer, &mut NoPlan).await?;
    absent_behind_server(&mut target, false);
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

/// A run that a client of a server has measured.
struct Measured {
    driven: Driven,
    target: TargetReport,
    scraped: Scraped,
    tells_cached: bool,
}

/// Asks a server what it is, and carries out a run on it.
async fn measure(
    http: &HttpTarget,
    run: RunConfig,
    knows_engines: bool,
    book: Option<Book>,
    observer: &mut dyn Observer,
    plan: &mut dyn Plan,
) -> Result<Measured, TargetError> {
    let pool = Rc::new(server::pool(http)?);
    let server = server::ask(&pool, http, &run.adapters()).await?;
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
    let scraper = Scraper::begin(&pool).await;
    let service = Completions {
        pool,
        server,
        idle_timeout: http.idle_timeout_ns.map_or(IDLE_TIMEOUT, Duration::from_nanos),
        tells_cached: Rc::clone(&tells_cached),
        book,
    };
    let driven = drive(run, knows_engines, service, observer, plan).await?;
    let scraped = scraper.end().await;
    Ok(Measured { driven, target, scraped, tells_cached: tells_cached.get() })
}

/// The account of a run, and what is told of it besides.
fn facts_of(driven: Driven, mut target: TargetReport) -> (vcr_cluster::MeasuredRun, MeasuredFacts) {
    let Driven { run, send_delays_ns, stopped_at_ns, notes, .. } = driven;
    target.notes.extend(notes);
    let facts = MeasuredFacts { target, send_delays_ns, stopped_at_ns, ..MeasuredFacts::default() };
    (run, facts)
}

/// The report of a run on engines of this process.
fn finish(
    driven: Driven,
    target: TargetReport,
    totals: Totals,
    kv_peak_usage: Option<f64>,
) -> Result<Report, TargetError> {
    let (run, facts) = facts_of(driven, target);
    let Totals { engines, engine_names, counters, kv_peak_usage: kv_peak } = totals;
    let kv_peak_usage = Some(kv_peak.max(kv_peak_usage.unwrap_or(0.0)));
    Ok(run.finish(MeasuredFacts { engines, engine_names, counters, kv_peak_usage, ..facts })?)
}
