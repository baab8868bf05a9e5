//! Judgements of a run by saturation detectors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vcr_policy::saturation::{Detectors, Event, Settings, Verdict, names};
use vcr_trace::RequestRow;

use crate::timeline::Timeline;

const NOT_WATCHED: &str = "the report lacks requests or engines over time: vcr run writes both with --files report,charts,requests, vcr replay with --capacity";

/// The detectors to run and their settings.
#[derive(Clone, Debug, Default)]
pub struct Detection {
    /// Names of the detectors; empty for all detectors.
    pub names: Vec<String>,
    /// Settings for all detectors.
    pub settings: Settings,
}

impl Detection {
    /// Checks the name of a detector.
    ///
    /// # Errors
    /// If no detector has this name. The text lists all names.
    pub fn check(name: &str) -> Result<(), String> {
        match names().any(|known| known == name) {
            true => Ok(()),
            false => Err(format!("expected all or some of {}", names().collect::<Vec<_>>().join(", "))),
        }
    }
}

/// A detector's judgement of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// Name of the detector.
    pub detector: &'static str,
    /// The most frequent level in the final window before the last arrival: `STABLE`, `BACKLOGGED` or `OVERLOADED`;
    /// null if unknown.
    pub level: Option<&'static str>,
    /// The score at the last sample with this level, from 0 to 1.
    pub score: f64,
    /// The confidence, from 0 to 1, by the number of observations.
    pub confidence: f64,
    /// The inputs of the score, by name.
    pub signals: BTreeMap<&'static str, f64>,
    /// The reason why the level is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<&'static str>,
}

/// A request's arrival, start, first token and end in milliseconds, and whether it was completed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
struct Times(f64, Option<f64>, Option<f64>, Option<f64>, bool);

/// The events of a run that detectors observe. Reports contain a list of requests: arrival, start, first token and
/// end in milliseconds, and whether the request was completed.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub struct RunEvents {
    requests: Vec<Times>,
    #[serde(skip)]
    engines: Vec<(u64, Event)>,
}

impl RunEvents {
    /// Adds a request, unless it was rejected or shed before it reached an engine.
    pub fn add(&mut self, row: &RequestRow<'_>) {
        if row.status != "rejected" && row.status != "shed" {
            let times = Times(row.arrival_ms, row.scheduled_ms, row.first_token_ms, row.end_ms, row.is_completed());
            self.requests.push(times);
        }
    }

    /// Adds the engines' states over time.
    pub fn add_engines(&mut self, timeline: &Timeline) {
        let samples = timeline.engines.iter().map(|line| line.waiting.len().min(line.kv_usage.len())).min();
        for index in 0..samples.unwrap_or(0) {
            // A line that covers several engines counts as that many engines, each with the mean values.
            let states = timeline.engines.iter().flat_map(|line| {
                let count = line.engines.max(1);
                let state = (line.waiting[index] as f64 / count as f64, line.kv_usage[index]);
                std::iter::repeat_n(state, count as usize)
            });
            self.engines.push((at_ns(index as f64 * timeline.interval_ms), Event::engines(states)));
        }
    }

    /// Judges the run.
    #[must_use]
    pub fn judge(&self, detection: &Detection) -> Vec<Judgement> {
        let mut events = self.engines.clone();
        for &Times(arrival, start, first_token, end, is_completed) in &self.requests {
            let times = [
                (Some(arrival), Event::Arrival),
                (start, Event::Start),
                (first_token, Event::FirstToken { ttft_ms: first_token.map_or(0.0, |first| first - arrival) }),
                (
                    end,
                    Event::End {
                        latency_ms: end.filter(|_| is_completed).map(|end| end - arrival),
                        started: start.is_some(),
                    },
                ),
            ];
            events.extend(times.into_iter().filter_map(|(at, event)| Some((at_ns(at?), event))));
        }
        events.sort_by_key(|(at_ns, event)| (*at_ns, order(event)));
        let wanted = |name: &str| detection.names.is_empty() || detection.names.iter().any(|wanted| wanted == name);
        let mut detectors = Detectors::new(&detection.settings, wanted);
        let arrivals = self.requests.iter().map(|&Times(arrival, ..)| at_ns(arrival));
        let last_ns = arrivals.max().unwrap_or(u64::MAX);
        let (load, drain) = events.split_at(events.partition_point(|(at_ns, _)| *at_ns <= last_ns));
        load.iter().for_each(|(at_ns, event)| detectors.observe(*at_ns, event));
        detectors.end_arrivals();
        drain.iter().for_each(|(at_ns, event)| detectors.observe(*at_ns, event));
        let judgement = |(detector, verdict): (&'static str, Option<Verdict>)| {
            let unknown = match &verdict {
                Some(_) => None,
                None if self.requests.is_empty() || self.engines.is_empty() => Some(NOT_WATCHED),
                None => Some("no request came that far"),
            };
            let level = verdict.as_ref().map(|verdict| verdict.level.name());
            let verdict = verdict.unwrap_or_default();
            let signals = verdict.signals.iter().map(|&(name, value)| (name, rounded(value))).collect();
            let (score, confidence) = (rounded(verdict.score), rounded(verdict.confidence));
            Judgement { detector, level, score, confidence, signals, unknown }
        };
        detectors.results().map(judgement).collect()
    }
}

fn at_ns(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

/// The rank of an event among events at the same time.
fn order(event: &Event) -> u8 {
    match event {
        Event::Arrival => 0,
        Event::Start => 1,
        Event::FirstToken { .. } => 2,
        Event::End { .. } => 3,
        Event::Engines { .. } => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges requests that arrive ten times a second for 200 seconds, given the time between their starts.
    fn level_of(detector: &str, between_ms: f64, waiting: f64) -> Option<&'static str> {
        let requests = (0..2000).map(|index| {
            let (arrival, start) = (f64::from(index) * 100.0, f64::from(index) * between_ms);
            Times(arrival, Some(start), Some(start + 10.0), Some(start + 1000.0), true)
        });
        // BLIS takes these for growth.
        let late = (0..8).map(|index| {
            let arrival = 199_900.0 - f64::from(index);
            Times(arrival, Some(arrival), Some(arrival + 10.0), Some(arrival + 1000.0), true)
        });
        let state = Event::engines([(waiting, 0.1)].into_iter());
        let engines = (0..2000).map(|second| (at_ns(f64::from(second) * 1000.0), state)).collect();
        let events = RunEvents { requests: requests.chain(late).collect(), engines };
        let judged = events.judge(&Detection { names: vec![detector.to_owned()], settings: Settings::default() });
        judged[0].level
    }

    #[test]
    fn a_drain_and_noise_do_not_change_the_level() {
        for detector in ["backlog-drift", "queue-growth"] {
            assert_eq!(level_of(detector, 1000.0, 100.0), Some("OVERLOADED"), "{detector}");
        }
        for detector in names() {
            assert_eq!(level_of(detector, 100.0, 0.0), Some("STABLE"), "{detector}");
        }
        assert_ne!(level_of("backlog-drift", 100.0, 5.0), Some("STABLE"), "an engine had a queue");
    }
}
