//! Agents, whose requests call tools and further agents and wait for them, and conversations of a fixed form with
//! branches.
//!
//! Both are planned as a [`Trace`] whose requests wait for each other, so a tree of agents is played like a
//! recorded one. An agent works in rounds. In each round it sends a request to the model. The answer calls tools in
//! parallel, and their results are part of the next round's prompt. A tool is a wait or another agent.

use std::sync::Arc;

use vcr_base::random::{Distribution, Stream};
use vcr_core::seed;
use vcr_trace::{Dependency, ItemRange, Trace, TraceRequest, Trigger};

use crate::config::{Answers, Lengths, TracePacing, WorkloadSource};

/// Tokens per block. Prompts share whole blocks.
const BLOCK_TOKENS: u32 = 16;
const MAX_REQUESTS: usize = 10_000_000;
/// Maximum number of blocks of all prompts together; each takes four bytes.
const MAX_BLOCKS: usize = 250_000_000;
/// Maximum number of rounds of an agent, and of tools in a round.
const MOST: f64 = 10_000.0;

/// Trees of agents.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentsInput {
    /// Number of trees.
    pub count: u32,
    /// Trees that start per second, with exponential gaps.
    pub rate_per_s: Option<f64>,
    /// Trees in flight, if starts have no rate.
    pub concurrency: Option<u64>,
    /// Tokens at the beginning of every prompt of all agents: instructions and tool definitions.
    pub system_tokens: u32,
    /// Tokens of an agent's task.
    pub task_tokens: Lengths,
    /// Tokens of each answer of the model.
    pub output_tokens: Lengths,
    /// Rounds of an agent (rounded, at least 1).
    pub rounds: Distribution,
    /// Tools called after each round except the last (rounded).
    pub tools: Distribution,
    /// Milliseconds that a tool takes.
    pub tool_time_ms: Distribution,
    /// Tokens that the result of a tool or agent adds to its caller's next prompt.
    pub result_tokens: Lengths,
    /// The share of tools that are agents, from 0 to 1.
    pub agent_share: f64,
    /// Maximum number of levels of agents; with 1, no tool is an agent.
    pub depth: u32,
    /// The seed of all draws.
    pub seed: u64,
}

impl AgentsInput {
    /// The source of a workload with these agents.
    pub fn source(&self) -> Result<WorkloadSource, String> {
        self.check()?;
        let pacing = match self.concurrency {
            Some(concurrency) => TracePacing::ClosedLoop { concurrency, speedup: 1.0 },
            None => TracePacing::Recorded { speedup: 1.0 },
        };
        let trace = Arc::new(self.plan()?);
        Ok(WorkloadSource::Trace { trace, pacing, copies: 1, stagger_ns: 0, answers: Answers::Simulated })
    }

    fn check(&self) -> Result<(), String> {
        if self.count == 0 {
            return Err("invalid `count`: expected at least 1".to_owned());
        }
        if self.rate_per_s.is_some() == self.concurrency.is_some() {
            return Err("exactly one of `rate` and `concurrency` is needed".to_owned());
        }
        if self.rate_per_s.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            return Err("invalid `rate`: expected a finite number above 0".to_owned());
        }
        if !(0.0..=1.0).contains(&self.agent_share) {
            return Err("invalid `agent_share`: expected 0 to 1".to_owned());
        }
        if !(1..=16).contains(&self.depth) {
            return Err("invalid `depth`: expected 1 to 16".to_owned());
        }
        Ok(())
    }
}

/// Conversations of one form with branches that start after some of their turns. Later turns wait for the branches
/// and repeat their answers.
#[derive(Clone, Debug, PartialEq)]
pub struct BranchedInput {
    /// Number of conversations.
    pub count: u32,
    /// Conversations in flight.
    pub concurrency: u64,
    /// Turns of a conversation, not counting branches.
    pub turns: u32,
    /// New prompt tokens of each turn.
    pub prompt_tokens: Lengths,
    /// Tokens of each answer.
    pub output_tokens: Lengths,
    /// New prompt tokens of the first turn.
    pub first_prompt_tokens: Lengths,
    /// Tokens of the first answer.
    pub first_output_tokens: Lengths,
    /// Tokens at the beginning of a conversation, which conversations share.
    pub prefix_tokens: u32,
    /// Number of different prefixes.
    pub prefix_groups: u32,
    /// The branches. A turn repeats the answers of several branches in this order.
    pub branches: Vec<Branch>,
    /// The seed of all draws.
    pub seed: u64,
}

