//! Decides about a candidate: rollback takes precedence over hold, and hold over promote.
//!
//! All matched requests are judged together, and each segment with enough requests separately. A regression fails
//! if it exceeds its limit and its bootstrap interval excludes zero. An increase of errors fails if it exceeds its
//! limit and an exact test excludes chance; the test uses the requests that failed on one side only. The
//! false-alarm probability is divided by the number of these tests and of looks (Bonferroni), so that it holds for
//! all tests together. The other signals are counted, not tested.

mod evidence;
mod regression;
mod scope;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use serde::Serialize;
use vcr_report::Chart;

use crate::error::GateError;
use crate::join::{Joined, JoinedBy};
use crate::outputs::{self, Outcome};
use crate::policy::{Policy, Response, Signal};
use crate::side::{Label, Side};
use regression::{Test, Tested};
use scope::{Scope, scopes};

const EXAMPLES: usize = 3;

/// The decision about a release. Later variants take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// No signal failed.
    Promote,
    /// The release waits.
    Hold,
    /// The release is taken back.
    Rollback,
}

impl Decision {
    /// The decision's name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Promote => "promote",
            Self::Hold => "hold",
            Self::Rollback => "rollback",
        }
    }
}

impl From<Response> for Decision {
    fn from(response: Response) -> Self {
        match response {
            Response::Hold => Self::Hold,
            Response::Rollback => Self::Rollback,
        }
    }
}

/// The verdict on a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The signal is within its limit.
    Passed,
    /// The signal exceeds its limit, but noise alone could be the cause.
    WithinNoise,
    /// The signal breaks its limit.
    Failed,
    /// No observation has the value that the signal needs.
    NotObserved,
}

/// The judgement of a signal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SignalJudgement {
    /// The signal.
    pub signal: Signal,
    /// The verdict.
    pub verdict: Verdict,
    /// Observed share, change or number; null if infinite or not observed.
    pub observed: Option<f64>,
    /// The signal's limit.
    pub limit: f64,
    /// The values of baseline and candidate, for percentiles and error rates: nanoseconds, or shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sides: Option<[f64; 2]>,
    /// Confidence interval of a change at the corrected level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// Probability that chance alone increases the errors at least as much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p_value: Option<f64>,
    /// Number of compared requests.
    pub requests: u64,
    /// The judgement in words.
    pub text: String,
    /// The pairs that show a failure best, as (baseline index, candidate index).
    #[serde(skip)]
    pub(crate) examples: Vec<(u32, u32)>,
}

impl SignalJudgement {
    fn unobserved(signal: Signal, limit: f64) -> Self {
        Self {
            signal,
            verdict: Verdict::NotObserved,
            observed: None,
            limit,
            sides: None,
            interval: None,
            p_value: None,
            requests: 0,
            text: "not observed on both sides".to_owned(),
            examples: Vec::new(),
        }
    }
}

/// The judgement of a segment, or of all requests together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SegmentJudgement {
    /// The segment's labels in words, or `all`.
    pub name: String,
    /// The segment's labels. A label that changed between the sides contains `->`.
    pub labels: BTreeMap<&'static str, String>,
    /// Number of matched requests in the segment.
    pub matched: u64,
    /// The decision that the segment's failed signals cause.
    pub decision: Decision,
    /// The judgements of the segment's signals.
    pub signals: Vec<SignalJudgement>,
}

/// Numbers of observations and requests on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Number of observations of the baseline.
    pub baseline: u64,
    /// Number of observations of the candidate.
    pub candidate: u64,
    /// Number of repeated observations of the baseline that were dropped.
    pub baseline_duplicates: u64,
    /// Number of repeated observations of the candidate that were dropped.
    pub candidate_duplicates: u64,
    /// Number of requests that both sides have.
    pub matched: u64,
    /// Number of the baseline's requests without a match.
    pub only_baseline: u64,
    /// Number of the candidate's requests without a match.
    pub only_candidate: u64,
    /// Number of matched requests that failed at the baseline.
    pub baseline_errors: u64,
    /// Number of matched requests that failed at the candidate.
    pub candidate_errors: u64,
    /// Number of matched requests that both sides answered.
    pub answered: u64,
    /// Number of answered requests with equal answers.
    pub equal: u64,
    /// Number of answered requests whose answers differ within a tolerance.
    pub tolerated: u64,
    /// Number of answered requests whose answers differ.
    pub mismatched: u64,
    /// Number of answered requests whose numeric outputs are outside a tolerance.
    pub drifted: u64,
    /// Number of answered requests whose answers have no output material in common.
    pub incomparable: u64,
}

