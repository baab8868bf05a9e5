//! One play of a lane: its past requests, and the due times of the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use vcr_trace::{Dependency, Trace, Trigger};

use crate::config::TracePacing;
use crate::traffic::graph::{Waiter, grouped, plays, waiters};

pub(super) struct Source {
    trace: Arc<Trace>,
    pacing: TracePacing,
    /// Start of each play's rows in `rows`. The rows are in file order.
    first_of_play: Vec<u32>,
    rows: Vec<u32>,
    /// For each row, where the rows that wait for it start in `waiters`.
    first_waiter: Vec<u32>,
    waiters: Vec<Waiter>,
}

impl Source {
    pub(super) fn new(trace: &Arc<Trace>, speedup: f64) -> Self {
        let pacing = TracePacing::Recorded { speedup };
        let play_of = plays(trace);
        let num_plays = play_of.iter().max().map_or(0, |last| last + 1);
        let (first_of_play, rows) = grouped(num_plays, play_of.iter().copied());
        let (first_waiter, waiters) = waiters(trace, pacing);
        Self { trace: Arc::clone(trace), pacing, first_of_play, rows, first_waiter, waiters }
    }

    pub(super) fn num_plays(&self) -> u32 {
        self.first_of_play.len() as u32 - 1
    }

    /// A play that has not begun. With `cut`, requests before this share of its recorded time are over.
    pub(super) fn open(&self, play: u32, copy: u32, cut: Option<f64>) -> Play {
        let rows = self.rows_of(play);
        let starts = || rows.iter().map(|row| self.recorded_ns(*row));
        let (first_ns, last_ns) = (starts().min().unwrap_or(0), starts().max().unwrap_or(0));
        let cut_ns = first_ns + cut.map_or(0, |cut| ((last_ns - first_ns) as f64 * cut).round() as u64);
        let mut is_over: Vec<bool> = starts().map(|start_ns| start_ns < cut_ns).collect();
        // A request that waits for a future one is not over, whatever its recorded time.
        loop {
            let waits = |index: usize| self.inside(rows, rows[index]).any(|(other, _)| !is_over[other]);
            let to_come: Vec<usize> = (0..rows.len()).filter(|index| is_over[*index] && waits(*index)).collect();
            if to_come.is_empty() {
                break;
            }
            to_come.into_iter().for_each(|index| is_over[index] = false);
        }
        let node = |index: usize| {
            let row = rows[index];
            let mut ready_ns = self.recorded_ns(row).saturating_sub(cut_ns);
            let mut num_waits = 0;
            for (other, dependency) in self.inside(rows, row) {
                if is_over[other] {
                    let since_ns = self.happened_ns(rows[other], dependency.trigger);
                    ready_ns =
                        ready_ns.max((since_ns + u128::from(dependency.delay_ns)).saturating_sub(cut_ns.into()) as u64);
                } else {
                    num_waits += 1;
                }
            }
            Node {
                state: if is_over[index] { State::Over } else { State::Waiting },
                num_waits,
                ready_ns: self.pacing.scale(ready_ns),
            }
        };
        let nodes: Vec<Node> = (0..rows.len()).map(node).collect();
        let num_left = nodes.iter().filter(|node| node.state == State::Waiting).count() as u32;
        Play { play, copy, nodes, due: BTreeSet::new(), num_left, num_in_flight: 0, has_completed: false }
    }

    /// Rows that warm the caches for a play. First, the last request before the cut of each session that continues.
    /// Then `requests` further requests, which repeat these rows in turn, or the play's first future request.
    pub(super) fn warmup(&self, play: &Play, requests: usize) -> Vec<u32> {
        let rows = self.rows_of(play.play);
        let session = |index: usize| self.trace.requests[rows[index] as usize].session;
        let is_over = |index: &usize| play.nodes[*index].state == State::Over;
        let going_on: BTreeSet<u32> = (0..rows.len()).filter(|index| !is_over(index)).map(session).collect();
        let latest = going_on.iter().filter_map(|wanted| {
            let earlier = (0..rows.len()).filter(is_over).filter(|index| session(*index) == *wanted);
            earlier.max_by_key(|index| (self.recorded_ns(rows[*index]), *index)).map(|index| rows[index])
        });
        let mut warmup: Vec<u32> = latest.collect();
        let first = (0..rows.len()).filter(|index| !is_over(index)).min_by_key(|index| self.recorded_ns(rows[*index]));
        let repeated =
            if warmup.is_empty() { first.map(|index| rows[index]).into_iter().collect() } else { warmup.clone() };
        warmup.extend(repeated.iter().cycle().take(requests));
        warmup
    }

    fn rows_of(&self, play: u32) -> &[u32] {
        &self.rows[self.first_of_play[play as usize] as usize..self.first_of_play[play as usize + 1] as usize]
    }