/// A branch: a conversation with its own context.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// The turn after which the branch starts, from 0.
    pub at_turn: u32,
    /// The turn that waits for the branch and repeats its last question and answer.
    pub merge_turn: u32,
    /// Number of turns.
    pub turns: u32,
    /// New prompt tokens of the first turn.
    pub first_prompt_tokens: Lengths,
    /// Tokens of the first answer.
    pub first_output_tokens: Lengths,
}

impl BranchedInput {
    /// The source of a workload with these conversations.
    pub fn source(&self) -> Result<WorkloadSource, String> {
        let is_wrong = |branch: &Branch| branch.turns == 0 || branch.at_turn >= branch.merge_turn;
        if self.count == 0 || self.turns == 0 || self.prefix_groups == 0 || self.branches.iter().any(is_wrong) {
            return Err(
                "invalid conversations: expected at least one with a turn, and branches that end later".to_owned()
            );
        }
        if let Some(branch) = self.branches.iter().find(|branch| branch.merge_turn >= self.turns) {
            return Err(format!(
                "invalid branch: expected it to end at turn {} at most, got {}",
                self.turns - 1,
                branch.merge_turn
            ));
        }
        let trace = Arc::new(self.plan()?);
        let pacing = TracePacing::ClosedLoop { concurrency: self.concurrency, speedup: 1.0 };
        Ok(WorkloadSource::Trace { trace, pacing, copies: 1, stagger_ns: 0, answers: Answers::Simulated })
    }

    fn plan(&self) -> Result<Trace, String> {
        let mut planner =
            Planner::new(self.count, self.prefix_groups.saturating_mul(self.prefix_tokens / BLOCK_TOKENS));
        for session in 0..self.count {
            let tree = seed::derive(self.seed, "tree", u64::from(session));
            (planner.session, planner.turn, planner.rng) = (session, 0, Stream::new(tree, "draws"));
            self.conversation(&mut planner)?;
        }
        Ok(planner.trace)
    }

    fn conversation(&self, planner: &mut Planner) -> Result<(), String> {
        let group = (planner.rng.unit() * f64::from(self.prefix_groups)) as u32;
        let mut context = Context::new(self.prefix_tokens);
        context.ids.iter_mut().for_each(|id| *id += group * (self.prefix_tokens / BLOCK_TOKENS));
        let mut arrival_ns = Some(0);
        let mut waits = Waits::new();
        // For each started branch: its last request, and the tokens of its last question and answer.
        let mut ends: Vec<(&Branch, u32, u32)> = Vec::new();
        for turn in 0..self.turns {
            for (_, last, tokens) in ends.iter().filter(|(branch, ..)| branch.merge_turn == turn) {
                waits.push(ended(*last, 0));
                context.grow(*tokens, &mut planner.trace.distinct_hash_ids);
            }
            let (prompt, output) = match turn {
                0 => (&self.first_prompt_tokens, &self.first_output_tokens),
                _ => (&self.prompt_tokens, &self.output_tokens),
            };
            context.grow(prompt.draw(&mut planner.rng), &mut planner.trace.distinct_hash_ids);
            let output_tokens = output.draw(&mut planner.rng);
            let asked = planner.request(&context, output_tokens, std::mem::take(&mut waits), arrival_ns.take())?;
            context.grow(output_tokens, &mut planner.trace.distinct_hash_ids);
            waits.push(ended(asked, 0));
            for branch in self.branches.iter().filter(|branch| branch.at_turn == turn) {
                let (last, tokens) = self.branch(branch, asked, planner)?;
                ends.push((branch, last, tokens));
            }
        }
        Ok(())
    }

