//! Detectors of saturation: whether requests arrive faster than they are served.
//!
//! `composite`, `threshold`, `backlog-drift` and `peak-rate` are from BLIS, with its names, defaults and
//! formulas. The others observe what BLIS' detectors do not: the queue, time to first token, and KV blocks.
//!
//! BLIS' formulas take noise of few requests for growth, and a drain for recovery. So a run whose engines never had
//! a queue is stable for all detectors of growth, and the final window ends with the arrivals.
//!
//! Each detector reads events in order of time, never looks ahead, and keeps no list of events. `composite` and
//! `ttft-trend` keep one sum per request.

mod backlog;
mod trend;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Deref;

use backlog::{Drift, PeakRate};
use trend::{Composite, Threshold, TtftTrend};

/// The degree of saturation of a system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Requests are served as fast as they arrive.
    #[default]
    Stable,
    /// There is a backlog that may drain.
    Backlogged,
    /// The backlog grows.
    Overloaded,
}

impl Level {
    /// BLIS' name of the level.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stable => "STABLE",
            Self::Backlogged => "BACKLOGGED",
            Self::Overloaded => "OVERLOADED",
        }
    }

    /// The level of a value, given the limits for a backlog and for overload.
    fn above(value: f64, backlogged: f64, overloaded: f64) -> Self {
        match value {
            _ if value > overloaded => Self::Overloaded,
            _ if value > backlogged => Self::Backlogged,
            _ => Self::Stable,
        }
    }
}

/// An event that detectors may watch. Simultaneous events are observed in the order of this list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A request arrives.
    Arrival,
    /// The first step of a request starts.
    Start,
    /// The first token of a request is emitted.
    FirstToken {
        /// Time since the request's arrival.
        ttft_ms: f64,
    },
    /// A request ends, or leaves the queue without having run.
    End {
        /// Time since the request's arrival, if it was completed.
        latency_ms: Option<f64>,
        /// Whether the request's first step had started.
        started: bool,
    },
    /// The state of the engines was sampled.
    Engines {
        /// Mean fraction of KV blocks in use.
        kv_usage: f64,
        /// Mean over engines of the larger of waiting requests / 5 and KV usage / 0.8, as in
        /// `utilization-detector` of the Gateway API Inference Extension.
        utilization: f64,
        /// The utilization of the most utilized engine.
        busiest: f64,
        /// Number of engines.
        engines: u32,
    },
}

/// Number of waiting requests at which an engine counts as fully utilized.
const FULL_QUEUE: f64 = 5.0;
/// KV usage at which an engine counts as fully utilized.
const FULL_KV: f64 = 0.8;
/// KV usage from which an engine can hardly admit a request.
const KV_EXHAUSTED: f64 = 0.95;

impl Event {
    /// The event for the state of engines, each given by its waiting requests and its KV usage.
    pub fn engines(states: impl Iterator<Item = (f64, f64)>) -> Self {
        let (mut engines, mut kv_sum, mut sum, mut busiest) = (0_u32, 0.0, 0.0, 0.0_f64);
        for (waiting, kv_usage) in states {
            let utilization = (waiting / FULL_QUEUE).max(kv_usage / FULL_KV);
            engines += 1;
            kv_sum += kv_usage;
            sum += utilization;
            busiest = busiest.max(utilization);
        }
        let count = f64::from(engines.max(1));
        Self::Engines { kv_usage: kv_sum / count, utilization: sum / count, busiest, engines }
    }
}

/// Maximum number of signals: those of a detector, and the peak utilization.
const MAX_SIGNALS: usize = 5;