/// The judgement of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// The decision.
    pub decision: Decision,
    /// The reason of the decision.
    pub reason: String,
    /// The key by which requests were matched.
    pub joined_by: JoinedBy,
    /// Numbers of observations and requests.
    pub totals: Totals,
    /// The share of observations that have each field of provenance: baseline, candidate.
    pub rates: BTreeMap<&'static str, [f64; 2]>,
    /// Number of failed observations by error class: baseline, candidate.
    pub errors: BTreeMap<String, [u64; 2]>,
    /// Number of the candidate's requests by route.
    pub candidate_routes: BTreeMap<String, u64>,
    /// Number of matched requests by change of version.
    pub version_transitions: BTreeMap<String, u64>,
    /// Number of tests that share the false-alarm probability.
    pub tests: u64,
    /// The false-alarm probability of each test.
    pub alpha_each: f64,
    /// Number of resamples of each test.
    pub resamples: u32,
    /// The judgement of all requests, then of each segment.
    pub segments: Vec<SegmentJudgement>,
    /// CDFs of both sides' latencies over all matched requests.
    #[serde(skip)]
    pub distributions: Vec<Chart>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) baseline: u32,
    pub(crate) candidate: u32,
    pub(crate) outcome: Outcome,
}

pub(crate) struct Sides<'a> {
    pub(crate) baseline: &'a Side,
    pub(crate) candidate: &'a Side,
    pub(crate) pairs: &'a [Pair],
}

pub(crate) fn judge(
    policy: &Policy,
    baseline: &Side,
    candidate: &Side,
    joined: &Joined,
    threads: NonZeroUsize,
) -> Result<Judgement, GateError> {
    let pairs: Vec<Pair> = joined.pairs.iter().map(|(b, c)| pair(policy, baseline, candidate, *b, *c)).collect();
    let sides = Sides { baseline, candidate, pairs: &pairs };
    let scopes = scopes(policy, &sides)?;
    let tests = regression::tests(policy, &sides, &scopes);
    let level = regression::Level::of(policy, tests.len());
    let tested = regression::run(policy, &sides, &scopes, &tests, level, threads);
    let totals = totals(&sides);
    let mut segments: Vec<SegmentJudgement> = scopes
        .iter()
        .enumerate()
        .map(|(index, scope)| {
            let of_scope = tests.iter().zip(&tested).filter(|(test, _)| test.scope == index);
            segment(policy, &sides, scope, of_scope, &totals)
        })
        .collect();
    if totals.matched == 0 {
        explain_no_match(&mut segments, joined.by);
    }
    let decision = segments.iter().map(|segment| segment.decision).max().unwrap_or(Decision::Promote);
    Ok(Judgement {
        decision,
        reason: reason(decision, &segments),
        joined_by: joined.by,
        totals,
        rates: evidence::rates(baseline, candidate),
        errors: evidence::errors(baseline, candidate),
        candidate_routes: evidence::routes(candidate),
        version_transitions: evidence::transitions(&sides),
        tests: tests.len() as u64 * u64::from(policy.looks),
        alpha_each: level.alpha,
        resamples: level.resamples,
        segments,
        distributions: scopes.first().map(|all| regression::distributions(&sides, all)).unwrap_or_default(),
    })
}

fn pair(policy: &Policy, b: &Side, c: &Side, baseline: u32, candidate: u32) -> Pair {
    let outcome = outputs::compare(policy, (b, baseline as usize), (c, candidate as usize));
    Pair { baseline, candidate, outcome }
}

