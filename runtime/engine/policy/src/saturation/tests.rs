use alloc::vec;
use alloc::vec::Vec;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// The judgements of these events, which may be in any order.
fn judged(settings: &Settings, mut events: Vec<(u64, Event)>) -> Vec<(&'static str, Option<Verdict>)> {
    events.sort_by_key(|(at_ns, event)| (*at_ns, matches!(event, Event::End { .. })));
    let mut detectors = Detectors::new(settings, |_| true);
    events.iter().for_each(|(at_ns, event)| detectors.observe(*at_ns, event));
    detectors.results().collect()
}

/// The judgements of these events, in order, with no arrival after `end_ns`.
fn judged_until(
    end_ns: u64,
    settings: &Settings,
    mut events: Vec<(u64, Event)>,
) -> Vec<(&'static str, Option<Verdict>)> {
    events.sort_by_key(|(at_ns, _)| *at_ns);
    let (load, drain) = events.split_at(events.partition_point(|(at_ns, _)| *at_ns <= end_ns));
    let mut detectors = Detectors::new(settings, |_| true);
    load.iter().for_each(|(at_ns, event)| detectors.observe(*at_ns, event));
    detectors.end_arrivals();
    drain.iter().for_each(|(at_ns, event)| detectors.observe(*at_ns, event));
    detectors.results().collect()
}

fn of(results: &[(&str, Option<Verdict>)], name: &str) -> Verdict {
    let found = results.iter().find(|(known, _)| *known == name).expect("it is a detector");
    found.1.expect("it has seen events")
}

/// A request that starts halfway to its first token. The first token comes halfway to its end.
fn request(at_ns: u64, e2e_ms: u64) -> Vec<(u64, Event)> {
    let end_ns = e2e_ms * 1_000_000;
    vec![
        (at_ns, Event::Arrival),
        (at_ns + end_ns / 4, Event::Start),
        (at_ns + end_ns / 2, Event::FirstToken { ttft_ms: e2e_ms as f64 / 2.0 }),
        (at_ns + end_ns, Event::End { latency_ms: Some(e2e_ms as f64), started: true }),
    ]
}

/// One request per second for `count` seconds.
fn steady(count: u64, e2e_ms: impl Fn(u64) -> u64) -> Vec<(u64, Event)> {
    (0..count).flat_map(|index| request(index * SECOND, e2e_ms(index))).collect()
}

#[test]
fn a_steady_load_is_stable_for_all() {
    let settings = Settings { window_ns: 10 * SECOND, ..Settings::default() };
    let mut events = steady(200, |_| 500);
    events.extend((0..200).map(|index| (index * SECOND, Event::engines([(0.0, 0.4)].into_iter()))));
    for (name, verdict) in judged(&settings, events) {
        assert_eq!(verdict.expect("it has events").level, Level::Stable, "{name}");
    }
}

/// Latencies grow by a second per request, and requests arrive once a second, so the backlog grows without end.
#[test]
fn an_overload_is_seen_by_all_that_count_requests() {
    let settings = Settings { window_ns: 10 * SECOND, ..Settings::default() };
    let results = judged(&settings, (0..100).map(|index| (index * SECOND, Event::Arrival)).collect());
    for name in ["backlog-drift", "queue-growth"] {
        let verdict = of(&results, name);
        assert_eq!((verdict.level, verdict.score), (Level::Overloaded, 1.0), "{name}");
        // Each window adds ten requests.
        assert!((verdict.signals[1].1 - 10.0).abs() < 1e-9, "{verdict:?}");
    }
    // 100 requests in 99 seconds.
    let rate = of(&results, "peak-rate");
    assert!((rate.signals[0].1 - 100.0 / 99.0).abs() < 1e-12 && rate.level == Level::Backlogged, "{rate:?}");
    let composite = of(&results, "composite");
    assert_eq!((composite.level, composite.score), (Level::Backlogged, 1.0), "nothing has ended: {composite:?}");
}

#[test]
fn growing_latencies_are_a_trend_and_noise_is_none() {
    let growing = judged(&Settings::default(), steady(40, |index| 100 + 10 * index));
    let composite = of(&growing, "composite");
    // The means of the two halves are 195 and 395 ms.
    assert!((composite.signals[1].1 - 200.0 / 195.0).abs() < 0.03 && composite.level == Level::Overloaded);
    assert_eq!(of(&growing, "ttft-trend").level, Level::Overloaded);
    let noise = judged(&Settings::default(), steady(40, |index| 100 + 100 * (index % 2)));
    assert_eq!(of(&noise, "ttft-trend").score, 0.0);
    let few = judged(&Settings::default(), steady(19, |index| 100 + 10 * index));
    assert_eq!(of(&few, "ttft-trend").score, 0.0, "too few to tell");
}

