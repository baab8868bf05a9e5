//! Simulates deployments, each only once and several concurrently.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use vcr_base::units::format_ns;
use vcr_cluster::Report;
use vcr_cluster::metrics::{Counter, Gauge, Trend};
use vcr_scenario::{AssertionResult, Blame, Outcome, Reporter, RunOptions, Scenario, SourceFile, parallel};

use crate::pack::merged;
use crate::plan::cluster::{self, Cluster};
use crate::plan::finished::Finished;
use crate::plan::halt::Halt;
use crate::plan::inputs::Inputs;
use crate::plan::load::Cut;
use crate::plan::objective::{Objective, headroom};
use crate::plan::script::Case;
use crate::plan::search::{Probe, Score, Simulate};
use crate::plan::space::Shape;
use crate::refusal::Refusal;
use crate::stop::{self, Cause};
use crate::terminal::progress::TerminalReporter;

/// Headroom of a deployment that cannot be executed.
const NONE: f64 = -1e12;
/// Share of the command's time that the search may take. The rest is for deciding the best deployment and its answer.
const OF_SEARCH: f64 = 0.6;

/// The stored result of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Simulated {
    pub(crate) score: Score,
    pub(crate) objectives: Vec<AssertionResult>,
    pub(crate) numbers: Numbers,
    /// The latency model that was used.
    pub(crate) latency: String,
    pub(crate) fingerprint: String,
    /// The reason why the deployment could not be executed, if so.
    pub(crate) refused: Option<String>,
}

/// A simulation result from another machine.
#[derive(Serialize, Deserialize)]
pub(crate) struct RemoteResult {
    pub(crate) simulated: Simulated,
    pub(crate) warnings: Vec<String>,
}

/// Metrics of a run for rows and their evaluation. All are zero or none if the deployment was refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Numbers {
    pub(crate) requests: u64,
    pub(crate) duration_ms: f64,
    pub(crate) engines: usize,
    /// Mean over the engines.
    pub(crate) utilisation: f64,
    pub(crate) link_utilisation: f64,
    pub(crate) kv_peak_usage: f64,
    pub(crate) preemptions: u64,
    pub(crate) largest_batch: f64,
    pub(crate) prompt_tokens: u64,
    /// Prompt tokens found in a cache; `host_cached_tokens` is the part found in host memory.
    pub(crate) cached_tokens: u64,
    pub(crate) host_cached_tokens: u64,
    pub(crate) output_tokens_per_s: f64,
    pub(crate) price_per_million_output_tokens_usd: Option<f64>,
    pub(crate) ttft_ms_p95: Option<f64>,
    pub(crate) itl_ms_mean: Option<f64>,
    pub(crate) itl_ms_p99: Option<f64>,
}

impl Numbers {
    fn of(run: &Report) -> Self {
        let metrics = &run.metrics;
        let (ttft, itl) = (metrics.trend(Trend::Ttft), metrics.trend(Trend::Itl));
        let busy: f64 = run.engines.iter().map(|engine| engine.utilisation).sum();
        Self {
            requests: run.num_requests(),
            duration_ms: run.duration_ms,
            engines: run.engines.len(),
            utilisation: busy / run.engines.len().max(1) as f64,
            link_utilisation: run.links.iter().map(|link| link.utilisation).fold(0.0, f64::max),
            kv_peak_usage: metrics.gauge(Gauge::KvPeakUsage).unwrap_or(0.0),
            preemptions: metrics.count(Counter::Preemptions),
            largest_batch: metrics.trend(Trend::BatchSize).map_or(0.0, |trend| trend.max),
            prompt_tokens: metrics.count(Counter::PromptTokens),
            cached_tokens: metrics.count(Counter::CachedTokens),
            host_cached_tokens: metrics.count(Counter::HostCachedTokens),
            output_tokens_per_s: metrics.rate_per_s(Counter::OutputTokens),
            price_per_million_output_tokens_usd: metrics.gauge(Gauge::CostPerMillionOutputTokens),
            ttft_ms_p95: ttft.map(|trend| trend.p95),
            itl_ms_mean: itl.map(|trend| trend.mean),
            itl_ms_p99: itl.map(|trend| trend.p99),
        }
    }
}

