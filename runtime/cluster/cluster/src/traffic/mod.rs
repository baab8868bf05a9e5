//! Sources of requests: workloads, and sessions between two turns.
//!
//! Holds every workload's position, waiting sessions, and the answers that next turns repeat. Schedules the
//! resulting arrivals.

mod agents;
mod client;
mod drawn;
mod graph;
mod profile;
mod turn;
mod workload;

use std::collections::BTreeMap;
use std::sync::Arc;

use vcr_base::random::{Distribution, Stream};
use vcr_core::hash::HashedBlocks;
use vcr_core::seed;
use vcr_trace::{AnswerTimes, OutputTime};

use crate::config::{ClientConfig, RunConfig, TracePacing, WhenFull, WorkloadConfig, WorkloadSource};
use crate::event::{Event, EventQueue};
use crate::ledger::record::{Outcome, RequestRecord};
use crate::window::Window;
pub use agents::{AgentsInput, Branch, BranchedInput};
pub use client::{Attempt, Patience};

use workload::Workload;

pub(crate) use profile::ProfileCounts;
pub(crate) use turn::{Earlier, FollowUp, Turn};

/// A session that waits for its next turn.
#[derive(Debug)]
struct Thinking {
    workload: u32,
    follow_up: FollowUp,
    /// The request of the latest turn.
    tag: u64,
    output_seed: u64,
    output_tokens: u32,
}

/// Workloads that start after the warm-up, in their initial state.
struct Later {
    /// Index and configuration of each workload, and index of the first workload that plays the same trace.
    workloads: Vec<(u32, WorkloadConfig, usize)>,
    blocks: HashedBlocks,
    keeps_tokens: bool,
}

#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(crate) enum Start {
    /// The session starts with this turn.
    Turn(Turn),
    /// The session was dropped because too many were in flight.
    Dropped,
    /// There is no session, or its requests start by themselves.
    Nothing,
}

pub(crate) struct Traffic {
    run_seed: u64,
    workloads: Vec<Workload>,
    /// Output seeds by tag.
    output_seeds: Window<u64>,
    /// Waiting sessions by slot of [`Event::NextTurn`].
    thinking: Vec<Option<Thinking>>,
    vacant: Vec<u32>,
    /// Further attempts of clients, by the tag of the previous attempt.
    attempts: BTreeMap<u64, (u32, Turn)>,
    /// Chosen outputs of requests whose session continues.
    answers: BTreeMap<u64, Vec<u32>>,
    /// Workloads that start after the warm-up; None when it has ended.
    later: Option<Later>,
    /// When the warm-up ended; 0 without a warm-up.
    warmed_ns: u64,
}

impl Traffic {
    /// With `keeps_tokens`, prompts have tokens in addition to block hashes.
    pub(crate) fn new(run: &RunConfig, blocks: HashedBlocks, keeps_tokens: bool) -> Self {
        let first = |index| first_of_trace(run, index);
        let workload =
            |index: usize| Workload::new(run.workloads[index].clone(), run.seed, blocks, first(index), keeps_tokens);
        let measured = || (0..).zip(&run.workloads).filter(|(_, config)| !config.is_warm_up);
        let later = run.workloads.iter().any(|config| config.is_warm_up).then(|| Later {
            workloads: measured().map(|(index, config)| (index, config.clone(), first(index as usize))).collect(),
            blocks,
            keeps_tokens,
        });
        Self {
            run_seed: run.seed,
            workloads: (0..run.workloads.len()).map(workload).collect(),
            later,
            warmed_ns: 0,
            output_seeds: Window::default(),
            thinking: Vec::new(),
            vacant: Vec::new(),
            attempts: BTreeMap::new(),
            answers: BTreeMap::new(),
        }
    }

