//! Running workloads: start and content of each next request.
//!
//! Every session draws from a stream of its own, named by workload and session
//! number, so the order in which sessions interleave never changes what they
//! ask for.

mod generated;
mod rows;

use vcr_core::hash::HashedBlocks;
use vcr_core::{Prompt, seed};
use vcr_random::{Stream, Weights};

use super::answer::PacedAnswer;
use super::drawn::Sessions;
use super::graph::Graph;
use super::profile::{DueRow, Profile};
use super::turn::{FollowUp, Turn};
use crate::config::{Arrivals, CurveWalk, Gaps, RequestClass, TracePacing, WorkloadConfig, WorkloadSource};
use generated::Starts;
use rows::first_turns;

const NS_PER_S: f64 = 1e9;
const NS_PER_MS: f64 = 1e6;
/// Tokens that a request generates which warms the caches.
const WARMUP_OUTPUT_TOKENS: u32 = 1;

/// A workload and its position.
pub(crate) struct Workload {
    config: WorkloadConfig,
    seed: u64,
    blocks: HashedBlocks,
    /// Whether prompts keep tokens, for engines that are no simulation.
    keeps_tokens: bool,
    /// Salt of a trace's content: the same for workloads that play the same
    /// trace, since equal ids of different traces mean nothing.
    content_salt: u64,
    started: u64,
    gaps: Stream,
    /// Order in which trace rows start: first turns by arrival. In a closed loop
    /// over a graph, the first rows of its plays.
    first_turns: Vec<(u64, u32, u32)>,
    /// The requests of a trace in which not all wait for the turn before.
    graph: Option<Graph>,
    /// The lanes of a trace that is played in such.
    profile: Option<Profile>,
    /// The starts of sessions that are generated.
    starts: Option<Starts>,
    last_start_ns: u64,
    /// Progress of a rate that changes, or of a number of users.
    walk: CurveWalk,
    /// The whole number of users that there should be at that place.
    users: u64,
    /// How sessions are distributed over several classes.
    shares: Option<Weights>,
    /// Sessions that have started and are not over; not kept for graphs.
    active: u64,
}

impl Workload {
    /// A workload at its beginning. `first_of_trace` is the index of the first
    /// workload of the run that plays the same trace.
    pub(crate) fn new(
        config: WorkloadConfig,
        run_seed: u64,
        blocks: HashedBlocks,
        first_of_trace: usize,
        keeps_tokens: bool,
    ) -> Self {
        let seed = seed::derive(run_seed, &format!("workload:{}", config.name), 0);
        let mut profile = None;
        let (first_turns, graph) = match &config.source {
            WorkloadSource::Trace { trace, pacing: TracePacing::Profile(lanes), .. } => {
                profile = Some(Profile::new(trace, *lanes));
                (Vec::new(), None)
            }
            WorkloadSource::Trace { trace, copies, stagger_ns, pacing, .. } => {
                let graph = || Graph::new(trace, *copies, *pacing, config.start_ns, *stagger_ns);
                let graph = trace.has_free_turns.then(graph);
                (first_turns(trace, *copies, *stagger_ns, *pacing, graph.as_ref()), graph)
            }
            WorkloadSource::Synthetic { .. } | WorkloadSource::Generated(_) => (Vec::new(), None),
        };
        let starts = match &config.source {
            WorkloadSource::Generated(input) => Some(Starts::new(input)),
            _ => None,
        };
        let shares = match &config.source {
            WorkloadSource::Synthetic { classes, .. } if classes.len() > 1 => {
                let shares = Weights::new(classes.iter().map(|class| class.weight));
                Some(shares.expect("the weights have been checked"))
            }
            _ => None,
        };
        Self {
            gaps: Stream::new(seed, "arrivals"),
            last_start_ns: config.start_ns,
            config,
            seed,
            blocks,
            keeps_tokens,
            content_salt: seed::derive(0, "trace", first_of_trace as u64),
            started: 0,
            first_turns,
            graph,
            profile,
            starts,
            walk: CurveWalk::default(),
            users: 0,
            shares,
            active: 0,
        }
    }

    /// A workload whose sessions start elsewhere.
    pub(crate) fn from_outside(config: WorkloadConfig, run_seed: u64) -> Self {
        let seed = seed::derive(run_seed, &format!("workload:{}", config.name), 0);
        Self {
            gaps: Stream::new(seed, "arrivals"),
            last_start_ns: config.start_ns,
            config,
            seed,
            blocks: 1.into(),
            keeps_tokens: false,
            content_salt: 0,
            started: 0,
            first_turns: Vec::new(),
            graph: None,
            profile: None,
            starts: None,
            walk: CurveWalk::default(),
            users: 0,
            shares: None,
            active: 0,
        }
    }

