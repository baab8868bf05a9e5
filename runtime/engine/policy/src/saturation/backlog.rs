//! Detectors that count requests: `backlog-drift`, `queue-growth` and `peak-rate`.

use super::{Detect, Event, Level, Signals, Verdict, noise_floor, ramp};

/// A slope above this many noise floors counts as overload.
const OVERLOAD_SLOPE: f64 = 3.0;
/// The queue's line starts at the first event once a window divided by this number has passed.
const START_PART: u64 = 12;

/// Fits a line through the backlog at the end of each window, and judges its slope.
pub(super) struct Drift {
    window_ns: u64,
    change: fn(&Event) -> i64,
    /// Whether the slope counts as a share of the arrivals, and the line starts with an empty queue. BLIS judges the
    /// slope itself, so a few requests of noise are growth, and within one window there is none.
    is_share: bool,
    first_ns: u64,
    last_ns: u64,
    arrivals: u64,
    backlog: i64,
    /// Number of the current window, once there is one.
    window: Option<u64>,
    /// Number of complete windows. The sums cover their backlogs, and their backlogs times the window index.
    samples: u64,
    sum: f64,
    weighted_sum: f64,
}

impl Drift {
    /// The backlog is the number of requests that have arrived and not ended.
    pub(super) fn of_requests(window_ns: u64) -> Self {
        Self::new(window_ns, false, |event| match event {
            Event::Arrival => 1,
            Event::End { .. } => -1,
            _ => 0,
        })
    }

    /// The backlog is the number of requests that wait for their first step.
    pub(super) fn of_queue(window_ns: u64) -> Self {
        Self::new(window_ns, true, |event| match event {
            Event::Arrival => 1,
            Event::Start | Event::End { started: false, .. } => -1,
            _ => 0,
        })
    }

    fn new(window_ns: u64, is_share: bool, change: fn(&Event) -> i64) -> Self {
        Self {
            window_ns: window_ns.max(1),
            change,
            is_share,
            first_ns: 0,
            last_ns: 0,
            arrivals: 0,
            backlog: 0,
            window: None,
            samples: 0,
            sum: 0.0,
            weighted_sum: 0.0,
        }
    }

    /// Ends `count` windows with the present backlog.
    fn close(&mut self, count: u64) {
        let (first, count, backlog) = (self.samples as f64, count as f64, self.backlog as f64);
        self.sum += count * backlog;
        self.weighted_sum += backlog * (count * first + count * (count - 1.0) / 2.0);
        self.samples += count as u64;
    }

    /// Least-squares slope over the window index, including the current window.
    fn slope(&self) -> f64 {
        // A queue of the first moments is a burst, and no line.
        let is_long = self.last_ns - self.first_ns >= self.window_ns / START_PART;
        let starts = if self.is_share && is_long { 1.0 } else { 0.0 };
        let (last, backlog) = (self.samples as f64 + starts, self.backlog as f64);
        if self.window.is_none() || last == 0.0 {
            return 0.0;
        }
        let count = last + 1.0;
        let index_sum = last * count / 2.0;
        let square_sum = last * count * (2.0 * last + 1.0) / 6.0;
        // The sample at the start is 0. It moves the others by one.
        let (sum, weighted_sum) = (self.sum + backlog, self.weighted_sum + starts * self.sum + backlog * last);
        (count * weighted_sum - index_sum * sum) / (count * square_sum - index_sum * index_sum)
    }

    /// The judged growth for a slope.
    fn growth(&self, slope: f64) -> f64 {
        let windows = (self.samples + 1) as f64;
        if self.is_share { slope * windows / self.arrivals.max(1) as f64 } else { slope }
    }
}

impl Detect for Drift {
    fn observe(&mut self, at_ns: u64, event: &Event) -> bool {
        let change = (self.change)(event);
        if change == 0 {
            return false;
        }
        let window = at_ns / self.window_ns;
        if self.window.is_none() {
            self.first_ns = at_ns;
        }
        self.last_ns = at_ns;
        let before = *self.window.get_or_insert(window);
        if window > before {
            self.close(window - before);
            self.window = Some(window);
        }
        self.arrivals += u64::from(change > 0);
        self.backlog += change;
        true
    }

    fn level(&self) -> Level {
        let noise = noise_floor(self.arrivals);
        Level::above(self.growth(self.slope()), noise, OVERLOAD_SLOPE * noise)
    }

    fn verdict(&self) -> Verdict {
        let (slope, noise) = (self.slope(), noise_floor(self.arrivals));
        let growth = self.growth(slope);
        let mut signals = Signals::from([("backlog", self.backlog as f64), ("running_slope", slope)]);
        if self.is_share {
            signals.push("share_of_arrivals", growth);
        }
        signals.push("noise_floor", noise);
        Verdict {
            level: self.level(),
            score: (growth.max(0.0) / (OVERLOAD_SLOPE * noise)).min(1.0),
            confidence: ramp(self.arrivals),
            signals,
        }
    }
}

/// Peak backlog per second of observation from which the backlog counts as more than a transient.
const PEAK_RATE: f64 = 0.5;
const LEAST_EVENTS: u64 = 20;
/// Number of consecutive events above the limit that lead to a judgement.
const LEAST_STREAK: u32 = 3;
/// A peak rate above this many limits counts as overload.
const OVERLOAD_RATE: f64 = 3.0;

/// Peak number of requests in progress, divided by the time observed. Constant under overload, falling otherwise.
#[derive(Default)]
pub(super) struct PeakRate {
    first_ns: Option<u64>,
    last_ns: u64,
    in_progress: u64,
    peak: u64,
    events: u64,
    streak: u32,
}

impl PeakRate {
    fn rate(&self) -> f64 {
        let elapsed_ns = self.last_ns - self.first_ns.unwrap_or(self.last_ns);
        if elapsed_ns == 0 { 0.0 } else { self.peak as f64 / (elapsed_ns as f64 / 1e9) }
    }

    fn is_ready(&self) -> bool {
        self.events >= LEAST_EVENTS
    }
}

impl Detect for PeakRate {
    fn observe(&mut self, at_ns: u64, event: &Event) -> bool {
        match event {
            Event::Arrival => self.in_progress += 1,
            Event::End { .. } => self.in_progress = self.in_progress.saturating_sub(1),
            _ => return false,
        }
        self.first_ns.get_or_insert(at_ns);
        self.last_ns = at_ns;
        self.events += 1;
        self.peak = self.peak.max(self.in_progress);
        self.streak = if self.is_ready() && self.rate() > PEAK_RATE { self.streak.saturating_add(1) } else { 0 };
        true
    }

    fn level(&self) -> Level {
        if self.streak < LEAST_STREAK {
            return Level::Stable;
        }
        Level::above(self.rate(), PEAK_RATE, OVERLOAD_RATE * PEAK_RATE)
    }

    fn verdict(&self) -> Verdict {
        let rate = self.rate();
        let (score, confidence) = match self.is_ready() {
            true => ((rate / (OVERLOAD_RATE * PEAK_RATE)).min(1.0), ramp(self.events)),
            false => (0.0, 0.0),
        };
        let signals = [("peak_rate", rate), ("peak_backlog", self.peak as f64)].into();
        Verdict { level: self.level(), score, confidence, signals }
    }
}
