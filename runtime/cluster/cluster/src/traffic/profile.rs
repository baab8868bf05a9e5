//! Lanes of plays. Each lane runs one play at a time, and takes the next play when it ends.
//!
//! Lanes may warm the caches before the profile begins. A request of a play is a *node*, identified by the number
//! of the play's start and the request's index in the play. A warm-up node is identified by its lane. Nodes may
//! become due earlier while nothing is in flight, so an event of a node only counts if the node is still due then.

mod play;

use std::collections::BTreeMap;
use std::sync::Arc;

use vcr_base::random::Stream;
use vcr_core::seed;
use vcr_trace::{Trace, Trigger};

use crate::config::ProfileConfig;
use play::{Play, Source};

/// The bit of warm-up nodes.
const WARMUP: u64 = 1 << 63;
/// A play that starts in the middle does so between a quarter and three quarters of its recorded time.
const CUT_FROM: f64 = 0.25;
const CUT_WITHIN: f64 = 0.5;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProfileCounts {
    /// When the profile began, after the warm-up.
    pub(crate) began_ns: u64,
    pub(crate) warmup_requests: u64,
    pub(crate) plays_started: u64,
    /// Number of plays whose requests have all ended.
    pub(crate) plays_ended: u64,
    /// Number of waits that were shortened.
    pub(crate) idle_cuts: u64,
    /// Total time by which waits were shortened.
    pub(crate) idle_cut_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DueRow {
    pub(super) row: u32,
    /// The copy of the trace. Each copy has its own content.
    pub(super) copy: u32,
    pub(super) is_warmup: bool,
}

/// Requests that a lane sends one after another before the profile begins.
#[derive(Debug)]
struct Warmup {
    rows: Vec<u32>,
    num_sent: usize,
}

pub(super) struct Profile {
    config: ProfileConfig,
    source: Source,
    warmups: Vec<Warmup>,
    warming: usize,
    has_begun: bool,
    /// Plays in progress, by the number of their start.
    open: BTreeMap<u32, Play>,
    /// Number of plays' requests in flight.
    in_flight: u64,
    /// Nodes with new start times.
    released: Vec<(u64, u64)>,
    counts: ProfileCounts,
}

impl Profile {
    pub(super) fn new(trace: &Arc<Trace>, config: ProfileConfig) -> Self {
        let trace = if trace.has_free_turns { Arc::clone(trace) } else { Arc::new(trace.with_free_turns()) };
        Self {
            source: Source::new(&trace, config.speedup),
            config,
            warmups: Vec::new(),
            warming: 0,
            has_begun: false,
            open: BTreeMap::new(),
            in_flight: 0,
            released: Vec::new(),
            counts: ProfileCounts::default(),
        }
    }

    pub(super) fn counts(&self) -> ProfileCounts {
        self.counts
    }

    /// Fills the lanes. Begins with the warm-up, if there is one.
    pub(super) fn begin(&mut self, now_ns: u64) {
        for lane in 0..u64::from(self.config.lanes) {
            let cut = self
                .config
                .snapshot_seed
                .map(|seed| CUT_FROM + CUT_WITHIN * Stream::new(seed::derive(seed, "snapshot", lane), "cut").unit());
            if self.open_play(cut).is_none() {
                break;
            }
        }
        if self.config.warmup_requests == 0 {
            self.begin_profile(now_ns);
            return;
        }
        let requests = self.config.warmup_requests as usize;
        let warmup = |play: &Play| Warmup { rows: self.source.warmup(play, requests), num_sent: 0 };
        self.warmups = self.open.values().map(warmup).collect();
        self.warming = self.warmups.len();
        self.released.extend((0..self.warming as u64).map(|lane| (now_ns, WARMUP | lane)));
    }

    /// Takes a node that may start, with its start time.
    pub(super) fn pop_released(&mut self) -> Option<(u64, u64)> {
        let cutoff_ns = self.cutoff_ns();
        loop {
            let (at_ns, node) = self.released.pop()?;
            if node & WARMUP != 0 || cutoff_ns.is_none_or(|cutoff_ns| at_ns < cutoff_ns) {
                return Some((at_ns, node));
            }
        }
    }

    /// The time at which requests that are still in flight are cancelled.
    pub(super) fn cancels_at_ns(&self) -> Option<u64> {
        Some(self.cutoff_ns()?.saturating_add(self.config.grace_ns))
    }

    /// Starts a node if it is still due. Returns its request.
    pub(super) fn start(&mut self, node: u64, now_ns: u64) -> Option<DueRow> {
        if node & WARMUP != 0 {
            let warmup = &mut self.warmups[(node & !WARMUP) as usize];
            let row = *warmup.rows.get(warmup.num_sent)?;
            warmup.num_sent += 1;
            self.counts.warmup_requests += 1;
            return Some(DueRow { row, copy: 0, is_warmup: true });
        }
        let (number, index) = split(node);
        let play = self.open.get_mut(&number)?;
        let row = play.start(&self.source, index, now_ns)?;
        let copy = play.copy();
        self.in_flight += 1;
        self.happened(number, index, Trigger::Dispatch, now_ns);
        Some(DueRow { row, copy, is_warmup: false })
    }

    /// Records that a request has ended, completed or not. Returns whether this ends the warm-up.
    pub(super) fn ended(&mut self, node: u64, is_completed: bool, now_ns: u64) -> bool {
        if node & WARMUP != 0 {
            let warmup = &self.warmups[(node & !WARMUP) as usize];
            if warmup.num_sent < warmup.rows.len() {
                self.released.push((now_ns, node));
                return false;
            }
            self.warming -= 1;
            if self.warming == 0 {
                self.begin_profile(now_ns);
            }
            return self.warming == 0;
        }
        let (number, index) = split(node);
        self.in_flight -= 1;
        self.happened(number, index, Trigger::Completion, now_ns);
        let Some(play) = self.open.get_mut(&number) else { return false };
        play.end(is_completed);
        if play.is_over() {
            // A lane whose plays can never run would loop forever at one instant.
            let goes_on = play.has_completed();
            self.open.remove(&number);
            self.counts.plays_ended += 1;
            let is_in_time = self.cutoff_ns().is_none_or(|cutoff_ns| now_ns < cutoff_ns);
            if let Some(number) = (goes_on && is_in_time).then(|| self.open_play(None)).flatten() {
                self.begin_play(number, now_ns);
            }
        } else {
            self.cut_wait_of_play(number, now_ns);
        }
        self.cut_wait_of_all(now_ns);
        false
    }

    /// The time from which on no requests start.
    fn cutoff_ns(&self) -> Option<u64> {
        let duration_ns = self.config.duration_ns.filter(|_| self.has_begun)?;
        Some(self.counts.began_ns.saturating_add(duration_ns))
    }

    /// Opens the next play of the trace. With `cut`, it starts at this share of its recorded time. Returns its
    /// number.
    fn open_play(&mut self, cut: Option<f64>) -> Option<u32> {
        let (number, plays) = (self.counts.plays_started, u64::from(self.source.num_plays()));
        if number >= plays && self.config.duration_ns.is_none() {
            return None;
        }
        let copy = u32::try_from(number / plays).ok()?;
        let play = self.source.open((number % plays) as u32, copy, cut);
        let number = u32::try_from(number).ok()?;
        self.open.insert(number, play);
        self.counts.plays_started += 1;
        Some(number)
    }

    /// Begins the plays in the lanes.
    fn begin_profile(&mut self, now_ns: u64) {
        self.has_begun = true;
        self.counts.began_ns = now_ns;
        let numbers: Vec<u32> = self.open.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.begin_play(number, now_ns));
        self.cut_wait_of_all(now_ns);
    }

    fn begin_play(&mut self, number: u32, now_ns: u64) {
        let Some(play) = self.open.get_mut(&number) else { return };
        self.released.extend(play.begin(now_ns).map(|(at_ns, index)| (at_ns, node(number, index))));
        self.cut_wait_of_play(number, now_ns);
    }

    fn happened(&mut self, number: u32, index: u32, trigger: Trigger, now_ns: u64) {
        let Some(play) = self.open.get_mut(&number) else { return };
        let due = play.happened(&self.source, index, trigger, now_ns);
        self.released.extend(due.map(|(at_ns, index)| (at_ns, node(number, index))));
    }

    /// Shortens the wait of a play that has nothing in flight.
    fn cut_wait_of_play(&mut self, number: u32, now_ns: u64) {
        let (Some(cap_ns), Some(play)) = (self.config.play_idle_cap_ns, self.open.get(&number)) else { return };
        let Some(next_ns) = play.next_ns().filter(|_| play.is_idle()) else { return };
        self.cut(&[number], next_ns.saturating_sub(now_ns.saturating_add(cap_ns)));
    }

    /// Shortens the waits of all plays if nothing is in flight.
    fn cut_wait_of_all(&mut self, now_ns: u64) {
        let Some(cap_ns) = self.config.idle_cap_ns.filter(|_| self.in_flight == 0) else { return };
        let Some(next_ns) = self.open.values().filter_map(Play::next_ns).min() else { return };
        let numbers: Vec<u32> = self.open.keys().copied().collect();
        self.cut(&numbers, next_ns.saturating_sub(now_ns.saturating_add(cap_ns)));
    }

    fn cut(&mut self, numbers: &[u32], by_ns: u64) {
        if by_ns == 0 {
            return;
        }
        self.counts.idle_cuts += 1;
        self.counts.idle_cut_ns = self.counts.idle_cut_ns.saturating_add(by_ns);
        for &number in numbers {
            let Some(play) = self.open.get_mut(&number) else { continue };
            self.released.extend(play.bring_forward(by_ns).map(|(at_ns, index)| (at_ns, node(number, index))));
        }
    }
}

fn node(number: u32, index: u32) -> u64 {
    // Bit 63 remains free for [`WARMUP`].
    (u64::from(number) << 31) | u64::from(index)
}

fn split(node: u64) -> (u32, u32) {
    ((node >> 31) as u32, (node & ((1 << 31) - 1)) as u32)
}

#[cfg(test)]
mod tests;