    /// A session has started elsewhere.
    pub(crate) fn begin_session(&mut self) {
        self.active += 1;
    }

    /// Number of sessions that an open loop starts, where that is known.
    pub(crate) fn sessions_known(&self) -> Option<u64> {
        match &self.config.source {
            WorkloadSource::Synthetic { arrivals, .. } => match arrivals {
                Arrivals::Burst { count, .. } => Some(*count),
                Arrivals::Constant { rate_per_s, limit } | Arrivals::Poisson { rate_per_s, limit } => {
                    let during = |duration_ns: u64| (duration_ns as f64 / NS_PER_S * rate_per_s) as u64;
                    limit.count.into_iter().chain(limit.duration_ns.map(during)).min()
                }
                Arrivals::Varying { limit, .. } => limit.count,
                Arrivals::ClosedLoop { .. } | Arrivals::Users { .. } => None,
            },
            WorkloadSource::Trace { pacing: TracePacing::Profile(_), .. } => None,
            WorkloadSource::Trace { .. } => Some(self.first_turns.len() as u64),
            WorkloadSource::Generated(input) => Some(u64::from(input.request_count)),
        }
    }

    pub(crate) fn config(&self) -> &WorkloadConfig {
        &self.config
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// Sessions to start at once; the rest start as others end.
    pub(crate) fn closed_loop(&self) -> Option<u64> {
        match &self.config.source {
            WorkloadSource::Synthetic { arrivals: Arrivals::ClosedLoop { concurrency, .. }, .. }
            | WorkloadSource::Trace { pacing: TracePacing::ClosedLoop { concurrency, .. }, .. } => Some(*concurrency),
            WorkloadSource::Generated(input) => input.replay_concurrency,
            // They come one after another.
            WorkloadSource::Synthetic { arrivals: Arrivals::Users { .. }, .. } => Some(0),
            _ => None,
        }
    }

    /// Whether a closed loop ends by number and not only by time.
    pub(crate) fn is_counted(&self) -> bool {
        match &self.config.source {
            WorkloadSource::Synthetic {
                arrivals: Arrivals::ClosedLoop { limit, .. } | Arrivals::Users { limit, .. },
                ..
            } => limit.count.is_some(),
            _ => true,
        }
    }

    /// The requests that wait for each other, if the workload has such.
    pub(crate) fn graph_mut(&mut self) -> Option<&mut Graph> {
        self.graph.as_mut()
    }

    /// The lanes of plays, if the workload has such.
    pub(crate) fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// The same to be changed.
    pub(crate) fn profile_mut(&mut self) -> Option<&mut Profile> {
        self.profile.as_mut()
    }

    /// The request of a node of the lanes, if it is due.
    pub(crate) fn start_in_lane(&mut self, node: u64, now_ns: u64) -> Option<Turn> {
        let DueRow { row, copy, is_warmup } = self.profile.as_mut()?.start(node, now_ns)?;
        let turn = self.trace_turn(row, copy, None);
        let max_tokens = if is_warmup { WARMUP_OUTPUT_TOKENS } else { turn.max_tokens };
        Some(Turn { follow_up: FollowUp::Waiters { node }, max_tokens, ..turn })
    }

    /// Starts the next play of a graph; its requests are released there.
    pub(crate) fn open_next_play(&mut self, now_ns: u64) {
        let (_, row, copy) = self.first_turns[self.started as usize];
        self.started += 1;
        if let Some(graph) = &mut self.graph {
            graph.open_play(row, copy, now_ns);
        }
    }

    /// The node of an open loop's graph that starts at [`Self::next_start_ns`].
    pub(crate) fn next_node(&self) -> Option<u64> {
        let (_, row, copy) = *self.first_turns.get(self.started as usize)?;
        self.graph.as_ref().map(|graph| graph.node(row, copy))
    }

    /// The turn of a node of the graph. Whether it is the one that
    /// [`Self::next_node`] gave last, which is then over.
    pub(crate) fn start_node(&mut self, node: u64) -> (Turn, bool) {
        let Some(graph) = &self.graph else { unreachable!("only graphs have nodes") };
        let (row, copy) = graph.place(node);
        let is_next = self.closed_loop().is_none() && self.next_node() == Some(node);
        self.started += u64::from(is_next);
        let turn = Turn { follow_up: FollowUp::Waiters { node }, ..self.trace_turn(row, copy, None) };
        (turn, is_next)
    }

    pub(crate) fn start_ns(&self) -> u64 {
        self.config.start_ns
    }

    /// When the next session of an open loop starts. Called once for each.
    pub(crate) fn next_start_ns(&mut self) -> Option<u64> {
        let start_ns = self.config.start_ns;
        let at_ns = match &self.config.source {
            WorkloadSource::Synthetic { arrivals: Arrivals::Poisson { rate_per_s, limit }, .. } => {
                let gap_ns = self.gaps.exponential() * (NS_PER_S / rate_per_s);
                let at_ns = self.last_start_ns + gap_ns.round() as u64;
                limit.allows(self.started, at_ns - start_ns).then_some(at_ns)?
            }
            WorkloadSource::Synthetic { arrivals: Arrivals::Varying { rate, gaps, limit }, .. } => {
                let area = match *gaps {
                    Gaps::Even => 1.0,
                    Gaps::Exponential => self.gaps.exponential(),
                    Gaps::Gamma { shape } => self.gaps.gamma(shape) / shape,
                    Gaps::Weibull { shape } => self.gaps.weibull(shape),
                };
                let since_ns = self.walk.advance_by_area(rate, area)?;
                limit.allows(self.started, since_ns).then(|| start_ns.saturating_add(since_ns))?
            }
            _ => self.planned_start_ns(self.started)?,
        };
        self.last_start_ns = at_ns;
        Some(at_ns)
    }

    /// When there should next be one more user. Called once for each.
    pub(crate) fn next_rise_ns(&mut self) -> Option<u64> {
        let WorkloadSource::Synthetic { arrivals: Arrivals::Users { users, limit }, .. } = &self.config.source else {
            return None;
        };
        let since_ns = self.walk.advance_to_rise(users, &mut self.users)?;
        limit.allows(self.started, since_ns).then(|| self.config.start_ns.saturating_add(since_ns))
    }

    /// Whether an open loop has as many sessions in flight as it may have.
    pub(crate) fn is_full(&self) -> bool {
        self.config.client.max_in_flight.is_some_and(|most| self.active >= most)
    }

    /// The next session of an open loop does not start.
    pub(crate) fn drop_next(&mut self) {
        self.started += 1;
    }

    /// A session is over, whose turns do not wait for others.
    pub(crate) fn end_session(&mut self) {
        self.active -= 1;
    }

    /// When the session starts that comes after `before` others of an open loop, never
    /// if there are fewer. None where that is not known.
    pub(crate) fn foreseen_start_ns(&mut self, before: u64) -> Option<u64> {
        let is_drawn = matches!(
            &self.config.source,
            WorkloadSource::Synthetic { arrivals: Arrivals::Poisson { .. } | Arrivals::Varying { .. }, .. }
        );
        // Sessions that are dropped, and further attempts, change whose turn it is.
        let is_steady = self.config.client.retry.is_none() && self.config.client.max_in_flight.is_none();
        let is_known =
            !is_drawn && is_steady && self.closed_loop().is_none() && self.graph.is_none() && self.profile.is_none();
        is_known.then(|| self.planned_start_ns(self.started + before).unwrap_or(u64::MAX))
    }

    /// When the next session of an open loop without drawn times starts, if there is one.
    fn planned_start_ns(&mut self, session: u64) -> Option<u64> {
        let start_ns = self.config.start_ns;
        match &self.config.source {
            WorkloadSource::Synthetic { arrivals, .. } => match arrivals {
                Arrivals::Burst { count, over_ns } => {
                    let offset = u128::from(*over_ns) * u128::from(session) / u128::from(*count);
                    (session < *count).then_some(start_ns + offset as u64)
                }
                Arrivals::Constant { rate_per_s, limit } => {
                    let at_ns = start_ns + (session as f64 * (NS_PER_S / rate_per_s)).round() as u64;
                    limit.allows(session, at_ns - start_ns).then_some(at_ns)
                }
                Arrivals::Poisson { .. }
                | Arrivals::Varying { .. }
                | Arrivals::ClosedLoop { .. }
                | Arrivals::Users { .. } => None,
            },
            WorkloadSource::Trace { .. } => Some(start_ns + self.first_turns.get(session as usize)?.0),
            WorkloadSource::Generated(input) => {
                let at_ns = self.starts.as_mut()?.at_ns(input, session, self.started)?;
                Some(start_ns + input.pacing().scale(at_ns))
            }
        }
    }

    /// Whether a closed loop has another session to start at `now_ns`.
    pub(crate) fn has_next(&self, now_ns: u64) -> bool {
        match &self.config.source {
            WorkloadSource::Synthetic { arrivals: Arrivals::ClosedLoop { limit, .. }, .. } => {
                limit.allows(self.started, now_ns - self.config.start_ns)
            }
            WorkloadSource::Synthetic { arrivals: Arrivals::Users { users, limit }, .. } => {
                let since_ns = now_ns - self.config.start_ns;
                // Where the level rises to a whole number it may be a little below it.
                let wanted = (users.level_at(since_ns) + 1e-6).floor() as u64;
                limit.allows(self.started, since_ns) && self.active < wanted
            }
            WorkloadSource::Synthetic { .. } => false,
            WorkloadSource::Trace { .. } => (self.started as usize) < self.first_turns.len(),
            WorkloadSource::Generated(input) => self.started < u64::from(input.request_count),
        }
    }

    /// The first turn of the next session.
    pub(crate) fn start_next(&mut self) -> Turn {
        let number = self.started;
        self.started += 1;
        self.active += 1;
        match &self.config.source {
            WorkloadSource::Synthetic { classes, .. } => {
                let sessions = self.sessions(classes);
                sessions.turn(sessions.begin(number, |salt| self.empty_prompt(salt)))
            }
            WorkloadSource::Trace { .. } => {
                let (_, row, copy) = self.first_turns[number as usize];
                self.trace_turn(row, copy, None)
            }
            WorkloadSource::Generated(input) => self.generated_turn(input, number as u32 * input.turns_per_session),
        }
    }

    /// Think time of a user before the next turn.
    pub(crate) fn think_time_ns(&self, follow_up: &mut FollowUp) -> Option<u64> {
        match (follow_up, &self.config.source) {
            (FollowUp::TraceRow { delay_ns, .. }, _) => Some(*delay_ns),
            (FollowUp::Drawn(session), WorkloadSource::Synthetic { classes, .. }) => {
                let mix = &classes[session.class as usize].mix;
                Some((mix.think_time_ms.draw(&mut session.rng) * NS_PER_MS).max(0.0).round() as u64)
            }
            _ => None,
        }
    }

    /// The turn after `follow_up`'s; `answer` returns the tokens of the last one's output.
    pub(crate) fn next_turn(&self, follow_up: FollowUp, answer: impl Iterator<Item = u32>) -> Option<Turn> {
        match follow_up {
            FollowUp::None | FollowUp::Waiters { .. } => None,
            FollowUp::TraceRow { row, copy, conversation, .. } => {
                if let WorkloadSource::Generated(input) = &self.config.source {
                    return Some(self.generated_turn(input, row));
                }
                let conversation = conversation.map(|mut conversation| {
                    conversation.push_tokens(answer);
                    *conversation
                });
                Some(self.trace_turn(row, copy, conversation))
            }
            FollowUp::Drawn(mut session) => {
                session.conversation.push_tokens(answer);
                let WorkloadSource::Synthetic { classes, .. } = &self.config.source else {
                    unreachable!("only synthetic workloads draw turns");
                };
                Some(self.sessions(classes).turn(*session))
            }
        }
    }

    fn sessions<'a>(&'a self, classes: &'a [RequestClass]) -> Sessions<'a> {
        Sessions { classes, shares: self.shares.as_ref(), seed: self.seed, priority: self.config.priority }
    }

    /// The name of a turn's class in the router's queue, if it has one.
    pub(crate) fn policy_class(&self, index: Option<u32>) -> Option<&str> {
        match &self.config.source {
            WorkloadSource::Trace { trace, .. } => index.map(|index| &*trace.policy_classes[index as usize]),
            WorkloadSource::Synthetic { .. } | WorkloadSource::Generated(_) => None,
        }
    }

    /// When a recorded answer came, as the workload is paced. The caller has the
    /// row from [`Turn::played_row`].
    pub(crate) fn answer_times(&self, row: u32) -> PacedAnswer<'_> {
        let WorkloadSource::Trace { trace, pacing, .. } = &self.config.source else {
            unreachable!("only trace workloads have rows");
        };
        let times = trace.answer_times[row as usize].as_ref().expect("the row is answered as recorded");
        PacedAnswer { pacing: *pacing, times, outputs: trace.outputs(times) }
    }

    fn empty_prompt(&self, salt: u64) -> Prompt {
        match self.keeps_tokens {
            true => Prompt::of_tokens(Vec::new(), self.blocks, salt),
            false => Prompt::new(self.blocks, salt),
        }
    }
}