    /// Adds a branch that starts after a request. Returns its last request, and the tokens of its last question and
    /// answer.
    fn branch(&self, branch: &Branch, start: u32, planner: &mut Planner) -> Result<(u32, u32), String> {
        let mut context = Context::new(0);
        let (mut last, mut tokens) = (start, 0);
        for turn in 0..branch.turns {
            let (prompt, output) = match turn {
                0 => (&branch.first_prompt_tokens, &branch.first_output_tokens),
                _ => (&self.prompt_tokens, &self.output_tokens),
            };
            let prompt_tokens = prompt.draw(&mut planner.rng);
            let output_tokens = output.draw(&mut planner.rng);
            context.grow(prompt_tokens, &mut planner.trace.distinct_hash_ids);
            last = planner.request(&context, output_tokens, vec![ended(last, 0)], None)?;
            context.grow(output_tokens, &mut planner.trace.distinct_hash_ids);
            tokens = prompt_tokens.saturating_add(output_tokens);
        }
        Ok((last, tokens))
    }
}

/// Requests that another request waits for.
type Waits = Vec<Dependency>;

fn ended(request: u32, delay_ns: u64) -> Dependency {
    Dependency { request, trigger: Trigger::Completion, delay_ns }
}

struct Planner {
    trace: Trace,
    /// Number of blocks of all prompts so far.
    blocks: usize,
    session: u32,
    turn: u32,
    rng: Stream,
}

impl AgentsInput {
    fn plan(&self) -> Result<Trace, String> {
        let mut planner = Planner::new(self.count, self.system_tokens / BLOCK_TOKENS);
        let mut gaps = Stream::new(self.seed, "arrivals");
        let mut arrival_ns = 0;
        for session in 0..self.count {
            if let Some(rate_per_s) = self.rate_per_s.filter(|_| session > 0) {
                arrival_ns += (gaps.exponential() * 1e9 / rate_per_s).round() as u64;
            }
            let tree = seed::derive(self.seed, "tree", u64::from(session));
            (planner.session, planner.turn, planner.rng) = (session, 0, Stream::new(tree, "draws"));
            self.agent(&mut planner, 1, Vec::new(), Some(arrival_ns))?;
        }
        Ok(planner.trace)
    }

    /// Adds an agent that starts after `waits`. Returns its last request.
    fn agent(
        &self,
        planner: &mut Planner,
        level: u32,
        mut waits: Waits,
        mut arrival_ns: Option<u64>,
    ) -> Result<u32, String> {
        let rounds = self.rounds.draw(&mut planner.rng).clamp(1.0, MOST).round() as u32;
        let mut context = Context::new(self.system_tokens);
        let task_tokens = self.task_tokens.draw(&mut planner.rng);
        context.grow(task_tokens, &mut planner.trace.distinct_hash_ids);
        let mut last = 0;
        for round in 1..=rounds {
            let output_tokens = self.output_tokens.draw(&mut planner.rng);
            last = planner.request(&context, output_tokens, std::mem::take(&mut waits), arrival_ns.take())?;
            if round < rounds {
                context.grow(output_tokens, &mut planner.trace.distinct_hash_ids);
                waits = self.tools(planner, level, last, &mut context)?;
            }
        }
        Ok(last)
    }

    /// Adds the tools that an answer calls. Returns the waits of the next round.
    fn tools(&self, planner: &mut Planner, level: u32, caller: u32, context: &mut Context) -> Result<Waits, String> {
        let tools = self.tools.draw(&mut planner.rng).clamp(0.0, MOST).round() as u32;
        let mut waits = vec![ended(caller, 0)];
        for _ in 0..tools {
            let takes_ns = (self.tool_time_ms.draw(&mut planner.rng) * 1e6).round() as u64;
            let is_agent = planner.rng.unit() < self.agent_share && level < self.depth;
            let result_tokens = self.result_tokens.draw(&mut planner.rng);
            if is_agent {
                let last = self.agent(planner, level + 1, vec![ended(caller, takes_ns)], None)?;
                waits.push(ended(last, 0));
            } else {
                // Tools run in parallel, so only the slowest counts.
                waits[0].delay_ns = waits[0].delay_ns.max(takes_ns);
            }
            context.grow(result_tokens, &mut planner.trace.distinct_hash_ids);
        }
        Ok(waits)
    }
}

