//! Requests of a trace that wait for each other.
//!
//! A request starts when everything it waits for has happened and the delays have passed, but not before its own
//! arrival time. Requests that are linked by waits or by their session form a play. A closed loop limits the number
//! of plays in flight. Limiting sessions could deadlock, because a session could wait for another one that has no
//! slot.
//!
//! Each request of each copy of the trace is a *node*. Nodes are numbered in file order, so nodes that start at the
//! same time do so in file order.

use std::sync::Arc;

use vcr_trace::{Trace, Trigger};

use crate::config::TracePacing;

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) row: u32,
    pub(super) trigger: Trigger,
    pub(super) delay_ns: u64,
}

pub(crate) struct Graph {
    trace: Arc<Trace>,
    copies: u32,
    pacing: TracePacing,
    /// Start of each row's waiters in `waiters`, followed by the end of the last row's.
    first_waiter: Vec<u32>,
    waiters: Vec<Waiter>,
    /// The play of each row.
    play_of: Vec<u32>,
    /// Start of each play's rows in `play_rows`. The rows are in file order.
    first_of_play: Vec<u32>,
    play_rows: Vec<u32>,
    /// Number of dependencies of each node that have not occurred.
    num_waits: Vec<u32>,
    /// The earliest start of each node that its dependencies allow.
    ready_ns: Vec<u64>,
    /// Number of requests that have not ended, for each play of each copy.
    num_left: Vec<u32>,
    /// The virtual time that corresponds to trace time 0, for each play of each copy.
    origin_ns: Vec<u64>,
    /// Nodes that may start, with their start times. The caller takes them.
    released: Vec<(u64, u64)>,
}

impl Graph {
    /// The graph before any event. Trace time 0 of the first copy is `start_ns`; each further copy is `stagger_ns`
    /// later.
    pub(crate) fn new(trace: &Arc<Trace>, copies: u32, pacing: TracePacing, start_ns: u64, stagger_ns: u64) -> Self {
        let (first_waiter, waiters) = waiters(trace, pacing);
        let play_of = plays(trace);
        let num_plays = play_of.iter().max().map_or(0, |last| last + 1);
        let (first_of_play, play_rows) = grouped(num_plays, play_of.iter().copied());
        let nodes = trace.requests.iter().flat_map(|request| (0..copies).map(|_| request.dependencies.len));
        let size = |play: u32| first_of_play[play as usize + 1] - first_of_play[play as usize];
        let origin = |copy: u32| start_ns.saturating_add(stagger_ns.saturating_mul(u64::from(copy)));
        Self {
            num_waits: nodes.collect(),
            ready_ns: vec![0; trace.requests.len() * copies as usize],
            num_left: (0..num_plays).flat_map(|play| (0..copies).map(move |_| play)).map(size).collect(),
            origin_ns: (0..num_plays).flat_map(|_| (0..copies).map(origin)).collect(),
            trace: Arc::clone(trace),
            copies,
            pacing,
            first_waiter,
            waiters,
            play_of,
            first_of_play,
            play_rows,
            released: Vec::new(),
        }
    }

    pub(crate) fn node(&self, row: u32, copy: u32) -> u64 {
        u64::from(row) * u64::from(self.copies) + u64::from(copy)
    }

    pub(crate) fn place(&self, node: u64) -> (u32, u32) {
        ((node / u64::from(self.copies)) as u32, (node % u64::from(self.copies)) as u32)
    }

    /// Whether a row has no dependencies, so that it starts at its arrival time.
    pub(crate) fn is_root(&self, row: u32) -> bool {
        self.trace.requests[row as usize].dependencies.len == 0
    }

    /// The first row of each play, in file order.
    pub(crate) fn plays(&self) -> impl Iterator<Item = u32> {
        self.first_of_play.windows(2).map(|range| self.play_rows[range[0] as usize])
    }

    /// Starts the play of `row` in one copy. Its earliest request starts at `now_ns`.
    pub(crate) fn open_play(&mut self, row: u32, copy: u32, now_ns: u64) {
        let play = self.play_of[row as usize];
        let range = self.first_of_play[play as usize] as usize..self.first_of_play[play as usize + 1] as usize;
        let arrival_ns = |row: u32| self.trace.requests[row as usize].arrival_ns.unwrap_or(0);
        let roots: Vec<u32> = self.play_rows[range].iter().copied().filter(|row| self.is_root(*row)).collect();
        let earliest_ns = roots.iter().copied().map(arrival_ns).min().unwrap_or(0);
        let release = |root: u32| {
            let since_ns = self.pacing.scale(arrival_ns(root) - earliest_ns);
            (now_ns.saturating_add(since_ns), self.node(root, copy))
        };
        let released: Vec<(u64, u64)> = roots.into_iter().map(release).collect();
        self.released.extend(released);
        let index = self.play_index(play, copy);
        // The rows' times are relative to the trace's beginning, which precedes the earliest request.
        self.origin_ns[index] = now_ns.saturating_sub(self.pacing.scale(earliest_ns));
    }