#[test]
fn a_threshold_has_two_levels() {
    let at = |e2e_ms| of(&judged(&Settings::default(), request(0, e2e_ms)), "threshold");
    assert_eq!((at(2500).level, at(2500).score), (Level::Stable, 0.25));
    assert_eq!((at(5000).level, at(5000).score), (Level::Overloaded, 0.75));
    assert_eq!(at(50_000).score, 1.0);
    assert!((at(2500).confidence - (1.0 - 1.0 / 2_f64.sqrt())).abs() < 1e-15);
}

#[test]
fn engines_have_limits() {
    let engines =
        |states: &[(f64, f64)]| judged(&Settings::default(), vec![(0, Event::engines(states.iter().copied()))]);
    let two = engines(&[(10.0, 0.2), (0.0, 1.0)]);
    let utilization = of(&two, "utilization");
    assert_eq!((utilization.level, utilization.signals[0].1), (Level::Overloaded, (2.0 + 1.25) / 2.0));
    assert_eq!(of(&two, "kv-pressure").level, Level::Stable, "60 %");
    assert_eq!(of(&engines(&[(0.0, 0.85)]), "kv-pressure").level, Level::Backlogged);
    assert_eq!(of(&engines(&[(0.0, 0.96)]), "kv-pressure").level, Level::Overloaded);
    assert!(two.iter().any(|(name, verdict)| *name == "composite" && verdict.is_none()), "it has no requests");
}

/// The result is the most frequent level in the final window; with a tie, the more severe one.
#[test]
fn the_final_window_votes() {
    let kv = |at_s: u64, kv_usage: f64| (at_s * SECOND, Event::engines([(0.0, kv_usage)].into_iter()));
    let of_kv = |events: Vec<(u64, Event)>| of(&judged(&Settings::default(), events), "kv-pressure").level;
    assert_eq!(of_kv(vec![kv(0, 1.0), kv(1, 1.0), kv(32, 0.1)]), Level::Stable, "older than 30 s");
    assert_eq!(of_kv(vec![kv(2, 1.0), kv(32, 0.1)]), Level::Overloaded, "exactly 30 s, and a tie");
    assert_eq!(of_kv(vec![kv(30, 1.0), kv(31, 0.1), kv(32, 0.1)]), Level::Stable);
}

/// A request a second starts in the moment in which it arrives. The state of the engines is idle.
#[test]
fn an_idle_run_is_stable_whatever_its_length() {
    let idle = |at_ns: u64| {
        [
            (at_ns, Event::Arrival),
            (at_ns, Event::Start),
            (at_ns, Event::Engines { kv_usage: 0.015, utilization: 0.02, busiest: 0.02, engines: 4 }),
            (at_ns + SECOND / 100, Event::FirstToken { ttft_ms: 10.0 }),
            (at_ns + SECOND / 5, Event::End { latency_ms: Some(200.0), started: true }),
        ]
    };
    for seconds in [10, 40, 90, 120, 180, 240, 360, 600, 1200] {
        let events = (0..seconds).flat_map(|index| idle(index * SECOND)).collect();
        for (name, verdict) in judged(&Settings::default(), events) {
            assert_eq!(verdict.expect("it has events").level, Level::Stable, "{name} after {seconds} s");
        }
    }
}

/// A request a second starts at once and does not end. By BLIS' formulas, that is growth.
#[test]
fn growth_without_a_queue_is_no_overload() {
    let settings = Settings { window_ns: SECOND, ..Settings::default() };
    let with = |waiting: f64, kv_usage: f64| {
        let mut events: Vec<_> =
            (0..30).flat_map(|index| [Event::Arrival, Event::Start].map(|event| (index * SECOND, event))).collect();
        events.push((15 * SECOND, Event::engines([(waiting, kv_usage), (0.0, 0.0)].into_iter())));
        judged(&settings, events)
    };
    for name in ["composite", "backlog-drift"] {
        let quiet = of(&with(4.0, 0.7), name);
        assert_eq!((quiet.level, quiet.score), (Level::Stable, 0.0), "{name}");
        assert_eq!(quiet.signals.last(), Some(&("peak_utilization", 0.7 / 0.8)), "{name}");
        assert_ne!(of(&with(5.0, 0.0), name).level, Level::Stable, "{name}: an engine had a queue");
        assert_ne!(of(&with(0.0, 0.8), name).level, Level::Stable, "{name}: an engine was full");
    }
    // Five requests for each of two engines wait in a router.
    let mut events: Vec<_> = (0..30).map(|index| (index * SECOND, Event::Arrival)).collect();
    events.push((9 * SECOND, Event::engines([(0.0, 0.0), (0.0, 0.0)].into_iter())));
    assert_eq!(of(&judged(&settings, events), "backlog-drift").level, Level::Overloaded);
}