impl Planner {
    /// A planner whose prompts may begin with shared blocks.
    fn new(sessions: u32, shared_blocks: u32) -> Self {
        let trace = Trace {
            distinct_hash_ids: shared_blocks,
            block_size_tokens: BLOCK_TOKENS,
            sessions,
            has_free_turns: true,
            ..Trace::default()
        };
        Self { trace, blocks: 0, session: 0, turn: 0, rng: Stream::new(0, "agents") }
    }

    fn request(
        &mut self,
        context: &Context,
        output_tokens: u32,
        waits: Waits,
        arrival_ns: Option<u64>,
    ) -> Result<u32, String> {
        let trace = &mut self.trace;
        let index = trace.requests.len();
        let waits_start = trace.dependencies.len();
        self.blocks += context.ids.len();
        if index >= MAX_REQUESTS || self.blocks > MAX_BLOCKS {
            return Err(format!(
                "the agents ask for more than {MAX_REQUESTS} requests or {MAX_BLOCKS} prompt blocks in all; ask for \
                 fewer or smaller trees"
            ));
        }
        let hash_ids = trace.hash_ids.push(context.ids.iter().copied());
        let waits_len = waits.len() as u32;
        trace.dependencies.extend(waits);
        trace.requests.push(TraceRequest {
            request_id: None,
            line: index as u32 + 1,
            session: self.session,
            turn: self.turn,
            next_turn: None,
            arrival_ns,
            delay_ns: 0,
            dependencies: ItemRange { start: waits_start as u32, len: waits_len },
            input_tokens: context.len_tokens,
            output_tokens,
            hash_ids,
            output_token_ids: ItemRange::default(),
            items: ItemRange::default(),
            priority: 0,
            strict_priority: 0,
            policy_class: None,
        });
        self.turn += 1;
        Ok(index as u32)
    }
}

/// The prompt of an agent, which grows every round.
struct Context {
    ids: Vec<u32>,
    len_tokens: u32,
}

impl Context {
    /// A prompt with only the instructions of all agents, in whole shared blocks.
    fn new(system_tokens: u32) -> Self {
        Self { ids: (0..system_tokens / BLOCK_TOKENS).collect(), len_tokens: system_tokens }
    }