/// Numbers of all simulations and simulated requests, including those with other loads and speeds.
#[derive(Default)]
struct Spent {
    runs: AtomicUsize,
    /// Those of an earlier process.
    earlier: AtomicUsize,
    requests: AtomicU64,
}

pub(crate) struct Simulator<'a> {
    pub(crate) inputs: &'a Inputs,
    pub(crate) shapes: &'a [Shape],
    /// Number of leading requests of each part of the load; none for the whole.
    pub(crate) parts: Vec<Option<u64>>,
    pub(crate) base: &'a Scenario,
    threads: usize,
    /// Factor on the step times of the latency model.
    slower: f64,
    /// Factor on the arrival rate.
    factor: f64,
    known: Mutex<BTreeMap<Probe, Arc<Simulated>>>,
    /// Shared by all simulators of a question.
    spent: Arc<Spent>,
    finished: Option<Arc<Finished<Simulated>>>,
    /// The cluster that simulates the load, if any.
    cluster: Option<&'a Cluster>,
    progress: Arc<Progress>,
}

impl<'a> Simulator<'a> {
    pub(crate) fn new(
        inputs: &'a Inputs,
        shapes: &'a [Shape],
        parts: Vec<Option<u64>>,
        base: &'a Scenario,
        threads: usize,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            inputs,
            shapes,
            parts,
            base,
            threads,
            slower: 1.0,
            factor: 1.0,
            known: Mutex::default(),
            spent: Arc::default(),
            finished: None,
            cluster: None,
            progress,
        }
    }

    /// Lets a cluster simulate the load.
    pub(crate) fn on(self, cluster: Option<&'a Cluster>) -> Self {
        let threads = if cluster.is_some() { cluster::THREADS } else { self.threads };
        Self { cluster, threads, ..self }
    }

    /// Uses and extends the finished simulations of an earlier process.
    pub(crate) fn with_finished(self, finished: Option<Finished<Simulated>>) -> Self {
        Self { finished: finished.map(Arc::new), ..self }
    }

    /// Closes the file of finished simulations. A complete answer no longer needs it.
    pub(crate) fn leave_finished(&self, is_answered: bool) {
        if let Some(finished) = &self.finished {
            finished.end(is_answered && self.cut_by().is_none());
        }
    }

    /// A simulator whose steps take `slower` times as long as the latency model says.
    pub(crate) fn with_slower(&self, slower: f64) -> Self {
        Self { slower, ..self.anew() }
    }

    /// A simulator whose requests arrive `factor` times as fast.
    pub(crate) fn with_load(&self, factor: f64) -> Self {
        Self { factor, ..self.anew() }
    }

    /// A copy without results.
    fn anew(&self) -> Self {
        Self {
            parts: self.parts.clone(),
            known: Mutex::default(),
            spent: Arc::clone(&self.spent),
            finished: self.finished.clone(),
            progress: Arc::clone(&self.progress),
            ..*self
        }
    }

    /// Index of the part that is the whole load.
    pub(crate) fn whole(&self) -> usize {
        self.parts.len() - 1
    }

    /// Shows a new phase, and the estimated total of simulated requests.
    pub(crate) fn begin(&self, what: &str, expected_requests: f64) {
        let done = self.spent.requests.load(Ordering::Relaxed) as f64;
        self.progress.begin(what, done + expected_requests);
    }

    /// Numbers of simulations and simulated requests so far.
    pub(crate) fn spent(&self) -> (usize, u64) {
        (self.spent.runs.load(Ordering::Relaxed), self.spent.requests.load(Ordering::Relaxed))
    }

    /// Simulations that an earlier process has made.
    pub(crate) fn made_earlier(&self) -> usize {
        self.spent.earlier.load(Ordering::Relaxed)
    }

    /// Every simulation with a part of the load.
    pub(crate) fn of_part(&self, part: usize) -> Vec<(Probe, Arc<Simulated>)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter(|(probe, _)| probe.part == part).map(|(probe, one)| (*probe, Arc::clone(one))).collect()
    }

    /// The result of a deployment, if it was simulated.
    pub(crate) fn known(&self, probe: &Probe) -> Option<Arc<Simulated>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(probe).cloned()
    }

    /// The cause that ended the search or the answer early, if any.
    pub(crate) fn cut_by(&self) -> Option<&'static str> {
        self.progress.cut_by()
    }

    /// The result of a deployment, which is simulated if necessary.
    pub(crate) fn of(&self, probe: Probe) -> Result<Arc<Simulated>, Halt> {
        self.all(&[probe]).map(|mut all| all.remove(0))
    }

    /// The results of several deployments, which are simulated if necessary.
    pub(crate) fn all(&self, probes: &[Probe]) -> Result<Vec<Arc<Simulated>>, Halt> {
        let missing: BTreeSet<Probe> = probes.iter().filter(|probe| self.known(probe).is_none()).copied().collect();
        let missing: Vec<Probe> = missing.into_iter().collect();
        let made = parallel(self.threads, &missing, |_, probe| {
            let cut = Cut { requests: self.parts[probe.part], factor: self.factor };
            let shape = &self.shapes[probe.shape];
            self.case(&Case { shape, replicas: probe.replicas, cut, slower: self.slower })
        });
        let mut failed = None;
        for (probe, made) in missing.into_iter().zip(made) {
            match made {
                Ok(made) => {
                    self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(probe, Arc::new(made));
                }
                Err(halt) => failed = failed.or(Some(halt)),
            }
        }
        match failed {
            Some(halt) => Err(halt),
            None => Ok(probes.iter().filter_map(|probe| self.known(probe)).collect()),
        }
    }

    /// Simulates a deployment with any load and speed.
    pub(crate) fn case(&self, case: &Case<'_>) -> Result<Simulated, Halt> {
        let script = case.script(self.inputs)?;
        if let Some(known) = self.finished.as_ref().and_then(|finished| finished.of(&script)) {
            // Counted as if it were simulated now, so that the answer is that of a single process.
            self.count(known.numbers.requests);
            self.spent.earlier.fetch_add(1, Ordering::Relaxed);
            return Ok(known);
        }
        let made = match self.cluster {
            Some(cluster) => self.elsewhere(cluster, &script, case.cut.requests)?,
            None => Simulated::of(self.script(script.clone())?, &self.inputs.objectives),
        };
        if made.refused.is_some() {
            return Ok(made);
        }
        if let Some(finished) = &self.finished {
            finished.add(&script, &made);
        }
        Ok(made)
    }

    fn elsewhere(&self, cluster: &Cluster, script: &str, requests: Option<u64>) -> Result<Simulated, Halt> {
        let is_over = || self.progress.stop().is_some();
        let Some(RemoteResult { simulated, warnings }) = cluster.execute(script, requests, is_over)? else {
            return Err(Halt::Over);
        };
        for text in warnings {
            self.progress.warn(&text);
        }
        if simulated.refused.is_none() {
            self.count(simulated.numbers.requests);
        }
        Ok(simulated)
    }

    fn count(&self, requests: u64) {
        let runs = self.spent.runs.fetch_add(1, Ordering::Relaxed) + 1;
        let done = self.spent.requests.fetch_add(requests, Ordering::Relaxed) + requests;
        self.progress.note(runs, done);
    }

    /// Executes a script. The inner result is an error if the deployment was refused.
    pub(crate) fn script(&self, script: String) -> Result<Result<Outcome, String>, Halt> {
        if self.progress.stop().is_some() {
            return Err(Halt::Over);
        }
        let reporter = Arc::clone(&self.progress) as Arc<dyn Reporter>;
        let Some(made) = executed(script, self.base, options(), reporter)? else { return Err(Halt::Over) };
        if let Ok(outcome) = &made {
            self.count(outcome.runs.iter().map(|run| run.num_requests()).sum());
        }
        Ok(made)
    }

    /// The files that the shapes need, with their names in scripts.
    pub(crate) fn sources(&self) -> Result<Vec<SourceFile>, Refusal> {
        let found = self.each_of(self.shapes, |_, shape| -> Result<_, Refusal> {
            let script = Case { shape, replicas: 1, cut: Cut::WHOLE, slower: 1.0 }.script(self.inputs)?;
            let scenario = Scenario::compile(&place(), script)?.sharing(self.base);
            // A shape that cannot be deployed is refused when it is simulated.
            let checked = scenario.check(options(), Arc::clone(&self.progress) as Arc<dyn Reporter>);
            Ok(checked.map(|checked| checked.sources).unwrap_or_default())
        });
        let found: Vec<Vec<SourceFile>> = found.into_iter().collect::<Result<_, _>>()?;
        Ok(merged(found.into_iter().flatten()))
    }

    /// Checks a script without running it. Its errors are errors of the question.
    pub(crate) fn check(&self, script: &str) -> Result<(), Refusal> {
        let of = |error: vcr_scenario::ScenarioError| {
            let refusal = Refusal::input(format!("invalid plan: {}", error.message));
            match error.hint {
                Some(hint) => refusal.hint(hint),
                None => refusal,
            }
        };
        let scenario = Scenario::compile(&place(), script.to_owned()).map_err(of)?.sharing(self.base);
        scenario.check(options(), Arc::clone(&self.progress) as Arc<dyn Reporter>).map(|_| ()).map_err(of)
    }

    /// Calls `act` for the items concurrently; results are in order.
    pub(crate) fn each_of<T: Sync, R: Send>(&self, items: &[T], act: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
        parallel(self.threads, items, act)
    }

    /// Ends the progress line and prints each warning once.
    pub(crate) fn end(&self) {
        self.progress.end();
    }
}

