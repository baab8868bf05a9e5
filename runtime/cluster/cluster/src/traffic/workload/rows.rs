//! The rows of a trace: their starts and their turns.

use std::sync::Arc;

use vcr_core::{Prompt, seed};
use vcr_trace::Trace;

use super::super::PacedAnswer;
use super::super::graph::Graph;
use super::super::profile::{DueRow, Profile};
use super::super::turn::{FollowUp, Turn};
use super::Common;
use super::placed_media::PlacedMedia;
use crate::config::{Answers, TracePacing, WorkloadConfig, WorkloadSource};

/// Output tokens of a request that warms the caches.
const WARMUP_OUTPUT_TOKENS: u32 = 1;

pub(super) struct Rows {
    pub(super) trace: Arc<Trace>,
    pub(super) pacing: TracePacing,
    pub(super) answers: Answers,
    pub(super) plan: Plan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FirstTurn {
    /// Time since the start of the workload.
    pub(super) at_ns: u64,
    pub(super) row: u32,
    pub(super) copy: u32,
}

/// The order in which the rows of a trace start.
pub(super) enum Plan {
    /// Session by session, in the order of the first turns.
    Sessions(Vec<FirstTurn>),
    /// Some turns do not wait for the previous turn. In a closed loop, `first_turns` has the first turn of each
    /// play.
    Graph { graph: Graph, first_turns: Vec<FirstTurn> },
    /// In lanes of plays.
    Lanes(Profile),
}

impl Default for Plan {
    /// A plan without rows.
    fn default() -> Self {
        Self::Sessions(Vec::new())
    }
}

impl Plan {
    /// The plan of a workload; empty if the workload plays no trace.
    pub(super) fn new(config: &WorkloadConfig) -> Self {
        match &config.source {
            WorkloadSource::Trace { trace, pacing: TracePacing::Profile(lanes), .. } => {
                Self::Lanes(Profile::new(trace, *lanes))
            }
            &WorkloadSource::Trace { ref trace, copies, stagger_ns, pacing, .. } => {
                let graph =
                    trace.has_free_turns.then(|| Graph::new(trace, copies, pacing, config.start_ns, stagger_ns));
                let first_turns = first_turns(trace, copies, stagger_ns, pacing, graph.as_ref());
                match graph {
                    Some(graph) => Self::Graph { graph, first_turns },
                    None => Self::Sessions(first_turns),
                }
            }
            WorkloadSource::Synthetic { .. } | WorkloadSource::Generated(_) => Self::default(),
        }
    }

    /// The first turns of sessions, or of nodes without dependencies. Empty for lanes, which start their own
    /// requests.
    fn first_turns(&self) -> &[FirstTurn] {
        match self {
            Self::Sessions(first_turns) | Self::Graph { first_turns, .. } => first_turns,
            Self::Lanes(_) => &[],
        }
    }

    /// The first turn of session `number`; None if there are fewer sessions.
    pub(super) fn first_turn(&self, number: u64) -> Option<FirstTurn> {
        self.first_turns().get(number as usize).copied()
    }

    pub(super) fn sessions_known(&self) -> Option<u64> {
        match self {
            Self::Sessions(first_turns) | Self::Graph { first_turns, .. } => Some(first_turns.len() as u64),
            Self::Lanes(_) => None,
        }
    }

    pub(super) fn is_of_sessions(&self) -> bool {
        matches!(self, Self::Sessions(_))
    }

    /// The node of a graph with the first turn `number`.
    pub(super) fn node_of(&self, number: u64) -> Option<u64> {
        let Self::Graph { graph, first_turns } = self else { return None };
        first_turns.get(number as usize).map(|first| graph.node(first.row, first.copy))
    }

    /// Takes a node that may start, with its start time.
    pub(super) fn pop_released(&mut self) -> Option<(u64, u64)> {
        match self {
            Self::Sessions(_) => None,
            Self::Graph { graph, .. } => graph.pop_released(),
            Self::Lanes(profile) => profile.pop_released(),
        }
    }
}

impl Rows {
    /// Number of sessions that a closed loop starts at once. None for an open loop.
    pub(super) fn closed_loop(&self) -> Option<u64> {
        match self.pacing {
            TracePacing::ClosedLoop { concurrency, .. } => Some(concurrency),
            TracePacing::Recorded { .. } | TracePacing::Profile(_) => None,
        }
    }

    pub(super) fn session(&self, number: u64, common: &Common) -> Turn {
        let FirstTurn { row, copy, .. } = self.plan.first_turns()[number as usize];
        self.turn(row, copy, None, common)
    }