    /// Adds tokens that no other prompt has. A partly filled last block becomes a new block.
    fn grow(&mut self, tokens: u32, next_id: &mut u32) {
        self.ids.truncate((self.len_tokens / BLOCK_TOKENS) as usize);
        self.len_tokens = self.len_tokens.saturating_add(tokens);
        for _ in self.ids.len()..self.len_tokens.div_ceil(BLOCK_TOKENS) as usize {
            self.ids.push(*next_id);
            *next_id += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input() -> AgentsInput {
        let constant = |value| Distribution::Constant { value };
        AgentsInput {
            count: 2,
            rate_per_s: None,
            concurrency: Some(1),
            system_tokens: 40,
            task_tokens: constant(30.0).into(),
            output_tokens: constant(10.0).into(),
            rounds: constant(2.0),
            tools: constant(3.0),
            tool_time_ms: constant(50.0),
            result_tokens: constant(20.0).into(),
            agent_share: 1.0,
            depth: 2,
            seed: 1,
        }
    }

    #[test]
    fn an_agent_waits_for_all_that_it_has_called() {
        let trace = input().plan().unwrap();
        // The root's first round, two rounds of each of three agents, and the root's second round.
        assert_eq!(trace.requests.len(), 2 * 8);
        let waits = |row: usize| {
            let waits = trace.dependencies(&trace.requests[row]).iter();
            waits.map(|wait| (wait.request, wait.delay_ns / 1_000_000)).collect::<Vec<_>>()
        };
        assert_eq!(waits(0), []);
        assert_eq!([waits(1), waits(3), waits(5)], [vec![(0, 50)], vec![(0, 50)], vec![(0, 50)]]);
        // At the last level, tools are only waits.
        assert_eq!(waits(2), [(1, 50)]);
        assert_eq!(waits(7), [(0, 0), (2, 0), (4, 0), (6, 0)]);
        assert_eq!(trace.requests[8].session, 1);
    }

    #[test]
    fn prompts_grow_by_answers_and_results_and_share_what_is_before() {
        let trace = AgentsInput { depth: 1, ..input() }.plan().unwrap();
        let [first, second, other, _] = &trace.requests[..] else { panic!("two trees of two requests") };
        assert_eq!((first.input_tokens, second.input_tokens), (70, 70 + 10 + 3 * 20));
        let ids = |request| trace.hash_ids(request).to_vec();
        // 70 tokens fill four whole blocks; 40 fill two.
        assert_eq!(ids(first)[..4], ids(second)[..4]);
        assert_ne!(ids(first)[4], ids(second)[4]);
        assert_eq!((ids(first)[..2].to_vec(), ids(other)[..2].to_vec()), (vec![0, 1], vec![0, 1]));
        assert!(ids(other)[2..].iter().all(|id| !ids(second).contains(id)));
        assert_eq!(ids(second).len(), 140_usize.div_ceil(16));
    }

    #[test]
    fn turns_wait_for_branches_and_repeat_their_last_answer() {
        let constant = |value| Lengths::from(Distribution::Constant { value });
        let branch = |at_turn, merge_turn, turns| Branch {
            at_turn,
            merge_turn,
            turns,
            first_prompt_tokens: constant(7.0),
            first_output_tokens: constant(8.0),
        };
        let input = BranchedInput {
            count: 2,
            concurrency: 1,
            turns: 3,
            prompt_tokens: constant(100.0),
            output_tokens: constant(10.0),
            first_prompt_tokens: constant(50.0),
            first_output_tokens: constant(5.0),
            prefix_tokens: 32,
            prefix_groups: 1,
            branches: vec![branch(0, 1, 2), branch(0, 2, 1)],
            seed: 1,
        };
        let trace = input.plan().unwrap();
        let waits =
            |row: usize| trace.dependencies(&trace.requests[row]).iter().map(|wait| wait.request).collect::<Vec<_>>();
        // The first turn, the two turns of a branch, the other branch, and two more turns.
        assert_eq!([0, 1, 2, 3, 4, 5].map(waits), [vec![], vec![0], vec![1], vec![0], vec![0, 2], vec![4, 3]]);
        let lengths: Vec<u32> = trace.requests.iter().map(|request| request.input_tokens).collect();
        let first = 32 + 50;
        let second = first + 5 + (100 + 10) + 100;
        let third = second + 10 + (7 + 8) + 100;
        assert_eq!(lengths[..6], [first, 7, 7 + 8 + 100, 7, second, third]);
        let ids = |row: usize| trace.hash_ids(&trace.requests[row]).to_vec();
        assert_eq!((ids(0)[..2].to_vec(), ids(6)[..2].to_vec()), (vec![0, 1], vec![0, 1]), "the prefix is shared");
        assert_eq!(ids(4)[..5], ids(5)[..5], "turns share what is before");
        assert!(!ids(1).iter().any(|id| ids(0).contains(id)), "branches start anew");
        let late = BranchedInput { branches: vec![branch(1, 3, 1)], ..input };
        assert_eq!(late.source().err().unwrap(), "invalid branch: expected it to end at turn 2 at most, got 3");
    }

    #[test]
    fn what_cannot_be_planned_is_refused() {
        let refused = |input: AgentsInput| input.source().err().unwrap();
        assert!(refused(AgentsInput { rate_per_s: Some(1.0), ..input() }).starts_with("exactly one of"));
        assert_eq!(refused(AgentsInput { agent_share: 2.0, ..input() }), "invalid `agent_share`: expected 0 to 1");
        assert_eq!(refused(AgentsInput { depth: 0, ..input() }), "invalid `depth`: expected 1 to 16");
        let many = Distribution::Constant { value: 1000.0 };
        let vast = AgentsInput { count: u32::MAX, rounds: many, ..input() };
        assert!(refused(vast).contains("requests or"));
    }
}