/// Name of scripts in memory. Their relative paths start at the working directory.
pub(crate) fn place() -> PathBuf {
    PathBuf::from("plan.rhai")
}

pub(crate) fn options() -> RunOptions {
    RunOptions { tokenizers: crate::run::tokenizers(), ..RunOptions::default() }
}

/// Executes a script; none if it was stopped. The inner result is an error if the deployment was refused.
pub(crate) fn executed(
    script: String,
    base: &Scenario,
    options: RunOptions,
    reporter: Arc<dyn Reporter>,
) -> Result<Option<Result<Outcome, String>>, Refusal> {
    let scenario =
        Scenario::compile(&place(), script.clone()).map_err(|error| Refusal::of_script(error, &script))?.sharing(base);
    match scenario.run(options, reporter) {
        Ok(outcome) => Ok(outcome.partial.is_none().then_some(Ok(outcome))),
        Err(error) if error.blame == Blame::Input => Ok(Some(Err(error.message))),
        Err(error) => Err(Refusal::of_script(error, &script)),
    }
}

impl Simulate for Simulator<'_> {
    type Error = Halt;

    fn simulate(&self, probes: &[Probe]) -> Result<Vec<Score>, Halt> {
        self.all(probes).map(|all| all.iter().map(|one| one.score).collect())
    }

    fn each<T: Send>(&self, count: usize, act: &(dyn Fn(usize) -> T + Sync)) -> Vec<T> {
        let numbers: Vec<usize> = (0..count).collect();
        parallel(self.threads, &numbers, |_, number| act(*number))
    }

    fn is_over(&self) -> bool {
        self.progress.is_over(OF_SEARCH)
    }
}

