//! Signals that are tested: percentiles by bootstrap, error rates by an exact test.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use vcr_base::random::Stream;
use vcr_compare::{Statistic, percentile_change};
use vcr_report::Chart;

use super::scope::Scope;
use super::{EXAMPLES, Pair, Sides, SignalJudgement, Verdict};
use crate::policy::{Policy, Signal};

const TESTED: [Signal; 5] =
    [Signal::ErrorRateIncrease, Signal::LatencyP95, Signal::TtftP95, Signal::TokenGapP95, Signal::MemoryPressure];
/// Minimum number of resamples that are expected below a bound.
const RESAMPLES_BELOW: f64 = 10.0;
const MAX_RESAMPLES: u32 = 100_000;

pub(super) struct Test {
    pub(super) scope: usize,
    pub(super) signal: Signal,
    limit: f64,
}

pub(super) struct Tested {
    sides: [f64; 2],
    change: f64,
    interval: Option<[f64; 2]>,
    p_value: Option<f64>,
    is_significant: bool,
    requests: u64,
    examples: Vec<(u32, u32)>,
}

#[derive(Clone, Copy)]
pub(super) struct Level {
    pub(super) alpha: f64,
    pub(super) resamples: u32,
}

impl Level {
    /// Divides the false-alarm probability by the numbers of tests and looks.
    pub(super) fn of(policy: &Policy, tests: usize) -> Self {
        let alpha = policy.alpha / (tests.max(1) as f64 * f64::from(policy.looks));
        let needed = (RESAMPLES_BELOW / alpha).ceil().min(f64::from(MAX_RESAMPLES)) as u32;
        Self { alpha, resamples: policy.resamples.max(needed) }
    }
}

/// Lists the tests of all scopes: one for each signal that has a limit and observations.
pub(super) fn tests(policy: &Policy, sides: &Sides<'_>, scopes: &[Scope]) -> Vec<Test> {
    let mut tests = Vec::new();
    for (index, scope) in scopes.iter().enumerate().filter(|(_, scope)| !scope.is_small) {
        for signal in TESTED {
            let Some(limit) = policy.limit(signal) else { continue };
            let is_observed = match signal {
                Signal::ErrorRateIncrease => !scope.pairs.is_empty(),
                _ => scope.pairs.iter().any(|at| values(sides, &sides.pairs[*at as usize], signal).is_some()),
            };
            if is_observed {
                tests.push(Test { scope: index, signal, limit });
            }
        }
    }
    tests
}

/// Runs the tests. Each test draws from its own random stream, so the number of threads does not change the
/// results.
pub(super) fn run(
    policy: &Policy,
    sides: &Sides<'_>,
    scopes: &[Scope],
    tests: &[Test],
    level: Level,
    threads: NonZeroUsize,
) -> Vec<Tested> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((index, test)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, tests.get(at)?)))
        {
            done.push((index, tested(policy, sides, &scopes[test.scope], test, level)));
        }
        done
    };
    let mut results: Vec<(usize, Tested)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.get().min(tests.len())).map(|_| scope.spawn(work)).collect();
        let mut results = work();
        for other in others {
            results.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, tested)| tested).collect()
}

fn tested(policy: &Policy, sides: &Sides<'_>, scope: &Scope, test: &Test, level: Level) -> Tested {
    match test.signal {
        Signal::ErrorRateIncrease => errors(sides, scope, level),
        _ => percentile(policy, sides, scope, test, level),
    }
}

/// The values of a pair on both sides; None if either is unknown.
fn values(sides: &Sides<'_>, pair: &Pair, signal: Signal) -> Option<(f64, f64)> {
    let (b, c) = (pair.baseline as usize, pair.candidate as usize);
    let (baseline, candidate) = (sides.baseline, sides.candidate);
    if !baseline.is_ok(b) || !candidate.is_ok(c) {
        return None;
    }
    match signal {
        Signal::LatencyP95 => Some((baseline.latency_ns(b)? as f64, candidate.latency_ns(c)? as f64)),
        Signal::TtftP95 => Some((baseline.ttft_ns(b)? as f64, candidate.ttft_ns(c)? as f64)),
        Signal::TokenGapP95 => {
            // A mean gap cannot be compared with a percentile of single gaps.
            let ((b_ns, b_is_mean), (c_ns, c_is_mean)) = (baseline.gap_ns(b)?, candidate.gap_ns(c)?);
            (b_is_mean == c_is_mean).then_some((b_ns as f64, c_ns as f64))
        }
        _ => Some((baseline.kv_usage(b)?, candidate.kv_usage(c)?)),
    }
}