    /// The traffic of a single engine whose requests come from outside.
    pub(crate) fn from_outside(run: &RunConfig) -> Self {
        Self {
            run_seed: run.seed,
            workloads: run.workloads.iter().map(|config| Workload::from_outside(config.clone(), run.seed)).collect(),
            later: None,
            warmed_ns: 0,
            output_seeds: Window::default(),
            thinking: Vec::new(),
            vacant: Vec::new(),
            attempts: BTreeMap::new(),
            answers: BTreeMap::new(),
        }
    }

    /// Begins a session of a workload whose requests come from outside.
    pub(crate) fn begin_session(&mut self, workload: u32) {
        self.workloads[workload as usize].begin_session();
    }

    /// Total number of sessions, if known. Such sessions start at times that do not depend on each other.
    pub(crate) fn sessions_known(&self) -> Option<u64> {
        self.workloads.iter().map(Workload::sessions_known).sum()
    }

    /// Schedules the first event of each workload. If there is a warm-up, only for its workloads.
    pub(crate) fn begin(&mut self, events: &mut EventQueue) {
        let starts_later =
            |index: u32| self.later.as_ref().is_some_and(|later| later.workloads.iter().any(|(own, ..)| *own == index));
        for (index, workload) in (0..).zip(&mut self.workloads).filter(|(index, _)| !starts_later(*index)) {
            begin(workload, index, events);
        }
    }

    /// Whether the caches are being warmed, so that other workloads have not started.
    pub(crate) fn is_warming(&self) -> bool {
        self.later.is_some()
    }

    pub(crate) fn end_warm_up(&mut self, now_ns: u64, events: &mut EventQueue) {
        let Some(Later { workloads, blocks, keeps_tokens }) = self.later.take() else { return };
        self.warmed_ns = now_ns;
        for (index, mut config, first_of_trace) in workloads {
            config.start_ns = config.start_ns.saturating_add(now_ns);
            let mut workload = Workload::new(config, self.run_seed, blocks, first_of_trace, keeps_tokens);
            begin(&mut workload, index, events);
            self.workloads[index as usize] = workload;
        }
    }

    pub(crate) fn measured_from_ns(&self) -> u64 {
        self.profile_counts().map_or(0, |counts| counts.began_ns).max(self.warmed_ns)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.workloads.iter().map(|workload| workload.name().to_owned()).collect()
    }

    pub(crate) fn name(&self, workload: u32) -> &str {
        self.workloads[workload as usize].name()
    }

    pub(crate) fn output_seeds(&self) -> &Window<u64> {
        &self.output_seeds
    }

    /// The policy class of a request in the router's queue, if it has one.
    pub(crate) fn policy_class(&self, workload: u32, index: Option<u32>) -> Option<&str> {
        self.workloads[workload as usize].policy_class(index)
    }

