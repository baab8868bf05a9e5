//! Requests come: when their workload says, when others have ended, when a user has thought.

use vcr_core::seed;

use crate::error::SimError;
use crate::event::Event;
use crate::metrics::Counter;
use crate::record::{Outcome, RequestDetail, RequestRecord};
use crate::sim::{Live, Simulation, Stage};
use crate::workload::{FollowUp, Turn};

impl Simulation<'_> {
    /// The next session of a workload starts.
    pub(crate) fn arrive(&mut self, index: u32) -> Result<(), SimError> {
        let workload = &mut self.workloads[index as usize];
        if workload.closed_loop().is_some() {
            if !workload.has_next(self.now_ns) {
                return Ok(());
            }
            if workload.graph_mut().is_some() {
                workload.open_next_play(self.now_ns);
                self.push_released(index);
                return Ok(());
            }
            let turn = workload.start_next();
            self.admit(index, turn)
        } else {
            let turn = workload.start_next();
            if let Some(at_ns) = workload.next_start_ns() {
                self.events.push(at_ns, Event::Arrival { workload: index });
            }
            self.admit(index, turn)
        }
    }

    /// A request of a workload's graph starts.
    pub(crate) fn start_node(&mut self, index: u32, node: u64) -> Result<(), SimError> {
        let workload = &mut self.workloads[index as usize];
        let (turn, is_next) = workload.start_node(node);
        if is_next
            && let Some(at_ns) = workload.next_start_ns()
            && let Some(node) = workload.next_node()
        {
            self.events.push(at_ns, Event::Ready { workload: index, node });
        }
        if let Some(graph) = workload.graph_mut() {
            graph.arrived(node, self.now_ns);
        }
        self.push_released(index);
        self.admit(index, turn)
    }

    /// Schedules what a workload's graph has released.
    fn push_released(&mut self, index: u32) {
        let Some(graph) = self.workloads[index as usize].graph_mut() else { return };
        while let Some((at_ns, node)) = graph.pop_released() {
            self.events.push(at_ns, Event::Ready { workload: index, node });
        }
    }

    /// A request of a workload's graph has ended: what waits for it goes on.
    pub(crate) fn end_node(&mut self, index: u32, node: u64) {
        let now_ns = self.now_ns;
        let workload = &mut self.workloads[index as usize];
        let is_over = workload.graph_mut().is_some_and(|graph| graph.ended(node, now_ns));
        if is_over && workload.closed_loop().is_some() && workload.has_next(now_ns) {
            self.events.push(now_ns, Event::Arrival { workload: index });
        }
        self.push_released(index);
    }

    /// A thinking session asks its next question.
    pub(crate) fn continue_session(&mut self, slot: u32) -> Result<(), SimError> {
        let Some((workload, follow_up, tag)) = self.thinking[slot as usize].take() else { return Ok(()) };
        self.thinking_vacant.push(slot);
        let output_seed = self.output_seeds[tag as usize];
        let chosen = self.answers.remove(&tag);
        let token = |index: u32| match &chosen {
            Some(tokens) => tokens[index as usize],
            None => seed::output_token(output_seed, index),
        };
        let answer = (0..self.records[tag as usize].output_tokens).map(token);
        match self.workloads[workload as usize].next_turn(follow_up, answer) {
            Some(turn) => self.admit(workload, turn),
            None => Ok(()),
        }
    }

    /// A request arrives at the cluster.
    fn admit(&mut self, workload: u32, turn: Turn) -> Result<(), SimError> {
        let tag = self.records.len() as u64;
        self.records.push(RequestRecord {
            workload,
            session: turn.session,
            turn: turn.turn,
            prompt_tokens: turn.prompt.len_tokens(),
            max_tokens: turn.max_tokens,
            output_tokens: 0,
            cached_tokens: 0,
            arrival_ns: self.now_ns,
            scheduled_ns: None,
            prefill_end_ns: None,
            transfer_end_ns: None,
            first_token_ns: None,
            last_token_ns: None,
            end_ns: None,
            prefill_worker: None,
            decode_worker: None,
            preemptions: 0,
            retries: 0,
            outcome: Outcome::Unfinished,
            detail: RequestDetail::default(),
        });
        let stream = seed::derive(self.config.seed, "output", u64::from(workload));
        self.output_seeds.push(seed::derive(seed::mix(stream ^ turn.session), "turn", u64::from(turn.turn)));
        self.live.push(Some(Box::new(Live {
            stage: Stage::Parked { pool: 0 },
            source: None,
            destination: None,
            prompt: Some(turn.prompt),
            priority: turn.priority,
            strict_priority: turn.strict_priority,
            policy_class: turn.policy_class,
            follow_up: turn.follow_up,
            stays_with_decode: false,
            attempt: 0,
            routed: [None; 2],
        })));
        self.count(tag, Counter::Requests, 1);
        match turn.played_row {
            Some(row) => {
                self.start_playing(tag, row);
                Ok(())
            }
            None => {
                let record = &self.records[tag as usize];
                self.tally.arrived_requests += 1;
                self.tally.arrived_prompt_tokens += u64::from(record.prompt_tokens);
                self.tally.arrived_output_tokens += u64::from(record.max_tokens);
                self.dispatch(tag)
            }
        }
    }

    pub(crate) fn think(&mut self, workload: u32, follow_up: FollowUp, tag: u64, think_ns: u64) {
        let slot = self.thinking_vacant.pop().unwrap_or_else(|| {
            self.thinking.push(None);
            self.thinking.len() as u32 - 1
        });
        self.thinking[slot as usize] = Some((workload, follow_up, tag));
        let session = self.records[tag as usize].session;
        self.events.push(self.now_ns.saturating_add(think_ns), Event::NextTurn { workload, session, slot });
    }
}