    /// Dependencies of a row on rows of its play, by their index in the play.
    fn inside<'a>(&'a self, rows: &'a [u32], row: u32) -> impl Iterator<Item = (usize, &'a Dependency)> {
        let dependencies = self.trace.dependencies(&self.trace.requests[row as usize]).iter();
        dependencies.filter_map(|other| Some((rows.binary_search(&other.request).ok()?, other)))
    }

    /// The recorded start of a row, or the recorded lower bound of its start.
    fn recorded_ns(&self, row: u32) -> u64 {
        self.trace.requests[row as usize].arrival_ns.unwrap_or(0)
    }

    /// The recorded time at which a row was sent or ended, as `trigger` says.
    fn happened_ns(&self, row: u32, trigger: Trigger) -> u128 {
        let taken_ns = self.trace.recorded_ns.get(row as usize).copied().flatten();
        let taken_ns = taken_ns.filter(|_| trigger == Trigger::Completion).unwrap_or(0);
        u128::from(self.recorded_ns(row)) + u128::from(taken_ns)
    }
}

#[derive(Clone, Copy, Debug)]
struct Node {
    state: State,
    /// Number of dependencies that have not occurred.
    num_waits: u32,
    /// The earliest start that past dependencies allow. Relative to the play's beginning until the play begins.
    ready_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The request was sent before the cut.
    Over,
    /// The request has not been sent.
    Waiting,
    /// The request has been sent.
    Sent,
}

#[derive(Debug)]
pub(super) struct Play {
    play: u32,
    copy: u32,
    nodes: Vec<Node>,
    /// Nodes without open dependencies, by start time.
    due: BTreeSet<(u64, u32)>,
    num_left: u32,
    num_in_flight: u32,
    has_completed: bool,
}

impl Play {
    pub(super) fn copy(&self) -> u32 {
        self.copy
    }

    pub(super) fn is_over(&self) -> bool {
        self.num_left == 0
    }

    pub(super) fn is_idle(&self) -> bool {
        self.num_in_flight == 0
    }

    pub(super) fn has_completed(&self) -> bool {
        self.has_completed
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.due.first().map(|(at_ns, _)| *at_ns)
    }

    /// Begins the play. Returns the nodes without open dependencies, with their start times.
    pub(super) fn begin(&mut self, now_ns: u64) -> impl Iterator<Item = (u64, u32)> {
        for (index, node) in (0..).zip(&mut self.nodes) {
            node.ready_ns = node.ready_ns.saturating_add(now_ns);
            if node.state == State::Waiting && node.num_waits == 0 {
                self.due.insert((node.ready_ns, index));
            }
        }
        self.due.iter().copied()
    }

    /// Sends a node if it is due. Returns its row.
    pub(super) fn start(&mut self, source: &Source, index: u32, now_ns: u64) -> Option<u32> {
        let node = self.nodes.get_mut(index as usize)?;
        if node.ready_ns > now_ns || !self.due.remove(&(node.ready_ns, index)) {
            return None;
        }
        node.state = State::Sent;
        self.num_in_flight += 1;
        Some(source.rows_of(self.play)[index as usize])
    }

    /// Records the end of a request.
    pub(super) fn end(&mut self, is_completed: bool) {
        self.num_in_flight -= 1;
        self.num_left -= 1;
        self.has_completed |= is_completed;
    }

    /// Records a trigger of a node. Returns the nodes that have no open dependencies any more, with their start
    /// times.
    pub(super) fn happened(
        &mut self,
        source: &Source,
        index: u32,
        trigger: Trigger,
        now_ns: u64,
    ) -> impl Iterator<Item = (u64, u32)> {
        let rows = source.rows_of(self.play);
        let row = rows[index as usize] as usize;
        let waiters = &source.waiters[source.first_waiter[row] as usize..source.first_waiter[row + 1] as usize];
        let mut due = Vec::new();
        for waiter in waiters.iter().filter(|waiter| waiter.trigger == trigger) {
            let Ok(index) = rows.binary_search(&waiter.row) else { continue };
            let node = &mut self.nodes[index];
            node.ready_ns = node.ready_ns.max(now_ns.saturating_add(waiter.delay_ns));
            node.num_waits -= 1;
            if node.num_waits == 0 {
                due.push((node.ready_ns, index as u32));
            }
        }
        self.due.extend(&due);
        due.into_iter()
    }

    /// Advances the start times of all nodes without open dependencies. Returns these nodes with their times.
    pub(super) fn bring_forward(&mut self, by_ns: u64) -> impl Iterator<Item = (u64, u32)> {
        self.due = self.due.iter().map(|(at_ns, index)| (at_ns.saturating_sub(by_ns), *index)).collect();
        for &(at_ns, index) in &self.due {
            self.nodes[index as usize].ready_ns = at_ns;
        }
        self.due.iter().copied()
    }
}