    pub(crate) fn answer_times(&self, workload: u32, row: u32) -> PacedAnswer<'_> {
        self.workloads[workload as usize].answer_times(row)
    }

    /// The start of the session after `before` others, if there is a single workload and the start is known.
    pub(crate) fn forecast_start_ns(&mut self, before: u64) -> Option<u64> {
        let [workload] = &mut self.workloads[..] else { return None };
        workload.forecast_start_ns(before)
    }

    pub(crate) fn client(&self, workload: u32) -> &ClientConfig {
        self.workloads[workload as usize].client()
    }

    /// Schedules the time at which a workload should have one more user.
    pub(crate) fn expect_next_user(&mut self, index: u32, events: &mut EventQueue) {
        if let Some(at_ns) = self.workloads[index as usize].next_rise_ns() {
            events.push(at_ns, Event::UserComes { workload: index });
        }
    }

    /// Starts the next session of a workload, if there is one and it may start.
    pub(crate) fn start_session(&mut self, index: u32, now_ns: u64, events: &mut EventQueue) -> Start {
        let workload = &mut self.workloads[index as usize];
        if workload.closed_loop().is_none() {
            if workload.is_full() && workload.client().when_full == WhenFull::Delay {
                workload.delay_next();
                return Start::Nothing;
            }
            let start = if workload.is_full() {
                workload.drop_next();
                Start::Dropped
            } else {
                Start::Turn(workload.start_next())
            };
            if let Some(at_ns) = workload.next_start_ns() {
                // Sessions whose due time has passed start now.
                events.push(at_ns.max(now_ns), Event::Arrival { workload: index });
            }
            return start;
        }
        if !workload.has_next(now_ns) {
            return Start::Nothing;
        }
        if workload.open_next_play(now_ns) {
            push_released(workload, index, events);
            return Start::Nothing;
        }
        Start::Turn(workload.start_next())
    }

    /// Schedules the next attempt of a client.
    pub(crate) fn expect_attempt(&mut self, at_ns: u64, tag: u64, workload: u32, turn: Turn, events: &mut EventQueue) {
        self.attempts.insert(tag, (workload, turn));
        events.push(at_ns, Event::NextAttempt { after: tag });
    }

    /// Takes the attempt that follows `after`, with its workload.
    pub(crate) fn next_attempt(&mut self, after: u64) -> Option<(u32, Turn)> {
        self.attempts.remove(&after)
    }

    /// Starts a request of a workload's graph. With lanes, only if the request is still due.
    pub(crate) fn start_node(&mut self, index: u32, node: u64, now_ns: u64, events: &mut EventQueue) -> Option<Turn> {
        let workload = &mut self.workloads[index as usize];
        let started = workload.start_node(node, now_ns);
        if let Some((_, true)) = started
            && let Some(at_ns) = workload.next_start_ns()
            && let Some(node) = workload.next_node()
        {
            events.push(at_ns, Event::Ready { workload: index, node });
        }
        push_released(workload, index, events);
        started.map(|(turn, _)| turn)
    }

    /// Takes the next turn of a waiting session, with its workload.
    pub(crate) fn continue_session(&mut self, slot: u32) -> Option<(u32, Turn)> {
        let Thinking { workload, follow_up, tag, output_seed, output_tokens } = self.thinking[slot as usize].take()?;
        self.vacant.push(slot);
        let chosen = self.answers.remove(&tag);
        let token = |index: u32| match &chosen {
            Some(tokens) => tokens[index as usize],
            None => seed::output_token(output_seed, index),
        };
        let turn = self.workloads[workload as usize].next_turn(follow_up, (0..output_tokens).map(token))?;
        Some((workload, turn))
    }

    /// Records that a turn of a workload gets the next tag.
    pub(crate) fn arrived(&mut self, workload: u32, turn: &Turn) {
        let stream = seed::derive(self.run_seed, "output", u64::from(workload));
        self.output_seeds.push(seed::derive(seed::mix(stream ^ turn.session), "turn", u64::from(turn.turn)));
    }

    /// Forgets requests before `tag`, which must all have ended.
    pub(crate) fn forget_before(&mut self, tag: u64) {
        self.output_seeds.advance(tag);
    }

    /// Keeps the chosen output of a request for the next turn of its session.
    pub(crate) fn keep_answer(&mut self, tag: u64, answer: Vec<u32>) {
        self.answers.insert(tag, answer);
    }

    /// Ends a request. Its session continues, or makes room for another session. Returns whether this ends a
    /// warm-up.
    pub(crate) fn ended(
        &mut self,
        tag: u64,
        record: &RequestRecord,
        mut follow_up: FollowUp,
        now_ns: u64,
        events: &mut EventQueue,
    ) -> bool {
        let index = record.workload;
        // A drawn conversation cannot continue without an answer. A trace continues, because its rows do not depend
        // on answers and all of them must be accounted for.
        if record.outcome != Outcome::Completed && matches!(follow_up, FollowUp::Drawn(_)) {
            follow_up = FollowUp::None;
        }
        if let FollowUp::Waiters { node } = follow_up {
            return self.end_node(index, node, record.outcome == Outcome::Completed, now_ns, events);
        }
        let workload = &mut self.workloads[index as usize];
        if let Some(think_ns) = workload.think_time_ns(&mut follow_up) {
            let slot = self.vacant.pop().unwrap_or_else(|| {
                self.thinking.push(None);
                self.thinking.len() as u32 - 1
            });
            let (output_seed, output_tokens) = (self.output_seeds[tag as usize], record.output_tokens);
            let thinking = Thinking { workload: index, follow_up, tag, output_seed, output_tokens };
            self.thinking[slot as usize] = Some(thinking);
            let next = Event::NextTurn { workload: index, session: record.session, slot };
            events.push(now_ns.saturating_add(think_ns), next);
            return false;
        }
        if workload.end_session() {
            events.push(now_ns, Event::Arrival { workload: index });
        }
        // A refusal takes no time. Without a limit on its count, a closed loop of refused requests would run
        // forever at one instant.
        let is_refused = matches!(record.outcome, Outcome::Rejected(_) | Outcome::Shed) && !workload.is_counted();
        if workload.closed_loop().is_some() && !is_refused && workload.has_next(now_ns) {
            events.push(now_ns, Event::Arrival { workload: index });
        }
        false
    }

    /// Ends a request of a workload's graph or lanes, and releases the requests that wait for it. Returns whether
    /// this ends a warm-up.
    fn end_node(&mut self, index: u32, node: u64, is_completed: bool, now_ns: u64, events: &mut EventQueue) -> bool {
        let workload = &mut self.workloads[index as usize];
        if let Some(profile) = workload.profile_mut() {
            let is_warm = profile.ended(node, is_completed, now_ns);
            push_released(workload, index, events);
            return is_warm;
        }
        let is_over = workload.graph_mut().is_some_and(|graph| graph.ended(node, now_ns));
        if is_over && workload.closed_loop().is_some() && workload.has_next(now_ns) {
            events.push(now_ns, Event::Arrival { workload: index });
        }
        push_released(workload, index, events);
        false
    }

    /// The time at which requests of a workload that are still in flight are cancelled.
    pub(crate) fn cancels_at_ns(&self, workload: u32) -> Option<u64> {
        self.workloads[workload as usize].profile()?.cancels_at_ns()
    }

    pub(crate) fn profile_counts(&self) -> Option<ProfileCounts> {
        self.workloads.iter().find_map(|workload| Some(workload.profile()?.counts()))
    }
}

