//! Runs on targets other than virtual time, with the same requests and the same accounting.
//!
//! [`MeasuredRun`] has no clock of its own. Its caller asks for the next due request, sends and cancels requests,
//! and reports token times and ends. Workloads, sessions, trace graphs, clients, the ledger and the report work as
//! in virtual time.

mod clients;

use std::sync::Arc;

use vcr_core::{AnyEngine, Prompt, PromptItem, RejectReason, ServingEngine};

use crate::config::{Answers, Overheads, RunConfig, RunConfigError, WorkloadConfig, WorkloadSource};
use crate::error::SimError;
use crate::event::{Event, EventQueue};
use crate::ledger::Ledger;
use crate::ledger::metrics::Counter;
use crate::ledger::record::{FailReason, Outcome, RequestRecord};
use crate::observe::Progress;
use vcr_trace::capture::{ExtraKeys, PromptHasher, RecordedCall};

use crate::report::{MeasuredEnd, MeasuredFacts, Report, RequestNames, build_measured, measured_ns};
use crate::simulation::RequestOrigin;
use crate::traffic::{Start, Traffic, Turn};
use clients::Pending;

/// The next action of a run's caller.
#[derive(Debug)]
pub enum Due {
    /// Send a request.
    Send(IssuedRequest),
    /// Cancel a request for its client. The rest of the answer does not count.
    GiveUp {
        /// The request's number in the run.
        tag: u64,
    },
}

/// A request to send.
#[derive(Debug)]
pub struct IssuedRequest {
    /// The request's number in the run.
    pub tag: u64,
    /// Due time, in nanoseconds since the start of the run.
    pub due_ns: u64,
    /// Index of the workload in the run.
    pub workload: u32,
    /// Number of the session in the workload.
    pub session: u64,
    /// Position in the session, from 0.
    pub turn: u32,
    /// The prompt's tokens. Drawn tokens have the bit [`Prompt::DRAWN_TOKENS`].
    pub prompt: Vec<u32>,
    /// Multimodal items of the prompt, whose placeholders are among its tokens.
    pub items: Vec<PromptItem>,
    /// Number of output tokens; an upper bound if the output may end early.
    pub max_tokens: u32,
    /// Whether an answer with fewer tokens is valid, because a token source or a recording may end it.
    pub may_end_early: bool,
    /// Number of the LoRA adapter.
    pub adapter: Option<u32>,
    /// Whether the client may cancel the request.
    pub may_give_up: bool,
    /// Priority of the request.
    pub priority: i32,
    /// Tenant of the request; 0 for none.
    pub tenant: u64,
    /// Whether the prompt of the next turn repeats the answer.
    pub needs_answer: bool,
    /// Facts about the request that no protocol carries.
    pub origin: RequestOrigin,
    /// The recorded HTTP request, which is sent again.
    pub call: Option<Arc<RecordedCall>>,
}

/// The end of a request on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The request has its complete output.
    Completed,
    /// The router or the server refused the request because of its load.
    Shed,
    /// The request was lost.
    Failed(FailReason),
}

/// A run in progress on a target.
pub struct MeasuredRun {
    config: RunConfig,
    now_ns: u64,
    events: EventQueue,
    traffic: Traffic,
    ledger: Ledger,
    /// Requests by tag; None once a request has ended.
    pending: Vec<Option<Pending>>,
    names: RequestNames,
    /// One engine of each pool, to detect requests that can never run; empty if the engines are unknown.
    engines: Vec<AnyEngine>,
}

impl MeasuredRun {
    /// A run before its first request. With `knows_engines`, requests that the cluster's pools can never run are
    /// rejected, as in virtual time.
    pub fn new(config: RunConfig, knows_engines: bool) -> Result<Self, SimError> {
        config.check().map_err(SimError::Config)?;
        if let Some(workload) = config.workloads.iter().find(|workload| workload.profile().is_some()) {
            let problem = "lanes of plays are simulated only in virtual time; give a concurrency".to_owned();
            return Err(SimError::Config(vec![RunConfigError { place: workload.name.clone(), problem }]));
        }
        if let Some(workload) = config.workloads.iter().find(|workload| workload.is_warm_up) {
            let problem = "`warm_up` is simulated only in virtual time".to_owned();
            return Err(SimError::Config(vec![RunConfigError { place: workload.name.clone(), problem }]));
        }
        let engines: Vec<_> = config.topology.pools().iter().map(|pool| pool.engine.clone()).collect();
        let mut events = EventQueue::new(config.topology.pools().len());
        let mut traffic = Traffic::new(&config, engines[0].hashed_blocks(), true);
        traffic.begin(&mut events);
        let mut ledger = Ledger::new(config.workloads.len(), 0, false, Overheads::default());
        if config.keeps_requests {
            ledger.keep_requests();
        }
        Ok(Self {
            now_ns: 0,
            events,
            traffic,
            ledger,
            pending: Vec::new(),
            names: RequestNames::of(&config),
            engines: engines.iter().filter(|_| knows_engines).map(AnyEngine::new).collect(),
            config,
        })
    }