    /// Starts a node of the graph or of lanes if it is still due, and returns its turn.
    pub(super) fn start_node(&mut self, node: u64, now_ns: u64, common: &Common) -> Option<Turn> {
        let (row, copy, is_warmup) = match &mut self.plan {
            Plan::Sessions(_) => return None,
            Plan::Graph { graph, .. } => {
                graph.arrived(node, now_ns);
                let (row, copy) = graph.place(node);
                (row, copy, false)
            }
            Plan::Lanes(profile) => {
                let DueRow { row, copy, is_warmup } = profile.start(node, now_ns)?;
                (row, copy, is_warmup)
            }
        };
        let turn = self.turn(row, copy, None, common);
        let max_tokens = if is_warmup { WARMUP_OUTPUT_TOKENS } else { turn.max_tokens };
        Some(Turn { follow_up: FollowUp::Waiters { node }, max_tokens, ..turn })
    }

    /// A turn of the trace. Its prompt extends `conversation`, if given.
    pub(super) fn turn(&self, row: u32, copy: u32, conversation: Option<Prompt>, common: &Common) -> Turn {
        let Self { trace, pacing, answers, .. } = self;
        let is_played = *answers == Answers::Recorded && trace.answer_times[row as usize].is_some();
        let request = &trace.requests[row as usize];
        let prompt = self.prompt(row, copy, conversation, common);
        let follow_up = match request.next_turn {
            None => FollowUp::None,
            Some(next) => {
                let delay_ns = pacing.scale(trace.requests[next as usize].delay_ns);
                let conversation = trace.is_delta.then(|| Box::new(prompt.clone()));
                FollowUp::TraceRow { row: next, copy, delay_ns, conversation }
            }
        };
        Turn {
            prompt,
            max_tokens: request.output_tokens,
            stop_after: None,
            priority: common.priority.saturating_add(request.priority),
            strict_priority: request.strict_priority,
            policy_class: request.policy_class,
            class: 0,
            adapter: None,
            session: u64::from(copy) * u64::from(trace.sessions) + u64::from(request.session),
            turn: request.turn,
            earlier: None,
            follow_up,
            played_row: is_played.then_some(row),
        }
    }

    fn prompt(&self, row: u32, copy: u32, conversation: Option<Prompt>, common: &Common) -> Prompt {
        let trace = &self.trace;
        let request = &trace.requests[row as usize];
        let beginning = || common.empty_prompt(common.content_salt ^ u64::from(copy));
        let mut prompt = conversation.unwrap_or_else(beginning);
        let ids = trace.hash_ids(request);
        let mut media = PlacedMedia::new(trace.items(request), common.content_salt ^ u64::from(copy));
        if ids.is_empty() {
            let content = seed::derive(common.seed, "unshared prompt", u64::from(row));
            media.push_run(content, request.input_tokens, &mut prompt);
            return prompt;
        }
        // The blocks of the answer are hashed after those of the prompt, so there must be room for them.
        prompt.reserve(request.input_tokens.saturating_add(request.output_tokens));
        let mut left = request.input_tokens;
        for id in ids.iter() {
            let len = left.min(trace.block_size_tokens);
            media.push_run(u64::from(id), len, &mut prompt);
            left -= len;
        }
        prompt
    }

    pub(super) fn policy_class(&self, index: u32) -> Option<&str> {
        Some(&*self.trace.policy_classes[index as usize])
    }

    pub(super) fn answer_times(&self, row: u32) -> Option<PacedAnswer<'_>> {
        let times = self.trace.answer_times[row as usize].as_ref()?;
        Some(PacedAnswer { pacing: self.pacing, times, outputs: self.trace.outputs(times) })
    }
}

/// First turns of all copies, ordered by arrival, then file order, then copy. In a graph these are the nodes
/// without dependencies; in a closed loop, the first row of each play.
fn first_turns(
    trace: &Arc<Trace>,
    copies: u32,
    stagger_ns: u64,
    pacing: TracePacing,
    graph: Option<&Graph>,
) -> Vec<FirstTurn> {
    let is_closed = matches!(pacing, TracePacing::ClosedLoop { .. });
    let rows: Vec<u32> = match graph {
        Some(graph) if is_closed => graph.plays().collect(),
        Some(graph) => (0..trace.requests.len() as u32).filter(|row| graph.is_root(*row)).collect(),
        None => (0..trace.requests.len() as u32).filter(|row| trace.requests[*row as usize].turn == 0).collect(),
    };
    let mut starts = Vec::with_capacity(rows.len() * copies as usize);
    for row in rows {
        let arrival_ns = pacing.scale(trace.requests[row as usize].arrival_ns.unwrap_or(0));
        let start_ns = |copy: u32| match is_closed {
            true => 0,
            false => arrival_ns.saturating_add(stagger_ns.saturating_mul(u64::from(copy))),
        };
        starts.extend((0..copies).map(|copy| FirstTurn { at_ns: start_ns(copy), row, copy }));
    }
    starts.sort_unstable();
    starts
}