impl Simulated {
    pub(crate) fn of(made: Result<Outcome, String>, objectives: &[Objective]) -> Self {
        let outcome = match made {
            Ok(outcome) => outcome,
            Err(reason) => return Self::refused(reason),
        };
        let tightest = outcome.assertions.iter().map(headroom).fold(f64::INFINITY, f64::min);
        let run = &outcome.runs[0];
        let mut judged = outcome.assertions.iter().zip(objectives);
        let carries = judged.all(|(made, objective)| made.passed || objective.hurts());
        Self {
            score: Score { passed: outcome.passed, carries, headroom: tightest },
            objectives: outcome.assertions,
            numbers: Numbers::of(run),
            latency: run.deployments.first().map(|one| one.deployment.latency.clone()).unwrap_or_default(),
            fingerprint: outcome.fingerprint,
            refused: None,
        }
    }

    pub(crate) fn refused(reason: String) -> Self {
        Self {
            score: Score { passed: false, carries: false, headroom: NONE },
            objectives: Vec::new(),
            numbers: Numbers::default(),
            latency: String::new(),
            fingerprint: String::new(),
            refused: Some(reason),
        }
    }
}

/// The progress line, the warnings of all runs, and the time limit.
pub(crate) struct Progress {
    /// Start of the command and its time limit.
    budget: Option<(Instant, Duration)>,
    /// Whether work was skipped because of the time limit or a signal.
    is_cut: AtomicBool,
    bar: ProgressBar,
    terminal: TerminalReporter,
    state: Mutex<State>,
    warned: Mutex<BTreeSet<String>>,
}

