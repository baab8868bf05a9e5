//! The driver in real time: sends the requests of a run when they are due, and measures.
//!
//! Clients and accounting share one thread, so that no measurement waits for a lock.

pub(crate) mod clock;
pub(crate) mod vocabulary;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use vcr_cluster::metrics::Samples;
use vcr_cluster::observe::Observer;
use vcr_cluster::record::{FailReason, RequestRecord};
use vcr_cluster::{Due, Ending, IssuedRequest, MeasuredRun, RunConfig, TargetError};
use vcr_frontend::Alarm;

use clock::Clock;

/// Interval at which the observer is asked whether to stop the run.
const LOOK_INTERVAL_NS: u64 = 50_000_000;
/// Pause before a retry of a request that was lost before its first token. The server may be restarting.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Time between the preparation of a request and its due time: its body and connection must be ready in time.
const AHEAD_NS: u64 = 10_000_000;

const MAX_NOTES: usize = 8;

/// Answers requests: a server, or engines.
pub(crate) trait Service: 'static {
    /// Sends a request and reports its answer as it arrives. Dropping the future cancels the request.
    async fn answer(&self, request: &IssuedRequest, reporter: &AnswerReporter) -> Answered;
}

#[derive(Debug)]
pub(crate) enum Answered {
    /// Complete. Contains the output tokens if they are needed and known.
    Whole(Vec<u32>),
    /// Rejected because of overload.
    Shed,
    /// Failed. A retry would fail, too.
    Failed(FailReason),
    /// Lost because of a fault. A retry may succeed.
    Lost(FailReason),
}

/// A run and its clock, shared by the tasks of all requests.
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    run: RefCell<MeasuredRun>,
    send_delays_ns: RefCell<Samples>,
    /// Notes for the report, by subject.
    notes: RefCell<BTreeMap<String, String>>,
    /// Prepared requests that wait until they are due, by due time and tag.
    ready: RefCell<BTreeMap<(u64, u64), oneshot::Sender<()>>>,
    /// Cancellable requests in progress, by tag.
    exchanges: RefCell<BTreeMap<u64, AbortHandle>>,
    changed: Notify,
}

impl Shared {
    fn note(&self, about: &str, text: impl Into<String>) {
        let mut notes = self.notes.borrow_mut();
        if notes.len() < MAX_NOTES && !notes.contains_key(about) {
            notes.insert(about.to_owned(), text.into());
        }
    }

    /// Sends the prepared requests that are due.
    fn release(&self, now_ns: u64) {
        let mut ready = self.ready.borrow_mut();
        let later = ready.split_off(&(now_ns.saturating_add(1), 0));
        for (_, release) in std::mem::replace(&mut *ready, later) {
            // The request may have been cancelled.
            _ = release.send(());
        }
    }

    fn next_release_ns(&self) -> Option<u64> {
        self.ready.borrow().first_key_value().map(|((due_ns, _), _)| *due_ns)
    }

    fn give_up(&self, tag: u64) {
        if let Some(exchange) = self.exchanges.borrow_mut().remove(&tag) {
            exchange.abort();
        }
    }
}

/// Receives a service's reports about one request.
pub(crate) struct AnswerReporter {
    shared: Rc<Shared>,
    tag: u64,
    due_ns: u64,
}

impl AnswerReporter {
    /// Reports that the request is prepared, and waits until it is due.
    pub(crate) async fn sent(&self) {
        if self.shared.clock.now_ns() < self.due_ns {
            let (release, released) = oneshot::channel();
            self.shared.ready.borrow_mut().insert((self.due_ns, self.tag), release);
            if self.shared.next_release_ns() == Some(self.due_ns) {
                self.shared.changed.notify_one();
            }
            // The channel closes without a message when the run ends.
            _ = released.await;
        }
        let delay_ns = self.shared.clock.now_ns().saturating_sub(self.due_ns);
        self.shared.send_delays_ns.borrow_mut().push(delay_ns, 1);
    }

    /// Reports output tokens that arrived together.
    pub(crate) fn tokens(&self, count: u32) {
        let now_ns = self.shared.clock.now_ns();
        let goes_on = self.shared.run.borrow_mut().tokens(self.tag, count, now_ns);
        if !goes_on {
            // The client needs no more tokens.
            self.shared.give_up(self.tag);
            self.shared.changed.notify_one();
        }
    }

