//! The history of a run in a few characters: load, queue and throughput.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use vcr_cluster::observe::Progress;

/// Number of characters of a sparkline.
const WIDTH: usize = 16;

/// Minimum wall time between two points.
const INTERVAL: Duration = Duration::from_millis(100);

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The latest points of a run.
#[derive(Default)]
pub(crate) struct ProgressHistory {
    first: Option<(Instant, Progress)>,
    last: Option<(Instant, Progress)>,
    arrived_per_s: VecDeque<f64>,
    waiting: VecDeque<f64>,
    ended_per_s: VecDeque<f64>,
}

impl ProgressHistory {
    /// Records progress, unless the last point is too recent.
    pub(crate) fn note(&mut self, progress: &Progress, now: Instant) {
        let Some((at, before)) = self.last else {
            self.first = Some((now, *progress));
            self.last = self.first;
            return;
        };
        let virtual_s = progress.now_ns.saturating_sub(before.now_ns) as f64 / 1e9;
        if now.duration_since(at) < INTERVAL || virtual_s <= 0.0 {
            return;
        }
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / virtual_s;
        push(&mut self.arrived_per_s, rate(progress.arrived, before.arrived));
        push(&mut self.waiting, progress.waiting as f64);
        push(&mut self.ended_per_s, rate(progress.ended, before.ended));
        self.last = Some((now, *progress));
    }

    /// Estimated remaining time, from the rate of ended requests; none until one has ended, or if the total is
    /// unknown.
    pub(crate) fn left(&self, now: &Progress) -> Option<Duration> {
        let ((start, first), (latest, last)) = (self.first?, self.last?);
        let ended = last.ended.checked_sub(first.ended).filter(|ended| *ended > 0)?;
        let left = now.expected?.checked_sub(last.ended)?;
        Some(latest.duration_since(start).mul_f64(left as f64 / ended as f64))
    }

    /// The history as one line; empty until there are two points.
    pub(crate) fn line(&self) -> String {
        let part = |name: &str, points: &VecDeque<f64>, unit: &str| {
            let latest = points.back().copied().unwrap_or_default();
            format!("{name} {} {latest:.0}{unit}", sparkline(points))
        };
        if self.waiting.is_empty() {
            return String::new();
        }
        let (load, queue) = (part("load", &self.arrived_per_s, "/s"), part("queue", &self.waiting, ""));
        format!("{load} · {queue} · {}", part("done", &self.ended_per_s, "/s"))
    }
}

fn push(points: &mut VecDeque<f64>, point: f64) {
    points.push_back(point);
    if points.len() > WIDTH {
        points.pop_front();
    }
}

/// One character for each point, scaled from 0 to the highest point.
fn sparkline(points: &VecDeque<f64>) -> String {
    let highest = points.iter().copied().fold(0.0, f64::max);
    let level = |point: &f64| {
        let share = if highest > 0.0 { point / highest } else { 0.0 };
        LEVELS[((share * (LEVELS.len() - 1) as f64).round() as usize).min(LEVELS.len() - 1)]
    };
    points.iter().map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_between_nothing_and_the_highest() {
        assert_eq!(sparkline(&VecDeque::from([0.0, 1.0, 3.5, 7.0])), "▁▂▅█");
        assert_eq!(sparkline(&VecDeque::from([0.0, 0.0])), "▁▁");
    }

    #[test]
    fn rates_are_those_of_virtual_time() {
        let (mut course, start) = (ProgressHistory::default(), Instant::now());
        for step in 0..=20_u64 {
            let at = |seconds: u64| start + Duration::from_millis(100 * seconds);
            let progress = Progress {
                now_ns: step * 2_000_000_000,
                arrived: step * 100,
                ended: step * 40,
                waiting: step * 60,
                expected: Some(1_000),
                ..Progress::default()
            };
            course.note(&progress, at(step));
            // Too soon after the previous point to be recorded.
            course.note(&Progress { waiting: 0, ..progress }, at(step));
        }
        // 800 of 1,000 requests have ended in two seconds.
        let last = Progress { expected: Some(1_000), ..Progress::default() };
        assert_eq!(course.left(&last), Some(Duration::from_millis(500)));
        assert_eq!(course.left(&Progress::default()), None);
        let full = "█".repeat(WIDTH);
        let line = course.line();
        assert!(line.starts_with(&format!("load {full} 50/s · queue ▃")), "{line}");
        assert!(line.contains("█ 1200 · done ") && line.ends_with(&format!("{full} 20/s")), "{line}");
    }
}