/// Schedules the requests that a workload's graph or lanes have released.
fn push_released(workload: &mut Workload, index: u32, events: &mut EventQueue) {
    while let Some((at_ns, node)) = workload.pop_released() {
        events.push(at_ns, Event::Ready { workload: index, node });
    }
}

fn begin(workload: &mut Workload, index: u32, events: &mut EventQueue) {
    let arrival = Event::Arrival { workload: index };
    let start_ns = workload.start_ns();
    if let Some(profile) = workload.profile_mut() {
        profile.begin(start_ns);
        push_released(workload, index, events);
    } else if let Some(concurrency) = workload.closed_loop() {
        if let Some(at_ns) = workload.next_rise_ns() {
            events.push(at_ns, Event::UserComes { workload: index });
        }
        (0..concurrency).for_each(|_| events.push(workload.start_ns(), arrival));
    } else if let Some(at_ns) = workload.next_start_ns() {
        let ready = |node| Event::Ready { workload: index, node };
        events.push(at_ns, workload.next_node().map_or(arrival, ready));
    }
}

/// The first workload that plays the same trace as workload `index`, or `index` itself.
fn first_of_trace(run: &RunConfig, index: usize) -> usize {
    let own = &run.workloads[index];
    let same_trace = |other: &WorkloadConfig| match (&own.source, &other.source) {
        (WorkloadSource::Trace { trace: a, .. }, WorkloadSource::Trace { trace: b, .. }) => Arc::ptr_eq(a, b),
        _ => false,
    };
    run.workloads.iter().position(same_trace).unwrap_or(index)
}

/// A recorded answer, with times scaled by the workload's pacing.
pub(crate) struct PacedAnswer<'a> {
    pacing: TracePacing,
    pub(crate) times: &'a AnswerTimes,
    outputs: &'a [OutputTime],
}

