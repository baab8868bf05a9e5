//! Signals that are counted, not tested: outputs, matched requests and fields of observations.

use std::collections::BTreeMap;

use super::scope::Scope;
use super::{EXAMPLES, Pair, Sides, SignalJudgement, Totals, Verdict, label_of, name_of};
use crate::outputs::Outcome;
use crate::policy::{Policy, Signal};
use crate::side::{Label, Side};

pub(super) fn counted(policy: &Policy, sides: &Sides<'_>, scope: &Scope, totals: &Totals) -> Vec<SignalJudgement> {
    let mut signals = Vec::new();
    let mut add = |signal: Signal, counted: Option<Counted>| {
        if let Some(limit) = policy.limit(signal) {
            signals.push(judged(signal, limit, counted));
        }
    };
    let pairs = || scope.pairs.iter().map(|index| &sides.pairs[*index as usize]);
    let answered = pairs().filter(|pair| pair.outcome != Outcome::NotCompared).count() as u64;
    let outcomes = |outcome: Outcome| {
        let examples = pairs().filter(|pair| pair.outcome == outcome);
        Counted::share(examples, answered)
    };
    add(Signal::OutputMismatch, outcomes(Outcome::Mismatch));
    add(Signal::NumericDrift, outcomes(Outcome::Drift));
    add(Signal::IncomparableOutputs, outcomes(Outcome::Incomparable));
    if scope.is_all {
        let count = |observed: f64, requests: u64| Some(Counted { observed, requests, examples: Vec::new() });
        add(Signal::Matched, count(totals.matched as f64, totals.matched));
        // Requests that only one side has may be lost by the other.
        let larger = totals.baseline.max(totals.candidate);
        let share = if larger == 0 { 0.0 } else { totals.matched as f64 / larger as f64 };
        add(Signal::MatchedShare, count(share, larger));
    } else if scope.pairs.is_empty() {
        add(Signal::Matched, Some(Counted { observed: 0.0, requests: 0, examples: Vec::new() }));
    }
    if !scope.pairs.is_empty() {
        let matched = scope.pairs.len() as u64;
        let with = |signal: Signal, has: &dyn Fn(usize) -> bool, of: u64, is_counted: &dyn Fn(&Pair) -> bool| {
            let counted = pairs().filter(|pair| is_counted(pair));
            let missing: Vec<&Pair> = counted.filter(|pair| !has(pair.candidate as usize)).collect();
            let share = Counted::share(missing.iter().copied(), of)?;
            Some((signal, Counted { observed: 1.0 - share.observed, ..share }))
        };
        let candidate = sides.candidate;
        let labelled = |label: Label| move |index: usize| candidate.label(index, label) != 0;
        let is_answered = |pair: &Pair| candidate.is_ok(pair.candidate as usize);
        let streams = pairs().filter(|pair| is_answered(pair)).count() as u64;
        for (signal, counted) in [
            with(Signal::Route, &labelled(Label::Route), matched, &|_| true),
            with(Signal::Scheduler, &labelled(Label::Scheduler), matched, &|_| true),
            with(Signal::Stream, &|index| candidate.is_streamed(index), streams, &is_answered),
        ]
        .into_iter()
        .flatten()
        {
            add(signal, Some(counted));
        }
    }
    signals
}

struct Counted {
    observed: f64,
    requests: u64,
    examples: Vec<(u32, u32)>,
}

impl Counted {
    /// The share of `found` among `of` requests; None if `of` is 0.
    fn share<'a>(found: impl Iterator<Item = &'a Pair>, of: u64) -> Option<Self> {
        let (mut count, mut examples) = (0_u64, Vec::new());
        for pair in found {
            count += 1;
            if examples.len() < EXAMPLES {
                examples.push((pair.baseline, pair.candidate));
            }
        }
        (of > 0).then(|| Self { observed: count as f64 / of as f64, requests: of, examples })
    }
}

fn judged(signal: Signal, limit: f64, counted: Option<Counted>) -> SignalJudgement {
    let info = signal.info();
    let Some(Counted { observed, requests, examples }) = counted else {
        return SignalJudgement::unobserved(signal, limit);
    };
    let fails = if info.is_minimum { observed < limit } else { observed > limit };
    let bound = if info.is_minimum { "at least" } else { "at most" };
    let word = if info.is_minimum { "required" } else { "allowed" };
    SignalJudgement {
        signal,
        verdict: if fails { Verdict::Failed } else { Verdict::Passed },
        observed: Some(observed),
        limit,
        sides: None,
        interval: None,
        p_value: None,
        requests,
        text: format!("{}, {bound} {} {word}", info.value_text(observed), info.value_text(limit)),
        examples: if fails { examples } else { Vec::new() },
    }
}

/// The share of observations that have each field: baseline, candidate.
pub(super) fn rates(baseline: &Side, candidate: &Side) -> BTreeMap<&'static str, [f64; 2]> {
    let rate = |side: &Side, has: &dyn Fn(&Side, usize) -> bool| {
        let count = (0..side.len()).filter(|index| has(side, *index)).count();
        count as f64 / side.len().max(1) as f64
    };
    let both = |has: &dyn Fn(&Side, usize) -> bool| [rate(baseline, has), rate(candidate, has)];
    let with = |label: Label| move |side: &Side, index: usize| side.label(index, label) != 0;
    BTreeMap::from([
        ("provenance", both(&Side::has_provenance)),
        ("route", both(&with(Label::Route))),
        ("replica", both(&with(Label::Replica))),
        ("scheduler", both(&with(Label::Scheduler))),
        ("stream", both(&Side::is_streamed)),
    ])
}

/// Number of failed observations by error class: baseline, candidate.
pub(super) fn errors(baseline: &Side, candidate: &Side) -> BTreeMap<String, [u64; 2]> {
    let mut counts: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for (at, side) in [baseline, candidate].into_iter().enumerate() {
        let classes = (0..side.len()).filter_map(|index| side.name(side.label(index, Label::Error)));
        for class in classes {
            match counts.get_mut(class) {
                Some(counts) => counts[at] += 1,
                None => counts.entry(class.to_owned()).or_default()[at] += 1,
            }
        }
    }
    counts
}

pub(super) fn routes(candidate: &Side) -> BTreeMap<String, u64> {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for index in 0..candidate.len() {
        *counts.entry(candidate.label(index, Label::Route)).or_default() += 1;
    }
    counts.into_iter().filter_map(|(route, count)| Some((candidate.name(route)?.to_owned(), count))).collect()
}

/// Number of matched requests by model, backend and their versions on both sides.
pub(super) fn transitions(sides: &Sides<'_>) -> BTreeMap<String, u64> {
    const COLUMNS: [(&str, Label); 4] = [
        ("model", Label::Model),
        ("model_version", Label::ModelVersion),
        ("backend", Label::Backend),
        ("backend_version", Label::BackendVersion),
    ];
    let mut counts: BTreeMap<[(u32, u32); COLUMNS.len()], u64> = BTreeMap::new();
    for pair in sides.pairs {
        *counts.entry(COLUMNS.map(|(_, label)| label_of(sides, pair, label))).or_default() += 1;
    }
    let mut named: BTreeMap<String, u64> = BTreeMap::new();
    for (key, count) in counts {
        let words = COLUMNS.iter().zip(key).map(|((name, _), labels)| (name, name_of(sides, labels)));
        let words: Vec<String> =
            words.filter(|(_, value)| value != "-").map(|(name, value)| format!("{name}={value}")).collect();
        if !words.is_empty() {
            *named.entry(words.join(" ")).or_default() += count;
        }
    }
    named
}
