//! Workloads in progress: start and content of each next request.
//!
//! Every session draws from its own random stream, which depends on the workload and the session number. The
//! interleaving of sessions therefore never changes their requests.

mod generated;
mod placed_media;
mod rows;
mod synthetic;

use vcr_core::hash::HashedBlocks;
use vcr_core::{Prompt, seed};

use super::PacedAnswer;
use super::graph::Graph;
use super::profile::Profile;
use super::turn::{FollowUp, Turn};
use crate::config::{ClientConfig, WorkloadConfig, WorkloadSource};
use generated::Generated;
use rows::{FirstTurn, Plan, Rows};
use synthetic::Synthetic;

pub(crate) struct Workload {
    name: String,
    client: ClientConfig,
    common: Common,
    source: Source,
    started: u64,
    /// Number of sessions in flight; not counted for graphs.
    active: u64,
    /// Whether an open loop's next session is due and waits for another session to end.
    is_delayed: bool,
}

/// Values that all turns of a workload share.
struct Common {
    start_ns: u64,
    priority: i32,
    seed: u64,
    blocks: HashedBlocks,
    /// Whether prompts keep tokens, for engines that are not simulated.
    keeps_tokens: bool,
    /// Salt of a trace's content. Workloads that play the same trace have the same salt. Equal ids of different
    /// traces have no relation.
    content_salt: u64,
}

impl Common {
    fn empty_prompt(&self, salt: u64) -> Prompt {
        match self.keeps_tokens {
            true => Prompt::of_tokens(Vec::new(), self.blocks, salt),
            false => Prompt::new(self.blocks, salt),
        }
    }
}

/// The source of a workload's requests, with the position in it.
#[expect(clippy::large_enum_variant, reason = "a run has few workloads")]
enum Source {
    Synthetic(Synthetic),
    Trace(Rows),
    Generated(Generated),
}

impl Workload {
    /// A workload at its beginning. `first_of_trace` is the index of the run's first workload that plays the same
    /// trace.
    pub(crate) fn new(
        config: WorkloadConfig,
        run_seed: u64,
        blocks: HashedBlocks,
        first_of_trace: usize,
        keeps_tokens: bool,
    ) -> Self {
        let plan = |config: &WorkloadConfig| Plan::new(config);
        Self::of(config, run_seed, plan, (blocks, keeps_tokens, seed::derive(0, "trace", first_of_trace as u64)))
    }

    /// A workload whose sessions start outside of the simulation.
    pub(crate) fn from_outside(config: WorkloadConfig, run_seed: u64) -> Self {
        Self::of(config, run_seed, |_| Plan::default(), (1.into(), false, 0))
    }

    fn of(
        config: WorkloadConfig,
        run_seed: u64,
        plan: impl FnOnce(&WorkloadConfig) -> Plan,
        (blocks, keeps_tokens, content_salt): (HashedBlocks, bool, u64),
    ) -> Self {
        let seed = seed::derive(run_seed, &format!("workload:{}", config.name), 0);
        let plan = plan(&config);
        let WorkloadConfig { name, start_ns, priority, client, source, .. } = config;
        let source = match source {
            WorkloadSource::Synthetic { arrivals, classes } => {
                Source::Synthetic(Synthetic::new(arrivals, classes, seed, start_ns))
            }
            WorkloadSource::Trace { trace, pacing, answers, .. } => {
                Source::Trace(Rows { trace, pacing, answers, plan })
            }
            WorkloadSource::Generated(input) => Source::Generated(Generated::new(input)),
        };
        let common = Common { start_ns, priority, seed, blocks, keeps_tokens, content_salt };
        Self { name, client, common, source, started: 0, active: 0, is_delayed: false }
    }

    pub(crate) fn begin_session(&mut self) {
        self.active += 1;
    }

    /// Number of sessions that an open loop starts, if known.
    pub(crate) fn sessions_known(&self) -> Option<u64> {
        match &self.source {
            Source::Synthetic(synthetic) => synthetic.sessions_known(),
            Source::Trace(rows) => rows.plan.sessions_known(),
            Source::Generated(generated) => Some(generated.num_sessions()),
        }
    }

