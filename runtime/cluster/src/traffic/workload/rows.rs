//! The turns of traces, and when their sessions start.

use std::sync::Arc;

use vcr_core::{Prompt, seed};
use vcr_trace::Trace;

use super::super::graph::Graph;
use super::super::turn::{FollowUp, Turn};
use super::Workload;
use crate::config::{Answers, TracePacing, WorkloadSource};

impl Workload {
    /// A turn of a trace; its prompt extends `conversation`.
    pub(super) fn trace_turn(&self, row: u32, copy: u32, conversation: Option<Prompt>) -> Turn {
        let WorkloadSource::Trace { trace, pacing, answers, .. } = &self.config.source else {
            unreachable!("only trace workloads have rows");
        };
        let is_played = *answers == Answers::Recorded && trace.answer_times[row as usize].is_some();
        let request = &trace.requests[row as usize];
        let prompt = self.trace_prompt(trace, row, copy, conversation);
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
            priority: self.config.priority.saturating_add(request.priority),
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

    fn trace_prompt(&self, trace: &Trace, row: u32, copy: u32, conversation: Option<Prompt>) -> Prompt {
        let request = &trace.requests[row as usize];
        let beginning = || self.empty_prompt(self.content_salt ^ u64::from(copy));
        let mut prompt = conversation.unwrap_or_else(beginning);
        let ids = trace.hash_ids(request);
        if ids.is_empty() {
            let content = seed::derive(self.seed, "unshared prompt", u64::from(row));
            prompt.push_run(content, 0, request.input_tokens);
            return prompt;
        }
        // The answer's blocks are hashed behind those of the prompt.
        prompt.reserve(request.input_tokens.saturating_add(request.output_tokens));
        let mut left = request.input_tokens;
        for id in ids.iter() {
            let len = left.min(trace.block_size_tokens);
            prompt.push_run(u64::from(id), 0, len);
            left -= len;
        }
        prompt
    }
}

/// First turns of all copies as (arrival, row, copy), in order of arrival, then
/// of file, then of copy. Of a graph, what waits for nothing; in a closed loop
/// the first row of each play.
pub(super) fn first_turns(
    trace: &Arc<Trace>,
    copies: u32,
    stagger_ns: u64,
    pacing: TracePacing,
    graph: Option<&Graph>,
) -> Vec<(u64, u32, u32)> {
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
        starts.extend((0..copies).map(|copy| (start_ns(copy), row, copy)));
    }
    starts.sort_unstable();
    starts
}