    /// The run's configuration.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// The due time of the next request. The end of a request may cause earlier ones.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        self.events.next_time().filter(|at_ns| self.config.max_time_ns.is_none_or(|max_ns| *at_ns <= max_ns))
    }

    /// Whether no request is in flight or due later.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.in_flight() == 0 && self.next_due_ns().is_none()
    }

    /// Number of requests that have been issued and have not ended.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.ledger.arrived() - self.ledger.ended()
    }

    /// Progress of the run at `now_ns`.
    #[must_use]
    pub fn progress(&self, now_ns: u64) -> Progress {
        Progress {
            now_ns,
            arrived: self.ledger.arrived(),
            ended: self.ledger.ended(),
            running: self.in_flight(),
            ..Progress::default()
        }
    }

    /// Maximum time by which the next request may be fetched before its due time, at most `most_ns`. 0 if an event
    /// before its due time might change it.
    #[must_use]
    pub fn lookahead_ns(&self, most_ns: u64) -> u64 {
        let next_ns = self.next_due_ns();
        let may_change = next_ns.is_some() && next_ns == self.events.next_give_up();
        let drops = self.config.workloads.iter().any(|workload| workload.client.max_in_flight.is_some());
        if may_change || drops { 0 } else { most_ns }
    }

    /// The next action due at or before `now_ns`.
    pub fn due(&mut self, now_ns: u64) -> Option<Due> {
        self.due_within(now_ns, 0)
    }

    /// The next action due at or before `now_ns`, or a request within the [lookahead](Self::lookahead_ns), at most
    /// `ahead_ns` before its due time. Requests that can never run are recorded as rejected and skipped.
    pub fn due_within(&mut self, now_ns: u64, ahead_ns: u64) -> Option<Due> {
        loop {
            let until_ns = now_ns.saturating_add(self.lookahead_ns(ahead_ns));
            let at_ns = self.next_due_ns().filter(|at_ns| *at_ns <= until_ns)?;
            let event = self.events.pop_at(at_ns)?;
            self.now_ns = self.now_ns.max(at_ns);
            let started = match event {
                Event::Arrival { workload } => self.start_session(workload, at_ns),
                Event::UserComes { workload } => {
                    self.traffic.expect_next_user(workload, &mut self.events);
                    self.start_session(workload, at_ns)
                }
                Event::Ready { workload, node } => {
                    self.traffic.start_node(workload, node, at_ns, &mut self.events).map(|turn| (workload, turn))
                }
                Event::NextTurn { slot, .. } => self.traffic.continue_session(slot),
                Event::NextAttempt { after } => self.traffic.next_attempt(after),
                Event::GiveUp { tag } => {
                    if self.give_up(tag, at_ns) {
                        return Some(Due::GiveUp { tag });
                    }
                    None
                }
                _ => unreachable!("only traffic and clients have events on a target"),
            };
            let Some((workload, turn)) = started else { continue };
            if let Some(request) = self.arrive(workload, turn, at_ns) {
                return Some(Due::Send(request));
            }
        }
    }

    fn start_session(&mut self, workload: u32, at_ns: u64) -> Option<(u32, Turn)> {
        match self.traffic.start_session(workload, at_ns, &mut self.events) {
            Start::Turn(turn) => Some((workload, turn)),
            Start::Dropped => {
                self.ledger.drop_session(workload);
                None
            }
            Start::Nothing => None,
        }
    }

    fn arrive(&mut self, workload: u32, turn: Turn, due_ns: u64) -> Option<IssuedRequest> {
        let lengths = [turn.prompt.len_tokens(), turn.max_tokens];
        let record = RequestRecord {
            class: turn.class,
            attempt: turn.earlier.map_or(0, |earlier| earlier.attempts),
            adapter: turn.adapter,
            ..RequestRecord::new(workload, turn.session, turn.turn, lengths, [due_ns, due_ns])
        };
        let tag = self.ledger.arrive(record);
        let hasher = PromptHasher::new(self.config.topology.pools()[0].engine.block_size());
        self.ledger.keep_prompt(tag, || hasher.chain(turn.prompt.tokens(), &ExtraKeys::default()));
        self.traffic.arrived(workload, &turn);
        let request = IssuedRequest {
            tag,
            due_ns,
            workload,
            session: turn.session,
            turn: turn.turn,
            prompt: turn.prompt.tokens().to_vec(),
            items: turn.prompt.items().to_vec(),
            // Servers get no stop token of the simulation. For the scheduler, a smaller limit has the same effect.
            max_tokens: turn.stop_after.map_or(turn.max_tokens, |tokens| tokens.min(turn.max_tokens)),
            may_end_early: self
                .config
                .topology
                .pools()
                .iter()
                .any(|pool| pool.tokens.as_ref().is_some_and(|tokens| tokens.eos_token.is_some())),
            adapter: turn.adapter,
            may_give_up: !self.traffic.client(workload).is_patient(),
            priority: turn.priority,
            tenant: self.config.workloads[workload as usize].tenant,
            needs_answer: turn.follow_up.needs_answer(),
            origin: RequestOrigin::of(workload, &turn),
            call: self.names.call(workload, turn.session, turn.turn),
        };
        self.begin_wait(tag, turn, due_ns);
        if !request.origin.is_played()
            && let Err(reason) = self.fits(lengths, request.adapter)
        {
            self.close_request(tag, Outcome::Rejected(reason), due_ns);
            return None;
        }
        Some(request)
    }

    /// Checks that the known engines can run a request with these lengths and this adapter.
    fn fits(&self, [prompt_tokens, max_tokens]: [u32; 2], adapter: Option<u32>) -> Result<(), RejectReason> {
        for (index, (engine, pool)) in self.engines.iter().zip(self.config.topology.pools()).enumerate() {
            if adapter.is_some() && pool.engine.as_vllm().is_some_and(|one| one.max_loras() == 0) {
                return Err(RejectReason::AdaptersOff);
            }
            // Engines of a prefill pool generate only the first token.
            let is_prefill = index + 1 < self.engines.len();
            engine.check(prompt_tokens, if is_prefill { max_tokens.min(1) } else { max_tokens })?;
            if index > 0 {
                engine.check_load(prompt_tokens)?;
            }
        }
        Ok(())
    }

    /// Records that an engine began to compute a request's prompt, with this many cached tokens.
    pub fn admitted(&mut self, tag: u64, at_ns: u64, cached_tokens: u32) {
        if self.is_pending(tag) {
            let at_ns = at_ns.max(self.ledger.record(tag).queued_ns);
            self.ledger.admit(tag, at_ns, cached_tokens);
        }
    }

    /// Records a preemption.
    pub fn preempted(&mut self, tag: u64, at_ns: u64) {
        if self.is_pending(tag) {
            self.ledger.preempt(tag, at_ns);
        }
    }

    /// Records that this engine serves a request; `engine` is its index in the report.
    pub fn served_by(&mut self, tag: u64, engine: u32) {
        if self.is_pending(tag) {
            self.ledger.enter_prefill_worker(tag, engine);
        }
    }

    /// Records that a prefill engine has computed a request's prompt.
    pub fn prefilled(&mut self, tag: u64, at_ns: u64) {
        if self.is_pending(tag) {
            let record = self.ledger.record(tag);
            let at_ns = at_ns.max(record.scheduled_ns.unwrap_or(record.queued_ns));
            self.ledger.end_prefill(tag, at_ns);
        }
    }

    /// Records that the KV of a request's prompt has reached its decode engine.
    pub fn transferred(&mut self, tag: u64, at_ns: u64) {
        if self.is_pending(tag)
            && let Some(prefill_end_ns) = self.ledger.record(tag).prefill_end_ns
        {
            self.ledger.end_transfer(tag, at_ns.max(prefill_end_ns));
        }
    }

    /// Records that this engine generates a request's output; `engine` is its index in the report.
    pub fn decoded_by(&mut self, tag: u64, engine: u32) {
        if self.is_pending(tag) {
            self.ledger.enter_decode_worker(tag, engine);
        }
    }

    /// Sets the number of cached prompt tokens of a request whose admission time is unknown.
    pub fn cached(&mut self, tag: u64, cached_tokens: u32) {
        if self.is_pending(tag) {
            let cached_tokens = cached_tokens.min(self.ledger.record(tag).prompt_tokens);
            self.ledger.replay_admission(tag, None, cached_tokens);
        }
    }

    /// Copies the engine-side fields of an ended request from `engines`, the record of a cluster behind a server.
    /// Client-side times are unchanged.
    pub fn adopt(&mut self, tag: u64, engines: &RequestRecord) {
        if self.is_pending(tag) {
            self.ledger.adopt(tag, engines);
        }
    }

    /// Records output tokens that arrived together. Returns false if the client now has enough tokens, which ends
    /// the request.
    pub fn tokens(&mut self, tag: u64, num_tokens: u32, at_ns: u64) -> bool {
        if !self.is_pending(tag) {
            return false;
        }
        let record = self.ledger.record(tag);
        let at_ns = at_ns.max(record.last_token_ns.unwrap_or(record.arrival_ns));
        self.ledger.emit(tag, num_tokens, at_ns);
        !self.has_enough(tag, at_ns)
    }

    /// Records that the engine of a request was lost. Returns whether the request must be sent again.
    pub fn lost(&mut self, tag: u64) -> bool {
        self.is_pending(tag) && self.ledger.lose(tag, self.config.max_retries)
    }

    /// Ends a request. `answer` has the output tokens, which are only needed with [`IssuedRequest::needs_answer`].
    pub fn ended(&mut self, tag: u64, ending: Ending, at_ns: u64, answer: Vec<u32>) {
        if !self.is_pending(tag) {
            return;
        }
        let record = self.ledger.record(tag);
        let at_ns = at_ns.max(record.last_token_ns.unwrap_or(record.arrival_ns));
        let needs_answer = self.pending[tag as usize].as_ref().is_some_and(Pending::needs_answer);
        if needs_answer && ending == Ending::Completed && answer.len() == record.output_tokens as usize {
            self.traffic.keep_answer(tag, answer);
        }
        let outcome = match ending {
            Ending::Completed => Outcome::Completed,
            Ending::Shed => Outcome::Shed,
            Ending::Failed(reason) => Outcome::Failed(reason),
        };
        self.close_request(tag, outcome, at_ns);
    }

    /// Whether a request has not ended. Reports about ended requests are ignored.
    fn is_pending(&self, tag: u64) -> bool {
        self.pending[tag as usize].is_some()
    }

    /// Ends a request: its client retries, or its session continues.
    fn close_request(&mut self, tag: u64, outcome: Outcome, at_ns: u64) {
        let Some(pending) = self.pending[tag as usize].take() else { return };
        self.call_off_give_up(tag, &pending);
        self.ledger.end(tag, outcome, at_ns);
        let Some(follow_up) = self.retry(tag, pending, outcome, at_ns) else { return };
        let _is_warm = self.traffic.ended(tag, self.ledger.record(tag), follow_up, at_ns, &mut self.events);
    }

    /// Counts a planned fault that had no engine to act on.
    pub fn ignored_fault(&mut self) {
        self.ledger.count_ignored_fault();
    }

    /// The duration of the run in its report; `stopped_at_ns` is the time of an early end, if any.
    #[must_use]
    pub fn duration_ns(&self, stopped_at_ns: Option<u64>) -> u64 {
        measured_ns(&self.config, &self.ledger, stopped_at_ns)
    }

    /// Makes the report from the measurements and the facts that the target adds.
    pub fn finish(self, facts: MeasuredFacts) -> Result<Report, SimError> {
        let arrived = self.ledger.arrived();
        if arrived > 0
            && self.ledger.total(Counter::Rejected) == arrived
            && facts.stopped_at_ns.is_none()
            && let Outcome::Rejected(reason) = self.ledger.record(0).outcome
        {
            return Err(SimError::NothingFits { requests: arrived, reason });
        }
        let workload_names = self.traffic.names();
        let expects_requests = self.events.has_requests();
        Ok(build_measured(MeasuredEnd {
            config: &self.config,
            expects_requests,
            workload_names,
            ledger: self.ledger,
            facts,
        }))
    }
}

/// The bit of tokens with drawn content; see [`Prompt::DRAWN_TOKENS`].
pub const DRAWN_TOKENS: u32 = Prompt::DRAWN_TOKENS;

/// Workloads that are answered as recorded, as errors name them.
#[must_use]
pub fn recorded_answers(config: &RunConfig) -> Vec<String> {
    let is_recorded =
        |source: &WorkloadSource| matches!(source, WorkloadSource::Trace { answers: Answers::Recorded, .. });
    named(config, "answers as recorded", |workload| is_recorded(&workload.source))
}

/// Workloads whose requests wait for grammars for a given time, as errors name them.
#[must_use]
pub fn structured_outputs(config: &RunConfig) -> Vec<String> {
    named(config, "structured outputs", |workload| workload.structured.is_some())
}

fn named(config: &RunConfig, what: &str, has_it: impl Fn(&WorkloadConfig) -> bool) -> Vec<String> {
    let with_it = config.workloads.iter().filter(|workload| has_it(workload));
    with_it.map(|workload| format!("{what} (workload `{}`)", workload.name)).collect()
}