    pub(crate) fn client(&self) -> &ClientConfig {
        &self.client
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Number of sessions that a closed loop starts at once; the rest start as others end. None for an open loop.
    pub(crate) fn closed_loop(&self) -> Option<u64> {
        match &self.source {
            Source::Synthetic(synthetic) => synthetic.closed_loop(),
            Source::Trace(rows) => rows.closed_loop(),
            Source::Generated(generated) => generated.closed_loop(),
        }
    }

    /// Whether the number of a closed loop's sessions is limited, not only its duration.
    pub(crate) fn is_counted(&self) -> bool {
        match &self.source {
            Source::Synthetic(synthetic) => synthetic.is_counted(),
            Source::Trace(_) | Source::Generated(_) => true,
        }
    }

    /// The graph of requests that wait for each other, if the workload has one.
    pub(crate) fn graph_mut(&mut self) -> Option<&mut Graph> {
        match &mut self.source {
            Source::Trace(Rows { plan: Plan::Graph { graph, .. }, .. }) => Some(graph),
            _ => None,
        }
    }

    /// The profile with lanes of plays, if the workload has one.
    pub(crate) fn profile(&self) -> Option<&Profile> {
        match &self.source {
            Source::Trace(Rows { plan: Plan::Lanes(profile), .. }) => Some(profile),
            _ => None,
        }
    }

    pub(crate) fn profile_mut(&mut self) -> Option<&mut Profile> {
        match &mut self.source {
            Source::Trace(Rows { plan: Plan::Lanes(profile), .. }) => Some(profile),
            _ => None,
        }
    }

    /// Takes a node of a graph or of lanes that may start, with its start time.
    pub(crate) fn pop_released(&mut self) -> Option<(u64, u64)> {
        match &mut self.source {
            Source::Trace(rows) => rows.plan.pop_released(),
            Source::Synthetic(_) | Source::Generated(_) => None,
        }
    }

    /// Opens the next play of a graph, which releases its first requests. Returns false if the workload has no
    /// graph.
    pub(crate) fn open_next_play(&mut self, now_ns: u64) -> bool {
        let Source::Trace(Rows { plan: Plan::Graph { graph, first_turns }, .. }) = &mut self.source else {
            return false;
        };
        let FirstTurn { row, copy, .. } = first_turns[self.started as usize];
        self.started += 1;
        graph.open_play(row, copy, now_ns);
        true
    }

    /// The node of an open loop's graph that starts at [`Self::next_start_ns`].
    pub(crate) fn next_node(&self) -> Option<u64> {
        match &self.source {
            Source::Trace(rows) => rows.plan.node_of(self.started),
            Source::Synthetic(_) | Source::Generated(_) => None,
        }
    }

    /// Starts a node of a graph or of lanes if it is still due. Returns its turn, and whether it is the node that
    /// [`Self::next_node`] returned, which is then used up.
    pub(crate) fn start_node(&mut self, node: u64, now_ns: u64) -> Option<(Turn, bool)> {
        let is_next = self.closed_loop().is_none() && self.next_node() == Some(node);
        let Source::Trace(rows) = &mut self.source else { return None };
        let turn = rows.start_node(node, now_ns, &self.common)?;
        self.started += u64::from(is_next);
        Some((turn, is_next))
    }

    pub(crate) fn start_ns(&self) -> u64 {
        self.common.start_ns
    }

    /// The start of the next session of an open loop. Must be called once per session.
    pub(crate) fn next_start_ns(&mut self) -> Option<u64> {
        match &mut self.source {
            Source::Synthetic(synthetic) => synthetic.next_start_ns(self.common.start_ns, self.started),
            Source::Trace(_) | Source::Generated(_) => self.planned_start_ns(self.started),
        }
    }

    /// The time at which there should be one more user. Must be called once per user.
    pub(crate) fn next_rise_ns(&mut self) -> Option<u64> {
        match &mut self.source {
            Source::Synthetic(synthetic) => synthetic.next_rise_ns(self.common.start_ns, self.started),
            Source::Trace(_) | Source::Generated(_) => None,
        }
    }

    /// Whether an open loop has its maximum number of sessions in flight.
    pub(crate) fn is_full(&self) -> bool {
        self.client.max_in_flight.is_some_and(|most| self.active >= most)
    }

    /// Skips the next session of an open loop.
    pub(crate) fn drop_next(&mut self) {
        self.started += 1;
    }

    /// Delays the next session of an open loop until another one ends.
    pub(crate) fn delay_next(&mut self) {
        self.is_delayed = true;
    }

    /// Ends a session whose turns do not wait for other sessions. Returns whether a delayed session starts.
    pub(crate) fn end_session(&mut self) -> bool {
        self.active -= 1;
        std::mem::take(&mut self.is_delayed)
    }

    /// The start of an open loop's session after `before` others; `u64::MAX` if there is none. None if the start is
    /// not known.
    pub(crate) fn forecast_start_ns(&mut self, before: u64) -> Option<u64> {
        let is_planned = match &self.source {
            Source::Synthetic(synthetic) => synthetic.is_planned(),
            Source::Trace(rows) => rows.plan.is_of_sessions(),
            Source::Generated(_) => true,
        };
        // Dropped sessions and retries change which worker gets the next session.
        let is_steady = self.client.retry.is_none() && self.client.max_in_flight.is_none();
        let is_known = is_planned && is_steady && self.closed_loop().is_none();
        is_known.then(|| self.planned_start_ns(self.started + before).unwrap_or(u64::MAX))
    }

    /// The start of an open loop's session, if its time is not drawn and the session exists.
    fn planned_start_ns(&mut self, session: u64) -> Option<u64> {
        let start_ns = self.common.start_ns;
        match &mut self.source {
            Source::Synthetic(synthetic) => synthetic.planned_start_ns(start_ns, session),
            Source::Trace(rows) => Some(start_ns + rows.plan.first_turn(session)?.at_ns),
            Source::Generated(generated) => Some(start_ns + generated.planned_ns(session, self.started)?),
        }
    }

    pub(crate) fn has_next(&self, now_ns: u64) -> bool {
        match &self.source {
            Source::Synthetic(synthetic) => {
                synthetic.has_next(now_ns - self.common.start_ns, self.started, self.active)
            }
            Source::Trace(rows) => rows.plan.first_turn(self.started).is_some(),
            Source::Generated(generated) => self.started < generated.num_sessions(),
        }
    }

    pub(crate) fn start_next(&mut self) -> Turn {
        let number = self.started;
        self.started += 1;
        self.active += 1;
        match &self.source {
            Source::Synthetic(synthetic) => synthetic.first_turn(number, &self.common),
            Source::Trace(rows) => rows.session(number, &self.common),
            Source::Generated(generated) => generated.session(number, &self.common),
        }
    }

    /// Time between the end of a turn and the next turn.
    pub(crate) fn think_time_ns(&self, follow_up: &mut FollowUp) -> Option<u64> {
        match (follow_up, &self.source) {
            (FollowUp::TraceRow { delay_ns, .. }, _) => Some(*delay_ns),
            (FollowUp::Drawn(session), Source::Synthetic(synthetic)) => Some(synthetic.think_time_ns(session)),
            _ => None,
        }
    }

    /// The turn that follows. `answer` yields the output tokens of the ended turn.
    pub(crate) fn next_turn(&self, follow_up: FollowUp, answer: impl Iterator<Item = u32>) -> Option<Turn> {
        match (follow_up, &self.source) {
            (FollowUp::TraceRow { row, copy, conversation, .. }, Source::Trace(rows)) => {
                let conversation = conversation.map(|mut conversation| {
                    conversation.push_tokens(answer);
                    *conversation
                });
                Some(rows.turn(row, copy, conversation, &self.common))
            }
            (FollowUp::TraceRow { row, .. }, Source::Generated(generated)) => Some(generated.turn(row, &self.common)),
            (FollowUp::Drawn(mut session), Source::Synthetic(synthetic)) => {
                session.conversation.push_tokens(answer);
                Some(synthetic.turn(*session, &self.common))
            }
            // Nothing else follows without an event of its own.
            _ => None,
        }
    }

    /// The policy class of a turn in the router's queue, if it has one.
    pub(crate) fn policy_class(&self, index: Option<u32>) -> Option<&str> {
        match &self.source {
            Source::Trace(rows) => rows.policy_class(index?),
            Source::Synthetic(_) | Source::Generated(_) => None,
        }
    }

    /// The recorded answer of a row, with times scaled by the workload's pacing. The row must come from
    /// [`Turn::played_row`].
    pub(crate) fn answer_times(&self, row: u32) -> PacedAnswer<'_> {
        let answer = match &self.source {
            Source::Trace(rows) => rows.answer_times(row),
            Source::Synthetic(_) | Source::Generated(_) => None,
        };
        answer.expect("the row is answered as recorded")
    }
}