    /// Reports that the engine started the prompt, in seconds on the system's monotonic clock.
    pub(crate) fn admitted(&self, at_s: f64, cached_tokens: u32) {
        let at_ns = self.shared.clock.of_monotonic_s(at_s).min(self.shared.clock.now_ns());
        self.shared.run.borrow_mut().admitted(self.tag, at_ns, cached_tokens);
    }

    pub(crate) fn cached(&self, cached_tokens: u32) {
        self.shared.run.borrow_mut().cached(self.tag, cached_tokens);
    }

    pub(crate) fn preempted(&self) {
        let now_ns = self.shared.clock.now_ns();
        self.shared.run.borrow_mut().preempted(self.tag, now_ns);
    }

    /// Reports that a prefill engine has computed the prompt.
    pub(crate) fn prefilled(&self) {
        let now_ns = self.shared.clock.now_ns();
        self.shared.run.borrow_mut().prefilled(self.tag, now_ns);
    }

    /// Reports that the prompt's KV has reached a decode engine, at this time on the system's monotonic clock.
    pub(crate) fn transferred(&self, monotonic_ns: u64) {
        let at_ns = self.shared.clock.of_monotonic_ns(monotonic_ns).min(self.shared.clock.now_ns());
        self.shared.run.borrow_mut().transferred(self.tag, at_ns);
    }

    /// Reports which engine generates the output, by its index in the report.
    pub(crate) fn decoded_by(&self, engine: u32) {
        self.shared.run.borrow_mut().decoded_by(self.tag, engine);
    }

    /// Reports which engine serves the request, by its index in the report.
    pub(crate) fn served_by(&self, engine: u32) {
        self.shared.run.borrow_mut().served_by(self.tag, engine);
    }

    /// Adds the facts that a cluster's engines recorded about the finished request.
    pub(crate) fn adopt(&self, engines: &RequestRecord) {
        self.shared.run.borrow_mut().adopt(self.tag, engines);
    }

    /// Adds a note to the report unless this subject already has one.
    pub(crate) fn note(&self, about: &str, text: impl Into<String>) {
        self.shared.note(about, text);
    }
}

/// Planned actions of a run, such as faults.
pub(crate) trait Plan {
    /// Starts the run. Planned times count from now.
    fn begin(&mut self, _clock: Clock) {}
    /// When the next action is due.
    fn next_ns(&self) -> Option<u64>;
    /// Performs the actions that are due.
    fn act(&mut self, now_ns: u64);
    /// Samples the engines if a sample is due.
    fn sample(&mut self, now_ns: u64);
}

pub(crate) struct NoPlan;

impl Plan for NoPlan {
    fn next_ns(&self) -> Option<u64> {
        None
    }

    fn act(&mut self, _now_ns: u64) {}

    fn sample(&mut self, _now_ns: u64) {}
}

pub(crate) struct Driven {
    pub(crate) run: MeasuredRun,
    pub(crate) send_delays_ns: Samples,
    /// When the run was stopped early, if it was.
    pub(crate) stopped_at_ns: Option<u64>,
    pub(crate) notes: Vec<String>,
    pub(crate) duration_ns: u64,
    pub(crate) clock: Clock,
}

/// Carries out a run on a service. Must run in a `LocalSet`.
pub(crate) async fn drive<S: Service>(
    config: RunConfig,
    knows_engines: bool,
    service: S,
    observer: &mut dyn Observer,
    plan: &mut dyn Plan,
) -> Result<Driven, TargetError> {
    let run = MeasuredRun::new(config, knows_engines)?;
    let shared = Rc::new(Shared {
        clock: Clock::start(),
        run: RefCell::new(run),
        send_delays_ns: RefCell::default(),
        notes: RefCell::default(),
        ready: RefCell::default(),
        exchanges: RefCell::default(),
        changed: Notify::new(),
    });
    plan.begin(shared.clock);
    let service = Rc::new(service);
    let mut tasks = JoinSet::new();
    let outcome = issue_all(&shared, &service, &mut tasks, observer, plan).await;
    // Cancel the requests in progress.
    tasks.shutdown().await;
    let stopped_at_ns = outcome?;
    let Some(shared) = Rc::into_inner(shared) else {
        return Err(TargetError::Failed("a request outlived its run (this is a bug)".to_owned()));
    };
    let run = shared.run.into_inner();
    Ok(Driven {
        duration_ns: run.duration_ns(stopped_at_ns),
        run,
        send_delays_ns: shared.send_delays_ns.into_inner(),
        stopped_at_ns,
        notes: shared.notes.into_inner().into_values().collect(),
        clock: shared.clock,
    })
}

