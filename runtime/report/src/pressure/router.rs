//! Requests in the router's queue: those that have arrived and are in no engine.
//!
//! No file says when a router passes a request on. At the instants at which engines were
//! sampled it follows, though: what has arrived and has not been scheduled waits in an engine
//! or before all of them.

use std::collections::BTreeMap;

use super::share::Share;
use super::steps::PoolSteps;
use crate::document::Run;
use crate::requests::RequestRow;
use crate::timeline::Timeline;

/// When requests of a run came to the queue, and when they left it, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Unscheduled {
    came: Vec<i64>,
    left: Vec<i64>,
}

impl Unscheduled {
    /// Counts a request.
    pub(super) fn add(&mut self, row: &RequestRow<'_>) {
        self.came.push(ns(row.queued_ms.unwrap_or(row.arrival_ms)));
        // Those that never leave wait until the end.
        let left = row.scheduled_ms.or(row.end_ms);
        self.left.extend(left.map(ns));
    }

    fn sort(&mut self) {
        self.came.sort_unstable();
        self.left.sort_unstable();
    }

    /// Those that wait once everything of an instant has happened.
    fn at(&self, at_ns: i64) -> i64 {
        let until = |times: &[i64]| times.partition_point(|time| *time <= at_ns) as i64;
        until(&self.came) - until(&self.left)
    }
}

/// Requests of a folder's runs, by run; none without `requests.jsonl`.
pub(super) type Waits = Option<BTreeMap<String, Unscheduled>>;

/// Share of a run's samples in which the router keeps a request back.
pub(super) fn share(run: &Run, timeline: Option<&Timeline>, steps: &[&PoolSteps], waits: &mut Waits) -> Share {
    let Some(waits) = waits else {
        return Share::unknown("the folder has no requests.jsonl, which says when requests wait");
    };
    let Some(timeline) = timeline else {
        return Share::unknown("charts.json has no time line of the run's engines");
    };
    if steps.is_empty() {
        return Share::unknown("the folder has no steps.jsonl of the run, which says how its engines schedule");
    }
    let is_async = |steps: &&PoolSteps| steps.settings.get("async_scheduling").is_some_and(|on| *on == true);
    if steps.iter().any(is_async) {
        return Share::unknown("with async scheduling requests are admitted before the step in which they start");
    }
    let again = ["preemptions", "retries", "client_retries"].iter().map(|name| run.metrics.count(name)).sum::<u64>();
    if again > 0 || !run.links.is_empty() {
        return Share::unknown(
            "requests wait several times (preemptions, retries, transfers); a report has one wait of each",
        );
    }
    let unscheduled = waits.entry(run.name.clone()).or_default();
    unscheduled.sort();
    let samples = timeline.engines.iter().map(|line| line.waiting.len()).min().unwrap_or(0);
    let held = (0..samples).filter(|&index| {
        let in_engines: u64 = timeline.engines.iter().map(|line| line.waiting[index]).sum();
        unscheduled.at(ns(index as f64 * timeline.interval_ms)) > in_engines as i64
    });
    Share::of(held.count() as f64, samples as f64)
}

fn ns(ms: f64) -> i64 {
    (ms * 1e6).round() as i64
}
