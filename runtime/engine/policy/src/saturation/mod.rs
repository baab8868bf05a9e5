//! Detectors of saturation: whether requests arrive faster than they are served.
//!
//! `composite`, `threshold`, `backlog-drift` and `peak-rate` are from BLIS, with its names, defaults and
//! formulas. The others observe what BLIS' detectors do not: the queue, time to first token, and KV blocks.
//! Each detector reads events in order of time, never looks ahead, and keeps no list of events. `composite` and
//! `ttft-trend` keep one sum per request.

mod backlog;
mod trend;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

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
        let (mut count, mut kv_sum, mut sum) = (0_u32, 0.0, 0.0);
        for (waiting, kv_usage) in states {
            count += 1;
            kv_sum += kv_usage;
            sum += (waiting / FULL_QUEUE).max(kv_usage / FULL_KV);
        }
        let count = f64::from(count.max(1));
        Self::Engines { kv_usage: kv_sum / count, utilization: sum / count }
    }
}

/// A detector's judgement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The level.
    pub level: Level,
    /// The score, from 0 to 1.
    pub score: f64,
    /// The confidence, from 0 to 1. It grows with the number of observations.
    pub confidence: f64,
    /// The inputs of the score.
    pub signals: Vec<(&'static str, f64)>,
}

trait Detect {
    /// Records an event. Returns whether the event is relevant for this detector.
    fn observe(&mut self, at_ns: u64, event: &Event) -> bool;
    /// The level after all events so far.
    fn level(&self) -> Level;
    fn verdict(&self) -> Verdict;
}

/// Settings of the detectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Mean latency from which `threshold` reports overload.
    pub threshold_ns: u64,
    /// Distance of the samples through which `backlog-drift` and `queue-growth` fit a line. Above 0.
    pub window_ns: u64,
    /// Length of the final window. The most frequent level in it is the result.
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

/// A detector and its levels in the final window.
struct Track {
    name: &'static str,
    detector: Box<dyn Detect + Send>,
    votes: VecDeque<(u64, Level)>,
}

impl Track {
    /// The most frequent level. Among equally frequent levels, the most severe.
    fn result(&self) -> Option<Level> {
        let count = |level| self.votes.iter().filter(|(_, vote)| *vote == level).count();
        let levels = [Level::Stable, Level::Backlogged, Level::Overloaded];
        levels.into_iter().max_by_key(|level| (count(*level), *level)).filter(|_| !self.votes.is_empty())
    }
}

/// Several detectors that observe the same events.
pub struct Detectors {
    final_window_ns: u64,
    tracks: Vec<Track>,
}

impl Detectors {
    /// The detectors for whose names `wanted` returns true.
    #[must_use]
    pub fn new(settings: &Settings, wanted: impl Fn(&str) -> bool) -> Self {
        let wanted = DETECTORS.iter().filter(|(name, _)| wanted(name));
        let track =
            |&(name, make): &(&'static str, Maker)| Track { name, detector: make(settings), votes: VecDeque::new() };
        Self { final_window_ns: settings.final_window_ns, tracks: wanted.map(track).collect() }
    }

    /// Records an event. Time must not decrease.
    pub fn observe(&mut self, at_ns: u64, event: &Event) {
        for track in &mut self.tracks {
            if track.detector.observe(at_ns, event) {
                track.votes.push_back((at_ns, track.detector.level()));
                let since_ns = at_ns.saturating_sub(self.final_window_ns);
                while track.votes.front().is_some_and(|(voted_ns, _)| *voted_ns < since_ns) {
                    track.votes.pop_front();
                }
            }
        }
    }

    /// The judgement of each detector. Its level is the most frequent one in the final window; the rest is
    /// from the last event. None if no event was relevant for the detector.
    pub fn results(&self) -> impl Iterator<Item = (&'static str, Option<Verdict>)> {
        self.tracks.iter().map(|track| {
            let verdict = track.result().map(|level| Verdict { level, ..track.detector.verdict() });
            (track.name, verdict)
        })
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
        let Event::Engines { kv_usage, utilization } = *event else { return false };
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
            signals: Vec::from([(self.name, self.value)]),
        }
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