fn totals(sides: &Sides<'_>) -> Totals {
    let matched = sides.pairs.len() as u64;
    let (baseline, candidate) = (sides.baseline.len() as u64, sides.candidate.len() as u64);
    let mut totals = Totals {
        baseline,
        candidate,
        baseline_duplicates: sides.baseline.duplicates(),
        candidate_duplicates: sides.candidate.duplicates(),
        matched,
        only_baseline: baseline - matched,
        only_candidate: candidate - matched,
        ..Totals::default()
    };
    for pair in sides.pairs {
        totals.baseline_errors += u64::from(!sides.baseline.is_ok(pair.baseline as usize));
        totals.candidate_errors += u64::from(!sides.candidate.is_ok(pair.candidate as usize));
        totals.answered += u64::from(pair.outcome != Outcome::NotCompared);
        match pair.outcome {
            Outcome::NotCompared => {}
            Outcome::Equal => totals.equal += 1,
            Outcome::Tolerated => totals.tolerated += 1,
            Outcome::Mismatch => totals.mismatched += 1,
            Outcome::Drift => totals.drifted += 1,
            Outcome::Incomparable => totals.incomparable += 1,
        }
    }
    totals
}

fn segment<'a>(
    policy: &Policy,
    sides: &Sides<'_>,
    scope: &Scope,
    tested: impl Iterator<Item = (&'a Test, &'a Tested)>,
    totals: &Totals,
) -> SegmentJudgement {
    let mut signals = evidence::counted(policy, sides, scope, totals);
    signals.extend(tested.map(|(test, tested)| regression::judgement(policy, test, tested)));
    signals.extend(regression::not_observed(policy, scope, &signals));
    signals.sort_by_key(|signal| signal.signal);
    let failed = signals.iter().filter(|signal| signal.verdict == Verdict::Failed);
    let decision = failed.map(|signal| signal.signal.info().response.into()).max().unwrap_or(Decision::Promote);
    SegmentJudgement {
        name: scope.name.clone(),
        labels: scope.labels.clone(),
        matched: scope.pairs.len() as u64,
        decision,
        signals,
    }
}

/// Adds to the text of `matched` why no request has a match, and what to do.
fn explain_no_match(segments: &mut [SegmentJudgement], by: JoinedBy) {
    let reason = match by {
        JoinedBy::Id => {
            "no request id is on both sides: name the requests alike, or compare by order with `vcr compare`"
        }
        JoinedBy::Content => "no content is on both sides",
    };
    for signal in segments.iter_mut().flat_map(|segment| &mut segment.signals) {
        if signal.signal == Signal::Matched {
            signal.text = format!("{}; {reason}", signal.text);
        }
    }
}

/// Names the first failed signal that causes the decision. Signals of all requests come first, then those of each
/// segment.
fn reason(decision: Decision, segments: &[SegmentJudgement]) -> String {
    let decides = |signal: &&SignalJudgement| {
        signal.verdict == Verdict::Failed && Decision::from(signal.signal.info().response) == decision
    };
    let first = segments.iter().find_map(|segment| Some((segment, segment.signals.iter().find(decides)?)));
    match first {
        Some((segment, signal)) => format!("{} of {}: {}", signal.signal.name(), segment.name, signal.text),
        None => {
            let signals = segments.iter().flat_map(|segment| &segment.signals);
            let unknown = signals.filter(|signal| signal.verdict == Verdict::NotObserved);
            let unknown: BTreeSet<&str> = unknown.map(|signal| signal.signal.name()).collect();
            let unknown: Vec<&str> = unknown.into_iter().collect();
            match unknown.is_empty() {
                true => "every signal keeps to its limit".to_owned(),
                false => format!("every observed signal keeps to its limit; not observed: {}", unknown.join(", ")),
            }
        }
    }
}

pub(crate) fn label_of(sides: &Sides<'_>, pair: &Pair, label: Label) -> (u32, u32) {
    let (b, c) = (pair.baseline as usize, pair.candidate as usize);
    (sides.baseline.label(b, label), sides.candidate.label(c, label))
}

/// The names of a label on both sides as one text, with `->` between different names.
pub(crate) fn name_of(sides: &Sides<'_>, labels: (u32, u32)) -> String {
    let (b, c) = (sides.baseline.name(labels.0), sides.candidate.name(labels.1));
    match (b, c) {
        (b, c) if b == c => b.unwrap_or("-").to_owned(),
        (b, c) => format!("{}->{}", b.unwrap_or("-"), c.unwrap_or("-")),
    }
}