pub(super) fn distributions(sides: &Sides<'_>, scope: &Scope) -> Vec<Chart> {
    let latencies = [
        (Signal::LatencyP95, "latency", "Latency: CDF"),
        (Signal::TtftP95, "ttft", "Time to first token (TTFT): CDF"),
        (Signal::TokenGapP95, "token-gap", "Time between tokens: CDF"),
    ];
    let chart = |(signal, id, title): (Signal, &str, &str)| {
        let both = scope.pairs.iter().filter_map(|pair| values(sides, &sides.pairs[*pair as usize], signal));
        let (baseline, candidate) = both.map(|(b, c)| (b / 1e6, c / 1e6)).unzip();
        Chart::cdf(id, title, vec![("baseline", baseline), ("candidate", candidate)])
    };
    latencies.into_iter().filter_map(chart).collect()
}

fn relative(baseline: f64, candidate: f64) -> f64 {
    match candidate - baseline {
        0.0 => 0.0,
        increase if baseline == 0.0 => increase.signum() * f64::INFINITY,
        increase => increase / baseline,
    }
}

fn percentile(policy: &Policy, sides: &Sides<'_>, scope: &Scope, test: &Test, level: Level) -> Tested {
    let signal = test.signal;
    let pairs = scope.pairs.iter().map(|at| &sides.pairs[*at as usize]);
    let known: Vec<(f64, f64)> = pairs.filter_map(|pair| values(sides, pair, signal)).collect();
    let change = if signal == Signal::MemoryPressure { |b: f64, c: f64| c - b } else { relative };
    let stream = Stream::new(policy.seed, &format!("{}/{}", scope.name, signal.name()));
    // Only a change above the limit needs the larger number of resamples.
    let resamples = |change: f64| if change > test.limit { level.resamples } else { policy.resamples } as usize;
    let found = percentile_change(&known, Statistic::P95, change, resamples, stream);
    let requests = known.len() as u64;
    let Some(found) = found else {
        return Tested {
            sides: [0.0; 2],
            change: 0.0,
            interval: None,
            p_value: None,
            is_significant: false,
            requests,
            examples: Vec::new(),
        };
    };
    let interval = [found.bound(level.alpha), found.bound(1.0 - level.alpha)];
    let is_significant = interval[0] > 0.0;
    let examples = if is_significant { largest_increases(sides, scope, signal) } else { Vec::new() };
    let sides = [found.reference, found.compared];
    Tested { sides, change: found.change, interval: Some(interval), p_value: None, is_significant, requests, examples }
}

fn largest_increases(sides: &Sides<'_>, scope: &Scope, signal: Signal) -> Vec<(u32, u32)> {
    let mut found: Vec<(f64, (u32, u32))> = Vec::with_capacity(EXAMPLES + 1);
    for pair in scope.pairs.iter().map(|at| &sides.pairs[*at as usize]) {
        let Some((baseline, candidate)) = values(sides, pair, signal) else { continue };
        let increase = candidate - baseline;
        if found.len() == EXAMPLES && found.last().is_some_and(|(least, _)| *least >= increase) {
            continue;
        }
        let place = found.partition_point(|(other, _)| *other >= increase);
        found.insert(place, (increase, (pair.baseline, pair.candidate)));
        found.truncate(EXAMPLES);
    }
    found.into_iter().map(|(_, pair)| pair).collect()
}

/// McNemar's exact test. Under chance alone, a request that failed on one side only is equally likely to have
/// failed on either side.
fn errors(sides: &Sides<'_>, scope: &Scope, level: Level) -> Tested {
    let (mut only_baseline, mut only_candidate, mut both) = (0_u64, 0_u64, 0_u64);
    let mut examples = Vec::new();
    for pair in scope.pairs.iter().map(|at| &sides.pairs[*at as usize]) {
        match (sides.baseline.is_ok(pair.baseline as usize), sides.candidate.is_ok(pair.candidate as usize)) {
            (true, false) => {
                only_candidate += 1;
                if examples.len() < EXAMPLES {
                    examples.push((pair.baseline, pair.candidate));
                }
            }
            (false, true) => only_baseline += 1,
            (false, false) => both += 1,
            (true, true) => {}
        }
    }
    let matched = scope.pairs.len() as u64;
    let rate = |errors: u64| (errors + both) as f64 / matched.max(1) as f64;
    let p_value = at_least_by_chance(only_candidate, only_baseline + only_candidate);
    Tested {
        sides: [rate(only_baseline), rate(only_candidate)],
        change: (only_candidate as f64 - only_baseline as f64) / matched.max(1) as f64,
        interval: None,
        p_value: Some(p_value),
        is_significant: p_value <= level.alpha,
        requests: matched,
        examples,
    }
}