/// Sends requests until the run ends. Returns the time of an early stop, if there was one.
async fn issue_all<S: Service>(
    shared: &Rc<Shared>,
    service: &Rc<S>,
    tasks: &mut JoinSet<()>,
    observer: &mut dyn Observer,
    plan: &mut dyn Plan,
) -> Result<Option<u64>, TargetError> {
    let clock = shared.clock;
    let system = |error: std::io::Error| TargetError::Failed(format!("cannot wait for requests: {error}"));
    let alarm = Alarm::new().map_err(system)?;
    let max_ns = shared.run.borrow().config().max_time_ns.unwrap_or(u64::MAX);
    let mut next_look_ns = 0;
    loop {
        let now_ns = clock.now_ns();
        if plan.next_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            plan.act(now_ns);
        }
        plan.sample(now_ns);
        shared.release(now_ns);
        loop {
            let due = shared.run.borrow_mut().due_within(now_ns, AHEAD_NS);
            match due {
                None => break,
                Some(Due::GiveUp { tag }) => shared.give_up(tag),
                Some(Due::Send(request)) => {
                    let may_give_up = request.may_give_up.then_some(request.tag);
                    let exchange = tasks.spawn_local(exchange(Rc::clone(shared), Rc::clone(service), request));
                    may_give_up.map(|tag| shared.exchanges.borrow_mut().insert(tag, exchange));
                }
            }
        }
        while tasks.try_join_next().is_some() {}
        if shared.run.borrow().is_over() || now_ns > max_ns {
            return Ok(None);
        }
        if now_ns >= next_look_ns {
            next_look_ns = now_ns + LOOK_INTERVAL_NS;
            if observer.wants_stop() {
                return Ok(Some(now_ns));
            }
            let progress = shared.run.borrow().progress(now_ns);
            observer.progress(&progress);
            observer.check_limits().map_err(TargetError::Failed)?;
        }
        let made_ns = {
            let run = shared.run.borrow();
            run.next_due_ns().map(|due_ns| due_ns.saturating_sub(run.lookahead_ns(AHEAD_NS)))
        };
        let others_ns = [plan.next_ns(), Some(next_look_ns), Some(max_ns.saturating_add(1))];
        let until_ns = others_ns.into_iter().chain([made_ns, shared.next_release_ns()]);
        let until_ns = until_ns.flatten().min().unwrap_or(next_look_ns);
        tokio::select! {
            biased;
            waited = alarm.until(clock.monotonic_ns(until_ns)) => waited.map_err(system)?,
            () = shared.changed.notified() => {}
        }
        // Let the new tasks run before the next requests become due.
        tokio::task::yield_now().await;
    }
}

/// Sends one request, and retries it if it was lost.
async fn exchange<S: Service>(shared: Rc<Shared>, service: Rc<S>, request: IssuedRequest) {
    let reporter = AnswerReporter { shared, tag: request.tag, due_ns: request.due_ns };
    let (ending, answer) = loop {
        match service.answer(&request, &reporter).await {
            Answered::Whole(answer) => break (Ending::Completed, answer),
            Answered::Shed => break (Ending::Shed, Vec::new()),
            Answered::Failed(reason) => break (Ending::Failed(reason), Vec::new()),
            Answered::Lost(reason) => {
                let is_retried = reporter.shared.run.borrow_mut().lost(request.tag);
                if !is_retried {
                    break (Ending::Failed(reason), Vec::new());
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    };
    if ending == Ending::Failed(FailReason::Connection) {
        // The pause keeps a closed loop from sending endless requests to a lost server.
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    let now_ns = reporter.shared.clock.now_ns();
    reporter.shared.run.borrow_mut().ended(request.tag, ending, now_ns, answer);
    reporter.shared.exchanges.borrow_mut().remove(&request.tag);
    reporter.shared.changed.notify_one();
}
