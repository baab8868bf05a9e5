//! Detectors that observe latencies: `composite`, `threshold` and `ttft-trend`.

use alloc::vec::Vec;

use super::{Detect, Event, Level, Verdict, noise_floor, ramp, root};

const LEAST_LATENCIES: usize = 20;
/// A trend above this many noise floors counts as overload.
const OVERLOAD_TREND: f64 = 3.0;

/// Cumulative sums of latencies, in order of time.
#[derive(Default)]
struct Latencies {
    sums: Vec<f64>,
}

impl Latencies {
    fn add(&mut self, latency_ms: f64) {
        let before = self.sums.last().copied().unwrap_or(0.0);
        self.sums.push(before + latency_ms);
    }

    fn mean(&self, from: usize, to: usize) -> f64 {
        let sum_to = |end: usize| if end == 0 { 0.0 } else { self.sums[end - 1] };
        (sum_to(to) - sum_to(from)) / (to - from) as f64
    }

    /// Growth of the mean from the first half to the second half, if it grows in every quarter.
    fn trend(&self) -> f64 {
        let count = self.sums.len();
        if count < LEAST_LATENCIES {
            return 0.0;
        }
        let quarter = count / 4;
        let quarters = [0, 1, 2, 3].map(|index| {
            let end = if index == 3 { count } else { (index + 1) * quarter };
            self.mean(index * quarter, end)
        });
        let (first, second) = (self.mean(0, count / 2), self.mean(count / 2, count));
        if !quarters.is_sorted_by(|before, after| before < after) || first <= 0.0 {
            return 0.0;
        }
        ((second - first) / first).max(0.0)
    }
}

/// The fraction of requests that have not ended, or the trend of latencies if that is larger.
#[derive(Default)]
pub(super) struct Composite {
    arrivals: u64,
    ended: u64,
    latencies: Latencies,
}

impl Composite {
    fn rate_deficit(&self) -> f64 {
        (1.0 - self.ended as f64 / self.arrivals.max(1) as f64).max(0.0)
    }
}

impl Detect for Composite {
    fn observe(&mut self, _at_ns: u64, event: &Event) -> bool {
        match *event {
            Event::Arrival => self.arrivals += 1,
            Event::End { latency_ms, .. } => {
                self.ended += 1;
                if let Some(latency_ms) = latency_ms {
                    self.latencies.add(latency_ms);
                }
            }
            _ => return false,
        }
        true
    }

    fn level(&self) -> Level {
        let (trend, noise) = (self.latencies.trend(), noise_floor(self.arrivals));
        match self.rate_deficit().max(trend.min(1.0)) {
            score if score < noise => Level::Stable,
            _ if trend > noise => Level::Overloaded,
            _ => Level::Backlogged,
        }
    }

    fn verdict(&self) -> Verdict {
        let (deficit, trend) = (self.rate_deficit(), self.latencies.trend().min(1.0));
        let noise = noise_floor(self.arrivals);
        Verdict {
            level: self.level(),
            score: deficit.max(trend),
            confidence: ramp(self.arrivals),
            signals: [("rate_deficit", deficit), ("latency_trend", trend), ("noise_floor", noise)].into(),
        }
    }
}

/// The mean latency, compared with a limit.
pub(super) struct Threshold {
    threshold_ms: f64,
    sum_ms: f64,
    count: u64,
}

impl Threshold {
    pub(super) fn new(threshold_ms: f64) -> Self {
        Self { threshold_ms, sum_ms: 0.0, count: 0 }
    }

    fn mean_ms(&self) -> f64 {
        self.sum_ms / self.count.max(1) as f64
    }
}

impl Detect for Threshold {
    fn observe(&mut self, _at_ns: u64, event: &Event) -> bool {
        let Event::End { latency_ms: Some(latency_ms), .. } = *event else { return false };
        self.sum_ms += latency_ms;
        self.count += 1;
        true
    }

    fn level(&self) -> Level {
        if self.mean_ms() < self.threshold_ms { Level::Stable } else { Level::Overloaded }
    }

    fn verdict(&self) -> Verdict {
        let share = self.mean_ms() / self.threshold_ms;
        let score = if share < 1.0 { 0.5 * share } else { 0.75 + ((share - 1.0) / 4.0).min(0.25) };
        let confidence = 1.0 - 1.0 / root(self.count as f64 + 1.0);
        let signals = [("mean_e2e_ms", self.mean_ms()), ("threshold_ms", self.threshold_ms)].into();
        Verdict { level: self.level(), score, confidence, signals }
    }

    fn judges_latencies(&self) -> bool {
        true
    }

    fn has_limit(&self) -> bool {
        true
    }
}

/// The trend of time to first token.
#[derive(Default)]
pub(super) struct TtftTrend {
    ttfts: Latencies,
}

impl TtftTrend {
    fn noise(&self) -> f64 {
        noise_floor(self.ttfts.sums.len() as u64)
    }
}

impl Detect for TtftTrend {
    fn observe(&mut self, _at_ns: u64, event: &Event) -> bool {
        let Event::FirstToken { ttft_ms } = *event else { return false };
        self.ttfts.add(ttft_ms);
        true
    }

    fn level(&self) -> Level {
        Level::above(self.ttfts.trend(), self.noise(), OVERLOAD_TREND * self.noise())
    }

    fn verdict(&self) -> Verdict {
        let (trend, count) = (self.ttfts.trend(), self.ttfts.sums.len());
        Verdict {
            level: self.level(),
            score: trend.min(1.0),
            confidence: ramp(count as u64),
            signals: [
                ("ttft_trend", trend),
                ("mean_ttft_ms", self.ttfts.mean(0, count.max(1))),
                ("noise_floor", self.noise()),
            ]
            .into(),
        }
    }

    fn judges_latencies(&self) -> bool {
        true
    }
}
