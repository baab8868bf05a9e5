//! Finds the dependencies between a play's requests by the recorded times.

use super::streams::SLACK_S;
use crate::{Dependency, Trigger};

const NS_PER_S: f64 = 1e9;

/// Recorded start and end of a request, in seconds since the start of the play.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    pub(super) start_s: f64,
    pub(super) end_s: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// The conversation's requests in order of time; at least one.
    pub(super) calls: Vec<u32>,
    /// The request of another stream that started the conversation, or from which it branched.
    pub(super) fork: Option<u32>,
    /// Number of the conversation's agent; 0 for the play itself.
    pub(super) agent: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    pub(super) call: u32,
    pub(super) agent: u32,
}

/// Finds the dependencies of requests, as (request, dependency). The first stream belongs to the play.
pub(super) fn edges(recorded: &[Recorded], streams: &[Stream], joins: &[Join]) -> Vec<(u32, Dependency)> {
    let mut edges = Edges { recorded, edges: Vec::new() };
    for stream in streams {
        for pair in stream.calls.windows(2) {
            edges.after_end(pair[1], pair[0]);
        }
        if let Some(fork) = stream.fork {
            edges.after_fork(stream.calls[0], fork);
        }
    }
    edges.after_all_before(streams);
    for join in joins {
        for stream in streams.iter().filter(|stream| stream.agent == join.agent) {
            edges.after_end(join.call, stream.calls[stream.calls.len() - 1]);
        }
    }
    let mut waits = vec![false; recorded.len()];
    edges.edges.iter().for_each(|(call, _)| waits[*call as usize] = true);
    // No other cause is known than the start of the play.
    let root = streams[0].calls[0];
    for stream in streams.iter().filter(|stream| !waits[stream.calls[0] as usize] && stream.calls[0] != root) {
        edges.after_start(stream.calls[0], root);
    }
    edges.edges
}

struct Edges<'a> {
    recorded: &'a [Recorded],
    edges: Vec<(u32, Dependency)>,
}

impl Edges<'_> {
    fn push(&mut self, call: u32, request: u32, trigger: Trigger, delay_s: f64) {
        self.edges.push((call, Dependency { request, trigger, delay_ns: ns_of(delay_s) }));
    }

    fn of(&self, call: u32) -> Recorded {
        self.recorded[call as usize]
    }

    /// Makes `call` wait for the end of `other`, as long as in the recording.
    fn after_end(&mut self, call: u32, other: u32) {
        self.push(call, other, Trigger::Completion, self.of(call).start_s - self.of(other).end_s);
    }

    fn after_start(&mut self, call: u32, other: u32) {
        self.push(call, other, Trigger::Dispatch, self.of(call).start_s - self.of(other).start_s);
    }

    /// Makes `call` wait for the end of the request that started it, or for its start if it had not ended by then.
    fn after_fork(&mut self, call: u32, other: u32) {
        if self.of(call).start_s < self.of(other).end_s {
            self.after_start(call, other)
        } else {
            self.after_end(call, other)
        }
    }

    /// Lets each request wait for those requests in the agent's other streams that had ended before it started,
    /// because the agent may have needed their answers. In each stream it waits for the last such request. It does
    /// not wait for a request if it also waits for another one that started after that request had ended.
    fn after_all_before(&mut self, streams: &[Stream]) {
        let agents = streams.iter().map(|stream| stream.agent).max().map_or(0, |last| last + 1);
        let mut by_agent = vec![Vec::new(); agents as usize];
        for stream in streams {
            let mut ended = stream.calls.clone();
            ended.sort_by(|a, b| {
                let (a, b) = (self.of(*a), self.of(*b));
                a.end_s.total_cmp(&b.end_s).then(a.start_s.total_cmp(&b.start_s))
            });
            by_agent[stream.agent as usize].push((stream, ended));
        }
        let mut latest = Vec::new();
        for group in by_agent.iter().filter(|group| group.len() > 1) {
            for (index, (stream, _)) in group.iter().enumerate() {
                for &call in &stream.calls {
                    let start_s = self.of(call).start_s;
                    let others = group.iter().enumerate().filter(|(other, _)| *other != index);
                    latest.clear();
                    latest.extend(others.filter_map(|(_, (_, ended))| self.last_before(ended, start_s)));
                    let last_start_s =
                        latest.iter().map(|call| self.of(*call).start_s).fold(f64::NEG_INFINITY, f64::max);
                    let waits_for_it = |other: &u32| {
                        let other = self.of(*other);
                        other.start_s < last_start_s && other.end_s <= last_start_s + SLACK_S
                    };
                    latest.retain(|other| !waits_for_it(other));
                    let completion =
                        |request: &u32| Dependency { request: *request, trigger: Trigger::Completion, delay_ns: 0 };
                    self.edges.extend(latest.iter().map(|other| (call, completion(other))));
                }
            }
        }
    }

    /// The last request of `ended` that started and ended before `start_s`. `ended` is sorted by end.
    fn last_before(&self, ended: &[u32], start_s: f64) -> Option<u32> {
        let count = ended.partition_point(|call| self.of(*call).end_s <= start_s + SLACK_S);
        ended[..count].iter().rev().copied().find(|call| self.of(*call).start_s < start_s)
    }
}

/// Converts seconds to nanoseconds; negative seconds become 0.
pub(super) fn ns_of(seconds: f64) -> u64 {
    (seconds.max(0.0) * NS_PER_S).round() as u64
}