/// The probability of at least `heads` heads in `tosses` of a fair coin.
fn at_least_by_chance(heads: u64, tosses: u64) -> f64 {
    // Sums the tail from its largest term on; each term follows from the previous one. Logarithms keep the
    // first term from underflowing.
    if heads * 2 <= tosses {
        return 1.0 - if heads == 0 { 0.0 } else { at_least_by_chance(tosses - heads + 1, tosses) };
    }
    let mut log = -(tosses as f64) * std::f64::consts::LN_2;
    for k in 0..tosses - heads {
        log += libm::log((tosses - k) as f64 / (k + 1) as f64);
    }
    let (mut term, mut sum) = (libm::exp(log), 0.0);
    for k in heads..=tosses {
        sum += term;
        term *= (tosses - k) as f64 / (k + 1) as f64;
        if term < sum * 1e-17 {
            break;
        }
    }
    sum.min(1.0)
}

pub(super) fn judgement(policy: &Policy, test: &Test, tested: &Tested) -> SignalJudgement {
    let info = test.signal.info();
    let verdict = match (tested.change > test.limit, tested.is_significant) {
        (false, _) => Verdict::Passed,
        (true, false) => Verdict::WithinNoise,
        (true, true) => Verdict::Failed,
    };
    let noise = match verdict {
        Verdict::WithinNoise => format!(", within noise at alpha {} over all tests", policy.alpha),
        _ => String::new(),
    };
    let text = match test.signal {
        Signal::ErrorRateIncrease | Signal::MemoryPressure => {
            let points = |share: f64| format!("{} points", (share * 1e4).round() / 1e2);
            let [baseline, candidate] = tested.sides.map(|share| info.value_text(share));
            let (change, limit) = (points(tested.change.abs()), points(test.limit));
            let more = if tested.change < 0.0 { "fewer" } else { "more" };
            format!("from {baseline} to {candidate}, {change} {more}, at most {limit} allowed{noise}")
        }
        _ => {
            let [baseline, candidate] = tested.sides.map(time);
            let (change, limit) = (info.value_text(tested.change), info.value_text(test.limit));
            format!("from {baseline} to {candidate}, {change}, at most {limit} allowed{noise}")
        }
    };
    SignalJudgement {
        signal: test.signal,
        verdict,
        observed: Some(tested.change).filter(|change| change.is_finite()),
        limit: test.limit,
        sides: Some(tested.sides),
        interval: tested.interval.filter(|interval| interval.iter().all(|end| end.is_finite())),
        p_value: tested.p_value,
        requests: tested.requests,
        text,
        examples: if verdict == Verdict::Failed { tested.examples.clone() } else { Vec::new() },
    }
}

fn time(ns: f64) -> String {
    format!("{} ms", (ns / 1e4).round() / 1e2)
}

/// Lists the tested signals of a scope that have a limit but no observations.
pub(super) fn not_observed(policy: &Policy, scope: &Scope, signals: &[SignalJudgement]) -> Vec<SignalJudgement> {
    if scope.is_small {
        return Vec::new();
    }
    let missing = TESTED.into_iter().filter(|signal| signals.iter().all(|found| found.signal != *signal));
    missing.filter_map(|signal| Some(SignalJudgement::unobserved(signal, policy.limit(signal)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_of_a_fair_coin() {
        for (heads, tosses, expected) in [
            (0, 0, 1.0),
            (1, 1, 0.5),
            (5, 5, 1.0 / 32.0),
            (6, 6, 1.0 / 64.0),
            (8, 10, 56.0 / 1024.0),
            (2, 4, 11.0 / 16.0),
            (0, 9, 1.0),
        ] {
            let found = at_least_by_chance(heads, tosses);
            assert!((found - expected).abs() < 1e-12, "{heads} of {tosses}: {found}");
        }
        // About half of many tosses, and a nearly impossible number.
        assert!((at_least_by_chance(50_001, 100_001) - 0.5).abs() < 1e-9);
        assert!(at_least_by_chance(60_000, 100_000) < 1e-100);
    }

    #[test]
    fn increases_from_nothing_are_infinite() {
        assert_eq!((relative(0.0, 0.0), relative(0.0, 1.0), relative(2.0, 3.0)), (0.0, f64::INFINITY, 0.5));
    }
}