#[test]
fn the_level_and_the_score_are_of_the_same_sample() {
    let sample = |at_s: u64, waiting: f64| (at_s * SECOND, Event::engines([(waiting, 0.1)].into_iter()));
    let events = vec![sample(0, 10.0), sample(1, 20.0), sample(2, 0.0)];
    let utilization = of(&judged(&Settings::default(), events), "utilization");
    assert_eq!((utilization.level, utilization.score), (Level::Overloaded, 1.0));
    assert_eq!(utilization.signals[..], [("utilization", 4.0)]);
}

/// Ten requests a second arrive for 100 seconds, and one a second is served.
#[test]
fn a_drain_does_not_hide_an_overload() {
    let settings = Settings { window_ns: 10 * SECOND, ..Settings::default() };
    let served = |index: u64| {
        let latency_ms = Some((index * 900 + 1000) as f64);
        [
            (index * SECOND / 10, Event::Arrival),
            (index * SECOND, Event::Start),
            (index * SECOND, Event::FirstToken { ttft_ms: (index * 900) as f64 }),
            ((index + 1) * SECOND, Event::End { latency_ms, started: true }),
        ]
    };
    let mut events: Vec<_> = (0..1000).flat_map(served).collect();
    events.extend((0..1000).map(|at_s| {
        let waiting = if at_s < 100 { at_s * 9 } else { 1000 - at_s };
        (at_s * SECOND, Event::engines([(waiting as f64, 0.1)].into_iter()))
    }));
    let results = judged_until(100 * SECOND, &settings, events.clone());
    for name in ["composite", "backlog-drift", "peak-rate", "queue-growth", "ttft-trend", "utilization"] {
        let verdict = of(&results, name);
        assert!(verdict.level == Level::Overloaded && verdict.score > 0.8, "{name}: {verdict:?}");
    }
    // Latencies of the last arrivals are known after the drain only.
    assert_eq!(of(&results, "threshold").signals[0], ("mean_e2e_ms", 450_550.0));
    let drained = judged(&settings, events);
    assert_eq!(of(&drained, "backlog-drift").level, Level::Stable);
}

/// One sample says little, so the samples of the drain count as well.
#[test]
fn a_burst_is_judged_by_what_follows() {
    let mut events = vec![(0, Event::Arrival); 30];
    events.push((0, Event::engines([(0.0, 0.0)].into_iter())));
    events.extend((1..30).map(|at_s| (at_s * SECOND, Event::engines([(10.0, 0.1)].into_iter()))));
    let results = judged_until(0, &Settings::default(), events);
    assert_eq!(of(&results, "utilization").level, Level::Overloaded);
    assert_eq!(of(&results, "queue-growth").level, Level::Stable);
}

/// BLIS sees no slope within one window.
#[test]
fn a_queue_that_grows_for_half_a_window_is_seen() {
    let results = judged(&Settings::default(), (0..300).map(|index| (index * SECOND / 10, Event::Arrival)).collect());
    let queue = of(&results, "queue-growth");
    assert_eq!((queue.level, queue.score), (Level::Overloaded, 1.0));
    assert_eq!(queue.signals[..3], [("backlog", 300.0), ("running_slope", 300.0), ("share_of_arrivals", 1.0)]);
    assert_eq!(of(&results, "backlog-drift").level, Level::Stable);
}

#[test]
fn the_slope_is_that_of_all_samples() {
    // At the ends of five windows, there are 1, 3, 3, 3 and 2 requests. The least-squares slope is 0.2.
    let second = |at_s: u64, event| (at_s * SECOND, event);
    let end = Event::End { latency_ms: None, started: true };
    let events = vec![second(0, Event::Arrival), second(1, Event::Arrival), second(1, Event::Arrival), second(4, end)];
    let settings = Settings { window_ns: SECOND, ..Settings::default() };
    let drift = of(&judged(&settings, events), "backlog-drift");
    assert!((drift.signals[1].1 - 0.2).abs() < 1e-12, "{drift:?}");
}

#[test]
fn roots_are_those_of_std() {
    for square in [1.0_f64, 2.0, 3.0, 1e-9, 12345.678, 1e18] {
        assert!((root(square) / square.sqrt() - 1.0).abs() < 1e-15, "{square}");
    }
}