    pub(crate) fn arrived(&mut self, node: u64, now_ns: u64) {
        self.happened(node, Trigger::Dispatch, now_ns);
    }

    /// Ends a request, whatever its outcome. Returns whether its play has ended.
    pub(crate) fn ended(&mut self, node: u64, now_ns: u64) -> bool {
        self.happened(node, Trigger::Completion, now_ns);
        let (row, copy) = self.place(node);
        let play = self.play_index(self.play_of[row as usize], copy);
        self.num_left[play] -= 1;
        self.num_left[play] == 0
    }

    /// Takes a node that may start, with its start time.
    pub(crate) fn pop_released(&mut self) -> Option<(u64, u64)> {
        self.released.pop()
    }

    fn play_index(&self, play: u32, copy: u32) -> usize {
        play as usize * self.copies as usize + copy as usize
    }

    fn happened(&mut self, node: u64, trigger: Trigger, now_ns: u64) {
        let (row, copy) = self.place(node);
        let range = self.first_waiter[row as usize] as usize..self.first_waiter[row as usize + 1] as usize;
        for index in range {
            let waiter = self.waiters[index];
            if waiter.trigger != trigger {
                continue;
            }
            let node = self.node(waiter.row, copy);
            let ready_ns = &mut self.ready_ns[node as usize];
            *ready_ns = (*ready_ns).max(now_ns.saturating_add(waiter.delay_ns));
            self.num_waits[node as usize] -= 1;
            if self.num_waits[node as usize] == 0 {
                let origin_ns = self.origin_ns[self.play_index(self.play_of[waiter.row as usize], copy)];
                let not_before_ns = self.trace.requests[waiter.row as usize].arrival_ns.unwrap_or(0);
                let not_before_ns = origin_ns.saturating_add(self.pacing.scale(not_before_ns));
                self.released.push((self.ready_ns[node as usize].max(not_before_ns), node));
            }
        }
    }
}

/// For each row, the rows that wait for it. Delays are scaled by `pacing`.
pub(super) fn waiters(trace: &Trace, pacing: TracePacing) -> (Vec<u32>, Vec<Waiter>) {
    let (first, order) = grouped(trace.requests.len() as u32, trace.dependencies.iter().map(|other| other.request));
    let mut row_of = vec![0; trace.dependencies.len()];
    for (row, request) in trace.requests.iter().enumerate() {
        let range = request.dependencies;
        row_of[range.start as usize..][..range.len as usize].fill(row as u32);
    }
    let waiter = |index: &u32| {
        let dependency = trace.dependencies[*index as usize];
        let delay_ns = pacing.scale(dependency.delay_ns);
        Waiter { row: row_of[*index as usize], trigger: dependency.trigger, delay_ns }
    };
    (first, order.iter().map(waiter).collect())
}

/// Groups items. Returns the start of each group in the list of items, followed by the end of the last group, and
/// the list. Items keep their order within a group.
pub(super) fn grouped(groups: u32, group_of: impl Iterator<Item = u32> + Clone) -> (Vec<u32>, Vec<u32>) {
    let mut first = vec![0u32; groups as usize + 1];
    let mut count = 0;
    for group in group_of.clone() {
        first[group as usize + 1] += 1;
        count += 1;
    }
    for group in 0..groups as usize {
        first[group + 1] += first[group];
    }
    let mut free = first.clone();
    let mut items = vec![0u32; count];
    for (item, group) in group_of.enumerate() {
        items[free[group as usize] as usize] = item as u32;
        free[group as usize] += 1;
    }
    (first, items)
}

pub(super) fn plays(trace: &Trace) -> Vec<u32> {
    let mut parent: Vec<u32> = (0..trace.requests.len() as u32).collect();
    let mut first_of_session = vec![None; trace.sessions as usize];
    for (row, request) in trace.requests.iter().enumerate() {
        let first = *first_of_session[request.session as usize].get_or_insert(row as u32);
        join(&mut parent, row as u32, first);
        for dependency in trace.dependencies(request) {
            join(&mut parent, row as u32, dependency.request);
        }
    }
    // The root of a play is its first row, so plays are numbered in file order.
    let mut play_of = vec![0; parent.len()];
    let mut num_plays = 0;
    for row in 0..parent.len() as u32 {
        let root = root(&mut parent, row);
        play_of[row as usize] = if root == row {
            num_plays += 1;
            num_plays - 1
        } else {
            play_of[root as usize]
        };
    }
    play_of
}

fn join(parent: &mut [u32], a: u32, b: u32) {
    let (a, b) = (root(parent, a), root(parent, b));
    parent[a.max(b) as usize] = a.min(b);
}

fn root(parent: &mut [u32], mut row: u32) -> u32 {
    while parent[row as usize] != row {
        parent[row as usize] = parent[parent[row as usize] as usize];
        row = parent[row as usize];
    }
    row
}