/// The inputs of a score, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Signals {
    entries: [(&'static str, f64); MAX_SIGNALS],
    count: usize,
}

impl Signals {
    fn push(&mut self, name: &'static str, value: f64) {
        self.entries[self.count] = (name, value);
        self.count += 1;
    }
}

impl<const N: usize> From<[(&'static str, f64); N]> for Signals {
    fn from(entries: [(&'static str, f64); N]) -> Self {
        let mut signals = Self::default();
        entries.into_iter().for_each(|(name, value)| signals.push(name, value));
        signals
    }
}

impl Deref for Signals {
    type Target = [(&'static str, f64)];

    fn deref(&self) -> &Self::Target {
        &self.entries[..self.count]
    }
}

/// A detector's judgement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The level.
    pub level: Level,
    /// The score, from 0 to 1.
    pub score: f64,
    /// The confidence, from 0 to 1. It grows with the number of observations.
    pub confidence: f64,
    /// The inputs of the score.
    pub signals: Signals,
}

trait Detect {
    /// Records an event. Returns whether the event is relevant for this detector.
    fn observe(&mut self, at_ns: u64, event: &Event) -> bool;
    /// The level after all events so far.
    fn level(&self) -> Level;
    fn verdict(&self) -> Verdict;
    /// Whether the detector judges latencies. Those of the last arrivals are known only after the last arrival.
    fn judges_latencies(&self) -> bool {
        false
    }
    /// Whether the detector compares a quantity with a limit, and does not infer a queue from growth.
    fn has_limit(&self) -> bool {
        false
    }
}

/// Settings of the detectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Mean latency from which `threshold` reports overload.
    pub threshold_ns: u64,
    /// Distance of the samples through which `backlog-drift` and `queue-growth` fit a line. Above 0.
    pub window_ns: u64,
    /// Length of the final window, which ends with the arrivals. The most frequent level in it is the result.
    pub final_window_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { threshold_ns: 5_000_000_000, window_ns: 60_000_000_000, final_window_ns: 30_000_000_000 }
    }
}

/// Names of the detectors, with the functions that make them.
type Maker = fn(&Settings) -> Box<dyn Detect + Send>;
const DETECTORS: &[(&str, Maker)] = &[
    ("composite", |_| Box::<Composite>::default()),
    ("threshold", |settings| Box::new(Threshold::new(settings.threshold_ns as f64 / 1e6))),
    ("backlog-drift", |settings| Box::new(Drift::of_requests(settings.window_ns))),
    ("peak-rate", |_| Box::<PeakRate>::default()),
    ("queue-growth", |settings| Box::new(Drift::of_queue(settings.window_ns))),
    ("ttft-trend", |_| Box::<TtftTrend>::default()),
    ("kv-pressure", |_| Box::new(Gauge::new("kv_usage", FULL_KV, KV_EXHAUSTED, |kv_usage, _| kv_usage))),
    ("utilization", |_| Box::new(Gauge::new("utilization", 1.0, 1.0, |_, utilization| utilization))),
];

/// Names of all detectors.
pub fn names() -> impl Iterator<Item = &'static str> {
    DETECTORS.iter().map(|(name, _)| *name)
}

const LEVELS: [Level; 3] = [Level::Stable, Level::Backlogged, Level::Overloaded];

/// A detector and its levels in the final window.
struct Track {
    name: &'static str,
    detector: Box<dyn Detect + Send>,
    votes: VecDeque<(u64, Level)>,
    /// The latest verdict of each level.
    latest: [Option<Verdict>; LEVELS.len()],
    /// Whether the detector ignores further events.
    is_closed: bool,
}

impl Track {
    fn new(name: &'static str, detector: Box<dyn Detect + Send>) -> Self {
        Self { name, detector, votes: VecDeque::new(), latest: [None; LEVELS.len()], is_closed: false }
    }

    /// Whether the detector has seen enough without the drain.
    fn can_close(&self) -> bool {
        !self.detector.judges_latencies() && self.detector.verdict().confidence >= 1.0
    }

    /// The latest verdict of the most frequent level. Among equally frequent levels, the most severe.
    fn result(&self) -> Option<Verdict> {
        let count = |level| self.votes.iter().filter(|(_, vote)| *vote == level).count();
        let level = LEVELS.into_iter().max_by_key(|level| (count(*level), *level))?;
        self.latest[level as usize].filter(|_| !self.votes.is_empty())
    }
}

/// The largest utilization of an engine so far, and the largest queue.
#[derive(Default)]
struct Peak {
    waiting: u64,
    /// None before the first sample.
    utilization: Option<f64>,
}

impl Peak {
    fn observe(&mut self, event: &Event) {
        match *event {
            Event::Arrival => self.waiting += 1,
            Event::Start | Event::End { started: false, .. } => self.waiting = self.waiting.saturating_sub(1),
            Event::Engines { busiest, engines, .. } => {
                // Some requests wait in routers instead of engines.
                let queue = self.waiting as f64 / f64::from(engines.max(1)) / FULL_QUEUE;
                self.utilization = Some(self.utilization.unwrap_or(0.0).max(busiest).max(queue));
            }
            Event::FirstToken { .. } | Event::End { started: true, .. } => {}
        }
    }
}

/// Several detectors that observe the same events.
pub struct Detectors {
    final_window_ns: u64,
    peak: Peak,
    tracks: Vec<Track>,
    is_drain: bool,
}

impl Detectors {
    /// The detectors for whose names `wanted` returns true.
    #[must_use]
    pub fn new(settings: &Settings, wanted: impl Fn(&str) -> bool) -> Self {
        let wanted = DETECTORS.iter().filter(|(name, _)| wanted(name));
        let track = |&(name, make): &(&'static str, Maker)| Track::new(name, make(settings));
        Self {
            final_window_ns: settings.final_window_ns,
            peak: Peak::default(),
            tracks: wanted.map(track).collect(),
            is_drain: false,
        }
    }

    /// Records an event. Time must not decrease.
    pub fn observe(&mut self, at_ns: u64, event: &Event) {
        self.peak.observe(event);
        for track in &mut self.tracks {
            if track.is_closed || !track.detector.observe(at_ns, event) {
                continue;
            }
            let verdict = track.detector.verdict();
            track.latest[verdict.level as usize] = Some(verdict);
            track.votes.push_back((at_ns, verdict.level));
            let since_ns = at_ns.saturating_sub(self.final_window_ns);
            while track.votes.front().is_some_and(|(voted_ns, _)| *voted_ns < since_ns) {
                track.votes.pop_front();
            }
            track.is_closed = self.is_drain && track.can_close();
        }
    }

    /// Says that no request arrives any more. Later events are the drain, which shows no load: it counts only for
    /// latencies, and for detectors that are not fully confident yet.
    pub fn end_arrivals(&mut self) {
        self.is_drain = true;
        for track in &mut self.tracks {
            track.is_closed = track.can_close();
        }
    }

    /// The judgement of each detector. Its level is the most frequent one in the final window; the rest is from the
    /// latest event with that level. None if no event was relevant for the detector.
    pub fn results(&self) -> impl Iterator<Item = (&'static str, Option<Verdict>)> {
        self.tracks.iter().map(|track| (track.name, track.result().map(|verdict| self.checked(track, verdict))))
    }

    /// Growth is noise if at no sample a queue was full or an engine fully utilized.
    fn checked(&self, track: &Track, verdict: Verdict) -> Verdict {
        let peak = self.peak.utilization.filter(|peak| *peak < 1.0);
        match peak.filter(|_| verdict.level != Level::Stable && !track.detector.has_limit()) {
            None => verdict,
            Some(peak) => {
                let mut signals = verdict.signals;
                signals.push("peak_utilization", peak);
                Verdict { level: Level::Stable, score: 0.0, signals, ..verdict }
            }
        }
    }
}

/// A state of the engines that is compared with two limits.
struct Gauge {
    name: &'static str,
    backlogged: f64,
    overloaded: f64,
    of: fn(f64, f64) -> f64,
    value: f64,
    samples: u64,
}

impl Gauge {
    fn new(name: &'static str, backlogged: f64, overloaded: f64, of: fn(f64, f64) -> f64) -> Self {
        Self { name, backlogged, overloaded, of, value: 0.0, samples: 0 }
    }
}

impl Detect for Gauge {
    fn observe(&mut self, _at_ns: u64, event: &Event) -> bool {
        let Event::Engines { kv_usage, utilization, .. } = *event else { return false };
        self.value = (self.of)(kv_usage, utilization);
        self.samples += 1;
        true
    }

    fn level(&self) -> Level {
        Level::above(self.value, self.backlogged, self.overloaded)
    }

    fn verdict(&self) -> Verdict {
        Verdict {
            level: self.level(),
            score: self.value.min(1.0),
            confidence: ramp(self.samples),
            signals: [(self.name, self.value)].into(),
        }
    }

    fn has_limit(&self) -> bool {
        true
    }
}

/// Number of observations at which a detector is fully confident.
const CONFIDENT_AT: u64 = 20;

fn ramp(observations: u64) -> f64 {
    observations.min(CONFIDENT_AT) as f64 / CONFIDENT_AT as f64
}

/// One over the square root of the number of events: how large noise may be.
fn noise_floor(events: u64) -> f64 {
    1.0 / root(events.max(1) as f64)
}

/// The square root by Newton's method, because core has none.
fn root(square: f64) -> f64 {
    if square <= 0.0 {
        return 0.0;
    }
    let half_the_exponent = f64::from_bits((square.to_bits() >> 1) + (1023 << 51));
    (0..5).fold(half_the_exponent, |root, _| 0.5 * (root + square / root))
}

#[cfg(test)]
mod tests;