struct State {
    what: String,
    began: Instant,
    /// Estimated number of simulated requests at the end.
    expected: f64,
}

impl Progress {
    pub(crate) fn new(quiet: bool, budget: Option<Duration>) -> Self {
        use std::io::IsTerminal;
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{spinner} {msg}").unwrap_or(ProgressStyle::default_spinner());
        bar.set_style(style);
        let state = State { what: String::new(), began: Instant::now(), expected: 0.0 };
        let terminal = TerminalReporter::new(quiet);
        // A signal ends the search with an answer.
        terminal.keep_results();
        let budget = budget.map(|budget| (Instant::now(), budget));
        let is_cut = AtomicBool::new(false);
        Self { budget, is_cut, bar, terminal, state: Mutex::new(state), warned: Mutex::default() }
    }

    /// Whether a signal has arrived or this share of the time has passed. If so, the caller must skip work.
    fn is_over(&self, share: f64) -> bool {
        let is_late = |(began, time): (Instant, Duration)| began.elapsed() >= time.mul_f64(share);
        let is_over = stop::cause().is_some() || self.budget.is_some_and(is_late);
        if is_over {
            self.is_cut.store(true, Ordering::Relaxed);
        }
        is_over
    }

    pub(crate) fn cut_by(&self) -> Option<&'static str> {
        let is_cut = self.is_cut.load(Ordering::Relaxed);
        is_cut.then(|| stop::cause().map_or("--budget", Cause::name))
    }

    fn begin(&self, what: &str, expected: f64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.what.is_empty() {
            state.began = Instant::now();
        }
        what.clone_into(&mut state.what);
        state.expected = expected;
    }

    fn note(&self, runs: usize, requests: u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let done = requests as f64;
        let rate_per_s = done / state.began.elapsed().as_secs_f64().max(1e-3);
        let left_s = (state.expected - done).max(0.0) / rate_per_s.max(1.0);
        let left = match state.expected > done {
            true => format!(" · at most {} to go", format_ns(left_s * 1e9)),
            false => String::new(),
        };
        self.bar.set_message(format!("{} · simulations: {runs}, requests: {requests}{left}", state.what));
        self.bar.tick();
    }

    fn end(&self) {
        self.bar.finish_and_clear();
        for text in std::mem::take(&mut *self.warned.lock().unwrap_or_else(PoisonError::into_inner)) {
            self.terminal.warn(&text);
        }
    }
}

impl Reporter for Progress {
    fn warn(&self, text: &str) {
        self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned());
    }

    fn stop(&self) -> Option<&'static str> {
        if self.is_over(1.0) { self.cut_by() } else { None }
    }
}