impl PacedAnswer<'_> {
    pub(crate) fn queue_ns(&self) -> u64 {
        self.pacing.scale(self.times.queue_ns)
    }

    /// Nanoseconds from the arrival to output number `output`. After the last output, the time of the end.
    pub(crate) fn after_ns(&self, output: u32) -> u64 {
        self.pacing.scale(self.outputs.get(output as usize).map_or(self.times.end_ns, |output| output.after_ns))
    }

    /// Number of tokens of an output; None after the last output.
    pub(crate) fn num_tokens(&self, output: u32) -> Option<u32> {
        self.outputs.get(output as usize).map(|output| output.num_tokens)
    }
}

impl TracePacing {
    /// The factor by which times are divided.
    pub(crate) fn speedup(self) -> f64 {
        match self {
            Self::Recorded { speedup } | Self::ClosedLoop { speedup, .. } => speedup,
            Self::Profile(profile) => profile.speedup,
        }
    }

    /// Scales a time or wait of the trace to virtual time.
    pub(crate) fn scale(self, ns: u64) -> u64 {
        let speedup = self.speedup();
        // The integer is returned unchanged if nothing is scaled, because a double only holds 53 bits.
        if speedup == 1.0 { ns } else { (ns as f64 / speedup).round() as u64 }
    }
}

const NS_PER_MS: f64 = 1e6;

/// Structured outputs of a workload's requests.
#[derive(Clone, Debug, PartialEq)]
pub struct StructuredOutputs {
    /// The share of requests with structured outputs, from 0 to 1.
    pub share: f64,
    /// Milliseconds from a request's arrival at an engine until its grammar is compiled.
    pub compile_ms: Distribution,
    /// The share of grammars that cannot be compiled, from 0 to 1.
    pub failing_share: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrammarCompilation {
    pub(crate) duration_ns: u64,
    pub(crate) succeeds: bool,
}

impl StructuredOutputs {
    /// The compilation of a request's grammar, if the request has one. `request_seed` must be the same for all
    /// attempts of a request.
    pub(crate) fn draw(&self, request_seed: u64) -> Option<GrammarCompilation> {
        let mut stream = Stream::new(request_seed, "structured outputs");
        // All values are always drawn, so that the share only changes which requests have a grammar.
        let is_one = stream.unit() < self.share;
        let succeeds = stream.unit() >= self.failing_share;
        let duration_ns = (self.compile_ms.draw(&mut stream).max(0.0) * NS_PER_MS).round() as u64;
        is_one.then_some(GrammarCompilation { duration_ns, succeeds })
    }

    pub(crate) fn check(&self, problem: &mut dyn FnMut(&str)) {
        for (name, share) in [("share", self.share), ("fails", self.failing_share)] {
            if !(0.0..=1.0).contains(&share) {
                problem(&format!("invalid `{name}` of `structured_outputs`: expected 0 to 1"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_changes_nothing_but_which_requests_have_a_grammar() {
        let of_share = |share: f64| StructuredOutputs {
            share,
            compile_ms: Distribution::Uniform { min: 1.0, max: 9.0 },
            failing_share: 0.25,
        };
        let draw = |share: f64| (0..1_000).map(|seed| of_share(share).draw(seed)).collect::<Vec<_>>();
        let (all, half) = (draw(1.0), draw(0.5));
        assert!(all.iter().all(Option::is_some) && draw(0.0).iter().all(Option::is_none));
        let common = all.iter().zip(&half).filter(|(_, some)| some.is_some());
        assert!(common.clone().all(|(one, other)| one == other));
        assert!((450..550).contains(&common.count()));
        let failing = all.iter().flatten().filter(|compilation| !compilation.succeeds).count();
        assert!((200..300).contains(&failing), "{failing}");
        assert!(all.iter().flatten().all(|one| (1_000_000..=9_000_000).contains(&one.duration_ns)));
    }
}
